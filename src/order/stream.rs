//! The merged stream: which event comes next, which notices come before it, and what taking it changes.

use crate::account::status::Status;
use crate::merge::array::Array;
use crate::merge::certainty::Certainty;
use crate::merge::place::{Keyed, Place, Tag};
use crate::order::cursor::Cursor;
use crate::order::dense::Dense;
use crate::order::event::{Event, Item};
use crate::order::note::{Note, Notice};
use crate::order::pick::Pick;
use crate::order::tracers::{Leaving, Tracers};
use crate::order::unmerged::Unmerged;
use crate::record::Record;
use crate::rings::CpuRing;
use crate::sequence::numbers::CpuNumbers;
use crate::sequence::tracker::Step;
use std::ops::ControlFlow;

/// Everything that changes while events are yielded. Separate from the rings, which the yielded events borrow.
pub(crate) struct Stream {
    under: Unmerged,
    /// The next places, taken out of the queues in order.
    pub(crate) array: Array,
    /// The numbers of the whole machine, if these are the keys.
    pub(crate) dense: Option<Dense>,
    /// The largest key yielded one by one; 0 before any.
    last: u64,
    /// The event that is lent, unless it is a plain one of the array.
    pub(crate) picked: Pick,
    /// A ring fills up while its events are yielded, so a refresh is due before further events.
    pub(crate) rushed: bool,
    pub(crate) tracers: Tracers,
    /// Finds records about the tracer, if those are left out.
    pub(crate) leaving: Option<Leaving>,
    /// The counts that are of no ring. The rest of it is empty.
    pub(crate) counts: Status,
}

impl Stream {
    pub(crate) fn new(under: Unmerged, dense: Option<Dense>) -> Self {
        Self {
            array: Array::new(under.cursors.len()),
            under,
            dense,
            last: 0,
            picked: Pick::NONE,
            rushed: false,
            tracers: Tracers::default(),
            leaving: None,
            counts: Status::default(),
        }
    }

    // What is not merged.

    /// What is not merged, to be read.
    #[inline(always)]
    pub(crate) fn under(&self) -> &Unmerged {
        &self.under
    }

    /// What is not merged, to be changed. First it puts back what was merged and not yielded, since something smaller
    /// may come.
    pub(crate) fn unmerged(&mut self) -> &mut Unmerged {
        // First, because the array forgets what was yielded last.
        self.last = self.last();
        let Unmerged { queues, far, .. } = &mut self.under;
        self.counts.left_out -= self.array.put_back(queues, far) as u64;
        &mut self.under
    }

    /// The same, if nothing has to be put back.
    #[inline]
    pub(crate) fn if_unmerged(&mut self) -> Option<&mut Unmerged> {
        self.array.is_empty().then_some(&mut self.under)
    }

    /// Adds a ring.
    pub(crate) fn insert(&mut self, ring_index: usize, cursor: Cursor) {
        self.unmerged().insert(ring_index, cursor);
        self.array.resize(self.under.cursors.len());
        if let Some(dense) = &mut self.dense {
            dense.inserted(ring_index);
        }
    }

    /// A proof is about to begin. False if it would prove nothing new.
    pub(crate) fn begin_proof(&mut self) -> bool {
        // It moves nothing that may leave, so what is merged stays merged.
        let begins = self.under.frontier.begin_proof();
        if begins {
            // Of the numbers before those of records that were seen.
            for cursor in &mut self.under.cursors {
                cursor.numbers.iter_mut().for_each(|numbers| numbers.proof_begins(cursor.cursor));
            }
        }
        begins
    }

    /// The proof has ended. False if none was under way.
    pub(crate) fn end_proof(&mut self) -> bool {
        // What it proves may leave after the next refresh.
        let ended = self.under.frontier.end_proof();
        if ended {
            self.under.numbers().for_each(CpuNumbers::proof_ended);
        }
        ended
    }

    /// The proof failed and proves nothing.
    pub(crate) fn fail_proof(&mut self) {
        self.under.frontier.fail_proof();
    }

    /// How many events are indexed and not yet yielded.
    pub(crate) fn held(&self) -> usize {
        // A loss that lies in no ring stays in its queue until it is yielded.
        let merged = self.array.left().iter().filter(|place| place.tag() != Tag::LOOSE);
        self.under.held() + merged.count()
    }

    // Which event comes next.

    /// Whether the next event is picked, or may be yielded without another look.
    #[inline(always)]
    pub(crate) fn is_at_hand(&self) -> bool {
        self.array.next_plain().is_some()
    }

    /// Picks the next event, if one may be yielded. Leaves out records about the tracer, if the options say so.
    #[inline(never)]
    pub(crate) fn pick_anew(&mut self, cpu_rings: &[CpuRing]) -> bool {
        // Before notices: who adds one puts back first, after which the array has no such records.
        if self.pick_next_other() && !self.leave_out(cpu_rings) {
            return true;
        }
        // The array knows the key of a plain place only until the next place is passed.
        self.last = self.last();
        if let Some(&notice) = self.under.notices.front() {
            self.picked = Pick::of_none(notice);
            return true;
        }
        loop {
            if self.array.is_empty() && !self.merge() {
                return false;
            }
            // Behind one that was left out the others go on.
            if self.array.next_other().is_none() {
                self.find_plain(cpu_rings);
                if self.is_at_hand() {
                    return true;
                }
                // Everything that was left is about the tracer.
                if self.array.is_empty() {
                    continue;
                }
            }
            let picked = if self.pick_next_other() { Some(true) } else { self.pick_other() };
            let Some(is_picked) = picked else { continue };
            if !is_picked {
                return false;
            }
            if !self.leave_out(cpu_rings) {
                return true;
            }
        }
    }

    /// Picks the next place, if it is a record of another kind of which nothing has to be said.
    fn pick_next_other(&mut self) -> bool {
        let Some(place) = self.array.next_other() else { return false };
        self.picked = Pick::of(place, 0, self.under.frontier.certainty);
        true
    }

    /// Merges the next places whose keys may be yielded.
    fn merge(&mut self) -> bool {
        // Numbers leave without a fence. What has no key has the smallest one.
        let frontier =
            if self.dense.is_some() { u64::MAX } else { self.under.frontier.largest_admitted().unwrap_or(0) };
        self.last = self.last();
        self.array.merge(&mut self.under.queues, &mut self.under.far, frontier)
    }

    /// Whether a number leaves without a fence.
    pub(crate) fn flows(&mut self) -> bool {
        while self.dense.is_some() && (!self.array.is_empty() || self.merge()) {
            if let Some(picked) = self.pick_other() {
                return picked;
            }
        }
        false
    }

    /// Counts how many of the next entries can be yielded without further checks: plain records, or else records of
    /// other kinds. What is about the tracer among the plain ones is left out.
    fn find_plain(&mut self, cpu_rings: &[CpuRing]) {
        let end = self.under.frontier.end();
        let is_plain = |place: &Place| place.is_plain() && place.key < end;
        self.array.set_plain(0);
        let left = self.array.left();
        let (Some(first), Some(last)) = (left.first(), left.last()) else { return };
        // Each number of a dense sequence is compared with the next that is expected.
        // If the smallest key is reliable, all are.
        if self.dense.is_some() || !self.under.keys.are_sure || first.key < self.last {
            return;
        }
        if !is_plain(first) {
            let others = left.iter().take_while(|place| place.is_other() && place.key < end).count();
            return self.array.set_others(others);
        }
        let all = self.array.are_plain() && last.key < end;
        let plain = if all { left.len() } else { left.iter().take_while(|place| is_plain(place)).count() };
        let Some(leaving) = &mut self.leaving else { return self.array.set_plain(plain) };
        let (tracers, record) = (&self.tracers, |place| plain_record(cpu_rings, place));
        let left_out = self.array.leave_out(plain, |place| leaving.leaves_out(tracers, &record(place)));
        self.counts.left_out += left_out as u64;
    }

    /// Takes the picked record without yielding it, if it is to be left out.
    #[inline(always)]
    fn leave_out(&mut self, cpu_rings: &[CpuRing]) -> bool {
        self.leaving.is_some() && self.leave_out_picked(cpu_rings)
    }

    // What is yielded, and what is left.

    /// A plain place as an event.
    #[inline(always)]
    pub(crate) fn plain_event<'a>(&self, cpu_rings: &'a [CpuRing], place: Place) -> Event<'a> {
        let item = Item::Record(plain_record(cpu_rings, place));
        Event { key: Some(place.key), certainty: self.under.frontier.certainty, late_by: 0, item }
    }

    /// Folds the next event that was picked, or the plain ones before an end, and takes them.
    #[inline(always)]
    pub(crate) fn hand_out<'a, A, B>(
        &mut self,
        cpu_rings: &'a [CpuRing],
        plain_end: usize,
        mut all: A,
        mut each: impl FnMut(A, Event<'a>) -> ControlFlow<B, A>,
    ) -> ControlFlow<B, A> {
        let Self { array, under, .. } = self;
        let certainty = under.frontier.certainty;
        let (places, at) = array.walk(plain_end);
        for &place in places {
            // Before the function, which may panic.
            *at += 1;
            let item = Item::Record(plain_record(cpu_rings, place));
            let event = Event { key: Some(place.key), certainty, late_by: 0, item };
            all = each(all, event)?;
        }
        ControlFlow::Continue(all)
    }

    /// In a batch, whose events may still be borrowed, no tail advances. Whether a ring of which much was yielded fills
    /// up.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_fill(&mut self, cpu_rings: &[CpuRing]) {
        // The queue takes what was merged for yielded. So it can be asked only between two blocks.
        if !self.array.is_empty() {
            return;
        }
        for ((cursor, queue), cpu_ring) in self.under.cursors.iter_mut().zip(&self.under.queues).zip(cpu_rings) {
            self.rushed |= cursor.fills_up(&cpu_ring.ring, queue);
        }
    }

    /// The place with the smallest key that was not yielded.
    pub(crate) fn top(&self) -> Option<Place> {
        // What is merged is smaller than everything that is not (I7).
        self.array.left().first().copied().or_else(|| self.under.top())
    }

    /// The largest key yielded; 0 before any.
    pub(crate) fn last(&self) -> u64 {
        // take_other has kept those of other events, of which some have no key of their own.
        let before = self.array.before().filter(|place| place.is_plain());
        before.map_or(0, |place| place.key).max(self.last)
    }

    /// Places of a ring that were merged and not yielded, with their bytes. A loss in no ring is not among them.
    fn in_array(&self, ring_index: usize) -> impl Iterator<Item = Place> {
        self.array
            .left()
            .iter()
            .copied()
            .filter(move |place| place.ring_index() == ring_index && place.tag() != Tag::LOOSE)
    }

    /// The position before which everything of a ring is yielded, or was discarded.
    pub(crate) fn tail(&self, ring_index: usize) -> u64 {
        let cursor = &self.under.cursors[ring_index];
        let tail = cursor.tail(&self.under.queues[ring_index]);
        self.in_array(ring_index).map(|place| cursor.position(place)).fold(tail, u64::min)
    }

    /// Records of a ring that were yielded.
    pub(crate) fn records(&self, ring_index: usize) -> u64 {
        self.under.cursors[ring_index].records_taken(&self.under.queues[ring_index])
            - self.in_array(ring_index).count() as u64
    }

    // Items other than plain records, and notices before a record: the cold half.

    #[cold]
    #[inline(never)]
    fn leave_out_picked(&mut self, cpu_rings: &[CpuRing]) -> bool {
        let (record, tracers) = (self.picked.record(&self.under, cpu_rings), &self.tracers);
        let Some((leaving, record)) = self.leaving.as_mut().zip(record) else { return false };
        let is_left_out = leaving.leaves_out(tracers, &record);
        if is_left_out {
            self.counts.left_out += 1;
            self.take_other();
        }
        is_left_out
    }

    /// Picks the next place of the array, of any kind, if it may be yielded. `None` if it was passed over: it reports
    /// nothing new.
    #[inline(never)]
    fn pick_other(&mut self) -> Option<bool> {
        let place = *self.array.left().first()?;
        let note = self.under.cursor_of(place).note(place);
        if matches!(note, Some(Note::Reported)) {
            self.pass(place);
            return None;
        }
        let admitted = self.under.frontier.admits(place.key);
        let keyed = self.under.keyed(place);
        let dense = self.dense.as_ref().filter(|_| self.under.keys.are_sure);
        let step = dense.map(|dense| dense.step(place.key));
        let mut gap = None;
        let behind = self.last.saturating_sub(place.key);
        let own = || if behind > 0 { (Certainty::Late, behind) } else { (self.certainty(), 0) };
        let picked = match (keyed, step) {
            // Nothing orders it except its place in its ring.
            (Keyed::Never, _) => Some((Certainty::Assumed, 0)),
            // Numbers leave without a fence, but not before a report that is due.
            (_, Some(_)) if self.under.frontier.is_capped(place.key) => None,
            // It comes after the record before it, and shares its certainty.
            (Keyed::Before, Some(Step::Behind | Step::Next)) => Some(self.yielded_before(place)),
            (Keyed::Before, None) if admitted => Some(self.yielded_before(place)),
            (Keyed::Own, None) if admitted => Some(own()),
            (Keyed::Own, Some(Step::Next)) => Some((Certainty::Proven, 0)),
            (Keyed::Own, Some(Step::Behind)) => Some((Certainty::Late, behind)),
            (_, Some(Step::First)) if admitted => Some((self.under.frontier.certainty, 0)),
            // The numbers missing before a number that is proven to be the smallest that can still come.
            (_, Some(Step::Ahead(first))) if admitted => {
                // No underflow: the key is larger than the first missing number.
                gap = Some(Notice::Gap { first, last: place.key - 1, after: self.last_numbered() });
                Some((self.under.frontier.certainty, 0))
            }
            _ => None,
        };
        let Some((certainty, late_by)) = picked else { return Some(false) };
        self.picked = Pick::of(place, late_by, certainty);
        // One notice at a time: the place is picked again after it, until there is none.
        self.picked.notice = self.notice_before(note, gap, step);
        Some(true)
    }

    /// The notice that comes before the picked place.
    fn notice_before(&mut self, note: Option<Note>, gap: Option<Notice>, step: Option<Step>) -> Option<Notice> {
        if gap.is_some() || note.is_some_and(|note| !note.is_of_a_record()) {
            return gap;
        }
        // About a skipped number of the whole machine.
        let Pick { place, certainty, .. } = self.picked;
        let is_late = step == Some(Step::Behind) && certainty == Certainty::Late;
        if is_late
            && self.under.keyed(place) == Keyed::Own
            && let Some((kind, expected)) = self.dense.as_ref()?.anomaly(place.key, self.name_of(place))
        {
            return Some(Notice::Anomaly { kind, expected });
        }
        self.own_notice(note)
    }

    /// The certainty of an admitted key.
    #[inline]
    fn certainty(&self) -> Certainty {
        if self.under.keys.are_sure { self.under.frontier.certainty } else { Certainty::Assumed }
    }

    /// The number yielded last. Before any record the largest key is 0, which would look like one.
    fn last_numbered(&self) -> Option<u64> {
        let any = (0..self.under.cursors.len()).any(|ring_index| self.records(ring_index) > 0);
        any.then_some(self.last)
    }

    /// Certainty and lateness of the record before a place that has its key.
    fn yielded_before(&self, place: Place) -> (Certainty, u64) {
        let cursor = self.under.cursor_of(place);
        match cursor.yielded {
            Some((key, certainty, late_by)) if key == place.key => (certainty, late_by),
            _ if !self.under.keys.are_sure || Some(place.key) <= cursor.unproven => (Certainty::Assumed, 0),
            // It was a plain one.
            _ => (self.under.frontier.certainty, 0),
        }
    }

    /// The ring and the position of a place.
    fn name_of(&self, place: Place) -> (u32, u64) {
        (place.ring_index() as u32, self.under.cursor_of(place).position(place))
    }

    /// The notice about numbers of the record's CPU.
    fn own_notice(&mut self, note: Option<Note>) -> Option<Notice> {
        let place = self.picked.place;
        match note? {
            Note::Hole { cpu, hole, after, .. } => {
                let cursor = self.under.cursor_of(place);
                let numbers = cursor.numbers.as_ref()?;
                let gap = numbers.of(cpu)?.gap(&hole)?;
                // The frontier's own key proves nothing of numbers that were drawn at the same time.
                let proven = !self.under.frontier.rule.is_proof()
                    || Some(place.key) < self.under.frontier.key
                    || numbers.are_proven_before(cursor.position(place));
                // A gap in a ring does not depend on how late its record is. A key taken from another record proves
                // nothing.
                let own = self.under.keyed(place) == Keyed::Own && proven;
                self.picked.certainty = if own { self.certainty() } else { Certainty::Assumed };
                self.picked.late_by = 0;
                Some(Notice::OwnGap { cpu, gap, after })
            }
            Note::Anomaly { cpu, kind, expected, found, .. } => Some(Notice::OwnAnomaly { cpu, kind, expected, found }),
            Note::Lost { .. } | Note::Reported | Note::Fault { .. } | Note::Long { .. } => None,
        }
    }

    // Taking it.

    /// The event that was picked and is not a plain place. It is taken.
    #[cold]
    pub(crate) fn take_picked<'a>(&mut self, cpu_rings: &'a [CpuRing]) -> Event<'a> {
        let event = self.picked.event(&self.under, cpu_rings);
        self.take_other();
        event
    }

    /// Takes the picked event, of any kind.
    #[inline(never)]
    pub(crate) fn take_other(&mut self) {
        let Pick { place, late_by, certainty, notice } = self.picked;
        if let Some(notice) = notice {
            return self.commit_notice(notice);
        }
        let keyed = self.under.keyed(place);
        let cursor = &mut self.under.cursors[place.ring_index()];
        match cursor.note(place) {
            Some(Note::Lost { count, .. }) => cursor.counts.lost = cursor.counts.lost.saturating_add(count),
            Some(Note::Fault { .. }) => cursor.counts.corrupt += 1,
            _ => {
                if keyed == Keyed::Own {
                    cursor.yielded = Some((place.key, certainty, late_by));
                    if certainty != Certainty::Proven {
                        cursor.unproven = cursor.unproven.max(Some(place.key));
                    }
                    self.last = self.last.max(place.key);
                    if self.under.keys.are_sure
                        && let Some(dense) = &mut self.dense
                    {
                        dense.pass(place.key, certainty);
                    }
                }
                if certainty == Certainty::Late {
                    let counts = &mut self.under.cursors[place.ring_index()].counts;
                    (counts.late, counts.max_late) = (counts.late + 1, counts.max_late.max(late_by));
                }
            }
        }
        self.pass(place);
    }

    /// Passes the next place of the array.
    fn pass(&mut self, place: Place) {
        self.array.pass();
        self.under.cursors[place.ring_index()].take(place, &mut self.under.queues[place.ring_index()]);
    }

    /// Marks the notice of the picked event as yielded.
    fn commit_notice(&mut self, notice: Notice) {
        let place = self.picked.place;
        let ring_index = place.ring_index();
        match notice {
            Notice::Flushed { .. } | Notice::Untraced(_) => drop(self.under.notices.pop_front()),
            Notice::Gap { first, last, .. } => self.dense.iter_mut().for_each(|dense| dense.declare(first, last)),
            Notice::Anomaly { kind, .. } => {
                let of = self.name_of(place);
                self.dense.iter_mut().for_each(|dense| dense.reported(kind, of));
            }
            Notice::OwnGap { cpu, gap, .. } => {
                if let Some(numbers) = self.under.cursors[ring_index].numbers.as_mut().and_then(|all| all.of_mut(cpu)) {
                    // Other numbers of the hole may be missing: the record is picked again and asks for them.
                    numbers.declare(&gap);
                }
            }
            Notice::OwnAnomaly { .. } => {
                let cursor = &mut self.under.cursors[ring_index];
                cursor.notes.mark_reported(cursor.position(place));
            }
        }
    }
}

/// The record of a plain place, where it lies.
#[inline(always)]
pub(crate) fn plain_record(cpu_rings: &[CpuRing], place: Place) -> Record<'_> {
    let cpu_ring = &cpu_rings[place.ring_index()];
    Record::sample(cpu_ring.bytes_by_low(place.low(), place.size()), place.size(), &cpu_ring.origin)
}
