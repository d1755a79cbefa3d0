//! Dense sequences: numbers of one counter for the whole machine, and the gaps in them.

/// Where a dense sequence has got to.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The next number; `None` until the first is known.
    next: Option<u64>,
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

impl Sequence {
    pub(crate) fn new(first: Option<u64>) -> Self {
        Self { next: first }
    }

    pub(crate) fn step(&self, number: u64) -> Step {
        match self.next {
            None => Step::First,
            Some(next) if number == next => Step::Next,
            Some(next) if number < next => Step::Behind,
            Some(next) => Step::Ahead(next),
        }
    }

    /// A number was yielded, or numbers up to it were given up.
    pub(crate) fn passed(&mut self, number: u64) {
        self.next = self.next.max(Some(number.saturating_add(1)));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Sequence, Step};

    #[test]
    fn steps() {
        let mut sequence = Sequence::new(None);
        assert_eq!(sequence.step(7), Step::First);
        sequence.passed(7);
        assert_eq!(sequence.step(8), Step::Next);
        assert_eq!(sequence.step(7), Step::Behind);
        assert_eq!(sequence.step(10), Step::Ahead(8));
        sequence.passed(3);
        assert_eq!(sequence.step(8), Step::Next, "never backwards");
        sequence.passed(u64::MAX);
        assert_eq!(sequence.step(0), Step::Behind);
    }
}
