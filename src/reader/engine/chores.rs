//! Work that is done now and then, however many events there are to yield: a look for new CPUs, and for losses.

use crate::error::Error;
use crate::order::LATENCY;
use crate::order::losses::Which;
use crate::order::merge::Merge;
use crate::rings::control::Control;
use std::time::{Duration, Instant};

/// How often the kernel is asked for its count of losses.
const ASK_LOSSES: Duration = Duration::from_millis(100);

/// When each is due.
#[derive(Debug)]
pub(super) struct Chores {
    /// When to look next for new CPUs.
    pub(super) check_cpus: Instant,
    /// When to ask the kernel next for losses after the last record of a ring.
    check_losses: Instant,
}

impl Chores {
    /// The first look also finds CPUs that came while rings were opened (`Hotplug`).
    pub(super) fn new() -> Self {
        let first = Instant::now() + LATENCY;
        Self { check_cpus: first, check_losses: first }
    }

    /// Opens rings for new CPUs, once a tick.
    pub(super) fn follow_cpus(&mut self, merge: &mut Merge, now: Instant) -> Result<(), Error> {
        if now < self.check_cpus {
            return Ok(());
        }
        self.check_cpus = now + LATENCY;
        merge.follow_cpus().map(drop)
    }

    /// When a ring has run dry, or a report is due, asks the kernel for losses after the last record. Returns whether
    /// there is an event of one.
    pub(super) fn find_losses(&mut self, merge: &mut Merge, control: &Control, now: Instant, is_due: bool) -> bool {
        // A pause also drops records of rings that were never nearly full, and are not suspected for that.
        if control.take_lossy() {
            merge.suspect_losses();
        }
        if !is_due && now < self.check_losses {
            return false;
        }
        self.check_losses = now + ASK_LOSSES;
        // Only losses before the last refresh count. The kernel is asked ring by ring, because other rings may never
        // run dry.
        merge.losses_of(if is_due { Which::Suspect } else { Which::SuspectAndDry }) && merge.is_ready()
    }
}
