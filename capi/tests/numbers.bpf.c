// Each getppid(2) of one process writes a number, where and how `control` says.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "perfweave.bpf.h"
#include "numbers.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} events SEC(".maps");

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
};
struct ring ring SEC(".maps"), other SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1024);
	__uint(key_size, sizeof(__u32));
	__array(values, struct ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} own SEC(".maps");

// What is too large for a record's header.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, char[TOO_LARGE]);
} large SEC(".maps");

PERFWEAVE_EPOCHS(epochs, 1024);
PERFWEAVE_FAILURES(failures);

static __always_inline void submit(void *ring, struct number *number)
{
	struct number *space = perfweave_reserve(ring, sizeof(*space), &failures);

	if (!space)
		return;
	*space = *number;
	space->time = bpf_ktime_get_ns();
	bpf_ringbuf_submit(space, 0);
}

static __always_inline void write(void *ctx, struct control *how, struct number *number)
{
	__u32 zero = 0;
	void *found;

	if (how->mode & PERF)
		bpf_perf_event_output(ctx, &events, how->mode & SWAP ? number->cpu ^ 1 : BPF_F_CURRENT_CPU, number, sizeof(*number));
	if (how->mode & DAMAGE && (found = bpf_map_lookup_elem(&large, &zero)))
		bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, found, TOO_LARGE);
	if (how->mode & RING && !(how->mode & OTHER && number->number & 1))
		submit(&ring, number);
	if (how->mode & OTHER && number->number & 1)
		submit(&other, number);
	if (how->mode & RINGS && (found = bpf_map_lookup_elem(&rings, &number->cpu)))
		submit(found, number);
}

SEC("raw_tp/sys_enter")
int on_enter(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	__u64 *count;
	struct control *how = bpf_map_lookup_elem(&control, &zero);
	struct number number = {};
	perfweave_word *word;

	if (!how || bpf_get_current_pid_tgid() >> 32 != how->pid || ctx->args[1] != how->call)
		return 0;
	word = perfweave_enter(&epochs);
	if (!word)
		return 0;
	number.time = bpf_ktime_get_ns();
	number.number = __sync_fetch_and_add(&how->next, 1);
	number.cpu = bpf_get_smp_processor_id();
	count = bpf_map_lookup_elem(&own, &zero);
	if (count)
		number.own = (*count)++;
	if (!(how->mode & SKIP && number.number % 10 == 3))
		write(ctx, how, &number);
	perfweave_leave(word);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
