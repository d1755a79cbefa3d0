//! Whom events are opened for: everybody, a process, a thread, a control group.

use crate::error::{Error, ErrorKind, short};
use crate::rings::options::Traced;
use crate::rings::planned::Planned;
use crate::rings::refusal::{self, Denial};
use crate::sys::pidfd::Task;
use crate::sys::{file, machine, perf};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Whom all events of the rings are opened for.
#[derive(Debug)]
pub(crate) enum Target {
    Everybody,
    /// All its threads, and what they start.
    Process(Task),
    Thread(Task),
    Cgroup(OwnedFd),
}

/// An event, behind its place in the plan.
pub(crate) type Numbered = (usize, Arc<OwnedFd>);

/// The events of one CPU.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) events: Vec<Numbered>,
    /// Whose ring they write into.
    pub(crate) owner: Arc<OwnedFd>,
}

/// How often threads are listed anew, if they come and go while their events are opened.
const TRIES: usize = 200;

impl Target {
    pub(crate) fn new(whom: Traced) -> Result<Self, Error> {
        Ok(match whom {
            Traced::Everybody => Self::Everybody,
            Traced::Process(pid, held) => Self::Process(held.map_err(|errno| gone(pid, errno))?),
            Traced::Thread(tid, held) => Self::Thread(held.map_err(|errno| gone(tid, errno))?),
            Traced::Cgroup(path) => match file::open_cgroup(&path) {
                Ok(directory) => Self::Cgroup(directory),
                Err(errno) => {
                    let message = format!("cannot open the control group {}", path.display());
                    return Err(Error::new(ErrorKind::of(&errno), message).because(errno).hinting(GROUP));
                }
            },
        })
    }

    /// Whether events follow tasks, wherever they run: these go on when a CPU that went comes back.
    pub(crate) fn is_tasks(&self) -> bool {
        matches!(self, Self::Process(_) | Self::Thread(_))
    }

    /// Whether events run whenever their CPU does.
    pub(crate) fn is_everybody(&self) -> bool {
        matches!(self, Self::Everybody)
    }

    /// Whether what a task starts is traced too.
    pub(crate) fn inherits(&self) -> bool {
        matches!(self, Self::Process(_))
    }

    /// Opens all events of one CPU; `None` if it is offline. `cpus` are to be opened in all.
    pub(crate) fn open(&self, planned: &[Planned], cpu: u32, cpus: usize) -> Result<Option<Opened>, Error> {
        let opened = match self {
            Self::Everybody => open_all(planned, perf::Whom::Everybody, cpu, cpus)?,
            Self::Cgroup(directory) => open_all(planned, perf::Whom::Cgroup(directory.as_fd()), cpu, cpus)?,
            Self::Process(task) | Self::Thread(task) => return open_tasks(task, planned, cpu, cpus),
        };
        let Some(events) = opened else { return Ok(None) };
        let Some((_, owner)) = events.first() else { return Err(Error::no_events()) };
        let owner = Arc::clone(owner);
        Ok(Some(Opened { events, owner }))
    }
}

/// The events of all threads on one CPU.
///
/// A thread that is started by one whose event is open inherits that event; one that was there before needs an event of its
/// own. With both, its records would come twice; with neither, not at all. So threads are listed before and after: if the list
/// is the same, all of them were there before, and all that come have inherited. A number that somebody else has got since is in no list.
fn open_tasks(task: &Task, planned: &[Planned], cpu: u32, cpus: usize) -> Result<Option<Opened>, Error> {
    let threads = || task.threads().map_err(|errno| gone(task.number(), errno));
    let owner = Arc::new(open_owner(planned, cpu)?);
    for _ in 0..TRIES {
        let tasks = threads()?;
        let mut events = Vec::new();
        for &tid in &tasks {
            match open_all(planned, perf::Whom::Task(tid), cpu, cpus * tasks.len()) {
                Ok(opened) => events.extend(opened.into_iter().flatten()),
                // It has ended since.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        if events.is_empty() {
            return Err(gone(task.number(), io::Error::from_raw_os_error(libc::ESRCH)));
        }
        if threads()? == tasks {
            return Ok(Some(Opened { events, owner }));
        }
    }
    let (pid, cure) = (task.number(), "trace its control group, or stop it meanwhile");
    let message = format!("the threads of process {pid} were others each time, {TRIES} times: {cure}");
    Err(Error::new(ErrorKind::Busy, message))
}

/// Why a process or thread cannot be had: it is not there, or the kernel refuses to let it be held.
fn gone(pid: u32, errno: io::Error) -> Error {
    match errno.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOSYS | libc::EPERM) => {
            Error::system("hold the process to trace, or list its threads", errno)
        }
        _ => Error::new(ErrorKind::NotFound, format!("there is no process {pid} to trace")).because(errno),
    }
}

/// Opens all events of one CPU for somebody; `None` if it is offline.
fn open_all(planned: &[Planned], whom: perf::Whom<'_>, cpu: u32, cpus: usize) -> Result<Option<Vec<Numbered>>, Error> {
    let mut opened = Vec::with_capacity(planned.len());
    for (source, event_of) in planned.iter().enumerate() {
        let Planned { name, attr, target, filter, .. } = event_of;
        match perf::open(attr, target.as_deref(), whom, cpu) {
            Ok(event) => {
                if let Some(filter) = filter {
                    filter.apply(event.as_fd(), name, || event_of.tracepoint_name(), target.is_some())?;
                }
                opened.push((source, Arc::new(event)));
            }
            Err(errno) if errno.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(errno) => {
                let fds = cpus * planned.len();
                let hint = hint_of(whom, &errno)
                    .or_else(|| hint_of_clock(event_of, whom, cpu, &errno))
                    .unwrap_or_else(|| refusal::open(&errno, attr, target.as_deref(), fds));
                let kind = refusal::kind(&errno, attr, target.as_deref());
                return Err(cannot_open(name, cpu, kind, errno, hint));
            }
        }
    }
    Ok(Some(opened))
}

/// What helps where a path leads to no control group that can be traced.
const GROUP: &str = "a control group is a directory of a cgroup2 file system, or of the cgroup file system of perf_event: see \
                     /proc/mounts";

fn cannot_open(event: &str, cpu: u32, kind: ErrorKind, errno: io::Error, hint: String) -> Error {
    let message = format!("cannot open {} on CPU {cpu}", short(event));
    Error::new(kind, message).because(errno).hinting(hint).about(event)
}

/// What helps where an event cannot be opened for somebody, if that is why.
fn hint_of(whom: perf::Whom<'_>, errno: &io::Error) -> Option<String> {
    let text = match (whom, errno.raw_os_error()) {
        (perf::Whom::Cgroup(_), Some(libc::EBADF)) => GROUP,
        (perf::Whom::Task(_), Some(raw @ (libc::EACCES | libc::EPERM)))
            if refusal::denial(raw) == Denial::Privilege =>
        {
            "needs CAP_PERFMON, or a process of your own and RingOptions::user_only, if kernel.perf_event_paranoid is 2 or less"
        }
        _ => return None,
    };
    Some(text.into())
}

/// What helps where the kernel refuses an event with this clock, and would take it with its own.
fn hint_of_clock(planned: &Planned, whom: perf::Whom<'_>, cpu: u32, errno: &io::Error) -> Option<String> {
    let mut attr = planned.attr;
    if errno.raw_os_error() != Some(libc::EINVAL) || attr.use_clockid() == 0 {
        return None;
    }
    attr.set_use_clockid(0);
    attr.clockid = 0;
    perf::open(&attr, planned.target.as_deref(), whom, cpu).ok().map(|_| refusal::clock(&planned.attr))
}

/// Opens the event that owns the ring of one CPU where events follow tasks: one of our own process that never writes.
///
/// When a task ends, its event reports that to all who poll it, again and again (`EPOLLHUP`), although others still write into the
/// ring. We end last.
fn open_owner(planned: &[Planned], cpu: u32) -> Result<OwnedFd, Error> {
    let Some(first) = planned.first() else { return Err(Error::no_events()) };
    // The ring's clock, direction and wake-up are its owner's.
    let perf_event_attr { clockid, .. } = first.attr;
    let mut attr = perf_event_attr {
        type_: bindings::PERF_TYPE_SOFTWARE,
        config: bindings::PERF_COUNT_SW_DUMMY.into(),
        clockid,
        ..Default::default()
    };
    attr.wakeup_watermark = first.attr.wakeup_watermark;
    attr.wakeup_events = first.attr.wakeup_events;
    attr.set_watermark(first.attr.watermark());
    attr.set_use_clockid(first.attr.use_clockid());
    attr.set_write_backward(first.attr.write_backward());
    attr.set_disabled(1);
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    let open = |thread| perf::open(&attr, None::<&CStr>, perf::Whom::Task(thread), cpu);
    let opened = match open(std::process::id()) {
        // The first thread has ended, and the process lives on.
        Err(errno) if errno.raw_os_error() == Some(libc::ESRCH) => open(machine::thread()),
        opened => opened,
    };
    opened.map_err(|errno| {
        let hint = refusal::open(&errno, &attr, None, 1);
        cannot_open("the ring's owner", cpu, refusal::kind(&errno, &attr, None), errno, hint)
    })
}
