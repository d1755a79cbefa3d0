//! The consumer's half of one ring: its tail and head, and the bytes between them.

pub(super) mod ring_buffer;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::error::{Error, ErrorKind};
use crate::ring::memory::{self, CAPABILITIES_AT, DATA_OFFSET_AT, DATA_SIZE_AT, HEAD_AT, Mapping, Memory, TAIL_AT};
use crate::ring::words::{self, AtomicU64};
use crate::ring::{Bytes, Fault, Header, KernelHalf};
use crate::sys::fork::Owner;
use crate::sys::machine;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
    /// `data_head` and `data_tail`, or the producer and the consumer position of a BPF ring buffer. INVARIANT (I1): valid and 8-aligned
    /// while `memory` lives.
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
    /// Where the kernel reserves next, as the last refresh found it: `head`, or after it where a program has reserved bytes of a BPF ring
    /// buffer and not committed them. INVARIANT: `head <= reserved <= tail + size`.
    reserved: u64,
    format: Format,
    /// The number of the map of a BPF ring buffer, which is the same for all descriptors of it.
    map: Option<u32>,
    /// The header page.
    page: NonNull<u8>,
    /// The process that owns the memory.
    owner: Owner,
    /// Last but one, so that the memory is unmapped before the event is closed.
    memory: Memory,
    /// The event that becomes readable when the ring is written to. Closed last.
    fd: Option<Arc<OwnedFd>>,
}

/// The low bits of a position. Of a position that is less than 2^34 bytes before a known one they tell it.
pub(crate) const LOW_POSITION: u64 = (1 << 34) - 1;

const _: () = assert!(LOW_POSITION >= 2 * Ring::MAX);

/// Who writes, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// A perf event's ring.
    Perf,
    /// A perf event's ring that the kernel writes backwards and whose tail it ignores. `tail` and `head` bound the readable bytes, counted
    /// from the newest record back.
    Backward,
    /// A BPF ring buffer (`BPF_MAP_TYPE_RINGBUF`).
    RingBuffer,
}

// SAFETY: the pointers lead to memory that belongs to the process, not to a thread, and `&Ring` only reads what I3 and I5
// keep still.
unsafe impl Send for Ring {}
// SAFETY: as for Send; everything that changes takes `&mut Ring`.
unsafe impl Sync for Ring {}

impl Ring {
    /// The longest ring taken: a record's length and place must fit 32 bits.
    pub(crate) const MAX: u64 = 1 << 31;

    /// Maps the ring of a perf event: a header page of `page` bytes and `size` bytes of data.
    pub(crate) fn map(fd: Arc<OwnedFd>, page: usize, size: usize) -> Result<Self, Error> {
        Self::map_as(fd, page, size, false)
    }

    /// Maps the ring of a perf event that writes backwards, over the oldest records.
    pub(crate) fn map_backward(fd: Arc<OwnedFd>, page: usize, size: usize) -> Result<Self, Error> {
        Self::map_as(fd, page, size, true)
    }

    fn map_as(fd: Arc<OwnedFd>, page: usize, size: usize, backward: bool) -> Result<Self, Error> {
        let error = |errno: nix::Error| Error::system("map a ring", errno.into());
        let len = NonZeroUsize::new(page.saturating_add(size)).ok_or(error(nix::Error::EINVAL))?;
        let mapping = Mapping::new(fd.as_fd(), len, !backward, 0).map_err(error)?;
        let base = mapping.base();
        // SAFETY: the mapping is `len` long and moves into the ring.
        unsafe { Self::over(base, page, len.get(), Memory::Mapped(mapping), Some(fd), backward) }
    }

    /// Adopts a ring that is already mapped, from its present tail on.
    ///
    /// `base` is the header page and `size` the bytes of data after it, as libbpf's `perf_buffer__buffer()` gives them: its size excludes
    /// the header page, although its comment says otherwise. `event` becomes readable when the ring was written to
    /// (`perf_buffer__buffer_fd()`). It is duplicated. Without it, the reader refreshes the ring at its own ticks.
    ///
    /// The order of its events is proven only if the event has `inherit_stat` 0 and, on the perf clock, `precise_ip` 0: see
    /// [`Rings::add`](crate::Rings::add).
    ///
    /// # Safety
    /// `base` must be a perf event's writable mapping of one page and `size` bytes and stay mapped while the ring
    /// lives. No one else may move its `data_tail`. The kernel must heed that tail: the event is not `write_backward`,
    /// and its first mapping was not read-only, which would have made the ring overwritable for good.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the header page disagrees with `size`; [`ErrorKind::System`] if `event` cannot be duplicated.
    pub unsafe fn adopt_mapping(base: NonNull<u8>, size: usize, event: Option<BorrowedFd<'_>>) -> Result<Self, Error> {
        let fd = event.map(duplicate).transpose()?;
        let page = machine::page_size();
        // SAFETY: this function's contract is the same.
        unsafe { Self::over(base, page, page.saturating_add(size), Memory::Foreign, fd, false) }
    }

    /// Maps the ring of an open perf event, and adopts it from its present tail on. If another program has mapped it, `size` is the bytes
    /// of data of that mapping; the kernel refuses any other size (`EINVAL`). The file descriptor is duplicated.
    ///
    /// The order of its events is proven only if the event has `inherit_stat` 0 and, on the perf clock, `precise_ip` 0: see
    /// [`Rings::add`](crate::Rings::add).
    ///
    /// This is also the way to read an event that a program has opened itself with perf_event_open(2), with settings for which
    /// [`RingOptions`](crate::RingOptions) has no option. The program opens the event for one CPU and starts it:
    ///
    /// ```no_run
    /// use perf_event_open_sys::bindings;
    /// use perfweave::{Clock, Error, Layout, Order, Reader, Ring, Rings};
    /// use std::os::fd::OwnedFd;
    ///
    /// /// Reads events that were opened for CPUs, with `use_clockid` and `CLOCK_MONOTONIC`.
    /// fn read(events: Vec<(u32, OwnedFd)>, attr: &bindings::perf_event_attr) -> Result<Reader, Error> {
    ///     let mut rings = Rings::empty(Clock::Monotonic);
    ///     for (cpu, event) in &events {
    ///         // SAFETY: a perf event, which nobody else maps.
    ///         let ring = unsafe { Ring::adopt_event(event, 1 << 19) }?;
    ///         rings.add(*cpu, ring, Layout::new(attr.sample_type, attr.sample_id_all() != 0, attr.read_format));
    ///     }
    ///     Reader::new(rings, Order::new())
    /// }
    /// ```
    ///
    /// # Safety
    /// `event` must be a perf event, and no one else may move its ring's `data_tail`. The kernel must heed that tail:
    /// the event is not `write_backward`, and its first mapping was not read-only, which would have made the ring
    /// overwritable for good, whatever later mappings are.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the event cannot be mapped with that size; [`ErrorKind::InvalidInput`] if its header page
    /// disagrees.
    pub unsafe fn adopt_event(event: impl AsFd, size: usize) -> Result<Self, Error> {
        Self::map(duplicate(event.as_fd())?, machine::page_size(), size)
    }

    /// Makes a ring in plain memory, and the kernel's half of it.
    ///
    /// # Panics
    /// If there is not enough memory.
    pub(crate) fn simulated(page: usize, size: usize, fd: Option<Arc<OwnedFd>>, backward: bool) -> (KernelHalf, Self) {
        Self::in_memory(page, size, fd, backward).expect("memory for a ring")
    }

    /// The same; `None` if there is not enough memory.
    pub(crate) fn in_memory(
        page: usize,
        size: usize,
        fd: Option<Arc<OwnedFd>>,
        backward: bool,
    ) -> Option<(KernelHalf, Self)> {
        let (kernel, memory, base) = memory::simulated(page, size, backward)?;
        // SAFETY: the memory is that long, shared through an Arc that the ring keeps, and has no other consumer.
        let ring = unsafe { Self::over(base, page, page + size, memory, fd, backward) };
        Some((kernel, ring.expect("the simulator's own geometry")))
    }

    /// Reads the geometry from the header page, once, and checks it.
    ///
    /// # Safety
    /// `mapped` bytes from `base` on must be a perf ring that lives as long as `memory` and has no other consumer.
    unsafe fn over(
        base: NonNull<u8>,
        page: usize,
        mapped: usize,
        memory: Memory,
        fd: Option<Arc<OwnedFd>>,
        backward: bool,
    ) -> Result<Self, Error> {
        let word = |offset: usize| -> NonNull<AtomicU64> {
            // SAFETY: a field of the kernel's header struct, which the first page holds (this function's contract).
            unsafe { base.add(offset) }.cast()
        };
        let read = |offset: usize| {
            // SAFETY: the pointer is to a mapped, aligned word (this function's contract).
            words::load_own(unsafe { word(offset).as_ref() })
        };
        // Kernels before 4.1 leave the offset zero: the data follows the header page.
        let offset = match read(DATA_OFFSET_AT) {
            0 => page as u64,
            offset => offset,
        };
        let size = match read(DATA_SIZE_AT) {
            0 => mapped.saturating_sub(page) as u64,
            size => size,
        };
        let fits = offset >= page as u64
            && offset % 8 == 0
            && (8..=Self::MAX).contains(&size)
            && size.is_power_of_two()
            && offset.checked_add(size) == Some(mapped as u64);
        if !fits {
            let says = format!("{mapped} bytes mapped, but its header says {size} bytes of data at {offset}");
            return Err(Error::new(ErrorKind::InvalidInput, format!("no perf ring: {says}")));
        }
        Ok(Self {
            head_word: word(HEAD_AT),
            tail_word: word(TAIL_AT),
            // SAFETY: `offset + size` is the length of the mapping, checked above.
            data: unsafe { base.add(offset as usize) },
            mapped: size,
            size,
            mask: size - 1,
            base: read(TAIL_AT),
            tail: 0,
            head: 0,
            reserved: 0,
            format: if backward { Format::Backward } else { Format::Perf },
            map: None,
            page: base,
            owner: Owner::new(),
            memory,
            fd,
        })
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

    /// Where the kernel reserved next at the last refresh. Between the head and this position, at least one program of a BPF ring buffer
    /// has reserved bytes and not committed them. For a perf ring it is the head.
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

    /// Whether the kernel says in the header page that its perf clock is the time stamp counter (`cap_user_time`). `None` where no kernel
    /// writes perf records: simulated rings, and BPF ring buffers.
    pub(crate) fn has_user_time(&self) -> Option<bool> {
        /// Bit-fields begin at the other end of a big-endian word.
        const CAP_USER_TIME: u64 = if cfg!(target_endian = "big") { 1 << 60 } else { 1 << 3 };
        if self.is_simulated() || self.is_ring_buffer() {
            return None;
        }
        self.assert_here();
        // SAFETY: (I1) a field of the kernel's header struct, which the first page holds.
        let word = unsafe { self.page.add(CAPABILITIES_AT) }.cast::<AtomicU64>();
        // SAFETY: (I1) mapped, and aligned to 8.
        let capabilities = words::load_own(unsafe { word.as_ref() });
        Some(capabilities & CAP_USER_TIME != 0)
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

    /// Checked before new bytes are read: at each refresh, and before each record whose header is read from the ring. Not checked before
    /// each indexed event: the caller that lends events checks once for each event or batch.
    ///
    /// # Panics
    /// In a forked child, which does not have the memory.
    #[inline(always)]
    pub(crate) fn assert_here(&self) {
        assert!(self.owner.is_here(), "rings are used in a child of the process that opened them");
    }

    /// `data_head` and `data_tail` as they are now.
    pub(crate) fn words(&self) -> (u64, u64) {
        self.assert_here();
        // SAFETY: (I1)
        let head = words::load_head(unsafe { self.head_word.as_ref() });
        (head, self.base.wrapping_add(self.tail))
    }

    /// The position at which the kernel writes now. If its head cannot be right, the largest possible position.
    pub(crate) fn written(&self) -> u64 {
        let (head, _) = self.words();
        head.wrapping_sub(self.base).clamp(self.reserved, self.tail + self.size)
    }

    /// Whether a quarter of the ring was written since the last refresh of its head. A quarter is also what wakes a sleeping reader. A head
    /// that cannot be right gives false.
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

    /// Loads the head. A head that cannot be right is a fault and is not taken; [`Ring::skip_to_head`] goes on after it.
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
        if self.format == Format::RingBuffer {
            return self.look_at_reservations(head);
        }
        (self.head, self.reserved) = (head, head);
        Ok(())
    }

    /// Whether no kernel writes into it.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self.memory, Memory::Simulated(_))
    }

    #[inline]
    fn load_head(&mut self) -> u64 {
        self.assert_here();
        if let Memory::Simulated(pages) = &self.memory
            && pages.is_hostile()
        {
            // SAFETY: every slice of this ring borrows it, and we have it exclusively.
            unsafe { pages.apply_edits() };
        }
        // SAFETY: (I1)
        let head = words::load_head(unsafe { self.head_word.as_ref() });
        // Headers in a BPF ring buffer are aligned, whatever the position says.
        if self.format == Format::RingBuffer { head & !7 } else { head }
    }

    /// Loads the head of a ring written backwards and makes everything in it readable: position 0 is the newest record, and older ones
    /// follow. The last one may be cut. Returns whether anything was overwritten. The caller ensures (I9).
    pub(crate) fn refresh_backward(&mut self) -> bool {
        debug_assert!(self.format == Format::Backward);
        let head = self.load_head();
        // The kernel counts down from zero.
        let written = head.wrapping_neg();
        self.base = head;
        self.tail = 0;
        self.head = written.min(self.size);
        self.reserved = self.head;
        written > self.size
    }

    /// Stops lending bytes of a ring written backwards.
    pub(crate) fn thaw(&mut self) {
        (self.head, self.reserved) = (self.tail, self.tail);
    }

    /// Gives back everything up to the last head seen, skips what lies between that and the kernel's head, and goes on from there.
    pub(crate) fn skip_to_head(&mut self) {
        let head = self.load_head();
        self.tail = self.head;
        self.base = head.wrapping_sub(self.head);
        self.reserved = self.head;
        self.publish();
    }

    /// Gives bytes back to the kernel: everything before `tail`.
    ///
    /// # Panics
    /// If the tail would move backwards or past the head.
    #[inline]
    pub(crate) fn release(&mut self, tail: u64) {
        assert!((self.tail..=self.head).contains(&tail), "a tail between tail and head");
        if tail != self.tail {
            self.tail = tail;
            self.publish();
        }
    }

    #[inline]
    fn publish(&mut self) {
        debug_assert!(self.format != Format::Backward, "mapped read-only");
        // Nobody reads a forked child's tail. No panic: this runs in drops, which also happen in a child.
        if !self.owner.is_surely_here() {
            return;
        }
        // SAFETY: (I1)
        let word = unsafe { self.tail_word.as_ref() };
        let position = self.base.wrapping_add(self.tail);
        if self.format == Format::RingBuffer {
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
        let (head, tail) = (self.to_end(at), self.at_begin(len - to_end));
        Bytes::new(head, tail)
    }

    /// [`Ring::bytes`] at a position of which the low bits are known ([`LOW_POSITION`]; higher ones do not count), and which lies less than
    /// their range before the head. `None` if the bytes wrap, or do not lie between tail and head.
    #[inline(always)]
    pub(crate) fn near(&self, low: u64, len: u64) -> Option<&[u8]> {
        // Of a position before the tail this is larger than any ring.
        let ahead = low.wrapping_sub(self.tail) & LOW_POSITION;
        // The size of the ring divides the range of the low bits.
        let at = self.index(low);
        if ahead.saturating_add(len) > self.head - self.tail || len > self.mapped - at {
            return None;
        }
        // SAFETY: `at` is below `size` (I1).
        let start = unsafe { self.data.add(at as usize) };
        // SAFETY: within the data area (I1), and still while `self` is borrowed: it begins `ahead` bytes behind the tail, and `len` bytes
        // from there do not pass the head (I3, I5).
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len as usize) })
    }

    /// The data area from an offset on.
    #[cold]
    #[inline(never)]
    fn to_end(&self, at: u64) -> &[u8] {
        assert!(at < self.size, "an offset in the data area");
        // SAFETY: `at` is below `size` (I1).
        let start = unsafe { self.data.add(at as usize) };
        // SAFETY: from `at` to the end of the data area (I1), still while `self` is borrowed (I3, I5).
        unsafe { std::slice::from_raw_parts(start.as_ptr(), (self.size - at) as usize) }
    }

    /// The first `len` bytes of the data area.
    #[cold]
    #[inline(never)]
    fn at_begin(&self, len: u64) -> &[u8] {
        assert!(len <= self.size, "a length within the data area");
        // SAFETY: within the data area (I1), still while `self` is borrowed (I3, I5).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), len as usize) }
    }

    /// Where in the data area a position lies.
    #[inline]
    fn index(&self, position: u64) -> u64 {
        self.base.wrapping_add(position) & self.mask
    }

    /// The header of the record that begins at a position, read once and checked against the head (I4).
    #[inline]
    pub(crate) fn header(&self, position: u64) -> Result<Header, Fault> {
        self.assert_here();
        let room = self.head - position;
        let Some(bytes) = self.bytes(position, room.min(Header::LEN)).array(0) else {
            return Err(Fault::Size { size: 0, room });
        };
        Header::checked(bytes, room)
    }

    /// The record that begins at a position: its checked header, and its bytes with the header.
    #[inline]
    pub(crate) fn record(&self, position: u64) -> Result<(Header, Bytes<'_>), Fault> {
        if self.format == Format::RingBuffer {
            return self.reservation(position);
        }
        let header = self.header(position)?;
        Ok((header, self.bytes(position, header.size().into())))
    }
}
