//! What events are opened for: the whole machine, a process, a thread, a control group.

use crate::error::{Error, ErrorKind};
use crate::sys::file;
use crate::sys::pidfd::Task;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What all events of the rings are opened for.
#[derive(Debug)]
pub(crate) enum Target {
    /// All that runs on the CPUs.
    Machine,
    /// All threads of a process, and what they start.
    Process(Task),
    Thread(Task),
    /// A control group, by its directory.
    Cgroup(OwnedFd),
}

/// What helps where a path leads to no control group that can be traced.
pub(super) const CGROUP_HINT: &str = "a control group is a directory of a cgroup2 file system, or of the cgroup file system of perf_event: see \
                                      /proc/mounts";

impl Target {
    /// A process, held from now on.
    pub(super) fn process(pid: u32) -> Result<Self, Error> {
        Task::process(pid).map(Self::Process).map_err(|errno| gone(pid, errno))
    }

    /// A thread, held from now on.
    pub(super) fn thread(tid: u32) -> Result<Self, Error> {
        Task::thread(tid).map(Self::Thread).map_err(|errno| gone(tid, errno))
    }

    /// A control group, held from now on.
    pub(super) fn cgroup(path: &Path) -> Result<Self, Error> {
        file::open_cgroup(path).map(Self::Cgroup).map_err(|errno| {
            let message = format!("cannot open the control group {}", path.display());
            Error::new(ErrorKind::of(&errno), message).because(errno).hinting(CGROUP_HINT)
        })
    }

    /// Whether events follow tasks, wherever they run: these go on when a CPU that went comes back.
    pub(super) fn is_tasks(&self) -> bool {
        matches!(self, Self::Process(_) | Self::Thread(_))
    }

    /// Whether events run whenever their CPU does.
    pub(super) fn is_machine(&self) -> bool {
        matches!(self, Self::Machine)
    }

    /// Whether what a task starts is traced too.
    pub(super) fn inherits(&self) -> bool {
        matches!(self, Self::Process(_))
    }
}

/// A process or thread has ended, or cannot be held, or its threads cannot be listed.
pub(super) fn gone(pid: u32, errno: io::Error) -> Error {
    match errno.raw_os_error() {
        Some(libc::ESRCH) => {
            Error::new(ErrorKind::NotFound, format!("there is no process {pid} to trace")).because(errno)
        }
        _ => Error::system(&format!("hold process {pid}, or list its threads"), errno),
    }
}
