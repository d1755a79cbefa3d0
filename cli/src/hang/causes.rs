//! What a thread waits for, and who could end that.

use super::ends::{self, Ends};
use super::runtimes::Runtime;
use super::threads::{self, Place, Thread};
use crate::trace::calls;
use crate::why::is_of_64_bits;
use nix::libc;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

/// A wait that goes on.
#[derive(Debug)]
pub struct Wait {
    pub thread: Thread,
    /// How long it has lasted, if anything tells.
    pub since: Option<Duration>,
    /// It had begun before.
    pub at_least: bool,
    pub what: What,
    /// Who could end it: one of them is enough.
    pub for_whom: Vec<Ender>,
    /// Whether a time ends it, too, as far as that can be seen.
    pub is_timed: bool,
    /// Who woke a thread last at the word of memory. It may be the one that could do it again.
    pub last: Option<LastWaker>,
    /// Whose own memory may have the owner of what it waits for.
    pub runtime: Option<Runtime>,
}

/// What it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A lock in memory, whose owner's number is there. If that has ended: its number.
    Lock {
        address: u64,
        ended: Option<u32>,
        how: How,
    },
    /// The end of a thread.
    Join,
    /// A word of memory, in which nobody's number is.
    Word {
        address: u64,
    },
    /// A lock on a file.
    FileLock {
        file: String,
    },
    /// Something to read from a descriptor. `is_own`: only other threads of its process have the other end.
    Read {
        file: String,
        is_own: bool,
    },
    /// Room to write into one.
    Write {
        file: String,
        is_own: bool,
    },
    /// The end of a child.
    Child,
    /// A child of vfork that has neither ended nor executed a program.
    Vfork,
    /// It was stopped by a signal.
    Stopped,
    /// It was stopped by who traces it.
    Traced,
    /// A file system whose server is a process.
    Served,
    /// A disk, a file system or a device.
    Device,
    /// A time that it chose itself.
    Time,
    /// Any of several descriptors.
    Any,
    /// A signal.
    Signal,
    Unknown,
}

/// How it is known who could end a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The kernel says so.
    Seen,
    /// Memory of the process looks so.
    Likely,
}

/// Who could end a wait: a thread, or any of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ender {
    pub pid: u32,
    pub tid: Option<u32>,
    pub name: String,
}

/// Who was seen last to wake a thread of a process that waited at a word of its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastWaker {
    pub by: Ender,
    pub has_ended: bool,
    /// Whom it woke. If the word is a lock's, that one may own it.
    pub woken: Ender,
    pub ago: Duration,
}

/// What was asked once for all threads.
#[derive(Debug, Default)]
pub struct Asked {
    ends: OnceCell<Ends>,
    locks: OnceCell<Vec<Lock>>,
    runtimes: HashMap<u32, Option<Runtime>>,
}

/// A line of `/proc/locks`.
#[derive(Debug, PartialEq, Eq)]
struct Lock {
    number: u32,
    waits: bool,
    /// `None` for the lock of an open file that processes share.
    pid: Option<u32>,
    inode: u64,
}

impl Wait {
    pub fn of(thread: Thread, since: Option<Duration>, at_least: bool, asked: &mut Asked) -> Self {
        let (what, for_whom) = cause(&thread, asked);
        let for_whom = for_whom.into_iter().filter_map(|(pid, tid)| Ender::new(pid, tid)).collect();
        let is_timed = match thread.place {
            Some(Place::Call(number, args)) => calls::name_of(number) == Some("futex") && args[3] != 0,
            _ => false,
        };
        let pid = thread.pid;
        let runtime = match what {
            What::Word { .. } => *asked.runtimes.entry(pid).or_insert_with(|| Runtime::of(pid)),
            _ => None,
        };
        Self { thread, since, at_least, what, for_whom, is_timed, last: None, runtime }
    }

    /// The same, with who woke a thread last at its word of memory.
    pub fn with_waker(mut self, woke: impl Fn(u32, u64) -> Option<LastWaker>) -> Self {
        if let What::Word { address } = self.what {
            self.last = woke(self.thread.pid, address);
        }
        self
    }

    /// The processes, or threads, that could end it.
    pub fn ends(&self) -> impl Iterator<Item = (u32, Option<u32>)> + use<> {
        self.for_whom.iter().map(|ender| (ender.pid, ender.tid)).collect::<Vec<_>>().into_iter()
    }

    /// Who woke a thread last at the word of memory, as far as that is seen.
    pub fn last_waker(&self) -> Option<(u32, Option<u32>)> {
        self.last.as_ref().map(|last| (last.by.pid, last.by.tid))
    }

    /// Those of both whose own waits say more.
    pub fn enders(&self) -> impl Iterator<Item = &Ender> {
        self.for_whom.iter().chain(self.last.as_ref().map(|last| &last.by))
    }

    /// Whether nothing else than who it waits for can end it. Nobody sees the time-out of a socket.
    pub fn is_for_ever(&self) -> bool {
        let is_socket =
            matches!(&self.what, What::Read { file, .. } | What::Write { file, .. } if file.starts_with("socket:["));
        !self.is_timed && !is_socket
    }

    /// Whether it is a wait that threads with nothing to do are in.
    pub fn is_idle(&self) -> bool {
        matches!(self.what, What::Time | What::Any | What::Signal)
    }

    /// Whether it is known what would end it, and that is neither a time nor one of many things.
    pub fn has_cause(&self) -> bool {
        !self.for_whom.is_empty()
            || matches!(self.what, What::Lock { .. } | What::Stopped | What::Traced | What::Served | What::Device)
            || matches!(&self.what, What::Read { file, is_own: false } | What::Write { file, is_own: false }
                if file.starts_with("pipe:["))
    }
}

impl Ender {
    /// `None` if it has ended.
    fn new(pid: u32, tid: Option<u32>) -> Option<Self> {
        let name = fs::read_to_string(format!("/proc/{pid}/task/{}/comm", tid.unwrap_or(pid))).ok()?;
        Some(Self { pid, tid, name: name.trim_end().to_owned() })
    }

    pub fn label(&self) -> String {
        format!("{}/{}", self.name, self.tid.unwrap_or(self.pid))
    }
}

/// Processes, or threads of them.
type Whom = Vec<(u32, Option<u32>)>;

fn cause(thread: &Thread, asked: &mut Asked) -> (What, Whom) {
    match thread.state {
        'T' => return (What::Stopped, vec![]),
        't' => return (What::Traced, Some((thread.tracer, None)).filter(|(pid, _)| *pid != 0).into_iter().collect()),
        _ => {}
    }
    if thread.wchan.contains("fuse") || thread.wchan == "request_wait_answer" {
        return (What::Served, processes(asked.ends().who("/dev/fuse", |_| true)));
    }
    let Some(Place::Call(number, args)) = thread.place else { return device_or_unknown(thread) };
    // Calls of 32 bits have other numbers.
    if !is_of_64_bits(thread.pid) {
        return device_or_unknown(thread);
    }
    let of_descriptor = || fs::read_link(format!("/proc/{}/task/{}/fd/{}", thread.pid, thread.tid, args[0] as i32));
    let file = || of_descriptor().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    match calls::name_of(number).unwrap_or_default() {
        "futex" => futex(thread, &args),
        "flock" => file_lock(thread, file(), &args, asked),
        "fcntl" if [libc::F_SETLKW, libc::F_OFD_SETLKW].contains(&(args[1] as i32)) => {
            file_lock(thread, file(), &args, asked)
        }
        "read" | "readv" | "pread64" | "recvfrom" | "recvmsg" | "recvmmsg" | "accept" | "accept4" => {
            reads(thread, file(), asked)
        }
        "write" | "writev" | "pwrite64" | "sendto" | "sendmsg" | "sendmmsg" | "connect" => {
            writes(thread, file(), asked)
        }
        "wait4" | "waitid" => (What::Child, processes(waited_for(thread, number, &args))),
        "vfork" => (What::Vfork, processes(born(thread))),
        "clone" if args[0] & libc::CLONE_VFORK as u64 != 0 => (What::Vfork, processes(born(thread))),
        "clone3" if word(thread.pid, args[0]).is_some_and(|[flags]| flags & libc::CLONE_VFORK as u32 != 0) => {
            (What::Vfork, processes(born(thread)))
        }
        "nanosleep" | "clock_nanosleep" => (What::Time, vec![]),
        "poll" | "ppoll" | "select" | "pselect6" | "epoll_wait" | "epoll_pwait" | "epoll_pwait2" => (What::Any, vec![]),
        "pause" | "rt_sigsuspend" | "rt_sigtimedwait" => (What::Signal, vec![]),
        _ => device_or_unknown(thread),
    }
}

fn device_or_unknown(thread: &Thread) -> (What, Whom) {
    (if thread.state == 'D' { What::Device } else { What::Unknown }, vec![])
}

fn processes(pids: Vec<u32>) -> Whom {
    pids.into_iter().map(|pid| (pid, None)).collect()
}

/// Words of a process's memory.
fn word<const N: usize>(pid: u32, address: u64) -> Option<[u32; N]> {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut words = [0; N];
    for (at, word) in (0..).zip(&mut words) {
        let mut bytes = [0; 4];
        memory.read_exact_at(&mut bytes, address.checked_add(4 * at)?).ok()?;
        *word = u32::from_ne_bytes(bytes);
    }
    Some(words)
}

/// What a thread waits for at a word of memory: futex(2).
fn futex(thread: &Thread, args: &[u64; 6]) -> (What, Whom) {
    let (address, operation, expected) = (args[0], args[1] as i32, args[2] as u32);
    let unknown = (What::Word { address }, vec![]);
    // Linux 5.14; libc has no name for it.
    const FUTEX_LOCK_PI2: i32 = 13;
    let owner = match operation & libc::FUTEX_CMD_MASK {
        // The kernel itself reads the owner's number there.
        libc::FUTEX_LOCK_PI | FUTEX_LOCK_PI2 | libc::FUTEX_WAIT_REQUEUE_PI => {
            // A condition is left for the mutex at the second address.
            let is_condition = operation & libc::FUTEX_CMD_MASK == libc::FUTEX_WAIT_REQUEUE_PI;
            let address = if is_condition { args[4] } else { address };
            let Some([word]) = word(thread.pid, address) else { return unknown };
            Some((word & libc::FUTEX_TID_MASK, How::Seen))
        }
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            // The C library clears the number of a thread as it ends, and wakes who waits for that.
            let is_shared = operation & libc::FUTEX_PRIVATE_FLAG == 0;
            let joined = here(thread, expected).filter(|_| is_shared && expected != 0);
            if let Some(joined) = joined.filter(|joined| threads::process_of(*joined) == Some(thread.pid)) {
                return (What::Join, vec![(thread.pid, Some(joined))]);
            }
            owner(thread, address, expected, is_shared).map(|owner| (owner, How::Likely))
        }
        _ => None,
    };
    match owner {
        Some((owner, how)) if owner != 0 => {
            match (here(thread, owner), here(thread, owner).and_then(threads::process_of)) {
                (Some(owner), Some(pid)) => (What::Lock { address, ended: None, how }, vec![(pid, Some(owner))]),
                (Some(owner), None) => (What::Lock { address, ended: Some(owner), how }, vec![]),
                // In a namespace below, and of another process: nobody knows who that is.
                (None, _) => unknown,
            }
        }
        _ => unknown,
    }
}

/// The number here of a thread that another names by the number in its own PID namespace: of its process, or, where both
/// are the same, of any.
fn here(thread: &Thread, number: u32) -> Option<u32> {
    if !thread.is_below {
        return Some(number);
    }
    threads::numbers(thread.pid).into_iter().find(|tid| threads::own_number(thread.pid, *tid) == Some(number))
}

/// The largest number of a thread: `PID_MAX_LIMIT`, include/linux/threads.h.
const LARGEST: u32 = 1 << 22;

/// The owner of a mutex of glibc, as its memory looks (`struct __pthread_mutex_s`, sysdeps/nptl/bits/struct_mutex.h): the
/// word, a count, the owner, how many use it, and its kind.
fn owner(thread: &Thread, address: u64, expected: u32, is_shared: bool) -> Option<u32> {
    let pid = thread.pid;
    let is_of_process = |owner: u32| here(thread, owner).is_some_and(|owner| threads::process_of(owner) == Some(pid));
    // A robust one has its owner's number in the word itself, and that others wait.
    if expected & libc::FUTEX_WAITERS != 0 {
        // Other locks have other words: -1 is a parked thread of Rust's.
        let owner = expected & libc::FUTEX_TID_MASK;
        let is_died = expected & libc::FUTEX_OWNER_DIED != 0;
        return (!is_died && owner <= LARGEST && (is_shared || is_of_process(owner))).then_some(owner);
    }
    /// The word of a lock for which others wait.
    const CONTENDED: u32 = 2;
    /// All kinds and their flags.
    const KINDS: u32 = 0x3ff;
    /// So many threads use no lock at once.
    const USERS: u32 = 1 << 16;
    /// So often a thread locks a recursive one.
    const COUNT: u32 = 1 << 16;
    let [now, count, owner, users, kind] = word(pid, address)?;
    let looks_so = (expected, now) == (CONTENDED, CONTENDED)
        && (1..USERS).contains(&users)
        && count < COUNT
        && kind & !KINDS == 0
        && address.is_multiple_of(8);
    // A number beside another kind of lock is chance: a thread of this process is none, as a rule.
    let has_ended = !thread.is_below && threads::process_of(owner).is_none();
    let is_there = is_shared || is_of_process(owner) || has_ended;
    (looks_so && owner != 0 && owner <= LARGEST && is_there).then_some(owner)
}

/// Who has locked what a thread wants to lock.
fn file_lock(thread: &Thread, file: String, args: &[u64; 6], asked: &mut Asked) -> (What, Whom) {
    let path = format!("/proc/{}/task/{}/fd/{}", thread.pid, thread.tid, args[0] as i32);
    let Ok(inode) = fs::metadata(path).map(|found| found.ino()) else { return (What::FileLock { file }, vec![]) };
    let locks = asked.locks();
    let is_its = |lock: &&Lock| lock.waits && lock.inode == inode && lock.pid.is_none_or(|pid| pid == thread.pid);
    let numbers: Vec<u32> = locks.iter().filter(is_its).map(|lock| lock.number).collect();
    let holders = locks.iter().filter(|lock| !lock.waits && numbers.contains(&lock.number));
    let mut pids: Vec<u32> = holders.filter_map(|lock| lock.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    (What::FileLock { file }, processes(pids))
}

/// Who could write what a thread wants to read.
fn reads(thread: &Thread, file: String, asked: &mut Asked) -> (What, Whom) {
    let (whom, is_own) = if file.starts_with("pipe:[") {
        let writers = asked.ends().who(&file, |end| end.writes);
        but(writers, thread.pid)
    } else {
        at_the_other_end(thread, &file, asked)
    };
    (What::Read { file, is_own }, processes(whom))
}

/// Who could read what a thread wants to write.
fn writes(thread: &Thread, file: String, asked: &mut Asked) -> (What, Whom) {
    let (whom, is_own) = if file.starts_with("pipe:[") {
        let readers = asked.ends().who(&file, |end| end.reads);
        but(readers, thread.pid)
    } else {
        at_the_other_end(thread, &file, asked)
    };
    (What::Write { file, is_own }, processes(whom))
}

fn at_the_other_end(thread: &Thread, file: &str, asked: &mut Asked) -> (Vec<u32>, bool) {
    let none = (vec![], false);
    let Some(inode) = ends::inode(file) else { return none };
    let Some(peer) = ends::unix_peer(inode).or_else(|| ends::tcp_peer(thread.pid, inode)) else { return none };
    but(asked.ends().who(&format!("socket:[{peer}]"), |_| true), thread.pid)
}

/// The others, with its own process if that has other threads, which could do it too; and whether there is nobody else.
fn but(mut pids: Vec<u32>, own: u32) -> (Vec<u32>, bool) {
    let has_others = threads::numbers(own).len() > 1;
    let is_own = pids == [own] && has_others;
    if is_own || !has_others {
        pids.retain(|pid| *pid != own);
    }
    (pids, is_own)
}

/// The children for which wait4(2) or waitid(2) waits.
fn waited_for(thread: &Thread, number: i64, args: &[u64; 6]) -> Vec<u32> {
    let children = threads::children(thread.pid);
    let is_named = |pid: &u32, number: u64| match thread.is_below {
        true => threads::own_number(*pid, *pid).map(u64::from) == Some(number),
        false => u64::from(*pid) == number,
    };
    let named = |number: u32| children.iter().copied().filter(|pid| is_named(pid, number.into())).collect();
    match (calls::name_of(number), args[0]) {
        (Some("wait4"), pid) if pid as i32 > 0 => named(pid as u32),
        (Some("wait4"), pid) if pid as i32 == -1 => children,
        (Some("waitid"), of) if of == u64::from(libc::P_ALL) => children,
        (Some("waitid"), of) if of == u64::from(libc::P_PID) => named(args[1] as u32),
        (Some("waitid"), of) if of == libc::P_PIDFD as u64 => {
            let info =
                fs::read_to_string(format!("/proc/{}/fdinfo/{}", thread.pid, args[1] as i32)).unwrap_or_default();
            info.lines().filter_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).collect()
        }
        // Of a group.
        _ => vec![],
    }
}

/// The children of a thread that run its own program still.
fn born(thread: &Thread) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{}/task/{}/children", thread.pid, thread.tid)).unwrap_or_default();
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let own = program(thread.pid);
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| program(*pid) == own).collect()
}

impl Asked {
    fn ends(&self) -> &Ends {
        self.ends.get_or_init(Ends::read)
    }

    fn locks(&self) -> &[Lock] {
        self.locks.get_or_init(|| {
            let text = fs::read_to_string("/proc/locks").unwrap_or_default();
            text.lines().filter_map(lock).collect()
        })
    }
}

/// `1: -> FLOCK  ADVISORY  WRITE 77 fe:00:12 0 EOF`: who waits has an arrow, and the number of the lock.
fn lock(line: &str) -> Option<Lock> {
    let mut fields = line.split_whitespace().peekable();
    let number = fields.next()?.strip_suffix(':')?.parse().ok()?;
    let waits = fields.next_if_eq(&"->").is_some();
    let pid = fields.nth(3)?.parse().ok();
    let inode = fields.next()?.rsplit(':').next()?.parse().ok()?;
    Some(Lock { number, waits, pid, inode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_tell_who_waits() {
        let held = Lock { number: 3, waits: false, pid: Some(77), inode: 12 };
        assert_eq!(lock("3: FLOCK  ADVISORY  WRITE 77 fe:00:12 0 EOF"), Some(held));
        let waits = Lock { number: 3, waits: true, pid: Some(78), inode: 12 };
        assert_eq!(lock("3: -> FLOCK  ADVISORY  WRITE 78 fe:00:12 0 EOF"), Some(waits));
        let shared = Lock { number: 4, waits: false, pid: None, inode: 9 };
        assert_eq!(lock("4: OFDLCK ADVISORY  WRITE -1 00:1a:9 0 EOF"), Some(shared));
        assert_eq!(lock(""), None);
    }
}
