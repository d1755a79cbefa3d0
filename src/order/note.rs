//! Notes: what few places need besides their 16 bytes.

use crate::ring::Fault;
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::numbers::Hole;

/// Details that few places need, stored separately by position. A place without a note is a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Note {
    /// For a LOST record: the part of its count that was not reported before, and the key of the record before it in
    /// its ring. Also for losses that the kernel counts and no LOST record has reported yet.
    Lost { id: u64, count: u64, after: Option<u64> },
    /// For a LOST record: its count was reported before, or is zero.
    Reported,
    /// For damage: the fault, and its bytes.
    Fault { fault: Fault, len: u32 },
    /// For a record of 64 KiB or more: its bytes.
    Long { len: u32 },
    /// For a record: its number is not the expected one. `len` for a record of 64 KiB or more, else 0.
    Anomaly { cpu: u32, len: u32, kind: AnomalyKind, expected: u64, found: u64 },
    /// For a record: numbers before its own are missing, or were when it was indexed; and the key of the record before
    /// it in its ring.
    Hole { cpu: u32, len: u32, hole: Hole, after: Option<u64> },
}

impl Note {
    /// The length of its place, if that is not in the place itself.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Lost { .. } | Self::Reported => 0,
            Self::Fault { len, .. } | Self::Long { len } | Self::Anomaly { len, .. } | Self::Hole { len, .. } => {
                (*len).into()
            }
        }
    }

    /// Whether its place is a record.
    pub(crate) fn is_of_a_record(&self) -> bool {
        !matches!(self, Self::Lost { .. } | Self::Reported | Self::Fault { .. })
    }
}
