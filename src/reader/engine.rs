//! The part of a reader that does not sleep: refreshes, fences, due reports, new CPUs.

mod awaited;
mod chores;
mod filling;
mod rest;
#[cfg(all(test, not(loom)))]
mod tests;
mod troubles;

use crate::account::status::Status;
use crate::error::{Error, ErrorKind};
use crate::merge::rules::Rule;
use crate::order::Order;
use crate::order::full::KEPT;
use crate::order::merge::Merge;
use crate::proof::contract::Done;
use crate::proof::fence::Fence;
use crate::proof::prover::Prover;
use crate::reader::ended::Ended;
use crate::reader::pace::{FLOOR, Pace};
use crate::reader::report::Report;
use crate::rings::Rings;
use crate::rings::control::{Asked, Control, Handle, Signals};
use crate::sys::wake::Wake;
use awaited::Awaited;
use chores::Chores;
use filling::Filling;
use rest::Rest;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use troubles::Troubles;

/// A merge, its fences, and the times of refreshes.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) merge: Merge,
    pub(crate) proof: Option<Prover>,
    control: Arc<Control>,
    /// The flushes that the engine has acted on, as a word without other signals.
    noticed: Signals,
    /// The report that was asked for, and the end of the stream.
    pub(super) report: Report,
    pace: Pace,
    /// Under a rule that awaits a time: when all events that had been seen when this was set are due.
    due: Option<Instant>,
    /// The wait for programs to commit what they have reserved.
    awaited: Awaited,
    troubles: Troubles,
    chores: Chores,
    pub(super) rest: Rest,
    /// How fast programs fill BPF ring buffers.
    filling: Filling,
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

/// How far apart proofs that end at once, and those of reservations, are in a rush: as far as with interrupts of the
/// package perfweave-proofs.
const APART: Duration = Duration::from_micros(100);

/// A flush or a deadline waits for a reservation this many times as long as an event waits for a refresh at most; but
/// longer than a fence takes, and no longer than somebody waits who has pressed Ctrl-C.
const PATIENCE: u32 = 10;
const LEAST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(10);

impl Engine {
    pub(crate) fn new(rings: Rings, order: Order) -> Result<Self, Error> {
        let hold = order.hold.clone();
        let complete = rings.are_complete();
        if matches!(hold.rule(), Rule::Time(_)) && !complete && rings.clock().now().is_none() {
            let message = "the lag rule cannot read the perf clock: open the rings with another clock";
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
        let mut engine = Self {
            merge,
            proof,
            control,
            noticed: Signals::QUIET,
            report: Report::None,
            pace,
            due: None,
            awaited: Awaited::default(),
            troubles: Troubles::default(),
            chores: Chores::new(),
            rest: Rest::new(spin),
            filling: Filling::new(Instant::now()),
            fences_failed: 0,
        };
        engine.know_threads();
        Ok(engine)
    }

    /// The descriptors to wait for: those of the rings, and the one that handles and proofs wake.
    pub(crate) fn fds(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        // `new` has armed it: this makes nothing, and does not fail.
        self.merge.rings().events().chain(self.control.arm().ok().map(Wake::fd))
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.control))
    }

    /// Asks for a flush. Returns it, for [`Engine::has_reported`].
    pub(crate) fn flush(&self) -> Result<Signals, Error> {
        self.handle().flush()?;
        Ok(self.control.signals().flushes())
    }

    /// Whether the report of a flush that is lent next is of this flush, or of a later one.
    pub(crate) fn has_reported(&self, flush: Signals) -> bool {
        // One that was made before and not lent yet: then this flush's is still to come.
        self.noticed.flushes() >= flush && !self.report.is_pending()
    }

    /// Whether there is an event to lend and no signal to act on first.
    #[inline(always)]
    pub(crate) fn is_at_hand(&mut self) -> bool {
        // Also if a proof has ended: one load says both.
        self.control.signals() == self.noticed
            && self.merge.is_ready()
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
        if !has_ended && self.proof.as_ref().is_some_and(|proof| proof.is_asked) && self.merge.is_ready() {
            return Ok(true);
        }
        // Only here, because it is a system call: what follows may refresh.
        self.control.check()?;
        self.notice_fence(has_ended)?;
        Ok(self.merge.is_ready())
    }

    /// Refreshes the rings. Says whether there is an event to lend, or how long to sleep.
    pub(crate) fn turn(&mut self) -> Result<Turn, Error> {
        self.report.forget_moved(&mut self.merge, &self.control);
        if self.is_ready()? {
            return Ok(Turn::Ready);
        }
        if self.report.ended().is_some() {
            return Ok(Turn::Ended);
        }
        let begins = self.report_past_deadline();
        // After the begin of a report, so that CPUs are looked for before it ends.
        let now = Instant::now();
        self.chores.follow_cpus(&mut self.merge, now)?;
        // A report that begins has refreshed. For one that is due all was found, and what is newer comes after it.
        if !begins && !self.report.is_due(&self.merge) {
            self.refresh();
        }
        self.troubles.report_too_many(|| self.merge.held())?;
        if self.merge.is_ready() || self.find_losses(now) {
            return Ok(Turn::Ready);
        }
        self.awaited.spin(&self.merge);
        if self.report.is_raised(&mut self.merge) {
            self.refresh();
            return Ok(if self.merge.is_ready() { Turn::Ready } else { Turn::Sleep(self.longest_sleep()) });
        }
        if self.report.make(&mut self.merge, &self.control) {
            return Ok(if self.report.ended().is_some() { Turn::Ended } else { Turn::Ready });
        }
        if self.merge.is_over() {
            self.report.end(Ended::Recording, None, &mut self.merge, &self.control);
            return Ok(Turn::Ended);
        }
        self.troubles.report_delay(&self.awaited, self.proof.as_ref(), now)?;
        Ok(Turn::Sleep(self.longest_sleep()))
    }

    /// The next turn of a reader for which somebody else waits. `woken`: something was readable since the last one.
    /// Else it may have to rest before it refreshes.
    #[cfg(feature = "tokio")]
    pub(crate) fn turn_when_polled(&mut self, woken: bool) -> Result<Turn, Error> {
        self.rest.wakes += u64::from(woken);
        if self.is_ready()? {
            return Ok(Turn::Ready);
        }
        if self.report.ended().is_some() {
            return Ok(Turn::Ended);
        }
        let rest = if woken { Duration::ZERO } else { self.time_to_gather() };
        let turn = if rest.is_zero() { self.turn()? } else { Turn::Sleep(rest) };
        if let Turn::Sleep(time) = turn
            && !time.is_zero()
        {
            self.rest.slept(time);
        }
        Ok(turn)
    }

    // Sleeping, and rests: how long before the next refresh.

    /// The longest sleep after which there may be a reason to refresh.
    pub(crate) fn longest_sleep(&self) -> Duration {
        if self.merge.is_behind() || self.awaited.may_go_on(&self.merge) {
            return Duration::ZERO;
        }
        let now = Instant::now();
        // While a fence is under way, nothing else releases events under its rule. The fence's end wakes the reader,
        // and so do rings that fill up.
        let fencing = self.merge.rule() == Rule::Proof
            && self.proof.as_ref().is_some_and(Prover::is_under_way)
            // A BPF ring buffer does not: the kernel notifies only a reader that has given all earlier records back.
            && self.have_events()
            && !self.merge.rings().have(|ring| ring.wakes_when_drained);
        let mut pause = self.pace.left(now, fencing);
        pause = pause.min(self.awaited.nap(now, self.patience_left(now)));
        if self.merge.held() > 0 {
            pause = pause.min(self.sleep_by_rule(now));
            if self.merge.rings().have(|ring| ring.wakes_when_drained) {
                // None of these wakes a reader that holds records.
                pause = pause.min(self.pace.shortest).min(self.filling.unwatched(self.merge.rings()));
            }
        }
        match self.control.time_left() {
            // During a report, and once it is made, a deadline begins nothing: if it is past, the reader would spin.
            Some(left) if matches!(self.report, Report::None) => pause.min(left),
            _ => pause,
        }
    }

    /// How long until the hold rule releases held events, or until something can be done for that.
    fn sleep_by_rule(&self, now: Instant) -> Duration {
        match (self.merge.rule(), &self.proof) {
            (Rule::Time(_), _) => self.due.map_or(Duration::MAX, |due| due.saturating_duration_since(now)),
            (_, Some(proof)) => {
                // A fence that may not begin yet: wait until it may.
                let gathers = if self.may_prove(now) { Some(Duration::ZERO) } else { self.pace.until_proof(now) };
                // A proof of reservations that is put off waits for a tick: a look would find a program inside again.
                let reserves = self.merge.rings().have(|ring| ring.reserves);
                let apart = if reserves { Duration::ZERO } else { self.rest_from_proofs(now) };
                let gathers = gathers.map(|left| left.max(apart));
                let begin = proof.time_to_begin().zip(gathers).map(|(pause, gathers)| pause.max(gathers));
                // Zero keeps no reader awake: the last refresh began none, so there may be nothing new to prove.
                let begin = begin.filter(|pause| !pause.is_zero());
                // Nothing wakes the reader when a program leaves.
                proof.nap().or(begin).unwrap_or(Duration::MAX)
            }
            _ => Duration::MAX,
        }
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
    pub(crate) fn time_to_gather(&mut self) -> Duration {
        let have_buffers = self.merge.rings().have(|ring| ring.wakes_when_drained);
        let took_much = self.rest.took_much(self.merge.held(), have_buffers && self.pace.is_busy());
        // Nothing more is written into a recording, so there is nothing to gather.
        let is_awaited = self.report.is_pending() || !self.merge.is_whole() || self.merge.rings().are_complete();
        if !took_much || is_awaited || !self.rest.spin.is_zero() || !self.have_events() {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let ends = [self.due.map(|due| due.saturating_duration_since(now)), self.control.time_left()];
        let rest = self.pace.gathering_left(now).min(self.filling.unwatched(self.merge.rings()));
        let rest = ends.into_iter().flatten().fold(rest, Duration::min);
        if !rest.is_zero() {
            // Before the tails: those of BPF ring buffers stay behind, so that no record wakes the reader.
            self.merge.tails.keep_behind = have_buffers;
            // Bytes of yielded events are given back before every sleep: by a refresh, or here.
            self.merge.advance_tails();
            // A ring more than half full of held records may have no room for those that would wake the reader.
            if !self.merge.is_crowded() {
                return rest;
            }
        }
        // No second rest for the same events.
        self.merge.tails.keep_behind = false;
        self.rest.since_sleep = 0;
        Duration::ZERO
    }

    /// Whether each ring can wake the reader.
    fn have_events(&self) -> bool {
        let rings = self.merge.rings();
        rings.events().count() == rings.cpu_rings.len()
    }

    // Signals, and reports that are due.

    /// Acts on flushes, closings and forks. Says whether the stream goes on.
    #[cold]
    fn notice_signals(&mut self) -> Result<bool, Error> {
        self.control.check()?;
        let signals = self.control.signals();
        // A stream that ended by a deadline could go on, and now never does. The other ends are final.
        if signals.is_closed() && self.report.ended().is_none_or(|ended| matches!(ended, Ended::Deadline { .. })) {
            self.report.end(Ended::Closed, None, &mut self.merge, &self.control);
        }
        self.report.forget_moved(&mut self.merge, &self.control);
        if self.report.ended().is_some() {
            return Ok(false);
        }
        // Another report comes first.
        let flushes = signals.flushes();
        if flushes != self.noticed && !self.report.is_pending() {
            self.begin_report(Asked::Flush);
            // After the refresh, because the key function may panic in it.
            self.noticed = flushes;
        }
        Ok(true)
    }

    /// Starts the report of a deadline that is past, if no other report comes first. Says whether it does.
    fn report_past_deadline(&mut self) -> bool {
        let past = self.control.past_deadline().filter(|_| !self.report.is_pending());
        past.map(|deadline| self.begin_report(deadline)).is_some()
    }

    /// Yields all events that are in the rings now before the report, and no others.
    fn begin_report(&mut self, asked: Asked) {
        // CPUs that came or went before are reported before it.
        self.chores.check_cpus = Instant::now();
        self.refresh();
        self.report.begin(asked, &mut self.merge);
        // A report does not wait for a tick.
        self.prove(Instant::now());
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
                self.troubles.failures.succeeded();
                self.refresh();
                self.attend()?;
                let warning = self.proof.as_mut().and_then(|prover| prover.proof.warning());
                self.troubles.report_warning(warning, self.report.is_pending())
            }
            Some(Err(errno)) => {
                // Its events stay held, and the reader tries again.
                self.merge.fail_fence();
                self.pace.not_proven(self.merge.held());
                self.fences_failed += 1;
                self.troubles.failed(errno, self.report.is_pending())
            }
        }
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
            (_, Some(proof)) if proof.time_to_begin() == Some(Duration::ZERO) && self.merge.begin_fence() => {
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
        let is_paced = self.pace.may_prove(now) && self.rest_from_proofs(now).is_zero();
        is_paced || self.report.is_pending() || self.merge.full.was_crowded
    }

    /// For how long the last proof is too recent for the next, in a rush. Each proof of reservations would find a program
    /// inside and wait for it. Each proof that ends at once would let the few events leave that came since the last one,
    /// and so the reader would refresh again and again.
    fn rest_from_proofs(&self, now: Instant) -> Duration {
        let are_cheap = self.proof.as_ref().is_some_and(Prover::ends_at_once);
        let are_many = are_cheap || self.merge.rings().have(|ring| ring.reserves);
        let gathers = self.pace.is_busy() && self.rest.spin.is_zero() && are_many;
        let past = self.pace.since_proof(now).filter(|_| gathers);
        past.map_or(Duration::ZERO, |past| APART.saturating_sub(past))
    }

    /// How much longer a report waits for the oldest reservation. `None` if none waits.
    fn patience_left(&self, now: Instant) -> Option<Duration> {
        let patience = (self.pace.longest * PATIENCE).clamp(LEAST, MOST);
        self.report.waits_since().map(|since| self.awaited.patience_left(since, patience, now))
    }

    /// If a report has waited long enough for a program to commit what it has reserved, it waits no longer. A program
    /// may never commit, and nothing is proven before it does.
    fn lose_patience(&mut self, now: Instant) {
        // A report that waits for a fence, too, waits on: programs come and go all the time.
        if !self.awaited.places.is_empty()
            && self.patience_left(now) == Some(Duration::ZERO)
            && !self.report.is_due(&self.merge)
        {
            self.report.give_up(&mut self.merge);
        }
    }

    // Refreshes, and periodic work.

    /// Refreshes all rings, and begins the proof that releases held events.
    fn refresh(&mut self) {
        self.know_threads();
        let leaves_soon = self.awaited.since.is_none() && self.proof.as_ref().is_some_and(Prover::ends_at_once);
        self.merge.full.begin_refresh(Instant::now(), leaves_soon);
        // A reading of the keys' clock, if the rule needs one. `new` has refused the rule on a clock that cannot be
        // read.
        let needs_clock = matches!(self.merge.rule(), Rule::Time(_));
        let time = if needs_clock { self.merge.rings().clock().now() } else { None };
        let found = self.merge.refresh_here(time.unwrap_or(0));
        let now = Instant::now();
        self.troubles.refreshed(self.merge.full.has_too_many);
        self.pace.refreshed(now, found);
        self.rest.refreshed(now, found);
        self.filling.refreshed(now, self.merge.rings());
        self.report.refreshed(&mut self.merge);
        self.awaited.refreshed(now, &self.merge);
        self.lose_patience(now);
        self.prove(now);
        self.control.update_status(|status| self.fill_status(status, false));
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
        self.chores.follow_cpus(&mut self.merge, now)?;
        self.report_past_deadline();
        self.find_losses(now);
        self.troubles.report_too_many(|| self.merge.held())
    }

    /// Asks the kernel for losses, if that is due. Returns whether there is an event of one.
    fn find_losses(&mut self, now: Instant) -> bool {
        let is_due = self.report.is_due(&self.merge);
        self.chores.find_losses(&mut self.merge, &self.control, now, is_due)
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
        (status.sleeps, status.wakes) = (self.rest.sleeps, self.rest.wakes);
        status.fences_failed = self.fences_failed;
        status.stand_ins = self.proof.as_ref().map_or(0, |prover| prover.proof.stand_ins());
        status.fence = self.proof.as_ref().and_then(Prover::under_way);
    }
}
