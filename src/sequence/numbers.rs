//! The sequence numbers of one ring's records, and which are missing.

#[cfg(all(test, not(loom)))]
mod tests;

use super::anomaly::{AnomalyKind, KINDS};
use super::ranges::Ranges;
use super::tracker::{Step, Tracker};
use super::wrap::{MIDDLE, Unwrap};

/// How far counting is moved ahead when it begins anew: numbers of before are not met again.
const APART: u64 = 1 << 20;

/// How many holes take no more memory than a first node does, which is kept.
const FIRST_NODE: usize = 4;

/// How far from where losses lead a number may be: what interrupts wrote lies around it.
const NEAR: u64 = 8;

/// The numbers of one ring, of which each record has one, and the holes in them.
///
/// Fed as records are indexed, which is in the order of the ring. Programs interrupt each other between counting and writing,
/// so a number that is ahead leaves a hole, and what comes later may fill it. What is still a hole when the record that showed it
/// is yielded is a gap: under the fence rule nothing will fill it any more.
///
/// Whatever numbers come, each takes a time that grows with the logarithm of the holes that are open, and adds no more than one range
/// to them.
#[derive(Debug)]
pub(crate) struct Numbers {
    unwrap: Unwrap,
    tracker: Tracker,
    /// The number that came last.
    last: u64,
    /// The first of all, as it was written.
    first: u64,
    /// What is missing so far, and may yet come.
    holes: Ranges,
    /// How many numbers these are.
    open: u64,
    /// Whether smaller ones may have been drawn before the first: it began with a number that interrupts may have written.
    began: bool,
    pub(crate) counts: NumberCounts,
}

/// Numbers that a record showed to be missing, counted on. Some may have come since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    first: u64,
    last: u64,
    /// What they are wrapped with.
    anchor: u64,
}

impl Hole {
    pub(crate) fn count(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// The counts of a ring's numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NumberCounts {
    /// Numbers declared missing that did not come after all.
    pub(crate) missing: u64,
    /// Anomalies of each kind, told or not.
    pub(crate) anomalies: [u64; KINDS],
}

/// What a number says about the record it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing to tell, now at least.
    Well,
    /// Numbers before it are missing so far.
    Hole(Hole),
    /// It breaks the sequence: what was expected.
    Anomaly(AnomalyKind, u64),
}

impl Numbers {
    /// The numbers of a counter of so many bits, and the first, if it is known.
    pub(crate) fn new(bits: u32, first: Option<u64>) -> Self {
        let unwrap = Unwrap::new(bits, first);
        Self {
            tracker: Tracker::new(first.map(|_| MIDDLE)),
            // None came before the first.
            last: 0,
            first: unwrap.wrap(MIDDLE),
            unwrap,
            holes: Ranges::new(usize::MAX),
            open: 0,
            began: first.is_none(),
            counts: NumberCounts::default(),
        }
    }

    /// Takes the number of a record. `lost` is what LOST records have told since the last number.
    #[inline]
    pub(crate) fn take(&mut self, written: u64, lost: u64) -> Said {
        let number = if lost >= self.unwrap.reach() && self.tracker.next().is_some() {
            self.unwrap_far(written, lost).ok_or(AnomalyKind::Wraparound)
        } else {
            self.unwrap.unwrap(written).ok_or(AnomalyKind::Forward)
        };
        let number = match number {
            Ok(number) => number,
            Err(kind) => return self.begin_anew(written, kind),
        };
        let last = std::mem::replace(&mut self.last, number);
        match self.tracker.step(number) {
            Step::Next => {
                self.tracker.pass(number);
                Said::Well
            }
            Step::Behind => self.take_behind(number, last),
            Step::First => {
                self.first = self.unwrap.wrap(number);
                self.tracker.pass(number);
                Said::Well
            }
            Step::Ahead(next) => {
                self.tracker.pass(number);
                self.hole(next, number - 1)
            }
        }
    }

    /// A number behind so many losses that the counter may have gone round. If it is where all of them together lead, they are
    /// what is missing.
    #[cold]
    fn unwrap_far(&mut self, written: u64, lost: u64) -> Option<u64> {
        let next = self.tracker.next().unwrap_or(MIDDLE);
        self.unwrap.unwrap_near(written, next.saturating_add(lost), NEAR)
    }

    #[cold]
    fn take_behind(&mut self, number: u64, last: u64) -> Said {
        let begin = self.tracker.begin();
        if number >= begin && self.holes.take(number) {
            self.open -= 1;
            self.tracker.well();
            return Said::Well;
        }
        if self.began && self.tracker.is_before_first(number) {
            // Drawn before the first that was seen, and written behind it.
            self.tracker.begin_before(number);
            return if number + 1 == begin { Said::Well } else { self.hole(number + 1, begin - 1) };
        }
        let written = self.unwrap.wrap(number);
        let kind = match number == last {
            true => AnomalyKind::Duplicate,
            false => self.tracker.anomaly(number, written <= 1 || written == self.first),
        };
        if matches!(kind, AnomalyKind::Reset | AnomalyKind::Backward) {
            return self.begin_anew(written, kind);
        }
        self.counts.missing -= u64::from(self.tracker.found(number));
        self.tell(kind)
    }

    /// Numbers are missing so far.
    fn hole(&mut self, first: u64, last: u64) -> Said {
        self.holes.add(first, last);
        self.open = self.open.saturating_add(last - first + 1);
        Said::Hole(Hole { first, last, anchor: self.unwrap.anchor() })
    }

    /// Counting goes on from a number, as it was written, that is not the next. What was missing before stays missing.
    #[cold]
    fn begin_anew(&mut self, written: u64, kind: AnomalyKind) -> Said {
        let said = self.tell(kind);
        let ahead = self.tracker.next().unwrap_or(MIDDLE).saturating_add(APART);
        if !self.unwrap.shift(written, ahead) {
            // At the end of all numbers. What is missing is not told of any more, but counted.
            self.counts.missing = self.counts.missing.saturating_add(std::mem::take(&mut self.open));
            self.holes.clear();
            self.tracker.forget_gaps();
        }
        self.last = self.unwrap.unwrapped();
        self.tracker.restart(self.last);
        // Behind a leap nothing smaller is in flight.
        self.began = matches!(kind, AnomalyKind::Reset | AnomalyKind::Wraparound);
        said
    }

    /// Counts an anomaly, and tells of it unless one was told not long ago.
    fn tell(&mut self, kind: AnomalyKind) -> Said {
        self.counts.anomalies[kind as usize] += 1;
        let expected = self.unwrap.wrap(self.tracker.next().unwrap_or(MIDDLE));
        let may = self.tracker.may_tell(kind);
        self.tracker.told(kind);
        if may { Said::Anomaly(kind, expected) } else { Said::Well }
    }

    /// The next numbers of a hole that are still missing.
    pub(crate) fn gap(&self, hole: &Hole) -> Option<Hole> {
        let (first, last) = self.holes.first_between(hole.first, hole.last)?;
        Some(Hole { first, last, ..*hole })
    }

    /// The first and the last number of a hole as they would have been written.
    pub(crate) fn written(&self, hole: &Hole) -> (u64, u64) {
        let written = |number| self.unwrap.wrap_from(hole.anchor, number);
        (written(hole.first), written(hole.last))
    }

    /// Gives up the numbers of a gap: they are no hole any more.
    pub(crate) fn declare(&mut self, gap: &Hole) {
        if self.holes.remove(gap.first) {
            self.open = self.open.saturating_sub(gap.count());
            self.counts.missing = self.counts.missing.saturating_add(gap.count());
            self.tracker.declare(gap.first, gap.last, false);
        }
    }

    /// Numbers that are missing so far and not declared yet.
    pub(crate) fn open(&self) -> u64 {
        self.open
    }

    /// The most bytes that a number adds to the holes.
    pub(crate) const EACH: usize = Ranges::EACH;

    /// Bytes that the holes take beyond the tree's first node.
    pub(crate) fn memory(&self) -> usize {
        self.holes.len().saturating_sub(FIRST_NODE) * Self::EACH
    }
}
