//! A tracepoint's fields: where each lies, and how it is read.

use perfweave::{Bytes, Record};
use std::borrow::Cow;
use std::sync::Arc;

/// A field of a tracepoint, read in place. [`Format::field`](super::Format::field) looks it up once; cloning is cheap.
///
/// Each read is checked against the payload: a field that does not fit gives `None`. Numbers are read in the machine's
/// byte order. The caller passes records of the field's own event ([`Record::source`]). In records of other events,
/// other data lies at the same offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    name: Arc<str>,
    type_name: Arc<str>,
    offset: usize,
    size: usize,
    signed: bool,
    place: Place,
    /// Bytes of one element.
    width: usize,
    array: bool,
    /// Whether elements are plain `char`.
    text: bool,
}

/// Where the data of a field lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Here,
    /// From this offset to the end of the payload.
    Rest,
    /// Where a word `length << 16 | offset` says, counted from the payload's start (`__data_loc`).
    DataLoc,
    /// The same, counted from the word's own end (`__rel_loc`, Linux 5.16).
    RelLoc,
}

impl Field {
    /// Reads `field:char comm[16]; offset:8; size:16; signed:0;`, with tabs in between.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
        let declared = parts.next()?;
        let (mut offset, mut size, mut signed) = (None, None, false);
        for part in parts.filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once(':')?;
            match key {
                // 16 bits, as the size of a record: no sum of offsets and sizes overflows.
                "offset" => offset = Some(value.parse::<u16>().ok()?.into()),
                "size" => size = Some(value.parse::<u16>().ok()?.into()),
                "signed" => signed = value == "1",
                _ => {}
            }
        }
        Self::declared(declared, offset?, size?, signed)
    }

    /// A field by its declaration in C: `char comm[16]`, `__data_loc char[] name`, `const char * name`.
    fn declared(declared: &str, offset: usize, size: usize, signed: bool) -> Option<Self> {
        let (place, declared) = match declared.split_once(' ') {
            Some(("__data_loc", rest)) => (Place::DataLoc, rest),
            Some(("__rel_loc", rest)) => (Place::RelLoc, rest),
            _ => (Place::Here, declared),
        };
        // The dimensions follow the name, or, for dynamic arrays, the type.
        let (before, dimensions) = declared.split_at(declared.find('[').unwrap_or(declared.len()));
        let (dimensions, behind) = dimensions.split_at(dimensions.rfind(']').map_or(0, |last| last + 1));
        let (type_, name) = if behind.trim().is_empty() {
            let before = before.trim_end();
            let name = before.rsplit(|c| !is_of_name(c)).next().unwrap_or("");
            before.split_at(before.len() - name.len())
        } else {
            (before, behind)
        };
        let (type_, name) = (type_.trim(), name.trim());
        if type_.is_empty() || name.is_empty() || !name.chars().all(is_of_name) {
            return None;
        }
        let array = !dimensions.is_empty() || place != Place::Here;
        let place = if place == Place::Here && array && size == 0 { Place::Rest } else { place };
        // The word that says where the data lies has 32 bits in every kernel.
        if matches!(place, Place::DataLoc | Place::RelLoc) && size != 4 {
            return None;
        }
        // A dimension may be the name of a constant. Without dimensions the product is that of a scalar.
        let mut counts =
            dimensions.split(['[', ']']).filter(|count| !count.is_empty()).map(|count| count.parse::<usize>().ok());
        let count = match counts.next() {
            None if array => None,
            first => counts.try_fold(first.unwrap_or(Some(1)), |all, one| Some(all?.checked_mul(one?))).flatten(),
        };
        // A hostile format may give a size that is no multiple of the count. Then the type has the width.
        let width = match (place, count) {
            (Place::Here, Some(count)) if !array || size.is_multiple_of(count) => size / count.max(1),
            _ => width_of(type_),
        };
        // A string has at least a byte in each element, whatever the format claims. A field that is no array has all
        // its bytes, even if there are none.
        let width = if array { width.max(1) } else { width };
        let text = array && type_.trim_start_matches("const ") == "char";
        Some(Self { name: name.into(), type_name: type_.into(), offset, size, signed, place, width, array, text })
    }

    /// The field's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type in C, without the dimensions of an array: `int`, `const char *`, `umode_t`.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Where the field begins, in bytes from the payload's start. For `__data_loc` and `__rel_loc`, the offset of the
    /// word that locates the data.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// How many bytes the field has there. 0 for one that reaches to the end of the payload.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether its numbers are signed.
    pub fn is_signed(&self) -> bool {
        self.signed
    }

    /// Whether it has several elements: an array, a string, or dynamic data.
    pub fn is_array(&self) -> bool {
        self.array
    }

    /// Bytes of an element; of the whole field if it is no array.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether it is a string: an array of `char`.
    pub fn is_text(&self) -> bool {
        self.text
    }

    /// The number, sign-extended if the field is signed. `None` for arrays, for structs, and if it does not fit. An
    /// unsigned number from 2^63 on becomes negative: see [`Field::uint`].
    #[inline]
    pub fn int(&self, record: &Record<'_>) -> Option<i64> {
        self.number(record.payload()?)
    }

    /// The number's own bits, without its sign: -1 of 4 bytes is `u32::MAX`. `None` in the same cases as
    /// [`Field::int`].
    #[inline]
    pub fn uint(&self, record: &Record<'_>) -> Option<u64> {
        if self.array {
            return None;
        }
        unsigned(record.payload()?, self.offset, self.width)
    }

    /// The numbers of an array, fixed or dynamic, each like [`Field::int`]. For a field that is no array, its one
    /// number. `None` if elements are not numbers of 1, 2, 4 or 8 bytes, or if the array does not fit.
    pub fn ints<'a>(&self, record: &Record<'a>) -> Option<impl ExactSizeIterator<Item = i64> + Clone + use<'a>> {
        self.numbers(record.payload()?)
    }

    /// The field's bytes: for `__data_loc` and `__rel_loc`, those that it points to. `None` if they do not fit.
    pub fn bytes<'a>(&self, record: &Record<'a>) -> Option<Bytes<'a>> {
        self.data(record.payload()?)
    }

    /// The string up to its zero byte, or to the field's end. Borrowed unless it wraps or is not UTF-8. Invalid UTF-8
    /// becomes U+FFFD. `None` if elements are longer than a byte, for fields that are no array, and if it does not fit.
    ///
    /// Any process chooses its names and paths: they may have escape sequences of terminals and ends of lines
    /// ([`str::escape_debug`]).
    pub fn text<'a>(&self, record: &Record<'a>) -> Option<Cow<'a, str>> {
        (self.array && self.width == 1).then(|| Some(text_of(self.data(record.payload()?)?)))?
    }

    #[inline]
    pub(super) fn number(&self, payload: Bytes<'_>) -> Option<i64> {
        if self.array {
            return None;
        }
        number(payload, self.offset, self.width, self.signed)
    }

    pub(super) fn numbers<'a>(
        &self,
        payload: Bytes<'a>,
    ) -> Option<impl ExactSizeIterator<Item = i64> + Clone + use<'a>> {
        let (data, width, signed) = (self.data(payload)?, self.width, self.signed);
        let is_number = matches!(width, 1 | 2 | 4 | 8);
        is_number
            // Never the default: only whole elements are counted.
            .then(|| (0..data.len() / width).map(move |at| number(data, at * width, width, signed).unwrap_or_default()))
    }

    /// A number of an array.
    pub(super) fn element(&self, payload: Bytes<'_>, at: usize) -> Option<i64> {
        number(self.data(payload)?, at.checked_mul(self.width)?, self.width, self.signed)
    }

    pub(super) fn data<'a>(&self, payload: Bytes<'a>) -> Option<Bytes<'a>> {
        // No overflow, here and below: offset and size have 16 bits (`parse`), and so has each half of the word.
        let end = self.offset + self.size;
        let pointed = |from: usize| {
            let word = payload.u32(self.offset)?;
            let begin = from + (word & 0xffff) as usize;
            payload.get(begin..begin + (word >> 16) as usize)
        };
        match self.place {
            Place::Here => payload.get(self.offset..end),
            Place::Rest => payload.skip(self.offset),
            Place::DataLoc => pointed(0),
            Place::RelLoc => pointed(end),
        }
    }
}

#[inline]
fn unsigned(bytes: Bytes<'_>, at: usize, width: usize) -> Option<u64> {
    match width {
        1 => bytes.u8(at).map(u64::from),
        2 => bytes.u16(at).map(u64::from),
        4 => bytes.u32(at).map(u64::from),
        8 => bytes.u64(at),
        _ => None,
    }
}

/// A number of that many bytes.
#[inline]
pub(super) fn number(bytes: Bytes<'_>, at: usize, width: usize, signed: bool) -> Option<i64> {
    let bits = unsigned(bytes, at, width)? as i64;
    // No underflow: `unsigned` takes no width of more than 8 bytes.
    let unused = 64 - 8 * width as u32;
    Some(if signed { bits << unused >> unused } else { bits })
}

/// Text up to its zero byte.
pub(super) fn text_of(bytes: Bytes<'_>) -> Cow<'_, str> {
    let until_zero = |run: &[u8]| run.iter().position(|byte| *byte == 0);
    let (head, tail) = bytes.as_slices();
    match (until_zero(head), tail) {
        (Some(end), _) => String::from_utf8_lossy(&head[..end]),
        (None, []) => String::from_utf8_lossy(head),
        (None, tail) => {
            let tail = &tail[..until_zero(tail).unwrap_or(tail.len())];
            String::from_utf8_lossy(&[head, tail].concat()).into_owned().into()
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The size of a C type, for arrays whose format gives no length.
fn width_of(type_: &str) -> usize {
    if type_.ends_with('*') {
        return 8;
    }
    let words = || type_.split_whitespace();
    let has = |names: &[&str]| words().any(|word| names.contains(&word.trim_start_matches("__")));
    if has(&["long", "u64", "s64", "be64", "le64", "size_t", "ssize_t", "loff_t", "sector_t", "uint64_t", "int64_t"]) {
        8
    } else if has(&["short", "u16", "s16", "be16", "le16", "uint16_t", "int16_t"]) {
        2
    } else if has(&["int", "unsigned", "u32", "s32", "be32", "le32", "uint32_t", "int32_t", "pid_t", "dev_t"])
        && !has(&["char"])
    {
        4
    } else {
        1
    }
}

/// The longest line, in bytes. A text from another machine may ask for more than there is memory.
pub(super) const LONGEST: usize = 64 << 10;

/// Cuts a line to [`LONGEST`].
pub(super) fn shorten(line: &mut String) {
    let mut end = LONGEST.min(line.len());
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(declared: &str, offset: usize, size: usize, signed: bool) -> Field {
        Field::declared(declared, offset, size, signed).unwrap_or_else(|| panic!("{declared}"))
    }

    #[test]
    fn declarations_are_understood() {
        for (declared, size, name, width, array, text) in [
            ("char comm[16]", 16, "comm", 1, true, true),
            ("char comm[TASK_COMM_LEN]", 16, "comm", 1, true, true),
            ("pid_t pid", 4, "pid", 4, false, false),
            ("const char * name", 8, "name", 8, false, false),
            ("const char *name", 8, "name", 8, false, false),
            ("unsigned long args[6]", 48, "args", 8, true, false),
            ("__u8 saddr[4]", 4, "saddr", 1, true, false),
            ("u32 grid[2][3]", 24, "grid", 4, true, false),
            ("__data_loc char[] name", 4, "name", 1, true, true),
            ("__data_loc unsigned char[] data", 4, "data", 1, true, false),
            ("__rel_loc u16[] words", 4, "words", 2, true, false),
            ("__data_loc unsigned long[] mask", 4, "mask", 8, true, false),
            ("__data_loc cpumask_t *[] cpus", 4, "cpus", 8, true, false),
            ("char buf[]", 0, "buf", 1, true, true),
            ("struct in6_addr addr", 16, "addr", 16, false, false),
            ("bool ok", 1, "ok", 1, false, false),
            ("struct empty nothing", 0, "nothing", 0, false, false),
            // By the size if it is a multiple of the count, else by the type.
            ("struct pair pairs[2]", 24, "pairs", 12, true, false),
            ("u32 odd[2]", 13, "odd", 4, true, false),
            ("u32 none[0]", 8, "none", 4, true, false),
            ("u16 any[]", 8, "any", 2, true, false),
        ] {
            let field = field(declared, 8, size, false);
            let found = (field.name(), field.width(), field.is_array(), field.is_text());
            assert_eq!(found, (name, width, array, text), "{declared}");
        }
        for none in ["", "int", "char []", "__data_loc char[] ", "void (*call)(int)"] {
            assert_eq!(Field::declared(none, 0, 4, false), None, "{none}");
        }
        assert_eq!(Field::declared("__data_loc char[] name", 0, 2, false), None, "of no kernel");
    }

    /// Each number at each place a payload can wrap.
    #[test]
    fn numbers_have_their_width_and_sign() {
        let bytes: Vec<u8> = (0x80..0x90).collect();
        for cut in 0..=bytes.len() {
            let payload = Bytes::new(&bytes[..cut], &bytes[cut..]);
            for (width, bits) in [
                (1, 0x81),
                (2, u16::from_ne_bytes([0x81, 0x82]).into()),
                (4, u32::from_ne_bytes([0x81, 0x82, 0x83, 0x84]).into()),
                (8, u64::from_ne_bytes([0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88])),
            ] {
                let is_negative = bits >> (8 * width - 1) & 1 == 1;
                let extended = if width < 8 && is_negative { bits | u64::MAX << (8 * width) } else { bits };
                assert_eq!(field("int x", 1, width, false).number(payload), Some(bits as i64));
                assert_eq!(field("int x", 1, width, true).number(payload), Some(extended as i64));
                assert_eq!(unsigned(payload, 1, width), Some(bits));
            }
            assert_eq!(field("struct s x", 1, 3, true).number(payload), None);
            assert_eq!(field("int x", 13, 4, true).number(payload), None, "does not fit");
            assert_eq!(field("struct s x", 1, 0, true).number(payload), None, "has no byte");
            let array = field("u8 x[3]", 13, 3, true);
            assert_eq!(array.number(payload), None);
            assert_eq!(array.numbers(payload).unwrap().collect::<Vec<_>>(), [-115, -114, -113]);
            assert!(field("u8 x[3]", 14, 3, true).numbers(payload).is_none());
        }
    }

    /// The word of `__data_loc` counts from the start of the payload, that of `__rel_loc` from its own end.
    #[test]
    fn dynamic_data_is_found() {
        let (absolute, relative) = (3u32 << 16 | 13, 3u32 << 16 | 1);
        for (declared, word) in [("__data_loc char[] s", absolute), ("__rel_loc char[] s", relative)] {
            let mut bytes = vec![b'!'; 8];
            bytes.extend(word.to_ne_bytes());
            bytes.extend(*b"?ab\0!");
            let field = field(declared, 8, 4, false);
            for cut in 0..=bytes.len() {
                let payload = Bytes::new(&bytes[..cut], &bytes[cut..]);
                assert_eq!(field.data(payload).unwrap(), b"ab\0"[..], "{declared}");
                assert_eq!(text_of(field.data(payload).unwrap()), "ab");
            }
            let rest = self::field("char rest[]", 12, 0, false);
            assert_eq!(rest.data(Bytes::from(&bytes[..])).unwrap(), b"?ab\0!"[..]);
            assert!(field.data(Bytes::from(&bytes[..14])).is_none(), "it points outside");
            assert!(field.data(Bytes::from(&bytes[..10])).is_none());
        }
    }

    #[test]
    fn text_ends_at_its_zero_and_is_borrowed_where_it_can_be() {
        assert!(matches!(text_of(Bytes::from(&b"abc\0x"[..])), Cow::Borrowed("abc")));
        assert!(matches!(text_of(Bytes::new(b"abc\0", b"x")), Cow::Borrowed("abc")));
        assert_eq!(text_of(Bytes::new(b"ab", b"c\0x")), "abc");
        assert_eq!(text_of(Bytes::new(b"ab", b"c")), "abc");
        assert_eq!(text_of(Bytes::from(&b"a\xff"[..])), "a\u{fffd}");
        assert_eq!(text_of(Bytes::default()), "");
    }
}
