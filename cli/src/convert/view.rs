//! What a recording's events mean: their names, fields and threads.

use super::names::{Mode, cookie, frames};
use super::picture::is_switch_out;
use crate::deferred::{Deferred, addresses};
use crate::interrupt;
use crate::kernel::Kernel;
use crate::numbers::{ENDED, Numbers, OUTSIDE};
use crate::profile::compiled::Compiled;
use crate::scheduler;
use crate::typed::typed;
use linux_perf_event_reader::EventRecord;
use perf_event_open_sys::bindings;
use perfweave::{Clock, ClockOffset, Event, Item, Record, Rings};
use perfweave_events::{Field, Format};
use perfweave_perf_data::{self as perf_data, Members};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::UNIX_EPOCH;

/// What is known of a recording, as of the event that was learned last.
#[derive(Debug)]
pub struct View {
    pub path: PathBuf,
    #[cfg_attr(not(feature = "perfetto"), expect(dead_code, reason = "only its traces name the clock"))]
    pub clock: Clock,
    /// How far the wall clock was ahead of it, if the recording says so.
    pub wall: Option<ClockOffset>,
    /// A time before the recording, in nanoseconds since 1970: that of its file.
    pub before: Option<u64>,
    /// The build ids of files, by path.
    pub build_ids: HashMap<PathBuf, Vec<Vec<u8>>>,
    /// What lies in the kernel, if the recording is of this boot.
    pub kernel: Kernel,
    /// What runtimes compiled, if the maps of that are kept with the recording.
    pub compiled: Compiled,
    /// The parts of call chains that come later.
    pub deferred: Rc<Deferred>,
    sources: Vec<Source>,
    members: Members,
    /// What the events of the last record's group have counted, by their sources.
    counted: Option<Vec<(usize, u64)>>,
    numbers: Numbers,
    /// How often something was learned of the numbers.
    learned: usize,
    /// A thread whose end is the last event, by its number in the first namespace.
    ended: Option<u32>,
    /// By CPU: the thread that has written the record of its end, and runs on.
    ending: HashMap<u32, u32>,
    /// By thread: any bytes.
    names: HashMap<u32, Vec<u8>>,
    /// The process of each thread.
    processes: HashMap<u32, u32>,
}

/// What a record is shown as: itself, or a sample of a member of its group.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    source: Option<usize>,
    /// How often the event has happened, or for how many nanoseconds, since its last sample.
    pub period: Option<u64>,
    /// Whether the record is of this event, so that what else it has is this event's too.
    pub is_own: bool,
}

#[derive(Debug)]
struct Source {
    name: String,
    format: Option<Format>,
    common_pid: Option<Field>,
    common_flags: Option<Field>,
    sched: Option<Sched>,
    /// Whether its samples are switches by programs.
    has_switches: bool,
}

/// The fields of the scheduler's tracepoints that lanes and arrows are made of.
#[derive(Debug)]
enum Sched {
    Switch {
        prev: Task,
        next: Task,
        state: Option<Field>,
    },
    /// `is_waking`: said by the waker itself.
    Wake {
        woken: Task,
        is_waking: bool,
    },
}

#[derive(Debug)]
struct Task {
    pid: Field,
    comm: Option<Field>,
}

impl Source {
    fn new(rings: &Rings, index: usize) -> Self {
        let name = rings.sources()[index].tracepoint().unwrap_or(rings.sources()[index].name()).to_owned();
        let format = Format::of(rings, index).ok();
        let field = |name: &str| format.as_ref()?.field(name).ok();
        let task = |pid: &str, comm: &str| Some(Task { pid: field(pid)?, comm: field(comm) });
        let woken = |is_waking| Some(Sched::Wake { woken: task("pid", "comm")?, is_waking });
        let sched = match format.as_ref().map_or("", Format::name) {
            "sched_switch" => task("prev_pid", "prev_comm")
                .zip(task("next_pid", "next_comm"))
                .map(|(prev, next)| Sched::Switch { prev, next, state: field("prev_state") }),
            "sched_waking" | "sched_wakeup_new" => woken(true),
            "sched_wakeup" => woken(false),
            _ => None,
        };
        let (common_pid, common_flags) = (field("common_pid"), field("common_flags"));
        let has_switches = scheduler::is_output(&rings.sources()[index]);
        Self { name, common_pid, common_flags, sched, format, has_switches }
    }
}

impl View {
    pub fn new(rings: &Rings, path: &Path) -> Self {
        let sources = (0..rings.sources().len()).map(|index| Source::new(rings, index)).collect();
        let (names, processes) = (HashMap::from([(0, b"swapper".to_vec())]), HashMap::from([(0, 0)]));
        let mut build_ids = HashMap::<_, Vec<_>>::new();
        for (path, id) in perf_data::build_ids(rings) {
            build_ids.entry(path).or_default().push(id);
        }
        let (clock, wall) = (rings.clock(), rings.wall_clock());
        let (path, before, numbers) = (path.to_owned(), before(path), Numbers::recorded());
        let kernel = Kernel::recorded(&perf_data::kernel_strings(rings));
        let (learned, ended, ending, compiled) = (0, None, HashMap::new(), Compiled::default());
        Self {
            path,
            clock,
            wall,
            before,
            build_ids,
            kernel,
            compiled,
            deferred: Rc::default(),
            sources,
            members: Members::new(rings),
            counted: None,
            numbers,
            learned,
            ended,
            ending,
            names,
            processes,
        }
    }

    /// Learns the names of threads that an event tells, and what the events of a group have counted.
    pub fn learn(&mut self, event: &Event<'_>) {
        let Item::Record(record) = event.item() else { return };
        self.counted = self.members.of(&record);
        self.learn_numbers(&record);
        if let Some((pid, tid)) = record.pid_tid()
            && record.kind() == bindings::PERF_RECORD_SAMPLE
        {
            self.processes.insert(tid, pid);
        }
        match record.kind() {
            bindings::PERF_RECORD_COMM => {
                // In a PID namespace, threads from outside are 0.
                if let Some(EventRecord::Comm(comm)) = typed(&record)
                    && comm.tid != 0
                {
                    self.names.insert(comm.tid.cast_unsigned(), comm.name.as_slice().into_owned());
                    self.processes.insert(comm.tid.cast_unsigned(), comm.pid.cast_unsigned());
                }
            }
            bindings::PERF_RECORD_MMAP => {
                if let Some(EventRecord::Mmap(map)) = typed(&record)
                    && map.pid == -1
                {
                    self.kernel.learn(&lossy(&map.path.as_slice()), map.page_offset, &self.path);
                }
            }
            bindings::PERF_RECORD_FORK => {
                if let Some(EventRecord::Fork(fork)) = typed(&record)
                    && fork.tid != 0
                {
                    let (tid, parent) = (fork.tid.cast_unsigned(), fork.ptid.cast_unsigned());
                    self.processes.insert(tid, fork.pid.cast_unsigned());
                    if let Some(name) = self.names.get(&parent).cloned() {
                        self.names.insert(tid, name);
                    }
                }
            }
            bindings::PERF_RECORD_SAMPLE => self.learn_scheduled(&record),
            _ => {}
        }
    }

    /// A sample of a tracepoint has the number of its thread in the first PID namespace and that in the recorder's.
    fn learn_numbers(&mut self, record: &Record<'_>) {
        if let Some(ended) = self.ended.take() {
            self.numbers.forget(ended);
        }
        if let (bindings::PERF_RECORD_EXIT, Some((_, tid))) = (record.kind(), record.pid_tid()) {
            self.ending.insert(record.cpu(), tid);
        }
        let Some(thread) = self.common_pid(record) else { return };
        let known = self.numbers.here(thread);
        let is_switch = matches!(self.sched(record), Some(Sched::Switch { .. }));
        let ending = if is_switch { self.ending.remove(&record.cpu()) } else { None };
        let sampled = match record.pid_tid() {
            // At its last switch it has no number any more.
            Some((_, ENDED)) => ending.unwrap_or(ENDED),
            Some((_, tid)) => tid,
            // Nothing has numbers of another namespace.
            None if known.is_none() && !self.numbers.are_others() => thread,
            None => return,
        };
        let Some(tid) = self.numbers.learn(thread, sampled).filter(|tid| known != Some(*tid)) else { return };
        if self.learned == 0 {
            // If they are the kernel's, they all are.
            let Self { names, numbers, .. } = self;
            let unknown: Vec<_> = names.keys().copied().filter(|tid| *tid >= OUTSIDE).collect();
            for (unknown, tid) in unknown.into_iter().filter_map(|tid| Some((tid, numbers.here(tid & !OUTSIDE)?))) {
                names.remove(&unknown).map(|name| names.insert(tid, name));
            }
        } else if let Some(name) = self.names.remove(&(OUTSIDE | thread)) {
            self.names.insert(tid, name);
        }
        self.learned += 1;
    }

    fn sched(&self, record: &Record<'_>) -> Option<&Sched> {
        self.source(record)?.sched.as_ref()
    }

    /// The number of the running thread in the first PID namespace.
    pub fn common_pid(&self, record: &Record<'_>) -> Option<u32> {
        self.format(record)?;
        number(self.sources.get(record.source()?)?.common_pid.as_ref()?, record)
    }

    /// Whether the recording was made in a PID namespace, as far as it has told: then tracepoints have other numbers of
    /// threads.
    pub fn is_of_namespace(&self) -> bool {
        self.numbers.are_others()
    }

    /// The number of a thread that tracepoints name by its number in the first namespace. It is told apart by
    /// [`OUTSIDE`] as long as its number is not known. A thread from outside has none.
    fn here(&self, thread: u32) -> u32 {
        self.numbers.here(thread).unwrap_or(OUTSIDE | thread)
    }

    fn learn_scheduled(&mut self, record: &Record<'_>) {
        const ENDED: u64 = 0x10 | 0x20;
        let Self { sources, names, numbers, ended, .. } = self;
        let Some(sched) = record.source().and_then(|at| sources.get(at)?.sched.as_ref()) else { return };
        let mut learn = |task: &Task| {
            let Some(tid) = number(&task.pid, record).filter(|tid| *tid != 0) else { return };
            let Some(name) = task.comm.as_ref().and_then(|comm| comm.bytes(record)) else { return };
            let mut name = name.to_vec();
            name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
            let tid = numbers.here(tid).unwrap_or(OUTSIDE | tid);
            if names.get(&tid).is_none_or(|known| *known != name) {
                names.insert(tid, name);
            }
        };
        match sched {
            Sched::Switch { prev, next, state } => {
                [prev, next].into_iter().for_each(&mut learn);
                let has_ended = state.as_ref().and_then(|state| state.uint(record)).unwrap_or(0) & ENDED != 0;
                *ended = number(&prev.pid, record).filter(|_| has_ended);
            }
            Sched::Wake { woken, .. } => learn(woken),
        }
    }

    /// What the record that was learned last is shown as. As in perf, a group is a sample of each event that has
    /// counted since.
    pub fn shown(&self, record: &Record<'_>) -> Vec<Shown> {
        let own = record.source();
        match &self.counted {
            None => {
                let has_switches = self.source(record).is_some_and(|of| of.has_switches);
                let period = record.period().filter(|_| self.format(record).is_none() && !has_switches);
                vec![Shown { source: own, period, is_own: true }]
            }
            Some(counted) => {
                let shown = |(source, period): &(usize, u64)| Shown {
                    source: Some(*source),
                    period: Some(*period),
                    is_own: own == Some(*source),
                };
                counted.iter().map(shown).collect()
            }
        }
    }

    /// The event's name; the kind of a record that is no sample.
    pub fn name(&self, record: &Record<'_>, shown: Shown) -> Cow<'_, str> {
        let source = shown.source.and_then(|at| self.sources.get(at));
        match source.filter(|_| record.kind() == bindings::PERF_RECORD_SAMPLE) {
            Some(source) => Cow::Borrowed(&source.name),
            None => record.kind_name().map_or_else(|| Cow::Owned(format!("kind {}", record.kind())), Cow::Borrowed),
        }
    }

    /// The interrupt that caused a sample of a tracepoint. [`View::tid`] is then the thread that it interrupted.
    pub fn interrupt(&self, record: &Record<'_>) -> Option<&'static str> {
        self.format(record)?;
        interrupt::kind(self.sources.get(record.source()?)?.common_flags.as_ref()?.uint(record)?)
    }

    /// The thread that ran when the record was written. It has caused the record, unless an
    /// [interrupt](View::interrupt) did.
    pub fn tid(&self, record: &Record<'_>) -> Option<u32> {
        let common = self.common_pid(record).map(|thread| self.here(thread));
        let sampled = record.pid_tid().map(|(_, tid)| tid);
        match (sampled, common) {
            // Outside of the recorder's PID namespace.
            (Some(0), Some(_)) => common,
            // An idle CPU executes no program.
            (Some(0), None) if cookie(record).is_some() => None,
            (Some(0), None) if frames(record).iter().any(|frame| frame.mode == Mode::User) => None,
            _ => sampled.filter(|tid| *tid != ENDED).or(common),
        }
    }

    /// The process of a thread, if the recording tells.
    pub fn pid(&self, tid: u32) -> Option<u32> {
        self.processes.get(&tid).copied()
    }

    /// The name of a thread, as of now: any bytes.
    pub fn comm(&self, tid: u32) -> Option<&[u8]> {
        self.names.get(&tid).map(Vec::as_slice)
    }

    /// The thread that this record's thread wakes, by its number in the first namespace.
    pub fn wakes(&self, record: &Record<'_>) -> Option<u32> {
        match self.sched(record)? {
            Sched::Wake { woken, is_waking: true } => number(&woken.pid, record),
            _ => None,
        }
    }

    /// The event of a sample.
    fn source(&self, record: &Record<'_>) -> Option<&Source> {
        self.sources.get(record.source()?).filter(|_| record.kind() == bindings::PERF_RECORD_SAMPLE)
    }

    /// The format of a sample of a tracepoint.
    pub fn format(&self, record: &Record<'_>) -> Option<&Format> {
        self.source(record)?.format.as_ref()
    }

    /// What a line says of a record: its fields, and the period if that is not always 1.
    pub fn words(&self, record: &Record<'_>, shown: Shown) -> String {
        let words = lossy(&self.fields(record, shown)).into_owned();
        match shown.period {
            Some(period) => format!("period={period} {words}"),
            None => words,
        }
    }

    /// The record's fields in words, with the bytes that names and paths have.
    pub fn fields(&self, record: &Record<'_>, shown: Shown) -> Vec<u8> {
        let look = |address| self.kernel.look(address);
        if let Some(line) =
            self.format(record).filter(|_| shown.is_own).and_then(|format| format.line_with(record, look))
        {
            return line.trim_end().into();
        }
        if let Some(words) = self.source(record).filter(|of| of.has_switches).and_then(|_| scheduler::words(record)) {
            return words.into();
        }
        let with = |words: String, bytes: &[u8]| [words.as_bytes(), bytes].concat();
        match typed(record) {
            Some(EventRecord::Comm(comm)) => {
                let exec = if comm.is_execve { " exec" } else { "" };
                let name = [&comm.name.as_slice(), exec.as_bytes()].concat();
                with(format!("{}/{} ", comm.pid, comm.tid), &name)
            }
            Some(EventRecord::Mmap(map)) => {
                with(format!("{} {:#x}+{:#x} ", map.pid, map.address, map.length), &map.path.as_slice())
            }
            Some(EventRecord::Mmap2(map)) => {
                with(format!("{} {:#x}+{:#x} ", map.pid, map.address, map.length), &map.path.as_slice())
            }
            Some(EventRecord::Fork(fork)) => format!("{}/{} by {}/{}", fork.pid, fork.tid, fork.ppid, fork.ptid).into(),
            Some(EventRecord::Exit(exit)) => format!("{}/{}", exit.pid, exit.tid).into(),
            _ if matches!(record.kind(), bindings::PERF_RECORD_SWITCH | bindings::PERF_RECORD_SWITCH_CPU_WIDE) => {
                if is_switch_out(record) { "leaves the CPU" } else { "runs" }.into()
            }
            _ => match addresses(record) {
                Some((cookie, chain)) => {
                    chain.iter().fold(format!("cookie={cookie:#x}"), |text, address| format!("{text} {address:#x}"))
                }
                None => record.ip().map(|ip| format!("{ip:#x}")).unwrap_or_default(),
            }
            .into(),
        }
    }
}

fn before(path: &Path) -> Option<u64> {
    let file = fs::metadata(path).ok().filter(|_| path != Path::new("-"))?;
    // A copy was created later, and a file that is written again earlier.
    let time = file.created().ok()?.min(file.modified().ok()?);
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

fn number(field: &Field, record: &Record<'_>) -> Option<u32> {
    field.uint(record).and_then(|number| u32::try_from(number).ok())
}

pub fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
