//! One ring: the memory shared with the kernel. All pointer work of the crate is in this folder.
//!
//! A [`Ring`] hands out bytes between its tail and the head it saw last, borrowed from `&self`, and moves either only
//! through `&mut self`. So the compiler proves what the kernel's protocol demands: while a byte is borrowed, the tail
//! that protects it stays where it is. Nothing outside this folder can break that, because nothing outside has a
//! pointer.
//!
//! Positions are *logical*: bytes since this ring was taken up, never wrapping, whatever `data_head` started from.
//!
//! Invariants, cited as (I1)…(I5) here and in DESIGN.md:
//!
//! - **I1** The header page and `size` bytes of data, a power of two, stay mapped while the ring lives, in the process that
//!   took it up. A forked child does not have them: there nothing reaches for them ([`Ring::assert_here`]).
//! - **I2** `data_tail` is stored by this ring alone and holds `tail`.
//! - **I3** `tail <= head <= tail + size`, and every slice handed out lies within `tail..head`.
//! - **I4** Each word and each header is read once, checked, and the checked copy used.
//! - **I5** A lawful kernel does not write between the published tail and the head. (One that breaks this, as BPF output
//!   of more than 65,516 bytes does, garbles bytes; it cannot move a bound, because of I4.)
//! - **I9** A ring that is written backwards, over what is oldest, is looked at only while its output is paused and after a
//!   grace period that began behind the pause: nobody writes anywhere. Bytes are handed out until [`Ring::thaw`] only.

mod bytes;
mod frame;
mod memory;
mod words;

pub use bytes::Bytes;
pub use frame::Fault;
pub(crate) use frame::Header;
pub(crate) use memory::KernelHalf;

use crate::error::Error;
use crate::sys::fork::Owner;
use crate::sys::machine;
use memory::{DATA_OFFSET_AT, DATA_SIZE_AT, HEAD_AT, Mapping, Memory, TAIL_AT};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use words::AtomicU64;

fn duplicate(fd: BorrowedFd<'_>) -> Result<Arc<OwnedFd>, Error> {
    fd.try_clone_to_owned()
        .map(Arc::new)
        .map_err(|errno| Error::System { what: "duplicate an event's file descriptor", errno })
}

/// A perf ring buffer and our place in it.
///
/// What can be done with one from outside is to adopt it and to hand it to [`Rings::add`](crate::Rings::add).
#[derive(Debug)]
pub struct Ring {
    /// `data_head` and `data_tail`. INVARIANT (I1): valid and 8-aligned while `memory` lives.
    head_word: NonNull<AtomicU64>,
    tail_word: NonNull<AtomicU64>,
    /// INVARIANT (I1): `size` bytes, mapped while `memory` lives.
    data: NonNull<u8>,
    /// INVARIANT: a power of two, at least 8, at most 2^31.
    size: u64,
    /// What the shared words hold is `base` more than our logical positions.
    base: u64,
    /// INVARIANT (I2, I3).
    tail: u64,
    /// INVARIANT (I3).
    head: u64,
    /// Whether the kernel writes backwards, and heeds no tail. `tail` and `head` are then what one may read, counted from the
    /// newest record back.
    backward: bool,
    /// The header page.
    page: NonNull<u8>,
    /// The process that has the memory.
    owner: Owner,
    /// Last but one, so that it is unmapped before the event is closed.
    memory: Memory,
    /// What says that something was written; closed last.
    fd: Option<Arc<OwnedFd>>,
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

    /// Maps the ring of a perf event that writes backwards, over what is oldest.
    pub(crate) fn map_backward(fd: Arc<OwnedFd>, page: usize, size: usize) -> Result<Self, Error> {
        Self::map_as(fd, page, size, true)
    }

    fn map_as(fd: Arc<OwnedFd>, page: usize, size: usize, backward: bool) -> Result<Self, Error> {
        let error = |errno: nix::Error| Error::System { what: "map a ring", errno: errno.into() };
        let len = NonZeroUsize::new(page.saturating_add(size)).ok_or(error(nix::Error::EINVAL))?;
        let mapping = Mapping::new(fd.as_fd(), len, !backward).map_err(error)?;
        let base = mapping.base();
        // SAFETY: the mapping is `len` long and moves into the ring.
        unsafe { Self::over(base, page, len.get(), Memory::Mapped(mapping), Some(fd), backward) }
    }

    /// Takes up a ring that somebody else mapped, from its present tail on.
    ///
    /// `base` is the header page and `size` the bytes of data behind it, as libbpf's `perf_buffer__buffer()` gives them:
    /// its size excludes the header page, whatever its comment says. `event` is what becomes readable when the ring was
    /// written to (`perf_buffer__buffer_fd()`); it is duplicated. Without, the ring is looked at now and then.
    ///
    /// # Safety
    /// `base` must be a perf event's writable mapping of one page and `size` bytes and stay mapped while the ring
    /// lives. Nobody else may move its `data_tail`. The kernel must heed that tail: the event is not `write_backward`, and
    /// its first mapping was not read-only, which would have made the ring overwritable for good.
    ///
    /// # Errors
    /// [`Error::Geometry`] if the header page disagrees with `size`; [`Error::System`] if `event` cannot be duplicated.
    pub unsafe fn adopt_mapping(base: NonNull<u8>, size: usize, event: Option<BorrowedFd<'_>>) -> Result<Self, Error> {
        let fd = event.map(duplicate).transpose()?;
        let page = machine::page_size();
        // SAFETY: this function's contract is the same.
        unsafe { Self::over(base, page, page.saturating_add(size), Memory::Foreign, fd, false) }
    }

    /// Takes up the ring of a perf event that somebody else opened, by mapping it once more, from its present tail on.
    ///
    /// `size` is the bytes of data that it was mapped with; the kernel refuses any other (`EINVAL`). The file
    /// descriptor is duplicated.
    ///
    /// # Safety
    /// `event` must be a perf event, and nobody else may move its ring's `data_tail`. The kernel must heed that tail: the
    /// event is not `write_backward`, and its first mapping was not read-only, which would have made the ring
    /// overwritable for good, whatever later mappings are.
    ///
    /// # Errors
    /// [`Error::System`] if the event cannot be mapped with that size; [`Error::Geometry`] if its header page disagrees.
    pub unsafe fn adopt_event(event: BorrowedFd<'_>, size: usize) -> Result<Self, Error> {
        Self::map(duplicate(event)?, machine::page_size(), size)
    }

    /// Makes a ring in plain memory, and the kernel's end of it.
    pub(crate) fn simulated(page: usize, size: usize, fd: Option<Arc<OwnedFd>>, backward: bool) -> (KernelHalf, Self) {
        let (kernel, memory, base) = memory::simulated(page, size, backward);
        // SAFETY: the memory is that long, shared through an Arc that the ring keeps, and has no other consumer.
        let ring = unsafe { Self::over(base, page, page + size, memory, fd, backward) };
        (kernel, ring.expect("the simulator's own geometry"))
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
            return Err(Error::Geometry { mapped, offset, size });
        }
        Ok(Self {
            head_word: word(HEAD_AT),
            tail_word: word(TAIL_AT),
            // SAFETY: `offset + size` is the length of the mapping, checked above.
            data: unsafe { base.add(offset as usize) },
            size,
            base: read(TAIL_AT),
            tail: 0,
            head: 0,
            backward,
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

    /// The head seen at the last look.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// The header page, for handing out.
    pub(crate) fn page(&self) -> NonNull<u8> {
        self.page
    }

    /// What says that something was written.
    pub(crate) fn fd(&self) -> Option<&Arc<OwnedFd>> {
        self.fd.as_ref()
    }

    /// Every way to the memory leads through here, or asks the same.
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

    /// The position that the kernel writes at now, or, if its head cannot be right, the furthest that it can be.
    pub(crate) fn written(&self) -> u64 {
        let (head, _) = self.words();
        head.wrapping_sub(self.base).clamp(self.head, self.tail + self.size)
    }

    /// Everything before it was given back to the kernel.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Loads the head. A head that cannot be right is a fault and is not taken; [`Ring::take_up`] is the way on.
    #[inline]
    pub(crate) fn look(&mut self) -> Result<(), Fault> {
        let head = self.load_head().wrapping_sub(self.base);
        let ahead = head.wrapping_sub(self.tail);
        if ahead > self.size || ahead < self.head - self.tail {
            return Err(Fault::Head { from: self.head, to: head, size: self.size });
        }
        self.head = head;
        Ok(())
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
        words::load_head(unsafe { self.head_word.as_ref() })
    }

    /// Takes up all that is in a ring written backwards: position 0 is the newest record, and older ones follow. The last
    /// may be cut. Gives whether anything was overwritten. (I9) is for the caller to see to.
    pub(crate) fn look_back(&mut self) -> bool {
        debug_assert!(self.backward);
        let head = self.load_head();
        // The kernel counts down from zero.
        let written = head.wrapping_neg();
        self.base = head;
        self.tail = 0;
        self.head = written.min(self.size);
        written > self.size
    }

    /// Hands out no more bytes of a ring written backwards.
    pub(crate) fn thaw(&mut self) {
        self.head = self.tail;
    }

    /// Gives up everything between our head and the kernel's, wherever that is, and goes on from there.
    ///
    /// # Panics
    /// Unless everything up to our head was released.
    pub(crate) fn take_up(&mut self) {
        assert_eq!(self.tail, self.head, "records before the fault are still held");
        let head = self.load_head();
        self.base = head.wrapping_sub(self.head);
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
        debug_assert!(!self.backward, "mapped read-only");
        // Nobody heeds a forked child's tail. No panic: this runs when readings are dropped, also in one.
        if !self.owner.is_here() {
            return;
        }
        // SAFETY: (I1)
        let word = unsafe { self.tail_word.as_ref() };
        words::store_tail(word, self.base.wrapping_add(self.tail));
    }

    /// The bytes at a position, which wrap where the ring ends.
    ///
    /// # Panics
    /// If they do not lie between tail and head.
    #[inline]
    pub(crate) fn bytes(&self, position: u64, len: u64) -> Bytes<'_> {
        self.assert_here();
        // No overflow: positions count bytes since the ring was taken up.
        assert!(
            position >= self.tail && position <= self.head && len <= self.head - position,
            "bytes between tail and head"
        );
        let at = self.index(position);
        let to_end = self.size - at;
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

    /// So many bytes at the data area's begin.
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
        self.base.wrapping_add(position) & (self.size - 1)
    }

    /// The header of the record that begins at a position, read once and checked against the head (I4).
    #[inline]
    pub(crate) fn header(&self, position: u64) -> Result<Header, Fault> {
        let room = self.head - position;
        let Some(bytes) = self.bytes(position, room.min(Header::LEN)).array(0) else {
            return Err(Fault::Size { size: 0, room });
        };
        Header::checked(bytes, room)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Fault, Ring};

    fn record(kernel: &mut super::KernelHalf, size: u16) {
        let head = kernel.head();
        let mut bytes = vec![0xaa; usize::from(size)];
        bytes[..4].copy_from_slice(&9u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&0u16.to_ne_bytes());
        bytes[6..8].copy_from_slice(&size.to_ne_bytes());
        kernel.write(head, &bytes);
        kernel.publish(head.wrapping_add(u64::from(size)));
    }

    #[test]
    fn records_are_seen_after_a_look_and_given_back_by_release() {
        let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
        record(&mut kernel, 24);
        assert_eq!(ring.head(), 0, "nothing is seen without a look");
        ring.look().unwrap();
        assert_eq!(ring.header(0).unwrap().size(), 24);
        assert_eq!(ring.bytes(0, 24).len(), 24);
        ring.release(24);
        assert_eq!(kernel.tail(), 24);
    }

    #[test]
    fn a_record_that_crosses_the_end_comes_in_two_runs() {
        let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
        for _ in 0..2 {
            record(&mut kernel, 24);
        }
        ring.look().unwrap();
        ring.release(48);
        record(&mut kernel, 24);
        ring.look().unwrap();
        let (head, tail) = ring.bytes(48, 24).as_slices();
        assert_eq!((head.len(), tail.len()), (16, 8));
        assert_eq!(tail, [0xaa; 8]);
    }

    #[test]
    #[should_panic(expected = "bytes between tail and head")]
    fn bytes_before_the_tail_are_refused() {
        let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
        record(&mut kernel, 24);
        ring.look().unwrap();
        ring.release(24);
        ring.bytes(0, 8);
    }

    #[test]
    #[should_panic(expected = "bytes between tail and head")]
    fn bytes_behind_the_head_are_refused() {
        let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
        record(&mut kernel, 24);
        ring.look().unwrap();
        ring.bytes(16, 16);
    }

    #[test]
    #[should_panic(expected = "a tail between tail and head")]
    fn a_tail_past_the_head_is_refused() {
        let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
        record(&mut kernel, 24);
        ring.look().unwrap();
        ring.release(32);
    }

    #[test]
    fn heads_that_cannot_be_right_are_faults_and_the_ring_goes_on() {
        for wild in [u64::MAX, 1 << 63, 65, 64 + 8, 4096] {
            let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
            record(&mut kernel, 24);
            ring.look().unwrap();
            kernel.force_head(wild);
            assert!(matches!(ring.look(), Err(Fault::Head { from: 24, .. })), "{wild}");
            assert_eq!(ring.head(), 24, "a bad head is not taken");
            ring.release(24);
            ring.take_up();
            assert_eq!(kernel.tail(), wild);
            ring.look().unwrap();
            assert_eq!(ring.head(), 24, "empty, and positions go on where they were");
            record(&mut kernel, 16);
            kernel.force_head(wild.wrapping_add(16));
            ring.look().unwrap();
            assert_eq!(ring.head(), 40);
        }
    }

    #[test]
    fn a_head_that_moves_back_is_a_fault() {
        let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
        record(&mut kernel, 24);
        record(&mut kernel, 24);
        ring.look().unwrap();
        kernel.force_head(24);
        assert_eq!(ring.look(), Err(Fault::Head { from: 48, to: 24, size: 64 }));
    }

    #[test]
    fn fewer_bytes_than_a_header_are_a_fault() {
        let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
        kernel.force_head(4);
        ring.look().unwrap();
        assert_eq!(ring.header(0), Err(Fault::Size { size: 0, room: 4 }));
    }

    #[test]
    fn geometry_is_checked() {
        let page = crate::sys::machine::page_size();
        let (_kernel, ring) = Ring::simulated(page, 4096, None, false);
        assert_eq!(ring.size(), 4096);
        // SAFETY: the memory is a ring's, and only one of both is read from.
        let adopted = unsafe { Ring::adopt_mapping(ring.page(), 4096, None) };
        assert_eq!(adopted.unwrap().size(), 4096);
        for wrong in [8192, 2048, 0, 4096 + page, usize::MAX] {
            // SAFETY: as above.
            let error = unsafe { Ring::adopt_mapping(ring.page(), wrong, None) }.unwrap_err();
            assert!(matches!(error, crate::Error::Geometry { size: 4096, .. }), "{error}");
        }
    }

    #[test]
    fn a_header_page_that_cannot_be_right_is_refused() {
        let page = crate::sys::machine::page_size();
        let at = page as u64;
        // What the header page says, and how long the data is said to be by whoever hands it out: each is wrong in one way.
        for (offset, size, given) in [
            (at, 0x1800, 0x1800),       // not a power of two
            (at, 4, 4),                 // no room for a header
            (at, 1 << 40, 1u64 << 40),  // longer than any
            (at / 2, at / 2, 0),        // inside the header page
            (at + 4, 4096, 4100),       // not aligned
            (at + 4096, 4096, 4096),    // behind the mapping
            (at, 2048, 4096),           // shorter than the mapping
            (u64::MAX - 4095, 4096, 0), // overflows
        ] {
            let (_kernel, ring) = Ring::simulated(page, 4096, None, false);
            for (word, value) in [(super::DATA_OFFSET_AT, offset), (super::DATA_SIZE_AT, size)] {
                // SAFETY: a word of the header page, which nobody else looks at now.
                let at = unsafe { ring.page().add(word) }.cast::<u64>();
                // SAFETY: as above.
                unsafe { at.write(value) };
            }
            // SAFETY: nothing is read but the header page.
            let adopted = unsafe { Ring::adopt_mapping(ring.page(), given as usize, None) };
            assert!(matches!(adopted, Err(crate::Error::Geometry { .. })), "{offset} {size} {given}");
        }
        // Before 4.1 the kernel left both zero: the data is what follows the header page.
        let (_kernel, ring) = Ring::simulated(page, 4096, None, false);
        for word in [super::DATA_OFFSET_AT, super::DATA_SIZE_AT] {
            // SAFETY: as above.
            let at = unsafe { ring.page().add(word) }.cast::<u64>();
            // SAFETY: as above.
            unsafe { at.write(0) };
        }
        // SAFETY: as above.
        assert_eq!(unsafe { Ring::adopt_mapping(ring.page(), 4096, None) }.unwrap().size(), 4096);
    }

    /// Rings of 8 and 16 bytes at every place, everywhere near where the kernel's words wrap: a head is taken if and only if it
    /// is no further from the tail than the ring is long, and no nearer than the one before.
    #[test]
    fn every_head_is_taken_or_refused_as_it_must_be() {
        for size in [8u64, 16] {
            let (_kernel, mut ring) = Ring::simulated(4096, size as usize, None, false);
            for base in (0..=2 * size).flat_map(|near| [near, near.wrapping_neg(), near.wrapping_sub(1 << 63)]) {
                for tail in (0..=size).map(|tail| tail + (1 << 20)) {
                    for used in 0..=size {
                        // As far as a whole ring too far, in both directions, and far from either.
                        let near = (0..=4 * size).map(|to| (tail + to).wrapping_sub(2 * size));
                        for to in near.chain([tail.wrapping_add(1 << 63), tail.wrapping_neg(), 1 << 32]) {
                            (ring.base, ring.tail, ring.head) = (base, tail, tail + used);
                            // SAFETY: (I1)
                            let word = unsafe { ring.head_word.as_ref() };
                            super::words::store_head(word, base.wrapping_add(to));
                            let taken = ring.look();
                            let right = to >= tail + used && to <= tail + size;
                            assert_eq!(taken.is_ok(), right, "{base:#x}, {tail} and {used}, {to}: {taken:?}");
                            assert_eq!(ring.head(), if right { to } else { tail + used });
                        }
                    }
                }
            }
        }
    }
}
