//! Visits to CPUs that keep a grace period waiting.
//!
//! A grace period ends when each CPU has passed a quiescent state since it began: a context switch, the idle loop, or a
//! scheduler tick outside of every RCU read-side section (kernel/rcu/tree_plugin.h, `rcu_flavor_sched_clock_irq`). A CPU
//! that spends nearly all of its time in traced programs does none of these for many ticks. A thread that moves to that
//! CPU makes it switch.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Each CPU is visited once in this time, while a fence is under way: more often than two ticks at 250 Hz come, so that the second
/// tick of a grace period finds the quiescent state and reports it.
const ROUND: Duration = Duration::from_millis(6);

/// The shortest time between two visits. With more CPUs than 24 a round takes longer.
const SHORTEST: Duration = Duration::from_micros(250);

/// A thread that visits CPUs while fences are under way.
#[derive(Debug)]
pub(crate) struct Visits {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The thread's number.
    number: u32,
    /// The CPUs that this process may run on.
    allowed: CpuSet,
}

#[derive(Debug, Default)]
struct Shared {
    plan: Mutex<Plan>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Plan {
    /// The CPUs to visit.
    cpus: Vec<u32>,
    /// How many more visits may be made.
    left: usize,
    /// Visits so far. The next is to the CPU behind the last.
    made: usize,
    /// The thread sleeps until it is notified.
    waits: bool,
    stop: bool,
}

impl Shared {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Visits {
    /// Starts the thread. It visits nobody yet.
    ///
    /// `spawn` starts a thread and gives its number.
    pub(crate) fn start(
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<(JoinHandle<()>, u32)>,
    ) -> io::Result<Self> {
        // The process may be confined to some CPUs (taskset, cpuset, isolcpus): nothing of it runs on others.
        let allowed = sched_getaffinity(Pid::from_raw(0))?;
        let shared = Arc::<Shared>::default();
        let (thread, number) = {
            let shared = Arc::clone(&shared);
            spawn(Box::new(move || visit(&shared)))?
        };
        Ok(Self { shared, thread: Some(thread), number, allowed })
    }

    /// The number of the thread.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// A fence has begun: these CPUs are visited one after the other, as often as `most` says in all.
    pub(crate) fn begin(&self, cpus: impl Iterator<Item = u32>, most: usize) {
        let mut plan = self.shared.plan();
        plan.cpus.clear();
        plan.cpus.extend(cpus.filter(|cpu| self.allowed.is_set(*cpu as usize).unwrap_or(false)));
        plan.left = if plan.cpus.is_empty() { 0 } else { most };
        if plan.waits && plan.left > 0 {
            plan.waits = false;
            self.shared.changed.notify_one();
        }
    }

    /// The fence has ended.
    pub(crate) fn end(&self) {
        self.shared.plan().left = 0;
    }

    /// Lets go of a thread that a forked child does not have.
    pub(crate) fn forget(mut self) {
        std::mem::forget(self.thread.take());
        std::mem::forget(self);
    }
}

impl Drop for Visits {
    fn drop(&mut self) {
        self.shared.plan().stop = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread.
fn visit(shared: &Shared) {
    let mut plan = shared.plan();
    while !plan.stop {
        if plan.left == 0 {
            plan.waits = true;
            while plan.waits && !plan.stop {
                plan = shared.changed.wait(plan).unwrap_or_else(PoisonError::into_inner);
            }
        }
        // A fence that ends soon has no visit at all.
        let cpus = plan.cpus.len().max(1) as u32;
        let step = (ROUND / cpus).max(SHORTEST);
        plan = shared.changed.wait_timeout(plan, step).unwrap_or_else(PoisonError::into_inner).0;
        if plan.left == 0 || plan.stop {
            continue;
        }
        plan.left -= 1;
        plan.made += 1;
        let cpu = plan.cpus[plan.made % plan.cpus.len()];
        drop(plan);
        move_to(cpu);
        plan = shared.plan();
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
    use std::sync::mpsc;

    fn spawn(body: Box<dyn FnOnce() + Send>) -> io::Result<(JoinHandle<()>, u32)> {
        Ok((std::thread::spawn(body), 0))
    }

    /// Waits until so many visits were made, or fails after two minutes.
    fn await_visits(visits: &Visits, made: usize) {
        perfweave_support::threads::until("visits are made", || visits.shared.plan().made == made);
    }

    #[test]
    fn each_cpu_is_visited_in_turn_as_often_as_is_allowed_and_no_more() {
        let visits = Visits::start(spawn).unwrap();
        let allowed: Vec<u32> = (0..1024).filter(|cpu| visits.allowed.is_set(*cpu as usize).unwrap()).collect();
        // None but those that the process may run on.
        visits.begin([5000, 1023].into_iter().filter(|cpu| !allowed.contains(cpu)), 3);
        assert_eq!(visits.shared.plan().left, 0);
        visits.begin(allowed.iter().copied(), allowed.len() + 1);
        await_visits(&visits, allowed.len() + 1);
        assert_eq!(visits.shared.plan().left, 0);
        // The next fence goes on with the next CPU; its end ends the visits.
        visits.begin(allowed.iter().copied(), usize::MAX);
        await_visits(&visits, allowed.len() + 3);
        visits.end();
        let made = visits.shared.plan().made;
        perfweave_support::threads::until("the thread waits", || visits.shared.plan().waits);
        assert!(visits.shared.plan().made <= made + 1, "a visit was under way");
    }

    #[test]
    fn a_visit_is_made_on_its_cpu() {
        let (told, seen) = mpsc::channel();
        let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let cpus: Vec<u32> = (0..1024).filter(|cpu| allowed.is_set(*cpu as usize).unwrap()).collect();
        let turns = cpus.clone();
        std::thread::spawn(move || {
            turns.into_iter().for_each(|cpu| {
                move_to(cpu);
                told.send(sched_getcpu().unwrap() as u32).unwrap();
            });
        });
        assert_eq!(seen.iter().collect::<Vec<_>>(), cpus);
    }
}
