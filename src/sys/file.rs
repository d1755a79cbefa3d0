//! Files by paths that users give, which may lead anywhere. These functions never wait for the other end of a pipe, and check a file before
//! they read or write it.

#[cfg(feature = "perf-data")]
use nix::sys::statfs::PROC_SUPER_MAGIC;
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
#[cfg(feature = "perf-data")]
use std::path::PathBuf;

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
        Ok(_) => opened(OpenOptions::new().read(true), path, 0),
        Err(other) => Ok(other),
    }
}

/// As many links as the kernel follows (MAXSYMLINKS, include/linux/namei.h).
#[cfg(feature = "perf-data")]
const MOST_LINKS: usize = 40;

/// Creates a file for writing that only its user may read, or replaces a regular one of that user. `PermissionDenied` if another user could
/// read it, because it belongs to them, or has a say in what it is, by a link.
#[cfg(feature = "perf-data")]
pub(crate) fn create(path: &Path) -> io::Result<Found> {
    let (path, follows) = &behind_links(path)?;
    match std::fs::metadata(path).map(|metadata| found(&metadata)) {
        Ok(Err(other)) => return Ok(other),
        Err(errno) if errno.kind() != io::ErrorKind::NotFound => return Err(errno),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    // Who owns a new file is the file system's affair.
    let found = match opened(options.clone().create_new(true), path, libc::O_NOFOLLOW) {
        Err(errno) if errno.kind() == io::ErrorKind::AlreadyExists => opened(options.create(true), path, *follows)?,
        found => return found,
    };
    if let Found::File(file, _) = &found {
        let (metadata, refused) =
            (file.metadata()?, |message| io::Error::new(io::ErrorKind::PermissionDenied, message));
        let (owner, names) = (metadata.uid(), metadata.nlink());
        if owner != nix::unistd::geteuid().as_raw() {
            return Err(refused(format!(
                "the file belongs to user {owner}, who could read the recording: remove it first"
            )));
        }
        if names > 1 {
            return Err(refused(format!(
                "the file has {names} names, and may be another that somebody linked here: remove it first"
            )));
        }
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(found)
}

/// The path to which a path leads by links of this user and of root, as `fs.protected_symlinks` has it (proc_sys_fs(5)), but for the last name alone, in all
/// directories, and the flag with which to open it. `PermissionDenied` at a link of another user, who may let it lead anywhere.
#[cfg(feature = "perf-data")]
fn behind_links(path: &Path) -> io::Result<(PathBuf, i32)> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        // The link itself. It is looked at and read by this descriptor, so that nobody replaces it meanwhile.
        let link = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(&path);
        let link = match link {
            Err(errno) if errno.kind() == io::ErrorKind::NotFound => return Ok((path, libc::O_NOFOLLOW)),
            link => link?,
        };
        let metadata = link.metadata()?;
        if !metadata.is_symlink() {
            return Ok((path, libc::O_NOFOLLOW));
        }
        // The kernel's own link to an open file, which may have no name: `/proc/self/fd/3`. Only the kernel can follow it.
        if fstatfs(&link)?.filesystem_type() == PROC_SUPER_MAGIC {
            return Ok((path, 0));
        }
        let owner = metadata.uid();
        if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
            let message =
                format!("it is a link of user {owner}, which is not followed: give the path that it leads to");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        path.pop();
        path.push(nix::fcntl::readlinkat(&link, "")?);
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

#[cfg(any(feature = "symbols", feature = "perf-data"))]
fn opened(options: &mut OpenOptions, path: &Path, flags: i32) -> io::Result<Found> {
    // Rust adds O_CLOEXEC.
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags).open(path)?;
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
