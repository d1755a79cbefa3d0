//! The file of a recording while it is written: by the process that made it, until something fails.

use crate::error::{Error, ErrorKind};
use crate::sys::file::{self, Found};
use crate::sys::fork::Owner;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How many bytes are written at once.
const BUFFER: usize = 1 << 18;

/// A file that is written from its start. It has no `Drop`: bytes still in the buffer belong to a file that was not finished.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    /// The bytes after those in the file.
    buffer: Vec<u8>,
    /// Bytes in the file.
    len: u64,
    owner: Owner,
    /// The first error. Bytes are missing in the file since then.
    failed: Option<io::Error>,
}

impl Output {
    /// Creates a file, or replaces one.
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        let file = match file::create(path).map_err(io)? {
            Found::File(file, _) => file,
            Found::Directory => return Err(io(io::ErrorKind::IsADirectory.into())),
            Found::Other => {
                let message = "it is no regular file";
                return Err(Error::new(ErrorKind::Output, message).hinting("write into one, and copy that"));
            }
        };
        Ok(Self { file, buffer: Vec::with_capacity(BUFFER), len: 0, owner: Owner::new(), failed: None })
    }

    /// Whether this is the process that made the file.
    pub(super) fn is_here(&self) -> bool {
        self.owner.is_surely_here()
    }

    /// The first error again, if there was one.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(errno) => Err(io(again(errno))),
        }
    }

    /// Appends bytes.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.buffer.len() + bytes.len() > BUFFER {
            self.flush()?;
        }
        if bytes.len() > BUFFER {
            return self.append(bytes);
        }
        self.check()?;
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes all buffered bytes, and then the first bytes of the file again.
    pub(super) fn finish(mut self, begin: &[u8]) -> Result<(), Error> {
        self.flush()?;
        self.file.write_all_at(begin, 0).map_err(io)
    }

    fn flush(&mut self) -> Result<(), Error> {
        let buffer = std::mem::take(&mut self.buffer);
        let wrote = self.append(&buffer);
        self.buffer = buffer;
        self.buffer.clear();
        wrote
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.check()?;
        match self.file.write_all_at(bytes, self.len) {
            Ok(()) => self.len += bytes.len() as u64,
            Err(errno) => self.failed = Some(errno),
        }
        self.check()
    }
}

fn io(errno: io::Error) -> Error {
    Error::new(ErrorKind::Output, "").because(errno)
}

/// A copy of an error.
fn again(errno: &io::Error) -> io::Error {
    errno.raw_os_error().map_or_else(|| errno.kind().into(), io::Error::from_raw_os_error)
}
