//! `print fmt`: a format of printf(3) with its arguments, evaluated for a record.

use crate::expression::{Expression, Parser};
use crate::field::{Field, LONGEST, shorten};
use crate::pointers;
use crate::steps::step;
use crate::tokens::tokens;
use crate::types::{INT, Type};
use crate::value::{Look, Scope, Value};
use perfweave::Bytes;

/// How an event is printed.
#[derive(Debug, Clone)]
pub(super) struct Print {
    pieces: Vec<Piece>,
    /// Whether all of it was understood.
    pub(super) is_whole: bool,
}

#[derive(Debug, Clone)]
enum Piece {
    Text(String),
    Argument(Box<(Conversion, Expression)>),
}

/// `%-*.3llx`
#[derive(Debug, Clone, Default)]
struct Conversion {
    left: bool,
    zeros: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: Option<Expression>,
    precision: Option<Expression>,
    /// Of the number.
    bits: u32,
    letter: char,
    /// The letters behind `p`.
    kind: String,
}

/// Wider than any field of a line. The kernel's own lines are at most a page.
const WIDEST: usize = 4096;

/// The longest `print fmt` that is evaluated, in bytes. The kernel's own are a few KiB, and each line evaluates all of
/// it.
const LONGEST_FORMAT: usize = 64 << 10;

impl Print {
    /// Parses the text after `print fmt:`. `None` if it is no text with arguments, or longer than [`LONGEST_FORMAT`].
    pub(super) fn parse(text: &str, fields: &[Field]) -> Option<Self> {
        (text.len() <= LONGEST_FORMAT).then_some(())?;
        let tokens = tokens(text)?;
        let mut parser = Parser::new(&tokens, fields);
        let format = parser.text()?;
        let mut pieces = Vec::new();
        let (mut rest, mut is_whole) = (format.as_str(), true);
        while let Some((before, behind)) = rest.split_once('%') {
            pieces.push(Piece::Text(before.to_owned()));
            rest = match behind.strip_prefix('%') {
                Some(behind) => {
                    pieces.push(Piece::Text("%".into()));
                    behind
                }
                None => {
                    let (conversion, behind) = Conversion::parse(behind, &mut parser)?;
                    is_whole &= pointers::is_known(&conversion.kind);
                    parser.takes(",").then_some(())?;
                    pieces.push(Piece::Argument(Box::new((conversion, parser.expression()?))));
                    behind
                }
            };
        }
        pieces.push(Piece::Text(rest.to_owned()));
        // Arguments that are left over show that the format was not understood.
        is_whole &= parser.is_whole;
        parser.is_at_end().then_some(Self { pieces, is_whole })
    }

    /// The line for a payload, or the start of one that is longer than [`LONGEST`]. `None` if the payload does not fit.
    pub(super) fn line(&self, fields: &[Field], payload: Bytes<'_>, look: Look<'_>) -> Option<String> {
        let mut scope = Scope { fields, payload, most: LONGEST, look };
        let mut line = String::new();
        for piece in &self.pieces {
            step();
            match piece {
                Piece::Text(text) => line.push_str(text),
                Piece::Argument(argument) => {
                    let (conversion, argument) = &**argument;
                    // Text that a precision cuts off was made too.
                    let made = conversion.print(argument.value(scope)?, scope, &mut line)?;
                    scope.most = scope.most.saturating_sub(made);
                }
            }
            if line.len() > LONGEST || scope.most == 0 {
                break;
            }
        }
        shorten(&mut line);
        Some(line)
    }
}

impl Conversion {
    /// Parses the text after a `%`. Each `*` takes an argument.
    fn parse<'t>(mut text: &'t str, arguments: &mut Parser<'_>) -> Option<(Self, &'t str)> {
        let mut conversion = Self { bits: 32, ..Self::default() };
        loop {
            let flag = match text.chars().next()? {
                '-' => &mut conversion.left,
                '0' => &mut conversion.zeros,
                '+' => &mut conversion.plus,
                ' ' => &mut conversion.space,
                '#' => &mut conversion.alternate,
                _ => break,
            };
            *flag = true;
            text = &text[1..];
        }
        (conversion.width, text) = count(text, arguments)?;
        if let Some(behind) = text.strip_prefix('.') {
            (conversion.precision, text) = count(behind, arguments)?;
            // A dot alone means 0 (printf(3)).
            conversion.precision = conversion.precision.or(Some(Expression::Number(INT.of(0))));
        }
        let behind_length = text.trim_start_matches(['h', 'l', 'L', 'q', 'z', 't', 'j']);
        conversion.bits = match &text[..text.len() - behind_length.len()] {
            "" => 32,
            "h" => 16,
            "hh" => 8,
            _ => 64,
        };
        conversion.letter = behind_length.chars().next()?;
        text = &behind_length[conversion.letter.len_utf8()..];
        match conversion.letter {
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'c' | 's' => Some((conversion, text)),
            'p' => {
                // The letters after it say what the kernel prints.
                let behind = text.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
                text[..text.len() - behind.len()].clone_into(&mut conversion.kind);
                Some((conversion, behind))
            }
            _ => None,
        }
    }

    /// Adds a value to the line. Gives the length of the text that was made for it.
    fn print(&self, value: Value<'_>, scope: Scope<'_>, line: &mut String) -> Option<usize> {
        let given = |count: &Option<Expression>| match count {
            Some(count) => Some(Some(INT.of(count.integer(scope)?).value)),
            None => Some(None),
        };
        let given_width = given(&self.width)?;
        let count = given_width.and_then(|count| usize::try_from(count).ok());
        let width = given_width.filter(|_| !pointers::counts(&self.kind)).unwrap_or(0);
        // A negative width means left alignment.
        let left = self.left || width < 0;
        let width = usize::try_from(width.unsigned_abs()).ok()?.min(WIDEST);
        // A negative precision is as none (printf(3)).
        let precision = given(&self.precision)?.and_then(|count| usize::try_from(count).ok());
        let value = if self.letter == 'p' { value } else { value.into_text() };
        // Text that a precision cuts off was made too.
        let made = if let Value::Text(text) = &value { text.len() } else { 0 };
        let (sign, digits) = match (self.letter, value) {
            ('p', value) => ("", pointers::text(&self.kind, value, count, scope)?),
            ('s', Value::Number(number)) => {
                // The address of a string that only the kernel can read.
                let address = number.value as u64;
                ("", (scope.look)(address).map_or_else(|| format!("{address:#x}"), |text| cut(&text, precision)))
            }
            ('s', Value::Text(text)) => ("", cut(&text, precision)),
            ('c', Value::Number(number)) => ("", char::from(number.value as u8).to_string()),
            (_, Value::Number(number)) => self.digits(number.value, precision.map(|digits| digits.min(WIDEST))),
            // Names that only the kernel has.
            (_, Value::Text(text)) => ("", text.into_owned()),
            _ => return None,
        };
        let padding = width.saturating_sub(sign.len() + digits.chars().count());
        let is_number = !matches!(self.letter, 's' | 'c' | 'p');
        // A number with a precision is not filled up with zeros (printf(3)).
        let (before, zeros, behind) = match (left, self.zeros && is_number && precision.is_none()) {
            (true, _) => (0, 0, padding),
            (false, true) => (0, padding, 0),
            (false, false) => (padding, 0, 0),
        };
        line.extend(std::iter::repeat_n(' ', before));
        line.push_str(sign);
        line.extend(std::iter::repeat_n('0', zeros));
        line.push_str(&digits);
        line.extend(std::iter::repeat_n(' ', behind));
        Some(made.max(digits.len()))
    }

    /// Sign or prefix of a number, and its digits.
    fn digits(&self, number: i128, precision: Option<usize>) -> (&'static str, String) {
        let signed = matches!(self.letter, 'd' | 'i');
        let number = Type { bits: self.bits, signed }.of(number).value;
        let sign = match (signed, number < 0) {
            (true, true) => "-",
            (true, false) if self.plus => "+",
            (true, false) if self.space => " ",
            _ => "",
        };
        let number = number.unsigned_abs();
        let (prefix, digits) = match self.letter {
            'x' => ("0x", format!("{number:x}")),
            'X' => ("0X", format!("{number:X}")),
            // The kernel has the prefix of 0 in hexadecimal only (lib/vsprintf.c).
            'o' if number == 0 => ("", "0".to_owned()),
            'o' => ("0", format!("{number:o}")),
            _ => ("", number.to_string()),
        };
        let zeros = precision.unwrap_or(0).saturating_sub(digits.len());
        let sign = if self.alternate && !signed { prefix } else { sign };
        (sign, "0".repeat(zeros) + &digits)
    }
}

/// The start of a text, if a precision limits it.
fn cut(text: &str, most: Option<usize>) -> String {
    text.chars().take(most.unwrap_or(usize::MAX)).collect()
}

/// A width or precision: digits, or `*` for an argument.
fn count<'t>(text: &'t str, arguments: &mut Parser<'_>) -> Option<(Option<Expression>, &'t str)> {
    if let Some(behind) = text.strip_prefix('*') {
        arguments.takes(",").then_some(())?;
        return Some((Some(arguments.expression()?), behind));
    }
    let behind = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &text[..text.len() - behind.len()];
    let count =
        if digits.is_empty() { None } else { Some(Expression::Number(INT.of(digits.parse::<u32>().ok()?.into()))) };
    Some((count, behind))
}
