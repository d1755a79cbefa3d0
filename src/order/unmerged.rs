//! What is not merged, and decides which event comes next.

use crate::merge::frontier::Frontier;
use crate::merge::place::{Keyed, Place};
use crate::merge::queue::{Far, Queue};
use crate::order::cursor::{Cursor, Indexing, ROOM};
use crate::order::key::Keys;
use crate::order::note::Notice;
use crate::rings::CpuRing;
use crate::sequence::numbers::CpuNumbers;
use std::collections::VecDeque;

/// What decides which event comes next. It changes only while nothing is merged:
/// [`Stream::unmerged`](crate::order::stream::Stream::unmerged) gives it.
pub(crate) struct Unmerged {
    pub(crate) keys: Keys,
    /// The queue of each ring, and its cursor.
    pub(crate) queues: Vec<Queue>,
    pub(crate) cursors: Vec<Cursor>,
    /// Records out of order whose places in their queues are far away.
    pub(crate) far: Far,
    pub(crate) frontier: Frontier,
    /// Notices about no record. They come before anything else.
    pub(crate) notices: VecDeque<Notice>,
}

impl Unmerged {
    pub(crate) fn new(keys: Keys, cursors: Vec<Cursor>, frontier: Frontier) -> Self {
        let (queues, far) = ((0..cursors.len()).map(Queue::new).collect(), Far::with_capacity_min(ROOM));
        Self { keys, queues, cursors, far, frontier, notices: VecDeque::new() }
    }

    /// The numbers of each ring, if its records have any.
    pub(crate) fn numbers(&mut self) -> impl Iterator<Item = &mut CpuNumbers> {
        self.cursors.iter_mut().filter_map(|cursor| cursor.numbers.as_mut())
    }

    /// Indexes the new records of each ring. `keep_behind`: see [`Cursor::refresh_behind`].
    pub(crate) fn index(&mut self, cpu_rings: &mut [CpuRing], keep_behind: bool) {
        let refresh = if keep_behind { Cursor::refresh_behind } else { Cursor::refresh };
        let Self { keys, queues, cursors, far, .. } = self;
        for ((cpu_ring, cursor), queue) in cpu_rings.iter_mut().zip(cursors).zip(queues) {
            refresh(cursor, cpu_ring, &mut Indexing { queue, far, keys });
        }
    }

    /// Adds a ring.
    pub(crate) fn insert(&mut self, ring_index: usize, cursor: Cursor) {
        let Self { queues, cursors, far, .. } = self;
        queues[ring_index..].iter_mut().for_each(Queue::move_ring_index);
        let moved = |place: Place| if place.ring_index() >= ring_index { place.moved(1) } else { place };
        // The order stays the same.
        let all: Vec<_> = far.drain().map(moved).collect();
        far.extend(all);
        queues.insert(ring_index, Queue::new(ring_index));
        cursors.insert(ring_index, cursor);
    }

    /// How many events it has.
    pub(crate) fn held(&self) -> usize {
        self.queues.iter().map(Queue::held).sum()
    }

    /// The smallest place.
    pub(crate) fn top(&self) -> Option<Place> {
        let rings = self.queues.iter().flat_map(|queue| [queue.front(), queue.loose]).flatten();
        rings.chain(self.far.peek().copied()).min()
    }

    /// The cursor of a place's ring.
    #[inline]
    pub(crate) fn cursor_of(&self, place: Place) -> &Cursor {
        &self.cursors[place.ring_index()]
    }

    /// The origin of a place's key.
    pub(crate) fn keyed(&self, place: Place) -> Keyed {
        self.cursor_of(place).keyed(place)
    }
}
