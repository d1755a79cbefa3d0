//! Which switches have no record, as their numbers show, and up to when numbers vouch for there being none.

use super::told::{self, Told};
use perfweave::{ANY_CPU, Event, Item, Rings};
use std::collections::BTreeMap;

/// The last switch of each CPU, and how many are known to be missing.
///
/// The kernel numbers the switches of each CPU. So a number that follows the last one vouches for the time in between.
/// Nothing vouches for the time before the first number, and behind the last.
#[derive(Debug, Default)]
pub struct Counted {
    lasts: BTreeMap<u32, Last>,
    /// Whether CPUs tell where they stand: then all that are online have told it at the beginning.
    stand: bool,
    missing: u64,
    /// The source of the records.
    source: Option<usize>,
}

/// Up to when all switches of a CPU are known, and the number of the last one, unless records are lost since.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    count: Option<u32>,
    time: u64,
}

impl Counted {
    /// Of a stream that nothing else takes apart.
    pub fn of(rings: &Rings) -> Self {
        Self { source: rings.sources().iter().position(told::is_output), ..Self::default() }
    }

    /// Whether the stream has such records.
    pub fn has_any(&self) -> bool {
        self.source.is_some()
    }

    /// Takes an event of the stream.
    pub fn event(&mut self, event: &Event<'_>) {
        match event.item() {
            Item::Record(record) if self.source.is_some() && record.source() == self.source => {
                if let Some(told) = Told::of(&record, 0) {
                    self.told(record.cpu(), 0, &told);
                }
            }
            Item::Record(_) | Item::Flushed { .. } => {}
            item => self.forget(of(&item), 0),
        }
    }

    /// What a CPU tells. If switches are missing before it, or nothing says that none is, gives since when.
    pub fn told(&mut self, cpu: u32, time: u64, told: &Told) -> Option<u64> {
        match *told {
            Told::Switch { count, .. } => self.take(cpu, time, count.wrapping_sub(1), count),
            Told::Stands { count, .. } => {
                self.stand = true;
                self.take(cpu, time, count, count)
            }
            Told::Signal { .. } => None,
        }
    }

    /// A switch, or where the CPU stands: which number the last one before it has, and which is the last one now.
    fn take(&mut self, cpu: u32, time: u64, before: u32, count: u32) -> Option<u64> {
        let last = self.lasts.entry(cpu).or_default();
        let missing = last.count.map_or(0, |last| before.wrapping_sub(last));
        if missing >= u32::MAX / 2 {
            // It comes late, and has been counted.
            return None;
        }
        let before = std::mem::replace(last, Last { count: Some(count), time });
        self.missing += u64::from(missing);
        (missing > 0 || before.count.is_none()).then_some(before.time)
    }

    /// A CPU was not traced since a time. If it has not told where it stands, it was offline until then.
    pub fn was_offline(&mut self, cpu: u32, until: u64) {
        if self.stand {
            self.lasts.entry(cpu).or_insert(Last { count: None, time: until });
        }
    }

    /// After a loss at a time, of one CPU or of any, numbers are missing because of it.
    pub fn forget(&mut self, cpu: Option<u32>, since: u64) {
        let of = self.lasts.iter_mut().filter(|(of, _)| cpu.is_none_or(|cpu| cpu == **of));
        of.for_each(|(_, last)| *last = Last { count: None, time: last.time.min(since) });
    }

    /// Up to when all switches of a CPU are known.
    pub fn until(&self, cpu: u32) -> u64 {
        self.lasts.get(&cpu).map_or(0, |last| last.time)
    }

    /// How many are missing.
    pub fn missing(&self) -> u64 {
        self.missing
    }
}

/// The CPU that something is of which is no record.
pub fn of(item: &Item<'_>) -> Option<u32> {
    match item {
        Item::Lost(lost) => Some(lost.cpu),
        Item::Gap(gap) => gap.cpu,
        Item::Damage(damage) => Some(damage.cpu),
        Item::Untraced(untraced) => Some(untraced.cpu),
        _ => None,
    }
    .filter(|cpu| *cpu != ANY_CPU)
}

#[cfg(test)]
mod tests {
    use super::{Counted, Told};

    /// A switch with this number.
    fn switch(counted: &mut Counted, cpu: u32, time: u64, count: u32) -> Option<u64> {
        counted.take(cpu, time, count.wrapping_sub(1), count)
    }

    #[test]
    fn a_missing_number_is_counted() {
        for (count, missing) in [(2, 0), (3, 1), (5, 3)] {
            let mut counted = Counted::default();
            assert_eq!((switch(&mut counted, 0, 10, 1), switch(&mut counted, 1, 11, 9)), (Some(0), Some(0)));
            assert_eq!(switch(&mut counted, 0, 20, count), (missing > 0).then_some(10), "{count}");
            assert_eq!((counted.missing(), counted.until(0)), (missing, 20), "{count}");
        }
    }

    /// Where a CPU stands has the number of its last switch: nothing is missing before the first one and behind the
    /// last.
    #[test]
    fn where_a_cpu_stands_vouches_for_both_ends() {
        for (end, missing) in [(8, 0), (9, 1)] {
            let mut counted = Counted::default();
            assert_eq!(counted.take(0, 10, 6, 6), Some(0));
            assert_eq!([7, 8].map(|count| switch(&mut counted, 0, 20, count)), [None; 2]);
            assert_eq!(counted.take(0, 30, end, end), (missing > 0).then_some(20));
            assert_eq!((counted.missing(), counted.until(0)), (missing, 30));
        }
    }

    /// It comes online at 50.
    #[test]
    fn a_cpu_that_was_offline_has_left_no_switch_out() {
        for stand in [false, true] {
            let mut counted = Counted::default();
            if stand {
                counted.told(0, 10, &Told::Stands { runs: 7, count: 6, is_last: false });
            }
            [0, 1].into_iter().for_each(|cpu| counted.was_offline(cpu, 50));
            counted.forget(Some(1), 50);
            assert_eq!(switch(&mut counted, 1, 60, 9), Some(if stand { 50 } else { 0 }));
            assert_eq!(switch(&mut counted, 0, 70, 7), (!stand).then_some(0));
        }
    }

    #[test]
    fn numbers_go_round_and_are_forgotten_after_a_loss() {
        let mut counted = Counted::default();
        assert_eq!([u32::MAX, 0].map(|count| switch(&mut counted, 0, 10, count)), [Some(0), None]);
        counted.forget(Some(1), 5);
        assert_eq!(switch(&mut counted, 0, 20, 9), Some(10));
        counted.forget(Some(0), 15);
        assert_eq!(switch(&mut counted, 0, 30, 19), Some(15));
        counted.forget(None, 35);
        assert_eq!(switch(&mut counted, 0, 40, 29), Some(30));
        // One that comes late.
        assert_eq!([28, 30].map(|count| switch(&mut counted, 0, 50, count)), [None; 2]);
        assert_eq!(counted.missing(), 8);
    }
}
