//! The state of threads of this process, so that tests need not guess when they sleep.

use std::fs::read_to_string;
use std::time::{Duration, Instant};

/// Only against hanging: a test waits as long as the machine needs, and fails if the condition never comes.
pub const GUARD: Duration = Duration::from_secs(120);

/// The calling thread's number.
pub fn own() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// [`GUARD`] times `PERFWEAVE_PATIENCE`: emulated machines are slower than any other.
fn guard() -> Duration {
    let patience = std::env::var("PERFWEAVE_PATIENCE").map_or(1, |times| times.parse().expect("a number of times"));
    GUARD * patience
}

/// Waits for a condition.
///
/// # Panics
/// If it does not come within [`GUARD`], or so many times that as `PERFWEAVE_PATIENCE` says.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let guard = guard();
    let end = Instant::now() + guard;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {guard:?}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Waits until a thread of this process sleeps.
///
/// # Panics
/// If it does not within [`GUARD`], or ends.
#[track_caller]
pub fn until_asleep(thread: i32) {
    until("a thread sleeps", || state(thread) == 'S');
}

/// Waits until a thread of this process has gone to sleep this many times from now on: it was awake in between.
///
/// # Panics
/// If it does not within [`GUARD`], or ends.
#[track_caller]
pub fn until_slept(thread: i32, times: u64) {
    let before = sleeps(thread);
    until("a thread sleeps again", || sleeps(thread) >= before + times && state(thread) == 'S');
}

/// The thread of this process with a name.
pub fn named(name: &str) -> Option<i32> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let mut numbers = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    // The kernel keeps 15 bytes of it.
    let is_it = |thread: &i32| read(*thread, "comm").is_some_and(|comm| comm.trim_end() == &name[..name.len().min(15)]);
    numbers.find(is_it)
}

fn read(thread: i32, file: &str) -> Option<String> {
    read_to_string(format!("/proc/self/task/{thread}/{file}")).ok()
}

/// `R`, `S` and so on, proc_pid_stat(5).
fn state(thread: i32) -> char {
    let stat = read(thread, "stat").unwrap_or_else(|| panic!("thread {thread} has ended"));
    // The name before it is in parentheses, and may have some of its own.
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).expect("a state")
}

/// How often it gave its CPU up by itself.
fn sleeps(thread: i32) -> u64 {
    let status = read(thread, "status").unwrap_or_else(|| panic!("thread {thread} has ended"));
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).expect("a count of switches")
}

/// Does something when it is dropped, also where a test fails: what ends the threads that the test would wait for
/// otherwise.
#[derive(Debug)]
pub struct AtEnd<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
