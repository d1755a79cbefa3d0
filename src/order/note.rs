//! Notes: what few places need besides their 16 bytes. Notices: what comes before a record, or is of none.

use crate::instrument::step;
use crate::ring::Fault;
use crate::rings::Untraced;
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::numbers::Hole;
use std::collections::VecDeque;

/// The initial capacity of the list, in entries.
const ROOM: usize = 32;

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

/// The notes of one ring, by position.
///
/// INVARIANT: sorted by position; one for each place with a note, `None` once that was yielded, and then never at
/// either end.
#[derive(Debug)]
pub(crate) struct Notes(VecDeque<(u64, Option<Note>)>);

impl Notes {
    pub(crate) fn new() -> Self {
        Self(VecDeque::with_capacity(ROOM))
    }

    /// Adds a note behind all others.
    pub(crate) fn push(&mut self, position: u64, note: Note) {
        self.0.push_back((position, Some(note)));
    }

    /// The note on a position, if it was not yielded.
    pub(crate) fn get(&self, position: u64) -> Option<Note> {
        self.0[self.find(position)?].1
    }

    fn find(&self, position: u64) -> Option<usize> {
        let found = self.0.binary_search_by_key(&position, |(at, _)| {
            step();
            *at
        });
        found.ok()
    }

    /// The anomaly of a record was yielded. The length of the record stays.
    #[cold]
    pub(crate) fn mark_reported(&mut self, position: u64) {
        match self.find(position).map(|at| (at, self.0[at].1.map_or(0, |note| note.len()))) {
            Some((at, len @ 1..)) => self.0[at].1 = Some(Note::Long { len: len as u32 }),
            _ => self.forget(position),
        }
    }

    /// The place of a note was yielded.
    #[cold]
    pub(crate) fn forget(&mut self, position: u64) {
        if let Some(at) = self.find(position) {
            self.0[at].1 = None;
        }
        // Not removed from the middle, because that would take time proportional to the number of notes.
        while let Some((_, None)) = self.0.front() {
            step();
            self.0.pop_front();
        }
        while let Some((_, None)) = self.0.back() {
            step();
            self.0.pop_back();
        }
    }

    /// Frees memory that was not needed since the last call.
    pub(crate) fn shrink(&mut self) {
        self.0.shrink_to(ROOM);
    }

    /// Entries that there are, and for which there is room.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn len_and_room(&self) -> [usize; 2] {
        [self.0.len(), self.0.capacity()]
    }

    /// Whether a note that was yielded is at an end.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn ends_are_notes(&self) -> bool {
        [self.0.front(), self.0.back()].into_iter().flatten().all(|(_, note)| note.is_some())
    }
}

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
