//! Events in place: one at a time, or a batch.

use crate::merge::certainty::Certainty;
use crate::merge::place::Place;
use crate::order::event::{Event, Item, OwnedEvent};
use crate::order::stream::{Stream, plain_record};
use crate::record::Record;
use crate::rings::CpuRing;
use std::convert::Infallible;
use std::fmt;
use std::ops::ControlFlow;

/// An event lent by [`Reader::next`](crate::Reader::next). Dropping it consumes the event.
pub struct EventGuard<'a> {
    pub(crate) cpu_rings: &'a [CpuRing],
    pub(crate) stream: &'a mut Stream,
    /// The next place of the array, if it is a plain one; else `stream.picked` is this event.
    pub(crate) place: Option<Place>,
}

// Each method reads the event where it lies and makes no copy beforehand. So a program computes only what it asks for.
impl<'a> EventGuard<'a> {
    /// The event.
    #[inline]
    pub fn event(&self) -> Event<'a> {
        match self.place {
            Some(place) => self.stream.plain_event(self.cpu_rings, place),
            None => self.stream.picked.event(self.stream.under(), self.cpu_rings),
        }
    }

    /// See [`Event::key`].
    #[inline(always)]
    pub fn key(&self) -> Option<u64> {
        match self.place {
            Some(place) => Some(place.key),
            None => self.stream.picked.key(self.stream.under()),
        }
    }

    /// See [`Event::certainty`].
    #[inline]
    pub fn certainty(&self) -> Certainty {
        // A plain place leaves by the rule: find_plain takes none that is late.
        self.place.map_or(self.stream.picked.certainty, |_| self.stream.under().frontier.certainty)
    }

    /// See [`Event::late_by`].
    #[inline]
    pub fn late_by(&self) -> u64 {
        self.place.map_or(self.stream.picked.late_by, |_| 0)
    }

    /// See [`Event::cpu`].
    #[inline]
    pub fn cpu(&self) -> Option<u32> {
        self.event().cpu()
    }

    /// See [`Event::item`].
    #[inline]
    pub fn item(&self) -> Item<'a> {
        self.event().item
    }

    /// See [`Event::record`].
    #[inline(always)]
    pub fn record(&self) -> Option<Record<'a>> {
        match self.place {
            Some(place) => Some(plain_record(self.cpu_rings, place)),
            // Through a copy, so that a plain one stays in registers.
            None => self.stream.picked.record(self.stream.under(), self.cpu_rings).map(|record| record.copy()),
        }
    }

    /// See [`Event::to_owned`].
    pub fn to_owned(&self) -> OwnedEvent {
        self.event().to_owned()
    }
}

impl Drop for EventGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.place {
            // A plain place has no note, and its bytes were counted by the merge.
            Some(_) => self.stream.array.pass(),
            None => self.stream.take_other(),
        }
    }
}

impl fmt::Debug for EventGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event().fmt(f)
    }
}

/// An iterator over the events that could be yielded when it was made. See [`Reader::batch`](crate::Reader::batch).
///
/// `batch.for_each(|event| ..)` is a little faster than `for event in batch`, and so are [`Iterator::fold`] and the
/// methods built on it (`count`, `sum`). Both yield the same events.
pub struct Batch<'a> {
    pub(crate) cpu_rings: &'a [CpuRing],
    pub(crate) stream: &'a mut Stream,
    /// Where the plain places of the array end that may be yielded.
    pub(crate) plain_end: usize,
}

impl<'a> Batch<'a> {
    /// Picks the next event that is not before the end of plain places, or finds that end anew. Returns whether there
    /// is an event.
    fn pick(&mut self) -> bool {
        // While its events are borrowed no tail advances. So a batch ends if a ring fills up.
        self.stream.check_fill(self.cpu_rings);
        let picked = !self.stream.rushed && self.stream.pick_anew(self.cpu_rings);
        self.plain_end = self.stream.array.plain_end();
        picked
    }
}

impl<'a> Iterator for Batch<'a> {
    type Item = Event<'a>;

    #[inline]
    fn next(&mut self) -> Option<Event<'a>> {
        let mut place = self.stream.array.next_before(self.plain_end);
        if place.is_none() {
            if !self.pick() {
                return None;
            }
            place = self.stream.array.next_before(self.plain_end);
        }
        Some(match place {
            Some(place) => {
                self.stream.array.pass();
                self.stream.plain_event(self.cpu_rings, place)
            }
            None => self.stream.take_picked(self.cpu_rings),
        })
    }

    #[inline]
    fn fold<A, F: FnMut(A, Event<'a>) -> A>(mut self, init: A, mut each: F) -> A {
        let mut all = init;
        loop {
            let next = |all, event| ControlFlow::<Infallible, A>::Continue(each(all, event));
            all = match self.stream.hand_out(self.cpu_rings, self.plain_end, all, next) {
                ControlFlow::Continue(all) => all,
            };
            if !self.pick() {
                return all;
            }
            // Plain ones are left to the next round.
            if self.stream.array.next_before(self.plain_end).is_none() {
                all = each(all, self.stream.take_picked(self.cpu_rings));
            }
        }
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}
