//! The memory of lists, and of the heap of all rings.

use super::{Far, PAIR, ROOM};
use crate::order::place::Place;

/// Bytes that the heap of records out of order takes, beyond its initial memory.
pub(crate) fn memory_of(far: &Far) -> usize {
    list_of(far).memory()
}

pub(super) fn list_of(far: &Far) -> List {
    List { len: far.len(), capacity: far.capacity(), each: size_of::<Place>() }
}

/// [`Index::shrink`] for the heap.
pub(crate) fn shrink(far: &mut Far, most: usize) {
    if list_of(far).shrunk() <= most {
        far.shrink_to(ROOM);
    }
}

/// A list that grows.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    pub(super) len: usize,
    pub(super) capacity: usize,
    /// Bytes of an element.
    pub(super) each: usize,
}

impl List {
    pub(super) fn is_full(&self) -> bool {
        self.capacity - self.len < PAIR
    }

    /// The number of elements for which there will be memory.
    pub(super) fn grown(&self) -> usize {
        if self.is_full() { self.capacity + self.capacity / 2 } else { self.capacity }
    }

    /// Bytes beyond the initial capacity.
    pub(super) fn memory(&self) -> usize {
        self.capacity.saturating_sub(ROOM) * self.each
    }

    /// Bytes of the list once it has shrunk; 0 if it cannot.
    pub(super) fn shrunk(&self) -> usize {
        if self.capacity > self.len.max(ROOM) { self.len.max(ROOM) * self.each } else { 0 }
    }
}
