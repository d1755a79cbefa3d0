//! The machine's clock `CLOCK_TAI`, whose offset from the wall clock a test may set. No program takes notice, and the
//! wall clock goes on.

use crate::lock;
use nix::fcntl::Flock;
use std::fs::File;
use std::io;

/// `CLOCK_TAI`, which this test alone may set. Dropped, it has its offset back.
#[derive(Debug)]
pub struct Tai {
    /// By how many seconds it was ahead of the wall clock.
    was: libc::c_int,
    _lock: Flock<File>,
}

impl Tai {
    /// Waits until no other test needs the clock.
    ///
    /// # Errors
    /// Without the right to set clocks (`CAP_SYS_TIME`).
    pub fn take() -> io::Result<Self> {
        let lock = lock::alone(lock::CLOCK)?;
        let was = adjust(0, 0)?;
        adjust(libc::ADJ_TAI, was.into())?;
        Ok(Self { was, _lock: lock })
    }

    /// Sets it so many seconds ahead of what it was.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set(&self, seconds: u32) -> io::Result<()> {
        adjust(libc::ADJ_TAI, libc::c_long::from(self.was) + libc::c_long::from(seconds)).map(drop)
    }
}

impl Drop for Tai {
    fn drop(&mut self) {
        // It was the offset before, so the kernel takes it.
        let _ = self.set(0);
    }
}

/// Calls adjtimex(2). Gives by how many seconds `CLOCK_TAI` is ahead.
fn adjust(modes: libc::c_uint, constant: libc::c_long) -> io::Result<libc::c_int> {
    // SAFETY: integers, of which any are a value.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    (timex.modes, timex.constant) = (modes, constant);
    // SAFETY: the kernel writes the struct, as long as it is.
    let answer = unsafe { libc::adjtimex(&mut timex) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(timex.tai) }
}
