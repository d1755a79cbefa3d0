//! The rule of a sequence: which number is next, and what any other number means.

use super::anomaly::{AnomalyKind, Quiet};
use super::ranges::Ranges;

/// How far back a repeated number counts as a duplicate. A number further back means that counting jumped.
pub(super) const RECENT: u64 = 64;

/// How many gaps are remembered, to recognize a number that comes after all.
pub(super) const REMEMBERED: usize = 16;

/// The state of a sequence, and what was reported about it. Numbers are extended to 64 bits.
#[derive(Debug)]
pub(crate) struct Tracker {
    /// The next number; `None` until the first is known.
    next: Option<u64>,
    /// The first number, or the one with which counting started again. Smaller numbers were counted before that, or
    /// drawn before the first.
    begin: u64,
    /// Reported gaps whose numbers may still come.
    gaps: Ranges,
    quiet: Quiet,
}

/// The relation of a number to the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is the next number.
    Next,
    /// It was passed already: it is late, or it came twice.
    Behind,
    /// Numbers before it are missing, from this one on. They may be in flight.
    Ahead(u64),
    /// Nothing is known yet.
    First,
}

impl Tracker {
    /// The tracker of numbers of which the first is known, or is the first that comes.
    pub(crate) fn new(first: Option<u64>) -> Self {
        let (gaps, quiet) = (Ranges::new(REMEMBERED), Quiet::default());
        // Until the first number comes, no number is one of this count.
        Self { next: first, begin: first.unwrap_or(u64::MAX), gaps, quiet }
    }

    /// The next number, if it is known.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        self.next
    }

    /// The smallest number of this count.
    pub(super) fn begin(&self) -> u64 {
        self.begin
    }

    #[inline]
    pub(crate) fn step(&self, number: u64) -> Step {
        match self.next {
            None => Step::First,
            Some(next) if number == next => Step::Next,
            Some(next) if number < next => Step::Behind,
            Some(next) => Step::Ahead(next),
        }
    }

    /// A number has come, or numbers up to it are skipped.
    #[inline]
    pub(crate) fn pass(&mut self, number: u64) {
        self.quiet.came(self.next.is_none_or(|next| number >= next));
        if self.next.is_none() {
            self.begin = number;
        }
        // Saturating: a key may be the largest number that there is.
        self.next = self.next.max(Some(number.saturating_add(1)));
    }

    /// A smaller number has come that is correct. `number`: the smallest number of this count from now on.
    pub(super) fn begin_before(&mut self, number: u64) {
        self.begin = self.begin.min(number);
    }

    /// A smaller number has come that was expected.
    pub(super) fn came_as_expected(&mut self) {
        self.quiet.came(true);
    }

    /// Counting starts again with a number.
    pub(super) fn restart(&mut self, number: u64) {
        (self.begin, self.next) = (number, Some(number.saturating_add(1)));
    }

    /// Whether a number was drawn right before the first one. Such a number is no anomaly.
    pub(crate) fn is_before_first(&self, number: u64) -> bool {
        number < self.begin && self.is_recent(number)
    }

    fn is_recent(&self, number: u64) -> bool {
        self.next.is_some_and(|next| next.saturating_sub(number) <= RECENT)
    }

    /// The anomaly of a number smaller than the next.
    pub(crate) fn anomaly(&self, number: u64) -> AnomalyKind {
        let ours = number >= self.begin;
        match () {
            // Before recent ones: a number that was declared missing has not come before.
            () if ours && self.gaps.has(number) => AnomalyKind::Late,
            () if ours && self.is_recent(number) => AnomalyKind::Duplicate,
            () => AnomalyKind::Jump,
        }
    }

    /// The anomaly of a number of the whole machine smaller than the next, if it is to be reported.
    pub(crate) fn to_report(&self, number: u64) -> Option<AnomalyKind> {
        let kind = self.anomaly(number);
        (!self.is_before_first(number) && self.may_report(kind)).then_some(kind)
    }

    /// Whether an anomaly is to be reported: none of its kind was reported recently.
    pub(super) fn may_report(&self, kind: AnomalyKind) -> bool {
        self.quiet.may_report(kind)
    }

    /// An anomaly was reported, or was left unreported because it repeats.
    pub(crate) fn reported(&mut self, kind: AnomalyKind) {
        self.quiet.reported(kind);
    }

    /// Numbers are reported as missing.
    pub(crate) fn declare(&mut self, first: u64, last: u64) {
        self.gaps.add(first, last);
    }

    /// A number that was passed has come. Returns whether it was reported as missing; it no longer is.
    pub(crate) fn take_missing(&mut self, number: u64) -> bool {
        self.gaps.take(number)
    }

    /// Forgets all reported gaps.
    pub(super) fn forget_gaps(&mut self) {
        self.gaps.clear();
    }
}
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_sequence() {
        let mut sequence = Tracker::new(None);
        assert_eq!(sequence.step(7), Step::First);
        sequence.pass(7);
        assert_eq!(sequence.step(8), Step::Next);
        assert_eq!(sequence.step(7), Step::Behind);
        assert_eq!(sequence.step(10), Step::Ahead(8));
        sequence.pass(3);
        assert_eq!(sequence.step(8), Step::Next, "never backwards");
        sequence.pass(u64::MAX);
        assert_eq!(sequence.step(0), Step::Behind);
        assert_eq!(Tracker::new(Some(9)).next(), Some(9));
    }

    #[test]
    fn numbers_that_are_behind_are_told_apart() {
        let mut sequence = Tracker::new(Some(1000));
        (1000..1100).for_each(|number| sequence.pass(number));
        assert_eq!(sequence.to_report(1100 - RECENT), Some(AnomalyKind::Duplicate));
        assert_eq!(sequence.to_report(1099 - RECENT), Some(AnomalyKind::Jump));
        assert_eq!(
            [0, 1, 900, 1000].map(|number| sequence.to_report(number)),
            [Some(AnomalyKind::Jump); 4],
            "the first number too"
        );
        // Gaps are known again, and each number once.
        sequence.declare(1100, 1104);
        sequence.pass(1104);
        sequence.declare(1105, 1109);
        sequence.pass(1109);
        assert_eq!([1100, 1104, 1105, 1109].map(|number| sequence.to_report(number)), [Some(AnomalyKind::Late); 4]);
        assert!(
            sequence.take_missing(1105)
                && !sequence.take_missing(1105)
                && sequence.take_missing(1100)
                && !sequence.take_missing(1100)
        );
        assert_eq!(sequence.to_report(1105), Some(AnomalyKind::Duplicate));
        // A number before the first one seen is no anomaly; the first one again is.
        let mut sequence = Tracker::new(None);
        sequence.pass(1000);
        assert_eq!((sequence.to_report(999), sequence.to_report(1000)), (None, Some(AnomalyKind::Duplicate)));
    }
}
