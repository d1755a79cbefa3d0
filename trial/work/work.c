// Work whose order nobody has to measure: each step is caused by the step before it, and its number stands in the arguments of a system call
// that every tracer prints. What happened is counted in shared memory, and written as a history when the work is over.
//
//	work NAME --history FILE [--steps N] [--seconds N] [--beside hogs|rt|storm|hotplug]
//	nNUMBER		from END on: one step on each CPU, with that number and those after it. Whoever has printed them has printed all that was
//			before
//
// A step is lseek(fd, number, SEEK_SET) = number, on a descriptor from 900 to 999.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef WITH_LTTNG
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "provider.h"
#define said(number) lttng_ust_tracepoint(trial, step, number)
#else
#define said(number) ((void)0)
#endif

enum { FIRST_FD = 900, SHARED_FD = 899, END = 987654144, MOST_THREADS = 64, STAGES = 4, SLEEPERS = 4, MOST_STEPS = 1 << 20 };
// No step has this number: who gets it as its turn ends.
static const uint32_t OVER = UINT32_MAX;

struct shared {
	// The number of the next step, where one order holds for all.
	_Atomic uint32_t turn;
	// The same, for each thread that sleeps until its turn.
	_Atomic uint32_t turns[MOST_THREADS];
	_Atomic int ready;
	// Steps made, of each thread or stage.
	_Atomic uint32_t made[MOST_THREADS];
	// The thread that made each step.
	uint32_t who[MOST_STEPS];
};

static struct shared *shared;
static uint32_t steps;
static struct timespec deadline;
static int cpus[MOST_THREADS], cpu_count;

static void check(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "work: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void step(int fd, uint32_t number)
{
	said(number);
	check(syscall(SYS_lseek, fd, (off_t)number, SEEK_SET) == (long)number, "lseek");
	if (number < MOST_STEPS)
		shared->who[number] = (uint32_t)syscall(SYS_gettid);
}

// A description of its own for each thread, because the kernel locks the position of one that is shared.
static int step_fd(int index)
{
	int fd = memfd_create("trial", 0);

	check(fd >= 0 && dup2(fd, FIRST_FD + index) >= 0 && close(fd) == 0, "memfd_create");
	return FIRST_FD + index;
}

static int late(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec > deadline.tv_sec || (now.tv_sec == deadline.tv_sec && now.tv_nsec > deadline.tv_nsec);
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	check(sched_setaffinity(0, sizeof(set), &set) == 0, "sched_setaffinity");
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
	syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

// All begin together, or the first would be done before the last exists.
static void together(int count)
{
	atomic_fetch_add(&shared->ready, 1);
	while (atomic_load(&shared->ready) < count)
		sched_yield();
}

// The number after this step: OVER if it was the last.
static uint32_t after(uint32_t number)
{
	return number + 1 >= steps || late() ? OVER : number + 1;
}

// Two processes on two CPUs hand a token to and fro. They spin: the next step begins within a microsecond of the last.
static void handover(int me)
{
	int fd = step_fd(me);

	pin(cpus[me % cpu_count]);
	together(2);
	for (;;) {
		uint32_t number, spins = 0;

		while ((number = atomic_load(&shared->turn)) != OVER && number % 2 != (uint32_t)me)
			if (++spins % 1024 == 0 || cpu_count == 1)
				sched_yield();
		if (number == OVER)
			return;
		step(fd, number);
		atomic_fetch_add(&shared->made[0], 1);
		atomic_store(&shared->turn, after(number));
	}
}

// A process for each stage. Message after message goes through all of them, several at a time. Step k * STAGES + i is message k at stage i.
static int pipes[STAGES][2];

static void stage(int me)
{
	int fd = step_fd(me);

	for (int i = 0; i < STAGES; i++) {
		if (i != me - 1)
			close(pipes[i][0]);
		if (i != me)
			close(pipes[i][1]);
	}
	for (uint32_t message = 0; me > 0 || (message < steps && !late()); message++) {
		if (me > 0 && read(pipes[me - 1][0], &message, sizeof(message)) != sizeof(message))
			return;
		step(fd, message * STAGES + (uint32_t)me);
		atomic_fetch_add(&shared->made[me], 1);
		if (me < STAGES - 1)
			check(write(pipes[me][1], &message, sizeof(message)) == sizeof(message), "write");
	}
}

// Hands the turn to the thread that has the number, and wakes it. OVER goes round by itself: each hands it on once.
static void hand_on(uint32_t next, int to)
{
	atomic_store(&shared->turns[to], next);
	futex_wake(&shared->turns[to]);
}

// As many threads as said, each asleep until its number comes.
static int sleepers;

static void *in_a_ring(void *argument)
{
	int me = (int)(intptr_t)argument, fd = step_fd(me);
	uint32_t mine = (uint32_t)me;

	together(sleepers);
	for (;; mine += (uint32_t)sleepers) {
		uint32_t number;

		while ((number = atomic_load(&shared->turns[me])) != mine && number != OVER)
			futex_wait(&shared->turns[me], number);
		if (number == OVER)
			break;
		step(fd, mine);
		atomic_fetch_add(&shared->made[0], 1);
		hand_on(after(mine), (me + 1) % sleepers);
	}
	hand_on(OVER, (me + 1) % sleepers);
	return NULL;
}

// The same on two CPUs in turn, and a thread that sleeps has the number for which it waits as its name: w17. Scheduler events print names. No other
// sleep happens under that name, so who runs again after it was woken by the thread before it.
static void *asleep(void *argument)
{
	int me = (int)(intptr_t)argument, fd = step_fd(me);
	uint32_t mine = (uint32_t)me;
	char name[16];

	pin(cpus[me % cpu_count]);
	together(sleepers);
	for (;; mine += (uint32_t)sleepers) {
		uint32_t number;

		snprintf(name, sizeof(name), "w%u", mine);
		prctl(PR_SET_NAME, name);
		while ((number = atomic_load(&shared->turns[me])) != mine && number != OVER)
			futex_wait(&shared->turns[me], number);
		prctl(PR_SET_NAME, "awake");
		if (number == OVER)
			break;
		step(fd, mine);
		atomic_fetch_add(&shared->made[0], 1);
		hand_on(after(mine), (me + 1) % sleepers);
	}
	hand_on(OVER, (me + 1) % sleepers);
	return NULL;
}

// Whoever has the lock draws the next number.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *lockers(void *argument)
{
	int me = (int)(intptr_t)argument, fd = step_fd(me);

	together(sleepers);
	for (;;) {
		uint32_t number;

		pthread_mutex_lock(&lock);
		number = atomic_load(&shared->turn);
		if (number != OVER) {
			step(fd, number);
			atomic_fetch_add(&shared->made[0], 1);
			atomic_store(&shared->turn, after(number));
		}
		pthread_mutex_unlock(&lock);
		if (number == OVER)
			return NULL;
		sched_yield();
	}
}

// A thread on each CPU, as fast as it can. Only each thread's own steps have an order.
static void *flood(void *argument)
{
	int me = (int)(intptr_t)argument, fd = step_fd(me);

	pin(cpus[me % cpu_count]);
	together(sleepers);
	for (uint32_t i = 0; i < steps && (i % 64 != 0 || !late()); i++) {
		step(fd, (uint32_t)me * steps + i);
		atomic_fetch_add(&shared->made[me], 1);
	}
	return NULL;
}

static void threads(void *(*body)(void *), int count)
{
	pthread_t thread[MOST_THREADS];

	sleepers = count;
	for (int i = 1; i < MOST_THREADS; i++)
		atomic_store(&shared->turns[i], OVER - 1);
	for (int i = 0; i < count; i++)
		check(pthread_create(&thread[i], NULL, body, (void *)(intptr_t)i) == 0, "pthread_create");
	for (int i = 0; i < count; i++)
		pthread_join(thread[i], NULL);
}

static pid_t processes(void (*body)(int), int count)
{
	pid_t last = 0;

	for (int i = 0; i < count; i++) {
		last = fork();
		check(last >= 0, "fork");
		if (last == 0) {
			body(i);
			exit(0);
		}
	}
	return last;
}

// A tree of programs. Node n is executed as n17, makes step 2n when it begins, starts nodes 2n + 1 and 2n + 2, waits for both, makes step 2n + 1, and
// ends. The folder has a link of each name.
static void start_node(const char *folder, uint32_t node)
{
	char path[4096], count[16];
	pid_t child = fork();

	check(child >= 0, "fork");
	if (child > 0)
		return;
	snprintf(path, sizeof(path), "%s/n%u", folder, node);
	snprintf(count, sizeof(count), "%u", steps);
	execl(path, path, folder, count, NULL);
	check(0, path);
}

static void wait_for_all(void)
{
	int status;

	while (wait(&status) > 0 || errno == EINTR)
		check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a process of the work failed");
}

static int node(uint32_t number, const char *folder)
{
	int fd = step_fd(0);

	step(fd, 2 * number);
	atomic_fetch_add(&shared->made[0], 1);
	for (uint32_t child = 2 * number + 1; child <= 2 * number + 2 && child < steps; child++)
		start_node(folder, child);
	wait_for_all();
	step(fd, 2 * number + 1);
	atomic_fetch_add(&shared->made[0], 1);
	return 0;
}

static void tree(void)
{
	char folder[] = "/tmp/trial-XXXXXX", path[64], self[4096];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	check(length > 0 && mkdtemp(folder) != NULL, "mkdtemp");
	self[length] = 0;
	for (uint32_t i = 0; i < steps; i++) {
		snprintf(path, sizeof(path), "%s/n%u", folder, i);
		check(symlink(self, path) == 0, "symlink");
	}
	start_node(folder, 0);
	wait_for_all();
	for (uint32_t i = 0; i < steps; i++) {
		snprintf(path, sizeof(path), "%s/n%u", folder, i);
		unlink(path);
	}
	rmdir(folder);
}

// What runs beside the work. They are processes of their own, killed when the work is over.
static pid_t beside[MOST_THREADS];
static int beside_count;

static void hog(int cpu, int real_time)
{
	struct sched_param priority = { .sched_priority = 10 };
	struct timespec pause = { 0, 5000000 }, now, until;

	pin(cpu);
	if (real_time)
		check(sched_setscheduler(0, SCHED_FIFO, &priority) == 0, "sched_setscheduler");
	for (;;) {
		if (real_time)
			nanosleep(&pause, NULL);
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += 5000000;
		do
			clock_gettime(CLOCK_MONOTONIC, &now);
		while ((now.tv_sec - until.tv_sec) * 1000000000L + now.tv_nsec < until.tv_nsec);
	}
}

// Interrupts every 50 µs on one CPU. Nobody reads the timer, so no thread is woken.
static void storm(int cpu)
{
	struct itimerspec every = { { 0, 50000 }, { 0, 50000 } };
	int fd;

	pin(cpu);
	fd = timerfd_create(CLOCK_MONOTONIC, 0);
	check(fd >= 0 && timerfd_settime(fd, 0, &every, NULL) == 0, "timerfd");
	for (;;)
		pause();
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	check(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0, path);
}

// The last CPU goes and comes, until the work is over. Whatever ends this process, `trial/run` brings the CPU back.
static void hotplug(int cpu, pid_t parent)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/online", cpu);
	while (getppid() == parent && atomic_load(&shared->turn) != OVER - 2) {
		write_file(path, "0");
		write_file(path, "1");
	}
}

// Tests of perfweave that need their CPUs hold a lock on this file.
static void lock_cpus(void)
{
	int fd = open("/sys/devices/system/cpu/online", O_RDONLY | O_CLOEXEC);

	check(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0, "tests keep the CPUs");
}

static void begin_beside(const char *what)
{
	int hotplugs = !strcmp(what, "hotplug");
	pid_t parent = getpid();

	if (hotplugs)
		lock_cpus();
	for (int i = 0; i < (hotplugs ? 1 : cpu_count); i++) {
		pid_t child = fork();

		check(child >= 0, "fork");
		if (child > 0) {
			beside[beside_count++] = child;
			continue;
		}
		if (hotplugs) {
			hotplug(cpus[cpu_count - 1], parent);
			_exit(0);
		}
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!strcmp(what, "storm"))
			storm(cpus[i]);
		hog(cpus[i], !strcmp(what, "rt"));
	}
}

static void end_beside(int hotplugs)
{
	if (hotplugs)
		atomic_store(&shared->turn, OVER - 2);
	for (int i = 0; i < beside_count; i++) {
		if (!hotplugs)
			kill(beside[i], SIGKILL);
		waitpid(beside[i], NULL, 0);
	}
}

static void list_cpus(void)
{
	cpu_set_t set;

	check(sched_getaffinity(0, sizeof(set), &set) == 0, "sched_getaffinity");
	for (int cpu = 0; cpu < CPU_SETSIZE && cpu_count < MOST_THREADS; cpu++)
		if (CPU_ISSET(cpu, &set))
			cpus[cpu_count++] = cpu;
}

static int end(uint32_t number)
{
	for (int i = 0; i < cpu_count; i++) {
		int fd = step_fd(i);

		pin(cpus[i]);
		step(fd, number + (uint32_t)i);
	}
	return 0;
}

static void map_shared(int fd)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	check(shared != MAP_FAILED, "mmap");
}

static void write_history(const char *path, const char *name, int columns)
{
	FILE *file = fopen(path, "w");

	check(file != NULL, path);
	fprintf(file, "{\"work\":\"%s\",\"steps\":%u,\"made\":[", name, steps);
	for (int i = 0; i < columns; i++)
		fprintf(file, "%s%u", i ? "," : "", atomic_load(&shared->made[i]));
	fprintf(file, "],\"who\":[");
	for (uint32_t i = 0, last = 0; i < MOST_STEPS; i++)
		if (shared->who[i]) {
			fprintf(file, "%s[%u,%u]", last ? "," : "", i, shared->who[i]);
			last = 1;
		}
	fprintf(file, "]}\n");
	check(fclose(file) == 0, path);
}

static const char *option(int count, char **words, const char *name, const char *otherwise)
{
	for (int i = 2; i + 1 < count; i += 2)
		if (!strcmp(words[i], name))
			return words[i + 1];
	return otherwise;
}

// How many counters of steps the work has.
static int run(const char *name)
{
	if (!strcmp(name, "handover")) {
		processes(handover, 2);
	} else if (!strcmp(name, "pipes")) {
		for (int i = 0; i < STAGES; i++)
			check(pipe(pipes[i]) == 0, "pipe");
		processes(stage, STAGES);
		for (int i = 0; i < STAGES; i++) {
			close(pipes[i][0]);
			close(pipes[i][1]);
		}
		wait_for_all();
		return STAGES;
	} else if (!strcmp(name, "ring")) {
		threads(in_a_ring, 8);
	} else if (!strcmp(name, "wakes")) {
		threads(asleep, SLEEPERS);
	} else if (!strcmp(name, "locks")) {
		threads(lockers, 4);
	} else if (!strcmp(name, "flood")) {
		threads(flood, cpu_count);
		return cpu_count;
	} else if (!strcmp(name, "tree")) {
		tree();
	} else {
		errno = EINVAL;
		check(0, name);
	}
	return 1;
}

int main(int count, char **words)
{
	const char *name = strrchr(words[0], '/'), *besides, *history;
	int fd, columns;

	name = name ? name + 1 : words[0];
	list_cpus();
	if (name[0] == 'n' && atoi(name + 1) >= END)
		return end((uint32_t)atoi(name + 1));
	if (name[0] == 'n') {
		map_shared(SHARED_FD);
		steps = (uint32_t)atoi(words[2]);
		return node((uint32_t)atoi(name + 1), words[1]);
	}
	if (count < 2) {
		fprintf(stderr, "work: which?\n");
		return 2;
	}
	fd = memfd_create("trial-shared", 0);
	check(fd >= 0 && ftruncate(fd, sizeof(*shared)) == 0 && dup2(fd, SHARED_FD) >= 0 && close(fd) == 0, "memfd_create");
	map_shared(SHARED_FD);
	steps = (uint32_t)atoi(option(count, words, "--steps", "1000"));
	check(steps > 0 && steps <= MOST_STEPS / STAGES, "--steps");
	clock_gettime(CLOCK_MONOTONIC, &deadline);
	deadline.tv_sec += atoi(option(count, words, "--seconds", "3"));
	besides = option(count, words, "--beside", "");
	history = option(count, words, "--history", NULL);
	if (*besides)
		begin_beside(besides);
	columns = run(words[1]);
	if (*besides)
		end_beside(!strcmp(besides, "hotplug"));
	wait_for_all();
	if (history)
		write_history(history, words[1], columns);
	return 0;
}
