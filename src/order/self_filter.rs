//! The tracer's own threads, and the records about them.

use crate::record::Record;
use crate::rings::{Rings, place_of};
use crate::sys::machine;
use perf_event_open_sys::bindings;
use smallvec::SmallVec;
use std::cell::RefCell;

/// The records that a stream leaves out ([`Order::without_self`](crate::Order::without_self)).
#[derive(Debug)]
pub(crate) struct SelfFilter {
    threads: SmallVec<[u32; 4]>,
    /// In a PID namespace: which numbers tracepoints have for these threads, as far as records with both have told.
    outside: Option<RefCell<SmallVec<[u32; 4]>>>,
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
    /// A filter for these rings. It leaves out the calling thread first.
    pub(crate) fn new(rings: &Rings) -> Self {
        let outside = if machine::has_global_threads() { None } else { Some(RefCell::default()) };
        let about = (0..rings.sources().len()).map(|source| About::of(rings, source)).collect();
        Self { threads: SmallVec::from_slice(&[machine::thread()]), outside, about }
    }

    /// Leaves out one more thread.
    pub(crate) fn add(&mut self, thread: u32) {
        if !self.has(thread) {
            self.threads.push(thread);
        }
    }

    fn has(&self, thread: u32) -> bool {
        self.threads.contains(&thread)
    }

    /// The same, by the number that a tracepoint has.
    fn has_traced(&self, thread: u32) -> bool {
        match &self.outside {
            Some(outside) => outside.borrow().contains(&thread),
            None => self.has(thread),
        }
    }

    /// A record of a tracepoint that says by `PERF_SAMPLE_TID` that one of our threads wrote it tells that thread's
    /// number in tracepoints.
    fn learn(&self, record: &Record<'_>) {
        let Some(outside) = &self.outside else { return };
        let is_ours = record.pid_tid().is_some_and(|(_, thread)| self.has(thread));
        if let Some(thread) = writer(record).filter(|thread| is_ours && !self.has_traced(*thread)) {
            outside.borrow_mut().push(thread);
        }
    }

    /// Whether a record is about the tracer's threads alone.
    pub(crate) fn is_about_us(&self, record: &Record<'_>) -> bool {
        let about = match record.kind() {
            bindings::PERF_RECORD_SAMPLE => {
                // Records of adopted rings name no source.
                record.source().and_then(|source| self.about.get(source)).unwrap_or(&About::Sampled)
            }
            _ => &About::Sampled,
        };
        // First, since the verdict below goes by what was learnt.
        if !matches!(about, About::Sampled | About::Nobody) {
            self.learn(record);
        }
        let number = |place: &usize| record.payload()?.u32(*place);
        let thread = match about {
            About::Switch { from, to } => {
                let (Some(from), Some(to)) = (number(from), number(to)) else { return false };
                // From the tracer to an idle CPU, or back: no other program starts or stops.
                let ours = [from, to].map(|thread| self.has_traced(thread));
                return ours[0] && (ours[1] || to == 0) || ours[1] && from == 0;
            }
            About::Thread(place) => match number(place) {
                Some(thread) if self.has_traced(thread) => Some(thread),
                // An action of the tracer on another thread, such as a wake-up.
                _ => writer(record),
            },
            About::Writer => writer(record),
            About::Nobody => None,
            About::Sampled => return record.pid_tid().is_some_and(|(_, thread)| self.has(thread)),
        };
        thread.is_some_and(|thread| self.has_traced(thread))
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
