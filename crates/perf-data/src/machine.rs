//! The machine: pages, CPUs, the kernel's version, where tracefs is.

use nix::errno::Errno;
use nix::sys::statfs::{TRACEFS_MAGIC, statfs};
use nix::unistd::{SysconfVar, sysconf};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
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

/// Where tracefs is mounted, even if mounts cannot be listed, or another file system covers one of its usual places.
///
/// If it is found but cannot be searched, that is `PermissionDenied`, with the place.
pub(crate) fn tracefs() -> io::Result<PathBuf> {
    let listed = fs::read("/proc/thread-self/mounts");
    let unlisted = listed.as_ref().err().map(|errno| format!(", and mounts cannot be listed: {errno}"));
    let listed = listed.unwrap_or_default();
    let mounted = listed.split(|byte| *byte == b'\n').filter_map(tracefs_of);
    // debugfs mounts tracefs inside itself at first use, without a separate entry.
    let usual = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"].map(PathBuf::from);
    let mut denied = None;
    for path in mounted.chain(usual) {
        match is_tracefs(&path) {
            Ok(true) => return Ok(path),
            Err(Errno::EACCES) => denied = denied.or(Some(path)),
            _ => {}
        }
    }
    Err(match denied {
        Some(path) => {
            io::Error::new(io::ErrorKind::PermissionDenied, format!("{}: {}", path.display(), Errno::EACCES.desc()))
        }
        None => {
            let unlisted = unlisted.unwrap_or_default();
            io::Error::new(io::ErrorKind::NotFound, format!("tracefs is not mounted where it usually is{unlisted}"))
        }
    })
}

/// The place of a line such as `tracefs /sys/kernel/tracing tracefs rw 0 0` (proc_pid_mounts(5)).
fn tracefs_of(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (_device, path, kind) = (fields.next()?, fields.next()?, fields.next()?);
    (kind == b"tracefs").then(|| unescape(path).into())
}

/// Blanks, tabs, line feeds and backslashes are written as `\040`, `\011`, `\012` and `\134` (`mangle_path`,
/// `fs/seq_file.c`).
fn unescape(mut field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    while let Some((&first, rest)) = field.split_first() {
        let octal =
            rest.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        let value = octal.and_then(|digits| {
            digits.iter().try_fold(0u8, |value, digit| Some(value.checked_mul(8)? + (digit - b'0')))
        });
        bytes.push(value.unwrap_or(first));
        field = if value.is_some() { &rest[3..] } else { rest };
    }
    OsString::from_vec(bytes)
}

/// Whether a path shows the whole tracefs: another file system may be mounted over it, or only one of its directories
/// may be mounted.
fn is_tracefs(path: &Path) -> nix::Result<bool> {
    match statfs(&path.join("events")) {
        Ok(events) => Ok(events.filesystem_type() == TRACEFS_MAGIC),
        // The type of a file system can be read without the right to search it.
        Err(Errno::EACCES) if statfs(path)?.filesystem_type() == TRACEFS_MAGIC => Err(Errno::EACCES),
        Err(Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
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

/// The tracepoint with a number, by its folder: `category/name` below the folder `events`. Searches all of them, of
/// which there are thousands.
pub(crate) fn tracepoint(events: &Path, number: u64) -> io::Result<Option<[String; 2]>> {
    for category in folders(events)? {
        for name in folders(&events.join(&category)).unwrap_or_default() {
            let id = fs::read_to_string(events.join(&category).join(&name).join("id"));
            if id.is_ok_and(|id| id.trim().parse() == Ok(number)) {
                return Ok(Some([category, name]));
            }
        }
    }
    Ok(None)
}

/// The folders in a folder, by name.
fn folders(path: &Path) -> io::Result<Vec<String>> {
    let named = |errno: io::Error| io::Error::new(errno.kind(), format!("{}: {errno}", path.display()));
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(named)? {
        let entry = entry.map_err(named)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.extend(entry.file_name().into_string());
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::{count, tracefs_of};
    use std::path::PathBuf;

    #[test]
    fn tracefs_may_be_mounted_under_any_path() {
        let place = |line: &str| tracefs_of(line.as_bytes());
        assert_eq!(place("tracefs /sys/kernel/tracing tracefs rw 0 0"), Some("/sys/kernel/tracing".into()));
        assert_eq!(
            place(r"t /mnt/a\040b\011c\012d\134040e tracefs rw 0 0"),
            Some(PathBuf::from("/mnt/a b\tc\nd\\040e"))
        );
        assert_eq!(place("tmpfs /mnt tmpfs rw 0 0"), None);
        assert_eq!(place(""), None);
    }

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
