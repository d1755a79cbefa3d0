//! What can go wrong, and what would help.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

/// Why a function or a static probe was not found.
///
/// The message names the file, and ends with what helps, in parentheses. `Debug` prints the same, because Rust prints
/// `Debug` if `main` returns the error.
#[derive(thiserror::Error)]
#[error("{message}{}", hinted(hint))]
pub struct Error {
    kind: ErrorKind,
    message: String,
    /// Empty if nothing is known to help.
    hint: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, path: &Path, what: impl fmt::Display) -> Self {
        Self { kind, message: format!("{}: {what}", path.display()), hint: String::new() }
    }

    pub(crate) fn invalid(path: &Path, what: String) -> Self {
        Self::new(ErrorKind::InvalidData, path, what)
    }

    pub(crate) fn not_found(path: &Path, what: &str, name: &str, hint: String) -> Self {
        Self::new(ErrorKind::NotFound, path, format!("it has no {what} {name}")).hinting(hint)
    }

    pub(crate) fn hinting(self, hint: impl Into<String>) -> Self {
        Self { hint: hint.into(), ..self }
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What helps, such as the nearest name. `None` if nothing is known to help. The message ends with it.
    pub fn hint(&self) -> Option<&str> {
        Some(self.hint.as_str()).filter(|hint| !hint.is_empty())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn hinted(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!(" ({hint})") }
}

/// The longest name that a hint compares, in bytes, and how many pairs of letters it compares. A file may have any
/// number of names.
const LONGEST_COMPARED: usize = 256;
const MOST_COMPARED: usize = 1 << 28;

/// Suggests the one of these names that is nearest to a name that does not exist, if any is near.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let bound = 3 + name.len() / 4;
    let alike = names
        .filter(|other| other.len().max(name.len()) <= LONGEST_COMPARED && other.len().abs_diff(name.len()) < bound);
    let mut left = MOST_COMPARED;
    let affordable = alike.take_while(|other| {
        let cost = left.checked_sub(name.len() * other.len());
        left = cost.unwrap_or(0);
        cost.is_some()
    });
    let near =
        affordable.map(|other| (strsim::levenshtein(name, other), other)).filter(|(distance, _)| *distance < bound);
    near.min().map(|(_, other)| format!("did you mean {other}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A large program has as many functions, and a file from elsewhere has any number of any length.
    #[test]
    fn the_nearest_of_many_names_is_hinted_at() {
        let names: Vec<_> =
            (0..3_000).map(|number| format!("_ZN4core3fmt9Formatter{number:08}17h0123456789abcdefE")).collect();
        let all = || names.iter().map(String::as_str);
        let asked = names[2_777].replace("Formatter", "Fromatter");
        assert_eq!(nearest(&asked, all()).unwrap(), format!("did you mean {}?", names[2_777]));
        assert_eq!(nearest("main", all()), None);
        let long = "x".repeat(64 << 10);
        assert_eq!(nearest(&long, std::iter::once(&*format!("{}y", &long[1..]))), None, "too long for a message");
        assert_eq!(nearest("x", std::iter::empty()), None);
    }
}
