//! Events: what the stream yields.

use crate::merge::certainty::Certainty;
use crate::record::{Origin, Record};
use crate::ring::{ANY_CPU, Bytes, Fault, Header};
use crate::rings::Untraced;
use crate::sequence::anomaly::AnomalyKind;
use std::fmt;
use std::sync::Arc;

/// A record, a loss or another item, at its place in the stream.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    pub(crate) key: Option<u64>,
    pub(crate) certainty: Certainty,
    pub(crate) late_by: u64,
    pub(crate) item: Item<'a>,
}

/// What an event is.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
#[doc(alias = "what")]
#[doc(alias = "kind")]
pub enum Item<'a> {
    /// A record, where it lies in its ring.
    Record(Record<'a>),
    /// Records that the kernel dropped because a ring was full.
    Lost(Lost),
    /// Sequence numbers that are missing.
    Gap(Gap),
    /// A number that breaks its sequence.
    Anomaly(SequenceAnomaly),
    /// Bytes that cannot be a record.
    Damage(Damage<'a>),
    /// From some time on a CPU is not traced, or it is traced again.
    Untraced(Untraced),
    /// All events that were in the rings at a [`Handle::flush`](crate::Handle::flush) have been yielded. Newer ones
    /// follow.
    Flushed {
        /// Whether that is so. If not, the flush has waited long enough for a program that has not committed what it
        /// reserved in a BPF ring buffer ([`Order::latency`](crate::Order::latency)). Events that cannot be proven
        /// before it does are held, and come later.
        complete: bool,
    },
}

/// Records that the kernel dropped: `PERF_RECORD_LOST`, or samples that the processor dropped:
/// `PERF_RECORD_LOST_SAMPLES`.
///
/// The kernel writes a LOST record together with the next record that fits (`__perf_output_begin`,
/// `kernel/events/ring_buffer.c`). The loss has its place right before that record. Under a rule that only assumes the
/// order, an event with a smaller key may come between the two. A LOST_SAMPLES record has a time of its own, which is
/// the loss's place and its `until`: then the kernel found that the processor's own buffer (PEBS) had lost samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "PERF_RECORD_LOST")]
#[doc(alias = "PERF_RECORD_LOST_SAMPLES")]
#[doc(alias = "lost samples")]
pub struct Lost {
    /// The CPU whose ring was full; [`ANY_CPU`] for a BPF ring buffer that CPUs share.
    pub cpu: u32,
    /// The program's number of that ring ([`Layout::tagged`](crate::Layout::tagged)). 0 if it chose none.
    pub tag: u32,
    /// How many records were dropped.
    pub count: u64,
    /// The id of the event that wrote the record after the loss (`PERF_EVENT_IOC_ID`). The lost records may be those of
    /// other events that share the ring.
    pub id: u64,
    /// The source of that id, as in [`Record::source`].
    pub source: Option<usize>,
    /// The key of the record before the loss in the same ring. `None` if the loss is first or no record before it had a
    /// key.
    pub after: Option<u64>,
    /// The key of the record after the loss in the same ring. The kernel wrote the count with that record.
    pub until: Option<u64>,
}

/// Sequence numbers that are missing from the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// The CPU that counts these numbers. `None` if one counter counts for the whole machine.
    pub cpu: Option<u32>,
    /// The first missing number.
    pub first: u64,
    /// The last missing number. Smaller than `first` where the counter wraps in between.
    pub last: u64,
    /// How many numbers are missing.
    pub count: u64,
    /// The key of the record before the gap. `None` if there is none, or it has no key. For a CPU's own numbers, the
    /// record before in the same ring.
    pub after: Option<u64>,
    /// The key of the record that showed the gap.
    pub until: Option<u64>,
}

/// A number that breaks its sequence. The record with that number follows.
///
/// Of several such numbers in a row, only the first is an event. [`Account::anomalies`](crate::Account::anomalies)
/// counts all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceAnomaly {
    /// The CPU that counts the number.
    pub cpu: u32,
    /// What is wrong with it.
    pub kind: AnomalyKind,
    /// The number that should have come.
    pub expected: u64,
    /// The number that came.
    pub found: u64,
}

/// Bytes of a ring that cannot be a record. The reader skips them. `Display` says what is wrong, with its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage<'a> {
    /// The CPU of the ring.
    pub cpu: u32,
    pub(crate) fault: Fault,
    /// The bytes that the reader skips, header included. Empty if the fault is the head.
    pub bytes: Bytes<'a>,
}

impl Damage<'_> {
    /// What is wrong (feature `test-util`).
    #[cfg(any(test, feature = "test-util"))]
    pub fn fault(&self) -> Fault {
        self.fault
    }
}

impl fmt::Display for Damage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes are no record: {}", self.bytes.len(), self.fault)
    }
}

impl Item<'_> {
    /// The loss, if the item is one (feature `test-util`).
    #[cfg(any(test, feature = "test-util"))]
    pub fn lost(&self) -> Option<Lost> {
        if let Self::Lost(lost) = self { Some(*lost) } else { None }
    }
}

impl<'a> Event<'a> {
    /// The key that ordered the event. A record has its own; a loss has the key of the record written with it. `None`
    /// for an event that has no key and stays with the record before it.
    #[inline]
    pub fn key(&self) -> Option<u64> {
        self.key
    }

    /// How far the event's place in the order can be trusted.
    #[inline]
    pub fn certainty(&self) -> Certainty {
        self.certainty
    }

    /// How late the event is, in units of the key: the largest key yielded before, less the event's key. 0 unless the
    /// certainty is [`Certainty::Late`].
    #[inline]
    pub fn late_by(&self) -> u64 {
        self.late_by
    }

    /// The CPU of the event. `None` for a gap in numbers of the whole machine, for a flush, and for a BPF ring buffer
    /// that CPUs share.
    #[inline]
    pub fn cpu(&self) -> Option<u32> {
        let cpu = match &self.item {
            Item::Record(record) => record.cpu(),
            Item::Lost(lost) => lost.cpu,
            Item::Damage(damage) => damage.cpu,
            Item::Anomaly(anomaly) => anomaly.cpu,
            Item::Gap(gap) => gap.cpu?,
            Item::Untraced(untraced) => untraced.cpu,
            Item::Flushed { .. } => return None,
        };
        (cpu != ANY_CPU).then_some(cpu)
    }

    /// What the event is.
    #[inline]
    pub fn item(&self) -> Item<'a> {
        self.item
    }

    /// The record, if the event is one.
    #[inline]
    pub fn record(&self) -> Option<Record<'a>> {
        match self.item {
            Item::Record(record) => Some(record),
            _ => None,
        }
    }

    /// A copy of the event, to keep.
    pub fn to_owned(&self) -> OwnedEvent {
        let item = match &self.item {
            Item::Record(record) => OwnedItem::Record(OwnedRecord {
                bytes: record.as_bytes().to_vec().into(),
                header: record.header(),
                origin: Arc::clone(record.origin()),
            }),
            Item::Lost(lost) => OwnedItem::Lost(*lost),
            Item::Gap(gap) => OwnedItem::Gap(*gap),
            Item::Anomaly(anomaly) => OwnedItem::Anomaly(*anomaly),
            Item::Untraced(untraced) => OwnedItem::Untraced(*untraced),
            Item::Flushed { complete } => OwnedItem::Flushed { complete: *complete },
            Item::Damage(Damage { cpu, fault, bytes }) => {
                OwnedItem::Damage { cpu: *cpu, fault: *fault, bytes: bytes.to_vec().into() }
            }
        };
        OwnedEvent { key: self.key, certainty: self.certainty, late_by: self.late_by, item }
    }
}

/// An owned event, with its bytes copied out of the ring.
#[derive(Debug, Clone)]
pub struct OwnedEvent {
    key: Option<u64>,
    certainty: Certainty,
    late_by: u64,
    item: OwnedItem,
}

#[derive(Debug, Clone)]
enum OwnedItem {
    Record(OwnedRecord),
    Lost(Lost),
    Gap(Gap),
    Anomaly(SequenceAnomaly),
    Untraced(Untraced),
    Flushed { complete: bool },
    Damage { cpu: u32, fault: Fault, bytes: Box<[u8]> },
}

#[derive(Debug, Clone)]
struct OwnedRecord {
    bytes: Box<[u8]>,
    header: Header,
    origin: Arc<Origin>,
}

impl OwnedEvent {
    /// Borrows the event as an [`Event`], which has all methods.
    pub fn as_event(&self) -> Event<'_> {
        let item = match &self.item {
            OwnedItem::Record(OwnedRecord { bytes, header, origin }) => {
                Item::Record(Record::new(Bytes::from(&**bytes), *header, origin))
            }
            OwnedItem::Lost(lost) => Item::Lost(*lost),
            OwnedItem::Gap(gap) => Item::Gap(*gap),
            OwnedItem::Anomaly(anomaly) => Item::Anomaly(*anomaly),
            OwnedItem::Untraced(untraced) => Item::Untraced(*untraced),
            OwnedItem::Flushed { complete } => Item::Flushed { complete: *complete },
            OwnedItem::Damage { cpu, fault, bytes } => {
                Item::Damage(Damage { cpu: *cpu, fault: *fault, bytes: Bytes::from(&**bytes) })
            }
        };
        Event { key: self.key, certainty: self.certainty, late_by: self.late_by, item }
    }
}
