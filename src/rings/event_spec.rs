//! Events: what a program asks for, and what it means for perf_event_open(2).

use crate::error::{Error, ErrorKind, short};
use crate::record::Kind;
use crate::rings::event_attr::{self as attr, KPROBE, Rate};
use crate::rings::event_map::{self, EventMap};
use crate::rings::filter::Filter;
use crate::rings::{Source, event_names};
use crate::sys::{machine, pmu, tracepoint};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::ffi::{CString, OsString};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// An event as a program asks for it, with its own settings.
#[derive(Debug)]
pub(super) struct EventSpec {
    pub(super) what: What,
    /// What the kernel is to check before it writes a record.
    pub(super) filter: Option<String>,
    pub(super) rate: Option<Rate>,
    pub(super) exclude_user: bool,
    pub(super) exclude_kernel: bool,
}

/// What writes into the rings.
#[derive(Debug)]
pub(super) enum What {
    /// A duplicate of the map's file descriptor.
    BpfOutput(io::Result<OwnedFd>),
    Pinned(PathBuf),
    /// A name, or a pattern that stands for several.
    Tracepoint(String),
    TracepointId(u64),
    Probe(Probe),
    Named(String),
    /// Records that the kernel writes beside samples; whether they have build ids.
    Records(Vec<Kind>, bool),
    Attr(Box<perf_event_attr>),
}

/// A place in code, as the kernel's dynamic PMUs take it.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) unit: &'static str,
    /// A function, or the path of a file.
    pub(super) target: OsString,
    /// Bytes from the begin of the target, unless a symbol says where.
    pub(super) offset: u64,
    /// The function of the file.
    pub(super) symbol: Option<String>,
    /// Whether the return from there is meant.
    pub(super) returns: bool,
}

/// An event that is to be opened on every CPU: its attribute, checked.
#[derive(Debug)]
pub(super) struct RingEvent {
    /// For messages.
    pub(super) name: Arc<str>,
    pub(super) attr: perf_event_attr,
    /// The function or path that the attribute of a probe points to.
    pub(super) probe: Option<CString>,
    /// Where BPF programs find it.
    pub(super) map: Option<EventMap>,
    /// `category:name`, if it is a tracepoint that has one.
    pub(super) tracepoint: Option<Arc<str>>,
    pub(super) filter: Option<Filter>,
    /// The pattern that it fits, if a pattern asks for it.
    pub(super) pattern: Option<Arc<str>>,
    /// Whether its samples have raw data: what a program, a tracepoint or a probe wrote.
    pub(super) has_payload: bool,
}

impl EventSpec {
    pub(super) fn new(what: What) -> Self {
        Self { what, filter: None, rate: None, exclude_user: false, exclude_kernel: false }
    }

    /// The events to open: several for a pattern.
    pub(super) fn events(self) -> Result<Vec<RingEvent>, Error> {
        let Self { what, filter, rate, exclude_user, exclude_kernel } = self;
        let name: Arc<str> = what.to_string().into();
        let one = |attr| RingEvent::new(Arc::clone(&name), attr);
        let output = |map| RingEvent { map: Some(map), ..one(attr::bpf_output()) };
        let quiet = |attr| RingEvent { has_payload: false, ..one(attr) };
        let mut events = match what {
            What::BpfOutput(map) => vec![output(EventMap::new(&name, map.map_err(event_map::unusable)?)?)],
            What::Pinned(path) => vec![output(EventMap::pinned(&name, &path)?)],
            What::Tracepoint(asked) => {
                let pattern = event_names::is_pattern(&asked).then(|| Arc::clone(&name));
                let found = event_names::tracepoints(&asked)?.into_iter();
                found
                    .map(|(name, id)| RingEvent { pattern: pattern.clone(), ..RingEvent::tracepoint(name, id) })
                    .collect()
            }
            What::TracepointId(id) => vec![one(attr::tracepoint(id))],
            What::Probe(probe) => {
                let (attr, target) = probe.attr()?;
                vec![RingEvent { probe: Some(target), ..one(attr) }]
            }
            What::Named(asked) => {
                let attr = attr::at_usual_rate(event_names::attr(&asked)?);
                attr::check(&name, &attr)?;
                if attr::is_output(&attr) {
                    // No program finds it.
                    return Err(attr::silent(&asked));
                }
                vec![quiet(attr)]
            }
            What::Records(kinds, build_ids) => vec![quiet(attr::records(&kinds, build_ids)?)],
            What::Attr(given) => {
                attr::check(&name, &given)?;
                vec![one(*given)]
            }
        };
        for event in &mut events {
            if let Some(rate) = rate {
                attr::set_rate(&mut event.attr, rate);
                if attr::is_silent(&event.attr) {
                    return Err(attr::silent(&event.name));
                }
            }
            event.exclude(exclude_user, exclude_kernel)?;
            event.filter = filter.as_ref().map(|filter| Filter::new(filter, &event.name)).transpose()?;
        }
        Ok(events)
    }
}

impl RingEvent {
    fn new(name: Arc<str>, attr: perf_event_attr) -> Self {
        let (probe, map, tracepoint, filter, pattern) = Default::default();
        Self { name, attr, probe, map, tracepoint, filter, pattern, has_payload: true }
    }

    fn tracepoint(name: String, id: u64) -> Self {
        let title = format!("tracepoint {name}").into();
        Self { tracepoint: Some(name.into()), ..Self::new(title, attr::tracepoint(id)) }
    }

    /// Leaves out what happens in user space, or in the kernel.
    fn exclude(&mut self, user: bool, kernel: bool) -> Result<(), Error> {
        if kernel && self.lies_in_kernel() {
            let message = format!("{} lies in the kernel, and would never be written in user space only", self.name);
            return Err(Error::new(ErrorKind::InvalidInput, message).about(&self.name));
        }
        if user {
            self.attr.set_exclude_user(1);
        }
        if kernel {
            self.attr.set_exclude_kernel(1);
            self.attr.set_exclude_hv(1);
        }
        Ok(())
    }

    pub(super) fn source(&self) -> Source {
        Source::new(Arc::clone(&self.name), self.attr, self.tracepoint.clone())
    }

    /// The name of the tracepoint, `category:name`, if it is one; looked up, if it was asked for by number.
    pub(super) fn tracepoint_name(&self) -> io::Result<Option<String>> {
        match &self.tracepoint {
            Some(name) => Ok(Some(name.as_ref().into())),
            None if self.attr.type_ == bindings::PERF_TYPE_TRACEPOINT => tracepoint::of_number(self.attr.config),
            None => Ok(None),
        }
    }

    /// Whether the event never happens in user space. That is a kprobe, and a tracepoint unless it is of a system call, which has
    /// the registers of user space, or one that tracefs has for a probe of a program (`perf_tp_event_match`, kernel/events/core.c).
    fn lies_in_kernel(&self) -> bool {
        let is_kprobe = || self.probe.is_some() && pmu::number(KPROBE).is_ok_and(|number| number == self.attr.type_);
        let of_tracepoint = |name: &str| !name.starts_with("syscalls:") && !event_names::is_probe(name);
        self.tracepoint.as_deref().is_some_and(of_tracepoint) || is_kprobe()
    }

    /// Whether only BPF programs write through it.
    pub(super) fn is_bpf_output(&self) -> bool {
        // The kernel may write other records by itself.
        attr::is_output(&self.attr) && !attr::has_records(&self.attr)
    }
}

impl Probe {
    /// The attribute of a probe, and what it is to point to.
    fn attr(&self) -> Result<(perf_event_attr, CString), Error> {
        let error = |errno: io::Error| {
            let hint = self.hint(&errno);
            let kind = match ErrorKind::of(&errno) {
                // The PMU.
                ErrorKind::NotFound => ErrorKind::Unsupported,
                kind => kind,
            };
            self.refused(kind, errno, hint)
        };
        let mut attr = attr::sampled(pmu::number(self.unit).map_err(error)?, 0);
        if self.returns {
            attr.config = pmu::flag(self.unit, "retprobe").map_err(error)?;
        }
        attr.config2 = self.offset;
        #[cfg(feature = "symbols")]
        if let Some(symbol) = &self.symbol {
            let found = crate::rings::symbols::offset(self.target.as_ref(), symbol);
            attr.config2 = found.map_err(|(errno, hint)| self.refused(ErrorKind::of(&errno), errno, hint))?;
        }
        let target = CString::new(self.target.as_bytes()).map_err(|zero| error(zero.into()))?;
        Ok((attr, target))
    }

    /// What helps when a probe cannot be had.
    fn hint(&self, errno: &io::Error) -> String {
        match errno.kind() {
            io::ErrorKind::NotFound if pmu::all().is_err() => "mount -t sysfs sysfs /sys".into(),
            io::ErrorKind::NotFound => format!(
                "this kernel, {}, is older than 4.17 or was built without CONFIG_{}_EVENTS",
                machine::release(),
                self.unit.to_uppercase()
            ),
            _ => String::new(),
        }
    }

    fn refused(&self, kind: ErrorKind, errno: io::Error, hint: String) -> Error {
        let event = self.to_string();
        Error::new(kind, format!("cannot set a {}", short(&event))).because(errno).hinting(hint).about(&event)
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // kprobe, kretprobe
        let (kind, probe) = self.unit.split_at(1);
        let returns = if self.returns { "ret" } else { "" };
        write!(f, "{kind}{returns}{probe} {}", self.target.display())?;
        match (&self.symbol, self.offset) {
            (Some(symbol), _) => write!(f, ":{symbol}"),
            (None, 0) => Ok(()),
            (None, offset) => write!(f, "+{offset:#x}"),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BpfOutput(_) => f.write_str("BPF output"),
            Self::Pinned(path) => write!(f, "BPF output into {}", path.display()),
            Self::Tracepoint(name) => write!(f, "tracepoint {name}"),
            Self::TracepointId(id) => write!(f, "tracepoint {id}"),
            Self::Probe(probe) => probe.fmt(f),
            Self::Named(name) => f.write_str(name),
            Self::Records(kinds, _) => {
                f.write_str("records")?;
                kinds.iter().try_for_each(|kind| write!(f, " {kind:?}"))
            }
            Self::Attr(attr) => write!(f, "event {}:{}", attr.type_, attr.config),
        }
    }
}
