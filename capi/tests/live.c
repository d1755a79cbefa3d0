/* The library on live maps: order, every way to read, losses, gaps, damage. As root. Argument: numbers.bpf.o. */

#include "common.h"
#include <poll.h>

#define MANY 5000

struct seen {
	__u32 next;
	int records;
	int lost;
	int kinds[16];
	int by_cpu[1024];
};

static void number(struct seen *seen, const struct number *number, int cpu)
{
	CHECK(number->number == seen->next);
	CHECK(cpu < 0 || (__u32)cpu == number->cpu);
	seen->next++;
	seen->records++;
	seen->by_cpu[number->cpu]++;
}

static void on_sample(void *ctx, int cpu, void *data, __u32 size)
{
	struct number copy;

	CHECK(size >= sizeof(copy));
	memcpy(&copy, data, sizeof(copy));
	number(ctx, &copy, cpu);
}

static void on_lost(void *ctx, int cpu, __u64 count)
{
	CHECK(cpu >= 0);
	((struct seen *)ctx)->lost += (int)count;

}

static int on_ring(void *ctx, void *data, size_t size)
{
	CHECK(size == sizeof(struct number));
	number(ctx, data, -1);
	return 0;
}

static int on_even(void *ctx, void *data, size_t size)
{
	CHECK((((struct number *)data)->number & 1) == 0);
	return on_ring(ctx, data, size);
}

static int on_odd(void *ctx, void *data, size_t size)
{
	CHECK(((struct number *)data)->number & 1);
	return on_ring(ctx, data, size);
}

static void on_notice(void *ctx, const struct pw_event *event)
{
	struct seen *seen = ctx;

	CHECK(event->kind != PW_RECORD);
	pw_print_notice(NULL, event);
	seen->kinds[event->kind]++;
}

/* Polls until everything written so far has come. */
static void finish(struct pw_buffer *buffer, struct seen *seen)
{
	int before = seen->kinds[PW_FLUSHED];

	CHECK(!pw_buffer__flush(buffer));
	while (seen->kinds[PW_FLUSHED] == before)
		CHECK(pw_buffer__poll(buffer, -1) >= 0);
}

static void perf_callbacks(void)
{
	static struct seen seen;
	PW_OPTS(opts, .notice_cb = on_notice);
	struct pw_buffer *buffer = pw_buffer__new(map("events"), 256 * 4096, on_sample, on_lost, &seen, &opts);
	struct pw_stats stats;
	struct pw_account accounts[64];
	int got;

	CHECK(buffer);
	begin(PERF);
	emit(MANY);
	finish(buffer, &seen);
	CHECK(seen.records == MANY && seen.lost == 0);
	for (int cpu = 0; cpu < cpus(); cpu++)
		CHECK(seen.by_cpu[cpu] > 0);
	CHECK(!pw_buffer__stats(buffer, &stats, sizeof(stats)));
	CHECK(stats.records == MANY && stats.late == 0 && stats.held == 0);
	got = pw_buffer__ledger(buffer, accounts, sizeof(accounts[0]), 64);
	CHECK(got == cpus() + 1);
	CHECK(accounts[0].cpu == -1 && accounts[0].yielded == MANY && accounts[0].lost == 0);
	pw_buffer__free(buffer);
}

/* One event after the other, in a loop around the descriptor, and many at once. */
static void perf_in_place(int most)
{
	struct pw_event events[64];
	struct pw_buffer *buffer = pw_buffer__new(map("events"), 64 * 4096, NULL, NULL, NULL, NULL);
	struct seen seen = {};
	__u64 key = 0;
	int got = 0, flushed = 0;

	CHECK(buffer);
	begin(PERF);
	for (int round = 0; round < 10; round++) {
		emit(MANY / 10);
		CHECK(!pw_buffer__flush(buffer));
		for (flushed = 0; !flushed;) {
			struct pollfd fd = { .fd = pw_buffer__epoll_fd(buffer), .events = POLLIN };

			CHECK(fd.fd >= 0);
			if (!got)
				CHECK(poll(&fd, 1, pw_buffer__timeout(buffer)) >= 0);
			got = most == 1 ? pw_buffer__next(buffer, 0, events, sizeof(events[0])) :
					  pw_buffer__batch(buffer, 0, events, sizeof(events[0]), most);
			CHECK(got >= 0 && got <= most);
			for (int i = 0; i < got; i++) {
				struct number copy;

				if (events[i].kind == PW_FLUSHED) {
					flushed = 1;
					continue;
				}
				CHECK(events[i].kind == PW_RECORD && events[i].certainty == PW_PROVEN);
				CHECK(events[i].has_key && events[i].key >= key);
				key = events[i].key;
				memset(&copy, 0, sizeof(copy));
				size_t head = events[i].data[0].size < sizeof(copy) ? events[i].data[0].size : sizeof(copy);
				memcpy(&copy, events[i].data[0].data, head);
				if (head < sizeof(copy))
					memcpy((char *)&copy + head, events[i].data[1].data, sizeof(copy) - head);
				number(&seen, &copy, events[i].cpu);
			}
		}
	}
	CHECK(seen.records == MANY);
	pw_buffer__free(buffer);
}

static void ring(const char *name, __u32 mode, struct pw_opts *opts)
{
	struct seen seen = {};
	struct pw_ring_buffer *ring;

	opts->notice_cb = on_notice;
	ring = pw_ring_buffer__new(map(name), mode & OTHER ? on_even : on_ring, &seen, opts);
	CHECK(ring);
	if (mode & OTHER)
		CHECK(!pw_ring_buffer__add(ring, map("other"), on_odd, &seen));
	CHECK(pw_ring_buffer__epoll_fd(ring) >= 0);
	CHECK(pw_ring_buffer__add(ring, map("other"), on_ring, &seen) == -EBUSY);
	begin(mode);
	for (int round = 0; round < 10; round++) {
		emit(MANY / 10);
		CHECK(pw_ring_buffer__poll(ring, 10) >= 0);
	}
	finish(pw_ring_buffer__buffer(ring), &seen);
	CHECK(seen.records == MANY);
	pw_ring_buffer__free(ring);
}

static void ring_buffers(void)
{
	PW_OPTS(none);
	PW_OPTS(time, .key = PW_KEY_PAYLOAD, .hold = PW_HOLD_RESERVED);
	PW_OPTS(programs, .key = PW_KEY_PAYLOAD, .hold = PW_HOLD_RESERVED_BY_PROGRAMS);
	PW_OPTS(number, .key = PW_KEY_PAYLOAD, .key_offset = 8);

	ring("ring", RING, &none);
	ring("ring", RING, &time);
	ring("ring", RING, &programs);
	ring("ring", RING, &number);
	ring("ring", RING | OTHER, &time);
	ring("ring", RING | OTHER, &number);
	ring("rings", RINGS, &time);
}

static void holds(void)
{
	PW_OPTS(epochs, .hold = PW_HOLD_EPOCHS, .epochs_fd = map("epochs"), .notice_cb = on_notice);
	PW_OPTS(dense, .hold = PW_HOLD_DENSE, .key = PW_KEY_PAYLOAD, .key_offset = 8, .notice_cb = on_notice);
	PW_OPTS(lag, .hold = PW_HOLD_LAG, .lag_ns = 50000000, .notice_cb = on_notice);
	PW_OPTS(nothing, .hold = PW_HOLD_NONE, .wakeup_events = 1, .latency_ns = 1000000, .notice_cb = on_notice);
	struct pw_opts *all[] = { &epochs, &dense, &lag, &nothing };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct seen seen = {};
		struct pw_buffer *buffer = pw_buffer__new(map("events"), 256 * 4096, on_sample, NULL, &seen, all[i]);

		CHECK(buffer);
		begin(PERF);
		emit(500);
		finish(buffer, &seen);
		CHECK(seen.records == 500);
		pw_buffer__free(buffer);
	}
}

static void count(void *ctx, int cpu, void *data, __u32 size)
{
	(void)cpu, (void)data, (void)size;
	((struct seen *)ctx)->records++;
}

/* A ring that is too small, numbers that are not written, bytes that are no record. */
static void losses_gaps_damage(void)
{
	static struct seen seen;
	PW_OPTS(opts, .notice_cb = on_notice, .has_numbers = 1, .numbers_offset = 16);
	struct pw_buffer *buffer = pw_buffer__new(map("events"), 4096 * 4, count, on_lost, &seen, &opts);
	struct pw_account all;

	CHECK(buffer);
	begin(PERF);
	emit(20);
	finish(buffer, &seen);
	emit(MANY);
	finish(buffer, &seen);
	CHECK(seen.lost > 0 && seen.kinds[PW_LOST] == 0);
	CHECK(pw_buffer__ledger(buffer, &all, sizeof(all), 1) == cpus() + 1);
	CHECK(all.lost == (__u64)seen.lost && all.yielded + all.lost == MANY + 20);
	begin(PERF | SKIP);
	emit(100);
	finish(buffer, &seen);
	CHECK(seen.kinds[PW_GAP] > 0);
	pw_buffer__free(buffer);

	memset(&seen, 0, sizeof(seen));
	buffer = pw_buffer__new(map("events"), 4096 * 64, count, on_lost, &seen, &opts);
	CHECK(buffer);
	begin(PERF | DAMAGE);
	emit(2);
	begin(PERF);
	emit(100);
	finish(buffer, &seen);
	CHECK(seen.kinds[PW_DAMAGE] > 0 && seen.records >= 100);
	pw_buffer__free(buffer);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2 && !strcmp(pw_version(), PW_VERSION));
	load(argv[1]);
	for (int cpu = 0; cpu < cpus(); cpu++) {
		int ring = bpf_map_create(BPF_MAP_TYPE_RINGBUF, "ring", 0, 0, 1 << 20, NULL);

		CHECK(ring >= 0 && !bpf_map_update_elem(map("rings"), &cpu, &ring, BPF_ANY));
	}
	perf_callbacks();
	perf_in_place(1);
	perf_in_place(64);
	ring_buffers();
	holds();
	losses_gaps_damage();
	puts("live: all is well");
	return 0;
}
