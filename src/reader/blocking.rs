//! The blocking reader: a merge with fences, which sleeps until rings are written to.

use crate::error::{Error, ErrorKind, Repeats};
use crate::order::event::Event;
use crate::order::event::Item;
use crate::order::event_guard::{Batch, EventGuard};
use crate::order::{LATENCY, Order};
use crate::reader::ended::Ended;
use crate::reader::engine::{Engine, Turn};
use crate::reader::face::reader_face;
use crate::record::Layout;
use crate::ring::Ring;
use crate::rings::Rings;
use crate::sys::blocked::Blocked;
use crate::sys::epoll::Wait;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The events of a machine in order. It waits for them, or until a time of the program's choice.
///
/// ```
/// # use perfweave::{Ended, Order, Reader, sim};
/// # use std::time::{Duration, Instant};
/// let kernel = sim::Kernel::new(&[0, 1]);
/// kernel.emit(1, 20, b"second");
/// kernel.emit(0, 10, b"first");
///
/// let mut reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold()))?;
/// reader.handle().set_deadline(Some(Instant::now() + Duration::from_millis(50)))?;
/// while let Some(event) = reader.next()? {
///     println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.item());
/// }
/// assert_eq!(reader.ended(), Some(Ended::Deadline { complete: true }));
/// # assert_eq!(reader.status().total().yielded, 2);
/// # Ok::<(), perfweave::Error>(())
/// ```
///
/// # Waiting
///
/// A reader sleeps on epoll. It refreshes all heads before every sleep and after every wake: polling a perf event
/// consumes its readiness, and the readiness of one ring says nothing about other rings.
///
/// The kernel wakes the reader only when a part of a ring is filled, because a wake-up for each event would interrupt
/// the traced system each time. So the reader also refreshes by itself, at each *tick*: every 5 ms in a flood, less
/// often until a tick finds 1,024 events (up to 40 ms), and at least every [`Order::latency`]. A reader that has taken
/// many events rests until its next tick. The few events that are held meanwhile wait as long. A ring that fills up, a
/// handle or a deadline ends the rest. A reader does not rest while it spins, or when it is called with a time-out of
/// zero.
///
/// The kernel wakes a reader of a BPF ring buffer for each record with which the reader has caught up. While more than
/// some 13,000 events come a second, the reader gathers them for a tick instead, but no longer than a program takes to
/// fill a sixteenth of the smallest ring, or a quarter as long as the rings fill slowly (a millisecond at least). It
/// leaves the last bytes in the ring until then, so the kernel does not wake it. If programs write about the scheduler,
/// each wake-up causes the events of the next. So if events come fast again as soon as the reader stops gathering, it
/// gathers for another second.
///
/// If the hold rule needs a fence, new events wait for it. Two fences begin at least a tick apart, unless 4,096 events
/// wait. Few events wait until [`Order::latency`] has passed since the last fence began.
///
/// In your own event loop, poll the reader ([`AsFd`](std::os::fd::AsFd)) for no longer than
/// [`Reader::time_to_next_refresh`]. Then call [`Reader::next_timeout`] with a time-out of zero until it returns
/// `None`, also if poll reported nothing.
///
/// # From other threads
///
/// [`Reader::handle`] gives a handle that flushes, closes and pauses the reader while it blocks.
///
/// # CPUs that come and go
///
/// At its ticks, at most ten times a second, and before a flush and a deadline, the reader looks which CPUs are online.
/// It opens the ring of one that has come. A CPU that came back writes into the ring it had, also if it was away for
/// less than a tick. Output of a program on the CPU before that is lost, and the kernel does not count it. Records that
/// a CPU wrote before it went offline stay in its ring and are yielded in their order.
///
/// If the kernel refuses to open a CPU's ring or events, the first call gives the error, and
/// [`Item::Untraced`](crate::Item::Untraced) says since when the CPU is not traced. The reader tries again at each of
/// these ticks. The error comes again at the tenth failure, the hundredth and so on.
/// [`Status::is_complete`](crate::Status::is_complete) is false from then on.
///
/// # Dropping privileges
///
/// A program may drop its privileges once it has opened its rings and made its reader. Each thread has its own
/// capabilities (capabilities(7)): those of the calling thread count.
///
/// | what | needs afterwards |
/// | --- | --- |
/// | reading, flushes, deadlines, [`Pause::Output`](crate::Pause::Output), what the kernel counts as lost, [`Order::leave_out`] | nothing |
/// | fences by `membarrier`, the default | nothing, whenever they were opened |
/// | fences by a map that were opened before; [`Pause::Slots`](crate::Pause::Slots) | nothing; `CAP_BPF` before Linux 5.19, where `kernel.unprivileged_bpf_disabled` is set |
/// | expedited fences (the package perfweave-proofs) | `CAP_SYS_ADMIN`, each time, of the fence's own thread |
/// | a CPU that comes online, or back | what opening took: `CAP_PERFMON`, or `CAP_SYS_ADMIN` where `kernel.perf_event_paranoid` is above 2; `CAP_BPF` for slots of maps, as above; `CAP_IPC_LOCK` for the ring of a new CPU beyond `kernel.perf_event_mlock_kb` |
/// | opening other rings | the same |
/// | with the package perfweave-events, formats, and a reader without its own events that is made afterwards | a readable tracefs: otherwise no record of a tracepoint is left out |
///
/// So a program that follows CPUs keeps `CAP_PERFMON` and `CAP_BPF`, and `CAP_IPC_LOCK` if its rings are large.
///
/// # Dropping
///
/// Dropping the reader loses events that are held or not yet read. To get them all, call
/// [`Handle::flush`](crate::Handle::flush) first. Dropping waits for a fence under way, because the kernel cannot
/// cancel it; after ten seconds it leaves the fence's thread to end by itself.
#[derive(Debug)]
pub struct Reader {
    pub(super) engine: Engine,
    epoll: Epoll,
    /// How many rings epoll watches.
    rings: usize,
    /// Where epoll writes ready descriptors, all in one call.
    ready: Vec<libc::epoll_event>,
    wait: Wait,
    /// Waits that fail.
    failures: Repeats,
}

impl Reader {
    /// Makes a reader of these rings, with these options.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): there are no rings; the key is the kernel's time and
    /// a ring does not record it; the lag rule, and a clock that cannot be read; the map of epochs lacks an element for
    /// a CPU; a BPF ring buffer was added twice. [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the hold
    /// rule needs a fence and none is possible, or writers' epochs prove nothing for these rings.
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit), also if the index of a recording does not fit into memory
    /// ([`Order::most_held`](crate::Order::most_held)); [`ErrorKind::System`](crate::ErrorKind::System),
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    pub fn new(rings: Rings, order: Order) -> Result<Self, Error> {
        let engine = Engine::new(rings, order)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| Error::system("make an epoll instance", errno.into()))?;
        let (wait, failures) = (Wait::default(), Repeats::default());
        let mut reader = Self { engine, epoll, rings: 0, ready: Vec::new(), wait, failures };
        reader.wait_for_all()?;
        Ok(reader)
    }

    /// The next event. Waits for it as long as necessary. `None` when the stream has ended: [`Reader::ended`] says why.
    /// After an error the reader goes on with the next call.
    ///
    /// The event borrows the reader and is consumed when it is dropped. A forgotten event comes again. To keep one,
    /// copy it: [`EventGuard::to_owned`].
    ///
    /// # Errors
    /// [`ErrorKind::Degraded`](crate::ErrorKind::Degraded), after which the reader goes on by itself;
    /// [`ErrorKind::System`](crate::ErrorKind::System), and any error of opening the ring of a CPU that came online;
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "not an iterator: it yields what borrows from it")]
    pub fn next(&mut self) -> Result<Option<EventGuard<'_>>, Error> {
        // Without a time-out, only the end of the stream gives `None`.
        if self.engine.is_at_hand() || self.advance(None, None)? {
            Ok(Some(self.engine.merge.lend()))
        } else {
            Ok(None)
        }
    }

    /// The next event. Waits for it at most this long. `None` when the time is over, or when the stream has ended:
    /// [`Reader::ended`] says which. Held events stay. With a time-out of zero it refreshes the rings and does not
    /// wait.
    ///
    /// # Errors
    /// As [`Reader::next`].
    #[inline]
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<EventGuard<'_>>, Error> {
        if self.engine.is_at_hand() || self.engine.is_ready()? || self.advance(end(timeout), None)? {
            Ok(Some(self.engine.merge.lend()))
        } else {
            Ok(None)
        }
    }

    /// All events that can be yielded, as an iterator. If there are none, waits for the first at most this long; the
    /// batch is empty when the time is over. `None` when the stream has ended: [`Reader::ended`] says why.
    ///
    /// The items borrow the reader, so a program can hold any number of them. The batch ends early if a ring has filled
    /// up by a quarter since the last refresh; the next batch then begins with a refresh. [`Batch`] has the fastest way
    /// to take the events.
    ///
    /// An item is consumed when the batch gives it. The kernel gets the bytes back with the first call of the reader
    /// after the borrow; or with the next refresh, or once a sixteenth of a ring was consumed, if the program left the
    /// batch before its end. Those of a BPF ring buffer of which all was yielded go back with the next refresh, because
    /// the kernel then wakes the reader for the next record.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn batch(&mut self, timeout: Duration) -> Result<Option<Batch<'_>>, Error> {
        self.advance(end(timeout), None)?;
        Ok(if self.engine.report.ended().is_some() { None } else { Some(self.engine.merge.batch()) })
    }

    /// Refreshes the rings once and folds the events that can be yielded then, without waiting, until the function
    /// breaks. The event at which it breaks is consumed. Events written meanwhile stay for the next call; otherwise the
    /// call might never end. It ends early in the same case as [`Reader::batch`]. It folds nothing once the stream has
    /// ended: [`Reader::ended`].
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn try_fold<A, B>(
        &mut self,
        init: A,
        mut fold: impl FnMut(A, Event<'_>) -> ControlFlow<B, A>,
    ) -> Result<ControlFlow<B, A>, Error> {
        let mut all = init;
        self.advance(end(Duration::ZERO), None)?;
        if self.engine.report.ended().is_some() {
            return Ok(ControlFlow::Continue(all));
        }
        // Only the events of this refresh: otherwise a consumer slower than its producers would never return.
        loop {
            match self.engine.merge.hand_out(all, &mut fold) {
                // New events come with the next call, which refreshes first.
                ControlFlow::Continue(next) if self.engine.merge.is_rushed() => return Ok(ControlFlow::Continue(next)),
                ControlFlow::Continue(next) => all = next,
                ControlFlow::Break(ended) => return Ok(ended),
            }
        }
    }

    /// Everything that is in the rings now, **proven**, in one call: flushes, and gives the function each event that comes
    /// before the end of the flush ([`Item::Flushed`](crate::Item::Flushed), which the function does not get). Says
    /// whether that is complete, as the item does. It ends early if the function breaks: then the rest comes later, with
    /// the item; and if the stream ends ([`Reader::ended`]).
    ///
    /// It waits for a proof, 10 to 20 ms under the default rule. Signals do not end it. This is what a program calls that
    /// reads now and then, and wants nothing left.
    ///
    /// ```
    /// # use perfweave::{Order, Reader, sim};
    /// # use std::ops::ControlFlow;
    /// # let kernel = sim::Kernel::new(&[0, 1]);
    /// # let mut reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold()))?;
    /// # kernel.emit(1, 20, b"second");
    /// # kernel.emit(0, 10, b"first");
    /// let mut times = Vec::new();
    /// let settled = reader.settle(|event| {
    ///     times.extend(event.key());
    ///     ControlFlow::<()>::Continue(())
    /// })?;
    /// assert_eq!((settled, &times[..]), (ControlFlow::Continue(true), &[10, 20][..]));
    /// # Ok::<(), perfweave::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn settle<B>(
        &mut self,
        mut each: impl FnMut(Event<'_>) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B, bool>, Error> {
        let flush = self.engine.flush()?;
        while self.advance(None, None)? {
            let is_last = self.engine.has_reported(flush);
            let over = loop {
                let handed = self.engine.merge.hand_out((), |(), event| match event.item() {
                    Item::Flushed { complete } if is_last => ControlFlow::Break(ControlFlow::Continue(complete)),
                    _ => each(event).map_break(ControlFlow::Break),
                });
                match handed {
                    ControlFlow::Continue(()) if !self.engine.merge.is_rushed() => {}
                    ControlFlow::Break(ControlFlow::Break(over)) => break Some(over),
                    _ => break None,
                }
            };
            if let Some(over) = over {
                return Ok(over);
            }
        }
        let is_complete = matches!(self.ended(), Some(Ended::Recording | Ended::Deadline { complete: true }));
        Ok(ControlFlow::Continue(is_complete))
    }

    /// Waits until there is an event that can be yielded, and takes none: true. False when the time is over, or when the
    /// stream has ended: [`Reader::ended`] says which. With a time-out of zero it refreshes the rings and does not wait,
    /// and so says whether there is one.
    ///
    /// Unlike all other calls, **a signal ends it**, whenever it comes during the call: the thread's signals are blocked
    /// but while it sleeps. One that comes before the call is handled before it, so a program that looks at a flag of its
    /// handler needs a time-out, or a [`Handle`](crate::Handle) that closes or flushes. A reader that spins
    /// ([`Order::spin`](crate::Order::spin)) takes signals between two looks.
    ///
    /// # Errors
    /// As [`Reader::next`]. For a signal, [`ErrorKind::System`](crate::ErrorKind::System) with `EINTR`
    /// ([`Error::raw_os_error`]), after which the reader goes on; also for a stop and `SIGCONT`.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        if self.engine.is_at_hand() {
            return Ok(true);
        }
        // Before anything is refreshed.
        let blocked = Blocked::all().map_err(Error::cannot("block signals"))?;
        self.advance(end(timeout), Some(&blocked))
    }

    /// Adds an adopted ring to a reader that runs, as [`Rings::add`] does before. Its records join the stream from the
    /// next refresh on. Those with smaller keys than what was yielded before are late.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): the key is the kernel's time and the ring does not
    /// record it; the reader reads a recording; there are 16,384 rings. [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)
    /// for a BPF ring buffer; if the hold rule is [`Hold::Dense`](crate::Hold::Dense); and under a
    /// [`Fence::Proof`](crate::Fence::Proof), which has looked at the rings when it was opened. Make a reader of all rings
    /// then.
    /// [`ErrorKind::System`](crate::ErrorKind::System), [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    ///
    /// # Panics
    /// If the ring is a BPF ring buffer and the layout is not, or the reverse.
    pub fn add(&mut self, cpu: u32, ring: Ring, layout: Layout) -> Result<(), Error> {
        if self.engine.proof.as_ref().is_some_and(|proof| !proof.is_grace_period) {
            let message = "no ring can join under a proof that has looked at the rings: make a reader of all";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        self.engine.merge.add(cpu, ring, layout)?;
        self.wait_for_all()
    }

    reader_face!();

    /// How many events are held or not taken yet, as of the last refresh: [`Status::held`](crate::Status::held) alone.
    pub fn held(&self) -> usize {
        self.engine.merge.held()
    }

    /// How long a program may sleep before it must call the reader again, even if nothing became readable.
    pub fn time_to_next_refresh(&self) -> Duration {
        self.engine.longest_sleep()
    }

    /// Registers all rings with epoll, including those of new CPUs.
    fn wait_for_all(&mut self) -> Result<(), Error> {
        // Edge-triggered: the reader wants one wake for each change. So an event that stays ready does not keep it
        // awake, and it need not read anything before it sleeps again.
        let edge = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
        for fd in self.engine.fds() {
            match self.epoll.add(fd, edge) {
                // When a ring comes, all are added again.
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(Error::system("wait for a ring", errno.into())),
            }
        }
        self.rings = self.engine.merge.rings().cpu_rings.len();
        // Besides rings: the wake of handles, and that of fences.
        self.ready.resize(self.rings + 2, libc::epoll_event { events: 0, u64: 0 });
        Ok(())
    }

    /// Refreshes and sleeps until there is an event to lend (true), or the time is over or the stream has ended
    /// (false). `blocked`: signals that end the call while it
    /// sleeps.
    fn advance(&mut self, until: Option<Instant>, blocked: Option<&Blocked>) -> Result<bool, Error> {
        if self.engine.is_ready()? {
            return Ok(true);
        }
        if self.engine.report.ended().is_some() {
            return Ok(false);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            // A program that polls the reader must find it unreadable until something happens after this refresh.
            self.sleep(Duration::ZERO, None)?;
        } else {
            let rest = self.engine.time_to_gather();
            if !rest.is_zero() {
                self.sleep(left.map_or(rest, |left| left.min(rest)), blocked)?;
            }
        }
        let mut last_refresh = false;
        loop {
            let pause = match self.engine.turn()? {
                Turn::Ready => return Ok(true),
                Turn::Ended => return Ok(false),
                Turn::Sleep(pause) => pause,
            };
            if self.engine.merge.rings().cpu_rings.len() != self.rings {
                self.wait_for_all()?;
                // The ring may have been written to before it was registered.
                continue;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let over = left.is_some_and(|left| left.is_zero());
            if over && (last_refresh || !pause.is_zero()) {
                return Ok(false);
            }
            // Another refresh may be enough. When the time is over, there is one more and no further one.
            last_refresh = over;
            if !pause.is_zero() && !self.engine.rest.spins() {
                self.sleep(left.map_or(pause, |left| left.min(pause)), blocked)?;
            } else if blocked.is_some_and(Blocked::has_come) {
                // It may spin for ever, and a signal waits for a sleep. With a time of zero the kernel looks for none.
                self.sleep(LATENCY, blocked)?;
            }
        }
    }

    /// Sleeps until something is ready, or the time is over.
    fn sleep(&mut self, time: Duration, blocked: Option<&Blocked>) -> Result<(), Error> {
        self.engine.rest.slept(time);
        match self.wait.wait(self.epoll.0.as_fd(), &mut self.ready, time, blocked.map(Blocked::before)) {
            // Whichever: the reader refreshes all.
            Ok(ready) => {
                self.failures.succeeded();
                // Without time it only reads what is ready.
                self.engine.rest.wakes += u64::from(ready > 0 && !time.is_zero());
                Ok(())
            }
            // A signal: as if the time were over, unless it is waited for. The next turn refreshes.
            Err(errno) if errno.kind() == io::ErrorKind::Interrupted => match blocked {
                None => Ok(()),
                Some(_) => Err(Error::system("wait for events", errno)),
            },
            Err(errno) => match self.failures.failed(false) {
                Some(times) => Err(Error::wait(errno, times)),
                None => {
                    // The next refresh finds the cause of a missed wake-up.
                    std::thread::sleep(time.min(LATENCY));
                    Ok(())
                }
            },
        }
    }
}

impl AsFd for Reader {
    /// An epoll instance. Readable when a ring was written to or a fence has ended. Polling consumes that. See
    /// [`Reader`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

fn end(timeout: Duration) -> Option<Instant> {
    // A time-out that overflows the clock counts as none.
    Instant::now().checked_add(timeout)
}
