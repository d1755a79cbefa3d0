/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * What BPF programs do so that perfweave can prove the order of their records, and say what is missing.
 *
 * Writers' epochs: a BPF program says that it is inside, from before it draws its key until it has written its record.
 *
 *     PERFWEAVE_EPOCHS(epochs, 1024);
 *
 *     perfweave_word *word = perfweave_enter(&epochs);    before the key is drawn
 *     if (!word) return 0;
 *     ... draw the key, output ...
 *     perfweave_leave(word);                              on every path to the end
 *
 * Which hold rule proves the order depends on whether the program can sleep, and on where it draws its key:
 *
 *     program                                             inside epochs       in a reservation    neither
 *     raw_tp, tp, tp_btf, kprobe, perf_event, XDP, tc,    epochs              Barrier             Hold::FENCE
 *     cgroup, sockets, timers (bpf_timer), and fentry,
 *     fexit, fmod_ret, lsm, uprobe, usdt, iter,
 *     struct_ops without ".s"
 *     those with ".s", syscall, workqueues (bpf_wq),      epochs, patience    Barrier             none
 *     task work (bpf_task_work)                           Duration::MAX
 *     the same, between bpf_rcu_read_lock() and           epochs              Barrier             Hold::FENCE
 *     bpf_rcu_read_unlock() from key to output
 *
 * With the kernel's time as the key (perf event arrays) Hold::FENCE proves the order of them all.
 *
 * BPF ring buffers: a program counts the reservations that the kernel refuses, and draws its key inside the reservation, behind a barrier.
 *
 *     PERFWEAVE_FAILURES(failures);
 *
 *     struct event *event = perfweave_reserve(&ring, sizeof(*event), &failures);
 *     if (!event) return 0;
 *     event->key = bpf_ktime_get_ns();                    behind the reservation, before it is submitted
 *     bpf_ringbuf_submit(event, 0);
 *
 * Needs <bpf/bpf_helpers.h> with the types before it (vmlinux.h or <linux/bpf.h>); clang 12 or later, with any -mcpu (words are of 64 bits: for
 * atomics of 32 bits that return a value, clang needs -mcpu=v3); Linux 5.12 for atomics that return the old value.
 */
#ifndef PERFWEAVE_BPF_H
#define PERFWEAVE_BPF_H

/* A cache line, so that CPUs do not disturb each other. The low half of the word is the depth, the high half the generation. */
typedef struct {
    __u64 word;
    __u64 pad[7];
} perfweave_word;

/* The map. It needs an element for each CPU that the machine can have. */
#define PERFWEAVE_EPOCHS(name, cpus)             \
    struct {                                     \
        __uint(type, BPF_MAP_TYPE_ARRAY);        \
        __uint(map_flags, BPF_F_MMAPABLE);       \
        __uint(max_entries, cpus);               \
        __type(key, __u32);                      \
        __type(value, perfweave_word);           \
    } name SEC(".maps")

/* Adds, as a full barrier. Only the form that returns the old value is a barrier. The empty asm uses the value, so that the compiler
 * emits this form. */
static __always_inline void perfweave_add(perfweave_word *word, __u64 what)
{
    __u64 old = __sync_fetch_and_add(&word->word, what);

    asm volatile("" : : "r"(old) : "memory");
}

/* Enters: the reader can see that a program is inside before the key is drawn. NULL only if the map has no element for this CPU: write
 * nothing then. */
static __always_inline perfweave_word *perfweave_enter(void *epochs)
{
    __u32 cpu = bpf_get_smp_processor_id();
    perfweave_word *word = bpf_map_lookup_elem(epochs, &cpu);

    if (word)
        perfweave_add(word, 1);
    return word;
}

/* Leaves. The last one to leave begins a new generation, in one step with the depth that falls to zero. If another program
 * entered or left between the two, only the depth is counted down; the reader then waits until it sees the depth at zero. */
static __always_inline void perfweave_leave(perfweave_word *word)
{
    __u64 seen = *(volatile __u64 *)&word->word;

    /* No program is inside: this one has left before. Counting down would hide the next program that enters. */
    if ((__u32)seen == 0)
        return;
    if ((__u32)seen == 1 && __sync_val_compare_and_swap(&word->word, seen, seen - 1 + (1ULL << 32)) == seen)
        return;
    perfweave_add(word, -1ULL);
}

/* The map for failed reservations: one number for each CPU. The reader takes it with Rings::count_failures. Without it nobody knows how
 * many records are missing: the kernel does not count them. */
#define PERFWEAVE_FAILURES(name)                 \
    struct {                                     \
        __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); \
        __uint(max_entries, 1);                  \
        __type(key, __u32);                      \
        __type(value, __u64);                    \
    } name SEC(".maps")

/* Counts one failure. Atomically: a program that interrupts this one counts in the same number. */
static __always_inline void perfweave_failed(void *failures)
{
    __u32 first = 0;
    __u64 *count = bpf_map_lookup_elem(failures, &first);

    if (count)
        __sync_fetch_and_add(count, 1);
}

/* Reserves, and counts a failure (NULL). Draw the key behind this call: the atomic makes the reservation visible on all CPUs before the
 * key is drawn. That is so on x86-64 only, where the atomic is a locked instruction, and it is what Barrier::Programs asks for. The size
 * must be a constant. The empty asm keeps the atomic, whose result nobody needs. */
static __always_inline void *perfweave_reserve(void *ring, __u64 size, void *failures)
{
    void *record = bpf_ringbuf_reserve(ring, size, 0);
    __u64 word = 0;
    __u64 old;

    if (!record) {
        perfweave_failed(failures);
        return record;
    }
    old = __sync_fetch_and_add(&word, 1);
    asm volatile("" : : "r"(old) : "memory");
    return record;
}

/* bpf_ringbuf_output, with a failure counted. The key is drawn before the reservation here, so a Barrier does not cover it: use a
 * fence. */
static __always_inline long perfweave_output(void *ring, void *data, __u64 size, __u64 flags, void *failures)
{
    long refused = bpf_ringbuf_output(ring, data, size, flags);

    if (refused)
        perfweave_failed(failures);
    return refused;
}

#endif
