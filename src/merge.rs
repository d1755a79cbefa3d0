//! The merge: all rings' records as one stream, in place.

use crate::error::Error;
use crate::event::{Damage, Event, Gap, Lost, OwnedEvent, What};
use crate::fronts::{Front, Fronts};
use crate::hold::{Class, Frontier, Hold};
use crate::key::{Key, Keys};
use crate::lookahead::{Entry, Keyed, Lookahead, Note, Shape};
use crate::record::Record;
use crate::rings::{Lane, Rings};
use crate::sequence::{Sequence, Step};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// How a stream is put in order.
#[derive(Debug, Default)]
pub struct Order {
    pub(crate) key: Key,
    pub(crate) hold: Hold,
}

impl Order {
    /// The kernel's timestamps as keys, held until a fence has proven their order.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets where keys are found.
    pub fn key(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// Sets when keys may be yielded.
    pub fn hold(mut self, hold: Hold) -> Self {
        self.hold = hold;
        self
    }
}

/// What a merge has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Records yielded.
    pub records: u64,
    /// Of these, late.
    pub late: u64,
    /// The largest lateness, in units of the key.
    pub max_late: u64,
    /// Records that came out of order inside their ring and were put in place.
    pub repaired: u64,
    /// Records that the kernel's LOST records count as dropped.
    pub lost: u64,
    /// Numbers declared missing.
    pub missing: u64,
    /// Damage events.
    pub damaged: u64,
    /// Looks at all heads.
    pub looks: u64,
    /// Fences that ended.
    pub fences: u64,
}

/// What became of one ring so far, and how full it is. Bytes are those of the data area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingStats {
    /// The CPU.
    pub cpu: u32,
    /// Bytes of the ring.
    pub size: u64,
    /// Bytes that the kernel could not reuse at the last look: unread, or not yet given back.
    pub used: u64,
    /// The most that were used at any look: how large the ring needs to be.
    pub most_used: u64,
    /// Bytes that were seen and are not yielded yet.
    pub unread: u64,
    /// Events that were seen and are not yielded yet.
    pub held: usize,
    /// Records yielded.
    pub records: u64,
    /// Of these, late.
    pub late: u64,
    /// Records that the kernel's LOST records count as dropped.
    pub lost: u64,
    /// Damage events.
    pub damaged: u64,
    /// Records that came out of order and were put in place.
    pub repaired: u64,
}

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
}

/// All that changes while events are yielded. Kept apart from the rings, which the yielded events borrow.
struct State {
    keys: Keys,
    lookaheads: Vec<Lookahead>,
    fronts: Fronts,
    frontier: Frontier,
    sequence: Option<Sequence>,
    /// The largest key yielded; 0 before any.
    last: u64,
    /// What is lent.
    picked: Pick,
    /// Whose yielded bytes are worth publishing.
    due: Due,
    stats: Stats,
}

/// What comes next, chosen but not yet taken: the front of a ring, or the gap before it.
#[derive(Debug, Clone, Copy)]
struct Pick {
    late_by: u64,
    rank: u32,
    class: Class,
    gap: bool,
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
        let keys = Keys::new(order.key, times.then_some(rings.clock()));
        let state = State {
            lookaheads: rings.lanes.iter().map(|lane| Lookahead::new(lane.ring.tail())).collect(),
            fronts: Fronts::with_capacity(rings.lanes.len()),
            frontier: Frontier::new(&order.hold),
            sequence: match order.hold {
                Hold::Dense { first, .. } => Some(Sequence::new(first)),
                _ => None,
            },
            keys,
            last: 0,
            picked: Pick { late_by: 0, rank: 0, class: Class::Assumed, gap: false },
            due: Due::Nobody,
            stats: Stats::default(),
        };
        Ok(Self { rings, state })
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
            lanes.for_each(|(lane, lookahead)| lookahead.look(&mut lane.ring, &lane.origin, keys));
        }));
        self.state.due = Due::Nobody;
        self.state.looked(now, looked.is_ok());
        if let Err(panic) = looked {
            resume_unwind(panic);
        }
        self.held() - held
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
            self.state.lookaheads.insert(rank, Lookahead::new(lane.ring.tail()));
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
        // A dense sequence needs a fence only for numbers that are missing.
        if self.state.sequence.is_some() && (self.state.fronts.top().is_none() || self.is_ready()) {
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
        self.state.pick()
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
        if self.state.pick() { Some(self.lend()) } else { None }
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
            lookahead.publish(&mut lane.ring);
        }
    }

    #[inline]
    fn publish_due(&mut self) {
        match self.state.due {
            Due::Nobody => {}
            Due::Everybody => self.publish(),
            Due::Ring(rank) => {
                self.state.due = Due::Nobody;
                let ring = &mut self.rings.lanes[rank as usize].ring;
                self.state.lookaheads[rank as usize].publish(ring);
            }
        }
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
        self.state.frontier.edge()
    }

    /// Whether [`Merge::look`] uses the clock reading it is given.
    pub(crate) fn needs_clock(&self) -> bool {
        self.state.frontier.needs_clock()
    }

    /// What was done so far.
    pub fn stats(&self) -> Stats {
        self.state.lookaheads.iter().fold(self.state.stats, |all, Lookahead { counts, .. }| Stats {
            records: all.records + counts.records,
            late: all.late + counts.late,
            max_late: all.max_late.max(counts.max_late),
            repaired: all.repaired + counts.repaired,
            lost: all.lost.saturating_add(counts.lost),
            damaged: all.damaged + counts.damaged,
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

    /// Picks what comes next, if anything may.
    #[inline(always)]
    fn pick(&mut self) -> bool {
        let Some(top) = self.fronts.top() else { return false };
        let Some(entry) = self.lookaheads[top.rank as usize].front() else { return false };
        if self.sequence.is_some() || entry.keyed != Keyed::Own {
            return self.pick_other(top.rank);
        }
        if !self.frontier.admits(entry.key) {
            return false;
        }
        self.picked.late_by = self.last.saturating_sub(entry.key);
        self.picked.class = if self.picked.late_by > 0 { Class::Late } else { self.frontier.class() };
        self.picked.rank = top.rank;
        self.picked.gap = false;
        true
    }

    /// The same where numbers are dense, or the entry has no key of its own.
    #[cold]
    #[inline(never)]
    fn pick_other(&mut self, rank: u32) -> bool {
        let Some(entry) = self.lookaheads[rank as usize].front() else { return false };
        let pick = |class, late_by, gap| Some(Pick { rank, class, late_by, gap });
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
            (Keyed::Own, Some(Step::Next)) => pick(Class::Proven, 0, false),
            (Keyed::Own, Some(Step::Behind)) => pick(Class::Late, self.last.saturating_sub(entry.key), false),

            (_, Some(Step::First)) if admitted => pick(Class::Proven, 0, false),
            // Whatever is missing before a number that is proven to be the smallest there will ever be.
            (_, Some(Step::Ahead(_))) if admitted => pick(Class::Proven, 0, true),
            _ => None,
        };
        picked.map(|pick| self.picked = pick).is_some()
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
        if entry.shape != Shape::Record || self.picked.gap {
            return None;
        }
        let bytes = lane.ring.bytes(entry.position, u64::from(entry.len));
        Some(entry.record(bytes, &lane.origin))
    }

    /// The key of what was picked.
    #[inline(always)]
    fn key(&self) -> Option<u64> {
        let entry = self.front()?;
        (entry.keyed == Keyed::Own && !self.picked.gap).then_some(entry.key)
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
        if let Some(gap) = self.gap() {
            return self.event_of(What::Gap(gap));
        }
        let lane = &lanes[self.picked.rank as usize];
        let cpu = lane.origin.cpu;
        let Some(entry) = self.front() else { unreachable!("what was picked has an entry") };
        self.event_of(match self.lookaheads[self.picked.rank as usize].note(entry.position) {
            Some(Note::Lost { id, count, after }) => {
                What::Lost(Lost { cpu, count, id, source: lane.origin.source(id), after, until: self.key() })
            }
            Some(Note::Fault(fault)) => {
                let bytes = lane.ring.bytes(entry.position, u64::from(entry.len));
                What::Damage(Damage { cpu, fault, bytes })
            }
            None => unreachable!("a loss and damage have their note"),
        })
    }

    /// The numbers that are missing before the front of a ring, if they were picked.
    fn gap(&self) -> Option<Gap> {
        let number = self.front()?.key;
        match self.sequence.as_ref()?.step(number) {
            Step::Ahead(first) if self.picked.gap => Some(Gap { first, last: number - 1 }),
            _ => None,
        }
    }

    /// Takes what was picked.
    #[inline]
    fn commit(&mut self) {
        let Some(&Entry { key, keyed, shape, .. }) = self.front() else { return };
        if shape != Shape::Record || self.sequence.is_some() {
            return self.commit_other();
        }
        let lookahead = &mut self.lookaheads[self.picked.rank as usize];
        lookahead.counts.records += 1;
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
        if let Some(gap) = self.gap() {
            self.stats.missing = self.stats.missing.saturating_add(gap.count());
            if let Some(sequence) = &mut self.sequence {
                sequence.passed(gap.last);
            }
            return;
        }
        let Some(&Entry { key, keyed, shape, position, .. }) = self.front() else { return };
        let lookahead = &mut self.lookaheads[self.picked.rank as usize];
        match (shape, lookahead.note(position)) {
            (Shape::Record, _) => {
                lookahead.counts.records += 1;
                if keyed == Keyed::Own {
                    self.last = self.last.max(key);
                    lookahead.yielded = (self.picked.class, self.picked.late_by);
                    if let Some(sequence) = &mut self.sequence {
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
        let own = self.state.front().filter(|_| !self.state.picked.gap).map_or(0, |entry| u64::from(entry.len));
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
        if !self.state.pick() {
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
