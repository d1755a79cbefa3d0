//! The merge: all rings' records as one stream, in place.

mod reports;

use crate::error::{Error, ErrorKind};
use crate::order::event::Event;
use crate::order::event_guard::{Batch, EventGuard};
use crate::order::floors::Floors;
use crate::order::frontier::Frontier;
use crate::order::index::{Index, Indexing, memory_of};
use crate::order::key::{Key, Keys};
use crate::order::place::{RINGS, Tag};
use crate::order::rules::Awaits;
use crate::order::self_filter::SelfFilter;
use crate::order::stream::{Notice, Stream};
use crate::order::{FillMark, Order, WhenFull};
use crate::ring::{ANY_CPU, Ring};
use crate::rings::untraced::Moment;
use crate::rings::{CpuRing, Rings};
use crate::sequence::tracker::Tracker;
use crate::sys::machine;
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// The rings of a machine merged into one stream, without waiting. A [`Reader`](crate::Reader) is built on it. Use it
/// in programs with their own event loop.
///
/// A merge sees only what was in the rings at the last [`Merge::refresh`]. [`Rings::fds`](crate::Rings::fds) become
/// readable when there may be more. Under the fence rule, call [`Merge::begin_fence`] after each refresh. If it returns
/// true, wait for a grace period, for example with [`Fence::open`](crate::Fence::open). Then call [`Merge::end_fence`]
/// and refresh again.
///
/// ```
/// # use perfweave::{Hold, Item, Merge, Order, sim};
/// let kernel = sim::Kernel::new(&[0, 1]);
/// let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::FENCE))?;
/// kernel.emit(1, 20, b"second");
/// kernel.emit(0, 10, b"first");
///
/// merge.refresh(0);
/// assert!(merge.next().is_none(), "something smaller may be on its way");
/// assert!(merge.begin_fence());
/// // ... a grace period ...
/// merge.end_fence();
/// merge.refresh(0);
/// assert_eq!(merge.next().unwrap().key(), Some(10));
/// assert_eq!(merge.next().unwrap().key(), Some(20));
/// # Ok::<(), perfweave::Error>(())
/// ```
///
/// An event borrows the merge, so a program cannot hold two at once:
///
/// ```compile_fail,E0499
/// # use perfweave::{Merge, Order, sim};
/// # let mut merge = Merge::new(sim::Kernel::new(&[0]).rings(), Order::new()).unwrap();
/// let first = merge.next();
/// let second = merge.next();
/// drop(first);
/// ```
///
/// Tails cannot move while a record of a batch is still borrowed:
///
/// ```compile_fail,E0499
/// # use perfweave::{Merge, Order, sim};
/// # let mut merge = Merge::new(sim::Kernel::new(&[0]).rings(), Order::new()).unwrap();
/// let event = merge.batch().next().unwrap();
/// merge.refresh(0);
/// println!("{:?}", event.record());
/// ```
///
/// A record cannot outlive its ring:
///
/// ```compile_fail,E0597
/// # use perfweave::{Merge, Order, sim};
/// let kept = {
///     let mut merge = Merge::new(sim::Kernel::new(&[0]).rings(), Order::new()).unwrap();
///     merge.batch().next().and_then(|event| event.record())
/// };
/// println!("{kept:?}");
/// ```
#[doc(alias = "kmerge")]
#[doc(alias = "ordered consumption")]
pub struct Merge {
    pub(crate) rings: Rings,
    pub(crate) stream: Stream,
    pub(crate) when_full: WhenFull,
    /// For a recording that is indexed in parts.
    pub(crate) floors: Option<Floors>,
    pub(crate) mark: FillMark,
    /// The time between the last two refreshes, if the program gives it.
    pub(crate) pause: Option<Duration>,
    /// Whether a ring was more than half full at a refresh since the last proof began, before the merge copied held
    /// records out of it.
    pub(crate) was_crowded: bool,
    /// Refreshes since memory that was not needed was freed.
    pub(crate) refreshed: u32,
    /// Whether the reader rests, and the next refresh and what comes before it leave BPF ring buffers behind
    /// ([`Index::catches_up`]).
    pub(crate) keep_behind: bool,
    /// Whether the last refresh indexed everything.
    whole: bool,
    /// The clock reading of the refresh that noted how far BPF ring buffers are reserved ([`Index::sighted`]), until
    /// everything before is indexed.
    sighting: Option<u64>,
}

impl Merge {
    /// Merges rings into one stream.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`]: there are no rings; a fill mark leaves no space for a record; the key is the
    /// kernel's time and a ring does not record it; the map of epochs lacks an element for a CPU; a BPF ring buffer was
    /// added twice. [`ErrorKind::Unsupported`] if writers' epochs prove nothing for these rings. [`ErrorKind::Forked`].
    pub fn new(mut rings: Rings, order: Order) -> Result<Self, Error> {
        rings.control().check()?;
        check(&rings, &order)?;
        // A recording needs no hold rule, because nothing is in flight. It needs no fill mark either.
        let complete = rings.are_complete();
        let when_full = if complete { order.when_full.for_a_recording() } else { order.when_full };
        if !complete {
            order.mark.check(&rings.cpu_rings)?;
        }
        // The ring index decides between equal keys: first by CPU, then by the order in which the rings were added.
        rings.cpu_rings.sort_by_key(|cpu_ring| cpu_ring.origin.cpu);
        let awaits = order.hold.awaits();
        // Keys that are times of the rings' clock cannot be from the future. Keys of a recording can come from another
        // machine.
        let times = !complete && (matches!(order.key, Key::Time) || matches!(awaits, Awaits::Time(_)));
        let dense = if let Awaits::Number { first } = awaits { Some(first) } else { None };
        let in_doubt = !complete && matches!(order.key, Key::Time) && !rings.have_one_clock();
        let mut keys = Keys::new(order.key, times.then_some(rings.clock()), order.numbers, dense.flatten());
        if in_doubt {
            keys.distrust();
        }
        let indexes = rings
            .cpu_rings
            .iter()
            .enumerate()
            .map(|(ring_index, cpu_ring)| index_of(ring_index, cpu_ring, &keys))
            .collect();
        let sequence = dense.map(|first| Tracker::in_doubt(first, when_full.most()));
        if sequence.is_some() {
            keys.count_up();
        }
        let frontier = if complete { Frontier::complete() } else { Frontier::new(&order.hold) };
        let mut stream = Stream::new(keys, indexes, frontier, sequence);
        // The threads of a recording are not threads of this tracer, whatever their numbers are.
        stream.own = (order.without_self && !complete).then(|| SelfFilter::new(&rings));
        Ok(Self {
            rings,
            stream,
            when_full,
            floors: None,
            mark: order.mark,
            pause: None,
            was_crowded: false,
            refreshed: 0,
            keep_behind: false,
            whole: true,
            sighting: None,
        })
    }

    /// Advances the tails past all yielded events, loads every ring's head, and indexes new records. Returns the number
    /// of new events. It refreshes twice if records must leave early to make space.
    ///
    /// `now` is a reading of the clock that stamps the keys, taken before this call. Only the lag rule uses it.
    ///
    /// # Panics
    /// If the key function panics. The next refresh reads that record again. Nothing new leaves until a refresh has
    /// been complete.
    ///
    /// In a forked child, which does not have the rings.
    #[doc(alias = "look")]
    #[doc(alias = "consume")]
    #[doc(alias = "sync")]
    #[doc(alias = "poll")]
    pub fn refresh(&mut self, now: u64) -> usize {
        self.rings.control().assert_not_forked();
        self.leave_out(machine::thread());
        self.stream.sync();
        let held = self.held();
        let refreshed = self.refresh_once(now);
        self.keep_behind = false;
        if let Some(key) = refreshed
            && !self.stream.frontier.release(key)
        {
            let more = self.refresh_once(now);
            self.stream.frontier.release(more.map_or(key, |more| more.max(key)));
        }
        // A loss that was reported separately may have found its LOST record.
        self.held().saturating_sub(held)
    }

    /// Leaves out records about a thread, if the merge leaves records out.
    pub(crate) fn leave_out(&mut self, thread: u32) {
        if let Some(own) = &mut self.stream.own {
            own.add(thread);
        }
    }

    /// Whether another refresh is due before waiting. One cause: the last refresh left records in the rings, because
    /// holding them would take more memory than allowed ([`WhenFull::Copy`]). Take the events that are ready first.
    /// Nothing is proven until a refresh has seen everything. Another cause: a ring has filled up by a quarter since
    /// the last refresh, and a batch has ended early. The third: bytes of a BPF ring buffer are still to be given back,
    /// and the kernel notifies only a reader that has given all back.
    pub fn is_behind(&self) -> bool {
        !self.is_whole() || self.owes_space()
    }

    /// Whether the last refresh found everything, and no ring has filled up by a quarter since.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole && !self.stream.rushed
    }

    /// Whether bytes of a BPF ring buffer are still to be given back: the kernel notifies only a reader that has caught
    /// up, so the reader gives them back and then looks once more.
    fn owes_space(&self) -> bool {
        let mut cpu_rings = self.rings.cpu_rings.iter().enumerate();
        cpu_rings.any(|(ring_index, cpu_ring)| {
            cpu_ring.ring.properties().wakes_when_drained && self.stream.tail(ring_index) > cpu_ring.ring.tail()
        })
    }

    /// Refreshes all rings, one after the other. Returns the largest key that must leave to make space, if any.
    fn refresh_once(&mut self, now: u64) -> Option<u64> {
        let looked = catch_unwind(AssertUnwindSafe(|| self.index()));
        let stream = &mut self.stream;
        (stream.in_batch, stream.rushed) = (false, false);
        let largest = stream.indexes.iter().filter_map(Index::largest).max();
        stream.keys.notice_set_back(largest);
        let largest = stream.keys.until_now(largest);
        // The frontier is valid only for all heads together.
        self.whole = matches!(looked, Ok(Indexed::Whole));
        stream.counts.refreshes += u64::from(self.whole);
        if let Some(now) = self.seen_all(now) {
            let stream = &mut self.stream;
            stream.frontier.refreshed(largest, now);
            // A number that is held is not proven before it is yielded.
            let top = if stream.sequence.is_some() { stream.top() } else { None };
            let held = top.map_or(u64::MAX, |top| top.key.saturating_sub(1));
            if let Some(sequence) = &mut stream.sequence {
                sequence.is_proven(stream.frontier.key.min(Some(held)));
            }
        } else {
            self.stream.frontier.refreshed_in_part(largest);
        }
        match looked {
            Ok(indexed) => self.make_room(indexed),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Whether refreshes have indexed everything that was written or reserved when the first of them began. Gives the
    /// clock reading of that one. `now` is that of the last refresh.
    ///
    /// A record that a program has reserved and not committed hides what comes after it in its ring. So under a rule
    /// that proves, the frontier waits until everything is indexed that was reserved when the heads were loaded. Later
    /// reservations do not count: their programs would keep it waiting for ever.
    fn seen_all(&mut self, now: u64) -> Option<u64> {
        if !self.whole {
            return None;
        }
        if !self.stream.frontier.awaits.is_proof() {
            return Some(now);
        }
        let since = *self.sighting.get_or_insert_with(|| {
            for (cpu_ring, index) in self.rings.cpu_rings.iter().zip(&mut self.stream.indexes) {
                index.sighted = cpu_ring.ring.reserved();
            }
            now
        });
        self.stream.indexes.iter().all(Index::is_past_sighted).then(|| {
            self.sighting = None;
            since
        })
    }

    /// Whether a proof or a report waits for programs to commit what they have reserved.
    pub(crate) fn awaits_commits(&self) -> bool {
        self.whole && self.awaited().next().is_some()
    }

    /// Whether a refresh may find some of these reservations committed.
    pub(crate) fn may_find_commits(&self) -> bool {
        self.awaited().any(|cpu_ring| cpu_ring.ring.has_committed())
    }

    /// The rings with reservations for which a proof or a report waits.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = &CpuRing> {
        let cpu_rings = self.rings.cpu_rings.iter().zip(&self.stream.indexes);
        let awaited =
            cpu_rings.filter(|(cpu_ring, index)| cpu_ring.ring.properties().reserves && !index.is_past_reserved());
        awaited.map(|(cpu_ring, _)| cpu_ring)
    }

    /// Indexes the new records of each ring.
    fn index(&mut self) -> Indexed {
        if self.is_in_parts() {
            return self.index_in_parts();
        }
        let indexed = self.index_all();
        // What one ring lacks, others may have in spare blocks.
        if indexed.up_to().is_some() && self.stream.free_spare() { self.index_all() } else { indexed }
    }

    /// Indexes the new records of each ring, or as much as fits into the memory.
    fn index_all(&mut self) -> Indexed {
        let most = self.when_full.most();
        let mut others = self.memory() + self.reserved();
        let Stream { keys, indexes, far, .. } = &mut self.stream;
        let mut indexed = Indexed::Whole;
        for (cpu_ring, index) in self.rings.cpu_rings.iter_mut().zip(indexes) {
            others -= index.memory() + memory_of(far);
            let refresh = if self.keep_behind { Index::refresh_behind } else { Index::refresh };
            if !refresh(index, cpu_ring, Indexing { keys, far, most: most.saturating_sub(others) }) {
                let known = index.largest().unwrap_or(u64::MAX);
                indexed = Indexed::UpTo(indexed.up_to().map_or(known, |other| other.min(known)));
            }
            others += index.memory() + memory_of(far);
        }
        indexed
    }

    /// Opens rings for CPUs that came online since the rings were opened. A new CPU gets a ring. A CPU that came back
    /// writes into the ring it had. Returns whether there is a new ring, and with it a new file descriptor to wait for
    /// ([`Rings::fds`](crate::Rings::fds)). A [`Reader`](crate::Reader) does this by itself.
    ///
    /// A CPU that goes offline needs nothing: its records stay in its ring, and no proof waits for it. Output of
    /// programs on a CPU between its coming online and this call is lost: `-EOPNOTSUPP` or `-ENOENT`. The kernel does
    /// not count it.
    ///
    /// # Errors
    /// Any error of opening a ring: the first of each CPU, then the tenth, the hundredth and so on. Each call tries
    /// again. [`Item::Untraced`](crate::Item::Untraced) says since when the CPU is not traced, and finally for how long
    /// it was not. [`ErrorKind::InvalidInput`] if there would be more than 16,384 rings: the CPUs for which there is no
    /// room stay untraced.
    pub fn follow_cpus(&mut self) -> Result<bool, Error> {
        self.follow_cpus_up_to(RINGS)
    }

    /// The same, with at most so many rings.
    fn follow_cpus_up_to(&mut self, most: usize) -> Result<bool, Error> {
        let mut new = Vec::new();
        let mut failed = self.rings.arrived(&mut new);
        let (rings, room) = (self.rings.cpu_rings.len() + new.len(), most.saturating_sub(self.rings.cpu_rings.len()));
        for cpu_ring in new.drain(room.min(new.len())..) {
            let now = Moment::now(self.rings.clock());
            if self.rings.untraced.failed(cpu_ring.origin.cpu, now) {
                failed = Err(too_many(rings, most));
            }
        }
        self.stream.notices.extend(self.rings.untraced.take_news().map(Notice::Untraced));
        let any = !new.is_empty();
        if any || !self.stream.notices.is_empty() {
            // The notices come before what was merged.
            self.stream.sync();
        }
        for cpu_ring in new {
            // After the other rings of that CPU: ring indexes decide between equal keys.
            let ring_index = self.rings.cpu_rings.partition_point(|other| other.origin.cpu <= cpu_ring.origin.cpu);
            self.stream.insert(ring_index, index_of(ring_index, &cpu_ring, &self.stream.keys));
            self.rings.cpu_rings.insert(ring_index, cpu_ring);
            if let Some((said, _)) = &mut self.stream.said {
                *said += u32::from(ring_index as u32 <= *said);
            }
        }
        failed.map(|()| any)
    }

    /// Whether a grace period that begins after this call would release an event that was seen. If so, wait for one,
    /// then call [`Merge::end_fence`] and [`Merge::refresh`]. Until then this returns false.
    ///
    /// Events that are already proven can be yielded meanwhile.
    ///
    /// # Panics
    /// In a forked child, as [`Merge::is_ready`].
    pub fn begin_fence(&mut self) -> bool {
        self.rings.control().assert_not_forked();
        // A dense sequence needs a fence only for numbers that are missing, or that were released in doubt.
        let doubt = self.stream.sequence.as_ref().and_then(Tracker::doubt);
        if self.stream.sequence.is_some()
            && doubt <= self.stream.frontier.key
            && (self.stream.top().is_none() || self.is_ready())
        {
            return false;
        }
        self.stream.frontier.begin_proof()
    }

    /// Tells the merge that the grace period for [`Merge::begin_fence`] has ended. The events that it proves may leave
    /// after the next refresh.
    pub fn end_fence(&mut self) {
        // What proves is a refresh of heads that are loaded after the fence.
        self.sighting = None;
        if self.stream.frontier.end_proof() {
            self.stream.counts.fences += 1;
        }
    }

    /// Tells the merge that waiting for the grace period failed. [`Merge::begin_fence`] will ask again.
    pub fn fail_fence(&mut self) {
        self.stream.frontier.fail_proof();
    }

    /// Whether everything was yielded and nothing can follow: the rings are a recording's, and a refresh has indexed
    /// all of it.
    pub(crate) fn is_over(&self) -> bool {
        self.rings.are_complete() && self.whole && self.stream.counts.refreshes > 0 && self.held() == 0
    }

    /// Whether [`Merge::next`] has an event to give.
    ///
    /// # Panics
    /// In a forked child, which does not have the rings: this reads records about the tracer to leave them out.
    #[inline(always)]
    pub fn is_ready(&mut self) -> bool {
        self.rings.control().assert_not_forked();
        self.pick()
    }

    /// [`Merge::is_ready`] without the check for a forked child.
    #[inline(always)]
    pub(crate) fn pick(&mut self) -> bool {
        self.stream.is_at_hand() || self.pick_anew()
    }

    /// Gives bytes back that are due, and picks the next event. No event is borrowed now.
    #[inline(never)]
    fn pick_anew(&mut self) -> bool {
        self.give_back();
        self.stream.pick_anew(&self.rings.cpu_rings)
    }

    /// Gives bytes back that are due, once all that was merged is yielded: all those of a batch, else if they are a
    /// sixteenth of a ring. No event is borrowed now.
    fn give_back(&mut self) {
        if !self.stream.array.is_empty() {
            return;
        }
        let all = std::mem::take(&mut self.stream.in_batch);
        for (cpu_ring, index) in self.rings.cpu_rings.iter_mut().zip(&mut self.stream.indexes) {
            // The next refresh decides whether to catch up.
            if (all || index.is_tail_due()) && !index.catches_up(cpu_ring) {
                index.advance_tail(cpu_ring);
                self.stream.rushed |= index.fills_up(&cpu_ring.ring);
            }
        }
    }

    /// The next event that the last refresh found, if it may be yielded.
    ///
    /// The event borrows the merge and is consumed when it is dropped. A forgotten event comes again. The kernel gets
    /// the event's bytes back with the next refresh, or earlier once a sixteenth of the ring has been consumed.
    ///
    /// # Panics
    /// In a forked child, which does not have the rings.
    #[inline(always)]
    #[expect(clippy::should_implement_trait, reason = "not an iterator: it yields what borrows from it")]
    pub fn next(&mut self) -> Option<EventGuard<'_>> {
        if self.is_ready() { Some(self.lend()) } else { None }
    }

    /// Folds the next events and takes them: one event, or several plain records. Breaks at the end: with the
    /// function's break value, or with the accumulated value if no event is left.
    #[inline]
    pub(crate) fn hand_out<A, B>(
        &mut self,
        all: A,
        mut each: impl FnMut(A, Event<'_>) -> ControlFlow<B, A>,
    ) -> ControlFlow<ControlFlow<B, A>, A> {
        if !self.is_ready() {
            return ControlFlow::Break(ControlFlow::Continue(all));
        }
        if self.stream.rushed {
            return ControlFlow::Continue(all);
        }
        let cpu_rings = &self.rings.cpu_rings;
        if !self.stream.is_at_hand() {
            return each(all, self.stream.take_picked(cpu_rings)).map_break(ControlFlow::Break);
        }
        let plain_end = self.stream.array.plain_end();
        self.stream.hand_out(cpu_rings, plain_end, all, each).map_break(ControlFlow::Break)
    }

    /// Lends the event that was picked.
    #[inline(always)]
    pub(crate) fn lend(&mut self) -> EventGuard<'_> {
        let place = self.stream.array.next_plain();
        EventGuard { cpu_rings: &self.rings.cpu_rings, stream: &mut self.stream, place }
    }

    /// All events that the last refresh found and that may leave now, as an iterator. The iterator ends early if a ring
    /// has filled up by a quarter since that refresh: refresh, then go on.
    ///
    /// The items borrow the merge, not the iterator, so a program can hold any number of them. An item is consumed when
    /// the iterator gives it. The kernel gets the bytes back with the first call of the merge after the borrow; or with
    /// the next refresh, or once a sixteenth of a ring was consumed, if the program left the iterator before its end.
    /// Those of a BPF ring buffer of which all was yielded go back with the next refresh, because the kernel then wakes
    /// the reader for the next record.
    ///
    /// # Panics
    /// In a forked child, which does not have the rings.
    pub fn batch(&mut self) -> Batch<'_> {
        self.rings.control().assert_not_forked();
        self.give_back();
        self.stream.in_batch = true;
        let plain_end = self.stream.array.plain_end();
        Batch { cpu_rings: &self.rings.cpu_rings, stream: &mut self.stream, plain_end }
    }

    /// Gives the bytes of all yielded events back to the kernel now.
    ///
    /// # Panics
    /// In a forked child, which does not have the rings.
    pub fn advance_tails(&mut self) {
        self.rings.control().assert_not_forked();
        self.stream.sync();
        self.stream.in_batch = false;
        for (cpu_ring, index) in self.rings.cpu_rings.iter_mut().zip(&mut self.stream.indexes) {
            if !self.keep_behind || !index.catches_up(cpu_ring) {
                index.advance_tail(cpu_ring);
            }
        }
    }

    /// How many events are indexed and not yet yielded.
    pub fn held(&self) -> usize {
        // A loss that lies in no ring stays in its index until it is yielded.
        let merged = self.stream.array.left().iter().filter(|place| place.tag() != Tag::LOOSE);
        self.stream.indexes.iter().map(Index::len).sum::<usize>() + merged.count()
    }

    /// How long after `now`, a reading of the keys' clock, the smallest key may leave. `None` if nothing is held, or if
    /// time alone does not release it.
    pub fn wait(&self, now: u64) -> Option<Duration> {
        let top = self.stream.top()?;
        self.stream.frontier.wait(top.key, now)
    }

    /// The frontier: the largest key that may be yielded now. `None` as long as no key may.
    #[doc(alias = "watermark")]
    pub fn frontier(&self) -> Option<u64> {
        self.stream.frontier.key
    }

    /// What releases held events. Nothing need be awaited in a recording.
    pub(crate) fn awaits(&self) -> Awaits {
        self.stream.frontier.awaits
    }

    /// The merged rings.
    pub fn rings(&self) -> &Rings {
        &self.rings
    }

    /// Bytes of the smallest ring that wakes only a reader that has given everything back, if there is one.
    pub(crate) fn smallest_buffer(&self) -> Option<u64> {
        let rings = self.rings.cpu_rings.iter().map(|cpu_ring| &cpu_ring.ring);
        rings.filter(|ring| ring.properties().wakes_when_drained).map(Ring::size).min()
    }

    /// Bytes that were written into all of these rings, as far as they are indexed.
    pub(crate) fn written(&self) -> u64 {
        let all = self.rings.cpu_rings.iter().zip(&self.stream.indexes);
        let unheard = all.filter(|(cpu_ring, _)| cpu_ring.ring.properties().wakes_when_drained);
        unheard.map(|(_, index)| index.cursor()).fold(0, u64::wrapping_add)
    }
}

/// An error if the key is the kernel's time and the records of a ring have none.
pub(crate) fn check_key(rings: &Rings, key: &Key) -> Result<(), Error> {
    if matches!(key, Key::Time)
        && let Some(cpu_ring) = rings.cpu_rings.iter().find(|cpu_ring| !cpu_ring.origin.layout.has_time())
    {
        let cpu = cpu_ring.origin.cpu;
        let message = if cpu_ring.origin.layout.has_fields() {
            let cure = "name another key, or open the ring with PERF_SAMPLE_TIME";
            format!("the records of CPU {cpu} carry no time to order by: {cure}")
        } else {
            let cure = "unless the program writes one: name it with Key::Payload";
            format!("the records of {} carry no time to order by, {cure}", cpu_ring.ring.properties().name)
        };
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// Whether these rings can be merged with these options.
fn check(rings: &Rings, order: &Order) -> Result<(), Error> {
    if rings.cpu_rings.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "no rings"));
    }
    if rings.cpu_rings.len() > RINGS {
        return Err(too_many(rings.cpu_rings.len(), RINGS));
    }
    for (at, cpu_ring) in rings.cpu_rings.iter().enumerate() {
        if rings.cpu_rings[..at].iter().any(|other| other.ring.is_same_map(&cpu_ring.ring)) {
            let cpu = cpu_ring.origin.cpu;
            let of = if cpu == ANY_CPU { "all CPUs".into() } else { format!("CPU {cpu}") };
            let message =
                format!("the ring buffer of {of} was added twice: each reader would give back what the other holds");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
    }
    check_key(rings, &order.key)?;
    if let Some(fence) = order.hold.fence().filter(|_| !rings.are_complete()) {
        fence.check(rings)?;
    }
    let names_none = |cpu_ring: &&CpuRing| {
        cpu_ring.ring.properties().is_shared && cpu_ring.origin.cpu == ANY_CPU && cpu_ring.origin.layout.cpu().is_none()
    };
    if let Some(cpu_ring) = rings.cpu_rings.iter().find(names_none).filter(|_| order.numbers.is_some()) {
        let name = cpu_ring.ring.properties().name;
        let message = format!(
            "numbers of each CPU in {name} that CPUs share: its records must name their CPU, by Layout::cpu_at"
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}

fn too_many(rings: usize, most: usize) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("{rings} rings: at most {most}"))
}

/// The index of a ring of which nothing is read yet.
fn index_of(ring_index: usize, cpu_ring: &CpuRing, keys: &Keys) -> Index {
    Index::new(ring_index, cpu_ring.ring.tail(), keys.new_numbers(&cpu_ring.origin.layout))
}

/// How much of the rings' content was indexed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Indexed {
    Whole,
    /// As much as fits into the memory. Each ring that was left in the middle is indexed at least up to this key.
    UpTo(u64),
}

impl Indexed {
    pub(crate) fn up_to(self) -> Option<u64> {
        match self {
            Self::Whole => None,
            Self::UpTo(key) => Some(key),
        }
    }
}

/// A BPF ring buffer outlives its reader, and the next one begins where this one stopped.
impl Drop for Merge {
    fn drop(&mut self) {
        // In a forked child a ring stores no tail, and a lost head has none to store.
        self.stream.sync();
        for (cpu_ring, index) in self.rings.cpu_rings.iter_mut().zip(&mut self.stream.indexes) {
            index.advance_tail(cpu_ring);
        }
    }
}

impl fmt::Debug for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merge")
            .field("rings", &self.rings)
            .field("keys", &self.stream.keys)
            .field("frontier", &self.stream.frontier)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::record::Layout;
    use crate::sim;
    use crate::{Hold, Item};

    /// CPUs for which a stream has no room are not traced, which is an error once and a notice for each of them. The
    /// others are traced.
    #[test]
    fn cpus_beyond_the_most_rings_are_reported() {
        assert_eq!(RINGS, 16_384, "as documented");
        let kernel = sim::Kernel::new(&[0, 1]);
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
        [2, 3, 4].into_iter().for_each(|cpu| kernel.plug(cpu));
        let error = merge.follow_cpus_up_to(3).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidInput, "5 rings: at most 3".into()));
        assert_eq!(merge.rings().cpus().collect::<Vec<_>>(), [0, 1, 2]);
        let mut reported = Vec::new();
        while let Some(event) = merge.next() {
            if let Item::Untraced(untraced) = event.event().item() {
                reported.push((untraced.cpu, untraced.lasted));
            }
        }
        assert_eq!(reported, [(3, None), (4, None)]);
        assert!(!merge.follow_cpus_up_to(3).unwrap(), "once");
    }

    /// What waits in the heap, far out of order, is there still when a CPU with a smaller number comes online.
    #[test]
    fn what_is_far_out_of_order_outlives_a_new_cpu() {
        let kernel = sim::Kernel::new(&[1, 2]);
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
        let times: Vec<u64> = (0..100).map(|n| 1000 - n).chain(2000..2010).collect();
        for cpu in [1, 2] {
            times.iter().for_each(|time| assert!(kernel.emit(cpu, time + u64::from(cpu), b"")));
        }
        merge.refresh(0);
        assert!(!merge.stream.far.is_empty());
        kernel.plug(0);
        assert!(merge.follow_cpus().unwrap() && kernel.emit(0, 950, b""));
        merge.refresh(0);
        assert!(merge.begin_fence());
        merge.end_fence();
        merge.refresh(0);
        let mut expected: Vec<_> = times.iter().flat_map(|time| [(time + 1, 1), (time + 2, 2)]).collect();
        expected.push((950, 0));
        expected.sort_unstable();
        let next = |merge: &mut Merge| merge.next().map(|event| (event.key().unwrap(), event.cpu().unwrap()));
        let mut yielded: Vec<_> = std::iter::from_fn(|| next(&mut merge)).collect();
        assert!(yielded.is_sorted_by_key(|event| event.0), "{yielded:?}");
        yielded.sort_unstable();
        expected.truncate(yielded.len());
        assert!(yielded.len() > 200 && yielded == expected, "{yielded:?}");
        assert_eq!(merge.held(), 221 - yielded.len());
    }

    /// The kernel is not asked, so no account is exact: neither that of a ring, nor that of the machine.
    #[test]
    fn a_status_is_never_exact() {
        let kernel = sim::Kernel::new(&[0]);
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
        merge.refresh(0);
        let status = merge.status();
        assert!(!status.machine.exact && !status.accounts[0].exact && !status.is_complete());
        assert!(merge.ledger().is_complete());
    }

    /// A report that has waited long enough for a reservation waits no longer for that one, and on for all others: for
    /// another place, another ring, and rings in which nothing is reserved.
    #[test]
    fn a_report_forgoes_the_old_reservations_alone() {
        let kernel = sim::Kernel::new(&[2]);
        let mut rings = kernel.rings();
        let (buffers, in_memory): (Vec<_>, Vec<_>) = (0..2).map(|_| sim::RingBuffer::new(4096)).unzip();
        for (cpu, ring) in (0..).zip(in_memory) {
            rings.add(cpu, ring, Layout::RING_BUFFER);
        }
        let order = Order::new().key(Key::with(|record| record.payload()?.u64(0))).hold(Hold::None);
        let mut merge = Merge::new(rings, order).unwrap();
        for buffer in &buffers {
            assert!(buffer.output(&1u64.to_ne_bytes()) && buffer.reserve(8).is_some());
        }
        assert!(kernel.emit(2, 1, &1u64.to_ne_bytes()));
        merge.refresh(0);
        merge.mark_heads();
        let age = Duration::from_secs(1);
        let places: Vec<_> = merge.awaited_places().collect();
        assert_eq!(places.iter().map(|place| place.0).collect::<Vec<_>>(), [0, 1]);
        let old = places[0];
        assert!(!merge.forgo_reserved(&[((old.0, old.1 + 8), age), ((3, old.1), age)], true));
        assert!(merge.forgo_reserved(&[(old, age)], false) && merge.stream.early_notice.is_some());
        assert_eq!(merge.awaited_places().collect::<Vec<_>>(), places[1..]);
        // It is forgone already, and no proof waits for it.
        assert!(!merge.forgo_reserved(&[(old, age)], true));
        let index_of = |merge: &Merge, cpu| merge.rings.cpu_rings.iter().position(|one| one.origin.cpu == cpu).unwrap();
        let at = index_of(&merge, old.0);
        merge.stream.indexes[at].sighted = old.1;
        assert!(!merge.forgo_reserved(&[(old, age)], true));
        merge.stream.indexes[at].sighted = old.1 + 8;
        assert!(!merge.forgo_reserved(&[(old, age)], false) && merge.forgo_reserved(&[(old, age)], true));
        // In a perf ring nothing is reserved.
        let at = index_of(&merge, 2);
        let head = merge.rings.cpu_rings[at].ring.head();
        merge.stream.indexes[at].sighted = head + 8;
        assert!(!merge.forgo_reserved(&[((2, head), age)], true));
    }

    #[test]
    #[should_panic(expected = "101 percent")]
    fn a_mark_beyond_the_ring_is_refused() {
        let _ = Order::new().fill_mark(101);
    }
}
