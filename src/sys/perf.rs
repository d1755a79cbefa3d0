//! perf_event_open(2) and its ioctls, over the kernel's own structs.

use perf_event_open_sys as sys;
use perf_event_open_sys::bindings::perf_event_attr;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The argument `pid` of perf_event_open(2).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pid<'a> {
    /// All processes: -1.
    All,
    /// A thread, by its number.
    Thread(u32),
    /// A control group, by its directory (`PERF_FLAG_PID_CGROUP`).
    Cgroup(BorrowedFd<'a>),
}

/// Opens an event on one CPU. `probe` is what the attribute of a probe points to: a function of the kernel's, a file.
pub(crate) fn open(attr: &perf_event_attr, probe: Option<&CStr>, pid: Pid<'_>, cpu: u32) -> io::Result<OwnedFd> {
    let cpu = i32::try_from(cpu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let (pid, flags) = match pid {
        Pid::All => (-1, 0),
        // 0 would be the calling thread.
        Pid::Thread(tid) => match i32::try_from(tid) {
            Ok(tid @ 1..) => (tid, 0),
            _ => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
        },
        Pid::Cgroup(directory) => (directory.as_raw_fd(), sys::bindings::PERF_FLAG_PID_CGROUP),
    };
    open_on(attr, probe, pid, cpu, flags)
}

/// Opens an event of the calling process, on all CPUs.
pub(crate) fn open_own(attr: &perf_event_attr) -> io::Result<OwnedFd> {
    open_on(attr, None, 0, -1, 0)
}

fn open_on(attr: &perf_event_attr, probe: Option<&CStr>, pid: i32, cpu: i32, flags: u32) -> io::Result<OwnedFd> {
    let mut attr = *attr;
    attr.size = size_of::<perf_event_attr>() as u32;
    if let Some(probe) = probe {
        attr.config1 = probe.as_ptr() as u64;
    }
    let flags = (sys::bindings::PERF_FLAG_FD_CLOEXEC | flags).into();
    // SAFETY: the attribute is `size` bytes long and only read, as is the name of the probe; the kernel checks both and
    // writes neither.
    let fd = unsafe { sys::perf_event_open(&mut attr, pid, cpu, -1, flags) };
    super::check(fd.into())?;
    // SAFETY: a new file descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the condition that the kernel checks before it writes a record of an event (`PERF_EVENT_IOC_SET_FILTER`).
pub(crate) fn set_filter(event: BorrowedFd<'_>, filter: &CStr) -> io::Result<()> {
    // SAFETY: the kernel copies the text, which ends with a zero byte, and does not write to it.
    let answer = unsafe { sys::ioctls::SET_FILTER(event.as_raw_fd(), filter.as_ptr().cast_mut()) };
    super::check(answer.into()).map(drop)
}

/// Makes an event write into another's ring.
pub(crate) fn set_output(event: BorrowedFd<'_>, ring: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both are open file descriptors; no pointer is passed.
    let answer = unsafe { sys::ioctls::SET_OUTPUT(event.as_raw_fd(), ring.as_raw_fd()) };
    super::check(answer.into()).map(drop)
}

/// The id of an event in its records.
pub(crate) fn id(event: BorrowedFd<'_>) -> io::Result<u64> {
    let mut id = 0;
    // SAFETY: the kernel writes a u64.
    let answer = unsafe { sys::ioctls::ID(event.as_raw_fd(), &mut id) };
    super::check(answer.into())?;
    Ok(id)
}

/// The ids of the BPF programs that are attached to the tracepoint of an event, by whomever
/// (`PERF_EVENT_IOC_QUERY_BPF`). None where the kernel was built without such programs.
pub(crate) fn programs(event: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    /// The most that a tracepoint has (`BPF_TRACE_MAX_PROGS`, include/linux/trace_events.h).
    const MOST: usize = 64;
    /// `struct perf_event_query_bpf`, with room for the ids.
    #[repr(C)]
    struct Query {
        head: sys::bindings::perf_event_query_bpf,
        ids: [u32; MOST],
    }
    let mut query = Query { head: sys::bindings::perf_event_query_bpf::default(), ids: [0; MOST] };
    query.head.ids_len = MOST as u32;
    // SAFETY: the kernel writes the head, and behind it at most `ids_len` ids, for which there is room.
    let answer = unsafe { sys::ioctls::QUERY_BPF(event.as_raw_fd(), std::ptr::from_mut(&mut query).cast()) };
    match super::check(answer.into()) {
        Err(errno) if errno.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        answer => answer.map(|_| query.ids[..MOST.min(query.head.prog_cnt as usize)].to_vec()),
    }
}

/// Starts an event that was opened disabled, or stops it.
pub(crate) fn enable(event: BorrowedFd<'_>, enabled: bool) -> io::Result<()> {
    let ioctl = if enabled { sys::ioctls::ENABLE } else { sys::ioctls::DISABLE };
    // SAFETY: no pointer is passed.
    let answer = unsafe { ioctl(event.as_raw_fd(), 0) };
    super::check(answer.into()).map(drop)
}

/// How long an event has run, in nanoseconds. Its `read_format` must begin with `PERF_FORMAT_TOTAL_TIME_RUNNING`.
///
/// If the event runs on another CPU, that CPU is interrupted (`smp_call_function_single` in `perf_event_read`,
/// `kernel/events/core.c`), and the time grows.
pub(crate) fn running_time(event: BorrowedFd<'_>) -> io::Result<u64> {
    // The event's value, then the time.
    let mut words = [0; 16 * 8];
    let read = nix::unistd::read(event, &mut words)?;
    let Some(time) = words[..read].get(8..16) else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    Ok(u64::from_ne_bytes(time.try_into().unwrap_or_default()))
}

/// How many records of an event the kernel dropped (`PERF_FORMAT_LOST`, Linux 6.0). Its `read_format` must have that bit,
/// and not `PERF_FORMAT_GROUP`.
pub(crate) fn lost(event: BorrowedFd<'_>) -> io::Result<u64> {
    // The event's value, both times, its id, the count: as many of them as were asked for, the count last.
    let mut words = [0; 5 * 8];
    let read = nix::unistd::read(event, &mut words)?;
    let Some(lost) = words[..read].last_chunk() else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    Ok(u64::from_ne_bytes(*lost))
}

/// Stops or restarts output into an event's ring. Records of the time between are lost, and counted.
pub(crate) fn pause_output(event: BorrowedFd<'_>, paused: bool) -> io::Result<()> {
    // SAFETY: no pointer is passed.
    let answer = unsafe { sys::ioctls::PAUSE_OUTPUT(event.as_raw_fd(), paused.into()) };
    super::check(answer.into()).map(drop)
}

/// The bytes of an attribute as in files. Its members are contiguous integers.
pub(crate) fn attr_bytes(attr: &perf_event_attr) -> &[u8] {
    // SAFETY: as long as the struct, which is integers without padding between them, borrowed for as long.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(attr).cast(), size_of::<perf_event_attr>()) }
}

/// An attribute from a file. Missing members are 0, and members that this crate does not know are dropped.
pub(crate) fn attr_from(bytes: &[u8]) -> perf_event_attr {
    let mut attr = perf_event_attr::default();
    let len = bytes.len().min(size_of::<perf_event_attr>());
    // SAFETY: as long as the struct, borrowed exclusively; any bytes are an attribute.
    let all = unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut attr).cast::<u8>(), size_of_val(&attr)) };
    all[..len].copy_from_slice(&bytes[..len]);
    attr
}
