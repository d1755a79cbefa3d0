//! Locks of tests of all processes over things that a machine has once. They are on files that every process can open
//! and that need no clean-up. `cpus` has that of the CPUs.

use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io;

/// The BPF programs at tracepoints that the program uses.
pub const PROGRAMS: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

/// How fast grace periods are: this file and `rcu_normal` beside it.
pub const RCU: &str = "/sys/kernel/rcu_expedited";

/// Waits until no test changes it, and keeps it as it is until the answer is dropped. `None` where there is no such
/// lock.
pub fn keep(what: &str) -> Option<Flock<File>> {
    lock(what, FlockArg::LockShared).ok()
}

/// Waits until no other test needs it as it is.
///
/// # Errors
/// Where there is no such lock.
pub fn alone(what: &str) -> io::Result<Flock<File>> {
    lock(what, FlockArg::LockExclusive)
}

fn lock(what: &str, how: FlockArg) -> io::Result<Flock<File>> {
    Flock::lock(File::open(what)?, how).map_err(|(_, errno)| errno.into())
}
