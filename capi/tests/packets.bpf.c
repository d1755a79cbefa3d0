// Programs of tc and of XDP that output a packet's own bytes behind what they write: BPF_F_CTXLEN_MASK.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packets.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} packets SEC(".maps");

static __always_inline void output(void *ctx, __u32 by, __u64 size)
{
	struct seen_packet seen = { .by = by, .size = (__u32)size };

	bpf_perf_event_output(ctx, &packets, BPF_F_CURRENT_CPU | (size << 32 & BPF_F_CTXLEN_MASK), &seen, sizeof(seen));
}

SEC("tc")
int on_tc(struct __sk_buff *skb)
{
	output(skb, TC, skb->len);
	return 0; /* TC_ACT_OK */
}

SEC("xdp")
int on_xdp(struct xdp_md *xdp)
{
	output(xdp, XDP, xdp->data_end - xdp->data);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
