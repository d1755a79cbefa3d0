//! How fast programs fill BPF ring buffers.

use crate::order::merge::Merge;
use crate::reader::pace::FLOOR;
use std::time::{Duration, Instant};

/// A program that does nothing but write, 256 bytes a microsecond, fills a sixteenth of a BPF ring buffer in a
/// microsecond for each of these bytes of the ring. The rest of the ring is for the time in which the reader waits for
/// a CPU.
pub(super) const SIXTEENTH: u64 = 4096;

/// The same for a quarter, if programs have written so slowly that the smallest ring would be full after [`SLOW`].
pub(super) const QUARTER: u64 = 1024;
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

    pub(super) fn refreshed(&mut self, now: Instant, merge: &Merge) {
        let Some(smallest) = merge.smallest_buffer() else { return };
        let past = now.saturating_duration_since(self.since);
        // Two refreshes right after each other say nothing.
        if past >= FLOOR {
            let written = merge.written();
            // The sum over all rings wraps, and the difference of two sums is still right.
            let new = u128::from(written.wrapping_sub(self.written));
            self.is_slow = new * SLOW.as_nanos() <= u128::from(smallest) * past.as_nanos();
            (self.since, self.written) = (now, written);
        }
    }
}
