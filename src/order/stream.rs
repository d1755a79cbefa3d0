//! The merged stream: which event comes next, which notices come before it, and what taking it changes.

use crate::account::stats::Stats;
mod notices;

use crate::order::entry::{Entry, Keyed};
use crate::order::event::{Event, Item, OwnedEvent, Unproven};
use crate::order::heap::{Front, Fronts};
use crate::order::hold::{Class, Frontier};
use crate::order::index::{Index, Stretch};
use crate::order::key::Keys;
use crate::order::own::Own;
use crate::order::run::Pool;
use crate::record::Record;
use crate::ring::{Bytes, prefetch};
use crate::rings::{Lane, Untraced};
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::numbers::Hole;
use crate::sequence::tracker::Tracker;
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// So many bytes ahead the CPU is asked for what is yielded soon from the same ring: the index has read a part of it, and that may have
/// been long ago.
const AHEAD: u64 = 512;

/// All that changes while events are yielded. Kept apart from the rings, which the yielded events borrow.
pub(crate) struct Stream {
    pub(crate) keys: Keys,
    pub(crate) indexes: Vec<Index>,
    pub(crate) fronts: Fronts,
    pub(crate) frontier: Frontier,
    pub(crate) sequence: Option<Tracker>,
    /// The blocks of the index that are not in use.
    pub(crate) pool: Pool,
    /// The largest key yielded; 0 before any.
    pub(crate) last: u64,
    /// The event that is lent.
    pub(crate) picked: Pick,
    /// If not 0: what is picked is the first of a stretch. The keys below this come from the ring of what is picked, from its run and
    /// one after the other, and all of them are of its class.
    until: u64,
    /// Whether the fronts do not know how far that ring is, because of a stretch that was begun.
    ahead: bool,
    /// Whose yielded bytes are worth publishing.
    pub(crate) due: Due,
    /// A ring fills up while its events are yielded: a look is due before more are.
    pub(crate) rushed: bool,
    /// The ring and position of the record of which an anomaly in numbers of the machine was told.
    said: Option<(u32, u64)>,
    /// Whether the records that come were let out early, which was told.
    early: bool,
    /// Why, if they are.
    pub(crate) pressed: Option<Unproven>,
    /// That a counter of the machine may have wrapped around unseen, which is to be told: the number that was expected.
    pub(crate) wraparound: Option<u64>,
    /// Notices about no record: to be told before anything else.
    pub(crate) notices: VecDeque<Notice>,
    /// Late records that were put aside, and how many may be.
    pub(crate) aside: VecDeque<OwnedEvent>,
    pub(crate) late_side_output: usize,
    /// Records that are left out, if any are.
    pub(crate) own: Option<Own>,
    pub(crate) stats: Stats,
}

/// The next event, chosen but not yet taken: the front of a ring, or a notice before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pick {
    pub(crate) entry: Entry,
    pub(crate) late_by: u64,
    pub(crate) rank: u32,
    pub(crate) class: Class,
    pub(crate) notice: Option<Notice>,
}

/// A notice before the front of a ring. Numbers are counted on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Notice {
    /// Everything from before a flush was yielded.
    Flushed,
    /// Nothing of a CPU is traced, or it is again.
    Untraced(Untraced),
    /// From here on records are let out before their order is proven.
    Unproven(Unproven),
    /// The counter of the whole machine may have wrapped around unseen.
    Wraparound { expected: u64 },
    /// Numbers of the whole machine are missing.
    Gap { first: u64, last: u64 },
    /// The number of the whole machine is not the one that was expected.
    Anomaly { kind: AnomalyKind, expected: u64 },
    /// Numbers of its CPU are missing, behind the record with a key.
    OwnGap { gap: Hole, after: Option<u64> },
    /// Its CPU's number, as it was written, is not the one that was expected.
    OwnAnomaly { kind: AnomalyKind, expected: u64, found: u64 },
}

/// Whose yielded bytes are worth publishing with the next event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Due {
    Nobody,
    Ring(u32),
    /// A batch was handed out.
    Everybody,
}

// The picked event stays in `picked` and is read from there, never passed on: copying it so soon costs more than
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
            fronts: Fronts::with_capacity(indexes.len()),
            keys,
            indexes,
            frontier,
            sequence,
            pool: Pool::default(),
            last: 0,
            until: 0,
            ahead: false,
            picked: Pick { entry: Entry::NONE, late_by: 0, rank: 0, class: Class::Assumed, notice: None },
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

    /// Takes all rings' fronts anew.
    pub(crate) fn rebuild(&mut self) {
        (self.until, self.ahead) = (0, false);
        self.fronts.rebuild((0..).zip(&self.indexes).filter_map(|(rank, index)| {
            let key = index.front_key()?;
            Some(Front { key, rank })
        }));
    }

    /// Whether what comes next is picked, as a part of a stretch.
    #[inline(always)]
    pub(crate) fn is_at_hand(&self) -> bool {
        self.until > 0
    }

    /// Picks what comes next in the stream, if anything may. Late records are put aside, if they are to be, and our own left out.
    #[inline(always)]
    pub(crate) fn pick_in(&mut self, lanes: &[Lane]) -> bool {
        self.is_at_hand() || self.pick_anew_in(lanes)
    }

    #[inline(never)]
    fn pick_anew_in(&mut self, lanes: &[Lane]) -> bool {
        if self.pick_notice() {
            return true;
        }
        // Nothing of a stretch is late.
        while !self.begin_stretch() {
            if !self.pick_alone() {
                return false;
            }
            if (self.picked.class != Class::Late || !self.put_aside(lanes)) && !self.leave_out(lanes) {
                return true;
            }
        }
        true
    }

    /// Takes the record that was picked without yielding it, if it is our own.
    #[inline(always)]
    fn leave_out(&mut self, lanes: &[Lane]) -> bool {
        self.own.is_some() && self.leave_out_own(lanes)
    }

    /// The smallest key of all that is held, and its ring.
    pub(crate) fn top(&self) -> Option<Front> {
        self.fronts.top().and_then(|top| {
            let next = |rank| Some(Front { key: self.indexes.get(rank as usize)?.front_key()?, rank });
            if self.ahead { self.fronts.with_top_at(next(top.rank)) } else { Some(top) }
        })
    }

    /// Tells the fronts how far the ring is that was picked from.
    #[inline(always)]
    pub(crate) fn sync(&mut self) {
        self.until = 0;
        if self.ahead {
            self.ahead = false;
            let key = self.indexes[self.picked.rank as usize].front_key();
            self.fronts.advance(key);
        }
    }

    /// Picks what comes next, if anything may.
    #[inline(never)]
    pub(crate) fn pick(&mut self) -> bool {
        self.is_at_hand() || self.begin_stretch() || self.pick_alone()
    }

    /// Picks from the run of the ring whose turn it is, if that alone says what comes next: nothing is picked that is not in the
    /// run, nothing that is let out early or late, nothing that another ring comes before.
    #[inline(always)]
    fn begin_stretch(&mut self) -> bool {
        self.sync();
        let Some(Front { key, rank }) = self.fronts.top() else { return false };
        let until = self.frontier.until().min(self.fronts.until());
        let counts = self.sequence.is_some() || self.wraparound.is_some();
        // What may be our own is looked at one by one.
        if key >= until || key < self.last || !self.keys.are_sure() || counts || self.own.is_some() {
            return false;
        }
        let index = &mut self.indexes[rank as usize];
        let until = until.min(index.beside());
        let Some(entry) = index.plain_before(until) else { return false };
        let class = self.frontier.class(key);
        index.yielded = (class, 0);
        self.picked = Pick { entry, late_by: 0, rank, class, notice: None };
        (self.until, self.ahead, self.early) = (until, true, false);
        true
    }

    /// Picks what comes next by itself. The fronts are known.
    #[inline(never)]
    fn pick_alone(&mut self) -> bool {
        let Some(Front { rank, .. }) = self.fronts.top() else { return false };
        let Some(entry) = self.indexes[rank as usize].front() else { return false };
        if self.sequence.is_some() || self.wraparound.is_some() || !entry.is_plain() {
            return self.pick_other(rank);
        }
        if !self.frontier.admits(entry.key) {
            return false;
        }
        let late_by = self.last.saturating_sub(entry.key);
        let class = if late_by > 0 { Class::Late } else { self.class(entry.key) };
        self.picked = Pick { entry, late_by, rank, class, notice: None };
        if class == Class::Assumed {
            self.picked.notice = self.unproven();
        }
        true
    }

    /// What a key that is admitted may call itself.
    #[inline]
    fn class(&self, key: u64) -> Class {
        if self.keys.is_sure(key) { self.frontier.class(key) } else { Class::Assumed }
    }

    /// The notice before the picked event, which is assumed.
    #[inline]
    fn unproven(&self) -> Option<Notice> {
        let begins = !self.early && self.is_early();
        begins.then_some(self.pressed?).map(Notice::Unproven)
    }

    /// The record that was picked, if it is one.
    #[inline(always)]
    pub(crate) fn record<'a>(&self, lanes: &'a [Lane]) -> Option<Record<'a>> {
        let Pick { entry, rank, notice, .. } = &self.picked;
        if self.until == 0 && (notice.is_some() || (!entry.is_plain() && !self.is_record())) {
            return None;
        }
        let lane = &lanes[*rank as usize];
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

    /// Bytes of the record that was picked.
    pub(crate) fn len(&self) -> u64 {
        if self.picked.notice.is_some() { 0 } else { self.picked.entry.len() }
    }

    /// What the event is that was picked.
    #[inline(always)]
    pub(crate) fn item<'a>(&self, lanes: &'a [Lane]) -> Item<'a> {
        match self.record(lanes) {
            Some(record) => Item::Record(record),
            None => self.other(lanes).item,
        }
    }

    /// The event that was picked.
    #[inline(always)]
    pub(crate) fn event<'a>(&self, lanes: &'a [Lane]) -> Event<'a> {
        match self.record(lanes) {
            Some(record) => self.event_of(Item::Record(record)),
            None => self.other(lanes),
        }
    }

    #[inline(always)]
    fn event_of<'a>(&self, item: Item<'a>) -> Event<'a> {
        Event { key: self.key(), class: self.picked.class, late_by: self.picked.late_by, item }
    }

    /// Folds what comes next, as taken: one event, or several records in a row. Breaks with the end of it all: what the function
    /// broke off with, or what it made of everything, if nothing more may come.
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
        if self.until == 0 {
            let event = self.event(lanes);
            self.commit_anew();
            if self.indexes[self.picked.rank as usize].unpublished() {
                self.heed(lanes);
            }
            return each(all, event).map_break(ControlFlow::Break);
        }
        let Self { keys, indexes, pool, picked: Pick { rank, class, .. }, last, until, .. } = self;
        let lane = &lanes[*rank as usize];
        // What comes behind it is picked anew, also if the function panics.
        let mut stretch = Stretch::new(&mut indexes[*rank as usize], std::mem::take(until), pool, last);
        // They lie one behind the other: bounds of the ring are asked for once, and those of each record within it.
        let mut run = lane.run(stretch.position());
        let handed = loop {
            // The function may have forked, and a child does not have the ring.
            lane.ring.assert_here();
            let Some(entry) = stretch.next() else { break ControlFlow::Continue(all) };
            prefetch(run, AHEAD as usize);
            let bytes = match run.split_at_checked(entry.record_len() as usize) {
                Some((bytes, rest)) => {
                    run = rest;
                    Bytes::from(bytes)
                }
                None => {
                    run = lane.run(stretch.position());
                    lane.bytes(entry.position, entry.record_len())
                }
            };
            let record = entry.record(bytes, &lane.origin);
            let (key, item) = (Some(keys.written(entry.key)), Item::Record(record));
            match each(all, Event { key, class: *class, late_by: 0, item }) {
                ControlFlow::Continue(next) => all = next,
                ControlFlow::Break(broken) => break ControlFlow::Break(ControlFlow::Break(broken)),
            }
        };
        if stretch.end() {
            self.heed(lanes);
        }
        handed
    }

    /// A good part of the ring that was picked from was yielded. In a batch, whose events may still be borrowed, nothing is published:
    /// there it is only asked whether the ring fills up.
    #[inline(never)]
    pub(crate) fn heed(&mut self, lanes: &[Lane]) {
        let rank = self.picked.rank;
        if matches!(self.due, Due::Everybody) {
            let ring = &lanes[rank as usize].ring;
            self.rushed = ring.fills_up();
            self.indexes[rank as usize].publish_later(ring);
        } else {
            self.due = Due::Ring(rank);
        }
    }

    /// Takes the event that was picked.
    #[inline(always)]
    pub(crate) fn commit(&mut self) {
        if self.until == 0 {
            return self.commit_anew();
        }
        let Pick { entry, rank, .. } = &mut self.picked;
        let index = &mut self.indexes[*rank as usize];
        self.last = entry.key;
        if !index.step_plain(entry, self.until, &mut self.pool) {
            self.until = 0;
        }
        if index.unpublished() && !matches!(self.due, Due::Everybody) {
            self.due = Due::Ring(*rank);
        }
    }

    /// The same for an event that was picked by itself.
    #[inline(never)]
    fn commit_anew(&mut self) {
        let Pick { entry, late_by, rank, class, ref notice } = self.picked;
        if notice.is_some() || self.sequence.is_some() || !entry.is_plain() {
            return self.commit_other();
        }
        let early = self.is_early();
        let index = &mut self.indexes[rank as usize];
        index.counts_mut().records += 1;
        index.counts_mut().early += u64::from(early);
        index.yielded = (class, late_by);
        self.last = self.last.max(entry.key);
        if class == Class::Late {
            self.count_late();
        } else {
            self.early = early;
        }
        self.take();
    }

    /// Whether the record that was picked was let out before the hold rule would have.
    #[inline]
    fn is_early(&self) -> bool {
        let Pick { entry, class, .. } = &self.picked;
        *class == Class::Assumed && self.frontier.is_early(entry.key) && entry.keyed() != Keyed::Never
    }

    #[cold]
    fn count_late(&mut self) {
        let counts = self.indexes[self.picked.rank as usize].counts_mut();
        counts.late += 1;
        counts.max_late = counts.max_late.max(self.picked.late_by);
    }

    /// Takes the front of the ring that was picked out of the merge.
    #[inline]
    fn take(&mut self) {
        let rank = self.picked.rank;
        let index = &mut self.indexes[rank as usize];
        index.take(&mut self.pool);
        if index.unpublished() && !matches!(self.due, Due::Everybody) {
            self.due = Due::Ring(rank);
        }
        self.fronts.advance(index.front_key());
    }
}
