//! How long the system calls of one process take, by number: how often, median, 99th percentile and longest.
//!
//! ```text
//! cargo run --release --example latency -- --pid 1234 --seconds 5
//! cargo run --release --example latency -- ls -lR /usr
//! ```
//!
//! A command is traced from its first system call on; its input is empty. Without `--seconds` it is traced until the
//! process ends. `latency` exits with the status of a command.

use perf_event_open_sys::bindings;
use perfweave::{Account, Item, Order, Reader, Rings};
use perfweave_events::{EventOptions, Format};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const HELP: &str = "\
latency [--seconds N] --pid N
latency [--seconds N] [--] COMMAND [ARGUMENT]...
  --seconds  how long to trace [until the process ends]
  --pid      a process that runs already";

fn main() -> ExitCode {
    match run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("latency: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The command line. Options come before the command: arguments after it belong to it.
struct Asked {
    pid: Option<u32>,
    time: Option<Duration>,
    command: Vec<OsString>,
}

impl Asked {
    /// `None` if it asks only for help.
    fn from_command_line() -> Result<Option<Self>, Box<dyn std::error::Error>> {
        let (mut pid, mut time) = (None, None);
        let mut args = std::env::args_os().skip(1).peekable();
        while let Some(option) = args.next_if(|arg| arg.as_encoded_bytes().starts_with(b"-")) {
            let mut value = || {
                let given = args.next().and_then(|value| value.into_string().ok());
                given.ok_or_else(|| format!("{option:?} needs a number\n{HELP}"))
            };
            match option.to_str() {
                Some("-h" | "--help") => return Ok(None),
                Some("--pid") => pid = Some(value()?.parse()?),
                Some("--seconds") => time = Some(Duration::try_from_secs_f64(value()?.parse()?)?),
                Some("--") => break,
                _ => return Err(format!("{option:?} is not understood\n{HELP}").into()),
            }
        }
        let command: Vec<_> = args.collect();
        if pid.is_some() != command.is_empty() {
            return Err(format!("give a process or a command\n{HELP}").into());
        }
        Ok(Some(Self { pid, time, command }))
    }
}

fn run() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let Some(Asked { pid, time, command }) = Asked::from_command_line()? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    // The shell executes the command when its input ends. Tracing has begun by then.
    let mut shell = Command::new("sh");
    shell.args(["-c", "read end; exec \"$@\"", "sh"]).args(command).stdin(Stdio::piped());
    let mut child = if pid.is_none() { Some(shell.spawn()?) } else { None };
    let pid = pid.or(child.as_ref().map(|child| child.id())).unwrap_or(0);
    let options = Rings::options().tracepoint("raw_syscalls:sys_*").records([bindings::PERF_RECORD_EXIT]).pid(pid);
    let rings = options.bytes(4 << 20).open()?;
    // The pattern stands for sys_enter and sys_exit, in this order.
    let (thread, number) = (Format::of(&rings, 0)?.field("common_pid")?, Format::of(&rings, 0)?.field("id")?);
    let mut reader = Reader::new(rings, Order::new())?;
    reader.handle().set_deadline(time.map(|time| Instant::now() + time))?;
    eprintln!("tracing {pid}");
    drop(child.as_mut().and_then(|child| child.stdin.take()));

    let (mut inside, mut calls, mut seen) = (HashMap::new(), BTreeMap::<_, Vec<u64>>::new(), [0; 3]);
    let (mut has_ended, handle) = (false, reader.handle());
    while let Some(event) = reader.next()? {
        if let Item::Flushed { .. } = event.item() {
            break; // All that it wrote is out.
        }
        let Some(record) = event.record() else {
            inside.clear(); // Records are lost or damaged. It is not known which call returns next.
            // One of them may be the record of its end.
            has_ended = match &mut child {
                Some(child) => child.try_wait()?.is_some(),
                None => !Path::new(&format!("/proc/{pid}")).exists(),
            };
            if has_ended {
                handle.flush()?;
            }
            continue;
        };
        let (source, time) = (record.source().unwrap_or(2), record.time().unwrap_or(0));
        seen[source] += 1;
        if source == 0 {
            inside.insert(thread.uint(&record), (number.int(&record), time));
        } else if let (1, Some((number, since))) = (source, inside.remove(&thread.uint(&record))) {
            calls.entry(number).or_default().push(time.saturating_sub(since));
        } else if record.kind() == bindings::PERF_RECORD_EXIT && record.body().u32(8) == Some(pid) {
            has_ended = true; // struct { pid, ppid, tid, ptid, time }, and it is the first thread of the process.
            break;
        }
    }
    println!("{:>6} {:>9} {:>10} {:>10} {:>10}", "number", "calls", "p50 µs", "p99 µs", "max µs");
    for (number, mut times) in calls {
        times.sort_unstable();
        // The nearest rank: the least time that so many percent of the times do not exceed.
        let rank = |percent: usize| (times.len() * percent).div_ceil(100) - 1;
        let [p50, p99, max] = [50, 99, 100].map(|percent| times[rank(percent)] as f64 / 1e3);
        println!("{:>6} {:>9} {p50:>10.1} {p99:>10.1} {max:>10.1}", number.unwrap_or(-1), times.len());
    }
    let ([entered, returned, _], status) = (seen, reader.status());
    let (Account { lost, late, damaged, .. }, left_out) = (status.total(), status.left_out);
    eprintln!(
        "{entered} calls entered, {returned} returned; lost {lost}, late {late}, damaged {damaged}, left out {left_out}"
    );
    let Some(child) = child.as_mut().filter(|_| has_ended) else { return Ok(ExitCode::SUCCESS) };
    // A signal ends it without a status.
    let status = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(status.map_or(ExitCode::FAILURE, ExitCode::from))
}
