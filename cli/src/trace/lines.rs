//! One line for each event: its time, CPU and thread, and how far its place can be trusted.

use crate::convert::names::Spot;
use crate::exact::Exact;
use crate::names::Names;
use crate::numbers;
use crate::out::{Out, line};
use crate::session;
use crate::stamp::Stamp;
use crate::times::short;
use perfweave::{Certainty, Event};
use serde_json::{Value, json};
use std::io;

/// Prints lines or JSON objects.
#[derive(Debug)]
pub struct Lines {
    pub out: Out,
    pub names: Names,
    json: bool,
    pub stamp: Stamp,
    /// Whether events before their proof are marked. With `--hold none` all are.
    marks: bool,
    /// Whether times are those since the line before.
    since_last: Option<SinceLast>,
}

/// Times since the line before, as `strace -r` has them.
#[derive(Debug)]
struct SinceLast {
    /// Of the line before.
    last: Option<u64>,
    /// Whether the time itself is printed as well.
    is_added: bool,
}

impl SinceLast {
    fn text(&mut self, time: Option<u64>, stamp: &Stamp) -> String {
        let since = time.map(|time| time.saturating_sub(self.last.unwrap_or(time)) / 1000);
        self.last = time.max(self.last);
        let text = since.map_or_else(
            || format!("{:>13}", "-"),
            |since| format!("{:>6}.{:06}", since / 1_000_000, since % 1_000_000),
        );
        if self.is_added { format!("{} (+{text})", stamp.text(time)) } else { text }
    }
}

/// Where and when an event is, and how far its place in the stream can be trusted.
#[derive(Debug, Clone, Copy)]
pub struct At {
    pub time: Option<u64>,
    pub cpu: Option<u32>,
    pub pid: u32,
    pub tid: u32,
    certainty: Certainty,
    late_by: u64,
}

impl At {
    pub fn new(event: &Event<'_>, pid: u32, tid: u32) -> Self {
        let (certainty, late_by) = (event.certainty(), event.late_by());
        Self { time: event.key(), cpu: event.cpu(), pid, tid, certainty, late_by }
    }

    /// At the end of the trace.
    pub fn end(cpu: u32, pid: u32, tid: u32) -> Self {
        Self { time: None, cpu: Some(cpu), pid, tid, certainty: Certainty::Proven, late_by: 0 }
    }
}

impl Lines {
    pub fn new(out: Out, json: bool, stamp: Stamp, marks: bool) -> Self {
        Self { out, names: Names::now(), json, stamp, marks, since_last: None }
    }

    /// Prints times since the line before, beside the time itself or alone.
    pub fn since_last(&mut self, is_added: bool) {
        self.since_last = Some(SinceLast { last: None, is_added });
    }

    /// A line. `text` is made only for text, `value` only for JSON: an object, to which the time and the thread are
    /// added, and what its strings do not say.
    pub fn line(
        &mut self,
        at: At,
        text: impl FnOnce() -> String,
        value: impl FnOnce() -> (Value, Exact),
    ) -> io::Result<()> {
        let At { time, cpu, pid, tid, certainty, late_by } = at;
        let comm = self.names.of(tid);
        if !self.json {
            let time = match &mut self.since_last {
                Some(since_last) => since_last.text(time, &self.stamp),
                None => self.stamp.text(time),
            };
            let cpu = cpu.map_or("   ".into(), |cpu| format!("{cpu:03}"));
            let place = match certainty {
                Certainty::Late => format!(" [late by {}]", short(late_by)),
                Certainty::Assumed if self.marks => " [its order is not proven]".into(),
                _ => String::new(),
            };
            let tid = numbers::known(tid).map_or("-".into(), |tid| tid.to_string());
            return line(&mut self.out, format_args!("{time} [{cpu}] {comm}/{tid} {}{place}", text()));
        }
        let time = time.map(|time| self.stamp.number(time));
        let numbers = [pid, tid].map(numbers::known);
        let mut object = json!({ "time": time, "cpu": cpu, "pid": numbers[0], "tid": numbers[1], "comm": comm });
        if let (Value::Object(all), (Value::Object(own), mut exact)) = (&mut object, value()) {
            all.extend(own);
            if let Some(bytes) = self.names.raw(tid) {
                exact.string(&["comm"], bytes, false);
            }
            exact.put(all);
            match certainty {
                Certainty::Late => drop(all.insert("late_by".into(), late_by.into())),
                Certainty::Assumed => drop(all.insert("assumed".into(), true.into())),
                _ => {}
            }
        }
        line(&mut self.out, format_args!("{object}"))
    }

    /// The stack of the call of the line before, as lines of their own. In JSON it is in the object.
    pub fn stack(&mut self, stack: Option<&[Spot]>) -> io::Result<()> {
        let mut spots = stack.into_iter().flatten().filter(|_| !self.json);
        spots.try_for_each(|spot| line(&mut self.out, format_args!(" > {}", spot.text())))
    }

    /// A loss, a gap or damage, at its place.
    pub fn notice(&mut self, event: &Event<'_>) -> io::Result<()> {
        session::tell(event, &self.stamp, self.json, &mut self.out)
    }
}
