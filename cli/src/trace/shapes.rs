//! Structs and lists to which arguments of system calls point, as strace(1) prints them.
//!
//! Sizes and offsets are those of the kernel's headers, as bindgen has them in the crate linux-raw-sys.

use super::named::{flag_names, signal};
use super::opened::Opened;
use super::program::Length;
use linux_raw_sys::general as kernel;
use linux_raw_sys::ioctl;
use linux_raw_sys::net;
use std::fmt::Write;
use std::mem::offset_of;
use std::net::{Ipv4Addr, Ipv6Addr};

/// What an argument points to.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub length: Length,
    /// Whether the call has written it, so that it is copied at the return.
    pub is_returned: bool,
    /// Whether it is a length that the call is given and gives back.
    pub is_length: bool,
    pub text: Text,
}

/// Prints what was copied, as far as it is whole.
type Text = fn(&Seen<'_>) -> Option<String>;

/// What was copied.
#[derive(Debug)]
pub struct Seen<'a> {
    pub bytes: &'a [u8],
    pub values: &'a [u64; 6],
    pub result: Option<i64>,
    /// What is behind descriptors.
    pub opened: Option<&'a Opened>,
    /// The most elements of a list that are printed.
    pub limit: usize,
}

/// Numbers at places of a struct.
pub trait Numbers {
    fn part<const N: usize>(&self, at: usize) -> Option<[u8; N]>;

    fn u16(&self, at: usize) -> Option<u16> {
        self.part(at).map(u16::from_ne_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.part(at).map(u32::from_ne_bytes)
    }

    fn i32(&self, at: usize) -> Option<i32> {
        self.part(at).map(i32::from_ne_bytes)
    }

    fn i64(&self, at: usize) -> Option<i64> {
        self.part(at).map(i64::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.part(at).map(u64::from_ne_bytes)
    }
}

impl Numbers for [u8] {
    fn part<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.get(at..)?.first_chunk().copied()
    }
}

/// What an argument with this name and type points to, if it is known.
pub fn of(call: &str, argument: &str, kind: &str) -> Option<Shape> {
    let (length, is_returned, text) = times(call, argument, kind).or_else(|| others(call, argument, kind))?;
    let is_length = kind == "int *" && call != "wait4" && length == Length::Bytes(4);
    Some(Shape { length, is_returned, is_length, text })
}

/// How long it is, whether the call has written it, and its text.
type Of = (Length, bool, Text);

fn size(bytes: usize) -> Length {
    Length::Bytes(bytes as u32)
}

/// Times. The type says what it is, and the call whether it reads or writes it.
fn times(call: &str, argument: &str, kind: &str) -> Option<Of> {
    Some(match (call, argument) {
        ("utimes" | "futimesat", "utimes") => {
            (size(2 * size_of::<kernel::__kernel_old_timeval>()), false, two_timevals)
        }
        ("utime", "times") => (size(size_of::<nix::libc::utimbuf>()), false, two_seconds),
        ("utimensat", "utimes") => (size(2 * size_of::<kernel::__kernel_timespec>()), false, two_times),
        ("nanosleep" | "clock_nanosleep", "rmtp") => return None,
        ("clock_gettime" | "clock_getres" | "sched_rr_get_interval", _) if kind.contains("timespec") => {
            (size(size_of::<kernel::__kernel_timespec>()), true, timespec)
        }
        _ if kind.contains("__kernel_timespec") => (size(size_of::<kernel::__kernel_timespec>()), false, timespec),
        ("gettimeofday", "tv") => (size(size_of::<kernel::__kernel_old_timeval>()), true, timeval),
        ("select" | "settimeofday", _) if kind.contains("timeval") => {
            (size(size_of::<kernel::__kernel_old_timeval>()), false, timeval)
        }
        ("getitimer", _) | (_, "ovalue") if kind.contains("itimerval") => {
            (size(size_of::<kernel::__kernel_old_itimerval>()), true, itimerval)
        }
        _ if kind.contains("itimerval") => (size(size_of::<kernel::__kernel_old_itimerval>()), false, itimerval),
        ("timer_gettime" | "timerfd_gettime", _) | (_, "otmr" | "old_setting") if kind.contains("itimerspec") => {
            (size(size_of::<kernel::__kernel_itimerspec>()), true, itimerspec)
        }
        _ if kind.contains("itimerspec") => (size(size_of::<kernel::__kernel_itimerspec>()), false, itimerspec),
        _ => return None,
    })
}

fn others(call: &str, argument: &str, kind: &str) -> Option<Of> {
    Some(match (call, argument) {
        ("getrlimit", "rlim") | ("prlimit64", "old_rlim") => (size(size_of::<kernel::rlimit64>()), true, rlimit),
        ("setrlimit", "rlim") | ("prlimit64", "new_rlim") => (size(size_of::<kernel::rlimit64>()), false, rlimit),
        ("rt_sigaction", "act") => (size(size_of::<kernel::kernel_sigaction>()), false, sigaction),
        ("rt_sigaction", "oact") => (size(size_of::<kernel::kernel_sigaction>()), true, sigaction),
        (_, "oset" | "uset") if kind.contains("sigset_t") => (size(size_of::<kernel::kernel_sigset_t>()), true, sigset),
        _ if kind.contains("sigset_t") => (size(size_of::<kernel::kernel_sigset_t>()), false, sigset),
        _ if kind == "struct stat *" => (size(size_of::<kernel::stat>()), true, stat),
        _ if kind == "struct statx *" => (size(size_of::<kernel::statx>()), true, statx),
        ("pipe" | "pipe2", "fildes") | ("socketpair", "usockvec") => (size(8), true, two_descriptors),
        ("wait4", "stat_addr") => (size(4), true, status),
        ("select" | "pselect6", "inp" | "outp" | "exp") => (Length::Bits(0), false, descriptors),
        ("epoll_wait" | "epoll_pwait" | "epoll_pwait2", "events") => {
            (Length::Returned(size_of::<kernel::epoll_event>() as u32), true, epoll_events)
        }
        ("poll" | "ppoll", "ufds") => (Length::Elements(1, size_of::<kernel::pollfd>() as u32), false, poll),
        ("connect" | "bind", _) if kind.contains("sockaddr") => (Length::Elements(2, 1), false, address),
        ("sendto", "addr") => (Length::Elements(5, 1), false, address),
        ("accept" | "accept4" | "getsockname" | "getpeername" | "recvfrom", _) if kind.contains("sockaddr") => {
            (size(SOCKADDR), true, address)
        }
        (_, "upeer_addrlen" | "usockaddr_len" | "addr_len") if kind == "int *" => (size(4), true, number),
        ("getsockopt", "optlen") => (size(4), true, number),
        ("getsockopt", "optval") => (size(4), true, option_read),
        ("setsockopt", "optval") => (Length::Elements(4, 1), false, option),
        ("uname", _) => (size(size_of::<kernel::__kernel_fd_set>().max(3 * UTS)), true, uname),
        ("getdents64" | "getdents", _) if kind.contains('*') => (Length::Whole, true, entries),
        ("sched_getaffinity", "user_mask_ptr") => (Length::Whole, true, cpus),
        ("sched_setaffinity", "user_mask_ptr") => (Length::Elements(1, 1), false, cpus),
        ("clone3", "uargs") => (Length::Elements(1, 1), false, clone_args),
        ("copy_file_range" | "sendfile" | "splice", _) if kind.contains("loff_t *") => (size(8), false, long),
        ("statfs" | "fstatfs", "buf") => (size(size_of::<kernel::statfs>()), true, statfs),
        ("sysinfo", _) => (size(size_of::<nix::libc::sysinfo>()), true, sysinfo),
        ("sigaltstack", "uss") => (size(size_of::<kernel::stack_t>()), false, stack),
        ("sigaltstack", "uoss") => (size(size_of::<kernel::stack_t>()), true, stack),
        ("epoll_ctl", "event") => (size(size_of::<kernel::epoll_event>()), false, epoll_event),
        ("getgroups", "grouplist") => (Length::Returned(4), true, groups),
        ("getrusage", "ru") => (size(size_of::<kernel::rusage>()), true, usage),
        ("timer_create", "timer_event_spec") => (size(size_of::<kernel::sigevent>()), false, notified),
        ("timer_create", "created_timer_id") => (size(4), true, number),
        ("sched_setscheduler" | "sched_setparam", "param") => (size(4), false, number),
        ("sched_getparam", "param") => (size(4), true, number),
        ("getresuid" | "getresgid", _) => (size(4), true, number),
        _ => return None,
    })
}

/// The longest address of a socket but for AF_UNIX with a long path: what is behind is not read.
const SOCKADDR: usize = 112;
/// A name in `struct new_utsname`.
const UTS: usize = 65;

fn timespec(seen: &Seen<'_>) -> Option<String> {
    timespec_at(seen.bytes, 0)
}

fn timespec_at(bytes: &[u8], at: usize) -> Option<String> {
    let seconds = bytes.i64(at + offset_of!(kernel::__kernel_timespec, tv_sec))?;
    let nanoseconds = bytes.i64(at + offset_of!(kernel::__kernel_timespec, tv_nsec))?;
    Some(format!("{{tv_sec={seconds}, tv_nsec={nanoseconds}}}"))
}

fn two_times(seen: &Seen<'_>) -> Option<String> {
    let one = |at: usize| {
        let nanoseconds = seen.bytes.i64(at + offset_of!(kernel::__kernel_timespec, tv_nsec))?;
        match u32::try_from(nanoseconds) {
            Ok(now) if i64::from(now) == nix::libc::UTIME_NOW => Some("UTIME_NOW".into()),
            Ok(omit) if i64::from(omit) == nix::libc::UTIME_OMIT => Some("UTIME_OMIT".into()),
            _ => {
                Some(timespec_at(seen.bytes, at)? + &date(seen.bytes.i64(at)?, nanoseconds, false).unwrap_or_default())
            }
        }
    };
    Some(format!("[{}, {}]", one(0)?, one(size_of::<kernel::__kernel_timespec>())?))
}

/// The same of two `struct timeval`.
fn two_timevals(seen: &Seen<'_>) -> Option<String> {
    let one = |at: usize| {
        let microseconds = seen.bytes.i64(at + offset_of!(kernel::__kernel_old_timeval, tv_usec))?;
        let date = date(seen.bytes.i64(at)?, microseconds.checked_mul(1000)?, true);
        Some(timeval_at(seen.bytes, at)? + &date.unwrap_or_default())
    };
    Some(format!("[{}, {}]", one(0)?, one(size_of::<kernel::__kernel_old_timeval>())?))
}

/// Two times in seconds.
fn two_seconds(seen: &Seen<'_>) -> Option<String> {
    type Times = nix::libc::utimbuf;
    let one = |at: usize| {
        let seconds = seen.bytes.i64(at)?;
        Some(format!("{seconds}{}", date(seconds, 0, false).unwrap_or_default()))
    };
    let [actime, modtime] = [offset_of!(Times, actime), offset_of!(Times, modtime)].map(one);
    Some(format!("{{actime={}, modtime={}}}", actime?, modtime?))
}

/// ` /* 2026-11-28T11:16:19.123456789+0000 */`, where the machine is. As strace(1) has it, 0 is no date.
/// `is_short`: in microseconds.
fn date(seconds: i64, nanoseconds: i64, is_short: bool) -> Option<String> {
    if (seconds, nanoseconds) == (0, 0) {
        return None;
    }
    let time = jiff::Timestamp::new(seconds, nanoseconds.try_into().ok()?).ok()?;
    let time = time.to_zoned_datetime(jiff::tz::TimeZone::system());
    let form = match nanoseconds {
        0 => "%Y-%m-%dT%H:%M:%S%z",
        _ if is_short => "%Y-%m-%dT%H:%M:%S.%6f%z",
        _ => "%Y-%m-%dT%H:%M:%S.%9f%z",
    };
    Some(format!(" /* {} */", time.strftime(form)))
}

fn timeval(seen: &Seen<'_>) -> Option<String> {
    timeval_at(seen.bytes, 0)
}

fn timeval_at(bytes: &[u8], at: usize) -> Option<String> {
    let seconds = bytes.i64(at + offset_of!(kernel::__kernel_old_timeval, tv_sec))?;
    let microseconds = bytes.i64(at + offset_of!(kernel::__kernel_old_timeval, tv_usec))?;
    Some(format!("{{tv_sec={seconds}, tv_usec={microseconds}}}"))
}

fn itimerval(seen: &Seen<'_>) -> Option<String> {
    let [interval, value] =
        [offset_of!(kernel::__kernel_old_itimerval, it_interval), offset_of!(kernel::__kernel_old_itimerval, it_value)]
            .map(|at| timeval_at(seen.bytes, at));
    Some(format!("{{it_interval={}, it_value={}}}", interval?, value?))
}

fn itimerspec(seen: &Seen<'_>) -> Option<String> {
    let [interval, value] =
        [offset_of!(kernel::__kernel_itimerspec, it_interval), offset_of!(kernel::__kernel_itimerspec, it_value)]
            .map(|at| timespec_at(seen.bytes, at));
    Some(format!("{{it_interval={}, it_value={}}}", interval?, value?))
}

fn rlimit(seen: &Seen<'_>) -> Option<String> {
    let limit = |at: usize| {
        Some(match seen.bytes.u64(at)? {
            u64::MAX => "RLIM64_INFINITY".into(),
            // As strace has it: a multiple of 1024 is one.
            bytes if bytes > 1024 && bytes.is_multiple_of(1024) => format!("{}*1024", bytes / 1024),
            bytes => bytes.to_string(),
        })
    };
    let [current, most] = [offset_of!(kernel::rlimit64, rlim_cur), offset_of!(kernel::rlimit64, rlim_max)].map(limit);
    Some(format!("{{rlim_cur={}, rlim_max={}}}", current?, most?))
}

fn sigset(seen: &Seen<'_>) -> Option<String> {
    seen.bytes.u64(0).map(signals)
}

/// `[INT CHLD]`, or `~[KILL]` for those that are not in it if most are.
pub fn signals(set: u64) -> String {
    let is_not = set.count_ones() > 32;
    let set = if is_not { !set } else { set };
    let names = (1..=64u64).filter(|number| set & 1 << (number - 1) != 0).map(|number| {
        let name = signal(number);
        name.strip_prefix("SIG").map_or_else(|| name.clone(), str::to_owned)
    });
    let names = names.collect::<Vec<_>>().join(" ");
    format!("{}[{names}]", if is_not { "~" } else { "" })
}

fn sigaction(seen: &Seen<'_>) -> Option<String> {
    type Action = kernel::kernel_sigaction;
    let handler = match seen.bytes.u64(offset_of!(Action, sa_handler_kernel))? {
        0 => "SIG_DFL".into(),
        1 => "SIG_IGN".into(),
        handler => format!("{handler:#x}"),
    };
    let flags = seen.bytes.u64(offset_of!(Action, sa_flags))?;
    let mask = seen.bytes.u64(offset_of!(Action, sa_mask)).map(signals)?;
    let restorer = match flags & u64::from(kernel::SA_RESTORER) {
        0 => String::new(),
        _ => format!(", sa_restorer={:#x}", seen.bytes.u64(offset_of!(Action, sa_restorer))?),
    };
    let names = flag_names(flags, ACTIONS, "0");
    Some(format!("{{sa_handler={handler}, sa_mask={mask}, sa_flags={names}{restorer}}}"))
}

/// Flags by name, in the order in which strace prints them.
macro_rules! names {
    ($of:ident: $name:ident, $($flag:ident)+) => {
        pub const $name: &[(u64, &str)] = &[$(($of::$flag as u64, stringify!($flag))),+];
    };
}

names!(kernel: ACTIONS, SA_RESTORER SA_ONSTACK SA_RESTART SA_NODEFER SA_RESETHAND SA_SIGINFO SA_NOCLDSTOP SA_NOCLDWAIT);
names!(kernel: POLLS, POLLIN POLLPRI POLLOUT POLLRDNORM POLLRDBAND POLLWRNORM POLLWRBAND POLLERR POLLHUP POLLNVAL POLLRDHUP
    POLLMSG);
names!(kernel: FILES, S_IFREG S_IFDIR S_IFLNK S_IFCHR S_IFBLK S_IFIFO S_IFSOCK);
names!(kernel: CAPABILITIES, CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID
    CAP_SETUID CAP_SETPCAP CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW
    CAP_IPC_LOCK CAP_IPC_OWNER CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN
    CAP_SYS_BOOT CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE
    CAP_AUDIT_CONTROL CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND
    CAP_AUDIT_READ CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE);
names!(kernel: STACKS, SS_ONSTACK SS_DISABLE SS_AUTODISARM);
names!(kernel: ATTRIBUTES, STATX_ATTR_COMPRESSED STATX_ATTR_IMMUTABLE STATX_ATTR_APPEND STATX_ATTR_NODUMP
    STATX_ATTR_ENCRYPTED STATX_ATTR_AUTOMOUNT STATX_ATTR_MOUNT_ROOT STATX_ATTR_VERITY STATX_ATTR_DAX);
names!(kernel: CLONES, CLONE_VM CLONE_FS CLONE_FILES CLONE_SIGHAND CLONE_PIDFD CLONE_PTRACE CLONE_VFORK CLONE_PARENT
    CLONE_THREAD CLONE_NEWNS CLONE_SYSVSEM CLONE_SETTLS CLONE_PARENT_SETTID CLONE_CHILD_CLEARTID CLONE_UNTRACED
    CLONE_CHILD_SETTID CLONE_NEWCGROUP CLONE_NEWUTS CLONE_NEWIPC CLONE_NEWUSER CLONE_NEWPID CLONE_NEWNET CLONE_IO
    CLONE_CLEAR_SIGHAND CLONE_INTO_CGROUP);
names!(kernel: STATX, STATX_TYPE STATX_MODE STATX_NLINK STATX_UID STATX_GID STATX_ATIME STATX_MTIME STATX_CTIME STATX_INO
    STATX_SIZE STATX_BLOCKS STATX_BTIME STATX_MNT_ID STATX_DIOALIGN);
names!(kernel: SYSTEMS, EXT2_SUPER_MAGIC TMPFS_MAGIC PROC_SUPER_MAGIC SYSFS_MAGIC CGROUP_SUPER_MAGIC CGROUP2_SUPER_MAGIC
    TRACEFS_MAGIC OVERLAYFS_SUPER_MAGIC XFS_SUPER_MAGIC BTRFS_SUPER_MAGIC DEVPTS_SUPER_MAGIC DEBUGFS_MAGIC BPF_FS_MAGIC
    HUGETLBFS_MAGIC SQUASHFS_MAGIC NFS_SUPER_MAGIC RAMFS_MAGIC SECURITYFS_MAGIC SELINUX_MAGIC);
#[cfg(target_arch = "x86_64")]
names!(kernel: MACHINE, ARCH_SET_FS);
#[cfg(not(target_arch = "x86_64"))]
const MACHINE: &[(u64, &str)] = &[];
names!(kernel: EPOLLS, EPOLLIN EPOLLPRI EPOLLOUT EPOLLRDNORM EPOLLRDBAND EPOLLWRNORM EPOLLWRBAND EPOLLMSG EPOLLERR EPOLLHUP
    EPOLLRDHUP EPOLLEXCLUSIVE EPOLLWAKEUP EPOLLONESHOT EPOLLET);

/// `S_IFREG|0644`.
pub fn mode(mode: u32) -> String {
    let kind = FILES.iter().find(|(kind, _)| *kind == u64::from(mode & kernel::S_IFMT)).map(|(_, name)| *name);
    if kind.is_none() && mode & kernel::S_IFMT != 0 {
        return format!("0{:o}", mode & 0xffff);
    }
    let special = [(kernel::S_ISUID, "S_ISUID"), (kernel::S_ISGID, "S_ISGID"), (kernel::S_ISVTX, "S_ISVTX")];
    let special = special.into_iter().filter(|(bit, _)| mode & bit != 0).map(|(_, name)| name);
    let mut text: Vec<_> = kind.into_iter().chain(special).map(str::to_owned).collect();
    text.push(format!("0{:02o}", mode & 0o777));
    text.join("|")
}

fn stat(seen: &Seen<'_>) -> Option<String> {
    type Stat = kernel::stat;
    let bits = seen.bytes.u32(offset_of!(Stat, st_mode))?;
    let rest = match bits & kernel::S_IFMT {
        kernel::S_IFCHR | kernel::S_IFBLK => {
            format!("st_rdev={}", device(seen.bytes.u64(offset_of!(Stat, st_rdev))?))
        }
        _ => format!("st_size={}", seen.bytes.i64(offset_of!(Stat, st_size))?),
    };
    Some(format!("{{st_mode={}, {rest}, ...}}", mode(bits)))
}

pub fn device(number: u64) -> String {
    let [major, minor] = [nix::sys::stat::major(number), nix::sys::stat::minor(number)].map(hexadecimal);
    format!("makedev({major}, {minor})")
}

fn statx(seen: &Seen<'_>) -> Option<String> {
    type Statx = kernel::statx;
    let mask = flag_names(seen.bytes.u32(offset_of!(Statx, stx_mask))?.into(), STATX, "0");
    let mask = mask.replace(BASIC_WORDS, "STATX_BASIC_STATS").replace("STATX_BASIC_STATS|STATX_BTIME", "STATX_ALL");
    let attributes = flag_names(seen.bytes.u64(offset_of!(Statx, stx_attributes))?, ATTRIBUTES, "0");
    let bits = seen.bytes.u16(offset_of!(Statx, stx_mode))?;
    let size = seen.bytes.u64(offset_of!(Statx, stx_size))?;
    Some(format!(
        "{{stx_mask={mask}, stx_attributes={attributes}, stx_mode={}, stx_size={size}, ...}}",
        mode(bits.into())
    ))
}

/// The flags of STATX_BASIC_STATS.
pub const BASIC_WORDS: &str = "STATX_TYPE|STATX_MODE|STATX_NLINK|STATX_UID|STATX_GID|STATX_ATIME|STATX_MTIME|STATX_CTIME|STATX_INO|\
    STATX_SIZE|STATX_BLOCKS";

fn statfs(seen: &Seen<'_>) -> Option<String> {
    type Statfs = kernel::statfs;
    let long = |at: usize| seen.bytes.i64(at);
    let [kind, block, blocks, free, available, files, unused] = [
        offset_of!(Statfs, f_type),
        offset_of!(Statfs, f_bsize),
        offset_of!(Statfs, f_blocks),
        offset_of!(Statfs, f_bfree),
        offset_of!(Statfs, f_bavail),
        offset_of!(Statfs, f_files),
        offset_of!(Statfs, f_ffree),
    ]
    .map(long);
    let id = offset_of!(Statfs, f_fsid);
    let id = (seen.bytes.u32(id), seen.bytes.u32(id + 4));
    let [name, size, flags] =
        [offset_of!(Statfs, f_namelen), offset_of!(Statfs, f_frsize), offset_of!(Statfs, f_flags)].map(long);
    Some(format!(
        "{{f_type={}, f_bsize={}, f_blocks={}, f_bfree={}, f_bavail={}, f_files={}, f_ffree={}, f_fsid={{val=[{}, {}]}}, \
         f_namelen={}, f_frsize={}, f_flags={}}}",
        file_system(kind?),
        block?,
        blocks?,
        free?,
        available?,
        files?,
        unused?,
        hexadecimal(id.0?.into()),
        hexadecimal(id.1?.into()),
        name?,
        size?,
        flag_names(flags? as u64, MOUNTED, "0")
    ))
}

/// Flags of statfs(2). The C library's headers have no `ST_VALID`, and musl's no `ST_RELATIME`.
const MOUNTED: &[(u64, &str)] = &[
    (0x20, "ST_VALID"),
    (nix::libc::ST_RDONLY, "ST_RDONLY"),
    (nix::libc::ST_NOSUID, "ST_NOSUID"),
    (nix::libc::ST_NODEV, "ST_NODEV"),
    (nix::libc::ST_NOEXEC, "ST_NOEXEC"),
    (nix::libc::ST_SYNCHRONOUS, "ST_SYNCHRONOUS"),
    (nix::libc::ST_MANDLOCK, "ST_MANDLOCK"),
    (nix::libc::ST_NOATIME, "ST_NOATIME"),
    (nix::libc::ST_NODIRATIME, "ST_NODIRATIME"),
    (0x1000, "ST_RELATIME"),
];

fn file_system(kind: i64) -> String {
    let name = SYSTEMS.iter().find(|(number, _)| *number == kind as u64).map(|(_, name)| (*name).to_owned());
    name.unwrap_or_else(|| format!("{kind:#x}"))
}

/// What arch_prctl(2) does on x86-64.
pub fn machine(option: u64) -> Option<String> {
    MACHINE.iter().find(|(number, _)| *number == option).map(|(_, name)| (*name).to_owned())
}

/// Two descriptors that the call has made.
fn two_descriptors(seen: &Seen<'_>) -> Option<String> {
    let (one, other) = (seen.bytes.i32(0)?, seen.bytes.i32(4)?);
    let [behind_one, behind_other] =
        [one, other].map(|descriptor| seen.opened.map_or("", |opened| opened.returned(descriptor)));
    Some(format!("[{one}{behind_one}, {other}{behind_other}]"))
}

fn groups(seen: &Seen<'_>) -> Option<String> {
    let count = if seen.values[0] == 0 { 0 } else { usize::try_from(seen.result?).ok()? };
    let each = seen.bytes.chunks_exact(4).take(count).map(|one| Some(one.u32(0)?.to_string()));
    Some(list(each.collect::<Option<_>>()?, count as u64, seen.limit))
}

fn usage(seen: &Seen<'_>) -> Option<String> {
    type Usage = kernel::rusage;
    let [user, system] =
        [offset_of!(Usage, ru_utime), offset_of!(Usage, ru_stime)].map(|at| timeval_at(seen.bytes, at));
    Some(format!("{{ru_utime={}, ru_stime={}, ...}}", user?, system?))
}

/// How a timer tells its end.
fn notified(seen: &Seen<'_>) -> Option<String> {
    type Event = kernel::sigevent;
    const HOW: [(u32, &str); 4] = [
        (kernel::SIGEV_SIGNAL, "SIGEV_SIGNAL"),
        (kernel::SIGEV_NONE, "SIGEV_NONE"),
        (kernel::SIGEV_THREAD, "SIGEV_THREAD"),
        (kernel::SIGEV_THREAD_ID, "SIGEV_THREAD_ID"),
    ];
    let int = |at: usize| seen.bytes.u32(at);
    let (value, pointer) = (int(offset_of!(Event, sigev_value))?, seen.bytes.u64(offset_of!(Event, sigev_value))?);
    let (number, how) = (int(offset_of!(Event, sigev_signo))?, int(offset_of!(Event, sigev_notify))?);
    let has_signal = [kernel::SIGEV_SIGNAL, kernel::SIGEV_THREAD_ID].contains(&how);
    let number = if has_signal { signal(number.into()) } else { number.to_string() };
    let name = HOW.iter().find(|(known, _)| *known == how).map_or_else(|| how.to_string(), |(_, name)| (*name).into());
    let value = match pointer {
        0 => String::new(),
        _ => format!("sigev_value={{sival_int={}, sival_ptr={pointer:#x}}}, ", value.cast_signed()),
    };
    let thread = match how {
        kernel::SIGEV_THREAD_ID => format!(", sigev_notify_thread_id={}", int(offset_of!(Event, _sigev_un))?),
        _ => String::new(),
    };
    Some(format!("{{{value}sigev_signo={number}, sigev_notify={name}{thread}}}"))
}

/// What the argument of ioctl(2) points to: as the call was entered, and as it has returned.
pub fn controlled(command: u64, before: Option<&[u8]>, after: Option<&[u8]>) -> Option<String> {
    let int = |bytes: &[u8]| Some(format!("[{}]", bytes.i32(0)?));
    match command as u32 {
        ioctl::FIONREAD | ioctl::TIOCGPGRP | ioctl::TIOCGSID | ioctl::TIOCGPTN => int(after?),
        ioctl::FIONBIO | ioctl::FIOASYNC | ioctl::TIOCSPGRP | ioctl::TIOCSPTLCK => int(before?),
        ioctl::TIOCGWINSZ => window(after?),
        ioctl::TIOCSWINSZ => window(before?),
        ioctl::FS_IOC_FIEMAP => extents(before?, after),
        _ => None,
    }
}

/// Bytes that are copied of what an argument of ioctl(2) points to.
pub const CONTROL: usize = 32;

fn window(bytes: &[u8]) -> Option<String> {
    type Window = kernel::winsize;
    let [rows, columns, width, height] = [
        offset_of!(Window, ws_row),
        offset_of!(Window, ws_col),
        offset_of!(Window, ws_xpixel),
        offset_of!(Window, ws_ypixel),
    ]
    .map(|at| bytes.u16(at));
    Some(format!("{{ws_row={}, ws_col={}, ws_xpixel={}, ws_ypixel={}}}", rows?, columns?, width?, height?))
}

/// `struct fiemap` without its extents (include/uapi/linux/fiemap.h), which linux-raw-sys does not have.
#[repr(C)]
struct Extents {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

// The number of the command says how long it is.
const _: () = assert!(size_of::<Extents>() == (ioctl::FS_IOC_FIEMAP >> 16 & 0x3fff) as usize);
const _: () = assert!(size_of::<Extents>() <= CONTROL);

fn extents(before: &[u8], after: Option<&[u8]>) -> Option<String> {
    const FLAGS: &[(u64, &str)] = &[(1, "FIEMAP_FLAG_SYNC"), (2, "FIEMAP_FLAG_XATTR"), (4, "FIEMAP_FLAG_CACHE")];
    let flags = |bytes: &[u8]| Some(flag_names(bytes.u32(offset_of!(Extents, flags))?.into(), FLAGS, "0"));
    let (start, length) = (before.u64(offset_of!(Extents, start))?, before.u64(offset_of!(Extents, length))?);
    let count = before.u32(offset_of!(Extents, count))?;
    let before =
        format!("{{fm_start={start}, fm_length={length}, fm_flags={}, fm_extent_count={count}}}", flags(before)?);
    let Some(after) = after else { return Some(before) };
    let mapped = after.u32(offset_of!(Extents, mapped))?;
    Some(format!("{before} => {{fm_flags={}, fm_mapped_extents={mapped}, ...}}", flags(after)?))
}

fn number(seen: &Seen<'_>) -> Option<String> {
    Some(format!("[{}]", seen.bytes.i32(0)?))
}

/// `[128 => 16]` of a length before and after the call, or `[16]` if it is the same or the call has failed.
pub fn length(before: Option<&[u8]>, after: Option<&[u8]>) -> Option<String> {
    match [before, after].map(|bytes| bytes.and_then(|bytes| bytes.i32(0))) {
        [Some(before), Some(after)] if before != after => Some(format!("[{before} => {after}]")),
        [before, after] => Some(format!("[{}]", after.or(before)?)),
    }
}

/// `[0] => [9]` of a position before and after a call.
pub fn moved(before: &[u8], after: Option<&[u8]>) -> Option<String> {
    let before = before.i64(0)?;
    Some(match after.and_then(|after| after.i64(0)) {
        Some(after) => format!("[{before}] => [{after}]"),
        None => format!("[{before}]"),
    })
}

fn long(seen: &Seen<'_>) -> Option<String> {
    Some(format!("[{}]", seen.bytes.i64(0)?))
}

fn option(seen: &Seen<'_>) -> Option<String> {
    type Linger = net::linger;
    let is_linger = [seen.values[1], seen.values[2]] == [net::SOL_SOCKET, net::SO_LINGER].map(u64::from);
    match seen.bytes.len() {
        4 => number(seen),
        8 if is_linger => {
            let [is_on, time] =
                [offset_of!(Linger, l_onoff), offset_of!(Linger, l_linger)].map(|at| seen.bytes.i32(at));
            Some(format!("{{l_onoff={}, l_linger={}}}", is_on?, time?))
        }
        _ => None,
    }
}

fn option_read(seen: &Seen<'_>) -> Option<String> {
    number(seen)
}

/// Of a child, as wait(2) gives it.
fn status(seen: &Seen<'_>) -> Option<String> {
    if seen.result == Some(0) {
        return None;
    }
    let status = seen.bytes.i32(0)?;
    let by = (status & 0x7f) as u64;
    Some(match status {
        0xffff => "[{WIFCONTINUED(s)}]".into(),
        _ if by == 0 => format!("[{{WIFEXITED(s) && WEXITSTATUS(s) == {}}}]", status >> 8 & 0xff),
        _ if by == 0x7f => format!("[{{WIFSTOPPED(s) && WSTOPSIG(s) == {}}}]", signal((status >> 8 & 0xff) as u64)),
        _ => {
            let dumped = if status & 0x80 == 0 { "" } else { " && WCOREDUMP(s)" };
            format!("[{{WIFSIGNALED(s) && WTERMSIG(s) == {}{dumped}}}]", signal(by))
        }
    })
}

fn poll(seen: &Seen<'_>) -> Option<String> {
    let each = polled(seen.bytes, seen.values[1]).map(|one| {
        let (descriptor, events) = (one.i32(0)?, one.u16(offset_of!(kernel::pollfd, events))?);
        // The kernel leaves it out.
        if descriptor < 0 {
            return Some(format!("{{fd={descriptor}}}"));
        }
        let behind = seen.opened.map_or("", |opened| opened.entered(descriptor));
        Some(format!("{{fd={descriptor}{behind}, events={}}}", flag_names(events.into(), POLLS, "0")))
    });
    Some(list(each.collect::<Option<_>>()?, (seen.values[1] as u32).into(), seen.limit))
}

/// The elements of a list of so many, which is an unsigned int: what is behind them is none.
fn polled(bytes: &[u8], count: u64) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(size_of::<kernel::pollfd>()).take(count as u32 as usize)
}

/// No more elements than bytes of a string, as strace(1) has it. `all`: how many there are, if more than were copied.
fn list(mut elements: Vec<String>, all: u64, limit: usize) -> String {
    let is_cut = elements.len() > limit || all > elements.len() as u64;
    elements.truncate(limit);
    elements.extend(is_cut.then(|| "...".to_owned()));
    format!("[{}]", elements.join(", "))
}

/// What has happened to descriptors of a list of `all`: those to which something has, of so many.
pub fn happened(bytes: &[u8], all: u64, count: i64, limit: usize) -> String {
    let each = polled(bytes, all).filter_map(|one| {
        let events = one.u16(offset_of!(kernel::pollfd, revents)).filter(|events| *events != 0)?;
        Some(format!("{{fd={}, revents={}}}", one.i32(0)?, flag_names(events.into(), POLLS, "0")))
    });
    list(each.collect(), count.cast_unsigned(), limit)
}

fn descriptors(seen: &Seen<'_>) -> Option<String> {
    set(seen.bytes, seen.values[0])
}

/// `[3 5]`: the descriptors of a set that are less than a number, which is an int.
pub fn set(bytes: &[u8], below: u64) -> Option<String> {
    let below = usize::try_from(below as i32).ok()?;
    let is_in = |descriptor: &usize| bytes[descriptor / 8] & 1 << (descriptor % 8) != 0;
    let known = 0..below.min(8 * bytes.len());
    // Words have their lowest bit first, and so have bytes if theirs do.
    let place = |descriptor: usize| if cfg!(target_endian = "big") { descriptor ^ 0x38 } else { descriptor };
    let mut each: Vec<_> = known.clone().filter(|at| is_in(&place(*at))).map(|at| at.to_string()).collect();
    each.extend((known.end < below).then(|| "...".to_owned()));
    Some(format!("[{}]", each.join(" ")))
}

/// ` (in [3], left {tv_sec=0, tv_usec=9})`: what select(2) has left of its sets and of its time-out.
pub fn selected(sets: [Option<&[u8]>; 3], below: u64, left: Option<String>) -> String {
    let of = |(bytes, name): (Option<&[u8]>, &str)| {
        let set = set(bytes?, below).filter(|set| set != "[]")?;
        Some(format!("{name} {set}"))
    };
    let each = sets.into_iter().zip(["in", "out", "except"]).filter_map(of);
    let all: Vec<_> = each.chain(left.map(|left| format!("left {left}"))).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

/// What is left of the time-out of a call with this name.
pub fn left(call: &str, bytes: &[u8]) -> Option<String> {
    if call == "select" { timeval_at(bytes, 0) } else { timespec_at(bytes, 0) }
}

/// `{sigmask=[INT], sigsetsize=8}` of a struct and the mask to which it points.
pub fn mask(pair: &[u8], set: Option<&[u8]>) -> Option<String> {
    let (address, size) = (pair.u64(0)?, pair.u64(8)?);
    let mask = match set.and_then(|set| set.u64(0)) {
        Some(set) => signals(set),
        None if address == 0 => "NULL".into(),
        None => format!("{address:#x}"),
    };
    Some(format!("{{sigmask={mask}, sigsetsize={size}}}"))
}

/// Of a message: how long its name is, how many buffers, how long what goes along, and flags.
pub fn message(bytes: &[u8]) -> Option<[u64; 4]> {
    let [count, control] =
        [offset_of!(net::msghdr, msg_iovlen), offset_of!(net::msghdr, msg_controllen)].map(|at| bytes.u64(at));
    let [length, flags] =
        [offset_of!(net::msghdr, msg_namelen), offset_of!(net::msghdr, msg_flags)].map(|at| bytes.u32(at));
    Some([length?.into(), count?, control?, flags?.into()])
}

fn epoll_event(seen: &Seen<'_>) -> Option<String> {
    // The kernel does not look at it.
    if seen.values[1] == u64::from(kernel::EPOLL_CTL_DEL) {
        return None;
    }
    epoll_event_at(seen.bytes)
}

/// Those that have happened.
fn epoll_events(seen: &Seen<'_>) -> Option<String> {
    let each = seen.bytes.chunks_exact(size_of::<kernel::epoll_event>()).map(epoll_event_at);
    Some(list(each.collect::<Option<_>>()?, seen.result?.cast_unsigned(), seen.limit))
}

fn epoll_event_at(bytes: &[u8]) -> Option<String> {
    let events = bytes.u32(offset_of!(kernel::epoll_event, events))?;
    let data = bytes.u64(offset_of!(kernel::epoll_event, data))?;
    let (low, all) = (data as u32, data);
    let events = flag_names(events.into(), EPOLLS, "0");
    Some(format!("{{events={events}, data={{u32={low}, u64={all}}}}}"))
}

/// The address of a socket.
pub fn address(seen: &Seen<'_>) -> Option<String> {
    socket_address(seen.bytes)
}

pub fn socket_address(bytes: &[u8]) -> Option<String> {
    let family = bytes.u16(0)?;
    let port = |at: usize| bytes.part::<2>(at).map(u16::from_be_bytes);
    Some(match u32::from(family) {
        net::AF_UNIX => {
            let path = bytes.get(offset_of!(net::sockaddr_un, sun_path)..)?;
            let quotes = super::strings::Quotes { limit: path.len(), hexadecimal: 0 };
            match path {
                [] => "{sa_family=AF_UNIX}".into(),
                // Of the abstract namespace.
                [0, name @ ..] => {
                    format!("{{sa_family=AF_UNIX, sun_path=@{}}}", quotes.quoted((until_end(name), false)))
                }
                path => format!("{{sa_family=AF_UNIX, sun_path={}}}", quotes.quoted((until_end(path), false))),
            }
        }
        net::AF_INET => {
            let address = Ipv4Addr::from(bytes.part::<4>(offset_of!(net::sockaddr_in, sin_addr))?);
            let port = port(offset_of!(net::sockaddr_in, sin_port))?;
            format!("{{sa_family=AF_INET, sin_port=htons({port}), sin_addr=inet_addr(\"{address}\")}}")
        }
        net::AF_INET6 => {
            let address = Ipv6Addr::from(bytes.part::<16>(offset_of!(net::sockaddr_in6, sin6_addr))?);
            let port = port(offset_of!(net::sockaddr_in6, sin6_port))?;
            let flow = bytes.part::<4>(offset_of!(net::sockaddr_in6, sin6_flowinfo)).map(u32::from_be_bytes)?;
            let scope = bytes.u32(offset_of!(net::sockaddr_in6, sin6_scope_id))?;
            format!(
                "{{sa_family=AF_INET6, sin6_port=htons({port}), sin6_flowinfo=htonl({flow}), \
                 inet_pton(AF_INET6, \"{address}\", &sin6_addr), sin6_scope_id={scope}}}"
            )
        }
        net::AF_NETLINK => {
            let [pid, groups] = [4, 8].map(|at| bytes.u32(at));
            format!("{{sa_family=AF_NETLINK, nl_pid={}, nl_groups={:08x}}}", pid?, groups?)
        }
        _ => return None,
    })
}

fn until_end(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn uname(seen: &Seen<'_>) -> Option<String> {
    let name =
        |at: usize| seen.bytes.get(at..at + UTS).map(|name| String::from_utf8_lossy(until_end(name)).into_owned());
    Some(format!("{{sysname=\"{}\", nodename=\"{}\", ...}}", name(0)?, name(UTS)?))
}

/// How many entries of a directory. Nothing if not all were copied.
fn entries(seen: &Seen<'_>) -> Option<String> {
    let (mut at, mut count) = (0, 0);
    if seen.bytes.len() as i64 != seen.result? {
        return None;
    }
    while at < seen.bytes.len() {
        // struct linux_dirent64 and linux_dirent { u64, u64, u16 reclen, ... }
        at += usize::from(seen.bytes.u16(at + 16).filter(|bytes| *bytes > 0)?);
        count += 1;
    }
    let word = if count == 1 { "entry" } else { "entries" };
    Some(format!("{:#x} /* {count} {word} */", seen.values[1]))
}

fn cpus(seen: &Seen<'_>) -> Option<String> {
    let mut text = String::new();
    for (at, byte) in seen.bytes.iter().enumerate() {
        for bit in (0..8).filter(|bit| byte & 1 << bit != 0) {
            let _ = write!(text, "{}{}", if text.is_empty() { "" } else { " " }, 8 * at + bit);
        }
    }
    Some(format!("[{text}]"))
}

fn sysinfo(seen: &Seen<'_>) -> Option<String> {
    type Info = nix::libc::sysinfo;
    let long = |at: usize| seen.bytes.u64(at);
    let loads = offset_of!(Info, loads);
    let mut text = format!(
        "{{uptime={}, loads=[{}, {}, {}]",
        long(offset_of!(Info, uptime))?,
        long(loads)?,
        long(loads + 8)?,
        long(loads + 16)?
    );
    for (name, at) in [
        ("totalram", offset_of!(Info, totalram)),
        ("freeram", offset_of!(Info, freeram)),
        ("sharedram", offset_of!(Info, sharedram)),
        ("bufferram", offset_of!(Info, bufferram)),
        ("totalswap", offset_of!(Info, totalswap)),
        ("freeswap", offset_of!(Info, freeswap)),
    ] {
        let _ = write!(text, ", {name}={}", long(at)?);
    }
    let _ = write!(text, ", procs={}", seen.bytes.u16(offset_of!(Info, procs))?);
    for (name, at) in [("totalhigh", offset_of!(Info, totalhigh)), ("freehigh", offset_of!(Info, freehigh))] {
        let _ = write!(text, ", {name}={}", long(at)?);
    }
    Some(format!("{text}, mem_unit={}}}", seen.bytes.u32(offset_of!(Info, mem_unit))?))
}

fn stack(seen: &Seen<'_>) -> Option<String> {
    type Stack = kernel::stack_t;
    let begin = match seen.bytes.u64(offset_of!(Stack, ss_sp))? {
        0 => "NULL".into(),
        begin => format!("{begin:#x}"),
    };
    let flags = flag_names(seen.bytes.u32(offset_of!(Stack, ss_flags))?.into(), STACKS, "0");
    Some(format!("{{ss_sp={begin}, ss_flags={flags}, ss_size={}}}", seen.bytes.u64(offset_of!(Stack, ss_size))?))
}

/// Bytes of a lock of fcntl(2).
pub const LOCK: usize = size_of::<kernel::flock>();

pub fn lock(bytes: &[u8]) -> Option<String> {
    type Lock = kernel::flock;
    let [kind, whence] = [offset_of!(Lock, l_type), offset_of!(Lock, l_whence)].map(|at| bytes.u16(at));
    let kind = ["F_RDLCK", "F_WRLCK", "F_UNLCK"].get(usize::from(kind?))?;
    let whence = ["SEEK_SET", "SEEK_CUR", "SEEK_END"].get(usize::from(whence?))?;
    let [start, len] = [offset_of!(Lock, l_start), offset_of!(Lock, l_len)].map(|at| bytes.i64(at));
    Some(format!("{{l_type={kind}, l_whence={whence}, l_start={}, l_len={}}}", start?, len?))
}

/// Where the end of the stack has the mask at the end of a signal's handler: `uc_sigmask` of `struct ucontext`. 0: it
/// is not known.
pub const SIGNAL_MASK: usize = if cfg!(target_arch = "x86_64") { 296 } else { 0 };

fn clone_args(seen: &Seen<'_>) -> Option<String> {
    type Clone = kernel::clone_args;
    let field = |at: usize| seen.bytes.u64(at);
    let flags = field(offset_of!(Clone, flags))?;
    let mut text = format!("{{flags={}", flag_names(flags, CLONES, "0"));
    for (name, at, bit) in [
        ("child_tid", offset_of!(Clone, child_tid), kernel::CLONE_CHILD_SETTID | kernel::CLONE_CHILD_CLEARTID),
        ("parent_tid", offset_of!(Clone, parent_tid), kernel::CLONE_PARENT_SETTID),
    ] {
        if flags & u64::from(bit) != 0 {
            let _ = write!(text, ", {name}={:#x}", field(at)?);
        }
    }
    let ends = field(offset_of!(Clone, exit_signal))?;
    let ends = if ends == 0 { "0".into() } else { signal(ends) };
    let [stack, size, tls] =
        [offset_of!(Clone, stack), offset_of!(Clone, stack_size), offset_of!(Clone, tls)].map(field);
    let stack = stack?;
    let stack = if stack == 0 { "NULL".into() } else { format!("{stack:#x}") };
    let _ = write!(text, ", exit_signal={ends}, stack={stack}, stack_size={}", hexadecimal(size?));
    if flags & u64::from(kernel::CLONE_SETTLS) != 0 {
        let _ = write!(text, ", tls={:#x}", tls?);
    }
    text.push('}');
    // The kernel writes there what it returns.
    if let Some(child) = seen.result.filter(|child| *child > 0 && flags & u64::from(kernel::CLONE_PARENT_SETTID) != 0) {
        let _ = write!(text, " => {{parent_tid=[{child}]}}");
    }
    Some(text)
}

pub fn hexadecimal(number: u64) -> String {
    if number == 0 { "0".into() } else { format!("{number:#x}") }
}

#[cfg(test)]
mod tests {
    use super::{Seen, address, groups, happened, list, mask, mode, poll, rlimit, selected, set, signals, status};

    fn seen(bytes: &[u8], text: fn(&Seen<'_>) -> Option<String>) -> Option<String> {
        text(&Seen { bytes, values: &[0; 6], result: Some(1), opened: None, limit: 32 })
    }

    /// Whatever a call says of their number, no set and no list has more than what was copied.
    /// The kernel looks at so many elements, however many bytes there are: the upper half of a register says nothing.
    #[test]
    fn lists_have_no_more_than_the_call_takes() {
        let one = |descriptor: u8| [descriptor, 0, 0, 0, 1, 0, 1, 0];
        let (bytes, count) = ([one(3), one(4)].concat(), 1 | 7 << 32);
        fn of<'a>(bytes: &'a [u8], values: &'a [u64; 6], result: i64) -> Seen<'a> {
            Seen { bytes, values, result: Some(result), opened: None, limit: 2 }
        }
        assert_eq!(poll(&of(&bytes, &[8, count, 0, 0, 0, 0], 1)).unwrap(), "[{fd=3, events=POLLIN}]");
        assert_eq!(happened(&bytes, count, 1, 2), "[{fd=3, revents=POLLIN}]");
        // Of many groups some are copied.
        let texts = [2, 128, 129].map(|count| groups(&of(&[0; 512], &[1000, 8, 0, 0, 0, 0], count)).unwrap());
        assert_eq!(texts, ["[0, 0]", "[0, 0, ...]", "[0, 0, ...]"]);
    }

    #[test]
    fn sets_and_lists_say_that_they_are_cut() {
        let bytes = [0b1001, 0, 0, 0, 0, 0, 0, 0x80];
        let sets = [4u64, 3, 64, 65, 0, u64::MAX, 4 | 7 << 32].map(|below| set(&bytes, below));
        let texts =
            [Some("[0 3]"), Some("[0]"), Some("[0 3 63]"), Some("[0 3 63 ...]"), Some("[]"), None, Some("[0 3]")];
        assert_eq!(sets.each_ref().map(Option::as_deref), texts);
        let elements = || vec!["1".to_owned(), "2".to_owned()];
        assert_eq!(
            [(2, 2), (2, 1), (3, 2), (0, 0)].map(|(all, limit)| list(elements(), all, limit)),
            ["[1, 2]", "[1, ...]", "[1, 2, ...]", "[...]"]
        );
        assert_eq!(selected([Some(&bytes), None, Some(&[0; 8])], 4, Some("{}".into())), " (in [0 3], left {})");
        assert_eq!(selected([None; 3], 4, None), "");
        let pair = [8u64.to_ne_bytes(), 8u64.to_ne_bytes()].concat();
        assert_eq!(mask(&pair, None).unwrap(), "{sigmask=0x8, sigsetsize=8}");
    }

    #[test]
    fn structs_are_printed_as_strace_does() {
        assert_eq!([0o100_644, 0o41_777].map(mode), ["S_IFREG|0644", "S_IFDIR|S_ISVTX|0777"]);
        assert_eq!(signals(1 << 1 | 1 << 16), "[INT CHLD]");
        assert_eq!(signals(!(1 << 8)), "~[KILL]");
        assert_eq!(signals(1 << 31 | 1 << 32), "[RTMIN RT_1]");
        let limits = [(8192u64 * 1024).to_ne_bytes(), u64::MAX.to_ne_bytes()].concat();
        assert_eq!(seen(&limits, rlimit).unwrap(), "{rlim_cur=8192*1024, rlim_max=RLIM64_INFINITY}");
        assert_eq!(seen(&limits[..15], rlimit), None);
        let exited = seen(&0x300i32.to_ne_bytes(), status).unwrap();
        assert_eq!(exited, "[{WIFEXITED(s) && WEXITSTATUS(s) == 3}]");
        assert_eq!(
            seen(&139i32.to_ne_bytes(), status).unwrap(),
            "[{WIFSIGNALED(s) && WTERMSIG(s) == SIGSEGV && WCOREDUMP(s)}]"
        );
        let four = [&2u16.to_ne_bytes()[..], &80u16.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]].concat();
        let text = "{sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr(\"127.0.0.1\")}";
        assert_eq!(seen(&four, address).unwrap(), text);
        let local = [&1u16.to_ne_bytes()[..], b"/run/x\0junk"].concat();
        assert_eq!(seen(&local, address).unwrap(), "{sa_family=AF_UNIX, sun_path=\"/run/x\"}");
    }
}
