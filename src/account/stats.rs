//! Statistics: the counts of a merge so far, and the events that it waits for.

use crate::sequence::anomaly::{AnomalyKind, KINDS};

/// The counts of a merge so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Records yielded.
    pub records: u64,
    /// Records among `records` that were left out because they are about the tracer ([`Order::without_self`](crate::Order::without_self)).
    pub left_out: u64,
    /// Late records among `records`.
    pub late: u64,
    /// The largest lateness, in units of the key.
    pub max_late: u64,
    /// Records that left before the hold rule allowed it, because memory or ring space was used up ([`EarlyRelease`](crate::EarlyRelease)).
    pub early: u64,
    /// Bytes copied out of full rings ([`WhenFull::Copy`](crate::WhenFull::Copy)).
    pub copied: u64,
    /// Records that were out of order inside their ring and were put in order.
    pub repaired: u64,
    /// Records that the kernel's LOST records count as dropped.
    pub lost: u64,
    /// Numbers declared missing that did not come later.
    pub missing: u64,
    /// Damage events.
    pub damaged: u64,
    /// Bytes of memory that holding took at the last refresh: index and copies.
    pub memory: usize,
    /// The largest `memory` at any refresh.
    pub most_memory: usize,
    /// How often the heads of all rings were loaded: refreshes.
    pub refreshes: u64,
    /// Fences that ended.
    pub fences: u64,
    /// Fences that failed. The next fence proves their events. 0 for a [`Merge`](crate::Merge), which runs no fence itself.
    pub fences_failed: u64,
    /// How often a kernel fence replaced writers' epochs, because a program did not leave
    /// ([`ErrorKind::Degraded`](crate::ErrorKind::Degraded)). 0 for a merge.
    pub stand_ins: u64,
    /// How often a reader went to sleep. 0 for a merge, which does not wait.
    pub sleeps: u64,
    /// How often a reader woke before its own tick: because of a filled ring, an ended fence, a [`Handle`](crate::Handle) or a new CPU. 0
    /// for a merge.
    pub wakes: u64,
}

/// The counts of one ring so far, and how full it is. Bytes are those of the data area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingStats {
    /// The CPU.
    pub cpu: u32,
    /// Bytes of the ring.
    pub size: u64,
    /// The most bytes that the kernel could not reuse at any refresh, because they were unread or not yet given back. A ring needs to be
    /// this large.
    pub most_used: u64,
    /// Bytes that were seen and are not yielded yet.
    pub unread: u64,
    /// Events that were seen and are not yielded yet.
    pub held: usize,
    /// Records yielded.
    pub records: u64,
    /// Late records among `records`.
    pub late: u64,
    /// Records among `records` that left before the hold rule allowed it, because memory or ring space was used up.
    pub early: u64,
    /// Refreshes at which held records filled the ring beyond its mark.
    pub pressed: u64,
    /// Bytes copied out of the ring because it was full, including `copied_now`.
    pub copied: u64,
    /// Copied bytes that are not yielded yet.
    pub copied_now: u64,
    /// Records that the kernel's LOST records count as dropped.
    pub lost: u64,
    /// The CPU's own numbers that were declared missing and did not come later ([`Order::numbers`](crate::Order::numbers)).
    pub missing: u64,
    pub(crate) anomalies: [u64; KINDS],
}

impl RingStats {
    /// Records with this anomaly in their CPU's own number ([`Order::numbers`](crate::Order::numbers)). This includes those that were not
    /// reported because they came in a row.
    pub fn anomalies(&self, kind: AnomalyKind) -> u64 {
        self.anomalies[kind as usize]
    }
}

/// Why a stream is delayed: what holds the merge up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The largest key seen.
    pub seen: Option<u64>,
    /// The largest key that may be yielded.
    pub frontier: Option<u64>,
    /// How far the frontier is below `seen`, in units of the key. 0 before any key was seen.
    pub lag: u64,
    /// Events that are held.
    pub held: usize,
    /// Bytes that are held.
    pub held_bytes: u64,
    /// The CPU and key of the next event, if any is held ([`ANY_CPU`](crate::ANY_CPU) for a BPF ring buffer that CPUs share). Nothing is yielded before it. Under a fence rule it waits for writers on any CPU
    /// that may still write a smaller key. Under the dense rule it waits for the number before it.
    pub next: Option<(u32, u64)>,
    /// The CPU with the most bytes held.
    pub fullest: Option<u32>,
    /// The CPU of a BPF ring buffer in which a program has reserved bytes and not committed them yet, if a proof, a flush or a deadline waits for that:
    /// [`ANY_CPU`](crate::ANY_CPU) for one that all CPUs share.
    pub reserved: Option<u32>,
    /// The number of the whole machine for which all held events wait ([`Hold::Dense`](crate::Hold::Dense)), if it has not been seen.
    pub awaited: Option<u64>,
}
