//! When the kernel wakes a reader: `wakeup_events` and `wakeup_watermark` of perf_event_open(2).

use std::fmt;

/// When the kernel wakes whoever waits for a ring. Each ring counts for itself.
///
/// To be woken is to interrupt the traced system: an interrupt on the CPU that writes, and a context switch where the reader
/// sleeps. DESIGN.md has measured what each setting costs. Whatever is set, a [`Reader`](crate::Reader) looks by itself
/// at least every [`Order::latency`](crate::Order::latency), so it bounds how soon an event is seen, not whether.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "watermark")]
#[doc(alias = "wakeup_events")]
#[doc(alias = "wakeup_watermark")]
pub enum Wakeup {
    /// When more than so many bytes were written since it did so last (`watermark`, `wakeup_watermark`).
    Bytes(u32),
    /// At every so many samples (`wakeup_events`). 1 is what aya and libbpf do.
    Events(u32),
}

impl fmt::Display for Wakeup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::Events(events) => write!(f, "{events} events"),
        }
    }
}
