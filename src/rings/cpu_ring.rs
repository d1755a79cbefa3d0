//! The ring of one CPU: its events are opened, its memory is mapped, and all events are made to write into it.

use crate::error::{Error, ErrorKind, hint, short};
use crate::record::{Origin, Sources};
use crate::ring::Ring;
use crate::rings::control::{Outlet, Slot};
use crate::rings::event_attr;
use crate::rings::event_spec::RingEvent;
use crate::rings::plan::Plan;
use crate::rings::refusal::{self, Denial};
use crate::rings::target::{self, CGROUP_HINT, Target};
use crate::rings::{Counter, Lane};
use crate::sys::perf::Pid;
use crate::sys::pidfd::Task;
use crate::sys::{machine, perf};
use nix::sys::resource::Resource;
use perf_event_open_sys::bindings::perf_event_attr;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A CPU's ring and all that writes into it, opened and not yet started.
pub(super) struct CpuRing {
    // In the order in which they are dropped.
    pub(super) lane: Lane,
    /// The event that owns the ring.
    pub(super) owner: Arc<OwnedFd>,
    pub(super) outlets: Vec<Outlet>,
}

/// Open events, each behind its place in the plan.
type OpenEvents = Vec<(usize, Arc<OwnedFd>)>;

/// How often threads are listed anew, if they come and go while their events are opened.
const TRIES: usize = 200;

impl CpuRing {
    /// Opens and maps the ring of one CPU, of `cpus` that are to have one; `None` if it is offline.
    pub(super) fn open(plan: &Plan, cpu: u32, cpus: usize) -> Result<Option<Self>, Error> {
        let Some((events, owner)) = open_events(plan, cpu, cpus)? else { return Ok(None) };
        let ring = map(plan, cpu, Arc::clone(&owner), cpus)?;
        let (outlets, sources) = join(plan, cpu, events, &owner)?;
        let counter = if plan.tells_losses() {
            Counter::Events { events: outlets.iter().map(|outlet| Arc::clone(&outlet.event)).collect(), before: 0 }
        } else {
            Counter::Unknown
        };
        let lane = Lane::new(ring, Origin::new(cpu, plan.layout, sources), counter);
        Ok(Some(Self { lane, owner, outlets }))
    }
}

/// Opens the events of a CPU anew, to write into the ring of `owner`; `None` if the CPU is offline.
pub(super) fn reopen(
    plan: &Plan,
    cpu: u32,
    cpus: usize,
    owner: &Arc<OwnedFd>,
) -> Result<Option<(Vec<Outlet>, Sources)>, Error> {
    let opened = open_events(plan, cpu, cpus)?;
    opened.map(|(events, _)| join(plan, cpu, events, owner)).transpose()
}

/// Opens all events of one CPU. Gives them, and the one that is to own their ring; `None` if the CPU is offline.
fn open_events(plan: &Plan, cpu: u32, cpus: usize) -> Result<Option<(OpenEvents, Arc<OwnedFd>)>, Error> {
    let opened = match &plan.target {
        Target::Machine => open_for(plan, Pid::All, cpu, cpus)?,
        Target::Cgroup(directory) => open_for(plan, Pid::Cgroup(directory.as_fd()), cpu, cpus)?,
        Target::Process(task) | Target::Thread(task) => return open_tasks(plan, task, cpu, cpus).map(Some),
    };
    let Some(events) = opened else { return Ok(None) };
    let Some((_, owner)) = events.first() else { return Err(Error::no_events()) };
    let owner = Arc::clone(owner);
    Ok(Some((events, owner)))
}

/// The events of all threads on one CPU.
///
/// A thread that is started by one whose event is open inherits that event; one that was there before needs an event of its
/// own. With both, its records would come twice; with neither, not at all. So threads are listed before and after: if the list
/// is the same, all of them were there before, and all that come have inherited. A number that another thread has got since is in
/// no list.
fn open_tasks(plan: &Plan, task: &Task, cpu: u32, cpus: usize) -> Result<(OpenEvents, Arc<OwnedFd>), Error> {
    let pid = task.number();
    let threads = || task.threads().map_err(|errno| target::gone(pid, errno));
    let owner = Arc::new(open_owner(plan, cpu)?);
    for _ in 0..TRIES {
        let tasks = threads()?;
        let mut events = Vec::new();
        for &tid in &tasks {
            events.extend(open_for(plan, Pid::Thread(tid), cpu, cpus * tasks.len())?.into_iter().flatten());
        }
        if events.is_empty() {
            return Err(target::gone(pid, io::Error::from_raw_os_error(libc::ESRCH)));
        }
        if threads()? == tasks {
            return Ok((events, owner));
        }
    }
    let cure = "trace its control group, or stop it meanwhile";
    let message = format!("the threads of process {pid} were others each time, {TRIES} times: {cure}");
    Err(Error::new(ErrorKind::Busy, message))
}

/// Opens all events on one CPU for one `pid`; `None` if the CPU is offline, or the thread has ended. `cpus` times as many file descriptors are needed in all.
fn open_for(plan: &Plan, pid: Pid<'_>, cpu: u32, cpus: usize) -> Result<Option<OpenEvents>, Error> {
    let mut opened = Vec::with_capacity(plan.events.len());
    for (source, event) in plan.events.iter().enumerate() {
        let RingEvent { name, attr, probe, filter, .. } = event;
        match perf::open(attr, probe.as_deref(), pid, cpu) {
            Ok(open) => {
                if let Some(filter) = filter {
                    filter.apply(open.as_fd(), event)?;
                }
                opened.push((source, Arc::new(open)));
            }
            Err(errno) if errno.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(errno) if matches!((pid, errno.raw_os_error()), (Pid::Thread(_), Some(libc::ESRCH))) => return Ok(None),
            Err(errno) => {
                let hint = hint_of_target(pid, &errno).or_else(|| hint_of_clock(event, pid, cpu, &errno));
                return Err(cannot_open((name, attr, probe.as_deref()), cpu, errno, hint, cpus * plan.events.len()));
            }
        }
    }
    Ok(Some(opened))
}

/// Why an event cannot be opened. `fds` are needed for all events.
fn cannot_open(
    (name, attr, probe): (&str, &perf_event_attr, Option<&CStr>),
    cpu: u32,
    errno: io::Error,
    hint: Option<String>,
    fds: usize,
) -> Error {
    let hint = hint.unwrap_or_else(|| refusal::open(&errno, attr, probe, fds));
    let kind = refusal::kind(&errno, attr, probe);
    let message = format!("cannot open {} on CPU {cpu}", short(name));
    Error::new(kind, message).because(errno).hinting(hint).about(name)
}

/// What helps where an event cannot be opened for a task or control group, if that is why.
fn hint_of_target(pid: Pid<'_>, errno: &io::Error) -> Option<String> {
    let text = match (pid, errno.raw_os_error()) {
        (Pid::Cgroup(_), Some(libc::EBADF)) => CGROUP_HINT,
        (Pid::Thread(_), Some(raw @ (libc::EACCES | libc::EPERM))) if refusal::denial(raw) == Denial::Privilege => {
            "needs CAP_PERFMON, or a process of your own and RingOptions::user_only, if kernel.perf_event_paranoid is 2 or less"
        }
        _ => return None,
    };
    Some(text.into())
}

/// What helps where the kernel refuses an event with this clock, and would take it with its own.
fn hint_of_clock(event: &RingEvent, pid: Pid<'_>, cpu: u32, errno: &io::Error) -> Option<String> {
    let mut attr = event.attr;
    if errno.raw_os_error() != Some(libc::EINVAL) || attr.use_clockid() == 0 {
        return None;
    }
    attr.set_use_clockid(0);
    attr.clockid = 0;
    perf::open(&attr, event.probe.as_deref(), pid, cpu).ok().map(|_| refusal::clock(&event.attr))
}

/// Opens the event that owns the ring of one CPU where events follow tasks: one of this process that never writes.
///
/// When a task ends, its event reports that to all who poll it, again and again (`EPOLLHUP`), although others still write into the
/// ring. This process ends last.
fn open_owner(plan: &Plan, cpu: u32) -> Result<OwnedFd, Error> {
    let Some(RingEvent { attr: first, .. }) = plan.events.first() else { return Err(Error::no_events()) };
    // The ring's clock, direction and wake-up are its owner's.
    let mut attr = perf_event_attr { clockid: first.clockid, ..event_attr::harmless() };
    attr.wakeup_watermark = first.wakeup_watermark;
    attr.wakeup_events = first.wakeup_events;
    attr.set_watermark(first.watermark());
    attr.set_use_clockid(first.use_clockid());
    attr.set_write_backward(first.write_backward());
    attr.set_disabled(1);
    let open = |thread| perf::open(&attr, None, Pid::Thread(thread), cpu);
    let opened = match open(std::process::id()) {
        // The first thread has ended, and the process lives on.
        Err(errno) if errno.raw_os_error() == Some(libc::ESRCH) => open(machine::thread()),
        opened => opened,
    };
    opened.map_err(|errno| cannot_open(("the ring's owner", &attr, None), cpu, errno, None, 1))
}

fn map(plan: &Plan, cpu: u32, event: Arc<OwnedFd>, cpus: usize) -> Result<Ring, Error> {
    let bytes = plan.page + plan.bytes;
    let mapped = if plan.backward {
        Ring::map_backward(event, plan.page, plan.bytes)
    } else {
        Ring::map(event, plan.page, plan.bytes)
    };
    mapped.map_err(|error| {
        let Some(errno) = error.raw_os_error() else { return error };
        let (hint, errno) = (hint_of_map(errno, bytes, cpus), error.into_source());
        let kind = match errno.raw_os_error() {
            // More locked memory than is allowed.
            Some(libc::EPERM) => ErrorKind::Limit,
            _ => ErrorKind::of(&errno),
        };
        let message = format!("cannot map a ring of {bytes} bytes for CPU {cpu}");
        Error::new(kind, message).because(errno).hinting(hint)
    })
}

/// What helps when a ring cannot be mapped.
fn hint_of_map(errno: i32, bytes: usize, cpus: usize) -> String {
    match errno {
        libc::EPERM => format!(
            "{cpus} rings of {} KiB are more than kernel.perf_event_mlock_kb, {} for each CPU and shared by the user's \
             processes, and RLIMIT_MEMLOCK, {} KiB, allow without CAP_IPC_LOCK",
            bytes >> 10,
            hint::setting("kernel/perf_event_mlock_kb"),
            hint::limit(Resource::RLIMIT_MEMLOCK) >> 10,
        ),
        libc::ENOMEM => format!("{cpus} rings of {} KiB are asked for", bytes >> 10),
        _ => String::new(),
    }
}

/// Makes all events write into the ring of `owner`. Gives the ids by which their records name them.
fn join(plan: &Plan, cpu: u32, events: OpenEvents, owner: &Arc<OwnedFd>) -> Result<(Vec<Outlet>, Sources), Error> {
    let mut outlets = Vec::new();
    let mut sources = Sources::new();
    for (index, event) in events {
        let RingEvent { name, map, .. } = &plan.events[index];
        let control = |what| move |errno| Error::control(what, name, cpu, errno);
        if !Arc::ptr_eq(&event, owner) {
            perf::set_output(event.as_fd(), owner.as_fd()).map_err(control("redirect"))?;
        }
        sources.push((perf::id(event.as_fd()).map_err(control("identify"))?, index));
        let slot = map.as_ref().map(|map| Slot { map: Arc::clone(&map.fd), index: (plan.slot)(cpu) });
        outlets.push(Outlet { cpu, name: Arc::clone(name), event, slot, set: false });
    }
    Ok((outlets, sources))
}
