//! Entries and returns of system calls, joined by thread.

use super::asked::Which;
use super::calls::{self, is_exec, is_fork, is_sigreturn};
use crate::failure::Failure;
use crate::recorded::Recorded;
use perf_event_open_sys::bindings;
use perfweave::{Record, RingOptions, Rings};
use perfweave_events::{EventOptions, Field, Format};
use std::collections::{BTreeSet, HashMap};

/// A call that has been entered.
#[derive(Debug, Clone)]
pub struct Entry {
    pub pid: u32,
    pub tid: u32,
    pub cpu: u32,
    pub time: u64,
    pub number: i64,
    pub args: [u64; 6],
}

/// What a record says about system calls.
#[derive(Debug)]
pub enum Step {
    Enters(Entry),
    /// A return, and its entry unless that is lost or was before the trace.
    Returns {
        pid: u32,
        tid: u32,
        number: i64,
        result: i64,
        entry: Option<Entry>,
    },
    /// A thread ends. It never returns from the call that it is in.
    Ends {
        pid: u32,
        tid: u32,
        entry: Option<Entry>,
    },
    /// Nothing, or what does not belong to the traced program.
    Nothing,
}

/// The calls in which each thread is.
#[derive(Debug)]
pub struct Pairs {
    /// Of entries and of returns, among the sources.
    places: [usize; 2],
    number: Field,
    args: Field,
    returned: Field,
    result: Field,
    inside: HashMap<u32, Entry>,
    /// The process that becomes the traced command. What it does before is not the command's.
    waits: Option<u32>,
}

/// The thread number, for perf, of all threads that are outside of this PID namespace (`perf_event_pid_type`,
/// kernel/events/core.c).
pub const NOWHERE: u32 = 0;

/// The number of a return from no call.
const NO_CALL: i64 = -1;

/// The most bytes of a filter, and its end (`perf_event_set_filter`, kernel/events/core.c: a page).
const FILTER: usize = 4000;

/// The first sources of the rings: entries, returns, and records of threads. `numbers` are the calls, or all if there
/// are none.
pub fn sources(options: RingOptions, numbers: &[i64], has_command: bool) -> RingOptions {
    let calls = if numbers.is_empty() { Which::All } else { Which::Only(numbers.iter().copied().collect()) };
    sources_of(options, &calls, has_command, &[], |options| options)
}

/// The same with the calls of these names, whatever is asked for. `each`: what entries and returns have besides.
pub fn sources_of(
    options: RingOptions,
    calls: &Which<i64>,
    has_command: bool,
    besides: &[&str],
    each: impl Fn(RingOptions) -> RingOptions,
) -> RingOptions {
    // execve shows where a command begins.
    let exec = has_command.then_some("execve");
    let besides = besides.iter().copied().chain(exec).filter_map(calls::number).collect();
    let filter = filter(calls, &besides).filter(|filter| filter.len() < FILTER);
    let with = |options: RingOptions| each(filter.iter().fold(options, |options, filter| options.filter(filter)));
    let options = with(options.tracepoint("raw_syscalls:sys_enter"));
    let options = with(options.tracepoint("raw_syscalls:sys_exit"));
    options
        .records([bindings::PERF_RECORD_COMM, bindings::PERF_RECORD_FORK, bindings::PERF_RECORD_EXIT])
        .sample(bindings::PERF_SAMPLE_TID)
}

/// What the kernel keeps: these calls, or all but the others, whichever is shorter. Who reads it leaves out what else
/// comes.
fn filter(calls: &Which<i64>, besides: &BTreeSet<i64>) -> Option<String> {
    let Which::Only(some) = calls else { return None };
    let mut all = some.union(besides).copied().collect::<BTreeSet<_>>();
    if all.iter().any(|number| is_exec(*number)) {
        all.extend(["execve", "execveat"].into_iter().filter_map(calls::number));
    }
    let no_call = all.iter().any(|number| is_sigreturn(*number)).then_some(NO_CALL);
    let others: Vec<_> = calls::all().filter(|number| !all.contains(number)).collect();
    let joined = |each: Vec<String>, by| each.join(by);
    Some(if all.len() > others.len() {
        joined(others.iter().map(|number| format!("id != {number}")).collect(), " && ")
    } else {
        joined(all.into_iter().chain(no_call).map(|number| format!("id == {number}")).collect(), " || ")
    })
    .filter(|filter| !filter.is_empty())
}

impl Pairs {
    /// `waits` is the process that becomes the command.
    pub fn new(rings: &Rings, waits: Option<u32>) -> Result<Self, Failure> {
        Self::at(rings, [0, 1], waits)
    }

    /// Of a recording.
    pub fn recorded(recorded: &Recorded) -> Result<Self, Failure> {
        let place = |name| {
            let hint = "record them, too: perfweave record -a -e 'raw_syscalls:*'";
            let without = |failure: Failure| Failure::hinting(failure.message(), hint);
            recorded.place(name).map_err(without)
        };
        Self::at(recorded.rings(), [place("raw_syscalls:sys_enter")?, place("raw_syscalls:sys_exit")?], None)
    }

    fn at(rings: &Rings, places: [usize; 2], waits: Option<u32>) -> Result<Self, Failure> {
        let (enter, exit) = (Format::of(rings, places[0])?, Format::of(rings, places[1])?);
        Ok(Self {
            places,
            number: enter.field("id")?,
            args: enter.field("args")?,
            returned: exit.field("id")?,
            result: exit.field("ret")?,
            inside: HashMap::new(),
            waits,
        })
    }

    /// Records are lost: it is not known who is in which call.
    pub fn forget(&mut self) {
        self.inside.clear();
        // Its execve may be among them.
        self.waits = None;
    }

    /// Whether this thread is in a call.
    pub fn is_inside(&self, tid: u32) -> bool {
        self.inside.contains_key(&tid)
    }

    /// The thread of a process that is about to execute a program.
    pub fn executing(&self, pid: u32) -> Option<u32> {
        self.inside.values().find(|entry| entry.pid == pid && is_exec(entry.number)).map(|entry| entry.tid)
    }

    /// Whether nothing of this thread is the traced command's yet.
    pub fn waits(&self, tid: u32) -> bool {
        self.waits == Some(tid)
    }

    /// The calls that have not returned, the oldest first.
    pub fn left(&mut self) -> Vec<Entry> {
        let mut left: Vec<_> = self.inside.drain().map(|(_, entry)| entry).collect();
        left.sort_by_key(|entry| (entry.time, entry.tid));
        left.retain(|entry| self.waits != Some(entry.tid));
        left
    }

    pub fn take(&mut self, record: &Record<'_>) -> Step {
        if record.kind() == bindings::PERF_RECORD_EXIT {
            let body = record.body();
            let (Some(pid), Some(tid)) = (body.u32(0), body.u32(8)) else { return Step::Nothing };
            return Step::Ends { pid, tid, entry: self.inside.remove(&tid) };
        }
        let (Some((pid, tid)), Some(time)) = (record.pid_tid(), record.time()) else { return Step::Nothing };
        match record.source() {
            Some(place) if place == self.places[0] => self.enters(record, pid, tid, time),
            Some(place) if place == self.places[1] => self.returns(record, pid, tid, time),
            _ => Step::Nothing,
        }
    }

    fn enters(&mut self, record: &Record<'_>, pid: u32, tid: u32, time: u64) -> Step {
        let (Some(number), Some(values)) = (self.number.int(record), self.args.ints(record)) else {
            return Step::Nothing;
        };
        let mut args = [0; 6];
        args.iter_mut().zip(values).for_each(|(arg, value)| *arg = value as u64);
        let entry = Entry { pid, tid, cpu: record.cpu(), time, number, args };
        // One that comes late is over.
        if tid != NOWHERE && self.inside.get(&tid).is_none_or(|newer| newer.time <= time) {
            self.inside.insert(tid, entry.clone());
        }
        if self.waits == Some(tid) { Step::Nothing } else { Step::Enters(entry) }
    }

    fn returns(&mut self, record: &Record<'_>, pid: u32, tid: u32, time: u64) -> Step {
        let (Some(number), Some(result)) = (self.returned.int(record), self.result.int(record)) else {
            return Step::Nothing;
        };
        // The kernel returns from rt_sigreturn as from no call: with the registers of what the signal interrupted.
        // And from execveat as from execve.
        let is_this = |entry: &Entry| {
            entry.number == number
                || number == NO_CALL && is_sigreturn(entry.number)
                || is_exec(number) && is_exec(entry.number)
        };
        // Where the order is not proven, the entry of the next call may have come before. It waits for its own return.
        let is_next = self.inside.get(&tid).is_some_and(|entry| entry.time > time);
        let mut entry = if is_next { None } else { self.inside.remove(&tid).filter(is_this) };
        let mut number = entry.as_ref().map_or(number, |entry| entry.number);
        let executes = result == 0 && is_exec(number);
        if entry.is_none() && executes {
            // The thread that executes takes the number of the first thread of its process.
            let by =
                self.inside.values().find(|entry| entry.pid == pid && is_exec(entry.number)).map(|entry| entry.tid);
            entry = by.and_then(|tid| self.inside.remove(&tid));
        }
        if let Some(entry) = &entry {
            number = entry.number;
        }
        if self.waits == Some(tid) {
            if !executes {
                return Step::Nothing;
            }
            self.waits = None;
        }
        // A new thread returns from a call that its parent entered.
        if entry.is_none() && (number == NO_CALL || result == 0 && is_fork(number)) {
            return Step::Nothing;
        }
        Step::Returns { pid, tid, number, result, entry }
    }
}
