//! What is behind the descriptors that system calls have.
//!
//! The stream tells a number. `/proc/PID/fd` has the file, but only as of now, and the stream is behind that. So a name
//! counts only for calls that were entered while nothing changed the descriptor: neither before the look, nor between
//! the place of the stream and the look, which the stream tells later. Changes are the system calls that close or
//! replace descriptors, `execve`, and the end of a process. After a loss nothing is known of what was before. Not seen:
//! `io_uring` that closes, `SECCOMP_ADDFD_FLAG_SETFD`, and processes that share descriptors without being one
//! (`CLONE_FILES` without `CLONE_THREAD`). Programs of 32 bits have other numbers of calls, so theirs have no names.

use crate::trace::calls::is_exec;
use perf_event_open_sys::bindings;
use perfweave::{Clock, Event, Item, Record, Rings};
use perfweave_events::{Field, Format};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Read;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Changes that are kept. If there are more, nothing is known of the time before.
const CHANGES: usize = 1 << 16;
/// Names that are kept.
const NAMES: usize = 1 << 14;
/// Looks in so many nanoseconds of the stream.
const LOOKS: usize = 256;
const LOOKS_IN: u64 = 100_000_000;

/// Names of descriptors, and when they were changed.
#[derive(Debug)]
pub struct Descriptors {
    clock: Clock,
    /// The tracepoints of system calls, as numbers of sources: those that are entered with their number and arguments.
    enters: (usize, [Field; 2]),
    returns: (usize, Field),
    processes: HashMap<u32, Process>,
    /// Threads in a call that changes descriptors: it does so between its two records.
    changing: HashMap<u32, (u32, RangeInclusive<i32>)>,
    /// How many changes and names are kept.
    changes: usize,
    names: usize,
    /// Nothing is known of what was before.
    floor: u64,
    /// CPUs that lost records and have told nothing since.
    silent: BTreeSet<u32>,
    /// Of the newest event.
    newest: u64,
    looks: usize,
    /// Since when they are counted.
    looks_from: u64,
}

#[derive(Debug, Default)]
struct Process {
    /// The last change of all descriptors, and of each.
    all: u64,
    each: HashMap<i32, u64>,
    /// By thread and descriptor: threads may have descriptors of their own.
    named: HashMap<(u32, i32), Vec<Named>>,
}

/// A name, and which calls it is right for: those that were entered in this time.
#[derive(Debug)]
struct Named {
    from: u64,
    to: u64,
    /// When it was read. It counts once the stream is there.
    looked: u64,
    name: Arc<str>,
}

impl Descriptors {
    /// `None`: nothing tells of system calls, the clock of the events cannot be read, or `/proc` is of another PID
    /// namespace.
    pub fn new(rings: &Rings) -> Option<Self> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let mut numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace();
        if numbers.next()?.parse() != Ok(std::process::id()) || numbers.next().is_some() {
            return None;
        }
        let place = |name| rings.sources().iter().position(|source| source.tracepoint() == Some(name));
        let (enters, returns) = (place("raw_syscalls:sys_enter")?, place("raw_syscalls:sys_exit")?);
        let format = Format::of(rings, enters).ok()?;
        let enters = (enters, [format.field("id").ok()?, format.field("args").ok()?]);
        let returns = (returns, Format::of(rings, returns).ok()?.field("id").ok()?);
        Self::of(rings.clock(), enters, returns)
    }

    fn of(clock: Clock, enters: (usize, [Field; 2]), returns: (usize, Field)) -> Option<Self> {
        let floor = clock.now()?;
        let (processes, changing, silent) = (HashMap::new(), HashMap::new(), BTreeSet::new());
        Some(Self {
            clock,
            enters,
            returns,
            processes,
            changing,
            changes: 0,
            names: 0,
            floor,
            silent,
            newest: 0,
            looks: 0,
            looks_from: 0,
        })
    }

    /// Takes an event. `since`: nothing is known of this time on, because of it.
    pub fn take(&mut self, event: &Event<'_>, since: Option<u64>) {
        if let Some(since) = since {
            self.lost(since);
            match event.item() {
                Item::Lost(lost) => drop(self.silent.insert(lost.cpu)),
                Item::Damage(damage) => drop(self.silent.insert(damage.cpu)),
                // Any CPU may have changed them, and may again.
                _ => self.floor = u64::MAX,
            }
        }
        let (Item::Record(record), Some(time)) = (event.item(), event.key()) else { return };
        self.newest = self.newest.max(time);
        if time >= self.looks_from.saturating_add(LOOKS_IN) {
            (self.looks, self.looks_from) = (0, time);
        }
        if !self.silent.is_empty() && self.silent.remove(&record.cpu()) {
            self.floor = self.floor.max(time);
        }
        self.record(&record, time);
    }

    fn record(&mut self, record: &Record<'_>, time: u64) {
        let Some((process, tid)) = record.pid_tid() else { return };
        match (record.kind(), record.source()) {
            (bindings::PERF_RECORD_SAMPLE, Some(source)) if source == self.enters.0 => {
                let [number, args] = &self.enters.1;
                let (Some(number), Some(values)) = (number.int(record), args.ints(record)) else { return };
                let mut args = [0; 2];
                args.iter_mut().zip(values).for_each(|(arg, value)| *arg = value as u64);
                let Some(changed) = changes(number, args) else { return };
                self.changed(process, changed.clone(), time);
                self.changing.insert(tid, (process, changed));
            }
            (bindings::PERF_RECORD_SAMPLE, Some(source)) if source == self.returns.0 => {
                let Some(number) = self.returns.1.int(record).filter(|number| changes(*number, [0; 2]).is_some())
                else {
                    return;
                };
                // Of one whose entry nobody saw it is not known what it changes. Who executes a program has the number
                // of its process now.
                let entered = self.changing.remove(&tid);
                let (process, changed) = entered.unwrap_or((process, 0..=i32::MAX));
                if is_exec(number) {
                    self.changing.retain(|_, (of, _)| *of != process);
                }
                self.changed(process, changed, time);
            }
            // struct { u32 pid, ppid, tid, ptid; u64 time; }: a number may come back.
            (bindings::PERF_RECORD_FORK, _) => {
                let [process, tid] = [0, 8].map(|at| record.body().u32(at));
                if let Some(process) = process.filter(|_| process == tid) {
                    self.changed(process, 0..=i32::MAX, time);
                }
            }
            (bindings::PERF_RECORD_EXIT, _) => drop(self.changing.remove(&tid)),
            _ => {}
        }
    }

    /// These descriptors were changed.
    fn changed(&mut self, process: u32, which: RangeInclusive<i32>, time: u64) {
        let of = self.processes.entry(process).or_default();
        self.names -= of.end(&which, time);
        let last = match which.start() == which.end() {
            true => of.each.entry(*which.start()).or_insert_with(|| {
                self.changes += 1;
                0
            }),
            false => &mut of.all,
        };
        *last = time.max(*last);
        if self.changes > CHANGES || self.processes.len() > CHANGES {
            self.processes.retain(|_, process| !process.named.is_empty());
            self.processes.values_mut().for_each(|process| process.each.clear());
            (self.changes, self.floor) = (0, self.floor.max(time));
        }
    }

    /// Nothing is known of this time on.
    pub fn lost(&mut self, since: u64) {
        self.changing.clear();
        self.names -= self.processes.values_mut().map(|process| process.end(&(0..=i32::MAX), since)).sum::<usize>();
    }

    /// Learns the name of a thread's descriptor, if it is not known, for a call that was entered at this time.
    pub fn look(&mut self, [process, thread]: [u32; 2], descriptor: i32, entered: u64) {
        let is_changing = |(of, which): &(u32, RangeInclusive<i32>)| *of == process && which.contains(&descriptor);
        if self.looks >= LOOKS || !self.silent.is_empty() || self.changing.values().any(is_changing) {
            return;
        }
        let of = self.processes.entry(process).or_default();
        let from = self.floor.max(of.all).max(of.each.get(&descriptor).copied().unwrap_or(0));
        let is_open = |named: &Named| named.to == u64::MAX;
        if entered < from || of.named.get(&(thread, descriptor)).is_some_and(|all| all.last().is_some_and(is_open)) {
            return;
        }
        self.looks += 1;
        let Ok(name) = fs::read_link(format!("/proc/{process}/task/{thread}/fd/{descriptor}")) else { return };
        if !is_of_64_bits(process) {
            return;
        }
        // Behind the look: what changes it from here on changes nothing about the name.
        let Some(looked) = self.clock.now() else { return };
        if self.names >= NAMES {
            self.processes.values_mut().for_each(|process| process.named.clear());
            self.names = 0;
        }
        let name = name.to_string_lossy().into();
        let of = self.processes.entry(process).or_default();
        of.named.entry((thread, descriptor)).or_default().push(Named { from, to: u64::MAX, looked, name });
        self.names += 1;
    }

    /// What is behind the descriptor of a call that was entered at one time, and blocked at another.
    pub fn name(&self, [process, thread]: [u32; 2], descriptor: i32, [entered, blocked]: [u64; 2]) -> Option<Arc<str>> {
        let all = self.processes.get(&process)?.named.get(&(thread, descriptor))?;
        // The call may look the descriptor up at any time in between.
        let is_right = |named: &&Named| named.from <= entered && blocked <= named.to && named.looked <= self.newest;
        all.iter().find(is_right).map(|named| Arc::clone(&named.name))
    }
}

impl Process {
    /// Names end that were read before. Those that were read later may be of what came then. Gives how many these are.
    fn end(&mut self, which: &RangeInclusive<i32>, time: u64) -> usize {
        let mut dropped = 0;
        let named = self.named.iter_mut().filter(|((_, descriptor), _)| which.contains(descriptor));
        for (_, named) in named {
            let before = named.len();
            named.retain(|named| named.looked < time);
            dropped += before - named.len();
            named.iter_mut().for_each(|named| named.to = named.to.min(time));
        }
        self.named.retain(|_, named| !named.is_empty());
        dropped
    }
}

/// Whether the program that a process runs has 64 bits: ELF's `EI_CLASS`.
pub fn is_of_64_bits(process: u32) -> bool {
    let mut class = [0; 5];
    let read = fs::File::open(format!("/proc/{process}/exe")).and_then(|mut file| file.read_exact(&mut class));
    read.is_ok() && class[4] == 2
}

/// Which descriptors a system call changes, or closes.
fn changes(number: i64, args: [u64; 2]) -> Option<RangeInclusive<i32>> {
    use nix::libc;
    let [first, second] = args.map(|arg| arg as i32);
    match number {
        libc::SYS_close => Some(first..=first),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => Some(second..=second),
        libc::SYS_dup3 => Some(second..=second),
        // To the last one, as a rule: that is more than a descriptor may be.
        libc::SYS_close_range => Some(first..=if second < 0 { i32::MAX } else { second }),
        libc::SYS_execve | libc::SYS_execveat | libc::SYS_exit_group | libc::SYS_unshare => Some(0..=i32::MAX),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// The names of one open file of this process, which was called with at 10 and is asked for at once. `then`: what
    /// the stream tells later.
    fn names(then: impl Fn(&mut Descriptors, i32, u64)) -> [bool; 3] {
        let mut descriptors = Descriptors { floor: 5, ..nobody() };
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let (process, descriptor) = (std::process::id(), file.as_raw_fd());
        descriptors.look([process, thread()], descriptor, 10);
        let looked = descriptors.clock.now().unwrap();
        descriptors.newest = looked;
        then(&mut descriptors, descriptor, looked);
        [4, 10, looked + 20].map(|entered| {
            let name = descriptors.name([process, thread()], descriptor, [entered; 2]);
            assert!(name.as_ref().is_none_or(|name| name.ends_with("/stat")), "{name:?}");
            name.is_some()
        })
    }

    #[test]
    fn a_name_counts_while_nothing_changes_the_descriptor() {
        let process = std::process::id();
        assert_eq!(names(|_, _, _| {}), [false, true, true]);
        // The stream is not there yet.
        assert_eq!(names(|all, _, _| all.newest = 10), [false; 3]);
        // Before the look, behind it, and of another.
        assert_eq!(names(|all, one, _| all.changed(process, one..=one, 15)), [false; 3]);
        assert_eq!(names(|all, one, looked| all.changed(process, one..=one, looked + 15)), [false, true, false]);
        assert_eq!(names(|all, one, _| all.changed(process, one + 1..=one + 1, 15)), [false, true, true]);
        assert_eq!(names(|all, _, _| all.changed(process, 0..=i32::MAX, 15)), [false; 3]);
        // Records are lost in which it may be.
        assert_eq!(names(|all, _, _| all.lost(15)), [false; 3]);
        assert_eq!(names(|all, _, looked| all.lost(looked + 15)), [false, true, false]);
        // It is looked for again.
        let again = |all: &mut Descriptors, one: i32, _| {
            all.changed(process, one..=one, 15);
            all.look([process, thread()], one, 10);
            all.look([process, thread()], one, 18);
            all.newest = u64::MAX;
        };
        assert_eq!(names(again), [false, false, true]);
    }

    #[test]
    fn changes_are_bounded() {
        let mut descriptors = nobody();
        for descriptor in 0..=CHANGES as i32 {
            descriptors.changed(7, descriptor..=descriptor, 10 + descriptor as u64);
        }
        assert!(descriptors.changes <= CHANGES && descriptors.floor > 10);
    }

    /// Nothing is looked at while a call changes it, and where the call's beginning is not known all is new at its end.
    #[test]
    fn a_descriptor_that_is_being_changed_has_no_name() {
        let process = std::process::id();
        let during = |all: &mut Descriptors, one: i32, _| {
            all.changed(process, one..=one, 9);
            all.changing.insert(1, (process, one..=one));
            all.look([process, thread()], one, 10);
            all.newest = u64::MAX;
        };
        assert_eq!(names(during), [false; 3]);
    }

    fn thread() -> u32 {
        nix::unistd::gettid().as_raw().cast_unsigned()
    }

    fn nobody() -> Descriptors {
        let text =
            "name: sys_enter\nID: 1\nformat:\n\tfield:long id;\toffset:8;\tsize:8;\tsigned:1;\n\nprint fmt: \"\"\n";
        let format: Format = text.parse().unwrap();
        let fields = ["id", "id"].map(|name| format.field(name).unwrap());
        let returns = (1, format.field("id").unwrap());
        Descriptors { floor: 0, ..Descriptors::of(Clock::Monotonic, (0, fields), returns).unwrap() }
    }
}
