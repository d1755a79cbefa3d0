//! What `why` says, beside the truth.

use super::Kind;
use super::stage::{Delay, Truth};
use crate::failure::Failure;
use crate::out::{Out, line};
use crate::scheduler::Scheduler;
use crate::times::short;
use crate::trace::calls;
use crate::waits::{Has, Waker, What, Who, Why};
use crate::why::path::{Step, number, path};
use serde_json::json;
use std::collections::BTreeMap;

/// Of delays of one kind, in nanoseconds.
#[derive(Debug, Default)]
pub struct Found {
    times: u64,
    injected: u64,
    /// On the injected cause.
    found: u64,
    unknown: u64,
    /// On what may be the cause or not: nothing tells who ended a wait, or whether a thread that is ready may run.
    not_told_apart: u64,
    /// The first that is on something else.
    evidence: Option<String>,
}

/// Of waits that others end.
#[derive(Debug, Default)]
pub struct Handed {
    /// How often a thread was handed the token.
    pub made: u64,
    /// It waited, and the right waker is found.
    found: u64,
    /// Another is.
    false_wakers: u64,
    /// Nothing is known of who woke it, or it did not wait.
    unknown: u64,
    across_losses: u64,
    /// The first few that are wrong.
    evidence: Vec<String>,
}

/// Compares what is true with what the account says. `losses`: after when and until when records are missing.
pub fn judge(
    scheduler: &Scheduler,
    truth: &Truth,
    losses: &[[u64; 2]],
    found: &mut BTreeMap<Kind, Found>,
    handed: &mut Handed,
) {
    for one in &truth.handed {
        handed.made += 1;
        let (Some(who), Some(by)) = (scheduler.who(one.tid), scheduler.who(one.by)) else {
            handed.unknown += 1;
            continue;
        };
        let mut is_known = false;
        for stretch in scheduler.account.did(who, one.from, one.to) {
            let What::Blocked { end: Some(end), .. } = &stretch.what else { continue };
            is_known = true;
            let is_false = *end != Waker::Thread(by) || stretch.to < one.wrote;
            let is_across = losses.iter().any(|[after, until]| stretch.from < *until && stretch.to > *after);
            handed.false_wakers += u64::from(is_false);
            handed.across_losses += u64::from(is_across);
            if (is_false || is_across) && handed.evidence.len() < 10 {
                handed.evidence.push(format!("{one:?}: {stretch:?}"));
            }
        }
        *(if is_known { &mut handed.found } else { &mut handed.unknown }) += 1;
    }
    for delay in &truth.delays {
        let Some([from, to]) = truth.turns.get(&delay.turn) else { continue };
        let sums = found.entry(delay.kind).or_default();
        sums.times += 1;
        sums.injected += delay.injected;
        let seen = [truth.root, delay.tid, delay.by].map(|tid| scheduler.who(tid));
        let [Some(root), Some(tid), Some(by)] = seen else {
            sums.unknown += delay.injected;
            continue;
        };
        let look = Look { scheduler, delay, tid, by };
        let mut seen = Seen::default();
        let path = path(&scheduler.account, root, *from, *to);
        path.iter().for_each(|step| look.step(step, &mut seen));
        // A thread that is not seen to wait has no one whose path tells of the delay.
        let found = seen.found.min(delay.injected);
        let unknown = seen.unknown.min(delay.injected - found);
        let not_told_apart = seen.not_told_apart.min(delay.injected - found - unknown);
        sums.found += found;
        sums.unknown += unknown;
        sums.not_told_apart += not_told_apart;
        if sums.evidence.is_none() && found * 100 < (delay.injected - unknown - not_told_apart) * 99 {
            sums.evidence =
                Some(format!("{delay:?}: {found} found, {unknown} unknown, {not_told_apart} not told apart: {path:?}"));
        }
    }
}

/// What a path says of one delay, in nanoseconds as [`Found`] has them.
#[derive(Debug, Default)]
struct Seen {
    found: u64,
    unknown: u64,
    not_told_apart: u64,
}

/// What is looked for.
struct Look<'a> {
    scheduler: &'a Scheduler,
    delay: &'a Delay,
    tid: Who,
    by: Who,
}

impl Look<'_> {
    /// How much of a step and of those within is on the cause, and how much nobody knows.
    fn step(&self, step: &Step, seen: &mut Seen) {
        let [from, to] = [step.from.max(self.delay.begin), step.to.min(self.delay.end)];
        if from >= to {
            return;
        }
        if self.is_cause(step) {
            seen.found += self.time(step, from, to);
            return;
        }
        match &step.what {
            What::Unknown(_) => seen.unknown += to - from,
            What::Blocked { end: None, .. } | What::Ready { cpu: None, .. } => seen.not_told_apart += to - from,
            // Others have its CPU, and nothing tells whether it may run.
            What::Ready { taken_off: true, .. } if self.delay.kind == Kind::Quota && step.who == self.by => {
                seen.not_told_apart += to - from;
            }
            _ => step.within.iter().for_each(|step| self.step(step, seen)),
        }
    }

    /// The hog's share, or all.
    fn time(&self, step: &Step, from: u64, to: u64) -> u64 {
        let (Kind::Hog | Kind::RealTime, What::Ready { cpu: Some(cpu), .. }) = (self.delay.kind, &step.what) else {
            return to - from;
        };
        let had = self.scheduler.account.had(*cpu, from, to);
        had.into_iter().filter(|(has, _)| *has == Has::Thread(self.by)).map(|(_, time)| time).sum()
    }

    fn is_cause(&self, step: &Step) -> bool {
        let (is_own, is_others) = (step.who == self.tid, step.who == self.by);
        match (self.delay.kind, &step.what) {
            (Kind::Hog | Kind::RealTime, What::Ready { held: false, .. }) => is_own,
            (Kind::Quota, What::Ready { held: true, .. }) => is_others,
            (Kind::Stop, What::Blocked { why: Why::Stopped, end: Some(Waker::Thread(_)), .. }) => is_others,
            (kind, What::Blocked { call, end, .. }) if is_own => {
                let call = number(call).and_then(calls::name_of).unwrap_or_default();
                let is_by = *end == Some(Waker::Thread(self.by));
                match kind {
                    Kind::Lock => call == "flock" && is_by,
                    Kind::Pipe => call == "read" && is_by,
                    Kind::Socket | Kind::Loopback => ["read", "recvfrom"].contains(&call) && is_by,
                    Kind::Futex => call == "futex" && is_by,
                    Kind::Sleep => {
                        let is_timer = matches!(end, Some(Waker::Interrupt(Some(name))) if **name == *"timer");
                        ["nanosleep", "clock_nanosleep"].contains(&call) && is_timer
                    }
                    Kind::Disk => call == "fsync" && end.is_some(),
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

impl Found {
    /// What is known, and could be on another cause.
    fn known(&self) -> u64 {
        self.injected - self.unknown - self.not_told_apart
    }

    pub fn is_known(&self) -> bool {
        self.known() > 0
    }

    /// At least 99 of 100 nanoseconds are on the cause, of those that are known.
    pub fn is_well(&self) -> bool {
        self.found * 100 >= self.known() * 99
    }

    /// Of what is known.
    fn share(&self) -> String {
        match self.known() {
            0 => "nothing is known".into(),
            known => format!("{:.2} % of what is known", self.found as f64 * 100.0 / known as f64),
        }
    }

    pub fn report(&self, kind: Kind, losing: bool, json: bool, out: &mut Out) -> Result<(), Failure> {
        let (Self { times, injected, found, unknown, not_told_apart, evidence }, kind) = (self, kind.name());
        let evidence = evidence.as_ref().filter(|_| !self.is_well());
        if json {
            let object = json!({ "test": "why", "kind": kind, "losing": losing, "ok": self.is_well(), "times": times,
                "injected_ns": injected, "found_ns": found, "unknown_ns": unknown, "not_told_apart_ns": not_told_apart,
                "evidence": evidence });
            line(out, format_args!("{object}"))?;
            return Ok(());
        }
        let [injected, found, unknown, not_told_apart] =
            [injected, found, unknown, not_told_apart].map(|time| short(*time));
        let (with, share) = (if losing { ", with losses" } else { "" }, self.share());
        line(
            out,
            format_args!(
                "why    {kind}{with}: {times} times, {injected} injected, {unknown} of it unknown, {not_told_apart} \
                 not told apart, {found} found: {share}"
            ),
        )?;
        if let Some(evidence) = evidence {
            line(out, format_args!("       {evidence}"))?;
        }
        Ok(())
    }
}

impl Handed {
    pub fn is_known(&self) -> bool {
        self.found > 0
    }

    pub fn is_well(&self) -> bool {
        self.false_wakers == 0 && self.across_losses == 0
    }

    pub fn report(&self, losing: bool, [lost, late]: [u64; 2], json: bool, out: &mut Out) -> Result<(), Failure> {
        let Self { made, found, false_wakers, unknown, across_losses, evidence } = self;
        if json {
            let object = json!({ "test": "wakers", "losing": losing, "ok": self.is_well(), "handed": made, "found": found,
                "false": false_wakers, "unknown": unknown, "across_losses": across_losses, "lost": lost, "late": late, "evidence": evidence });
            line(out, format_args!("{object}"))?;
            return Ok(());
        }
        let with = if losing { ", with losses" } else { "" };
        line(
            out,
            format_args!(
                "why    wakers{with}: {made} times handed on, {found} waits with their waker, {false_wakers} with \
                 another, {unknown} not known; {across_losses} across a loss; {lost} records lost, {late} late"
            ),
        )?;
        evidence.iter().try_for_each(|evidence| line(out, format_args!("       {evidence}")))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, Handed};
    use crate::selftest::why::{KINDS, Kind, verdict};
    use std::collections::BTreeMap;

    fn found(found: u64, unknown: u64, not_told_apart: u64) -> Found {
        Found { times: 1, injected: 1_000, found, unknown, not_told_apart, evidence: None }
    }

    /// What is not known is not well, and not bad.
    #[test]
    fn nothing_is_said_of_what_is_not_known() {
        let handed = |found| Handed { made: 10, found, ..Handed::default() };
        let all = |found: fn() -> Found| KINDS.into_iter().map(|kind| (kind, found())).collect::<BTreeMap<_, _>>();
        let of =
            |kinds: &BTreeMap<Kind, Found>, woken| verdict(kinds.values().all(Found::is_well), kinds, &handed(woken));
        let mut kinds = all(|| found(995, 5, 0));
        let (is_well, words) = of(&kinds, 5);
        assert!(is_well && words.starts_with("99 % or more"), "{words}");
        let (is_well, words) = of(&kinds, 0);
        assert!(!is_well && !words.contains("99 %"), "{words}");
        kinds.insert(Kind::Quota, found(0, 10, 990));
        kinds.insert(Kind::Disk, found(0, 1_000, 0));
        kinds.remove(&Kind::Stop);
        let (is_well, words) = of(&kinds, 5);
        assert!(
            is_well && words.starts_with("nothing is known of disk, quota, stop signal; of the others 99 %"),
            "{words}"
        );
        kinds.insert(Kind::Pipe, found(900, 50, 0));
        let (is_well, words) = of(&kinds, 5);
        assert!(!is_well && words.contains("NOT TRUE"), "{words}");
        for kinds in [all(|| found(0, 1_000, 0)), all(|| found(0, 0, 1_000)), BTreeMap::new()] {
            let (is_well, words) = of(&kinds, 5);
            assert!(!is_well && words == "NOTHING IS KNOWN OF ANY DELAY", "{words}");
        }
    }
}
