/* libFuzzer: any calls with any options, sizes and numbers, on live maps. As root. NUMBERS=numbers.bpf.o. */

#include "common.h"
#include <linux/perf_event.h>

struct input {
	const unsigned char *at;
	size_t left;
};

static unsigned int byte(struct input *input)
{
	if (!input->left)
		return 0;
	input->left--;
	return *input->at++;
}

static void fill(struct input *input, void *into, size_t size)
{
	for (size_t i = 0; i < size; i++)
		((unsigned char *)into)[i] = (unsigned char)byte(input);
}

static unsigned long long sum;

/* Reads what it is given: a sanitizer sees bytes that are not there. */
static void touch(const void *data, size_t size)
{
	for (size_t i = 0; i < size; i++)
		sum += ((const unsigned char *)data)[i];
}

struct state {
	struct pw_buffer *buffer;
	struct pw_handle *handle;
	int inside;
	unsigned int free_in;
};

static void act_inside(struct state *state)
{
	struct pw_stats stats;

	CHECK(pw_buffer__poll(state->buffer, 0) == -EBUSY && pw_buffer__stats(state->buffer, &stats, sizeof(stats)) == -EBUSY);
	if (state->free_in && !--state->free_in) {
		pw_buffer__free(state->buffer);
		state->buffer = NULL;
	}
}

static void on_sample(void *ctx, int cpu, void *data, __u32 size)
{
	(void)cpu;
	touch(data, size);
	if (((struct state *)ctx)->buffer)
		act_inside(ctx);
}

static int on_event(void *ctx, int cpu, struct perf_event_header *event)
{
	on_sample(ctx, cpu, event, event->size);
	return sum % 7 == 0 ? -1 : sum % 5 == 0 ? 0 : -2;
}

static int on_ring(void *ctx, void *data, size_t size)
{
	on_sample(ctx, -1, data, (__u32)size);
	return sum % 7 == 0 ? -1 : 0;
}

static void on_notice(void *ctx, const struct pw_event *event)
{
	(void)ctx;
	touch(event->data[0].data, event->data[0].size);
	touch(event->data[1].data, event->data[1].size);
}

/* Options from the input. What is a pointer or a descriptor is one that is there, or none. */
static struct pw_buffer *open_any(struct input *input, struct state *state)
{
	static const size_t sizes[] = { 0, 1, 64, 4096, 4096 * 8, 4096 * 64 };
	int fds[] = { map("events"), map("ring"), map("rings"), map("other"), map("epochs"), map("failures"), -1, 1 };
	static int numbers[3];
	struct pw_opts opts;
	struct pw_buffer *buffer;
	unsigned int how = byte(input);
	int fd = fds[byte(input) % 8];

	fill(input, &opts, sizeof(opts));
	if (how & 1)
		opts.sz = sizeof(opts);
	else
		opts.sz %= sizeof(opts) + 1;
	opts.hold %= 10;
	opts.key %= 5;
	opts.count_failures &= 1;
	opts.latency_ns %= 1000000000;
	opts.lag_ns %= 1000000000;
	opts.epochs_fd = fds[(unsigned int)opts.epochs_fd % 8];
	opts.failures_fd = fds[(unsigned int)opts.failures_fd % 8];
	opts.has_numbers &= how & 2 ? 3 : 0;
	opts.notice_cb = how & 4 ? on_notice : NULL;
	opts.event_cb = how & 64 ? on_event : NULL;
	opts.sample_type &= how & 128 ? 0x1ffffff : 0;
	opts.cpu_cnt %= 4;
	opts.cpus = how & 64 ? numbers : NULL;
	opts.map_keys = how & 128 ? numbers : NULL;
	for (int i = 0; i < 3; i++)
		numbers[i] = (int)byte(input) % 5 - 1;
	if (how & 8) {
		struct pw_ring_buffer *ring = pw_ring_buffer__new(fd, on_ring, state, how & 16 ? &opts : NULL);

		if (ring && how & 32)
			pw_ring_buffer__add(ring, fds[byte(input) % 8], on_ring, state);
		buffer = pw_ring_buffer__buffer(ring);
	} else {
		buffer = pw_buffer__new(fd, sizes[byte(input) % 6], on_sample, NULL, state, how & 16 ? &opts : NULL);
	}
	if (!buffer)
		touch(pw_last_error(), strlen(pw_last_error()));
	return buffer;
}

static void read_any(struct input *input, struct state *state)
{
	struct pw_event events[8];
	size_t size = byte(input) * 8;
	int most = (int)byte(input) - 1;

	if (size * (size_t)(most < 0 ? 0 : most) > sizeof(events))
		size = sizeof(events[0]), most = 8;
	int got = pw_buffer__batch(state->buffer, 0, events, size, most);

	for (int i = 0; i < got && size == sizeof(events[0]); i++)
		on_notice(NULL, &events[i]);
}

/* The memory of an index, up to its first bytes of data. */
static void look_at(struct pw_buffer *buffer, size_t index)
{
	void *base;
	size_t size;

	if (!pw_buffer__buffer(buffer, index, &base, &size))
		touch(base, (size_t)sysconf(_SC_PAGESIZE) + (size < 64 ? size : 64));
	CHECK(pw_buffer__buffer_fd(buffer, index) != 0 && pw_buffer__buffer_cnt(buffer) != 0);
}

static void act(struct input *input, struct state *state)
{
	union {
		struct pw_stats stats;
		struct pw_account accounts[4];
		char bytes[2048];
	} out;

	switch (byte(input) % 18) {
	case 0: if (!state->buffer) state->buffer = open_any(input, state); break;
	case 1: begin(byte(input) & 127); emit((int)byte(input)); break;
	case 2: state->free_in = byte(input); pw_buffer__poll(state->buffer, (int)byte(input) % 20); break;
	case 3: state->free_in = 0; pw_buffer__consume(state->buffer); break;
	case 4: if (state->buffer) read_any(input, state); break;
	case 5: pw_buffer__stats(state->buffer, &out.stats, byte(input) * 8); break;
	case 6: pw_buffer__ledger(state->buffer, out.accounts, byte(input) % 9 * 8, (int)byte(input) % 5); break;
	case 7: pw_buffer__flush(state->buffer); break;
	case 8: if (!state->handle) state->handle = pw_buffer__handle(state->buffer); break;
	case 9: pw_handle__pause(state->handle, byte(input) % 3); break;
	case 10: pw_handle__resume(state->handle); break;
	case 11: pw_handle__set_deadline(state->handle, (long long)byte(input) - 10); break;
	case 12: pw_handle__free(state->handle); state->handle = NULL; break;
	case 13: pw_buffer__free(state->buffer); state->buffer = NULL; break;
	case 14: state->free_in = byte(input); pw_buffer__drain_unordered(state->buffer); break;
	case 15: state->free_in = 0; pw_buffer__consume_buffer(state->buffer, byte(input)); break;
	case 17: pw_buffer__readable(state->buffer); break;
	case 16: look_at(state->buffer, byte(input)); break;
	}
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct input input = { data, size };
	struct state state = {};

	if (!object) {
		const char *path = getenv("NUMBERS");

		CHECK(path);
		load(path);
		for (int cpu = 0; cpu < cpus(); cpu++) {
			int ring = bpf_map_create(BPF_MAP_TYPE_RINGBUF, "ring", 0, 0, 1 << 20, NULL);

			CHECK(ring >= 0 && !bpf_map_update_elem(map("rings"), &cpu, &ring, BPF_ANY));
		}
	}
	/* Most inputs begin with a buffer. */
	state.buffer = open_any(&input, &state);
	for (int calls = 0; calls < 50 && input.left; calls++)
		act(&input, &state);
	pw_buffer__free(state.buffer);
	pw_handle__free(state.handle);
	return 0;
}
