//! The error type, and the errors that several rooms give.

use crate::error::words::{because, hinted, limit, repeated};
use crate::error::{ErrorKind, hint};
use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::time::Duration;

/// An error of opening, ordering, waiting for or reading rings.
///
/// [`Error::kind`] says what a program can do about it. The message says what was tried, with all numbers and names,
/// then what the kernel answered, and in parentheses what helps. So a program that prints the error need not print its
/// source too. `Debug` prints the same, because Rust prints `Debug` if `main` returns the error.
///
/// [`std::error::Error::source`] gives the error of the kernel as a [`std::io::Error`], if there is one.
///
/// Bad bytes *inside* a ring are never an error. They are a [`Damage`](crate::Damage) event in the stream.
///
/// # As an `io::Error`
///
/// `io::Error::from(error)` has the nearest [`std::io::ErrorKind`] and holds this error. It prints the same, and
/// [`std::io::Error::downcast`] returns this error. It has no `raw_os_error`, because an `io::Error` has either that or
/// a message. Ask for [`Error::raw_os_error`] before the conversion.
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Inner>);

#[derive(thiserror::Error)]
#[error("{message}{}{}", because(source.as_ref()), hinted(hint))]
struct Inner {
    kind: ErrorKind,
    message: Text,
    /// Empty if nothing is known to help.
    hint: Text,
    event: Option<Box<str>>,
    source: Option<io::Error>,
}

type Text = Cow<'static, str>;

impl Error {
    /// What a program can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What helps on this machine: a setting with its value, a capability, the nearest name. `None` if the crate knows
    /// nothing that helps. The message ends with the hint.
    #[doc(alias = "cure")]
    pub fn hint(&self) -> Option<&str> {
        Some(self.0.hint.as_ref()).filter(|hint| !hint.is_empty())
    }

    /// The event that the error is about, by its name in [`Rings::sources`](crate::Rings::sources): `tracepoint
    /// sched:sched_switch`. A program that asks for several events can go on without this one. `None` if the error is
    /// about no event in particular.
    pub fn event(&self) -> Option<&str> {
        self.0.event.as_deref()
    }

    /// The kernel's error number (`errno`), if [`source`](std::error::Error::source) has one. For programs that need
    /// more detail than the kind, such as a library whose callers want error numbers.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.source.as_ref()?.raw_os_error()
    }

    /// An error of a package that stands on this one, such as one that opens events by their names or reads recordings:
    /// what was tried, with all numbers and names.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let hint = Text::default();
        Self(Box::new(Inner { kind, message: message.into(), hint, event: None, source: None }))
    }

    /// Adds the cause, which the message then ends with.
    pub fn because(mut self, source: io::Error) -> Self {
        self.0.source = Some(source);
        self
    }

    /// Adds what helps, for [`hint`](Self::hint). Empty if nothing is known to help.
    pub fn hinting(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = hint.into();
        self
    }

    /// Adds the event that the error is about, for [`event`](Self::event).
    pub fn about(mut self, event: &str) -> Self {
        self.0.event = Some(event.into());
        self
    }

    /// Puts before the message what was being done.
    pub fn during(mut self, what: &str) -> Self {
        // Some errors have a cause and no words of their own.
        let colon = if self.0.message.is_empty() { "" } else { ": " };
        self.0.message = format!("{what}{colon}{}", self.0.message).into();
        self
    }

    /// The source, or else the error itself.
    pub(crate) fn into_source(mut self) -> io::Error {
        self.0.source.take().unwrap_or_else(|| self.into())
    }

    /// The system refuses a call.
    pub(crate) fn system(what: &str, source: io::Error) -> Self {
        let hint = limit(&source);
        Self::new(ErrorKind::of(&source), format!("cannot {what}")).because(source).hinting(hint)
    }

    /// The same, as a function of the system's error.
    pub(crate) fn cannot(what: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::system(what, source)
    }

    /// An ioctl on an event fails: "redirect", "identify", "enable", "disable", "pause" or "resume".
    pub(crate) fn control(what: &str, event: &str, cpu: u32, source: io::Error) -> Self {
        Self::system(&format!("{what} {event} on CPU {cpu}"), source).about(event)
    }

    pub(crate) fn forked() -> Self {
        let message = "the rings belong to the process that this one was forked from: open others here";
        Self::new(ErrorKind::Forked, message)
    }

    pub(crate) fn no_events() -> Self {
        Self::new(ErrorKind::InvalidInput, "nothing to open: no map, tracepoint or other event was named")
    }

    /// `what` is the target of the map's file descriptor, as `/proc` names it: `/dev/null`, `anon_inode:bpf-prog`.
    pub(crate) fn not_a_map(event: &str, what: &str) -> Self {
        Self::new(ErrorKind::InvalidInput, format!("{event}: this is no BPF map, but {what}"))
    }

    /// A pinned map that cannot be opened.
    pub(crate) fn pinned(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |errno| {
            let hint = hint::pinned(&errno);
            let message = format!("cannot open the pinned map {}", path.display());
            Self::new(ErrorKind::of(&errno), message).because(errno).hinting(hint)
        }
    }

    /// No fence is possible. `tried` has each way and its error.
    pub(crate) fn no_fence(tried: &str, hint: impl Into<Text>) -> Self {
        Self::new(ErrorKind::Unsupported, format!("no fence: {tried}")).hinting(hint)
    }

    /// A fence has failed `times` times since the last report.
    pub(crate) fn fence_failed(kind: ErrorKind, source: io::Error, times: u64) -> Self {
        Self::new(kind, format!("a fence failed{}", repeated(times))).because(source)
    }

    /// So many events are held that no more are copied out of full rings, at `times` refreshes since the last report.
    pub(crate) fn too_many_held(held: usize, times: u64) -> Self {
        let message = format!("{held} events are held, so no more are copied out of full rings{}", repeated(times));
        let hint =
            "find out why no proof ends, or what writes so many small records: the kernel drops what does not fit";
        Self::new(ErrorKind::Degraded, message).hinting(hint)
    }

    /// A program has been inside a reservation for so long, on a CPU if that is known. The reader was about to sleep
    /// `times` times since the last report.
    pub(crate) fn not_committed(cpu: Option<u32>, time: Duration, times: u64) -> Self {
        let place = cpu.map_or_else(String::new, |cpu| format!(" on CPU {cpu}"));
        let message = format!("a program{place} has not committed for {time:?} what it reserved in a BPF ring buffer");
        let hint =
            "find the program that sleeps or gets no CPU: what comes after its record cannot be read until it commits";
        Self::new(ErrorKind::Degraded, message + &repeated(times)).hinting(hint)
    }

    /// Says how often it came since the last report.
    pub(crate) fn repeated(mut self, times: u64) -> Self {
        self.0.message = format!("{}{}", self.0.message, repeated(times)).into();
        self
    }

    /// A proof has not come for so long. `times` as above.
    pub(crate) fn no_proof(proof: &str, time: Duration, times: u64) -> Self {
        let hint = "for epochs and reservations: find the program that stays inside; for a grace period: see the kernel's log \
                    for stalls of RCU, and look for a real-time program that never sleeps";
        let message = format!("no proof has come by {proof} for {time:?}{}", repeated(times));
        Self::new(ErrorKind::Degraded, message).hinting(hint)
    }

    /// Waiting has failed `times` times since the last report.
    pub(crate) fn wait(source: io::Error, times: u64) -> Self {
        Self::new(ErrorKind::Degraded, format!("cannot wait{}", repeated(times))).because(source)
    }
}

debug_as_display!(Error, Inner);

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let source = error.0.source.as_ref().map(io::Error::kind);
        Self::new(error.kind().in_std(source), error)
    }
}
