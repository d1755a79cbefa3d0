//! Opens a ring for every online CPU, and follows CPUs that come and go while their rings are read.

use crate::error::{Error, ErrorKind};
use crate::rings::control::Control;
use crate::rings::event_spec::EventSpec;
use crate::rings::opening::{self, OpenedRing};
use crate::rings::plan::Plan;
use crate::rings::producers;
use crate::rings::untraced::{Moment, UntracedCpus};
use crate::rings::{CpuRing, Rings, list_cpus, no_such_cpu};
use crate::sys::machine::{self, CpuList, CpuStays, OnlineCpus};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A CPU whose ring this crate opened.
#[derive(Debug)]
struct WatchedCpu {
    cpu: u32,
    /// The event that owns the ring. It may have stopped long ago.
    owner: Arc<OwnedFd>,
    /// Whether the CPU was online when last checked.
    online: bool,
    /// The stay of the CPU before its events were opened, if known.
    stay: Option<u64>,
}

/// Watches CPUs come and go.
///
/// When a CPU goes offline, the kernel stops its events for good and does not report it. The ring can still be read.
/// When the CPU comes back, new events are opened, which write into the same ring.
#[derive(Debug)]
struct Hotplug {
    plan: Plan,
    /// By CPU.
    watched: Vec<WatchedCpu>,
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
        let opened = cpus.iter().filter_map(|cpu| {
            // Before its events are opened, so that the first check notices what happens from here on.
            let stay = hotplug.stays.of(*cpu);
            OpenedRing::open(plan, *cpu).transpose().map(|opened| opened.map(|opened| (opened, stay)))
        });
        match opened.collect::<Result<Vec<_>, _>>() {
            Ok(opened) => break opened,
            // Then all over again, so that all rings have the same events. What was open is closed.
            Err(error) => skipped.push(plan.skip(error)?),
        }
    };
    // If something fails, this closes what is in it: slots are emptied first, then rings unmapped, then events closed.
    let mut rings = Rings::empty(plan.clock);
    rings.skipped = skipped;
    rings.sources = plan.events.iter().map(EventSpec::source).collect();
    rings.traced_threads = plan.target.threads()?;
    let mut all = Vec::new();
    for (OpenedRing { cpu_ring, owner, producers }, stay) in opened {
        hotplug.watch(cpu_ring.origin.cpu, Arc::clone(&owner), stay);
        all.extend(producers);
        let gate = producers::gate(cpu_ring.origin.cpu, owner);
        rings.add_ring(cpu_ring, gate)?;
    }
    if rings.cpu_rings.is_empty() {
        let online = machine::online_cpus().map_err(list_cpus)?;
        let message = format!("none of the CPUs {cpus:?} is online; these are: {online:?}");
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    // All at once, so that some CPUs are traced and others are not for a short time only.
    rings.control().producers().start(all)?;
    rings.started = rings.clock.now();
    let check = move |control: &_, cpu_rings: &mut _, new: &mut _, untraced: &mut _| {
        hotplug.check(control, cpu_rings, new, untraced)
    };
    rings.arrivals = Some(Box::new(check));
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

    /// Watches a CPU whose ring `owner` owns.
    fn watch(&mut self, cpu: u32, owner: Arc<OwnedFd>, stay: Option<u64>) {
        let (Ok(at) | Err(at)) = self.find(cpu);
        self.watched.insert(at, WatchedCpu { cpu, owner, online: true, stay });
    }

    /// Starts the events of CPUs that came back, and opens the rings of new ones. The first failure of each CPU is
    /// reported, the tenth, the hundredth and so on; all are tried again with every check.
    fn check(
        &mut self,
        control: &Control,
        cpu_rings: &mut [CpuRing],
        new: &mut Vec<CpuRing>,
        untraced: &mut UntracedCpus,
    ) -> Result<(), Error> {
        // Before anything is read: the next check finds what changes from here on.
        let now = Moment::now(self.plan.clock);
        // It changes once. If anything fails before all CPUs are checked, the next call checks them again.
        self.missing |= self.stays.may_have_changed();
        let listed = self.online.read(&mut self.list);
        let reported = std::mem::replace(&mut self.unlisted, listed.is_err());
        let (changed, last_traced) = match listed {
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
                Ok(at) => self.watched[at].check(stay, &self.plan, control, cpu_rings),
                Err(_) => self.open(cpu, stay, control, new),
            };
            // Asked anew: the CPU was not traced while its events were being opened.
            let is_now = Moment::now(self.plan.clock);
            match done {
                // Online for some time, and traced from now on.
                Ok(true) => untraced.was_late(cpu, last_traced, is_now),
                Ok(false) => untraced.end(is_now, |ended| ended == cpu),
                Err(error) if untraced.failed(cpu, last_traced) => failed = Err(error),
                Err(_) => {}
            }
        }
        let is_online = |cpu: &u32| self.list.cpus.binary_search(cpu).is_ok();
        // Nothing happens on a CPU that is offline.
        untraced.end(now, |cpu| !is_online(&cpu));
        for watched in &mut self.watched {
            watched.online &= is_online(&watched.cpu);
        }
        let runs = |cpu: &u32| self.find(*cpu).is_ok_and(|at| self.watched[at].online);
        self.missing = self.list.cpus.iter().any(|cpu| self.plan.wants(*cpu) && !runs(cpu));
        failed
    }

    /// The place of a CPU among the watched ones, or where to insert it.
    fn find(&self, cpu: u32) -> Result<usize, usize> {
        self.watched.binary_search_by_key(&cpu, |watched| watched.cpu)
    }

    /// Opens the ring of a CPU that never had one. Returns whether it is traced from now on.
    fn open(&mut self, cpu: u32, stay: Option<u64>, control: &Control, new: &mut Vec<CpuRing>) -> Result<bool, Error> {
        // Beside all watched CPUs: those that are offline now may come back.
        self.plan.check_slots(&[cpu], self.watched.iter().map(|watched| watched.cpu))?;
        let opened = match OpenedRing::open(&self.plan, cpu) {
            // The process or thread has ended. What it started may run on, and nothing lists that.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) && error.event().is_none() => {
                let message = format!("the process has ended, and what it started runs on: CPU {cpu} is not traced");
                let untraced =
                    || Error::new(ErrorKind::NotFound, message).because(io::Error::from_raw_os_error(libc::ESRCH));
                return if control.producers().have_ended() { Ok(false) } else { Err(untraced()) };
            }
            opened => opened?,
        };
        // The CPU may have gone again.
        let Some(OpenedRing { cpu_ring, owner, producers }) = opened else { return Ok(false) };
        // Watched only once its events run: otherwise the next check opens it anew.
        control.producers().add(producers::gate(cpu, Arc::clone(&owner)), producers)?;
        self.watch(cpu, owner, stay);
        new.push(cpu_ring);
        Ok(true)
    }
}

impl WatchedCpu {
    /// Opens the CPU's events again if they have stopped. Returns whether it did.
    fn check(
        &mut self,
        stay: Option<u64>,
        plan: &Plan,
        control: &Control,
        cpu_rings: &mut [CpuRing],
    ) -> Result<bool, Error> {
        // The CPU may also have adopted rings. Rings are sorted by CPU.
        let first = cpu_rings.partition_point(|cpu_ring| cpu_ring.origin.cpu < self.cpu);
        let is_ours = |cpu_ring: &&mut CpuRing| cpu_ring.ring.fd().is_some_and(|event| Arc::ptr_eq(event, &self.owner));
        // A stream that has as many rings as it can have does not take one more.
        let Some(cpu_ring) = cpu_rings[first..].iter_mut().find(is_ours) else {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("CPU {} has no ring: there are too many", self.cpu),
            ));
        };
        if plan.target.is_tasks() {
            // Events of threads go on when the CPU comes back.
            self.online = true;
            return Ok(false);
        }
        // Where nothing tells, the list alone does.
        let came_back = stay.is_some() && stay != self.stay;
        if self.online && !came_back {
            return Ok(false);
        }
        // Until its new events run, so that the next check tries again if they do not.
        (self.online, self.stay) = (false, stay);
        let Some((producers, sources)) = opening::reopen(plan, self.cpu, &self.owner)? else { return Ok(false) };
        let mut events = control.producers();
        events.stop(self.cpu);
        // This reads the count of the old events for the last time, so they are stopped before. If it cannot be read,
        // every later sum would be too small.
        cpu_ring.losses.count = cpu_ring.losses.read().map(|before| opening::count(&producers, before));
        events.start(producers)?;
        cpu_ring.origin = Arc::new(cpu_ring.origin.with(sources, cpu_ring.ring.written(), cpu_ring.oldest()));
        self.online = true;
        Ok(true)
    }
}
