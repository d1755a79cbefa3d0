//! What is behind the descriptors of calls, while it can be asked: `/proc/PID/fd` has the file, but only as of now.
//!
//! Nothing here asks the file system that the file is on: a server that does not answer is what many wait for. Not seen:
//! a descriptor that another thread replaces while a call goes on that falls asleep again, and a file whose inode a later
//! one has got by the time of the look.

use super::descriptors::Descriptors;
use crate::waits::{Call, File};
use perfweave::{Event, Rings};
use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sleeps whose names are kept.
const NAMES: usize = 1 << 14;
/// Looks in so long a time.
const LOOKS: usize = 256;
const LOOKS_IN: Duration = Duration::from_millis(100);

/// Two ways to know that a descriptor is still that of the file which was waited for.
#[derive(Debug)]
pub enum Files {
    /// Nothing has changed it since: all is traced that does.
    Watched(Box<Descriptors>),
    /// The kernel told which file it was when the thread fell asleep.
    Told(Told),
}

/// The names of one sleep each: of a thread of a process, by when it began.
#[derive(Debug)]
pub struct Told {
    names: HashMap<([u32; 2], u64), Option<Arc<str>>>,
    looks: usize,
    /// Since when they are counted.
    looks_from: Instant,
}

impl Files {
    /// `None`: what is asked now is not of what the stream tells, for one of the reasons of [`Descriptors::new`].
    pub fn new(rings: &Rings, are_told: bool) -> Option<Self> {
        match are_told {
            true => Some(Self::Told(Told { names: HashMap::new(), looks: 0, looks_from: Instant::now() })),
            false => Descriptors::new(rings).map(Box::new).map(Self::Watched),
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

    /// Whether it helps to look when a thread does not wait any more.
    pub fn looks_back(&self) -> bool {
        matches!(self, Self::Watched(_))
    }

    /// Learns the name of a thread's descriptor, for a call in which it sleeps.
    pub fn look(&mut self, thread: [u32; 2], descriptor: i32, call: &Call) {
        match self {
            Self::Watched(descriptors) => descriptors.look(thread, descriptor, call.entered),
            Self::Told(told) => told.look(thread, descriptor, call),
        }
    }

    /// What was behind the descriptor of a call, which blocked at this time.
    pub fn name(&self, thread: [u32; 2], descriptor: i32, call: &Call, blocked: u64) -> Option<Arc<str>> {
        match self {
            Self::Watched(descriptors) => descriptors.name(thread, descriptor, [call.entered, blocked]),
            Self::Told(told) => told.names.get(&(thread, call.entered))?.clone(),
        }
    }
}

impl Told {
    fn look(&mut self, thread: [u32; 2], descriptor: i32, call: &Call) {
        let (Some(file), place) = (call.file, (thread, call.entered)) else { return };
        if self.looks_from.elapsed() >= LOOKS_IN {
            (self.looks, self.looks_from) = (0, Instant::now());
        }
        if self.looks >= LOOKS || self.names.contains_key(&place) {
            return;
        }
        if self.names.len() >= NAMES {
            self.names.clear();
        }
        self.looks += 1;
        self.names.insert(place, name(thread, descriptor, file));
    }
}

/// The name that a thread's descriptor has now, if it is still of this file: before the name is read, and behind that.
fn name([process, thread]: [u32; 2], descriptor: i32, file: File) -> Option<Arc<str>> {
    let info = || fs::read_to_string(format!("/proc/{process}/task/{thread}/fdinfo/{descriptor}")).ok();
    let before = info()?;
    let name = fs::read_link(format!("/proc/{process}/task/{thread}/fd/{descriptor}")).ok()?;
    let [before, behind] = [before, info()?].map(|info| Some((number(&info, "ino:")?, number(&info, "mnt_id:")?)));
    let (inode, mount) = before.filter(|_| before == behind)?;
    let name = name.to_string_lossy();
    let is_same = match name.strip_suffix(']').and_then(|name| name.split_once(":[")) {
        Some(("pipe" | "socket", number)) => number.parse() == Ok(inode),
        // Many share this inode (anon_inode), or the device is not told.
        _ if !name.starts_with('/') => false,
        _ => device(process, mount) == Some(file.device),
    };
    (inode == file.inode && is_same).then(|| name.into())
}

/// A line of `fdinfo`.
fn number(info: &str, name: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// The device of a mount, as the kernel has it (`MKDEV`, include/linux/kdev_t.h).
fn device(process: u32, mount: u64) -> Option<u32> {
    let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).ok()?;
    let mut fields = mounts.lines().map(|line| line.split(' ')).find_map(|mut fields| {
        let is_it = fields.next()?.parse() == Ok(mount);
        is_it.then_some(fields)
    })?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    Some(major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::fstat;
    use std::os::fd::AsRawFd;

    /// The file of a descriptor has its name, and no other file has.
    #[test]
    fn a_name_is_that_of_the_file_which_was_told() {
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        let path = std::env::temp_dir().join(format!("perfweave-files-{}", std::process::id()));
        let open = fs::File::create(&path).unwrap();
        let of = |descriptor: i32, inode: u64, device: u32| {
            name([std::process::id(); 2], descriptor, File { device, inode })
        };
        let inode = fstat(&pipe).unwrap().st_ino;
        let pipes = of(pipe.as_raw_fd(), inode, 0);
        assert_eq!(pipes.as_deref(), Some(&*format!("pipe:[{inode}]")));
        assert_eq!(of(pipe.as_raw_fd(), inode + 1, 0), None);
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", open.as_raw_fd())).unwrap();
        // Before Linux 5.14 there is none.
        if let Some(inode) = number(&info, "ino:") {
            let mount = number(&info, "mnt_id:").unwrap();
            let device = device(std::process::id(), mount).unwrap();
            assert_eq!(of(open.as_raw_fd(), inode, device).as_deref(), path.to_str());
            assert_eq!(of(open.as_raw_fd(), inode, device + 1), None);
            assert_eq!(of(pipe.as_raw_fd(), inode, device), None, "another one's");
        }
        fs::remove_file(path).unwrap();
    }

    /// Many kinds of descriptors share one inode.
    #[test]
    fn what_shares_its_inode_with_others_has_no_name() {
        let event = nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty()).unwrap();
        let inode = fstat(&event.0).unwrap().st_ino;
        let file = File { device: 0, inode };
        assert_eq!(name([std::process::id(); 2], event.0.as_raw_fd(), file), None);
    }
}
