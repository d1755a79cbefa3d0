//! A reader that gives everything that is there when it is asked, proven, or what is proven already.
//!
//! `Reader::settle` does the first in one call. Here it is taken apart, because callbacks must not run inside of a
//! `catch_unwind`, nor with signals blocked, and because a tool must not hang if a proof never ends.

use crate::border::{Failed, failed, guarded};
use crate::say::say;
use crate::signals::{Quiet, quietly};
use perfweave::{Event, Handle, Item, Order, Reader, Rings};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// A proof that has not ended by then is given up: its events come with a later call.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Settler {
    pub(crate) reader: Reader,
    handle: Handle,
    /// The end of a flush is to come that a call has not waited for.
    is_flushing: bool,
    /// A step has panicked: nobody knows what it left half done.
    is_broken: bool,
}

impl Settler {
    pub(crate) fn new(rings: Rings, order: Order) -> Result<Self, Failed> {
        // Its threads take no signals of the tool.
        let reader =
            guarded(|| quietly(|| Reader::new(rings, order)))?.map_err(|error| told("make a reader", &error))?;
        let handle = reader.handle();
        Ok(Self { reader, handle, is_flushing: false, is_broken: false })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.reader.as_fd().as_raw_fd()
    }

    /// Whether the last call left events that were there for it.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.is_flushing
    }

    /// Runs a call, unless an earlier one has ended in a fault of this library.
    fn unbroken<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T, Failed>) -> Result<T, Failed> {
        let said = if self.is_broken { Err(libc::ENOTRECOVERABLE) } else { call(self) };
        self.is_broken = matches!(said, Err(libc::ENOTRECOVERABLE));
        said
    }

    /// Gives everything that is in the rings now, in proven order, until the function breaks.
    pub(crate) fn settle<B>(&mut self, each: impl FnMut(Event<'_>) -> ControlFlow<B>) -> Result<Option<B>, Failed> {
        self.unbroken(|settler| settler.all(each))
    }

    fn all<B>(&mut self, mut each: impl FnMut(Event<'_>) -> ControlFlow<B>) -> Result<Option<B>, Failed> {
        // What a call has left comes first, and ends with its own end.
        if self.is_flushing
            && let Some(broke) = self.rest(&mut each)?
        {
            return Ok(Some(broke));
        }
        guarded(|| self.handle.flush())?.map_err(|error| told("flush", &error))?;
        self.is_flushing = true;
        self.rest(&mut each)
    }

    /// Gives what comes before the end of the flush.
    fn rest<B>(&mut self, each: &mut impl FnMut(Event<'_>) -> ControlFlow<B>) -> Result<Option<B>, Failed> {
        let begin = Instant::now();
        let mut quiet = Quiet::new();
        while begin.elapsed() < PATIENCE {
            let reader = &mut self.reader;
            let batch = match guarded(|| quiet.wait(|| reader.batch(Duration::from_secs(1))))? {
                Ok(Some(batch)) => batch,
                Ok(None) => return Ok(None),
                // The reader goes on, but not in a child of fork(2).
                Err(error) => match told("read", &error) {
                    libc::ECHILD => return Err(libc::ECHILD),
                    _ => continue,
                },
            };
            let mut batch = batch;
            while let Some(event) = guarded(|| batch.next())? {
                if matches!(event.item(), Item::Flushed { .. }) {
                    self.is_flushing = false;
                    return Ok(None);
                }
                if let ControlFlow::Break(broke) = each(event) {
                    return Ok(Some(broke));
                }
            }
        }
        say!("no proof ended in {PATIENCE:?}: events come later");
        Ok(None)
    }

    /// Gives what is proven, without waiting, until the function breaks.
    pub(crate) fn take<B>(&mut self, each: impl FnMut(Event<'_>) -> ControlFlow<B>) -> Result<Option<B>, Failed> {
        self.unbroken(|settler| settler.proven(each))
    }

    fn proven<B>(&mut self, mut each: impl FnMut(Event<'_>) -> ControlFlow<B>) -> Result<Option<B>, Failed> {
        let reader = &mut self.reader;
        let batch = guarded(|| quietly(|| reader.batch(Duration::ZERO)))?;
        let Some(mut batch) = batch.map_err(|error| told("read", &error))? else { return Ok(None) };
        while let Some(event) = guarded(|| batch.next())? {
            if matches!(event.item(), Item::Flushed { .. }) {
                self.is_flushing = false;
            } else if let ControlFlow::Break(broke) = each(event) {
                return Ok(Some(broke));
            }
        }
        Ok(None)
    }

    /// Waits until an event is proven. False when the time is over. `EINTR` for a signal.
    pub(crate) fn wait(&mut self, time: Duration) -> Result<bool, Failed> {
        self.unbroken(|settler| {
            guarded(|| settler.reader.wait(time))?.map_err(|error| match error.raw_os_error() {
                Some(libc::EINTR) => libc::EINTR,
                _ => told("wait", &error),
            })
        })
    }

    /// What was given goes back to the kernel now, so that what it says of a ring is true when a call returns.
    pub(crate) fn give_back(&mut self) {
        let reader = &mut self.reader;
        // A child of fork(2) does not come here, and a fault has told itself.
        let _ = guarded(|| reader.advance_tails());
    }
}

/// Says an error of the crate, and gives its number.
fn told(what: &str, error: &perfweave::Error) -> Failed {
    let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    say!("cannot {what}: {error}{hint}");
    failed(error)
}
