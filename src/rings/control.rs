//! Flush, close and pause: the controls of other threads over rings while a reader reads them.

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::account::status::Status;
use crate::error::{Error, ErrorKind, hint};
use crate::instrument::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::ring::ANY_CPU;
use crate::sys::fork::Owner;
use crate::sys::wake::Wake;
use crate::sys::{bpf, perf};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How output is kept from the rings while paused. The two ways differ in who counts the missing records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pause {
    /// The rings turn writers away (`PERF_EVENT_IOC_PAUSE_OUTPUT`). Programs see `-ENOSPC`, and the kernel counts each
    /// record as lost. A reader reports these losses when output goes on, and before it reports a flush.
    Output,
    /// Writers find no ring: slots of BPF maps are emptied, and events without a slot are disabled. Programs see
    /// `-ENOENT`, and **nothing counts** the records they do not write. cilium/ebpf's `Reader.Pause` does this. It is
    /// cheaper for the traced program, which gets no further than the map.
    Slots,
}

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
    /// ever ([`Order::latency`](crate::Order::latency)): the item says whether the flush is
    /// complete. For a [`Proof`](crate::Proof) that does not end, as that of epochs whose patience has no end while a
    /// program is inside, it waits without a bound.
    ///
    /// The next reader of a BPF ring buffer or an adopted ring begins behind the events before the report, with none
    /// missing and none twice, if this one is dropped before it yields more. There are three exceptions. A flush that
    /// is not complete. Newer events that
    /// were copied out of their ring ([`Order::most_held`](crate::Order::most_held)) are lost. And where CPUs share a
    /// ring buffer and write all the time, a newer event may lie before an older one at each try: after sixteen the
    /// report comes anyway, and events that lie so come again.
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
    /// [`Handle::flush`] first and wait for [`Item::Flushed`](crate::Item::Flushed). The closed reader's [`ledger`](crate::Reader::ledger) has what the
    /// kernel dropped last.
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
        self.0.read_status(Status::clone)
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

    /// Lets output into all rings again. Ends both ways of pausing, and pauses of a single ring. Without a pause it
    /// does nothing, and while a [`Recorder`](crate::Recorder) copies its rings it does nothing either.
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
/// The stream has ended: the reader lends no event, whatever it holds.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    /// The status that the reader left at a recent refresh.
    fn read_status<T>(&self, what: impl FnOnce(&Status) -> T) -> Result<T, Error> {
        // A child may have been forked while the lock was taken.
        self.check()?;
        Ok(what(&self.status.lock().unwrap_or_else(PoisonError::into_inner)))
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
        let mut producers = self.producers();
        if let (Some(stays), Pause::Output) = (&mut producers.frozen, how) {
            *stays = true;
        }
        producers.turn(how, true)
    }

    /// Keeps output from all rings, whatever handles ask for, while a function runs. Then output goes on, also if it was
    /// paused before: unless somebody has paused it meanwhile.
    pub(crate) fn while_frozen<T>(&self, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.check()?;
        // Also if the function panics, or not all rings can be stopped.
        let thaw = Thaw(self);
        let mut producers = self.producers();
        producers.frozen = Some(false);
        let frozen = producers.turn(Pause::Output, true);
        drop(producers);
        let done = frozen.and_then(|()| run());
        std::mem::forget(thaw);
        let thawed = self.thaw();
        done.and_then(|done| thawed.map(|()| done))
    }

    fn thaw(&self) -> Result<(), Error> {
        self.check()?;
        let mut producers = self.producers();
        let stays = producers.frozen.take().unwrap_or(false);
        let thawed = if stays { Ok(()) } else { producers.turn(Pause::Output, false) };
        // Once output goes on: counts that are read after this have all that the pause has dropped.
        self.lossy.store(true, Ordering::Relaxed);
        thawed
    }

    /// Lets all output in again, unless it is frozen.
    pub(crate) fn resume(&self) -> Result<(), Error> {
        self.check()?;
        // Rings that were paused one by one go on too.
        let mut producers = self.producers();
        // A handle of a flight recorder may call this while its rings are copied (I9).
        if let Some(stays) = &mut producers.frozen {
            *stays = false;
            return producers.turn(Pause::Slots, false);
        }
        // `and`, not `?`: the second is tried whatever the first gives.
        let resumed = producers.turn(Pause::Output, false).and(producers.turn(Pause::Slots, false));
        // Once output goes on: counts that are read after this have all that the pause has dropped.
        self.lossy.store(true, Ordering::Relaxed);
        resumed
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

/// The gate of one ring: it stops all producers of that ring at once and lets them in again. The producers themselves
/// stay as they are.
pub(crate) enum ProducerGate {
    /// The event that owns the ring.
    Event(Arc<OwnedFd>),
    /// Nothing stops it but what writes there. With what messages call such a ring.
    None(&'static str),
    /// A simulated one.
    Simulated(Box<dyn Fn(Pause, bool) + Send + Sync>),
}

/// A producer: an event that writes into a ring, and the slot of a `PERF_EVENT_ARRAY` through which programs find it.
#[derive(Debug)]
pub(crate) struct Producer {
    pub(crate) cpu: u32,
    /// The event's name, for messages.
    pub(crate) name: Arc<str>,
    pub(crate) event: Arc<OwnedFd>,
    pub(crate) slot: Option<Slot>,
    /// Whether it is in its slot. Without a slot, whether it is enabled.
    pub(crate) set: bool,
}

/// A slot of a `PERF_EVENT_ARRAY`.
///
/// Keeps a duplicate of the map's file descriptor: the kernel empties the slots by itself when the file they were set
/// through is closed (`perf_event_fd_array_release`, `kernel/bpf/arraymap.c`).
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) map: Arc<OwnedFd>,
    pub(crate) index: u32,
}

/// All producers, which write into the rings, and the gates of the rings.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    gates: Vec<(u32, ProducerGate)>,
    events: Vec<Producer>,
    output_paused: bool,
    slots_paused: bool,
    /// A flight recorder copies what is in the rings: output stays paused until it says so (I9). Whether
    /// somebody has asked meanwhile that it stays paused after that.
    frozen: Option<bool>,
    /// Everything was stopped for good.
    retired: bool,
}

impl Producers {
    /// Adds a ring, paused if the others are, and starts its events. Does nothing once all are stopped for good.
    pub(crate) fn add(&mut self, cpu: u32, gate: ProducerGate, events: Vec<Producer>) -> Result<(), Error> {
        // A CPU that arrives must not start what closing has stopped.
        if self.retired {
            return Ok(());
        }
        // Before its events start, so that none of them writes during a pause.
        for (paused, how) in [(self.output_paused, Pause::Output), (self.slots_paused, Pause::Slots)] {
            if paused {
                gate.turn(cpu, how, true)?;
            }
        }
        self.start(events)?;
        // Only now: a ring whose events do not start leaves no gate behind.
        self.push_gate(cpu, gate);
        Ok(())
    }

    /// Whether all threads that the events follow have ended, and all that these have started. An event hangs up when
    /// its thread has ended, and no thread that inherited it is left (`is_event_hup`, kernel/events/core.c).
    pub(crate) fn have_ended(&self) -> bool {
        let has_hung_up = |producer: &Producer| {
            // poll(2) gives `POLLHUP` without being asked for it.
            let mut polled = [PollFd::new(producer.event.as_fd(), PollFlags::empty())];
            let is_polled = nix::poll::poll(&mut polled, PollTimeout::ZERO).is_ok();
            is_polled && polled[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
        };
        self.events.iter().all(has_hung_up)
    }

    /// All that writes into the rings. Nothing once it was stopped for good.
    pub(crate) fn events(&self) -> &[Producer] {
        &self.events
    }

    /// Adds a ring without pausing it.
    pub(crate) fn push_gate(&mut self, cpu: u32, gate: ProducerGate) {
        self.gates.push((cpu, gate));
    }

    /// Adds events that are ready to write and starts them: first all slots are set, then all events enabled. Paused
    /// slots stay empty. If one fails, all are stopped again. Does nothing once all are stopped for good.
    pub(crate) fn start(&mut self, mut events: Vec<Producer>) -> Result<(), Error> {
        if self.retired {
            return Ok(());
        }
        let paused = self.slots_paused;
        let mut start = || {
            let (mut slotted, mut others): (Vec<_>, Vec<_>) =
                events.iter_mut().partition(|producer| producer.slot.is_some());
            slotted.iter_mut().filter(|_| !paused).try_for_each(|producer| producer.set(true))?;
            // Also during a pause: to resume only fills the slots.
            slotted.iter().try_for_each(|producer| producer.enable(true))?;
            others.iter_mut().filter(|_| !paused).try_for_each(|producer| producer.set(true))
        };
        let started = start();
        match started {
            Ok(()) => self.events.append(&mut events),
            Err(_) => events.iter_mut().for_each(Producer::stop),
        }
        started
    }

    /// Stops a CPU's events for good: they stopped with the CPU, or seem to have.
    pub(crate) fn stop(&mut self, cpu: u32) {
        self.events.iter_mut().filter(|producer| producer.cpu == cpu).for_each(Producer::stop);
        self.events.retain(|producer| producer.cpu != cpu);
    }

    /// Pauses or resumes all rings, even if some refuse. The first refusal is reported.
    fn turn(&mut self, how: Pause, paused: bool) -> Result<(), Error> {
        // Noted even if a ring refuses, for rings that come later.
        match how {
            Pause::Output => self.output_paused = paused,
            Pause::Slots => self.slots_paused = paused,
        }
        let mut turned = Ok(());
        for (cpu, gate) in &self.gates {
            turned = turned.and(gate.turn(*cpu, how, paused));
        }
        if how == Pause::Slots {
            for producer in &mut self.events {
                turned = turned.and(producer.set(!paused));
            }
        }
        turned
    }

    fn retire(&mut self) -> Vec<Producer> {
        self.retired = true;
        self.events.iter_mut().for_each(Producer::stop);
        // A handle may live on, and keeps no event open.
        self.gates.clear();
        std::mem::take(&mut self.events)
    }
}

/// Lets output go on after a panic.
struct Thaw<'a>(&'a Control);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        let _ = self.0.thaw();
    }
}

/// Where a ring is, in words.
fn place(cpu: u32) -> String {
    if cpu == ANY_CPU { "the ring of all CPUs".into() } else { format!("a ring of CPU {cpu}") }
}

impl ProducerGate {
    fn turn(&self, cpu: u32, how: Pause, paused: bool) -> Result<(), Error> {
        match (self, how) {
            (Self::Event(event), Pause::Output) => perf::pause_output(event.as_fd(), paused).map_err(|errno| {
                let what = if paused { "pause" } else { "resume" };
                Error::system(&format!("{what} the ring on CPU {cpu}"), errno)
            }),
            (Self::None(name), Pause::Output) if paused => {
                let message = format!("the output into {name} cannot be paused, and {} is one", place(cpu));
                Err(Error::new(ErrorKind::Unsupported, message)
                    .hinting("detach the programs, or let them check a flag"))
            }
            (Self::None(_), _) | (Self::Event(_), Pause::Slots) => Ok(()),
            (Self::Simulated(turn), how) => {
                turn(how, paused);
                Ok(())
            }
        }
    }
}

impl Producer {
    /// Puts the event into its slot, or takes it out. Without a slot, enables or disables it.
    fn set(&mut self, set: bool) -> Result<(), Error> {
        if self.set == set {
            return Ok(());
        }
        let Some(Slot { map, index }) = &self.slot else {
            self.enable(set)?;
            self.set = set;
            return Ok(());
        };
        let done = if set {
            bpf::map_update_fd(map.as_fd(), *index, self.event.as_fd())
        } else {
            match bpf::map_delete(map.as_fd(), *index) {
                // Empty already.
                Err(errno) if errno.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                done => done,
            }
        };
        done.map_err(|errno| {
            let message = format!("cannot set slot {index} of the perf event array, for CPU {}", self.cpu);
            let hint = hint::slot(&errno);
            Error::new(ErrorKind::of(&errno), message).because(errno).hinting(hint).about(&self.name)
        })?;
        self.set = set;
        Ok(())
    }

    /// Stops the event for good.
    fn stop(&mut self) {
        // Another program may have emptied the slot. Nothing can be done about an error.
        let _ = self.set(false);
        let _ = self.enable(false);
    }

    fn enable(&self, enabled: bool) -> Result<(), Error> {
        perf::enable(self.event.as_fd(), enabled).map_err(|errno| {
            let what = if enabled { "enable" } else { "disable" };
            Error::control(what, &self.name, self.cpu, errno)
        })
    }
}

impl fmt::Debug for ProducerGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Event(_) => "Event",
            Self::None(_) => "None",
            Self::Simulated(_) => "Simulated",
        })
    }
}
