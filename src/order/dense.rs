//! One counter for the whole machine, without holes: which number is next.

use crate::account::breaks::{Break, Gaps, Quiet, RECENT};

/// The place of a dense sequence of the whole machine.
#[derive(Debug)]
pub(crate) struct Dense {
    /// The next number; `None` until the first is known.
    next: Option<u64>,
    /// Gaps that were given up to make room and that may yet be filled.
    doubtful: Gaps,
    /// Gaps that were proven not long ago.
    declared: Gaps,
    /// The last number that was given up, or passed over, like that.
    doubt: Option<u64>,
    /// The first number.
    begin: u64,
    quiet: Quiet,
}

/// How a number stands to the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is the next.
    Next,
    /// It was passed already: it is late, or it is there twice.
    Behind,
    /// Numbers before it are missing, from this one on. They may be in flight.
    Ahead(u64),
    /// Nothing is known yet.
    First,
}

/// How many gaps are remembered that were given up in doubt, at most: as many as can be between two fences, or nearly.
const DOUBTED: usize = 1 << 16;

/// The part of the memory for holding that they may take.
const DOUBTED_PART: usize = 8;

/// How many are remembered whatever memory there is.
const FIXED: usize = 256;

/// How many gaps are remembered after they were proven, to know a number again that comes after all.
const REMEMBERED: usize = 16;

impl Dense {
    /// `most` is the memory that holding may take, in bytes.
    pub(crate) fn new(first: Option<u64>, most: usize) -> Self {
        Self {
            next: first,
            doubtful: Gaps::new(DOUBTED.min(FIXED.max(most / DOUBTED_PART / Gaps::EACH))),
            declared: Gaps::new(REMEMBERED),
            doubt: None,
            begin: first.unwrap_or(u64::MAX),
            quiet: Quiet::default(),
        }
    }

    /// What must be proven before the next number is: `None` if it is already.
    pub(crate) fn doubt(&self) -> Option<u64> {
        self.doubt
    }

    /// The next number, if it is known.
    pub(crate) fn next(&self) -> Option<u64> {
        self.next
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

    /// How a number came to be behind, and which was expected, if that is to be told. `written` is the number as the program
    /// wrote it.
    pub(crate) fn broken_by(&self, number: u64, written: u64) -> Option<(Break, u64)> {
        let next = self.next?;
        let how = if self.doubtful.has(number) || self.declared.has(number) {
            Break::Found
        } else if next - number <= RECENT {
            if number < self.begin {
                // Drawn before the first that was yielded, and late: it breaks nothing.
                return None;
            }
            Break::Duplicate
        } else if written <= 1 || number == self.begin {
            Break::Reset
        } else {
            Break::Backward
        };
        self.quiet.may_tell(how).then_some((how, next))
    }

    /// A break was told.
    pub(crate) fn told(&mut self, how: Break) {
        self.quiet.told(how);
    }

    /// A number was yielded, or numbers up to it were given up.
    #[inline]
    pub(crate) fn passed(&mut self, number: u64) {
        self.quiet.well(self.next.is_none_or(|next| number >= next));
        if self.next.is_none() {
            self.begin = number;
        }
        self.next = self.next.max(Some(number.saturating_add(1)));
    }

    /// A number is taken for the first, and smaller ones may yet come.
    pub(crate) fn begin_in_doubt(&mut self, number: u64) {
        if self.next.is_none() {
            self.doubt = Some(number);
        }
    }

    /// Which number is next is not known any more.
    pub(crate) fn go_astray(&mut self) {
        self.next = None;
    }

    /// Nothing up to this number will come any more.
    pub(crate) fn is_proven(&mut self, number: Option<u64>) {
        self.doubtful.forget_until(number);
    }

    /// Numbers were given up that may yet come.
    pub(crate) fn give_up_in_doubt(&mut self, first: u64, last: u64) {
        self.doubtful.add(first, last);
        self.doubt = Some(last);
    }

    /// Numbers are proven to be missing.
    pub(crate) fn declare(&mut self, first: u64, last: u64) {
        self.declared.add(first, last);
    }

    /// A number that was passed has come: whether it had been given up, which it is no more.
    pub(crate) fn found(&mut self, number: u64) -> bool {
        self.doubtful.take(number) || self.declared.take(number)
    }

    /// Bytes that gaps take which were given up in doubt, beyond what is there from the begin.
    pub(crate) fn memory(&self) -> usize {
        self.doubtful.len().saturating_sub(FIXED) * Gaps::EACH
    }

    /// The most bytes that they can take.
    pub(crate) fn most_memory(&self) -> usize {
        (self.doubtful.most() - FIXED) * Gaps::EACH
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_dense_sequence() {
        let mut dense = Dense::new(None, 1 << 20);
        assert_eq!(dense.step(7), Step::First);
        dense.passed(7);
        assert_eq!(dense.step(8), Step::Next);
        assert_eq!(dense.step(7), Step::Behind);
        assert_eq!(dense.step(10), Step::Ahead(8));
        dense.passed(3);
        assert_eq!(dense.step(8), Step::Next, "never backwards");
        dense.passed(u64::MAX);
        assert_eq!(dense.step(0), Step::Behind);
        dense.go_astray();
        assert_eq!((dense.step(0), dense.next()), (Step::First, None));
        assert_eq!(Dense::new(Some(9), 0).next(), Some(9));
    }

    #[test]
    fn numbers_that_are_behind_are_told_apart() {
        let mut dense = Dense::new(Some(1000), 1 << 20);
        (1000..1100).for_each(|number| dense.passed(number));
        let how = |dense: &Dense, number, written| dense.broken_by(number, written).map(|(how, _)| how);
        assert_eq!(dense.broken_by(1100 - RECENT, 500), Some((Break::Duplicate, 1100)));
        assert_eq!(how(&dense, 1099 - RECENT, 500), Some(Break::Backward));
        assert_eq!(how(&dense, 1000, 500), Some(Break::Reset), "the first number");
        assert_eq!(
            [0, 1, 2].map(|written| how(&dense, 900, written)),
            [Break::Reset, Break::Reset, Break::Backward].map(Some)
        );
        // Both kinds of gaps are known again, and each number once.
        dense.declare(1100, 1104);
        dense.passed(1104);
        dense.give_up_in_doubt(1105, 1109);
        dense.passed(1109);
        assert_eq!([1100, 1104, 1105, 1109].map(|number| how(&dense, number, 500)), [Some(Break::Found); 4]);
        assert!(dense.found(1105) && !dense.found(1105) && dense.found(1100) && !dense.found(1100));
        assert_eq!(how(&dense, 1105, 500), Some(Break::Duplicate));
        // Before the first that was seen nothing is broken; that one is.
        let mut dense = Dense::new(None, 0);
        dense.passed(1000);
        assert_eq!((how(&dense, 999, 500), how(&dense, 1000, 500)), (None, Some(Break::Duplicate)));
    }

    /// What is given up in doubt takes memory, as long as it is in doubt, and no more than its part.
    #[test]
    fn gaps_in_doubt_take_a_part_of_the_memory() {
        let most = |most| Dense::new(None, most).most_memory() / Gaps::EACH + FIXED;
        let part = DOUBTED_PART * Gaps::EACH;
        assert_eq!([0, FIXED * part, FIXED * part + part, 1000 * part].map(most), [FIXED, FIXED, FIXED + 1, 1000]);
        assert_eq!([DOUBTED * part, usize::MAX].map(most), [DOUBTED; 2]);
        let mut dense = Dense::new(Some(0), usize::MAX);
        (0..400).for_each(|n| dense.give_up_in_doubt(10 * n, 10 * n + 5));
        assert_eq!((dense.memory(), dense.doubt()), ((400 - FIXED) * Gaps::EACH, Some(3995)));
        dense.is_proven(Some(104));
        assert_eq!(dense.memory(), (400 - 10 - FIXED) * Gaps::EACH);
        dense.is_proven(Some(105));
        assert_eq!(dense.memory(), (400 - 11 - FIXED) * Gaps::EACH);
        dense.is_proven(Some(u64::MAX));
        assert_eq!(dense.memory(), 0);
    }
}
