//! A perf ring opened and mapped without perfweave, as libbpf does it.

use perf_event_open_sys::bindings as sys;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// The attribute of a software event that samples with a period.
pub fn software(config: u32, period: u64) -> sys::perf_event_attr {
    let size = size_of::<sys::perf_event_attr>() as u32;
    let (type_, config) = (sys::PERF_TYPE_SOFTWARE, config.into());
    let mut attr = sys::perf_event_attr { size, type_, config, ..sys::perf_event_attr::default() };
    attr.sample_period = period;
    attr
}

/// A BPF output event of one CPU, its ring mapped, enabled: what libbpf's `perf_buffer__open_cpu_buf` makes.
#[derive(Debug)]
pub struct ForeignRing {
    base: NonNull<u8>,
    len: usize,
    size: usize,
    event: OwnedFd,
}

// SAFETY: an address range of the process, and a descriptor; none belongs to a thread.
unsafe impl Send for ForeignRing {}

impl ForeignRing {
    /// Opens one with `PERF_SAMPLE_RAW` only, waking for every event.
    pub fn open(cpu: u32, size: usize) -> io::Result<Self> {
        Self::open_as(cpu, size, |_| ())
    }

    /// The same, with other settings.
    pub fn open_as(cpu: u32, size: usize, change: impl FnOnce(&mut sys::perf_event_attr)) -> io::Result<Self> {
        let mut attr = software(sys::PERF_COUNT_SW_BPF_OUTPUT, 1);
        attr.sample_type = sys::PERF_SAMPLE_RAW.into();
        attr.wakeup_events = 1;
        change(&mut attr);
        // SAFETY: the attribute is as long as it says.
        let fd = unsafe { perf_event_open_sys::perf_event_open(&mut attr, -1, cpu as i32, -1, 8) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new file descriptor.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        let len = page_size() + size;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("not at zero");
        Ok(Self { base, len, size, event })
    }

    /// Reads all records as libbpf's `perf_event_read_simple()` does, and gives their bytes back after the last one.
    ///
    /// # Panics
    /// If a record has no length.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) {
        // SAFETY: the header page is mapped as long as `self` lives.
        let [head, mut tail, ..] = unsafe { words(self.base) };
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        let mut bytes = Vec::new();
        while tail < head {
            let take = |bytes: &mut Vec<u8>, len: usize| {
                bytes.clear();
                bytes.extend((0..len).map(|at| {
                    let at = page_size() + ((tail as usize + at) & (self.size - 1));
                    // SAFETY: inside of the mapping, and the kernel leaves bytes before the head alone.
                    unsafe { self.base.as_ptr().add(at).read_volatile() }
                }));
            };
            take(&mut bytes, 8);
            let len = u16::from_ne_bytes([bytes[6], bytes[7]]);
            assert!(len >= 8, "a record of {len} bytes");
            take(&mut bytes, len.into());
            each(&bytes);
            tail += u64::from(len);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        // SAFETY: the second of the words, which the kernel reads and this process alone writes.
        unsafe { self.base.as_ptr().add(1032).cast::<u64>().write_volatile(tail) };
    }

    /// `perf_buffer__buffer()`: the header page, and the bytes of data behind it.
    pub fn buffer(&self) -> (NonNull<u8>, usize) {
        (self.base, self.size)
    }
}

impl AsFd for ForeignRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for ForeignRing {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`, whole.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Puts an event into its slot of a perf event array.
pub fn set_slot(map: &crate::bpf::Map, cpu: u32, event: impl AsFd) -> io::Result<()> {
    map.update(cpu, &event.as_fd().as_raw_fd().to_ne_bytes())
}

/// The two shared words of a ring, and its data: `data_head`, `data_tail`, `data_offset`, `data_size`.
///
/// # Safety
/// `base` must be a mapped ring's header page.
pub unsafe fn words(base: NonNull<u8>) -> [u64; 4] {
    // SAFETY: offsets of the kernel's struct.
    std::array::from_fn(|n| unsafe { base.as_ptr().add(1024 + 8 * n).cast::<u64>().read_volatile() })
}

/// A copy of a ring's data area.
///
/// # Safety
/// `base` must be a mapped ring's header page with `size` bytes of data behind it.
pub unsafe fn data(base: NonNull<u8>, size: usize) -> Vec<u8> {
    // SAFETY: the caller's word.
    let data = unsafe { base.as_ptr().add(page_size()) };
    // SAFETY: as above.
    (0..size).map(|at| unsafe { data.add(at).read_volatile() }).collect()
}

/// Bytes of a page.
pub fn page_size() -> usize {
    // SAFETY: reads a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}
