//! The merge: all rings' records as one stream, in place.

use crate::error::Error;
use crate::event::{Damage, Event, Gap, Irregular, Lost, OwnedEvent, What};
use crate::fronts::{Front, Fronts};
use crate::hold::{Class, Frontier, Hold};
use crate::key::{Key, Keys};
use crate::lookahead::{Entry, Keyed, Lookahead, Note, Shape};
use crate::loss::{Account, Ledger};
use crate::order::{Full, Mark, Order};
use crate::record::Record;
use crate::rings::{Lane, Rings};
use crate::sequence::{Break, Dense, Missing, Step};
use crate::stats::{NumberStats, Progress, RingStats, Stats};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// The rings of a machine merged into one stream, without waiting: the engine of [`Reader`](crate::Reader), for whoever
/// has an event loop of their own.
///
/// It sees only what was there at the last [`Merge::look`]; [`Rings::fds`](crate::Rings::fds) become readable when there
/// may be more. Under the fence rule, call [`Merge::begin_fence`] after each look, wait for a grace period if it says so
/// ([`Fence::open`](crate::Fence::open) gives something to wait with), call [`Merge::end_fence`] and look again.
///
/// ```
/// # use perfweave::{Hold, Merge, Order, What, sim};
/// let kernel = sim::Kernel::new(&[0, 1]);
/// let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::FENCE))?;
/// kernel.emit(1, 20, b"second");
/// kernel.emit(0, 10, b"first");
///
/// merge.look(0);
/// assert!(merge.next().is_none(), "something smaller may be on its way");
/// assert!(merge.begin_fence());
/// // ... a grace period ...
/// merge.end_fence();
/// merge.look(0);
/// assert_eq!(merge.next().unwrap().key(), Some(10));
/// assert_eq!(merge.next().unwrap().key(), Some(20));
/// # Ok::<(), perfweave::Error>(())
/// ```
///
/// An event borrows the merge; two cannot be held at once:
///
/// ```compile_fail,E0499
/// # use perfweave::{Merge, Order, sim};
/// # let mut merge = Merge::new(sim::Kernel::new(&[0]).rings(), Order::new()).unwrap();
/// let first = merge.next();
/// let second = merge.next();
/// drop(first);
/// ```
///
/// Nor can tails move while a record of a batch is still looked at:
///
/// ```compile_fail,E0499
/// # use perfweave::{Merge, Order, sim};
/// # let mut merge = Merge::new(sim::Kernel::new(&[0]).rings(), Order::new()).unwrap();
/// let event = merge.batch().next().unwrap();
/// merge.look(0);
/// println!("{:?}", event.record());
/// ```
///
/// Nor can a record outlive its ring:
///
/// ```compile_fail,E0597
/// # use perfweave::{Merge, Order, sim};
/// let kept = {
///     let mut merge = Merge::new(sim::Kernel::new(&[0]).rings(), Order::new()).unwrap();
///     merge.batch().next().and_then(|event| event.record())
/// };
/// println!("{kept:?}");
/// ```
pub struct Merge {
    rings: Rings,
    state: State,
    full: Full,
    mark: Mark,
}

/// All that changes while events are yielded. Kept apart from the rings, which the yielded events borrow.
struct State {
    keys: Keys,
    lookaheads: Vec<Lookahead>,
    fronts: Fronts,
    frontier: Frontier,
    sequence: Option<Dense>,
    /// The largest key yielded; 0 before any.
    last: u64,
    /// What is lent.
    picked: Pick,
    /// Whose yielded bytes are worth publishing.
    due: Due,
    /// The ring and position of the record of which a break in dense numbers was told.
    said: Option<(u32, u64)>,
    /// Late records that were put aside, and how many may be.
    aside: VecDeque<OwnedEvent>,
    late_aside: usize,
    stats: Stats,
}

/// What comes next, chosen but not yet taken: the front of a ring, or something to be said before it.
#[derive(Debug, Clone, Copy)]
struct Pick {
    late_by: u64,
    rank: u32,
    class: Class,
    part: Part,
}

/// What of a ring's front was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// It itself.
    Itself,
    /// The numbers of the whole machine that are missing before it.
    Gap,
    /// Those of its CPU.
    OwnGap,
    /// That its number, of the whole machine, is not the one that was expected.
    Break,
    /// That its CPU's is not.
    OwnBreak,
}

/// Whose yielded bytes are worth publishing with the next event.
#[derive(Debug, Clone, Copy)]
enum Due {
    Nobody,
    Ring(u32),
    /// A batch was handed out.
    Everybody,
}

impl Merge {
    /// Merges rings.
    ///
    /// # Errors
    /// If there is no ring, or the key is the kernel's time and a ring does not ask for it.
    pub fn new(mut rings: Rings, order: Order) -> Result<Self, Error> {
        if rings.lanes.is_empty() {
            return Err(Error::NoRings);
        }
        if matches!(order.key, Key::Time)
            && let Some(lane) = rings.lanes.iter().find(|lane| !lane.origin.layout.has_time())
        {
            return Err(Error::NoTime { cpu: lane.origin.cpu });
        }
        // Rank decides between equal keys: by CPU, then in the order in which the rings were added.
        rings.lanes.sort_by_key(|lane| lane.origin.cpu);
        // Keys that are times of the rings' clock cannot be from the future.
        let times = matches!(order.key, Key::Time) || matches!(order.hold, Hold::Lag(_));
        let dense_first = match order.hold {
            Hold::Dense { first, .. } => first.or(match &order.key {
                Key::Sequence(sequence) => sequence.first(),
                _ => None,
            }),
            _ => None,
        };
        let mut keys = Keys::new(order.key, times.then_some(rings.clock()), order.numbers, dense_first);
        let state = State {
            lookaheads: rings.lanes.iter().map(|lane| Lookahead::new(lane.ring.tail(), keys.new_numbers())).collect(),
            fronts: Fronts::with_capacity(rings.lanes.len()),
            frontier: Frontier::new(&order.hold),
            sequence: match order.hold {
                Hold::Dense { .. } => Some(Dense::new(dense_first.map(|first| keys.ordered(first)))),
                _ => None,
            },
            keys,
            last: 0,
            picked: Pick { late_by: 0, rank: 0, class: Class::Assumed, part: Part::Itself },
            due: Due::Nobody,
            said: None,
            aside: VecDeque::new(),
            late_aside: order.late_aside,
            stats: Stats::default(),
        };
        Ok(Self { rings, state, full: order.full, mark: order.mark })
    }

    /// Publishes the tails of everything yielded, loads every ring's head, and indexes what is new. Gives how many events
    /// that is.
    ///
    /// `now` is a reading, taken before this call, of the clock that stamps the keys. Only the lag rule uses it.
    ///
    /// # Panics
    /// If the key function does. What it panicked at is read again with the next look; until one has been complete,
    /// nothing new is let out. In a forked child, which does not have the rings.
    pub fn look(&mut self, now: u64) -> usize {
        self.rings.control().assert_not_forked();
        let held = self.held();
        let State { keys, lookaheads, .. } = &mut self.state;
        let lanes = self.rings.lanes.iter_mut().zip(lookaheads.iter_mut());
        let looked = catch_unwind(AssertUnwindSafe(|| {
            lanes.for_each(|(lane, lookahead)| lookahead.look(lane, keys));
        }));
        self.state.due = Due::Nobody;
        if looked.is_ok() {
            self.make_room();
        }
        self.state.looked(now, looked.is_ok());
        if let Err(panic) = looked {
            resume_unwind(panic);
        }
        self.held() - held
    }

    /// Does what is to be done about rings that held records fill beyond the mark.
    fn make_room(&mut self) {
        let mut copied: u64 = match self.full {
            Full::Copy { .. } => self.rings.lanes.iter().map(|lane| lane.copies.len()).sum(),
            _ => 0,
        };
        let mut press = None;
        for (lane, lookahead) in self.rings.lanes.iter_mut().zip(&mut self.state.lookaheads) {
            let (tail, used) = (lane.ring.tail(), lane.ring.head() - lane.ring.tail());
            if used <= self.mark.of(lane.ring.size()) {
                continue;
            }
            lookahead.counts.pressed += 1;
            match self.full {
                Full::Hold => {}
                Full::Copy { most } if copied.saturating_add(used) <= most as u64 => {
                    copied += lane.copies.take(&mut lane.ring);
                    lookahead.counts.copied += used;
                }
                // Down to half the mark, or the next record would press again.
                Full::Copy { .. } | Full::Release => {
                    let room = used - self.mark.of(lane.ring.size()) / 2;
                    press = press.max(lookahead.largest_before(tail + room));
                }
            }
        }
        if press.is_some() {
            self.state.frontier.press(press);
        }
    }

    /// Asks the kernel how many records it has dropped, and makes events of what no LOST record has told: loss that is
    /// followed by nothing. Gives whether there are any. A [`Reader`](crate::Reader) does this when its stream runs dry and
    /// before it reports a flush; it interrupts every CPU.
    ///
    /// Call it right after a [`Merge::look`].
    pub fn read_losses(&mut self) -> bool {
        self.read_losses_of(|_| true)
    }

    /// The same for rings that may have dropped something: all of them, or those of which nothing is held.
    pub(crate) fn read_suspect_losses(&mut self, all: bool) -> bool {
        self.read_losses_of(|lookahead| lookahead.suspect && (all || lookahead.len() == 0))
    }

    fn read_losses_of(&mut self, which: impl Fn(&Lookahead) -> bool) -> bool {
        let held = self.held();
        for (lane, lookahead) in self.rings.lanes.iter_mut().zip(&mut self.state.lookaheads) {
            if which(lookahead)
                && let Some(total) = lane.losses.read()
            {
                lookahead.dropped(total);
            }
        }
        let any = self.held() > held;
        if any {
            self.state.rebuild();
        }
        any
    }

    /// Something may have been dropped from any ring: output was paused.
    pub(crate) fn suspect_losses(&mut self) {
        self.state.lookaheads.iter_mut().for_each(|lookahead| lookahead.suspect = true);
    }

    /// What became of everything that was written, as the last look found it and the kernel counts it now. It interrupts
    /// every CPU.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger { accounts: Vec::new(), missing: self.state.stats.missing, unexplained: 0 };
        let mut told = 0u64;
        for (lane, lookahead) in self.rings.lanes.iter().zip(&self.state.lookaheads) {
            let counts = lookahead.counts;
            let total = lane.losses.read();
            let (lost, untold) = lookahead.lost(total);
            let numbers = lookahead.numbers.as_ref();
            let missing = numbers.map_or(0, |numbers| numbers.counts.missing.saturating_add(numbers.open()));
            told = told.saturating_add(lookahead.told());
            ledger.add(Account {
                yielded: counts.records,
                held: lookahead.records(),
                lost,
                untold,
                exact: total.is_some(),
                damaged: counts.damaged,
                missing,
                // What was dropped behind the last number leaves no hole yet.
                unexplained: missing.saturating_sub(lookahead.told()),
                ..Account::new(Some(lane.origin.cpu))
            });
        }
        ledger.unexplained = ledger.missing.saturating_sub(told);
        ledger
    }

    /// Late records that were kept out of the stream ([`Order::late_aside`]), oldest first. They are taken.
    pub fn late(&mut self) -> impl Iterator<Item = OwnedEvent> {
        self.state.aside.drain(..)
    }

    /// Why the stream is behind.
    pub fn progress(&self) -> Progress {
        let (frontier, keys) = (&self.state.frontier, &self.state.keys);
        let (seen, edge) = (frontier.seen(), frontier.edge());
        let top = self.state.fronts.top();
        let fullest = self.ring_stats().filter(|ring| ring.unread > 0).max_by_key(|ring| ring.unread);
        Progress {
            seen: seen.map(|key| keys.written(key)),
            frontier: edge.map(|key| keys.written(key)),
            lag: seen.map_or(0, |seen| seen.saturating_sub(edge.unwrap_or(0).max(self.state.last))),
            held: self.held(),
            held_bytes: self.state.lookaheads.iter().map(Lookahead::unread).sum(),
            next: top.map(|top| (self.rings.lanes[top.rank as usize].origin.cpu, keys.written(top.key))),
            fullest: fullest.map(|ring| ring.cpu),
            missing: top.and_then(|top| match self.state.sequence.as_ref()?.step(top.key) {
                Step::Ahead(first) => Some(keys.written(first)),
                _ => None,
            }),
        }
    }

    /// Takes notice of CPUs that came online since the rings were opened: a new one gets its ring, one that came back
    /// writes on into the one it had. A [`Reader`](crate::Reader) does this by itself. Gives whether there is a new ring,
    /// and with it a new file descriptor to wait for ([`Rings::fds`](crate::Rings::fds)).
    ///
    /// A CPU that goes offline needs nothing: what it wrote stays in its ring, which keeps nobody waiting. What programs output on
    /// a CPU between its coming online and this call is lost: `-EOPNOTSUPP` or `-ENOENT`, which the kernel counts
    /// nowhere.
    ///
    /// # Errors
    /// What opening a ring can end with, once for each CPU; it is tried again with each call.
    pub fn follow_cpus(&mut self) -> Result<bool, Error> {
        let mut new = Vec::new();
        let failed = self.rings.arrived(&mut new);
        let any = !new.is_empty();
        for lane in new {
            // Behind what is there of that CPU: ranks decide between equal keys.
            let rank = self.rings.lanes.partition_point(|other| other.origin.cpu <= lane.origin.cpu);
            self.state.lookaheads.insert(rank, Lookahead::new(lane.ring.tail(), self.state.keys.new_numbers()));
            self.rings.lanes.insert(rank, lane);
        }
        if any {
            self.state.due = Due::Everybody;
            self.state.rebuild();
        }
        failed.map(|()| any)
    }

    /// Lets out nothing that is larger than what has been seen, until [`Merge::lift_cap`].
    pub(crate) fn set_cap(&mut self) {
        self.state.frontier.set_cap();
    }

    pub(crate) fn lift_cap(&mut self) {
        self.state.frontier.lift_cap();
    }

    /// Whether all that is held waits for the cap to be lifted.
    pub(crate) fn is_drained(&self) -> bool {
        self.state.fronts.top().is_none_or(|top| self.state.frontier.is_capped(top.key))
    }

    /// Whether what was seen holds something that a grace period begun after this call would let out. If so, wait for
    /// one, then call [`Merge::end_fence`] and [`Merge::look`]; until then this answers false.
    ///
    /// What is already proven can be yielded meanwhile.
    pub fn begin_fence(&mut self) -> bool {
        // A dense sequence needs a fence only for numbers that are missing, or were given up in doubt.
        let doubt = self.state.sequence.as_ref().and_then(Dense::doubt);
        if self.state.sequence.is_some()
            && doubt <= self.state.frontier.edge()
            && (self.state.fronts.top().is_none() || self.is_ready())
        {
            return false;
        }
        self.state.frontier.begin_fence()
    }

    /// The grace period that [`Merge::begin_fence`] asked for has ended. What it proves may be yielded after the next
    /// look.
    pub fn end_fence(&mut self) {
        if self.state.frontier.end_fence() {
            self.state.stats.fences += 1;
        }
    }

    /// The grace period could not be waited for. [`Merge::begin_fence`] will ask again.
    pub fn fail_fence(&mut self) {
        self.state.frontier.fail_fence();
    }

    /// Whether [`Merge::next`] has an event to give.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        self.state.pick_in(&self.rings.lanes)
    }

    /// The next event of what the last look found, if it may be yielded.
    ///
    /// The event borrows the merge and is consumed when it is dropped; one that is forgotten comes again. Its bytes are
    /// given back to the kernel at the latest with the next look, earlier when they are a good part of their ring.
    ///
    /// # Panics
    /// In a forked child, which does not have the rings.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "not an iterator: it yields what borrows from it")]
    pub fn next(&mut self) -> Option<Lent<'_>> {
        self.rings.control().assert_not_forked();
        if self.is_ready() { Some(self.lend()) } else { None }
    }

    /// Lends what was picked.
    #[inline]
    pub(crate) fn lend(&mut self) -> Lent<'_> {
        self.publish_due();
        Lent { lanes: &self.rings.lanes, state: &mut self.state }
    }

    /// All events that may be yielded of what the last look found, as an iterator.
    ///
    /// Its items borrow the merge, not the iterator, so any number can be held; an item is consumed when it is handed
    /// out. Their bytes are given back to the kernel with the first call of the merge after the borrow.
    ///
    /// # Panics
    /// In a forked child, which does not have the rings.
    pub fn batch(&mut self) -> Batch<'_> {
        self.publish();
        self.state.due = Due::Everybody;
        Batch { lanes: &self.rings.lanes, state: &mut self.state }
    }

    /// Gives the bytes of everything yielded back to the kernel now.
    ///
    /// # Panics
    /// In a forked child, which does not have the rings.
    pub fn publish(&mut self) {
        self.rings.control().assert_not_forked();
        self.state.due = Due::Nobody;
        for (lane, lookahead) in self.rings.lanes.iter_mut().zip(&mut self.state.lookaheads) {
            lookahead.publish(lane);
        }
    }

    #[inline]
    fn publish_due(&mut self) {
        match self.state.due {
            Due::Nobody => {}
            Due::Everybody => self.publish(),
            Due::Ring(rank) => {
                self.state.due = Due::Nobody;
                self.state.lookaheads[rank as usize].publish(&mut self.rings.lanes[rank as usize]);
            }
        }
    }

    /// Whether a ring is so full that the kernel may soon run out of room: by more than what it wakes a reader for.
    pub(crate) fn is_crowded(&self) -> bool {
        self.rings.lanes.iter().any(|lane| lane.ring.head() - lane.ring.tail() > lane.ring.size() / 4)
    }

    /// How many events are indexed and not yet yielded.
    pub fn held(&self) -> usize {
        self.state.lookaheads.iter().map(Lookahead::len).sum()
    }

    /// How long, from a reading of the keys' clock on, until the smallest key may be yielded. `None` if nothing is
    /// held, or if no passing of time alone will do.
    pub fn wait(&self, now: u64) -> Option<Duration> {
        let top = self.state.fronts.top()?;
        self.state.frontier.wait(top.key, now)
    }

    /// The frontier: the largest key that may be yielded now. `None` before anything may.
    pub fn frontier(&self) -> Option<u64> {
        self.state.frontier.edge().map(|edge| self.state.keys.written(edge))
    }

    /// Whether [`Merge::look`] uses the clock reading it is given.
    pub(crate) fn needs_clock(&self) -> bool {
        self.state.frontier.needs_clock()
    }

    /// What was done so far.
    pub fn stats(&self) -> Stats {
        self.state.lookaheads.iter().fold(self.state.stats, |all, Lookahead { counts, numbers, .. }| Stats {
            records: all.records + counts.records,
            late: all.late + counts.late,
            max_late: all.max_late.max(counts.max_late),
            repaired: all.repaired + counts.repaired,
            lost: all.lost.saturating_add(counts.lost),
            damaged: all.damaged + counts.damaged,
            early: all.early + counts.early,
            copied: all.copied.saturating_add(counts.copied),
            missing: all.missing.saturating_add(numbers.as_ref().map_or(0, |numbers| numbers.counts.missing)),
            ..all
        })
    }

    /// What became of each ring, in the order of CPUs.
    pub fn ring_stats(&self) -> impl Iterator<Item = RingStats> {
        self.rings.lanes.iter().zip(&self.state.lookaheads).map(|(lane, lookahead)| {
            let counts = lookahead.counts;
            RingStats {
                cpu: lane.origin.cpu,
                size: lane.ring.size(),
                used: lane.ring.head() - lane.ring.tail(),
                most_used: counts.most_used,
                unread: lookahead.unread(),
                held: lookahead.len(),
                records: counts.records,
                late: counts.late,
                lost: counts.lost,
                damaged: counts.damaged,
                repaired: counts.repaired,
                pressed: counts.pressed,
                early: counts.early,
                copied: counts.copied,
                copied_now: lane.copies.len(),
                numbers: lookahead.numbers.as_ref().map(|numbers| NumberStats {
                    seen: numbers.counts.seen,
                    missing: numbers.counts.missing,
                    open: numbers.open(),
                    duplicates: numbers.counts.duplicates,
                    resets: numbers.counts.resets,
                    backward: numbers.counts.backward,
                    forward: numbers.counts.forward,
                    found: numbers.counts.found,
                }),
            }
        })
    }

    /// The rings that are merged.
    pub fn rings(&self) -> &Rings {
        &self.rings
    }
}

// What was picked is kept in `picked` and read from there, never passed on: copying what was only just put together
// costs more than putting it together.
impl State {
    /// Ends a look, whether it was complete or the key function panicked in it.
    fn looked(&mut self, now: u64, complete: bool) {
        self.lookaheads.iter_mut().for_each(Lookahead::settle);
        self.rebuild();
        // The frontier speaks of all heads.
        if complete {
            self.stats.looks += 1;
            self.frontier.looked(self.lookaheads.iter().filter_map(Lookahead::largest).max(), now);
        }
    }

    /// Takes all rings' fronts anew.
    fn rebuild(&mut self) {
        self.fronts.rebuild((0..).zip(&self.lookaheads).filter_map(|(rank, lookahead)| {
            let front = lookahead.front()?;
            Some(Front { key: front.key, rank })
        }));
    }

    /// Picks what comes next in the stream, if anything may. Late records are put aside, if they are to be.
    #[inline(always)]
    fn pick_in(&mut self, lanes: &[Lane]) -> bool {
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
        let is_record = self.front().is_some_and(|entry| entry.shape == Shape::Record);
        if self.aside.len() >= self.late_aside || self.picked.part != Part::Itself || !is_record {
            return false;
        }
        self.aside.push_back(self.event(lanes).to_owned());
        self.commit();
        true
    }

    /// Picks what comes next, if anything may.
    #[inline(always)]
    fn pick(&mut self) -> bool {
        let Some(top) = self.fronts.top() else { return false };
        let Some(entry) = self.lookaheads[top.rank as usize].front() else { return false };
        if self.sequence.is_some() || entry.keyed != Keyed::Own || entry.marked {
            return self.pick_other(top.rank);
        }
        if !self.frontier.admits(entry.key) {
            return false;
        }
        self.picked.late_by = self.last.saturating_sub(entry.key);
        self.picked.class = if self.picked.late_by > 0 { Class::Late } else { self.frontier.class(entry.key) };
        self.picked.rank = top.rank;
        self.picked.part = Part::Itself;
        true
    }

    /// Whether the front of a ring is a LOST record all of which was told before.
    fn is_told(&self, rank: u32) -> bool {
        let lookahead = &self.lookaheads[rank as usize];
        lookahead.front().is_some_and(|entry| {
            entry.shape == Shape::Lost && entry.marked && matches!(lookahead.note(entry), Some(Note::Told))
        })
    }

    /// The same where numbers are dense, the entry has no key of its own, or something is to be said before it.
    #[cold]
    #[inline(never)]
    fn pick_other(&mut self, rank: u32) -> bool {
        if self.is_told(rank) {
            // In a loop: a hostile ring may be full of them.
            let mut top = Some(rank);
            while let Some(rank) = top.filter(|rank| self.is_told(*rank)) {
                self.picked.rank = rank;
                self.take();
                top = self.fronts.top().map(|top| top.rank);
            }
            return self.pick();
        }
        let Some(entry) = self.lookaheads[rank as usize].front() else { return false };
        let pick =
            |class, late_by, gap| Some(Pick { rank, class, late_by, part: if gap { Part::Gap } else { Part::Itself } });
        let (class, late_by) = self.lookaheads[rank as usize].yielded;
        let admitted = self.frontier.admits(entry.key);
        let step = self.sequence.as_ref().map(|sequence| sequence.step(entry.key));
        let picked = match (entry.keyed, step) {
            // Nothing orders it but its place in its ring.
            (Keyed::Never, _) => pick(Class::Assumed, 0, false),
            // Numbers are let out by themselves, but not before a report that is due.
            (_, Some(_)) if self.frontier.is_capped(entry.key) => None,
            // It stays behind the record before it, and shares its class.
            (Keyed::Before, Some(Step::Behind | Step::Next)) => pick(class, late_by, false),
            (Keyed::Before, None) if admitted => pick(class, late_by, false),
            (Keyed::Own, None) if admitted => {
                let late_by = self.last.saturating_sub(entry.key);
                pick(if late_by > 0 { Class::Late } else { self.frontier.class(entry.key) }, late_by, false)
            }
            // Unless numbers were given up to make room, and may come after all.
            (Keyed::Own, Some(Step::Next)) => {
                let doubt = self.sequence.as_ref().and_then(Dense::doubt);
                pick(doubt.map_or(Class::Proven, |number| self.frontier.class(number)), 0, false)
            }
            (Keyed::Own, Some(Step::Behind)) => pick(Class::Late, self.last.saturating_sub(entry.key), false),

            (_, Some(Step::First)) if admitted => pick(self.frontier.class(entry.key), 0, false),
            // Whatever is missing before a number that is proven to be the smallest there will ever be.
            (_, Some(Step::Ahead(_))) if admitted => pick(self.frontier.class(entry.key), 0, true),
            _ => None,
        };
        let Some(mut picked) = picked else { return false };
        if picked.class == Class::Late
            && step == Some(Step::Behind)
            && entry.keyed == Keyed::Own
            && entry.shape == Shape::Record
            && self.said != Some((rank, entry.position))
            && self.broken_by(entry).is_some()
        {
            picked.part = Part::Break;
        }
        if entry.marked && picked.part == Part::Itself {
            let lookahead = &self.lookaheads[rank as usize];
            if lookahead.numbers.as_ref().is_some_and(|numbers| numbers.gap(entry.position).is_some()) {
                picked.part = Part::OwnGap;
                // What is missing from a ring has nothing to do with how late its record is. A key that is another record's
                // proves nothing.
                let own = entry.keyed == Keyed::Own;
                (picked.class, picked.late_by) = (if own { self.frontier.class(entry.key) } else { Class::Assumed }, 0);
            } else if matches!(lookahead.note(entry), Some(Note::Break { .. })) {
                picked.part = Part::OwnBreak;
            }
        }
        self.picked = picked;
        true
    }

    /// How a dense number that was passed came to be there, and which was expected, if that is to be told.
    fn broken_by(&self, entry: &Entry) -> Option<(Break, u64)> {
        self.sequence.as_ref()?.broken_by(entry.key, self.keys.written(entry.key))
    }

    /// The entry at the front of the ring that was picked.
    #[inline(always)]
    fn front(&self) -> Option<&Entry> {
        self.lookaheads[self.picked.rank as usize].front()
    }

    /// The record that was picked, if it is one.
    #[inline(always)]
    fn record<'a>(&self, lanes: &'a [Lane]) -> Option<Record<'a>> {
        let lane = &lanes[self.picked.rank as usize];
        let entry = self.front()?;
        if entry.shape != Shape::Record || self.picked.part != Part::Itself {
            return None;
        }
        let bytes = lane.bytes(entry.position, u64::from(entry.len));
        Some(entry.record(bytes, &lane.origin))
    }

    /// The key of what was picked.
    #[inline(always)]
    fn key(&self) -> Option<u64> {
        let entry = self.front()?;
        let has = entry.keyed == Keyed::Own && self.picked.part == Part::Itself;
        has.then(|| self.keys.written(entry.key))
    }

    /// The event that was picked.
    #[inline(always)]
    fn event<'a>(&self, lanes: &'a [Lane]) -> Event<'a> {
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
        let lane = &lanes[self.picked.rank as usize];
        let cpu = lane.origin.cpu;
        if let Some(gap) = self.gap(cpu) {
            return self.event_of(What::Gap(gap));
        }
        let Some(entry) = self.front() else { unreachable!("what was picked has an entry") };
        if self.picked.part == Part::Break
            && let Some((how, expected)) = self.broken_by(entry)
        {
            let (expected, found) = (self.keys.written(expected), self.keys.written(entry.key));
            return self.event_of(What::Irregular(Irregular { cpu, how, expected, found }));
        }
        self.event_of(match self.lookaheads[self.picked.rank as usize].note(entry) {
            Some(Note::Lost { id, count, after }) => {
                let after = after.map(|key| self.keys.written(key));
                What::Lost(Lost { cpu, count, id, source: lane.origin.source(id), after, until: self.key() })
            }
            Some(Note::Break { how, expected, found }) => What::Irregular(Irregular { cpu, how, expected, found }),
            Some(Note::Fault(fault)) => {
                let bytes = lane.bytes(entry.position, u64::from(entry.len));
                What::Damage(Damage { cpu, fault, bytes })
            }
            Some(Note::Told) | None => unreachable!("a loss and damage have their note"),
        })
    }

    /// The numbers that are missing before the front of a ring, if they were picked.
    fn gap(&self, cpu: u32) -> Option<Gap> {
        let front = self.front()?;
        let written = |key| self.keys.written(key);
        let until = (front.keyed == Keyed::Own).then(|| written(front.key));
        match self.picked.part {
            Part::Gap => {
                let (first, last) = self.machine_gap()?;
                let any = self.lookaheads.iter().any(|lookahead| lookahead.counts.records > 0);
                let after = any.then(|| written(self.last));
                let count = (last - first).saturating_add(1);
                Some(Gap { cpu: None, first: written(first), last: written(last), count, after, until })
            }
            Part::OwnGap => {
                let numbers = self.lookaheads[self.picked.rank as usize].numbers.as_ref()?;
                let Missing { first, last, count, after } = numbers.gap(front.position)?;
                Some(Gap { cpu: Some(cpu), first, last, count, after: after.map(written), until })
            }
            Part::Itself | Part::Break | Part::OwnBreak => None,
        }
    }

    /// The numbers of the whole machine that are missing before the front of the ring that was picked.
    fn machine_gap(&self) -> Option<(u64, u64)> {
        let number = self.front()?.key;
        match self.sequence.as_ref()?.step(number) {
            Step::Ahead(first) => Some((first, number - 1)),
            _ => None,
        }
    }

    /// Takes what was picked.
    #[inline]
    fn commit(&mut self) {
        let Some(&Entry { key, keyed, shape, marked, .. }) = self.front() else { return };
        if shape != Shape::Record || self.sequence.is_some() || marked {
            return self.commit_other();
        }
        let early = self.is_early(keyed);
        let lookahead = &mut self.lookaheads[self.picked.rank as usize];
        lookahead.counts.records += 1;
        lookahead.counts.early += u64::from(early);
        if keyed == Keyed::Own {
            self.last = self.last.max(key);
            lookahead.yielded = (self.picked.class, self.picked.late_by);
        }
        if self.picked.late_by > 0 {
            self.count_late();
        }
        self.take();
    }

    /// The same for what is no record, or where numbers are dense.
    #[cold]
    #[inline(never)]
    fn commit_other(&mut self) {
        let gap = self.machine_gap();
        let Some(&entry) = self.front() else { return };
        let Entry { key, keyed, shape, position, .. } = entry;
        let broken = if self.picked.part == Part::Break { self.broken_by(&entry) } else { None };
        let early = self.is_early(keyed);
        let lookahead = &mut self.lookaheads[self.picked.rank as usize];
        match (self.picked.part, gap, &mut self.sequence) {
            (Part::Gap, Some((first, last)), Some(sequence)) => {
                self.stats.missing = self.stats.missing.saturating_add((last - first).saturating_add(1));
                if self.picked.class != Class::Proven {
                    sequence.give_up_in_doubt(first, last, self.frontier.edge());
                } else {
                    sequence.declare(first, last);
                }
                sequence.passed(last);
                return;
            }
            (Part::OwnGap, ..) => {
                if let Some(numbers) = &mut lookahead.numbers {
                    numbers.declare(position);
                }
                return lookahead.said();
            }
            (Part::Break, _, Some(sequence)) => {
                if let Some((how, _)) = broken {
                    sequence.told(how);
                }
                self.said = Some((self.picked.rank, position));
                return;
            }
            (Part::OwnBreak, ..) => {
                lookahead.forget(position);
                return lookahead.said();
            }
            _ => {}
        }
        match (shape, lookahead.note(&entry)) {
            (Shape::Record, _) => {
                lookahead.counts.records += 1;
                lookahead.counts.early += u64::from(early);
                if keyed == Keyed::Own {
                    self.last = self.last.max(key);
                    lookahead.yielded = (self.picked.class, self.picked.late_by);
                    if let Some(sequence) = &mut self.sequence {
                        match self.picked.class {
                            Class::Late => self.stats.missing -= u64::from(sequence.found(key)),
                            Class::Assumed => sequence.begin_in_doubt(key),
                            Class::Proven => {}
                        }
                        sequence.passed(key);
                    }
                }
                if self.picked.class == Class::Late {
                    self.count_late();
                }
            }
            (Shape::Lost, Some(Note::Lost { count, .. })) => {
                lookahead.counts.lost = lookahead.counts.lost.saturating_add(count);
            }
            _ => lookahead.counts.damaged += 1,
        }
        self.take();
    }

    /// Whether the record that was picked could have been proven, and was let out before.
    #[inline]
    fn is_early(&self, keyed: Keyed) -> bool {
        self.picked.class == Class::Assumed && keyed != Keyed::Never && self.frontier.can_prove()
    }

    #[cold]
    fn count_late(&mut self) {
        let counts = &mut self.lookaheads[self.picked.rank as usize].counts;
        counts.late += 1;
        counts.max_late = counts.max_late.max(self.picked.late_by);
    }

    /// Takes the front of the ring that was picked out of the merge.
    #[inline]
    fn take(&mut self) {
        let rank = self.picked.rank;
        let lookahead = &mut self.lookaheads[rank as usize];
        lookahead.take();
        if lookahead.unpublished() && !matches!(self.due, Due::Everybody) {
            self.due = Due::Ring(rank);
        }
        self.fronts.advance(lookahead.front().map(|front| front.key));
    }
}

/// An event lent by [`Merge::next`] or [`Reader::next`](crate::Reader::next). Consumed when dropped.
pub struct Lent<'a> {
    lanes: &'a [Lane],
    /// Its `picked` is this event.
    state: &'a mut State,
}

// Each looks at the event where it lies rather than at a copy made beforehand: what is not asked for is not computed.
impl<'a> Lent<'a> {
    /// The event.
    #[inline]
    pub fn event(&self) -> Event<'a> {
        self.state.event(self.lanes)
    }

    /// See [`Event::key`].
    #[inline]
    pub fn key(&self) -> Option<u64> {
        self.state.key()
    }

    /// See [`Event::class`].
    #[inline]
    pub fn class(&self) -> Class {
        self.state.picked.class
    }

    /// See [`Event::late_by`].
    #[inline]
    pub fn late_by(&self) -> u64 {
        self.state.picked.late_by
    }

    /// See [`Event::cpu`].
    #[inline]
    pub fn cpu(&self) -> Option<u32> {
        self.event().cpu()
    }

    /// See [`Event::what`].
    #[inline]
    pub fn what(&self) -> What<'a> {
        self.event().what()
    }

    /// See [`Event::record`].
    #[inline]
    pub fn record(&self) -> Option<Record<'a>> {
        self.state.record(self.lanes)
    }

    /// Bytes of what was seen in its ring that are left when this event is consumed. cilium/ebpf's `Record.Remaining`.
    pub fn remaining(&self) -> u64 {
        let unread = self.state.lookaheads[self.state.picked.rank as usize].unread();
        let own = self
            .state
            .front()
            .filter(|_| self.state.picked.part == Part::Itself)
            .map_or(0, |entry| u64::from(entry.len));
        unread - own
    }

    /// See [`Event::to_owned`].
    pub fn to_owned(&self) -> OwnedEvent {
        self.event().to_owned()
    }
}

impl Drop for Lent<'_> {
    #[inline]
    fn drop(&mut self) {
        self.state.commit();
    }
}

impl fmt::Debug for Lent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event().fmt(f)
    }
}

/// The events that could be yielded when it was made. See [`Merge::batch`].
pub struct Batch<'a> {
    lanes: &'a [Lane],
    state: &'a mut State,
}

impl<'a> Iterator for Batch<'a> {
    type Item = Event<'a>;

    #[inline]
    fn next(&mut self) -> Option<Event<'a>> {
        if !self.state.pick_in(self.lanes) {
            return None;
        }
        let event = Some(self.state.event(self.lanes));
        self.state.commit();
        event
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl fmt::Debug for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merge")
            .field("rings", &self.rings)
            .field("keys", &self.state.keys)
            .field("frontier", &self.state.frontier)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
