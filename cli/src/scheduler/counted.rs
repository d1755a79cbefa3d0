//! Which switches have no record, as their numbers show.

use super::told::{self, Told};
use perfweave::{Event, Item, Rings};
use std::collections::HashMap;

/// The number of the last switch of each CPU and who came by it, and how many are known to be missing.
#[derive(Debug, Default)]
pub struct Counted {
    lasts: HashMap<u32, (u32, u32)>,
    missing: u64,
    /// The source of the records.
    source: Option<usize>,
}

impl Counted {
    /// Of a stream that nothing else takes apart.
    pub fn of(rings: &Rings) -> Self {
        Self { source: rings.sources().iter().position(told::is_output), ..Self::default() }
    }

    /// Takes an event of the stream.
    pub fn event(&mut self, event: &Event<'_>) {
        match event.item() {
            Item::Record(record) if self.source.is_some() && record.source() == self.source => {
                if let Some(Told::Switch { prev, next, count, .. }) = Told::of(&record, 0) {
                    self.take(record.cpu(), count, [prev, next]);
                }
            }
            Item::Record(_) | Item::Flushed { .. } => {}
            _ => self.forget(),
        }
    }

    /// The number of a switch. Some have no record, or the kernel has told the program nothing of them; then another
    /// thread goes than has come. Gives whether some are missing before this one.
    pub fn take(&mut self, cpu: u32, count: u32, [prev, next]: [u32; 2]) -> bool {
        let Some((last, came)) = self.lasts.get(&cpu).copied() else {
            self.lasts.insert(cpu, (count, next));
            return false;
        };
        let missing = count.wrapping_sub(last).wrapping_sub(1);
        if missing >= u32::MAX / 2 {
            // It comes late, and has been counted.
            return false;
        }
        self.lasts.insert(cpu, (count, next));
        let is_missing = missing > 0 || came != prev;
        self.missing += if is_missing { u64::from(missing.max(1)) } else { 0 };
        is_missing
    }

    /// After a loss, numbers are missing because of it.
    pub fn forget(&mut self) {
        self.lasts.clear();
    }

    /// How many are missing.
    pub fn missing(&self) -> u64 {
        self.missing
    }
}

#[cfg(test)]
mod tests {
    use super::Counted;

    #[test]
    fn a_missing_number_or_a_thread_that_has_not_come_is_counted() {
        for (count, [prev, next], missing) in [(2, [8, 7], 0), (3, [8, 7], 1), (2, [9, 7], 1), (4, [9, 7], 2)] {
            let mut counted = Counted::default();
            assert!(!counted.take(0, 1, [7, 8]) && !counted.take(1, 9, [5, 6]));
            assert_eq!(counted.take(0, count, [prev, next]), missing > 0, "{count} {prev}");
            assert_eq!(counted.missing(), missing, "{count} {prev}");
        }
        let mut counted = Counted::default();
        assert!(!counted.take(0, u32::MAX, [7, 8]) && !counted.take(0, 0, [8, 7]));
        counted.forget();
        assert!(!counted.take(0, 9, [5, 6]));
        // One that comes late.
        assert!(!counted.take(0, 8, [8, 5]) && !counted.take(0, 10, [6, 5]));
    }
}
