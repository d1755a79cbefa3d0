//! Writes a perf.data file, or the last moments before a trigger.

mod flight;
mod needs;
mod socket;
mod trigger;

use crate::args::Common;
use crate::child::Child;
use crate::failure::{Failure, Outcome, in_line};
use crate::modifiers::Modifiers;
use crate::out::{Out, line, say};
use crate::sampled::{Chains, Mode, Rate, Whom, modified, records};
use crate::scheduler::{Counted, Way};
use crate::session::{Session, Tell};
use crate::trace::events::is_of;
use crate::verify::hex;
use needs::Needs;
use perf_event_open_sys::bindings;
use perfweave::{Clock, Event, RingOptions, Rings};
use perfweave_events::EventOptions;
use perfweave_perf_data::{Writer, Written};
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use trigger::On;

/// Writes a perf.data file, or the last moments before a trigger
///
/// perf script, perf report and `perfweave convert` read the file. Ctrl-C, SIGTERM, --seconds or the end of the command
/// end it.
///
/// With --last it is a flight recorder: the kernel overwrites the rings, nothing is written, and no reader runs until
/// something happens that --on, --on-signal or --on-socket names. Then the last moments of the whole machine become a
/// file, and it goes on.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group(clap::ArgGroup::new("when").multiple(true)))]
pub struct Args {
    /// Events, separated by commas: tracepoints with * and ?, or perf's names such as cpu-clock and page-faults, with
    /// perf's modifiers such as :u; why stands for all that the commands why, offcpu and wakeups need of a recording
    /// [sched:sched_switch,sched:sched_waking]
    #[arg(short, long, value_name = "EVENTS", value_delimiter = ',')]
    event: Vec<String>,
    #[command(flatten)]
    rate: Rate,
    #[command(flatten)]
    chains: Chains,
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    way: Way,
    #[command(flatten)]
    common: Common,
    /// The file, or - for standard output, which perf reads through a pipe; with --last, the beginning of the names of
    /// the files, which end with the time
    #[arg(short, long, value_name = "FILE", default_value = "perf.data")]
    output: PathBuf,
    /// Keep so much in the rings, such as 500ms or 2s, and write it when something happens
    #[arg(long, value_name = "TIME", value_parser = trigger::time, requires = "when")]
    last: Option<Duration>,
    /// Write when this happens: 'wakeup>10ms', or an event with a filter in the kernel's syntax: 'EVENT: FIELD > N'
    #[arg(long, value_name = "WHAT", group = "when", requires = "last")]
    on: Vec<On>,
    /// Write when this signal comes, such as USR1
    #[arg(long, value_name = "SIGNAL", group = "when", requires = "last", value_parser = trigger::signal)]
    on_signal: Vec<nix::sys::signal::Signal>,
    /// Write for each line that a program writes into this Unix socket, and answer with the name of the file
    #[arg(long, value_name = "PATH", group = "when", requires = "last")]
    on_socket: Option<PathBuf>,
    /// Keep the newest so many files of --last, and delete this user's older ones
    #[arg(long, value_name = "N", default_value_t = 10, requires = "last", value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
}

const EXAMPLES: &str = "\
Examples:
  perfweave record -- make                                   Who ran where and who woke whom, while make runs, in perf.data
  perfweave record -a -e why -- make                         For why, offcpu and wakeups: each with -i perf.data
  perfweave record -a -e 'sched:*,irq:*' --seconds 5
  perfweave record -o - -- make | perf script -i -           Meanwhile, through a pipe
  perfweave record -F 99 -g -e cpu-clock -p 1234
  perfweave record --last 500ms --on 'wakeup>10ms'           Whenever a thread waits 10 ms for a CPU: what was before
  perfweave record --last 2s --on 'sched:sched_process_exit: comm == \"nginx\"'
  perfweave record --last 1s --on-signal USR1 --keep 3       kill -USR1 writes a file
  perfweave record --last 1s --on-socket /run/flight         echo slow request 17 | nc -U /run/flight
Then: perfweave convert --html perf.data -o trace.html";

/// The records that say how processes are called, and what they map.
const NAMES: [u32; 3] = [bindings::PERF_RECORD_COMM, bindings::PERF_RECORD_MMAP2, bindings::PERF_RECORD_FORK];

impl Args {
    /// Whether the recording goes to standard output.
    fn is_piped(&self) -> bool {
        self.output == Path::new("-")
    }

    /// Where the recording goes, in words.
    fn place(&self) -> String {
        if self.is_piped() { "standard output".into() } else { self.output.display().to_string() }
    }

    /// What is recorded. A user who may not see the scheduler's events, and has not asked for them, has samples instead.
    fn events(&self, mode: Mode) -> Vec<&str> {
        match (&self.event[..], mode) {
            ([], Mode::All) => vec!["sched:sched_switch", "sched:sched_waking"],
            ([], _) => vec!["cpu-clock"],
            (named, _) => named.iter().map(String::as_str).collect(),
        }
    }

    /// The events, with the names of processes and what they map.
    fn options(&self, needs: Option<&Needs>, child: Option<&Child>, mode: Mode) -> Result<RingOptions, Failure> {
        let mut options = Rings::options().bytes(mode.bytes(self.common.buffer));
        let mut events = self.events(mode);
        events.retain(|event| *event != needs::NAME);
        if let Some(needs) = needs {
            options = needs.add(options, &events, self.rate)?;
        }
        for event in &events {
            let (name, modifiers) = Modifiers::split(event)?;
            let is_counted = name.contains(':') && !name.ends_with('/');
            options = if is_counted { options.tracepoint(name) } else { options.event_name(name) };
            options = self.chains.set(modified(self.rate.set(options, None, is_counted), &modifiers, name, mode));
        }
        options = self.chains.records(options, NAMES);
        options = options.sample(bindings::PERF_SAMPLE_IP | bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_CPU);
        // With it the kernel samples a software event each time, whatever its period (perf_swevent_event).
        if !self.rate.is_fixed() {
            options = options.sample(bindings::PERF_SAMPLE_PERIOD);
        }
        // Of a process only its own threads' `sched_switch` is written, when they leave a CPU. The kernel's records say
        // when they run.
        if (self.whom.target().is_limited() || self.whom.are_several())
            && events.iter().any(|event| event.contains("sched_switch") || *event == "sched:*")
        {
            options = records(options, [bindings::PERF_RECORD_SWITCH]);
        }
        if self.chains.are_wanted() || self.event.is_empty() && mode.is_user() {
            options = options.sample(bindings::PERF_SAMPLE_CALLCHAIN);
        }
        Ok(self.whom.limit(options, child))
    }
}

pub fn run(args: Args) -> Outcome {
    if args.is_piped() {
        refuse_pipe(&args)?;
    }
    match args.last {
        Some(last) => flight::run(&args, last),
        None => whole(&args),
    }
}

/// What does not go with a recording on standard output.
fn refuse_pipe(args: &Args) -> Result<(), Failure> {
    let failure = if args.last.is_some() {
        Failure::hinting(
            "-o - is for one recording, and --last writes several",
            "give the beginning of their names: -o /tmp/flight",
        )
    } else if args.common.json {
        Failure::hinting(
            "-o - and --json both write to standard output",
            "without --json the summary goes to standard error",
        )
    } else if io::stdout().is_terminal() {
        Failure::hinting(
            "a recording is no text for a terminal",
            "send it through a pipe: perfweave record -o - | perf script -i -",
        )
    } else {
        return Ok(());
    };
    Err(failure)
}

/// Records everything from now on.
fn whole(args: &Args) -> Outcome {
    let is_piped = args.is_piped();
    // Before the command: what it does until it is let go is nobody's concern, so it shall be little.
    let needs = Needs::of(args)?;
    // Standard output is the recording's. What the command prints goes to standard error, as perf has it.
    let child = match is_piped && !args.whom.command.is_empty() {
        true => Some(Child::start_writing(&args.whom.command, io::stderr().as_fd().try_clone_to_owned()?.into())?),
        false => args.whom.target().start()?,
    };
    let rings = args.whom.open(|mode| args.options(needs.as_ref(), child.as_ref(), mode))?;
    // After they were opened: what starts from now on has its records.
    let mut family = args.whom.family(child.as_ref(), true)?;
    skipped(rings.skipped());
    let mut writer = match is_piped {
        true => Writer::pipe(io::stdout().as_fd().try_clone_to_owned()?, &rings)?,
        false => Writer::create(&args.output, &rings)?,
    };
    let unnamed: Vec<_> = writer.unnamed().iter().map(in_line).collect();
    // What CPUs tell at the end goes with all that they have told before, also of other events.
    let mut within = Within::now(rings.clock(), args.common.seconds.filter(|_| needs.is_none()));
    needs.iter().for_each(|needs| needs.tracing.look().now(false));
    let mut counted = Counted::of(&rings);
    let mut session = Session::begin(rings, Needs::order(needs.as_ref(), args), &args.common, child)?;
    needs.iter().for_each(|needs| session.traced(&needs.tracing));
    session.takes_all();
    if args.whom.command.is_empty() && args.common.seconds.is_none() {
        say(format_args!("recording into {}; Ctrl-C ends it", args.place()));
    }
    let mut failed = None;
    let mut progress = Progress::new();
    let read = session.each(|tell| {
        match tell {
            Tell::Event(event) if !is_of(&mut family, event) || within.leaves_out(event) => {}
            Tell::Event(event) => {
                counted.event(event);
                // The file is complete until the first error, which every later call gives again.
                failed = failed.take().or(writer.write(event).err());
                progress.events += 1;
            }
            Tell::Pause => {
                progress.say();
                // Who reads it meanwhile waits for it.
                if is_piped && failed.is_none() {
                    failed = writer.flush().err();
                }
            }
        }
        // It ends the session, and is said below.
        if failed.is_some() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    });
    progress.end();
    if let Some(error) = failed {
        return Err(error.into());
    }
    read?;
    writer.unreported(&session.ledger()?);
    session.unrecorded(counted.missing());
    let written = writer.finish()?;
    let summary = session.summary(args.common.json)?;
    tell(args, &written, &summary, [within.before, within.after, session.left_out()])?;
    unnamed.iter().for_each(|missing| say(format_args!("{missing}")));
    Ok(session.status())
}

/// The time that was asked for. Rings have events from before it, for their names are read from /proc when they are
/// open, and some from after it, because the end is proven later.
struct Within {
    from: u64,
    until: u64,
    /// How many records are from before, and from after.
    before: u64,
    after: u64,
}

impl Within {
    fn now(clock: Clock, lasts: Option<Duration>) -> Self {
        let from = clock.now().unwrap_or(0);
        let lasts = lasts.and_then(|time| u64::try_from(time.as_nanos()).ok());
        let until = lasts.map_or(u64::MAX, |time| from.saturating_add(time));
        Self { from, until, before: 0, after: 0 }
    }

    /// Whether a record is not from then, and counts it. Names and mappings of before are needed. What is no record is
    /// told, whenever it was.
    fn leaves_out(&mut self, event: &Event<'_>) -> bool {
        let Some((record, time)) = event.record().and_then(|record| Some((record, record.time()?))) else {
            return false;
        };
        let is_before = time < self.from && !NAMES.contains(&record.kind());
        let is_after = time > self.until;
        self.before += u64::from(is_before);
        self.after += u64::from(is_after);
        is_before || is_after
    }
}

/// The last lines: what was written, on standard error as perf does, or as an object. `outside` are the records that
/// the summary counts and the file lacks: from before the recording, from after its end, and this program's own.
fn tell(args: &Args, written: &Written, summary: &str, outside: [u64; 3]) -> io::Result<()> {
    let Written { records, lost, left_out, .. } = *written;
    let file = args.place();
    if args.common.json {
        let mut out = Out::new();
        writeln!(out, "{summary}")?;
        let object = json!({ "file": file.to_string(), "records": records, "lost": lost, "left_out": left_out, "before": outside[0], "after": outside[1], "hash": hex(&written.hash) });
        line(&mut out, format_args!("{object}"))?;
        return out.flush();
    }
    let bytes = std::fs::metadata(&args.output).ok().filter(|_| !args.is_piped());
    let bytes = bytes.map_or_else(String::new, |file| format!(", {:.1} MB", file.len() as f64 / 1e6));
    eprintln!("{summary}");
    let why = ["from before it began", "from after its end", "of this program itself"];
    let left_out = outside.into_iter().zip(why).filter(|(count, _)| *count > 0);
    let left_out = left_out.map(|(count, why)| format!("{count} {why}")).collect::<Vec<_>>().join(", ");
    let left_out = if left_out.is_empty() { left_out } else { format!("; left out: {left_out}") };
    say(format_args!("{file}: {records} records{bytes}{left_out}"));
    say(format_args!("{file}: hash {}", hex(&written.hash)));
    Ok(())
}

/// Names the tracepoints of a pattern that nobody may sample.
fn skipped(errors: &[perfweave::Error]) {
    if let Some(first) = errors.first() {
        let (count, first) = (errors.len(), in_line(first));
        say(format_args!("perfweave: {count} tracepoints are left out, which the kernel lets nobody sample: {first}"));
    }
}

/// How far it is, on a terminal's standard error, after the first second.
struct Progress {
    events: u64,
    next: Option<Instant>,
    told: bool,
}

impl Progress {
    const EACH: Duration = Duration::from_secs(1);

    fn new() -> Self {
        let next = io::stderr().is_terminal().then(|| Instant::now() + Self::EACH);
        Self { events: 0, next, told: false }
    }

    fn say(&mut self) {
        if self.next.is_some_and(|next| Instant::now() >= next) {
            eprint!("\r{} events; Ctrl-C ends it ", self.events);
            self.next = Some(Instant::now() + Self::EACH);
            self.told = true;
        }
    }

    fn end(&self) {
        if self.told {
            eprintln!();
        }
    }
}

/// The status of a recorder that has ended as it was told.
const DONE: ExitCode = ExitCode::SUCCESS;
