//! How long processes are off the CPU, and why.

mod account;

use crate::args::{Common, Target};
use crate::child::Child;
use crate::failure::Outcome;
use crate::family::Family;
use crate::live::{Live, fit, names_width, width};
use crate::names::NAMING;
use crate::out::{Out, line};
use crate::recorded::{self, Input, Recorded};
use crate::scheduler::{Tracing, Way};
use crate::session::{Session, Tell};
use crate::stamp;
use crate::times::short;
use account::{Account, REASONS, Row, Sums};
use perf_event_open_sys::bindings;
use perfweave::Rings;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// How long processes are off the CPU, and why: asleep, waiting for a disk, or ready without a CPU
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// Only threads of this name
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// One row for each thread
    #[arg(long)]
    by_thread: bool,
    /// Print a histogram for each row
    #[arg(short = 'H', long)]
    histogram: bool,
    /// The most rows of the table
    #[arg(short = 'n', long, value_name = "N", default_value = "20")]
    rows: usize,
    /// Print each period as well, when it is over
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
    #[command(flatten)]
    target: Target,
}

/// So wide is a row with all columns.
const WITH_IRQ: usize = 85;

const AFTER: &str = "\
A period lasts from when a thread leaves a CPU until it runs again, on that or another. Its parts:
  asleep      it waits for something, and a signal can wake it
  disk        uninterruptible: it waits for a disk, a page or a lock of the kernel
  ready       it could run and does not: it was woken, or taken off its CPU. Another thread runs, or its control group has used up its quota
  other       stopped, traced or parked
  irq         no part of it: interrupts and soft interrupts had its CPU while it ran. Not with --cgroup, of a recording without their
              events, and on a terminal with less than 85 columns. Of ksoftirqd it is its own work
Sleep ends at the wake-up. Where that is not known, all of the period counts as sleep, and the last line says how often. So it is with --cgroup: the \
events of a control group lack wake-ups by others. All else traces the whole machine, whatever rows are asked for. \
A period that has not ended when the trace ends is not counted. After a loss, periods that have begun are forgotten; those that ended while \
records were lost are not in the table, but have lines with --each, before that of the loss.

On a terminal the table is drawn again every second.

  perfweave offcpu -- make                  why a command takes long
  perfweave offcpu -p 1234 -H               a process, with histograms, until Ctrl-C
  perfweave offcpu -d 5 --by-thread --comm postgres
  perfweave offcpu -i perf.data -p 1234     a process of a recording
  perfweave offcpu -d 5 --each --json | jq 'select(.reason == \"disk\" and .ns > 1e7)'";

pub fn run(args: Args) -> Outcome {
    match &args.input.input {
        Some(path) => of_recording(&args, path),
        None => live(&args),
    }
}

/// Of a recording.
fn of_recording(args: &Args, path: &Path) -> Outcome {
    args.target.refuse_cgroup()?;
    let mut recorded = Recorded::open(path)?;
    let family = recorded::family(args.target.pid, args.target.tid);
    let mut account = Account::recorded(recorded.rings(), args, family)?;
    let mut out = Out::new();
    recorded.each(|event, _| account.event(event, &mut out))?;
    account.end(&recorded.ledger()?);
    print(args, &account.rows(), account.tells_interrupts(), &mut out)?;
    recorded.lacks(account.lacks());
    recorded.unrecorded(account.unrecorded());
    recorded.conclude(&mut out, args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Of what happens now.
fn live(args: &Args) -> Outcome {
    let is_limited = args.target.cgroup.is_some();
    // The events of a control group are those of its tracepoints. Before the command: what it does until it is let go
    // is nobody's concern, so it shall be little.
    let tracing = Tracing::begin(args.way, false, is_limited.then_some("for --cgroup"));
    let child = args.target.start()?;
    let options = Rings::options();
    // Those of a control group are of its threads alone, and interrupts are nobody's.
    let options = if is_limited { tracing.sources(options) } else { tracing.sources_and_interrupts(options) };
    let options = options.records(NAMING).sample(bindings::PERF_SAMPLE_TID).bytes(args.common.buffer);
    let rings = if is_limited { args.target.limit(options, None) } else { options }.open()?;
    tracing.look().now(false);
    // After the rings were opened: what starts from now on has its records.
    let family = match (args.target.process(child.as_ref()), args.target.tid) {
        (Some(pid), _) => Family::of(pid)?,
        (None, Some(tid)) => Family::thread(tid)?,
        (None, None) => Family::All,
    };
    let mut account = Account::new(&rings, args, &tracing, family, child.as_ref().map(Child::pid))?;
    let mut out = Out::new();
    let mut live = Live::new(&out, child.is_none() && !args.each && !args.common.json);
    let mut session = Session::begin(rings, tracing.order(&args.common), &args.common, child)?;
    session.stamped(account.stamp);
    session.traced(&tracing);
    session.until_the_end_of(args.target.watched());
    session.each(|tell| match tell {
        Tell::Event(event) => account.event(event, &mut out),
        Tell::Pause => {
            live.draw(&mut out, |rows| {
                let mut text = Vec::new();
                // Writing to memory does not fail.
                let _ = table(&account.rows(), account.tells_interrupts(), &mut text, rows, false, width());
                String::from_utf8_lossy(&text).into_owned()
            })?;
            out.flush()
        }
    })?;
    live.end(&mut out)?;
    account.end(&session.ledger()?);
    session.unrecorded(account.unrecorded());
    print(args, &account.rows(), account.tells_interrupts(), &mut out)?;
    session.conclude(&mut out, args.common.json)?;
    Ok(session.status())
}

fn print(args: &Args, rows: &[Row], irq: bool, out: &mut Out) -> io::Result<()> {
    if args.common.json {
        return rows.iter().take(args.rows).try_for_each(|row| line(out, format_args!("{}", object(row, irq))));
    }
    let width = width().filter(|_| out.is_terminal());
    table(rows, irq, out, args.rows, args.histogram, width)?;
    let unknown: u64 = rows.iter().map(|row| row.sums.unknown).sum();
    if unknown > 0 {
        writeln!(out, "without a known wake-up, and so without ready time: {unknown}")?;
    }
    Ok(())
}

/// `irq`: whether it is known what interrupts take.
fn object(row: &Row, irq: bool) -> Value {
    let sum = |(count, total): &(u64, u64)| json!({ "count": count, "total_ns": total });
    let part = |(reason, of): (&str, &(u64, u64))| (reason.to_owned(), sum(of));
    let reasons: Map<_, _> = REASONS.into_iter().zip(&row.sums.parts).map(part).collect();
    json!({ "comm": row.comm, "id": row.id, "times": row.sums.all.json(), "reasons": reasons,
        "irq": irq.then(|| sum(&row.sums.interrupted)), "without_wakeup": row.sums.unknown })
}

/// `irq`: whether it is known what interrupts take.
fn table(
    rows: &[Row],
    irq: bool,
    out: &mut impl Write,
    most: usize,
    histogram: bool,
    width: Option<usize>,
) -> io::Result<()> {
    // A terminal of 80 columns has no room for it.
    let irq = irq && width.is_none_or(|width| width >= WITH_IRQ);
    let heads = ["times", "total", "p50", "max"].into_iter().chain(REASONS).chain(irq.then_some("irq"));
    let heads = heads.map(|head| format!("{head:>7}")).collect::<Vec<_>>().join(" ");
    let name = names_width(width, 1 + heads.len(), 1);
    writeln!(out, "{:<name$} {heads}", "process")?;
    for Row { comm, id, sums: Sums { all, parts, interrupted, .. } } in rows.iter().take(most) {
        let times = [all.total, all.quantile(50), all.most].into_iter().chain(parts.iter().map(|(_, total)| *total));
        let times = times.chain(irq.then_some(interrupted.1));
        let times = times.map(|time| format!("{:>7}", if time == 0 { "-".into() } else { short(time) }));
        let process = fit(&format!("{comm}/{id}"), name);
        writeln!(out, "{process} {:>7} {}", all.count, times.collect::<Vec<_>>().join(" "))?;
        if histogram {
            all.histogram(out)?;
            writeln!(out)?;
        }
    }
    let hidden = rows.len().saturating_sub(most);
    if hidden > 0 { writeln!(out, "{hidden} more rows") } else { Ok(()) }
}
