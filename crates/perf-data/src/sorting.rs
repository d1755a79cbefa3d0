//! Which event a record is of, and which ring it belongs to.

use crate::attrs::{self, CPU, ID, IDENTIFIER, TIME};
use crate::metadata::Described;
use perf_event_open_sys::bindings;
use perfweave::{Bytes, Error, ErrorKind, Layout};
use std::collections::HashMap;

/// What a ring's records have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) cpu: u32,
    pub(crate) group: usize,
    /// The event's id, where records name no CPU.
    id: u64,
}

/// The CPU of records that name none, as perf has it: -1.
pub(crate) const NO_CPU: u32 = u32::MAX;

/// Which event a record is of, and which ring it belongs to.
#[derive(Debug, Default)]
pub(crate) struct Sorting {
    /// Layouts that differ.
    pub(crate) groups: Vec<Layout>,
    /// The layout of each event.
    group_of: Vec<usize>,
    known: HashMap<Layout, usize>,
    by_id: HashMap<u64, usize>,
    /// Whether there are several events, so that each record must name its event.
    pub(crate) several: bool,
}

impl Sorting {
    pub(crate) fn new(events: &[Described]) -> Result<Self, Error> {
        let mut sorting = Self::default();
        events.iter().try_for_each(|event| sorting.add(event))?;
        Ok(sorting)
    }

    /// Adds an event behind those that there are.
    pub(crate) fn add(&mut self, event: &Described) -> Result<(), Error> {
        let (layout, index) = (event.attr.layout(), self.group_of.len());
        let groups = &mut self.groups;
        let group = *self.known.entry(layout).or_insert_with(|| {
            groups.push(layout);
            groups.len() - 1
        });
        self.group_of.push(group);
        // No event has the id 0. Records that perf synthesized have it (`primary_event_id`, kernel/events/core.c).
        self.by_id.extend(event.ids.iter().filter(|id| **id != 0).map(|id| (*id, index)));
        self.several = index > 0;
        // The id must be found before the layout is known.
        let first = &self.groups[0];
        let can_tell = |layout: &Layout| layout.sample_type() & IDENTIFIER != 0;
        let same = layout.sample_id_all() == first.sample_id_all();
        if group > 0 && !(can_tell(&layout) && can_tell(first) && same) {
            let message =
                "its events have records of different layouts without PERF_SAMPLE_IDENTIFIER at the same place";
            return Err(Error::new(ErrorKind::Recording, message));
        }
        Ok(())
    }

    /// All ids, and the event of each.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (u64, usize)> {
        self.by_id.iter().map(|(id, event)| (*id, *event))
    }

    /// The ring of a record, and the id and the event that it names. `None` if the record does not say, or is too
    /// short.
    pub(crate) fn place(&self, record: &[u8]) -> Option<(Place, Option<(u64, usize)>)> {
        let record = Bytes::from(record);
        let first = self.groups.first()?;
        let group = match self.groups.len() {
            1 => 0,
            _ => {
                let id = attrs::field(record, first, IDENTIFIER)?;
                // Records that perf synthesized have the id 0, which is no event's, and the layout of the first event.
                self.by_id.get(&id).map_or(0, |event| self.group_of[*event])
            }
        };
        let layout = &self.groups[group];
        let id = attrs::field(record, layout, IDENTIFIER).or_else(|| attrs::field(record, layout, ID));
        let event = id.and_then(|id| Some((id, *self.by_id.get(&id)?)));
        let has = |field: u64| layout.sample_type() & field != 0;
        // It has no `struct sample_id`. Without a place it stays behind the record before it (`Places::rings_of`).
        if !layout.sample_id_all() && record.u32(0) != Some(bindings::PERF_RECORD_SAMPLE) {
            return None;
        }
        let place = if has(CPU) {
            let cpu = attrs::field(record, layout, CPU)?.to_ne_bytes();
            Place { cpu: u32::from_ne_bytes([cpu[0], cpu[1], cpu[2], cpu[3]]), group, id: 0 }
        } else {
            Place { cpu: NO_CPU, group, id: event.map_or(0, |(id, _)| id) }
        };
        Some((place, event))
    }
}

impl Sorting {
    /// The time of a record. `None` if it has none.
    pub(crate) fn time(&self, record: &[u8]) -> Option<u64> {
        let (place, _) = self.place(record)?;
        attrs::field(Bytes::from(record), self.groups.get(place.group)?, TIME)
    }
}

impl Place {
    /// The ring of all further events of a recording that has more events than separate rings.
    pub(crate) fn shared(self) -> Self {
        Self { id: u64::MAX, ..self }
    }

    /// The ring of records that belong to none.
    pub(crate) const NOWHERE: Self = Self { cpu: NO_CPU, group: 0, id: 0 };
}
