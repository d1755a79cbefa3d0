//! Where tracefs is: mounted somewhere, or opened without a mount.

use perfweave::{Error, ErrorKind};
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::getegid;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Where tracefs is: the first place where all of it is mounted, also if mounts cannot be listed. Where it is not
/// mounted, one that is mounted nowhere and ends with the value (Linux 5.2, `CAP_SYS_ADMIN` and `/proc`).
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is none; [`ErrorKind::Permission`] if it cannot be searched, or if it is not
/// mounted and this user may not open it.
pub fn tracefs() -> Result<Tracefs, Error> {
    Tracefs::find().map_err(|errno| {
        let hint = hint(&errno);
        Error::new(ErrorKind::of(&errno), "cannot find tracefs").because(errno).hinting(hint)
    })
}

/// What helps when a tracepoint cannot be looked up in tracefs.
pub(crate) fn hint(errno: &io::Error) -> String {
    match errno.kind() {
        io::ErrorKind::NotFound => "mount -t tracefs nodev /sys/kernel/tracing".into(),
        io::ErrorKind::PermissionDenied => {
            let group = getegid();
            let mount = match Tracefs::mounted_at() {
                Some(place) => format!("mount -o remount,gid={group},mode=750 {}", place.display()),
                None => format!("mount -t tracefs -o gid={group},mode=750 nodev /sys/kernel/tracing"),
            };
            format!(
                "whether there is one cannot be told: unless it is mounted otherwise, only root can read tracefs. As \
                 root, `{mount}` lets the group of this process read it. A tracepoint's number needs no file"
            )
        }
        _ => String::new(),
    }
}

/// Where tracefs is: a folder, as long as this lives ([`tracefs`]).
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
        let listed = mounts();
        let unlisted = listed.as_ref().err().map(|errno| format!(", and mounts cannot be listed: {errno}"));
        let mut denied = None;
        for path in USUAL.into_iter().map(PathBuf::from).chain(listed.unwrap_or_default()) {
            match is_tracefs(&path) {
                Ok(true) => return Ok(Self { path, detached: None }),
                Err(Errno::ACCESS) => denied = denied.or(Some(path)),
                _ => {}
            }
        }
        // There is one tracefs, and every mount of it has the same owner and mode. Before Linux 6.1 a new mount would
        // even set them back.
        if let Some(path) = denied {
            let text = format!("{}: Permission denied", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let not_mounted = format!("tracefs is not mounted where it usually is{}", unlisted.unwrap_or_default());
        Self::detached(&not_mounted)
    }

    /// A mount that no list has. `not_mounted` is said first if there can be none.
    fn detached(not_mounted: &str) -> io::Result<Self> {
        let cannot = |kind, why: &str| io::Error::new(kind, format!("{not_mounted}, and {why}"));
        let detached = open_detached().map_err(|errno| match errno.kind() {
            io::ErrorKind::PermissionDenied => {
                cannot(io::ErrorKind::PermissionDenied, "to open it without a mount takes CAP_SYS_ADMIN")
            }
            _ => cannot(io::ErrorKind::NotFound, &format!("it cannot be opened without a mount: {errno}")),
        })?;
        let path = Path::new(DESCRIPTORS).join(detached.as_raw_fd().to_string());
        match is_tracefs(&path) {
            Ok(true) => Ok(Self { path, detached: Some(detached) }),
            Err(Errno::ACCESS) => Err(cannot(io::ErrorKind::PermissionDenied, "this user may not search it")),
            _ => Err(cannot(io::ErrorKind::NotFound, "/proc, by which it is opened without a mount, is not mounted")),
        }
    }

    /// Where it is mounted, whether it is readable or not.
    pub(crate) fn mounted_at() -> Option<PathBuf> {
        let has_it = |path: &PathBuf| is_of_tracefs(path).unwrap_or(false);
        mounts().unwrap_or_default().into_iter().chain(USUAL.map(PathBuf::from)).find(has_it)
    }

    /// A path in tracefs, as a person finds it.
    pub(crate) fn named(path: &Path) -> String {
        match path.strip_prefix(DESCRIPTORS) {
            Ok(inside) => format!("{} of tracefs", inside.iter().skip(1).collect::<PathBuf>().display()),
            Err(_) => path.display().to_string(),
        }
    }
}

/// The paths of the mounts of tracefs in the calling thread's mount namespace (proc_pid_mounts(5)).
fn mounts() -> io::Result<Vec<PathBuf>> {
    let text = fs::read("/proc/thread-self/mounts")?;
    let path = |line: &[u8]| {
        // `tracefs /sys/kernel/tracing tracefs rw 0 0`
        let mut fields = line.split(|byte| *byte == b' ').skip(1);
        let path = fields.next()?;
        (fields.next()? == b"tracefs").then(|| unescape(path).into())
    };
    Ok(text.split(|byte| *byte == b'\n').filter_map(path).collect())
}

/// Blanks, tabs, line feeds and backslashes are written as `\040`, `\011`, `\012` and `\134` (`mangle_path`,
/// `fs/seq_file.c`).
fn unescape(mut field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    while let Some((&first, rest)) = field.split_first() {
        let escaped = rest.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        let value = escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(value.unwrap_or(first));
        field = if value.is_some() { &rest[3..] } else { rest };
    }
    OsString::from_vec(bytes)
}

fn is_of_tracefs(path: &Path) -> Result<bool, Errno> {
    /// `TRACEFS_MAGIC` of `include/uapi/linux/magic.h`.
    const MAGIC: u64 = 0x7472_6163;
    statfs(path).map(|system| system.f_type as u64 == MAGIC)
}

/// Whether a path shows the whole tracefs: another file system may be mounted over it, or only one of its directories
/// may be mounted.
fn is_tracefs(path: &Path) -> Result<bool, Errno> {
    match is_of_tracefs(&path.join("events")) {
        // The type of a file system can be read without the right to search it.
        Err(Errno::ACCESS) if is_of_tracefs(path).unwrap_or(false) => Err(Errno::ACCESS),
        Err(Errno::ACCESS) => Ok(false),
        answer => answer,
    }
}

/// The root folder of a new mount that no list has. It takes Linux 5.2, and `CAP_SYS_ADMIN` in the first user namespace.
fn open_detached() -> io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}
