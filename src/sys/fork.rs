//! Telling a forked child from its parent, so that the child leaves alone what it does not have.

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// An atomic word on a page of its own, which the kernel wipes in children of fork(2) (`MADV_WIPEONFORK`, Linux 4.14).
///
/// Mappings of perf events do not exist in the child (`VM_DONTCOPY`), and slots of maps and threads belong to the
/// parent. If the kernel refuses such pages, as under a seccomp filter, the word is an ordinary one, and children find
/// it unchanged. Only [`ForkWord::is_here`] then tells them apart.
#[derive(Debug)]
pub(crate) struct ForkWord {
    /// INVARIANT: valid until this is dropped. On its own page, or leaked from a box.
    word: NonNull<AtomicU64>,
    /// The number of the process that made it, if the word is an ordinary one.
    maker: Option<u32>,
}

/// Bytes that are mapped for a word: the kernel maps a whole page.
const LEN: NonZeroUsize = NonZeroUsize::new(size_of::<AtomicU64>()).unwrap();

// SAFETY: the page belongs to the process, not to a thread, and is only used as an atomic.
unsafe impl Send for ForkWord {}
// SAFETY: as for Send.
unsafe impl Sync for ForkWord {}

impl ForkWord {
    pub(crate) fn new(value: u64) -> Self {
        match wiped_page(value) {
            Some(word) => Self { word, maker: None },
            None => Self::ordinary(value),
        }
    }

    fn ordinary(value: u64) -> Self {
        let maker = Some(std::process::id());
        Self { word: NonNull::from(Box::leak(Box::new(AtomicU64::new(value)))), maker }
    }

    /// Whether this is the process that made it, for a word that is never 0 there. Needs a system call if the word is
    /// an ordinary one, so do not call it for each event. (It then takes a descendant that reuses the number of its
    /// dead ancestor for that ancestor.)
    pub(crate) fn is_here(&self) -> bool {
        // Relaxed: no other memory depends on it.
        self.maker.map_or_else(|| self.get().load(Ordering::Relaxed) != 0, |maker| maker == std::process::id())
    }

    #[inline]
    pub(crate) fn get(&self) -> &AtomicU64 {
        // SAFETY: valid until this is dropped, aligned as pages and boxes are, only ever used as an atomic.
        unsafe { self.word.as_ref() }
    }
}

fn wiped_page(value: u64) -> Option<NonNull<AtomicU64>> {
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let page = unsafe { mmap_anonymous(None, LEN, protection, MapFlags::MAP_PRIVATE) }.ok()?;
    // SAFETY: the page is ours alone, and holds nothing yet.
    if unsafe { madvise(page, LEN.get(), MmapAdvise::MADV_WIPEONFORK) }.is_err() {
        unmap(page.cast());
        return None;
    }
    let page = page.cast::<AtomicU64>();
    // SAFETY: a writable page that nobody else knows.
    unsafe { page.write(AtomicU64::new(value)) };
    Some(page)
}

fn unmap(page: NonNull<AtomicU64>) {
    // SAFETY: a whole mapping of ours, to which no reference is left.
    let unmapped = unsafe { munmap(page.cast(), LEN.get()) };
    // If the kernel refuses, the page stays mapped. Nothing can be done about it.
    let _ = unmapped;
}

impl Drop for ForkWord {
    fn drop(&mut self) {
        if self.maker.is_none() {
            return unmap(self.word);
        }
        // SAFETY: it was a box (`ordinary`), and no reference to it is left.
        drop(unsafe { Box::from_raw(self.word.as_ptr()) });
    }
}

/// The process that owns something. A child of fork(2) is another process.
///
/// Works like a separate [`ForkWord`] for each value, but all share one page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    /// The number of the process that this runs in; 0 in a child until it makes an owner. An ordinary word has the
    /// kernel's number of the process that made the last owner.
    here: &'static AtomicU64,
    number: u64,
}

static HERE: OnceLock<ForkWord> = OnceLock::new();

/// The last number that was given to this process or an ancestor. Ordinary memory, which children inherit, so that none
/// has an ancestor's number.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Owner {
    /// This process.
    pub(crate) fn new() -> Self {
        let word = HERE.get_or_init(|| ForkWord::new(0));
        let here = word.get();
        // Relaxed, here and below: no other memory depends on these numbers.
        if word.maker.is_some() {
            let number = std::process::id().into();
            here.store(number, Ordering::Relaxed);
            return Self { here, number };
        }
        if here.load(Ordering::Relaxed) == 0 {
            let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            // Unless another thread was faster.
            let _ = here.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        }
        Self { here, number: here.load(Ordering::Relaxed) }
    }

    /// Whether this runs in the owner's process. If the kernel refuses wiped pages, a child is recognized only after it
    /// has made an owner.
    #[inline(always)]
    pub(crate) fn is_here(self) -> bool {
        self.here.load(Ordering::Relaxed) == self.number
    }

    /// The same, and always correct: for code that writes, unmaps or keeps something. Needs a system call if the kernel
    /// refuses wiped pages, so do not call it for each event.
    pub(crate) fn is_surely_here(self) -> bool {
        let is_ordinary = HERE.get().is_some_and(|word| word.maker.is_some());
        self.is_here() && (!is_ordinary || self.number == u64::from(std::process::id()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ForkWord, Owner};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    use std::sync::atomic::Ordering;

    #[test]
    fn a_child_finds_it_zeroed() {
        let word = ForkWord::new(7);
        assert_eq!(word.get().load(Ordering::Relaxed), 7);
        // SAFETY: the child does nothing but read a word and leave.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let zero = word.get().load(Ordering::Relaxed) == 0;
                // SAFETY: leaves without running anything of ours.
                unsafe { libc::_exit(if zero { 0 } else { 1 }) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
                assert_eq!(word.get().load(Ordering::Relaxed), 7);
            }
        }
    }

    /// Where the kernel wipes no pages.
    #[test]
    fn an_ordinary_word_may_be_moved() {
        let moved = Box::new(ForkWord::ordinary(7));
        moved.get().fetch_add(1, Ordering::Relaxed);
        assert_eq!(moved.get().load(Ordering::Relaxed), 8);
    }

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
