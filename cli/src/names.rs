//! Names of threads: from the kernel's records, and from /proc for threads that were there before.

use crate::numbers::OUTSIDE;
use perf_event_open_sys::bindings;
use perfweave::Record;
use std::collections::HashMap;
use std::fs;

/// The name of each thread, by its number.
#[derive(Debug, Default)]
pub struct Names(HashMap<u32, String>);

/// The records that carry names.
pub const NAMING: [u32; 2] = [bindings::PERF_RECORD_COMM, bindings::PERF_RECORD_FORK];

impl Names {
    /// The names of the threads that there are now. Made when the rings are open: a later change of a name is a record.
    pub fn now() -> Self {
        let numbers = |path: &str| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).collect::<Vec<_>>()
        };
        let mut names = Self::default();
        for tid in numbers("/proc").into_iter().flat_map(|pid| numbers(&format!("/proc/{pid}/task"))) {
            names.of(tid);
        }
        names
    }

    /// Takes a name from a record of [`NAMING`]. True if the record is one of these, or a thread's end.
    pub fn take(&mut self, record: &Record<'_>) -> bool {
        let body = record.body();
        match record.kind() {
            // struct { u32 pid, tid; char comm[]; }
            bindings::PERF_RECORD_COMM => {
                let name =
                    (8..body.len()).map_while(|at| body.u8(at)).take_while(|byte| *byte != 0).collect::<Vec<_>>();
                // In a PID namespace threads from outside are 0.
                let tid = body.u32(4).filter(|tid| *tid != 0);
                tid.map(|tid| self.0.insert(tid, String::from_utf8_lossy(&name).into_owned()));
            }
            // struct { u32 pid, ppid, tid, ptid; u64 time; }: the new thread has its parent's name.
            bindings::PERF_RECORD_FORK => {
                if let (Some(tid @ 1..), Some(parent)) = (body.u32(8), body.u32(12)) {
                    let name = self.of(parent).to_owned();
                    self.0.insert(tid, name);
                }
            }
            bindings::PERF_RECORD_EXIT => {}
            _ => return false,
        }
        true
    }

    /// Sets a name that an event has.
    pub fn set(&mut self, tid: u32, name: &str) {
        match self.0.get_mut(&tid) {
            Some(known) if known == name => {}
            Some(known) => name.clone_into(known),
            None => drop(self.0.insert(tid, name.to_owned())),
        }
    }

    /// Name and number. A thread from outside of this PID namespace has no number here.
    pub fn with_number(&mut self, tid: u32) -> String {
        let number = if tid & OUTSIDE == 0 { tid.to_string() } else { "-".into() };
        format!("{}/{number}", self.of(tid))
    }

    /// The name, `?` if nothing tells it.
    pub fn of(&mut self, tid: u32) -> &str {
        self.0.entry(tid).or_insert_with(|| comm(tid).unwrap_or_else(|| "?".into()))
    }
}

/// The name of a thread that there is now: any bytes.
pub fn comm(tid: u32) -> Option<String> {
    let comm = fs::read(format!("/proc/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned())
}
