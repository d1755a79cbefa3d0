//! What was asked for as events to open: each with its attribute, checked.

use crate::error::{Error, ErrorKind, hint, short};
use crate::record::Kind;
use crate::rings::asked::{Asked, KPROBE, Place, Probe, Rate, Settings, UPROBE, What};
use crate::rings::filter::Filter;
use crate::rings::{Source, named};
use crate::sys::{bpf, machine, pmu, tracepoint};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

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
    pub(crate) filter: Option<Filter>,
    /// The pattern that it fits, if it was asked for by one.
    pub(super) pattern: Option<Arc<str>>,
    /// Whether its samples have raw data: what a program, a tracepoint or a probe wrote.
    payload: bool,
}

impl Planned {
    pub(crate) fn source(&self) -> Source {
        Source::new(Arc::clone(&self.name), self.attr, self.tracepoint.clone())
    }

    pub(super) fn has_payload(&self) -> bool {
        self.payload
    }

    /// The name of the tracepoint, `category:name`, if it is one; looked up, if it was asked for by number.
    pub(super) fn tracepoint_name(&self) -> io::Result<Option<String>> {
        match &self.tracepoint {
            Some(name) => Ok(Some(name.as_ref().into())),
            None if self.attr.type_ == bindings::PERF_TYPE_TRACEPOINT => tracepoint::of_number(self.attr.config),
            None => Ok(None),
        }
    }

    /// Whether it is never in user space: a tracepoint but for system calls, which have the registers of user space, and
    /// those that tracefs has for probes of programs (`perf_tp_event_match`, kernel/events/core.c).
    fn lies_in_kernel(&self) -> bool {
        let is_kprobe = || self.target.is_some() && pmu::number(KPROBE).is_ok_and(|number| number == self.attr.type_);
        let of_tracepoint = |name: &str| !name.starts_with("syscalls:") && !named::is_probe(name);
        self.tracepoint.as_deref().is_some_and(of_tracepoint) || is_kprobe()
    }

    /// Whether only BPF programs write through it.
    pub(crate) fn is_bpf_output(&self) -> bool {
        // Records that the kernel writes by itself.
        is_output(&self.attr) && !tells_more(&self.attr)
    }
}

/// A `BPF_MAP_TYPE_PERF_EVENT_ARRAY`.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) fd: Arc<OwnedFd>,
    /// By which it is known, whatever descriptor or path leads to it.
    pub(super) id: u32,
    pub(super) entries: u32,
}

/// Checks that a map is a perf event array.
fn array(event: &str, map: OwnedFd) -> Result<Array, Error> {
    let other = || match machine::what_is(map.as_fd()) {
        Some(what) if what != "anon_inode:bpf-map" => Some(Error::not_a_map(event, &what).about(event)),
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
        Ok(info) => Err(other().unwrap_or_else(|| wrong_type(event, info.map_type))),
        Err(errno) => Err(other().unwrap_or_else(|| no_array(errno))),
    }
}

/// What helps against a map of another type than a perf event array.
fn instead_of(map_type: u32) -> &'static str {
    /// `BPF_MAP_TYPE_RINGBUF`
    const RING_BUFFER: u32 = 27;
    if map_type == RING_BUFFER {
        "it is a BPF ring buffer, one for all CPUs, which is in order by itself. Read it with libbpf's ring_buffer or aya's RingBuf, or let \
         the program write with bpf_perf_event_output"
    } else {
        ""
    }
}

fn wrong_type(event: &str, map_type: u32) -> Error {
    let message = format!("the map is {}, and not a BPF_MAP_TYPE_PERF_EVENT_ARRAY (4)", bpf::map_type(map_type));
    Error::new(ErrorKind::Map, message).hinting(instead_of(map_type)).about(event)
}

/// Why a file descriptor could not be asked, or not be duplicated.
fn no_array(errno: io::Error) -> Error {
    let hint = hint::array(&errno);
    let message = "cannot use the file descriptor as a perf event array";
    Error::new(ErrorKind::of(&errno), message).because(errno).hinting(hint)
}

/// Opens a map by the path it is pinned by.
fn open_pinned(path: &Path) -> Result<OwnedFd, Error> {
    let opened =
        CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from).and_then(|path| bpf::obj_get(&path));
    opened.map_err(|errno| {
        let hint = hint::pinned(&errno);
        let message = format!("cannot open the pinned map {}", path.display());
        Error::new(ErrorKind::of(&errno), message).because(errno).hinting(hint)
    })
}

/// An event's attribute before what all that share a ring have in common is added.
fn attr(type_: u32, config: u64) -> perf_event_attr {
    let mut attr = perf_event_attr { type_, config, ..perf_event_attr::default() };
    attr.sample_period = 1;
    attr
}

/// How often what counts time or hardware is sampled, unless told otherwise: as perf(1) does.
const FREQUENCY: u64 = 4000;

/// The events to open for one that was asked for: several for a pattern.
pub(super) fn planned(asked: Asked) -> Result<Vec<Planned>, Error> {
    let Asked { what, settings } = asked;
    let name: Arc<str> = what.to_string().into();
    let one = |attr: perf_event_attr| Planned {
        name: Arc::clone(&name),
        attr,
        target: None,
        map: None,
        tracepoint: None,
        filter: None,
        pattern: None,
        payload: true,
    };
    let output = |map: OwnedFd| -> Result<Planned, Error> {
        let attr = attr(bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_BPF_OUTPUT.into());
        Ok(Planned { map: Some(array(&name, map)?), ..one(attr) })
    };
    let mut events = match what {
        What::BpfOutput(duplicate) => vec![output(duplicate.map_err(no_array)?)?],
        What::Pinned(path) => vec![output(open_pinned(&path)?)?],
        What::Tracepoint(asked) => {
            let pattern = named::is_pattern(&asked).then(|| Arc::clone(&name));
            let found = named::tracepoints(&asked)?.into_iter();
            found.map(|found| Planned { pattern: pattern.clone(), ..named_tracepoint(found) }).collect()
        }
        What::TracepointId(id) => vec![one(attr(bindings::PERF_TYPE_TRACEPOINT, id))],
        What::Probe(probe) => {
            let (attr, target) = probe_attr(probe)?;
            vec![Planned { target: Some(target), ..one(attr) }]
        }
        What::Named(asked) => {
            let attr = rated(named::attr(&asked)?);
            check_attr(&name, &attr)?;
            if is_output(&attr) {
                // No program finds it.
                return Err(silent(&asked));
            }
            vec![Planned { payload: false, ..one(attr) }]
        }
        What::Records(kinds, build_ids) => vec![Planned { payload: false, ..one(records(&kinds, build_ids)?) }],
        What::Attr(given) => {
            check_attr(&name, &given)?;
            vec![one(*given)]
        }
    };
    events.iter_mut().try_for_each(|event| set(event, &settings))?;
    Ok(events)
}

fn named_tracepoint((name, id): (String, u64)) -> Planned {
    let attr = attr(bindings::PERF_TYPE_TRACEPOINT, id);
    let title = format!("tracepoint {name}").into();
    let (target, map, filter, pattern) = Default::default();
    Planned { name: title, attr, target, map, tracepoint: Some(name.into()), filter, pattern, payload: true }
}

/// Samples an event as often as its kind is usually sampled.
fn rated(mut attr: perf_event_attr) -> perf_event_attr {
    if named::is_counted(&attr) {
        let most = machine::setting("kernel/perf_event_max_sample_rate").and_then(|rate| u64::try_from(rate).ok());
        set_rate(&mut attr, Rate::Frequency(FREQUENCY.min(most.unwrap_or(FREQUENCY))));
    } else {
        set_rate(&mut attr, Rate::Period(1));
    }
    attr
}

fn set_rate(attr: &mut perf_event_attr, rate: Rate) {
    match rate {
        Rate::Period(period) => {
            attr.set_freq(0);
            attr.sample_period = period;
        }
        Rate::Frequency(hertz) => {
            attr.set_freq(1);
            attr.sample_freq = hertz;
        }
    }
}

/// Takes over what was set for one event.
fn set(event: &mut Planned, settings: &Settings) -> Result<(), Error> {
    let Settings { filter, rate, exclude_user, exclude_kernel } = settings;
    if let Some(rate) = rate {
        set_rate(&mut event.attr, *rate);
        if is_silent(&event.attr) {
            return Err(silent(&event.name));
        }
    }
    if *exclude_user {
        event.attr.set_exclude_user(1);
    }
    if *exclude_kernel {
        if event.lies_in_kernel() {
            let message = format!("{} lies in the kernel, and would never be written in user space only", event.name);
            return Err(Error::new(ErrorKind::InvalidInput, message).about(&event.name));
        }
        event.attr.set_exclude_kernel(1);
        event.attr.set_exclude_hv(1);
    }
    event.filter = filter.as_ref().map(|filter| Filter::new(filter, &event.name)).transpose()?;
    Ok(())
}

/// The attribute of an event that writes records of these kinds, and no samples.
fn records(kinds: &[Kind], build_ids: bool) -> Result<perf_event_attr, Error> {
    let (type_, config) = (bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_DUMMY.into());
    let mut attr = perf_event_attr { type_, config, ..Default::default() };
    for &kind in kinds {
        match kind {
            Kind::MMAP => attr.set_mmap(1),
            Kind::MMAP2 => {
                attr.set_mmap(1);
                attr.set_mmap2(1);
            }
            Kind::COMM => {
                attr.set_comm(1);
                attr.set_comm_exec(1);
            }
            Kind::FORK | Kind::EXIT => attr.set_task(1),
            Kind::SWITCH | Kind::SWITCH_CPU_WIDE => attr.set_context_switch(1),
            Kind::NAMESPACES => attr.set_namespaces(1),
            Kind::CGROUP => attr.set_cgroup(1),
            Kind::KSYMBOL => attr.set_ksymbol(1),
            Kind::BPF_EVENT => attr.set_bpf_event(1),
            Kind::TEXT_POKE => attr.set_text_poke(1),
            other => return Err(not_on_request(&format!("{other:?}"))),
        }
    }
    attr.set_build_id(build_ids.into());
    if tells_more(&attr) { Ok(attr) } else { Err(not_on_request("of no kind")) }
}

/// The attribute of a probe, and what it is to point to.
fn probe_attr(probe: Probe) -> Result<(perf_event_attr, CString), Error> {
    let error = |errno: io::Error| {
        let hint = hint_of_probe(&errno, probe.unit);
        let kind = match ErrorKind::of(&errno) {
            // The PMU.
            ErrorKind::NotFound => ErrorKind::Unsupported,
            kind => kind,
        };
        no_probe(&probe, kind, errno, hint)
    };
    let mut attr = attr(pmu::number(probe.unit).map_err(error)?, 0);
    if probe.returns {
        attr.config = pmu::flag(probe.unit, "retprobe").map_err(error)?;
    }
    attr.config2 = match &probe.place {
        Place::Offset(offset) => *offset,
        #[cfg(feature = "symbols")]
        Place::Symbol(symbol) => match crate::rings::symbols::offset(Path::new(&probe.target), symbol) {
            Ok(offset) => offset,
            Err((errno, hint)) => return Err(no_probe(&probe, ErrorKind::of(&errno), errno, hint)),
        },
    };
    let target = CString::new(probe.target.as_bytes()).map_err(|zero| error(zero.into()))?;
    Ok((attr, target))
}

/// What helps when a probe cannot be had.
fn hint_of_probe(errno: &io::Error, unit: &str) -> String {
    match errno.kind() {
        io::ErrorKind::NotFound if pmu::all().is_err() => "mount -t sysfs sysfs /sys".into(),
        io::ErrorKind::NotFound => {
            let config = unit.to_uppercase();
            format!(
                "this kernel, {}, is older than 4.17 or was built without CONFIG_{config}_EVENTS",
                machine::release()
            )
        }
        _ => String::new(),
    }
}

fn no_probe(probe: &Probe, kind: ErrorKind, errno: io::Error, hint: String) -> Error {
    let event = probe.to_string();
    Error::new(kind, format!("cannot set a {}", short(&event))).because(errno).hinting(hint).about(&event)
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
        let message = format!(
            "{name} is one of the PMU {unit}'s, or cannot be told from them, and its attribute points to a name: use \
             RingOptions::uprobe, uretprobe, kprobe or kretprobe, which keep it"
        );
        return Err(Error::new(ErrorKind::InvalidInput, message).about(name));
    }
    if is_silent(attr) { Err(silent(name)) } else { Ok(()) }
}

/// An event would never write a record: it counts without sampling, or counts nothing.
fn silent(event: &str) -> Error {
    let message = format!(
        "{event} would never write anything: give it a sample_period or sample_freq, of anything but \
         PERF_COUNT_SW_DUMMY, or have it record mmap, mmap_data, comm, task, context_switch, namespaces, cgroup, ksymbol, \
         bpf_event or text_poke"
    );
    Error::new(ErrorKind::InvalidInput, message).about(event)
}

fn not_on_request(kind: &str) -> Error {
    let message = format!("records {kind} are no records that can be asked for: see RingOptions::records");
    Error::new(ErrorKind::InvalidInput, message)
}

/// Whether the kernel writes records of its own for an event, besides samples.
fn tells_more(attr: &perf_event_attr) -> bool {
    // What the kernel counts its own listeners by (`account_event`, kernel/events/core.c): mmap2, for one, adds to mmap.
    let tells = attr.mmap() | attr.mmap_data() | attr.comm() | attr.task() | attr.context_switch() | attr.namespaces();
    tells | attr.cgroup() | attr.ksymbol() | attr.bpf_event() | attr.text_poke() != 0
}

/// Whether it is the output of BPF programs.
fn is_output(attr: &perf_event_attr) -> bool {
    (attr.type_, attr.config) == (bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_BPF_OUTPUT.into())
}

/// Whether an event never writes a record.
fn is_silent(attr: &perf_event_attr) -> bool {
    let is = |config: u32| attr.type_ == bindings::PERF_TYPE_SOFTWARE && attr.config == u64::from(config);
    let samples = attr.sample_period != 0 && !is(bindings::PERF_COUNT_SW_DUMMY);
    !tells_more(attr) && !samples && !is(bindings::PERF_COUNT_SW_BPF_OUTPUT)
}
