//! The account itself: facts in, stretches out.
//!
//! `sched_waking` comes before it is known whether its thread sleeps at all (`try_to_wake_up`, kernel/sched/core.c). A
//! thread that is about to sleep may find that it was woken and go on, or leave its CPU and come back. So such a
//! wake-up is held until the thread's switch: a thread that leaves as one that can run was not woken. No thread is
//! woken twice without having run, so of several wake-ups the last counts.

use super::history::{History, Stretch, joined};
use super::{Cause, Has, In, Left, Ran, Wake, Waker, What, Who, Why};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU8;
use std::sync::Arc;

/// What is known of all threads and CPUs.
#[derive(Debug)]
pub struct Account {
    /// Who has a number now.
    living: HashMap<u32, Who>,
    threads: HashMap<Who, Thread>,
    cpus: HashMap<u32, Cpu>,
    /// CPUs on which anybody may run unseen, from now on.
    untraced: BTreeSet<u32>,
    /// CPUs whose records are missing until they tell something again.
    silent: BTreeSet<u32>,
    /// Of whom each stretch is, in the order in which they were added: the oldest is the first to be dropped.
    added: VecDeque<Of>,
    /// The most stretches that are kept, of all threads and CPUs together.
    most: usize,
    /// Of the newest fact.
    newest: u64,
    lives: u32,
    /// Why nothing is known of those who come now.
    unknown: Cause,
    /// Who has waited, since when, and is seen to run: nobody saw when it began to.
    unseen: Option<(Who, u64)>,
    /// The time of the first of those facts that came late, as long as none has come in its turn since: nothing is
    /// known of it on.
    void_from: Option<u64>,
    /// Who was woken when for which signal, as the last fact says.
    signalled: Option<(Who, u64, NonZeroU8)>,
    /// Where the thread stands that has the next fact.
    stack: u32,
    /// Packets to this machine that are on their way: who sent them, and on which CPU.
    sent: HashMap<u64, (Who, u32)>,
}

/// Packets on their way that are kept. One that is dropped never arrives.
const PACKETS: usize = 4_096;

/// What is known of a thread beside what it does.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub name: String,
    /// Its number in the recorder's PID namespace, and that of its process.
    pub tid: Option<u32>,
    pub process: Option<u32>,
}

#[derive(Debug)]
struct Thread {
    known: Known,
    first: Cause,
    /// Who made it, and when, if its first record tells.
    made: Option<(u64, Who)>,
    history: History<What>,
    /// What it does now, since when.
    does: Does,
    since: u64,
    /// A wake-up that counts if it leaves its CPU to sleep, or if it sleeps.
    wake: Option<Wake>,
    /// Nobody saw it begin to run, so a wake-up that nobody saw either may count.
    doubt: bool,
    /// It has told that it ends. Its last switch may have no record.
    ending: bool,
    call: In,
    /// The signal that came with the wake-up by which its last wait ended, and when that was.
    signalled: Option<(NonZeroU8, u64)>,
}

#[derive(Debug, Clone, Copy)]
enum Does {
    Unknown(Cause),
    Runs(u32),
    Left(Left),
    Ended,
}

#[derive(Debug)]
struct Cpu {
    first: Cause,
    history: History<Has>,
    has: Has,
    since: u64,
    /// Of its last fact.
    last: u64,
    /// Interrupts that run, the innermost last, and their names.
    interrupts: Vec<(Kinds, Arc<str>)>,
    /// When one of them began or ended last.
    turned: u64,
    /// When which of them ran instead of a thread.
    interrupted: History<Arc<str>>,
    /// Who sent the packet that a soft interrupt delivers.
    packet: Option<Who>,
    /// Whom its last facts woke, if they did nothing else.
    woken: Vec<Who>,
}

/// Of which kinds an interrupt may be: [`crate::interrupt::kind`].
pub type Kinds = &'static [&'static str];

/// One of them.
const SOFT: &str = "softirq";

#[derive(Debug, Clone, Copy)]
enum Of {
    Thread(Who),
    Cpu(u32),
    Interrupts(u32),
}

impl Account {
    /// One that keeps so many stretches. A stretch takes 70 bytes at most.
    pub fn new(most: usize) -> Self {
        let (living, threads, cpus) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (untraced, added, unknown) = (BTreeSet::new(), VecDeque::new(), Cause::First);
        let sent = HashMap::new();
        Self {
            living,
            threads,
            cpus,
            untraced,
            silent: BTreeSet::new(),
            added,
            most,
            newest: 0,
            lives: 0,
            unknown,
            unseen: None,
            void_from: None,
            signalled: None,
            stack: 0,
            sent,
        }
    }

    /// Of the newest fact.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// How many stretches are kept.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        let threads = self.threads.values().map(|thread| thread.history.len());
        threads.chain(self.cpus.values().map(|cpu| cpu.history.len() + cpu.interrupted.len())).sum()
    }

    /// Of how many threads anything is kept.
    #[cfg(test)]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Who has this number now.
    pub fn who(&self, thread: u32) -> Option<Who> {
        self.living.get(&thread).copied()
    }

    /// All threads that are kept, also those that have ended, the first one first.
    pub fn known_threads(&self) -> Vec<Who> {
        let mut all: Vec<_> = self.threads.keys().copied().collect();
        all.sort_unstable_by_key(|who| who.life);
        all
    }

    /// All CPUs that have told something, in their order.
    pub fn cpus(&self) -> BTreeSet<u32> {
        self.cpus.keys().copied().collect()
    }

    /// All that have a number now.
    pub fn living(&self) -> impl Iterator<Item = Who> {
        self.living.values().copied()
    }

    /// Since when a thread waits, if it does.
    pub fn waits_since(&self, who: Who) -> Option<u64> {
        match self.threads.get(&who)?.does {
            Does::Left(left) => Some(left.time),
            _ => None,
        }
    }

    /// Who has waited, since when, if the last fact says so without saying when it began to run.
    pub fn take_unseen(&mut self) -> Option<(Who, u64)> {
        self.unseen.take()
    }

    /// When a thread has ended, if it has.
    pub fn ended(&self, who: Who) -> Option<u64> {
        self.threads.get(&who).filter(|thread| matches!(thread.does, Does::Ended)).map(|thread| thread.since)
    }

    /// What else is known of a thread, if it is kept.
    pub fn known(&self, who: Who) -> Option<&Known> {
        self.threads.get(&who).map(|thread| &thread.known)
    }

    /// The same, to be added to.
    pub fn learn(&mut self, thread: u32) -> Option<&mut Known> {
        let who = self.living.get(&thread)?;
        self.threads.get_mut(who).map(|thread| &mut thread.known)
    }

    /// Where the thread stands that has the next fact, as a number that its caller knows. 0: it is not known.
    pub fn stands(&mut self, stack: u32) {
        self.stack = stack;
    }

    /// A thread wakes another, or an interrupt of this kind does.
    pub fn wakes(
        &mut self,
        time: u64,
        cpu: u32,
        woken: u32,
        by: u32,
        interrupt: Option<&'static str>,
        numbers: (u32, Option<u32>),
    ) {
        let mut woken_here = self.take_woken(cpu);
        if !self.fact(time, cpu) {
            return;
        }
        self.runs_here(time, cpu, by);
        // The idle thread does not wait. As a thread it would be one that was never seen to run.
        if woken == 0 {
            return;
        }
        let woken = self.meet(time, woken);
        let by = match interrupt {
            Some(kind) => match self.sender(cpu).filter(|sender| kind == SOFT && *sender != woken) {
                Some(sender) => Waker::Thread(sender),
                None => Waker::Interrupt(self.interrupt(cpu, kind)),
            },
            None => {
                self.is_itself(time, cpu);
                // An idle CPU that polls does without the interrupt that another CPU would send.
                if by == 0 { Waker::Interrupt(None) } else { Waker::Thread(self.meet(time, by)) }
            }
        };
        let is_unseen = self.is_unseen();
        let Some(thread) = self.threads.get_mut(&woken) else { return };
        match thread.does {
            // One that was taken off its CPU may have been about to sleep. Now it does not.
            Does::Left(Left { why: Why::Ready, .. }) | Does::Ended => return,
            // It may have run where nobody sees it, and sleep again.
            Does::Unknown(_) if is_unseen => return,
            // It has run since it was woken, and nobody saw it.
            Does::Left(left) if thread.wake.as_ref().is_some_and(|wake| wake.time >= left.time) => {
                thread.slept(woken, &mut self.added);
            }
            // This one counts, unless it ran unseen meanwhile.
            Does::Left(_) => thread.doubt |= thread.wake.is_some(),
            _ => {}
        }
        let stack = if matches!(by, Waker::Thread(_)) { self.stack } else { 0 };
        thread.wake = Some(Wake { time, by, interrupt, numbers, stack, signal: None });
        woken_here.push(woken);
        self.cpus.entry(cpu).and_modify(|cpu| cpu.woken = woken_here);
    }

    /// A signal was sent: to a thread, or to all of its process. `None`: nobody is to be woken for it.
    /// `signal_generate` comes behind the wake-ups that it causes (`__send_signal_locked`, kernel/signal.c), with no
    /// other fact of the CPU in between. A thread that was awake already is not woken: then the wake-up is of something
    /// that the sender did before.
    pub fn signals(&mut self, time: u64, cpu: u32, sent: Option<(u32, bool, NonZeroU8)>) {
        let woken = self.take_woken(cpu);
        if !self.fact(time, cpu) {
            return;
        }
        let Some((thread, to_all, signal)) = sent else { return };
        let process = |who: Who| self.threads.get(&who).and_then(|thread| thread.known.process);
        // Threads from outside of a PID namespace have process 0.
        let sent_to = self.who(thread).and_then(process).filter(|process| to_all && *process != 0);
        let is_meant = |who: &Who| who.thread == thread || (sent_to.is_some() && process(*who) == sent_to);
        let meant: Vec<_> = woken.into_iter().filter(is_meant).collect();
        for who in meant {
            if let Some(wake) = self.threads.get_mut(&who).and_then(|thread| thread.wake.as_mut()) {
                wake.signal = Some(signal);
            }
        }
    }

    /// Whom the last facts of a CPU woke.
    fn take_woken(&mut self, cpu: u32) -> Vec<Who> {
        self.cpus.get_mut(&cpu).map(|cpu| std::mem::take(&mut cpu.woken)).unwrap_or_default()
    }

    /// In which system call a thread is.
    pub fn call(&self, who: Who) -> Option<&In> {
        self.threads.get(&who).map(|thread| &thread.call)
    }

    /// A CPU goes from one thread to another: 0 is the idle one. `left`: why it left and its process, or `None` if it
    /// has ended.
    pub fn switches(&mut self, time: u64, cpu: u32, prev: u32, left: Option<(Why, u32)>, next: u32) -> Option<Ran> {
        if !self.fact(time, cpu) {
            if left.is_none() {
                self.ends_unseen(time, prev, Cause::Late);
            }
            return None;
        }
        // None is underway at a switch, so what is left has an end without a record.
        self.cpu(time, cpu).interrupts.clear();
        self.leaves_cpu(time, cpu, prev);
        if prev != 0 {
            self.leaves(time, cpu, prev, left);
        }
        self.comes(time, cpu, next)
    }

    /// What the kernel's own record says of a thread that leaves, where there is no `sched_switch`. It does not say why
    /// a thread sleeps. `next`: who comes, if it says so.
    pub fn leaves_unseen(&mut self, time: u64, cpu: u32, prev: u32, could_run: Option<u32>, next: Option<u32>) {
        if !self.fact(time, cpu) {
            return;
        }
        let Some(who) = self.who(prev) else { return };
        if self.cpus.get(&cpu).is_some_and(|cpu| cpu.has == Has::Thread(who)) {
            self.leaves_cpu(time, cpu, prev);
            let next = next.map_or(Has::Unknown(Cause::Unseen), |next| self.has(time, next));
            self.cpus.entry(cpu).and_modify(|cpu| cpu.has = next);
        } else if self.threads.get(&who).is_none_or(|thread| !matches!(thread.does, Does::Unknown(_))) {
            // A `sched_switch` has told it.
            return;
        }
        match could_run {
            Some(process) => self.leaves(time, cpu, prev, Some((Why::Ready, process))),
            None => self.stops(time, cpu, who, false),
        }
    }

    /// The same of one that comes. `prev`: who was there before, if it says so.
    pub fn comes_unseen(&mut self, time: u64, cpu: u32, thread: u32, prev: Option<u32>) -> Option<Ran> {
        if !self.fact(time, cpu) {
            return None;
        }
        let is_told =
            self.who(thread).is_some_and(|who| self.cpus.get(&cpu).is_some_and(|cpu| cpu.has == Has::Thread(who)));
        if !is_told {
            match prev {
                Some(prev) => self.leaves_cpu(time, cpu, prev),
                None => self.unseen_until(time, cpu),
            }
            if let Some(who) = prev.and_then(|prev| self.who(prev)) {
                self.stops(time, cpu, who, false);
            }
        }
        self.comes(time, cpu, thread)
    }

    /// A new thread, and the one that made it. The last one of this number may have ended unseen.
    pub fn forks(&mut self, time: u64, cpu: u32, thread: u32, parent: Option<u32>) {
        let is_in_turn = self.fact(time, cpu);
        let maker = parent.and_then(|parent| self.who(parent));
        self.ends_unseen(time, thread, if is_in_turn { Cause::Unseen } else { Cause::Late });
        // The idle thread of a CPU that comes online.
        if thread == 0 {
            return;
        }
        let who = self.meet(if is_in_turn { time } else { self.newest }, thread);
        if is_in_turn {
            self.threads.entry(who).and_modify(|thread| {
                (thread.first, thread.made) = (Cause::Gone, maker.map(|maker| (time, maker)));
            });
        }
    }

    /// A thread has written a record that says nothing else.
    pub fn writes(&mut self, time: u64, cpu: u32, thread: u32) {
        if self.fact(time, cpu) {
            self.runs_here(time, cpu, thread);
        }
    }

    /// A thread writes the record of its end. Where only some threads are recorded it is their last one, so until here
    /// it is known to run.
    pub fn tells_its_end(&mut self, time: u64, cpu: u32, thread: u32) {
        if !self.fact(time, cpu) {
            // The switch that ends it comes later, if it is still to come and has a record.
            match self.who(thread).and_then(|who| self.threads.get_mut(&who)) {
                Some(of) if matches!(of.does, Does::Runs(_)) => of.ending = true,
                _ => self.ends_unseen(time, thread, Cause::Late),
            }
            return;
        }
        self.runs_here(time, cpu, thread);
        let has = self.has(time, thread);
        self.takes(time, cpu, has);
        if let Has::Thread(who) = has
            && let Some(of) = self.threads.get_mut(&who)
        {
            of.becomes(time, What::Runs { cpu }, Does::Runs(cpu), who, &mut self.added);
            of.ending = true;
        }
    }

    /// A thread returns from a system call. `interrupted`: a signal ended it, as its result says.
    pub fn returns_from(&mut self, time: u64, cpu: u32, thread: u32, interrupted: bool) {
        self.calls(time, cpu, thread, In::Nothing);
        let Some(who) = self.who(thread) else { return };
        let Some(thread) = self.threads.get_mut(&who).filter(|thread| thread.call == In::Nothing) else { return };
        let Some((number, woken)) = thread.signalled.take().filter(|_| interrupted) else { return };
        let ended = thread.history.change_ended(woken, |what| match what {
            What::Blocked { signal, .. } => {
                *signal = Some(number);
                true
            }
            _ => false,
        });
        if ended == Some(true) {
            self.signalled = Some((who, woken, number));
        }
    }

    /// Who was woken when for which signal, if the last fact says so.
    pub fn take_signalled(&mut self) -> Option<(Who, u64, NonZeroU8)> {
        self.signalled.take()
    }

    /// A thread enters a system call, or returns from it.
    pub fn calls(&mut self, time: u64, cpu: u32, thread: u32, call: In) {
        if !self.fact(time, cpu) {
            return;
        }
        self.runs_here(time, cpu, thread);
        self.is_itself(time, cpu);
        let who = self.meet(time, thread);
        if let Some(thread) = self.threads.get_mut(&who) {
            thread.call = call;
        }
    }

    /// An interrupt begins.
    pub fn interrupts(&mut self, time: u64, cpu: u32, kinds: Kinds, name: Arc<str>) {
        if !self.fact(time, cpu) {
            return;
        }
        let of = self.cpu(time, cpu);
        // A soft one interrupts none, and a hard one only a soft one, but timers are a part of one: what is left has an
        // end without a record.
        if of.interrupts.last().is_some_and(|(of, _)| kinds == [SOFT] || *of != [SOFT] && of.len() >= kinds.len()) {
            of.interrupts.clear();
        }
        self.turns(time, cpu);
        self.cpu(time, cpu).interrupts.push((kinds, name));
    }

    /// The innermost interrupt ends, if it is of these kinds.
    pub fn returns(&mut self, time: u64, cpu: u32, kinds: Kinds) {
        if !self.fact(time, cpu) {
            return;
        }
        let of = self.cpu(time, cpu);
        if kinds == [SOFT] {
            of.packet = None;
        }
        if of.interrupts.last().is_some_and(|(running, _)| *running != kinds) {
            of.interrupts.clear();
        }
        self.turns(time, cpu);
        self.cpu(time, cpu).interrupts.pop();
    }

    /// Until now the innermost interrupt has run.
    fn turns(&mut self, time: u64, cpu: u32) {
        let of = self.cpu(time, cpu);
        if let (Has::Thread(_), Some((_, name))) = (of.has, of.interrupts.last()) {
            let is_new = of.interrupted.push(of.turned, time, Arc::clone(name));
            of.turned = time;
            add(&mut self.added, Of::Interrupts(cpu), is_new);
        } else {
            of.turned = time;
        }
    }

    /// A thread does something itself, so no interrupt is underway.
    fn is_itself(&mut self, time: u64, cpu: u32) {
        let of = self.cpu(time, cpu);
        of.interrupts.clear();
        of.packet = None;
    }

    /// Which interrupts ran on a CPU instead of its threads, and how long each.
    pub fn interrupted(&self, cpu: u32, from: u64, to: u64) -> Vec<(Arc<str>, u64)> {
        let mut sums = HashMap::<Arc<str>, u64>::new();
        let parts = self.cpus.get(&cpu).into_iter().flat_map(|cpu| cpu.interrupted.between(from, to));
        parts.for_each(|part| *sums.entry(part.what).or_default() += part.to - part.from);
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        sums
    }

    /// A packet to this machine is put where a soft interrupt delivers it: by a thread, or by a soft interrupt that
    /// delivers another.
    pub fn sends(&mut self, time: u64, cpu: u32, by: u32, in_interrupt: bool, packet: u64) {
        if !self.fact(time, cpu) {
            return;
        }
        self.runs_here(time, cpu, by);
        let sender = match self.has(time, by) {
            _ if in_interrupt => self.cpu(time, cpu).packet,
            Has::Thread(who) => Some(who),
            _ => None,
        };
        if self.sent.len() >= PACKETS {
            self.sent.clear();
        }
        match sender {
            Some(who) => drop(self.sent.insert(packet, (who, cpu))),
            None => drop(self.sent.remove(&packet)),
        }
    }

    /// A soft interrupt begins to deliver a packet, or has delivered all.
    pub fn delivers(&mut self, time: u64, cpu: u32, packet: Option<u64>) {
        if !self.fact(time, cpu) {
            return;
        }
        let sender = packet.and_then(|packet| self.sent.remove(&packet));
        self.cpu(time, cpu).packet = sender.map(|(who, _)| who);
    }

    /// A CPU has delivered all that was sent there. What has not arrived was dropped, and another packet may have its
    /// address. One that went to another CPU is forgotten as well: of such a one nothing is said ([`Self::sender`]).
    pub fn delivered_all(&mut self, cpu: u32) {
        self.sent.retain(|_, (_, on)| *on != cpu);
    }

    /// Who sent the packet that is delivered here, if it is the thread that has this CPU: then it delivers itself what
    /// it sends.
    fn sender(&self, cpu: u32) -> Option<Who> {
        let of = self.cpus.get(&cpu)?;
        of.packet.filter(|sender| of.has == Has::Thread(*sender))
    }

    /// Records of a CPU, or of any, are lost after this time; if it is not known, after the last fact. Gives the time
    /// from which nothing is known.
    pub fn lost(&mut self, cpu: Option<u32>, after: Option<u64>) -> u64 {
        let last = cpu.map_or(self.newest, |cpu| self.cpus.get(&cpu).map_or(0, |cpu| cpu.last));
        self.void(cpu, after.unwrap_or(last), Cause::Loss)
    }

    /// The same of one CPU that has told nothing since: anybody may run there until it does.
    pub fn silent(&mut self, cpu: u32, after: u64) -> u64 {
        self.silent.insert(cpu);
        self.lost(Some(cpu), Some(after))
    }

    /// Whether a thread may run where nobody sees it.
    fn is_unseen(&self) -> bool {
        !(self.untraced.is_empty() && self.silent.is_empty())
    }

    /// A CPU was not traced since then, and is not yet if this lasts. Gives the time from which nothing is known.
    pub fn untraced(&mut self, cpu: u32, since: Option<u64>, lasts: bool) -> u64 {
        if lasts {
            self.untraced.insert(cpu)
        } else {
            self.untraced.remove(&cpu)
        };
        self.void(Some(cpu), since.unwrap_or(0), Cause::Untraced)
    }

    /// Who made a thread, and when, if that is known.
    pub fn maker(&self, who: Who) -> Option<(u64, Who)> {
        self.threads.get(&who)?.made
    }

    /// What a thread did from a time to another, without overlap or hole.
    pub fn did(&self, who: Who, from: u64, to: u64) -> impl Iterator<Item = Stretch<What>> {
        let (first, kept_from, thread) = match self.threads.get(&who) {
            Some(thread) => (thread.first, thread.history.kept_from, Some(thread)),
            None => (Cause::Forgotten, to, None),
        };
        let before = Stretch { from, to: to.min(kept_from), what: What::Unknown(first) };
        let kept = thread.into_iter().flat_map(move |thread| {
            let now = thread.now(to, false).map(move |part| Stretch { from: part.from.max(from), ..part });
            thread.history.between(from, to).chain(now)
        });
        joined(std::iter::once(before).chain(kept))
    }

    /// Who had a CPU from a time to another, and how long each of them.
    pub fn had(&self, cpu: u32, from: u64, to: u64) -> Vec<(Has, u64)> {
        let mut had = HashMap::<Has, u64>::new();
        for part in self.owners(cpu, from, to) {
            *had.entry(part.what).or_default() += part.to - part.from;
        }
        let mut had: Vec<_> = had.into_iter().collect();
        had.sort_by_key(|&(has, time)| (std::cmp::Reverse(time), matches!(has, Has::Thread(_)), has));
        had
    }

    /// Who had a CPU from a time to another, one after the other, without overlap or hole.
    pub fn owners(&self, cpu: u32, from: u64, to: u64) -> impl Iterator<Item = Stretch<Has>> {
        let (first, kept_from, cpu) = match self.cpus.get(&cpu) {
            Some(cpu) => (cpu.first, cpu.history.kept_from, Some(cpu)),
            None => (Cause::First, to, None),
        };
        let before = Stretch { from, to: to.min(kept_from), what: Has::Unknown(first) };
        let kept = cpu.into_iter().flat_map(move |cpu| {
            let what = match cpu.has {
                Has::Thread(who) if self.threads.get(&who).is_some_and(|thread| thread.ending) => {
                    Has::Unknown(Cause::Unseen)
                }
                has => has,
            };
            let now = Stretch { from: cpu.since.max(from), to, what };
            cpu.history.between(from, to).chain(std::iter::once(now))
        });
        joined(std::iter::once(before).chain(kept))
    }

    /// A fact comes at this time. Of one that comes late it is false: what was concluded without it is void, and
    /// nothing is concluded from it, because what the facts between it and the newest have told is gone.
    fn fact(&mut self, time: u64, cpu: u32) -> bool {
        if time < self.newest {
            if self.void_from.is_none_or(|from| time < from) {
                self.void(None, time, Cause::Late);
                self.void_from = Some(time);
            }
            return false;
        }
        (self.newest, self.void_from) = (time, None);
        self.silent.remove(&cpu);
        let of = self.cpu(time, cpu);
        of.last = time;
        of.woken.clear();
        if self.most == usize::MAX {
            // None is dropped.
            self.added.clear();
        }
        while self.added.len() > self.most {
            self.drop_oldest();
        }
        true
    }

    fn drop_oldest(&mut self) {
        match self.added.pop_front() {
            Some(Of::Cpu(cpu)) => {
                let Some(cpu) = self.cpus.get_mut(&cpu) else { return };
                cpu.history.forget();
                cpu.first = Cause::Forgotten;
            }
            Some(Of::Interrupts(cpu)) => drop(self.cpus.get_mut(&cpu).map(|cpu| cpu.interrupted.forget())),
            Some(Of::Thread(who)) => {
                let Some(thread) = self.threads.get_mut(&who) else { return };
                thread.history.forget();
                thread.first = Cause::Forgotten;
                if thread.is_over() {
                    self.threads.remove(&who);
                    if self.who(who.thread) == Some(who) {
                        self.living.remove(&who.thread);
                    }
                }
            }
            None => {}
        }
    }

    /// Nothing is known from this time on, of any thread and of one CPU or all.
    fn void(&mut self, of: Option<u32>, after: u64, cause: Cause) -> u64 {
        self.unknown = cause;
        self.sent.clear();
        for (number, cpu) in self.cpus.iter_mut().filter(|(cpu, _)| of.is_none_or(|of| of == **cpu)) {
            cpu.interrupts.clear();
            cpu.interrupted.cut(after);
            cpu.packet = None;
            let since = after.max(cpu.history.kept_from);
            if !matches!(cpu.has, Has::Unknown(_)) || cpu.since > since {
                add(&mut self.added, Of::Cpu(*number), cpu.history.push(cpu.since, since, cpu.has));
                cpu.history.cut(since);
                (cpu.has, cpu.since) = (Has::Unknown(cause), since);
            }
        }
        for (who, thread) in &mut self.threads {
            thread.void(*who, after, cause, &mut self.added);
        }
        // The other CPUs have told all that was there: who runs is known.
        for (number, cpu) in self.cpus.iter().filter(|(cpu, _)| of.is_some_and(|of| of != **cpu)) {
            let Has::Thread(who) = cpu.has else { continue };
            if let Some(thread) = self.threads.get_mut(&who).filter(|thread| matches!(thread.does, Does::Unknown(_))) {
                let since = cpu.since.max(thread.since);
                thread.becomes(since, What::Unknown(cause), Does::Runs(*number), who, &mut self.added);
            }
        }
        self.threads.retain(|_, thread| !thread.is_over());
        let threads = &self.threads;
        self.living.retain(|_, who| threads.contains_key(who));
        after
    }

    fn cpu(&mut self, time: u64, cpu: u32) -> &mut Cpu {
        let has = Has::Unknown(self.unknown);
        self.cpus.entry(cpu).or_insert_with(|| Cpu {
            first: Cause::First,
            history: History::new(time),
            has,
            since: time,
            last: time,
            interrupts: Vec::new(),
            turned: time,
            interrupted: History::new(time),
            packet: None,
            woken: Vec::new(),
        })
    }

    /// The name of the interrupt that runs.
    fn interrupt(&self, cpu: u32, kind: &str) -> Option<Arc<str>> {
        let (kinds, name) = self.cpus.get(&cpu)?.interrupts.last()?;
        kinds.contains(&kind).then(|| Arc::clone(name))
    }

    /// The thread with this number. One that nothing has told of is new.
    fn meet(&mut self, time: u64, thread: u32) -> Who {
        let Self { living, threads, lives, unknown, .. } = self;
        *living.entry(thread).or_insert_with(|| {
            *lives = lives.wrapping_add(1);
            let who = Who { thread, life: *lives };
            threads.insert(who, Thread::new(time, *unknown));
            who
        })
    }

    fn has(&mut self, time: u64, thread: u32) -> Has {
        if thread == 0 { Has::Idle } else { Has::Thread(self.meet(time, thread)) }
    }

    /// A thread writes a record, or is interrupted by what does, so it has the CPU.
    fn runs_here(&mut self, time: u64, cpu: u32, thread: u32) {
        let has = self.has(time, thread);
        if self.cpu(time, cpu).has != has {
            self.unseen_until(time, cpu);
            self.takes(time, cpu, has);
        }
        let Has::Thread(who) = has else { return };
        let Some(of) = self.threads.get_mut(&who) else { return };
        if matches!(of.does, Does::Runs(on) if on == cpu) {
            return;
        }
        if let Does::Left(left) = of.does {
            self.unseen = Some((who, left.time));
        }
        let did = of.ran_unseen(who, &mut self.added);
        of.becomes(time, did, Does::Runs(cpu), who, &mut self.added);
        (of.wake, of.doubt) = (None, true);
    }

    /// Ends what a CPU had, and gives it to another.
    fn takes(&mut self, time: u64, cpu: u32, has: Has) {
        let Some(of) = self.cpus.get_mut(&cpu) else { return };
        let is_new = of.history.push(of.since, time, of.has);
        (of.has, of.since) = (has, time);
        add(&mut self.added, Of::Cpu(cpu), is_new);
    }

    /// A thread leaves a CPU, or the idle one does. If the CPU had another, that one has left unseen.
    fn leaves_cpu(&mut self, time: u64, cpu: u32, prev: u32) {
        let had = self.cpu(time, cpu).has;
        let prev = self.has(time, prev);
        if had != prev {
            self.unseen_until(time, cpu);
        }
        self.takes(time, cpu, Has::Unknown(Cause::Unseen));
    }

    /// Somebody else may have had a CPU since its last fact.
    pub fn unseen(&mut self, time: u64, cpu: u32) {
        if self.fact(time, cpu) {
            self.unseen_until(time, cpu);
        }
    }

    /// Nobody knows when the thread left that the CPU had.
    fn unseen_until(&mut self, time: u64, cpu: u32) {
        let of = self.cpu(time, cpu);
        let had = of.has;
        if let Has::Idle | Has::Thread(_) = had {
            of.has = Has::Unknown(Cause::Unseen);
        }
        if let Has::Thread(who) = had {
            self.stops(time, cpu, who, true);
        }
    }

    /// A thread that ran here does not any more, and nothing says why. `unseen`: nor when it stopped.
    fn stops(&mut self, time: u64, cpu: u32, who: Who, unseen: bool) {
        let Some(thread) = self.threads.get_mut(&who) else { return };
        let did = match thread.does {
            Does::Runs(on) if on == cpu && !unseen => What::Runs { cpu },
            Does::Runs(on) if on == cpu => What::Unknown(Cause::Unseen),
            // It ran, and a wake-up that was told may be the one that made it run.
            Does::Unknown(cause) if !unseen => What::Unknown(cause),
            _ => return,
        };
        thread.becomes(time, did, Does::Unknown(Cause::Unseen), who, &mut self.added);
        (thread.wake, thread.doubt) = (None, true);
    }

    fn leaves(&mut self, time: u64, cpu: u32, number: u32, left: Option<(Why, u32)>) {
        let (who, is_unseen) = (self.meet(time, number), self.is_unseen());
        let Some(thread) = self.threads.get_mut(&who) else { return };
        let (did, ran) = match thread.does {
            Does::Runs(on) if on == cpu => (What::Runs { cpu }, true),
            does => {
                if let Does::Left(left) = does {
                    self.unseen = Some((who, left.time));
                }
                (thread.ran_unseen(who, &mut self.added), false)
            }
        };
        let does = match left {
            None => Does::Ended,
            Some(_) if is_unseen => Does::Unknown(self.unknown),
            Some((why, process)) => Does::Left(Left { time, why, process, cpu, stack: self.stack }),
        };
        thread.becomes(time, did, does, who, &mut self.added);
        thread.doubt |= !ran;
        // Where nothing says that it ran, the wake-up may be the one that made it run, and it has run.
        if !ran || !matches!(does, Does::Left(Left { why: Why::Asleep | Why::Disk | Why::Stopped | Why::Other, .. })) {
            thread.wake = None;
        }
        if left.is_none() {
            self.ends(time, who);
        }
    }

    /// The thread that had this number has ended. Nothing says what it did until then.
    fn ends_unseen(&mut self, time: u64, thread: u32, cause: Cause) {
        let Some(who) = self.who(thread) else { return };
        let Some(of) = self.threads.get_mut(&who) else { return };
        // It may have been met behind a fact that comes late.
        let time = time.max(of.since);
        of.becomes(time, What::Unknown(cause), Does::Ended, who, &mut self.added);
        self.ends(time, who);
    }

    fn ends(&mut self, time: u64, who: Who) {
        self.living.remove(&who.thread);
        if let Some(thread) = self.threads.get_mut(&who) {
            (thread.does, thread.since, thread.wake) = (Does::Ended, time, None);
            if thread.is_over() {
                self.threads.remove(&who);
            }
        }
    }

    /// A thread takes a CPU that another has left.
    fn comes(&mut self, time: u64, cpu: u32, number: u32) -> Option<Ran> {
        let has = self.has(time, number);
        if self.cpus.get(&cpu).is_some_and(|cpu| cpu.has != has) {
            self.takes(time, cpu, has);
        }
        let Has::Thread(who) = has else { return None };
        let thread = self.threads.get_mut(&who)?;
        let left = match thread.does {
            // Told twice.
            Does::Runs(on) if on == cpu => return None,
            // Nothing says when it left. What was before is not known.
            Does::Runs(_) | Does::Ended => {
                (thread.wake, thread.doubt) = (None, true);
                thread.becomes(time, What::Unknown(Cause::Unseen), Does::Runs(cpu), who, &mut self.added);
                return None;
            }
            Does::Unknown(_) => None,
            Does::Left(left) => Some(left),
        };
        let did: Vec<_> = thread.now(time, true).collect();
        for Stretch { from, to, mut what } in did {
            if let What::Ready { cpu: on, taken_off, held } = &mut what {
                *on = Some(cpu);
                // When a quota held it back.
                let idle = left.filter(|_| *taken_off).and_then(|left| self.cpus.get(&left.cpu)?.idle(left, cpu, to));
                if let Some([begin, end]) = idle {
                    *held = true;
                    let held =
                        std::mem::replace(&mut what, What::Ready { cpu: Some(cpu), taken_off: true, held: false });
                    thread.becomes(begin.max(from), what.clone(), thread.does, who, &mut self.added);
                    thread.becomes(end.min(to), held, thread.does, who, &mut self.added);
                }
            }
            thread.becomes(to, what, thread.does, who, &mut self.added);
        }
        (thread.does, thread.since, thread.doubt) = (Does::Runs(cpu), time, false);
        if left.is_none_or(|left| left.why != Why::Ready) {
            thread.signalled = thread.wake.as_ref().and_then(|wake| Some((wake.signal?, wake.time)));
        }
        Some(Ran { who, left, wake: thread.wake.take() })
    }
}

impl Cpu {
    /// From when to when it has been idle since a thread was taken off it that runs now, on this CPU or another.
    ///
    /// A CPU goes idle only if it has nobody who may run (`__schedule`, kernel/sched/core.c). So who is taken off it
    /// then may not, and neither may those of its own who were taken off before. On the way to another CPU a thread may
    /// wait there meanwhile.
    fn idle(&self, left: Left, cpu: u32, until: u64) -> Option<[u64; 2]> {
        let mut idle = self.history.between(left.time, until).filter(|stretch| stretch.what == Has::Idle);
        let first = idle.next()?;
        match idle.last().map_or(first.to, |last| last.to) {
            last if left.cpu == cpu => Some([first.from, last]),
            _ => (first.from == left.time).then_some([first.from, first.to]),
        }
    }
}

impl Thread {
    fn new(time: u64, first: Cause) -> Self {
        let (known, does) = (Known::default(), Does::Unknown(first));
        Self {
            known,
            first,
            made: None,
            history: History::new(time),
            does,
            since: time,
            wake: None,
            doubt: true,
            ending: false,
            call: In::Unknown,
            signalled: None,
        }
    }

    /// What it has done since the last stretch until this time, and whether it runs now.
    fn now(&self, to: u64, runs: bool) -> impl Iterator<Item = Stretch<What>> + use<> {
        let woken = self.wake.as_ref().filter(|wake| wake.time <= to && !matches!(self.does, Does::Runs(_)));
        let taken_off = matches!(self.does, Does::Left(Left { why: Why::Ready, .. }));
        let what = match self.does {
            Does::Unknown(cause) => What::Unknown(cause),
            Does::Runs(_) if self.ending => What::Unknown(Cause::Unseen),
            Does::Runs(cpu) => What::Runs { cpu },
            Does::Left(_) if taken_off => What::Ready { cpu: None, taken_off, held: false },
            // It may sleep nevertheless, until another wakes it.
            Does::Left(left) if !runs && woken.is_some_and(|wake| wake.time < left.time) => {
                What::Unknown(Cause::Unseen)
            }
            Does::Left(_) if self.doubt && woken.is_none() => What::Unknown(Cause::Unseen),
            Does::Left(Left { why, stack, .. }) => What::Blocked {
                why,
                call: self.call.clone(),
                end: woken.map(|wake| wake.by.clone()),
                // Only a signal continues one that is stopped. For others the result of the call says whether it was
                // the signal.
                signal: woken.filter(|_| why == Why::Stopped).and_then(|wake| wake.signal),
                stacks: [stack, woken.map_or(0, |wake| wake.stack)],
            },
            Does::Ended => What::Unknown(Cause::Gone),
        };
        let since = self.since.min(to);
        let ready = woken.filter(|_| !matches!(what, What::Unknown(Cause::Unseen)) || runs);
        let ready = ready.map_or(to, |wake| wake.time.clamp(since, to));
        let parts = [(since, ready, what), (ready, to, What::Ready { cpu: None, taken_off: false, held: false })];
        parts.into_iter().filter(|(from, to, _)| from < to).map(|(from, to, what)| Stretch { from, to, what })
    }

    /// It did this until now, and does that from now on.
    fn becomes(&mut self, time: u64, did: What, does: Does, who: Who, added: &mut VecDeque<Of>) {
        if did == What::Unknown(Cause::Unseen) {
            // It may be another thread of this number, which has executed a program.
            self.call = In::Unknown;
        }
        add(added, Of::Thread(who), self.history.push(self.since, time, did));
        (self.does, self.since) = (does, time);
    }

    /// It has run, and nobody saw when it began to. It slept until it was woken.
    fn ran_unseen(&mut self, who: Who, added: &mut VecDeque<Of>) -> What {
        match self.does {
            Does::Unknown(cause) => return What::Unknown(cause),
            Does::Left(left) if self.wake.as_ref().is_some_and(|wake| wake.time >= left.time) => self.slept(who, added),
            _ => {}
        }
        What::Unknown(Cause::Unseen)
    }

    /// It slept until it was woken, and what it did then is not known.
    fn slept(&mut self, who: Who, added: &mut VecDeque<Of>) {
        let Some(woken) = self.wake.as_ref().map(|wake| wake.time) else { return };
        if let Some(Stretch { to, what, .. }) = self.now(woken, false).next() {
            self.becomes(to, what, Does::Unknown(Cause::Unseen), who, added);
        }
    }

    /// Nothing is known of it from this time on. Until then it did what it does.
    fn void(&mut self, who: Who, after: u64, cause: Cause, added: &mut VecDeque<Of>) {
        let since = after.max(self.history.kept_from);
        match self.does {
            Does::Unknown(_) | Does::Ended if self.since <= since => {}
            Does::Ended => {
                self.cut(since, cause);
                add(added, Of::Thread(who), self.history.push(since, self.since, What::Unknown(cause)));
            }
            _ => {
                if self.since < since {
                    for Stretch { from, to, what } in self.now(since, false) {
                        add(added, Of::Thread(who), self.history.push(from, to, what));
                    }
                }
                self.cut(since, cause);
                (self.does, self.since) = (Does::Unknown(cause), since);
            }
        }
        (self.wake, self.call, self.doubt, self.signalled) = (None, In::Unknown, true, None);
    }

    /// Takes back what was after a time, and what was concluded of it.
    fn cut(&mut self, after: u64, cause: Cause) {
        let Some((what, before)) = self.history.cut(after) else { return };
        let is_sure = match what {
            // It was woken before it left its CPU, and may have slept nevertheless.
            What::Ready { taken_off, .. } => *taken_off || matches!(before, Some(What::Blocked { .. })),
            // Or the other way round.
            What::Blocked { .. } => false,
            _ => true,
        };
        if !is_sure {
            *what = What::Unknown(cause);
        } else if let What::Ready { cpu, .. } = what {
            *cpu = None;
        }
    }

    /// Whether nothing is lost with it.
    fn is_over(&self) -> bool {
        self.history.is_empty() && self.wake.is_none() && matches!(self.does, Does::Unknown(_) | Does::Ended)
    }
}

fn add(added: &mut VecDeque<Of>, of: Of, is_new: bool) {
    if is_new {
        added.push_back(of);
    }
}
