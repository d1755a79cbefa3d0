//! Which threads of a recording were busy, and which waited for a CPU.

use crate::names::Names;
use crate::numbers::{ENDED, Numbers, OUTSIDE};
use crate::profile::is_of_time;
use crate::recent::{Recent, late};
use crate::scheduler::Scheduler;
use crate::times::{Times, short};
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Record, Rings, Status};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::HashMap;

/// The state from the stream so far. Threads have their numbers in the recorder's PID namespace.
pub struct Threads {
    names: Names,
    numbers: Numbers,
    /// Where the recording tells of switches.
    switches: Option<Scheduler>,
    /// The sources whose samples are of CPU time.
    of_time: Vec<usize>,
    /// Who runs on each CPU, by the kernel's number, and since when.
    runs: HashMap<u32, (u32, u64)>,
    /// The last time of each CPU.
    lasts: HashMap<u32, u64>,
    ran: HashMap<u32, u64>,
    /// How many threads left a CPU of which it was not known since when they ran there, and how many others.
    unknown: u64,
    known: u64,
    samples: HashMap<u32, u64>,
    events: HashMap<u32, u64>,
    waited: Recent<u32, u64, Times>,
}

/// By what threads are busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Time,
    Samples,
    Events,
}

/// A thread, and how busy it was.
#[derive(Debug)]
pub struct Busy {
    pub thread: String,
    tid: Option<u32>,
    pub amount: u64,
}

/// A thread, and how long it waited for a CPU.
#[derive(Debug)]
pub struct Delayed {
    pub thread: String,
    tid: Option<u32>,
    pub times: Times,
}

impl Threads {
    pub fn new(rings: &Rings) -> Self {
        let of_time = (0..rings.sources().len()).filter(|at| is_of_time(&rings.sources()[*at])).collect();
        let (runs, lasts, ran, unknown, known, samples, events, waited) = Default::default();
        let (names, numbers, switches) = (Names::recorded(), Numbers::recorded(), Scheduler::recorded(rings, 0).ok());
        Self { names, numbers, switches, of_time, runs, lasts, ran, unknown, known, samples, events, waited }
    }

    /// Whether samples say where CPU time went.
    pub fn has_samples_of_time(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Whether it is told who runs.
    pub fn are_told(&self) -> bool {
        self.switches.is_some()
    }

    /// How many switches have no record.
    pub fn unrecorded(&self) -> u64 {
        self.switches.as_ref().map_or(0, Scheduler::unrecorded)
    }

    /// What the recording lacks for the times, if it lacks something.
    pub fn lacks(&self) -> Option<&'static str> {
        self.switches.as_ref()?.lacks()
    }

    pub fn event(&mut self, event: &Event<'_>) {
        let Item::Record(record) = event.item() else {
            // Others may have run meanwhile.
            self.runs.clear();
            let since = self.switches.as_mut().and_then(|scheduler| scheduler.notice(event));
            return self.waited.void(since);
        };
        let Some(time) = event.key().filter(|time| *time > 0) else {
            self.names.take(&record);
            return;
        };
        let void = late(event);
        if void.is_some() {
            self.runs.clear();
        }
        self.waited.void(void);
        let unrecorded = self.unrecorded();
        let Self { switches, names, .. } = self;
        let ran = switches.as_mut().and_then(|scheduler| scheduler.record(&record, time, names));
        self.unseen();
        if let Some((tid, ran)) = ran
            && let Some(ready) = ran.ready()
        {
            self.waited.add(time, tid, time.saturating_sub(ready));
        }
        // Who has run until a switch that comes behind others without a record is not who came last.
        if self.unrecorded() > unrecorded {
            self.runs.remove(&record.cpu());
        }
        self.lasts.insert(record.cpu(), time);
        if !self.names.take(&record) {
            self.counts(&record);
            self.switches(&record, time);
        }
    }

    /// A thread that waited for a CPU where switches have no record may have run: its wait was none.
    fn unseen(&mut self) {
        for hole in self.switches.iter_mut().flat_map(Scheduler::take_holes) {
            self.waited.void_some(hole.from, |time, waited| hole.is_in(time.saturating_sub(*waited), time));
        }
    }

    fn counts(&mut self, record: &Record<'_>) {
        let Some((_, tid)) = record.pid_tid().filter(|(_, tid)| ![0, ENDED].contains(tid)) else { return };
        if record.kind() == bindings::PERF_RECORD_SAMPLE {
            *self.events.entry(tid).or_default() += 1;
            if record.source().is_some_and(|source| self.of_time.contains(&source)) {
                *self.samples.entry(tid).or_default() += 1;
            }
        }
    }

    /// Who runs from now on, and how long who ran before did.
    fn switches(&mut self, record: &Record<'_>, time: u64) {
        let Self { switches: Some(switches), numbers, names, runs, ran, unknown, known, .. } = self else { return };
        let cpu = record.cpu();
        let Some((_, sampled)) = record.pid_tid() else { return };
        if record.kind() == bindings::PERF_RECORD_SWITCH || record.kind() == bindings::PERF_RECORD_SWITCH_CPU_WIDE {
            // Who comes, where a recording has only its own threads' switches: PERF_RECORD_MISC_SWITCH_OUT.
            let comes = numbers.kernels(sampled).filter(|_| record.misc() & 1 << 13 == 0);
            if let Some(thread) = comes.filter(|thread| runs.get(&cpu).is_none_or(|(runs, _)| runs != thread)) {
                runs.insert(cpu, (thread, time));
            }
            return;
        }
        let Some([(prev, prev_name), (next, next_name)]) = switches.switched(record) else { return };
        let tid = numbers.learn(prev, sampled).unwrap_or(OUTSIDE | prev);
        match runs.get(&cpu) {
            _ if prev == 0 => {}
            Some((thread, since)) if *thread == prev => {
                *ran.entry(tid).or_default() += time.saturating_sub(*since);
                *known += 1;
            }
            _ => *unknown += 1,
        }
        if let Some(comm) = prev_name {
            names.set(tid, &comm);
        }
        runs.insert(cpu, (next, time));
        let tid = numbers.here(next).unwrap_or(OUTSIDE | next);
        if let Some(comm) = next_name {
            names.set(tid, &comm);
        }
    }

    /// Takes what the ledger knows at the end. Who runs then has run until its CPU's last record.
    pub fn end(&mut self, ledger: &Status) {
        let Some(switches) = &mut self.switches else { return };
        self.waited.void(switches.unreported(ledger));
        self.unseen();
        for (cpu, (thread, since)) in self.runs.drain().filter(|(_, (thread, _))| *thread != 0) {
            let tid = self.numbers.here(thread).unwrap_or(OUTSIDE | thread);
            let last = self.lasts.get(&cpu).copied().unwrap_or(since);
            *self.ran.entry(tid).or_default() += last.saturating_sub(since);
        }
    }

    /// The busiest threads first, and by what.
    pub fn busiest(&mut self) -> (By, Vec<Busy>) {
        // In a recording of one process by perf, most are unknown. Of the whole machine, the kernel leaves some out.
        let (by, amounts) = match (self.known > 3 * self.unknown, self.samples.is_empty()) {
            (true, _) => (By::Time, &self.ran),
            (false, false) => (By::Samples, &self.samples),
            (false, true) => (By::Events, &self.events),
        };
        let mut all: Vec<_> = amounts.iter().map(|(tid, amount)| (*tid, *amount)).collect();
        all.sort_by_key(|(tid, amount)| (Reverse(*amount), *tid));
        let busy = |(tid, amount)| Busy { thread: self.names.with_number(tid), tid: here(tid), amount };
        (by, all.into_iter().map(busy).collect())
    }

    /// Those that waited longest in all first.
    pub fn delayed(&mut self) -> Vec<Delayed> {
        let mut all: Vec<_> = self.waited.sums().into_iter().filter(|(tid, _)| *tid != 0).collect();
        all.sort_by_key(|(tid, times)| (Reverse(times.total), *tid));
        let delayed = |(tid, times)| Delayed { thread: self.names.with_number(tid), tid: here(tid), times };
        all.into_iter().map(delayed).collect()
    }
}

/// The number of a thread, if it has one here.
fn here(tid: u32) -> Option<u32> {
    Some(tid).filter(|tid| tid & OUTSIDE == 0)
}

impl By {
    pub fn head(self) -> &'static str {
        match self {
            Self::Time => "on a CPU",
            Self::Samples => "samples",
            Self::Events => "events",
        }
    }

    pub fn amount(self, amount: u64) -> String {
        if self == Self::Time { short(amount) } else { amount.to_string() }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Time => "ns",
            Self::Samples => "samples",
            Self::Events => "events",
        }
    }
}

impl Busy {
    pub fn object(&self, by: By) -> Value {
        json!({ "thread": self.thread, "tid": self.tid, by.key(): self.amount })
    }
}

impl Delayed {
    pub fn object(&self) -> Value {
        let Times { count, total, most, .. } = self.times;
        json!({ "thread": self.thread, "tid": self.tid, "times": count, "total_ns": total, "max_ns": most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Told;
    use perfweave::{Hold, Merge, Order, sim};

    /// Switches of CPU 1 have no record while a thread waits for CPU 0: it may have run there.
    #[test]
    fn a_wait_in_which_a_thread_may_have_run_unseen_does_not_count() {
        for (missing, count) in [(0, 1), (2, 0)] {
            let rings = || sim::Kernel::new(&[0, 1]).rings();
            let mut threads = Threads::new(&rings());
            let mut scheduler = Scheduler::by_programs(100);
            let stands = |count| Told::Stands { runs: 9, count, is_last: false };
            scheduler.hears(1, 1, stands(4));
            scheduler.take_holes();
            // From 12 on.
            threads.waited.add(20, 7, 8);
            scheduler.hears(30, 1, stands(4 + missing));
            threads.switches = Some(scheduler);
            threads.end(&Merge::new(rings(), Order::new().hold(Hold::None)).unwrap().status());
            assert_eq!(threads.delayed().iter().map(|of| of.times.count).sum::<u64>(), count);
        }
    }
}
