//! Entries outside the run: displaced records, and a loss that lies in no ring.

use super::{REACH, ROOM};
use crate::order::entry::{Entry, Note};
use binary_heap_plus::{BinaryHeap, MinComparator};
use std::collections::VecDeque;

/// The list that holds the smallest entry outside the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Displaced,
    Rest,
    Trailing,
}

/// A loss after everything that was indexed when it was found. It lies in no ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trailing {
    pub(super) entry: Entry,
    pub(super) count: u64,
    /// The key of the record before it.
    pub(super) after: Option<u64>,
    /// A report waits for it. So it is told as it is, also if a LOST record comes that counts the same records.
    pub(super) stays: bool,
}

impl Trailing {
    pub(super) fn note(self) -> Note {
        Note::Lost { id: 0, count: self.count, after: self.after }
    }
}

/// The entries outside a run.
#[derive(Debug)]
pub(super) struct Displaced {
    /// INVARIANT: sorted. Each lies in a skipped slot, after a slot that is not skipped and has a larger key.
    displaced: VecDeque<Entry>,
    /// Further displaced records, which were out of order among themselves.
    rest: BinaryHeap<Entry, MinComparator>,
    trailing: Option<Trailing>,
    /// INVARIANT: the smallest of all entries here, and its list.
    first: Option<(Entry, Place)>,
    /// INVARIANT: the value of [`Displaced::until`].
    until: u64,
}

impl Displaced {
    pub(super) fn new() -> Self {
        Self {
            displaced: VecDeque::with_capacity(ROOM),
            rest: BinaryHeap::with_capacity_min(ROOM),
            trailing: None,
            first: None,
            until: u64::MAX,
        }
    }

    /// The smallest entry, and its list.
    #[inline]
    pub(super) fn first(&self) -> Option<(Entry, Place)> {
        self.first
    }

    /// Exclusive bound of the run's keys that come before all entries here. Keys equal to the first entry's come before it.
    #[inline(always)]
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    fn set_first(&mut self, first: Option<(Entry, Place)>) {
        self.first = first;
        self.until = first.map_or(u64::MAX, |(entry, _)| entry.key.saturating_add(1));
    }

    /// Inserts an entry whose key is smaller than one before it.
    #[inline(never)]
    pub(super) fn displace(&mut self, entry: Entry) {
        let larger = self.displaced.iter().rev().take(REACH).take_while(|other| **other > entry).count();
        let place = if larger < REACH { Place::Displaced } else { Place::Rest };
        match place {
            Place::Displaced => self.displaced.insert(self.displaced.len() - larger, entry),
            _ => self.rest.push(entry),
        }
        // Damage comes before a loss after it, which has the same position.
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

    /// Takes or replaces the loss that lies in no ring. Returns the previous one.
    pub(super) fn set_trailing(&mut self, trailing: Option<Trailing>) -> Option<Trailing> {
        let before = std::mem::replace(&mut self.trailing, trailing);
        self.find_first();
        before
    }

    #[inline]
    fn find_first(&mut self) {
        let displaced = self.displaced.front().map(|entry| (*entry, Place::Displaced));
        let far = !self.rest.is_empty() || self.trailing.is_some();
        self.set_first(if far { self.smallest_far(displaced) } else { displaced });
    }

    #[cold]
    fn smallest_far(&self, displaced: Option<(Entry, Place)>) -> Option<(Entry, Place)> {
        let rest = self.rest.peek().map(|entry| (*entry, Place::Rest));
        let trailing = self.trailing.map(|trailing| (trailing.entry, Place::Trailing));
        [displaced, rest, trailing].into_iter().flatten().min_by_key(|(entry, _)| *entry)
    }

    /// The two lists: the length and the capacity of each.
    pub(super) fn lists(&self) -> [(usize, usize); 2] {
        [(self.displaced.len(), self.displaced.capacity()), (self.rest.len(), self.rest.capacity())]
    }

    /// Reserves memory for more entries in each.
    pub(super) fn reserve(&mut self, displaced: usize, rest: usize) {
        self.displaced.reserve_exact(displaced);
        self.rest.reserve_exact(rest);
    }

    /// Frees memory that is not needed now.
    pub(super) fn shrink(&mut self) {
        self.displaced.shrink_to(ROOM);
        self.rest.shrink_to(ROOM);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ring::Header;

    /// Whatever is put beside a run and taken, the first is the smallest in a plain list; and damage comes before a loss at its place.
    #[test]
    fn the_first_is_the_smallest_of_all() {
        let mut state = 1u64;
        let mut random = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let entry = |key, position| Entry { key, position, header: Header::of_stretch(8) };
        let (mut beside, mut list, mut trailing) = (Displaced::new(), Vec::new(), None);
        let (mut ties, mut far) = (0, 0);
        for position in 0..20_000 {
            match random(5) {
                0 | 1 => {
                    // Now and then at the place of the loss, which is where the next record lies.
                    let lost = trailing.filter(|_| random(2) == 0);
                    let new = lost.unwrap_or_else(|| entry(random(50) * random(50), position));
                    if !list.contains(&new) {
                        list.push(new);
                        beside.displace(new);
                    }
                }
                2 => {
                    let lost = (random(3) > 0).then(|| entry(random(1000), position));
                    let before =
                        beside.set_trailing(lost.map(|entry| Trailing { entry, count: 1, after: None, stays: false }));
                    assert_eq!(before.map(|before| before.entry), trailing);
                    trailing = lost;
                }
                _ => {
                    let Some((first, place)) = beside.first() else { continue };
                    far += u32::from(place == Place::Rest);
                    beside.take(place);
                    match place {
                        Place::Trailing => trailing = None,
                        _ => list.retain(|entry| *entry != first),
                    }
                }
            }
            let smallest = list.iter().min().copied();
            ties += u32::from(smallest.is_some() && smallest == trailing);
            let (first, place) = beside.first().unzip();
            assert_eq!(first, smallest.into_iter().chain(trailing).min());
            assert_eq!(place == Some(Place::Trailing), first.is_some() && smallest != first, "{place:?}");
            assert_eq!(beside.until(), first.map_or(u64::MAX, |first| first.key + 1));
        }
        assert!(ties > 100 && far > 100, "{ties} ties, {far} taken from the heap");
    }
}
