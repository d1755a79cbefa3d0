//! The events that write into the rings, for the program that reads them.

use crate::sys::perf;
use perf_event_open_sys::bindings::{PERF_TYPE_TRACEPOINT, perf_event_attr};
use std::fmt;
use std::sync::Arc;

/// One of the events that write into the rings. [`Rings::sources`](crate::Rings::sources) lists them;
/// [`Record::source`](crate::Record::source) is the place in that list.
#[derive(Clone)]
pub struct Source {
    name: Arc<str>,
    pub(crate) attr: perf_event_attr,
    /// `category:name`, for a tracepoint that was asked for by name.
    tracepoint: Option<Arc<str>>,
    /// The text of the tracepoint's format, if a recording has it.
    format: Option<Arc<str>>,
}

impl Source {
    pub(crate) fn new(name: Arc<str>, attr: perf_event_attr, tracepoint: Option<Arc<str>>) -> Self {
        Self { name, attr, tracepoint, format: None }
    }

    /// An event of a recording.
    pub(super) fn recorded(name: &str, attr: perf_event_attr, format: Option<&str>) -> Self {
        let is_tracepoint = attr.type_ == PERF_TYPE_TRACEPOINT;
        let tracepoint = name.strip_prefix("tracepoint ").filter(|name| is_tracepoint && name.contains(':'));
        Self { name: name.into(), attr, tracepoint: tracepoint.map(Into::into), format: format.map(Into::into) }
    }

    /// The text of the tracepoint's format that a recording brought ([`Recording::event`](crate::Recording::event)).
    /// `None` for others: the package perfweave-events reads the formats of this machine.
    pub fn format(&self) -> Option<&str> {
        self.format.as_deref()
    }

    /// The event in words, as errors name it: `tracepoint sched:sched_switch`, `kprobe do_exit`, `BPF output`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tracepoint's name, `category:name`. `None` for other events, and for a tracepoint that was given by number.
    pub fn tracepoint(&self) -> Option<&str> {
        self.tracepoint.as_deref()
    }

    /// The tracepoint's number, as in the `id` file of tracefs. `None` for other events.
    pub fn tracepoint_id(&self) -> Option<u64> {
        (self.attr.type_ == PERF_TYPE_TRACEPOINT).then_some(self.attr.config)
    }

    /// The attribute that the event is opened with on each CPU: the bytes of `struct perf_event_attr`, as files have
    /// them.
    pub fn attr_bytes(&self) -> &[u8] {
        perf::attr_bytes(&self.attr)
    }

    /// The attribute that the event is opened with on each CPU, as a type of the crate perf-event-open-sys.
    #[cfg(feature = "perf-event-open-sys-7")]
    pub fn attr(&self) -> &perf_event_attr {
        &self.attr
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let perf_event_attr { type_, config, .. } = self.attr;
        f.debug_struct("Source").field("name", &self.name).field("type", &type_).field("config", &config).finish()
    }
}
