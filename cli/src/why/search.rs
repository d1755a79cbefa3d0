//! Finds what is worth a path: a command, or the longest waits.

use super::Args;
use super::files::Files;
use super::found::{Found, What};
use super::requests::Requests;
use super::stacks::Stacks;
use super::words::Words;
use crate::family::Family;
use crate::hang::{Ender, LastWaker};
use crate::names::Names;
use crate::numbers::ENDED;
use crate::recent::late;
use crate::scheduler::Scheduler;
use crate::trace::calls::Calls;
use crate::waits::{In, Ran, Who};
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Record, Status};
use std::time::{Duration, Instant};

/// A thread that has waited so long is asked for the file behind its descriptor.
const LONG: Duration = Duration::from_millis(1);
/// How often threads are looked at that still wait.
const TICK: Duration = Duration::from_millis(100);

/// The state from the stream so far.
pub struct Search {
    scheduler: Scheduler,
    family: Family,
    comm: Option<String>,
    /// The scheduler's account has names of its own.
    names: Names,
    /// The longest waits, the longest first, at most so many.
    longest: Vec<Found>,
    most: usize,
    /// The process that becomes the command.
    command: Option<u32>,
    /// When it executed the command, and who it is.
    executed: Option<(u64, Who)>,
    /// Where they are asked for, instead of waits.
    requests: Option<Requests>,
    calls: Calls,
    /// Where threads stand, if that is asked for.
    stacks: Option<Stacks>,
    /// What is behind descriptors, while it can be asked.
    files: Option<Files>,
    /// Who woke whom where, if it is asked what hangs.
    words: Option<Words>,
    looked: Instant,
}

impl Search {
    pub fn new(
        scheduler: Scheduler,
        family: Family,
        args: &Args,
        command: Option<u32>,
        requests: Option<Requests>,
        stacks: Option<Stacks>,
        files: Option<Files>,
    ) -> Self {
        let (comm, most) = (args.comm.clone(), args.rows.unwrap_or(if requests.is_some() { 3 } else { 5 }));
        let names = if scheduler.is_recorded() { Names::recorded() } else { Names::default() };
        let (longest, executed, calls) = (Vec::new(), None, Calls::default());
        let words = args.pid.or(args.tid).or(command).filter(|_| !scheduler.is_recorded()).map(|_| Words::default());
        let looked = Instant::now();
        Self {
            scheduler,
            family,
            comm,
            names,
            longest,
            most,
            command,
            executed,
            requests,
            calls,
            stacks,
            files,
            words,
            looked,
        }
    }

    pub fn event(&mut self, event: &Event<'_>) {
        match event.item() {
            Item::Record(record) => self.record(event, &record),
            _ => {
                let since = self.scheduler.notice(event);
                self.files.iter_mut().for_each(|of| of.take(event, since));
                self.void(since);
                self.requests.iter_mut().filter(|_| since.is_some()).for_each(Requests::forget);
            }
        }
    }

    /// What a recording lacks for that, if it lacks something.
    pub fn lacks(&self) -> Option<&'static str> {
        self.scheduler.lacks()
    }

    /// How many switches have no record.
    pub fn unrecorded(&self) -> u64 {
        self.scheduler.unrecorded()
    }

    /// How long a thread has waited, as far as the trace has come.
    pub fn waits_for(&self, tid: u32) -> Option<Duration> {
        let account = &self.scheduler.account;
        let since = account.waits_since(self.scheduler.who(tid)?)?;
        Some(Duration::from_nanos(account.newest().saturating_sub(since)))
    }

    /// Who woke a thread last, of those that waited at a word of memory without an owner.
    pub fn woke_last(&self, process: u32, address: u64) -> Option<LastWaker> {
        let woke = self.words.as_ref()?.last(process, address)?;
        let account = &self.scheduler.account;
        let [by, woken] = [woke.by, woke.woken].map(|who| {
            let (known, tid) = (account.known(who)?, self.scheduler.tid(who)?);
            let pid = known.process.filter(|pid| *pid != ENDED)?;
            Some(Ender { pid, tid: Some(tid), name: known.name.clone() })
        });
        let (has_ended, ago) = (account.ended(woke.by).is_some(), account.newest().saturating_sub(woke.time));
        Some(LastWaker { by: by?, has_ended, woken: woken?, ago: Duration::from_nanos(ago) })
    }

    /// Nothing that was concluded of this time on is so.
    fn void(&mut self, since: Option<u64>) {
        let Some(since) = since else { return };
        self.longest.retain(|found| found.to <= since);
        self.requests.iter_mut().for_each(|requests| requests.void(since));
        self.words.iter_mut().for_each(|words| words.void(since));
    }

    /// Paths through a time in which switches have no record are made again, of what is known now.
    fn unseen(&mut self) {
        let holes = self.scheduler.take_holes();
        if holes.is_empty() {
            return;
        }
        self.words.iter_mut().for_each(|words| words.but(|from, to| holes.iter().any(|hole| hole.is_in(from, to))));
        for hole in &holes {
            self.requests.iter_mut().for_each(|requests| requests.unseen(*hole, &self.scheduler, &mut self.calls));
        }
        for found in &mut self.longest {
            // What is older than a path's wait is not in it.
            if holes.iter().any(|hole| hole.is_in(found.from, found.to)) {
                found.again(&self.scheduler);
                self.stacks.iter_mut().for_each(|stacks| found.name_stacks(stacks));
            }
        }
    }

    /// All that was ready is told.
    pub fn pause(&mut self) {
        if self.files.is_none() || self.looked.elapsed() < TICK {
            return;
        }
        self.looked = Instant::now();
        let (account, newest) = (&self.scheduler.account, self.scheduler.account.newest());
        let waiting = account.living().filter_map(|who| Some((who, account.waits_since(who)?)));
        let waiting: Vec<_> = waiting.filter(|(_, since)| is_worth_a_look(newest.saturating_sub(*since))).collect();
        waiting.into_iter().for_each(|(who, _)| self.look(who));
    }

    /// What is behind the descriptor of the call in which a thread waits, or has waited.
    fn look(&mut self, who: Who) {
        let (Some(files), account) = (&mut self.files, &self.scheduler.account) else { return };
        let process = account.known(who).and_then(|known| known.process);
        let (Some(In::Call(call)), Some(numbers)) = (account.call(who), process.zip(self.scheduler.tid(who))) else {
            return;
        };
        if let Some(descriptor) = self.calls.of(call.number).descriptor(&call.args) {
            files.look(numbers.into(), descriptor, call);
        }
    }

    fn record(&mut self, event: &Event<'_>, record: &Record<'_>) {
        self.family.take(record);
        let Some(time) = event.key() else { return };
        if let Some(stacks) = &mut self.stacks {
            self.scheduler.account.stands(stacks.take(event, record));
        }
        self.void(late(event));
        let ran = self.scheduler.record(record, time, &mut self.names);
        self.unseen();
        self.files.iter_mut().for_each(|of| of.take(event, None));
        if let Some((who, woken, signal)) = self.scheduler.account.take_signalled() {
            self.longest.iter_mut().for_each(|found| found.signalled(who, woken, signal));
        }
        // The one that has left its CPU wrote the record. If it waits for long, it still does.
        if self.files.is_some()
            && self.scheduler.is_switch(record)
            && let Some(who) = record.pid_tid().and_then(|(_, tid)| self.scheduler.who(tid))
            && self.scheduler.account.waits_since(who) == Some(time)
        {
            self.look(who);
        }
        if self.files.as_ref().is_some_and(Files::looks_back)
            && let Some((_, Ran { who, left: Some(left), .. })) = ran
            && is_worth_a_look(time.saturating_sub(left.time))
        {
            self.look(who);
        }
        let meant = ran.as_ref().filter(|(_, ran)| self.words.is_some() && self.is_meant(ran.who));
        if let (Some(words), Some((_, ran))) = (&mut self.words, meant) {
            words.take(ran, self.scheduler.account.call(ran.who), time);
        }
        if let Some(requests) = &mut self.requests {
            let since = requests.take(record, time);
            let who = record.pid_tid().and_then(|(_, tid)| self.scheduler.who(tid));
            if let (Some(since), Some(who)) = (since, who) {
                self.request(who, since, time);
            }
            return;
        }
        if let Some(command) = self.command {
            // The first time that it takes a name, it becomes the command.
            if self.executed.is_none()
                && record.kind() == bindings::PERF_RECORD_COMM
                && record.body().u32(4) == Some(command)
            {
                self.executed = self.scheduler.who(command).map(|who| (time, who));
            }
            return;
        }
        if let Some((_, ran)) = ran
            && let Some(left) = ran.left
        {
            self.waited(ran.who, left.time, time);
        }
        // Where the records of a recorder are left out, nobody says who came behind it.
        if let Some((who, since)) = self.scheduler.account.take_unseen() {
            self.waited(who, since, time);
        }
    }

    /// A thread has waited. The path is made at once: later the account may not have it any more.
    fn waited(&mut self, who: Who, from: u64, to: u64) {
        if self.is_long(to.saturating_sub(from)) && self.is_meant(who) {
            self.keep(Found::new(&self.scheduler, What::Wait, who, [from, to]));
        }
    }

    /// A request has ended in this thread.
    fn request(&mut self, who: Who, from: u64, to: u64) {
        if !self.is_meant(who) {
            return;
        }
        let found = Found::new(&self.scheduler, What::Request, who, [from, to]);
        self.requests.iter_mut().for_each(|requests| requests.add(&found, &mut self.calls));
        if self.is_long(found.lasted()) {
            self.keep(found);
        }
    }

    fn is_long(&self, lasted: u64) -> bool {
        self.longest.len() < self.most || self.longest.last().is_some_and(|found| found.lasted() < lasted)
    }

    fn keep(&mut self, mut found: Found) {
        self.stacks.iter_mut().for_each(|stacks| found.name_stacks(stacks));
        let at = self.longest.partition_point(|longer| longer.lasted() >= found.lasted());
        self.longest.insert(at, found);
        self.longest.truncate(self.most);
    }

    fn is_meant(&self, who: Who) -> bool {
        let Some(known) = self.scheduler.account.known(who) else { return false };
        let is_of = match (&self.family, self.scheduler.tid(who)) {
            (Family::All, _) => true,
            (family, Some(tid)) => family.has(tid) || known.process.is_some_and(|process| family.has_process(process)),
            (_, None) => false,
        };
        is_of
            && self.comm.as_ref().is_none_or(|comm| known.name == *comm)
            // Of its first thread the process may not be told yet.
            && [known.process, self.scheduler.tid(who)].into_iter().flatten().all(|number| Some(number) != self.scheduler.own())
    }

    /// Nothing follows: what was lost that no event has told is so from here on.
    pub fn end(&mut self, ledger: &Status) {
        let since = self.scheduler.unreported(ledger);
        self.void(since);
        self.unseen();
        self.files.iter_mut().zip(since).for_each(|(of, since)| of.lost(since));
    }

    /// Gives the paths that were asked for, the longest first; and the requests, and what the paths are
    /// made of.
    pub fn finish(mut self) -> (Vec<Found>, Option<Requests>, Calls, Scheduler) {
        self.stacks.iter().for_each(Stacks::tell);
        let account = &self.scheduler.account;
        let (end, ended) = (account.newest(), self.executed.and_then(|(_, who)| account.ended(who)));
        if let (None, Some((from, who))) = (&self.requests, self.executed) {
            // The account may not have counted the record of its first instruction.
            let to = ended.unwrap_or(end).max(from);
            let mut found = Found::new(&self.scheduler, What::Command, who, [from, to]);
            if ended.is_none() && account.waits_since(who).is_some() {
                found = found.goes_on();
            }
            self.stacks.iter_mut().for_each(|stacks| found.name_stacks(stacks));
            self.longest = vec![found];
        } else if self.requests.is_none() && self.command.is_none() {
            let waiting = account.living().filter_map(|who| Some((who, account.waits_since(who)?)));
            let mut waiting: Vec<_> = waiting.collect();
            waiting.sort_by_key(|(who, since)| (*since, *who));
            for (who, since) in waiting {
                if self.is_long(end.saturating_sub(since)) && self.is_meant(who) {
                    self.keep(Found::new(&self.scheduler, What::Wait, who, [since, end]).goes_on());
                }
            }
        }
        if let Some(files) = &self.files {
            self.longest.iter_mut().for_each(|found| found.name_files(files, &mut self.calls));
        }
        (self.longest, self.requests, self.calls, self.scheduler)
    }
}

fn is_worth_a_look(nanoseconds: u64) -> bool {
    u128::from(nanoseconds) >= LONG.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recent::a_late_record;
    use crate::waits::{Call, Cause, What as Does, Why};
    use crate::why::path::path;
    use crate::{Cli, Command};
    use clap::Parser;

    const THREAD: u32 = 7;

    /// It sleeps on CPU 0, at a word of memory that has the time as its address, another wakes it, and it runs again.
    fn waits(search: &mut Search, [from, woken, to]: [u64; 3]) {
        let account = &mut search.scheduler.account;
        let args = [from, nix::libc::FUTEX_WAIT as u64, 0, 0, 0, 0];
        let call = Call { number: nix::libc::SYS_futex, args, entered: from, file: None };
        account.calls(from, 0, THREAD, In::Call(call.into()));
        account.switches(from, 0, THREAD, Some((Why::Asleep, THREAD)), 8);
        account.wakes(woken, 0, THREAD, 8, None, (8, Some(8)));
        if let Some(ran) = account.switches(to, 0, 8, Some((Why::Asleep, 8)), THREAD) {
            search.words.iter_mut().for_each(|words| words.take(&ran, search.scheduler.account.call(ran.who), to));
            search.waited(ran.who, ran.left.map_or(to, |left| left.time), to);
        }
    }

    /// Between two waits a record of the first comes late. That one is not known any more, and neither is what followed
    /// it until the next fact.
    #[test]
    fn no_path_goes_through_a_time_of_which_a_record_comes_late() {
        let Command::Why(args) = Cli::parse_from(["perfweave", "why", "-p", "7"]).command else { unreachable!() };
        let mut search = Search::new(Scheduler::without_sources(), Family::All, &args, None, None, None, None);
        a_late_record(|event| {
            match event.key() {
                Some(10) => [[2, 4, 6], [6, 7, 8]].into_iter().for_each(|times| waits(&mut search, times)),
                Some(40) => waits(&mut search, [12, 20, 35]),
                Some(70) => waits(&mut search, [50, 55, 58]),
                _ => {}
            }
            search.event(event);
        });
        let who = search.scheduler.account.who(THREAD).unwrap();
        let steps = path(&search.scheduler.account, who, 10, 60);
        let unknown: Vec<_> = steps.iter().filter(|step| matches!(step.what, Does::Unknown(_))).collect();
        let times: Vec<_> = unknown.iter().map(|step| (step.from, step.to, &step.what)).collect();
        assert_eq!(times, [(30, 50, &Does::Unknown(Cause::Late))], "{steps:#?}");
        let times: Vec<_> = search.longest.iter().map(|found| (found.from, found.to)).collect();
        assert_eq!(times, [(50, 58), (2, 6), (6, 8)]);
        // Nor is it said who woke whom where in that time.
        let known = [2, 6, 12, 50].map(|address| search.words.as_ref().unwrap().last(THREAD, address).is_some());
        assert_eq!(known, [true, true, false, true]);
    }
}
