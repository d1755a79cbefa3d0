//! The account itself: facts in, stretches out.
//!
//! `sched_waking` comes before it is known whether its thread sleeps at all (`try_to_wake_up`, kernel/sched/core.c). A
//! thread that is about to sleep may find that it was woken and go on, or leave its CPU and come back. So such a
//! wake-up is held until the thread's switch: a thread that leaves as one that can run was not woken. No thread is
//! woken twice without having run, so of several wake-ups the last counts.

use super::added::{Added, Of};
use super::cpu::{Cpu, Kinds, SOFT};
use super::history::{Stretch, joined};
use super::near::Near;
use super::packets::Packets;
use super::thread::{Known, Thread};
use super::{Cause, Has, In, Left, Ran, Wake, Waker, What, Who, Why};
use std::collections::{BTreeSet, HashMap};
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
    added: Added,
    near: Near,
    /// How many threads were looked at for switches without a record.
    #[cfg(test)]
    looked_at: usize,
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
    /// How long an interrupt ran instead of a thread, as the last fact says.
    interrupted: Option<u64>,
    /// Where the thread stands that has the next fact.
    stack: u32,
    sent: Packets,
}

impl Account {
    /// One that keeps so many stretches. A stretch takes 70 bytes at most.
    pub fn new(most: usize) -> Self {
        Self {
            living: HashMap::new(),
            threads: HashMap::new(),
            cpus: HashMap::new(),
            untraced: BTreeSet::new(),
            silent: BTreeSet::new(),
            added: Added::new(most),
            near: Near::default(),
            #[cfg(test)]
            looked_at: 0,
            newest: 0,
            lives: 0,
            unknown: Cause::First,
            unseen: None,
            void_from: None,
            signalled: None,
            interrupted: None,
            stack: 0,
            sent: Packets::default(),
        }
    }

    /// Of the newest fact.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// How many stretches are kept.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        let threads = self.threads.values().map(Thread::kept);
        threads.chain(self.cpus.values().map(Cpu::kept)).sum()
    }

    /// How many threads were looked at for switches without a record.
    #[cfg(test)]
    pub fn looked_at(&self) -> usize {
        self.looked_at
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
        self.threads.get(&who)?.waits_since()
    }

    /// Who has waited, since when, if the last fact says so without saying when it began to run.
    pub fn take_unseen(&mut self) -> Option<(Who, u64)> {
        self.unseen.take()
    }

    /// When a thread has ended, if it has.
    pub fn ended(&self, who: Who) -> Option<u64> {
        self.threads.get(&who)?.ended()
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
        let by = match (interrupt, self.cpus.get(&cpu)) {
            (Some(kind), Some(of)) => match of.sender().filter(|sender| kind == SOFT && *sender != woken) {
                Some(sender) => Waker::Thread(sender),
                None => Waker::Interrupt(of.interrupt(kind)),
            },
            _ => {
                self.cpu(time, cpu).is_itself();
                // An idle CPU that polls does without the interrupt that another CPU would send.
                if by == 0 { Waker::Interrupt(None) } else { Waker::Thread(self.meet(time, by)) }
            }
        };
        let is_unseen = self.is_unseen();
        let Some(thread) = self.threads.get_mut(&woken) else { return };
        let stack = if matches!(by, Waker::Thread(_)) { self.stack } else { 0 };
        let wake = Wake { time, by, interrupt, numbers, stack, signal: None };
        let counts = thread.wakes(wake, is_unseen, &mut self.added);
        self.changes(woken);
        if !counts {
            return;
        }
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
            self.threads.entry(who).and_modify(|thread| thread.wakes_for(signal));
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
        self.cpu(time, cpu).switches();
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
        if self.has_cpu(cpu, who) {
            let next = next.map_or(Has::Unknown(Cause::Unseen), |next| self.has(time, next));
            self.takes(time, cpu, next);
        } else if self.threads.get(&who).is_none_or(|thread| !thread.is_unknown()) {
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
        let is_told = self.who(thread).is_some_and(|who| self.has_cpu(cpu, who));
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
            self.threads.entry(who).and_modify(|thread| thread.is_new(time, maker));
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
                Some(of) if of.runs() => of.told_its_end_late(),
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
            of.tells_its_end(time, cpu, &mut self.added);
            self.changes(who);
        }
    }

    /// A thread returns from a system call. `interrupted`: a signal ended it, as its result says.
    pub fn returns_from(&mut self, time: u64, cpu: u32, thread: u32, interrupted: bool) {
        self.calls(time, cpu, thread, In::Nothing);
        let Some(who) = self.who(thread) else { return };
        let ended = self.threads.get_mut(&who).and_then(|thread| thread.returns(interrupted));
        if let Some((woken, number)) = ended {
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
        self.cpu(time, cpu).is_itself();
        let who = self.meet(time, thread);
        if let Some(thread) = self.threads.get_mut(&who) {
            thread.call = call;
        }
    }

    /// An interrupt begins.
    pub fn interrupts(&mut self, time: u64, cpu: u32, kinds: Kinds, name: Arc<str>) {
        if self.fact(time, cpu) {
            let Some(of) = self.cpus.get_mut(&cpu) else { return };
            self.interrupted = of.interrupts(time, kinds, name, &mut self.added);
        }
    }

    /// The innermost interrupt ends, if it is of these kinds.
    pub fn returns(&mut self, time: u64, cpu: u32, kinds: Kinds) {
        if self.fact(time, cpu) {
            let Some(of) = self.cpus.get_mut(&cpu) else { return };
            self.interrupted = of.returns(time, kinds, &mut self.added);
        }
    }

    /// How long an interrupt ran instead of the thread that has the CPU, if the last fact says so. Nanoseconds.
    pub fn take_interrupted(&mut self) -> Option<u64> {
        self.interrupted.take()
    }

    /// Which interrupts ran on a CPU instead of its threads, and how long each.
    pub fn interrupted(&self, cpu: u32, from: u64, to: u64) -> Vec<(Arc<str>, u64)> {
        self.cpus.get(&cpu).map(|cpu| cpu.interrupted(from, to)).unwrap_or_default()
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
        self.sent.send(packet, sender, cpu);
    }

    /// A soft interrupt begins to deliver a packet, or has delivered all.
    pub fn delivers(&mut self, time: u64, cpu: u32, packet: Option<u64>) {
        if !self.fact(time, cpu) {
            return;
        }
        self.cpu(time, cpu).packet = packet.and_then(|packet| self.sent.arrive(packet));
    }

    /// A CPU has delivered all that was sent there.
    pub fn delivered_all(&mut self, cpu: u32) {
        self.sent.delivered(cpu);
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
        let thread = self.threads.get(&who);
        let forgotten = Stretch { from, to, what: What::Unknown(Cause::Forgotten) };
        let nothing = joined(thread.is_none().then_some(forgotten).into_iter());
        nothing.chain(thread.into_iter().flat_map(move |thread| thread.did(from, to)))
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
        let cpu = self.cpus.get(&cpu);
        let first = Stretch { from, to, what: Has::Unknown(Cause::First) };
        let nothing = joined(cpu.is_none().then_some(first).into_iter());
        nothing.chain(cpu.into_iter().flat_map(move |cpu| {
            let is_ending = |who| self.threads.get(&who).is_some_and(Thread::is_ending);
            let now = match cpu.has() {
                Has::Thread(who) if is_ending(who) => Has::Unknown(Cause::Unseen),
                has => has,
            };
            cpu.owners(from, to, now)
        }))
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
        while let Some(of) = self.added.drop_one() {
            self.forget(of);
        }
        true
    }

    /// Drops the oldest stretch of one.
    fn forget(&mut self, of: Of) {
        match of {
            Of::Cpu(cpu) => drop(self.cpus.entry(cpu).and_modify(Cpu::forget_owner)),
            Of::Interrupts(cpu) => drop(self.cpus.entry(cpu).and_modify(Cpu::forget_interrupt)),
            Of::Thread(who) => {
                let Some(thread) = self.threads.get_mut(&who) else { return };
                thread.forget();
                if thread.is_over() {
                    self.threads.remove(&who);
                    self.near.is_gone(who);
                    if self.who(who.thread) == Some(who) {
                        self.living.remove(&who.thread);
                    }
                }
            }
        }
    }

    /// Nothing is known from this time on, of any thread and of one CPU or all.
    fn void(&mut self, of: Option<u32>, after: u64, cause: Cause) -> u64 {
        self.unknown = cause;
        self.sent.forget();
        let is_of = |cpu: u32| of.is_none_or(|of| of == cpu);
        for (_, cpu) in self.cpus.iter_mut().filter(|(cpu, _)| is_of(**cpu)) {
            cpu.void(after, cause, &mut self.added);
        }
        for (who, thread) in &mut self.threads {
            thread.void(after, cause, &mut self.added);
            self.near.changes(self.newest, *who, false);
        }
        self.others_run(of, cause);
        self.threads.retain(|_, thread| !thread.is_over());
        let threads = &self.threads;
        self.living.retain(|_, who| threads.contains_key(who));
        after
    }

    /// All CPUs but this one have told all that was there: who runs is known.
    fn others_run(&mut self, but: Option<u32>, cause: Cause) {
        let Some(but) = but else { return };
        for (number, cpu) in self.cpus.iter().filter(|(cpu, _)| **cpu != but) {
            let Some((who, since)) = cpu.runs() else { continue };
            if let Some(thread) = self.threads.get_mut(&who).filter(|thread| thread.is_unknown()) {
                thread.has_run(since, *number, cause, &mut self.added);
                self.near.changes(self.newest, who, false);
            }
        }
    }

    fn cpu(&mut self, time: u64, cpu: u32) -> &mut Cpu {
        let unknown = self.unknown;
        self.cpus.entry(cpu).or_insert_with(|| Cpu::new(cpu, time, unknown))
    }

    /// Whether a CPU has this thread.
    fn has_cpu(&self, cpu: u32, who: Who) -> bool {
        self.cpus.get(&cpu).is_some_and(|cpu| cpu.has() == Has::Thread(who))
    }

    /// The thread with this number. One that nothing has told of is new.
    fn meet(&mut self, time: u64, thread: u32) -> Who {
        let Self { living, threads, lives, unknown, .. } = self;
        *living.entry(thread).or_insert_with(|| {
            *lives = lives.wrapping_add(1);
            let who = Who { thread, life: *lives };
            threads.insert(who, Thread::new(who, time, *unknown));
            who
        })
    }

    fn has(&mut self, time: u64, thread: u32) -> Has {
        if thread == 0 { Has::Idle } else { Has::Thread(self.meet(time, thread)) }
    }

    /// A thread writes a record, or is interrupted by what does, so it has the CPU.
    fn runs_here(&mut self, time: u64, cpu: u32, thread: u32) {
        let has = self.has(time, thread);
        if self.cpu(time, cpu).has() != has {
            self.unseen_until(time, cpu);
            self.takes(time, cpu, has);
        }
        let Has::Thread(who) = has else { return };
        let Some(of) = self.threads.get_mut(&who) else { return };
        if let Some(since) = of.is_seen(time, cpu, &mut self.added) {
            self.unseen = Some((who, since));
        }
        self.changes(who);
    }

    /// A thread may do something else now.
    fn changes(&mut self, who: Who) {
        if let Some(thread) = self.threads.get(&who) {
            self.near.changes(self.newest, who, thread.could_run());
        }
    }

    /// Ends what a CPU had, and gives it to another.
    fn takes(&mut self, time: u64, cpu: u32, has: Has) {
        if let Some(of) = self.cpus.get_mut(&cpu) {
            of.takes(time, has, &mut self.added);
        }
    }

    /// A thread leaves a CPU, or the idle one does. If the CPU had another, that one has left unseen.
    fn leaves_cpu(&mut self, time: u64, cpu: u32, prev: u32) {
        let had = self.cpu(time, cpu).has();
        let prev = self.has(time, prev);
        if had != prev {
            self.unseen_until(time, cpu);
        }
        self.takes(time, cpu, Has::Unknown(Cause::Unseen));
    }

    /// Switches of a CPU have no record, since a time. Who could run meanwhile may have run there, and have fallen
    /// asleep. Wake-ups have their records: who sleeps, sleeps.
    pub fn unseen(&mut self, time: u64, cpu: u32, since: u64) {
        // Of one that comes late it is so, too.
        self.fact(time, cpu);
        self.hole(cpu, since, time);
    }

    /// The same of switches behind the last fact.
    pub fn unseen_from(&mut self, cpu: u32, since: u64) {
        self.hole(cpu, since, self.newest.max(since).saturating_add(1));
    }

    fn hole(&mut self, cpu: u32, since: u64, until: u64) {
        let mut near = self.near.since(since);
        if let Some(of) = self.cpus.get_mut(&cpu) {
            near.extend(of.runs().map(|(who, _)| who));
            of.void(since, Cause::Unseen, &mut self.added);
        }
        for who in near {
            let Some(thread) = self.threads.get_mut(&who) else { continue };
            thread.may_have_run(since, until, cpu, &mut self.added);
            self.changes(who);
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
        }
        self.others_run(Some(cpu), Cause::Unseen);
    }

    /// Nobody knows when the thread left that the CPU had.
    fn unseen_until(&mut self, time: u64, cpu: u32) {
        if let Some(who) = self.cpu(time, cpu).unseen() {
            self.stops(time, cpu, who, true);
        }
    }

    /// A thread that ran here does not any more, and nothing says why. `unseen`: nor when it stopped.
    fn stops(&mut self, time: u64, cpu: u32, who: Who, unseen: bool) {
        if let Some(thread) = self.threads.get_mut(&who) {
            thread.stops(time, cpu, unseen, &mut self.added);
            self.changes(who);
        }
    }

    /// A thread leaves a CPU: why, and its process, or `None` if it has ended.
    fn leaves(&mut self, time: u64, cpu: u32, number: u32, left: Option<(Why, u32)>) {
        let who = self.meet(time, number);
        let known = if self.is_unseen() { Err(self.unknown) } else { Ok(()) };
        let Some(thread) = self.threads.get_mut(&who) else { return };
        let waited = match left {
            Some((why, process)) => {
                thread.leaves(Left { time, why, process, cpu, stack: self.stack }, known, &mut self.added)
            }
            None => thread.ends(time, cpu, &mut self.added),
        };
        self.changes(who);
        if let Some(since) = waited {
            self.unseen = Some((who, since));
        }
        if left.is_none() {
            self.is_gone(who);
        }
    }

    /// The thread that had this number has ended. Nothing says what it did until then.
    fn ends_unseen(&mut self, time: u64, thread: u32, cause: Cause) {
        let Some(who) = self.who(thread) else { return };
        let Some(of) = self.threads.get_mut(&who) else { return };
        of.ends_unseen(time, cause, &mut self.added);
        self.changes(who);
        self.is_gone(who);
    }

    /// A thread has ended. Another may get its number.
    fn is_gone(&mut self, who: Who) {
        self.living.remove(&who.thread);
        if self.threads.get(&who).is_some_and(Thread::is_over) {
            self.threads.remove(&who);
            self.near.is_gone(who);
        }
    }

    /// A thread takes a CPU that another has left.
    fn comes(&mut self, time: u64, cpu: u32, number: u32) -> Option<Ran> {
        let has = self.has(time, number);
        if self.cpus.get(&cpu).is_some_and(|cpu| cpu.has() != has) {
            self.takes(time, cpu, has);
        }
        let Has::Thread(who) = has else { return None };
        let idle = |left: Left, until| self.cpus.get(&left.cpu)?.idle(left, cpu, until);
        let ran = self.threads.get_mut(&who)?.comes(time, cpu, idle, &mut self.added);
        self.changes(who);
        ran
    }
}
