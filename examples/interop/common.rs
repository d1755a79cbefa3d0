//! Shared code of both packages: the compiled program, the command line, and reading in order.

use perfweave::{ANY_CPU, Barrier, Clock, Fence, Hold, Key, Layout, Order, Reader, Record, Ring, Rings};
use perfweave_support::args::Args;
use perfweave_support::by_ring::ByRing;
use perfweave_support::load::{self, Load};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The BPF program as clang compiled it.
pub const OBJECT: &[u8] = &ALIGNED.0;

/// Loaders read structs out of it.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

const ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/order.bpf.o")));

const HELP: &str = concat!(
    env!("CARGO_PKG_NAME"),
    " [--rings perf|bpf] [--hold epoch|fence] [--seconds N] [--json]
  --rings    perf rings, or a BPF ring buffer [perf]
  --hold     what proves the order: what the program says of itself (in a BPF ring buffer: its reservations), or kernel fences [epoch]
  --seconds  how long to trace [5]
  --json     print one JSON object"
);

/// The command line.
pub struct Options {
    time: Duration,
    json: bool,
    fence: bool,
    /// Whether the program writes into a BPF ring buffer.
    pub ring_buffer: bool,
}

/// Takes the command line and runs the part of the loader.
pub fn main(run: fn(&Options) -> Result<bool, Box<dyn Error>>) -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}: {}", env!("CARGO_PKG_NAME"), with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes: the errors of some loaders have the kernel's error only as a cause.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut args = Args::new(HELP);
    let rings = args.value("--rings", |name| match name {
        "perf" => Ok(false),
        "bpf" => Ok(true),
        other => Err(format!("no rings {other}")),
    })?;
    let hold = args.value("--hold", |name| match name {
        "epoch" => Ok(false),
        "fence" => Ok(true),
        other => Err(format!("no hold rule {other}")),
    })?;
    let options = Options {
        time: args.seconds(5.0)?,
        json: args.flag("--json"),
        fence: hold.unwrap_or(false),
        ring_buffer: rings.unwrap_or(false),
    };
    args.finish()?;
    Ok(options)
}

/// A BPF ring buffer that all CPUs share, with the rule for a program that reserves by `perfweave_reserve`: it needs no word of the
/// program's.
pub fn ring_buffer(map: impl AsFd, failures: impl AsFd) -> Result<(Rings, Hold), Box<dyn Error>> {
    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: nobody else reads the map.
    rings.add(ANY_CPU, unsafe { Ring::adopt_ring_buffer(map) }?, Layout::RING_BUFFER.cpu_at(8));
    rings.count_failures(failures)?;
    Ok((rings, Hold::Fence(Fence::Reserved(Barrier::Programs))))
}

/// Reads the rings in proven order and prints their content. Gives whether all checks passed. The rule is for a program that marks when it
/// is inside.
pub fn read(rings: Rings, epochs: Hold, options: &Options) -> Result<bool, Box<dyn Error>> {
    // A kernel fence works for any program.
    let hold = if options.fence { Hold::FENCE } else { epochs };
    // Otherwise all defaults: the kernel's timestamps, or the program's own in a BPF ring buffer.
    let key = if options.ring_buffer { Key::Payload(0) } else { Key::Time };
    let mut reader = Reader::new(rings, Order::new().key(key).hold(hold))?;

    // Threads that move from CPU to CPU: each move writes into two rings.
    let cpus = load::online();
    let load = Load::on(&cpus.clone(), move |_| {
        for &cpu in &cpus {
            load::pin(cpu);
            std::thread::sleep(Duration::from_micros(100));
        }
    });

    // The same checks for the stream in order, and for the same events ring by ring.
    let mut ordered = Check::default();
    let mut by_ring = Check::default();
    let mut pass = ByRing::default();
    reader.set_deadline(Some(Instant::now() + options.time))?;
    while let Some(batch) = reader.batch(Duration::from_millis(100))? {
        for event in batch {
            // Losses and damage are counted at the end.
            let (Some(key), Some(record)) = (event.key(), event.record()) else { continue };
            let switch = Switch::read(&record, options).ok_or_else(|| format!("this is no switch: {record:?}"))?;
            if ordered.events < 10 && !options.json {
                println!("{key} {switch}");
            }
            ordered.event(key, &switch);
            // All CPUs share a BPF ring buffer.
            pass.push(if options.ring_buffer { 0 } else { switch.cpu }, (key, switch));
        }
        // A batch has the events that a reader finds when it wakes up. Most readers take one ring after the other.
        pass.pass().for_each(|(key, switch)| by_ring.event(key, &switch));
    }
    load.end();

    let stats = reader.stats();
    let (events, cpus) = (ordered.events, ordered.running.len());
    if options.json {
        println!(
            "{}",
            serde_json::json!({
                "events": events,
                "cpus": cpus,
                "late": stats.late,
                "out_of_order": ordered.out_of_order,
                "out_of_order_by_ring": by_ring.out_of_order,
                "arrived_before_left": ordered.early,
                "arrived_before_left_by_ring": by_ring.early,
                "unproven": stats.early,
                "lost": stats.lost,
                "damaged": stats.damaged,
                "hold": reader.hold().to_string(),
                "fence": reader.fence(),
                "stand_ins": stats.stand_ins,
            })
        );
    } else {
        println!("...");
        println!("events               {events}, from {cpus} CPUs");
        println!("out of order         {} (ring by ring: {})", ordered.out_of_order, by_ring.out_of_order);
        println!("arrived before left  {} (ring by ring: {})", ordered.early, by_ring.early);
        println!("unproven, late       {}, {}", stats.early, stats.late);
        println!("lost, damaged        {}, {}", stats.lost, stats.damaged);
        println!("hold rule            {} (fence: {})", reader.hold(), reader.fence().unwrap_or("none"));
    }
    // If switches are missing, a thread can seem to be on a wrong CPU.
    let early = ordered.early > 0 && stats.lost == 0;
    Ok(events > 0 && ordered.out_of_order == 0 && stats.damaged == 0 && !early)
}

/// `struct event` or `struct stamped` of order.bpf.c, and the CPU that wrote it.
#[derive(Clone, Copy)]
struct Switch {
    cpu: u32,
    prev_pid: u32,
    next_pid: u32,
    prev_comm: [u8; 16],
    next_comm: [u8; 16],
}

impl Switch {
    fn read(record: &Record<'_>, options: &Options) -> Option<Self> {
        let payload = record.payload()?.skip(if options.ring_buffer { 16 } else { 0 })?;
        Some(Self {
            cpu: record.cpu(),
            prev_pid: payload.u32(0)?,
            next_pid: payload.u32(4)?,
            prev_comm: payload.array(8)?,
            next_comm: payload.array(24)?,
        })
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |comm| String::from_utf8_lossy(comm).trim_end_matches('\0').to_owned();
        let (prev, next) = (name(&self.prev_comm), name(&self.next_comm));
        write!(f, "CPU {}: {prev}:{} -> {next}:{}", self.cpu, self.prev_pid, self.next_pid)
    }
}

/// The errors of a stream, by its keys and its events.
#[derive(Default)]
struct Check {
    events: u64,
    /// The largest key so far.
    largest: u64,
    /// How many keys were smaller than an earlier one.
    out_of_order: u64,
    /// Who runs on each CPU.
    running: BTreeMap<u32, Thread>,
    /// How many threads arrived on a CPU before they left another.
    early: u64,
}

struct Thread {
    pid: u32,
    /// Whether it has arrived on another CPU since.
    elsewhere: bool,
}

impl Check {
    fn event(&mut self, key: u64, switch: &Switch) {
        self.events += 1;
        self.out_of_order += u64::from(key < self.largest);
        self.largest = self.largest.max(key);

        let &Switch { cpu, prev_pid, next_pid, .. } = switch;
        // Every CPU has an idle thread, and all of them have the number 0.
        for (&other, thread) in &mut self.running {
            thread.elsewhere |= other != cpu && thread.pid == next_pid && next_pid != 0;
        }
        // Counted when it leaves, because a kernel need not trace every switch.
        let before = self.running.insert(cpu, Thread { pid: next_pid, elsewhere: false });
        self.early += u64::from(before.is_some_and(|thread| thread.elsewhere && thread.pid == prev_pid));
    }
}
