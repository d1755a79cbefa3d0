//! CPUs that are online and not traced: before the reader has noticed that they are online, or because the kernel
//! refuses to open their events.

use crate::error::Repeats;
use crate::record::clock::Clock;
use std::time::{Duration, Instant};

/// A time in which a CPU is online and not traced. Events of the CPU in this time are in no ring, and no count has
/// them.
///
/// A CPU that comes online, or comes back, is not traced until the reader has noticed it and has opened its events:
/// this comes once, when that is over, also if the CPU was away for so short a time that no look found it offline. A
/// CPU that comes and goes again between two looks is not noticed. If the kernel refuses to open the events, the
/// [`Error`](crate::Error) says why, and the reader tries again at each look. It then yields this once when the time
/// begins, and once more when it is over. It comes as soon as the reader knows, and has no key: `since` says where in
/// the order it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Untraced {
    /// The CPU.
    pub cpu: u32,
    /// When it was last known that all of the CPU is traced, or that it is offline: a time of the rings' clock
    /// ([`Rings::clock`](crate::Rings::clock)), in nanoseconds. `None` if that clock cannot be read.
    pub since: Option<u64>,
    /// How long it lasted from then on, until the CPU was traced again or went offline: at most, since the CPU may have
    /// come online later than `since`, which is the time of the last look. The reader looks at its ticks, at most ten
    /// times a second, if the program calls it. `None` while it lasts.
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
    /// Notes that a CPU could not be traced. `last_traced` is when it was last known to be traced or offline. Returns
    /// whether to report the error.
    pub(crate) fn failed(&mut self, cpu: u32, last_traced: Moment) -> bool {
        let at = self.place(cpu);
        let known = &mut self.cpus[at];
        if known.since.is_none() {
            known.since = Some(last_traced);
            self.news.push(Untraced { cpu, since: last_traced.key, lasted: None });
        }
        known.failures.failed(false).is_some()
    }

    /// Notes that a CPU is traced from now on, and was online for some time before.
    pub(crate) fn was_late(&mut self, cpu: u32, last_traced: Moment, now: Moment) {
        let at = self.place(cpu);
        // A time that a failure has begun goes on.
        self.cpus[at].since.get_or_insert(last_traced);
        self.end(now, |late| late == cpu);
    }

    /// Where a CPU is.
    fn place(&mut self, cpu: u32) -> usize {
        let known = self.cpus.iter().position(|known| known.cpu == cpu);
        known.unwrap_or_else(|| {
            let (before, failures) = Default::default();
            self.cpus.push(Cpu { cpu, since: None, before, until: None, failures });
            self.cpus.len() - 1
        })
    }

    /// Notes which CPUs are traced or offline now.
    pub(crate) fn end(&mut self, now: Moment, is_traced: impl Fn(u32) -> bool) {
        for known in self.cpus.iter_mut().filter(|known| is_traced(known.cpu)) {
            let Some(since) = known.since.take() else { continue };
            let lasted = lasted(since, now.instant);
            known.before += lasted;
            // The next failure may have another cause, so it is reported.
            (known.until, known.failures) = (now.key, Repeats::default());
            self.news.push(Untraced { cpu: known.cpu, since: since.key, lasted: Some(lasted) });
        }
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

    /// The time on the rings' clock from which on all CPUs are traced. `None` if they always were; `u64::MAX` if one is
    /// not, or the clock cannot be read.
    pub(crate) fn until(&self) -> Option<u64> {
        let until = |known: &Cpu| known.until.filter(|_| known.since.is_none()).unwrap_or(u64::MAX);
        self.cpus.iter().map(until).max()
    }
}

/// The time since then, at least a nanosecond.
fn lasted(since: Moment, now: Instant) -> Duration {
    // Zero would mean that the CPU was always traced (`Account::is_balanced`).
    now.saturating_duration_since(since.instant).max(Duration::from_nanos(1))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn times_are_reported_when_they_begin_and_when_they_are_over_and_add_up() {
        let begin = Instant::now();
        let at = |seconds: u64| Moment { key: Some(seconds), instant: begin + Duration::from_secs(seconds) };
        let mut all = UntracedCpus::default();
        assert_eq!(all.until(), None);
        // At the first, and the tenth, it is said why.
        let said: Vec<_> = (1..=10).filter(|_| all.failed(3, at(5))).collect();
        assert_eq!(said, [1, 10]);
        assert_eq!(all.until(), Some(u64::MAX));
        let reported =
            |all: &mut UntracedCpus| all.take_news().map(|new| (new.cpu, new.since, new.lasted)).collect::<Vec<_>>();
        assert_eq!(reported(&mut all), [(3, Some(5), None)]);
        all.end(at(8), |cpu| cpu == 1);
        assert!(all.until() == Some(u64::MAX) && reported(&mut all).is_empty());
        all.end(at(8), |cpu| cpu == 3);
        assert_eq!(all.until(), Some(8));
        assert!(all.failed(3, at(20)), "another time, and another reason");
        assert!(all.failed(1, at(21)));
        all.end(at(25), |_| true);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let expected = [
            (3, Some(5), seconds(3)),
            (3, Some(20), None),
            (1, Some(21), None),
            (3, Some(20), seconds(5)),
            (1, Some(21), seconds(4)),
        ];
        assert_eq!(reported(&mut all), expected);
        let times: Vec<_> = all.times().collect();
        assert_eq!(times, [(3, Duration::from_secs(8)), (1, Duration::from_secs(4))]);
        assert_eq!(all.until(), Some(25));
    }

    #[test]
    fn a_cpu_that_was_noticed_late_is_reported_once() {
        let begin = Instant::now();
        let at = |seconds: u64| Moment { key: Some(seconds), instant: begin + Duration::from_secs(seconds) };
        let mut all = UntracedCpus::default();
        all.was_late(2, at(3), at(5));
        // Its events could not be opened before: that time goes on.
        assert!(all.failed(4, at(5)));
        all.was_late(4, at(7), at(8));
        let reported: Vec<_> = all.take_news().map(|new| (new.cpu, new.since, new.lasted)).collect();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(reported, [(2, Some(3), seconds(2)), (4, Some(5), None), (4, Some(5), seconds(3))]);
        assert_eq!(all.times().collect::<Vec<_>>(), [(2, Duration::from_secs(2)), (4, Duration::from_secs(3))]);
        assert_eq!(all.until(), Some(8));
    }
}
