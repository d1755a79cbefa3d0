//! The adversary: a load that makes ordering as hard as possible, and the result of each hold rule.
//!
//! On every CPU a pinned thread calls a BPF program that reads the clock, works, and only then outputs; from time to
//! time it works for long. A second program does the same from interrupt context, five thousand times a second, on the
//! same rings. So its records lie before those of the programs that it interrupts. The key is the time that the
//! programs read.
//!
//! The rings are perf rings, or BPF ring buffers: one for each CPU, or one that all share. There the programs reserve
//! first, and read the clock inside the reservation. They work before that and behind it. Or both kinds of rings are
//! one stream: the slow program writes into BPF ring buffers, the quick one into perf rings, and interrupts into both.
//!
//! ```text
//! cargo run --release --example causality -- --hold fence --seconds 10
//! cargo run --release --example causality -- --hold none --seconds 10 --json
//! cargo run --release --example causality -- --rings bpf --hold reserved --seconds 10
//! ```

use perfweave::{Certainty, Clock, Event, Fence, Hold, Item, Key, Layout, Order, Reader, Ring, Rings};
use perfweave_proofs::{Barrier, Epochs, expedited};
use perfweave_support::args::Args;
use perfweave_support::by_ring::ByRing;
use perfweave_support::ring_buffer::{self, Reserving, Turns, Way};
use perfweave_support::sleeper::Sleeper;
use perfweave_support::{bpf, load};
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
causality [--rings perf|bpf|bpf-shared|mixed] [--hold fence|membarrier|map|expedited|epoch|reserved|isolated|programs|lag=1ms|none]
          [--held MIB] [--epochs rightly|unlooked|key-first|leave-first|generations|forget]
          [--keys inside|barrier|first|output] [--sleep US] [--bytes N] [--stall MS] [--seconds N] [--delay TURNS] [--every US]
          [--spin US] [--json]
  --rings    perf rings, a BPF ring buffer for each CPU, one that all CPUs share, or both a perf ring and a BPF ring buffer for each CPU
             [perf]
  --hold     the hold rule: fence (membarrier, or map where that is refused), or one of its ways by name; epoch (the programs say
             when they are inside); reserved (of BPF ring buffers; every CPU is interrupted), isolated (the same, also where CPUs are kept
             free of other work), programs (the same, with a barrier in the
             programs instead); lag=…, none
  --epochs   how the programs keep to epochs: all but rightly are wrong, to see the order break (unlooked: nobody reads them)
  --keys     where programs draw keys of BPF ring buffers: inside the reservation, there behind a barrier, before the reservation, before
             bpf_ringbuf_output() [barrier with --hold programs, else inside]
  --sleep    a program sleeps inside a reservation for so many microseconds, again and again; 0 for none [0]
  --spin     how long the reader goes on looking before it sleeps, in microseconds [0]
  --held     how many MiB of held records may be copied out of rings that fill up; with 0 the kernel drops what does not fit [64]
  --bytes    bytes of each ring, a power of two [8388608]
  --stall    the consumer does something else for so many milliseconds, ten times a second [0]
  --seconds  how long the load runs [10]
  --delay    turns of work between clock and output of the slow program, and also between reservation and clock [2000]
  --every    each CPU is interrupted once in so many microseconds [200]
  --json     print one JSON object";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("causality: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let options = Options::parse()?;
    let Options { time, stall, json, .. } = options;
    let maps = Maps::new(&options)?;
    let programs = maps.programs(&options)?;
    let hold = match options.hold {
        Rule::Hold(hold) => hold,
        Rule::Epochs(Some(_)) => Hold::Fence(Epochs::open(&maps.words)?.fence()),
        // A proof that looks at nothing.
        Rule::Epochs(None) => Hold::Fence(Fence::by(|| Ok(()))),
    };
    let rule = hold.to_string();
    let order = Order::new().key(Key::Payload(0)).hold(hold).most_held(options.held).spin(options.spin);
    let rings = maps.open(options.bytes, &order)?;
    let clock = rings.clock();
    let mut reader = Reader::new(rings, order)?;

    let cpus = load::online();
    let links = (programs.slow.attach_raw_tracepoint("sys_enter")?, programs.quick.attach_raw_tracepoint("sys_enter")?);
    let mut clocks = Vec::new();
    for interrupt in &programs.interrupts {
        for &cpu in &cpus {
            clocks.push(interrupt.attach_clock(cpu, options.every)?);
        }
    }
    let sleeper = programs.sleeper.map(|program| sleep_again_and_again(program, options.sleep)).transpose()?;
    let writers = load::Load::on(&cpus, |_| {
        for _ in 0..100 {
            load::getuid();
        }
        load::getppid();
    });

    let mut tally = Tally { shared: options.rings == Kind::BpfShared, ..Tally::default() };
    let end = Instant::now() + time;
    let mut next_stall = Instant::now() + STALL_EVERY;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let Some(batch) = reader.batch(left.min(Duration::from_millis(100)))? else { break };
        tally.batch(batch, || clock.now().unwrap_or(0));
        if !stall.is_zero() && Instant::now() >= next_stall {
            std::thread::sleep(stall);
            next_stall = Instant::now() + STALL_EVERY;
        }
    }
    writers.end();
    sleeper.map_or(Ok(()), load::Beside::end)?;
    drop((clocks, links));
    // Held events come out, and one more record for each CPU reports the last losses.
    tally.rest(&mut reader, || clock.now().unwrap_or(0))?;
    for last in &programs.lasts {
        cpus.iter().try_for_each(|cpu| last.run_on(*cpu).map(drop))?;
    }
    tally.rest(&mut reader, || clock.now().unwrap_or(0))?;

    let written = maps.counter.lookup_u64(0, 0)?;
    let refused = maps.failures.counted()?;
    let status = reader.status();
    let total = status.total();
    let (p50, p99) = tally.hold_us();
    let unexplained = written as i64 - tally.yielded as i64 - total.lost as i64;
    let fence = reader.fence().unwrap_or("none");
    if json {
        println!(
            "{}",
            perfweave_support::json!({
                "hold": rule,
                "fence": fence,
                "yielded": tally.yielded,
                "unproven": tally.unproven,
                "late": total.late,
                "max_late_ns": total.max_late,
                "out_of_order": tally.out_of_order,
                "inversions_by_ring": tally.inversions_by_ring,
                "repaired_in_ring": total.repaired,
                "written": written,
                "lost": total.lost,
                "refused": refused,
                "unexplained": unexplained,
                "damaged": total.damaged,
                "fences": status.fences,
                "stand_ins": status.stand_ins,
                "copied": total.copied,
                "most_memory": status.most_memory,
                "hold_p50_us": p50,
                "hold_p99_us": p99,
            })
        );
    } else {
        println!("hold rule            {rule} (fence: {fence}, {} of them)", status.fences);
        println!("events               {} of {written} written", tally.yielded);
        println!("unproven             {}", tally.unproven);
        println!("late                 {} (at most by {} ns)", total.late, total.max_late);
        println!("ring by ring         {} would have come out of order", tally.inversions_by_ring);
        println!("repaired in a ring   {}", total.repaired);
        println!("lost, unexplained    {}, {unexplained}", total.lost);
        if options.rings != Kind::Perf {
            println!("refused              {refused} reservations");
        }
        println!("damaged              {}", total.damaged);
        println!("held                 p50 {p50} µs, p99 {p99} µs");
        println!("stand-ins            {} kernel fences, for programs that did not leave", status.stand_ins);
        println!("memory for copies    {} KiB at most", status.most_memory >> 10);
    }
    Ok(())
}

/// The command line.
struct Options {
    rings: Kind,
    hold: Rule,
    way: Way,
    time: Duration,
    delay: u32,
    /// Bytes.
    held: usize,
    bytes: u64,
    stall: Duration,
    spin: Duration,
    sleep: Duration,
    /// Nanoseconds.
    every: u64,
    json: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Perf,
    Bpf,
    BpfShared,
    Mixed,
}

enum Rule {
    Hold(Hold),
    /// How the programs keep to epochs; `None` if nobody reads what they say.
    Epochs(Option<bpf::Keeping>),
}

impl Options {
    fn parse() -> Result<Self, Box<dyn Error>> {
        let mut args = Args::new(HELP);
        let rings = args.value("--rings", parse_rings)?.unwrap_or(Kind::Perf);
        let name = args.value("--hold", |name| Ok::<_, String>(name.to_owned()))?;
        let hold = name.as_deref().map_or(Ok(Some(Hold::default())), parse_hold)?;
        let keeping = args.value("--epochs", parse_keeping)?.unwrap_or(Some(bpf::Keeping::Rightly));
        let way = if name.as_deref() == Some("programs") { Way::Barrier } else { Way::Inside };
        let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        let options = Self {
            rings,
            hold: hold.map_or(Rule::Epochs(keeping), Rule::Hold),
            way: args.value("--keys", parse_way)?.unwrap_or(way),
            time: args.seconds(10.0)?,
            delay: args.value("--delay", |text| text.parse().map_err(|error| format!("{error}")))?.unwrap_or(2000),
            held: args.value("--held", parse_mib)?.unwrap_or(64 << 20),
            bytes: args.value("--bytes", number)?.unwrap_or(8 << 20),
            stall: Duration::from_millis(args.value("--stall", number)?.unwrap_or(0)),
            spin: Duration::from_micros(args.value("--spin", number)?.unwrap_or(0)),
            sleep: Duration::from_micros(args.value("--sleep", number)?.unwrap_or(0)),
            every: args.value("--every", number)?.unwrap_or(200).saturating_mul(1000),
            json: args.flag("--json"),
        };
        args.finish()?;
        if options.rings != Kind::Perf && matches!(options.hold, Rule::Epochs(_)) {
            return Err("the programs of BPF ring buffers keep to no epochs here".into());
        }
        if options.rings == Kind::Perf && !options.sleep.is_zero() {
            return Err("no program sleeps inside the output into a perf ring".into());
        }
        Ok(options)
    }
}

/// What the programs share.
struct Maps {
    /// The array of events of perf rings.
    events: Option<bpf::Map>,
    /// A BPF ring buffer, or the map of them.
    buffers: Option<bpf::Map>,
    counter: bpf::Map,
    words: bpf::Map,
    failures: bpf::Map,
}

impl Maps {
    fn new(options: &Options) -> Result<Self, Box<dyn Error>> {
        let bytes = u32::try_from(options.bytes)?;
        let has_events = matches!(options.rings, Kind::Perf | Kind::Mixed);
        let events = has_events.then(|| bpf::Map::perf_event_array(load::slots())).transpose()?;
        let buffers = match options.rings {
            Kind::Perf => None,
            Kind::Bpf | Kind::Mixed => Some(bpf::Map::ring_buffers(bytes, &load::online())?.0),
            Kind::BpfShared => Some(bpf::Map::ring_buffer(bytes)?),
        };
        let (counter, words) = (ring_buffer::counter()?, bpf::Map::epochs(load::slots())?);
        Ok(Self { events, buffers, counter, words, failures: bpf::Map::counts()? })
    }

    fn programs(&self, options: &Options) -> io::Result<Programs> {
        let Self { events, buffers, counter, words, failures } = self;
        let (mut slow, mut quick, mut sleeper) = (None, None, None);
        let (mut interrupts, mut lasts) = (Vec::new(), Vec::new());
        if let Some(rings) = buffers {
            let reserving = Reserving { rings, counter, failures, way: options.way, discard: None };
            let turns = |turns| Turns { before: turns, after: turns };
            slow = Some(reserving.on_syscall(libc::SYS_getppid, SLOW, turns(options.delay))?);
            quick = Some(reserving.on_syscall(libc::SYS_getuid, QUICK, turns(10))?);
            interrupts.push(reserving.on_clock(INTERRUPT)?);
            lasts.push(reserving.when_run(QUICK)?);
            if !options.sleep.is_zero() {
                sleeper = Some(reserving.when_called(SLEEPER)?);
            }
        }
        if let Some(events) = events {
            let keeping = if let Rule::Epochs(keeping) = options.hold { keeping } else { None };
            let stamps = bpf::Stamps { events, counter, epochs: keeping.map(|keeping| (words, keeping)) };
            if slow.is_none() {
                slow = Some(stamps.on_syscall(libc::SYS_getppid, SLOW, options.delay)?);
            }
            quick = Some(stamps.on_syscall(libc::SYS_getuid, QUICK, 20)?);
            interrupts.push(stamps.on_clock(INTERRUPT)?);
            lasts.push(stamps.when_run(QUICK)?);
        }
        let (Some(slow), Some(quick)) = (slow, quick) else { return Err(io::Error::other("no rings")) };
        Ok(Programs { slow, quick, interrupts, lasts, sleeper })
    }

    fn open(&self, bytes: u64, order: &Order) -> Result<Rings, perfweave::Error> {
        let mut rings = match &self.events {
            Some(events) => order.ring_options().bpf_output(events).bytes(bytes).open()?,
            None => Rings::empty(Clock::Monotonic),
        };
        if let Some(buffers) = &self.buffers {
            // SAFETY: nobody else reads this map.
            let adopted = unsafe { Ring::adopt_ring_buffers(buffers) }?;
            for (cpu, ring) in adopted {
                rings.add(cpu, ring, Layout::RING_BUFFER.cpu_at(20));
            }
            rings.count_failures(&self.failures)?;
        }
        Ok(rings)
    }
}

struct Programs {
    slow: bpf::Program,
    quick: bpf::Program,
    /// One for each kind of rings.
    interrupts: Vec<bpf::Program>,
    lasts: Vec<bpf::Program>,
    /// Sleeps inside a reservation.
    sleeper: Option<bpf::Program>,
}

/// One thread calls the program, which sleeps; another wakes it.
fn sleep_again_and_again(program: bpf::Program, time: Duration) -> io::Result<load::Beside> {
    let memory = Sleeper::new()?;
    Ok(load::Beside::start(move |wait| {
        let mut go_on = true;
        while go_on {
            memory.again();
            go_on = std::thread::scope(|scope| {
                let call = scope.spawn(|| program.run_here(&[memory.address()]));
                // In a full ring it has no reservation to sleep in.
                while !call.is_finished() && !memory.asleep_within(Duration::from_millis(1)) {}
                let go_on = wait(time);
                memory.wake();
                call.join().map_err(|_| "a thread panicked".to_owned())?.map_err(|error| error.to_string())?;
                Ok::<_, String>(go_on)
            })?;
        }
        Ok(())
    }))
}

const STALL_EVERY: Duration = Duration::from_millis(100);

const SLOW: u32 = 1;
const QUICK: u32 = 2;
const INTERRUPT: u32 = 3;
const SLEEPER: u32 = 4;

/// The events that came out.
#[derive(Default)]
struct Tally {
    yielded: u64,
    /// The largest key so far.
    largest: u64,
    /// Checked here again, independent of the certainty.
    out_of_order: u64,
    /// Those whose order is only assumed.
    unproven: u64,
    /// One ring for all CPUs.
    shared: bool,
    by_ring: ByRing<u64>,
    largest_by_ring: u64,
    inversions_by_ring: u64,
    /// How long each event was held, in microseconds, from its key to the yield.
    held_us: Vec<u32>,
}

impl Tally {
    fn batch<'a>(&mut self, batch: impl Iterator<Item = Event<'a>>, now: impl Fn() -> u64) {
        let now = now();
        for event in batch {
            let Item::Record(record) = event.item() else { continue };
            let Some(key) = event.key() else { continue };
            self.yielded += 1;
            if key < self.largest && event.certainty() != Certainty::Late {
                self.out_of_order += 1;
            }
            self.unproven += u64::from(event.certainty() == Certainty::Assumed);
            self.largest = self.largest.max(key);
            self.held_us.push(u32::try_from(now.saturating_sub(key) / 1000).unwrap_or(u32::MAX));
            self.by_ring.push(if self.shared { 0 } else { record.cpu() }, key);
        }
        // A batch has the events that a reader finds when it is woken.
        for key in self.by_ring.pass() {
            self.inversions_by_ring += u64::from(key < self.largest_by_ring);
            self.largest_by_ring = self.largest_by_ring.max(key);
        }
    }

    fn rest(&mut self, reader: &mut Reader, now: impl Fn() -> u64) -> Result<(), perfweave::Error> {
        loop {
            let before = self.yielded;
            let Some(batch) = reader.batch(Duration::from_millis(300))? else { return Ok(()) };
            self.batch(batch, &now);
            if self.yielded == before && reader.status().held == 0 {
                return Ok(());
            }
        }
    }

    fn hold_us(&mut self) -> (u32, u32) {
        let len = self.held_us.len();
        let mut at = |percent: usize| match len {
            0 => 0,
            _ => *self.held_us.select_nth_unstable((len * percent).div_ceil(100) - 1).1,
        };
        (at(50), at(99))
    }
}

fn parse_rings(name: &str) -> Result<Kind, String> {
    Ok(match name {
        "perf" => Kind::Perf,
        "bpf" => Kind::Bpf,
        "bpf-shared" => Kind::BpfShared,
        "mixed" => Kind::Mixed,
        other => return Err(format!("no rings {other}")),
    })
}

fn parse_way(name: &str) -> Result<Way, String> {
    Ok(match name {
        "inside" => Way::Inside,
        "barrier" => Way::Barrier,
        "first" => Way::KeyFirst,
        "output" => Way::Output,
        other => return Err(format!("no keys {other}")),
    })
}

/// `None` for epochs, which need the programs' words.
fn parse_hold(name: &str) -> Result<Option<Hold>, String> {
    Ok(Some(match name {
        "epoch" => return Ok(None),
        "fence" => Hold::FENCE,
        "membarrier" => Hold::Fence(Fence::Membarrier),
        "map" => Hold::Fence(Fence::Map),
        "expedited" => Hold::Fence(expedited(Duration::from_millis(1))),
        "reserved" => Hold::Fence(Barrier::INTERRUPTS.fence()),
        "isolated" => {
            let every = Duration::from_micros(100);
            Hold::Fence(Barrier::Interrupts { every, isolated: true }.fence())
        }
        "programs" => Hold::Fence(Barrier::Programs.fence()),
        "none" => Hold::None,
        other => Hold::Lag(parse_lag(other).ok_or_else(|| format!("no hold rule {other}"))?),
    }))
}

/// `None` if the reader does not read the programs' words.
fn parse_keeping(name: &str) -> Result<Option<bpf::Keeping>, String> {
    Ok(Some(match name {
        "unlooked" => return Ok(None),
        "rightly" => bpf::Keeping::Rightly,
        "key-first" => bpf::Keeping::KeyFirst,
        "leave-first" => bpf::Keeping::LeaveFirst,
        "generations" => bpf::Keeping::Generations,
        "forget" => bpf::Keeping::Forget,
        other => return Err(format!("no way {other} to keep to epochs")),
    }))
}

fn parse_mib(text: &str) -> Result<usize, String> {
    let bytes = text.parse::<usize>().ok().and_then(|mib| mib.checked_mul(1 << 20));
    bytes.ok_or_else(|| format!("{text} is no number of MiB"))
}

fn parse_lag(text: &str) -> Option<Duration> {
    let time = text.strip_prefix("lag=")?;
    let unit = time.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = time[..unit].parse().ok()?;
    match &time[unit..] {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}
