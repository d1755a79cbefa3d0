//! What a program has opened itself and lends, and what it gets for others: its own perf events as a buffer, and the map
//! of a buffer as a file.

use crate::border::{Failure, Result, checked, number, pointer};
use crate::buffer::{Callbacks, Inside, Source, enter_as_is, pw_buffer};
use crate::event::{pw_lost_fn, pw_sample_fn};
use crate::options::{Context, descriptor, pw_opts};
use perf_event_open_sys::bindings::perf_event_attr;
use pw::{Clock, Layout, Reader, Ring, Rings};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The smallest struct perf_event_attr that the kernel takes (PERF_ATTR_SIZE_VER0).
const SMALLEST: usize = 64;

/// The caller's attribute, of whatever version.
fn attribute(pointer: *const perf_event_attr) -> Result<perf_event_attr> {
    let begin = *checked(pointer.cast::<[u32; 2]>(), "attr")?;
    let size = begin[1] as usize;
    if size < SMALLEST {
        return Err(Failure::invalid(format!("attr->size is {size}\nhint: set it to sizeof(struct perf_event_attr)")));
    }
    let mut attr = perf_event_attr::default();
    let known = size.min(size_of::<perf_event_attr>());
    let into = (&raw mut attr).cast::<u8>();
    // SAFETY: the caller's struct has `size` bytes, and any bytes are a value.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), into, known) };
    Ok(attr)
}

/// The clock that stamps records of such an event.
fn clock(attr: &perf_event_attr) -> Result<Clock> {
    if attr.use_clockid() == 0 {
        return Ok(Clock::Perf);
    }
    Ok(match attr.clockid {
        libc::CLOCK_MONOTONIC => Clock::Monotonic,
        libc::CLOCK_MONOTONIC_RAW => Clock::MonotonicRaw,
        libc::CLOCK_BOOTTIME => Clock::Boottime,
        libc::CLOCK_REALTIME => Clock::Realtime,
        libc::CLOCK_TAI => Clock::Tai,
        other => return Err(Failure::invalid(format!("attr->clockid is {other}, which stamps no events"))),
    })
}

/// Makes a buffer of perf events that the program has opened itself, with settings of its own. As perf_buffer__new_raw of
/// libbpf, which opens them.
///
/// event_fds: the events, as many as opts.cpu_cnt, each of the CPU in opts.cpus. All were opened with attr, whose size is
/// set. The program puts them into slots of its maps, enables and closes them: they are duplicated. bytes: the size of
/// each ring, without its header page, a power of two pages. An event that is mapped has that of its mapping, and nobody
/// else may move its data_tail.
///
/// Unless opts.key says otherwise, attr needs PERF_SAMPLE_TIME. With PERF_FORMAT_LOST in attr->read_format, without
/// PERF_FORMAT_GROUP, losses after the last record are told too; then no other event may write into these rings. A CPU
/// that comes back is the program's to open. attr may have neither write_backward nor inherit_stat, and precise_ip only
/// with use_clockid. opts.sample_type, map_keys and wakeup_events say nothing here and must be 0,
/// as PW_HOLD_UNORDERED.
///
/// Returns NULL with errno set: EBADF; EINVAL for a wrong option, or another size; EPERM, ENOMEM for limits. Blocks for
/// system calls only.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__adopt(
    event_fds: *const c_int,
    bytes: usize,
    attr: *const perf_event_attr,
    sample_cb: pw_sample_fn,
    lost_cb: pw_lost_fn,
    ctx: *mut c_void,
    opts: *const pw_opts,
) -> *mut pw_buffer {
    let context = Context(ctx);
    let calls = Callbacks { context, event: None, sample: sample_cb, lost: lost_cb, ring: vec![], scratch: vec![] };
    pointer(|| adopt(event_fds, bytes, attr, calls, opts))
}

fn adopt(
    events: *const c_int,
    bytes: usize,
    attr: *const perf_event_attr,
    mut calls: Callbacks,
    opts: *const pw_opts,
) -> Result<pw_buffer> {
    let opts = pw_opts::read(opts)?;
    calls.event = opts.event_cb;
    if !opts.opens_nothing() || opts.is_unordered()? {
        return Err(Failure::invalid(
            "opts->sample_type, map_keys, wakeup_events, wakeup_bytes or PW_HOLD_UNORDERED is set, and the program has \
             opened these events itself\nhint: set them in attr, or use pw_buffer__new",
        ));
    }
    let attr = attribute(attr)?;
    if attr.write_backward() != 0 || attr.inherit_stat() != 0 || attr.precise_ip() != 0 && attr.use_clockid() == 0 {
        return Err(Failure::invalid(
            "attr has write_backward, inherit_stat, or precise_ip with the perf clock: no order is proven of such events",
        ));
    }
    checked(events, "event_fds")?;
    let cpus: Vec<u32> = opts.chosen()?.into_iter().map(|(cpu, _)| cpu).collect();
    let layout = Layout::new(attr.sample_type, attr.sample_id_all() != 0, attr.read_format);
    let layout = layout.registers(attr.sample_regs_user, attr.sample_regs_intr).branches(attr.branch_sample_type);
    let mut rings = Rings::empty(clock(&attr)?);
    for (at, cpu) in cpus.iter().enumerate() {
        // SAFETY: within the caller's array, which has as many as there are CPUs.
        let event = unsafe { events.add(at) };
        // SAFETY: as above.
        let event = descriptor(unsafe { *event }, "event_fds")?;
        // SAFETY: the caller promises that nobody else moves its tail.
        rings.add(*cpu, unsafe { Ring::adopt_event(event, bytes) }?, layout);
    }
    let reader = Reader::new(rings, opts.order(false)?)?;
    let inside = Inside::new(Source::Perf, opts, calls, Some(reader));
    Ok(pw_buffer::new(Inside { cpus, ..inside }))
}

/// The part of `union bpf_attr` that BPF_OBJ_PIN reads (include/uapi/linux/bpf.h).
#[repr(C)]
struct ObjPin {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

const BPF_OBJ_PIN: c_int = 6;

fn pin(map: BorrowedFd<'_>, path: &CStr) -> Result<()> {
    let attr = ObjPin { pathname: path.as_ptr() as u64, bpf_fd: map.as_raw_fd() as u32, file_flags: 0 };
    // SAFETY: the path ends with a zero, and it and the attribute live until the call returns.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_PIN, &raw const attr, size_of::<ObjPin>()) };
    if answer == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EINVAL) => {
            "\nhint: only a path in a BPF file system can be pinned to: mount -t bpf bpf DIRECTORY"
        }
        Some(libc::EEXIST) => "\nhint: something is there: unlink it, or choose another path",
        _ => "",
    };
    Err(Failure::new(
        error.raw_os_error().unwrap_or(libc::EIO),
        format!("cannot pin to {}: {error}{hint}", path.to_string_lossy()),
    ))
}

/// Pins the map of a buffer at a path of a BPF file system, as bpf_map__pin of libbpf: other programs open it there, and it
/// outlives this one. The slots of a perf event array do not: the kernel empties them once this program has closed the map.
/// unlink(2) takes the path away.
///
/// Returns 0; -EINVAL for several ring buffers, for a buffer of pw_buffer__adopt, and, with -EPERM, for a path outside of
/// a BPF file system; -EEXIST; -ENOENT; -ECHILD. Blocks for a system call only.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__pin(buffer: *mut pw_buffer, path: *const c_char) -> c_int {
    number(|| {
        checked(path, "path")?;
        // SAFETY: not null, and the caller's string ends with a zero.
        let path = unsafe { CStr::from_ptr(path) };
        enter_as_is(buffer, |shared, inside| {
            shared.check_process()?;
            let map = match (&inside.source, &inside.map) {
                (Source::Ring(maps), _) if maps.len() == 1 => maps[0].as_fd(),
                (_, Some(map)) => map.as_fd(),
                _ => return Err(Failure::invalid("this buffer has no map, or several: pin them yourself")),
            };
            pin(map, path)?;
            Ok(0)
        })
    })
}
