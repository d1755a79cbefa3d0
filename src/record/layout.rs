//! Layouts: where the fields of a ring's records lie.

use crate::ring::{Properties, RingKind};
use perf_event_open_sys::bindings as sys;

/// Which fields the records of a ring carry, as `perf_event_attr` asked for them, and where they lie.
///
/// Rings opened by [`Rings::options`](crate::Rings::options) know their layout. For a ring of another program, give the
/// layout that program asked for: [`Layout::RAW`] for libbpf, aya and cilium/ebpf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    pub(super) sample_type: u64,
    sample_id_all: bool,
    pub(super) read_format: u64,
    /// Offsets from the start of a sample. `None`: not requested. 8 ..= 72.
    pub(super) time: Option<u8>,
    pub(super) id: Option<u8>,
    pub(super) tid: Option<u8>,
    /// Where READ, CALLCHAIN and RAW begin, the first fields of varying length. 8 ..= 80.
    pub(super) fixed: u8,
    /// The same, if samples have raw data at that offset; else beyond the end of any record.
    pub(super) raw: u32,
    /// Offsets back from the end of all other records, where `sample_id_all` is set. 8 ..= 48.
    pub(super) time_back: Option<u8>,
    pub(super) id_back: Option<u8>,
    pub(super) tid_back: Option<u8>,
    /// Length of the trailer that `sample_id_all` appends. 0 ..= 48.
    pub(super) trailer: u8,
    /// Masks of registers, of user space and at the interrupt.
    pub(super) registers_user: u64,
    pub(super) registers_interrupt: u64,
    /// `branch_sample_type`
    pub(super) branches: u64,
    /// In which kind of ring records lie.
    pub(crate) kind: RingKind,
    /// Where the payload in a ring that CPUs share names the CPU; 0 if it does not, else one more than the offset.
    cpu_at: u32,
    /// The program's own number for its ring.
    tag: u32,
}

pub(crate) const TID: u64 = sys::PERF_SAMPLE_TID as u64;
pub(crate) const TIME: u64 = sys::PERF_SAMPLE_TIME as u64;
pub(crate) const ID: u64 = sys::PERF_SAMPLE_ID as u64;
pub(crate) const STREAM_ID: u64 = sys::PERF_SAMPLE_STREAM_ID as u64;
pub(crate) const CPU: u64 = sys::PERF_SAMPLE_CPU as u64;
pub(crate) const IDENTIFIER: u64 = sys::PERF_SAMPLE_IDENTIFIER as u64;
pub(super) const IP: u64 = sys::PERF_SAMPLE_IP as u64;
pub(super) const ADDR: u64 = sys::PERF_SAMPLE_ADDR as u64;
pub(super) const PERIOD: u64 = sys::PERF_SAMPLE_PERIOD as u64;
pub(super) const READ: u64 = sys::PERF_SAMPLE_READ as u64;
pub(super) const CALLCHAIN: u64 = sys::PERF_SAMPLE_CALLCHAIN as u64;
pub(super) const RAW: u64 = sys::PERF_SAMPLE_RAW as u64;

/// The order of the fixed fields at a sample's begin: "struct { ... }" under PERF_RECORD_SAMPLE in perf_event_open(2).
pub(crate) const SAMPLE_ORDER: [u64; 9] = [IDENTIFIER, IP, TID, TIME, ADDR, ID, STREAM_ID, CPU, PERIOD];

/// The order of `struct sample_id` at the end of all other records (perf_event_open(2)).
pub(crate) const TRAILER_ORDER: [u64; 6] = [TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER];

/// Beyond the end of every record: those of a BPF ring buffer may be longer than 64 KiB.
const NOWHERE: u32 = u32::MAX;

impl Layout {
    /// `PERF_SAMPLE_RAW` alone, which libbpf, aya and cilium/ebpf ask for. Such records carry no time and no id.
    pub const RAW: Self = Self::new(RAW, false, 0);

    /// That of a BPF ring buffer ([`Ring::adopt_ring_buffers`](crate::Ring::adopt_ring_buffers)): what a program submits,
    /// and nothing else. Such records carry no time, no id and no padding.
    pub const RING_BUFFER: Self = Self { raw: NOWHERE, kind: RingKind::RingBuffer, ..Self::RAW };

    /// The same layout, with the CPU that wrote a record as a `u32` at this offset, in bytes, of its payload. For a BPF
    /// ring buffer that programs of several CPUs share.
    ///
    /// # Panics
    /// If this is not [`Layout::RING_BUFFER`], or the offset is 2^32 - 1 or more.
    #[must_use]
    pub const fn cpu_at(mut self, offset: usize) -> Self {
        assert!(self.properties().is_shared, "records of a perf ring are of its CPU");
        assert!(offset < u32::MAX as usize, "an offset in a record");
        self.cpu_at = offset as u32 + 1;
        self
    }

    /// The same layout, with a number that the program chooses for the ring. It tells rings of the same CPU apart:
    /// `record.layout().tag()`.
    ///
    /// ```
    /// # use perfweave::{ANY_CPU, Clock, Hold, Key, Layout, Order, Reader, Rings, sim::RingBuffer};
    /// # use std::time::Duration;
    /// let mut rings = Rings::empty(Clock::Monotonic);
    /// for tag in [7, 8_u32] {
    ///     let (buffer, ring) = RingBuffer::new(4096);
    ///     buffer.output(&u64::from(tag).to_ne_bytes());
    ///     rings.add(ANY_CPU, ring, Layout::RING_BUFFER.tagged(tag));
    /// }
    /// let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0)).hold(Hold::None))?;
    /// while let Some(event) = reader.next_timeout(Duration::ZERO)? {
    ///     assert_eq!(event.record().map(|record| record.layout().tag().into()), event.key());
    /// }
    /// # assert_eq!(reader.status().total().yielded, 2);
    /// # Ok::<(), perfweave::Error>(())
    /// ```
    #[must_use]
    pub const fn tagged(mut self, tag: u32) -> Self {
        self.tag = tag;
        self
    }

    /// The program's number for the ring ([`Layout::tagged`]). 0 if it chose none.
    pub const fn tag(&self) -> u32 {
        self.tag
    }

    /// Where the payload says which CPU wrote it.
    #[inline]
    pub(crate) fn cpu(&self) -> Option<usize> {
        self.cpu_at.checked_sub(1).map(|at| at as usize)
    }

    /// Whether this is the layout of a BPF ring buffer ([`Layout::RING_BUFFER`]).
    #[inline]
    pub const fn is_ring_buffer(&self) -> bool {
        matches!(self.kind, RingKind::RingBuffer)
    }

    pub(crate) const fn properties(&self) -> &'static Properties {
        self.kind.properties()
    }

    /// Whether records begin with `struct perf_event_header` and have the fields of perf_event_open(2).
    #[inline]
    pub(crate) fn has_fields(&self) -> bool {
        self.properties().payload.is_none()
    }

    /// The layout for these three members of `perf_event_attr`.
    pub const fn new(sample_type: u64, sample_id_all: bool, read_format: u64) -> Self {
        let mut layout = Self {
            sample_type,
            sample_id_all,
            read_format,
            time: None,
            id: None,
            tid: None,
            fixed: 8,
            raw: NOWHERE,
            time_back: None,
            id_back: None,
            tid_back: None,
            trailer: 0,
            registers_user: 0,
            registers_interrupt: 0,
            branches: 0,
            kind: RingKind::Perf,
            cpu_at: 0,
            tag: 0,
        };
        let mut i = 0;
        while i < SAMPLE_ORDER.len() {
            let field = SAMPLE_ORDER[i];
            if sample_type & field != 0 {
                match field {
                    // IDENTIFIER and ID carry the same number, so the first one found is enough.
                    IDENTIFIER | ID if layout.id.is_none() => layout.id = Some(layout.fixed),
                    TID => layout.tid = Some(layout.fixed),
                    TIME => layout.time = Some(layout.fixed),
                    _ => {}
                }
                layout.fixed += 8;
            }
            i += 1;
        }
        if sample_type & (READ | CALLCHAIN | RAW) == RAW {
            layout.raw = layout.fixed as u32;
        }
        if sample_id_all {
            let mut i = TRAILER_ORDER.len();
            while i > 0 {
                i -= 1;
                let field = TRAILER_ORDER[i];
                if sample_type & field != 0 {
                    layout.trailer += 8;
                    match field {
                        IDENTIFIER | ID if layout.id_back.is_none() => layout.id_back = Some(layout.trailer),
                        TID => layout.tid_back = Some(layout.trailer),
                        TIME => layout.time_back = Some(layout.trailer),
                        _ => {}
                    }
                }
            }
        }
        layout
    }

    /// The same layout with these registers: the masks `sample_regs_user` and `sample_regs_intr` of `perf_event_attr`.
    /// The masks give the length of the fields `PERF_SAMPLE_REGS_USER` and `PERF_SAMPLE_REGS_INTR`, and so the offset
    /// of the fields after them.
    #[must_use]
    pub const fn registers(mut self, user: u64, interrupt: u64) -> Self {
        self.registers_user = user;
        self.registers_interrupt = interrupt;
        self
    }

    /// The same layout with this `branch_sample_type` of `perf_event_attr`, which gives the length of the field
    /// `PERF_SAMPLE_BRANCH_STACK`.
    #[must_use]
    pub const fn branches(mut self, branch_sample_type: u64) -> Self {
        self.branches = branch_sample_type;
        self
    }

    /// The offset of a field in samples, in bytes from the record's start, header included. `None` if the field was not
    /// requested, and for fields after one of varying length, which have no fixed offset.
    #[inline]
    pub(crate) fn offset(&self, field: u64) -> Option<usize> {
        if self.sample_type & field == 0 {
            return None;
        }
        let (mut at, mut i) = (8, 0);
        while i < SAMPLE_ORDER.len() {
            if SAMPLE_ORDER[i] == field {
                return Some(at);
            }
            if self.sample_type & SAMPLE_ORDER[i] != 0 {
                at += 8;
            }
            i += 1;
        }
        None
    }

    /// The `sample_type` of this layout.
    pub fn sample_type(&self) -> u64 {
        self.sample_type
    }

    /// Whether records other than samples carry `struct sample_id`.
    pub fn sample_id_all(&self) -> bool {
        self.sample_id_all
    }

    /// The `read_format` of the events, which gives the layout of READ fields.
    pub fn read_format(&self) -> u64 {
        self.read_format
    }

    /// The most bytes that a BPF program may output at once into a ring of this layout. More makes the kernel overwrite
    /// unread records, even while a program reads them.
    ///
    /// A record's length is a 16-bit number and a multiple of 8. So it is 65,528 bytes at most: less 8 for the header,
    /// 8 for each field that samples have besides raw data, and 4 for the length of the raw data. That leaves 65,508
    /// where [`Rings::options`](crate::Rings::options) opens one event, whose samples have a time, and 65,500 where it
    /// opens several, whose samples have an identifier too. [`Rings::layouts`](crate::Rings::layouts) has the layout of
    /// each ring.
    ///
    /// `None` if samples have no raw data, if they have other fields of varying length, which leave less, and for a BPF
    /// ring buffer, where programs cannot output too much (feature `test-util`).
    #[cfg(any(test, feature = "test-util"))]
    pub const fn largest_output(&self) -> Option<usize> {
        const VARYING: u64 = READ
            | CALLCHAIN
            | (sys::PERF_SAMPLE_BRANCH_STACK
                | sys::PERF_SAMPLE_REGS_USER
                | sys::PERF_SAMPLE_STACK_USER
                | sys::PERF_SAMPLE_REGS_INTR
                | sys::PERF_SAMPLE_AUX) as u64;
        if self.is_ring_buffer() || self.sample_type & (VARYING | RAW) != RAW {
            return None;
        }
        let fields = (self.sample_type & !RAW).count_ones() as usize;
        Some((crate::ring::Header::LONGEST - crate::ring::Header::LEN) as usize - 8 * fields - size_of::<u32>())
    }

    /// Bytes of the smallest sample.
    pub(crate) fn smallest(&self) -> u64 {
        // Raw data is 8 bytes with its length; counts of call chains and values are 8 bytes each.
        u64::from(self.fixed) + 8 * u64::from((self.sample_type & (READ | CALLCHAIN | RAW)).count_ones())
    }

    /// Where the length of raw data lies in samples, and the data, if no field of varying length comes before it.
    #[inline]
    pub(crate) fn raw(&self) -> Option<(usize, usize)> {
        match self.raw {
            NOWHERE => self.properties().payload,
            at => Some((at as usize, at as usize + 4)),
        }
    }

    /// Where the kernel's time lies in samples.
    #[inline]
    pub(crate) fn time_at(&self) -> Option<usize> {
        self.time.map(usize::from)
    }

    /// The masks of registers of user space and at the interrupt ([`Layout::registers`]).
    pub fn register_masks(&self) -> [u64; 2] {
        [self.registers_user, self.registers_interrupt]
    }

    /// The `branch_sample_type` of this layout ([`Layout::branches`]).
    pub fn branch_sample_type(&self) -> u64 {
        self.branches
    }

    /// Whether samples carry the kernel's time.
    pub(crate) fn has_time(&self) -> bool {
        self.time.is_some()
    }

    /// Whether reading the event itself gives its own count of losses, as the last word.
    pub(crate) fn counts_losses(&self) -> bool {
        let both = u64::from(sys::PERF_FORMAT_LOST | sys::PERF_FORMAT_GROUP);
        self.read_format & both == u64::from(sys::PERF_FORMAT_LOST)
    }

    /// Length in bytes of the `struct sample_id` that `sample_id_all` appends to other records.
    pub fn trailer_len(&self) -> usize {
        usize::from(self.trailer)
    }
}
