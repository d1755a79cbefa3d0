//! Flush, close and pause: the controls of other threads over rings while a reader reads them.

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::account::status::Status;
use crate::error::Error;
use crate::instrument::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::rings::producers::{Pause, Producer, Producers};
use crate::sys::fork::Owner;
use crate::sys::wake::Wake;
use std::io;
use std::sync::{Arc, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// A handle to a reader and its rings, usable from any thread while the reader blocks. Clones control the same reader.
///
/// No method waits for the reader, and the reader takes no lock for a handle: it reads one atomic word for each event.
/// When the reader is closed or dropped, the methods do nothing and do not fail.
#[derive(Debug, Clone)]
pub struct Handle(pub(crate) Arc<Control>);

impl Handle {
    /// Makes the reader yield everything that is in the rings, held events included, proven by a fence as always. Then
    /// the reader yields [`Item::Flushed`](crate::Item::Flushed) once, and only then anything newer. Unblocks a blocked
    /// reader. Records that are written
    /// before the reader notices this call count as written before it.
    ///
    /// In BPF ring buffers, what programs have reserved counts too. The reader waits for them to commit it, but not for
    /// ever ([`Order::latency`](crate::Order::latency)): the item says whether the flush is complete. For a
    /// [`Proof`](crate::Proof) that does not end, as that of epochs whose patience has no end while a program is inside,
    /// it waits without a bound.
    ///
    /// The next reader of a BPF ring buffer or an adopted ring begins behind the events before the report, with none
    /// missing and none twice, if this one is dropped before it yields more. There are three exceptions. A flush that
    /// is not complete. Newer events that were copied out of their ring
    /// ([`Order::most_held`](crate::Order::most_held)) are lost. And where CPUs share a ring buffer and write all the
    /// time, a newer event may lie before an older one at each try: after sixteen the report comes anyway, and events
    /// that lie so come again.
    ///
    /// Flushes share one item if the reader has not begun with the first when the others come. A stream that has ended
    /// by a deadline yields it when it goes on.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    pub fn flush(&self) -> Result<(), Error> {
        self.0.check()?;
        // Release pairs with the Acquire load in `Control::signals`: the refresh that follows finds all records written
        // before the flush.
        self.0.word.fetch_add(FLUSH, Ordering::Release);
        self.0.wake();
        Ok(())
    }

    /// Ends the stream for good ([`Ended::Closed`](crate::Ended::Closed)): a blocked call gives `None` at once, as does
    /// every later one. Slots of maps are emptied and events stopped now; memory is unmapped when the reader is
    /// dropped.
    ///
    /// Events that were not yielded are lost, except in rings that outlive the reader. To have them all, call
    /// [`Handle::flush`] first and wait for [`Item::Flushed`](crate::Item::Flushed). The closed reader's
    /// [`ledger`](crate::Reader::ledger) has what the kernel dropped last.
    pub fn close(&self) {
        // The slots and events of a child are its parent's.
        if !self.0.is_forked() {
            drop(self.0.retire());
        }
    }

    /// The status of the reader as of a recent refresh, also while it sleeps or lends an event:
    /// [`Reader::status`](crate::Reader::status) for other threads. It is the last refresh, unless a handle was asked
    /// at that very moment: the reader does not wait for handles. A reader with events to read refreshes at least once
    /// a tick, and before it sleeps. Once the reader is dropped, its accounts say what it left. All counts are 0 before
    /// its first refresh, and for rings without a reader.
    ///
    /// ```
    /// # use perfweave::{Hold, Order, Reader, sim};
    /// # let kernel = sim::Kernel::new(&[0]);
    /// # kernel.emit(0, 1, b"one");
    /// # kernel.lose(0, 2);
    /// # kernel.emit(0, 2, b"two");
    /// let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None))?;
    /// let handle = reader.handle();
    /// let event = reader.next()?;
    /// let status = handle.status()?;
    /// assert!(event.is_some() && status.refreshes == 1 && status.held == 3);
    /// assert_eq!(status.total().written(), 4);
    /// # Ok::<(), perfweave::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    #[doc(alias = "metrics")]
    pub fn status(&self) -> Result<Status, Error> {
        // A child may have been forked while the lock was taken.
        self.0.check()?;
        Ok(self.0.status.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Keeps output from all rings, in one of two ways. Pausing again in the same way does nothing. Both ways can be in
    /// force at once. A writer that is inside at this moment finishes. [`Pause::Slots`] has no effect on adopted rings.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked); [`ErrorKind::Permission`](crate::ErrorKind::Permission) or
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the kernel refuses;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for [`Pause::Output`] if there is a BPF ring buffer.
    /// All rings are tried: the first refusal is reported, and the other rings are paused.
    pub fn pause(&self, how: Pause) -> Result<(), Error> {
        self.0.pause(how)
    }

    /// Lets output into all rings again. Ends both ways of pausing. Without a pause it does nothing. While a
    /// [`Recorder`](crate::Recorder) copies its rings, output goes on after the copy.
    ///
    /// # Errors
    /// As [`Handle::pause`].
    pub fn resume(&self) -> Result<(), Error> {
        self.0.resume()
    }

    /// Sets when the stream ends; `None` for never. Once the deadline is past and the reader runs out of events, it
    /// yields everything that is in the rings then, held events included. Then the stream has ended
    /// ([`Ended::Deadline`](crate::Ended::Deadline)): every call gives `None` until another deadline is set, or none.
    /// From then on the stream goes on with what is newer. It does not end by a deadline that is moved or taken back
    /// before.
    ///
    /// Held events need a fence, so the end can come later than the deadline by as long as a fence takes, or as
    /// programs take to commit what they have reserved in BPF ring buffers, which is bounded as for a flush. A
    /// [`Proof`](crate::Proof) that does not end keeps the stream from ending by a deadline. [`Handle::close`] ends it.
    /// [`Reader::next_timeout`](crate::Reader::next_timeout) is strict instead, and leaves held events.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    pub fn set_deadline(&self, deadline: Option<Instant>) -> Result<(), Error> {
        self.0.check()?;
        self.0.set_deadline(deadline);
        Ok(())
    }
}

/// Bits of the word that a reader checks before each event.
const CLOSED: u64 = 1;
/// A proof says that it has ended, and was not asked yet.
const PROOF: u64 = 2;
/// The stream has ended: the reader yields nothing more, even if it holds events.
const ENDED: u64 = 4;
/// Flushes are counted from here on.
const FLUSH: u64 = 8;

/// Shared by rings, their reader and its handles.
#[derive(Debug)]
pub(crate) struct Control {
    word: AtomicU64,
    owner: Owner,
    /// Wakes the reader, so that it reads the word.
    wake: OnceLock<Wake>,
    /// Nanoseconds from `begun` on; `u64::MAX` is never.
    deadline: AtomicU64,
    begun: Instant,
    /// Whether output has gone on after a pause, which may have dropped records.
    lossy: AtomicBool,
    producers: Mutex<Producers>,
    /// The status as of a recent refresh of the reader.
    status: Mutex<Status>,
}

/// What a reader was asked to report, between earlier and later events.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Asked {
    Flush,
    /// This deadline, in nanoseconds from `begun` on.
    Deadline(u64),
}

/// The word, as a reader checks it before it yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) struct Signals(u64);

impl Control {
    pub(crate) fn new() -> Arc<Self> {
        let mut status = Status::default();
        status.is_not_exact();
        Arc::new(Self {
            word: AtomicU64::new(0),
            owner: Owner::new(),
            wake: OnceLock::new(),
            deadline: AtomicU64::new(u64::MAX),
            begun: Instant::now(),
            lossy: AtomicBool::new(false),
            producers: Mutex::default(),
            status: Mutex::new(status),
        })
    }

    /// Leaves the status of the reader for handles. It does not wait: a handle that asks at this moment gets the one
    /// before.
    pub(crate) fn update_status(&self, update: impl FnOnce(&mut Status)) {
        match self.status.try_lock() {
            Ok(mut status) => update(&mut status),
            // A thread panicked while it had the lock. An update writes all of it.
            Err(TryLockError::Poisoned(status)) => update(&mut status.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Leaves the last status of a reader that is dropped. It waits for a handle that copies the one before.
    pub(crate) fn leave_status(&self, leave: impl FnOnce(&mut Status)) {
        // In a child nobody may ever give the lock back.
        if self.check().is_ok() {
            leave(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// The reader's wake-up. The first call creates it.
    pub(crate) fn arm(&self) -> io::Result<&Wake> {
        if let Some(wake) = self.wake.get() {
            return Ok(wake);
        }
        let wake = Wake::new()?;
        // Another thread may have been faster: then this one is closed.
        Ok(self.wake.get_or_init(|| wake))
    }

    fn wake(&self) {
        // Until a reader arms it, nobody sleeps.
        if let Some(wake) = self.wake.get() {
            wake.wake();
        }
    }

    #[inline]
    pub(crate) fn signals(&self) -> Signals {
        // Acquire pairs with the Release stores of flush, close and `raise_proof`.
        Signals(self.word.load(Ordering::Acquire))
    }

    /// A proof has ended: the reader asks for its result.
    pub(crate) fn raise_proof(&self) {
        // Release pairs with the Acquire load in `Control::signals`, and that in `take_proof`: who sees the bit finds
        // the result.
        self.word.fetch_or(PROOF, Ordering::Release);
        self.wake();
    }

    /// Whether a proof has said that it has ended since this was asked last.
    pub(crate) fn take_proof(&self) -> bool {
        // Acquire pairs with the Release store in `raise_proof`.
        self.word.fetch_and(!PROOF, Ordering::Acquire) & PROOF != 0
    }

    /// The reader's stream has ended, or goes on: until it goes on, the word is none with which events are lent.
    pub(crate) fn set_ended(&self, has_ended: bool) {
        // Relaxed: the reader's own thread looks for it. Other bits may change meanwhile.
        if has_ended {
            self.word.fetch_or(ENDED, Ordering::Relaxed);
        } else {
            self.word.fetch_and(!ENDED, Ordering::Relaxed);
        }
    }

    /// Whether this is a child of the process that made it.
    pub(crate) fn is_forked(&self) -> bool {
        !self.owner.is_here()
    }

    /// The process that made it.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// For calls that cannot return an error.
    pub(crate) fn assert_not_forked(&self) {
        assert!(!self.is_forked(), "rings are used in a child of the process that opened them");
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_forked() { Err(Error::forked()) } else { Ok(()) }
    }

    pub(crate) fn set_deadline(&self, deadline: Option<Instant>) {
        let nanos = deadline.map_or(u64::MAX, |deadline| {
            u64::try_from(deadline.saturating_duration_since(self.begun).as_nanos()).unwrap_or(u64::MAX)
        });
        // Relaxed: no other memory is published by it.
        self.deadline.store(nanos, Ordering::Relaxed);
        self.wake();
    }

    /// How long until the deadline: zero if it is past, `None` if there is none.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        // Relaxed: as in `set_deadline`.
        let deadline = self.deadline.load(Ordering::Relaxed);
        (deadline != u64::MAX).then(|| Duration::from_nanos(deadline).saturating_sub(self.begun.elapsed()))
    }

    /// The deadline, if it is past.
    pub(crate) fn past_deadline(&self) -> Option<Asked> {
        // Relaxed: as in `set_deadline`.
        let deadline = self.deadline.load(Ordering::Relaxed);
        (u128::from(deadline) <= self.begun.elapsed().as_nanos()).then_some(Asked::Deadline(deadline))
    }

    /// Whether a report is still asked for: its deadline may have been moved.
    pub(crate) fn asks_for(&self, asked: Asked) -> bool {
        // Relaxed: as in `set_deadline`.
        !matches!(asked, Asked::Deadline(deadline) if self.deadline.load(Ordering::Relaxed) != deadline)
    }

    /// Whether output went on after a pause since this was asked last.
    pub(crate) fn take_lossy(&self) -> bool {
        // Relaxed: the kernel's counts are read later than this.
        self.lossy.load(Ordering::Relaxed) && self.lossy.swap(false, Ordering::Relaxed)
    }

    /// Keeps output from all rings.
    pub(crate) fn pause(&self, how: Pause) -> Result<(), Error> {
        self.check()?;
        self.producers().pause(how)
    }

    /// Lets all output in again, unless it is frozen.
    pub(crate) fn resume(&self) -> Result<(), Error> {
        self.check()?;
        self.go_on(Producers::resume)
    }

    /// Keeps output from all rings, whatever handles ask for, while a function runs. Then output goes on, also if it was
    /// paused before: unless somebody has paused it meanwhile.
    pub(crate) fn while_frozen<T>(&self, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.check()?;
        // Also if the function panics, or not all rings can be stopped.
        let thaw = Thaw(self);
        let frozen = self.producers().freeze();
        let done = frozen.and_then(|()| run());
        std::mem::forget(thaw);
        let thawed = self.thaw();
        done.and_then(|done| thawed.map(|()| done))
    }

    fn thaw(&self) -> Result<(), Error> {
        self.check()?;
        self.go_on(Producers::thaw)
    }

    fn go_on(&self, how: fn(&mut Producers) -> Result<(), Error>) -> Result<(), Error> {
        let gone_on = how(&mut self.producers());
        // Once output goes on: counts that are read after this have all that the pause has dropped.
        self.lossy.store(true, Ordering::Relaxed);
        gone_on
    }

    pub(crate) fn producers(&self) -> MutexGuard<'_, Producers> {
        self.producers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the stream and stops all output for good. Returns the events, to be closed after their rings are unmapped.
    pub(crate) fn retire(&self) -> Vec<Producer> {
        // Release pairs with the Acquire load in `Control::signals`.
        // First: a blocked reader ends at once, however long it takes to stop the events.
        self.word.fetch_or(CLOSED, Ordering::Release);
        self.wake();
        self.producers().retire()
    }
}

impl Signals {
    /// No flush and no close yet.
    pub(crate) const QUIET: Self = Self(0);

    /// Whether the reader was closed.
    pub(crate) fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    /// Whether a proof says that it has ended.
    pub(crate) fn has_proof(self) -> bool {
        self.0 & PROOF != 0
    }

    /// The flushes alone.
    pub(crate) fn flushes(self) -> Self {
        Self(self.0 & !(FLUSH - 1))
    }
}

/// Lets output go on after a panic.
struct Thaw<'a>(&'a Control);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        let _ = self.0.thaw();
    }
}
