//! The numbers of the whole machine, where these are the keys ([`Hold::Dense`](crate::Hold::Dense)).

use crate::merge::certainty::Certainty;
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::tracker::{Step, Tracker};

/// Which number comes next, and which were missing.
pub(crate) struct Dense {
    tracker: Tracker,
    /// Numbers that a gap has counted and that were not found since.
    pub(crate) missing: u64,
    /// Ring and position of the record whose anomaly was reported.
    reported_of: Option<(u32, u64)>,
}

impl Dense {
    /// `first` is the first number, if it is known.
    pub(crate) fn new(first: Option<u64>) -> Self {
        Self { tracker: Tracker::new(first), missing: 0, reported_of: None }
    }

    /// What a number is to those before it.
    pub(crate) fn step(&self, number: u64) -> Step {
        self.tracker.step(number)
    }

    /// The anomaly of a number that is behind others, and which was expected, unless that of this record was reported.
    pub(crate) fn anomaly(&self, number: u64, of: (u32, u64)) -> Option<(AnomalyKind, u64)> {
        // The notice was yielded, and the record is picked again.
        if self.reported_of == Some(of) {
            return None;
        }
        let kind = self.tracker.to_report(number)?;
        Some((kind, self.tracker.next()?))
    }

    /// That anomaly was yielded.
    pub(crate) fn reported(&mut self, kind: AnomalyKind, of: (u32, u64)) {
        self.tracker.reported(kind);
        self.reported_of = Some(of);
    }

    /// The gap before a number was yielded: now the number is the next one.
    pub(crate) fn declare(&mut self, first: u64, last: u64) {
        self.missing = self.missing.saturating_add((last - first).saturating_add(1));
        self.tracker.declare(first, last);
        self.tracker.pass(last);
    }

    /// A record with this number was yielded.
    pub(crate) fn pass(&mut self, number: u64, certainty: Certainty) {
        if certainty == Certainty::Late {
            // No underflow: only a number that a gap has counted is found, and only once.
            self.missing -= u64::from(self.tracker.take_missing(number));
        }
        self.tracker.pass(number);
    }

    /// A ring was added.
    pub(crate) fn inserted(&mut self, ring_index: usize) {
        if let Some((ring, _)) = &mut self.reported_of {
            // The new ring has moved those from its place on.
            *ring += u32::from(ring_index as u32 <= *ring);
        }
    }
}
