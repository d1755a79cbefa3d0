//! What writes into rings, and how it is kept from them: rings have gates, and events have slots in maps.

use crate::error::{Error, ErrorKind, hint};
use crate::ring::ANY_CPU;
use crate::sys::{bpf, perf};
use nix::poll::{PollFd, PollFlags, PollTimeout};
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

/// Stops all producers of one ring at once, or lets them in again, as who opened the ring can. The producers themselves
/// stay as they are.
pub(crate) type Gate = Box<dyn Fn(Pause, bool) -> Result<(), Error> + Send>;

/// A producer: an event that writes into a ring, and the slot of a `PERF_EVENT_ARRAY` through which programs find it.
#[derive(Debug)]
pub(crate) struct Producer {
    pub(crate) cpu: u32,
    /// The event's name, for messages.
    pub(crate) name: Arc<str>,
    pub(crate) event: Arc<OwnedFd>,
    pub(crate) slot: Option<Slot>,
    /// Whether it is in its slot. Without a slot, whether it is enabled.
    pub(crate) set: bool,
}

/// A slot of a `PERF_EVENT_ARRAY`.
///
/// Keeps a duplicate of the map's file descriptor: the kernel empties the slots by itself when the file they were set
/// through is closed (`perf_event_fd_array_release`, `kernel/bpf/arraymap.c`).
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) map: Arc<OwnedFd>,
    pub(crate) index: u32,
}

/// All producers, which write into the rings, and the gates of the rings.
#[derive(Default)]
pub(crate) struct Producers {
    pub(super) gates: Vec<Gate>,
    events: Vec<Producer>,
    /// The pauses in force, each once.
    pauses: Vec<Pause>,
    /// A flight recorder copies what is in the rings: output stays paused until it says so (I9), whatever is in force.
    is_frozen: bool,
    /// Everything was stopped for good.
    retired: bool,
}

impl Producers {
    /// Adds a ring, paused if the others are, and starts its events. Does nothing once all are stopped for good.
    pub(crate) fn add(&mut self, gate: Gate, events: Vec<Producer>) -> Result<(), Error> {
        // A CPU that arrives must not start what closing has stopped.
        if self.retired {
            return Ok(());
        }
        // Before its events start, so that none of them writes during a pause.
        self.pauses.iter().try_for_each(|how| gate(*how, true))?;
        self.start(events)?;
        // Only now: a ring whose events do not start leaves no gate behind.
        self.gates.push(gate);
        Ok(())
    }

    /// Whether all threads that the events follow have ended, and all that these have started. An event hangs up when
    /// its thread has ended, and no thread that inherited it is left (`is_event_hup`, kernel/events/core.c).
    pub(crate) fn have_ended(&self) -> bool {
        let has_hung_up = |producer: &Producer| {
            // poll(2) gives `POLLHUP` without being asked for it.
            let mut polled = [PollFd::new(producer.event.as_fd(), PollFlags::empty())];
            let is_polled = nix::poll::poll(&mut polled, PollTimeout::ZERO).is_ok();
            is_polled && polled[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
        };
        self.events.iter().all(has_hung_up)
    }

    /// All that writes into the rings. Nothing once it was stopped for good.
    pub(crate) fn events(&self) -> &[Producer] {
        &self.events
    }

    /// Adds events that are ready to write and starts them: first all slots are set, then all events enabled. Paused
    /// slots stay empty. If one fails, all are stopped again. Does nothing once all are stopped for good.
    pub(crate) fn start(&mut self, mut events: Vec<Producer>) -> Result<(), Error> {
        if self.retired {
            return Ok(());
        }
        let paused = self.pauses.contains(&Pause::Slots);
        let mut start = || {
            let (mut slotted, mut others): (Vec<_>, Vec<_>) =
                events.iter_mut().partition(|producer| producer.slot.is_some());
            slotted.iter_mut().filter(|_| !paused).try_for_each(|producer| producer.set(true))?;
            // Also during a pause: to resume only fills the slots.
            slotted.iter().try_for_each(|producer| producer.enable(true))?;
            others.iter_mut().filter(|_| !paused).try_for_each(|producer| producer.set(true))
        };
        let started = start();
        match started {
            Ok(()) => self.events.append(&mut events),
            Err(_) => events.iter_mut().for_each(Producer::stop),
        }
        started
    }

    /// Stops a CPU's events for good: they stopped with the CPU, or seem to have.
    pub(crate) fn stop(&mut self, cpu: u32) {
        self.events.iter_mut().filter(|producer| producer.cpu == cpu).for_each(Producer::stop);
        self.events.retain(|producer| producer.cpu != cpu);
    }

    /// Keeps output from all rings.
    pub(super) fn pause(&mut self, how: Pause) -> Result<(), Error> {
        // Noted even if a ring refuses, for rings that come later.
        if !self.pauses.contains(&how) {
            self.pauses.push(how);
        }
        self.turn(how, true)
    }

    /// Ends all pauses, and lets output in again unless it is frozen.
    pub(super) fn resume(&mut self) -> Result<(), Error> {
        self.pauses.clear();
        // A handle of a flight recorder may call this while its rings are copied (I9).
        let resumed = if self.is_frozen { Ok(()) } else { self.turn(Pause::Output, false) };
        // `and`, not `?`: the second is tried whatever the first gives.
        resumed.and(self.turn(Pause::Slots, false))
    }

    /// Keeps output from all rings until [`Producers::thaw`]. Only a pause that comes from here on outlasts that.
    pub(super) fn freeze(&mut self) -> Result<(), Error> {
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
        let mut turned = Ok(());
        for gate in &self.gates {
            turned = turned.and(gate(how, paused));
        }
        if how == Pause::Slots {
            for producer in &mut self.events {
                turned = turned.and(producer.set(!paused));
            }
        }
        turned
    }

    pub(super) fn retire(&mut self) -> Vec<Producer> {
        self.retired = true;
        self.events.iter_mut().for_each(Producer::stop);
        // A handle may live on, and keeps no event open.
        self.gates.clear();
        std::mem::take(&mut self.events)
    }
}

/// The gate of a ring, by the event that owns it.
pub(super) fn gate(cpu: u32, event: Arc<OwnedFd>) -> Gate {
    Box::new(move |how, paused| match how {
        Pause::Slots => Ok(()),
        Pause::Output => perf::pause_output(event.as_fd(), paused).map_err(|errno| {
            let what = if paused { "pause" } else { "resume" };
            Error::system(&format!("{what} the ring on CPU {cpu}"), errno)
        }),
    })
}

/// Nothing stops a ring that messages call so but what writes there.
pub(super) fn no_gate(cpu: u32, name: &'static str) -> Gate {
    Box::new(move |how, paused| {
        if how == Pause::Slots || !paused {
            return Ok(());
        }
        let place = if cpu == ANY_CPU { "the ring of all CPUs".into() } else { format!("a ring of CPU {cpu}") };
        let message = format!("the output into {name} cannot be paused, and {place} is one");
        Err(Error::new(ErrorKind::Unsupported, message).hinting("detach the programs, or let them check a flag"))
    })
}

impl Producer {
    /// Puts the event into its slot, or takes it out. Without a slot, enables or disables it.
    fn set(&mut self, set: bool) -> Result<(), Error> {
        if self.set == set {
            return Ok(());
        }
        let Some(Slot { map, index }) = &self.slot else {
            self.enable(set)?;
            self.set = set;
            return Ok(());
        };
        let done = if set {
            bpf::map_update_fd(map.as_fd(), *index, self.event.as_fd())
        } else {
            match bpf::map_delete(map.as_fd(), *index) {
                // Empty already.
                Err(errno) if errno.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                done => done,
            }
        };
        done.map_err(|errno| {
            let message = format!("cannot set slot {index} of the perf event array, for CPU {}", self.cpu);
            let hint = hint::slot(&errno);
            Error::new(ErrorKind::of(&errno), message).because(errno).hinting(hint).about(&self.name)
        })?;
        self.set = set;
        Ok(())
    }

    /// Stops the event for good.
    fn stop(&mut self) {
        // Another program may have emptied the slot. Nothing can be done about an error.
        let _ = self.set(false);
        let _ = self.enable(false);
    }

    fn enable(&self, enabled: bool) -> Result<(), Error> {
        perf::enable(self.event.as_fd(), enabled).map_err(|errno| {
            let what = if enabled { "enable" } else { "disable" };
            Error::control(what, &self.name, self.cpu, errno)
        })
    }
}

impl fmt::Debug for Producers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producers").field("events", &self.events).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;

    /// An event of a CPU. It is an eventfd: the kernel refuses to stop it, and nothing reports that.
    fn producer(cpu: u32, set: bool) -> Producer {
        let event = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
        Producer { cpu, name: format!("of {cpu}").into(), event, slot: None, set }
    }

    #[test]
    fn only_the_events_of_a_cpu_that_went_are_closed() {
        let mut producers =
            Producers { events: [0, 2, 0, 5].map(|cpu| producer(cpu, true)).into(), ..Producers::default() };
        let events: Vec<_> = producers.events.iter().map(|producer| Arc::clone(&producer.event)).collect();
        producers.stop(0);
        assert_eq!(producers.events.iter().map(|producer| producer.cpu).collect::<Vec<_>>(), [2, 5]);
        assert_eq!(
            events.iter().map(Arc::strong_count).collect::<Vec<_>>(),
            [1, 2, 1, 2],
            "closed, except for those of this test"
        );
        producers.stop(3);
        assert_eq!(producers.events.len(), 2, "that CPU had none");
        assert_eq!(producers.retire().iter().map(|producer| producer.cpu).collect::<Vec<_>>(), [2, 5]);
        assert!(producers.events.is_empty() && producers.retired);
        let late = producer(1, false);
        let event = Arc::clone(&late.event);
        producers.start(vec![late]).unwrap();
        assert!(producers.events.is_empty() && Arc::strong_count(&event) == 1, "nothing starts after that");
    }

    /// Retired producers keep nothing open, although a handle may keep them.
    #[test]
    fn retired_gates_are_closed() {
        let mut producers = Producers::default();
        let event = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
        producers.add(gate(0, Arc::clone(&event)), Vec::new()).unwrap();
        assert_eq!(Arc::strong_count(&event), 2);
        producers.retire();
        assert_eq!(Arc::strong_count(&event), 1);
    }

    /// The kernel's refusal is reported, and the slot keeps its state.
    #[test]
    fn a_slot_that_cannot_be_set_or_emptied_is_an_error() {
        for set in [true, false] {
            // This is no map.
            let map = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
            let mut producer = Producer { slot: Some(Slot { map, index: 7 }), ..producer(3, !set) };
            assert!(producer.set(!set).is_ok(), "nothing is to be done");
            let said = producer.set(set).unwrap_err().to_string();
            assert!(said.contains("slot 7 of the perf event array, for CPU 3"), "{said}");
            assert_eq!(producer.set, !set);
            // Without a slot the event is enabled or disabled: this is no event.
            producer.slot = None;
            let refused = producer.set(set);
            assert!(refused.is_err_and(|error| error.to_string().contains("on CPU 3")) && producer.set != set);
        }
    }

    /// A pause that was there before a copy ends with it, and one that comes meanwhile outlasts it.
    #[test]
    fn a_copy_ends_the_pause_that_began_before_it() {
        let mut producers = Producers::default();
        let is_paused = Arc::new(std::sync::Mutex::new(false));
        let turned = Arc::clone(&is_paused);
        let gate = Box::new(move |how, paused| {
            assert_eq!(how, Pause::Output);
            *turned.lock().unwrap() = paused;
            Ok(())
        });
        producers.add(gate, Vec::new()).unwrap();
        for comes_meanwhile in [false, true] {
            producers.pause(Pause::Output).unwrap();
            producers.freeze().unwrap();
            assert!(*is_paused.lock().unwrap());
            if comes_meanwhile {
                producers.pause(Pause::Output).unwrap();
            }
            producers.thaw().unwrap();
            assert_eq!(*is_paused.lock().unwrap(), comes_meanwhile);
        }
    }

    /// All rings are paused, also behind one that refuses, and so are those that come later.
    #[test]
    fn one_ring_that_refuses_keeps_no_other_from_being_paused() {
        let mut producers = Producers::default();
        let turned = Arc::new(std::sync::Mutex::new(Vec::new()));
        let open = |number: u32| -> Gate {
            let turned = Arc::clone(&turned);
            Box::new(move |how, paused| {
                turned.lock().unwrap().push((number, how, paused));
                Ok(())
            })
        };
        producers.add(no_gate(7, "one"), Vec::new()).unwrap();
        producers.add(open(1), Vec::new()).unwrap();
        let refused = producers.pause(Pause::Output).unwrap_err().to_string();
        assert!(refused.contains("the output into one cannot be paused, and a ring of CPU 7 is one"), "{refused}");
        producers.pause(Pause::Slots).unwrap();
        producers.pause(Pause::Slots).unwrap();
        producers.add(open(2), Vec::new()).unwrap();
        producers.resume().unwrap();
        producers.add(open(3), Vec::new()).unwrap();
        let (output, slots) = (Pause::Output, Pause::Slots);
        let expected = [
            (1, output, true),
            (1, slots, true),
            (1, slots, true),
            (2, output, true),
            (2, slots, true),
            (1, output, false),
            (2, output, false),
            (1, slots, false),
            (2, slots, false),
        ];
        assert_eq!(*turned.lock().unwrap(), expected);
    }
}
