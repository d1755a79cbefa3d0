//! Files by paths that users give, which may lead anywhere. These functions never wait for the other end of a pipe, and check a file before
//! they read or write it.

use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
use std::fs::OpenOptions;
#[cfg(feature = "perf-data")]
use std::fs::Permissions;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
#[cfg(feature = "perf-data")]
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// The file at a path.
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
    // Checked before, because opening a device has effects. Checked again on the opened file.
    match found(&std::fs::metadata(path)?) {
        Ok(_) => opened(OpenOptions::new().read(true), path),
        Err(other) => Ok(other),
    }
}

/// Creates a file for writing that only its user may read, or replaces a regular one of that user. `PermissionDenied` if another user could
/// read it: a file that belongs to them.
#[cfg(feature = "perf-data")]
pub(crate) fn create(path: &Path) -> io::Result<Found> {
    match std::fs::metadata(path).map(|metadata| found(&metadata)) {
        Ok(Err(other)) => return Ok(other),
        Err(errno) if errno.kind() != io::ErrorKind::NotFound => return Err(errno),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    // Who owns a new file is the file system's affair.
    let found = match opened(options.clone().create_new(true), path) {
        Err(errno) if errno.kind() == io::ErrorKind::AlreadyExists => opened(options.create(true), path)?,
        found => return found,
    };
    if let Found::File(file, _) = &found {
        let owner = file.metadata()?.uid();
        if owner != nix::unistd::geteuid().as_raw() {
            let message = format!("the file belongs to user {owner}, who could read the recording: remove it first");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(found)
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

/// The length of a regular file, or else its kind.
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

/// Whether a control group is of version 1.
pub(crate) fn is_first_version(directory: BorrowedFd<'_>) -> bool {
    fstatfs(directory).is_ok_and(|system| system.filesystem_type() == CGROUP_SUPER_MAGIC)
}
