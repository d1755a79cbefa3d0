//! The machine: pages, CPUs, the kernel's version.

use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a page.
pub(crate) fn page_size() -> usize {
    // The kernel always answers.
    sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| usize::try_from(size).ok()).unwrap_or(4096)
}

/// The kernel's version, as uname(2) has it.
pub(crate) fn release() -> String {
    nix::sys::utsname::uname().map_or_else(|_| "unknown".into(), |name| name.release().to_string_lossy().into_owned())
}

/// How many CPUs there can be, and how many are online.
pub(crate) fn cpus() -> Option<[u32; 2]> {
    Some([possible_cpus()?, count("/sys/devices/system/cpu/online")?])
}

/// How many CPUs there can be.
pub(crate) fn possible_cpus() -> Option<u32> {
    count("/sys/devices/system/cpu/possible")
}

/// How many numbers a list such as `0-3,8` has.
fn count(path: &str) -> Option<u32> {
    let list = fs::read_to_string(path).ok()?;
    let mut sum = 0u32;
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first.parse::<u32>().ok()?, last.parse().ok()?];
        sum = sum.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(sum)
}

/// Whether the thread numbers here are those that the kernel writes into tracepoints: not in a PID namespace of a
/// container.
pub(crate) fn has_global_threads() -> bool {
    /// `PROC_PID_INIT_INO` of `include/linux/proc_ns.h`, unchanged since Linux 3.8.
    const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
    // Unknown without /proc.
    fs::metadata("/proc/self/ns/pid").map_or(true, |space| space.ino() == FIRST_PID_NAMESPACE)
}

/// The target of a file descriptor, as `/proc` names it. `None` without `/proc`.
pub(crate) fn what_is(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd())).ok()
}

/// The content of a file of tracefs, from one read: `header_page` and others give nothing to the next one
/// (`kernel/trace/trace_events.c`: `if (*ppos) return 0`).
pub(crate) fn read_at_once(path: &Path) -> io::Result<Vec<u8>> {
    // More than such a file has: the kernel writes it into one page or two.
    let mut bytes = vec![0; 1 << 16];
    let len = fs::File::open(path)?.read(&mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn cpu_lists_may_be_sparse() {
        let path = std::env::temp_dir().join(format!("perfweave-perf-data-cpus-{}", std::process::id()));
        let counted = |list: &str| {
            std::fs::write(&path, list).unwrap();
            count(path.to_str().unwrap())
        };
        assert_eq!(["0\n", "0-3,8", "", "0-x", "3-1"].map(counted), [Some(1), Some(5), Some(0), None, None]);
        std::fs::remove_file(path).unwrap();
    }
}
