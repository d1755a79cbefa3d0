//! The functions behind ours: libbpf's, libbcc's and the C library's of the same names.

use crate::border::set_errno;
use crate::say::say;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Where tools' libraries are that a program has loaded by itself, as Python does, and that are not behind us in the
/// order of names.
const LIBRARIES: [&CStr; 5] = [c"libbpf.so.1", c"libbpf.so.0", c"libbcc.so.0", c"libbcc_bpf.so.0", c"libbpf.so"];

/// A function of a name behind ours, once it is found.
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static [u8]) -> Self {
        // A name without its zero is a fault of this library, and found when it is compiled.
        let Ok(name) = CStr::from_bytes_with_nul(name) else { panic!("a name that ends with a zero") };
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The next function of the name. NULL if there is none.
    pub(crate) fn find(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a name that ends with a zero.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if next.is_null() {
            return by_library(self.name);
        }
        // The libraries that a program starts with stay.
        self.found.store(next, Ordering::Relaxed);
        next
    }
}

fn by_library(name: &CStr) -> *mut c_void {
    for library in LIBRARIES {
        // SAFETY: loads nothing, and so runs nothing.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
        if handle.is_null() {
            continue;
        }
        let found = crate::interpose::real_dlsym(handle, name);
        // SAFETY: a handle of `dlopen`, whose count this takes back. The tool, which calls its functions, has another.
        unsafe { libc::dlclose(handle) };
        if !found.is_null() {
            return found;
        }
    }
    std::ptr::null_mut()
}

/// What a call returns whose library is not there.
pub(crate) trait Absent {
    fn absent() -> Self;
}

impl Absent for () {
    fn absent() {}
}

impl Absent for c_int {
    fn absent() -> Self {
        set_errno(libc::ENOSYS);
        -libc::ENOSYS
    }
}

impl Absent for usize {
    fn absent() -> Self {
        0
    }
}

impl<T> Absent for *mut T {
    fn absent() -> Self {
        set_errno(libc::ENOSYS);
        std::ptr::null_mut()
    }
}

pub(crate) fn absent<T: Absent>(name: &str) -> T {
    say!("{name}: not ours, and neither libbpf nor libbcc is loaded that has it");
    T::absent()
}

/// Calls the function behind ours: `real!(perf_buffer__poll(buffer: *mut c_void, timeout: c_int) -> c_int)`.
macro_rules! real {
    ($name:ident($($word:ident: $type:ty),*) -> $value:ty) => {{
        static REAL: $crate::real::Real = $crate::real::Real::new(concat!(stringify!($name), "\0").as_bytes());
        let found = REAL.find();
        if found.is_null() {
            $crate::real::absent::<$value>(stringify!($name))
        } else {
            // SAFETY: the function of that name has this type in libbpf.h, perf_reader.h or the C library.
            let call: unsafe extern "C-unwind" fn($($type),*) -> $value = unsafe { std::mem::transmute(found) };
            // SAFETY: the words are the tool's, who has called the same function with them.
            unsafe { call($($word),*) }
        }
    }};
}
pub(crate) use real;
