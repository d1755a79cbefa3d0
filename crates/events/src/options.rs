//! Options of rings: events by their names, and what is set for one event.

use crate::error::short;
use crate::{cures, names, pmu};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use perfweave::{Error, ErrorKind, EventSpec, RingOptions};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Adds events to rings by their names, and sets something for the event that was added last.
///
/// ```no_run
/// use perfweave::Rings;
/// use perfweave_events::EventOptions;
///
/// let rings = Rings::options()
///     .tracepoint("sched:sched_switch")
///     .filter("prev_pid != 0")
///     .event_name("cpu-clock")
///     .frequency(1000)
///     .open()?;
/// # Ok::<(), perfweave::Error>(())
/// ```
///
/// A name is looked up at the call. If it cannot be, [`RingOptions::open`] gives the first error.
///
/// The settings are those of the event that was added last, or of all events that the last name stands for:
/// [`filter`](Self::filter), [`period`](Self::period), [`frequency`](Self::frequency), [`user_only`](Self::user_only),
/// [`kernel_only`](Self::kernel_only), [`named`](Self::named), [`semaphore`](Self::semaphore),
/// [`sample_registers`](Self::sample_registers), [`sample_stack`](Self::sample_stack),
/// [`exclude_callchain_kernel`](Self::exclude_callchain_kernel),
/// [`exclude_callchain_user`](Self::exclude_callchain_user).
pub trait EventOptions: Sized {
    /// Adds a kernel tracepoint by name, `category:name`. Its number is read from tracefs, wherever that is mounted.
    ///
    /// In both parts `*` stands for any characters and `?` for one: `syscalls:*`, `sched:sched_switch*`. Each
    /// tracepoint that fits becomes a source of its own, by name. Each takes a file descriptor for each CPU. The
    /// category `ftrace` is left out of patterns, since most of it cannot be opened. So is a tracepoint that the kernel
    /// lets nobody sample: [`Rings::skipped`](perfweave::Rings::skipped) lists those. A pattern that leaves nothing is an
    /// error.
    ///
    /// A BPF program that somebody else has attached to the same tracepoint runs first. If it returns 0, the kernel
    /// writes no event, and nothing counts that: [`Rings::foreign_programs`](perfweave::Rings::foreign_programs) lists such
    /// programs.
    ///
    /// Opening the rings gives [`ErrorKind::NotFound`], with the nearest name, for a name
    /// that tracefs does not have, [`ErrorKind::Permission`] if tracefs
    /// cannot be read, and [`ErrorKind::System`] if it is not mounted.
    fn tracepoint(self, name: &str) -> Self;

    /// Adds a kernel tracepoint by number, as in `events/category/name/id` of tracefs.
    fn tracepoint_id(self, id: u64) -> Self;

    /// Adds an event by the name that perf(1) has for it:
    ///
    /// - a software event: `cpu-clock`, `task-clock`, `page-faults`, `minor-faults`, `major-faults`,
    ///   `context-switches`, `cpu-migrations`, `alignment-faults`, `emulation-faults`, `cgroup-switches`;
    /// - a hardware event: `cycles`, `instructions`, `branches`, `branch-misses`, `cache-references`, `cache-misses`,
    ///   `bus-cycles`, `ref-cycles`, `stalled-cycles-frontend`, `stalled-cycles-backend`;
    /// - an event of a cache: `L1-dcache-loads`, `LLC-store-misses`, `dTLB-load-misses` and so on;
    /// - an event of a PMU as sysfs names it, `pmu/terms/`: `cpu/event=0x3c,umask=1/`, `cpu/cache-misses/`. The PMU
    ///   must be able to sample, as many are not. Terms are an event of the PMU's `events` folder, a field of its
    ///   `format` folder, `config`, `config1` or `config2`.
    ///
    /// [`period`](Self::period) and [`frequency`](Self::frequency) say how often the event is sampled. Unless set, an
    /// event that counts time or hardware is sampled 4000 times a second, or as often as
    /// `kernel.perf_event_max_sample_rate` allows, and others each time.
    ///
    /// Opening the rings gives [`ErrorKind::NotFound`], with the nearest name, for a name that is none
    /// of these, and [`ErrorKind::Unsupported`] for an event that this machine does not have. Virtual machines
    /// often have no hardware events.
    fn event_name(self, name: &str) -> Self;

    /// Adds an instruction of a program or library. The event fires whenever a process on a ring's CPU executes it.
    /// `offset` is counted from the start of the file. For a function, it is the symbol's value, less `p_vaddr` and
    /// plus `p_offset` of its segment (elf(5)): the package perfweave-symbols finds it, by the name of the function or
    /// of a static probe.
    ///
    /// The payload is a tracepoint's: 8 bytes of common fields, then the instruction's address, a `u64`. Needs
    /// `CAP_PERFMON`, or `CAP_SYS_ADMIN` before Linux 5.8, and a kernel with `CONFIG_UPROBE_EVENTS`; see
    /// [`ErrorKind::Unsupported`]. The path is made absolute and kept. It is looked up for each CPU, also for those
    /// that come online later. An instruction must begin at the offset. The kernel refuses some places inside an
    /// instruction, which is [`ErrorKind::Unsupported`]. It takes others, and then the probe breaks the program.
    fn uprobe(self, path: impl AsRef<Path>, offset: u64) -> Self;

    /// Adds the return of a function of a program or library. The function begins at `offset` of the file: see
    /// [`uprobe`](Self::uprobe). The payload has the function's address and then the return address.
    fn uretprobe(self, path: impl AsRef<Path>, offset: u64) -> Self;

    /// Sets the semaphore of the uprobe that was added last: of a static probe (USDT), the place in the file of the
    /// word in which the kernel counts those who trace it. It counts in each process that has the file mapped, while
    /// the rings are open, so that programs do not pass the probe by (Linux 4.20 and later, `ref_ctr_offset`). 0 is
    /// none.
    ///
    /// If no uprobe was added last, opening the rings gives [`ErrorKind::InvalidInput`].
    fn semaphore(self, offset: u64) -> Self;

    /// Adds the entry of a kernel function, by its name in `/proc/kallsyms`.
    ///
    /// The payload is a tracepoint's: 8 bytes of common fields, then the function's address, a `u64`. Needs
    /// `CAP_PERFMON`, or `CAP_SYS_ADMIN` before Linux 5.8, and a kernel with `CONFIG_KPROBE_EVENTS`; see
    /// [`ErrorKind::Unsupported`].
    fn kprobe(self, function: &str) -> Self;

    /// Adds the return of a kernel function: see [`kprobe`](Self::kprobe). The payload has the function's address and
    /// then the return address.
    fn kretprobe(self, function: &str) -> Self;

    /// Sets a filter for the event that was added last: the kernel writes only records that pass it
    /// (`PERF_EVENT_IOC_SET_FILTER`). For tracepoints, in the kernel's syntax: `prev_pid != 0 && next_comm ~ "post*"`
    /// (Documentation/trace/events.rst). For a pattern the filter holds for each tracepoint that fits.
    ///
    /// Opening the rings gives [`ErrorKind::InvalidInput`] with the kernel's own message if it refuses the
    /// filter. An event has one filter: a second is [`ErrorKind::InvalidInput`]. Join both with `&&`.
    fn filter(self, filter: &str) -> Self;

    /// Samples the event that was added last once in so many (`sample_period`). An event has one period or frequency: a
    /// second is [`ErrorKind::InvalidInput`].
    fn period(self, period: u64) -> Self;

    /// Samples the event that was added last so many times a second (`sample_freq`). The kernel adapts the period.
    /// It refuses more than `kernel.perf_event_max_sample_rate`. An event has one period or frequency: a second is
    /// [`ErrorKind::InvalidInput`].
    fn frequency(self, hertz: u64) -> Self;

    /// The event that was added last counts in user space only (`exclude_kernel`, `exclude_hv`). Takes fewer
    /// privileges.
    ///
    /// Opening the rings gives [`ErrorKind::InvalidInput`] for a tracepoint by name or a kprobe, which
    /// would never be written then. `syscalls:*` and probes of programs are written.
    fn user_only(self) -> Self;

    /// The event that was added last counts in the kernel only (`exclude_user`). With [`user_only`](Self::user_only)
    /// nothing would be left: that is [`ErrorKind::InvalidInput`].
    fn kernel_only(self) -> Self;

    /// Names the event that was added last: [`Source::name`](perfweave::Source::name) and errors have this name. A function
    /// that the program knows by its name is otherwise named by its offset in the file. An event has one name: a second
    /// is [`ErrorKind::InvalidInput`].
    fn named(self, name: &str) -> Self;

    /// Has the kernel record registers with each sample: those of user space and those at the interrupt
    /// (`sample_regs_user`, `sample_regs_intr`: a bit for each register, by the numbers of the architecture's
    /// `asm/perf_regs.h`). A mask of 0 asks for none. The samples of all events of the rings have them.
    fn sample_registers(self, user: u64, interrupt: u64) -> Self;

    /// Has the kernel record this many bytes of the user's stack with each sample (`sample_stack_user`): a multiple of
    /// 8 and at most 65,528. Opening the rings gives [`ErrorKind::InvalidInput`] for any other size. Of the sizes of
    /// several events the largest holds, for all.
    fn sample_stack(self, bytes: u32) -> Self;

    /// Leaves the addresses of the kernel out of the event's call chains (`exclude_callchain_kernel`), which
    /// [`RingOptions::sample`] asks for (`PERF_SAMPLE_CALLCHAIN`).
    fn exclude_callchain_kernel(self) -> Self;

    /// Leaves the addresses of user space out of the event's call chains (`exclude_callchain_user`). Together with
    /// [`exclude_callchain_kernel`](Self::exclude_callchain_kernel) it leaves chains empty.
    fn exclude_callchain_user(self) -> Self;
}

impl EventOptions for RingOptions {
    fn tracepoint(self, name: &str) -> Self {
        let pattern = names::is_pattern(name).then(|| format!("tracepoint {name}").into());
        let event = |(found, id): (String, u64)| {
            let mut event = spec(format!("tracepoint {found}"), sampled(bindings::PERF_TYPE_TRACEPOINT, id));
            (event.tracepoint, event.pattern) = (Some(found.into()), pattern.clone());
            event
        };
        self.events(names::tracepoints(name).map(|found| found.into_iter().map(event).collect()))
    }

    fn tracepoint_id(self, id: u64) -> Self {
        self.events(Ok(vec![spec(format!("tracepoint {id}"), sampled(bindings::PERF_TYPE_TRACEPOINT, id))]))
    }

    fn event_name(self, name: &str) -> Self {
        self.events(names::attr(name).and_then(|attr| {
            let output = (bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_BPF_OUTPUT.into());
            if (attr.type_, attr.config) == output {
                let message = format!(
                    "{name} would never write anything: a BPF program writes only into an event in a slot of its map"
                );
                return Err(Error::new(ErrorKind::InvalidInput, message).about(name));
            }
            Ok(vec![spec(name.to_owned(), names::at_usual_rate(attr))])
        }))
    }

    fn uprobe(self, path: impl AsRef<Path>, offset: u64) -> Self {
        self.events(user_probe("uprobe", path.as_ref(), offset))
    }

    fn uretprobe(self, path: impl AsRef<Path>, offset: u64) -> Self {
        self.events(user_probe("uretprobe", path.as_ref(), offset))
    }

    fn semaphore(self, offset: u64) -> Self {
        let hint = "a uprobe has one";
        self.set("semaphore", &["semaphore"], hint, |event| {
            if event.target.is_none() || pmu::number(UPROBE).ok() != Some(event.attr.type_) {
                let message = "semaphore applies to the uprobe before it, and there is none: add the uprobe first";
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
            if offset != 0 {
                // The kernel counts those who trace in it, in each process. While it is zero, programs may pass the
                // probe by.
                let terms = format!("ref_ctr_offset={offset:#x}");
                let config = pmu::config(UPROBE, &terms);
                event.attr.config |= config.map_err(|errno| no_unit(UPROBE, &event.name, errno))?.0[0];
            }
            Ok(())
        })
    }

    fn kprobe(self, function: &str) -> Self {
        let probe = probe(KPROBE, format!("kprobe {function}"), function.as_ref(), 0, false);
        self.events(probe.map(|probe| vec![probe]))
    }

    fn kretprobe(self, function: &str) -> Self {
        let probe = probe(KPROBE, format!("kretprobe {function}"), function.as_ref(), 0, true);
        self.events(probe.map(|probe| vec![probe]))
    }

    fn filter(self, filter: &str) -> Self {
        self.set("filter", &["filter"], "join them with && in one", |event| {
            event.filter = Some(CString::new(filter).map_err(|zero| {
                let message = format!("{}: cannot filter by \"{filter}\"", event.name);
                Error::new(ErrorKind::InvalidInput, message).because(zero.into()).about(&event.name)
            })?);
            event.cure = Some(cures::of_event);
            Ok(())
        })
    }

    fn period(self, period: u64) -> Self {
        self.set("period", &RATES, ONE_RATE, |event| {
            event.attr.set_freq(0);
            event.attr.sample_period = period;
            Ok(())
        })
    }

    fn frequency(self, hertz: u64) -> Self {
        self.set("frequency", &RATES, ONE_RATE, |event| {
            event.attr.set_freq(1);
            event.attr.sample_freq = hertz;
            Ok(())
        })
    }

    fn user_only(self) -> Self {
        self.set("user_only", &["kernel_only"], "both are the default", |event| {
            if lies_in_kernel(event) {
                let name = &event.name;
                let message = format!("{name} is in the kernel: in user space only, it would never write anything");
                return Err(Error::new(ErrorKind::InvalidInput, message).about(name));
            }
            event.attr.set_exclude_kernel(1);
            event.attr.set_exclude_hv(1);
            Ok(())
        })
    }

    fn kernel_only(self) -> Self {
        self.set("kernel_only", &["user_only"], "both are the default", |event| {
            event.attr.set_exclude_user(1);
            Ok(())
        })
    }

    fn named(self, name: &str) -> Self {
        self.set("named", &["named"], "an event has one name", |event| {
            event.name = name.into();
            Ok(())
        })
    }

    fn sample_registers(self, user: u64, interrupt: u64) -> Self {
        let bit = |mask: u64, bit: u32| if mask == 0 { 0 } else { u64::from(bit) };
        let bits = bit(user, bindings::PERF_SAMPLE_REGS_USER) | bit(interrupt, bindings::PERF_SAMPLE_REGS_INTR);
        self.set("sample_registers", &[], "", |event| {
            event.attr.sample_type |= bits;
            event.attr.sample_regs_user |= user;
            event.attr.sample_regs_intr |= interrupt;
            Ok(())
        })
    }

    fn sample_stack(self, bytes: u32) -> Self {
        self.set("sample_stack", &["sample_stack"], "a stack has one size", |event| {
            event.attr.sample_type |= u64::from(bindings::PERF_SAMPLE_STACK_USER);
            event.attr.sample_stack_user = bytes;
            Ok(())
        })
    }

    fn exclude_callchain_kernel(self) -> Self {
        self.set("exclude_callchain_kernel", &[], "", |event| {
            event.attr.set_exclude_callchain_kernel(1);
            Ok(())
        })
    }

    fn exclude_callchain_user(self) -> Self {
        self.set("exclude_callchain_user", &[], "", |event| {
            event.attr.set_exclude_callchain_user(1);
            Ok(())
        })
    }
}

/// The settings of which an event has one.
const RATES: [&str; 2] = ["period", "frequency"];
const ONE_RATE: &str = "an event has one of them";

/// The dynamic PMUs, whose attributes point to a name.
const UPROBE: &str = "uprobe";
const KPROBE: &str = "kprobe";

fn spec(name: String, attr: perf_event_attr) -> EventSpec {
    let mut event = EventSpec::default();
    (event.name, event.attr) = (name.into(), attr);
    event.cure = Some(cures::of_event);
    event
}

/// An event that is sampled each time it happens, with raw data: what a tracepoint or a probe writes.
fn sampled(type_: u32, config: u64) -> perf_event_attr {
    let mut attr = perf_event_attr { type_, config, ..Default::default() };
    attr.sample_period = 1;
    attr.sample_type = bindings::PERF_SAMPLE_RAW.into();
    attr
}

fn user_probe(kind: &str, path: &Path, offset: u64) -> Result<Vec<EventSpec>, Error> {
    // Without a current directory the path stays as it is, and the kernel refuses it.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let shown = if offset == 0 { String::new() } else { format!("+{offset:#x}") };
    let name = format!("{kind} {}{shown}", path.display());
    Ok(vec![probe(UPROBE, name, path.as_os_str(), offset, kind != UPROBE)?])
}

/// A place in code: so many bytes from the begin of a function of the kernel or of a file, or the function's return.
fn probe(unit: &str, name: String, target: &OsStr, offset: u64, returns: bool) -> Result<EventSpec, Error> {
    let of_unit = |errno| no_unit(unit, &name, errno);
    let mut attr = sampled(pmu::number(unit).map_err(of_unit)?, 0);
    if returns {
        attr.config = pmu::flag(unit, "retprobe").map_err(of_unit)?;
    }
    attr.config2 = offset;
    let target = CString::new(target.as_bytes()).map_err(|zero| of_unit(zero.into()))?;
    let mut event = spec(name, attr);
    event.target = Some(target);
    Ok(event)
}

/// The unit of a probe cannot be asked.
fn no_unit(unit: &str, event: &str, errno: io::Error) -> Error {
    let (kind, hint) = match errno.kind() {
        io::ErrorKind::NotFound if pmu::all().is_err() => (ErrorKind::Unsupported, "mount -t sysfs sysfs /sys".into()),
        io::ErrorKind::NotFound => {
            let option = unit.to_uppercase();
            let hint = format!("this kernel was built without CONFIG_{option}_EVENTS");
            (ErrorKind::Unsupported, hint)
        }
        _ => (ErrorKind::of(&errno), String::new()),
    };
    Error::new(kind, format!("cannot set a {}", short(event))).because(errno).hinting(hint).about(event)
}

/// Whether the event never happens in user space: a kprobe, or a tracepoint other than of system calls, which have the
/// registers of user space, and of a program's probe in tracefs (`perf_tp_event_match`, kernel/events/core.c).
fn lies_in_kernel(event: &EventSpec) -> bool {
    let is_kprobe = || event.target.is_some() && pmu::number(KPROBE).ok() == Some(event.attr.type_);
    let of_tracepoint = |name: &str| !name.starts_with("syscalls:") && !names::is_probe(name);
    event.tracepoint.as_deref().is_some_and(of_tracepoint) || is_kprobe()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perfweave::Rings;

    #[test]
    fn a_tracepoint_without_category_is_an_error_that_says_so() {
        let error = Rings::options().tracepoint("sched_switch").open().unwrap_err();
        assert!(error.to_string().contains("category:name"), "{error}");
    }

    /// A semaphore is a uprobe's, and an event has one name, which errors have too.
    #[test]
    fn names_and_semaphores_are_of_the_event_that_was_added_last() {
        let said = |options: RingOptions| options.open().unwrap_err().to_string();
        let of_another = Rings::options().event_name("cpu-clock").semaphore(8);
        assert!(said(of_another).starts_with("semaphore applies to the uprobe before it"));
        let before = Rings::options().semaphore(8).event_name("cpu-clock");
        assert!(said(before).starts_with("semaphore applies to the event before it"));
        let before = Rings::options().named("a").event_name("cpu-clock");
        assert!(said(before).starts_with("named applies to the event before it"));
        let twice = Rings::options().event_name("cpu-clock").named("a").named("b");
        assert!(said(twice).starts_with("named and named are set"));
        let silent = Rings::options().event_name("cpu-clock").period(0).named("my clock");
        assert!(said(silent).contains("my clock"));
    }
}
