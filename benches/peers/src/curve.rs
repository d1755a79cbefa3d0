//! What latency is worth: each rule with each [`Order::latency`](perfweave::Order::latency), beside libbpf that sleeps
//! as long.

use crate::Result;
use crate::producer::{Load, Outcome, Producer, Setting};
use crate::readers::{
    BUFFERS_DRAIN, BUFFERS_LIBBPF, BUFFERS_NONE, BUFFERS_PROGRAMS, BUFFERS_RESERVED, DEFAULT, DRAIN, EPOCH,
    EXPEDITED_NAME, NONE, READERS, REFERENCE,
};
use crate::table::median;
use std::time::Duration;

/// The latencies, in milliseconds. None: as a reader is by default; those that have no default sleep for 100 ms.
const KNOBS: [Option<u64>; 5] = [None, Some(1), Some(5), Some(10), Some(40)];

/// Each reader, and the reader with which it is compared.
const COMPARED: [(&str, &str); 11] = [
    (DRAIN, REFERENCE),
    (NONE, REFERENCE),
    (DEFAULT, REFERENCE),
    (EXPEDITED_NAME, REFERENCE),
    (EPOCH, REFERENCE),
    (REFERENCE, REFERENCE),
    (BUFFERS_DRAIN, BUFFERS_LIBBPF),
    (BUFFERS_NONE, BUFFERS_LIBBPF),
    (BUFFERS_RESERVED, BUFFERS_LIBBPF),
    (BUFFERS_PROGRAMS, BUFFERS_LIBBPF),
    (BUFFERS_LIBBPF, BUFFERS_LIBBPF),
];

/// What came of a reader with a latency in each round.
struct Row {
    name: &'static str,
    by: &'static str,
    knob: Option<u64>,
    outcomes: Vec<Outcome>,
}

/// Measures all and prints a table for each load.
pub fn measure(producer: &Producer, rounds: usize, time: Duration, only: Option<&str>) -> Result<()> {
    let is_chosen = |name: &str| only.is_none_or(|only| only.split(',').any(|only| name.contains(only)));
    let chosen = || COMPARED.into_iter().filter(|(name, by)| is_chosen(name) || name == by);
    for load in [Load::Paced(2000), Load::Paced(100_000), Load::Flood] {
        let row = |(name, by), knob| Row { name, by, knob, outcomes: Vec::new() };
        let mut rows: Vec<Row> = chosen().flat_map(|names| KNOBS.map(|knob| row(names, knob))).collect();
        for round in 0..rounds {
            // The sequence of readers changes, and those that are compared stay near each other.
            rows.sort_by_key(|row| KNOBS.iter().position(|knob| *knob == row.knob));
            let first = round % rows.len();
            rows.rotate_left(first);
            for row in &mut rows {
                let reader = READERS.iter().find(|reader| reader.name == row.name).ok_or("no such reader")?;
                let latency = row.knob.map(Duration::from_millis);
                let setting = Setting { name: "curve", load, pages: crate::PAGES, hogs: false, latency };
                row.outcomes.push(producer.read_by(reader, setting, time)?);
            }
        }
        print(load, &mut rows, time);
    }
    Ok(())
}

fn print(load: Load, rows: &mut [Row], time: Duration) {
    let place = |row: &Row| COMPARED.iter().position(|(name, _)| *name == row.name);
    rows.sort_by_key(|row| (place(row), row.knob));
    match load {
        Load::Flood => println!("\nA flood on all CPUs:\n"),
        Load::Paced(rate) => println!("\n{rate} events a second:\n"),
    }
    let columns = [
        "reader",
        "latency, ms",
        "CPU, ns an event",
        "÷ libbpf",
        "wake-ups a second",
        "fences a second",
        "calls, thousands a second",
        "lost, %",
        "p50, ms",
        "p99, ms",
    ];
    println!("| {} |\n|{}", columns.join(" | "), " --- |".repeat(columns.len()));
    for Row { name, by, knob, outcomes } in rows.iter() {
        let middle = |column: fn(&Outcome) -> f64| median(outcomes.iter().map(column));
        let cost = |outcome: &Outcome| outcome.seen.cpu_ns as f64 / outcome.seen.events.max(1) as f64;
        let other = rows.iter().find(|row| row.name == *by && row.knob == *knob);
        let others = other.iter().flat_map(|row| &row.outcomes);
        let ratio = median(outcomes.iter().zip(others).map(|(own, other)| cost(own) / cost(other)));
        let seconds = time.as_secs_f64();
        println!(
            "| {name} | {} | {:.0} | {ratio:.2} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} |",
            knob.map_or_else(|| "default".to_owned(), |knob| knob.to_string()),
            middle(|outcome| outcome.seen.cpu_ns as f64 / outcome.seen.events.max(1) as f64),
            middle(|outcome| outcome.seen.sleeps as f64) / seconds,
            middle(|outcome| outcome.seen.fences as f64) / seconds,
            middle(|outcome| outcome.rate / 1e3),
            middle(Outcome::lost),
            middle(|outcome| outcome.seen.p50_ns as f64 / 1e6),
            middle(|outcome| outcome.seen.p99_ns as f64 / 1e6),
        );
    }
}
