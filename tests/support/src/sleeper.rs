//! Memory whose reader sleeps until it is woken: what a sleepable BPF program sleeps on (`userfaultfd(2)`).

use crate::foreign::page_size;
use crate::threads::{AtEnd, GUARD};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

/// Linux's `_IOWR(UFFDIO, number, size)`.
const fn request(number: u64, size: u64) -> u64 {
    3 << 30 | size << 16 | 0xaa << 8 | number
}

const API: u64 = request(0x3f, 24);
const REGISTER: u64 = request(0x00, 32);
const ZEROPAGE: u64 = request(0x04, 32);

/// A page that is not there yet.
#[derive(Debug)]
pub struct Sleeper {
    faults: File,
    page: *mut libc::c_void,
}

// SAFETY: nobody reads the page but the kernel.
unsafe impl Send for Sleeper {}
// SAFETY: as above, and files can be shared.
unsafe impl Sync for Sleeper {}

impl Sleeper {
    /// Makes one.
    ///
    /// # Errors
    /// If the kernel has no userfaultfd, or not for this user.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new file descriptor.
        let faults = unsafe { File::from_raw_fd(fd as i32) };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), page_size(), protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let sleeper = Self { faults, page };
        sleeper.ask(API, &mut [0xaa, 0, 0])?;
        // UFFDIO_REGISTER_MODE_MISSING
        sleeper.ask(REGISTER, &mut [sleeper.address(), page_size() as u64, 1, 0])?;
        Ok(sleeper)
    }

    fn ask<const WORDS: usize>(&self, request: u64, words: &mut [u64; WORDS]) -> io::Result<()> {
        // SAFETY: as many bytes as the request says.
        let answer = unsafe { libc::ioctl(self.faults.as_raw_fd(), request, words.as_mut_ptr()) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Where to read.
    pub fn address(&self) -> u64 {
        self.page as u64
    }

    /// Waits until somebody reads, and so sleeps. Dropping the answer wakes it ([`Sleeper::wake`]).
    ///
    /// # Panics
    /// If nobody does within [`GUARD`].
    pub fn until_asleep(&self) -> AtEnd<impl FnMut()> {
        assert!(self.asleep_within(GUARD), "nobody sleeps");
        AtEnd(|| self.wake())
    }

    /// Waits until somebody reads, and so sleeps, but no longer than so long. Says so once.
    pub fn asleep_within(&self, time: Duration) -> bool {
        let mut faults = libc::pollfd { fd: self.faults.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor.
        unsafe { libc::poll(&raw mut faults, 1, time.as_millis() as i32) };
        (&self.faults).read_exact(&mut [0; 32]).is_ok()
    }

    /// Lets the reader go on. It reads zeros, and so do later ones, who do not sleep.
    ///
    /// # Panics
    /// If it was done before.
    pub fn wake(&self) {
        self.ask(ZEROPAGE, &mut [self.address(), page_size() as u64, 0, 0]).expect("a page of zeros");
    }

    /// The next reader sleeps again.
    pub fn again(&self) {
        // SAFETY: mapped in `new`, and nobody but the kernel reads it.
        let answer = unsafe { libc::madvise(self.page, page_size(), libc::MADV_DONTNEED) };
        assert_eq!(answer, 0);
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Wakes a reader that is left, who finds no page.
        // SAFETY: mapped in `new`, and nobody keeps its address.
        unsafe { libc::munmap(self.page, page_size()) };
    }
}
