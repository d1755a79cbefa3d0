//! The descriptors that tools have of us, and the epoll instances that tools put them into.

use crate::gate::Gate;
use crate::group::Group;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

pub(crate) type Shared = Arc<Gate<Group>>;

struct Watched {
    fd: RawFd,
    group: Weak<Gate<Group>>,
    /// Where the tool has put it.
    epolls: Vec<(c_int, libc::epoll_event)>,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
/// Whether there was ever one: most calls of epoll_ctl(2) and epoll_wait(2) have nothing to do with us.
static ANY: AtomicBool = AtomicBool::new(false);

fn all() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A descriptor that the tool gets.
pub(crate) fn own(fd: RawFd, group: &Shared) {
    all().push(Watched { fd, group: Arc::downgrade(group), epolls: Vec::new() });
    ANY.store(true, Ordering::Release);
}

pub(crate) fn disown(fd: RawFd) {
    all().retain(|watched| watched.fd != fd);
}

/// Whether a descriptor is ours.
pub(crate) fn is_ours(fd: RawFd) -> bool {
    ANY.load(Ordering::Acquire) && all().iter().any(|watched| watched.fd == fd)
}

/// The tool has done this with a descriptor of ours.
pub(crate) fn note(epoll: c_int, operation: c_int, fd: RawFd, event: Option<libc::epoll_event>) {
    if let Some(watched) = all().iter_mut().find(|watched| watched.fd == fd) {
        watched.epolls.retain(|(of, _)| *of != epoll);
        watched.epolls.extend(event.filter(|_| operation != libc::EPOLL_CTL_DEL).map(|event| (epoll, event)));
    }
}

/// Where the tool has put a descriptor.
pub(crate) fn epolls_of(fd: RawFd) -> Vec<(c_int, libc::epoll_event)> {
    all().iter().find(|watched| watched.fd == fd).map(|watched| watched.epolls.clone()).unwrap_or_default()
}

/// The groups of which an epoll instance has descriptors, each with what it reports of one of them.
pub(crate) fn groups(epoll: c_int) -> Vec<(Shared, libc::epoll_event)> {
    let mut groups: Vec<(Shared, libc::epoll_event)> = Vec::new();
    if !ANY.load(Ordering::Acquire) {
        return groups;
    }
    for watched in all().iter() {
        let Some((_, event)) = watched.epolls.iter().find(|(of, _)| *of == epoll) else { continue };
        let Some(group) = watched.group.upgrade() else { continue };
        if !groups.iter().any(|(known, _)| Arc::ptr_eq(known, &group)) {
            groups.push((group, *event));
        }
    }
    groups
}
