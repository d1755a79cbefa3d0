//! `trace` of events: tracepoints, probes, and what perf(1) has names for.

use super::lines::{At, Lines};
use super::summary::Summary;
use super::{Args, lines};
use crate::convert::text::pair;
use crate::exact::Exact;
use crate::failure::{Failure, Outcome, in_line};
use crate::family::Family;
use crate::kernel::Kernel;
use crate::modifiers::Modifiers;
use crate::names::NAMING;
use crate::numbers::{ENDED, Numbers, OUTSIDE};
use crate::out::say;
use crate::recorded::Recorded;
use crate::session::{Session, Tell};
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Record, RingOptions, Rings};
use perfweave_events::{EventOptions, Field, Format};
use perfweave_perf_data as perf_data;
use perfweave_symbols::{function, usdt};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

pub fn run(args: &Args) -> Outcome {
    let child = args.whom.start()?;
    let mut options = Rings::options().bytes(args.common.buffer);
    for name in &args.events {
        options = event(options, name, args.filter.as_deref())?;
    }
    // The records come last: they are the source after the events.
    let options = options.records(NAMING).sample(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_IP);
    // The kernel does not let processes inherit probes. Then the rings have those of all processes.
    let has_probes = args.events.iter().any(|name| is_probe(name));
    let is_open = has_probes && args.whom.target().process(child.as_ref()).is_some();
    let rings = if is_open { options } else { args.whom.limit(options, child.as_ref()) }.open()?;
    // After they were opened: what starts from now on has its records.
    let mut family = args.whom.family(child.as_ref(), has_probes)?;
    for skipped in rings.skipped() {
        say(format_args!("perfweave: left out: {}", in_line(skipped)));
    }
    let kernel = Rc::new(Kernel::running());
    let numbers = Rc::new(RefCell::new(Numbers::now()));
    let known = |source| Known::new(&rings, source, &kernel, &numbers);
    let kinds = (0..rings.sources().len()).map(known).collect::<Vec<_>>();
    let (mut lines, mut summary) = (lines(args, &rings)?, args.summarizes().then(|| Summary::sorted(args.sort)));
    let mut waits = child.as_ref().map(|child| child.pid());
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    session.stamped(lines.stamp);
    session.until_the_end_of(args.whom.watched());
    session.each(|tell| match tell {
        Tell::Event(event) if is_by(&mut family, event, |record| who(&kinds, record)) => {
            take(event, &kinds, (&mut lines, !args.summary_only), summary.as_mut(), &mut waits)
        }
        Tell::Event(_) => Ok(()),
        Tell::Pause => lines.out.flush(),
    })?;
    if let Some(summary) = &mut summary {
        summary.print(&session.ledger()?, &mut lines.out, args.common.json)?;
    }
    session.conclude(&mut lines.out, args.common.json)?;
    Ok(session.status())
}

/// Of a recording: the events that were asked for, or all.
pub fn recorded(args: &Args, recorded: &mut Recorded, mut family: Family, mut lines: Lines) -> Result<(), Failure> {
    let wanted = args.events.iter().map(|name| recorded.place(name)).collect::<Result<Vec<_>, _>>()?;
    let rings = recorded.rings();
    let kernel = Rc::new(Kernel::recorded(&perf_data::kernel_strings(rings)));
    let numbers = Rc::new(RefCell::new(Numbers::recorded()));
    let known = |source| Known::new(rings, source, &kernel, &numbers);
    let kinds = (0..rings.sources().len()).map(known).collect::<Vec<_>>();
    let mut summary = args.summarizes().then(|| Summary::sorted(args.sort));
    let is_wanted = |event: &Event<'_>| {
        let sample = event.record().filter(|record| record.kind() == bindings::PERF_RECORD_SAMPLE);
        let source = sample.and_then(|record| record.source());
        source.is_none_or(|source| wanted.is_empty() || wanted.contains(&source))
    };
    recorded.each(|event, _| {
        let is_meant = is_by(&mut family, event, |record| who(&kinds, record)) && is_wanted(event);
        // What is neither a sample nor told of a thread's name is no line: it is what the samples need.
        let is_other = event.record().is_some_and(|record| record.kind() != bindings::PERF_RECORD_SAMPLE);
        match event.record() {
            Some(record) if is_other => lines.names.take(&record),
            _ if is_meant => return take(event, &kinds, (&mut lines, !args.summary_only), summary.as_mut(), &mut None),
            _ => false,
        };
        Ok(())
    })?;
    if let Some(summary) = &mut summary {
        summary.print(&recorded.ledger()?, &mut lines.out, args.common.json)?;
    }
    recorded.conclude(&mut lines.out, args.common.json)
}

/// The records that are of the thread that wrote them, and tell nothing of others.
const OF_A_THREAD: [u32; 3] =
    [bindings::PERF_RECORD_SAMPLE, bindings::PERF_RECORD_SWITCH, bindings::PERF_RECORD_SWITCH_CPU_WIDE];

/// Whether an event is a family's. What is no record is everybody's, and so are names.
pub fn is_of(family: &mut Family, event: &Event<'_>) -> bool {
    is_by(family, event, |record| record.pid_tid())
}

/// The same, by the process and the thread that wrote a record.
fn is_by(family: &mut Family, event: &Event<'_>, who: impl FnOnce(&Record<'_>) -> Option<(u32, u32)>) -> bool {
    let Item::Record(record) = event.item() else { return true };
    family.take(&record);
    !OF_A_THREAD.contains(&record.kind()) || who(&record).is_none_or(|(pid, tid)| family.has_of(pid, tid))
}

/// The process and the thread that wrote a record.
fn who(kinds: &[Known], record: &Record<'_>) -> Option<(u32, u32)> {
    match record.source().and_then(|source| kinds.get(source)) {
        Some(known) => known.who(record),
        None => record.pid_tid(),
    }
}

pub fn is_probe(name: &str) -> bool {
    let kinds = ["kprobe", "kretprobe", "uprobe", "uretprobe", "usdt"];
    name.split_once(':').is_some_and(|(kind, _)| kinds.contains(&kind))
}

/// An event by its name: a tracepoint has a colon, and so have probes. A static probe is an event for each of its
/// places.
pub fn event(options: RingOptions, name: &str, filter: Option<&str>) -> Result<RingOptions, Failure> {
    let filtered = |options: RingOptions| filter.into_iter().fold(options, RingOptions::filter);
    let (name, modifiers) = Modifiers::split(name)?;
    let filtered = |options: RingOptions| modifiers.set(filtered(options), name);
    let Some((kind, of)) = name.split_once(':') else { return Ok(filtered(options.event_name(name))) };
    let shown = format!("{kind} {of}");
    let added = match (kind, of.rsplit_once(':')) {
        ("kprobe", _) => options.kprobe(of),
        ("kretprobe", _) => options.kretprobe(of),
        ("uprobe", Some((path, symbol))) => options.uprobe(path, function(path, symbol)?).named(&shown),
        ("uretprobe", Some((path, symbol))) => options.uretprobe(path, function(path, symbol)?).named(&shown),
        ("uprobe", None) => options.uprobe(of, 0),
        ("uretprobe", None) => options.uretprobe(of, 0),
        ("usdt", Some((file, probe))) => {
            let Some((path, provider)) = file.rsplit_once(':') else { return Ok(filtered(options.tracepoint(name))) };
            return Ok(usdt(path, provider, probe)?.iter().fold(options, |options, place| {
                filtered(options.uprobe(path, place.offset).semaphore(place.semaphore).named(&shown))
            }));
        }
        _ => options.tracepoint(name),
    };
    Ok(filtered(added))
}

/// An event that is traced.
struct Known {
    name: String,
    format: Option<Format>,
    /// The thread that writes it, by its number in the first PID namespace.
    thread: Option<Field>,
    kernel: Rc<Kernel>,
    numbers: Rc<RefCell<Numbers>>,
}

impl Known {
    fn new(rings: &Rings, source: usize, kernel: &Rc<Kernel>, numbers: &Rc<RefCell<Numbers>>) -> Self {
        let of = &rings.sources()[source];
        let name = of.tracepoint().unwrap_or(of.name()).to_owned();
        let format = Format::of(rings, source).ok();
        let thread = format.as_ref().and_then(|format| format.field("common_pid").ok());
        Self { name, format, thread, kernel: kernel.clone(), numbers: numbers.clone() }
    }

    /// The process and the thread that wrote a record. Once the kernel has released a thread, the record of its last
    /// switch has a number in its own field alone.
    fn who(&self, record: &Record<'_>) -> Option<(u32, u32)> {
        let (pid, tid) = record.pid_tid()?;
        let Some(thread) = self.thread.as_ref().and_then(|field| field.uint(record)) else { return Some((pid, tid)) };
        match self.numbers.borrow_mut().learn(thread as u32, tid) {
            _ if tid != ENDED => Some((pid, tid)),
            // Outside of this PID namespace threads have no number here.
            Some(known) if known >= OUTSIDE => Some((0, 0)),
            Some(known) => Some((pid, known)),
            None => Some((pid, tid)),
        }
    }

    fn line(&self, record: &Record<'_>) -> Option<String> {
        self.format.as_ref()?.line_with(record, |address| self.kernel.look(address))
    }

    fn text(&self, record: &Record<'_>) -> String {
        match self.line(record) {
            Some(line) => format!("{}: {line}", self.name),
            None => format!("{}: ip={:#x}", self.name, record.ip().unwrap_or(0)),
        }
    }

    fn json(&self, record: &Record<'_>) -> (Value, Exact) {
        let mut exact = Exact::default();
        let Some(format) = &self.format else {
            return (json!({ "event": self.name, "ip": record.ip() }), exact);
        };
        let own = format
            .fields()
            .iter()
            .filter(|field| field.name() == "common_flags" || !field.name().starts_with("common_"));
        let fields: Map<_, _> = own.map(|field| pair(field, record, &mut exact)).collect();
        (json!({ "event": self.name, "fields": fields, "text": self.line(record) }), exact)
    }
}

fn take(
    event: &Event<'_>,
    kinds: &[Known],
    (lines, has_lines): (&mut Lines, bool),
    summary: Option<&mut Summary>,
    waits: &mut Option<u32>,
) -> io::Result<()> {
    let Item::Record(record) = event.item() else {
        *waits = None;
        return if has_lines { lines.notice(event) } else { Ok(()) };
    };
    if lines.names.take(&record) {
        // The process becomes the command, which is when the kernel gives it the command's name.
        if record.kind() == bindings::PERF_RECORD_COMM && record.body().u32(4) == *waits {
            *waits = None;
        }
        return Ok(());
    }
    let Some(known) = record.source().and_then(|source| kinds.get(source)) else { return Ok(()) };
    let Some((pid, tid)) = known.who(&record) else { return Ok(()) };
    if *waits == Some(tid) {
        return Ok(());
    }
    if let Some(summary) = summary {
        summary.add(&known.name, None, false);
    }
    if !has_lines {
        return Ok(());
    }
    lines.line(At::new(event, pid, tid), || known.text(&record), || known.json(&record))
}
