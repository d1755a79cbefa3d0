//! Samples of groups: what each member of the group has counted since the sample before.

use crate::attrs::{Attr, READ};
use perf_event_open_sys::bindings as sys;
use perfweave::{Record, Rings};
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
    /// The event of a recording that has only one: its samples may have no id.
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
    /// has counted. `None` for a record without counts, or with those of unknown ids alone: it is of [`Record::source`]
    /// alone. Each record must be given once, in the order of times.
    pub fn of(&mut self, record: &Record<'_>) -> Option<Vec<(usize, u64)>> {
        let counts = record.field(READ)?;
        let has = |bit: u32| usize::from(record.layout().read_format() & u64::from(bit) != 0);
        let [is_group, has_id] = [sys::PERF_FORMAT_GROUP, sys::PERF_FORMAT_ID].map(|bit| has(bit) == 1);
        let times = 8 * (has(sys::PERF_FORMAT_TOTAL_TIME_ENABLED) + has(sys::PERF_FORMAT_TOTAL_TIME_RUNNING));
        // "Reading results" in perf_event_open(2): a group's times come before all counts, those of one event behind
        // its count.
        let (first, each, id) = match is_group {
            true => (8 + times, 8 * (1 + has(sys::PERF_FORMAT_ID) + has(sys::PERF_FORMAT_LOST)), 8),
            false => (0, counts.len().max(8), 8 + times),
        };
        let tid = record.pid_tid().map_or(0, |(_, tid)| tid);
        let (mut counted, mut is_unknown) = (Vec::new(), false);
        for at in (first..counts.len()).step_by(each) {
            let id = if has_id { counts.u64(at + id) } else { record.id().filter(|_| !is_group) };
            let Some(count) = counts.u64(at) else { continue };
            let Some((source, by_thread)) = id.and_then(|id| self.events.get(&id).copied()).or(self.only) else {
                is_unknown = true;
                continue;
            };
            let last = self.last.entry((id.unwrap_or(0), if by_thread { tid } else { 0 })).or_default();
            let since = count.wrapping_sub(std::mem::replace(last, count));
            if since > 0 {
                counted.push((source, since));
            }
        }
        // Whose counts are not known is shown as itself.
        (!counted.is_empty() || !is_unknown).then_some(counted)
    }
}
