//! Periods off the CPU, from switches.

use super::Args;
use crate::failure::Failure;
use crate::names::Names;
use crate::out::Out;
use crate::stamp::{By, Stamp};
use crate::times::{Times, short};
use perfweave::decode::Field;
use perfweave::{Event, Item, Kind, Record, Rings};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

/// Why a thread leaves a CPU.
pub const REASONS: [&str; 4] = ["asleep", "disk", "preempted", "other"];

/// `PERF_RECORD_MISC_SWITCH_OUT`
const OUT: u16 = 1 << 13;

/// A thread that is off the CPU.
struct Away {
    pid: u32,
    since: u64,
    /// An index of [`REASONS`].
    reason: usize,
}

/// The state from the stream so far.
pub struct Account<'a> {
    state: Field,
    args: &'a Args,
    pub stamp: Stamp,
    names: Names,
    away: HashMap<u32, Away>,
    rows: HashMap<u32, [Times; REASONS.len()]>,
    /// The process that becomes the traced command. What it waits for before is not the command's.
    waits: Option<u32>,
}

/// A process or thread, and its periods for each reason.
#[derive(Debug)]
pub struct Row {
    pub comm: String,
    pub id: u32,
    pub by_reason: [Times; REASONS.len()],
}

impl<'a> Account<'a> {
    pub fn new(rings: &Rings, args: &'a Args, waits: Option<u32>) -> Result<Self, Failure> {
        let state = rings.format(0)?.field("prev_state")?;
        let stamp = args.time.stamp(rings, By::Monotonic, args.common.json)?;
        let (names, away, rows) = (Names::now(), HashMap::new(), HashMap::new());
        Ok(Self { state, args, stamp, names, away, rows, waits })
    }

    /// Takes an event. Prints a line at the end of a period if that was asked for.
    pub fn event(&mut self, event: &Event<'_>, out: &mut Out) -> io::Result<()> {
        match event.item() {
            Item::Record(record) => self.record(event, &record, out),
            Item::EarlyRelease(_) => Ok(()),
            other => {
                // A thread may have run meanwhile.
                self.away.clear();
                self.waits = None;
                match crate::session::notice(&other).filter(|_| self.args.each && !self.args.common.json) {
                    Some(text) => writeln!(out, "--- {text} ---"),
                    None => Ok(()),
                }
            }
        }
    }

    fn record(&mut self, event: &Event<'_>, record: &Record<'_>, out: &mut Out) -> io::Result<()> {
        if self.names.take(record) {
            let thread = record.body().u32(4);
            if record.kind() == Kind::COMM && thread == self.waits {
                self.waits = None;
            }
            return Ok(());
        }
        let (Some((pid, tid)), Some(time)) = (record.pid_tid(), event.key()) else { return Ok(()) };
        // The idle thread is 0. A thread that has ended, or is of another PID namespace, has no number. Of this program's own threads some
        // switches are left out.
        if matches!(tid, 0 | u32::MAX) || pid == std::process::id() || self.waits == Some(tid) {
            return Ok(());
        }
        match record.kind() {
            Kind::SAMPLE => {
                let reason = reason(self.state.int(record).unwrap_or(0));
                self.away.insert(tid, Away { pid, since: time, reason });
                Ok(())
            }
            Kind::SWITCH | Kind::SWITCH_CPU_WIDE if record.misc() & OUT == 0 => match self.away.remove(&tid) {
                Some(away) => self.ends(away, [tid, record.cpu()], time, out),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// A thread runs again.
    fn ends(&mut self, away: Away, [tid, cpu]: [u32; 2], time: u64, out: &mut Out) -> io::Result<()> {
        let Away { pid, since, reason } = away;
        if self.args.comm.as_ref().is_some_and(|comm| self.names.of(tid) != comm) {
            return Ok(());
        }
        let lasted = time.saturating_sub(since);
        self.rows.entry(if self.args.by_thread { tid } else { pid }).or_default()[reason].add(lasted);
        if !self.args.each {
            return Ok(());
        }
        let (comm, reason) = (self.names.of(tid), REASONS[reason]);
        if self.args.common.json {
            let object = json!({ "time": self.stamp.number(time), "cpu": cpu, "pid": pid, "tid": tid, "comm": comm, "ns": lasted, "reason": reason });
            return writeln!(out, "{object}");
        }
        writeln!(
            out,
            "{} [{cpu:03}] {comm}/{tid} runs again after {} ({reason})",
            self.stamp.text(Some(time)),
            short(lasted)
        )
    }

    /// The longest in all first.
    pub fn rows(&mut self) -> Vec<Row> {
        let (names, rows) = (&mut self.names, &self.rows);
        let row = |(id, times): (&u32, &[Times; REASONS.len()])| Row {
            comm: names.of(*id).to_owned(),
            id: *id,
            by_reason: times.clone(),
        };
        let mut rows: Vec<_> = rows.iter().map(row).collect();
        rows.sort_by_key(|row| (Reverse(row.by_reason.iter().map(|times| times.total).sum::<u64>()), row.id));
        rows
    }
}

/// `prev_state` of sched_switch, whose text the kernel prints as R, S, D and so on (include/trace/events/sched.h).
fn reason(state: i64) -> usize {
    match state & 0xff {
        0 => 2,
        1 | 0x80 => 0,
        2 => 1,
        _ => 3,
    }
}
