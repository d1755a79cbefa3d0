//! Files by paths that users give, which may lead anywhere. Nothing here waits for the other end of a pipe, and a file is checked
//! before anything is read from it or written to it.

use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What a path leads to.
#[cfg(any(feature = "symbols", feature = "perf-data"))]
#[derive(Debug)]
pub(crate) enum Found {
    /// A regular file, opened, and its length in bytes.
    File(std::fs::File, u64),
    Directory,
    /// A pipe, a socket or a device.
    Other,
}

/// Opens a file for reading without waiting, if it is a regular one.
#[cfg(any(feature = "symbols", feature = "perf-data"))]
pub(crate) fn open(path: &Path) -> io::Result<Found> {
    // Asked before, because to open a device does something to it. Asked again of what was opened.
    match found(&std::fs::metadata(path)?) {
        Ok(_) => opened(OpenOptions::new().read(true), path),
        Err(other) => Ok(other),
    }
}

/// Makes a file for writing, over a regular one that may be there.
#[cfg(feature = "perf-data")]
pub(crate) fn create(path: &Path) -> io::Result<Found> {
    match std::fs::metadata(path).map(|metadata| found(&metadata)) {
        Ok(Err(other)) => Ok(other),
        Err(errno) if errno.kind() != io::ErrorKind::NotFound => Err(errno),
        _ => opened(OpenOptions::new().write(true).create(true).truncate(true), path),
    }
}

#[cfg(any(feature = "symbols", feature = "perf-data"))]
fn opened(options: &mut OpenOptions, path: &Path) -> io::Result<Found> {
    // Rust adds O_CLOEXEC.
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    Ok(match found(&file.metadata()?) {
        Ok(len) => Found::File(file, len),
        Err(other) => other,
    })
}

/// The length of a regular file, or else what it is.
#[cfg(any(feature = "symbols", feature = "perf-data"))]
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
