//! The values of expressions for a record.

use crate::expression::Expression;
use crate::field::{self, Field, text_of};
use crate::pointers;
use crate::types::{INT, Number, Type};
use perfweave::Bytes;
use std::borrow::Cow;
use std::fmt::Write;
use std::iter;

/// The value of an expression.
#[derive(Debug, Clone)]
pub(super) enum Value<'v> {
    Number(Number),
    Text(Cow<'v, str>),
    Bytes(Bytes<'v>),
}

impl<'v> Value<'v> {
    /// The same, with bytes as text up to their zero byte.
    pub(super) fn into_text(self) -> Self {
        if let Self::Bytes(bytes) = self { Self::Text(text_of(bytes)) } else { self }
    }

    fn number(&self) -> Option<Number> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// An array's bytes.
    pub(super) fn bytes(self) -> Option<Bytes<'v>> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }
}

/// What lies at an address of the kernel: a function as `%pS` prints it, or a string. `None` if that is not known.
pub(super) type Look<'a> = &'a dyn Fn(u64) -> Option<String>;

/// The inputs of an expression: a payload, and the fields of its event.
#[derive(Clone, Copy)]
pub(super) struct Scope<'v> {
    pub(super) fields: &'v [Field],
    pub(super) payload: Bytes<'v>,
    /// The longest text, in bytes, that flags, arrays and bytes produce.
    pub(super) most: usize,
    pub(super) look: Look<'v>,
}

impl Expression {
    /// The number, if the expression needs no record.
    pub(super) fn constant(&self) -> Option<i128> {
        self.integer(Scope { fields: &[], payload: Bytes::default(), most: 0, look: &|_| None })
    }

    pub(super) fn integer(&self, scope: Scope<'_>) -> Option<i128> {
        self.number(scope).map(|number| number.value)
    }

    fn number(&self, scope: Scope<'_>) -> Option<Number> {
        self.value(scope)?.number()
    }

    /// The value for a record. `None` if a field does not fit, or the value is undefined, as in a division by 0.
    pub(super) fn value<'v>(&'v self, scope: Scope<'v>) -> Option<Value<'v>> {
        let number = match self {
            Self::Number(number) => *number,
            Self::Text(text) => return Some(Value::Text(text.as_str().into())),
            Self::Field(field) => return field_value(scope.fields.get(*field)?, scope),
            Self::Address(field) => return scope.fields.get(*field)?.data(scope.payload).map(Value::Bytes),
            Self::Element(field, index) => {
                let (field, at) = (scope.fields.get(*field)?, usize::try_from(index.integer(scope)?).ok()?);
                type_of(field).of(field.element(scope.payload, at)?.into())
            }
            Self::Length(field) => INT.of(scope.fields.get(*field)?.data(scope.payload)?.len() as i128),
            Self::Unary(operator, of) => match (of.value(scope)?, *operator) {
                (Value::Number(Number { value, of }), "-") => of.promoted().of(-value),
                (Value::Number(Number { value, .. }), "!") => INT.of((value == 0).into()),
                (Value::Number(Number { value, of }), "~") => of.promoted().of(!value),
                (Value::Number(Number { value, of }), _) => of.promoted().of(value),
                (of, operator) => return unknown(scope, &[operator], [of]),
            },
            Self::Chain(first, others) => {
                let mut left = first.value(scope)?;
                for (operator, right) in others {
                    left = binary(left, operator, right, scope)?;
                }
                return Some(left);
            }
            Self::Choice(of) => {
                let [condition, then, otherwise] = &**of;
                return match condition.value(scope)? {
                    Value::Number(Number { value: 0, .. }) => otherwise.value(scope),
                    Value::Number(_) => then.value(scope),
                    // Which of both it is, only the kernel knows.
                    other => {
                        let parts = [other, then.value(scope)?, otherwise.value(scope)?];
                        unknown(scope, &["(", " ? ", " : ", ")"], parts)
                    }
                };
            }
            Self::Cast(of, what) => match what.value(scope)? {
                Value::Number(number) => of.of(number.value),
                other => return Some(other),
            },
            Self::Mask(field) => {
                let bytes = scope.fields.get(*field)?.data(scope.payload)?.to_vec();
                return Some(Value::Text(pointers::mask(&bytes, 8 * bytes.len()).into()));
            }
            Self::Unknown(name) => return Some(Value::Text(name.as_str().into())),
            Self::Call(name, arguments) => return call(name, arguments, scope),
            Self::Flags(of, between, names) => return flags(of.integer(scope)?, between, names, scope.most),
            Self::Symbol(of, names) => {
                let number = of.integer(scope)?;
                // 64 bits, as the kernel compares them: a name may be that of -5.
                let name = names.iter().find(|(known, _)| *known as u64 == number as u64);
                return Some(Value::Text(name.map_or_else(|| hex(number).into(), |(_, name)| name.as_str().into())));
            }
            Self::Hex(of, between) => return bytes_in_hex(of, between, scope),
            Self::Array(of) => return array(of, scope),
        };
        Some(Value::Number(number))
    }
}

/// A call of a function that only the kernel has, with the values of its arguments.
fn call<'v>(name: &str, arguments: &'v [Expression], scope: Scope<'v>) -> Option<Value<'v>> {
    let begin = format!("{name}(");
    let signs: Vec<_> = iter::once(&*begin).chain(iter::repeat(", ")).take(arguments.len().max(1)).collect();
    let arguments = arguments.iter().map(|argument| argument.value(scope)).collect::<Option<Vec<_>>>()?;
    unknown(scope, &[&signs[..], &[")"]].concat(), arguments)
}

/// `__print_hex`: the bytes, and how many of them.
fn bytes_in_hex<'v>(of: &'v [Expression; 2], between: &str, scope: Scope<'v>) -> Option<Value<'v>> {
    // A hostile record may have a negative length.
    let (bytes, len) = (of[0].value(scope)?.bytes()?, usize::try_from(of[1].integer(scope)?).ok()?);
    let mut out = String::new();
    for (at, byte) in bytes.get(0..len)?.iter().enumerate() {
        let between = if at == 0 { "" } else { between };
        write!(out, "{between}{byte:02x}").ok()?;
        if out.len() > scope.most {
            break;
        }
    }
    Some(Value::Text(out.into()))
}

fn field_value<'v>(field: &Field, scope: Scope<'v>) -> Option<Value<'v>> {
    if field.is_array() || !matches!(field.width(), 1 | 2 | 4 | 8) {
        return field.data(scope.payload).map(Value::Bytes);
    }
    Some(Value::Number(type_of(field).of(field.number(scope.payload)?.into())))
}

/// The type of a field's numbers.
fn type_of(field: &Field) -> Type {
    // No overflow: wider ones have no number.
    Type { bits: 8 * field.width() as u32, signed: field.is_signed() }
}

/// C with a name that only the kernel's source has: values, each with a sign before it, and the sign at the end.
fn unknown<'v>(scope: Scope<'v>, signs: &[&str], values: impl IntoIterator<Item = Value<'v>>) -> Option<Value<'v>> {
    let (mut out, mut signs) = (String::new(), signs.iter());
    for value in values {
        out.push_str(signs.next()?);
        match value.into_text() {
            Value::Number(number) => write!(out, "{}", number.value).ok()?,
            Value::Text(text) => out.push_str(&text),
            Value::Bytes(_) => return None,
        }
    }
    out.extend(signs.copied());
    (out.len() <= scope.most).then_some(Value::Text(out.into()))
}

fn binary<'v>(left: Value<'v>, operator: &str, right: &'v Expression, scope: Scope<'v>) -> Option<Value<'v>> {
    let truth = |is_true: bool| Some(Value::Number(INT.of(is_true.into())));
    // The right side must not be evaluated in every case.
    match (operator, left.number().map(|left| left.value)) {
        ("&&", Some(0)) => return truth(false),
        ("||", Some(1.. | ..=-1)) => return truth(true),
        _ => {}
    }
    let (left, right) = match (left, right.value(scope)?) {
        (Value::Number(left), Value::Number(right)) => (left, right),
        (left, right) => return unknown(scope, &["(", &format!(" {operator} "), ")"], [left, right]),
    };
    if matches!(operator, "<<" | ">>") {
        // Longer shifts are undefined in C. Those of an `int` that need more bits are so too, and get them.
        let by = u32::try_from(right.value).ok().filter(|by| *by < 64)?;
        let of = left.of.promoted();
        let of = if by < of.bits { of } else { Type { bits: 64, ..of } };
        return Some(Value::Number(of.of(if operator == "<<" { left.value << by } else { left.value >> by })));
    }
    let of = left.of.common(right.of);
    let (left, right) = (of.of(left.value).value, of.of(right.value).value);
    Some(Value::Number(of.of(match operator {
        "|" => left | right,
        "^" => left ^ right,
        "&" => left & right,
        "+" => left + right,
        "-" => left - right,
        "*" => left.wrapping_mul(right),
        "/" => left.checked_div(right)?,
        "%" => left.checked_rem(right)?,
        "&&" | "||" => return truth(right != 0),
        "==" => return truth(left == right),
        "!=" => return truth(left != right),
        "<" => return truth(left < right),
        ">" => return truth(left > right),
        "<=" => return truth(left <= right),
        ">=" => return truth(left >= right),
        _ => return None,
    })))
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
    let (count, width) = (usize::try_from(of[1].integer(scope)?).ok()?, usize::try_from(of[2].integer(scope)?).ok()?);
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
