//! What proves in place of writers' epochs.

use perfweave::{Done, Error, Fence, Proof, Rings};
use std::io;
use std::time::Instant;

/// A proof that another uses now and then.
pub(crate) struct StandIn {
    proof: Box<dyn Proof>,
    /// When the last one began.
    begun: Option<Instant>,
    is_under_way: bool,
}

impl StandIn {
    pub(crate) fn open(fence: &Fence, rings: Option<&Rings>, done: &Done) -> Result<Self, Error> {
        Ok(Self { proof: fence.open_beside(rings, done)?, begun: None, is_under_way: false })
    }

    /// Whether none is under way, and the last did not begin too recently.
    pub(crate) fn may_begin(&self) -> bool {
        !self.is_under_way && self.begun.is_none_or(|begun| begun.elapsed() >= self.proof.every())
    }

    pub(crate) fn begin(&mut self) {
        (self.is_under_way, self.begun) = (true, Some(Instant::now()));
        self.proof.begin();
    }

    /// The result of the one under way, if it has ended. Given once.
    pub(crate) fn poll(&mut self) -> Option<io::Result<()>> {
        let ended = if self.is_under_way { self.proof.poll()? } else { return None };
        self.is_under_way = false;
        Some(ended)
    }
}
