//! What events are opened for: the whole machine, a process, a thread, a control group.

use crate::error::{Error, ErrorKind};
use crate::sys::machine::{self, Mount};
use crate::sys::pidfd::Task;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// What all events of the rings are opened for.
#[derive(Debug)]
pub(crate) enum Target {
    /// Everything that runs on the CPUs.
    Machine,
    /// All threads of a process, and the threads and processes that they start.
    Process(Task),
    Thread(Task),
    /// A control group, by its directory.
    Cgroup(OwnedFd),
}

/// The hint if a path is not of a control group that can be traced.
pub(super) fn cgroup_hint() -> String {
    let mounts = machine::mounts().unwrap_or_default();
    let of_perf = |mount: &&Mount| {
        mount.kind == "cgroup" && mount.options.as_bytes().split(|byte| *byte == b',').any(|word| word == b"perf_event")
    };
    // Where a hierarchy of version 1 has perf_event, the groups of version 2 do not.
    let of_first = mounts.iter().find(of_perf);
    let place = of_first.or_else(|| mounts.iter().find(|mount| mount.kind == "cgroup2")).map(|mount| &mount.path);
    let here = place.map_or("see /proc/mounts".into(), |path| format!("here one in {}", path.display()));
    format!(
        "a control group is a directory of a cgroup2 file system, or of the cgroup file system of perf_event: {here}"
    )
}

impl Target {
    /// Whether events follow threads. These go on when a CPU comes back.
    pub(super) fn is_tasks(&self) -> bool {
        matches!(self, Self::Process(_) | Self::Thread(_))
    }

    /// The threads that are traced now, if not all are. None of a process that has ended.
    pub(super) fn threads(&self) -> Result<Option<Vec<u32>>, Error> {
        let (Self::Process(task) | Self::Thread(task)) = self else { return Ok(None) };
        match task.threads() {
            Err(errno) if errno.raw_os_error() == Some(libc::ESRCH) => Ok(Some(Vec::new())),
            Err(errno) => Err(gone(task.number(), errno)),
            Ok(threads) => Ok(Some(threads.into_iter().collect())),
        }
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
