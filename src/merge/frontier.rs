//! The frontier: the keys that may leave, and how they move. Pure bookkeeping: no clock, no system call.

#[cfg(all(test, not(loom)))]
mod tests;

use crate::merge::certainty::Certainty;
use crate::merge::rules::{Look, Rule};

/// The largest key that may be yielded now, and how it moves. A refresh of all rings moves it, by the rule.
///
/// ```text
///  keys  ─┤ may leave ├────────────┤ held ├────────────────────────►
///                     key                        seen        found
///                      ▲                           │
///                      └─ proven ◄─ end ─ proving ◄┘ begin     the pending proof
/// ```
///
/// - `seen ≤ found`: a refresh in part finds keys, and says nothing of those it did not reach.
/// - `proving ≤ seen`: a proof covers what was seen when it began. Once it has ended, the next refresh of all rings
///   takes `proven` over.
/// - `cap` may lie anywhere. While it is set, nothing above it leaves.
///
/// A clock reading less the lag may be above everything that was seen.
#[derive(Debug)]
pub(crate) struct Frontier {
    /// What releases the keys above the frontier, and the certainty of those that may leave.
    pub(crate) rule: Rule,
    pub(crate) certainty: Certainty,
    /// The largest key that the rule releases. With a cap less may leave.
    pub(crate) key: Option<u64>,
    /// The largest key that leaves before a flush or deadline is reported. `None` if no report is due, `Some(None)` if
    /// nothing was found.
    cap: Option<Option<u64>>,
    /// The largest key that refreshes of all rings have found.
    pub(crate) seen: Option<u64>,
    /// The largest key that any refresh has found.
    found: Option<u64>,
    /// The pending proof: what it will prove, and what one has proven that has ended since the last refresh of all
    /// rings.
    proving: Option<u64>,
    proven: Option<u64>,
}

impl Frontier {
    pub(crate) fn new(rule: Rule) -> Self {
        let certainty = if rule.is_proof() { Certainty::Proven } else { Certainty::Assumed };
        Self { rule, certainty, key: None, cap: None, seen: None, found: None, proving: None, proven: None }
    }

    /// The frontier of rings that hold all there will ever be. Nothing is in flight, so one refresh proves everything.
    pub(crate) fn complete() -> Self {
        Self { certainty: Certainty::Proven, ..Self::new(Rule::Nothing) }
    }

    /// Records a refresh of some heads, or of a part of the bytes before them. `largest` is the largest key found.
    pub(crate) fn refreshed_in_part(&mut self, largest: Option<u64>) {
        self.found = self.found.max(largest);
    }

    /// Records a refresh of all heads. `largest` is the largest key found: if keys are times, no later than the
    /// clock. `now` is a clock reading taken before the first head was loaded.
    pub(crate) fn refreshed(&mut self, largest: Option<u64>, now: u64) {
        self.refreshed_in_part(largest);
        self.seen = self.seen.max(largest);
        // A proof counts from the first refresh after its end: that one loaded the heads after it.
        let key = self.rule.frontier(&Look { seen: self.seen, proven: self.proven.take(), now });
        // It never moves back (I8), also if the clock of the lag rule does.
        self.key = self.key.max(key);
    }

    /// The end of the keys that may leave: it is not one of them.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        // The largest key of all is never below this end. It is picked one by one.
        self.largest_admitted().map_or(0, |key| key.saturating_add(1))
    }

    /// The largest key that may leave.
    #[inline]
    pub(crate) fn largest_admitted(&self) -> Option<u64> {
        self.cap.map_or(self.key, |cap| self.key.min(cap))
    }

    /// Whether a key may be yielded.
    #[inline]
    pub(crate) fn admits(&self, key: u64) -> bool {
        Some(key) <= self.largest_admitted()
    }

    /// Releases nothing larger than the keys found so far, until [`Frontier::lift_cap`].
    pub(crate) fn set_cap(&mut self) {
        self.cap = Some(self.found);
    }

    pub(crate) fn lift_cap(&mut self) {
        self.cap = None;
    }

    /// Whether a key has to wait until the cap is lifted.
    pub(crate) fn is_capped(&self, key: u64) -> bool {
        self.cap.is_some_and(|cap| Some(key) > cap)
    }

    /// Records that a proof is about to begin. It will prove the keys seen so far. False if it would prove nothing new,
    /// if another one is under way, or if the rule needs none.
    pub(crate) fn begin_proof(&mut self) -> bool {
        let useful = self.rule.is_proof() && self.proving.is_none() && self.seen > self.key.max(self.proven);
        if useful {
            self.proving = self.seen;
        }
        useful
    }

    /// The proof has ended. False if none was under way.
    pub(crate) fn end_proof(&mut self) -> bool {
        let ended = self.proving.take();
        // Another proof may have ended since the last refresh of all rings.
        self.proven = self.proven.max(ended);
        ended.is_some()
    }

    /// The proof failed and proves nothing.
    pub(crate) fn fail_proof(&mut self) {
        self.proving = None;
    }
}
