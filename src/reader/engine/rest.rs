//! What a reader has found since it slept: whether it rests, or spins.

use crate::reader::pace::WORTH_A_REFRESH;
use std::time::{Duration, Instant};

/// A reader rests only while it holds less than this part of the events it found since it slept.
const PART_HELD: usize = 4;

/// Sleeps, and what was found since the last.
#[derive(Debug)]
pub(in crate::reader) struct Rest {
    /// How long to keep refreshing after an event was found, and when the last one was found.
    pub(in crate::reader) spin: Duration,
    pub(in crate::reader) found_at: Option<Instant>,
    /// Events found since the reader last slept, or could have slept.
    pub(in crate::reader) since_sleep: usize,
    /// How often the reader went to sleep, and how often it was woken.
    pub(in crate::reader) sleeps: u64,
    pub(in crate::reader) wakes: u64,
}

impl Rest {
    pub(in crate::reader) fn new(spin: Duration) -> Self {
        Self { spin, found_at: None, since_sleep: 0, sleeps: 0, wakes: 0 }
    }

    /// A refresh has found so many events.
    pub(in crate::reader) fn refreshed(&mut self, now: Instant, found: usize) {
        self.since_sleep = self.since_sleep.saturating_add(found);
        if found > 0 {
            self.found_at = Some(now);
        }
    }

    /// Whether to refresh again instead of sleeping.
    pub(in crate::reader) fn spins(&self) -> bool {
        !self.spin.is_zero()
            && (self.spin == Duration::MAX || self.found_at.is_some_and(|found| found.elapsed() < self.spin))
    }

    /// Whether the reader has found many events since it slept, and has taken them. `gathers`: one event is many.
    pub(in crate::reader) fn took_much(&self, held: usize, gathers: bool) -> bool {
        self.since_sleep >= if gathers { 1 } else { WORTH_A_REFRESH }
            && held < WORTH_A_REFRESH.max(self.since_sleep / PART_HELD)
    }

    /// Counts a sleep, if its time is not zero.
    pub(in crate::reader) fn slept(&mut self, time: Duration) {
        self.since_sleep = 0;
        self.sleeps += u64::from(!time.is_zero());
    }
}
