//! The events before a report: all that were in the rings when it was requested, and none newer.

use super::Merge;
use crate::order::event::EarlyRelease;
use crate::order::stream::Notice;
use std::time::Duration;

impl Merge {
    /// Records how far the rings were written, or reserved, at the last refresh.
    pub(crate) fn mark_heads(&mut self) {
        for (cpu_ring, index) in self.rings.cpu_rings.iter().zip(&mut self.stream.indexes) {
            index.marked = cpu_ring.ring.reserved();
        }
    }

    /// Whether the merge has indexed everything that was in the rings when heads were marked.
    pub(crate) fn is_past_marks(&self) -> bool {
        self.stream.indexes.iter().all(|index| index.cursor() >= index.marked)
    }

    /// Releases nothing larger than the keys seen so far, until [`Merge::lift_cap`].
    pub(crate) fn set_cap(&mut self) {
        self.stream.sync();
        self.stream.frontier.set_cap();
    }

    pub(crate) fn lift_cap(&mut self) {
        self.stream.sync();
        self.stream.frontier.lift_cap();
    }

    /// The ring buffers in which a program is inside a reservation for which a proof or a report waits: the CPU, and
    /// where it is.
    pub(crate) fn awaited_places(&self) -> impl Iterator<Item = (u32, u64)> {
        self.awaited().map(|cpu_ring| (cpu_ring.origin.cpu, cpu_ring.ring.head()))
    }

    /// A report waits no longer for these reservations, of which it is known for how long. What lies behind them comes
    /// after the report. Nor does it wait for a proof any more that waits for them, which is said once (`is_first`).
    /// Returns whether it waited for any.
    pub(crate) fn forgo_reserved(&mut self, old: &[((u32, u64), Duration)], is_first: bool) -> bool {
        let mut oldest = None;
        for (cpu_ring, index) in self.rings.cpu_rings.iter().zip(&mut self.stream.indexes) {
            let place = (cpu_ring.origin.cpu, cpu_ring.ring.head());
            // A ring that is not indexed up to its reservation is short of memory, and has more to give.
            let is_there = cpu_ring.ring.properties().reserves && index.cursor() == place.1;
            // The proof may wait for what was reserved after the report began.
            let keeps = is_there && (index.marked > place.1 || is_first && index.sighted > place.1);
            if let Some((_, age)) = old.iter().find(|(other, _)| keeps && *other == place) {
                index.marked = index.marked.min(index.cursor());
                oldest = oldest.max(Some((*age, place.0)));
            }
        }
        let Some((age, cpu)) = oldest else { return false };
        let notice = EarlyRelease { cpu, reserved: Some(age), ..self.unproven(self.memory()) };
        self.stream.sync();
        self.stream.early_notice = Some(notice);
        self.stream.notices.push_back(Notice::EarlyRelease(notice));
        true
    }

    /// Releases what a report still waits for, as early, if the rule is one that proves.
    pub(crate) fn release_before_report(&mut self) {
        self.stream.sync();
        if self.stream.frontier.awaits.is_proof() && !self.stream.frontier.release_to_cap() {
            // Only the last refresh found the rest. The next one shows what was in flight meanwhile.
            self.stream.rushed = true;
        }
    }

    /// Picks the report of a flush as the next event.
    pub(crate) fn pick_flushed(&mut self) {
        self.stream.sync();
        self.stream.notices.push_back(Notice::Flushed);
        self.pick();
    }

    /// Whether all held events wait until the cap is lifted.
    pub(crate) fn is_drained(&self) -> bool {
        self.stream.top().is_none_or(|top| self.stream.frontier.is_capped(top.key))
    }
}
