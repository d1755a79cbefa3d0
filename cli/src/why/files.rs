//! What is behind the descriptors of calls, while it can be asked: `/proc/PID/fd` has the file, but only as of now.

use super::descriptors::Descriptors;
use crate::waits::{Call, File};
use nix::sys::stat::{fstat, major, minor};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, fstatfs};
use perfweave::{Event, Rings};
use std::collections::HashMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// Names that are kept.
const NAMES: usize = 1 << 14;

/// Two ways to know that a descriptor is still that of the file which was waited for.
#[derive(Debug)]
pub enum Files {
    /// Nothing has changed it since: all is traced that does.
    Watched(Box<Descriptors>),
    /// The kernel told which file it was when the thread fell asleep.
    Told(HashMap<Place, Arc<str>>),
}

/// A thread of a process, its descriptor, and the file that the kernel told.
type Place = ([u32; 2], i32, File);

impl Files {
    /// `None`: what is asked now is not of what the stream tells, for one of the reasons of [`Descriptors::new`].
    pub fn new(rings: &Rings, are_told: bool) -> Option<Self> {
        if are_told {
            Some(Self::Told(HashMap::new()))
        } else {
            Descriptors::new(rings).map(Box::new).map(Self::Watched)
        }
    }

    /// Takes an event. `since`: nothing is known of this time on, because of it.
    pub fn take(&mut self, event: &Event<'_>, since: Option<u64>) {
        if let Self::Watched(descriptors) = self {
            descriptors.take(event, since);
        }
    }

    /// Nothing is known of this time on.
    pub fn lost(&mut self, since: u64) {
        if let Self::Watched(descriptors) = self {
            descriptors.lost(since);
        }
    }

    /// Learns the name of a thread's descriptor, for a call.
    pub fn look(&mut self, thread: [u32; 2], descriptor: i32, call: &Call) {
        match self {
            Self::Watched(descriptors) => descriptors.look(thread, descriptor, call.entered),
            Self::Told(names) => {
                let Some(file) = call.file else { return };
                let place = (thread, descriptor, file);
                if names.len() >= NAMES || names.contains_key(&place) {
                    return;
                }
                if let Some(name) = name(thread, descriptor, file) {
                    names.insert(place, name);
                }
            }
        }
    }

    /// What was behind the descriptor of a call, which blocked at this time.
    pub fn name(&self, thread: [u32; 2], descriptor: i32, call: &Call, blocked: u64) -> Option<Arc<str>> {
        match self {
            Self::Watched(descriptors) => descriptors.name(thread, descriptor, [call.entered, blocked]),
            Self::Told(names) => names.get(&(thread, descriptor, call.file?)).cloned(),
        }
    }
}

/// The name that a thread's descriptor has now, if it is still of this file.
fn name([process, thread]: [u32; 2], descriptor: i32, file: File) -> Option<Arc<str>> {
    let path = format!("/proc/{process}/task/{thread}/fd/{descriptor}");
    // It opens no device and reads nothing, but keeps the file and its name together.
    let open = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_PATH).open(path).ok()?;
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", open.as_raw_fd())).ok()?;
    let inode = told.lines().find_map(|line| line.strip_prefix("ino:"))?.trim().parse::<u64>().ok()?;
    let status = fstat(&open).ok()?;
    // `MKDEV` (include/linux/kdev_t.h).
    let device = major(status.st_dev) << 20 | minor(status.st_dev);
    // These say another device of their files than the kernel has.
    let has_others =
        || fstatfs(&open).is_ok_and(|of| [BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC].contains(&of.filesystem_type()));
    let is_same = inode == file.inode && (device == u64::from(file.device) || has_others());
    let name = fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).ok().filter(|_| is_same)?;
    Some(name.to_string_lossy().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// The file of a descriptor has its name, and no other file has.
    #[test]
    fn a_name_is_that_of_the_file_which_was_told() {
        let open = fs::File::open("/proc/self/exe").unwrap();
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        let of = |descriptor: i32, inode: u64, device: u64| {
            let device = (major(device) << 20 | minor(device)) as u32;
            name([std::process::id(); 2], descriptor, File { device, inode })
        };
        let status = fstat(&pipe).unwrap();
        let pipes = of(pipe.as_raw_fd(), status.st_ino, status.st_dev);
        assert_eq!(pipes.as_deref(), Some(&*format!("pipe:[{}]", status.st_ino)));
        assert_eq!(of(pipe.as_raw_fd(), status.st_ino + 1, status.st_dev), None);
        assert_eq!(of(pipe.as_raw_fd(), status.st_ino, status.st_dev + 1), None);
        let meta = open.metadata().unwrap();
        assert_eq!(of(pipe.as_raw_fd(), meta.ino(), meta.dev()), None, "another one's");
        assert!(fs::read_link("/proc/self/exe").is_ok_and(|path| {
            of(open.as_raw_fd(), meta.ino(), meta.dev()).is_none_or(|name| *name == *path.to_string_lossy())
        }));
    }
}
