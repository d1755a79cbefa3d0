//! Writers that are caught in the middle, on live kernel rings. System calls of this process set their programs off: each test has calls
//! of its own, or is alone.

mod caught;
mod epochs;
mod order;
#[expect(dead_code, reason = "each binary takes a part")]
#[path = "../reading/mod.rs"]
mod reading;
mod recorder;
mod ring_buffers;
mod sim_matches_kernel;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by a test that puts load on all CPUs by getppid(2): the programs of one test see the system calls of another, and still run
/// when its own have come to their end.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
