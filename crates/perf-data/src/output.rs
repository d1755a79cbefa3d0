//! The file of a recording while it is written: by the process that made it, until something fails.

use crate::chain::Chain;
use crate::created;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use perfweave::{Error, ErrorKind};
use std::fs::{File, FileType};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How many bytes are written at once.
const BUFFER: usize = 1 << 18;

/// A file that is written from its start. It has no `Drop`: bytes still in the buffer belong to a file that was not
/// finished.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    /// The bytes after those in the file.
    buffer: Vec<u8>,
    /// Bytes in the file.
    len: u64,
    /// What is said of these bytes, and how much of the buffer it has.
    pub(crate) chain: Chain,
    chained: usize,
    /// The process that made the file.
    process: u32,
    /// Where the last whole record ends: of all, of those in the file, and of those that were there before the last
    /// writing.
    whole: u64,
    safe: [u64; 2],
    /// While the file is complete: the header to write before anything else.
    open_again: Option<Vec<u8>>,
    /// The first error. Bytes are missing in the file since then.
    failed: Option<io::Error>,
    /// Whether another program reads it meanwhile: nothing is written over, and nothing is cut.
    is_pipe: bool,
}

impl Output {
    /// Creates a file, or replaces one.
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        // What fails when it is opened says so itself: a directory.
        let is_wanted = |kind: FileType| kind.is_file() || kind.is_dir();
        let Some(file) = created::create(path, is_wanted).map_err(io)? else {
            let message = "it is no regular file";
            return Err(Error::new(ErrorKind::Recording, message).hinting("write into one, and copy that"));
        };
        Ok(Self::new(file, false))
    }

    /// Writes where a program may read meanwhile.
    pub(crate) fn pipe(to: OwnedFd) -> Self {
        Self::new(to.into(), true)
    }

    fn new(file: File, is_pipe: bool) -> Self {
        Self {
            file,
            buffer: Vec::with_capacity(BUFFER),
            len: 0,
            chain: Chain::default(),
            chained: 0,
            process: std::process::id(),
            whole: 0,
            safe: [0; 2],
            open_again: None,
            failed: None,
            is_pipe,
        }
    }

    pub(crate) fn is_pipe(&self) -> bool {
        self.is_pipe
    }

    /// Whether this is the process that made the file.
    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// The first error again, if there was one.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(errno) => Err(io(again(errno))),
        }
    }

    /// Appends bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.buffer.len() + bytes.len() > BUFFER {
            self.flush()?;
        }
        if bytes.len() > BUFFER {
            // The buffer was flushed just now, so the order is kept.
            self.chain.put(bytes);
            return self.append(bytes);
        }
        // Bytes behind an error would follow a hole in the file.
        self.check()?;
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Begins with bytes that are written over later.
    pub(crate) fn begin(&mut self, front: Vec<u8>) -> Result<(), Error> {
        self.put(&front)?;
        self.chain.begin(front);
        self.chained = self.buffer.len();
        Ok(())
    }

    /// Appends the seal of all bytes since the last one. Gives how long it is.
    pub(crate) fn seal(&mut self) -> Result<u64, Error> {
        self.put_into_chain();
        let seal = self.chain.seal();
        self.put(&seal)?;
        // The chain has it already.
        self.chained = self.buffer.len();
        Ok(seal.len() as u64)
    }

    fn put_into_chain(&mut self) {
        self.chain.put(&self.buffer[self.chained..]);
        self.chained = self.buffer.len();
    }

    /// All bytes so far are whole records.
    pub(crate) fn whole(&mut self) {
        self.whole = self.len + self.buffer.len() as u64;
    }

    /// Where the file can be cut, so that it ends with a whole record: after the last one in the file, and some before
    /// it.
    pub(crate) fn safe(&self) -> [u64; 2] {
        self.safe
    }

    /// Writes all buffered bytes.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.put_into_chain();
        let buffer = std::mem::take(&mut self.buffer);
        let wrote = self.append(&buffer);
        self.buffer = buffer;
        // Also after an error, which stays: these bytes are never written.
        self.buffer.clear();
        self.chained = 0;
        wrote
    }

    /// Writes other bytes over those at the file's begin.
    pub(crate) fn over(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let wrote = self.file.write_all_at(bytes, at);
        self.kept(wrote)
    }

    /// The error, which every later call gives again.
    fn kept(&mut self, result: io::Result<()>) -> Result<(), Error> {
        result.map_err(|errno| {
            self.failed.get_or_insert_with(|| again(&errno));
            io(errno)
        })
    }

    /// Cuts the file, writes what comes behind the records, and then its header. `open_again` is the header of a file
    /// that is not complete.
    pub(crate) fn complete(&mut self, at: u64, behind: &[u8], header: &[u8], open_again: Vec<u8>) -> Result<(), Error> {
        // The header is last: killed before it is written, a file that was not complete still says so. One that was
        // complete says so first, for what its header names is cut off and written anew.
        let complete = || {
            if let Some(header) = &self.open_again {
                self.file.write_all_at(header, 0)?;
            }
            self.file.set_len(at)?;
            self.file.write_all_at(behind, at)?;
            self.file.write_all_at(header, 0)
        };
        let completed = complete();
        self.open_again = Some(open_again);
        self.kept(completed)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.check()?;
        if bytes.is_empty() {
            return Ok(());
        }
        // A system call, so not for each event. It is no error of the file.
        if !self.is_here() {
            return Err(forked());
        }
        let append = || {
            if self.is_pipe {
                return write_all(&self.file, bytes);
            }
            if let Some(header) = &self.open_again {
                // First, so that a complete header never names parts that are cut off. Killed in between, the file was
                // not finished, and these parts are damage behind its records.
                self.file.write_all_at(header, 0)?;
                self.file.set_len(self.len)?;
            }
            self.file.write_all_at(bytes, self.len)
        };
        match append() {
            Ok(()) => {
                self.len += bytes.len() as u64;
                self.safe = [self.whole.min(self.len), self.safe[0]];
                self.open_again = None;
            }
            Err(errno) => {
                self.failed = Some(errno);
                // Part of a record may be in the file. If it stays there, it is read as damage.
                let _ = self.is_pipe || self.file.set_len(self.safe[0]).is_ok();
            }
        }
        self.check()
    }
}

/// Writes where a program may read meanwhile, and waits for it: somebody may have made the descriptor one that does not
/// block, as shells and programs that read asynchronously do.
fn write_all(mut file: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(errno) if errno.kind() == io::ErrorKind::Interrupted => {}
            Err(errno) if errno.kind() == io::ErrorKind::WouldBlock => {
                let mut writable = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
                // A signal may end it early, and then it finds out above.
                let _ = poll(&mut writable, PollTimeout::NONE);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The file belongs to another process.
pub(crate) fn forked() -> Error {
    let message = "the recording belongs to the process that this one was forked from: open another here";
    Error::new(ErrorKind::Forked, message)
}

fn io(errno: io::Error) -> Error {
    let is_full =
        matches!(errno.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge);
    let error = Error::new(ErrorKind::Recording, "").because(errno);
    if is_full {
        error.hinting("what was written until then can be read; make room, and write the rest into another file")
    } else {
        error
    }
}

/// A copy of an error.
fn again(errno: &io::Error) -> io::Error {
    errno.raw_os_error().map_or_else(|| errno.kind().into(), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_over_is_an_error_for_good() {
        // Not open for writing.
        let mut output = Output::new(File::open("/dev/null").unwrap(), false);
        assert!(output.check().is_ok());
        assert_eq!(output.over(0, b"front").unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(output.check().unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
