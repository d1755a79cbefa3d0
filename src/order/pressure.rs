//! Full rings: how held records leave them, and the memory that this takes.

use crate::order::WhenFull;
use crate::order::event::EarlyRelease;
use crate::order::index::{Index, memory_of, shrink};
use crate::order::merge::{Indexed, Merge};
use crate::order::queue::SLOTS;
use crate::ring::{ANY_CPU, Ring};
use crate::sequence::tracker::Tracker;
use crate::sys::{machine, memory};
use std::time::Duration;

/// How long a woken reader may have to wait for a CPU: two ticks of a kernel with 250 Hz, and a margin. Held records
/// are copied out of a ring unless its free part can take what is written meanwhile.
const SOON: Duration = Duration::from_millis(10);

/// Refreshes in quicker succession say little about how fast a ring is written.
const SHORT: Duration = Duration::from_micros(500);

/// How many refreshes pass between two times at which memory is freed that was not needed meanwhile.
const WINDOW: u32 = 32;

/// The bytes that are written in `time`, if `bytes` were written in `other`.
fn written_within(time: Duration, bytes: u64, other: Duration) -> u64 {
    bytes.saturating_mul(time.as_micros() as u64) / other.max(SHORT).as_micros() as u64
}

impl WhenFull {
    /// The most memory that holding may take, in bytes.
    pub(crate) fn most(self) -> usize {
        match self {
            Self::Copy { most } => most,
            // The index is bounded by the size of the rings.
            Self::Release | Self::Discard => usize::MAX,
        }
    }

    /// The bound for a recording: no more than half of the memory that this process can get now. The allocator ends a
    /// process that exceeds a limit, and a control group kills it. The other half is for the rest of the program.
    pub(crate) fn for_a_recording(self) -> Self {
        let available =
            memory::available().map_or(usize::MAX, |bytes| usize::try_from(bytes / 2).unwrap_or(usize::MAX));
        Self::Copy { most: self.most().min(available) }
    }
}

impl Merge {
    /// Whether a ring is so full that the kernel may soon have no space. The limit is not a quarter, at which the
    /// kernel wakes a reader: in a small ring the fence's own events may fill a quarter.
    pub(crate) fn is_crowded(&self) -> bool {
        self.rings.cpu_rings.iter().any(|cpu_ring| cpu_ring.ring.used() > cpu_ring.ring.size() / 2)
    }

    /// Whether a ring has filled up so much while events were yielded that a refresh should come before the next one.
    #[inline(always)]
    pub(crate) fn is_rushed(&self) -> bool {
        self.stream.rushed
    }

    /// The CPUs of rings that hold events. All online CPUs write into a ring of no single CPU.
    pub(crate) fn writers(&mut self) -> impl Iterator<Item = u32> {
        // What was merged is held too.
        self.stream.sync();
        let cpu_rings = self.rings.cpu_rings.iter().zip(&self.stream.indexes);
        let holding = cpu_rings.filter(|(_, index)| index.len() > 0).map(|(cpu_ring, _)| cpu_ring.origin.cpu);
        let all = if holding.clone().any(|cpu| cpu == ANY_CPU) { machine::online_cpus().ok() } else { None };
        holding.filter(|cpu| *cpu != ANY_CPU).chain(all.into_iter().flatten())
    }

    /// Bytes of memory that holding takes now.
    pub(crate) fn memory(&self) -> usize {
        let cpu_rings = self.rings.cpu_rings.iter().map(|cpu_ring| cpu_ring.copies.memory());
        let indexes = self.stream.indexes.iter().map(Index::memory);
        let sequence = self.stream.sequence.as_ref().map_or(0, Tracker::memory);
        cpu_rings.chain(indexes).sum::<usize>() + memory_of(&self.stream.far) + sequence
    }

    /// Bytes that gaps released in doubt may still take when they are reported, and those that they take beside the
    /// bound: a list that grows exists twice for a moment.
    pub(super) fn reserved(&self) -> usize {
        let still = |sequence: &Tracker| sequence.most_memory() - sequence.memory() + Tracker::BESIDE;
        self.stream.sequence.as_ref().map_or(0, still)
    }

    /// Makes space in rings that held records fill beyond the mark, and in memory. Returns the largest key that must
    /// leave.
    pub(crate) fn make_room(&mut self, indexed: Indexed) -> Option<u64> {
        let most = self.when_full.most();
        self.free_unneeded(most);
        // A quarter stays free for new records while the consumer takes the released ones.
        let enough = most - most / 4;
        let mut memory = self.memory();
        if memory > enough {
            self.stream.free_spare();
            self.rings.cpu_rings.iter_mut().for_each(|cpu_ring| cpu_ring.copies.clear_spare());
            memory = self.memory();
        }
        let scarce = self.pause.filter(|_| matches!(self.when_full, WhenFull::Copy { .. }));
        // Dense numbers leave without a fence, until one is missing.
        let flows = self.stream.flows();
        self.stream.sync();
        // Events that leave free nothing until a whole chunk has left, and gaps between them take memory at once.
        let reserved = self.reserved();
        let mut release = None;
        let mut crowded = false;
        self.was_crowded |= self.is_crowded();
        let is_complete = self.rings.are_complete();
        for (cpu_ring, index) in self.rings.cpu_rings.iter_mut().zip(&mut self.stream.indexes) {
            let (tail, used, size) = (cpu_ring.ring.tail(), cpu_ring.ring.used(), cpu_ring.ring.size());
            let soon = scarce.map_or(0, |pause| written_within(SOON, index.found(), pause));
            let mark = self.mark.leaving(size, index.longest());
            // Events that may leave are not held: the consumer makes space by taking them.
            let is_out = flows || index.back().is_none_or(|back| self.stream.frontier.admits(back));
            // The rings of a recording need no free space.
            if used <= mark.min(size.saturating_sub(soon)) || is_out || is_complete {
                continue;
            }
            let is_above_mark = used > mark;
            match self.when_full {
                WhenFull::Discard => {}
                WhenFull::Copy { .. }
                    if memory + reserved + cpu_ring.copies.more(&cpu_ring.ring, index.cursor()) <= most =>
                {
                    memory += cpu_ring.copies.more(&cpu_ring.ring, index.cursor());
                    index.counts_mut().copied += cpu_ring.copies.take(&mut cpu_ring.ring, index.cursor());
                }
                // The ring still has space.
                WhenFull::Copy { .. } if !is_above_mark => {}
                // Copied records will leave, which frees memory for this ring.
                WhenFull::Copy { .. } if size as usize <= most / 2 => crowded = true,
                // Down to half the mark. Otherwise the next record would exceed it again.
                WhenFull::Copy { .. } | WhenFull::Release => {
                    release = release.max(index.largest_before(tail + used - mark / 2));
                }
            }
        }
        let counts = &mut self.stream.counts;
        (counts.memory, counts.most_memory) = (memory, counts.most_memory.max(memory));
        // Proven events of a recording leave first and free memory.
        let is_enough = is_complete && self.stream.top().is_some_and(|top| self.stream.frontier.admits(top.key));
        if (crowded || indexed.up_to().is_some() || memory > enough) && !is_enough {
            release = release.max(self.oldest_quarter());
        }
        let release = release?.min(indexed.up_to().unwrap_or(u64::MAX));
        self.stream.early_notice = Some(self.unproven(memory));
        Some(release)
    }

    /// Frees memory that was not needed for some refreshes, now and then.
    fn free_unneeded(&mut self, most: usize) {
        self.refreshed += 1;
        if self.refreshed == WINDOW {
            self.refreshed = 0;
            self.rings.cpu_rings.iter_mut().for_each(|cpu_ring| cpu_ring.copies.shrink());
            let mut memory = self.memory();
            for index in &mut self.stream.indexes {
                let before = index.memory();
                index.shrink(most.saturating_sub(memory));
                memory -= before - index.memory();
            }
            shrink(&mut self.stream.far, most.saturating_sub(memory));
        }
    }

    /// The key below or at which about a quarter of the held records lie.
    fn oldest_quarter(&self) -> Option<u64> {
        let far = self.stream.far.iter().step_by(SLOTS).map(|place| place.key);
        let mut marks: Vec<u64> = self.stream.indexes.iter().flat_map(|index| index.marks()).chain(far).collect();
        let quarter = marks.len() / 4;
        (!marks.is_empty()).then(|| *marks.select_nth_unstable(quarter).1)
    }

    /// The notice of an early release.
    pub(super) fn unproven(&self, memory: usize) -> EarlyRelease {
        let filled = |ring: &Ring| (ring.used() * 100 / ring.size()) as u8;
        let fullest = self.rings.cpu_rings.iter().max_by_key(|cpu_ring| filled(&cpu_ring.ring));
        let (cpu, filled) = fullest.map_or((0, 0), |cpu_ring| (cpu_ring.origin.cpu, filled(&cpu_ring.ring)));
        let most = if let WhenFull::Copy { most } = self.when_full { most } else { 0 };
        EarlyRelease { cpu, filled, memory, most, reserved: None }
    }
}
