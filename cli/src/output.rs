//! Files that are written by a path that the user gives.

use nix::fcntl::{FcntlArg, OFlag, fcntl, readlinkat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// As many links as the kernel follows (MAXSYMLINKS, include/linux/namei.h).
const MOST_LINKS: usize = 40;

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// This user, as with recordings, which tell of all users.
    Own,
    /// Whom the umask lets.
    Any,
}

/// Creates a file, or opens what is there and empties it if it is a file. Links of other users are not followed: they lead where those users
/// like.
pub fn create(path: &Path, readers: Readers) -> io::Result<File> {
    let (path, flags) = behind_links(path)?;
    let mode = if readers == Readers::Own { 0o600 } else { 0o666 };
    let mut options = File::options();
    // A pipe of another user would keep the program waiting for a reader.
    let flags_of_open = flags | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    let file = options.write(true).create(true).mode(mode).custom_flags(flags_of_open.bits()).open(path)?;
    let metadata = file.metadata()?;
    // What the program was given as a descriptor is the user's own choice.
    if flags.contains(OFlag::O_NOFOLLOW) {
        refuse_foreign(metadata.uid())?;
    }
    if !metadata.is_file() {
        fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
        return Ok(file);
    }
    if metadata.nlink() > 1 {
        let message = "it has other names, and may be a file that somebody linked here: remove it first";
        return Err(io::Error::new(ErrorKind::PermissionDenied, message));
    }
    if readers == Readers::Own {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.set_len(0)?;
    Ok(file)
}

fn refuse_foreign(owner: u32) -> io::Result<()> {
    if is_trusted(owner) {
        return Ok(());
    }
    let message = format!("it belongs to user {owner}, who may read and change it: remove it first");
    Err(io::Error::new(ErrorKind::PermissionDenied, message))
}

fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == nix::unistd::geteuid().as_raw()
}

/// Where a path leads by links of this user and of root, and how to open that. A link in /proc is the kernel's, and leads to what a process has open.
fn behind_links(path: &Path) -> io::Result<(PathBuf, OFlag)> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        // The link itself. It is looked at and read by this descriptor, so that nobody replaces it meanwhile.
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        let link = match File::options().read(true).custom_flags(flags.bits()).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((path, OFlag::O_NOFOLLOW)),
            link => link?,
        };
        let metadata = link.metadata()?;
        if !metadata.is_symlink() {
            return Ok((path, OFlag::O_NOFOLLOW));
        }
        if fstatfs(&link)?.filesystem_type() == PROC_SUPER_MAGIC {
            return Ok((path, OFlag::empty()));
        }
        if !is_trusted(metadata.uid()) {
            let message = format!("it is a link of user {}: give the path that it leads to", metadata.uid());
            return Err(io::Error::new(ErrorKind::PermissionDenied, message));
        }
        path.pop();
        path.push(readlinkat(&link, "")?);
    }
    Err(io::Error::from(nix::errno::Errno::ELOOP))
}
