//! The memory of an index: reserved before records are indexed, given back after a burst.

use super::{Index, PAIR, ROOM};
use crate::order::entry::{Entry, Note};
use crate::order::run::{self, BLOCK, Slot};
use crate::sequence::numbers::CpuNumbers;

impl Index {
    /// How many records can be displaced before memory is needed.
    pub(super) fn room_beside(&self) -> usize {
        self.beside.lists().map(|(len, capacity)| capacity - len).into_iter().fold(usize::MAX, usize::min)
    }

    /// Reserves memory for more entries. False if that would exceed the bound, unless nothing is held.
    #[cold]
    pub(super) fn make_room(&mut self, most: usize) -> bool {
        self.run.rewind();
        let new_run = self.run.free() < PAIR;
        let lists = self.lists();
        // While a list grows, both the old and the new one exist.
        let growing = lists.into_iter().filter(List::is_full).map(|list| list.grown() * list.each).sum::<usize>();
        // A number may add a hole, or cut one in two.
        let piece = if self.numbers.is_some() { CpuNumbers::EACH } else { 0 };
        let needed = |index: &Self| index.memory() + growing + if new_run { index.run.more() } else { 0 };
        if needed(self) + piece > most {
            self.run.free_spare();
            if self.len() > 0 && needed(self) + piece > most {
                return false;
            }
        }
        let pieces = most.saturating_sub(needed(self)).checked_div(piece).unwrap_or(usize::MAX);
        let [displaced, rest, notes] = lists;
        let more = |list: List| list.grown() - list.len;
        self.beside.reserve(more(displaced), more(rest));
        self.notes.reserve_exact(more(notes));
        let run = if new_run { BLOCK / size_of::<Slot>() } else { self.run.free() };
        let room = self.lists().into_iter().map(|list| list.capacity - list.len).fold(run, usize::min);
        self.room = (room / PAIR).min(pieces.max(1));
        true
    }

    /// The lists that grow as records are indexed, besides the run.
    pub(super) fn lists(&self) -> [List; 3] {
        let [displaced, rest] =
            self.beside.lists().map(|(len, capacity)| List { len, capacity, each: size_of::<Entry>() });
        [
            displaced,
            rest,
            List { len: self.notes.len(), capacity: self.notes.capacity(), each: size_of::<(u64, Option<Note>)>() },
        ]
    }

    /// Bytes that holding takes, except copies, beyond the initial memory of every ring.
    pub(crate) fn memory(&self) -> usize {
        let lists = self.lists().into_iter().map(|list| list.capacity.saturating_sub(ROOM) * list.each);
        let holes = self.numbers.as_ref().map_or(0, CpuNumbers::memory);
        self.run.memory().saturating_sub(run::FIXED) + lists.sum::<usize>() + holes
    }

    /// Frees spare blocks. Returns whether there were any.
    pub(crate) fn free_spare(&mut self) -> bool {
        self.run.free_spare()
    }

    /// Frees memory that was not needed since the last call. While a list shrinks, the old and the new one both exist. It does not shrink a list if that
    /// takes more than `most` bytes.
    pub(crate) fn shrink(&mut self, most: usize) {
        let shrinking = self.lists().into_iter().filter(|list| list.capacity > list.len.max(ROOM));
        if shrinking.map(|list| list.len.max(ROOM) * list.each).max() > Some(most) {
            return;
        }
        self.run.shrink();
        self.beside.shrink();
        self.notes.shrink_to(ROOM);
        self.room = 0;
    }
}

/// A list that grows.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    pub(super) len: usize,
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
}
