//! Periods off the CPU, from switches and wake-ups.

use super::Args;
use crate::failure::Failure;
use crate::family::Family;
use crate::names::Names;
use crate::numbers::OUTSIDE;
use crate::out::{Out, line};
use crate::recent::{Recent, Sum, late};
use crate::scheduler::{Scheduler, Tracing};
use crate::session;
use crate::stamp::{By, Stamp};
use crate::times::{Times, short};
use crate::waits::{Left, Ran, Why};
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Record, Rings, Status};
use serde_json::json;
use std::cmp::Reverse;
use std::io;

/// What a thread does off the CPU.
pub const REASONS: [&str; 4] = ["asleep", "disk", "ready", "other"];

/// An index of [`REASONS`].
const READY: usize = 2;

/// A period, and its parts.
#[derive(Debug, Clone, Copy)]
struct Period {
    /// An index of [`REASONS`].
    reason: usize,
    lasted: u64,
    /// How much of it the thread could run, if it is known when it was woken.
    ready: Option<u64>,
}

/// What a row is the sum of.
#[derive(Debug, Clone, Copy)]
enum Part {
    Period(Period),
    /// So long an interrupt had the CPU of a thread that ran. Nanoseconds.
    Interrupted(u64),
}

impl Period {
    fn of(left: Left, ran: &Ran, time: u64) -> Self {
        let reason = match left.why {
            Why::Asleep => 0,
            Why::Disk => 1,
            Why::Ready => READY,
            Why::Stopped | Why::Other => 3,
        };
        let ready = ran.ready().map(|since| time.saturating_sub(since));
        Self { reason, lasted: time.saturating_sub(left.time), ready }
    }

    /// By [`REASONS`].
    fn parts(&self) -> [u64; REASONS.len()] {
        let mut parts = [0; REASONS.len()];
        let ready = self.ready.unwrap_or(0).min(self.lasted);
        parts[READY] = ready;
        parts[self.reason] += self.lasted - ready;
        parts
    }
}

/// The state from the stream so far.
pub struct Account<'a> {
    scheduler: Scheduler,
    family: Family,
    args: &'a Args,
    /// This program, or the recorder. Of its own threads some switches are left out.
    own: Option<u32>,
    pub stamp: Stamp,
    names: Names,
    rows: Recent<u32, Part, Sums>,
    /// The process that becomes the traced command. What it waits for before is not the command's.
    waits: Option<u32>,
}

/// Whole periods, and how often and how long each of [`REASONS`] was a part of one.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    pub all: Times,
    pub parts: [(u64, u64); REASONS.len()],
    /// How often and how long interrupts had its CPU while it ran, which is no part of a period.
    pub interrupted: (u64, u64),
    /// How many periods ended without a wake-up that is known.
    pub unknown: u64,
}

impl Sum<Part> for Sums {
    fn take(&mut self, part: &Part) {
        let period = match part {
            Part::Period(period) => period,
            Part::Interrupted(lasted) => {
                self.interrupted = (self.interrupted.0 + 1, self.interrupted.1 + lasted);
                return;
            }
        };
        self.all.add(period.lasted);
        for ((count, total), part) in self.parts.iter_mut().zip(period.parts()) {
            *count += u64::from(part > 0);
            *total += part;
        }
        self.unknown += u64::from(period.ready.is_none());
    }
}

/// A process or thread.
#[derive(Debug)]
pub struct Row {
    pub comm: String,
    pub id: u32,
    pub sums: Sums,
}

impl<'a> Account<'a> {
    pub fn new(
        rings: &Rings,
        args: &'a Args,
        tracing: &Tracing,
        family: Family,
        waits: Option<u32>,
    ) -> Result<Self, Failure> {
        let scheduler = Scheduler::new(rings, args.target.cgroup.is_some(), 0)?.traced(tracing);
        let stamp = args.time.stamp(rings, By::Monotonic, args.common.json)?;
        let (own, names) = (scheduler.own(), Names::now());
        Ok(Self { scheduler, family, args, own, stamp, names, rows: Recent::default(), waits })
    }

    /// Of a recording.
    pub fn recorded(rings: &Rings, args: &'a Args, family: Family) -> Result<Self, Failure> {
        let (scheduler, stamp) = (Scheduler::recorded(rings, 0)?, args.time.stamp_recorded(rings)?);
        let (own, names, rows) = (scheduler.own(), Names::recorded(), Recent::default());
        Ok(Self { scheduler, family, args, own, stamp, names, rows, waits: None })
    }

    /// How many switches have no record.
    pub fn unrecorded(&self) -> u64 {
        self.scheduler.unrecorded()
    }

    /// Whether it is known what interrupts take.
    pub fn tells_interrupts(&self) -> bool {
        self.scheduler.tells_interrupts()
    }

    /// What a recording lacks, if it lacks something.
    pub fn lacks(&self) -> Option<&'static str> {
        self.scheduler.lacks()
    }

    /// Takes an event. Prints a line at the end of a period if that was asked for.
    pub fn event(&mut self, event: &Event<'_>, out: &mut Out) -> io::Result<()> {
        let item = event.item();
        if let Item::Record(record) = item {
            return self.record(event, &record, out);
        }
        // A thread may have run meanwhile.
        self.rows.void(self.scheduler.notice(event));
        self.waits = None;
        if self.args.each { session::tell(event, &self.stamp, self.args.common.json, out) } else { Ok(()) }
    }

    /// Takes what the ledger knows at the end and no event has told.
    pub fn end(&mut self, ledger: &Status) {
        self.rows.void(self.scheduler.unreported(ledger));
        self.unseen();
    }

    /// A thread that could run where switches have no record may have run: its period was none.
    fn unseen(&mut self) {
        for hole in self.scheduler.take_holes() {
            self.rows.void_some(hole.from, |time, part| match part {
                Part::Period(Period { lasted, ready, .. }) => {
                    let ready = ready.unwrap_or(*lasted).min(*lasted);
                    ready > 0 && hole.is_in(time.saturating_sub(ready), time)
                }
                Part::Interrupted(_) => false,
            });
        }
    }

    fn record(&mut self, event: &Event<'_>, record: &Record<'_>, out: &mut Out) -> io::Result<()> {
        self.family.take(record);
        let Some(time) = event.key() else { return Ok(()) };
        self.rows.void(late(event));
        let ran = self.scheduler.record(record, time, &mut self.names);
        self.unseen();
        if self.names.take(record) {
            let thread = record.body().u32(4);
            if record.kind() == bindings::PERF_RECORD_COMM && thread == self.waits {
                self.waits = None;
            }
            return Ok(());
        }
        if let (Some(lasted), Some((pid, tid))) = (self.scheduler.account.take_interrupted(), record.pid_tid()) {
            // The record is the interrupted thread's.
            if self.is_asked_for(pid, tid) {
                self.rows.add(time, if self.args.by_thread { tid } else { pid }, Part::Interrupted(lasted));
            }
            return Ok(());
        }
        let Some((tid, left, ran)) = ran.and_then(|(tid, ran)| Some((tid, ran.left?, ran))) else { return Ok(()) };
        if !self.is_asked_for(left.process, tid) {
            return Ok(());
        }
        self.ends(left.process, tid, Period::of(left, &ran, time), [time, record.cpu().into()], out)
    }

    /// Whether a thread has a row.
    fn is_asked_for(&mut self, pid: u32, tid: u32) -> bool {
        // Threads from outside of a PID namespace have no process here.
        let is_own = Some(pid) == self.own || self.waits == Some(tid);
        if tid & OUTSIDE != 0 || is_own || !self.family.has(tid) {
            return false;
        }
        self.args.comm.as_ref().is_none_or(|comm| self.names.of(tid) == comm)
    }

    /// A thread runs again.
    fn ends(&mut self, pid: u32, tid: u32, period: Period, at: [u64; 2], out: &mut Out) -> io::Result<()> {
        self.rows.add(at[0], if self.args.by_thread { tid } else { pid }, Part::Period(period));
        if !self.args.each {
            return Ok(());
        }
        let ([time, cpu], comm) = (at, self.names.of(tid));
        let Period { reason, lasted, ready } = period;
        if self.args.common.json {
            let (time, reason) = (self.stamp.number(time), REASONS[reason]);
            let object = json!({ "time": time, "cpu": cpu, "pid": pid, "tid": tid, "comm": comm, "ns": lasted, "reason": reason, "ready_ns": ready });
            return line(out, format_args!("{object}"));
        }
        let parts = REASONS.into_iter().zip(period.parts()).filter(|(_, part)| *part > 0);
        let parts = parts.map(|(reason, part)| format!("{reason} {}", short(part))).collect::<Vec<_>>().join(", ");
        let (time, lasted) = (self.stamp.text(Some(time)), short(lasted));
        line(out, format_args!("{time} [{cpu:03}] {comm}/{tid} runs again after {lasted} ({parts})"))
    }

    /// The longest in all first.
    pub fn rows(&mut self) -> Vec<Row> {
        let names = &mut self.names;
        let row = |(id, sums)| Row { comm: names.of(id).to_owned(), id, sums };
        let mut rows: Vec<_> = self.rows.sums().into_iter().map(row).collect();
        rows.sort_by_key(|row| (Reverse(row.sums.all.total), row.id));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recent::{a_late_record, a_loss_in_between};
    use crate::scheduler::Told;
    use crate::waits::{Wake, Waker, Who};
    use crate::{Cli, Command};
    use clap::Parser;
    use perfweave::{Clock, sim};

    /// How many of two periods count, which end at 7 and 37.
    fn counted(story: crate::recent::Story) -> [u64; 2] {
        let Command::Offcpu(args) = Cli::parse_from(["perfweave", "offcpu"]).command else { unreachable!() };
        let kernel = sim::Kernel::new(&[0]);
        kernel.set_clock(Clock::Monotonic);
        let mut account = Account {
            scheduler: Scheduler::without_sources(),
            family: Family::All,
            args: &args,
            own: None,
            stamp: args.time.stamp(&kernel.rings(), By::Monotonic, false).unwrap(),
            names: Names::default(),
            rows: Recent::default(),
            waits: None,
        };
        let mut out = Out::new();
        for at in [2, 32] {
            let left = Left { time: at, why: Why::Asleep, process: 7, cpu: 0, stack: 0 };
            let ran = Ran { who: Who { thread: 7, life: 0 }, left: Some(left), wake: None };
            account.ends(7, 7, Period::of(left, &ran, at + 5), [at + 5, 0], &mut out).unwrap();
        }
        let count = |account: &mut Account<'_>| account.rows().iter().map(|row| row.sums.all.count).sum::<u64>();
        let before = count(&mut account);
        story(&mut |event| account.event(event, &mut out).unwrap());
        [before, count(&mut account)]
    }

    /// A loss on CPU 1 is told after what CPU 0 wrote meanwhile: the thread may have run and left CPU 1 in between.
    #[test]
    fn a_period_that_ended_while_records_were_lost_does_not_count() {
        assert_eq!(counted(|each| a_loss_in_between(each)), [2, 1], "what ended before the loss");
    }

    /// Switches of CPU 1 have no record while a thread could run, and while none could.
    #[test]
    fn a_period_in_which_a_thread_may_have_run_unseen_does_not_count() {
        let Command::Offcpu(args) = Cli::parse_from(["perfweave", "offcpu"]).command else { unreachable!() };
        for (missing, count) in [(0, 2), (2, 1)] {
            let kernel = sim::Kernel::new(&[0]);
            kernel.set_clock(Clock::Monotonic);
            let mut account = Account {
                scheduler: Scheduler::by_programs(100),
                family: Family::All,
                args: &args,
                own: None,
                stamp: args.time.stamp(&kernel.rings(), By::Monotonic, false).unwrap(),
                names: Names::default(),
                rows: Recent::default(),
                waits: None,
            };
            let mut out = Out::new();
            let stands = |count| Told::Stands { runs: 0, count, is_last: false };
            account.scheduler.hears(1, 1, stands(4));
            account.unseen();
            // Woken at 12, and at 32.
            for (from, woken) in [(10, 12), (30, 32)] {
                let left = Left { time: from, why: Why::Asleep, process: 7, cpu: 0, stack: 0 };
                let wake = Wake {
                    time: woken,
                    by: Waker::Interrupt(None),
                    interrupt: None,
                    numbers: (0, None),
                    stack: 0,
                    signal: None,
                };
                let ran = Ran { who: Who { thread: 7, life: 0 }, left: Some(left), wake: Some(wake) };
                account.ends(7, 7, Period::of(left, &ran, woken + 3), [woken + 3, 0], &mut out).unwrap();
                account.scheduler.hears(from - 5, 1, stands(4));
                account.unseen();
            }
            // Since 25.
            account.scheduler.hears(40, 1, stands(4 + missing));
            account.unseen();
            assert_eq!(account.rows().iter().map(|row| row.sums.all.count).sum::<u64>(), count, "{missing}");
        }
    }

    /// The same of a record that comes late.
    #[test]
    fn a_period_that_ended_after_a_record_that_came_late_does_not_count() {
        assert_eq!(counted(|each| a_late_record(each)), [2, 1], "what ended before it");
    }
}
