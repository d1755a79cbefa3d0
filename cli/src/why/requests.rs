//! Requests, from an event to another: how long they take, and what the slow ones wait for that the fast ones do not.

use super::found::{Found, What};
use crate::key::{Value, value};
use crate::out::{Out, line};
use crate::scheduler::{Hole, Scheduler};
use crate::times::{Times, short};
use crate::trace::calls::Calls;
use crate::waits::Who;
use perfweave::Record;
use perfweave_events::Field;
use serde_json::json;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

/// Requests that are kept for the comparison. What comes after them is counted.
const MOST: usize = 100_000;
/// Requests that have begun are kept, the newest so many and up to twice as many. Some may never end.
const MOST_BEGUN: usize = 100_000;
/// Differences that are printed.
const ROWS: usize = 10;

#[derive(Debug)]
pub struct Requests {
    /// At which sources they begin and end.
    events: [usize; 2],
    /// The field that both have. Without it the thread is the same.
    by: Option<[Field; 2]>,
    begun: Begun,
    /// How many of each event there were, whomever they joined.
    seen: [u64; 2],
    kept: Vec<Request>,
    left_out: u64,
    /// What they wait for, in words, and the number of each.
    words: Vec<String>,
    numbers: HashMap<String, usize>,
}

/// Requests that have begun and not ended.
#[derive(Debug, Default)]
struct Begun {
    newer: HashMap<Value, u64>,
    older: HashMap<Value, u64>,
    /// How many were dropped, the oldest first.
    dropped: u64,
}

impl Begun {
    fn begins(&mut self, key: Value, time: u64) {
        // One that comes late does not count beside a later one.
        let time = self.older.remove(&key).map_or(time, |older| older.max(time));
        self.newer.entry(key).and_modify(|newer| *newer = time.max(*newer)).or_insert(time);
        if self.newer.len() >= MOST_BEGUN {
            self.dropped += self.older.len() as u64;
            self.older = std::mem::take(&mut self.newer);
        }
    }

    /// When it began, if that was before now: an end that comes late is not that of what has begun since.
    fn ends(&mut self, key: &Value, now: u64) -> Option<u64> {
        let since = *self.newer.get(key).or_else(|| self.older.get(key))?;
        if since > now {
            return None;
        }
        self.newer.remove(key).or_else(|| self.older.remove(key))
    }

    fn clear(&mut self) {
        self.newer.clear();
        self.older.clear();
    }
}

#[derive(Debug)]
struct Request {
    /// When it was concluded, which does not fall: at its end, or later if that came late.
    to: u64,
    who: Who,
    from: u64,
    lasted: u64,
    /// By the number of the words.
    parts: Vec<(usize, u64)>,
}

impl Requests {
    pub fn new(events: [usize; 2], by: Option<[Field; 2]>) -> Self {
        let (begun, kept, words, numbers) = (Begun::default(), Vec::new(), Vec::new(), HashMap::new());
        Self { events, by, begun, seen: [0; 2], kept, left_out: 0, words, numbers }
    }

    /// When the request began that ends with this record. Of several begins before an end the last counts.
    pub fn take(&mut self, record: &Record<'_>, time: u64) -> Option<u64> {
        let source = record.source()?;
        let key = |at: usize| match &self.by {
            Some(fields) => value(&fields[at], record),
            None => record.pid_tid().map(|(_, tid)| Value::Number(tid.into())),
        };
        let [begins, ends] = self.events.map(|event| event == source);
        self.seen[0] += u64::from(begins);
        self.seen[1] += u64::from(ends);
        let since = if ends { key(1).and_then(|key| self.begun.ends(&key, time)) } else { None };
        if begins && let Some(key) = key(0) {
            self.begun.begins(key, time);
        }
        since
    }

    pub fn add(&mut self, found: &Found, calls: &mut Calls) {
        if self.kept.len() >= MOST {
            self.left_out += 1;
            return;
        }
        let parts = self.parts(found, calls);
        let to = self.kept.last().map_or(found.to, |last| found.to.max(last.to));
        self.kept.push(Request { to, who: found.who, from: found.from, lasted: found.lasted(), parts });
    }

    /// Those in whose time switches have no record have the parts that are known now.
    pub fn unseen(&mut self, hole: Hole, scheduler: &Scheduler, calls: &mut Calls) {
        for at in self.kept.partition_point(|request| request.to <= hole.from)..self.kept.len() {
            let Request { who, from, lasted, .. } = self.kept[at];
            let to = from.saturating_add(lasted);
            if hole.is_in(from, to) {
                let found = Found::new(scheduler, What::Request, who, [from, to]);
                self.kept[at].parts = self.parts(&found, calls);
            }
        }
    }

    /// By the numbers of their words.
    fn parts(&mut self, found: &Found, calls: &mut Calls) -> Vec<(usize, u64)> {
        let Self { words, numbers, .. } = self;
        let mut number = |text: String| {
            *numbers.entry(text).or_insert_with_key(|text| {
                words.push(text.clone());
                words.len() - 1
            })
        };
        found.parts(calls).into_iter().map(|(text, time)| (number(text), time)).collect()
    }

    /// Nothing that was concluded after this time is so.
    pub fn void(&mut self, since: u64) {
        let is_so = self.kept.partition_point(|request| request.to <= since);
        self.kept.truncate(is_so);
    }

    /// Nobody knows any more what has begun.
    pub fn forget(&mut self) {
        self.begun.clear();
    }

    /// How long they took, and the means of the slow ones' parts beside those of the fast ones.
    pub fn print(&mut self, json: bool, out: &mut Out) -> io::Result<()> {
        self.kept.sort_by_key(|request| Reverse(request.lasted));
        let mut times = Times::default();
        self.kept.iter().for_each(|request| times.add(request.lasted));
        let slow = &self.kept[..self.kept.len().div_ceil(100)];
        let fast = &self.kept[self.kept.len() / 2..];
        let [slow_parts, fast_parts] = [slow, fast].map(|requests| self.means(requests));
        let mut rows: Vec<_> = (0..self.words.len()).map(|at| (at, slow_parts[at], fast_parts[at])).collect();
        rows.sort_by_key(|(at, slow, fast)| (Reverse(slow.cast_signed() - fast.cast_signed()), *at));
        if json {
            let rows = rows
                .iter()
                .map(|(at, slow, fast)| json!({ "text": self.words[*at], "slow_ns": slow, "fast_ns": fast }));
            let object = json!({ "requests": times.json(), "slow": slow.len(), "fast": fast.len(), "left_out": self.left_out, "begun": self.seen[0], "ended": self.seen[1],
                "dropped": self.begun.dropped, "culprits": rows.collect::<Vec<_>>() });
            return line(out, format_args!("{object}"));
        }
        if times.count == 0 {
            let [begun, ended] = self.seen;
            writeln!(
                out,
                "no requests: {begun} events begin one, {ended} end one, and none of these comes after one of those"
            )?;
            if begun > 0 && ended > 0 {
                let joined =
                    if self.by.is_some() { "have the same value of that field" } else { "are of the same thread" };
                writeln!(out, "none {joined}, by which they are joined: --by FIELD, or --by FROM=TO, names another")?;
            }
            return writeln!(out);
        }
        let [p50, p99, most] = [times.quantile(50), times.quantile(99), times.most].map(short);
        writeln!(out, "{} requests: p50 {p50}, p99 {p99}, longest {most}", times.count)?;
        if self.left_out > 0 {
            writeln!(out, "{} more were not looked at", self.left_out)?;
        }
        if self.begun.dropped > 0 {
            writeln!(out, "{} that began and did not end were forgotten, the oldest first", self.begun.dropped)?;
        }
        times.histogram(out)?;
        if fast.len() > slow.len() {
            writeln!(out, "\nin the mean of the {} slowest, beside the {} fastest:", slow.len(), fast.len())?;
            for (at, slow, fast) in rows.iter().filter(|(_, slow, fast)| slow.max(fast) > &0).take(ROWS) {
                let [slow, fast] = [slow, fast].map(|time| if *time == 0 { "-".into() } else { short(*time) });
                line(out, format_args!("  {slow:>9} {fast:>9}  {}", self.words[*at]))?;
            }
        }
        writeln!(out)
    }

    /// How long a request has each part in the mean.
    fn means(&self, requests: &[Request]) -> Vec<u64> {
        let mut sums = vec![0; self.words.len()];
        for (at, time) in requests.iter().flat_map(|request| &request.parts) {
            sums[*at] += time;
        }
        let count = requests.len().max(1) as u64;
        sums.into_iter().map(|sum: u64| sum / count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Begun, Calls, Found, MOST_BEGUN, Requests, Scheduler, Value, What};
    use crate::scheduler::Told;
    use crate::waits::{In, Why};
    use std::collections::BTreeMap;

    /// Switches of CPU 1 have no record while a thread waits for CPU 0, which is seen when its request is over.
    #[test]
    fn a_request_in_which_a_thread_may_have_run_unseen_has_what_is_known_then() {
        for missing in [0, 2] {
            let mut scheduler = Scheduler::by_programs(100);
            let told =
                |count, prev, next| Told::Switch { prev, next, why: Some(Why::Asleep), count, call: In::Unknown };
            let stands = |runs, count| Told::Stands { runs, count, is_last: false };
            scheduler.hears(1, 1, stands(9, 4));
            scheduler.hears(2, 0, stands(7, 1));
            scheduler.hears(10, 0, told(2, 7, 8));
            scheduler.account.wakes(12, 0, 7, 8, None, (8, Some(8)));
            scheduler.hears(20, 0, told(3, 8, 7));
            let who = scheduler.account.who(7).unwrap();
            let (mut requests, mut calls) = (Requests::new([0, 1], None), Calls::default());
            let parts = |requests: &Requests| -> BTreeMap<String, u64> {
                let parts = requests.kept[0].parts.iter();
                parts.map(|(word, time)| (requests.words[*word].clone(), *time)).collect()
            };
            requests.add(&Found::new(&scheduler, What::Request, who, [5, 25]), &mut calls);
            let before = parts(&requests);
            scheduler.hears(30, 1, stands(9, 4 + missing));
            for hole in scheduler.take_holes() {
                requests.unseen(hole, &scheduler, &mut calls);
            }
            let now = Found::new(&scheduler, What::Request, who, [5, 25]).parts(&mut calls);
            assert_eq!(parts(&requests), now.into_iter().collect());
            assert_eq!(parts(&requests) == before, missing == 0, "{before:?}");
        }
    }

    /// Each has a new number and none ends: the newest are kept.
    #[test]
    fn requests_that_never_end_are_forgotten() {
        let (mut begun, all) = (Begun::default(), 10 * MOST_BEGUN as u64);
        for number in 0..all {
            begun.begins(Value::Number(number), number);
            assert!(begun.newer.len() + begun.older.len() <= 2 * MOST_BEGUN);
        }
        let mut ends = |number: u64| begun.ends(&Value::Number(number), all);
        assert_eq!(ends(all - MOST_BEGUN as u64), Some(all - MOST_BEGUN as u64));
        assert_eq!((ends(all - 1), ends(0), ends(all - 1)), (Some(all - 1), None, None));
        assert_eq!(begun.dropped + (begun.newer.len() + begun.older.len()) as u64 + 2, all);
    }

    /// Of several begins before an end the last counts.
    #[test]
    fn the_last_begin_counts() {
        let mut begun = Begun::default();
        (0..MOST_BEGUN as u64).for_each(|number| begun.begins(Value::Number(number), number));
        begun.begins(Value::Number(7), 1_000_000);
        let mut ends = |now| begun.ends(&Value::Number(7), now);
        assert_eq!((ends(1_000_001), ends(1_000_001)), (Some(1_000_000), None));
    }

    /// Wherever it comes: a begin before the last one does not count, and an end before it is not its.
    #[test]
    fn what_comes_late_is_not_joined() {
        let mut begun = Begun::default();
        let seven = || Value::Number(7);
        begun.begins(seven(), 50);
        begun.begins(seven(), 30);
        assert_eq!((begun.ends(&seven(), 40), begun.ends(&seven(), 60)), (None, Some(50)));
        // The same of one that is kept among the older ones.
        begun.begins(seven(), 50);
        (0..MOST_BEGUN as u64).for_each(|number| begun.begins(Value::Number(1_000 + number), 60));
        assert_eq!((begun.ends(&seven(), 40), begun.dropped), (None, 0));
        begun.begins(seven(), 30);
        assert_eq!(begun.ends(&seven(), 70), Some(50));
    }
}
