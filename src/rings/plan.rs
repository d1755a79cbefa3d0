//! Plans: the meaning of options, decided and checked before anything is opened.

use crate::error::hint;
use crate::error::{Error, Hint};
use crate::record::Layout;
use crate::record::clock::Clock;
use crate::ring::Ring;
use crate::rings;
use crate::rings::options::{KPROBE, Probe, RingOptions, Size, Source, UPROBE};
use crate::sys::wakeup::Wakeup;
use crate::sys::{bpf, machine, pmu};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The kernel wakes a sleeping reader when this part of a ring was written since it did so last, unless told otherwise.
const WAKEUP_PART: u64 = 4;

/// Everything decided and checked, nothing opened.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) events: Vec<Planned>,
    /// The CPUs to open rings for, as far as they are online; all of them if `None`.
    pub(crate) cpus: Option<Vec<u32>>,
    pub(crate) page: usize,
    pub(crate) bytes: usize,
    pub(crate) clock: Clock,
    pub(crate) layout: Layout,
    /// Which slot of a map a CPU's event is put into.
    pub(crate) slot: fn(u32) -> u32,
    /// Whether the kernel writes backwards, over what is oldest.
    pub(crate) backward: bool,
    /// Whether reading an event says for how long it ran and what it lost, and nothing else.
    pub(crate) tells_running: bool,
}

/// An event that is to be opened on every CPU.
#[derive(Debug)]
pub(crate) struct Planned {
    /// For messages.
    pub(crate) name: Arc<str>,
    pub(crate) attr: perf_event_attr,
    /// What the attribute of a probe points to.
    pub(crate) target: Option<CString>,
    /// Where BPF programs find it.
    pub(crate) map: Option<Array>,
    /// `category:name`, if it is a tracepoint that has one.
    pub(crate) tracepoint: Option<Arc<str>>,
}

impl Planned {
    pub(crate) fn source(&self) -> rings::Source {
        rings::Source::new(Arc::clone(&self.name), self.attr, self.tracepoint.clone())
    }

    /// Whether only BPF programs write through it.
    pub(crate) fn is_bpf_output(&self) -> bool {
        let perf_event_attr { type_, config, .. } = self.attr;
        (type_, config) == (bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_BPF_OUTPUT.into())
            // Records that the kernel writes by itself.
            && !tells_more(&self.attr)
    }
}

/// A `BPF_MAP_TYPE_PERF_EVENT_ARRAY`.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) fd: Arc<OwnedFd>,
    /// By which it is known, whatever descriptor or path leads to it.
    id: u32,
    entries: u32,
}

impl Plan {
    pub(crate) fn new(options: RingOptions, backward: bool) -> Result<Self, Error> {
        let RingOptions { sources, size, clock, timed, cpus, wakeup, slot } = options;
        if sources.is_empty() {
            return Err(Error::NoEvents);
        }
        let page = machine::page_size();
        let bytes = ring_bytes(size, page)?;
        let mut events = sources.into_iter().map(plan).collect::<Result<Vec<_>, _>>()?;
        check_maps(&events)?;
        // One ring, one layout: all its events carry the same fields.
        let mut sample_type = u64::from(bindings::PERF_SAMPLE_RAW);
        if timed {
            sample_type |= u64::from(bindings::PERF_SAMPLE_TIME);
        }
        if events.len() > 1 {
            sample_type |= u64::from(bindings::PERF_SAMPLE_IDENTIFIER);
        }
        sample_type = events.iter().fold(sample_type, |all, event| all | event.attr.sample_type);
        let mut read_format = events.iter().fold(0, |all, event| all | event.attr.read_format);
        let tells_running = sample_type & u64::from(bindings::PERF_SAMPLE_READ) == 0;
        if tells_running {
            // Nobody else can read the events, and no record shows what they say.
            read_format = u64::from(bindings::PERF_FORMAT_TOTAL_TIME_RUNNING | bindings::PERF_FORMAT_LOST);
        }
        let masks = events
            .iter()
            .map(|Planned { attr, .. }| [attr.sample_regs_user, attr.sample_regs_intr, attr.branch_sample_type]);
        // They are as long in the records of all.
        let [user, interrupt, branches] =
            masks.reduce(|all, one| [0, 1, 2].map(|at| all[at] | one[at])).unwrap_or_default();
        let stack = events.iter().map(|event| event.attr.sample_stack_user).max().unwrap_or_default();
        let layout = Layout::new(sample_type, true, read_format).registers(user, interrupt).branches(branches);
        let size = bytes as u64;
        let mut wakeup = wakeup.unwrap_or(Wakeup::Bytes((size / WAKEUP_PART) as u32));
        check_wakeup(wakeup, size, layout.smallest())?;
        if backward {
            // Nobody waits for these: as rarely as can be.
            wakeup = Wakeup::Bytes((size - 9) as u32);
        }
        for Planned { attr, .. } in &mut events {
            attr.sample_type = sample_type;
            attr.read_format = read_format;
            (attr.sample_regs_user, attr.sample_regs_intr) = (user, interrupt);
            (attr.branch_sample_type, attr.sample_stack_user) = (branches, stack);
            attr.set_sample_id_all(1);
            attr.set_disabled(1);
            attr.set_write_backward(backward.into());
            match wakeup {
                Wakeup::Bytes(bytes) => {
                    attr.set_watermark(1);
                    attr.wakeup_watermark = bytes;
                }
                Wakeup::Events(events) => {
                    attr.set_watermark(0);
                    attr.wakeup_events = events;
                }
            }
            if let Some(clock) = clock.id() {
                attr.set_use_clockid(1);
                attr.clockid = clock.as_raw();
            }
        }
        Ok(Self { events, cpus, page, bytes, clock, layout, slot, backward, tells_running })
    }

    /// Goes without the kernel's counts of what was lost: before Linux 6.0 it has none.
    pub(crate) fn without_losses(&mut self) {
        for Planned { attr, .. } in &mut self.events {
            attr.read_format &= !u64::from(bindings::PERF_FORMAT_LOST);
        }
    }

    /// Whether events say what they lost, and nothing else but for how long they ran.
    pub(crate) fn tells_losses(&self) -> bool {
        let lost = |event: &Planned| event.attr.read_format & u64::from(bindings::PERF_FORMAT_LOST) != 0;
        self.tells_running && self.events.iter().all(lost)
    }

    /// Which of these CPUs are to have a ring.
    pub(crate) fn wants(&self, cpu: u32) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.binary_search(&cpu).is_ok())
    }

    /// Checks that the maps, if there are any, have a slot for each of these CPUs, and none for two of them or of those that have
    /// one already.
    pub(crate) fn check_slots(&self, cpus: &[u32], before: impl Iterator<Item = u32>) -> Result<(), Error> {
        let arrays = || self.events.iter().filter_map(|event| event.map.as_ref());
        let Some(entries) = arrays().map(|array| array.entries).min() else { return Ok(()) };
        let mut taken: HashMap<u32, u32> = before.map(|cpu| ((self.slot)(cpu), cpu)).collect();
        for &cpu in cpus {
            let slot = (self.slot)(cpu);
            if slot >= entries {
                return Err(Error::ArrayTooSmall { entries, slot, cpu });
            }
            if let Some(other) = taken.insert(slot, cpu) {
                return Err(Error::SharedSlot { slot, cpus: [other, cpu] });
            }
        }
        Ok(())
    }
}

/// Checks that no map is named twice.
fn check_maps(events: &[Planned]) -> Result<(), Error> {
    let mut seen: HashMap<u32, &Planned> = HashMap::new();
    for event in events {
        if let Some(&Array { id, .. }) = event.map.as_ref()
            && let Some(other) = seen.insert(id, event)
        {
            return Err(Error::SameMap { id, events: [other, event].map(|event| event.name.as_ref().into()) });
        }
    }
    Ok(())
}

/// Checks that a reader would ever be woken: a ring keeps a byte free, and records are multiples of 8 bytes.
fn check_wakeup(wakeup: Wakeup, size: u64, record: u64) -> Result<(), Error> {
    let room = size - 8;
    // The kernel wakes when more than the watermark was written.
    let most = match wakeup {
        Wakeup::Bytes(_) => Wakeup::Bytes((room - 1) as u32),
        Wakeup::Events(_) => Wakeup::Events((room / record) as u32),
    };
    match (wakeup, most) {
        (Wakeup::Bytes(asked), Wakeup::Bytes(most)) | (Wakeup::Events(asked), Wakeup::Events(most))
            if (1..=most).contains(&asked) =>
        {
            Ok(())
        }
        _ => Err(Error::Wakeup { asked: wakeup, size, record, most }),
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

/// Checks that a map is a perf event array.
fn array(event: &str, map: OwnedFd) -> Result<Array, Error> {
    let other = || match machine::what_is(map.as_fd()) {
        Some(what) if what != "anon_inode:bpf-map" => Some(Error::NotAMap { event: event.into(), what }),
        _ => None,
    };
    match bpf::map_info(map.as_fd()) {
        // Programs and the like answer too, in their own way; these all have keys and values of 4 bytes.
        Ok(bpf::MapInfo {
            map_type: bpf::BPF_MAP_TYPE_PERF_EVENT_ARRAY,
            key_size: 4,
            value_size: 4,
            id,
            max_entries,
            ..
        }) => Ok(Array { fd: Arc::new(map), id, entries: max_entries }),
        Ok(info) => Err(other().unwrap_or(Error::NotAnArray { map_type: info.map_type })),
        Err(errno) => Err(other().unwrap_or(Error::Array { errno })),
    }
}

/// Opens a map by the path it is pinned by.
fn open_pinned(path: &Path) -> Result<OwnedFd, Error> {
    let opened =
        CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from).and_then(|path| bpf::obj_get(&path));
    opened.map_err(|errno| {
        let hint = hint::pinned(&errno);
        Error::Pinned { path: path.to_owned(), errno, hint }
    })
}

/// An event's attribute before what all that share a ring have in common is added.
fn attr(type_: u32, config: u64) -> perf_event_attr {
    let mut attr = perf_event_attr { type_, config, ..perf_event_attr::default() };
    attr.sample_period = 1;
    attr
}

/// The events to open for a source.
fn plan(source: Source) -> Result<Planned, Error> {
    let name: Arc<str> = source.to_string().into();
    let output = || attr(bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_BPF_OUTPUT.into());
    let (mut target, mut map, mut tracepoint) = (None, None, None);
    let attr = match source {
        Source::BpfOutput(duplicate) => {
            map = Some(array(&name, duplicate.map_err(|errno| Error::Array { errno })?)?);
            output()
        }
        Source::Pinned(path) => {
            map = Some(array(&name, open_pinned(&path)?)?);
            output()
        }
        Source::Tracepoint(name) => {
            let attr = attr(bindings::PERF_TYPE_TRACEPOINT, tracepoint_id(&name)?);
            tracepoint = Some(name.into());
            attr
        }
        Source::TracepointId(id) => attr(bindings::PERF_TYPE_TRACEPOINT, id),
        Source::Probe(probe) => {
            let (attr, name) = probe_attr(probe)?;
            target = Some(name);
            attr
        }
        Source::Attr(given) => {
            check_attr(&name, &given)?;
            *given
        }
    };
    Ok(Planned { name, attr, target, map, tracepoint })
}

/// The attribute of a probe, and what it is to point to.
fn probe_attr(probe: Probe) -> Result<(perf_event_attr, CString), Error> {
    let error = |errno: io::Error| {
        let hint = hint::probe(&errno, probe.unit);
        Error::Probe { event: probe.to_string(), errno, hint }
    };
    let mut attr = attr(pmu::number(probe.unit).map_err(error)?, 0);
    if probe.returns {
        attr.config = pmu::flag(probe.unit, "retprobe").map_err(error)?;
    }
    attr.config2 = probe.offset;
    let target = CString::new(probe.target.as_bytes()).map_err(|zero| error(zero.into()))?;
    Ok((attr, target))
}

/// Checks that an attribute points to nothing, and that its event writes something.
fn check_attr(name: &str, attr: &perf_event_attr) -> Result<(), Error> {
    let is_of = |unit: &&str| match pmu::number(unit) {
        Ok(number) => number == attr.type_,
        // This kernel has none. Or it cannot be told, and may be.
        Err(errno) => errno.kind() != io::ErrorKind::NotFound || pmu::all().is_err(),
    };
    if attr.type_ >= bindings::PERF_TYPE_MAX
        && attr.config1 != 0
        && let Some(unit) = [UPROBE, KPROBE].into_iter().find(is_of)
    {
        return Err(Error::Pointer { event: name.to_owned(), unit });
    }
    if is_silent(attr) { Err(Error::Silent { event: name.to_owned() }) } else { Ok(()) }
}

/// Whether the kernel writes records of its own for an event, besides samples.
fn tells_more(attr: &perf_event_attr) -> bool {
    // What the kernel counts its own listeners by (`account_event`, kernel/events/core.c): mmap2, for one, adds to mmap.
    let tells = attr.mmap() | attr.mmap_data() | attr.comm() | attr.task() | attr.context_switch() | attr.namespaces();
    tells | attr.cgroup() | attr.ksymbol() | attr.bpf_event() | attr.text_poke() != 0
}

/// Whether an event never writes a record.
fn is_silent(attr: &perf_event_attr) -> bool {
    let is = |config: u32| attr.type_ == bindings::PERF_TYPE_SOFTWARE && attr.config == u64::from(config);
    let samples = attr.sample_period != 0 && !is(bindings::PERF_COUNT_SW_DUMMY);
    !tells_more(attr) && !samples && !is(bindings::PERF_COUNT_SW_BPF_OUTPUT)
}

/// The number of a tracepoint, from tracefs.
fn tracepoint_id(name: &str) -> Result<u64, Error> {
    let error = |errno, hint| Error::Tracepoint { name: name.to_owned(), errno, hint };
    let Some((category, event)) = name.split_once(':').filter(|(c, e)| !c.contains('/') && !e.contains('/')) else {
        return Err(error(io::ErrorKind::InvalidInput.into(), Hint("write it as category:name".into())));
    };
    let look_up = |errno| {
        let hint = hint::tracefs(&errno);
        error(errno, hint)
    };
    let tracefs = machine::tracefs().map_err(look_up)?;
    let path = tracefs.join("events").join(category).join(event).join("id");
    let named = |kind, what: &dyn fmt::Display| look_up(io::Error::new(kind, format!("{}: {what}", path.display())));
    let id = fs::read_to_string(&path).map_err(|errno| match errno.kind() {
        // Whatever is above it could be searched.
        io::ErrorKind::NotFound => {
            let hint = Hint(format!("see {}", tracefs.join("available_events").display()));
            Error::NoTracepoint { name: name.to_owned(), hint }
        }
        kind => named(kind, &errno),
    })?;
    id.trim().parse().map_err(|_| named(io::ErrorKind::InvalidData, &id))
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

    /// cilium's TestPerfEventRing: a watermark that the buffer cannot hold is refused.
    #[test]
    fn wakeups_that_would_never_come_are_refused() {
        for wakeup in [Wakeup::Bytes(1), Wakeup::Bytes(4087), Wakeup::Events(1), Wakeup::Events(170)] {
            assert!(check_wakeup(wakeup, 4096, 24).is_ok(), "{wakeup}");
        }
        for wakeup in [
            Wakeup::Bytes(0),
            Wakeup::Bytes(4088),
            Wakeup::Bytes(4096),
            Wakeup::Bytes(u32::MAX),
            Wakeup::Events(0),
            Wakeup::Events(171),
            Wakeup::Events(u32::MAX),
        ] {
            let error = check_wakeup(wakeup, 4096, 24).unwrap_err();
            assert!(matches!(error, Error::Wakeup { asked, .. } if asked == wakeup), "{error}");
        }
        // The largest ring: nothing overflows.
        assert!(check_wakeup(Wakeup::Bytes((1 << 31) - 9), 1 << 31, 24).is_ok());
    }
}
