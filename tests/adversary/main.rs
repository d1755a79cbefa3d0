//! Writers that are caught in the middle, on live kernel rings. Their programs run on system calls of this process:
//! each test uses different calls, or runs alone.

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

/// Held by a test that puts load on all CPUs by getppid(2): the programs of one test run on the system calls of
/// another, even after the first test's own calls have ended.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
