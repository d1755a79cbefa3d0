//! Indexing a recording in parts, if the index of the whole would exceed the memory bound.

use crate::order::floors::Floors;
use crate::order::index::{Far, Index, Indexing, memory_of};
use crate::order::merge::{Indexed, Merge};
use crate::order::queue::BLOCK;
use crate::order::stream::Stream;

/// The most bytes of memory that a byte of a ring takes: a record of 8 bytes that is out of order and has a note, while
/// its lists grow.
const DEAREST: u64 = 32;

/// How many bytes of memory a ring's index grows before the rings are compared again.
const STEP: usize = 64 << 10;

impl Merge {
    /// Whether the rings are a recording that must be indexed in parts. If so, also computes the smallest keys of each
    /// ring's parts.
    pub(super) fn is_in_parts(&mut self) -> bool {
        if self.floors.is_none() && self.rings.are_complete() {
            // This may be the first refresh, before which the heads are unknown.
            for cpu_ring in &mut self.rings.cpu_rings {
                let _ = cpu_ring.ring.refresh();
            }
            let bytes: u64 =
                self.rings.cpu_rings.iter().map(|cpu_ring| cpu_ring.ring.head() - cpu_ring.ring.tail()).sum();
            if bytes.saturating_mul(DEAREST) > self.when_full.most() as u64 {
                self.floors = Some(Floors::of(&self.rings.cpu_rings, &self.stream.keys));
            }
        }
        self.floors.is_some()
    }

    /// Indexes as much as fits into the memory, always in the ring with the smallest keys left. So few events are held
    /// that another ring keeps from leaving. Keys smaller than all that are left are proven.
    pub(super) fn index_in_parts(&mut self) -> Indexed {
        let most = self.when_full.most();
        // Another ring may need it.
        self.stream.free_spare();
        let mut all = self.memory() + self.reserved();
        let step = (most / 2 / self.rings.cpu_rings.len()).clamp(BLOCK, STEP);
        // A part of each ring: a ring without held events says nothing about its keys.
        for ring_index in 0..self.rings.cpu_rings.len() {
            if self.stream.indexes[ring_index].len() == 0 {
                self.index_further(ring_index, &mut all, step);
            }
        }
        while let Some((floor, ring_index)) = self.lowest() {
            if !self.index_further(ring_index, &mut all, step) {
                self.stream.frontier.prove_below(floor);
                return Indexed::UpTo(self.left().filter_map(|(index, _)| index.largest()).min().unwrap_or(u64::MAX));
            }
        }
        Indexed::Whole
    }

    /// Indexes one more part of a ring, if it fits into the memory. Returns whether it did. `all` are the bytes that
    /// all rings take.
    fn index_further(&mut self, ring_index: usize, all: &mut usize, step: usize) -> bool {
        let Stream { keys, indexes, far, .. } = &mut self.stream;
        let (cpu_ring, index) = (&mut self.rings.cpu_rings[ring_index], &mut indexes[ring_index]);
        let memory = |index: &Index, far: &Far| index.memory() + memory_of(far);
        let (cursor, others, mut more) = (index.cursor(), *all - memory(index, far), step);
        let most = self.when_full.most().saturating_sub(others);
        // A list may have to grow by more than one part. It gets no more than necessary, because the other rings need
        // the rest.
        loop {
            let some = most.min(memory(index, far).saturating_add(more));
            if index.refresh(cpu_ring, Indexing { keys, far, most: some }) || index.cursor() > cursor || some == most {
                break;
            }
            more = more.saturating_mul(2);
        }
        *all = others + memory(index, far);
        index.cursor() > cursor
    }

    /// Of the rings that are not completely indexed, the one with the smallest keys left, and a lower bound of those
    /// keys.
    fn lowest(&self) -> Option<(u64, usize)> {
        let floors = self.floors.as_ref()?;
        let floor = |(index, ring_index): (&Index, usize)| {
            // An event without a key of its own has the key of the record before it.
            let floor = floors.behind(ring_index, index.cursor()).min(index.before().unwrap_or(0));
            (floor, index.largest(), ring_index)
        };
        self.left().map(floor).min().map(|(floor, _, ring_index)| (floor, ring_index))
    }

    /// The rings that are not completely indexed.
    fn left(&self) -> impl Iterator<Item = (&Index, usize)> {
        let all = self.rings.cpu_rings.iter().zip(&self.stream.indexes).enumerate();
        all.filter(|(_, (cpu_ring, index))| index.cursor() < cpu_ring.ring.head())
            .map(|(ring_index, (_, index))| (index, ring_index))
    }
}
