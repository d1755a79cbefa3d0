//! Build ids: the notes by which a linker names a file.

use crate::sys::file::{self, Found};
use object::elf::{ELF_NOTE_GNU, FileHeader32, FileHeader64, NT_GNU_BUILD_ID, PN_XNUM, PT_NOTE};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// At most 20 bytes, as records have room for. Linkers make 20, 16 or 8.
pub(super) type BuildId = SmallVec<[u8; 20]>;

const MOST: usize = 20;

/// The longest segment of notes that is read. Those of the kernel's own reader are at most a page.
const NOTES: u64 = 1 << 16;

/// How many files' build ids are kept. Most processes map the same libraries.
const FILES: usize = 4096;

/// The build ids of files that were read, by device and inode.
#[derive(Debug, Default)]
pub(super) struct BuildIds(HashMap<([u32; 2], u64), Option<BuildId>>);

impl BuildIds {
    /// The build id of the file with this inode, which may be at a path.
    pub(super) fn of(
        &mut self,
        device: [u32; 2],
        inode: u64,
        path: impl FnOnce() -> std::path::PathBuf,
    ) -> Option<BuildId> {
        if let Some(known) = self.0.get(&(device, inode)) {
            return known.clone();
        }
        let found = of_file(&path(), inode);
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

/// The build id among notes of this machine, as sysfs gives them.
pub(super) fn of_notes(notes: &[u8]) -> Option<BuildId> {
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
