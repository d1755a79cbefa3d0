//! Handles: what other threads may do with a buffer.

use crate::border::{Failure, Result, checked, nothing, number, pointer};
use crate::buffer::{enter, pw_buffer};
use pw::{Handle, Pause};
use std::ffi::{c_int, c_longlong};
use std::time::{Duration, Instant};

/// Controls a buffer from any thread, and from its callbacks, also while a call on it waits. It may outlive the buffer:
/// its functions do nothing then.
#[allow(non_camel_case_types, reason = "names of C")]
pub struct pw_handle(Handle);

/// How output is kept from the rings.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, dead_code, reason = "names of C; values that C sets")]
pub enum pw_pause {
    /// The kernel turns writers away and counts each record as lost. Not for ring buffers.
    PW_PAUSE_OUTPUT = 0,
    /// Slots of the map are emptied. Nothing counts the records. Not for ring buffers.
    PW_PAUSE_SLOTS = 1,
}

fn of(buffer: *const pw_buffer) -> Result<Handle> {
    match checked(buffer, "the buffer")?.known() {
        Some((handle, _)) => Ok(handle.clone()),
        None => enter(buffer, |_, inside| Ok(inside.reader()?.0.handle())),
    }
}

fn with(handle: *const pw_handle, act: impl FnOnce(&Handle) -> std::result::Result<(), pw::Error>) -> c_int {
    number(|| Ok(act(&checked(handle, "the handle")?.0).map(|()| 0)?))
}

/// Makes a handle. Free it with pw_handle__free. NULL with errno set, as pw_buffer__poll. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__handle(buffer: *const pw_buffer) -> *mut pw_handle {
    pointer(|| of(buffer).map(pw_handle))
}

/// Asks the buffer for everything that is in the rings now: pw_buffer__poll or pw_buffer__next give it, then a
/// PW_FLUSHED, then newer events. Returns 0 or as pw_buffer__poll. May be called in a callback and on any thread. Does
/// not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__flush(buffer: *const pw_buffer) -> c_int {
    number(|| Ok(of(buffer)?.flush().map(|()| 0)?))
}

/// As pw_buffer__flush.
#[unsafe(no_mangle)]
pub extern "C" fn pw_handle__flush(handle: *const pw_handle) -> c_int {
    with(handle, Handle::flush)
}

/// Ends the stream: a call that waits returns -ECANCELED at once, and so does each later one. Events that are held are
/// dropped. Returns 0. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_handle__close(handle: *const pw_handle) -> c_int {
    with(handle, |handle| {
        handle.close();
        Ok(())
    })
}

/// Keeps output from the rings. how: enum pw_pause. Returns 0, -EINVAL, -EOPNOTSUPP for ring buffers, or the kernel's
/// error. Blocks for system calls only, one for each CPU.
#[unsafe(no_mangle)]
pub extern "C" fn pw_handle__pause(handle: *const pw_handle, how: u32) -> c_int {
    match how {
        0 => with(handle, |handle| handle.pause(Pause::Output)),
        1 => with(handle, |handle| handle.pause(Pause::Slots)),
        other => number(|| Err(Failure::invalid(format!("{other} is no enum pw_pause")))),
    }
}

/// Lets output into the rings again. Returns as pw_handle__pause.
#[unsafe(no_mangle)]
pub extern "C" fn pw_handle__resume(handle: *const pw_handle) -> c_int {
    with(handle, Handle::resume)
}

/// Ends the stream so many milliseconds from now: calls yield what is in the rings then, and return -ETIME, or
/// -EINPROGRESS if that is not complete. Negative: never, and a stream that has ended so goes on. Returns 0. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_handle__set_deadline(handle: *const pw_handle, timeout_ms: c_longlong) -> c_int {
    let deadline =
        u64::try_from(timeout_ms).ok().and_then(|time| Instant::now().checked_add(Duration::from_millis(time)));
    with(handle, |handle| handle.set_deadline(deadline))
}

/// Frees a handle. NULL is allowed. The buffer goes on. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_handle__free(handle: *mut pw_handle) {
    nothing(|| {
        if !handle.is_null() {
            checked(handle, "the handle")?;
            // SAFETY: made by `Box::into_raw`, and the caller gives it back.
            drop(unsafe { Box::from_raw(handle) });
        }
        Ok(())
    });
}
