//! Telling a forked child from its parent, so that the child leaves alone what it does not have.

/// The process that owns something, by its number. A child of fork(2) is another process: mappings of perf events do not
/// exist in it (`VM_DONTCOPY`), and slots of maps and threads belong to the parent.
///
/// It takes a system call, so it is asked at refreshes, in drops and by calls of handles, and not for each event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// This process.
    pub(crate) fn new() -> Self {
        Self(std::process::id())
    }

    /// Whether this runs in the owner's process.
    pub(crate) fn is_here(self) -> bool {
        std::process::id() == self.0
    }
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
