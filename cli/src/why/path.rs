//! Where a thread's time went, and through whom: from the end backwards.

use crate::waits::{Account, Cause, Has, In, Stretch, Waker, What, Who, Why};
use std::collections::HashMap;
use std::sync::Arc;

/// How many wakers behind one another are followed.
pub const DEPTH: usize = 16;
/// How many stretches a path has at most. Wakers beyond that are not followed.
const MOST: usize = 100_000;

/// A part of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub who: Who,
    pub from: u64,
    pub to: u64,
    pub what: What,
    /// Who ran where it could have run, and how long each.
    pub instead: Vec<(Has, u64)>,
    /// Of the time it ran, what interrupts took, by name.
    pub interrupts: Vec<(Arc<str>, u64)>,
    /// What its waker did, from when it fell asleep until it was woken: without a hole. Empty if no thread woke it, or
    /// if the waker is not followed.
    pub within: Vec<Step>,
}

/// On whose account a time is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Culprit {
    /// It ran.
    Ran(Who),
    /// An interrupt took its CPU.
    Interrupted(Who, Arc<str>),
    /// It had the CPU that another could have used.
    Had(Who),
    /// Its control group's quota was used up.
    Quota(Who),
    /// The CPU was idle while a thread could run: it came late, or its control group had used up its quota.
    Idle,
    /// A thread waited for an interrupt: in which call, by its number.
    Interrupt(Who, Option<i64>, Option<Arc<str>>),
    /// A thread waited, and nothing says for what: it has not ended, or who ended it is not known.
    Waited(Who, Option<i64>, Why),
    /// A waker that is not followed.
    Waker(Who),
    Unknown(Cause),
}

impl Step {
    pub fn lasted(&self) -> u64 {
        self.to - self.from
    }

    /// On whose account it is. Its parts add up to its time.
    fn culprits(&self, add: &mut impl FnMut(Culprit, u64)) {
        let time = self.lasted();
        match &self.what {
            What::Runs { .. } => {
                let mut left = time;
                for (name, took) in &self.interrupts {
                    left = left.saturating_sub(*took);
                    add(Culprit::Interrupted(self.who, Arc::clone(name)), *took);
                }
                if left > 0 {
                    add(Culprit::Ran(self.who), left);
                }
            }
            What::Unknown(cause) => add(Culprit::Unknown(*cause), time),
            What::Ready { held: true, .. } => add(Culprit::Quota(self.who), time),
            What::Ready { .. } => self.instead.iter().for_each(|(has, time)| {
                let culprit = match has {
                    Has::Thread(who) => Culprit::Had(*who),
                    Has::Idle => Culprit::Idle,
                    Has::Unknown(cause) => Culprit::Unknown(*cause),
                };
                add(culprit, *time);
            }),
            What::Blocked { .. } if !self.within.is_empty() => {
                self.within.iter().for_each(|step| step.culprits(add));
            }
            What::Blocked { why, call, end, .. } => add(
                match end {
                    Some(Waker::Interrupt(name)) => Culprit::Interrupt(self.who, number(call), name.clone()),
                    Some(Waker::Thread(who)) => Culprit::Waker(*who),
                    None => Culprit::Waited(self.who, number(call), *why),
                },
                time,
            ),
        }
    }
}

/// The number of a call, if a thread is in one.
pub fn number(call: &In) -> Option<i64> {
    if let In::Call(call) = call { Some(call.number) } else { None }
}

/// What a thread did between two times and for whom it waited, without a hole.
pub fn path(account: &Account, who: Who, from: u64, to: u64) -> Vec<Step> {
    follow(account, who, [from, to], DEPTH, &mut MOST.clone())
}

fn follow(account: &Account, who: Who, [from, to]: [u64; 2], depth: usize, left: &mut usize) -> Vec<Step> {
    let did: Vec<_> = account.did(who, from, to).collect();
    *left = left.saturating_sub(did.len());
    let step = |Stretch { from, to, mut what }, left: &mut usize| {
        if let What::Blocked { end: Some(end @ Waker::Thread(Who { thread: 0, .. })), .. } = &mut what {
            // The idle thread does nothing of its own: it executes what others have put off.
            *end = Waker::Interrupt(None);
        }
        let instead = match what {
            What::Ready { cpu: Some(cpu), .. } => account.had(cpu, from, to),
            What::Ready { cpu: None, .. } => vec![(Has::Unknown(Cause::Unseen), to - from)],
            _ => Vec::new(),
        };
        let interrupts = match what {
            What::Runs { cpu } => account.interrupted(cpu, from, to),
            _ => Vec::new(),
        };
        let within = match what {
            What::Blocked { end: Some(Waker::Thread(waker)), .. } if depth > 0 && *left > 0 => {
                follow(account, waker, [from, to], depth - 1, left)
            }
            _ => Vec::new(),
        };
        Step { who, from, to, what, instead, interrupts, within }
    };
    // Before a thread was there, the path is that of the one that made it.
    let before = match (did.first(), account.maker(who)) {
        (Some(Stretch { to, what: What::Unknown(Cause::Gone), .. }), Some((made, maker)))
            if *to <= made && depth > 0 && *left > 0 =>
        {
            Some((maker, *to))
        }
        _ => None,
    };
    let mut path = match before {
        Some((maker, to)) => follow(account, maker, [from, to], depth - 1, left),
        None => Vec::new(),
    };
    let own = did.into_iter().skip(usize::from(before.is_some())).map(|stretch| step(stretch, left));
    path.extend(own);
    path
}

/// The sums of a path by culprit, the largest first. Together they are its time.
pub fn sums(path: &[Step]) -> Vec<(Culprit, u64)> {
    let mut sums = HashMap::<_, u64>::new();
    path.iter().for_each(|step| step.culprits(&mut |culprit, time| *sums.entry(culprit).or_default() += time));
    let mut sums: Vec<_> = sums.into_iter().collect();
    // Of those that are as long as each other, always the same first.
    sums.sort_by(|(one, long), (other, longer)| longer.cmp(long).then_with(|| one.cmp(other)));
    sums
}

#[cfg(test)]
mod tests;
