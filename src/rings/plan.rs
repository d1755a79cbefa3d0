//! The plan: the meaning of options, decided and checked before rings are opened.

use crate::error::{Error, ErrorKind};
use crate::record::Layout;
use crate::record::clock::Clock;
use crate::ring::Ring;
use crate::rings::event_attr;
use crate::rings::event_spec::EventSpec;
use crate::rings::refusal::{self, Denial};
use crate::rings::target::Target;
use crate::sys::wakeup::Wakeup;
use crate::sys::{machine, perf};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::collections::HashMap;
use std::fmt;

/// What was asked for, before it is checked.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) events: Vec<EventSpec>,
    /// Where those begin that the last call has added, and what was set for them.
    pub(super) last: usize,
    pub(super) set: Vec<&'static str>,
    /// The error of the first wrong call.
    pub(super) wrong: Option<Error>,
    /// The target, and the method that set it. The whole machine if `None`.
    pub(super) target: Option<(&'static str, Result<Target, Error>)>,
    /// What records of all events have besides.
    pub(super) sample_type: u64,
    pub(super) bytes: u64,
    pub(super) clock: Clock,
    pub(super) timed: bool,
    pub(super) cpus: Option<Vec<u32>>,
    pub(super) wakeup: Option<Wakeup>,
    pub(super) slot: Slots,
}

/// Which slot of a map a CPU's event is put into.
pub(super) struct Slots(pub(super) Box<dyn Fn(u32) -> u32 + Send + Sync>);

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slots")
    }
}

/// The kernel wakes a sleeping reader each time that another such part of a ring is written, unless a wake-up is set.
const WAKEUP_PART: u64 = 4;

/// All decisions about the rings to open.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) events: Vec<EventSpec>,
    pub(super) target: Target,
    /// The CPUs to open rings for, as far as they are online; all of them if `None`.
    pub(super) cpus: Option<Vec<u32>>,
    /// How many CPUs are to have rings, for messages.
    pub(super) cpu_count: usize,
    pub(super) page: usize,
    pub(super) bytes: usize,
    pub(super) clock: Clock,
    pub(super) layout: Layout,
    pub(super) slot: Slots,
    /// Whether the kernel writes backwards, over the oldest records.
    pub(super) backward: bool,
}

impl Plan {
    pub(super) fn new(asked: Asked, backward: bool) -> Result<Self, Error> {
        let Asked { mut events, wrong, target, sample_type, bytes, clock, timed, cpus, wakeup, slot, .. } = asked;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        if events.is_empty() {
            return Err(Error::no_events());
        }
        clock.check_is_steady()?;
        let page = machine::page_size();
        let bytes = ring_bytes(bytes, page)?;
        for EventSpec { name, attr, target, .. } in &events {
            event_attr::check(name, attr, target.is_some())?;
        }
        check_maps(&events)?;
        if let Some(event) = events.iter().find(|event| event.is_bpf_output() && target.is_some()) {
            let message =
                "is a record of the whole machine: it cannot be limited to one process, thread or control group";
            return Err(Error::new(ErrorKind::InvalidInput, format!("{} {message}", event.name)).about(&event.name));
        }
        let target = target.map_or(Ok(Target::Machine), |(_, target)| target)?;
        if let (Target::Process(_), Some(event)) = (&target, events.iter().find(|event| event.target.is_some())) {
            // perf_uprobe_init and perf_kprobe_init of kernel/trace/trace_event_perf.c, called by inherit_event of
            // kernel/events/core.c.
            let message = format!(
                "{} cannot be limited to a process: the kernel looks for the probe's target in the memory of each \
                 thread that starts another, finds none, and lets fork(2) and clone(2) fail",
                event.name
            );
            let hint =
                "trace one thread, a control group, or the machine, and leave out other processes by their records";
            return Err(Error::new(ErrorKind::Unsupported, message).hinting(hint).about(&event.name));
        }
        let layout = share(&mut events, sample_type, timed)?;
        let size = bytes as u64;
        // A quarter of at most 2^31 bytes (`Ring::MAX`) fits into 32 bits.
        let mut wakeup = wakeup.unwrap_or(Wakeup::Bytes((size / WAKEUP_PART) as u32));
        check_wakeup(wakeup, size, layout.smallest())?;
        if backward {
            // Nobody waits for these rings, so the kernel wakes as rarely as it can.
            // The most that `check_wakeup` allows.
            wakeup = Wakeup::Bytes((size - 9) as u32);
        }
        for EventSpec { attr, .. } in &mut events {
            // Started later, all together (`Producers::start`).
            attr.set_disabled(1);
            attr.set_write_backward(backward.into());
            if let Target::Process(_) = target {
                attr.set_inherit(1);
            }
            event_attr::set_wakeup(attr, wakeup);
            if let Some(clock) = clock.id() {
                attr.set_use_clockid(1);
                attr.clockid = clock.as_raw();
            }
        }
        let mut plan = Self { events, target, cpus, cpu_count: 0, page, bytes, clock, layout, slot, backward };
        plan.leave_out_losses();
        Ok(plan)
    }

    /// Leaves out the event that could not be opened, if the kernel lets nobody have it and its pattern has other
    /// events. Returns the error: `Ok` if the event is left out.
    pub(super) fn skip(&mut self, error: Error) -> Result<Error, Error> {
        let at = self.events.iter().position(|event| error.event() == Some(&event.name));
        let (ErrorKind::Permission, Some(at)) = (error.kind(), at) else { return Err(error) };
        let Some(pattern) = &self.events[at].pattern else { return Err(error) };
        let is_last = self.events.iter().filter(|other| other.pattern.as_ref() == Some(pattern)).count() == 1;
        // A missing privilege, or a filter, is about other events too, and leaves none out.
        if is_last || error.raw_os_error() != Some(libc::EPERM) || refusal::denial(libc::EPERM) != Denial::Event {
            return Err(error);
        }
        self.events.remove(at);
        Ok(error)
    }

    /// Leaves out the kernel's counts of lost records before Linux 6.0: such a kernel refuses an event that asks for
    /// them.
    fn leave_out_losses(&mut self) {
        // All events have one format (`share`).
        let read_format = self.events.first().map_or(0, |event| event.attr.read_format);
        let harmless = perf_event_attr { read_format, ..event_attr::harmless() };
        // Nearly every process may open this event, so `EINVAL` is about what it is to count.
        if self.reads_losses()
            && perf::open_own(&harmless).is_err_and(|errno| errno.raw_os_error() == Some(libc::EINVAL))
        {
            for EventSpec { attr, .. } in &mut self.events {
                attr.read_format &= !u64::from(bindings::PERF_FORMAT_LOST);
            }
        }
    }

    /// Whether read(2) of an event returns its running time and perhaps its lost records, and nothing else.
    fn reads_running(&self) -> bool {
        // With `PERF_SAMPLE_READ` the events' own formats say what is read (`share`).
        self.layout.sample_type() & u64::from(bindings::PERF_SAMPLE_READ) == 0
    }

    /// Whether read(2) of an event returns its running time and its lost records, and nothing else.
    pub(super) fn reads_losses(&self) -> bool {
        let lost = |event: &EventSpec| event.attr.read_format & u64::from(bindings::PERF_FORMAT_LOST) != 0;
        self.reads_running() && self.events.iter().all(lost)
    }

    /// Whether a CPU is to have a ring.
    pub(super) fn wants(&self, cpu: u32) -> bool {
        // `RingOptions::cpus` has sorted them.
        self.cpus.as_ref().is_none_or(|cpus| cpus.binary_search(&cpu).is_ok())
    }

    /// Checks that each of these CPUs has a slot of its own in the maps, if there are any. The CPUs of `before` have
    /// slots already.
    pub(super) fn check_slots(&self, cpus: &[u32], before: impl Iterator<Item = u32>) -> Result<(), Error> {
        let maps = self.events.iter().filter_map(|event| event.map.as_ref());
        let Some(entries) = maps.map(|map| map.entries).min() else { return Ok(()) };
        let mut taken: HashMap<u32, u32> = before.map(|cpu| ((self.slot.0)(cpu), cpu)).collect();
        for &cpu in cpus {
            let slot = (self.slot.0)(cpu);
            if slot >= entries {
                let message = format!(
                    "the perf event array has {entries} slots, but CPU {cpu} needs slot {slot}: make it as large as \
                     the machine has CPUs"
                );
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
            if let Some(other) = taken.insert(slot, cpu) {
                let what = format!("slot {slot} of the perf event array, which holds one event");
                return Err(Error::new(ErrorKind::InvalidInput, format!("CPUs {other} and {cpu} would share {what}")));
            }
        }
        Ok(())
    }
}

/// Gives the records of all events one layout, with all that any event or the options (`sample_type`) ask for.
fn share(events: &mut [EventSpec], sample_type: u64, timed: bool) -> Result<Layout, Error> {
    let attrs = || events.iter().map(|event| &event.attr);
    let mut sample_type = attrs().fold(sample_type, |all, attr| all | attr.sample_type);
    let with = |is: bool, bit: u32| if is { u64::from(bit) } else { 0 };
    // Records of several events must name theirs, at a place that does not depend on the event.
    sample_type |= with(timed, bindings::PERF_SAMPLE_TIME) | with(events.len() > 1, bindings::PERF_SAMPLE_IDENTIFIER);
    let has = |bit: u32| sample_type & u64::from(bit) != 0;
    let read_format = if has(bindings::PERF_SAMPLE_READ) {
        attrs().fold(0, |all, attr| all | attr.read_format)
    } else {
        // Only this crate reads the events, and no record has the result.
        u64::from(bindings::PERF_FORMAT_TOTAL_TIME_RUNNING | bindings::PERF_FORMAT_LOST)
    };
    // Registers, branches and the user's stack are equally long in the records of all events.
    let user = attrs().fold(0, |all, attr| all | attr.sample_regs_user);
    let interrupt = attrs().fold(0, |all, attr| all | attr.sample_regs_intr);
    let branches = attrs().fold(0, |all, attr| all | attr.branch_sample_type);
    let stack = attrs().map(|attr| attr.sample_stack_user).max().unwrap_or_default();
    // The kernel keeps the size in 16 bits and takes whole words only (`perf_copy_attr`, kernel/events/core.c).
    if has(bindings::PERF_SAMPLE_STACK_USER) && (stack >= u16::MAX.into() || !stack.is_multiple_of(8)) {
        let rule = "it must be a multiple of 8, and at most 65528";
        let message = format!("no sample can have {stack} bytes of the user's stack: {rule}");
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    for EventSpec { attr, .. } in &mut *events {
        (attr.sample_type, attr.read_format) = (sample_type, read_format);
        (attr.sample_regs_user, attr.sample_regs_intr) = (user, interrupt);
        (attr.branch_sample_type, attr.sample_stack_user) = (branches, stack);
        // So that other records than samples end with their time and id, too.
        attr.set_sample_id_all(1);
    }
    Ok(Layout::new(sample_type, true, read_format).registers(user, interrupt).branches(branches))
}

/// Checks that no map is named twice.
fn check_maps(events: &[EventSpec]) -> Result<(), Error> {
    let mut seen: HashMap<u32, &EventSpec> = HashMap::new();
    for event in events {
        if let Some(id) = event.map.as_ref().map(|map| map.id)
            && let Some(other) = seen.insert(id, event)
        {
            let message = format!(
                "{} and {} are the same map, number {id}, whose slots hold one event each: name it once",
                other.name, event.name
            );
            return Err(Error::new(ErrorKind::InvalidInput, message).about(&event.name));
        }
    }
    Ok(())
}

/// Checks that the kernel can wake a reader at all: a ring keeps a byte free, and records are multiples of 8 bytes.
fn check_wakeup(wakeup: Wakeup, size: u64, record: u64) -> Result<(), Error> {
    let room = size - 8;
    let (asked, most) = match wakeup {
        // The kernel wakes when more than the watermark was written.
        Wakeup::Bytes(bytes) => (bytes, Wakeup::Bytes((room - 1) as u32)),
        Wakeup::Events(events) => (events, Wakeup::Events((room / record) as u32)),
    };
    let (Wakeup::Bytes(limit) | Wakeup::Events(limit)) = most;
    if (1..=limit).contains(&asked) {
        return Ok(());
    }
    let message =
        format!("a ring of {size} bytes, with records of at least {record}, never has {wakeup} unread: at most {most}");
    Err(Error::new(ErrorKind::InvalidInput, message))
}

/// Bytes of a ring: a power of two pages.
fn ring_bytes(asked: u64, page: usize) -> Result<usize, Error> {
    let page = page as u64;
    // The bound comes first, so that nothing overflows.
    let bytes = (1..=Ring::MAX).contains(&asked).then(|| asked.div_ceil(page).next_power_of_two() * page);
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| {
        let message = format!("a ring cannot have {asked} bytes: at least 1, at most {}", Ring::MAX);
        Error::new(ErrorKind::InvalidInput, message)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::rings::options::RingOptions;

    #[test]
    fn sizes_are_rounded_up_to_a_power_of_two_pages() {
        for page in [4096, 16384, 65536] {
            let bytes = |asked: usize| ring_bytes(asked as u64, page).unwrap();
            assert_eq!(bytes(1), page);
            assert_eq!(bytes(page), page);
            assert_eq!(bytes(page + 1), 2 * page);
            assert_eq!(bytes(3 * page), 4 * page);
            assert_eq!(bytes(8 * page), 8 * page);
            assert_eq!(bytes(1 << 31), 1 << 31);
        }
    }

    /// One layout for all records of a ring: fields, masks and sizes of each event, and those that were asked for
    /// besides.
    #[test]
    fn events_of_a_ring_share_what_any_asks_for() {
        let (ip, read) = (bindings::PERF_SAMPLE_IP, bindings::PERF_SAMPLE_READ);
        for (sample_type, read_format) in [(ip, 2 | 16), (ip | read, 0b111)] {
            let [mut first, mut second] =
                [perf_event_attr { sample_type: sample_type.into(), ..Default::default() }; 2];
            let registers = bindings::PERF_SAMPLE_REGS_USER | bindings::PERF_SAMPLE_REGS_INTR;
            first.sample_type |= u64::from(registers | bindings::PERF_SAMPLE_STACK_USER);
            (first.sample_regs_user, first.sample_regs_intr) = (0b1001, 0b101);
            (second.sample_regs_user, second.sample_regs_intr) = (0b110, 0b011);
            (first.branch_sample_type, first.sample_stack_user, first.read_format) = (5, 24, 0b011);
            (second.branch_sample_type, second.sample_stack_user, second.read_format) = (6, 8, 0b110);
            let mut events = [first, second].map(|attr| EventSpec::new("x", attr));
            let options = RingOptions::new().sample(bindings::PERF_SAMPLE_TID).sample(bindings::PERF_SAMPLE_TID);
            share(&mut events, options.asked.sample_type, true).unwrap();
            let samples = bindings::PERF_SAMPLE_TID | registers | bindings::PERF_SAMPLE_STACK_USER;
            let asked =
                u64::from(sample_type | samples | bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_IDENTIFIER);
            for EventSpec { attr, .. } in &events {
                assert_eq!((attr.sample_type, attr.read_format), (asked, read_format));
                assert_eq!((attr.sample_regs_user, attr.sample_regs_intr), (0b1111, 0b111));
                assert_eq!((attr.branch_sample_type, attr.sample_stack_user), (7, 24));
            }
        }
    }

    #[test]
    fn sizes_of_nothing_and_absurd_ones_are_refused() {
        for options in [0, u64::MAX].map(|pages| RingOptions::new().pages(pages)) {
            assert!(ring_bytes(options.asked.bytes, 4096).is_err(), "{}", options.asked.bytes);
        }
        for asked in [0, (1 << 31) + 1, u64::MAX] {
            let error = ring_bytes(asked, 4096).unwrap_err();
            assert!(
                error.kind() == ErrorKind::InvalidInput && error.to_string().contains("a ring cannot have"),
                "{error}"
            );
        }
    }

    /// cilium's TestPerfEventRing: a watermark that the buffer cannot hold is refused.
    #[test]
    fn wakeups_that_would_never_come_are_refused() {
        for wakeup in [Wakeup::Bytes(1), Wakeup::Bytes(4087), Wakeup::Events(1), Wakeup::Events(170)] {
            assert!(check_wakeup(wakeup, 4096, 24).is_ok(), "{wakeup}");
        }
        for wakeup in [
            Wakeup::Bytes(0),
            Wakeup::Bytes(4088),
            Wakeup::Bytes(4096),
            Wakeup::Bytes(u32::MAX),
            Wakeup::Events(0),
            Wakeup::Events(171),
            Wakeup::Events(u32::MAX),
        ] {
            let error = check_wakeup(wakeup, 4096, 24).unwrap_err();
            assert!(error.to_string().contains(&format!("never has {wakeup} unread")), "{error}");
        }
        // The largest ring: nothing overflows.
        assert!(check_wakeup(Wakeup::Bytes((1 << 31) - 9), 1 << 31, 24).is_ok());
    }
}
