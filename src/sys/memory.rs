//! How much memory this process can get.

use crate::sys::machine::unescape;
use nix::sys::resource::{Resource, getrlimit};
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes available without swapping, and without exceeding a limit of the process or of one of its control groups.
/// `None` if nothing is known.
pub(crate) fn available() -> Option<u64> {
    let (proc, groups) = (Path::new("/proc"), of_groups(Path::new("/proc")));
    [of_machine(proc), of_process(proc), groups].into_iter().flatten().min()
}

/// `MemAvailable` of proc_meminfo(5).
fn of_machine(proc: &Path) -> Option<u64> {
    kilobytes(&fs::read_to_string(proc.join("meminfo")).ok()?, "MemAvailable:")
}

/// What is left of `RLIMIT_AS` and `RLIMIT_DATA` (getrlimit(2)).
fn of_process(proc: &Path) -> Option<u64> {
    let status = fs::read_to_string(proc.join("self/status")).ok()?;
    let left = |(resource, used)| {
        let (limit, _) = getrlimit(resource).ok().filter(|(limit, _)| *limit != libc::RLIM_INFINITY)?;
        Some(limit.saturating_sub(kilobytes(&status, used)?))
    };
    [(Resource::RLIMIT_AS, "VmSize:"), (Resource::RLIMIT_DATA, "VmData:")].into_iter().filter_map(left).min()
}

/// What is left in the control groups of the process, from its own up to the one that is mounted (cgroups(7)).
fn of_groups(proc: &Path) -> Option<u64> {
    let mounts = fs::read_to_string(proc.join("self/mountinfo")).ok()?;
    let groups = fs::read_to_string(proc.join("self/cgroup")).ok()?;
    let mut folders = Vec::new();
    for Mounted { root, path, version } in mounts.lines().filter_map(mounted) {
        let Some(group) = groups.lines().find_map(|line| version.group(line)) else { continue };
        // In a container only a part of the hierarchy may be mounted.
        let within = Path::new(group).strip_prefix(&root).unwrap_or(Path::new(""));
        folders.extend(
            path.join(within).ancestors().take_while(|at| at.starts_with(&path)).map(|at| (at.to_owned(), version)),
        );
    }
    folders.iter().filter_map(|(folder, version)| version.left(folder)).min()
}

/// A hierarchy of control groups that has limits of memory.
struct Mounted {
    root: PathBuf,
    path: PathBuf,
    version: Version,
}

/// Reads a line of proc_pid_mountinfo(5).
fn mounted(line: &str) -> Option<Mounted> {
    let (mount, kind) = line.split_once(" - ")?;
    let (mut mount, mut kind) = (mount.split(' ').skip(3), kind.split(' '));
    let version = match kind.next()? {
        "cgroup2" => Version::Two,
        "cgroup" if kind.nth(1)?.split(',').any(|option| option == "memory") => Version::One,
        _ => return None,
    };
    let mut path = || Some(PathBuf::from(unescape(mount.next()?.as_bytes())));
    Some(Mounted { root: path()?, path: path()?, version })
}

#[derive(Debug, Clone, Copy)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The group of a line of `/proc/self/cgroup`, if the line is about this hierarchy.
    fn group(self, line: &str) -> Option<&str> {
        let (_, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(':')?;
        let is_it = match self {
            Self::One => controllers.split(',').any(|controller| controller == "memory"),
            Self::Two => controllers.is_empty(),
        };
        is_it.then_some(group)
    }

    /// The rest of a group's limit, if it has one. Inactive cached bytes of files can be reclaimed, so they count as
    /// free.
    fn left(self, folder: &Path) -> Option<u64> {
        let (limit, used, cached) = match self {
            Self::One => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
            Self::Two => ("memory.max", "memory.current", "inactive_file "),
        };
        let read = |name| fs::read_to_string(folder.join(name)).ok();
        let number = |name| read(name)?.trim().parse::<u64>().ok();
        // `max` is no number.
        let (limit, used) = (number(limit)?, number(used)?);
        let stat = read("memory.stat").unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(cached)?.parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    }
}

/// A line such as `MemAvailable:   123 kB`, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A folder with files, removed in the end.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let folder = Self(std::env::temp_dir().join(format!("perfweave-{name}-{}", std::process::id())));
            for (file, text) in files {
                let path = folder.0.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text.replace("ROOT", folder.0.to_str().unwrap())).unwrap();
            }
            folder
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_smallest_limit_of_all_groups_counts() {
        const MOUNTS: &str = "24 1 0:21 / ROOT/two rw - cgroup2 none rw\n\
                              25 1 0:22 /docker/7 ROOT/one\\040mounted rw shared:1 - cgroup none rw,memory\n\
                              26 1 0:23 / ROOT/cpu rw - cgroup none rw,cpu\n27 1 0:24 / ROOT/other rw - tmpfs none rw\n";
        let groups = |groups: &str, files: &[(&str, &str)]| {
            let all = [&[("self/mountinfo", MOUNTS), ("self/cgroup", groups)], files].concat();
            let files = Files::new("groups", &all);
            of_groups(&files.0)
        };
        assert_eq!(groups("0::/\n", &[("two/x", "")]), None, "the root has no limit");
        // The parent group has less left.
        let two = [
            ("two/a/memory.max", "5000\n"),
            ("two/a/memory.current", "4000\n"),
            ("two/a/memory.stat", "anon 1000\ninactive_file 3000\n"),
            ("two/a/b/memory.max", "max\n"),
            ("two/a/b/memory.current", "10\n"),
            ("two/a/b/c/memory.max", "7000\n"),
            ("two/a/b/c/memory.current", "10\n"),
        ];
        assert_eq!(groups("1:cpu:/else\n0::/a/b/c\n", &two), Some(4000));
        assert_eq!(groups("0::/a/b\n", &two[..2]), Some(1000));
        // The container's own group is mounted.
        let one = [
            ("one mounted/d/memory.limit_in_bytes", "300\n"),
            ("one mounted/d/memory.usage_in_bytes", "100\n"),
            ("one mounted/d/memory.stat", "inactive_file 0\ntotal_inactive_file 50\n"),
            ("one mounted/memory.limit_in_bytes", "9223372036854771712\n"),
            ("one mounted/memory.usage_in_bytes", "100\n"),
        ];
        assert_eq!(groups("3:cpu:/\n2:memory:/docker/7/d\n0::/\n", &one), Some(250));
        // The use exceeds the limit.
        assert_eq!(
            groups("2:memory:/docker/7/d\n", &[one[0], ("one mounted/d/memory.usage_in_bytes", "301\n")]),
            Some(0)
        );
        assert_eq!(groups("2:memory:/another\n", &one[..2]), None, "it cannot be seen from here");
    }

    #[test]
    fn this_machine() {
        assert!(available().expect("procfs") > 1 << 20);
    }
}
