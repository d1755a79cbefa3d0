//! Directories of control groups by paths that users give, which may lead anywhere. These functions never wait for the
//! other end of a pipe.

use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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
