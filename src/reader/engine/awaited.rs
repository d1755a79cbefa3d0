//! The wait for programs to commit what they have reserved in BPF ring buffers, as far as a proof or a report needs it.

use crate::order::merge::Merge;
use smallvec::SmallVec;
use std::time::{Duration, Instant};

/// The shortest sleep while a reservation is busy.
const COMMIT_NAP: Duration = Duration::from_micros(50);

/// How often headers of busy reservations are read again before the reader sleeps: some microseconds, as long as most
/// programs take.
const SPINS: u32 = 256;

/// The wait for reservations.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// Since when a proof or a report waits for programs to commit what they have reserved.
    pub(super) since: Option<Instant>,
    /// The reservations at which rings stand: CPU, place, and when the reader found it there.
    pub(super) places: SmallVec<[((u32, u64), Instant); 2]>,
}

impl Awaited {
    /// Whether it waits, and some of what it waits for is committed.
    pub(super) fn may_go_on(&self, merge: &Merge) -> bool {
        self.since.is_some() && may_find_commits(merge)
    }

    /// Waits a little, if a proof or a report waits.
    pub(super) fn spin(&mut self, merge: &Merge) {
        if merge.awaited().next().is_none() {
            self.since = None;
            return;
        }
        // In full only once: a program that has not committed by then takes longer.
        let spins = if self.since.is_none() { SPINS } else { 1 };
        self.since.get_or_insert_with(Instant::now);
        for _ in 0..spins {
            if may_find_commits(merge) {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Notes at which reservations rings stand after a refresh.
    pub(super) fn refreshed(&mut self, now: Instant, merge: &Merge) {
        let places = &mut self.places;
        let stand = || merge.awaited().map(|cpu_ring| (cpu_ring.origin.cpu, cpu_ring.ring.head()));
        places.retain(|(place, _)| stand().any(|other| other == *place));
        for place in stand() {
            if !places.iter().any(|(known, _)| *known == place) {
                places.push((place, now));
            }
        }
    }

    /// The CPU of the oldest reservation, and how long ago the reader found it.
    pub(super) fn oldest(&self, now: Instant) -> Option<(u32, Duration)> {
        let oldest = self.places.iter().min_by_key(|(_, found)| *found);
        oldest.map(|((cpu, _), found)| (*cpu, now.saturating_duration_since(*found)))
    }

    /// How much longer a report waits, which has waited since then and has this much patience. A reservation that was
    /// found later was found while it waited.
    pub(super) fn patience_left(&self, since: Instant, patience: Duration, now: Instant) -> Duration {
        let waited = now.saturating_duration_since(since);
        patience.saturating_sub(self.oldest(now).map_or(waited, |(_, known)| known.min(waited)))
    }

    /// How long to sleep at most. `left`: how much longer a report waits.
    pub(super) fn nap(&self, now: Instant, left: Option<Duration>) -> Duration {
        let Some(since) = self.since else { return Duration::MAX };
        // As long again as the wait so far: nothing wakes the reader when a program commits.
        let nap = COMMIT_NAP.max(now.saturating_duration_since(since));
        // Not zero, or the reader would spin: the next refresh gives the reservation up.
        left.map_or(nap, |left| nap.min(left.max(COMMIT_NAP)))
    }
}

/// Whether a refresh may find some of the reservations committed.
fn may_find_commits(merge: &Merge) -> bool {
    merge.awaited().any(|cpu_ring| cpu_ring.ring.has_committed())
}
