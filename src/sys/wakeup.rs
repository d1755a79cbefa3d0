//! When the kernel wakes a reader: `wakeup_events` and `wakeup_watermark` of perf_event_open(2).

use std::fmt;

/// When the kernel wakes a program that waits for a ring. Each ring counts separately.
///
/// A wake-up disturbs the traced system: it costs an interrupt on the CPU that writes, and a context switch where the
/// reader sleeps. docs/NUMBERS.md names the table of what each setting costs. A [`Reader`](crate::Reader) also
/// refreshes by itself at least every [`Order::latency`](crate::Order::latency). So the setting decides how soon an
/// event is seen, and not whether.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "watermark")]
#[doc(alias = "wakeup_events")]
#[doc(alias = "wakeup_watermark")]
pub enum Wakeup {
    /// When more than this many bytes were written since the last wake-up (`watermark`, `wakeup_watermark`).
    Bytes(u32),
    /// After this many samples (`wakeup_events`). aya and libbpf use 1.
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
