/* The load of the tests: steps that threads make on CPUs of their choice. */
#ifndef COMMON_H
#define COMMON_H

#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "steps.h"

#define CHECK(that) \
	do { \
		if (!(that)) { \
			fprintf(stderr, "%s:%d: not %s (errno %d)\n", __FILE__, __LINE__, #that, errno); \
			exit(1); \
		} \
	} while (0)

static struct bpf_object *object;
/* Kept where valgrind finds it. */
static struct bpf_link *volatile attached;

static inline int map(const char *name)
{
	int fd = bpf_object__find_map_fd_by_name(object, name);

	CHECK(fd >= 0);
	return fd;
}

/* Where steps go from now on. */
static inline void begin(unsigned int mode, unsigned int which, unsigned int flags)
{
	struct control how = { .pid = (unsigned int)getpid(), .mode = mode, .which = which, .flags = flags };
	unsigned int zero = 0;

	CHECK(!bpf_map_update_elem(map("control"), &zero, &how, BPF_ANY));
}

static inline unsigned long long dropped(void)
{
	struct control how;
	unsigned int zero = 0;

	CHECK(!bpf_map_lookup_elem(map("control"), &zero, &how));
	return how.dropped;
}

static inline void load(const char *path)
{
	CHECK(dup2(memfd_create("steps", 0), FD) == FD);
	object = bpf_object__open_file(path, NULL);
	CHECK(object && !bpf_object__load(object));
	attached = bpf_program__attach(bpf_object__find_program_by_name(object, "on_enter"));
	CHECK(attached);
}

static inline int cpus(void)
{
	return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static inline void move(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	CHECK(!sched_setaffinity(0, sizeof(set), &set));
}

static inline void anywhere(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	for (int cpu = 0; cpu < cpus(); cpu++)
		CPU_SET((size_t)cpu, &set);
	CHECK(!sched_setaffinity(0, sizeof(set), &set));
}

static inline void step(long number)
{
	lseek(FD, number, SEEK_SET);
}

static inline void step_on(int cpu, long number)
{
	move(cpu);
	step(number);
	anywhere();
}

/* Two threads hand a number to and fro, each on its CPU: so the order of all steps is known without any clock. */
static long handed;
static long handing;

static void *hand(void *which)
{
	long odd = (long)which;

	move((int)odd % cpus());
	for (;;) {
		long number = __atomic_load_n(&handed, __ATOMIC_ACQUIRE);

		if (number >= handing)
			return NULL;
		if ((number & 1) == odd) {
			step(number);
			__atomic_store_n(&handed, number + 1, __ATOMIC_RELEASE);
		} else {
			/* Not a spin: there may be one CPU, or hogs on both. */
			sched_yield();
		}
	}
}

static pthread_t hands[2];

static inline void handover(long steps)
{
	handed = 0;
	handing = steps;
	for (long odd = 0; odd < 2; odd++)
		CHECK(!pthread_create(&hands[odd], NULL, hand, (void *)odd));
}

static inline bool is_handed(void)
{
	return __atomic_load_n(&handed, __ATOMIC_ACQUIRE) >= handing;
}

static inline void handed_over(void)
{
	for (int odd = 0; odd < 2; odd++)
		CHECK(!pthread_join(hands[odd], NULL));
}

#endif
