//! `trace` of system calls.

use super::calls::{Calls, error};
use super::lines::{At, Lines};
use super::pairs::{Entry, Pairs, Step, sources};
use super::summary::Summary;
use super::{Args, lines};
use crate::failure::Outcome;
use crate::session::{Session, Tell};
use crate::times::short;
use perfweave::{Event, Item, Rings};
use serde_json::json;
use std::io::{self, Write};

/// What is known so far.
struct Trace {
    calls: Calls,
    pairs: Pairs,
    lines: Lines,
    summary: Option<Summary>,
    enter: bool,
}

pub fn run(args: &Args, numbers: &[i64]) -> Outcome {
    let child = args.target.start()?;
    let options = sources(Rings::options(), numbers, child.is_some()).bytes(args.common.buffer);
    let rings = args.target.limit(options, child.as_ref()).open()?;
    let pairs = Pairs::new(&rings, child.as_ref().map(|child| child.pid()))?;
    let (lines, summary) = (lines(args, &rings)?, args.summary.then(Summary::default));
    let mut trace = Trace { calls: Calls::default(), pairs, lines, summary, enter: args.enter };
    let only = |number: i64| numbers.is_empty() || numbers.contains(&number);
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    session.stamped(trace.lines.stamp);
    session.until_the_end_of(args.target.watched());
    session.each(|tell| match tell {
        Tell::Event(event) => trace.event(event, only),
        Tell::Pause => trace.lines.out.flush(),
    })?;
    trace.end(only)?;
    if let Some(summary) = &trace.summary {
        summary.print(&mut trace.lines.out, args.common.json)?;
    }
    session.conclude(&mut trace.lines.out, args.common.json)?;
    Ok(session.status())
}

impl Trace {
    fn event(&mut self, event: &Event<'_>, only: impl Fn(i64) -> bool) -> io::Result<()> {
        let Item::Record(record) = event.item() else {
            if !matches!(event.item(), Item::EarlyRelease(_)) {
                self.pairs.forget();
            }
            return if self.summary.is_some() { Ok(()) } else { self.lines.notice(event) };
        };
        self.lines.names.take(&record);
        match self.pairs.take(&record) {
            Step::Enters(entry) if self.enter && only(entry.number) => {
                let at = At::new(event, entry.pid, entry.tid);
                let call = self.calls.of(entry.number);
                let text = || format!("{}({}) ...", call.name, call.args(&entry.args));
                self.lines.line(at, text, || json!({ "enters": call.name, "args": call.json(&entry.args) }))
            }
            Step::Returns { pid, tid, number, result, entry } if only(number) => {
                self.returned(At::new(event, pid, tid), number, result, entry)
            }
            Step::Ends { pid, tid, entry } if !self.pairs.waits(tid) => {
                let at = At::new(event, pid, tid);
                if let Some(entry) = entry.filter(|entry| only(entry.number)) {
                    self.unreturned(at, &entry)?;
                }
                if self.summary.is_some() {
                    return Ok(());
                }
                self.lines.line(at, || "+++ the thread ends +++".into(), || json!({ "thread": "ends" }))
            }
            _ => Ok(()),
        }
    }

    fn returned(&mut self, at: At, number: i64, result: i64, entry: Option<Entry>) -> io::Result<()> {
        let call = self.calls.of(number);
        let error = error(result);
        let time = entry.as_ref().zip(at.time).map(|(entry, time)| time.saturating_sub(entry.time));
        if let Some(summary) = &mut self.summary {
            summary.add(&call.name, time, error.is_some());
            return Ok(());
        }
        let text = || {
            let args = entry.as_ref().map_or("...".into(), |entry| call.args(&entry.args));
            let time = time.map_or("its entry is not in the trace".into(), short);
            format!("{}({args}) = {} <{time}>", call.name, call.result(result))
        };
        let value = || {
            json!({ "call": call.name, "args": entry.as_ref().map(|entry| call.json(&entry.args)), "result": result,
                "error": error.map(|(name, _)| name), "ns": time })
        };
        self.lines.line(at, text, value)
    }

    /// A call that has not returned when its thread or the trace ends.
    fn unreturned(&mut self, at: At, entry: &Entry) -> io::Result<()> {
        let call = self.calls.of(entry.number);
        if let Some(summary) = &mut self.summary {
            summary.add(&call.name, None, false);
            return Ok(());
        }
        let text = || format!("{}({}) = ? <has not returned>", call.name, call.args(&entry.args));
        let value = || json!({ "call": call.name, "args": call.json(&entry.args), "entered": entry.time });
        self.lines.line(at, text, value)
    }

    fn end(&mut self, only: impl Fn(i64) -> bool) -> io::Result<()> {
        for entry in self.pairs.left().into_iter().filter(|entry| only(entry.number)) {
            self.unreturned(At::end(entry.cpu, entry.pid, entry.tid), &entry)?;
        }
        Ok(())
    }
}
