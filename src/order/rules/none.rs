//! [`Hold::None`](crate::Hold::None): all that was found.

use super::{Awaits, Look, Rule};

/// Nothing is held.
#[derive(Debug)]
pub(crate) struct Unheld;

impl Rule for Unheld {
    fn awaits(&self) -> Awaits {
        Awaits::Nothing
    }

    fn frontier(&mut self, look: &Look) -> Option<u64> {
        look.seen
    }
}
