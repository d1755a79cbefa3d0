//! What the scheduler's tracepoints tell of threads, for the [account](crate::waits) of what they wait for: live, or
//! from a recording.

mod counted;
mod extent;
mod sources;
#[cfg(feature = "btf")]
mod switch;
mod told;
mod tracing;
#[cfg(feature = "btf")]
mod types;

use crate::failure::Failure;
use crate::interrupt;
use crate::names::Names;
use crate::numbers::{Numbers, OUTSIDE};
use crate::waits::{Account, Call, In, Ran, Who, Why};
pub use counted::Counted;
use extent::Extent;
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Record, RingOptions, Rings, Status};
use perfweave_events::{EventOptions, Field, Format};
use sources::{Source, is_backlog_empty};
use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroU8;
use std::sync::Arc;
#[cfg(test)]
pub use told::Told;
#[cfg(not(test))]
use told::Told;
pub use told::{is_output, words};
pub use tracing::{Look, Tracing, Way};

/// Takes records of [`sources`] and, if they are there, of system calls and interrupts.
#[derive(Debug)]
pub struct Scheduler {
    sources: Vec<Source>,
    numbers: Numbers,
    pub account: Account,
    is_limited: bool,
    /// Who begins to run on each CPU, if its number here is not known.
    begins: HashMap<u32, (u32, Option<Ran>)>,
    /// The process that traces, or that has recorded, where its own threads are told, too.
    own: Option<u32>,
    /// What a recording is of.
    extent: Option<Extent>,
    /// Whether programs tell in which calls threads fall asleep.
    tells_calls: bool,
    /// Which switches of programs have no record.
    counted: Counted,
    /// When the first CPU told for the last time where it stands. What comes behind is not asked for, but that the
    /// other CPUs have told all of before has to be seen.
    ended: Option<u64>,
    /// When switches have no record, of which the last record has told, or the end.
    holes: Vec<Hole>,
}

/// A time in which switches of a CPU have no record: who could run then may have run there.
#[derive(Debug, Clone, Copy)]
pub struct Hole {
    pub from: u64,
    pub to: u64,
}

impl Hole {
    /// Whether it has a part of another time.
    pub fn is_in(self, from: u64, to: u64) -> bool {
        self.from < to && from < self.to
    }
}

/// Where a record comes from: when and on which CPU, and the numbers of the thread that wrote it.
#[derive(Debug, Clone, Copy)]
struct At {
    time: u64,
    cpu: u32,
    process: u32,
    tid: u32,
}

impl At {
    fn of(record: &Record<'_>, time: u64) -> Option<Self> {
        let (process, tid) = record.pid_tid()?;
        Some(Self { time, cpu: record.cpu(), process, tid })
    }
}

const SIGCONT: u8 = nix::libc::SIGCONT as u8;

/// `PERF_RECORD_MISC_SWITCH_OUT`
const OUT: u16 = 1 << 13;
/// `PERF_RECORD_MISC_SWITCH_OUT_PREEMPT`
const PREEMPTED: u16 = 1 << 14;

/// Those of the tracepoints whose facts the programs tell.
const BY_PROGRAMS: [&str; 3] = ["sched:sched_switch", "raw_syscalls:sys_enter", "raw_syscalls:sys_exit"];

/// Who wakes whom.
fn wake_ups(options: RingOptions) -> RingOptions {
    options.tracepoint("sched:sched_waking")
}

/// Who runs and who wakes whom, by tracepoints and the kernel's own records of switches.
pub fn sources(options: RingOptions) -> RingOptions {
    wake_ups(options).tracepoint("sched:sched_switch").records([bindings::PERF_RECORD_SWITCH])
}

/// Interrupts, soft interrupts and timers, from begin to end.
const INTERRUPTS: [&str; 6] = [
    "irq:irq_handler_entry",
    "irq:irq_handler_exit",
    "irq:softirq_entry",
    "irq:softirq_exit",
    "timer:hrtimer_expire_entry",
    "timer:hrtimer_expire_exit",
];

/// All tracepoints that a [`Scheduler`] takes. `but`: without some.
fn tracepoints(options: RingOptions, but: impl Fn(&str) -> bool) -> RingOptions {
    const OTHERS: [&str; 6] = [
        "sched:sched_waking",
        "sched:sched_wakeup_new",
        "signal:signal_generate",
        "net:netif_rx",
        "net:netif_receive_skb",
        "napi:napi_poll",
    ];
    BY_PROGRAMS
        .into_iter()
        .chain(OTHERS)
        .chain(INTERRUPTS)
        .filter(|name| !but(name))
        .fold(options, RingOptions::tracepoint)
}

impl Scheduler {
    /// `is_limited`: to a control group. Then a switch to a thread outside of it has no record of the kernel's own.
    /// `most`: how many stretches the account keeps.
    pub fn new(rings: &Rings, is_limited: bool, most: usize) -> Result<Self, Failure> {
        let own = Some(std::process::id());
        Ok(Self { own, ..Self::with(rings, Numbers::now(), is_limited, most, true)? })
    }

    /// One that is told by hand.
    #[cfg(test)]
    pub fn without_sources() -> Self {
        let mut scheduler = Self::of_nobody();
        scheduler.numbers.learn(1, 1);
        scheduler
    }

    /// One that programs tell.
    #[cfg(test)]
    pub fn by_programs(most: usize) -> Self {
        let sources = vec![Source::Programs];
        Self { sources, account: Account::new(most), tells_calls: true, ..Self::without_sources() }
    }

    /// A switch that programs tell by hand.
    #[cfg(test)]
    pub fn hears(&mut self, time: u64, cpu: u32, told: Told) {
        let (Told::Switch { prev, .. } | Told::Stands { runs: prev, .. }) = told else { return };
        let at = At { time, cpu, process: prev, tid: prev };
        drop(self.told(told, at, &mut Names::recorded()));
    }

    /// Records of a CPU are lost, or it was not traced, after a time.
    #[cfg(test)]
    pub fn lacks_some(&mut self, cpu: u32, after: u64, untraced: Option<bool>) {
        match untraced {
            None => drop(self.account.lost(Some(cpu), Some(after))),
            Some(lasts) => drop(self.account.untraced(cpu, Some(after), lasts)),
        }
        self.counted.forget(Some(cpu), after);
    }

    /// Of any recording, for what it tells. All stretches are kept. A tracepoint that lacks a field tells nothing.
    pub fn told_by(rings: &Rings) -> Result<Self, Failure> {
        Self::with(rings, Numbers::recorded(), false, usize::MAX, false)
    }

    /// Of a recording that tells who runs and who wakes whom.
    pub fn recorded(rings: &Rings, most: usize) -> Result<Self, Failure> {
        let mut scheduler = Self::with(rings, Numbers::recorded(), false, most, true)?;
        let has = |is: fn(&Source) -> bool| scheduler.sources.iter().any(is);
        if has(|source| matches!(source, Source::Switches { .. } | Source::Programs)) {
            let has_wakes = has(|source| matches!(source, Source::Wakes { .. }));
            scheduler.extent = Some(Extent::new(has_wakes));
            return Ok(scheduler);
        }
        let hint = "record the whole machine: perfweave record -a -e why";
        Err(Failure::hinting("the recording has no sched:sched_switch", hint))
    }

    /// One that nothing tells.
    fn of_nobody() -> Self {
        Self {
            sources: Vec::new(),
            numbers: Numbers::recorded(),
            account: Account::new(usize::MAX),
            is_limited: false,
            begins: HashMap::new(),
            own: None,
            extent: None,
            tells_calls: false,
            counted: Counted::default(),
            ended: None,
            holes: Vec::new(),
        }
    }

    /// `needs_all`: a tracepoint that lacks a field is an error.
    fn with(rings: &Rings, numbers: Numbers, is_limited: bool, most: usize, needs_all: bool) -> Result<Self, Failure> {
        let sources = rings.sources().iter().enumerate().map(|(index, source)| match Format::of(rings, index) {
            Ok(format) => Source::of(source.tracepoint(), &format, needs_all),
            // It is no tracepoint.
            Err(_) => Ok(Source::Other),
        });
        let (mut sources, account, begins) =
            (sources.collect::<Result<Vec<_>, _>>()?, Account::new(most), HashMap::new());
        let has = |is: fn(&Source) -> bool| sources.iter().any(is);
        // Without all of them nothing says where the delivery of a packet ends.
        if !has(|source| matches!(source, Source::Sends { .. }))
            || !has(|source| matches!(source, Source::HasDelivered(_)))
        {
            sources
                .iter_mut()
                .filter(|source| matches!(source, Source::Delivers(_)))
                .for_each(|source| *source = Source::Other);
        }
        let tells_calls = by_programs(&mut sources, rings);
        let own = told::recorder(rings);
        Ok(Self { sources, numbers, account, is_limited, begins, own, tells_calls, ..Self::of_nobody() })
    }

    /// Live, programs may tell switches alone.
    pub fn traced(mut self, tracing: &Tracing) -> Self {
        self.tells_calls &= tracing.tells_calls();
        self
    }

    /// The process whose own threads are of no interest.
    pub fn own(&self) -> Option<u32> {
        self.own
    }

    /// Whether it is told by a recording.
    pub fn is_recorded(&self) -> bool {
        self.extent.is_some()
    }

    /// How many switches have no record, as the numbers of others show.
    pub fn unrecorded(&self) -> u64 {
        self.counted.missing()
    }

    /// Takes what is no record. After a loss nothing is known of any thread: gives the time from which that is so.
    pub fn notice(&mut self, event: &Event<'_>) -> Option<u64> {
        let since = match event.item() {
            Item::Record(_) | Item::Flushed { .. } => return None,
            // Behind the last record of a ring so far: it comes with that record, and lasts until the next one.
            Item::Lost(lost) if event.key().is_none() => self.account.silent(lost.cpu, lost.after.unwrap_or(0)),
            Item::Lost(lost) => self.account.lost(Some(lost.cpu), Some(lost.after.unwrap_or(0))),
            Item::Gap(gap) => self.account.lost(gap.cpu, Some(gap.after.unwrap_or(0))),
            Item::Damage(damage) => self.account.lost(Some(damage.cpu), None),
            Item::Untraced(one) => {
                self.counted.was_offline(one.cpu, one.since.unwrap_or(0));
                self.account.untraced(one.cpu, one.since, one.lasted.is_none())
            }
            _ => self.account.lost(None, None),
        };
        self.begins.clear();
        self.counted.forget(counted::of(&event.item()), since);
        Some(since)
    }

    /// Losses that no event has told, because no record has followed them: gives the time from which nothing is known.
    pub fn unreported(&mut self, ledger: &Status) -> Option<u64> {
        let unreported = ledger.accounts.iter().chain([&ledger.machine]).filter(|account| account.unreported > 0);
        let since = unreported.map(|account| self.account.lost(account.cpu, None)).min();
        self.ends();
        since
    }

    /// Nothing follows. Who runs on a CPU behind its last number is not known: another switch would not show.
    pub fn ends(&mut self) {
        if !self.sources.iter().any(|source| matches!(source, Source::Programs)) {
            return;
        }
        for cpu in self.account.cpus() {
            let until = self.counted.until(cpu);
            if self.ended.is_none_or(|ended| until < ended) {
                self.account.unseen_from(cpu, until);
                self.holes.push(Hole { from: until, to: u64::MAX });
            }
        }
    }

    /// Whether it is told what interrupts take of a thread's time.
    pub fn tells_interrupts(&self) -> bool {
        self.sources.iter().any(|source| matches!(source, Source::Begins(..)))
    }

    /// What a recording lacks, if it lacks something.
    pub fn lacks(&self) -> Option<&'static str> {
        self.extent.as_ref()?.lacks()
    }

    /// The number of a thread here. One from outside of this PID namespace has none.
    pub fn tid(&self, who: Who) -> Option<u32> {
        let known = self.account.known(who).and_then(|known| known.tid);
        known.or_else(|| self.numbers.here(who.thread)).filter(|tid| tid & OUTSIDE == 0)
    }

    /// The number of a thread here; one from outside of this PID namespace is told apart by [`OUTSIDE`].
    pub fn number(&self, who: Who) -> u32 {
        let known = self.account.known(who).and_then(|known| known.tid).or_else(|| self.numbers.here(who.thread));
        known.unwrap_or(if self.numbers.are_others() { OUTSIDE | who.thread } else { who.thread })
    }

    /// The thread that has this number here.
    pub fn who(&self, tid: u32) -> Option<Who> {
        self.account.who(self.numbers.kernels(tid)?)
    }

    /// Whether a record tells of a switch: the thread that leaves its CPU writes it.
    pub fn is_switch(&self, record: &Record<'_>) -> bool {
        record.source().is_some_and(|source| match self.sources.get(source) {
            Some(Source::Switches { .. }) => true,
            Some(Source::Programs) => Told::is_switch(record),
            _ => false,
        })
    }

    /// Takes a record, and learns names from it. Some threads are about to run, and some do. Gives the number here of
    /// one that does.
    pub fn record(&mut self, record: &Record<'_>, time: u64, names: &mut Names) -> Option<(u32, Ran)> {
        if time == 0 {
            // A recording begins with what was before it.
            names.take(record);
            return None;
        }
        if self.ended.is_some() {
            if let Some(Source::Programs) = record.source().and_then(|source| self.sources.get(source)) {
                self.counted(record.cpu(), time, &Told::of(record, time)?);
            }
            return None;
        }
        if let (Some(extent), Some((_, tid))) = (&mut self.extent, record.pid_tid())
            && let Some(thread) = self.numbers.kernels(tid)
            && !leaves(record)
        {
            extent.runs(thread);
        }
        match record.kind() {
            bindings::PERF_RECORD_SAMPLE => match self.sources.get(record.source()?)? {
                Source::Wakes { .. } => self.wakes(record, time, names)?,
                Source::Switches { .. } => return self.switches(record, time, names),
                Source::Programs => return self.told(Told::of(record, time)?, At::of(record, time)?, names),
                _ => self.sample(record, time)?,
            },
            bindings::PERF_RECORD_SWITCH | bindings::PERF_RECORD_SWITCH_CPU_WIDE => {
                return self.switches_unseen(record, time);
            }
            bindings::PERF_RECORD_FORK => self.forks(record, time)?,
            bindings::PERF_RECORD_EXIT => {
                let thread = self.numbers.kernels(record.pid_tid()?.1)?;
                self.account.tells_its_end(time, record.cpu(), thread);
            }
            bindings::PERF_RECORD_COMM => {
                self.is_named(record, time)?;
            }
            _ => {}
        }
        None
    }

    fn wakes(&mut self, record: &Record<'_>, time: u64, names: &mut Names) -> Option<()> {
        let Self { sources, numbers, account, .. } = self;
        let Source::Wakes { by, flags, woken } = &sources[record.source()?] else { return None };
        let (process, tid) = record.pid_tid()?;
        let [by, thread] = [by, &woken[0]].map(|field| number(field, record));
        let (by, thread) = (by?, thread?);
        let tid = numbers.learn(by, tid);
        let interrupt = flags.uint(record).and_then(interrupt::kind);
        account.wakes(time, record.cpu(), thread, by, interrupt, (process, tid));
        known(account, by, tid, process);
        name(account, numbers, thread, woken[1].text(record).as_deref(), names);
        Some(())
    }

    fn switches(&mut self, record: &Record<'_>, time: u64, names: &mut Names) -> Option<(u32, Ran)> {
        let Source::Switches { state, .. } = &self.sources[record.source()?] else { return None };
        let (why, threads) = (why(state.int(record)?), self.switched(record)?);
        self.switch(At::of(record, time)?, why, threads, names)
    }

    /// Who goes and who comes by a record of a switch, with the names that it tells.
    pub fn switched<'a>(&self, record: &Record<'a>) -> Option<[(u32, Option<Cow<'a, str>>); 2]> {
        match self.sources.get(record.source()?)? {
            Source::Switches { prev, next, .. } => {
                let of = |[thread, name]: &[Field; 2]| Some((number(thread, record)?, name.text(record)));
                Some([of(prev)?, of(next)?])
            }
            Source::Programs => match Told::of(record, 0)? {
                Told::Switch { prev, next, .. } => Some([(prev, None), (next, None)]),
                Told::Stands { .. } | Told::Signal { .. } => None,
            },
            _ => None,
        }
    }

    /// A CPU goes from one thread to another, with the names that are told.
    fn switch(
        &mut self,
        At { time, cpu, process, tid }: At,
        why: Option<Why>,
        [(prev, prev_name), (next, next_name)]: [(u32, Option<Cow<'_, str>>); 2],
        names: &mut Names,
    ) -> Option<(u32, Ran)> {
        let Self { numbers, account, .. } = self;
        self.extent.iter_mut().for_each(|extent| extent.switch(prev, next));
        let tid = numbers.learn(prev, tid);
        known(account, prev, tid, process);
        // Before it ends.
        name(account, numbers, prev, prev_name.as_deref(), names);
        let ran = account.switches(time, cpu, prev, why.map(|why| (why, process)), next);
        name(account, numbers, next, next_name.as_deref(), names);
        if why.is_none() {
            numbers.forget(prev);
        }
        self.begins.remove(&cpu);
        match numbers.here(next) {
            Some(tid) => ran.map(|ran| (tid, ran)),
            None if self.is_limited => None,
            None => {
                self.begins.insert(cpu, (next, ran));
                None
            }
        }
    }

    /// Who ran where switches have no record, or may have none, is not known.
    fn counted(&mut self, cpu: u32, time: u64, told: &Told) {
        // Nobody has asked for those of the record before.
        self.holes.clear();
        if let Some(since) = self.counted.told(cpu, time, told) {
            self.account.unseen(self.ended.unwrap_or(time), cpu, since);
            self.holes.push(Hole { from: since, to: time });
        }
    }

    /// When switches have no record, as the last record shows, or the end, if nobody has asked yet. What was concluded
    /// of who could run then is void.
    pub fn take_holes(&mut self) -> Vec<Hole> {
        std::mem::take(&mut self.holes)
    }

    /// What the programs tell.
    fn told(&mut self, told: Told, at: At, names: &mut Names) -> Option<(u32, Ran)> {
        let At { time, cpu, process, tid } = at;
        self.counted(cpu, time, &told);
        match told {
            Told::Switch { prev, next, why, call, .. } => {
                if self.tells_calls && why.is_some_and(|why| why != Why::Ready) {
                    self.account.calls(time, cpu, prev, call);
                }
                return self.switch(at, why, [(prev, None), (next, None)], names);
            }
            Told::Stands { runs, is_last, .. } => {
                self.account.writes(time, cpu, runs);
                let tid = self.numbers.learn(runs, tid);
                known(&mut self.account, runs, tid, process);
                self.ended = is_last.then_some(time);
            }
            Told::Signal { thread, interrupted } => self.account.returns_from(time, cpu, thread, interrupted),
        }
        None
    }

    /// What neither wakes nor switches.
    fn sample(&mut self, record: &Record<'_>, time: u64) -> Option<()> {
        let Self { sources, numbers, account, .. } = self;
        let cpu = record.cpu();
        match &sources[record.source()?] {
            Source::Enters { by, number: call, args } => {
                let ((process, tid), by) = (record.pid_tid()?, number(by, record)?);
                let (number, values) = (call.int(record)?, args.ints(record)?);
                let mut args = [0; 6];
                args.iter_mut().zip(values).for_each(|(arg, value)| *arg = value as u64);
                let tid = numbers.learn(by, tid);
                account.calls(time, cpu, by, In::Call(Arc::new(Call { number, args, entered: time, file: None })));
                known(account, by, tid, process);
            }
            Source::Returns { by, result } => {
                let interrupted = result.int(record).is_some_and(is_interrupted);
                account.returns_from(time, cpu, number(by, record)?, interrupted);
            }
            Source::Begins(kinds, named) => account.interrupts(time, cpu, kinds, named.name(record)?),
            Source::Ends(kinds) => account.returns(time, cpu, kinds),
            Source::Sends { by, flags, packet } => {
                let in_interrupt = flags.uint(record).and_then(interrupt::kind).is_some();
                account.sends(time, cpu, number(by, record)?, in_interrupt, packet.uint(record)?);
            }
            Source::Signals([thread, signal, group, result]) => {
                let signal = NonZeroU8::new(u8::try_from(signal.int(record)?).ok()?)?;
                let thread = number(thread, record)?;
                // One that is ignored or waits already wakes nobody, but SIGCONT lets go on also where it is ignored.
                let counts = result.int(record)? == 0 || signal.get() == SIGCONT;
                account.signals(time, cpu, counts.then_some((thread, group.int(record)? != 0, signal)));
            }
            Source::Delivers(packet) => account.delivers(time, cpu, packet.uint(record)),
            Source::HasDelivered(counts) => {
                account.delivers(time, cpu, None);
                if counts.as_ref().is_some_and(|counts| is_backlog_empty(counts, record)) {
                    account.delivered_all(cpu);
                }
            }
            Source::Wakes { .. } | Source::Switches { .. } | Source::Programs | Source::Other => {}
        }
        Some(())
    }

    /// The kernel's own records of switches: one for the thread that goes, one for that which comes.
    fn switches_unseen(&mut self, record: &Record<'_>, time: u64) -> Option<(u32, Ran)> {
        let Self { numbers, account, .. } = self;
        let ((process, tid), cpu) = (record.pid_tid()?, record.cpu());
        // struct { u32 next_prev_pid, next_prev_tid; }: in a PID namespace, 0 is any thread from outside.
        let has_other = record.kind() == bindings::PERF_RECORD_SWITCH_CPU_WIDE && !numbers.are_others();
        let other = record.body().u32(4).filter(|_| has_other).and_then(|other| numbers.kernels(other));
        if record.misc() & OUT != 0 {
            let could_run = (record.misc() & PREEMPTED != 0).then_some(process);
            account.leaves_unseen(time, cpu, numbers.kernels(tid)?, could_run, other);
            return None;
        }
        // Where one command is recorded, who was to begin may have been a stranger, without a record of its own. A
        // thread whose number is known is none.
        let is_known = |begins: &u32| numbers.kernels(tid).is_none_or(|thread| thread == *begins);
        match self.begins.remove(&cpu).filter(|(thread, _)| is_known(thread)) {
            Some((thread, ran)) => {
                let tid = numbers.learn(thread, tid)?;
                known(account, thread, Some(tid), process);
                ran.map(|ran| (tid, ran))
            }
            None => {
                let ran = account.comes_unseen(time, cpu, numbers.kernels(tid)?, other);
                ran.map(|ran| (tid, ran))
            }
        }
    }

    fn forks(&mut self, record: &Record<'_>, time: u64) -> Option<()> {
        let Self { numbers, account, .. } = self;
        // struct { u32 pid, ppid, tid, ptid; u64 time; }
        let [process, _, tid, parent] = [0, 4, 8, 12].map(|at| record.body().u32(at));
        let thread = numbers.kernels(tid?)?;
        let maker = parent.and_then(|parent| numbers.kernels(parent));
        account.forks(time, record.cpu(), thread, maker);
        known(account, thread, tid, process?);
        let parent = account.learn(numbers.kernels(parent?)?).map(|known| known.name.clone());
        account.learn(thread)?.name = parent.unwrap_or_default();
        Some(())
    }

    fn is_named(&mut self, record: &Record<'_>, time: u64) -> Option<()> {
        let Self { numbers, account, .. } = self;
        // struct { u32 pid, tid; char comm[]; }
        let body = record.body();
        let thread = numbers.kernels(body.u32(4)?)?;
        if record.pid_tid().is_some_and(|(_, tid)| Some(tid) == body.u32(4)) {
            account.writes(time, record.cpu(), thread);
        }
        let bytes = (8..body.len()).map_while(|at| body.u8(at)).take_while(|byte| *byte != 0);
        account.learn(thread)?.name = String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned();
        Some(())
    }
}

/// Whether it is the kernel's own record that a thread leaves its CPU: `sched_switch` has told it by then.
fn leaves(record: &Record<'_>) -> bool {
    let switches = [bindings::PERF_RECORD_SWITCH, bindings::PERF_RECORD_SWITCH_CPU_WIDE];
    switches.contains(&record.kind()) && record.misc() & OUT != 0
}

/// Where programs tell switches, tracepoints of the same tell nothing more. Gives whether they do.
fn by_programs(sources: &mut [Source], rings: &Rings) -> bool {
    let has_programs = rings.sources().iter().any(is_output);
    for (source, of) in sources.iter_mut().zip(rings.sources()) {
        match of.tracepoint() {
            None if is_output(of) => *source = Source::Programs,
            Some(name) if has_programs && BY_PROGRAMS.contains(&name) => *source = Source::Other,
            _ => {}
        }
    }
    has_programs
}

/// The numbers that a record tells of the thread that wrote it.
fn known(account: &mut Account, thread: u32, tid: Option<u32>, process: u32) {
    if let Some(known) = account.learn(thread) {
        (known.tid, known.process) = (tid, Some(process));
    }
}

/// The name that an event has of a thread. If it has none: that which the thread has otherwise, when it is met.
fn name(account: &mut Account, numbers: &Numbers, thread: u32, name: Option<&str>, names: &mut Names) {
    let here = numbers.here(thread);
    let Some(name) = name else {
        if let (Some(known), Some(tid @ 1..)) = (account.learn(thread), here)
            && known.name.is_empty()
        {
            names.of(tid).clone_into(&mut known.name);
        }
        return;
    };
    if let Some(known) = account.learn(thread)
        && known.name != name
    {
        name.clone_into(&mut known.name);
    }
    if let Some(tid @ 1..) = here {
        names.set(tid, name);
    }
}

fn number(field: &Field, record: &Record<'_>) -> Option<u32> {
    u32::try_from(field.int(record)?).ok()
}

/// Whether a signal ended a call: `EINTR`, or that it goes on behind the handler (include/linux/errno.h).
fn is_interrupted(result: i64) -> bool {
    matches!(result, -4 | -514..=-512 | -516)
}

/// `prev_state` of sched_switch, whose text the kernel prints as R, S, D and so on (include/trace/events/sched.h).
/// `None`: it has ended (X, Z).
pub fn why(state: i64) -> Option<Why> {
    match state & 0xff {
        0 => Some(Why::Ready),
        1 | 0x80 => Some(Why::Asleep),
        2 => Some(Why::Disk),
        4 | 8 => Some(Why::Stopped),
        0x10 | 0x20 => None,
        _ => Some(Why::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::{In, Scheduler, Told, Why, why};
    use crate::recent::a_loss_that_lasts;
    use crate::waits::What;

    /// CPU 1 lost its last records so far. What CPU 0 tells is not joined until CPU 1 tells something.
    #[test]
    fn a_cpu_that_lost_its_last_records_is_dark_until_it_tells_something() {
        let mut scheduler = Scheduler::without_sources();
        let mut known = Vec::new();
        a_loss_that_lasts(|event| {
            let _ = scheduler.notice(event);
            let Some(time) = event.key() else { return };
            let left = Some((Why::Asleep, 7));
            let account = &mut scheduler.account;
            account.writes(time, if time == 20 { 0 } else { 1 }, 9);
            account.switches(time + 1, 0, 7, left, 8);
            account.wakes(time + 2, 0, 7, 8, None, (8, Some(8)));
            account.switches(time + 3, 0, 8, left, 7);
            let mut did = account.did(account.who(7).unwrap(), time + 1, time + 3);
            known.push((time, did.any(|part| matches!(part.what, What::Blocked { end: Some(_), .. }))));
        });
        assert_eq!(known, [(10, true), (20, false), (40, true)]);
    }

    /// A number is missing, or another thread goes than has come: what was meanwhile is not known.
    #[test]
    fn nothing_is_concluded_across_switches_without_a_record() {
        for (count, prev, missing) in [(2, 8, 0), (3, 8, 1), (2, 9, 0)] {
            let mut scheduler = Scheduler::by_programs(100);
            let told =
                |count, prev, next| Told::Switch { prev, next, why: Some(Why::Asleep), count, call: In::Unknown };
            scheduler.hears(10, 0, told(1, 7, 8));
            scheduler.hears(20, 0, told(count, prev, 7));
            assert_eq!(scheduler.unrecorded(), missing, "{count} {prev}");
            let mut did = scheduler.account.did(scheduler.account.who(8).unwrap(), 10, 20);
            let runs = did.any(|part| matches!(part.what, What::Runs { .. }));
            assert_eq!(runs, missing == 0 && prev == 8, "{count} {prev}");
        }
    }

    /// Who asks for no holes has no more of them than of one record.
    #[test]
    fn holes_take_no_memory_where_nobody_asks_for_them() {
        let mut scheduler = Scheduler::by_programs(100);
        for time in 1..100 {
            scheduler.hears(time.into(), 0, Told::Stands { runs: 7, count: 2 * time, is_last: false });
        }
        assert_eq!((scheduler.unrecorded(), scheduler.take_holes().len()), (196, 1));
    }

    #[test]
    fn the_kernels_letters_for_states() {
        // R, R+, S, D, I, T, t, P
        let states = [0, 0x100, 1, 2, 0x80, 4, 8, 0x40].map(why);
        let other = [Why::Stopped, Why::Stopped, Why::Other];
        let first = [Why::Ready, Why::Ready, Why::Asleep, Why::Disk, Why::Asleep].map(Some);
        assert_eq!((&states[..5], &states[5..]), (&first[..], &other.map(Some)[..]));
        assert_eq!([why(0x10), why(0x20)], [None, None]);
    }
}
