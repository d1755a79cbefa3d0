//! Why perf_event_open(2) refuses an event and what helps, with the numbers of this machine.

use crate::error::hint::setting;
use crate::error::{Error, ErrorKind, MODULE, filtered, short};
use crate::rings::event_attr;
use crate::rings::event_spec::EventSpec;
use crate::rings::target;
use crate::sys::perf::Pid;
use crate::sys::status::{CAP_PERFMON, CAP_SYS_ADMIN, Status};
use crate::sys::{file, machine, perf};
use nix::sys::resource::{Resource, getrlimit};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::io;

/// perf_event_open(2) refuses an event on a CPU. `fds`: how many file descriptors all events need.
pub(super) fn refused(event: &EventSpec, pid: Pid<'_>, cpu: u32, errno: io::Error, fds: usize) -> Error {
    let hint = of_target(event, pid, cpu, &errno).or_else(|| of_clock(event, pid, cpu, &errno));
    let mut hint = hint.unwrap_or_else(|| of_call(&errno, event, fds));
    if let (Pid::Thread(_), Some(libc::EMFILE)) = (pid, errno.raw_os_error()) {
        hint += ". Each event takes one for each thread and CPU; of a control group it takes one for each CPU";
    }
    let by_name = event.target.is_some() || event.attr.type_ == bindings::PERF_TYPE_TRACEPOINT;
    let kind = match errno.raw_os_error() {
        // A name may be wrong. What has none is missing in this kernel or machine.
        Some(libc::ENOENT) if !by_name => ErrorKind::Unsupported,
        Some(libc::EINVAL | libc::E2BIG | libc::ENODEV | libc::EOPNOTSUPP | libc::ENOSYS | ENOTSUPP) => {
            ErrorKind::Unsupported
        }
        Some(libc::EADDRNOTAVAIL | libc::ENOEXEC | libc::EIO) if by_name => ErrorKind::InvalidInput,
        _ => ErrorKind::of(&errno),
    };
    let message = format!("cannot open {} on CPU {cpu}", short(&event.name));
    Error::new(kind, message).because(errno).hinting(hint).about(&event.name)
}

/// The kernel's own, which has no name here.
const ENOTSUPP: i32 = 524;

/// What helps if an event cannot be opened for a thread or control group, and that is why.
fn of_target(event: &EventSpec, pid: Pid<'_>, cpu: u32, errno: &io::Error) -> Option<String> {
    let is_there = || perf::open(&event.attr, event.target.as_deref(), Pid::All, cpu).is_ok();
    let text = match (pid, errno.raw_os_error()) {
        (Pid::Cgroup(_), Some(libc::EBADF)) => return Some(target::cgroup_hint()),
        // The hierarchy of the group is not that of perf_event (`perf_cgroup_connect`, kernel/events/core.c).
        (Pid::Cgroup(group), Some(libc::ENOENT)) if is_there() => {
            let version = if file::is_first_version(group) { "1" } else { "2" };
            let hint = target::cgroup_hint();
            return Some(format!("it is one of the control groups of version {version} without perf_event: {hint}"));
        }
        (Pid::Thread(_), Some(raw @ (libc::EACCES | libc::EPERM))) if denial(raw) == Denial::Privilege => {
            "needs CAP_PERFMON, or a process of your own without the kernel, if kernel.perf_event_paranoid is 2 or less"
        }
        _ => return None,
    };
    Some(text.into())
}

/// What helps if the kernel takes the event with its own clock, and refuses this one (`perf_event_set_clock`,
/// kernel/events/core.c).
fn of_clock(event: &EventSpec, pid: Pid<'_>, cpu: u32, errno: &io::Error) -> Option<String> {
    if errno.raw_os_error() != Some(libc::EINVAL) || event.attr.use_clockid() == 0 {
        return None;
    }
    let mut attr = perf_event_attr { clockid: 0, ..event.attr };
    attr.set_use_clockid(0);
    perf::open(&attr, event.target.as_deref(), pid, cpu).ok()?;
    let clock = match event.attr.clockid {
        libc::CLOCK_BOOTTIME => "CLOCK_BOOTTIME",
        _ => "this clock",
    };
    Some(format!(
        "the kernel does not stamp this event by {clock}, which cannot be read in an NMI, where the event may come: \
         take CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW or perf's own. Every clock is there for software events and BPF \
         output"
    ))
}

/// What helps otherwise.
fn of_call(errno: &io::Error, event: &EventSpec, fds: usize) -> String {
    let cured = || event.cure.and_then(|cure| cure(event, Some(errno)));
    match errno.raw_os_error() {
        Some(raw @ (libc::EACCES | libc::EPERM | libc::ENOSYS)) => match (denial(raw), raw) {
            (Denial::Filter { capable: false }, libc::EACCES | libc::EPERM) => {
                format!("{}; and it {}", filtered(CALL), privilege())
            }
            (Denial::Filter { .. }, _) => filtered(CALL),
            (_, libc::ENOSYS) => "this kernel was built without perf events".into(),
            (Denial::Privilege, _) => privilege(),
            (Denial::Event, _) => cured().unwrap_or_else(|| MODULE.into()),
        },
        Some(libc::EMFILE) => {
            let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
            format!(
                "{fds} file descriptors are needed for the events alone; raise RLIMIT_NOFILE, which is {soft}: \
                 setrlimit(2) raises it to {hard} without a privilege"
            )
        }
        Some(libc::ENFILE) => format!("{fds} are needed; raise fs.file-max, which is {}", setting("fs/file-max")),
        Some(libc::E2BIG) => {
            format!("this kernel, {}, is too old for a field of the event's attribute", machine::release())
        }
        Some(libc::ENOENT | libc::EOPNOTSUPP) => cured().unwrap_or_else(|| match event.attr.type_ {
            bindings::PERF_TYPE_HARDWARE | bindings::PERF_TYPE_HW_CACHE | bindings::PERF_TYPE_RAW => {
                "this machine has no such event: virtual machines often have no hardware counters".into()
            }
            _ => format!("this kernel, {}, has no such event", machine::release()),
        }),
        Some(libc::EINVAL) => rate(&event.attr).unwrap_or_else(|| {
            let cured = cured().map_or_else(String::new, |cured| cured + "; or else: ");
            let doubts = doubts(&event.attr, machine::may_be_older_than);
            format!("{cured}this kernel is {}; {doubts}", machine::release())
        }),
        _ => cured().unwrap_or_default(),
    }
}

const CALL: &str = "perf_event_open(2)";

/// Why the kernel does not permit an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denial {
    /// A filter of seccomp refuses all events. `capable`: the thread has the capability.
    Filter { capable: bool },
    /// The thread lacks a capability.
    Privilege,
    /// The thread has the capability, and other events are permitted.
    Event,
}

/// Why perf_event_open(2) fails with `EACCES`, `EPERM` or `ENOSYS`. Tries to open an event that nearly every process
/// may open.
pub(super) fn denial(errno: i32) -> Denial {
    let status = Status::read();
    let capable = status.has_any(if is_paranoid() { &[CAP_SYS_ADMIN] } else { &[CAP_PERFMON, CAP_SYS_ADMIN] });
    let is_same = |other: io::Error| other.raw_os_error() == Some(errno);
    // A filter of the call refuses this event too, which nearly every process may open.
    if status.is_filtered && perf::open_own(&event_attr::harmless()).is_err_and(is_same) {
        return Denial::Filter { capable };
    }
    if capable { Denial::Event } else { Denial::Privilege }
}

/// Whether `kernel.perf_event_paranoid` is above the kernel's own levels, as patches of Debian and others allow.
fn is_paranoid() -> bool {
    machine::setting("kernel/perf_event_paranoid").is_some_and(|level| level > 2)
}

/// The privilege that events of the whole machine need.
fn privilege() -> String {
    let paranoid = setting("kernel/perf_event_paranoid");
    if Status::read().has_in_vain(&[CAP_PERFMON, CAP_SYS_ADMIN]) {
        return format!(
            "needs CAP_PERFMON in the first user namespace, and this process is in another, as a container's may be; \
             or kernel.perf_event_paranoid, which is {paranoid}, set to 0, for tracepoints to -1"
        );
    }
    if is_paranoid() {
        return format!(
            "needs CAP_SYS_ADMIN; or kernel.perf_event_paranoid, which is {paranoid}, set to 2, and CAP_PERFMON"
        );
    }
    format!(
        "needs CAP_PERFMON, or CAP_SYS_ADMIN before Linux 5.8; or kernel.perf_event_paranoid, which is {paranoid}, \
         set to 0, for tracepoints to -1"
    )
}

/// Why the kernel refuses an attribute's rate, if it does (`perf_event_open`, kernel/events/core.c).
fn rate(attr: &perf_event_attr) -> Option<String> {
    const MOST: &str = "kernel/perf_event_max_sample_rate";
    if attr.freq() == 0 {
        let is_too_long = attr.sample_period >> 63 == 1;
        return is_too_long.then(|| format!("a period is less than 2^63, and this one is {}", attr.sample_period));
    }
    let most = machine::setting(MOST).and_then(|most| u64::try_from(most).ok())?;
    (attr.sample_freq > most).then(|| {
        let asked = attr.sample_freq;
        format!(
            "{asked} samples a second are more than kernel.perf_event_max_sample_rate, which is {most}: raise it, or \
             take fewer"
        )
    })
}

/// The members of this attribute that perf_event_open(2) may answer with `EINVAL`.
fn doubts(attr: &perf_event_attr, may_be_older_than: impl Fn([u32; 2]) -> bool) -> String {
    let unknown = attr.sample_type & !u64::from(bindings::PERF_SAMPLE_MAX - 1);
    if unknown != 0 {
        return format!("sample_type has bits that are not known to perf_event_open(2) as of this crate: {unknown:#x}");
    }
    let mut doubts = Vec::new();
    let mut doubt = |is: bool, what: &str| {
        if is {
            doubts.push(what.to_owned());
        }
    };
    for (is, what, since) in [
        (event_attr::is_output(attr), "BPF output", [4, 4]),
        (attr.use_clockid() != 0, "another clock than perf's", [4, 1]),
        (attr.write_backward() != 0, "writing backwards", [4, 7]),
        (attr.read_format & u64::from(bindings::PERF_FORMAT_LOST) != 0, "PERF_FORMAT_LOST", [6, 0]),
        (attr.defer_callchain() | attr.defer_output() != 0, "a deferred call chain", [6, 19]),
    ] {
        doubt(is && may_be_older_than(since), &format!("{what} needs {}.{}", since[0], since[1]));
    }
    let branches = u64::from(bindings::PERF_SAMPLE_BRANCH_STACK | bindings::PERF_SAMPLE_REGS_USER);
    let stacks = u64::from(bindings::PERF_SAMPLE_STACK_USER | bindings::PERF_SAMPLE_REGS_INTR);
    doubt(
        attr.sample_type & (branches | stacks) != 0,
        "branch stacks, registers and user stacks need their masks and sizes set, and the hardware for them",
    );
    doubts.insert(0, format!("sample_type is {:#x}, read_format {:#x}", attr.sample_type, attr.read_format));
    doubts.join("; ")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Only what an attribute has is doubted, and every part of that.
    #[test]
    fn what_is_refused_is_doubted_by_what_was_asked_for() {
        let doubts = |change: &dyn Fn(&mut perf_event_attr)| {
            let mut attr = perf_event_attr::default();
            change(&mut attr);
            super::doubts(&attr, |_| true).split_once("; ").map(|(_, doubts)| doubts.to_owned())
        };
        assert_eq!(doubts(&|_| ()), None);
        let sampled = [
            bindings::PERF_SAMPLE_BRANCH_STACK,
            bindings::PERF_SAMPLE_REGS_USER,
            bindings::PERF_SAMPLE_STACK_USER,
            bindings::PERF_SAMPLE_REGS_INTR,
        ];
        for bit in sampled {
            let said = doubts(&|attr| attr.sample_type = bit.into()).unwrap();
            assert!(said.starts_with("branch stacks"), "{bit:#x}: {said}");
        }
        assert_eq!(doubts(&|attr| attr.set_use_clockid(1)).unwrap(), "another clock than perf's needs 4.1");
        assert_eq!(doubts(&|attr| attr.set_write_backward(1)).unwrap(), "writing backwards needs 4.7");
        assert_eq!(doubts(&|attr| attr.read_format = 16).unwrap(), "PERF_FORMAT_LOST needs 6.0");
        for set in [perf_event_attr::set_defer_callchain, perf_event_attr::set_defer_output] {
            assert_eq!(doubts(&|attr| set(attr, 1)).unwrap(), "a deferred call chain needs 6.19");
        }
        assert_eq!(doubts(&|attr| attr.read_format = 15), None);
        // A kernel that has it all.
        let mut attr = perf_event_attr { read_format: 16, ..Default::default() };
        attr.set_use_clockid(1);
        let said = super::doubts(&attr, |version| version > [5, 8]);
        assert!(said.ends_with("PERF_FORMAT_LOST needs 6.0") && !said.contains("4.1"), "{said}");
    }
}
