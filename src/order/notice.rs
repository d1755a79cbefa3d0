//! What comes before a record, or is of none: reports, missing and unexpected numbers, CPUs that are not traced.

use crate::rings::Untraced;
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::numbers::Hole;

/// A notice before a place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Notice {
    /// All events from before a flush were yielded; or all but those for which it waited long enough.
    Flushed { complete: bool },
    /// A CPU is not traced, or it is traced again.
    Untraced(Untraced),
    /// Numbers of the whole machine are missing, after the record with key `after`.
    Gap { first: u64, last: u64, after: Option<u64> },
    /// The number of the whole machine is not the expected one.
    Anomaly { kind: AnomalyKind, expected: u64 },
    /// Numbers of the record's CPU are missing, after the record with key `after`.
    OwnGap { cpu: u32, gap: Hole, after: Option<u64> },
    /// The record's number on its CPU, as it was written, is not the expected one.
    OwnAnomaly { cpu: u32, kind: AnomalyKind, expected: u64, found: u64 },
}
