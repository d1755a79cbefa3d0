//! An event to open on each CPU.

use crate::rings::Source;
use crate::rings::event_attr as attr;
use crate::rings::event_map::EventMap;
use perf_event_open_sys::bindings::perf_event_attr;
use std::ffi::CString;
use std::io;
use std::sync::Arc;

/// What helps against a refusal of an event, or of its filter.
type Cure = fn(&EventSpec, Option<&io::Error>) -> Option<String>;

/// An event to open on each CPU, by its attribute, with what the kernel and messages need beside that
/// ([`RingOptions::events`](crate::RingOptions::events)). For packages that know events by names, such as
/// perfweave-events.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
#[cfg_attr(not(feature = "perf-event-open-sys-7"), expect(unreachable_pub, reason = "public with the feature"))]
pub struct EventSpec {
    /// What messages and [`Source::name`](crate::Source::name) call the event.
    pub name: Arc<str>,
    /// The attribute. [`RingOptions::event`](crate::RingOptions::event) says what opening sets in it.
    pub attr: perf_event_attr,
    /// The text that `config1` of the attribute shall point to: of a probe, the function or the path of the file.
    pub target: Option<CString>,
    /// `category:name`, if it is a tracepoint that was asked for by name: [`Source::tracepoint`](crate::Source::tracepoint).
    pub tracepoint: Option<Arc<str>>,
    /// The pattern that several events fit, this one among them. If the kernel lets nobody have the event, it is left
    /// out: [`Rings::skipped`](crate::Rings::skipped).
    pub pattern: Option<Arc<str>>,
    /// A filter for the kernel (`PERF_EVENT_IOC_SET_FILTER`): it writes only records that pass.
    pub filter: Option<CString>,
    /// What helps if the kernel refuses the event with this error, and nothing general is the reason, such as a missing
    /// privilege or a limit. Without an error: what helps if it takes the event and refuses the filter as it is.
    pub cure: Option<Cure>,
    /// Where BPF programs find it.
    pub(super) map: Option<EventMap>,
}

impl EventSpec {
    /// An event with this attribute and nothing else.
    pub(super) fn new(name: impl Into<Arc<str>>, attr: perf_event_attr) -> Self {
        Self { name: name.into(), attr, ..Self::default() }
    }

    pub(super) fn source(&self) -> Source {
        Source::new(Arc::clone(&self.name), self.attr, self.tracepoint.clone())
    }

    /// Whether only BPF programs write through it.
    pub(super) fn is_bpf_output(&self) -> bool {
        attr::is_bpf_output(&self.attr)
    }
}
