//! The counts of a reader for Prometheus, while it reads: `Handle::status` from another thread.
//!
//! ```text
//! cargo run --release --example metrics -- --listen 127.0.0.1:9464 --seconds 60 &
//! curl -s http://127.0.0.1:9464/metrics
//! ```

use perfweave::{Account, Handle, Order, Reader, Rings};
use perfweave_events::{EventOptions, WithoutSelf};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
metrics [--listen ADDRESS] [--seconds N]
  --listen   where to answer [127.0.0.1:9464]; a port of 0 is any, which is printed
  --seconds  how long [60]";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("metrics: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut args = pico_args::Arguments::from_env();
    if args.contains(["-h", "--help"]) {
        println!("{HELP}");
        return Ok(());
    }
    let address = args.opt_value_from_str("--listen")?.unwrap_or_else(|| "127.0.0.1:9464".to_owned());
    let time = Duration::try_from_secs_f64(args.opt_value_from_str("--seconds")?.unwrap_or(60.0))?;
    if let [unknown, ..] = args.finish().as_slice() {
        return Err(format!("{unknown:?} is not understood\n{HELP}").into());
    }

    let rings = Rings::options().tracepoint("sched:sched_switch").bytes(1 << 20).open()?;
    let mut reader = Reader::new(rings, Order::new().without_self())?;
    reader.handle().set_deadline(Some(Instant::now() + time))?;
    let (server, handle) = (TcpListener::bind(address)?, reader.handle());
    println!("http://{}/metrics", server.local_addr()?);
    // It ends with the program.
    std::thread::spawn(move || {
        for client in server.incoming().flatten() {
            if let Err(error) = answer(&client, &handle) {
                eprintln!("metrics: {error}");
            }
        }
    });
    while let Some(batch) = reader.batch(Duration::from_millis(100))? {
        // What a tool does with its events comes here. Losses and damage are events too, and are counted.
        batch.for_each(|_event| {});
    }
    Ok(())
}

/// Answers one request, whatever it asks for.
fn answer(mut client: &TcpStream, handle: &Handle) -> Result<(), Box<dyn Error>> {
    client.set_read_timeout(Some(Duration::from_secs(1)))?;
    // The head of a request ends with an empty line.
    for line in BufReader::new(client).lines() {
        if line?.is_empty() {
            break;
        }
    }
    let body = metrics(handle)?;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\nContent-Length";
    write!(client, "{head}: {}\r\n\r\n{body}", body.len())?;
    Ok(())
}

/// The text format of Prometheus.
fn metrics(handle: &Handle) -> Result<String, perfweave::Error> {
    let status = handle.status()?;
    let Account { yielded: records, lost, late, damaged, .. } = status.total();
    let counters = [
        ("records", "Records that were yielded", records),
        ("lost", "Records that the kernel dropped because a ring was full", lost),
        ("late", "Records that came after a larger key", late),
        ("damaged", "Bytes that were no record, by occurrence", damaged),
    ];
    let counter = |(name, help, value): &(&str, &str, u64)| {
        format!(
            "# HELP perfweave_{name}_total {help}.\n# TYPE perfweave_{name}_total counter\nperfweave_{name}_total {value}\n"
        )
    };
    let lost = |account: &Account| {
        let cpu = account.cpu.map_or_else(|| "none".into(), |cpu| cpu.to_string());
        format!("perfweave_cpu_lost_total{{cpu=\"{cpu}\"}} {}\n", account.lost)
    };
    let by_cpu: String = status.accounts.iter().map(lost).collect();
    let head =
        "# HELP perfweave_cpu_lost_total Records that the kernel dropped.\n# TYPE perfweave_cpu_lost_total counter";
    let held = "# HELP perfweave_held Events that wait for a proof of their order.\n# TYPE perfweave_held gauge";
    let counters: String = counters.iter().map(counter).collect();
    Ok(format!("{counters}{head}\n{by_cpu}{held}\nperfweave_held {}\n", status.held))
}
