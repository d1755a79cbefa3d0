//! The tracer's own threads, and the records about them.

use crate::record::Record;
use crate::record::clock::Clock;
use crate::rings::{Rings, place_of};
use crate::sys::machine;
use crate::sys::thread::Thread;
use perf_event_open_sys::bindings;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;

/// The tracer's threads: those that read, and those of its fences.
#[derive(Debug, Default)]
pub(crate) struct Tracers(SmallVec<[Tracer; 4]>);

#[derive(Debug)]
struct Tracer {
    thread: Arc<Thread>,
    number: u32,
    /// In a PID namespace: which number tracepoints have for it, once a record with both has told.
    outside: Cell<Option<u32>>,
    /// For one that has ended: records with later times are another thread's, which has its number now. A time of the
    /// clock that stamps records.
    until: Option<u64>,
}

/// So many threads are kept that have ended, for records of theirs that were not read yet.
const ENDED: usize = 16;

impl Tracers {
    pub(crate) fn add(&mut self, thread: &Arc<Thread>) {
        if !self.0.iter().any(|tracer| Arc::ptr_eq(&tracer.thread, thread)) {
            let (outside, until) = Default::default();
            self.0.push(Tracer { thread: Arc::clone(thread), number: thread.number, outside, until });
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

    /// The thread that had this number when the record was written.
    fn find(&self, number: u32, record: &Record<'_>) -> Option<&Tracer> {
        self.0.iter().find(|tracer| tracer.number == number && tracer.lived(record))
    }
}

impl Tracer {
    /// Whether it had its number when the record was written.
    fn lived(&self, record: &Record<'_>) -> bool {
        self.until.is_none_or(|until| record.time().is_some_and(|time| time < until))
    }
}

/// The records that a stream leaves out ([`Order::without_self`](crate::Order::without_self)).
#[derive(Debug)]
pub(crate) struct SelfFilter {
    /// Whether tracepoints have the numbers that threads have here: not in a PID namespace.
    is_global: bool,
    /// The number of this process.
    process: u32,
    /// By source.
    about: Vec<About>,
}

/// Which field of a record names the thread that it is about, by its place in the payload.
#[derive(Debug)]
enum About {
    /// A switch from one thread to another.
    Switch { from: usize, to: usize },
    /// A thread on which another thread acts.
    Thread(usize),
    /// The writer: the field that all tracepoints and probes have.
    Writer,
    /// Unknown.
    Nobody,
    /// The running thread, if the kernel records it (`PERF_SAMPLE_TID`).
    Sampled,
}

/// Where `common_pid` lies in the payload of each tracepoint (`struct trace_entry`, include/linux/trace_events.h).
const COMMON_PID: usize = 4;

impl SelfFilter {
    pub(crate) fn new(rings: &Rings) -> Self {
        let about = (0..rings.sources().len()).map(|source| About::of(rings, source)).collect();
        Self { is_global: machine::has_global_threads(), process: std::process::id(), about }
    }

    /// Whether a number that a tracepoint has is that of a thread of ours.
    fn has_traced(&self, tracers: &Tracers, number: u32, record: &Record<'_>) -> bool {
        if self.is_global {
            return tracers.find(number, record).is_some();
        }
        tracers.0.iter().any(|tracer| tracer.outside.get() == Some(number) && tracer.lived(record))
    }

    /// The thread of ours that the kernel says was running (`PERF_SAMPLE_TID`).
    fn sampled<'a>(&self, tracers: &'a Tracers, record: &Record<'_>) -> Option<&'a Tracer> {
        let (_, thread) = record.pid_tid().filter(|(process, _)| *process == self.process)?;
        tracers.find(thread, record)
    }

    /// A record of a tracepoint that says by `PERF_SAMPLE_TID` that one of our threads wrote it tells that thread's
    /// number in tracepoints.
    fn learn(&self, tracers: &Tracers, record: &Record<'_>) {
        if !self.is_global
            && let Some(tracer) = self.sampled(tracers, record)
            && let Some(number) = writer(record)
        {
            tracer.outside.set(Some(number));
        }
    }

    /// Whether a record is about the tracer's threads alone.
    pub(crate) fn is_about_us(&self, tracers: &Tracers, record: &Record<'_>) -> bool {
        let about = match record.kind() {
            bindings::PERF_RECORD_SAMPLE => {
                // Records of adopted rings name no source.
                record.source().and_then(|source| self.about.get(source)).unwrap_or(&About::Sampled)
            }
            _ => &About::Sampled,
        };
        // First, since the verdict below goes by what was learnt.
        if !matches!(about, About::Sampled | About::Nobody) {
            self.learn(tracers, record);
        }
        let number = |place: &usize| record.payload()?.u32(*place);
        let is_ours = |thread: u32| self.has_traced(tracers, thread, record);
        let thread = match about {
            About::Switch { from, to } => {
                let (Some(from), Some(to)) = (number(from), number(to)) else { return false };
                // From the tracer to an idle CPU, or back: no other program starts or stops.
                let ours = [from, to].map(is_ours);
                return ours[0] && (ours[1] || to == 0) || ours[1] && from == 0;
            }
            About::Thread(place) => match number(place) {
                Some(thread) if is_ours(thread) => return true,
                // An action of the tracer on another thread, such as a wake-up.
                _ => writer(record),
            },
            About::Writer => writer(record),
            About::Nobody => None,
            About::Sampled => return self.sampled(tracers, record).is_some(),
        };
        thread.is_some_and(is_ours)
    }
}

fn writer(record: &Record<'_>) -> Option<u32> {
    record.payload()?.u32(COMMON_PID)
}

impl About {
    fn of(rings: &Rings, index: usize) -> Self {
        let source = &rings.sources()[index];
        let is_tracepoint = source.tracepoint_id().is_some();
        let Ok(format) = rings.format(index) else {
            // The subject is unknown, so nothing is left out.
            return if is_tracepoint { Self::Nobody } else { Self::Sampled };
        };
        let name = format.lines().find_map(|line| line.strip_prefix("name:")).unwrap_or_default();
        let is_scheduler = name.trim().starts_with("sched_");
        let place = |field: &str| place_of(&format, field).filter(|_| is_scheduler);
        match (place("prev_pid"), place("next_pid"), place("pid")) {
            (Some(from), Some(to), _) => Self::Switch { from, to },
            (_, _, Some(thread)) => Self::Thread(thread),
            _ => Self::Writer,
        }
    }
}
