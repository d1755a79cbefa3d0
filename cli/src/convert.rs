//! Turns a recording into something to look at.
//!
//! A new output is a `Sink` in a file of `convert/`, and a flag, `has_dates` and `Format::sink` here; it has a place in
//! `cli/tests/convert.rs`, `cli/tests/places.rs` and docs/PROGRAM.md.

#[cfg(feature = "firefox")]
mod firefox;
mod folded;
pub mod functions;
pub mod html;
pub mod names;
#[cfg(feature = "perfetto")]
mod perfetto;
pub mod picture;
mod progress;
mod spill;
pub mod text;
pub mod view;

use crate::deferred::Deferred;
use crate::failure::{Failure, Outcome};
use crate::missing;
use crate::out::say;
use crate::output;
use crate::profile::compiled::Compiled;
use crate::stamp::{self, Stamp};
use names::{Mode, Names};
use perf_event_open_sys::bindings;
use perfweave::{Event, Layout, Order, Reader, Rings};
use perfweave_perf_data as perf_data;
use picture::Painter;
pub use progress::Progress;
use spill::Nameless;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use view::View;

/// Turns a recording into something to look at
///
/// Reads a perf.data file of `perf record` or `perfweave record`, of this machine or of another, and writes its events
/// in proven order over all CPUs. `--html` makes one page that any browser shows, without a network. `--html`,
/// `--perfetto` and `--firefox` have dates if the recording says what the wall clock was. Standard input, and what has to
/// be kept until the end, are in temporary files without a name, which take several times the recording: in the folder
/// that TMPDIR names, or in /var/tmp.
///
/// It takes 20 MB of memory, some 10 MB more for names of the kernel's functions, and at most 1.5 times the recording's
/// length, also from a pipe. `--firefox`, and call chains whose program's part comes later (below), take several times the
/// recording where most chains differ.
///
/// Code that a runtime compiled has the names of a map beside the recording: `cp /tmp/perf-1234.map .`. It does not look
/// into /tmp, where the number may be another process's by then. A recording with a map is read twice. perf reads build
/// ids when it ends, so files replaced meanwhile may have wrong names.
///
/// A recording with call chains whose program's part comes later (--call-graph fp,defer) is read once more, for these
/// parts. That takes some 100 bytes more for each of these samples, and each different part once. Samples whose part did
/// not come keep the kernel's part, and are counted.
///
/// Groups that perf sampled by their leader ({cycles,instructions}:S) give a sample of each member, with its count as the
/// period, as perf script does. `--folded` and `--firefox` count the call chain once.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The recording; - for standard input
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    time: stamp::Printed,
    /// Write into this file, which only this user may read, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  perf record -a -e sched:sched_switch,sched:sched_waking -- sleep 1
  perfweave convert --html -o trace.html           Who ran where, and who woke whom: open trace.html
  perfweave convert --perfetto -o trace.pftrace    The same for https://ui.perfetto.dev
  perfweave convert --firefox -o profile.json      Samples and marks for https://profiler.firefox.com
  perfweave convert --folded                       Call chains, for flamegraph.pl or inferno-flamegraph
  perf record -a -o - -- sleep 1 | perfweave convert --json -";

/// What to make of it.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Format {
    /// One page for any browser: CPUs and threads as lanes, wake-ups as arrows, losses hatched, late events red
    #[arg(long)]
    html: bool,
    /// A trace for ui.perfetto.dev: a track for each CPU and thread, wake-ups as flows, losses as stretches
    #[cfg(feature = "perfetto")]
    #[arg(long)]
    perfetto: bool,
    /// A profile for profiler.firefox.com: call chains as samples, other events as marks
    #[cfg(feature = "firefox")]
    #[arg(long)]
    firefox: bool,
    /// A line for each event: the thread, its CPU, the time, the event and its fields
    #[arg(long)]
    text: bool,
    /// An object for each event, one a line
    #[arg(short, long)]
    json: bool,
    /// Call chains with how often each was sampled, outermost function first. Functions have names if their files are
    /// those that were recorded
    #[arg(long)]
    folded: bool,
}

const OTHER_NUMBERS: &str =
    "fields of tracepoints have the numbers that threads have in the first one (common_pid in --json is that of tid)";

/// What a format does with the events.
trait Sink {
    fn event(&mut self, event: &Event<'_>, view: &View) -> io::Result<()>;
    /// After the last event.
    fn finish(self: Box<Self>, view: &View) -> io::Result<()>;
}

pub fn run(args: Args) -> Outcome {
    // On the same terminal it would stand among the lines.
    let progress = Progress::when(args.output.is_some() || !io::stdout().is_terminal());
    progress.stage("reading");
    let view_and_reader = open_for_stacks(&args.file)?;
    let stamp = args.time.stamp_recorded(view_and_reader.1.rings())?;
    let out = output(&args)?;
    if args.format.has_stacks() {
        not_unwound(view_and_reader.1.rings()).iter().for_each(|words| say(format_args!("perfweave: {words}")));
    }
    let sink = args.format.sink(out, view_and_reader.1.rings(), stamp)?;
    match convert(view_and_reader, sink, &progress) {
        Ok(()) | Err(Failure::Closed) => Ok(ExitCode::SUCCESS),
        Err(failure) => Err(failure),
    }
}

pub type Out = Box<dyn Write>;

/// What is to be said of a recording with stacks for DWARF (`perf record --call-graph dwarf`) that are not unwound.
pub fn not_unwound(rings: &Rings) -> Option<&'static str> {
    let stack = u64::from(bindings::PERF_SAMPLE_STACK_USER);
    let is_left = |layout: &Layout| layout.sample_type() & stack != 0 && !is_unwound(layout);
    rings.layouts().any(is_left).then_some(NOT_UNWOUND)
}

#[cfg(feature = "dwarf")]
const NOT_UNWOUND: &str = "the stacks of this recording are for DWARF, with too few registers to unwind them: of a program each sample has \
     the innermost function alone";

#[cfg(not(feature = "dwarf"))]
const NOT_UNWOUND: &str = "the stacks of this recording are for DWARF, and are not unwound: of a program each sample has the innermost \
     function alone; `perf script` unwinds them, and so does this program if it is built with dwarf (cargo install --path cli --all-features)";

/// Whether samples have what it takes.
#[cfg(feature = "dwarf")]
fn is_unwound(layout: &Layout) -> bool {
    crate::unwind::registers::Registers::are_enough(layout.register_masks()[0])
}

#[cfg(not(feature = "dwarf"))]
fn is_unwound(_: &Layout) -> bool {
    false
}

impl Format {
    /// Whether it is made of call chains.
    fn has_stacks(&self) -> bool {
        #[cfg(feature = "firefox")]
        if self.firefox {
            return true;
        }
        self.folded
    }

    fn sink(&self, out: Out, rings: &Rings, stamp: Stamp) -> Result<Box<dyn Sink>, Failure> {
        #[cfg(feature = "perfetto")]
        if self.perfetto {
            return Ok(Box::new(perfetto::Perfetto::new(out, painter(rings)?)));
        }
        #[cfg(feature = "firefox")]
        if self.firefox {
            return Ok(Box::new(firefox::Firefox::new(out, painter(rings)?)));
        }
        Ok(if self.html {
            Box::new(html::Html::new(out, painter(rings)?))
        } else if self.json {
            Box::new(text::Json(out, stamp))
        } else if self.folded {
            Box::new(folded::Folded::new(out))
        } else {
            Box::new(text::Text(out, stamp))
        })
    }
}

/// What draws has dates without being asked for them.
fn painter(rings: &Rings) -> Result<Painter, Failure> {
    if rings.wall_clock().is_none() {
        eprintln!("perfweave: the recording does not say what the wall clock was: the events have times, but no dates");
    }
    Painter::new(rings)
}

/// What commands say of a recording whose records have no times.
pub const WITHOUT_TIMES: &str = "it was recorded without times (perf record --no-timestamp)";

/// A recording, and what its events mean.
pub fn open(path: &Path) -> Result<(View, Reader), Failure> {
    opened(path, None)
}

/// [`open`] for stacks: with the parts of call chains that come later, and the functions that runtimes compiled, if their
/// maps are kept beside the recording.
pub fn open_for_stacks(path: &Path) -> Result<(View, Reader), Failure> {
    opened(path, Some(Compiled::beside(path)))
}

/// What stacks take of all events is read before the first: parts of call chains that come later, and which functions of
/// runtimes there are samples of. Each time the recording is opened again: two copies of it take twice its memory.
fn opened(path: &Path, stacks: Option<Compiled>) -> Result<(View, Reader), Failure> {
    let again = Again::new(path)?;
    let mut rings = again.open()?;
    check(path, &rings)?;
    let mut deferred = Rc::default();
    if stacks.is_some() && Deferred::is_asked(&rings) {
        deferred = Rc::new(Deferred::read(rings)?);
        rings = again.open()?;
    }
    let mut compiled = stacks.unwrap_or_default();
    if compiled.has_maps() {
        compile(rings, path, &deferred, &mut compiled)?;
        rings = again.open()?;
    }
    if let Some(unfinished) = perf_data::unfinished(&rings) {
        say(format_args!("perfweave: {unfinished}"));
    }
    if let Some(undecoded) = missing::undecoded(perf_data::aux(&rings)) {
        say(format_args!("perfweave: {undecoded}"));
    }
    let mut view = View::new(&rings, path);
    (view.compiled, view.deferred) = (compiled, deferred);
    Ok((view, Reader::new(rings, Order::new())?))
}

/// Refuses recordings whose records cannot be ordered.
fn check(path: &Path, rings: &Rings) -> Result<(), Failure> {
    if rings.cpus().len() == 0 {
        let hint = "record for longer, or other events: perfweave record -a -- sleep 1";
        return Err(Failure::hinting(format_args!("{} has no records", path.display()), hint));
    }
    if rings.layouts().any(|layout| layout.sample_type() & u64::from(bindings::PERF_SAMPLE_TIME) == 0) {
        let hint = format!("perf script -i {} prints it in the file's order; or record with times", path.display());
        return Err(Failure::hinting(format_args!("cannot order {}: {WITHOUT_TIMES}", path.display()), hint));
    }
    Ok(())
}

/// Reads a recording for the functions that runtimes compiled: a map may be larger than memory, and only what samples
/// need is kept of it.
fn compile(rings: Rings, path: &Path, deferred: &Rc<Deferred>, compiled: &mut Compiled) -> Result<(), Failure> {
    let (mut view, mut names) = (View::new(&rings, path), Names::default());
    view.deferred = Rc::clone(deferred);
    let mut reader = Reader::new(rings, Order::new())?;
    while let Some(batch) = reader.batch(Duration::ZERO)? {
        for event in batch {
            names.learn(&event);
            let Some(record) = event.record() else { continue };
            let Some((pid, _)) = record.pid_tid().filter(|_| record.kind() == bindings::PERF_RECORD_SAMPLE) else {
                continue;
            };
            for frame in names.frames(&record, event.key(), &view) {
                if frame.mode == Mode::User && names.mapped(pid, frame.address).is_none() {
                    compiled.want(pid, frame.called());
                }
            }
        }
    }
    compiled.read();
    compiled.notes().for_each(|note| say(format_args!("perfweave: {note}")));
    Ok(())
}

/// A recording that is read several times. What comes through standard input is kept in a file without a name.
struct Again {
    path: PathBuf,
    _kept: Option<Nameless>,
}

impl Again {
    fn new(path: &Path) -> Result<Self, Failure> {
        if path != Path::new("-") {
            return Ok(Self { path: path.to_owned(), _kept: None });
        }
        let mut kept = Nameless::new()?;
        kept.copy(&mut io::stdin().lock())?;
        Ok(Self { path: kept.path(), _kept: Some(kept) })
    }

    fn open(&self) -> Result<Rings, Failure> {
        Ok(perf_data::open(self.path.clone())?)
    }
}

/// Reads a recording, or what comes through standard input.
pub fn read<T>(path: &Path, read: impl FnOnce(PathBuf) -> Result<T, perfweave::Error>) -> Result<T, Failure> {
    let again = Again::new(path)?;
    Ok(read(again.path.clone())?)
}

fn output(args: &Args) -> Result<Out, Failure> {
    match &args.output {
        Some(path) => into_file(path, Some(&args.file)),
        None => Ok(Box::new(crate::out::Out::new())),
    }
}

/// What is made of a recording goes into a file, which must not be the recording itself.
pub fn into_file(path: &Path, recording: Option<&Path>) -> Result<Out, Failure> {
    let place = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    if place(path).is_some_and(|output| recording.and_then(place) == Some(output)) {
        return Err(Failure::new(format_args!("{} is the recording itself", path.display())));
    }
    let file =
        output::create(path).map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
    Ok(Box::new(BufWriter::with_capacity(1 << 16, file)))
}

fn convert(
    (mut view, mut reader): (View, Reader),
    mut sink: Box<dyn Sink>,
    progress: &Progress,
) -> Result<(), Failure> {
    progress.stage("events");
    // One by one: the memory of a batch goes back behind its last event, and a batch may have all of them.
    while let Some(guard) = reader.next()? {
        let event = guard.event();
        view.learn(&event);
        sink.event(&event, &view)?;
        progress.one();
    }
    progress.stage("writing");
    if let Some(elsewhere) = missing::without_place(reader.ledger()?.machine.lost) {
        eprintln!("perfweave: {elsewhere}");
    }
    // What is made of the events may take as much memory.
    drop(reader);
    if view.is_of_namespace() {
        eprintln!("perfweave: recorded in a PID namespace: {OTHER_NUMBERS}");
    }
    Ok(sink.finish(&view)?)
}
