//! The threads of a process and of its children: which of a machine's events are theirs.

use crate::failure::Failure;
use crate::numbers::ENDED;
use perf_event_open_sys::bindings;
use perfweave::Record;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// The number of the kernel's own thread that starts the others.
const KTHREADD: u32 = 2;

/// Threads by their numbers.
#[derive(Debug)]
pub enum Family {
    /// All there are.
    All,
    Thread(u32),
    /// Those that these threads start as well.
    Tree(HashSet<u32>),
    /// All but those.
    But(HashSet<u32>),
    /// The same of a process in a recording, which may tell its beginning.
    Recorded(u32, HashSet<u32>),
}

impl Family {
    /// One thread.
    pub fn thread(tid: u32) -> Result<Self, Failure> {
        if !Path::new(&format!("/proc/{tid}")).exists() {
            return Err(Failure::hinting(format_args!("there is no thread {tid}"), "ps -eL lists those there are"));
        }
        Ok(Self::Thread(tid))
    }

    /// The threads that a process and its children have now. New ones come with their records.
    pub fn of(pid: u32) -> Result<Self, Failure> {
        let mut threads = HashSet::new();
        let mut processes = vec![pid];
        while let Some(pid) = processes.pop() {
            let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for tid in tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok()) {
                threads.insert(tid);
                // Only with CONFIG_PROC_CHILDREN.
                let children = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
                processes.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
        }
        if threads.is_empty() {
            return Err(Failure::hinting(format_args!("there is no process {pid}"), "ps -e lists those there are"));
        }
        Ok(Self::Tree(threads))
    }

    /// All but threads of the kernel, which wait as long as there is nothing to do. All are children of one.
    pub fn programs() -> Self {
        // In a PID namespace it is another one.
        let is_there = fs::read_to_string(format!("/proc/{KTHREADD}/comm")).is_ok_and(|name| name == "kthreadd\n");
        match Self::of(KTHREADD) {
            Ok(Self::Tree(threads)) if is_there => Self::But(threads),
            _ => Self::All,
        }
    }

    /// The same of a recording, which names that one before its children.
    pub fn recorded_programs() -> Self {
        Self::But(HashSet::new())
    }

    /// The same of several processes, each of which there must be.
    pub fn of_all(pids: &[u32]) -> Result<Self, Failure> {
        let mut all = HashSet::new();
        for pid in pids {
            if let Self::Tree(threads) = Self::of(*pid)? {
                all.extend(threads);
            }
        }
        Ok(Self::Tree(all))
    }

    /// A process of a recording. Its threads are told by their process, its children by their records.
    pub fn recorded(pid: u32) -> Self {
        Self::Recorded(pid, HashSet::from([pid]))
    }

    /// The processes of these threads.
    pub fn processes(&self) -> Vec<u32> {
        match self {
            Self::Tree(threads) => {
                let status = |tid: &u32| fs::read_to_string(format!("/proc/{tid}/status")).ok();
                let of = |tid| status(tid)?.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
                threads.iter().filter_map(of).collect::<HashSet<_>>().into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Takes new threads from their records.
    pub fn take(&mut self, record: &Record<'_>) {
        let is_without = matches!(self, Self::But(_));
        let (of, threads) = match self {
            Self::Tree(threads) | Self::But(threads) => (None, threads),
            Self::Recorded(pid, threads) => (Some(*pid), threads),
            Self::All | Self::Thread(_) => return,
        };
        if of.is_some()
            && let Some((pid, tid)) = numbers(record)
            && tid != ENDED
            && threads.contains(&pid)
        {
            threads.insert(tid);
        }
        if is_without && is_kthreadd(record) {
            threads.insert(KTHREADD);
        }
        if record.kind() != bindings::PERF_RECORD_FORK {
            return;
        }
        // struct { u32 pid, ppid, tid, ptid; u64 time; }
        let body = record.body();
        if let (Some(tid), Some(parent)) = (body.u32(8), body.u32(12)) {
            if threads.contains(&parent) {
                threads.insert(tid);
            } else if of != Some(tid) {
                // The number of one that has ended may come back.
                threads.remove(&tid);
            }
        }
    }

    /// Whether it has a process with all its threads.
    pub fn has_process(&self, pid: u32) -> bool {
        matches!(self, Self::Recorded(_, threads) if threads.contains(&pid))
    }

    /// Whether a record's thread is of it. One that has ended may have no number any more, but that of its process.
    pub fn has_of(&self, pid: u32, tid: u32) -> bool {
        let is_by_thread = matches!(self, Self::Thread(_));
        self.has(if tid == ENDED && !is_by_thread { pid } else { tid })
    }

    pub fn has(&self, tid: u32) -> bool {
        match self {
            Self::All => true,
            Self::Thread(one) => *one == tid,
            Self::But(threads) => !threads.contains(&tid),
            Self::Tree(threads) | Self::Recorded(_, threads) => threads.contains(&tid),
        }
    }
}

/// The process and the thread that a record is of: the one that wrote it, or the one that it names.
fn numbers(record: &Record<'_>) -> Option<(u32, u32)> {
    match record.kind() {
        // struct { u32 pid, tid; char comm[]; }
        bindings::PERF_RECORD_COMM => record.body().u32(0).zip(record.body().u32(4)),
        bindings::PERF_RECORD_SAMPLE => record.pid_tid(),
        _ => None,
    }
}

fn is_kthreadd(record: &Record<'_>) -> bool {
    let body = record.body();
    let is_its = record.kind() == bindings::PERF_RECORD_COMM && body.u32(4) == Some(KTHREADD);
    is_its && (8..).map_while(|at| body.u8(at)).take_while(|byte| *byte != 0).eq(*b"kthreadd")
}

#[cfg(test)]
mod tests {
    use super::{ENDED, Family};
    use perf_event_open_sys::bindings;
    use perfweave::{Hold, Merge, Order, sim};

    /// A recording begins with the names of the threads that were there before. At its last switch a thread may have
    /// no number: that of its process may be left.
    #[test]
    fn threads_of_a_recorded_process_are_told_by_their_names() {
        let kernel = sim::Kernel::new(&[0]);
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
        for (time, pid, tid) in [(1, 7_u32, 7_u32), (2, 7, 9), (3, 8, 10), (4, 7, ENDED)] {
            kernel.begin(0, time);
            let name = [pid.to_ne_bytes(), tid.to_ne_bytes(), *b"name", [0; 4]].concat();
            kernel.write_other(0, bindings::PERF_RECORD_COMM, 0, &name);
            kernel.end(0);
        }
        merge.refresh(0);
        let mut family = Family::recorded(7);
        merge.batch().for_each(|event| event.record().iter().for_each(|record| family.take(record)));
        assert_eq!([7, 8, 9, 10, ENDED].map(|tid| family.has(tid)), [true, false, true, false, false]);
        assert_eq!([7, 8, ENDED].map(|pid| family.has_of(pid, ENDED)), [true, false, false]);
        assert!(!Family::Thread(7).has_of(7, ENDED));
    }

    /// Records of before, as they are in a recording: who the thread with number 2 is says its name.
    fn without_threads_of_the_kernel(second: &[u8; 16]) -> [bool; 3] {
        let kernel = sim::Kernel::new(&[0]);
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
        let fork = [[7_u32, 2, 7, 2], [8, 1, 8, 1]].map(|ids| ids.map(u32::to_ne_bytes).concat());
        let comm = [2_u32, 2].map(u32::to_ne_bytes).concat();
        let [fork, other] = fork.map(|ids| (bindings::PERF_RECORD_FORK, [ids, vec![0; 8]].concat()));
        let records = [(bindings::PERF_RECORD_COMM, [&comm, &second[..]].concat()), fork, other];
        for (time, (kind, body)) in (1..).zip(records) {
            kernel.begin(0, time);
            kernel.write_other(0, kind, 0, &body);
            kernel.end(0);
        }
        merge.refresh(0);
        let mut family = Family::recorded_programs();
        merge.batch().for_each(|event| event.record().iter().for_each(|record| family.take(record)));
        [2, 7, 8].map(|tid| family.has(tid))
    }

    #[test]
    fn threads_of_the_kernel_are_told_apart_in_a_recording() {
        assert_eq!(without_threads_of_the_kernel(b"kthreadd\0\0\0\0\0\0\0\0"), [false, false, true]);
        assert_eq!(without_threads_of_the_kernel(b"kthreaddx\0\0\0\0\0\0\0"), [true; 3]);
    }
}
