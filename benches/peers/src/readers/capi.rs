//! perfweave by its C library: its callback, beside libbpf's. capi/install has built it.

use super::Start;
use crate::Result;
use crate::tally::{Seen, Tally};
use std::ffi::{CString, c_char, c_int, c_longlong, c_ulonglong, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

type Sample = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, u32);
type Lost = unsafe extern "C" fn(*mut c_void, c_int, c_ulonglong);
type New = unsafe extern "C" fn(c_int, usize, Sample, Lost, *mut c_void, *const Options) -> *mut c_void;
type Poll = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type Handle = unsafe extern "C" fn(*const c_void) -> *mut c_void;
type SetDeadline = unsafe extern "C" fn(*const c_void, c_longlong) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void);

/// The functions of the library that this needs.
struct Library {
    new: New,
    poll: Poll,
    handle: Handle,
    set_deadline: SetDeadline,
    free: Free,
}

/// `struct pw_opts` up to the place of the key, as its `sz` says.
#[repr(C)]
struct Options {
    sz: usize,
    hold: u32,
    key: u32,
    key_offset: usize,
}

/// `PW_KEY_PAYLOAD`: the callback sees the payload alone, so the time that is there is the key.
const PAYLOAD: u32 = 1;

/// `PW_HOLD_FENCE` and `PW_HOLD_NONE`.
pub const FENCE: u32 = 0;
pub const NONE: u32 = 7;

impl Library {
    fn open() -> Result<Self> {
        let path = std::env::var("PERFWEAVE_C").unwrap_or_else(|_| "target/capi/release/libperfweave.so".into());
        let name = CString::new(path.clone())?;
        // SAFETY: the path is a string; the library's constructors are those of Rust's standard library.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(
                format!("{path} is not there: build it with capi/install PREFIX, or name it in PERFWEAVE_C").into()
            );
        }
        let find = |name: &'static std::ffi::CStr| -> Result<*mut c_void> {
            // SAFETY: the library is open, and stays so.
            let found = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
            if found.is_null() { Err(format!("{path} has no {name:?}").into()) } else { Ok(found) }
        };
        // SAFETY: the functions of these names, as perfweave.h declares them.
        unsafe {
            Ok(Self {
                new: std::mem::transmute::<*mut c_void, New>(find(c"pw_buffer__new")?),
                poll: std::mem::transmute::<*mut c_void, Poll>(find(c"pw_buffer__poll")?),
                handle: std::mem::transmute::<*mut c_void, Handle>(find(c"pw_buffer__handle")?),
                set_deadline: std::mem::transmute::<*mut c_void, SetDeadline>(find(c"pw_handle__set_deadline")?),
                free: std::mem::transmute::<*mut c_void, Free>(find(c"pw_buffer__free")?),
            })
        }
    }
}

unsafe extern "C" fn sample(tally: *mut c_void, _cpu: c_int, data: *mut c_void, size: u32) {
    // SAFETY: what the buffer was opened with.
    let tally = unsafe { &mut *tally.cast::<Tally>() };
    // SAFETY: the bytes of a record.
    tally.bytes(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size as usize) });
}

unsafe extern "C" fn lost(tally: *mut c_void, _cpu: c_int, count: c_ulonglong) {
    // SAFETY: as above.
    unsafe { &mut *tally.cast::<Tally>() }.lost(count);
}

/// By `pw_buffer__poll`. What is left when the load has ended is yielded before the deadline.
pub fn poll(map: OwnedFd, start: &Start, hold: u32) -> Result<Seen> {
    let library = Library::open()?;
    let tally = Box::into_raw(Box::new(Tally::begin()));
    let opts = Options { sz: size_of::<Options>(), hold, key: PAYLOAD, key_offset: 0 };
    // SAFETY: options and context live through the call, the callbacks are for this context.
    let buffer = unsafe { (library.new)(map.as_raw_fd(), start.bytes, sample, lost, tally.cast(), &raw const opts) };
    if buffer.is_null() {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the buffer is open.
    let handle = AtomicUsize::new(unsafe { (library.handle)(buffer) } as usize);
    let set_deadline = library.set_deadline;
    let begun = start.ready(move || {
        // SAFETY: a handle is for any thread.
        unsafe { set_deadline(handle.load(Ordering::Relaxed) as *const c_void, 0) };
    });
    // SAFETY: no call is on the buffer.
    unsafe { *tally = begun };
    loop {
        // SAFETY: the buffer is open.
        match unsafe { (library.poll)(buffer, 100) } {
            0.. => {}
            ended if ended == -libc::ETIME => break,
            errno => return Err(std::io::Error::from_raw_os_error(-errno).into()),
        }
    }
    // SAFETY: as above.
    let seen = unsafe { &*tally }.end();
    // SAFETY: as above.
    unsafe { (library.free)(buffer) };
    Ok(seen)
}
