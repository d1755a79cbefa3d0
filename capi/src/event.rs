//! Events as C sees them: one flat struct.

use pw::{Bytes, Certainty, Event, Item};
use std::ffi::{c_int, c_ulonglong, c_void};

/// What an event is.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "names of C")]
pub enum pw_kind {
    /// A record: data is what the program wrote.
    PW_RECORD = 0,
    /// The kernel dropped count records here, because a ring was full.
    PW_LOST = 1,
    /// The numbers first to last, count of them, are missing here.
    PW_GAP = 2,
    /// The number last came where first should have come. The record with it follows.
    PW_ANOMALY = 3,
    /// Bytes that cannot be a record: data is what was skipped, if it is known.
    PW_DAMAGE = 4,
    /// A CPU is not traced: from the time first on, if it is not 0, and for last nanoseconds at most; last is 0 while
    /// it goes on. A CPU that comes online is not traced until the buffer has noticed it.
    PW_UNTRACED = 6,
    /// Everything that was in the rings at a flush has been yielded, if count is 0. If it is 1, a program has not
    /// committed what it reserved in a ring buffer, and the flush has waited long enough (ten times opts.latency_ns, from 0.1 to 10 s). What
    /// cannot be proven before it does is held, and comes later.
    PW_FLUSHED = 7,
    /// Something failed, and reading goes on: data is the text. Log it.
    PW_PROBLEM = 8,
}

/// How far an event's place in the order can be trusted.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "names of C")]
pub enum pw_certainty {
    /// All events with smaller keys came before.
    PW_PROVEN = 0,
    /// The hold rule only assumes that.
    PW_ASSUMED = 1,
    /// An event with a larger key came before: by late_by.
    PW_LATE = 2,
}

/// Bytes that lie in a ring. Never write to them.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "names of C")]
pub struct pw_slice {
    /// Where. Not NULL if size is not 0.
    pub data: *const c_void,
    /// How many.
    pub size: usize,
}

/// An event.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "names of C")]
pub struct pw_event {
    /// enum pw_kind. Later versions can have more kinds: pass over those that you do not know.
    pub kind: u32,
    /// enum pw_certainty.
    pub certainty: u32,
    /// The number that ordered the event, if has_key is not 0: for perf buffers unless chosen otherwise,
    /// CLOCK_MONOTONIC in nanoseconds.
    pub key: u64,
    /// Whether the event has a key.
    pub has_key: u32,
    /// The CPU; -1 if it belongs to no single one, as in a ring buffer that CPUs share.
    pub cpu: c_int,
    /// Ring buffers: the number of the map of a record, in the order of pw_ring_buffer__new and pw_ring_buffer__add,
    /// from 0 on.
    pub map: u32,
    /// For later versions.
    pub reserved: u32,
    /// The bytes in place. The second slice is empty unless they wrap at the ring's end.
    pub data: [pw_slice; 2],
    /// See enum pw_kind.
    pub count: u64,
    /// See enum pw_kind.
    pub first: u64,
    /// See enum pw_kind.
    pub last: u64,
    /// How late the event is, in units of the key; 0 unless it is late.
    pub late_by: u64,
}

/// Called for each record, as libbpf's perf_buffer_sample_fn. The bytes are valid until the callback returns, and must
/// not be written to.
#[allow(non_camel_case_types, reason = "names of C")]
pub type pw_sample_fn = Option<unsafe extern "C" fn(ctx: *mut c_void, cpu: c_int, data: *mut c_void, size: u32)>;

/// The header of a record of perf_event_open(2): see linux/perf_event.h.
#[allow(non_camel_case_types, missing_debug_implementations, reason = "names of C")]
pub struct perf_event_header {
    _bytes: [u64; 0],
}

/// Called for each record as it lies in the ring, as libbpf's perf_buffer_event_fn: -2 (LIBBPF_PERF_EVENT_CONT) goes on,
/// 0 (LIBBPF_PERF_EVENT_DONE) ends the call, and another negative number ends the call, which returns it. The bytes are
/// valid until the callback returns, and must not be written to.
#[allow(non_camel_case_types, reason = "names of C")]
pub type pw_event_fn =
    Option<unsafe extern "C" fn(ctx: *mut c_void, cpu: c_int, event: *mut perf_event_header) -> c_int>;

/// Called for each loss, as libbpf's perf_buffer_lost_fn, at its place in the order.
#[allow(non_camel_case_types, reason = "names of C")]
pub type pw_lost_fn = Option<unsafe extern "C" fn(ctx: *mut c_void, cpu: c_int, count: c_ulonglong)>;

/// Called for each record of a ring buffer, as libbpf's ring_buffer_sample_fn. A negative number ends the call, which
/// returns it.
#[allow(non_camel_case_types, reason = "names of C")]
pub type pw_ring_buffer_sample_fn =
    Option<unsafe extern "C" fn(ctx: *mut c_void, data: *mut c_void, size: usize) -> c_int>;

/// Called for each event that is no record. ctx is that of the buffer, for ring buffers that of the first map. The
/// event is valid until the callback returns.
#[allow(non_camel_case_types, reason = "names of C")]
pub type pw_notice_fn = Option<unsafe extern "C" fn(ctx: *mut c_void, event: *const pw_event)>;

impl pw_slice {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr().cast(), size: bytes.len() }
    }

    fn both(bytes: Bytes<'_>) -> [Self; 2] {
        let (head, tail) = bytes.as_slices();
        [Self::of(head), Self::of(tail)]
    }
}

const NOTHING: pw_slice = pw_slice { data: std::ptr::null(), size: 0 };

impl pw_event {
    pub(crate) const NONE: Self = Self {
        kind: pw_kind::PW_RECORD as u32,
        certainty: pw_certainty::PW_ASSUMED as u32,
        key: 0,
        has_key: 0,
        cpu: -1,
        map: 0,
        reserved: 0,
        data: [NOTHING, NOTHING],
        count: 0,
        first: 0,
        last: 0,
        late_by: 0,
    };

    /// The event of a problem, whose text lives as long as the event is used.
    pub(crate) fn problem(text: &[u8]) -> Self {
        Self { kind: pw_kind::PW_PROBLEM as u32, data: [pw_slice::of(text), NOTHING], ..Self::NONE }
    }

    pub(crate) fn of(event: &Event<'_>) -> Self {
        let certainty = match event.certainty() {
            Certainty::Proven => pw_certainty::PW_PROVEN,
            Certainty::Assumed => pw_certainty::PW_ASSUMED,
            Certainty::Late => pw_certainty::PW_LATE,
        };
        let mut told = Self {
            certainty: certainty as u32,
            key: event.key().unwrap_or(0),
            has_key: event.key().is_some().into(),
            cpu: event.cpu().map_or(-1, |cpu| cpu as c_int),
            late_by: event.late_by(),
            ..Self::NONE
        };
        let mut say = |kind: pw_kind, count, first, last| {
            (told.kind, told.count, told.first, told.last) = (kind as u32, count, first, last);
        };
        match event.item() {
            Item::Record(record) => {
                told.map = record.layout().tag();
                told.data = pw_slice::both(record.payload().unwrap_or_else(|| record.body()));
            }
            Item::Lost(lost) => say(pw_kind::PW_LOST, lost.count, 0, 0),
            Item::Gap(gap) => say(pw_kind::PW_GAP, gap.count, gap.first, gap.last),
            Item::Anomaly(odd) => say(pw_kind::PW_ANOMALY, 1, odd.expected, odd.found),
            Item::Damage(damage) => {
                say(pw_kind::PW_DAMAGE, 1, 0, 0);
                told.data = pw_slice::both(damage.bytes);
            }
            Item::Untraced(cpu) => {
                let lasted = cpu.lasted.map_or(0, |lasted| u64::try_from(lasted.as_nanos()).unwrap_or(u64::MAX).max(1));
                say(pw_kind::PW_UNTRACED, 1, cpu.since.unwrap_or(0), lasted);
            }
            Item::Flushed { complete } => say(pw_kind::PW_FLUSHED, (!complete).into(), 0, 0),
            // Of a later version of the crate.
            _ => say(pw_kind::PW_PROBLEM, 0, 0, 0),
        }
        told
    }
}
