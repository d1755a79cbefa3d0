//! A tool that reads perf event arrays ring by ring and prints what it finds, as tools on libbpf do. It knows nothing of
//! order. Its standard input tells it what to write and when to stop reading.

#[cfg(feature = "aya")]
mod aya;

use crate::bpf::{Asm, Kind, Map, Program, Reg};
use crate::foreign::{ForeignRing, set_slot};
use crate::load::{pin, slots};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A map, its rings, and the program that writes a number into it.
struct Output {
    map: Map,
    number: Program,
    rings: Box<dyn Rings>,
}

/// Who opens and reads the rings of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// This package, as libbpf does.
    Own,
    /// The crate aya.
    #[cfg(feature = "aya")]
    Aya,
}

/// What a ring has.
#[derive(Debug)]
enum Found<'a> {
    Sample(&'a [u8]),
    Lost(u64),
    Other(u32),
}

/// The rings of a map.
trait Rings: Send {
    /// Reads them one after the other.
    fn read(&mut self, each: &mut dyn FnMut(u32, Found<'_>));
    /// Descriptors to wait for.
    fn events(&self) -> Vec<OwnedFd>;
}

impl Rings for Vec<(u32, ForeignRing)> {
    fn read(&mut self, each: &mut dyn FnMut(u32, Found<'_>)) {
        for (cpu, ring) in self {
            ring.read(|record| each(*cpu, found(record)));
        }
    }

    fn events(&self) -> Vec<OwnedFd> {
        self.iter().filter_map(|(_, ring)| ring.as_fd().try_clone_to_owned().ok()).collect()
    }
}

fn found(record: &[u8]) -> Found<'_> {
    let word = |at: usize| record.get(at..at + 4).map_or(0, |word| u32::from_ne_bytes(word.try_into().expect("four")));
    match word(0) {
        // PERF_RECORD_SAMPLE: u32 size; bytes.
        9 => {
            let payload = &record[12..];
            assert_eq!(payload.len(), word(8) as usize, "as long as it says");
            Found::Sample(payload)
        }
        // PERF_RECORD_LOST: u64 id; u64 lost.
        2 => Found::Lost(u64::from_ne_bytes(record[16..24].try_into().expect("eight"))),
        other => Found::Other(other),
    }
}

/// What the thread that reads knows of the others.
#[derive(Default)]
struct Shared {
    outputs: Mutex<Vec<Output>>,
    is_stopped: AtomicBool,
    is_over: AtomicBool,
}

/// Runs the tool on two CPUs, with rings of so many bytes, until its input ends.
///
/// | line of its input | what it does |
/// | --- | --- |
/// | `map` | opens a perf event array and its rings; there is none before |
/// | `hand MAP N` | a thread on each CPU: they hand a number to and fro, and write it, N times |
/// | `flood MAP N` | a thread on each CPU writes N numbers, as fast as it can |
/// | `size MAP BYTES` | writes one record of so many bytes on the second CPU |
/// | `again MAP` | puts its events into the slots again; `again MAP N` the one at place N alone |
/// | `stop`, `go` | does not read any more; reads again |
///
/// It says `done` after each. For a record it prints `MAP CPU BYTES NUMBER SUM`: its bytes as the kernel says, the number
/// at their begin, and a sum of as many as were written, for `size`. For a loss `lost MAP CPU COUNT`.
///
/// # Errors
/// If the kernel refuses something.
///
/// # Panics
/// If a thread does.
pub fn run(by: By, cpus: [u32; 2], bytes: usize) -> io::Result<()> {
    let shared = Arc::new(Shared::default());
    let reader = {
        let shared = Arc::clone(&shared);
        thread::Builder::new().name("reader".into()).spawn(move || read(&shared))?
    };
    let result = io::stdin().lock().lines().try_for_each(|line| {
        command(&shared, by, cpus, bytes, &line?)?;
        say("done");
        Ok(())
    });
    // What was written is read.
    shared.is_over.store(true, Ordering::Release);
    reader.join().expect("the reader lives");
    result
}

fn say(line: &str) {
    // The end of who reads it ends the tool by SIGPIPE's error: then nobody is left to be told.
    let _ = writeln!(io::stdout().lock(), "{line}");
}

fn command(shared: &Shared, by: By, cpus: [u32; 2], bytes: usize, line: &str) -> io::Result<()> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let program = |map: u64| shared.outputs.lock().expect("no panic")[map as usize].number.try_clone();
    match words.first().copied() {
        Some("map") => {
            let output = open(by, cpus, bytes)?;
            shared.outputs.lock().expect("no panic").push(output);
        }
        Some("hand") => hand(&program(number(1))?, cpus, number(2)),
        Some("flood") => flood(&program(number(1))?, cpus, number(2)),
        Some("size") => {
            let program = {
                let outputs = shared.outputs.lock().expect("no panic");
                sized(&outputs[number(1) as usize].map, number(2) as u32)?
            };
            program.run_on(cpus[1])?;
        }
        Some("again") => {
            let outputs = shared.outputs.lock().expect("no panic");
            let Output { map, rings, .. } = &outputs[number(1) as usize];
            let only = line.split(' ').nth(2).and_then(|place| place.parse::<usize>().ok());
            let all = rings.events();
            let events = all.iter().zip(cpus).enumerate().filter(|(at, _)| only.is_none_or(|only| only == *at));
            for (_, (event, cpu)) in events {
                set_slot(map, cpu, event)?;
            }
        }
        Some("stop") => shared.is_stopped.store(true, Ordering::Release),
        Some("go") => shared.is_stopped.store(false, Ordering::Release),
        _ => return Err(io::Error::other(format!("{line}: not known"))),
    }
    Ok(())
}

fn open(by: By, cpus: [u32; 2], bytes: usize) -> io::Result<Output> {
    let map = Map::perf_event_array(slots())?;
    let rings: Box<dyn Rings> = match by {
        By::Own => {
            let mut rings = Vec::new();
            for cpu in cpus {
                let ring = ForeignRing::open(cpu, bytes)?;
                set_slot(&map, cpu, &ring)?;
                rings.push((cpu, ring));
            }
            Box::new(rings)
        }
        #[cfg(feature = "aya")]
        By::Aya => Box::new(aya::open(&map, cpus, bytes)?),
    };
    let mut asm = Asm::new();
    asm.mov(Reg::R6, Reg::R1).load(Reg::R1, Reg::R6, 0).store(Reg::R10, -8, Reg::R1);
    asm.output(Reg::R6, &map, -8, 8).mov_i(Reg::R0, 0).exit();
    Ok(Output { number: Program::load(Kind::RawTracepoint, &asm)?, map, rings })
}

/// A program that writes one record of so many bytes: 0, 1, 2 and so on.
fn sized(map: &Map, size: u32) -> io::Result<Program> {
    let array = Map::array(1 << 16, 1)?;
    let pattern: Vec<u8> = (0..1 << 16).map(pattern).collect();
    array.update(0, &pattern)?;
    let mut asm = Asm::new();
    asm.mov(Reg::R6, Reg::R1).output_value(Reg::R6, map, &array, size).mov_i(Reg::R0, 0).exit();
    Program::load(Kind::RawTracepoint, &asm)
}

fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

/// How many bytes at the begin are the pattern.
fn matching(payload: &[u8]) -> usize {
    payload.iter().enumerate().take_while(|(at, byte)| **byte == pattern(*at)).count()
}

/// A thread on each CPU: they take turns.
fn turns(cpus: [u32; 2], steps: u64, step: impl Fn(u32, u64) + Sync) {
    let turn = AtomicU64::new(0);
    thread::scope(|scope| {
        for (me, cpu) in cpus.into_iter().enumerate() {
            let (turn, step) = (&turn, &step);
            scope.spawn(move || {
                pin(cpu);
                loop {
                    let now = turn.load(Ordering::Acquire);
                    if now >= steps {
                        break;
                    }
                    if now % 2 == me as u64 {
                        step(cpu, now);
                        turn.store(now + 1, Ordering::Release);
                    } else {
                        thread::yield_now();
                    }
                }
            });
        }
    });
}

/// Two threads hand a number to and fro, and each opens the file `/order/NUMBER`, which does not exist.
///
/// # Panics
/// If a CPU cannot be had.
pub fn opens(cpus: [u32; 2], steps: u64) {
    turns(cpus, steps, |_, now| drop(std::fs::File::open(format!("/order/{now}"))));
}

fn hand(program: &Program, cpus: [u32; 2], steps: u64) {
    turns(cpus, steps, |cpu, now| {
        program.run_with(cpu, &[now]).expect("it runs");
    });
}

fn flood(program: &Program, cpus: [u32; 2], count: u64) {
    thread::scope(|scope| {
        for cpu in cpus {
            scope.spawn(move || {
                pin(cpu);
                for number in 0..count {
                    program.run_with(cpu, &[number]).expect("it runs");
                }
            });
        }
    });
}

fn read(shared: &Shared) {
    loop {
        // Before the last look.
        let is_over = shared.is_over.load(Ordering::Acquire);
        if !shared.is_stopped.load(Ordering::Acquire) || is_over {
            let mut outputs = shared.outputs.lock().expect("no panic");
            for (map, output) in outputs.iter_mut().enumerate() {
                let mut lines = String::new();
                output.rings.read(&mut |cpu, found| lines += &text(map, cpu, &found));
                if !lines.is_empty() {
                    let _ = io::stdout().lock().write_all(lines.as_bytes());
                }
            }
        }
        if is_over {
            return;
        }
        wait(shared);
    }
}

/// Waits for a record in any ring, or a little.
fn wait(shared: &Shared) {
    let events: Vec<_> = {
        let outputs = shared.outputs.lock().expect("no panic");
        outputs.iter().flat_map(|output| output.rings.events()).collect()
    };
    let mut polled: Vec<_> = events.iter().map(|event| PollFd::new(event.as_fd(), PollFlags::POLLIN)).collect();
    let _ = poll(&mut polled, PollTimeout::from(20u8));
    if shared.is_stopped.load(Ordering::Acquire) {
        thread::sleep(Duration::from_millis(1));
    }
}

fn text(map: usize, cpu: u32, found: &Found<'_>) -> String {
    match found {
        Found::Sample(payload) => {
            let number = payload.get(..8).map_or(0, |word| u64::from_ne_bytes(word.try_into().expect("eight")));
            format!("{map} {cpu} {} {number} {}\n", payload.len(), matching(payload))
        }
        Found::Lost(count) => format!("lost {map} {cpu} {count}\n"),
        Found::Other(kind) => format!("a record of kind {kind}\n"),
    }
}
