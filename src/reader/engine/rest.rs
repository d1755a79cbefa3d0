//! Rests: how long a reader that has taken much sleeps before it looks again.

use super::Engine;
use crate::reader::pace::WORTH_A_LOOK;
use std::time::{Duration, Instant};

/// A reader rests while it holds less than this part of what it has found since it slept.
const PART_HELD: usize = 4;

impl Engine {
    /// How long to sleep before the next refresh, although more may have been written since the last. Zero is to look at once.
    ///
    /// More is written while a reader takes what it has found. A refresh at once would find little, in cache lines that are being
    /// written to. So a reader that has found much since it slept, and has taken it, sleeps for a short tick. It does not where rings
    /// cannot wake it as they fill up, where one is full already, or where somebody waits.
    pub(crate) fn rest(&mut self) -> Duration {
        let took_much =
            self.since_sleep >= WORTH_A_LOOK && self.merge.held() < WORTH_A_LOOK.max(self.since_sleep / PART_HELD);
        let is_awaited = self.report.is_some() || self.merge.is_behind() || self.merge.rings().are_complete();
        if !took_much || is_awaited || !self.spin.is_zero() || !self.do_rings_wake() {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let ends = [self.due.map(|due| due.saturating_duration_since(now)), self.control.time_left()];
        let rest = ends.into_iter().flatten().fold(self.pace.rest(now), Duration::min);
        if !rest.is_zero() {
            // What was yielded is given back before every sleep: by a refresh, or here.
            self.merge.publish();
            if !self.merge.is_crowded() {
                return rest;
            }
        }
        self.since_sleep = 0;
        Duration::ZERO
    }

    /// Whether each ring wakes the reader as it fills up.
    pub(super) fn do_rings_wake(&self) -> bool {
        let rings = self.merge.rings();
        rings.events().count() == rings.len()
    }
}
