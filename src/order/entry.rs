//! An indexed part of a ring: a record, a loss or damage, with its key.

use crate::instrument::step;
use crate::record::{Origin, Record};
use crate::ring::{Bytes, Fault, Header};
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::numbers::Hole;
use std::cmp::Ordering;
use std::sync::Arc;

/// The origin of an entry's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyed {
    /// The record's own, or for a LOST record that of the record it was written with.
    Own,
    /// The key of the record before it in its ring.
    Before,
    /// It has no key, and no record before it has one.
    Never,
}

/// Values of the tag of an indexed header. `NOTED` is combined with any of the other three.
pub(super) const OWN: u8 = 0;
pub(super) const SKIPPED: u8 = 1;
pub(super) const BEFORE: u8 = 2;
pub(super) const NEVER: u8 = 3;
pub(super) const NOTED: u8 = 4;

/// An indexed part of a ring. Its length was checked when it was indexed and is not read again (I4).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) position: u64,
    /// The checked header, with a tag. For damage and for losses in no ring, only a length.
    pub(super) header: Header,
}

impl Entry {
    /// Stands for no entry.
    pub(crate) const NONE: Self = Self { key: 0, position: 0, header: Header::NONE };

    /// Whether it is a record with its own key and without a note.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.header.tag() == OWN
    }

    pub(crate) fn keyed(&self) -> Keyed {
        match self.header.tag() & !NOTED {
            OWN => Keyed::Own,
            BEFORE => Keyed::Before,
            _ => Keyed::Never,
        }
    }

    pub(super) fn is_noted(&self) -> bool {
        self.header.tag() & NOTED != 0
    }

    /// Its length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.header.len()
    }

    /// The same for a record.
    #[inline(always)]
    pub(crate) fn record_len(&self) -> u64 {
        self.header.size().into()
    }

    /// Its record.
    #[inline]
    pub(crate) fn record<'a>(&self, bytes: Bytes<'a>, origin: &'a Arc<Origin>) -> Record<'a> {
        Record::new(bytes, self.header.tagged(OWN), origin)
    }

    /// Its record, of any length.
    #[cold]
    pub(crate) fn any_record<'a>(&self, bytes: Bytes<'a>, origin: &'a Arc<Origin>) -> Record<'a> {
        let header = if self.header.size() == 0 { Header::LONG } else { self.header.tagged(OWN) };
        Record::new(bytes, header, origin)
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        step();
        (self.key, self.position).cmp(&(other.key, other.position))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// Details that few entries need, stored separately by position. An entry without a note is a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Note {
    /// For a LOST record: the part of its count that was not reported before, and the key of the record before it in its ring. Also for
    /// losses that the kernel counts and no LOST record has reported yet.
    Lost { id: u64, count: u64, after: Option<u64> },
    /// For a LOST record: its count was reported before, or is zero.
    Told,
    /// For damage: the fault.
    Fault(Fault),
    /// For a record: it is too long for its header, whose size is 0.
    Long,
    /// For a record: its number is not the expected one.
    Anomaly { cpu: u32, kind: AnomalyKind, expected: u64, found: u64 },
    /// For a record: numbers before its own are missing, or were when it was indexed; and the key of the record before it in its ring.
    Hole { cpu: u32, hole: Hole, after: Option<u64> },
}
