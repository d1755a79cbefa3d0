//! Full rings: held records are copied out of them, up to a bound. Beyond it they stay, and the kernel drops what does
//! not fit and counts it.

use crate::merge::queue::Queue;
use crate::order::MOST_HELD;
use crate::order::cursor::ROOM;
use crate::order::stream::Stream;
use crate::rings::{CpuRing, Rings};
use std::time::{Duration, Instant};

/// How many refreshes pass at least between two times at which memory is freed that was not needed meanwhile.
const WINDOW: u32 = 32;

/// How much time passes at least, for a reader: the next burst would have to fault in again what is freed before.
pub(crate) const KEPT: Duration = Duration::from_secs(2);

/// How long a woken reader may have to wait for a CPU: two ticks of a kernel with 250 Hz, and a margin. Held records
/// are copied out of a ring unless its free part can take what is written meanwhile.
const SOON: Duration = Duration::from_millis(10);

/// Refreshes in quicker succession say little about how fast a ring is written.
const SHORT: Duration = Duration::from_micros(500);

/// How full a ring may be, in percent, before held records are copied out of it.
const MARK: u64 = 75;

/// No ring is smaller.
const PAGE: u64 = 4096;

/// The most events that are held while records are copied out of rings; or one for each 16 bytes of rings and copies, if
/// that is more. Each takes 16 bytes, and some 100 more if a notice comes before it.
pub(super) const MOST_EVENTS: usize = 1 << 24;
const LEAST_RECORD: usize = 16;

/// What is done about rings that fill up with held records.
#[derive(Debug)]
pub(crate) struct Full {
    /// The most bytes that copies may take.
    most_held: usize,
    /// Whether held records stay in rings that outlive the reader.
    keeps_adopted: bool,
    /// The most events that are held while records are copied, and whether the last refresh has left a ring alone for
    /// that reason.
    pub(crate) most_events: usize,
    pub(crate) has_too_many: bool,
    /// The time between the begins of the last two refreshes. `None` at the first, which finds what came before it; and if
    /// a proof releases at the next refresh what is held now: then it need not leave its ring before.
    pub(crate) since_refresh: Option<Duration>,
    pub(crate) began: Option<Instant>,
    /// Whether a ring was more than half full at a refresh since the last proof began, before held records were copied
    /// out of it.
    pub(crate) was_crowded: bool,
    /// Refreshes since memory that was not needed was freed, when that was, and how long it is kept at least.
    refreshed: u32,
    freed: Instant,
    pub(crate) kept: Duration,
}

impl Full {
    /// `most_held`: what was asked for. Rings that nobody writes into, those of a recording, do not fill up.
    pub(super) fn new(most_held: Option<usize>, rings: &Rings) -> Self {
        let keeps_adopted = most_held.is_none();
        let most_held = if rings.are_complete() { 0 } else { most_held.unwrap_or(MOST_HELD) };
        let sizes = rings.cpu_rings.iter().map(|cpu_ring| cpu_ring.ring.size() as usize);
        let bytes = sizes.fold(most_held, usize::saturating_add);
        Self {
            most_held,
            keeps_adopted,
            most_events: MOST_EVENTS.max(bytes / LEAST_RECORD),
            has_too_many: false,
            since_refresh: None,
            began: None,
            was_crowded: false,
            refreshed: 0,
            freed: Instant::now(),
            kept: Duration::ZERO,
        }
    }

    /// A refresh begins. `leaves_soon`: a proof releases at the next one what is held now.
    pub(crate) fn begin_refresh(&mut self, now: Instant, leaves_soon: bool) {
        let before = self.began.replace(now).filter(|_| !leaves_soon);
        self.since_refresh = before.map(|before| now.saturating_duration_since(before));
    }

    /// Copies held records out of rings that fill up with them, as long as the bounds allow it. Call it after a refresh.
    pub(super) fn copy_out(&mut self, cpu_rings: &mut [CpuRing], stream: &mut Stream) {
        self.free_unneeded(cpu_rings, stream);
        // Before copies make space: a ring that was crowded lets a proof begin at once.
        self.was_crowded |= cpu_rings.iter().any(CpuRing::is_crowded);
        // Dense numbers leave without a fence, until one is missing.
        let flows = stream.flows();
        let under = stream.unmerged();
        let has_too_many = under.held() >= self.most_events;
        self.has_too_many = false;
        let (mut memory, mut is_cleared) = (memory(cpu_rings), false);
        for at in 0..cpu_rings.len() {
            let (cpu_ring, cursor, queue) = (&cpu_rings[at], &under.cursors[at], &under.queues[at]);
            let (used, size) = (cpu_ring.ring.used(), cpu_ring.ring.size());
            let soon = self.since_refresh.map_or(0, |time| written_within(SOON, cursor.newly_written, time));
            // Events that may leave are not held: the consumer makes space by taking them.
            if flows || queue.back().is_none_or(|back| under.frontier.admits(back)) {
                continue;
            }
            // What came at once need not have been written at once: a program may have committed late.
            let needed = size_for(used + cpu_ring.copies.len(), soon.min(size), queue.longest);
            let end = cursor.cursor;
            // Of one ring at most 4 GiB: what lies in it takes half of that at most.
            let spans = cursor.spans(queue, size);
            let is_full = used > mark_of(size, soon, queue.longest);
            let counts = &mut under.cursors[at].counts;
            counts.needed = counts.needed.max(needed);
            // A copy out of a ring that outlives the reader would be lost with it.
            let stays = self.keeps_adopted && cpu_ring.origin.is_adopted;
            if !is_full || stays {
                continue;
            }
            if has_too_many {
                self.has_too_many = self.most_held > 0;
                continue;
            }
            if !spans {
                continue;
            }
            let mut copied = self.copy(&mut cpu_rings[at], end, &mut memory);
            if copied.is_none() && !std::mem::replace(&mut is_cleared, true) {
                // What rings keep for their next burst serves this one.
                cpu_rings.iter_mut().for_each(|cpu_ring| cpu_ring.copies.clear_spare());
                memory = self::memory(cpu_rings);
                copied = self.copy(&mut cpu_rings[at], end, &mut memory);
            }
            counts.copied += copied.unwrap_or(0);
        }
        let counts = &mut stream.counts;
        (counts.memory, counts.most_memory) = (memory, counts.most_memory.max(memory));
    }

    /// Copies what a ring has before a position, if the bound on the memory of all copies allows it.
    fn copy(&self, CpuRing { ring, copies, .. }: &mut CpuRing, until: u64, memory: &mut usize) -> Option<u64> {
        let others = *memory - copies.memory();
        let copied = copies.take(ring, until, self.most_held.saturating_sub(others));
        *memory = others + copies.memory();
        copied
    }

    /// Frees memory that was not needed for some time, now and then.
    fn free_unneeded(&mut self, cpu_rings: &mut [CpuRing], stream: &mut Stream) {
        self.refreshed = self.refreshed.saturating_add(1);
        if self.refreshed >= WINDOW && self.freed.elapsed() >= self.kept {
            (self.refreshed, self.freed) = (0, Instant::now());
            cpu_rings.iter_mut().for_each(|cpu_ring| cpu_ring.copies.shrink());
            let under = stream.unmerged();
            under.queues.iter_mut().for_each(Queue::shrink);
            under.cursors.iter_mut().for_each(|cursor| cursor.notes.shrink());
            under.far.shrink_to(ROOM);
        }
    }
}

/// Bytes of memory that copies take now.
fn memory(cpu_rings: &[CpuRing]) -> usize {
    cpu_rings.iter().map(|cpu_ring| cpu_ring.copies.memory()).sum()
}

/// The bytes that a ring may have in use before held records are copied out of it. The rest takes what is written `soon`,
/// and two more of the ring's longest records, or half of what one record leaves. The kernel never writes one byte of a
/// ring.
fn mark_of(size: u64, soon: u64, longest: u64) -> u64 {
    let room = |records: u64| (size - 1).saturating_sub(records * longest);
    (size / 100 * MARK + size % 100 * MARK / 100).min(room(2).max(room(1) / 2)).min(size.saturating_sub(soon))
}

/// The least size of a ring in which so many bytes may be in use.
fn size_for(used: u64, soon: u64, longest: u64) -> u64 {
    let mut size = used.max(soon).max(PAGE).next_power_of_two();
    // Mostly twice this is enough, unless records are long.
    while mark_of(size, soon, longest) < used && size < 1 << 62 {
        size *= 2;
    }
    size
}

/// The bytes that are written in `time`, if `bytes` were written in `other`.
fn written_within(time: Duration, bytes: u64, other: Duration) -> u64 {
    // SHORT also keeps the divisor above 0.
    bytes.saturating_mul(time.as_micros() as u64) / other.max(SHORT).as_micros() as u64
}
