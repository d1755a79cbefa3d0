//! Samples of groups: what each member of the group has counted since the sample before.

use crate::attrs::{Attr, READ};
use perf_event_open_sys::bindings as sys;
use perfweave::{Layout, Record, Rings};
use std::collections::HashMap;

/// What the members of a group have counted, as perf shows it.
///
/// The events of a group (`perf record -e '{cycles,instructions}:S'`) are sampled by their leader alone. Its sample has
/// the count of each event until then (`PERF_SAMPLE_READ`). `perf script` makes a sample of each that has counted
/// since.
#[derive(Debug)]
pub struct Members {
    /// By id: the event, and whether each thread has a count of its own.
    events: HashMap<u64, (usize, bool)>,
    /// That of a recording with one event, whatever its id.
    only: Option<(usize, bool)>,
    /// The last count of each id, and of each thread where threads have their own.
    last: HashMap<(u64, u32), u64>,
}

impl Members {
    /// Of a recording, before its first record.
    pub fn new(rings: &Rings) -> Self {
        let by_thread = |source: usize| {
            let attr = Attr::of(rings.sources()[source].attr_bytes());
            attr.inherits() && attr.layout().sample_type() & READ != 0
        };
        let has_counts = rings.layouts().any(|layout| layout.sample_type() & READ != 0);
        let ids = rings.ids().filter(|_| has_counts);
        let events = ids.map(|(id, source)| (id, (source, by_thread(source)))).collect();
        let only = (rings.sources().len() == 1).then(|| (0, by_thread(0)));
        Self { events, only, last: HashMap::new() }
    }

    /// The events that have counted since their last sample, each as its place in [`Rings::sources`] and with what it
    /// has counted. `None` for a record without counts: it is of [`Record::source`] alone. Each record must be given
    /// once, in the order of times.
    pub fn of(&mut self, record: &Record<'_>) -> Option<Vec<(usize, u64)>> {
        let counts = record.field(READ)?;
        let format = Format::of(record.layout());
        let tid = record.pid_tid().map(|(_, tid)| tid);
        let mut counted = Vec::new();
        for at in format.members(counts.len()) {
            let (Some(count), Some(id)) = (counts.u64(at), format.id(record, |id| counts.u64(at + id))) else {
                continue;
            };
            // perf too shows none of an id that it does not know.
            let Some((source, by_thread)) = self.events.get(&id).copied().or(self.only) else { continue };
            let last = self.last.entry((id, tid.filter(|_| by_thread).unwrap_or(0))).or_default();
            let since = count.wrapping_sub(std::mem::replace(last, count));
            if since > 0 {
                counted.push((source, since));
            }
        }
        Some(counted)
    }
}

/// How counts lie in a sample: "Reading results" in perf_event_open(2).
struct Format {
    is_group: bool,
    /// Where the first count lies, and bytes from one to the next.
    first: usize,
    each: usize,
    /// Where the id lies behind a count.
    id: Option<usize>,
}

impl Format {
    fn of(layout: &Layout) -> Self {
        let has = |bit: u32| layout.read_format() & u64::from(bit) != 0;
        let words = |bits: &[u32]| 8 * bits.iter().filter(|bit| has(**bit)).count();
        let times = words(&[sys::PERF_FORMAT_TOTAL_TIME_ENABLED, sys::PERF_FORMAT_TOTAL_TIME_RUNNING]);
        let is_group = has(sys::PERF_FORMAT_GROUP);
        let each = 8 + words(&[sys::PERF_FORMAT_ID, sys::PERF_FORMAT_LOST]);
        // A group's times come before all counts, that of one event has them behind its count.
        let (first, id) = if is_group { (8 + times, 8) } else { (0, 8 + times) };
        Self { is_group, first, each, id: has(sys::PERF_FORMAT_ID).then_some(id) }
    }

    /// Where each count lies, of a field with this many bytes. The field has room for all that it says it has.
    fn members(&self, len: usize) -> impl Iterator<Item = usize> + use<> {
        let all = if self.is_group { len.saturating_sub(self.first) / self.each } else { 1 };
        let (first, each) = (self.first, self.each);
        (0..all).map(move |at| first + each * at)
    }

    /// The id of a count. One event's is that of the sample.
    fn id(&self, record: &Record<'_>, at: impl FnOnce(usize) -> Option<u64>) -> Option<u64> {
        match self.id {
            Some(id) => at(id),
            None => record.id().filter(|_| !self.is_group),
        }
    }
}
