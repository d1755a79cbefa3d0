//! Who may be inside: one thread at a time. libbpf lets threads read different buffers of an object; here they take
//! turns.

use crate::border::Failed;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

pub(crate) struct Gate<T> {
    /// The thread that is inside; 0: none.
    owner: AtomicUsize,
    /// The process that has the rings: a child of fork(2) does not have their memory.
    process: AtomicU32,
    inside: Mutex<T>,
}

pub(crate) struct Inside<'a, T> {
    owner: &'a AtomicUsize,
    inside: MutexGuard<'a, T>,
}

/// A number of the calling thread that no other thread has now.
fn me() -> usize {
    // SAFETY: always succeeds.
    unsafe { libc::pthread_self() as usize }
}

impl<T> Gate<T> {
    pub(crate) fn new(inside: T) -> Self {
        Self { owner: AtomicUsize::new(0), process: AtomicU32::new(std::process::id()), inside: Mutex::new(inside) }
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.process.load(Ordering::Relaxed) != std::process::id()
    }

    /// Whether the calling thread is inside: it is in a callback.
    pub(crate) fn is_mine(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == me()
    }

    /// A child of fork(2) goes on with what it has of the parent's, after this. Not if a thread was inside.
    pub(crate) fn take_over(&self, change: impl FnOnce(&mut T)) {
        if let (true, Ok(mut inside)) = (self.is_forked(), self.inside.try_lock()) {
            change(&mut inside);
            self.process.store(std::process::id(), Ordering::Relaxed);
        }
    }

    /// Waits until nobody is inside. `EBUSY` in a callback, `ECHILD` in a child of fork(2).
    pub(crate) fn enter(&self) -> Result<Inside<'_, T>, Failed> {
        if self.is_forked() {
            return Err(libc::ECHILD);
        }
        if self.is_mine() {
            return Err(libc::EBUSY);
        }
        let inside = self.inside.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Relaxed: a thread asks for its own number only.
        self.owner.store(me(), Ordering::Relaxed);
        Ok(Inside { owner: &self.owner, inside })
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inside
    }
}

impl<T> DerefMut for Inside<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inside
    }
}

impl<T> Drop for Inside<'_, T> {
    fn drop(&mut self) {
        self.owner.store(0, Ordering::Relaxed);
    }
}
