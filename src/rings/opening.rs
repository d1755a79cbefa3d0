//! The ring of one CPU: opens its events, maps its memory, and makes all events write into it.

use crate::error::{Error, ErrorKind, hint};
use crate::record::{Origin, Sources};
use crate::ring::Ring;
use crate::rings::event_spec::EventSpec;
use crate::rings::plan::Plan;
use crate::rings::producers::{Producer, Slot};
use crate::rings::target::{self, Target};
use crate::rings::{Count, CpuRing, event_attr, refusal};
use crate::sys::perf;
use crate::sys::perf::Pid;
use crate::sys::pidfd::Task;
use crate::sys::thread::Thread;
use nix::sys::resource::Resource;
use perf_event_open_sys::bindings::perf_event_attr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A CPU's ring and all that writes into it, opened and not yet started.
pub(super) struct OpenedRing {
    // In the order in which they are dropped.
    pub(super) cpu_ring: CpuRing,
    /// The event that owns the ring.
    pub(super) owner: Arc<OwnedFd>,
    pub(super) producers: Vec<Producer>,
}

/// Open events, each behind its place in the plan.
type OpenEvents = Vec<(usize, Arc<OwnedFd>)>;

/// How often threads are listed again if they come and go while their events are opened.
const TRIES: usize = 200;

impl OpenedRing {
    /// Opens and maps the ring of one CPU; `None` if it is offline.
    pub(super) fn open(plan: &Plan, cpu: u32) -> Result<Option<Self>, Error> {
        let Some((events, owner)) = open_events(plan, cpu)? else { return Ok(None) };
        // Before other events join: the kernel redirects only into a ring that is mapped (`perf_event_set_output`).
        let ring = map(plan, cpu, Arc::clone(&owner))?;
        let (producers, sources) = join(plan, cpu, events, &owner)?;
        let count = plan.reads_losses().then(|| count(&producers, 0));
        let cpu_ring = CpuRing::new(ring, Origin::new(cpu, plan.layout, sources), count);
        Ok(Some(Self { cpu_ring, owner, producers }))
    }
}

/// The kernel's count of what it has dropped of some events, and of those before them.
pub(super) fn count(producers: &[Producer], before: u64) -> Count {
    let events: Vec<_> = producers.iter().map(|producer| Arc::clone(&producer.event)).collect();
    // If one cannot be read, no sum: it would be too small.
    let add = |sum: u64, event: &Arc<OwnedFd>| Some(sum.saturating_add(perf::lost(event.as_fd()).ok()?));
    Box::new(move || events.iter().try_fold(before, add))
}

/// Opens the events of a CPU again, to write into the ring of `owner`; `None` if the CPU is offline.
pub(super) fn reopen(plan: &Plan, cpu: u32, owner: &Arc<OwnedFd>) -> Result<Option<(Vec<Producer>, Sources)>, Error> {
    let opened = open_events(plan, cpu)?;
    // The ring keeps its owner, which may have stopped long ago: new events are redirected to it.
    opened.map(|(events, _)| join(plan, cpu, events, owner)).transpose()
}

/// Opens all events of one CPU, and the event that is to own their ring; `None` if the CPU is offline.
fn open_events(plan: &Plan, cpu: u32) -> Result<Option<(OpenEvents, Arc<OwnedFd>)>, Error> {
    let opened = match &plan.target {
        Target::Machine => open_for(plan, Pid::All, cpu, 1)?,
        Target::Cgroup(directory) => open_for(plan, Pid::Cgroup(directory.as_fd()), cpu, 1)?,
        Target::Process(task) | Target::Thread(task) => return open_tasks(plan, task, cpu).map(Some),
    };
    let Some(events) = opened else { return Ok(None) };
    let Some((_, owner)) = events.first() else { return Err(Error::no_events()) };
    let owner = Arc::clone(owner);
    Ok(Some((events, owner)))
}

/// Opens the events of all threads of a task on one CPU.
///
/// A thread inherits the open events of the thread that starts it. Other threads need events of their own. With both, a
/// thread's records would come twice; with neither, not at all. So threads are listed before and after. If both lists
/// are the same, every listed thread was there before, and every later one inherits. A number that another thread has
/// got since is in no list.
fn open_tasks(plan: &Plan, task: &Task, cpu: u32) -> Result<(OpenEvents, Arc<OwnedFd>), Error> {
    let pid = task.number();
    let threads = || task.threads().map_err(|errno| target::gone(pid, errno));
    let owner = Arc::new(open_owner(plan, cpu)?);
    for _ in 0..TRIES {
        let tasks = threads()?;
        let mut events = Vec::new();
        for &tid in &tasks {
            // A thread that has ended since has no events. Then it is not in the second list either.
            events.extend(open_for(plan, Pid::Thread(tid), cpu, tasks.len())?.into_iter().flatten());
        }
        if events.is_empty() {
            return Err(target::gone(pid, io::Error::from_raw_os_error(libc::ESRCH)));
        }
        if threads()? == tasks {
            return Ok((events, owner));
        }
    }
    let message = format!("the threads of process {pid} changed during each of {TRIES} tries to open their events");
    Err(Error::new(ErrorKind::Limit, message)
        .hinting("trace its control group, or stop the process until its events are open"))
}

/// Opens all events on one CPU for `pid`, one of `pids`; `None` if the CPU is offline, or the thread has ended.
fn open_for(plan: &Plan, pid: Pid<'_>, cpu: u32, pids: usize) -> Result<Option<OpenEvents>, Error> {
    let mut opened = Vec::with_capacity(plan.events.len());
    for (source, event) in plan.events.iter().enumerate() {
        let open = match perf::open(&event.attr, event.target.as_deref(), pid, cpu) {
            Ok(open) => open,
            Err(errno) => match (errno.raw_os_error(), pid) {
                (Some(libc::ENODEV), _) | (Some(libc::ESRCH), Pid::Thread(_)) => return Ok(None),
                _ => {
                    let fds = plan.cpu_count * pids * plan.events.len();
                    return Err(refusal::refused(event, pid, cpu, errno, fds));
                }
            },
        };
        set_filter(open.as_fd(), event)?;
        opened.push((source, Arc::new(open)));
    }
    Ok(Some(opened))
}

/// Sets the filter of an open event, if it has one.
fn set_filter(opened: BorrowedFd<'_>, event: &EventSpec) -> Result<(), Error> {
    let EventSpec { name, filter: Some(filter), cure, .. } = event else { return Ok(()) };
    perf::set_filter(opened, filter).map_err(|errno| {
        let (kind, hint) = match errno.raw_os_error() {
            Some(libc::EINVAL) => {
                (ErrorKind::InvalidInput, cure.and_then(|cure| cure(event, None)).unwrap_or_default())
            }
            _ => (ErrorKind::of(&errno), String::new()),
        };
        let message = format!("{name}: cannot filter by \"{}\"", filter.to_string_lossy());
        Error::new(kind, message).because(errno).hinting(hint).about(name)
    })
}

/// Opens the event that owns a CPU's ring if events follow threads: an event of this process that never writes.
///
/// When a thread ends, its event reports that again and again to all who poll it (`EPOLLHUP`), although other events
/// still write into the ring. This process ends last.
fn open_owner(plan: &Plan, cpu: u32) -> Result<OwnedFd, Error> {
    let Some(EventSpec { attr: first, .. }) = plan.events.first() else { return Err(Error::no_events()) };
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
        Err(errno) if errno.raw_os_error() == Some(libc::ESRCH) => open(Thread::current().number),
        opened => opened,
    };
    opened.map_err(|errno| {
        let event = EventSpec::new("the ring's owner", attr);
        refusal::refused(&event, Pid::All, cpu, errno, plan.cpu_count)
    })
}

fn map(plan: &Plan, cpu: u32, event: Arc<OwnedFd>) -> Result<Ring, Error> {
    Ring::map(event, plan.page, plan.bytes, plan.backward).map_err(|error| {
        let Some(errno) = error.raw_os_error() else { return error };
        let (bytes, rings) = (plan.page + plan.bytes, plan.cpu_count);
        let of_kib = format!("{rings} rings of {} KiB", bytes >> 10);
        let (kind, hint) = match errno {
            // More locked memory than is allowed.
            libc::EPERM => {
                let setting = hint::setting("kernel/perf_event_mlock_kb");
                let limit = hint::limit(Resource::RLIMIT_MEMLOCK) >> 10;
                let hint = format!(
                    "{of_kib} are more than kernel.perf_event_mlock_kb, {setting} for each CPU and shared by the \
                     user's processes, and RLIMIT_MEMLOCK, {limit} KiB, allow without CAP_IPC_LOCK"
                );
                (ErrorKind::Limit, hint)
            }
            libc::ENOMEM => (ErrorKind::Limit, format!("{of_kib} are asked for")),
            _ => (ErrorKind::of(&io::Error::from_raw_os_error(errno)), String::new()),
        };
        let message = format!("cannot map a ring of {bytes} bytes for CPU {cpu}");
        Error::new(kind, message).because(error.into_source()).hinting(hint)
    })
}

/// Makes all events write into the ring of `owner`. Returns them with the ids that their records have.
fn join(plan: &Plan, cpu: u32, events: OpenEvents, owner: &Arc<OwnedFd>) -> Result<(Vec<Producer>, Sources), Error> {
    let mut producers = Vec::new();
    let mut sources = Sources::new();
    for (index, event) in events {
        // In range: `open_for` has numbered the events of this plan.
        let EventSpec { name, map, .. } = &plan.events[index];
        let control = |what| move |errno| Error::control(what, name, cpu, errno);
        // The owner writes into its own ring already.
        if !Arc::ptr_eq(&event, owner) {
            perf::set_output(event.as_fd(), owner.as_fd()).map_err(control("redirect"))?;
        }
        sources.push((perf::id(event.as_fd()).map_err(control("identify"))?, index));
        let slot = map.as_ref().map(|map| Slot { map: Arc::clone(&map.fd), index: (plan.slot.0)(cpu) });
        producers.push(Producer { cpu, name: Arc::clone(name), event, slot, set: false });
    }
    Ok((producers, sources))
}
