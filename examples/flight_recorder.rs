//! A flight recorder: the scheduler's last moments on all CPUs, kept until something happens, then printed in order.
//! The kernel overwrites the rings, and no program reads them. When a signal comes, or a thread that sleeps a
//! millisecond at a time is woken too late, the example copies them and reads the last events, merged across CPUs.
//!
//! ```text
//! cargo run --release --example flight_recorder -- --threshold-us 500 --last-ms 5
//! ```
//!
//! Without privileges it says what is missing. With `--simulate` it runs the same on simulated rings, and says so.

use nix::sys::signal::{SigSet, Signal};
use perf_event_open_sys::bindings;
use perfweave::{Certainty, Clock, Event, Fence, Item, Layout, Order, Reader, Record, Recorder, Rings, sim};
use perfweave_events::{EventOptions, Field, Format};
use std::collections::BTreeSet;
use std::error::Error;
use std::io::{BufWriter, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

const HELP: &str = "\
flight_recorder [--threshold-us N] [--seconds N] [--last-ms N] [--json] [--simulate]
  until SIGINT, SIGUSR1, or what is asked for:
  --threshold-us  until a thread that sleeps a millisecond at a time is woken so much too late
  --seconds       for so long at most [60]
  --last-ms       how much of what was before is printed [10]
  --json          print one JSON object instead of the events
  --simulate      on simulated rings: nothing of it has happened";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The other end of the output pipe is closed.
        Err(error) if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("flight_recorder: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all was in order.
fn run() -> Result<bool, Box<dyn Error>> {
    let mut args = pico_args::Arguments::from_env();
    if args.contains(["-h", "--help"]) {
        println!("{HELP}");
        return Ok(true);
    }
    let threshold = args.opt_value_from_str("--threshold-us")?.map(Duration::from_micros);
    let last = Duration::from_millis(args.opt_value_from_str("--last-ms")?.unwrap_or(10));
    let time = Duration::try_from_secs_f64(args.opt_value_from_str("--seconds")?.unwrap_or(60.0))?;
    let (json, simulate) = (args.contains("--json"), args.contains("--simulate"));
    if let [unknown, ..] = args.finish().as_slice() {
        return Err(format!("{unknown:?} is not understood\n{HELP}").into());
    }

    // Before any thread is started, so that none of them is interrupted.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGUSR1]);
    signals.thread_block()?;
    let opened = if simulate { simulated() } else { live() };
    let (mut recorder, tasks) = opened.map_err(|missing| {
        format!("{missing}\nRun it as root, or with CAP_PERFMON and a readable tracefs. --simulate shows the same on simulated rings.")
    })?;

    let (told, triggers) = mpsc::channel();
    wait_for_signals(signals, told.clone());
    if let Some(threshold) = threshold {
        thread::Builder::new().name("sleeper".into()).spawn(move || sleep_badly(threshold, &told))?;
    }
    let end = Instant::now() + time;
    let trigger = loop {
        let left = end.saturating_duration_since(Instant::now());
        match triggers.recv_timeout(left.min(Duration::from_millis(100))) {
            Ok(trigger) => break trigger,
            Err(_) if left.is_zero() => break Trigger::now(format!("nothing in {} s", time.as_secs_f64())),
            Err(_) => recorder.follow_cpus()?,
        }
    };
    let rings = recorder.freeze()?;
    // From now on a signal ends the program.
    signals.thread_unblock()?;

    let mut out = BufWriter::new(std::io::stdout().lock());
    if simulate && !json {
        writeln!(out, "{SIMULATION}")?;
    }
    let mut tally = Tally::default();
    let from = trigger.time.saturating_sub(last.as_nanos() as u64);
    let mut time = 0;
    let mut reader = Reader::new(rings, Order::new())?;
    while let Some(event) = reader.next()? {
        tally.recorded += 1;
        // An event without a time has the place of the one before it.
        time = event.key().unwrap_or(time);
        if time < from {
            continue;
        }
        tally.event(&event.event());
        if !json {
            let after = trigger.after(time);
            writeln!(out, "{after:>9.3} ms [{:03}] {}", event.cpu().unwrap_or(0), tasks.line(&event.event()))?;
        }
    }
    let complete_from = recorder.complete_from();
    if json {
        writeln!(out, "{}", tally.json(&trigger, complete_from, simulate))?;
    } else {
        tally.text(&mut out, &trigger, complete_from)?;
    }
    Ok(tally.out_of_order == 0 && tally.damaged == 0)
}

const SWITCH: &str = "sched:sched_switch";
const WAKING: &str = "sched:sched_waking";

/// The rings of this machine, or what is missing.
fn live() -> Result<(Recorder, Tasks), Box<dyn Error>> {
    let tasks = Tasks::of(&Format::read(SWITCH)?, &Format::read(WAKING)?)?;
    let options = Rings::options().tracepoint(SWITCH).tracepoint(WAKING).bytes(1 << 20);
    Ok((Recorder::open(options, &Fence::Auto)?, tasks))
}

/// The reason why the recording was stopped, and the time.
struct Trigger {
    what: String,
    time: u64,
}

impl Trigger {
    fn now(what: String) -> Self {
        Self { what, time: Clock::Monotonic.now().unwrap_or(0) }
    }

    /// Milliseconds from the trigger to a key.
    fn after(&self, key: u64) -> f64 {
        key.wrapping_sub(self.time).cast_signed() as f64 / 1e6
    }
}

fn wait_for_signals(signals: SigSet, told: Sender<Trigger>) {
    thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            // The receiver is gone if another reason came first.
            let _ = told.send(Trigger::now(signal.to_string()));
        }
    });
}

/// Like cyclictest: sleeps, and measures how late it is woken.
fn sleep_badly(threshold: Duration, told: &Sender<Trigger>) {
    const SLEEP: Duration = Duration::from_millis(1);
    loop {
        let begun = Instant::now();
        thread::sleep(SLEEP);
        let late = begun.elapsed().saturating_sub(SLEEP);
        if late > threshold {
            let _ = told.send(Trigger::now(format!("woken {} µs late", late.as_micros())));
            return;
        }
    }
}

/// The fields of the two tracepoints that are printed.
struct Tasks {
    /// The tracepoint's number.
    switch: u64,
    waker: Field,
    flags: Field,
    prev: Task,
    next: Task,
    woken: Task,
}

/// A thread, as a tracepoint names it.
struct Task {
    pid: Field,
    comm: Field,
}

impl Tasks {
    fn of(switch: &Format, waking: &Format) -> Result<Self, perfweave::Error> {
        let task = |format: &Format, pid, comm| {
            Ok::<_, perfweave::Error>(Task { pid: format.field(pid)?, comm: format.field(comm)? })
        };
        let (prev, next) = (task(switch, "prev_pid", "prev_comm")?, task(switch, "next_pid", "next_comm")?);
        let (woken, waker) = (task(waking, "pid", "comm")?, waking.field("common_pid")?);
        Ok(Self { switch: switch.id(), waker, flags: waking.field("common_flags")?, prev, next, woken })
    }

    fn line(&self, event: &Event<'_>) -> String {
        match event.item() {
            Item::Record(record) => self.record(&record).unwrap_or_else(|| format!("{record:?}")),
            Item::Lost(lost) => format!("lost {} events", lost.count),
            other => format!("{other:?}"),
        }
    }

    fn record(&self, record: &Record<'_>) -> Option<String> {
        // A thread may call itself by a command to the terminal, or by a line of its own.
        let name = |task: &Task| Some(format!("{}:{}", task.comm.text(record)?.escape_debug(), task.pid.uint(record)?));
        // `common_type`, which identifies the tracepoint.
        if u64::from(record.payload()?.u16(0)?) == self.switch {
            return Some(format!("switch  {} -> {}", name(&self.prev)?, name(&self.next)?));
        }
        // `TRACE_FLAG_HARDIRQ` and `TRACE_FLAG_SOFTIRQ`: the thread that runs has no part in it.
        let by = match self.flags.uint(record)? & (0x08 | 0x10) {
            0 => self.waker.uint(record)?.to_string(),
            _ => "an interrupt".into(),
        };
        Some(format!("waking  {} by {by}", name(&self.woken)?))
    }
}

/// The counts of the recording.
#[derive(Default)]
struct Tally {
    /// All that were in the rings.
    recorded: u64,
    /// Those that were asked for.
    events: u64,
    cpus: BTreeSet<u32>,
    first: Option<u64>,
    largest: u64,
    /// Checked here again.
    out_of_order: u64,
    unproven: u64,
    lost: u64,
    damaged: u64,
}

impl Tally {
    fn event(&mut self, event: &Event<'_>) {
        match event.item() {
            Item::Record(_) => self.events += 1,
            Item::Lost(lost) => self.lost += lost.count,
            Item::Damage(_) => self.damaged += 1,
            _ => {}
        }
        self.cpus.extend(event.cpu());
        self.unproven += u64::from(event.certainty() != Certainty::Proven);
        if let Some(key) = event.key() {
            self.out_of_order += u64::from(key < self.largest);
            self.largest = self.largest.max(key);
            self.first.get_or_insert(key);
        }
    }

    fn span_ms(&self) -> f64 {
        (self.largest - self.first.unwrap_or(self.largest)) as f64 / 1e6
    }

    fn json(&self, trigger: &Trigger, complete_from: Option<u64>, is_simulated: bool) -> String {
        let Self { recorded, events, out_of_order, unproven, lost, damaged, first, .. } = self;
        let (what, cpus, span) = (&trigger.what, self.cpus.len(), self.span_ms());
        let complete = complete_from <= *first;
        let from = complete_from.map_or("null".into(), |from| trigger.after(from).to_string());
        format!(r#"{{"triggered_by":"{what}","events":{events},"cpus":{cpus},"out_of_order":{out_of_order},"#)
            + &format!(
                r#""unproven":{unproven},"lost":{lost},"damaged":{damaged},"span_ms":{span},"complete":{complete},"#
            )
            + &format!(r#""complete_from_ms":{from},"recorded":{recorded},"simulated":{is_simulated}}}"#)
    }

    fn text(&self, out: &mut impl Write, trigger: &Trigger, complete_from: Option<u64>) -> std::io::Result<()> {
        let (recorded, events, cpus) = (self.recorded, self.events, self.cpus.len());
        writeln!(out)?;
        writeln!(out, "triggered by {}, which is 0 ms above", trigger.what)?;
        writeln!(out, "{events} events of {:.3} ms, {cpus} CPUs, of {recorded} recorded", self.span_ms())?;
        match complete_from {
            None => writeln!(out, "complete since the begin")?,
            Some(from) => writeln!(out, "complete from {:.3} ms on", trigger.after(from))?,
        }
        let Self { lost, damaged, unproven, out_of_order, .. } = self;
        writeln!(out, "lost {lost}, damaged {damaged}, unproven {unproven}, out of order {out_of_order}")
    }
}

/// The first line of a simulation's output.
const SIMULATION: &str = "SIMULATED: nothing of this has happened on this machine";

/// The formats of the simulated tracepoints, as tracefs gives them.
const SIMULATED: [&str; 2] = [
    "name: sched_switch\nID: 1\nformat:
        field:unsigned short common_type; offset:0; size:2; signed:0;
        field:int common_pid; offset:4; size:4; signed:1;\n
        field:char prev_comm[16]; offset:8; size:16; signed:0;
        field:pid_t prev_pid; offset:24; size:4; signed:1;
        field:char next_comm[16]; offset:40; size:16; signed:0;
        field:pid_t next_pid; offset:56; size:4; signed:1;",
    "name: sched_waking\nID: 2\nformat:
        field:unsigned short common_type; offset:0; size:2; signed:0;
        field:unsigned char common_flags; offset:2; size:1; signed:0;
        field:int common_pid; offset:4; size:4; signed:1;\n
        field:char comm[16]; offset:8; size:16; signed:0;
        field:pid_t pid; offset:24; size:4; signed:1;",
];

/// Rings of a simulated machine, and a load on it until the program ends: task 100 + n lives on CPU n.
fn simulated() -> Result<(Recorder, Tasks), Box<dyn Error>> {
    let cpus = [0u32, 1, 2, 3];
    let layout = Layout::new(u64::from(bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME), true, 0);
    let kernel = sim::Kernel::backward(&cpus, 64 << 10, layout);
    let recorder = kernel.recorder()?;
    let tasks = || -> Result<_, perfweave::Error> { Tasks::of(&SIMULATED[0].parse()?, &SIMULATED[1].parse()?) };
    let (ours, Tasks { switch, waker, prev, next, woken, .. }) = (tasks()?, tasks()?);
    let emit = move |cpu: u32, kind: u64, writer: u32, parts: &[(&Task, u32)]| {
        let mut data = [0; 64];
        data[..2].copy_from_slice(&(kind as u16).to_ne_bytes());
        data[waker.offset()..][..4].copy_from_slice(&writer.to_ne_bytes());
        for (task, pid) in parts {
            data[task.comm.offset()..][..4].copy_from_slice(if *pid == 0 { b"idle" } else { b"task" });
            data[task.pid.offset()..][..4].copy_from_slice(&pid.to_ne_bytes());
        }
        kernel.emit(cpu, Clock::Monotonic.now().unwrap_or(0), &data);
    };
    thread::spawn(move || {
        for cpu in cpus.into_iter().cycle() {
            let (from, task) = ((cpu + 3) % 4, 100 + cpu);
            emit(from, 2, 100 + from, &[(&woken, task)]);
            emit(cpu, switch, 0, &[(&prev, 0), (&next, task)]);
            thread::sleep(Duration::from_micros(100));
            emit(cpu, switch, task, &[(&prev, task), (&next, 0)]);
        }
    });
    Ok((recorder, ours))
}
