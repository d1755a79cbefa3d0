//! The merge: all rings' records as one stream, in place.

#[cfg(all(test, not(loom)))]
mod tests;

use crate::account::cpu::Account;
use crate::account::status::Status;
use crate::error::{Error, ErrorKind};
use crate::merge::frontier::Frontier;
use crate::merge::place::RINGS;
use crate::merge::queue::Queue;
use crate::merge::rules::Rule;
use crate::order::Order;
use crate::order::cursor::{Cursor, Indexing, catches_up};
use crate::order::event::Event;
use crate::order::event_guard::{Batch, EventGuard};
use crate::order::footprint;
use crate::order::full::Full;
use crate::order::key::{Key, Keys};
use crate::order::stream::{Notice, Stream, Unmerged};
use crate::order::tracers::Leaving;
use crate::ring::{ANY_CPU, Ring};
use crate::rings::untraced::Moment;
use crate::rings::{CpuRing, Rings};
use crate::sequence::numbers::CpuNumbers;
use crate::sequence::tracker::Tracker;
use crate::sys::machine;
use crate::sys::thread::Thread;
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The rings of a machine merged into one stream, step by step, for a program's tests (feature `test-util`): the test
/// says when heads are loaded and when a grace period is over. A [`Reader`](crate::Reader) is built on it.
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
    stream: Stream,
    /// What is done about rings that fill up.
    pub(crate) full: Full,
    /// Whether the reader rests, and the next refresh and what comes before it leave BPF ring buffers behind
    /// ([`catches_up`]).
    pub(crate) keep_behind: bool,
    /// Whether the last refresh indexed everything.
    whole: bool,
    /// The clock reading of the refresh that noted how far BPF ring buffers are reserved ([`Cursor::sighted`]), until
    /// everything before is indexed.
    sighting: Option<u64>,
}

impl Merge {
    /// Merges rings into one stream.
    ///
    /// # Errors
    /// As [`Reader::new`](crate::Reader::new), without those of waiting.
    pub fn new(mut rings: Rings, order: Order) -> Result<Self, Error> {
        rings.control().check()?;
        check(&rings, &order)?;
        // A recording needs no hold rule, because nothing is in flight.
        let complete = rings.are_complete();
        // The ring index decides between equal keys: first by CPU, then by the order in which the rings were added.
        rings.cpu_rings.sort_by_key(|cpu_ring| cpu_ring.origin.cpu);
        let rule = order.hold.rule();
        // Keys that are times of the rings' clock cannot be from the future, unless they come from another machine.
        let is_here = !rings.are_from_elsewhere();
        let times = is_here && (matches!(order.key, Key::Time) || matches!(rule, Rule::Time(_)));
        let dense = if let Rule::Number { first } = rule { Some(first) } else { None };
        let in_doubt = is_here && matches!(order.key, Key::Time) && !rings.have_one_clock();
        let mut keys = Keys::new(order.key, times.then_some(rings.clock()), order.numbers, dense.flatten());
        if in_doubt {
            keys.distrust();
        }
        if complete {
            footprint::check(&mut rings, &keys)?;
        }
        let cursors = rings.cpu_rings.iter().map(|cpu_ring| cursor_of(cpu_ring, &keys)).collect();
        let sequence = dense.map(Tracker::new);
        if sequence.is_some() {
            keys.count_up();
        }
        let frontier = if complete { Frontier::complete() } else { Frontier::new(rule) };
        let mut stream = Stream::new(keys, cursors, frontier, sequence);
        stream.tracers.add(&Thread::current());
        // The threads of a recording are not threads of this tracer, whatever their numbers are.
        stream.leaving = order.leave_out.filter(|_| is_here).map(|filter| Leaving(filter(&rings)));
        let full = Full::new(order.most_held, &rings);
        Ok(Self { rings, stream, full, keep_behind: false, whole: true, sighting: None })
    }

    // Refreshes.

    /// Advances the tails past all yielded events, loads every ring's head, and indexes new records. Returns the number
    /// of new events.
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
        self.refresh_here(now)
    }

    /// The same, where it is known that this is no forked child.
    pub(crate) fn refresh_here(&mut self, now: u64) -> usize {
        self.know(&Thread::current_in(self.rings.control().owner()));
        self.stream.unmerged();
        let held = self.held();
        self.refresh_all(now);
        self.keep_behind = false;
        self.stream.tracers.note_ends(self.rings.clock());
        // A loss that was reported separately may have found its LOST record.
        self.held().saturating_sub(held)
    }

    /// Learns a thread of the tracer. Records about it are left out, if the merge leaves records out.
    pub(crate) fn know(&mut self, thread: &Arc<Thread>) {
        self.stream.tracers.add(thread);
    }

    /// The numbers of the tracer's threads.
    pub(crate) fn threads(&self) -> impl Iterator<Item = u32> {
        self.stream.tracers.numbers()
    }

    /// Whether another refresh is due before waiting. There are three reasons:
    ///
    /// - The key function has panicked in the last refresh, so that one has not seen everything.
    /// - A ring has filled up by a quarter since the last refresh, and a batch has ended early.
    /// - Bytes of a BPF ring buffer are still to be given back. The kernel notifies only a reader that has given all
    ///   back.
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

    /// Refreshes all rings, one after the other.
    fn refresh_all(&mut self, now: u64) {
        // A panic of the key function goes on once the refresh has ended in order.
        let looked = catch_unwind(AssertUnwindSafe(|| self.index()));
        self.whole = looked.is_ok();
        let stream = &mut self.stream;
        (stream.in_batch, stream.rushed) = (false, false);
        stream.counts.refreshes += u64::from(self.whole);
        let under = stream.unmerged();
        let largest = under.cursors.iter().filter_map(Cursor::largest).max();
        // With a key in the future, what a fence proves is a reading of the clock instead.
        let largest = under.keys.until_now(largest);
        // The frontier is valid only for all heads together.
        let seen = self.seen_all(now);
        let under = self.stream.unmerged();
        if let Some(now) = seen {
            under.frontier.refreshed(largest, now);
            under.numbers().for_each(CpuNumbers::refreshed);
        } else {
            under.frontier.refreshed_in_part(largest);
        }
        if let Err(panic) = looked {
            resume_unwind(panic);
        }
        self.full.make_room(&mut self.rings.cpu_rings, &mut self.stream);
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
        let under = self.stream.unmerged();
        if !under.frontier.rule.is_proof() {
            return Some(now);
        }
        let since = *self.sighting.get_or_insert_with(|| {
            for (cpu_ring, cursor) in self.rings.cpu_rings.iter().zip(&mut under.cursors) {
                cursor.sighted = cpu_ring.ring.reserved();
            }
            now
        });
        under.cursors.iter().all(Cursor::is_past_sighted).then(|| {
            self.sighting = None;
            since
        })
    }

    /// Indexes the new records of each ring.
    fn index(&mut self) {
        let Unmerged { keys, queues, cursors, far, .. } = self.stream.unmerged();
        for ((cpu_ring, cursor), queue) in self.rings.cpu_rings.iter_mut().zip(cursors).zip(queues) {
            let refresh = if self.keep_behind { Cursor::refresh_behind } else { Cursor::refresh };
            refresh(cursor, cpu_ring, &mut Indexing { queue, far, keys });
        }
    }

    /// Whether everything was yielded and nothing can follow: the rings are a recording's, and a refresh has indexed
    /// all of it.
    pub(crate) fn is_over(&self) -> bool {
        // `whole` is true before the first refresh, too.
        self.rings.are_complete() && self.whole && self.stream.counts.refreshes > 0 && self.held() == 0
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
        let any = !new.is_empty();
        let mut news = self.rings.untraced.take_news().map(Notice::Untraced).peekable();
        if news.peek().is_some() {
            // They come before what was merged.
            self.stream.unmerged().notices.extend(news);
        }
        for cpu_ring in new {
            // After the other rings of that CPU: ring indexes decide between equal keys.
            let ring_index = self.rings.cpu_rings.partition_point(|other| other.origin.cpu <= cpu_ring.origin.cpu);
            let cursor = cursor_of(&cpu_ring, &self.stream.under().keys);
            self.stream.insert(ring_index, cursor);
            self.rings.cpu_rings.insert(ring_index, cpu_ring);
        }
        failed.map(|()| any)
    }

    // Proofs, and reservations for which they wait.

    /// Whether a grace period that begins after this call would release an event that was seen. If so, wait for one,
    /// then call [`Merge::end_fence`] and [`Merge::refresh`]. Until then this returns false.
    ///
    /// Events that are already proven can be yielded meanwhile.
    pub fn begin_fence(&mut self) -> bool {
        // A dense sequence needs a fence only for numbers that are missing.
        if self.stream.sequence.is_some() && (self.stream.top().is_none() || self.is_ready()) {
            return false;
        }
        self.stream.begin_proof()
    }

    /// Tells the merge that the grace period for [`Merge::begin_fence`] has ended. The events that it proves may leave
    /// after the next refresh.
    pub fn end_fence(&mut self) {
        // What proves is a refresh of heads that are loaded after the fence.
        self.sighting = None;
        self.stream.counts.fences += u64::from(self.stream.end_proof());
    }

    /// Tells the merge that waiting for the grace period failed. [`Merge::begin_fence`] will ask again.
    pub fn fail_fence(&mut self) {
        self.stream.fail_proof();
    }

    /// What releases held events. Nothing need be awaited in a recording.
    pub(crate) fn rule(&self) -> Rule {
        self.stream.under().frontier.rule
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
    fn awaited(&self) -> impl Iterator<Item = &CpuRing> {
        let cpu_rings = self.rings.cpu_rings.iter().zip(&self.stream.under().cursors);
        let awaited =
            cpu_rings.filter(|(cpu_ring, cursor)| cpu_ring.ring.properties().reserves && !cursor.is_past_reserved());
        awaited.map(|(cpu_ring, _)| cpu_ring)
    }

    /// The ring buffers in which a program is inside a reservation for which a proof or a report waits: the CPU, and
    /// where it is.
    pub(crate) fn awaited_places(&self) -> impl Iterator<Item = (u32, u64)> {
        self.awaited().map(|cpu_ring| (cpu_ring.origin.cpu, cpu_ring.ring.head()))
    }

    /// The CPUs of rings that hold events. All online CPUs write into a ring of no single CPU.
    pub(crate) fn writers(&mut self) -> impl Iterator<Item = u32> {
        // What was merged is held too.
        let cpu_rings = self.rings.cpu_rings.iter().zip(&self.stream.unmerged().queues);
        let holding = cpu_rings.filter(|(_, queue)| queue.held() > 0).map(|(cpu_ring, _)| cpu_ring.origin.cpu);
        let all = if holding.clone().any(|cpu| cpu == ANY_CPU) { machine::online_cpus().ok() } else { None };
        holding.filter(|cpu| *cpu != ANY_CPU).chain(all.into_iter().flatten())
    }

    // Yielding.

    /// Whether [`Merge::next`] has an event to give.
    #[inline(always)]
    pub fn is_ready(&mut self) -> bool {
        self.pick()
    }

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
        let all = self.stream.in_batch;
        let Some(Unmerged { queues, cursors, .. }) = self.stream.if_unmerged() else { return };
        let Rings { cpu_rings, control, .. } = &mut self.rings;
        let (mut is_forked, mut rushed) = (None, false);
        for ((cpu_ring, cursor), queue) in cpu_rings.iter_mut().zip(cursors).zip(queues) {
            // The next refresh decides whether to catch up.
            if (all || cursor.is_tail_due(queue)) && !catches_up(cpu_ring, queue) {
                // Asked once, because it is a system call.
                if *is_forked.get_or_insert_with(|| control.is_forked()) {
                    return;
                }
                cursor.advance_tail(cpu_ring, queue);
                rushed |= cursor.fills_up(&cpu_ring.ring, queue);
            }
        }
        self.stream.in_batch = false;
        self.stream.rushed |= rushed;
    }

    /// The next event that the last refresh found, if it may be yielded.
    ///
    /// The event borrows the merge and is consumed when it is dropped. A forgotten event comes again. The kernel gets
    /// the event's bytes back with the next refresh, or earlier once a sixteenth of the ring has been consumed.
    #[inline(always)]
    #[cfg_attr(
        any(test, feature = "test-util"),
        expect(clippy::should_implement_trait, reason = "not an iterator: it yields what borrows from it")
    )]
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
        // Picking may have found that a ring fills up. Then the caller refreshes first.
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
    /// The items borrow the merge, not the iterator. [`Reader::batch`](crate::Reader::batch) says when the kernel gets
    /// their bytes back.
    pub fn batch(&mut self) -> Batch<'_> {
        // The borrow of any earlier batch has ended.
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
        self.stream.in_batch = false;
        let Unmerged { queues, cursors, .. } = self.stream.unmerged();
        for ((cpu_ring, cursor), queue) in self.rings.cpu_rings.iter_mut().zip(cursors).zip(queues) {
            if !self.keep_behind || !catches_up(cpu_ring, queue) {
                cursor.advance_tail(cpu_ring, queue);
            }
        }
    }

    // What it has.

    /// How many events are indexed and not yet yielded.
    pub fn held(&self) -> usize {
        self.stream.held()
    }

    /// How long after `now`, a reading of the keys' clock, the smallest key may leave. `None` if nothing is held, or if
    /// time alone does not release it.
    pub fn wait(&self, now: u64) -> Option<Duration> {
        let top = self.stream.top()?;
        self.stream.under().frontier.wait(top.key, now)
    }

    /// The frontier: the largest key that may be yielded now. `None` as long as no key may.
    #[doc(alias = "watermark")]
    pub fn frontier(&self) -> Option<u64> {
        self.stream.under().frontier.key
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
        let all = self.rings.cpu_rings.iter().zip(&self.stream.under().cursors);
        let unheard = all.filter(|(cpu_ring, _)| cpu_ring.ring.properties().wakes_when_drained);
        unheard.map(|(_, cursor)| cursor.cursor()).fold(0, u64::wrapping_add)
    }

    // The events before a report: all that were in the rings when it was requested, and none newer.

    /// Records how far the rings were written, or reserved, at the last refresh.
    pub(crate) fn mark_heads(&mut self) {
        for (cpu_ring, cursor) in self.rings.cpu_rings.iter().zip(&mut self.stream.unmerged().cursors) {
            cursor.marked = cpu_ring.ring.reserved();
        }
    }

    /// Whether the merge has indexed everything that was in the rings when heads were marked.
    pub(crate) fn is_past_marks(&self) -> bool {
        self.stream.under().cursors.iter().all(Cursor::is_past_marked)
    }

    /// Releases nothing larger than the keys seen so far, until [`Merge::lift_cap`].
    pub(crate) fn set_cap(&mut self) {
        self.stream.unmerged().frontier.set_cap();
    }

    pub(crate) fn lift_cap(&mut self) {
        self.stream.unmerged().frontier.lift_cap();
    }

    /// Whether the next reader of a ring that outlives this one would yield a record again: it lies behind a held one.
    /// Then all that was found since comes before the report, too. Such a record was in flight when newer events began to
    /// wait, and was overtaken by the writer of one of them: one that interrupted it or, in a ring that CPUs share, one
    /// on another CPU.
    pub(crate) fn raise_cap(&mut self) -> bool {
        let Unmerged { queues, cursors, far, frontier, .. } = self.stream.unmerged();
        let mut all = self.rings.cpu_rings.iter().zip(&*cursors).zip(&*queues);
        let raises = all.any(|((cpu_ring, cursor), queue)| {
            cpu_ring.origin.is_adopted && !cursor.is_in_one_piece(cpu_ring, queue, far)
        });
        if raises {
            frontier.set_cap();
        }
        raises
    }

    /// Picks the report of a flush as the next event.
    pub(crate) fn pick_flushed(&mut self, complete: bool) {
        self.stream.unmerged().notices.push_back(Notice::Flushed { complete });
        self.pick();
    }

    /// Whether all held events wait until the cap is lifted.
    pub(crate) fn is_drained(&self) -> bool {
        self.stream.top().is_none_or(|top| self.stream.under().frontier.is_capped(top.key))
    }

    // Full rings.

    /// Whether a ring is so full that the kernel may soon have no space. The limit is not a quarter, at which the
    /// kernel wakes a reader: in a small ring the fence's own events may fill a quarter.
    pub(crate) fn is_crowded(&self) -> bool {
        self.rings.cpu_rings.iter().any(CpuRing::is_crowded)
    }

    /// Whether a ring has filled up so much while events were yielded that a refresh should come before the next one.
    #[inline(always)]
    pub(crate) fn is_rushed(&self) -> bool {
        self.stream.rushed
    }

    // The status, and losses that no record in a ring reports.

    /// Asks the kernel how many records it has dropped, and makes events of losses that no LOST record has reported,
    /// because no record followed them. Returns whether there are any. Interrupts every CPU.
    ///
    /// Call it right after a [`Merge::refresh`]. A [`Reader`](crate::Reader) does this when its stream runs dry and
    /// before it reports a flush.
    pub fn read_losses(&mut self) -> bool {
        self.read_losses_of(|_, _, _| true, false)
    }

    /// [`Merge::read_losses`] before a report, which comes after these losses. Records that are written later, with
    /// LOST records of the same losses, come after the report.
    pub(crate) fn read_losses_before_report(&mut self) {
        self.read_losses_of(|_, _, _| true, true);
        // Once more when the report is due: what was dropped meanwhile lies at the end of a ring in which nothing is
        // newer.
        self.suspect_losses();
    }

    /// [`Merge::read_losses`] for rings that may have dropped records: all of them, or those without held events. What
    /// programs count needs no pause in the stream: no LOST record will come.
    pub(crate) fn read_suspect_losses(&mut self, all: bool) -> bool {
        let may_ask = |cpu_ring: &CpuRing, queue: &Queue| all || queue.held() == 0 || cpu_ring.losses.are_cheap();
        self.read_losses_of(|cpu_ring, cursor, queue| cursor.suspect && may_ask(cpu_ring, queue), false)
    }

    fn read_losses_of(&mut self, which: impl Fn(&CpuRing, &Cursor, &Queue) -> bool, before_report: bool) -> bool {
        let held = self.held();
        let Unmerged { queues, cursors, .. } = self.stream.unmerged();
        for ((cpu_ring, cursor), queue) in self.rings.cpu_rings.iter_mut().zip(cursors).zip(queues) {
            if which(cpu_ring, cursor, queue)
                && let Some(total) = cpu_ring.losses.read()
            {
                cursor.dropped(queue, total, cpu_ring.losses.reported(), before_report);
            }
        }
        self.held() > held
    }

    /// Records may have been dropped from any ring, because output was paused.
    pub(crate) fn suspect_losses(&mut self) {
        self.stream.unmerged().cursors.iter_mut().for_each(|cursor| cursor.suspect = true);
    }

    /// What came of what was written, the other counts so far, and what the stream waits for. It takes no system call,
    /// lacks the losses that nothing has reported yet, and lacks records that the last refresh left unindexed.
    pub fn status(&self) -> Status {
        let mut status = Status::default();
        self.fill_status(&mut status, false);
        status
    }

    /// [`Merge::status`] with an account of everything that was written, by the last refresh and the kernel's present
    /// counts. Interrupts every CPU.
    pub fn ledger(&self) -> Status {
        let mut status = Status::default();
        self.fill_status(&mut status, true);
        status
    }

    /// The status in the memory of an earlier one. `asks`: whether to ask the kernel for its present counts.
    pub(crate) fn fill_status(&self, status: &mut Status, asks: bool) {
        let top = self.stream.top();
        let mut accounts = std::mem::take(&mut status.accounts);
        accounts.clear();
        *status = Status {
            accounts,
            numbers: self.stream.under().cursors.iter().any(|cursor| cursor.numbers.is_some()),
            held: self.held(),
            next: top.map(|top| (self.rings.cpu_rings[top.ring_index()].origin.cpu, top.key)),
            reserved: self.awaited().next().map(|cpu_ring| cpu_ring.origin.cpu),
            ..self.stream.counts
        };
        for (ring_index, (cpu_ring, cursor)) in
            self.rings.cpu_rings.iter().zip(&self.stream.under().cursors).enumerate()
        {
            status.add(self.account(ring_index, cpu_ring, cursor, asks));
        }
        for (cpu, untraced) in self.rings.untraced.times() {
            status.add_untraced(cpu, untraced);
        }
        status.explain_machine();
        // LOST records and the recording's own count are of the same losses (`Recording::lost_in_all`).
        let told =
            self.rings.cpu_rings.iter().fold(0u64, |sum, cpu_ring| sum.saturating_add(cpu_ring.losses.reported()));
        let untold = self.rings.recorded_lost().saturating_sub(told);
        (status.machine.lost, status.machine.unreported) = (untold, untold);
        if !asks {
            status.is_not_exact();
        }
    }

    /// The account of one ring.
    fn account(&self, ring_index: usize, cpu_ring: &CpuRing, cursor: &Cursor, asks: bool) -> Account {
        let (counts, numbers, yielded) = (cursor.counts(), cursor.number_counts(), self.stream.records(ring_index));
        let total = if asks { cpu_ring.losses.read() } else { None };
        let reported = cpu_ring.losses.reported().saturating_add(cursor.reported_ahead());
        let lost = total.unwrap_or_else(|| if asks { 0 } else { cpu_ring.losses.known() }).max(reported);
        // What a reader that is dropped takes with it, and samples that the processor itself lost: no ring was full.
        let lost = lost.saturating_add(counts.dropped).saturating_add(cpu_ring.losses.samples());
        let unindexed = if asks { cpu_ring.records_from(cursor.cursor()) } else { 0 };
        let missing = numbers.missing.saturating_add(cursor.numbers.as_ref().map_or(0, CpuNumbers::open));
        Account {
            cpu: Some(cpu_ring.origin.cpu),
            size: cpu_ring.ring.size(),
            most_used: counts.most_used,
            yielded,
            held: (counts.indexed - yielded - counts.dropped).saturating_add(unindexed),
            lost,
            unreported: lost.saturating_sub(counts.lost),
            // What lies after a reservation that is not committed cannot be read.
            exact: total.is_some() && cpu_ring.ring.head() == cpu_ring.ring.reserved(),
            damaged: counts.corrupt,
            missing,
            // The last loss may have been drawn before the last record: by a writer that was interrupted.
            unexplained: missing.saturating_sub(lost),
            anomalies: numbers.anomalies.iter().sum(),
            late: counts.late,
            max_late: counts.max_late,
            repaired: counts.repaired,
            copied: counts.copied,
            untraced: Duration::ZERO,
        }
    }
}

/// An error if the clock of live rings can be set back, or if the key is the kernel's time and the records of a ring
/// have none.
fn check_key(rings: &Rings, key: &Key) -> Result<(), Error> {
    if !rings.are_from_elsewhere() {
        rings.clock().check_is_steady()?;
    }
    if matches!(key, Key::Time)
        && let Some(cpu_ring) = rings.cpu_rings.iter().find(|cpu_ring| !cpu_ring.origin.layout.has_time())
    {
        let cpu = cpu_ring.origin.cpu;
        let message = if rings.are_from_elsewhere() {
            // Its records need not say their CPU.
            "its records carry no time to order by (perf record --no-timestamp): name another key".to_owned()
        } else if cpu_ring.origin.layout.has_fields() {
            let cure = "name another key, or open the ring with PERF_SAMPLE_TIME";
            format!("the records of CPU {cpu} carry no time to order by: {cure}")
        } else {
            let cure = "unless the program writes one: name the field of the payload that has it";
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
    let names_none = |cpu_ring: &&CpuRing| {
        cpu_ring.ring.properties().is_shared && cpu_ring.origin.cpu == ANY_CPU && cpu_ring.origin.layout.cpu().is_none()
    };
    if let Some(cpu_ring) = rings.cpu_rings.iter().find(names_none).filter(|_| order.numbers.is_some()) {
        let name = cpu_ring.ring.properties().name;
        let message = format!(
            "numbers of each CPU in {name} that CPUs share: its records must name their CPU, in a field that the layout names"
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}

fn too_many(rings: usize, most: usize) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("{rings} rings: at most {most}"))
}

/// The cursor of a ring of which nothing is read yet.
fn cursor_of(cpu_ring: &CpuRing, keys: &Keys) -> Cursor {
    Cursor::new(cpu_ring.ring.tail(), keys.new_numbers(&cpu_ring.origin.layout))
}

/// A BPF ring buffer outlives its reader, and the next one begins at the first record that this one has not yielded and
/// not copied. Handles are told what it leaves.
impl Drop for Merge {
    fn drop(&mut self) {
        // The tails are the parent's in a forked child. A lost head has none to store.
        let is_forked = self.rings.control().is_forked();
        let Unmerged { queues, cursors, far, .. } = self.stream.unmerged();
        for ((cpu_ring, cursor), queue) in self.rings.cpu_rings.iter_mut().zip(cursors).zip(queues) {
            if !is_forked {
                cursor.advance_tail(cpu_ring, queue);
            }
            if cpu_ring.origin.is_adopted {
                cursor.drop_copied(&cpu_ring.ring, queue, far);
            }
        }
        let status = self.status();
        self.rings.control().leave_status(|last| (last.accounts, last.held) = (status.accounts, status.held));
    }
}

impl fmt::Debug for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merge")
            .field("rings", &self.rings)
            .field("keys", &self.stream.under().keys)
            .field("frontier", &self.stream.under().frontier)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
