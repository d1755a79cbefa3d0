//! A queue in blocks: growing moves nothing, and memory is freed block by block.

use crate::ring::Header;
use std::collections::VecDeque;

/// One part of a ring: its key and its header. Its position follows from the lengths of the slots before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) key: u64,
    pub(crate) header: Header,
}

/// Slots of a block.
pub(crate) const SLOTS: usize = 128;

/// Bytes of a block.
pub(crate) const BLOCK: usize = SLOTS * size_of::<Slot>();

/// The initial capacity of each queue's list of blocks.
const BLOCKS: usize = 8;

/// The initial bytes of each queue.
pub(crate) const FIXED: usize = BLOCK + BLOCKS * size_of::<Block>();

/// How many refreshes pass between two times at which spare blocks are freed.
const WINDOW: u32 = 32;

type Block = Box<[Slot; SLOTS]>;

fn block() -> Block {
    Box::new([Slot { key: 0, header: Header::NONE }; SLOTS])
}

/// The unused blocks of all rings.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    spare: Vec<Block>,
    in_use: usize,
    /// The most blocks in use since the window began.
    peak: usize,
    refreshes: u32,
}

impl Pool {
    fn take(&mut self) -> Block {
        self.in_use += 1;
        self.peak = self.peak.max(self.in_use);
        self.spare.pop().unwrap_or_else(block)
    }

    fn give(&mut self, block: Block) {
        self.in_use -= 1;
        self.spare.push(block);
    }

    /// Bytes of the unused blocks.
    pub(crate) fn memory(&self) -> usize {
        self.spare.len() * BLOCK + self.spare.capacity() * size_of::<Block>()
    }

    /// Frees all spare blocks.
    pub(crate) fn clear(&mut self) {
        self.spare = Vec::new();
    }

    /// Counts a refresh. At the end of each window, frees the blocks that the window did not need, and returns true.
    pub(crate) fn refreshed(&mut self) -> bool {
        self.refreshes += 1;
        if self.refreshes < WINDOW {
            return false;
        }
        self.spare.truncate(self.peak.saturating_sub(self.in_use));
        self.spare.shrink_to(self.peak);
        self.refreshes = 0;
        self.peak = self.in_use;
        true
    }
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Run {
    /// The oldest slots: those from `taken` on, and before `first_end`.
    first: Block,
    taken: usize,
    first_end: usize,
    /// The later blocks. The last is filled up to `end`. INVARIANT: if there are any, `first_end` is `SLOTS`, `taken` is less, and all but
    /// the last are full.
    blocks: VecDeque<Block>,
    end: usize,
}

impl Run {
    pub(crate) fn new() -> Self {
        Self { first: block(), taken: 0, first_end: 0, blocks: VecDeque::with_capacity(BLOCKS), end: 0 }
    }

    /// Whether there are no slots.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.first_end
    }

    /// How many slots can be pushed before another block is needed.
    #[inline]
    pub(crate) fn free(&self) -> usize {
        SLOTS - if self.blocks.is_empty() { self.first_end } else { self.end }
    }

    /// Bytes that the queue takes.
    pub(crate) fn memory(&self) -> usize {
        (1 + self.blocks.len()) * BLOCK + self.blocks.capacity() * size_of::<Block>()
    }

    /// Bytes that another block takes, with the list of blocks if that must grow: while it grows, the old and the new list both exist.
    pub(crate) fn more(&self) -> usize {
        let list = if self.blocks.len() == self.blocks.capacity() { 2 * self.blocks.capacity() } else { 0 };
        BLOCK + list * size_of::<Block>()
    }

    /// Frees memory that is not needed now.
    pub(crate) fn shrink(&mut self) {
        self.blocks.shrink_to(BLOCKS);
    }

    /// Starts its block again, if there are no slots.
    pub(crate) fn rewind(&mut self) {
        if self.is_empty() {
            (self.taken, self.first_end) = (0, 0);
        }
    }

    /// The next slots to fill: at least one. [`Run::filled`] says how many were filled.
    #[inline]
    pub(crate) fn spare(&mut self, pool: &mut Pool) -> &mut [Slot] {
        if self.free() == 0 {
            self.blocks.push_back(pool.take());
            self.end = 0;
        }
        match self.blocks.back_mut() {
            Some(last) => &mut last[self.end..],
            None => &mut self.first[self.first_end..],
        }
    }

    /// Records that `slots` of the spare slots are filled.
    #[inline]
    pub(crate) fn filled(&mut self, slots: usize) {
        if self.blocks.is_empty() {
            self.first_end += slots;
        } else {
            self.end += slots;
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: Slot, pool: &mut Pool) {
        self.spare(pool)[0] = slot;
        self.filled(1);
    }

    /// The oldest slot.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&Slot> {
        self.nth(0)
    }

    /// A slot of the oldest block, `behind` slots after the oldest.
    #[inline(always)]
    pub(crate) fn nth(&self, behind: usize) -> Option<&Slot> {
        let at = self.taken + behind;
        // The remainder changes nothing. It shows the compiler that the slot lies in the block.
        if at < self.first_end { Some(&self.first[at % SLOTS]) } else { None }
    }

    /// Takes the oldest slot, if the next one lies in the same block.
    #[inline(always)]
    pub(crate) fn step(&mut self) {
        debug_assert!(self.taken + 1 < self.first_end);
        self.taken += 1;
    }

    /// The slots of the oldest block.
    #[inline(always)]
    pub(crate) fn first(&self) -> &[Slot] {
        self.first.get(self.taken..self.first_end).unwrap_or_default()
    }

    /// Takes the oldest slot.
    #[inline(always)]
    pub(crate) fn pop(&mut self, pool: &mut Pool) {
        self.advance(1, pool);
    }

    /// Takes the `slots` oldest slots of the oldest block.
    #[inline(always)]
    pub(crate) fn advance(&mut self, slots: usize, pool: &mut Pool) {
        self.taken = self.first_end.min(self.taken + slots);
        if self.taken == SLOTS {
            self.next_block(pool);
        }
    }

    #[cold]
    #[inline(never)]
    fn next_block(&mut self, pool: &mut Pool) {
        self.taken = 0;
        self.first_end = 0;
        if let Some(block) = self.blocks.pop_front() {
            pool.give(std::mem::replace(&mut self.first, block));
            self.first_end = if self.blocks.is_empty() { self.end } else { SLOTS };
        }
    }

    /// The slots in pieces, oldest first. No piece is empty.
    fn pieces(&self) -> impl DoubleEndedIterator<Item = &[Slot]> {
        let first = Some(self.first()).filter(|first| !first.is_empty());
        let last = self.blocks.len().wrapping_sub(1);
        let end = move |at| if at == last { self.end } else { SLOTS };
        first.into_iter().chain(self.blocks.iter().enumerate().map(move |(at, block)| &block[..end(at)]))
    }

    /// The slots, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Slot> {
        self.pieces().flatten()
    }

    /// The first slot of each block, oldest first.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = &Slot> {
        self.pieces().filter_map(<[Slot]>::first)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slot(key: u64) -> Slot {
        Slot { key, header: Header::NONE }
    }

    #[test]
    fn first_in_first_out_whatever_the_blocks() {
        let (mut run, mut pool) = (Run::new(), Pool::default());
        let (mut pushed, mut popped) = (0, 0);
        // A queue whose length swings between empty and several blocks.
        for turn in 0..40u64 {
            for _ in 0..turn * 37 % 500 {
                run.push(slot(pushed), &mut pool);
                pushed += 1;
            }
            assert!(run.iter().map(|slot| slot.key).eq(popped..pushed));
            for _ in 0..turn * 53 % 500 {
                assert_eq!(run.front().map(|slot| slot.key), (popped < pushed).then_some(popped));
                run.pop(&mut pool);
                popped = pushed.min(popped + 1);
            }
            assert_eq!((run.iter().count() as u64, run.is_empty()), (pushed - popped, pushed == popped));
            assert_eq!(run.blocks.len(), pool.in_use);
            let firsts: Vec<_> = run.firsts().map(|slot| slot.key).collect();
            let blocks = pool.in_use + usize::from(!run.is_empty());
            assert!(firsts.len() == blocks && firsts.first().is_none_or(|first| *first == popped));
            assert!(firsts.windows(2).skip(1).all(|pair| pair[1] - pair[0] == SLOTS as u64));
        }
    }

    #[test]
    fn what_a_burst_took_is_given_back() {
        let (mut run, mut pool) = (Run::new(), Pool::default());
        let blocks = 50;
        (0..(blocks * SLOTS) as u64).for_each(|key| run.push(slot(key), &mut pool));
        while run.iter().nth(1).is_some() {
            run.pop(&mut pool);
        }
        assert!(pool.memory() + run.memory() > blocks * BLOCK, "kept for a while");
        // The burst was in the first window.
        (0..2 * WINDOW).filter(|_| pool.refreshed()).for_each(|_| run.shrink());
        assert_eq!(run.memory(), FIXED);
        assert!(pool.memory() < 100, "{}", pool.memory());
        // A load that needs as much in each window keeps what it needs.
        for _ in 0..10 * WINDOW {
            (0..3 * SLOTS as u64).for_each(|key| run.push(slot(key), &mut pool));
            (0..3 * SLOTS).for_each(|_| run.pop(&mut pool));
            pool.refreshed();
            assert!(pool.memory() >= 2 * BLOCK);
        }
    }

    /// Before a block is taken, what that takes is known; behind a burst all of it is in the pool, until it is given back.
    #[test]
    fn memory_is_what_blocks_and_their_lists_take() {
        let (mut run, mut pool) = (Run::new(), Pool::default());
        assert_eq!((run.memory(), pool.memory()), (FIXED, 0));
        let blocks = 3 * BLOCKS;
        for _ in 0..blocks {
            (0..run.free()).for_each(|_| run.push(slot(1), &mut pool));
            let (before, more, capacity) = (run.memory(), run.more(), run.blocks.capacity());
            run.push(slot(1), &mut pool);
            let list = run.blocks.capacity() * size_of::<Block>();
            let grew = run.blocks.capacity() > capacity;
            assert_eq!(more, BLOCK + if grew { list } else { 0 });
            assert_eq!(run.memory() - before, BLOCK + if grew { list / 2 } else { 0 });
        }
        while !run.is_empty() {
            run.pop(&mut pool);
        }
        assert_eq!(pool.memory(), blocks * BLOCK + pool.spare.capacity() * size_of::<Block>());
        let once: Vec<u32> = (1..=3 * WINDOW).filter(|_| pool.refreshed()).collect();
        assert_eq!(once, [WINDOW, 2 * WINDOW, 3 * WINDOW]);
        assert!(pool.memory() < BLOCK);
        let block = pool.take();
        pool.give(block);
        assert!(pool.memory() >= BLOCK);
        pool.clear();
        assert_eq!(pool.memory(), 0);
    }
}
