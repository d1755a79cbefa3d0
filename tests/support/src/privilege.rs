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

/// `CAP_SYS_ADMIN`, for everything without another capability.
pub const CAP_SYS_ADMIN: u32 = 21;
/// To lock memory without limit.
pub const CAP_PERFMON: u32 = 38;
/// To use BPF.
pub const CAP_BPF: u32 = 39;

/// Takes all capabilities from the calling thread, and from those it starts, for good.
pub fn drop_all() -> io::Result<()> {
    keep(&[])
}

/// Takes all capabilities but these.
pub fn keep(capabilities: &[u32]) -> io::Result<()> {
    let header = Header { version: 0x2008_0522, pid: 0 };
    let mut data = [Data::default(); 2];
    for capability in capabilities {
        let word = &mut data[*capability as usize / 32];
        word.permitted |= 1 << (capability % 32);
        word.effective = word.permitted;
        word.inheritable = word.permitted;
    }
    // SAFETY: version 3 of the call reads two data blocks.
    let answer = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the calling thread an unprivileged user, for good.
pub fn become_nobody() -> io::Result<()> {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: no pointers. Not by way of libc, which would change all threads.
    let answer = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the calling thread a user who owns nothing, with these capabilities only, for good. What it executes has them
/// too.
pub fn become_nobody_with(capabilities: &[u32]) -> io::Result<()> {
    control(libc::PR_SET_KEEPCAPS, 1, 0)?;
    become_nobody()?;
    keep(capabilities)?;
    for &capability in capabilities {
        control(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong, capability.into())?;
    }
    Ok(())
}

/// prctl(2) with numbers only.
fn control(what: libc::c_int, first: libc::c_ulong, second: libc::c_ulong) -> io::Result<()> {
    // SAFETY: no pointers.
    let answer = unsafe { libc::prctl(what, first, second, 0, 0) };
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

/// The sysctl: from 1 on, opening events of a whole machine takes a privilege.
///
/// # Panics
/// If the kernel does not say.
pub fn perf_event_paranoid() -> i32 {
    let said = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").expect("a kernel with perf events");
    said.trim().parse().expect("a number")
}

#[repr(C)]
pub(crate) struct Filter {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

impl Filter {
    pub(crate) fn new(code: u16, if_true: u8, if_false: u8, value: u32) -> Self {
        Self { code, if_true, if_false, value }
    }
}

#[repr(C)]
struct FilterProgram {
    len: u16,
    filter: *const Filter,
}

/// Makes a system call fail with this error, on the calling thread and those it starts, for good.
pub fn refuse(call: libc::c_long, errno: i32) -> io::Result<()> {
    let step = Filter::new;
    install(&[
        step(LOAD_WORD, 0, 0, NUMBER),
        step(JUMP_IF_EQUAL, 0, 1, call as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ])
}

/// The same for calls with this first argument only.
pub fn refuse_with(call: libc::c_long, argument: i32, errno: i32) -> io::Result<()> {
    let step = Filter::new;
    install(&[
        step(LOAD_WORD, 0, 0, NUMBER),
        step(JUMP_IF_EQUAL, 0, 3, call as u32),
        step(LOAD_WORD, 0, 0, FIRST_ARGUMENT),
        step(JUMP_IF_EQUAL, 0, 1, argument as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ])
}

// seccomp(2): classic BPF over `struct seccomp_data`.
pub(crate) const LOAD_WORD: u16 = 0x20;
pub(crate) const JUMP_IF_EQUAL: u16 = 0x15;
pub(crate) const RETURN: u16 = 0x06;
pub(crate) const NUMBER: u32 = 0;
/// Its lower half.
const FIRST_ARGUMENT: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };

fn install(filter: &[Filter]) -> io::Result<()> {
    install_with(filter, 0).map(drop)
}

/// seccomp(2) with these flags. Gives what it answers.
pub(crate) fn install_with(filter: &[Filter], flags: libc::c_ulong) -> io::Result<i32> {
    let program = FilterProgram { len: filter.len() as u16, filter: filter.as_ptr() };
    control(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    let operation = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: program and filter live until the call returns.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program) };
    if answer >= 0 { Ok(answer as i32) } else { Err(io::Error::last_os_error()) }
}
