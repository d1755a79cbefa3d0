//! How much memory the calling thread takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what each thread takes and gives back.
struct Counting;

thread_local! {
    /// Bytes taken and not given back, and the most there were of them.
    static TAKEN: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

fn count(bytes: i64) {
    // Not counted while the thread goes away.
    let _ = TAKEN.try_with(|taken| {
        let (now, most) = taken.get();
        taken.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: everything is the system's allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's word.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there while one is copied into the other.
        count(size as i64);
        count(-(layout.size() as i64));
        // SAFETY: the caller's word.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that something has at once, besides those that were there before.
pub(crate) fn most<T>(what: impl FnOnce() -> T) -> (u64, T) {
    let before = TAKEN.with(|taken| {
        taken.set((taken.get().0, taken.get().0));
        taken.get().0
    });
    let value = what();
    (TAKEN.with(|taken| taken.get().1 - before) as u64, value)
}

#[test]
fn the_counter_counts() {
    assert_eq!(most(|| drop(vec![1u8; 1000])).0, 1000);
    assert_eq!(most(|| (drop(vec![1u8; 100]), drop(vec![1u8; 200]))).0, 200);
}

/// The bytes that a recording takes, and those that are available, of an error that says that there are too few.
#[track_caller]
pub(crate) fn lacking(error: &perfweave::Error) -> [u64; 2] {
    perfweave_support::assert_error!(error, Limit, "bytes of memory, of which");
    ["its contents take ", "of which "].map(|text| perfweave_support::number_behind(&error.to_string(), text))
}
