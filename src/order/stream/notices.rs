//! The cold half of the stream: items other than plain records, and notices before a record.

use super::{Notice, Pick, Stream};
use crate::order::certainty::Certainty;
use crate::order::event::{Damage, Event, Gap, Item, Lost, SequenceAnomaly};
use crate::order::place::{Keyed, Note, Place};
use crate::record::Record;
use crate::rings::CpuRing;
use crate::sequence::tracker::{Step, Tracker};

impl Stream {
    /// Picks a notice about no record, if there is one. It belongs to no ring.
    #[inline]
    pub(super) fn pick_notice(&mut self) -> bool {
        let Some(&notice) = self.notices.front() else { return false };
        // A flush proves that its events were yielded. Nothing proves the order of other notices.
        let certainty = if let Notice::Flushed = notice { Certainty::Proven } else { Certainty::Assumed };
        self.picked = Pick { place: Place::NONE, late_by: 0, certainty, notice: Some(notice) };
        true
    }

    #[cold]
    #[inline(never)]
    pub(super) fn leave_out_own(&mut self, cpu_rings: &[CpuRing]) -> bool {
        let ours = self
            .picked_record(cpu_rings)
            .is_some_and(|record| self.own.as_ref().is_some_and(|own| own.is_about_us(&record)));
        if ours {
            self.counts.left_out += 1;
            self.take_other();
        }
        ours
    }

    /// Picks the next place of the array, of any kind, if it may be yielded. `None` if it was passed over: it reports
    /// nothing new.
    #[inline(never)]
    pub(super) fn pick_other(&mut self) -> Option<bool> {
        let place = *self.array.left().first()?;
        let note = self.indexes[place.ring_index()].note(place);
        if matches!(note, Some(Note::Reported)) {
            self.pass(place);
            return None;
        }
        let admitted = self.frontier.admits(place.key);
        let keyed = self.keyed(place);
        let sequence = self.sequence.as_ref().filter(|_| self.keys.is_sure(place.key));
        let step = sequence.map(|sequence| sequence.step(place.key));
        let mut gap = None;
        let behind = self.last.saturating_sub(place.key);
        let own = || if behind > 0 { (Certainty::Late, behind) } else { (self.certainty(place.key), 0) };
        let picked = match (keyed, step) {
            // Nothing orders it except its place in its ring.
            (Keyed::Never, _) => Some((Certainty::Assumed, 0)),
            // Numbers leave without a fence, but not before a report that is due.
            (_, Some(_)) if self.frontier.is_capped(place.key) => None,
            // It comes after the record before it, and shares its certainty.
            (Keyed::Before, Some(Step::Behind | Step::Next)) => Some(self.yielded_before(place)),
            (Keyed::Before, None) if admitted => Some(self.yielded_before(place)),
            (Keyed::Own, None) if admitted => Some(own()),
            // Unless numbers were released in doubt, and may still come.
            (Keyed::Own, Some(Step::Next)) => {
                let doubt = self.sequence.as_ref().and_then(Tracker::doubt);
                Some((doubt.map_or(Certainty::Proven, |number| self.frontier.certainty(number)), 0))
            }
            (Keyed::Own, Some(Step::Behind)) => Some((Certainty::Late, behind)),
            (_, Some(Step::First)) if admitted => Some((self.frontier.certainty(place.key), 0)),
            // The numbers missing before a number that is proven to be the smallest that can still come.
            (_, Some(Step::Ahead(first))) if admitted => {
                gap = Some(Notice::Gap { first, last: place.key - 1 });
                Some((self.frontier.certainty(place.key), 0))
            }
            _ => None,
        };
        let Some((certainty, late_by)) = picked else { return Some(false) };
        self.picked = Pick { place, late_by, certainty, notice: None };
        self.picked.notice = self.notice_before(note, keyed, gap, step);
        Some(true)
    }

    /// The notice that comes before the picked place.
    fn notice_before(
        &mut self,
        note: Option<Note>,
        keyed: Keyed,
        gap: Option<Notice>,
        step: Option<Step>,
    ) -> Option<Notice> {
        let is_record = note.is_none_or(|note| note.is_of_a_record());
        let mut notice = None;
        if is_record && keyed == Keyed::Own {
            notice = if self.picked.certainty == Certainty::Assumed { self.unproven() } else { None };
        }
        notice = notice.or(gap);
        if notice.is_none() && is_record {
            notice = self.machine_anomaly(step).or_else(|| self.own_notice(note));
        }
        notice
    }

    /// Certainty and lateness of the record before a place that has its key.
    fn yielded_before(&self, place: Place) -> (Certainty, u64) {
        match self.indexes[place.ring_index()].yielded {
            Some((key, certainty, late_by)) if key == place.key => (certainty, late_by),
            _ if !self.keys.is_sure(place.key) || Some(place.key) <= self.indexes[place.ring_index()].unproven => {
                (Certainty::Assumed, 0)
            }
            // It was a plain one.
            _ => (self.frontier.certainty, 0),
        }
    }

    /// The notice about a skipped number of the whole machine.
    pub(super) fn machine_anomaly(&self, step: Option<Step>) -> Option<Notice> {
        let Pick { place, certainty, .. } = self.picked;
        if step != Some(Step::Behind) || certainty != Certainty::Late || self.keyed(place) != Keyed::Own {
            return None;
        }
        if self.said == Some(self.name_of(place)) {
            return None;
        }
        let sequence = self.sequence.as_ref()?;
        let kind = sequence.to_report(place.key)?;
        Some(Notice::Anomaly { kind, expected: sequence.next()? })
    }

    /// The ring and the position of a place.
    fn name_of(&self, place: Place) -> (u32, u64) {
        (place.ring_index() as u32, self.indexes[place.ring_index()].position(place))
    }

    /// The notice about numbers of the record's CPU.
    pub(super) fn own_notice(&mut self, note: Option<Note>) -> Option<Notice> {
        let place = self.picked.place;
        match note? {
            Note::Hole { cpu, hole, after, .. } => {
                let gap = self.indexes[place.ring_index()].numbers.as_ref()?.of(cpu)?.gap(&hole)?;
                // A gap in a ring does not depend on how late its record is. A key taken from another record proves
                // nothing.
                let own = self.keyed(place) == Keyed::Own;
                self.picked.certainty = if own { self.certainty(place.key) } else { Certainty::Assumed };
                self.picked.late_by = 0;
                Some(Notice::OwnGap { cpu, gap, after })
            }
            Note::Anomaly { cpu, kind, expected, found, .. } => Some(Notice::OwnAnomaly { cpu, kind, expected, found }),
            Note::Lost { .. } | Note::Reported | Note::Fault { .. } | Note::Long { .. } => None,
        }
    }

    /// The picked record, if the picked event is one.
    pub(crate) fn picked_record<'a>(&self, cpu_rings: &'a [CpuRing]) -> Option<Record<'a>> {
        let Pick { place, notice, .. } = self.picked;
        let (index, cpu_ring) = (&self.indexes[place.ring_index()], &cpu_rings[place.ring_index()]);
        let is_record = notice.is_none() && index.note(place).is_none_or(|note| note.is_of_a_record());
        is_record.then(|| Record::again(cpu_ring.bytes(index.position(place), index.len_of(place)), &cpu_ring.origin))
    }

    /// The key of the picked event.
    pub(crate) fn picked_key(&self) -> Option<u64> {
        let Pick { place, notice, .. } = self.picked;
        (notice.is_none() && self.keyed(place) == Keyed::Own).then_some(place.key)
    }

    /// Bytes of the picked event in its ring.
    pub(crate) fn picked_len(&self) -> u64 {
        let Pick { place, notice, .. } = self.picked;
        if notice.is_some() { 0 } else { self.indexes[place.ring_index()].len_of(place) }
    }

    /// The picked event.
    #[cold]
    pub(crate) fn picked_event<'a>(&self, cpu_rings: &'a [CpuRing]) -> Event<'a> {
        let Pick { late_by, certainty, .. } = self.picked;
        let item = self.picked_record(cpu_rings).map_or_else(|| self.other(cpu_rings), Item::Record);
        Event { key: self.picked_key(), certainty, late_by, item }
    }

    /// The picked event, if it is not a record.
    #[cold]
    #[inline(never)]
    fn other<'a>(&self, cpu_rings: &'a [CpuRing]) -> Item<'a> {
        let Pick { place, notice, .. } = self.picked;
        let (index, cpu_ring) = (&self.indexes[place.ring_index()], &cpu_rings[place.ring_index()]);
        let cpu = cpu_ring.origin.cpu;
        if let Some(notice) = notice {
            return self.notice_item(&notice, cpu);
        }
        match index.note(place) {
            Some(Note::Lost { id, count, after }) => {
                let (after, until) = (after, self.picked_key());
                Item::Lost(Lost { cpu, count, id, source: cpu_ring.origin.source(id), after, until })
            }
            Some(Note::Fault { fault, len }) => {
                Item::Damage(Damage { cpu, fault, bytes: cpu_ring.bytes(index.position(place), len.into()) })
            }
            _ => unreachable!("all others are records, or passed over"),
        }
    }

    /// A notice before the picked event, as an item.
    pub(super) fn notice_item(&self, notice: &Notice, cpu: u32) -> Item<'static> {
        let place = self.picked.place;
        let own = || (self.keyed(place) == Keyed::Own).then_some(place.key);
        match *notice {
            Notice::Flushed => Item::Flushed,
            Notice::Untraced(untraced) => Item::Untraced(untraced),
            Notice::EarlyRelease(unproven) => Item::EarlyRelease(unproven),
            Notice::Anomaly { kind, expected } => {
                Item::Anomaly(SequenceAnomaly { cpu, kind, expected, found: place.key })
            }
            Notice::OwnAnomaly { cpu, kind, expected, found } => {
                Item::Anomaly(SequenceAnomaly { cpu, kind, expected, found })
            }
            Notice::Gap { first, last } => {
                let any = (0..self.indexes.len()).any(|ring_index| self.records(ring_index) > 0);
                let after = any.then_some(self.last);
                let count = (last - first).saturating_add(1);
                Item::Gap(Gap { cpu: None, first, last, count, after, until: own() })
            }
            Notice::OwnGap { cpu, gap, after } => {
                let count = gap.count();
                let numbers = self.indexes[place.ring_index()].numbers.as_ref().and_then(|all| all.of(cpu));
                let (first, last) = numbers.map_or((0, 0), |numbers| numbers.written(&gap));
                Item::Gap(Gap { cpu: Some(cpu), first, last, count, after, until: own() })
            }
        }
    }

    /// Takes the picked event, of any kind.
    #[inline(never)]
    pub(crate) fn take_other(&mut self) {
        let Pick { place, late_by, certainty, notice } = self.picked;
        if let Some(notice) = notice {
            return self.commit_notice(notice);
        }
        let keyed = self.keyed(place);
        let early = self.is_early();
        let index = &mut self.indexes[place.ring_index()];
        match index.note(place) {
            Some(Note::Lost { count, .. }) => index.counts_mut().lost = index.counts().lost.saturating_add(count),
            Some(Note::Fault { .. }) => index.counts_mut().corrupt += 1,
            _ => {
                index.counts_mut().early += u64::from(early);
                if keyed == Keyed::Own {
                    index.yielded = Some((place.key, certainty, late_by));
                    if certainty != Certainty::Proven {
                        index.unproven = index.unproven.max(Some(place.key));
                    }
                    self.last = self.last.max(place.key);
                    self.pass_number(place.key, certainty);
                    if certainty != Certainty::Late {
                        self.early = early;
                    }
                }
                if certainty == Certainty::Late {
                    self.count_late();
                }
            }
        }
        self.pass(place);
    }

    /// Passes the next place of the array.
    fn pass(&mut self, place: Place) {
        self.array.pass();
        self.indexes[place.ring_index()].take(place);
    }

    /// Advances a dense sequence past a record that is taken.
    fn pass_number(&mut self, key: u64, certainty: Certainty) {
        if !self.keys.is_sure(key) {
            return;
        }
        let Some(sequence) = &mut self.sequence else { return };
        match certainty {
            Certainty::Late => self.counts.machine.missing -= u64::from(sequence.found(key)),
            Certainty::Assumed => sequence.begin_in_doubt(key),
            Certainty::Proven => {}
        }
        sequence.pass(key);
    }

    /// Marks the notice of the picked event as yielded.
    pub(super) fn commit_notice(&mut self, notice: Notice) {
        let Pick { place, certainty, .. } = self.picked;
        let ring_index = place.ring_index();
        match notice {
            Notice::Flushed | Notice::Untraced(_) => drop(self.notices.pop_front()),
            Notice::EarlyRelease(_) => {
                self.early = true;
                // The notice before a report comes before no record.
                if let Some(Notice::EarlyRelease(_)) = self.notices.front() {
                    self.notices.pop_front();
                }
            }
            Notice::Gap { first, last } => {
                self.counts.machine.missing =
                    self.counts.machine.missing.saturating_add((last - first).saturating_add(1));
                let Some(sequence) = &mut self.sequence else { return };
                sequence.declare(first, last, certainty != Certainty::Proven);
                sequence.pass(last);
            }
            Notice::Anomaly { kind, .. } => {
                if let Some(sequence) = &mut self.sequence {
                    sequence.reported(kind);
                }
                self.said = Some(self.name_of(place));
            }
            Notice::OwnGap { cpu, gap, .. } => {
                if let Some(numbers) = self.indexes[ring_index].numbers.as_mut().and_then(|all| all.of_mut(cpu)) {
                    numbers.declare(&gap);
                }
            }
            Notice::OwnAnomaly { .. } => self.indexes[ring_index].mark_reported(place),
        }
    }
}
