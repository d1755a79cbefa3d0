//! The memory of a ring and its owner: the crate's own mapping, another part of the program, or the simulator.

use super::Header;
use super::words::{self, AtomicU32, AtomicU64};
use crate::sys::fork::Owner;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use perf_event_open_sys::bindings::perf_event_mmap_page;
use std::alloc::{self, Layout};
use std::fmt;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps a ring's memory alive.
pub(super) enum Memory {
    Mapped(#[expect(dead_code, reason = "kept for its Drop")] Mapping),
    /// The consumer's page and the rest of a BPF ring buffer.
    MappedApart(
        #[expect(dead_code, reason = "kept for its Drop")] Mapping,
        #[expect(dead_code, reason = "kept for its Drop")] Mapping,
    ),
    /// Adopted: its owner keeps it mapped, as `Ring::adopt_mapping` demands.
    Foreign,
    Simulated(Arc<Pages>),
}

/// A mapping of a perf event or of a BPF map. Unmapped on drop.
///
/// Never copied, split or protected: the kernel refuses (`perf_mmap_may_split`). A forked child does not have that of a
/// perf event (`VM_DONTCOPY`), and dropping any mapping there unmaps nothing.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

impl Mapping {
    /// Maps the header page and the data of a perf event. If the mapping is writable, the kernel respects `data_tail`.
    /// If not, the kernel overwrites the oldest records (`perf_mmap`, `kernel/events/core.c`). `offset`: where it
    /// begins in the file, a multiple of a page.
    pub(super) fn new(fd: BorrowedFd<'_>, len: NonZeroUsize, writable: bool, offset: usize) -> nix::Result<Self> {
        let protection = if writable { ProtFlags::PROT_READ | ProtFlags::PROT_WRITE } else { ProtFlags::PROT_READ };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, fd, offset as libc::off_t) }?;
        Ok(Self { base: base.cast(), len: len.get(), owner: Owner::new() })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            return;
        }
        // SAFETY: (I1) the mapping is ours and whole, and the ring that pointed into it is going away with it.
        let unmapped = unsafe { munmap(self.base.cast(), self.len) };
        // If the kernel refuses, the memory stays mapped. Nothing can be done about it.
        let _ = unmapped;
    }
}

/// Offsets of the shared words in the header page, from the kernel's own struct.
pub(super) const CAPABILITIES_AT: usize = offset_of!(perf_event_mmap_page, __bindgen_anon_1);
pub(super) const HEAD_AT: usize = offset_of!(perf_event_mmap_page, data_head);
pub(super) const TAIL_AT: usize = offset_of!(perf_event_mmap_page, data_tail);
pub(super) const DATA_OFFSET_AT: usize = offset_of!(perf_event_mmap_page, data_offset);
pub(super) const DATA_SIZE_AT: usize = offset_of!(perf_event_mmap_page, data_size);

/// A header page and a data area on the heap, laid out as the kernel lays out a perf event's mapping.
pub(super) struct Pages {
    base: NonNull<u8>,
    layout: Layout,
    page: usize,
    /// Set once bytes were written that the protocol forbids. From then on all writes wait in `edits`.
    hostile: AtomicBool,
    edits: Mutex<Vec<Edit>>,
}

/// A write by a kernel that breaks the protocol.
enum Edit {
    Data { position: u64, bytes: Vec<u8> },
    Head(u64),
}

// SAFETY: the two words are atomics; data is written by the one `KernelHalf` and read by the one `Ring`, in the
// disjoint ranges that the words mark off, or by `apply_edits` under the ring's exclusive borrow (I5).
unsafe impl Send for Pages {}
// SAFETY: as for Send.
unsafe impl Sync for Pages {}

impl Pages {
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the header page is larger than the kernel's struct, of which `offset` is a field.
        let word = unsafe { self.base.add(offset) }.cast();
        // SAFETY: aligned to 8 within a live allocation (I1), zeroed when made, only ever used as an atomic.
        unsafe { word.as_ref() }
    }

    fn size(&self) -> u64 {
        (self.layout.size() - self.page) as u64
    }

    /// Writes bytes at a position, wrapping at the end of the data area.
    ///
    /// # Safety
    /// Nobody may read or write these bytes meanwhile.
    unsafe fn write(&self, position: u64, mut bytes: &[u8]) {
        let size = self.layout.size() - self.page;
        // SAFETY: the data area begins one page into the allocation.
        let data = unsafe { self.base.add(self.page) };
        let mut at = (position & (size as u64 - 1)) as usize;
        // A write longer than the ring overwrites itself, as the kernel's does.
        while !bytes.is_empty() {
            let (chunk, rest) = bytes.split_at(bytes.len().min(size - at));
            // SAFETY: `at` is below `size`, the length of the data area.
            let to = unsafe { data.add(at) };
            // SAFETY: the chunk ends at the ring's end at the latest, and nobody else touches it (this function's
            // contract).
            unsafe { to.copy_from_nonoverlapping(NonNull::from(chunk).cast(), chunk.len()) };
            at = (at + chunk.len()) & (size - 1);
            bytes = rest;
        }
    }

    /// Gives the whole pages between two positions back to the system: their bytes are 0 from then on.
    ///
    /// # Safety
    /// Both are positions in a data area that was never wrapped, and nobody reads or writes what lies between them.
    pub(super) unsafe fn discard(&self, from: u64, to: u64) {
        let data = self.base.addr().get() + self.page;
        let from = (data + from as usize).next_multiple_of(self.page);
        let len = ((data + to as usize) & !(self.page - 1)).saturating_sub(from);
        // SAFETY: within the allocation, behind its first page (this function's contract).
        let start = unsafe { self.base.add(from - self.base.addr().get()) };
        // SAFETY: (I1) whole pages of our own allocation, which no slice covers (I3).
        let given = unsafe { madvise(start.cast(), len, MmapAdvise::MADV_DONTNEED) };
        // Locked memory stays. It is ours until the ring goes away.
        let _ = given;
    }

    /// Applies the writes of a hostile kernel since the last refresh.
    ///
    /// # Safety
    /// No slice of the data area may be alive.
    #[cold]
    pub(super) unsafe fn apply_edits(&self) {
        for edit in self.edits.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            match edit {
                Edit::Data { position, bytes } => {
                    // SAFETY: the consumer holds no slice (this function's contract), and a hostile kernel half no
                    // longer writes by itself.
                    unsafe { self.write(position, &bytes) };
                }
                Edit::Head(head) => words::store_head(self.word(HEAD_AT), head),
            }
        }
    }

    /// Whether the consumer's next refresh finds writes of a hostile kernel.
    pub(super) fn has_edits(&self) -> bool {
        self.is_hostile() && !self.edits.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn is_hostile(&self) -> bool {
        // Acquire pairs with the store in `KernelHalf::turn_hostile`: the last lawful writes come first.
        self.hostile.load(Ordering::Acquire)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `simulated` with this very layout.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// The kernel's half of a simulated ring: the only writer of data and head.
///
/// A lawful write never touches a byte between the stored tail and head, so a consumer's slices stay untouched whatever
/// thread it is on. [`KernelHalf::scribble`], [`KernelHalf::force_head`] and [`KernelHalf::force_tail`] break the rules
/// by which that is known. From then on every write takes effect at the consumer's next refresh, when it cannot hold a
/// slice.
pub(crate) struct KernelHalf {
    pages: Arc<Pages>,
    backward: bool,
    /// The head, also while it waits for the consumer's next refresh.
    next: u64,
    /// Where the reservations of a BPF ring buffer are that no program has committed, and the lengths of their data.
    pub(super) busy: Vec<(u64, u32)>,
}

impl KernelHalf {
    /// The head, also while it waits for the consumer's next refresh.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The page and the memory for another consumer; `None` while there is one.
    pub(super) fn consumer(&self) -> Option<(usize, Memory, NonNull<u8>)> {
        let is_alone = Arc::strong_count(&self.pages) == 1;
        is_alone.then(|| (self.pages.page, Memory::Simulated(Arc::clone(&self.pages)), self.pages.base))
    }

    /// The consumer's stored tail.
    pub(crate) fn tail(&self) -> u64 {
        words::load_tail(self.pages.word(TAIL_AT))
    }

    /// The published head.
    pub(crate) fn head(&self) -> u64 {
        words::load_own(self.pages.word(HEAD_AT))
    }

    /// The length of the data area in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.pages.size()
    }

    /// Writes into free space.
    ///
    /// # Panics
    /// If the bytes do not lie between the published head and the end of the free space after it, unless hostile or
    /// writing backwards.
    pub(crate) fn write(&mut self, position: u64, bytes: &[u8]) {
        if self.pages.is_hostile() {
            return self.queue(Edit::Data { position, bytes: bytes.to_vec() });
        }
        if self.backward {
            // SAFETY: the consumer reads only while output is paused (I9), and nobody but us writes.
            return unsafe { self.pages.write(position, bytes) };
        }
        let tail = self.tail();
        let begin = position.wrapping_sub(tail);
        let free = self.head().wrapping_sub(tail)..=self.size();
        assert!(
            free.contains(&begin) && free.contains(&(begin + bytes.len() as u64)),
            "a lawful kernel does not write {} bytes at {position}, with tail {tail} and head {}",
            bytes.len(),
            self.head(),
        );
        // SAFETY: outside [tail, head), which is all that the consumer reads (I3), and nobody but us writes.
        unsafe { self.pages.write(position, bytes) };
    }

    /// Writes into a reservation of a BPF ring buffer.
    ///
    /// # Panics
    /// If the bytes are not within one that is busy.
    pub(super) fn write_reserved(&mut self, position: u64, bytes: &[u8]) {
        if self.pages.is_hostile() {
            return self.queue(Edit::Data { position, bytes: bytes.to_vec() });
        }
        let end = position.wrapping_add(bytes.len() as u64);
        let is_within = |(begin, len): &(u64, u32)| {
            let data = begin.wrapping_add(Header::LEN);
            [position, end].iter().all(|at| at.wrapping_sub(data) <= u64::from(*len))
        };
        assert!(self.busy.iter().any(is_within), "{} bytes at {position} are not reserved", bytes.len());
        // SAFETY: reserved and not committed, so the consumer reads only the header before it, and nobody but us
        // writes.
        unsafe { self.pages.write(position, bytes) };
    }

    /// Writes the header of a reservation of a BPF ring buffer.
    ///
    /// # Panics
    /// If the position is no multiple of 8.
    pub(super) fn write_header(&mut self, position: u64, word: u32) {
        assert!(position.is_multiple_of(8), "the kernel aligns reservations, and {position} is not aligned");
        if self.pages.is_hostile() {
            return self.queue(Edit::Data { position, bytes: word.to_ne_bytes().to_vec() });
        }
        let at = self.pages.page + (position & (self.size() - 1)) as usize;
        // SAFETY: within the allocation, which is a page and the data area.
        let header = unsafe { self.pages.base.add(at) }.cast::<AtomicU32>();
        // SAFETY: aligned to 8 in an area that is a multiple of 8 long. Both halves use it as one word while it is not
        // committed.
        words::store_reservation(unsafe { header.as_ref() }, word);
    }

    /// Publishes a head.
    ///
    /// # Panics
    /// If the head moves backwards or past the free space, unless hostile.
    pub(crate) fn publish(&mut self, head: u64) {
        self.next = head;
        if self.pages.is_hostile() {
            return self.queue(Edit::Head(head));
        }
        if self.backward {
            return words::store_head(self.pages.word(HEAD_AT), head);
        }
        let tail = self.tail();
        let used = head.wrapping_sub(tail);
        assert!(used <= self.size() && used >= self.head().wrapping_sub(tail), "a lawful head, not {head}");
        words::store_head(self.pages.word(HEAD_AT), head);
    }

    /// Overwrites any bytes of the data area, at the consumer's next refresh.
    pub(crate) fn scribble(&mut self, position: u64, bytes: &[u8]) {
        self.turn_hostile();
        self.queue(Edit::Data { position, bytes: bytes.to_vec() });
    }

    /// Publishes any head, at the consumer's next refresh.
    pub(crate) fn force_head(&mut self, head: u64) {
        self.turn_hostile();
        self.next = head;
        self.queue(Edit::Head(head));
    }

    /// Stores a tail, as another consumer does. From now on the tail does not say what the consumer lends.
    pub(crate) fn force_tail(&mut self, tail: u64) {
        self.turn_hostile();
        words::store_tail(self.pages.word(TAIL_AT), tail);
    }

    fn turn_hostile(&self) {
        // Release pairs with `Pages::is_hostile`.
        self.pages.hostile.store(true, Ordering::Release);
    }

    fn queue(&self, edit: Edit) {
        self.pages.edits.lock().unwrap_or_else(PoisonError::into_inner).push(edit);
    }
}

/// Makes the memory of a simulated ring: the kernel's half, and the rest for a [`super::Ring`]. `None` if there is too
/// little memory.
///
/// # Panics
/// Unless both sizes are powers of two, with the page no smaller than the kernel's header struct.
pub(super) fn simulated(page: usize, size: usize, backward: bool) -> Option<(KernelHalf, Memory, NonNull<u8>)> {
    assert!(page.is_power_of_two() && page >= size_of::<perf_event_mmap_page>(), "a page of {page} bytes");
    assert!(size.is_power_of_two() && size >= 8, "a ring of {size} bytes");
    // No more alignment than an allocator gives anyway: else it fills the memory with zeros, which takes all of it at
    // once. A recording needs what is written of it.
    let layout = Layout::from_size_align(page + size, align_of::<u64>()).ok()?;
    // SAFETY: the layout is not empty.
    let base = unsafe { alloc::alloc_zeroed(layout) };
    let base = NonNull::new(base)?;
    let pages = Arc::new(Pages { base, layout, page, hostile: AtomicBool::new(false), edits: Mutex::new(Vec::new()) });
    // Relaxed by way of `store_head`'s Release: nobody shares the memory yet.
    words::store_head(pages.word(DATA_OFFSET_AT), page as u64);
    words::store_head(pages.word(DATA_SIZE_AT), size as u64);
    let kernel = KernelHalf { pages: Arc::clone(&pages), backward, next: 0, busy: Vec::new() };
    Some((kernel, Memory::Simulated(pages), base))
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mapped(_) => "Mapped",
            Self::MappedApart(..) => "MappedApart",
            Self::Foreign => "Foreign",
            Self::Simulated(_) => "Simulated",
        })
    }
}

impl fmt::Debug for KernelHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelHalf").field("head", &self.head()).field("tail", &self.tail()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Mapping;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::mman::{MsFlags, msync};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork, ftruncate};
    use std::fs;
    use std::num::NonZeroUsize;
    use std::os::fd::AsFd;

    const NAME: &str = "perfweave-mapping";

    fn is_mapped() -> bool {
        fs::read_to_string("/proc/self/maps").unwrap().contains(NAME)
    }

    /// Memory that a forked child has, unlike a perf event's: what stands there instead is the child's own.
    #[test]
    fn a_mapping_goes_with_its_owner_and_no_forked_child_takes_it_away() {
        let file = memfd_create(NAME, MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let len = NonZeroUsize::new(4096).unwrap();
        let mapping = Mapping::new(file.as_fd(), len, true, 0).unwrap();
        let base = mapping.base();
        assert!(is_mapped());
        let mut mapping = Some(mapping);
        // SAFETY: the child drops a mapping, asks for it, and leaves.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                drop(mapping.take());
                // SAFETY: asks whether there is memory.
                let is_there = unsafe { msync(base.cast(), 4096, MsFlags::MS_ASYNC) }.is_ok();
                // SAFETY: leaves without running anything of ours.
                unsafe { libc::_exit(if is_there { 0 } else { 1 }) }
            }
            ForkResult::Parent { child } => assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0)),
        }
        drop(mapping);
        assert!(!is_mapped());
    }
}
