//! Looking at a recording in parts, where the index of all of it would take more memory than holding may.

use crate::order::floors::Floors;
use crate::order::index::Index;
use crate::order::merge::{Indexed, Merge};
use crate::order::run::BLOCK;
use crate::order::stream::Stream;

/// Bytes of memory that a byte of a ring takes at most: a record of 8 bytes that is out of order, and of which something is noted, while
/// the lists grow that it is in.
const DEAREST: u64 = 32;

/// A ring is indexed further by so many bytes of memory, before it is seen which one holds all others up.
const STEP: usize = 64 << 10;

impl Merge {
    /// Whether the rings are a recording that must be looked at in parts. Then also finds what each of them has from where on.
    pub(super) fn is_in_parts(&mut self) -> bool {
        if self.floors.is_none() && self.rings.are_complete() {
            // Heads are known from the first refresh on, and this may be it.
            for lane in &mut self.rings.lanes {
                let _ = lane.ring.refresh();
            }
            let bytes: u64 = self.rings.lanes.iter().map(|lane| lane.ring.head() - lane.ring.tail()).sum();
            if bytes.saturating_mul(DEAREST) > self.when_full.most() as u64 {
                self.floors = Some(Floors::of(&self.rings.lanes, &self.stream.keys));
            }
        }
        self.floors.is_some()
    }

    /// Indexes as much as there is memory for, always of the ring that has the smallest keys left: then few are held that a ring does not
    /// let out. What is smaller than all that is left is proven.
    pub(super) fn index_in_parts(&mut self) -> Indexed {
        let most = self.when_full.most();
        // What is spare would go to the first ring that asks.
        self.stream.pool.clear();
        let mut all = self.memory() + self.reserved();
        let step = (most / 2 / self.rings.lanes.len()).clamp(BLOCK, STEP);
        // Something of each: a ring of which nothing is held says nothing of its keys.
        for rank in 0..self.rings.lanes.len() {
            if self.stream.indexes[rank].len() == 0 {
                self.index_further(rank, &mut all, step);
            }
        }
        while let Some((floor, rank)) = self.lowest() {
            if !self.index_further(rank, &mut all, step) {
                self.stream.frontier.prove_below(floor);
                return Indexed::UpTo(self.left().filter_map(|(index, _)| index.largest()).min().unwrap_or(u64::MAX));
            }
        }
        Indexed::Whole
    }

    /// Indexes a step of a ring, if there is memory for it. Says whether it did. `all` are bytes that all rings take.
    fn index_further(&mut self, rank: usize, all: &mut usize, step: usize) -> bool {
        let Stream { keys, indexes, pool, .. } = &mut self.stream;
        let (lane, index) = (&mut self.rings.lanes[rank], &mut indexes[rank]);
        let (cursor, others, mut more) = (index.cursor(), *all - index.memory(), step);
        let most = self.when_full.most().saturating_sub(others);
        // A list may have to grow by more than a step, and no more than it takes: the other rings need what is left.
        loop {
            let some = most.min(index.memory().saturating_add(more));
            if index.refresh(lane, keys, pool, some) || index.cursor() > cursor || some == most {
                break;
            }
            more = more.saturating_mul(2);
        }
        *all = others + index.memory();
        index.cursor() > cursor
    }

    /// Of the rings that are not indexed whole the one with the smallest keys left, and no key that is left is smaller than this.
    fn lowest(&self) -> Option<(u64, usize)> {
        let floors = self.floors.as_ref()?;
        let floor = |(index, rank): (&Index, usize)| {
            // What has no key of its own has that of the record before it.
            let floor = floors.behind(rank, index.cursor()).min(index.before().unwrap_or(0));
            (floor, index.largest(), rank)
        };
        self.left().map(floor).min().map(|(floor, _, rank)| (floor, rank))
    }

    /// The rings that are not indexed whole.
    fn left(&self) -> impl Iterator<Item = (&Index, usize)> {
        let all = self.rings.lanes.iter().zip(&self.stream.indexes).enumerate();
        all.filter(|(_, (lane, index))| index.cursor() < lane.ring.head()).map(|(rank, (_, index))| (index, rank))
    }
}
