//! What the stream yields.

use crate::account::breaks::Break;
use crate::order::hold::Class;
use crate::record::{Origin, Record};
use crate::ring::{Bytes, Fault, Header};
use std::sync::Arc;

/// One thing in the stream, at its place in the order.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    pub(crate) key: Option<u64>,
    pub(crate) class: Class,
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
    /// Numbers that are missing.
    Gap(Gap),
    /// A number that is not the one that was expected, nor ahead of it.
    Irregular(Irregular),
    /// Bytes that cannot be a record.
    Damage(Damage<'a>),
    /// From here on records come before their order is proven.
    Unproven(Unproven),
}

/// Records that the kernel dropped: `PERF_RECORD_LOST`.
///
/// The kernel writes it together with the next record that fits (`__perf_output_begin`,
/// `kernel/events/ring_buffer.c`), and it has its place right before that record. Under a rule that only assumes the order,
/// something with a smaller key may turn up between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "PERF_RECORD_LOST")]
#[doc(alias = "lost samples")]
pub struct Lost {
    /// The CPU whose ring was full.
    pub cpu: u32,
    /// How many records were dropped.
    pub count: u64,
    /// The id of the event that wrote the record after the loss (`PERF_EVENT_IOC_ID`). The lost ones may have been other
    /// events' that share the ring.
    pub id: u64,
    /// The source that id stands for, as [`Record::source`] has it.
    pub source: Option<usize>,
    /// The key of the record before the loss in the same ring; `None` if it is the first or none had a key.
    pub after: Option<u64>,
    /// The key of the record behind the loss in the same ring, with which the kernel wrote the count down.
    pub until: Option<u64>,
}

/// Sequence numbers that are missing from the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// The CPU whose own numbers they are; `None` if it is one counter for the whole machine.
    pub cpu: Option<u32>,
    /// The first number missing.
    pub first: u64,
    /// The last number missing. Smaller than the first where the counter wraps in between.
    pub last: u64,
    /// How many are missing.
    pub count: u64,
    /// The key of the record before; `None` if there is none, or it has none. In the same ring, if the numbers are a CPU's own.
    pub after: Option<u64>,
    /// The key of the record that showed them missing.
    pub until: Option<u64>,
}

/// A number that breaks its sequence. Its record follows.
///
/// Of several that follow each other, only the first is told; [`RingStats`](crate::RingStats) count all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Irregular {
    /// The CPU whose own number it is.
    pub cpu: u32,
    /// What it looks like.
    pub how: Break,
    /// The number that should have come.
    pub expected: u64,
    /// The number that came.
    pub found: u64,
}

/// Records are let out before their hold rule would have let them out, because holding them takes more memory than it may, or
/// because a ring is too full ([`Full`](crate::Full)).
///
/// Told once, right before the first of them. They are [`Class::Assumed`]; the next record that is not is in proven order again.
/// [`Stats::early`](crate::Stats::early) counts them.
///
/// What helps: a larger bound ([`Full::Copy`](crate::Full::Copy)), larger rings, or a reader that is called more often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unproven {
    /// The CPU whose ring is the fullest.
    pub cpu: u32,
    /// How full it is, in percent.
    pub filled: u8,
    /// Bytes of memory that holding takes.
    pub memory: usize,
    /// The most that it may take; 0 where held records are not copied out of their rings.
    pub most: usize,
}

/// Bytes of a ring that cannot be a record, given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage<'a> {
    /// The CPU whose ring it is.
    pub cpu: u32,
    /// What is wrong.
    pub fault: Fault,
    /// The bytes given up, header included; none where the fault is the head.
    pub bytes: Bytes<'a>,
}

impl<'a> Item<'a> {
    /// The loss, if it is one.
    pub fn lost(&self) -> Option<Lost> {
        if let Self::Lost(lost) = self { Some(*lost) } else { None }
    }

    /// The gap, if it is one.
    pub fn gap(&self) -> Option<Gap> {
        if let Self::Gap(gap) = self { Some(*gap) } else { None }
    }

    /// The damage, if it is that.
    pub fn damage(&self) -> Option<Damage<'a>> {
        if let Self::Damage(damage) = self { Some(*damage) } else { None }
    }
}

impl<'a> Event<'a> {
    /// The key that ordered the event: of a record, its own; of a loss, that of the record written with it. `None` for
    /// whatever has none and stays with the record before it.
    #[inline]
    pub fn key(&self) -> Option<u64> {
        self.key
    }

    /// How far its place in the order can be trusted.
    #[inline]
    pub fn class(&self) -> Class {
        self.class
    }

    /// By how much, in units of the key, it is late: the largest key yielded before, less its own. 0 unless its class is
    /// [`Class::Late`].
    #[inline]
    pub fn late_by(&self) -> u64 {
        self.late_by
    }

    /// The CPU it comes from; `None` for a gap in what the whole machine counts.
    #[inline]
    pub fn cpu(&self) -> Option<u32> {
        match &self.item {
            Item::Record(record) => Some(record.cpu()),
            Item::Lost(lost) => Some(lost.cpu),
            Item::Damage(damage) => Some(damage.cpu),
            Item::Irregular(irregular) => Some(irregular.cpu),
            Item::Gap(gap) => gap.cpu,
            Item::Unproven(unproven) => Some(unproven.cpu),
        }
    }

    /// What it is.
    #[inline]
    pub fn item(&self) -> Item<'a> {
        self.item
    }

    /// The record, if it is one.
    #[inline]
    pub fn record(&self) -> Option<Record<'a>> {
        match self.item {
            Item::Record(record) => Some(record),
            _ => None,
        }
    }

    /// A copy that can be kept.
    pub fn to_owned(&self) -> OwnedEvent {
        let item = match &self.item {
            Item::Record(record) => OwnedItem::Record(OwnedRecord {
                bytes: record.as_bytes().to_vec().into(),
                header: record.header(),
                origin: Arc::clone(record.origin()),
            }),
            Item::Lost(lost) => OwnedItem::Lost(*lost),
            Item::Gap(gap) => OwnedItem::Gap(*gap),
            Item::Irregular(irregular) => OwnedItem::Irregular(*irregular),
            Item::Unproven(unproven) => OwnedItem::Unproven(*unproven),
            Item::Damage(Damage { cpu, fault, bytes }) => {
                OwnedItem::Damage { cpu: *cpu, fault: *fault, bytes: bytes.to_vec().into() }
            }
        };
        OwnedEvent { key: self.key, class: self.class, late_by: self.late_by, item }
    }
}

/// An event with its bytes copied out of the ring, to keep.
#[derive(Debug, Clone)]
pub struct OwnedEvent {
    key: Option<u64>,
    class: Class,
    late_by: u64,
    item: OwnedItem,
}

#[derive(Debug, Clone)]
enum OwnedItem {
    Record(OwnedRecord),
    Lost(Lost),
    Gap(Gap),
    Irregular(Irregular),
    Unproven(Unproven),
    Damage { cpu: u32, fault: Fault, bytes: Box<[u8]> },
}

#[derive(Debug, Clone)]
struct OwnedRecord {
    bytes: Box<[u8]>,
    header: Header,
    origin: Arc<Origin>,
}

impl OwnedEvent {
    /// The event, borrowed: everything that [`Event`] can say.
    pub fn as_event(&self) -> Event<'_> {
        let item = match &self.item {
            OwnedItem::Record(OwnedRecord { bytes, header, origin }) => {
                Item::Record(Record::new(Bytes::from(&**bytes), *header, origin))
            }
            OwnedItem::Lost(lost) => Item::Lost(*lost),
            OwnedItem::Gap(gap) => Item::Gap(*gap),
            OwnedItem::Irregular(irregular) => Item::Irregular(*irregular),
            OwnedItem::Unproven(unproven) => Item::Unproven(*unproven),
            OwnedItem::Damage { cpu, fault, bytes } => {
                Item::Damage(Damage { cpu: *cpu, fault: *fault, bytes: Bytes::from(&**bytes) })
            }
        };
        Event { key: self.key, class: self.class, late_by: self.late_by, item }
    }
}
