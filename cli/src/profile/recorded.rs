//! `profile` of a recording: the samples of one of its events.

use super::short::Short;
use super::{Args, Counted, print, process};
use crate::convert::names::Names;
use crate::convert::names::{Frame, Mode};
use crate::convert::not_unwound;
use crate::convert::view::View;
use crate::deferred::Part;
use crate::failure::{Failure, Outcome};
use crate::out::Out;
use crate::out::say;
use crate::recorded::{Recorded, name};
use crate::trace::events::is_of;
use perf_event_open_sys::bindings;
use perfweave::{Record, Rings, Source};
use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;

/// The events by which CPU time is sampled, in perf's words.
const OF_TIME: [&str; 4] = ["cycles", "cpu-clock", "task-clock", "cpu-cycles"];

pub fn run(args: &Args, path: &Path) -> Outcome {
    let mut family = args.whom.recorded()?;
    let mut recorded = Recorded::open_for_stacks(path)?;
    let source = source(recorded.rings(), args.event.as_deref())?;
    let (mut names, mut samples, mut chains) = (Names::default(), HashMap::<Vec<String>, u64>::new(), 0u64);
    let mut short = Short::default();
    recorded.each(|event, view| {
        view.learn(event);
        names.learn(event);
        let is_meant = is_of(&mut family, event);
        let is_sample =
            |record: &Record<'_>| record.source() == Some(source) && record.kind() == bindings::PERF_RECORD_SAMPLE;
        let Some(record) = event.record().filter(|record| is_meant && is_sample(record)) else { return Ok(()) };
        // A CPU that is idle runs process 0.
        let Some((pid, _)) = record.pid_tid().filter(|(pid, _)| *pid != 0) else { return Ok(()) };
        let comm = view.comm(pid).map_or("?".into(), String::from_utf8_lossy);
        if args.comm.as_ref().is_some_and(|only| *only != comm) {
            return Ok(());
        }
        chains += u64::from(record.callchain().is_some());
        let process = process(&comm, pid);
        let frames = names.frames(&record, event.key(), view);
        if record.callchain().is_some() && view.deferred.part(&record) != Part::Missing {
            let programs = frames.iter().filter(|frame| frame.mode == Mode::User);
            short.count(programs.map(|frame| leads_on(&mut names, pid, frame, event.key(), view)), 1);
        }
        let functions = frames.into_iter().rev().flat_map(|frame| names.counted(Some(pid), frame, event.key(), view));
        *samples.entry(std::iter::once(process).chain(functions).collect()).or_default() += 1;
        Ok(())
    })?;
    names.tell();
    if let Some(words) = short.hint().filter(|_| !has_copies(recorded.rings())) {
        say(format_args!("perfweave: {words}: record --call-graph dwarf unwinds them"));
    }
    let without =
        "the samples have no call chains: each is the function that ran alone\nhint: record with --call-graph (-g)";
    let is_flat = chains == 0 && !samples.is_empty();
    recorded.lacks(not_unwound(recorded.rings()).or(is_flat.then_some(without)));
    let mut stacks: Vec<Counted> = samples.into_iter().collect();
    stacks.sort();
    let mut out = Out::new();
    print(args, &stacks, &mut out)?;
    recorded.conclude(&mut out, args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether it is known how a frame of a process is unwound.
fn leads_on(names: &mut Names, pid: u32, frame: &Frame, time: Option<u64>, view: &View) -> super::short::Frame {
    names.leads_on(names.place(pid, frame.address), frame.is_caller, time, view)
}

/// Whether the samples have copies of stacks.
fn has_copies(rings: &Rings) -> bool {
    let stack = u64::from(bindings::PERF_SAMPLE_STACK_USER);
    rings.layouts().any(|layout| layout.sample_type() & stack != 0)
}

/// Whether an event samples CPU time.
pub fn is_of_time(source: &Source) -> bool {
    OF_TIME.contains(&name(source))
}

/// The event whose samples are counted: that which was asked for, or that of CPU time, or the only one there is.
fn source(rings: &Rings, wanted: Option<&str>) -> Result<usize, Failure> {
    // perf counts nothing by this one, but has its names and mappings from it.
    let names: Vec<_> = rings.sources().iter().map(name).collect();
    let known = || names.iter().enumerate().filter(|(_, name)| **name != "dummy");
    let has = || known().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
    let found = match wanted {
        Some(wanted) => known().find(|(_, name)| **name == wanted),
        None => {
            known().find(|(_, name)| OF_TIME.contains(name)).or_else(|| known().next().filter(|_| known().count() == 1))
        }
    };
    found.map(|(at, _)| at).ok_or_else(|| match wanted {
        Some(wanted) => {
            Failure::hinting(format_args!("the recording has no {wanted}"), format_args!("it has {}", has()))
        }
        None if known().count() == 0 => {
            Failure::hinting("the recording has no events", "record some: perfweave record -g")
        }
        None => Failure::hinting(
            "the recording has several events, and none of CPU time",
            format_args!("name one of them: -e {}", has().replace(", ", ", -e ")),
        ),
    })
}
