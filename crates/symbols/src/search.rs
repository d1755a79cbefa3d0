//! Looks for functions and static probes in an ELF file.

use crate::error::{invalid, nearest, not_found};
use crate::file;
use crate::notes::Notes;
use object::{File, Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
use perfweave::Error;
use std::path::Path;

/// The most places that a static probe may have. The kernel opens an event for each of them on each CPU.
const MOST_PLACES: usize = 1024;

/// A place of a static probe in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Place {
    /// Of its instruction, in bytes from the start of the file.
    pub offset: u64,
    /// Of its semaphore, the word in which the kernel counts those who trace the probe, in bytes from the start of the
    /// file. 0 if it has none.
    pub semaphore: u64,
}

/// Where a function of a program or library begins, in bytes from the start of the file, by its name in the symbol
/// tables of the ELF file (`.symtab`, `.dynsym`).
///
/// # Errors
/// [`ErrorKind::NotFound`](perfweave::ErrorKind::NotFound) if there is no such file, or if the file has no such
/// function: the hint has the nearest name. Others if the file cannot be read, is longer than 1 GiB, or is no program
/// or library.
pub fn function(path: impl AsRef<Path>, name: &str) -> Result<u64, Error> {
    let path = path.as_ref();
    let bytes = file::read(path)?;
    let file = parse(&bytes, path)?;
    let functions = || {
        let all = file.symbols().chain(file.dynamic_symbols());
        all.filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
    };
    let Some(found) = functions().find(|function| function.name() == Ok(name)) else {
        let hint = nearest(name, functions().filter_map(|function| function.name().ok()));
        let hint = hint.unwrap_or_else(|| match functions().count() {
            0 => "the file has no symbols: it was stripped".into(),
            count => format!("the file has {count} other functions: see nm(1), also with -D"),
        });
        return Err(not_found(path, "function", name, hint));
    };
    place_of(&file, found.address()).ok_or_else(|| outside(path, name))
}

/// The places of a static probe (USDT) of a program or library, in ascending order, by its provider and name in the
/// notes of the ELF file (`.note.stapsdt`, as `sys/sdt.h` of SystemTap writes them). readelf(1) with `-n` lists them.
///
/// A probe can have several places in a file: add a uprobe for each. The probe's arguments are in the registers and the
/// memory that its note names.
///
/// # Errors
/// As [`function`]: [`ErrorKind::NotFound`](perfweave::ErrorKind::NotFound) if the file has no such probe. A probe with more than
/// 1024 places is [`ErrorKind::InvalidInput`](perfweave::ErrorKind::InvalidInput).
pub fn usdt(path: impl AsRef<Path>, provider: &str, name: &str) -> Result<Vec<Place>, Error> {
    let (path, probe) = (path.as_ref(), format!("{provider}:{name}"));
    let bytes = file::read(path)?;
    let file = parse(&bytes, path)?;
    let notes = file.section_by_name(".note.stapsdt").and_then(|section| section.data().ok()).unwrap_or_default();
    let all = || Notes { bytes: notes, is_little: file.is_little_endian(), is_64: file.is_64() };
    // Prelinking moves addresses, and with them this section, but changes no note.
    let base = file.section_by_name(".stapsdt.base").map(|section| section.address());
    let mut places = Vec::new();
    for note in all().filter(|note| (note.provider, note.name) == (provider, name)) {
        // Wrapping: prelinking may move down, and a hostile note has any number.
        let moved = |address: u64| base.map_or(address, |base| address.wrapping_add(base).wrapping_sub(note.base));
        let place = |address: u64| place_of(&file, moved(address)).ok_or_else(|| outside(path, &probe));
        let semaphore = if note.semaphore == 0 { 0 } else { place(note.semaphore)? };
        places.push(Place { offset: place(note.address)?, semaphore });
        // In the loop: a hostile file may have millions of notes.
        if places.len() > MOST_PLACES {
            return Err(invalid(path, format!("{probe} has more than {MOST_PLACES} places in it")));
        }
    }
    places.sort_unstable();
    places.dedup();
    if places.is_empty() {
        let names: Vec<_> = all().map(|note| format!("{}:{}", note.provider, note.name)).collect();
        let hint = nearest(&probe, names.iter().map(String::as_str)).unwrap_or_else(|| match names.len() {
            0 => "the file has no static probes".into(),
            count => format!("the file has {count} other places of static probes: readelf -n tells them"),
        });
        return Err(not_found(path, "static probe", &probe, hint));
    }
    Ok(places)
}

fn parse<'a>(bytes: &'a [u8], path: &Path) -> Result<File<'a>, Error> {
    File::parse(bytes).map_err(|error| invalid(path, error.to_string()))
}

/// The offset of an address from the start of an ELF file: the address, less `p_vaddr` and plus `p_offset` of its
/// segment (elf(5)).
fn place_of(file: &File<'_>, address: u64) -> Option<u64> {
    file.segments().find_map(|segment| {
        let behind = address.checked_sub(segment.address()).filter(|behind| *behind < segment.size())?;
        let (begin, len) = segment.file_range();
        // Behind the bytes of the file, a segment has memory alone (`.bss`).
        (behind < len).then(|| begin.checked_add(behind)).flatten()
    })
}

fn outside(path: &Path, what: &str) -> Error {
    invalid(path, format!("{what} lies in no segment of the file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perfweave::ErrorKind;

    /// A file that was cut off anywhere, or that says other things of itself, is searched or refused.
    #[test]
    fn a_program_that_is_damaged_is_searched_or_refused() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let folder = std::env::temp_dir().join(format!("perfweave-symbols-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("program");
        let look = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let found = function(&path, "main").map(|offset| assert!(offset < bytes.len() as u64));
            let errors = [found.err(), usdt(&path, "perfweave", "go").err()];
            for error in errors.iter().flatten() {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::NotFound | ErrorKind::InvalidInput), "{kind:?}: {error}");
                assert!(error.to_string().starts_with(&format!("{}: ", path.display())), "{error}");
            }
            errors[0].is_none()
        };
        assert!(look(&program), "it has a function main");
        for part in 0..24 {
            let _ = look(&program[..program.len() / 24 * part]);
        }
        // The header, which says where everything is.
        for at in 0..64 {
            let mut damaged = program[..program.len().min(1 << 16)].to_vec();
            damaged[at] ^= 0xff;
            look(&damaged);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
