//! Losses of one ring: how many records the kernel dropped, and how many of them were reported.

use crate::record::Record;
use crate::record::clock::Clock;
use crate::ring::Fault;
use crate::sys::perf;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Reads how many records were dropped since the ring was opened, as who opened it knows it. `None` if that cannot be
/// read now.
pub(crate) type Count = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// The kernel's count of what an adopted event has dropped.
pub(super) fn of(event: Arc<OwnedFd>) -> Count {
    Box::new(move || perf::lost(event.as_fd()).ok())
}

/// How many records the kernel dropped for want of room, and how many of them LOST records have reported.
#[derive(Default)]
pub(crate) struct Losses {
    /// Who counts them, if anybody does.
    pub(super) count: Option<Count>,
    /// Whether to read the count interrupts no CPU.
    pub(crate) is_cheap: bool,
    /// What the kernel had counted when the ring was copied. Records of which LOST records told may be overwritten, so
    /// this is a bound and no count.
    pub(super) at_most: Option<u64>,
    pub(crate) reported: u64,
    /// Samples that were lost before they came to the ring, by LOST_SAMPLES records. The counter has none of them.
    pub(crate) samples: u64,
    /// What the kernel said when it was asked last.
    counted: u64,
    /// The most that LOST records could have reported then.
    most: u64,
    /// Whether it was asked since the last look.
    asked: bool,
}

impl Losses {
    pub(crate) fn new(count: Option<Count>) -> Self {
        Self { count, ..Self::default() }
    }

    /// How many were dropped since the ring was opened. Asking interrupts the CPU.
    pub(crate) fn read(&self) -> Option<u64> {
        self.count.as_ref()?()
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
        match self.read() {
            Some(total) => (self.counted, self.most) = (total, total),
            None => self.most = self.at_most.or_else(|| Clock::Boottime.now()).unwrap_or(u64::MAX),
        }
        self.known()
    }

    /// The most that LOST records can have reported so far. Asking interrupts the CPU.
    pub(crate) fn most(&mut self) -> u64 {
        self.ask();
        self.most
    }
}

impl fmt::Debug for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Losses").field("reported", &self.reported).finish_non_exhaustive()
    }
}
