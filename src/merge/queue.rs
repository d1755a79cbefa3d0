//! One ring's held places in key order, as the merge takes them.
//!
//! A ring is not sorted inside. A writer may be interrupted between drawing its key and reserving its place. Its record
//! then lies after the interrupt's record, which has a larger key. So a ring offers the smallest key that it has, not
//! its oldest record.
//!
//! A place whose key is not smaller than those before it is appended. Any other is *out of order*: it is put among the
//! last few places by shifting them. If it belongs farther away, or its key may be smaller than one of its ring in the
//! heap, it goes into a heap that all rings share. So the first places of the queue lie near the first bytes of the ring
//! that are not given back, and what is in the heap lies behind a place of the queue that is yielded later.

use crate::instrument::step;
use crate::merge::blocks::{Block, Blocks, Pieces};
use crate::merge::place::{Place, Tag};
use binary_heap_plus::{BinaryHeap, MinComparator};

/// Places of all rings that are out of order, and whose places in their queues are far away.
pub(crate) type Far = BinaryHeap<Place, MinComparator>;

/// If fewer of the longest records than these are a share, the places that a merge takes are counted, up to as many.
const FEW: usize = 64;

/// The part by which each refresh reduces the remembered length of the longest record. Half is left after 44 refreshes.
const FORGOTTEN: u64 = 64;

/// The queue of a ring.
#[derive(Debug)]
pub(crate) struct Queue {
    /// INVARIANT: sorted. Each place that comes before another and lies behind it in the ring was shifted over it.
    blocks: Blocks,
    /// The index of the ring among all.
    pub(crate) ring_index: u32,
    /// The key of the last place of the blocks, if there is any.
    back: u64,
    /// Entries of this ring in the shared heap, and an upper bound of their keys (exclusive). INVARIANT: each lies behind
    /// a place of the blocks that is yielded later.
    far: usize,
    far_end: u64,
    /// A loss that lies in no ring, after everything that the ring had when it was found. A merge copies it: it stays
    /// until it is yielded.
    pub(crate) loose: Option<Place>,
    /// Bytes of the places that were merged, as far as places have their length.
    pub(crate) merged: u64,
    /// Bytes of the longest record of recent refreshes.
    pub(crate) longest: u64,
    /// Bytes that are given back at a time.
    pub(crate) share: u64,
}

// All counts say what is in the queue: what the merge has taken out and not yielded yet is the array's. A loose loss is
// in both.
impl Queue {
    pub(crate) fn new(ring_index: usize) -> Self {
        Self {
            blocks: Blocks::new(),
            ring_index: ring_index as u32,
            back: 0,
            far: 0,
            far_end: 0,
            loose: None,
            merged: 0,
            longest: 0,
            share: 0,
        }
    }

    // What it has.

    /// Whether it has no place but those in the heap.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The smallest place, but for those in the heap.
    #[inline]
    pub(crate) fn front(&self) -> Option<Place> {
        self.blocks.front().copied()
    }

    /// The largest key. `None` if it is empty.
    pub(crate) fn back(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.back)
    }

    /// The places, but for those in the heap.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.blocks.iter()
    }

    /// How many events it has.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.places() + usize::from(self.loose.is_some())
    }

    /// How many places of the ring it has, also in the heap.
    #[inline]
    pub(crate) fn places(&self) -> usize {
        self.blocks.len() + self.far
    }

    // What comes in.

    /// Adds a place, which lies behind all others of its ring. None of these may be in the array: a place that is put back
    /// comes before all others.
    #[inline]
    pub(crate) fn add(&mut self, place: Place, far: &mut Far) {
        if self.blocks.is_empty() || place.key >= self.back {
            self.back = place.key;
            return self.blocks.push(place);
        }
        // Of equal keys a merge takes the queue's before the heap's. This one lies behind those in the heap, of whose
        // keys far_end is all that is known.
        if (self.far > 0 && place.key < self.far_end) || !self.blocks.shift_in(place) {
            // While nothing of this ring is in the heap, far_end is that of places that have left it.
            self.far_end = place.key.saturating_add(1).max(if self.far > 0 { self.far_end } else { 0 });
            self.far += 1;
            far.push(place);
        }
    }

    /// For a walk that fills a block itself: keys that are not smaller than the first are appended, and those below the
    /// second are not for it.
    #[inline]
    pub(crate) fn bounds(&self) -> (u64, u64) {
        // The last key of an empty queue is that of a place that has left it, and so is far_end while nothing is in the
        // heap.
        (if self.blocks.is_empty() { 0 } else { self.back }, if self.far == 0 { 0 } else { self.far_end })
    }

    /// The block to fill, from which place on, and the first place in it that is held.
    #[inline]
    pub(crate) fn unfilled(&mut self) -> (&mut Block, usize, usize) {
        self.blocks.unfilled()
    }

    /// Records that a walk has put so many places into the block, and the largest key of all.
    #[inline]
    pub(crate) fn filled(&mut self, places: usize, back: u64) {
        self.blocks.filled(places);
        self.back = back;
    }

    // What a merge takes out of it, and puts back.

    /// The places in order, piece by piece, as many as are merged at a time.
    #[inline]
    pub(super) fn pieces(&self) -> Pieces<'_> {
        self.blocks.pieces(self.part())
    }

    /// Prepares for a merge: what was merged before is yielded.
    #[inline]
    pub(crate) fn tidy(&mut self) {
        self.blocks.tidy();
    }

    /// Records what a merge took out of the queue, and what it left.
    #[inline]
    pub(super) fn leave(&mut self, left: usize, bytes: u64) {
        self.blocks.leave(left);
        self.merged += bytes;
    }

    /// A place of the heap was merged.
    pub(super) fn far_merged(&mut self, place: Place) {
        self.far -= 1;
        self.merged += place.size();
    }

    /// Puts back a place that was merged and not yielded.
    pub(super) fn put_back(&mut self, place: Place, far: &mut Far) {
        if place.tag() == Tag::LOOSE {
            return;
        }
        self.merged -= place.size();
        // Places come back last one first. So one that the blocks did not give last came from the heap.
        if !self.blocks.put_back(place) {
            far.push(place);
            self.far += 1;
        }
    }

    /// How many places to merge at a time: about as many bytes as are given back to the kernel at a time. So it lacks no
    /// more than twice as many, or a record more.
    #[inline]
    fn part(&self) -> usize {
        let part = self.share / self.longest.max(1);
        if part >= FEW as u64 { part as usize } else { self.counted_part() }
    }

    /// [`Queue::part`] by the records themselves: one long record says little about the others.
    #[cold]
    fn counted_part(&self) -> usize {
        let mut bytes = 0;
        let part = self.blocks.iter().take(FEW).take_while(|place| {
            step();
            // A place without a length is one of a record that is too long for it, or of bytes that were skipped.
            bytes += if place.size() > 0 { place.size() } else { self.share };
            bytes <= self.share
        });
        // A first record longer than the share has to leave, too.
        part.count().max(1)
    }

    // Time, other rings, and memory that is given back after a burst.

    /// A refresh begins: the length of an unusually long record fades over time.
    pub(crate) fn fade(&mut self) {
        self.longest -= self.longest / FORGOTTEN;
    }

    /// A ring came before this one. The places in the heap are moved by the caller. None is in the array.
    pub(crate) fn move_ring_index(&mut self) {
        self.ring_index += 1;
        self.blocks.move_ring_index();
        self.loose = self.loose.map(|place| place.moved(1));
    }

    /// How many blocks it has.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.blocks()
    }

    /// Frees memory that was not needed since the last call. None of its places may be in the array.
    pub(crate) fn shrink(&mut self) {
        self.blocks.shrink();
    }
}
