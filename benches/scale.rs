//! What many rings cost: a look, the index, the merge and opening. Rings in memory, up to 4,096; opening on live rings.
//!
//! ```text
//! cargo bench -p perfweave-benches --bench scale
//! cargo bench -p perfweave-benches --bench scale -- --test   # everything once
//! ```

use perf_event_open_sys::bindings;
use perfweave::{Hold, Layout, Merge, Order, Rings, sim};
use perfweave_benches::{Kind, Shape, Way};
use perfweave_events::EventOptions;
use perfweave_support::args::Args;
use perfweave_support::counting::{self, Counting};
use std::hint::black_box;
use std::time::Instant;

const HELP: &str = "\
scale [--rounds N] [--test]
  --rounds    how often each figure is measured [15]
  --test      everything once";

/// Figures in bytes come from here.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Records of a merge. The rings of all shapes fit into the memory.
const RECORDS: usize = 1 << 17;

/// Bytes of a record of 24 bytes of payload, as in live rings.
const RECORD: usize = 48;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median time of something, in nanoseconds.
fn time(rounds: usize, mut what: impl FnMut()) -> f64 {
    let measure = |_| {
        let begin = Instant::now();
        what();
        begin.elapsed().as_nanos() as f64
    };
    median((0..rounds).map(measure).collect())
}

/// A simulated kernel with this many CPUs, and a merge of its rings. The bytes are those that the merge takes for each
/// ring.
fn merge(cpus: usize) -> (sim::Kernel, Merge, isize) {
    let sample = u64::from(bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_RAW);
    let cpus: Vec<u32> = (0..cpus as u32).collect();
    let kernel = sim::Kernel::with(&cpus, 4096, Layout::new(sample, true, 0));
    let rings = kernel.rings();
    let before = counting::now();
    let merge = Merge::new(rings, Order::new().hold(Hold::None)).expect("a merge");
    let bytes = (counting::now() - before) / cpus.len() as isize;
    (kernel, merge, bytes)
}

/// A CPU that comes online, until its ring is among the others.
fn hotplug(cpus: usize) -> f64 {
    let (kernel, mut merge, _) = merge(cpus);
    kernel.plug(cpus as u32);
    time(1, || assert!(merge.follow_cpus().expect("a ring for the CPU")))
}

/// Time of a look at rings of which each hundredth has one new record, and at rings without any.
fn looks(cpus: usize, rounds: usize) -> (f64, f64, isize) {
    let (kernel, mut merge, bytes) = merge(cpus);
    let mut now = 0;
    let mut look = |is_idle: bool| {
        if !is_idle {
            now += 1;
            (0..cpus as u32).step_by(100).for_each(|cpu| assert!(kernel.emit(cpu, now, &[0; 24])));
        }
        let nanoseconds = time(1, || _ = black_box(merge.refresh(0)));
        while merge.next().is_some() {}
        nanoseconds
    };
    let idle = median((0..rounds).map(|_| look(true)).collect());
    let some = median((0..rounds).map(|_| look(false)).collect());
    (idle, some, bytes)
}

/// Nanoseconds for each event, with its look.
fn merging(kind: Kind, rings: usize, burst: usize, rounds: usize) -> f64 {
    let shape = Shape { records: RECORDS, rings, burst, random: true, disorder: 0, record: RECORD };
    let mut way = Way::new(kind, shape);
    let read = |_| {
        way.fill();
        let mut sum = 0;
        let nanoseconds = time(1, || sum = black_box(way.read()));
        way.check(sum);
        nanoseconds / RECORDS as f64
    };
    median((0..rounds).map(read).collect())
}

/// Opens rings of one page and prints what each costs.
fn opening(rings: usize) -> Result<(), perfweave::Error> {
    let descriptors = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let before = descriptors();
    let (mut open, mut count) = (Vec::new(), 0);
    let begin = Instant::now();
    while count < rings {
        open.push(Rings::options().event_name("context-switches").bytes(4096).open()?);
        count += open.last().map_or(0, |rings| rings.fds().count());
    }
    let each = begin.elapsed().as_micros() as f64 / count as f64;
    let of_each = (descriptors() - before) as f64 / count as f64;
    let begin = Instant::now();
    drop(open);
    let close = begin.elapsed().as_micros() as f64 / count as f64;
    println!("| {count} | {each:.0} | {close:.0} | {of_each:.1} |");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = Args::new(HELP);
    args.flag("--bench");
    let test = args.flag("--test");
    let number = |text: &str| text.parse::<usize>().map_err(|error| error.to_string());
    let rounds = args.value("--rounds", number)?.unwrap_or(if test { 1 } else { 15 });
    args.finish()?;

    println!(
        "Rings in memory. Medians of {rounds} rounds. Random rings, records of {RECORD} bytes; an event with its look.\n"
    );
    println!(
        "| rings | merge, bytes a ring | look at idle rings, µs | a hundredth has a record, µs | a CPU comes, µs | \
         `next`, ns an event | `batch` | `next`, bursts of ~16 | `batch`, bursts of ~16 | cores for 100,000 events a \
         second in each ring |"
    );
    println!("|{}", " --- |".repeat(10));
    for rings in [8, 64, 256, 512, 4096] {
        let (idle, some, bytes) = looks(rings, rounds);
        let plug = median((0..rounds.min(5)).map(|_| hotplug(rings)).collect());
        let shapes = [(Kind::Next, 1), (Kind::Batch, 1), (Kind::Next, 16), (Kind::Batch, 16)];
        let costs = shapes.map(|(kind, burst)| merging(kind, rings, burst, rounds));
        let cores = costs[0] * rings as f64 * 100_000.0 / 1e9;
        let costs = costs.map(|cost| format!("{cost:.0}")).join(" | ");
        let [idle, some, plug] = [idle, some, plug].map(|nanoseconds| nanoseconds / 1e3);
        println!("| {rings} | {bytes} | {idle:.1} | {some:.1} | {plug:.0} | {costs} | {cores:.2} |");
    }
    println!("\nLive rings of one page, opened and closed.\n");
    println!("| rings | opening, µs a ring | closing, µs a ring | descriptors a ring |\n|{}", " --- |".repeat(4));
    for rings in if test { [8, 8, 8] } else { [8, 64, 512] } {
        if let Err(error) = opening(rings) {
            println!("\nnot measured: {error}");
            break;
        }
    }
    Ok(())
}
