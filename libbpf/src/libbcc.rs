//! libbcc's: perf_reader.h and libbpf.h of bcc. All readers of the process are one group, so they have one order.

use crate::border::{Failed, end_if_cancelled};
use crate::calls::{Calls, Context, CountFn, GO_ON, RawFn};
use crate::gate::Gate;
use crate::group::{self, Group};
use crate::real::real;
use crate::say::say;
use crate::settings::{Mode, is_lazy, settings};
use crate::signals::take_interrupt;
use crate::slot::Asked;
use crate::watch::{self, Shared};
use crate::{ours, sys};
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[allow(non_camel_case_types, reason = "names of C")]
pub struct perf_reader {
    group: Shared,
    fd: RawFd,
}

/// `struct bcc_perf_buffer_opts`
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "names of C")]
pub struct bcc_perf_buffer_opts {
    pid: c_int,
    cpu: c_int,
    wakeup_events: c_int,
}

/// The group of this process. A child of fork(2) begins another.
fn group() -> Shared {
    static GROUP: Mutex<Option<Shared>> = Mutex::new(None);
    let mut group = GROUP.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    match &*group {
        Some(group) if !group.is_forked() => Arc::clone(group),
        _ => {
            let new = Arc::new(Gate::new(Group::default()));
            // The memory of the parent's is not here: nothing of it may run.
            std::mem::forget(group.replace(Arc::clone(&new)));
            new
        }
    }
}

fn open(calls: Calls, pages: c_int, opts: bcc_perf_buffer_opts) -> Result<perf_reader, Failed> {
    let pages = usize::try_from(pages).ok().filter(|pages| pages.is_power_of_two()).ok_or(libc::EINVAL)?;
    let cpu = u32::try_from(opts.cpu).map_err(|_| libc::EINVAL)?;
    let mut asked = Asked::output(pages, opts.wakeup_events.max(1) as u32);
    asked.pid = opts.pid;
    let slot = group::open(asked, cpu)?;
    let fd = slot.fd();
    let group = group();
    let mut inside = group.enter()?;
    inside.add(slot, calls)?;
    if let Err(errno) = inside.settler() {
        inside.free(fd);
        return Err(errno);
    }
    drop(inside);
    watch::own(fd, &group);
    Ok(perf_reader { group, fd })
}

fn open_or(
    raw: RawFn,
    lost: CountFn,
    cookie: *mut c_void,
    pages: c_int,
    opts: bcc_perf_buffer_opts,
    real: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if settings().mode == Mode::Off {
        return real();
    }
    match open(Calls::Bcc { raw, lost, context: Context(cookie) }, pages, opts) {
        Ok(reader) => {
            say!("libbcc's perf buffers are in proven order ({})", if is_lazy() { "lazy" } else { "eager" });
            ours::give(reader).cast()
        }
        Err(errno) => {
            let why = std::io::Error::from_raw_os_error(errno);
            say!("perf buffers are libbcc's, without order: cannot open one: {why}");
            real()
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn bpf_open_perf_buffer(
    raw_cb: RawFn,
    lost_cb: CountFn,
    cb_cookie: *mut c_void,
    pid: c_int,
    cpu: c_int,
    page_cnt: c_int,
) -> *mut c_void {
    open_or(raw_cb, lost_cb, cb_cookie, page_cnt, bcc_perf_buffer_opts { pid, cpu, wakeup_events: 1 }, || {
        real!(bpf_open_perf_buffer(raw_cb: RawFn, lost_cb: CountFn, cb_cookie: *mut c_void, pid: c_int, cpu: c_int,
            page_cnt: c_int) -> *mut c_void)
    })
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn bpf_open_perf_buffer_opts(
    raw_cb: RawFn,
    lost_cb: CountFn,
    cb_cookie: *mut c_void,
    page_cnt: c_int,
    opts: *mut bcc_perf_buffer_opts,
) -> *mut c_void {
    let real = || {
        real!(bpf_open_perf_buffer_opts(raw_cb: RawFn, lost_cb: CountFn, cb_cookie: *mut c_void, page_cnt: c_int,
            opts: *mut bcc_perf_buffer_opts) -> *mut c_void)
    };
    if opts.is_null() {
        return real();
    }
    // SAFETY: the tool's struct, which libbcc reads as well.
    let own = unsafe { opts.read() };
    open_or(raw_cb, lost_cb, cb_cookie, page_cnt, own, real)
}

impl perf_reader {
    /// Gives what is there, or in lazy mode what is proven.
    fn read(&self, all: bool) {
        // A callback that comes back here finds nothing more; a child of fork(2) has no rings.
        let Ok(mut group) = self.group.enter() else { return };
        let never = || false;
        let said = if is_lazy() && !all { group.take(&never) } else { group.settle(&never) };
        if said == Ok(GO_ON) && !group.has_new() {
            group.tell_losses(&never);
        }
    }

    /// Lazy: waits for the reader.
    fn lazy_poll(&self, timeout: c_int) {
        const SLICE: Duration = Duration::from_millis(100);
        let until = u64::try_from(timeout).ok().map(|timeout| Instant::now() + Duration::from_millis(timeout));
        loop {
            end_if_cancelled();
            let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
            let waited = self.group.enter().and_then(|mut group| group.wait(left.min(SLICE)));
            match waited {
                Ok(true) => return self.read(false),
                Ok(false) if left > SLICE || until.is_none() => {}
                // The tool takes silence for the end.
                Ok(false) => return self.read(true),
                Err(_) => return,
            }
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_reader_event_read(reader: *mut perf_reader) {
    match ours::get(reader) {
        Some(reader) => reader.read(false),
        None => real!(perf_reader_event_read(reader: *mut perf_reader) -> ()),
    }
}

/// The first of an array of readers.
fn first<'a>(count: c_int, readers: *mut *mut perf_reader) -> Option<&'a perf_reader> {
    if count < 1 || readers.is_null() {
        return None;
    }
    // SAFETY: the tool's array has `count` readers.
    ours::get(unsafe { readers.read() })
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_reader_poll(num_readers: c_int, readers: *mut *mut perf_reader, timeout: c_int) -> c_int {
    let Some(reader) = first(num_readers, readers) else {
        return real!(perf_reader_poll(num_readers: c_int, readers: *mut *mut perf_reader, timeout: c_int) -> c_int);
    };
    if take_interrupt() {
        return 0;
    }
    if is_lazy() {
        reader.lazy_poll(timeout);
        return 0;
    }
    let mut fds = Vec::new();
    for at in 0..num_readers as usize {
        // SAFETY: as `first` says of the array.
        let place = unsafe { readers.add(at) };
        // SAFETY: as above.
        let fd = ours::get(unsafe { place.read() }).map_or(-1, |reader| reader.fd);
        fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    }
    let (all, count) = (fds.as_mut_ptr(), fds.len() as libc::nfds_t);
    let ready = real!(poll(all: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int);
    // Silence: losses that no record tells.
    if ready >= 0 {
        reader.read(false);
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_reader_consume(num_readers: c_int, readers: *mut *mut perf_reader) -> c_int {
    let Some(reader) = first(num_readers, readers) else {
        return real!(perf_reader_consume(num_readers: c_int, readers: *mut *mut perf_reader) -> c_int);
    };
    reader.read(true);
    0
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_reader_fd(reader: *mut perf_reader) -> c_int {
    match ours::get(reader) {
        Some(reader) => reader.fd,
        None => real!(perf_reader_fd(reader: *mut perf_reader) -> c_int),
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_reader_free(reader: *mut perf_reader) {
    if reader.is_null() {
        return;
    }
    let Some(ours) = ours::get(reader) else { return real!(perf_reader_free(reader: *mut perf_reader) -> ()) };
    watch::disown(ours.fd);
    if !ours.group.is_mine() {
        if let Ok(mut group) = ours.group.enter() {
            group.free(ours.fd);
        }
        drop(ours::take(reader));
        return;
    }
    // In a callback: its memory is in use, and stays.
    say!("a callback frees its perf buffer: its memory stays until the program ends");
    sys_stop(ours.fd);
    std::mem::forget(ours::take(reader));
}

/// Nothing more is written by an event of which the group is in use.
fn sys_stop(fd: RawFd) {
    // A number that is no descriptor any more needs no stop.
    if let Ok(event) = sys::duplicate(fd) {
        sys::disable(&event);
    }
}

// By these libbcc makes a reader step by step, and they are its own: its readers are not ours.

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_reader_new(
    raw_cb: RawFn,
    lost_cb: CountFn,
    cb_cookie: *mut c_void,
    page_cnt: c_int,
) -> *mut perf_reader {
    real!(perf_reader_new(raw_cb: RawFn, lost_cb: CountFn, cb_cookie: *mut c_void, page_cnt: c_int) -> *mut perf_reader)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_reader_mmap(reader: *mut perf_reader) -> c_int {
    match ours::get(reader) {
        // It is mapped.
        Some(_) => 0,
        None => real!(perf_reader_mmap(reader: *mut perf_reader) -> c_int),
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_reader_set_fd(reader: *mut perf_reader, fd: c_int) {
    match ours::get(reader) {
        Some(_) => say!("perf_reader_set_fd: this reader has its own event, and keeps it"),
        None => real!(perf_reader_set_fd(reader: *mut perf_reader, fd: c_int) -> ()),
    }
}
