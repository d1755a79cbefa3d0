//! Finds what is worth a path: a command, or the longest waits.

use super::Args;
use super::found::Found;
use crate::family::Family;
use crate::names::Names;
use crate::scheduler::Scheduler;
use crate::waits::Who;
use perfweave::{Event, Item, Kind, Ledger, Record};
use std::cmp::Reverse;

/// The state from the stream so far.
#[derive(Debug)]
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
}

impl Search {
    pub fn new(scheduler: Scheduler, family: Family, args: &Args, command: Option<u32>) -> Self {
        let (comm, most) = (args.comm.clone(), args.rows);
        let (names, longest, executed) = (Names::default(), Vec::new(), None);
        Self { scheduler, family, comm, names, longest, most, command, executed }
    }

    pub fn event(&mut self, event: &Event<'_>) {
        match event.item() {
            Item::Record(record) => self.record(event, &record),
            item => {
                let since = self.scheduler.notice(&item);
                self.void(since);
            }
        }
    }

    /// Nothing that was concluded of this time on is so.
    fn void(&mut self, since: Option<u64>) {
        self.longest.retain(|found| since.is_none_or(|since| found.to <= since));
    }

    fn record(&mut self, event: &Event<'_>, record: &Record<'_>) {
        self.family.take(record);
        let Some(time) = event.key() else { return };
        let ran = self.scheduler.record(record, time, &mut self.names);
        if let Some(command) = self.command {
            // The first time that it takes a name, it becomes the command.
            if self.executed.is_none() && record.kind() == Kind::COMM && record.body().u32(4) == Some(command) {
                self.executed = self.scheduler.who(command).map(|who| (time, who));
            }
            return;
        }
        if let Some((_, ran)) = ran
            && let Some(left) = ran.left
        {
            self.waited(ran.who, left.time, time);
        }
    }

    /// A thread has waited. The path is made at once: later the account may not have it any more.
    fn waited(&mut self, who: Who, from: u64, to: u64) {
        let lasted = to.saturating_sub(from);
        if self.longest.len() >= self.most && self.longest.last().is_none_or(|found| found.lasted() >= lasted) {
            return;
        }
        if !self.is_meant(who) {
            return;
        }
        let at = self.longest.partition_point(|found| found.lasted() >= lasted);
        self.longest.insert(at, Found::wait(&self.scheduler, who, from, to));
        self.longest.truncate(self.most);
    }

    fn is_meant(&self, who: Who) -> bool {
        let Some(known) = self.scheduler.account.known(who) else { return false };
        let is_of = match (&self.family, self.scheduler.tid(who)) {
            (Family::All, _) => true,
            (family, Some(tid)) => family.has(tid) || known.process.is_some_and(|process| family.has_process(process)),
            (_, None) => false,
        };
        is_of && self.comm.as_ref().is_none_or(|comm| known.name == *comm) && known.process != Some(std::process::id())
    }

    /// All that was found, in the order in which it happened.
    pub fn finish(mut self, ledger: &Ledger) -> Vec<Found> {
        let since = self.scheduler.untold(ledger);
        self.void(since);
        let account = &self.scheduler.account;
        let end = account.newest();
        if let Some((from, who)) = self.executed {
            let to = account.ended(who).unwrap_or(end);
            return vec![Found::command(&self.scheduler, who, from, to)];
        }
        if self.command.is_none() {
            let waiting = account.living().filter_map(|who| Some((who, account.waits_since(who)?)));
            let mut waiting: Vec<_> = waiting.collect();
            waiting.sort_by_key(|(who, since)| (*since, *who));
            waiting.into_iter().for_each(|(who, since)| self.waited(who, since, end));
        }
        self.longest.sort_by_key(|found| (Reverse(found.lasted()), found.from));
        self.longest
    }
}
