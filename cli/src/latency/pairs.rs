//! `latency` between two tracepoints that have a field in common.

use super::{Args, Rows, finish, live};
use crate::failure::Outcome;
use crate::key::{self, value};
use crate::names::{NAMING, Names};
use crate::session::{Session, Tell};
use perf_event_open_sys::bindings;
use perfweave::{Item, Rings};
use perfweave_events::EventOptions;
use std::collections::HashMap;

pub fn run(args: &Args, [from, to]: [&String; 2], by: &str) -> Outcome {
    key::is_one([from, to])?;
    let child = args.target.start()?;
    let mut options = Rings::options().tracepoint(from);
    if from != to {
        options = options.tracepoint(to);
    }
    let options = options.records(NAMING).sample(bindings::PERF_SAMPLE_TID).bytes(args.common.buffer);
    let rings = args.target.limit(options, child.as_ref()).open()?;
    let end = usize::from(from != to);
    let fields = key::fields(&rings, [0, end], by)?;
    let what = format!("{} -> {}", short_name(from), short_name(to));
    let (mut rows, mut names, mut begun) = (Rows::default(), Names::now(), HashMap::new());
    let (mut out, mut live) = live(args);
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    session.until_the_end_of(args.target.watched());
    session.each(|tell| {
        let Tell::Event(event) = tell else { return live.draw(&mut out, |most| rows.text(args, most)) };
        if rows.is_missing(event) {
            // The end of one may be lost, and the next end would be taken for it.
            begun.clear();
        }
        let Item::Record(record) = event.item() else { return Ok(()) };
        let (Some(source), Some(time)) = (record.source(), event.key()) else { return Ok(()) };
        if names.take(&record) {
            return Ok(());
        }
        if source == end
            && let Some(value) = value(&fields[1], &record)
            // A late end is not that of what began after it.
            && begun.get(&value).is_some_and(|since| *since <= time)
            && let Some(since) = begun.remove(&value)
        {
            rows.add(time, (what.clone(), None), time - since);
        }
        let tid = record.pid_tid().map_or(0, |(_, tid)| tid);
        let is_meant = source == 0 && args.comm.as_ref().is_none_or(|comm| names.of(tid) == comm);
        if let Some(value) = is_meant.then(|| value(&fields[0], &record)).flatten() {
            // What begins twice without an end, such as a wake-up of one that is awake, had no end the first time.
            begun.entry(value).and_modify(|since| *since = time.max(*since)).or_insert(time);
        }
        Ok(())
    })?;
    live.end(&mut out)?;
    finish(args, &mut session, &mut rows, out)
}

/// Without the category.
fn short_name(event: &str) -> &str {
    event.split_once(':').map_or(event, |(_, name)| name)
}
