//! What mounts: expedited fences, and where tracefs is. Other tests see none of it.

mod fences;
mod tracefs;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by a test that changes what is mounted everywhere, and by one that looks at all that is mounted: there is one tracefs, and its
/// settings are seen in every namespace.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
