//! The pointers that tools have of us. All others are libbpf's or libbcc's: a program may use both.

use std::collections::HashSet;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::{OnceLock, RwLock, RwLockReadGuard};

static OURS: RwLock<Option<HashSet<usize>>> = RwLock::new(None);

fn all() -> RwLockReadGuard<'static, Option<HashSet<usize>>> {
    OURS.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Gives a pointer to the tool, until [`take`].
pub(crate) fn give<T>(made: T) -> *mut T {
    let made = Box::into_raw(Box::new(made));
    OURS.write().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert_default().insert(made as usize);
    made
}

/// What a pointer of the tool leads to, if it is ours.
pub(crate) fn get<'a, T>(pointer: *const T) -> Option<&'a T> {
    let is_ours = all().as_ref().is_some_and(|ours| ours.contains(&(pointer as usize)));
    // SAFETY: made by `give` and not taken back. The tool may not use what it frees.
    is_ours.then(|| unsafe { &*pointer })
}

/// Takes a pointer back, if it is ours.
pub(crate) fn take<T>(pointer: *mut T) -> Option<Box<T>> {
    let mut ours = OURS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    let was_ours = ours.as_mut().is_some_and(|ours| ours.remove(&(pointer as usize)));
    // SAFETY: made by `give`, and nobody takes it twice.
    was_ours.then(|| unsafe { Box::from_raw(pointer) })
}

/// The handle of this library, by which its own functions are found.
pub(crate) fn handle() -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let find = || {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address, and room for one.
        unsafe { libc::dladdr((handle as fn() -> *mut c_void) as *const c_void, info.as_mut_ptr()) };
        // SAFETY: zeros are a value of it.
        let info = unsafe { info.assume_init() };
        // SAFETY: the name of a library that is loaded, or NULL for the program.
        unsafe { libc::dlopen(info.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_LAZY) as usize }
    };
    *HANDLE.get_or_init(find) as *mut c_void
}
