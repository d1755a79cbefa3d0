//! Who wakes whom, and how long the woken wait for a CPU: the scheduler's tracepoints on all CPUs, in order. A wake-up
//! is written on the waker's CPU, and the switch that it causes on the CPU of the woken thread. To join the two, a tool
//! must see the events of all CPUs in the order in which they happened. A wake-up may find its thread still on its way
//! to sleep. Whether that thread sleeps, and the wake-up counts, shows when it leaves its CPU.
//!
//! ```text
//! cargo run --release --example wakeups -- --seconds 5
//! ```
//!
//! Without privileges it says what is missing. With `--simulate` it runs the same on simulated rings, and says so.

use perfweave::{Account, Certainty, Clock, Event, Item, Order, Reader, Record, Rings, sim};
use perfweave_events::{EventOptions, Field, Format, WithoutSelf};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
wakeups [--seconds N] [--events] [--with-self] [--json] [--simulate]
  --seconds    how long to trace [5]
  --events     print every event, in order
  --with-self  keep what is about this program alone
  --json       print one JSON object instead of the table
  --simulate   on simulated rings: nothing of it has happened";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // The other end of the output pipe is closed.
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
    let mut args = pico_args::Arguments::from_env();
    if args.contains(["-h", "--help"]) {
        println!("{HELP}");
        return Ok(());
    }
    let time = Duration::try_from_secs_f64(args.opt_value_from_str("--seconds")?.unwrap_or(5.0))?;
    let [print_events, with_self, json, simulate] =
        ["--events", "--with-self", "--json", "--simulate"].map(|flag| args.contains(flag));
    if let [unknown, ..] = args.finish().as_slice() {
        return Err(format!("{unknown:?} is not understood\n{HELP}").into());
    }

    let opened = if simulate { simulated() } else { live(with_self) };
    let (mut reader, fields) = opened.map_err(|missing| {
        format!("{missing}\nRun it as root, or with CAP_PERFMON and a readable tracefs. --simulate shows the same on simulated rings.")
    })?;

    let mut scheduler = Scheduler::new(fields);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if simulate && !json {
        writeln!(out, "{SIMULATION}")?;
    }
    reader.handle().set_deadline(Some(Instant::now() + time))?;
    while let Some(batch) = reader.batch(Duration::from_millis(100))? {
        for event in batch {
            let line = scheduler.event(&event);
            if print_events {
                writeln!(out, "{}", line.unwrap_or_else(|| format!("{event:?}")))?;
            }
        }
    }
    if json {
        writeln!(out, "{}", scheduler.json(&reader, simulate))?;
    } else {
        scheduler.table(&mut out, &reader)?;
    }
    Ok(())
}

const WAKING: &str = "sched:sched_waking";
const SWITCH: &str = "sched:sched_switch";

/// The rings of this machine, or what is missing.
fn live(with_self: bool) -> Result<(Reader, Fields), Box<dyn Error>> {
    let rings = Rings::options().tracepoint(WAKING).tracepoint(SWITCH).bytes(2 << 20).open()?;
    let fields = Fields::of(&Format::of(&rings, 0)?, &Format::of(&rings, 1)?)?;
    let order = if with_self { Order::new() } else { Order::new().without_self() };
    Ok((Reader::new(rings, order)?, fields))
}

/// The fields of the two tracepoints that are used.
struct Fields {
    /// The tracepoints' numbers.
    waking: u64,
    switch: u64,
    waker: Field,
    /// Whether an interrupt wakes, which has nothing to do with the thread that it interrupts.
    flags: Field,
    woken: Task,
    prev: Task,
    prev_state: Field,
    next: Task,
}

/// A thread, as a tracepoint names it.
struct Task {
    pid: Field,
    comm: Field,
}

impl Fields {
    fn of(waking: &Format, switch: &Format) -> Result<Self, perfweave::Error> {
        let task = |format: &Format, pid, comm| {
            Ok::<_, perfweave::Error>(Task { pid: format.field(pid)?, comm: format.field(comm)? })
        };
        Ok(Self {
            waking: waking.id(),
            switch: switch.id(),
            waker: waking.field("common_pid")?,
            flags: waking.field("common_flags")?,
            woken: task(waking, "pid", "comm")?,
            prev: task(switch, "prev_pid", "prev_comm")?,
            prev_state: switch.field("prev_state")?,
            next: task(switch, "next_pid", "next_comm")?,
        })
    }
}

/// The state from the stream so far.
struct Scheduler {
    fields: Fields,
    events: u64,
    /// Records whose order is not proven.
    unproven: u64,
    threads: HashMap<u32, Thread>,
    names: HashMap<u32, String>,
    /// Nanoseconds from wake-up to running, by waker and woken.
    pairs: HashMap<(Waker, u32), Vec<u64>>,
}

/// A thread, or `None` for an interrupt.
type Waker = Option<u32>;

/// What the stream has told of a thread.
#[derive(Default)]
struct Thread {
    does: Does,
    /// Its last wake-up: no thread is woken twice without having run.
    woken: Option<(u64, Waker)>,
}

#[derive(Default, PartialEq)]
enum Does {
    #[default]
    Unknown,
    Runs,
    /// Since when.
    Sleeps(u64),
    /// It was taken off its CPU.
    Waits,
}

/// `TRACE_FLAG_HARDIRQ` and `TRACE_FLAG_SOFTIRQ` (include/linux/trace_events.h).
const IN_INTERRUPT: u64 = 0x08 | 0x10;
/// `prev_state` of threads that have ended: zombie and dead.
const ENDED: u64 = 0x20 | 0x10;

impl Scheduler {
    fn new(fields: Fields) -> Self {
        let names = HashMap::from([(0, "idle".to_owned())]);
        Self { fields, events: 0, unproven: 0, threads: HashMap::new(), names, pairs: HashMap::new() }
    }

    /// Takes an event, and gives a line about it if it is from one of the two tracepoints.
    fn event(&mut self, event: &Event<'_>) -> Option<String> {
        let record = match event.item() {
            Item::Record(record) => record,
            // Records are lost or damaged, or a CPU was not traced for a time: any thread may have run meanwhile.
            other => {
                self.threads.clear();
                return Some(format!("{:?} {other:?}", event.key()));
            }
        };
        self.events += 1;
        self.unproven += u64::from(event.certainty() == Certainty::Assumed);
        let (time, cpu) = (event.key()?, record.cpu());
        // `common_type`, which identifies the tracepoint.
        let kind = u64::from(record.payload()?.u16(0)?);
        let Fields { waking, switch, waker, flags, woken, prev, prev_state, next } = &self.fields;
        if kind == *waking {
            let in_interrupt = flags.uint(&record)? & IN_INTERRUPT != 0;
            let waker = waker.uint(&record).filter(|_| !in_interrupt).map(|pid| pid as u32);
            let woken = task(&mut self.names, woken, &record)?;
            let thread = self.threads.entry(woken).or_default();
            if thread.does != Does::Waits {
                thread.woken = Some((time, waker));
            }
            Some(format!("{time} [{cpu:03}] {} wakes {}", self.waker(waker), self.name(woken)))
        } else if kind == *switch {
            let state = prev_state.uint(&record)?;
            let (prev, next) = (task(&mut self.names, prev, &record)?, task(&mut self.names, next, &record)?);
            self.leaves(prev, time, state & 0xff);
            let mut line = format!("{time} [{cpu:03}] {} -> {}", self.name(prev), self.name(next));
            if let Some((since, waker)) = self.runs(next) {
                let waited = time.saturating_sub(since);
                self.pairs.entry((waker, next)).or_default().push(waited);
                line += &format!(", {} µs after {} woke it", waited / 1000, self.waker(waker));
            }
            Some(line)
        } else {
            None
        }
    }

    fn leaves(&mut self, pid: u32, time: u64, state: u64) {
        if pid == 0 || state & ENDED != 0 {
            self.threads.remove(&pid);
            return;
        }
        let thread = self.threads.entry(pid).or_default();
        // A thread that can run was not woken. One that was not seen to run may have done so after that wake-up.
        if state == 0 || thread.does != Does::Runs {
            thread.woken = None;
        }
        thread.does = if state == 0 { Does::Waits } else { Does::Sleeps(time) };
    }

    /// Since when the thread that runs now was awake, and who woke it.
    fn runs(&mut self, pid: u32) -> Option<(u64, Waker)> {
        if pid == 0 {
            return None;
        }
        let thread = self.threads.entry(pid).or_default();
        let (did, woken) = (std::mem::replace(&mut thread.does, Does::Runs), thread.woken.take());
        let (time, waker) = woken?;
        match did {
            Does::Runs | Does::Waits => None,
            Does::Unknown => Some((time, waker)),
            Does::Sleeps(since) => Some((time.max(since), waker)),
        }
    }

    fn waker(&self, waker: Waker) -> String {
        waker.map_or("[interrupt]".into(), |pid| self.name(pid))
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
        let row = |((waker, woken), mut times): ((Waker, u32), Vec<u64>)| {
            times.sort_unstable();
            // The nearest rank: the least time that so many percent of the times do not exceed.
            let quantiles = [50, 99, 100].map(|percent| times[(times.len() * percent).div_ceil(100) - 1]);
            (self.waker(waker), self.name(woken), times.len(), quantiles)
        };
        pairs.into_iter().map(row).collect()
    }

    fn table(&mut self, out: &mut impl Write, reader: &Reader) -> std::io::Result<()> {
        let status = reader.status();
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
        let Account { lost, late, damaged, .. } = status.total();
        writeln!(out, "lost {lost}, unproven {}, late {late}, damaged {damaged}", self.unproven)?;
        writeln!(out, "left out {} events of this program alone", status.left_out)?;
        writeln!(out, "fence {}", reader.fence().unwrap_or("none"))
    }

    fn json(&mut self, reader: &Reader, is_simulated: bool) -> String {
        let status = reader.status();
        let (Account { lost, late, damaged, .. }, left_out) = (status.total(), status.left_out);
        let rows = self.busiest();
        let pairs = rows.iter().take(15).map(|(waker, woken, times, [p50, p99, max])| {
            let (waker, woken) = (quoted(waker), quoted(woken));
            format!(
                r#"{{"waker":{waker},"woken":{woken},"times":{times},"p50_ns":{p50},"p99_ns":{p99},"max_ns":{max}}}"#
            )
        });
        let pairs = pairs.collect::<Vec<_>>().join(",");
        let fence = reader.fence().map_or("null".to_owned(), quoted);
        let joined: usize = rows.iter().map(|(_, _, times, _)| times).sum();
        let (events, unproven) = (self.events, self.unproven);
        format!(r#"{{"events":{events},"lost":{lost},"late":{late},"unproven":{unproven},"damaged":{damaged},"#)
            + &format!(r#""left_out":{left_out},"#)
            + &format!(r#""fence":{fence},"simulated":{is_simulated},"joined":{joined},"pairs":[{pairs}]}}"#)
    }
}

/// A thread's number; its name is remembered.
fn task(names: &mut HashMap<u32, String>, task: &Task, record: &Record<'_>) -> Option<u32> {
    let pid = task.pid.uint(record)? as u32;
    if let Entry::Vacant(unknown) = names.entry(pid) {
        // A thread may call itself by a command to the terminal, or by a line of its own.
        unknown.insert(task.comm.text(record)?.escape_debug().to_string());
    }
    Some(pid)
}

/// Text as JSON has it.
fn quoted(text: &str) -> String {
    let letter = |letter: char| match letter {
        '"' | '\\' => format!("\\{letter}"),
        '\0'..' ' => format!("\\u{:04x}", u32::from(letter)),
        _ => letter.to_string(),
    };
    format!("\"{}\"", text.chars().map(letter).collect::<String>())
}

/// The first line of a simulation's output.
const SIMULATION: &str = "SIMULATED: nothing of this has happened on this machine";

/// The formats of the simulated tracepoints, as tracefs gives them.
const SIMULATED: [&str; 2] = [
    "name: sched_waking\nID: 1\nformat:
        field:unsigned short common_type; offset:0; size:2; signed:0;
        field:unsigned char common_flags; offset:2; size:1; signed:0;
        field:int common_pid; offset:4; size:4; signed:1;\n
        field:char comm[16]; offset:8; size:16; signed:0;
        field:pid_t pid; offset:24; size:4; signed:1;",
    "name: sched_switch\nID: 2\nformat:
        field:unsigned short common_type; offset:0; size:2; signed:0;
        field:int common_pid; offset:4; size:4; signed:1;\n
        field:char prev_comm[16]; offset:8; size:16; signed:0;
        field:pid_t prev_pid; offset:24; size:4; signed:1;
        field:long prev_state; offset:32; size:8; signed:1;
        field:char next_comm[16]; offset:40; size:16; signed:0;
        field:pid_t next_pid; offset:56; size:4; signed:1;",
];

/// Rings of a simulated machine, and a load on it until the program ends.
fn simulated() -> Result<(Reader, Fields), Box<dyn Error>> {
    let cpus = [0, 1, 2, 3];
    let kernel = sim::Kernel::new(&cpus);
    let reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold()))?;
    let formats = || -> Result<_, perfweave::Error> { Fields::of(&SIMULATED[0].parse()?, &SIMULATED[1].parse()?) };
    let (fields, theirs) = (formats()?, formats()?);
    let Fields { waking, switch, waker, woken, prev, prev_state, next, .. } = theirs;
    let emit = move |cpu: u32, kind: u64, writer: u32, tasks: &[(&Task, u32)]| {
        let mut data = [0; 64];
        data[..2].copy_from_slice(&(kind as u16).to_ne_bytes());
        data[waker.offset()..][..4].copy_from_slice(&writer.to_ne_bytes());
        if kind == switch {
            // It sleeps (TASK_INTERRUPTIBLE).
            data[prev_state.offset()..][..8].copy_from_slice(&1u64.to_ne_bytes());
        }
        for (task, pid) in tasks {
            let name = if *pid == 0 { "idle".to_owned() } else { format!("task{}", pid % 10) };
            data[task.comm.offset()..][..name.len()].copy_from_slice(name.as_bytes());
            data[task.pid.offset()..][..4].copy_from_slice(&pid.to_ne_bytes());
        }
        kernel.emit(cpu, Clock::Monotonic.now().unwrap_or(0), &data);
    };
    // Task 100 + n lives on CPU n and is woken by the one on the CPU before it.
    std::thread::spawn(move || {
        for cpu in cpus.into_iter().cycle() {
            let (from, task) = ((cpu + 3) % 4, 100 + cpu);
            emit(from, waking, 100 + from, &[(&woken, task)]);
            std::thread::sleep(Duration::from_micros(50));
            emit(cpu, switch, 0, &[(&prev, 0), (&next, task)]);
            std::thread::sleep(Duration::from_micros(100));
            emit(cpu, switch, task, &[(&prev, task), (&next, 0)]);
        }
    });
    Ok((reader, fields))
}
