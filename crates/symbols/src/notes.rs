//! The notes that a file has of its static probes.

/// A static probe as a note tells of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Note<'a> {
    pub(crate) address: u64,
    pub(crate) base: u64,
    pub(crate) semaphore: u64,
    pub(crate) provider: &'a str,
    pub(crate) name: &'a str,
}

/// The static probes in a section of notes: SystemTap's format of `sys/sdt.h`. Notes of others are passed over. It ends
/// where bytes are no note.
pub(crate) struct Notes<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) is_little: bool,
    pub(crate) is_64: bool,
}

impl<'a> Notes<'a> {
    /// Takes so many bytes, and what rounds them up to four.
    fn take(&mut self, len: u32) -> Option<&'a [u8]> {
        let len = usize::try_from(len).ok()?;
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        // The last note may lack its padding.
        self.bytes = rest.get(len.next_multiple_of(4) - len..).unwrap_or_default();
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(if self.is_little { u32::from_le_bytes(*number) } else { u32::from_be_bytes(*number) })
    }

    /// The probe of a description: three addresses, then texts, each with a zero behind it.
    fn probe(&self, mut description: &'a [u8]) -> Option<Note<'a>> {
        let mut address = || {
            let len = if self.is_64 { 8 } else { 4 };
            let (number, rest) = description.split_at_checked(len)?;
            description = rest;
            let step = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
            Some(if self.is_little { number.iter().rev().fold(0, step) } else { number.iter().fold(0, step) })
        };
        let (address, base, semaphore) = (address()?, address()?, address()?);
        let mut texts = description.split(|byte| *byte == 0).map(str::from_utf8);
        let (provider, name) = (texts.next()?.ok()?, texts.next()?.ok()?);
        Some(Note { address, base, semaphore, provider, name })
    }
}

impl<'a> Iterator for Notes<'a> {
    type Item = Note<'a>;

    fn next(&mut self) -> Option<Note<'a>> {
        loop {
            let (name_len, description_len, kind) = (self.number()?, self.number()?, self.number()?);
            let (name, description) = (self.take(name_len)?, self.take(description_len)?);
            // `_SDT_NOTE_NAME` and `_SDT_NOTE_TYPE` of `sys/sdt.h`.
            if (name, kind) == (b"stapsdt\0", 3)
                && let Some(probe) = self.probe(description)
            {
                return Some(probe);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A note, with what rounds its texts up to four bytes.
    fn note(owner: &str, kind: u32, description: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [owner.len() as u32 + 1, description.len() as u32, kind] {
            bytes.extend(number.to_le_bytes());
        }
        for part in [&[owner.as_bytes(), &[0]].concat()[..], description] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    fn description(addresses: [u64; 3], texts: &str) -> Vec<u8> {
        [&addresses.map(u64::to_le_bytes).concat()[..], texts.as_bytes()].concat()
    }

    fn notes(bytes: &[u8]) -> Notes<'_> {
        Notes { bytes, is_little: true, is_64: true }
    }

    #[test]
    fn probes_are_found_among_other_notes() {
        let bytes = [
            note("GNU", 3, b"abc"),
            note("stapsdt", 3, &description([1, 2, 3], "lib\0go\0-4@%edi\0")),
            note("stapsdt", 4, &description([9, 9, 9], "lib\0gone\0\0")),
            note("stapsdt", 3, b"short"),
            note("stapsdt", 3, &description([4, 5, 0], "lib\0went\0\0")),
        ];
        let expected = [
            Note { address: 1, base: 2, semaphore: 3, provider: "lib", name: "go" },
            Note { address: 4, base: 5, semaphore: 0, provider: "lib", name: "went" },
        ];
        assert!(notes(&bytes.concat()).eq(expected));
    }

    #[test]
    fn words_have_the_width_and_order_of_the_file() {
        let mut bytes = Vec::new();
        for number in [8_u32, 18, 3] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(b"stapsdt\0");
        bytes.extend([7_u32, 8, 9].map(u32::to_be_bytes).concat());
        bytes.extend(b"a\0b\0\0\0");
        let mut found = Notes { bytes: &bytes, is_little: false, is_64: false };
        assert_eq!(found.next(), Some(Note { address: 7, base: 8, semaphore: 9, provider: "a", name: "b" }));
        assert_eq!(found.next(), None);
    }

    #[test]
    fn bytes_that_are_no_notes_end_the_search() {
        let whole = note("stapsdt", 3, &description([1, 2, 3], "a\0b\0\0"));
        for len in 0..whole.len() - 3 {
            assert_eq!(notes(&whole[..len]).next(), None, "{len}");
        }
        for at in 0..8 {
            let mut long = whole.clone();
            long[at] = 0xff;
            assert!(notes(&long).count() <= 1);
        }
    }
}
