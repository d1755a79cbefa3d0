// Who leaves a CPU, and who gets it: an ordinary program for any loader. No time is taken here: the kernel stamps records.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "perfweave.bpf.h"

// The two members that we read; where they lie in the running kernel, its BTF says when the program is loaded.
struct task_struct {
	int pid;
	char comm[16];
} __attribute__((preserve_access_index));

struct event {
	__u32 prev_pid;
	__u32 next_pid;
	char prev_comm[16];
	char next_comm[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} EVENTS SEC(".maps");

// Where programs say that they are inside: perfweave reads it, and proves order by it in place of kernel fences.
PERFWEAVE_EPOCHS(EPOCHS, 1024);

static __always_inline void fill(struct event *event, struct task_struct *prev, struct task_struct *next)
{
	event->prev_pid = prev->pid;
	event->next_pid = next->pid;
	bpf_probe_read_kernel_str(event->prev_comm, sizeof(event->prev_comm), prev->comm);
	bpf_probe_read_kernel_str(event->next_comm, sizeof(event->next_comm), next->comm);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct event event = {};

	fill(&event, prev, next);
	// The kernel stamps the record in the helper. So that is what lies between entering and leaving.
	perfweave_word *word = perfweave_enter(&EPOCHS);
	if (!word)
		return 0;
	bpf_perf_event_output(ctx, &EVENTS, BPF_F_CURRENT_CPU, &event, sizeof(event));
	perfweave_leave(word);
	return 0;
}

// The same for a BPF ring buffer that all CPUs share. The kernel stamps nothing there: the program draws the time inside its reservation.
struct stamped {
	__u64 time;
	__u32 cpu;
	__u32 pad;
	struct event event;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} RING SEC(".maps");

// Reservations that the kernel refused: perfweave reads them, and knows what is missing.
PERFWEAVE_FAILURES(FAILURES);

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch_reserved, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct stamped *stamped = perfweave_reserve(&RING, sizeof(*stamped), &FAILURES);

	if (!stamped)
		return 0;
	stamped->time = bpf_ktime_get_ns();
	stamped->cpu = bpf_get_smp_processor_id();
	fill(&stamped->event, prev, next);
	bpf_ringbuf_submit(stamped, 0);
	return 0;
}

// bpf_perf_event_output is for programs under the GPL, or under it too.
char LICENSE[] SEC("license") = "Dual MIT/GPL";
