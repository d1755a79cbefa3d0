/*
 * perfweave: perf and ring buffers of BPF programs as one stream in proven order.
 *
 * The functions have the shape of libbpf's, so that a tool moves over by renaming: perf_buffer__new becomes pw_buffer__new, and
 * ring_buffer__new becomes pw_ring_buffer__new. What changes for a tool: perfweave(3).
 *
 * Functions return 0 or a count, or a negative error number; those that return a pointer return NULL and set errno.
 * pw_last_error() has the text, and what helps. Pointers that are NULL or not aligned are -EINVAL.
 * No function is for signal handlers. Fork before buffers are made: in a child, calls return -ECHILD, and lent bytes are not there.
 */

#ifndef PERFWEAVE_H
#define PERFWEAVE_H

/* Made by capi/header of the library's source. */

#include <stddef.h>
#include <stdint.h>

#define PW_VERSION "0.1.0"

/* <linux/perf_event.h> */
struct perf_event_attr;

/* Declares options with sz set: PW_OPTS(opts, .key = PW_KEY_PAYLOAD, .key_offset = 0); then give &opts. In C++ and other languages, clear
 * the struct and set sz. */
#define PW_OPTS(name, ...) struct pw_opts name = { .sz = sizeof(struct pw_opts), ##__VA_ARGS__ }

/*
 What an event is.
 */
enum pw_kind {
  /*
   A record: data is what the program wrote.
   */
  PW_RECORD = 0,
  /*
   The kernel dropped count records here, because a ring was full.
   */
  PW_LOST = 1,
  /*
   The numbers first to last, count of them, are missing here.
   */
  PW_GAP = 2,
  /*
   The number last came where first should have come. The record with it follows.
   */
  PW_ANOMALY = 3,
  /*
   Bytes that cannot be a record: data is what was skipped, if it is known.
   */
  PW_DAMAGE = 4,
  /*
   A CPU is not traced: from the time first on, if it is not 0, and for last nanoseconds at most; last is 0 while
   it goes on. A CPU that comes online is not traced until the buffer has noticed it.
   */
  PW_UNTRACED = 6,
  /*
   Everything that was in the rings at a flush has been yielded, if count is 0. If it is 1, a program has not
   committed what it reserved in a ring buffer, and the flush has waited long enough (ten times opts.latency_ns, from 0.1 to 10 s). What
   cannot be proven before it does is held, and comes later.
   */
  PW_FLUSHED = 7,
  /*
   Something failed, and reading goes on: data is the text. Log it.
   */
  PW_PROBLEM = 8,
};

/*
 How far an event's place in the order can be trusted.
 */
enum pw_certainty {
  /*
   All events with smaller keys came before.
   */
  PW_PROVEN = 0,
  /*
   The hold rule only assumes that.
   */
  PW_ASSUMED = 1,
  /*
   An event with a larger key came before: by late_by.
   */
  PW_LATE = 2,
};

/*
 Where the number is that orders events.
 */
enum pw_key {
  /*
   Perf buffers: the kernel's own time of each record. Ring buffers: none, so events keep the order in which
   programs reserved them.
   */
  PW_KEY_DEFAULT = 0,
  /*
   A number of 64 bits at key_offset of the payload: a time, or a counter.
   */
  PW_KEY_PAYLOAD = 1,
};

/*
 When an event may leave although an earlier one may still be on its way.
 */
enum pw_hold {
  /*
   Wait for a grace period of the kernel, some 10 ms. Proves the order of every program that does not sleep. The
   default.
   */
  PW_HOLD_FENCE = 0,
  /*
   Ring buffers: wait for what programs have reserved. Only for programs that draw their key between reserving and
   submitting. Proves in microseconds, and interrupts every CPU before each proof.
   */
  PW_HOLD_RESERVED = 1,
  /*
   The same for programs that reserve by perfweave_reserve() of perfweave.bpf.h, without interrupts. x86-64.
   */
  PW_HOLD_RESERVED_BY_PROGRAMS = 2,
  /*
   Wait for programs that say when they are inside (perfweave_enter() of perfweave.bpf.h) and do not sleep there.
   epochs_fd is their map.
   */
  PW_HOLD_EPOCHS = 3,
  /*
   The key is a counter without holes: wait for the next number. Needs PW_KEY_PAYLOAD.
   */
  PW_HOLD_DENSE = 4,
  /*
   Wait for lag_ns. A guess: events can be late.
   */
  PW_HOLD_LAG = 5,
  /*
   Do not wait. Events can be late.
   */
  PW_HOLD_NONE = 7,
  /*
   Perf buffers: no order at all. Rings are read one by one, by pw_buffer__drain_unordered,
   pw_buffer__consume_buffer or the program itself (pw_buffer__buffer), without a fence. Other calls that read, and
   pw_handle, are -EINVAL. A CPU that comes online later, or comes back, is not traced, and losses that no record tells
   of are not told. Takes five descriptors a CPU. Wait for pw_buffer__buffer_fd with a time-out, or set
   wakeup_events to 1: the last events fill no quarter of a ring.
   */
  PW_HOLD_UNORDERED = 8,
};

/*
 How output is kept from the rings.
 */
enum pw_pause {
  /*
   The kernel turns writers away and counts each record as lost. Not for ring buffers.
   */
  PW_PAUSE_OUTPUT = 0,
  /*
   Slots of the map are emptied. Nothing counts the records. Not for ring buffers.
   */
  PW_PAUSE_SLOTS = 1,
};

/*
 The header of a record of perf_event_open(2): see linux/perf_event.h.
 */
struct perf_event_header;

/*
 The perf buffers of one map, or ring buffers, as one stream in order.

 One thread at a time may be in a call on a buffer, callbacks included: another call returns -EBUSY. Different
 threads may take turns. pw_handle controls a buffer from other threads.
 */
struct pw_buffer;

/*
 Controls a buffer from any thread, and from its callbacks, also while a call on it waits. It may outlive the buffer:
 its functions do nothing then.
 */
struct pw_handle;

/*
 Ring buffers. It is a struct pw_buffer too: see pw_ring_buffer__buffer.
 */
struct pw_ring_buffer;

/*
 Called for each record, as libbpf's perf_buffer_sample_fn. The bytes are valid until the callback returns, and must
 not be written to.
 */
typedef void (*pw_sample_fn)(void *ctx, int cpu, void *data, uint32_t size);

/*
 Called for each loss, as libbpf's perf_buffer_lost_fn, at its place in the order.
 */
typedef void (*pw_lost_fn)(void *ctx, int cpu, unsigned long long count);

/*
 Bytes that lie in a ring. Never write to them.
 */
struct pw_slice {
  /*
   Where. Not NULL if size is not 0.
   */
  const void *data;
  /*
   How many.
   */
  size_t size;
};

/*
 An event.
 */
struct pw_event {
  /*
   enum pw_kind. Later versions can have more kinds: pass over those that you do not know.
   */
  uint32_t kind;
  /*
   enum pw_certainty.
   */
  uint32_t certainty;
  /*
   The number that ordered the event, if has_key is not 0: for perf buffers unless chosen otherwise,
   CLOCK_MONOTONIC in nanoseconds.
   */
  uint64_t key;
  /*
   Whether the event has a key.
   */
  uint32_t has_key;
  /*
   The CPU; -1 if it belongs to no single one, as in a ring buffer that CPUs share.
   */
  int cpu;
  /*
   Ring buffers: the number of the map of a record, in the order of pw_ring_buffer__new and pw_ring_buffer__add,
   from 0 on.
   */
  uint32_t map;
  /*
   For later versions.
   */
  uint32_t reserved;
  /*
   The bytes in place. The second slice is empty unless they wrap at the ring's end.
   */
  struct pw_slice data[2];
  /*
   See enum pw_kind.
   */
  uint64_t count;
  /*
   See enum pw_kind.
   */
  uint64_t first;
  /*
   See enum pw_kind.
   */
  uint64_t last;
  /*
   How late the event is, in units of the key; 0 unless it is late.
   */
  uint64_t late_by;
};

/*
 Called for each event that is no record. ctx is that of the buffer, for ring buffers that of the first map. The
 event is valid until the callback returns.
 */
typedef void (*pw_notice_fn)(void *ctx, const struct pw_event *event);

/*
 Called for each record as it lies in the ring, as libbpf's perf_buffer_event_fn: -2 (LIBBPF_PERF_EVENT_CONT) goes on,
 0 (LIBBPF_PERF_EVENT_DONE) ends the call, and another negative number ends the call, which returns it. The bytes are
 valid until the callback returns, and must not be written to.
 */
typedef int (*pw_event_fn)(void *ctx, int cpu, struct perf_event_header *event);

/*
 Options. Zero is the default of each field. Set sz to sizeof(struct pw_opts): a library that knows more fields takes
 the others as zero, and one that knows fewer refuses only fields that are not zero. PW_OPTS declares one.
 */
struct pw_opts {
  /*
   sizeof(struct pw_opts).
   */
  size_t sz;
  /*
   enum pw_hold.
   */
  uint32_t hold;
  /*
   enum pw_key.
   */
  uint32_t key;
  /*
   Where in the payload the key is, in bytes.
   */
  size_t key_offset;
  /*
   PW_HOLD_LAG: how long, in nanoseconds.
   */
  uint64_t lag_ns;
  /*
   PW_HOLD_EPOCHS: the map of epochs. It is duplicated.
   */
  int epochs_fd;
  /*
   Ring buffers: whether failures_fd is a map.
   */
  uint32_t count_failures;
  /*
   The map in which programs count refused reservations: a BPF_MAP_TYPE_PERCPU_ARRAY of 8 bytes. The kernel does
   not count them.
   */
  int failures_fd;
  /*
   1: each CPU counts in 64 bits, and its number is at numbers_offset of the payload. Missing numbers are then gaps.
   */
  uint32_t has_numbers;
  /*
   Where in the payload that counter is, in bytes.
   */
  size_t numbers_offset;
  /*
   Perf buffers: wake the reader after so many events. 0: when a quarter of a ring was written. libbpf has 1.
   */
  uint32_t wakeup_events;
  /*
   Always 0.
   */
  uint32_t reserved;
  /*
   The most bytes that held records may take which are copied out of rings that fill up, for all rings together.
   Beyond that they stay in their rings, and the kernel drops what does not fit. 0: 64 MiB, and nothing is copied
   out of ring buffers, which outlive their reader. 1: nothing is copied.
   */
  size_t most_held;
  /*
   The longest time in nanoseconds that an event lies in its ring unseen. 0: 100 ms.
   */
  uint64_t latency_ns;
  /*
   Called with each event that is no record, at its place in the order: gaps, damage and others, and losses if
   there is no lost_cb. pw_print_notice is one.
   */
  pw_notice_fn notice_cb;
  /*
   Perf buffers: called for each record instead of sample_cb, as that of perf_buffer__new_raw. It returns -2 to go
   on, and 0 or another negative number to end the call (of a buffer without order, 0 ends its ring). Losses go to
   lost_cb or notice_cb.
   */
  pw_event_fn event_cb;
  /*
   Perf buffers: what else records have (PERF_SAMPLE_TID and others), as attr->sample_type of perf_buffer__new_raw.
   PERF_SAMPLE_RAW comes besides, and PERF_SAMPLE_TIME if the kernel's time orders them, by CLOCK_MONOTONIC. What a
   program may output at once is less by what these take.
   */
  uint64_t sample_type;
  /*
   Perf buffers: how many CPUs to open rings for, as perf_buffer_raw_opts of libbpf. 0: for all. One that is offline
   has no ring until it comes online; without order never.
   */
  size_t cpu_cnt;
  /*
   Which CPUs these are. Indexes count them.
   */
  const int *cpus;
  /*
   The key of the map for each. NULL: the number of the CPU.
   */
  const int *map_keys;
  /*
   Perf buffers: wake the reader after so many bytes, in place of wakeup_events.
   */
  uint64_t wakeup_bytes;
};

/*
 Called for each record of a ring buffer, as libbpf's ring_buffer_sample_fn. A negative number ends the call, which
 returns it.
 */
typedef int (*pw_ring_buffer_sample_fn)(void *ctx, void *data, size_t size);

/*
 Counts of a buffer so far.
 */
struct pw_stats {
  /*
   Records yielded.
   */
  uint64_t records;
  /*
   Late records among them.
   */
  uint64_t late;
  /*
   The largest lateness, in units of the key.
   */
  uint64_t max_late;
  /*
   Records that the kernel dropped, as far as events have told.
   */
  uint64_t lost;
  /*
   Missing numbers, if opts.has_numbers or PW_HOLD_DENSE is set; also those that records in flight may still
   bring.
   */
  uint64_t missing;
  /*
   Damage events.
   */
  uint64_t damaged;
  /*
   Bytes that copies of held records take now, and the most that they took.
   */
  uint64_t memory;
  /*
   See memory.
   */
  uint64_t most_memory;
  /*
   Looks at all rings.
   */
  uint64_t refreshes;
  /*
   Fences that ended, and fences that failed.
   */
  uint64_t fences;
  /*
   See fences.
   */
  uint64_t fences_failed;
  /*
   Events that are held.
   */
  uint64_t held;
};

/*
 An account of everything written by one CPU's programs, or by all.
 */
struct pw_account {
  /*
   The CPU; -1 for all together, and for a ring buffer that CPUs share.
   */
  int cpu;
  /*
   Whether lost is the kernel's own count.
   */
  uint32_t exact;
  /*
   Records yielded.
   */
  uint64_t yielded;
  /*
   Records in the rings that are not yielded yet.
   */
  uint64_t held;
  /*
   Records that the kernel dropped.
   */
  uint64_t lost;
  /*
   Damage events.
   */
  uint64_t damaged;
  /*
   Missing numbers.
   */
  uint64_t missing;
  /*
   Missing numbers that lost does not explain.
   */
  uint64_t unexplained;
  /*
   Nanoseconds in which the CPU was online and not traced.
   */
  uint64_t untraced_ns;
  /*
   Bytes at which its rings would have held all that waited for its rule, so that nothing had to be copied out of
   them. 0 if nothing had to wait.
   */
  uint64_t needed;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The text of the last error that a call of this thread returned, and behind "hint: " what helps. Empty if there was
 none. It is valid until the thread's next call into this library. Never NULL. Never blocks.
 */
const char *pw_last_error(void);

/*
 The version of the library, as "0.1.0". Compare it to PW_VERSION, that of the header. Never blocks.
 */
const char *pw_version(void);

/*
 Opens the perf buffers of a BPF_MAP_TYPE_PERF_EVENT_ARRAY, one for each CPU, as perf_buffer__new of libbpf does.
 Events come in proven order: earlier ones of other CPUs first.

 bytes: the size of each CPU's buffer. It is rounded up to a power of two pages. libbpf counts pages instead. Held
 events stay in it, so it needs room for what a CPU writes in some 50 ms. 0: 512 KiB. sample_cb, lost_cb: called by
 pw_buffer__poll and pw_buffer__consume with ctx. Either may be NULL. opts: NULL for the defaults. The map is
 duplicated. The kernel gives each slot of a map to one reader: free libbpf's before. A program may output 65,508
 bytes at once: more makes the kernel overwrite unread records.

 Returns NULL with errno set: EPERM; EBADF, EINVAL for a descriptor that is no such map or a wrong option; EBUSY if
 another reader has the map; EMFILE, ENOMEM for limits; EOPNOTSUPP if no fence is possible here. pw_last_error says
 more. Blocks for system calls only, some for each CPU.
 */
struct pw_buffer *pw_buffer__new(int map_fd,
                                 size_t bytes,
                                 pw_sample_fn sample_cb,
                                 pw_lost_fn lost_cb,
                                 void *ctx,
                                 const struct pw_opts *opts);

/*
 Frees a buffer. In a call on the buffer, as from its callback, the call ends after this event and frees the buffer
 then. NULL is allowed. Events that are held or unread are dropped: pw_buffer__flush and pw_buffer__poll give them
 before. May block for a grace period that is under way, some 10 ms.
 */
void pw_buffer__free(struct pw_buffer *buffer);

/*
 Opens a ring buffer, as ring_buffer__new of libbpf does: a BPF_MAP_TYPE_RINGBUF, or an array or hash of them whose
 keys are CPUs.

 The kernel puts no time into these records. Set opts.key to where your programs put one; then choose opts.hold by
 where they draw it. Without a key, one BPF_MAP_TYPE_RINGBUF has the order in which programs have reserved, and
 several have none. Nobody else may read the map. It is duplicated.

 Returns NULL with errno set: EBADF, EINVAL for a descriptor that is no such map or a wrong option; EPERM; EMFILE,
 ENOMEM. Blocks for system calls only.
 */
struct pw_ring_buffer *pw_ring_buffer__new(int map_fd,
                                           pw_ring_buffer_sample_fn sample_cb,
                                           void *ctx,
                                           const struct pw_opts *opts);

/*
 Adds another ring buffer with its own callback, as ring_buffer__add of libbpf does. Their events are one stream, so
 opts.key is needed. Returns 0, or -EBUSY once the first call has read from the buffer, or as pw_ring_buffer__new.
 Blocks for system calls only.
 */
int pw_ring_buffer__add(struct pw_ring_buffer *rb,
                        int map_fd,
                        pw_ring_buffer_sample_fn sample_cb,
                        void *ctx);

/*
 Frees a ring buffer, as pw_buffer__free.
 */
void pw_ring_buffer__free(struct pw_ring_buffer *rb);

/*
 The same object as a struct pw_buffer, for the functions that only that has. Do not free it twice. Never
 blocks.
 */
struct pw_buffer *pw_ring_buffer__buffer(struct pw_ring_buffer *rb);

/*
 Makes a handle. Free it with pw_handle__free. NULL with errno set, as pw_buffer__poll. Does not block.
 */
struct pw_handle *pw_buffer__handle(const struct pw_buffer *buffer);

/*
 Asks the buffer for everything that is in the rings now: pw_buffer__poll or pw_buffer__next give it, then a
 PW_FLUSHED, then newer events. Returns 0 or as pw_buffer__poll. May be called in a callback and on any thread. Does
 not block.
 */
int pw_buffer__flush(const struct pw_buffer *buffer);

/*
 As pw_buffer__flush.
 */
int pw_handle__flush(const struct pw_handle *handle);

/*
 Ends the stream: a call that waits returns -ECANCELED at once, and so does each later one. Events that are held are
 dropped. Returns 0. Does not block.
 */
int pw_handle__close(const struct pw_handle *handle);

/*
 Keeps output from the rings. how: enum pw_pause. Returns 0, -EINVAL, -EOPNOTSUPP for ring buffers, or the kernel's
 error. Blocks for system calls only, one for each CPU.
 */
int pw_handle__pause(const struct pw_handle *handle,
                     uint32_t how);

/*
 Lets output into the rings again. Returns as pw_handle__pause.
 */
int pw_handle__resume(const struct pw_handle *handle);

/*
 Ends the stream so many milliseconds from now: calls yield what is in the rings then, and return -ETIME, or
 -EINPROGRESS if that is not complete. Negative: never, and a stream that has ended so goes on. Returns 0. Does not block.
 */
int pw_handle__set_deadline(const struct pw_handle *handle,
                            long long timeout_ms);

/*
 Frees a handle. NULL is allowed. The buffer goes on. Does not block.
 */
void pw_handle__free(struct pw_handle *handle);

/*
 Makes a buffer of perf events that the program has opened itself, with settings of its own. As perf_buffer__new_raw of
 libbpf, which opens them.

 event_fds: the events, as many as opts.cpu_cnt, each of the CPU in opts.cpus. All were opened with attr, whose size is
 set. The program puts them into slots of its maps, enables and closes them: they are duplicated. bytes: the size of
 each ring, without its header page, a power of two pages. An event that is mapped has that of its mapping, and nobody
 else may move its data_tail.

 Unless opts.key says otherwise, attr needs PERF_SAMPLE_TIME. With PERF_FORMAT_LOST in attr->read_format, without
 PERF_FORMAT_GROUP, losses after the last record are told too; then no other event may write into these rings. A CPU
 that comes back is the program's to open. attr may have neither write_backward nor inherit_stat, and precise_ip only
 with use_clockid. opts.sample_type, map_keys and wakeup_events say nothing here and must be 0,
 as PW_HOLD_UNORDERED.

 Returns NULL with errno set: EBADF; EINVAL for a wrong option, or another size; EPERM, ENOMEM for limits. Blocks for
 system calls only.
 */
struct pw_buffer *pw_buffer__adopt(const int *event_fds,
                                   size_t bytes,
                                   const struct perf_event_attr *attr,
                                   pw_sample_fn sample_cb,
                                   pw_lost_fn lost_cb,
                                   void *ctx,
                                   const struct pw_opts *opts);

/*
 Pins the map of a buffer at a path of a BPF file system, as bpf_map__pin of libbpf: other programs open it there, and it
 outlives this one. The slots of a perf event array do not: the kernel empties them once this program has closed the map.
 unlink(2) takes the path away.

 Returns 0; -EINVAL for several ring buffers, for a buffer of pw_buffer__adopt, and, with -EPERM, for a path outside of
 a BPF file system; -EEXIST; -ENOENT; -ECHILD. Blocks for a system call only.
 */
int pw_buffer__pin(struct pw_buffer *buffer,
                   const char *path);

/*
 Waits for events and calls back with all that can be yielded, in order. As perf_buffer__poll of libbpf.

 timeout_ms: how long to wait for the first event; 0 for not at all, -1 for as long as it takes. It waits for a
 second at most, so that a program sees its own flags: 0 is no error. Returns how many records there were; 0 when the
 time is over, or if there were notices only; -EINTR for a signal; -ECANCELED or -ETIME once the buffer is closed or
 its deadline over, -EINPROGRESS if the latter is not complete, because a program has not committed what it reserved
 in a ring buffer; -EBUSY in a callback of this buffer or while another thread is in a call on it; -ECHILD in a
 child of fork; -ENOTRECOVERABLE for a fault of the library itself, and for each later call on this buffer: free it.
 For an error after which reading goes on (-EAGAIN and others), opts.notice_cb gets PW_PROBLEM instead, if it is set.
 It blocks until then, and as long as callbacks take. A callback must return: longjmp and exceptions out of it are
 undefined behaviour.
 */
int pw_buffer__poll(struct pw_buffer *buffer,
                    int timeout_ms);

/*
 Calls back with everything that is in the rings now, in proven order, and leaves nothing. As perf_buffer__consume of
 libbpf, for a program that reads now and then, and before it ends. PW_FLUSHED is told only of a call that has ended
 early.

 Returns as pw_buffer__poll, but each error, also if reading goes on: call it again. -EINPROGRESS if a program has not
 committed what it reserved in a ring buffer. Blocks for a proof, 10 to 20 ms unless opts.hold says otherwise, and as
 long as callbacks take; signals do not end it. pw_buffer__poll with a time-out of 0 does not wait, and leaves what is
 not proven yet.
 */
int pw_buffer__consume(struct pw_buffer *buffer);

/*
 A descriptor that becomes readable when there may be events. Wait for it no longer than pw_buffer__timeout says,
 then call pw_buffer__poll with a time-out of 0 until it returns 0, also after a wait in vain. It belongs to the buffer: do not close
 it. Returns a negative number as pw_buffer__poll. Does not block.
 */
int pw_buffer__epoll_fd(const struct pw_buffer *buffer);

/*
 How many milliseconds to wait at most for pw_buffer__epoll_fd, rounded up. Does not block.
 */
int pw_buffer__timeout(struct pw_buffer *buffer);

/*
 As pw_buffer__poll, for ring buffers. A negative number of a callback ends the call, which returns it.
 */
int pw_ring_buffer__poll(struct pw_ring_buffer *rb,
                         int timeout_ms);

/*
 As pw_buffer__consume, for ring buffers.
 */
int pw_ring_buffer__consume(struct pw_ring_buffer *rb);

/*
 As pw_buffer__epoll_fd, for ring buffers.
 */
int pw_ring_buffer__epoll_fd(const struct pw_ring_buffer *rb);

/*
 Lends the next event, of any kind, in place: its bytes lie in the ring, and are valid until the next call on this
 buffer. It waits as pw_buffer__poll. The callbacks are not called.

 event_size: sizeof(struct pw_event). Returns 1, 0 when the time is over, or a negative number as pw_buffer__poll.
 Errors after which reading goes on are events (PW_PROBLEM).
 */
int pw_buffer__next(struct pw_buffer *buffer,
                    int timeout_ms,
                    struct pw_event *event,
                    size_t event_size);

/*
 Lends up to most events at once. All are valid until the next call on this buffer.

 events: an array of most elements of event_size bytes, which is sizeof(struct pw_event).
 Returns how many there are, or as pw_buffer__next.
 */
int pw_buffer__batch(struct pw_buffer *buffer,
                     int timeout_ms,
                     struct pw_event *events,
                     size_t event_size,
                     int most);

/*
 Copies the statistics. stats_size: sizeof(struct pw_stats). Returns 0 or a negative number as pw_buffer__poll. Does
 not block.
 */
int pw_buffer__stats(struct pw_buffer *buffer,
                     struct pw_stats *stats,
                     size_t stats_size);

/*
 Copies the ledger: what was written until now, and what came of it. First the account of all CPUs together, then
 that of each.

 accounts: an array of most elements of account_size bytes, which is sizeof(struct pw_account). Returns how many
 accounts there are, which can be more than most, or a negative number as pw_buffer__poll. Asks the kernel for its
 counts of losses, which interrupts every CPU. Events lent before are no longer valid. Blocks for system calls only.
 */
int pw_buffer__ledger(struct pw_buffer *buffer,
                      struct pw_account *accounts,
                      size_t account_size,
                      int most);

/*
 For opts.notice_cb: prints what an event says on standard error, as one line. It prints nothing for PW_RECORD,
 and nothing for PW_FLUSHED unless events are missing. ctx is not used. Blocks as write(2) does.
 */
void pw_print_notice(void *ctx,
                     const struct pw_event *event);

/*
 How many indexes a perf buffer has, as perf_buffer__buffer_cnt of libbpf: one for each CPU that was online in
 pw_buffer__new, in their order, or for each of opts.cpus. A CPU that comes online later gets the next index, unless
 CPUs were chosen or the buffer has no order. Returns their number, or a negative number as pw_buffer__poll; -EINVAL
 for ring buffers. Does not block.
 */
int pw_buffer__buffer_cnt(const struct pw_buffer *buffer);

/*
 The descriptor of the perf event of an index, as perf_buffer__buffer_fd of libbpf. It belongs to the buffer: do not
 close it. It becomes readable as opts.wakeup_events says, and polling consumes that: check the ring before you wait
 again. If the buffer has an order, wait for pw_buffer__epoll_fd instead, which misses what you poll here.

 Returns it, or -EINVAL for a wrong index and for ring buffers, -ENOENT for a CPU without a ring, or as
 pw_buffer__poll. Does not block.
 */
int pw_buffer__buffer_fd(const struct pw_buffer *buffer,
                         size_t index);

/*
 The memory of the ring of an index, as perf_buffer__buffer of libbpf, for a reader of your own.

 base: gets the address of the header page, a struct perf_event_mmap_page. The bytes of data follow at its
 data_offset. size: gets how many these are; the header page is not among them, as in libbpf. Both are valid until
 pw_buffer__free. Load data_head with acquire semantics.

 In a buffer with PW_HOLD_UNORDERED you may also store data_tail, with release semantics. Then call neither
 pw_buffer__consume_buffer nor pw_buffer__drain_unordered, which are -EINVAL then. Unless opts.sample_type is set,
 its samples have after the header a length of 32 bits, and what the program wrote; other records are as in
 perf_event_open(2), with sample_id_all. A record may go on at the begin of the data. In a buffer with an order only
 the library stores data_tail, and records can have a time.

 Returns 0, or as pw_buffer__buffer_fd. Does not block.
 */
int pw_buffer__buffer(const struct pw_buffer *buffer,
                      size_t index,
                      void **base,
                      size_t *size);

/*
 Whether there is something to read without waiting: 1, or 0. If the buffer has an order, that is an event whose order
 is proven, of any kind; it refreshes as pw_buffer__consume does, and events lent before are no longer valid. libbpf
 has none. Returns a negative number as pw_buffer__poll does without opts.notice_cb: -EAGAIN is an error after which
 reading goes on. Does not block.
 */
int pw_buffer__readable(struct pw_buffer *buffer);

/*
 Calls back with what is in the ring of an index, in the order of that ring, as perf_buffer__consume_buffer of libbpf.
 For buffers with PW_HOLD_UNORDERED. It reads up to where the kernel writes at the call, so it ends.

 Returns how many records there were (libbpf: 0), or -EINVAL for a wrong index and for other buffers, -ENOENT for a
 CPU without a ring, or as pw_buffer__poll. Blocks as long as callbacks take.
 */
int pw_buffer__consume_buffer(struct pw_buffer *buffer,
                              size_t index);

/*
 The same for all rings, the one with the least free space first: as perf_buffer__consume of libbpf, which takes them
 by CPU. For a program that only counts, or wants to lose as little as possible. Returns as pw_buffer__consume_buffer.
 */
int pw_buffer__drain_unordered(struct pw_buffer *buffer);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PERFWEAVE_H */
