//! An allocator that counts what each thread allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, and counts of what each thread asks of it. For `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    /// Allocations; bytes allocated and not given back; the most of these since [`most`] began.
    static COUNTS: Cell<(u64, isize, isize)> = const { Cell::new((0, 0, 0)) };
}

fn count(allocations: u64, bytes: isize) {
    // Not counted while the thread goes away.
    let _ = COUNTS.try_with(|counts| {
        let (before, now, most) = counts.get();
        counts.set((before + allocations, now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: everything is the system's allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as isize));
        // SAFETY: the caller's word.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there while one is copied into the other.
        count(1, size as isize);
        count(0, -(layout.size() as isize));
        // SAFETY: the caller's word.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// How often something allocates on this thread.
pub fn allocations<T>(what: impl FnOnce() -> T) -> (u64, T) {
    let before = COUNTS.get().0;
    let value = what();
    (COUNTS.get().0 - before, value)
}

/// The bytes that this thread has allocated and not given back.
pub fn now() -> isize {
    COUNTS.get().1
}

/// The most bytes that this thread has while something runs, with those that it had before.
pub fn most<T>(what: impl FnOnce() -> T) -> (isize, T) {
    let (allocations, now, _) = COUNTS.get();
    COUNTS.set((allocations, now, now));
    let value = what();
    (COUNTS.get().2, value)
}
