//! Interrupts of all CPUs, after which what they stored before is visible.

use crate::interrupts::online::{Online, isolated_cpus};
use perfweave::{CpuInterrupt, Error, ErrorKind};
use std::io;
use std::time::{Duration, Instant};

mod online;

/// Interrupts every online CPU.
#[derive(Debug)]
pub(crate) struct Interrupts {
    online: Online,
    /// An event for each CPU that is online, and how long it had run when it was read last.
    events: Vec<(u32, CpuInterrupt, u64)>,
    isolated: bool,
    /// Whether the list has no CPU that may not be interrupted.
    is_checked: bool,
    /// When all CPUs were interrupted last.
    sent: Instant,
    /// How long to wait before the next try, because the last one failed or could not reach a CPU; zero if it was well.
    pub(crate) retry: Duration,
    /// Since when a CPU is listed as online and has no events.
    between: Option<Instant>,
}

/// What perf_event_open(2) says of a CPU without events.
const ENODEV: i32 = nix::errno::Errno::ENODEV as i32;

/// Within this time no CPU can go offline and come back: that takes grace periods.
const RECENT: Duration = Duration::from_millis(1);

/// How long a CPU may be between ending its events and being off the list, or between being on the list and having
/// events: a moment on most machines, and seconds in an emulated one. After that it is an error.
const BETWEEN: Duration = Duration::from_secs(10);

/// The longest time between tries meanwhile.
const LONGEST_BETWEEN: Duration = Duration::from_millis(10);

/// The longest time between tries after failures.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

impl Interrupts {
    /// Opens an event on every online CPU.
    pub(crate) fn open(isolated: bool) -> Result<Self, Error> {
        let failed = |errno| Error::new(ErrorKind::of(&errno), "cannot list CPUs").because(errno);
        let mut interrupts = Self {
            online: Online::open().map_err(failed)?,
            events: Vec::new(),
            isolated,
            is_checked: false,
            sent: Instant::now(),
            retry: Duration::ZERO,
            between: None,
        };
        interrupts.online.read().map_err(failed)?;
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
        let kept_free = if self.isolated { Vec::new() } else { isolated_cpus() };
        if let Some(cpu) = self.online.cpus.iter().find(|cpu| kept_free.contains(cpu)) {
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
        let event = CpuInterrupt::open(cpu)?;
        let time = event.send()?;
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
        if sent.as_ref().is_err_and(|errno| errno.raw_os_error() == Some(ENODEV))
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
        if self.online.read()? {
            let online = &self.online.cpus;
            self.events.retain(|(cpu, ..)| online.contains(cpu));
            // A CPU that came may be one that is kept free of other work.
            self.is_checked = false;
        }
        if !self.is_checked {
            self.check().map_err(io::Error::other)?;
        }
        let was_recent = self.sent.elapsed() < RECENT;
        for at in 0..self.online.cpus.len() {
            let cpu = self.online.cpus[at];
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
            *before = event.send()?;
        }
        let time = event.send()?;
        // Only the CPU itself can say how long the event has run.
        Ok(std::mem::replace(before, time) < time)
    }
}
