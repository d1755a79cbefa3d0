//! What both packages share: the compiled program, the command line, and reading in order.

use perfweave::{Certainty, Clock, Hold, Key, Layout, Order, Reader, Record, Ring, Rings};
use perfweave_proofs::Barrier;
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
    " [--rings perf|bpf] [--hold programs|fence] [--seconds N] [--json]
  --rings    perf rings, or a BPF ring buffer [perf]
  --hold     what proves the order: the programs (of perf rings by epochs, of a BPF ring buffer by its reservations), or kernel fences
             [programs]
  --seconds  how long to trace [5]
  --json     print one JSON object"
);

/// The command line.
pub struct Options {
    time: Duration,
    json: bool,
    fence: bool,
    /// The program that outputs into a BPF ring buffer, in place of the other.
    pub buffer: bool,
}

/// Takes the command line and runs what differs from loader to loader.
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

/// An error and its causes: some loaders' errors do not say in their own words what the kernel said.
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
    let hold = args.value("--hold", |name| match name {
        "programs" => Ok(false),
        "fence" => Ok(true),
        other => Err(format!("no hold rule {other}")),
    })?;
    let buffer = args.value("--rings", |name| match name {
        "perf" => Ok(false),
        "bpf" => Ok(true),
        other => Err(format!("no rings {other}")),
    })?;
    let (fence, buffer) = (hold.unwrap_or(false), buffer.unwrap_or(false));
    let options = Options { time: args.seconds(5.0)?, json: args.flag("--json"), fence, buffer };
    args.finish()?;
    Ok(options)
}

/// Reads a BPF ring buffer, and the count of failed reservations that belongs to it.
pub fn read_buffer(buffer: impl AsFd, failures: impl AsFd, options: &Options) -> Result<bool, Box<dyn Error>> {
    // The clock of bpf_ktime_get_ns().
    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: nobody else reads the map.
    for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(buffer) }? {
        rings.add(cpu, ring, Layout::RING_BUFFER.cpu_at(8));
    }
    rings.count_failures(failures)?;
    // The program has the barrier in perfweave_reserve().
    let reserved = Hold::Fence(Barrier::Programs.fence());
    read(rings, Order::new().key(Key::Payload(0)), reserved, options)
}

/// Reads the rings in proven order and prints what was in them; whether all of it was as it must be. `programs` is the
/// rule by what the program does for the proof.
pub fn read(rings: Rings, order: Order, programs: Hold, options: &Options) -> Result<bool, Box<dyn Error>> {
    // A kernel fence does for any program.
    let hold = if options.fence { Hold::FENCE } else { programs };
    let rule = hold.to_string();
    let mut reader = Reader::new(rings, order.hold(hold))?;

    // Threads that move from CPU to CPU: what happens in each move is written into two rings.
    let cpus = load::online();
    let load = Load::on(&cpus.clone(), move |_| {
        for &cpu in &cpus {
            load::pin(cpu);
            std::thread::sleep(Duration::from_micros(100));
        }
    });

    // The same checks for the stream in order, and for the same events as they lay in the rings.
    let mut ordered = Check::default();
    let mut by_ring = Check::default();
    let mut pass = ByRing::default();
    let mut unproven = 0;
    reader.handle().set_deadline(Some(Instant::now() + options.time))?;
    while let Some(batch) = reader.batch(Duration::from_millis(100))? {
        for event in batch {
            // What is lost or damaged is counted in the end.
            let (Some(key), Some(record)) = (event.key(), event.record()) else { continue };
            let switch = Switch::read(&record).ok_or_else(|| format!("this is no switch: {record:?}"))?;
            if ordered.events < 10 && !options.json {
                println!("{key} {switch}");
            }
            unproven += u64::from(event.certainty() == Certainty::Assumed);
            ordered.event(key, &switch);
            pass.push(switch.cpu, (key, switch));
        }
        // A batch is what a reader finds when it wakes up, and most readers take one ring after the other.
        pass.pass().for_each(|(key, switch)| by_ring.event(key, &switch));
    }
    load.end();

    let status = reader.status();
    let total = status.total();
    let (events, cpus) = (ordered.events, ordered.running.len());
    if options.json {
        println!(
            "{}",
            serde_json::json!({
                "events": events,
                "cpus": cpus,
                "unproven": unproven,
                "late": total.late,
                "out_of_order": ordered.out_of_order,
                "out_of_order_by_ring": by_ring.out_of_order,
                "arrived_before_left": ordered.early,
                "arrived_before_left_by_ring": by_ring.early,
                "lost": total.lost,
                "damaged": total.damaged,
                "hold": rule,
                "fence": reader.fence(),
                "stand_ins": status.stand_ins,
            })
        );
    } else {
        println!("...");
        println!("events               {events}, from {cpus} CPUs");
        println!("out of order         {} (ring by ring: {})", ordered.out_of_order, by_ring.out_of_order);
        println!("arrived before left  {} (ring by ring: {})", ordered.early, by_ring.early);
        println!("unproven, late       {unproven}, {}", total.late);
        println!("lost, damaged        {}, {}", total.lost, total.damaged);
        println!("hold rule            {rule} (fence: {})", reader.fence().unwrap_or("none"));
    }
    // With switches missing, a thread may well seem to be where it is not.
    let early = ordered.early > 0 && total.lost == 0;
    Ok(events > 0 && ordered.out_of_order == 0 && total.damaged == 0 && !early)
}

/// `struct event` of order.bpf.c, and the CPU that wrote it.
#[derive(Clone, Copy)]
struct Switch {
    cpu: u32,
    prev_pid: u32,
    next_pid: u32,
    prev_comm: [u8; 16],
    next_comm: [u8; 16],
}

impl Switch {
    fn read(record: &Record<'_>) -> Option<Self> {
        let payload = record.payload()?;
        // In a BPF ring buffer, time and CPU come first.
        let at = if record.time().is_some() { 0 } else { 16 };
        Some(Self {
            cpu: record.cpu(),
            prev_pid: payload.u32(at)?,
            next_pid: payload.u32(at + 4)?,
            prev_comm: payload.array(at + 8)?,
            next_comm: payload.array(at + 24)?,
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

/// What is wrong with a stream, by its keys and by what it tells.
#[derive(Default)]
struct Check {
    events: u64,
    /// The largest key so far.
    largest: u64,
    /// How many keys were smaller than one before.
    out_of_order: u64,
    /// Who runs on each CPU.
    running: BTreeMap<u32, Thread>,
    /// How many threads arrived on a CPU before they left another.
    early: u64,
}

struct Thread {
    pid: u32,
    /// Whether it has been seen to arrive on another CPU since.
    elsewhere: bool,
}

impl Check {
    fn event(&mut self, key: u64, switch: &Switch) {
        self.events += 1;
        self.out_of_order += u64::from(key < self.largest);
        self.largest = self.largest.max(key);

        let &Switch { cpu, prev_pid, next_pid, .. } = switch;
        // Every CPU has an idle thread, and 0 is the number of them all.
        for (&other, thread) in &mut self.running {
            thread.elsewhere |= other != cpu && thread.pid == next_pid && next_pid != 0;
        }
        // Counted when it does leave, since not all that leave are seen to: a kernel need not trace every switch.
        let before = self.running.insert(cpu, Thread { pid: next_pid, elsewhere: false });
        self.early += u64::from(before.is_some_and(|thread| thread.elsewhere && thread.pid == prev_pid));
    }
}
