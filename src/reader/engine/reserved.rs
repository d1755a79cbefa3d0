//! What programs have reserved in BPF ring buffers and not committed: how long a proof waits for it, and a report.

use super::{COMMIT_NAP, Engine};
use smallvec::SmallVec;
use std::time::{Duration, Instant};

/// How often headers of busy reservations are read again before the reader sleeps: some microseconds, as long as most
/// programs take.
const SPINS: u32 = 256;

/// A flush or a deadline waits for a reservation this many times as long as an event waits for a refresh at most; but
/// longer than a fence takes, and no longer than somebody waits who has pressed Ctrl-C.
const PATIENCE: u32 = 10;
const LEAST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(10);

/// The wait for reservations.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// Since when a proof or a report waits for programs to commit what they have reserved.
    pub(super) since: Option<Instant>,
    /// The reservations at which rings stand: CPU, place, and when the reader found it there.
    places: SmallVec<[((u32, u64), Instant); 2]>,
    /// Whether the report that is due waits for none any more.
    pub(super) forgone: bool,
}

impl Awaited {
    /// Since when the oldest reservation is known.
    fn oldest(&self) -> Option<Instant> {
        self.places.iter().map(|(_, found)| *found).min()
    }
}

impl Engine {
    /// Waits a little for programs to commit what they have reserved in BPF ring buffers, if a proof waits for them.
    pub(super) fn await_commits(&mut self) {
        if !self.merge.awaits_commits() {
            self.awaited.since = None;
            return;
        }
        let spins = if self.awaited.since.is_none() { SPINS } else { 1 };
        self.awaited.since.get_or_insert_with(Instant::now);
        for _ in 0..spins {
            if self.merge.may_find_commits() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Notes at which reservations rings stand for which a proof or a report waits. Call it after a refresh.
    pub(super) fn watch_reserved(&mut self, now: Instant) {
        let places = &mut self.awaited.places;
        places.retain(|(place, _)| self.merge.awaited_places().any(|other| other == *place));
        for place in self.merge.awaited_places() {
            if !places.iter().any(|(known, _)| *known == place) {
                places.push((place, now));
            }
        }
    }

    /// How long to sleep at most while a proof or a report waits for reservations.
    pub(super) fn commit_nap(&self, now: Instant) -> Duration {
        let Some(since) = self.awaited.since else { return Duration::MAX };
        // As long again as the wait so far: nothing wakes the reader when a program commits.
        let nap = COMMIT_NAP.max(now.saturating_duration_since(since));
        if self.report.is_some() && !self.awaited.forgone {
            nap.min(self.patience_left(now).max(COMMIT_NAP))
        } else {
            nap
        }
    }

    /// How long a report waits for a reservation.
    fn patience(&self) -> Duration {
        (self.pace.longest() * PATIENCE).clamp(LEAST, MOST)
    }

    /// How much longer the report that is due waits for the oldest reservation. One that was found later was found
    /// while it waited.
    fn patience_left(&self, now: Instant) -> Duration {
        let since = self.awaited.oldest().map_or(self.reported, |oldest| oldest.max(self.reported));
        self.patience().saturating_sub(now.saturating_duration_since(since))
    }

    /// If a report has waited long enough for programs to commit what they have reserved, it waits no longer for those:
    /// what is held before it leaves early. A program may never commit.
    pub(super) fn forgo_reserved(&mut self, now: Instant) {
        if self.report.is_none() || self.report_is_due() {
            return;
        }
        // A report that waits for a fence, too, waits on: programs come and go all the time.
        if !self.awaited.places.is_empty() && self.patience_left(now).is_zero() {
            let patience = self.patience();
            let age = |found: Instant| now.saturating_duration_since(found);
            let old = self.awaited.places.iter().filter(|(_, found)| age(*found) >= patience);
            let old = old.map(|(place, found)| (*place, age(*found))).collect::<SmallVec<[_; 2]>>();
            self.awaited.forgone |= self.merge.forgo_reserved(&old, !self.awaited.forgone);
            self.cap();
        }
        if self.awaited.forgone {
            self.merge.release_before_report();
        }
    }
}
