//! Opening a ring for every online CPU, and for those that come online later.

use crate::error::{Error, ErrorKind, hint};
use crate::record::{Origin, Sources};
use crate::ring::Ring;
use crate::rings::control::{Control, Gate, Outlet, Slot};
use crate::rings::options::RingOptions;
use crate::rings::plan::Plan;
use crate::rings::planned::Planned;
use crate::rings::untraced::{Moment, UntracedCpus};
use crate::rings::whom::{Numbered, Opened};
use crate::rings::{Counter, Lane, Rings, lanes, refusal};
use crate::sys::machine::{self, CpuEvents, CpuList, OnlineCpus};
use crate::sys::perf;
use nix::sys::resource::Resource;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

impl Rings {
    /// Options to open rings with.
    pub fn options() -> RingOptions {
        RingOptions::new()
    }
}

impl RingOptions {
    /// Opens and maps a ring on every online CPU, and starts the events.
    ///
    /// CPUs that are offline (`ENODEV`) are skipped; a [`Reader`](crate::Reader) opens their rings when they come
    /// online. If anything fails, everything opened so far is closed again.
    ///
    /// # Errors
    /// [`ErrorKind`] says what helps: a privilege, a limit, another name, another kernel, a later try.
    ///
    /// This crate also refuses what the kernel takes but could never be read. [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): an event that
    /// writes nothing, a map that is named twice, two settings that exclude each other, a wake-up that would never come, an
    /// attribute with a pointer in it, a size of zero or more than 2 GiB. [`ErrorKind::Map`](crate::ErrorKind::Map): a map without a slot for a CPU, or
    /// with one slot for two. [`ErrorKind::Cpu`](crate::ErrorKind::Cpu): a CPU that the machine can never have, or no requested CPU is online.
    pub fn open(self) -> Result<Rings, Error> {
        open(Plan::new(self, false)?)
    }
}

/// Opens what is planned.
pub(crate) fn open(plan: Plan) -> Result<Rings, Error> {
    // Before CPUs are listed: one that comes, or goes and comes back, while rings are opened is noticed by the first check.
    let mut watch = Watch::new(plan)?;
    if watch.plan.tells_losses() && refuses_losses(&watch.plan) {
        watch.plan.without_losses();
    }
    let cpus = match &watch.plan.cpus {
        Some(cpus) => cpus.clone(),
        None => machine::online_cpus().map_err(list_cpus)?,
    };
    let last = machine::possible_cpus().map_err(list_cpus)?.last().copied().unwrap_or(0);
    if let Some(&cpu) = cpus.iter().find(|cpu| **cpu > last) {
        return Err(lanes::no_such_cpu(cpu, last));
    }
    watch.plan.check_slots(&cpus, std::iter::empty())?;
    let mut skipped = Vec::new();
    let arrivals = loop {
        match open_cpus(&watch.plan, &cpus) {
            Ok(arrivals) => break arrivals,
            Err(error) => skipped.push(watch.plan.skip(error)?),
        }
    };
    let plan = &watch.plan;
    // Closes whatever is in it if something fails: slots are emptied first, then rings unmapped, then events closed.
    let mut rings = Rings::empty(plan.clock);
    rings.set_skipped(skipped);
    rings.set_others(plan.events.iter().find(|event| !event.is_bpf_output()).map(|event| Arc::clone(&event.name)));
    rings.set_sources(plan.events.iter().map(Planned::source).collect());
    let mut outlets = Vec::new();
    let mut stations = Vec::new();
    for arrival in arrivals {
        stations.push(arrival.station);
        outlets.extend(arrival.outlets);
        rings.open_lane(arrival.lane, arrival.gate)?;
    }
    if rings.is_empty() {
        let online = machine::online_cpus().map_err(list_cpus)?;
        let message = format!("none of the CPUs {cpus:?} is online; these are: {online:?}");
        return Err(Error::new(ErrorKind::Cpu, message));
    }
    // Only now, so that the time in which some CPUs are traced and others are not is short.
    rings.control().outlets().start(outlets)?;
    let started = plan.clock.now();
    watch.stations = stations;
    let news = watch.events.as_ref().map(|events| Arc::clone(events.socket()));
    let arrivals = move |control: &Control, lanes: &mut [Lane], new: &mut Vec<Lane>, untraced: &mut UntracedCpus| {
        watch.check(control, lanes, new, untraced)
    };
    rings.set_arrivals(Box::new(arrivals), news, started);
    Ok(rings)
}

fn list_cpus(errno: io::Error) -> Error {
    Error::system("list CPUs", errno)
}

/// Whether the kernel is too old for `PERF_FORMAT_LOST`: it refuses a plain event that asks for it.
fn refuses_losses(plan: &Plan) -> bool {
    let mut attr = refusal::harmless();
    attr.read_format = plan.events.first().map_or(0, |event| event.attr.read_format);
    // Of this very process, in user space: what nearly anybody may open.
    perf::open_own(&attr).is_err_and(|errno| errno.raw_os_error() == Some(libc::EINVAL))
}

/// A CPU's ring and all that writes into it, opened and not yet started.
struct Arrival {
    // In the order in which they are dropped.
    lane: Lane,
    gate: Gate,
    outlets: Vec<Outlet>,
    station: Station,
}

/// Opens and maps the rings of these CPUs, as far as they are online.
fn open_cpus(plan: &Plan, cpus: &[u32]) -> Result<Vec<Arrival>, Error> {
    cpus.iter().filter_map(|cpu| open_cpu(plan, *cpu, cpus.len()).transpose()).collect()
}

/// Opens and maps the ring of one CPU, of `cpus` that are to have one; `None` if it is offline.
fn open_cpu(plan: &Plan, cpu: u32, cpus: usize) -> Result<Option<Arrival>, Error> {
    let Some(Opened { events, owner }) = plan.target.open(&plan.events, cpu, cpus)? else { return Ok(None) };
    let ring = map(plan, cpu, Arc::clone(&owner), cpus)?;
    let (outlets, sources) = join(plan, cpu, events, &owner)?;
    let losses = match plan.tells_losses() {
        true => Counter::Events { events: outlets.iter().map(|outlet| Arc::clone(&outlet.event)).collect(), before: 0 },
        false => Counter::Unknown,
    };
    let lane = Lane::new(ring, Origin::new(cpu, plan.layout, sources), losses);
    let station = Station { cpu, owner: Arc::clone(&owner), first: Arc::clone(&owner), online: true, suspect: false };
    Ok(Some(Arrival { lane, gate: Gate::Event(owner), outlets, station }))
}

fn map(plan: &Plan, cpu: u32, event: Arc<OwnedFd>, cpus: usize) -> Result<Ring, Error> {
    let bytes = plan.page + plan.bytes;
    let mapped = if plan.backward {
        Ring::map_backward(event, plan.page, plan.bytes)
    } else {
        Ring::map(event, plan.page, plan.bytes)
    };
    mapped.map_err(|error| {
        let Some(errno) = error.raw_os_error() else { return error };
        let (hint, errno) = (hint_of_map(errno, bytes, cpus), error.into_source());
        let kind = match errno.raw_os_error() {
            // More locked memory than is allowed.
            Some(libc::EPERM) => ErrorKind::Limit,
            _ => ErrorKind::of(&errno),
        };
        let message = format!("cannot map a ring of {bytes} bytes for CPU {cpu}");
        Error::new(kind, message).because(errno).hinting(hint)
    })
}

/// What helps when a ring cannot be mapped.
fn hint_of_map(errno: i32, bytes: usize, cpus: usize) -> String {
    match errno {
        libc::EPERM => format!(
            "{cpus} rings of {} KiB are more than kernel.perf_event_mlock_kb, {} for each CPU and shared by the user's \
             processes, and RLIMIT_MEMLOCK, {} KiB, allow without CAP_IPC_LOCK",
            bytes >> 10,
            hint::setting("kernel/perf_event_mlock_kb"),
            hint::limit(Resource::RLIMIT_MEMLOCK) >> 10,
        ),
        libc::ENOMEM => format!("{cpus} rings of {} KiB are asked for", bytes >> 10),
        _ => String::new(),
    }
}

/// Makes all events write into the ring of `owner`. Gives the ids by which their records name them.
fn join(plan: &Plan, cpu: u32, events: Vec<Numbered>, owner: &Arc<OwnedFd>) -> Result<(Vec<Outlet>, Sources), Error> {
    let mut outlets = Vec::new();
    let mut sources = Sources::new();
    for (index, event) in events {
        let planned = &plan.events[index];
        let control = |what| {
            let event = &planned.name;
            move |errno| Error::control(what, event, cpu, errno)
        };
        if !Arc::ptr_eq(&event, owner) {
            perf::set_output(event.as_fd(), owner.as_fd()).map_err(control("redirect"))?;
        }
        sources.push((perf::id(event.as_fd()).map_err(control("identify"))?, index));
        let slot = planned.map.as_ref().map(|map| Slot { map: Arc::clone(&map.fd), index: (plan.slot)(cpu) });
        outlets.push(Outlet { cpu, name: Arc::clone(&planned.name), event, slot, set: false });
    }
    Ok((outlets, sources))
}

/// A CPU whose ring was opened here.
#[derive(Debug)]
struct Station {
    cpu: u32,
    /// The event whose ring it is, which may be long dead.
    owner: Arc<OwnedFd>,
    /// The first of the events that write into it now.
    first: Arc<OwnedFd>,
    /// Whether the CPU was online when last checked.
    online: bool,
    /// Whether the CPU may have gone and come back since.
    suspect: bool,
}

/// Watches CPUs come and go.
///
/// When a CPU goes offline, the kernel stops its events for good and reports it to no one. The ring can be read on.
/// When the CPU comes back, new events are opened, and write into the same ring.
#[derive(Debug)]
struct Watch {
    plan: Plan,
    /// By CPU.
    stations: Vec<Station>,
    online: OnlineCpus,
    /// The CPUs that were online when last checked.
    list: CpuList,
    /// The kernel's messages about CPUs that come, or that went and came back in between. `None` where the kernel has
    /// none, or they do not reach us.
    events: Option<CpuEvents>,
    /// When it was last known which CPUs are online, and that all of them are traced, but for those of which it was said.
    checked: Moment,
    /// Whether a CPU that was listed has no events that run: they could not be opened, or it was gone again by then. Or that cannot be
    /// told yet.
    missing: bool,
    /// Whether CPUs could not be listed, which was said once.
    unlisted: bool,
}

/// How many of the kernel's messages one check reads. More wait for the next check, so that a flood of messages keeps
/// no thread busy.
const MOST_MESSAGES: usize = 256;

impl Watch {
    /// Begins to watch. Nothing is listed yet, so the first check looks at every CPU.
    fn new(plan: Plan) -> Result<Self, Error> {
        let online = OnlineCpus::open().map_err(list_cpus)?;
        let checked = Moment::now(plan.clock);
        let events = match CpuEvents::open() {
            Ok(events) => Some(events),
            Err(errno) if matches!(errno.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                return Err(list_cpus(errno));
            }
            Err(_) => None,
        };
        Ok(Self {
            plan,
            stations: Vec::new(),
            online,
            list: CpuList::new(),
            events,
            checked,
            missing: false,
            unlisted: false,
        })
    }

    /// Starts the events of CPUs that came back, and opens the rings of new ones. The first failure of each CPU is
    /// reported, the tenth, the hundredth and so on; all are tried again with every check.
    fn check(
        &mut self,
        control: &Control,
        lanes: &mut [Lane],
        new: &mut Vec<Lane>,
        untraced: &mut UntracedCpus,
    ) -> Result<(), Error> {
        // Before anything is asked: what changes from here on is found by the next check.
        let now = Moment::now(self.plan.clock);
        let mut suspect = false;
        for message in self.events.iter().flat_map(CpuEvents::drain).take(MOST_MESSAGES) {
            for station in self.stations.iter_mut().filter(|station| message.may_be_about(station.cpu)) {
                station.suspect = true;
                suspect = true;
            }
        }
        // A message comes once: whatever fails before all CPUs are looked at, they are looked at again.
        self.missing |= suspect;
        let listed = self.online.read(&mut self.list);
        let said = std::mem::replace(&mut self.unlisted, listed.is_err());
        let (changed, well) = match listed {
            Err(errno) if !said => return Err(list_cpus(errno)),
            Err(_) => (false, self.checked),
            Ok(changed) => (changed, std::mem::replace(&mut self.checked, now)),
        };
        if !changed && !self.missing {
            return Ok(());
        }
        let mut failed = Ok(());
        let cpus = self.list.cpus.len();
        for at in 0..cpus {
            let cpu = self.list.cpus[at];
            if !self.plan.wants(cpu) {
                continue;
            }
            let done = match self.stations.binary_search_by_key(&cpu, |station| station.cpu) {
                Ok(at) => self.stations[at].check(&self.plan, control, lanes, cpus),
                Err(at) => self.open(cpu, at, control, new, cpus),
            };
            match done {
                Ok(()) => untraced.well(Moment::now(self.plan.clock), |well| well == cpu),
                Err(error) if untraced.failed(cpu, well) => failed = Err(error),
                Err(_) => {}
            }
        }
        let is_online = |cpu: &u32| self.list.cpus.binary_search(cpu).is_ok();
        // Nothing happens on a CPU that is offline.
        untraced.well(now, |cpu| !is_online(&cpu));
        for station in &mut self.stations {
            station.online &= is_online(&station.cpu);
        }
        let runs = |cpu: &u32| {
            let at = self.stations.binary_search_by_key(cpu, |station| station.cpu);
            at.is_ok_and(|at| self.stations[at].online)
        };
        self.missing = self.list.cpus.iter().any(|cpu| self.plan.wants(*cpu) && !runs(cpu));
        failed
    }

    /// Opens the ring of a CPU that never had one.
    fn open(&mut self, cpu: u32, at: usize, control: &Control, new: &mut Vec<Lane>, cpus: usize) -> Result<(), Error> {
        // Also those of CPUs that are offline now and may come back.
        self.plan.check_slots(&[cpu], self.stations.iter().map(|station| station.cpu))?;
        // Gone again, perhaps: then there is nothing to open.
        let opened = match open_cpu(&self.plan, cpu, cpus) {
            // All that was traced has ended.
            Err(error) if error.kind() == ErrorKind::NotFound && error.event().is_none() => return Ok(()),
            opened => opened?,
        };
        let Some(Arrival { lane, gate, outlets, station }) = opened else { return Ok(()) };
        control.outlets().arrive(cpu, gate, outlets)?;
        self.stations.insert(at, station);
        new.push(lane);
        Ok(())
    }
}

impl Station {
    /// Opens the CPU's events anew if they died.
    fn check(&mut self, plan: &Plan, control: &Control, lanes: &mut [Lane], cpus: usize) -> Result<(), Error> {
        // A CPU may have others, that were adopted. Lanes are in the order of CPUs.
        let first = lanes.partition_point(|lane| lane.origin.cpu < self.cpu);
        let is_ours = |lane: &&mut Lane| lane.ring.fd().is_some_and(|event| Arc::ptr_eq(event, &self.owner));
        let Some(lane) = lanes[first..].iter_mut().find(is_ours) else { return Ok(()) };
        if plan.target.is_tasks() {
            // Its events are the tasks', and go on with them.
            self.online = true;
            return Ok(());
        }
        let died = std::mem::take(&mut self.suspect) && self.has_died(plan);
        if self.online && !died {
            return Ok(());
        }
        self.online = false;
        let Some(Opened { events, owner: first }) = plan.target.open(&plan.events, self.cpu, cpus)? else {
            return Ok(());
        };
        let (outlets, sources) = join(plan, self.cpu, events, &self.owner)?;
        let new = outlets.iter().map(|outlet| Arc::clone(&outlet.event)).collect();
        let mut events = control.outlets();
        events.stop(self.cpu);
        lane.losses.change(new);
        events.start(outlets)?;
        lane.origin = Arc::new(lane.origin.with(sources, lane.ring.written(), lane.oldest()));
        self.first = first;
        self.online = true;
        Ok(())
    }

    /// Whether the events died with their CPU, which came back since. To ask interrupts the CPU.
    fn has_died(&self, plan: &Plan) -> bool {
        // Those of a control group stand still too while none of its processes runs. The kernel's message must do.
        let tells = plan.target.is_everybody() && plan.tells_running;
        let stands_still = || perf::is_running(self.first.as_fd()).is_ok_and(|runs| !runs);
        if tells { stands_still() } else { !plan.target.is_everybody() }
    }
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
