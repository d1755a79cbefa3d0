//! Ranges: sets of numbers.

use std::collections::BTreeMap;

/// A set of numbers, as disjoint ranges: the first and the last number of each. The number of ranges is bounded.
#[derive(Debug)]
pub(super) struct Ranges {
    ranges: BTreeMap<u64, u64>,
    most: usize,
}

impl Ranges {
    pub(super) fn new(most: usize) -> Self {
        Self { ranges: BTreeMap::new(), most }
    }

    /// Adds a range. If there are too many, drops the smallest.
    pub(super) fn add(&mut self, first: u64, last: u64) {
        self.ranges.insert(first, last);
        while self.ranges.len() > self.most {
            self.ranges.pop_first();
        }
    }

    /// The smallest range that begins between two numbers.
    pub(super) fn first_between(&self, first: u64, last: u64) -> Option<(u64, u64)> {
        self.ranges.range(first..=last).next().map(|(first, last)| (*first, *last))
    }

    /// Removes the range that begins with a number. Returns whether there was one.
    pub(super) fn remove(&mut self, first: u64) -> bool {
        self.ranges.remove(&first).is_some()
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// The first number of the range that contains a number.
    fn of(&self, number: u64) -> Option<u64> {
        let (first, last) = self.ranges.range(..=number).next_back()?;
        (number <= *last).then_some(*first)
    }

    /// Whether a number is in the set.
    pub(super) fn has(&self, number: u64) -> bool {
        self.of(number).is_some()
    }

    /// Removes a number from the set. Returns whether it was there.
    pub(super) fn take(&mut self, number: u64) -> bool {
        let Some(first) = self.of(number) else { return false };
        let Some(last) = self.ranges.remove(&first) else { return false };
        if first < number {
            self.add(first, number - 1);
        }
        if number < last {
            self.add(number + 1, last);
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Ranges;
    use quickcheck::quickcheck;
    use std::collections::BTreeSet;

    impl Ranges {
        /// How many ranges there are.
        pub(in crate::sequence) fn len(&self) -> usize {
            self.ranges.len()
        }
    }

    #[test]
    fn as_many_gaps_are_remembered_as_may_be_and_the_smallest_are_forgotten() {
        let mut gaps = Ranges::new(3);
        for (at, first) in [(1, 50), (2, 10), (3, 30)] {
            gaps.add(first, first + 4);
            assert_eq!(gaps.len(), at);
        }
        assert!([10, 14, 30, 34, 50, 54].into_iter().all(|number| gaps.has(number)));
        assert!([9, 15, 29, 35, 49, 55].into_iter().all(|number| !gaps.has(number)));
        gaps.add(70, 70);
        assert_eq!((gaps.len(), gaps.has(10), gaps.has(30), gaps.has(70)), (3, false, true, true));
    }

    quickcheck! {
        /// The result equals that of a set of numbers, as long as there is room for all ranges.
        fn gaps_are_sets_of_numbers(added: Vec<(u8, u8)>, taken: Vec<u8>) -> bool {
            let mut gaps = Ranges::new(1000);
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

        /// For any removals, the number of ranges never exceeds the limit.
        fn gaps_are_bounded(taken: Vec<u16>) -> bool {
            let mut gaps = Ranges::new(16);
            gaps.add(0, 65_535);
            taken.into_iter().all(|number| {
                gaps.take(number.into());
                gaps.len() <= 16
            })
        }
    }
}
