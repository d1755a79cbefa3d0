//! Two threads on two CPUs hand a token back and forth, and each hand-over is an event: the true order is known by
//! construction. The ordered stream must alternate without exception; read ring by ring, the same events do not.
//!
//! ```text
//! cargo run --release --example pingpong -- --seconds 5
//! ```

use perfweave::{Order, Reader, Rings};
use perfweave_support::args::Args;
use perfweave_support::by_ring::ByRing;
use perfweave_support::{bpf, load};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const HELP: &str = "\
pingpong [--seconds N] [--json]
  --seconds  how long the token goes back and forth [5]
  --json     print one JSON object";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The two threads, by the number that their program writes.
const PING: u32 = 0;
const PONG: u32 = 1;

fn run() -> Result<bool, Box<dyn Error>> {
    let mut args = Args::new(HELP);
    let time = args.seconds(5.0)?;
    let json = args.flag("--json");
    args.finish()?;

    let events = bpf::Map::perf_event_array(load::slots())?;
    let counter = bpf::Map::array(8, 1)?;
    let ping = bpf::on_syscall(&events, &counter, libc::SYS_getppid, PING, 0)?;
    let pong = bpf::on_syscall(&events, &counter, libc::SYS_getuid, PONG, 0)?;

    // All defaults: the kernel's timestamps, proven by a fence.
    let rings = Rings::options().bpf_output(&events).bytes(4 << 20).open()?;
    let mut reader = Reader::new(rings, Order::new())?;
    let links = (ping.attach_raw_tracepoint("sys_enter")?, pong.attach_raw_tracepoint("sys_enter")?);

    let cpus = load::online();
    let (first, second) = (cpus[0], *cpus.last().unwrap_or(&cpus[0]));
    let players = [(PING, first, load::getppid as fn()), (PONG, second, load::getuid)];
    let token = Arc::new(AtomicU32::new(PING));
    let over = Arc::new(AtomicBool::new(false));
    let threads = players.map(|(me, cpu, emit)| {
        let (token, over) = (Arc::clone(&token), Arc::clone(&over));
        std::thread::spawn(move || {
            load::pin(cpu);
            while !over.load(Ordering::Relaxed) {
                // Acquire and Release: each thread's work with the token comes after the other's.
                if token.load(Ordering::Acquire) == me {
                    emit();
                    token.store(PING + PONG - me, Ordering::Release);
                } else if first == second {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
        })
    });

    let mut tally = Tally { next: PING, next_by_ring: PING, ..Tally::default() };
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        tally.batch(&mut reader, left.min(Duration::from_millis(100)))?;
    }
    over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| "a player panicked")?;
    }
    drop(links);
    while tally.batch(&mut reader, Duration::from_millis(300))? || reader.status().held > 0 {}

    let total = reader.status().total();
    let written = counter.lookup_u64(0, 0)?;
    if json {
        println!(
            "{}",
            perfweave_support::json!({
                "handovers": tally.handovers,
                "violations": tally.violations,
                "violations_by_ring": tally.violations_by_ring,
                "written": written,
                "lost": total.lost,
                "late": total.late,
                "damaged": total.damaged,
                "cpus": [first, second],
                "fence": reader.fence(),
            })
        );
    } else {
        println!("hand-overs            {} of {written}, between CPU {first} and CPU {second}", tally.handovers);
        println!("out of turn           {} in the ordered stream", tally.violations);
        println!(
            "out of turn by ring   {} of the same events, read one ring after the other",
            tally.violations_by_ring
        );
        println!("lost, damaged         {}, {}", total.lost, total.damaged);
        println!("late                  {}", total.late);
        println!("fence                 {}", reader.fence().unwrap_or("none"));
    }
    Ok(tally.violations == 0)
}

#[derive(Default)]
struct Tally {
    handovers: u64,
    next: u32,
    violations: u64,
    by_ring: ByRing<u32>,
    next_by_ring: u32,
    violations_by_ring: u64,
}

impl Tally {
    /// Takes a batch; whether there was anything in it.
    fn batch(&mut self, reader: &mut Reader, timeout: Duration) -> Result<bool, perfweave::Error> {
        let mut any = false;
        let Some(batch) = reader.batch(timeout)? else { return Ok(any) };
        for event in batch {
            // A lost or damaged event does not say whose turn it was. Losses are counted at the end; then both counts
            // of violations are useless.
            let Some(record) = event.record() else { continue };
            let Some(player) = record.payload().and_then(|payload| payload.u32(16)) else { continue };
            any = true;
            self.handovers += 1;
            self.violations += u64::from(player != self.next);
            self.next = PING + PONG - player;
            self.by_ring.push(record.cpu(), player);
        }
        for player in self.by_ring.pass() {
            self.violations_by_ring += u64::from(player != self.next_by_ring);
            self.next_by_ring = PING + PONG - player;
        }
        Ok(any)
    }
}
