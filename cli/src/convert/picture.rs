//! What happened as lanes: which thread ran where and when, what it waited for, who woke it, what is lost. The page and
//! the traces are made of it. Who ran and who waited is what the [account](crate::waits) says.

use super::names::Names;
use super::spill::{Kept, Sorted};
use super::view::{View, lossy};
use crate::failure::Failure;
use crate::numbers::ENDED;
use crate::packed::{Packed, packed};
use crate::scheduler::Scheduler;
use crate::trace::calls::Calls;
use crate::waits::{Cause, Has, In, Stretch, Waker, What, Who, Why};
use perf_event_open_sys::bindings;
use perfweave::{Certainty, Event, Item, Record, Rings};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// Times are those of the recording's clock, in nanoseconds.
#[derive(Debug, Default)]
pub struct Picture {
    pub start: u64,
    pub end: u64,
    pub cpus: BTreeSet<u32>,
    pub threads: BTreeMap<u32, Thread>,
    pub events: Vec<String>,
    pub points: Kept<Point>,
    /// By their beginning.
    pub runs: Kept<Run>,
    /// Thread by thread.
    pub waits: Kept<Wait>,
    pub unknown: Kept<Unknown>,
    /// By their time.
    pub wakes: Kept<Wake>,
    pub losses: Vec<Loss>,
}

#[derive(Debug, Default, Clone)]
pub struct Thread {
    pub pid: Option<u32>,
    pub name: String,
}

/// An event.
#[derive(Debug, Clone)]
pub struct Point {
    pub time: u64,
    pub cpu: Option<u32>,
    /// The thread that ran. It has caused the event, unless an interrupt did.
    pub tid: Option<u32>,
    /// The interrupt that caused the event.
    pub interrupt: Option<&'static str>,
    /// An index of [`Picture::events`].
    pub event: usize,
    pub text: String,
    pub place: Place,
    /// The call chain, outermost function first.
    pub chain: Vec<String>,
}

impl Point {
    /// The thread that caused the event. `None`: an interrupt did, or the recording does not say.
    #[cfg_attr(not(any(feature = "perfetto", feature = "firefox")), expect(dead_code, reason = "the page has both"))]
    pub fn by(&self) -> Option<u32> {
        self.tid.filter(|_| self.interrupt.is_none())
    }
}

/// How far an event's place can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Proven,
    Assumed,
    /// Nanoseconds after an event that came before it.
    Late(u64),
}

/// A thread on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub cpu: u32,
    pub tid: u32,
    pub from: u64,
    pub to: u64,
}

/// A thread that could run, or that was blocked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub tid: u32,
    pub from: u64,
    pub to: u64,
    pub why: Why,
    /// Where it ran then, if it could run and has run.
    pub cpu: Option<u32>,
    /// In which system call it was blocked, with its arguments.
    pub call: Option<String>,
    /// What ended it, if that is known: it was blocked and was woken.
    pub by: Option<By>,
}

impl Wait {
    pub fn words(&self) -> &'static str {
        match self.why {
            Why::Ready => "ready",
            Why::Asleep | Why::Other => "blocked",
            Why::Disk => "blocked, uninterruptible",
            Why::Stopped => "stopped",
        }
    }
}

/// What wakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    Thread(u32),
    /// Its name, or its kind.
    Interrupt(Arc<str>),
}

/// A time in which it is not known who had a CPU, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown {
    pub cpu: u32,
    pub from: u64,
    pub to: u64,
    pub cause: Cause,
}

/// A thread or an interrupt made a thread run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    pub time: u64,
    /// The event that says so: its place in [`Picture::points`].
    pub point: Option<usize>,
    pub by: By,
    /// Where, if it is known.
    pub cpu: Option<u32>,
    pub woken: u32,
    /// When it ran after that, and where.
    pub ran: (u64, u32),
}

/// Records that are missing, and in which stretch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    pub cpu: Option<u32>,
    pub from: u64,
    pub to: u64,
    pub text: String,
}

/// Records that only say how threads are called and what they map.
const NAMES: [u32; 4] =
    [bindings::PERF_RECORD_COMM, bindings::PERF_RECORD_MMAP, bindings::PERF_RECORD_MMAP2, bindings::PERF_RECORD_FORK];

/// Makes a picture, event by event.
#[derive(Debug)]
pub struct Painter {
    picture: Picture,
    numbers: HashMap<String, usize>,
    names: Names,
    scheduler: Scheduler,
    /// The scheduler's names. Those in the picture are the view's.
    told: crate::names::Names,
    wakings: Wakings,
    /// The threads that have caused any event.
    recorded: HashSet<u32>,
    /// Whether threads say themselves that they are on a CPU. Then those that do not are not recorded: nobody knows
    /// when they run.
    has_switches: bool,
    /// Losses whose time is not known yet.
    untimed: Vec<Loss>,
}

impl Painter {
    pub fn new(rings: &Rings) -> Result<Self, Failure> {
        Ok(Self::of(Scheduler::told_by(rings)?))
    }

    fn of(scheduler: Scheduler) -> Self {
        let (picture, numbers, names, told, wakings, recorded, untimed) = Default::default();
        Self { picture, numbers, names, scheduler, told, wakings, recorded, has_switches: false, untimed }
    }

    pub fn event(&mut self, event: &Event<'_>, view: &View) -> io::Result<()> {
        self.names.learn(event);
        let lost = match event.item() {
            Item::Record(record) => {
                self.scheduler.record(&record, event.key().unwrap_or(0), &mut self.told);
                None
            }
            _ => self.scheduler.notice(event),
        };
        let loss = lost.map(|from| {
            let text = crate::session::notice(&event.item()).unwrap_or_default();
            Loss { cpu: event.cpu(), from, to: 0, text }
        });
        // What perf says of the time before the recording has the time 0. A loss before the first record of a CPU, or
        // behind the last, has none.
        let Some(time) = event.key().filter(|key| *key > 0) else {
            self.untimed.extend(loss);
            return Ok(());
        };
        if self.picture.start == 0 {
            if event.record().is_some_and(|record| NAMES.contains(&record.kind())) {
                // A recording begins with its first event. The names of before are known then.
                return Ok(());
            }
            self.picture.start = time;
        }
        self.place(time, event.cpu());
        self.picture.end = self.picture.end.max(time);
        self.picture.cpus.extend(event.cpu().filter(|cpu| *cpu != u32::MAX));
        self.lost(loss, time);
        match event.item() {
            Item::Record(record) => self.record(time, event, &record, view),
            _ => Ok(()),
        }
    }

    /// A loss lasts until it is told.
    fn lost(&mut self, losses: impl IntoIterator<Item = Loss>, to: u64) {
        let start = self.picture.start;
        let placed = losses.into_iter().map(|loss| Loss { from: loss.from.max(start).min(to), to, ..loss });
        self.picture.losses.extend(placed);
    }

    /// One without a time lasts until the next record of its CPU, or until the end.
    fn place(&mut self, to: u64, cpu: Option<u32>) {
        let placed = self.untimed.extract_if(.., |loss| loss.cpu.is_none() || loss.cpu == cpu).collect::<Vec<_>>();
        self.lost(placed, to);
    }

    fn record(&mut self, time: u64, event: &Event<'_>, record: &Record<'_>, view: &View) -> io::Result<()> {
        let tid = view.tid(record);
        let place = match event.certainty() {
            Certainty::Proven => Place::Proven,
            Certainty::Assumed => Place::Assumed,
            Certainty::Late => Place::Late(event.late_by()),
        };
        let pid = record.pid_tid().map(|(pid, _)| pid).or(tid);
        // The address of a tracepoint is always that of the tracepoint.
        let has_place = record.callchain().is_some() || view.format(record).is_none();
        let frames = if has_place { self.names.frames(record, Some(time), view) } else { Vec::new() };
        let chain = frames.into_iter().rev().flat_map(|frame| self.names.names(pid, frame, Some(time), view)).collect();
        // Of a group, one member alone has the chain: it was sampled once.
        let mut chain = Some(chain);
        let (cpu, interrupt, at) = (event.cpu(), view.interrupt(record), self.picture.points.len());
        for shown in view.shown(record) {
            let number = self.number(&view.name(record, shown));
            let (text, chain) = (view.words(record, shown), chain.take().unwrap_or_default());
            self.picture.points.push(&Point { time, cpu, tid, interrupt, event: number, text, place, chain })?;
        }
        if let Some(tid) = tid {
            self.thread(tid, view);
            self.recorded.insert(tid);
        }
        self.has_switches |=
            matches!(record.kind(), bindings::PERF_RECORD_SWITCH | bindings::PERF_RECORD_SWITCH_CPU_WIDE);
        if let Some(woken) = view.wakes(record).filter(|_| self.picture.points.len() > at) {
            Waking { time, at, cpu, tid, interrupt }.pack(self.wakings.entry(woken).or_default());
        }
        Ok(())
    }

    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.picture.events.len();
        self.numbers.insert(name.to_owned(), number);
        self.picture.events.push(name.to_owned());
        number
    }

    fn thread(&mut self, tid: u32, view: &View) {
        let thread = self.picture.threads.entry(tid).or_default();
        if let Some(name) = view.comm(tid).map(lossy)
            && thread.name != name
        {
            thread.name = name.into_owned();
        }
        thread.pid = view.pid(tid).or(thread.pid);
    }

    /// The picture, with everything in order of its beginning.
    pub fn finish(mut self) -> io::Result<Picture> {
        self.names.tell();
        for loss in self.untimed.clone() {
            self.place(self.picture.end, loss.cpu);
        }
        self.scheduler.ends();
        let recorded = self.has_switches.then_some(&self.recorded);
        self.picture.take(&self.scheduler, &self.wakings, recorded)?;
        Ok(self.picture)
    }
}

/// The events that tell of wake-ups, by the thread's number in the first PID namespace: [`Waking`], packed.
type Wakings = HashMap<u32, Vec<u8>>;

/// What is kept of such an event.
#[derive(Debug, Clone, Copy)]
struct Waking {
    time: u64,
    /// Its place in [`Picture::points`].
    at: usize,
    cpu: Option<u32>,
    tid: Option<u32>,
    interrupt: Option<&'static str>,
}

impl Picture {
    /// What an account says of a time.
    pub fn of(scheduler: &Scheduler, start: u64, end: u64) -> io::Result<Self> {
        let cpus = scheduler.account.cpus();
        let mut picture = Self { start, end, cpus, ..Self::default() };
        picture.take(scheduler, &Wakings::new(), None)?;
        for unknown in picture.unknown.iter() {
            let Unknown { cpu, from, to, cause } = unknown?;
            if matches!(cause, Cause::Loss | Cause::Untraced) {
                picture.losses.push(Loss { cpu: Some(cpu), from, to, text: cause.words().into() });
            }
        }
        Ok(picture)
    }

    /// `recorded`: threads that are not among them are strangers. They are seen when they are woken, or when another
    /// makes way for them, and tell nothing themselves. `None`: all are recorded.
    fn take(&mut self, scheduler: &Scheduler, wakings: &Wakings, recorded: Option<&HashSet<u32>>) -> io::Result<()> {
        let is_recorded = |tid: u32| recorded.is_none_or(|recorded| recorded.contains(&tid));
        self.take_runs(scheduler, is_recorded)?;
        let (mut calls, mut wakes) = (Calls::default(), Sorted::by(|wake: &Wake| wake.time));
        for who in scheduler.account.known_threads().into_iter().filter(|who| who.thread > 0) {
            let (tid, known) = (scheduler.number(who), scheduler.account.known(who));
            let thread = self.threads.entry(tid).or_default();
            if let Some(known) = known {
                thread.pid = thread.pid.or(known.process.filter(|process| *process != ENDED));
                if thread.name.is_empty() {
                    thread.name.clone_from(&known.name);
                }
            }
            if is_recorded(tid) {
                self.take_waits(scheduler, who, &mut calls)?;
                let wakings = wakings.get(&who.thread).map_or(&[][..], Vec::as_slice);
                self.take_wakes(scheduler, who, wakings, &mut wakes)?;
            }
        }
        self.wakes = wakes.kept()?;
        self.threads.entry(0).or_default().name = "swapper".into();
        Ok(())
    }

    fn take_runs(&mut self, scheduler: &Scheduler, is_recorded: impl Fn(u32) -> bool) -> io::Result<()> {
        let mut runs = Sorted::by(|run: &Run| (run.from, run.cpu));
        for cpu in scheduler.account.cpus() {
            for Stretch { from, to, what } in scheduler.account.owners(cpu, self.start, self.end) {
                match what {
                    Has::Thread(who) => runs.push(Run { cpu, tid: scheduler.number(who), from, to })?,
                    Has::Unknown(cause) => self.unknown.push(&Unknown { cpu, from, to, cause })?,
                    Has::Idle => {}
                }
            }
        }
        for run in runs.iter()? {
            let run @ Run { cpu, tid, from, to } = run?;
            if is_recorded(tid) {
                self.runs.push(&run)?;
            } else {
                self.unknown.push(&Unknown { cpu, from, to, cause: Cause::Unseen })?;
            }
        }
        Ok(())
    }

    fn take_waits(&mut self, scheduler: &Scheduler, who: Who, calls: &mut Calls) -> io::Result<()> {
        let tid = scheduler.number(who);
        for Stretch { from, to, what } in scheduler.account.did(who, self.start, self.end) {
            let (why, cpu, call, by) = match what {
                What::Runs { .. } | What::Unknown(_) => continue,
                What::Ready { cpu, .. } => (Why::Ready, cpu, None, None),
                What::Blocked { why, call, end, .. } => {
                    let call = if let In::Call(call) = call { Some(calls.words(&call, None)) } else { None };
                    (why, None, call, end.map(|end| By::of(scheduler, &end, None)))
                }
            };
            self.waits.push(&Wait { tid, from, to, why, cpu, call, by })?;
        }
        Ok(())
    }

    /// Each wake-up after which the thread ran.
    fn take_wakes(
        &self,
        scheduler: &Scheduler,
        who: Who,
        mut wakings: &[u8],
        wakes: &mut Sorted<Wake, u64>,
    ) -> io::Result<()> {
        let mut wakings = std::iter::from_fn(|| (!wakings.is_empty()).then(|| Waking::unpack(&mut wakings))).peekable();
        let (mut last, mut before, mut two) = (None, None, None);
        for stretch in scheduler.account.did(who, self.start, self.end) {
            let (on, ran) = (if let What::Runs { cpu } = stretch.what { Some(cpu) } else { None }, stretch.from);
            let (earlier, ready) = (std::mem::replace(&mut before, two.take()), &before);
            two = Some(stretch);
            let (Some(on), Some(Stretch { from, what: What::Ready { taken_off: false, .. }, .. })) = (on, ready) else {
                continue;
            };
            let woken = match earlier.as_ref().map(|earlier: &Stretch<What>| &earlier.what) {
                Some(What::Blocked { end: Some(end), .. }) => Some(end),
                _ => None,
            };
            // Without a time in which it was blocked, it was woken before it left its CPU, and after it came there.
            let since = if woken.is_some() { *from } else { earlier.as_ref().map_or(*from, |earlier| earlier.from) };
            while let Some(waking) = wakings.next_if(|waking| waking.time <= *from) {
                last = Some(waking);
            }
            let event = last.filter(|waking| waking.time >= since);
            let (time, point) = event.map_or((*from, None), |waking| (waking.time, Some(waking.at)));
            let (by, cpu) = match (woken, event) {
                (Some(end), _) => (
                    By::of(scheduler, end, event),
                    event.map_or_else(|| ran_on(scheduler, end, time), |event| event.cpu),
                ),
                (None, Some(Waking { interrupt: Some(kind), cpu, .. })) => (By::Interrupt(kind.into()), cpu),
                (None, Some(Waking { tid: Some(tid), cpu, .. })) => (By::Thread(tid), cpu),
                (None, _) => continue,
            };
            wakes.push(Wake { time, point, by, cpu, woken: scheduler.number(who), ran: (ran, on) })?;
        }
        Ok(())
    }

    /// The name of a thread and its number.
    #[cfg_attr(not(feature = "perfetto"), expect(dead_code, reason = "the page puts them together itself"))]
    pub fn name(&self, tid: u32) -> String {
        format!("{} {tid}", self.threads.get(&tid).map_or("?", |thread| &thread.name))
    }
}

impl By {
    /// `event`: what tells of the wake-up.
    fn of(scheduler: &Scheduler, waker: &Waker, event: Option<Waking>) -> Self {
        let kind = || event.and_then(|event| event.interrupt).unwrap_or("interrupt");
        match waker {
            Waker::Thread(who) => Self::Thread(scheduler.number(*who)),
            Waker::Interrupt(name) => Self::Interrupt(name.clone().unwrap_or_else(|| kind().into())),
        }
    }
}

/// Where a waker ran.
fn ran_on(scheduler: &Scheduler, waker: &Waker, time: u64) -> Option<u32> {
    let Waker::Thread(who) = waker else { return None };
    let mut did = scheduler.account.did(*who, time.saturating_sub(1), time);
    match (did.next()?.what, did.next()) {
        (What::Runs { cpu }, None) => Some(cpu),
        _ => None,
    }
}

packed!(Point { time, cpu, tid, interrupt, event, text, place, chain });
packed!(Run { cpu, tid, from, to });
packed!(Wait { tid, from, to, why, cpu, call, by });
packed!(Unknown { cpu, from, to, cause });
packed!(Wake { time, point, by, cpu, woken, ran });
packed!(Waking { time, at, cpu, tid, interrupt });

impl Packed for Place {
    fn pack(&self, out: &mut Vec<u8>) {
        match self {
            Self::Proven => None,
            Self::Assumed => Some(None),
            Self::Late(by) => Some(Some(*by)),
        }
        .pack(out);
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        match Packed::unpack(bytes) {
            None => Self::Proven,
            Some(None) => Self::Assumed,
            Some(Some(by)) => Self::Late(by),
        }
    }
}

impl Packed for By {
    fn pack(&self, out: &mut Vec<u8>) {
        match self {
            Self::Thread(tid) => (true, *tid).pack(out),
            Self::Interrupt(name) => (false, Arc::clone(name)).pack(out),
        }
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        if bool::unpack(bytes) { Self::Thread(u32::unpack(bytes)) } else { Self::Interrupt(Packed::unpack(bytes)) }
    }
}

/// Whether a thread leaves its CPU, as a record of a switch says (`PERF_RECORD_MISC_SWITCH_OUT`).
pub fn is_switch_out(record: &Record<'_>) -> bool {
    const OUT: u16 = 1 << 13;
    record.misc() & OUT != 0
}

#[cfg(test)]
mod tests {
    use super::{By, Kept, Loss, Packed, Painter, Picture, Run, Waking};
    use crate::scheduler::{Scheduler, Told};
    use crate::waits::{Cause, In, Why};

    const LEFT: Option<(Why, u32)> = Some((Why::Asleep, 7));

    /// A recording from 10 to 200 of what a scheduler tells.
    fn painter(told: impl FnOnce(&mut Scheduler)) -> Painter {
        let mut painter = Painter::of(Scheduler::without_sources());
        (painter.picture.start, painter.picture.end) = (10, 200);
        told(&mut painter.scheduler);
        painter
    }

    fn all<T: Packed>(kept: &Kept<T>) -> impl Iterator<Item = T> {
        kept.iter().map(Result::unwrap)
    }

    fn waits(picture: &Picture) -> Vec<(u32, u64, u64, Why)> {
        all(&picture.waits).map(|wait| (wait.tid, wait.from, wait.to, wait.why)).collect()
    }

    /// Behind the last number of a CPU another switch would not show.
    #[test]
    fn who_runs_behind_the_last_number_of_a_cpu_is_not_known() {
        for by_programs in [false, true] {
            let mut painter = painter(|scheduler| {
                if by_programs {
                    *scheduler = Scheduler::by_programs(100);
                }
                let told =
                    |count, prev, next| Told::Switch { prev, next, why: Some(Why::Asleep), count, call: In::Unknown };
                [(20, told(1, 9, 7)), (40, told(2, 7, 8))]
                    .into_iter()
                    .for_each(|(time, told)| scheduler.hears(time, 0, told));
            });
            painter.picture.end = 200;
            let picture = painter.finish().unwrap();
            let runs: Vec<_> = all(&picture.runs).map(|run| (run.tid, run.from, run.to)).collect();
            let (seen, assumed) = ((7, 20, 40), (8, 40, 200));
            assert_eq!(runs, if by_programs { vec![seen] } else { vec![seen, assumed] });
        }
    }

    /// A thread sleeps, is woken, and waits for a CPU on which another runs meanwhile. The event of the wake-up says
    /// where.
    #[test]
    fn runs_waits_and_wake_ups_are_those_of_the_account() {
        let mut painter = painter(|scheduler| {
            let account = &mut scheduler.account;
            account.switches(20, 0, 0, Some((Why::Ready, 0)), 7);
            account.switches(30, 0, 7, LEFT, 9);
            account.wakes(50, 1, 7, 8, None, (8, Some(8)));
            account.switches(80, 0, 9, Some((Why::Ready, 9)), 7);
            // On its way to sleep it is woken already.
            account.wakes(90, 1, 7, 8, Some("softirq"), (8, Some(8)));
            account.switches(100, 0, 7, LEFT, 9);
            account.switches(120, 0, 9, LEFT, 7);
        });
        let waking = |time, at, interrupt| Waking { time, at, cpu: Some(1), tid: Some(8), interrupt };
        let wakings = painter.wakings.entry(7).or_default();
        [waking(50, 0, None), waking(90, 1, Some("softirq"))].iter().for_each(|waking| waking.pack(wakings));
        let picture = painter.finish().unwrap();
        let run = |cpu, tid, from, to| Run { cpu, tid, from, to };
        let runs: Vec<_> = all(&picture.runs).filter(|run| run.cpu == 0).collect();
        assert_eq!(
            runs,
            [run(0, 7, 20, 30), run(0, 9, 30, 80), run(0, 7, 80, 100), run(0, 9, 100, 120), run(0, 7, 120, 200)]
        );
        let of_7: Vec<_> = waits(&picture).into_iter().filter(|wait| wait.0 == 7).collect();
        assert_eq!(of_7, [(7, 30, 50, Why::Asleep), (7, 50, 80, Why::Ready), (7, 100, 120, Why::Ready)]);
        let blocked = all(&picture.waits).find(|wait| (wait.tid, wait.from) == (7, 30)).unwrap();
        assert_eq!((&blocked.by, all(&picture.waits).nth(1).unwrap().cpu), (&Some(By::Thread(8)), Some(0)));
        let wakes: Vec<_> = all(&picture.wakes).map(|wake| (wake.time, wake.point, wake.by, wake.ran)).collect();
        let by = By::Interrupt("softirq".into());
        assert_eq!(wakes, [(50, Some(0), By::Thread(8), (80, 0)), (90, Some(1), by, (120, 0))]);
    }

    /// Where records of any CPU are missing, a thread may have run and waited again.
    #[test]
    fn nothing_spans_a_loss_and_who_had_the_cpu_is_unknown() {
        let picture = painter(|scheduler| {
            let account = &mut scheduler.account;
            account.switches(20, 0, 7, LEFT, 9);
            account.wakes(30, 1, 7, 8, None, (8, Some(8)));
            account.lost(Some(0), Some(40));
            account.switches(60, 0, 9, LEFT, 7);
            account.switches(70, 0, 7, LEFT, 0);
        });
        let picture = picture.finish().unwrap();
        assert!(
            all(&picture.wakes).next().is_none() && waits(&picture).iter().all(|wait| wait.2 <= 40 || wait.1 >= 60)
        );
        let of_0 = all(&picture.runs).filter(|run| run.cpu == 0).map(|run| (run.tid, run.from, run.to));
        assert_eq!(of_0.collect::<Vec<_>>(), [(9, 20, 40), (7, 60, 70)]);
        let unknown = all(&picture.unknown).filter(|one| one.cpu == 0).map(|one| (one.from, one.to, one.cause));
        assert_eq!(unknown.collect::<Vec<_>>(), [(10, 20, Cause::First), (40, 60, Cause::Loss)]);
    }

    /// What CPU 1 wrote after 35 is lost, until it writes at 100. This is heard before CPU 0 tells that 7 slept, was
    /// woken and ran.
    #[test]
    fn nothing_spans_a_loss_that_lasts() {
        let again = |scheduler: &mut Scheduler, from: u64| {
            let account = &mut scheduler.account;
            account.switches(from, 0, 7, LEFT, 9);
            account.wakes(from + 10, 0, 7, 9, None, (9, Some(9)));
            account.switches(from + 20, 0, 9, LEFT, 7);
        };
        let picture = painter(|scheduler| {
            again(scheduler, 11);
            scheduler.account.silent(1, 35);
            again(scheduler, 40);
            again(scheduler, 70);
            scheduler.account.switches(100, 1, 8, LEFT, 3);
            again(scheduler, 110);
            again(scheduler, 140);
        });
        let picture = picture.finish().unwrap();
        let waits = waits(&picture);
        assert!(waits.iter().all(|wait| wait.2 <= 35 || wait.1 >= 100), "{waits:?}");
        let ran: Vec<_> =
            all(&picture.waits).filter(|wait| wait.tid == 7 && wait.why == Why::Ready).map(|wait| wait.to).collect();
        assert!(ran.contains(&31) && ran.contains(&160), "{ran:?}");
    }

    #[test]
    fn losses_without_a_time_end_at_the_next_record_of_their_cpu() {
        let mut painter = painter(|_| {});
        let loss = |(cpu, from)| Loss { cpu: Some(cpu), from, to: 0, text: String::new() };
        painter.untimed = [(1, 0), (2, 90), (0, 20)].map(loss).to_vec();
        painter.place(40, Some(1));
        painter.place(50, Some(0));
        let of = |loss: Loss| (loss.cpu, loss.from, loss.to);
        let losses: Vec<_> = painter.finish().unwrap().losses.into_iter().map(of).collect();
        assert_eq!(losses, [(Some(1), 10, 40), (Some(0), 20, 50), (Some(2), 90, 200)]);
    }

    /// One command is recorded. Thread 9 is another's: nothing says when it leaves the CPU, nor that 7 comes back. The
    /// record of its end is the last one of 7.
    #[test]
    fn a_thread_that_is_not_recorded_has_no_runs() {
        let mut painter = painter(|scheduler| {
            let account = &mut scheduler.account;
            account.comes_unseen(10, 0, 7, None);
            account.wakes(12, 0, 9, 7, None, (7, Some(7)));
            account.switches(30, 0, 7, LEFT, 9);
            account.leaves_unseen(31, 0, 7, None, None);
            account.comes_unseen(50, 0, 7, None);
            account.tells_its_end(60, 0, 7);
            account.switches(90, 1, 7, LEFT, 9);
        });
        painter.recorded.insert(7);
        painter.has_switches = true;
        let picture = painter.finish().unwrap();
        let runs: Vec<_> =
            all(&picture.runs).filter(|run| run.cpu == 0).map(|run| (run.tid, run.from, run.to)).collect();
        assert_eq!(runs, [(7, 10, 30), (7, 50, 60)]);
        assert!(all(&picture.wakes).next().is_none() && all(&picture.waits).all(|wait| wait.tid == 7));
    }
}
