//! BPF programs of others that run at the tracepoints of rings, and may keep events from them.

use crate::error::{Error, ErrorKind};
use crate::rings::{Rings, Source};
use crate::sys::{bpf, perf};
use std::collections::HashSet;
use std::os::fd::AsFd;

impl Rings {
    /// The BPF programs of anybody that are attached to the tracepoints of these rings at this moment. Each is an
    /// [`ErrorKind::Degraded`] that names the tracepoint ([`Error::event`]) and the program.
    ///
    /// The kernel runs such a program before it writes the event into any ring. If one returns 0, it writes no event,
    /// and **nothing counts** that (`perf_trace_run_bpf_submit`, kernel/events/core.c). What a program returns cannot
    /// be seen from outside. Programs at raw tracepoints, fentry programs and those of other probes keep nothing back,
    /// and are not listed. Neither are programs that come later: ask again.
    ///
    /// One ioctl(2) for each tracepoint (`PERF_EVENT_IOC_QUERY_BPF`). Empty where the rings have no tracepoints, and
    /// once the reader is closed.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] without `CAP_PERFMON`; [`ErrorKind::System`] if the kernel does not answer;
    /// [`ErrorKind::Forked`].
    #[doc(alias = "PERF_EVENT_IOC_QUERY_BPF")]
    pub fn foreign_programs(&self) -> Result<Vec<Error>, Error> {
        self.control().check()?;
        let tracepoints = self.sources().iter().filter(|source| source.tracepoint_id().is_some());
        let mut unasked: HashSet<&str> = tracepoints.map(Source::name).collect();
        let mut programs = Vec::new();
        for producer in self.control().producers().events() {
            if !unasked.remove(&*producer.name) {
                continue;
            }
            let asked = perf::programs(producer.event.as_fd()).map_err(|errno| {
                let message = format!("cannot ask for BPF programs at {}", producer.name);
                let kind = ErrorKind::of(&errno);
                let hint =
                    if kind == ErrorKind::Permission { "needs CAP_PERFMON in the first user namespace" } else { "" };
                Error::new(kind, message).because(errno).hinting(hint).about(&producer.name)
            });
            programs.extend(asked?.into_iter().map(|id| foreign(&producer.name, id)));
        }
        Ok(programs)
    }
}

/// A program that is attached to a tracepoint.
fn foreign(tracepoint: &str, id: u32) -> Error {
    // The name needs another privilege, and the program may be gone.
    let name = bpf::program_name(id).ok().filter(|name| !name.is_empty());
    let name = name.map_or_else(String::new, |name| format!(" \"{name}\""));
    let message = format!(
        "the BPF program {id}{name} runs at {tracepoint} first: an event for which it returns 0 is in no ring, and nothing counts it"
    );
    let hint = format!(
        "bpftool prog show id {id} says whose it is; it keeps nothing back if it returns 1, or is at the raw tracepoint"
    );
    Error::new(ErrorKind::Degraded, message).hinting(hint).about(tracepoint)
}
