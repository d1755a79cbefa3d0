//! The machine: pages, CPUs, clocks, settings.

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a page.
pub(crate) fn page_size() -> usize {
    // The kernel always answers. If it did not, the smallest possible page would make mmap fail.
    let answer = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    answer.ok().flatten().and_then(|size| usize::try_from(size).ok()).unwrap_or(4096)
}

/// Whether the thread numbers here are those that the kernel writes into tracepoints: not in a PID namespace of a
/// container.
pub(crate) fn has_global_threads() -> bool {
    /// `PROC_PID_INIT_INO` of `include/linux/proc_ns.h`, unchanged since Linux 3.8.
    const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
    // Unknown without /proc.
    fs::metadata("/proc/self/ns/pid").map_or(true, |space| space.ino() == FIRST_PID_NAMESPACE)
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

/// The CPUs that are plugged in, online or not. None if they cannot be listed.
pub(crate) fn present_cpus() -> Vec<u32> {
    cpus("/sys/devices/system/cpu/present").unwrap_or_default()
}

/// The CPUs without ticks while a program runs on them (`nohz_full`). The file says "(null)" where there are none.
pub(crate) fn tickless_cpus() -> Vec<u32> {
    cpus("/sys/devices/system/cpu/nohz_full").unwrap_or_default()
}

/// The CPUs that are kept free of other work (`isolcpus`, `nohz_full`).
pub(crate) fn isolated_cpus() -> Vec<u32> {
    let mut isolated = cpus("/sys/devices/system/cpu/isolated").unwrap_or_default();
    isolated.extend(tickless_cpus());
    isolated
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

/// The kernel's messages about devices, of which CPUs are some (uevents, `lib/kobject_uevent.c`).
#[derive(Debug)]
pub(crate) struct CpuEvents(Arc<OwnedFd>);

impl CpuEvents {
    /// `Unsupported` if the messages do not reach this process.
    pub(crate) fn open() -> io::Result<Self> {
        if !uevents_reach_us() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let socket = socket::socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol)?;
        // Before any message arrives.
        hear_of_cpus_only(&socket)?;
        // The group that the kernel sends to.
        socket::bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 1))?;
        Ok(Self(Arc::new(socket)))
    }

    /// Becomes readable when a message comes.
    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.0
    }

    /// The messages since the last call. Ends behind [`Message::Dropped`], which says all that the next ones could say;
    /// they come with the next call. So a kernel that always drops messages costs one system call each time.
    pub(crate) fn drain(&self) -> impl Iterator<Item = Message> {
        let mut dropped = false;
        std::iter::from_fn(move || {
            if dropped {
                return None;
            }
            // Longer messages are cut; the relevant part is at the start.
            let mut message = [0; 256];
            match socket::recv(self.0.as_raw_fd(), &mut message, MsgFlags::empty()) {
                Ok(len) => Some(Message::of(&message[..len]).unwrap_or(Message::Other)),
                Err(Errno::EINTR) => Some(Message::Other),
                Err(Errno::ENOBUFS) => {
                    dropped = true;
                    Some(Message::Dropped)
                }
                Err(_) => None,
            }
        })
    }
}

/// Whether messages about devices are sent to this process's network namespace. Only namespaces of the first user
/// namespace get them (`uevent_net_init`).
fn uevents_reach_us() -> bool {
    // If unknown, assume that they are not.
    let Ok(network) = fs::File::open("/proc/thread-self/ns/net") else { return false };
    // SAFETY: takes no argument.
    let owner = super::check(unsafe { libc::ioctl(network.as_raw_fd(), libc::NS_GET_USERNS) }.into());
    let Some(owner) = owner.ok().and_then(|fd| i32::try_from(fd).ok()) else { return false };
    // SAFETY: a new file descriptor, nobody else's.
    let owner = fs::File::from(unsafe { OwnedFd::from_raw_fd(owner) });
    owner.metadata().is_ok_and(|owner| owner.ino() == super::status::FIRST_USER_NAMESPACE)
}

/// The actions and the device at the start of messages about CPUs, such as `online@/devices/system/cpu/cpu1`.
const ACTIONS: [&str; 4] = ["add@", "online@", "remove@", "offline@"];
const CPU: &[u8; 20] = b"/devices/system/cpu/";

/// Drops all other messages, so that they do not wake the reader: a filter that checks the device after each action.
fn hear_of_cpus_only(socket: &OwnedFd) -> io::Result<()> {
    let step = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let (load, unless_equal, answer) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::BPF_RET);
    let mut filter = Vec::new();
    // Two actions have the same length.
    for action in [ACTIONS[0], ACTIONS[1], ACTIONS[3]] {
        let words = CPU.chunks_exact(4);
        let steps = 2 * words.len();
        for (word, at) in words.zip((0..).step_by(4)) {
            let passed = filter.len() % (steps + 1);
            let to_next_action = (steps - passed - 1) as u8;
            let word = u32::from_be_bytes(word.try_into().unwrap_or_default());
            filter.push(step(load, 0, action.len() as u32 + at));
            filter.push(step(unless_equal, to_next_action, word));
        }
        filter.push(step(answer, 0, u32::MAX));
    }
    filter.push(step(answer, 0, 0));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let len = size_of_val(&program) as libc::socklen_t;
    let option = (&raw const program).cast();
    // SAFETY: program and filter are as long as they say, and live until the call returns.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, option, len) };
    super::check(set.into()).map(drop)
}

/// The subject of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// A CPU came online.
    Came(u32),
    /// A CPU went offline.
    Went(u32),
    /// Something else about a CPU: it was plugged in or out, or somebody asked for the message.
    Cpu(u32),
    /// Messages were dropped.
    Dropped,
    Other,
}

impl Message {
    /// What a message such as `online@/devices/system/cpu/cpu1` says.
    fn of(message: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(message.split(|byte| *byte == 0).next()?).ok()?;
        let (action, device) = text.split_once('@')?;
        let cpu = device.strip_prefix("/devices/system/cpu/cpu")?.parse().ok()?;
        match action {
            "online" => Some(Self::Came(cpu)),
            "offline" => Some(Self::Went(cpu)),
            "add" | "remove" => Some(Self::Cpu(cpu)),
            _ => None,
        }
    }

    pub(crate) fn may_be_about(self, cpu: u32) -> bool {
        match self {
            Self::Came(about) | Self::Went(about) | Self::Cpu(about) => about == cpu,
            Self::Dropped => true,
            Self::Other => false,
        }
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

/// A number in a file of `/proc/sys`.
pub(crate) fn setting(name: &str) -> Option<i64> {
    fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().parse().ok()
}

/// The list of mounts in the calling thread's mount namespace (proc_pid_mounts(5)), kept open, so that it can be read
/// even after `/proc` is unmounted.
#[derive(Debug)]
pub(crate) struct Mounts(fs::File);

/// A file system that is mounted somewhere.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) path: PathBuf,
    /// `ext4`, `tracefs`.
    pub(crate) kind: OsString,
    /// `rw,relatime`
    pub(crate) options: OsString,
}

impl Mounts {
    pub(crate) fn open() -> io::Result<Self> {
        Self::open_in(Path::new("/proc"))
    }

    /// The same where proc is mounted elsewhere.
    pub(crate) fn open_in(proc: &Path) -> io::Result<Self> {
        fs::File::open(proc.join("thread-self/mounts")).map(Self)
    }

    /// The mounted file systems, in the order of mounting.
    pub(crate) fn read(&self) -> io::Result<Vec<Mount>> {
        let (mut text, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match self.0.read_at(&mut chunk, text.len() as u64)? {
                0 => return Ok(text.split(|byte| *byte == b'\n').filter_map(parse_mount).collect()),
                len => text.extend_from_slice(&chunk[..len]),
            }
        }
    }
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
    use nix::poll::{PollFd, PollFlags};
    use std::os::fd::AsFd;

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
    fn messages_about_cpus_are_told_from_others() {
        assert_eq!(Message::of(b"online@/devices/system/cpu/cpu1\0ACTION=online\0"), Some(Message::Came(1)));
        assert_eq!(Message::of(b"offline@/devices/system/cpu/cpu255\0"), Some(Message::Went(255)));
        assert_eq!(Message::of(b"add@/devices/system/cpu/cpu3\0"), Some(Message::Cpu(3)));
        for other in [
            &b""[..],
            b"\0",
            b"online@/devices/system/cpu/cpu",
            b"change@/devices/system/cpu/cpu1",
            b"add@/devices/virtual/cpuid/cpu1",
            b"\xff@",
        ] {
            assert_eq!(Message::of(other), None);
        }
    }

    /// The kernel's own messages, caused by writes to `uevent`: about a CPU, and about another device.
    #[test]
    fn messages_about_cpus_come_and_no_others() {
        let Some(events) = perfweave_support::kernel("hear of devices", CpuEvents::open()) else { return };
        // Other programs may take CPUs offline and back meanwhile.
        let send = |device: &str, action| fs::write(Path::new("/sys/devices").join(device).join("uevent"), action);
        // One of each length.
        for (action, message) in [("add", Message::Cpu(0)), ("online", Message::Came(0)), ("offline", Message::Went(0))]
        {
            let sent = send("virtual/mem/null", "change").and_then(|()| send("system/cpu/cpu0", action));
            let Some(()) = perfweave_support::kernel("make the kernel send messages", sent) else { return };
            let mut heard = Vec::new();
            while !heard.contains(&message) {
                let mut poll = [PollFd::new(events.socket().as_fd(), PollFlags::POLLIN)];
                assert_eq!(nix::poll::poll(&mut poll, 60_000u16), Ok(1), "it was sent and did not come");
                heard.extend(events.drain());
            }
            assert!(!heard.contains(&Message::Other), "{heard:?}");
        }
    }

    /// In a network namespace of another user namespace no messages come, and the crate knows that. This runs in its
    /// own process.
    #[test]
    fn where_no_messages_come_none_are_waited_for() {
        if std::env::var_os("PERFWEAVE_DEAF").is_some() {
            assert!(!uevents_reach_us());
            return assert_eq!(CpuEvents::open().unwrap_err().kind(), io::ErrorKind::Unsupported);
        }
        let test = "sys::machine::tests::where_no_messages_come_none_are_waited_for";
        let mut deaf = std::process::Command::new("unshare");
        deaf.args(["--user", "--net"]).arg(std::env::current_exe().unwrap()).args(["--exact", test]);
        let said = perfweave_support::kernel("run unshare(1)", deaf.env("PERFWEAVE_DEAF", "1").output());
        let Some(said) = said else { return };
        if String::from_utf8_lossy(&said.stderr).contains("unshare failed") {
            return perfweave_support::lacks("user namespaces for this user");
        }
        assert!(said.status.success(), "{said:?}");
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
        let mounts = Mounts::open().unwrap().read().unwrap();
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
