// What libbpf's own tests of perf and ring buffers ask of a program's view, and what libbpf's code promises besides. It prints what it
// sees and no times: the same for libbpf and for whoever takes its place.    contract OBJECT
#include "common.h"

#define SAY(...) (printf(__VA_ARGS__), fflush(stdout))

/* libbpf 1.1's headers do not have these. */
struct ring;
struct ring *ring_buffer__ring(struct ring_buffer *buffer, unsigned int index) __attribute__((weak));
unsigned long ring__consumer_pos(const struct ring *ring) __attribute__((weak));
unsigned long ring__producer_pos(const struct ring *ring) __attribute__((weak));
size_t ring__avail_data_size(const struct ring *ring) __attribute__((weak));
size_t ring__size(const struct ring *ring) __attribute__((weak));
int ring__map_fd(const struct ring *ring) __attribute__((weak));
int ring__consume(struct ring *ring) __attribute__((weak));

static unsigned long seen;
static int wrong, count, raw_answer, ring_answer;
static unsigned long long lost;

static void on_sample(void *context, int cpu, void *data, __u32 size)
{
	struct step *step = data;

	wrong += context != &seen || step->cpu != (unsigned int)cpu || size < sizeof(*step);
	/* The kernel fills up to 8 bytes. */
	wrong += (size + 4) % 8 != 0;
	seen |= 1ul << cpu;
	count++;
}

static void on_lost(void *context, int cpu, __u64 number)
{
	wrong += context != &seen || cpu < 0;
	lost += number;
}

static void perf(void)
{
	struct perf_buffer *buffer;
	int last = -1;

	begin(PERF, 0, 0);
	buffer = perf_buffer__new(map("events"), 1, on_sample, on_lost, &seen, NULL);
	CHECK(buffer);
	SAY("epoll_fd %d, buffer_cnt as CPUs %d\n", perf_buffer__epoll_fd(buffer) >= 0, perf_buffer__buffer_cnt(buffer) == (size_t)cpus());
	SAY("poll of nothing %d, consume of nothing %d\n", perf_buffer__poll(buffer, 0), perf_buffer__consume(buffer));
	for (int cpu = 0; cpu < cpus(); cpu++)
		step_on(cpu, cpu);
	SAY("poll says all CPUs %d", perf_buffer__poll(buffer, 100) == cpus());
	SAY(", all seen %d\n", seen == (1ul << cpus()) - 1);
	for (int cpu = 0; cpu < cpus(); cpu++) {
		int fd = perf_buffer__buffer_fd(buffer, (size_t)cpu);

		SAY("CPU %d: fd is another %d, drained %d", cpu, fd >= 0 && fd != last, perf_buffer__consume_buffer(buffer, (size_t)cpu));
		last = fd;
		seen = 0;
		step_on(cpu, cpu);
		SAY(", consume_buffer %d", perf_buffer__consume_buffer(buffer, (size_t)cpu));
		SAY(", seen %d\n", seen == 1ul << cpu);
	}
	errno = 0;
	SAY("no such fd %d", perf_buffer__buffer_fd(buffer, 1000));
	SAY(" (errno %d)", errno);
	errno = 0;
	SAY(", no such buffer %d", perf_buffer__consume_buffer(buffer, 1000));
	SAY(" (errno %d)\n", errno);
	/* The readiness of what was read by consume_buffer is left: one poll says so, without a record. */
	perf_buffer__poll(buffer, 0);
	SAY("poll again %d", perf_buffer__poll(buffer, 0));
	count = 0;
	for (int i = 0; i < 1000; i++)
		step_on(i % cpus(), i);
	SAY(", consume %d", perf_buffer__consume(buffer));
	/* A page has room for less, and the loss is told with the next record. */
	step_on(0, 0);
	step_on(cpus() - 1, 0);
	SAY(", again %d", perf_buffer__consume(buffer));
	SAY(", all seen or lost %d, wrong %d\n", count + (int)lost == 1002, wrong);
	perf_buffer__free(buffer);
	perf_buffer__free(NULL);
	/* The slots are empty again. */
	buffer = perf_buffer__new(map("events"), 8, on_sample, on_lost, &seen, NULL);
	SAY("made again %d\n", buffer != NULL);
	perf_buffer__free(buffer);
}

static enum bpf_perf_event_ret on_event(void *context, int cpu, struct perf_event_header *header)
{
	struct { struct perf_event_header header; __u64 ip; __u32 pid, tid; __u32 cpu, reserved; __u32 size; char data[]; } __attribute__((packed)) *sample = (void *)header;
	struct step step;

	(void)context;
	count++;
	if (header->type != PERF_RECORD_SAMPLE)
		return LIBBPF_PERF_EVENT_CONT;
	memcpy(&step, sample->data, sizeof(step));
	wrong += sample->cpu != step.cpu || (int)step.cpu != cpu || sample->pid != step.pid || sample->size < sizeof(step);
	wrong += header->size != 8 + 8 + 8 + 8 + 4 + sample->size;
	return (enum bpf_perf_event_ret)raw_answer;
}

static void raw(void)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_SOFTWARE, .size = sizeof(attr), .config = PERF_COUNT_SW_BPF_OUTPUT,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_CPU | PERF_SAMPLE_RAW, .sample_period = 1, .wakeup_events = 1 };
	int cpu = cpus() - 1, key = cpu, got;
	struct perf_buffer_raw_opts opts = { .sz = sizeof(opts), .cpu_cnt = 1, .cpus = &cpu, .map_keys = &key };
	struct perf_buffer *buffer = perf_buffer__new_raw(map("events"), 8, &attr, on_event, NULL, &opts);

	CHECK(buffer);
	wrong = count = 0;
	SAY("raw: one CPU %zu", perf_buffer__buffer_cnt(buffer));
	raw_answer = LIBBPF_PERF_EVENT_CONT;
	step_on(cpu, 1);
	step_on(cpu, 2);
	got = perf_buffer__poll(buffer, 100);
	SAY(", poll %d, records %d, wrong %d\n", got, count, wrong);
	raw_answer = LIBBPF_PERF_EVENT_ERROR;
	step_on(cpu, 3);
	step_on(cpu, 4);
	errno = 0;
	got = perf_buffer__poll(buffer, 100);
	SAY("raw: an error %d (errno %d) after %d", got, errno, count);
	raw_answer = LIBBPF_PERF_EVENT_DONE;
	got = perf_buffer__consume(buffer);
	SAY(", done %d after %d\n", got, count);
	perf_buffer__free(buffer);
}

static void wrongs(void)
{
	struct { size_t sz; __u64 more, still; } opts = { .sz = sizeof(opts), .still = 1 };
	struct { int fd; size_t pages; const void *opts; const char *what; } all[] = {
		{ map("events"), 0, NULL, "no pages" },
		{ map("events"), 3, NULL, "three pages" },
		{ map("ring1"), 8, NULL, "another map" },
		{ -1, 8, NULL, "no map" },
		{ 0, 8, NULL, "no map but a file" },
		{ map("events"), 8, &opts, "an unknown option" },
	};

	libbpf_set_print(NULL);
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		errno = 0;
		SAY("perf, %s: %d", all[i].what, perf_buffer__new(all[i].fd, all[i].pages, on_sample, NULL, &seen, all[i].opts) != NULL);
		SAY(" (errno %d)\n", errno);
	}
	errno = 0;
	SAY("raw without attribute: %d", perf_buffer__new_raw(map("events"), 8, NULL, on_event, NULL, NULL) != NULL);
	SAY(" (errno %d)\n", errno);
}

static int on_ring(void *context, void *data, size_t size)
{
	struct step *step = data;

	wrong += size != sizeof(*step) || (context && (long)context != (long)step->number);
	count++;
	return step->number == 777 ? ring_answer : 0;
}

static struct ring_buffer *rings;

static void *polls(void *timeout)
{
	return (void *)(long)ring_buffer__poll(rings, (int)(long)timeout);
}

static void one_ring(void)
{
	pthread_t thread;
	void *said;
	int got;

	begin(RING | DISCARD, 1, 0);
	wrong = count = 0;
	rings = ring_buffer__new(map("ring1"), on_ring, NULL, NULL);
	CHECK(rings);
	SAY("ring: epoll_fd %d, poll of nothing %d\n", ring_buffer__epoll_fd(rings) >= 0, ring_buffer__poll(rings, 0));
	step(333);
	step(777);
	ring_answer = -7777;
	errno = 0;
	got = ring_buffer__poll(rings, -1);
	SAY("ring: poll %d (errno %d) after %d", got, errno, count);
	got = ring_buffer__poll(rings, 0);
	SAY(", rest %d, still %d\n", got, count);
	ring_answer = 0;
	step(333);
	step(777);
	got = ring_buffer__poll(rings, -1);
	SAY("ring: poll %d, all %d\n", got, count);
	/* Of libbpf 1.3, which may not be here. */
	if (getenv("CONTRACT_RINGS")) {
		struct ring *ring = ring_buffer__ring(rings, 0);

		CHECK(ring && !ring_buffer__ring(rings, 1) && errno == ERANGE);
		CHECK(ring__size(ring) == 1 << 20 && ring__map_fd(ring) == map("ring1"));
		CHECK(ring__consumer_pos(ring) == 8 * (sizeof(struct step) + 8) && ring__producer_pos(ring) == ring__consumer_pos(ring));
		step(333);
		CHECK(ring__avail_data_size(ring) == 2 * (sizeof(struct step) + 8));
		CHECK(ring__consume(ring) == 1 && ring__avail_data_size(ring) == 0);
		count--;
	}
	/* A thread that waits hears nothing of records without wake-up. */
	begin(RING, 1, BPF_RB_NO_WAKEUP);
	CHECK(!pthread_create(&thread, NULL, polls, (void *)100000L));
	step(333);
	step(333);
	begin(RING, 1, BPF_RB_FORCE_WAKEUP);
	step(333);
	CHECK(!pthread_join(thread, &said));
	ring_buffer__consume(rings);
	SAY("ring: woken %d, all %d, wrong %d, dropped %llu\n", (int)(long)said > 0, count, wrong, dropped());
	count = 0;
	step(333);
	SAY("ring: consume %d", ring_buffer__consume(rings));
	SAY(" of %d\n", count);
	ring_buffer__free(rings);
	ring_buffer__free(NULL);
}

static void two_rings(void)
{
	int got;

	wrong = count = 0;
	rings = ring_buffer__new(map("ring1"), on_ring, (void *)333L, NULL);
	CHECK(rings);
	SAY("two: add %d", ring_buffer__add(rings, map("ring2"), on_ring, (void *)777L));
	begin(RING, 1, 0);
	step(333);
	begin(RING, 2, 0);
	step(777);
	got = ring_buffer__poll(rings, -1);
	SAY(", poll %d", got);
	SAY(", again %d", ring_buffer__poll(rings, 0));
	SAY(", all %d, wrong %d\n", count, wrong);
	errno = 0;
	SAY("two: another kind of map %d", ring_buffer__add(rings, map("control"), on_ring, NULL));
	SAY(" (errno %d)\n", errno);
	ring_buffer__free(rings);
	errno = 0;
	SAY("ring of no map %d", ring_buffer__new(-1, on_ring, NULL, NULL) != NULL);
	SAY(" (errno %d)\n", errno);
	errno = 0;
	SAY("ring of another map %d", ring_buffer__new(map("control"), on_ring, NULL, NULL) != NULL);
	SAY(" (errno %d)\n", errno);
}

int main(int words, char **word)
{
	CHECK(words == 2);
	load(word[1]);
	perf();
	raw();
	wrongs();
	one_ring();
	two_rings();
	return 0;
}
