//! The clocks that records can be stamped with.

use nix::time::ClockId;

/// The clock that stamps records: `perf_event_attr.clockid`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// `CLOCK_MONOTONIC`. `bpf_ktime_get_ns()` reads this clock too. The default.
    #[default]
    Monotonic,
    /// `CLOCK_MONOTONIC_RAW`
    MonotonicRaw,
    /// `CLOCK_BOOTTIME`
    Boottime,
    /// `CLOCK_REALTIME`. It may be set back, so its keys can also decrease.
    Realtime,
    /// `CLOCK_TAI`
    Tai,
    /// The perf clock (`use_clockid` = 0), which user space cannot read. So the crate cannot tell a forged time from a true one. A forged
    /// time makes all later records late.
    Perf,
}

impl Clock {
    pub(crate) fn id(self) -> Option<ClockId> {
        match self {
            Self::Monotonic => Some(ClockId::CLOCK_MONOTONIC),
            Self::MonotonicRaw => Some(ClockId::CLOCK_MONOTONIC_RAW),
            Self::Boottime => Some(ClockId::CLOCK_BOOTTIME),
            Self::Realtime => Some(ClockId::CLOCK_REALTIME),
            Self::Tai => Some(ClockId::CLOCK_TAI),
            Self::Perf => None,
        }
    }

    /// Whether an administrator can set the clock, even back.
    pub(crate) fn can_be_set(self) -> bool {
        matches!(self, Self::Realtime | Self::Tai)
    }

    /// A reading of the clock in nanoseconds. `None` for the perf clock.
    pub fn now(self) -> Option<u64> {
        let time = nix::time::clock_gettime(self.id()?).ok()?;
        Some(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
    }
}
