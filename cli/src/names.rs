//! Names of threads: from the kernel's records, and from /proc for threads that were there before.

use crate::numbers::OUTSIDE;
use perf_event_open_sys::bindings;
use perfweave::Record;
use std::collections::HashMap;
use std::fs;

/// The name of each thread, by its number.
#[derive(Debug, Default)]
pub struct Names {
    texts: HashMap<u32, String>,
    /// The bytes of those that are no UTF-8.
    raw: HashMap<u32, Vec<u8>>,
    /// Whether records alone tell names: the threads that there are now are others.
    is_recorded: bool,
}

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

    /// The names of a recording's threads, which its records tell.
    pub fn recorded() -> Self {
        Self { is_recorded: true, ..Self::default() }
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
                if let Some(tid @ 1..) = body.u32(4) {
                    self.insert(tid, &name);
                }
            }
            // struct { u32 pid, ppid, tid, ptid; u64 time; }: the new thread has its parent's name.
            bindings::PERF_RECORD_FORK => {
                if let (Some(tid @ 1..), Some(parent)) = (body.u32(8), body.u32(12)) {
                    let name = self.of(parent).to_owned();
                    let name = self.raw.get(&parent).cloned().unwrap_or(name.into());
                    self.insert(tid, &name);
                }
            }
            bindings::PERF_RECORD_EXIT => {}
            _ => return false,
        }
        true
    }

    /// The bytes of a name that is no UTF-8.
    pub fn raw(&self, tid: u32) -> Option<&[u8]> {
        self.raw.get(&tid).map(Vec::as_slice)
    }

    fn insert(&mut self, tid: u32, name: &[u8]) {
        match str::from_utf8(name) {
            Ok(_) => drop(self.raw.remove(&tid)),
            Err(_) => drop(self.raw.insert(tid, name.to_vec())),
        }
        self.texts.insert(tid, String::from_utf8_lossy(name).into_owned());
    }

    /// Sets a name that an event has.
    pub fn set(&mut self, tid: u32, name: &str) {
        if self.texts.get(&tid).is_none_or(|known| known != name) {
            self.insert(tid, name.as_bytes());
        }
    }

    /// Name and number. A thread from outside of this PID namespace has no number here.
    pub fn with_number(&mut self, tid: u32) -> String {
        let number = if tid & OUTSIDE == 0 { tid.to_string() } else { "-".into() };
        format!("{}/{number}", self.of(tid))
    }

    /// The name, `?` if nothing tells it.
    pub fn of(&mut self, tid: u32) -> &str {
        if !self.texts.contains_key(&tid) {
            let name = if self.is_recorded { None } else { comm(tid) };
            self.insert(tid, &name.unwrap_or_else(|| b"?".into()));
        }
        &self.texts[&tid]
    }
}

/// The name of a thread that there is now: any bytes.
fn comm(tid: u32) -> Option<Vec<u8>> {
    let comm = fs::read(format!("/proc/{tid}/comm")).ok()?;
    Some(comm.strip_suffix(b"\n").unwrap_or(&comm).to_vec())
}

#[cfg(test)]
mod tests {
    use super::Names;

    /// A thread of a recording may have a number that another one has now.
    #[test]
    fn names_of_a_recording_are_not_those_of_threads_that_run_now() {
        let own = std::process::id();
        assert_eq!(Names::recorded().of(own), "?");
        assert_ne!(Names::default().of(own), "?");
    }
}
