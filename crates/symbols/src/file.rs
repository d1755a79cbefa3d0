//! Reads a file by a path that a user gives, which may lead anywhere.

use crate::error::about;
use perfweave::{Error, ErrorKind};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The longest file that is read, in bytes. The whole file is in memory while a function is looked up.
const LONGEST: u64 = 1 << 30;

/// All of a regular file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |errno: io::Error| Error::new(ErrorKind::of(&errno), path.display().to_string()).because(errno);
    // Checked before, because opening a device has effects. Checked again on the opened file.
    regular(path, &std::fs::metadata(path).map_err(failed)?)?;
    let file = open(path).map_err(failed)?;
    let len = regular(path, &file.metadata().map_err(failed)?)?;
    let mut bytes = Vec::new();
    // Up to 1 GiB: without memory, a plain allocation would end the process.
    bytes.try_reserve_exact(len).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    bytes.resize(len, 0);
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}

/// Opens a file without waiting for the other end of a pipe.
fn open(path: &Path) -> io::Result<File> {
    // Rust adds O_CLOEXEC.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// The length of a regular file that is not too long.
fn regular(path: &Path, metadata: &Metadata) -> Result<usize, Error> {
    let (kind, len) = (metadata.file_type(), metadata.len());
    let wrong = |what| about(ErrorKind::InvalidInput, path, format!("it is {what}, and no program or library"));
    match (kind.is_file(), kind.is_dir()) {
        (true, _) if len <= LONGEST => Ok(len as usize),
        (true, _) => {
            let what = format!("it is {len} bytes long, and no more than {LONGEST} are read to look for a function");
            let hint = "give the function's place in the file: nm(1) and readelf(1) tell it";
            Err(about(ErrorKind::Limit, path, what).hinting(hint))
        }
        (_, true) => Err(wrong("a directory")),
        _ => Err(wrong("a pipe, a socket or a device")),
    }
}
