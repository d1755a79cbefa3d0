//! Records as they lie in a ring: kind, fields, payload. Every read is checked against the record's own length.

use crate::record::layout::{CALLCHAIN, RAW, READ};
use crate::record::{Kind, Origin};
use crate::ring::{Bytes, Fault, Header, Ring};
use perf_event_open_sys::bindings as sys;
use std::fmt;
use std::sync::Arc;

/// A record where it lies in its ring, zero-copy.
///
/// Every call reads the field from the record's own bytes and checks it against the record's length. So no field can
/// panic or read outside of the record, whatever wrote it.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// Header included. INVARIANT: at least a header long.
    bytes: Bytes<'a>,
    header: Header,
    origin: &'a Arc<Origin>,
}

impl<'a> Record<'a> {
    pub(crate) fn new(bytes: Bytes<'a>, header: Header, origin: &'a Arc<Origin>) -> Self {
        debug_assert_eq!(bytes.len(), usize::from(header.size()));
        Self { bytes, header, origin }
    }

    /// The record at a position of a ring, checked; or what is wrong there, and where to go on.
    #[inline]
    pub(crate) fn at(ring: &'a Ring, position: u64, origin: &'a Arc<Origin>) -> Result<Self, (Fault, u64)> {
        let header = ring.header(position).map_err(|fault| (fault, ring.head()))?;
        let record = Self::new(ring.bytes(position, u64::from(header.size())), header, origin);
        match record.check() {
            Ok(()) => Ok(record),
            Err(fault) => Err((fault, position + u64::from(header.size()))),
        }
    }

    /// The record at the begin of some bytes, checked, if it is a sample whose raw data nothing of varying length precedes; and the
    /// bytes behind it. `raw`: where the length of its raw data lies.
    #[inline(always)]
    pub(crate) fn plainest(bytes: &'a [u8], raw: usize, origin: &'a Arc<Origin>) -> Option<(Self, &'a [u8])> {
        let (header, record, rest) = Header::split(bytes, Kind::SAMPLE.0, Header::LEN as usize)?;
        raw_within(record, raw)?;
        Some((Self::new(record.into(), header, origin), rest))
    }

    /// The record's kind.
    #[inline]
    pub fn kind(&self) -> Kind {
        Kind(self.header.kind())
    }

    /// `perf_event_header.misc`, whose bits mean different things from kind to kind.
    #[inline]
    pub fn misc(&self) -> u16 {
        self.header.misc()
    }

    /// The CPU of the record's ring, which is the CPU that wrote the record.
    #[inline]
    pub fn cpu(&self) -> u32 {
        self.origin.cpu
    }

    /// The kernel's time in nanoseconds, on the clock that the ring was opened with. `None` where the ring does not ask
    /// for it.
    #[inline]
    pub fn time(&self) -> Option<u64> {
        self.field(self.origin.layout.time, self.origin.layout.time_back).and_then(|at| self.bytes.u64(at))
    }

    /// The id of the event that wrote the record (`PERF_EVENT_IOC_ID`), where the ring asks for `IDENTIFIER` or `ID`.
    #[inline]
    pub fn id(&self) -> Option<u64> {
        self.field(self.origin.layout.id, self.origin.layout.id_back).and_then(|at| self.bytes.u64(at))
    }

    /// Which of the events that share the ring wrote the record: the place, from 0, at which the event was added to
    /// [`RingOptions`](crate::RingOptions).
    #[inline]
    pub fn source(&self) -> Option<usize> {
        match self.origin.only {
            None => self.origin.source(self.id()?),
            only => only,
        }
    }

    /// Process and thread id, where the ring asks for `TID`.
    pub fn pid_tid(&self) -> Option<(u32, u32)> {
        let at = self.field(self.origin.layout.tid, self.origin.layout.tid_back)?;
        Some((self.bytes.u32(at)?, self.bytes.u32(at + 4)?))
    }

    /// Where a field lies that samples have at their begin and all others, with `sample_id_all`, at their end.
    #[inline]
    fn field(&self, front: Option<u8>, back: Option<u8>) -> Option<usize> {
        if self.kind() == Kind::SAMPLE {
            front.map(usize::from)
        } else {
            self.bytes.len().checked_sub(usize::from(back?))
        }
    }

    /// Everything behind the header: fields, payload and padding as the kernel wrote them.
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
    /// tracepoint's fields. `None` for records without raw data.
    ///
    /// The kernel rounds the length of the data up, to make the record's a multiple of 8. So **0 to 7 bytes of old ring
    /// memory follow the data**, and the record does not say how many (`perf_sample_save_raw_data`,
    /// `kernel/events/core.c`).
    #[inline(always)]
    pub fn payload(&self) -> Option<Bytes<'a>> {
        if self.kind() == Kind::SAMPLE
            && let Some(data) = raw_within(self.bytes.as_slices().0, self.origin.layout.raw.into())
        {
            return Some(data.into());
        }
        self.payload_elsewhere()
    }

    /// The same where raw data wraps, lies behind fields of varying length, or is none. By value, so that a record on the fast path
    /// can stay in registers.
    #[cold]
    #[inline(never)]
    fn payload_elsewhere(self) -> Option<Bytes<'a>> {
        let (begin, size) = self.raw().ok()??;
        self.bytes.get(begin..begin + size as usize)
    }

    /// The count of a LOST record: `(id, lost)`.
    pub(crate) fn lost(&self) -> Option<(u64, u64)> {
        Some((self.bytes.u64(8)?, self.bytes.u64(16)?))
    }

    /// Checks that the fields which `sample_type` promises fit into the record.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let short = || Fault::Short { size: self.header.size() };
        let len = self.bytes.len();
        match self.kind() {
            Kind::SAMPLE => self.raw().map(drop),
            Kind::LOST if len < 24 + self.origin.layout.trailer_len() => Err(short()),
            _ if len < Header::LEN as usize + self.origin.layout.trailer_len() => Err(short()),
            _ => Ok(()),
        }
    }

    /// Where raw data begins and how long it claims to be, checked; `None` for records that have none.
    #[inline]
    fn raw(&self) -> Result<Option<(usize, u32)>, Fault> {
        if self.kind() != Kind::SAMPLE {
            return Ok(None);
        }
        let layout = &self.origin.layout;
        match layout.raw() {
            Some(at) => self.raw_at(at).map(Some),
            None => self.raw_behind_others(),
        }
    }

    #[inline]
    fn raw_at(&self, at: usize) -> Result<(usize, u32), Fault> {
        let Some(raw_size) = self.bytes.u32(at) else { return Err(Fault::Short { size: self.header.size() }) };
        let begin = at + 4;
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
        let at = self.behind_read_and_callchain(usize::from(layout.fixed)).ok_or(short)?;
        if layout.sample_type & RAW != 0 {
            return self.raw_at(at).map(Some);
        }
        if at <= self.bytes.len() { Ok(None) } else { Err(short) }
    }

    /// Steps over the two fields of varying length that may precede raw data (perf_event_open(2), PERF_RECORD_SAMPLE).
    fn behind_read_and_callchain(&self, mut at: usize) -> Option<usize> {
        let layout = &self.origin.layout;
        let words = |count: u64| usize::try_from(count).ok()?.checked_mul(8);
        if layout.sample_type & READ != 0 {
            let has = |bit: u32| u64::from(layout.read_format & u64::from(bit) != 0);
            let times = has(sys::PERF_FORMAT_TOTAL_TIME_ENABLED) + has(sys::PERF_FORMAT_TOTAL_TIME_RUNNING);
            let per_value = 1 + has(sys::PERF_FORMAT_ID) + has(sys::PERF_FORMAT_LOST);
            let count = if has(sys::PERF_FORMAT_GROUP) == 1 {
                let values = self.bytes.u64(at)?;
                values.checked_mul(per_value)?.checked_add(1 + times)?
            } else {
                per_value + times
            };
            at = at.checked_add(words(count)?)?;
        }
        if layout.sample_type & CALLCHAIN != 0 {
            let frames = self.bytes.u64(at)?;
            at = at.checked_add(words(frames.checked_add(1)?)?)?;
        }
        Some(at)
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
            .field("kind", &self.kind())
            .field("cpu", &self.cpu())
            .field("time", &self.time())
            .field("body", &self.body())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::record::{CPU, IDENTIFIER, Layout, Sources, TID, TIME};

    fn origin(layout: Layout) -> Arc<Origin> {
        Arc::new(Origin::new(3, layout, [(7, 0), (9, 1)].into_iter().collect()))
    }

    fn record<'a>(kind: Kind, words: &'a mut Vec<u8>, origin: &'a Arc<Origin>, body: &[u64]) -> Record<'a> {
        words.clear();
        let size = 8 + 8 * body.len() as u16;
        words.extend(kind.0.to_ne_bytes());
        words.extend(1u16.to_ne_bytes());
        words.extend(size.to_ne_bytes());
        body.iter().for_each(|word| words.extend(word.to_ne_bytes()));
        let header = Bytes::from(&words[..8]).u64(0).unwrap();
        Record::new(Bytes::from(&words[..]), Header::unchecked(header), origin)
    }

    fn two(low: u32, high: u32) -> u64 {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&low.to_ne_bytes());
        bytes[4..].copy_from_slice(&high.to_ne_bytes());
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn a_layout_is_what_was_asked_for() {
        let layout = Layout::new(RAW | TIME | READ | CALLCHAIN | TID, true, 12);
        assert_eq!(
            (layout.sample_type(), layout.sample_id_all(), layout.read_format()),
            (RAW | TIME | READ | CALLCHAIN | TID, true, 12)
        );
        assert_eq!((layout.has_time(), layout.trailer_len(), layout.smallest()), (true, 16, 8 + 16 + 24));
        let layout = Layout::new(RAW | TIME, false, 0);
        assert_eq!(
            (layout.sample_id_all(), layout.read_format(), layout.trailer_len(), layout.smallest()),
            (false, 0, 0, 24)
        );
        assert!(!Layout::RAW.has_time());
    }

    #[test]
    fn fields_lie_where_the_manual_says() {
        let origin = origin(Layout::new(RAW | TIME | CPU | IDENTIFIER | TID, true, 0));
        let mut bytes = Vec::new();
        let sample = record(Kind::SAMPLE, &mut bytes, &origin, &[9, two(10, 11), 555, two(3, 0), two(4, 0xabcd)]);
        assert_eq!(sample.check(), Ok(()));
        assert_eq!(sample.id(), Some(9));
        assert_eq!(sample.source(), Some(1));
        assert_eq!(sample.pid_tid(), Some((10, 11)));
        assert_eq!(sample.time(), Some(555));
        assert_eq!(sample.payload().unwrap().u32(0), Some(0xabcd));
        assert_eq!((sample.cpu(), sample.misc()), (3, 1));

        // struct lost { id, lost }, then TID, TIME, CPU, IDENTIFIER.
        let lost = record(Kind::LOST, &mut bytes, &origin, &[7, 12, two(10, 11), 556, two(3, 0), 7]);
        assert_eq!(lost.check(), Ok(()));
        assert_eq!(lost.lost(), Some((7, 12)));
        assert_eq!(lost.time(), Some(556));
        assert_eq!(lost.id(), Some(7));
        assert_eq!(lost.pid_tid(), Some((10, 11)));
        assert_eq!(lost.payload(), None);
    }

    #[test]
    fn a_raw_only_ring_has_neither_time_nor_id() {
        let origin = Arc::new(Origin::new(3, Layout::RAW, [(0, 0)].into_iter().collect()));
        let mut bytes = Vec::new();
        let sample = record(Kind::SAMPLE, &mut bytes, &origin, &[two(12, 1), two(2, 3)]);
        assert_eq!(sample.check(), Ok(()));
        assert_eq!((sample.time(), sample.id(), sample.pid_tid()), (None, None, None));
        assert_eq!(sample.source(), Some(0));
        assert_eq!(sample.payload().unwrap().len(), 12);
        let lost = record(Kind::LOST, &mut bytes, &origin, &[1, 5]);
        assert_eq!((lost.check(), lost.lost(), lost.time()), (Ok(()), Some((1, 5)), None));
    }

    #[test]
    fn raw_data_is_found_behind_read_and_callchain() {
        let read_format = u64::from(sys::PERF_FORMAT_GROUP | sys::PERF_FORMAT_ID | sys::PERF_FORMAT_TOTAL_TIME_ENABLED);
        let origin = origin(Layout::new(RAW | TIME | READ | CALLCHAIN, true, read_format));
        let mut bytes = Vec::new();
        let sample = record(
            Kind::SAMPLE,
            &mut bytes,
            &origin,
            // time; nr = 2, enabled, (value, id) twice; nr = 3, three frames; raw.
            &[555, 2, 99, 1, 2, 3, 4, 3, 0xa, 0xb, 0xc, two(4, 0xabcd)],
        );
        assert_eq!(sample.check(), Ok(()));
        assert_eq!(sample.payload().unwrap().u32(0), Some(0xabcd));

        for wild in [u64::MAX, u64::MAX / 8, 1 << 61, 1 << 60, 100] {
            let sample = record(Kind::SAMPLE, &mut bytes, &origin, &[555, wild, 99, 1, 2]);
            assert_eq!(sample.check(), Err(Fault::Short { size: 48 }), "{wild}");
            assert_eq!(sample.payload(), None);
            let sample = record(Kind::SAMPLE, &mut bytes, &origin, &[555, 0, 99, wild, 2]);
            assert_eq!(sample.check(), Err(Fault::Short { size: 48 }), "{wild}");
        }
    }

    /// All that a READ field may hold, by what the event asked for (perf_event_open(2), "Reading results").
    #[test]
    fn raw_data_is_found_behind_read_values_of_any_format() {
        let times = [sys::PERF_FORMAT_TOTAL_TIME_ENABLED, sys::PERF_FORMAT_TOTAL_TIME_RUNNING];
        let with_each = [sys::PERF_FORMAT_ID, sys::PERF_FORMAT_LOST];
        for asked in 0..16u32 {
            let on = |bits: [u32; 2], at: u32| {
                (0..2).filter(move |bit| asked >> at >> bit & 1 == 1).map(move |bit| bits[bit as usize])
            };
            let (times, with_each): (Vec<u32>, Vec<u32>) = (on(times, 0).collect(), on(with_each, 2).collect());
            for group in [None, Some(0), Some(1), Some(3)] {
                let format = times.iter().chain(&with_each).fold(0, |all, bit| all | bit);
                let format = format | group.map_or(0, |_| sys::PERF_FORMAT_GROUP);
                let origin = origin(Layout::new(RAW | TIME | READ, true, format.into()));
                let values = group.unwrap_or(1) as usize * (1 + with_each.len());
                let mut body = vec![555];
                body.extend(group);
                body.extend(vec![7; times.len() + values]);
                let raw = two(4, 0xabcd);
                body.push(raw);
                let mut bytes = Vec::new();
                let sample = record(Kind::SAMPLE, &mut bytes, &origin, &body);
                assert_eq!(sample.check(), Ok(()), "{format:#x}, {group:?}");
                assert_eq!(sample.payload().unwrap().u32(0), Some(0xabcd), "{format:#x}, {group:?}");
                // Without the raw data it is too short.
                body.pop();
                let size = 8 * (1 + body.len() as u16);
                let sample = record(Kind::SAMPLE, &mut bytes, &origin, &body);
                assert_eq!(sample.check(), Err(Fault::Short { size }), "{format:#x}, {group:?}");
            }
        }
    }

    /// A call chain lies where it does without values before it, and samples need no raw data to be whole.
    #[test]
    fn samples_have_what_they_were_asked_for_and_nothing_else() {
        let mut bytes = Vec::new();
        let chain = origin(Layout::new(RAW | TIME | CALLCHAIN, true, 0));
        let sample = record(Kind::SAMPLE, &mut bytes, &chain, &[555, 2, 0xa, 0xb, two(4, 0xabcd)]);
        assert_eq!((sample.check(), sample.payload().unwrap().u32(0)), (Ok(()), Some(0xabcd)));
        for (asked, body) in [(TIME, &[555][..]), (TIME | CALLCHAIN, &[555, 1, 0xa]), (TIME | READ, &[555, 9])] {
            let origin = origin(Layout::new(asked, true, 0));
            let sample = record(Kind::SAMPLE, &mut bytes, &origin, body);
            assert_eq!((sample.check(), sample.payload(), sample.time()), (Ok(()), None, Some(555)), "{asked:#x}");
            let short = record(Kind::SAMPLE, &mut bytes, &origin, &body[1..]);
            assert_eq!(short.check(), Err(Fault::Short { size: 8 * body.len() as u16 }), "{asked:#x}");
        }
    }

    #[test]
    fn what_does_not_fit_is_a_fault() {
        let origin = origin(Layout::new(RAW | TIME, true, 0));
        let mut bytes = Vec::new();
        let sample = record(Kind::SAMPLE, &mut bytes, &origin, &[555, two(5, 0)]);
        assert_eq!(sample.check(), Err(Fault::Raw { raw_size: 5, room: 4 }));
        assert_eq!(sample.payload(), None);
        let sample = record(Kind::SAMPLE, &mut bytes, &origin, &[555, two(u32::MAX, 0)]);
        assert_eq!(sample.check(), Err(Fault::Raw { raw_size: u32::MAX, room: 4 }));
        let sample = record(Kind::SAMPLE, &mut bytes, &origin, &[555]);
        assert_eq!(sample.check(), Err(Fault::Short { size: 16 }));
        let sample = record(Kind::SAMPLE, &mut bytes, &origin, &[]);
        assert_eq!((sample.check(), sample.time()), (Err(Fault::Short { size: 8 }), None));
        let lost = record(Kind::LOST, &mut bytes, &origin, &[1, 2]);
        assert_eq!(lost.check(), Err(Fault::Short { size: 24 }), "no room for the time");
        let other = record(Kind(200), &mut bytes, &origin, &[]);
        assert_eq!(other.check(), Err(Fault::Short { size: 8 }));
        let other = record(Kind(200), &mut bytes, &origin, &[8]);
        assert_eq!((other.check(), other.time()), (Ok(()), Some(8)));
    }

    #[test]
    fn ids_of_dead_events_are_known_for_as_long_as_their_records_may_lie_in_the_ring() {
        let ids = |ids: [u64; 2]| ids.into_iter().zip(0..).collect::<Sources>();
        let mut origin = Origin::new(3, Layout::RAW, ids([10, 11]));
        // A CPU that goes and comes back again and again, while nothing is read.
        for n in 2..10u64 {
            origin = origin.with(ids([10 * n, 10 * n + 1]), 100 * n, 0);
            assert_eq!((origin.source(10), origin.source(11)), (Some(0), Some(1)));
            assert_eq!((origin.source(10 * n), origin.source(10 * n + 1), origin.source(7)), (Some(0), Some(1), None));
        }
        assert_eq!(origin.past.len(), 8);
        // What was written up to 500 has been read.
        origin = origin.with(ids([1000, 1001]), 1000, 500);
        assert_eq!((origin.source(40), origin.source(50), origin.source(1001)), (None, Some(0), Some(1)));
        // And while all is read, it never grows.
        for n in 1..1000u64 {
            origin = origin.with(ids([5 * n, 5 * n + 1]), 2000 + n, 2000 + n);
            assert_eq!(origin.past.len(), 0);
        }
    }

    #[test]
    fn records_need_no_id_where_all_are_of_one_source() {
        let sources = |ids: &[(u64, usize)]| ids.iter().copied().collect::<Sources>();
        let source = |origin: &Origin| {
            let origin = Arc::new(origin.clone());
            record(Kind::SAMPLE, &mut Vec::new(), &origin, &[two(4, 0)]).source()
        };
        // Two events of one source, as on a CPU that came back.
        let one = Origin::new(0, Layout::RAW, sources(&[(10, 5), (11, 5)]));
        assert_eq!(source(&one), Some(5));
        assert_eq!(source(&Origin::new(0, Layout::RAW, sources(&[(10, 5), (11, 6)]))), None);
        assert_eq!(source(&Origin::new(0, Layout::RAW, sources(&[]))), None);
        assert_eq!(source(&one.with(sources(&[(20, 5)]), 100, 0)), Some(5));
        // Records of others may lie before, until all of those are read.
        let other = one.with(sources(&[(20, 6)]), 100, 0);
        assert_eq!((source(&other), other.source(11), other.source(20)), (None, Some(5), Some(6)));
        assert_eq!(source(&other.with(sources(&[(30, 6)]), 200, 99)), None);
        assert_eq!(source(&one.with(sources(&[(20, 6)]), 100, 100)), Some(6));
    }
}
