//! Reading back the events of stopped rings, in order.

use crate::error::Error;
use crate::order::event::{Damage, Event, Item, Lost};
use crate::record::Record;
use crate::recorder::Recorder;
use crate::recorder::recording::{Mark, Marked};
use crate::rings::CpuRing;
use std::fmt;
use std::iter::FusedIterator;
use std::time::Duration;

/// The contents of a [`Recorder`]'s stopped rings. Recording goes on when it is dropped.
pub struct Frozen<'a> {
    pub(super) recorder: &'a mut Recorder,
    pub(super) complete_from: Option<u64>,
}

impl<'a> Frozen<'a> {
    pub(super) fn new(recorder: &'a mut Recorder) -> Self {
        Self { recorder, complete_from: None }
    }

    /// All events in the rings, oldest first.
    ///
    /// In a forked child, which does not have the rings, the iterator panics.
    pub fn events(&self) -> Recorded<'_> {
        self.recorded(0)
    }

    /// The events from a key on.
    pub fn since(&self, key: u64) -> Recorded<'_> {
        self.recorded(self.recorder.marks.partition_point(|mark| mark.order < key))
    }

    /// The events of this much time before the newest, if keys are times in nanoseconds. A record with a forged time
    /// from the future does not count as the newest.
    pub fn last(&self, time: Duration) -> Recorded<'_> {
        self.since(self.recorder.newest.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The key from which on nothing is missing: no ring has overwritten a later record, or skipped one as damage.
    /// Before this key, the rings of busy CPUs have no records although events happened there.
    ///
    /// `None` if nothing is missing since the rings were opened, except records that [`Lost`] events count. `u64::MAX`
    /// if a ring with missing records holds too few records to tell, or if a CPU is not traced
    /// ([`Untraced`](crate::Untraced)), or if a CPU was not traced for some time and keys are no times.
    ///
    /// This is valid if each record's key is drawn when the record is written, as the kernel draws its times. A program
    /// that draws its own key and is preempted before it writes can leave smaller gaps after that key.
    pub fn complete_from(&self) -> Option<u64> {
        self.complete_from
    }

    /// Resumes recording, and returns the error if that fails. Dropping does not report the error.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the kernel refuses;
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child, which may not resume the parent's rings.
    pub fn resume(mut self) -> Result<(), Error> {
        self.thaw()
    }

    fn recorded(&self, from: usize) -> Recorded<'_> {
        let Recorder { rings, marks, .. } = &*self.recorder;
        Recorded { cpu_rings: &rings.cpu_rings, marks: marks[from..].iter() }
    }

    fn thaw(&mut self) -> Result<(), Error> {
        // The parent may still read.
        if self.recorder.rings.control().is_forked() {
            return Err(Error::forked());
        }
        // No slice is borrowed any more (I9).
        self.recorder.marks.clear();
        self.recorder.rings.cpu_rings.iter_mut().for_each(|cpu_ring| cpu_ring.ring.thaw());
        self.recorder.rings.control().thaw()
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        // After `resume` there is nothing left to resume. A drop cannot report a failure.
        let _ = self.thaw();
    }
}

/// Events of a [`Frozen`] recorder, oldest first.
#[derive(Clone)]
pub struct Recorded<'a> {
    cpu_rings: &'a [CpuRing],
    marks: std::slice::Iter<'a, Mark>,
}

impl<'a> Recorded<'a> {
    fn event(&self, mark: &Mark) -> Event<'a> {
        let CpuRing { ring, origin, .. } = &self.cpu_rings[mark.ring_index as usize];
        ring.assert_here();
        let bytes = || ring.bytes(mark.position, u64::from(mark.len));
        let cpu = origin.cpu;
        let key = mark.key;
        let item = match mark.what {
            Marked::Record(header) => Item::Record(Record::new(bytes(), header, origin)),
            Marked::Lost { id, count, after } => {
                Item::Lost(Lost { cpu, count, id, source: origin.source(id), after, until: key })
            }
            Marked::Corrupt(fault) => Item::Damage(Damage { cpu, fault, bytes: bytes() }),
        };
        Event { key, certainty: mark.certainty, late_by: 0, item }
    }
}

impl<'a> Iterator for Recorded<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        self.marks.next().map(|mark| self.event(mark))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.marks.size_hint()
    }
}

impl DoubleEndedIterator for Recorded<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.marks.next_back().map(|mark| self.event(mark))
    }
}

impl ExactSizeIterator for Recorded<'_> {}
impl FusedIterator for Recorded<'_> {}

impl fmt::Debug for Frozen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen")
            .field("events", &self.recorder.marks.len())
            .field("complete_from", &self.complete_from)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Recorded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").field("left", &self.marks.len()).finish_non_exhaustive()
    }
}
