//! A sampling profiler: samples all CPUs, or one process, 99 times a second, and prints folded stacks of program and kernel.
//!
//! ```text
//! cargo run --release -p perfweave-profile -- --seconds 5 > folded          # inferno-flamegraph folded > flames.svg
//! cargo run --release -p perfweave-profile -- --pid 1234 --seconds 5
//! ```
//! It finds the names of a stack at its first sample, while its process still runs. Programs without frame pointers have short stacks.

use blazesym::symbolize::source::{Kernel, Process, Source};
use blazesym::symbolize::{Input, Symbolizer};
use perf_event_open_sys::bindings;
use perfweave::{Order, Reader, Rings, Sample, Stats};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
perfweave-profile [--seconds N] [--pid N]
  --seconds  how long to sample [5]
  --pid      this process alone";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perfweave-profile: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = pico_args::Arguments::from_env();
    if args.contains(["-h", "--help"]) {
        println!("{HELP}");
        return Ok(());
    }
    let time = Duration::try_from_secs_f64(args.opt_value_from_str("--seconds")?.unwrap_or(5.0))?;
    let pid = args.opt_value_from_str("--pid")?;
    if let [unknown, ..] = args.finish().as_slice() {
        return Err(format!("{unknown:?} is not understood\n{HELP}").into());
    }

    let options = Rings::options().event_name("cpu-clock").frequency(99).sample([Sample::Tid, Sample::Callchain]);
    let options = if let Some(pid) = pid { options.pid(pid) } else { options };
    let mut reader = Reader::new(options.open()?, Order::new().without_self())?;
    reader.set_deadline(Some(Instant::now() + time))?;
    eprintln!("sampling");

    let (names, mut folded, mut unknown) = (Names::default(), HashMap::<String, u64>::new(), 0u64);
    // The folded stack, for each stack of addresses of a process.
    let mut known = HashMap::<(u32, Vec<u64>), String>::new();
    while let Some(event) = reader.next()? {
        // Losses and damage are counted at the end.
        let Some(record) = event.record() else { continue };
        let (Some((pid, _)), Some(chain)) = (record.pid_tid(), record.callchain()) else {
            unknown += 1;
            continue;
        };
        // A CPU that is idle runs process 0.
        if pid != 0 {
            let stack = match known.entry((pid, chain.collect())) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let stack = names.fold(pid, &new.key().1);
                    new.insert(stack)
                }
            };
            *folded.entry(stack.clone()).or_default() += 1;
        }
    }
    let mut folded: Vec<_> = folded.into_iter().collect();
    folded.sort();
    folded.iter().for_each(|(stack, times)| println!("{stack} {times}"));
    let (Stats { lost, late, damaged, left_out, .. }, samples) =
        (reader.stats(), folded.iter().map(|(_, times)| times));
    eprintln!(
        "{} samples; lost {lost}, late {late}, damaged {damaged}, without a stack {unknown}, left out {left_out}",
        samples.sum::<u64>()
    );
    Ok(())
}

/// Finds the names of addresses. It caches the symbols of programs and of the kernel.
#[derive(Default)]
struct Names(Symbolizer);

impl Names {
    /// `program;main;...;innermost`.
    fn fold(&self, pid: u32, chain: &[u64]) -> String {
        let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let (program, kernel) = (Source::Process(Process::new(pid.into())), Source::Kernel(Kernel::default()));
        let (mut source, mut innermost, mut frames) = (&program, true, Vec::new());
        for &address in chain {
            if address >= bindings::PERF_CONTEXT_MAX {
                // A marker, which says to what the addresses after it belong.
                source = if address == bindings::PERF_CONTEXT_KERNEL { &kernel } else { &program };
                innermost = true;
                continue;
            }
            // All but the innermost are return addresses, which may lie after the end of the function.
            let called = if innermost { address } else { address.saturating_sub(1) };
            let name = self.0.symbolize_single(source, Input::AbsAddr(called)).ok();
            let name = name.and_then(|found| Some(found.as_sym()?.name.to_string()));
            frames.push(name.unwrap_or_else(|| "[unknown]".into()));
            innermost = false;
        }
        frames.push(format!("{}:{pid}", command.trim_end()));
        frames.reverse();
        frames.join(";")
    }
}
