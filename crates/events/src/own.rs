//! The records about the tracer alone, which a reader may leave out.

use crate::Format;
use perf_event_open_sys::bindings;
use perfweave::{Order, Record, Rings};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Leaves out what is about the tracer.
pub trait WithoutSelf {
    /// Leaves out records about the tracer alone: about the threads that read these rings, and about the thread that
    /// waits for their fences. On an idle machine most events of a scheduler trace are about the tracer.
    ///
    /// A record is left out in these cases:
    ///
    /// - A tracepoint or a probe wrote it in a thread of the tracer (`common_pid`). Example: the reader wakes another
    ///   thread.
    /// - A tracepoint of the scheduler (`sched_*`) wrote it, and its field `pid` is a thread of the tracer. Example:
    ///   another thread wakes the reader.
    /// - It is a `sched:sched_switch` between a thread of the tracer and the idle thread, or between two threads of the
    ///   tracer. A switch between the reader and another program stays, since it says when that program ran. So half of
    ///   the reader's own switches may stay. A tool that pairs switches leaves
    ///   [`Reader::threads`](perfweave::Reader::threads) out of its result.
    /// - It is any other record with `PERF_SAMPLE_TID`, from a thread of the tracer.
    ///
    /// Inside a PID namespace, as in a container, tracepoints have other numbers for the tracer's threads. There a
    /// record with `PERF_SAMPLE_TID` that one of them writes tells its number. Without that sample,
    /// and for adopted rings, only the last rule applies. Nothing is left out of a file.
    ///
    /// Once a thread that has read ends, the kernel may give its number to another process. So records with times after
    /// its end stay, and those of its last steps too, from where it drops its thread-local values on. Of the threads
    /// that have ended, only the last 16 are known. All records about one that has ended stay if they have no time, or
    /// that of [`Clock::Perf`](perfweave::Clock::Perf), which cannot be compared. Read from threads that live long.
    ///
    /// [`Status::left_out`](perfweave::Status::left_out) counts the records that were left out. A ledger counts them as
    /// yielded. Their numbers and keys are checked like all others. A reader knows a thread from that thread's first
    /// refresh on ([`Reader::threads`](perfweave::Reader::threads)). A filter in the kernel
    /// ([`EventOptions::filter`](crate::EventOptions::filter)) can leave out threads that are known when the rings are
    /// opened. It counts nothing.
    #[doc(alias = "filter")]
    #[must_use]
    fn without_self(self) -> Self;
}

impl WithoutSelf for Order {
    fn without_self(self) -> Self {
        self.leave_out(|rings| {
            let mut own = Own::new(rings);
            Box::new(move |record, is_ours| own.is_about(record, is_ours))
        })
    }
}

/// Which records are about the tracer.
struct Own {
    /// Whether tracepoints have the numbers that threads have here: not in a PID namespace.
    is_global: bool,
    /// In a PID namespace: which number tracepoints have for a thread, once a record with both has told.
    outside: HashMap<u32, u32>,
    /// The number of this process.
    process: u32,
    /// By source.
    about: Vec<About>,
}

/// How many numbers of threads are kept at most. Those of threads that go on are learnt again.
const MOST_LEARNT: usize = 1 << 10;

/// Which field of a record names the thread that it is about, by its place in the payload.
#[derive(Debug, Clone, Copy)]
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

/// Whether a thread of the tracer had a number when the record was written.
type IsOurs<'a> = &'a dyn Fn(u32) -> bool;

impl Own {
    fn new(rings: &Rings) -> Self {
        let about = (0..rings.sources().len()).map(|source| About::of(rings, source)).collect();
        Self { is_global: has_global_threads(), outside: HashMap::new(), process: std::process::id(), about }
    }

    /// Whether a number that a tracepoint has is that of a thread of ours.
    fn has_traced(&self, number: u32, is_ours: IsOurs<'_>) -> bool {
        if self.is_global {
            return is_ours(number);
        }
        self.outside.iter().any(|(inside, outside)| *outside == number && is_ours(*inside))
    }

    /// The thread of ours that the kernel says was running (`PERF_SAMPLE_TID`).
    fn sampled(&self, record: &Record<'_>, is_ours: IsOurs<'_>) -> Option<u32> {
        let (process, thread) = record.pid_tid()?;
        (process == self.process && is_ours(thread)).then_some(thread)
    }

    /// A record of a tracepoint that says by `PERF_SAMPLE_TID` that one of our threads wrote it tells that thread's
    /// number in tracepoints.
    fn learn(&mut self, record: &Record<'_>, is_ours: IsOurs<'_>) {
        if !self.is_global
            && let Some(thread) = self.sampled(record, is_ours)
            && let Some(number) = writer(record)
        {
            if self.outside.len() == MOST_LEARNT {
                self.outside.clear();
            }
            self.outside.insert(thread, number);
        }
    }

    /// Whether a record is about the tracer's threads alone.
    fn is_about(&mut self, record: &Record<'_>, is_ours: IsOurs<'_>) -> bool {
        let place = match record.kind() {
            // Records of adopted rings name no source.
            bindings::PERF_RECORD_SAMPLE => record.source().and_then(|source| self.about.get(source)).copied(),
            _ => None,
        };
        let about = place.unwrap_or(About::Sampled);
        // First, since the verdict below goes by what was learnt.
        if !matches!(about, About::Sampled | About::Nobody) {
            self.learn(record, is_ours);
        }
        let number = |place: usize| record.payload()?.u32(place);
        let is_traced = |thread: u32| self.has_traced(thread, is_ours);
        let thread = match about {
            About::Switch { from, to } => {
                let (Some(from), Some(to)) = (number(from), number(to)) else { return false };
                // From the tracer to an idle CPU, or back: no other program starts or stops.
                let ours = [from, to].map(is_traced);
                return ours[0] && (ours[1] || to == 0) || ours[1] && from == 0;
            }
            About::Thread(place) => match number(place) {
                Some(thread) if is_traced(thread) => return true,
                // An action of the tracer on another thread, such as a wake-up.
                _ => writer(record),
            },
            About::Writer => writer(record),
            About::Nobody => None,
            About::Sampled => return self.sampled(record, is_ours).is_some(),
        };
        thread.is_some_and(is_traced)
    }
}

fn writer(record: &Record<'_>) -> Option<u32> {
    record.payload()?.u32(COMMON_PID)
}

/// Whether the thread numbers here are those that the kernel writes into tracepoints: not in a PID namespace of a
/// container.
fn has_global_threads() -> bool {
    /// `PROC_PID_INIT_INO` of `include/linux/proc_ns.h`, unchanged since Linux 3.8.
    const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
    // Unknown without /proc.
    fs::metadata("/proc/self/ns/pid").map_or(true, |space| space.ino() == FIRST_PID_NAMESPACE)
}

impl About {
    fn of(rings: &Rings, index: usize) -> Self {
        let is_tracepoint = rings.sources()[index].tracepoint_id().is_some();
        let Ok(format) = Format::of(rings, index) else {
            // The subject is unknown, so nothing is left out.
            return if is_tracepoint { Self::Nobody } else { Self::Sampled };
        };
        let is_scheduler = format.name().starts_with("sched_");
        let place = |field: &str| {
            let field = format.field(field).ok().filter(|field| is_scheduler && field.size() == 4)?;
            Some(field.offset())
        };
        match (place("prev_pid"), place("next_pid"), place("pid")) {
            (Some(from), Some(to), _) => Self::Switch { from, to },
            (_, _, Some(thread)) => Self::Thread(thread),
            _ => Self::Writer,
        }
    }
}
