//! Where CPU time goes: stacks of programs and of the kernel, sampled.

mod names;

use crate::args::{Common, Target};
use crate::failure::{Failure, Outcome};
use crate::out::Out;
use crate::session::{Session, Tell};
use names::Names;
use perfweave::{Event, Rings, Sample};
use serde_json::json;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write;
#[cfg(feature = "svg")]
use std::path::{Path, PathBuf};

/// Samples stacks of programs and of the kernel, and prints how often each was seen
///
/// One line for each stack, as flame graph tools take them: process, outermost function; ...; innermost function, and the number of samples.
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
    /// Write a flame graph to this file instead
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

Names are found while the process runs. Programs without frame pointers have short stacks.";

pub fn run(args: Args) -> Outcome {
    let child = args.target.start()?;
    let options = match args.event.split_once(':') {
        Some(_) => Rings::options().tracepoint(&args.event),
        None => Rings::options().event_name(&args.event).frequency(args.frequency),
    };
    let options = args.target.limit(options.sample([Sample::Tid, Sample::Callchain]), child.as_ref());
    let rings = options.bytes(args.common.buffer).open()?;
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    let mut stacks = Stacks { only: args.comm.clone(), ..Stacks::default() };
    session.each(|tell| {
        if let Tell::Event(event) = tell {
            stacks.take(event);
        }
        Ok(())
    })?;
    let stacks = stacks.folded();
    print(&args, &stacks)?;
    let summary = session.summary(args.common.json)?;
    if args.common.json {
        println!("{summary}")
    } else {
        eprintln!("{summary}")
    }
    Ok(session.status())
}

fn print(args: &Args, stacks: &[(String, u64)]) -> Result<(), Failure> {
    #[cfg(feature = "svg")]
    if let Some(path) = &args.svg {
        return svg(path, stacks);
    }
    let mut out = Out::new();
    for (stack, samples) in stacks {
        if args.common.json {
            let frames: Vec<_> = stack.split(';').collect();
            writeln!(out, "{}", json!({ "stack": frames, "samples": samples }))?;
        } else {
            writeln!(out, "{stack} {samples}")?;
        }
    }
    Ok(out.flush()?)
}

#[cfg(feature = "svg")]
fn svg(path: &Path, stacks: &[(String, u64)]) -> Result<(), Failure> {
    let say = |error: &dyn std::fmt::Display| Failure::new(format_args!("{}: {error}", path.display()));
    if stacks.is_empty() {
        return Err(Failure::hinting(
            "there are no samples to draw",
            "nothing ran, or not for long enough: see --seconds and --frequency",
        ));
    }
    let lines: Vec<_> = stacks.iter().map(|(stack, samples)| format!("{stack} {samples}")).collect();
    let mut options = inferno::flamegraph::Options::default();
    options.count_name = "samples".into();
    let file = std::fs::File::create(path).map_err(|error| say(&error))?;
    let mut file = std::io::BufWriter::new(file);
    inferno::flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut file)
        .map_err(|error| say(&error))?;
    file.flush().map_err(|error| say(&error))?;
    eprintln!("{}: a flame graph, which a browser shows", path.display());
    Ok(())
}

/// Samples by stack.
#[derive(Default)]
struct Stacks {
    only: Option<String>,
    names: Names,
    /// The folded stack, for each stack of addresses of a process.
    known: HashMap<(u32, Vec<u64>), Option<String>>,
    samples: HashMap<String, u64>,
}

impl Stacks {
    /// Losses and damage are in the summary: a sample that is missing changes no other.
    fn take(&mut self, event: &Event<'_>) {
        let Some(record) = event.record() else { return };
        let (Some((pid, _)), Some(chain)) = (record.pid_tid(), record.callchain()) else { return };
        // A CPU that is idle runs process 0.
        if pid == 0 {
            return;
        }
        let stack = match self.known.entry((pid, chain.collect())) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let (name, chain) = (names::of_process(pid), &new.key().1);
                let is_wanted = self.only.as_ref().is_none_or(|only| *only == name);
                let stack = is_wanted.then(|| self.names.fold(pid, &name, chain));
                new.insert(stack)
            }
        };
        if let Some(stack) = stack {
            *self.samples.entry(stack.clone()).or_default() += 1;
        }
    }

    fn folded(self) -> Vec<(String, u64)> {
        let mut folded: Vec<_> = self.samples.into_iter().collect();
        folded.sort();
        folded
    }
}
