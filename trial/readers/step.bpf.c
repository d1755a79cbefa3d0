// Steps of the work as BPF output, and their order without a clock: each record has a ticket, which the program draws from one counter of all
// CPUs. With `slow` it works between drawing and output, and a program in timer interrupts draws tickets inside of that time.

#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <asm/unistd.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct event {
	__u64 ticket;
	__u64 ns;
	__u64 number;
	__u32 cpu;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} events SEC(".maps");

struct counts {
	__u64 tickets;
	__u64 slow;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

static long work(__u32 i, void *unused)
{
	bpf_ktime_get_ns();
	return 0;
}

static __always_inline int output(void *context, __u64 number, int may_be_slow)
{
	struct event event = { .number = number };
	struct counts *shared;
	__u32 zero = 0;

	shared = bpf_map_lookup_elem(&counts, &zero);
	if (!shared)
		return 0;
	event.ticket = __sync_fetch_and_add(&shared->tickets, 1);
	event.ns = bpf_ktime_get_ns();
	event.cpu = bpf_get_smp_processor_id();
	if (may_be_slow && shared->slow)
		bpf_loop(event.ticket % 16 ? 100 : 4000, work, 0, 0);
	bpf_perf_event_output(context, &events, BPF_F_CURRENT_CPU, &event, sizeof(event));
	return 0;
}

SEC("raw_tp/sys_enter")
int step(struct bpf_raw_tracepoint_args *context)
{
	struct pt_regs *regs = (struct pt_regs *)context->args[0];
	__u64 fd = 0, number = 0;

	if (context->args[1] != __NR_lseek)
		return 0;
	bpf_probe_read_kernel(&fd, sizeof(fd), &PT_REGS_PARM1_SYSCALL(regs));
	bpf_probe_read_kernel(&number, sizeof(number), &PT_REGS_PARM2_SYSCALL(regs));
	return fd >= 900 && fd < 1000 ? output(context, number, 1) : 0;
}

SEC("raw_tp/hrtimer_expire_entry")
int tick(struct bpf_raw_tracepoint_args *context)
{
	return output(context, 0, 0);
}

char LICENSE[] SEC("license") = "GPL";
