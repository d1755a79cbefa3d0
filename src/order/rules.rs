//! The hold rules, each in a file of its own.
//!
//! A new rule is one file here, a variant of [`Hold`](crate::Hold) with its lines in `Hold::rule`, `Hold::fence` and
//! `Hold::fmt` (hold.rs), and a row in the table of docs/guide/hold_rules.md. Nothing else tells rules apart: the merge
//! and the reader go by [`Awaits`], and events are released by the [`Frontier`](crate::order::frontier::Frontier),
//! which a rule moves once a refresh.

mod dense;
mod fence;
mod lag;
mod none;
mod round;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use {dense::Dense, fence::Proven, lag::Lag, none::Unheld, round::Round};

use std::fmt::Debug;
use std::time::Duration;

/// A rule by which events are held.
pub(crate) trait Rule: Debug + Send + Sync {
    /// What releases a held event, besides a full ring.
    fn awaits(&self) -> Awaits;

    /// The largest key that may leave after a refresh of all rings. `None`: no more than before. A frontier never moves
    /// back, so the rule need not remember it.
    fn frontier(&mut self, look: &Look) -> Option<u64>;
}

/// What is known after a refresh of all rings.
#[derive(Debug)]
pub(crate) struct Look {
    /// The largest key of all refreshes before this one, and with this one. The clock has passed it, if the keys are
    /// times.
    pub(crate) before: Option<u64>,
    pub(crate) seen: Option<u64>,
    /// What a proof has proven that ended since the last refresh.
    pub(crate) proven: Option<u64>,
    /// A clock reading taken before the first head was loaded. Only for a rule that awaits a time.
    pub(crate) now: u64,
}

/// What releases a held event. The reader goes by it: when to begin a proof, when to refresh, how long to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaits {
    /// A proof ([`Hold::fence`](crate::Hold::fence)), and nothing else.
    Proof,
    /// That it is the next number. If one is missing, a proof. `first` is the first number, if it is known.
    Number { first: Option<u64> },
    /// This time after its key, by the rings' clock.
    Time(Duration),
    /// One more refresh.
    Refresh,
    /// The refresh that finds it.
    Nothing,
}

impl Awaits {
    /// Whether the rule proves that no smaller key is in flight, and assumes nothing.
    pub(crate) fn is_proof(self) -> bool {
        matches!(self, Self::Proof | Self::Number { .. })
    }
}
