//! A flight recorder: the scheduler's last moments on all CPUs, kept until something happens, then printed in order.
//!
//! Rings are written over and over and nobody reads them. When a signal comes, or a thread that sleeps a millisecond at
//! a time is woken too late, they are stopped, and what led to it is read back, merged across CPUs.
//!
//! ```text
//! cargo run --release --example flight_recorder -- --threshold-us 500 --last-ms 5
//! ```
//!
//! Without privileges it says what is missing, and runs the same on simulated rings.

use nix::sys::signal::{SigSet, Signal};
use perfweave::{Class, Clock, Event, Fence, Frozen, Item, Key, Layout, Record, Recorder, Rings, bindings, sim};
use perfweave_support::args::Args;
use perfweave_support::json::Json;
use perfweave_support::load::{Load, online};
use perfweave_support::tracefs::{self, Format};
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
  --simulate      on simulated rings";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever reads our output has had enough of it.
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
    let mut args = Args::new(HELP);
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text} is no whole number"));
    let threshold = args.value("--threshold-us", number)?.map(Duration::from_micros);
    let last = Duration::from_millis(args.value("--last-ms", number)?.unwrap_or(10));
    let time = args.seconds(60.0)?;
    let (json, simulate) = (args.flag("--json"), args.flag("--simulate"));
    args.finish()?;

    // Before any thread is started, so that none of them is interrupted.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGUSR1]);
    signals.thread_block()?;
    let opened = if simulate { Err("asked for".into()) } else { live() };
    let (mut recorder, tasks, simulated) = match opened {
        Ok((recorder, tasks)) => (recorder, tasks, None),
        Err(missing) => {
            eprintln!("flight_recorder: {missing}");
            eprintln!("flight_recorder: what follows is simulated. For the real thing, run as root.");
            let (recorder, load) = simulated()?;
            (recorder, Tasks::usual(), Some(load))
        }
    };

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
    let frozen = recorder.freeze()?;
    // Whoever wants us to end now can have it.
    signals.thread_unblock()?;

    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut tally = Tally::default();
    for event in frozen.since(trigger.time.saturating_sub(last.as_nanos() as u64)) {
        tally.event(&event);
        if !json {
            let after = event.key().map(|key| trigger.after(key)).unwrap_or_default();
            writeln!(out, "{after:>9.3} ms [{:03}] {}", event.cpu().unwrap_or(0), tasks.line(&event))?;
        }
    }
    if json {
        writeln!(out, "{}", tally.json(&trigger, &frozen, simulated.is_some()))?;
    } else {
        tally.text(&mut out, &trigger, &frozen)?;
    }
    Ok(tally.out_of_order == 0 && tally.damaged == 0)
}

const SWITCH: &str = "sched:sched_switch";
const WAKING: &str = "sched:sched_waking";

/// The rings of this machine, or what is missing.
fn live() -> Result<(Recorder, Tasks), Box<dyn Error>> {
    tracefs::find_or_mount()?;
    let tasks = Tasks::of(&Format::read(SWITCH)?, &Format::read(WAKING)?)?;
    let options = Rings::options().tracepoint(SWITCH).tracepoint(WAKING).bytes(1 << 20);
    Ok((Recorder::open(options, Key::Time, &Fence::Auto)?, tasks))
}

/// What ended the recording, and when.
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
            // The receiver is gone when something else was first.
            let _ = told.send(Trigger::now(signal.to_string()));
        }
    });
}

/// What cyclictest does: sleeps, and looks how much too late it is woken.
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

/// Where the fields are that we want, in the tracepoints' raw data: of a task, number and name.
struct Tasks {
    switch: u16,
    waking: u16,
    common_pid: usize,
    prev: (usize, usize),
    next: (usize, usize),
    woken: (usize, usize),
}

impl Tasks {
    fn of(switch: &Format, waking: &Format) -> std::io::Result<Self> {
        let task = |format: &Format, pid, comm| Ok::<_, std::io::Error>((format.offset(pid)?, format.offset(comm)?));
        let (prev, next) = (task(switch, "prev_pid", "prev_comm")?, task(switch, "next_pid", "next_comm")?);
        let (woken, common_pid) = (task(waking, "pid", "comm")?, waking.offset("common_pid")?);
        Ok(Self { switch: switch.id, waking: waking.id, common_pid, prev, next, woken })
    }

    /// Where they are on most machines.
    fn usual() -> Self {
        Self { switch: 1, waking: 2, common_pid: 4, prev: (24, 8), next: (56, 40), woken: (24, 8) }
    }

    fn line(&self, event: &Event<'_>) -> String {
        match event.item() {
            Item::Record(record) => self.record(&record).unwrap_or_else(|| format!("{record:?}")),
            Item::Lost(lost) => format!("lost {} events", lost.count),
            other => format!("{other:?}"),
        }
    }

    fn record(&self, record: &Record<'_>) -> Option<String> {
        let payload = record.payload()?;
        let task = |(pid, comm): (usize, usize)| {
            let name = payload.get(comm..comm + 16)?.iter().take_while(|byte| *byte != 0).map(char::from);
            Some(format!("{}:{}", name.collect::<String>(), payload.u32(pid)?))
        };
        if payload.u16(0)? == self.switch {
            return Some(format!("switch  {} -> {}", task(self.prev)?, task(self.next)?));
        }
        Some(format!("waking  {} by {}", task(self.woken)?, payload.u32(self.common_pid)?))
    }
}

/// What was in it.
#[derive(Default)]
struct Tally {
    events: u64,
    cpus: BTreeSet<u32>,
    first: Option<u64>,
    largest: u64,
    /// Checked here once more.
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
            _ => self.damaged += 1,
        }
        self.cpus.extend(event.cpu());
        self.unproven += u64::from(event.class() != Class::Proven);
        if let Some(key) = event.key() {
            self.out_of_order += u64::from(key < self.largest);
            self.largest = self.largest.max(key);
            self.first.get_or_insert(key);
        }
    }

    fn span_ms(&self) -> f64 {
        (self.largest - self.first.unwrap_or(self.largest)) as f64 / 1e6
    }

    fn json(&self, trigger: &Trigger, frozen: &Frozen<'_>, simulated: bool) -> Json {
        perfweave_support::json!({
            "triggered_by": trigger.what,
            "events": self.events,
            "cpus": self.cpus.len(),
            "out_of_order": self.out_of_order,
            "unproven": self.unproven,
            "lost": self.lost,
            "damaged": self.damaged,
            "span_ms": self.span_ms(),
            "complete": frozen.complete_from() <= self.first,
            "complete_from_ms": frozen.complete_from().map(|from| trigger.after(from)),
            "recorded": frozen.events().len(),
            "simulated": simulated,
        })
    }

    fn text(&self, out: &mut impl Write, trigger: &Trigger, frozen: &Frozen<'_>) -> std::io::Result<()> {
        let (events, cpus) = (self.events, self.cpus.len());
        writeln!(out)?;
        writeln!(out, "triggered by {}, which is 0 ms above", trigger.what)?;
        writeln!(
            out,
            "{events} events of {:.3} ms, {cpus} CPUs, of {} recorded",
            self.span_ms(),
            frozen.events().len()
        )?;
        match frozen.complete_from() {
            None => writeln!(out, "complete since the begin")?,
            Some(from) => writeln!(out, "complete from {:.3} ms on", trigger.after(from))?,
        }
        let Self { lost, damaged, unproven, out_of_order, .. } = self;
        writeln!(out, "lost {lost}, damaged {damaged}, unproven {unproven}, out of order {out_of_order}")
    }
}

/// Rings of a machine that is not there, and the load on it: task 100 + n lives on CPU n.
fn simulated() -> Result<(Recorder, Load), perfweave::Error> {
    let cpus = [0u32, 1, 2, 3];
    let layout = Layout::new(u64::from(bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME), true, 0);
    let kernel = sim::Kernel::backward(&cpus, 64 << 10, layout);
    let recorder = kernel.recorder(Key::Time)?;
    let tasks = Tasks::usual();
    let emit = move |cpu: u32, kind: u16, parts: [((usize, usize), u32); 2]| {
        let mut data = [0; 64];
        data[..2].copy_from_slice(&kind.to_ne_bytes());
        for ((pid, comm), task) in parts {
            data[comm..][..4].copy_from_slice(if task == 0 { b"idle" } else { b"task" });
            data[pid..][..4].copy_from_slice(&task.to_ne_bytes());
        }
        kernel.emit(cpu, Clock::Monotonic.now().unwrap_or(0), &data);
    };
    let load = Load::on(&online()[..1], move |_| {
        for cpu in cpus {
            let (from, task) = ((cpu + 3) % 4, 100 + cpu);
            // A waker has no name.
            emit(from, tasks.waking, [((tasks.common_pid, 40), 100 + from), (tasks.woken, task)]);
            emit(cpu, tasks.switch, [(tasks.prev, 0), (tasks.next, task)]);
            thread::sleep(Duration::from_micros(100));
            emit(cpu, tasks.switch, [(tasks.prev, task), (tasks.next, 0)]);
        }
    });
    Ok((recorder, load))
}
