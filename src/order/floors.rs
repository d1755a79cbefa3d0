//! For recordings: the smallest key that a ring has from a position on. Smaller keys are proven before the whole ring
//! is indexed.

use crate::order::key::Keys;
use crate::record::Record;
use crate::rings::CpuRing;
use perf_event_open_sys::bindings;

/// How many bytes of a ring one entry covers.
const EACH: u64 = 1 << 12;

/// For each ring, by rising position: the smallest key from there to the end.
#[derive(Debug)]
pub(crate) struct Floors(Vec<Vec<(u64, u64)>>);

impl Floors {
    /// Computes the key of each record.
    pub(crate) fn of(cpu_rings: &[CpuRing], keys: &Keys) -> Self {
        Self(cpu_rings.iter().map(|cpu_ring| floors(cpu_ring, keys)).collect())
    }

    /// A lower bound of the keys of all records of a ring from a position on. 0 if nothing is known.
    pub(crate) fn behind(&self, ring_index: usize, position: u64) -> u64 {
        let floors = &self.0[ring_index];
        let after = floors.partition_point(|(begin, _)| *begin <= position);
        after.checked_sub(1).map_or(0, |at| floors[at].1)
    }
}

fn floors(CpuRing { ring, origin, .. }: &CpuRing, keys: &Keys) -> Vec<(u64, u64)> {
    let (mut floors, mut position) = (Vec::new(), ring.tail());
    while position < ring.head() {
        let (begin, mut smallest) = (position, u64::MAX);
        while position < ring.head().min(begin + EACH) {
            match Record::at(ring, position, origin) {
                Ok(record) => {
                    let has_key = record.kind() != bindings::PERF_RECORD_LOST;
                    // A key that the index will refuse may lower the floor, which is a lower bound all the same.
                    let key = if has_key { keys.peek(&record) } else { None };
                    smallest = smallest.min(key.unwrap_or(u64::MAX));
                    // Recordings have perf rings alone, in which each header has the size.
                    position += u64::from(record.header().size());
                }
                Err((_, end)) => position = end,
            }
        }
        floors.push((begin, smallest));
    }
    let mut behind = u64::MAX;
    // From the end, because a floor bounds everything behind it.
    for (_, smallest) in floors.iter_mut().rev() {
        behind = behind.min(*smallest);
        *smallest = behind;
    }
    floors
}
