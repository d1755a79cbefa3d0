//! The choice of a hold rule. What each does is in merge/rules.rs.

use crate::merge::rules::Rule;
use crate::proof::fence::Fence;
use std::fmt;
use std::time::Duration;

/// When the event with the smallest visible key may leave, although a smaller key may still be in flight.
///
/// | rule | yields a key k when | certainty |
/// | --- | --- | --- |
/// | `Fence` | k ≤ the largest key seen before a kernel grace period, or another [`Proof`](crate::Proof), that ended before the latest refresh of all heads | proven |
/// | `Dense` | k is exactly the next number; a missing number waits for a fence and then becomes a gap | proven |
/// | `Lag` | k ≤ a clock reading taken before the heads were loaded, less the lag | assumed |
/// | `None` | k is the smallest visible key | assumed |
///
/// The fence rule needs no clock in user space. A writer draws its key inside an RCU read-side section and publishes
/// the record in the same section. A key smaller than one already seen was drawn before the refresh. A grace period
/// waits until that section has ended. The next refresh finds the record.
///
/// The keys must come from one source that only grows: a clock on which the CPUs agree, or a shared counter. The writer
/// must draw the key where it writes the record. The kernel's timestamps always fulfil this. The keys of a BPF program
/// fulfil it if the program cannot sleep and draws each key in the run that outputs it.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[doc(alias = "watermark strategy")]
#[doc(alias = "out-of-orderness")]
pub enum Hold {
    /// Wait for a kernel grace period, or for another proof ([`Fence::Proof`]). The default.
    Fence(Fence),
    /// Keys are the numbers of one counter for the whole machine, of 64 bits, without holes: each is one more than the
    /// last ([`Key::Payload`](crate::Key::Payload)). A number that is more than 2^32 ahead of all others is damage.
    /// Behind sixteen such in a row, near each other, the counter goes on from there, and the numbers before are a gap.
    Dense {
        /// The first number. If it is `None`, the first event waits for a fence.
        first: Option<u64>,
        /// What proves that a missing number is not in flight.
        fence: Fence,
    },
    /// Wait a guessed time, on the rings' clock. All other readers that order events do this.
    Lag(Duration),
    /// Do not wait.
    None,
}

impl Hold {
    /// The fence rule with the first grace period that works here ([`Fence::Auto`]).
    pub const FENCE: Self = Self::Fence(Fence::Auto);

    /// The rule itself.
    pub(crate) fn rule(&self) -> Rule {
        match self {
            Self::Fence(_) => Rule::Proof,
            Self::Dense { first, .. } => Rule::Number { first: *first },
            Self::Lag(lag) => Rule::Time(*lag),
            Self::None => Rule::Nothing,
        }
    }

    /// The fence that proves that nothing smaller is in flight, if the rule has one.
    pub(crate) fn fence(&self) -> Option<&Fence> {
        match self {
            Self::Fence(fence) | Self::Dense { fence, .. } => Some(fence),
            Self::Lag(_) | Self::None => None,
        }
    }
}

impl Default for Hold {
    fn default() -> Self {
        Self::FENCE
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fence(Fence::Proof(name, _)) => f.write_str(name),
            Self::Fence(_) => f.write_str("fence"),
            Self::Dense { .. } => f.write_str("dense"),
            // As `Duration` writes it, but in ASCII.
            Self::Lag(lag) => write!(f, "lag={}", format!("{lag:?}").replace('µ', "u")),
            Self::None => f.write_str("none"),
        }
    }
}
