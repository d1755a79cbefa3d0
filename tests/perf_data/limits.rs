//! Limits of memory: of the process, and of its control group. Each test runs in its own process with these limits.

use crate::perf::File;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use perfweave::{Certainty, Hold, Merge, Order, sim};
use perfweave_perf_data as perf_data;
use perfweave_support::{assert_error, kernel, lacks, number_behind};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of a record of the longest kind.
const LONG: u64 = 65_528;

/// A recording with this many long records on one CPU. Nearly all of the file is a hole, and takes no disk space.
fn large(records: u64) -> File {
    let file = File::new();
    let rings = sim::Kernel::new(&[0]).rings();
    perf_data::Writer::create(&file.0, &rings).unwrap().finish().unwrap();
    let bytes = fs::read(&file.0).unwrap();
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let (each, attrs) = (word(16), word(24) as usize);
    let mut head = bytes[..104].to_vec();
    let end = 104 + records * LONG;
    // The place of the event's description, the place of the records, and no other sections.
    for (at, word) in [(24, end), (32, each), (40, 104), (48, records * LONG), (72, 0)] {
        head[at..at + 8].copy_from_slice(&u64::to_ne_bytes(word));
    }
    let event = &bytes[attrs..attrs + each as usize];
    let large = File::new();
    let out = fs::File::create(&large.0).unwrap();
    out.write_all_at(&head, 0).unwrap();
    out.write_all_at(event, end).unwrap();
    let sample_type = u64::from_ne_bytes(event[24..32].try_into().unwrap());
    // A header, fields that are 0, and the length of the raw data.
    let fields = 8 * (sample_type & !(1 << 10)).count_ones();
    let header = (9 | LONG << 48).to_ne_bytes();
    let raw = (LONG as u32 - 8 - fields - 4).to_ne_bytes();
    for at in (0..records).map(|n| 104 + n * LONG) {
        out.write_all_at(&header, at).unwrap();
        out.write_all_at(&raw, at + 8 + u64::from(fields)).unwrap();
    }
    large
}

/// Runs this test again, with a file to open, in a control group or none. It must succeed.
fn again(test: &str, file: &File, group: &Path) {
    let mut limited = Command::new(std::env::current_exe().unwrap());
    limited.args(["--exact", test]).env("PERFWEAVE_LIMITED", file.path()).env("PERFWEAVE_GROUP", group);
    // The limit includes glibc's reservation for the heap of a thread.
    limited.env("MALLOC_ARENA_MAX", "1");
    let said = limited.output().unwrap();
    assert!(said.status.success(), "{}: {}", said.status, String::from_utf8_lossy(&said.stdout));
}

fn limited() -> Option<PathBuf> {
    std::env::var_os("PERFWEAVE_LIMITED").map(PathBuf::from)
}

/// The recording is refused, and the error says how much of the limit is left.
fn is_refused(path: &Path, least: u64, limit: u64) {
    let [bytes, available] = crate::memory::lacking(&perf_data::open(path).map(|_| "it was read").unwrap_err());
    assert!(bytes >= least && available <= limit, "{bytes} of {available} bytes");
}

/// Limits the memory that this process can get in addition.
fn limit_more(bytes: u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
    let (_, most) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, size + bytes, most).unwrap();
}

/// A recording of this many short records on each of two CPUs.
fn short(records: u64) -> File {
    let file = File::new();
    let kernel = sim::Kernel::new(&[0, 1]);
    let rings = kernel.rings();
    let mut writer = perf_data::Writer::create(&file.0, &rings).unwrap();
    let mut merge = Merge::new(rings, Order::new().hold(Hold::None)).unwrap();
    for n in 0..records {
        kernel.emit(0, 2 * n + 1, &[]);
        kernel.emit(1, 2 * n + 2, &[]);
        if n % 16 == 0 || n + 1 == records {
            merge.refresh(0);
        }
        while let Some(event) = merge.next() {
            writer.write(&event.event()).unwrap();
        }
    }
    assert_eq!(writer.finish().unwrap().records, 2 * records);
    file
}

/// Reads a recording to its end, in order, and says how many records there are.
fn read(path: &Path) -> u64 {
    let mut merge = Merge::new(perf_data::open(path).unwrap(), Order::new()).unwrap();
    let (mut records, mut last) = (0, 0);
    loop {
        if merge.refresh(0) == 0 && merge.held() == 0 {
            return records;
        }
        while let Some(event) = merge.next() {
            assert!(event.key().unwrap() >= last && event.certainty() == Certainty::Proven);
            last = event.key().unwrap();
            records += 1;
        }
    }
}

/// The index takes 16 bytes for each record, some 14 MiB. Where that is more than half of what is left, the reader is
/// refused and nothing ends the process. Where it fits, all is read.
#[test]
fn an_index_that_does_not_fit_is_an_error_with_its_bytes() {
    const RECORDS: u64 = 450_000;
    let Some(path) = limited() else {
        return again("limits::an_index_that_does_not_fit_is_an_error_with_its_bytes", &short(RECORDS), Path::new(""));
    };
    let most = memory_of_rings(&path);
    for more in [2 << 20, 20 << 20] {
        limit_more(most + more);
        let error = Merge::new(perf_data::open(&path).unwrap(), Order::new()).unwrap_err();
        assert_error!(error, Limit, "RLIMIT_AS");
        let said = error.to_string();
        let [bytes, may] = ["takes ", "of which "].map(|text| number_behind(&said, text));
        assert!((RECORDS * 32..RECORDS * 40).contains(&bytes) && may <= more / 2, "{said}");
    }
    limit_more(most + (60 << 20));
    assert_eq!(read(&path), 2 * RECORDS);
}

/// Bytes of memory that the rings of a recording take.
fn memory_of_rings(path: &Path) -> u64 {
    let rings = perf_data::open(path).unwrap();
    rings.cpus().map(|cpu| rings.raw(cpu).unwrap().size as u64).sum()
}

#[test]
fn a_limit_of_the_process_is_an_error_and_not_its_end() {
    const LIMIT: u64 = 64 << 20;
    let Some(path) = limited() else {
        let file = large(1500);
        assert!(perf_data::open(&file.0).unwrap().cpus().len() > 0);
        return again("limits::a_limit_of_the_process_is_an_error_and_not_its_end", &file, Path::new(""));
    };
    limit_more(LIMIT);
    is_refused(&path, 1500 * LONG, LIMIT);
}

/// A control group with a limit, removed when dropped.
struct Group(PathBuf);

impl Group {
    /// A sibling of this process's own group. An error if there is no memory controller, or this process may not use
    /// it.
    fn new(limit: u64) -> std::io::Result<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let own = |name: &str| {
            let line = groups.lines().find(|line| line.split(':').nth(1) == Some(name))?;
            Some(line.rsplit(':').next()?.trim_start_matches('/').to_owned())
        };
        let one = own("memory").map(|own| (Path::new("/sys/fs/cgroup/memory").join(own), "memory.limit_in_bytes"));
        let two = own("").map(|own| (Path::new("/sys/fs/cgroup").join(own), "memory.max"));
        let (parent, file) = one.or(two).ok_or(std::io::ErrorKind::NotFound)?;
        let group = Self(parent.join(format!("perfweave-{}", std::process::id())));
        fs::create_dir(&group.0)?;
        fs::write(group.0.join(file), limit.to_string())?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_limit_of_a_control_group_is_an_error_and_no_kill() {
    const LIMIT: u64 = 64 << 20;
    let Some(path) = limited() else {
        let group = match Group::new(LIMIT) {
            Ok(group) => group,
            Err(errno) if errno.kind() == std::io::ErrorKind::PermissionDenied => {
                kernel::<(), _>("make a control group", Err(errno));
                return;
            }
            Err(errno) => return lacks(&format!("a memory controller for control groups: {errno}")),
        };
        let file = large(1500);
        return again("limits::a_limit_of_a_control_group_is_an_error_and_no_kill", &file, &group.0);
    };
    let group = PathBuf::from(std::env::var_os("PERFWEAVE_GROUP").unwrap());
    fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    is_refused(&path, 1500 * LONG, LIMIT);
    // Moves back to the old group, so that this one can be removed.
    fs::write(group.parent().unwrap().join("cgroup.procs"), std::process::id().to_string()).unwrap();
}
