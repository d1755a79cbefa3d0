//! What the scheduler's tracepoints tell of threads, for the [account](crate::waits) of what they wait for: live, or
//! from a recording.

mod extent;

use crate::failure::Failure;
use crate::interrupt;
use crate::names::Names;
use crate::numbers::{Numbers, OUTSIDE};
use crate::waits::{Account, Call, In, Kinds, Ran, Who, Why};
use extent::Extent;
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Record, RingOptions, Rings, Status};
use perfweave_events::{EventOptions, Field, Format};
use std::collections::HashMap;
use std::num::NonZeroU8;
use std::sync::Arc;

/// Takes records of [`sources`] and, if they are there, of system calls and interrupts.
#[derive(Debug)]
pub struct Scheduler {
    sources: Vec<Source>,
    numbers: Numbers,
    pub account: Account,
    is_limited: bool,
    /// Who begins to run on each CPU, if its number here is not known.
    begins: HashMap<u32, (u32, Option<Ran>)>,
    /// What a recording is of.
    extent: Option<Extent>,
}

/// A tracepoint, and its fields.
#[derive(Debug)]
enum Source {
    /// `sched_waking`, or `sched_wakeup_new`.
    Wakes {
        by: Field,
        /// `common_flags`: whether the waker is an interrupt.
        flags: Field,
        woken: [Field; 2],
    },
    Switches {
        prev: [Field; 2],
        state: Field,
        next: [Field; 2],
    },
    Enters {
        by: Field,
        number: Field,
        args: Field,
    },
    Returns {
        by: Field,
        result: Field,
    },
    Begins(Kinds, Named),
    Ends(Kinds),
    /// `netif_rx`: a packet to this machine.
    Sends {
        by: Field,
        flags: Field,
        packet: Field,
    },
    Delivers(Field),
    /// `signal_generate`: to whom, which, whether to all of a process, and whether it counts.
    Signals([Field; 4]),
    /// Whose queue it was, how many it has delivered, and the most that it may.
    HasDelivered(Option<[Field; 3]>),
    Other,
}

/// Those of the tracepoints that are taken.
const CATEGORIES: [&str; 7] = ["sched:", "raw_syscalls:", "signal:", "irq:", "timer:", "net:", "napi:"];

/// [`interrupt::kind`] of what begins and ends.
const HARD: Kinds = &["hardirq"];
const SOFT: Kinds = &["softirq"];
const TIMER: Kinds = &["hardirq", "softirq"];

/// How an interrupt is called.
#[derive(Debug)]
enum Named {
    Timer,
    Device(Field),
    /// By its number.
    Soft(Field),
}

const SIGCONT: u8 = nix::libc::SIGCONT as u8;

/// `PERF_RECORD_MISC_SWITCH_OUT`
const OUT: u16 = 1 << 13;
/// `PERF_RECORD_MISC_SWITCH_OUT_PREEMPT`
const PREEMPTED: u16 = 1 << 14;

/// Where a kernel leaves a `sched_switch` out, its own record of the switch still says who runs: on a virtual machine
/// that was one in six, most of them from an idle CPU. And in a PID namespace only that record has the number of the
/// next thread.
///
/// The kernel counts a wake-up for the waker alone. So who wants those of some threads traces the whole machine.
pub fn sources(options: RingOptions) -> RingOptions {
    options.tracepoint("sched:sched_waking").tracepoint("sched:sched_switch").records([bindings::PERF_RECORD_SWITCH])
}

/// All that a [`Scheduler`] takes: also in which calls threads wait, and what the interrupts are called that wake them.
/// `but`: without some.
pub fn all_sources(options: RingOptions, but: impl Fn(&str) -> bool) -> RingOptions {
    const NAMES: [&str; 15] = [
        "sched:sched_waking",
        "sched:sched_switch",
        "sched:sched_wakeup_new",
        "raw_syscalls:sys_enter",
        "raw_syscalls:sys_exit",
        "signal:signal_generate",
        "irq:irq_handler_entry",
        "irq:irq_handler_exit",
        "irq:softirq_entry",
        "irq:softirq_exit",
        "timer:hrtimer_expire_entry",
        "timer:hrtimer_expire_exit",
        "net:netif_rx",
        "net:netif_receive_skb",
        "napi:napi_poll",
    ];
    let names = NAMES.into_iter().filter(|name| !but(name));
    names.fold(options, RingOptions::tracepoint).records([bindings::PERF_RECORD_SWITCH])
}

impl Scheduler {
    /// `is_limited`: to a control group. Then a switch to a thread outside of it has no record of the kernel's own.
    /// `most`: how many stretches the account keeps.
    pub fn new(rings: &Rings, is_limited: bool, most: usize) -> Result<Self, Failure> {
        Self::with(rings, Numbers::now(), is_limited, most, true)
    }

    /// One that is told by hand.
    #[cfg(test)]
    pub fn without_sources() -> Self {
        let (sources, account, begins) = (Vec::new(), Account::new(usize::MAX), HashMap::new());
        let mut numbers = Numbers::recorded();
        numbers.learn(1, 1);
        Self { sources, numbers, account, is_limited: false, begins, extent: None }
    }

    /// Of any recording, for what it tells. All stretches are kept. A tracepoint that lacks a field tells nothing.
    pub fn told_by(rings: &Rings) -> Result<Self, Failure> {
        Self::with(rings, Numbers::recorded(), false, usize::MAX, false)
    }

    /// Of a recording that tells who runs and who wakes whom.
    pub fn recorded(rings: &Rings, most: usize) -> Result<Self, Failure> {
        let mut scheduler = Self::with(rings, Numbers::recorded(), false, most, true)?;
        let has = |is: fn(&Source) -> bool| scheduler.sources.iter().any(is);
        if has(|source| matches!(source, Source::Switches { .. })) {
            let has_wakes = has(|source| matches!(source, Source::Wakes { .. }));
            scheduler.extent = Some(Extent::new(has_wakes));
            return Ok(scheduler);
        }
        let hint =
            "record the whole machine: perfweave record -a -e sched:sched_switch,sched:sched_waking,raw_syscalls:*";
        Err(Failure::hinting("the recording has no sched:sched_switch", hint))
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
        Ok(Self { sources, numbers, account, is_limited, begins, extent: None })
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
            Item::Untraced(one) => self.account.untraced(one.cpu, one.since, one.lasted.is_none()),
            _ => self.account.lost(None, None),
        };
        self.begins.clear();
        Some(since)
    }

    /// Losses that no event has told, because no record has followed them: gives the time from which nothing is known.
    pub fn unreported(&mut self, ledger: &Status) -> Option<u64> {
        let unreported = ledger.accounts.iter().chain([&ledger.machine]).filter(|account| account.unreported > 0);
        unreported.map(|account| self.account.lost(account.cpu, None)).min()
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

    /// Whether a record is a `sched_switch`: the thread that leaves its CPU writes it.
    pub fn is_switch(&self, record: &Record<'_>) -> bool {
        record.source().is_some_and(|source| matches!(self.sources.get(source), Some(Source::Switches { .. })))
    }

    /// Takes a record, and learns names from it. Some threads are about to run, and some do. Gives the number here of
    /// one that does.
    pub fn record(&mut self, record: &Record<'_>, time: u64, names: &mut Names) -> Option<(u32, Ran)> {
        if time == 0 {
            // A recording begins with what was before it.
            return None;
        }
        if let (Some(extent), Some((_, tid))) = (&mut self.extent, record.pid_tid())
            && let Some(thread) = self.numbers.kernels(tid)
        {
            extent.runs(thread);
        }
        match record.kind() {
            bindings::PERF_RECORD_SAMPLE => match self.sources.get(record.source()?)? {
                Source::Wakes { .. } => self.wakes(record, time, names)?,
                Source::Switches { .. } => return self.switches(record, time, names),
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
            bindings::PERF_RECORD_COMM => self.is_named(record, time)?,
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
        let Self { sources, numbers, account, .. } = self;
        let Source::Switches { prev, state, next } = &sources[record.source()?] else { return None };
        let ((process, tid), cpu) = (record.pid_tid()?, record.cpu());
        let why = why(state.int(record)?);
        let ([prev, prev_comm], [next, next_comm]) = (prev, next);
        let (prev, next) = (number(prev, record)?, number(next, record)?);
        self.extent.iter_mut().for_each(|extent| extent.switch(prev, next));
        let tid = numbers.learn(prev, tid);
        known(account, prev, tid, process);
        // Before it ends.
        name(account, numbers, prev, prev_comm.text(record).as_deref(), names);
        let ran = account.switches(time, cpu, prev, why.map(|why| (why, process)), next);
        name(account, numbers, next, next_comm.text(record).as_deref(), names);
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
                account.calls(time, cpu, by, In::Call(Arc::new(Call { number, args, entered: time })));
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
            Source::Wakes { .. } | Source::Switches { .. } | Source::Other => {}
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

impl Source {
    /// `name`: with its category, if it is known.
    fn of(name: Option<&str>, format: &Format, needs_all: bool) -> Result<Self, Failure> {
        // A probe may have the name of one of these, and has other fields: probe:netif_rx.
        if name.is_some_and(|name| !CATEGORIES.iter().any(|category| name.starts_with(category))) {
            return Ok(Self::Other);
        }
        match Self::with_fields(format) {
            Err(_) if !needs_all => Ok(Self::Other),
            source => source,
        }
    }

    fn with_fields(format: &Format) -> Result<Self, Failure> {
        let task = |[pid, comm]: [&str; 2]| Ok::<_, Failure>([format.field(pid)?, format.field(comm)?]);
        let by = || format.field("common_pid");
        Ok(match format.name() {
            "sched_waking" | "sched_wakeup_new" => {
                Self::Wakes { by: by()?, flags: format.field("common_flags")?, woken: task(["pid", "comm"])? }
            }
            "sched_switch" => Self::Switches {
                prev: task(["prev_pid", "prev_comm"])?,
                state: format.field("prev_state")?,
                next: task(["next_pid", "next_comm"])?,
            },
            "sys_enter" => Self::Enters { by: by()?, number: format.field("id")?, args: format.field("args")? },
            "sys_exit" => Self::Returns { by: by()?, result: format.field("ret")? },
            "irq_handler_entry" => Self::Begins(HARD, Named::Device(format.field("name")?)),
            "softirq_entry" => Self::Begins(SOFT, Named::Soft(format.field("vec")?)),
            "hrtimer_expire_entry" => Self::Begins(TIMER, Named::Timer),
            "irq_handler_exit" => Self::Ends(HARD),
            "softirq_exit" => Self::Ends(SOFT),
            "hrtimer_expire_exit" => Self::Ends(TIMER),
            "netif_rx" => {
                Self::Sends { by: by()?, flags: format.field("common_flags")?, packet: format.field("skbaddr")? }
            }
            "signal_generate" => Self::Signals([
                format.field("pid")?,
                format.field("sig")?,
                format.field("group")?,
                format.field("result")?,
            ]),
            "netif_receive_skb" => Self::Delivers(format.field("skbaddr")?),
            // Linux before 4.8 has no counts.
            "napi_poll" => Self::HasDelivered(match ["dev_name", "work", "budget"].map(|name| format.field(name)) {
                [Ok(device), Ok(work), Ok(budget)] => Some([device, work, budget]),
                _ => None,
            }),
            _ => Self::Other,
        })
    }
}

impl Named {
    fn name(&self, record: &Record<'_>) -> Option<Arc<str>> {
        // As `print fmt` of `irq:softirq_entry` has them.
        const SOFT: [&str; 10] =
            ["hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "timer", "rcu"];
        Some(match self {
            Self::Timer => "timer".into(),
            Self::Device(name) => name.text(record)?.into(),
            Self::Soft(number) => {
                SOFT.get(usize::try_from(number.uint(record)?).ok()?).copied().unwrap_or("softirq").into()
            }
        })
    }
}

/// Whether a CPU's queue of packets to this machine is empty. It has no device, and one that has delivered fewer than
/// it may has no more (`process_backlog`, net/core/dev.c).
fn is_backlog_empty([device, work, budget]: &[Field; 3], record: &Record<'_>) -> bool {
    let has_none = device.text(record).is_some_and(|device| device == "(no device)");
    has_none && work.int(record).zip(budget.int(record)).is_some_and(|(work, budget)| work < budget)
}

/// The numbers that a record tells of the thread that wrote it.
fn known(account: &mut Account, thread: u32, tid: Option<u32>, process: u32) {
    if let Some(known) = account.learn(thread) {
        (known.tid, known.process) = (tid, Some(process));
    }
}

/// The name that an event has of a thread.
fn name(account: &mut Account, numbers: &Numbers, thread: u32, name: Option<&str>, names: &mut Names) {
    let Some(name) = name else { return };
    if let Some(known) = account.learn(thread)
        && known.name != name
    {
        name.clone_into(&mut known.name);
    }
    if let Some(tid @ 1..) = numbers.here(thread) {
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
    use super::{Scheduler, Source, Why, why};
    use crate::recent::a_loss_that_lasts;
    use crate::waits::What;
    use perfweave_events::Format;

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

    #[test]
    fn the_kernels_letters_for_states() {
        // R, R+, S, D, I, T, t, P
        let states = [0, 0x100, 1, 2, 0x80, 4, 8, 0x40].map(why);
        let other = [Why::Stopped, Why::Stopped, Why::Other];
        let first = [Why::Ready, Why::Ready, Why::Asleep, Why::Disk, Why::Asleep].map(Some);
        assert_eq!((&states[..5], &states[5..]), (&first[..], &other.map(Some)[..]));
        assert_eq!([why(0x10), why(0x20)], [None, None]);
    }
    /// A format that has what all have, and one field more.
    fn format(name: &str, field: &str) -> Format {
        let text = format!(
            "name: {name}\nID: 7\nformat:\n\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:{field};\toffset:8;\tsize:8;\tsigned:0;\n\nprint fmt: \"\"\n"
        );
        text.parse().unwrap()
    }

    #[test]
    fn a_probe_with_a_tracepoints_name_is_not_one() {
        let [probe, packet] = ["unsigned long __probe_ip", "void * skbaddr"].map(|field| format("netif_rx", field));
        let of = |name, format| Source::of(Some(name), format, true);
        assert!(matches!(of("probe:netif_rx", &probe), Ok(Source::Other)));
        assert!(matches!(of("probe:netif_rx", &packet), Ok(Source::Other)));
        assert!(matches!(of("net:netif_rx", &packet), Ok(Source::Sends { .. })));
        // One whose category is not known.
        assert!(matches!(Source::of(None, &packet, true), Ok(Source::Sends { .. })));
    }

    /// `convert` shows what there is. Who asks for waits is told that a field is missing.
    #[test]
    fn a_tracepoint_without_a_field_tells_nothing_to_the_painter() {
        let without = format("sched_switch", "pid_t prev_pid");
        let of = |needs_all| Source::of(Some("sched:sched_switch"), &without, needs_all);
        assert!(matches!(of(false), Ok(Source::Other)));
        assert!(of(true).is_err());
    }
}
