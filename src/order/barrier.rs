//! What orders a reservation before the key drawn in it, for all CPUs to see: the proof for BPF ring buffers.

use crate::error::{Error, ErrorKind};
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
/// A program's reservation is a store, and its clock reading comes after it. While that store waits in the CPU's store buffer, the reader
/// cannot see it, although the clock was already read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Barrier {
    /// The reader interrupts every online CPU before each proof: it reads a perf event that runs there and never happens
    /// (`PERF_COUNT_SW_DUMMY`). What a CPU stored before the interrupt is then visible. Some 10 µs a CPU for the reader, and an interrupt
    /// for the CPU. Valid on every architecture. Needs `CAP_PERFMON`, or `kernel.perf_event_paranoid` of 0 or less.
    Interrupts {
        /// The shortest time between the starts of two proofs.
        every: Duration,
        /// Whether CPUs that are kept free of other work (`isolcpus`, `nohz_full`) are interrupted too. If not, a reader is refused where
        /// there are such CPUs.
        isolated: bool,
    },
    /// Each program executes an atomic operation that returns the old value, between its reservation and its clock:
    /// `perfweave_reserve()` in [`Epochs::HEADER`](crate::Epochs::HEADER). The reader then needs no system call. x86-64 only. The crate
    /// cannot check it: a program that does not can be late.
    Programs,
}

/// The shortest time between interrupts of all CPUs, unless set.
pub(crate) const EVERY: Duration = Duration::from_micros(100);

impl Barrier {
    /// [`Barrier::Interrupts`], at most ten thousand times a second.
    pub const INTERRUPTS: Self = Self::Interrupts { every: EVERY, isolated: false };

    /// Checks that all rings are BPF ring buffers, and that the way is valid on this machine.
    pub(crate) fn check(self, rings: &Rings) -> Result<(), Error> {
        if let Some(lane) = rings.lanes.iter().find(|lane| !lane.ring.is_ring_buffer()) {
            let message = format!(
                "a perf ring does not show who is inside, and CPU {} has one: reservations prove the order of BPF ring buffers alone",
                lane.origin.cpu
            );
            return Err(Error::new(ErrorKind::Fence, message).hinting("choose Hold::FENCE, or Fence::Epochs"));
        }
        if self == Self::Programs && cfg!(not(target_arch = "x86_64")) {
            let arch = std::env::consts::ARCH;
            let message = format!("that programs order their stores is proven for x86-64, and this machine is {arch}");
            return Err(Error::new(ErrorKind::Unsupported, message).hinting("choose Barrier::INTERRUPTS"));
        }
        Ok(())
    }
}

/// A proof by reservations. It ends as soon as it has begun.
#[derive(Debug)]
pub(crate) struct Reserved {
    interrupts: Option<Interrupts>,
    begun: Option<Instant>,
    every: Duration,
    ended: Option<io::Result<()>>,
    took: Duration,
}

impl Reserved {
    pub(crate) fn start(barrier: Barrier) -> Result<Self, Error> {
        let (interrupts, every) = match barrier {
            Barrier::Programs => (None, Duration::ZERO),
            Barrier::Interrupts { every, isolated } => (Some(Interrupts::open(isolated)?), every),
        };
        Ok(Self { interrupts, begun: None, every, ended: None, took: Duration::ZERO })
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.ended.is_some()
    }

    /// How long until a proof may begin. `None` while one is under way.
    pub(crate) fn pause(&self) -> Option<Duration> {
        if self.is_under_way() {
            return None;
        }
        Some(self.begun.map_or(Duration::ZERO, |begun| self.every.saturating_sub(begun.elapsed())))
    }

    pub(crate) fn begin(&mut self) {
        let begun = Instant::now();
        self.ended = Some(self.interrupts.as_mut().map_or(Ok(()), Interrupts::send));
        (self.begun, self.took) = (Some(begun), begun.elapsed());
    }

    pub(crate) fn ended(&mut self) -> Option<io::Result<()>> {
        self.ended.take()
    }

    pub(crate) fn took(&self) -> Duration {
        self.took
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
}

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
        let mut interrupts = Self { online, list: CpuList::new(), events: Vec::new(), isolated };
        interrupts.online.read(&mut interrupts.list).map_err(Error::cannot("list CPUs"))?;
        interrupts.check()?;
        for cpu in interrupts.list.cpus.clone() {
            interrupts.follow(cpu).map_err(|errno| {
                let hint = "needs CAP_PERFMON, or kernel.perf_event_paranoid of 0 or less; or choose Barrier::Programs or Hold::FENCE";
                let message = format!("cannot open an event to interrupt CPU {cpu}");
                Error::new(ErrorKind::of(&errno), message).because(errno).hinting(hint)
            })?;
        }
        Ok(interrupts)
    }

    /// Refuses to disturb CPUs that are kept free of other work, unless the program allows it.
    fn check(&self) -> Result<(), Error> {
        let kept_free = if self.isolated { Vec::new() } else { machine::isolated_cpus() };
        let Some(cpu) = self.list.cpus.iter().find(|cpu| kept_free.contains(cpu)) else { return Ok(()) };
        let message =
            format!("CPU {cpu} is kept free of other work (isolcpus or nohz_full), and interrupts would disturb it");
        let cure = "allow it with Barrier::Interrupts { isolated: true, .. }, or choose Barrier::Programs";
        Err(Error::new(ErrorKind::Fence, message).hinting(cure))
    }

    /// Opens the event of a CPU that is online.
    fn follow(&mut self, cpu: u32) -> io::Result<()> {
        self.events.retain(|(other, ..)| *other != cpu);
        let event = perf::open(&dummy(), None, Pid::All, cpu)?;
        let time = perf::running_time(event.as_fd())?;
        self.events.push((cpu, event, time));
        Ok(())
    }

    /// Interrupts every CPU that is online. A CPU that comes online meanwhile draws its keys later.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        if self.online.read(&mut self.list)? {
            self.check().map_err(io::Error::other)?;
            let online = &self.list.cpus;
            self.events.retain(|(cpu, ..)| online.contains(cpu));
        }
        for at in 0..self.list.cpus.len() {
            let cpu = self.list.cpus[at];
            self.interrupt(cpu)?;
        }
        Ok(())
    }

    fn interrupt(&mut self, cpu: u32) -> io::Result<()> {
        if let Some((_, event, before)) = self.events.iter_mut().find(|(other, ..)| *other == cpu) {
            let time = perf::running_time(event.as_fd())?;
            // Only the CPU itself can say how long the event has run.
            if std::mem::replace(before, time) < time {
                return Ok(());
            }
        }
        // The CPU was offline meanwhile, which ends its events for good.
        match self.follow(cpu) {
            // It went offline since the list was read: whatever it stored is visible.
            Err(errno) if errno.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            Err(errno) => Err(errno),
            // Opening it has interrupted the CPU: the event runs there.
            Ok(()) => Ok(()),
        }
    }
}
