//! How long processes are off the CPU, and why.

mod account;

use crate::args::{Common, Target};
use crate::failure::Outcome;
use crate::live::Live;
use crate::names::NAMING;
use crate::out::Out;
use crate::session::{Session, Tell};
use crate::stamp;
use crate::times::{Times, short};
use account::{Account, REASONS, Row};
use perfweave::{Kind, Rings, Sample};
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// How long processes are off the CPU, and why: asleep, waiting for a disk, or preempted
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
    time: stamp::Printed,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    target: Target,
}

const AFTER: &str = "\
A period lasts from when a thread leaves a CPU until it runs again, on that or another. The kernel says why it leaves:
  asleep      it waits for something, and a signal can wake it
  disk        uninterruptible: it waits for a disk, a page or a lock of the kernel
  preempted   it could run, and another thread runs instead
  other       stopped, traced or parked
A period that has not ended when the trace ends is not counted. After a loss, periods that have begun are forgotten.

On a terminal the table is drawn again every second.

  perfweave offcpu -- make                  why a command takes long
  perfweave offcpu -p 1234 -H               a process, with histograms, until Ctrl-C
  perfweave offcpu -d 5 --by-thread --comm postgres
  perfweave offcpu -d 5 --each --json | jq 'select(.reason == \"disk\" and .ns > 1e7)'";

pub fn run(args: Args) -> Outcome {
    let child = args.target.start()?;
    let naming = NAMING.into_iter().chain([Kind::EXIT, Kind::SWITCH]);
    let options = Rings::options().tracepoint("sched:sched_switch").records(naming).sample([Sample::Tid]);
    let rings = args.target.limit(options.bytes(args.common.buffer), child.as_ref()).open()?;
    let mut account = Account::new(&rings, &args, child.as_ref().map(|child| child.pid()))?;
    let mut out = Out::new();
    let mut live = Live::new(&out, child.is_none() && !args.each && !args.common.json);
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    session.stamped(account.stamp);
    session.until_the_end_of(args.target.watched());
    session.each(|tell| match tell {
        Tell::Event(event) => account.event(event, &mut out),
        Tell::Pause => {
            live.draw(&mut out, |rows| {
                let mut text = Vec::new();
                // Writing to memory does not fail.
                let _ = table(&account.rows(), &mut text, rows, false);
                String::from_utf8_lossy(&text).into_owned()
            })?;
            out.flush()
        }
    })?;
    live.end(&mut out)?;
    let rows = account.rows();
    if args.common.json {
        rows.iter().take(args.rows).try_for_each(|row| writeln!(out, "{}", object(row)))?;
    } else {
        table(&rows, &mut out, args.rows, args.histogram)?;
    }
    session.conclude(&mut out, args.common.json)?;
    Ok(session.status())
}

fn object(row: &Row) -> Value {
    let reasons: Map<_, _> = REASONS
        .into_iter()
        .zip(&row.by_reason)
        .map(|(reason, times)| (reason.into(), json!({ "count": times.count, "total_ns": times.total })))
        .collect();
    json!({ "comm": row.comm, "id": row.id, "times": row.all().json(), "reasons": reasons })
}

fn table(rows: &[Row], out: &mut impl Write, most: usize, histogram: bool) -> io::Result<()> {
    let heads = ["times", "total", "p50", "max"].into_iter().chain(REASONS);
    let heads = heads.map(|head| format!("{head:>9}")).collect::<Vec<_>>().join(" ");
    writeln!(out, "{:<28} {heads}", "process")?;
    for row in rows.iter().take(most) {
        let all = row.all();
        let times =
            [all.total, all.quantile(50), all.most].into_iter().chain(row.by_reason.iter().map(|times| times.total));
        let times = times.map(|time| format!("{:>9}", if time == 0 { "-".into() } else { short(time) }));
        let name = format!("{}/{}", row.comm, row.id);
        writeln!(out, "{name:<28} {:>9} {}", all.count, times.collect::<Vec<_>>().join(" "))?;
        if histogram {
            all.histogram(out)?;
            writeln!(out)?;
        }
    }
    let hidden = rows.len().saturating_sub(most);
    if hidden > 0 { writeln!(out, "{hidden} more rows") } else { Ok(()) }
}

impl Row {
    fn all(&self) -> Times {
        let mut all = Times::default();
        self.by_reason.iter().for_each(|times| all.join(times));
        all
    }
}
