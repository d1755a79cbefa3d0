//! Texts in which no name commands a terminal: of the program and of the archive's.

use std::borrow::Cow;
use std::fmt::{Arguments, Write as _};

/// A text that is one line, and no command to a terminal. Any process chooses names, paths and symbols that others
/// print. What is no character to be seen is written as JSON writes it: controls, ends of lines, and what turns the
/// direction of letters or hides. So a line of JSON stays what it was.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            hidden if is_hidden(hidden) => {
                // Writing to memory does not fail.
                for unit in hidden.encode_utf16(&mut [0; 2]) {
                    let _ = write!(line, "\\u{unit:04x}");
                }
            }
            letter => line.push(letter),
        }
    }
    line.into()
}

/// Controls, and Unicode's characters of format (Cf) and ends of lines and paragraphs (Zl, Zp) as far as terminals obey
/// or hide them.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A line on standard error, [printable].
pub fn say(text: Arguments<'_>) {
    eprintln!("{}", printable(&text.to_string()));
}
