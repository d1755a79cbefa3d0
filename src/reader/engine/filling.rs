//! How fast programs fill BPF ring buffers.

use crate::reader::pace::FLOOR;
use crate::ring::Ring;
use crate::rings::Rings;
use std::time::{Duration, Instant};

/// A program that does nothing but write, 256 bytes a microsecond, fills a sixteenth of a BPF ring buffer in a
/// microsecond for each of these bytes of the ring. The rest of the ring is for the time in which the reader waits for
/// a CPU.
const SIXTEENTH: u64 = 4096;

/// The same for a quarter, if programs have written so slowly that the smallest ring would be full after [`SLOW`].
const QUARTER: u64 = 1024;
const SLOW: Duration = Duration::from_millis(512);

/// How fast programs fill BPF ring buffers, from one refresh to another.
#[derive(Debug)]
pub(super) struct Filling {
    since: Instant,
    /// Bytes that were written into all of them.
    written: u64,
    pub(super) is_slow: bool,
}

impl Filling {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, written: 0, is_slow: false }
    }

    pub(super) fn refreshed(&mut self, now: Instant, rings: &Rings) {
        let Some(smallest) = smallest(rings) else { return };
        let past = now.saturating_duration_since(self.since);
        // Two refreshes right after each other say nothing.
        if past >= FLOOR {
            let written = buffers(rings).map(Ring::head).fold(0, u64::wrapping_add);
            // The sum over all rings wraps, and the difference of two sums is still right.
            let new = u128::from(written.wrapping_sub(self.written));
            self.is_slow = new * SLOW.as_nanos() <= u128::from(smallest) * past.as_nanos();
            (self.since, self.written) = (now, written);
        }
    }

    /// The longest sleep while rings fill up and none wakes the reader. A writer that does nothing else fills a
    /// sixteenth of the smallest BPF ring buffer in it, or a quarter if writers have been slow.
    pub(super) fn unwatched(&self, rings: &Rings) -> Duration {
        let part = if self.is_slow { QUARTER } else { SIXTEENTH };
        smallest(rings).map_or(Duration::MAX, |size| FLOOR.max(Duration::from_micros(size / part)))
    }
}

/// The rings that wake only a reader that has given everything back.
fn buffers(rings: &Rings) -> impl Iterator<Item = &Ring> {
    let rings = rings.cpu_rings.iter().map(|cpu_ring| &cpu_ring.ring);
    rings.filter(|ring| ring.properties().wakes_when_drained)
}

/// Bytes of the smallest of these.
fn smallest(rings: &Rings) -> Option<u64> {
    buffers(rings).map(Ring::size).min()
}
