//! The machine: pages, CPUs, clocks, settings.

use nix::fcntl::AtFlags;
use nix::sys::stat;
use std::ffi::{CStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a page.
pub(crate) fn page_size() -> usize {
    // The kernel always answers. If it did not, the smallest possible page would make mmap fail.
    let answer = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    answer.ok().flatten().and_then(|size| usize::try_from(size).ok()).unwrap_or(4096)
}

/// Whether the CPUs agree on the perf clock (`local_clock`), as far as that can be told. `user_time`: what a ring's
/// header page says.
///
/// Where the time stamp counter is unstable, each CPU's perf clock goes by itself, within bounds of some scheduler
/// ticks (`kernel/sched/clock.c`). The header page says that the clock is a stable counter (`cap_user_time`,
/// `arch_perf_update_userpage` of `arch/x86/events/core.c`). It says nothing in a virtual machine whose clock goes by
/// the hypervisor's; there the kernel keeps the counter as clock source only while it is stable.
pub(crate) fn perf_clock_agrees(user_time: bool) -> bool {
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    agrees(user_time, source.ok().as_deref())
}

fn agrees(user_time: bool, clock_source: Option<&str>) -> bool {
    /// Their perf clock is one counter of the machine: they do not select `HAVE_UNSTABLE_SCHED_CLOCK`.
    const ONE_COUNTER: bool =
        cfg!(any(target_arch = "aarch64", target_arch = "powerpc64", target_arch = "riscv64", target_arch = "s390x"));
    user_time || ONE_COUNTER || clock_source.is_some_and(|source| source.trim() == "tsc")
}

/// The CPUs that are online, in order. Numbers may be missing in between.
pub(crate) fn online_cpus() -> io::Result<Vec<u32>> {
    cpus("/sys/devices/system/cpu/online")
}

/// The CPUs that the machine could ever have.
pub(crate) fn possible_cpus() -> io::Result<Vec<u32>> {
    cpus("/sys/devices/system/cpu/possible")
}

/// The CPUs without ticks while a program runs on them (`nohz_full`). The file says "(null)" where there are none.
pub(crate) fn tickless_cpus() -> Vec<u32> {
    cpus("/sys/devices/system/cpu/nohz_full").unwrap_or_default()
}

fn cpus(path: &str) -> io::Result<Vec<u32>> {
    let list = fs::read_to_string(path)?;
    let mut cpus = Vec::new();
    match parse_cpus(list.trim(), &mut cpus) {
        Some(()) => Ok(cpus),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{path}: {list}"))),
    }
}

/// The list of online CPUs, kept open: it can still be read after chroot(2), without `/sys`, and out of descriptors.
#[derive(Debug)]
pub(crate) struct OnlineCpus(fs::File);

/// The last content of a list, and memory to read it again without allocating.
#[derive(Debug)]
pub(crate) struct CpuList {
    pub(crate) cpus: Vec<u32>,
    text: Vec<u8>,
    new: Vec<u8>,
}

impl CpuList {
    /// Nothing was read yet.
    pub(crate) fn new() -> Self {
        let page = || Vec::with_capacity(page_size());
        Self { cpus: Vec::with_capacity(possible_cpus().map_or(0, |cpus| cpus.len())), text: page(), new: page() }
    }
}

impl OnlineCpus {
    pub(crate) fn open() -> io::Result<Self> {
        fs::File::open("/sys/devices/system/cpu/online").map(Self)
    }

    /// Reads the list. Returns whether it has changed.
    pub(crate) fn read(&self, last: &mut CpuList) -> io::Result<bool> {
        // Files of sysfs are at most a page.
        last.new.resize(page_size(), 0);
        let len = self.0.read_at(&mut last.new, 0)?;
        last.new.truncate(len);
        if last.new == last.text {
            return Ok(false);
        }
        let text = std::str::from_utf8(&last.new).map_err(|_| io::ErrorKind::InvalidData)?;
        parse_cpus(text.trim(), &mut last.cpus).ok_or(io::ErrorKind::InvalidData)?;
        std::mem::swap(&mut last.new, &mut last.text);
        Ok(true)
    }

    /// Whether `num_online_cpus() > 1`: `0` or `0-1` or `0,2`.
    pub(crate) fn are_several(&self) -> io::Result<bool> {
        let mut list = [0; 64];
        let len = self.0.read_at(&mut list, 0)?;
        Ok(list[..len].iter().any(|byte| matches!(byte, b'-' | b',')))
    }
}

/// What shows that a CPU has gone and come back between two readings of the list. Kept open, as the list is.
#[derive(Debug)]
pub(crate) struct CpuStays {
    /// The number of the kernel's last message about any device. Each CPU that goes and comes causes some (`online@`
    /// and `offline@`, `drivers/base/core.c`), also if nobody hears them.
    messages: Option<fs::File>,
    last: [u8; 24],
    cpus: fs::File,
}

impl CpuStays {
    pub(crate) fn open() -> io::Result<Self> {
        let messages = fs::File::open("/sys/kernel/uevent_seqnum").ok();
        Ok(Self { messages, last: [0; 24], cpus: fs::File::open("/sys/devices/system/cpu")? })
    }

    /// Whether a CPU may have gone or come since the last call. True if that is unknown.
    pub(crate) fn may_have_changed(&mut self) -> bool {
        let mut number = [0; 24];
        let read = self.messages.as_ref().is_some_and(|file| file.read_at(&mut number, 0).is_ok());
        std::mem::replace(&mut self.last, number) != number || !read
    }

    /// Tells the present stay of a CPU that is online from all others: the number of a directory that the kernel makes
    /// anew each time that the CPU comes (`topology_add_dev`, `drivers/base/topology.c`), and never gives to another.
    pub(crate) fn of(&self, cpu: u32) -> Option<u64> {
        // Without allocating, as all that a reader does while nothing comes or goes.
        let mut directory = [0; 32];
        write!(&mut directory[..], "cpu{cpu}/topology").ok()?;
        let directory = CStr::from_bytes_until_nul(&directory).ok()?;
        stat::fstatat(&self.cpus, directory, AtFlags::empty()).ok().map(|found| found.st_ino)
    }
}

/// Reads a list such as `0-3,8`: "Decimally-separated list" of Documentation/admin-guide/cputopology.rst.
fn parse_cpus(list: &str, cpus: &mut Vec<u32>) -> Option<()> {
    cpus.clear();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(())
}

/// The kernel's version, as uname(2) has it.
pub(crate) fn release() -> String {
    nix::sys::utsname::uname().map_or_else(|_| "unknown".into(), |name| name.release().to_string_lossy().into_owned())
}

/// Whether the kernel is older than a version, or does not say which it is.
pub(crate) fn may_be_older_than(version: [u32; 2]) -> bool {
    parse_release(&release()).is_none_or(|this| this < version)
}

/// The first two numbers of a release such as `6.1.0-18-amd64`.
fn parse_release(release: &str) -> Option<[u32; 2]> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|digits| digits.parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

/// Whether events of a type may be those of a unit (PMU): also if units cannot be listed.
pub(crate) fn may_be_unit(name: &str, type_: u32) -> bool {
    const UNITS: &str = "/sys/bus/event_source/devices";
    match fs::read_to_string(Path::new(UNITS).join(name).join("type")) {
        Ok(number) => number.trim().parse() == Ok(type_),
        Err(errno) => errno.kind() != io::ErrorKind::NotFound || !Path::new(UNITS).exists(),
    }
}

/// A number in a file of `/proc/sys`.
pub(crate) fn setting(name: &str) -> Option<i64> {
    fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().parse().ok()
}

/// A file system that is mounted somewhere.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) path: PathBuf,
    /// `ext4`, `tracefs`.
    pub(crate) kind: OsString,
    /// `rw,relatime`
    pub(crate) options: OsString,
}

/// What is mounted in the calling thread's mount namespace (proc_pid_mounts(5)), in the order of mounting.
pub(crate) fn mounts() -> io::Result<Vec<Mount>> {
    let text = fs::read("/proc/thread-self/mounts")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse_mount).collect())
}

/// Reads a line such as `tracefs /sys/kernel/tracing tracefs rw 0 0`.
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (_device, path, kind, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    Some(Mount { path: unescape(path).into(), kind: unescape(kind), options: unescape(options) })
}

/// Blanks, tabs, line feeds and backslashes are written as `\040`, `\011`, `\012` and `\134` (`mangle_path`,
/// `fs/seq_file.c`).
pub(super) fn unescape(mut field: &[u8]) -> OsString {
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

/// The target of a file descriptor, as `/proc` names it: a path, or a name such as `anon_inode:bpf-map`. `None` without
/// `/proc`.
pub(crate) fn what_is(fd: BorrowedFd<'_>) -> Option<String> {
    let link = fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd())).ok()?;
    Some(link.to_string_lossy().into_owned())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use perfweave_support::threads;

    /// What is not known to agree does not prove.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_perf_clock_agrees_where_its_counter_is_stable() {
        for source in [None, Some("tsc\n"), Some("hpet\n"), Some("")] {
            assert!(agrees(true, source), "{source:?}");
        }
        assert!(agrees(false, Some("tsc\n")));
        for source in [
            None,
            Some(""),
            Some("hpet\n"),
            Some("acpi_pm\n"),
            Some("jiffies\n"),
            Some("tsc-early\n"),
            Some("kvm-clock\n"),
        ] {
            assert!(!agrees(false, source), "{source:?}");
        }
    }

    #[test]
    fn cpu_lists_may_be_sparse() {
        let mut cpus = vec![7];
        for (list, expected) in
            [("0", vec![0]), ("0-3,8", vec![0, 1, 2, 3, 8]), ("0,2,5-6", vec![0, 2, 5, 6]), ("", vec![])]
        {
            assert_eq!(parse_cpus(list, &mut cpus), Some(()));
            assert_eq!(cpus, expected);
        }
        assert_eq!(parse_cpus("0-x", &mut cpus), None);
    }

    #[test]
    fn a_message_about_any_device_says_that_a_cpu_may_have_come() {
        let mut stays = CpuStays::open().unwrap();
        assert!(stays.may_have_changed(), "nobody has looked before");
        // Other devices may come meanwhile.
        threads::until("no message comes", || !stays.may_have_changed());
        let sent = fs::write("/sys/devices/virtual/mem/null/uevent", "change");
        let Some(()) = perfweave_support::kernel("make the kernel send a message", sent) else { return };
        assert!(stays.may_have_changed());
        stays.messages = None;
        assert!(stays.may_have_changed() && stays.may_have_changed(), "unknown");
        assert!(stays.of(0).is_some() && stays.of(0) == stays.of(0) && stays.of(u32::MAX).is_none());
    }

    #[test]
    fn mounts_have_any_path() {
        let mount = |path: &str, kind: &str| {
            Some(Mount { path: path.into(), kind: kind.into(), options: "rw,relatime".into() })
        };
        for (line, expected) in [
            ("tracefs /sys/kernel/tracing tracefs rw,relatime 0 0", mount("/sys/kernel/tracing", "tracefs")),
            (r"none /a\040b\011c\012d\134e fuse.\040 rw,relatime 0 0", mount("/a b\tc\nd\\e", "fuse. ")),
            (r"none /\1340\\777\04 tmpfs rw,relatime", mount(r"/\0\\777\04", "tmpfs")),
            ("none /short", None),
            ("", None),
        ] {
            assert_eq!(parse_mount(line.as_bytes()), expected, "{line}");
        }
        let mounts = mounts().unwrap();
        assert!(mounts.iter().any(|mount| mount.path == Path::new("/")), "{mounts:?}");
    }

    #[test]
    fn releases_begin_with_two_numbers() {
        for (release, expected) in [
            ("6.18.44-fc-v669", Some([6, 18])),
            ("4.17.0", Some([4, 17])),
            ("5.10", Some([5, 10])),
            ("6.1-rc2", Some([6, 1])),
            ("unknown", None),
            ("", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(parse_release(release), expected, "{release}");
        }
        assert!(!may_be_older_than([4, 17]) && may_be_older_than([u32::MAX, 0]));
    }

    #[test]
    fn this_machine() {
        assert!(page_size().is_power_of_two());
        let online = online_cpus().unwrap();
        assert!(!online.is_empty());
        assert!(possible_cpus().unwrap().len() >= online.len());
    }
}
