//! The words shared with the kernel and with BPF programs, and nothing else.
//!
//! Names follow perf: the kernel moves `head`, this crate moves `tail`. (In most ring libraries it is the other way
//! round.) A BPF ring buffer calls them producer and consumer position.
//!
//! The protocol of a perf ring is that of `tools/include/linux/ring_buffer.h`:
//!
//! ```text
//!   kernel                             user
//!
//!   if (LOAD data_tail) {              LOAD data_head
//!             (A)                                (C)
//!     STORE data                       LOAD data
//!             (B)                                (D)
//!     STORE data_head                  STORE data_tail
//!   }
//! ```
//!
//! A pairs with D and B with C. That file licenses the spelling used here: "instead of B, C, D we could also use
//! smp_store_release() in B and D as well as smp_load_acquire() in C".
//!
//! A BPF ring buffer has a third word, the header of each reservation (`kernel/bpf/ringbuf.c`):
//!
//! ```text
//!   __bpf_ringbuf_reserve              user
//!     smp_load_acquire(consumer_pos)     smp_load_acquire(producer_pos)   E
//!     STORE hdr->len = len | BUSY        LOAD hdr->len: acquire           F
//!     smp_store_release(producer_pos)    LOAD data
//!   the program: STORE data              smp_store_release(consumer_pos)  D
//!   bpf_ringbuf_commit
//!     xchg(hdr->len, len)
//! ```

use crate::instrument::fence;
pub(super) use crate::instrument::{AtomicU32, AtomicU64, Ordering};

/// Reads `data_head` (C), or the producer position of a BPF ring buffer (E).
///
/// Acquire pairs with (B), `smp_wmb(); WRITE_ONCE(rb->user_page->data_head, head)` in `perf_output_put_handle`
/// (`kernel/events/ring_buffer.c`): a reader that sees the head sees the bytes before it. For a BPF ring buffer, it
/// pairs with `smp_store_release(&rb->producer_pos, new_prod_pos)` in `__bpf_ringbuf_reserve`: a reader that sees the
/// position sees the headers before it.
#[inline]
pub(super) fn load_head(head: &AtomicU64) -> u64 {
    head.load(Ordering::Acquire)
}

/// Stores `data_tail` (D).
///
/// Release pairs with (A), `READ_ONCE(rb->user_page->data_tail)` and the control dependency after it in
/// `__perf_output_begin` (`kernel/events/ring_buffer.c`): our reads of the bytes before the tail are over before the
/// kernel writes there. For a BPF ring buffer, it pairs with `smp_load_acquire(&rb->consumer_pos)` in
/// `__bpf_ringbuf_reserve`.
#[inline]
pub(super) fn store_tail(tail: &AtomicU64, position: u64) {
    tail.store(position, Ordering::Release);
}

/// Stores the consumer position of a BPF ring buffer (D), before the reader looks for the last time and sleeps.
///
/// `bpf_ringbuf_commit` makes its record visible by a full barrier, then loads this position, and wakes the reader only
/// if that has reached the record. Without a full barrier here too, the reader could still find the record busy and the
/// program the old position: nobody would wake the reader.
#[inline]
pub(super) fn store_consumer(tail: &AtomicU64, position: u64) {
    store_tail(tail, position);
    // SeqCst pairs with the kernel's xchg.
    fence(Ordering::SeqCst);
}

/// Reads a word that only this crate writes, or that is not shared yet: the tail a ring starts from.
#[inline]
pub(super) fn load_own(word: &AtomicU64) -> u64 {
    // Relaxed: no other memory depends on it.
    word.load(Ordering::Relaxed)
}

/// Reads the header of a reservation in a BPF ring buffer (F).
///
/// Acquire pairs with `xchg(&hdr->len, new_len)` in `bpf_ringbuf_commit` (`kernel/bpf/ringbuf.c`): a reader that sees
/// that the reservation is committed sees the program's data.
#[inline(always)]
pub(super) fn load_reservation(header: &AtomicU32) -> u32 {
    header.load(Ordering::Acquire)
}

/// A program's half, for `sim` and models: reserves, or commits.
pub(super) fn store_reservation(header: &AtomicU32, word: u32) {
    // SeqCst stands for the kernel's xchg; pairs with `load_reservation`.
    header.store(word, Ordering::SeqCst);
}

/// Reads the word in which the programs of a CPU say whether they are inside.
///
/// Acquire pairs with the fully ordered atomics of `leave_epoch`, or of `perfweave_leave` in `perfweave.bpf.h`: a
/// reader that sees that a program has left also sees the head that was stored before.
#[inline]
pub(super) fn load_epoch(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

/// A program's half, for `sim` and models: it enters before it draws its key.
pub(super) fn enter_epoch(word: &AtomicU64) {
    // SeqCst stands for the full barrier of BPF's atomic with fetch: others see that it entered before the key is
    // drawn.
    word.fetch_add(1, Ordering::SeqCst);
}

/// A program's half, for `sim` and models: it leaves after its output. The last one to leave begins a new generation.
pub(super) fn leave_epoch(word: &AtomicU64) {
    let seen = word.load(Ordering::Relaxed);
    if seen as u32 == 1 {
        let next = seen.wrapping_sub(1).wrapping_add(1 << 32);
        // SeqCst stands for the full barrier of BPF's compare-and-exchange. Pairs with `load_epoch`.
        if word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return;
        }
    }
    // Another program entered or left meanwhile. If a generation ended, this does not count it, but the depth is right.
    word.fetch_sub(1, Ordering::SeqCst);
}

/// The kernel's half, for `sim` and for the model below: publishes a head (B).
#[inline]
pub(super) fn store_head(head: &AtomicU64, position: u64) {
    // Release stands for the kernel's smp_wmb() before WRITE_ONCE; pairs with `load_head`.
    head.store(position, Ordering::Release);
}

/// The kernel's half, for `sim` and for the model below: reads the tail before writing (A).
#[inline]
pub(super) fn load_tail(tail: &AtomicU64) -> u64 {
    // Acquire stands for the kernel's control dependency; pairs with `store_tail`.
    tail.load(Ordering::Acquire)
}

#[cfg(all(test, loom))]
mod model {
    use super::{
        AtomicU32, AtomicU64, load_head, load_reservation, load_tail, store_head, store_reservation, store_tail,
    };
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// A ring of two one-word records: small enough to wrap and to be full within a few steps. A record holds its own
    /// position.
    struct Shared {
        head: AtomicU64,
        tail: AtomicU64,
        data: [UnsafeCell<u64>; 2],
    }

    const SIZE: u64 = 2;

    /// The kernel's half: writes what fits, drops what does not.
    fn kernel(shared: &Shared, attempts: u64) {
        let mut head = 0;
        for _ in 0..attempts {
            if head - load_tail(&shared.tail) < SIZE {
                shared.data[(head % SIZE) as usize].with_mut(|slot| {
                    // SAFETY: the tail read above says that this slot was given back; loom checks the claim.
                    unsafe { *slot = head }
                });
                head += 1;
                store_head(&shared.head, head);
            }
        }
    }

    /// Refreshes, reads everything up to the head, and only then gives it back. Returns the new tail.
    fn refresh(shared: &Shared, tail: u64) -> u64 {
        let head = load_head(&shared.head);
        for position in tail..head {
            shared.data[(position % SIZE) as usize].with(|slot| {
                // SAFETY: the slot lies in [tail, head); loom checks the claim.
                let value = unsafe { *slot };
                assert_eq!(value, position, "a record read before it was published, or after it was overwritten");
            });
        }
        store_tail(&shared.tail, head);
        head
    }

    fn run(attempts: u64, refreshes: u64) {
        loom::model(move || {
            let shared = Arc::new(Shared {
                head: AtomicU64::new(0),
                tail: AtomicU64::new(0),
                data: [UnsafeCell::new(u64::MAX), UnsafeCell::new(u64::MAX)],
            });
            let producer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || kernel(&shared, attempts))
            };
            let mut tail = 0;
            for _ in 0..refreshes {
                tail = refresh(&shared, tail);
            }
            producer.join().unwrap();
        });
    }

    /// Dies (seen once each) when `load_head`, `store_tail`, `store_head` or `load_tail` is made Relaxed, and when
    /// `refresh` stores the tail before it reads.
    #[test]
    fn records_are_read_whole_while_the_ring_wraps_and_fills() {
        run(4, 3);
    }

    /// The merge advances the tail late: all bytes that were read stay unchanged until then.
    #[test]
    fn what_is_held_is_not_overwritten() {
        run(5, 1);
    }

    const BUSY: u32 = 1 << 31;

    /// A BPF ring buffer of two places, each with a header and one word of data.
    struct Buffer {
        produced: AtomicU64,
        consumed: AtomicU64,
        headers: [AtomicU32; 2],
        data: [UnsafeCell<u64>; 2],
    }

    impl Buffer {
        /// A program reserves, fills and submits, unless there is no space.
        fn output(&self, value: u64) {
            let at = self.produced.load(super::Ordering::Relaxed);
            if at - load_tail(&self.consumed) == SIZE {
                return;
            }
            let place = (at % SIZE) as usize;
            store_reservation(&self.headers[place], 1 | BUSY);
            store_head(&self.produced, at + 1);
            self.data[place].with_mut(|data| {
                // SAFETY: the reservation is busy, and the consumer has given the place back; loom checks the claim.
                unsafe { *data = value }
            });
            store_reservation(&self.headers[place], 1);
        }

        /// Reads what is committed, up to the first busy reservation, and gives it back.
        fn read(&self, mut at: u64, all: &mut Vec<u64>) -> u64 {
            let reserved = load_head(&self.produced);
            while at < reserved && load_reservation(&self.headers[(at % SIZE) as usize]) & BUSY == 0 {
                self.data[(at % SIZE) as usize].with(|data| {
                    // SAFETY: committed, and not given back; loom checks the claim.
                    all.push(unsafe { *data })
                });
                at += 1;
            }
            store_tail(&self.consumed, at);
            at
        }
    }

    /// Dies when `load_reservation` is made Relaxed, when the reader takes what is busy, and when it gives a place back
    /// before it reads it.
    #[test]
    fn reservations_are_read_once_they_are_committed() {
        loom::model(|| {
            let buffer = Arc::new(Buffer {
                produced: AtomicU64::new(0),
                consumed: AtomicU64::new(0),
                headers: [AtomicU32::new(0), AtomicU32::new(0)],
                data: [UnsafeCell::new(0), UnsafeCell::new(0)],
            });
            let producer = {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || (1..=3).for_each(|value| buffer.output(value)))
            };
            let mut all = Vec::new();
            let mut at = 0;
            for _ in 0..2 {
                at = buffer.read(at, &mut all);
            }
            producer.join().unwrap();
            buffer.read(at, &mut all);
            assert!(all.len() >= 2 && all.is_sorted(), "{all:?}");
        });
    }

    /// One CPU reserves before it draws its key, and is interrupted by the reader; another has drawn a larger key and
    /// committed it. The reader, which has seen the larger key, sees the reservation after the interrupt's answer.
    ///
    /// The interrupt is a word that the CPU answers between two of its instructions. Dies (seen once) without it: the
    /// store of the producer position is then still in the store buffer.
    #[test]
    fn an_answered_interrupt_shows_every_earlier_reservation() {
        loom::model(|| {
            let clock = Arc::new(AtomicU64::new(0));
            let (produced, answer, seen) =
                (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let slow = {
                let (clock, produced, answer) = (Arc::clone(&clock), Arc::clone(&produced), Arc::clone(&answer));
                thread::spawn(move || {
                    store_head(&produced, 1);
                    // The clock orders nothing: it is read, and no store waits for that.
                    let key = clock.fetch_add(1, super::Ordering::Relaxed);
                    // `csd_unlock()` in the interrupt's handler is a release (kernel/smp.c).
                    answer.store(1, super::Ordering::Release);
                    key
                })
            };
            let quick = {
                let (clock, seen) = (Arc::clone(&clock), Arc::clone(&seen));
                thread::spawn(move || {
                    let key = clock.fetch_add(1, super::Ordering::Relaxed);
                    // Committed: the reader's Acquire load of the header.
                    seen.store(key + 1, super::Ordering::Release);
                })
            };
            let largest = seen.load(super::Ordering::Acquire);
            // `csd_lock_wait()` is an acquire.
            let answered = answer.load(super::Ordering::Acquire) == 1;
            let reserved = load_head(&produced);
            let key = slow.join().unwrap();
            quick.join().unwrap();
            if largest > key + 1 && answered {
                assert_eq!(reserved, 1, "a smaller key whose reservation was not seen");
            }
        });
    }
}
