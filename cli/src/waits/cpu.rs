//! A CPU: who has it, which interrupts take it from a thread, and what its last facts were.

use super::added::{Added, Of};
use super::history::{History, Stretch, joined};
use super::{Cause, Has, Left, Who};
use std::collections::HashMap;
use std::sync::Arc;

/// Of which kinds an interrupt may be: [`crate::interrupt::kind`].
pub type Kinds = &'static [&'static str];

/// One of them.
pub const SOFT: &str = "softirq";

#[derive(Debug)]
pub struct Cpu {
    number: u32,
    first: Cause,
    history: History<Has>,
    has: Has,
    since: u64,
    /// Of its last fact.
    pub last: u64,
    /// Interrupts that run, the innermost last, and their names.
    interrupts: Vec<(Kinds, Arc<str>)>,
    /// When one of them began or ended last.
    turned: u64,
    /// When which of them ran instead of a thread.
    interrupted: History<Arc<str>>,
    /// Who sent the packet that a soft interrupt delivers.
    pub packet: Option<Who>,
    /// Whom its last facts woke, if they did nothing else.
    pub woken: Vec<Who>,
}

impl Cpu {
    /// One that tells something for the first time.
    pub fn new(number: u32, time: u64, unknown: Cause) -> Self {
        Self {
            number,
            first: Cause::First,
            history: History::new(time),
            has: Has::Unknown(unknown),
            since: time,
            last: time,
            interrupts: Vec::new(),
            turned: time,
            interrupted: History::new(time),
            packet: None,
            woken: Vec::new(),
        }
    }

    /// Who has it now.
    pub fn has(&self) -> Has {
        self.has
    }

    /// Who has it, if it is a thread, and since when.
    pub fn runs(&self) -> Option<(Who, u64)> {
        match self.has {
            Has::Thread(who) => Some((who, self.since)),
            Has::Idle | Has::Unknown(_) => None,
        }
    }

    /// Ends what it had, and gives it to another.
    pub fn takes(&mut self, time: u64, has: Has, added: &mut Added) {
        let is_new = self.history.push(self.since, time, self.has);
        (self.has, self.since) = (has, time);
        added.note(Of::Cpu(self.number), is_new);
    }

    /// Who had it may have left at any time since its last fact. Gives that thread.
    pub fn unseen(&mut self) -> Option<Who> {
        let had = self.runs();
        if !matches!(self.has, Has::Unknown(_)) {
            self.has = Has::Unknown(Cause::Unseen);
        }
        had.map(|(who, _)| who)
    }

    /// An interrupt begins. Gives how long another has run here instead of a thread, since it was told last.
    pub fn interrupts(&mut self, time: u64, kinds: Kinds, name: Arc<str>, added: &mut Added) -> Option<u64> {
        // A soft one interrupts none, and a hard one only a soft one, but timers are a part of one: what is left has an
        // end without a record.
        if self.interrupts.last().is_some_and(|(of, _)| kinds == [SOFT] || *of != [SOFT] && of.len() >= kinds.len()) {
            self.interrupts.clear();
        }
        let ran = self.turns(time, added);
        self.interrupts.push((kinds, name));
        ran
    }

    /// The innermost interrupt ends, if it is of these kinds. Gives how long it has run instead of a thread, since it
    /// was told last.
    pub fn returns(&mut self, time: u64, kinds: Kinds, added: &mut Added) -> Option<u64> {
        if kinds == [SOFT] {
            self.packet = None;
        }
        if self.interrupts.last().is_some_and(|(running, _)| *running != kinds) {
            self.interrupts.clear();
        }
        let ran = self.turns(time, added);
        self.interrupts.pop();
        ran
    }

    /// Until now the innermost interrupt has run.
    fn turns(&mut self, time: u64, added: &mut Added) -> Option<u64> {
        let since = std::mem::replace(&mut self.turned, time);
        let (Has::Thread(_), Some((_, name))) = (self.has, self.interrupts.last()) else { return None };
        let is_new = self.interrupted.push(since, time, Arc::clone(name));
        added.note(Of::Interrupts(self.number), is_new);
        Some(time - since)
    }

    /// None is underway at a switch: what is left has an end without a record.
    pub fn switches(&mut self) {
        self.interrupts.clear();
    }

    /// Its thread does something itself, so no interrupt is underway.
    pub fn is_itself(&mut self) {
        self.interrupts.clear();
        self.packet = None;
    }

    /// The name of the interrupt of this kind that runs.
    pub fn interrupt(&self, kind: &str) -> Option<Arc<str>> {
        let (kinds, name) = self.interrupts.last()?;
        kinds.contains(&kind).then(|| Arc::clone(name))
    }

    /// Which interrupts ran instead of its threads, and how long each, the longest first.
    pub fn interrupted(&self, from: u64, to: u64) -> Vec<(Arc<str>, u64)> {
        let mut sums = HashMap::<Arc<str>, u64>::new();
        for part in self.interrupted.between(from, to) {
            *sums.entry(part.what).or_default() += part.to - part.from;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        sums
    }

    /// Who sent the packet that is delivered here, if it is the thread that has this CPU: then it delivers itself what
    /// it sends.
    pub fn sender(&self) -> Option<Who> {
        self.packet.filter(|sender| self.has == Has::Thread(*sender))
    }

    /// Nothing is known of it from this time on.
    pub fn void(&mut self, after: u64, cause: Cause, added: &mut Added) {
        self.interrupts.clear();
        self.interrupted.cut(after);
        self.packet = None;
        let since = after.max(self.history.kept_from);
        if !matches!(self.has, Has::Unknown(_)) || self.since > since {
            added.note(Of::Cpu(self.number), self.history.push(self.since, since, self.has));
            self.history.cut(since);
            (self.has, self.since) = (Has::Unknown(cause), since);
        }
    }

    /// Who had it from a time to another, one after the other, without overlap or hole. `now`: who has it now, as far
    /// as that is known.
    pub fn owners(&self, from: u64, to: u64, now: Has) -> impl Iterator<Item = Stretch<Has>> {
        let before = Stretch { from, to: to.min(self.history.kept_from), what: Has::Unknown(self.first) };
        let now = Stretch { from: self.since.max(from), to, what: now };
        let kept = self.history.between(from, to);
        joined(std::iter::once(before).chain(kept).chain(std::iter::once(now)))
    }

    /// From when to when it has been idle since a thread was taken off it that runs now, on this CPU or another.
    ///
    /// A CPU goes idle only if it has nobody who may run (`__schedule`, kernel/sched/core.c). So who is taken off it
    /// then may not, and neither may those of its own who were taken off before. On the way to another CPU a thread may
    /// wait there meanwhile.
    pub fn idle(&self, left: Left, cpu: u32, until: u64) -> Option<[u64; 2]> {
        let mut idle = self.history.between(left.time, until).filter(|stretch| stretch.what == Has::Idle);
        let first = idle.next()?;
        match idle.last().map_or(first.to, |last| last.to) {
            last if left.cpu == cpu => Some([first.from, last]),
            _ => (first.from == left.time).then_some([first.from, first.to]),
        }
    }

    /// Drops the oldest of who had it.
    pub fn forget_owner(&mut self) {
        self.history.forget();
        self.first = Cause::Forgotten;
    }

    /// Drops the oldest of which interrupts ran.
    pub fn forget_interrupt(&mut self) {
        self.interrupted.forget();
    }

    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.history.len() + self.interrupted.len()
    }
}
