//! What hangs: waits that go on, and who would have to end them.
//!
//! A thread that hangs writes no event. So `/proc` is asked, at the begin of a trace and at its end, as `strace -p`,
//! `lslocks` and `lsof` ask it. A thread that has not run in between has waited at least as long: its switches are
//! counted. Each answer is of its own moment. So who has run while it was asked is left out, and a deadlock counts only if
//! all its threads are asked again and none has run meanwhile. `threads.rs` reads threads, `causes.rs` says what a thread waits for, and who could end it; `ends.rs` finds the other
//! ends of pipes and sockets, `graph.rs` cycles, and `print.rs` says all that.

mod causes;
mod ends;
mod graph;
mod print;
mod runtimes;
mod threads;

pub use causes::{Ender, LastWaker};

use causes::{Asked, Wait};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use threads::Thread;

/// Processes beside those that are meant which are followed, because threads wait for them.
const OTHERS: usize = 64;

/// The threads as they were at the begin.
#[derive(Debug)]
pub struct Begin {
    root: Root,
    threads: BTreeMap<u32, Thread>,
    at: Instant,
}

/// Whose threads are meant.
#[derive(Debug, Clone, Copy)]
pub enum Root {
    /// A process and its children.
    Process(u32),
    Thread(u32),
}

/// The waits that go on at the end.
#[derive(Debug)]
pub struct Hang {
    /// By thread: also of those that others wait for.
    waits: BTreeMap<u32, Wait>,
    /// Those that are meant, in their order.
    meant: Vec<u32>,
    /// Threads of which each waits for the next, and the last for the first.
    cycles: Vec<Vec<u32>>,
}

impl Begin {
    /// Reads the threads now.
    pub fn now(root: Root) -> Self {
        Self { root, threads: root.threads().map(|thread| (thread.tid, thread)).collect(), at: Instant::now() }
    }

    /// Reads them again. `known`: how long a thread has waited, of whose begin the trace has a record. `woke`: who woke
    /// a thread last that waited at a process's word of memory.
    pub fn end(&self, known: impl Fn(u32) -> Option<Duration>, woke: impl Fn(u32, u64) -> Option<LastWaker>) -> Hang {
        let mut asked = Asked::default();
        let mut hang = Hang { waits: BTreeMap::new(), meant: Vec::new(), cycles: Vec::new() };
        let now: Vec<_> = self.root.threads().collect();
        let lasted = self.at.elapsed();
        for thread in now.into_iter().filter(Thread::waits) {
            let is_same = self.threads.get(&thread.tid).is_some_and(|before| before.has_not_run_until(&thread));
            let since = if is_same { Some(lasted) } else { known(thread.tid) };
            hang.meant.push(thread.tid);
            let wait = Wait::of(thread, since, is_same, &mut asked).with_waker(&woke);
            hang.waits.insert(wait.thread.tid, wait);
        }
        hang.waits.retain(|_, wait| wait.thread.stays());
        hang.meant.retain(|tid| hang.waits.contains_key(tid));
        hang.follow(&mut asked, woke);
        hang.cycles = graph::cycles(&hang.waits).into_iter().filter(|cycle| hang.is_still(cycle)).collect();
        let in_cycle: BTreeSet<u32> = hang.cycles.iter().flatten().copied().collect();
        let waits = &hang.waits;
        // First who is in a deadlock, then who waits for somebody, then the longest.
        hang.meant.sort_by_key(|tid| {
            let wait = &waits[tid];
            (!in_cycle.contains(tid), !wait.has_cause(), std::cmp::Reverse(wait.since), *tid)
        });
        hang
    }
}

impl Root {
    fn threads(self) -> impl Iterator<Item = Thread> {
        let mut found = Vec::new();
        match self {
            Self::Thread(tid) => found.extend(threads::process_of(tid).and_then(|pid| Thread::read(pid, tid))),
            Self::Process(pid) => {
                let mut processes = VecDeque::from([pid]);
                let mut seen = BTreeSet::new();
                while let Some(pid) = processes.pop_front() {
                    if seen.insert(pid) {
                        processes.extend(threads::children(pid));
                        found.extend(threads::of(pid));
                    }
                }
            }
        }
        found.into_iter()
    }
}

impl Hang {
    /// Whether anybody waits.
    pub fn has_any(&self) -> bool {
        !self.meant.is_empty()
    }

    /// Whether all threads of a cycle wait for the same when they are asked again, while none of them runs.
    fn is_still(&self, cycle: &[u32]) -> bool {
        let read = |tid: &u32| self.waits.get(tid).and_then(|wait| Thread::read(wait.thread.pid, *tid));
        let threads: Vec<_> = cycle.iter().filter_map(read).collect();
        let mut asked = Asked::default();
        let again = threads.iter().map(|thread| Wait::of(thread.clone(), None, false, &mut asked));
        let again: BTreeMap<u32, Wait> = again.map(|wait| (wait.thread.tid, wait)).collect();
        let stays = |tid: &u32| {
            let (Some(before), Some(now)) = (self.waits.get(tid), again.get(tid)) else { return false };
            before.thread.has_not_run_until(&now.thread) && now.thread.stays()
        };
        cycle.iter().all(stays) && graph::cycles(&again) == [cycle]
    }

    /// Reads the threads for which others wait, and so on. Then those that woke somebody where others wait.
    fn follow(&mut self, asked: &mut Asked, woke: impl Fn(u32, u64) -> Option<LastWaker>) {
        let mut next: VecDeque<_> = self.waits.values().flat_map(Wait::ends).collect();
        let mut later: VecDeque<_> = self.waits.values().filter_map(Wait::last_waker).collect();
        let mut seen = BTreeSet::new();
        while let Some((pid, tid)) = next.pop_front().or_else(|| later.pop_front()) {
            if tid.is_some_and(|tid| self.waits.contains_key(&tid)) {
                continue;
            }
            if seen.len() >= OTHERS || !seen.insert((pid, tid)) {
                continue;
            }
            let threads = match tid {
                Some(tid) => Thread::read(pid, tid).into_iter().collect(),
                None => threads::of(pid),
            };
            for thread in threads.into_iter().filter(Thread::waits) {
                if !self.waits.contains_key(&thread.tid) {
                    let wait = Wait::of(thread, None, false, asked).with_waker(&woke);
                    next.extend(wait.ends());
                    later.extend(wait.last_waker());
                    self.waits.insert(wait.thread.tid, wait);
                }
            }
        }
    }
}
