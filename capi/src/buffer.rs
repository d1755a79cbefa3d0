//! Buffers: how they are made, who may be inside, and how they are freed.

use crate::border::{Failure, Result, checked, guarded, nothing, number, pointer};
use crate::event::{pw_event_fn, pw_lost_fn, pw_ring_buffer_sample_fn, pw_sample_fn};
use crate::options::{Context, descriptor, pw_opts};
use crate::rings::{Apart, listed, open_apart};
use pw::{Clock, Handle, Hold, Key, Layout, Order, Reader, Ring, Rings};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// The perf buffers of one map, or ring buffers, as one stream in order.
///
/// One thread at a time may be in a call on a buffer, callbacks included: another call returns -EBUSY. Different
/// threads may take turns. pw_handle controls a buffer from other threads.
#[allow(non_camel_case_types, reason = "names of C")]
pub struct pw_buffer {
    /// `BUSY` and `DOOMED`.
    state: AtomicU8,
    /// The process that made it.
    process: u32,
    /// Set once the reader is made.
    handle: OnceLock<(Handle, c_int)>,
    /// For who has set `BUSY`.
    inside: UnsafeCell<Inside>,
}

/// Ring buffers. It is a struct pw_buffer too: see pw_ring_buffer__buffer.
#[allow(non_camel_case_types, reason = "names of C")]
pub struct pw_ring_buffer {
    _buffer: pw_buffer,
}

/// A thread is in a call.
const BUSY: u8 = 1;
/// Freed in a call: the end of the call drops it.
const DOOMED: u8 = 2;

/// What a call works on.
pub(crate) struct Inside {
    pub(crate) source: Source,
    /// A call on it has panicked: nobody knows what it left half done.
    pub(crate) broken: bool,
    pub(crate) opts: pw_opts,
    pub(crate) calls: Callbacks,
    /// Made at once for perf buffers, and by the first call that reads for ring buffers, which can be added until then.
    pub(crate) reader: Option<Reader>,
    /// Perf buffers: the CPU of each index.
    pub(crate) cpus: Vec<u32>,
    /// Perf buffers: the map, if the library has opened its events.
    pub(crate) map: Option<OwnedFd>,
    /// The text of the last problem that was lent.
    pub(crate) problem: String,
}

pub(crate) enum Source {
    Perf,
    /// Without a reader.
    Unordered(Apart),
    Ring(Vec<OwnedFd>),
}

/// What to call with events.
pub(crate) struct Callbacks {
    pub(crate) context: Context,
    pub(crate) event: pw_event_fn,
    pub(crate) sample: pw_sample_fn,
    pub(crate) lost: pw_lost_fn,
    /// By the number of the map.
    pub(crate) ring: Vec<(pw_ring_buffer_sample_fn, Context)>,
    /// Records that wrap, in one piece. 64-bit words, as the ring's.
    pub(crate) scratch: Vec<u64>,
}

impl Inside {
    /// What no call has read from yet.
    pub(crate) fn new(source: Source, opts: pw_opts, calls: Callbacks, reader: Option<Reader>) -> Self {
        let (cpus, problem) = (vec![], String::new());
        Self { source, broken: false, opts, calls, reader, cpus, map: None, problem }
    }

    /// The reader. Made now if there is none.
    pub(crate) fn reader(&mut self) -> Result<(&mut Reader, &mut Callbacks)> {
        if self.reader.is_none() {
            self.reader = Some(self.open()?);
        }
        let reader = self.reader.as_mut().ok_or_else(|| Failure::invalid("no reader"))?;
        Ok((reader, &mut self.calls))
    }

    fn open(&self) -> Result<Reader> {
        let Source::Ring(maps) = &self.source else {
            return Err(Failure::invalid(
                "this buffer has no order: opts.hold is PW_HOLD_UNORDERED\nhint: pw_buffer__drain_unordered and pw_buffer__consume_buffer read it",
            ));
        };
        let mut rings = adopt(maps.iter())?;
        if rings.cpus().len() > 1 && !self.opts.has_key() {
            return Err(Failure::invalid(
                "several ring buffers have no order without a key\nhint: set opts.key, to PW_KEY_PAYLOAD and key_offset if records have a time",
            ));
        }
        if self.opts.count_failures != 0 {
            rings.count_failures(descriptor(self.opts.failures_fd, "opts->failures_fd")?)?;
        }
        Ok(Reader::new(rings, self.opts.order(true)?)?)
    }
}

impl pw_buffer {
    pub(crate) fn new(inside: Inside) -> Self {
        let (state, process) = (AtomicU8::new(0), std::process::id());
        let buffer = Self { state, process, handle: OnceLock::new(), inside: UnsafeCell::new(inside) };
        // Nobody else has it yet.
        let (handle, inside) = (&buffer.handle, buffer.inside.get());
        // SAFETY: as above.
        let inside = unsafe { &*inside };
        inside.reader.iter().for_each(|reader| know(handle, reader));
        buffer
    }

    /// The handle and the epoll instance, once there is a reader.
    pub(crate) fn known(&self) -> Option<&(Handle, c_int)> {
        self.handle.get()
    }

    /// An error in a child of the process that made the buffer.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Failure::new(libc::ECHILD, "the buffer belongs to the parent process"))
    }

    /// Whether the buffer was freed in this call.
    pub(crate) fn is_doomed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & DOOMED != 0
    }
}

/// Keeps what other threads may use of a reader.
fn know(known: &OnceLock<(Handle, c_int)>, reader: &Reader) {
    known.get_or_init(|| (reader.handle(), reader.as_fd().as_raw_fd()));
}

/// Runs a call on a buffer of the caller, which no other call may be on.
pub(crate) fn enter_as_is<T>(
    buffer: *const pw_buffer,
    call: impl FnOnce(&pw_buffer, &mut Inside) -> Result<T>,
) -> Result<T> {
    let shared = checked(buffer, "the buffer")?;
    if shared.state.fetch_or(BUSY, Ordering::Acquire) & BUSY != 0 {
        // The thread that is inside stayed in the parent.
        shared.check_process()?;
        return Err(Failure::new(
            libc::EBUSY,
            "another call is on this buffer: one of its callbacks, or another thread\nhint: use a pw_handle there",
        ));
    }
    let inside = shared.inside.get();
    // SAFETY: this call has set `BUSY`, so it alone is inside.
    let inside = unsafe { &mut *inside };
    let was_broken = std::mem::replace(&mut inside.broken, true);
    let done = guarded(|| {
        if was_broken {
            let text =
                "an earlier call on this buffer ended in a fault of the library\nhint: free it, and report the fault";
            return Err(Failure::new(libc::ENOTRECOVERABLE, text));
        }
        #[cfg(perfweave_panics)]
        crate::border::panics::here(crate::border::panics::INSIDE);
        let done = call(shared, inside);
        inside.broken = false;
        done
    });
    leave(buffer);
    done
}

/// The same, with a reader.
pub(crate) fn enter<T>(buffer: *const pw_buffer, call: impl FnOnce(&pw_buffer, &mut Inside) -> Result<T>) -> Result<T> {
    enter_as_is(buffer, |shared, inside| {
        if inside.reader.is_none() {
            // A reader that a child makes now would be a second one of the maps.
            shared.check_process()?;
        }
        let (reader, _) = inside.reader()?;
        know(&shared.handle, reader);
        call(shared, inside)
    })
}

/// Ends a call. Drops a buffer that was freed meanwhile.
fn leave(buffer: *const pw_buffer) {
    // SAFETY: the caller's buffer lives: `free` leaves it to this call.
    let state = unsafe { &(*buffer).state };
    if state.swap(0, Ordering::AcqRel) & DOOMED != 0 {
        // SAFETY: made by `Box::into_raw`, freed by the caller, and nobody is inside.
        drop(unsafe { Box::from_raw(buffer.cast_mut()) });
    }
}

fn free(buffer: *mut pw_buffer) -> Result<()> {
    if buffer.is_null() {
        return Ok(());
    }
    let shared = checked(buffer, "the buffer")?;
    // The one who is inside drops it at the end of the call.
    if shared.state.fetch_or(BUSY | DOOMED, Ordering::AcqRel) & BUSY == 0 {
        leave(buffer);
    }
    Ok(())
}

/// Opens the perf buffers of a BPF_MAP_TYPE_PERF_EVENT_ARRAY, one for each CPU, as perf_buffer__new of libbpf does.
/// Events come in proven order: earlier ones of other CPUs first.
///
/// bytes: the size of each CPU's buffer. It is rounded up to a power of two pages. libbpf counts pages instead. Held
/// events stay in it, so it needs room for what a CPU writes in some 50 ms. 0: 512 KiB. sample_cb, lost_cb: called by
/// pw_buffer__poll and pw_buffer__consume with ctx. Either may be NULL. opts: NULL for the defaults. The map is
/// duplicated. The kernel gives each slot of a map to one reader: free libbpf's before. A program may output 65,508
/// bytes at once: more makes the kernel overwrite unread records.
///
/// Returns NULL with errno set: EPERM; EBADF, EINVAL for a descriptor that is no such map or a wrong option; EBUSY if
/// another reader has the map; EMFILE, ENOMEM for limits; EOPNOTSUPP if no fence is possible here. pw_last_error says
/// more. Blocks for system calls only, some for each CPU.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__new(
    map_fd: c_int,
    bytes: usize,
    sample_cb: pw_sample_fn,
    lost_cb: pw_lost_fn,
    ctx: *mut c_void,
    opts: *const pw_opts,
) -> *mut pw_buffer {
    let context = Context(ctx);
    let calls = Callbacks { context, event: None, sample: sample_cb, lost: lost_cb, ring: vec![], scratch: vec![] };
    pointer(|| perf(map_fd, bytes, calls, opts))
}

fn perf(map: c_int, bytes: usize, mut calls: Callbacks, opts: *const pw_opts) -> Result<pw_buffer> {
    let opts = pw_opts::read(opts)?;
    calls.event = opts.event_cb;
    if (1..4096).contains(&bytes) {
        return Err(Failure::invalid(format!(
            "a buffer of {bytes} bytes has no room for a page\nhint: pw_buffer__new takes bytes where perf_buffer__new takes pages"
        )));
    }
    let map = descriptor(map, "map_fd")?;
    let chosen = opts.chosen()?;
    let mut cpus: Vec<u32> = chosen.iter().map(|(cpu, _)| *cpu).collect();
    let options = |order: &Order| {
        let options = opts.set(order.ring_options().bpf_output(map), &chosen)?;
        Ok(if bytes == 0 { options } else { options.bytes(bytes as u64) })
    };
    if opts.is_unordered()? {
        // By a key that needs no time: the records are as libbpf's.
        let order = Order::new().key(Key::Payload(0));
        if cpus.is_empty() {
            cpus = listed("online")?;
        }
        let apart = open_apart(&cpus, || options(&order))?;
        let inside = Inside::new(Source::Unordered(apart), opts, calls, None);
        return Ok(pw_buffer::new(Inside { cpus, map: Some(duplicate(map)?), ..inside }));
    }
    let order = opts.order(false)?;
    let rings = options(&order)?.open()?;
    if cpus.is_empty() {
        cpus = rings.cpus().collect();
    }
    let inside = Inside::new(Source::Perf, opts, calls, Some(Reader::new(rings, order)?));
    Ok(pw_buffer::new(Inside { cpus, map: Some(duplicate(map)?), ..inside }))
}

/// A descriptor of the library's own.
fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    let error = |error: io::Error| Failure::new(error.raw_os_error().unwrap_or(libc::EMFILE), error.to_string());
    fd.try_clone_to_owned().map_err(error)
}

/// Frees a buffer. In a call on the buffer, as from its callback, the call ends after this event and frees the buffer
/// then. NULL is allowed. Events that are held or unread are dropped: pw_buffer__flush and pw_buffer__poll give them
/// before. May block for a grace period that is under way, some 10 ms.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__free(buffer: *mut pw_buffer) {
    nothing(|| free(buffer));
}

/// Opens a ring buffer, as ring_buffer__new of libbpf does: a BPF_MAP_TYPE_RINGBUF, or an array or hash of them whose
/// keys are CPUs.
///
/// The kernel puts no time into these records. Set opts.key to where your programs put one; then choose opts.hold by
/// where they draw it. Without a key, one BPF_MAP_TYPE_RINGBUF has the order in which programs have reserved, and
/// several have none. Nobody else may read the map. It is duplicated.
///
/// Returns NULL with errno set: EBADF, EINVAL for a descriptor that is no such map or a wrong option; EPERM; EMFILE,
/// ENOMEM. Blocks for system calls only.
#[unsafe(no_mangle)]
pub extern "C" fn pw_ring_buffer__new(
    map_fd: c_int,
    sample_cb: pw_ring_buffer_sample_fn,
    ctx: *mut c_void,
    opts: *const pw_opts,
) -> *mut pw_ring_buffer {
    pointer(|| ring(map_fd, sample_cb, Context(ctx), opts)).cast()
}

fn ring(map: c_int, sample: pw_ring_buffer_sample_fn, context: Context, opts: *const pw_opts) -> Result<pw_buffer> {
    let opts = pw_opts::read(opts)?;
    if opts.event_cb.is_some() || opts.sample_type != 0 || opts.cpu_cnt != 0 {
        return Err(Failure::invalid(
            "opts->event_cb, sample_type and cpus are for perf buffers, not for ring buffers",
        ));
    }
    opts.order(true)?;
    let calls =
        Callbacks { context, event: None, sample: None, lost: None, ring: vec![(sample, context)], scratch: vec![] };
    let source = Source::Ring(vec![ring_map(map, &[])?]);
    Ok(pw_buffer::new(Inside::new(source, opts, calls, None)))
}

/// A ring buffer of the caller, or several, beside those that were added before.
fn ring_map(map: c_int, before: &[OwnedFd]) -> Result<OwnedFd> {
    let map = duplicate(descriptor(map, "map_fd")?)?;
    // A reader refuses a ring buffer that is there twice.
    let all = adopt(before.iter().chain([&map]))?;
    Reader::new(all, Order::new().key(Key::Fn(Box::new(|_| None))).hold(Hold::None))?;
    Ok(map)
}

/// The rings of maps, tagged with the number of their map. Reads nothing.
fn adopt<'a>(maps: impl Iterator<Item = &'a OwnedFd>) -> Result<Rings> {
    let mut rings = Rings::empty(Clock::Monotonic);
    for (tag, map) in (0..).zip(maps) {
        // SAFETY: the caller promises that nobody else reads the map, and a child of fork does not come here.
        for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(map) }? {
            rings.add(cpu, ring, Layout::RING_BUFFER.tagged(tag));
        }
    }
    Ok(rings)
}

/// Adds another ring buffer with its own callback, as ring_buffer__add of libbpf does. Their events are one stream, so
/// opts.key is needed. Returns 0, or -EBUSY once the first call has read from the buffer, or as pw_ring_buffer__new.
/// Blocks for system calls only.
#[unsafe(no_mangle)]
pub extern "C" fn pw_ring_buffer__add(
    rb: *mut pw_ring_buffer,
    map_fd: c_int,
    sample_cb: pw_ring_buffer_sample_fn,
    ctx: *mut c_void,
) -> c_int {
    number(|| {
        enter_as_is(rb.cast(), |shared, inside| {
            shared.check_process()?;
            let late = || {
                Failure::new(
                    libc::EBUSY,
                    "this buffer is read already\nhint: add all maps before the first call that reads",
                )
            };
            let (Source::Ring(maps), None) = (&mut inside.source, &inside.reader) else { return Err(late()) };
            maps.push(ring_map(map_fd, maps)?);
            inside.calls.ring.push((sample_cb, Context(ctx)));
            Ok(0)
        })
    })
}

/// Frees a ring buffer, as pw_buffer__free.
#[unsafe(no_mangle)]
pub extern "C" fn pw_ring_buffer__free(rb: *mut pw_ring_buffer) {
    nothing(|| free(rb.cast()));
}

/// The same object as a struct pw_buffer, for the functions that only that has. Do not free it twice. Never
/// blocks.
#[unsafe(no_mangle)]
pub extern "C" fn pw_ring_buffer__buffer(rb: *mut pw_ring_buffer) -> *mut pw_buffer {
    rb.cast()
}
