//! The error of reading and writing recordings.

use perfweave::ErrorKind;
use std::borrow::Cow;
use std::{fmt, io};

/// An error of reading or writing a recording.
///
/// [`Error::kind`] says what a program can do about it, in the words of the core. The message says what was tried, then
/// what the kernel answered, and in parentheses what helps. `Debug` prints the same, because Rust prints `Debug` if
/// `main` returns the error. [`std::error::Error::source`] gives the error of the kernel as an [`io::Error`], if there
/// is one.
///
/// `io::Error::from(error)` has the nearest [`io::ErrorKind`] and holds this error. It prints the same, and
/// [`io::Error::downcast`] returns this error.
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
    source: Option<io::Error>,
}

type Text = Cow<'static, str>;

impl Error {
    /// What a program can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What helps on this machine. `None` if nothing is known that helps. The message ends with the hint.
    pub fn hint(&self) -> Option<&str> {
        Some(self.0.hint.as_ref()).filter(|hint| !hint.is_empty())
    }

    /// The kernel's error number (`errno`), if [`source`](std::error::Error::source) has one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.source.as_ref()?.raw_os_error()
    }

    #[cold]
    pub(crate) fn new(kind: ErrorKind, message: impl Into<Text>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), hint: Text::default(), source: None }))
    }

    /// Something of the system cannot be read or done.
    pub(crate) fn system(message: impl Into<Text>, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => match source.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => ErrorKind::Limit,
                // What a file of /proc gives that was opened before its process ended.
                Some(libc::ESRCH) => ErrorKind::NotFound,
                _ => ErrorKind::System,
            },
        };
        Self::new(kind, message).because(source)
    }

    /// Adds the cause.
    pub(crate) fn because(mut self, source: io::Error) -> Self {
        self.0.source = Some(source);
        self
    }

    /// Adds what helps.
    pub(crate) fn hinting(mut self, hint: impl Into<Text>) -> Self {
        self.0.hint = hint.into();
        self
    }

    /// Puts before the message what the package was doing.
    pub(crate) fn during(mut self, what: &str) -> Self {
        // Some errors have a cause and no words of their own (`file::io`).
        let colon = if self.0.message.is_empty() { "" } else { ": " };
        self.0.message = format!("{what}{colon}{}", self.0.message).into();
        self
    }

    pub(crate) fn forked() -> Self {
        let message = "the recording belongs to the process that this one was forked from: open another here";
        Self::new(ErrorKind::Forked, message)
    }
}

/// The cause, if there is one.
fn because(errno: Option<&io::Error>) -> String {
    errno.map_or_else(String::new, |errno| format!(": {errno}"))
}

/// What helps, in parentheses, if anything is known to.
fn hinted(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!(" ({hint})") }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let source = error.0.source.as_ref().map(io::Error::kind);
        let kind = match error.kind() {
            ErrorKind::Permission => io::ErrorKind::PermissionDenied,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Limit => io::ErrorKind::QuotaExceeded,
            ErrorKind::Recording => source.unwrap_or(io::ErrorKind::InvalidData),
            _ => source.unwrap_or(io::ErrorKind::Other),
        };
        Self::new(kind, error)
    }
}
