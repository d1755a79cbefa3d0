//! Order for a tool that is not changed: takes its perf event arrays over while it runs, and writes what comes for it into
//! its own ring, in proven order.

mod guard;
mod preload;
mod programs;
mod relay;
pub mod ring;
mod said;
mod sys;
mod tool;

pub use guard::guard_process;
#[cfg(feature = "btf")]
pub use sys::Program;

use crate::child::Child;
use crate::failure::{Failure, Outcome};
use crate::sizing;
use relay::{Done, End, Relay};
use said::Said;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tool::{Kind, Open, Refused};

/// Orders what a tool on BPF prints, bpftrace for one, while it runs and without a change to it
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// Take over the maps of this process, and of those that it has started
    #[arg(short, long, value_name = "PID", conflicts_with = "command", required_unless_present = "command")]
    pid: Option<u32>,
    /// How: relay, from outside; or preload, for less CPU, where the tool loads libbpf as a library
    #[arg(long, value_name = "WAY", value_enum, default_value_t = How::Relay)]
    how: How,
    /// Memory of each CPU's ring, such as 512K or 4M
    #[arg(short, long, value_name = "SIZE", default_value = sizing::DEFAULT, value_parser = crate::args::bytes)]
    buffer: u64,
    /// Start this tool, and take over its maps when they are ready. Words behind its name are its own
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
enum How {
    Relay,
    Preload,
}

const AFTER: &str = "\
The tool's BPF programs write into rings of perfweave meanwhile, and a BPF program writes the records into one ring of the
tool. So the tool sees them as of that ring's CPU. Maps of the type PERF_EVENT_ARRAY are ordered, each by itself; BPF ring
buffers are not. If perfweave is killed, another process gives the tool its rings back.
Exit status: the command's own, or 1 if nothing was ordered.";

/// Between two looks at the tool's descriptors, at least; a look takes a hundredth of the time, at most.
const LOOK: Duration = Duration::from_millis(20);
const SELDOM: Duration = Duration::from_millis(500);
/// Tools open their maps soon after their start.
const SOON: Duration = Duration::from_secs(30);

/// For how long a process without maps is looked at.
const WITHOUT: Duration = Duration::from_secs(2);

/// Relays that run, and what has become of others.
#[derive(Debug)]
struct Orders {
    root: u32,
    process: OwnedFd,
    bytes: u64,
    stop: Arc<AtomicBool>,
    running: BTreeMap<u32, JoinHandle<()>>,
    ended: (Sender<Ended>, Receiver<Ended>),
    /// Maps that are not looked at again.
    never: BTreeSet<u32>,
    /// Slots of a map as they were found at the last look: a tool fills them one by one.
    filling: BTreeMap<u32, usize>,
    said: Said,
    /// Since when no relay runs.
    idle: Instant,
}

/// What a relay says at its end.
#[derive(Debug)]
struct Ended {
    id: u32,
    end: Result<(End, Done), Failure>,
}

pub fn run(args: &Args) -> Outcome {
    if args.how == How::Preload {
        return Err(preload::run(&args.command));
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let mut child = if args.command.is_empty() { None } else { Some(Child::start(&args.command)?) };
    let root = match (args.pid, &child) {
        (Some(pid), _) => pid,
        (None, Some(child)) => child.pid(),
        (None, None) => return Err(Failure::new("a process or a command is needed")),
    };
    let process = tool::hold(root).map_err(|error| {
        Failure::hinting(format_args!("there is no process {root}: {error}"), "ps -e lists those there are")
    })?;
    let mut orders = Orders::new(root, process, args.buffer);
    if let Some(child) = &mut child {
        child.go()?;
    }
    let status = orders.until_the_end(&mut signals, child.as_mut())?;
    orders.finish();
    // A tool that was told to end may take its time.
    let status = match (status, &mut child) {
        (None, Some(child)) => Some(wait(child, &mut signals)?),
        (status, _) => status,
    };
    Ok(code(status, orders.said.summary()))
}

/// Waits for the command's end. Signals go to it.
fn wait(child: &mut Child, signals: &mut Signals) -> Result<ExitStatus, Failure> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        signals.pending().filter(|signal| *signal != SIGINT).for_each(|signal| child.signal(signal));
        thread::sleep(LOOK);
    }
}

/// The command's status. 1 if nothing was ordered.
fn code(status: Option<ExitStatus>, has_ordered: bool) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    // As a shell says it: 128 and the signal.
    let code = status.map_or(0, |status| status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1));
    match u8::try_from(code).unwrap_or(1) {
        0 if !has_ordered => ExitCode::FAILURE,
        code => ExitCode::from(code),
    }
}

impl Orders {
    fn new(root: u32, process: OwnedFd, bytes: u64) -> Self {
        Self {
            root,
            process,
            bytes,
            stop: Arc::default(),
            running: BTreeMap::new(),
            ended: channel(),
            never: BTreeSet::new(),
            filling: BTreeMap::new(),
            said: Said::default(),
            idle: Instant::now(),
        }
    }

    /// Looks for maps and takes them over, until the tool ends or a signal comes. Gives the command's status, if it has
    /// ended.
    fn until_the_end(
        &mut self,
        signals: &mut Signals,
        mut child: Option<&mut Child>,
    ) -> Result<Option<ExitStatus>, Failure> {
        let began = Instant::now();
        let mut next = began;
        loop {
            if let Some(child) = &mut child
                && let Some(status) = child.try_wait()?
            {
                return Ok(Some(status));
            }
            if child.is_none() && tool::has_ended(&self.process, 0) {
                return Ok(None);
            }
            if let Some(signal) = signals.pending().next() {
                // Ctrl-C reaches the command by itself, others do not.
                if let Some(child) = child.as_ref().filter(|_| signal != SIGINT) {
                    child.signal(signal);
                }
                return Ok(None);
            }
            while let Ok(ended) = self.ended.1.try_recv() {
                self.take_end(ended);
            }
            if Instant::now() >= next {
                let (look, running) = (Instant::now(), self.running.len());
                self.look();
                let least = if began.elapsed() < SOON { LOOK } else { SELDOM };
                // What it takes to take a map over is no look.
                let is_mere = running == self.running.len();
                next = Instant::now() + if is_mere { least.max(look.elapsed() * 100).min(WITHOUT / 4) } else { least };
            }
            let is_without = self.running.is_empty() && self.idle.elapsed() > WITHOUT;
            if child.is_none() && is_without && !self.said.has_hope() {
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }

    /// Looks at all maps of the tool.
    fn look(&mut self) {
        let mut seen = BTreeSet::new();
        for map in tool::family(self.root).into_iter().flat_map(tool::maps) {
            if self.running.contains_key(&map.id) || self.never.contains(&map.id) || !seen.insert(map.id) {
                continue;
            }
            match map.kind {
                Kind::RingBuffer => {
                    self.said.ring_buffer(&map);
                    self.never.insert(map.id);
                }
                Kind::PerfEventArray => self.take(&map),
            }
        }
    }

    /// Takes a map over, if its slots are filled.
    fn take(&mut self, map: &Open) {
        let taken = match map.take() {
            Ok(taken) => taken,
            Err(Refused::Empty) => return self.said.empty(map),
            Err(Refused::Never(why)) => {
                self.never.insert(map.id);
                return self.said.refused(map, &why);
            }
            // A tool that ends, or changes its descriptors at this moment: the next look tells.
            Err(Refused::Failed(error)) => return self.said.failed(map, &error),
        };
        // The tool may not have filled them all.
        let slots = taken.rings.len();
        let online = tool::online().map_or(0, |cpus| cpus.len());
        if slots < online && self.filling.insert(map.id, slots) != Some(slots) {
            return;
        }
        // A tool that did not read gets another try when it has read all.
        if self.said.was_stuck(map.id) && taken.rings.iter().any(|ring| ring.unread() > 0) {
            return;
        }
        match Relay::start(taken, self.bytes) {
            Ok((relay, before)) => {
                self.said.taken(&relay, before);
                self.begin(relay);
            }
            Err(failure) => {
                self.never.insert(map.id);
                self.said.refused(map, failure.message());
            }
        }
    }

    fn begin(&mut self, mut relay: Relay) {
        let (stop, ended, id) = (Arc::clone(&self.stop), self.ended.0.clone(), relay.id());
        let started = thread::Builder::new().name("relay".into()).spawn(move || {
            let left = relay.wait_for_old(&stop);
            said::old(id, left);
            let end = relay.run(&stop);
            // The slots are the tool's again, before anybody hears of the end.
            drop(relay);
            let _ = ended.send(Ended { id, end });
        });
        match started {
            Ok(thread) => drop(self.running.insert(id, thread)),
            // The relay is dropped, and has given back.
            Err(error) => self.said.thread(&error),
        }
    }

    fn take_end(&mut self, ended: Ended) {
        if let Some(thread) = self.running.remove(&ended.id) {
            let _ = thread.join();
        }
        self.idle = Instant::now();
        match ended.end {
            Ok((end, done)) => {
                if end == End::Guard {
                    self.never.insert(ended.id);
                }
                self.said.ended(ended.id, end, done);
            }
            Err(failure) => {
                self.never.insert(ended.id);
                self.said.broken(ended.id, failure.message());
            }
        }
    }

    /// Ends all relays.
    fn finish(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some((_, thread)) = self.running.pop_first() {
            let _ = thread.join();
        }
        while let Ok(ended) = self.ended.1.try_recv() {
            self.take_end(ended);
        }
    }
}
