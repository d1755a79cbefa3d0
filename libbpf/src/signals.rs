//! Signals while a call waits for a proof.
//!
//! Tools see what their handlers set when epoll_wait(2) fails with EINTR. A handler that ran while the tool was in a
//! call of ours would go unseen, and the tool would wait on: for good, if no event comes. So signals are blocked
//! meanwhile, and the thread's next wait fails with EINTR.

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

/// Waits without signals. Those that came meanwhile and have handlers come at the end, after the callbacks: some tools
/// drop what they are called with once their handler has run. Others come in between, so that a callback that blocks
/// can be ended.
pub(crate) struct Quiet {
    before: libc::sigset_t,
    /// Those that came.
    held: bool,
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: a set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

impl Quiet {
    pub(crate) fn new() -> Self {
        let mut before = empty();
        // SAFETY: asks only; room for one set.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut before) };
        Self { before, held: false }
    }

    pub(crate) fn wait<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        // Also after a panic.
        struct Blocked<'a>(&'a mut Quiet);
        impl Drop for Blocked<'_> {
            fn drop(&mut self) {
                self.0.unblock();
            }
        }
        let all = all();
        // SAFETY: a set.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()) };
        let _blocked = Blocked(self);
        wait()
    }

    fn unblock(&mut self) {
        let (mut pending, mut mask) = (empty(), self.before);
        // SAFETY: room for one set.
        unsafe { libc::sigpending(&raw mut pending) };
        for signal in 1..=libc::SIGRTMAX() {
            if has(&pending, signal) && !has(&self.before, signal) && is_handled(signal) {
                // SAFETY: a set, and the number of a signal.
                unsafe { libc::sigaddset(&raw mut mask, signal) };
                self.held = true;
            }
        }
        set_mask(&mask);
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if self.held {
            // A thread that ends has none any more.
            let _ = CAME.try_with(|flag| flag.set(true));
            set_mask(&self.before);
        }
    }
}

/// Runs what may wait without signals. A thread that is made meanwhile takes none of the tool's either.
pub(crate) fn quietly<T>(wait: impl FnOnce() -> T) -> T {
    Quiet::new().wait(wait)
}

/// Whether the next wait has to fail with EINTR. It does so once.
pub(crate) fn take_interrupt() -> bool {
    CAME.try_with(|flag| flag.replace(false)).unwrap_or(false)
}
