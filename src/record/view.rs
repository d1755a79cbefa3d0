//! Records as they lie in a ring: kind, fields, payload. Every read is checked against the record's own length.

#[cfg(all(test, not(loom)))]
mod tests;

use crate::record::fields;
use crate::record::kind::{kind_name, kind_text};
use crate::record::layout::{ADDR, CALLCHAIN, IP, PERIOD, RAW};
use crate::record::{Layout, Origin};
use crate::ring::{Bytes, Fault, Framing, Header, Ring};
use perf_event_open_sys::bindings;
use std::fmt;
use std::sync::Arc;

/// A record in its ring, zero-copy.
///
/// Every call reads the field from the record's own bytes and checks it against the record's length. So no field can
/// panic or read outside of the record, whatever the ring holds.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// Header included. INVARIANT: at least a header long.
    bytes: Bytes<'a>,
    header: Header,
    origin: &'a Arc<Origin>,
}

/// Where `misc` lies in `struct perf_event_header`.
const MISC: usize = 4;
/// The same of `size`.
const SIZE: usize = 6;

impl<'a> Record<'a> {
    pub(crate) fn new(bytes: Bytes<'a>, header: Header, origin: &'a Arc<Origin>) -> Self {
        debug_assert!(header.size() == 0 || bytes.len() == usize::from(header.size()));
        Self { bytes, header, origin }
    }

    /// The checked record at a position of a ring; or the fault there, and the position at which to go on.
    #[inline]
    pub(crate) fn at(ring: &'a Ring, position: u64, origin: &'a Arc<Origin>) -> Result<Self, (Fault, u64)> {
        let (header, bytes) = ring.record(position).map_err(|fault| (fault, ring.head()))?;
        let record = Self::new(bytes, header, origin);
        match record.check() {
            Ok(()) => Ok(record),
            Err(fault) => Err((fault, position + record.len())),
        }
    }

    /// A sample that was checked before, from its bytes. `size`: how many there are, less than 64 KiB.
    #[inline(always)]
    pub(crate) fn sample(bytes: Bytes<'a>, size: u64, origin: &'a Arc<Origin>) -> Self {
        Self::new(bytes, Header::of_sample(size), origin)
    }

    /// The record, field by field.
    #[inline(always)]
    pub(crate) fn copy(&self) -> Self {
        let (head, tail) = self.bytes.as_slices();
        Self::new(Bytes::new(head, tail), self.header, self.origin)
    }

    /// A record of any kind and length that was checked before, from its bytes. Only its kind is read again.
    #[inline]
    pub(crate) fn again(bytes: Bytes<'a>, origin: &'a Arc<Origin>) -> Self {
        let header = match bytes.array(0) {
            Some(header) if origin.layout.has_fields() => Header::resized(header, bytes.len() as u64),
            _ => Header::of_any(bytes.len() as u64, false),
        };
        Self::new(bytes, header, origin)
    }

    /// Bytes of the record, header included.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether it is no record: a program discarded what it had reserved. A header of perf's may hold that kind and
    /// mean nothing.
    #[inline]
    pub(crate) fn is_discarded(&self) -> bool {
        self.header.is_discarded() && !self.origin.layout.has_fields()
    }

    /// The checked record at the start of some bytes, and the bytes after it, if it is a sample without a field of
    /// varying length before its raw data. `raw_end`: where the length of its raw data ends.
    #[inline(always)]
    pub(crate) fn plainest<F: Framing>(
        bytes: &'a [u8],
        raw_end: usize,
        origin: &'a Arc<Origin>,
    ) -> Option<(Self, &'a [u8])> {
        let (header, record, rest) = F::split(bytes, Header::LEN as usize)?;
        F::payload_len(record, raw_end)?;
        Some((Self::new(record.into(), header, origin), rest))
    }

    /// The record's kind: `perf_event_header.type`, a `PERF_RECORD_*` number of perf_event_open(2). The crate
    /// perf-event-open-sys has the names. What a BPF program wrote is a `PERF_RECORD_SAMPLE`, in a BPF ring buffer too.
    /// Records of kinds that this crate does not know are yielded like all others.
    #[inline]
    pub fn kind(&self) -> u32 {
        self.header.kind()
    }

    /// The header's name of its kind without `PERF_RECORD_`: "SAMPLE", "COMM". `None` if this crate does not know the
    /// kind.
    pub fn kind_name(&self) -> Option<&'static str> {
        kind_name(self.kind())
    }

    /// `perf_event_header.misc`, whose bits mean different things from kind to kind.
    #[inline]
    pub fn misc(&self) -> u16 {
        // Nothing else depends on it, so it is read where it lies.
        self.bytes.u16(MISC).filter(|_| self.origin.layout.has_fields()).unwrap_or_default()
    }

    /// The CPU of the record's ring, which is the CPU that wrote the record. For a BPF ring buffer that CPUs share, the
    /// CPU that the record names ([`Layout::cpu_at`]), or [`ANY_CPU`](crate::ANY_CPU).
    #[inline]
    pub fn cpu(&self) -> u32 {
        match self.origin.layout.cpu() {
            None => self.origin.cpu,
            Some(at) => self.payload().and_then(|payload| payload.u32(at)).unwrap_or(self.origin.cpu),
        }
    }

    /// The kernel's time in nanoseconds, on the clock with which the ring was opened. `None` if the ring does not
    /// record it.
    #[inline]
    pub fn time(&self) -> Option<u64> {
        self.at_either_end(self.origin.layout.time, self.origin.layout.time_back).and_then(|at| self.bytes.u64(at))
    }

    /// The id of the event that wrote the record (`PERF_EVENT_IOC_ID`), if the ring records `IDENTIFIER` or `ID`.
    #[inline]
    pub fn id(&self) -> Option<u64> {
        self.at_either_end(self.origin.layout.id, self.origin.layout.id_back).and_then(|at| self.bytes.u64(at))
    }

    /// Which of the events that share the ring wrote the record: the index, from 0, in the order in which they were
    /// added to [`RingOptions`](crate::RingOptions).
    #[inline]
    pub fn source(&self) -> Option<usize> {
        match self.origin.only {
            None => self.origin.source(self.id()?),
            only => only,
        }
    }

    /// Process and thread id, if the ring records `TID`.
    pub fn pid_tid(&self) -> Option<(u32, u32)> {
        let at = self.at_either_end(self.origin.layout.tid, self.origin.layout.tid_back)?;
        Some((self.bytes.u32(at)?, self.bytes.u32(at + 4)?))
    }

    /// The layout of the record's ring.
    pub fn layout(&self) -> &'a Layout {
        &self.origin.layout
    }

    /// The address of the instruction at which a sample was taken, if the ring records it
    /// (`PERF_SAMPLE_IP`: [`RingOptions::sample`](crate::RingOptions::sample)). `None` for records other than samples.
    ///
    /// [`Record::misc`] says whether it is the kernel's (`PERF_RECORD_MISC_KERNEL`) or a program's
    /// (`PERF_RECORD_MISC_USER`).
    #[inline]
    pub fn ip(&self) -> Option<u64> {
        self.word(IP)
    }

    /// The address that a sample is about, if the ring records it (`PERF_SAMPLE_ADDR`). 0 for events without an
    /// address. `None` for records other than samples.
    #[inline]
    pub fn addr(&self) -> Option<u64> {
        self.word(ADDR)
    }

    /// How many events a sample stands for, if the ring records it (`PERF_SAMPLE_PERIOD`). Nanoseconds for clocks.
    /// `None` for records other than samples.
    #[inline]
    pub fn period(&self) -> Option<u64> {
        self.word(PERIOD)
    }

    #[inline]
    fn word(&self, field: u64) -> Option<u64> {
        let at = self.origin.layout.offset(field).filter(|_| self.kind() == bindings::PERF_RECORD_SAMPLE)?;
        self.bytes.u64(at)
    }

    /// A sample's call chain, innermost frame first, if the ring records it (`PERF_SAMPLE_CALLCHAIN`). `None` for
    /// records other than samples, and for a chain that claims to be longer than its record. Read in place, even if it
    /// wraps.
    ///
    /// The kernel's context markers stay in the chain. A marker is no address. It says to what the addresses after it
    /// belong, up to the next marker. The markers are `PERF_CONTEXT_KERNEL` (`u64::MAX` - 127), `PERF_CONTEXT_USER`
    /// (`u64::MAX` - 511), and, in guests, `PERF_CONTEXT_GUEST` and so on, in the crate perf-event-open-sys. No address
    /// is as large as `PERF_CONTEXT_MAX` (`u64::MAX` - 4094) or larger (`enum perf_callchain_context` of
    /// `linux/perf_event.h`).
    pub fn callchain(&self) -> Option<impl ExactSizeIterator<Item = u64> + Clone + use<'a>> {
        let frames = self.field(CALLCHAIN)?.skip(8)?;
        Some((0..frames.len() / 8).map(move |frame| frames.u64(8 * frame).unwrap_or_default()))
    }

    /// The bytes of any field of a sample, as the kernel wrote them, with the counts and sizes at its start. `field` is
    /// a bit of `sample_type`, such as `PERF_SAMPLE_WEIGHT`, as a `u32` like the header's or a `u64`. `None` if the
    /// ring does not record it, if it does not fit into the record, and for records other than samples.
    ///
    /// A field after others of varying length is found by their lengths. perf_event_open(2), PERF_RECORD_SAMPLE,
    /// describes the content of each.
    pub fn field(&self, field: impl Into<u64>) -> Option<Bytes<'a>> {
        let field = field.into();
        if self.kind() != bindings::PERF_RECORD_SAMPLE {
            return None;
        }
        if !self.origin.layout.has_fields() {
            return self.payload().filter(|_| field == RAW);
        }
        self.bytes.get(fields::range_of(&self.origin.layout, self.bytes, field)?)
    }

    /// The offset of a field that samples have at their start, and all other records, with `sample_id_all`, at their
    /// end.
    #[inline]
    fn at_either_end(&self, front: Option<u8>, back: Option<u8>) -> Option<usize> {
        if self.kind() == bindings::PERF_RECORD_SAMPLE {
            front.map(usize::from)
        } else {
            self.bytes.len().checked_sub(usize::from(back?))
        }
    }

    /// Appends the record to a buffer as the kernel would have written it if `PERF_SAMPLE_TIME` had not been asked for. For
    /// a program that knows the layout which it asked for itself, and not the time that order needs.
    pub fn copy_without_time(&self, into: &mut Vec<u8>) {
        let (begin, size) = (into.len(), self.bytes.len());
        into.extend(self.bytes.iter());
        let places = (self.origin.layout.time, self.origin.layout.time_back);
        if let Some(at) = self.at_either_end(places.0, places.1).filter(|at| at + 8 <= size) {
            into.drain(begin + at..begin + at + 8);
            // `perf_event_header.size`, which counts the header and has 16 bits.
            into[begin + SIZE..begin + SIZE + 2].copy_from_slice(&((size - 8) as u16).to_ne_bytes());
        }
    }

    /// Everything after the header: fields, payload and padding as the kernel wrote them.
    #[inline]
    pub fn body(&self) -> Bytes<'a> {
        // Not `unwrap`: a record is never shorter than a header, but a panic has no place on this path.
        self.bytes.skip(Header::LEN as usize).unwrap_or_default()
    }

    /// The record with its header.
    pub fn as_bytes(&self) -> Bytes<'a> {
        self.bytes
    }

    /// A sample's raw data (`PERF_SAMPLE_RAW`): the data that a BPF program passed to `bpf_perf_event_output`, or a
    /// tracepoint's fields. `None` for records without raw data. In a BPF ring buffer: what a program submitted, and no
    /// more.
    ///
    /// In a perf ring the kernel rounds the length of the data up, so that the record's length is a multiple of 8. So
    /// **0 to 7 bytes of old ring memory follow the data**, and the record does not say how many
    /// (`perf_sample_save_raw_data`, `kernel/events/core.c`).
    #[inline(always)]
    pub fn payload(&self) -> Option<Bytes<'a>> {
        let (head, tail) = self.bytes.as_slices();
        if self.kind() == bindings::PERF_RECORD_SAMPLE
            && let Some(data) = raw_within(head, self.origin.layout.raw as usize)
        {
            return Some(data.into());
        }
        Self::payload_elsewhere(head, tail, self.header, self.origin)
    }

    /// The same if raw data wraps, comes after fields of varying length, lies in a BPF ring buffer, or is absent. Field
    /// by field: a copy of the whole record would be made in memory before it is known whether it is needed.
    #[inline(never)]
    fn payload_elsewhere(head: &'a [u8], tail: &'a [u8], header: Header, origin: &'a Arc<Origin>) -> Option<Bytes<'a>> {
        let record = Self::new(Bytes::new(head, tail), header, origin);
        let (begin, size) = record.raw().ok()??;
        record.bytes.get(begin..begin + size as usize)
    }

    /// The count of a LOST record, or of a LOST_SAMPLES record: `(id, lost)`. `None` for all others.
    pub(crate) fn lost(&self) -> Option<(u64, u64)> {
        match self.kind() {
            bindings::PERF_RECORD_LOST => Some((self.bytes.u64(8)?, self.bytes.u64(16)?)),
            bindings::PERF_RECORD_LOST_SAMPLES => Some((self.id().unwrap_or(0), self.bytes.u64(8)?)),
            _ => None,
        }
    }

    /// Whether it is a LOST_SAMPLES record: the kernel writes one when it empties a buffer of the processor in which
    /// samples were lost. These were never meant for the ring, so no count of the ring's has them.
    pub(crate) fn is_lost_samples(&self) -> bool {
        self.kind() == bindings::PERF_RECORD_LOST_SAMPLES
    }

    /// Checks that the fields which `sample_type` promises fit into the record.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let short = || Fault::Short { size: self.header.size() };
        let len = self.bytes.len();
        match self.kind() {
            bindings::PERF_RECORD_SAMPLE => self.raw().map(drop),
            bindings::PERF_RECORD_LOST if len < 24 + self.origin.layout.trailer_len() => Err(short()),
            bindings::PERF_RECORD_LOST_SAMPLES if len < 16 + self.origin.layout.trailer_len() => Err(short()),
            _ if len < Header::LEN as usize + self.origin.layout.trailer_len() => Err(short()),
            _ => Ok(()),
        }
    }

    /// Where raw data begins and how long it claims to be, checked. `None` for records without raw data.
    #[inline]
    fn raw(&self) -> Result<Option<(usize, u32)>, Fault> {
        if self.kind() != bindings::PERF_RECORD_SAMPLE {
            return Ok(None);
        }
        match self.origin.layout.raw() {
            Some((at, begin)) => self.raw_at(at, begin).map(Some),
            None => self.raw_behind_others(),
        }
    }

    /// The same if its length lies at a place, and it begins at another.
    #[inline]
    fn raw_at(&self, at: usize, begin: usize) -> Result<(usize, u32), Fault> {
        let Some(raw_size) = self.bytes.u32(at) else { return Err(Fault::Short { size: self.header.size() }) };
        let room = self.bytes.len() - begin;
        if raw_size as usize > room {
            return Err(Fault::Raw { raw_size, room: room as u32 });
        }
        Ok((begin, raw_size))
    }

    /// The same for samples with fields of varying length, or without raw data.
    #[cold]
    fn raw_behind_others(&self) -> Result<Option<(usize, u32)>, Fault> {
        let layout = &self.origin.layout;
        let short = Fault::Short { size: self.header.size() };
        let at = fields::begin_of(layout, self.bytes, RAW).ok_or(short)?;
        if layout.sample_type & RAW != 0 {
            return self.raw_at(at, at + 4).map(Some);
        }
        if at <= self.bytes.len() { Ok(None) } else { Err(short) }
    }

    pub(crate) fn header(&self) -> Header {
        self.header
    }

    pub(crate) fn origin(&self) -> &'a Arc<Origin> {
        self.origin
    }
}

/// Raw data whose length lies at a place, if both lie within some bytes.
#[inline(always)]
fn raw_within(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let begin = at + 4;
    let size = u32::from_ne_bytes(*bytes.get(..begin)?.last_chunk()?) as usize;
    if size <= bytes.len() - begin { bytes.get(begin..begin + size) } else { None }
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("kind", &format_args!("{}", kind_text(self.kind())))
            .field("cpu", &self.cpu())
            .field("time", &self.time())
            .field("body", &self.body())
            .finish()
    }
}
