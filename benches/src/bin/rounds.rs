//! Two processes on one CPU pass a byte to and fro: how many rounds a second. A round is two switches and two wake-ups,
//! and nothing else, so what tracing these costs shows.
//!
//! `rounds SECONDS`

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::io::{Read, Result, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &cpus)?;
    match std::env::args().nth(1).as_deref() {
        Some("echo") => echo(),
        seconds => rounds(seconds.and_then(|text| text.parse().ok()).unwrap_or(1.0)),
    }
}

fn echo() -> Result<()> {
    let (mut from, mut into) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut byte = [0];
    while from.read(&mut byte)? == 1 {
        into.write_all(&byte)?;
        // The output of a program waits for the end of a line.
        into.flush()?;
    }
    Ok(())
}

fn rounds(seconds: f64) -> Result<()> {
    let mut other =
        Command::new(std::env::current_exe()?).arg("echo").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (into, from) = (other.stdin.take(), other.stdout.take());
    let (Some(mut into), Some(mut from)) = (into, from) else { return Ok(()) };
    let (mut byte, mut rounds, begun) = ([0], 0_u32, Instant::now());
    while begun.elapsed() < Duration::from_secs_f64(seconds) {
        for _ in 0..100 {
            into.write_all(&byte)?;
            from.read_exact(&mut byte)?;
        }
        rounds += 100;
    }
    println!("{:.0}", f64::from(rounds) / begun.elapsed().as_secs_f64());
    drop(into);
    other.wait()?;
    Ok(())
}
