//! Where CPU time goes: stacks of programs and of the kernel, sampled.

mod compiled;
pub mod names;

use crate::args::{Common, Target};
use crate::convert::names::frames;
use crate::failure::{Failure, Outcome};
use crate::numbers::Numbers;
use crate::out::{Out, frame, line};
#[cfg(feature = "svg")]
use crate::output;
use crate::session::{Session, Tell};
use names::Names;
use perf_event_open_sys::bindings;
use perfweave::{Event, Rings};
use serde_json::json;
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
    /// Samples a second on each CPU. A number that does not divide 1000 keeps out of step with periodic work
    #[arg(short = 'F', long, value_name = "HERTZ", default_value_t = 99, value_parser = clap::value_parser!(u64).range(1..))]
    frequency: u64,
    /// The event to sample by, as perf names it, such as cycles, page-faults or sched:sched_switch
    #[arg(short, long, value_name = "EVENT", default_value = "cpu-clock")]
    event: String,
    /// Only samples of processes with this name
    #[arg(short, long, value_name = "NAME")]
    comm: Option<String>,
    /// Write a flame graph to this file instead, which only this user may read
    #[cfg(feature = "svg")]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    common: Common,
}

const HELP: &str = "\
  perfweave profile --seconds 5 --svg flames.svg      the whole machine as a flame graph
  perfweave profile --pid 1234                        one process until Ctrl-C
  perfweave profile -- make -j4                       a command until it ends

Names are those of the process while it runs, and of the files that it had mapped when it has ended. A frame without a function has the name of
its file: [libm.so.6]. Functions that a runtime compiles have names if it writes /tmp/perf-PID.map as the process's own user. Programs without
frame pointers have short stacks. What a process does when it has no number any more is [ended]'s. In a PID namespace, all processes outside of
it are one: [outside].";

pub fn run(args: Args) -> Outcome {
    let child = args.target.start()?;
    let options = match args.event.split_once(':') {
        Some(_) => Rings::options().tracepoint(&args.event),
        None => Rings::options().event_name(&args.event).frequency(args.frequency),
    };
    // Of a process that has ended when its samples are read, these records say its name, and what it had mapped.
    let options = options
        .records([bindings::PERF_RECORD_COMM, bindings::PERF_RECORD_MMAP2, bindings::PERF_RECORD_FORK])
        .sample(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_CALLCHAIN);
    let rings = args.target.limit(options, child.as_ref()).bytes(args.common.buffer).open()?;
    let mut stacks = Stacks::new(&rings, args.comm.clone());
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    session.each(|tell| {
        if let Tell::Event(event) = tell {
            stacks.take(event);
        }
        Ok(())
    })?;
    let stacks = stacks.sorted();
    print(&args, &stacks)?;
    let summary = session.summary(args.common.json)?;
    if args.common.json {
        println!("{summary}");
    } else {
        eprintln!("{summary}")
    }
    Ok(session.status())
}

fn print(args: &Args, stacks: &[Counted]) -> Result<(), Failure> {
    #[cfg(feature = "svg")]
    if let Some(path) = &args.svg {
        return svg(path, stacks);
    }
    let mut out = Out::new();
    for (stack, samples) in stacks {
        if args.common.json {
            line(&mut out, format_args!("{}", json!({ "stack": stack, "samples": samples })))?;
        } else {
            line(&mut out, format_args!("{} {samples}", folded(stack)))?;
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
    crate::out::say(format_args!("{}: a flame graph, which a browser shows", path.display()));
    Ok(())
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
    /// By process: the names of each stack of addresses, the process first and the innermost function last.
    known: HashMap<u32, HashMap<Vec<u64>, Option<Vec<String>>>>,
    samples: HashMap<Vec<String>, u64>,
    /// Whether all processes have numbers here.
    are_all_here: bool,
}

impl Stacks {
    fn new(rings: &Rings, only: Option<String>) -> Self {
        let are_all_here = Numbers::are_the_kernels();
        Self { only, names: Names::new(rings), known: HashMap::new(), samples: HashMap::new(), are_all_here }
    }

    /// Losses and damage are in the summary: a sample that is missing changes no other.
    fn take(&mut self, event: &Event<'_>) {
        let Some(record) = event.record() else { return };
        if self.names.take(event, &record) {
            // It may have another name, or be another program.
            if record.kind() == bindings::PERF_RECORD_COMM {
                record.body().u32(0).map(|pid| self.known.remove(&pid));
            }
            return;
        }
        let (Some((pid, _)), Some(chain)) = (record.pid_tid(), record.callchain()) else { return };
        // A CPU that is idle runs process 0. In a PID namespace, so does all that is outside.
        if pid == 0 && self.are_all_here {
            return;
        }
        let stack = match self.known.entry(pid).or_default().entry(chain.collect()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let frames = frames(&record);
                let is_wanted = match &self.only {
                    Some(only) => pid != 0 && self.names.threads.of(pid) == only,
                    None => pid != 0 || self.names.are_outside(&frames),
                };
                new.insert(is_wanted.then(|| self.names.stack(pid, &frames, event.key())))
            }
        };
        if let Some(stack) = stack {
            *self.samples.entry(stack.clone()).or_default() += 1;
        }
    }

    fn sorted(self) -> Vec<Counted> {
        let mut all: Vec<_> = self.samples.into_iter().collect();
        all.sort();
        all
    }
}
