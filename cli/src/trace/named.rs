//! Numbers and flags by the names of the kernel's headers, as strace(1) prints them.
//!
//! The crates libc, nix and linux-raw-sys have them from these headers.

use super::shapes;
use linux_raw_sys::general as kernel;
use linux_raw_sys::ioctl as kernel_ioctl;
use nix::fcntl::AtFlags;
use nix::sys::mman::ProtFlags;
use nix::sys::signal::Signal;
use nix::sys::socket::AddressFamily;
use nix::sys::wait::WaitPidFlag;
use nix::unistd::AccessFlags;

/// `A|B|0x40`, or the name of no flag.
macro_rules! flags {
    ($name:ident, $type:ty, $none:literal) => {
        pub fn $name(bits: u64) -> String {
            let flags = <$type>::from_bits_retain(bits as _);
            let mut names: Vec<_> = flags.iter_names().map(|(name, _)| name.to_owned()).collect();
            let rest = flags.difference(<$type>::all()).bits();
            if rest != 0 {
                names.push(format!("{rest:#x}"));
            }
            if names.is_empty() { $none.into() } else { names.join("|") }
        }
    };
}

flags!(protection, ProtFlags, "PROT_NONE");
flags!(at, AtFlags, "0");
flags!(wait, WaitPidFlag, "0");

/// `A|B|0x40` by a table, or what stands for no flag.
pub fn flag_names(bits: u64, table: &[(u64, &str)], none: &str) -> String {
    let mut rest = bits;
    let mut names = Vec::new();
    for (flag, name) in table.iter().filter(|(flag, _)| *flag != 0) {
        if rest & flag == *flag {
            names.push((*name).to_owned());
            rest &= !flag;
        }
    }
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    if names.is_empty() { none.into() } else { names.join("|") }
}

/// Flags by name, in the order in which strace(1) prints them.
macro_rules! table {
    ($of:ident: $name:ident, $($flag:ident)+) => {
        const $name: &[(u64, &str)] = &[$(($of::$flag as u64, stringify!($flag))),+];
    };
}

// O_LARGEFILE is 0 in the C library's headers of 64-bit programs, and not in the kernel's.
table!(kernel: OPENS, O_CREAT O_EXCL O_NOCTTY O_TRUNC O_APPEND O_NONBLOCK O_SYNC O_DSYNC FASYNC O_DIRECT O_LARGEFILE
    O_NOFOLLOW O_NOATIME O_CLOEXEC O_PATH O_TMPFILE O_DIRECTORY);
table!(kernel: MAPPINGS, MAP_SHARED_VALIDATE MAP_SHARED MAP_PRIVATE MAP_FIXED MAP_ANONYMOUS MAP_NORESERVE MAP_POPULATE
    MAP_NONBLOCK MAP_GROWSDOWN MAP_DENYWRITE MAP_EXECUTABLE MAP_LOCKED MAP_STACK MAP_HUGETLB MAP_SYNC
    MAP_FIXED_NOREPLACE);
pub const TMPFILE: u64 = kernel::O_TMPFILE as u64;
pub const F_GETPIPE_SZ: u32 = nix::libc::F_GETPIPE_SZ as u32;
pub const F_OFD_SETLK: u32 = nix::libc::F_OFD_SETLK as u32;
pub const F_OFD_SETLKW: u32 = nix::libc::F_OFD_SETLKW as u32;
pub const FICLONE: u32 = linux_raw_sys::ioctl::FICLONE;
pub const FIOCLEX: u32 = linux_raw_sys::ioctl::FIOCLEX;
pub const FIONCLEX: u32 = linux_raw_sys::ioctl::FIONCLEX;
pub const NS_GET_USERNS: u32 = linux_raw_sys::ioctl::NS_GET_USERNS;
pub const NS_GET_PARENT: u32 = linux_raw_sys::ioctl::NS_GET_PARENT;
/// The bits of futex(2) that say what it does.
pub const FUTEX_COMMAND: u32 = !(kernel::FUTEX_PRIVATE_FLAG | kernel::FUTEX_CLOCK_REALTIME);
pub const F_GET_SEALS: u32 = nix::libc::F_GET_SEALS as u32;
/// Flags of messages, as the C library's headers have them.
const MESSAGES: &[(u64, &str)] = &[
    (nix::libc::MSG_OOB as u64, "MSG_OOB"),
    (nix::libc::MSG_PEEK as u64, "MSG_PEEK"),
    (nix::libc::MSG_DONTROUTE as u64, "MSG_DONTROUTE"),
    (nix::libc::MSG_CTRUNC as u64, "MSG_CTRUNC"),
    (nix::libc::MSG_TRUNC as u64, "MSG_TRUNC"),
    (nix::libc::MSG_DONTWAIT as u64, "MSG_DONTWAIT"),
    (nix::libc::MSG_EOR as u64, "MSG_EOR"),
    (nix::libc::MSG_WAITALL as u64, "MSG_WAITALL"),
    (nix::libc::MSG_NOSIGNAL as u64, "MSG_NOSIGNAL"),
    (nix::libc::MSG_MORE as u64, "MSG_MORE"),
    (nix::libc::MSG_CMSG_CLOEXEC as u64, "MSG_CMSG_CLOEXEC"),
];

pub fn mapping(bits: u64) -> String {
    flag_names(bits, MAPPINGS, "MAP_FILE")
}

pub fn message_flags(bits: u64) -> String {
    flag_names(bits & u64::from(u32::MAX), MESSAGES, "0")
}

pub fn memory(bits: u64) -> String {
    const FLAGS: &[(u64, &str)] = &[
        (nix::libc::MFD_CLOEXEC as u64, "MFD_CLOEXEC"),
        (nix::libc::MFD_ALLOW_SEALING as u64, "MFD_ALLOW_SEALING"),
        (nix::libc::MFD_HUGETLB as u64, "MFD_HUGETLB"),
        (nix::libc::MFD_NOEXEC_SEAL as u64, "MFD_NOEXEC_SEAL"),
        (nix::libc::MFD_EXEC as u64, "MFD_EXEC"),
    ];
    flag_names(bits & u64::from(u32::MAX), FLAGS, "0")
}

/// The number is unsigned: all bits are those of any.
fn bits_of_futex(bits: u64) -> Option<String> {
    (bits as u32 == kernel::FUTEX_BITSET_MATCH_ANY).then(|| "FUTEX_BITSET_MATCH_ANY".into())
}

pub fn statx_mask(bits: u64) -> String {
    if bits as u32 == kernel::STATX_ALL {
        return "STATX_ALL".into();
    }
    let text = flag_names(bits & u64::from(u32::MAX), shapes::STATX, "0");
    text.replace(shapes::BASIC_WORDS, "STATX_BASIC_STATS")
}

pub fn socket_flags(bits: u64) -> String {
    const FLAGS: &[(u64, &str)] =
        &[(nix::libc::SOCK_CLOEXEC as u64, "SOCK_CLOEXEC"), (nix::libc::SOCK_NONBLOCK as u64, "SOCK_NONBLOCK")];
    flag_names(bits, FLAGS, "")
}

/// Flags of calls that make descriptors, but for those of open.
pub fn made(bits: u64) -> String {
    flag_names(bits & u64::from(u32::MAX), OPENS, "0")
}

pub fn close_range(bits: u64) -> String {
    const FLAGS: &[(u64, &str)] = &[
        (nix::libc::CLOSE_RANGE_UNSHARE as u64, "CLOSE_RANGE_UNSHARE"),
        (nix::libc::CLOSE_RANGE_CLOEXEC as u64, "CLOSE_RANGE_CLOEXEC"),
    ];
    flag_names(bits & u64::from(u32::MAX), FLAGS, "0")
}

pub fn signal_made(bits: u64) -> String {
    const FLAGS: &[(u64, &str)] =
        &[(nix::libc::SFD_CLOEXEC as u64, "SFD_CLOEXEC"), (nix::libc::SFD_NONBLOCK as u64, "SFD_NONBLOCK")];
    flag_names(bits & u64::from(u32::MAX), FLAGS, "0")
}

pub fn epoll_made(bits: u64) -> String {
    let known = if bits == u64::from(kernel::O_CLOEXEC) { Some("EPOLL_CLOEXEC") } else { None };
    known.map_or_else(|| made(bits), str::to_owned)
}

pub fn random(bits: u64) -> String {
    const FLAGS: &[(u64, &str)] = &[
        (nix::libc::GRND_NONBLOCK as u64, "GRND_NONBLOCK"),
        (nix::libc::GRND_RANDOM as u64, "GRND_RANDOM"),
        (nix::libc::GRND_INSECURE as u64, "GRND_INSECURE"),
    ];
    flag_names(bits & u64::from(u32::MAX), FLAGS, "0")
}

pub fn statx_flags(bits: u64) -> String {
    const AS_STAT: &str = "AT_STATX_SYNC_AS_STAT";
    let synchronizes = bits & (nix::libc::AT_STATX_FORCE_SYNC | nix::libc::AT_STATX_DONT_SYNC) as u64 != 0;
    match at(bits) {
        flags if synchronizes => flags,
        flags if flags == "0" => AS_STAT.into(),
        flags => format!("{AS_STAT}|{flags}"),
    }
}

pub fn accept(bits: u64) -> String {
    let text = socket_flags(bits);
    if text.is_empty() { "0".into() } else { text }
}

/// The name of a number, as the crate libc has it from the kernel's headers.
macro_rules! values {
    ($name:ident, $($value:ident)+) => {
        pub fn $name(number: u64) -> Option<String> {
            let known = [$((nix::libc::$value as u32, stringify!($value))),+];
            known.iter().find(|(value, _)| *value == number as u32).map(|(_, name)| (*name).to_owned())
        }
    };
}

/// Flags by name, as the crate linux-raw-sys has them from the kernel's headers.
macro_rules! kernel_flags {
    ($name:ident, $($flag:ident)+) => {
        pub fn $name(bits: u64) -> String {
            table!(kernel: FLAGS, $($flag)+);
            flag_names(bits & u64::from(u32::MAX), FLAGS, "0")
        }
    };
}

kernel_flags!(access_at, AT_SYMLINK_NOFOLLOW AT_EACCESS AT_EMPTY_PATH);
kernel_flags!(event_made, EFD_SEMAPHORE EFD_CLOEXEC EFD_NONBLOCK);
kernel_flags!(timer_made, TFD_CLOEXEC TFD_NONBLOCK);
kernel_flags!(renamed, RENAME_NOREPLACE RENAME_EXCHANGE RENAME_WHITEOUT);
kernel_flags!(spliced, SPLICE_F_MOVE SPLICE_F_NONBLOCK SPLICE_F_MORE SPLICE_F_GIFT);
kernel_flags!(timed, TIMER_ABSTIME);
kernel_flags!(timer_set, TFD_TIMER_ABSTIME TFD_TIMER_CANCEL_ON_SET);
kernel_flags!(attribute_set, XATTR_CREATE XATTR_REPLACE);
kernel_flags!(synchronized, MS_ASYNC MS_INVALIDATE MS_SYNC);
kernel_flags!(locked, MCL_CURRENT MCL_FUTURE MCL_ONFAULT);
kernel_flags!(allocated, FALLOC_FL_KEEP_SIZE FALLOC_FL_PUNCH_HOLE FALLOC_FL_NO_HIDE_STALE FALLOC_FL_COLLAPSE_RANGE
    FALLOC_FL_ZERO_RANGE FALLOC_FL_INSERT_RANGE FALLOC_FL_UNSHARE_RANGE);

values!(whence, SEEK_SET SEEK_CUR SEEK_END SEEK_DATA SEEK_HOLE);
values!(advice, MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE MADV_REMOVE MADV_DONTFORK
    MADV_DOFORK MADV_MERGEABLE MADV_UNMERGEABLE MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP
    MADV_WIPEONFORK MADV_KEEPONFORK MADV_COLD MADV_PAGEOUT MADV_POPULATE_READ MADV_POPULATE_WRITE);
values!(file_advice, POSIX_FADV_NORMAL POSIX_FADV_RANDOM POSIX_FADV_SEQUENTIAL POSIX_FADV_WILLNEED POSIX_FADV_DONTNEED
    POSIX_FADV_NOREUSE);
values!(clock, CLOCK_REALTIME CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID CLOCK_THREAD_CPUTIME_ID CLOCK_MONOTONIC_RAW
    CLOCK_REALTIME_COARSE CLOCK_MONOTONIC_COARSE CLOCK_BOOTTIME CLOCK_REALTIME_ALARM CLOCK_BOOTTIME_ALARM CLOCK_TAI);
values!(timer, ITIMER_REAL ITIMER_VIRTUAL ITIMER_PROF);
values!(epoll_control, EPOLL_CTL_ADD EPOLL_CTL_DEL EPOLL_CTL_MOD);
values!(shut, SHUT_RD SHUT_WR SHUT_RDWR);
values!(level, SOL_SOCKET SOL_IP SOL_TCP SOL_UDP SOL_IPV6 SOL_RAW SOL_PACKET SOL_NETLINK);
values!(whose_priority, PRIO_PROCESS PRIO_PGRP PRIO_USER);
values!(usage, RUSAGE_SELF RUSAGE_CHILDREN RUSAGE_THREAD);
values!(option, PR_SET_NAME PR_GET_NAME PR_SET_PDEATHSIG PR_GET_PDEATHSIG PR_SET_DUMPABLE PR_GET_DUMPABLE
    PR_SET_NO_NEW_PRIVS PR_GET_NO_NEW_PRIVS PR_SET_SECCOMP PR_GET_SECCOMP PR_CAPBSET_READ PR_CAPBSET_DROP
    PR_SET_KEEPCAPS PR_GET_KEEPCAPS PR_CAP_AMBIENT PR_SET_CHILD_SUBREAPER PR_GET_CHILD_SUBREAPER PR_SET_VMA
    PR_SET_TIMERSLACK PR_GET_TIMERSLACK PR_SET_MM);
values!(resource, RLIMIT_CPU RLIMIT_FSIZE RLIMIT_DATA RLIMIT_STACK RLIMIT_CORE RLIMIT_RSS RLIMIT_NPROC RLIMIT_NOFILE
    RLIMIT_MEMLOCK RLIMIT_AS RLIMIT_LOCKS RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME);
values!(fcntl, F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_GETLK F_SETLK F_SETLKW F_SETOWN F_GETOWN F_DUPFD_CLOEXEC
    F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW F_SETLEASE F_GETLEASE
    F_NOTIFY);
values!(ioctl, TCGETS TCSETS TCSETSW TCSETSF TIOCGWINSZ TIOCSWINSZ TIOCGPGRP TIOCSPGRP TIOCSCTTY TIOCNOTTY FIONREAD
    FIONBIO FIOCLEX FIONCLEX TIOCGPTN TIOCSPTLCK TIOCGSID TIOCSTI TIOCEXCL FIOASYNC);

/// `_IOC(_IOC_READ, 0x66, 0xb, 0x20)` of a number without a name: what it does with its argument, a letter, a number,
/// and bytes of the argument (include/uapi/asm-generic/ioctl.h).
fn ioctl_by_parts(number: u64) -> String {
    let direction = ["_IOC_NONE", "_IOC_WRITE", "_IOC_READ", "_IOC_READ|_IOC_WRITE"][(number >> 30 & 3) as usize];
    let [letter, of, bytes] = [number >> 8 & 0xff, number & 0xff, number >> 16 & 0x3fff].map(shapes::hexadecimal);
    format!("_IOC({direction}, {letter}, {of}, {bytes})")
}

/// Who may have a core of the process (include/linux/sched/coredump.h).
pub fn dumpable(number: u64) -> Option<&'static str> {
    ["SUID_DUMP_DISABLE", "SUID_DUMP_USER"].get(usize::try_from(number).ok()?).copied()
}

/// Those that the crate linux-raw-sys has.
fn ioctl_of_kernel(number: u64) -> Option<String> {
    table!(kernel_ioctl: NUMBERS, NS_GET_USERNS NS_GET_PARENT NS_GET_NSTYPE NS_GET_OWNER_UID FS_IOC_FIEMAP
        FS_IOC_GETFLAGS FS_IOC_SETFLAGS BLKGETSIZE64 BLKSSZGET);
    NUMBERS.iter().find(|(known, _)| *known == number & u64::from(u32::MAX)).map(|(_, name)| (*name).to_owned())
}

/// An option of a socket at a level.
pub fn option_at(level: u64, option: u64) -> Option<String> {
    match level as i32 {
        nix::libc::SOL_SOCKET => socket_option(option),
        nix::libc::SOL_IP => ip_option(option),
        nix::libc::SOL_IPV6 => ipv6_option(option),
        nix::libc::SOL_TCP => tcp_option(option),
        _ => None,
    }
}
values!(flock_of, LOCK_SH LOCK_EX LOCK_UN);
values!(futex_of, FUTEX_WAIT FUTEX_WAKE FUTEX_REQUEUE FUTEX_CMP_REQUEUE FUTEX_WAKE_OP FUTEX_LOCK_PI FUTEX_UNLOCK_PI
    FUTEX_TRYLOCK_PI FUTEX_WAIT_BITSET FUTEX_WAKE_BITSET FUTEX_WAIT_REQUEUE_PI FUTEX_CMP_REQUEUE_PI);
values!(socket_of, SOCK_STREAM SOCK_DGRAM SOCK_RAW SOCK_RDM SOCK_SEQPACKET);
values!(protocol, IPPROTO_IP IPPROTO_ICMP IPPROTO_TCP IPPROTO_UDP IPPROTO_ICMPV6 IPPROTO_RAW);
values!(netlink, NETLINK_ROUTE NETLINK_USERSOCK NETLINK_FIREWALL NETLINK_SOCK_DIAG NETLINK_NFLOG NETLINK_XFRM
    NETLINK_SELINUX NETLINK_ISCSI NETLINK_AUDIT NETLINK_FIB_LOOKUP NETLINK_CONNECTOR NETLINK_NETFILTER NETLINK_IP6_FW
    NETLINK_DNRTMSG NETLINK_KOBJECT_UEVENT NETLINK_GENERIC NETLINK_SCSITRANSPORT NETLINK_ECRYPTFS NETLINK_RDMA
    NETLINK_CRYPTO);
values!(socket_option, SO_DEBUG SO_REUSEADDR SO_TYPE SO_ERROR SO_DONTROUTE SO_BROADCAST SO_SNDBUF SO_RCVBUF SO_KEEPALIVE
    SO_OOBINLINE SO_NO_CHECK SO_PRIORITY SO_LINGER SO_BSDCOMPAT SO_REUSEPORT SO_PASSCRED SO_PEERCRED SO_RCVLOWAT
    SO_SNDLOWAT SO_BINDTODEVICE SO_ATTACH_FILTER SO_DETACH_FILTER SO_PEERNAME SO_TIMESTAMP SO_ACCEPTCONN SO_PEERSEC
    SO_SNDBUFFORCE SO_RCVBUFFORCE SO_PASSSEC SO_MARK SO_PROTOCOL SO_DOMAIN SO_RXQ_OVFL SO_PEEK_OFF SO_INCOMING_CPU
    SO_PEERGROUPS SO_ZEROCOPY);
values!(ip_option, IP_TOS IP_TTL IP_HDRINCL IP_OPTIONS IP_PKTINFO IP_RECVERR IP_RECVTTL IP_MTU_DISCOVER IP_FREEBIND
    IP_TRANSPARENT IP_MULTICAST_IF IP_MULTICAST_TTL IP_MULTICAST_LOOP IP_ADD_MEMBERSHIP IP_DROP_MEMBERSHIP);
values!(ipv6_option, IPV6_UNICAST_HOPS IPV6_MULTICAST_IF IPV6_MULTICAST_HOPS IPV6_MULTICAST_LOOP IPV6_V6ONLY
    IPV6_RECVPKTINFO IPV6_RECVERR IPV6_TCLASS);
values!(tcp_option, TCP_NODELAY TCP_MAXSEG TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_SYNCNT TCP_LINGER2
    TCP_DEFER_ACCEPT TCP_WINDOW_CLAMP TCP_INFO TCP_QUICKACK TCP_CONGESTION TCP_USER_TIMEOUT TCP_FASTOPEN);
values!(policy, SCHED_OTHER SCHED_FIFO SCHED_RR SCHED_BATCH SCHED_IDLE SCHED_DEADLINE);
values!(whose_end, P_ALL P_PID P_PGID P_PIDFD);
values!(how_masked, SIG_BLOCK SIG_UNBLOCK SIG_SETMASK);
flags!(access_flags, AccessFlags, "F_OK");

pub fn access(bits: u64) -> Option<String> {
    Some(access_flags(bits))
}

/// As strace(1) has it: a number without a name says so.
pub fn capability(number: u64) -> String {
    let known = shapes::CAPABILITIES.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("{number:#x} /* CAP_??? */"), |(_, name)| (*name).to_owned())
}

/// Two have the same number.
fn ioctl_of(number: u64) -> Option<String> {
    if number as u32 == FICLONE {
        Some("BTRFS_IOC_CLONE or FICLONE".into())
    } else {
        ioctl(number).or_else(|| ioctl_of_kernel(number)).or_else(|| Some(ioctl_by_parts(number)))
    }
}

pub fn flock(bits: u64) -> Option<String> {
    const NOT_BLOCKING: u64 = nix::libc::LOCK_NB as u64;
    let name = flock_of(bits & !NOT_BLOCKING)?;
    Some(if bits & NOT_BLOCKING == 0 { name } else { name + "|LOCK_NB" })
}

pub fn futex(bits: u64) -> Option<String> {
    const PRIVATE: u64 = nix::libc::FUTEX_PRIVATE_FLAG as u64;
    const REALTIME: u64 = nix::libc::FUTEX_CLOCK_REALTIME as u64;
    let name = futex_of(bits & !(PRIVATE | REALTIME))?;
    let private = if bits & PRIVATE == 0 { "" } else { "_PRIVATE" };
    Some(name + private + if bits & REALTIME == 0 { "" } else { "|FUTEX_CLOCK_REALTIME" })
}

/// How an argument is called whose numbers have names.
pub fn known(call: &str, argument: &str) -> Option<fn(u64) -> Option<String>> {
    Some(match (call, argument) {
        ("lseek", "whence") => whence,
        ("fadvise64", "advice") => file_advice,
        ("arch_prctl", "option") => shapes::machine,
        ("prctl", "option") => option,
        (_, "which_clock" | "clockid") => clock,
        ("getitimer" | "setitimer", "which") => timer,
        ("epoll_ctl", "op") => epoll_control,
        ("shutdown", "how") => shut,
        ("setsockopt" | "getsockopt", "level") => level,
        ("getrusage", "who") => usage,
        ("getpriority" | "setpriority", "which") => whose_priority,
        ("waitid", "which") => whose_end,
        ("sched_setscheduler" | "sched_get_priority_max" | "sched_get_priority_min", "policy") => policy,
        ("access" | "faccessat" | "faccessat2", "mode") => access,
        ("madvise" | "process_madvise", "behavior") => advice,
        ("prlimit64" | "getrlimit" | "setrlimit", "resource") => resource,
        ("fcntl", "cmd") => fcntl,
        ("ioctl", "cmd") => ioctl_of,
        ("flock", "cmd") => flock,
        ("futex", "op") => futex,
        ("futex", "val3") => bits_of_futex,
        ("rt_sigprocmask", "how") => how_masked,
        _ => return None,
    })
}

/// How an argument is called all of whose numbers are made of names.
pub fn flags(call: &str, argument: &str) -> Option<fn(u64) -> String> {
    Some(match (call, argument) {
        ("open" | "openat" | "open_by_handle_at", "flags") => open,
        ("pipe2" | "dup3" | "inotify_init1" | "userfaultfd", "flags") => made,
        ("eventfd2", "flags") => event_made,
        ("timerfd_create", "flags") => timer_made,
        ("signalfd4", "flags") => signal_made,
        ("renameat2", "flags") => renamed,
        ("splice" | "tee" | "vmsplice", "flags") => spliced,
        ("clock_nanosleep" | "timer_settime", "flags") => timed,
        ("timerfd_settime", "flags") => timer_set,
        ("setxattr" | "lsetxattr" | "fsetxattr", "flags") => attribute_set,
        ("msync", "flags") => synchronized,
        ("mlockall", "flags") => locked,
        ("fallocate", "mode") => allocated,
        ("mknod" | "mknodat", "mode") => |bits| shapes::mode(bits as u32),
        ("mknod" | "mknodat", "dev") => shapes::device,
        ("faccessat2", "flags") => access_at,
        ("memfd_create", "flags") => memory,
        ("epoll_create1", "flags") => epoll_made,
        ("getrandom", "flags") => random,
        ("statx", "flags") => statx_flags,
        ("mmap" | "mprotect" | "pkey_mprotect", "prot") => protection,
        ("mmap", "flags") => mapping,
        ("unshare", "unshare_flags") => clone,
        ("statx", "mask") => statx_mask,
        (_, "flags") if ["sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg"].contains(&call) => {
            message_flags
        }
        ("accept4", "flags") => accept,
        ("socket" | "socketpair", "family") => family,
        ("socket" | "socketpair", "type") => socket,
        ("wait4" | "waitid", "options") => wait,
        ("newfstatat" | "statx" | "unlinkat" | "linkat" | "fchownat" | "execveat" | "utimensat", "flag" | "flags") => {
            at
        }
        (_, "sig" | "signum") => signal,
        ("close_range", "flags") => close_range,
        _ => return None,
    })
}

/// Two texts with `|` in between, unless one is empty.
pub fn both(one: String, other: String) -> String {
    if one.is_empty() || other.is_empty() { one + &other } else { format!("{one}|{other}") }
}

pub fn open(bits: u64) -> String {
    // Reading alone is no flag: both bits are 0.
    let access = match bits & 3 {
        0 => "O_RDONLY",
        1 => "O_WRONLY",
        2 => "O_RDWR",
        _ => "O_ACCMODE",
    };
    both(access.into(), flag_names(bits & !3 & u64::from(u32::MAX), OPENS, ""))
}

pub fn clone(bits: u64) -> String {
    // The lowest byte is the signal at the child's end.
    let signal = if bits & 0xff == 0 { String::new() } else { signal(bits & 0xff) };
    let text = both(flag_names(bits & !0xff, shapes::CLONES, ""), signal);
    if text.is_empty() { "0".into() } else { text }
}

pub fn signal(number: u64) -> String {
    match Signal::try_from(number as i32) {
        Ok(signal) => signal.as_str().to_owned(),
        // As strace(1) counts them: the C library takes the first two for itself.
        Err(_) if number == 32 => "SIGRTMIN".into(),
        Err(_) if (33..=64).contains(&number) => format!("SIGRT_{}", number - 32),
        Err(_) => number.to_string(),
    }
}

pub fn family(number: u64) -> String {
    AddressFamily::from_i32(number as i32)
        .map_or_else(|| number.to_string(), |family| format!("AF_{family:?}").to_uppercase())
}

pub fn socket(bits: u64) -> String {
    let kind = socket_of(bits & 0xf).unwrap_or_else(|| (bits & 0xf).to_string());
    both(kind, socket_flags(bits & !0xf))
}
