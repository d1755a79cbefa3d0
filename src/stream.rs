//! The merged stream: which event comes next, what is said before it, and what taking it changes.

use crate::breaks::Break;
use crate::dense::{Dense, Step};
use crate::event::{Damage, Event, Gap, Irregular, Lost, OwnedEvent, Unproven, What};
use crate::fronts::{Front, Fronts};
use crate::hold::{Class, Frontier};
use crate::key::Keys;
use crate::lookahead::{Entry, Keyed, Lookahead, Note, Stretch};
use crate::numbers::Missing;
use crate::record::Record;
use crate::rings::Lane;
use crate::run::Pool;
use crate::stats::Stats;
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// All that changes while events are yielded. Kept apart from the rings, which the yielded events borrow.
pub(crate) struct Stream {
    pub(crate) keys: Keys,
    pub(crate) lookaheads: Vec<Lookahead>,
    pub(crate) fronts: Fronts,
    pub(crate) frontier: Frontier,
    pub(crate) sequence: Option<Dense>,
    /// The blocks of the index that are not in use.
    pub(crate) pool: Pool,
    /// The largest key yielded; 0 before any.
    pub(crate) last: u64,
    /// What is lent.
    pub(crate) picked: Pick,
    /// The keys below this come from the ring that was picked from last, from its run and one after the other; all of them are of
    /// the class that was picked last. While it is not 0, the fronts do not know how far that ring is.
    until: u64,
    /// Whose yielded bytes are worth publishing.
    pub(crate) due: Due,
    /// The ring and position of the record of which a break in dense numbers was told.
    said: Option<(u32, u64)>,
    /// Whether the records that come were let out early, which was told.
    early: bool,
    /// Why, if they are.
    pub(crate) pressed: Option<Unproven>,
    /// That counting went astray, which is to be told: the number that was expected.
    pub(crate) astray: Option<u64>,
    /// Late records that were put aside, and how many may be.
    pub(crate) aside: VecDeque<OwnedEvent>,
    pub(crate) late_aside: usize,
    pub(crate) stats: Stats,
}

/// What comes next, chosen but not yet taken: the front of a ring, or something that is said before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pick {
    pub(crate) entry: Entry,
    pub(crate) late_by: u64,
    pub(crate) rank: u32,
    pub(crate) class: Class,
    pub(crate) notice: Option<Notice>,
}

/// What is said before the front of a ring. Numbers are counted on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Notice {
    /// From here on records are let out before their order is proven.
    Unproven(Unproven),
    /// Counting of the whole machine's numbers went astray.
    Astray { expected: u64 },
    /// Numbers of the whole machine are missing.
    Gap { first: u64, last: u64 },
    /// The number of the whole machine is not the one that was expected.
    Break { how: Break, expected: u64 },
    /// Numbers of its CPU are missing.
    OwnGap(Missing),
    /// Its CPU's number, as it was written, is not the one that was expected.
    OwnBreak { how: Break, expected: u64, found: u64 },
}

/// Whose yielded bytes are worth publishing with the next event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Due {
    Nobody,
    Ring(u32),
    /// A batch was handed out.
    Everybody,
}

// What was picked is kept in `picked` and read from there, never passed on: copying what was only just put together
// costs more than putting it together.
impl Stream {
    pub(crate) fn new(
        keys: Keys,
        lookaheads: Vec<Lookahead>,
        frontier: Frontier,
        sequence: Option<Dense>,
        late_aside: usize,
    ) -> Self {
        Self {
            fronts: Fronts::with_capacity(lookaheads.len()),
            keys,
            lookaheads,
            frontier,
            sequence,
            pool: Pool::default(),
            last: 0,
            until: 0,
            picked: Pick { entry: Entry::NONE, late_by: 0, rank: 0, class: Class::Assumed, notice: None },
            due: Due::Nobody,
            said: None,
            early: false,
            pressed: None,
            astray: None,
            aside: VecDeque::new(),
            late_aside,
            stats: Stats::default(),
        }
    }

    /// Takes all rings' fronts anew.
    pub(crate) fn rebuild(&mut self) {
        self.until = 0;
        self.fronts.rebuild((0..).zip(&self.lookaheads).filter_map(|(rank, lookahead)| {
            let key = lookahead.front_key()?;
            Some(Front { key, rank })
        }));
    }

    /// Picks what comes next in the stream, if anything may. Late records are put aside, if they are to be.
    #[inline(always)]
    pub(crate) fn pick_in(&mut self, lanes: &[Lane]) -> bool {
        while self.pick() {
            if self.picked.class != Class::Late || !self.put_aside(lanes) {
                return true;
            }
        }
        false
    }

    /// Puts what was picked aside; false if it is to stay in the stream.
    #[cold]
    fn put_aside(&mut self, lanes: &[Lane]) -> bool {
        if self.aside.len() >= self.late_aside || self.record(lanes).is_none() {
            return false;
        }
        self.aside.push_back(self.event(lanes).to_owned());
        self.commit();
        true
    }

    /// The smallest key of all that is held, and its ring.
    pub(crate) fn top(&self) -> Option<Front> {
        self.fronts.top().and_then(|top| {
            let next = |rank| Some(Front { key: self.lookaheads.get(rank as usize)?.front_key()?, rank });
            if self.until == 0 { Some(top) } else { self.fronts.with_top_at(next(top.rank)) }
        })
    }

    /// Tells the fronts how far the ring is that was picked from.
    #[inline]
    pub(crate) fn sync(&mut self) {
        if self.until > 0 {
            self.until = 0;
            let key = self.lookaheads[self.picked.rank as usize].front_key();
            self.fronts.advance(key);
        }
    }

    /// Picks what comes next, if anything may.
    #[inline(always)]
    pub(crate) fn pick(&mut self) -> bool {
        if let Some(entry) = self.lookaheads[self.picked.rank as usize].plain_before(self.until) {
            self.picked.entry = entry;
            return true;
        }
        self.pick_anew()
    }

    /// Picks from the ring whose turn it is.
    #[inline(never)]
    fn pick_anew(&mut self) -> bool {
        self.sync();
        let Some(Front { rank, .. }) = self.fronts.top() else { return false };
        let Some(entry) = self.lookaheads[rank as usize].front() else { return false };
        if self.sequence.is_some() || self.astray.is_some() || !entry.is_plain() {
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
        if self.picked.notice.is_none() && late_by == 0 && self.keys.are_sure() {
            // Nothing is picked that is not in the run, nothing that is let out early, nothing that another ring comes before.
            let lookahead = &mut self.lookaheads[rank as usize];
            let until = self.frontier.until().min(self.fronts.until()).min(lookahead.beside());
            if lookahead.plain_before(until).is_some() {
                (self.until, self.early) = (until, false);
                lookahead.yielded = (class, 0);
            }
        }
        true
    }

    /// What a key that is admitted may call itself.
    #[inline]
    fn class(&self, key: u64) -> Class {
        if self.keys.is_sure(key) { self.frontier.class(key) } else { Class::Assumed }
    }

    /// What is to be said before what was picked, which is assumed.
    #[inline]
    fn unproven(&self) -> Option<Notice> {
        let begins = !self.early && self.is_early();
        begins.then_some(self.pressed?).map(Notice::Unproven)
    }

    /// The same where numbers are dense, the entry has no key of its own, or something is noted of it.
    #[cold]
    #[inline(never)]
    fn pick_other(&mut self, rank: u32) -> bool {
        // LOST records all of which was told before. In a loop: a hostile ring may be full of them.
        let mut top = rank;
        let (entry, note) = loop {
            let Some(entry) = self.lookaheads[top as usize].front() else { return false };
            let note = self.lookaheads[top as usize].note(&entry);
            if !matches!(note, Some(Note::Told)) {
                break (entry, note);
            }
            self.picked.rank = top;
            self.take();
            let Some(next) = self.fronts.top() else { return false };
            top = next.rank;
        };
        if top != rank && self.sequence.is_none() && self.astray.is_none() && entry.is_plain() {
            return self.pick();
        }
        let rank = top;
        let (class, late_by) = self.lookaheads[rank as usize].yielded;
        let admitted = self.frontier.admits(entry.key);
        let keyed = entry.keyed();
        let sequence = self.sequence.as_ref().filter(|_| self.keys.is_sure(entry.key));
        let step = sequence.map(|sequence| sequence.step(entry.key));
        let mut gap = None;
        let behind = self.last.saturating_sub(entry.key);
        let own = || if behind > 0 { (Class::Late, behind) } else { (self.class(entry.key), 0) };
        let picked = match (keyed, step) {
            // Nothing orders it but its place in its ring.
            (Keyed::Never, _) => Some((Class::Assumed, 0)),
            // Numbers are let out by themselves, but not before a report that is due.
            (_, Some(_)) if self.frontier.is_capped(entry.key) => None,
            // It stays behind the record before it, and shares its class.
            (Keyed::Before, Some(Step::Behind | Step::Next)) => Some((class, late_by)),
            (Keyed::Before, None) if admitted => Some((class, late_by)),
            (Keyed::Own, None) if admitted => Some(own()),
            // Unless numbers were given up to make room, and may come after all.
            (Keyed::Own, Some(Step::Next)) => {
                let doubt = self.sequence.as_ref().and_then(Dense::doubt);
                Some((doubt.map_or(Class::Proven, |number| self.frontier.class(number)), 0))
            }
            (Keyed::Own, Some(Step::Behind)) => Some((Class::Late, behind)),
            (_, Some(Step::First)) if admitted => Some((self.frontier.class(entry.key), 0)),
            // Whatever is missing before a number that is proven to be the smallest there will ever be.
            (_, Some(Step::Ahead(first))) if admitted => {
                gap = Some(Notice::Gap { first, last: entry.key - 1 });
                Some((self.frontier.class(entry.key), 0))
            }
            _ => None,
        };
        let Some((class, late_by)) = picked else { return false };
        self.picked = Pick { entry, late_by, rank, class, notice: None };
        let is_record = !matches!(note, Some(Note::Lost { .. } | Note::Fault(_)));
        if is_record && keyed == Keyed::Own {
            let unproven = || if class == Class::Assumed { self.unproven() } else { None };
            self.picked.notice = self.astray.map(|expected| Notice::Astray { expected }).or_else(unproven);
        }
        self.picked.notice = self.picked.notice.or(gap);
        if self.picked.notice.is_none() && is_record {
            self.picked.notice = self.machine_break(step).or_else(|| self.own_notice(note));
        }
        true
    }

    /// What is to be said of a number of the whole machine that was passed.
    fn machine_break(&self, step: Option<Step>) -> Option<Notice> {
        let Pick { entry, rank, class, .. } = &self.picked;
        if step != Some(Step::Behind) || *class != Class::Late || entry.keyed() != Keyed::Own {
            return None;
        }
        if self.said == Some((*rank, entry.position)) {
            return None;
        }
        let (how, expected) = self.sequence.as_ref()?.broken_by(entry.key, self.keys.written(entry.key))?;
        Some(Notice::Break { how, expected })
    }

    /// What is to be said of its CPU's own numbers.
    fn own_notice(&mut self, note: Option<Note>) -> Option<Notice> {
        let Pick { entry, rank, .. } = self.picked;
        match note? {
            Note::Hole => {
                let missing = self.lookaheads[rank as usize].numbers.as_ref()?.gap(entry.position)?;
                // What is missing from a ring has nothing to do with how late its record is. A key that is another record's
                // proves nothing.
                let own = entry.keyed() == Keyed::Own;
                self.picked.class = if own { self.class(entry.key) } else { Class::Assumed };
                self.picked.late_by = 0;
                Some(Notice::OwnGap(missing))
            }
            Note::Break { how, expected, found } => Some(Notice::OwnBreak { how, expected, found }),
            Note::Lost { .. } | Note::Told | Note::Fault(_) => None,
        }
    }

    /// The record that was picked, if it is one.
    #[inline(always)]
    pub(crate) fn record<'a>(&self, lanes: &'a [Lane]) -> Option<Record<'a>> {
        let Pick { entry, rank, notice, .. } = &self.picked;
        if self.until == 0 && (notice.is_some() || (!entry.is_plain() && !self.is_record())) {
            return None;
        }
        let lane = &lanes[*rank as usize];
        Some(entry.record(lane.bytes(entry.position, entry.record_len()), &lane.origin))
    }

    /// Whether what was picked, or the notice before, is of a record.
    #[cold]
    fn is_record(&self) -> bool {
        let note = self.lookaheads[self.picked.rank as usize].note(&self.picked.entry);
        !matches!(note, Some(Note::Lost { .. } | Note::Told | Note::Fault(_)))
    }

    /// The key of what was picked.
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

    /// The event that was picked.
    #[inline(always)]
    pub(crate) fn event<'a>(&self, lanes: &'a [Lane]) -> Event<'a> {
        match self.record(lanes) {
            Some(record) => self.event_of(What::Record(record)),
            None => self.other(lanes),
        }
    }

    #[inline(always)]
    fn event_of<'a>(&self, what: What<'a>) -> Event<'a> {
        Event { key: self.key(), class: self.picked.class, late_by: self.picked.late_by, what }
    }

    /// What was picked, if it is no record.
    #[cold]
    #[inline(never)]
    fn other<'a>(&self, lanes: &'a [Lane]) -> Event<'a> {
        let Pick { entry, rank, notice, .. } = &self.picked;
        let lane = &lanes[*rank as usize];
        let cpu = lane.origin.cpu;
        let written = |key| self.keys.written(key);
        if let Some(notice) = notice {
            return self.event_of(self.told(notice, cpu));
        }
        self.event_of(match self.lookaheads[*rank as usize].note(entry) {
            Some(Note::Lost { id, count, after }) => {
                let (after, until) = (after.map(written), self.key());
                What::Lost(Lost { cpu, count, id, source: lane.origin.source(id), after, until })
            }
            Some(Note::Fault(fault)) => {
                What::Damage(Damage { cpu, fault, bytes: lane.bytes(entry.position, entry.len()) })
            }
            _ => unreachable!("all others are records, or passed over"),
        })
    }

    /// A notice before what was picked, as it is told.
    fn told(&self, notice: &Notice, cpu: u32) -> What<'static> {
        let entry = &self.picked.entry;
        let written = |key| self.keys.written(key);
        let own = || (entry.keyed() == Keyed::Own).then(|| written(entry.key));
        match *notice {
            Notice::Unproven(unproven) => What::Unproven(unproven),
            Notice::Astray { expected } => What::Irregular(Irregular {
                cpu,
                how: Break::Ambiguous,
                expected: written(expected),
                found: written(entry.key),
            }),
            Notice::Break { how, expected } => {
                What::Irregular(Irregular { cpu, how, expected: written(expected), found: written(entry.key) })
            }
            Notice::OwnBreak { how, expected, found } => What::Irregular(Irregular { cpu, how, expected, found }),
            Notice::Gap { first, last } => {
                let any = self.lookaheads.iter().any(|lookahead| lookahead.counts().records > 0);
                let after = any.then(|| written(self.last));
                let count = (last - first).saturating_add(1);
                What::Gap(Gap { cpu: None, first: written(first), last: written(last), count, after, until: own() })
            }
            Notice::OwnGap(Missing { first, last, count, after }) => {
                What::Gap(Gap { cpu: Some(cpu), first, last, count, after: after.map(written), until: own() })
            }
        }
    }

    /// Hands what comes next to a function, as taken: one event, or several records in a row. Gives whether there was anything, and
    /// what the function broke off with.
    #[inline(always)]
    pub(crate) fn hand_out<'a, B>(
        &mut self,
        lanes: &'a [Lane],
        mut each: impl FnMut(Event<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<Option<B>> {
        if !self.pick_in(lanes) {
            return ControlFlow::Break(None);
        }
        if self.until == 0 {
            let event = self.event(lanes);
            self.commit_anew();
            return each(event).map_break(Some);
        }
        let Self { keys, lookaheads, pool, picked: Pick { rank, class, .. }, last, due, until, .. } = self;
        let lane = &lanes[*rank as usize];
        let mut stretch = Stretch::new(&mut lookaheads[*rank as usize], *until, pool, last);
        let mut handed = ControlFlow::Continue(());
        while let Some(entry) = stretch.next() {
            let record = entry.record(lane.bytes(entry.position, entry.record_len()), &lane.origin);
            let (key, what) = (Some(keys.written(entry.key)), What::Record(record));
            handed = each(Event { key, class: *class, late_by: 0, what }).map_break(Some);
            if handed.is_break() {
                break;
            }
        }
        if stretch.end() && !matches!(due, Due::Everybody) {
            *due = Due::Ring(*rank);
        }
        handed
    }

    /// Takes what was picked.
    #[inline(always)]
    pub(crate) fn commit(&mut self) {
        if self.until == 0 {
            return self.commit_anew();
        }
        let Pick { entry, rank, .. } = &self.picked;
        let lookahead = &mut self.lookaheads[*rank as usize];
        self.last = entry.key;
        lookahead.take_plain(entry, &mut self.pool);
        if lookahead.unpublished() && !matches!(self.due, Due::Everybody) {
            self.due = Due::Ring(*rank);
        }
    }

    /// The same for what was picked by itself.
    #[inline(never)]
    fn commit_anew(&mut self) {
        let Pick { entry, late_by, rank, class, ref notice } = self.picked;
        if notice.is_some() || self.sequence.is_some() || !entry.is_plain() {
            return self.commit_other();
        }
        let early = self.is_early();
        let lookahead = &mut self.lookaheads[rank as usize];
        lookahead.counts_mut().records += 1;
        lookahead.counts_mut().early += u64::from(early);
        lookahead.yielded = (class, late_by);
        self.last = self.last.max(entry.key);
        if class == Class::Late {
            self.count_late();
        } else {
            self.early = early;
        }
        self.take();
    }

    /// The same for what is no record, where something is noted of it, or where numbers are dense.
    #[cold]
    #[inline(never)]
    fn commit_other(&mut self) {
        let Pick { entry, late_by, rank, class, notice } = self.picked;
        if let Some(notice) = notice {
            return self.commit_notice(notice);
        }
        let keyed = entry.keyed();
        let early = self.is_early();
        let lookahead = &mut self.lookaheads[rank as usize];
        match lookahead.note(&entry) {
            Some(Note::Lost { count, .. }) => {
                lookahead.counts_mut().lost = lookahead.counts().lost.saturating_add(count)
            }
            Some(Note::Fault(_)) => lookahead.counts_mut().damaged += 1,
            Some(Note::Hole | Note::Break { .. } | Note::Told) | None => {
                lookahead.counts_mut().records += 1;
                lookahead.counts_mut().early += u64::from(early);
                if keyed == Keyed::Own {
                    lookahead.yielded = (class, late_by);
                    self.last = self.last.max(entry.key);
                    self.pass(entry.key, class);
                    if class != Class::Late {
                        self.early = early;
                    }
                }
                if class == Class::Late {
                    self.count_late();
                }
            }
        }
        self.take();
    }

    /// Moves a dense sequence on behind a record that is taken.
    fn pass(&mut self, key: u64, class: Class) {
        if !self.keys.is_sure(key) {
            return;
        }
        let Some(sequence) = &mut self.sequence else { return };
        match class {
            Class::Late => self.stats.missing -= u64::from(sequence.found(key)),
            Class::Assumed => sequence.begin_in_doubt(key),
            Class::Proven => {}
        }
        sequence.passed(key);
    }

    /// What was picked was told: what follows from that.
    fn commit_notice(&mut self, notice: Notice) {
        let Pick { entry, rank, class, .. } = self.picked;
        match notice {
            Notice::Unproven(_) => self.early = true,
            Notice::Astray { .. } => self.astray = None,
            Notice::Gap { first, last } => {
                self.stats.missing = self.stats.missing.saturating_add((last - first).saturating_add(1));
                let Some(sequence) = &mut self.sequence else { return };
                if class == Class::Proven {
                    sequence.declare(first, last);
                } else {
                    sequence.give_up_in_doubt(first, last);
                }
                sequence.passed(last);
            }
            Notice::Break { how, .. } => {
                if let Some(sequence) = &mut self.sequence {
                    sequence.told(how);
                }
                self.said = Some((rank, entry.position));
            }
            Notice::OwnGap(_) => {
                if let Some(numbers) = &mut self.lookaheads[rank as usize].numbers {
                    numbers.declare(entry.position);
                }
            }
            Notice::OwnBreak { .. } => self.lookaheads[rank as usize].forget(entry.position),
        }
    }

    /// Whether the record that was picked was let out before the hold rule would have.
    #[inline]
    fn is_early(&self) -> bool {
        let Pick { entry, class, .. } = &self.picked;
        *class == Class::Assumed && self.frontier.is_early(entry.key) && entry.keyed() != Keyed::Never
    }

    #[cold]
    fn count_late(&mut self) {
        let counts = self.lookaheads[self.picked.rank as usize].counts_mut();
        counts.late += 1;
        counts.max_late = counts.max_late.max(self.picked.late_by);
    }

    /// Takes the front of the ring that was picked out of the merge.
    #[inline]
    fn take(&mut self) {
        let rank = self.picked.rank;
        let lookahead = &mut self.lookaheads[rank as usize];
        lookahead.take(&mut self.pool);
        if lookahead.unpublished() && !matches!(self.due, Due::Everybody) {
            self.due = Due::Ring(rank);
        }
        self.fronts.advance(lookahead.front_key());
    }
}
