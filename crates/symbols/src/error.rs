//! What can go wrong with a file, and what would help.

use perfweave::{Error, ErrorKind};
use std::fmt;
use std::path::Path;

/// An error about a file.
pub(crate) fn about(kind: ErrorKind, path: &Path, what: impl fmt::Display) -> Error {
    Error::new(kind, format!("{}: {what}", path.display()))
}

pub(crate) fn invalid(path: &Path, what: String) -> Error {
    about(ErrorKind::InvalidInput, path, what)
}

pub(crate) fn not_found(path: &Path, what: &str, name: &str, hint: String) -> Error {
    about(ErrorKind::NotFound, path, format!("it has no {what} {name}")).hinting(hint)
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
