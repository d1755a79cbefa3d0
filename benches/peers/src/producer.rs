//! The traced process: its BPF program, its loads, and their outcome with a reader.

use crate::Result;
use crate::readers::{Output, Reader};
use crate::tally::Seen;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use perfweave_support::bpf::Reg::{R0, R1, R6, R8, R10};
use perfweave_support::foreign::page_size;
use perfweave_support::{bpf, cpus, load};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that the program outputs: its time, its number, and others.
const SAMPLE: i16 = 64;
/// Bytes of a count, so that no two CPUs share a cache line.
const COUNT: u32 = 64;

/// A load of system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// As often as possible, on every CPU. Events have their CPU's numbers: one counter for all would slow the CPUs
    /// down.
    Flood,
    /// This often a second, on all CPUs together, from threads that sleep in between. Events have the machine's
    /// numbers.
    Paced(u32),
}

/// The conditions under which a reader is measured.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its word on the command line.
    pub name: &'static str,
    pub load: Load,
    /// Pages of each ring.
    pub pages: usize,
    /// Whether a busy loop runs on each CPU too.
    pub hogs: bool,
    /// How long a reader may gather events, unless it is as it is by default.
    pub latency: Option<Duration>,
}

/// The outcome of a load with a reader.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub seen: Seen,
    /// Calls that the program was run for.
    pub written: u64,
    /// Calls a second.
    pub rate: f64,
    /// CPU time of this process for each call, in nanoseconds.
    pub traced_ns: f64,
    /// The part of the machine that neither this process nor the reader used, and that was not idle.
    pub others: f64,
}

impl Outcome {
    /// The share of the written events that the reader has not seen, in percent.
    pub fn lost(&self) -> f64 {
        self.written.saturating_sub(self.seen.events) as f64 / self.written.max(1) as f64 * 100.0
    }
}

/// The maps that are read, and the programs that write into them.
pub struct Producer {
    events: bpf::Map,
    epochs: bpf::Map,
    counts: bpf::Map,
    /// The program for each load; then both again, as they are when they enter and leave.
    programs: [[bpf::Program; 2]; 2],
}

impl Producer {
    pub fn new() -> std::io::Result<Self> {
        let events = bpf::Map::perf_event_array(load::slots())?;
        let epochs = bpf::Map::epochs(load::slots())?;
        // Readers inherit them.
        fcntl(&events, FcntlArg::F_SETFD(FdFlag::empty()))?;
        fcntl(&epochs, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let counts = bpf::Map::array(COUNT, load::slots())?;
        let program = |enters, by_cpu| {
            let mut asm = bpf::Asm::new();
            asm.mov(R6, R1).load(R1, R6, 8).only_if(R1, libc::SYS_getppid as i32).only_process(std::process::id());
            if enters {
                asm.enter(&epochs);
            }
            if by_cpu {
                asm.cpu()
            } else {
                asm.mov_i(R0, 0)
            };
            asm.store_u32(R10, -SAMPLE - 8, R0).element(&counts, i32::from(-SAMPLE - 8));
            // Number before time, and both before the output.
            asm.mov_i(R1, 1).fetch_add(R0, 0, R1).store(R10, 8 - SAMPLE, R1).ktime().store(R10, -SAMPLE, R0);
            for word in 1..SAMPLE / 8 - 1 {
                asm.store(R10, -8 * word, R0);
            }
            asm.output(R6, &events, i32::from(-SAMPLE), SAMPLE as u32);
            if enters {
                asm.leave();
            }
            asm.mov_i(R0, 0).exit();
            bpf::Program::load(bpf::Kind::RawTracepoint, &asm)
        };
        let programs = [[program(false, true)?, program(false, false)?], [program(true, true)?, program(true, false)?]];
        Ok(Self { events, epochs, counts, programs })
    }

    /// The program as it writes into BPF ring buffers: it draws its number, reserves, reads its time inside, and
    /// submits.
    fn reserving(&self, buffers: &Buffers, by_cpu: bool) -> std::io::Result<bpf::Program> {
        let mut asm = bpf::Asm::new();
        asm.load(R1, R1, 8).only_if(R1, libc::SYS_getppid as i32).only_process(std::process::id());
        if by_cpu {
            asm.cpu()
        } else {
            asm.mov_i(R0, 0)
        };
        asm.store_u32(R10, -28, R0).element(&self.counts, -28);
        asm.mov_i(R1, 1).fetch_add(R0, 0, R1).mov(R6, R1).ring(buffers.output());
        asm.reserve(SAMPLE as u32, |asm| asm.count(&buffers.failures).mov_i(R0, 0).exit());
        if buffers.barrier {
            asm.barrier();
        }
        asm.ktime().store(R8, 0, R0).store(R8, 8, R6);
        for word in 2..SAMPLE / 8 {
            asm.store(R8, 8 * word, R0);
        }
        asm.submit(0).mov_i(R0, 0).exit();
        bpf::Program::load(bpf::Kind::RawTracepoint, &asm)
    }

    /// Runs a load that is not traced. Gives the calls a second.
    pub fn idle(&self, load: Load, time: Duration) -> f64 {
        run(load, || thread::sleep(time))
    }

    /// How long membarrier(2) takes under a load.
    pub fn grace_periods(&self, load: Load, time: Duration) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        let end = Instant::now() + time;
        run(load, || {
            while Instant::now() < end {
                let begin = Instant::now();
                // SAFETY: MEMBARRIER_CMD_GLOBAL touches no memory.
                unsafe { libc::syscall(libc::SYS_membarrier, 1, 0, 0) };
                times.push(begin.elapsed());
            }
        });
        Ok(times)
    }

    /// Runs a load while a reader in a separate process reads it.
    pub fn read_by(
        &self,
        reader: &Reader,
        Setting { load, pages, hogs, latency, .. }: Setting,
        time: Duration,
    ) -> Result<Outcome> {
        let _hogs =
            if hogs { cpus::online().iter().map(|_| Process::hog()).collect::<Result<_>>()? } else { Vec::new() };
        for cpu in 0..load::slots() {
            self.counts.update(cpu, &[0; COUNT as usize])?;
            // It may be empty.
            let _ = self.events.delete(cpu);
        }
        let buffers = match reader.output {
            Output::Perf => None,
            output => Some(Buffers::new(output, pages * page_size())?),
        };
        let mut process = match &buffers {
            None => Process::begin(reader, &[&self.events], &self.epochs, pages, latency)?,
            Some(buffers) => Process::begin(reader, &buffers.maps(), &buffers.failures, pages, latency)?,
        };
        process.wait_until_ready()?;
        let by_cpu = load == Load::Flood;
        let made = buffers.map(|buffers| self.reserving(&buffers, by_cpu)).transpose()?;
        let program = made.as_ref().unwrap_or(&self.programs[usize::from(reader.enters)][usize::from(!by_cpu)]);
        let link = program.attach_raw_tracepoint("sys_enter")?;
        let (begin, busy, own) = (Instant::now(), busy()?, own()?);
        let rate = run(load, || thread::sleep(time));
        drop(link);
        let mine = self::own()? - own;
        let seen = process.end()?;
        let used = self::busy()? - busy - mine - Duration::from_nanos(seen.cpu_ns).as_secs_f64();
        let others = used.max(0.0) / begin.elapsed().as_secs_f64() / cpus::online().len() as f64;
        let written = (0..load::slots()).map(|cpu| self.counts.lookup_u64(cpu, 0)).sum::<std::io::Result<u64>>()?;
        let traced_ns = mine * 1e9 / written.max(1) as f64;
        Ok(Outcome { seen, written, rate, traced_ns, others })
    }
}

/// BPF ring buffers of one measurement.
struct Buffers {
    /// The map of them by CPU, if each CPU has one.
    by_cpu: Option<bpf::Map>,
    rings: Vec<bpf::Map>,
    /// Reservations that were refused.
    failures: bpf::Map,
    /// The program orders its stores itself.
    barrier: bool,
}

impl Buffers {
    fn new(output: Output, bytes: usize) -> Result<Self> {
        let cpus = cpus::online();
        let (by_cpu, rings) = if output == Output::Shared {
            // As many bytes as all others have together.
            (None, vec![bpf::Map::ring_buffer(u32::try_from((bytes * cpus.len()).next_power_of_two())?)?])
        } else {
            let (map, rings) = bpf::Map::ring_buffers(u32::try_from(bytes)?, &cpus)?;
            (Some(map), rings)
        };
        let failures = bpf::Map::counts()?;
        // Readers inherit them.
        for map in rings.iter().chain(&by_cpu).chain([&failures]) {
            fcntl(map, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(Self { by_cpu, rings, failures, barrier: output == Output::Barrier })
    }

    /// What the program writes into.
    fn output(&self) -> &bpf::Map {
        self.by_cpu.as_ref().unwrap_or(&self.rings[0])
    }

    /// That, and each ring.
    fn maps(&self) -> Vec<&bpf::Map> {
        std::iter::once(self.output()).chain(&self.rings).collect()
    }
}

/// Runs a load on all CPUs while something else is done. Gives the calls a second.
fn run(load: Load, meanwhile: impl FnOnce()) -> f64 {
    let cpus = cpus::online();
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let calls: u64 = thread::scope(|scope| {
        let (stop, share) = (&stop, cpus.len() as f64);
        let each = move |cpu: u32| {
            load::pin(cpu);
            match load {
                Load::Flood => flood(stop),
                Load::Paced(rate) => paced(stop, f64::from(rate) / share),
            }
        };
        let threads: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || each(cpu))).collect();
        meanwhile();
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("a load does not panic")).sum()
    });
    calls as f64 / begin.elapsed().as_secs_f64()
}

fn flood(stop: &AtomicBool) -> u64 {
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        (0..64).for_each(|_| load::getppid());
        calls += 64;
    }
    calls
}

fn paced(stop: &AtomicBool, rate: f64) -> u64 {
    // SAFETY: takes a number. So that it sleeps no longer than it means to.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let (begin, mut turn, mut calls) = (Instant::now(), 0, 0);
    while !stop.load(Ordering::Relaxed) {
        let due = (begin.elapsed().as_secs_f64() * rate) as u64;
        // It does not catch up at once on the calls that it missed without a CPU.
        let now = (due - turn).min(1000);
        (0..now).for_each(|_| load::getppid());
        (turn, calls) = (due, calls + now);
        thread::sleep(Duration::from_micros(100));
    }
    calls
}

/// A reader's process. Its input's end is the end of the load.
struct Process {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn begin(
        reader: &Reader,
        maps: &[&bpf::Map],
        words: &bpf::Map,
        pages: usize,
        latency: Option<Duration>,
    ) -> Result<Self> {
        let fd = |map: &&bpf::Map| map.as_fd().as_raw_fd().to_string();
        let (maps, words) = (maps.iter().map(fd).collect::<Vec<_>>().join(","), fd(&words));
        let (reader, pages) = (reader.index().to_string(), pages.to_string());
        let mut arguments = vec!["--reader", &reader, "--maps", &maps, "--words", &words, "--pages", &pages];
        let latency = latency.map(|latency| latency.as_millis().to_string());
        arguments.extend(latency.iter().flat_map(|latency| ["--latency", latency]));
        Self::spawn(&arguments)
    }

    /// A busy loop.
    fn hog() -> Result<Self> {
        Self::spawn(&["--hog"])
    }

    fn spawn(arguments: &[&str]) -> Result<Self> {
        let own = std::env::current_exe()?;
        let mut child = Command::new(own).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self { child, said })
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        if line.trim() == "ready" { Ok(()) } else { Err(format!("a reader said {line:?}").into()) }
    }

    fn end(mut self) -> Result<Seen> {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.said.read_to_string(&mut said)?;
        Ok(said.parse()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of the whole machine so far, in seconds.
fn busy() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().unwrap_or("");
    let mut all = line.split_whitespace().skip(1).map(|ticks| ticks.parse().unwrap_or(0.0));
    // user, nice, system; idle and iowait are not; irq, softirq, steal.
    let busy = all.by_ref().take(3).sum::<f64>() + all.skip(2).take(3).sum::<f64>();
    Ok(busy / 100.0)
}

/// CPU time of this process so far, in seconds.
fn own() -> Result<f64> {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(Duration::from(time).as_secs_f64())
}
