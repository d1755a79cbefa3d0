//! Hints: what helps against the kernel's refusals, with the numbers of this machine.

use crate::error::words::{MODULE, bpf_needs, filtered};
use crate::error::{Hint, short};
use crate::instrument::step;
use crate::sys::status::{CAP_PERFMON, CAP_SYS_ADMIN, Status};
use crate::sys::{machine, perf, pmu};
use nix::sys::resource::{Resource, getrlimit};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::ffi::CStr;
use std::io;

/// What helps when an event cannot be opened. `target` is what it points to; `fds` are needed for all events.
pub(crate) fn open(errno: &io::Error, attr: &perf_event_attr, target: Option<&CStr>, fds: usize) -> Hint {
    Hint(match errno.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => match denial(errno) {
            Denial::Filter { capable: true } => filtered(CALL),
            Denial::Filter { capable: false } => format!("{}; and it {}", filtered(CALL), privilege()),
            Denial::Privilege => privilege(),
            Denial::Event if is_forbidden(attr, errno) => {
                "the kernel lets nobody sample this tracepoint, because a sample of it would cause the next. A pattern leaves it out: see \
                 Rings::skipped"
                    .into()
            }
            Denial::Event => MODULE.into(),
        },
        Some(libc::EMFILE) => {
            let limit = limit(Resource::RLIMIT_NOFILE);
            format!("{fds} file descriptors are needed for the events alone; raise RLIMIT_NOFILE, which is {limit}")
        }
        Some(libc::ENFILE) => format!("{fds} are needed; raise fs.file-max, which is {}", setting("fs/file-max")),
        Some(libc::ENOSYS) => match denial(errno) {
            Denial::Filter { .. } => filtered(CALL),
            _ => "this kernel was built without perf events".into(),
        },
        Some(libc::E2BIG) => format!(
            "this kernel, {}, is older than something in the event's attribute, of which it knows a shorter version",
            machine::release()
        ),
        Some(libc::ENOENT | libc::EOPNOTSUPP) => absent(attr, target).unwrap_or_else(|| match attr.type_ {
            bindings::PERF_TYPE_HARDWARE | bindings::PERF_TYPE_HW_CACHE | bindings::PERF_TYPE_RAW => {
                "this machine has no such event: virtual machines often have no hardware counters".into()
            }
            _ => format!("this kernel, {}, has no such event", machine::release()),
        }),
        Some(libc::EINVAL) => rate(attr).unwrap_or_else(|| {
            let absent = absent(attr, target).map_or_else(String::new, |absent| absent + "; or else: ");
            format!("{absent}this kernel is {}; {}", machine::release(), refused(attr))
        }),
        Some(libc::EADDRNOTAVAIL) if target.is_some() => {
            "the kernel has several functions of that name: see /proc/kallsyms".into()
        }
        // ENOTSUPP, which is the kernel's own and has no name here.
        Some(errno @ (libc::ENOEXEC | libc::EIO | 524)) => match (target, errno) {
            (Some(target), libc::EIO) => {
                format!("no instructions can be read from {}: give a program or library", short(&target.to_string_lossy()))
            }
            (Some(target), _) => format!(
                "no instruction begins at the offset {:#x} of {}, or one that the kernel does not probe",
                attr.config2,
                short(&target.to_string_lossy())
            ),
            _ => return Hint::default(),
        },
        _ => return Hint::default(),
    })
}

const CALL: &str = "perf_event_open(2)";

/// Why an event is not permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denial {
    /// A filter of seccomp refuses all events. `capable`: the thread has the capability.
    Filter { capable: bool },
    /// The thread lacks a capability.
    Privilege,
    /// The thread has the capability, and other events are permitted.
    Event,
}

/// Why perf_event_open(2) fails with `EACCES`, `EPERM` or `ENOSYS`. Tries to open an event that nearly anybody may have.
pub(crate) fn denial(errno: &io::Error) -> Denial {
    let status = Status::read();
    let capable = status.has_any(if is_paranoid() { &[CAP_SYS_ADMIN] } else { &[CAP_PERFMON, CAP_SYS_ADMIN] });
    let is_same = |other: io::Error| other.raw_os_error() == errno.raw_os_error();
    if status.is_filtered && perf::open_own(&harmless()).is_err_and(is_same) {
        return Denial::Filter { capable };
    }
    if capable { Denial::Event } else { Denial::Privilege }
}

/// Whether that is how the kernel forbids a tracepoint (`perf_perm` of `struct trace_event_call`). Security modules say `EACCES`.
fn is_forbidden(attr: &perf_event_attr, errno: &io::Error) -> bool {
    attr.type_ == bindings::PERF_TYPE_TRACEPOINT && errno.raw_os_error() == Some(libc::EPERM)
}

/// An event that nearly anybody may have, of their own process in user space.
pub(crate) fn harmless() -> perf_event_attr {
    let (type_, config) = (bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_DUMMY.into());
    let mut attr = perf_event_attr { type_, config, ..Default::default() };
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr
}

/// Whether `kernel.perf_event_paranoid` is above the kernel's own levels: what Debian and others have added.
fn is_paranoid() -> bool {
    machine::setting("kernel/perf_event_paranoid").is_some_and(|level| level > 2)
}

/// What events of the whole machine need.
fn privilege() -> String {
    let paranoid = setting("kernel/perf_event_paranoid");
    if Status::read().has_in_vain(&[CAP_PERFMON, CAP_SYS_ADMIN]) {
        return format!(
            "needs CAP_PERFMON in the first user namespace, and this process is in another, as a container's may be; or \
             kernel.perf_event_paranoid, which is {paranoid}, set to 0, for tracepoints to -1"
        );
    }
    if is_paranoid() {
        return format!(
            "needs CAP_SYS_ADMIN; or kernel.perf_event_paranoid, which is {paranoid}, set to 2, and CAP_PERFMON"
        );
    }
    format!(
        "needs CAP_PERFMON, or CAP_SYS_ADMIN before Linux 5.8; or kernel.perf_event_paranoid, which is {paranoid}, set to 0, for \
         tracepoints to -1"
    )
}

/// What the kernel refuses of an attribute's rate, if it does (`perf_event_open`, kernel/events/core.c).
fn rate(attr: &perf_event_attr) -> Option<String> {
    const MOST: &str = "kernel/perf_event_max_sample_rate";
    if attr.freq() == 0 {
        let is_too_long = attr.sample_period >> 63 == 1;
        return is_too_long.then(|| format!("a period is less than 2^63, and this one is {}", attr.sample_period));
    }
    let most = machine::setting(MOST).and_then(|most| u64::try_from(most).ok())?;
    (attr.sample_freq > most).then(|| {
        let asked = attr.sample_freq;
        format!("{asked} samples a second are more than kernel.perf_event_max_sample_rate, which is {most}: raise it, or take fewer")
    })
}

/// What helps where an event can be had with another clock than this one, and with this one not (`perf_event_set_clock`,
/// kernel/events/core.c).
pub(crate) fn clock(attr: &perf_event_attr) -> Hint {
    let clock = match attr.clockid {
        libc::CLOCK_REALTIME => "CLOCK_REALTIME",
        libc::CLOCK_BOOTTIME => "CLOCK_BOOTTIME",
        libc::CLOCK_TAI => "CLOCK_TAI",
        _ => "this clock",
    };
    Hint(format!(
        "the kernel does not stamp this event by {clock}, which cannot be read in an NMI, where the event may come: take Clock::Monotonic, \
         Clock::MonotonicRaw or Clock::Perf. Every clock is there for software events and BPF output"
    ))
}

/// What may not be there, where it is for the kernel to find by a number or a name.
fn absent(attr: &perf_event_attr, target: Option<&CStr>) -> Option<String> {
    let perf_event_attr { type_, config, .. } = *attr;
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
    let target = target.map(CStr::to_string_lossy);
    let target = target.as_deref().map(short);
    Some(match (unit, target) {
        (None, _) => {
            let units: Vec<_> = units.iter().map(|(number, unit)| format!("{unit} {number}")).collect();
            format!("this kernel has no PMU of type {type_}, but {}", units.join(", "))
        }
        (Some("uprobe"), Some(target)) => {
            let offset = attr.config2;
            format!("{target} must be a file, and an instruction must begin at the offset {offset:#x} of it")
        }
        (Some("kprobe"), Some(target)) => format!(
            "the kernel has no function {target} that can be probed: see /proc/kallsyms, available_filter_functions in \
             tracefs, and kprobes/blacklist in debugfs"
        ),
        (Some(unit), _) => format!(
            "the PMU {unit} has no event {config:#x}, or cannot sample, as many cannot: see \
             /sys/bus/event_source/devices/{unit}"
        ),
    })
}

/// What perf_event_open(2) answers `EINVAL` to, as far as this attribute goes.
fn refused(attr: &perf_event_attr) -> String {
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
    let is_output =
        attr.type_ == bindings::PERF_TYPE_SOFTWARE && attr.config == u64::from(bindings::PERF_COUNT_SW_BPF_OUTPUT);
    doubt(is_output, "BPF output needs 4.4");
    doubt(attr.use_clockid() != 0, "another clock than perf's needs 4.1");
    doubt(attr.write_backward() != 0, "writing backwards needs 4.7");
    doubt(attr.read_format & u64::from(bindings::PERF_FORMAT_LOST) != 0, "PERF_FORMAT_LOST needs 6.0");
    let branches = u64::from(bindings::PERF_SAMPLE_BRANCH_STACK | bindings::PERF_SAMPLE_REGS_USER);
    let stacks = u64::from(bindings::PERF_SAMPLE_STACK_USER | bindings::PERF_SAMPLE_REGS_INTR);
    doubt(
        attr.sample_type & (branches | stacks) != 0,
        "branch stacks, registers and user stacks need their masks and sizes set, and the hardware for them",
    );
    format!("sample_type is {:#x}, read_format {:#x}; {}", attr.sample_type, attr.read_format, doubts.join("; "))
}

/// What helps when a ring cannot be mapped.
pub(crate) fn map(errno: &io::Error, bytes: usize, cpus: usize) -> Hint {
    Hint(match errno.raw_os_error() {
        Some(libc::EPERM) => format!(
            "{cpus} rings of {} KiB are more than kernel.perf_event_mlock_kb, {} for each CPU and shared by the user's \
             processes, and RLIMIT_MEMLOCK, {} KiB, allow without CAP_IPC_LOCK",
            bytes >> 10,
            setting("kernel/perf_event_mlock_kb"),
            limit(Resource::RLIMIT_MEMLOCK) >> 10,
        ),
        Some(libc::ENOMEM) => format!("{cpus} rings of {} KiB are asked for", bytes >> 10),
        _ => return Hint::default(),
    })
}

/// What helps where no fence is possible: an expedited one, or any other.
pub(crate) fn fence(is_expedited: bool) -> Hint {
    let other =
        if is_expedited { "Fence::Auto takes no privilege" } else { "Fence::Expedited takes CAP_SYS_ADMIN alone" };
    let filtered = if Status::read().is_filtered {
        ". This process has a seccomp filter, as in a container, which may refuse the calls"
    } else {
        ""
    };
    Hint(format!("{other}; a reader with Hold::Lag needs no fence, and assumes the order{filtered}"))
}

/// What helps when a slot of a map cannot be set.
pub(crate) fn slot(errno: &io::Error) -> Hint {
    Hint(match errno.raw_os_error() {
        Some(libc::EPERM) => bpf_needs("needs CAP_BPF, and a map that is not read-only"),
        Some(libc::EACCES) => "needs a map that is not read-only".into(),
        _ => return Hint::default(),
    })
}

/// What helps when a probe cannot be had.
pub(crate) fn probe(errno: &io::Error, unit: &str) -> Hint {
    Hint(match errno.kind() {
        io::ErrorKind::NotFound if pmu::all().is_err() => "mount -t sysfs sysfs /sys".into(),
        io::ErrorKind::NotFound => {
            let config = unit.to_uppercase();
            format!(
                "this kernel, {}, is older than 4.17 or was built without CONFIG_{config}_EVENTS",
                machine::release()
            )
        }
        _ => return Hint::default(),
    })
}

/// What helps when a tracepoint cannot be looked up in tracefs.
pub(crate) fn tracefs(errno: &io::Error) -> Hint {
    Hint(match errno.kind() {
        io::ErrorKind::NotFound => "mount -t tracefs nodev /sys/kernel/tracing".into(),
        io::ErrorKind::PermissionDenied => {
            let place = machine::tracefs_place();
            format!(
                "whether there is one cannot be told: unless it is mounted otherwise, only root can read tracefs. As root, `mount -o \
                 remount,gid={},mode=750 {}` lets the group of this process read it. RingOptions::tracepoint_id needs no file",
                Status::read().group,
                place.display(),
            )
        }
        _ => return Hint::default(),
    })
}

/// What helps where a map may not even be asked what it is. Before Linux 5.19 the setting is for all that bpf(2) does.
pub(crate) fn array(errno: &io::Error) -> Hint {
    Hint(match errno.raw_os_error() {
        Some(libc::EPERM) => bpf_needs("needs CAP_BPF where kernel.unprivileged_bpf_disabled is set"),
        _ => return Hint::default(),
    })
}

/// What helps when a pinned map cannot be opened.
pub(crate) fn pinned(errno: &io::Error) -> Hint {
    Hint(match errno.raw_os_error() {
        Some(libc::ENOENT) => "maps are pinned in a BPF file system: mount -t bpf bpf /sys/fs/bpf".into(),
        Some(libc::EACCES) => {
            "it must be a file of a BPF file system, readable and writable, in directories that are searchable".into()
        }
        Some(libc::EPERM) => bpf_needs("needs CAP_BPF where kernel.unprivileged_bpf_disabled is set"),
        _ => return Hint::default(),
    })
}

fn setting(name: &str) -> String {
    machine::setting(name).map_or("unknown".into(), |value| value.to_string())
}

fn limit(resource: Resource) -> u64 {
    getrlimit(resource).map_or(0, |(soft, _)| soft)
}

/// How many letters are compared for one hint: as much as 10,000 names of 40 letters. A name from elsewhere may have any
/// length, and there may be any number of names.
const MOST_STEPS: u64 = 1 << 24;

/// The name of these that is nearest to one that there is not, if any is near. Names for which too little is left of
/// [`MOST_STEPS`] are not compared.
pub(crate) fn nearest(name: &str, names: impl Iterator<Item = String>) -> Option<Hint> {
    // One more than is still near.
    let mut bound = 3 + name.len() / 4;
    let (mut steps, mut found) = (MOST_STEPS, None);
    for other in names {
        if let Some(distance) = distance(name.as_bytes(), other.as_bytes(), bound, &mut steps) {
            bound = distance + 1;
            // Of two that are as near, the first in the alphabet.
            found = found.into_iter().chain([(distance, other)]).min();
        }
    }
    found.map(|(_, other)| Hint(format!("did you mean {}?", short(&other))))
}

/// How many bytes must be added, removed or changed to make one of the other (Levenshtein's distance). `None` if that is
/// `bound` or more, or takes more than these steps, which are counted down.
fn distance(one: &[u8], other: &[u8], bound: usize, steps: &mut u64) -> Option<usize> {
    if one.len().abs_diff(other.len()) >= bound {
        return None;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, byte) in one.iter().enumerate() {
        *steps = steps.checked_sub(other.len() as u64)?;
        let mut before = std::mem::replace(&mut row[0], at + 1);
        for (column, counterpart) in other.iter().enumerate() {
            step();
            let changed = before + usize::from(byte != counterpart);
            before = row[column + 1];
            row[column + 1] = changed.min(before + 1).min(row[column] + 1);
        }
        // It grows from row to row.
        if row.iter().all(|distance| *distance >= bound) {
            return None;
        }
    }
    Some(row[other.len()]).filter(|distance| *distance < bound)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::instrument::count;

    #[test]
    fn the_nearest_name_is_hinted_at() {
        let far = |name: &str, bound| distance(name.as_bytes(), b"sitting", bound, &mut 100);
        assert_eq!([("kitten", 4), ("", 8)].map(|(name, bound)| far(name, bound)), [Some(3), Some(7)]);
        assert_eq!([("kitten", 3), ("", 7)].map(|(name, bound)| far(name, bound)), [None, None]);
        let names = || ["sched_switch", "sched_waking", "sched_wakeup"].map(str::to_owned).into_iter();
        assert!(nearest("sched_swtich", names()).unwrap().to_string().contains("sched_switch"));
        assert!(nearest("tcp_probe", names()).is_none());
        assert!(nearest("x", std::iter::empty()).is_none());
    }

    /// A name from elsewhere may have any length, and there may be any number of names beside it.
    #[test]
    fn a_hint_costs_no_more_than_it_is_worth() {
        let long = "x".repeat(64 << 10);
        let near = format!("{}y", &long[1..]);
        let (steps, hint) = count(|| nearest(&long, std::iter::once(near)));
        assert!(steps <= MOST_STEPS, "{steps}");
        assert!(hint.is_none(), "so long a name says nothing in a message");
        // Each is as long as the name, and none is near.
        let name = "y".repeat(100);
        let others = (0..100_000u32).map(|number| format!("{number:0100}"));
        let (steps, hint) = count(|| nearest(&name, others));
        assert!(steps <= MOST_STEPS, "{steps}");
        assert!(hint.is_none());
        // What is near is found among as many names as a large program has.
        let functions = |number: u32| format!("_ZN4core3fmt9Formatter{number:08}17h0123456789abcdefE");
        let asked = functions(77_777).replace("Formatter", "Fromatter");
        let (steps, hint) = count(|| nearest(&asked, (0..100_000).map(functions)));
        assert!(steps <= MOST_STEPS, "{steps}");
        assert!(hint.is_some());
    }
}
