/* The load of the tests: numbers that a thread writes while it moves from CPU to CPU. */
#ifndef COMMON_H
#define COMMON_H

#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "numbers.h"
#include <perfweave.h>

#define CHECK(that) \
	do { \
		if (!(that)) { \
			fprintf(stderr, "%s:%d: not %s (errno %d, %s)\n", __FILE__, __LINE__, #that, errno, pw_last_error()); \
			exit(1); \
		} \
	} while (0)

static struct bpf_object *object;

static inline int map(const char *name)
{
	int fd = bpf_object__find_map_fd_by_name(object, name);

	CHECK(fd >= 0);
	return fd;
}

/* Numbers begin again at 0, and go where `mode` says. */
static inline void begin(__u32 mode)
{
	struct control how = { .pid = (__u32)getpid(), .mode = mode, .call = SYS_getppid };
	__u32 zero = 0, own[1024] = {};

	(void)own;
	CHECK(!bpf_map_update_elem(map("control"), &zero, &how, BPF_ANY));
}

static inline void load(const char *path)
{
	static struct bpf_link *link;

	object = bpf_object__open_file(path, NULL);
	CHECK(object && !bpf_object__load(object));
	link = bpf_program__attach(bpf_object__find_program_by_name(object, "on_enter"));
	CHECK(link);
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

/* Writes so many numbers. The CPU changes after each few. */
static inline void emit(int count)
{
	cpu_set_t before;

	CHECK(!sched_getaffinity(0, sizeof(before), &before));
	for (int i = 0; i < count; i++) {
		if (i % 7 == 0)
			move(i / 7 % cpus());
		syscall(SYS_getppid);
	}
	CHECK(!sched_setaffinity(0, sizeof(before), &before));
}

#endif
