//! The system calls that no crate offers a safe wrapper for. The other home of unsafe code, after `ring`.

pub(crate) mod blocked;
pub(crate) mod bpf;
pub(crate) mod clock;
pub(crate) mod epoll;
pub(crate) mod file;
pub(crate) mod fork;
pub(crate) mod grace;
pub(crate) mod interrupt;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod perf;
pub(crate) mod pidfd;
#[cfg(feature = "tokio")]
pub(crate) mod register;
pub(crate) mod status;
pub(crate) mod thread;
pub(crate) mod wake;
pub(crate) mod wakeup;

use std::io;

/// The result of a system call that returns -1 and sets `errno`.
fn check(answer: libc::c_long) -> io::Result<libc::c_long> {
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
