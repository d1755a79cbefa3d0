//! The reader under tokio: the engine of [`Reader`](crate::Reader), woken by the runtime's epoll instead of its own.

use crate::error::Error;
use crate::order::Order;
use crate::order::event_guard::{Batch, EventGuard};
use crate::reader::engine::{Engine, Turn};
use crate::reader::face::reader_face;
use crate::rings::Rings;
use crate::sys::register::Registered;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::coop::poll_proceed;
use tokio::time::{Instant, Sleep};

/// The events of a machine in order, under tokio (feature `tokio`): a [`Reader`](crate::Reader) that does not block a
/// thread.
///
/// The runtime waits for each ring's file descriptor directly. A nested epoll instance inside the runtime's would lose
/// wake-ups: the first poll of a perf event consumes its readiness, so the inner instance would find nothing although
/// the outer one woke.
///
/// The reader refreshes all heads after every wake. Before every sleep it first registers and *then* refreshes, so it
/// misses nothing written in between. Like a `Reader` it also refreshes by itself at least every [`Order::latency`],
/// and rests when it has taken many events.
///
/// ```
/// # use perfweave::{AsyncReader, Item, Order, sim};
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(async {
/// let kernel = sim::Kernel::new(&[0, 1]);
/// kernel.emit(1, 20, b"second");
/// kernel.emit(0, 10, b"first");
///
/// let mut reader = AsyncReader::new(kernel.rings(), Order::new().hold(kernel.hold()))?;
/// reader.handle().flush()?;
/// while let Some(event) = reader.next().await? {
///     println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.item());
///     if let Item::Flushed { .. } = event.item() {
///         break;
///     }
/// }
/// # assert_eq!(reader.status().total().yielded, 2);
/// # Ok::<(), perfweave::Error>(())
/// # }).unwrap();
/// ```
///
/// The runtime's timer counts milliseconds, so a [`Hold::Lag`](crate::Hold::Lag) of less than a millisecond takes a
/// little longer.
///
/// # Cancelling
///
/// Any future can be dropped at any time: an event is consumed when its [`EventGuard`] is dropped, not before. A
/// `Stream` of copies is `futures_util::stream::unfold` of [`AsyncReader::next`] and [`EventGuard::to_owned`].
///
/// # Dropping
///
/// Dropping waits for a fence under way, some 10 ms. If that is too long for a runtime's thread, use `spawn_blocking`.
pub struct AsyncReader {
    fds: Vec<Registered>,
    /// How many rings are registered.
    rings: usize,
    sleep: Pin<Box<Sleep>>,
    pub(super) engine: Engine,
}

impl AsyncReader {
    /// Makes a reader of these rings, in this order.
    ///
    /// # Errors
    /// As [`Reader::new`](crate::Reader::new); [`ErrorKind::System`](crate::ErrorKind::System) if there is no runtime.
    ///
    /// # Panics
    /// If the runtime was built without I/O or time.
    pub fn new(rings: Rings, order: Order) -> Result<Self, Error> {
        let runtime = tokio::runtime::Handle::try_current();
        runtime.map_err(|error| Error::system("find a tokio runtime", io::Error::other(error)))?;
        let engine = Engine::new(rings, order)?;
        let sleep = Box::pin(tokio::time::sleep(Duration::ZERO));
        let mut reader = Self { fds: Vec::new(), rings: 0, sleep, engine };
        reader.register()?;
        Ok(reader)
    }

    /// The next event. Waits for it. `None` when the stream has ended: [`AsyncReader::ended`] says why.
    ///
    /// # Errors
    /// As [`Reader::next`](crate::Reader::next).
    pub async fn next(&mut self) -> Result<Option<EventGuard<'_>>, Error> {
        let ready = poll_fn(|cx| self.poll_ready(cx)).await?;
        Ok(if ready { Some(self.engine.merge.lend()) } else { None })
    }

    /// All events that can be yielded, as an iterator. Waits until there is one. `None` when the stream has ended. The
    /// items borrow the reader. See [`Reader::batch`](crate::Reader::batch).
    ///
    /// # Errors
    /// As [`Reader::next`](crate::Reader::next).
    pub async fn batch(&mut self) -> Result<Option<Batch<'_>>, Error> {
        let ready = poll_fn(|cx| self.poll_ready(cx)).await?;
        Ok(if ready { Some(self.engine.merge.batch()) } else { None })
    }

    /// Ready once there is an event (true), or the stream has ended (false).
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        // A stream that never runs dry, or a deadline that stays past, must not block the runtime's other tasks.
        let turn = ready!(poll_proceed(cx));
        let ready = self.poll_engine(cx);
        if ready.is_ready() {
            turn.made_progress();
        }
        ready
    }

    fn poll_engine(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        if self.engine.is_at_hand() {
            return Poll::Ready(Ok(true));
        }
        loop {
            // First register every wake, then refresh: anything written after the refresh wakes the reader.
            let (mut failed, mut woken) = (None, false);
            // Drops descriptors that never wake again, such as that of an event whose task is gone. The ticks go on.
            self.fds.retain(|fd| {
                fd.take_wake(cx)
                    .map(|wake| woken |= wake)
                    // As a wake: the reader refreshes now, and does not rest before.
                    .map_err(|over| (failed, woken) = (over.or(failed.take()), true))
                    .is_ok()
            });
            if let Some(errno) = failed {
                return Poll::Ready(Err(Error::wait(errno, 1)));
            }
            let pause = match self.engine.turn_when_polled(woken)? {
                Turn::Ready => return Poll::Ready(Ok(true)),
                Turn::Ended => return Poll::Ready(Ok(false)),
                Turn::Sleep(pause) => pause,
            };
            if self.rings().cpu_rings.len() != self.rings {
                self.register()?;
                // The new ring may have been written to before it was registered.
                continue;
            }
            // The runtime's timer does not come back before its next millisecond.
            if pause.is_zero() {
                continue;
            }
            self.sleep.as_mut().reset(Instant::now() + pause);
            ready!(self.sleep.as_mut().poll(cx));
        }
    }

    /// Registers everything that wakes the reader, including rings of CPUs that came online since.
    fn register(&mut self) -> Result<(), Error> {
        let failed = |errno| Error::system("wait for a ring", errno);
        for fd in self.engine.fds() {
            if !self.fds.iter().any(|known| known.is(fd)) {
                self.fds.push(Registered::new(Arc::clone(fd)).map_err(failed)?);
            }
        }
        self.rings = self.rings().cpu_rings.len();
        Ok(())
    }

    reader_face!();
}

impl Drop for AsyncReader {
    fn drop(&mut self) {
        if self.rings().control().is_forked() {
            // Unregistering them would remove them from the epoll instance, which the parent shares.
            std::mem::forget(std::mem::take(&mut self.fds));
        }
    }
}

impl fmt::Debug for AsyncReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncReader").field("engine", &self.engine).finish_non_exhaustive()
    }
}
