//! The hold rules: what releases a held event, and the largest key that may leave after a refresh.
//!
//! | rule | a held event waits for | after a refresh leaves |
//! | --- | --- | --- |
//! | [`Hold::Fence`](crate::Hold::Fence) | a proof | what is proven |
//! | [`Hold::Dense`](crate::Hold::Dense) | its turn; behind a missing number, a proof | each next number, and what is proven |
//! | [`Hold::Lag`](crate::Hold::Lag) | a time | what is older than the clock less the lag |
//! | [`Hold::None`](crate::Hold::None) | the next refresh of all rings | what such refreshes have seen |
//!
//! A new rule is a variant here and of [`Hold`](crate::Hold), and a row in docs/guide/hold_rules.md. The
//! [`Frontier`](crate::merge::frontier::Frontier) has the keys that a rule goes by.

use std::time::Duration;

/// A rule by which events are held. The reader goes by it: when to begin a proof, when to refresh, how long to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A proof ([`Hold::fence`](crate::Hold::fence)) releases an event, and nothing else.
    Proof,
    /// That it is the next number. If one is missing, a proof. `first` is the first number, if it is known.
    Number { first: Option<u64> },
    /// This time after its key, by the rings' clock.
    Time(Duration),
    /// The next refresh of all rings.
    Nothing,
}

/// What is known after a refresh of all rings.
#[derive(Debug)]
pub(crate) struct Look {
    /// The largest key of all refreshes of all rings. The clock has passed it, if the keys are times.
    pub(crate) seen: Option<u64>,
    /// What a proof has proven that ended since the last such refresh.
    pub(crate) proven: Option<u64>,
    /// A clock reading taken before the first head was loaded. Only for a rule that awaits a time.
    pub(crate) now: u64,
}

impl Rule {
    /// Whether the rule proves that no smaller key is in flight, and assumes nothing.
    pub(crate) fn is_proof(self) -> bool {
        matches!(self, Self::Proof | Self::Number { .. })
    }

    /// The largest key that may leave after a refresh of all rings. `None`: no more than before. A frontier never moves
    /// back, so no rule need remember it.
    pub(crate) fn frontier(self, look: &Look) -> Option<u64> {
        match self {
            // Next numbers need no frontier: see [`Tracker`](crate::sequence::tracker::Tracker).
            Self::Proof | Self::Number { .. } => look.proven,
            Self::Time(lag) => look.now.checked_sub(u64::try_from(lag.as_nanos()).ok()?),
            Self::Nothing => look.seen,
        }
    }
}
