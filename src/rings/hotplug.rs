//! Opens a ring for every online CPU, and follows CPUs that come and go while their rings are read.

use crate::error::{Error, ErrorKind};
use crate::rings::event_spec::EventSpec;
use crate::rings::opener::{Opener, Pause};
use crate::rings::opening::OpenedCpu;
use crate::rings::plan::Plan;
use crate::rings::producer::{self, Producer};
use crate::rings::untraced::Moment;
use crate::rings::{CpuRing, Rings, foreign, list_cpus, no_such_cpu};
use crate::sys::machine::{self, CpuList, CpuStays, OnlineCpus};
use perf_event_open_sys::bindings::PERF_TYPE_TRACEPOINT;
use std::io;

/// Watches CPUs come and go.
///
/// When a CPU goes offline, the kernel stops its events for good and does not report it. The ring can still be read.
/// When the CPU comes back, new events are opened, which write into the same ring.
#[derive(Debug)]
struct Hotplug {
    plan: Plan,
    /// By CPU.
    watched: Vec<OpenedCpu>,
    online: OnlineCpus,
    /// The CPUs that were online when last checked.
    list: CpuList,
    /// Which stay of a CPU this is: one may have gone and come back between two readings of the list.
    stays: CpuStays,
    /// When the online CPUs were last listed. All of them were traced then, except those that were reported.
    checked: Moment,
    /// Whether a listed CPU may have no running events: they could not be opened, the CPU had gone again, or it has
    /// perhaps gone and come back.
    missing: bool,
    /// Whether CPUs could not be listed, which was reported once.
    unlisted: bool,
}

/// Opens the rings of a machine.
pub(super) fn open(plan: Plan) -> Result<Rings, Error> {
    // Before CPUs are listed: the first check notices a CPU that comes, or goes and comes back, while rings are opened.
    let mut hotplug = Hotplug::new(plan)?;
    let plan = &mut hotplug.plan;
    let cpus = match &plan.cpus {
        Some(cpus) => cpus.clone(),
        None => machine::online_cpus().map_err(list_cpus)?,
    };
    let last = machine::possible_cpus().map_err(list_cpus)?.last().copied().unwrap_or(0);
    if let Some(&cpu) = cpus.iter().find(|cpu| **cpu > last) {
        return Err(no_such_cpu(cpu, last));
    }
    plan.check_slots(&cpus, std::iter::empty())?;
    plan.cpu_count = cpus.len();
    let mut skipped = Vec::new();
    let opened = loop {
        // The stay before its events are opened, so that the first check notices what happens from here on.
        let open = |cpu: &u32| OpenedCpu::open(plan, *cpu, hotplug.stays.of(*cpu)).transpose();
        match cpus.iter().filter_map(open).collect::<Result<Vec<_>, _>>() {
            Ok(opened) => break opened,
            // Then all over again, so that all rings have the same events. What was open is closed.
            Err(error) => skipped.push(plan.skip(error)?),
        }
    };
    // If something fails, the rings in it are unmapped first, then events closed.
    let mut rings = Rings::empty(plan.clock);
    rings.skipped = skipped;
    rings.sources = plan.events.iter().map(EventSpec::source).collect();
    rings.traced_threads = plan.target.threads()?;
    (rings.cpu_rings, hotplug.watched) = opened.into_iter().unzip();
    if rings.cpu_rings.is_empty() {
        let online = machine::online_cpus().map_err(list_cpus)?;
        let message = format!("none of the CPUs {cpus:?} is online; these are: {online:?}");
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    // All at once, so that some CPUs are traced and others are not for a short time only.
    producer::start(hotplug.watched.iter_mut().flat_map(|watched| &mut watched.producers), &[])?;
    rings.started = rings.clock.now();
    rings.opened_by(hotplug);
    Ok(rings)
}

impl Hotplug {
    /// Begins to watch. No CPU is listed yet, so the first check checks every CPU.
    fn new(plan: Plan) -> Result<Self, Error> {
        let online = OnlineCpus::open().map_err(list_cpus)?;
        // Before CPUs are listed: `Untraced` says how long it lasted at most.
        let checked = Moment::now(plan.clock);
        let stays = CpuStays::open().map_err(list_cpus)?;
        let (watched, list) = (Vec::new(), CpuList::new());
        Ok(Self { plan, watched, online, list, stays, checked, missing: false, unlisted: false })
    }

    /// The place of a CPU among the watched ones, or where to insert it.
    fn find(&self, cpu: u32) -> Result<usize, usize> {
        self.watched.binary_search_by_key(&cpu, |watched| watched.cpu)
    }

    /// Opens the ring of a CPU that never had one. Returns whether it is traced from now on.
    fn open(&mut self, cpu: u32, stay: Option<u64>, new: &mut Vec<CpuRing>, pauses: &[Pause]) -> Result<bool, Error> {
        // Beside all watched CPUs: those that are offline now may come back.
        self.plan.check_slots(&[cpu], self.watched.iter().map(|watched| watched.cpu))?;
        let opened = match OpenedCpu::open(&self.plan, cpu, stay) {
            // The process or thread has ended. What it started may run on, and nothing lists that.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) && error.event().is_none() => {
                let message = format!("the process has ended, and what it started runs on: CPU {cpu} is not traced");
                let untraced =
                    || Error::new(ErrorKind::NotFound, message).because(io::Error::from_raw_os_error(libc::ESRCH));
                return if self.producers().all(Producer::has_ended) { Ok(false) } else { Err(untraced()) };
            }
            opened => opened?,
        };
        // The CPU may have gone again.
        let Some((cpu_ring, mut opened)) = opened else { return Ok(false) };
        // Before its events start, so that none of them writes during a pause.
        if pauses.contains(&Pause::Output) {
            opened.pause(Pause::Output, true)?;
        }
        // Watched only once its events run: otherwise the next check opens it anew.
        producer::start(opened.producers.iter_mut(), pauses)?;
        let (Ok(at) | Err(at)) = self.find(cpu);
        self.watched.insert(at, opened);
        new.push(cpu_ring);
        Ok(true)
    }

    /// All that writes into the rings.
    fn producers(&self) -> impl Iterator<Item = &Producer> {
        self.watched.iter().flat_map(|watched| &watched.producers)
    }
}

impl Opener for Hotplug {
    fn pause(&mut self, how: Pause, paused: bool) -> Result<(), Error> {
        self.watched.iter_mut().fold(Ok(()), |turned, watched| turned.and(watched.pause(how, paused)))
    }

    /// Starts the events of CPUs that came back, and opens the rings of new ones. The first failure of each CPU is
    /// reported, the tenth, the hundredth and so on; all are tried again with every check.
    fn follow(&mut self, rings: &mut Rings, new: &mut Vec<CpuRing>, pauses: &[Pause]) -> Result<(), Error> {
        let Rings { cpu_rings, untraced, .. } = rings;
        // Before anything is read: the next check finds what changes from here on.
        let now = Moment::now(self.plan.clock);
        // It changes once. If anything fails before all CPUs are checked, the next call checks them again.
        self.missing |= self.stays.may_have_changed();
        let listed = self.online.read(&mut self.list);
        let reported = std::mem::replace(&mut self.unlisted, listed.is_err());
        let (changed, well) = match listed {
            Err(errno) if !reported => return Err(list_cpus(errno)),
            Err(_) => (false, self.checked),
            Ok(changed) => (changed, std::mem::replace(&mut self.checked, now)),
        };
        if !changed && !self.missing {
            return Ok(());
        }
        let mut failed = Ok(());
        self.plan.cpu_count = self.list.cpus.len();
        for at in 0..self.list.cpus.len() {
            let cpu = self.list.cpus[at];
            if !self.plan.wants(cpu) {
                continue;
            }
            // Before its events are opened.
            let stay = self.stays.of(cpu);
            let done = match self.find(cpu) {
                Ok(at) => self.watched[at].check(stay, &self.plan, cpu_rings, pauses),
                Err(_) => self.open(cpu, stay, new, pauses),
            };
            // Asked anew: the CPU was not traced while its events were being opened.
            let is_now = Moment::now(self.plan.clock);
            match done {
                // Online for some time, and traced from now on.
                Ok(true) => untraced.was_late(cpu, well, is_now),
                Ok(false) => untraced.well(is_now, |well| well == cpu),
                Err(error) if untraced.failed(cpu, well) => failed = Err(error),
                Err(_) => {}
            }
        }
        let is_online = |cpu: &u32| self.list.cpus.binary_search(cpu).is_ok();
        // Nothing happens on a CPU that is offline.
        untraced.well(now, |cpu| !is_online(&cpu));
        for watched in &mut self.watched {
            watched.online &= is_online(&watched.cpu);
        }
        let runs = |cpu: &u32| self.find(*cpu).is_ok_and(|at| self.watched[at].online);
        self.missing = self.list.cpus.iter().any(|cpu| self.plan.wants(*cpu) && !runs(cpu));
        failed
    }

    fn foreign_programs(&self) -> Result<Vec<Error>, Error> {
        let tracepoints = self.plan.events.iter().filter(|event| event.attr.type_ == PERF_TYPE_TRACEPOINT);
        foreign::programs(tracepoints.map(|event| &*event.name).collect(), self.producers())
    }

    fn stop(&mut self) {
        self.watched.iter_mut().flat_map(|watched| &mut watched.producers).for_each(Producer::stop);
    }
}
