//! Rests: how long a reader that has taken many events sleeps before it refreshes again.

use super::Engine;
use crate::order::merge::Merge;
use crate::reader::pace::{FLOOR, WORTH_A_REFRESH};
use std::time::{Duration, Instant};

/// A reader rests only while it holds less than this part of the events it found since it slept.
const PART_HELD: usize = 4;

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

    pub(super) fn refreshed(&mut self, now: Instant, merge: &Merge) {
        let Some(smallest) = merge.smallest_buffer() else { return };
        let past = now.saturating_duration_since(self.since);
        // Two refreshes right after each other say nothing.
        if past >= FLOOR {
            let written = merge.written();
            let new = u128::from(written.wrapping_sub(self.written));
            self.is_slow = new * SLOW.as_nanos() <= u128::from(smallest) * past.as_nanos();
            (self.since, self.written) = (now, written);
        }
    }
}

impl Engine {
    /// How long to sleep before the next refresh, although more may have been written since the last. Zero: refresh at
    /// once.
    ///
    /// The kernel writes more while a reader takes the events it has found. A refresh at once would find few, in cache
    /// lines that the kernel is still writing. So a reader that has found many events since it slept, and has taken
    /// them, sleeps for the rest of the tick. It does not rest if rings cannot wake it, if a ring is full already, or
    /// if a caller waits.
    ///
    /// A BPF ring buffer wakes a reader for each record with which the reader has caught up. So if events come fast,
    /// the reader rests however few it has found, and does not catch up: it keeps the last bytes of each BPF ring
    /// buffer, so nothing wakes it.
    pub(crate) fn rest(&mut self) -> Duration {
        let have_buffers = self.merge.rings().have(|ring| ring.wakes_when_drained);
        let found = self.since_sleep >= if have_buffers && self.pace.is_busy() { 1 } else { WORTH_A_REFRESH };
        let took_much = found && self.merge.held() < WORTH_A_REFRESH.max(self.since_sleep / PART_HELD);
        let is_awaited = self.report.is_some() || !self.merge.is_whole() || self.merge.rings().are_complete();
        if !took_much || is_awaited || !self.spin.is_zero() || !self.have_events() {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let ends = [self.due.map(|due| due.saturating_duration_since(now)), self.control.time_left()];
        let rest = self.pace.rest(now).min(self.unwatched());
        let rest = ends.into_iter().flatten().fold(rest, Duration::min);
        if !rest.is_zero() {
            self.merge.keep_behind = have_buffers;
            // Bytes of yielded events are given back before every sleep: by a refresh, or here.
            self.merge.advance_tails();
            if !self.merge.is_crowded() {
                return rest;
            }
        }
        self.merge.keep_behind = false;
        self.since_sleep = 0;
        Duration::ZERO
    }

    /// The longest sleep while rings fill up and none wakes the reader. A writer that does nothing else fills a
    /// sixteenth of the smallest BPF ring buffer in it, or a quarter if writers have been slow.
    pub(super) fn unwatched(&self) -> Duration {
        let part = if self.filling.is_slow { QUARTER } else { SIXTEENTH };
        self.merge.smallest_buffer().map_or(Duration::MAX, |size| FLOOR.max(Duration::from_micros(size / part)))
    }

    /// Whether each ring wakes the reader as it fills up. A BPF ring buffer does not: the kernel notifies only a reader
    /// that has given all earlier records back.
    pub(super) fn do_rings_wake(&self) -> bool {
        self.have_events() && !self.merge.rings().have(|ring| ring.wakes_when_drained)
    }

    /// Whether each ring can wake the reader.
    fn have_events(&self) -> bool {
        let rings = self.merge.rings();
        rings.events().count() == rings.len()
    }
}
