//! What came of it, as Markdown.

use crate::producer::{Load, Outcome};
use crate::readers::{READERS, REFERENCE, Reader};
use std::fmt::{Display, Formatter, Result};

/// The outcomes of one load, by reader and round.
pub struct Table {
    pub load: Load,
    rows: Vec<(&'static Reader, Vec<Outcome>)>,
    idle: Vec<f64>,
}

impl Table {
    /// Nothing yet.
    pub fn new(load: Load, only: Option<&str>) -> Self {
        let chosen = |reader: &&Reader| only.is_none_or(|only| reader.name.contains(only)) || reader.name == REFERENCE;
        let readers = READERS.iter().filter(|reader| reader.takes(load)).filter(chosen);
        Self { load, rows: readers.map(|reader| (reader, Vec::new())).collect(), idle: Vec::new() }
    }

    /// Who is measured.
    pub fn readers(&self) -> Vec<&'static Reader> {
        self.rows.iter().map(|(reader, _)| *reader).collect()
    }

    /// Calls a second that nobody traced.
    pub fn idle(&mut self, rate: f64) {
        self.idle.push(rate);
    }

    /// What came of a reader in a round.
    pub fn row(&mut self, reader: &Reader, outcome: Outcome) {
        let row = self.rows.iter_mut().find(|(known, _)| known.name == reader.name);
        row.expect("it is one of them").1.push(outcome);
    }

    /// Of a column, the reference's in each round.
    fn reference(&self, column: fn(&Outcome) -> f64) -> Vec<f64> {
        let row = self.rows.iter().find(|(reader, _)| reader.name == REFERENCE);
        row.map(|(_, outcomes)| outcomes.iter().map(column).collect()).unwrap_or_default()
    }
}

fn cost(outcome: &Outcome) -> f64 {
    outcome.seen.cpu_ns as f64 / outcome.seen.events.max(1) as f64
}

fn rate(outcome: &Outcome) -> f64 {
    outcome.rate
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let values = sorted(values);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The median, the least and the most.
fn spread(values: impl IntoIterator<Item = f64>, digits: usize) -> String {
    let values = sorted(values);
    let [least, middle, most] = [0, values.len() / 2, values.len() - 1].map(|at| values[at]);
    format!("{middle:.digits$} ({least:.digits$}–{most:.digits$})")
}

const COLUMNS: [&str; 11] = [
    "reader",
    "CPU, ns an event",
    "÷ tuned",
    "calls, thousands a second",
    "÷ tuned",
    "lost, %",
    "lost and not told",
    "out of order, %",
    "latency p50, ms",
    "p99, ms",
    "peak memory, MiB",
];

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.load {
            Load::Flood => writeln!(f, "## A flood on all CPUs\n")?,
            Load::Paced(rate) => writeln!(f, "## {rate} events a second on all CPUs together\n")?,
        }
        writeln!(f, "| {} |\n|{}", COLUMNS.join(" | "), " --- |".repeat(COLUMNS.len()))?;
        for (reader, outcomes) in &self.rows {
            let ratio = |column: fn(&Outcome) -> f64| {
                median(
                    outcomes.iter().zip(self.reference(column)).map(|(outcome, reference)| column(outcome) / reference),
                )
            };
            let middle = |column: fn(&Outcome) -> f64| median(outcomes.iter().map(column));
            let lost = |outcome: &Outcome| outcome.written.saturating_sub(outcome.seen.events) as f64;
            let cells = [
                reader.name.to_owned(),
                spread(outcomes.iter().map(cost), 0),
                format!("{:.2}", ratio(cost)),
                spread(outcomes.iter().map(|outcome| rate(outcome) / 1e3), 0),
                format!("{:.2}", ratio(rate)),
                format!("{:.2}", median(outcomes.iter().map(|outcome| lost(outcome) / outcome.written as f64 * 100.0))),
                format!("{:.0}", median(outcomes.iter().map(|outcome| lost(outcome) - outcome.seen.lost as f64))),
                format!("{:.2}", middle(|o| o.seen.out_of_order as f64 / o.seen.events.max(1) as f64 * 100.0)),
                format!("{:.2}", middle(|o| o.seen.p50_ns as f64 / 1e6)),
                format!("{:.2}", middle(|o| o.seen.p99_ns as f64 / 1e6)),
                format!("{:.1}", middle(|o| o.seen.peak_kib as f64 / 1024.0)),
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
