//! `trace` of system calls.

use super::calls::{Calls, error};
use super::events::is_of;
use super::lines::{At, Lines};
use super::pairs::{Entry, Pairs, Step, sources};
use super::strings::{self, Copied, Strings};
use super::summary::Summary;
use super::{Args, lines};
use crate::exact::Exact;
use crate::failure::{Failure, Outcome};
use crate::family::Family;
use crate::recorded::Recorded;
use crate::session::{Session, Tell};
use crate::times::short;
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Rings};
use serde_json::json;
use std::collections::HashSet;
use std::io::{self, Write};

/// What is known so far.
struct Trace {
    calls: Calls,
    pairs: Pairs,
    strings: Option<Strings>,
    /// Calls that have addresses, because what these point to is lost.
    bare: u64,
    lines: Lines,
    summary: Option<Summary>,
    enter: bool,
    /// With `-e`, the threads that have lines: the ends of others are not printed.
    with_lines: Option<HashSet<u32>>,
}

pub fn run(args: &Args, numbers: &[i64]) -> Outcome {
    let child = args.target.start()?;
    let mut calls = Calls::default();
    let strings = if args.summary { Ok(None) } else { Strings::begin(&mut calls, numbers) };
    let (strings, without) = strings.map_or_else(|why| (None, Some(why)), |strings| (strings, None));
    let options = sources(Rings::options(), numbers, child.is_some()).bytes(args.common.buffer);
    let rings = args.target.limit(options, child.as_ref()).open()?;
    let pairs = Pairs::new(&rings, child.as_ref().map(|child| child.pid()))?;
    let (lines, summary) = (lines(args, &rings)?, args.summary.then(Summary::default));
    let with_lines = (!numbers.is_empty()).then(HashSet::new);
    let mut trace = Trace { calls, pairs, strings, bare: 0, lines, summary, enter: args.enter, with_lines };
    let only = |number: i64| numbers.is_empty() || numbers.contains(&number);
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    session.stamped(trace.lines.stamp);
    session.until_the_end_of(args.target.watched());
    session.each(|tell| match tell {
        Tell::Event(event) => trace.event(event, only),
        Tell::Pause => trace.pause(),
    })?;
    trace.end(only)?;
    if let Some(summary) = &mut trace.summary {
        summary.print(&session.ledger()?, &mut trace.lines.out, args.common.json)?;
    }
    session.conclude(&mut trace.lines.out, args.common.json)?;
    if let Some(why) = without {
        let why = strings::why(&*why);
        eprintln!(
            "strings are printed as addresses: a BPF program copies them, for root or with CAP_BPF and CAP_PERFMON: \
             {why}"
        );
    }
    if trace.bare > 0 {
        eprintln!("strings of {} calls are lost: those calls have addresses instead", trace.bare);
    }
    Ok(session.status())
}

/// Of a recording.
pub fn recorded(
    args: &Args,
    numbers: &[i64],
    recorded: &mut Recorded,
    mut family: Family,
    lines: Lines,
) -> Result<(), Failure> {
    let pairs = Pairs::recorded(recorded)?;
    let summary = args.summary.then(Summary::default);
    let with_lines = (!numbers.is_empty()).then(HashSet::new);
    let calls = Calls::default();
    let mut trace = Trace { calls, pairs, strings: None, bare: 0, lines, summary, enter: args.enter, with_lines };
    let only = |number: i64| numbers.is_empty() || numbers.contains(&number);
    recorded.each(|event, _| {
        let ends = event.record().filter(|record| record.kind() == bindings::PERF_RECORD_EXIT);
        // struct { u32 pid, ppid, tid, ptid; u64 time; }
        let is_others = ends.and_then(|record| record.body().u32(8)).is_some_and(|tid| !family.has(tid));
        if is_of(&mut family, event) && !is_others { trace.event(event, only) } else { Ok(()) }
    })?;
    trace.end(only)?;
    if let Some(summary) = &mut trace.summary {
        summary.print(&recorded.ledger()?, &mut trace.lines.out, args.common.json)?;
    }
    recorded.conclude(&mut trace.lines.out, args.common.json)
}

impl Trace {
    fn pause(&mut self) -> io::Result<()> {
        let Self { strings, pairs, .. } = self;
        if let Some(strings) = strings {
            strings.tidy(|tid| pairs.is_inside(tid));
        }
        self.lines.out.flush()
    }

    /// What the call's arguments point to.
    fn copied(&mut self, entry: &Entry, until: u64) -> Option<Copied> {
        let strings = self.strings.as_mut().filter(|_| self.calls.of(entry.number).points())?;
        strings.of(entry, until)
    }

    fn has_line(&mut self, tid: u32) {
        if let Some(threads) = &mut self.with_lines {
            threads.insert(tid);
        }
    }

    /// A call of a thread is over.
    fn forget(&mut self, tid: u32, at: &At) {
        if let Some(strings) = &mut self.strings {
            strings.forget(tid, at.time.unwrap_or(u64::MAX));
        }
    }

    fn event(&mut self, event: &Event<'_>, only: impl Fn(i64) -> bool) -> io::Result<()> {
        self.summary.iter_mut().for_each(|summary| summary.saw(event));
        let Item::Record(record) = event.item() else {
            self.pairs.forget();
            self.strings.iter_mut().for_each(Strings::forget_all);
            return if self.summary.is_some() { Ok(()) } else { self.lines.notice(event) };
        };
        self.lines.names.take(&record);
        match self.pairs.take(&record) {
            Step::Enters(entry) if self.enter && only(entry.number) => {
                let at = At::new(event, entry.pid, entry.tid);
                let copied = self.copied(&entry, entry.time);
                self.has_line(at.tid);
                let (call, copied) = (self.calls.of(entry.number), copied.as_ref());
                let text = || format!("{}({}) ...", call.name, call.args(&entry.args, copied));
                let value = || {
                    let mut exact = Exact::default();
                    let args = call.json(&entry.args, copied, &mut exact);
                    (json!({ "enters": call.name, "args": args }), exact)
                };
                self.lines.line(at, text, value)
            }
            Step::Returns { pid, tid, number, result, entry } if only(number) => {
                self.returned(At::new(event, pid, tid), number, result, entry)
            }
            Step::Ends { pid, tid, entry } if !self.pairs.waits(tid) => {
                let at = At::new(event, pid, tid);
                if let Some(entry) = entry.filter(|entry| only(entry.number)) {
                    self.unreturned(at, &entry)?;
                }
                self.forget(tid, &at);
                let is_told = self.with_lines.as_mut().is_none_or(|threads| threads.remove(&tid));
                if self.summary.is_some() || !is_told {
                    return Ok(());
                }
                self.lines.line(
                    at,
                    || "+++ the thread ends +++".into(),
                    || (json!({ "thread": "ends" }), Exact::default()),
                )
            }
            _ => Ok(()),
        }
    }

    fn returned(&mut self, at: At, number: i64, result: i64, entry: Option<Entry>) -> io::Result<()> {
        let until = at.time.unwrap_or(u64::MAX);
        let copied = entry.as_ref().and_then(|entry| self.copied(entry, until));
        if let Some(entry) = &entry {
            let points = self.strings.is_some() && self.calls.of(number).points();
            self.bare += u64::from(points && copied.is_none());
            // The thread that executes a program had another number before.
            self.forget(entry.tid, &at);
        }
        self.forget(at.tid, &at);
        self.has_line(at.tid);
        let (call, copied) = (self.calls.of(number), copied.as_ref());
        let error = error(result);
        let time = entry.as_ref().zip(at.time).map(|(entry, time)| time.saturating_sub(entry.time));
        if let Some(summary) = &mut self.summary {
            summary.add(&call.name, at.time.zip(time), error.is_some());
            return Ok(());
        }
        let text = || {
            let args = entry.as_ref().map_or("...".into(), |entry| call.args(&entry.args, copied));
            let time = time.map_or("its entry is not in the trace".into(), short);
            format!("{}({args}) = {} <{time}>", call.name, call.result(result))
        };
        let value = || {
            let mut exact = Exact::default();
            let args = entry.as_ref().map(|entry| call.json(&entry.args, copied, &mut exact));
            let value = json!({ "call": call.name, "args": args, "result": result, "error": error.map(|(name, _)| name), "ns": time });
            (value, exact)
        };
        self.lines.line(at, text, value)
    }

    /// A call that has not returned when its thread or the trace ends.
    fn unreturned(&mut self, at: At, entry: &Entry) -> io::Result<()> {
        let copied = self.copied(entry, entry.time);
        self.has_line(at.tid);
        let (call, copied) = (self.calls.of(entry.number), copied.as_ref());
        if let Some(summary) = &mut self.summary {
            summary.add(&call.name, None, false);
            return Ok(());
        }
        let text = || format!("{}({}) = ? <has not returned>", call.name, call.args(&entry.args, copied));
        let value = || {
            let mut exact = Exact::default();
            let args = call.json(&entry.args, copied, &mut exact);
            (json!({ "call": call.name, "args": args, "entered": entry.time }), exact)
        };
        self.lines.line(at, text, value)
    }

    fn end(&mut self, only: impl Fn(i64) -> bool) -> io::Result<()> {
        for entry in self.pairs.left().into_iter().filter(|entry| only(entry.number)) {
            self.unreturned(At::end(entry.cpu, entry.pid, entry.tid), &entry)?;
        }
        Ok(())
    }
}
