//! Plans: the meaning of options, decided and checked before anything is opened.

use crate::error::{Error, ErrorKind};
use crate::record::clock::Clock;
use crate::record::{Layout, Sample};
use crate::ring::Ring;
use crate::rings::options::{RingOptions, Size, Traced};
use crate::rings::planned::{Array, Planned, planned};
use crate::rings::refusal::{self, Denial};
use crate::rings::whom::Target;
use crate::sys::machine;
use crate::sys::wakeup::Wakeup;
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::collections::HashMap;

/// The kernel wakes a sleeping reader when this part of a ring was written since it did so last, unless told otherwise.
const WAKEUP_PART: u64 = 4;

/// Everything decided and checked, nothing opened.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) events: Vec<Planned>,
    pub(crate) target: Target,
    /// The CPUs to open rings for, as far as they are online; all of them if `None`.
    pub(crate) cpus: Option<Vec<u32>>,
    pub(crate) page: usize,
    pub(crate) bytes: usize,
    pub(crate) clock: Clock,
    pub(crate) layout: Layout,
    /// Which slot of a map a CPU's event is put into.
    pub(crate) slot: fn(u32) -> u32,
    /// Whether the kernel writes backwards, over what is oldest.
    pub(crate) backward: bool,
    /// Whether reading an event says for how long it ran and what it lost, and nothing else.
    pub(crate) tells_running: bool,
}

impl Plan {
    pub(crate) fn new(options: RingOptions, backward: bool) -> Result<Self, Error> {
        let RingOptions { asked, wrong, whom, samples, size, clock, timed, cpus, wakeup, slot } = options;
        if asked.is_empty() {
            return Err(Error::no_events());
        }
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let page = machine::page_size();
        let bytes = ring_bytes(size, page)?;
        let mut events = Vec::with_capacity(asked.len());
        for asked in asked {
            events.extend(planned(asked)?);
        }
        check_maps(&events)?;
        let is_everybody = matches!(whom, Traced::Everybody);
        if let Some(event) = events.iter().find(|event| event.is_bpf_output()).filter(|_| !is_everybody) {
            let message = "is written whoever runs: it cannot be had for one process, thread or control group";
            return Err(Error::new(ErrorKind::InvalidInput, format!("{} {message}", event.name)).about(&event.name));
        }
        let target = Target::new(whom)?;
        let carried = Carried::of(&mut events, &samples, timed);
        carried.check()?;
        let layout = carried.layout();
        let size = bytes as u64;
        let mut wakeup = wakeup.unwrap_or(Wakeup::Bytes((size / WAKEUP_PART) as u32));
        check_wakeup(wakeup, size, layout.smallest())?;
        if backward {
            // Nobody waits for these: as rarely as can be.
            wakeup = Wakeup::Bytes((size - 9) as u32);
        }
        for Planned { attr, .. } in &mut events {
            carried.set(attr);
            attr.set_disabled(1);
            attr.set_write_backward(backward.into());
            if target.inherits() {
                attr.set_inherit(1);
            }
            set_wakeup(attr, wakeup);
            if let Some(clock) = clock.id() {
                attr.set_use_clockid(1);
                attr.clockid = clock.as_raw();
            }
        }
        let tells_running = carried.tells_running();
        Ok(Self { events, target, cpus, page, bytes, clock, layout, slot, backward, tells_running })
    }

    /// Goes without the event that could not be opened, if it is of a pattern that leaves others and the kernel lets nobody have it.
    /// Gives the error, or the one that there is no way around.
    pub(crate) fn skip(&mut self, error: Error) -> Result<Error, Error> {
        let at = self.events.iter().position(|planned| error.event() == Some(&planned.name));
        let (ErrorKind::Permission, Some(at)) = (error.kind(), at) else { return Err(error) };
        let Some(pattern) = &self.events[at].pattern else { return Err(error) };
        let is_last = self.events.iter().filter(|other| other.pattern.as_ref() == Some(pattern)).count() == 1;
        if is_last || error.raw_os_error() != Some(libc::EPERM) || refusal::denial(libc::EPERM) != Denial::Event {
            return Err(error);
        }
        self.events.remove(at);
        Ok(error)
    }

    /// Goes without the kernel's counts of what was lost: before Linux 6.0 it has none.
    pub(crate) fn without_losses(&mut self) {
        for Planned { attr, .. } in &mut self.events {
            attr.read_format &= !u64::from(bindings::PERF_FORMAT_LOST);
        }
    }

    /// Whether events say what they lost, and nothing else but for how long they ran.
    pub(crate) fn tells_losses(&self) -> bool {
        let lost = |event: &Planned| event.attr.read_format & u64::from(bindings::PERF_FORMAT_LOST) != 0;
        self.tells_running && self.events.iter().all(lost)
    }

    /// Which of these CPUs are to have a ring.
    pub(crate) fn wants(&self, cpu: u32) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.binary_search(&cpu).is_ok())
    }

    /// Checks that the maps, if there are any, have a slot for each of these CPUs, and none for two of them or of those that have
    /// one already.
    pub(crate) fn check_slots(&self, cpus: &[u32], before: impl Iterator<Item = u32>) -> Result<(), Error> {
        let arrays = || self.events.iter().filter_map(|event| event.map.as_ref());
        let Some(entries) = arrays().map(|array| array.entries).min() else { return Ok(()) };
        let mut taken: HashMap<u32, u32> = before.map(|cpu| ((self.slot)(cpu), cpu)).collect();
        for &cpu in cpus {
            let slot = (self.slot)(cpu);
            if slot >= entries {
                let message = format!(
                    "the perf event array has {entries} slots, but CPU {cpu} needs slot {slot}: make it as large as the machine has \
                     CPUs"
                );
                return Err(Error::new(ErrorKind::Map, message));
            }
            if let Some(other) = taken.insert(slot, cpu) {
                let what = format!("slot {slot} of the perf event array, which holds one event");
                return Err(Error::new(ErrorKind::Map, format!("CPUs {other} and {cpu} would share {what}")));
            }
        }
        Ok(())
    }
}

/// What the records of all events of a ring carry: one ring, one layout.
struct Carried {
    sample_type: u64,
    read_format: u64,
    /// Registers of user space and at the interrupt, and branches: they are as long in the records of all.
    masks: [u64; 3],
    /// Bytes of the user's stack.
    stack: u32,
}

impl Carried {
    /// What any of the events asks for, or all of them.
    fn of(events: &mut [Planned], samples: &[Sample], timed: bool) -> Self {
        for Planned { attr, .. } in &mut *events {
            samples.iter().for_each(|sample| tell(attr, *sample));
        }
        set_callchains(events, samples);
        let attrs = || events.iter().map(|event| &event.attr);
        let mut sample_type = attrs().fold(0, |all, attr| all | attr.sample_type);
        if events.iter().any(Planned::has_payload) {
            sample_type |= u64::from(bindings::PERF_SAMPLE_RAW);
        }
        if timed {
            sample_type |= u64::from(bindings::PERF_SAMPLE_TIME);
        }
        if events.len() > 1 {
            sample_type |= u64::from(bindings::PERF_SAMPLE_IDENTIFIER);
        }
        let mut read_format = attrs().fold(0, |all, attr| all | attr.read_format);
        if sample_type & u64::from(bindings::PERF_SAMPLE_READ) == 0 {
            // Nobody else can read the events, and no record shows what they say.
            read_format = u64::from(bindings::PERF_FORMAT_TOTAL_TIME_RUNNING | bindings::PERF_FORMAT_LOST);
        }
        let masks = attrs().map(|attr| [attr.sample_regs_user, attr.sample_regs_intr, attr.branch_sample_type]);
        let masks = masks.reduce(|all, one| [0, 1, 2].map(|at| all[at] | one[at])).unwrap_or_default();
        let stack = attrs().map(|attr| attr.sample_stack_user).max().unwrap_or_default();
        Self { sample_type, read_format, masks, stack }
    }

    /// Checks that there can be such a stack: the kernel has 16 bits for its size, and wants words
    /// (`perf_copy_attr`, kernel/events/core.c).
    fn check(&self) -> Result<(), Error> {
        let bytes = self.stack;
        let is_sampled = self.sample_type & u64::from(bindings::PERF_SAMPLE_STACK_USER) != 0;
        let is_possible = bytes < u16::MAX.into() && bytes.is_multiple_of(8);
        if !is_sampled || is_possible {
            return Ok(());
        }
        let rule = "it must be a multiple of 8, and at most 65528";
        let message = format!("no sample can have {bytes} bytes of the user's stack: {rule}");
        Err(Error::new(ErrorKind::InvalidInput, message))
    }

    fn layout(&self) -> Layout {
        let [user, interrupt, branches] = self.masks;
        Layout::new(self.sample_type, true, self.read_format).registers(user, interrupt).branches(branches)
    }

    fn tells_running(&self) -> bool {
        self.sample_type & u64::from(bindings::PERF_SAMPLE_READ) == 0
    }

    fn set(&self, attr: &mut perf_event_attr) {
        attr.sample_type = self.sample_type;
        attr.read_format = self.read_format;
        [attr.sample_regs_user, attr.sample_regs_intr, attr.branch_sample_type] = self.masks;
        attr.sample_stack_user = self.stack;
        attr.set_sample_id_all(1);
    }
}

fn set_wakeup(attr: &mut perf_event_attr, wakeup: Wakeup) {
    match wakeup {
        Wakeup::Bytes(bytes) => {
            attr.set_watermark(1);
            attr.wakeup_watermark = bytes;
        }
        Wakeup::Events(events) => {
            attr.set_watermark(0);
            attr.wakeup_events = events;
        }
    }
}

/// Leaves out the half of call chains that nobody asks for.
fn set_callchains(events: &mut [Planned], samples: &[Sample]) {
    let has = |sample| samples.contains(&Sample::Callchain) || samples.contains(&sample);
    let (user, kernel) = (has(Sample::CallchainUser), has(Sample::CallchainKernel));
    if user != kernel {
        for Planned { attr, .. } in events {
            attr.set_exclude_callchain_kernel((!kernel).into());
            attr.set_exclude_callchain_user((!user).into());
        }
    }
}

/// Asks for something more with each sample.
fn tell(attr: &mut perf_event_attr, sample: Sample) {
    attr.sample_type |= sample.bit();
    match sample {
        Sample::RegsUser(mask) => attr.sample_regs_user |= mask,
        Sample::RegsIntr(mask) => attr.sample_regs_intr |= mask,
        Sample::StackUser(bytes) => attr.sample_stack_user = attr.sample_stack_user.max(bytes),
        _ => {}
    }
}

/// Checks that no map is named twice.
fn check_maps(events: &[Planned]) -> Result<(), Error> {
    let mut seen: HashMap<u32, &Planned> = HashMap::new();
    for event in events {
        if let Some(&Array { id, .. }) = event.map.as_ref()
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

/// Checks that a reader would ever be woken: a ring keeps a byte free, and records are multiples of 8 bytes.
fn check_wakeup(wakeup: Wakeup, size: u64, record: u64) -> Result<(), Error> {
    let room = size - 8;
    // The kernel wakes when more than the watermark was written.
    let most = match wakeup {
        Wakeup::Bytes(_) => Wakeup::Bytes((room - 1) as u32),
        Wakeup::Events(_) => Wakeup::Events((room / record) as u32),
    };
    match (wakeup, most) {
        (Wakeup::Bytes(asked), Wakeup::Bytes(most)) | (Wakeup::Events(asked), Wakeup::Events(most))
            if (1..=most).contains(&asked) =>
        {
            Ok(())
        }
        _ => {
            let message = format!(
                "a ring of {size} bytes, with records of at least {record}, never has {wakeup} unread: at most {most}"
            );
            Err(Error::new(ErrorKind::InvalidInput, message))
        }
    }
}

/// Bytes of a ring: a power of two pages.
fn ring_bytes(size: Size, page: usize) -> Result<usize, Error> {
    let page = page as u64;
    let asked = match size {
        Size::Pages(pages) => pages.saturating_mul(page),
        Size::Bytes(bytes) => bytes,
    };
    let bytes = (1..=Ring::MAX).contains(&asked).then(|| asked.div_ceil(page).next_power_of_two() * page);
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| {
        let message = format!("a ring cannot have {asked} bytes: at least 1, at most {}", Ring::MAX);
        Error::new(ErrorKind::InvalidInput, message)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_a_power_of_two_pages() {
        for page in [4096, 16384, 65536] {
            let bytes = |size| ring_bytes(size, page).unwrap();
            assert_eq!(bytes(Size::Bytes(1)), page);
            assert_eq!(bytes(Size::Bytes(page as u64)), page);
            assert_eq!(bytes(Size::Bytes(page as u64 + 1)), 2 * page);
            assert_eq!(bytes(Size::Pages(3)), 4 * page);
            assert_eq!(bytes(Size::Pages(8)), 8 * page);
            assert_eq!(bytes(Size::Bytes(1 << 31)), 1 << 31);
        }
    }

    #[test]
    fn sizes_of_nothing_and_absurd_ones_are_refused() {
        for size in
            [Size::Bytes(0), Size::Pages(0), Size::Bytes((1 << 31) + 1), Size::Pages(u64::MAX), Size::Bytes(u64::MAX)]
        {
            let error = ring_bytes(size, 4096).unwrap_err();
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
