//! Breaks: what can be wrong with a number, and which missing numbers are remembered.

use std::collections::BTreeMap;

/// How a number breaks its sequence: it is neither the next one nor ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Break {
    /// The number came before, not long ago.
    Duplicate,
    /// Counting began anew: the number is 0, 1, or the first number ever seen there.
    Reset,
    /// The number is further back than records come out of order. Counting goes on from there.
    Backward,
    /// The number is further ahead than losses can explain. Counting goes on from there.
    Forward,
    /// The number was declared missing, and came after all: the program did not write it where it counted.
    Found,
    /// So many numbers were unread or lost that a counter of this width may have gone round unseen. The number
    /// of missing ones is not known, and counting begins anew. See [`Sequence`](crate::Sequence).
    Ambiguous,
}

/// How many kinds of breaks there are.
const KINDS: usize = 6;

/// How far back a number that was there before is a duplicate; beyond, counting jumped.
pub(crate) const RECENT: u64 = 64;

/// How many numbers must be well in a row before a break of the same kind is told again. A break that repeats is told
/// once.
const QUIET: u32 = 16;

/// Which breaks were told not long ago.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Quiet {
    /// How many numbers in a row were well.
    well: u32,
    told: [bool; KINDS],
}

impl Quiet {
    #[inline]
    pub(crate) fn well(&mut self, well: bool) {
        self.well = if well { self.well.saturating_add(1) } else { 0 };
    }

    pub(crate) fn may_tell(&self, how: Break) -> bool {
        self.well >= QUIET || !self.told[how as usize]
    }

    pub(crate) fn told(&mut self, how: Break) {
        if std::mem::take(&mut self.well) >= QUIET {
            self.told = [false; KINDS];
        }
        self.told[how as usize] = true;
    }
}

/// Reported gaps, so that a number that comes after all is known again. As first and last number. Disjoint, and limited
/// in number.
#[derive(Debug)]
pub(crate) struct Gaps {
    gaps: BTreeMap<u64, u64>,
    most: usize,
}

impl Gaps {
    /// Bytes that one takes, nodes that are half full included.
    pub(crate) const EACH: usize = 3 * size_of::<(u64, u64)>();

    pub(crate) fn new(most: usize) -> Self {
        Self { gaps: BTreeMap::new(), most }
    }

    /// Adds one. The smallest are forgotten if there are too many.
    pub(crate) fn add(&mut self, first: u64, last: u64) {
        self.gaps.insert(first, last);
        while self.gaps.len() > self.most {
            self.gaps.pop_first();
        }
    }

    /// Forgets what lies wholly up to a number.
    pub(crate) fn forget_until(&mut self, number: Option<u64>) {
        while self.gaps.first_key_value().is_some_and(|(_, last)| Some(*last) <= number) {
            self.gaps.pop_first();
        }
    }

    /// The first number of the gap that a number is missing from.
    fn of(&self, number: u64) -> Option<u64> {
        let (first, last) = self.gaps.range(..=number).next_back()?;
        (number <= *last).then_some(*first)
    }

    /// Whether a number is missing.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.of(number).is_some()
    }

    /// Takes a number out of the gap that it is missing from, if it is.
    pub(crate) fn take(&mut self, number: u64) -> bool {
        let Some(first) = self.of(number) else { return false };
        let Some(last) = self.gaps.remove(&first) else { return false };
        if first < number {
            self.add(first, number - 1);
        }
        if number < last {
            self.add(number + 1, last);
        }
        true
    }

    /// How many gaps are remembered at most.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// How many gaps are remembered.
    pub(crate) fn len(&self) -> usize {
        self.gaps.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Break, Gaps, QUIET, Quiet};
    use quickcheck::quickcheck;
    use std::collections::BTreeSet;

    #[test]
    fn as_many_gaps_are_remembered_as_may_be_and_the_smallest_are_forgotten() {
        let mut gaps = Gaps::new(3);
        for (at, first) in [(1, 50), (2, 10), (3, 30)] {
            gaps.add(first, first + 4);
            assert_eq!(gaps.len(), at);
        }
        assert!([10, 14, 30, 34, 50, 54].into_iter().all(|number| gaps.has(number)));
        assert!([9, 15, 29, 35, 49, 55].into_iter().all(|number| !gaps.has(number)));
        gaps.add(70, 70);
        assert_eq!((gaps.len(), gaps.most(), gaps.has(10), gaps.has(30), gaps.has(70)), (3, 3, false, true, true));
    }

    #[test]
    fn a_gap_is_forgotten_with_its_last_number() {
        let mut gaps = Gaps::new(10);
        gaps.add(10, 14);
        gaps.add(20, 24);
        for (until, left) in [(None, 2), (Some(9), 2), (Some(13), 2), (Some(14), 1), (Some(23), 1), (Some(100), 0)] {
            gaps.forget_until(until);
            assert_eq!(gaps.len(), left, "{until:?}");
        }
    }

    /// Each kind is told once in a run of breaks, and once more behind numbers that were well for long enough.
    #[test]
    fn kinds_of_breaks_are_told_apart_and_forgotten_together() {
        let mut quiet = Quiet::default();
        let mut tell = |well: u32, how| {
            (0..well).for_each(|_| quiet.well(true));
            let may = quiet.may_tell(how);
            quiet.told(how);
            may
        };
        assert!(tell(0, Break::Duplicate) && tell(0, Break::Backward));
        assert!(!tell(0, Break::Duplicate) && !tell(0, Break::Backward));
        assert!(!tell(QUIET - 1, Break::Duplicate));
        assert!(tell(QUIET, Break::Duplicate) && tell(0, Break::Backward), "a new run");
        assert!(!tell(0, Break::Duplicate) && !tell(0, Break::Backward));
        // In a row.
        (1..QUIET).for_each(|_| quiet.well(true));
        quiet.well(false);
        quiet.well(true);
        assert!(!quiet.may_tell(Break::Backward));
    }

    quickcheck! {
        /// As a set of numbers does it, as long as there is room for all.
        fn gaps_are_sets_of_numbers(added: Vec<(u8, u8)>, taken: Vec<u8>) -> bool {
            let mut gaps = Gaps::new(1000);
            let mut set = BTreeSet::new();
            for (first, len) in added {
                let (first, last) = (u64::from(first), u64::from(first) + u64::from(len % 8));
                if (first..=last).all(|number| !set.contains(&number)) {
                    gaps.add(first, last);
                    set.extend(first..=last);
                }
            }
            taken.into_iter().map(u64::from).all(|number| gaps.has(number) == set.contains(&number) && gaps.take(number) == set.remove(&number))
        }

        /// However numbers come out of them, there are never more than so many.
        fn gaps_are_bounded(taken: Vec<u16>) -> bool {
            let mut gaps = Gaps::new(16);
            gaps.add(0, 65_535);
            taken.into_iter().all(|number| {
                gaps.take(number.into());
                gaps.len() <= 16
            })
        }
    }
}
