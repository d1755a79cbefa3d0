#!/usr/bin/python3
# A tool of bcc, as its examples are: prints steps.
import sys
from bcc import BPF

program = BPF(text=r"""
#include <uapi/linux/ptrace.h>
struct event { u64 number; u32 cpu; };
BPF_PERF_OUTPUT(events);
RAW_TRACEPOINT_PROBE(sys_enter) {
    struct pt_regs *regs = (struct pt_regs *)ctx->args[0];
    struct event event = {};
    u64 fd = 0;
    if (ctx->args[1] != SYS_LSEEK) return 0;
    bpf_probe_read_kernel(&fd, 8, &regs->di);
    if (fd != 900) return 0;
    bpf_probe_read_kernel(&event.number, 8, &regs->si);
    event.cpu = bpf_get_smp_processor_id();
    events.perf_submit(ctx, &event, sizeof(event));
    return 0;
}
""".replace("SYS_LSEEK", "8"))


def show(cpu, data, size):
    event = program["events"].event(data)
    assert event.cpu == cpu
    print("enter", event.number)


program["events"].open_perf_buffer(show, page_cnt=64, lost_cb=lambda count: print("lost", count))
print("ready", file=sys.stderr, flush=True)
try:
    while True:
        program.perf_buffer_poll(timeout=100)
except KeyboardInterrupt:
    pass
