//! What hangs, for people and as JSON.

use super::Hang;
use super::causes::{Ender, How, LastWaker, Wait, What};
use super::threads::Place;
use crate::out::{Out, line};
use crate::times::short;
use crate::trace::calls::{Calls, Values};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, Write};

/// How far a chain of those who wait for others is followed.
const DEPTH: usize = 8;

impl Hang {
    /// Prints at most so many waits, and who is in a deadlock in any case.
    pub fn print(&self, most: usize, json: bool, calls: &mut Calls, out: &mut Out) -> io::Result<()> {
        let in_cycle: BTreeSet<u32> = self.cycles.iter().flatten().copied().collect();
        let (idle, busy): (Vec<u32>, Vec<u32>) =
            self.meant.iter().partition(|tid| self.waits.get(tid).is_some_and(Wait::is_idle));
        // Threads with nothing to do, unless there is nothing else.
        let (hidden, meant) = if busy.is_empty() || json { (0, &self.meant) } else { (idle.len(), &busy) };
        let is_shown = |(at, tid): &(usize, &u32)| *at < most || in_cycle.contains(tid);
        let shown: Vec<u32> = meant.iter().enumerate().filter(is_shown).map(|(_, tid)| *tid).collect();
        if json {
            return shown.iter().filter_map(|tid| self.object(*tid, calls)).try_for_each(|one| writeln!(out, "{one}"));
        }
        for cycle in &self.cycles {
            let first = cycle.first().map(|tid| self.label(*tid)).unwrap_or_default();
            let each: Vec<_> = cycle.iter().map(|tid| self.label(*tid)).collect();
            line(out, format_args!("deadlock: {} waits for {first}", each.join(" waits for ")))?;
        }
        if !shown.is_empty() {
            writeln!(out, "waits that go on:")?;
        }
        let mut told = BTreeSet::new();
        for tid in &shown {
            self.wait(*tid, 1, &mut told, calls, out)?;
        }
        match hidden {
            0 => {}
            1 => writeln!(out, "  another waits for a time, descriptors or a signal")?,
            more => writeln!(out, "  {more} others wait for a time, descriptors or a signal")?,
        }
        match meant.len() - shown.len() {
            0 => {}
            1 => writeln!(out, "  another thread waits (-n)")?,
            more => writeln!(out, "  {more} other threads wait (-n)")?,
        }
        if !shown.is_empty() { writeln!(out) } else { Ok(()) }
    }

    /// One wait, and those of who could end it.
    fn wait(
        &self,
        tid: u32,
        depth: usize,
        told: &mut BTreeSet<u32>,
        calls: &mut Calls,
        out: &mut Out,
    ) -> io::Result<()> {
        let Some(wait) = self.waits.get(&tid).filter(|_| told.insert(tid)) else { return Ok(()) };
        let lasted = wait.since.map(|time| short(time.as_nanos().try_into().unwrap_or(u64::MAX)));
        let since = match (lasted, wait.at_least) {
            (Some(time), true) => format!(" for {time} at least"),
            (Some(time), false) => format!(" for {time}"),
            (None, _) => String::new(),
        };
        let (label, place) = (wait.thread.label(), place(wait, calls));
        line(out, format_args!("{:width$}{label} waits{since}{place}: {}", "", words(wait), width = 2 * depth))?;
        if depth < DEPTH {
            for ender in wait.enders() {
                self.wait(ender.tid.unwrap_or(ender.pid), depth + 1, told, calls, out)?;
            }
        }
        Ok(())
    }

    fn label(&self, tid: u32) -> String {
        self.waits.get(&tid).map_or_else(|| format!("?/{tid}"), |wait| wait.thread.label())
    }

    /// All waits, as `--json` has them: those of deadlocks and of who was asked for first.
    pub fn objects(&self, calls: &mut Calls) -> Vec<Value> {
        let mut order: Vec<u32> = self.cycles.iter().flatten().chain(&self.meant).copied().collect();
        order.extend(self.waits.keys());
        let mut told = BTreeSet::new();
        order.into_iter().filter(|tid| told.insert(*tid)).filter_map(|tid| self.object(tid, calls)).collect()
    }

    fn object(&self, tid: u32, calls: &mut Calls) -> Option<Value> {
        let wait = self.waits.get(&tid)?;
        let thread = &wait.thread;
        let call = if let Some(Place::Call(number, _)) = thread.place { calls.of(number).name.as_str() } else { "" };
        let whom: Vec<Value> = wait.for_whom.iter().map(object).collect();
        let is_in_cycle = self.cycles.iter().flatten().any(|of| *of == tid);
        let mut all = json!({
            "hangs": thread.name, "tid": thread.tid, "pid": thread.pid, "on": kind(&wait.what),
            "for": whom, "deadlock": is_in_cycle, "text": words(wait),
        });
        let mut set = |name: &str, value: Value| drop(all.as_object_mut().map(|all| all.insert(name.into(), value)));
        if let Some(time) = wait.since {
            set("ns", u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into());
            set("at_least", wait.at_least.into());
        }
        if !call.is_empty() {
            set("call", call.into());
        }
        if let Some(runtime) = wait.runtime {
            set("ask", runtime.ask(thread.pid).into());
        }
        if let Some(last) = &wait.last {
            let (by, woken) = (object(&last.by), object(&last.woken));
            let ns = u64::try_from(last.ago.as_nanos()).unwrap_or(u64::MAX);
            let value = json!({ "by": by, "woken": woken, "ns": ns, "ended": last.has_ended, "known": "recorded" });
            set("last_waker", value);
        }
        if let What::Lock { how, .. } = wait.what {
            set("known", if how == How::Seen { "seen" } else { "likely" }.into());
        }
        Some(all)
    }
}

fn object(ender: &Ender) -> Value {
    json!({ "thread": ender.name, "tid": ender.tid.unwrap_or(ender.pid), "pid": ender.pid })
}

/// The system call, or the kernel's function.
fn place(wait: &Wait, calls: &mut Calls) -> String {
    match wait.thread.place {
        Some(Place::Call(number, args)) => {
            let call = calls.of(number);
            format!(" in {}({})", call.name, call.named_args(Values::bare(&args), None))
        }
        _ if wait.thread.wchan.is_empty() => String::new(),
        _ => format!(" in the kernel's {}", wait.thread.wchan),
    }
}

/// What it waits for, in one word.
fn kind(what: &What) -> &'static str {
    match what {
        What::Lock { .. } => "lock",
        What::Join => "join",
        What::Word { .. } => "word",
        What::FileLock { .. } => "file lock",
        What::Read { .. } => "read",
        What::Write { .. } => "write",
        What::Child => "child",
        What::Vfork => "vfork",
        What::Stopped => "stopped",
        What::Traced => "traced",
        What::Served => "file system",
        What::Device => "device",
        What::Time => "time",
        What::Any => "any",
        What::Signal => "signal",
        What::Unknown => "unknown",
    }
}

/// What would end it.
fn words(wait: &Wait) -> String {
    let words = of_whom(wait);
    let words = if wait.is_timed { words + ", or a time ends it" } else { words };
    let words = match &wait.last {
        Some(LastWaker { by, has_ended, woken, ago }) => {
            let ended = if *has_ended { ", which has ended," } else { "" };
            let ago = short(ago.as_nanos().try_into().unwrap_or(u64::MAX));
            let (by, woken) = (by.label(), woken.label());
            format!("{words}; {by}{ended} was the last seen to wake a thread of this process there: {woken}, {ago} ago")
        }
        None => words,
    };
    match wait.runtime {
        Some(runtime) => format!("{words}; what {} knows of it: {}", runtime.name(), runtime.ask(wait.thread.pid)),
        None => words,
    }
}

fn of_whom(wait: &Wait) -> String {
    let whom: Vec<String> = wait.for_whom.iter().map(Ender::label).collect();
    let any = match &whom[..] {
        [] => None,
        [one] => Some(one.clone()),
        [all @ .., last] => Some(format!("{} or {last}", all.join(", "))),
    };
    let likely = |how: &How| if *how == How::Likely { ", as its memory looks" } else { "" };
    let pid = wait.thread.pid;
    match (&wait.what, any) {
        (What::Lock { address, how, .. }, Some(any)) => format!("{any} holds the lock at {address:#x}{}", likely(how)),
        (What::Lock { address, ended: Some(owner), how }, None) => {
            format!("thread {owner}, which has ended, held the lock at {address:#x}{}", likely(how))
        }
        (What::Lock { address, .. } | What::Word { address }, None) => {
            format!(
                "nobody's number is in the memory at {address:#x}: a condition, a semaphore, or a lock without an owner"
            )
        }
        (What::Join, Some(any)) => format!("for {any} to end"),
        (What::FileLock { file }, Some(any)) => format!("{any} has locked {file}"),
        (What::FileLock { file }, None) => format!("somebody has locked {file}"),
        (What::Read { file, .. }, Some(any)) => format!("for {any} to write into {file}"),
        (What::Read { file, is_own: true }, None) => format!("only its own process has {file} open to write into it"),
        (What::Read { file, .. }, None) if file.starts_with("pipe:[") => {
            format!("no other process has {file} open to write into it")
        }
        (What::Read { file, .. }, None) => format!("for something to read from {file}"),
        (What::Write { file, is_own: true }, None) => {
            format!("{file} is full, and only its own process has it open to read")
        }
        (What::Write { file, .. }, Some(any)) => format!("for {any} to read from {file}, which is full"),
        (What::Write { file, .. }, None) if file.starts_with("pipe:[") => {
            format!("{file} is full, and no other process has it open to read from it")
        }
        (What::Write { file, .. }, None) => format!("for room in {file}"),
        (What::Child, Some(any)) => format!("for its child {any} to end"),
        (What::Vfork, Some(any)) => format!("for {any}, its child of vfork, to end or to execute a program"),
        (What::Stopped, _) => format!("a signal has stopped it: kill -CONT {pid}"),
        (What::Traced, Some(any)) => format!("{any}, which traces it, has stopped it"),
        (What::Served, Some(any)) => format!("for an answer of a file system's server, likely {any}"),
        (What::Served, None) => "for an answer of a file system's server".into(),
        (What::Device, _) => format!("for a device or a file system, in the kernel's {}", wait.thread.wchan),
        (What::Time, _) => "for a time that it chose itself".into(),
        (What::Any, _) => "for any of its descriptors, or a time".into(),
        (What::Signal, _) => "for a signal".into(),
        (_, Some(any)) => format!("for {any}"),
        (_, None) => "nothing says what would end it".into(),
    }
}
