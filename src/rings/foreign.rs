//! BPF programs of others that run at the tracepoints of rings, and may keep events from them.

use crate::error::{Error, ErrorKind};
use crate::rings::producer::Producer;
use crate::sys::{bpf, perf};
use std::collections::HashSet;
use std::os::fd::AsFd;

/// [`Rings::foreign_programs`](crate::Rings::foreign_programs) at tracepoints, by the names of these.
pub(super) fn programs<'a>(
    mut tracepoints: HashSet<&str>,
    producers: impl Iterator<Item = &'a Producer>,
) -> Result<Vec<Error>, Error> {
    let mut programs = Vec::new();
    // One event of each: the programs are the same.
    for producer in producers.filter(|producer| tracepoints.remove(&*producer.name)) {
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
        "bpftool prog show id {id} says whose it is; it keeps nothing back if it returns 1, or is at the raw tracepoint"
    );
    Error::new(ErrorKind::Degraded, message).hinting(hint).about(tracepoint)
}
