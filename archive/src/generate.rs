//! Archives of any size, with the shapes of real ones: threads that wake each other on CPUs, wait for them, are
//! preempted, make system calls and send messages to other machines. The same for the same seed.

mod files;
mod machine;

use crate::Failure;
use files::Tables;
pub(crate) use files::schema;
use machine::{Happening, Machine};
use rand::RngExt;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// 2026-11-20 09:59:00 UTC, as TAI: one minute before an hour ends.
const START: i64 = 1_795_168_740_000_000_000 + files::LEAP_SECONDS * SECOND;
const SECOND: i64 = 1_000_000_000;

/// What to generate.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Rows of events, over all tables and machines
    #[arg(long, default_value_t = 1_000_000)]
    pub rows: u64,
    /// Machines, which send messages to each other
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub machines: u32,
    /// CPUs of each machine
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub cpus: u32,
    /// Where numbers by chance begin
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Rows of one file
    #[arg(long, default_value_t = 4_000_000)]
    pub file_rows: u64,
    /// Folder, or URL of an object store
    #[arg(long, value_name = "URL")]
    pub to: String,
}

/// What was generated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rows of events.
    pub rows: u64,
    /// Files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Something that happens on a machine at a time. Of two at one time, the one that was planned first is first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Planned {
    time: i64,
    place: u64,
    machine: u32,
    happening: Happening,
}

/// What is planned, on all machines.
struct Plan {
    machine: u32,
    placed: u64,
    heap: BinaryHeap<Reverse<Planned>>,
    random: Pcg64Mcg,
}

impl Plan {
    fn at(&mut self, time: i64, happening: Happening) {
        self.on(self.machine, time, happening);
    }

    fn on(&mut self, machine: u32, time: i64, happening: Happening) {
        self.placed += 1;
        self.heap.push(Reverse(Planned { time, place: self.placed, machine, happening }));
    }

    /// A time around `mean`: exponential, so that a few are long.
    fn around(&mut self, mean: i64) -> i64 {
        let uniform: f64 = self.random.random_range(f64::EPSILON..1.0);
        1 + (-uniform.ln() * mean as f64) as i64
    }

    fn below(&mut self, end: u32) -> u32 {
        self.random.random_range(0..end)
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }
}

/// Writes an archive.
///
/// # Errors
///
/// [`Failure`], where the store cannot be written.
pub async fn generate(options: &Options) -> Result<Summary, Failure> {
    let random = Pcg64Mcg::seed_from_u64(options.seed);
    let mut plan = Plan { machine: 0, placed: 0, heap: BinaryHeap::new(), random };
    let mut tables = Tables::open(&options.to, options.file_rows)?;
    let mut machines = Vec::new();
    for number in 0..options.machines {
        plan.machine = number;
        machines.push(Machine::start(number, options, &mut plan, &mut tables));
    }
    while let Some(Reverse(next)) = plan.heap.pop() {
        if tables.rows() >= options.rows {
            break;
        }
        plan.machine = next.machine;
        machines[next.machine as usize].happens(next.time, next.happening, &mut plan, &mut tables);
        tables.write_what_is_ready().await?;
    }
    for machine in &mut machines {
        machine.end(&mut tables);
    }
    tables.finish().await
}
