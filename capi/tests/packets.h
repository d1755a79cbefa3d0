/* What the programs and the test share: what precedes a packet's own bytes. */
#ifndef PACKETS_H
#define PACKETS_H

#include <linux/types.h>

enum { TC = 1, XDP = 2 };

struct seen_packet {
	__u32 by;   /* which program */
	__u32 size; /* bytes of the packet that follow */
};

#endif
