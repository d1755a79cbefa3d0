// Each step of one process, as perf output or into one of two ring buffers.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <asm/unistd.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "steps.h"

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
} events SEC(".maps"), others SEC(".maps");

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
};
struct ring ring1 SEC(".maps"), ring2 SEC(".maps");

static __always_inline void submit(void *ring, struct step *step, struct control *how)
{
	struct step *space = bpf_ringbuf_reserve(ring, sizeof(*space), 0);

	if (!space) {
		__sync_fetch_and_add(&how->dropped, 1);
		return;
	}
	*space = *step;
	space->ns = bpf_ktime_get_ns();
	bpf_ringbuf_submit(space, how->flags);
	if (how->mode & DISCARD && (space = bpf_ringbuf_reserve(ring, sizeof(*space), 0)))
		bpf_ringbuf_discard(space, how->flags);
}

SEC("raw_tp/sys_enter")
int on_enter(struct bpf_raw_tracepoint_args *context)
{
	struct pt_regs *regs = (struct pt_regs *)context->args[0];
	struct step step = { .pid = bpf_get_current_pid_tgid() >> 32 };
	struct control *how;
	__u32 zero = 0;
	__u64 fd = 0;

	if (context->args[1] != __NR_lseek || !(how = bpf_map_lookup_elem(&control, &zero)) || how->pid != step.pid)
		return 0;
	bpf_probe_read_kernel(&fd, sizeof(fd), &PT_REGS_PARM1_SYSCALL(regs));
	if (fd != FD)
		return 0;
	bpf_probe_read_kernel(&step.number, sizeof(step.number), &PT_REGS_PARM2_SYSCALL(regs));
	step.cpu = bpf_get_smp_processor_id();
	step.ns = bpf_ktime_get_ns();
	if (how->mode & PERF)
		bpf_perf_event_output(context, &events, BPF_F_CURRENT_CPU, &step, sizeof(step));
	if (how->mode & RING) {
		if (how->which == 2 || (!how->which && step.cpu & 1))
			submit(&ring2, &step, how);
		else
			submit(&ring1, &step, how);
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
