//! Anomalies: what can be wrong with a number, and when it is reported.

/// What is wrong with a number that is neither the next one nor a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AnomalyKind {
    /// The number came before, at most 64 numbers ago.
    Duplicate,
    /// The number was declared missing, and came after all: the program did not write it in the run in which it drew
    /// it.
    Late,
    /// The number is smaller than disorder can explain, or larger than losses can: the counter was set to another
    /// number, or there are two. The numbers of a CPU go on from there.
    Jump,
}

/// How many kinds of anomalies there are.
pub(crate) const KINDS: usize = 3;

/// How many correct numbers in a row must come before an anomaly of the same kind is reported again.
const QUIET: u32 = 16;

/// Which anomalies were reported recently.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Quiet {
    /// Correct numbers in a row.
    in_a_row: u32,
    reported: [bool; KINDS],
}

impl Quiet {
    #[inline]
    pub(super) fn came(&mut self, expected: bool) {
        self.in_a_row = if expected { self.in_a_row.saturating_add(1) } else { 0 };
    }

    pub(super) fn may_report(&self, kind: AnomalyKind) -> bool {
        self.in_a_row >= QUIET || !self.reported[kind as usize]
    }

    pub(super) fn reported(&mut self, kind: AnomalyKind) {
        if std::mem::take(&mut self.in_a_row) >= QUIET {
            self.reported = [false; KINDS];
        }
        self.reported[kind as usize] = true;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{AnomalyKind, QUIET, Quiet};

    /// Each kind is reported once in a run of anomalies, and again after enough correct numbers.
    #[test]
    fn kinds_of_anomalies_are_told_apart_and_forgotten_together() {
        let mut quiet = Quiet::default();
        let mut reports = |well: u32, kind| {
            (0..well).for_each(|_| quiet.came(true));
            let may = quiet.may_report(kind);
            quiet.reported(kind);
            may
        };
        assert!(reports(0, AnomalyKind::Duplicate) && reports(0, AnomalyKind::Jump));
        assert!(!reports(0, AnomalyKind::Duplicate) && !reports(0, AnomalyKind::Jump));
        assert!(!reports(QUIET - 1, AnomalyKind::Duplicate));
        assert!(reports(QUIET, AnomalyKind::Duplicate) && reports(0, AnomalyKind::Jump), "a new run");
        assert!(!reports(0, AnomalyKind::Duplicate) && !reports(0, AnomalyKind::Jump));
        // In a row.
        (1..QUIET).for_each(|_| quiet.came(true));
        quiet.came(false);
        quiet.came(true);
        assert!(!quiet.may_report(AnomalyKind::Jump));
    }
}
