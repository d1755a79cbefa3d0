//! Build ids: the notes by which a linker names a file.

use crate::Facts;
use crate::file::{self, Found};
use crate::metadata::BUILD_ID;
use crate::words::Words;
use object::elf::{ELF_NOTE_GNU, FileHeader32, FileHeader64, NT_GNU_BUILD_ID, PN_XNUM, PT_NOTE};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};
use perf_event_open_sys::bindings;
use perfweave::Rings;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// At most 20 bytes, as records have room for. Linkers make 20, 16 or 8.
pub(crate) type BuildId = SmallVec<[u8; 20]>;

const MOST: usize = 20;

/// `PERF_RECORD_MISC_CPUMODE_MASK`
const MODE: u16 = 7;
/// The `misc` of a header (`include/uapi/linux/perf_event.h`).
pub(crate) const USER: u16 = bindings::PERF_RECORD_MISC_USER as u16;
/// `PERF_RECORD_MISC_BUILD_ID_SIZE`, in the table of build ids.
pub(crate) const BUILD_ID_SIZE: u16 = 1 << 15;

/// The longest segment of notes that is read. Those of the kernel's own reader are at most a page.
const NOTES: u64 = 1 << 16;

/// How many files' build ids are kept. Most processes map the same libraries.
const FILES: usize = 4096;

/// The build ids of files that were read, by device and inode.
#[derive(Debug, Default)]
pub(crate) struct BuildIds(HashMap<([u32; 2], u64), Option<BuildId>>);

impl BuildIds {
    /// The build id of the file with this inode, which may be at a path.
    pub(crate) fn of(
        &mut self,
        device: [u32; 2],
        inode: u64,
        path: impl FnOnce() -> std::path::PathBuf,
    ) -> Option<BuildId> {
        if let Some(known) = self.0.get(&(device, inode)) {
            return known.clone();
        }
        let found = of_file(&path(), inode);
        // Also that a file has none: else it would be opened for each of its mappings.
        if self.0.len() < FILES {
            self.0.insert((device, inode), found.clone());
        }
        found
    }
}

/// The build id of an ELF file, if the file at this path still has this inode.
fn of_file(path: &Path, inode: u64) -> Option<BuildId> {
    let Ok(Found::File(file, _)) = file::open(path) else { return None };
    if file.metadata().ok()?.ino() != inode {
        return None;
    }
    // Reads what is asked for, and not all of a file that may be long.
    let cache = ReadCache::new(file);
    of_elf::<FileHeader64<Endianness>, _>(&cache).or_else(|| of_elf::<FileHeader32<Endianness>, _>(&cache))
}

/// The build id among the notes of an ELF file with addresses of one width.
fn of_elf<'data, Elf: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(data: R) -> Option<BuildId> {
    let header = Elf::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if header.e_phnum(endian) == PN_XNUM {
        return None;
    }
    let segments = header.program_headers(endian, data).ok()?;
    let notes =
        segments.iter().filter(|segment| segment.p_type(endian) == PT_NOTE && segment.p_filesz(endian).into() <= NOTES);
    notes.filter_map(|segment| segment.notes(endian, data).ok()?).find_map(|notes| among(endian, notes))
}

/// The build ids that a recording has in its table (`HEADER_BUILD_ID`), by the paths of programs and libraries: `perf
/// record` writes it. Records of mappings can have their own (`PERF_RECORD_MMAP2`). A path is there
/// twice if the file was another one later. Ids of files of the kernel are left out.
///
/// Empty for rings that are not a recording's.
pub fn build_ids(rings: &Rings) -> Vec<(PathBuf, Vec<u8>)> {
    let sections = rings.facts::<Facts>().into_iter().flat_map(|facts| &facts.features);
    sections.filter(|(feature, _)| *feature == BUILD_ID).flat_map(|(_, section)| table(section)).collect()
}

/// A table of `struct perf_record_header_build_id`, up to the first malformed entry.
fn table(section: &[u8]) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut words, mut found) = (Words(section), Vec::new());
    while let Some((user, path, id)) = entry(&mut words) {
        if user {
            found.push((path, id));
        }
    }
    found
}

/// Whether it is of a program or a library, its path, and its build id.
fn entry(words: &mut Words<'_>) -> Option<(bool, PathBuf, Vec<u8>)> {
    let (_kind, misc_and_size, _pid) = (words.u32()?, words.u32()?.to_ne_bytes(), words.u32()?);
    let [misc, size] =
        [[misc_and_size[0], misc_and_size[1]], [misc_and_size[2], misc_and_size[3]]].map(u16::from_ne_bytes);
    let id = words.bytes(24)?;
    // A perf that writes no sizes has ids of 20 bytes. A forged size may be larger than that.
    let len = if misc & BUILD_ID_SIZE != 0 { usize::from(id[MOST]).min(MOST) } else { MOST };
    let path = words.bytes(usize::from(size).checked_sub(8 + 4 + 24)?)?;
    let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
    let path = PathBuf::from(OsStr::from_bytes(path));
    Some((misc & MODE == USER, path, id[..len].to_vec()))
}

/// The build id among notes of this machine, as sysfs gives them.
pub(crate) fn of_notes(notes: &[u8]) -> Option<BuildId> {
    let endian = if cfg!(target_endian = "big") { Endianness::Big } else { Endianness::Little };
    among(endian, NoteIterator::<FileHeader64<Endianness>>::new(endian, 4, notes).ok()?)
}

fn among<Elf: FileHeader>(endian: Elf::Endian, mut notes: NoteIterator<'_, Elf>) -> Option<BuildId> {
    while let Some(note) = notes.next().ok()? {
        if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
            return Some(note.desc()).filter(|id| (1..=MOST).contains(&id.len())).map(BuildId::from_slice);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{BUILD_ID_SIZE, USER, table};
    use std::path::PathBuf;

    fn entry(misc: u16, id: &[u8], len: u8, path: &str) -> Vec<u8> {
        let mut bytes = [0; 8 + 4 + 24];
        bytes[4..6].copy_from_slice(&misc.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(36 + path.len() as u16 + 1).to_ne_bytes());
        bytes[12..12 + id.len()].copy_from_slice(id);
        bytes[32] = len;
        [&bytes[..], path.as_bytes(), &[0]].concat()
    }

    #[test]
    fn the_table_has_programs_and_libraries() {
        let entries = [
            entry(1 | BUILD_ID_SIZE, &[9; 20], 20, "[kernel.kallsyms]"),
            entry(USER | BUILD_ID_SIZE, &[7; 8], 8, "/bin/a"),
            // Of a perf that did not write sizes.
            entry(USER, &[5; 20], 0, "/lib/b"),
            // Longer than any can be.
            entry(USER | BUILD_ID_SIZE, &[3; 20], 255, "/lib/c"),
        ];
        let found = |path: &str, id: &[u8]| (PathBuf::from(path), id.to_vec());
        let all = [found("/bin/a", &[7; 8]), found("/lib/b", &[5; 20]), found("/lib/c", &[3; 20])];
        let bytes = entries.concat();
        assert_eq!(table(&bytes), all);
        // Whatever is cut off, the entries before it stay.
        for len in 0..bytes.len() {
            assert!(all.starts_with(&table(&bytes[..len])) && table(&bytes[..len]).len() < 3);
        }
        let short = [&[0; 6][..], &8_u16.to_ne_bytes(), &[0; 28]].concat();
        assert_eq!(table(&short), []);
    }
}
