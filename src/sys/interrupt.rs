//! Interrupts of a CPU.

use super::perf::{self, Pid};
use perf_event_open_sys::bindings::{self, perf_event_attr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Interrupts a CPU, for a [`Proof`](crate::Proof): what the CPU stored before the interrupt is visible after it. It is a
/// perf event that never happens there (`PERF_COUNT_SW_DUMMY`). Valid on every architecture.
#[derive(Debug)]
pub struct CpuInterrupt(OwnedFd);

impl CpuInterrupt {
    /// Opens the event on a CPU that is online.
    ///
    /// # Errors
    /// The kernel's: `ENODEV` for a CPU that has no events, because it goes or comes at this moment. Needs
    /// `CAP_PERFMON`, or `kernel.perf_event_paranoid` of 0 or less.
    pub fn open(cpu: u32) -> io::Result<Self> {
        let attr = perf_event_attr {
            type_: bindings::PERF_TYPE_SOFTWARE,
            config: bindings::PERF_COUNT_SW_DUMMY.into(),
            read_format: bindings::PERF_FORMAT_TOTAL_TIME_RUNNING.into(),
            ..Default::default()
        };
        perf::open(&attr, None, Pid::All, cpu).map(Self)
    }

    /// Interrupts the CPU, and gives how long the event has run, in nanoseconds. Only the CPU itself can say that. So if
    /// it grows from one call to the next, the second has interrupted the CPU. Otherwise the CPU was offline meanwhile,
    /// which ends the event for good. Some 10 µs.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&self) -> io::Result<u64> {
        perf::running_time(self.0.as_fd())
    }
}
