//! What helps if the kernel refuses an event that has a name, or its filter.

use crate::error::short;
use crate::tracefs::Tracefs;
use crate::{pmu, tracepoint};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use perfweave::EventSpec;
use rustix::io::Errno;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// What helps if the kernel refuses an event, and the reason is none that any event may have. Without an error, if it
/// refuses the filter.
pub(crate) fn of_event(event: &EventSpec, errno: Option<&io::Error>) -> Option<String> {
    /// The kernel's own (`ENOTSUPP`), which has no name here.
    const NO_PROBE: i32 = 524;
    let attr = &event.attr;
    let Some(errno) = errno else { return Some(of_filter(event)) };
    match (Errno::from_io_error(errno)?, target(event)) {
        // How the kernel forbids a tracepoint (`perf_perm` of `struct trace_event_call`). Security modules say `EACCES`.
        (Errno::PERM, _) if attr.type_ == bindings::PERF_TYPE_TRACEPOINT => Some(
            "the kernel lets nobody sample this tracepoint, because a sample of it would cause the next. A pattern such \
             as sched:* leaves it out"
                .into(),
        ),
        (Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL, _) => absent(event),
        (Errno::ADDRNOTAVAIL, Some(_)) => Some("the kernel has several functions of that name: see /proc/kallsyms".into()),
        (Errno::IO, Some(path)) => {
            Some(format!("no instructions can be read from {path}: give a program or library"))
        }
        (errno, Some(path)) if errno == Errno::NOEXEC || errno.raw_os_error() == NO_PROBE => Some(format!(
            "no instruction begins at the offset {:#x} of {path}, or one that the kernel does not probe",
            attr.config2
        )),
        _ => None,
    }
}

/// The function or path of a probe.
fn target(event: &EventSpec) -> Option<String> {
    event.target.as_ref().map(|target| short(&target.to_string_lossy()).into_owned())
}

/// What may be missing if the kernel looks the event up by a number or a name.
fn absent(event: &EventSpec) -> Option<String> {
    let (perf_event_attr { type_, config, .. }, offset) = (event.attr, event.attr.config2);
    let units = match type_ {
        bindings::PERF_TYPE_TRACEPOINT => {
            let where_to = "see events/*/*/id in tracefs, which differ between kernels";
            return Some(format!("there may be no tracepoint of number {config}: {where_to}"));
        }
        ..bindings::PERF_TYPE_MAX => return None,
        _ => match pmu::all() {
            Ok(units) => units,
            Err(errno) => return Some(format!("whether there is a PMU of type {type_} cannot be told: {errno}")),
        },
    };
    let unit = units.iter().find(|(number, _)| *number == type_).map(|(_, unit)| unit.as_str());
    Some(match (unit, target(event)) {
        (None, _) => {
            let units: Vec<_> = units.iter().map(|(number, unit)| format!("{unit} {number}")).collect();
            format!("this kernel has no PMU of type {type_}, but {}", units.join(", "))
        }
        (Some("uprobe"), Some(path)) => {
            format!("{path} must be a file, and an instruction must begin at the offset {offset:#x} of it")
        }
        (Some("kprobe"), Some(function)) => format!(
            "the kernel has no function {function} that can be probed: see /proc/kallsyms, available_filter_functions \
             in tracefs, and kprobes/blacklist in debugfs"
        ),
        (Some(unit), _) => format!(
            "the PMU {unit} has no event {config:#x}, or cannot sample, as many cannot: see \
             /sys/bus/event_source/devices/{unit}"
        ),
    })
}

/// What is wrong with a filter.
fn of_filter(event: &EventSpec) -> String {
    filter(event).unwrap_or_else(|errno| format!("what is wrong with it cannot be told: {errno}"))
}

fn filter(event: &EventSpec) -> io::Result<String> {
    let name = match &event.tracepoint {
        None if event.attr.type_ == bindings::PERF_TYPE_TRACEPOINT => tracepoint::of_number(event.attr.config)?,
        name => name.as_deref().map(str::to_owned),
    };
    Ok(match (name, &event.filter) {
        (Some(name), Some(filter)) => format!("the kernel says:\n{}", message(&name, filter.to_bytes())?),
        (None, _) if event.target.is_some() => {
            "a probe has the fields common_pid and __probe_ip or, where a function returns, __probe_func and \
             __probe_ret_ip"
                .into()
        }
        _ => "only tracepoints and probes have filters of fields".into(),
    })
}

/// The kernel's message about a filter that it refuses. perf's ioctl gives only `EINVAL`. The tracepoint's file in
/// tracefs gives the message (`apply_event_filter`, `kernel/trace/trace_events_filter.c`). This writes the file in a
/// new trace instance, and then removes the instance, because another program may have set a filter in the top-level
/// one.
fn message(name: &str, filter: &[u8]) -> io::Result<String> {
    let tracefs = Tracefs::find()?;
    let instance = Instance::new(&tracefs)?;
    let path = instance.0.join("events").join(name.replacen(':', "/", 1)).join("filter");
    match fs::OpenOptions::new().write(true).open(&path)?.write_all(filter) {
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
