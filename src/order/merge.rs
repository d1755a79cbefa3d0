//! The merge: all rings' records as one stream, in place.

#[cfg(all(test, not(loom)))]
mod tests;

use crate::account::status::Status;
use crate::error::Error;
use crate::merge::frontier::Frontier;
use crate::merge::place::RINGS;
use crate::merge::rules::Rule;
use crate::order::Order;
use crate::order::accounts::Accounts;
use crate::order::arrivals::{self, cursor_of};
use crate::order::cursor::Cursor;
use crate::order::dense::Dense;
use crate::order::event::Event;
use crate::order::event_guard::{Batch, EventGuard};
use crate::order::footprint;
use crate::order::full::Full;
use crate::order::key::{Key, Keys};
use crate::order::losses::{self, Which};
use crate::order::note::Notice;
use crate::order::sighting::Sighting;
use crate::order::stream::Stream;
use crate::order::suits;
use crate::order::tails::Tails;
use crate::order::tracers::Leaving;
use crate::order::unmerged::Unmerged;
use crate::record::Layout;
use crate::ring::{ANY_CPU, Ring};
use crate::rings::{CpuRing, Rings};
use crate::sequence::numbers::CpuNumbers;
use crate::sys::machine;
use crate::sys::thread::Thread;
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

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
    pub(crate) tails: Tails,
    /// Whether the last refresh indexed everything.
    whole: bool,
    sighting: Sighting,
}

impl Merge {
    /// Merges rings into one stream.
    ///
    /// # Errors
    /// As [`Reader::new`](crate::Reader::new), without those of waiting.
    pub fn new(mut rings: Rings, order: Order) -> Result<Self, Error> {
        rings.control().check()?;
        suits::check(&rings, &order)?;
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
        if dense.is_some() {
            keys.count_up();
        }
        let frontier = if complete { Frontier::complete() } else { Frontier::new(rule) };
        let mut stream = Stream::new(Unmerged::new(keys, cursors, frontier), dense.map(Dense::new));
        stream.tracers.add(&Thread::current());
        // The threads of a recording are not threads of this tracer, whatever their numbers are.
        stream.leaving = order.leave_out.filter(|_| is_here).map(|filter| Leaving(filter(&rings)));
        let full = Full::new(order.most_held, &rings);
        Ok(Self { rings, stream, full, tails: Tails::default(), whole: true, sighting: Sighting::default() })
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
        let Self { rings, stream, .. } = self;
        stream.tracers.add(&Thread::current_in(rings.control().owner()));
        (stream.rushed, self.tails.in_batch) = (false, false);
        let under = stream.unmerged();
        let held = under.held();
        // A panic of the key function goes on once the refresh has ended in order.
        let index = || under.index(&mut rings.cpu_rings, self.tails.keep_behind);
        let looked = catch_unwind(AssertUnwindSafe(index));
        self.whole = looked.is_ok();
        let largest = under.keys.until_now();
        // The frontier is valid only for all heads together.
        let seen = if self.whole { self.sighting.refreshed(now, under, &rings.cpu_rings) } else { None };
        if let Some(now) = seen {
            under.frontier.refreshed(largest, now);
            under.numbers().for_each(CpuNumbers::refreshed);
        } else {
            under.frontier.refreshed_in_part(largest);
        }
        if let Err(panic) = looked {
            resume_unwind(panic);
        }
        stream.counts.refreshes += 1;
        self.full.copy_out(&mut rings.cpu_rings, stream);
        self.tails.keep_behind = false;
        stream.tracers.note_ends(rings.clock());
        // A loss that was reported separately may have found its LOST record.
        stream.held().saturating_sub(held)
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
        let mut cpu_rings = self.rings.cpu_rings.iter().enumerate();
        let owes_space = |(ring_index, cpu_ring): (usize, &CpuRing)| {
            cpu_ring.ring.properties().wakes_when_drained && self.stream.tail(ring_index) > cpu_ring.ring.tail()
        };
        !self.is_whole() || cpu_rings.any(owes_space)
    }

    /// Whether the last refresh found everything, and no ring has filled up by a quarter since.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole && !self.stream.rushed
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
    /// it was not. [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if there would be more than 16,384 rings:
    /// the CPUs for which there is no room stay untraced.
    pub fn follow_cpus(&mut self) -> Result<bool, Error> {
        arrivals::follow(&mut self.rings, &mut self.stream, RINGS)
    }

    /// Adds an adopted ring to those that are merged already.
    pub(crate) fn add(&mut self, cpu: u32, ring: Ring, layout: Layout) -> Result<(), Error> {
        self.rings.control().check()?;
        suits::check_more(&self.rings, cpu, &ring, &layout, self.stream.under())?;
        let cpu_ring = self.rings.adopted(cpu, ring, layout);
        arrivals::join(&mut self.rings, &mut self.stream, cpu_ring);
        Ok(())
    }

    // Proofs, and reservations for which they wait.

    /// Whether a grace period that begins after this call would release an event that was seen. If so, wait for one,
    /// then call [`Merge::end_fence`] and [`Merge::refresh`]. Until then this returns false.
    ///
    /// Events that are already proven can be yielded meanwhile.
    pub fn begin_fence(&mut self) -> bool {
        // A dense sequence needs a fence only for numbers that are missing.
        if self.stream.dense.is_some() && (self.stream.top().is_none() || self.is_ready()) {
            return false;
        }
        self.stream.begin_proof()
    }

    /// Tells the merge that the grace period for [`Merge::begin_fence`] has ended. The events that it proves may leave
    /// after the next refresh.
    pub fn end_fence(&mut self) {
        self.sighting.forget();
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

    /// The rings in which a program is inside a reservation for which a proof or a report waits.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = &CpuRing> {
        let cpu_rings = self.rings.cpu_rings.iter().zip(&self.stream.under().cursors).filter(|_| self.whole);
        let is_past = |cursor: &Cursor| cursor.is_past_sighted() && cursor.is_past_marked();
        let awaited =
            cpu_rings.filter(move |(cpu_ring, cursor)| cpu_ring.ring.properties().reserves && !is_past(cursor));
        awaited.map(|(cpu_ring, _)| cpu_ring)
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
        self.stream.is_at_hand() || self.pick_anew()
    }

    /// Gives bytes back that are due, and picks the next event. No event is borrowed now.
    #[inline(never)]
    fn pick_anew(&mut self) -> bool {
        self.tails.give_back(&mut self.rings, &mut self.stream);
        self.stream.pick_anew(&self.rings.cpu_rings)
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
        self.tails.give_back(&mut self.rings, &mut self.stream);
        self.tails.in_batch = true;
        let plain_end = self.stream.array.plain_end();
        Batch { cpu_rings: &self.rings.cpu_rings, stream: &mut self.stream, plain_end }
    }

    /// Gives the bytes of all yielded events back to the kernel now.
    ///
    /// # Panics
    /// In a forked child, which does not have the rings.
    pub fn advance_tails(&mut self) {
        self.rings.control().assert_not_forked();
        self.tails.advance(&mut self.rings, &mut self.stream);
    }

    // What it has.

    /// How many events are indexed and not yet yielded.
    pub fn held(&self) -> usize {
        self.stream.held()
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

    /// Releases nothing larger than the keys seen so far, until [`Merge::lift_cap`]. Losses of what was seen come
    /// before the cap is lifted.
    pub(crate) fn set_cap(&mut self) {
        let under = self.stream.unmerged();
        under.frontier.set_cap();
        losses::read(Which::BeforeReport, under, &mut self.rings.cpu_rings);
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

    /// Picks the report of a flush as the next event, and lifts the cap.
    pub(crate) fn pick_flushed(&mut self, complete: bool) {
        let under = self.stream.unmerged();
        under.frontier.lift_cap();
        under.notices.push_back(Notice::Flushed { complete });
        self.is_ready();
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
        self.losses_of(Which::All)
    }

    /// [`Merge::read_losses`] for some rings.
    pub(crate) fn losses_of(&mut self, which: Which) -> bool {
        let under = self.stream.unmerged();
        let held = under.held();
        losses::read(which, under, &mut self.rings.cpu_rings);
        under.held() > held
    }

    /// Records may have been dropped from any ring, because output was paused.
    pub(crate) fn suspect_losses(&mut self) {
        losses::suspect(self.stream.unmerged());
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
        let uncommitted = self.awaited().next().map(|cpu_ring| cpu_ring.origin.cpu);
        Accounts { rings: &self.rings, stream: &self.stream, uncommitted, asks }.fill(status);
    }
}

/// Handles are told what it leaves.
impl Drop for Merge {
    fn drop(&mut self) {
        Tails::leave(&mut self.rings, &mut self.stream);
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
