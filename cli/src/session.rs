//! A trace from its beginning to its summary: the same for all commands.

use crate::args::{Common, size};
use crate::child::Child;
use crate::cure::{Advice, Cure};
use crate::failure::Failure;
use crate::missing;
use crate::out::{Out, say};
use crate::stamp::Stamp;
use crate::times::short;
use perfweave::{ANY_CPU, Account, EarlyRelease, Event, Handle, Item, Order, Reader, Rings, Status, Untraced};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, Write};
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for an event before a command may print what it has.
const TICK: Duration = Duration::from_millis(100);

/// A reader, and what ends it: the deadline, a signal, or the end of the command. All events from before the end are
/// yielded.
#[derive(Debug)]
pub struct Session {
    reader: Reader,
    stop: Arc<Stop>,
    began: Instant,
    /// The session ends with this process or thread.
    watched: Option<u32>,
    /// How times are printed.
    stamp: Option<Stamp>,
    cure: Cure,
    /// Why losses are not all counted, if they are not.
    uncounted: &'static str,
}

/// What other threads say to the session.
#[derive(Debug, Default)]
struct Stop {
    /// The next flush is the last.
    is_last: AtomicBool,
    status: Mutex<Option<ExitStatus>>,
}

impl Stop {
    fn now(&self, handle: &Handle) {
        // The flush after it publishes this.
        self.is_last.store(true, Ordering::Release);
        // It fails only in a forked child.
        let _ = handle.flush();
    }
}

/// What a session tells its command.
#[derive(Debug)]
pub enum Tell<'a, 'b> {
    /// The next event.
    Event(&'a Event<'b>),
    /// All that was ready is told. A command that prints as it goes writes it out now.
    Pause,
}

impl Session {
    /// Begins to read. Lets the command go, if there is one.
    pub fn begin(rings: Rings, order: Order, common: &Common, child: Option<Child>) -> Result<Self, Failure> {
        // Who may not ask is not told: that is no reason not to trace.
        for program in rings.foreign_programs().unwrap_or_default() {
            say(format_args!("perfweave: {program}"));
        }
        common.say_if_not_expedited();
        let reader = Reader::new(rings, order)?;
        let stop = Arc::new(Stop::default());
        on_signals(Arc::clone(&stop), reader.handle())?;
        if let Some(mut child) = child {
            child.go()?;
            let (stop, handle) = (Arc::clone(&stop), reader.handle());
            thread::Builder::new().name("wait".into()).spawn(move || {
                let status = child.wait().ok();
                *stop.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
                stop.now(&handle);
            })?;
        }
        let began = Instant::now();
        reader.set_deadline(common.seconds.map(|time| began + time))?;
        let (cure, uncounted) = (Cure::default(), missing::UNCOUNTED);
        Ok(Self { reader, stop, began, watched: None, stamp: None, cure, uncounted })
    }

    /// Says in the summary how exact these times are.
    pub fn stamped(&mut self, stamp: Stamp) {
        self.stamp = Some(stamp);
    }

    /// Says in the summary why losses are not all counted, if they are not, and what would help.
    pub fn uncounted(&mut self, why: &'static str) {
        self.uncounted = why;
    }

    /// How exact printed times are, if they are converted, and by how much the clock was set meanwhile.
    fn exactness(&self) -> Option<(u64, Option<i64>)> {
        self.stamp.and_then(|stamp| Some((stamp.exactness()?, stamp.moved())))
    }

    /// How long it has run.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Ends the session when this process or thread has ended, as well.
    pub fn until_the_end_of(&mut self, id: Option<u32>) {
        self.watched = id;
    }

    /// Calls a function with each event until the end. Loss, gaps and damage are events too. It ends well if the other
    /// end of the output is closed.
    pub fn each(&mut self, mut each: impl FnMut(Tell<'_, '_>) -> io::Result<()>) -> Result<(), Failure> {
        let (stop, handle, mut looked) = (Arc::clone(&self.stop), self.reader.handle(), Instant::now());
        let mut read = || {
            while let Some(batch) = self.reader.batch(TICK)? {
                for event in batch {
                    self.cure.take(&event.item());
                    match event.item() {
                        Item::Flushed if stop.is_last.load(Ordering::Acquire) => return Ok(Ok(())),
                        Item::Flushed => {}
                        _ => {
                            if let Err(error) = each(Tell::Event(&event)) {
                                return Ok(Err(error));
                            }
                        }
                    }
                }
                if let Err(error) = each(Tell::Pause) {
                    return Ok(Err(error));
                }
                if looked.elapsed() >= TICK
                    && let Some(id) = self.watched
                {
                    looked = Instant::now();
                    if !Path::new("/proc").join(id.to_string()).exists() {
                        self.watched = None;
                        stop.now(&handle);
                    }
                }
            }
            Ok::<_, perfweave::Error>(Ok(()))
        };
        let told: io::Result<()> = read()?;
        match told {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            told => Ok(told?),
        }
    }

    /// The account of everything that was written.
    pub fn ledger(&mut self) -> Result<Status, Failure> {
        Ok(self.reader.ledger()?)
    }

    /// How many records about the tracer were left out.
    pub fn left_out(&self) -> u64 {
        self.reader.status().left_out
    }

    /// Which buffer would have held what was lost. `None` if nothing was, or if the rings are a map, whose size its
    /// program chooses.
    fn advice(&self, ledger: &Status) -> Option<Advice> {
        let size = ledger.accounts.iter().map(|account| account.size).max()?;
        let lost = ledger.accounts.iter().filter_map(|account| Some((account.cpu?, account.lost)));
        self.cure.advice(size, lost).filter(|_| !self.reader.rings().sources().is_empty())
    }

    /// One line on loss and order, on standard error. In JSON it is the last object instead.
    pub fn summary(&mut self, json: bool) -> Result<String, Failure> {
        let ledger = self.reader.ledger()?;
        let (total, left_out) = (ledger.total(), ledger.left_out);
        let Account { yielded: records, late, early, damaged, missing: numbers, .. } = total;
        if json {
            // The kernel tells a loss with the next record. The ledger has those after the last record as well.
            let mut object = json!({
                "summary": { "records": records, "lost": total.lost, "unreported": total.unreported, "exact": total.exact, "missing": numbers, "late": late, "early": early, "damaged": damaged,
                    "left_out": left_out, "seconds": self.elapsed().as_secs_f64(), "complete": ledger.is_complete() }
            });
            if let Some(advice) = self.advice(&ledger) {
                object["summary"]["buffer_needed"] = advice.bytes().into();
                object["summary"]["advice"] = advice.text("--buffer", size).into();
            }
            if let Some((exactness, moved)) = self.exactness() {
                object["summary"]["clock_uncertainty_ns"] = exactness.into();
                if let Some(moved) = moved {
                    object["summary"]["clock_set_by_ns"] = moved.into();
                }
            }
            return Ok(object.to_string());
        }
        let order = match (late, early) {
            (0, 0) => "all in proven order".into(),
            _ => format!("{late} late, {early} released before their order was proven"),
        };
        let order = if self.reader.fence().is_some() {
            order
        } else {
            format!("{late} late; the order is not proven (--hold)")
        };
        let advice = self.advice(&ledger).map(|advice| format!("; {}", advice.text("--buffer", size)));
        let loss = missing::of(&total, self.uncounted) + &advice.unwrap_or_default();
        let clock = match self.exactness() {
            None => String::new(),
            Some((ns, None)) => format!("; times within {}", short(ns)),
            Some((ns, Some(moved))) => {
                let (by, way) = (short(moved.unsigned_abs()), if moved < 0 { "back" } else { "ahead" });
                format!(
                    "; times within {} of what the clock said at the start: it was set {way} by {by} meanwhile",
                    short(ns)
                )
            }
        };
        Ok(format!("{records} events in {:.1} s: {order}; {loss}{clock}", self.elapsed().as_secs_f64()))
    }

    /// Ends the output: the summary, in JSON as the last line and otherwise on standard error.
    pub fn conclude(&mut self, out: &mut Out, json: bool) -> Result<(), Failure> {
        let summary = self.summary(json)?;
        if json {
            writeln!(out, "{summary}")?;
        }
        out.flush()?;
        if !json {
            eprintln!("{summary}");
        }
        Ok(())
    }

    /// The status to end with: the command's own.
    pub fn status(&self) -> ExitCode {
        let status = *self.stop.status.lock().unwrap_or_else(PoisonError::into_inner);
        match status {
            None => ExitCode::SUCCESS,
            Some(status) => {
                use std::os::unix::process::ExitStatusExt;
                // As a shell says it: 128 and the signal.
                let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
                ExitCode::from(u8::try_from(code).unwrap_or(1))
            }
        }
    }
}

/// The first signal ends the trace with its summary, the second ends the program.
fn on_signals(stop: Arc<Stop>, handle: Handle) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            stop.now(&handle);
        }
        if let Some(signal) = signals.next() {
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// An item that is no record, as a line says it.
pub fn notice(item: &Item<'_>) -> Option<String> {
    match item {
        Item::Record(_) | Item::Flushed => None,
        Item::Lost(lost) if lost.cpu == ANY_CPU => Some(format!("{} records were lost here", lost.count)),
        Item::Lost(lost) => Some(format!("CPU {} lost {} records here", lost.cpu, lost.count)),
        Item::Damage(damage) if damage.cpu == ANY_CPU => {
            Some(format!("{} bytes are no record: {}", damage.bytes.len(), damage.fault))
        }
        Item::Gap(gap) => Some(format!("{} numbers are missing, from {} to {}", gap.count, gap.first, gap.last)),
        Item::Damage(damage) => {
            Some(format!("CPU {}: {} bytes are no record: {}", damage.cpu, damage.bytes.len(), damage.fault))
        }
        Item::EarlyRelease(EarlyRelease { cpu, reserved: Some(age), .. }) => {
            let ring = if *cpu == ANY_CPU { "the ring buffer".into() } else { format!("CPU {cpu}'s ring buffer") };
            Some(format!(
                "a program has not committed what it reserved in {ring} for {:.3} s: events leave before their order \
                 is proven, and what lies after that reservation cannot be read",
                age.as_secs_f64()
            ))
        }
        Item::EarlyRelease(early) => Some(format!(
            "CPU {}'s ring is {} % full: events leave before their order is proven",
            early.cpu, early.filled
        )),
        Item::Untraced(Untraced { cpu, lasted: Some(time), .. }) => {
            Some(format!("CPU {cpu} is traced again after {:.3} s", time.as_secs_f64()))
        }
        Item::Untraced(untraced) => Some(format!("CPU {} is not traced from here on", untraced.cpu)),
        other => Some(format!("{other:?}")),
    }
}

/// Writes what is no record as a line of its own, or an object.
pub fn tell(event: &Event<'_>, stamp: &Stamp, json: bool, out: &mut impl Write) -> io::Result<()> {
    let item = event.item();
    if json {
        let object = notice_json(&item, event.key().map(|key| stamp.number(key)));
        return object.map_or(Ok(()), |object| writeln!(out, "{object}"));
    }
    notice(&item).map_or(Ok(()), |text| writeln!(out, "{} --- {text} ---", stamp.text(event.key())))
}

/// The same in JSON, with the time to print.
pub fn notice_json(item: &Item<'_>, key: Option<u64>) -> Option<Value> {
    let name = match item {
        Item::Record(_) | Item::Flushed => return None,
        Item::Lost(lost) => {
            let cpu = (lost.cpu != ANY_CPU).then_some(lost.cpu);
            return Some(json!({ "notice": "lost", "time": key, "cpu": cpu, "count": lost.count }));
        }
        Item::Gap(_) => "gap",
        Item::Anomaly(_) => "anomaly",
        Item::Damage(_) => "damage",
        Item::EarlyRelease(_) => "early",
        Item::Untraced(_) => "untraced",
        _ => "other",
    };
    Some(json!({ "notice": name, "time": key, "text": notice(item) }))
}
