//! How threads end: with which status, or by which signal.

use super::calls::name_of;
use super::named::signal;
use super::pairs::Entry;
use super::signals::Delivered;
use perf_event_open_sys::bindings;
use perfweave::Record;
use serde_json::{Value, json};
use std::collections::HashMap;

/// How a thread ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exited(u8),
    /// By this signal; whether a core was dumped.
    Killed(i32, bool),
    /// Another thread of its process, with this number, executes a program.
    Superseded(u32),
}

impl Ended {
    /// As strace(1) says it.
    pub fn text(how: Option<Self>) -> String {
        match how {
            Some(Self::Exited(status)) => format!("+++ exited with {status} +++"),
            Some(Self::Killed(by, dumped)) => {
                let core = if dumped { "(core dumped) " } else { "" };
                format!("+++ killed by {} {core}+++", signal(by as u64))
            }
            Some(Self::Superseded(by)) => format!("+++ superseded by execve in pid {by} +++"),
            None => "+++ the thread ends +++".into(),
        }
    }

    pub fn json(how: Option<Self>) -> Value {
        match how {
            Some(Self::Exited(status)) => json!({ "thread": "ends", "status": status }),
            Some(Self::Killed(by, dumped)) => {
                json!({ "thread": "ends", "killed_by": signal(by as u64), "core_dumped": dumped })
            }
            Some(Self::Superseded(by)) => json!({ "thread": "ends", "superseded_by": by }),
            None => json!({ "thread": "ends" }),
        }
    }
}

/// What has been said of the ends of processes and threads that are still there.
#[derive(Debug, Default)]
pub struct Ends {
    processes: HashMap<u32, Ended>,
    threads: HashMap<u32, u8>,
}

impl Ends {
    /// Records are lost: who ends then ends as nobody knows.
    pub fn forget(&mut self) {
        self.processes.clear();
        self.threads.clear();
    }

    /// A new process may have the number of one that has ended.
    pub fn take(&mut self, record: &Record<'_>) {
        if record.kind() != bindings::PERF_RECORD_FORK {
            return;
        }
        // struct { u32 pid, ppid, tid, ptid; u64 time; }
        let body = record.body();
        if let (Some(pid), Some(tid)) = (body.u32(0), body.u32(8)) {
            self.threads.remove(&tid);
            if pid == tid {
                self.processes.remove(&pid);
            }
        }
    }

    /// A call is entered, which may be the last.
    pub fn enters(&mut self, entry: &Entry) {
        let status = entry.args[0] as u8;
        match name_of(entry.number) {
            Some("exit_group") => drop(self.processes.insert(entry.pid, Ended::Exited(status))),
            Some("exit") => drop(self.threads.insert(entry.tid, status)),
            _ => {}
        }
    }

    /// A signal comes to a thread. The kernel has SIGKILL for the other threads of a process that ends.
    pub fn delivered(&mut self, pid: u32, signal: &Delivered) {
        let killed = Ended::Killed(signal.signal, false);
        match signal.kills() {
            true if signal.is_kill() => drop(self.processes.entry(pid).or_insert(killed)),
            true => drop(self.processes.insert(pid, killed)),
            false => {}
        }
    }

    /// A process has executed a program: only its other threads were killed.
    pub fn executed(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// A thread ends. `executing`: the thread of its process that is about to execute a program. `status`: as wait(2)
    /// has it, if a BPF program has told it.
    pub fn ends(&mut self, pid: u32, tid: u32, executing: Option<u32>, status: Option<i32>) -> Option<Ended> {
        let own = self.threads.remove(&tid).map(Ended::Exited);
        let superseded = executing.filter(|by| *by != tid).map(Ended::Superseded);
        let told = status.map(|status| match status & 0x7f {
            0 => Ended::Exited((status >> 8) as u8),
            by => Ended::Killed(by, status & 0x80 != 0),
        });
        // Of a signal without a handler the kernel makes SIGKILL at once: only the status tells which it was.
        let said = self.processes.get(&pid).copied().filter(|said| !matches!(said, Ended::Killed(9, _)));
        superseded.or(told).or(own).or(said)
    }
}
