//! libbpf's perf_buffer.

use crate::border::{Failed, end_if_cancelled, number};
use crate::calls::{Calls, Context, EventFn, GO_ON, LostFn, SampleFn};
use crate::gate::Gate;
use crate::group::{self, Group};
use crate::real::real;
use crate::say::say;
use crate::settings::{Mode, is_lazy, settings};
use crate::signals::take_interrupt;
use crate::slot::Asked;
use crate::unordered::Unordered;
use crate::watch::{self, Shared};
use crate::{ours, sys};
use perf_event_open_sys::bindings as perf;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// `struct perf_buffer_opts`, of which libbpf 1.1 knows the size alone.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types, reason = "names of C")]
pub struct perf_buffer_opts {
    sz: usize,
    sample_period: u32,
}

/// `struct perf_buffer_raw_opts`
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "names of C")]
pub struct perf_buffer_raw_opts {
    sz: usize,
    cpu_cnt: c_int,
    cpus: *const c_int,
    map_keys: *const c_int,
}

#[allow(non_camel_case_types, reason = "names of C")]
pub struct perf_buffer {
    group: Shared,
    /// What the tool waits for: all events, as libbpf has it.
    epoll: OwnedFd,
    map: OwnedFd,
    places: Vec<Place>,
    asked: Asked,
    calls: Calls,
    /// Freed in a callback: the end of the call drops it.
    is_doomed: AtomicBool,
}

/// What an index stands for.
struct Place {
    cpu: u32,
    key: u32,
    fd: RawFd,
    /// The tool has asked for its memory.
    unordered: OnceLock<Unordered>,
}

/// Why a buffer is libbpf's and not ours. `None`: libbpf will say it itself.
type Why = Option<String>;

/// The slots of a map: CPUs and keys. As libbpf: those that are online, unless the tool has chosen.
fn chosen(map: c_int, opts: &perf_buffer_raw_opts) -> Result<Vec<(u32, u32)>, Why> {
    if opts.cpu_cnt > 0 {
        if opts.cpus.is_null() || opts.map_keys.is_null() {
            return Err(None);
        }
        let count = opts.cpu_cnt as usize;
        // SAFETY: the tool's array has that many, as libbpf.h says of cpu_cnt.
        let cpus = unsafe { std::slice::from_raw_parts(opts.cpus, count) };
        // SAFETY: as above.
        let keys = unsafe { std::slice::from_raw_parts(opts.map_keys, count) };
        return Ok(cpus.iter().zip(keys).map(|(cpu, key)| (*cpu as u32, *key as u32)).collect());
    }
    let info = sys::map_info(map).map_err(|_| None)?;
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").map_err(|error| Some(error.to_string()))?;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    let online = online.trim().split(',').filter_map(range).flatten();
    Ok(online.filter(|cpu| info.max_entries == 0 || *cpu < info.max_entries).map(|cpu| (cpu, cpu)).collect())
}

fn make(map: c_int, pages: usize, asked: Asked, calls: Calls, opts: &perf_buffer_raw_opts) -> Result<perf_buffer, Why> {
    let why = |what: &str, errno: Failed| Some(format!("{what}: {}", std::io::Error::from_raw_os_error(errno)));
    if !pages.is_power_of_two() || sys::map_info(map).map_err(|_| None)?.kind != sys::PERF_EVENT_ARRAY {
        return Err(None);
    }
    if let Some(refusal) = asked.refusal() {
        return Err(Some(refusal.to_owned()));
    }
    let cpus = chosen(map, opts)?;
    let map = sys::duplicate(map).map_err(|_| None)?;
    let epoll = sys::epoll().map_err(|_| None)?;
    let mut group = Group::default();
    let mut places = Vec::new();
    for (cpu, key) in cpus {
        let slot = group::open(asked, cpu).map_err(|errno| why("cannot open an event", errno))?;
        let fd = slot.fd();
        sys::watch(epoll.as_raw_fd(), fd, places.len() as u64).map_err(|errno| why("epoll", errno))?;
        group.add(slot, calls).map_err(|errno| why("cannot read a ring", errno))?;
        places.push(Place { cpu, key, fd, unordered: OnceLock::new() });
    }
    // Now, because nothing can be left to libbpf later.
    group.settler().map_err(|errno| why("no proof of order is possible", errno))?;
    for place in &places {
        sys::set_slot(&map, place.key, place.fd).map_err(|errno| why("cannot set a slot of the map", errno))?;
    }
    let group = Arc::new(Gate::new(group));
    places.iter().for_each(|place| watch::own(place.fd, &group));
    say!("perf buffers are in proven order ({})", if is_lazy() { "lazy" } else { "eager" });
    Ok(perf_buffer { group, epoll, map, places, asked, calls, is_doomed: AtomicBool::new(false) })
}

/// What the tool gets: ours, or libbpf's if ours cannot be made.
fn give(made: Result<perf_buffer, Why>, real: impl FnOnce() -> *mut perf_buffer) -> *mut perf_buffer {
    match made {
        Ok(buffer) => ours::give(buffer),
        Err(why) => {
            if let Some(why) = why {
                say!("perf buffers are libbpf's, without order: {why}");
            }
            real()
        }
    }
}

/// The tool's struct of options, of which it knows `sz` bytes. `None` as OPTS_VALID of libbpf: too short, or with
/// something set that is not known here.
pub(crate) fn options<T: Copy>(opts: *const T, mut known: T, last: usize) -> Option<T> {
    if opts.is_null() {
        return Some(known);
    }
    // SAFETY: the first member of each such struct is its size.
    let size = unsafe { opts.cast::<usize>().read() };
    if size < size_of::<usize>() {
        return None;
    }
    let bytes = opts.cast::<u8>();
    // SAFETY: the tool's struct has that many bytes.
    let bytes_of_tool = unsafe { std::slice::from_raw_parts(bytes, size) };
    let beyond = bytes_of_tool.iter().skip(last).any(|byte| *byte != 0);
    if beyond {
        return None;
    }
    // SAFETY: the shorter of both.
    unsafe { std::ptr::copy_nonoverlapping(bytes, (&raw mut known).cast::<u8>(), size.min(last)) };
    Some(known)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_buffer__new(
    map_fd: c_int,
    page_cnt: usize,
    sample_cb: SampleFn,
    lost_cb: LostFn,
    ctx: *mut c_void,
    opts: *const perf_buffer_opts,
) -> *mut perf_buffer {
    let real = || {
        real!(perf_buffer__new(map_fd: c_int, page_cnt: usize, sample_cb: SampleFn, lost_cb: LostFn, ctx: *mut c_void,
            opts: *const perf_buffer_opts) -> *mut perf_buffer)
    };
    let known = perf_buffer_opts::default();
    let Some(opts) = options(opts, known, 12).filter(|_| settings().mode != Mode::Off) else { return real() };
    let asked = Asked::output(page_cnt, opts.sample_period.max(1));
    let calls = Calls::Sample { sample: sample_cb, lost: lost_cb, context: Context(ctx) };
    give(make(map_fd, page_cnt, asked, calls, &NONE), real)
}

/// No chosen CPUs.
const NONE: perf_buffer_raw_opts =
    perf_buffer_raw_opts { sz: 0, cpu_cnt: 0, cpus: std::ptr::null(), map_keys: std::ptr::null() };

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_buffer__new_raw(
    map_fd: c_int,
    page_cnt: usize,
    attr: *mut perf::perf_event_attr,
    event_cb: EventFn,
    ctx: *mut c_void,
    opts: *const perf_buffer_raw_opts,
) -> *mut perf_buffer {
    let real = || {
        real!(perf_buffer__new_raw(map_fd: c_int, page_cnt: usize, attr: *mut perf::perf_event_attr, event_cb: EventFn,
            ctx: *mut c_void, opts: *const perf_buffer_raw_opts) -> *mut perf_buffer)
    };
    let known = options(opts, NONE, size_of::<perf_buffer_raw_opts>()).filter(|_| settings().mode != Mode::Off);
    let (Some(opts), false) = (known, attr.is_null()) else { return real() };
    let asked = Asked { attr: copied(attr), ..Asked::output(page_cnt, 1) };
    let calls = Calls::Event { event: event_cb, context: Context(ctx) };
    give(make(map_fd, page_cnt, asked, calls, &opts), real)
}

/// The tool's attribute, of which it knows `size` bytes; 0: those of the first version.
fn copied(attr: *const perf::perf_event_attr) -> perf::perf_event_attr {
    const FIRST: usize = 64;
    let mut own = perf::perf_event_attr::default();
    // SAFETY: the second word of every version.
    let size = unsafe { (*attr).size } as usize;
    let size = if size == 0 { FIRST } else { size.min(size_of_val(&own)) };
    // SAFETY: the tool's has that many bytes, and ours too.
    unsafe { std::ptr::copy_nonoverlapping(attr.cast::<u8>(), (&raw mut own).cast(), size) };
    own.size = size_of_val(&own) as u32;
    own
}

impl perf_buffer {
    fn is_doomed(&self) -> bool {
        self.is_doomed.load(Ordering::Relaxed)
    }

    /// What a call returns for what a callback has said.
    fn told(said: c_int, otherwise: c_int) -> c_int {
        if said == GO_ON || said == 0 { otherwise } else { said }
    }

    /// Gives everything that is there.
    fn settle(&self) -> Result<c_int, Failed> {
        let mut group = match self.group.enter() {
            // In a callback of this buffer there is nothing more than what is being given.
            Err(libc::EBUSY) => return Ok(GO_ON),
            entered => entered?,
        };
        let said = group.settle(&|| self.is_doomed())?;
        if said != GO_ON && said != 0 {
            return Ok(said);
        }
        for place in &self.places {
            let said = place.unordered.get().map_or(GO_ON, |ring| ring.read(&self.calls, &mut Vec::new()));
            if said != GO_ON && said != 0 || self.is_doomed() {
                return Ok(said);
            }
        }
        Ok(GO_ON)
    }

    /// Nothing came: losses that no record tells are told now.
    fn idle(&self) -> Result<(), Failed> {
        match self.group.enter() {
            Err(libc::EBUSY) => Ok(()),
            entered => {
                let mut group = entered?;
                if !group.has_new() {
                    group.tell_losses(&|| self.is_doomed());
                }
                Ok(())
            }
        }
    }

    fn poll(&self, timeout: c_int) -> Result<c_int, Failed> {
        if self.group.is_forked() {
            return Err(libc::ECHILD);
        }
        if self.group.is_mine() {
            return Ok(0);
        }
        // A signal that came during the last call.
        if take_interrupt() {
            self.idle()?;
            return Err(libc::EINTR);
        }
        if is_lazy() && self.places.iter().any(|place| place.unordered.get().is_none()) {
            return self.lazy_poll(timeout);
        }
        // What a callback has left is there, and nothing becomes ready for it.
        let is_unfinished = self.group.enter()?.is_unfinished();
        let timeout = if is_unfinished { 0 } else { timeout };
        let mut ready = vec![libc::epoll_event { events: 0, u64: 0 }; self.places.len().max(1)];
        match sys::epoll_wait(self.epoll.as_raw_fd(), &mut ready, timeout) {
            Ok(0) if !is_unfinished => self.idle().map(|()| 0),
            Ok(count) => self.settle().map(|said| Self::told(said, count.max(1) as c_int)),
            Err(errno) => {
                self.idle()?;
                Err(errno)
            }
        }
    }

    fn lazy_poll(&self, timeout: c_int) -> Result<c_int, Failed> {
        // Others may be inside in between.
        const SLICE: Duration = Duration::from_millis(100);
        let until = u64::try_from(timeout).ok().map(|timeout| Instant::now() + Duration::from_millis(timeout));
        loop {
            end_if_cancelled();
            let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
            let mut group = self.group.enter()?;
            match group.wait(left.min(SLICE)) {
                Ok(true) => return group.take(&|| self.is_doomed()).map(|said| Self::told(said, 1)),
                Ok(false) if left > SLICE || until.is_none() => {}
                // The tool takes silence for the end, and a signal too.
                waited => {
                    let had = group.has_new();
                    let said = group.settle(&|| self.is_doomed())?;
                    if said == GO_ON {
                        group.tell_losses(&|| self.is_doomed());
                    }
                    return waited.map(|_| Self::told(said, had.into()));
                }
            }
        }
    }

    /// Gives the memory of a ring to the tool, which may read it by itself from now on.
    fn memory(&self, index: usize) -> Result<&Unordered, Failed> {
        let place = self.places.get(index).ok_or(libc::EINVAL)?;
        if let Some(ring) = place.unordered.get() {
            return Ok(ring);
        }
        let mut group = self.group.enter()?;
        let old = group.at(place.fd).ok_or(libc::ENOENT)?;
        let (event, ring) = Unordered::open(&self.asked, place.cpu)?;
        sys::set_slot(&self.map, place.key, event.as_raw_fd())?;
        // The tool has the number of the old one. What is in its ring is read as before.
        sys::replace(event, &old.slot.event)?;
        sys::watch(self.epoll.as_raw_fd(), place.fd, index as u64)?;
        for (epoll, mut event) in watch::epolls_of(place.fd) {
            // An instance that the tool has closed since is no error.
            let _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, place.fd, &raw mut event);
        }
        say!("this program reads the memory of rings by itself (perf_buffer__buffer): those have no order");
        Ok(place.unordered.get_or_init(|| ring))
    }
}

impl Drop for perf_buffer {
    fn drop(&mut self) {
        for place in &self.places {
            sys::empty_slot(&self.map, place.key);
            watch::disown(place.fd);
        }
    }
}

/// Ends a call on a buffer, which a callback may have freed.
fn leave(buffer: *mut perf_buffer) {
    if ours::get(buffer).is_some_and(|buffer| buffer.is_doomed() && !buffer.group.is_mine()) {
        drop(ours::take(buffer));
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_buffer__poll(pb: *mut perf_buffer, timeout_ms: c_int) -> c_int {
    let Some(buffer) = ours::get(pb) else {
        return real!(perf_buffer__poll(pb: *mut perf_buffer, timeout_ms: c_int) -> c_int);
    };
    let said = buffer.poll(timeout_ms);
    leave(pb);
    number(said)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_buffer__consume(pb: *mut perf_buffer) -> c_int {
    let Some(buffer) = ours::get(pb) else {
        return real!(perf_buffer__consume(pb: *mut perf_buffer) -> c_int);
    };
    let said = buffer.settle().map(|said| perf_buffer::told(said, 0));
    leave(pb);
    number(said)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_buffer__consume_buffer(pb: *mut perf_buffer, buf_idx: usize) -> c_int {
    let Some(buffer) = ours::get(pb) else {
        return real!(perf_buffer__consume_buffer(pb: *mut perf_buffer, buf_idx: usize) -> c_int);
    };
    if buf_idx >= buffer.places.len() {
        return number(Err(libc::EINVAL));
    }
    let said = buffer.settle().map(|said| perf_buffer::told(said, 0));
    leave(pb);
    number(said)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_buffer__buffer_cnt(pb: *const perf_buffer) -> usize {
    match ours::get(pb) {
        Some(buffer) => buffer.places.len(),
        None => real!(perf_buffer__buffer_cnt(pb: *const perf_buffer) -> usize),
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_buffer__buffer_fd(pb: *const perf_buffer, buf_idx: usize) -> c_int {
    match ours::get(pb) {
        Some(buffer) => number(buffer.places.get(buf_idx).map(|place| place.fd).ok_or(libc::EINVAL)),
        None => real!(perf_buffer__buffer_fd(pb: *const perf_buffer, buf_idx: usize) -> c_int),
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_buffer__epoll_fd(pb: *const perf_buffer) -> c_int {
    match ours::get(pb) {
        Some(buffer) if is_lazy() => number(
            buffer.group.enter().and_then(|mut group| Ok(group.settler()?.fd())).or(Ok(buffer.epoll.as_raw_fd())),
        ),
        Some(buffer) => buffer.epoll.as_raw_fd(),
        None => real!(perf_buffer__epoll_fd(pb: *const perf_buffer) -> c_int),
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_buffer__buffer(
    pb: *mut perf_buffer,
    buf_idx: c_int,
    buf: *mut *mut c_void,
    buf_size: *mut usize,
) -> c_int {
    let Some(buffer) = ours::get(pb) else {
        return real!(perf_buffer__buffer(pb: *mut perf_buffer, buf_idx: c_int, buf: *mut *mut c_void,
            buf_size: *mut usize) -> c_int);
    };
    let ring = usize::try_from(buf_idx).map_err(|_| libc::EINVAL).and_then(|index| buffer.memory(index));
    number(ring.map(|ring| {
        // SAFETY: the tool has room for a pointer there.
        unsafe { buf.write(ring.mapping.base().as_ptr().cast()) };
        // SAFETY: and for a size.
        unsafe { buf_size.write(ring.size) };
        0
    }))
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn perf_buffer__free(pb: *mut perf_buffer) {
    // As libbpf, whose tools give it what failed, too.
    let is_error = (pb as usize) >= usize::MAX - 4095;
    if pb.is_null() || is_error {
        return;
    }
    match ours::get(pb) {
        None => real!(perf_buffer__free(pb: *mut perf_buffer) -> ()),
        // The slots of the map are the parent's.
        Some(buffer) if buffer.group.is_forked() => {}
        Some(buffer) if buffer.group.is_mine() => buffer.is_doomed.store(true, Ordering::Relaxed),
        // No callback comes from here: the tool may have freed what they use.
        Some(_) => drop(ours::take(pb)),
    }
}
