//! Wake-ups joined to the switches that they cause.

use super::Args;
use crate::failure::Failure;
use crate::family::Family;
use crate::names::Names;
use crate::out::Out;
use crate::stamp::{By, Stamp};
use crate::times::{Times, short};
use perfweave::decode::Field;
use perfweave::{Event, Item, Record, Rings};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

/// The state from the stream so far.
pub struct Scheduler<'a> {
    fields: Fields,
    family: Family,
    args: &'a Args,
    pub stamp: Stamp,
    names: Names,
    /// Woken and not yet running: since when, and by whom.
    waiting: HashMap<u32, (u64, Waker)>,
    /// The thread that runs on each CPU.
    running: HashMap<u32, u32>,
    pairs: HashMap<(Waker, u32), Times>,
}

/// Who wakes: a thread, or an interrupt.
type Waker = Option<u32>;

/// A row.
#[derive(Debug)]
pub struct Pair {
    pub waker: String,
    pub woken: String,
    pub times: Times,
}

struct Fields {
    waker: Field,
    /// `common_flags`: whether the waker is an interrupt.
    flags: Field,
    woken: [Field; 2],
    prev: [Field; 2],
    next: [Field; 2],
}

/// `TRACE_FLAG_HARDIRQ` and `TRACE_FLAG_SOFTIRQ` (include/linux/trace_events.h).
const IN_INTERRUPT: u64 = 0x08 | 0x10;

impl<'a> Scheduler<'a> {
    pub fn new(rings: &Rings, family: Family, args: &'a Args) -> Result<Self, Failure> {
        let (waking, switch) = (rings.format(0)?, rings.format(1)?);
        let fields = Fields {
            waker: waking.field("common_pid")?,
            flags: waking.field("common_flags")?,
            woken: [waking.field("pid")?, waking.field("comm")?],
            prev: [switch.field("prev_pid")?, switch.field("prev_comm")?],
            next: [switch.field("next_pid")?, switch.field("next_comm")?],
        };
        let stamp = args.time.stamp(rings, By::Monotonic, args.common.json)?;
        let mut names = Names::now();
        names.set(0, "idle");
        let (waiting, running, pairs) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Self { fields, family, args, stamp, names, waiting, running, pairs })
    }

    pub fn args(&self) -> &'a Args {
        self.args
    }

    /// Takes an event. Prints a line if one was asked for each wake-up.
    pub fn event(&mut self, event: &Event<'_>, out: &mut Out) -> io::Result<()> {
        match event.item() {
            Item::Record(record) => self.record(event, &record, out),
            Item::EarlyRelease(_) => Ok(()),
            other => {
                // A waiting thread may have run meanwhile, and the threads that ran may have stopped.
                self.waiting.clear();
                self.running.clear();
                match crate::session::notice(&other).filter(|_| self.args.each && !self.args.common.json) {
                    Some(text) => writeln!(out, "--- {text} ---"),
                    None => Ok(()),
                }
            }
        }
    }

    fn record(&mut self, event: &Event<'_>, record: &Record<'_>, out: &mut Out) -> io::Result<()> {
        self.family.take(record);
        if self.names.take(record) {
            return Ok(());
        }
        let Some(time) = event.key() else { return Ok(()) };
        match record.source() {
            Some(0) => {
                let Some(woken) = task(&mut self.names, &self.fields.woken, record) else { return Ok(()) };
                let in_interrupt = self.fields.flags.uint(record).unwrap_or(0) & IN_INTERRUPT != 0;
                let waker = self.fields.waker.uint(record).filter(|_| !in_interrupt).map(|tid| tid as u32);
                // A running thread causes no switch. A thread that was woken before has been waiting since.
                if !self.running.values().any(|tid| *tid == woken) {
                    self.waiting.entry(woken).or_insert((time, waker));
                }
            }
            Some(1) => {
                let prev = task(&mut self.names, &self.fields.prev, record);
                let next = task(&mut self.names, &self.fields.next, record);
                let (Some(_), Some(next)) = (prev, next) else { return Ok(()) };
                self.running.insert(record.cpu(), next);
                if let Some((since, waker)) = self.waiting.remove(&next) {
                    return self.runs([since, time], record.cpu(), waker, next, out);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A woken thread begins to run.
    fn runs(&mut self, [since, time]: [u64; 2], cpu: u32, waker: Waker, woken: u32, out: &mut Out) -> io::Result<()> {
        if !self.family.has(woken) && !waker.is_some_and(|waker| self.family.has(waker)) {
            return Ok(());
        }
        let is_meant = |names: &mut Names, tid| self.args.comm.as_ref().is_none_or(|comm| names.of(tid) == comm);
        if !is_meant(&mut self.names, woken) && !waker.is_some_and(|waker| is_meant(&mut self.names, waker)) {
            return Ok(());
        }
        let waited = time.saturating_sub(since);
        self.pairs.entry((waker, woken)).or_default().add(waited);
        if !self.args.each {
            return Ok(());
        }
        let names = [self.name(waker), self.name(Some(woken))];
        if self.args.common.json {
            let [waker, woken] = names;
            return writeln!(
                out,
                "{}",
                json!({ "time": self.stamp.number(time), "cpu": cpu, "waker": waker, "woken": woken, "ns": waited })
            );
        }
        let [waker, woken] = names;
        writeln!(out, "{} [{cpu:03}] {waker} -> {woken} waited {}", self.stamp.text(Some(time)), short(waited))
    }

    fn name(&mut self, thread: Waker) -> String {
        match thread {
            None => "[interrupt]".into(),
            Some(tid) if self.args.by_name => self.names.of(tid).to_owned(),
            Some(tid) => format!("{}/{tid}", self.names.of(tid)),
        }
    }

    /// The pairs, the most wake-ups first.
    pub fn busiest(&mut self) -> Vec<Pair> {
        let mut rows = HashMap::<(String, String), Times>::new();
        let pairs = std::mem::take(&mut self.pairs);
        for ((waker, woken), times) in &pairs {
            rows.entry((self.name(*waker), self.name(Some(*woken)))).or_default().join(times);
        }
        self.pairs = pairs;
        let mut rows: Vec<_> = rows.into_iter().map(|((waker, woken), times)| Pair { waker, woken, times }).collect();
        rows.sort_by(|one, other| {
            let key = |pair: &Pair| Reverse(pair.times.count);
            key(one).cmp(&key(other)).then_with(|| (&one.waker, &one.woken).cmp(&(&other.waker, &other.woken)))
        });
        rows
    }
}

/// A thread's number. Its name is remembered.
fn task(names: &mut Names, [number, comm]: &[Field; 2], record: &Record<'_>) -> Option<u32> {
    let tid = number.uint(record)? as u32;
    if tid != 0
        && let Some(name) = comm.text(record)
    {
        names.set(tid, &name);
    }
    Some(tid)
}
