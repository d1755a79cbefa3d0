//! Which CPUs there are, and keeping them as they are while tests run.
//!
//! A test that takes a CPU offline takes it from every process. So each process of this suite that needs CPUs to stay holds a lock, and one
//! that takes them away waits until nobody does. The locks are on the kernel's own lists of CPUs, which every process can open and which
//! need no clean-up.

use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const FOLDER: &str = "/sys/devices/system/cpu";

/// What this process holds until it ends: the locks, if it could have them.
static HELD: OnceLock<Vec<Flock<File>>> = OnceLock::new();

/// Keeps other processes of this suite from taking CPUs away until this one ends. Does nothing in a process that may do so
/// itself.
pub fn keep() {
    HELD.get_or_init(|| {
        // A process that waits to be alone holds the gate, so that later processes do not make it wait for ever.
        let _gate = lock("possible", FlockArg::LockExclusiveNonblock);
        lock("online", FlockArg::LockSharedNonblock).into_iter().collect()
    });
}

/// Waits until no other process of this suite needs CPUs to stay, and keeps it so until this one ends.
///
/// # Panics
/// If this process keeps them already.
pub fn alone() {
    let mut first = false;
    HELD.get_or_init(|| {
        first = true;
        ["possible", "online"].into_iter().filter_map(|file| lock(file, FlockArg::LockExclusiveNonblock)).collect()
    });
    assert!(first, "a process either keeps CPUs or takes them away");
}

/// Waits for a lock. `None` where there can be none.
fn lock(file: &str, how: FlockArg) -> Option<Flock<File>> {
    let end = Instant::now() + Duration::from_secs(1800);
    let mut file = File::open(format!("{FOLDER}/{file}")).ok()?;
    loop {
        match Flock::lock(file, how) {
            Ok(lock) => return Some(lock),
            Err((back, nix::errno::Errno::EWOULDBLOCK)) => file = back,
            Err(_) => return None,
        }
        assert!(Instant::now() < end, "other tests have kept the CPUs for half an hour");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The CPUs that are online.
///
/// # Panics
/// If the kernel does not say.
pub fn online() -> Vec<u32> {
    list("online")
}

/// The CPUs that can ever be there, online or not.
///
/// # Panics
/// If the kernel does not say.
pub fn possible() -> Vec<u32> {
    list("possible")
}

fn list(file: &str) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("{FOLDER}/{file}")).expect("a list of CPUs");
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u32>().expect("a CPU")..=last.parse().expect("a CPU"));
    }
    cpus
}

/// Takes a CPU offline, or back.
pub fn set_online(cpu: u32, online: bool) -> std::io::Result<()> {
    std::fs::write(format!("{FOLDER}/cpu{cpu}/online"), if online { "1" } else { "0" })
}

/// Where the control groups' file system is mounted.
///
/// # Errors
/// If it is not.
pub fn control_groups() -> std::io::Result<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let mut mounted = mounts.lines().rev().filter_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        (fields.get(2) == Some(&"cgroup2")).then(|| std::path::PathBuf::from(fields[1]))
    });
    mounted.next().ok_or_else(|| std::io::Error::other("no cgroup2 file system is mounted"))
}
