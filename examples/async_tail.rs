//! Follows the scheduler of the whole machine as a task among others, as `tail -f` does a file: events of all CPUs in
//! proven order, under tokio, until interrupted.
//!
//! ```text
//! cargo run --release --features tokio --example async_tail -- --seconds 5
//! ```

use perfweave::{AsyncReader, Certainty, Event, Item, Order, Rings};
use perfweave_events::{EventOptions, WithoutSelf};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
async_tail [--seconds N] [--with-self] [--quiet] [--json]
  --seconds    how long to follow [until interrupted]
  --with-self  keep what is about this program alone
  --quiet      print no events
  --json       print one JSON object in the end, and no events";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("async_tail: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The final summary.
#[derive(Default)]
struct Summary {
    events: u64,
    unproven: u64,
    lost: u64,
    damaged: u64,
    out_of_order: u64,
    last: Option<u64>,
    cpus: BTreeSet<u32>,
    ticks: u64,
}

async fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let mut args = pico_args::Arguments::from_env();
    if args.contains(["-h", "--help"]) {
        println!("{HELP}");
        return Ok(true);
    }
    // A year stands for no limit.
    let time = Duration::try_from_secs_f64(args.opt_value_from_str("--seconds")?.unwrap_or(365.0 * 86_400.0))?;
    let (with_self, json) = (args.contains("--with-self"), args.contains("--json"));
    let quiet = args.contains("--quiet") || json;
    if let [unknown, ..] = args.finish().as_slice() {
        return Err(format!("{unknown:?} is not understood\n{HELP}").into());
    }

    let rings = Rings::options().tracepoint("sched:sched_switch").tracepoint("sched:sched_wakeup").open()?;
    let order = if with_self { Order::new() } else { Order::new().without_self() };
    let mut reader = AsyncReader::new(rings, order)?;
    let handle = reader.handle();

    // Another task of the same runtime runs at the same time: the reader does not block the thread.
    let mut beside = tokio::time::interval(Duration::from_millis(10));
    let over = tokio::time::sleep(time);
    tokio::pin!(over);
    let mut flushing = false;
    let mut summary = Summary::default();
    loop {
        tokio::select! {
            event = reader.next() => match event? {
                // All records from before the end have come out.
                Some(event) if matches!(event.item(), Item::Flushed { .. }) => break,
                Some(event) => summary.take(&event.event(), quiet),
                // No handle closes it, and it has no deadline.
                None => break,
            },
            _ = beside.tick() => summary.ticks += 1,
            () = &mut over, if !flushing => {
                flushing = true;
                handle.flush()?;
            }
            interrupted = tokio::signal::ctrl_c(), if !flushing => {
                interrupted?;
                flushing = true;
                handle.flush()?;
            }
        }
    }
    summary.print(json, reader.status().left_out);
    Ok(summary.events > 0 && summary.out_of_order == 0 && summary.damaged == 0)
}

impl Summary {
    fn take(&mut self, event: &Event<'_>, quiet: bool) {
        self.out_of_order += u64::from(event.key().is_some_and(|key| Some(key) < self.last));
        self.last = event.key().max(self.last);
        self.cpus.extend(event.cpu());
        match event.item() {
            Item::Record(record) => {
                self.events += 1;
                self.unproven += u64::from(event.certainty() == Certainty::Assumed);
                if !quiet {
                    let name = if record.source() == Some(0) { "switch" } else { "wakeup" };
                    let time = Duration::from_nanos(record.time().unwrap_or(0));
                    println!("{:>16.6} CPU {:<3} {name}", time.as_secs_f64(), record.cpu());
                }
            }
            Item::Lost(lost) => self.lost += lost.count,
            Item::Untraced(untraced) => eprintln!("{untraced:?}"),
            _ => self.damaged += 1,
        }
    }

    fn print(&self, json: bool, left_out: u64) {
        let Self { events, unproven, lost, damaged, out_of_order, ticks, cpus, .. } = self;
        let cpus = cpus.len();
        if json {
            println!(
                r#"{{"events":{events},"unproven":{unproven},"lost":{lost},"damaged":{damaged},"left_out":{left_out},"out_of_order":{out_of_order},"cpus":{cpus},"ticks":{ticks}}}"#
            );
        } else {
            println!(
                "{events} events of {cpus} CPUs ({unproven} unproven, {out_of_order} out of order), lost {lost}, left \
                 out {left_out}; the other task ran {ticks} times"
            );
        }
    }
}
