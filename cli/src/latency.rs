//! How long system calls take, or what lies between any two events.

mod pairs;

use crate::args::{Common, Target};
use crate::failure::{Failure, Outcome};
use crate::live::{Live, fit, names_width, width};
use crate::names::Names;
use crate::out::{Out, line};
use crate::recent::{Last, Recent};
use crate::recorded::{self, Input, Recorded};
use crate::session::{Session, Tell};
use crate::times::{Times, short};
use crate::trace::calls::{self, Calls};
use crate::trace::events::is_of;
use crate::trace::pairs::{Pairs, Step, sources};
use perfweave::{Event, Item, Rings, Status};
use serde_json::json;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// How long system calls take, or what lies between any two events: how often, p50, p99, longest, histograms
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// Only these system calls, with commas in between
    #[arg(short = 'e', long, value_name = "CALLS", value_delimiter = ',', conflicts_with = "from")]
    calls: Vec<String>,
    /// The tracepoint at which a time begins
    #[arg(long, value_name = "EVENT", requires_all = ["to", "by"])]
    from: Option<String>,
    /// The tracepoint at which it ends
    #[arg(long, value_name = "EVENT", requires = "from")]
    to: Option<String>,
    /// The field that is equal in both, or two: FROM=TO
    #[arg(long, value_name = "FIELD", requires = "from")]
    by: Option<String>,
    /// Rows for each process, by its name and number
    #[arg(long, conflicts_with = "from")]
    by_process: bool,
    /// Only threads of this name
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// Print a histogram for each row
    #[arg(short = 'H', long)]
    histogram: bool,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    target: Target,
}

const AFTER: &str = "\
A call counts from its entry to its return, with the time that its thread waits. A pair of events may lie on two CPUs: what begins on one \
and ends on another is joined in proven order. After a loss, what has begun is forgotten: no time is made of two events that do not belong \
together. Of several begins before an end the last counts: a wake-up may find its thread awake, and another comes later. Quantiles are at \
most 3 % too large, the longest is exact. On a terminal the table is drawn again every second.

  perfweave latency -- ls -lR /usr                 the calls of a command
  perfweave latency -p 1234 -e fsync,futex -H      two calls of a process, with histograms
  perfweave latency -d 5 --by-process              the whole machine for five seconds
  perfweave latency -d 5 --from sched:sched_waking --to sched:sched_switch --by pid=next_pid
  perfweave latency -i perf.data -p 1234           of a recording with raw_syscalls:*
  perfweave latency -d 5 --from block:block_rq_issue --to block:block_rq_complete --by sector";

/// A row of the table: the call or pair, and the process if asked.
type Key = (String, Option<(String, u32)>);

/// The times of each row.
#[derive(Debug, Default)]
pub struct Rows {
    times: Recent<Key, u64, Times>,
    last: Last,
}

pub fn run(args: Args) -> Outcome {
    match (&args.from, &args.to, &args.by) {
        (Some(from), Some(to), Some(by)) => pairs::run(&args, [from, to], by),
        _ => of_calls(&args),
    }
}

fn of_calls(args: &Args) -> Outcome {
    let number = |name: &String| {
        let hint = "it is the name that strace prints, such as openat";
        calls::number(name).ok_or_else(|| Failure::hinting(format_args!("there is no system call {name}"), hint))
    };
    let numbers = args.calls.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    match &args.input.input {
        Some(path) => of_recorded_calls(args, &numbers, path),
        None => of_live_calls(args, &numbers),
    }
}

/// Of a recording.
fn of_recorded_calls(args: &Args, numbers: &[i64], path: &Path) -> Outcome {
    args.target.refuse_cgroup()?;
    let mut recorded = Recorded::open(path)?;
    let pairs = Pairs::recorded(&recorded)?;
    let mut family = recorded::family(args.target.pid, args.target.tid);
    let mut of = OfCalls { pairs, calls: Calls::default(), names: Names::recorded(), rows: Rows::default() };
    recorded.each(|event, _| {
        if is_of(&mut family, event) {
            of.event(args, numbers, event);
        }
        Ok(())
    })?;
    finish_recorded(args, &mut recorded, &mut of.rows)
}

fn of_live_calls(args: &Args, numbers: &[i64]) -> Outcome {
    let child = args.target.start()?;
    let options = sources(Rings::options(), numbers, child.is_some()).bytes(args.common.buffer);
    let rings = args.target.limit(options, child.as_ref()).open()?;
    let pairs = Pairs::new(&rings, child.as_ref().map(|child| child.pid()))?;
    let mut of = OfCalls { pairs, calls: Calls::default(), names: Names::now(), rows: Rows::default() };
    let live = live(args);
    let mut session = Session::begin(rings, args.common.order(), &args.common, child)?;
    session.until_the_end_of(args.target.watched());
    let (mut out, mut live) = live;
    session.each(|tell| match tell {
        Tell::Event(event) => {
            of.event(args, numbers, event);
            Ok(())
        }
        Tell::Pause => live.draw(&mut out, |rows| of.rows.text(args, rows)),
    })?;
    live.end(&mut out)?;
    finish(args, &mut session, &mut of.rows, out)
}

struct OfCalls {
    pairs: Pairs,
    calls: Calls,
    names: Names,
    rows: Rows,
}

impl OfCalls {
    fn event(&mut self, args: &Args, numbers: &[i64], event: &Event<'_>) {
        if self.rows.is_missing(event) {
            self.pairs.forget();
        }
        let Item::Record(record) = event.item() else { return };
        self.names.take(&record);
        let Step::Returns { pid, tid, number, entry: Some(entry), .. } = self.pairs.take(&record) else { return };
        if !numbers.is_empty() && !numbers.contains(&number) {
            return;
        }
        if args.comm.as_ref().is_some_and(|comm| self.names.of(tid) != comm) {
            return;
        }
        let process = args.by_process.then(|| (self.names.of(pid).to_owned(), pid));
        let time = event.key().unwrap_or(entry.time);
        self.rows.add(time, (self.calls.of(number).name.clone(), process), time.saturating_sub(entry.time));
    }
}

impl Rows {
    /// Takes what ended at a time, and how long it took.
    pub fn add(&mut self, time: u64, key: Key, took: u64) {
        if !self.last.is_missing() {
            self.times.add(time, key, took);
        }
    }

    /// Whether records are missing here: what has begun may have ended and begun again. What ended meanwhile does not
    /// count, and neither does what ended after a record that came late.
    pub fn is_missing(&mut self, event: &Event<'_>) -> bool {
        let since = self.last.takes(event);
        self.times.void(since);
        since.is_some() && event.record().is_none()
    }

    /// Takes what the ledger knows at the end and no event has told.
    fn end(&mut self, ledger: &Status) {
        self.times.void(self.last.unreported_since(ledger));
    }

    /// The first rows, as text for a terminal.
    fn text(&self, args: &Args, most: usize) -> String {
        let mut text = Vec::new();
        // Writing to memory does not fail.
        let _ = self.table(&mut text, args, most, false, width());
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The longest in all first.
    fn sorted(&self) -> Vec<(Key, Times)> {
        let mut rows: Vec<_> = self.times.sums().into_iter().collect();
        rows.sort_by(|(one, took), (other, more)| more.total.cmp(&took.total).then_with(|| one.cmp(other)));
        rows
    }

    fn print(&self, out: &mut Out, args: &Args) -> io::Result<()> {
        if !args.common.json {
            let width = width().filter(|_| out.is_terminal());
            return self.table(out, args, usize::MAX, args.histogram, width);
        }
        for ((what, process), times) in self.sorted() {
            let (comm, pid) = process.as_ref().map(|(comm, pid)| (comm, pid)).unzip();
            line(out, format_args!("{}", json!({ "what": what, "comm": comm, "pid": pid, "times": times.json() })))?;
        }
        Ok(())
    }

    fn table(
        &self,
        out: &mut impl Write,
        args: &Args,
        most: usize,
        histogram: bool,
        width: Option<usize>,
    ) -> io::Result<()> {
        let heads = ["times", "total", "p50", "p99", "max"].map(|head| format!("{head:>7}")).join(" ");
        let columns = 1 + usize::from(args.by_process);
        let name = names_width(width, columns + heads.len(), columns);
        let process = if args.by_process { format!("{:<name$} ", "process") } else { String::new() };
        writeln!(out, "{process}{:<name$} {heads}", "what")?;
        for ((what, process), times) in self.sorted().into_iter().take(most) {
            if let Some((comm, pid)) = process {
                write!(out, "{} ", fit(&format!("{comm}/{pid}"), name))?;
            }
            let numbers = [times.total, times.quantile(50), times.quantile(99), times.most];
            let numbers = numbers.map(|number| format!("{:>7}", short(number))).join(" ");
            writeln!(out, "{} {:>7} {numbers}", fit(&what, name), times.count)?;
            if histogram {
                times.histogram(out)?;
                writeln!(out)?;
            }
        }
        Ok(())
    }
}

/// The output, and the table that is drawn again on it.
fn live(args: &Args) -> (Out, Live) {
    let out = Out::new();
    let live = Live::new(&out, args.target.command.is_empty() && !args.common.json);
    (out, live)
}

fn finish(args: &Args, session: &mut Session, rows: &mut Rows, mut out: Out) -> Outcome {
    rows.end(&session.ledger()?);
    rows.print(&mut out, args)?;
    session.conclude(&mut out, args.common.json)?;
    Ok(session.status())
}

fn finish_recorded(args: &Args, recorded: &mut Recorded, rows: &mut Rows) -> Outcome {
    let mut out = Out::new();
    rows.end(&recorded.ledger()?);
    rows.print(&mut out, args)?;
    recorded.conclude(&mut out, args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::Rows;
    use crate::recent::a_loss_in_between;

    /// A loss on CPU 1 is told after what CPU 0 wrote meanwhile: the return of one call may be joined to the entry of
    /// an earlier one.
    #[test]
    fn what_returned_while_records_were_lost_does_not_count() {
        let mut rows = Rows::default();
        let mut missing = Vec::new();
        for (time, took) in [(7, 1), (20, 2), (30, 3)] {
            rows.add(time, ("read".into(), None), took);
        }
        a_loss_in_between(|event| missing.push(rows.is_missing(event)));
        assert_eq!(missing, [false, false, false, true, false]);
        let sorted = rows.sorted();
        assert_eq!(sorted.iter().map(|(_, times)| (times.count, times.total)).collect::<Vec<_>>(), [(1, 1)]);
    }
}
