//! What orders a reservation before the key drawn in it, for all CPUs to see: the proof for BPF ring buffers.

use crate::error::{Error, ErrorKind};
use crate::proof::contract::{Done, Proof};
use crate::rings::Rings;
use crate::sys::machine;
use crate::sys::machine::{CpuList, OnlineCpus};
use crate::sys::perf::{self, Pid};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How the reader makes sure that it sees each reservation whose key was drawn before a key that it has seen. For
/// [`Fence::Reserved`](crate::Fence::Reserved).
///
/// A program's reservation is a store, and its clock reading comes after it. While that store waits in the CPU's store
/// buffer, the reader cannot see it, although the clock was already read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Barrier {
    /// The reader interrupts every online CPU before each proof: it reads a perf event that runs there and never
    /// happens (`PERF_COUNT_SW_DUMMY`). What a CPU stored before the interrupt is then visible. Some 10 µs a CPU for
    /// the reader, and an interrupt for the CPU. Valid on every architecture. Needs `CAP_PERFMON`, or
    /// `kernel.perf_event_paranoid` of 0 or less.
    Interrupts {
        /// The shortest time between the starts of two proofs.
        every: Duration,
        /// Whether CPUs that are kept free of other work (`isolcpus`, `nohz_full`) are interrupted too. If not, a
        /// reader is refused where there are such CPUs.
        isolated: bool,
    },
    /// Each program executes an atomic operation that returns the old value, between its reservation and its clock:
    /// `perfweave_reserve()` in [`Epochs::HEADER`](crate::Epochs::HEADER). The reader then needs no system call. x86-64
    /// only. The crate cannot check it: a program that does not can be late.
    Programs,
}

/// The shortest time between interrupts of all CPUs, unless set.
const EVERY: Duration = Duration::from_micros(100);

impl Barrier {
    /// [`Barrier::Interrupts`], at most ten thousand times a second.
    pub const INTERRUPTS: Self = Self::Interrupts { every: EVERY, isolated: false };

    /// Checks that all rings are BPF ring buffers, and that the way is valid on this machine.
    pub(crate) fn check(self, rings: &Rings) -> Result<(), Error> {
        if let Some(cpu_ring) = rings.cpu_rings.iter().find(|cpu_ring| !cpu_ring.ring.properties().reserves) {
            let message = format!(
                "{} does not show who is inside, and CPU {} has one: reservations prove the order of BPF ring buffers \
                 alone",
                cpu_ring.ring.properties().name,
                cpu_ring.origin.cpu
            );
            return Err(Error::new(ErrorKind::Unsupported, message).hinting("choose the default fence, or epochs"));
        }
        if self == Self::Programs && cfg!(not(target_arch = "x86_64")) {
            let arch = std::env::consts::ARCH;
            let message = format!("that programs order their stores is proven for x86-64, and this machine is {arch}");
            return Err(Error::new(ErrorKind::Unsupported, message).hinting("choose interrupts, or the default fence"));
        }
        Ok(())
    }
}

/// A proof by reservations. It ends as soon as it has begun, unless a CPU is on its way offline or online.
#[derive(Debug)]
pub(crate) struct Reserved {
    barrier: Barrier,
    interrupts: Option<Interrupts>,
    every: Duration,
    ended: Option<io::Result<()>>,
    /// When to interrupt again, because a CPU could not be interrupted yet.
    again: Option<Instant>,
}

impl Reserved {
    pub(crate) fn new(barrier: Barrier) -> Self {
        let every = if let Barrier::Interrupts { every, .. } = barrier { every } else { Duration::ZERO };
        Self { barrier, interrupts: None, every, ended: None, again: None }
    }

    /// Opens what interrupts CPUs.
    pub(crate) fn prepare(&mut self) -> Result<(), Error> {
        if let Barrier::Interrupts { isolated, .. } = self.barrier {
            self.interrupts = Some(Interrupts::open(isolated)?);
        }
        Ok(())
    }

    /// While a CPU could not be interrupted yet: how long until the next try.
    pub(crate) fn until_retry(&self) -> Option<Duration> {
        self.again.map(|again| again.saturating_duration_since(Instant::now()))
    }

    fn send(&mut self) {
        // Under `Barrier::Programs` programs order their stores themselves, and nothing is sent.
        self.ended = self.interrupts.as_mut().map_or(Some(Ok(())), Interrupts::send);
        let retry = self.interrupts.as_ref().filter(|_| self.ended.is_none()).map(|interrupts| interrupts.retry);
        self.again = retry.map(|retry| Instant::now() + retry);
    }
}

impl Proof for Reserved {
    fn name(&self) -> &'static str {
        "reserved"
    }

    fn open(&mut self, rings: Option<&Rings>, _: &Done) -> Result<(), Error> {
        rings.map_or(Ok(()), |rings| self.barrier.check(rings))?;
        self.prepare()
    }

    fn begin(&mut self) {
        self.send();
    }

    fn poll(&mut self) -> Option<io::Result<()>> {
        if self.again.is_some_and(|again| again <= Instant::now()) {
            self.send();
        }
        self.ended.take()
    }

    fn nap(&self) -> Option<Duration> {
        Some(self.until_retry().unwrap_or_default())
    }

    fn every(&self) -> Duration {
        self.every.max(self.interrupts.as_ref().map_or(Duration::ZERO, |interrupts| interrupts.retry))
    }
}

/// Interrupts every online CPU.
#[derive(Debug)]
pub(crate) struct Interrupts {
    online: OnlineCpus,
    list: CpuList,
    /// An event for each CPU that is online, and how long it had run when it was read last.
    events: Vec<(u32, OwnedFd, u64)>,
    isolated: bool,
    /// Whether the list has no CPU that may not be interrupted.
    is_checked: bool,
    /// When all CPUs were interrupted last.
    sent: Instant,
    /// How long to wait before the next try, because the last one failed or could not reach a CPU; zero if it was well.
    retry: Duration,
    /// Since when a CPU is listed as online and has no events.
    between: Option<Instant>,
}

/// Within this time no CPU can go offline and come back: that takes grace periods.
const RECENT: Duration = Duration::from_millis(1);

/// How long a CPU may be between ending its events and being off the list, or between being on the list and having
/// events: a moment on most machines, and seconds in an emulated one. After that it is an error.
const BETWEEN: Duration = Duration::from_secs(10);

/// The longest time between tries meanwhile.
const LONGEST_BETWEEN: Duration = Duration::from_millis(10);

/// The longest time between tries after failures.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// An event that never happens, whose running time can be read.
fn dummy() -> perf_event_attr {
    let (type_, config) = (bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_DUMMY.into());
    perf_event_attr {
        type_,
        config,
        read_format: bindings::PERF_FORMAT_TOTAL_TIME_RUNNING.into(),
        ..Default::default()
    }
}

impl Interrupts {
    /// Opens an event on every online CPU.
    pub(crate) fn open(isolated: bool) -> Result<Self, Error> {
        let online = OnlineCpus::open().map_err(Error::cannot("list CPUs"))?;
        let mut interrupts = Self {
            online,
            list: CpuList::new(),
            events: Vec::new(),
            isolated,
            is_checked: false,
            sent: Instant::now(),
            retry: Duration::ZERO,
            between: None,
        };
        interrupts.online.read(&mut interrupts.list).map_err(Error::cannot("list CPUs"))?;
        // Before the first interrupt, and not left to `send_once`, which would wrap the error.
        interrupts.check()?;
        let sent = loop {
            match interrupts.send() {
                Some(sent) => break sent,
                // Not for ever: after `BETWEEN` it is an error.
                None => std::thread::sleep(interrupts.retry),
            }
        };
        sent.map_err(|errno| {
            let hint = "needs CAP_PERFMON, or kernel.perf_event_paranoid of 0 or less; or choose another fence";
            let message = "cannot open an event on each CPU to interrupt it";
            Error::new(ErrorKind::of(&errno), message).because(errno).hinting(hint)
        })?;
        Ok(interrupts)
    }

    /// Refuses to disturb CPUs that are kept free of other work, unless the program allows it.
    fn check(&mut self) -> Result<(), Error> {
        let kept_free = if self.isolated { Vec::new() } else { machine::isolated_cpus() };
        if let Some(cpu) = self.list.cpus.iter().find(|cpu| kept_free.contains(cpu)) {
            let message = format!(
                "CPU {cpu} is kept free of other work (isolcpus or nohz_full), and interrupts would disturb it"
            );
            let cure = "choose the default fence, or let isolated CPUs be interrupted too";
            return Err(Error::new(ErrorKind::Unsupported, message).hinting(cure));
        }
        self.is_checked = true;
        Ok(())
    }

    /// Opens the event of a CPU that is online, which interrupts that CPU.
    fn follow(&mut self, cpu: u32) -> io::Result<()> {
        // The event of a CPU that went stays stopped when the CPU comes back (`perf_event_exit_cpu`).
        self.events.retain(|(other, ..)| *other != cpu);
        let event = perf::open(&dummy(), None, Pid::All, cpu)?;
        let time = perf::running_time(event.as_fd())?;
        self.events.push((cpu, event, time));
        Ok(())
    }

    /// Interrupts every CPU that is online. A CPU that comes online meanwhile draws its keys later. `None` if a CPU
    /// cannot be interrupted yet: try again, after `retry`.
    ///
    /// A CPU that goes offline has no events any more before it is off the list, and one that comes online is on the
    /// list before it has any. Both run programs. One that is off the list runs none.
    pub(crate) fn send(&mut self) -> Option<io::Result<()>> {
        let begun = Instant::now();
        let sent = self.send_once();
        // What perf_event_open(2) says of a CPU without events.
        if sent.as_ref().is_err_and(|errno| errno.raw_os_error() == Some(libc::ENODEV))
            && self.between.get_or_insert(begun).elapsed() < BETWEEN
        {
            self.retry = (self.retry * 2).clamp(RECENT, LONGEST_BETWEEN);
            return None;
        }
        self.between = None;
        match sent {
            // As of the begin, before the first interrupt: `was_recent` must hold for all of them.
            Ok(()) => (self.sent, self.retry) = (begun, Duration::ZERO),
            Err(_) => self.retry = (self.retry * 2).clamp(RECENT, LONGEST_RETRY),
        }
        Some(sent)
    }

    fn send_once(&mut self) -> io::Result<()> {
        if self.online.read(&mut self.list)? {
            let online = &self.list.cpus;
            self.events.retain(|(cpu, ..)| online.contains(cpu));
            // A CPU that came may be one that is kept free of other work.
            self.is_checked = false;
        }
        if !self.is_checked {
            self.check().map_err(io::Error::other)?;
        }
        let was_recent = self.sent.elapsed() < RECENT;
        for at in 0..self.list.cpus.len() {
            let cpu = self.list.cpus[at];
            if !self.interrupt(cpu, was_recent)? {
                self.follow(cpu)?;
            }
        }
        Ok(())
    }

    /// Interrupts a CPU by reading its event. False if the event does not run: its CPU was offline meanwhile, which
    /// ends its events for good.
    fn interrupt(&mut self, cpu: u32, was_recent: bool) -> io::Result<bool> {
        let Some((_, event, before)) = self.events.iter_mut().find(|(other, ..)| *other == cpu) else {
            return Ok(false);
        };
        if !was_recent {
            // The event may have run since the last time, and not now.
            *before = perf::running_time(event.as_fd())?;
        }
        let time = perf::running_time(event.as_fd())?;
        // Only the CPU itself can say how long the event has run.
        Ok(std::mem::replace(before, time) < time)
    }
}
