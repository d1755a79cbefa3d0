//! The kinds of proofs: grace periods of the kernel, the writers' epochs, reservations.

use crate::proof::barrier::Reserved;
use crate::proof::fences::Fences;
use crate::proof::proves::Proves;
use crate::proof::watch::Watch;
use crate::sys::thread::Thread;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// The way of a reader's fence. An enum, because each event asks it whether the proof has ended.
#[derive(Debug)]
pub(crate) enum Proof {
    /// Grace periods, waited for by a thread.
    Fences(Fences),
    /// Writers' epochs, read by the consumer.
    Epochs(Watch),
    /// Reservations in BPF ring buffers: once CPUs have ordered their stores.
    Reserved(Reserved),
}

impl Proof {
    /// Which way is in use.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Fences(fences) => fences.name,
            Self::Epochs(_) => "epochs",
            Self::Reserved(_) => "reserved",
        }
    }

    /// How long the proof under way has taken so far; `None` if none is under way.
    pub(crate) fn under_way(&self) -> Option<Duration> {
        self.is_under_way().then(|| self.course().past())
    }

    /// Says that the proof under way began at another time, for tests.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn set_begun(&mut self, at: std::time::Instant) {
        if let Self::Fences(fences) = self {
            fences.course.begun = Some(at);
        }
    }

    /// Whether the proof under way has ended by itself. Those of epochs and reservations end when the reader asks.
    #[inline(always)]
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Fences(fences) if fences.has_ended())
    }

    /// Whether a proof can end in the call that asks for its end, and costs no wait.
    #[inline]
    pub(crate) fn ends_at_once(&self) -> bool {
        !matches!(self, Self::Fences(_))
    }

    /// Becomes readable when a proof ends, if the proof has a descriptor.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        if let Self::Fences(fences) = self { Some(fences.wake()) } else { None }
    }

    /// Speeds up the proof under way, if it is a grace period: makes these CPUs switch, `most` times in all.
    pub(crate) fn visit_cpus(&mut self, cpus: impl Iterator<Item = u32>, most: usize) {
        if let Self::Fences(fences) = self {
            fences.visit_cpus(cpus, most);
        }
    }

    /// The threads that wait for grace periods and speed them up, once they exist.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &Arc<Thread>> {
        let fences = match self {
            Self::Fences(fences) => Some(fences),
            Self::Epochs(watch) => watch.stand_in.as_ref(),
            Self::Reserved(_) => None,
        };
        fences.map(Fences::threads).into_iter().flatten()
    }

    /// The writers' epochs, if they are used.
    pub(crate) fn epochs(&mut self) -> Option<&mut Watch> {
        if let Self::Epochs(watch) = self { Some(watch) } else { None }
    }

    /// How often a grace period of the kernel replaced the proof for programs that did not leave.
    pub(crate) fn stand_ins(&self) -> u64 {
        if let Self::Epochs(watch) = self { watch.stood_in } else { 0 }
    }

    /// Whether the proof under way waits for programs, and the reader has read their words repeatedly.
    pub(crate) fn waits_for_programs(&self) -> bool {
        matches!(self, Self::Epochs(watch) if watch.spun && !watch.is_over())
    }
}

impl Deref for Proof {
    type Target = dyn Proves;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Fences(fences) => fences,
            Self::Epochs(watch) => watch,
            Self::Reserved(reserved) => reserved,
        }
    }
}

impl DerefMut for Proof {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Fences(fences) => fences,
            Self::Epochs(watch) => watch,
            Self::Reserved(reserved) => reserved,
        }
    }
}
