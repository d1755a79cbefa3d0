//! The merge: all rings' records as one stream, in place.

use crate::error::Error;
use crate::event::{Damage, Event, Gap, Lost, What};
use crate::fronts::{Front, Fronts};
use crate::hold::{Class, Frontier, Hold};
use crate::key::Key;
use crate::lookahead::{Entry, Keyed, Lookahead, Note, Shape};
use crate::rings::{Lane, Rings};
use crate::sequence::{Sequence, Step};
use std::fmt;
use std::ops::Deref;
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

/// The rings of a machine merged into one stream, without waiting: the engine of [`Reader`](crate::Reader), for whoever
/// has an event loop of their own.
///
/// It sees only what was there at the last [`Merge::look`]. Under the fence rule, call [`Merge::begin_fence`] after each
/// look, wait for a grace period if it says so, call [`Merge::end_fence`] and look again.
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
    key: Key,
    lookaheads: Vec<Lookahead>,
    fronts: Fronts,
    frontier: Frontier,
    sequence: Option<Sequence>,
    /// The largest key yielded.
    last: Option<u64>,
    /// A ring whose yielded bytes are worth publishing.
    due: Option<u32>,
    stats: Stats,
}

/// What comes next, chosen but not yet taken.
#[derive(Clone, Copy)]
enum Pick {
    Entry { rank: u32, class: Class, late_by: u64 },
    Gap(Gap),
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
        let state = State {
            lookaheads: rings.lanes.iter().map(|_| Lookahead::new()).collect(),
            fronts: Fronts::with_capacity(rings.lanes.len()),
            frontier: Frontier::new(&order.hold),
            sequence: match order.hold {
                Hold::Dense { first, .. } => Some(Sequence::new(first)),
                _ => None,
            },
            key: order.key,
            last: None,
            due: None,
            stats: Stats::default(),
        };
        Ok(Self { rings, state })
    }

    /// Publishes the tails of everything yielded, loads every ring's head, and indexes what is new. Gives how many events
    /// that is.
    ///
    /// `now` is a reading, taken before this call, of the clock that stamps the keys. Only the lag rule uses it.
    pub fn look(&mut self, now: u64) -> usize {
        let state = &mut self.state;
        let mut seen = None;
        let mut found = 0;
        for (lane, lookahead) in self.rings.lanes.iter_mut().zip(&mut state.lookaheads) {
            let before = lookahead.len();
            seen = seen.max(lookahead.look(&mut lane.ring, &lane.origin, &state.key));
            found += lookahead.len() - before;
        }
        state.due = None;
        state.stats.looks += 1;
        state.frontier.looked(seen, now);
        state.fronts.rebuild((0..).zip(&state.lookaheads).filter_map(|(rank, lookahead)| {
            let front = lookahead.front()?;
            Some(Front { key: front.key, rank })
        }));
        found
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
        self.state.stats.fences += 1;
        self.state.frontier.end_fence();
    }

    /// The grace period could not be waited for. [`Merge::begin_fence`] will ask again.
    pub fn fail_fence(&mut self) {
        self.state.frontier.fail_fence();
    }

    /// Whether [`Merge::next`] has an event to give.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.state.pick().is_some()
    }

    /// The next event of what the last look found, if it may be yielded.
    ///
    /// The event borrows the merge and is consumed when it is dropped; one that is forgotten comes again. Its bytes are
    /// given back to the kernel at the latest with the next look, earlier when they are a good part of their ring.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "not an iterator: it yields what borrows from it")]
    pub fn next(&mut self) -> Option<Lent<'_>> {
        self.publish_due();
        let pick = self.state.pick()?;
        let event = self.state.event(&self.rings.lanes, pick);
        Some(Lent { event, state: &mut self.state, pick })
    }

    /// All events that may be yielded of what the last look found, as an iterator.
    ///
    /// Its items borrow the merge, not the iterator, so any number can be held; an item is consumed when it is handed
    /// out. Their bytes are given back to the kernel with the first call of the merge after the borrow.
    pub fn batch(&mut self) -> Batch<'_> {
        self.publish();
        Batch { lanes: &self.rings.lanes, state: &mut self.state }
    }

    /// Gives the bytes of everything yielded back to the kernel now.
    pub fn publish(&mut self) {
        self.state.due = None;
        for (lane, lookahead) in self.rings.lanes.iter_mut().zip(&mut self.state.lookaheads) {
            lookahead.publish(&mut lane.ring);
        }
    }

    #[inline]
    fn publish_due(&mut self) {
        if let Some(rank) = self.state.due.take() {
            let ring = &mut self.rings.lanes[rank as usize].ring;
            self.state.lookaheads[rank as usize].publish(ring);
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
        let repaired = self.state.lookaheads.iter().map(Lookahead::repaired).sum();
        Stats { repaired, ..self.state.stats }
    }

    /// The rings that are merged.
    pub fn rings(&self) -> &Rings {
        &self.rings
    }
}

impl State {
    /// What comes next, if anything may.
    #[inline]
    fn pick(&self) -> Option<Pick> {
        let top = self.fronts.top()?;
        let entry = self.lookaheads[top.rank as usize].front()?;
        if let Some(sequence) = &self.sequence {
            return self.pick_dense(sequence, entry, top.rank);
        }
        match entry.keyed {
            Keyed::Own if self.frontier.admits(entry.key) => {
                let late_by = self.last.map_or(0, |last| last.saturating_sub(entry.key));
                let class = if late_by > 0 { Class::Late } else { self.frontier.class() };
                Some(Pick::Entry { rank: top.rank, class, late_by })
            }
            Keyed::Before if self.frontier.admits(entry.key) => Some(self.keyless(top.rank)),
            Keyed::Never => Some(Pick::Entry { rank: top.rank, class: Class::Assumed, late_by: 0 }),
            Keyed::Own | Keyed::Before => None,
        }
    }

    /// A record without a key has its place behind the one before it, whose class it shares.
    fn keyless(&self, rank: u32) -> Pick {
        Pick::Entry { rank, class: self.frontier.class(), late_by: 0 }
    }

    #[cold]
    fn pick_dense(&self, sequence: &Sequence, entry: &Entry, rank: u32) -> Option<Pick> {
        match (entry.keyed, sequence.step(entry.key)) {
            (Keyed::Never, _) => Some(Pick::Entry { rank, class: Class::Assumed, late_by: 0 }),
            (Keyed::Before, Step::Behind(_) | Step::Next) => Some(self.keyless(rank)),
            (Keyed::Own, Step::Next) => Some(Pick::Entry { rank, class: Class::Proven, late_by: 0 }),
            (Keyed::Own, Step::Behind(late_by)) => Some(Pick::Entry { rank, class: Class::Late, late_by }),
            _ if !self.frontier.admits(entry.key) => None,
            (_, Step::Ahead(first)) => Some(Pick::Gap(Gap { first, last: entry.key - 1 })),
            (_, Step::First) => Some(Pick::Entry { rank, class: Class::Proven, late_by: 0 }),
        }
    }

    /// The event that a pick stands for.
    #[inline]
    fn event<'a>(&self, lanes: &'a [Lane], pick: Pick) -> Event<'a> {
        match pick {
            Pick::Gap(gap) => Event { key: None, class: Class::Proven, late_by: 0, what: What::Gap(gap) },
            Pick::Entry { rank, class, late_by } => {
                let lane = &lanes[rank as usize];
                let lookahead = &self.lookaheads[rank as usize];
                let Some(entry) = lookahead.front() else { unreachable!("a pick has an entry") };
                let key = (entry.keyed == Keyed::Own).then_some(entry.key);
                Event { key, class, late_by, what: what(lane, lookahead, entry) }
            }
        }
    }

    /// Takes what was picked.
    #[inline]
    fn commit(&mut self, pick: Pick) {
        let (rank, class, late_by) = match pick {
            Pick::Entry { rank, class, late_by } => (rank, class, late_by),
            Pick::Gap(gap) => {
                self.stats.missing = self.stats.missing.saturating_add(gap.count());
                if let Some(sequence) = &mut self.sequence {
                    sequence.passed(gap.last);
                }
                return;
            }
        };
        let lookahead = &mut self.lookaheads[rank as usize];
        let Some(&entry) = lookahead.front() else { return };
        match entry.shape {
            Shape::Record => {
                self.stats.records += 1;
                if class == Class::Late {
                    self.stats.late += 1;
                    self.stats.max_late = self.stats.max_late.max(late_by);
                }
                if entry.keyed == Keyed::Own {
                    self.last = self.last.max(Some(entry.key));
                    if let Some(sequence) = &mut self.sequence {
                        sequence.passed(entry.key);
                    }
                }
            }
            Shape::Lost => {
                if let Some(Note::Lost { count, .. }) = lookahead.note(entry.position) {
                    self.stats.lost = self.stats.lost.saturating_add(count);
                }
            }
            Shape::Damage => self.stats.damaged += 1,
        }
        lookahead.take();
        if lookahead.unpublished() {
            self.due = Some(rank);
        }
        self.fronts.advance(lookahead.front().map(|front| front.key));
    }
}

/// What an entry stands for, with its bytes where they lie.
#[inline]
fn what<'a>(lane: &'a Lane, lookahead: &Lookahead, entry: &Entry) -> What<'a> {
    let bytes = lane.ring.bytes(entry.position, u64::from(entry.len));
    match entry.shape {
        Shape::Record => What::Record(entry.record(bytes, &lane.origin)),
        Shape::Lost | Shape::Damage => match lookahead.note(entry.position) {
            Some(Note::Lost { id, count, after }) => What::Lost(Lost {
                cpu: lane.origin.cpu,
                count,
                id,
                after,
                until: (entry.keyed == Keyed::Own).then_some(entry.key),
            }),
            Some(Note::Fault(fault)) => What::Damage(Damage { cpu: lane.origin.cpu, fault, bytes }),
            None => unreachable!("a loss and damage have their note"),
        },
    }
}

/// An event lent by [`Merge::next`]. Consumed when dropped.
pub struct Lent<'a> {
    event: Event<'a>,
    state: &'a mut State,
    pick: Pick,
}

impl<'a> Deref for Lent<'a> {
    type Target = Event<'a>;

    #[inline]
    fn deref(&self) -> &Event<'a> {
        &self.event
    }
}

impl Drop for Lent<'_> {
    #[inline]
    fn drop(&mut self) {
        self.state.commit(self.pick);
    }
}

impl fmt::Debug for Lent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt(f)
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
        let pick = self.state.pick()?;
        let event = self.state.event(self.lanes, pick);
        self.state.commit(pick);
        Some(event)
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
            .field("key", &self.state.key)
            .field("frontier", &self.state.frontier)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
