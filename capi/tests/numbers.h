/* What the program and its tests share. */
#ifndef NUMBERS_H
#define NUMBERS_H

#include <linux/types.h>

/* Where numbers go. */
enum {
	PERF = 1,
	RING = 2,
	OTHER = 4,   /* odd numbers go into the other ring buffer */
	RINGS = 8,   /* a ring buffer for each CPU */
	DAMAGE = 16, /* output that no record has room for */
	SKIP = 32,   /* one of ten numbers is not written */
	SWAP = 64,   /* with PERF: each CPU takes the slot of its neighbour */
};

/* Its record needs more than the 16 bits of a header's size. */
#define TOO_LARGE 65536

struct control {
	__u32 pid;
	__u32 mode;
	__u64 call;
	__u64 next;
};

struct number {
	__u64 time;
	__u64 number;
	__u64 own;
	__u32 cpu;
	__u32 unused;
};

#endif
