//! The clocks that records can be stamped with.

use crate::error::{Error, ErrorKind};
use crate::sys::clock;
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
    /// `CLOCK_REALTIME`, of recordings and of [`Clock::offset_to`] alone. It can be set back, and a leap second does
    /// that: then it shows times again, and no order by it is proven. So no ring is opened or read by it. Take
    /// [`Clock::Monotonic`], and [`Rings::wall_clock`](crate::Rings::wall_clock) for the time of day. In a recording
    /// nothing says that it was set.
    Realtime,
    /// `CLOCK_TAI`, which can be set back too: see [`Clock::Realtime`].
    Tai,
    /// The perf clock (`use_clockid` = 0), which user space cannot read. So the crate cannot tell a forged time from a
    /// true one. A forged time makes all later records late: take another clock where bytes may be hostile.
    ///
    /// On x86-64 the CPUs agree on it only where the time stamp counter is stable. That is looked up when a stream or a
    /// [`Recorder`](crate::Recorder) begins: `cap_user_time` in the header page of a ring, or `tsc` as the kernel's
    /// clock source. Where neither says so, no event is marked as proven, but as assumed; take another clock. The same
    /// holds if one of the events has `precise_ip` set: its times are the hardware's, drawn before the kernel writes
    /// the record. Of an adopted ring that cannot be known ([`Rings::add`](crate::Rings::add)). A recording is not
    /// asked, since its clock may be another machine's: there proven says only that no event with a smaller key
    /// follows.
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

    /// An error if the clock can be set back, and so cannot order what is written now.
    pub(crate) fn check_is_steady(self) -> Result<(), Error> {
        let name = match self {
            Self::Realtime => "CLOCK_REALTIME",
            Self::Tai => "CLOCK_TAI",
            Self::Monotonic | Self::MonotonicRaw | Self::Boottime | Self::Perf => return Ok(()),
        };
        let message = format!("{name} can be set back, and so proves no order of events");
        let hint = "take CLOCK_MONOTONIC, and convert its times to the time of day";
        Err(Error::new(ErrorKind::InvalidInput, message).hinting(hint))
    }

    /// How far another clock is ahead of this one now: converts the times of records to wall-clock times, say. The
    /// kernel stamps tracepoints by [`Clock::Monotonic`], but not by [`Clock::Realtime`], [`Clock::Tai`] or
    /// [`Clock::Boottime`].
    ///
    /// It reads this clock before and after the other one, 16 times, and takes the shortest of these intervals. The
    /// other clock is read somewhere inside it, which gives the uncertainty: below a microsecond, on most machines. An
    /// offset changes when somebody sets a clock, at a leap second (`Realtime`), and while the machine is suspended
    /// (`Boottime`, `Realtime`, `Tai`). `MonotonicRaw` runs at another rate than the others. `None` for the perf clock,
    /// and if this clock was set back each time.
    ///
    /// ```
    /// use perfweave::Clock;
    ///
    /// let wall = Clock::Monotonic.offset_to(Clock::Realtime).unwrap();
    /// let key = Clock::Monotonic.now().unwrap();
    /// let unix_time = wall.apply(key);
    /// # assert!(unix_time / 1_000_000_000 > 1_700_000_000, "{wall:?}");
    /// ```
    pub fn offset_to(self, other: Self) -> Option<ClockOffset> {
        let tries = (0..16).filter_map(|_| {
            let (before, there, after) = (self.now()?, other.now()?, self.now()?);
            // A clock that was set back meanwhile tells nothing.
            Some((before, there, after.checked_sub(before)?))
        });
        let (before, there, width) = tries.min_by_key(|(.., width)| *width)?;
        let nanoseconds = there.wrapping_sub(before + width / 2).cast_signed();
        Some(ClockOffset { nanoseconds, uncertainty: Some(width.div_ceil(2)) })
    }

    /// A reading of the clock in nanoseconds, as the kernel stamps records with it. In a time namespace
    /// (time_namespaces(7)) clock_gettime(2) gives other times of [`Clock::Monotonic`], [`Clock::MonotonicRaw`] and
    /// [`Clock::Boottime`]; this takes off what the namespace adds.
    ///
    /// `None` for the perf clock. `None` for those three, too, if the process is in a time namespace and has called
    /// unshare(2) for another one: then nothing says what its own adds. A process that calls setns(2) for a time
    /// namespace does so before it uses this crate.
    pub fn now(self) -> Option<u64> {
        clock::now(self.id()?)
    }
}

/// How far one clock is ahead of another ([`Clock::offset_to`], [`Rings::wall_clock`](crate::Rings::wall_clock)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset {
    /// What to add to a time of the one clock for a time of the other.
    pub nanoseconds: i64,
    /// By how many nanoseconds this can be wrong, either way. `None` if nothing says it.
    pub uncertainty: Option<u64>,
}

impl ClockOffset {
    /// A time of the one clock as a time of the other, in nanoseconds.
    pub fn apply(self, time: u64) -> u64 {
        time.saturating_add_signed(self.nanoseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_converted_time_is_a_time_of_the_other_clock() {
        let clocks = [Clock::Monotonic, Clock::MonotonicRaw, Clock::Boottime, Clock::Realtime, Clock::Tai];
        for (from, to) in clocks.into_iter().flat_map(|from| clocks.map(|to| (from, to))) {
            let offset = from.offset_to(to).unwrap();
            let [before, time, after] = [to.now(), from.now(), to.now()].map(Option::unwrap);
            let (converted, off) = (offset.apply(time), offset.uncertainty.unwrap());
            // The raw clock may be slower or faster by a thousandth, at most, in the time that this takes.
            let slack = off + 1000 + (after - before) / 1000;
            assert!(
                converted + slack >= before && converted <= after + slack,
                "{from:?} {to:?} {offset:?}: {before} {converted} {after}"
            );
        }
        assert_eq!(Clock::Perf.offset_to(Clock::Tai), None);
        assert_eq!(Clock::Tai.offset_to(Clock::Perf), None);
        assert_eq!(ClockOffset { nanoseconds: -5, uncertainty: None }.apply(3), 0);
    }
}
