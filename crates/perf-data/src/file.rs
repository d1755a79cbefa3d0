//! Reading a file that may contain anything. The crate reads no more than the file has, and keeps no more than the
//! file's length and the available memory.

use perfweave::{Error, ErrorKind, Recording};
use std::borrow::Cow;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// How many bytes of memory a byte of the metadata takes at most: an id is kept, and indexed by its event and by its
/// ring.
const TIMES: u64 = 8;

/// The file at a path.
#[derive(Debug)]
pub(crate) enum Found {
    /// A regular file, opened, and its length in bytes.
    File(fs::File, u64),
    Directory,
    /// A pipe, a socket or a device.
    Other,
}

/// Opens a file for reading without waiting for the other end of a pipe, if it is a regular one.
pub(crate) fn open(path: &Path) -> io::Result<Found> {
    // Checked before, because opening a device has effects. Checked again on the opened file.
    match found(&fs::metadata(path)?) {
        Ok(_) => opened(path),
        Err(other) => Ok(other),
    }
}

fn opened(path: &Path) -> io::Result<Found> {
    // Rust adds O_CLOEXEC.
    let file = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    Ok(match found(&file.metadata()?) {
        Ok(len) => Found::File(file, len),
        Err(other) => other,
    })
}

/// The length of a regular file, or else its kind.
fn found(metadata: &fs::Metadata) -> Result<u64, Found> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(metadata.len());
    }
    Err(if kind.is_dir() { Found::Directory } else { Found::Other })
}

/// A file, its length, and how much of it may still be kept.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) file: fs::File,
    pub(crate) len: u64,
    budget: u64,
    /// How much is kept at most, if records are not.
    most: Option<u64>,
    /// Memory that was available when the file was opened, if known. A sparse file may be longer than any memory.
    available: Option<u64>,
}

impl Input {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        match open(path).map_err(io)? {
            Found::File(file, len) => {
                Ok(Self { file, len, budget: len, most: None, available: Recording::available_memory() })
            }
            Found::Directory if path.join("data").exists() => {
                let what = "it is a directory of `perf record --threads`, and a recording of perf has no certificate";
                Err(unreadable(what, "`perfweave convert` reads it"))
            }
            Found::Directory => Err(directory()),
            Found::Other => {
                Err(unreadable("it is no regular file", "write what comes through a pipe into a file first"))
            }
        }
    }

    /// A file of which no more than so many bytes are kept.
    pub(crate) fn bounded(path: &Path, budget: u64) -> Result<Self, Error> {
        let input = Self::open(path)?;
        Ok(Self { budget: input.len.min(budget), most: Some(budget), ..input })
    }

    /// Fills a buffer from an offset in the file.
    pub(crate) fn fill(&self, at: u64, out: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact_at(out, at).map_err(|errno| match errno.kind() {
            io::ErrorKind::UnexpectedEof => changed(),
            _ => io(errno),
        })
    }

    /// Refuses bytes that are to be kept, if there is too little memory for the data made from them.
    pub(crate) fn fits(&self, kept: u64) -> Result<(), Error> {
        let bytes = kept.saturating_mul(TIMES);
        // A bounded input keeps no more than its bound, whatever the file says.
        match self.available.filter(|_| self.most.is_none()) {
            Some(available) if bytes > available => Err(too_large(bytes, available)),
            _ => Ok(()),
        }
    }

    /// Memory that was available when the file was opened, if known.
    #[cfg(feature = "zstd")]
    pub(crate) fn available(&self) -> Option<u64> {
        self.available
    }

    /// Refuses records that were unpacked, if there are more than there is memory. A few bytes can stand for very many.
    #[cfg(feature = "zstd")]
    pub(crate) fn has_room_for(&self, unpacked: u64) -> Result<(), Error> {
        // Records of a bounded input are not kept (`most`).
        match self.available.filter(|_| self.most.is_none()) {
            Some(available) if unpacked > available => Err(too_large(unpacked, available)),
            _ => Ok(()),
        }
    }

    /// The bytes of a section, to be kept. Sections of a forged file may overlap: all of them together are no longer
    /// than the file.
    pub(crate) fn section(&mut self, what: &'static str, at: u64, size: u64) -> Result<Vec<u8>, Error> {
        let end = at.saturating_add(size);
        if end > self.len {
            return Err(self.truncated(what, end));
        }
        self.budget = self.budget.checked_sub(size).ok_or_else(|| match self.most {
            Some(most) if most < self.len => too_much(what, most),
            // The bound is the length of the file: sections overlap.
            _ => malformed(what, at),
        })?;
        self.fits(self.len - self.budget)?;
        let size = usize::try_from(size).map_err(|_| malformed(what, at))?;
        let mut out = Vec::new();
        // Other programs may have taken the memory since. A plain allocation would then end the process.
        out.try_reserve_exact(size).map_err(no_memory)?;
        out.resize(size, 0);
        self.fill(at, &mut out)?;
        Ok(out)
    }

    /// The file ends before the data that it promises.
    pub(crate) fn truncated(&self, what: &str, end: u64) -> Error {
        let ends = if what.ends_with('s') { "end" } else { "ends" };
        let message = format!("it is {} bytes long, and its {what} {ends} at {end}", self.len);
        unreadable(message, "the file was cut short: copy it anew")
    }
}

pub(crate) fn unreadable(what: impl Into<Cow<'static, str>>, hint: &'static str) -> Error {
    Error::new(ErrorKind::Recording, what).hinting(hint)
}

/// A directory, and no recording of `perf record --threads`.
pub(crate) fn directory() -> Error {
    let what = "it is a directory, and has no file `data` as those of `perf record --threads` have";
    unreadable(what, "name the file of the recording")
}

/// The metadata before or after the records contradicts itself.
pub(crate) fn malformed(what: &str, at: u64) -> Error {
    let makes = if what.ends_with('s') { "make" } else { "makes" };
    let hint = "try `perf script -i`; if that reads it, report this";
    unreadable(format!("its {what} {makes} no sense at byte {at}"), hint)
}

/// The events of a file that is not kept take more than so many bytes.
pub(crate) fn too_much(what: &str, most: u64) -> Error {
    Error::new(ErrorKind::Limit, format!("its {what} take more than {most} bytes"))
        .hinting("perf_data::open has no such limit")
}

/// Another program wrote into the file while it was read.
pub(crate) fn changed() -> Error {
    unreadable("it changed while it was read", "wait for `perf record` to end")
}

/// The records, or their metadata, do not fit into memory.
pub(crate) fn too_large(bytes: u64, available: u64) -> Error {
    let message = format!("its contents take {bytes} bytes of memory, of which {available} are available here");
    let hint = "record less at a time: perf record --switch-output; or raise what is least of free memory, the \
                control group's memory.max, and RLIMIT_AS";
    Error::new(ErrorKind::Limit, message).hinting(hint)
}

/// The allocator has no memory, although enough was available: other programs took it.
pub(crate) fn no_memory<E>(_: E) -> Error {
    io(io::ErrorKind::OutOfMemory.into())
}

pub(crate) fn io(errno: io::Error) -> Error {
    Error::new(ErrorKind::Recording, "").because(errno)
}
