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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_is_under_way_at_a_time_and_none_begins_too_soon() {
        let fence = Fence::custom("seldom", Duration::from_secs(3600), || Ok(|| Ok(())));
        let mut stand_in = StandIn::open(&fence, None, &Done::default()).unwrap();
        assert!(stand_in.may_begin() && stand_in.poll().is_none());
        stand_in.begin();
        assert!(!stand_in.may_begin(), "it is under way");
        let begun = Instant::now();
        while stand_in.poll().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(120), "it ends");
            std::thread::yield_now();
        }
        assert!(!stand_in.may_begin() && stand_in.poll().is_none(), "too soon, and given once");
    }
}
