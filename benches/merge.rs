//! The merge of simulated rings, and other ways to read them, compared with a walk that checks nothing. All in memory.
//!
//! Records are written in bursts into one ring before the next. With live rings the next ring is random and a burst's
//! length too, so `~16` stands for random lengths with a mean of 16. Otherwise `k` rings take turns. A given percentage
//! of the records in a ring has a smaller key than the record before. Each way takes every record's key and first
//! payload word. Rings are filled before each turn, which is not timed. In each round every way runs once. The tables
//! show medians of its time divided by the walk's time in the same round.
//!
//! ```text
//! cargo bench -p perfweave-benches --bench merge
//! cargo bench -p perfweave-benches --bench merge -- --records 4096  # so few that they stay in the nearest caches
//! cargo bench -p perfweave-benches --bench merge -- --rings 32      # one number of rings
//! cargo bench -p perfweave-benches --bench merge -- --cold          # filled on another CPU: its caches have what is read
//! cargo bench -p perfweave-benches --bench merge -- --test          # everything once
//! ```

use perfweave_benches::{Kind, Shape, Way};
use perfweave_support::args::Args;
use perfweave_support::load;
use std::hint::black_box;
use std::time::Instant;

const HELP: &str = "\
merge [--rounds N] [--records N] [--rings K] [--cold] [--test]
  --rounds    how often each way is measured [31]
  --records   in all rings together [16384]
  --rings     only so many rings
  --cold      rings are filled on another CPU, as a kernel does
  --test      everything once";

/// The measurements of a shape: nanoseconds a record for the walk, and each way's ratio to it.
struct Row {
    shape: Shape,
    walk: f64,
    ratios: Vec<f64>,
}

impl Row {
    fn ratio(&self, kind: Kind) -> f64 {
        let at = Kind::ALL.iter().position(|known| *known == kind);
        at.map_or(f64::NAN, |at| self.ratios[at])
    }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(shape: Shape, rounds: usize, cold: bool) -> Row {
    let mut ways = Kind::ALL.map(|kind| Way::new(kind, shape));
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for (way, times) in ways.iter_mut().zip(&mut times) {
            if cold {
                load::pin(1);
                way.fill();
                load::pin(0);
            } else {
                way.fill();
            }
            let begin = Instant::now();
            let sum = black_box(way.read());
            times.push(begin.elapsed().as_nanos() as f64 / shape.records as f64);
            way.check(sum);
        }
    }
    let walk = &times[0];
    let ratio = |times: &Vec<f64>| median(times.iter().zip(walk).map(|(time, walk)| time / walk));
    Row { shape, walk: median(walk.iter().copied()), ratios: times.iter().map(ratio).collect() }
}

/// A target: its name, the bound, and the worst measurement.
struct Target {
    name: String,
    bound: String,
    worst: Option<(f64, Shape)>,
}

impl Target {
    /// At most this much, in the worst of these.
    fn most(name: impl Into<String>, bound: f64, values: impl Iterator<Item = (f64, Shape)>) -> Self {
        let worst = values.max_by(|a, b| a.0.total_cmp(&b.0));
        Self { name: name.into(), bound: format!("≤ {bound}"), worst }
    }

    /// At least this much, in the worst of these.
    fn least(name: impl Into<String>, bound: f64, values: impl Iterator<Item = (f64, Shape)>) -> Self {
        let worst = values.min_by(|a, b| a.0.total_cmp(&b.0));
        Self { name: name.into(), bound: format!("≥ {bound}"), worst }
    }
}

fn targets(rows: &[Row]) -> Vec<Target> {
    let orders = [Kind::Next, Kind::Batch];
    let all = |kind: Kind| rows.iter().map(move |row| (row.ratio(kind), row.shape));
    let mut targets = vec![Target::most("`drain`", 2.5, all(Kind::Drain))];
    for kind in orders {
        let plain = all(kind).filter(|(_, shape)| shape.disorder == 0);
        let bursts = plain.clone().filter(|(_, shape)| shape.burst >= 16 && shape.rings <= 32);
        targets.push(Target::most(format!("{}, bursts ≥ 16, k ≤ 32", kind.name()), 3.0, bursts));
        for (rings, bound) in [(2, 4.0), (8, 6.0), (32, 9.0), (128, 12.0)] {
            let single = plain.clone().filter(|(_, shape)| shape.burst == 1 && shape.rings == rings);
            targets.push(Target::most(format!("{}, bursts of 1, k = {rings}", kind.name()), bound, single));
        }
        let without = |shape: Shape| rows.iter().find(|row| row.shape == Shape { disorder: 0, ..shape });
        let disorder = rows.iter().filter(|row| row.shape.disorder > 0).filter_map(|row| {
            let without = without(row.shape)?;
            Some((row.ratio(kind) / without.ratio(kind), row.shape))
        });
        targets.push(Target::most(format!("{}, disorder ÷ the same without", kind.name()), 1.5, disorder));
        for (peer, bound, rings) in [(Kind::Kmerge, 1.5, 2), (Kind::Scan, 1.0, 4), (Kind::Sort, 3.0, 2)] {
            // Neither a heap of iterators nor a scan repairs disorder inside a ring.
            let same = |row: &&Row| row.shape.disorder == 0 || peer == Kind::Sort;
            let faster = rows.iter().filter(|row| row.shape.rings >= rings).filter(same);
            let faster = faster.map(|row| (row.ratio(peer) / row.ratio(kind), row.shape));
            targets.push(Target::least(format!("{} ÷ {}", peer.name(), kind.name()), bound, faster));
        }
        let growth = rows.iter().filter(|row| row.shape.rings == 1024 && row.shape.burst == 16).filter_map(|row| {
            let two = rows.iter().find(|two| two.shape == Shape { rings: 2, ..row.shape })?;
            Some((row.ratio(kind) * row.walk / (two.ratio(kind) * two.walk), row.shape))
        });
        targets.push(Target::most(format!("{}, k = 1024 ÷ k = 2, bursts of 16", kind.name()), 3.0, growth));
    }
    targets
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = Args::new(HELP);
    args.flag("--bench");
    let test = args.flag("--test");
    let number = |text: &str| text.parse::<usize>().map_err(|error| error.to_string());
    let rounds = args.value("--rounds", number)?.unwrap_or(if test { 1 } else { 31 });
    let records = args.value("--records", number)?.unwrap_or(16384);
    let only = args.value("--rings", number)?;
    let cold = args.flag("--cold");
    args.finish()?;

    let names: Vec<_> = Kind::ALL[1..].iter().map(|kind| kind.name()).collect();
    println!("Time for each record ÷ the walk's. Medians of {rounds} rounds of {records} records.\n");
    println!("| bytes | disorder, % | burst | k | walk, ns | {} |", names.join(" | "));
    println!("|{}", " --- |".repeat(names.len() + 5));
    let mut rows = Vec::new();
    for record in [40, 200] {
        for disorder in [0, 5, 20] {
            for burst in [1, 16, 256] {
                for (rings, random) in
                    [1, 2, 8, 32, 128, 1024].into_iter().flat_map(|rings| [(rings, false), (rings, true)])
                {
                    // Some rings would be empty, or one ring takes turns with itself.
                    if rings * burst > records || only.is_some_and(|only| only != rings) || (random && rings == 1) {
                        continue;
                    }
                    let row = measure(Shape { records, rings, burst, random, disorder, record }, rounds, cold);
                    let ratios: Vec<_> = row.ratios[1..].iter().map(|ratio| format!("{ratio:.1}")).collect();
                    let (walk, ratios, about) = (row.walk, ratios.join(" | "), if random { "~" } else { "" });
                    println!("| {record} | {disorder} | {about}{burst} | {rings} | {walk:.2} | {ratios} |");
                    rows.push(row);
                }
            }
        }
    }
    println!("\nThe worst of what was measured, beside what it is meant to be.\n");
    println!("| what | meant to be | worst | of |\n|{}", " --- |".repeat(4));
    for Target { name, bound, worst } in targets(&rows) {
        let Some((worst, Shape { rings, burst, random, disorder, record, .. })) = worst else { continue };
        let about = if random { "~" } else { "" };
        let of = format!("k = {rings}, bursts of {about}{burst}, {disorder} % disorder, {record} bytes");
        println!("| {name} | {bound} | {worst:.2} | {of} |");
    }
    Ok(())
}
