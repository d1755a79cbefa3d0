//! Who wakes whom, and how long the woken wait for a CPU: the scheduler's tracepoints on all CPUs, in order.
//!
//! A wake-up is written on the waker's CPU, the switch that it causes on the CPU of the woken. To join the two, one must
//! see them in the order in which they happened, on whichever CPU.
//!
//! ```text
//! cargo run --release --example wakeups -- --seconds 5
//! ```
//!
//! Without privileges it says what is missing, and runs the same on simulated rings.

use perfweave::{Clock, Event, Item, Order, Reader, Record, Rings, Stats, sim};
use perfweave_support::args::Args;
use perfweave_support::json::Json;
use perfweave_support::tracefs::{self, Format};
use std::collections::HashMap;
use std::error::Error;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
wakeups [--seconds N] [--events] [--json] [--simulate]
  --seconds   how long to trace [5]
  --events    print every event, in order
  --json      print one JSON object instead of the table
  --simulate  on simulated rings";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has had enough of it.
        Err(error) if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("wakeups: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut args = Args::new(HELP);
    let time = args.seconds(5.0)?;
    let (print_events, json, simulate) = (args.flag("--events"), args.flag("--json"), args.flag("--simulate"));
    args.finish()?;

    let opened = if simulate { Err("asked for".into()) } else { live() };
    let (mut reader, fields, simulated) = match opened {
        Ok((reader, fields)) => (reader, fields, None),
        Err(missing) => {
            eprintln!("wakeups: {missing}");
            eprintln!(
                "wakeups: what follows is simulated. For the real thing, run as root, or with CAP_PERFMON and a readable tracefs."
            );
            let (reader, load) = simulated()?;
            (reader, Fields::usual(), Some(load))
        }
    };

    let mut scheduler = Scheduler::new(fields);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        for event in reader.batch(left.min(Duration::from_millis(100)))? {
            let line = scheduler.event(&event);
            if print_events {
                writeln!(out, "{}", line.unwrap_or_else(|| format!("{event:?}")))?;
            }
        }
    }
    let simulated = simulated.is_some();
    if json {
        writeln!(out, "{}", scheduler.json(&reader, simulated))?;
    } else {
        scheduler.table(&mut out, &reader)?;
    }
    Ok(())
}

const WAKING: &str = "sched:sched_waking";
const SWITCH: &str = "sched:sched_switch";

/// The rings of this machine, or what is missing.
fn live() -> Result<(Reader, Fields), Box<dyn Error>> {
    tracefs::find_or_mount()?;
    let fields = Fields::of(&Format::read(WAKING)?, &Format::read(SWITCH)?)?;
    let rings = Rings::options().tracepoint(WAKING).tracepoint(SWITCH).bytes(2 << 20).open()?;
    Ok((Reader::new(rings, Order::new())?, fields))
}

/// Where the fields are that we want, in the tracepoints' raw data.
struct Fields {
    waking: u16,
    switch: u16,
    common_pid: usize,
    woken_comm: usize,
    woken_pid: usize,
    prev_comm: usize,
    prev_pid: usize,
    next_comm: usize,
    next_pid: usize,
}

impl Fields {
    fn of(waking: &Format, switch: &Format) -> std::io::Result<Self> {
        Ok(Self {
            waking: waking.id,
            switch: switch.id,
            common_pid: waking.offset("common_pid")?,
            woken_comm: waking.offset("comm")?,
            woken_pid: waking.offset("pid")?,
            prev_comm: switch.offset("prev_comm")?,
            prev_pid: switch.offset("prev_pid")?,
            next_comm: switch.offset("next_comm")?,
            next_pid: switch.offset("next_pid")?,
        })
    }

    /// Where they are on most machines.
    fn usual() -> Self {
        Self {
            waking: 1,
            switch: 2,
            common_pid: 4,
            woken_comm: 8,
            woken_pid: 24,
            prev_comm: 8,
            prev_pid: 24,
            next_comm: 40,
            next_pid: 56,
        }
    }
}

/// What the stream has told so far.
struct Scheduler {
    fields: Fields,
    events: u64,
    /// Woken and not yet running: since when, and by whom.
    waiting: HashMap<u32, (u64, u32)>,
    /// Who runs on each CPU.
    running: HashMap<u32, u32>,
    names: HashMap<u32, String>,
    /// Nanoseconds from wake-up to running, by waker and woken.
    pairs: HashMap<(u32, u32), Vec<u64>>,
}

impl Scheduler {
    fn new(fields: Fields) -> Self {
        let names = HashMap::from([(0, "idle".to_owned())]);
        let (waiting, running, pairs) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { fields, events: 0, waiting, running, names, pairs }
    }

    /// Takes an event in, and gives a line about it, if it is one of ours.
    fn event(&mut self, event: &Event<'_>) -> Option<String> {
        let record = match event.item() {
            Item::Record(record) => record,
            Item::Lost(lost) => {
                // Whoever waits may have run meanwhile, and whoever ran on that CPU may not any more.
                self.waiting.clear();
                self.running.remove(&lost.cpu);
                return Some(format!("{:?} [{:03}] {} events lost", event.key(), lost.cpu, lost.count));
            }
            _ => return None,
        };
        self.events += 1;
        let (time, cpu) = (event.key()?, record.cpu());
        let kind = record.payload()?.u16(0)?;
        if kind == self.fields.waking {
            let waker = record.payload()?.u32(self.fields.common_pid)?;
            let woken = self.task(&record, self.fields.woken_pid, self.fields.woken_comm)?;
            // Whoever runs already causes no switch; whoever was woken before has been waiting since.
            if !self.running.values().any(|pid| *pid == woken) {
                self.waiting.entry(woken).or_insert((time, waker));
            }
            Some(format!("{time} [{cpu:03}] {} wakes {}", self.name(waker), self.name(woken)))
        } else if kind == self.fields.switch {
            let prev = self.task(&record, self.fields.prev_pid, self.fields.prev_comm)?;
            let next = self.task(&record, self.fields.next_pid, self.fields.next_comm)?;
            self.running.insert(cpu, next);
            let mut line = format!("{time} [{cpu:03}] {} -> {}", self.name(prev), self.name(next));
            if let Some((since, waker)) = self.waiting.remove(&next) {
                let waited = time.saturating_sub(since);
                self.pairs.entry((waker, next)).or_default().push(waited);
                line += &format!(", {} µs after {} woke it", waited / 1000, self.name(waker));
            }
            Some(line)
        } else {
            None
        }
    }

    /// A thread's number; its name is remembered.
    fn task(&mut self, record: &Record<'_>, pid: usize, comm: usize) -> Option<u32> {
        let payload = record.payload()?;
        let pid = payload.u32(pid)?;
        if pid != 0 && !self.names.contains_key(&pid) {
            let name = payload.get(comm..comm + 16)?.iter().take_while(|byte| *byte != 0).map(char::from).collect();
            self.names.insert(pid, name);
        }
        Some(pid)
    }

    fn name(&self, pid: u32) -> String {
        match self.names.get(&pid) {
            Some(name) => format!("{name}:{pid}"),
            None => format!("?:{pid}"),
        }
    }

    /// The pairs, busiest first: waker, woken, how often, and p50, p99 and most of the waiting time in nanoseconds.
    fn busiest(&mut self) -> Vec<(String, String, usize, [u64; 3])> {
        let mut pairs: Vec<_> = std::mem::take(&mut self.pairs).into_iter().collect();
        pairs.sort_by_key(|((waker, woken), times)| (std::cmp::Reverse(times.len()), *waker, *woken));
        let row = |((waker, woken), mut times): ((u32, u32), Vec<u64>)| {
            times.sort_unstable();
            let last = times.len() - 1;
            let quantiles = [times[last * 50 / 100], times[last * 99 / 100], times[last]];
            (self.name(waker), self.name(woken), times.len(), quantiles)
        };
        pairs.into_iter().map(row).collect()
    }

    fn table(&mut self, out: &mut impl Write, reader: &Reader) -> std::io::Result<()> {
        let stats = reader.stats();
        let rows = self.busiest();
        writeln!(
            out,
            "{:>28}    {:<28} {:>8} {:>9} {:>9} {:>9}",
            "waker", "woken", "times", "p50 µs", "p99 µs", "max µs"
        )?;
        for (waker, woken, times, [p50, p99, max]) in rows.iter().take(15) {
            let [p50, p99, max] = [p50, p99, max].map(|ns| *ns as f64 / 1000.0);
            writeln!(out, "{waker:>28} -> {woken:<28} {times:>8} {p50:>9.1} {p99:>9.1} {max:>9.1}")?;
        }
        let joined: usize = rows.iter().map(|(_, _, times, _)| times).sum();
        writeln!(out)?;
        writeln!(out, "{} events, {joined} wake-ups joined to their switch, {} pairs", self.events, rows.len())?;
        let Stats { lost, early, late, damaged, .. } = stats;
        writeln!(out, "lost {lost}, let out before their order was proven {early}, late {late}, damaged {damaged}")?;
        writeln!(out, "hold rule {}, fence {}", reader.hold(), reader.fence().unwrap_or("none"))
    }

    fn json(&mut self, reader: &Reader, simulated: bool) -> Json {
        let stats = reader.stats();
        let rows = self.busiest();
        let pairs = rows.iter().take(15).map(|(waker, woken, times, [p50, p99, max])| {
            perfweave_support::json!({
                "waker": waker, "woken": woken, "times": times, "p50_ns": p50, "p99_ns": p99, "max_ns": max,
            })
        });
        perfweave_support::json!({
            "events": self.events,
            "lost": stats.lost,
            "late": stats.late,
            "unproven": stats.early,
            "damaged": stats.damaged,
            "hold": reader.hold().to_string(),
            "fence": reader.fence(),
            "simulated": simulated,
            "joined": rows.iter().map(|(_, _, times, _)| times).sum::<usize>(),
            "pairs": pairs.collect::<Vec<_>>(),
        })
    }
}

/// Rings of a machine that is not there, and the load on it.
fn simulated() -> Result<(Reader, perfweave_support::load::Load), perfweave::Error> {
    let cpus = [0, 1, 2, 3];
    let kernel = sim::Kernel::new(&cpus);
    let reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold()))?;
    let fields = Fields::usual();
    let emit = move |cpu: u32, kind: u16, numbers: &[(usize, u32)], names: &[(usize, u32)]| {
        let mut data = [0; 64];
        data[..2].copy_from_slice(&kind.to_ne_bytes());
        for (at, number) in numbers {
            data[*at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        for (at, pid) in names {
            let name = if *pid == 0 { "idle".to_owned() } else { format!("task{}", pid % 10) };
            data[*at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        kernel.emit(cpu, Clock::Monotonic.now().unwrap_or(0), &data);
    };
    // Task 100 + n lives on CPU n and is woken by the one on the CPU before it.
    let load = perfweave_support::load::Load::on(&perfweave_support::load::online()[..1], move |_| {
        for cpu in cpus {
            let (waker, woken) = (100 + (cpu + 3) % 4, 100 + cpu);
            let from = (cpu + 3) % 4;
            emit(
                from,
                fields.waking,
                &[(fields.common_pid, waker), (fields.woken_pid, woken)],
                &[(fields.woken_comm, woken)],
            );
            std::thread::sleep(Duration::from_micros(50));
            emit(cpu, fields.switch, &[(fields.prev_pid, 0), (fields.next_pid, woken)], &[(fields.next_comm, woken)]);
            std::thread::sleep(Duration::from_micros(100));
            emit(cpu, fields.switch, &[(fields.prev_pid, woken), (fields.next_pid, 0)], &[(fields.prev_comm, woken)]);
        }
    });
    Ok((reader, load))
}
