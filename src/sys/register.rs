//! Registering file descriptors with tokio.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A file descriptor that wakes tasks when it becomes readable.
#[derive(Debug)]
pub(crate) struct Registered(AsyncFd<Arc<OwnedFd>>);

impl Registered {
    /// Registers with the current runtime.
    ///
    /// # Panics
    /// If there is no runtime, or it was built without I/O.
    pub(crate) fn new(fd: Arc<OwnedFd>) -> io::Result<Self> {
        // SAFETY: the Arc keeps the descriptor open for as long as it is registered, and an OwnedFd never changes its
        // number.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(registered?))
    }

    /// Whether it has become readable since the last call. The task is woken when it becomes readable again. An error
    /// if that will never happen: it has hung up, or cannot be waited for.
    pub(crate) fn take_wake(&self, cx: &mut Context<'_>) -> Result<bool, Option<io::Error>> {
        let mut woken = false;
        while let Poll::Ready(guard) = self.0.poll_read_ready(cx) {
            let mut guard = guard.map_err(Some)?;
            if guard.ready().is_read_closed() {
                return Err(None);
            }
            guard.clear_ready();
            woken = true;
        }
        Ok(woken)
    }

    pub(crate) fn is(&self, fd: &Arc<OwnedFd>) -> bool {
        Arc::ptr_eq(self.0.get_ref(), fd)
    }
}
