//! libbpf's ring_buffer, where `PERFWEAVE_KEY` says what to order by. The kernel puts no time into these records.
//! Without a key all of it is libbpf's.

use crate::border::{Failed, failed, number, set_errno};
use crate::calls::Context;
use crate::gate::Gate;
use crate::perf_buffer::options;
use crate::real::real;
use crate::say::say;
use crate::settings::{Mode, settings};
use crate::settler::Settler;
use crate::signals::take_interrupt;
use crate::sys::{self, Mapping};
use crate::{border, ours};
use perfweave::{Certainty, Clock, Event, Hold, Item, Key, Layout, Order, Ring, Rings};
use std::ffi::{c_int, c_uint, c_void};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

type SampleFn = Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, usize) -> c_int>;

/// `struct ring_buffer_opts`
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types, reason = "names of C")]
pub struct ring_buffer_opts {
    sz: usize,
}

#[allow(non_camel_case_types, reason = "names of C")]
pub struct ring_buffer {
    gate: Gate<Maps>,
    /// What the tool waits for: all maps, as libbpf has it.
    epoll: OwnedFd,
    key: usize,
    /// What the tool has by ring_buffer__ring.
    rings: Mutex<Vec<RingPointer>>,
    /// Freed in a callback: the end of the call drops it.
    is_doomed: AtomicBool,
}

struct RingPointer(*mut ring);

// SAFETY: an address. `ours` follows it.
unsafe impl Send for RingPointer {}

#[allow(non_camel_case_types, reason = "names of C")]
pub struct ring {
    buffer: *const ring_buffer,
    tag: u32,
    /// The tool's number.
    map_fd: c_int,
    size: usize,
    consumer: Mapping,
    producer: Mapping,
}

/// What a call works on.
#[derive(Default)]
struct Maps {
    settler: Option<Settler>,
    maps: Vec<(OwnedFd, SampleFn, Context)>,
    scratch: Vec<u8>,
}

impl Maps {
    fn settler(&mut self, key: usize) -> Result<&mut Settler, Failed> {
        if self.settler.is_none() {
            let rings = border::guarded(|| adopt(&self.maps))?.map_err(|error| {
                say!("cannot read a ring buffer: {error}");
                failed(&error)
            })?;
            self.settler = Some(Settler::new(rings, Order::new().key(Key::Payload(key)).hold(Hold::FENCE))?);
        }
        self.settler.as_mut().ok_or(libc::EINVAL)
    }

    /// Gives what is there, in order, but no more than `most` records of one map, or of all. Returns how many, or what
    /// a callback says.
    fn settle(
        &mut self,
        key: usize,
        of: Option<u32>,
        most: usize,
        is_over: &dyn Fn() -> bool,
    ) -> Result<c_int, Failed> {
        self.settler(key)?;
        let Self { settler: Some(settler), maps, scratch } = self else { return Err(libc::EINVAL) };
        let mut count = 0_usize;
        let said = settler.settle(|event| {
            let (said, tag) = tell(maps, scratch, &event);
            count += usize::from(tag.is_some() && (of.is_none() || of == tag));
            if said < 0 || count >= most || is_over() { ControlFlow::Break(said) } else { ControlFlow::Continue(()) }
        });
        settler.give_back();
        match said? {
            Some(said) if said < 0 => Ok(said),
            _ => Ok(count.min(c_int::MAX as usize) as c_int),
        }
    }
}

/// The rings of maps, tagged with their place.
fn adopt(maps: &[(OwnedFd, SampleFn, Context)]) -> Result<Rings, perfweave::Error> {
    let mut rings = Rings::empty(Clock::Monotonic);
    for (tag, (map, ..)) in (0..).zip(maps) {
        // SAFETY: the tool reads its maps by these functions alone, and each ring buffer has its own reader.
        for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(map) }? {
            rings.add(cpu, ring, Layout::RING_BUFFER.tagged(tag));
        }
    }
    Ok(rings)
}

/// Calls back with an event. Returns what that says, and the place of the map if it was a record.
fn tell(maps: &[(OwnedFd, SampleFn, Context)], scratch: &mut Vec<u8>, event: &Event<'_>) -> (c_int, Option<u32>) {
    let Item::Record(record) = event.item() else {
        say!("{:?}", event.item());
        return (0, None);
    };
    if event.certainty() != Certainty::Proven {
        say!("not all records of ring buffers are in proven order: {:?}", event.certainty());
    }
    if event.key().is_none() {
        say!("records are shorter than PERFWEAVE_KEY: those have no order");
    }
    let tag = record.layout().tag();
    let (Some((_, call, context)), Some(payload)) = (maps.get(tag as usize), record.payload()) else {
        return (0, None);
    };
    let Some(call) = call else { return (0, Some(tag)) };
    let (head, tail) = payload.as_slices();
    let data = if tail.is_empty() {
        head.as_ptr().cast_mut()
    } else {
        scratch.clear();
        scratch.extend_from_slice(head);
        scratch.extend_from_slice(tail);
        scratch.as_mut_ptr()
    };
    // SAFETY: the tool's callback; the bytes live until it returns.
    (unsafe { call(context.0, data.cast(), payload.len()) }, Some(tag))
}

impl ring_buffer {
    /// A child of fork(2) goes on reading, as with libbpf: the maps are the same for both. The reader is the parent's.
    fn come_here(&self) {
        self.gate.take_over(|inside| std::mem::forget(inside.settler.take()));
    }

    fn add(&self, map: c_int, call: SampleFn, context: *mut c_void) -> Result<(), Failed> {
        let info = sys::map_info(map)?;
        if info.kind != sys::RINGBUF {
            return Err(libc::EINVAL);
        }
        self.come_here();
        let mut inside = self.gate.enter()?;
        let page = sys::page_size();
        let (consumer, producer) = (Mapping::new(map, page, false, 0)?, Mapping::new(map, page, false, page)?);
        let own = sys::duplicate(map)?;
        let tag = inside.maps.len() as u32;
        sys::watch(self.epoll.as_raw_fd(), own.as_raw_fd(), tag.into())?;
        inside.maps.push((own, call, Context(context)));
        // The next call makes another, of all maps. Everything that was given is given back.
        let was = inside.settler.take();
        if let Err(errno) = inside.settler(self.key) {
            inside.maps.pop();
            inside.settler = was;
            return Err(errno);
        }
        drop(was);
        let size = info.max_entries as usize;
        let made = ours::give(ring { buffer: self, tag, map_fd: map, size, consumer, producer });
        self.rings.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(RingPointer(made));
        Ok(())
    }

    fn ring(&self, index: usize) -> Option<*mut ring> {
        self.rings.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(index).map(|ring| ring.0)
    }

    fn settle(&self, of: Option<u32>, most: usize) -> Result<c_int, Failed> {
        if most == 0 {
            return Ok(0);
        }
        self.come_here();
        match self.gate.enter() {
            // In a callback there is nothing more than what is being given.
            Err(libc::EBUSY) => Ok(0),
            entered => entered?.settle(self.key, of, most, &|| self.is_doomed.load(Ordering::Relaxed)),
        }
    }

    fn poll(&self, timeout: c_int) -> Result<c_int, Failed> {
        if self.gate.is_mine() {
            return Ok(0);
        }
        if take_interrupt() {
            return Err(libc::EINTR);
        }
        self.come_here();
        let mut ready = {
            let inside = self.gate.enter()?;
            let unfinished = inside.settler.as_ref().is_some_and(Settler::is_unfinished);
            (vec![libc::epoll_event { events: 0, u64: 0 }; inside.maps.len().max(1)], unfinished)
        };
        let timeout = if ready.1 { 0 } else { timeout };
        match sys::epoll_wait(self.epoll.as_raw_fd(), &mut ready.0, timeout)? {
            0 if !ready.1 => Ok(0),
            _ => self.settle(None, usize::MAX),
        }
    }
}

impl Drop for ring_buffer {
    fn drop(&mut self) {
        for ring in self.rings.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).drain(..) {
            drop(ours::take(ring.0));
        }
    }
}

/// Ends a call on a buffer, which a callback may have freed.
fn leave(buffer: *mut ring_buffer) {
    if ours::get(buffer).is_some_and(|buffer| buffer.is_doomed.load(Ordering::Relaxed) && !buffer.gate.is_mine()) {
        drop(ours::take(buffer));
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ring_buffer__new(
    map_fd: c_int,
    sample_cb: SampleFn,
    ctx: *mut c_void,
    opts: *const ring_buffer_opts,
) -> *mut ring_buffer {
    let real = || {
        real!(ring_buffer__new(map_fd: c_int, sample_cb: SampleFn, ctx: *mut c_void, opts: *const ring_buffer_opts)
            -> *mut ring_buffer)
    };
    // What is wrong with a map or options libbpf says itself.
    let is_right = options(opts, ring_buffer_opts::default(), size_of::<ring_buffer_opts>()).is_some()
        && sys::map_info(map_fd).is_ok_and(|info| info.kind == sys::RINGBUF);
    if settings().mode == Mode::Off || !is_right {
        return real();
    }
    let Some(key) = settings().key else {
        say!("BPF ring buffers are libbpf's, each in its own order: PERFWEAVE_KEY=OFFSET names a u64 to order by");
        return real();
    };
    let Ok(epoll) = sys::epoll() else { return real() };
    let (gate, rings, is_doomed) = (Gate::new(Maps::default()), Mutex::new(Vec::new()), AtomicBool::new(false));
    let buffer = ours::give(ring_buffer { gate, epoll, key, rings, is_doomed });
    let added = ours::get(buffer).ok_or(libc::EINVAL).and_then(|buffer| buffer.add(map_fd, sample_cb, ctx));
    if let Err(errno) = added {
        drop(ours::take(buffer));
        say!("BPF ring buffers are libbpf's, without order: {}", std::io::Error::from_raw_os_error(errno));
        return real();
    }
    say!("BPF ring buffers are in proven order by the u64 at {key} of their records (PERFWEAVE_KEY)");
    buffer
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ring_buffer__add(
    rb: *mut ring_buffer,
    map_fd: c_int,
    sample_cb: SampleFn,
    ctx: *mut c_void,
) -> c_int {
    match ours::get(rb) {
        Some(buffer) => number(buffer.add(map_fd, sample_cb, ctx).map(|()| 0)),
        None => {
            real!(ring_buffer__add(rb: *mut ring_buffer, map_fd: c_int, sample_cb: SampleFn, ctx: *mut c_void) -> c_int)
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ring_buffer__poll(rb: *mut ring_buffer, timeout_ms: c_int) -> c_int {
    let Some(buffer) = ours::get(rb) else {
        return real!(ring_buffer__poll(rb: *mut ring_buffer, timeout_ms: c_int) -> c_int);
    };
    let said = buffer.poll(timeout_ms);
    leave(rb);
    number(said)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ring_buffer__consume(rb: *mut ring_buffer) -> c_int {
    let Some(buffer) = ours::get(rb) else {
        return real!(ring_buffer__consume(rb: *mut ring_buffer) -> c_int);
    };
    let said = buffer.settle(None, usize::MAX);
    leave(rb);
    number(said)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ring_buffer__consume_n(rb: *mut ring_buffer, n: usize) -> c_int {
    let Some(buffer) = ours::get(rb) else {
        return real!(ring_buffer__consume_n(rb: *mut ring_buffer, n: usize) -> c_int);
    };
    let said = buffer.settle(None, n);
    leave(rb);
    number(said)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ring_buffer__epoll_fd(rb: *const ring_buffer) -> c_int {
    match ours::get(rb) {
        Some(buffer) => buffer.epoll.as_raw_fd(),
        None => real!(ring_buffer__epoll_fd(rb: *const ring_buffer) -> c_int),
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ring_buffer__ring(rb: *mut ring_buffer, idx: c_uint) -> *mut ring {
    let Some(buffer) = ours::get(rb) else {
        return real!(ring_buffer__ring(rb: *mut ring_buffer, idx: c_uint) -> *mut ring);
    };
    buffer.ring(idx as usize).unwrap_or_else(|| {
        set_errno(libc::ERANGE);
        std::ptr::null_mut()
    })
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ring_buffer__free(rb: *mut ring_buffer) {
    if rb.is_null() {
        return;
    }
    match ours::get(rb) {
        None => real!(ring_buffer__free(rb: *mut ring_buffer) -> ()),
        // The reader's threads are the parent's.
        Some(buffer) if buffer.gate.is_forked() => {}
        Some(buffer) if buffer.gate.is_mine() => buffer.is_doomed.store(true, Ordering::Relaxed),
        Some(_) => drop(ours::take(rb)),
    }
}

/// A value of a ring that is ours, or libbpf's of the same name.
macro_rules! of_ring {
    ($name:ident, $type:ty, $own:expr) => {
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $name(r: *const ring) -> $type {
            match ours::get(r) {
                Some(ring) => {
                    let own: fn(&ring) -> $type = $own;
                    own(ring)
                }
                None => real!($name(r: *const ring) -> $type),
            }
        }
    };
}

of_ring!(ring__consumer_pos, usize, |ring| ring.consumer.load(0) as usize);
of_ring!(ring__producer_pos, usize, |ring| ring.producer.load(0) as usize);
of_ring!(ring__avail_data_size, usize, |ring| ring.producer.load(0).wrapping_sub(ring.consumer.load(0)) as usize);
of_ring!(ring__size, usize, |ring| ring.size);
of_ring!(ring__map_fd, c_int, |ring| ring.map_fd);

/// Gives what is there of all rings of the buffer: their order is one. Counts those of this ring.
fn consume(ring: &ring, most: usize) -> c_int {
    let buffer = ring.buffer.cast_mut();
    let tag = ring.tag;
    let said = ours::get(buffer).ok_or(libc::EINVAL).and_then(|buffer| buffer.settle(Some(tag), most));
    leave(buffer);
    number(said)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ring__consume(r: *mut ring) -> c_int {
    match ours::get(r) {
        Some(ring) => consume(ring, usize::MAX),
        None => real!(ring__consume(r: *mut ring) -> c_int),
    }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ring__consume_n(r: *mut ring, n: usize) -> c_int {
    match ours::get(r) {
        Some(ring) => consume(ring, n),
        None => real!(ring__consume_n(r: *mut ring, n: usize) -> c_int),
    }
}
