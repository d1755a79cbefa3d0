//! Events: what a program asks for, and what it means for perf_event_open(2).

use crate::error::{Error, ErrorKind, short};
use crate::rings::event_attr::{self as attr, Rate, sampled};
use crate::rings::event_map::{self, EventMap};
use crate::rings::ring_event::RingEvent;
use crate::rings::{event_names, filter};
use crate::sys::{machine, pmu};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// An event as a program asks for it, with its own settings.
#[derive(Debug)]
pub(super) struct EventSpec {
    /// For messages.
    pub(super) name: Arc<str>,
    /// The name that the program gives to it instead.
    pub(super) named: Option<Arc<str>>,
    pub(super) what: What,
    /// The kernel writes only records that pass it.
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
    Probe(Probe),
    /// The event of that name.
    Named,
    /// Records that the kernel writes beside samples; whether they have build ids.
    Records(Vec<u32>, bool),
    Attr(Box<perf_event_attr>),
}

/// A place in code, as the kernel's dynamic PMUs take it.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) unit: &'static str,
    /// A function of the kernel, or the path of a file.
    pub(super) target: OsString,
    /// Bytes from the begin of the target.
    pub(super) offset: u64,
    /// Where in the file the kernel counts those who trace the place, or 0.
    pub(super) semaphore: u64,
    /// Whether the probe is at the function's return.
    pub(super) returns: bool,
}

impl EventSpec {
    /// The events to open: several for a pattern.
    pub(super) fn events(self) -> Result<Vec<RingEvent>, Error> {
        let Self { name, named, what, filter, rate, exclude_user, exclude_kernel } = self;
        let one = |attr| RingEvent { name: Arc::clone(&name), attr, ..RingEvent::default() };
        let output = |map| {
            let attr = sampled(bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_BPF_OUTPUT.into());
            RingEvent { map: Some(map), ..one(attr) }
        };
        let mut events = match what {
            What::BpfOutput(map) => vec![output(EventMap::new(&name, map.map_err(event_map::unusable)?)?)],
            What::Pinned(path) => vec![output(EventMap::pinned(&name, &path)?)],
            What::Tracepoint(asked) => {
                let pattern = event_names::is_pattern(&asked).then_some(&name);
                let event = |(found, id): (String, u64)| RingEvent {
                    name: format!("tracepoint {found}").into(),
                    tracepoint: Some(found.into()),
                    pattern: pattern.cloned(),
                    ..one(sampled(bindings::PERF_TYPE_TRACEPOINT, id))
                };
                event_names::tracepoints(&asked)?.into_iter().map(event).collect()
            }
            What::Probe(probe) => {
                let (attr, target) = probe.attr(named.as_ref().unwrap_or(&name))?;
                vec![RingEvent { probe: Some(target), ..one(attr) }]
            }
            What::Named => {
                let attr = attr::at_usual_rate(event_names::attr(&name)?);
                attr::check(&name, &attr)?;
                if attr::is_output(&attr) {
                    // No program finds it.
                    return Err(attr::silent(&name));
                }
                vec![one(attr)]
            }
            What::Records(kinds, build_ids) => vec![one(attr::records(&kinds, build_ids)?)],
            What::Attr(mut given) => {
                attr::check(&name, &given)?;
                given.sample_type |= u64::from(bindings::PERF_SAMPLE_RAW);
                vec![one(*given)]
            }
        };
        for event in &mut events {
            if let Some(named) = &named {
                event.name = Arc::clone(named);
            }
            if let Some(rate) = rate {
                attr::set_rate(&mut event.attr, rate);
                if attr::is_silent(&event.attr) {
                    return Err(attr::silent(&event.name));
                }
            }
            event.exclude(exclude_user, exclude_kernel)?;
            event.filter = filter.as_deref().map(|filter| filter::parse(filter, &event.name)).transpose()?;
        }
        Ok(events)
    }
}

impl Probe {
    /// The attribute of a probe, and the target for it to point to.
    fn attr(&self, name: &str) -> Result<(perf_event_attr, CString), Error> {
        let refused = |kind, errno, hint: String| {
            let message = format!("cannot set a {}", short(name));
            Error::new(kind, message).because(errno).hinting(hint).about(name)
        };
        let of_unit = |errno: io::Error| match errno.kind() {
            io::ErrorKind::NotFound if pmu::all().is_err() => {
                refused(ErrorKind::Unsupported, errno, "mount -t sysfs sysfs /sys".into())
            }
            io::ErrorKind::NotFound => {
                let (release, option) = (machine::release(), self.unit.to_uppercase());
                let older = if machine::may_be_older_than([4, 17]) { "is older than 4.17 or " } else { "" };
                let hint = format!("this kernel, {release}, {older}was built without CONFIG_{option}_EVENTS");
                refused(ErrorKind::Unsupported, errno, hint)
            }
            _ => refused(ErrorKind::of(&errno), errno, String::new()),
        };
        let mut attr = sampled(pmu::number(self.unit).map_err(of_unit)?, 0);
        if self.returns {
            attr.config = pmu::flag(self.unit, "retprobe").map_err(of_unit)?;
        }
        attr.config2 = self.offset;
        if self.semaphore != 0 {
            // The kernel counts those who trace in it, in each process. While it is zero, programs may pass the probe
            // by.
            let terms = format!("ref_ctr_offset={:#x}", self.semaphore);
            attr.config |= pmu::config(self.unit, &terms).map_err(of_unit)?.0[0];
        }
        let target = CString::new(self.target.as_bytes()).map_err(|zero| of_unit(zero.into()))?;
        Ok((attr, target))
    }
}
