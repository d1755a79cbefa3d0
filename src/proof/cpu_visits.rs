//! Visits to CPUs that delay a grace period.
//!
//! A grace period ends when each CPU has passed a quiescent state since it began: a context switch, the idle loop, or a
//! scheduler tick outside of every RCU read-side section (kernel/rcu/tree_plugin.h, `rcu_flavor_sched_clock_irq`). A
//! CPU that spends nearly all of its time in traced programs does none of these for many ticks. A thread that moves to
//! that CPU makes it switch.

use crate::sys::machine;
use crate::sys::thread::{Thread as Known, spawn_without_signals};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, getpid};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

/// Each CPU is visited once in this time while a grace period is under way. That is more often than two ticks at 250
/// Hz, so that the second tick of a grace period finds the quiescent state and reports it.
const ROUND: Duration = Duration::from_millis(6);

/// The shortest time between two visits. With more CPUs than 24 a round takes longer.
const SHORTEST: Duration = Duration::from_micros(250);

/// A thread that visits CPUs while grace periods are under way. The reader never waits for it, because other threads
/// may occupy the visited CPU for a long time.
#[derive(Debug)]
pub(crate) struct CpuVisits {
    shared: Arc<Shared>,
    thread: Thread,
    /// CPUs without ticks while a program runs on them (`nohz_full`). Such a CPU is in a quiescent state whenever it is
    /// in user mode.
    tickless: Vec<u32>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The CPUs to visit.
    cpus: Mutex<Vec<u32>>,
    /// How many more visits may be made.
    left: AtomicUsize,
    /// Visits so far. The next CPU is the one after the last.
    made: AtomicUsize,
    /// The thread sleeps until it is woken.
    waits: AtomicBool,
    stop: AtomicBool,
    /// The same thread, to know it by, once it runs.
    known: OnceLock<Arc<Known>>,
}

impl CpuVisits {
    /// Starts the thread. It does not visit any CPU yet.
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let thread = {
            let shared = Arc::clone(&shared);
            spawn_without_signals("perfweave-visit", move || visit(&shared))?
        };
        Ok(Self { shared, thread: thread.thread().clone(), tickless: machine::tickless_cpus() })
    }

    /// The thread, once it runs.
    pub(crate) fn known(&self) -> Option<&Arc<Known>> {
        self.shared.known.get()
    }

    /// A grace period has begun: the thread visits these CPUs one after the other, at most `most` times in all.
    pub(crate) fn begin(&self, cpus: impl Iterator<Item = u32>, most: usize) {
        // The program may be confined to some CPUs (taskset, cpusets, isolcpus), and no thread of it runs on others.
        // The affinity of its first thread shows that; the thread that reads may be pinned to one CPU.
        let Ok(allowed) = sched_getaffinity(getpid()) else { return };
        let visited = |cpu: &u32| allowed.is_set(*cpu as usize).unwrap_or(false) && !self.tickless.contains(cpu);
        // If the thread is using the list now, the list stays as it is.
        if let Ok(mut list) = self.shared.cpus.try_lock() {
            list.clear();
            list.extend(cpus.filter(visited));
        }
        // After the list: the thread may begin as soon as visits are left.
        // SeqCst, here and in `visit`: either the thread finds visits left, or it is found waiting.
        self.shared.left.store(most, Ordering::SeqCst);
        if self.shared.waits.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
    }

    /// The grace period has ended.
    pub(crate) fn end(&self) {
        self.shared.left.store(0, Ordering::SeqCst);
    }
}

impl Drop for CpuVisits {
    fn drop(&mut self) {
        // In a forked child this wakes no thread.
        self.shared.stop.store(true, Ordering::SeqCst);
        // Not joined: programs may keep the CPU that it visits for a long time.
        self.thread.unpark();
    }
}

/// The thread.
fn visit(shared: &Shared) {
    let _ = shared.known.set(Known::current());
    let is_over = || shared.stop.load(Ordering::SeqCst);
    while !is_over() {
        shared.waits.store(true, Ordering::SeqCst);
        while shared.left.load(Ordering::SeqCst) == 0 && !is_over() {
            thread::park();
        }
        shared.waits.store(false, Ordering::SeqCst);
        // A grace period that ends soon causes no visit.
        let cpus = || shared.cpus.lock().unwrap_or_else(PoisonError::into_inner);
        // The list is empty if no CPU with events may be visited.
        let step = ROUND / cpus().len().max(1) as u32;
        // Parked, so that `stop` ends it. A wake-up left over from the wait above makes one visit early, no more.
        thread::park_timeout(step.max(SHORTEST));
        // `end` may have set it to zero since: a plain subtraction would wrap.
        let allowed = shared.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if allowed.is_err() || is_over() {
            continue;
        }
        let made = shared.made.fetch_add(1, Ordering::Relaxed);
        let cpu = Some(cpus()).filter(|cpus| !cpus.is_empty()).map(|cpus| cpus[made % cpus.len()]);
        cpu.into_iter().for_each(move_to);
    }
}

/// Moves the calling thread to a CPU. A CPU that is offline by now needs no visit.
fn move_to(cpu: u32) {
    let mut only = CpuSet::new();
    if only.set(cpu as usize).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &only);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use nix::sched::sched_getcpu;
    use perfweave_support::threads::until;
    use std::sync::mpsc;

    fn allowed() -> Vec<u32> {
        let allowed = sched_getaffinity(getpid()).unwrap();
        (0..1024).filter(|cpu| allowed.is_set(*cpu as usize).unwrap()).collect()
    }

    /// Waits until so many visits were made, or fails after two minutes.
    fn await_visits(visits: &CpuVisits, made: usize) {
        until("visits are made", || visits.shared.made.load(Ordering::SeqCst) >= made);
    }

    #[test]
    fn cpus_are_visited_as_often_as_is_allowed_and_no_more() {
        let visits = CpuVisits::start().unwrap();
        let allowed = allowed();
        let listed = || visits.shared.cpus.lock().unwrap().clone();
        // None but those that the process may run on.
        visits.begin([5000, 1023].into_iter().chain(allowed.clone()), allowed.len() + 1);
        await_visits(&visits, allowed.len() + 1);
        assert_eq!(listed(), allowed);
        until("the thread waits", || visits.shared.waits.load(Ordering::SeqCst));
        assert_eq!(visits.shared.made.load(Ordering::SeqCst), allowed.len() + 1);
        // The next grace period goes on; its end ends the visits.
        visits.begin(allowed.iter().copied(), usize::MAX);
        await_visits(&visits, allowed.len() + 3);
        visits.end();
        until("the thread waits", || visits.shared.waits.load(Ordering::SeqCst));
        let made = visits.shared.made.load(Ordering::SeqCst);
        assert!(visits.known().is_some());
        // Nobody waits for the thread, and it ends.
        let shared = Arc::downgrade(&visits.shared);
        drop(visits);
        until("the thread ends", || shared.strong_count() == 0);
        assert!(made > allowed.len() + 2);
    }

    #[test]
    fn a_visit_is_made_on_its_cpu() {
        let (sender, receiver) = mpsc::channel();
        let cpus = allowed();
        let turns = cpus.clone();
        std::thread::spawn(move || {
            turns.into_iter().for_each(|cpu| {
                move_to(cpu);
                sender.send(sched_getcpu().unwrap() as u32).unwrap();
            });
        });
        assert_eq!(receiver.iter().collect::<Vec<_>>(), cpus);
    }
}
