//! What `order` asks of the kernel that no safe library has: bpf(2) on maps of another process, memory that is shared
//! with the kernel, and the pause of a ring. All unsafe code of the command is here.

use crate::instructions::Code;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use perf_event_open_sys::bindings::perf_event_mmap_page;
use std::ffi::c_void;
use std::io;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

// enum bpf_cmd
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;

// enum bpf_map_type, enum bpf_prog_type
const ARRAY: u32 = 2;
const PERF_EVENT_ARRAY: u32 = 4;
const RAW_TRACEPOINT: u32 = 17;

/// `BPF_F_MMAPABLE`
const MAPPABLE: u32 = 1 << 10;
/// `BPF_F_TEST_RUN_ON_CPU`
const ON_CPU: u32 = 1;

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct MapElem {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
}

/// # Safety
/// Pointers in `attr` are good for what the command does with them.
unsafe fn bpf<A>(command: libc::c_int, attr: &mut A) -> io::Result<i32> {
    // SAFETY: `attr` is as long as is said, and the caller vouches for what it points to.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<A>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as i32) }
}

/// A new descriptor that the kernel has given.
fn owned(fd: i32) -> OwnedFd {
    // SAFETY: only called with what the kernel has just opened for this process.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn create(map_type: u32, value_size: u32, max_entries: u32, map_flags: u32) -> io::Result<OwnedFd> {
    let mut attr = MapCreate { map_type, key_size: 4, value_size, max_entries, map_flags };
    // SAFETY: the command reads no pointer.
    unsafe { bpf(MAP_CREATE, &mut attr) }.map(owned)
}

/// A `BPF_MAP_TYPE_PERF_EVENT_ARRAY` with so many slots.
pub fn perf_event_array(slots: u32) -> io::Result<OwnedFd> {
    create(PERF_EVENT_ARRAY, 4, slots, 0)
}

/// A `BPF_MAP_TYPE_ARRAY` of one element, which can be mapped.
pub fn shared_array(bytes: u32) -> io::Result<OwnedFd> {
    create(ARRAY, bytes, 1, MAPPABLE)
}

/// Puts an event into a slot of a `BPF_MAP_TYPE_PERF_EVENT_ARRAY`. The slot keeps it as long as the file of the map's
/// descriptor is open.
pub fn set_slot(map: impl AsFd, slot: u32, event: impl AsFd) -> io::Result<()> {
    let value = event.as_fd().as_raw_fd();
    let mut attr = MapElem {
        map_fd: map.as_fd().as_raw_fd() as u32,
        key: std::ptr::from_ref(&slot) as u64,
        value: std::ptr::from_ref(&value) as u64,
        ..MapElem::default()
    };
    // SAFETY: keys and values of this kind of map have four bytes, as key and value have. They live until the call
    // returns. The kernel refuses a value that is no event.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// A BPF program that is run when it is told to, and is attached to nothing.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads a program of raw tracepoints. Signals may disturb the verifier: it is tried again, but not for ever.
    pub fn load(code: &Code) -> io::Result<Self> {
        let mut log = vec![0u8; 1 << 16];
        let mut attr = ProgLoad {
            prog_type: RAW_TRACEPOINT,
            insn_cnt: code.bytes.len() as u32,
            insns: code.bytes.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            ..ProgLoad::default()
        };
        for _ in 0..16 {
            // SAFETY: instructions, licence and log live until the call returns, and are as long as is said.
            match unsafe { bpf(PROG_LOAD, &mut attr) } {
                Ok(fd) => return Ok(Self(owned(fd))),
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(error) if attr.log_level > 0 || error.raw_os_error() == Some(libc::EPERM) => {
                    let said = String::from_utf8_lossy(&log);
                    let last = said.trim_end_matches('\0').lines().rev().take(3).collect::<Vec<_>>().join("; ");
                    return Err(io::Error::new(error.kind(), format!("{error} {last}").trim_end().to_owned()));
                }
                Err(_) => {
                    (attr.log_level, attr.log_size, attr.log_buf) = (1, log.len() as u32, log.as_mut_ptr() as u64)
                }
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Runs it on a CPU with these arguments, and gives what it returns.
    pub fn run(&self, cpu: u32, arguments: [u64; 2]) -> io::Result<u32> {
        let mut attr = TestRun {
            prog_fd: self.0.as_raw_fd() as u32,
            ctx_size_in: size_of_val(&arguments) as u32,
            ctx_in: arguments.as_ptr() as u64,
            flags: ON_CPU,
            cpu,
            ..TestRun::default()
        };
        // SAFETY: the kernel copies the arguments, which are as long as is said, before the call returns.
        unsafe { bpf(PROG_TEST_RUN, &mut attr) }.map(|_| attr.retval)
    }
}

/// Keeps output from the ring of an event (true), or lets it in again. What is kept out counts as lost.
pub fn pause(event: impl AsFd, paused: bool) -> io::Result<()> {
    let event = event.as_fd().as_raw_fd();
    // SAFETY: the argument is a number.
    let answer = unsafe { perf_event_open_sys::ioctls::PAUSE_OUTPUT(event, u32::from(paused)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The number of an event, which all descriptors of it give.
pub fn number(event: impl AsFd) -> io::Result<u64> {
    let mut number = 0;
    // SAFETY: the kernel writes eight bytes, into a word that lives until the call returns.
    let answer = unsafe { perf_event_open_sys::ioctls::ID(event.as_fd().as_raw_fd(), &raw mut number) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
}

/// Memory that is shared with the kernel, for as long as this lives.
#[derive(Debug)]
struct Shared {
    base: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: an address range of the process, not of a thread. It is accessed through `&mut self`, or atomically.
unsafe impl Send for Shared {}

impl Shared {
    fn map(fd: BorrowedFd<'_>, bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, 0) }?;
        Ok(Self { base, bytes })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nothing borrows it any more.
        let _ = unsafe { munmap(self.base, self.bytes) };
    }
}

/// The element of a [`shared_array`], which a BPF program reads while it runs.
#[derive(Debug)]
pub struct Element(Shared);

impl Element {
    pub fn map(array: impl AsFd, bytes: usize) -> io::Result<Self> {
        let page = crate::order::ring::page();
        let all = bytes.next_multiple_of(page);
        Shared::map(array.as_fd(), all, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).map(Self)
    }

    /// Its bytes. The program that reads them runs only while [`Program::run`] does.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is as long as is said, lives as long as `self`, and no other code of this process has its
        // address. The kernel reads it, and writes nothing.
        unsafe { std::slice::from_raw_parts_mut(self.0.base.as_ptr().cast(), self.0.bytes) }
    }
}

/// The ring of an event of another process, mapped to be read.
#[derive(Debug)]
pub struct Memory(Shared);

impl Memory {
    /// Maps a ring of so many bytes, its page of positions among them. `EINVAL` if it has another size.
    pub fn map(event: impl AsFd, bytes: usize) -> io::Result<Self> {
        Shared::map(event.as_fd(), bytes, ProtFlags::PROT_READ).map(Self)
    }

    fn word(&self, offset: usize) -> u64 {
        // SAFETY: offsets of 64-bit words of the first page, which is mapped, aligned to its size.
        let word = unsafe { self.0.base.cast::<AtomicU64>().byte_add(offset).as_ref() };
        word.load(Ordering::Acquire)
    }

    /// Where the kernel writes next.
    pub fn head(&self) -> u64 {
        self.word(offset_of!(perf_event_mmap_page, data_head))
    }

    /// Up to where the other process has read.
    pub fn tail(&self) -> u64 {
        self.word(offset_of!(perf_event_mmap_page, data_tail))
    }

    /// Where its data begin, and how many bytes they are.
    pub fn data(&self) -> (usize, usize) {
        let at = self.word(offset_of!(perf_event_mmap_page, data_offset)) as usize;
        let size = self.word(offset_of!(perf_event_mmap_page, data_size)) as usize;
        (at, size)
    }

    /// The eight bytes at an offset of the mapping, as they are now. `None` outside of it.
    pub fn eight(&self, offset: usize) -> Option<[u8; 8]> {
        let inside = offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.0.bytes);
        inside.then(|| self.word(offset).to_ne_bytes())
    }
}
