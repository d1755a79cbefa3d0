// What went wrong once for tools that were not changed, each by itself.    traps OBJECT NAME
#include "common.h"
#include <dlfcn.h>
#include <poll.h>
#include <sys/ioctl.h>

static struct perf_buffer *buffer;
static long events, last = -1;
static unsigned long long lost;
static void (*in_callback)(void);

static void on_sample(void *context, int cpu, void *data, __u32 size)
{
	struct step *step = data;

	(void)context, (void)cpu, (void)size;
	events++;
	last = (long)step->number;
	if (in_callback)
		in_callback();
}

static void on_lost(void *context, int cpu, __u64 count)
{
	(void)context, (void)cpu;
	lost += count;
}

static void make(size_t pages)
{
	begin(PERF, 0, 0);
	buffer = perf_buffer__new(map("events"), pages, on_sample, on_lost, NULL, NULL);
	CHECK(buffer);
}

/* An epoll instance of the tool's own. */
static int watched(void)
{
	int own = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };

	for (size_t i = 0; i < perf_buffer__buffer_cnt(buffer); i++) {
		event.data.u64 = i;
		CHECK(!epoll_ctl(own, EPOLL_CTL_ADD, perf_buffer__buffer_fd(buffer, i), &event));
	}
	return own;
}

#define LONG 20000

static void *step_once(void *number)
{
	step((long)number);
	return NULL;
}

/* The kernel gives the readiness of an event to the first who asks, and that must not be the reader that waits for a proof. */
static void readiness(void)
{
	struct epoll_event ready;
	pthread_t thread;
	long made = 0;
	int own;

	make(64);
	own = watched();
	for (int i = 0; i < 40; i++) {
		step(made++);
		while (events < made)
			CHECK(epoll_wait(own, &ready, 1, LONG) == 1 && !perf_buffer__consume_buffer(buffer, ready.data.u64));
		/* One that is written while a call waits for its proof. */
		step(made++);
		CHECK(!pthread_create(&thread, NULL, step_once, (void *)made++));
		CHECK(!perf_buffer__consume(buffer) && !pthread_join(thread, NULL));
		while (events < made)
			CHECK(epoll_wait(own, &ready, 1, LONG) == 1 && !perf_buffer__consume_buffer(buffer, ready.data.u64));
	}
	CHECK(events == made && !lost);
}

static volatile sig_atomic_t handled;
static pthread_t waiting;
static int told_to_signal;

static void on_signal(int signal)
{
	(void)signal;
	handled = 1;
}

static void *signals(void *signal)
{
	while (!__atomic_load_n(&told_to_signal, __ATOMIC_ACQUIRE))
		sched_yield();
	CHECK(!pthread_kill(waiting, (int)(long)signal));
	return NULL;
}

/* A signal during a proof ends the next wait: tools look at their flags then. */
static void signal_in_proof(void)
{
	struct pollfd fd = { .events = POLLIN };
	struct epoll_event ready;
	pthread_t thread;
	int own, said, missed = 0;

	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, SIG_IGN);
	waiting = pthread_self();
	make(64);
	own = watched();
	fd.fd = own;
	for (int i = 0; i < 12; i++) {
		sigset_t set, before;

		handled = told_to_signal = 0;
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		/* The other thread takes none. */
		CHECK(!pthread_sigmask(SIG_BLOCK, &set, &before));
		CHECK(!pthread_create(&thread, NULL, signals, (void *)(long)SIGUSR1));
		CHECK(!pthread_sigmask(SIG_SETMASK, &before, NULL));
		step(i);
		__atomic_store_n(&told_to_signal, 1, __ATOMIC_RELEASE);
		CHECK(!perf_buffer__consume(buffer));
		CHECK(events == i + 1);
		errno = 0;
		/* The readiness of what was read is left for an epoll instance, once. */
		do
			said = i % 3 == 0 ? epoll_wait(own, &ready, 1, LONG) : i % 3 == 1 ? perf_buffer__poll(buffer, LONG) : poll(&fd, 1, LONG);
		while (said > 0 && !handled);
		if (said > 0)
			said = i % 3 == 0 ? epoll_wait(own, &ready, 1, LONG) : i % 3 == 1 ? perf_buffer__poll(buffer, LONG) : poll(&fd, 1, LONG);
		/* Before a call begins, or between two, a signal is handled there, and ends none. On a busy machine that happens. */
		missed += said >= 0 || errno != EINTR;
		CHECK(handled && missed <= 3);
		CHECK(!pthread_join(thread, NULL));
	}
	/* One that the program ignores ends nothing. */
	told_to_signal = 0;
	CHECK(!pthread_create(&thread, NULL, signals, (void *)(long)SIGUSR2));
	step(0);
	__atomic_store_n(&told_to_signal, 1, __ATOMIC_RELEASE);
	CHECK(!perf_buffer__consume(buffer) && !pthread_join(thread, NULL));
	CHECK(perf_buffer__poll(buffer, 0) >= 0 && epoll_wait(own, &ready, 1, 0) >= 0);
}

static void free_it(void)
{
	if (events == 3)
		perf_buffer__free(buffer);
}

static void free_in_callback(void)
{
	make(64);
	in_callback = free_it;
	for (int i = 0; i < 10; i++)
		step(i);
	CHECK(perf_buffer__poll(buffer, LONG) >= 0 && events == 3);
	buffer = NULL;
}

static void again(void)
{
	long before = events;

	CHECK(perf_buffer__poll(buffer, 0) == 0 && perf_buffer__consume(buffer) == 0 && events == before);
	CHECK(perf_buffer__buffer_cnt(buffer) == (size_t)cpus() && perf_buffer__buffer_fd(buffer, 0) >= 0);
}

static void call_in_callback(void)
{
	make(64);
	in_callback = again;
	for (int i = 0; i < 10; i++)
		step(i);
	CHECK(perf_buffer__consume(buffer) == 0 && events == 10);
}

/* A tool may have freed what its callbacks use. */
static void no_callback_in_free(void)
{
	make(64);
	step(1);
	CHECK(perf_buffer__consume(buffer) == 0 && events == 1);
	step(2);
	perf_buffer__free(buffer);
	CHECK(events == 1);
	buffer = NULL;
}

static void forked(void)
{
	int status;
	pid_t child;

	make(64);
	step(1);
	child = fork();
	if (!child) {
		CHECK(perf_buffer__poll(buffer, 0) == -ECHILD && errno == ECHILD && perf_buffer__consume(buffer) == -ECHILD);
		perf_buffer__free(buffer);
		_exit(events ? 1 : 0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* The parent's slots and rings are as they were. */
	step(2);
	CHECK(perf_buffer__consume(buffer) == 0 && events == 2);
}

static void *polls(void *unused)
{
	for (;;)
		CHECK(perf_buffer__poll(buffer, -1) >= 0 && perf_buffer__consume(buffer) == 0);
	return unused;
}

/* A thread that is cancelled in a call ends there, and others go on. */
static void cancelled(void)
{
	pthread_t thread;
	void *said;

	make(64);
	for (int i = 0; i < 20; i++) {
		long before = __atomic_load_n(&events, __ATOMIC_RELAXED);

		CHECK(!pthread_create(&thread, NULL, polls, NULL));
		step(i);
		/* In a wait for an event, or for a proof. */
		while (i % 2 && __atomic_load_n(&events, __ATOMIC_RELAXED) == before)
			sched_yield();
		CHECK(!pthread_cancel(thread) && !pthread_join(thread, &said) && said == PTHREAD_CANCELED);
	}
	step(77);
	CHECK(perf_buffer__consume(buffer) == 0 && last == 77 && events == 21);
}

static int on_ring(void *context, void *data, size_t size)
{
	(void)context, (void)size;
	events++;
	last = (long)((struct step *)data)->number;
	return 0;
}

/* A daemon reads its ring buffers on, as with libbpf. */
static void daemon_reads_rings(void)
{
	struct ring_buffer *rings;
	int status;
	pid_t child;

	begin(RING, 0, 0);
	rings = ring_buffer__new(map("ring1"), on_ring, NULL, NULL);
	CHECK(rings && !ring_buffer__add(rings, map("ring2"), on_ring, NULL));
	for (int i = 0; i < 10; i++)
		step_on(i % cpus(), i);
	CHECK(ring_buffer__poll(rings, LONG) == 10 && events == 10);
	for (int i = 10; i < 20; i++)
		step_on(i % cpus(), i);
	child = fork();
	if (!child) {
		CHECK(ring_buffer__poll(rings, LONG) == 10 && events == 20 && last == 19 && ring_buffer__consume(rings) == 0);
		ring_buffer__free(rings);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ring_buffer__free(rings);
}

static void burst(long count)
{
	move(0);
	for (long i = 0; i < count; i++)
		step(i);
	anywhere();
}

/* No record tells of the last loss: the kernel writes one with the next record. */
static void last_loss(void)
{
	make(1);
	/* Rings have grown the second time and the third; then they grow no more. */
	for (long i = 1, all = 0; i <= 3; i++) {
		burst(100000 * i * i);
		all += 100000 * i * i;
		CHECK(perf_buffer__poll(buffer, LONG) >= 0);
		while (perf_buffer__poll(buffer, 0) > 0)
			;
		CHECK(events < all && events + (long)lost == all);
	}
	/* And a loss that the tool does not ask for any more. */
	burst(1000000);
	perf_buffer__free(buffer);
	buffer = NULL;
}

/* A ring that was too small has room for the same the next time. */
static void growth(void)
{
	make(64);
	burst(80000);
	CHECK(perf_buffer__consume(buffer) == 0 && events < 80000 && events + (long)lost == 80000);
	events = lost = 0;
	burst(80000);
	CHECK(perf_buffer__consume(buffer) == 0 && events == 80000 && last == 79999 && !lost);
	/* What is written now wakes the tool as before. */
	for (int i = 0; i < 5; i++) {
		while (perf_buffer__poll(buffer, 0) > 0)
			;
		step_on(i % cpus(), i);
		CHECK(perf_buffer__poll(buffer, LONG) == 1 && last == i);
	}
}

struct page { struct perf_event_mmap_page header; };

/* The memory of a ring, for a program that reads it by itself, is what it was with libbpf. */
static void memory(void)
{
	struct { struct perf_event_header header; __u32 size; char data[]; } *record;
	struct epoll_event ready;
	struct perf_event_mmap_page *page;
	struct step step_;
	void *base;
	size_t size;
	int own;

	make(8);
	own = watched();
	step_on(0, 1);
	CHECK(perf_buffer__buffer(buffer, 1000, &base, &size) == -EINVAL);
	CHECK(perf_buffer__buffer(buffer, 0, &base, &size) == 0 && size == 8 * 4096);
	step_on(0, 2);
	CHECK(epoll_wait(own, &ready, 1, LONG) == 1);
	page = base;
	CHECK(page->data_head != page->data_tail);
	record = (void *)((char *)base + 4096 + page->data_tail % size);
	CHECK(record->header.type == PERF_RECORD_SAMPLE && record->header.size == 12 + record->size);
	memcpy(&step_, record->data, sizeof(step_));
	CHECK(step_.number == 2 && step_.cpu == 0);
	page->data_tail += record->header.size;
	/* The one from before comes by the callback, and this one does not come twice. */
	CHECK(perf_buffer__consume(buffer) == 0 && events == 1 && last == 1);
	/* Who asks for the memory and reads by libbpf's functions nevertheless has its events. */
	step_on(0, 3);
	CHECK(perf_buffer__poll(buffer, LONG) > 0);
	CHECK(perf_buffer__consume_buffer(buffer, 0) == 0 && events == 2 && last == 3);
	CHECK(page->data_head == page->data_tail);
	/* Other rings are as before. */
	step_on(cpus() - 1, 4);
	CHECK(perf_buffer__consume(buffer) == 0 && events == 3 && last == 4);
	CHECK(perf_buffer__buffer(buffer, 0, &base, &size) == 0 && base == (void *)page);
}

/* What libbpf itself has made goes to libbpf. */
static void not_ours(void)
{
	void *library = dlopen("libbpf.so.1", RTLD_NOW), *base;
	struct perf_buffer *(*new)(int, size_t, perf_buffer_sample_fn, perf_buffer_lost_fn, void *, const void *);
	size_t size;

	CHECK(library);
	/* A name with its version is asked of libbpf itself. */
	*(void **)&new = dlvsym(library, "perf_buffer__new", "LIBBPF_0.6.0");
	CHECK(new && (void *)new != dlsym(RTLD_DEFAULT, "perf_buffer__new"));
	begin(PERF, 0, 0);
	buffer = new(map("events"), 8, on_sample, on_lost, NULL, NULL);
	CHECK(buffer && perf_buffer__epoll_fd(buffer) >= 0 && perf_buffer__buffer_cnt(buffer) == (size_t)cpus());
	step_on(0, 1);
	CHECK(perf_buffer__poll(buffer, LONG) == 1 && events == 1 && perf_buffer__consume(buffer) == 0);
	CHECK(perf_buffer__buffer_fd(buffer, 0) >= 0 && perf_buffer__consume_buffer(buffer, 0) == 0);
	CHECK(perf_buffer__buffer(buffer, 0, &base, &size) == 0 && size == 8 * 4096);
}

/* Python and others ask a library for its functions. */
static void asked_by_handle(void)
{
	void *library = dlopen("libbpf.so.1", RTLD_NOW), *c = dlopen("libc.so.6", RTLD_NOW);

	CHECK(library && c);
	CHECK(dlsym(library, "perf_buffer__new") == dlsym(RTLD_DEFAULT, "perf_buffer__new"));
	CHECK(dlsym(library, "ring_buffer__poll") == dlsym(RTLD_DEFAULT, "ring_buffer__poll"));
	CHECK(dlsym(library, "perf_buffer__new") != dlvsym(library, "perf_buffer__new", "LIBBPF_0.6.0"));
	/* Not where the library does not have it, and nothing else. */
	CHECK(!dlsym(c, "perf_buffer__new") && dlerror());
	CHECK(dlsym(c, "lseek") && dlsym(library, "bpf_object__open") && !dlsym(library, "perf_buffer__no") && dlerror());
	/* Who has called is still known. */
	CHECK(dlsym(RTLD_NEXT, "lseek") && dlsym(RTLD_NEXT, "on_sample") == NULL);
}

static int stop;

static void *consumes(void *index)
{
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
		CHECK(!perf_buffer__consume_buffer(buffer, (size_t)index));
	return NULL;
}

/* libbpf lets threads read different buffers. */
static void threads(void)
{
	pthread_t thread[2];

	make(64);
	for (long i = 0; i < 2; i++)
		CHECK(!pthread_create(&thread[i], NULL, consumes, (void *)(i % cpus())));
	for (int i = 0; i < 2000; i++)
		step_on(i % cpus(), i);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(thread[i], NULL));
	CHECK(perf_buffer__consume(buffer) == 0 && events + (long)lost == 2000);
}

/* What a tool sees that waits by an epoll instance of its own until nothing comes any more is everything, eager or lazy. */
static void silence(void)
{
	struct epoll_event ready[8];
	int own, got;

	make(64);
	own = watched();
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 50; i++)
			step_on(i % cpus(), i);
		while ((got = epoll_wait(own, ready, 8, round % 2 ? 0 : 50)) != 0) {
			CHECK(got > 0);
			for (int i = 0; i < got; i++)
				CHECK(ready[i].data.u64 < (size_t)cpus() && perf_buffer__consume_buffer(buffer, ready[i].data.u64) == 0);
		}
		CHECK(events == 50 * (round + 1) && !lost);
	}
	for (int round = 0; round < 5; round++) {
		step_on(round % cpus(), round);
		while ((got = perf_buffer__poll(buffer, round % 2 ? 0 : 50)) > 0)
			;
		CHECK(got == 0 && events == 1000 + round + 1);
	}
}

/* A panic in the library, which is built for that: an error, and no end of the process. */
static void panics(void)
{
	make(8);
	step(1);
	CHECK(!setenv("PERFWEAVE_PANIC", "1", 1));
	CHECK(perf_buffer__consume(buffer) == -ENOTRECOVERABLE && errno == ENOTRECOVERABLE);
	CHECK(perf_buffer__poll(buffer, 0) == -ENOTRECOVERABLE);
	perf_buffer__free(buffer);
	/* A new one is libbpf's. */
	buffer = perf_buffer__new(map("events"), 8, on_sample, on_lost, NULL, NULL);
	CHECK(buffer);
	step(2);
	CHECK(perf_buffer__poll(buffer, LONG) == 1 && last == 2);
}

int main(int words, char **word)
{
	static const struct { const char *name; void (*run)(void); } all[] = {
		{ "readiness", readiness }, { "signal", signal_in_proof }, { "free_in_callback", free_in_callback }, { "call_in_callback", call_in_callback },
		{ "no_callback_in_free", no_callback_in_free }, { "fork", forked }, { "daemon", daemon_reads_rings }, { "last_loss", last_loss }, { "growth", growth }, { "memory", memory },
		{ "not_ours", not_ours }, { "dlsym", asked_by_handle }, { "threads", threads }, { "cancel", cancelled }, { "silence", silence }, { "panics", panics },
	};

	CHECK(words == 3);
	load(word[1]);
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		if (strcmp(word[2], all[i].name))
			continue;
		all[i].run();
		perf_buffer__free(buffer);
		return 0;
	}
	return 3;
}
