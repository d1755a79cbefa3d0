//! Doing without privileges, on one thread.

use std::io;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Takes all capabilities from the calling thread, and from those it starts, for good.
pub fn drop_all() -> io::Result<()> {
    let header = Header { version: 0x2008_0522, pid: 0 };
    let data = [Data::default(); 2];
    // SAFETY: version 3 of the call reads two data blocks.
    let answer = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs something on a thread without capabilities.
///
/// # Panics
/// If the thread does, or if they cannot be dropped.
pub fn without<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(|| {
        drop_all().expect("capabilities can be dropped");
        what()
    })
    .join()
    .expect("the thread lives")
}
