//! The limit on descriptors. A process that is traced takes some for each of its threads and CPUs, and the soft limit
//! is 1,024 nearly everywhere, which is for programs that call select(2). This program does not, and raises it to the
//! hard one, as perf does. The library changes no limit of its process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;
use std::sync::OnceLock;

/// The soft limit as this program got it.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Raises it. What cannot be raised stays: opening says how many are needed.
pub fn raise() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        let _ = BEFORE.set(soft);
    }
}

/// The soft limit as this program got it: that of the commands that it starts.
pub fn before() -> Option<u64> {
    BEFORE.get().copied()
}

/// Sets the soft limit, which is no larger than the hard one.
pub fn set(soft: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard), hard)?)
}
