//! [`Hold::Lag`](crate::Hold::Lag): a guessed time.

use super::{Awaits, Look, Rule};
use std::time::Duration;

/// How long each event is held.
#[derive(Debug)]
pub(crate) struct Lag(pub(crate) Duration);

impl Rule for Lag {
    fn awaits(&self) -> Awaits {
        Awaits::Time(self.0)
    }

    fn frontier(&mut self, look: &Look) -> Option<u64> {
        look.now.checked_sub(u64::try_from(self.0.as_nanos()).ok()?)
    }
}
