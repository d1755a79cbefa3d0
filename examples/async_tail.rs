//! Follows the scheduler of the whole machine as a task among others, as `tail -f` does a file: events of all CPUs in proven
//! order, under tokio, until interrupted.
//!
//! ```text
//! cargo run --release --features tokio --example async_tail -- --seconds 5
//! ```

use perfweave::{AsyncReader, Class, Error, Item, OwnedEvent, Rings};
use perfweave_support::args::Args;
use perfweave_support::futures_util::StreamExt;
use perfweave_support::json;
use perfweave_support::tracefs;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
async_tail [--seconds N] [--quiet] [--json]
  --seconds  how long to follow [until interrupted]
  --quiet    print no events
  --json     print one JSON object in the end, and no events";

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

/// What is said in the end.
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
    let mut args = Args::new(HELP);
    // A year is as good as for ever.
    let time = args.seconds(365.0 * 86_400.0)?;
    let json = args.flag("--json");
    let quiet = args.flag("--quiet") || json;
    args.finish()?;

    tracefs::find_or_mount()?;
    let rings = Rings::options().tracepoint("sched:sched_switch").tracepoint("sched:sched_wakeup").open()?;
    let reader = AsyncReader::new(rings, perfweave::Order::new())?;
    let handle = reader.handle();
    let mut events = reader.into_stream();

    // Another task of the same runtime goes on beside it: nobody blocks the thread.
    let mut beside = tokio::time::interval(Duration::from_millis(10));
    let over = tokio::time::sleep(time);
    tokio::pin!(over);
    let mut flushing = false;
    let mut summary = Summary::default();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => summary.take(&event, quiet),
                // All that was written before the end is out.
                Some(Err(Error::Flushed)) => handle.close(),
                Some(Err(error)) => return Err(error.into()),
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
    summary.print(json);
    Ok(summary.events > 0 && summary.out_of_order == 0 && summary.damaged == 0)
}

impl Summary {
    fn take(&mut self, event: &OwnedEvent, quiet: bool) {
        let event = event.as_event();
        self.out_of_order += u64::from(event.key().is_some_and(|key| Some(key) < self.last));
        self.last = event.key().max(self.last);
        self.cpus.extend(event.cpu());
        match event.item() {
            Item::Record(record) => {
                self.events += 1;
                self.unproven += u64::from(event.class() == Class::Assumed);
                if !quiet {
                    let name = if record.source() == Some(0) { "switch" } else { "wakeup" };
                    let time = Duration::from_nanos(record.time().unwrap_or(0));
                    println!("{:>16.6} CPU {:<3} {name}", time.as_secs_f64(), record.cpu());
                }
            }
            Item::Lost(lost) => self.lost += lost.count,
            Item::Unproven(unproven) => println!("{unproven:?}"),
            _ => self.damaged += 1,
        }
    }

    fn print(&self, json: bool) {
        let Self { events, unproven, lost, damaged, out_of_order, ticks, cpus, .. } = self;
        if json {
            let all = json!({
                "events": events, "unproven": unproven, "lost": lost, "damaged": damaged,
                "out_of_order": out_of_order, "cpus": cpus.len(), "ticks": ticks,
            });
            println!("{all}");
        } else {
            println!(
                "{events} events of {} CPUs ({unproven} unproven, {out_of_order} out of order), lost {lost}; the other task ran \
                 {ticks} times",
                cpus.len()
            );
        }
    }
}
