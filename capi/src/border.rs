//! What enters from C and what goes back: pointers, error numbers and texts. No panic goes back.

use pw::ErrorKind;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed, and what helps.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: c_int,
    text: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

impl Failure {
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, text)
    }

    /// A fault of the library: a panic that ended a call. It has printed itself on standard error.
    fn of(panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        Self::new(libc::ENOTRECOVERABLE, format!("a fault of the library: {}", said.unwrap_or("it panicked")))
    }

    /// Keeps the text for [`pw_last_error`] and sets errno. Returns the number as libbpf's functions do: negative.
    pub(crate) fn tell(self) -> c_int {
        let text = CString::new(self.text.replace('\0', " ")).unwrap_or_default();
        // A thread that ends has no text any more.
        let _ = LAST.try_with(|last| last.replace(text));
        // SAFETY: the thread's own errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *errno = self.errno };
        -self.errno
    }
}

impl From<pw::Error> for Failure {
    fn from(error: pw::Error) -> Self {
        let known = error.raw_os_error().filter(|errno| (1..4096).contains(errno));
        let errno = match error.kind() {
            ErrorKind::Permission => known.unwrap_or(libc::EPERM),
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::InvalidInput => libc::EINVAL,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::Limit => known.unwrap_or(libc::ENOMEM),
            ErrorKind::Degraded => libc::EAGAIN,
            ErrorKind::Forked => libc::ECHILD,
            _ => known.unwrap_or(libc::EIO),
        };
        let hint = error.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        Self::new(errno, format!("{error}{hint}"))
    }
}

/// Runs what a call from C does. A panic ends here, as an error.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    let call = || {
        #[cfg(perfweave_panics)]
        panics::here(panics::AT_THE_BORDER);
        call()
    };
    // Nothing that the call has left half done is used again: `enter` refuses later calls on the buffer.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(Failure::of(&*panic)))
}

/// Runs a call, and gives the number to return: that of the value, or of the error.
pub(crate) fn number(call: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(call).unwrap_or_else(Failure::tell)
}

/// Runs a call, and gives the pointer to return: NULL for an error, with errno set.
pub(crate) fn pointer<T>(call: impl FnOnce() -> Result<T>) -> *mut T {
    guarded(|| call().map(|made| Box::into_raw(Box::new(made)))).unwrap_or_else(|failure| {
        failure.tell();
        std::ptr::null_mut()
    })
}

/// Runs a call that returns nothing.
pub(crate) fn nothing(call: impl FnOnce() -> Result<()>) {
    if let Err(failure) = guarded(call) {
        failure.tell();
    }
}

/// Panics on request, for `capi/check`, which builds the library with `--cfg perfweave_panics`.
#[cfg(perfweave_panics)]
pub(crate) mod panics {
    use std::sync::atomic::{AtomicI32, Ordering};

    pub(crate) const AT_THE_BORDER: i32 = 1;
    pub(crate) const INSIDE: i32 = 2;

    /// Where to panic.
    #[unsafe(no_mangle)]
    pub static perfweave_panics: AtomicI32 = AtomicI32::new(0);

    pub(crate) fn here(place: i32) {
        assert!(perfweave_panics.load(Ordering::SeqCst) != place, "asked for");
    }
}

/// Checks a pointer of the caller.
pub(crate) fn checked<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::invalid(format!("{name} is {pointer:p}, which is not aligned")));
    }
    // SAFETY: not null and aligned; the caller promises that it points to a `T` that lives through the call.
    Ok(unsafe { &*pointer })
}

/// Copies a struct out to the caller, whose own version of it has `size` bytes: the part that both know, and zeros for
/// the rest.
pub(crate) fn give<T: Copy>(value: &T, out: *mut T, size: usize, name: &str) -> Result<()> {
    if out.is_null() || !out.is_aligned() || size == 0 {
        return Err(Failure::invalid(format!("{name} is NULL or not aligned, or its size is 0")));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the caller has `size` bytes there, and `value` at least `known`.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), out.cast::<u8>(), known) };
    // SAFETY: within the caller's `size` bytes.
    let rest = unsafe { out.cast::<u8>().add(known) };
    // SAFETY: as above.
    unsafe { rest.write_bytes(0, size - known) };
    Ok(())
}

/// The text of the last error that a call of this thread returned, and behind "hint: " what helps. Empty if there was
/// none. It is valid until the thread's next call into this library. Never NULL. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn pw_last_error() -> *const c_char {
    let text = guarded(|| Ok(LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())));
    text.unwrap_or(c"the text is lost".as_ptr())
}

/// The version of the library, as "0.1.0". Compare it to PW_VERSION, that of the header. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn pw_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
