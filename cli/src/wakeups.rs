//! Who wakes whom, and how long the woken wait for a CPU.

mod rows;

use crate::args::Common;
use crate::child::Child;
use crate::failure::Outcome;
use crate::family::Family;
use crate::live::{Live, fit, fit_right, names_width, width};
use crate::names::NAMING;
use crate::out::{Out, line};
use crate::recorded::{self, Input, Recorded};
use crate::scheduler::{Tracing, Way};
use crate::session::{Session, Tell};
use crate::stamp;
use crate::times::short;
use perf_event_open_sys::bindings;
use perfweave::Rings;
use rows::{Pair, Rows};
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Who wakes whom, and how long the woken wait for a CPU
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// Only wake-ups by and of a process with its threads and children
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Only wake-ups by and of threads of this name
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// One row for all threads of the same name
    #[arg(long)]
    by_name: bool,
    /// Print a histogram for each row
    #[arg(short = 'H', long)]
    histogram: bool,
    /// The most rows of the table
    #[arg(short = 'n', long, value_name = "N", default_value = "20")]
    rows: usize,
    /// By which column the rows are sorted, the largest first
    #[arg(long, value_name = "COLUMN", default_value = "times")]
    sort: Sort,
    /// Print each wake-up as well, as the woken begins to run
    #[arg(long)]
    each: bool,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    time: stamp::Printed,
    #[command(flatten)]
    way: Way,
    #[command(flatten)]
    common: Common,
    /// Only wake-ups by and of this command, which runs with its own input and output until it ends
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// How many wake-ups
    Times,
    /// All waits together
    Total,
    /// The 99th percentile
    P99,
    /// The longest wait
    Max,
}

const AFTER: &str = "\
A wait is the time from the wake-up, on the waker's CPU, until the woken runs, perhaps on another. It is the time for which a thread could run \
and did not. A wake-up in an interrupt is by [interrupt]: the thread that it interrupts has no part in it. A wake-up of a thread that is on its \
way to sleep counts if that thread leaves its CPU nevertheless, and then the wait begins there. Any other wake-up of a thread that can run is \
none. After a loss, waits that have begun are forgotten; those that ended while records were lost are not in the table, but have lines with \
--each, before that of the loss. Tracing takes the whole machine, whatever rows are asked for; only this program's own \
threads are left out. In a PID namespace, threads have the numbers that they have there, and those from outside have none: -.

On a terminal the table is drawn again every second.

  perfweave wakeups                          until Ctrl-C
  perfweave wakeups -d 5 --comm postgres     who wakes it and whom it wakes
  perfweave wakeups -H -- make               of a command, with histograms
  perfweave wakeups -d 5 --sort max          the longest waits first
  perfweave wakeups -d 5 --each --pid 1234   one line each, in order
  perfweave wakeups -i perf.data             of a recording of the whole machine";

pub fn run(args: Args) -> Outcome {
    match &args.input.input {
        Some(path) => of_recording(&args, path),
        None => live(&args),
    }
}

/// Of a recording.
fn of_recording(args: &Args, path: &Path) -> Outcome {
    let mut recorded = Recorded::open(path)?;
    let mut rows = Rows::recorded(recorded.rings(), recorded::family(args.pid, None), args)?;
    let mut out = Out::new();
    recorded.each(|event, _| rows.event(event, &mut out))?;
    rows.end(&recorded.ledger()?);
    rows.print(&mut out)?;
    recorded.lacks(rows.lacks());
    recorded.unrecorded(rows.unrecorded());
    recorded.conclude(&mut out, args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Of what happens now.
fn live(args: &Args) -> Outcome {
    let tracing = Tracing::begin(args.way, false, None);
    let child = if args.command.is_empty() { None } else { Some(Child::start(&args.command)?) };
    let options = tracing.sources(Rings::options());
    let rings = options.records(NAMING).sample(bindings::PERF_SAMPLE_TID).bytes(args.common.buffer).open()?;
    tracing.look().now(false);
    // After the rings were opened: what starts from now on has its records.
    let family = match args.pid.or(child.as_ref().map(Child::pid)) {
        Some(pid) => Family::of(pid)?,
        None => Family::All,
    };
    let mut rows = Rows::new(&rings, &tracing, family, args)?;
    let mut out = Out::new();
    let mut live = Live::new(&out, child.is_none() && !args.each && !args.common.json);
    let mut session = Session::begin(rings, tracing.order(&args.common), &args.common, child)?;
    session.stamped(rows.stamp);
    session.traced(&tracing);
    session.until_the_end_of(args.pid);
    session.each(|tell| match tell {
        Tell::Event(event) => rows.event(event, &mut out),
        Tell::Pause => {
            live.draw(&mut out, |most| rows.text(most))?;
            out.flush()
        }
    })?;
    live.end(&mut out)?;
    rows.end(&session.ledger()?);
    session.unrecorded(rows.unrecorded());
    rows.print(&mut out)?;
    session.conclude(&mut out, args.common.json)?;
    Ok(session.status())
}

impl Rows<'_> {
    /// The table, at most so many rows of it, for a terminal.
    fn text(&mut self, most: usize) -> String {
        let mut text = Vec::new();
        // Writing to memory does not fail.
        let _ = self.table(&mut text, most, false, width());
        String::from_utf8_lossy(&text).into_owned()
    }

    fn print(&mut self, out: &mut Out) -> io::Result<()> {
        let args = self.args();
        if !args.common.json {
            let width = width().filter(|_| out.is_terminal());
            return self.table(out, args.rows, args.histogram, width);
        }
        for Pair { waker, woken, times } in self.sorted().into_iter().take(args.rows) {
            line(out, format_args!("{}", json!({ "waker": waker, "woken": woken, "times": times.json() })))?;
        }
        Ok(())
    }

    fn table(&mut self, out: &mut impl Write, most: usize, histogram: bool, width: Option<usize>) -> io::Result<()> {
        let heads = ["times", "total", "p50", "p99", "max"].map(|head| format!("{head:>7}")).join(" ");
        // Between them stand an arrow and a space, and before each number a space.
        let name = names_width(width, 4 + 1 + heads.len(), 2);
        writeln!(out, "{:>name$}    {:<name$} {heads}", "waker", "woken")?;
        let pairs = self.sorted();
        for Pair { waker, woken, times } in pairs.iter().take(most) {
            let numbers = [times.total, times.quantile(50), times.quantile(99), times.most];
            let numbers = numbers.map(|number| format!("{:>7}", short(number))).join(" ");
            let [waker, woken] = [fit_right(waker, name), fit(woken, name)];
            writeln!(out, "{waker} -> {woken} {:>7} {numbers}", times.count)?;
            if histogram {
                times.histogram(out)?;
                writeln!(out)?;
            }
        }
        let joined: u64 = pairs.iter().map(|pair| pair.times.count).sum();
        let hidden = pairs.len().saturating_sub(most);
        let hidden = if hidden > 0 { format!("; --rows shows {hidden} more pairs") } else { String::new() };
        writeln!(out, "{joined} wake-ups{hidden}")
    }
}
