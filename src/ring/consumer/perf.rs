//! Rings of perf events. Records begin with `struct perf_event_header`, and everything before the head is written.

use super::{Ring, duplicate};
use crate::error::{Error, ErrorKind};
use crate::ring::memory::{self, CAPABILITIES_AT, DATA_OFFSET_AT, DATA_SIZE_AT, HEAD_AT, Mapping, Memory, TAIL_AT};
use crate::ring::words::{self, AtomicU64};
use crate::ring::{Bytes, Fault, Framing, Header, KernelHalf, Properties, RingKind};
use crate::sys::fork::Owner;
use crate::sys::machine;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// A perf event's ring.
pub(crate) struct Perf;

impl Framing for Perf {
    const PROPERTIES: Properties = Properties {
        name: "a perf ring",
        payload: None,
        reserves: false,
        wakes_when_drained: false,
        is_shared: false,
        counts_losses: true,
        can_pause: true,
    };

    #[inline(always)]
    fn sample(begin: [u8; 8]) -> Option<Header> {
        Header::sample(begin)
    }

    #[inline(always)]
    fn payload_len(sample: &[u8], end: usize) -> Option<u32> {
        let len = u32::from_ne_bytes(*sample.get(..end)?.last_chunk()?);
        (len as usize <= sample.len() - end).then_some(len)
    }

    #[inline]
    fn record(ring: &Ring, position: u64) -> Result<(Header, Bytes<'_>), Fault> {
        let room = ring.head - position;
        let Some(bytes) = ring.bytes(position, room.min(Header::LEN)).array(0) else {
            return Err(Fault::Size { size: 0, room });
        };
        let header = Header::checked(bytes, room)?;
        Ok((header, ring.bytes(position, header.size().into())))
    }

    #[inline]
    fn look(ring: &mut Ring, head: u64) -> Result<(), Fault> {
        (ring.head, ring.reserved) = (head, head);
        Ok(())
    }
}

impl Ring {
    /// Maps the ring of a perf event: a header page of `page` bytes and `size` bytes of data. `backward`: the kernel
    /// writes backwards, over the oldest records.
    pub(crate) fn map(fd: Arc<OwnedFd>, page: usize, size: usize, backward: bool) -> Result<Self, Error> {
        let error = |errno: nix::Error| Error::system("map a ring", errno.into());
        let len = NonZeroUsize::new(page.saturating_add(size)).ok_or(error(nix::Error::EINVAL))?;
        let mapping = Mapping::new(fd.as_fd(), len, !backward, 0).map_err(error)?;
        let base = mapping.base();
        // SAFETY: the mapping is `len` long and moves into the ring.
        unsafe { Self::over(base, page, len.get(), Memory::Mapped(mapping), Some(fd), backward) }
    }

    /// Adopts a ring that is already mapped, from its present tail on (feature `test-util`).
    ///
    /// `base` is the header page and `size` the bytes of data after it, as libbpf's `perf_buffer__buffer()` gives them:
    /// its size excludes the header page, although its comment says otherwise. `event` becomes readable when the ring
    /// was written to (`perf_buffer__buffer_fd()`). It is duplicated. Without it, the reader refreshes the ring at its
    /// own ticks.
    ///
    /// The order of its events is proven only if the event has `inherit_stat` 0 and, on the perf clock, `precise_ip` 0:
    /// see [`Rings::add`](crate::Rings::add).
    ///
    /// # Safety
    /// `base` must be a perf event's writable mapping of one page and `size` bytes and stay mapped while the ring
    /// lives. No one else may move its `data_tail`. The kernel must heed that tail: the event is not `write_backward`,
    /// and its first mapping was not read-only, which would have made the ring overwritable for good.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the header page disagrees with `size`; [`ErrorKind::System`] if `event` cannot be
    /// duplicated.
    #[cfg(any(test, feature = "test-util"))]
    pub unsafe fn adopt_mapping(
        base: NonNull<u8>,
        size: usize,
        event: Option<std::os::fd::BorrowedFd<'_>>,
    ) -> Result<Self, Error> {
        let fd = event.map(duplicate).transpose()?;
        let page = machine::page_size();
        // SAFETY: this function's contract is the same.
        unsafe { Self::over(base, page, page.saturating_add(size), Memory::Foreign, fd, false) }
    }

    /// Maps the ring of an open perf event, and adopts it from its present tail on. If another program has mapped it,
    /// `size` is the bytes of data of that mapping; the kernel refuses any other size (`EINVAL`). The file descriptor
    /// is duplicated.
    ///
    /// The order of its events is proven only if the event has `inherit_stat` 0 and, on the perf clock, `precise_ip` 0:
    /// see [`Rings::add`](crate::Rings::add).
    ///
    /// This is also the way to read an event that a program has opened itself with perf_event_open(2), with settings
    /// for which [`RingOptions`](crate::RingOptions) has no option. The program opens the event for one CPU and starts
    /// it:
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
    /// [`ErrorKind::System`] if the event cannot be mapped with that size; [`ErrorKind::InvalidInput`] if its header
    /// page disagrees.
    pub unsafe fn adopt_event(event: impl AsFd, size: usize) -> Result<Self, Error> {
        Self::map(duplicate(event.as_fd())?, machine::page_size(), size, false)
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
    pub(super) unsafe fn over(
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
        let (offset, size) = data_of([read(DATA_OFFSET_AT), read(DATA_SIZE_AT)], page, mapped)?;
        Ok(Self {
            head_word: word(HEAD_AT),
            tail_word: word(TAIL_AT),
            // SAFETY: `offset + size` is the length of the mapping, as `data_of` has checked.
            data: unsafe { base.add(offset as usize) },
            mapped: size,
            size,
            mask: size - 1,
            base: read(TAIL_AT),
            tail: 0,
            head: 0,
            reserved: 0,
            kind: RingKind::Perf,
            is_backward: backward,
            map: None,
            page: base,
            discarded: None,
            owner: Owner::new(),
            memory,
            fd,
        })
    }

    /// Whether the kernel says in the header page that its perf clock is the time stamp counter (`cap_user_time`).
    /// `None` where no kernel writes perf records: simulated rings, and BPF ring buffers.
    pub(crate) fn has_user_time(&self) -> Option<bool> {
        /// Bit-fields begin at the other end of a big-endian word.
        const CAP_USER_TIME: u64 = if cfg!(target_endian = "big") { 1 << 60 } else { 1 << 3 };
        if self.is_simulated() || self.kind != RingKind::Perf {
            return None;
        }
        // SAFETY: (I1) a field of the kernel's header struct, which the first page holds.
        let word = unsafe { self.page.add(CAPABILITIES_AT) }.cast::<AtomicU64>();
        // SAFETY: (I1) mapped, and aligned to 8.
        let capabilities = words::load_own(unsafe { word.as_ref() });
        Some(capabilities & CAP_USER_TIME != 0)
    }

    /// Loads the head of a ring written backwards and makes everything in it readable: position 0 is the newest record,
    /// and older ones follow. The last one may be cut. Returns whether anything was overwritten. The caller ensures
    /// (I9).
    pub(crate) fn refresh_backward(&mut self) -> bool {
        debug_assert!(self.is_backward);
        let head = self.load_head();
        // The kernel counts down from zero.
        let written = head.wrapping_neg();
        self.base = head;
        self.tail = 0;
        self.head = written.min(self.size);
        self.reserved = self.head;
        written > self.size
    }

    /// Copies everything in a ring written backwards, as it lies there, into another as long. The caller ensures (I9).
    pub(crate) fn copy_backward(&mut self, kernel: &mut KernelHalf) {
        self.refresh_backward();
        let (first, second) = self.bytes(0, self.head).as_slices();
        kernel.write(self.base, first);
        kernel.write(self.base.wrapping_add(first.len() as u64), second);
        kernel.publish(self.base);
        // Nothing is lent once the kernel writes again.
        (self.head, self.reserved) = (self.tail, self.tail);
    }
}

/// Where the data of a ring begins in its mapping, and how many bytes it has: what the header page says of both,
/// checked.
fn data_of([offset, size]: [u64; 2], page: usize, mapped: usize) -> Result<(u64, u64), Error> {
    // Kernels before 4.1 leave both zero: the data follows the header page.
    let offset = if offset == 0 { page as u64 } else { offset };
    let size = if size == 0 { mapped.saturating_sub(page) as u64 } else { size };
    let fits = offset >= page as u64
        && offset % 8 == 0
        && (8..=Ring::MAX).contains(&size)
        && size.is_power_of_two()
        && offset.checked_add(size) == Some(mapped as u64);
    if !fits {
        let says = format!("{mapped} bytes mapped, but its header says {size} bytes of data at {offset}");
        return Err(Error::new(ErrorKind::InvalidInput, format!("no perf ring: {says}")));
    }
    Ok((offset, size))
}
