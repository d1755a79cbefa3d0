//! How long each pair of waker and woken waited.

use super::{Args, Sort};
use crate::failure::Failure;
use crate::family::Family;
use crate::names::Names;
use crate::out::{Out, line};
use crate::recent::{Recent, late};
use crate::scheduler::{Scheduler, Tracing};
use crate::session;
use crate::stamp::{By, Stamp};
use crate::times::{Times, short};
use crate::waits::{Ran, Wake};
use perfweave::{Event, Item, Record, Rings, Status};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;

/// The state from the stream so far.
pub struct Rows<'a> {
    scheduler: Scheduler,
    family: Family,
    args: &'a Args,
    /// This program, whose wake-ups nobody wants to know.
    own: Option<u32>,
    pub stamp: Stamp,
    names: Names,
    pairs: Recent<(Waker, u32), u64, Times>,
}

/// Who wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Waker {
    /// A thread, by its number here.
    Thread(u32),
    /// What kind of an interrupt. The thread that it interrupted has no part in it.
    Interrupt(&'static str),
    /// A thread whose number here is not known: one that ends.
    Unknown,
}

impl Waker {
    fn of(wake: &Wake) -> Self {
        match (wake.interrupt, wake.numbers) {
            (Some(kind), _) => Self::Interrupt(kind),
            (None, (_, Some(tid))) => Self::Thread(tid),
            (None, (_, None)) => Self::Unknown,
        }
    }

    fn thread(self) -> Option<u32> {
        if let Self::Thread(tid) = self { Some(tid) } else { None }
    }
}

/// A row.
#[derive(Debug)]
pub struct Pair {
    pub waker: String,
    pub woken: String,
    pub times: Times,
}

impl<'a> Rows<'a> {
    pub fn new(rings: &Rings, tracing: &Tracing, family: Family, args: &'a Args) -> Result<Self, Failure> {
        let scheduler = Scheduler::new(rings, false, 0)?.traced(tracing);
        let stamp = args.time.stamp(rings, By::Monotonic, args.common.json)?;
        Ok(Self::of(scheduler, family, args, stamp, Names::now()))
    }

    /// Of a recording.
    pub fn recorded(rings: &Rings, family: Family, args: &'a Args) -> Result<Self, Failure> {
        let scheduler = Scheduler::recorded(rings, 0)?;
        // Before anything is read of it.
        if let Some((lacks, hint)) = scheduler.lacks().and_then(|lacks| lacks.split_once("\nhint: ")) {
            return Err(Failure::hinting(lacks, hint));
        }
        Ok(Self::of(scheduler, family, args, args.time.stamp_recorded(rings)?, Names::recorded()))
    }

    fn of(scheduler: Scheduler, family: Family, args: &'a Args, stamp: Stamp, mut names: Names) -> Self {
        names.set(0, "idle");
        Self { own: scheduler.own(), scheduler, family, args, stamp, names, pairs: Recent::default() }
    }

    /// How many switches have no record.
    pub fn unrecorded(&self) -> u64 {
        self.scheduler.unrecorded()
    }

    /// What a recording lacks, if it lacks something.
    pub fn lacks(&self) -> Option<&'static str> {
        self.scheduler.lacks()
    }

    pub fn args(&self) -> &'a Args {
        self.args
    }

    /// Takes an event. Prints a line if one was asked for each wake-up.
    pub fn event(&mut self, event: &Event<'_>, out: &mut Out) -> io::Result<()> {
        let item = event.item();
        if let Item::Record(record) = item {
            return self.record(event, &record, out);
        }
        // A waiting thread may have run meanwhile, and the threads that ran may have stopped.
        self.pairs.void(self.scheduler.notice(event));
        if self.args.each { session::tell(event, &self.stamp, self.args.common.json, out) } else { Ok(()) }
    }

    /// Takes what the ledger knows at the end and no event has told.
    pub fn end(&mut self, ledger: &Status) {
        self.pairs.void(self.scheduler.unreported(ledger));
        self.unseen();
    }

    /// A thread that waited where switches have no record may have run: its wait was none.
    fn unseen(&mut self) {
        for hole in self.scheduler.take_holes() {
            let is_void = |time: u64, waited: &u64| *waited > 0 && hole.is_in(time.saturating_sub(*waited), time);
            self.pairs.void_some(hole.from, is_void);
        }
    }

    fn record(&mut self, event: &Event<'_>, record: &Record<'_>, out: &mut Out) -> io::Result<()> {
        self.family.take(record);
        let Some(time) = event.key() else { return Ok(()) };
        self.pairs.void(late(event));
        let ran = self.scheduler.record(record, time, &mut self.names);
        self.unseen();
        if self.names.take(record) {
            return Ok(());
        }
        match ran {
            Some((woken, ran)) => self.runs(woken, &ran, [time, record.cpu().into()], out),
            None => Ok(()),
        }
    }

    /// A thread begins to run, perhaps after somebody woke it.
    fn runs(&mut self, woken: u32, ran: &Ran, [time, cpu]: [u64; 2], out: &mut Out) -> io::Result<()> {
        let (Some(wake), Some(since)) = (&ran.wake, ran.ready()) else { return Ok(()) };
        let (waker, process) = (Waker::of(wake), wake.numbers.0);
        let is_own = |process| Some(process) == self.own;
        if waker.thread().is_some() && is_own(process) || ran.left.is_some_and(|left| is_own(left.process)) {
            return Ok(());
        }
        if !self.family.has(woken) && !waker.thread().is_some_and(|waker| self.family.has(waker)) {
            return Ok(());
        }
        let is_meant = |names: &mut Names, tid| self.args.comm.as_ref().is_none_or(|comm| names.of(tid) == comm);
        if !is_meant(&mut self.names, woken) && !waker.thread().is_some_and(|waker| is_meant(&mut self.names, waker)) {
            return Ok(());
        }
        let waited = time.saturating_sub(since);
        self.pairs.add(time, (waker, woken), waited);
        if !self.args.each {
            return Ok(());
        }
        let interrupt = if let Waker::Interrupt(kind) = waker { Some(kind) } else { None };
        let [waker, woken] = [waker, Waker::Thread(woken)].map(|thread| self.name(thread));
        if self.args.common.json {
            let time = self.stamp.number(time);
            let object = json!({ "time": time, "cpu": cpu, "waker": waker, "interrupt": interrupt, "woken": woken, "ns": waited });
            return line(out, format_args!("{object}"));
        }
        let (time, waited) = (self.stamp.text(Some(time)), short(waited));
        line(out, format_args!("{time} [{cpu:03}] {waker} -> {woken} waited {waited}"))
    }

    fn name(&mut self, thread: Waker) -> String {
        match thread {
            Waker::Interrupt(_) => "[interrupt]".into(),
            Waker::Unknown if self.args.by_name => "?".into(),
            Waker::Unknown => "?/-".into(),
            Waker::Thread(tid) if self.args.by_name => self.names.of(tid).to_owned(),
            Waker::Thread(tid) => self.names.with_number(tid),
        }
    }

    /// The pairs, in the order that was asked for, the largest first.
    pub fn sorted(&mut self) -> Vec<Pair> {
        let mut rows = HashMap::<(String, String), Times>::new();
        for ((waker, woken), times) in self.pairs.sums() {
            rows.entry((self.name(waker), self.name(Waker::Thread(woken)))).or_default().join(&times);
        }
        let mut rows: Vec<_> = rows.into_iter().map(|((waker, woken), times)| Pair { waker, woken, times }).collect();
        let key = |times: &Times| match self.args.sort {
            Sort::Times => times.count,
            Sort::Total => times.total,
            Sort::P99 => times.quantile(99),
            Sort::Max => times.most,
        };
        rows.sort_by_cached_key(|row| (Reverse(key(&row.times)), row.waker.clone(), row.woken.clone()));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recent::{a_late_record, a_loss_in_between};
    use crate::waits::Why;
    use crate::{Cli, Command};
    use clap::Parser;
    use perfweave::{Clock, sim};

    /// How many of two waits count, which end at 7 and 37.
    fn counted(story: crate::recent::Story) -> [u64; 2] {
        let Command::Wakeups(args) = Cli::parse_from(["perfweave", "wakeups"]).command else { unreachable!() };
        let kernel = sim::Kernel::new(&[0]);
        kernel.set_clock(Clock::Monotonic);
        let mut rows = Rows {
            scheduler: Scheduler::without_sources(),
            family: Family::All,
            args: &args,
            own: None,
            stamp: args.time.stamp(&kernel.rings(), By::Monotonic, false).unwrap(),
            names: Names::default(),
            pairs: Recent::default(),
        };
        let mut out = Out::new();
        for at in [2, 32] {
            let left = Some((Why::Asleep, 7));
            rows.scheduler.account.switches(at, 0, 7, left, 8);
            rows.scheduler.account.wakes(at + 1, 0, 7, 8, None, (8, Some(8)));
            let ran = rows.scheduler.account.switches(at + 5, 0, 8, left, 7).unwrap();
            rows.runs(7, &ran, [at + 5, 0], &mut out).unwrap();
        }
        let count = |rows: &mut Rows<'_>| rows.sorted().iter().map(|pair| pair.times.count).sum::<u64>();
        let before = count(&mut rows);
        story(&mut |event| rows.event(event, &mut out).unwrap());
        [before, count(&mut rows)]
    }

    /// A loss on CPU 1 is told after what CPU 0 wrote meanwhile: the woken thread may have run and waited again on CPU
    /// 1 in between.
    #[test]
    fn a_wait_that_ended_while_records_were_lost_does_not_count() {
        assert_eq!(counted(|each| a_loss_in_between(each)), [2, 1], "what ended before the loss");
    }

    /// The same of a record that comes late.
    #[test]
    fn a_wait_that_ended_after_a_record_that_came_late_does_not_count() {
        assert_eq!(counted(|each| a_late_record(each)), [2, 1], "what ended before it");
    }
}
