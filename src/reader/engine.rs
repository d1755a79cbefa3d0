//! The part of a reader that does not sleep: refreshes, fences, due reports, new CPUs.

mod awaited;
mod filling;
mod pending;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::account::status::Status;
use crate::error::{Error, ErrorKind, Repeats};
use crate::merge::rules::Rule;
use crate::order::full::KEPT;
use crate::order::hold::Hold;
use crate::order::merge::Merge;
use crate::order::{self, Order};
use crate::proof::contract::Done;
use crate::proof::fence::Fence;
use crate::proof::prover::Prover;
use crate::reader::ended::Ended;
use crate::reader::pace::{FLOOR, Pace, WORTH_A_REFRESH};
use crate::ring::ANY_CPU;
use crate::rings::Rings;
use crate::rings::control::{Control, Handle, Report, Signals};
use awaited::Awaited;
use filling::{Filling, QUARTER, SIXTEENTH};
use pending::Pending;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A merge, its fences, and the times of refreshes.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) merge: Merge,
    pub(crate) hold: Hold,
    pub(crate) proof: Option<Prover>,
    control: Arc<Control>,
    /// The signals that the engine has acted on.
    noticed: Signals,
    /// Why the stream has ended, if it has. The signals then never equal `noticed`.
    pub(crate) ended: Option<Ended>,
    /// The report that is due once all events from before it are yielded.
    report: Option<Pending>,
    pace: Pace,
    /// Under a rule that awaits a time: when all events that had been seen when this was set are due.
    due: Option<Instant>,
    /// The wait for programs to commit what they have reserved.
    awaited: Awaited,
    /// Fences that fail.
    failures: Repeats,
    /// What proofs say beside their results.
    warnings: Repeats,
    /// Refreshes at which too many events were held, and how many of them are to be reported.
    crowds: Repeats,
    crowded: Option<u64>,
    /// Turns in which a proof did not come.
    delays: Repeats,
    /// When to check next for new CPUs.
    check_cpus: Instant,
    /// How long to keep refreshing after an event was found, and when the last one was found.
    spin: Duration,
    found_at: Option<Instant>,
    /// Events found since the reader last slept, or could have slept.
    since_sleep: usize,
    /// How fast programs fill BPF ring buffers.
    filling: Filling,
    /// When to ask the kernel next for losses after the last record of a ring.
    check_losses: Instant,
    /// How often the reader went to sleep, and how often it was woken.
    sleeps: u64,
    wakes: u64,
    fences_failed: u64,
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Yield: there is an event to lend.
    Ready,
    /// Return: the stream has ended.
    Ended,
    /// Sleep until something becomes readable, but no longer than this. Zero: take another turn at once.
    Sleep(Duration),
}

/// The shortest sleep while a reservation is busy.
const COMMIT_NAP: Duration = Duration::from_micros(50);

/// How far apart proofs that end at once, and those of reservations, are in a rush: as far as with interrupts of the
/// package perfweave-proofs.
const APART: Duration = Duration::from_micros(100);

/// How often the kernel is asked for its count of losses.
const ASK_LOSSES: Duration = Duration::from_millis(100);

/// How often headers of busy reservations are read again before the reader sleeps: some microseconds, as long as most
/// programs take.
const SPINS: u32 = 256;

/// A flush or a deadline waits for a reservation this many times as long as an event waits for a refresh at most; but
/// longer than a fence takes, and no longer than somebody waits who has pressed Ctrl-C.
const PATIENCE: u32 = 10;
const LEAST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(10);

/// How often newer events come before a report after all: where CPUs share a ring and write all the time, each time more.
const RAISES: u32 = 16;

/// A proof that takes longer does not come: the kernel reports a grace period as stalled after 21 s.
const STALLED: Duration = Duration::from_secs(30);

/// A reader rests only while it holds less than this part of the events it found since it slept.
const PART_HELD: usize = 4;

impl Engine {
    /// The default of the longest time that an event lies in its ring unseen. Also how often CPUs are listed at most.
    pub(crate) const TICK: Duration = order::LATENCY;

    pub(crate) fn new(rings: Rings, order: Order) -> Result<Self, Error> {
        let hold = order.hold.clone();
        let complete = rings.are_complete();
        if matches!(hold.rule(), Rule::Time(_)) && !complete && rings.clock().now().is_none() {
            let message = "the lag rule cannot read the perf clock: open the rings with another";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let control = Arc::clone(rings.control());
        control.arm().map_err(Error::cannot("make an eventfd"))?;
        let (latency, spin) = (order.latency, order.spin);
        let mut merge = Merge::new(rings, order)?;
        merge.full.kept = KEPT;
        // A recording is complete, and nothing waits for proof.
        let start = |fence: &Fence| fence.start(Some(merge.rings()), &Done::new(&control));
        let proof = hold.fence().filter(|_| !complete).map(start).transpose()?;
        let pace = Pace::new(hold.rule(), proof.as_ref(), latency, Instant::now());
        // The first check also finds CPUs that came while rings were opened (`Hotplug`).
        let check_cpus = Instant::now() + Self::TICK;
        let noticed = Signals::QUIET;
        let mut engine = Self {
            merge,
            hold,
            proof,
            control,
            noticed,
            ended: None,
            report: None,
            pace,
            due: None,
            awaited: Awaited::default(),
            failures: Repeats::default(),
            warnings: Repeats::default(),
            crowds: Repeats::default(),
            crowded: None,
            delays: Repeats::default(),
            check_cpus,
            spin,
            found_at: None,
            since_sleep: 0,
            filling: Filling::new(Instant::now()),
            check_losses: check_cpus,
            sleeps: 0,
            wakes: 0,
            fences_failed: 0,
        };
        engine.know_threads();
        Ok(engine)
    }

    /// The descriptors to wait for.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.merge.rings().fds().chain(self.others())
    }

    /// The descriptors to wait for besides rings.
    pub(crate) fn others(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        // `new` has armed it: this makes nothing, and does not fail.
        self.control.arm().ok().map(AsFd::as_fd).into_iter()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn is_forked(&self) -> bool {
        self.control.is_forked()
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.control))
    }

    /// Whether there is an event to lend and no signal to act on first.
    #[inline(always)]
    pub(crate) fn is_at_hand(&mut self) -> bool {
        // Also if a proof has ended: one load says both.
        self.control.signals() == self.noticed
            && self.merge.pick()
            // Last: to pick may give bytes back, which notices that a ring fills up.
            && !self.merge.is_rushed()
    }

    /// Whether there is an event to lend. Refreshes only if a fence ended, a flush was requested or a ring fills up.
    #[inline]
    pub(crate) fn is_ready(&mut self) -> Result<bool, Error> {
        // They never are equal once the stream has ended.
        if self.control.signals() != self.noticed && !self.notice_signals()? {
            return Ok(false);
        }
        if self.merge.is_rushed() {
            self.control.check()?;
            self.refresh();
            self.attend()?;
        }
        // Some proofs end at once, and each event would bring the refresh that follows. So proven events come first.
        let has_ended = self.control.signals().has_proof();
        if !has_ended && self.proof.as_ref().is_some_and(|proof| proof.is_asked) && self.merge.pick() {
            return Ok(true);
        }
        // Only here, because it is a system call: what follows may refresh.
        self.control.check()?;
        self.notice_fence(has_ended)?;
        Ok(self.merge.pick())
    }

    /// Refreshes the rings. Says whether there is an event to lend, or how long to sleep.
    pub(crate) fn turn(&mut self) -> Result<Turn, Error> {
        self.forget_deadline();
        if self.is_ready()? {
            return Ok(Turn::Ready);
        }
        if self.ended.is_some() {
            return Ok(Turn::Ended);
        }
        let begins = self.report_past_deadline();
        // After the begin of a report, so that CPUs are looked for before it ends.
        let now = Instant::now();
        self.follow_cpus(now)?;
        // A report that begins has refreshed. For one that is due all was found, and what is newer comes after it.
        if !begins && !self.report_is_due() {
            self.refresh();
        }
        self.report_too_many()?;
        if self.merge.is_ready() || self.find_losses(now) {
            return Ok(Turn::Ready);
        }
        self.await_commits();
        if self.report_is_due()
            && let Some(pending) = self.report.as_mut().filter(|pending| pending.raises < RAISES && !pending.is_forgone)
            && self.merge.raise_cap()
        {
            pending.raises += 1;
            self.refresh();
            return Ok(if self.merge.is_ready() { Turn::Ready } else { Turn::Sleep(self.pause()) });
        }
        let due = self.report.as_ref().filter(|_| self.report_is_due());
        match due.map(|pending| (pending.report, !pending.is_forgone)) {
            Some((Report::Flushed, complete)) => {
                self.end_report();
                self.merge.pick_flushed(complete);
                Ok(Turn::Ready)
            }
            Some((Report::Deadline(_), complete)) => Ok(self.end(Ended::Deadline { complete })),
            None if self.merge.is_over() => Ok(self.end(Ended::Recording)),
            None => {
                self.report_delay(now)?;
                Ok(Turn::Sleep(self.pause()))
            }
        }
    }

    /// Ends the stream. Gives the bytes of yielded events back, because there may be no further refresh.
    fn end(&mut self, why: Ended) -> Turn {
        self.merge.advance_tails();
        (self.ended, self.noticed) = (Some(why), self.noticed.never());
        Turn::Ended
    }

    // Sleeping, and rests: how long before the next refresh.

    /// The longest sleep after which there may be a reason to refresh.
    pub(crate) fn pause(&self) -> Duration {
        if self.merge.is_behind() || (self.awaited.since.is_some() && self.merge.may_find_commits()) {
            return Duration::ZERO;
        }
        let now = Instant::now();
        // While a fence is under way, nothing else releases events under its rule. The fence's end wakes the reader,
        // and so do rings that fill up.
        let fencing = self.merge.rule() == Rule::Proof
            && self.proof.as_ref().is_some_and(Prover::is_under_way)
            && self.do_rings_wake();
        let mut pause = self.pace.left(now, fencing);
        pause = pause.min(self.commit_nap(now));
        if self.merge.held() > 0 {
            pause = pause.min(self.pause_of_rule(now));
            if self.merge.rings().have(|ring| ring.wakes_when_drained) {
                // None of these wakes a reader that holds records.
                pause = pause.min(self.pace.shortest()).min(self.unwatched());
            }
        }
        match self.control.time_left() {
            // During a report a deadline begins nothing: if it is past, the reader would spin.
            Some(left) if self.report.is_none() => pause.min(left),
            _ => pause,
        }
    }

    /// How long until the hold rule releases held events, or until something can be done for that.
    fn pause_of_rule(&self, now: Instant) -> Duration {
        match (self.merge.rule(), &self.proof) {
            (Rule::Time(_), _) => self.due.map_or(Duration::MAX, |due| due.saturating_duration_since(now)),
            (_, Some(proof)) => {
                // A fence that may not begin yet: wait until it may.
                let gathers = if self.may_prove(now) { Some(Duration::ZERO) } else { self.pace.until_proof(now) };
                let begin = proof.pause().zip(gathers).map(|(pause, gathers)| pause.max(gathers));
                // Zero keeps no reader awake: the last refresh began none, so there may be nothing new to prove.
                let begin = begin.filter(|pause| !pause.is_zero());
                // Nothing wakes the reader when a program leaves.
                proof.nap().or(begin).unwrap_or(Duration::MAX)
            }
            _ => Duration::MAX,
        }
    }

    /// Whether to refresh again instead of sleeping.
    pub(crate) fn spins(&self) -> bool {
        !self.spin.is_zero()
            && (self.spin == Duration::MAX || self.found_at.is_some_and(|found| found.elapsed() < self.spin))
    }

    /// Counts a sleep, if its time is not zero.
    pub(crate) fn sleeps(&mut self, time: Duration) {
        self.since_sleep = 0;
        self.sleeps += u64::from(!time.is_zero());
    }

    /// Counts a wake, if something other than the reader's own tick woke it.
    pub(crate) fn wakes(&mut self, woken: bool) {
        self.wakes += u64::from(woken);
    }

    /// How long to sleep before the next refresh, although more may have been written since the last. Zero: refresh at
    /// once.
    ///
    /// The kernel writes more while a reader takes the events it has found. A refresh at once would find few, in cache
    /// lines that the kernel is still writing. So a reader that has found many events since it slept, and has taken
    /// them, sleeps for the rest of the tick. It does not rest if rings cannot wake it, if a ring is full already, or
    /// if a caller waits.
    ///
    /// A BPF ring buffer wakes a reader for each record with which the reader has caught up. So if events come fast,
    /// the reader rests however few it has found, and does not catch up: it keeps the last bytes of each BPF ring
    /// buffer, so nothing wakes it.
    pub(crate) fn rest(&mut self) -> Duration {
        let have_buffers = self.merge.rings().have(|ring| ring.wakes_when_drained);
        let found = self.since_sleep >= if have_buffers && self.pace.is_busy() { 1 } else { WORTH_A_REFRESH };
        let took_much = found && self.merge.held() < WORTH_A_REFRESH.max(self.since_sleep / PART_HELD);
        // Nothing more is written into a recording, so there is nothing to gather.
        let is_awaited = self.report.is_some() || !self.merge.is_whole() || self.merge.rings().are_complete();
        if !took_much || is_awaited || !self.spin.is_zero() || !self.have_events() {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let ends = [self.due.map(|due| due.saturating_duration_since(now)), self.control.time_left()];
        let rest = self.pace.rest(now).min(self.unwatched());
        let rest = ends.into_iter().flatten().fold(rest, Duration::min);
        if !rest.is_zero() {
            // Before the tails: those of BPF ring buffers stay behind, so that no record wakes the reader.
            self.merge.keep_behind = have_buffers;
            // Bytes of yielded events are given back before every sleep: by a refresh, or here.
            self.merge.advance_tails();
            // A ring more than half full of held records may have no room for those that would wake the reader.
            if !self.merge.is_crowded() {
                return rest;
            }
        }
        // No second rest for the same events.
        self.merge.keep_behind = false;
        self.since_sleep = 0;
        Duration::ZERO
    }

    /// The longest sleep while rings fill up and none wakes the reader. A writer that does nothing else fills a
    /// sixteenth of the smallest BPF ring buffer in it, or a quarter if writers have been slow.
    fn unwatched(&self) -> Duration {
        let part = if self.filling.is_slow { QUARTER } else { SIXTEENTH };
        self.merge.smallest_buffer().map_or(Duration::MAX, |size| FLOOR.max(Duration::from_micros(size / part)))
    }

    /// Whether each ring wakes the reader as it fills up. A BPF ring buffer does not: the kernel notifies only a reader
    /// that has given all earlier records back.
    fn do_rings_wake(&self) -> bool {
        self.have_events() && !self.merge.rings().have(|ring| ring.wakes_when_drained)
    }

    /// Whether each ring can wake the reader.
    fn have_events(&self) -> bool {
        let rings = self.merge.rings();
        rings.events().count() == rings.len()
    }

    // Signals, and reports that are due.

    /// Acts on flushes, closings and forks. Says whether the stream goes on.
    #[cold]
    fn notice_signals(&mut self) -> Result<bool, Error> {
        self.control.check()?;
        let signals = self.control.signals().without_proof();
        // A stream that ended by a deadline could go on, and now never does. The other ends are final.
        if signals.is_closed() && self.ended.is_none_or(|ended| matches!(ended, Ended::Deadline { .. })) {
            self.end(Ended::Closed);
        }
        self.forget_deadline();
        if self.ended.is_some() {
            return Ok(false);
        }
        // Another report comes first.
        if signals != self.noticed && self.report.is_none() {
            self.report_after_refresh(Report::Flushed);
            // After the refresh, because the key function may panic in it.
            self.noticed = signals;
        }
        Ok(true)
    }

    /// Starts the report of a deadline that is past, if no other report comes first. Says whether it does.
    fn report_past_deadline(&mut self) -> bool {
        let past = self.control.past_deadline().filter(|_| self.report.is_none());
        past.map(|report| self.report_after_refresh(report)).is_some()
    }

    /// Drops the report of a deadline that is no longer set. A stream that ended at that deadline goes on.
    fn forget_deadline(&mut self) {
        if self.report.as_ref().is_some_and(|pending| !self.control.asks_for(pending.report)) {
            self.end_report();
            if matches!(self.ended, Some(Ended::Deadline { .. })) {
                (self.ended, self.noticed) = (None, self.noticed.again());
            }
        }
    }

    fn end_report(&mut self) {
        self.report = None;
        self.merge.lift_cap();
    }

    /// Yields all events that are in the rings now before the report, and no others. CPUs that came or went before are
    /// reported before it.
    fn report_after_refresh(&mut self, report: Report) {
        self.check_cpus = Instant::now();
        self.refresh();
        // After the refresh: all that was written before the call lies before the heads that it has loaded.
        self.merge.mark_heads();
        self.report = Some(Pending::new(report));
        self.cap();
        // A report does not wait for a tick.
        self.prove(Instant::now());
    }

    /// Once all events before the report were seen, holds newer ones back.
    fn cap(&mut self) {
        let Some(pending) = self.report.as_mut().filter(|pending| !pending.is_draining) else { return };
        if self.merge.is_past_marks() || pending.is_forgone {
            pending.is_draining = true;
            self.merge.set_cap();
            self.merge.read_losses_before_report();
        }
    }

    /// Whether all events before the report were yielded. Once it waits no longer: all of them that could be.
    fn report_is_due(&self) -> bool {
        let pending = self.report.as_ref().filter(|pending| pending.is_draining);
        // Time alone releases what a rule holds that proves nothing.
        pending.is_some_and(|pending| pending.is_forgone && self.merge.rule().is_proof() || self.merge.is_drained())
    }

    // Proofs.

    /// If the fence under way has ended, refreshes, so that the events it proved can be yielded, and begins the next
    /// fence. `has_ended`: it says so.
    #[inline]
    fn notice_fence(&mut self, has_ended: bool) -> Result<(), Error> {
        // Without a call: mostly, none has ended.
        let Some(proof) = self.proof.as_mut().filter(|proof| has_ended || proof.is_asked) else { return Ok(()) };
        match proof.poll() {
            None => Ok(()),
            Some(Ok(())) => {
                self.merge.end_fence();
                self.failures.succeeded();
                self.refresh();
                self.attend()?;
                self.give_warning()
            }
            Some(Err(errno)) => self.fence_failed(errno),
        }
    }

    /// Reports what a proof says beside its result. Not every time, unless a flush or deadline waits for it.
    fn give_warning(&mut self) -> Result<(), Error> {
        let Some(warning) = self.proof.as_mut().and_then(Prover::warning) else { return Ok(()) };
        self.warnings.failed(self.report.is_some()).map_or(Ok(()), |times| Err(warning.repeated(times)))
    }

    /// The events of the failed fence stay held, and the reader tries again. Not every failure is reported, unless a
    /// flush or deadline waits for the fence.
    #[cold]
    fn fence_failed(&mut self, errno: std::io::Error) -> Result<(), Error> {
        self.merge.fail_fence();
        self.pace.not_proven(self.merge.held());
        self.fences_failed += 1;
        let waited_for = self.report.is_some();
        self.failures
            .failed(waited_for)
            .map_or(Ok(()), |times| Err(Error::fence_failed(ErrorKind::Degraded, errno, times)))
    }

    /// Reports a proof that does not come, with the program or the proof for which it waits. Not every time.
    fn report_delay(&mut self, now: Instant) -> Result<(), Error> {
        let inside = self.awaited.places.iter().min_by_key(|(_, found)| *found);
        let inside = inside.map(|((cpu, _), found)| (*cpu, now.saturating_duration_since(*found)));
        if let Some((cpu, time)) = inside.filter(|(_, time)| *time > STALLED) {
            let cpu = Some(cpu).filter(|cpu| *cpu != ANY_CPU);
            return self.delays.failed(false).map_or(Ok(()), |times| Err(Error::not_committed(cpu, time, times)));
        }
        let proof = self.proof.as_ref().and_then(|proof| Some((proof.name(), proof.under_way()?)));
        if let Some((name, time)) = proof.filter(|(_, time)| *time > STALLED) {
            return self.delays.failed(false).map_or(Ok(()), |times| Err(Error::no_proof(name, time, times)));
        }
        self.delays.succeeded();
        Ok(())
    }

    /// Begins the proof that releases held events, if it is time.
    fn prove(&mut self, now: Instant) {
        self.due = self.due.filter(|due| now < *due);
        if !self.may_prove(now) {
            return;
        }
        let begun = match (self.merge.rule(), &mut self.proof) {
            // All events seen are due together, after the lag.
            (Rule::Time(lag), _) if self.due.is_none() && self.merge.held() > 0 => {
                // At least `FLOOR`: a short lag would wake the reader again and again for few events.
                self.due = now.checked_add(FLOOR.max(lag));
                true
            }
            // `begin_fence` comes last: once it says yes, the merge counts on a proof that begins now.
            (_, Some(proof)) if proof.pause() == Some(Duration::ZERO) && self.merge.begin_fence() => {
                proof.begin();
                proof.visit_cpus(self.merge.writers(), self.pace.cpu_visits());
                true
            }
            _ => false,
        };
        if begun {
            self.merge.full.was_crowded = false;
            self.pace.proving(now);
        }
    }

    /// Whether the held events justify a fence: a report waits for it, a ring fills up with them, or the pace allows
    /// it.
    fn may_prove(&self, now: Instant) -> bool {
        let is_paced = self.pace.may_prove(now) && !self.rests_from_proofs(now);
        is_paced || self.report.is_some() || self.merge.full.was_crowded
    }

    /// Whether the last proof was too recent for the next, in a rush. Each proof of reservations would find a program
    /// inside and wait for it. Each proof that ends at once would let the few events leave that came since the last one,
    /// and so the reader would refresh again and again.
    fn rests_from_proofs(&self, now: Instant) -> bool {
        let are_cheap = self.proof.as_ref().is_some_and(Prover::ends_at_once);
        let are_many = are_cheap || self.merge.rings().have(|ring| ring.reserves);
        let gathers = self.pace.is_busy() && self.spin.is_zero() && are_many;
        gathers && self.pace.since_proof(now).is_some_and(|past| past < APART)
    }

    // What programs have reserved in BPF ring buffers and not committed.

    /// Waits a little for programs to commit what they have reserved in BPF ring buffers, if a proof waits for them.
    fn await_commits(&mut self) {
        if !self.merge.awaits_commits() {
            self.awaited.since = None;
            return;
        }
        // In full only once: a program that has not committed by then takes longer.
        let spins = if self.awaited.since.is_none() { SPINS } else { 1 };
        self.awaited.since.get_or_insert_with(Instant::now);
        for _ in 0..spins {
            if self.merge.may_find_commits() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Notes at which reservations rings stand for which a proof or a report waits. Call it after a refresh.
    fn watch_reserved(&mut self, now: Instant) {
        let places = &mut self.awaited.places;
        places.retain(|(place, _)| self.merge.awaited_places().any(|other| other == *place));
        for place in self.merge.awaited_places() {
            if !places.iter().any(|(known, _)| *known == place) {
                places.push((place, now));
            }
        }
    }

    /// How long to sleep at most while a proof or a report waits for reservations.
    fn commit_nap(&self, now: Instant) -> Duration {
        let Some(since) = self.awaited.since else { return Duration::MAX };
        // As long again as the wait so far: nothing wakes the reader when a program commits.
        let nap = COMMIT_NAP.max(now.saturating_duration_since(since));
        if self.report.as_ref().is_some_and(|pending| !pending.is_forgone) {
            // Not zero, or the reader would spin: the next refresh gives the reservation up.
            nap.min(self.patience_left(now).max(COMMIT_NAP))
        } else {
            nap
        }
    }

    /// How long a report waits for a reservation.
    fn patience(&self) -> Duration {
        (self.pace.longest() * PATIENCE).clamp(LEAST, MOST)
    }

    /// How much longer a report waits for the oldest reservation. One that was found later was found while it waited.
    fn patience_left(&self, now: Instant) -> Duration {
        let since = self.report.as_ref().map(|pending| pending.since).max(self.awaited.oldest()).unwrap_or(now);
        self.patience().saturating_sub(now.saturating_duration_since(since))
    }

    /// If a report has waited long enough for a program to commit what it has reserved, it waits no longer, and says
    /// that it is not complete. A program may never commit, and nothing is proven before it does.
    fn lose_patience(&mut self, now: Instant) {
        // A report that waits for a fence, too, waits on: programs come and go all the time.
        if !self.report_is_due()
            && !self.awaited.places.is_empty()
            && self.patience_left(now).is_zero()
            && let Some(pending) = &mut self.report
        {
            pending.is_forgone = true;
            self.cap();
        }
    }

    /// Reports that so many events are held that no more are copied out of rings that fill up. Not every time.
    fn report_too_many(&mut self) -> Result<(), Error> {
        let Some(times) = self.crowded.take() else { return Ok(()) };
        Err(Error::too_many_held(self.merge.held(), times))
    }

    // Refreshes, and periodic work.

    /// Refreshes all rings, and begins the proof that releases held events.
    fn refresh(&mut self) {
        self.know_threads();
        // What a proof releases at once need not leave its ring before.
        let leaves_soon = self.awaited.since.is_none() && self.proof.as_ref().is_some_and(Prover::ends_at_once);
        self.merge.full.leaves_soon = leaves_soon;
        let found = self.merge.refresh_here(self.now());
        let now = Instant::now();
        if self.merge.full.has_too_many {
            self.crowded = self.crowds.failed(false).or(self.crowded);
        } else {
            self.crowds.succeeded();
        }
        self.pace.refreshed(now, found);
        self.since_sleep = self.since_sleep.saturating_add(found);
        self.filling.refreshed(now, &self.merge);
        if found > 0 {
            self.found_at = Some(now);
        }
        self.cap();
        self.watch_reserved(now);
        self.lose_patience(now);
        self.prove(now);
        self.control.update_status(|status| self.fill_status(status, false));
    }

    /// A reading of the keys' clock, if the rule needs one.
    fn now(&self) -> u64 {
        let needs_clock = matches!(self.merge.rule(), Rule::Time(_));
        // `new` has refused the rule on a clock that cannot be read.
        if needs_clock { self.merge.rings().clock().now().unwrap_or(0) } else { 0 }
    }

    /// Learns the threads of fences. A merge knows the one that refreshes.
    fn know_threads(&mut self) {
        if let Some(proof) = &self.proof {
            proof.each_thread(|thread| self.merge.know(thread));
        }
    }

    /// Does periodic work, even if there is always an event to yield: new CPUs, losses, a deadline.
    fn attend(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        self.follow_cpus(now)?;
        self.report_past_deadline();
        self.find_losses(now);
        self.report_too_many()
    }

    /// When a ring has run dry, or a report is due, asks the kernel for losses after the last record. Returns whether
    /// there is an event of one.
    fn find_losses(&mut self, now: Instant) -> bool {
        // A pause also drops records of rings that were never nearly full, and are not suspected for that.
        if self.control.take_lossy() {
            self.merge.suspect_losses();
        }
        let report = self.report_is_due();
        if !report && now < self.check_losses {
            return false;
        }
        self.check_losses = now + ASK_LOSSES;
        // Only losses before the last refresh count. The kernel is asked ring by ring, because other rings may never
        // run dry.
        self.merge.read_suspect_losses(report) && self.merge.is_ready()
    }

    /// Opens rings for new CPUs, once a tick.
    fn follow_cpus(&mut self, now: Instant) -> Result<(), Error> {
        if now < self.check_cpus {
            return Ok(());
        }
        self.check_cpus = now + Self::TICK;
        self.merge.follow_cpus().map(drop)
    }

    // The status.

    /// The status of this reader as of the last refresh.
    pub(crate) fn status(&self) -> Status {
        let mut status = Status::default();
        self.fill_status(&mut status, false);
        status
    }

    /// The status with an account of everything that was written. Refreshes first.
    pub(crate) fn ledger(&mut self) -> Result<Status, Error> {
        self.control.check()?;
        self.refresh();
        let mut status = Status::default();
        self.fill_status(&mut status, true);
        Ok(status)
    }

    fn fill_status(&self, status: &mut Status, asks: bool) {
        self.merge.fill_status(status, asks);
        (status.sleeps, status.wakes) = (self.sleeps, self.wakes);
        status.fences_failed = self.fences_failed;
        status.stand_ins = self.proof.as_ref().map_or(0, Prover::stand_ins);
        status.fence = self.proof.as_ref().and_then(Prover::under_way);
    }
}
