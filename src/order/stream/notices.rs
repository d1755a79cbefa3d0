//! The cold half of the stream: items other than plain records, and notices before a record.

use super::{Notice, Pick, Stream};
use crate::order::entry::{Entry, Keyed, Note};
use crate::order::event::{Damage, Event, Gap, Item, Lost, SequenceAnomaly};
use crate::order::hold::Certainty;
use crate::rings::Lane;
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::tracker::{Step, Tracker};

impl Stream {
    /// Puts the picked event aside; false if it stays in the stream.
    #[cold]
    pub(super) fn put_aside(&mut self, lanes: &[Lane]) -> bool {
        if self.aside.len() >= self.late_side_output || self.record(lanes).is_none() {
            return false;
        }
        self.aside.push_back(self.event(lanes).to_owned());
        self.take();
        true
    }

    /// Picks a notice about no record, if there is one. It belongs to no ring.
    #[inline]
    pub(super) fn pick_notice(&mut self) -> bool {
        let Some(&notice) = self.notices.front() else { return false };
        self.sync();
        // A flush proves that its events were yielded. Nothing proves the order of other notices.
        let certainty = if let Notice::Flushed = notice { Certainty::Proven } else { Certainty::Assumed };
        self.picked = Pick { entry: Entry::NONE, late_by: 0, rank: 0, certainty, notice: Some(notice) };
        true
    }

    #[cold]
    #[inline(never)]
    pub(super) fn leave_out_own(&mut self, lanes: &[Lane]) -> bool {
        let ours =
            self.record(lanes).is_some_and(|record| self.own.as_ref().is_some_and(|own| own.is_about_us(&record)));
        if ours {
            self.stats.left_out += 1;
            self.take();
        }
        ours
    }

    /// Picks the front of the ring with the smallest key, of any kind.
    #[inline(never)]
    pub(crate) fn pick_other(&mut self) -> bool {
        let Some((rank, entry, note)) = self.skip_told() else { return false };
        let (certainty, late_by) = self.indexes[rank as usize].yielded;
        let admitted = self.frontier.admits(entry.key);
        let keyed = entry.keyed();
        let sequence = self.sequence.as_ref().filter(|_| self.keys.is_sure(entry.key));
        let step = sequence.map(|sequence| sequence.step(entry.key));
        let mut gap = None;
        let behind = self.last.saturating_sub(entry.key);
        let own = || if behind > 0 { (Certainty::Late, behind) } else { (self.certainty(entry.key), 0) };
        let picked = match (keyed, step) {
            // Nothing orders it except its place in its ring.
            (Keyed::Never, _) => Some((Certainty::Assumed, 0)),
            // Numbers leave without a fence, but not before a report that is due.
            (_, Some(_)) if self.frontier.is_capped(entry.key) => None,
            // It comes after the record before it, and shares its certainty.
            (Keyed::Before, Some(Step::Behind | Step::Next)) => Some((certainty, late_by)),
            (Keyed::Before, None) if admitted => Some((certainty, late_by)),
            (Keyed::Own, None) if admitted => Some(own()),
            // Unless numbers were released in doubt, and may still come.
            (Keyed::Own, Some(Step::Next)) => {
                let doubt = self.sequence.as_ref().and_then(Tracker::doubt);
                Some((doubt.map_or(Certainty::Proven, |number| self.frontier.certainty(number)), 0))
            }
            (Keyed::Own, Some(Step::Behind)) => Some((Certainty::Late, behind)),
            (_, Some(Step::First)) if admitted => Some((self.frontier.certainty(entry.key), 0)),
            // The numbers missing before a number that is proven to be the smallest that can still come.
            (_, Some(Step::Ahead(first))) if admitted => {
                gap = Some(Notice::Gap { first, last: entry.key - 1 });
                Some((self.frontier.certainty(entry.key), 0))
            }
            _ => None,
        };
        let Some((certainty, late_by)) = picked else { return false };
        self.picked = Pick { entry, late_by, rank, certainty, notice: None };
        let is_record = !matches!(note, Some(Note::Lost { .. } | Note::Fault(_)));
        if is_record && keyed == Keyed::Own {
            let unproven = || if certainty == Certainty::Assumed { self.unproven() } else { None };
            self.picked.notice = self.wraparound.map(|expected| Notice::Wraparound { expected }).or_else(unproven);
        }
        self.picked.notice = self.picked.notice.or(gap);
        if self.picked.notice.is_none() && is_record {
            self.picked.notice = self.machine_anomaly(step).or_else(|| self.own_notice(note));
        }
        true
    }

    /// Takes LOST records at the front that report nothing new, and returns the front after them. In a loop: a hostile ring may be full of
    /// them.
    fn skip_told(&mut self) -> Option<(u32, Entry, Option<Note>)> {
        loop {
            let rank = self.fronts.top()?.rank;
            let entry = self.indexes[rank as usize].front()?;
            let note = self.indexes[rank as usize].note(&entry);
            if !matches!(note, Some(Note::Told)) {
                return Some((rank, entry, note));
            }
            self.picked.rank = rank;
            self.take_front();
        }
    }

    /// The notice about a skipped number of the whole machine.
    pub(super) fn machine_anomaly(&self, step: Option<Step>) -> Option<Notice> {
        let Pick { entry, rank, certainty, .. } = &self.picked;
        if step != Some(Step::Behind) || *certainty != Certainty::Late || entry.keyed() != Keyed::Own {
            return None;
        }
        if self.said == Some((*rank, entry.position)) {
            return None;
        }
        let sequence = self.sequence.as_ref()?;
        let kind = sequence.to_tell(entry.key, self.keys.written(entry.key))?;
        Some(Notice::Anomaly { kind, expected: sequence.next()? })
    }

    /// The notice about numbers of the record's CPU.
    pub(super) fn own_notice(&mut self, note: Option<Note>) -> Option<Notice> {
        let Pick { entry, rank, .. } = self.picked;
        match note? {
            Note::Hole { cpu, hole, after } => {
                let gap = self.indexes[rank as usize].numbers.as_ref()?.of(cpu)?.gap(&hole)?;
                // A gap in a ring does not depend on how late its record is. A key taken from another record proves nothing.
                let own = entry.keyed() == Keyed::Own;
                self.picked.certainty = if own { self.certainty(entry.key) } else { Certainty::Assumed };
                self.picked.late_by = 0;
                Some(Notice::OwnGap { cpu, gap, after })
            }
            Note::Anomaly { cpu, kind, expected, found } => Some(Notice::OwnAnomaly { cpu, kind, expected, found }),
            Note::Lost { .. } | Note::Told | Note::Fault(_) | Note::Long => None,
        }
    }

    /// Whether the picked event, or the notice before it, is about a record.
    #[cold]
    pub(super) fn is_record(&self) -> bool {
        let note = self.indexes[self.picked.rank as usize].note(&self.picked.entry);
        !matches!(note, Some(Note::Lost { .. } | Note::Told | Note::Fault(_)))
    }

    /// The picked event, if it is not a record.
    #[cold]
    #[inline(never)]
    pub(super) fn other<'a>(&self, lanes: &'a [Lane]) -> Event<'a> {
        let Pick { entry, rank, notice, .. } = &self.picked;
        let lane = &lanes[*rank as usize];
        let cpu = lane.origin.cpu;
        let written = |key| self.keys.written(key);
        if let Some(notice) = notice {
            return self.event_of(self.told(notice, cpu));
        }
        self.event_of(match self.indexes[*rank as usize].note(entry) {
            Some(Note::Lost { id, count, after }) => {
                let (after, until) = (after.map(written), self.key());
                Item::Lost(Lost { cpu, count, id, source: lane.origin.source(id), after, until })
            }
            Some(Note::Fault(fault)) => {
                Item::Damage(Damage { cpu, fault, bytes: lane.bytes(entry.position, entry.len()) })
            }
            _ => unreachable!("all others are records, or passed over"),
        })
    }

    /// A notice before the picked event, as an item.
    pub(super) fn told(&self, notice: &Notice, cpu: u32) -> Item<'static> {
        let entry = &self.picked.entry;
        let written = |key| self.keys.written(key);
        let own = || (entry.keyed() == Keyed::Own).then(|| written(entry.key));
        match *notice {
            Notice::Flushed => Item::Flushed,
            Notice::Untraced(untraced) => Item::Untraced(untraced),
            Notice::EarlyRelease(unproven) => Item::EarlyRelease(unproven),
            Notice::Wraparound { expected } => Item::Anomaly(SequenceAnomaly {
                cpu,
                kind: AnomalyKind::Wraparound,
                expected: written(expected),
                found: written(entry.key),
            }),
            Notice::Anomaly { kind, expected } => {
                Item::Anomaly(SequenceAnomaly { cpu, kind, expected: written(expected), found: written(entry.key) })
            }
            Notice::OwnAnomaly { cpu, kind, expected, found } => {
                Item::Anomaly(SequenceAnomaly { cpu, kind, expected, found })
            }
            Notice::Gap { first, last } => {
                let any = self.indexes.iter().any(|index| index.counts().records > 0);
                let after = any.then(|| written(self.last));
                let count = (last - first).saturating_add(1);
                Item::Gap(Gap { cpu: None, first: written(first), last: written(last), count, after, until: own() })
            }
            Notice::OwnGap { cpu, gap, after } => {
                let count = gap.count();
                let numbers = self.indexes[self.picked.rank as usize].numbers.as_ref().and_then(|all| all.of(cpu));
                let (first, last) = numbers.map_or((0, 0), |numbers| numbers.written(&gap));
                Item::Gap(Gap { cpu: Some(cpu), first, last, count, after: after.map(written), until: own() })
            }
        }
    }

    /// Takes the picked event, of any kind.
    #[inline(never)]
    pub(super) fn take_other(&mut self) {
        let Pick { entry, late_by, rank, certainty, notice } = self.picked;
        if let Some(notice) = notice {
            return self.commit_notice(notice);
        }
        let keyed = entry.keyed();
        let early = self.is_early();
        let index = &mut self.indexes[rank as usize];
        match index.note(&entry) {
            Some(Note::Lost { count, .. }) => index.counts_mut().lost = index.counts().lost.saturating_add(count),
            Some(Note::Fault(_)) => index.counts_mut().damaged += 1,
            Some(Note::Hole { .. } | Note::Anomaly { .. } | Note::Told | Note::Long) | None => {
                index.counts_mut().records += 1;
                index.counts_mut().early += u64::from(early);
                if keyed == Keyed::Own {
                    index.yielded = (certainty, late_by);
                    self.last = self.last.max(entry.key);
                    self.pass(entry.key, certainty);
                    if certainty != Certainty::Late {
                        self.early = early;
                    }
                }
                if certainty == Certainty::Late {
                    self.count_late();
                }
            }
        }
        self.take_front();
    }

    /// Advances a dense sequence past a record that is taken.
    pub(super) fn pass(&mut self, key: u64, certainty: Certainty) {
        if !self.keys.is_sure(key) {
            return;
        }
        let Some(sequence) = &mut self.sequence else { return };
        match certainty {
            Certainty::Late => self.stats.missing -= u64::from(sequence.found(key)),
            Certainty::Assumed => sequence.begin_in_doubt(key),
            Certainty::Proven => {}
        }
        sequence.pass(key);
    }

    /// Marks the notice of the picked event as yielded.
    pub(super) fn commit_notice(&mut self, notice: Notice) {
        let Pick { entry, rank, certainty, .. } = self.picked;
        match notice {
            Notice::Flushed | Notice::Untraced(_) => drop(self.notices.pop_front()),
            Notice::EarlyRelease(_) => {
                self.early = true;
                // The notice before a report comes before no record.
                if let Some(Notice::EarlyRelease(_)) = self.notices.front() {
                    self.notices.pop_front();
                }
            }
            Notice::Wraparound { .. } => self.wraparound = None,
            Notice::Gap { first, last } => {
                self.stats.missing = self.stats.missing.saturating_add((last - first).saturating_add(1));
                let Some(sequence) = &mut self.sequence else { return };
                sequence.declare(first, last, certainty != Certainty::Proven);
                sequence.pass(last);
            }
            Notice::Anomaly { kind, .. } => {
                if let Some(sequence) = &mut self.sequence {
                    sequence.told(kind);
                }
                self.said = Some((rank, entry.position));
            }
            Notice::OwnGap { cpu, gap, .. } => {
                if let Some(numbers) = self.indexes[rank as usize].numbers.as_mut().and_then(|all| all.of_mut(cpu)) {
                    numbers.declare(&gap);
                }
            }
            Notice::OwnAnomaly { .. } => self.indexes[rank as usize].forget(entry.position),
        }
    }
}
