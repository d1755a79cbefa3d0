//! Which switches have no record, as their numbers show.

use super::told::{self, Told};
use perf_event_open_sys::bindings;
use perfweave::{ANY_CPU, Event, Item, Record, Rings};
use std::collections::HashMap;

/// The last switch of each CPU, and how many are known to be missing.
#[derive(Debug, Default)]
pub struct Counted {
    lasts: HashMap<u32, Last>,
    missing: u64,
    /// The last of each CPU that counts as missing by who went alone: who had come, and who went.
    others: HashMap<u32, [u32; 2]>,
    /// The last two on each CPU that have each other's number now: the first thread of a process, and the one that has
    /// begun another program.
    swapped: HashMap<u32, [u32; 2]>,
    /// The source of the records.
    source: Option<usize>,
}

/// The number of a switch, when it was, and who came.
#[derive(Debug, Clone, Copy)]
struct Last {
    count: u32,
    time: u64,
    came: u32,
}

/// `PERF_RECORD_MISC_COMM_EXEC`
const EXEC: u16 = 1 << 13;

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
                if let Some(Told::Switch { prev, next, count, .. }) = Told::of(&record, 0) {
                    self.take(record.cpu(), 0, count, [prev, next]);
                }
            }
            Item::Record(record) => self.names(&record),
            Item::Flushed { .. } => {}
            item => self.forget(of(&item)),
        }
    }

    /// A record that is no switch. With another program a thread that is not the first of its process takes the number
    /// of that one, which ends (de_thread of fs/exec.c): both go with other numbers than they have come with.
    pub fn names(&mut self, record: &Record<'_>) {
        if let (bindings::PERF_RECORD_COMM, true, Some(thread)) =
            (record.kind(), record.misc() & EXEC != 0, record.body().u32(4))
        {
            self.begins(record.cpu(), thread);
        }
    }

    /// A thread begins another program.
    fn begins(&mut self, cpu: u32, thread: u32) {
        // From an idle CPU a switch may well be missing.
        let Some(came) = self.lasts.get(&cpu).map(|last| last.came).filter(|came| ![0, thread].contains(came)) else {
            return;
        };
        let swapped = [thread, came];
        self.swapped.insert(cpu, swapped);
        // The first thread has gone before.
        let counted = self.others.len();
        self.others.retain(|_, other| *other != swapped);
        self.missing -= (counted - self.others.len()) as u64;
    }

    /// The number of a switch. Some have no record, or the kernel has told the program nothing of them; then another
    /// thread goes than has come. If some are missing before this one, gives since when.
    pub fn take(&mut self, cpu: u32, time: u64, count: u32, [prev, next]: [u32; 2]) -> Option<u64> {
        let last = self.lasts.get(&cpu).copied();
        let missing = last.map_or(0, |last| count.wrapping_sub(last.count).wrapping_sub(1));
        if missing >= u32::MAX / 2 {
            // It comes late, and has been counted.
            return None;
        }
        self.lasts.insert(cpu, Last { count, time, came: next });
        let last = last.filter(|last| missing > 0 || last.came != prev)?;
        let other = [last.came, prev];
        if missing > 0 {
            self.missing += u64::from(missing);
        } else if !self.swapped.values().any(|swapped| other == *swapped || [prev, last.came] == *swapped) {
            self.missing += 1;
            self.others.insert(cpu, other);
        }
        Some(last.time)
    }

    /// After a loss, of one CPU or of any, numbers are missing because of it.
    pub fn forget(&mut self, cpu: Option<u32>) {
        self.lasts.retain(|of, _| cpu.is_some_and(|cpu| cpu != *of));
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
    use super::Counted;

    #[test]
    fn a_missing_number_or_a_thread_that_has_not_come_is_counted() {
        for (count, [prev, next], missing) in [(2, [8, 7], 0), (3, [8, 7], 1), (2, [9, 7], 1), (4, [9, 7], 2)] {
            let mut counted = Counted::default();
            assert_eq!((counted.take(0, 10, 1, [7, 8]), counted.take(1, 11, 9, [5, 6])), (None, None));
            let since = if missing > 0 { Some(10) } else { None };
            assert_eq!(counted.take(0, 20, count, [prev, next]), since, "{count} {prev}");
            assert_eq!(counted.missing(), missing, "{count} {prev}");
        }
        let mut counted = Counted::default();
        assert_eq!([(u32::MAX, [7, 8]), (0, [8, 7])].map(|(count, of)| counted.take(0, 10, count, of)), [None; 2]);
        counted.forget(Some(1));
        assert_eq!(counted.take(0, 20, 9, [5, 6]), Some(10));
        counted.forget(Some(0));
        assert_eq!(counted.take(0, 30, 19, [5, 6]), None);
        // One that comes late.
        assert_eq!([(18, [8, 5]), (20, [6, 5])].map(|(count, of)| counted.take(0, 40, count, of)), [None; 2]);
    }
    /// 8 is a thread of the process 7, and takes its number, while 7 ends on CPU 1 with the number 8.
    #[test]
    fn a_thread_that_takes_the_number_of_its_process_is_no_switch() {
        for is_first in [true, false] {
            let mut counted = Counted::default();
            assert_eq!((counted.take(0, 10, 1, [5, 8]), counted.take(1, 10, 1, [6, 7])), (None, None));
            if is_first {
                counted.begins(0, 7);
            }
            // Who runs where is not known.
            assert_eq!(counted.take(1, 20, 2, [8, 6]), Some(10));
            if !is_first {
                counted.begins(0, 7);
            }
            assert_eq!(counted.take(0, 30, 2, [7, 5]), Some(10));
            assert_eq!(counted.missing(), 0, "{is_first}");
        }
        // One that begins another program with its own number, and one that nobody has seen come.
        for (came, missing) in [(7, 0), (0, 1)] {
            let mut counted = Counted::default();
            assert_eq!(counted.take(0, 10, 1, [5, came]), None);
            counted.begins(0, 7);
            assert_eq!(counted.take(0, 20, 2, [7, 5]).is_some(), missing > 0);
            assert_eq!(counted.missing(), missing, "{came}");
        }
    }
}
