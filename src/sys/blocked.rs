//! Signals of a thread that are blocked for a time.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::io;

/// Blocks all signals of a thread but those that a fault raises, whose handlers have to run at once. Until it is dropped.
#[derive(Debug)]
pub(crate) struct Blocked {
    before: SigSet,
}

impl Blocked {
    pub(crate) fn all() -> io::Result<Self> {
        let mut all = SigSet::all();
        for fault in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGTRAP, Signal::SIGSYS]
        {
            all.remove(fault);
        }
        Ok(Self { before: all.thread_swap_mask(SigmaskHow::SIG_BLOCK)? })
    }

    /// What was blocked before.
    pub(crate) fn before(&self) -> &SigSet {
        &self.before
    }

    /// Whether a signal has come that was not blocked before.
    pub(crate) fn has_come(&self) -> bool {
        let mut pending = SigSet::empty();
        // SAFETY: a set of signals to write to, which lives until the call returns.
        let answer = unsafe { libc::sigpending(std::ptr::from_mut(&mut pending).cast()) };
        answer == 0 && pending.iter().any(|signal| !self.before.contains(signal))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // It was the thread's mask before, so the kernel takes it.
        let _ = self.before.thread_set_mask();
    }
}
