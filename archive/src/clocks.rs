//! How the clock of the events stands to TAI, and by how much that can be wrong.

use perfweave::{Clock, ClockOffset};
use rtime_clock::adjtime::{Timex, adjtimex};
use std::io;

/// By how much a clock may run wrong after a reading, in nanoseconds for each second: what the kernel assumes too (`MAXFREQ`, 500 ppm).
const DRIFT: u64 = 500_000;

/// What TAI is ahead of UTC since 2017, in seconds. For a machine whose kernel does not know it.
const AHEAD: i64 = 37;

const SECOND: i64 = 1_000_000_000;

/// A reading of the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// When it was made: `CLOCK_MONOTONIC`.
    pub mono: i64,
    /// What TAI is ahead of `CLOCK_MONOTONIC`.
    pub offset: i64,
    /// What UTC is ahead of `CLOCK_MONOTONIC`.
    pub utc: i64,
    /// By how much the offset can be wrong, because two clocks cannot be read at the same time.
    pub bracket: i64,
    /// The kernel's own bound of the error of its clock (adjtimex(2) `maxerror`).
    pub maxerror: i64,
    /// The kernel's estimate of that error (`esterror`).
    pub esterror: i64,
    /// Whether something keeps the clock right.
    pub synchronized: bool,
    /// Where TAI comes from: `tai`, or `utc+37` if nobody told the kernel what TAI is ahead of UTC.
    pub source: &'static str,
}

impl Reading {
    /// Reads the clocks.
    ///
    /// # Errors
    /// If the system does not let the program read them.
    pub fn now() -> io::Result<Self> {
        let offset = |to| Clock::Monotonic.offset_to(to).ok_or_else(|| io::Error::other("CLOCK_TAI cannot be read"));
        let (tai, real) = (offset(Clock::Tai)?, offset(Clock::Realtime)?);
        // Without modes it only reads.
        let mut kernel = Timex::new();
        adjtimex(&mut kernel)?;
        let mono = Clock::Monotonic.now().unwrap_or_default().cast_signed();
        Ok(Self::of(mono, tai, real, &kernel.0))
    }

    fn of(mono: i64, tai: ClockOffset, real: ClockOffset, kernel: &libc::timex) -> Self {
        let knows = kernel.tai != 0;
        let (offset, from) = if knows { (tai.nanoseconds, tai) } else { (real.nanoseconds + AHEAD * SECOND, real) };
        Self {
            mono,
            offset,
            utc: real.nanoseconds,
            bracket: from.uncertainty.unwrap_or(u64::MAX >> 2).cast_signed(),
            maxerror: kernel.maxerror.saturating_mul(1000),
            esterror: kernel.esterror.saturating_mul(1000),
            synchronized: kernel.status & libc::STA_UNSYNC == 0,
            source: if knows { "tai" } else { "utc+37" },
        }
    }

    /// The TAI of a time.
    pub fn tai(&self, mono: i64) -> i64 {
        mono.saturating_add(self.offset)
    }

    /// By how much [`Reading::tai`] can be wrong: more, the further the time is from the reading.
    pub fn error(&self, mono: i64) -> i64 {
        let away = u128::from(mono.abs_diff(self.mono));
        let drift = (away * u128::from(DRIFT)).div_ceil(SECOND.unsigned_abs().into());
        self.bracket.saturating_add(self.maxerror).saturating_add(i64::try_from(drift).unwrap_or(i64::MAX))
    }

    /// When the next hour of UTC begins.
    pub fn next_hour(&self, mono: i64) -> i64 {
        let hour = 3600 * SECOND;
        let utc = mono.saturating_add(self.utc);
        mono.saturating_add(hour - utc.rem_euclid(hour))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(nanoseconds: i64) -> ClockOffset {
        ClockOffset { nanoseconds, uncertainty: Some(30) }
    }

    fn kernel(tai: i32, status: i32) -> Timex {
        let mut kernel = Timex::new();
        (kernel.0.tai, kernel.0.status, kernel.0.maxerror, kernel.0.esterror) = (tai, status, 5, 2);
        kernel
    }

    #[test]
    fn a_machine_that_does_not_know_tai_takes_it_from_utc() {
        let knows = Reading::of(7, offset(37 * SECOND), offset(0), &kernel(37, 0).0);
        let does_not = Reading::of(7, offset(0), offset(0), &kernel(0, libc::STA_UNSYNC).0);
        assert_eq!((knows.offset, knows.source, knows.synchronized), (37 * SECOND, "tai", true));
        assert_eq!((does_not.offset, does_not.source, does_not.synchronized), (37 * SECOND, "utc+37", false));
        assert_eq!((knows.maxerror, knows.esterror, knows.bracket), (5000, 2000, 30));
    }

    #[test]
    fn the_error_grows_with_the_distance_on_both_sides() {
        let reading = Reading::of(10 * SECOND, offset(0), offset(0), &kernel(37, 0).0);
        assert_eq!(reading.error(10 * SECOND), 5030);
        assert_eq!(reading.error(11 * SECOND), 5030 + 500_000);
        assert_eq!(reading.error(9 * SECOND), 5030 + 500_000);
        assert_eq!(reading.error(10 * SECOND + 1), 5031);
    }

    #[test]
    fn hours_are_those_of_utc() {
        let reading = Reading::of(0, offset(0), offset(3599 * SECOND), &kernel(37, 0).0);
        assert_eq!(reading.next_hour(0), SECOND);
        assert_eq!(reading.next_hour(SECOND), 3601 * SECOND);
    }

    #[test]
    fn this_machine_has_clocks() {
        let (before, reading, after) =
            (Clock::Monotonic.now().unwrap(), Reading::now().unwrap(), Clock::Monotonic.now().unwrap());
        assert!((before..=after).contains(&reading.mono.unsigned_abs()), "{reading:?}");
        assert!(reading.tai(reading.mono) > 1_700_000_000 * SECOND && reading.maxerror >= 0, "{reading:?}");
    }
}
