//! So much of Thrift's compact protocol that sizes in a file are known before a reader of Parquet makes room for them.

/// Values that are deeper in others are not read.
const DEPTH: u32 = 32;
/// More columns and groups of columns are not read.
const ELEMENTS: u64 = 10_000;
/// Columns in more groups than that are not read.
const NESTED: usize = 16;
/// The encoding in which a few bytes stand for a text of any length. No recorder has it.
const DELTA_BYTE_ARRAY: i64 = 7;

// Kinds of values.
const I32: u8 = 5;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Bytes that were not read yet.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn pass(&mut self, len: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(len).ok()?..)?;
        Some(())
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        self.number().map(|number| (number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// How many values a list has, and their kind.
    fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let len = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
        Some((len, head & 15))
    }

    /// The fields of a structure, by number and kind. Those that are not taken are skipped.
    fn fields(&mut self, depth: u32, mut take: impl FnMut(i64, u8, &mut Self) -> Option<bool>) -> Option<()> {
        let mut field = 0i64;
        loop {
            let head = self.byte()?;
            let kind = head & 15;
            if kind == 0 {
                return Some(());
            }
            field = if head >> 4 == 0 { self.signed()? } else { field.checked_add(i64::from(head >> 4))? };
            if !take(field, kind, self)? {
                self.skip(kind, depth)?;
            }
        }
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // The kind is the value.
            1 | 2 => Some(()),
            3 => self.pass(1),
            4..=6 => self.number().map(drop),
            7 => self.pass(8),
            8 => self.number().and_then(|len| self.pass(len)),
            LIST | 10 => {
                let (len, kind) = self.list()?;
                (0..len).try_for_each(|_| self.skip_one(kind, depth))
            }
            11 => {
                let len = self.number()?;
                let kinds = if len > 0 { self.byte()? } else { 0 };
                (0..len).try_for_each(|_| {
                    self.skip_one(kinds >> 4, depth)?;
                    self.skip_one(kinds & 15, depth)
                })
            }
            STRUCT => self.skip_fields(depth),
            _ => None,
        }
    }

    /// A value of a list, where truths have bytes.
    fn skip_one(&mut self, kind: u8, depth: u32) -> Option<()> {
        if kind <= 2 { self.pass(1) } else { self.skip(kind, depth) }
    }

    fn skip_fields(&mut self, depth: u32) -> Option<()> {
        let none: fn(i64, u8, &mut Self) -> Option<bool> = |_, _, _| Some(false);
        self.fields(depth, none)
    }

    /// The elements of a schema: each group is before those in it.
    fn schema(&mut self) -> Option<()> {
        let (len, kind) = self.list()?;
        let (mut groups, mut is_root) = (Vec::new(), true);
        if kind != STRUCT || len > ELEMENTS {
            return None;
        }
        for _ in 0..len {
            let mut children = 0;
            self.fields(DEPTH, |field, kind, reader| {
                let is_it = (field, kind) == (5, I32);
                if is_it {
                    children = reader.signed()?;
                }
                Some(is_it)
            })?;
            if !is_root {
                *groups.last_mut()? -= 1;
            }
            is_root = false;
            groups.push(u64::try_from(children).ok().filter(|children| *children <= len)?);
            while groups.last() == Some(&0) {
                groups.pop();
            }
            if groups.len() > NESTED {
                return None;
            }
        }
        Some(())
    }
}

/// Whether a footer has as many values as it says, and a schema that is not too large.
pub(super) fn is_footer_bounded(footer: &[u8]) -> bool {
    let mut reader = Reader(footer);
    let schema = |field, kind, reader: &mut Reader<'_>| {
        let is_it = (field, kind) == (2, LIST);
        if is_it {
            reader.schema()?;
        }
        Some(is_it)
    };
    reader.fields(DEPTH, schema).is_some()
}

/// How long the pages of a column are unpacked, by what each says of itself. `None` if they are no pages that a
/// recorder writes.
pub(super) fn unpacked(column: &[u8]) -> Option<u64> {
    let (mut reader, mut all) = (Reader(column), 0u64);
    while !reader.0.is_empty() {
        let mut sizes = [0; 2];
        reader.fields(DEPTH, |field, kind, reader| match (field, kind) {
            (2 | 3, I32) => {
                sizes[field as usize - 2] = u64::try_from(reader.signed()?).ok()?;
                Some(true)
            }
            // What it says of its data: the encoding is the second value, or in the second version the fourth.
            (5 | 8, STRUCT) => {
                let encoding = if field == 5 { 2 } else { 4 };
                reader.fields(DEPTH, |field, kind, reader| {
                    let is_it = (field, kind) == (encoding, I32);
                    if is_it && reader.signed()? == DELTA_BYTE_ARRAY {
                        return None;
                    }
                    Some(is_it)
                })?;
                Some(true)
            }
            _ => Some(false),
        })?;
        all = all.saturating_add(sizes[0]);
        reader.pass(sizes[1])?;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A footer with these numbers of children.
    fn footer(children: &[u8]) -> Vec<u8> {
        let elements = children.iter().flat_map(|children| [0x48, 1, b'a', 0x15, 2 * children, 0]);
        [0x15, 2, 0x19, 0xfc].into_iter().chain(len(children.len())).chain(elements).chain([0]).collect()
    }

    fn len(len: usize) -> [u8; 2] {
        [len as u8 & 0x7f | 0x80, (len >> 7) as u8]
    }

    #[test]
    fn a_schema_has_a_bound() {
        assert!(is_footer_bounded(&footer(&[2, 0, 1, 0])));
        let nested = |groups| [vec![1; groups], vec![0]].concat();
        assert!(is_footer_bounded(&footer(&nested(NESTED))) && !is_footer_bounded(&footer(&nested(NESTED + 1))));
        assert!(!is_footer_bounded(&footer(&[60, 0])), "more children than elements");
        assert!(is_footer_bounded(&footer(&[[0; 1].as_slice(), &[]].concat())));
        let mut many = footer(&[1, 0]);
        many[4..6].copy_from_slice(&len(3));
        assert!(!is_footer_bounded(&many), "fewer elements than it says");
        assert!(!is_footer_bounded(&footer(&vec![0; ELEMENTS as usize + 1])));
    }

    #[test]
    fn pages_say_how_long_they_are() {
        // A page of three bytes, which are 100.
        let page = |encoding: u8| [0x15, 0, 0x15, 200, 1, 0x15, 6, 0x2c, 0x15, 2, 0x15, encoding, 0, 0, 1, 2, 3];
        assert_eq!(unpacked(&[page(0), page(0)].concat()), Some(200));
        assert_eq!(unpacked(&page(2 * DELTA_BYTE_ARRAY as u8)), None);
        assert_eq!(unpacked(&page(0)[..16]), None);
    }
}
