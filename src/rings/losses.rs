//! Losses of one ring: how many records the kernel dropped, and how many of them were reported.

use crate::record::Record;
use crate::record::clock::Clock;
use crate::ring::Fault;
use crate::rings::ring_buffers::Failures;
use crate::sys::perf;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// How many records the kernel dropped for want of room, and how many of them LOST records have reported.
#[derive(Debug)]
pub(crate) struct Losses {
    counter: Counter,
    reported: u64,
    /// Samples that were lost before they came to the ring, by LOST_SAMPLES records. The counter has none of them.
    samples: u64,
    /// What the kernel said when it was asked last.
    counted: u64,
    /// The most that LOST records could have reported then.
    most: u64,
    /// Whether it was asked since the last look.
    asked: bool,
}

/// The counter of records that the kernel drops.
pub(crate) enum Counter {
    /// No counter can be read.
    Unknown,
    /// The ring was copied when the kernel had counted so many. Records of which LOST records told may be overwritten,
    /// so this is a bound and no count.
    AtMost(u64),
    /// The events that write into the ring, and what those before them lost.
    Events {
        events: Vec<Arc<OwnedFd>>,
        before: u64,
    },
    /// Reservations that failed in a BPF ring buffer, as programs count them.
    Failures(Failures),
    Simulated(Box<dyn Fn() -> u64 + Send + Sync>),
}

impl Losses {
    pub(crate) fn new(counter: Counter) -> Self {
        Self { counter, reported: 0, samples: 0, counted: 0, most: 0, asked: false }
    }

    /// How many were dropped since the ring was opened. Asking interrupts the CPU.
    pub(crate) fn read(&self) -> Option<u64> {
        match &self.counter {
            Counter::Unknown | Counter::AtMost(_) => None,
            Counter::Events { events, before } => {
                // If one cannot be read, no sum: it would be too small.
                events.iter().try_fold(*before, |sum, event| Some(sum.saturating_add(perf::lost(event.as_fd()).ok()?)))
            }
            Counter::Failures(failures) => failures.read(),
            Counter::Simulated(lost) => Some(lost()),
        }
    }

    /// Whether to read the count interrupts no CPU.
    #[inline]
    pub(crate) fn are_cheap(&self) -> bool {
        matches!(self.counter, Counter::Failures(_))
    }

    /// How many LOST records have reported.
    pub(crate) fn reported(&self) -> u64 {
        self.reported
    }

    /// How many samples were lost before they came to the ring.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// The head was loaded anew.
    #[inline]
    pub(crate) fn refreshed(&mut self) {
        self.asked = false;
    }

    /// Takes what a LOST or a LOST_SAMPLES record before the head reports. Zero is what a lawful kernel writes where a
    /// writer is interrupted between seeing that records were lost and taking their count: the interrupt's writer has
    /// taken it (`__perf_output_begin`).
    pub(crate) fn take(&mut self, record: &Record<'_>, count: u64) -> Result<(), Fault> {
        [self.reported, self.samples] = self.check(record, [self.reported, self.samples], count)?;
        Ok(())
    }

    /// What LOST and LOST_SAMPLES records have reported together with one more. If that is more than there can be, the
    /// one is no LOST record of the kernel's, which counts each record that it drops before it writes one
    /// (`__perf_output_begin`, `kernel/events/ring_buffer.c`). Where that count cannot be read, no more than one a
    /// nanosecond can have been dropped since the machine was booted. Nothing counts samples that never came to the
    /// ring: the kernel has 16 bits for those of one look at the processor's buffer (`intel_pmu_drain_pebs_nhm`).
    pub(crate) fn check(
        &mut self,
        record: &Record<'_>,
        [reported, samples]: [u64; 2],
        count: u64,
    ) -> Result<[u64; 2], Fault> {
        if record.is_lost_samples() {
            let most = u64::from(u32::MAX);
            return if count > most {
                Err(Fault::Lost { count, most })
            } else {
                Ok([reported, samples.saturating_add(count)])
            };
        }
        let sum = reported.saturating_add(count);
        if sum > self.most && !self.asked {
            // Once for a look: the answer is the same for all LOST records before the head.
            self.ask();
        }
        if sum > self.most {
            return Err(Fault::Lost { count, most: self.most.saturating_sub(reported) });
        }
        Ok([sum, samples])
    }

    /// How many were dropped as far as is known: by LOST records, or the kernel's last answer.
    pub(crate) fn known(&self) -> u64 {
        self.reported.max(self.counted)
    }

    /// The count of dropped records, after asking the kernel, if it can be asked. That interrupts the CPU.
    pub(crate) fn ask(&mut self) -> u64 {
        self.asked = true;
        match (self.read(), &self.counter) {
            (Some(total), _) => (self.counted, self.most) = (total, total),
            (None, Counter::AtMost(most)) => self.most = *most,
            (None, _) => self.most = Clock::Boottime.now().unwrap_or(u64::MAX),
        }
        self.known()
    }

    /// The most that LOST records can have reported so far. Asking interrupts the CPU.
    pub(crate) fn most(&mut self) -> u64 {
        self.ask();
        self.most
    }

    /// Other events write into the ring from now on.
    pub(crate) fn change(&mut self, new: Vec<Arc<OwnedFd>>) {
        if let Counter::Events { .. } = self.counter {
            // If the count of the old events cannot be read, every later sum would be too small.
            self.counter = self.read().map_or(Counter::Unknown, |before| Counter::Events { events: new, before });
        }
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "Unknown",
            Self::AtMost(_) => "AtMost",
            Self::Events { .. } => "Events",
            Self::Failures(_) => "Failures",
            Self::Simulated(_) => "Simulated",
        })
    }
}
