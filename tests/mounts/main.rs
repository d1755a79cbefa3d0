//! Tests that mount file systems: expedited fences, the place of tracefs, and a clock source of another name. Other tests
//! do not see these mounts.

mod clocks;
mod fences;
mod tracefs;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by a test that changes a mount for every namespace, and by one that lists all mounts: there is one tracefs, and
/// every namespace sees its settings.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
