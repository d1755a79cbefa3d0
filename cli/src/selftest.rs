//! The guarantee on the user's own kernel: loads whose true order and number are known, and what the stream says of
//! them.

mod why;

use crate::failure::{Failure, Outcome, in_line};
use crate::out::Out;
use crate::scheduler::Way;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, getpgid};
use perfweave::{Event, Fence, Hold, Item, Order, Reader, Rings};
use perfweave_events::{EventOptions, Field, Format};
use perfweave_proofs::expedited;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Checks the order on this kernel with loads whose true order is known: 0 out of turn, or the evidence
///
/// Threads on all CPUs hand a number round. Each makes one system call with the number before it hands it on, so the
/// next call comes after it for certain. The stream must have the calls in this order under every fence. A flood into
/// rings that are too small must be accounted for: calls made = yielded + lost.
///
/// With --why, eight threads hand a token round. Now and then one of them is delayed, by a lock, a pipe, a socket, a
/// futex, a sleep, the disk, a computing thread, a quota or a signal, and the path of the last one is compared with
/// what was done. Of the time that is known, 99 % or more must be on its cause. Not told apart is a time of which
/// nothing says who ended a wait, or whether a thread that is ready may run. No waker may be false, and nothing
/// concluded across a loss, also where rings are too small. It takes real-time priority, a control group and root.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Send the whole output as a report. The exit status is 1 if anything was out of turn or unaccounted for."
)]
pub struct Args {
    /// How long each fence is tested
    #[arg(short = 'd', long, value_name = "N", default_value_t = 5.0)]
    seconds: f64,
    /// Take CPUs offline and online again meanwhile, all but the first
    #[arg(long)]
    hotplug: bool,
    /// Instead: known delays of threads that wait for one another, and what `perfweave why` says of them
    #[arg(long, conflicts_with_all = ["seconds", "hotplug"])]
    why: bool,
    /// How many wake-ups it makes; with losses a tenth of that, and more than 500
    #[arg(long, value_name = "N", default_value_t = 20_000, requires = "why", value_parser = clap::value_parser!(u64).range(1..))]
    wakeups: u64,
    #[command(flatten)]
    way: Way,
    /// Print one JSON object a line
    #[arg(short, long)]
    json: bool,
}

/// The call that carries the number: it looks a process up and does nothing else.
const CALL: &str = "syscalls:sys_enter_getpgid";

/// How many calls say something.
const ENOUGH: i32 = 1000;

/// No process has a number above this one (PID_MAX_LIMIT, include/linux/threads.h), so the call finds none.
const FIRST: i32 = 4 << 20;

pub fn run(Args { seconds, hotplug, why, wakeups, way, json }: Args) -> Outcome {
    if why {
        return self::why::run(wakeups, json, way);
    }
    let time = Duration::try_from_secs_f64(seconds).map_err(Failure::new)?;
    let mut out = Out::new();
    if !json {
        let kernel = std::fs::read_to_string("/proc/version").unwrap_or_default();
        writeln!(out, "perfweave {}, {}", env!("CARGO_PKG_VERSION"), kernel.trim_end())?;
    }
    let cpus = allowed_cpus()?;
    let mut foreign = foreign_programs();
    // Calls that are missing may be another program's doing; anything else is not.
    let (mut is_well, mut is_broken) = (true, false);
    for fence in [Fence::Membarrier, Fence::Map, expedited(Duration::from_millis(1))] {
        let result = hand_round(&fence, &cpus, time, hotplug);
        is_well &= result.as_ref().is_ok_and(Round::is_well) || matches!(&result, Err(Refused::Fence(_)));
        is_broken |= result.as_ref().is_ok_and(Round::is_broken);
        report_round(&mut out, &result, json)?;
        out.flush()?;
    }
    for bytes in [4096, 1 << 16, 1 << 22] {
        let flood = flood(bytes, &cpus)?;
        is_well &= flood.is_well();
        is_broken |= flood.is_broken();
        flood.report(&mut out, json)?;
    }
    foreign.extend(foreign_programs());
    let verdict = verdict(is_well, is_broken, !foreign.is_empty());
    report_verdict(&mut out, verdict, is_well, &foreign, json)?;
    out.flush()?;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The BPF programs of others that may take the calls from perf: what they take is in no ring, and nothing counts it.
fn foreign_programs() -> BTreeSet<String> {
    let rings = Rings::options().tracepoint(CALL).pid(std::process::id()).bytes(4096).open();
    // Who may not ask is not told. What is missing is found all the same.
    let found = rings.and_then(|rings| rings.foreign_programs()).unwrap_or_default();
    found.iter().map(ToString::to_string).collect()
}

fn verdict(is_well: bool, is_broken: bool, has_foreign: bool) -> &'static str {
    match (is_well, has_foreign) {
        (true, _) => "nothing out of turn, nothing unaccounted for",
        (false, true) if !is_broken => "not tested: another BPF program may have taken the calls",
        (false, _) => "THE GUARANTEE DOES NOT HOLD HERE",
    }
}

fn report_verdict(
    out: &mut Out,
    verdict: &str,
    is_well: bool,
    foreign: &BTreeSet<String>,
    json: bool,
) -> Result<(), Failure> {
    if json {
        writeln!(out, "{}", json!({ "selftest": verdict, "ok": is_well, "foreign": foreign }))?;
        return Ok(());
    }
    for program in foreign {
        writeln!(out, "foreign  {program}")?;
    }
    writeln!(out, "{verdict}")?;
    Ok(())
}

/// The CPUs that this process may use.
fn allowed_cpus() -> Result<Vec<usize>, Failure> {
    let set = nix::sched::sched_getaffinity(Pid::from_raw(0)).map_err(Failure::new)?;
    Ok((0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect())
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    // If it fails, the threads share CPUs: the order is known all the same.
    if set.set(cpu).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// Makes the call with a number.
fn call(number: i32) {
    let _ = getpgid(Some(Pid::from_raw(number)));
}

/// What came of handing a number round.
#[derive(Debug)]
struct Round {
    fence: &'static str,
    threads: usize,
    calls: u64,
    yielded: u64,
    out_of_turn: u64,
    /// The first few: the number expected, the number found, the key.
    evidence: Vec<(i32, i32, u64)>,
    /// The same events, read one ring after the other.
    out_of_turn_by_ring: u64,
    late: u64,
    lost: u64,
}

impl Round {
    fn is_well(&self) -> bool {
        !self.is_broken() && self.calls == self.yielded + self.lost
    }

    /// Whether there is more amiss than missing calls.
    fn is_broken(&self) -> bool {
        self.out_of_turn > 0 || self.late > 0 || self.calls < self.yielded + self.lost
    }
}

/// Why there is no result.
#[derive(Debug)]
enum Refused {
    /// This kernel or user has no such fence.
    Fence(perfweave::Error),
    Other(Failure),
}

impl From<perfweave::Error> for Refused {
    fn from(error: perfweave::Error) -> Self {
        Self::Other(error.into())
    }
}

/// The numbers of the calls, in the order of the stream, and ring by ring.
#[derive(Default)]
struct Turns {
    next: i32,
    next_by_ring: i32,
    by_ring: BTreeMap<u32, Vec<i32>>,
    yielded: u64,
    out_of_turn: u64,
    out_of_turn_by_ring: u64,
    evidence: Vec<(i32, i32, u64)>,
}

impl Turns {
    fn take(&mut self, event: &Event<'_>, number: &Field) {
        let Some(record) = event.record() else { return };
        let Some(number) = number.int(&record).map(|number| number as i32).filter(|number| *number >= FIRST) else {
            return;
        };
        self.yielded += 1;
        // Numbers that are skipped are lost, or come out of turn later.
        if number >= self.next {
            self.next = number.saturating_add(1);
        } else {
            self.out_of_turn += 1;
            if self.evidence.len() < 10 {
                self.evidence.push((self.next, number, event.key().unwrap_or(0)));
            }
        }
        self.by_ring.entry(record.cpu()).or_default().push(number);
    }

    /// The events of a batch as a reader without order would give them.
    fn pass(&mut self) {
        for number in self.by_ring.values_mut().flat_map(|ring| ring.drain(..)) {
            self.out_of_turn_by_ring += u64::from(number < self.next_by_ring);
            self.next_by_ring = self.next_by_ring.max(number.saturating_add(1));
        }
    }
}

fn hand_round(fence: &Fence, cpus: &[usize], time: Duration, hotplug: bool) -> Result<Round, Refused> {
    let rings = Rings::options().tracepoint(CALL).pid(std::process::id()).bytes(4 << 20).open()?;
    let number = Format::of(&rings, 0)?.field("pid")?;
    fence.open().map_err(Refused::Fence)?;
    let mut reader = Reader::new(rings, Order::new().hold(Hold::Fence(fence.clone()))).map_err(Refused::Fence)?;
    let name = reader.fence().unwrap_or("none");
    let (token, over) = (AtomicI32::new(FIRST), AtomicBool::new(false));
    let mut turns = Turns { next: FIRST, next_by_ring: FIRST, ..Turns::default() };
    let players = cpus.len().clamp(2, 8) as i32;
    let read = thread::scope(|scope| {
        for player in 0..players {
            let (token, over) = (&token, &over);
            let cpu = cpus[player as usize % cpus.len()];
            scope.spawn(move || play(player, players, cpu, token, over));
        }
        if hotplug {
            scope.spawn(|| cpus.iter().skip(1).cycle().take_while(|cpu| bounce(**cpu, &over)).count());
        }
        let mut read = read(&mut reader, &mut turns, &number, Some(Instant::now() + time));
        // On a busy machine the threads may have had no turn yet.
        while read.is_ok() && token.load(Ordering::Relaxed) < FIRST + ENOUGH {
            read = self::read(&mut reader, &mut turns, &number, Some(Instant::now() + Duration::from_millis(50)));
        }
        over.store(true, Ordering::Relaxed);
        read
    });
    read?;
    // All that was written is in the rings now.
    reader.handle().flush()?;
    self::read(&mut reader, &mut turns, &number, None)?;
    let total = reader.status().total();
    Ok(Round {
        fence: name,
        threads: players as usize,
        calls: u64::from(token.load(Ordering::Relaxed).abs_diff(FIRST)),
        yielded: turns.yielded,
        out_of_turn: turns.out_of_turn,
        evidence: turns.evidence,
        out_of_turn_by_ring: turns.out_of_turn_by_ring,
        late: total.late,
        lost: total.lost,
    })
}

/// Takes each number whose turn it is, makes the call with it, and hands the next number on.
fn play(player: i32, players: i32, cpu: usize, token: &AtomicI32, over: &AtomicBool) {
    pin(cpu);
    let mut idle = 0u32;
    while !over.load(Ordering::Relaxed) {
        // Acquire and Release: each call comes after the call before.
        let number = token.load(Ordering::Acquire);
        if (number - FIRST) % players == player && number < i32::MAX {
            call(number);
            token.store(number + 1, Ordering::Release);
            idle = 0;
        } else if idle < 1000 {
            idle += 1;
            std::hint::spin_loop();
        } else {
            // The other thread may wait for this CPU.
            thread::yield_now();
        }
    }
}

/// Takes a CPU offline and online again. False at the end, or if the kernel refuses.
fn bounce(cpu: usize, over: &AtomicBool) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    let set = |online: &str| std::fs::write(&path, online).is_ok();
    !over.load(Ordering::Relaxed) && set("0") && set("1")
}

/// Reads until a time, or until a flush has come out.
fn read(
    reader: &mut Reader,
    turns: &mut Turns,
    number: &Field,
    until: Option<Instant>,
) -> Result<(), perfweave::Error> {
    let mut is_over = false;
    while !is_over {
        is_over = until.is_some_and(|until| Instant::now() >= until);
        let Some(batch) = reader.batch(Duration::from_millis(100))? else { return Ok(()) };
        for event in batch {
            is_over |= until.is_none() && matches!(event.item(), Item::Flushed { .. });
            turns.take(&event, number);
        }
        turns.pass();
    }
    Ok(())
}

fn report_round(out: &mut Out, result: &Result<Round, Refused>, json: bool) -> Result<(), Failure> {
    let round = match result {
        Ok(round) => round,
        Err(Refused::Fence(error)) if json => {
            writeln!(out, "{}", json!({ "test": "order", "refused": in_line(error) }))?;
            return Ok(());
        }
        Err(Refused::Fence(error)) => {
            writeln!(out, "order  not tested: {}", in_line(error))?;
            return Ok(());
        }
        Err(Refused::Other(failure)) => return Err(failure.clone()),
    };
    let Round { fence, threads, calls, yielded, out_of_turn, evidence, out_of_turn_by_ring, late, lost } = round;
    if json {
        let object = json!({
            "test": "order", "ok": round.is_well(), "fence": fence, "threads": threads, "calls": calls, "yielded": yielded, "lost": lost,
            "out_of_turn": out_of_turn, "out_of_turn_by_ring": out_of_turn_by_ring, "late": late, "evidence": evidence,
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    let mut line =
        format!("order  {fence}: {calls} calls of {threads} threads in turn, {yielded} yielded, {lost} lost; ");
    write!(line, "{out_of_turn} out of turn ({out_of_turn_by_ring} ring by ring), {late} late")
        .map_err(Failure::new)?;
    writeln!(out, "{line}")?;
    for (expected, found, key) in evidence {
        writeln!(out, "       at {key} ns: {found} instead of {expected}")?;
    }
    Ok(())
}

/// What came of more calls than rings have space for.
struct Flood {
    bytes: u64,
    calls: u64,
    yielded: u64,
    lost: u64,
    is_balanced: bool,
}

/// How many calls each thread makes in a flood.
const CALLS: i32 = 100_000;

/// Calls that nobody reads while they are made, on each CPU. Then all is read.
fn flood(bytes: u64, cpus: &[usize]) -> Result<Flood, Failure> {
    let rings = Rings::options().tracepoint(CALL).pid(std::process::id()).bytes(bytes).open()?;
    let number = Format::of(&rings, 0)?.field("pid")?;
    let mut reader = Reader::new(rings, Order::new())?;
    thread::scope(|scope| {
        for &cpu in cpus {
            scope.spawn(move || {
                pin(cpu);
                (FIRST..FIRST + CALLS).for_each(call);
            });
        }
    });
    reader.handle().flush()?;
    let (mut yielded, mut lost) = (0, 0);
    while let Some(event) = reader.next()? {
        match event.item() {
            Item::Flushed { .. } => break,
            Item::Record(record) => {
                yielded += u64::from(number.int(&record).is_some_and(|number| number >= FIRST.into()))
            }
            Item::Lost(what) => lost += what.count,
            _ => {}
        }
    }
    Ok(Flood {
        bytes,
        calls: cpus.len() as u64 * CALLS as u64,
        yielded,
        lost,
        is_balanced: reader.ledger()?.total().is_balanced(),
    })
}

impl Flood {
    fn is_well(&self) -> bool {
        !self.is_broken() && self.calls == self.yielded + self.lost
    }

    /// Whether there is more amiss than missing calls.
    fn is_broken(&self) -> bool {
        !self.is_balanced || self.calls < self.yielded + self.lost
    }

    fn report(&self, out: &mut Out, json: bool) -> Result<(), Failure> {
        let Self { bytes, calls, yielded, lost, is_balanced } = self;
        if json {
            let object = json!({
                "test": "loss", "ok": self.is_well(), "bytes": bytes, "calls": calls, "yielded": yielded, "lost": lost, "balanced": is_balanced
            });
            writeln!(out, "{object}")?;
        } else {
            let unexplained = i128::from(*calls) - i128::from(yielded + lost);
            writeln!(
                out,
                "loss   rings of {} KiB: {calls} calls, {yielded} yielded, {lost} lost, {unexplained} unexplained",
                bytes >> 10
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::verdict;

    /// Another program can take calls. It cannot put them out of turn.
    #[test]
    fn what_another_program_cannot_do_is_not_blamed_on_it() {
        for has_foreign in [false, true] {
            assert!(verdict(true, false, has_foreign).starts_with("nothing out of turn"));
            assert!(verdict(false, true, has_foreign).contains("DOES NOT HOLD"));
        }
        assert!(verdict(false, false, false).contains("DOES NOT HOLD"));
        assert!(verdict(false, false, true).starts_with("not tested"));
    }
}
