//! The values of expressions for a record.

use crate::expression::{Cast, Expression};
use crate::field::{self, Field, text_of};
use perfweave::Bytes;
use std::borrow::Cow;
use std::fmt::Write;

/// The value of an expression. Numbers are wide enough for 64 bits of either signedness.
#[derive(Debug, Clone)]
pub(super) enum Value<'v> {
    Number(i128),
    Text(Cow<'v, str>),
    Bytes(Bytes<'v>),
}

impl<'v> Value<'v> {
    /// The same, with bytes as text up to their zero byte.
    pub(super) fn into_text(self) -> Self {
        if let Self::Bytes(bytes) = self { Self::Text(text_of(bytes)) } else { self }
    }

    pub(super) fn number(&self) -> Option<i128> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// An array's bytes.
    fn bytes(self) -> Option<Bytes<'v>> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }
}

/// The inputs of an expression: a payload, and the fields of its event.
#[derive(Clone, Copy)]
pub(super) struct Scope<'v> {
    pub(super) fields: &'v [Field],
    pub(super) payload: Bytes<'v>,
    /// The longest text, in bytes, that flags, arrays and bytes produce.
    pub(super) most: usize,
}

impl Expression {
    /// The number, if the expression needs no record.
    pub(super) fn constant(&self) -> Option<i128> {
        self.number(Scope { fields: &[], payload: Bytes::default(), most: 0 })
    }

    pub(super) fn number(&self, scope: Scope<'_>) -> Option<i128> {
        self.value(scope)?.number()
    }

    /// The value for a record. `None` if a field does not fit, or the value is undefined, as in a division by 0.
    pub(super) fn value<'v>(&'v self, scope: Scope<'v>) -> Option<Value<'v>> {
        let number = match self {
            Self::Number(number) => *number,
            Self::Text(text) => return Some(Value::Text(text.as_str().into())),
            Self::Field(field) => return field_value(scope.fields.get(*field)?, scope),
            Self::Element(field, index) => {
                let at = usize::try_from(index.number(scope)?).ok()?;
                scope.fields.get(*field)?.element(scope.payload, at)?.into()
            }
            Self::Length(field) => scope.fields.get(*field)?.data(scope.payload)?.len() as i128,
            Self::Unary(operator, of) => {
                let of = of.number(scope)?;
                match *operator {
                    "-" => of.checked_neg()?,
                    "!" => (of == 0).into(),
                    "~" => !of,
                    _ => of,
                }
            }
            Self::Chain(first, others) => {
                let first = first.number(scope)?;
                others.iter().try_fold(first, |left, (operator, right)| binary(left, operator, right, scope))?
            }
            Self::Choice(of) => {
                let [condition, then, otherwise] = &**of;
                return if condition.number(scope)? != 0 { then.value(scope) } else { otherwise.value(scope) };
            }
            Self::Cast(cast, of) => match of.value(scope)? {
                Value::Number(number) => cast.cut(number),
                other => return Some(other),
            },
            Self::Flags(of, between, names) => return flags(of.number(scope)?, between, names, scope.most),
            Self::Symbol(of, names) => {
                let number = of.number(scope)?;
                // 64 bits, as the kernel compares them: a name may be that of -5.
                let name = names.iter().find(|(known, _)| *known as u64 == number as u64);
                return Some(Value::Text(name.map_or_else(|| hex(number).into(), |(_, name)| name.as_str().into())));
            }
            Self::Hex(of, between) => {
                // A hostile record may have a negative length.
                let (bytes, len) = (of[0].value(scope)?.bytes()?, usize::try_from(of[1].number(scope)?).ok()?);
                let mut out = String::new();
                for (at, byte) in bytes.get(0..len)?.iter().enumerate() {
                    let between = if at == 0 { "" } else { *between };
                    write!(out, "{between}{byte:02x}").ok()?;
                    if out.len() > scope.most {
                        break;
                    }
                }
                return Some(Value::Text(out.into()));
            }
            Self::Array(of) => return array(of, scope),
        };
        Some(Value::Number(number))
    }
}

fn field_value<'v>(field: &Field, scope: Scope<'v>) -> Option<Value<'v>> {
    if field.is_array() || !matches!(field.width(), 1 | 2 | 4 | 8) {
        return field.data(scope.payload).map(Value::Bytes);
    }
    let number = field.number(scope.payload)?;
    Some(Value::Number(if field.is_signed() { number.into() } else { (number as u64).into() }))
}

impl Cast {
    pub(super) fn cut(self, number: i128) -> i128 {
        let unused = 128 - self.bits;
        if self.signed { number << unused >> unused } else { ((number as u128) << unused >> unused) as i128 }
    }
}

fn binary(left: i128, operator: &str, right: &Expression, scope: Scope<'_>) -> Option<i128> {
    // The right side must not be evaluated in every case.
    match (operator, left) {
        ("&&", 0) => return Some(0),
        ("||", 1..) | ("||", ..=-1) => return Some(1),
        _ => {}
    }
    let right = right.number(scope)?;
    // Longer shifts are undefined in C.
    let shift = || u32::try_from(right).ok().filter(|by| *by < 64);
    Some(match operator {
        "&&" | "||" => (right != 0).into(),
        "|" => left | right,
        "^" => left ^ right,
        "&" => left & right,
        "==" => (left == right).into(),
        "!=" => (left != right).into(),
        "<" => (left < right).into(),
        ">" => (left > right).into(),
        "<=" => (left <= right).into(),
        ">=" => (left >= right).into(),
        // No number of C has more bits.
        "<<" => Cast { bits: 64, signed: left < 0 }.cut(left.checked_shl(shift()?)?),
        ">>" => left >> shift()?,
        "+" => left.checked_add(right)?,
        "-" => left.checked_sub(right)?,
        "*" => left.checked_mul(right)?,
        "/" => left.checked_div(right)?,
        "%" => left.checked_rem(right)?,
        _ => return None,
    })
}

fn hex(number: i128) -> String {
    format!("{:#x}", number as u64)
}

/// As `trace_print_flags_seq` prints them (`kernel/trace/trace_output.c`).
fn flags<'v>(flags: i128, between: &str, names: &'v [(i128, String)], most: usize) -> Option<Value<'v>> {
    let mut left = flags as u64;
    let (mut out, mut is_first) = (String::new(), true);
    let mut part = |name: &str| {
        let between = if std::mem::take(&mut is_first) { "" } else { between };
        out.extend([between, name]);
        out.len() <= most
    };
    for (mask, name) in names {
        let mask = *mask as u64;
        if left == 0 {
            break;
        }
        if left & mask == mask {
            left &= !mask;
            // A mask of 0 would match without end.
            if !part(name) {
                return Some(Value::Text(out.into()));
            }
        }
    }
    if left != 0 {
        part(&hex(left.into()));
    }
    Some(Value::Text(out.into()))
}

/// As `trace_print_array_seq` prints them.
fn array<'v>(of: &'v [Expression; 3], scope: Scope<'v>) -> Option<Value<'v>> {
    let bytes = of[0].value(scope)?.bytes()?;
    let (count, width) = (usize::try_from(of[1].number(scope)?).ok()?, usize::try_from(of[2].number(scope)?).ok()?);
    let mut out = String::from("{");
    for at in 0..count {
        let comma = if at == 0 { "" } else { "," };
        // The count is an expression, which may be larger than the array: then the record does not fit the format.
        let number = field::number(bytes, at.checked_mul(width)?, width, false)?;
        write!(out, "{comma}{number:#x}").ok()?;
        if out.len() > scope.most {
            break;
        }
    }
    out.push('}');
    Some(Value::Text(out.into()))
}
