//! Files by paths that users give, which may lead anywhere. These functions never wait for the other end of a pipe, and check a file before
//! they read it. Files that are written are `created`'s.

use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file at a path.
#[cfg(feature = "perf-data")]
#[derive(Debug)]
pub(crate) enum Found {
    /// A regular file, opened, and its length in bytes.
    File(std::fs::File, u64),
    Directory,
    /// A pipe, a socket or a device.
    Other,
}

/// Opens a file for reading without waiting, if it is a regular one.
#[cfg(feature = "perf-data")]
pub(crate) fn open(path: &Path) -> io::Result<Found> {
    // Checked before, because opening a device has effects. Checked again on the opened file.
    match found(&std::fs::metadata(path)?) {
        Ok(_) => opened(path),
        Err(other) => Ok(other),
    }
}

#[cfg(feature = "perf-data")]
fn opened(path: &Path) -> io::Result<Found> {
    // Rust adds O_CLOEXEC.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    Ok(match found(&file.metadata()?) {
        Ok(len) => Found::File(file, len),
        Err(other) => other,
    })
}

/// The length of a regular file, or else its kind.
#[cfg(feature = "perf-data")]
fn found(metadata: &std::fs::Metadata) -> Result<u64, Found> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(metadata.len());
    }
    Err(if kind.is_dir() { Found::Directory } else { Found::Other })
}

/// Opens the directory of a control group.
pub(crate) fn open_cgroup(path: &Path) -> io::Result<OwnedFd> {
    let flags = libc::O_DIRECTORY | libc::O_NONBLOCK;
    let directory: OwnedFd = OpenOptions::new().read(true).custom_flags(flags).open(path)?.into();
    let magic = fstatfs(&directory)?.filesystem_type();
    if magic != CGROUP2_SUPER_MAGIC && magic != CGROUP_SUPER_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is in no file system of control groups"));
    }
    Ok(directory)
}

/// Whether a control group is of version 1.
pub(crate) fn is_first_version(directory: BorrowedFd<'_>) -> bool {
    fstatfs(directory).is_ok_and(|system| system.filesystem_type() == CGROUP_SUPER_MAGIC)
}
