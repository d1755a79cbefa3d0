//! The tokens of `print fmt`: C as it is after the kernel's macros.

use crate::types::{INT, LONG, Number, Type, UNSIGNED_INT, UNSIGNED_LONG};

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token<'t> {
    Name(&'t str),
    Number(Number),
    /// With its escapes resolved.
    Text(String),
    Sign(&'static str),
}

/// Longer ones first.
const SIGNS: [&str; 33] = [
    "->", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+", "-", "*", "/", "%", "&", "|", "^", "~", "!", "<", ">",
    "?", ":", "(", ")", "[", "]", "{", "}", ",", ".", ";", "=",
];

/// All tokens of a text. `None` if the text has anything else in it.
pub(super) fn tokens(mut text: &str) -> Option<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    loop {
        text = text.trim_start();
        let Some(first) = text.chars().next() else { return Some(tokens) };
        let (token, rest) = match first {
            '"' => {
                let (text, rest) = quoted(&text[1..], '"')?;
                (Token::Text(text), rest)
            }
            '\'' => {
                let (text, rest) = quoted(&text[1..], '\'')?;
                (Token::Number(INT.of(u32::from(text.chars().next()?).into())), rest)
            }
            '0'..='9' => number(text)?,
            'a'..='z' | 'A'..='Z' | '_' => {
                let (name, rest) = split(text, |c| c.is_ascii_alphanumeric() || c == '_');
                (Token::Name(name), rest)
            }
            _ => {
                let sign = SIGNS.into_iter().find(|sign| text.starts_with(sign))?;
                (Token::Sign(sign), &text[sign.len()..])
            }
        };
        tokens.push(token);
        text = rest;
    }
}

/// The longest prefix whose letters all belong, and the rest.
fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

fn number(text: &str) -> Option<(Token<'_>, &str)> {
    let (written, rest) = split(text, |c| c.is_ascii_alphanumeric());
    // None of these letters is a digit, also of hexadecimal numbers.
    let digits = written.trim_end_matches(['u', 'U', 'l', 'L']);
    let (radix, only) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => (16, hex),
        None if digits.len() > 1 && digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    let value: i128 = u64::from_str_radix(only, radix).ok()?.into();
    let suffix = &written[digits.len()..];
    // The first type that has the number; of decimal ones without a suffix, the signed ones (C, 6.4.4.1).
    let fits = |of: &Type| {
        let is_long_enough = of.bits == LONG.bits || !suffix.contains(['l', 'L']);
        let has_sign = if suffix.contains(['u', 'U']) { !of.signed } else { of.signed || radix != 10 };
        is_long_enough && has_sign && of.of(value).value == value
    };
    let of = [INT, UNSIGNED_INT, LONG].into_iter().find(fits).unwrap_or(UNSIGNED_LONG);
    Some((Token::Number(of.of(value)), rest))
}

/// The text up to a quote, with its escapes resolved, and the rest.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let (mut out, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            _ if c == quote => return Some((out, &text[at + c.len_utf8()..])),
            '\\' => out.push(match chars.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                '0' => '\0',
                other => other,
            }),
            _ => out.push(c),
        }
    }
    None
}
