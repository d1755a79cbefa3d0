//! A recording as lanes: which thread ran where and when, who woke whom, what is lost. The page and the traces are made of it.

use super::names::{Names, frames};
use super::view::{Scheduled, View};
use crate::numbers::OUTSIDE;
use perfweave::{Certainty, Event, Item, Kind, Record};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// Times are those of the recording's clock, in nanoseconds.
#[derive(Debug, Default)]
pub struct Picture {
    pub start: u64,
    pub end: u64,
    pub cpus: BTreeSet<u32>,
    pub threads: BTreeMap<u32, Thread>,
    pub events: Vec<String>,
    pub points: Vec<Point>,
    pub runs: Vec<Run>,
    pub wakes: Vec<Wake>,
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

/// A thread or an interrupt made a thread runnable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    pub time: u64,
    /// The event that says so, and who caused it: an index of [`Picture::points`].
    pub point: usize,
    pub cpu: u32,
    pub woken: u32,
    /// When it ran after that, and where. `None` if that is not known: where records are missing, it may have run and waited again.
    pub ran: Option<(u64, u32)>,
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
const NAMES: [Kind; 4] = [Kind::COMM, Kind::MMAP, Kind::MMAP2, Kind::FORK];

/// Makes a picture, event by event.
#[derive(Debug, Default)]
pub struct Painter {
    picture: Picture,
    numbers: HashMap<String, usize>,
    names: Names,
    /// Whether wakers themselves say whom they wake. If so, what the woken thread's CPU says of it is left out.
    has_waking: bool,
    /// By `sched:sched_switch`.
    switched: Running,
    /// By the kernel's records of switches into and out of the recorded threads. If there are any, runs are made of them: where only some
    /// threads are recorded, nobody else's `sched:sched_switch` is, and so neither the beginning of their runs nor the end of another's.
    scheduled: Running,
    /// The wake-ups whose runs the kernel's own records of switches tell.
    joined: HashSet<usize>,
    /// Losses whose time is not known yet.
    untimed: Vec<Loss>,
    /// The last wake-up of each thread, and whether `sched:sched_switch` says that it ran after it.
    woken: HashMap<u32, (usize, bool)>,
    /// Threads that left a CPU and could run on. No wake-up makes them run.
    ready: HashSet<u32>,
    /// In a PID namespace: the numbers of threads that were not known when tracepoints first named them.
    renamed: HashMap<u32, u32>,
    /// What the view had learned of them.
    learned: usize,
}

/// Who runs where, and has run.
#[derive(Debug, Default)]
struct Running {
    runs: Vec<Run>,
    /// Who runs on each CPU, and since when. `None`: unknown since then.
    on: HashMap<u32, (Option<u32>, u64)>,
}

impl Running {
    /// Before its first event a CPU may not have been traced yet.
    fn begin(&mut self, cpu: u32, time: u64) {
        self.on.entry(cpu).or_insert((None, time));
    }

    fn switch(&mut self, time: u64, cpu: u32, prev: u32, next: Option<u32>) {
        let (running, since) = self.on.get(&cpu).copied().unwrap_or((None, time));
        // The idle thread runs where nothing is drawn. After a loss it is unknown who ran until then.
        if prev != 0 && running.is_none_or(|running| running == prev) && since < time {
            self.runs.push(Run { cpu, tid: prev, from: since, to: time });
        }
        self.on.insert(cpu, (next, time));
    }

    fn rename(&mut self, from: u32, to: u32) {
        for (running, _) in self.on.values_mut().filter(|(running, _)| *running == Some(from)) {
            *running = Some(to);
        }
    }

    fn lost(&mut self, loss: &Loss) {
        for (cpu, running) in &mut self.on {
            if loss.cpu.is_none_or(|of| of == *cpu) {
                if let (Some(tid @ 1..), from) = *running
                    && from < loss.from
                {
                    self.runs.push(Run { cpu: *cpu, tid, from, to: loss.from });
                }
                *running = (None, loss.to);
            }
        }
    }

    /// All runs until the end of the recording.
    fn finish(mut self, end: u64) -> Vec<Run> {
        for (cpu, (tid, from)) in self.on {
            if let Some(tid @ 1..) = tid
                && from < end
            {
                self.runs.push(Run { cpu, tid, from, to: end });
            }
        }
        self.runs.sort_by_key(|run| (run.from, run.cpu));
        self.runs
    }
}

impl Painter {
    pub fn new(view: &View) -> Self {
        let has_waking = view.events().any(|name| name == "sched:sched_waking");
        Self { has_waking, ..Self::default() }
    }

    pub fn event(&mut self, event: &Event<'_>, view: &View) {
        self.names.learn(event, view);
        if self.learned != view.learned() {
            self.learned = view.learned();
            self.rename(|thread| view.here(thread));
        }
        // What perf says of the time before the recording has the time 0.
        let Some(time) = event.key().filter(|key| *key > 0) else { return self.without_time(event) };
        if self.picture.start == 0 {
            if event.record().is_some_and(|record| NAMES.contains(&record.kind())) {
                // A recording begins with its first event. The names of before are known then.
                return;
            }
            self.picture.start = time;
        }
        self.place(time, event.cpu());
        self.picture.end = self.picture.end.max(time);
        if let Some(cpu) = event.cpu().filter(|cpu| *cpu != u32::MAX) {
            self.picture.cpus.insert(cpu);
            self.switched.begin(cpu, time);
        }
        match event.item() {
            Item::Record(record) => self.record(time, event, &record, view),
            Item::Flushed | Item::EarlyRelease(_) => {}
            other => {
                let from = after(&other, Some(time)).unwrap_or(time).max(self.picture.start);
                let text = crate::session::notice(&other).unwrap_or_default();
                self.lost(Loss { cpu: event.cpu(), from, to: time, text });
            }
        }
    }

    /// A loss before the first record of a CPU, or behind the last, has no time.
    fn without_time(&mut self, event: &Event<'_>) {
        if let Some(text) = crate::session::notice(&event.item()) {
            let from = after(&event.item(), None).unwrap_or(0);
            self.untimed.push(Loss { cpu: event.cpu(), from, to: 0, text });
        }
    }

    /// Such a loss lasts until the next record of its CPU, or until the end.
    fn place(&mut self, to: u64, cpu: Option<u32>) {
        for loss in self.untimed.extract_if(.., |loss| loss.cpu.is_none() || loss.cpu == cpu).collect::<Vec<_>>() {
            let from = loss.from.max(self.picture.start).min(to);
            self.lost(Loss { from, to, ..loss });
        }
    }

    fn record(&mut self, time: u64, event: &Event<'_>, record: &Record<'_>, view: &View) {
        let tid = view.tid(record);
        let name = view.name(record);
        let number = self.number(&name);
        let place = match event.certainty() {
            Certainty::Proven => Place::Proven,
            Certainty::Assumed => Place::Assumed,
            Certainty::Late => Place::Late(event.late_by()),
        };
        let pid = record.pid_tid().map(|(pid, _)| pid).or(tid);
        // The address of a tracepoint is always that of the tracepoint.
        let frames =
            if record.callchain().is_some() || view.format(record).is_none() { frames(record) } else { Vec::new() };
        let chain = frames.into_iter().rev().map(|frame| self.names.name(pid, frame, Some(time), view)).collect();
        let cpu = event.cpu();
        let (interrupt, text) = (view.interrupt(record), view.words(record));
        self.picture.points.push(Point { time, cpu, tid, interrupt, event: number, text, place, chain });
        if let Some(tid) = tid {
            self.thread(tid, view);
        }
        match (record.kind(), tid, cpu) {
            (Kind::SWITCH | Kind::SWITCH_CPU_WIDE, Some(tid), Some(cpu)) => {
                self.in_or_out(time, cpu, tid, is_switch_out(record));
            }
            // Its last switch is not recorded any more.
            (Kind::EXIT, Some(tid), Some(cpu)) if self.scheduled.on.contains_key(&cpu) => {
                self.in_or_out(time, cpu, tid, true);
            }
            _ => {}
        }
        match (view.scheduled(record), cpu) {
            (Some(Scheduled::Switch { prev, could_run, next }), Some(cpu)) => {
                self.thread(prev, view);
                self.thread(next, view);
                self.switched.switch(time, cpu, prev, Some(next));
                self.leaves(prev, could_run);
                self.runs(time, cpu, next);
            }
            (Some(Scheduled::Wake { woken, is_waking }), Some(cpu)) if is_waking == self.has_waking => {
                self.thread(woken, view);
                self.wakes(Wake { time, point: self.picture.points.len() - 1, cpu, woken, ran: None });
            }
            _ => {}
        }
    }

    fn wakes(&mut self, wake: Wake) {
        if !self.ready.contains(&wake.woken) {
            self.woken.insert(wake.woken, (self.picture.wakes.len(), false));
        }
        self.picture.wakes.push(wake);
    }

    /// A thread leaves its CPU. If it could run on, it was not asleep, and no wake-up makes it run (`try_to_wake_up`, kernel/sched/core.c, has the
    /// tracepoint before it looks).
    fn leaves(&mut self, tid: u32, could_run: bool) {
        if could_run && tid != 0 {
            self.woken.remove(&tid);
            self.ready.insert(tid);
        } else {
            self.ready.remove(&tid);
        }
    }

    /// The numbers of some threads are known now.
    fn rename(&mut self, known: impl Fn(u32) -> u32) {
        let unknown = self.picture.threads.range(OUTSIDE..).map(|(tid, _)| *tid);
        let known = unknown.map(|tid| (tid, known(tid & !OUTSIDE))).filter(|(from, to)| from != to);
        for (from, to) in known.collect::<Vec<_>>() {
            let unknown = self.picture.threads.remove(&from).unwrap_or_default();
            let thread = self.picture.threads.entry(to).or_default();
            if thread.name.is_empty() {
                thread.name = unknown.name;
            }
            self.renamed.insert(from, to);
            self.switched.rename(from, to);
            if let Some(wake) = self.woken.remove(&from) {
                self.woken.insert(to, wake);
            }
            if self.ready.remove(&from) {
                self.ready.insert(to);
            }
        }
    }

    /// A thread runs, as `sched:sched_switch` says.
    fn runs(&mut self, time: u64, cpu: u32, tid: u32) {
        self.ready.remove(&tid);
        if let Some((wake, has_run @ false)) = self.woken.get_mut(&tid) {
            self.picture.wakes[*wake].ran = Some((time, cpu));
            *has_run = true;
        }
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
        if let Some(name) = view.comm(tid)
            && thread.name != name
        {
            name.clone_into(&mut thread.name);
        }
        thread.pid = view.pid(tid).or(thread.pid);
    }

    /// The kernel's own record of a switch.
    fn in_or_out(&mut self, time: u64, cpu: u32, tid: u32, is_out: bool) {
        if is_out {
            // Nobody is known to run now: another thread may be one that is not recorded.
            self.scheduled.switch(time, cpu, tid, Some(0));
        } else {
            self.scheduled.on.insert(cpu, (Some(tid), time));
            self.ready.remove(&tid);
            // The run begins here, not where another thread's `sched:sched_switch` announces it.
            if let Some((wake, _)) = self.woken.remove(&tid) {
                self.picture.wakes[wake].ran = Some((time, cpu));
                self.joined.insert(wake);
            }
        }
    }

    fn lost(&mut self, loss: Loss) {
        self.switched.lost(&loss);
        self.scheduled.lost(&loss);
        self.ready.clear();
        self.picture.losses.push(loss);
    }

    /// The picture, with everything in order of its beginning.
    pub fn finish(mut self) -> Picture {
        self.names.tell();
        if self.learned == 0 {
            // No thread was seen but idle ones.
            self.rename(|thread| thread);
        }
        for loss in self.untimed.clone() {
            self.place(self.picture.end, loss.cpu);
        }
        let running = if self.scheduled.on.is_empty() {
            self.switched
        } else {
            // A thread that is not recorded may have run, and waited again, before a recorded one made way for it.
            for (_, wake) in self.picture.wakes.iter_mut().enumerate().filter(|(at, _)| !self.joined.contains(at)) {
                wake.ran = None;
            }
            self.scheduled
        };
        self.picture.runs = running.finish(self.picture.end);
        let renamed = |tid: &mut u32| *tid = self.renamed.get(tid).copied().unwrap_or(*tid);
        self.picture.runs.iter_mut().for_each(|run| renamed(&mut run.tid));
        self.picture.wakes.iter_mut().for_each(|wake| renamed(&mut wake.woken));
        self.picture.forget_waits_across_losses();
        self.picture.threads.entry(0).or_default().name = "swapper".into();
        self.picture
    }
}

impl Picture {
    /// A thread that waits while records of any CPU are missing may run there, and wait again, without a record.
    fn forget_waits_across_losses(&mut self) {
        let mut stretches: Vec<_> = self.losses.iter().map(|loss| (loss.from, loss.to)).collect();
        stretches.sort_unstable();
        // Without overlaps, their ends are in order too.
        stretches.dedup_by(|next, before| {
            let overlaps = next.0 <= before.1;
            if overlaps {
                before.1 = before.1.max(next.1);
            }
            overlaps
        });
        for wake in &mut self.wakes {
            let next = stretches.get(stretches.partition_point(|(_, to)| *to <= wake.time));
            wake.ran = wake.ran.filter(|(ran, _)| next.is_none_or(|(from, _)| ran <= from));
        }
    }
}

/// The time of the last record before a loss: 0 if it is the first that its CPU tells. `time` is when it is told.
fn after(item: &Item<'_>, time: Option<u64>) -> Option<u64> {
    match item {
        Item::Lost(lost) => Some(lost.after.unwrap_or(0)),
        Item::Gap(gap) => Some(gap.after.unwrap_or(0)),
        Item::Untraced(untraced) => untraced_since(untraced.since, untraced.lasted, time),
        _ => None,
    }
}

/// Since when a CPU was not traced. It is told when that is over, or, as long as it lasts, when it begins.
fn untraced_since(since: Option<u64>, lasted: Option<Duration>, time: Option<u64>) -> Option<u64> {
    let lasted = lasted.map(|lasted| u64::try_from(lasted.as_nanos()).unwrap_or(u64::MAX));
    since.or_else(|| time.zip(lasted).map(|(time, lasted)| time.saturating_sub(lasted)))
}

/// Whether a thread leaves its CPU, as a record of a switch says (`PERF_RECORD_MISC_SWITCH_OUT`).
pub fn is_switch_out(record: &Record<'_>) -> bool {
    const OUT: u16 = 1 << 13;
    record.misc() & OUT != 0
}

#[cfg(test)]
mod tests {
    use super::{Loss, Painter, Run, Wake, untraced_since};
    use std::time::Duration;

    /// A wait is joined only where no record of any CPU is missing.
    #[test]
    fn a_wake_up_is_not_joined_across_a_loss() {
        let mut painter = Painter::default();
        (painter.picture.start, painter.picture.end) = (10, 200);
        let wake = |time, woken| Wake { time, point: 0, cpu: 0, woken, ran: None };
        // Each wake-up, and when the thread runs on CPU 0. CPU 1 tells at 60 what it has lost since 40, and CPU 2 nothing since 80.
        let waits = [(20, 30), (25, 40), (30, 50), (45, 55), (50, 70), (60, 65), (70, 90), (62, 80)];
        let mut steps = Vec::new();
        for (tid, (woken, ran)) in (1..).zip(waits) {
            steps.extend([(woken, Some(tid), None), (ran, None, Some(tid))]);
        }
        steps.push((60, None, None));
        steps.sort_by_key(|(time, woken, ran)| (*time, woken.is_some(), ran.is_some()));
        for (time, woken, ran) in steps {
            match (woken, ran) {
                (Some(tid), _) => painter.wakes(wake(time, tid)),
                (_, Some(tid)) => painter.runs(time, 0, tid),
                _ => painter.lost(Loss { cpu: Some(1), from: 40, to: 60, text: String::new() }),
            }
        }
        painter.untimed.push(Loss { cpu: Some(2), from: 80, to: 0, text: String::new() });
        let picture = painter.finish();
        let joined = picture.wakes.iter().filter_map(|wake| Some((wake.time, wake.ran?.0)));
        assert_eq!(joined.collect::<Vec<_>>(), [(20, 30), (25, 40), (60, 65), (62, 80)]);
    }

    /// `sched_waking` comes before the kernel looks whether the thread sleeps at all.
    #[test]
    fn a_thread_that_could_run_is_woken_by_nobody() {
        let mut painter = Painter::default();
        (painter.picture.start, painter.picture.end) = (10, 100);
        let wake = |time, woken| Wake { time, point: 0, cpu: 0, woken, ran: None };
        // 7 is woken on its way to sleep, and is taken off its CPU. Meanwhile it is woken again.
        painter.wakes(wake(20, 7));
        painter.leaves(7, true);
        painter.wakes(wake(30, 7));
        painter.runs(40, 0, 7);
        // 7 is woken on its way to sleep, and sleeps. 8 sleeps and is woken.
        painter.wakes(wake(50, 7));
        painter.leaves(7, false);
        painter.leaves(8, false);
        painter.wakes(wake(60, 8));
        painter.runs(70, 0, 7);
        painter.runs(80, 1, 8);
        let ran: Vec<_> = painter.finish().wakes.iter().map(|wake| wake.ran).collect();
        assert_eq!(ran, [None, None, Some((70, 0)), Some((80, 1))]);
    }

    #[test]
    fn runs_end_where_records_are_lost() {
        let mut painter = Painter::default();
        (painter.picture.start, painter.picture.end) = (10, 100);
        painter.switched.switch(20, 0, 7, Some(8));
        painter.lost(Loss { cpu: Some(0), from: 40, to: 60, text: String::new() });
        painter.switched.switch(70, 0, 9, Some(0));
        painter.switched.switch(80, 0, 0, Some(7));
        let run = |tid, from, to| Run { cpu: 0, tid, from, to };
        assert_eq!(painter.finish().runs, [run(8, 20, 40), run(9, 60, 70), run(7, 80, 100)]);
    }

    #[test]
    fn losses_without_a_time_end_at_the_next_record_of_their_cpu() {
        let mut painter = Painter::default();
        (painter.picture.start, painter.picture.end) = (10, 100);
        let loss = |(cpu, from)| Loss { cpu: Some(cpu), from, to: 0, text: String::new() };
        painter.untimed = [(1, 0), (2, 90), (0, 20)].map(loss).to_vec();
        painter.place(40, Some(1));
        painter.place(50, Some(0));
        let of = |loss: Loss| (loss.cpu, loss.from, loss.to);
        let losses: Vec<_> = painter.finish().losses.into_iter().map(of).collect();
        assert_eq!(losses, [(Some(1), 10, 40), (Some(0), 20, 50), (Some(2), 90, 100)]);
    }

    /// No record tells what happens on a CPU that is not traced: waits that reach into that time are forgotten, although it is told at its end.
    #[test]
    fn a_cpu_that_is_not_traced_is_told_at_the_end() {
        let lasted = Some(Duration::from_nanos(30));
        let since =
            [(Some(50), lasted, None), (Some(50), lasted, Some(90)), (None, lasted, Some(90)), (None, None, Some(90))];
        let since = since.map(|(since, lasted, time)| untraced_since(since, lasted, time));
        assert_eq!(since, [Some(50), Some(50), Some(60), None]);
        let mut painter = Painter::default();
        (painter.picture.start, painter.picture.end) = (10, 100);
        painter.wakes(Wake { time: 55, point: 0, cpu: 0, woken: 7, ran: None });
        painter.runs(70, 0, 7);
        painter.untimed.push(Loss { cpu: Some(1), from: since[0].unwrap(), to: 0, text: String::new() });
        painter.place(80, Some(1));
        let picture = painter.finish();
        assert_eq!((picture.wakes[0].ran, picture.losses[0].from, picture.losses[0].to), (None, 50, 80));
    }

    #[test]
    fn a_thread_that_is_not_recorded_has_no_runs() {
        let mut painter = Painter::default();
        (painter.picture.start, painter.picture.end) = (10, 100);
        painter.in_or_out(10, 0, 7, false);
        // Thread 9 is not recorded: nothing says when it leaves the CPU, nor that 7 comes back.
        painter.switched.switch(30, 0, 7, Some(9));
        painter.in_or_out(31, 0, 7, true);
        painter.in_or_out(50, 0, 7, false);
        painter.in_or_out(60, 0, 7, true);
        let run = |from, to| Run { cpu: 0, tid: 7, from, to };
        let wake = |woken| Wake { time: 12, point: 0, cpu: 0, woken, ran: Some((30, 0)) };
        painter.picture.wakes = vec![wake(9), wake(7)];
        painter.woken.insert(7, (1, true));
        painter.in_or_out(70, 0, 7, false);
        let picture = painter.finish();
        assert_eq!(picture.runs, [run(10, 31), run(50, 60), run(70, 100)]);
        assert_eq!([picture.wakes[0].ran, picture.wakes[1].ran], [None, Some((70, 0))]);
    }
}
