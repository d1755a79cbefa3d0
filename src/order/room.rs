//! Making room: how held records leave a full ring, and the memory they take.

use crate::order::Full;
use crate::order::dense::Dense;
use crate::order::event::Unproven;
use crate::order::index::Index;
use crate::order::merge::{Indexed, Merge};
use crate::ring::Ring;

impl Full {
    /// The most memory that holding may take, in bytes.
    pub(crate) fn most(self) -> usize {
        match self {
            Self::Copy { most } => most,
            // No more than there is in the rings, and that is bounded by them.
            Self::Release | Self::Discard => usize::MAX,
        }
    }
}

impl Merge {
    /// Bytes of memory that holding takes now.
    pub(crate) fn memory(&self) -> usize {
        let lanes = self.rings.lanes.iter().map(|lane| lane.copies.memory());
        let indexes = self.stream.indexes.iter().map(Index::memory);
        let sequence = self.stream.sequence.as_ref().map_or(0, Dense::memory);
        lanes.chain(indexes).sum::<usize>() + self.stream.pool.memory() + sequence
    }

    /// Bytes that gaps may still take which are given up in doubt, when they are told of.
    pub(super) fn reserved(&self) -> usize {
        self.stream.sequence.as_ref().map_or(0, |sequence| sequence.most_memory() - sequence.memory())
    }

    /// Makes room in rings that held records fill beyond the mark, and in memory. Gives the largest key that must
    /// leave.
    pub(crate) fn make_room(&mut self, indexed: Indexed) -> Option<u64> {
        if self.stream.pool.looked() {
            self.stream.indexes.iter_mut().for_each(Index::shrink);
            self.rings.lanes.iter_mut().for_each(|lane| lane.copies.shrink());
        }
        let most = self.full.most();
        // A quarter is left for what comes while the consumer takes what is let out.
        let enough = most - most / 4;
        let mut memory = self.memory();
        if memory > enough {
            self.stream.pool.clear();
            self.rings.lanes.iter_mut().for_each(|lane| lane.copies.clear_spare());
            memory = self.memory();
        }
        // Dense numbers are let out by themselves, until one is missing.
        let flows = self.stream.sequence.is_some() && self.stream.pick();
        // Events that leave free nothing before a whole chunk is passed, and gaps between them take memory at once.
        let reserved = self.reserved();
        let mut release = None;
        let mut crowded = false;
        let is_complete = self.rings.are_complete();
        for (lane, index) in self.rings.lanes.iter_mut().zip(&mut self.stream.indexes) {
            let (tail, used, size) = (lane.ring.tail(), lane.ring.head() - lane.ring.tail(), lane.ring.size());
            let mark = self.mark.leaving(size, index.longest());
            // Events that are let out are not held: the consumer makes room by taking them.
            let is_out = flows || index.back().is_none_or(|back| self.stream.frontier.admits(back));
            // Nobody writes into a recording for whom there would have to be room.
            if used <= mark || is_out || is_complete {
                continue;
            }
            index.counts_mut().pressed += 1;
            match self.full {
                Full::Discard => {}
                Full::Copy { .. } if memory + reserved + lane.copies.more(&lane.ring, index.cursor()) <= most => {
                    memory += lane.copies.more(&lane.ring, index.cursor());
                    index.counts_mut().copied += lane.copies.take(&mut lane.ring, index.cursor());
                }
                // Copied records will leave, and then there is memory for this.
                Full::Copy { .. } if size as usize <= most / 2 => crowded = true,
                // Down to half the mark, or the next record would press again.
                Full::Copy { .. } | Full::Release => {
                    release = release.max(index.largest_before(tail + used - mark / 2));
                }
            }
        }
        let stats = &mut self.stream.stats;
        (stats.memory, stats.most_memory) = (memory, stats.most_memory.max(memory));
        // Of a recording what is proven leaves first, and makes room.
        let is_enough = is_complete && self.stream.top().is_some_and(|top| self.stream.frontier.admits(top.key));
        if (crowded || indexed.up_to().is_some() || memory > enough) && !is_enough {
            release = release.max(self.oldest_quarter());
        }
        let release = release?.min(indexed.up_to().unwrap_or(u64::MAX));
        self.stream.pressed = Some(self.unproven(memory));
        Some(release)
    }

    /// The key up to which about a quarter of what is held lies.
    fn oldest_quarter(&self) -> Option<u64> {
        let mut marks: Vec<u64> = self.stream.indexes.iter().flat_map(|index| index.marks()).collect();
        let quarter = marks.len() / 4;
        (!marks.is_empty()).then(|| *marks.select_nth_unstable(quarter).1)
    }

    /// Why records are let out early.
    fn unproven(&self, memory: usize) -> Unproven {
        let filled = |ring: &Ring| ((ring.head() - ring.tail()) * 100 / ring.size()) as u8;
        let fullest = self.rings.lanes.iter().max_by_key(|lane| filled(&lane.ring));
        let (cpu, filled) = fullest.map_or((0, 0), |lane| (lane.origin.cpu, filled(&lane.ring)));
        let most = if let Full::Copy { most } = self.full { most } else { 0 };
        Unproven { cpu, filled, memory, most }
    }
}
