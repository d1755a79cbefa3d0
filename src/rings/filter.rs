//! Filters of events, and the kernel's message about one that it refuses.

use crate::error::{Error, ErrorKind};
use crate::rings::ring_event::RingEvent;
use crate::sys::tracefs::Tracefs;
use crate::sys::{perf, tracepoint};
use perf_event_open_sys::bindings::PERF_TYPE_TRACEPOINT;
use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;

/// The text of a filter, for the kernel.
pub(super) fn parse(filter: &str, event: &str) -> Result<CString, Error> {
    CString::new(filter).map_err(|zero| refused(event, filter, zero.into()))
}

/// Sets the filter of an open event, if it has one.
pub(super) fn set(opened: BorrowedFd<'_>, event: &RingEvent) -> Result<(), Error> {
    let Some(filter) = &event.filter else { return Ok(()) };
    perf::set_filter(opened, filter).map_err(|errno| {
        let filter = filter.to_string_lossy();
        let hint = match errno.raw_os_error() {
            Some(libc::EINVAL) => {
                hint(event, &filter).unwrap_or_else(|errno| format!("what is wrong with it cannot be told: {errno}"))
            }
            _ => String::new(),
        };
        refused(&event.name, &filter, errno).hinting(hint)
    })
}

/// What is wrong with a filter.
fn hint(event: &RingEvent, filter: &str) -> io::Result<String> {
    let name = match &event.tracepoint {
        None if event.attr.type_ == PERF_TYPE_TRACEPOINT => tracepoint::of_number(event.attr.config)?,
        name => name.as_deref().map(str::to_owned),
    };
    Ok(match name {
        Some(name) => format!("the kernel says:\n{}", message(&name, filter)?),
        None if event.probe.is_some() => {
            "a probe has the fields common_pid and __probe_ip or, where a function returns, __probe_func and \
             __probe_ret_ip"
                .into()
        }
        None => "only tracepoints and probes have filters of fields".into(),
    })
}

fn refused(event: &str, filter: &str, errno: io::Error) -> Error {
    let kind = match errno.raw_os_error() {
        Some(libc::EINVAL) => ErrorKind::InvalidInput,
        _ => ErrorKind::of(&errno),
    };
    Error::new(kind, format!("{event}: cannot filter by \"{filter}\"")).because(errno).about(event)
}

/// The kernel's message about a filter that it refuses. perf's ioctl gives only `EINVAL`. The tracepoint's file in
/// tracefs gives the message (`apply_event_filter`, `kernel/trace/trace_events_filter.c`). This writes the file in a
/// new trace instance, and then removes the instance, because another program may have set a filter in the top-level
/// one.
fn message(name: &str, filter: &str) -> io::Result<String> {
    let tracefs = Tracefs::find()?;
    let instance = Instance::new(&tracefs)?;
    let path = instance.0.join("events").join(name.replacen(':', "/", 1)).join("filter");
    match fs::OpenOptions::new().write(true).open(&path)?.write_all(filter.as_bytes()) {
        Ok(()) => Err(io::Error::other("tracefs takes it")),
        Err(_) => Ok(String::from_utf8_lossy(&tracepoint::read_at_once(&path)?).trim_end().to_owned()),
    }
}

/// A trace instance, removed when dropped.
struct Instance(std::path::PathBuf);

impl Instance {
    fn new(tracefs: &Path) -> io::Result<Self> {
        // If two threads ask at once, one finds that the instance exists already, and tries another name.
        let name = |n: u32| tracefs.join("instances").join(format!("perfweave-{}-{n}", std::process::id()));
        (0..64)
            .map(name)
            .find_map(|path| match fs::create_dir(&path) {
                Ok(()) => Some(Ok(Self(path))),
                Err(errno) if errno.kind() == io::ErrorKind::AlreadyExists => None,
                Err(errno) => Some(Err(errno)),
            })
            .unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
