//! Errors, as a person reads them.

use crate::check;
use crate::out::say;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

/// What went wrong, and what would help.
#[derive(Debug, Clone)]
pub enum Failure {
    /// The other end of the output is closed, which is how `| head` ends a program.
    Closed,
    Error {
        message: String,
        hint: Option<String>,
    },
}

/// What a command gives.
pub type Outcome = Result<ExitCode, Failure>;

impl Failure {
    pub fn new(message: impl Display) -> Self {
        Self::Error { message: message.to_string(), hint: None }
    }

    pub fn hinting(message: impl Display, hint: impl Display) -> Self {
        Self::Error { message: message.to_string(), hint: Some(hint.to_string()) }
    }

    /// The same with a hint, unless it has one.
    pub fn or_hint(self, text: impl Display) -> Self {
        match self {
            Self::Error { message, hint: None } => Self::hinting(message, text),
            other => other,
        }
    }

    /// What went wrong, without what would help.
    pub fn message(&self) -> &str {
        match self {
            Self::Closed => "the output is closed",
            Self::Error { message, .. } => message,
        }
    }

    /// Says it on standard error, and gives the exit status.
    pub fn report(self) -> ExitCode {
        let Self::Error { message, hint } = self else { return ExitCode::SUCCESS };
        say(format_args!("perfweave: {message}"));
        if let Some(hint) = hint {
            let (help, rights) = hint.split_once('\n').unwrap_or((&hint, ""));
            say(format_args!("help: {help}"));
            if !rights.is_empty() {
                say(format_args!("{rights}"));
            }
        }
        ExitCode::FAILURE
    }
}

impl From<perfweave::Error> for Failure {
    fn from(error: perfweave::Error) -> Self {
        // Of a recording through a pipe.
        if error.raw_os_error() == Some(nix::libc::EPIPE) {
            return Self::Closed;
        }
        let (message, hint) = in_parts(&error);
        let is_of_tracing = |hint: &&String| hint.contains("CAP_PERFMON") || hint.contains("read tracefs");
        let rights = hint.as_ref().filter(is_of_tracing).and_then(|_| check::rights());
        let hint = hint.map(|hint| rights.iter().fold(hint, |hint, rights| format!("{hint}\n{rights}")));
        Self::Error { message, hint }
    }
}

/// The message of an error without its hint, and the hint.
pub fn in_parts(error: &perfweave::Error) -> (String, Option<String>) {
    split(&error.to_string(), error.hint())
}

fn split(message: &str, hint: Option<&str>) -> (String, Option<String>) {
    let short = hint.and_then(|hint| message.strip_suffix(&format!(" ({hint})")));
    (short.unwrap_or(message).to_owned(), hint.map(str::to_owned))
}

/// An error in one line, for those that end nothing.
pub fn in_line(error: &perfweave::Error) -> String {
    joined(in_parts(error))
}

fn joined((message, hint): (String, Option<String>)) -> String {
    hint.iter().fold(message, |message, hint| format!("{message} ({hint})"))
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe { Self::Closed } else { Self::new(error) }
    }
}

/// Why the kernel refuses a BPF program, in a line. The verifier's log is none.
pub fn without_log(error: &dyn std::error::Error) -> String {
    let text = with_causes(error);
    let first = text.lines().next().unwrap_or_default();
    first.split(". Verifier output").next().unwrap_or_default().to_owned()
}

/// An error, with what lies behind it.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let behind = std::iter::successors(error.source(), |error| error.source());
    behind.fold(error.to_string(), |text, error| format!("{text}: {error}"))
}
