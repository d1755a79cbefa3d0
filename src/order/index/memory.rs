//! The memory of an index: reserved before records are indexed, given back after a burst.

use super::{Far, Index, PAIR, ROOM};
use crate::order::place::{Note, Place};
use crate::order::queue::{self, SLOTS};
use crate::sequence::numbers::CpuNumbers;

/// Bytes that the heap of records out of order takes, beyond its initial memory.
pub(crate) fn memory_of(far: &Far) -> usize {
    list_of(far).memory()
}

fn list_of(far: &Far) -> List {
    List { len: far.len(), capacity: far.capacity(), each: size_of::<Place>() }
}

impl Index {
    /// Reserves memory for more places. False if that would exceed the bound, unless nothing is held.
    #[cold]
    pub(super) fn make_room(&mut self, far: &mut Far, most: usize) -> bool {
        let new_block = self.queue.free() < PAIR;
        let (heap_list, notes) = (list_of(far), self.list_of_notes());
        // While a list grows, both the old and the new one exist.
        let growing =
            [heap_list, notes].into_iter().filter(List::is_full).map(|list| list.grown() * list.each).sum::<usize>();
        // A number may add a hole, or cut one in two.
        let piece = if self.numbers.is_some() { CpuNumbers::EACH } else { 0 };
        let heap = memory_of(far);
        let needed = |index: &Self| index.memory() + heap + growing + if new_block { index.queue.more() } else { 0 };
        let mut is_within = needed(self) + piece <= most;
        if !is_within {
            self.queue.free_spare();
            is_within = needed(self) + piece <= most;
        }
        if !is_within && self.len() > 0 {
            return false;
        }
        let pieces = most.saturating_sub(needed(self)).checked_div(piece).unwrap_or(usize::MAX);
        self.notes.reserve_exact(notes.grown() - notes.len);
        let free = if new_block { SLOTS } else { self.queue.free() };
        if is_within {
            far.reserve_exact(heap_list.grown() - heap_list.len);
            let room = [list_of(far), self.list_of_notes()]
                .map(|list| list.capacity - list.len)
                .into_iter()
                .fold(free, usize::min);
            self.room = (room / PAIR).min(pieces.max(1));
        } else {
            // The first of a ring is in order.
            self.room = 1;
        }
        true
    }

    fn list_of_notes(&self) -> List {
        let each = size_of::<(u64, Option<Note>)>();
        List { len: self.notes.len(), capacity: self.notes.capacity(), each }
    }

    /// Bytes that holding takes, except copies and the heap, beyond the initial memory of every ring.
    pub(crate) fn memory(&self) -> usize {
        let holes = self.numbers.as_ref().map_or(0, CpuNumbers::memory);
        self.queue.memory().saturating_sub(queue::FIXED) + self.list_of_notes().memory() + holes
    }

    /// Frees spare blocks. Returns whether there were any.
    pub(crate) fn free_spare(&mut self) -> bool {
        self.queue.free_spare()
    }

    /// Frees memory that was not needed since the last call. While a list shrinks, the old and the new one both exist.
    /// It does not shrink a list if that takes more than `most` bytes.
    pub(crate) fn shrink(&mut self, most: usize) {
        self.queue.shrink();
        if self.list_of_notes().shrunk() <= most {
            self.notes.shrink_to(ROOM);
        }
        self.room = 0;
    }
}

/// [`Index::shrink`] for the heap.
pub(crate) fn shrink(far: &mut Far, most: usize) {
    if list_of(far).shrunk() <= most {
        far.shrink_to(ROOM);
    }
}

/// A list that grows.
#[derive(Debug, Clone, Copy)]
struct List {
    len: usize,
    capacity: usize,
    /// Bytes of an element.
    each: usize,
}

impl List {
    fn is_full(&self) -> bool {
        self.capacity - self.len < PAIR
    }

    /// The number of elements for which there will be memory.
    fn grown(&self) -> usize {
        if self.is_full() { self.capacity + self.capacity / 2 } else { self.capacity }
    }

    /// Bytes beyond the initial capacity.
    fn memory(&self) -> usize {
        self.capacity.saturating_sub(ROOM) * self.each
    }

    /// Bytes of the list once it has shrunk; 0 if it cannot.
    fn shrunk(&self) -> usize {
        if self.capacity > self.len.max(ROOM) { self.len.max(ROOM) * self.each } else { 0 }
    }
}
