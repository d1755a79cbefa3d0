//! How the clock of the events stands to TAI, and by how much that can be wrong.

use nix::time::ClockId;
use perfweave::{Clock, ClockOffset};
use rtime_clock::adjtime::{Timex, adjtimex};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;

/// By how much an oscillator may run wrong, in nanoseconds for each second: what the kernel assumes too (`MAXFREQ`, 500
/// ppm).
const DRIFT: i64 = 500_000;

/// By how much the kernel's `maxerror` may be too small: it adds 500 microseconds once a second.
const STALE: i64 = 500_000;

/// The error of a clock that nothing keeps right: no claim follows from its times. Sums of a time and two of these fit
/// an i64.
pub const UNKNOWN: i64 = 1 << 61;

/// Microseconds of a tick of the kernel's clock, of which there are a hundred a second, if its rate is not corrected
/// (adjtimex(2) `tick`).
const TICK: i64 = 10_000;

/// What TAI is ahead of UTC since 2017, in seconds. For a machine whose kernel does not know it.
const AHEAD: i64 = 37;

const SECOND: i64 = 1_000_000_000;

/// A PTP clock that something keeps right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ptp {
    /// The device, such as `/dev/ptp0`.
    pub device: PathBuf,
    /// By how many nanoseconds its time may be wrong. Nothing checks it.
    pub error: i64,
}

impl FromStr for Ptp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a device and by how many nanoseconds it may be wrong are expected, such as /dev/ptp0=1000";
        let (device, error) = text.rsplit_once('=').ok_or_else(wrong)?;
        let error = error.parse::<i64>().ok().filter(|error| (1..UNKNOWN).contains(error)).ok_or_else(wrong)?;
        Ok(Self { device: device.into(), error })
    }
}

/// The clocks of this machine. By default those that the kernel keeps.
#[derive(Debug, Default)]
pub struct Clocks {
    ptp: Option<OpenPtp>,
}

#[derive(Debug)]
struct OpenPtp {
    device: File,
    error: i64,
    is_utc: bool,
}

impl Clocks {
    /// With TAI from a PTP clock. It keeps TAI or UTC, whichever the kernel's is within a second of.
    ///
    /// # Errors
    /// If the device is no PTP clock, or keeps neither.
    pub fn with_ptp(ptp: &Ptp) -> io::Result<Self> {
        // A FIFO would wait for a writer.
        let device = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&ptp.device)?;
        let (_, offset) = read_ptp(&device).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => io::Error::new(error.kind(), "it is no PTP clock"),
            _ => error,
        })?;
        let is_utc = Reading::of_system()?.is_utc(offset.nanoseconds).map_err(io::Error::other)?;
        Ok(Self { ptp: Some(OpenPtp { device, error: ptp.error, is_utc }) })
    }

    /// Reads the clocks. While the PTP clock cannot be read, TAI is the kernel's.
    ///
    /// # Errors
    /// If the system does not let the program read them.
    pub fn read(&self) -> io::Result<Reading> {
        let system = Reading::of_system()?;
        let by_ptp = |ptp: &OpenPtp| {
            let (mono, offset) = read_ptp(&ptp.device).ok()?;
            Some(system.by_ptp(mono, offset, ptp.is_utc, ptp.error))
        };
        Ok(self.ptp.as_ref().and_then(by_ptp).unwrap_or(system))
    }
}

/// What a PTP clock is ahead of `CLOCK_MONOTONIC`, and when.
fn read_ptp(device: &File) -> io::Result<(i64, ClockOffset)> {
    // FD_TO_CLOCKID of clock_getres(2).
    let ptp = ClockId::from_raw((!device.as_raw_fd() << 3) | 3);
    let monotonic = || Clock::Monotonic.now().unwrap_or_default().cast_signed();
    let mut best: Option<(i64, i64, i64)> = None;
    // It is read over a bus, and some tries are interrupted.
    for _ in 0..8 {
        let (before, there, after) = (monotonic(), ptp.now()?, monotonic());
        let width = after - before;
        if best.is_none_or(|(.., narrowest)| width < narrowest) {
            best = Some((before, there.tv_sec().saturating_mul(SECOND).saturating_add(there.tv_nsec()), width));
        }
    }
    let (before, there, width) = best.unwrap_or_default();
    let mono = before + width / 2;
    let uncertainty = Some((width - width / 2).unsigned_abs());
    Ok((mono, ClockOffset { nanoseconds: there.saturating_sub(mono), uncertainty }))
}

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
    /// The kernel's own bound of the error of its clock (adjtimex(2) `maxerror`), or that of the PTP clock.
    pub maxerror: i64,
    /// The kernel's estimate of that error (`esterror`), or the bound of the PTP clock.
    pub esterror: i64,
    /// What the kernel knows to be wrong and corrects bit by bit, in nanoseconds (adjtimex(2) `offset`, adjtime(3)).
    pub pending: i64,
    /// The rate of the kernel's correction, in nanoseconds for each second (adjtimex(2) `freq` and `tick`).
    pub rate: i64,
    /// Whether something keeps the clock right.
    pub synchronized: bool,
    /// Where TAI comes from: `tai`, or `utc+37` if nobody told the kernel what TAI is ahead of UTC. `ptp`, or `ptp utc`
    /// if that clock keeps UTC.
    pub source: &'static str,
}

/// Times that a PTP clock gives.
const BY_PTP: [&str; 2] = ["ptp", "ptp utc"];

impl Reading {
    fn of_system() -> io::Result<Self> {
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

    /// What TAI is ahead of UTC: whole seconds.
    fn leap(&self) -> i64 {
        (self.offset - self.utc + SECOND / 2).div_euclid(SECOND) * SECOND
    }

    /// Whether a clock that is so much ahead of the monotonic one keeps UTC, or TAI. Cards that ptp4l keeps have TAI,
    /// those of hypervisors UTC.
    fn is_utc(&self, offset: i64) -> Result<bool, String> {
        let ahead_of = |other: i64| offset.saturating_sub(other);
        let is_near = |ahead: i64| ahead.saturating_abs() < SECOND;
        match (is_near(ahead_of(self.offset)), is_near(ahead_of(self.utc))) {
            (true, _) => Ok(false),
            (_, true) => Ok(true),
            _ => Err(format!(
                "it is {:.3} s ahead of the system's TAI and {:.3} s ahead of its UTC: one of the clocks is not set",
                ahead_of(self.offset) as f64 / SECOND as f64,
                ahead_of(self.utc) as f64 / SECOND as f64
            )),
        }
    }

    /// The same with TAI from a PTP clock.
    fn by_ptp(self, mono: i64, ptp: ClockOffset, is_utc: bool, error: i64) -> Self {
        Self {
            mono,
            offset: ptp.nanoseconds.saturating_add(if is_utc { self.leap() } else { 0 }),
            bracket: ptp.uncertainty.unwrap_or(u64::MAX >> 2).cast_signed(),
            maxerror: error,
            esterror: error,
            synchronized: true,
            source: BY_PTP[usize::from(is_utc)],
            ..self
        }
    }

    fn is_by_ptp(&self) -> bool {
        BY_PTP.contains(&self.source)
    }

    /// By how much the monotonic clock can run wrong in so many nanoseconds.
    fn drift(&self, time: u64) -> i64 {
        let drift = i128::from(time) * i128::from(DRIFT.saturating_add(self.rate)) + i128::from(SECOND) - 1;
        i64::try_from(drift / i128::from(SECOND)).unwrap_or(i64::MAX)
    }

    /// The TAI of a time.
    pub fn tai(&self, mono: i64) -> i64 {
        mono.saturating_add(self.offset)
    }

    /// By how much [`Reading::tai`] can be wrong: more, the further the time is from the reading. [`UNKNOWN`] if
    /// nothing keeps the clock right, or nothing says how well.
    pub fn error(&self, mono: i64) -> i64 {
        // systemd-timesyncd and phc2sys claim to be right and name no error at all; chrony and ntpd estimate theirs.
        if !self.synchronized || self.esterror == 0 {
            return UNKNOWN;
        }
        let stale = if self.is_by_ptp() { 0 } else { STALE };
        let sum = [self.bracket, self.maxerror, stale, self.pending].into_iter().fold(0, i64::saturating_add);
        sum.saturating_add(self.drift(mono.abs_diff(self.mono))).min(UNKNOWN)
    }

    /// By how much TAI was set against the monotonic clock since a reading before, if that is more than the two
    /// readings can be wrong.
    pub fn set_since(&self, before: &Self) -> Option<i64> {
        let set = self.offset.saturating_sub(before.offset);
        let brackets = self.bracket.saturating_add(before.bracket);
        // The kernel's two clocks run at one rate. Another clock may be wrong now by its bound, and before by as much
        // the other way.
        let apart = if self.is_by_ptp() || before.is_by_ptp() {
            [self.maxerror, before.maxerror, self.pending.max(before.pending)]
                .into_iter()
                .fold(self.drift(self.mono.abs_diff(before.mono)), i64::saturating_add)
        } else {
            0
        };
        (set.saturating_abs() > brackets.saturating_add(apart)).then_some(set)
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

    fn ptp(seconds: i64) -> ClockOffset {
        ClockOffset { nanoseconds: seconds * SECOND + 5, uncertainty: Some(900) }
    }

    #[test]
    fn a_ptp_clock_gives_tai_and_its_own_bound() {
        let system = of(SECOND, &kernel(37, libc::STA_UNSYNC), 0);
        let reading = system.by_ptp(SECOND + 7, ptp(37), false, 1000);
        assert_eq!((reading.mono, reading.offset, reading.source), (SECOND + 7, 37 * SECOND + 5, "ptp"));
        assert_eq!((system.error(SECOND), reading.error(SECOND + 7)), (UNKNOWN, 1900));
        assert_eq!(reading.error(2 * SECOND + 7), 1900 + 500_000);
        let utc = system.by_ptp(SECOND + 7, ptp(0), true, 1000);
        assert_eq!((utc.offset, utc.source), (37 * SECOND + 5, "ptp utc"));
    }

    #[test]
    fn a_ptp_clock_that_keeps_neither_tai_nor_utc_is_refused() {
        let system = of(0, &kernel(37, 0), 0);
        assert_eq!([37, 0].map(|seconds| system.is_utc(ptp(seconds).nanoseconds)), [Ok(false), Ok(true)]);
        let refusal = system.is_utc(ptp(18).nanoseconds).unwrap_err();
        assert!(refusal.starts_with("it is -19.000 s ahead of the system's TAI and 18.000 s"), "{refusal}");
        assert!(system.is_utc(i64::MIN).is_err() && system.is_utc(i64::MAX).is_err());
    }

    /// The clocks are kept by different things, and differ in rate: that is no step.
    #[test]
    fn a_ptp_clock_may_drift_from_the_monotonic_one() {
        let read = |mono, by: i64| {
            let offset = ClockOffset { nanoseconds: 37 * SECOND + by, uncertainty: Some(100) };
            of(0, &kernel(37, 0), 0).by_ptp(mono, offset, false, 1000)
        };
        let allowed = 2 * 100 + 2 * 1000 + 500_000;
        assert_eq!(read(SECOND, allowed).set_since(&read(0, 0)), None);
        assert_eq!(read(SECOND, -allowed - 1).set_since(&read(0, 0)), Some(-allowed - 1));
        // The clock is gone: the kernel's is elsewhere.
        let system = |offset: i64| Reading { offset, ..of(SECOND, &kernel(37, 0), 0) };
        assert_eq!(system(37 * SECOND).set_since(&read(0, 0)), None);
        assert_eq!(system(38 * SECOND).set_since(&read(0, 0)), Some(SECOND));
        // And comes again.
        assert_eq!(read(2 * SECOND, 400_000).set_since(&system(37 * SECOND)), None);
    }

    #[test]
    fn what_is_no_ptp_clock_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for device in ["/dev/null".into(), "/dev".into(), fifo] {
            let error = Clocks::with_ptp(&Ptp { device, error: 1000 }).unwrap_err();
            assert_eq!(error.to_string(), "it is no PTP clock");
        }
        let missing = Clocks::with_ptp(&Ptp { device: "/dev/ptp-none".into(), error: 1000 }).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_ptp_clock_is_named_with_its_bound() {
        let parsed = Ptp { device: "/dev/ptp=a".into(), error: 1000 };
        assert_eq!("/dev/ptp=a=1000".parse(), Ok(parsed));
        for text in ["/dev/ptp0", "/dev/ptp0=", "/dev/ptp0=0", "/dev/ptp0=-1", "/dev/ptp0=9223372036854775807"] {
            assert!(text.parse::<Ptp>().is_err(), "{text}");
        }
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
            (Clock::Monotonic.now().unwrap(), Clocks::default().read().unwrap(), Clock::Monotonic.now().unwrap());
        assert!((before..=after).contains(&reading.mono.unsigned_abs()), "{reading:?}");
        assert!(reading.tai(reading.mono) > 1_700_000_000 * SECOND && reading.maxerror >= 0, "{reading:?}");
    }
}
