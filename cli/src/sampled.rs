//! What `record` and `profile` sample, how often, and of whom: by perf's names, which mean there what they mean in perf.

use crate::args::Target;
use crate::child::Child;
use crate::failure::Failure;
use crate::family::Family;
use crate::modifiers::Modifiers;
use crate::out::say;
use perfweave::{ErrorKind, RingOptions, Rings};
use perfweave_events::EventOptions;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

/// Whom to sample. Without any of these: the whole machine.
#[derive(Debug, Clone, clap::Args)]
pub struct Whom {
    /// Trace a process with all threads and children that it has and starts; several with commas in between
    #[arg(short, long, value_name = "PID", value_delimiter = ',', conflicts_with_all = ["tid", "cgroup", "command"])]
    pid: Vec<u32>,
    /// Trace one thread
    #[arg(short, long, value_name = "TID", conflicts_with_all = ["cgroup", "command"])]
    tid: Option<u32>,
    /// Trace the processes of a control group, by its directory in /sys/fs/cgroup
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
    cgroup: Option<PathBuf>,
    /// Trace all processes, also beside a command
    #[arg(short, long, alias = "all-cpus", conflicts_with_all = ["pid", "tid", "cgroup"])]
    all: bool,
    /// Only what happens on these CPUs, such as 0,2-3
    #[arg(short = 'C', long = "cpu", value_name = "CPUS", value_parser = cpus)]
    cpus: Option<Cpus>,
    /// Trace this command from its first instruction on, with its own input and output, until it ends. Words behind its
    /// name are its own
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// How often to sample.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Rate {
    /// Samples a second on each CPU, or max. A number that does not divide 1000 keeps out of step with periodic work
    #[arg(short = 'F', long, alias = "freq", value_name = "HERTZ", value_parser = hertz, conflicts_with = "count")]
    frequency: Option<u64>,
    /// One sample each time the event has happened so often
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// Call chains, as perf asks for them.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Chains {
    /// Record call chains, by frame pointers
    #[arg(short = 'g')]
    frame_pointers: bool,
    /// The same: fp, by frame pointers. fp,defer, which are found when the thread returns to its program (Linux 6.19).
    /// dwarf[,BYTES], of programs without them: each sample has so much of the stack [8192], which is unwound later
    #[arg(long, value_name = "HOW", num_args = 0..=1, default_missing_value = "fp", value_parser = call_graph)]
    call_graph: Option<CallGraph>,
}

impl Chains {
    /// Those of each call: by DWARF where that is known here, unless told otherwise.
    pub fn of_calls(call_graph: Option<CallGraph>) -> Self {
        let call_graph = call_graph.or_else(|| dwarf("").ok());
        Self { frame_pointers: call_graph.is_none(), call_graph }
    }

    pub fn are_wanted(self) -> bool {
        self.frame_pointers || self.call_graph.is_some()
    }

    /// Whether the kernel finds the chains of programs by itself.
    pub fn are_by_frame_pointers(self) -> bool {
        !matches!(self.call_graph, Some(CallGraph::Dwarf(_)))
    }

    /// Whether the kernel finds the chain of a program when the sample is taken.
    pub fn are_whole(self) -> bool {
        !matches!(self.call_graph, Some(CallGraph::Dwarf(_) | CallGraph::Deferred))
    }

    /// [`records`] of mappings. perf unwinds by what lies in mappings without code.
    pub fn records(self, options: RingOptions, kinds: impl IntoIterator<Item = u32>) -> RingOptions {
        let options = self.completed(records(options, kinds));
        if self.are_by_frame_pointers() {
            return options;
        }
        options.set("mmap_data", &[], "", |event| {
            event.attr.set_mmap_data(1);
            Ok(())
        })
    }

    /// Has the event that was added last write what the kernel finds of programs later: one of them is enough.
    pub fn completed(self, options: RingOptions) -> RingOptions {
        match self.call_graph {
            Some(CallGraph::Deferred) => options.set("defer_output", &[], "", |event| {
                event.attr.set_defer_output(1);
                Ok(())
            }),
            _ => options,
        }
    }

    /// What the event that was added last takes for it.
    pub fn set(self, options: RingOptions) -> RingOptions {
        match self.call_graph {
            #[cfg(feature = "dwarf")]
            Some(CallGraph::Dwarf(_)) => self.set_stack(options).exclude_callchain_user(),
            _ => options,
        }
    }

    /// The registers and the stack, by which chains are unwound.
    pub fn set_stack(self, options: RingOptions) -> RingOptions {
        match self.call_graph {
            #[cfg(feature = "dwarf")]
            Some(CallGraph::Dwarf(bytes)) => {
                options.sample_registers(crate::unwind::registers::ASKED, 0).sample_stack(bytes)
            }
            Some(CallGraph::Deferred) => options.set("defer_callchain", &[], "", |event| {
                event.attr.set_defer_callchain(1);
                Ok(())
            }),
            _ => options,
        }
    }
}

/// The way in which call chains of programs are found.
#[derive(Debug, Clone, Copy)]
pub enum CallGraph {
    FramePointers,
    /// The same, in records of their own.
    Deferred,
    /// From so many bytes of their stacks.
    #[cfg_attr(not(feature = "dwarf"), expect(dead_code, reason = "it is refused"))]
    Dwarf(u32),
}

/// CPUs by their numbers.
#[derive(Debug, Clone)]
struct Cpus(Vec<u32>);

/// `HOW` of `--call-graph`.
pub fn call_graph(text: &str) -> Result<CallGraph, String> {
    let (how, rest) = text.split_once(',').unwrap_or((text, ""));
    match how {
        "fp" if rest == "defer" => Ok(CallGraph::Deferred),
        "fp" if rest.is_empty() => Ok(CallGraph::FramePointers),
        "fp" => Err("fp takes nothing but defer: fp,defer".into()),
        "dwarf" => dwarf(rest),
        "lbr" => Err(
            "chains are by frame pointers here, or by DWARF: -g, --call-graph dwarf; `perf record --call-graph lbr` has the others"
                .into(),
        ),
        _ => Err("it is fp, fp,defer or dwarf, and a command comes after --".into()),
    }
}

/// `BYTES`, which perf and this round up to whole words, or nothing.
#[cfg(feature = "dwarf")]
fn dwarf(bytes: &str) -> Result<CallGraph, String> {
    const MOST: u32 = u16::MAX as u32 / 8 * 8;
    if crate::unwind::registers::ASKED == 0 {
        return Err("stacks are unwound on x86-64 and 64-bit Arm alone".into());
    }
    let bytes = if bytes.is_empty() { Ok(8192) } else { bytes.parse::<u32>() };
    let bytes = bytes.ok().filter(|bytes| (1..=MOST).contains(bytes));
    let bytes =
        bytes.ok_or_else(|| format!("bytes of the stack are expected after dwarf, at most {MOST}: dwarf,16384"))?;
    Ok(CallGraph::Dwarf(bytes.next_multiple_of(8)))
}

#[cfg(not(feature = "dwarf"))]
fn dwarf(_: &str) -> Result<CallGraph, String> {
    Err("this program was built without dwarf: cargo install --path cli --all-features".into())
}

fn hertz(text: &str) -> Result<u64, String> {
    const MOST: &str = "/proc/sys/kernel/perf_event_max_sample_rate";
    let number = match text {
        "max" => fs::read_to_string(MOST).ok().and_then(|most| most.trim().parse().ok()),
        _ => text.parse().ok(),
    };
    number.filter(|hertz| *hertz > 0).ok_or_else(|| "samples a second are expected, such as 99, or max".into())
}

fn cpus(text: &str) -> Result<Cpus, String> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse::<u32>().ok()?..=to.parse::<u32>().ok()?)
            .filter(|range| !range.is_empty() && *range.end() < 1 << 16)
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    ranges
        .map(|ranges| Cpus(ranges.into_iter().flatten().collect()))
        .ok_or_else(|| "CPUs are expected, such as 0,2-3".into())
}

impl Whom {
    /// The same, as other commands have it. Of several processes: all, and those of the others are left out.
    pub fn target(&self) -> Target {
        let pid = if let [pid] = self.pid[..] { Some(pid) } else { None };
        let Self { tid, cgroup, all, command, .. } = self.clone();
        Target { pid, tid, cgroup, all: all || self.are_several(), command }
    }

    pub fn are_several(&self) -> bool {
        self.pid.len() > 1
    }

    /// The events of these.
    pub fn limit(&self, options: RingOptions, child: Option<&Child>) -> RingOptions {
        let options = self.target().limit(options, child);
        match &self.cpus {
            Some(Cpus(cpus)) => options.cpus(cpus.iter().copied()),
            None => options,
        }
    }

    /// Whose events are left of what comes. `is_limited`: the kernel leaves out those of others.
    pub fn family(&self, child: Option<&Child>, is_limited: bool) -> Result<Family, Failure> {
        match (&self.pid[..], self.target().process(child)) {
            (pids @ [_, _, ..], _) => Family::of_all(pids),
            (_, Some(pid)) if !is_limited => Family::of(pid),
            _ => Ok(Family::All),
        }
    }

    /// Of recordings.
    pub fn recorded(&self) -> Result<Family, Failure> {
        self.target().refuse_cgroup()?;
        match &self.pid[..] {
            [_, _, ..] => {
                Err(Failure::hinting("of a recording one process is taken at a time", "-p PID for each of them"))
            }
            _ => Ok(crate::recorded::family(self.target().pid, self.tid)),
        }
    }

    /// Whether it is of this user's own processes, as far as that is known: what the kernel may let anybody sample.
    fn may_be_own(&self) -> bool {
        let target = self.target();
        target.cgroup.is_none() && !target.all && target.is_limited()
    }

    /// Opens rings. Where the kernel's part is refused to this user, those of user mode alone, which is said.
    pub fn open(&self, options: impl Fn(Mode) -> Result<RingOptions, Failure>) -> Result<Rings, Failure> {
        let refused = match options(Mode::All)?.open() {
            Err(error) if error.kind() == ErrorKind::Permission && self.may_be_own() => error,
            rings => return Ok(rings?),
        };
        let opened = match options(Mode::User)?.open() {
            // Locked memory has a limit.
            Err(error) if error.kind() == ErrorKind::Limit => options(Mode::UserInLittle)?.open(),
            opened => opened,
        };
        let rings = opened.map_err(|_| Failure::from(refused))?;
        let names = rings.sources().iter().map(|source| source.name().to_owned());
        let names = names.filter(|name| name.contains(':')).collect::<Vec<_>>().join(", ");
        say(format_args!(
            "perfweave: the kernel lets this user sample user mode alone: {names} (`perfweave check` says what would help)"
        ));
        Ok(rings)
    }
}

/// What is sampled of a user's own processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    All,
    /// Without the kernel.
    User,
    /// The same, with rings that any user may have.
    UserInLittle,
}

impl Mode {
    /// The size of each ring: `kernel.perf_event_mlock_kb` is 516 unless root has changed it, and a page is the ring's
    /// head.
    pub fn bytes(self, wanted: u64) -> u64 {
        if self == Self::UserInLittle { wanted.min(512 << 10) } else { wanted }
    }

    pub fn is_user(self) -> bool {
        self != Self::All
    }
}

impl Rate {
    /// Whether each sample stands for as many events as the others.
    pub fn is_fixed(self) -> bool {
        self.count.is_some()
    }

    /// The rate of the event that was added last. `otherwise`: if none was asked for, in samples a second.
    pub fn set(self, options: RingOptions, otherwise: Option<u64>, is_counted: bool) -> RingOptions {
        match (self.count, self.frequency.or(otherwise)) {
            (Some(count), _) => options.period(count),
            // A tracepoint or probe has each of its events.
            (None, Some(hertz)) if !is_counted => options.frequency(hertz),
            _ => options,
        }
    }
}

/// Records that are no samples. The kernel takes their event for one of its own unless it is told, and writes the same.
pub fn records(options: RingOptions, kinds: impl IntoIterator<Item = u32>) -> RingOptions {
    options.records(kinds).user_only()
}

/// Sets what an event's modifiers say. In user mode, those that say nothing of it leave the kernel out.
pub fn modified(options: RingOptions, modifiers: &Modifiers, name: &str, mode: Mode) -> RingOptions {
    let modifiers = if mode.is_user() { modifiers.in_user_mode() } else { modifiers.clone() };
    modifiers.set(options, name)
}
