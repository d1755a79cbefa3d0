//! An event to open, with all that was asked for it.

use crate::error::{Error, ErrorKind};
use crate::rings::event_attr::{self as attr, KPROBE};
use crate::rings::event_map::EventMap;
use crate::rings::{Source, event_names};
use crate::sys::pmu;
use perf_event_open_sys::bindings::perf_event_attr;
use std::ffi::CString;
use std::sync::Arc;

/// An event to open on every CPU: its attribute, checked.
#[derive(Debug, Default)]
pub(super) struct RingEvent {
    /// For messages.
    pub(super) name: Arc<str>,
    pub(super) attr: perf_event_attr,
    /// The function or path that the attribute of a probe points to.
    pub(super) probe: Option<CString>,
    /// Where BPF programs find it.
    pub(super) map: Option<EventMap>,
    /// `category:name`, if it is a tracepoint that was asked for by name.
    pub(super) tracepoint: Option<Arc<str>>,
    pub(super) filter: Option<CString>,
    /// The pattern that the tracepoint fits, if a pattern asks for it.
    pub(super) pattern: Option<Arc<str>>,
}

impl RingEvent {
    /// Leaves out what happens in user space, or in the kernel.
    pub(super) fn exclude(&mut self, user: bool, kernel: bool) -> Result<(), Error> {
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

    /// Whether the event never happens in user space: a kprobe, or a tracepoint other than of system calls, which have
    /// the registers of user space, and of a program's probe in tracefs (`perf_tp_event_match`, kernel/events/core.c).
    fn lies_in_kernel(&self) -> bool {
        let is_kprobe = || self.probe.is_some() && pmu::number(KPROBE).is_ok_and(|number| number == self.attr.type_);
        let of_tracepoint = |name: &str| !name.starts_with("syscalls:") && !event_names::is_probe(name);
        self.tracepoint.as_deref().is_some_and(of_tracepoint) || is_kprobe()
    }

    /// Whether only BPF programs write through it.
    pub(super) fn is_bpf_output(&self) -> bool {
        attr::is_bpf_output(&self.attr)
    }
}
