//! Calls that read: by callbacks, or one event after the other.

use crate::border::{Failure, Result, checked, give, number};
use crate::buffer::{Callbacks, Inside, enter, pw_buffer, pw_ring_buffer};
use crate::event::{pw_event, pw_kind};
use pw::{Bytes, Ended, Error, ErrorKind, Event};
use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// No call waits longer, also if its time-out is longer. A signal that comes between two waits ends none of them. So a
/// program that looks at a flag of its handler must be back from time to time.
const LONGEST: Duration = Duration::from_secs(1);

/// What a callback of raw records says to go on: LIBBPF_PERF_EVENT_CONT.
const GO_ON: c_int = -2;

/// Whether an error is a signal that has ended a wait.
fn is_signal(error: &Error) -> bool {
    error.raw_os_error() == Some(libc::EINTR)
}

/// When a time-out of milliseconds is over. Negative: as late as any.
fn until(timeout_ms: c_int) -> Instant {
    let timeout = u64::try_from(timeout_ms).map_or(LONGEST, Duration::from_millis);
    Instant::now() + timeout.min(LONGEST)
}

fn ended(why: Ended) -> Failure {
    match why {
        Ended::Deadline { complete: true } => {
            Failure::new(libc::ETIME, "the deadline is over\nhint: set another with pw_handle__set_deadline")
        }
        Ended::Deadline { complete: false } => Failure::new(
            libc::EINPROGRESS,
            "the deadline is over, and not complete: a program has not committed what it reserved in a ring buffer\nhint: set \
             another with pw_handle__set_deadline; what cannot be proven before the program commits is held",
        ),
        _ => Failure::new(libc::ECANCELED, "the buffer was closed by pw_handle__close"),
    }
}

fn uncommitted() -> Failure {
    Failure::new(
        libc::EINPROGRESS,
        "a program has not committed what it reserved in a ring buffer: what cannot be proven before it does is held",
    )
}

impl Callbacks {
    /// Calls the callbacks of an event. They may end the call, with a negative number or with none (0).
    pub(crate) fn tell(&mut self, event: &Event<'_>, notice: crate::event::pw_notice_fn) -> ControlFlow<c_int> {
        let Some(record) = event.record() else {
            let told = pw_event::of(event);
            if told.kind == pw_kind::PW_LOST as u32
                && let Some(lost) = self.lost
            {
                // SAFETY: the caller's callback, with its own context.
                unsafe { lost(self.context.0, told.cpu, told.count) };
            } else if let Some(notice) = notice {
                // SAFETY: the caller's callback; the event lives until it returns.
                unsafe { notice(self.context.0, &raw const told) };
            }
            return ControlFlow::Continue(());
        };
        if let Some(event) = self.event {
            let (mut data, _) = self.in_one_piece(record.as_bytes());
            if !data.cast::<u64>().is_aligned() {
                // It was copied out of its ring.
                (data, _) = self.copied(record.as_bytes());
            }
            // SAFETY: the caller's callback; the bytes live until it returns.
            let said = unsafe { event(self.context.0, record.cpu() as c_int, data.cast()) };
            return if said == GO_ON { ControlFlow::Continue(()) } else { ControlFlow::Break(said.min(0)) };
        }
        let Some(payload) = record.payload() else { return ControlFlow::Continue(()) };
        if let Some((sample, context)) = self.ring.get(record.layout().tag() as usize).copied() {
            let Some(sample) = sample else { return ControlFlow::Continue(()) };
            let (data, size) = self.in_one_piece(payload);
            // SAFETY: the caller's callback; the bytes live until it returns.
            let said = unsafe { sample(context.0, data, size) };
            if said < 0 { ControlFlow::Break(said) } else { ControlFlow::Continue(()) }
        } else {
            let Some(sample) = self.sample else { return ControlFlow::Continue(()) };
            let (data, size) = self.in_one_piece(payload);
            // SAFETY: as above.
            unsafe { sample(self.context.0, record.cpu() as c_int, data, size as u32) };
            ControlFlow::Continue(())
        }
    }

    /// Bytes as C takes them. Copied only if they wrap.
    #[inline]
    fn in_one_piece(&mut self, bytes: Bytes<'_>) -> (*mut c_void, usize) {
        let (head, tail) = bytes.as_slices();
        if tail.is_empty() {
            return (head.as_ptr().cast_mut().cast(), head.len());
        }
        self.copied(bytes)
    }

    /// Bytes in memory of their own.
    fn copied(&mut self, bytes: Bytes<'_>) -> (*mut c_void, usize) {
        let (head, tail) = bytes.as_slices();
        self.scratch.resize(bytes.len().div_ceil(8), 0);
        let into = self.scratch.as_mut_ptr().cast::<u8>();
        // SAFETY: `scratch` has room for both.
        unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), into, head.len()) };
        // SAFETY: as above.
        let rest = unsafe { into.add(head.len()) };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(tail.as_ptr(), rest, tail.len()) };
        (into.cast(), bytes.len())
    }
}

/// Calls back with everything that can be yielded. Waits for the first event until a time. Returns how many records
/// there were.
fn hand_out(shared: &pw_buffer, inside: &mut Inside, until: Instant) -> Result<c_int> {
    let notice = inside.opts.notice_cb;
    loop {
        let (reader, calls) = inside.reader()?;
        let mut records: c_int = 0;
        let mut any = false;
        let mut each = |(), event: Event<'_>| {
            any = true;
            records = records.saturating_add(event.record().is_some().into());
            let told = calls.tell(&event, notice);
            if shared.is_doomed() && told.is_continue() { ControlFlow::Break(0) } else { told }
        };
        let left = until.saturating_duration_since(Instant::now());
        let is_over = left.is_zero();
        let all = reader.wait(left).and_then(|_| reader.try_fold((), &mut each));
        match all {
            Ok(ControlFlow::Break(said)) if said < 0 => return Ok(said),
            Ok(ControlFlow::Break(_)) => return Ok(records),
            Ok(ControlFlow::Continue(())) => {}
            Err(error) if error.kind() == ErrorKind::Forked || is_signal(&error) => return Err(error.into()),
            Err(error) => {
                // The reader goes on.
                let text = error.to_string();
                let Some(notice) = notice else { return Err(error.into()) };
                let told = pw_event::problem(text.as_bytes());
                any = true;
                // SAFETY: the caller's callback; the event and its text live until it returns.
                unsafe { notice(calls.context.0, &raw const told) };
            }
        }
        if any {
            return Ok(records);
        }
        if let Some(why) = reader.ended() {
            return Err(ended(why));
        }
        if is_over {
            return Ok(0);
        }
    }
}

/// Calls back with everything that is in the rings now, proven. Returns how many records there were.
fn settle(shared: &pw_buffer, inside: &mut Inside) -> Result<c_int> {
    let notice = inside.opts.notice_cb;
    let (reader, calls) = inside.reader()?;
    let mut records: c_int = 0;
    let settled = reader.settle(|event| {
        records = records.saturating_add(event.record().is_some().into());
        let told = calls.tell(&event, notice);
        if shared.is_doomed() && told.is_continue() { ControlFlow::Break(0) } else { told }
    });
    match settled? {
        ControlFlow::Break(said) if said < 0 => Ok(said),
        ControlFlow::Break(_) | ControlFlow::Continue(true) => Ok(records),
        ControlFlow::Continue(false) => Err(reader.ended().map_or_else(uncommitted, ended)),
    }
}

/// Waits for events and calls back with all that can be yielded, in order. As perf_buffer__poll of libbpf.
///
/// timeout_ms: how long to wait for the first event; 0 for not at all, -1 for as long as it takes. It waits for a
/// second at most, so that a program sees its own flags: 0 is no error. Returns how many records there were; 0 when the
/// time is over, or if there were notices only; -EINTR for a signal; -ECANCELED or -ETIME once the buffer is closed or
/// its deadline over, -EINPROGRESS if the latter is not complete, because a program has not committed what it reserved
/// in a ring buffer; -EBUSY in a callback of this buffer or while another thread is in a call on it; -ECHILD in a
/// child of fork; -ENOTRECOVERABLE for a fault of the library itself, and for each later call on this buffer: free it.
/// For an error after which reading goes on (-EAGAIN and others), opts.notice_cb gets PW_PROBLEM instead, if it is set.
/// It blocks until then, and as long as callbacks take. A callback must return: longjmp and exceptions out of it are
/// undefined behaviour.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__poll(buffer: *mut pw_buffer, timeout_ms: c_int) -> c_int {
    number(|| enter(buffer, |shared, inside| hand_out(shared, inside, until(timeout_ms))))
}

/// Calls back with everything that is in the rings now, in proven order, and leaves nothing. As perf_buffer__consume of
/// libbpf, for a program that reads now and then, and before it ends. PW_FLUSHED is told only of a call that has ended
/// early.
///
/// Returns as pw_buffer__poll, but each error, also if reading goes on: call it again. -EINPROGRESS if a program has not
/// committed what it reserved in a ring buffer. Blocks for a proof, 10 to 20 ms unless opts.hold says otherwise, and as
/// long as callbacks take; signals do not end it. pw_buffer__poll with a time-out of 0 does not wait, and leaves what is
/// not proven yet.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__consume(buffer: *mut pw_buffer) -> c_int {
    number(|| enter(buffer, settle))
}

/// Whether a buffer with an order can yield an event without waiting.
pub(crate) fn readable(inside: &mut Inside) -> Result<c_int> {
    let (reader, _) = inside.reader()?;
    if reader.wait(Duration::ZERO)? {
        return Ok(1);
    }
    reader.ended().map_or(Ok(0), |why| Err(ended(why)))
}

/// A descriptor that becomes readable when there may be events. Wait for it no longer than pw_buffer__timeout says,
/// then call pw_buffer__poll with a time-out of 0 until it returns 0, also after a wait in vain. It belongs to the buffer: do not close
/// it. Returns a negative number as pw_buffer__poll. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__epoll_fd(buffer: *const pw_buffer) -> c_int {
    number(|| match checked(buffer, "the buffer")?.known() {
        Some((_, fd)) => Ok(*fd),
        None => enter(buffer, |_, inside| Ok(inside.reader()?.0.as_fd().as_raw_fd())),
    })
}

/// How many milliseconds to wait at most for pw_buffer__epoll_fd, rounded up. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__timeout(buffer: *mut pw_buffer) -> c_int {
    number(|| {
        enter(buffer, |_, inside| {
            let pause = inside.reader()?.0.time_to_next_refresh().min(LONGEST);
            Ok(pause.as_micros().div_ceil(1000) as c_int)
        })
    })
}

/// As pw_buffer__poll, for ring buffers. A negative number of a callback ends the call, which returns it.
#[unsafe(no_mangle)]
pub extern "C" fn pw_ring_buffer__poll(rb: *mut pw_ring_buffer, timeout_ms: c_int) -> c_int {
    pw_buffer__poll(rb.cast(), timeout_ms)
}

/// As pw_buffer__consume, for ring buffers.
#[unsafe(no_mangle)]
pub extern "C" fn pw_ring_buffer__consume(rb: *mut pw_ring_buffer) -> c_int {
    pw_buffer__consume(rb.cast())
}

/// As pw_buffer__epoll_fd, for ring buffers.
#[unsafe(no_mangle)]
pub extern "C" fn pw_ring_buffer__epoll_fd(rb: *const pw_ring_buffer) -> c_int {
    pw_buffer__epoll_fd(rb.cast())
}

/// Lends the next events: at least one unless the time is over.
fn lend(
    inside: &mut Inside,
    timeout_ms: c_int,
    most: usize,
    mut put: impl FnMut(usize, &pw_event) -> Result<()>,
) -> Result<c_int> {
    let until = until(timeout_ms);
    loop {
        let mut lent = 0;
        let left = until.saturating_duration_since(Instant::now());
        let (reader, _) = inside.reader()?;
        let waited = reader.wait(left);
        let taken = match waited.and_then(|_| reader.batch(Duration::ZERO)) {
            Ok(batch) => batch.into_iter().flatten().take(most).try_for_each(|event| {
                lent += 1;
                put(lent - 1, &pw_event::of(&event))
            }),
            Err(error) if error.kind() == ErrorKind::Forked || is_signal(&error) => return Err(error.into()),
            Err(error) => {
                inside.problem = error.to_string();
                lent = 1;
                put(0, &pw_event::problem(inside.problem.as_bytes()))
            }
        };
        taken?;
        if lent > 0 {
            return Ok(lent as c_int);
        }
        let (reader, _) = inside.reader()?;
        if let Some(why) = reader.ended() {
            return Err(ended(why));
        }
        if left.is_zero() {
            return Ok(0);
        }
    }
}

/// Lends the next event, of any kind, in place: its bytes lie in the ring, and are valid until the next call on this
/// buffer. It waits as pw_buffer__poll. The callbacks are not called.
///
/// event_size: sizeof(struct pw_event). Returns 1, 0 when the time is over, or a negative number as pw_buffer__poll.
/// Errors after which reading goes on are events (PW_PROBLEM).
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__next(
    buffer: *mut pw_buffer,
    timeout_ms: c_int,
    event: *mut pw_event,
    event_size: usize,
) -> c_int {
    pw_buffer__batch(buffer, timeout_ms, event, event_size, 1)
}

/// Lends up to most events at once. All are valid until the next call on this buffer.
///
/// events: an array of most elements of event_size bytes, which is sizeof(struct pw_event).
/// Returns how many there are, or as pw_buffer__next.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__batch(
    buffer: *mut pw_buffer,
    timeout_ms: c_int,
    events: *mut pw_event,
    event_size: usize,
    most: c_int,
) -> c_int {
    number(|| {
        enter(buffer, |_, inside| {
            let wrong = events.is_null()
                || !events.is_aligned()
                || event_size == 0
                || !event_size.is_multiple_of(align_of::<pw_event>());
            let Some(most) = usize::try_from(most).ok().filter(|most| *most > 0 && !wrong) else {
                let text =
                    "events is NULL or not aligned, event_size is not sizeof(struct pw_event), or most is not positive";
                return Err(Failure::invalid(text));
            };
            lend(inside, timeout_ms, most, |at, event| {
                // SAFETY: the caller's array has `most` elements of this size, and `at` is less.
                let out = unsafe { events.byte_add(at * event_size) };
                give(event, out, event_size, "events")
            })
        })
    })
}
