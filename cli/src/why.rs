//! Where the time went, and through whom.

mod descriptors;
mod files;
mod found;
pub mod path;
mod quota;
mod requests;
mod search;
mod stacks;
mod words;

use crate::args::Common;
use crate::child::Child;
use crate::convert::picture::Picture;
use crate::convert::{self, html};
use crate::failure::{Failure, Outcome};
use crate::family::Family;
use crate::hang::{self, Hang};
use crate::key;
use crate::names::NAMING;
use crate::out::Out;
use crate::recorded::{self, Recorded};
use crate::scheduler::{Scheduler, Tracing, Way};
use crate::session::{Session, Tell};
use crate::stamp::{self, By, Stamp};
use crate::trace::calls::{self, Calls};
use crate::trace::events::event;
pub use descriptors::is_of_64_bits;
use files::Files;
use found::Found;
use perf_event_open_sys::bindings;
use perfweave::{Clock, ClockOffset, Order, Rings};
use quota::{Quota, Steal};
use requests::Requests;
use search::Search;
use stacks::Stacks;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where the time went, and through whom: of a command, or the longest waits of a process
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// The longest waits of a process with all threads and children that it has and starts
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["tid", "command"])]
    pid: Option<u32>,
    /// The longest waits of one thread
    #[arg(short, long, value_name = "TID", conflicts_with = "command")]
    tid: Option<u32>,
    /// Only waits of threads of this name
    #[arg(long, value_name = "NAME", conflicts_with = "command")]
    comm: Option<String>,
    /// How many waits or requests, the longest [5 waits, 3 requests]
    #[arg(short = 'n', long, value_name = "N")]
    rows: Option<usize>,
    /// Requests instead: the event at which one begins, a system call, a tracepoint or a probe as trace -e has them
    #[arg(long, value_name = "EVENT", requires = "to")]
    from: Option<String>,
    /// The event at which it ends, in the thread whose path is printed
    #[arg(long, value_name = "EVENT", requires = "from")]
    to: Option<String>,
    /// The field that is equal in both, or two: FROM=TO [the thread is the same]
    #[arg(long, value_name = "FIELD", requires = "from")]
    by: Option<String>,
    /// Print who waited for whom with the nanoseconds, one chain a line, for flamegraph.pl or inferno-flamegraph
    #[arg(long, conflicts_with = "json")]
    folded: bool,
    /// Write a page for any browser into this file, too: each path as one ribbon through the lanes of CPUs and threads
    #[arg(long, value_name = "PAGE")]
    html: Option<PathBuf>,
    /// Print the JSON Schema of what --json prints, and end
    #[arg(long, exclusive = true)]
    json_schema: bool,
    /// Print where threads stood when they fell asleep, and when they woke others: functions of the kernel and of
    /// programs
    #[arg(long, conflicts_with = "folded")]
    stacks: bool,
    #[command(flatten)]
    time: stamp::Printed,
    #[command(flatten)]
    way: Way,
    #[command(flatten)]
    common: Common,
    /// A recording of the whole machine, by perfweave record -a -e why or perf record -a; - for standard input. Without
    /// it: what happens now
    #[arg(value_name = "FILE", conflicts_with = "command")]
    file: Option<PathBuf>,
    /// The same as FILE
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["file", "command"])]
    input: Option<PathBuf>,
    /// Where this command's time goes, from its first instruction until it ends
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const AFTER: &str = "\
From the end of a wait backwards. While a thread runs, it is its own work. While it is ready, others have the CPU on which it ran then: each with its \
share, or the CPU was idle, because it came late. If it was taken off a CPU that went idle then, a quota was used up, as a rule that of a control group. While it is blocked, the path goes on with the \
thread that woke it: what that one did in the meantime, indented, and so on. It ends at an interrupt (with its name), at a wait that nothing is known \
to have ended, and at what is unknown, with why: after a loss nothing is concluded. The stretches have no hole and add up, and so does the sum at \
the end of each path. A wait that has not ended when the trace ends is one too. Without a process or command it is the longest waits of the whole \
machine, but for threads of the kernel: -p 2 has these.

Live, a call's descriptor is followed by its file, as flock(fd: 3</run/lock>, cmd: 2), if it is known to be the file that the thread waited for. If a signal is known to have ended a wait, its name is printed.

Who and what a thread waited for is followed through at most 16 threads. The newest million of stretches of all threads are kept, which is some 100 to 200 MB at \
most; what was before is unknown. Of requests that have begun the newest 100,000 are kept, and of stacks the first 65,536. --stacks and --html take memory beside that. The whole machine is traced. A BPF program tells the call at the switch; where it is refused, and with \
--no-bpf, each entry into and return from a system call is traced. The last line says which, and how many switches the kernel is known to have left out.

With --from and --to it is each request: how long they took, the slowest, and what the slowest hundredth waits for in the mean, beside the faster half. \
The path is that of the thread in which a request ends. It leads to others if those woke it.

With --json each line is an object, as the JSON Schema says that --json-schema prints: a path has thread, tid, from, to, ns, path and culprits, and \
each of its steps thread, tid, from, to, ns, and what.

  perfweave why -- make                     where a command's time goes
  perfweave why -p 1234 -d 10               the five longest waits of a process in ten seconds
  perfweave why -p 1234 -d 10 --from syscalls:sys_exit_accept4 --to syscalls:sys_enter_close
                                            requests, each in one thread: the slowest three, and slow beside fast
  perfweave why --html slow.html -- make    and as a page: open slow.html
  perfweave why --folded -- make | inferno-flamegraph > waits.svg
  perfweave record -a -e why -- sleep 5
  perfweave why --comm postgres perf.data   of a recording";

/// How many waits are printed that go on.
const WAITS: usize = 5;

/// How many stretches the account keeps.
const MOST: usize = 1 << 20;

/// What `--json` prints.
const SCHEMA: &str = include_str!("why/schema.json");

pub fn run(mut args: Args) -> Outcome {
    if args.json_schema {
        let mut out = Out::new();
        out.write_all(SCHEMA.as_bytes())?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    args.file = args.input.take().or(args.file);
    match &args.file {
        Some(path) => of_recording(&args, path),
        None => live(&args),
    }
}

/// Of what happens now.
fn live(args: &Args) -> Outcome {
    let page = args.page(None)?;
    let events = args.events()?;
    let mut options = Rings::options();
    for name in events.iter().flat_map(|[from, to]| [from, to].into_iter().take(1 + usize::from(from != to))) {
        options = event(options, name, None)?;
    }
    // An event that is there twice would be taken twice.
    let is_there = |name: &str| events.iter().flatten().any(|event| event == name);
    // A stack at a switch is that of the tracepoint.
    let tracing = Tracing::begin(args.way, true, args.stacks.then_some("for --stacks"));
    let child = if args.command.is_empty() { None } else { Some(Child::start(&args.command)?) };
    let options = tracing.all_sources(options, is_there);
    let mut options = options.records(NAMING).sample(bindings::PERF_SAMPLE_TID).bytes(args.common.buffer);
    if args.stacks {
        options = options.records([bindings::PERF_RECORD_MMAP2]).sample(bindings::PERF_SAMPLE_CALLCHAIN);
    }
    let rings = options.open()?;
    tracing.look().now(false);
    let page = page.map(|out| Page { out, wall: rings.wall_clock(), clock: rings.clock() });
    // After the rings were opened: what starts from now on has its records.
    let family = match (args.pid.or(child.as_ref().map(Child::pid)), args.tid) {
        (Some(pid), _) => Family::of(pid)?,
        (None, Some(tid)) => Family::thread(tid)?,
        (None, None) if args.comm.is_none() && events.is_none() => Family::programs(),
        (None, None) => Family::All,
    };
    let stamp = args.time.stamp(&rings, By::Monotonic, args.common.json)?;
    let scheduler = Scheduler::new(&rings, false, MOST)?.traced(&tracing);
    let requests = events.as_ref().map(|[from, to]| args.requests(&rings, [0, usize::from(from != to)])).transpose()?;
    let stacks = args.stacks.then(|| Stacks::live(&rings));
    let files = Files::new(&rings, tracing.is_by_programs());
    let command = child.as_ref().map(Child::pid);
    let mut search = Search::new(scheduler, family, args, command, requests, stacks, files);
    // Before the first events: who waits already writes none.
    let root = args.pid.or(command).map(hang::Root::Process).or(args.tid.map(hang::Root::Thread));
    let begin = root.map(hang::Begin::now);
    let (mut quota, steal) = (Quota::new(args.pid.or(args.tid).or(command)), Steal::new());
    // With this program's own records: it has a CPU that others wait for, and interrupts that come meanwhile wake
    // others.
    let mut session = Session::begin(rings, Order::new().hold(args.common.hold.clone()), &args.common, child)?;
    session.stamped(stamp);
    session.traced(&tracing);
    session.until_the_end_of(args.pid.or(args.tid));
    session.each(|tell| {
        match tell {
            Tell::Event(event) => search.event(event),
            Tell::Pause => {
                quota.look();
                search.pause();
            }
        }
        Ok(())
    })?;
    search.end(&session.ledger()?);
    let hang = begin.map(|begin| begin.end(|tid| search.waits_for(tid), |pid, at| search.woke_last(pid, at)));
    session.unrecorded(search.unrecorded());
    let mut out = Out::new();
    print(args, search, &stamp, page, hang.as_ref(), &mut out)?;
    if !args.folded {
        quota.print(args.common.json, &mut out)?;
        steal.print(args.common.json, &mut out)?;
    }
    session.conclude(&mut out, args.common.json)?;
    Ok(session.status())
}

/// Of a recording.
fn of_recording(args: &Args, path: &Path) -> Outcome {
    let no_recording =
        |failure: Failure| failure.or_hint("FILE is a recording; a command comes after --, as in why -- make");
    let open = if args.stacks { Recorded::open_for_stacks } else { Recorded::open };
    let mut recorded = open(path).map_err(no_recording)?;
    let page = args.page(Some(path))?;
    let stamp = args.time.stamp_recorded(recorded.rings())?;
    let events = args.events()?;
    let family = match recorded::family(args.pid, args.tid) {
        Family::All if args.comm.is_none() && events.is_none() => Family::recorded_programs(),
        family => family,
    };
    let rings = recorded.rings();
    let page = page.map(|out| Page { out, wall: rings.wall_clock(), clock: rings.clock() });
    let requests = match events {
        Some([from, to]) => Some(args.requests(rings, [recorded.place(&from)?, recorded.place(&to)?])?),
        None => None,
    };
    let stacks = args.stacks.then(|| Stacks::recorded(rings, &recorded.view));
    let mut search = Search::new(Scheduler::recorded(rings, MOST)?, family, args, None, requests, stacks, None);
    recorded.each(|event, _| {
        search.event(event);
        Ok(())
    })?;
    search.end(&recorded.ledger()?);
    recorded.lacks(search.lacks());
    recorded.unrecorded(search.unrecorded());
    let mut out = Out::new();
    print(args, search, &stamp, page, None, &mut out)?;
    recorded.conclude(&mut out, args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The events of requests, if they are asked for. A system call is its entry.
    fn events(&self) -> Result<Option<[String; 2]>, Failure> {
        let Some(events) = self.from.as_ref().zip(self.to.as_ref()) else { return Ok(None) };
        let events = [events.0, events.1].map(|name| match calls::number(name) {
            Some(_) => format!("syscalls:sys_enter_{name}"),
            None => name.clone(),
        });
        key::is_one(events.each_ref())?;
        Ok(Some(events))
    }

    /// Where the page goes, if one is asked for. Before anything is traced, so that it is not in vain.
    fn page(&self, recording: Option<&Path>) -> Result<Option<convert::Out>, Failure> {
        self.html.as_ref().map(|path| convert::into_file(path, recording)).transpose()
    }

    fn requests(&self, rings: &Rings, events: [usize; 2]) -> Result<Requests, Failure> {
        let by = self.by.as_ref().map(|by| key::fields(rings, events, by)).transpose()?;
        Ok(Requests::new(events, by))
    }
}

/// A page to be written.
struct Page {
    out: convert::Out,
    wall: Option<ClockOffset>,
    clock: Clock,
}

impl Page {
    /// Writes who waits for whom, the paths, and what is known of all threads and CPUs while they lasted and a little
    /// before and after.
    fn write(
        mut self,
        args: &Args,
        hang: Option<&Hang>,
        found: &[Found],
        scheduler: &Scheduler,
        calls: &mut Calls,
    ) -> io::Result<()> {
        let newest = scheduler.account.newest();
        let from = found.iter().map(|found| found.from).min().unwrap_or(newest);
        let to = found.iter().map(|found| found.to).max().unwrap_or(newest);
        let around = (to - from) / 20;
        let picture =
            Picture::of(scheduler, from.saturating_sub(around), to.saturating_add(around).min(newest).max(to))?;
        let since = Stamp::since(picture.start, self.clock);
        let ways: Vec<_> = found.iter().map(|found| found.value(calls, &since)).collect();
        let words = args.command.iter().map(|word| word.to_string_lossy());
        let title = match &args.file {
            Some(file) => file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            None => words.fold("why".to_owned(), |title, word| format!("{title} {word}")),
        };
        let hangs = hang.map(|hang| hang.objects(calls)).unwrap_or_default();
        let told = html::Told { ways: &ways, hangs: &hangs };
        html::page(&mut self.out, &picture, &title, self.wall.map(|wall| wall.apply(picture.start)), told)?;
        self.out.flush()
    }
}

fn print(
    args: &Args,
    search: Search,
    stamp: &Stamp,
    page: Option<Page>,
    hang: Option<&Hang>,
    out: &mut Out,
) -> Result<(), Failure> {
    let (found, requests, mut calls, scheduler) = search.finish();
    if let Some(page) = page {
        page.write(args, hang, &found, &scheduler, &mut calls)?;
    }
    if args.folded {
        return Ok(found::folded(&found, &mut calls, out)?);
    }
    let hangs = hang.is_some_and(Hang::has_any);
    if let Some(hang) = hang {
        hang.print(args.rows.unwrap_or(WAITS), args.common.json, &mut calls, out)?;
    }
    match requests {
        Some(mut requests) => requests.print(args.common.json, out)?,
        None if found.is_empty() && !hangs && !args.common.json => {
            let none = "nobody is known to have waited";
            writeln!(
                out,
                "{}",
                if args.command.is_empty() { none } else { "nothing is known of the command's first instruction" }
            )?;
        }
        None => {}
    }
    for one in &found {
        if args.common.json { one.object(&mut calls, stamp, out)? } else { one.text(&mut calls, stamp, out)? }
    }
    Ok(())
}
