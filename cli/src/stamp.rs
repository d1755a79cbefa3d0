//! Times of events, by the clock that the user asks for.

use crate::failure::Failure;
use clap::ValueEnum;
use jiff::ZonedDateTime;
use perfweave::{Clock, ClockOffset, Rings};
use std::time::{Duration, SystemTime};

/// By which clock times are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Seconds since the trace began
    Start,
    /// The clock of the events, CLOCK_MONOTONIC: seconds since the machine started, without suspension
    Monotonic,
    /// CLOCK_BOOTTIME: with suspension
    Boot,
    /// CLOCK_REALTIME: date and time of day, in UTC
    Real,
    /// CLOCK_TAI: seconds since 1970, with leap seconds
    Tai,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Printed {
    /// By which clock times are printed. The conversion is made once, at the start, and the summary says how exact it
    /// is, and whether the clock was set meanwhile
    #[arg(long, value_name = "CLOCK")]
    pub time: Option<By>,
}

/// How the wall clock is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wall {
    /// Date and time of day in UTC, with nanoseconds.
    Date,
    /// As `strace -t`: the time of day here.
    OfDay,
    /// As `strace -tt`: with microseconds.
    Microseconds,
    /// As `strace -ttt`: seconds since 1970, with microseconds.
    Epoch,
}

/// Turns times of the rings' clock into those that are printed.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    by: By,
    wall: Wall,
    /// The clock of the events.
    clock: Clock,
    from: u64,
    offset: ClockOffset,
}

/// What the clock itself is ahead of itself.
const SAME: ClockOffset = ClockOffset { nanoseconds: 0, uncertainty: Some(0) };

impl Printed {
    /// For rings that the kernel writes into. Objects of JSON have the time of the rings' clock unless the user asks
    /// for another.
    pub fn stamp(&self, rings: &Rings, otherwise: By, json: bool) -> Result<Stamp, Failure> {
        let by = self.time.unwrap_or(if json { By::Monotonic } else { otherwise });
        let offset = match by {
            By::Start | By::Monotonic => Some(SAME),
            By::Boot => rings.clock().offset_to(Clock::Boottime),
            By::Real => rings.wall_clock(),
            By::Tai => rings.clock().offset_to(Clock::Tai),
        };
        let offset = offset.ok_or_else(|| Failure::new("the clock of these events cannot be read"))?;
        let from = match (rings.started(), by) {
            (None, By::Start) => {
                let hint = "--time monotonic prints the times as they are";
                return Err(Failure::hinting("it is not known when these rings began to be traced", hint));
            }
            (started, _) => started.unwrap_or(0),
        };
        Ok(Stamp { by, wall: Wall::Date, clock: rings.clock(), from, offset })
    }

    /// For a recording.
    pub fn stamp_recorded(&self, rings: &Rings) -> Result<Stamp, Failure> {
        let by = self.time.unwrap_or(By::Monotonic);
        let offset = match by {
            By::Monotonic if self.time.is_some() && rings.clock() != Clock::Monotonic => {
                let message = format!("the times of this recording are those of {}", name(rings.clock()));
                return Err(Failure::hinting(message, "without --time they are printed as they are"));
            }
            By::Monotonic => SAME,
            By::Real => rings.wall_clock().ok_or_else(|| {
                let hint = "perfweave record writes it, and so does perf record -k mono";
                Failure::hinting("the recording does not say what the wall clock was", hint)
            })?,
            By::Start | By::Boot | By::Tai => {
                return Err(Failure::new("of other clocks than its own, a recording says the wall clock: --time real"));
            }
        };
        Ok(Stamp { by, wall: Wall::Date, clock: rings.clock(), from: 0, offset })
    }
}

impl By {
    /// The clock that times are converted to, if they are converted.
    fn converted(self) -> Option<Clock> {
        match self {
            Self::Start | Self::Monotonic => None,
            Self::Boot => Some(Clock::Boottime),
            Self::Real => Some(Clock::Realtime),
            Self::Tai => Some(Clock::Tai),
        }
    }
}

impl Wall {
    /// Nanoseconds since 1970.
    fn text(self, time: u64) -> String {
        let at = SystemTime::UNIX_EPOCH + Duration::from_nanos(time);
        let of_day = |form| match ZonedDateTime::try_from(at) {
            Ok(here) => here.strftime(form).to_string(),
            // No such time can be.
            Err(_) => "?".into(),
        };
        match self {
            Self::Date => humantime::format_rfc3339_nanos(at).to_string(),
            Self::OfDay => of_day("%H:%M:%S"),
            Self::Microseconds => of_day("%H:%M:%S.%6f"),
            Self::Epoch => format!("{}.{:06}", time / 1_000_000_000, time % 1_000_000_000 / 1000),
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Date => 30,
            Self::OfDay => 8,
            Self::Microseconds => 15,
            Self::Epoch => 17,
        }
    }
}

fn name(clock: Clock) -> &'static str {
    match clock {
        Clock::Monotonic => "CLOCK_MONOTONIC",
        Clock::MonotonicRaw => "CLOCK_MONOTONIC_RAW",
        Clock::Boottime => "CLOCK_BOOTTIME",
        Clock::Realtime => "CLOCK_REALTIME",
        Clock::Tai => "CLOCK_TAI",
        _ => "perf's own clock",
    }
}

impl Stamp {
    /// Counts from a time of this clock.
    pub fn since(from: u64, clock: Clock) -> Self {
        Self { by: By::Start, wall: Wall::Date, clock, from, offset: SAME }
    }

    /// Prints the wall clock so.
    pub fn as_wall(self, wall: Wall) -> Self {
        Self { wall, ..self }
    }

    /// Nanoseconds, for JSON.
    pub fn number(&self, time: u64) -> u64 {
        let from = if self.by == By::Start { self.from } else { 0 };
        self.offset.apply(time).saturating_sub(from)
    }

    /// For people.
    pub fn text(&self, time: Option<u64>) -> String {
        match (time.map(|time| self.number(time)), self.by) {
            (Some(time), By::Real) => self.wall.text(time),
            (Some(time), By::Start) => format!("{:>5}.{:09}", time / 1_000_000_000, time % 1_000_000_000),
            (Some(time), _) => format!("{:>6}.{:09}", time / 1_000_000_000, time % 1_000_000_000),
            // A call that has not returned when the trace ends, and a notice that stays with the line before it.
            (None, By::Real) => format!("{:>width$}", "-", width = self.wall.width()),
            (None, By::Start) => format!("{:>15}", "-"),
            (None, _) => format!("{:>16}", "-"),
        }
    }

    /// How exact a conversion is, if there is one.
    pub fn exactness(&self) -> Option<u64> {
        self.offset.uncertainty.filter(|_| self.by.converted().is_some())
    }

    /// By how many nanoseconds somebody has set the clock since the conversion was made: what is printed since then is
    /// by the clock as it was before.
    pub fn moved(&self) -> Option<i64> {
        let now = self.clock.offset_to(self.by.converted()?)?;
        let moved = now.nanoseconds.saturating_sub(self.offset.nanoseconds);
        let unsure = now.uncertainty?.saturating_add(self.offset.uncertainty?);
        (moved.unsigned_abs() > unsure).then_some(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::{By, SAME, Stamp, Wall};
    use perfweave::{Clock, ClockOffset};

    #[test]
    fn each_clock_has_its_own_form_and_all_have_one_width() {
        let stamp = |by, offset| Stamp { by, wall: Wall::Date, clock: Clock::Monotonic, from: 1_000_000_000, offset };
        let wall = ClockOffset { nanoseconds: 1_700_000_000_000_000_000, uncertainty: Some(40) };
        let time = Some(2_000_000_001);
        assert_eq!(stamp(By::Start, SAME).text(time), "    1.000000001");
        assert_eq!(stamp(By::Monotonic, SAME).text(time), "     2.000000001");
        assert_eq!(stamp(By::Real, wall).text(time), "2023-11-14T22:13:22.000000001Z");
        assert_eq!(stamp(By::Tai, wall).number(5), 1_700_000_000_000_000_005);
        assert_eq!([By::Start, By::Real].map(|by| stamp(by, wall).exactness()), [None, Some(40)]);
        for by in [By::Start, By::Monotonic, By::Real] {
            let stamp = stamp(by, if by == By::Real { wall } else { SAME });
            assert_eq!(stamp.text(None).len(), stamp.text(time).len());
        }
        let real = stamp(By::Real, wall);
        assert_eq!(real.as_wall(Wall::Epoch).text(Some(2_000_001_000)), "1700000002.000001");
        // The hour depends on where the machine is.
        assert!(real.as_wall(Wall::Microseconds).text(Some(2_000_001_000)).ends_with(":22.000001"));
        for wall in [Wall::OfDay, Wall::Microseconds, Wall::Epoch] {
            let stamp = real.as_wall(wall);
            assert_eq!(stamp.text(None).len(), stamp.text(time).len());
        }
    }
}
