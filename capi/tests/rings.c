/* The rings of a buffer one by one: their number, descriptors and memory, and reading them without order. As root. Argument: numbers.bpf.o. */

#include "common.h"
#include <linux/perf_event.h>
#include <poll.h>

#define MANY 300

/* What a callback has seen, by CPU. */
struct seen {
	struct pw_buffer *buffer;
	int records, lost, order[2], next_order, by_cpu[1024], free_at;
	__u64 last[1024];
};

static void on_sample(void *ctx, int cpu, void *data, __u32 size)
{
	struct seen *seen = ctx;
	struct number number;

	CHECK(size >= sizeof(number));
	memcpy(&number, data, sizeof(number));
	CHECK(number.cpu == (__u32)cpu && (!seen->by_cpu[cpu] || number.number > seen->last[cpu]));
	if (!seen->by_cpu[cpu] && seen->next_order < 2)
		seen->order[seen->next_order++] = cpu;
	seen->last[cpu] = number.number;
	seen->by_cpu[cpu]++;
	if (++seen->records == seen->free_at)
		pw_buffer__free(seen->buffer);
	CHECK(!seen->free_at || seen->records <= seen->free_at);
}

static void on_lost(void *ctx, int cpu, __u64 count)
{
	CHECK(cpu >= 0);
	((struct seen *)ctx)->lost += (int)count;
}

static void emit_on(int cpu, int count)
{
	cpu_set_t before;

	CHECK(!sched_getaffinity(0, sizeof(before), &before));
	move(cpu);
	for (int i = 0; i < count; i++)
		syscall(SYS_getppid);
	CHECK(!sched_setaffinity(0, sizeof(before), &before));
}

static struct pw_buffer *open_with(struct seen *seen, size_t bytes, __u32 hold)
{
	PW_OPTS(opts, .hold = hold, .wakeup_events = 1);
	struct pw_buffer *buffer = pw_buffer__new(map("events"), bytes, on_sample, on_lost, seen, &opts);

	CHECK(buffer);
	seen->buffer = buffer;
	begin(PERF);
	return buffer;
}

/* Each index has a descriptor and a mapping of its own. */
static void by_index(__u32 hold)
{
	struct seen seen = {};
	struct pw_buffer *buffer = open_with(&seen, 16 * 4096, hold);
	void *base, *before = NULL;
	size_t size;
	int fd = -1;

	CHECK(pw_buffer__buffer_cnt(buffer) == cpus());
	for (int i = 0; i < cpus(); i++) {
		struct perf_event_mmap_page *page;
		struct pollfd ready = { .events = POLLIN };

		CHECK(!pw_buffer__buffer(buffer, (size_t)i, &base, &size) && base != before && size == 16 * 4096);
		page = base;
		CHECK(page->data_size == size && page->data_offset == (size_t)sysconf(_SC_PAGESIZE));
		CHECK(page->data_head == 0 && page->data_tail == 0);
		emit_on(i, 1);
		CHECK(page->data_head > 0);
		ready.fd = pw_buffer__buffer_fd(buffer, (size_t)i);
		CHECK(ready.fd >= 0 && ready.fd != fd);
		/* In the other case the epoll instance may have had it. */
		CHECK(poll(&ready, 1, 0) == 1 || hold != PW_HOLD_UNORDERED);
		fd = ready.fd, before = base;
	}
	CHECK(pw_buffer__buffer(buffer, (size_t)cpus(), &base, &size) == -EINVAL && strstr(pw_last_error(), "index"));
	CHECK(pw_buffer__buffer_fd(buffer, (size_t)-1) == -EINVAL && pw_buffer__consume_buffer(buffer, 1 << 20) == -EINVAL);
	CHECK(pw_buffer__buffer(buffer, 0, NULL, &size) == -EINVAL && pw_buffer__buffer(buffer, 0, &base, NULL) == -EINVAL);
	pw_buffer__free(buffer);
}

/* A buffer is read in order or without, and never both. */
static void one_way(void)
{
	struct seen seen = {};
	struct pw_buffer *buffer = open_with(&seen, 0, PW_HOLD_FENCE);
	struct pw_ring_buffer *ring;
	struct pw_stats stats;
	struct pw_event event;
	PW_OPTS(opts, .hold = PW_HOLD_UNORDERED, .key = PW_KEY_PAYLOAD);

	CHECK(pw_buffer__consume_buffer(buffer, 0) == -EINVAL && strstr(pw_last_error(), "PW_HOLD_UNORDERED"));
	CHECK(pw_buffer__drain_unordered(buffer) == -EINVAL);
	pw_buffer__free(buffer);
	buffer = open_with(&seen, 0, PW_HOLD_UNORDERED);
	CHECK(pw_buffer__poll(buffer, 0) == -EINVAL && strstr(pw_last_error(), "pw_buffer__drain_unordered"));
	CHECK(pw_buffer__consume(buffer) == -EINVAL && pw_buffer__next(buffer, 0, &event, sizeof(event)) == -EINVAL);
	CHECK(pw_buffer__flush(buffer) == -EINVAL && !pw_buffer__handle(buffer) && pw_buffer__epoll_fd(buffer) == -EINVAL);
	CHECK(pw_buffer__stats(buffer, &stats, sizeof(stats)) == -EINVAL && pw_buffer__timeout(buffer) == -EINVAL);
	pw_buffer__free(buffer);
	CHECK(!pw_buffer__new(map("events"), 0, NULL, NULL, NULL, &opts) && errno == EINVAL);
	opts.key = 0;
	CHECK(!pw_ring_buffer__new(map("ring"), NULL, NULL, &opts) && errno == EINVAL);
	ring = pw_ring_buffer__new(map("ring"), NULL, NULL, NULL);
	CHECK(ring && pw_buffer__buffer_cnt(pw_ring_buffer__buffer(ring)) == -EINVAL);
	CHECK(pw_buffer__drain_unordered(pw_ring_buffer__buffer(ring)) == -EINVAL);
	pw_ring_buffer__free(ring);
}

static void one_ring(void)
{
	struct seen seen = {};
	struct pw_buffer *buffer = open_with(&seen, 64 * 4096, PW_HOLD_UNORDERED);
	int last = cpus() - 1;

	for (int cpu = 0; cpu < cpus(); cpu++)
		emit_on(cpu, MANY);
	CHECK(pw_buffer__consume_buffer(buffer, (size_t)last) == MANY && seen.by_cpu[last] == MANY && seen.records == MANY);
	CHECK(pw_buffer__consume_buffer(buffer, (size_t)last) == 0);
	CHECK(pw_buffer__drain_unordered(buffer) == MANY * last && pw_buffer__drain_unordered(buffer) == 0);
	pw_buffer__free(buffer);

	/* A callback that frees the buffer. */
	seen = (struct seen){ .free_at = 3 };
	buffer = open_with(&seen, 64 * 4096, PW_HOLD_UNORDERED);
	emit_on(last, MANY);
	CHECK(pw_buffer__drain_unordered(buffer) == 3);
}

static void fullest_first(void)
{
	if (cpus() < 2) {
		puts("rings: SKIPPED, the fullest of one ring");
		return;
	}
	for (int fullest = 0; fullest < 2; fullest++) {
		struct seen seen = {};
		struct pw_buffer *buffer = open_with(&seen, 64 * 4096, PW_HOLD_UNORDERED);

		emit_on(1 - fullest, 5);
		emit_on(fullest, MANY);
		CHECK(pw_buffer__drain_unordered(buffer) == MANY + 5);
		CHECK(seen.order[0] == fullest && seen.order[1] == 1 - fullest);
		pw_buffer__free(buffer);
	}
}

static void losses(void)
{
	struct seen seen = {};
	struct pw_buffer *buffer = open_with(&seen, 4096, PW_HOLD_UNORDERED);
	int got;

	emit_on(0, MANY);
	got = pw_buffer__drain_unordered(buffer);
	CHECK(got == seen.records && got > 0 && got < MANY && !seen.lost);
	/* The next record tells of them. */
	emit_on(0, 1);
	CHECK(pw_buffer__consume_buffer(buffer, 0) == 1 && seen.records + seen.lost == MANY + 1);
	pw_buffer__free(buffer);
}

struct place {
	struct number number;
	struct perf_event_mmap_page *page;
	__u64 end;
};

static int by_number(const void *left, const void *right)
{
	const struct place *a = left, *b = right;

	return (a->number.number > b->number.number) - (a->number.number < b->number.number);
}

/* What waits in a ring. No tail moves. */
static int gather(void *base, size_t size, struct place *places, int most)
{
	struct perf_event_mmap_page *page = base;
	__u64 head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE), tail = page->data_tail;
	const char *data = (char *)base + page->data_offset;
	int count = 0;

	while (tail < head) {
		const struct perf_event_header *header = (void *)(data + (tail & (size - 1)));

		/* A header, a length, a number, and 4 bytes to align the next: as from libbpf, without a time. */
		CHECK(header->type == PERF_RECORD_SAMPLE && count < most);
		CHECK(header->size == sizeof(*header) + 4 + sizeof(struct number) + 4);
		for (size_t i = 0; i < sizeof(struct number); i++)
			((char *)&places[count].number)[i] = data[(tail + sizeof(*header) + 4 + i) & (size - 1)];
		tail += header->size;
		places[count].page = page;
		places[count++].end = tail;
	}
	return count;
}

/* A reader of the program's own, as the patch to libbpf describes it: in order of the numbers, and each tail moves with them. */
static void own_reader(void)
{
	struct seen seen = {};
	struct pw_buffer *buffer = open_with(&seen, 4 * 4096, PW_HOLD_UNORDERED);
	static struct place places[MANY];
	__u64 next = 0;

	/* More than the rings hold. */
	for (int round = 0; round < 20; round++) {
		int count = 0;

		emit(MANY);
		for (int i = 0; i < pw_buffer__buffer_cnt(buffer); i++) {
			void *base;
			size_t size;

			CHECK(!pw_buffer__buffer(buffer, (size_t)i, &base, &size));
			count += gather(base, size, places + count, MANY - count);
		}
		CHECK(count == MANY && pw_buffer__readable(buffer) == 1);
		qsort(places, (size_t)count, sizeof(places[0]), by_number);
		for (int i = 0; i < count; i++) {
			CHECK(places[i].number.number == next++);
			__atomic_store_n(&places[i].page->data_tail, places[i].end, __ATOMIC_RELEASE);
		}
		CHECK(pw_buffer__readable(buffer) == 0);
	}
	/* The library would read again what was given back. */
	CHECK(pw_buffer__drain_unordered(buffer) == -EINVAL && strstr(pw_last_error(), "data_tail"));
	pw_buffer__free(buffer);
}

static __u32 take_u32(const char **at)
{
	__u32 value;

	memcpy(&value, *at, sizeof(value));
	*at += sizeof(value);
	return value;
}

struct raw {
	__u64 time, next;
	__u64 sample_type;
	int records;
};

/* A record as the kernel wrote it, of PERF_SAMPLE_TID, TIME, CPU and RAW, as far as they are asked for. */
static int on_event(void *ctx, int cpu, struct perf_event_header *event)
{
	struct raw *raw = ctx;
	const char *at = (const char *)(event + 1), *end = (const char *)event + event->size;
	struct number number;
	__u64 time;
	__u32 size;

	CHECK(event->type == PERF_RECORD_SAMPLE);
	if (raw->sample_type & PERF_SAMPLE_TID)
		CHECK(take_u32(&at) == (__u32)getpid() && take_u32(&at) == (__u32)getpid());
	if (raw->sample_type & PERF_SAMPLE_TIME) {
		memcpy(&time, at, sizeof(time));
		CHECK(time >= raw->time);
		raw->time = time, at += sizeof(time);
	}
	if (raw->sample_type & PERF_SAMPLE_CPU)
		CHECK(take_u32(&at) == (__u32)cpu && take_u32(&at) == 0);
	/* The length that the kernel rounds up ends the record. */
	size = take_u32(&at);
	CHECK(at + size == end && size >= sizeof(number));
	memcpy(&number, at, sizeof(number));
	CHECK(number.cpu == (__u32)cpu && number.number == raw->next++);
	raw->records++;
	return raw->records == 7 ? LIBBPF_PERF_EVENT_ERROR : raw->records == 20 ? LIBBPF_PERF_EVENT_DONE : LIBBPF_PERF_EVENT_CONT;
}

static void raw_records(void)
{
	struct raw raw = { .sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU };
	PW_OPTS(opts, .event_cb = on_event, .sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_CPU);
	struct pw_buffer *buffer = pw_buffer__new(map("events"), 4 * 4096, NULL, NULL, &raw, &opts);
	int errors = 0, done = 0;

	CHECK(buffer);
	begin(PERF);
	/* Records wrap, and are copied out of their rings. */
	for (int round = 0; raw.records < MANY * 2; round++) {
		int got;

		if (round < 12)
			emit(MANY / 6);
		else
			CHECK(!pw_buffer__flush(buffer));
		got = pw_buffer__poll(buffer, round < 12 ? 0 : -1);
		CHECK(got >= 0 || (got == LIBBPF_PERF_EVENT_ERROR && raw.records == 7));
		errors += got < 0;
		done |= raw.records == 20;
	}
	CHECK(errors == 1 && done && raw.records == MANY * 2);
	pw_buffer__free(buffer);

	/* Without order, and with nothing that libbpf's have not. */
	raw = (struct raw){};
	opts.sample_type = 0, opts.hold = PW_HOLD_UNORDERED;
	buffer = pw_buffer__new(map("events"), 64 * 4096, NULL, NULL, &raw, &opts);
	CHECK(buffer);
	begin(PERF);
	emit_on(cpus() - 1, MANY);
	CHECK(pw_buffer__drain_unordered(buffer) == LIBBPF_PERF_EVENT_ERROR && pw_buffer__drain_unordered(buffer) == 13);
	CHECK(pw_buffer__drain_unordered(buffer) == MANY - 20 && raw.records == MANY);
	pw_buffer__free(buffer);
}

/* CPUs and slots by choice: index 0 is CPU 1, in slot 0. */
static void chosen(void)
{
	int swapped[] = { 1, 0 }, keys[] = { 0, 1 }, wrong[][2] = { { 0, 0 }, { -1, 0 }, { 0, 1 << 20 } };
	const __u32 holds[] = { PW_HOLD_UNORDERED, PW_HOLD_FENCE };
	struct seen seen = {};

	if (cpus() < 2) {
		puts("rings: SKIPPED, slots of two CPUs");
		return;
	}
	for (int i = 0; i < 6; i++) {
		PW_OPTS(opts, .hold = holds[i / 3], .cpus = wrong[i % 3], .cpu_cnt = 2);

		/* The last is a CPU that no machine has here, and no slot that the map has. */
		CHECK(!pw_buffer__new(map("events"), 0, NULL, NULL, NULL, &opts) && errno == (i % 3 == 2 ? ENOENT : EINVAL));
		opts.cpus = swapped, opts.map_keys = wrong[i % 3];
		CHECK(!pw_buffer__new(map("events"), 0, NULL, NULL, NULL, &opts) && errno == EINVAL);
		opts.cpus = NULL;
		CHECK(!pw_buffer__new(map("events"), 0, NULL, NULL, NULL, &opts) && errno == EINVAL && strstr(pw_last_error(), "opts->cpus"));
	}
	for (int hold = 0; hold < 2; hold++) {
		PW_OPTS(opts, .hold = holds[hold], .cpus = swapped, .map_keys = keys, .cpu_cnt = 2);
		struct pw_buffer *buffer = pw_buffer__new(map("events"), 64 * 4096, on_sample, on_lost, &seen, &opts);

		CHECK(buffer && pw_buffer__buffer_cnt(buffer) == 2);
		memset(&seen, 0, sizeof(seen));
		/* Output of a CPU through another's event is refused. */
		begin(PERF);
		emit_on(0, 5), emit_on(1, 5);
		begin(PERF | SWAP);
		emit_on(0, 10), emit_on(1, 20);
		if (holds[hold] == PW_HOLD_UNORDERED)
			CHECK(pw_buffer__consume_buffer(buffer, 0) == 20 && seen.by_cpu[1] == 20 && pw_buffer__consume_buffer(buffer, 1) == 10);
		CHECK(holds[hold] == PW_HOLD_UNORDERED || !pw_buffer__flush(buffer));
		while (seen.records < 30)
			CHECK(pw_buffer__poll(buffer, -1) >= 0);
		CHECK(seen.records == 30 && seen.by_cpu[0] == 10);
		pw_buffer__free(buffer);
		/* One CPU alone, in its own slot. */
		opts.cpu_cnt = 1, opts.map_keys = NULL;
		buffer = pw_buffer__new(map("events"), 64 * 4096, on_sample, on_lost, &seen, &opts);
		CHECK(buffer && pw_buffer__buffer_cnt(buffer) == 1 && pw_buffer__buffer_fd(buffer, 0) >= 0 && pw_buffer__buffer_fd(buffer, 1) == -EINVAL);
		pw_buffer__free(buffer);
	}
}

static void readable(void)
{
	struct seen seen = {};
	struct pw_buffer *buffer = open_with(&seen, 0, PW_HOLD_UNORDERED);

	CHECK(pw_buffer__readable(buffer) == 0);
	emit_on(cpus() - 1, 1);
	CHECK(pw_buffer__readable(buffer) == 1 && pw_buffer__readable(buffer) == 1);
	CHECK(pw_buffer__drain_unordered(buffer) == 1 && pw_buffer__readable(buffer) == 0);
	pw_buffer__free(buffer);

	seen = (struct seen){};
	buffer = open_with(&seen, 0, PW_HOLD_FENCE);
	CHECK(pw_buffer__readable(buffer) == 0);
	emit_on(cpus() - 1, 2);
	CHECK(!pw_buffer__flush(buffer));
	for (int is = 0; !is;) {
		struct pollfd fd = { .fd = pw_buffer__epoll_fd(buffer), .events = POLLIN };

		CHECK(poll(&fd, 1, pw_buffer__timeout(buffer)) >= 0);
		is = pw_buffer__readable(buffer);
		CHECK(is >= 0 && seen.records == 0);
	}
	/* It is not consumed. */
	CHECK(pw_buffer__readable(buffer) == 1 && pw_buffer__consume(buffer) > 0);
	while (seen.records < 2)
		CHECK(pw_buffer__poll(buffer, -1) >= 0);
	pw_buffer__free(buffer);
	CHECK(pw_buffer__readable(NULL) == -EINVAL);
}

static void wakeup_bytes(void)
{
	PW_OPTS(opts, .hold = PW_HOLD_UNORDERED, .wakeup_bytes = 4096);
	struct seen seen = {};
	struct pw_buffer *buffer = pw_buffer__new(map("events"), 64 * 4096, on_sample, NULL, &seen, &opts);
	struct pollfd fd = { .events = POLLIN };

	CHECK(buffer);
	fd.fd = pw_buffer__buffer_fd(buffer, 0);
	begin(PERF);
	/* 48 bytes each. */
	emit_on(0, 80);
	CHECK(poll(&fd, 1, 0) == 0);
	emit_on(0, 80);
	CHECK(poll(&fd, 1, 0) == 1);
	pw_buffer__free(buffer);
	opts.wakeup_events = 1;
	CHECK(!pw_buffer__new(map("events"), 0, NULL, NULL, NULL, &opts) && errno == EINVAL && strstr(pw_last_error(), "both"));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	load(argv[1]);
	by_index(PW_HOLD_FENCE);
	by_index(PW_HOLD_UNORDERED);
	one_way();
	one_ring();
	fullest_first();
	losses();
	own_reader();
	raw_records();
	chosen();
	readable();
	wakeup_bytes();
	puts("rings: all is well");
	return 0;
}
