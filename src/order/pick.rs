//! The event that was picked and is no plain record: what it is, where it lies.

use crate::merge::certainty::Certainty;
use crate::merge::place::{Keyed, Place};
use crate::order::event::{Damage, Event, Gap, Item, Lost, SequenceAnomaly};
use crate::order::note::{Note, Notice};
use crate::order::unmerged::Unmerged;
use crate::record::Record;
use crate::rings::CpuRing;

/// The next event that is not a plain record: the next place, or a notice before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pick {
    pub(crate) place: Place,
    pub(crate) late_by: u64,
    pub(crate) certainty: Certainty,
    pub(crate) notice: Option<Notice>,
}

impl Pick {
    /// Nothing is picked.
    pub(crate) const NONE: Self = Self::of(Place::NONE, 0, Certainty::Assumed);

    /// A place without a notice before it.
    pub(crate) const fn of(place: Place, late_by: u64, certainty: Certainty) -> Self {
        Self { place, late_by, certainty, notice: None }
    }

    /// A notice about no record. It belongs to no ring.
    pub(crate) fn of_none(notice: Notice) -> Self {
        // A flush proves that its events were yielded. Nothing proves the order of other notices.
        let certainty =
            if let Notice::Flushed { complete: true } = notice { Certainty::Proven } else { Certainty::Assumed };
        Self { notice: Some(notice), ..Self::of(Place::NONE, 0, certainty) }
    }

    /// The record, if it is one.
    pub(crate) fn record<'a>(&self, under: &Unmerged, cpu_rings: &'a [CpuRing]) -> Option<Record<'a>> {
        let Self { place, notice, .. } = *self;
        let (cursor, cpu_ring) = (under.cursor_of(place), &cpu_rings[place.ring_index()]);
        let is_record = notice.is_none() && cursor.note(place).is_none_or(|note| note.is_of_a_record());
        is_record.then(|| Record::again(cpu_ring.bytes(cursor.position(place), cursor.len_of(place)), &cpu_ring.origin))
    }

    /// Its key.
    pub(crate) fn key(&self, under: &Unmerged) -> Option<u64> {
        if self.notice.is_none() { self.own_key(under) } else { None }
    }

    /// The key of its place.
    fn own_key(&self, under: &Unmerged) -> Option<u64> {
        (under.keyed(self.place) == Keyed::Own).then_some(self.place.key)
    }

    /// The event.
    #[cold]
    pub(crate) fn event<'a>(&self, under: &Unmerged, cpu_rings: &'a [CpuRing]) -> Event<'a> {
        let item = self.record(under, cpu_rings).map_or_else(|| self.other(under, cpu_rings), Item::Record);
        Event { key: self.key(under), certainty: self.certainty, late_by: self.late_by, item }
    }

    /// What it is, if it is not a record.
    #[cold]
    #[inline(never)]
    fn other<'a>(&self, under: &Unmerged, cpu_rings: &'a [CpuRing]) -> Item<'a> {
        let Self { place, notice, .. } = *self;
        let (cursor, cpu_ring) = (under.cursor_of(place), &cpu_rings[place.ring_index()]);
        let (cpu, until) = (cpu_ring.origin.cpu, self.own_key(under));
        match notice {
            Some(Notice::Flushed { complete }) => Item::Flushed { complete },
            Some(Notice::Untraced(untraced)) => Item::Untraced(untraced),
            Some(Notice::Anomaly { kind, expected }) => {
                Item::Anomaly(SequenceAnomaly { cpu, kind, expected, found: place.key })
            }
            Some(Notice::OwnAnomaly { cpu, kind, expected, found }) => {
                Item::Anomaly(SequenceAnomaly { cpu, kind, expected, found })
            }
            Some(Notice::Gap { first, last, after }) => {
                let count = (last - first).saturating_add(1);
                Item::Gap(Gap { cpu: None, first, last, count, after, until })
            }
            Some(Notice::OwnGap { cpu, gap, after }) => {
                let numbers = cursor.numbers.as_ref().and_then(|all| all.of(cpu));
                let (first, last) = numbers.map_or((0, 0), |numbers| numbers.written(&gap));
                Item::Gap(Gap { cpu: Some(cpu), first, last, count: gap.count(), after, until })
            }
            None => match cursor.note(place) {
                Some(Note::Lost { id, count, after }) => {
                    let (source, tag) = (cpu_ring.origin.source(id), cpu_ring.origin.layout.tag());
                    Item::Lost(Lost { cpu, tag, count, id, source, after, until })
                }
                Some(Note::Fault { fault, len }) => {
                    Item::Damage(Damage { cpu, fault, bytes: cpu_ring.bytes(cursor.position(place), len.into()) })
                }
                _ => unreachable!("all others are records, or passed over"),
            },
        }
    }
}
