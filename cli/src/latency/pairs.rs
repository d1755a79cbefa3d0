//! `latency` between two tracepoints that have a field in common.

use super::{Args, Rows, finish, finish_recorded, live};
use crate::failure::Outcome;
use crate::key::{self, Value, value};
use crate::names::{NAMING, Names};
use crate::recorded::{self, Recorded};
use crate::session::{Session, Tell};
use crate::trace::events::is_of;
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Rings};
use perfweave_events::{EventOptions, Field};
use std::collections::HashMap;
use std::path::Path;

pub fn run(args: &Args, events: [&String; 2], by: &str) -> Outcome {
    key::is_one(events)?;
    match &args.input.input {
        Some(path) => of_recording(args, events, by, path),
        None => of_live(args, events, by),
    }
}

/// Of what happens now.
fn of_live(args: &Args, [from, to]: [&String; 2], by: &str) -> Outcome {
    let child = args.target.start()?;
    let mut options = Rings::options().tracepoint(from);
    if from != to {
        options = options.tracepoint(to);
    }
    let options = options.records(NAMING).sample(bindings::PERF_SAMPLE_TID).bytes(args.common.buffer);
    let rings = args.target.limit(options, child.as_ref()).open()?;
    let sources = [0, usize::from(from != to)];
    let mut joined = Joined::new([from, to], sources, key::fields(&rings, sources, by)?, Names::now());
    let (mut out, mut live) = live(args);
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    session.until_the_end_of(args.target.watched());
    session.each(|tell| {
        let Tell::Event(event) = tell else { return live.draw(&mut out, |most| joined.rows.text(args, most)) };
        joined.event(args, event);
        Ok(())
    })?;
    live.end(&mut out)?;
    finish(args, &mut session, &mut joined.rows, out)
}

/// Of a recording.
fn of_recording(args: &Args, [from, to]: [&String; 2], by: &str, path: &Path) -> Outcome {
    args.target.refuse_cgroup()?;
    let mut recorded = Recorded::open(path)?;
    let sources = [recorded.place(from)?, recorded.place(to)?];
    let fields = key::fields(recorded.rings(), sources, by)?;
    let mut joined = Joined::new([from, to], sources, fields, Names::recorded());
    let mut family = recorded::family(args.target.pid, args.target.tid);
    recorded.each(|event, _| {
        if is_of(&mut family, event) {
            joined.event(args, event);
        }
        Ok(())
    })?;
    finish_recorded(args, &mut recorded, &mut joined.rows)
}

/// Begins that have no end yet, and the times of those that have one.
struct Joined {
    rows: Rows,
    names: Names,
    /// Of the event at which a time begins, and of that at which it ends.
    sources: [usize; 2],
    fields: [Field; 2],
    what: String,
    begun: HashMap<Value, u64>,
}

impl Joined {
    fn new([from, to]: [&String; 2], sources: [usize; 2], fields: [Field; 2], names: Names) -> Self {
        let what = format!("{} -> {}", short_name(from), short_name(to));
        Self { rows: Rows::default(), names, sources, fields, what, begun: HashMap::new() }
    }

    fn event(&mut self, args: &Args, event: &Event<'_>) {
        let Self { rows, names, sources: [start, end], fields, what, begun } = self;
        if rows.is_missing(event) {
            // The end of one may be lost, and the next end would be taken for it.
            begun.clear();
        }
        let Item::Record(record) = event.item() else { return };
        let (Some(source), Some(time)) = (record.source(), event.key()) else { return };
        if names.take(&record) {
            return;
        }
        if source == *end
            && let Some(value) = value(&fields[1], &record)
            // A late end is not that of what began after it.
            && begun.get(&value).is_some_and(|since| *since <= time)
            && let Some(since) = begun.remove(&value)
        {
            rows.add(time, (what.clone(), None), time - since);
        }
        let tid = record.pid_tid().map_or(0, |(_, tid)| tid);
        let is_meant = source == *start && args.comm.as_ref().is_none_or(|comm| names.of(tid) == comm);
        if let Some(value) = is_meant.then(|| value(&fields[0], &record)).flatten() {
            // What begins twice without an end, such as a wake-up of one that is awake, had no end the first time.
            begun.entry(value).and_modify(|since| *since = time.max(*since)).or_insert(time);
        }
    }
}

/// Without the category.
fn short_name(event: &str) -> &str {
    event.split_once(':').map_or(event, |(_, name)| name)
}
