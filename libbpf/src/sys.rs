//! Calls of the kernel: perf events, maps, memory and epoll.

use crate::border::{Failed, errno};
use perf_event_open_sys::bindings as perf;
use std::ffi::{c_int, c_long, c_ulong};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

fn checked(said: c_long) -> Result<c_int, Failed> {
    if said < 0 { Err(errno()) } else { Ok(said as c_int) }
}

/// A new descriptor of this process.
fn owned(said: c_long) -> Result<OwnedFd, Failed> {
    // SAFETY: the kernel has just made it, and nobody else has it.
    checked(said).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn page_size() -> usize {
    // SAFETY: asks only.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

// Perf events. The codes are those of perf_event_open(2), "perf_event ioctl calls".

const ENABLE: c_ulong = 0x2400;
const DISABLE: c_ulong = 0x2401;
const SET_OUTPUT: c_ulong = 0x2405;
const ID: c_ulong =
    if cfg!(any(target_arch = "powerpc64", target_arch = "mips64")) { 0x4008_2407 } else { 0x8008_2407 };

pub(crate) fn open_event(attr: &perf::perf_event_attr, pid: c_int, cpu: c_int) -> Result<OwnedFd, Failed> {
    let flags = c_ulong::from(perf::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: `attr.size` bytes are there: callers set it to the size of the struct at most.
    owned(unsafe { libc::syscall(libc::SYS_perf_event_open, std::ptr::from_ref(attr), pid, cpu, -1, flags) })
}

fn control(event: &OwnedFd, code: c_ulong, word: c_ulong) -> Result<(), Failed> {
    // SAFETY: these codes take a number, or a pointer that the caller gives.
    checked(unsafe { libc::ioctl(event.as_raw_fd(), code as _, word) }.into()).map(drop)
}

pub(crate) fn enable(event: &OwnedFd) -> Result<(), Failed> {
    control(event, ENABLE, 0)
}

pub(crate) fn disable(event: &OwnedFd) {
    // It ends with its last descriptor anyway.
    let _ = control(event, DISABLE, 0);
}

/// Makes an event write into the ring of another of its CPU.
pub(crate) fn redirect(event: &OwnedFd, owner: &OwnedFd) -> Result<(), Failed> {
    control(event, SET_OUTPUT, owner.as_raw_fd() as c_ulong)
}

pub(crate) fn id(event: &OwnedFd) -> Result<u64, Failed> {
    let mut id = 0_u64;
    control(event, ID, &raw mut id as c_ulong)?;
    Ok(id)
}

/// What an event has lost, if `read_format` is PERF_FORMAT_LOST alone: it follows the event's own count.
pub(crate) fn lost(event: &OwnedFd) -> Option<u64> {
    let mut words = [0_u64; 2];
    let size = size_of_val(&words);
    // SAFETY: room for two words.
    let read = unsafe { libc::read(event.as_raw_fd(), words.as_mut_ptr().cast(), size) };
    (read == size as isize).then_some(words[1])
}

/// Memory of an event's ring or of a map.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: memory of the process, not of a thread.
unsafe impl Send for Mapping {}
// SAFETY: it is used by atomic words, or by who alone reads the ring.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(fd: RawFd, len: usize, writable: bool, offset: usize) -> Result<Self, Failed> {
        let access = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping, where the kernel wants it.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, offset as libc::off_t) };
        if base == libc::MAP_FAILED {
            return Err(errno());
        }
        NonNull::new(base.cast()).map(|base| Self { base, len }).ok_or(libc::ENOMEM)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// A word that the kernel or another thread writes.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: callers give the offset of a word of the first page.
        let word = unsafe { self.base.add(offset) };
        // SAFETY: mapped while `self` lives, aligned, and shared by atomic words alone.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }

    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and whoever had pointers into it is gone: see where it is kept.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// Maps of BPF programs: bpf(2).

const UPDATE: c_int = 2;
const DELETE: c_int = 3;
const INFO: c_int = 15;

/// Of `union bpf_attr`, that of elements.
#[repr(C)]
#[derive(Default)]
struct Element {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct InfoAsked {
    map: u32,
    len: u32,
    info: u64,
}

/// The begin of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct MapInfo {
    pub(crate) kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    pub(crate) max_entries: u32,
    flags: u32,
}

pub(crate) const PERF_EVENT_ARRAY: u32 = 4;
pub(crate) const RINGBUF: u32 = 27;

fn bpf<T>(command: c_int, asked: &T) -> Result<c_int, Failed> {
    // SAFETY: a whole attribute, whose pointers lead to what lives through the call.
    checked(unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(asked), size_of::<T>()) })
}

pub(crate) fn map_info(map: c_int) -> Result<MapInfo, Failed> {
    let mut info = MapInfo::default();
    let asked = InfoAsked { map: map as u32, len: size_of::<MapInfo>() as u32, info: &raw mut info as u64 };
    bpf(INFO, &asked)?;
    Ok(info)
}

pub(crate) fn set_slot(map: &OwnedFd, key: u32, event: RawFd) -> Result<(), Failed> {
    let (map, key, value) = (map.as_raw_fd() as u32, &raw const key as u64, &raw const event as u64);
    bpf(UPDATE, &Element { map, key, value, ..Element::default() }).map(drop)
}

pub(crate) fn empty_slot(map: &OwnedFd, key: u32) {
    let (map, key) = (map.as_raw_fd() as u32, &raw const key as u64);
    // As libbpf: a slot that is empty already is no error.
    let _ = bpf(DELETE, &Element { map, key, ..Element::default() });
}

// Descriptors.

pub(crate) fn duplicate(fd: c_int) -> Result<OwnedFd, Failed> {
    // SAFETY: a number; the kernel checks it.
    owned(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) }.into())
}

/// Puts a descriptor in the place of another, whose number the tool has.
pub(crate) fn replace(new: OwnedFd, old: &OwnedFd) -> Result<(), Failed> {
    // SAFETY: both are open and ours.
    checked(unsafe { libc::dup3(new.as_raw_fd(), old.as_raw_fd(), libc::O_CLOEXEC) }.into()).map(drop)
}

pub(crate) fn epoll() -> Result<OwnedFd, Failed> {
    // SAFETY: takes a flag.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }.into())
}

/// epoll_ctl(2) itself: the function of that name is ours.
pub(crate) fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> Result<(), Failed> {
    // SAFETY: the kernel checks the pointer.
    checked(unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, event) }).map(drop)
}

/// Watches a descriptor.
pub(crate) fn watch(epoll: c_int, fd: c_int, data: u64) -> Result<(), Failed> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: data };
    epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event)
}

/// How many of the watched are ready. `EINTR` for a signal.
pub(crate) fn epoll_wait(epoll: c_int, ready: &mut [libc::epoll_event], timeout: c_int) -> Result<usize, Failed> {
    let most = ready.len() as c_int;
    // The function and not the call, as libbpf: threads can be cancelled there.
    let real = crate::interpose::next_epoll_wait();
    // SAFETY: room for so many.
    let count = unsafe { real(epoll, ready.as_mut_ptr(), most, timeout) };
    checked(count.into()).map(|count| count as usize)
}
