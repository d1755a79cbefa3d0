//! CPUs that are online and not traced, because the kernel refuses to open their events.

use crate::error::Repeats;
use crate::record::clock::Clock;
use std::time::{Duration, Instant};

/// A time in which a CPU is online and not traced: its ring or its events could not be opened when it came online. The
/// [`Error`](crate::Error) says why. Events of the CPU in this time are in no ring, and no count has them.
///
/// The reader tries again once a second, or ten times a second where the kernel sends no messages about CPUs. It yields this once when the
/// time begins, and once more when it is over. It comes as soon as the reader knows, and has no key: `since` says where in the order it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Untraced {
    /// The CPU.
    pub cpu: u32,
    /// When it was last known that all of the CPU is traced, or that it is offline: a time of the rings' clock
    /// ([`Rings::clock`](crate::Rings::clock)), in nanoseconds. `None` if that clock cannot be read.
    pub since: Option<u64>,
    /// How long it lasted from then on, until the CPU was traced again or went offline. `None` while it lasts.
    pub lasted: Option<Duration>,
}

/// A moment, by the rings' clock, if it can be read, and by a clock that always can.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    key: Option<u64>,
    instant: Instant,
}

impl Moment {
    pub(crate) fn now(clock: Clock) -> Self {
        Self { key: clock.now(), instant: Instant::now() }
    }
}

/// The CPUs that are not traced, or were not for a time.
#[derive(Debug, Default)]
pub(crate) struct UntracedCpus {
    /// In no order.
    cpus: Vec<Cpu>,
    /// What began or ended and was not taken yet, in order.
    news: Vec<Untraced>,
    /// CPUs that came online, or back, and ran programs before their events were opened. In no order, each once.
    came: Vec<u32>,
}

#[derive(Debug)]
struct Cpu {
    cpu: u32,
    /// Since when, if it lasts.
    since: Option<Moment>,
    /// How long the earlier times lasted together, and when the last of them ended.
    before: Duration,
    until: Option<u64>,
    failures: Repeats,
}

impl UntracedCpus {
    /// Notes that a CPU could not be traced. `well` is when it was last known to be traced or offline. Returns whether to report the error.
    pub(crate) fn failed(&mut self, cpu: u32, well: Moment) -> bool {
        let known = self.cpus.iter().position(|known| known.cpu == cpu);
        let at = known.unwrap_or(self.cpus.len());
        if known.is_none() {
            let (before, failures) = Default::default();
            self.cpus.push(Cpu { cpu, since: None, before, until: None, failures });
        }
        let known = &mut self.cpus[at];
        if known.since.is_none() {
            known.since = Some(well);
            self.news.push(Untraced { cpu, since: well.key, lasted: None });
        }
        known.failures.failed(false).is_some()
    }

    /// Notes which CPUs are traced or offline now.
    pub(crate) fn well(&mut self, now: Moment, is_well: impl Fn(u32) -> bool) {
        for known in self.cpus.iter_mut().filter(|known| is_well(known.cpu)) {
            let Some(since) = known.since.take() else { continue };
            let lasted = lasted(since, now.instant);
            known.before += lasted;
            (known.until, known.failures) = (now.key, Repeats::default());
            self.news.push(Untraced { cpu: known.cpu, since: since.key, lasted: Some(lasted) });
        }
    }

    /// Notes that a CPU came online and is traced now.
    pub(crate) fn came(&mut self, cpu: u32) {
        if !self.came.contains(&cpu) {
            self.came.push(cpu);
        }
    }

    /// The CPUs that ran programs for a moment before they were traced.
    pub(crate) fn all_that_came(&self) -> impl Iterator<Item = u32> {
        self.came.iter().copied()
    }

    /// What began or ended since the last call.
    pub(crate) fn take_news(&mut self) -> impl Iterator<Item = Untraced> {
        self.news.drain(..)
    }

    /// Each CPU, and how long it was not traced in all.
    pub(crate) fn times(&self) -> impl Iterator<Item = (u32, Duration)> {
        self.cpus.iter().map(|known| {
            let now = known.since.map_or(Duration::ZERO, |since| lasted(since, Instant::now()));
            (known.cpu, known.before + now)
        })
    }

    /// The time on the rings' clock from which on all CPUs are traced. `None` if they always were; `u64::MAX` if one is not, or the clock
    /// cannot be read.
    pub(crate) fn until(&self) -> Option<u64> {
        let until = |known: &Cpu| known.until.filter(|_| known.since.is_none()).unwrap_or(u64::MAX);
        self.cpus.iter().map(until).max()
    }
}

/// The time since then, at least a nanosecond.
fn lasted(since: Moment, now: Instant) -> Duration {
    now.saturating_duration_since(since.instant).max(Duration::from_nanos(1))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_when_they_begin_and_when_they_are_over_and_add_up() {
        let begin = Instant::now();
        let at = |seconds: u64| Moment { key: Some(seconds), instant: begin + Duration::from_secs(seconds) };
        let mut all = UntracedCpus::default();
        assert_eq!(all.until(), None);
        // At the first, and the tenth, it is said why.
        let said: Vec<_> = (1..=10).filter(|_| all.failed(3, at(5))).collect();
        assert_eq!(said, [1, 10]);
        assert_eq!(all.until(), Some(u64::MAX));
        let told =
            |all: &mut UntracedCpus| all.take_news().map(|new| (new.cpu, new.since, new.lasted)).collect::<Vec<_>>();
        assert_eq!(told(&mut all), [(3, Some(5), None)]);
        all.well(at(8), |cpu| cpu == 1);
        assert!(all.until() == Some(u64::MAX) && told(&mut all).is_empty());
        all.well(at(8), |cpu| cpu == 3);
        assert_eq!(all.until(), Some(8));
        assert!(all.failed(3, at(20)), "another time, and another reason");
        assert!(all.failed(1, at(21)));
        all.well(at(25), |_| true);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let expected = [
            (3, Some(5), seconds(3)),
            (3, Some(20), None),
            (1, Some(21), None),
            (3, Some(20), seconds(5)),
            (1, Some(21), seconds(4)),
        ];
        assert_eq!(told(&mut all), expected);
        let times: Vec<_> = all.times().collect();
        assert_eq!(times, [(3, Duration::from_secs(8)), (1, Duration::from_secs(4))]);
        assert_eq!(all.until(), Some(25));
    }
}
