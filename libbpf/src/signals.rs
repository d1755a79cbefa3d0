//! Signals while a call waits for a proof.
//!
//! Tools see what their handlers set when epoll_wait(2) fails with EINTR. A handler that ran while the tool was in a call
//! of ours would go unseen, and the tool would wait on: for good, if no event comes. So signals are blocked meanwhile,
//! and the thread's next wait fails with EINTR.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::MaybeUninit;

thread_local! {
    /// A signal came while the thread was in a call of ours.
    static CAME: Cell<bool> = const { Cell::new(false) };
}

/// Faults of the program, which must not wait.
const FAULTS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS];

/// All signals but faults.
fn all() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: room for one set, which is written.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: just written.
    let mut set = unsafe { set.assume_init() };
    for fault in FAULTS {
        // SAFETY: a set, and the number of a signal.
        unsafe { libc::sigdelset(&raw mut set, fault) };
    }
    set
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: room for one set, which is written.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: just written.
    unsafe { set.assume_init() }
}

fn has(set: &libc::sigset_t, signal: c_int) -> bool {
    // SAFETY: a set, and the number of a signal.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// Whether a signal runs a handler of the program, and so ends a wait.
fn is_handled(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: asks only; room for one.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: just written.
    let handler = unsafe { action.assume_init() }.sa_sigaction;
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

/// Lets signals come again.
struct Blocked(libc::sigset_t);

impl Drop for Blocked {
    fn drop(&mut self) {
        let mut pending = empty();
        // SAFETY: room for one set.
        unsafe { libc::sigpending(&raw mut pending) };
        let came = |signal: &c_int| has(&pending, *signal) && !has(&self.0, *signal) && is_handled(*signal);
        if (1..=libc::SIGRTMAX()).any(|signal| came(&signal)) {
            // A thread that ends has none any more.
            let _ = CAME.try_with(|flag| flag.set(true));
        }
        // SAFETY: the set of before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Runs what may wait without signals. A thread that is made meanwhile takes none of the tool's either.
pub(crate) fn quietly<T>(wait: impl FnOnce() -> T) -> T {
    let (all, mut before) = (all(), empty());
    // SAFETY: two sets.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) };
    let _blocked = Blocked(before);
    wait()
}

/// Whether the next wait has to fail with EINTR. It does so once.
pub(crate) fn take_interrupt() -> bool {
    CAME.try_with(|flag| flag.replace(false)).unwrap_or(false)
}
