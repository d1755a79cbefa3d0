//! How long each process is off the CPU: how often its threads left a CPU and came back, how long in all, how much of
//! it they were ready to run, and the longest. A thread is ready from its wake-up on, or if it was taken off its CPU.
//!
//! ```text
//! cargo run --release --example offcpu -- --seconds 5
//! cargo run --release --example offcpu -- --pid 1234        # of one process, until it ends
//! ```
//! `--each` prints each period off the CPU when it ends: the time when the thread came back, the thread's number, the
//! length, and how much of it the thread was ready, in nanoseconds.

use perf_event_open_sys::bindings;
use perfweave::{Account, Item, Order, Reader, Rings};
use perfweave_events::{EventOptions, Format, WithoutSelf};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
offcpu [--seconds N] [--pid N] [--each]
  --seconds  how long to trace [5; with --pid until the process ends]
  --pid      this process alone
  --each     print each time off the CPU as well, when it is over";

#[derive(Default)]
struct Process {
    name: String,
    times: u64,
    total: u64,
    ready: u64,
    longest: u64,
}

/// A thread that has left its CPU.
struct Away {
    pid: u32,
    since: u64,
    /// It was taken off its CPU.
    could_run: bool,
    /// Its last wake-up, which may come while the thread is still on its way to sleep.
    woken: Option<u64>,
}

/// `prev_state` of threads that have ended: zombie and dead. The next thread of such a number is another.
const ENDED: u64 = 0x20 | 0x10;

impl Away {
    /// How long it was off the CPU, and how much of that it was ready. Without a wake-up nothing says when it was
    /// ready.
    fn until(&self, time: u64) -> (u64, u64) {
        let ready = if self.could_run { Some(self.since) } else { self.woken.map(|woken| woken.max(self.since)) };
        (time.saturating_sub(self.since), ready.map_or(0, |ready| time.saturating_sub(ready)))
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("offcpu: {error}");
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
    let (only, each): (Option<u32>, _) = (args.opt_value_from_str("--pid")?, args.contains("--each"));
    let seconds = args.opt_value_from_str("--seconds")?.or(if only.is_none() { Some(5.0) } else { None });
    let time = seconds.map(Duration::try_from_secs_f64).transpose()?;
    if let [unknown, ..] = args.finish().as_slice() {
        return Err(format!("{unknown:?} is not understood\n{HELP}").into());
    }

    if let Some(pid) = only.filter(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
        return Err(format!("there is no process {pid}").into());
    }

    let options = Rings::options().tracepoint("sched:sched_switch").tracepoint("sched:sched_waking");
    let rings =
        options.records([bindings::PERF_RECORD_EXIT]).sample(bindings::PERF_SAMPLE_TID).bytes(4 << 20).open()?;
    let (switch, waking) = (Format::of(&rings, 0)?, Format::of(&rings, 1)?);
    let [name, state, prev, next] = ["prev_comm", "prev_state", "prev_pid", "next_pid"].map(|name| switch.field(name));
    let (name, state, prev, next, woken) = (name?, state?, prev?, next?, waking.field("pid")?);
    let mut reader = Reader::new(rings, Order::new().without_self())?;
    reader.handle().set_deadline(time.map(|time| Instant::now() + time))?;
    eprintln!("tracing");

    let (mut away, mut processes) = (HashMap::<u64, Away>::new(), HashMap::<u32, Process>::new());
    // The last wake-ups of threads that have not left their CPU.
    let mut held = HashMap::new();
    let handle = reader.handle();
    while let Some(event) = reader.next()? {
        if let Item::Flushed { .. } = event.item() {
            break; // All that it wrote is out.
        }
        let Some(record) = event.record() else {
            held.clear();
            away.clear(); // Records are lost or damaged. It is not known which threads are away.
            // One of them may be the record of its end.
            if only.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                handle.flush()?;
            }
            continue;
        };
        let (Some((pid, tid)), Some(time)) = (record.pid_tid(), record.time()) else { continue };
        if record.kind() == bindings::PERF_RECORD_EXIT && only == Some(tid) {
            break;
        }
        match (record.source(), woken.uint(&record)) {
            (Some(0), _) => {}
            (Some(1), Some(woken)) => {
                match away.get_mut(&woken) {
                    Some(away) => away.woken = Some(time),
                    None => drop(held.insert(woken, time)),
                }
                continue;
            }
            _ => continue,
        }
        let [Some(prev), Some(next), Some(state)] = [&prev, &next, &state].map(|field| field.uint(&record)) else {
            continue;
        };
        held.remove(&next);
        if let Some(thread) = away.remove(&next) {
            let (process, (off, ready)) = (processes.entry(thread.pid).or_default(), thread.until(time));
            (process.times, process.total) = (process.times + 1, process.total + off);
            (process.ready, process.longest) = (process.ready + ready, process.longest.max(off));
            if each {
                println!("{time} {next} {off} {ready}");
            }
        }
        // The thread that leaves writes the switch. The idle thread is 0. Half of our own switches are left out.
        let (woken, has_ended) = (held.remove(&prev), state & ENDED != 0);
        if prev != 0 && tid != 0 && pid != std::process::id() && !has_ended && only.is_none_or(|only| only == pid) {
            // A process may call itself by a command to the terminal, or by a line of its own.
            let name = name.text(&record).unwrap_or_default().escape_debug().to_string();
            processes.entry(pid).or_default().name = name;
            away.insert(prev, Away { pid, since: time, could_run: state & 0xff == 0, woken });
        }
    }
    println!("{:>8} {:<16} {:>8} {:>12} {:>12} {:>12}", "process", "", "times", "off CPU ms", "ready ms", "longest ms");
    let mut processes: Vec<_> = processes.into_iter().collect();
    processes.sort_by_key(|(pid, process)| (Reverse(process.total), *pid));
    for (pid, process) in processes.into_iter().filter(|(_, all)| all.times > 0) {
        let [off, ready, longest] = [process.total, process.ready, process.longest].map(|time| time as f64 / 1e6);
        println!("{pid:>8} {:<16} {:>8} {off:>12.3} {ready:>12.3} {longest:>12.3}", process.name, process.times);
    }
    let status = reader.status();
    let (Account { yielded: records, lost, late, damaged, .. }, left_out) = (status.total(), status.left_out);
    eprintln!("{records} records; lost {lost}, late {late}, damaged {damaged}, left out {left_out}");
    Ok(())
}
