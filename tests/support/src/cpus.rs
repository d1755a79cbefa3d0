//! Which CPUs there are, and keeping them as they are while tests run.
//!
//! A test that takes a CPU offline takes it from every process. So each process of this suite that needs CPUs to stay
//! holds a lock, and one that takes them away waits until nobody does. The locks are on the kernel's own lists of CPUs,
//! which every process can open and which need no clean-up.
//!
//! Each process takes the lock once, by way of the gate, and holds it until it ends. A process that waits to be alone
//! holds the gate, so that later processes do not make it wait for ever. So nobody who holds the lock may wait for a
//! process that comes to the gate: a child for which its parent waits has its parent's lock ([`SHARED`]). That also
//! holds for other suites on the same machine.

use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const FOLDER: &str = "/sys/devices/system/cpu";

/// The list that is locked, and the one that is the gate to that lock.
const LOCK: &str = "online";
const GATE: &str = "possible";

/// Set for a child for which its parent waits: the parent keeps the CPUs for both.
pub(crate) const SHARED: &str = "PERFWEAVE_TEST_CPUS_ARE_KEPT";

/// What this process holds until it ends: the locks, if it could have them.
static HELD: OnceLock<Vec<Flock<File>>> = OnceLock::new();

/// Keeps other processes of this suite from taking CPUs away until this one ends. Does nothing in a process that may do
/// so itself, and in a child whose parent does it.
pub fn keep() {
    HELD.get_or_init(|| {
        if std::env::var_os(SHARED).is_some() {
            return Vec::new();
        }
        let _gate = lock(GATE, FlockArg::LockExclusiveNonblock);
        lock(LOCK, FlockArg::LockSharedNonblock).into_iter().collect()
    });
}

/// Waits until no other process of this suite needs CPUs to stay, and keeps it so until this one ends.
///
/// # Panics
/// If this process keeps them already, or its parent does.
pub fn alone() {
    assert!(std::env::var_os(SHARED).is_none(), "the parent keeps the CPUs as they are");
    let mut first = false;
    HELD.get_or_init(|| {
        first = true;
        [GATE, LOCK].into_iter().filter_map(|file| lock(file, FlockArg::LockExclusiveNonblock)).collect()
    });
    assert!(first, "a process either keeps CPUs or takes them away");
}

/// Waits for a lock, and says after ten seconds for whom. `None` where there can be none.
fn lock(name: &str, how: FlockArg) -> Option<Flock<File>> {
    let begin = Instant::now();
    let mut file = File::open(format!("{FOLDER}/{name}")).ok()?;
    let mut says = 1;
    loop {
        match Flock::lock(file, how) {
            Ok(lock) => return Some(lock),
            Err((back, nix::errno::Errno::EWOULDBLOCK)) => file = back,
            Err(_) => return None,
        }
        let waited = begin.elapsed().as_secs();
        if waited >= 10 * says {
            // Past what the test harness keeps to itself. Then less often.
            let whom = waited_for().join(", ");
            let _ = writeln!(std::io::stderr(), "waiting for {waited} s until these let go of the CPUs: {whom}");
            says *= 2;
        }
        assert!(waited < 1800, "other tests have kept the CPUs for half an hour: {}", waited_for().join(", "));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The other processes that hold the lock or the gate, with their command lines: those that this one waits for.
pub fn waited_for() -> Vec<String> {
    let mut holders: Vec<u32> = [LOCK, GATE].into_iter().flat_map(holders).collect();
    holders.sort_unstable();
    holders.dedup();
    holders.retain(|process| *process != std::process::id());
    let name = |process: u32| {
        let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let words =
            words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
        format!("{process} ({})", words.trim())
    };
    holders.into_iter().map(name).collect()
}

/// Whether a process waits to be alone, or is alone.
pub fn is_gate_held() -> bool {
    !holders(GATE).is_empty()
}

/// The processes that have locked a list, by proc_locks(5): `1: FLOCK ADVISORY READ 4711 00:15:123 0 EOF`. Waiting ones
/// have an arrow.
fn holders(name: &str) -> Vec<u32> {
    let Ok(list) = fs::metadata(format!("{FOLDER}/{name}")) else { return Vec::new() };
    let (inode, locks) = (list.ino().to_string(), fs::read_to_string("/proc/locks").unwrap_or_default());
    let holder = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, process, file) = (words.next()?, words.nth(2)?, words.next()?);
        let is_it = kind == "FLOCK" && file.rsplit(':').next() == Some(&inode);
        process.parse().ok().filter(|_| is_it)
    };
    locks.lines().filter_map(holder).collect()
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

/// Whether CPUs may be taken offline: somebody asks for it by `PERFWEAVE_HOTPLUG=1`.
pub fn may_go() -> bool {
    std::env::var_os("PERFWEAVE_HOTPLUG").is_some_and(|set| set == "1")
}

/// Takes a CPU offline, or back.
///
/// # Errors
/// If nobody has asked for that ([`may_go`]), or the kernel refuses.
pub fn set_online(cpu: u32, online: bool) -> std::io::Result<()> {
    if !online && !may_go() {
        return Err(std::io::Error::other("only PERFWEAVE_HOTPLUG=1 allows it"));
    }
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
