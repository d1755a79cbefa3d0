//! BPF ring buffers (`BPF_MAP_TYPE_RINGBUF`): where programs have reserved bytes, and which of them are committed.
//!
//! The kernel gives each reservation a header of 8 bytes. While a program fills its reservation, the header is *busy*.
//! The head of such a ring is the first busy reservation: everything before it is committed and never changes. What
//! lies after it is read once it is committed too. (Nothing after it could leave earlier with proof: docs/PROOF.md.)

use super::{Ring, duplicate};
use crate::error::{Error, ErrorKind};
use crate::ring::memory::{Mapping, Memory};
use crate::ring::prefetch::prefetch_at;
use crate::ring::words::{self, AtomicU32, AtomicU64};
use crate::ring::{Bytes, Fault, Framing, Header, KernelHalf, Properties, RingKind};
use crate::sys::fork::Owner;
use crate::sys::{bpf, machine};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// The ring belongs to no single CPU: programs of all CPUs write into it. -1, as in perf_event_open(2).
pub const ANY_CPU: u32 = u32::MAX;

/// How many bytes ahead to prefetch headers.
const AHEAD: u64 = 4096;

/// A BPF ring buffer.
pub(crate) struct RingBuffer;

impl Framing for RingBuffer {
    const PROPERTIES: Properties = Properties {
        name: "a BPF ring buffer",
        // The header begins with the length, and everything after it is payload.
        payload: Some((0, Header::LEN as usize)),
        reserves: true,
        wakes_when_drained: true,
        is_shared: true,
        counts_losses: false,
        can_pause: false,
    };

    #[inline(always)]
    fn sample(begin: [u8; 8]) -> Option<Header> {
        let word = u32::from_ne_bytes(*begin.first_chunk()?);
        // Neither a flag nor a length that a header cannot hold.
        let is_plain = u64::from(word) <= Header::LONGEST - Header::LEN;
        is_plain.then(|| Header::of_sample(Reservation(word).len()))
    }

    #[inline(always)]
    fn payload_len(sample: &[u8], _: usize) -> Option<u32> {
        sample.first_chunk().map(|len| u32::from_ne_bytes(*len))
    }

    /// A refresh has checked the length, which does not change any more.
    fn record(ring: &Ring, position: u64) -> Result<(Header, Bytes<'_>), Fault> {
        let room = ring.head - position;
        let reservation = ring.reservation(position);
        let len = reservation.len();
        // Another reader of the map may have given the bytes back.
        if len > room {
            return Err(Fault::Size { size: len as u32, room });
        }
        Ok((Header::of_any(len, reservation.0 & DISCARDED != 0), ring.bytes(position, len)))
    }

    /// The head stays: what was reserved may be busy.
    fn look(ring: &mut Ring, reserved: u64) -> Result<(), Fault> {
        // SAFETY: (I1)
        let consumed = words::load_own(unsafe { ring.tail_word.as_ref() });
        let stored = ring.base.wrapping_add(ring.tail);
        if consumed != stored {
            return Err(Fault::Consumer { from: stored, to: consumed });
        }
        ring.reserved = reserved;
        Ok(())
    }
}

/// `BPF_RINGBUF_BUSY_BIT` and `BPF_RINGBUF_DISCARD_BIT` (include/uapi/linux/bpf.h).
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// The first word of `struct bpf_ringbuf_hdr`: the length of the data, and two flags.
#[derive(Debug, Clone, Copy)]
struct Reservation(u32);

impl Reservation {
    /// The most bytes of data that the kernel reserves.
    const LONGEST: u32 = DISCARDED - 1;

    /// Whether the program has neither submitted nor discarded it.
    #[inline(always)]
    fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    /// Bytes from its header to the next one (`bpf_ringbuf_reserve`: a header of 8 bytes, all rounded up to 8).
    #[inline(always)]
    fn len(self) -> u64 {
        (u64::from(self.0 & !(BUSY | DISCARDED)) + Header::LEN).next_multiple_of(8)
    }
}

impl Ring {
    /// Maps a BPF ring buffer and adopts it from its present consumer position on.
    ///
    /// # Safety
    /// As [`Ring::adopt_ring_buffers`].
    unsafe fn adopt_ring_buffer(map: impl AsFd) -> Result<Self, Error> {
        let map = map.as_fd();
        let info = info_of(map)?;
        let (page, size) = (machine::page_size(), size_of_buffer(&info)?);
        let map_pages = |len: usize, writable, offset| {
            let len = NonZeroUsize::new(len).ok_or(nix::Error::EINVAL);
            let mapping = len.and_then(|len| Mapping::new(map, len, writable, offset));
            mapping.map_err(|errno| Error::system("map a BPF ring buffer", errno.into()))
        };
        // `ringbuf_map_mmap_kern` and `struct bpf_ringbuf` (kernel/bpf/ringbuf.c): the page of the consumer position,
        // which may be written; the page of the producer position; and the data, twice.
        let consumer = map_pages(page, true, 0)?;
        let producer = map_pages(page + 2 * size, false, page)?;
        let (tail_word, base) = (consumer.base().cast(), producer.base());
        // SAFETY: the mapping is longer than a page.
        let data = unsafe { base.add(page) };
        // SAFETY: the first word of the consumer's page, aligned as pages are.
        let consumed = words::load_own(unsafe { tail_word.as_ref() });
        if !consumed.is_multiple_of(8) {
            let message = format!("the consumer position {consumed} of the BPF ring buffer is no multiple of 8");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        Ok(Self {
            head_word: base.cast::<AtomicU64>(),
            tail_word,
            data,
            mapped: 2 * size as u64,
            size: size as u64,
            mask: size as u64 - 1,
            base: consumed,
            tail: 0,
            head: 0,
            reserved: 0,
            kind: RingKind::RingBuffer,
            is_backward: false,
            map: Some(info.id),
            page: base,
            discarded: None,
            owner: Owner::new(),
            memory: Memory::MappedApart(consumer, producer),
            fd: Some(duplicate(map)?),
        })
    }

    /// Maps each BPF ring buffer (`BPF_MAP_TYPE_RINGBUF`, Linux 5.8) of a map, and adopts it from its present consumer
    /// position on. It comes with its CPU: the map itself, for [`ANY_CPU`], or the ring buffers of a
    /// `BPF_MAP_TYPE_ARRAY_OF_MAPS` or `BPF_MAP_TYPE_HASH_OF_MAPS` whose keys are the numbers of CPUs. Empty elements
    /// are left out.
    ///
    /// ```no_run
    /// use perfweave::{Clock, Error, Hold, Key, Layout, Order, Reader, Ring, Rings};
    /// use std::os::fd::BorrowedFd;
    ///
    /// /// Reads ring buffers whose programs reserve, then put `bpf_ktime_get_ns()` into the first word.
    /// fn read(map: BorrowedFd<'_>) -> Result<Reader, Error> {
    ///     let mut rings = Rings::empty(Clock::Monotonic);
    ///     // SAFETY: nobody else reads the map.
    ///     let buffers = unsafe { Ring::adopt_ring_buffers(map) }?;
    ///     for (cpu, ring) in buffers {
    ///         rings.add(cpu, ring, Layout::RING_BUFFER);
    ///     }
    ///     Reader::new(rings, Order::new().key(Key::Payload(0)).hold(Hold::FENCE))
    /// }
    /// ```
    ///
    /// # Safety
    /// Nobody else may read the maps: a second reader would give bytes back to the kernel that this one lends. The crate
    /// notices a second reader at its next refresh ([`Damage`](crate::Damage)), which may be too late.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the map has no such ring buffer, if the kernel overwrites the oldest records of one
    /// (`BPF_F_RB_OVERWRITE`), if the keys of a map of maps are not of 4 bytes, or if two elements are the same map;
    /// [`ErrorKind::System`] if one cannot be mapped; [`ErrorKind::Permission`] if this process may not open a map by its
    /// id (`CAP_SYS_ADMIN`, or `CAP_BPF` since Linux 5.19).
    pub unsafe fn adopt_ring_buffers(map: impl AsFd) -> Result<Vec<(u32, Self)>, Error> {
        let map = map.as_fd();
        let info = info_of(map)?;
        if !matches!(info.map_type, bpf::BPF_MAP_TYPE_ARRAY_OF_MAPS | bpf::BPF_MAP_TYPE_HASH_OF_MAPS) {
            // SAFETY: this function's contract is the same.
            return Ok(vec![(ANY_CPU, unsafe { Self::adopt_ring_buffer(map) }?)]);
        }
        let mut rings: Vec<(u32, Self)> = Vec::new();
        for (cpu, inner) in buffers_of(map, &info)? {
            // SAFETY: this function's contract is the same.
            let ring = unsafe { Self::adopt_ring_buffer(&inner) }?;
            if let Some((other, _)) = rings.iter().find(|(_, other)| other.is_same_map(&ring)) {
                let message = format!("elements {other} and {cpu} are the same map: a BPF ring buffer has one reader");
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
            rings.push((cpu, ring));
        }
        Ok(rings)
    }

    /// [`Ring::adopt_ring_buffers`] for a map that is pinned in a BPF file system.
    ///
    /// # Safety
    /// As [`Ring::adopt_ring_buffers`].
    ///
    /// # Errors
    /// As [`Ring::adopt_ring_buffers`]; [`ErrorKind::NotFound`] or [`ErrorKind::Permission`] if the map cannot be
    /// opened.
    pub unsafe fn adopt_pinned_ring_buffers(path: impl AsRef<Path>) -> Result<Vec<(u32, Self)>, Error> {
        let path = path.as_ref();
        let map = bpf::pinned(path).map_err(Error::pinned(path))?;
        // SAFETY: this function's contract is the same.
        unsafe { Self::adopt_ring_buffers(&map) }
    }

    /// A BPF ring buffer in plain memory, whose data is mapped once, and the kernel's half of it.
    ///
    /// # Panics
    /// If there is not enough memory.
    pub(crate) fn simulated_ring_buffer(size: usize, fd: Option<Arc<OwnedFd>>) -> (KernelHalf, Self) {
        let (kernel, ring) = Self::simulated(machine::page_size(), size, fd, false);
        (kernel, Self { kind: RingKind::RingBuffer, ..ring })
    }

    /// The same for another consumer of it.
    ///
    /// # Panics
    /// If the one before was not dropped.
    pub(crate) fn adopt_simulated(kernel: &KernelHalf, fd: Option<Arc<OwnedFd>>) -> Self {
        let (page, memory, base) = kernel.consumer().expect("a ring buffer has one reader");
        let mapped = page + kernel.size() as usize;
        // SAFETY: (I1) the memory is that long, shared through an Arc that the ring keeps, and has no other consumer.
        let ring = unsafe { Self::over(base, page, mapped, memory, fd, false) };
        Self { kind: RingKind::RingBuffer, ..ring.expect("the simulator's own geometry") }
    }

    /// Whether both read the same BPF ring buffer.
    pub(crate) fn is_same_map(&self, other: &Self) -> bool {
        self.map.is_some() && self.map == other.map
    }

    /// Whether the reservation at the head, which was busy at the last refresh, is committed now.
    #[inline]
    pub(crate) fn has_committed(&self) -> bool {
        if let Memory::Simulated(pages) = &self.memory
            && pages.has_edits()
        {
            return true;
        }
        self.head < self.reserved && !self.reservation(self.head).is_busy()
    }

    /// Moves the head over committed reservations, up to the first that is busy, or to the first that begins `most`
    /// bytes or more after the head. Where programs do not reserve, the head is already there.
    #[inline]
    pub(crate) fn pass_committed(&mut self, most: u64) -> Result<(), Fault> {
        if self.head == self.reserved {
            return Ok(());
        }
        let (begin, reserved) = (self.head, self.reserved);
        let mut head = begin;
        let mut passed = Ok(());
        while head < reserved && head - begin < most {
            if head + AHEAD < reserved {
                prefetch_at(self.data.as_ptr().wrapping_add(self.index(head + AHEAD) as usize));
            }
            let reservation = self.reservation(head);
            if reservation.is_busy() {
                break;
            }
            let room = reserved - head;
            if reservation.len() > room {
                passed = Err(Fault::Size { size: reservation.len() as u32, room });
                break;
            }
            head += reservation.len();
        }
        self.head = head;
        passed
    }

    /// The header of the reservation at a position between tail and `reserved`.
    #[inline(always)]
    fn reservation(&self, position: u64) -> Reservation {
        // SAFETY: `index` is below `size` (I1).
        let word = unsafe { self.data.add(self.index(position) as usize) };
        // SAFETY: mapped (I1), and aligned to 8: `base`, heads and lengths are multiples of 8.
        // Others only use it as one word.
        Reservation(words::load_reservation(unsafe { word.cast::<AtomicU32>().as_ref() }))
    }
}

/// What a map is.
fn info_of(map: BorrowedFd<'_>) -> Result<bpf::MapInfo, Error> {
    bpf::map_info(map).map_err(|errno| match machine::what_is(map) {
        Some(what) if what != "anon_inode:bpf-map" => Error::not_a_map("a BPF ring buffer", &what),
        _ => Error::system("ask what the map is", errno),
    })
}

/// Bytes of the data of a BPF ring buffer.
fn size_of_buffer(info: &bpf::MapInfo) -> Result<usize, Error> {
    let refused = |why: String| Err(Error::new(ErrorKind::InvalidInput, why));
    match info.map_type {
        bpf::BPF_MAP_TYPE_RINGBUF => {}
        bpf::BPF_MAP_TYPE_USER_RINGBUF => {
            return refused("programs in user space write a BPF_MAP_TYPE_USER_RINGBUF, and the kernel reads it".into());
        }
        other => return refused(format!("a BPF ring buffer is expected; this map is {}", bpf::map_type(other))),
    }
    if info.map_flags & bpf::BPF_F_RB_OVERWRITE != 0 {
        let cure = "create the map without that flag";
        return refused(format!("the kernel overwrites the oldest records of this map (BPF_F_RB_OVERWRITE): {cure}"));
    }
    let size = info.max_entries as usize;
    if !size.is_power_of_two() || !(machine::page_size() as u64..=Ring::MAX).contains(&(size as u64)) {
        return refused(format!("a BPF ring buffer of {size} bytes"));
    }
    Ok(size)
}

/// The BPF ring buffers in a map of maps whose keys are the numbers of CPUs.
fn buffers_of(map: BorrowedFd<'_>, info: &bpf::MapInfo) -> Result<Vec<(u32, OwnedFd)>, Error> {
    if info.key_size != 4 {
        let message = format!("keys of {} bytes: a map of ring buffers has the CPU as its key, 4 bytes", info.key_size);
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    let cannot = |errno| Error::system("look into the map of BPF ring buffers", errno);
    let mut buffers = Vec::new();
    for cpu in bpf::map_keys(map).map_err(cannot)? {
        buffers.extend(bpf::map_in_map(map, cpu).map_err(cannot)?.map(|inner| (cpu, inner)));
    }
    if buffers.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "the map of BPF ring buffers is empty"));
    }
    Ok(buffers)
}

impl KernelHalf {
    /// A program reserves so many bytes of data. Gives the position of its header; `None` if there is not enough space,
    /// or for 2^30 bytes or more, which the kernel refuses (`RINGBUF_MAX_RECORD_SZ`, `kernel/bpf/ringbuf.c`).
    pub(crate) fn reserve(&mut self, len: u32) -> Option<u64> {
        // A forced head may have any value. The kernel's are aligned.
        let head = self.next() & !7;
        let end = head.wrapping_add(Reservation(len).len());
        if len > Reservation::LONGEST || end.wrapping_sub(self.tail()) > self.size() - 1 {
            return None;
        }
        self.write_header(head, len | BUSY);
        self.busy.push((head, len));
        self.publish(end);
        Some(head)
    }

    /// A program fills its reservation and submits it, or discards it.
    ///
    /// # Panics
    /// Unless this reservation of `len` bytes is busy and the data as long as it.
    pub(crate) fn commit(&mut self, position: u64, len: u32, data: Option<&[u8]>) {
        let at = self.busy.iter().position(|busy| *busy == (position, len)).expect("a reservation that is busy");
        if let Some(data) = data {
            assert_eq!(data.len(), len as usize, "data as long as the reservation");
            self.write_reserved(position.wrapping_add(Header::LEN), data);
        }
        self.write_header(position, if data.is_some() { len } else { len | DISCARDED });
        self.busy.swap_remove(at);
    }

    /// How many reservations are busy.
    pub(crate) fn busy(&self) -> usize {
        self.busy.len()
    }
}
