//! Where tracefs is: mounted somewhere, or opened without a mount.

use super::machine::Mounts;
use nix::errno::Errno;
use nix::sys::statfs::{TRACEFS_MAGIC, statfs};
use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::null;

/// Where tracefs is: a folder, as long as this lives ([`Rings::tracefs`](crate::Rings::tracefs)).
///
/// Where no tracefs is mounted, this keeps one open that is mounted nowhere (fsmount(2)). No list of mounts has it, no
/// other process sees it, and it ends with this value. The path then leads through `/proc` to a file descriptor: it
/// works in the threads that share their descriptors with the one that called.
///
/// It is displayed as a person reads it: `mounted at /sys/kernel/tracing`, `not mounted, opened for this process alone`.
#[derive(Debug)]
pub struct Tracefs {
    path: PathBuf,
    /// The mount that no list has.
    detached: Option<OwnedFd>,
}

impl Deref for Tracefs {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for Tracefs {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl fmt::Display for Tracefs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detached {
            None => write!(f, "mounted at {}", self.path.display()),
            Some(_) => f.write_str("not mounted, opened for this process alone"),
        }
    }
}

/// The usual places. debugfs mounts tracefs inside itself at first use, without a separate entry in the list of mounts.
const USUAL: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The folder of the calling thread's descriptors.
const DESCRIPTORS: &str = "/proc/thread-self/fd";

impl Tracefs {
    /// Where it is mounted, even if mounts cannot be listed, or another file system covers one of its usual places.
    /// Where it is not, a mount of its own.
    ///
    /// `PermissionDenied`, with the place, if it is mounted and cannot be searched, or may not be opened otherwise.
    pub(crate) fn find() -> io::Result<Self> {
        let listed = Mounts::open().and_then(|mounts| mounts.read());
        let unlisted = listed.as_ref().err().map(|errno| format!(", and mounts cannot be listed: {errno}"));
        let mut denied = None;
        for path in USUAL.into_iter().map(PathBuf::from).chain(of_kind(listed.unwrap_or_default())) {
            match is_tracefs(&path) {
                Ok(true) => return Ok(Self { path, detached: None }),
                Err(Errno::EACCES) => denied = denied.or(Some(path)),
                _ => {}
            }
        }
        // There is one tracefs, and every mount of it has the same owner and mode. Before Linux 6.1 a new mount would
        // even set them back.
        if let Some(path) = denied {
            let text = format!("{}: {}", path.display(), Errno::EACCES.desc());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let not_mounted = format!("tracefs is not mounted where it usually is{}", unlisted.unwrap_or_default());
        Self::detached(&not_mounted)
    }

    /// A mount that no list has. `not_mounted` is said first if there can be none.
    fn detached(not_mounted: &str) -> io::Result<Self> {
        let cannot = |kind, why: &str| io::Error::new(kind, format!("{not_mounted}, and {why}"));
        let detached = open_detached().map_err(|errno| match errno.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                cannot(io::ErrorKind::PermissionDenied, "to open it without a mount takes CAP_SYS_ADMIN")
            }
            _ => cannot(io::ErrorKind::NotFound, &format!("it cannot be opened without a mount: {errno}")),
        })?;
        let path = Path::new(DESCRIPTORS).join(detached.as_raw_fd().to_string());
        match is_tracefs(&path) {
            Ok(true) => Ok(Self { path, detached: Some(detached) }),
            Err(Errno::EACCES) => {
                Err(cannot(io::ErrorKind::PermissionDenied, "its owner lets this user not search it"))
            }
            _ => Err(cannot(io::ErrorKind::NotFound, "/proc, by which it is opened without a mount, is not mounted")),
        }
    }

    /// Where it is mounted, whether it is readable or not.
    pub(crate) fn mounted_at() -> Option<PathBuf> {
        let listed = Mounts::open().and_then(|mounts| mounts.read()).unwrap_or_default();
        let has_it = |path: &PathBuf| statfs(path).is_ok_and(|system| system.filesystem_type() == TRACEFS_MAGIC);
        of_kind(listed).chain(USUAL.map(PathBuf::from)).find(has_it)
    }

    /// A path in tracefs, as a person finds it.
    pub(crate) fn named(path: &Path) -> String {
        match path.strip_prefix(DESCRIPTORS) {
            Ok(inside) => format!("{} of tracefs", inside.iter().skip(1).collect::<PathBuf>().display()),
            Err(_) => path.display().to_string(),
        }
    }
}

/// The paths of the mounts of tracefs.
fn of_kind(listed: Vec<super::machine::Mount>) -> impl Iterator<Item = PathBuf> {
    listed.into_iter().filter(|mount| mount.kind == "tracefs").map(|mount| mount.path)
}

/// Whether a path shows the whole tracefs: another file system may be mounted over it, or only one of its directories
/// may be mounted.
fn is_tracefs(path: &Path) -> nix::Result<bool> {
    match statfs(&path.join("events")) {
        Ok(events) => Ok(events.filesystem_type() == TRACEFS_MAGIC),
        // The type of a file system can be read without the right to search it.
        Err(Errno::EACCES) if statfs(path).is_ok_and(|it| it.filesystem_type() == TRACEFS_MAGIC) => Err(Errno::EACCES),
        Err(Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The root folder of a new mount that no list has. It takes Linux 5.2, and `CAP_SYS_ADMIN` in the first user namespace.
fn open_detached() -> io::Result<OwnedFd> {
    /// `include/uapi/linux/mount.h`
    const FSOPEN_CLOEXEC: u32 = 1;
    const FSCONFIG_CMD_CREATE: u32 = 6;
    const FSMOUNT_CLOEXEC: u32 = 1;
    // SAFETY: the name ends with a zero and lives until the call returns.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), FSOPEN_CLOEXEC) };
    let context = owned(context)?;
    let (at, no_key, no_value) = (context.as_raw_fd(), null::<u8>(), null::<u8>());
    // SAFETY: the command reads no pointer.
    let created = unsafe { libc::syscall(libc::SYS_fsconfig, at, FSCONFIG_CMD_CREATE, no_key, no_value, 0) };
    super::check(created)?;
    // SAFETY: no pointer is passed.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, at, FSMOUNT_CLOEXEC, 0) })
}

/// The descriptor that a system call has made.
fn owned(answer: libc::c_long) -> io::Result<OwnedFd> {
    let fd = super::check(answer)? as i32;
    // SAFETY: a new file descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
