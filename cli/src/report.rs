//! What is in a recording, on one screen.

mod losses;
mod threads;

use crate::convert::names::frames;
use crate::failure::{Failure, Outcome};
use crate::live::{fit, names_width, width};
use crate::missing;
use crate::out::{Out, line};
use crate::recorded::{self, Recorded};
use crate::stamp::{self, Stamp};
use crate::times::short;
use losses::Losses;
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Record, Rings, Status};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use threads::{Busy, Threads};

/// Says what is in a recording: its events, what is missing, who was busy, who waited, and which command says more
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// The recording, by perfweave record or perf record; - for standard input [perf.data]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The same, as perf has it
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    input: Option<PathBuf>,
    /// The most kinds of events, and the most threads of each table
    #[arg(short = 'n', long, value_name = "N", default_value = "6")]
    rows: usize,
    #[command(flatten)]
    time: stamp::Printed,
    /// Print one JSON object
    #[arg(short, long)]
    json: bool,
}

const AFTER: &str = "\
Threads are busy by the time between two switches on a CPU, if the recording has sched:sched_switch or is by -e why; otherwise by samples of CPU time, or by \
events. Time beside a loss, or before a CPU's first switch, is not counted.

  perf record -a -e sched:sched_switch,sched:sched_waking -- sleep 1
  perfweave report                   of perf.data
  perfweave report --json FILE | jq .losses";

pub fn run(args: Args) -> Outcome {
    let path = args.file.as_deref().or(args.input.as_deref()).unwrap_or(Path::new("perf.data"));
    let mut recorded = Recorded::open(path)?;
    let stamp = args.time.stamp_recorded(recorded.rings())?;
    let mut report = Report::new(recorded.rings());
    recorded.each(|event, view| {
        view.learn(event);
        let name = event.record().and_then(|record| {
            let shown = view.shown(&record).into_iter().find(|shown| shown.is_own)?;
            Some(view.name(&record, shown).into_owned())
        });
        report.event(event, name);
        Ok(())
    })?;
    let ledger = recorded.ledger()?;
    report.end(&ledger);
    let mut out = Out::new();
    if args.json {
        line(&mut out, format_args!("{}", report.object(&args, path, &ledger, &recorded, &stamp)))?;
    } else {
        report.print(&args, path, &ledger, &recorded, &stamp, &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// A path as a shell takes it.
fn printed(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+,:@%=".contains(letter);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// What was seen so far.
struct Report {
    /// How often there was each kind of event.
    kinds: BTreeMap<String, u64>,
    /// How many records each CPU has.
    cpus: BTreeMap<u32, u64>,
    /// The first time and the last.
    lasts: Option<[u64; 2]>,
    losses: Losses,
    threads: Threads,
    /// Whether some sample has a call chain.
    has_chains: bool,
    /// Whether some sample says where it was taken.
    has_places: bool,
    tracepoints: BTreeSet<String>,
}

impl Report {
    fn new(rings: &Rings) -> Self {
        let tracepoints = rings.sources().iter().filter_map(|source| source.tracepoint().map(str::to_owned));
        Self {
            kinds: BTreeMap::new(),
            cpus: BTreeMap::new(),
            lasts: None,
            losses: Losses::default(),
            threads: Threads::new(rings),
            has_chains: false,
            has_places: false,
            tracepoints: tracepoints.collect(),
        }
    }

    /// Takes an event, and the name of its kind.
    fn event(&mut self, event: &Event<'_>, name: Option<String>) {
        self.threads.event(event);
        match event.item() {
            Item::Record(record) => self.record(event, &record, name),
            Item::Lost(lost) => self.losses.take(&lost),
            _ => {}
        }
    }

    fn record(&mut self, event: &Event<'_>, record: &Record<'_>, name: Option<String>) {
        *self.kinds.entry(name.unwrap_or_else(|| "?".into())).or_default() += 1;
        *self.cpus.entry(record.cpu()).or_default() += 1;
        if record.kind() != bindings::PERF_RECORD_SAMPLE {
            return;
        }
        self.has_chains |= record.callchain().is_some_and(|chain| chain.len() > 0);
        self.has_places |= !frames(record).is_empty();
        // A recording begins with names and mappings of before.
        if let Some(time) = event.key().filter(|time| *time > 0) {
            let [from, to] = self.lasts.unwrap_or([time; 2]);
            self.lasts = Some([from.min(time), to.max(time)]);
        }
    }

    fn end(&mut self, ledger: &Status) {
        self.threads.end(ledger);
    }

    fn has(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.tracepoints.contains(*name))
    }

    /// The commands that say more of it, and what each tells.
    fn more(&self, file: &str) -> Vec<[String; 2]> {
        let mut more = Vec::new();
        let mut add = |command: String, what: &str| more.push([format!("perfweave {command}"), what.to_owned()]);
        if self.threads.are_told() && self.has(&["sched:sched_waking"]) && self.threads.lacks().is_none() {
            add(format!("why {file}"), "the longest waits, and through whom");
            add(format!("wakeups -i {file}"), "who wakes whom, and who waits for a CPU");
        }
        if self.threads.are_told() {
            add(format!("offcpu -i {file}"), "how long processes are off the CPU, and why");
        }
        if self.has(&["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"]) {
            add(format!("latency -i {file}"), "how long system calls take");
        }
        if self.has_chains || self.has_places && self.threads.has_samples_of_time() {
            add(format!("profile -i {file}"), "where CPU time goes, by functions");
        }
        add(format!("convert --html {file} -o trace.html"), "all of it as a page for a browser");
        more
    }

    /// The kinds of events, the most frequent first.
    fn sorted(&self) -> Vec<(&str, u64)> {
        let mut kinds: Vec<_> = self.kinds.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        kinds.sort_by_key(|(_, count)| Reverse(*count));
        kinds
    }

    fn object(&mut self, args: &Args, file: &Path, ledger: &Status, recorded: &Recorded, stamp: &Stamp) -> Value {
        let total = recorded::total(ledger);
        let number = |time: u64| stamp.number(time);
        let [from, to] = self.lasts.map_or([None; 2], |lasts| lasts.map(|time| Some(number(time))));
        let kinds = self.sorted().into_iter().map(|(event, count)| json!({ "event": event, "count": count }));
        let kinds: Vec<_> = kinds.collect();
        let cpus = self.cpus.iter().map(|(cpu, records)| json!({ "cpu": cpu, "records": records }));
        let cpus: Vec<_> = cpus.collect();
        let (by, busiest) = self.threads.busiest();
        let busiest = busiest.into_iter().take(args.rows).map(|busy| busy.object(by));
        let busiest: Vec<_> = busiest.collect();
        let delayed = self.threads.delayed().into_iter().take(args.rows).map(|delayed| delayed.object());
        let delayed: Vec<_> = delayed.collect();
        let more: Vec<_> = self.more(&printed(file)).into_iter().map(|[command, _]| command).collect();
        json!({
            "file": file.to_string_lossy(), "from": from, "to": to, "ns": self.lasts.map(|[from, to]| to - from),
            "began": self.began(recorded), "records": total.yielded, "events": kinds, "cpus": cpus,
            "lost": total.lost, "lost_without_place": ledger.machine.lost, "losses": self.losses.objects(ledger, stamp),
            "late": total.late, "damaged": total.damaged, "complete": ledger.is_complete() && self.threads.unrecorded() == 0,
            "busiest": busiest, "delayed": delayed, "lacks": self.threads.lacks(), "more": more,
        })
    }

    /// When it began by the wall clock, if it says so.
    fn began(&self, recorded: &Recorded) -> Option<String> {
        let ([from, _], wall) = (self.lasts?, recorded.rings().wall_clock()?);
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(wall.apply(from));
        Some(humantime::format_rfc3339_millis(time).to_string())
    }

    fn print(
        &mut self,
        args: &Args,
        file: &Path,
        ledger: &Status,
        recorded: &Recorded,
        stamp: &Stamp,
        out: &mut Out,
    ) -> Result<(), Failure> {
        let total = recorded::total(ledger);
        let lasts = match self.lasts {
            Some([from, to]) => {
                let times = [from, to].map(|time| stamp.text(Some(time)).trim_start().to_owned()).join(" to ");
                format!("{} from {times}", short(to - from))
            }
            None => "no samples".into(),
        };
        let began = self.began(recorded).map_or_else(String::new, |began| format!("; it began at {began}"));
        line(out, format_args!("{}: {lasts}{began}", file.display()))?;
        let cpus = self.cpus.iter().map(|(cpu, records)| (records, cpu));
        if let (Some(most), Some(least)) = (cpus.clone().max(), cpus.min()) {
            let (count, [most, least]) =
                (self.cpus.len(), [most, least].map(|(records, cpu)| format!("CPU {cpu} has {records}")));
            let least = if count > 1 { format!(", {least}") } else { String::new() };
            writeln!(
                out,
                "{count} CPU{} with {} records: {most}{least}",
                if count == 1 { "" } else { "s" },
                total.yielded
            )?;
        }
        let kinds = self.sorted();
        for (name, count) in kinds.iter().take(args.rows) {
            line(out, format_args!("{count:>12}  {name}"))?;
        }
        rest(kinds.len(), args.rows, "kinds of events", out)?;
        let unrecorded = self.threads.unrecorded();
        let loss = missing::beside_switches(missing::of(&total, missing::UNCOUNTED), unrecorded);
        writeln!(out, "\n{loss}; {} late{}", total.late, missing::switches(unrecorded))?;
        self.losses.print(ledger, stamp, out)?;
        self.print_threads(args, out)?;
        if let Some(lacks) = self.threads.lacks() {
            writeln!(out, "\n{lacks}")?;
        }
        writeln!(out, "\nMore of it:")?;
        let more = self.more(&printed(file));
        let wide = more.iter().map(|[command, _]| command.chars().count()).max().unwrap_or(0);
        more.iter().try_for_each(|[command, what]| line(out, format_args!("  {command:<wide$}   {what}")))?;
        Ok(())
    }

    fn print_threads(&mut self, args: &Args, out: &mut Out) -> io::Result<()> {
        let name = names_width(width().filter(|_| out.is_terminal()), 40, 1);
        let (by, busiest) = self.threads.busiest();
        if !busiest.is_empty() {
            writeln!(out, "\n{:<name$} {:>12}", "busiest", by.head())?;
            for Busy { thread, amount, .. } in busiest.iter().take(args.rows) {
                writeln!(out, "{} {:>12}", fit(thread, name), by.amount(*amount))?;
            }
            rest(busiest.len(), args.rows, "threads", out)?;
        }
        let delayed = self.threads.delayed();
        if !delayed.is_empty() {
            writeln!(out, "\n{:<name$} {:>7} {:>7} {:>7}", "waited for a CPU", "times", "total", "max")?;
            for one in delayed.iter().take(args.rows) {
                let times = [one.times.total, one.times.most].map(|time| format!("{:>7}", short(time))).join(" ");
                writeln!(out, "{} {:>7} {times}", fit(&one.thread, name), one.times.count)?;
            }
            rest(delayed.len(), args.rows, "threads", out)?;
        }
        Ok(())
    }
}

/// How many rows are not shown.
fn rest(all: usize, rows: usize, what: &str, out: &mut Out) -> io::Result<()> {
    let hidden = all.saturating_sub(rows);
    if hidden > 0 { writeln!(out, "{:>12}  more {what}", hidden) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::printed;
    use std::path::Path;

    #[test]
    fn a_path_can_be_pasted() {
        let paths = ["/tmp/a-b.data", "it's mine", "-"].map(|path| printed(Path::new(path)));
        assert_eq!(paths, ["/tmp/a-b.data", r"'it'\''s mine'", "-"]);
    }
}
