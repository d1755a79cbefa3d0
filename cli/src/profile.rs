//! Where CPU time goes: stacks of programs and of the kernel, sampled.

pub mod compiled;
pub mod names;
mod recorded;
pub mod short;

use crate::args::Common;
use crate::convert::Progress;
use crate::convert::names::{Frame, cookie, of_kernel, of_program};
use crate::deferred::{Parts, Told, Waits};
use crate::failure::{Failure, Outcome};
use crate::modifiers::Modifiers;
use crate::numbers::ENDED;
use crate::numbers::Numbers;
use crate::out::{Out, frame, line, say};
#[cfg(feature = "svg")]
use crate::output;
use crate::recorded::Input;
use crate::sampled::{Chains, Mode, Rate, Whom, modified, records};
use crate::session::{Session, Tell};
use crate::trace::events::{event, is_of, is_probe};
use names::{At, Names, are_outside};
use perf_event_open_sys::bindings;
use perfweave::{Event, Record, RingOptions, Rings};
pub use recorded::is_of_time;
use serde_json::json;
use short::Short;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write;
#[cfg(feature = "svg")]
use std::path::{Path, PathBuf};

/// Samples stacks of programs and of the kernel, and prints how often each was seen
///
/// One line for each stack, as flame graph tools take them: process, outermost function; ...; innermost function, and
/// the number of samples.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    rate: Rate,
    #[command(flatten)]
    chains: Chains,
    /// The event to sample by, as trace takes it: cycles, page-faults, sched:sched_switch, kprobe:do_exit,
    /// uprobe:FILE:FUNCTION [cpu-clock; of a recording: that of CPU time]
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// Only samples of processes with this name
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// Write a flame graph to this file instead, which only this user may read
    #[cfg(feature = "svg")]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    common: Common,
}

/// Samples a second, unless told otherwise.
const FREQUENCY: u64 = 99;

const HELP: &str = "\
  perfweave profile --seconds 5 --svg flames.svg      the whole machine as a flame graph
  perfweave profile --pid 1234                        one process until Ctrl-C
  perfweave profile -- make -j4                       a command until it ends
  perfweave profile -i perf.data --svg flames.svg     a recording
  perfweave profile -e uprobe:/usr/lib/libc.so.6:malloc --seconds 5

Names are looked up at the end, in the files that a process had mapped when it was sampled. A frame without a function has the name of its file:
[libm.so.6]. Functions that a runtime compiles have names if it writes /tmp/perf-PID.map as the process's own user: up to 1 GiB of it is read, also
if it is taken away at the end. Programs without frame pointers have short stacks, unless --call-graph dwarf unwinds them. What a process does when
it has no number any more is [ended]'s. In a PID namespace, all processes outside of it are one: [outside].";

pub fn run(args: Args) -> Outcome {
    match &args.input.input {
        Some(path) => recorded::run(&args, path),
        None => live(&args),
    }
}

/// Of what happens now.
fn live(args: &Args) -> Outcome {
    let target = args.whom.target();
    let child = target.start()?;
    let by = args.event.as_deref().unwrap_or("cpu-clock");
    // The kernel does not let processes inherit probes. Then the rings have those of all processes.
    let is_limited = !is_probe(by) || target.process(child.as_ref()).is_none();
    let rings = args.whom.open(|mode| {
        let options = args.options(by, mode)?.bytes(mode.bytes(args.common.buffer));
        Ok(if is_limited { args.whom.limit(options, child.as_ref()) } else { options })
    })?;
    // After they were opened: what starts from now on has its records.
    let mut family = args.whom.family(child.as_ref(), is_limited)?;
    let mut stacks = Stacks::new(&rings, args.comm.clone());
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    session.each(|tell| {
        match tell {
            Tell::Event(event) if is_of(&mut family, event) => stacks.take(event),
            _ => {}
        }
        Ok(())
    })?;
    let stacks = stacks.sorted(args.chains.are_by_frame_pointers());
    print(args, &stacks, &mut Out::new())?;
    let summary = session.summary(args.common.json)?;
    if args.common.json {
        println!("{summary}");
    } else {
        eprintln!("{summary}")
    }
    Ok(session.status())
}

impl Args {
    /// The event to sample by.
    fn options(&self, by: &str, mode: Mode) -> Result<RingOptions, Failure> {
        let (name, modifiers) = Modifiers::split(by)?;
        let options = event(Rings::options(), name, None)?;
        let is_counted = name.contains(':') && !name.ends_with('/');
        let options = modified(self.rate.set(options, Some(FREQUENCY), is_counted), &modifiers, name, mode);
        let options = self.chains.set(options);
        // Of a process that has ended when its samples are read, these records say its name, and what it had mapped.
        let kinds = [bindings::PERF_RECORD_COMM, bindings::PERF_RECORD_MMAP2, bindings::PERF_RECORD_FORK];
        let options = self.chains.completed(records(options, kinds));
        Ok(options.sample(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_CALLCHAIN))
    }
}

fn print(args: &Args, stacks: &[Counted], out: &mut Out) -> Result<(), Failure> {
    #[cfg(feature = "svg")]
    if let Some(path) = &args.svg {
        return svg(path, stacks);
    }
    for (stack, samples) in stacks {
        if args.common.json {
            line(out, format_args!("{}", json!({ "stack": stack, "samples": samples })))?;
        } else {
            line(out, format_args!("{} {samples}", folded(stack)))?;
        }
    }
    Ok(out.flush()?)
}

#[cfg(feature = "svg")]
fn svg(path: &Path, stacks: &[Counted]) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(format_args!("{}: {error}", path.display()));
    if stacks.is_empty() {
        return Err(Failure::hinting(
            "there are no samples to draw",
            "nothing ran, or not for long enough: see --seconds and --frequency",
        ));
    }
    let lines: Vec<_> = stacks.iter().map(|(stack, samples)| format!("{} {samples}", folded(stack))).collect();
    let mut options = inferno::flamegraph::Options::default();
    options.count_name = "samples".into();
    let file = output::create(path).map_err(|error| failed(&error))?;
    let mut file = std::io::BufWriter::new(file);
    inferno::flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut file)
        .map_err(|error| failed(&error))?;
    file.flush().map_err(|error| failed(&error))?;
    say(format_args!("{}: a flame graph, which a browser shows", path.display()));
    Ok(())
}

/// What stands for a process in a stack.
fn process(comm: &str, pid: u32) -> String {
    if pid == ENDED { "[ended]".into() } else { format!("{comm}:{pid}") }
}

/// A stack, and in how many samples it was.
type Counted = (Vec<String>, u64);

/// `process;main;...;innermost`
fn folded(stack: &[String]) -> String {
    stack.iter().map(|name| frame(name)).collect::<Vec<_>>().join(";")
}

/// Samples by stack.
struct Stacks {
    only: Option<String>,
    names: Names,
    /// By process: the number of each chain of frames.
    known: HashMap<u32, HashMap<Vec<Frame>, usize>>,
    numbers: HashMap<Stack, usize>,
    /// How often each stack was seen, and when first.
    counts: Vec<(u64, Option<u64>)>,
    waits: Waits<Waiting>,
    parts: Parts,
    /// Whether all processes have numbers here.
    are_all_here: bool,
}

/// A sample whose program's part comes later: its process, the kernel's frames, and its time.
struct Waiting {
    pid: u32,
    frames: Vec<Frame>,
    time: Option<u64>,
}

/// So many samples wait at most: some 32 MB of them.
const WAITING: usize = 1 << 16;

/// A process by its number and name, and where its functions lie, outermost first.
type Stack = (u32, String, Vec<At>);

impl Stacks {
    fn new(rings: &Rings, only: Option<String>) -> Self {
        let (known, numbers, counts, parts) = Default::default();
        let (names, waits) = (Names::new(rings), Waits::new(WAITING));
        Self { only, names, known, numbers, counts, waits, parts, are_all_here: Numbers::are_the_kernels() }
    }

    /// Losses and damage are in the summary: a sample that is missing changes no other, but none waits across a loss.
    fn take(&mut self, event: &Event<'_>) {
        // Before its process has another name or mapping.
        let told = self.waits.event(event);
        self.count_told(told);
        let is_part = |record: &Record<'_>| record.kind() == bindings::PERF_RECORD_CALLCHAIN_DEFERRED;
        let Some(record) = event.record().filter(|record| !is_part(record)) else { return };
        if self.names.take(event, &record) {
            // It may have another name or another mapping, or be another program.
            record.body().u32(0).map(|pid| self.known.remove(&pid));
            return;
        }
        let Some((pid, _)) = record.pid_tid() else { return };
        // A CPU that is idle runs process 0. In a PID namespace, so does all that is outside.
        if pid == 0 && self.are_all_here {
            return;
        }
        // Before its stack is unwound, which is counted.
        if self.only.as_ref().is_some_and(|only| pid == 0 || self.names.threads.of(pid) != only) {
            return;
        }
        match cookie(&record).zip(record.pid_tid()) {
            Some((cookie, (_, tid))) => {
                self.names.meet(pid);
                let waiting = Waiting { pid, frames: of_kernel(&record), time: event.key() };
                let told = self.waits.sample(tid, cookie, waiting);
                self.count_told(told);
            }
            None => {
                let frames = self.names.frames(pid, &record, event.key());
                self.count(pid, frames, event.key());
            }
        }
    }

    /// Counts samples that wait no more for their program's part.
    fn count_told(&mut self, told: Vec<Told<Waiting>>) {
        for (Waiting { pid, mut frames, time }, chain) in told {
            self.parts.count(chain.is_none());
            frames.extend(of_program(chain.as_deref().unwrap_or_default()));
            self.count(pid, frames, time);
        }
    }

    fn count(&mut self, pid: u32, frames: Vec<Frame>, time: Option<u64>) {
        let number = match self.known.entry(pid).or_default().entry(frames) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let places = new.key().iter().rev().map(|frame| self.names.at(pid, *frame)).collect();
                let process = self.names.process(pid);
                let number = *self.numbers.entry((pid, process, places)).or_insert_with(|| {
                    self.counts.push((0, time));
                    self.counts.len() - 1
                });
                *new.insert(number)
            }
        };
        self.counts[number].0 += 1;
    }

    /// Looks up the names, of each place once.
    fn sorted(mut self, is_by_frame_pointers: bool) -> Vec<Counted> {
        let told = self.waits.end();
        self.count_told(told);
        let Self { mut names, numbers, counts, parts, .. } = self;
        names.read().chain(parts.note()).for_each(|note| say(format_args!("perfweave: {note}")));
        let (mut samples, mut short) = (HashMap::<Vec<String>, u64>::new(), Short::default());
        let progress = Progress::new("stacks have names");
        for ((pid, process, places), number) in numbers {
            let (count, time) = counts[number];
            let functions: Vec<_> = places.iter().flat_map(|at| names.names(*at, time)).collect();
            if is_by_frame_pointers {
                let programs = places.iter().rev().filter(|at| !matches!(at, At::Kernel(_)));
                short.count(programs.map(|at| names.leads_on(*at, time)), count);
            }
            progress.one();
            if pid != 0 || are_outside(&places, &functions) {
                let stack = std::iter::once(process).chain(functions).collect();
                *samples.entry(stack).or_default() += count;
            }
        }
        drop(progress);
        if let Some(words) = short.hint() {
            say(format_args!("perfweave: {words}: --call-graph dwarf unwinds them"));
        }
        let mut all: Vec<_> = samples.into_iter().collect();
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::Stacks;
    use crate::deferred::tests::{Machine, PROGRAM};
    use perfweave::{Order, Reader};
    use std::ops::ControlFlow;

    /// Of processes that are not there: two samples with their program's part, and one that is left without.
    #[test]
    fn a_sample_waits_for_its_programs_part() {
        let mut machine = Machine::new();
        let [one, other] = [[5_000_000; 2], [5_000_001; 2]];
        machine.sample(0, one, 5);
        machine.sample(1, one, 5);
        machine.sample(0, other, 5);
        machine.returns(1, one, 5, &PROGRAM);
        let rings = machine.0.rings();
        let mut stacks = Stacks::new(&rings, None);
        let mut reader = Reader::new(rings, Order::new().hold(machine.0.hold())).unwrap();
        let settled = reader.settle(|event| {
            stacks.take(&event);
            ControlFlow::<()>::Continue(())
        });
        assert_eq!(settled.unwrap(), ControlFlow::Continue(true));
        // What waits is not counted yet.
        assert_eq!((stacks.counts.iter().map(|count| count.0).sum::<u64>(), stacks.parts.note()), (2, None));
        let told = stacks.waits.end();
        stacks.count_told(told);
        let note = stacks.parts.note().unwrap();
        assert!(note.starts_with("1 of 3 stacks "), "{note}");
        let sorted: Vec<_> = stacks.sorted(false).into_iter().map(|(stack, count)| (stack.len(), count)).collect();
        // The process, two functions of the program, one of the kernel.
        assert_eq!(sorted, [(4, 2), (2, 1)]);
    }
}
