//! `trace` of system calls.

use super::asked::{Asked, End, Which};
use super::calls::{Calls, Values, error, is_exec};
use super::ends::{Ended, Ends};
use super::executed::Executed;
use super::lines::{At, Lines};
use super::opened::Opened;
use super::pairs::{Entry, Pairs, Step, sources_of};
use super::program::opened::Places;
use super::shown::Shown;
use super::signals::{Delivered, Signals};
use super::stacks::Stacks;
use super::strings::{Copied, Quotes, Strings};
use super::summary::Summary;
use super::{Args, events, lines, shown};
use crate::convert::names::Spot;
use crate::convert::not_unwound;
use crate::convert::view::View;
use crate::exact::Exact;
use crate::failure::{Failure, Outcome, without_log};
use crate::family::Family;
use crate::out::say;
use crate::recorded::Recorded;
use crate::session::{Session, Tell};
use crate::times::short;
use perfweave::{Event, Item, Record, RingOptions, Rings};
use serde_json::{Value, json};
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
    asked: Asked,
    shown: Shown,
    /// Whether there are lines at all, and at entries.
    has_lines: bool,
    enter: bool,
    /// Whether what is behind descriptors is printed.
    decodes: bool,
    /// Where signals and executed programs are told.
    signals: Option<Signals>,
    executed: Option<Executed>,
    ends: Ends,
    /// What is printed below calls, if it is asked for.
    stacks: Option<Stacks>,
    family: Family,
    /// Where only some calls have lines, the threads that have one: the ends and signals of others are not printed.
    with_lines: Option<HashSet<u32>>,
}

pub fn run(args: &Args, asked: &Asked) -> Outcome {
    let child = args.whom.start()?;
    let mut calls = Calls::default();
    let needs_strings = !args.summary_only || !args.path.is_empty();
    let quotes = Quotes { limit: args.string_limit, hexadecimal: args.hexadecimal };
    let listed = || args.whom.processes(child.as_ref());
    let family = args.whom.has_family().then_some(&listed);
    let decode_fds = args.decode_fds(asked);
    let needs_places = needs_strings && (decode_fds > 0 || !args.path.is_empty());
    let places = needs_places.then(|| Places::read(decode_fds > 1)).transpose();
    let (places, mut no_places) = places.map_or_else(|why| (None, Some(why)), |places| (places, None));
    let (places, no_sockets) = places.unzip();
    let mut begin = |places| Strings::begin(&mut calls, &asked.calls, (quotes, places), family);
    let mut strings = needs_strings.then(|| begin(places)).transpose();
    // Where the kernel refuses the programs for descriptors, those for strings may run.
    if let (Err(why), Some(_)) = (&strings, places) {
        no_places = Some(without_log(&**why));
        strings = begin(None).map(Some);
    }
    let (strings, without) = strings.map_or_else(|why| (None, Some(why)), |strings| (strings, None));
    let rings = args.whom.limit(options(args, asked, child.is_some()), child.as_ref()).open()?;
    // After they were opened: what starts from now on has its records.
    let family = args.whom.family(child.as_ref(), false)?;
    let pairs = Pairs::new(&rings, child.as_ref().map(|child| child.pid()))?;
    let mut trace = Trace::new(args, asked, pairs, family, lines(args, &rings)?);
    (trace.signals, trace.executed) = (Some(Signals::new(&rings)?), Some(Executed::new(&rings)?));
    (trace.calls, trace.strings, trace.stacks) = (calls, strings, args.stacking.live(&rings));
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    session.stamped(trace.lines.stamp);
    session.until_the_end_of(args.whom.watched());
    session.each(|tell| match tell {
        Tell::Event(event) => trace.event(event, None),
        Tell::Pause => trace.pause(),
    })?;
    trace.end()?;
    if let Some(summary) = &mut trace.summary {
        summary.print(&session.ledger()?, &mut trace.lines.out, args.common.json)?;
    }
    session.conclude(&mut trace.lines.out, args.common.json)?;
    if let Some(why) = without {
        let why = without_log(&*why);
        eprintln!(
            "strings are printed as addresses: a BPF program copies them, for root or with CAP_BPF and CAP_PERFMON: \
             {why}"
        );
    }
    if let Some(why) = &no_places {
        eprintln!("descriptors are printed as numbers: {why}");
    }
    if let Some(why) = no_sockets.flatten().filter(|_| no_places.is_none()) {
        eprintln!("descriptors have no addresses of sockets and no numbers of devices: {why}");
    }
    if trace.bare > 0 {
        eprintln!("strings of {} calls are lost: those calls have addresses instead", trace.bare);
    }
    trace.stacks.iter_mut().flat_map(Stacks::notes).for_each(|note| say(format_args!("perfweave: {note}")));
    Ok(session.status())
}

/// The events.
fn options(args: &Args, asked: &Asked, has_command: bool) -> RingOptions {
    let stacking = args.stacking;
    let options = Rings::options().bytes(stacking.bytes(args.common.buffer));
    let besides = ["exit", "exit_group"];
    let options = sources_of(options, &asked.calls, has_command, &besides, |options| stacking.of_call(options));
    let options = stacking.of_other(Signals::source(options));
    stacking.of_all(stacking.of_other(Executed::source(options)))
}

/// Of a recording. Nothing in it says what arguments point to.
pub fn recorded(
    args: &Args,
    asked: &Asked,
    recorded: &mut Recorded,
    family: Family,
    lines: Lines,
) -> Result<(), Failure> {
    let mut trace = Trace::new(args, asked, Pairs::recorded(recorded)?, family, lines);
    let rings = recorded.rings();
    (trace.signals, trace.executed) = (Signals::new(rings).ok(), Executed::new(rings).ok());
    trace.stacks = args.stacking.recorded();
    recorded.each(|event, view| {
        if args.stacking.stacks {
            view.learn(event);
        }
        trace.event(event, Some(view))
    })?;
    trace.end()?;
    if let Some(stacks) = &mut trace.stacks {
        let without = "the calls have no call chains\nhint: perfweave record --call-graph dwarf -e 'raw_syscalls:*'";
        recorded.lacks(not_unwound(recorded.rings()).or(stacks.are_none().then_some(without)));
        stacks.notes().into_iter().for_each(|note| say(format_args!("perfweave: {note}")));
    }
    if let Some(summary) = &mut trace.summary {
        summary.print(&recorded.ledger()?, &mut trace.lines.out, args.common.json)?;
    }
    recorded.conclude(&mut trace.lines.out, args.common.json)
}

impl Trace {
    fn new(args: &Args, asked: &Asked, pairs: Pairs, family: Family, lines: Lines) -> Self {
        let shown = shown(args, asked);
        let only_some = matches!(&asked.calls, Which::Only(calls) if !calls.is_empty()) || !shown.is_all();
        Self {
            pairs,
            signals: None,
            executed: None,
            lines,
            summary: args.summarizes().then(|| Summary::sorted(args.sort)),
            asked: Asked { is_quiet: asked.is_quiet || args.quiet > 1, ..asked.clone() },
            with_lines: only_some.then(HashSet::new),
            has_lines: !args.summary_only,
            enter: args.enter,
            decodes: args.decode_fds(asked) > 0,
            ends: Ends::default(),
            stacks: None,
            bare: 0,
            calls: Calls::default(),
            strings: None,
            shown,
            family,
        }
    }

    fn pause(&mut self) -> io::Result<()> {
        let Self { strings, pairs, .. } = self;
        if let Some(strings) = strings {
            strings.tidy(|tid| pairs.is_inside(tid));
        }
        self.lines.out.flush()
    }

    /// What the call's arguments point to, and what is behind its descriptors.
    fn told(&mut self, entry: &Entry, until: u64, result: Option<i64>) -> Told {
        let Some(strings) = &mut self.strings else { return Told::default() };
        let call = self.calls.of(entry.number);
        let pointers = call.pointers();
        let copied = (!pointers.is_empty()).then(|| strings.of(entry, until, result, pointers.has_exit())).flatten();
        let opened = strings.opened(entry, until, result, || call.descriptors().gives());
        let opened = opened.and_then(|opened| call.meant(opened, &entry.args));
        Told { copied, opened, decodes: self.decodes }
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

    fn event(&mut self, event: &Event<'_>, view: Option<&View>) -> io::Result<()> {
        self.summary.iter_mut().for_each(|summary| summary.saw(event));
        let Item::Record(record) = event.item() else {
            self.pairs.forget();
            self.stacks.iter_mut().for_each(Stacks::forget);
            self.ends.forget();
            self.executed.iter_mut().for_each(Executed::forget);
            self.strings.iter_mut().for_each(Strings::forget_all);
            return if self.has_lines { self.lines.notice(event) } else { Ok(()) };
        };
        self.lines.names.take(&record);
        self.ends.take(&record);
        self.stacks.iter_mut().for_each(|stacks| stacks.learn(event));
        if !events::is_of(&mut self.family, event) {
            return Ok(());
        }
        let signal = self.signals.as_ref().and_then(|signals| signals.take(&record));
        if let (Some(signal), Some((pid, tid))) = (signal, record.pid_tid()) {
            return self.delivered(At::new(event, pid, tid), &signal);
        }
        self.executed.iter_mut().for_each(|executed| executed.take(&record));
        let step = self.pairs.take(&record);
        let stack = self.stack(&step, &record, event.key(), view);
        match step {
            Step::Enters(entry) => {
                self.ends.enters(&entry);
                self.entered(At::new(event, entry.pid, entry.tid), &entry)
            }
            Step::Returns { pid, tid, number, result, entry } => {
                if result == 0 && is_exec(number) {
                    self.ends.executed(pid);
                }
                self.returned(At::new(event, pid, tid), (number, result), entry, stack)
            }
            Step::Ends { pid, tid, entry } if self.family.has(tid) && !self.pairs.waits(tid) => {
                self.thread_ends(At::new(event, pid, tid), entry)
            }
            _ => Ok(()),
        }
    }

    /// The stack of a call that returns: as it was entered, or as it returns if nothing is known of its entry.
    fn stack(&mut self, step: &Step, record: &Record<'_>, time: Option<u64>, view: Option<&View>) -> Option<Vec<Spot>> {
        let stacks = self.stacks.as_mut()?;
        match step {
            Step::Enters(entry) if self.asked.calls.has(&entry.number) => stacks.enters(entry, record, time, view),
            Step::Returns { number, entry, .. } if self.asked.calls.has(number) => {
                let entered = entry.as_ref().and_then(|entry| stacks.of(entry));
                return Some(entered.unwrap_or_else(|| stacks.spots(record, time, view)));
            }
            Step::Ends { tid, entry: None, .. } => stacks.ends(*tid),
            _ => {}
        }
        None
    }

    /// Whether lines about a thread itself are printed.
    fn tells_of(&self, tid: u32) -> bool {
        self.has_lines && self.with_lines.as_ref().is_none_or(|threads| threads.contains(&tid))
    }

    fn delivered(&mut self, at: At, signal: &Delivered) -> io::Result<()> {
        self.ends.delivered(at.pid, signal);
        let is_told = !signal.is_kill() && self.asked.signals.has(&signal.signal) && self.tells_of(at.tid);
        if !is_told || self.pairs.waits(at.tid) {
            return Ok(());
        }
        let info = self.strings.as_mut().and_then(|strings| strings.signal(at.tid, at.time?));
        self.lines.line(at, || signal.text(info.as_deref()), || (signal.json(info.as_deref()), Exact::default()))
    }

    fn entered(&mut self, at: At, entry: &Entry) -> io::Result<()> {
        if !self.enter || !self.asked.calls.has(&entry.number) {
            return Ok(());
        }
        let told = self.told(entry, entry.time, None);
        self.has_line(at.tid);
        let (call, values) = (self.calls.of(entry.number), told.values(entry, None));
        let text = || format!("{}({}) ...", call.name, call.args(values));
        let value = || {
            let mut exact = Exact::default();
            let args = call.json(values, &mut exact);
            (told.with_files(json!({ "enters": call.name, "args": args })), exact)
        };
        self.lines.line(at, text, value)
    }

    fn thread_ends(&mut self, at: At, entry: Option<Entry>) -> io::Result<()> {
        let status = self.strings.as_mut().and_then(|strings| strings.end(at.tid, at.time?));
        let how = self.ends.ends(at.pid, at.tid, self.pairs.executing(at.pid), status);
        if let Some(entry) = entry {
            self.unreturned(at, &entry)?;
        }
        self.forget(at.tid, &at);
        let is_told = self.tells_of(at.tid) && !self.asked.is_quiet;
        if let Some(threads) = &mut self.with_lines {
            threads.remove(&at.tid);
        }
        if !is_told {
            return Ok(());
        }
        self.lines.line(at, || Ended::text(how), || (Ended::json(how), Exact::default()))
    }

    fn returned(
        &mut self,
        at: At,
        (number, result): (i64, i64),
        entry: Option<Entry>,
        stack: Option<Vec<Spot>>,
    ) -> io::Result<()> {
        let until = at.time.unwrap_or(u64::MAX);
        let told = entry.as_ref().map(|entry| self.told(entry, until, Some(result))).unwrap_or_default();
        if let Some(entry) = &entry {
            let points =
                self.strings.is_some() && self.asked.calls.has(&number) && self.calls.of(number).points(&entry.args);
            self.bare += u64::from(points && told.copied.is_none());
            // The thread that executes a program had another number before.
            self.forget(entry.tid, &at);
        }
        self.forget(at.tid, &at);
        let executed = self.executed.as_mut().and_then(|executed| executed.of(at.tid));
        let error = error(result);
        let time = entry.as_ref().zip(at.time).map(|(entry, time)| time.saturating_sub(entry.time));
        let end = if error.is_some() { End::Failed } else { End::Successful };
        if !self.has(number, (end, time), entry.as_ref(), &told) {
            return Ok(());
        }
        self.has_line(at.tid);
        let call = self.calls.of(number);
        let values = entry.as_ref().map(|entry| {
            let values = told.values(entry, Some(result));
            Values { executed: executed.as_deref().filter(|_| result == 0 && is_exec(number)), ..values }
        });
        if let Some(summary) = &mut self.summary {
            summary.add(&call.name, at.time.zip(time), error.is_some());
        }
        if !self.has_lines {
            return Ok(());
        }
        let text = || {
            let args = values.map_or("...".into(), |values| call.args(values));
            let time = time.map_or("its entry is not in the trace".into(), short);
            format!("{}({args}) = {} <{time}>", call.name, call.result(values, result))
        };
        let value = || {
            let mut exact = Exact::default();
            let args = values.map(|values| call.json(values, &mut exact));
            let value = json!({ "call": call.name, "args": args, "result": result, "error": error.map(|(name, _)| name), "ns": time });
            (with_stack(told.with_files(value), stack.as_deref()), exact)
        };
        self.lines.line(at, text, value)?;
        self.lines.stack(stack.as_deref())
    }

    /// A call that has not returned when its thread or the trace ends.
    fn unreturned(&mut self, at: At, entry: &Entry) -> io::Result<()> {
        let told = self.told(entry, entry.time, None);
        let stack = self.stacks.as_mut().and_then(|stacks| stacks.of(entry));
        if !self.has(entry.number, (End::Unfinished, None), Some(entry), &told) {
            return Ok(());
        }
        self.has_line(at.tid);
        let (call, values) = (self.calls.of(entry.number), told.values(entry, None));
        if let Some(summary) = &mut self.summary {
            summary.add(&call.name, None, false);
        }
        if !self.has_lines {
            return Ok(());
        }
        let text = || format!("{}({}) = ? <has not returned>", call.name, call.args(values));
        let value = || {
            let mut exact = Exact::default();
            let args = call.json(values, &mut exact);
            let value = json!({ "call": call.name, "args": args, "entered": entry.time });
            (with_stack(told.with_files(value), stack.as_deref()), exact)
        };
        self.lines.line(at, text, value)?;
        self.lines.stack(stack.as_deref())
    }

    /// Whether a call is one of those that have lines, or count.
    fn has(&mut self, number: i64, (end, took): (End, Option<u64>), entry: Option<&Entry>, told: &Told) -> bool {
        let call = self.calls.of(number);
        let has_path = |entry: &Entry| self.shown.has_path(call, told.values(entry, None), told.opened.as_ref());
        self.asked.calls.has(&number) && self.shown.has(end, took) && entry.is_none_or(has_path)
    }

    fn end(&mut self) -> io::Result<()> {
        for entry in self.pairs.left() {
            self.unreturned(At::end(entry.cpu, entry.pid, entry.tid), &entry)?;
        }
        Ok(())
    }
}

/// What was told of a call beside its numbers.
#[derive(Debug, Default)]
struct Told {
    copied: Option<Copied>,
    opened: Option<Opened>,
    /// Whether what is behind descriptors is printed.
    decodes: bool,
}

impl Told {
    fn printed(&self) -> Option<&Opened> {
        self.opened.as_ref().filter(|_| self.decodes)
    }

    /// With what a call was entered.
    fn values<'a>(&'a self, entry: &'a Entry, result: Option<i64>) -> Values<'a> {
        let (copied, opened) = (self.copied.as_ref(), self.printed());
        Values { values: &entry.args, copied, result, executed: None, opened }
    }

    /// An object, to which `files` is added.
    fn with_files(&self, mut object: Value) -> Value {
        if let Some(opened) = self.printed() {
            object["files"] = opened.json();
        }
        object
    }
}

/// An object, to which the call's `stack` is added, the innermost frame first.
fn with_stack(mut object: Value, stack: Option<&[Spot]>) -> Value {
    if let Some(stack) = stack {
        object["stack"] = stack.iter().map(Spot::json).collect();
    }
    object
}
