//! What goes back to the tool: numbers of errors. No panic goes back.

use crate::say::say;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A number of errno.h, positive.
pub(crate) type Failed = c_int;

pub(crate) fn errno() -> Failed {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

pub(crate) fn set_errno(errno: Failed) {
    // SAFETY: the thread's own errno, which lives as long as the thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; no one else has it.
    unsafe { *place = errno };
}

/// As libbpf returns an error: the number, and errno. What is not negative is no error.
pub(crate) fn number(said: Result<c_int, Failed>) -> c_int {
    let said = said.unwrap_or_else(|errno| -errno);
    if said < 0 {
        set_errno(-said);
    }
    said
}

/// Runs a step that calls nothing of the tool. A panic in it ends here, as an error.
pub(crate) fn guarded<T>(step: impl FnOnce() -> T) -> Result<T, Failed> {
    let step = || {
        #[cfg(perfweave_panics)]
        assert!(std::env::var_os("PERFWEAVE_PANIC").is_none(), "asked for");
        step()
    };
    // Who uses what the step has left half done is the same call, which gives up with this error.
    catch_unwind(AssertUnwindSafe(step)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        say!("a fault of this library ended a call: {}", text.unwrap_or("it panicked"));
        libc::ENOTRECOVERABLE
    })
}

/// The number of an error of the crate.
pub(crate) fn failed(error: &perfweave::Error) -> Failed {
    match error.kind() {
        perfweave::ErrorKind::Forked => libc::ECHILD,
        _ => error.raw_os_error().filter(|errno| (1..4096).contains(errno)).unwrap_or(libc::EIO),
    }
}
