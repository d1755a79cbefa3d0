//! The events before a report: all that were in the rings when it was requested, and none newer.

use super::Merge;
use crate::order::stream::Notice;

impl Merge {
    /// Records how far the rings were written, or reserved, at the last refresh.
    pub(crate) fn mark_heads(&mut self) {
        for (lane, index) in self.rings.lanes.iter().zip(&mut self.stream.indexes) {
            index.marked = lane.ring.reserved();
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
