//! The events that write into rings, and their slots in maps of BPF programs.

use crate::error::{Error, ErrorKind, hint};
use crate::rings::opener::Pause;
use crate::sys::{bpf, perf};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A producer: an event that writes into a ring, and the slot of a `PERF_EVENT_ARRAY` through which programs find it.
#[derive(Debug)]
pub(super) struct Producer {
    pub(super) cpu: u32,
    /// The event's name, for messages.
    pub(super) name: Arc<str>,
    pub(super) event: Arc<OwnedFd>,
    pub(super) slot: Option<Slot>,
    /// Whether it is in its slot. Without a slot, whether it is enabled.
    pub(super) set: bool,
}

/// A slot of a `PERF_EVENT_ARRAY`.
///
/// Keeps a duplicate of the map's file descriptor: the kernel empties the slots by itself when the file they were set
/// through is closed (`perf_event_fd_array_release`, `kernel/bpf/arraymap.c`).
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) map: Arc<OwnedFd>,
    pub(super) index: u32,
}

/// Starts events that are ready to write: first all slots are set, then all events enabled. Paused slots stay empty. If
/// one fails, all are stopped again.
pub(super) fn start<'a>(producers: impl Iterator<Item = &'a mut Producer>, pauses: &[Pause]) -> Result<(), Error> {
    let paused = pauses.contains(&Pause::Slots);
    let (mut slotted, mut others): (Vec<_>, Vec<_>) = producers.partition(|producer| producer.slot.is_some());
    let mut start = || {
        slotted.iter_mut().filter(|_| !paused).try_for_each(|producer| producer.set(true))?;
        // Also during a pause: to resume only fills the slots.
        slotted.iter().try_for_each(|producer| producer.enable(true))?;
        others.iter_mut().filter(|_| !paused).try_for_each(|producer| producer.set(true))
    };
    let started = start();
    if started.is_err() {
        slotted.into_iter().chain(others).for_each(Producer::stop);
    }
    started
}

impl Producer {
    /// Puts the event into its slot, or takes it out. Without a slot, enables or disables it.
    pub(super) fn set(&mut self, set: bool) -> Result<(), Error> {
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
    pub(super) fn stop(&mut self) {
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

    /// Whether the thread that the event follows has ended, and all that it has started. An event hangs up when its
    /// thread has ended, and no thread that inherited it is left (`is_event_hup`, kernel/events/core.c).
    pub(super) fn has_ended(&self) -> bool {
        // poll(2) gives `POLLHUP` without being asked for it.
        let mut polled = [PollFd::new(self.event.as_fd(), PollFlags::empty())];
        let is_polled = nix::poll::poll(&mut polled, PollTimeout::ZERO).is_ok();
        is_polled && polled[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;

    /// The kernel's refusal is reported, and the slot keeps its state.
    #[test]
    fn a_slot_that_cannot_be_set_or_emptied_is_an_error() {
        for set in [true, false] {
            // These are no event and no map.
            let [event, map] = [(); 2].map(|()| Arc::new(OwnedFd::from(EventFd::new().unwrap())));
            let slot = Some(Slot { map, index: 7 });
            let mut producer = Producer { cpu: 3, name: "of 3".into(), event, slot, set: !set };
            assert!(producer.set(!set).is_ok(), "nothing is to be done");
            let said = producer.set(set).unwrap_err().to_string();
            assert!(said.contains("slot 7 of the perf event array, for CPU 3"), "{said}");
            assert_eq!(producer.set, !set);
            // Without a slot the event is enabled or disabled.
            producer.slot = None;
            let refused = producer.set(set);
            assert!(refused.is_err_and(|error| error.to_string().contains("on CPU 3")) && producer.set != set);
        }
    }
}
