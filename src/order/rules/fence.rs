//! [`Hold::Fence`](crate::Hold::Fence): what a proof has proven may leave.

use super::{Awaits, Look, Rule};

/// The proofs of grace periods, epochs and reservations alike.
#[derive(Debug)]
pub(crate) struct Proven;

impl Rule for Proven {
    fn awaits(&self) -> Awaits {
        Awaits::Proof
    }

    fn frontier(&mut self, look: &Look) -> Option<u64> {
        look.proven
    }
}
