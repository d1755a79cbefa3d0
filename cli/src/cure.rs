//! What would have held what was lost: how large each ring would have to be. It is a guess. A larger ring would have
//! held the largest loss in a row, but how much comes in a row the next time, nobody knows.

use crate::sizing::MOST;
use perfweave::Item;
use std::collections::HashMap;

/// Losses that follow each other within this time, in nanoseconds, are one: the ring was not emptied in between.
const APART: u64 = 1_000_000_000;

/// The length of a record, if none was seen: a tracepoint's with one field.
const SHORTEST: u64 = 64;

/// What was lost, and how long records are.
#[derive(Debug, Default)]
pub struct Cure {
    records: u64,
    bytes: u64,
    losses: HashMap<u32, Losses>,
}

/// The losses of a CPU.
#[derive(Debug, Default)]
struct Losses {
    told: u64,
    /// How many records the newest loss has taken so far, and its last time.
    newest: u64,
    until: Option<u64>,
    /// How many the largest has taken.
    largest: u64,
}

/// What would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// So many bytes for each CPU's ring.
    Bytes(u64),
    /// No ring is large enough.
    TraceLess,
}

impl Cure {
    /// Takes the next item of the stream.
    pub fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Record(record) => {
                self.records += 1;
                self.bytes += record.as_bytes().len() as u64;
            }
            Item::Lost(lost) => self.losses.entry(lost.cpu).or_default().take(lost.count, lost.after, lost.until),
            _ => {}
        }
    }

    /// How large the rings must be for this load, if they and copies had `used` bytes, for which `needed` would have been
    /// enough. `lost` has how many records each CPU has lost in all: the last losses are in that count alone. `None` if
    /// nothing was lost.
    pub fn advice(&self, used: u64, needed: u64, lost: impl Iterator<Item = (u32, u64)>) -> Option<Advice> {
        let none = Losses::default();
        let largest = |(cpu, lost): (u32, u64)| {
            let losses = self.losses.get(&cpu).unwrap_or(&none);
            losses.largest.max(losses.newest + lost.saturating_sub(losses.told))
        };
        let records = lost.map(largest).max().filter(|records| *records > 0)?;
        let each = self.bytes.checked_div(self.records).unwrap_or(0).max(SHORTEST);
        // Records differ in length: an eighth more.
        let bytes = used.saturating_add(records.saturating_mul(each).saturating_add(records.saturating_mul(each) / 8));
        let bytes = bytes.max(needed.min(MOST));
        Some(if bytes > MOST { Advice::TraceLess } else { Advice::Bytes(bytes.next_power_of_two()) })
    }
}

impl Advice {
    /// The size of a ring, if one helps.
    pub fn bytes(self) -> Option<u64> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// What to do, with the name of the option that sets the size of rings, and how it takes a number of bytes.
    pub fn text(self, option: &str, size: impl Fn(u64) -> String) -> String {
        match self.bytes() {
            Some(bytes) => {
                format!("guessed from the largest loss and what was held, it takes {option} {}", size(bytes))
            }
            None => {
                format!(
                    "guessed from the largest loss and what was held, no {option} is large enough: trace fewer events or \
                     processes"
                )
            }
        }
    }
}

impl Losses {
    /// Takes a loss between two times of its ring.
    fn take(&mut self, count: u64, after: Option<u64>, until: Option<u64>) {
        if self.until.zip(after).is_some_and(|(until, after)| after.saturating_sub(until) > APART) {
            self.newest = 0;
        }
        self.told += count;
        self.newest += count;
        self.until = until.or(self.until);
        self.largest = self.largest.max(self.newest);
    }
}

#[cfg(test)]
mod tests {
    use super::{APART, Advice, Cure, MOST};

    #[test]
    fn a_ring_needs_room_for_the_largest_loss_of_a_cpu() {
        let mut cure = Cure { records: 10, bytes: 1000, ..Cure::default() };
        assert_eq!(cure.advice(4096, 0, [(0, 0), (1, 0)].into_iter()), None);
        // Of these, two follow each other, and the third comes later.
        let of_cpu = |cure: &mut Cure, cpu, losses: &[(u64, u64, u64)]| {
            let of = cure.losses.entry(cpu).or_default();
            losses.iter().for_each(|(count, after, until)| of.take(*count, Some(*after), Some(*until)));
        };
        of_cpu(&mut cure, 0, &[(100, 10, 20), (200, 30, 40), (50, APART + 41, APART + 50)]);
        of_cpu(&mut cure, 1, &[(10, 10, 20)]);
        // 300 records of 100 bytes, and an eighth more.
        assert_eq!(cure.advice(4096, 0, [(0, 350), (1, 10)].into_iter()), Some(Advice::Bytes(65536)));
        // What nothing tells yet belongs to the newest loss: 1010 records.
        assert_eq!(cure.advice(4096, 0, [(0, 350), (1, 1010)].into_iter()), Some(Advice::Bytes(131_072)));
        // A loss that no event told.
        assert_eq!(Cure::default().advice(4096, 0, [(0, 64)].into_iter()), Some(Advice::Bytes(16384)));
        assert_eq!(cure.advice(4096, 0, [(0, u64::MAX)].into_iter()), Some(Advice::TraceLess));
        // What was held needs more than that; but only a loss finds that no ring is large enough.
        assert_eq!(cure.advice(4096, MOST * 2, [(1, 10)].into_iter()), Some(Advice::Bytes(MOST)));
        assert_eq!(cure.advice(4096, 1 << 20, [(1, 10)].into_iter()), Some(Advice::Bytes(1 << 20)));
        // It says that it is a guess, and why there may be no size.
        let text = |advice: Advice| (advice.bytes(), advice.text("--buffer", |bytes| bytes.to_string()));
        assert_eq!(
            text(Advice::Bytes(65536)),
            (Some(65536), "guessed from the largest loss and what was held, it takes --buffer 65536".into())
        );
        let (none, why) = text(Advice::TraceLess);
        assert!(none.is_none() && why.contains("no --buffer is large enough: trace fewer"), "{why}");
    }
}
