//! What enters from C and what goes back: pointers, error numbers and texts.

use pw::ErrorKind;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

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
            ErrorKind::InvalidInput | ErrorKind::Map | ErrorKind::Clock => libc::EINVAL,
            ErrorKind::Unsupported | ErrorKind::Fence => libc::EOPNOTSUPP,
            ErrorKind::Limit => known.unwrap_or(libc::ENOMEM),
            ErrorKind::Busy => libc::EBUSY,
            ErrorKind::Cpu => libc::ENODEV,
            ErrorKind::Degraded => libc::EAGAIN,
            ErrorKind::Forked => libc::ECHILD,
            _ => known.unwrap_or(libc::EIO),
        };
        let hint = error.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        Self::new(errno, format!("{error}{hint}"))
    }
}

/// The number to return for a result: that of the value, or of the error.
pub(crate) fn number(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(Failure::tell)
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

/// Copies a struct out to the caller, whose own version of it has `size` bytes: the part that both know, and zeros for the rest.
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

/// The text of the last error that a call of this thread returned, and behind "hint: " what helps. Empty if there was none. It is valid
/// until the thread's next call into this library. Never NULL. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn pw_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The version of the library, as "0.1.0". Compare it to PW_VERSION, that of the header. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn pw_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
