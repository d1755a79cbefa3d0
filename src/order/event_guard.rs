//! Events in place: one at a time, or a batch.

use crate::order::event::{Event, Item, OwnedEvent};
use crate::order::hold::Certainty;
use crate::order::stream::Stream;
use crate::record::Record;
use crate::rings::Lane;
use std::convert::Infallible;
use std::fmt;
use std::ops::ControlFlow;

/// An event lent by [`Merge::next`](crate::Merge::next) or [`Reader::next`](crate::Reader::next). Dropping it consumes
/// the event.
pub struct EventGuard<'a> {
    pub(crate) lanes: &'a [Lane],
    /// `stream.picked` is this event.
    pub(crate) stream: &'a mut Stream,
}

// Each method reads the event where it lies and makes no copy beforehand. So a program computes only what it asks for.
impl<'a> EventGuard<'a> {
    /// The event.
    #[inline]
    pub fn event(&self) -> Event<'a> {
        self.stream.event(self.lanes)
    }

    /// See [`Event::key`].
    #[inline]
    pub fn key(&self) -> Option<u64> {
        self.stream.key()
    }

    /// See [`Event::certainty`].
    #[inline]
    pub fn certainty(&self) -> Certainty {
        self.stream.picked.certainty
    }

    /// See [`Event::late_by`].
    #[inline]
    pub fn late_by(&self) -> u64 {
        self.stream.picked.late_by
    }

    /// See [`Event::cpu`].
    #[inline]
    pub fn cpu(&self) -> Option<u32> {
        self.event().cpu()
    }

    /// See [`Event::item`].
    #[inline]
    pub fn item(&self) -> Item<'a> {
        self.stream.item(self.lanes)
    }

    /// See [`Event::record`].
    #[inline]
    pub fn record(&self) -> Option<Record<'a>> {
        self.stream.record(self.lanes)
    }

    /// How many bytes of the event's ring that were seen are still unread when this event is consumed. cilium/ebpf's `Record.Remaining`.
    pub fn remaining(&self) -> u64 {
        self.stream.indexes[self.stream.picked.rank as usize].unread() - self.stream.len()
    }

    /// See [`Event::to_owned`].
    pub fn to_owned(&self) -> OwnedEvent {
        self.event().to_owned()
    }
}

impl Drop for EventGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.stream.take();
    }
}

impl fmt::Debug for EventGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event().fmt(f)
    }
}

/// An iterator over the events that could be yielded when it was made. See [`Merge::batch`](crate::Merge::batch).
///
/// `batch.for_each(|event| ..)` is faster than `for event in batch`, and so are [`Iterator::fold`] and the methods built on it (`count`,
/// `sum`). They take consecutive records of the same ring in one loop. A `for` loop takes each record separately, and costs what
/// [`Merge::next`](crate::Merge::next) does. Both yield the same events.
pub struct Batch<'a> {
    pub(crate) lanes: &'a [Lane],
    pub(crate) stream: &'a mut Stream,
}

impl<'a> Iterator for Batch<'a> {
    type Item = Event<'a>;

    #[inline]
    fn next(&mut self) -> Option<Event<'a>> {
        if self.stream.rushed || !self.stream.pick_in(self.lanes) {
            return None;
        }
        let (rank, event) = (self.stream.picked.rank, self.stream.event(self.lanes));
        self.stream.take();
        self.stream.heed(rank, self.lanes);
        Some(event)
    }

    #[inline]
    fn fold<A, F: FnMut(A, Event<'a>) -> A>(self, init: A, mut each: F) -> A {
        let mut all = init;
        loop {
            let next = |all, event| ControlFlow::<Infallible, A>::Continue(each(all, event));
            match self.stream.hand_out(self.lanes, all, next) {
                ControlFlow::Continue(next) if self.stream.rushed => return next,
                ControlFlow::Continue(next) => all = next,
                ControlFlow::Break(ControlFlow::Continue(all)) => return all,
            }
        }
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}
