//! Files that are written by paths that users give, and that only their user may read: recordings, and what programs
//! make of them.

use nix::fcntl::{FcntlArg, OFlag, fcntl, readlinkat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use std::fs::{self, File, FileType, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// As many links as the kernel follows (MAXSYMLINKS, include/linux/namei.h).
const MOST_LINKS: usize = 40;

/// Creates a file for writing that only its user may read, or empties a regular one of that user, or opens what is
/// there and no file. `None` if what is there is not wanted. Never waits for a reader. A file that others could open
/// until now is replaced: who has opened it has the old one. One that this process was given open is made private where
/// it is. A [`Writer`](crate::Writer) creates its file so; this is for what a program makes of a recording.
///
/// # Errors
/// `PermissionDenied` if another user could read it, because it belongs to them, or has a say in what it is, by a link
/// at the last place of the path. Links at the other places are followed: who may write in a folder of the path has a
/// say in all that is behind it.
pub fn create(path: &Path, is_wanted: impl Fn(FileType) -> bool) -> io::Result<Option<File>> {
    let Place { path, flags, is_own } = Place::behind_links(path)?;
    // Looked at before, because opening a device has effects. Looked at again when it is open.
    match fs::metadata(&path).map(|there| is_wanted(there.file_type())) {
        Ok(false) => return Ok(None),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = File::options();
    options.write(true).mode(0o600);
    let open = |options: &mut OpenOptions, flags: OFlag| {
        options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY | flags).bits()).open(&path)
    };
    // Who owns a new file is the file system's affair.
    let file = match open(options.clone().create_new(true), OFlag::O_NOFOLLOW) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => open(options.create(true), flags)?,
        made => return made.map(Some),
    };
    let there = file.metadata()?;
    let (kind, owner) = (there.file_type(), there.uid());
    if !is_wanted(kind) {
        return Ok(None);
    }
    // A pipe or a device of root's is no file that somebody reads later.
    let is_foreign = if kind.is_file() { owner != user() } else { !is_trusted(owner) };
    if is_foreign && !is_own {
        return Err(refused(format!("it belongs to user {owner}, who may read and change it: remove it first")));
    }
    if !kind.is_file() {
        // O_NONBLOCK was for opening it: writing waits for room.
        fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
        return Ok(Some(file));
    }
    if there.nlink() > 1 {
        let names = there.nlink();
        return Err(refused(format!("it has {names} hard links, and may be another user's file: remove it first")));
    }
    if there.mode() & 0o077 != 0 && !is_own {
        fs::remove_file(&path).map_err(|error| {
            refused(format!("others could open it until now, and it cannot be replaced ({error}): chmod 600 it first"))
        })?;
        // What somebody puts there in between is an error, and is not written into.
        return open(options.clone().create_new(true), OFlag::O_NOFOLLOW).map(Some);
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(Some(file))
}

/// Where a path leads by links of this user and of root, as `fs.protected_symlinks` has it (proc_sys_fs(5)), but for
/// the last name alone, in all directories.
struct Place {
    path: PathBuf,
    /// With which to open it.
    flags: OFlag,
    /// Whether this process has it open: what it was given as a descriptor is its user's own choice.
    is_own: bool,
}

impl Place {
    fn by_name(path: PathBuf) -> Self {
        Self { path, flags: OFlag::O_NOFOLLOW, is_own: false }
    }

    /// `PermissionDenied` at a link of another user, who may let it lead anywhere.
    fn behind_links(path: &Path) -> io::Result<Self> {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            // The link itself. It is looked at and read by this descriptor, so that nobody replaces it meanwhile.
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
            let link = match File::options().read(true).custom_flags(flags.bits()).open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::by_name(path)),
                link => link?,
            };
            let metadata = link.metadata()?;
            if !metadata.is_symlink() {
                return Ok(Self::by_name(path));
            }
            let owner = metadata.uid();
            if !is_trusted(owner) {
                let message =
                    format!("it is a link of user {owner}, which is not followed: give the path that it leads to");
                return Err(refused(message));
            }
            // The kernel's own link to what a process has open, which may have no name: `/proc/self/fd/3`. Only the
            // kernel can follow it.
            if fstatfs(&link)?.filesystem_type() == PROC_SUPER_MAGIC {
                let is_own = is_of_this_process(&path);
                return Ok(Self { path, flags: OFlag::empty(), is_own });
            }
            // A target that begins with `/` replaces the path (`PathBuf::push`).
            path.pop();
            path.push(readlinkat(&link, "")?);
        }
        Err(io::Error::from(nix::errno::Errno::ELOOP))
    }
}

/// Whether a link in /proc is one to what this process has open.
fn is_of_this_process(link: &Path) -> bool {
    // Both are held, so that none has the other's inode number.
    let folder = |path: &Path| File::options().read(true).custom_flags(OFlag::O_PATH.bits()).open(path);
    let place = |folder: &File| folder.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    let Some(Ok(parent)) = link.parent().map(folder) else { return false };
    ["/proc/self/fd", "/proc/thread-self/fd"].into_iter().filter_map(|own| folder(Path::new(own)).ok()).any(|own| {
        let (own, parent) = (place(&own), place(&parent));
        own.ok().is_some_and(|own| parent.is_ok_and(|parent| own == parent))
    })
}

fn refused(message: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, message)
}

fn user() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == user()
}
