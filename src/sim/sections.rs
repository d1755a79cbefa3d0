//! Sections in which a CPU cannot be preempted, and grace periods that wait for them.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// RCU read-side sections.
#[derive(Default)]
pub(super) struct Sections {
    open: Mutex<Open>,
    closed: Condvar,
}

#[derive(Default)]
pub(super) struct Open {
    /// The number of the last section entered.
    pub(super) last: u64,
    sections: BTreeSet<u64>,
    /// How many threads sleep until a grace period is over.
    waiting: u32,
}

impl Open {
    /// Whether a writer that was inside when section `last` was entered is still inside.
    fn any_until(&self, last: u64) -> bool {
        self.sections.first().is_some_and(|oldest| *oldest <= last)
    }
}

impl Sections {
    pub(super) fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self) -> u64 {
        let mut open = self.open();
        open.last += 1;
        let section = open.last;
        open.sections.insert(section);
        section
    }

    pub(super) fn leave(&self, section: u64) {
        let mut open = self.open();
        open.sections.remove(&section);
        if open.waiting > 0 {
            self.closed.notify_all();
        }
    }
}

/// A grace period. It is over when every writer that was inside a section at its start has left.
pub struct Grace {
    pub(super) sections: Arc<Sections>,
    /// The last section that had begun at its start.
    pub(super) last: u64,
}

impl Grace {
    /// Whether the grace period is over.
    pub fn is_over(&self) -> bool {
        !self.sections.open().any_until(self.last)
    }

    /// Waits until the grace period is over. After ten seconds it gives an error: a program forgot
    /// [`Kernel::end`](super::Kernel::end).
    pub(super) fn wait(&self) -> io::Result<()> {
        let mut open = self.sections.open();
        open.waiting += 1;
        let (mut open, timeout) = self
            .sections
            .closed
            .wait_timeout_while(open, Duration::from_secs(10), |open| open.any_until(self.last))
            .unwrap_or_else(PoisonError::into_inner);
        open.waiting -= 1;
        if timeout.timed_out() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl fmt::Debug for Grace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grace").field("is_over", &self.is_over()).finish()
    }
}
