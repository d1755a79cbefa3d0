// Who leaves a CPU, and who gets it: ordinary programs for any loader. One outputs into perf rings, where the kernel stamps records; the
// other into a BPF ring buffer, where it takes the time itself.

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

// What the other program submits. The time comes first: it is the key.
struct stamped {
	__u64 time;
	__u32 cpu;
	__u32 unused;
	struct event event;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} BUFFER SEC(".maps");

// Reservations that the kernel refused: without it nobody knows how many records are missing.
PERFWEAVE_FAILURES(FAILURES);

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch_reserve, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct stamped *stamped = perfweave_reserve(&BUFFER, sizeof(*stamped), &FAILURES);

	if (!stamped)
		return 0;
	stamped->time = bpf_ktime_get_ns();
	stamped->cpu = bpf_get_smp_processor_id();
	stamped->unused = 0;
	stamped->event.prev_pid = prev->pid;
	stamped->event.next_pid = next->pid;
	bpf_probe_read_kernel_str(stamped->event.prev_comm, sizeof(stamped->event.prev_comm), prev->comm);
	bpf_probe_read_kernel_str(stamped->event.next_comm, sizeof(stamped->event.next_comm), next->comm);
	bpf_ringbuf_submit(stamped, 0);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct event event = { .prev_pid = prev->pid, .next_pid = next->pid };

	bpf_probe_read_kernel_str(event.prev_comm, sizeof(event.prev_comm), prev->comm);
	bpf_probe_read_kernel_str(event.next_comm, sizeof(event.next_comm), next->comm);

	// The kernel stamps the record in the helper. So that is what lies between entering and leaving.
	perfweave_word *word = perfweave_enter(&EPOCHS);
	if (!word)
		return 0;
	bpf_perf_event_output(ctx, &EVENTS, BPF_F_CURRENT_CPU, &event, sizeof(event));
	perfweave_leave(word);
	return 0;
}

// bpf_perf_event_output is for programs under the GPL, or under it too.
char LICENSE[] SEC("license") = "Dual MIT/GPL";
