//! How the clock of the events stands to TAI, and by how much that can be wrong.

use perfweave::{Clock, ClockOffset};
use rtime_clock::adjtime::{Timex, adjtimex};
use std::io;

/// By how much an oscillator may run wrong, in nanoseconds for each second: what the kernel assumes too (`MAXFREQ`, 500 ppm).
const DRIFT: i64 = 500_000;

/// By how much the kernel's `maxerror` may be too small: it adds 500 microseconds once a second.
const STALE: i64 = 500_000;

/// The error of a clock that nothing keeps right: no claim follows from its times. Sums of a time and two of these fit an i64.
pub const UNKNOWN: i64 = 1 << 61;

/// Microseconds of a tick of the kernel's clock, of which there are a hundred a second, if its rate is not corrected (adjtimex(2) `tick`).
const TICK: i64 = 10_000;

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
    /// What the kernel knows to be wrong and corrects bit by bit, in nanoseconds (adjtimex(2) `offset`, adjtime(3)).
    pub pending: i64,
    /// The rate of the kernel's correction, in nanoseconds for each second (adjtimex(2) `freq` and `tick`).
    pub rate: i64,
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
        let (mut kernel, mut adjust) = (Timex::new(), Timex::new());
        adjtimex(&mut kernel)?;
        // And so does this, of what adjtime(3) has left to do, in microseconds.
        adjust.0.modes = libc::ADJ_OFFSET_SS_READ;
        adjtimex(&mut adjust)?;
        let mono = Clock::Monotonic.now().unwrap_or_default().cast_signed();
        Ok(Self::of(mono, tai, real, &kernel.0, adjust.0.offset))
    }

    fn of(mono: i64, tai: ClockOffset, real: ClockOffset, kernel: &libc::timex, adjust: i64) -> Self {
        let unit = if kernel.status & libc::STA_NANO == 0 { 1000 } else { 1 };
        let offset_of_loop = kernel.offset.saturating_abs().saturating_mul(unit);
        let knows = kernel.tai != 0;
        let (offset, from) = if knows { (tai.nanoseconds, tai) } else { (real.nanoseconds + AHEAD * SECOND, real) };
        Self {
            mono,
            offset,
            utc: real.nanoseconds,
            bracket: from.uncertainty.unwrap_or(u64::MAX >> 2).cast_signed(),
            maxerror: kernel.maxerror.saturating_mul(1000),
            esterror: kernel.esterror.saturating_mul(1000),
            pending: adjust.saturating_abs().saturating_mul(1000).saturating_add(offset_of_loop),
            // `freq` is in ppm with 16 bits behind the point.
            rate: (kernel.freq.saturating_abs().saturating_mul(1000) >> 16)
                .saturating_add((kernel.tick - TICK).saturating_abs().saturating_mul(100_000)),
            synchronized: kernel.status & libc::STA_UNSYNC == 0,
            source: if knows { "tai" } else { "utc+37" },
        }
    }

    /// The TAI of a time.
    pub fn tai(&self, mono: i64) -> i64 {
        mono.saturating_add(self.offset)
    }

    /// By how much [`Reading::tai`] can be wrong: more, the further the time is from the reading. [`UNKNOWN`] if nothing keeps the clock
    /// right, or nothing says how well.
    pub fn error(&self, mono: i64) -> i64 {
        // systemd-timesyncd and phc2sys claim to be right and name no error at all; chrony and ntpd estimate theirs.
        if !self.synchronized || self.esterror == 0 {
            return UNKNOWN;
        }
        let away = i128::from(mono.abs_diff(self.mono));
        let drift = (away * i128::from(DRIFT.saturating_add(self.rate)) + i128::from(SECOND) - 1) / i128::from(SECOND);
        let sum = [self.bracket, self.maxerror, STALE, self.pending].into_iter().fold(0, i64::saturating_add);
        sum.saturating_add(i64::try_from(drift).unwrap_or(i64::MAX)).min(UNKNOWN)
    }

    /// By how much TAI was set against the monotonic clock since a reading before, if that is more than the two readings can be wrong.
    pub fn set_since(&self, before: &Self) -> Option<i64> {
        let set = self.offset.saturating_sub(before.offset);
        (set.saturating_abs() > self.bracket.saturating_add(before.bracket)).then_some(set)
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
        (kernel.0.tick, kernel.0.freq, kernel.0.offset) = (TICK, 0, 0);
        kernel
    }

    fn of(mono: i64, kernel: &Timex, adjust: i64) -> Reading {
        Reading::of(mono, offset(37 * SECOND), offset(0), &kernel.0, adjust)
    }

    #[test]
    fn a_machine_that_does_not_know_tai_takes_it_from_utc() {
        let knows = of(7, &kernel(37, 0), 0);
        let does_not = Reading::of(7, offset(0), offset(0), &kernel(0, libc::STA_UNSYNC).0, 0);
        assert_eq!((knows.offset, knows.source, knows.synchronized), (37 * SECOND, "tai", true));
        assert_eq!((does_not.offset, does_not.source, does_not.synchronized), (37 * SECOND, "utc+37", false));
        assert_eq!((knows.maxerror, knows.esterror, knows.bracket), (5000, 2000, 30));
    }

    #[test]
    fn the_error_grows_with_the_distance_on_both_sides() {
        let reading = of(10 * SECOND, &kernel(37, 0), 0);
        assert_eq!(reading.error(10 * SECOND), 5030 + STALE);
        assert_eq!(reading.error(11 * SECOND), 5030 + STALE + 500_000);
        assert_eq!(reading.error(9 * SECOND), 5030 + STALE + 500_000);
        assert_eq!(reading.error(10 * SECOND + 1), 5031 + STALE);
    }

    /// The kernel corrects the time bit by bit.
    #[test]
    fn a_clock_that_is_being_corrected_is_wrong_by_what_is_left() {
        let mut slewed = kernel(37, libc::STA_NANO | libc::STA_PLL);
        (slewed.0.maxerror, slewed.0.offset) = (0, -400_000_000);
        assert_eq!(of(0, &slewed, 0).error(0), 30 + STALE + 400_000_000);
        slewed.0.status = libc::STA_PLL;
        slewed.0.offset = 400_000;
        assert_eq!(of(0, &slewed, 0).error(0), 30 + STALE + 400_000_000);
        // adjtime(3) of 2 ms on top; a rate of 100 ppm by `freq`, and of 300 by `tick`.
        (slewed.0.freq, slewed.0.tick) = (-100 << 16, TICK + 3);
        let reading = of(0, &slewed, -2000);
        assert_eq!(reading.error(0), 30 + STALE + 402_000_000);
        assert_eq!(reading.error(SECOND) - reading.error(0), 500_000 + 100_000 + 300_000);
    }

    #[test]
    fn nothing_is_known_of_a_clock_that_nothing_keeps_right() {
        let reading = of(0, &kernel(37, libc::STA_UNSYNC), 0);
        assert_eq!(reading.error(0), UNKNOWN);
        let mut unsaid = kernel(37, 0);
        unsaid.0.esterror = 0;
        assert_eq!(of(0, &unsaid, 0).error(0), UNKNOWN);
        assert!(reading.tai(1 << 60).checked_add(UNKNOWN).is_some());
        assert_eq!(of(0, &kernel(37, 0), 0).error(i64::MAX), of(0, &kernel(37, 0), 0).error(i64::MAX).min(UNKNOWN));
    }

    #[test]
    fn a_step_is_more_than_the_readings_can_be_wrong() {
        let before = of(0, &kernel(37, 0), 0);
        let after = |by: i64| Reading { offset: before.offset + by, ..before };
        assert_eq!(after(60).set_since(&before), None);
        assert_eq!(after(61).set_since(&before), Some(61));
        assert_eq!(after(-61).set_since(&before), Some(-61));
    }

    #[test]
    fn hours_are_those_of_utc() {
        let reading = Reading::of(0, offset(0), offset(3599 * SECOND), &kernel(37, 0).0, 0);
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
