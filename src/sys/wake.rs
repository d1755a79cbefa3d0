//! The eventfd that wakes a reader.

#[cfg(not(all(test, loom)))]
use nix::errno::Errno;
#[cfg(not(all(test, loom)))]
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
#[cfg(not(all(test, loom)))]
use std::{os::fd::AsFd, time::Duration};

/// An eventfd that becomes readable when it is woken. The reader waits for edges in epoll and never reads it.
#[derive(Debug)]
pub(crate) struct Wake {
    fd: Arc<OwnedFd>,
    /// The same for the model checker, which knows no file descriptors.
    #[cfg(all(test, loom))]
    model: loom::sync::Notify,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self {
            fd: Arc::new(fd.into()),
            #[cfg(all(test, loom))]
            model: loom::sync::Notify::new(),
        })
    }

    pub(crate) fn wake(&self) {
        #[cfg(all(test, loom))]
        self.model.notify();
        // An eventfd is full only at 2^64, and is readable then too.
        let _ = unistd::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Sleeps until it is woken, or for `millis` milliseconds.
    #[cfg(not(all(test, loom)))]
    pub(crate) fn sleep(&self, millis: u8) {
        let mut poll = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        // A wake for another reason, or a signal: the caller checks again.
        match nix::poll::poll(&mut poll, PollTimeout::from(millis)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => drop(unistd::read(&self.fd, &mut [0; 8])),
            // Without it nothing wakes the thread.
            Err(_) => std::thread::sleep(Duration::from_millis(millis.into())),
        }
    }

    /// In a model, which has no time, until it is woken.
    #[cfg(all(test, loom))]
    pub(crate) fn sleep(&self, _: u8) {
        self.model.wait();
    }

    /// What becomes readable.
    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }
}
