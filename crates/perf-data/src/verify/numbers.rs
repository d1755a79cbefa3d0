//! Numbers that programs wrote into their records, and which of them are missing.

use crate::attrs::CPU;
use crate::chain::{Counted, MOST_CPUS, NOBODY};
use crate::file::no_memory;
use crate::noted::cpu_of;
use perf_event_open_sys::bindings;
use perfweave::{Clock, Error, Key, Layout, Record, Recording};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// How many bytes of samples are kept before their numbers are counted, and of how many layouts.
const SAMPLES: usize = 1 << 16;
const LAYOUTS: usize = 16;

/// Numbers of programs, by CPU.
pub(super) struct Numbers<'a> {
    number: &'a Key,
    first: Option<u64>,
    layouts: Vec<Layout>,
    /// Samples whose numbers are not counted yet, by the index of their layout, and how many bytes these are.
    samples: BTreeMap<usize, Vec<u8>>,
    kept: usize,
    by_cpu: BTreeMap<u32, Counter>,
}

impl<'a> Numbers<'a> {
    pub(super) fn new((number, first): (&'a Key, Option<u64>)) -> Self {
        Self { number, first, layouts: Vec::new(), samples: BTreeMap::new(), kept: 0, by_cpu: BTreeMap::new() }
    }

    /// Takes a record, which has one of these layouts: those that were known before, and more.
    pub(super) fn add(&mut self, record: &[u8], layout: usize, layouts: &[Layout]) -> Result<(), Error> {
        if record.first_chunk().is_none_or(|kind| u32::from_ne_bytes(*kind) != bindings::PERF_RECORD_SAMPLE) {
            return Ok(());
        }
        self.layouts.extend(layouts.iter().skip(self.layouts.len()));
        self.samples.entry(layout).or_default().extend_from_slice(record);
        self.kept += record.len();
        if self.kept >= SAMPLES || self.samples.len() >= LAYOUTS { self.count() } else { Ok(()) }
    }

    /// Counts the numbers of the samples that were kept. A ring for each layout finds where their numbers are.
    pub(super) fn count(&mut self) -> Result<(), Error> {
        let mut recording = Recording::new(Clock::Perf, None);
        for (layout, samples) in std::mem::take(&mut self.samples) {
            let ring = recording.ring(NOBODY, self.layouts[layout], [], samples.len() as u64).map_err(no_memory)?;
            recording.write(ring, &samples).map_err(no_memory)?;
        }
        self.kept = 0;
        // It gives nothing: the closure never breaks.
        let _ = recording.build().drain(|event| {
            if let Some(record) = event.record() {
                self.number(&record);
            }
            ControlFlow::<()>::Continue(())
        });
        Ok(())
    }

    fn number(&mut self, record: &Record<'_>) {
        let cpu = record.field(CPU).and_then(|field| field.u64(0)).map_or(NOBODY, cpu_of);
        // The CPU for which the tally counts the record.
        let cpu = Counted { cpu, time: record.time(), lost: None }.whose();
        let Some(number) = self.number.of(record).filter(|_| cpu < MOST_CPUS) else { return };
        self.by_cpu.entry(cpu).or_insert_with(|| Counter::new(self.first)).add(number);
    }

    /// How many numbers are missing, by CPU.
    pub(super) fn missing(&self) -> impl Iterator<Item = (u32, u64)> {
        self.by_cpu.iter().map(|(cpu, counter)| (*cpu, counter.missing()))
    }
}

/// The place of a CPU's first number: far from both ends.
const MIDDLE: u64 = 1 << 63;
/// How far a number may exceed all before it. So many records are not lost between two.
const MOST_AHEAD: u64 = 1 << 32;

/// The numbers of a CPU. Also over the end of 64 bits they go on rising, as places.
#[derive(Debug)]
struct Counter {
    /// The number whose place is `MIDDLE`.
    first: Option<u64>,
    smallest: u64,
    largest: u64,
    count: u64,
}

impl Counter {
    fn new(first: Option<u64>) -> Self {
        // Where the first number is known, those before the first that is seen are missing too.
        let smallest = first.map_or(u64::MAX, |_| MIDDLE);
        Self { first, smallest, largest: MIDDLE, count: 0 }
    }

    fn add(&mut self, number: u64) {
        let first = *self.first.get_or_insert(number);
        let place = MIDDLE.wrapping_add(number.wrapping_sub(first));
        if place > self.largest.saturating_add(MOST_AHEAD) {
            return;
        }
        self.smallest = self.smallest.min(place);
        self.largest = self.largest.max(place);
        self.count += 1;
    }

    fn missing(&self) -> u64 {
        // None was near enough.
        let Some(span) = self.largest.checked_sub(self.smallest) else { return 0 };
        // A number that came twice counts twice.
        span.saturating_add(1).saturating_sub(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::Counter;

    #[test]
    fn missing_numbers_are_counted() {
        let missing = |first, numbers: &[u64]| {
            let mut counter = Counter::new(first);
            numbers.iter().for_each(|number| counter.add(*number));
            counter.missing()
        };
        assert_eq!(missing(None, &[]), 0);
        assert_eq!(missing(None, &[7]), 0);
        assert_eq!(missing(None, &[7, 9, 8, 5]), 1);
        assert_eq!(missing(None, &[u64::MAX - 1, 1]), 2);
        assert_eq!(missing(Some(0), &[3]), 3);
        // No number of so many.
        assert_eq!(missing(None, &[1, 1 << 40, 2]), 0);
        assert_eq!(missing(None, &[1 << 40, 1, 3]), (1 << 40) - 3);
    }
}
