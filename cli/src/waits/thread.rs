//! A thread: what it does now, and what it did.
//!
//! ```text
//!            comes                leaves, could run on
//! Unknown ---------> Runs(cpu) <---------------------- Left(Ready)
//!    ^                | |   ^  ---------------------->
//!    |  stops, void   | |   |     comes
//!    +----------------+ |   +------------------------+
//!    |                  |                            | comes: it was woken, or nobody saw by whom
//!    |                  | leaves, sleeps             |
//!    |                  +----------------------> Left(Asleep, Disk, …)
//!    |    void                                       |
//!    +-----------------------------------------------+
//!
//! Any of them ends: Ended. A wake-up (`wake`) changes no state. It is held until the thread comes: see account.rs.
//! ```

use super::added::{Added, Of};
use super::history::{History, Stretch, joined};
use super::{Cause, In, Left, Ran, Wake, What, Who, Why};
use std::num::NonZeroU8;

/// What is known of a thread beside what it does.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub name: String,
    /// Its number in the recorder's PID namespace, and that of its process.
    pub tid: Option<u32>,
    pub process: Option<u32>,
}

#[derive(Debug)]
pub struct Thread {
    who: Who,
    pub known: Known,
    first: Cause,
    /// Who made it, and when, if its first record tells.
    pub made: Option<(u64, Who)>,
    history: History<What>,
    /// What it does now, since when.
    does: Does,
    since: u64,
    /// A wake-up that counts if it leaves its CPU to sleep, or if it sleeps.
    wake: Option<Wake>,
    /// Nobody saw it begin to run, so a wake-up that nobody saw either may count.
    doubt: bool,
    /// It has told that it ends. Its last switch may have no record.
    ending: bool,
    pub call: In,
    /// The signal that came with the wake-up by which its last wait ended, and when that was.
    signalled: Option<(NonZeroU8, u64)>,
}

#[derive(Debug, Clone, Copy)]
enum Does {
    Unknown(Cause),
    Runs(u32),
    Left(Left),
    Ended,
}

impl Thread {
    /// One that nothing has told of before.
    pub fn new(who: Who, time: u64, first: Cause) -> Self {
        Self {
            who,
            known: Known::default(),
            first,
            made: None,
            history: History::new(time),
            does: Does::Unknown(first),
            since: time,
            wake: None,
            doubt: true,
            ending: false,
            call: In::Unknown,
            signalled: None,
        }
    }

    /// Its first record tells that it is new, and who made it.
    pub fn is_new(&mut self, time: u64, maker: Option<Who>) {
        (self.first, self.made) = (Cause::Gone, maker.map(|maker| (time, maker)));
    }

    /// Since when it waits, if it does.
    pub fn waits_since(&self) -> Option<u64> {
        match self.does {
            Does::Left(left) => Some(left.time),
            _ => None,
        }
    }

    /// When it has ended, if it has.
    pub fn ended(&self) -> Option<u64> {
        matches!(self.does, Does::Ended).then_some(self.since)
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self.does, Does::Unknown(_))
    }

    pub fn runs(&self) -> bool {
        matches!(self.does, Does::Runs(_))
    }

    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// It is woken. `unseen`: it may run where nobody sees it. False: this is no wake-up.
    pub fn wakes(&mut self, wake: Wake, unseen: bool, added: &mut Added) -> bool {
        match self.does {
            // One that was taken off its CPU may have been about to sleep. Now it does not.
            Does::Left(Left { why: Why::Ready, .. }) | Does::Ended => return false,
            // It may have run where nobody sees it, and sleep again.
            Does::Unknown(_) if unseen => return false,
            // It has run since it was woken, and nobody saw it.
            Does::Left(left) if self.is_woken_since(left) => self.slept(added),
            // This one counts, unless it ran unseen meanwhile.
            Does::Left(_) => self.doubt |= self.wake.is_some(),
            _ => {}
        }
        self.wake = Some(wake);
        true
    }

    /// Its last wake-up was for a signal.
    pub fn wakes_for(&mut self, signal: NonZeroU8) {
        if let Some(wake) = &mut self.wake {
            wake.signal = Some(signal);
        }
    }

    fn is_woken_since(&self, left: Left) -> bool {
        self.wake.as_ref().is_some_and(|wake| wake.time >= left.time)
    }

    /// It returns from a system call. `interrupted`: a signal ended it, as its result says. Gives when it was woken for
    /// which signal.
    pub fn returns(&mut self, interrupted: bool) -> Option<(u64, NonZeroU8)> {
        if self.call != In::Nothing {
            return None;
        }
        let (number, woken) = self.signalled.take().filter(|_| interrupted)?;
        let ended = self.history.change_ended(woken, |what| match what {
            What::Blocked { signal, .. } => {
                *signal = Some(number);
                true
            }
            _ => false,
        });
        (ended == Some(true)).then_some((woken, number))
    }

    /// It writes a record, or is interrupted by what does, so it runs. Gives since when it has waited, if nobody saw it
    /// begin to run.
    pub fn is_seen(&mut self, time: u64, cpu: u32, added: &mut Added) -> Option<u64> {
        if matches!(self.does, Does::Runs(on) if on == cpu) {
            return None;
        }
        let waited = self.waits_since();
        let did = self.ran_unseen(added);
        self.becomes(time, did, Does::Runs(cpu), added);
        (self.wake, self.doubt) = (None, true);
        waited
    }

    /// It has run on this CPU all the time: other CPUs have told all that was there.
    pub fn has_run(&mut self, since: u64, cpu: u32, cause: Cause, added: &mut Added) {
        self.becomes(since.max(self.since), What::Unknown(cause), Does::Runs(cpu), added);
    }

    /// It writes the record of its end, until which it is known to run.
    pub fn tells_its_end(&mut self, time: u64, cpu: u32, added: &mut Added) {
        self.becomes(time, What::Runs { cpu }, Does::Runs(cpu), added);
        self.ending = true;
    }

    /// The same, but other facts came before it: nothing follows but its last switch.
    pub fn told_its_end_late(&mut self) {
        self.ending = true;
    }

    /// It does not run on this CPU any more, and nothing says why. `unseen`: nor when it stopped.
    pub fn stops(&mut self, time: u64, cpu: u32, unseen: bool, added: &mut Added) {
        let did = match self.does {
            Does::Runs(on) if on == cpu && !unseen => What::Runs { cpu },
            Does::Runs(on) if on == cpu => What::Unknown(Cause::Unseen),
            // It ran, and a wake-up that was told may be the one that made it run.
            Does::Unknown(cause) if !unseen => What::Unknown(cause),
            _ => return,
        };
        self.becomes(time, did, Does::Unknown(Cause::Unseen), added);
        (self.wake, self.doubt) = (None, true);
    }

    /// It leaves its CPU, and may sleep. `known`: what it does then, unless it may run where nobody sees it. Gives since
    /// when it has waited, if nobody saw it begin to run.
    pub fn leaves(&mut self, left: Left, known: Result<(), Cause>, added: &mut Added) -> Option<u64> {
        let (waited, ran) = self.ran_until(left.time, left.cpu, added);
        let does = match known {
            Ok(()) => Does::Left(left),
            Err(cause) => Does::Unknown(cause),
        };
        (self.does, self.doubt) = (does, self.doubt | !ran);
        // Where nothing says that it ran, the wake-up may be the one that made it run, and it has run.
        if !ran || known.is_err() || left.why == Why::Ready {
            self.wake = None;
        }
        waited
    }

    /// It leaves its CPU for ever.
    pub fn ends(&mut self, time: u64, cpu: u32, added: &mut Added) -> Option<u64> {
        let (waited, _) = self.ran_until(time, cpu, added);
        self.is_gone(time);
        waited
    }

    /// It has ended, and nothing says what it did until then. It may have been met behind a fact that comes late.
    pub fn ends_unseen(&mut self, time: u64, cause: Cause, added: &mut Added) {
        let time = time.max(self.since);
        self.becomes(time, What::Unknown(cause), Does::Ended, added);
        self.is_gone(time);
    }

    fn is_gone(&mut self, time: u64) {
        (self.does, self.since, self.wake) = (Does::Ended, time, None);
    }

    /// It ran until now. Gives since when it has waited if it was not seen to begin to, and whether it was.
    fn ran_until(&mut self, time: u64, cpu: u32, added: &mut Added) -> (Option<u64>, bool) {
        let (waited, did, ran) = match self.does {
            Does::Runs(on) if on == cpu => (None, What::Runs { cpu }, true),
            _ => (self.waits_since(), self.ran_unseen(added), false),
        };
        self.becomes(time, did, self.does, added);
        (waited, ran)
    }

    /// It takes a CPU. `idle`: from when to when the CPU was idle that it was taken off, as [`super::cpu::Cpu::idle`].
    pub fn comes(
        &mut self,
        time: u64,
        cpu: u32,
        idle: impl Fn(Left, u64) -> Option<[u64; 2]>,
        added: &mut Added,
    ) -> Option<Ran> {
        let left = match self.does {
            // Told twice.
            Does::Runs(on) if on == cpu => return None,
            // Nothing says when it left. What was before is not known.
            Does::Runs(_) | Does::Ended => {
                (self.wake, self.doubt) = (None, true);
                self.becomes(time, What::Unknown(Cause::Unseen), Does::Runs(cpu), added);
                return None;
            }
            Does::Unknown(_) => None,
            Does::Left(left) => Some(left),
        };
        let did: Vec<_> = self.now(time, true).collect();
        for Stretch { from, to, mut what } in did {
            if let What::Ready { cpu: on, taken_off, held } = &mut what {
                *on = Some(cpu);
                // When a quota held it back.
                let idle = left.filter(|_| *taken_off).and_then(|left| idle(left, to));
                if let Some([begin, end]) = idle {
                    *held = true;
                    let held =
                        std::mem::replace(&mut what, What::Ready { cpu: Some(cpu), taken_off: true, held: false });
                    self.becomes(begin.max(from), what.clone(), self.does, added);
                    self.becomes(end.min(to), held, self.does, added);
                }
            }
            self.becomes(to, what, self.does, added);
        }
        (self.does, self.since, self.doubt) = (Does::Runs(cpu), time, false);
        if left.is_none_or(|left| left.why != Why::Ready) {
            self.signalled = self.wake.as_ref().and_then(|wake| Some((wake.signal?, wake.time)));
        }
        Some(Ran { who: self.who, left, wake: self.wake.take() })
    }

    /// What it did from a time to another, without overlap or hole.
    pub fn did(&self, from: u64, to: u64) -> impl Iterator<Item = Stretch<What>> {
        let before = Stretch { from, to: to.min(self.history.kept_from), what: What::Unknown(self.first) };
        let now = self.now(to, false).map(move |part| Stretch { from: part.from.max(from), ..part });
        joined(std::iter::once(before).chain(self.history.between(from, to)).chain(now))
    }

    /// What it has done since the last stretch until this time, and whether it runs now.
    fn now(&self, to: u64, runs: bool) -> impl Iterator<Item = Stretch<What>> + use<> {
        let woken = self.wake.as_ref().filter(|wake| wake.time <= to && !self.runs());
        let taken_off = matches!(self.does, Does::Left(Left { why: Why::Ready, .. }));
        let what = match self.does {
            Does::Unknown(cause) => What::Unknown(cause),
            Does::Runs(_) if self.ending => What::Unknown(Cause::Unseen),
            Does::Runs(cpu) => What::Runs { cpu },
            Does::Left(_) if taken_off => What::Ready { cpu: None, taken_off, held: false },
            // It may sleep nevertheless, until another wakes it.
            Does::Left(left) if !runs && woken.is_some_and(|wake| wake.time < left.time) => {
                What::Unknown(Cause::Unseen)
            }
            Does::Left(_) if self.doubt && woken.is_none() => What::Unknown(Cause::Unseen),
            Does::Left(Left { why, stack, .. }) => What::Blocked {
                why,
                call: self.call.clone(),
                end: woken.map(|wake| wake.by.clone()),
                // Only a signal continues one that is stopped. For others the result of the call says whether it was
                // the signal.
                signal: woken.filter(|_| why == Why::Stopped).and_then(|wake| wake.signal),
                nevertheless: self.doubt,
                stacks: [stack, woken.map_or(0, |wake| wake.stack)],
            },
            Does::Ended => What::Unknown(Cause::Gone),
        };
        let since = self.since.min(to);
        let ready = woken.filter(|_| !matches!(what, What::Unknown(Cause::Unseen)) || runs);
        let ready = ready.map_or(to, |wake| wake.time.clamp(since, to));
        let parts = [(since, ready, what), (ready, to, What::Ready { cpu: None, taken_off: false, held: false })];
        parts.into_iter().filter(|(from, to, _)| from < to).map(|(from, to, what)| Stretch { from, to, what })
    }

    /// It did this until now, and does that from now on.
    fn becomes(&mut self, time: u64, did: What, does: Does, added: &mut Added) {
        if did == What::Unknown(Cause::Unseen) {
            // It may be another thread of this number, which has executed a program.
            self.call = In::Unknown;
        }
        added.note(Of::Thread(self.who), self.history.push(self.since, time, did));
        (self.does, self.since) = (does, time);
    }

    /// It has run, and nobody saw when it began to. It slept until it was woken.
    fn ran_unseen(&mut self, added: &mut Added) -> What {
        match self.does {
            Does::Unknown(cause) => return What::Unknown(cause),
            Does::Left(left) if self.is_woken_since(left) => self.slept(added),
            _ => {}
        }
        What::Unknown(Cause::Unseen)
    }

    /// It slept until it was woken, and what it did then is not known.
    fn slept(&mut self, added: &mut Added) {
        let Some(woken) = self.wake.as_ref().map(|wake| wake.time) else { return };
        if let Some(Stretch { to, what, .. }) = self.now(woken, false).next() {
            self.becomes(to, what, Does::Unknown(Cause::Unseen), added);
        }
    }

    /// Whether it could run and does not, or may be found to have been able to.
    pub fn could_run(&self) -> bool {
        match self.does {
            Does::Left(left) => left.why == Why::Ready || self.doubt || self.wake.is_some(),
            Does::Unknown(_) => self.wake.is_some(),
            Does::Runs(_) | Does::Ended => false,
        }
    }

    /// Switches of a CPU have no record in this time. Where it could run meanwhile, it may have run there, and slept.
    /// It did what other CPUs have told.
    pub fn may_have_run(&mut self, since: u64, until: u64, cpu: u32, added: &mut Added) {
        self.history.change_between(since, until, |what| {
            let could = match what {
                What::Ready { .. } => true,
                What::Runs { cpu: on } => *on == cpu,
                What::Blocked { nevertheless, .. } => *nevertheless,
                What::Unknown(_) => false,
            };
            if could {
                *what = What::Unknown(Cause::Unseen);
            }
            could
        });
        let from = match (self.does, &self.wake) {
            (Does::Runs(on), _) if on == cpu => self.since,
            // It slept until then, if it did.
            (Does::Left(left), Some(wake)) if !self.doubt && wake.time >= left.time => wake.time,
            _ if self.could_run() => self.since,
            _ => return,
        };
        if from < until {
            self.void(from.max(since), Cause::Unseen, added);
        }
    }

    /// Nothing is known of it from this time on. Until then it did what it does.
    pub fn void(&mut self, after: u64, cause: Cause, added: &mut Added) {
        let since = after.max(self.history.kept_from);
        match self.does {
            Does::Unknown(_) | Does::Ended if self.since <= since => {}
            Does::Ended => {
                self.cut(since, cause);
                added.note(Of::Thread(self.who), self.history.push(since, self.since, What::Unknown(cause)));
            }
            _ => {
                if self.since < since {
                    for Stretch { from, to, what } in self.now(since, false) {
                        added.note(Of::Thread(self.who), self.history.push(from, to, what));
                    }
                }
                self.cut(since, cause);
                (self.does, self.since) = (Does::Unknown(cause), since);
            }
        }
        (self.wake, self.call, self.doubt, self.signalled) = (None, In::Unknown, true, None);
    }

    /// Takes back what was after a time, and what was concluded of it.
    fn cut(&mut self, after: u64, cause: Cause) {
        let Some((what, before)) = self.history.cut(after) else { return };
        let is_sure = match what {
            // It was woken before it left its CPU, and may have slept nevertheless.
            What::Ready { taken_off, .. } => *taken_off || matches!(before, Some(What::Blocked { .. })),
            // Or the other way round.
            What::Blocked { .. } => false,
            _ => true,
        };
        if !is_sure {
            *what = What::Unknown(cause);
        } else if let What::Ready { cpu, .. } = what {
            *cpu = None;
        }
    }

    /// Drops the oldest of what it did.
    pub fn forget(&mut self) {
        self.history.forget();
        self.first = Cause::Forgotten;
    }

    /// Whether nothing is lost with it.
    pub fn is_over(&self) -> bool {
        self.history.is_empty() && self.wake.is_none() && matches!(self.does, Does::Unknown(_) | Does::Ended)
    }

    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.history.len()
    }
}
