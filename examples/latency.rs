//! How long the system calls of one process take, by number: how often, median, 99th percentile and longest.
//!
//! ```text
//! cargo run --release --example latency -- --pid 1234 --seconds 5
//! cargo run --release --example latency -- ls -lR /usr
//! ```
//!
//! A command is traced from its first system call on; it reads nothing. Without `--seconds` until the process ends.

use perfweave::{Error, Kind, Order, Reader, Rings, Stats};
use std::collections::{BTreeMap, HashMap};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = pico_args::Arguments::from_env();
    let (pid, seconds) = (args.opt_value_from_str("--pid")?, args.opt_value_from_str("--seconds")?);
    // The shell becomes the command when its input ends, which is once it is traced.
    let mut shell = Command::new("sh");
    shell.args(["-c", "read end; exec \"$@\"", "sh"]).args(args.finish()).stdin(Stdio::piped());
    let mut child = if pid.is_none() { Some(shell.spawn()?) } else { None };
    let pid = pid.or(child.as_ref().map(|child| child.id())).unwrap_or(0);
    let options = Rings::options().tracepoint("raw_syscalls:sys_*").records([Kind::EXIT]).pid(pid);
    let rings = options.bytes(4 << 20).open()?;
    // The pattern stands for sys_enter and sys_exit, in this order.
    let (thread, number) = (rings.format(0)?.field("common_pid")?, rings.format(0)?.field("id")?);
    let mut reader = Reader::new(rings, Order::new())?;
    reader.set_deadline(seconds.map(|seconds: u64| Instant::now() + Duration::from_secs(seconds)))?;
    eprintln!("tracing {pid}");
    drop(child.as_mut().and_then(|child| child.stdin.take()));

    let (mut inside, mut calls, mut seen) = (HashMap::new(), BTreeMap::<_, Vec<u64>>::new(), [0; 3]);
    loop {
        let event = match reader.next() {
            Err(Error::Deadline) => break,
            event => event?,
        };
        let Some(record) = event.event().record() else {
            inside.clear(); // Records were lost. It is not known which call returns next.
            continue;
        };
        let (source, time) = (record.source().unwrap_or(2), record.time().unwrap_or(0));
        seen[source] += 1;
        if source == 0 {
            inside.insert(thread.uint(&record), (number.int(&record), time));
        } else if let (1, Some((number, since))) = (source, inside.remove(&thread.uint(&record))) {
            calls.entry(number).or_default().push(time - since);
        } else if record.kind() == Kind::EXIT && record.body().u32(8) == Some(pid) {
            break; // struct { pid, ppid, tid, ptid, time }, and it is the first thread of the process.
        }
    }
    println!("{:>6} {:>9} {:>10} {:>10} {:>10}", "number", "calls", "p50 µs", "p99 µs", "max µs");
    for (number, mut times) in calls {
        times.sort_unstable();
        let [p50, p99, max] = [50, 99, 100].map(|percent| times[(times.len() - 1) * percent / 100] as f64 / 1e3);
        println!("{:>6} {:>9} {p50:>10.1} {p99:>10.1} {max:>10.1}", number.unwrap_or(-1), times.len());
    }
    let ([entered, returned, _], Stats { lost, late, left_out, .. }) = (seen, reader.stats());
    eprintln!("{entered} calls entered, {returned} returned; lost {lost}, late {late}, left out {left_out}");
    Ok(())
}
