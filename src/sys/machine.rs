//! What machine this is: pages, CPUs, clocks, settings.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a page.
pub(crate) fn page_size() -> usize {
    // The kernel always answers; were it not to, the smallest page there is makes mmap say so.
    let answer = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    answer.ok().flatten().and_then(|size| usize::try_from(size).ok()).unwrap_or(4096)
}

/// The CPUs that are online, in order. Numbers may be missing in between.
pub(crate) fn online_cpus() -> io::Result<Vec<u32>> {
    cpus("/sys/devices/system/cpu/online")
}

/// The CPUs that the machine could ever have.
pub(crate) fn possible_cpus() -> io::Result<Vec<u32>> {
    cpus("/sys/devices/system/cpu/possible")
}

fn cpus(path: &str) -> io::Result<Vec<u32>> {
    let list = fs::read_to_string(path)?;
    parse_cpus(list.trim()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path}: {list}")))
}

/// The list of online CPUs, kept open: it can still be read after chroot(2), without `/sys`, and out of descriptors.
pub(crate) struct OnlineCpus(fs::File);

impl OnlineCpus {
    pub(crate) fn open() -> io::Result<Self> {
        fs::File::open("/sys/devices/system/cpu/online").map(Self)
    }

    /// Whether `num_online_cpus() > 1`: `0` or `0-1` or `0,2`.
    pub(crate) fn are_several(&self) -> io::Result<bool> {
        let mut list = [0; 64];
        let len = self.0.read_at(&mut list, 0)?;
        Ok(list[..len].iter().any(|byte| matches!(byte, b'-' | b',')))
    }
}

/// Reads a list such as `0-3,8`: "Decimally-separated list" of Documentation/admin-guide/cputopology.rst.
fn parse_cpus(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// A number in a file of `/proc/sys`.
pub(crate) fn setting(name: &str) -> Option<i64> {
    fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().parse().ok()
}

/// Where tracefs is mounted.
pub(crate) fn tracefs() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounted = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_device, directory, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "tracefs").then(|| PathBuf::from(directory))
    });
    // debugfs mounts tracefs inside itself on first use, without an entry of its own.
    let automount = Path::new("/sys/kernel/debug/tracing");
    mounted
        .or_else(|| automount.join("events").is_dir().then(|| automount.to_path_buf()))
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "tracefs is not mounted"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{online_cpus, page_size, parse_cpus, possible_cpus};

    #[test]
    fn cpu_lists_may_be_sparse() {
        assert_eq!(parse_cpus("0"), Some(vec![0]));
        assert_eq!(parse_cpus("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_cpus("0,2,5-6"), Some(vec![0, 2, 5, 6]));
        assert_eq!(parse_cpus(""), Some(vec![]));
        assert_eq!(parse_cpus("0-x"), None);
    }

    #[test]
    fn this_machine() {
        assert!(page_size().is_power_of_two());
        let online = online_cpus().unwrap();
        assert!(!online.is_empty());
        assert!(possible_cpus().unwrap().len() >= online.len());
    }
}
