//! `record`: events of this machine into files.

mod command;
// The program's: what it says of losses and errors is said here too.
#[path = "../../cli/src/cure.rs"]
mod cure;
mod error;
// The same of what is missing.
#[expect(dead_code, reason = "archives have no losses without a place, and no AUX data")]
#[path = "../../cli/src/missing.rs"]
pub(crate) mod missing;
mod recorder;
mod sealing;
mod store;
mod stream;
mod unfinished;
pub(crate) mod writer;

pub use error::Error;
pub use store::{Store, variables};
pub use writer::Written;

use crate::clocks::{Clocks, Ptp};
use crate::printable::say;
use crate::schema::Origin;
use command::Waiting;
use cure::Cure;
use perf_event_open_sys::bindings;
use perfweave::{Clock, Handle, Hold, Item, Order, Reader, RingOptions, Rings, Status};
use perfweave_events::{EventOptions, WithoutSelf};
use perfweave_proofs::expedited;
use recorder::{About, Passing, Recorder};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use writer::Files;

/// How long to wait for an event before clocks are read and rows passed on.
const TICK: Duration = Duration::from_millis(100);

const SECOND: i64 = 1_000_000_000;

/// Rows of events that may wait for the store.
const ROOM: usize = 256 << 10;

/// What to record, and where to.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// An event, such as sched:sched_switch or sched:*. Each has its own table. May be given several times
    #[arg(short = 'e', long = "event", value_name = "EVENT", required = true)]
    pub events: Vec<String>,
    /// A folder, or the URL of a store
    #[arg(long, value_name = "URL", required_unless_present = "arrow_stream")]
    pub to: Option<String>,
    /// Write all events as one Arrow stream to standard output instead, as they come. Each batch has its frontier
    #[arg(long, conflicts_with_all = ["to", "command", "file_mib", "file_seconds"])]
    pub arrow_stream: bool,
    /// Stop after this many seconds
    #[arg(short = 'd', long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Record a process with all threads and children that it has and starts
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pub pid: Option<u32>,
    /// A file ends when it has this many MiB
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u32).range(1..))]
    pub file_mib: u32,
    /// A file ends after this many seconds, and when an hour of UTC ends
    #[arg(long, value_name = "N", default_value = "600", value_parser = seconds)]
    pub file_seconds: Duration,
    /// The machine's name in the archive. Without it: /etc/machine-id
    #[arg(long, value_name = "NAME", value_parser = machine_name)]
    pub machine: Option<String>,
    /// When an event may leave: fence, proven by a grace period; expedited, the same sooner and for more CPU; none, at
    /// once and unproven
    #[arg(long, value_name = "RULE", default_value = "fence")]
    pub hold: Rule,
    /// Memory of each CPU's ring in KiB
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u64).range(4..1 << 30))]
    pub buffer_kib: u64,
    /// Take TAI from a PTP clock that is kept right within so many nanoseconds, such as /dev/ptp0=1000
    #[arg(long, value_name = "DEVICE=NANOSECONDS")]
    pub ptp: Option<Ptp>,
    /// Record this command from its first instruction on, until it ends
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// When an event may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Rule {
    /// Proven by a grace period.
    Fence,
    /// The same, sooner and for more CPU.
    Expedited,
    /// At once and unproven.
    None,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds is expected, such as 0.5".to_string())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

fn machine_name(text: &str) -> Result<String, String> {
    let is_plain =
        !text.is_empty() && text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    is_plain.then(|| text.to_owned()).ok_or_else(|| "letters, digits, - and _ are expected, at most 64".into())
}

/// How a recording went.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Events that came.
    pub yielded: i64,
    /// Rows for which the store was too slow.
    pub dropped: i64,
    /// What the kernel lost, what was not traced, and what was not counted, in words.
    pub missing: String,
    /// What would have held what the kernel lost, in words. `None` if nothing was lost.
    pub cure: Option<String>,
    /// Whether it is certain that the kernel lost none, and that all was traced. Then `missing` says so.
    pub complete: bool,
    /// What was written.
    pub written: Written,
}

/// Records until the time is over, the command or process ends, or a signal comes.
///
/// # Errors
/// If the events cannot be read or the store does not take them.
pub fn record(options: &Options) -> Result<Outcome, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    let to = match &options.to {
        Some(url) => To::Store(Store::parse(url)?),
        None => To::Stream(stdout().map_err(Error::system("standard output cannot be used"))?),
    };
    record_into(options, to, &stop, true)
}

/// Where rows go.
enum To {
    Store(Store),
    Stream(File),
}

/// Standard output without the lines of [`io::stdout`](std::io::stdout).
fn stdout() -> io::Result<File> {
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}

/// The same to what is open, until `stop`.
fn record_into(options: &Options, to: To, stop: &Arc<AtomicBool>, with_signals: bool) -> Result<Outcome, Error> {
    let machine = options.machine.clone().map_or_else(|| line("/etc/machine-id"), Ok)?;
    let origin =
        Origin { boot: line("/proc/sys/kernel/random/boot_id")?, trace: line("/proc/sys/kernel/random/uuid")? };
    let clocks = match &options.ptp {
        None => Clocks::default(),
        Some(ptp) => {
            Clocks::with_ptp(ptp).map_err(Error::system(format!("{} cannot give the time", ptp.device.display())))?
        }
    };
    let reading = clocks.read().map_err(Error::system("the clocks cannot be read"))?;
    // Before rings are open, because it can take long.
    let unfinished = match &to {
        To::Store(store) => unfinished::find_all(store, &machine, &origin.boot, &reading),
        To::Stream(_) => Vec::new(),
    };
    let waiting = if options.command.is_empty() { None } else { Some(Waiting::start(&options.command)?) };
    let rings = open(options, waiting.as_ref())?;
    for skipped in rings.skipped() {
        say(format_args!("perfweave-archive: left out: {}", skipped));
    }
    let (sender, messages) = mpsc::unbounded_channel();
    let passing = Passing {
        room: ROOM,
        every: if options.arrow_stream { SECOND / 10 } else { SECOND },
        has_heartbeat: has_heartbeat(options),
    };
    let mut recorder = Recorder::new(&rings, &origin, about(options), clocks, sender, passing)?;
    unfinished.iter().for_each(|file| say(format_args!("perfweave-archive: {}", file.notice.text)));
    recorder.tell_of(unfinished)?;
    let work: Box<dyn FnOnce() -> Result<Written, Error> + Send> = match to {
        To::Store(store) => {
            let files = Files {
                machine,
                boot: origin.boot,
                trace: origin.trace,
                bytes: (options.file_mib as usize) << 20,
                lasting: options.file_seconds,
            };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(Error::system("no runtime"))?;
            Box::new(move || runtime.block_on(writer::write(store, files, messages)))
        }
        To::Stream(output) => {
            let tables = recorder.tables();
            Box::new(move || stream::write(output, &machine, tables, messages))
        }
    };
    let writer =
        thread::Builder::new().name("writer".into()).spawn(work).map_err(Error::system("no thread for the writer"))?;
    let read = read(rings, options, recorder, waiting, stop, with_signals);
    // What the writer says is the cause, where both failed.
    let written = writer.join().map_err(|_| Error::Writer)??;
    Ok(Outcome { written, ..read? })
}

fn line(path: &str) -> Result<String, Error> {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(Error::system(format!("{path} cannot be read")))
}

fn open(options: &Options, waiting: Option<&Waiting>) -> Result<Rings, Error> {
    let mut rings: RingOptions = Rings::options().bytes(options.buffer_kib << 10);
    let mut events = options.events.clone();
    events.sort();
    events.dedup();
    for name in &events {
        rings = match name.split_once(':') {
            Some(("kprobe", function)) => rings.kprobe(function),
            Some(("kretprobe", function)) => rings.kretprobe(function),
            Some(("uprobe", place)) => match place.rsplit_once(':') {
                Some((path, symbol)) => {
                    let offset = perfweave_symbols::function(path, symbol)?;
                    rings.uprobe(path, offset).named(&format!("uprobe {place}"))
                }
                None => rings.uprobe(place, 0),
            },
            Some(("usdt", place)) => match place.rsplitn(3, ':').collect::<Vec<_>>()[..] {
                [probe, provider, path] => {
                    let places = perfweave_symbols::usdt(path, provider, probe)?;
                    places.iter().fold(rings, |rings, at| {
                        rings.uprobe(path, at.offset).semaphore(at.semaphore).named(&format!("usdt {place}"))
                    })
                }
                _ => rings.tracepoint(name),
            },
            Some(_) => rings.tracepoint(name),
            None => rings.event_name(name),
        };
    }
    if has_heartbeat(options) {
        rings = rings.event_name("cpu-clock").period(SECOND.unsigned_abs());
    }
    // Tracepoints have the thread in their payload.
    if events.iter().any(|name| !name.contains(':')) {
        rings = rings.sample(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_IP);
    }
    let pid = options.pid.or(waiting.map(|waiting| waiting.pid().as_raw().cast_unsigned()));
    if let Some(pid) = pid {
        rings = rings.pid(pid);
    }
    Ok(rings.open()?)
}

/// Whether each CPU's ring has an event a second, so that a stream goes on while nothing happens. An event that a
/// process is not running for would not come.
fn has_heartbeat(options: &Options) -> bool {
    options.arrow_stream && options.pid.is_none()
}

fn about(options: &Options) -> About {
    let kernel =
        nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let command = options.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let mut text = format!(
        "buffer_kib={} file_mib={} file_seconds={}",
        options.buffer_kib,
        options.file_mib,
        options.file_seconds.as_secs_f64()
    );
    text.extend(options.pid.map(|pid| format!(" pid={pid}")));
    text.extend(options.ptp.iter().map(|ptp| format!(" ptp={}={}", ptp.device.display(), ptp.error)));
    text.extend((!command.is_empty()).then(|| format!(" command={command}")));
    let hold = match options.hold {
        Rule::Fence => "fence",
        Rule::Expedited => "expedited",
        Rule::None => "none",
    };
    About { kernel, events: options.events.join(","), options: text, hold: hold.into() }
}

/// Says to the reader that the next flush is the last.
fn end(stop: &AtomicBool, handle: &Handle) {
    stop.store(true, Ordering::Release);
    // It fails only in a forked child.
    let _ = handle.flush();
}

/// The first signal ends the recording with all files finished, the second ends the program.
fn on_signals(stop: Arc<AtomicBool>, handle: Handle) -> Result<(), Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(Error::system("signals cannot be taken"))?;
    let work = move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            end(&stop, &handle);
        }
        if let Some(signal) = signals.next() {
            std::process::exit(128 + signal);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(work).map(drop).map_err(Error::system("no thread for signals"))
}

/// Reads until the end. The outcome lacks what was written.
fn read(
    rings: Rings,
    options: &Options,
    mut recorder: Recorder,
    waiting: Option<Waiting>,
    stop: &Arc<AtomicBool>,
    with_signals: bool,
) -> Result<Outcome, Error> {
    let hold = match options.hold {
        Rule::Fence => Hold::FENCE,
        Rule::Expedited => Hold::Fence(expedited(Duration::from_millis(1))),
        Rule::None => Hold::None,
    };
    let mut reader = Reader::new(rings, Order::new().hold(hold).without_self())?;
    if with_signals {
        on_signals(Arc::clone(stop), reader.handle())?;
    }
    if let Some(waiting) = waiting {
        let (mut child, stop, handle) = (waiting.go()?, Arc::clone(stop), reader.handle());
        let work = move || {
            let _ = child.wait();
            end(&stop, &handle);
        };
        thread::Builder::new().name("wait".into()).spawn(work).map_err(Error::system("no thread for the command"))?;
    }
    reader.handle().set_deadline(options.seconds.map(|time| Instant::now() + time))?;
    let mut cure = Cure::default();
    take_all(&mut reader, &mut recorder, &mut cure, options, stop)?;
    let ledger = reader.ledger()?;
    let outcome = outcome(&ledger, &recorder, &cure, options.buffer_kib << 10);
    recorder.finish(&ledger.accounts)?;
    Ok(outcome)
}

/// The outcome with rings of `size` bytes, without what was written.
fn outcome(ledger: &Status, recorder: &Recorder, cure: &Cure, size: u64) -> Outcome {
    let of_cpus = ledger.accounts.iter().filter_map(|account| Some((account.cpu?, account.lost)));
    let advice = cure.advice(size, of_cpus);
    Outcome {
        yielded: recorder.yielded,
        dropped: recorder.dropped,
        missing: missing::of(&ledger.total(), missing::UNCOUNTED),
        cure: advice.map(|advice| advice.text("--buffer-kib", |bytes| (bytes >> 10).to_string())),
        complete: ledger.is_complete(),
        written: Written::default(),
    }
}

fn take_all(
    reader: &mut Reader,
    recorder: &mut Recorder,
    cure: &mut Cure,
    options: &Options,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let (handle, mut watched) = (reader.handle(), options.pid);
    while let Some(batch) = reader.batch(TICK)? {
        for event in batch {
            if matches!(event.item(), Item::Flushed { .. }) {
                if stop.load(Ordering::Acquire) {
                    return Ok(());
                }
            } else {
                cure.take(&event.item());
                recorder.take(&event)?;
            }
        }
        if Clock::Monotonic.now().unwrap_or_default().cast_signed() < recorder.next_tick() {
            continue;
        }
        recorder.tick()?;
        if watched.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            watched = None;
            end(stop, &handle);
        }
    }
    Ok(())
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { yielded, dropped, missing, cure, complete, written } = self;
        let each = written.event_bytes as f64 / written.events.max(1) as f64;
        write!(f, "{yielded} events: {} written", written.events)?;
        // A stream is no file.
        if written.files > 0 {
            write!(f, " in {} files, {each:.1} bytes an event", written.files)?;
        }
        f.write_str("; ")?;
        match (dropped, complete) {
            (0, _) => f.write_str(missing),
            (_, true) => write!(f, "{dropped} dropped because the store was too slow, nothing else is missing"),
            (_, false) => write!(f, "{dropped} dropped because the store was too slow; {missing}"),
        }?;
        cure.iter().try_for_each(|cure| write!(f, "; {cure}"))
    }
}

#[cfg(test)]
mod tests;
