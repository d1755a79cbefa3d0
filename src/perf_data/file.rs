//! Reading a file that may say anything: no more is read than there is, and no more kept than the file is long and memory is
//! available.

use crate::error::Unreadable;
use crate::sys::file::{self, Found};
use crate::sys::memory;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A byte of what describes the records takes so many bytes of memory at most: an id is kept, and found by its event and by its ring.
const TIMES: u64 = 8;

/// A file, its length, and how much of it may still be kept.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) file: fs::File,
    pub(super) len: u64,
    budget: u64,
    /// Memory that there was when it was opened, where that is known. A sparse file may be longer than any memory.
    available: Option<u64>,
}

impl Input {
    pub(super) fn open(path: &Path) -> Result<Self, Unreadable> {
        match file::open(path).map_err(io)? {
            Found::File(file, len) => Ok(Self { file, len, budget: len, available: memory::available() }),
            Found::Directory => Err(Unreadable::Directory),
            Found::Other => Err(Unreadable::NotAFile),
        }
    }

    /// Fills a buffer from a place in the file.
    pub(super) fn fill(&self, at: u64, out: &mut [u8]) -> Result<(), Unreadable> {
        self.file.read_exact_at(out, at).map_err(|errno| match errno.kind() {
            io::ErrorKind::UnexpectedEof => Unreadable::Changed,
            _ => io(errno),
        })
    }

    /// Refuses so many bytes that are to be kept, if there is no memory for what becomes of them.
    pub(super) fn fits(&self, kept: u64) -> Result<(), Unreadable> {
        let bytes = kept.saturating_mul(TIMES);
        match self.available {
            Some(available) if bytes > available => Err(Unreadable::Memory { bytes, available }),
            _ => Ok(()),
        }
    }

    /// The bytes of a section, to be kept. Sections may overlap in a forged file: all together are no longer than the file.
    pub(super) fn section(&mut self, what: &'static str, at: u64, size: u64) -> Result<Vec<u8>, Unreadable> {
        let end = at.saturating_add(size);
        if end > self.len {
            return Err(Unreadable::Truncated { what, end, len: self.len });
        }
        self.budget = self.budget.checked_sub(size).ok_or(Unreadable::Malformed { what, at })?;
        self.fits(self.len - self.budget)?;
        let size = usize::try_from(size).map_err(|_| Unreadable::Malformed { what, at })?;
        let mut out = Vec::new();
        out.try_reserve_exact(size).map_err(no_memory)?;
        out.resize(size, 0);
        self.fill(at, &mut out)?;
        Ok(out)
    }
}

/// The allocator has no memory, although enough was available: others were quicker.
pub(super) fn no_memory<E>(_: E) -> Unreadable {
    io(io::ErrorKind::OutOfMemory.into())
}

pub(super) fn io(errno: io::Error) -> Unreadable {
    Unreadable::Io { errno }
}

/// Numbers and strings, one behind the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words<'a>(pub(super) &'a [u8]);

impl<'a> Words<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_ne_bytes)
    }

    /// `struct perf_header_string`: a length, and characters with zeros behind them.
    pub(super) fn string(&mut self) -> Option<String> {
        let len = self.u32()?;
        let text = self.bytes(usize::try_from(len).ok()?)?.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}
