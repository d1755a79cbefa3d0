/* What the BPF programs of the tests take and give. */
#ifndef STEPS_H
#define STEPS_H

/* Each lseek(2) of one process on this descriptor is a step; its offset is the number. */
#define FD 900

struct step {
	unsigned long long ns;
	unsigned long long number;
	unsigned int cpu;
	unsigned int pid;
};

/* Where a step goes. */
enum {
	PERF = 1,
	/* The ring buffer of the CPU's parity, or the one that `which` says. */
	RING = 2,
	/* The same, and a discarded one behind each. */
	DISCARD = 4,
};

struct control {
	unsigned int pid;
	unsigned int mode;
	/* 0: by the CPU; 1 or 2: always that ring. */
	unsigned int which;
	/* Of bpf_ringbuf_submit. */
	unsigned int flags;
	/* How many steps went nowhere for want of room. */
	unsigned long long dropped;
};

#endif
