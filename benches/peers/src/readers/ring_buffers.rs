//! BPF ring buffers, read by all.
//!
//! The kernel wakes a reader that has caught up with the record, and no other. Those that poll here sleep until they
//! are woken, at most [`POLL`]; the others sleep for a fixed time.

use super::libbpf::{self, Each, Sorted};
use super::perfweave::{begin_with, by_next, drained};
use super::{POLL, Start, wait};
use crate::Result;
use crate::tally::{Seen, Tally};
use aya::maps::{Map, MapData, RingBuf};
use libbpf_rs::{MapHandle, RingBufferBuilder};
use libbpf_sys as sys;
use nix::poll::{PollFd, PollFlags};
use perfweave::{Clock, Hold, Key, Layout, Order, Ring, Rings};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

fn open(map: &OwnedFd, start: &Start) -> Result<Rings> {
    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: nobody else reads the map.
    for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(map) }? {
        rings.add(cpu, ring, Layout::RING_BUFFER);
    }
    rings.count_failures(&start.words)?;
    Ok(rings)
}

/// perfweave, without order.
pub fn drain(map: OwnedFd, start: &Start, sleep: Duration) -> Result<Seen> {
    drained(open(&map, start)?, start, |fds| rest(fds, sleep))
}

/// perfweave, one by one, by the program's time.
pub fn next(map: OwnedFd, start: &Start, hold: Hold) -> Result<Seen> {
    let order = super::perfweave::within(Order::new().key(Key::Payload(0)).hold(hold), start.latency);
    by_next(begin_with(open(&map, start)?, start, order)?)
}

/// The same without sleep.
pub fn spinning(map: OwnedFd, start: &Start, hold: Hold) -> Result<Seen> {
    let order = Order::new().key(Key::Payload(0)).hold(hold).spin(Duration::MAX);
    by_next(begin_with(open(&map, start)?, start, order)?)
}

/// libbpf: waits, and takes what is there from each ring (`ring_buffer__consume`).
pub fn libbpf(start: &Start, sleep: Duration) -> Result<Seen> {
    let mut buffer = Buffer::open(&start.rings, Tally::begin())?;
    *buffer.each() = start.ready(|| ());
    loop {
        let over = start.is_over();
        buffer.consume()?;
        if over {
            return Ok(buffer.each().end());
        }
        buffer.wait(sleep)?;
    }
}

/// The same, what each turn found copied and sorted by the program's time.
pub fn sorted(start: &Start) -> Result<Seen> {
    let mut buffer = Buffer::open(&start.rings, Sorted::new())?;
    buffer.each().tally = start.ready(|| ());
    loop {
        let over = start.is_over();
        buffer.consume()?;
        buffer.each().yield_all();
        if over {
            return Ok(buffer.each().tally.end());
        }
        buffer.wait(POLL)?;
    }
}

/// libbpf-rs, as its documentation has it.
pub fn libbpf_rs(start: &Start) -> Result<Seen> {
    let maps =
        start.rings.iter().map(|ring| Ok(MapHandle::from_map_id(libbpf::id(ring)?)?)).collect::<Result<Vec<_>>>()?;
    let tally = RefCell::new(None::<Tally>);
    let mut builder = RingBufferBuilder::new();
    for map in &maps {
        builder.add(map, |bytes: &[u8]| {
            if let Some(tally) = tally.borrow_mut().as_mut() {
                tally.bytes(bytes);
            }
            0
        })?;
    }
    let buffer = builder.build()?;
    *tally.borrow_mut() = Some(start.ready(|| ()));
    while !start.is_over() {
        buffer.poll(POLL)?;
    }
    buffer.consume()?;
    drop(buffer);
    Ok(tally.into_inner().expect("it was begun").end())
}

/// aya: each ring to its end, then it waits.
pub fn aya(start: &Start) -> Result<Seen> {
    let open = |ring: &OwnedFd| -> Result<_> {
        Ok(RingBuf::try_from(Map::from_map_data(MapData::from_fd(ring.try_clone()?)?)?)?)
    };
    let mut rings = start.rings.iter().map(open).collect::<Result<Vec<_>>>()?;
    let mut tally = start.ready(|| ());
    loop {
        let over = start.is_over();
        for ring in &mut rings {
            while let Some(item) = ring.next() {
                tally.bytes(&item);
            }
        }
        if over {
            return Ok(tally.end());
        }
        let mut fds: Vec<_> = rings.iter().map(|ring| PollFd::new(ring.as_fd(), PollFlags::POLLIN)).collect();
        wait(&mut fds, POLL)?;
    }
}

/// Sleeps until woken, at most so long. For less than [`POLL`] without being woken.
fn rest(fds: &mut [PollFd<'_>], time: Duration) -> Result<()> {
    if time < POLL {
        std::thread::sleep(time);
        return Ok(());
    }
    wait(fds, time)
}

/// `ring_buffer__new()`, and what its callback counts in, which is its own.
struct Buffer<E: Each> {
    buffer: *mut sys::ring_buffer,
    each: *mut E,
}

impl<E: Each> Buffer<E> {
    fn open(rings: &[OwnedFd], each: E) -> Result<Self> {
        let (each, options) = (Box::into_raw(Box::new(each)), std::ptr::null());
        let mut opened = Self { buffer: std::ptr::null_mut(), each };
        for ring in rings {
            let (fd, callback) = (ring.as_raw_fd(), Some(record::<E> as _));
            if opened.buffer.is_null() {
                // SAFETY: the callback is for what `each` points to.
                opened.buffer = unsafe { sys::ring_buffer__new(fd, callback, each.cast(), options) };
                if opened.buffer.is_null() {
                    return Err(io::Error::last_os_error().into());
                }
                continue;
            }
            // SAFETY: likewise, and the buffer is open.
            let added = unsafe { sys::ring_buffer__add(opened.buffer, fd, callback, each.cast()) };
            checked(added)?;
        }
        Ok(opened)
    }

    /// What the callback counts in.
    fn each(&mut self) -> &mut E {
        // SAFETY: made from a box; the callback runs only in `consume`, which this borrow excludes.
        unsafe { &mut *self.each }
    }

    /// Takes what is in the rings.
    fn consume(&mut self) -> Result<()> {
        // SAFETY: the buffer is open.
        checked(unsafe { sys::ring_buffer__consume(self.buffer) })
    }

    fn wait(&self, most: Duration) -> Result<()> {
        // SAFETY: the buffer is open, and its epoll instance with it.
        let epoll = unsafe { std::os::fd::BorrowedFd::borrow_raw(sys::ring_buffer__epoll_fd(self.buffer)) };
        rest(&mut [PollFd::new(epoll, PollFlags::POLLIN)], most)
    }
}

fn checked(said: c_int) -> Result<()> {
    if said < 0 { Err(io::Error::from_raw_os_error(-said).into()) } else { Ok(()) }
}

impl<E: Each> Drop for Buffer<E> {
    fn drop(&mut self) {
        // SAFETY: the buffer is open, or null.
        unsafe { sys::ring_buffer__free(self.buffer) };
        // SAFETY: made from a box, and the callback is gone.
        drop(unsafe { Box::from_raw(self.each) });
    }
}

unsafe extern "C" fn record<E: Each>(each: *mut c_void, data: *mut c_void, len: sys::size_t) -> c_int {
    // SAFETY: what the buffer was opened with.
    let each = unsafe { &mut *each.cast::<E>() };
    // SAFETY: what the program submitted, in one piece.
    each.bytes(unsafe { std::slice::from_raw_parts(data.cast(), len as usize) });
    0
}
