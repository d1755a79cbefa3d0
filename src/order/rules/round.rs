//! [`Hold::Round`](crate::Hold::Round): what an earlier refresh has found. A record in flight during that one has
//! probably been found since.

use super::{Awaits, Look, Rule};

/// The rule of perf(1).
#[derive(Debug)]
pub(crate) struct Round;

impl Rule for Round {
    fn awaits(&self) -> Awaits {
        Awaits::Refresh
    }

    fn frontier(&mut self, look: &Look) -> Option<u64> {
        look.before
    }
}
