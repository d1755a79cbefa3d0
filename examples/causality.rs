//! The adversary: a load that makes ordering as hard as possible, and the result of each hold rule.
//!
//! On every CPU a pinned thread calls a BPF program that reads the clock, works, and only then outputs; from time to time it works for
//! long. A second program does the same from interrupt context, five thousand times a second, on the same rings. So its records lie before
//! those of the programs that it interrupts. The key is the time that the programs read.
//!
//! ```text
//! cargo run --release --example causality -- --hold fence --seconds 10
//! cargo run --release --example causality -- --hold none --seconds 10 --json
//! ```

use perfweave::{Certainty, Event, Fence, Hold, Item, Key, Order, Reader, Rings, WhenFull};
use perfweave_support::args::Args;
use perfweave_support::by_ring::ByRing;
use perfweave_support::{bpf, load};
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
causality [--hold fence|membarrier|map|expedited|epoch|round|lag=1ms|none] [--full copy|copy=MIB|release|discard]
          [--epochs rightly|unlooked|key-first|leave-first|generations|forget] [--bytes N] [--stall MS] [--seconds N]
          [--delay TURNS] [--every US] [--spin US] [--json]
  --hold     the hold rule: fence (membarrier, or map where that is refused), or one of its ways by name; epoch (the programs say
             when they are inside); round, lag=…, none
  --epochs   how the programs keep to epochs: all but rightly are wrong, to see the order break (unlooked: nobody reads them)
  --spin     how long the reader goes on looking before it sleeps, in microseconds [0]
  --full     what to do about held records when a ring is full: copy (with so many MiB), release, discard [copy]
  --bytes    bytes of each ring [8388608]
  --stall    the consumer does something else for so many milliseconds, ten times a second [0]
  --seconds  how long the load runs [10]
  --delay    turns of work between clock and output of the slow program [2000]
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
    let mut args = Args::new(HELP);
    let hold = args.value("--hold", parse_hold)?.unwrap_or(Some(Hold::default()));
    let keeping = args.value("--epochs", parse_keeping)?.unwrap_or(Some(bpf::Keeping::Rightly));
    let time = args.seconds(10.0)?;
    let delay = args.value("--delay", |text| text.parse::<u32>().map_err(|error| error.to_string()))?.unwrap_or(2000);
    let full = args.value("--full", parse_full)?.unwrap_or_default();
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    let bytes = args.value("--bytes", number)?.unwrap_or(8 << 20);
    let stall = Duration::from_millis(args.value("--stall", number)?.unwrap_or(0));
    let spin = Duration::from_micros(args.value("--spin", number)?.unwrap_or(0));
    let every = args.value("--every", number)?.unwrap_or(200).saturating_mul(1000);
    let json = args.flag("--json");
    args.finish()?;

    // The programs and their load.
    let events = bpf::Map::perf_event_array(load::slots())?;
    let counter = bpf::Map::array(8, 1)?;
    let words = bpf::Map::epochs(load::slots())?;
    let keeping = if hold.is_none() { keeping } else { None };
    let stamps = bpf::Stamps { events: &events, counter: &counter, epochs: keeping.map(|keeping| (&words, keeping)) };
    let hold = match (hold, keeping) {
        (Some(hold), _) => hold,
        (None, Some(_)) => Hold::epochs(&words)?,
        // A fence that proves nothing.
        (None, None) => Hold::Fence(Fence::custom(|| Ok(()))),
    };
    let slow = stamps.on_syscall(libc::SYS_getppid, SLOW, delay)?;
    let quick = stamps.on_syscall(libc::SYS_getuid, QUICK, 20)?;
    let interrupt = stamps.on_clock(INTERRUPT)?;

    let rings = Rings::options().bpf_output(&events).bytes(bytes).open()?;
    let cpus: Vec<u32> = rings.cpus().collect();
    let clock = rings.clock();
    let order = Order::new().key(Key::Payload(0)).hold(hold).when_full(full).spin(spin);
    let mut reader = Reader::new(rings, order)?;

    let links = (slow.attach_raw_tracepoint("sys_enter")?, quick.attach_raw_tracepoint("sys_enter")?);
    let clocks = cpus.iter().map(|&cpu| interrupt.attach_clock(cpu, every)).collect::<Result<Vec<_>, _>>()?;
    let writers = load::Load::on(&cpus, |_| {
        for _ in 0..100 {
            load::getuid();
        }
        load::getppid();
    });

    let mut tally = Tally::default();
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
    drop((clocks, links));
    // Held events come out, and one more record for each CPU reports the last losses.
    tally.rest(&mut reader, || clock.now().unwrap_or(0))?;
    let last = stamps.when_run(QUICK)?;
    for &cpu in &cpus {
        last.run_on(cpu)?;
    }
    tally.rest(&mut reader, || clock.now().unwrap_or(0))?;

    let written = counter.lookup_u64(0, 0)?;
    let stats = reader.stats();
    let (p50, p99) = tally.hold_us();
    let unexplained = written as i64 - tally.yielded as i64 - stats.lost as i64;
    let fence = reader.fence().unwrap_or("none");
    if json {
        println!(
            "{}",
            perfweave_support::json!({
                "hold": reader.hold().to_string(),
                "fence": fence,
                "yielded": tally.yielded,
                "unproven": stats.early,
                "late": stats.late,
                "max_late_ns": stats.max_late,
                "out_of_order": tally.out_of_order,
                "inversions_by_ring": tally.inversions_by_ring,
                "repaired_in_ring": stats.repaired,
                "written": written,
                "lost": stats.lost,
                "unexplained": unexplained,
                "damaged": stats.damaged,
                "fences": stats.fences,
                "stand_ins": stats.stand_ins,
                "copied": stats.copied,
                "most_memory": stats.most_memory,
                "hold_p50_us": p50,
                "hold_p99_us": p99,
            })
        );
    } else {
        println!("hold rule            {} (fence: {fence}, {} of them)", reader.hold(), stats.fences);
        println!("events               {} of {written} written", tally.yielded);
        println!("unproven             {} let out early, because memory was used up", stats.early);
        println!("late                 {} (at most by {} ns)", stats.late, stats.max_late);
        println!("ring by ring         {} would have come out of order", tally.inversions_by_ring);
        println!("repaired in a ring   {}", stats.repaired);
        println!("lost, unexplained    {}, {unexplained}", stats.lost);
        println!("damaged              {}", stats.damaged);
        println!("held                 p50 {p50} µs, p99 {p99} µs");
        println!("stand-ins            {} kernel fences, for programs that did not leave", stats.stand_ins);
        println!("memory for holding   {} KiB at most", stats.most_memory >> 10);
    }
    Ok(())
}

const STALL_EVERY: Duration = Duration::from_millis(100);

const SLOW: u32 = 1;
const QUICK: u32 = 2;
const INTERRUPT: u32 = 3;

/// The events that came out.
#[derive(Default)]
struct Tally {
    yielded: u64,
    /// The largest key so far.
    largest: u64,
    /// Checked here again, independent of the certainty.
    out_of_order: u64,
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
            self.largest = self.largest.max(key);
            self.held_us.push(u32::try_from(now.saturating_sub(key) / 1000).unwrap_or(u32::MAX));
            self.by_ring.push(record.cpu(), key);
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
            if self.yielded == before && reader.held() == 0 {
                return Ok(());
            }
        }
    }

    fn hold_us(&mut self) -> (u32, u32) {
        let len = self.held_us.len();
        let mut at = |percent| match len {
            0 => 0,
            _ => *self.held_us.select_nth_unstable((len - 1) * percent / 100).1,
        };
        (at(50), at(99))
    }
}

/// `None` for epochs, which need the programs' words.
fn parse_hold(name: &str) -> Result<Option<Hold>, String> {
    Ok(Some(match name {
        "epoch" => return Ok(None),
        "fence" => Hold::FENCE,
        "membarrier" => Hold::Fence(Fence::Membarrier),
        "map" => Hold::Fence(Fence::Map),
        "expedited" => Hold::Fence(Fence::EXPEDITED),
        "round" => Hold::Round,
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

fn parse_full(name: &str) -> Result<WhenFull, String> {
    Ok(match name {
        "copy" => WhenFull::default(),
        "release" => WhenFull::Release,
        "discard" => WhenFull::Discard,
        other => {
            let mib = other.strip_prefix("copy=").and_then(|mib| mib.parse::<usize>().ok());
            WhenFull::Copy { most: mib.ok_or_else(|| format!("no way {other} to treat full rings"))? << 20 }
        }
    })
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
