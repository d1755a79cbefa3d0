//! Known causes: threads hand a token round, one of them is delayed, and all tell when and by whom. What `why` says of
//! it is compared.

mod judge;
mod stage;

use crate::failure::{Failure, Outcome};
use crate::names::{NAMING, Names};
use crate::out::{Out, line};
use crate::scheduler::{Scheduler, Tracing, Way};
use judge::{Found, Handed, judge};
use perf_event_open_sys::bindings;
use perfweave::{Item, Order, Reader, Rings};
use serde_json::json;
use stage::Stage;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// Why a thread is delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Lock,
    Pipe,
    Socket,
    Loopback,
    Futex,
    Sleep,
    Disk,
    Hog,
    RealTime,
    Quota,
    Stop,
}

pub const KINDS: [Kind; 11] = [
    Kind::Lock,
    Kind::Pipe,
    Kind::Socket,
    Kind::Loopback,
    Kind::Futex,
    Kind::Sleep,
    Kind::Disk,
    Kind::Hog,
    Kind::RealTime,
    Kind::Quota,
    Kind::Stop,
];

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Lock => "file lock",
            Self::Pipe => "pipe",
            Self::Socket => "Unix socket",
            Self::Loopback => "TCP socket",
            Self::Futex => "futex",
            Self::Sleep => "sleep",
            Self::Disk => "disk",
            Self::Hog => "CPU hog",
            Self::RealTime => "real-time hog",
            Self::Quota => "quota",
            Self::Stop => "stop signal",
        }
    }
}

/// What came of it, with rings that hold all or with such that do not.
struct Ran {
    found: BTreeMap<Kind, Found>,
    handed: Handed,
    lost: u64,
    late: u64,
    left_out: Vec<(Kind, String)>,
    /// How it was traced.
    traced: String,
}

/// How many stretches the account keeps.
const MOST: usize = 1 << 20;

/// How often the token goes round between two looks at what was found.
const TURNS: u64 = 300;

/// Runs it with so many wake-ups, and again with rings that are too small.
pub fn run(wakeups: u64, json: bool, way: Way) -> Outcome {
    let mut out = Out::new();
    let all = play(wakeups, false, way)?;
    let is_true = all.report(false, json, &mut out)?;
    out.flush()?;
    let is_true = play(wakeups.div_ceil(10).max(500), true, way)?.report(true, json, &mut out)? && is_true;
    let (is_well, verdict) = verdict(is_true, &all.found, &all.handed);
    if json {
        writeln!(out, "{}", json!({ "selftest": "why", "ok": is_well, "verdict": verdict, "traced": all.traced }))?;
    } else {
        writeln!(out, "{}\n{verdict}", all.traced)?;
    }
    out.flush()?;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What can be said, and whether that is good. `found` and `handed`: of the run whose rings hold all.
fn verdict(is_true: bool, found: &BTreeMap<Kind, Found>, handed: &Handed) -> (bool, String) {
    let is_known = |kind: &Kind| found.get(kind).is_some_and(Found::is_known);
    let unknown: Vec<_> = KINDS.into_iter().filter(|kind| !is_known(kind)).map(Kind::name).collect();
    let well =
        "99 % or more of what is known is on its cause, no waker is false, and nothing is concluded across a loss";
    match unknown.len() {
        _ if !is_true => (false, "WHAT WHY SAYS IS NOT TRUE HERE".into()),
        all if all == KINDS.len() => (false, "NOTHING IS KNOWN OF ANY DELAY".into()),
        _ if !handed.is_known() => (false, "NOTHING IS KNOWN OF ANY WAKER".into()),
        0 => (true, well.into()),
        _ => (true, format!("nothing is known of {}; of the others {well}", unknown.join(", "))),
    }
}

fn play(wakeups: u64, losing: bool, way: Way) -> Result<Ran, Failure> {
    let bytes = if losing { 64 << 10 } else { 16 << 20 };
    let tracing = Tracing::begin(way, true, None);
    let options = tracing.all_sources(Rings::options(), |_| false).records(NAMING);
    let rings = options.sample(bindings::PERF_SAMPLE_TID).bytes(bytes).open()?;
    tracing.look().now(false);
    let stage = Stage::new()?;
    let mut scheduler = Scheduler::new(&rings, false, MOST)?.traced(&tracing);
    let mut reader = Reader::new(rings, Order::new())?;
    let (mut names, mut losses) = (Names::default(), Vec::<[u64; 2]>::new());
    // CPUs that have told nothing since losses, and which of the losses these are.
    let mut silent: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let (mut found, mut handed) = (BTreeMap::new(), Handed::default());
    thread::scope(|scope| {
        let (_over, mut batches) = (stage.begin(scope)?, 0_u64);
        while handed.made < wakeups {
            stage.round(TURNS.min(wakeups.div_ceil(stage::HANDS)))?;
            let mut is_asked = false;
            'round: loop {
                batches += 1;
                if losing && !is_asked && batches % 4 == 0 {
                    // Long enough for a ring to fill. If it is not, less is lost.
                    thread::sleep(Duration::from_millis(20));
                }
                if !is_asked && stage.is_over()? {
                    tracing.look().now(false);
                    reader.handle().flush()?;
                    is_asked = true;
                }
                let Some(batch) = reader.batch(Duration::from_millis(20))? else { break };
                for event in batch {
                    match event.item() {
                        Item::Flushed { .. } => break 'round,
                        Item::Record(record) => {
                            for at in silent.remove(&record.cpu()).into_iter().flatten() {
                                losses[at][1] = event.key().unwrap_or(u64::MAX);
                            }
                            let _ = event.key().and_then(|time| scheduler.record(&record, time, &mut names));
                        }
                        _ => {
                            let Some(since) = scheduler.notice(&event) else { continue };
                            if let (Item::Lost(lost), None) = (event.item(), event.key()) {
                                silent.entry(lost.cpu).or_default().push(losses.len());
                            }
                            losses.push([since, event.key().unwrap_or(u64::MAX)]);
                        }
                    }
                }
            }
            let since = scheduler.unreported(&reader.ledger()?);
            losses.extend(since.map(|since| [since, u64::MAX]));
            judge(&scheduler, &stage.truth(), &losses, &mut found, &mut handed);
            losses.clear();
            silent.clear();
        }
        Ok::<_, Failure>(())
    })?;
    let total = reader.status().total();
    Ok(Ran { found, handed, lost: total.lost, late: total.late, left_out: stage.left_out(), traced: tracing.words() })
}

impl Ran {
    fn report(&self, losing: bool, json: bool, out: &mut Out) -> Result<bool, Failure> {
        let with = if losing { ", with losses" } else { "" };
        for (kind, why) in &self.left_out {
            if json {
                let object = json!({ "test": "why", "kind": kind.name(), "losing": losing, "refused": why });
                line(out, format_args!("{object}"))?;
            } else {
                line(out, format_args!("why    {}{with}: not tested: {why}", kind.name()))?;
            }
        }
        self.found.iter().try_for_each(|(kind, found)| found.report(*kind, losing, json, out))?;
        self.handed.report(losing, [self.lost, self.late], json, out)?;
        Ok(self.handed.is_well() && self.found.values().all(Found::is_well))
    }
}
