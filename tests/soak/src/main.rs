//! The adversary for any time.
//!
//! One process reads live rings, round after round, each with another hold rule, policy for full rings, key, size and
//! so on, while a thread of its own pauses, flushes and sets deadlines. Another process writes through BPF programs
//! that count what they do, and disturbs the reader: it stops it, takes its CPUs, steers the clock, and takes CPUs away
//! if `PERFWEAVE_HOTPLUG=1`. Each round is checked against what the programs counted: the order, each number, what a
//! flush must bring, the ledger. Between rounds nothing may have grown: descriptors, mappings, threads, memory.
//!
//! Everything is chosen by a seed, which is printed. `--seed S --first N --rounds 1` runs round N again, with other
//! disturbances.

mod plan;
mod random;
mod round;
mod tally;
mod trouble;
mod watch;
mod writers;

use perfweave_support::args::Args;
use perfweave_support::cpus;
use perfweave_support::load::{self, Load};
use plan::Plan;
use random::Random;
use serde_json::json;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use trouble::Trouble;
use watch::Watch;

#[global_allocator]
static ALLOCATOR: watch::Counting = watch::Counting;

const HELP: &str = "\
perfweave-soak [--seconds N] [--seed S] [--first N] [--rounds N] [--no-clock] [--quiet]
  --seconds   how long [60]
  --seed      what everything is chosen by [another one each time]
  --first     the number of the first round [0]
  --rounds    no more rounds than that
  --no-clock  leave the clock alone
  --quiet     print no line for each round";

/// A round that takes longer hangs.
const HANGS: Duration = Duration::from_secs(180);

static STOP: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, Box<dyn Error>> {
    let mut args = Args::new(HELP);
    if args.flag("--unplug") {
        return trouble::unplug().map(|()| true);
    }
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let time = args.seconds(60.0)?;
    let given = args.value("--seed", number)?;
    let now = std::time::UNIX_EPOCH.elapsed().map_or(1, |now| now.as_nanos() as u64 % 1_000_000_007);
    let seed = given.unwrap_or(now);
    let first = args.value("--first", number)?.unwrap_or(0);
    let rounds = args.value("--rounds", number)?.unwrap_or(u64::MAX);
    let [no_clock, quiet] = ["--no-clock", "--quiet"].map(|flag| args.flag(flag));
    // What the writing process says to the reading one.
    let writers = args.value("--writers", number)?;
    args.finish()?;
    match writers {
        Some(process) => read(seed, first, rounds, time, quiet, process as u32),
        None => disturb(seed, time, no_clock, given.is_none()),
    }
}

/// The reading process.
fn read(seed: u64, first: u64, rounds: u64, time: Duration, quiet: bool, process: u32) -> Result<bool, Box<dyn Error>> {
    // No longer than the other.
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    let begin = Instant::now();
    let (mut watch, mut sum) = (Watch::default(), round::Outcome::default());
    let mut done = 0;
    let mut wrong = false;
    while done < rounds && begin.elapsed() < time && !wrong {
        let number = first + done;
        let plan = Plan::of(seed, number);
        if !quiet {
            println!("round {number}: {plan:?}");
        }
        let ended = round::run(&plan, Random::new(!seed, number), process);
        let outcome = ended.unwrap_or_else(|error| round::Outcome {
            wrong: vec![format!("ended with: {error}")],
            ..Default::default()
        });
        let grown = watch.look().map(|grown| format!("something has grown: {grown}"));
        for what in outcome.wrong.iter().chain(&grown) {
            println!("WRONG in round {number} of seed {seed}: {what}");
            wrong = true;
        }
        let round::Outcome { records, lost, late, flushes, deadlines, pauses, fences, most_memory, .. } = outcome;
        println!(
            "round {number}: {records} records, {lost} lost, {late} late, {flushes} flushes, {deadlines} deadlines, {pauses} pauses, {fences} fences, {} KiB held at most; {}",
            most_memory >> 10,
            watch.last
        );
        for (sum, more) in [
            (&mut sum.records, records),
            (&mut sum.lost, lost),
            (&mut sum.late, late),
            (&mut sum.flushes, flushes),
            (&mut sum.deadlines, deadlines),
            (&mut sum.pauses, pauses),
            (&mut sum.fences, fences),
        ] {
            *sum += more;
        }
        sum.most_memory = sum.most_memory.max(most_memory);
        done += 1;
    }
    let has = |has: watch::Has| {
        let watch::Has { descriptors, threads, rings, mappings, allocated, resident } = has;
        json!({ "descriptors": descriptors, "threads": threads, "rings": rings, "mappings": mappings,
            "allocated": allocated, "resident_kib": resident })
    };
    println!(
        "{}",
        json!({
            "seed": seed,
            "rounds": done,
            "wrong": u8::from(wrong),
            "records": sum.records,
            "lost": sum.lost,
            "late": sum.late,
            "flushes": sum.flushes,
            "deadlines": sum.deadlines,
            "pauses": sum.pauses,
            "fences": sum.fences,
            "most_memory": sum.most_memory,
            "most_resident_kib": watch.most_resident,
            "after_warm_up": has(watch.first),
            "at_the_end": has(watch.last),
        })
    );
    Ok(!wrong)
}

/// The writing process, which disturbs the reading one.
fn disturb(seed: u64, time: Duration, no_clock: bool, chosen: bool) -> Result<bool, Box<dyn Error>> {
    println!("seed {seed}, {time:?}");
    if !cpus::may_go() {
        println!("SKIPPED: no CPU goes offline, which only PERFWEAVE_HOTPLUG=1 allows");
    }
    end_quietly()?;
    let chosen = chosen.then(|| ["--seed".to_owned(), seed.to_string()]);
    let mut reader = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .args(chosen.into_iter().flatten())
        .args(["--writers", &std::process::id().to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let (said, lines) = mpsc::channel();
    let out = BufReader::new(reader.stdout.take().ok_or("no output")?);
    let relay = std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            println!("{line}");
            let _ = said.send(());
        }
    });
    let writers = Load::on(&load::online(), |cpu| {
        // The kernel moves it elsewhere while its CPU is offline.
        let _ = load::try_pin(cpu);
        (0..500).for_each(|_| load::getppid());
        std::thread::sleep(Duration::from_micros(200));
    });
    let mut trouble = Trouble::new(seed, reader.id(), !no_clock);
    let mut last = Instant::now();
    let ended = loop {
        match lines.recv_timeout(Duration::from_millis(5)) {
            Ok(()) => last = Instant::now(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break reader.wait()?.success(),
        }
        if last.elapsed() > HANGS || STOP.load(Ordering::Relaxed) {
            println!("WRONG: {}", if last.elapsed() > HANGS { "a round hangs" } else { "interrupted" });
            reader.kill()?;
            reader.wait()?;
            break false;
        }
        trouble.turn()?;
    };
    trouble.go_on();
    writers.end();
    let _ = relay.join();
    let trouble::Done { stops, hogs, real_time, steered, unplugged } = trouble.done;
    println!(
        "{}",
        json!({ "stops": stops, "hogs": hogs, "real_time_hogs": real_time, "steered": steered, "unplugged": unplugged })
    );
    drop(trouble);
    Ok(ended)
}

/// A signal ends the disturbances, and leaves the machine as it was.
fn end_quietly() -> nix::Result<()> {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn stop(_: libc::c_int) {
        STOP.store(true, Ordering::Relaxed);
    }
    let action = SigAction::new(SigHandler::Handler(stop), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler stores to an atomic and nothing else.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}
