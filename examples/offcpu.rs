//! How long each process is off the CPU: how often its threads left a CPU and came back, how long in all, and the longest.
//!
//! ```text
//! cargo run --release --example offcpu -- --seconds 5
//! cargo run --release --example offcpu -- --pid 1234        # of one process, until it ends
//! ```
//! `--each` prints each period off the CPU when it ends: the time when the thread came back, the thread's number, and the length, in
//! nanoseconds.

use perfweave::{Item, Kind, Order, Reader, Rings, Sample, Stats};
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
    longest: u64,
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

    let options = Rings::options().tracepoint("sched:sched_switch").records([Kind::EXIT]).sample([Sample::Tid]);
    let rings = options.bytes(4 << 20).open()?;
    let (name, next) = (rings.format(0)?.field("prev_comm")?, rings.format(0)?.field("next_pid")?);
    let mut reader = Reader::new(rings, Order::new().without_self())?;
    reader.set_deadline(time.map(|time| Instant::now() + time))?;
    eprintln!("tracing");

    let (mut away, mut processes) = (HashMap::new(), HashMap::<u32, Process>::new());
    let handle = reader.handle();
    while let Some(event) = reader.next()? {
        if let Item::Flushed = event.item() {
            break; // All that it wrote is out.
        }
        let Some(record) = event.record() else {
            away.clear(); // Records are lost or damaged. It is not known which threads are away.
            // One of them may be the record of its end.
            if only.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                handle.flush()?;
            }
            continue;
        };
        let (Some((pid, tid)), Some(time)) = (record.pid_tid(), record.time()) else { continue };
        if record.kind() == Kind::EXIT && only == Some(tid) {
            break;
        }
        let Some(next) = next.uint(&record) else { continue };
        if let Some((pid, since)) = away.remove(&(next as u32)) {
            let (process, off): (&mut Process, u64) = (processes.entry(pid).or_default(), time.saturating_sub(since));
            (process.times, process.total) = (process.times + 1, process.total + off);
            process.longest = process.longest.max(off);
            if each {
                println!("{time} {next} {off}");
            }
        }
        // The thread that leaves writes the switch. The idle thread is 0. Half of our own switches are left out.
        if tid != 0 && pid != std::process::id() && only.is_none_or(|only| only == pid) {
            // A process may call itself by a command to the terminal, or by a line of its own.
            let name = name.text(&record).unwrap_or_default().escape_debug().to_string();
            processes.entry(pid).or_default().name = name;
            away.insert(tid, (pid, time));
        }
    }
    println!("{:>8} {:<16} {:>8} {:>12} {:>12}", "process", "", "times", "off CPU ms", "longest ms");
    let mut processes: Vec<_> = processes.into_iter().collect();
    processes.sort_by_key(|(pid, process)| (Reverse(process.total), *pid));
    for (pid, Process { name, times, total, longest }) in processes.into_iter().filter(|(_, all)| all.times > 0) {
        println!("{pid:>8} {name:<16} {times:>8} {:>12.3} {:>12.3}", total as f64 / 1e6, longest as f64 / 1e6);
    }
    let Stats { records, lost, late, damaged, left_out, .. } = reader.stats();
    eprintln!("{records} records; lost {lost}, late {late}, damaged {damaged}, left out {left_out}");
    Ok(())
}
