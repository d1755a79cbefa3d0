//! Who opened rings, and what only they know: what stops the writers, and CPUs that came or went.

use crate::error::{Error, ErrorKind};
use crate::ring::{ANY_CPU, Ring};
use crate::rings::{CpuRing, Rings};
use crate::sys::perf;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// How output is kept from the rings while paused. The two ways differ in who counts the missing records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pause {
    /// The rings turn writers away (`PERF_EVENT_IOC_PAUSE_OUTPUT`). Programs see `-ENOSPC`, and the kernel counts each
    /// record as lost. A reader reports these losses when output goes on, and before it reports a flush.
    Output,
    /// Writers find no ring: slots of BPF maps are emptied, and events without a slot are disabled. Programs see
    /// `-ENOENT`, and **nothing counts** the records they do not write. cilium/ebpf's `Reader.Pause` does this. It is
    /// cheaper for the traced program, which gets no further than the map.
    Slots,
}

/// Who opened rings: this crate, another program, or the simulator. Nobody for the rings of a recording, since nothing
/// writes into them.
///
/// All calls are cold. They come from any thread, under the lock of `Control`.
pub(crate) trait Opener: fmt::Debug + Send {
    /// Keeps output from all its rings, or lets it in again, even if some refuse. The first refusal is reported.
    fn pause(&mut self, how: Pause, paused: bool) -> Result<(), Error>;

    /// Finds CPUs that came online: starts the events of rings whose CPU came back, adds rings to `new`, which are
    /// paused as the others are, and notes which CPUs are not traced.
    fn follow(&mut self, _: &mut Rings, _new: &mut Vec<CpuRing>, _pauses: &[Pause]) -> Result<(), Error> {
        Ok(())
    }

    /// The programs of [`Rings::foreign_programs`].
    fn foreign_programs(&self) -> Result<Vec<Error>, Error> {
        Ok(Vec::new())
    }

    /// Stops all output for good. Events are closed on drop, once their rings are unmapped.
    fn stop(&mut self) {}
}

/// All who opened rings, and what holds for the rings of all.
#[derive(Debug, Default)]
pub(crate) struct Openers {
    /// None once all output was stopped for good.
    pub(crate) all: Vec<Box<dyn Opener>>,
    /// The pauses in force, each once.
    pauses: Vec<Pause>,
    /// A flight recorder copies what is in the rings: output stays paused until it says so (I9), whatever is in force.
    is_frozen: bool,
}

impl Openers {
    /// Keeps output from all rings.
    pub(super) fn pause(&mut self, how: Pause) -> Result<(), Error> {
        // Noted even if a ring refuses, for rings that come later.
        self.pauses.retain(|other| *other != how);
        self.pauses.push(how);
        self.turn(how, true)
    }

    /// Ends all pauses, and lets output in again unless it is frozen.
    pub(super) fn resume(&mut self) -> Result<(), Error> {
        self.pauses.clear();
        let output = if self.is_frozen { Ok(()) } else { self.turn(Pause::Output, false) };
        // `and`, not `?`: the second is tried whatever the first gives.
        output.and(self.turn(Pause::Slots, false))
    }

    /// Keeps output from all rings until [`Openers::thaw`], whatever is asked for.
    pub(super) fn freeze(&mut self) -> Result<(), Error> {
        // Only a pause that comes from here on outlasts it.
        self.pauses.retain(|other| *other != Pause::Output);
        self.is_frozen = true;
        self.turn(Pause::Output, true)
    }

    pub(super) fn thaw(&mut self) -> Result<(), Error> {
        self.is_frozen = false;
        if self.pauses.contains(&Pause::Output) { Ok(()) } else { self.turn(Pause::Output, false) }
    }

    /// Pauses or resumes all rings, even if some refuse. The first refusal is reported.
    fn turn(&mut self, how: Pause, paused: bool) -> Result<(), Error> {
        self.all.iter_mut().fold(Ok(()), |turned, opener| turned.and(opener.pause(how, paused)))
    }

    /// Finds CPUs that came online. Adds their rings to `new`.
    pub(super) fn follow(&mut self, rings: &mut Rings, new: &mut Vec<CpuRing>) -> Result<(), Error> {
        self.all.iter_mut().try_for_each(|opener| opener.follow(rings, new, &self.pauses))
    }

    /// Stops all output for good.
    pub(super) fn stop(&mut self) -> Vec<Box<dyn Opener>> {
        self.all.iter_mut().for_each(|opener| opener.stop());
        // A CPU that arrives must not start what was stopped. And a handle may live on, and keeps no event open.
        std::mem::take(&mut self.all)
    }
}

/// Another program has opened the ring. What that knows of CPUs is its own.
#[derive(Debug)]
pub(super) struct Adopted {
    cpu: u32,
    /// What messages call such a ring.
    name: &'static str,
    /// The event that owns the ring. `None` if the output into such a ring cannot be paused.
    event: Option<Arc<OwnedFd>>,
}

impl Adopted {
    /// `None` if nothing is known of what writes into the ring.
    pub(super) fn new(cpu: u32, ring: &Ring) -> Option<Self> {
        let properties = ring.properties();
        let event = ring.fd().filter(|_| properties.can_pause).cloned();
        (event.is_some() || !properties.can_pause).then_some(Self { cpu, name: properties.name, event })
    }
}

impl Opener for Adopted {
    fn pause(&mut self, how: Pause, paused: bool) -> Result<(), Error> {
        match (how, &self.event) {
            (Pause::Output, Some(event)) => pause_output(event, self.cpu, paused),
            (Pause::Output, None) if paused => {
                let place = if self.cpu == ANY_CPU {
                    "the ring of all CPUs".into()
                } else {
                    format!("a ring of CPU {}", self.cpu)
                };
                let message = format!("the output into {} cannot be paused, and {place} is one", self.name);
                Err(Error::new(ErrorKind::Unsupported, message)
                    .hinting("detach the programs, or let them check a flag"))
            }
            (Pause::Output, None) | (Pause::Slots, _) => Ok(()),
        }
    }
}

/// Pauses or resumes the output into the ring of an event.
pub(super) fn pause_output(event: &OwnedFd, cpu: u32, paused: bool) -> Result<(), Error> {
    perf::pause_output(event.as_fd(), paused).map_err(|errno| {
        let what = if paused { "pause" } else { "resume" };
        Error::system(&format!("{what} the ring on CPU {cpu}"), errno)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::record::clock::Clock;
    use nix::sys::eventfd::EventFd;

    /// All are paused, also behind one that refuses. One that was stopped keeps nothing open, although a handle may keep
    /// what is left.
    #[test]
    fn all_who_opened_rings_are_asked_and_let_go() {
        // This is no event, so the kernel refuses to pause its ring.
        let event = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
        let kernel = crate::sim::Kernel::new(&[0]);
        let mut openers = Openers::default();
        openers.all.push(Box::new(Adopted { cpu: 7, name: "a ring", event: Some(Arc::clone(&event)) }));
        openers.all.push(Box::new(kernel.clone()));
        let refused = openers.pause(Pause::Output).unwrap_err().to_string();
        assert!(refused.contains("pause the ring on CPU 7") && !kernel.emit(0, 1, b"paused"), "{refused}");
        assert_eq!(Arc::strong_count(&event), 2);
        let mut rings = Rings::empty(Clock::Perf);
        let mut come = |openers: &mut Openers, cpu| {
            let mut new = Vec::new();
            kernel.plug(cpu);
            openers.follow(&mut rings, &mut new).unwrap();
            (new.len(), kernel.emit(cpu, 1, b""))
        };
        assert_eq!(come(&mut openers, 1), (2, false), "paused like the others");
        assert!(openers.resume().is_err() && kernel.emit(0, 2, b"") && kernel.emit(1, 2, b""));
        assert_eq!(come(&mut openers, 2), (1, true));
        assert_eq!(openers.stop().len(), 2);
        assert_eq!((come(&mut openers, 3), Arc::strong_count(&event)), ((0, true), 1));
    }
}
