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

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// The calling thread cannot be cancelled (pthread_cancel(3)).
struct Uncancelled(c_int);

impl Uncancelled {
    fn new() -> Self {
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: room for one number.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state of before. It cancels nothing by itself.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Ends the thread if it was cancelled, as a wait of the C library does. Nothing may be locked.
pub(crate) fn end_if_cancelled() {
    // SAFETY: what it unwinds has destructors that may run.
    unsafe { pthread_testcancel() };
}

/// Runs a step that calls nothing of the tool. A panic in it ends here, as an error.
pub(crate) fn guarded<T>(step: impl FnOnce() -> T) -> Result<T, Failed> {
    let step = || {
        #[cfg(perfweave_panics)]
        assert!(std::env::var_os("PERFWEAVE_PANIC").is_none(), "asked for");
        step()
    };
    // A thread that is cancelled unwinds, and must not here: it is cancelled behind the step.
    let _uncancelled = Uncancelled::new();
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
