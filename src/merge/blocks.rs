//! Places in key order, in blocks: growing moves nothing, and memory is freed block by block.

use crate::instrument::step;
use crate::merge::place::Place;
use std::collections::VecDeque;
use std::slice;

/// Places of a block.
pub(crate) const SLOTS: usize = 128;

/// The initial capacity of each queue's list of blocks.
const BLOCKS: usize = 8;

/// How far back a place is put among those before it by shifting: places, and bytes of the ring. So a place is
/// overtaken only by such as lie near behind it in the ring, and the tail is near the first place.
pub(crate) const REACH: usize = 8;
pub(crate) const REACH_BYTES: i64 = 512;

pub(crate) type Block = [Place; SLOTS];

fn block() -> Box<Block> {
    Box::new([Place::NONE; SLOTS])
}

/// The places of a queue, sorted by key and then by position.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// INVARIANT: not empty. Behind those in use come spare ones.
    blocks: VecDeque<Box<Block>>,
    /// The first held place and the end, counted from the first block's begin. Those before `taken` are merged; their
    /// blocks stay until [`Blocks::tidy`], so that places can be put back.
    taken: usize,
    end: usize,
    /// The most blocks that were used at a time since [`Blocks::shrink`].
    peak: usize,
}

impl Blocks {
    pub(crate) fn new() -> Self {
        let mut blocks = VecDeque::with_capacity(BLOCKS);
        blocks.push_back(block());
        Self { blocks, taken: 0, end: 0, peak: 1 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.end
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end - self.taken
    }

    /// Blocks in use: one at least.
    fn used(&self) -> usize {
        self.end.div_ceil(SLOTS).max(1)
    }

    /// How many blocks it has, with the spare ones.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Frees the spare blocks that were not needed since the last call.
    pub(crate) fn shrink(&mut self) {
        // First, so that the blocks of merged places are spare, too.
        self.tidy();
        // None in use is freed: the peak counts each block that was filled.
        self.blocks.truncate(self.peak);
        self.blocks.shrink_to(BLOCKS);
        self.peak = self.used();
    }

    /// Forgets merged places: from now on none is put back. An empty queue begins its block again, while the caches
    /// have it.
    #[inline]
    pub(crate) fn tidy(&mut self) {
        if self.is_empty() {
            (self.taken, self.end) = (0, 0);
        } else if self.taken >= SLOTS {
            self.pass_blocks();
        }
    }

    #[cold]
    #[inline(never)]
    fn pass_blocks(&mut self) {
        let blocks = self.taken / SLOTS;
        // They are kept as spare ones: shrink frees those that stay unused.
        self.blocks.rotate_left(blocks);
        (self.taken, self.end) = (self.taken - blocks * SLOTS, self.end - blocks * SLOTS);
    }

    /// The block to fill, from which place on, and the first place in it that is held.
    #[inline]
    pub(crate) fn unfilled(&mut self) -> (&mut Block, usize, usize) {
        let (block, at) = (self.end / SLOTS, self.end % SLOTS);
        if block == self.blocks.len() {
            self.blocks.push_back(self::block());
        }
        self.peak = self.peak.max(block + 1);
        (&mut self.blocks[block], at, self.taken.saturating_sub(block * SLOTS).min(at))
    }

    /// Records that so many more places of the unfilled block are filled.
    #[inline]
    pub(crate) fn filled(&mut self, places: usize) {
        self.end += places;
    }

    /// Puts a place behind all others.
    #[inline]
    pub(crate) fn push(&mut self, place: Place) {
        let (block, at, _) = self.unfilled();
        block[at] = place;
        self.end += 1;
    }

    /// A held place, or one that was merged since [`Blocks::tidy`].
    #[inline]
    fn at(&self, at: usize) -> &Place {
        &self.blocks[at / SLOTS][at % SLOTS]
    }

    /// The smallest place.
    #[inline]
    pub(crate) fn front(&self) -> Option<&Place> {
        (!self.is_empty()).then(|| self.at(self.taken))
    }

    /// Puts a place among those before it, if its place is near enough. Whether it is: also if it has to be the first
    /// of all.
    #[cold]
    #[inline(never)]
    pub(crate) fn shift_in(&mut self, place: Place) -> bool {
        let mut to = self.end;
        while to > self.taken && self.at(to - 1).key > place.key {
            step();
            if self.end - to == REACH || place.ahead_of(*self.at(to - 1)) > REACH_BYTES {
                return false;
            }
            to -= 1;
        }
        // The shift needs one more slot, which may begin another block.
        self.push(place);
        for at in (to..self.end - 1).rev() {
            let before = *self.at(at);
            self.blocks[(at + 1) / SLOTS][(at + 1) % SLOTS] = before;
        }
        self.blocks[to / SLOTS][to % SLOTS] = place;
        true
    }

    /// The held places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Place> {
        (self.taken..self.end).map(|at| self.at(at))
    }

    /// The places in order, piece by piece. `most`: how many, at least one.
    #[inline]
    pub(crate) fn pieces(&self, most: usize) -> Pieces<'_> {
        let mut pieces = Pieces { piece: [].iter(), queue: Some(self), end: self.taken, most };
        pieces.advance(self);
        pieces
    }

    /// Records how many places remain after a merge.
    pub(crate) fn leave(&mut self, places: usize) {
        self.taken = self.end - places;
    }

    /// Puts back the place that was merged last, if it is this one.
    pub(crate) fn put_back(&mut self, place: Place) -> bool {
        // Its slot still has it: only tidy lets go of blocks. One from the heap is in no slot.
        let before = self.taken.checked_sub(1).filter(|before| *self.at(*before) == place);
        before.map(|before| self.taken = before).is_some()
    }

    /// Counts the ring of each place anew.
    pub(crate) fn move_ring_index(&mut self) {
        for at in self.taken..self.end {
            let place = &mut self.blocks[at / SLOTS][at % SLOTS];
            *place = place.moved(1);
        }
    }
}

/// What is left of a queue while it is merged.
#[derive(Debug, Clone)]
pub(crate) struct Pieces<'a> {
    /// The rest of a block.
    pub(crate) piece: slice::Iter<'a, Place>,
    queue: Option<&'a Blocks>,
    /// Where that rest ends in the queue.
    end: usize,
    /// How many more places there are to be.
    most: usize,
}

/// What comes after a piece.
pub(crate) enum After<'a> {
    /// Another piece, which begins with this place.
    Piece(&'a Place),
    /// This place, but no more are to be taken.
    Enough(&'a Place),
    Nothing,
}

impl<'a> Pieces<'a> {
    /// Those of no queue.
    pub(crate) fn none() -> Self {
        Self { piece: [].iter(), queue: None, end: 0, most: 0 }
    }

    /// The next piece, after this one is used up.
    #[cold]
    #[inline(never)]
    pub(crate) fn refill(&mut self) -> After<'a> {
        match self.queue.filter(|queue| self.end < queue.end) {
            None => After::Nothing,
            Some(queue) if self.most == 0 => After::Enough(queue.at(self.end)),
            Some(queue) => {
                self.advance(queue);
                self.piece.as_slice().first().map_or(After::Nothing, After::Piece)
            }
        }
    }

    #[inline]
    fn advance(&mut self, queue: &'a Blocks) {
        let (block, at) = (self.end / SLOTS, self.end % SLOTS);
        let places = self.most.min(SLOTS - at).min(queue.end - self.end);
        // Behind a block that is full there may be no other.
        if places > 0 {
            self.piece = queue.blocks[block][at..at + places].iter();
        }
        (self.end, self.most) = (self.end + places, self.most - places);
    }

    /// How many places are left.
    pub(crate) fn len(&self) -> usize {
        self.piece.len() + self.queue.map_or(0, |queue| queue.end - self.end)
    }
}
