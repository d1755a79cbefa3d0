//! Opening a ring for every online CPU.

use crate::error::{Error, ErrorKind};
use crate::rings::control::{Control, Gate};
use crate::rings::cpu_ring::CpuRing;
use crate::rings::event_attr;
use crate::rings::event_spec::RingEvent;
use crate::rings::hotplug::Hotplug;
use crate::rings::options::RingOptions;
use crate::rings::plan::Plan;
use crate::rings::untraced::UntracedCpus;
use crate::rings::{Lane, Rings, list_cpus, no_such_cpu};
use crate::sys::{machine, perf};
use std::sync::Arc;

/// Opens the rings that are asked for. `backward`: the kernel writes them backwards, over what is oldest.
pub(super) fn open(options: RingOptions, backward: bool) -> Result<Rings, Error> {
    // Before CPUs are listed: one that comes, or goes and comes back, while rings are opened is noticed by the first check.
    let mut hotplug = Hotplug::new(Plan::new(options, backward)?)?;
    let plan = &mut hotplug.plan;
    if plan.tells_losses() && refuses_losses(plan) {
        plan.without_losses();
    }
    let cpus = match &plan.cpus {
        Some(cpus) => cpus.clone(),
        None => machine::online_cpus().map_err(list_cpus)?,
    };
    let last = machine::possible_cpus().map_err(list_cpus)?.last().copied().unwrap_or(0);
    if let Some(&cpu) = cpus.iter().find(|cpu| **cpu > last) {
        return Err(no_such_cpu(cpu, last));
    }
    plan.check_slots(&cpus, std::iter::empty())?;
    let mut skipped = Vec::new();
    let opened = loop {
        match open_cpus(plan, &cpus) {
            Ok(opened) => break opened,
            Err(error) => skipped.push(plan.skip(error)?),
        }
    };
    // Closes whatever is in it if something fails: slots are emptied first, then rings unmapped, then events closed.
    let mut rings = Rings::empty(plan.clock);
    rings.skipped = skipped;
    rings.others = plan.events.iter().find(|event| !event.is_bpf_output()).map(|event| Arc::clone(&event.name));
    rings.sources = plan.events.iter().map(RingEvent::source).collect();
    let mut all = Vec::new();
    for CpuRing { lane, owner, outlets } in opened {
        hotplug.watch(lane.origin.cpu, Arc::clone(&owner));
        all.extend(outlets);
        rings.open_lane(lane, Gate::Event(owner))?;
    }
    if rings.is_empty() {
        let online = machine::online_cpus().map_err(list_cpus)?;
        let message = format!("none of the CPUs {cpus:?} is online; these are: {online:?}");
        return Err(Error::new(ErrorKind::Cpu, message));
    }
    // Only now, so that the time in which some CPUs are traced and others are not is short.
    rings.control().outlets().start(all)?;
    let (started, news) = (rings.clock.now(), hotplug.news());
    let arrivals = move |control: &Control, lanes: &mut [Lane], new: &mut Vec<Lane>, untraced: &mut UntracedCpus| {
        hotplug.check(control, lanes, new, untraced)
    };
    rings.set_arrivals(Box::new(arrivals), news, started);
    Ok(rings)
}

/// Opens and maps the rings of these CPUs, as far as they are online.
fn open_cpus(plan: &Plan, cpus: &[u32]) -> Result<Vec<CpuRing>, Error> {
    cpus.iter().filter_map(|cpu| CpuRing::open(plan, *cpu, cpus.len()).transpose()).collect()
}

/// Whether the kernel is too old for `PERF_FORMAT_LOST`: it refuses a plain event that asks for it.
fn refuses_losses(plan: &Plan) -> bool {
    let mut attr = event_attr::harmless();
    attr.read_format = plan.events.first().map_or(0, |event| event.attr.read_format);
    perf::open_own(&attr).is_err_and(|errno| errno.raw_os_error() == Some(libc::EINVAL))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_open_is_an_error() {
        let error = RingOptions::new().open().unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().starts_with("nothing to open"), "{error}");
    }

    #[test]
    fn a_tracepoint_without_category_is_an_error_that_says_so() {
        let error = RingOptions::new().tracepoint("sched_switch").open().unwrap_err();
        assert!(error.to_string().contains("category:name"), "{error}");
    }
}
