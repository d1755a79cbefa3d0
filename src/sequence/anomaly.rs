//! Anomalies: what can be wrong with a number, and when it is told.

/// What is wrong with a number: it is neither the next one nor ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AnomalyKind {
    /// The number came before, not long ago.
    Duplicate,
    /// Counting began anew: the number is 0, 1, or the first number ever seen there.
    Reset,
    /// The number is further back than records come out of order. Counting goes on from there.
    Backward,
    /// The number is further ahead than losses can explain. Counting goes on from there.
    Forward,
    /// The number was declared missing, and came after all: the program did not write it where it counted.
    Late,
    /// So many records were lost that a counter of this width may have wrapped around unseen. How many numbers are missing is not
    /// known, and counting begins anew. See [`Sequence`](crate::Sequence).
    Wraparound,
}

/// How many kinds of anomalies there are.
pub(crate) const KINDS: usize = 6;

/// How many numbers must be well in a row before an anomaly of the same kind is told again. One that repeats is told
/// once.
const QUIET: u32 = 16;

/// Which anomalies were told not long ago.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Quiet {
    /// Numbers in a row that were well.
    well: u32,
    told: [bool; KINDS],
}

impl Quiet {
    #[inline]
    pub(super) fn well(&mut self, well: bool) {
        self.well = if well { self.well.saturating_add(1) } else { 0 };
    }

    pub(super) fn may_tell(&self, kind: AnomalyKind) -> bool {
        self.well >= QUIET || !self.told[kind as usize]
    }

    pub(super) fn told(&mut self, kind: AnomalyKind) {
        if std::mem::take(&mut self.well) >= QUIET {
            self.told = [false; KINDS];
        }
        self.told[kind as usize] = true;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{AnomalyKind, QUIET, Quiet};

    /// Each kind is told once in a run of anomalies, and once more behind numbers that were well for long enough.
    #[test]
    fn kinds_of_anomalies_are_told_apart_and_forgotten_together() {
        let mut quiet = Quiet::default();
        let mut tell = |well: u32, kind| {
            (0..well).for_each(|_| quiet.well(true));
            let may = quiet.may_tell(kind);
            quiet.told(kind);
            may
        };
        assert!(tell(0, AnomalyKind::Duplicate) && tell(0, AnomalyKind::Backward));
        assert!(!tell(0, AnomalyKind::Duplicate) && !tell(0, AnomalyKind::Backward));
        assert!(!tell(QUIET - 1, AnomalyKind::Duplicate));
        assert!(tell(QUIET, AnomalyKind::Duplicate) && tell(0, AnomalyKind::Backward), "a new run");
        assert!(!tell(0, AnomalyKind::Duplicate) && !tell(0, AnomalyKind::Backward));
        // In a row.
        (1..QUIET).for_each(|_| quiet.well(true));
        quiet.well(false);
        quiet.well(true);
        assert!(!quiet.may_tell(AnomalyKind::Backward));
    }
}
