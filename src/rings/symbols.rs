//! Finds functions and static probes (USDT) in a program or library.

use crate::error::nearest;
use crate::sys::file::{self, Found};
use object::{File, Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The longest file that is read, in bytes. The whole file is in memory while a function is looked up.
const LONGEST: u64 = 1 << 30;

/// All of a regular file.
fn read(path: &Path) -> Result<Vec<u8>, (io::Error, String)> {
    let named = |kind, what: String| (io::Error::new(kind, format!("{}: {what}", path.display())), String::new());
    let failed = |errno: io::Error| named(errno.kind(), errno.to_string());
    let wrong = |what: &str| named(io::ErrorKind::InvalidInput, format!("it is {what}, and no program or library"));
    let (file, len) = match file::open(path).map_err(failed)? {
        Found::File(_, len) if len > LONGEST => {
            let hint =
                "give the function's place in the file to RingOptions::uprobe: nm(1) and readelf(1) tell it".into();
            let what = format!("it is {len} bytes long, and no more than {LONGEST} are read to look for a function");
            return Err((named(io::ErrorKind::FileTooLarge, what).0, hint));
        }
        Found::File(file, len) => (file, len as usize),
        Found::Directory => return Err(wrong("a directory")),
        Found::Other => return Err(wrong("a pipe, a socket or a device")),
    };
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    bytes.resize(len, 0);
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}

/// The most places that a static probe may have. The kernel opens an event for each of them on each CPU.
const MOST_PLACES: usize = 1024;

fn invalid(what: String) -> (io::Error, String) {
    (io::Error::new(io::ErrorKind::InvalidData, what), String::new())
}

fn parse<'a>(bytes: &'a [u8], path: &Path) -> Result<File<'a>, (io::Error, String)> {
    File::parse(bytes).map_err(|error| invalid(format!("{}: {error}", path.display())))
}

/// The offset of an address from the start of an ELF file: the address, less `p_vaddr` and plus `p_offset` of its segment (elf(5)).
fn place_of(file: &File<'_>, address: u64, what: &str) -> Result<u64, (io::Error, String)> {
    let inside = file.segments().find_map(|segment| {
        let behind = address.checked_sub(segment.address()).filter(|behind| *behind < segment.size())?;
        let (begin, len) = segment.file_range();
        (behind < len).then(|| begin.checked_add(behind)).flatten()
    });
    inside.ok_or_else(|| invalid(format!("{what} lies in no segment of the file")))
}

/// The offset of a function from the start of an ELF file, as a uprobe takes it.
pub(super) fn offset(path: &Path, symbol: &str) -> Result<u64, (io::Error, String)> {
    let bytes = read(path)?;
    let file = parse(&bytes, path)?;
    let functions = || {
        let all = file.symbols().chain(file.dynamic_symbols());
        all.filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
    };
    let Some(found) = functions().find(|function| function.name() == Ok(symbol)) else {
        let names = functions().filter_map(|function| function.name().ok().map(str::to_owned));
        let hint = nearest(symbol, names).unwrap_or_else(|| match functions().count() {
            0 => "the file has no symbols: it was stripped".into(),
            count => format!("the file has {count} other functions: see nm(1), also with -D"),
        });
        return Err((io::Error::new(io::ErrorKind::NotFound, format!("no function {symbol}")), hint));
    };
    place_of(&file, found.address(), symbol)
}

/// Where a static probe is, as a uprobe takes it: for each place the offset of its instruction from the start of the file, and that of its
/// semaphore, or 0. The probe is `provider:name`.
pub(super) fn usdt(path: &Path, probe: &str) -> Result<Vec<(u64, u64)>, (io::Error, String)> {
    let bytes = read(path)?;
    let file = parse(&bytes, path)?;
    let notes = file.section_by_name(".note.stapsdt").and_then(|section| section.data().ok()).unwrap_or_default();
    let all = || Notes { bytes: notes, is_little: file.is_little_endian(), is_64: file.is_64() };
    let named = |note: &Note<'_>| format!("{}:{}", note.provider, note.name);
    // Prelinking moves addresses, and with them this section, but changes no note.
    let base = file.section_by_name(".stapsdt.base").map(|section| section.address());
    let mut places = Vec::new();
    for note in all().filter(|note| named(note) == probe) {
        let moved = |address: u64| base.map_or(address, |base| address.wrapping_add(base).wrapping_sub(note.base));
        let semaphore = match note.semaphore {
            0 => 0,
            address => place_of(&file, moved(address), "the semaphore of the probe")?,
        };
        places.push((place_of(&file, moved(note.address), probe)?, semaphore));
        if places.len() > MOST_PLACES {
            return Err(invalid(format!("{probe} has more than {MOST_PLACES} places in the file")));
        }
    }
    places.sort_unstable();
    places.dedup();
    if places.is_empty() {
        let hint = nearest(probe, all().map(|note| named(&note))).unwrap_or_else(|| match all().count() {
            0 => "the file has no static probes".into(),
            count => format!("the file has {count} other places of static probes: readelf -n tells them"),
        });
        return Err((io::Error::new(io::ErrorKind::NotFound, format!("no static probe {probe}")), hint));
    }
    Ok(places)
}

/// A static probe as a note tells of it.
#[derive(Debug, PartialEq, Eq)]
struct Note<'a> {
    address: u64,
    base: u64,
    semaphore: u64,
    provider: &'a str,
    name: &'a str,
}

/// The static probes in a section of notes: SystemTap's format of `sys/sdt.h`. Notes of others are passed over. It ends where bytes are no note.
struct Notes<'a> {
    bytes: &'a [u8],
    is_little: bool,
    is_64: bool,
}

impl<'a> Notes<'a> {
    /// Takes so many bytes, and what rounds them up to four.
    fn take(&mut self, len: u32) -> Option<&'a [u8]> {
        let len = usize::try_from(len).ok()?;
        let (taken, rest) = self.bytes.split_at_checked(len)?;
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
            if (name, kind) == (b"stapsdt\0", 3)
                && let Some(probe) = self.probe(description)
            {
                return Some(probe);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
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
