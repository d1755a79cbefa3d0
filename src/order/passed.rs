//! How many of the lost records may still be missed: how far a counter that wraps can have gone round.

use std::collections::VecDeque;

/// How many looks are remembered, at most.
const LOOKS: usize = 16;

/// Losses of records with numbers, as far as those numbers are passed.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// Of the records that are lost, so many had a number that is passed.
    lost: u64,
    /// INVARIANT: in the order of looks, with rising numbers.
    looks: VecDeque<Look>,
    /// How many were lost when that was asked last: before the heads of the look that comes next are loaded.
    asked: u64,
    /// How many LOST records had told of at the last look.
    told: u64,
}

/// The facts known at the end of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// One more than the largest number that was seen.
    pub(crate) ahead: u64,
    /// How many records LOST records had told of: those were lost before a record that was seen.
    pub(crate) told: u64,
    /// How many were lost, asked when the look was done: perhaps behind it. What is kept of a look is what was asked before its
    /// heads were loaded: a record that it did not find may have been drawn before a loss that came later.
    pub(crate) lost: u64,
}

impl Passed {
    /// Ends a look, with `next` the smallest number that may still come. Gives how many records were lost whose number may not be
    /// passed.
    pub(crate) fn look(&mut self, next: Option<u64>, look: Look) -> u64 {
        let lost = std::mem::replace(&mut self.asked, look.lost);
        let (now, look) = (look.lost, Look { lost, ..look });
        let is_full = self.looks.len() == LOOKS;
        match self.looks.back_mut() {
            // No number came since, or there is no room: what is lost by now is passed when this one is.
            Some(last) if is_full || last.ahead == look.ahead => *last = look,
            _ => self.looks.push_back(look),
        }
        while let Some(first) = self.looks.front()
            && Some(first.ahead) <= next
        {
            if Some(first.ahead) == next {
                self.lost = self.lost.max(first.told);
                break;
            }
            // A number is passed that lay in no ring when the heads were loaded: it was drawn behind all losses before.
            self.lost = self.lost.max(first.lost);
            self.looks.pop_front();
        }
        now - self.lost
    }

    /// How many LOST records have told of since the last look. So many numbers may lie between the largest that was seen then and those
    /// that this look found: if they cannot be told apart, none of these says what is passed.
    pub(crate) fn told(&mut self, told: u64) -> u64 {
        told - std::mem::replace(&mut self.told, told)
    }

    /// Counting begins anew: nothing that is lost by now is waited for.
    pub(crate) fn begin_anew(&mut self, lost: u64) {
        self.lost = lost;
        self.looks.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{LOOKS, Look, Passed};

    fn look(ahead: u64, told: u64, lost: u64) -> Look {
        Look { ahead, told, lost }
    }

    #[test]
    fn losses_are_passed_when_a_number_behind_them_is() {
        let mut passed = Passed::default();
        assert_eq!(passed.look(None, look(10, 0, 0)), 0);
        // Five are lost, nobody knows where.
        assert_eq!(passed.look(Some(10), look(10, 0, 5)), 5);
        assert_eq!(passed.look(Some(10), look(12, 0, 5)), 5, "10 and 11 were seen, and are not passed");
        assert_eq!(passed.look(Some(12), look(12, 0, 5)), 5, "they may have been drawn before the loss");
        assert_eq!(passed.look(Some(12), look(14, 0, 5)), 5);
        assert_eq!(passed.look(Some(14), look(14, 0, 5)), 0, "passed, and drawn behind the loss");
        // Three more, before a record that was seen; then four, behind it.
        assert_eq!(passed.look(Some(14), look(16, 8, 8)), 3);
        assert_eq!(passed.look(Some(16), look(16, 8, 12)), 4);
        assert_eq!(passed.look(Some(16), look(17, 8, 12)), 4);
        assert_eq!(passed.look(Some(17), look(17, 12, 12)), 0);
    }

    #[test]
    fn what_is_not_remembered_is_not_passed_too_soon() {
        let mut passed = Passed::default();
        for n in 0..100 {
            assert_eq!(passed.look(Some(1), look(10 + n, 0, n)), n);
        }
        assert!(passed.looks.len() == LOOKS && passed.looks.back() == Some(&look(109, 0, 98)));
        assert_eq!(passed.look(Some(30), look(110, 0, 100)), 100 - 13, "no more than the oldest say");
        assert_eq!(passed.look(Some(110), look(110, 100, 100)), 0);
        passed.begin_anew(200);
        assert_eq!(passed.look(Some(110), look(120, 100, 230)), 30);
    }

    #[test]
    fn where_counting_begins_anew_no_look_of_before_is_remembered() {
        let mut passed = Passed::default();
        (0..LOOKS as u64).for_each(|n| assert_eq!(passed.look(None, look(10 + n, 0, n)), n));
        passed.begin_anew(0);
        assert_eq!(passed.look(None, look(100, 0, 20)), 20);
        assert_eq!(passed.look(None, look(120, 0, 30)), 30);
        assert_eq!(passed.look(Some(110), look(120, 0, 30)), 15, "all that was lost before the first of these");
    }
}
