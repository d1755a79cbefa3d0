//! Rests: how long a reader that has taken many events sleeps before it refreshes again.

use super::Engine;
use crate::reader::pace::{FLOOR, WORTH_A_REFRESH};
use std::time::{Duration, Instant};

/// A reader rests only while it holds less than this part of the events it found since it slept.
const PART_HELD: usize = 4;

impl Engine {
    /// How long to sleep before the next refresh, although more may have been written since the last. Zero: refresh at once.
    ///
    /// The kernel writes more while a reader takes the events it has found. A refresh at once would find few, in cache lines that the
    /// kernel is still writing. So a reader that has found many events since it slept, and has taken them, sleeps for a short tick. It does
    /// not rest if rings cannot wake it, if a ring is full already, or if a caller waits. With BPF ring buffers it rests for a millisecond at most.
    pub(crate) fn rest(&mut self) -> Duration {
        let took_much = self.since_sleep >= WORTH_A_REFRESH
            && self.merge.held() < WORTH_A_REFRESH.max(self.since_sleep / PART_HELD);
        let is_awaited = self.report.is_some() || self.merge.is_behind() || self.merge.rings().are_complete();
        if !took_much || is_awaited || !self.spin.is_zero() || !self.have_events() {
            return Duration::ZERO;
        }
        let now = Instant::now();
        // No BPF ring buffer wakes the reader as it fills up.
        let longest = if self.do_rings_wake() { Duration::MAX } else { FLOOR };
        let ends = [self.due.map(|due| due.saturating_duration_since(now)), self.control.time_left()];
        let rest = ends.into_iter().flatten().fold(self.pace.rest(now).min(longest), Duration::min);
        if !rest.is_zero() {
            // Bytes of yielded events are given back before every sleep: by a refresh, or here.
            self.merge.publish();
            if !self.merge.is_crowded() {
                return rest;
            }
        }
        self.since_sleep = 0;
        Duration::ZERO
    }

    /// Whether each ring wakes the reader as it fills up. A BPF ring buffer does not: the kernel notifies only a reader that has given all
    /// earlier records back.
    pub(super) fn do_rings_wake(&self) -> bool {
        self.have_events() && !self.merge.rings().have_ring_buffers()
    }

    /// Whether each ring can wake the reader.
    fn have_events(&self) -> bool {
        let rings = self.merge.rings();
        rings.events().count() == rings.len()
    }
}
