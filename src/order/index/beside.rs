//! What lies beside the run: displaced records, and a loss that lies in no ring.

use super::{REACH, ROOM};
use crate::order::entry::{Entry, Note};
use binary_heap_plus::{BinaryHeap, MinComparator};
use std::collections::VecDeque;

/// Where the smallest entry beside the run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Displaced,
    Rest,
    Trailing,
}

/// A loss behind everything that was indexed when it was found, in no ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trailing {
    pub(super) entry: Entry,
    pub(super) count: u64,
    /// The key of the record before it.
    pub(super) after: Option<u64>,
}

impl Trailing {
    pub(super) fn note(self) -> Note {
        Note::Lost { id: 0, count: self.count, after: self.after }
    }
}

/// The entries beside a run.
#[derive(Debug)]
pub(super) struct Beside {
    /// INVARIANT: sorted. Each lies in a skipped slot, behind one that is not and has a larger key.
    displaced: VecDeque<Entry>,
    /// More of those, which came out of order among themselves.
    rest: BinaryHeap<Entry, MinComparator>,
    trailing: Option<Trailing>,
    /// INVARIANT: the smallest of all, and where it is.
    first: Option<(Entry, Place)>,
    /// INVARIANT: up to where the run alone says what is smallest: the key of the first, behind which the run's of the same key come.
    until: u64,
}

impl Beside {
    pub(super) fn new() -> Self {
        Self {
            displaced: VecDeque::with_capacity(ROOM),
            rest: BinaryHeap::with_capacity_min(ROOM),
            trailing: None,
            first: None,
            until: u64::MAX,
        }
    }

    /// The smallest entry, and where it is.
    #[inline]
    pub(super) fn first(&self) -> Option<(Entry, Place)> {
        self.first
    }

    /// Keys of the run that are less than this come before all that is here.
    #[inline(always)]
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// Puts an entry whose key is smaller than one before it where it belongs.
    #[inline(never)]
    pub(super) fn displace(&mut self, entry: Entry) {
        let larger = self.displaced.iter().rev().take(REACH).take_while(|other| **other > entry).count();
        let place = if larger < REACH { Place::Displaced } else { Place::Rest };
        match place {
            Place::Displaced => self.displaced.insert(self.displaced.len() - larger, entry),
            _ => self.rest.push(entry),
        }
        // Damage comes before a loss behind it, which has the same place.
        if self.first.is_none_or(|(first, _)| entry <= first) {
            self.set_first(Some((entry, place)));
        }
    }

    /// Takes the smallest entry.
    pub(super) fn take(&mut self, place: Place) {
        match place {
            Place::Displaced => drop(self.displaced.pop_front()),
            Place::Rest => drop(self.rest.pop()),
            Place::Trailing => self.trailing = None,
        }
        self.find_first();
    }

    pub(super) fn trailing(&self) -> Option<Trailing> {
        self.trailing
    }

    /// Takes or replaces the loss that lies in no ring. Gives what there was.
    pub(super) fn set_trailing(&mut self, trailing: Option<Trailing>) -> Option<Trailing> {
        let before = std::mem::replace(&mut self.trailing, trailing);
        self.find_first();
        before
    }

    #[inline]
    fn find_first(&mut self) {
        let displaced = self.displaced.front().map(|entry| (*entry, Place::Displaced));
        let far = !self.rest.is_empty() || self.trailing.is_some();
        let first = if far { self.smallest_far(displaced) } else { displaced };
        self.set_first(first);
    }

    #[cold]
    fn smallest_far(&self, displaced: Option<(Entry, Place)>) -> Option<(Entry, Place)> {
        let rest = self.rest.peek().map(|entry| (*entry, Place::Rest));
        let trailing = self.trailing.map(|trailing| (trailing.entry, Place::Trailing));
        [displaced, rest, trailing].into_iter().flatten().min_by_key(|(entry, _)| *entry)
    }

    #[inline]
    fn set_first(&mut self, first: Option<(Entry, Place)>) {
        self.first = first;
        self.until = first.map_or(u64::MAX, |(entry, _)| entry.key.saturating_add(1));
    }

    /// The two lists: how many there are in each, and for how many there is room.
    pub(super) fn lists(&self) -> [(usize, usize); 2] {
        [(self.displaced.len(), self.displaced.capacity()), (self.rest.len(), self.rest.capacity())]
    }

    /// Makes room for so many more in each.
    pub(super) fn reserve(&mut self, displaced: usize, rest: usize) {
        self.displaced.reserve_exact(displaced);
        self.rest.reserve_exact(rest);
    }

    /// Gives memory back that is not needed now.
    pub(super) fn shrink(&mut self) {
        self.displaced.shrink_to(ROOM);
        self.rest.shrink_to(ROOM);
    }
}
