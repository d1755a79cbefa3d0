//! The errors of formats, and what would help.

use crate::steps::step;
use perfweave::{Error, ErrorKind};
use std::borrow::Cow;

/// The text is no format: `expected` should be in a line, counted from 1.
pub(crate) fn no_format_text(line: usize, text: &str, expected: &str) -> Error {
    let text: String = text.chars().take(LONGEST_QUOTE).collect();
    let message = format!("line {line} of the format is not understood: {text:?}, where {expected} should be");
    let hint = "give the text of events/category/name/format of tracefs, whole";
    Error::new(ErrorKind::InvalidInput, message).hinting(hint)
}

/// How much of a line that is not understood an error quotes, in letters.
const LONGEST_QUOTE: usize = 120;

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
pub(crate) fn nearest<T: AsRef<str> + Ord>(name: &str, names: impl Iterator<Item = T>) -> Option<T> {
    let bound = 3 + name.len() / 4;
    let is_alike = |other: &T| {
        let len = other.as_ref().len();
        len.max(name.len()) <= LONGEST_COMPARED && len.abs_diff(name.len()) < bound
    };
    let distance = |other: T| {
        step();
        (strsim::levenshtein(name, other.as_ref()), other)
    };
    let near = names.filter(is_alike).take(MOST_COMPARED).map(distance).filter(|(distance, _)| *distance < bound);
    near.min().map(|(_, other)| other)
}

/// The same as a hint.
pub(crate) fn did_you_mean(name: &str, names: impl Iterator<Item = String>) -> Option<String> {
    nearest(name, names).map(|near| format!("did you mean {near}?"))
}

#[cfg(test)]
mod tests {
    use super::{MOST_COMPARED, nearest};
    use crate::steps::count;

    #[test]
    fn the_nearest_name_is_found() {
        let near = |name| nearest(name, ["sched_switch", "sched_waking", "sched_wakeup"].into_iter());
        assert_eq!([near("sched_swtich"), near("tcp_probe")], [Some("sched_switch"), None]);
    }

    /// A name from elsewhere may have any length, and there may be any number of names beside it.
    #[test]
    fn a_hint_costs_no_more_than_it_is_worth() {
        let long = "x".repeat(64 << 10);
        assert_eq!(count(|| nearest(&long, std::iter::once(long.as_str()))), (0, None));
        let name = "y".repeat(60);
        let others = (0..100_000u32).map(|number| format!("{number:060}"));
        assert_eq!(count(|| nearest(&name, others)), (MOST_COMPARED as u64, None));
    }
}
