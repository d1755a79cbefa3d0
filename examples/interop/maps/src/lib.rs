//! The lines that hand a map over to perfweave, for each library. They are compiled and not run: the other two folders
//! run them. `bpf_output` takes `impl AsFd`. It duplicates the file descriptor, so the map may be dropped afterwards.

use libbpf_rs::MapCore;
use perfweave::{Ring, RingOptions, Rings};
use std::error::Error;
use std::os::fd::BorrowedFd;

/// aya 0.14: the map as the program object has it, before it becomes a `PerfEventArray`, which hides its descriptor.
pub fn from_aya_0_14(ebpf: &aya_0_14::Ebpf) -> Result<RingOptions, Box<dyn Error>> {
    let Some(aya_0_14::maps::Map::PerfEventArray(events)) = ebpf.map("EVENTS") else { return Err("no EVENTS".into()) };
    Ok(Rings::options().bpf_output(events.fd()))
}

/// aya 0.13: the same.
pub fn from_aya_0_13(ebpf: &aya_0_13::Ebpf) -> Result<RingOptions, Box<dyn Error>> {
    let Some(aya_0_13::maps::Map::PerfEventArray(events)) = ebpf.map("EVENTS") else { return Err("no EVENTS".into()) };
    Ok(Rings::options().bpf_output(events.fd()))
}

/// libbpf-rs: the map of an object or a skeleton is `AsFd`.
pub fn from_libbpf_rs(object: &libbpf_rs::Object) -> Result<RingOptions, Box<dyn Error>> {
    let events = object.maps().find(|map| map.name() == "events").ok_or("no events")?;
    Ok(Rings::options().bpf_output(&events))
}

/// Any file descriptor of such a map: of a library in another language, or one that came through a socket.
pub fn from_descriptor(map: BorrowedFd<'_>) -> RingOptions {
    Rings::options().bpf_output(map)
}

/// A map of any program that is pinned in a BPF file system.
pub fn from_path() -> RingOptions {
    Rings::options().bpf_output_pinned("/sys/fs/bpf/events")
}

/// A BPF ring buffer of aya 0.14, in place of its `RingBuf`. With the CPU and [`perfweave::Layout::RING_BUFFER`], each
/// ring is for `Rings::add`.
///
/// # Safety
/// Nobody else reads the map.
pub unsafe fn buffer_from_aya_0_14(ebpf: &aya_0_14::Ebpf) -> Result<Vec<(u32, Ring)>, Box<dyn Error>> {
    let Some(aya_0_14::maps::Map::RingBuf(buffer)) = ebpf.map("BUFFER") else { return Err("no BUFFER".into()) };
    // SAFETY: this function's contract is the same.
    Ok(unsafe { Ring::adopt_ring_buffers(buffer.fd()) }?)
}

/// aya 0.13: the same.
///
/// # Safety
/// Nobody else reads the map.
pub unsafe fn buffer_from_aya_0_13(ebpf: &aya_0_13::Ebpf) -> Result<Vec<(u32, Ring)>, Box<dyn Error>> {
    let Some(aya_0_13::maps::Map::RingBuf(buffer)) = ebpf.map("BUFFER") else { return Err("no BUFFER".into()) };
    // SAFETY: this function's contract is the same.
    Ok(unsafe { Ring::adopt_ring_buffers(buffer.fd()) }?)
}

/// libbpf-rs: also a map of maps with a ring buffer for each CPU.
///
/// # Safety
/// Nobody else reads the map, or the maps in it.
pub unsafe fn buffer_from_libbpf_rs(object: &libbpf_rs::Object) -> Result<Vec<(u32, Ring)>, Box<dyn Error>> {
    let buffer = object.maps().find(|map| map.name() == "buffer").ok_or("no buffer")?;
    // SAFETY: this function's contract is the same.
    Ok(unsafe { Ring::adopt_ring_buffers(&buffer) }?)
}
