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

type Block = Box<[Slot; SLOTS]>;

fn block() -> Block {
    Box::new([Slot { key: 0, header: Header::NONE }; SLOTS])
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Run {
    /// The oldest slots: those from `taken` on, and before `first_end`.
    first: Block,
    taken: usize,
    first_end: usize,
    /// The later blocks, `used` of them, and then spare ones. The last used one is filled up to `end`. INVARIANT: if any is used, `first_end`
    /// is `SLOTS`, `taken` is less, and all used ones but the last are full.
    blocks: VecDeque<Block>,
    used: usize,
    end: usize,
    /// The most later blocks that were used at a time since [`Run::shrink`].
    peak: usize,
}

impl Run {
    pub(crate) fn new() -> Self {
        Self {
            first: block(),
            taken: 0,
            first_end: 0,
            blocks: VecDeque::with_capacity(BLOCKS),
            used: 0,
            end: 0,
            peak: 0,
        }
    }

    /// Whether there are no slots.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.first_end
    }

    /// How many slots can be pushed before another block is needed.
    #[inline]
    pub(crate) fn free(&self) -> usize {
        SLOTS - if self.used == 0 { self.first_end } else { self.end }
    }

    /// Bytes that the queue takes, with its spare blocks.
    pub(crate) fn memory(&self) -> usize {
        (1 + self.blocks.len()) * BLOCK + self.blocks.capacity() * size_of::<Block>()
    }

    /// Bytes that another block takes, with the list of blocks if that must grow: while it grows, the old and the new list both exist.
    /// Nothing, if there is a spare one.
    pub(crate) fn more(&self) -> usize {
        if self.used < self.blocks.len() {
            return 0;
        }
        let list = if self.blocks.len() == self.blocks.capacity() { 2 * self.blocks.capacity() } else { 0 };
        BLOCK + list * size_of::<Block>()
    }

    /// Frees the spare blocks that were not needed since the last call.
    pub(crate) fn shrink(&mut self) {
        self.blocks.truncate(self.peak);
        self.blocks.shrink_to(BLOCKS);
        self.peak = self.used;
    }

    /// Frees all spare blocks. Returns whether there were any.
    pub(crate) fn free_spare(&mut self) -> bool {
        let any = self.used < self.blocks.len();
        self.blocks.truncate(self.used);
        any
    }

    /// Starts its block again, if there are no slots.
    pub(crate) fn rewind(&mut self) {
        if self.is_empty() {
            (self.taken, self.first_end) = (0, 0);
        }
    }

    /// The next slots to fill: at least one. [`Run::filled`] says how many were filled.
    #[inline]
    pub(crate) fn unfilled(&mut self) -> &mut [Slot] {
        if self.free() == 0 {
            self.use_block();
        }
        match self.used.checked_sub(1) {
            Some(last) => &mut self.blocks[last][self.end..],
            None => &mut self.first[self.first_end..],
        }
    }

    #[cold]
    #[inline(never)]
    fn use_block(&mut self) {
        if self.used == self.blocks.len() {
            self.blocks.push_back(block());
        }
        (self.used, self.end) = (self.used + 1, 0);
        self.peak = self.peak.max(self.used);
    }

    /// Records that `slots` of the unfilled slots are filled.
    #[inline]
    pub(crate) fn filled(&mut self, slots: usize) {
        if self.used == 0 {
            self.first_end += slots;
        } else {
            self.end += slots;
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: Slot) {
        self.unfilled()[0] = slot;
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
    pub(crate) fn pop(&mut self) {
        self.advance(1);
    }

    /// Takes the `slots` oldest slots of the oldest block.
    #[inline(always)]
    pub(crate) fn advance(&mut self, slots: usize) {
        self.taken = self.first_end.min(self.taken + slots);
        if self.taken == SLOTS {
            self.next_block();
        }
    }

    #[cold]
    #[inline(never)]
    fn next_block(&mut self) {
        self.taken = 0;
        self.first_end = 0;
        if self.used > 0
            && let Some(block) = self.blocks.pop_front()
        {
            // The empty block is a spare one now.
            self.blocks.push_back(std::mem::replace(&mut self.first, block));
            self.used -= 1;
            self.first_end = if self.used == 0 { self.end } else { SLOTS };
        }
    }

    /// The slots in pieces, oldest first. No piece is empty.
    fn pieces(&self) -> impl DoubleEndedIterator<Item = &[Slot]> {
        let first = Some(self.first()).filter(|first| !first.is_empty());
        let last = self.used.wrapping_sub(1);
        let end = move |at| if at == last { self.end } else { SLOTS };
        first.into_iter().chain(self.blocks.range(..self.used).enumerate().map(move |(at, block)| &block[..end(at)]))
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
        let mut run = Run::new();
        let (mut pushed, mut popped) = (0, 0);
        // A queue whose length swings between empty and several blocks.
        for turn in 0..40u64 {
            for _ in 0..turn * 37 % 500 {
                run.push(slot(pushed));
                pushed += 1;
            }
            assert!(run.iter().map(|slot| slot.key).eq(popped..pushed));
            for _ in 0..turn * 53 % 500 {
                assert_eq!(run.front().map(|slot| slot.key), (popped < pushed).then_some(popped));
                run.pop();
                popped = pushed.min(popped + 1);
            }
            assert_eq!((run.iter().count() as u64, run.is_empty()), (pushed - popped, pushed == popped));
            let firsts: Vec<_> = run.firsts().map(|slot| slot.key).collect();
            let blocks = run.used + usize::from(!run.is_empty());
            assert!(firsts.len() == blocks && firsts.first().is_none_or(|first| *first == popped));
            assert!(firsts.windows(2).skip(1).all(|pair| pair[1] - pair[0] == SLOTS as u64));
            // Spare blocks may go at any time.
            if turn % 7 == 0 {
                assert_eq!(run.free_spare(), turn > 0);
                assert!(!run.free_spare() && run.blocks.len() == run.used);
            }
        }
    }

    #[test]
    fn what_a_burst_took_is_given_back() {
        let mut run = Run::new();
        let blocks = 50;
        (0..(blocks * SLOTS) as u64).for_each(|key| run.push(slot(key)));
        while run.iter().nth(1).is_some() {
            run.pop();
        }
        assert!(run.memory() >= blocks * BLOCK, "kept for a while");
        run.shrink();
        assert!(run.memory() >= blocks * BLOCK, "the burst needed it");
        run.shrink();
        assert_eq!(run.memory(), FIXED);
        // A load that needs as much each time keeps what it needs.
        for _ in 0..10 {
            (0..3 * SLOTS as u64).for_each(|key| run.push(slot(key)));
            (0..3 * SLOTS).for_each(|_| run.pop());
            run.shrink();
            assert!(run.blocks.len() >= 2);
        }
    }

    /// Before a block is taken, its cost is known. Behind a burst all blocks are spare ones, until they are given back.
    #[test]
    fn memory_is_what_blocks_and_their_lists_take() {
        let mut run = Run::new();
        assert_eq!(run.memory(), FIXED);
        let blocks = 3 * BLOCKS;
        for turn in 0..2 {
            for _ in 0..blocks {
                (0..run.free()).for_each(|_| run.push(slot(1)));
                let (before, more, capacity) = (run.memory(), run.more(), run.blocks.capacity());
                run.push(slot(1));
                let list = run.blocks.capacity() * size_of::<Block>();
                let grew = run.blocks.capacity() > capacity;
                let new = if turn == 0 { BLOCK } else { 0 };
                assert_eq!(more, new + if grew { list } else { 0 });
                assert_eq!(run.memory() - before, new + if grew { list / 2 } else { 0 });
            }
            while !run.is_empty() {
                run.pop();
            }
            assert_eq!(run.memory(), (1 + blocks) * BLOCK + run.blocks.capacity() * size_of::<Block>());
        }
        assert!(run.free_spare() && run.memory() < 2 * BLOCK);
    }
}
