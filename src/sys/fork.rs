//! Telling a forked child from its parent, so that the child leaves alone what it does not have.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between this process and the one that made the first owner.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process that owns something. A child of fork(2) is another process: mappings of perf events do not exist in it
/// (`VM_DONTCOPY`), and slots of maps and threads belong to the parent.
///
/// A child that is made without handlers of pthread_atfork(3), by clone(2) or `_Fork(3)`, is taken for its parent. So
/// is each child while handlers run that were registered before the first owner was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner(u64);

impl Owner {
    /// This process.
    pub(crate) fn new() -> Self {
        static COUNTS: Once = Once::new();
        COUNTS.call_once(|| {
            // SAFETY: the handler does only what a signal handler may. The C library forgets it when it unloads a
            // library that has this code.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            assert_eq!(refused, 0, "no memory for pthread_atfork(3)");
        });
        // Relaxed, here and below: no other memory depends on it.
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this runs in the owner's process.
    #[inline(always)]
    pub(crate) fn is_here(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Owner;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    /// The value of `yes` in a child of this process.
    fn in_child(yes: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child does nothing but read and write words, and leave.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let code = if yes() { 0 } else { 1 };
                // SAFETY: leaves without running anything of ours.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => waitpid(child, None).unwrap() == WaitStatus::Exited(child, 0),
        }
    }

    #[test]
    fn an_owner_is_told_from_its_children_and_they_from_theirs() {
        let owner = Owner::new();
        assert!(owner.is_here() && Owner::new().is_here());
        assert!(in_child(|| {
            let before = owner.is_here();
            // What the child makes is its own. It does not change that the parent's are foreign.
            let own = Owner::new();
            let both = [owner, own].map(Owner::is_here);
            let grandchild = in_child(|| {
                let _own = Owner::new();
                ![owner, own].iter().any(|owner| owner.is_here())
            });
            !before && both == [false, true] && grandchild && own.is_here()
        }));
        assert!(owner.is_here());
    }
}
