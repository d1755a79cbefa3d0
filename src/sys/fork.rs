//! A word that a forked child finds zeroed, as a sign to keep its hands off what it does not have.

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// An atomic word on a page of its own, which the kernel wipes in children of fork(2) (`MADV_WIPEONFORK`, Linux 4.14).
///
/// Mappings of perf events are not in the child at all (`VM_DONTCOPY`), and slots of maps and threads are the parent's.
/// Where the kernel has no such pages the word is an ordinary one, and children are not told apart.
#[derive(Debug)]
pub(crate) struct ForkWord {
    page: Option<NonNull<AtomicU64>>,
    ordinary: AtomicU64,
}

/// Bytes that are mapped for a word: the kernel gives a page, whatever its size.
const LEN: NonZeroUsize = NonZeroUsize::new(size_of::<AtomicU64>()).unwrap();

// SAFETY: the page belongs to the process, not to a thread, and is only used as an atomic.
unsafe impl Send for ForkWord {}
// SAFETY: as for Send.
unsafe impl Sync for ForkWord {}

impl ForkWord {
    pub(crate) fn new(value: u64) -> Self {
        Self { page: wiped_page(value), ordinary: AtomicU64::new(value) }
    }

    #[inline]
    pub(crate) fn get(&self) -> &AtomicU64 {
        match &self.page {
            // SAFETY: mapped until this is dropped, aligned as pages are, only ever used as an atomic.
            Some(page) => unsafe { page.as_ref() },
            None => &self.ordinary,
        }
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
    debug_assert!(unmapped.is_ok(), "{unmapped:?}");
}

impl Drop for ForkWord {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            unmap(page);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::ForkWord;
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
}
