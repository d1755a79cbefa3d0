//! What can go wrong, and what would help.

use crate::steps::step;
use perfweave::ErrorKind;
use std::borrow::Cow;
use std::fmt;

/// Why there is no format, or no field.
///
/// The message ends with what helps, in parentheses. `Debug` prints the same, because Rust prints `Debug` if `main`
/// returns the error.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The rings have no format for the source, or tracefs has none or cannot be read.
    #[error(transparent)]
    Rings(#[from] perfweave::Error),
    /// The text is no format. Give the text of `events/category/name/format` of tracefs, whole.
    #[error("line {line} of the format is not understood: {text:?}, where {expected} should be ({HINT})")]
    Text {
        /// The number of the line, from 1.
        line: usize,
        /// Its begin: up to 120 letters.
        text: String,
        /// What should be there.
        expected: &'static str,
    },
    /// The event has no such field. The hint names the nearest one, if any is near, and up to 1 KiB of names of others.
    #[error("{event} has no field {name} ({hint})")]
    NoField {
        /// The event's name.
        event: String,
        /// The name that was looked up.
        name: String,
        /// What helps.
        hint: String,
    },
}

const HINT: &str = "give the text of events/category/name/format of tracefs, whole";

impl Error {
    /// What a program can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Rings(error) => error.kind(),
            Self::Text { .. } => ErrorKind::InvalidInput,
            Self::NoField { .. } => ErrorKind::NotFound,
        }
    }

    /// What helps. `None` if nothing is known to help. The message ends with it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Rings(error) => error.hint(),
            Self::Text { .. } => Some(HINT),
            Self::NoField { hint, .. } => Some(hint),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The longest name that a message shows in full, in letters.
const LONGEST_NAME: usize = 512;

/// A name for a message. A name that is too long loses its end.
pub(crate) fn short(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}... ({} bytes)", &name[..end], name.len()).into(),
        None => name.into(),
    }
}

/// The longest name that a hint compares, in bytes, and how many names it compares. A format from elsewhere may have
/// any.
const LONGEST_COMPARED: usize = 64;
const MOST_COMPARED: usize = 1 << 12;

/// The one of these names that is nearest to a name that does not exist, if any is near.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let bound = 3 + name.len() / 4;
    let alike = names
        .filter(|other| other.len().max(name.len()) <= LONGEST_COMPARED && other.len().abs_diff(name.len()) < bound);
    let distance = |other: &'a str| {
        step();
        (strsim::levenshtein(name, other), other)
    };
    alike.take(MOST_COMPARED).map(distance).filter(|(distance, _)| *distance < bound).min().map(|(_, other)| other)
}
