//! An indexed stretch of a ring: a record, a loss or damage, with its key.

use crate::instrument::step;
use crate::record::{Origin, Record};
use crate::ring::{Bytes, Fault, Header};
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::numbers::Hole;
use std::cmp::Ordering;
use std::sync::Arc;

/// How an entry came by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyed {
    /// The record's own, or for a LOST record that of the record it was written with.
    Own,
    /// That of the record before it in its ring.
    Before,
    /// None, and nothing before it has one either.
    Never,
}

/// What the tag of an indexed header says. `NOTED` goes with any of the other three.
pub(super) const OWN: u8 = 0;
pub(super) const SKIPPED: u8 = 1;
pub(super) const BEFORE: u8 = 2;
pub(super) const NEVER: u8 = 3;
pub(super) const NOTED: u8 = 4;

/// An indexed stretch of a ring. Its length was checked when it was indexed and is not read again (I4).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) position: u64,
    /// As it was checked, with a tag. Damage, and losses that nothing follows, have none but their length.
    pub(super) header: Header,
}

impl Entry {
    /// In place of an entry where there is none.
    pub(crate) const NONE: Self = Self { key: 0, position: 0, header: Header::NONE };

    /// Whether it is a record with a key of its own, and nothing is noted of it.
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

    /// Bytes that it stands for.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.header.len()
    }

    /// The same of a record.
    #[inline(always)]
    pub(crate) fn record_len(&self) -> u64 {
        self.header.size().into()
    }

    /// The record that it stands for.
    #[inline]
    pub(crate) fn record<'a>(&self, bytes: Bytes<'a>, origin: &'a Arc<Origin>) -> Record<'a> {
        Record::new(bytes, self.header.tagged(OWN), origin)
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

/// What only few entries need, kept aside by position. An entry without a note is a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Note {
    /// Of a LOST record: what it says that was not told before, and the key of the record before it in its ring. Also of
    /// what the kernel counts and no LOST record has told yet.
    Lost { id: u64, count: u64, after: Option<u64> },
    /// Of a LOST record: all that it says was told before, or it says nothing.
    Told,
    /// Of damage: what is wrong.
    Fault(Fault),
    /// Of a record: its number is not the one that was expected.
    Anomaly { kind: AnomalyKind, expected: u64, found: u64 },
    /// Of a record: numbers before its own are missing, or were when it was indexed, and the key of the record before it in its ring.
    Hole { hole: Hole, after: Option<u64> },
}
