//! Opens a ring for every online CPU, and follows CPUs that come and go while their rings are read.

use crate::error::{Error, ErrorKind};
use crate::rings::control::{Control, ProducerGate};
use crate::rings::opening::{self, OpenedRing};
use crate::rings::plan::Plan;
use crate::rings::ring_event::RingEvent;
use crate::rings::untraced::{Moment, UntracedCpus};
use crate::rings::{CpuRing, Rings, list_cpus, no_such_cpu};
use crate::sys::machine::{self, CpuEvents, CpuList, Message, OnlineCpus};
use crate::sys::perf;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A CPU whose ring this crate opened.
#[derive(Debug)]
struct WatchedCpu {
    cpu: u32,
    /// The event that owns the ring. It may have stopped long ago.
    owner: Arc<OwnedFd>,
    /// The first of the events that write into the ring now.
    first: Arc<OwnedFd>,
    /// Whether the CPU was online when last checked.
    online: bool,
    /// Whether the CPU may have gone and come back since.
    suspect: bool,
    /// Whether the kernel has said since that it went.
    went: bool,
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
    /// The kernel's messages about CPUs that come, or that went and came back since the last check. `None` if they do
    /// not reach this process.
    events: Option<CpuEvents>,
    /// The CPUs that came online since the last check, as the kernel's messages say, though their events ran no more or
    /// never had. Those that have gone again by now are in no list.
    came: Vec<u32>,
    /// When the online CPUs were last listed. All of them were traced then, except those that were reported.
    checked: Moment,
    /// Whether a listed CPU may have no running events: they could not be opened, or the CPU had gone again.
    missing: bool,
    /// Whether CPUs could not be listed, which was reported once.
    unlisted: bool,
}

/// How many of the kernel's messages one check reads. More wait for the next check, so that a flood of messages keeps
/// no thread busy.
const MOST_MESSAGES: usize = 256;

/// Opens the rings of a machine. `backward`: the kernel writes them backwards, over the oldest records.
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
        let opened = cpus.iter().filter_map(|cpu| OpenedRing::open(plan, *cpu).transpose());
        match opened.collect::<Result<Vec<_>, _>>() {
            Ok(opened) => break opened,
            // Then all over again, so that all rings have the same events. What was open is closed.
            Err(error) => skipped.push(plan.skip(error)?),
        }
    };
    // If something fails, this closes what is in it: slots are emptied first, then rings unmapped, then events closed.
    let mut rings = Rings::empty(plan.clock);
    rings.skipped = skipped;
    rings.others = plan.events.iter().find(|event| !event.is_bpf_output()).map(|event| Arc::clone(&event.name));
    rings.sources = plan.events.iter().map(RingEvent::source).collect();
    rings.traced_threads = plan.target.threads()?;
    let mut all = Vec::new();
    for OpenedRing { cpu_ring, owner, producers } in opened {
        hotplug.watch(cpu_ring.origin.cpu, Arc::clone(&owner));
        all.extend(producers);
        rings.add_ring(cpu_ring, ProducerGate::Event(owner))?;
    }
    if rings.is_empty() {
        let online = machine::online_cpus().map_err(list_cpus)?;
        let message = format!("none of the CPUs {cpus:?} is online; these are: {online:?}");
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    // All at once, so that some CPUs are traced and others are not for a short time only.
    rings.control().producers().start(all)?;
    let news = hotplug.events.as_ref().map(|events| Arc::clone(events.socket()));
    let started = rings.clock.now();
    let check = move |control: &_, cpu_rings: &mut _, new: &mut _, untraced: &mut _| {
        hotplug.check(control, cpu_rings, new, untraced)
    };
    rings.set_arrivals(Box::new(check), news, started);
    Ok(rings)
}

impl Hotplug {
    /// Begins to watch. No CPU is listed yet, so the first check checks every CPU.
    fn new(plan: Plan) -> Result<Self, Error> {
        let online = OnlineCpus::open().map_err(list_cpus)?;
        // Before CPUs are listed: `Untraced` says how long it lasted at most.
        let checked = Moment::now(plan.clock);
        let events = match CpuEvents::open() {
            Ok(events) => Some(events),
            Err(errno) if matches!(errno.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                return Err(list_cpus(errno));
            }
            Err(_) => None,
        };
        let (watched, came, list) = (Vec::new(), Vec::new(), CpuList::new());
        Ok(Self { plan, watched, online, list, events, came, checked, missing: false, unlisted: false })
    }

    /// Watches a CPU whose ring `owner` owns.
    fn watch(&mut self, cpu: u32, owner: Arc<OwnedFd>) {
        let (Ok(at) | Err(at)) = self.find(cpu);
        // The owner is the first of them, except for threads, for which nobody asks whether it runs.
        let first = Arc::clone(&owner);
        self.watched.insert(at, WatchedCpu { cpu, owner, first, online: true, suspect: false, went: false });
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
        self.take_messages();
        let listed = self.online.read(&mut self.list);
        let is_listed = listed.is_ok();
        let reported = std::mem::replace(&mut self.unlisted, !is_listed);
        let (changed, well) = match listed {
            Err(errno) if !reported => return Err(list_cpus(errno)),
            Err(_) => (false, self.checked),
            Ok(changed) => (changed, std::mem::replace(&mut self.checked, now)),
        };
        if !changed && !self.missing && self.came.is_empty() {
            return Ok(());
        }
        let mut failed = Ok(());
        self.plan.cpu_count = self.list.cpus.len();
        for at in 0..self.list.cpus.len() {
            let cpu = self.list.cpus[at];
            if !self.plan.wants(cpu) {
                continue;
            }
            let done = match self.find(cpu) {
                Ok(at) => self.watched[at].check(&self.plan, control, cpu_rings),
                Err(_) => self.open(cpu, control, new),
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
        // Without a list nobody knows which have gone again. The messages are kept until there is one.
        if is_listed {
            self.report_short_stays(control, untraced, well);
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

    /// Reports CPUs that were online for some time, and gone before anything could be opened.
    fn report_short_stays(&mut self, control: &Control, untraced: &mut UntracedCpus, well: Moment) {
        let now = Moment::now(self.plan.clock);
        let mut came = std::mem::take(&mut self.came);
        // One may have come several times, and is reported once.
        came.sort_unstable();
        came.dedup();
        for cpu in came {
            // The time of one that is untraced already ends as for any that is offline.
            let is_online = self.list.cpus.binary_search(&cpu).is_ok();
            if !is_online && !untraced.is_untraced(cpu) && self.misses(cpu, control) {
                untraced.was_late(cpu, well, now);
            }
        }
        self.watched.iter_mut().for_each(|watched| watched.went = false);
    }

    /// Takes what the kernel says of CPUs: which to look at again, and which came.
    fn take_messages(&mut self) {
        for message in self.events.iter().flat_map(CpuEvents::drain).take(MOST_MESSAGES) {
            match message {
                // The message may also be about a coming that the last check has seen in the list.
                Message::Came(cpu) if self.find(cpu).is_ok_and(|at| self.watched[at].is_on()) => {}
                Message::Came(cpu) => self.came.push(cpu),
                Message::Dropped => {
                    // Any CPU may have come and gone: those that have a ring, and those that never had one.
                    self.came.extend(self.watched.iter().map(|watched| watched.cpu).chain(machine::present_cpus()));
                }
                _ => {}
            }
            for watched in self.watched.iter_mut().filter(|watched| message.may_be_about(watched.cpu)) {
                watched.suspect = true;
                watched.went |= matches!(message, Message::Went(_));
                // A message comes once. If anything fails before all CPUs are checked, the next call checks them again.
                self.missing = true;
            }
        }
    }

    /// Whether what happens on a CPU that comes is lost until its events are opened. Events of threads go on.
    fn misses(&self, cpu: u32, control: &Control) -> bool {
        let goes_on = || self.plan.target.is_tasks() && (self.find(cpu).is_ok() || control.producers().have_ended());
        self.plan.wants(cpu) && !goes_on()
    }

    /// The place of a CPU among the watched ones, or where to insert it.
    fn find(&self, cpu: u32) -> Result<usize, usize> {
        self.watched.binary_search_by_key(&cpu, |watched| watched.cpu)
    }

    /// Opens the ring of a CPU that never had one. Returns whether it is traced from now on.
    fn open(&mut self, cpu: u32, control: &Control, new: &mut Vec<CpuRing>) -> Result<bool, Error> {
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
        control.producers().add(cpu, ProducerGate::Event(Arc::clone(&owner)), producers)?;
        self.watch(cpu, owner);
        new.push(cpu_ring);
        Ok(true)
    }
}

impl WatchedCpu {
    /// Whether the CPU was online when last checked, and has not gone since, as far as the kernel has said.
    fn is_on(&self) -> bool {
        self.online && !self.went
    }

    /// Opens the CPU's events again if they have stopped. Returns whether it did.
    fn check(&mut self, plan: &Plan, control: &Control, cpu_rings: &mut [CpuRing]) -> Result<bool, Error> {
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
        // Only if a message says so, because to ask interrupts the CPU.
        let died = std::mem::take(&mut self.suspect) && self.has_died(plan);
        if self.online && !died {
            return Ok(false);
        }
        // Until its new events run, so that the next check tries again if they do not.
        self.online = false;
        let Some((producers, sources)) = opening::reopen(plan, self.cpu, &self.owner)? else { return Ok(false) };
        let new: Vec<_> = producers.iter().map(|producer| Arc::clone(&producer.event)).collect();
        let Some(first) = new.first().cloned() else { return Ok(false) };
        let mut events = control.producers();
        events.stop(self.cpu);
        // This reads the count of the old events for the last time, so they are stopped before.
        cpu_ring.losses.change(new);
        events.start(producers)?;
        cpu_ring.origin = Arc::new(cpu_ring.origin.with(sources, cpu_ring.ring.written(), cpu_ring.oldest()));
        (self.first, self.online) = (first, true);
        Ok(true)
    }

    /// Whether the events stopped with their CPU, which has come back since. This interrupts the CPU.
    fn has_died(&self, plan: &Plan) -> bool {
        // The events of a control group also pause while none of its processes runs. There only the kernel's message
        // tells.
        let tells = plan.target.is_machine() && plan.reads_running();
        let stands_still = || perf::is_running(self.first.as_fd()).is_ok_and(|runs| !runs);
        if tells { stands_still() } else { !plan.target.is_machine() }
    }
}
