//! The results, as Markdown.

use crate::producer::{Load, Outcome, Setting};
use crate::readers::{
    BUFFERS_DRAIN, BUFFERS_DRAIN_OFTEN, BUFFERS_LIBBPF, BUFFERS_LIBBPF_OFTEN, BUFFERS_NONE, BUFFERS_PROGRAMS,
    BUFFERS_RESERVED, DEFAULT, DENSE_SOON, DRAIN, DRAIN_ENTERED, EPOCH, EPOCH_SPINNING, EPOCH_WOKEN, EXPEDITED_SOON,
    MEMBARRIER_SOON, NONE, OFTEN, READERS, REFERENCE, Reader, SORTED,
};
use std::fmt::{Display, Formatter, Result};
use std::time::Duration;

/// The outcomes of one load, by reader and round.
pub struct Table {
    pub setting: Setting,
    rows: Vec<(&'static Reader, Vec<Outcome>)>,
    idle: Vec<f64>,
}

impl Table {
    /// Nothing yet.
    pub fn new(setting: Setting, only: Option<&str>, without: Option<&str>) -> Self {
        let named = |name: &str, only: &str| only.split(',').any(|only| name.contains(only));
        let chosen = |reader: &&Reader| {
            let is_wanted = only.is_none_or(|only| named(reader.name, only));
            let is_left_out = without.is_some_and(|without| named(reader.name, without));
            is_wanted && !is_left_out || reader.name == REFERENCE
        };
        let readers = READERS.iter().filter(|reader| reader.takes(setting.load)).filter(chosen);
        Self { setting, rows: readers.map(|reader| (reader, Vec::new())).collect(), idle: Vec::new() }
    }

    /// The readers that are measured.
    pub fn readers(&self) -> Vec<&'static Reader> {
        self.rows.iter().map(|(reader, _)| *reader).collect()
    }

    /// Calls a second without tracing.
    pub fn idle(&mut self, rate: f64) {
        self.idle.push(rate);
    }

    /// The outcome of a reader in a round.
    pub fn row(&mut self, reader: &Reader, outcome: Outcome) {
        let row = self.rows.iter_mut().find(|(known, _)| known.name == reader.name);
        row.expect("it is one of them").1.push(outcome);
    }

    /// A column of a reader, by round.
    fn column(&self, name: &str, column: fn(&Outcome) -> f64) -> Vec<f64> {
        let row = self.rows.iter().find(|(reader, _)| reader.name == name);
        row.map(|(_, outcomes)| outcomes.iter().map(column).collect()).unwrap_or_default()
    }

    /// The median over the rounds of one reader's column divided by another's; no number if one was not measured.
    fn ratio(&self, name: &str, by: &str, column: fn(&Outcome) -> f64) -> f64 {
        let (own, other) = (self.column(name, column), self.column(by, column));
        median(own.iter().zip(other).map(|(own, other)| own / other))
    }
}

fn cost(outcome: &Outcome) -> f64 {
    outcome.seen.cpu_ns as f64 / outcome.seen.events.max(1) as f64
}

fn rate(outcome: &Outcome) -> f64 {
    outcome.rate
}

fn traced(outcome: &Outcome) -> f64 {
    outcome.traced_ns
}

fn lost(outcome: &Outcome) -> f64 {
    outcome.lost()
}

fn p99(outcome: &Outcome) -> f64 {
    outcome.seen.p99_ns as f64 / 1e6
}

/// The targets of the measured readers, next to the results.
pub fn targets([flood, paced, small, _, hogs]: &[Table; 5], grace_period: Duration) {
    println!("\n| what | meant to be | flood | paced |\n| --- | --- | --- | --- |");
    for (what, bound, name, by, column) in [
        ("CPU: ordered `next()` ÷ libbpf tuned, unordered", "≤ 2", DEFAULT, REFERENCE, cost as fn(&Outcome) -> f64),
        ("CPU: ordered `next()` ÷ libbpf tuned, copied and sorted", "≤ 0.5", DEFAULT, SORTED, cost),
        ("CPU: `drain` ÷ libbpf tuned, unordered", "≤ 1", DRAIN, REFERENCE, cost),
        ("calls: ordered `next()` ÷ libbpf tuned, unordered", "≥ 0.98", DEFAULT, REFERENCE, rate),
        ("calls: ordered `next()` ÷ libbpf tuned, copied and sorted", "≥ 0.98", DEFAULT, SORTED, rate),
        ("CPU: `epoch` ÷ `none`", "≤ 1", EPOCH, NONE, cost),
        ("the traced program's CPU: entering and leaving ÷ not, both drained", "≤ 1.05", DRAIN_ENTERED, DRAIN, traced),
        ("ring buffers, CPU: `drain` ÷ `ring_buffer__consume`", "≤ 1", BUFFERS_DRAIN, BUFFERS_LIBBPF, cost),
        ("the same every millisecond", "≤ 1", BUFFERS_DRAIN_OFTEN, BUFFERS_LIBBPF_OFTEN, cost),
        ("ring buffers, CPU: `reserved` ÷ `ring_buffer__consume`", "≤ 1.5", BUFFERS_RESERVED, BUFFERS_LIBBPF, cost),
        ("the same, programs with a barrier", "≤ 1.5", BUFFERS_PROGRAMS, BUFFERS_LIBBPF, cost),
        ("ring buffers, CPU: `none` ÷ `ring_buffer__consume`", "", BUFFERS_NONE, BUFFERS_LIBBPF, cost),
        ("ring buffers, calls: `drain` ÷ `ring_buffer__consume`", "", BUFFERS_DRAIN, BUFFERS_LIBBPF, rate),
        ("ring buffers, calls: `reserved` ÷ `ring_buffer__consume`", "", BUFFERS_RESERVED, BUFFERS_LIBBPF, rate),
        ("its calls: entering and leaving ÷ not, both drained", "≥ 0.95", DRAIN_ENTERED, DRAIN, rate),
    ] {
        let ratios = [flood, paced].map(|table| table.ratio(name, by, column));
        let cells = ratios.map(|ratio| if ratio.is_nan() { String::new() } else { format!("{ratio:.2}") });
        if cells.iter().any(|cell| !cell.is_empty()) {
            println!("| {what} | {bound} | {} |", cells.join(" | "));
        }
    }
    // In percentage points: how much more an ordered reader loses than an unordered one.
    for (what, table) in [("rings of 64 pages", small), ("the same beside hogs", hogs)] {
        for other in [DRAIN, REFERENCE] {
            let lost = |name| table.column(name, lost);
            let more = median(lost(DEFAULT).iter().zip(lost(other)).map(|(own, other)| own - other));
            if !more.is_nan() {
                println!("| lost, {what}: ordered `next()` less {other}, percentage points | ≤ 0 | {more:.2} | |");
            }
        }
    }
    let period = grace_period.as_secs_f64() * 1e3;
    let periods = format!("of {period:.1} ms");
    let latency = |name| median(paced.column(name, p99));
    for (what, bound, value, unit) in [
        ("expedited, `latency(1 ms)`", "< 2 ms", latency(EXPEDITED_SOON), "ms"),
        ("membarrier, `latency(1 ms)`", "< 3 grace periods", latency(MEMBARRIER_SOON) / period, &periods),
        ("dense, `latency(1 ms)` ÷ unordered every millisecond", "≤ 2", paced.ratio(DENSE_SOON, OFTEN, p99), ""),
        ("epoch, woken by each event", "< 1 ms", latency(EPOCH_WOKEN), "ms"),
        ("epoch, spinning", "< 0.1 ms", latency(EPOCH_SPINNING), "ms"),
    ] {
        if !value.is_nan() {
            println!("| latency p99, {what} | {bound} | | {} |", format!("{value:.2} {unit}").trim_end());
        }
    }
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let values = sorted(values);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median, the minimum and the maximum.
fn spread(values: impl IntoIterator<Item = f64>, digits: usize) -> String {
    let values = sorted(values);
    let [least, middle, most] = [0, values.len() / 2, values.len() - 1].map(|at| values[at]);
    format!("{middle:.digits$} ({least:.digits$}–{most:.digits$})")
}

const COLUMNS: [&str; 13] = [
    "reader",
    "CPU, ns an event",
    "÷ tuned",
    "calls, thousands a second",
    "÷ tuned",
    "its CPU, ns a call",
    "lost, %",
    "lost and not told",
    "out of order, %",
    "latency p50, ms",
    "p99, ms",
    "peak memory, MiB",
    "page faults a second",
];

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Setting { load, pages, hogs, .. } = self.setting;
        let beside = if hogs { ", beside a busy loop for each CPU" } else { "" };
        match load {
            Load::Flood => writeln!(f, "## A flood on all CPUs, rings of {pages} pages{beside}\n")?,
            Load::Paced(rate) => {
                writeln!(f, "## {rate} events a second on all CPUs together, rings of {pages} pages\n")?
            }
        }
        writeln!(f, "| {} |\n|{}", COLUMNS.join(" | "), " --- |".repeat(COLUMNS.len()))?;
        for (reader, outcomes) in &self.rows {
            let ratio = |column| self.ratio(reader.name, REFERENCE, column);
            let middle = |column: fn(&Outcome) -> f64| median(outcomes.iter().map(column));
            let unreported = |outcome: &Outcome| {
                outcome.written.saturating_sub(outcome.seen.events) as f64 - outcome.seen.lost as f64
            };
            let cells = [
                reader.name.to_owned(),
                spread(outcomes.iter().map(cost), 0),
                format!("{:.2}", ratio(cost)),
                spread(outcomes.iter().map(|outcome| rate(outcome) / 1e3), 0),
                format!("{:.2}", ratio(rate)),
                spread(outcomes.iter().map(traced), 0),
                format!("{:.2}", middle(lost)),
                format!("{:.0}", middle(unreported)),
                format!("{:.2}", middle(|o| o.seen.out_of_order as f64 / o.seen.events.max(1) as f64 * 100.0)),
                format!("{:.2}", middle(|o| o.seen.p50_ns as f64 / 1e6)),
                format!("{:.2}", middle(p99)),
                format!("{:.1}", middle(|o| o.seen.peak_kib as f64 / 1024.0)),
                format!("{:.0}", middle(|o| o.seen.faults as f64)),
            ];
            writeln!(f, "| {} |", cells.join(" | "))?;
        }
        let others = sorted(self.rows.iter().flat_map(|(_, outcomes)| outcomes).map(|o| o.others * 100.0));
        let idle = spread(self.idle.iter().map(|rate| rate / 1e3), 0);
        let (middle, most) = (others[others.len() / 2], others[others.len() - 1]);
        writeln!(
            f,
            "\nNot traced: {idle} thousand calls a second. Others used {middle:.0} % of the machine, at most {most:.0} %."
        )
    }
}
