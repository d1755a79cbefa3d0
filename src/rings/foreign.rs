//! BPF programs of others that run at the tracepoints of rings, and may keep events from them.

use crate::error::{Error, ErrorKind};
use crate::rings::{Rings, Source};
use crate::sys::{bpf, perf};
use std::collections::HashSet;
use std::os::fd::AsFd;

/// [`Rings::foreign_programs`].
pub(super) fn programs(rings: &Rings) -> Result<Vec<Error>, Error> {
    rings.control().check()?;
    let tracepoints = rings.sources().iter().filter(|source| source.tracepoint_id().is_some());
    let mut unasked: HashSet<&str> = tracepoints.map(Source::name).collect();
    let mut programs = Vec::new();
    for producer in rings.control().producers().events() {
        if !unasked.remove(&*producer.name) {
            continue;
        }
        let asked = perf::programs(producer.event.as_fd()).map_err(|errno| {
            let message = format!("cannot ask for BPF programs at {}", producer.name);
            let kind = ErrorKind::of(&errno);
            let hint = if kind == ErrorKind::Permission { "needs CAP_PERFMON in the first user namespace" } else { "" };
            Error::new(kind, message).because(errno).hinting(hint).about(&producer.name)
        });
        programs.extend(asked?.into_iter().map(|id| foreign(&producer.name, id)));
    }
    Ok(programs)
}

/// A program that is attached to a tracepoint.
fn foreign(tracepoint: &str, id: u32) -> Error {
    // The name needs another privilege, and the program may be gone.
    let name = bpf::program_name(id).ok().filter(|name| !name.is_empty());
    let name = name.map_or_else(String::new, |name| format!(" \"{name}\""));
    let message = format!(
        "the BPF program {id}{name} runs at {tracepoint} first: an event for which it returns 0 is in no ring, and \
         nothing counts it"
    );
    let hint = format!(
        "bpftool prog show id {id} names its owner; no event is missing if the program returns 1, or is at the raw tracepoint"
    );
    Error::new(ErrorKind::Degraded, message).hinting(hint).about(tracepoint)
}
