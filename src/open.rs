//! Opening a ring for every online CPU: which events, how large, on which clock.

use crate::clock::Clock;
use crate::error::{Cure, Error};
use crate::record::{Layout, Origin};
use crate::ring::Ring;
use crate::rings::{Lane, Rings, Slots};
use crate::sys::{bpf, machine, perf};
use nix::sys::resource::{Resource, getrlimit};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use smallvec::SmallVec;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What writes into the rings.
#[derive(Debug)]
enum Source {
    BpfOutput(io::Result<OwnedFd>),
    Tracepoint(String),
    TracepointId(u64),
    Attr(Box<perf_event_attr>),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BpfOutput(_) => f.write_str("BPF output"),
            Self::Tracepoint(name) => write!(f, "tracepoint {name}"),
            Self::TracepointId(id) => write!(f, "tracepoint {id}"),
            Self::Attr(attr) => write!(f, "event {}:{}", attr.type_, attr.config),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Size {
    Pages(u64),
    Bytes(u64),
}

/// Which rings to open: one for each online CPU, shared by all events that are named here.
///
/// Events are told apart by [`Record::source`](crate::Record::source): the place, from 0, at which they were added.
/// All are opened stopped, and started together once every ring is mapped.
///
/// ```no_run
/// # use perfweave::{Order, Reader, Rings};
/// let rings = Rings::options()
///     .tracepoint("sched:sched_waking")
///     .tracepoint("sched:sched_switch")
///     .bytes(1 << 20)
///     .open()?;
/// let mut reader = Reader::new(rings, Order::new())?;
/// # Ok::<(), perfweave::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is opened before `open`"]
pub struct RingOptions {
    sources: Vec<Source>,
    size: Size,
    clock: Clock,
    cpus: Option<Vec<u32>>,
}

/// Ring size unless another is asked for: with its header page it stays within `perf_event_mlock_kb` (516 KiB for each CPU
/// by default), so that whoever may open the events may map the rings too.
const DEFAULT_BYTES: u64 = 512 << 10;

/// The kernel wakes a sleeping reader when this part of a ring was written since it did so last.
const WAKEUP_PART: u64 = 4;

impl Rings {
    /// Begins to open rings.
    pub fn options() -> RingOptions {
        RingOptions::new()
    }
}

impl RingOptions {
    fn new() -> Self {
        Self { sources: Vec::new(), size: Size::Bytes(DEFAULT_BYTES), clock: Clock::default(), cpus: None }
    }

    fn source(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// Adds what BPF programs write with `bpf_perf_event_output` into a `BPF_MAP_TYPE_PERF_EVENT_ARRAY`: aya's, libbpf-rs's,
    /// or any other file descriptor of one. The CPUs' slots are set when the rings are opened and emptied when they
    /// are dropped.
    ///
    /// The file descriptor is duplicated; the map may be closed. A slot can hold one event: whoever sets it after us takes
    /// the output over, and since a slot cannot be read, ours is emptied in the end even if it no longer holds our event.
    pub fn bpf_output(self, map: impl AsFd) -> Self {
        self.source(Source::BpfOutput(map.as_fd().try_clone_to_owned()))
    }

    /// Adds a kernel tracepoint by name, `category:name`. Needs tracefs to be mounted.
    pub fn tracepoint(self, name: &str) -> Self {
        self.source(Source::Tracepoint(name.to_owned()))
    }

    /// Adds a kernel tracepoint by number, as `events/category/name/id` in tracefs has it.
    pub fn tracepoint_id(self, id: u64) -> Self {
        self.source(Source::TracepointId(id))
    }

    /// Adds any event by its attribute.
    ///
    /// Of it are set here: `size`, `disabled`, `sample_id_all`, `use_clockid` and `clockid`, `watermark` and the
    /// wake-up, `write_backward` (off); and added to `sample_type`: `RAW`, `TIME`, and `IDENTIFIER` if other events share
    /// the rings. All that share them are opened with the same `sample_type` and `read_format`: what any of them asks for.
    pub fn event(self, attr: &perf_event_attr) -> Self {
        self.source(Source::Attr(Box::new(*attr)))
    }

    /// Sets the size of each ring in pages of data, rounded up to a power of two.
    pub fn pages(mut self, pages: u64) -> Self {
        self.size = Size::Pages(pages);
        self
    }

    /// Sets the size of each ring in bytes of data, rounded up to a power of two pages. 512 KiB unless set.
    ///
    /// Held records stay in their ring. It must take what a CPU writes in two or three grace periods, about 50 ms.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.size = Size::Bytes(bytes);
        self
    }

    /// Sets the clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Restricts the rings to some CPUs. Those of them that are offline are skipped.
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = u32>) -> Self {
        let mut cpus: Vec<u32> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        self.cpus = Some(cpus);
        self
    }

    /// Opens and maps a ring on every online CPU, and starts the events.
    ///
    /// CPUs that are offline (`ENODEV`) are skipped. If anything fails, what was opened is closed again.
    ///
    /// # Errors
    /// Whatever the kernel refuses, with what would help: see [`Error`]. [`Error::Size`] for a size of zero or more than
    /// 2 GiB.
    pub fn open(self) -> Result<Rings, Error> {
        Opening::prepare(self)?.open()
    }
}

/// Everything decided, nothing opened.
struct Opening {
    events: Vec<Planned>,
    cpus: Vec<u32>,
    page: usize,
    bytes: usize,
    clock: Clock,
    layout: Layout,
}

/// An event that is to be opened on every CPU.
struct Planned {
    /// For messages.
    name: String,
    attr: perf_event_attr,
    /// Where BPF programs find it.
    map: Option<OwnedFd>,
}

impl Opening {
    fn prepare(options: RingOptions) -> Result<Self, Error> {
        let RingOptions { sources, size, clock, cpus } = options;
        if sources.is_empty() {
            return Err(Error::NoEvents);
        }
        let page = machine::page_size();
        let bytes = ring_bytes(size, page)?;
        let cpus = match cpus {
            Some(cpus) => cpus,
            None => machine::online_cpus().map_err(|errno| Error::System { what: "list CPUs", errno })?,
        };
        let mut events = sources.into_iter().map(|source| plan(source, &cpus)).collect::<Result<Vec<_>, _>>()?;
        // One ring, one layout: all its events carry the same fields.
        let mut sample_type = u64::from(bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME);
        if events.len() > 1 {
            sample_type |= u64::from(bindings::PERF_SAMPLE_IDENTIFIER);
        }
        sample_type = events.iter().fold(sample_type, |all, event| all | event.attr.sample_type);
        let read_format = events.iter().fold(0, |all, event| all | event.attr.read_format);
        for Planned { attr, .. } in &mut events {
            attr.sample_type = sample_type;
            attr.read_format = read_format;
            attr.set_sample_id_all(1);
            attr.set_disabled(1);
            attr.set_write_backward(0);
            attr.set_watermark(1);
            attr.wakeup_watermark = (bytes as u64 / WAKEUP_PART) as u32;
            if let Some(clock) = clock.id() {
                attr.set_use_clockid(1);
                attr.clockid = clock.as_raw();
            }
        }
        let layout = Layout::new(sample_type, true, read_format);
        Ok(Self { events, cpus, page, bytes, clock, layout })
    }

    fn open(mut self) -> Result<Rings, Error> {
        // Declared in the reverse of the order in which they are to be dropped if something fails: slots are emptied
        // first, then rings unmapped, then events closed.
        let mut others: Vec<(u32, usize, OwnedFd)> = Vec::new();
        let mut lanes: Vec<Lane> = Vec::new();
        let mut slots: Vec<Option<Slots>> = Vec::new();
        for Planned { map, .. } in &mut self.events {
            slots.push(map.take().map(|map| Slots { map, cpus: Vec::new() }));
        }
        for &cpu in &self.cpus {
            let Some(events) = self.open_events(cpu)? else { continue };
            let mut events = events.into_iter().enumerate();
            let Some((_, owner)) = events.next() else { return Err(Error::NoEvents) };
            let ring = self.map(cpu, owner)?;
            let Some(owner) = ring.fd() else { unreachable!("mapped with its event") };
            let mut sources = SmallVec::new();
            sources.push((perf::id(owner).map_err(self.control("identify", cpu, 0))?, 0));
            self.set_slot(&mut slots[0], cpu, owner)?;
            for (index, event) in events {
                perf::set_output(event.as_fd(), owner).map_err(self.control("redirect", cpu, index))?;
                sources.push((perf::id(event.as_fd()).map_err(self.control("identify", cpu, index))?, index));
                self.set_slot(&mut slots[index], cpu, event.as_fd())?;
                others.push((cpu, index, event));
            }
            let origin = Arc::new(Origin { cpu, layout: self.layout, sources });
            lanes.push(Lane { ring, origin });
        }
        if lanes.is_empty() {
            return Err(Error::NoRings);
        }
        // Only now, so that the time in which some CPUs are traced and others are not is short.
        let owners = lanes.iter().filter_map(|lane| Some((lane.origin.cpu, 0, lane.ring.fd()?)));
        let others_too = others.iter().map(|(cpu, index, event)| (*cpu, *index, event.as_fd()));
        for (cpu, index, event) in owners.chain(others_too) {
            perf::enable(event).map_err(self.control("enable", cpu, index))?;
        }
        let started = self.clock.now();
        let events = others.into_iter().map(|(_, _, event)| event).collect();
        Ok(Rings::opened(slots.into_iter().flatten().collect(), lanes, events, self.clock, started))
    }

    /// Opens all events of one CPU; `None` if it is offline.
    fn open_events(&self, cpu: u32) -> Result<Option<Vec<OwnedFd>>, Error> {
        let mut opened = Vec::new();
        for Planned { name, attr, .. } in &self.events {
            match perf::open(attr, -1, cpu) {
                Ok(event) => opened.push(event),
                Err(errno) if errno.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
                Err(errno) => {
                    let cure = open_cure(&errno, self.cpus.len() * self.events.len());
                    return Err(Error::Open { cpu, event: name.clone(), errno, cure });
                }
            }
        }
        Ok(Some(opened))
    }

    fn map(&self, cpu: u32, event: OwnedFd) -> Result<Ring, Error> {
        let bytes = self.page + self.bytes;
        Ring::map(event, self.page, self.bytes).map_err(|error| match error {
            Error::System { errno, .. } => {
                let cure = map_cure(&errno, bytes, self.cpus.len());
                Error::Map { cpu, bytes, errno, cure }
            }
            other => other,
        })
    }

    /// Puts an event where BPF programs find it, if they are to.
    fn set_slot(&self, slots: &mut Option<Slots>, cpu: u32, event: BorrowedFd<'_>) -> Result<(), Error> {
        let Some(slots) = slots else { return Ok(()) };
        bpf::map_update_fd(slots.map.as_fd(), cpu, event).map_err(|errno| {
            let cure = match errno.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => Cure("needs CAP_BPF, and a map that is not read-only".into()),
                _ => Cure::default(),
            };
            Error::Slot { cpu, errno, cure }
        })?;
        slots.cpus.push(cpu);
        Ok(())
    }

    fn control(&self, what: &'static str, cpu: u32, index: usize) -> impl FnOnce(io::Error) -> Error {
        let event = self.events[index].name.clone();
        move |errno| Error::Control { what, event, cpu, errno }
    }
}

/// Bytes of a ring: a power of two pages.
fn ring_bytes(size: Size, page: usize) -> Result<usize, Error> {
    let page = page as u64;
    let asked = match size {
        Size::Pages(pages) => pages.saturating_mul(page),
        Size::Bytes(bytes) => bytes,
    };
    let error = Error::Size { bytes: asked, max: Ring::MAX };
    if asked == 0 || asked > Ring::MAX {
        return Err(error);
    }
    usize::try_from(asked.div_ceil(page).next_power_of_two() * page).map_err(|_| error)
}

/// Checks that a map is a perf event array with a slot for every CPU.
fn check_array(map: BorrowedFd<'_>, cpus: &[u32]) -> Result<(), Error> {
    let info = bpf::map_info(map).map_err(|errno| Error::Array { errno })?;
    if info.map_type != bpf::BPF_MAP_TYPE_PERF_EVENT_ARRAY {
        return Err(Error::NotAnArray { map_type: info.map_type });
    }
    match cpus.iter().find(|cpu| **cpu >= info.max_entries) {
        Some(&cpu) => Err(Error::ArrayTooSmall { entries: info.max_entries, cpu }),
        None => Ok(()),
    }
}

/// An event's attribute before what all that share a ring have in common is added.
fn attr(type_: u32, config: u64) -> perf_event_attr {
    let mut attr = perf_event_attr { type_, config, ..perf_event_attr::default() };
    attr.sample_period = 1;
    attr
}

/// What is to be opened for a source.
fn plan(source: Source, cpus: &[u32]) -> Result<Planned, Error> {
    let name = source.to_string();
    let mut map = None;
    let attr = match source {
        Source::BpfOutput(duplicate) => {
            let duplicate = duplicate.map_err(|errno| Error::Array { errno })?;
            check_array(duplicate.as_fd(), cpus)?;
            map = Some(duplicate);
            attr(bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_BPF_OUTPUT.into())
        }
        Source::Tracepoint(name) => attr(bindings::PERF_TYPE_TRACEPOINT, tracepoint_id(&name)?),
        Source::TracepointId(id) => attr(bindings::PERF_TYPE_TRACEPOINT, id),
        Source::Attr(given) => *given,
    };
    Ok(Planned { name, attr, map })
}

/// The number of a tracepoint, from tracefs.
fn tracepoint_id(name: &str) -> Result<u64, Error> {
    let error =
        |errno: io::Error, cure: &str| Error::Tracepoint { name: name.to_owned(), errno, cure: Cure(cure.into()) };
    let Some((category, event)) = name.split_once(':').filter(|(c, e)| !c.contains('/') && !e.contains('/')) else {
        return Err(error(io::ErrorKind::InvalidInput.into(), "write it as category:name"));
    };
    let tracefs = machine::tracefs().map_err(|errno| error(errno, "mount -t tracefs nodev /sys/kernel/tracing"))?;
    let path = tracefs.join("events").join(category).join(event).join("id");
    let id = fs::read_to_string(&path).map_err(|errno| {
        let cure = match errno.kind() {
            io::ErrorKind::PermissionDenied => format!("{} is readable by root", tracefs.display()),
            _ => format!("see {}", tracefs.join("available_events").display()),
        };
        error(errno, &cure)
    })?;
    id.trim().parse().map_err(|_| error(io::ErrorKind::InvalidData.into(), ""))
}

/// What helps when an event cannot be opened.
fn open_cure(errno: &io::Error, fds: usize) -> Cure {
    Cure(match errno.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let paranoid = machine::setting("kernel/perf_event_paranoid").map_or("unknown".into(), |n| n.to_string());
            format!(
                "needs CAP_PERFMON, or CAP_SYS_ADMIN before Linux 5.8; or kernel.perf_event_paranoid, which is {paranoid}, \
                 set to 0, for tracepoints to -1"
            )
        }
        Some(libc::EMFILE) => {
            let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
            format!("{fds} file descriptors are needed for the events; RLIMIT_NOFILE is {limit}")
        }
        _ => return Cure::default(),
    })
}

/// What helps when a ring cannot be mapped.
fn map_cure(errno: &io::Error, bytes: usize, cpus: usize) -> Cure {
    Cure(match errno.raw_os_error() {
        Some(libc::EPERM) => {
            let free = machine::setting("kernel/perf_event_mlock_kb").map_or("unknown".into(), |n| n.to_string());
            let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
            format!(
                "{cpus} rings of {} KiB are more than kernel.perf_event_mlock_kb, {free} for each CPU and shared by the \
                 user's processes, and RLIMIT_MEMLOCK, {} KiB, allow without CAP_IPC_LOCK",
                bytes >> 10,
                limit >> 10,
            )
        }
        _ => return Cure::default(),
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_a_power_of_two_pages() {
        for page in [4096, 16384, 65536] {
            let bytes = |size| ring_bytes(size, page).unwrap();
            assert_eq!(bytes(Size::Bytes(1)), page);
            assert_eq!(bytes(Size::Bytes(page as u64)), page);
            assert_eq!(bytes(Size::Bytes(page as u64 + 1)), 2 * page);
            assert_eq!(bytes(Size::Pages(3)), 4 * page);
            assert_eq!(bytes(Size::Pages(8)), 8 * page);
            assert_eq!(bytes(Size::Bytes(1 << 31)), 1 << 31);
        }
    }

    #[test]
    fn sizes_of_nothing_and_absurd_ones_are_refused() {
        for size in
            [Size::Bytes(0), Size::Pages(0), Size::Bytes((1 << 31) + 1), Size::Pages(u64::MAX), Size::Bytes(u64::MAX)]
        {
            assert!(matches!(ring_bytes(size, 4096), Err(Error::Size { .. })), "{size:?}");
        }
    }

    #[test]
    fn nothing_to_open_is_an_error() {
        assert!(matches!(RingOptions::new().open(), Err(Error::NoEvents)));
    }

    #[test]
    fn a_tracepoint_without_category_is_an_error_that_says_so() {
        let error = RingOptions::new().tracepoint("sched_switch").open().unwrap_err();
        assert!(error.to_string().contains("category:name"), "{error}");
    }
}
