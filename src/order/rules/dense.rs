//! [`Hold::Dense`](crate::Hold::Dense): the next number leaves by itself, and a gap once a proof has shown that it is
//! one.

use super::{Awaits, Look, Rule};

/// The first number, if it is known.
#[derive(Debug)]
pub(crate) struct Dense(pub(crate) Option<u64>);

impl Rule for Dense {
    fn awaits(&self) -> Awaits {
        Awaits::Number { first: self.0 }
    }

    /// For numbers that are missing. Others need no frontier: see [`Tracker`](crate::sequence::tracker::Tracker).
    fn frontier(&mut self, look: &Look) -> Option<u64> {
        look.proven
    }
}
