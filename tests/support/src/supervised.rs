//! System calls of a thread, shown to a judge before they are made. The judge lets each call through or answers instead
//! of the kernel: seccomp's user notification (`Documentation/userspace-api/seccomp_filter.rst`).

use crate::privilege::{self, Filter, JUMP_IF_EQUAL, LOAD_WORD, NUMBER, RETURN};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// A system call that is about to be made.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The thread that makes it.
    pub thread: i32,
    /// `libc::SYS_*`.
    pub number: libc::c_long,
    /// Its arguments.
    pub args: [u64; 6],
}

/// The judge's answer to a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is made.
    Make,
    /// It is not made, and fails with this error.
    Fail(i32),
    /// It is not made, and answers this.
    Say(i64),
}

/// Calls that no judge sees. Otherwise a thread could wait for the judge with a lock that the judge needs.
const UNSEEN: [libc::c_long; 4] = [libc::SYS_futex, libc::SYS_brk, libc::SYS_sched_yield, libc::SYS_rt_sigreturn];

/// Runs something on a thread of its own. All system calls of that thread, and of those it starts, are shown to the
/// judge, but for `futex`, `brk`, `sched_yield` and `rt_sigreturn`. Returns when all these threads have ended.
///
/// The judge runs in this process beside them, and sees its memory as they do.
///
/// # Errors
/// If the kernel refuses the filter.
///
/// # Panics
/// If `what` does.
pub fn supervised<T: Send>(mut judge: impl FnMut(&Call) -> Answer, what: impl FnOnce() -> T + Send) -> io::Result<T> {
    // 0 until there is a filter, then its file descriptor, or an error below zero.
    let listener = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Release pairs with the Acquire load below.
            let installed = install();
            listener.store(*installed.as_ref().unwrap_or_else(|errno| errno), Ordering::Release);
            installed.is_ok().then(what)
        });
        // From the filter on, the thread can make no call to wake us by.
        let fd = loop {
            match listener.load(Ordering::Acquire) {
                0 => std::thread::sleep(Duration::from_micros(20)),
                errno if errno < 0 => return Err(io::Error::from_raw_os_error(-errno)),
                fd => break fd,
            }
        };
        // SAFETY: a new file descriptor, nobody else's.
        let listener = unsafe { OwnedFd::from_raw_fd(fd) };
        serve(&listener, &mut judge)?;
        let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(done.expect("the filter was installed"))
    })
}

/// Installs the filter on the calling thread. Gives the listener's file descriptor, or the error below zero.
fn install() -> Result<i32, i32> {
    let mut filter = vec![Filter::new(LOAD_WORD, 0, 0, NUMBER)];
    for (at, call) in UNSEEN.into_iter().enumerate() {
        filter.push(Filter::new(JUMP_IF_EQUAL, (UNSEEN.len() - at) as u8, 0, call as u32));
    }
    filter.push(Filter::new(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    filter.push(Filter::new(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let installed = privilege::install_with(&filter, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    installed.map_err(|error| -error.raw_os_error().unwrap_or(libc::EINVAL))
}

// _IOWR('!', 0, struct seccomp_notif) and so on, include/uapi/linux/seccomp.h.
const RECV: libc::Ioctl = ioctl(3, 0, size_of::<libc::seccomp_notif>());
const SEND: libc::Ioctl = ioctl(3, 1, size_of::<libc::seccomp_notif_resp>());
const SET_FLAGS: libc::Ioctl = ioctl(1, 4, size_of::<u64>());
/// The two threads wake each other on one CPU (Linux 6.6).
const SYNC_WAKE_UP: u64 = 1;

const fn ioctl(direction: u32, number: u32, size: usize) -> libc::Ioctl {
    (direction << 30 | (size as u32) << 16 | (b'!' as u32) << 8 | number) as libc::Ioctl
}

/// Judges until all threads with the filter have ended.
fn serve(listener: &OwnedFd, judge: &mut impl FnMut(&Call) -> Answer) -> io::Result<()> {
    let fd = listener.as_raw_fd();
    // It is slower where the kernel does not know that.
    // SAFETY: no pointer.
    unsafe { libc::ioctl(fd, SET_FLAGS, SYNC_WAKE_UP) };
    loop {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives until the call returns.
        if unsafe { libc::poll(&raw mut poll, 1, -1) } < 0 {
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            }
        }
        if poll.revents & libc::POLLIN == 0 {
            return Ok(());
        }
        // SAFETY: plain numbers, and the kernel wants zeros.
        let mut seen: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes the struct.
        if unsafe { libc::ioctl(fd, RECV, &raw mut seen) } != 0 {
            // The thread was killed, or interrupted and calls again.
            continue;
        }
        let call = Call { thread: seen.pid as i32, number: libc::c_long::from(seen.data.nr), args: seen.data.args };
        let (error, val, flags) = match judge(&call) {
            Answer::Make => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Answer::Fail(errno) => (-errno, 0, 0),
            Answer::Say(val) => (0, val, 0),
        };
        let answer = libc::seccomp_notif_resp { id: seen.id, val, error, flags };
        // SAFETY: the kernel reads the struct. An error says that nobody waits for it any more.
        unsafe { libc::ioctl(fd, SEND, &raw const answer) };
    }
}
