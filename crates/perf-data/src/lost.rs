//! How a recording tells of losses, and how each is counted once.
//!
//! - LOST (kind 2): the kernel dropped so many records for want of room. It wrote that with the next record that fitted,
//!   so the loss has a place.
//! - LOST_SAMPLES (kind 13) with a time: the kernel found that the processor's own buffer (PEBS) had lost samples. They
//!   never came to the ring, and no LOST record has them. The loss is at its time.
//! - LOST_SAMPLES with the time 0, or none: at its end perf (since 6.1) asks the kernel for each event how many of its
//!   records were dropped (`PERF_FORMAT_LOST`), and writes what is not 0. That is a count of the whole recording, and has
//!   no place. The kernel counts each record there that a LOST record tells, and those that no record followed
//!   (`__perf_output_begin`, kernel/events/ring_buffer.c). So the two are of the same losses, and the larger sum is that
//!   of all. They are compared as sums: LOST names an event of the same ring, which need not be that of the lost
//!   records, and perf writes the CPU 0 into all of these.
//! - LOST_SAMPLES with `PERF_RECORD_MISC_LOST_SAMPLES_BPF`: what a BPF filter left out because it was told to
//!   (`perf record --filter`). That is no loss, and is not counted.

use crate::sorting::Sorting;
use perf_event_open_sys::bindings;
use perfweave::Bytes;

/// `PERF_RECORD_MISC_LOST_SAMPLES_BPF`
const MISC_BPF: u16 = 1 << 15;

/// What a record tells of losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// A LOST record.
    Lost(u64),
    /// Samples that never came to the ring.
    Samples(u64),
    /// All losses of an event, wherever they were. 0 of what a filter left out.
    Whole(u64),
}

impl Loss {
    /// What a record tells, if it is one of these kinds.
    #[inline]
    pub(crate) fn of(record: &[u8], sorting: &Sorting) -> Option<Self> {
        let bytes = Bytes::from(record);
        match bytes.u32(0)? {
            bindings::PERF_RECORD_LOST => Some(Self::Lost(bytes.u64(16).unwrap_or(0))),
            bindings::PERF_RECORD_LOST_SAMPLES => {
                let count = bytes.u64(8).unwrap_or(0);
                let (_, misc, _) = crate::pieces::header(record);
                Some(match sorting.time(record) {
                    _ if misc & MISC_BPF != 0 => Self::Whole(0),
                    None | Some(0) => Self::Whole(count),
                    Some(_) => Self::Samples(count),
                })
            }
            _ => None,
        }
    }

    /// Whether it is a count of the whole recording, which is no record of the stream.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Self::Whole(_))
    }
}
