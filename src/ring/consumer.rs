//! The consumer's half of one ring: its tail and head, and the bytes between them.

pub(super) mod framing;
pub(super) mod perf;
pub(super) mod ring_buffer;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::error::Error;
use crate::ring::memory::Memory;
use crate::ring::words::{self, AtomicU64};
use crate::ring::{Bytes, Fault, Framing, Header, Properties, RingKind, with_framing};
use crate::sys::fork::Owner;
use crate::sys::machine;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

fn duplicate(fd: BorrowedFd<'_>) -> Result<Arc<OwnedFd>, Error> {
    fd.try_clone_to_owned().map(Arc::new).map_err(Error::cannot("duplicate an event's file descriptor"))
}

/// A perf ring buffer or a BPF ring buffer, and the consumer's position in it.
///
/// A program can adopt a ring and hand it to [`Rings::add`](crate::Rings::add).
#[derive(Debug)]
pub struct Ring {
    /// `data_head` and `data_tail`, or the producer and the consumer position of a BPF ring buffer. INVARIANT (I1):
    /// valid and 8-aligned while `memory` lives.
    head_word: NonNull<AtomicU64>,
    tail_word: NonNull<AtomicU64>,
    /// INVARIANT (I1): `mapped` bytes, mapped while `memory` lives.
    data: NonNull<u8>,
    /// `size`, or twice that if the data area is mapped twice in a row, so that no record wraps.
    mapped: u64,
    /// INVARIANT: a power of two, at least 8, at most 2^31; and one less.
    size: u64,
    mask: u64,
    /// The shared words hold `base` more than the logical positions.
    base: u64,
    /// INVARIANT (I2, I3).
    tail: u64,
    /// INVARIANT (I3). Nothing before it changes until it is released.
    head: u64,
    /// Where the kernel reserves next, as the last refresh found it: `head`, or after it where a program has reserved
    /// bytes of a BPF ring buffer and not committed them. INVARIANT: `head <= reserved <= tail + size`.
    reserved: u64,
    kind: RingKind,
    /// Whether the kernel writes backwards and ignores the tail. `tail` and `head` bound the readable bytes then,
    /// counted from the newest record back.
    is_backward: bool,
    /// The number of the map of a BPF ring buffer, which is the same for all descriptors of it.
    map: Option<u32>,
    /// The header page.
    page: NonNull<u8>,
    /// Up to where the memory of a recording was given back to the system. `None`: a kernel writes there again.
    discarded: Option<u64>,
    /// The process that owns the memory.
    owner: Owner,
    /// Last but one, so that the memory is unmapped before the event is closed.
    memory: Memory,
    /// The event that becomes readable when the ring is written to. Closed last.
    fd: Option<Arc<OwnedFd>>,
}

/// So many bytes of a recording are given back to the system at once.
const DISCARDED: u64 = 1 << 20;

/// The low bits of a position. Of a position that is less than 2^34 bytes before a known one they tell it.
pub(crate) const LOW_POSITION: u64 = (1 << 34) - 1;

const _: () = assert!(LOW_POSITION >= 2 * Ring::MAX);

// SAFETY: the pointers lead to memory that belongs to the process, not to a thread, and `&Ring` only reads what I3 and
// I5 keep still.
unsafe impl Send for Ring {}
// SAFETY: as for Send; everything that changes takes `&mut Ring`.
unsafe impl Sync for Ring {}

impl Ring {
    /// The longest ring taken: a record's length and place must fit 32 bits.
    pub(crate) const MAX: u64 = 1 << 31;

    pub(crate) fn kind(&self) -> RingKind {
        self.kind
    }

    pub(crate) fn properties(&self) -> &'static Properties {
        self.kind.properties()
    }

    /// Bytes of the data area.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The end of the readable bytes, as the last refresh found it.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Where the kernel reserved next at the last refresh. Between the head and this position, at least one program of
    /// a BPF ring buffer has reserved bytes and not committed them. For a perf ring it is the head.
    #[inline]
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes that the kernel could not use at the last refresh.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.reserved - self.tail
    }

    /// The header page, for handing out.
    pub(crate) fn page(&self) -> NonNull<u8> {
        self.page
    }

    /// The event that becomes readable when the ring is written to.
    pub(crate) fn fd(&self) -> Option<&Arc<OwnedFd>> {
        self.fd.as_ref()
    }

    /// Drops the event, as if the ring had been adopted without one.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn forget_fd(&mut self) {
        self.fd = None;
    }

    /// `data_head` and `data_tail` as they are now.
    pub(crate) fn words(&self) -> (u64, u64) {
        // SAFETY: (I1)
        let head = words::load_head(unsafe { self.head_word.as_ref() });
        (head, self.base.wrapping_add(self.tail))
    }

    /// The position at which the kernel writes now. If its head cannot be right, the largest possible position.
    pub(crate) fn written(&self) -> u64 {
        let (head, _) = self.words();
        head.wrapping_sub(self.base).clamp(self.reserved, self.tail + self.size)
    }

    /// Whether a quarter of the ring was written since the last refresh of its head. A quarter is also what wakes a
    /// sleeping reader. A head that cannot be right gives false.
    pub(crate) fn fills_up(&self) -> bool {
        let head = self.words().0.wrapping_sub(self.base);
        let (new, used) = (head.wrapping_sub(self.reserved), head.wrapping_sub(self.tail));
        new <= used && used <= self.size && new >= self.size / 4
    }

    /// The position up to which all bytes were given back to the kernel.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Loads the head. A head that cannot be right is a fault and is not taken; [`Ring::skip_to_head`] goes on after
    /// it.
    #[inline]
    pub(crate) fn refresh(&mut self) -> Result<(), Fault> {
        self.look()?;
        self.pass_committed(u64::MAX)
    }

    /// The first half of a refresh. The second is [`Ring::pass_committed`], which may be done in parts.
    #[inline]
    pub(crate) fn look(&mut self) -> Result<(), Fault> {
        let head = self.load_head().wrapping_sub(self.base);
        let ahead = head.wrapping_sub(self.tail);
        if ahead > self.size || ahead < self.reserved - self.tail {
            return Err(Fault::Head { from: self.reserved, to: head, size: self.size });
        }
        with_framing!(self.kind, F => F::look(self, head))
    }

    /// Whether no kernel writes into it.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self.memory, Memory::Simulated(_))
    }

    #[inline]
    fn load_head(&mut self) -> u64 {
        if let Memory::Simulated(pages) = &self.memory
            && pages.is_hostile()
        {
            // SAFETY: every slice of this ring borrows it, and we have it exclusively.
            unsafe { pages.apply_edits() };
        }
        // SAFETY: (I1)
        let head = words::load_head(unsafe { self.head_word.as_ref() });
        // Headers of reservations are aligned, whatever the position says.
        if self.properties().reserves { head & !7 } else { head }
    }

    /// Gives back everything up to the last head seen, skips what lies between that and the kernel's head, and goes on
    /// from there.
    pub(crate) fn skip_to_head(&mut self) {
        let head = self.load_head();
        self.tail = self.head;
        self.base = head.wrapping_sub(self.head);
        self.reserved = self.head;
        self.store_tail();
    }

    /// Whether this is the process that took it up, and no forked child.
    pub(crate) fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    /// Gives bytes back to the kernel: everything before `tail`. Not in a forked child.
    ///
    /// # Panics
    /// If the tail would move backwards or past the head.
    #[inline]
    pub(crate) fn release(&mut self, tail: u64) {
        assert!((self.tail..=self.head).contains(&tail), "a tail between tail and head");
        if tail != self.tail {
            self.tail = tail;
            self.store_tail();
            if self.discarded.is_some_and(|from| tail - from >= DISCARDED) {
                self.discard();
            }
        }
    }

    /// Nothing more is written into this ring, so the memory of what was read goes back to the system.
    pub(crate) fn discards(&mut self) {
        self.discarded = Some(0);
    }

    #[cold]
    fn discard(&mut self) {
        let (Some(from), Memory::Simulated(pages)) = (self.discarded, &self.memory) else { return };
        // SAFETY: (I3) it lies before the tail, where no slice reads, and a recording is read once it is written.
        unsafe { pages.discard(from, self.tail) };
        // Whole pages are given back: that in which the tail lies is not, and may stay.
        self.discarded = Some(self.tail & !(machine::page_size() as u64 - 1));
    }

    #[inline]
    fn store_tail(&mut self) {
        debug_assert!(!self.is_backward, "mapped read-only");
        // SAFETY: (I1)
        let word = unsafe { self.tail_word.as_ref() };
        let position = self.base.wrapping_add(self.tail);
        if self.properties().wakes_when_drained {
            words::store_consumer(word, position)
        } else {
            words::store_tail(word, position)
        }
    }

    /// The bytes at a position. They wrap at the end of the ring.
    ///
    /// # Panics
    /// If they do not lie between tail and head.
    #[inline]
    pub(crate) fn bytes(&self, position: u64, len: u64) -> Bytes<'_> {
        // No overflow: positions count bytes since the ring was adopted.
        assert!(
            position >= self.tail && position <= self.head && len <= self.head - position,
            "bytes between tail and head"
        );
        let at = self.index(position);
        let to_end = self.mapped - at;
        // SAFETY: `at` is below `size` (I1).
        let start = unsafe { self.data.add(at as usize) };
        if len <= to_end {
            // SAFETY: within the data area (I1), and still while `self` is borrowed (I3, I5).
            let run = unsafe { std::slice::from_raw_parts(start.as_ptr(), len as usize) };
            return Bytes::from(run);
        }
        Bytes::new(self.part(at, self.size - at), self.part(0, len - to_end))
    }

    /// The bytes from a position to the head, or to where their memory ends: those in which a loop looks for plain
    /// samples.
    #[inline]
    pub(crate) fn up_to_head(&self, position: u64) -> &[u8] {
        self.bytes(position, self.head - position).as_slices().0
    }

    /// [`Ring::bytes`] at a position of which the low bits are known ([`LOW_POSITION`]; higher ones do not count), and
    /// which lies less than their range before the head. `None` if the bytes wrap, or do not lie between tail and head.
    #[inline(always)]
    pub(crate) fn bytes_by_low(&self, low: u64, len: u64) -> Option<&[u8]> {
        // Of a position before the tail this is larger than any ring.
        let ahead = low.wrapping_sub(self.tail) & LOW_POSITION;
        // The size of the ring divides the range of the low bits.
        let at = self.index(low);
        if ahead.saturating_add(len) > self.head - self.tail || len > self.mapped - at {
            return None;
        }
        // SAFETY: `at` is below `size` (I1).
        let start = unsafe { self.data.add(at as usize) };
        // SAFETY: within the data area (I1), and still while `self` is borrowed: it begins `ahead` bytes behind the
        // tail, and `len` bytes from there do not pass the head (I3, I5).
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len as usize) })
    }

    /// So many bytes of the data area, from an offset on.
    #[cold]
    #[inline(never)]
    fn part(&self, at: u64, len: u64) -> &[u8] {
        assert!(at <= self.size && len <= self.size - at, "a part of the data area");
        // SAFETY: `at` is no more than `size` (I1).
        let start = unsafe { self.data.add(at as usize) };
        // SAFETY: within the data area (I1), still while `self` is borrowed (I3, I5).
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len as usize) }
    }

    /// Where in the data area a position lies.
    #[inline]
    fn index(&self, position: u64) -> u64 {
        self.base.wrapping_add(position) & self.mask
    }

    /// The record that begins at a position: its header, read once and checked against the head (I4), and its bytes
    /// with the header.
    #[inline]
    pub(crate) fn record(&self, position: u64) -> Result<(Header, Bytes<'_>), Fault> {
        with_framing!(self.kind, F => F::record(self, position))
    }
}
