/* What a C program can do wrong, and what it may do from other threads, callbacks and children. As root. Argument: numbers.bpf.o. */

#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

#define SOME 200

static struct pw_buffer *open_with(pw_sample_fn sample, void *ctx, const struct pw_opts *opts)
{
	struct pw_buffer *buffer = pw_buffer__new(map("events"), 64 * 4096, sample, NULL, ctx, opts);

	CHECK(buffer);
	begin(PERF);
	return buffer;
}

static void count(void *ctx, int cpu, void *data, __u32 size)
{
	(void)cpu, (void)data, (void)size;
	++*(int *)ctx;
}

/* Polls until so many records have come. */
static void poll_for(struct pw_buffer *buffer, const int *records, int many)
{
	while (*records < many)
		CHECK(pw_buffer__poll(buffer, -1) >= 0);
}

static void refused(struct pw_buffer *buffer, int errno_, const char *text)
{
	CHECK(!buffer && errno == errno_ && strstr(pw_last_error(), text));
}

static void wrong_arguments(void)
{
	struct { size_t sz; char rest[1000]; } newer = { .sz = sizeof(newer) };
	_Alignas(16) char bytes[512] = {};
	struct pw_event event;
	struct pw_stats stats;
	int records = 0, fd;
	struct pw_buffer *buffer;
	PW_OPTS(opts);

	refused(pw_buffer__new(-1, 0, NULL, NULL, NULL, NULL), EBADF, "map_fd");
	refused(pw_buffer__new(1000000, 0, NULL, NULL, NULL, NULL), EBADF, "map_fd");
	fd = dup(1);
	CHECK(fd >= 0);
	refused(pw_buffer__new(fd, 0, NULL, NULL, NULL, NULL), EINVAL, "");
	close(fd);
	refused(pw_buffer__new(map("ring"), 0, NULL, NULL, NULL, NULL), EINVAL, "");
	refused((void *)pw_ring_buffer__new(map("events"), NULL, NULL, NULL), EINVAL, "");
	refused((void *)pw_ring_buffer__new(map("control"), NULL, NULL, NULL), EINVAL, "");
	refused(pw_buffer__new(map("events"), 64, NULL, NULL, NULL, NULL), EINVAL, "pages");
	refused(pw_buffer__new(map("events"), 0, NULL, NULL, NULL, (void *)(bytes + 1)), EINVAL, "aligned");
	refused(pw_buffer__new(map("events"), 0, NULL, NULL, NULL, (void *)bytes), EINVAL, "sz");
	newer.sz = sizeof(opts) - 4;
	refused(pw_buffer__new(map("events"), 0, NULL, NULL, NULL, (void *)&newer), EINVAL, "inside a field");
	newer.sz = sizeof(newer);
	newer.rest[sizeof(opts) + 8] = 1;
	refused(pw_buffer__new(map("events"), 0, NULL, NULL, NULL, (void *)&newer), EINVAL, "newer");
	for (unsigned int wrong = 0; wrong < 4; wrong++) {
		PW_OPTS(bad);

		*(wrong == 0 ? &bad.hold : wrong == 1 ? &bad.key : wrong == 2 ? &bad.has_numbers : &bad.hold) = wrong == 3 ? PW_HOLD_EPOCHS : 99;
		bad.epochs_fd = -1;
		refused(pw_buffer__new(map("events"), 0, NULL, NULL, NULL, &bad), wrong == 3 ? EBADF : EINVAL, "opts->");
	}
	newer.rest[sizeof(opts) + 8] = 0;
	buffer = open_with(count, &records, (void *)&newer);
	pw_buffer__free(buffer);
	opts.sz = sizeof(size_t);
	buffer = open_with(count, &records, &opts);

	CHECK(pw_buffer__poll(NULL, 0) == -EINVAL && errno == EINVAL && strstr(pw_last_error(), "NULL"));
	CHECK(pw_buffer__consume(NULL) == -EINVAL && pw_buffer__epoll_fd(NULL) == -EINVAL && pw_buffer__timeout(NULL) == -EINVAL);
	CHECK(pw_buffer__buffer_cnt(NULL) == -EINVAL && pw_buffer__buffer_fd(NULL, 0) == -EINVAL && pw_buffer__drain_unordered(NULL) == -EINVAL);
	CHECK(pw_buffer__buffer(NULL, 0, (void *)bytes, (void *)bytes) == -EINVAL && pw_buffer__consume_buffer(NULL, 0) == -EINVAL);
	CHECK(pw_buffer__buffer(buffer, 0, (void *)(bytes + 1), (void *)bytes) == -EINVAL && strstr(pw_last_error(), "base"));
	CHECK(pw_buffer__flush(NULL) == -EINVAL && !pw_buffer__handle(NULL) && pw_handle__flush(NULL) == -EINVAL);
	CHECK(pw_handle__close(NULL) == -EINVAL && pw_handle__pause(NULL, 0) == -EINVAL && pw_handle__resume(NULL) == -EINVAL);
	CHECK(pw_handle__set_deadline(NULL, 1) == -EINVAL && pw_ring_buffer__poll(NULL, 0) == -EINVAL);
	CHECK(pw_ring_buffer__consume(NULL) == -EINVAL && pw_ring_buffer__add(NULL, 1, NULL, NULL) == -EINVAL);
	CHECK(pw_buffer__poll((void *)(bytes + 1), 0) == -EINVAL && strstr(pw_last_error(), "aligned"));
	CHECK(pw_buffer__next(NULL, 0, &event, sizeof(event)) == -EINVAL);
	CHECK(pw_buffer__next(buffer, 0, NULL, sizeof(event)) == -EINVAL);
	CHECK(pw_buffer__next(buffer, 0, (void *)(bytes + 1), sizeof(event)) == -EINVAL);
	CHECK(pw_buffer__next(buffer, 0, &event, 0) == -EINVAL && pw_buffer__batch(buffer, 0, &event, 13, 1) == -EINVAL);
	CHECK(pw_buffer__batch(buffer, 0, &event, sizeof(event), 0) == -EINVAL);
	CHECK(pw_buffer__stats(buffer, NULL, sizeof(stats)) == -EINVAL && pw_buffer__stats(NULL, &stats, sizeof(stats)) == -EINVAL);
	CHECK(pw_buffer__stats(buffer, (void *)(bytes + 1), sizeof(stats)) == -EINVAL);
	CHECK(pw_buffer__ledger(buffer, NULL, 8, 1) == -EINVAL);
	/* A program of another version: the part that both know, and zeros. */
	memset(bytes, 1, sizeof(bytes));
	CHECK(!pw_buffer__stats(buffer, (void *)bytes, sizeof(bytes) - 8) && bytes[sizeof(stats)] == 0 && bytes[sizeof(bytes) - 8] == 1);
	memset(bytes, 1, sizeof(bytes));
	CHECK(!pw_buffer__stats(buffer, (void *)bytes, 8) && bytes[8] == 1);
	pw_buffer__free(buffer);
	pw_buffer__free(NULL);
	pw_ring_buffer__free(NULL);
	pw_handle__free(NULL);
	pw_buffer__free((void *)(bytes + 1));
}

struct self {
	struct pw_buffer *buffer;
	struct pw_handle *handle;
	int records;
	int free_at;
};

static void call_in(void *ctx, int cpu, void *data, __u32 size)
{
	struct self *self = ctx;
	struct pw_event event;
	struct pw_stats stats;

	(void)cpu, (void)data, (void)size;
	CHECK(pw_buffer__poll(self->buffer, 0) == -EBUSY && pw_buffer__consume(self->buffer) == -EBUSY);
	CHECK(pw_buffer__next(self->buffer, 0, &event, sizeof(event)) == -EBUSY);
	CHECK(pw_buffer__stats(self->buffer, &stats, sizeof(stats)) == -EBUSY && strstr(pw_last_error(), "pw_handle"));
	CHECK(pw_buffer__epoll_fd(self->buffer) >= 0 && !pw_buffer__flush(self->buffer));
	CHECK(pw_buffer__buffer_cnt(self->buffer) == -EBUSY && pw_buffer__drain_unordered(self->buffer) == -EBUSY);
	if (++self->records == self->free_at) {
		pw_buffer__free(self->buffer);
		pw_buffer__free(self->buffer);
	}
	CHECK(self->free_at == 0 || self->records <= self->free_at);
}

static void callbacks_that_call_in(void)
{
	struct self self = { .buffer = NULL };

	self.buffer = open_with(call_in, &self, NULL);
	emit(SOME);
	poll_for(self.buffer, &self.records, SOME);
	pw_buffer__free(self.buffer);

	self = (struct self){ .free_at = 3 };
	self.buffer = open_with(call_in, &self, NULL);
	self.handle = pw_buffer__handle(self.buffer);
	CHECK(self.handle);
	emit(SOME);
	while (self.records < 3)
		CHECK(pw_buffer__poll(self.buffer, -1) >= 0);
	CHECK(self.records == 3);
	/* The handle outlives the buffer. */
	CHECK(!pw_handle__flush(self.handle) && !pw_handle__close(self.handle));
	pw_handle__free(self.handle);
}

static int end_at_three(void *ctx, void *data, size_t size)
{
	(void)data, (void)size;
	return ++*(int *)ctx == 3 ? -ECONNABORTED : 0;
}

static void ring_callback_that_ends(void)
{
	int records = 0, said, other = map("other");
	__u32 slot = 3;
	struct pw_ring_buffer *ring = pw_ring_buffer__new(map("ring"), end_at_three, &records, NULL);

	CHECK(ring);
	begin(RING);
	emit(SOME);
	while ((said = pw_ring_buffer__poll(ring, -1)) >= 0)
		CHECK(records <= SOME);
	CHECK(said == -ECONNABORTED && records == 3);
	while (records < SOME)
		CHECK(pw_ring_buffer__poll(ring, -1) >= 0);
	CHECK(records == SOME);
	/* Two ring buffers have an order by a key only. */
	pw_ring_buffer__free(ring);
	ring = pw_ring_buffer__new(map("ring"), end_at_three, &records, NULL);
	CHECK(ring && !pw_ring_buffer__add(ring, map("other"), NULL, NULL));
	/* A ring buffer has one reader: the same map a second time, also in an array of them, would give back what the first one lends. */
	CHECK(pw_ring_buffer__add(ring, map("ring"), NULL, NULL) == -EINVAL && strstr(pw_last_error(), "twice"));
	CHECK(!bpf_map_update_elem(map("rings"), &slot, &other, BPF_ANY));
	CHECK(pw_ring_buffer__add(ring, map("rings"), NULL, NULL) == -EINVAL && strstr(pw_last_error(), "twice"));
	CHECK(!bpf_map_delete_elem(map("rings"), &slot));
	CHECK(pw_ring_buffer__add(ring, -1, NULL, NULL) == -EBADF && pw_ring_buffer__add(ring, map("control"), NULL, NULL) == -EINVAL);
	CHECK(pw_ring_buffer__poll(ring, 0) == -EINVAL && strstr(pw_last_error(), "key"));
	pw_ring_buffer__free(ring);
}

/* One thread stays in a callback until the other has tried everything. */
static pthread_barrier_t entered, tried;

static void stay(void *ctx, int cpu, void *data, __u32 size)
{
	(void)cpu, (void)data, (void)size;
	if (++*(int *)ctx == 1) {
		pthread_barrier_wait(&entered);
		pthread_barrier_wait(&tried);
	}
}

static void *poll_until_closed(void *buffer)
{
	int got;

	do
		got = pw_buffer__poll(buffer, -1);
	while (got >= 0);
	CHECK(got == -ECANCELED);
	return NULL;
}

/* The buffer is freed in this call, and gone behind it. */
static void *poll_and_leave(void *buffer)
{
	CHECK(pw_buffer__poll(buffer, -1) >= 0);
	return NULL;
}

static void two_threads(int freed)
{
	int records = 0;
	struct pw_buffer *buffer = open_with(stay, &records, NULL);
	struct pw_handle *handle = pw_buffer__handle(buffer);
	struct pw_stats stats;
	pthread_t thread;

	CHECK(handle && !pthread_barrier_init(&entered, NULL, 2) && !pthread_barrier_init(&tried, NULL, 2));
	emit(SOME);
	CHECK(!pthread_create(&thread, NULL, freed ? poll_and_leave : poll_until_closed, buffer));
	pthread_barrier_wait(&entered);
	CHECK(pw_buffer__poll(buffer, 0) == -EBUSY && pw_buffer__stats(buffer, &stats, sizeof(stats)) == -EBUSY);
	CHECK(!pw_buffer__flush(buffer) && !pw_handle__flush(handle));
	if (freed)
		pw_buffer__free(buffer);
	else
		CHECK(!pw_handle__close(handle));
	pthread_barrier_wait(&tried);
	CHECK(!pthread_join(thread, NULL));
	if (!freed) {
		CHECK(pw_buffer__poll(buffer, -1) == -ECANCELED && strstr(pw_last_error(), "closed"));
		CHECK(!pw_buffer__stats(buffer, &stats, sizeof(stats)));
		pw_buffer__free(buffer);
	}
	pw_handle__free(handle);
}

static void forked(void)
{
	int records = 0, status;
	struct pw_buffer *buffer = open_with(count, &records, NULL);
	struct pw_handle *handle = pw_buffer__handle(buffer);
	struct pw_event event;
	pid_t child;

	emit(SOME);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK(pw_buffer__poll(buffer, 0) == -ECHILD && pw_buffer__consume(buffer) == -ECHILD);
		CHECK(pw_buffer__next(buffer, 0, &event, sizeof(event)) == -ECHILD && pw_buffer__flush(buffer) == -ECHILD);
		CHECK(pw_handle__flush(handle) == -ECHILD && pw_handle__set_deadline(handle, 0) == -ECHILD);
		CHECK(pw_buffer__buffer_cnt(buffer) == -ECHILD && pw_buffer__buffer_fd(buffer, 0) == -ECHILD);
		CHECK(pw_buffer__consume_buffer(buffer, 0) == -ECHILD && pw_buffer__drain_unordered(buffer) == -ECHILD);
		CHECK(!pw_handle__close(handle) && records == 0);
		pw_handle__free(handle);
		pw_buffer__free(buffer);
		/* A signal, so that no tool looks for leaks: the parent's threads are not here to be freed. */
		kill(getpid(), SIGKILL);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	poll_for(buffer, &records, SOME);
	pw_handle__free(handle);
	pw_buffer__free(buffer);
}

/* A child in which nobody is in the call that the parent's thread is in. */
static void forked_while_another_thread_is_inside(void)
{
	int records = 0, status;
	struct pw_buffer *buffer = open_with(stay, &records, NULL);
	struct pw_handle *handle = pw_buffer__handle(buffer);
	struct pw_event event;
	struct pw_stats stats;
	struct pw_account account;
	pthread_t thread;
	pid_t child;

	CHECK(handle && !pthread_barrier_init(&entered, NULL, 2) && !pthread_barrier_init(&tried, NULL, 2));
	emit(SOME);
	CHECK(!pthread_create(&thread, NULL, poll_until_closed, buffer));
	pthread_barrier_wait(&entered);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK(pw_buffer__poll(buffer, 0) == -ECHILD && pw_buffer__consume(buffer) == -ECHILD);
		CHECK(pw_buffer__next(buffer, 0, &event, sizeof(event)) == -ECHILD && pw_buffer__timeout(buffer) == -ECHILD);
		CHECK(pw_buffer__stats(buffer, &stats, sizeof(stats)) == -ECHILD);
		CHECK(pw_buffer__ledger(buffer, &account, sizeof(account), 1) == -ECHILD);
		CHECK(pw_buffer__flush(buffer) == -ECHILD && pw_handle__flush(handle) == -ECHILD);
		CHECK(pw_ring_buffer__add((void *)buffer, map("ring"), NULL, NULL) == -ECHILD);
		pw_buffer__free(buffer);
		kill(getpid(), SIGKILL);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	pthread_barrier_wait(&tried);
	CHECK(!pw_handle__close(handle) && !pthread_join(thread, NULL));
	pw_handle__free(handle);
	pw_buffer__free(buffer);
}

/* Ring buffers are opened by the first call that reads: not in a child, which would read what is the parent's. */
static void forked_before_the_first_read(void)
{
	int records = 0, status;
	struct pw_ring_buffer *rings = pw_ring_buffer__new(map("ring"), end_at_three, &records, NULL);
	pid_t child;

	CHECK(rings);
	begin(RING);
	emit(2);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK(pw_ring_buffer__poll(rings, 0) == -ECHILD && pw_ring_buffer__consume(rings) == -ECHILD && records == 0);
		kill(getpid(), SIGKILL);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	while (records < 2)
		CHECK(pw_ring_buffer__poll(rings, -1) >= 0);
	CHECK(records == 2);
	pw_ring_buffer__free(rings);
}

static void on_alarm(int signal)
{
	(void)signal;
}

static void signals_and_deadlines(void)
{
	struct itimerval often = { { 0, 2000 }, { 0, 2000 } }, never = {};
	struct sigaction action = { .sa_handler = on_alarm };
	int records = 0, got;
	struct pw_buffer *buffer = open_with(count, &records, NULL);
	struct pw_handle *handle = pw_buffer__handle(buffer);

	CHECK(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &often, NULL));
	do
		got = pw_buffer__poll(buffer, -1);
	while (got >= 0);
	CHECK(got == -EINTR && !setitimer(ITIMER_REAL, &never, NULL));
	emit(SOME);
	CHECK(!pw_handle__set_deadline(handle, 0));
	do
		got = pw_buffer__poll(buffer, -1);
	while (got >= 0);
	CHECK(got == -ETIME && records == SOME);
	CHECK(!pw_handle__set_deadline(handle, -1));
	CHECK(!pw_handle__pause(handle, PW_PAUSE_OUTPUT) && !pw_handle__resume(handle));
	CHECK(!pw_handle__pause(handle, PW_PAUSE_SLOTS) && !pw_handle__resume(handle) && pw_handle__pause(handle, 7) == -EINVAL);
	emit(SOME);
	poll_for(buffer, &records, 2 * SOME);
	pw_handle__free(handle);
	pw_buffer__free(buffer);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	load(argv[1]);
	wrong_arguments();
	callbacks_that_call_in();
	ring_callback_that_ends();
	two_threads(0);
	two_threads(1);
	forked();
	forked_while_another_thread_is_inside();
	forked_before_the_first_read();
	signals_and_deadlines();
	puts("border: all is well");
	return 0;
}
