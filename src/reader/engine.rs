//! The part of a reader that does not sleep: looking, fences, due reports, CPUs that come online.

mod rest;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::account::ledger::Ledger;
use crate::account::stats::Stats;
use crate::error::{Error, ErrorKind, Repeats};
use crate::order::hold::Hold;
use crate::order::merge::Merge;
use crate::order::proof::{Proof, Watch};
use crate::order::{self, Order};
use crate::reader::ended::Ended;
use crate::reader::pace::{FLOOR, Pace, WORTH_A_LOOK};
use crate::rings::Rings;
use crate::rings::control::{Control, Handle, Report, Signals};
use crate::sys::machine;
use smallvec::SmallVec;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A merge, the fences beside it, and when to look.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) merge: Merge,
    pub(crate) hold: Hold,
    pub(crate) proof: Option<Proof>,
    control: Arc<Control>,
    /// The signals that were taken notice of.
    noticed: Signals,
    /// Why the stream has ended, if it has. Then the signals are never what was noticed.
    pub(crate) ended: Option<Ended>,
    /// The report to make once everything that was seen before is yielded.
    report: Option<Report>,
    /// Whether all that is to come before the report was seen, and what is newer waits.
    capped: bool,
    pace: Pace,
    /// Under the lag rule: when everything is due that had been seen when this was set.
    due: Option<Instant>,
    /// Under the round rule: whether another refresh follows the last at once.
    again: bool,
    /// Fences that fail.
    failures: Repeats,
    /// Programs that do not leave.
    stuck: Repeats,
    /// When to see next whether CPUs came online.
    check_cpus: Instant,
    /// For how long to go on looking after something was found, and when that was.
    spin: Duration,
    found: Option<Instant>,
    /// Events found since the reader slept, or could have.
    since_sleep: usize,
    /// When to ask next what was dropped behind everything else.
    check_losses: Instant,
    /// How often the reader went to sleep, and was woken.
    sleeps: u64,
    wakes: u64,
    fences_failed: u64,
    /// The threads that have looked, and the fence's.
    pub(crate) threads: SmallVec<[u32; 4]>,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Yield: there is an event to lend.
    Ready,
    /// Give up: the stream has ended.
    Ended,
    /// Sleep until something becomes readable, but no longer than this; zero is to take another turn at once.
    Sleep(Duration),
}

/// How often CPUs are listed although the kernel's messages tell of them: a message may not arrive.
const LIST_CPUS: Duration = Duration::from_secs(1);

/// How often the kernel is asked what it dropped.
const ASK_LOSSES: Duration = Duration::from_millis(100);

impl Engine {
    /// The longest time for which an event may lie in its ring unseen, unless set. It is also how often CPUs are listed
    /// without messages about them.
    pub(crate) const TICK: Duration = order::LATENCY;

    pub(crate) fn new(rings: Rings, order: Order) -> Result<Self, Error> {
        let hold = order.hold.clone();
        let complete = rings.are_complete();
        if matches!(hold, Hold::Lag(_)) && !complete && rings.clock().now().is_none() {
            let message = "the lag rule cannot read the perf clock: open the rings with another";
            return Err(Error::new(ErrorKind::Clock, message));
        }
        let control = Arc::clone(rings.control());
        control.arm().map_err(Error::cannot("make an eventfd"))?;
        let pace = Pace::new(&hold, order.latency, Instant::now());
        let spin = order.spin;
        let merge = Merge::new(rings, order)?;
        // Of a recording everything is there, and nothing waits for proof.
        let proof = hold.fence().filter(|_| !complete).map(Proof::start).transpose()?;
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
            capped: false,
            pace,
            due: None,
            again: false,
            failures: Repeats::default(),
            stuck: Repeats::default(),
            check_cpus,
            spin,
            found: None,
            since_sleep: 0,
            check_losses: check_cpus,
            sleeps: 0,
            wakes: 0,
            fences_failed: 0,
            threads: SmallVec::new(),
        };
        engine.know_threads();
        Ok(engine)
    }

    /// What to wait for.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.merge.rings().fds().chain(self.others())
    }

    /// What to wait for besides rings.
    pub(crate) fn others(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let wake = self.control.arm().ok().map(AsFd::as_fd);
        wake.into_iter().chain(self.proof.as_ref().and_then(Proof::wake))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn is_forked(&self) -> bool {
        self.control.is_forked()
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.control))
    }

    /// Whether there is an event to lend, and nothing has to be noticed first.
    #[inline(always)]
    pub(crate) fn is_at_hand(&mut self) -> bool {
        // A word that is what it was says that this is no forked child either.
        self.control.signals() == self.noticed
            && !self.proof.as_ref().is_some_and(Proof::has_ended)
            && !self.merge.is_rushed()
            && self.merge.pick()
    }

    /// Whether there is an event to lend, without a refresh unless a fence ended, a flush was asked for or a ring fills up.
    #[inline]
    pub(crate) fn is_ready(&mut self) -> Result<bool, Error> {
        // They never are once the stream has ended.
        if self.control.signals() != self.noticed && !self.notice_signals()? {
            return Ok(false);
        }
        if self.merge.is_rushed() {
            self.refresh();
            self.attend()?;
        }
        // Epochs end at once, and the refresh behind that would come with each event: what is proven comes first.
        if matches!(self.proof, Some(Proof::Epochs(_))) && self.merge.is_ready() {
            return Ok(true);
        }
        self.notice_fence()?;
        Ok(self.merge.is_ready())
    }

    /// Looks at the rings; says whether there is something to lend, or how long to sleep.
    pub(crate) fn turn(&mut self) -> Result<Turn, Error> {
        self.forget_deadline();
        if self.is_ready()? {
            return Ok(Turn::Ready);
        }
        if self.ended.is_some() {
            return Ok(Turn::Ended);
        }
        let now = Instant::now();
        self.follow_cpus(now)?;
        if !self.report_past_deadline() && !self.report_is_due() {
            self.refresh();
        }
        if self.merge.is_ready() || self.find_losses(now) {
            return Ok(Turn::Ready);
        }
        self.await_epochs()?;
        match self.report.filter(|_| self.report_is_due()) {
            Some(Report::Flushed) => {
                self.end_report();
                self.merge.pick_flushed();
                Ok(Turn::Ready)
            }
            Some(Report::Deadline(_)) => Ok(self.end(Ended::Deadline)),
            None if self.merge.is_over() => Ok(self.end(Ended::Recording)),
            None => Ok(Turn::Sleep(self.pause())),
        }
    }

    /// Ends the stream. What was yielded is given back: there may be no refresh any more.
    fn end(&mut self, why: Ended) -> Turn {
        self.merge.publish();
        (self.ended, self.noticed) = (Some(why), self.noticed.never());
        Turn::Ended
    }

    /// The longest sleep after which there may be a reason to look.
    pub(crate) fn pause(&self) -> Duration {
        if self.merge.is_behind() {
            return Duration::ZERO;
        }
        let now = Instant::now();
        // While a fence is under way, nothing else lets anything out under its rule. Its end wakes us, and rings that fill up do.
        let fencing = matches!(self.hold, Hold::Fence(_))
            && self.proof.as_ref().is_some_and(Proof::is_under_way)
            && self.do_rings_wake();
        let mut pause = self.pace.left(now, fencing);
        if self.merge.held() > 0 {
            pause = pause.min(self.pause_of_rule(now));
        }
        match self.control.time_left() {
            Some(left) if self.report.is_none() => pause.min(left),
            _ => pause,
        }
    }

    /// How long until the hold rule lets out what is held, or something can be done for it.
    fn pause_of_rule(&self, now: Instant) -> Duration {
        match (&self.hold, &self.proof) {
            (Hold::Lag(_), _) => self.due.map_or(Duration::MAX, |due| due.saturating_duration_since(now)),
            // Another refresh is all it takes. It costs nobody anything; but what comes meanwhile must not keep us awake.
            (Hold::Round, _) if self.again || self.report.is_some() => Duration::ZERO,
            (_, Some(proof)) => {
                // A fence that may not begin yet: come back when it may.
                let begin = proof.pause().filter(|pause| !pause.is_zero() && self.may_prove(now));
                // Nothing wakes us when a program leaves.
                proof.nap().or(begin).unwrap_or(Duration::MAX)
            }
            _ => Duration::MAX,
        }
    }

    /// Flushes, closings, forks. Says whether the stream goes on.
    #[cold]
    fn notice_signals(&mut self) -> Result<bool, Error> {
        let signals = self.control.signals();
        if signals.is_closed()? && self.ended.is_none_or(|ended| ended == Ended::Deadline) {
            self.end(Ended::Closed);
        }
        self.forget_deadline();
        if self.ended.is_some() {
            return Ok(false);
        }
        // Another report comes first.
        if signals != self.noticed && self.report.is_none() {
            self.report_after_refresh(Report::Flushed);
            // Behind the refresh: the key function may panic in it.
            self.noticed = signals;
        }
        Ok(true)
    }

    /// Begins with the report of a deadline that is past, if no other report comes first. Says whether it does.
    fn report_past_deadline(&mut self) -> bool {
        let past = self.control.past_deadline().filter(|_| self.report.is_none());
        past.map(|report| self.report_after_refresh(report)).is_some()
    }

    /// Gives up the report of a deadline that is not set any more. A stream that ended by it goes on.
    fn forget_deadline(&mut self) {
        if self.report.is_some_and(|report| !self.control.asks_for(report)) {
            self.end_report();
            if self.ended == Some(Ended::Deadline) {
                (self.ended, self.noticed) = (None, self.noticed.again());
            }
        }
    }

    fn end_report(&mut self) {
        (self.report, self.capped) = (None, false);
        self.merge.lift_cap();
    }

    /// Everything that is in the rings now is yielded before the report, and nothing else.
    fn report_after_refresh(&mut self, report: Report) {
        self.refresh();
        self.merge.mark_heads();
        self.report = Some(report);
        self.cap();
        // A report does not wait for a tick.
        self.prove(Instant::now());
    }

    /// Once all that is to come before the report was seen, keeps back what is newer.
    fn cap(&mut self) {
        if self.report.is_some() && !self.capped && self.merge.is_past_marks() {
            self.capped = true;
            self.merge.set_cap();
            self.merge.suspect_losses();
        }
    }

    /// Whether all that is to come before the report has come.
    fn report_is_due(&self) -> bool {
        self.capped && self.merge.is_drained()
    }

    /// If the fence under way has ended, looks again, so that what it proved can be yielded, and begins the next.
    #[inline]
    fn notice_fence(&mut self) -> Result<(), Error> {
        match self.proof.as_mut().and_then(Proof::ended) {
            None => Ok(()),
            Some(Ok(())) => {
                self.merge.end_fence();
                self.failures.well();
                self.refresh();
                self.attend()?;
                self.tell_stuck()
            }
            Some(Err(errno)) => self.fence_failed(errno),
        }
    }

    /// Does what is due now and then, also if there is always something to yield: CPUs that came, losses, a deadline.
    fn attend(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        self.follow_cpus(now)?;
        self.report_past_deadline();
        self.find_losses(now);
        Ok(())
    }

    /// Waits a little for a program that is inside to leave. After too long a kernel fence stands in.
    fn await_epochs(&mut self) -> Result<(), Error> {
        let Some(watch) = self.proof.as_mut().and_then(Proof::epochs) else { return Ok(()) };
        if watch.is_over() || watch.spin() {
            return Ok(());
        }
        watch.lose_patience().or_else(|errno| self.fence_failed(errno))
    }

    /// Tells now and then, or if a report waits for it, of a program that has returned without leaving.
    fn tell_stuck(&mut self) -> Result<(), Error> {
        let returned = self.proof.as_mut().and_then(Proof::epochs).and_then(Watch::take_returned);
        let Some((cpu, waited)) = returned else { return Ok(()) };
        let times = self.stuck.failed(self.report.is_some());
        times.map_or(Ok(()), |times| Err(stuck(cpu, waited, times)))
    }

    /// The events of the failed fence stay held, and the reader tries again. Reported now and then, or if a report
    /// waits for the fence.
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

    /// Looks at all heads, and begins what lets out what is held.
    fn refresh(&mut self) {
        self.know_threads();
        self.merge.pause = Some(self.pace.since_look(Instant::now()));
        let found = self.merge.refresh(self.now());
        // One more lets out what this one found; of what that one finds, only much is worth a third.
        self.again = if self.again { found >= WORTH_A_LOOK } else { found > 0 };
        let now = Instant::now();
        self.pace.refreshed(now, found);
        self.since_sleep = self.since_sleep.saturating_add(found);
        if found > 0 {
            self.found = Some(now);
        }
        self.cap();
        self.prove(now);
    }

    /// Takes notice of the thread that looks, and of those of fences.
    fn know_threads(&mut self) {
        for thread in std::iter::once(machine::thread()).chain(self.proof.iter().flat_map(Proof::threads)) {
            if !self.threads.contains(&thread) {
                self.threads.push(thread);
                self.merge.leave_out(thread);
            }
        }
    }

    /// Begins what lets out what is held, if it is time to.
    fn prove(&mut self, now: Instant) {
        self.due = self.due.filter(|due| now < *due);
        if !self.may_prove(now) {
            return;
        }
        let begun = match (&self.hold, &mut self.proof) {
            // Everything seen is due after as long a time, all at once.
            (Hold::Lag(lag), _) if self.due.is_none() && self.merge.held() > 0 => {
                self.due = now.checked_add(FLOOR.max(*lag));
                true
            }
            (_, Some(proof)) if proof.pause() == Some(Duration::ZERO) && self.merge.begin_fence() => {
                proof.begin();
                proof.hurry(self.merge.writers(), self.pace.visits());
                true
            }
            _ => false,
        };
        if begun {
            self.merge.was_crowded = false;
            self.pace.proving(now);
        }
    }

    /// Whether what is held is worth a fence: a report waits for it, a ring fills up with it, or the pace says so.
    fn may_prove(&self, now: Instant) -> bool {
        self.pace.may_prove(now) || self.report.is_some() || self.merge.was_crowded
    }

    /// Whether to look again instead of sleeping.
    pub(crate) fn spins(&self) -> bool {
        !self.spin.is_zero()
            && (self.spin == Duration::MAX || self.found.is_some_and(|found| found.elapsed() < self.spin))
    }

    /// The reader goes to sleep, if it is for any time at all.
    pub(crate) fn sleeps(&mut self, time: Duration) {
        self.since_sleep = 0;
        self.sleeps += u64::from(!time.is_zero());
    }

    /// The reader was woken, if it was, before it would have looked by itself.
    pub(crate) fn wakes(&mut self, woken: bool) {
        self.wakes += u64::from(woken);
    }

    /// When a ring has run dry, or a report is due, asks what was dropped behind everything else. Whether there is an
    /// event of it.
    fn find_losses(&mut self, now: Instant) -> bool {
        if self.control.take_lossy() {
            self.merge.suspect_losses();
        }
        let report = self.report_is_due();
        if !report && now < self.check_losses {
            return false;
        }
        self.check_losses = now + ASK_LOSSES;
        // Only of what was seen before: the refresh that this follows. Ring by ring: others may never run dry.
        self.merge.read_suspect_losses(report) && self.merge.is_ready()
    }

    /// The counts of this reader so far.
    pub(crate) fn stats(&self) -> Stats {
        let Self { sleeps, wakes, fences_failed, .. } = *self;
        let stand_ins = self.proof.as_ref().map_or(0, Proof::stand_ins);
        Stats { sleeps, wakes, fences_failed, stand_ins, ..self.merge.stats() }
    }

    /// An account of everything that was written. Looks first.
    pub(crate) fn ledger(&mut self) -> Result<Ledger, Error> {
        if self.control.is_forked() {
            return Err(Error::forked());
        }
        self.refresh();
        Ok(self.merge.ledger())
    }

    /// A reading of the keys' clock, if the rule needs one.
    fn now(&self) -> u64 {
        if self.merge.needs_clock() { self.merge.rings().clock().now().unwrap_or(0) } else { 0 }
    }

    /// CPUs may have come online: the kernel's message says so.
    pub(crate) fn cpus_changed(&mut self) {
        self.check_cpus = Instant::now();
    }

    /// Takes notice of CPUs that came online: when the kernel's messages say so, and now and then.
    fn follow_cpus(&mut self, now: Instant) -> Result<(), Error> {
        if now < self.check_cpus {
            return Ok(());
        }
        let told = self.merge.rings().news().is_some();
        self.check_cpus = now + if told { LIST_CPUS } else { Self::TICK };
        self.merge.follow_cpus().map(drop)
    }
}

/// A program has returned and not left: a grace period has passed, and its CPU's word is what it was. A fence stood in so often since
/// the last report.
#[cold]
fn stuck(cpu: u32, waited: Duration, times: u64) -> Error {
    let message = format!(
        "a program on CPU {cpu} has returned without perfweave_leave(), and was waited for {waited:?} (a kernel fence stood in {times} \
         times since the last report)"
    );
    Error::new(ErrorKind::Degraded, message).hinting("fix the program and recreate the map: it keeps its words")
}
