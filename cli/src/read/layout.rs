//! The fields of a record, as a C struct has them.

use crate::exact::Exact;
use serde_json::Value;
use std::fmt;
use std::str::FromStr;

/// What `--format` says, or BTF.
#[derive(Debug, Clone)]
pub struct Payload(Vec<Field>);

#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Of an array.
    pub(super) count: Option<usize>,
    pub(super) offset: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Unsigned(usize),
    Signed(usize),
    Char,
}

impl Kind {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "char" => Self::Char,
            "u8" | "__u8" | "uint8_t" | "bool" | "unsigned char" => Self::Unsigned(1),
            "u16" | "__u16" | "uint16_t" | "unsigned short" => Self::Unsigned(2),
            "u32" | "__u32" | "uint32_t" | "unsigned" | "unsigned int" | "pid_t" => Self::Unsigned(4),
            "u64" | "__u64" | "uint64_t" | "unsigned long" | "unsigned long long" | "size_t" => Self::Unsigned(8),
            "s8" | "__s8" | "int8_t" | "signed char" => Self::Signed(1),
            "s16" | "__s16" | "int16_t" | "short" => Self::Signed(2),
            "s32" | "__s32" | "int32_t" | "int" => Self::Signed(4),
            "s64" | "__s64" | "int64_t" | "long" | "long long" => Self::Signed(8),
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            Self::Unsigned(size) | Self::Signed(size) => size,
            Self::Char => 1,
        }
    }

    fn value(self, bytes: &[u8]) -> Field64 {
        let mut word = [0; 8];
        let (Self::Unsigned(size) | Self::Signed(size)) = self else { return Field64::Unsigned(bytes[0].into()) };
        word[..size].copy_from_slice(&bytes[..size]);
        let unsigned = u64::from_le_bytes(if cfg!(target_endian = "little") { word } else { swapped(word, size) });
        match self {
            Self::Signed(size) => {
                let unused = 64 - 8 * size as u32;
                Field64::Signed((unsigned << unused) as i64 >> unused)
            }
            _ => Field64::Unsigned(unsigned),
        }
    }
}

fn swapped(mut word: [u8; 8], size: usize) -> [u8; 8] {
    word[..size].reverse();
    word
}

/// A number of any kind.
#[derive(Debug, Clone, Copy)]
enum Field64 {
    Unsigned(u64),
    Signed(i64),
}

/// A field's value: a number, several, a text, or nothing if the record ends before it.
#[derive(Debug)]
pub struct Shown {
    value: Value,
    /// Those of a text.
    bytes: Option<Vec<u8>>,
}

impl Shown {
    /// The value for `fields` of an object, with a note of what a text does not say.
    pub fn json(self, name: &str, exact: &mut Exact) -> Value {
        match self.bytes {
            Some(bytes) => exact.string(&["fields", name], &bytes, false),
            None => self.value,
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Null => f.write_str("?"),
            Value::String(text) => write!(f, "{text:?}"),
            Value::Array(numbers) => numbers
                .iter()
                .enumerate()
                .try_for_each(|(at, number)| write!(f, "{}{number}", if at > 0 { "," } else { "" })),
            number => write!(f, "{number}"),
        }
    }
}

impl Payload {
    #[cfg(feature = "btf")]
    pub(super) fn new(fields: Vec<Field>) -> Self {
        Self(fields)
    }

    /// Where a field of 64 bits lies.
    pub fn offset_of_u64(&self, name: &str) -> Result<usize, String> {
        let known = || self.0.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", ");
        let field = self.0.iter().find(|field| field.name == name);
        let field = field.ok_or_else(|| format!("there is no field {name} among {}", known()))?;
        match (field.kind.size(), field.count) {
            (8, None) => Ok(field.offset),
            _ => Err(format!("the field {name} is no number of 64 bits, so it cannot be the key")),
        }
    }

    /// The names and values of a record's fields.
    pub fn fields(&self, bytes: &[u8]) -> impl Iterator<Item = (&str, Shown)> {
        self.0
            .iter()
            .map(|field| (field.name.as_str(), field.shown(bytes).unwrap_or(Shown { value: Value::Null, bytes: None })))
    }
}

impl Field {
    fn shown(&self, bytes: &[u8]) -> Option<Shown> {
        let size = self.kind.size();
        let bytes = bytes.get(self.offset..)?.get(..size * self.count.unwrap_or(1))?;
        if self.kind == Kind::Char {
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            return Some(Shown { value: String::from_utf8_lossy(text).into(), bytes: Some(text.to_vec()) });
        }
        let mut numbers = bytes.chunks_exact(size).map(|bytes| match self.kind.value(bytes) {
            Field64::Unsigned(number) => Value::from(number),
            Field64::Signed(number) => Value::from(number),
        });
        let value = if self.count.is_some() { numbers.collect() } else { numbers.next()? };
        Some(Shown { value, bytes: None })
    }
}

impl FromStr for Payload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut fields, mut end) = (Vec::<Field>::new(), 0usize);
        for part in text.split([',', ';']).map(str::trim).filter(|part| !part.is_empty()) {
            let (kind, name) =
                part.rsplit_once(char::is_whitespace).ok_or_else(|| format!("`{part}` has no type or no name"))?;
            let kind = kind.split_whitespace().collect::<Vec<_>>().join(" ");
            let kind = Kind::of(&kind)
                .ok_or_else(|| format!("`{kind}` is no type that is known here: u8 to u64, s8 to s64, char"))?;
            let (name, count) = match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
                Some((name, count)) => (
                    name,
                    Some(
                        count
                            .parse()
                            .ok()
                            .filter(|count| (1..=1 << 16).contains(count))
                            .ok_or_else(|| format!("`{part}`: {count} is no length"))?,
                    ),
                ),
                None => (name, None),
            };
            if name.is_empty() || fields.iter().any(|field| field.name == name) {
                return Err(format!("`{part}` needs a name that no other field has"));
            }
            let offset = end.next_multiple_of(kind.size());
            end = offset + kind.size() * count.unwrap_or(1);
            fields.push(Field { name: name.into(), kind, count, offset });
        }
        if fields.is_empty() { Err("there are no fields".into()) } else { Ok(Self(fields)) }
    }
}

#[cfg(test)]
mod tests {
    use super::Payload;

    #[test]
    fn fields_lie_where_c_puts_them() {
        let format: Payload = "u32 pid; u64 ns, char comm[4], s16 n, u8 mac[3]".parse().unwrap();
        assert_eq!(format.offset_of_u64("ns"), Ok(8));
        let mut bytes = vec![0; 25];
        bytes[0] = 7;
        bytes[8] = 9;
        bytes[16..20].copy_from_slice(b"sh\0x");
        bytes[20..22].copy_from_slice(&(-2i16).to_ne_bytes());
        bytes[22..25].copy_from_slice(&[1, 2, 3]);
        let line = |bytes: &[u8]| {
            format.fields(bytes).map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line(&bytes), "pid=7 ns=9 comm=\"sh\" n=-2 mac=1,2,3");
        assert_eq!(line(&bytes[..20]), "pid=7 ns=9 comm=\"sh\" n=? mac=?", "it ends there");
    }

    #[test]
    fn what_is_no_format_says_why() {
        for (text, why) in [
            ("", "there are no fields"),
            ("u32", "`u32` has no type or no name"),
            ("float x", "`float` is no type that is known here: u8 to u64, s8 to s64, char"),
            ("u8 x[0]", "`u8 x[0]`: 0 is no length"),
            ("u8 x, u8 x", "`u8 x` needs a name that no other field has"),
        ] {
            assert_eq!(text.parse::<Payload>().unwrap_err(), why);
        }
        let format: Payload = "u32 pid, u64 both[2]".parse().unwrap();
        assert!(
            format.offset_of_u64("pid").is_err()
                && format.offset_of_u64("both").is_err()
                && format.offset_of_u64("ns").is_err()
        );
    }
}
