//! Load on chosen CPUs.

pub use crate::cpus::{online, set_online};

use crate::cpus::possible;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Keeps the calling thread on a CPU.
///
/// # Panics
/// If the kernel refuses.
pub fn pin(cpu: u32) {
    try_pin(cpu).unwrap_or_else(|error| panic!("pin to CPU {cpu}: {error}"));
}

/// Keeps the calling thread on a CPU, if the kernel lets it: not while the CPU is offline.
pub fn try_pin(cpu: u32) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu as usize)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// Runs something on a CPU.
///
/// # Panics
/// If that panics, or the kernel refuses the CPU.
pub fn pinned<T: Send>(cpu: u32, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(cpu);
            run()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// How many slots a perf event array needs for this machine: one for each CPU that can ever come online.
///
/// # Panics
/// If the kernel does not say.
pub fn slots() -> u32 {
    possible().last().expect("a CPU") + 1
}

/// Threads that repeat something, one on each of some CPUs, until they are dropped.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Begins to repeat `turn`, which is given its CPU, on each of the CPUs.
    pub fn on(cpus: &[u32], turn: impl Fn(u32) + Send + Sync + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let turn = Arc::new(turn);
        let threads = cpus
            .iter()
            .map(|&cpu| {
                let (stop, turn) = (Arc::clone(&stop), Arc::clone(&turn));
                std::thread::spawn(move || {
                    pin(cpu);
                    while !stop.load(Ordering::Relaxed) {
                        turn(cpu);
                    }
                })
            })
            .collect();
        Self { stop, threads }
    }

    /// Ends it now.
    pub fn end(self) {}
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A thread that does something now and then, until it is ended or dropped.
#[derive(Debug)]
pub struct Beside {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Beside {
    /// Begins `work`, which is given a function that waits so long and says whether to go on.
    pub fn start(work: impl FnOnce(&dyn Fn(Duration) -> bool) -> Result<(), String> + Send + 'static) -> Self {
        let (stop, stopped) = mpsc::channel();
        let wait = move |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        Self { stop: Some(stop), thread: Some(std::thread::spawn(move || work(&wait))) }
    }

    /// Ends it, and gives how its work ended.
    pub fn end(mut self) -> Result<(), String> {
        self.join()
    }

    fn join(&mut self) -> Result<(), String> {
        self.stop = None;
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// Calls getppid(2), which does nothing, by its number: the number is what a `sys_enter` program sees.
pub fn getppid() {
    // SAFETY: takes no arguments.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// Calls getuid(2), likewise.
pub fn getuid() {
    // SAFETY: takes no arguments.
    unsafe { libc::syscall(libc::SYS_getuid) };
}

/// Calls getgid(2), likewise.
pub fn getgid() {
    // SAFETY: takes no arguments.
    unsafe { libc::syscall(libc::SYS_getgid) };
}

/// Calls getegid(2), likewise.
pub fn getegid() {
    // SAFETY: takes no arguments.
    unsafe { libc::syscall(libc::SYS_getegid) };
}

/// Calls getpgid(2), which a test's program may wait for.
pub fn getpgid() {
    // SAFETY: takes and gives nothing.
    unsafe { libc::syscall(libc::SYS_getpgid, 0) };
}

/// Calls getsid(2), likewise.
pub fn getsid() {
    // SAFETY: takes a number and gives one.
    unsafe { libc::syscall(libc::SYS_getsid, 0) };
}
