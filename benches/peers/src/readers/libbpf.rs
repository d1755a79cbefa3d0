//! libbpf's perf buffers: as libbpf-rs makes them, which wakes the reader for each event, and tuned by hand.

use super::{POLL, Start};
use crate::Result;
use crate::tally::{Seen, Tally};
use libbpf_rs::{MapHandle, PerfBufferBuilder};
use libbpf_sys as sys;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// As libbpf-rs makes them.
pub fn default(map: OwnedFd, start: &Start) -> Result<Seen> {
    let map = MapHandle::from_map_id(id(&map)?)?;
    // Both callbacks count in it, one at a time, from when everything is open.
    let tally = RefCell::new(None::<Tally>);
    let count = |count: &dyn Fn(&mut Tally)| tally.borrow_mut().as_mut().into_iter().for_each(count);
    let buffer = PerfBufferBuilder::new(&map)
        .pages(start.bytes / perfweave_support::foreign::page_size())
        .sample_cb(|_, bytes: &[u8]| count(&|tally| tally.bytes(bytes)))
        .lost_cb(|_, lost| count(&|tally| tally.lost(lost)))
        .build()?;
    *tally.borrow_mut() = Some(start.ready(|| ()));
    while !start.is_over() {
        buffer.poll(POLL)?;
    }
    buffer.consume()?;
    drop(buffer);
    Ok(tally.into_inner().expect("it was begun").end())
}

/// A map's number, by which any process may open it.
pub(super) fn id(map: &OwnedFd) -> Result<u32> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd()))?;
    let id = about.lines().find_map(|line| line.strip_prefix("map_id:"));
    Ok(id.ok_or("no map")?.trim().parse()?)
}

/// What its callback does with a record.
pub(super) trait Each {
    fn bytes(&mut self, bytes: &[u8]);
    fn lost(&mut self, count: u64);
}

impl Each for Tally {
    #[inline(always)]
    fn bytes(&mut self, bytes: &[u8]) {
        Tally::bytes(self, bytes);
    }

    fn lost(&mut self, count: u64) {
        Tally::lost(self, count);
    }
}

/// Copies of all records of a poll.
pub(super) struct Sorted {
    pub tally: Tally,
    found: Vec<[u64; 8]>,
}

impl Each for Sorted {
    #[inline(always)]
    fn bytes(&mut self, bytes: &[u8]) {
        let word = |at: usize| u64::from_ne_bytes(bytes[8 * at..8 * at + 8].try_into().expect("eight bytes"));
        self.found.push(std::array::from_fn(word));
    }

    fn lost(&mut self, count: u64) {
        self.tally.lost(count);
    }
}

impl Sorted {
    pub fn new() -> Self {
        Self { tally: Tally::begin(), found: Vec::new() }
    }

    pub fn yield_all(&mut self) {
        self.found.sort_by_key(|words| words[0]);
        self.found.drain(..).for_each(|words| self.tally.event(words[0], words[0], words[1]));
    }
}

/// Woken when a quarter of a ring was written, and all rings read every 100 ms.
pub fn tuned(map: OwnedFd, start: &Start) -> Result<Seen> {
    unordered(&map, start, Stamps::None, start.sleep())
}

/// The same with the records that perfweave asks for: the kernel writes its time into each.
pub fn stamped(map: OwnedFd, start: &Start) -> Result<Seen> {
    unordered(&map, start, Stamps::Kernel, POLL)
}

/// All rings read every millisecond.
pub fn often(map: OwnedFd, start: &Start) -> Result<Seen> {
    unordered(&map, start, Stamps::None, Duration::from_millis(1))
}

fn unordered(map: &OwnedFd, start: &Start, stamps: Stamps, sleep: Duration) -> Result<Seen> {
    let mut buffer = Buffer::open(map, start.bytes, stamps, Tally::begin())?;
    *buffer.each() = start.ready(|| ());
    loop {
        let over = start.is_over();
        buffer.read(if over { Duration::ZERO } else { sleep })?;
        if over {
            return Ok(buffer.each().end());
        }
    }
}

/// The same, with the records of each poll copied and sorted by the program's time.
pub fn sorted(map: OwnedFd, start: &Start) -> Result<Seen> {
    let mut buffer = Buffer::open(&map, start.bytes, Stamps::None, Sorted::new())?;
    buffer.each().tally = start.ready(|| ());
    loop {
        let over = start.is_over();
        buffer.read(if over { Duration::ZERO } else { POLL })?;
        buffer.each().yield_all();
        if over {
            return Ok(buffer.each().tally.end());
        }
    }
}

/// Whether the kernel writes its time into each record.
#[derive(Clone, Copy, PartialEq)]
enum Stamps {
    None,
    Kernel,
}

/// `perf_buffer__new_raw()`, and what its callback counts in, which is its own.
struct Buffer<E: Each> {
    buffer: *mut sys::perf_buffer,
    each: *mut E,
}

impl<E: Each> Buffer<E> {
    fn open(map: &OwnedFd, bytes: usize, stamps: Stamps, each: E) -> Result<Self> {
        let mut attr = sys::perf_event_attr {
            type_: sys::PERF_TYPE_SOFTWARE,
            size: size_of::<sys::perf_event_attr>() as u32,
            config: sys::PERF_COUNT_SW_BPF_OUTPUT.into(),
            sample_type: sys::PERF_SAMPLE_RAW.into(),
            ..Default::default()
        };
        attr.__bindgen_anon_1.sample_period = 1;
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = bytes as u32 / 4;
        if stamps == Stamps::Kernel {
            attr.sample_type |= u64::from(sys::PERF_SAMPLE_TIME);
            attr.set_use_clockid(1);
            attr.clockid = libc::CLOCK_MONOTONIC;
        }
        let callback = if stamps == Stamps::Kernel { record::<E, 20> } else { record::<E, 12> };
        let pages = (bytes / perfweave_support::foreign::page_size()) as sys::size_t;
        let (each, options) = (Box::into_raw(Box::new(each)), std::ptr::null());
        // SAFETY: the attribute lives until the call returns; the callback is for what `each` points to.
        let buffer = unsafe {
            sys::perf_buffer__new_raw(map.as_raw_fd(), pages, &mut attr, Some(callback), each.cast(), options)
        };
        if buffer.is_null() {
            return Err(io::Error::last_os_error().into());
        }
        Ok(Self { buffer, each })
    }

    /// What the callback counts in.
    fn each(&mut self) -> &mut E {
        // SAFETY: made from a box; the callback runs only in `read`, which this borrow excludes.
        unsafe { &mut *self.each }
    }

    /// Sleeps until woken, at most this long, and reads all rings, also those without a wake-up.
    fn read(&mut self, sleep: Duration) -> Result<()> {
        if !sleep.is_zero() {
            // SAFETY: the buffer is open.
            let polled = unsafe { sys::perf_buffer__poll(self.buffer, sleep.as_millis() as c_int) };
            if polled < 0 && polled != -libc::EINTR {
                return Err(io::Error::from_raw_os_error(-polled).into());
            }
        }
        // SAFETY: the buffer is open.
        let consumed = unsafe { sys::perf_buffer__consume(self.buffer) };
        if consumed < 0 { Err(io::Error::from_raw_os_error(-consumed).into()) } else { Ok(()) }
    }
}

impl<E: Each> Drop for Buffer<E> {
    fn drop(&mut self) {
        // SAFETY: the buffer is open.
        unsafe { sys::perf_buffer__free(self.buffer) };
        // SAFETY: made from a box, and the callback is gone.
        drop(unsafe { Box::from_raw(self.each) });
    }
}

unsafe extern "C" fn record<E: Each, const PAYLOAD: usize>(
    each: *mut c_void,
    _cpu: c_int,
    header: *mut sys::perf_event_header,
) -> sys::bpf_perf_event_ret {
    // SAFETY: what the buffer was opened with.
    let each = unsafe { &mut *each.cast::<E>() };
    // SAFETY: a whole record, which libbpf has copied if its ring's end cut it.
    let (kind, size) = unsafe { ((*header).type_, usize::from((*header).size)) };
    // SAFETY: likewise, with its header.
    let bytes = unsafe { std::slice::from_raw_parts(header.cast::<u8>(), size) };
    match kind {
        // After the header, the time if there is one, and the length of the payload.
        sys::PERF_RECORD_SAMPLE => each.bytes(&bytes[PAYLOAD..]),
        sys::PERF_RECORD_LOST => each.lost(u64::from_ne_bytes(bytes[16..24].try_into().expect("eight bytes"))),
        _ => {}
    }
    sys::LIBBPF_PERF_EVENT_CONT
}
