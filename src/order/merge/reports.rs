//! What a report waits for: all that lay in the rings when it was asked for, and nothing newer.

use super::Merge;
use crate::order::stream::Notice;

impl Merge {
    /// Notes how far the rings were written when they were last looked at.
    pub(crate) fn mark_heads(&mut self) {
        for (lane, index) in self.rings.lanes.iter().zip(&mut self.stream.indexes) {
            index.marked = lane.ring.head();
        }
    }

    /// Whether the merge has seen everything that lay in the rings when heads were marked.
    pub(crate) fn is_past_marks(&self) -> bool {
        self.stream.indexes.iter().all(|index| index.cursor() >= index.marked)
    }

    /// Lets out nothing that is larger than what has been seen, until [`Merge::lift_cap`].
    pub(crate) fn set_cap(&mut self) {
        self.stream.sync();
        self.stream.frontier.set_cap();
    }

    pub(crate) fn lift_cap(&mut self) {
        self.stream.sync();
        self.stream.frontier.lift_cap();
    }

    /// Picks, to be yielded next, that everything from before a flush was yielded.
    pub(crate) fn pick_flushed(&mut self) {
        self.stream.sync();
        self.stream.notices.push_back(Notice::Flushed);
        self.pick();
    }

    /// Whether all that is held waits for the cap to be lifted.
    pub(crate) fn is_drained(&self) -> bool {
        self.stream.top().is_none_or(|top| self.stream.frontier.is_capped(top.key))
    }
}
