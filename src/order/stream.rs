//! The merged stream: which event comes next, which notices come before it, and what taking it changes.

use crate::account::stats::Stats;
mod notices;

use crate::order::entry::{Entry, Keyed};
use crate::order::event::{EarlyRelease, Event, Item, OwnedEvent};
use crate::order::fronts::{Front, Fronts, Player};
use crate::order::hold::{Certainty, Frontier};
use crate::order::index::Index;
use crate::order::key::Keys;
use crate::order::run::Slot;
use crate::order::self_filter::SelfFilter;
use crate::record::Record;
use crate::ring::{Bytes, prefetch};
use crate::rings::{Lane, Untraced};
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::numbers::Hole;
use crate::sequence::tracker::Tracker;
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// How many bytes ahead of the yielded record to prefetch in the same ring. The index has read a part of that memory, but maybe long ago.
const AHEAD: u64 = 512;

/// Everything that changes while events are yielded. Separate from the rings, which the yielded events borrow.
pub(crate) struct Stream {
    pub(crate) keys: Keys,
    pub(crate) indexes: Vec<Index>,
    pub(crate) fronts: Fronts,
    pub(crate) frontier: Frontier,
    pub(crate) sequence: Option<Tracker>,
    /// The largest key yielded; 0 before any.
    pub(crate) last: u64,
    /// The event that is lent.
    pub(crate) picked: Pick,
    /// Exclusive key bound of the current stretch; 0 if none. A stretch begins with the picked event, a plain record of a ring. All records
    /// of the ring with a key below the bound come next, in the order of the ring and with the same certainty, as long as they are plain.
    /// The fronts have the key with which the stretch began.
    until: u64,
    /// During a stretch, exclusive key bound of the records of its ring that come before all other rings; 0 if not known.
    others: u64,
    /// Which rings have enough yielded bytes to publish.
    pub(crate) due: Due,
    /// A ring fills up while its events are yielded, so a refresh is due before further events.
    pub(crate) rushed: bool,
    /// Ring and position of the record whose anomaly in numbers of the machine was reported.
    pub(crate) said: Option<(u32, u64)>,
    /// Whether records leave early, and this was reported.
    early: bool,
    /// The report of an early release that is due.
    pub(crate) pressed: Option<EarlyRelease>,
    /// A counter of the machine may have wrapped around unnoticed, and this is to be reported: the expected number.
    pub(crate) wraparound: Option<u64>,
    /// Notices about no record. They come before anything else.
    pub(crate) notices: VecDeque<Notice>,
    /// Late records that are kept out of the stream, and how many may be.
    pub(crate) aside: VecDeque<OwnedEvent>,
    pub(crate) late_side_output: usize,
    /// Finds records about the tracer, if those are left out.
    pub(crate) own: Option<SelfFilter>,
    pub(crate) stats: Stats,
}

/// The next event, chosen but not yet taken: the front of a ring, or a notice before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pick {
    pub(crate) entry: Entry,
    pub(crate) late_by: u64,
    pub(crate) rank: u32,
    pub(crate) certainty: Certainty,
    pub(crate) notice: Option<Notice>,
}

/// A notice before the front of a ring. Numbers are extended to 64 bits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Notice {
    /// All events from before a flush were yielded.
    Flushed,
    /// A CPU is not traced, or it is traced again.
    Untraced(Untraced),
    /// From here on records leave before their order is proven.
    EarlyRelease(EarlyRelease),
    /// The counter of the whole machine may have wrapped around unnoticed.
    Wraparound { expected: u64 },
    /// Numbers of the whole machine are missing.
    Gap { first: u64, last: u64 },
    /// The number of the whole machine is not the expected one.
    Anomaly { kind: AnomalyKind, expected: u64 },
    /// Numbers of the record's CPU are missing, after the record with key `after`.
    OwnGap { cpu: u32, gap: Hole, after: Option<u64> },
    /// The record's number on its CPU, as it was written, is not the expected one.
    OwnAnomaly { cpu: u32, kind: AnomalyKind, expected: u64, found: u64 },
}

/// Which rings have enough yielded bytes to publish with the next event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Due {
    Nobody,
    Ring(u32),
    /// A batch was handed out.
    Everybody,
}

// The picked event stays in `picked` and is read from there. It is never passed on: copying it right after it was written costs more than
// making it.
impl Stream {
    pub(crate) fn new(
        keys: Keys,
        indexes: Vec<Index>,
        frontier: Frontier,
        sequence: Option<Tracker>,
        late_side_output: usize,
    ) -> Self {
        Self {
            fronts: Fronts::new(),
            keys,
            indexes,
            frontier,
            sequence,
            last: 0,
            until: 0,
            others: 0,
            picked: Pick { entry: Entry::NONE, late_by: 0, rank: 0, certainty: Certainty::Assumed, notice: None },
            due: Due::Nobody,
            rushed: false,
            said: None,
            early: false,
            pressed: None,
            wraparound: None,
            notices: VecDeque::new(),
            aside: VecDeque::new(),
            late_side_output,
            own: None,
            stats: Stats::default(),
        }
    }

    /// Frees the spare blocks of all rings. Returns whether there were any.
    pub(crate) fn free_spare(&mut self) -> bool {
        let mut any = false;
        for index in &mut self.indexes {
            any |= index.free_spare();
        }
        any
    }

    /// Rebuilds the tournament from all rings' fronts.
    pub(crate) fn rebuild(&mut self) {
        self.until = 0;
        self.fronts.rebuild(self.indexes.iter().map(Index::front_key));
    }

    /// Picks the next event, if one may be yielded. Puts late records aside and leaves out records about the tracer, if the options say so.
    #[inline(always)]
    pub(crate) fn pick_in(&mut self, lanes: &[Lane]) -> bool {
        self.until > 0 || self.pick_anew(lanes)
    }

    #[inline(never)]
    fn pick_anew(&mut self, lanes: &[Lane]) -> bool {
        if self.pick_notice() {
            return true;
        }
        // What may be our own is looked at one by one, and a stretch is not.
        let plain = self.own.is_none() && self.sequence.is_none() && self.wraparound.is_none() && self.keys.are_sure();
        loop {
            let is_picked = (plain && self.pick_plain(true)) || self.pick_other();
            if !is_picked {
                return false;
            }
            if (self.picked.certainty != Certainty::Late || !self.put_aside(lanes)) && !self.leave_out(lanes) {
                return true;
            }
        }
    }

    /// Picks the front of the ring with the smallest key, if that is a plain record, and neither late nor early. If a stretch is likely,
    /// computes its end.
    #[inline(always)]
    fn pick_plain(&mut self, is_likely: bool) -> bool {
        let Some(Front { key, rank }) = self.fronts.top() else { return false };
        let until = self.frontier.until();
        if key >= until || key < self.last {
            return false;
        }
        let Some(entry) = self.indexes[rank as usize].plain_front(key) else {
            return self.pick_displaced(rank, is_likely);
        };
        self.pick_entry(entry, rank, is_likely)
    }

    /// [`Stream::pick_plain`] for a ring whose run does not have its smallest key.
    #[inline(never)]
    fn pick_displaced(&mut self, rank: u32, is_likely: bool) -> bool {
        let front = self.indexes[rank as usize].displaced_front();
        front.is_some_and(|entry| self.pick_entry(entry, rank, is_likely))
    }

    /// Picks a plain record, which is neither late nor early.
    #[inline(always)]
    fn pick_entry(&mut self, entry: Entry, rank: u32, is_likely: bool) -> bool {
        let certainty = self.frontier.certainty_of_rule();
        self.indexes[rank as usize].yielded = (certainty, 0);
        let is_likely = is_likely || rank == self.picked.rank;
        self.picked = Pick { entry, late_by: 0, rank, certainty, notice: None };
        (self.until, self.others) = if is_likely { self.end_of_stretch() } else { (entry.key + 1, 0) };
        self.early = false;
        true
    }

    /// The bound below which the top ring's keys come before those of all other rings, and its run before its displaced records; and the
    /// former alone.
    #[inline(never)]
    fn end_of_stretch(&self) -> (u64, u64) {
        let others = self.frontier.until().min(self.fronts.until());
        (others.min(self.indexes[self.picked.rank as usize].beside()), others)
    }

    /// Takes the picked record without yielding it, if it is about the tracer.
    #[inline(always)]
    fn leave_out(&mut self, lanes: &[Lane]) -> bool {
        self.own.is_some() && self.leave_out_own(lanes)
    }

    /// The smallest held key, and its ring.
    pub(crate) fn top(&self) -> Option<Front> {
        let Pick { entry, rank, .. } = self.picked;
        if self.until > 0 { Some(Front { key: entry.key, rank }) } else { self.fronts.top() }
    }

    /// Ends a stretch: the next event is picked again from all rings.
    pub(crate) fn sync(&mut self) {
        if self.until > 0 {
            self.until = 0;
            let rank = self.picked.rank;
            self.fronts.advance(Player::new(self.indexes[rank as usize].front_key(), rank));
        }
    }

    /// The certainty of an admitted key.
    #[inline]
    fn certainty(&self, key: u64) -> Certainty {
        if self.keys.is_sure(key) { self.frontier.certainty(key) } else { Certainty::Assumed }
    }

    /// The notice before a picked event that is assumed.
    #[inline]
    fn unproven(&self) -> Option<Notice> {
        let begins = !self.early && self.is_early();
        begins.then_some(self.pressed?).map(Notice::EarlyRelease)
    }

    /// The picked record, if the picked event is one.
    #[inline(always)]
    pub(crate) fn record<'a>(&self, lanes: &'a [Lane]) -> Option<Record<'a>> {
        let Pick { entry, rank, notice, .. } = &self.picked;
        let lane = &lanes[*rank as usize];
        if self.until == 0 && (notice.is_some() || !entry.is_plain()) {
            let is_record = notice.is_none() && self.is_record();
            return is_record.then(|| entry.any_record(lane.bytes(entry.position, entry.len()), &lane.origin));
        }
        lane.ring.prefetch(entry.position + AHEAD);
        Some(entry.record(lane.bytes(entry.position, entry.record_len()), &lane.origin))
    }

    /// The key of the picked event.
    #[inline(always)]
    pub(crate) fn key(&self) -> Option<u64> {
        let Pick { entry, notice, .. } = &self.picked;
        let has = self.until > 0 || (notice.is_none() && entry.keyed() == Keyed::Own);
        has.then(|| self.keys.written(entry.key))
    }

    /// Bytes of the picked record.
    pub(crate) fn len(&self) -> u64 {
        if self.picked.notice.is_some() { 0 } else { self.picked.entry.len() }
    }

    /// The item of the picked event.
    #[inline(always)]
    pub(crate) fn item<'a>(&self, lanes: &'a [Lane]) -> Item<'a> {
        match self.record(lanes) {
            Some(record) => Item::Record(record),
            None => self.other(lanes).item,
        }
    }

    /// The picked event.
    #[inline(always)]
    pub(crate) fn event<'a>(&self, lanes: &'a [Lane]) -> Event<'a> {
        match self.record(lanes) {
            Some(record) => self.event_of(Item::Record(record)),
            None => self.other(lanes),
        }
    }

    #[inline(always)]
    fn event_of<'a>(&self, item: Item<'a>) -> Event<'a> {
        Event { key: self.key(), certainty: self.picked.certainty, late_by: self.picked.late_by, item }
    }

    /// Folds the next events and takes them: one event, or several records of a stretch. Breaks at the end: with the function's break
    /// value, or with the accumulated value if no event is left.
    #[inline(always)]
    pub(crate) fn hand_out<'a, A, B>(
        &mut self,
        lanes: &'a [Lane],
        mut all: A,
        mut each: impl FnMut(A, Event<'a>) -> ControlFlow<B, A>,
    ) -> ControlFlow<ControlFlow<B, A>, A> {
        if !self.pick_in(lanes) {
            return ControlFlow::Break(ControlFlow::Continue(all));
        }
        let Pick { rank, certainty, entry, .. } = self.picked;
        if self.until <= entry.key.saturating_add(1) {
            let event = self.event(lanes);
            self.take();
            self.heed(rank, lanes);
            return each(all, event).map_break(ControlFlow::Break);
        }
        let lane = &lanes[rank as usize];
        let Self { keys, indexes, fronts, last, until, .. } = self;
        let index = &mut indexes[rank as usize];
        let mut stretch = Stretch { index, fronts, last, until, rank, taken: 0, position: entry.position };
        // The records are contiguous, so the ring's bounds are checked once, and each record is checked within them.
        let mut run = lane.run(stretch.position);
        let handed = loop {
            let Some(entry) = stretch.next() else { break ControlFlow::Continue(all) };
            prefetch(run, AHEAD as usize);
            let bytes = match run.split_at_checked(entry.record_len() as usize) {
                Some((bytes, rest)) => {
                    run = rest;
                    Bytes::from(bytes)
                }
                None => {
                    run = lane.run(stretch.position);
                    lane.bytes(entry.position, entry.record_len())
                }
            };
            let record = entry.record(bytes, &lane.origin);
            let (key, item) = (Some(keys.written(entry.key)), Item::Record(record));
            match each(all, Event { key, certainty, late_by: 0, item }) {
                ControlFlow::Continue(next) => all = next,
                ControlFlow::Break(broken) => break ControlFlow::Break(ControlFlow::Break(broken)),
            }
        };
        drop(stretch);
        self.heed(rank, lanes);
        handed
    }

    /// Checks how much of a ring was yielded.
    #[inline(always)]
    pub(crate) fn heed(&mut self, rank: u32, lanes: &[Lane]) {
        if self.indexes[rank as usize].unpublished() {
            self.heed_unpublished(rank, lanes);
        }
    }

    /// Much of a ring was yielded. In a batch, whose events may still be borrowed, nothing is published; this only checks whether the ring
    /// fills up.
    #[cold]
    #[inline(never)]
    fn heed_unpublished(&mut self, rank: u32, lanes: &[Lane]) {
        if matches!(self.due, Due::Everybody) {
            let ring = &lanes[rank as usize].ring;
            self.rushed = ring.fills_up();
            self.indexes[rank as usize].publish_later(ring);
        } else {
            self.due = Due::Ring(rank);
        }
    }

    /// Takes the picked event. Picks the next one of its stretch, if there is one.
    #[inline(always)]
    pub(crate) fn take(&mut self) {
        if self.until == 0 {
            return self.take_other();
        }
        let Pick { entry, rank, .. } = &mut self.picked;
        let index = &mut self.indexes[*rank as usize];
        let Some(next) = index.nth_plain(1).filter(|next| next.key < index.beside()) else {
            return self.take_last();
        };
        self.last = entry.key;
        *entry = index.step(entry, next);
        if index.unpublished() && !matches!(self.due, Due::Everybody) {
            self.due = Due::Ring(*rank);
        }
        if next.key >= self.until {
            let next = Player::new(Some(next.key), *rank);
            self.turn(next);
        }
    }

    /// Takes the last record of a stretch, the last one before a new block, or a displaced one.
    #[inline(never)]
    fn take_last(&mut self) {
        let Pick { entry, rank, .. } = self.picked;
        let index = &mut self.indexes[rank as usize];
        // A displaced record comes after a held one.
        let next = if entry.position == index.tail() {
            index.take_run(1, entry.position + entry.record_len())
        } else {
            index.take_displaced(&entry)
        };
        if index.unpublished() && !matches!(self.due, Due::Everybody) {
            self.due = Due::Ring(rank);
        }
        self.last = entry.key;
        match index.plain_before(next, self.others) {
            Some(next) => (self.picked.entry, self.until) = next,
            None => self.turn(Player::new(next, rank)),
        }
    }

    /// Ends a stretch with the next record of its ring. Picks from the ring with the smallest key.
    #[inline(never)]
    fn turn(&mut self, next: Player) {
        // Stretches of two and more tend to follow one another, and so do single records.
        let was_longer = self.fronts.top_key() < self.last;
        self.until = 0;
        self.fronts.advance(next);
        self.pick_plain(was_longer);
    }

    /// Whether the picked record leaves before the hold rule allows it.
    #[inline]
    fn is_early(&self) -> bool {
        let Pick { entry, certainty, .. } = &self.picked;
        *certainty == Certainty::Assumed && self.frontier.is_early(entry.key) && entry.keyed() != Keyed::Never
    }

    #[cold]
    fn count_late(&mut self) {
        let counts = self.indexes[self.picked.rank as usize].counts_mut();
        counts.late += 1;
        counts.max_late = counts.max_late.max(self.picked.late_by);
    }

    /// Takes the front of the picked ring out of the merge.
    #[inline]
    fn take_front(&mut self) {
        let rank = self.picked.rank;
        let index = &mut self.indexes[rank as usize];
        index.take();
        if index.unpublished() && !matches!(self.due, Due::Everybody) {
            self.due = Due::Ring(rank);
        }
        self.fronts.advance(Player::new(index.front_key(), rank));
    }
}

/// Contiguous plain records of a ring. The yielded ones are taken when this is dropped, even if the function panics.
struct Stretch<'a> {
    index: &'a mut Index,
    fronts: &'a mut Fronts,
    last: &'a mut u64,
    until: &'a mut u64,
    rank: u32,
    /// How many were yielded, and where they end.
    taken: usize,
    position: u64,
}

impl Stretch<'_> {
    /// The next record. Ends with a block of the run.
    #[inline(always)]
    fn next(&mut self) -> Option<Entry> {
        let Slot { key, header } = self.index.nth_plain(self.taken).filter(|next| next.key < *self.until)?;
        let entry = Entry { key, position: self.position, header };
        self.taken += 1;
        self.position += entry.record_len();
        *self.last = key;
        Some(entry)
    }
}

impl Drop for Stretch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let next = self.index.take_run(self.taken, self.position);
        *self.until = 0;
        self.fronts.advance(Player::new(next, self.rank));
    }
}
