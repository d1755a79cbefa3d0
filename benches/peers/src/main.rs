//! The same BPF producer read by perfweave, aya and libbpf: the cost of each for its own process and the traced one, as
//! root.
//!
//! ```text
//! cargo run --release --manifest-path benches/peers/Cargo.toml --target-dir target/peers
//! cargo run --release --manifest-path benches/peers/Cargo.toml --target-dir target/peers -- --test
//! ```
//!
//! This process is the one that is traced: it calls getppid(2) on every CPU, and a BPF program outputs 64 bytes for
//! each call, into perf rings or into BPF ring buffers of the same size: one for each CPU, or one that all share. For
//! readers by writers' epochs the program enters before it takes its time and leaves after its output; for all others
//! it does not. Each reader is a separate process, which inherits the maps. In each round every reader runs once with
//! each load, so that ratios within a round are comparable on a shared machine. The tables show medians over the
//! rounds.

mod curve;
mod producer;
mod readers;
mod table;
mod tally;

use perfweave_support::args::Args;
use perfweave_support::{cpus, kernel};
use producer::{Load, Producer, Setting};
use readers::READERS;
use std::time::Duration;
use table::Table;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const HELP: &str = "\
perfweave-peers [--rounds N] [--seconds N] [--rate N] [--tries N] [--only NAME,NAME] [--without NAME,NAME] [--loads NAME,NAME] [--curve] [--test]
  --rounds    how often each reader is measured with each load [5]
  --seconds   how long a load runs [2]
  --rate      events a second of the load that is no flood [100000]
  --tries     measure up to so often until others use less than 5 % of the machine, and take the quietest [1]
  --only      readers with one of these in their name, separated by commas, and what they are compared with
  --without   readers with one of these in their name are left out
  --loads     loads of these names: flood, paced, small (a flood with rings of 64 pages), large (8192 pages), hogs (the same beside busy loops) [all]
  --curve     instead: each rule with each latency, at 2000 and 100000 events a second and in a flood, beside libbpf with the same
  --test      everything once, and shortly";

/// Pages of each ring: what a flood writes in ten grace periods, in two, and in two milliseconds.
const MANY_PAGES: usize = 8192;
const PAGES: usize = 2048;
const FEW_PAGES: usize = 64;

fn main() -> Result<()> {
    let mut args = Args::new(HELP);
    let failed = |error: Box<dyn std::error::Error>| error.to_string();
    let number = |text: &str| text.parse::<u32>().map_err(|error| error.to_string());
    // A reader's own process.
    if let Some(reader) = args.value("--reader", number).map_err(failed)? {
        let numbers =
            |text: &str| text.split(',').map(|text| text.parse::<i32>().map_err(|error| error.to_string())).collect();
        let maps: Vec<_> = args.value("--maps", numbers).map_err(failed)?.ok_or("no maps")?;
        let words = args.value("--words", number).map_err(failed)?.ok_or("no map of words")?;
        let pages = args.value("--pages", number).map_err(failed)?.ok_or("no pages")?;
        let millis = args.value("--latency", number).map_err(failed)?;
        let latency = millis.map(|millis| Duration::from_millis(millis.into()));
        return readers::run(&READERS[reader as usize], &maps, words as i32, pages as usize, latency);
    }
    if args.flag("--hog") {
        loop {
            std::hint::spin_loop();
        }
    }
    let test = args.flag("--test");
    let rounds = args.value("--rounds", number).map_err(failed)?.unwrap_or(if test { 1 } else { 5 });
    let time = args.seconds(if test { 0.2 } else { 2.0 }).map_err(failed)?;
    let rate = args.value("--rate", number).map_err(failed)?.unwrap_or(100_000);
    let tries = args.value("--tries", number).map_err(failed)?.unwrap_or(1);
    let only = args.value("--only", |text| Ok(text.to_owned())).map_err(failed)?;
    let without = args.value("--without", |text| Ok(text.to_owned())).map_err(failed)?;
    let loads = args.value("--loads", |text| Ok(text.to_owned())).map_err(failed)?;
    let is_curve = args.flag("--curve");
    args.finish().map_err(failed)?;

    let Some(producer) = kernel("load a BPF program", Producer::new()) else { return Ok(()) };
    if is_curve {
        return curve::measure(&producer, rounds as usize, time, only.as_deref());
    }
    let settings = [
        Setting { name: "flood", load: Load::Flood, pages: PAGES, hogs: false, latency: None },
        Setting { name: "paced", load: Load::Paced(rate), pages: PAGES, hogs: false, latency: None },
        Setting { name: "small", load: Load::Flood, pages: FEW_PAGES, hogs: false, latency: None },
        Setting { name: "large", load: Load::Flood, pages: MANY_PAGES, hogs: false, latency: None },
        Setting { name: "hogs", load: Load::Flood, pages: FEW_PAGES, hogs: true, latency: None },
    ];
    let mut tables = settings.map(|setting| Table::new(setting, only.as_deref(), without.as_deref()));
    let is_chosen = |name| loads.as_deref().is_none_or(|loads| loads.split(',').any(|load| load == name));
    for round in 0..rounds as usize {
        for table in tables.iter_mut().filter(|table| is_chosen(table.setting.name)) {
            table.idle(producer.idle(table.setting.load, time));
            // The sequence of readers changes.
            let mut turns = table.readers();
            let first = round % turns.len();
            turns.rotate_left(first);
            for reader in turns {
                let mut outcome = producer.read_by(reader, table.setting, time)?;
                for _ in 1..tries {
                    if outcome.others < 0.05 {
                        break;
                    }
                    let again = producer.read_by(reader, table.setting, time)?;
                    outcome = if again.others < outcome.others { again } else { outcome };
                }
                table.row(reader, outcome);
            }
        }
    }
    println!("Medians of {rounds} rounds of {} s, {} CPUs.", time.as_secs_f64(), cpus::online().len());
    tables.iter().filter(|table| is_chosen(table.setting.name)).for_each(|table| print!("\n{table}"));
    // The shortest time of a fence, for events that wait for one.
    let mut times = producer.grace_periods(Load::Paced(rate), Duration::from_millis(500))?;
    times.sort_unstable();
    let grace_period = times[times.len() / 2];
    println!(
        "\nA grace period by membarrier(2) with {rate} events a second: {grace_period:?} (median of {}).",
        times.len()
    );
    table::targets(&tables, grace_period);
    Ok(())
}
