//! Filters of events, and what the kernel has to say about one that it refuses.

use crate::error::{Error, ErrorKind};
use crate::sys::{machine, perf, tracepoint};
use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;

/// What the kernel checks before it writes a record of an event.
#[derive(Debug)]
pub(crate) struct Filter(CString);

impl Filter {
    pub(crate) fn new(filter: &str, event: &str) -> Result<Self, Error> {
        CString::new(filter).map(Self).map_err(|zero| refused(event, filter, zero.into()))
    }

    /// Sets it for one event: `name` in messages. `tracepoint` finds the name of the tracepoint, if it is one.
    pub(super) fn apply(
        &self,
        event: BorrowedFd<'_>,
        name: &str,
        tracepoint: impl FnOnce() -> io::Result<Option<String>>,
        is_probe: bool,
    ) -> Result<(), Error> {
        perf::set_filter(event, &self.0).map_err(|errno| {
            let filter = self.0.to_string_lossy().into_owned();
            let is_wrong = errno.raw_os_error() == Some(libc::EINVAL);
            let hint = match is_wrong.then(tracepoint) {
                None => String::new(),
                Some(Ok(None)) if is_probe => {
                    "a probe has the fields common_pid and __probe_ip or, where a function returns, __probe_func and \
                     __probe_ret_ip"
                        .into()
                }
                Some(Ok(None)) => "only tracepoints and probes have filters of fields".into(),
                Some(Ok(Some(tracepoint))) => match message(&tracepoint, &filter) {
                    Ok(message) => format!("the kernel says:\n{message}"),
                    Err(errno) => format!("what is wrong with it cannot be told: {errno}"),
                },
                Some(Err(errno)) => format!("what is wrong with it cannot be told: {errno}"),
            };
            refused(name, &filter, errno).hinting(hint)
        })
    }
}

fn refused(event: &str, filter: &str, errno: io::Error) -> Error {
    let kind = match errno.raw_os_error() {
        Some(libc::EINVAL) => ErrorKind::InvalidInput,
        _ => ErrorKind::of(&errno),
    };
    Error::new(kind, format!("{event}: cannot filter by \"{filter}\"")).because(errno).about(event)
}

/// What the kernel says of a filter that it refuses: perf's ioctl says no more than `EINVAL`, and the tracepoint's file in tracefs
/// says where. The file is written to in a trace instance of our own, which is removed, since whoever uses tracefs may have set a
/// filter there (`apply_event_filter`, `kernel/trace/trace_events_filter.c`).
fn message(name: &str, filter: &str) -> io::Result<String> {
    let (category, event) = name.split_once(':').unwrap_or((name, ""));
    let instance = Instance::new(&machine::tracefs()?)?;
    let path = instance.0.join("events").join(category).join(event).join("filter");
    match fs::OpenOptions::new().write(true).open(&path)?.write_all(filter.as_bytes()) {
        Ok(()) => Err(io::Error::other("tracefs takes it")),
        Err(_) => Ok(String::from_utf8_lossy(&tracepoint::read_at_once(&path)?).trim_end().to_owned()),
    }
}

/// A trace instance of our own, removed when dropped.
struct Instance(std::path::PathBuf);

impl Instance {
    fn new(tracefs: &Path) -> io::Result<Self> {
        // Of two threads that ask at once one is told that it exists already, and tries another.
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
