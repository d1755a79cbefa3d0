//! The tracer's own threads, and the records that a stream leaves out, which may be about them.

use crate::record::Record;
use crate::record::clock::Clock;
use crate::sys::thread::Thread;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// The tracer's threads: those that read, and those of its fences.
#[derive(Debug, Default)]
pub(crate) struct Tracers(SmallVec<[Tracer; 4]>);

#[derive(Debug)]
struct Tracer {
    thread: Arc<Thread>,
    number: u32,
    /// For one that has ended: records with later times are another thread's, which has its number now. A time of the
    /// clock that stamps records.
    until: Option<u64>,
}

/// So many threads are kept that have ended, for records of theirs that were not read yet.
const ENDED: usize = 16;

impl Tracers {
    pub(crate) fn add(&mut self, thread: &Arc<Thread>) {
        if !self.0.iter().any(|tracer| Arc::ptr_eq(&tracer.thread, thread)) {
            self.0.push(Tracer { thread: Arc::clone(thread), number: thread.number, until: None });
        }
    }

    /// Learns which threads have ended. Call it after the heads were loaded: what lies before them was written while
    /// the others had their numbers.
    pub(crate) fn note_ends(&mut self, clock: Clock) {
        for tracer in self.0.iter_mut().filter(|tracer| tracer.until.is_none()) {
            if let Some(time) = tracer.thread.ended() {
                // Times of the perf clock cannot be compared: the number is forgotten at once.
                tracer.until = Some(Clock::Monotonic.offset_to(clock).map_or(0, |offset| offset.apply(time)));
            }
        }
        let mut surplus = self.0.iter().filter(|tracer| tracer.until.is_some()).count().saturating_sub(ENDED);
        self.0.retain(|tracer| {
            let is_surplus = tracer.until.is_some() && surplus > 0;
            surplus -= usize::from(is_surplus);
            !is_surplus
        });
    }

    /// The numbers of those that have not ended.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter(|tracer| tracer.thread.ended().is_none()).map(|tracer| tracer.number)
    }

    /// Whether one of them had this number when the record was written.
    fn had(&self, number: u32, record: &Record<'_>) -> bool {
        self.0.iter().any(|tracer| tracer.number == number && tracer.lived(record))
    }
}

impl Tracer {
    /// Whether it had its number when the record was written.
    fn lived(&self, record: &Record<'_>) -> bool {
        self.until.is_none_or(|until| record.time().is_some_and(|time| time < until))
    }
}

/// Says whether a stream leaves out a record. It can ask whether a thread that reads these rings, or waits for their
/// fences, had a number when the record was written.
pub(crate) type Filter = Box<dyn FnMut(&Record<'_>, &dyn Fn(u32) -> bool) -> bool + Send + Sync>;

/// The records that a stream leaves out ([`Order::leave_out`](crate::Order::leave_out)).
pub(crate) struct Leaving(pub(crate) Filter);

impl Leaving {
    pub(crate) fn leaves_out(&mut self, tracers: &Tracers, record: &Record<'_>) -> bool {
        self.0(record, &|number| tracers.had(number, record))
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leaving")
    }
}
