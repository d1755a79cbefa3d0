//! What threads do, from the scheduler's tracepoints: who runs, sleeps, is woken and waits for a CPU. Commands that join wake-ups to switches
//! share it.
//!
//! `sched_waking` comes before it is known whether its thread sleeps at all (`try_to_wake_up`, kernel/sched/core.c). A thread that is about
//! to sleep may find that it was woken and go on, or leave its CPU and come back. So such a wake-up is held until the thread's switch:
//! a thread that leaves as one that can run was not woken. No thread is woken twice without having run, so of several wake-ups the last
//! counts.

use crate::failure::Failure;
use crate::interrupt;
use crate::names::Names;
use crate::numbers::Numbers;
use perfweave::decode::Field;
use perfweave::{Kind, Record, RingOptions, Rings};
use std::collections::HashMap;

/// Why a thread left a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It waits for something, and a signal can wake it.
    Asleep,
    /// It cannot be interrupted.
    Disk,
    /// It could run on.
    Ready,
    /// It is stopped, traced or parked.
    Other,
}

/// Who wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Waker {
    /// A thread, by its number here.
    Thread(u32),
    /// What kind of an interrupt. The thread that it interrupted has no part in it.
    Interrupt(&'static str),
    /// A thread whose number here is not known: one that ends.
    Unknown,
}

impl Waker {
    pub fn thread(self) -> Option<u32> {
        if let Self::Thread(tid) = self { Some(tid) } else { None }
    }
}

/// A wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    pub time: u64,
    pub waker: Waker,
    /// The process of the thread that ran.
    pub process: u32,
}

/// A thread begins to run, as far as what was before is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ran {
    /// Its number here.
    pub tid: u32,
    /// When it left a CPU, why, and its process.
    pub left: Option<Left>,
    /// What made it run, unless nothing did, or nothing says what.
    pub wake: Option<Wake>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub time: u64,
    pub why: Why,
    pub process: u32,
}

impl Ran {
    /// Since when it could run: since it was woken, but not while it was still on its way to sleep.
    pub fn ready(&self) -> Option<u64> {
        match (self.left, self.wake) {
            (Some(left), _) if left.why == Why::Ready => Some(left.time),
            (left, Some(wake)) => Some(left.map_or(wake.time, |left| wake.time.max(left.time))),
            (_, None) => None,
        }
    }
}

/// The state of each thread from the stream so far, by its number in the first PID namespace, which tracepoints have.
#[derive(Debug, Default)]
struct Threads(HashMap<u32, Thread>);

#[derive(Debug, Default)]
struct Thread {
    doing: Doing,
    wake: Option<Wake>,
}

#[derive(Debug, Default)]
enum Doing {
    #[default]
    Unknown,
    Runs,
    Left(Left),
}

impl Threads {
    fn wakes(&mut self, thread: u32, wake: Wake) {
        let Thread { doing, wake: last } = self.0.entry(thread).or_default();
        // One that was taken off its CPU may have been about to sleep. Now it does not.
        if !matches!(doing, Doing::Left(Left { why: Why::Ready, .. })) {
            *last = Some(wake);
        }
    }

    /// `None` as the reason: it has ended, and the next thread with its number is another.
    fn leaves(&mut self, thread: u32, left: Option<Left>) {
        let Some(left) = left else {
            self.0.remove(&thread);
            return;
        };
        let Thread { doing, wake } = self.0.entry(thread).or_default();
        // Where nothing says that it ran, the wake-up may be the one that made it run, and it has run.
        if left.why == Why::Ready || !matches!(doing, Doing::Runs) {
            *wake = None;
        }
        *doing = Doing::Left(left);
    }

    /// What the kernel's own record says, where there is no `sched_switch`. It does not say why a thread sleeps.
    fn leaves_unseen(&mut self, thread: u32, left: Option<Left>) {
        if let Some(Thread { doing: doing @ Doing::Runs, wake }) = self.0.get_mut(&thread) {
            *doing = left.map_or(Doing::Unknown, Doing::Left);
            *wake = wake.filter(|_| left.is_none());
        }
    }

    fn runs(&mut self, thread: u32) -> Option<(Option<Left>, Option<Wake>)> {
        let Thread { doing, wake } = self.0.entry(thread).or_default();
        match std::mem::replace(doing, Doing::Runs) {
            // Told twice, or nothing says when it left. What was before is not known.
            Doing::Runs => None,
            Doing::Unknown => Some((None, wake.take())),
            Doing::Left(left) => Some((Some(left), wake.take())),
        }
    }
}

/// Takes the records of [`sources`].
#[derive(Debug)]
pub struct Scheduler {
    fields: Fields,
    numbers: Numbers,
    threads: Threads,
    is_limited: bool,
    /// Who begins to run on each CPU, if its number here is not known.
    begins: HashMap<u32, u32>,
}

#[derive(Debug)]
struct Fields {
    waker: Field,
    /// `common_flags`: whether the waker is an interrupt.
    flags: Field,
    woken: [Field; 2],
    prev: [Field; 2],
    state: Field,
    next: [Field; 2],
}

/// `sched_wakeup_new`, if it is the source behind those of [`sources`]. Its fields lie where those of `sched_waking` lie: both are made of
/// `sched_wakeup_template` (include/trace/events/sched.h).
pub const NEW: usize = 2;

/// `PERF_RECORD_MISC_SWITCH_OUT`
const OUT: u16 = 1 << 13;
/// `PERF_RECORD_MISC_SWITCH_OUT_PREEMPT`
const PREEMPTED: u16 = 1 << 14;

/// The first sources of the rings. Where a kernel leaves a `sched_switch` out, its own record of the switch still says who runs: on a virtual
/// machine that was one in six, most of them from an idle CPU. And in a PID namespace only that record has the number of the next thread.
///
/// The kernel counts a wake-up for the waker alone. So who wants those of some threads traces the whole machine.
pub fn sources(options: RingOptions) -> RingOptions {
    options.tracepoint("sched:sched_waking").tracepoint("sched:sched_switch").records([Kind::SWITCH])
}

impl Scheduler {
    /// `is_limited`: to a control group. Then a switch to a thread outside of it has no record of the kernel's own.
    pub fn new(rings: &Rings, is_limited: bool) -> Result<Self, Failure> {
        let (waking, switch) = (rings.format(0)?, rings.format(1)?);
        let fields = Fields {
            waker: waking.field("common_pid")?,
            flags: waking.field("common_flags")?,
            woken: [waking.field("pid")?, waking.field("comm")?],
            prev: [switch.field("prev_pid")?, switch.field("prev_comm")?],
            state: switch.field("prev_state")?,
            next: [switch.field("next_pid")?, switch.field("next_comm")?],
        };
        let (numbers, threads, begins) = (Numbers::now(), Threads::default(), HashMap::new());
        Ok(Self { fields, numbers, threads, is_limited, begins })
    }

    /// After a loss nothing is known of any thread.
    pub fn forget(&mut self) {
        self.threads.0.clear();
        self.begins.clear();
    }

    /// Takes a record, and learns names from it. Some threads are about to run, and some do.
    pub fn record(&mut self, record: &Record<'_>, time: u64, names: &mut Names) -> Option<Ran> {
        let sampled = record.pid_tid();
        match (record.kind(), record.source()) {
            (Kind::SAMPLE, Some(0 | NEW)) => {
                let (process, tid) = sampled?;
                let [waker, woken] = [&self.fields.waker, &self.fields.woken[0]].map(|field| number(field, record));
                let (waker, woken) = (self.numbers.learn(waker?, tid), woken?);
                let waker = match (self.fields.flags.uint(record).and_then(interrupt::kind), waker) {
                    (Some(kind), _) => Waker::Interrupt(kind),
                    (None, Some(tid)) => Waker::Thread(tid),
                    (None, None) => Waker::Unknown,
                };
                self.threads.wakes(woken, Wake { time, waker, process });
                self.named(woken, 0, record, names);
                None
            }
            (Kind::SAMPLE, Some(1)) => {
                let (process, tid) = sampled?;
                let [prev, next] = [&self.fields.prev[0], &self.fields.next[0]].map(|field| number(field, record));
                let (prev, next) = (prev?, next?);
                self.numbers.learn(prev, tid);
                self.named(prev, 1, record, names);
                self.named(next, 2, record, names);
                let why = why(self.fields.state.int(record)?);
                if prev != 0 {
                    self.threads.leaves(prev, why.map(|why| Left { time, why, process }));
                }
                if why.is_none() {
                    self.numbers.forget(prev);
                }
                self.begins.remove(&record.cpu());
                match self.numbers.here(next) {
                    Some(tid) => self.runs(next, tid),
                    None if self.is_limited => None,
                    None => {
                        self.begins.insert(record.cpu(), next);
                        None
                    }
                }
            }
            (Kind::SWITCH | Kind::SWITCH_CPU_WIDE, _) if record.misc() & OUT != 0 => {
                let (process, tid) = sampled?;
                let could_run = record.misc() & PREEMPTED != 0;
                let left = could_run.then_some(Left { time, why: Why::Ready, process });
                self.threads.leaves_unseen(self.numbers.kernels(tid)?, left);
                None
            }
            (Kind::SWITCH | Kind::SWITCH_CPU_WIDE, _) => {
                let (_, tid) = sampled?;
                match self.begins.remove(&record.cpu()) {
                    Some(thread) => {
                        let tid = self.numbers.learn(thread, tid)?;
                        self.runs(thread, tid)
                    }
                    None => self.runs(self.numbers.kernels(tid)?, tid),
                }
            }
            // struct { u32 pid, ppid, tid, ptid; u64 time; }: the last thread of this number may have ended unseen.
            (Kind::FORK, _) => {
                let thread = self.numbers.kernels(record.body().u32(8)?)?;
                self.threads.leaves(thread, None);
                None
            }
            _ => None,
        }
    }

    fn runs(&mut self, thread: u32, tid: u32) -> Option<Ran> {
        let (left, wake) = if thread == 0 { None } else { self.threads.runs(thread) }?;
        Some(Ran { tid, left, wake })
    }

    /// Sets the name of a thread: the woken, the one that leaves, or the one that comes.
    fn named(&self, thread: u32, which: usize, record: &Record<'_>, names: &mut Names) {
        let comm = [&self.fields.woken, &self.fields.prev, &self.fields.next].map(|[_, comm]| comm)[which];
        if let (Some(tid @ 1..), Some(name)) = (self.numbers.here(thread), comm.text(record)) {
            names.set(tid, &name);
        }
    }
}

fn number(field: &Field, record: &Record<'_>) -> Option<u32> {
    u32::try_from(field.int(record)?).ok()
}

/// `prev_state` of sched_switch, whose text the kernel prints as R, S, D and so on (include/trace/events/sched.h). `None`: it has ended (X, Z).
fn why(state: i64) -> Option<Why> {
    match state & 0xff {
        0 => Some(Why::Ready),
        1 | 0x80 => Some(Why::Asleep),
        2 => Some(Why::Disk),
        0x10 | 0x20 => None,
        _ => Some(Why::Other),
    }
}

#[cfg(test)]
mod tests;
