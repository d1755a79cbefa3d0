//! What makes a flight recorder write: a slow wake-up, an event, a signal, a line in a socket.

use crate::args::Common;
use crate::failure::Failure;
use crate::kernel::Kernel;
use crate::names::Names;
use crate::scheduler::{self, Look, Scheduler};
use crate::session;
use nix::sys::signal::Signal;
use perf_event_open_sys::bindings;
use perfweave::{Clock, Handle, Item, Pause, Reader, Record, Rings};
use perfweave_events::{EventOptions, Format};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

/// What to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    /// A thread that was woken has waited longer than this for a CPU.
    Wakeup(Duration),
    /// A tracepoint, and the kernel's filter for it.
    Event { name: String, filter: Option<String> },
}

/// What has happened, on CLOCK_MONOTONIC.
#[derive(Debug)]
pub struct Trigger {
    pub time: u64,
    pub what: String,
    /// Who wants to know the name of the file.
    pub answer: Option<Arc<UnixStream>>,
}

/// What other threads tell the recorder.
#[derive(Debug)]
pub enum Told {
    Trigger(Trigger),
    /// A signal to end, or the end of the command.
    End,
    Failed(Failure),
}

/// What a thread that hears something has.
#[derive(Debug, Clone)]
pub struct Ear {
    pub told: SyncSender<Told>,
    /// The recorder's.
    pub rings: Handle,
    /// What CPUs tell before they are stopped.
    pub look: Look,
    /// Until when events are in a file.
    pub covered: Arc<AtomicU64>,
}

impl Ear {
    /// Stops the rings, which overwrite what was before. Who writes the file has other work first.
    pub fn stop(&self, trigger: &Trigger) {
        if trigger.time > self.covered.load(Ordering::Relaxed) {
            self.look.now(false);
            // Who writes the file stops them again, and says if that fails.
            let _ = self.rings.pause(Pause::Output);
        }
    }

    /// Tells of a trigger. False if nobody hears it.
    pub fn tell(&self, trigger: Trigger) -> bool {
        self.stop(&trigger);
        self.told.send(Told::Trigger(trigger)).is_ok()
    }
}

impl Trigger {
    pub fn now(what: String) -> Self {
        Self { what, time: Clock::Monotonic.now().unwrap_or(0), answer: None }
    }
}

impl FromStr for On {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let compact: String = text.split_whitespace().collect();
        if let Some(limit) = compact.strip_prefix("wakeup>") {
            return time(limit).map(Self::Wakeup);
        }
        let usage = "it is 'wakeup>10ms', 'CATEGORY:NAME' or 'CATEGORY:NAME: FIELD > N'";
        let (category, rest) = text.trim().split_once(':').ok_or(usage)?;
        let (name, filter) = match rest.split_once(':') {
            Some((name, filter)) => (name.trim(), Some(filter.trim().to_owned())),
            None => (rest.trim(), None),
        };
        let is_name = |name: &str| {
            !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-*?".contains(letter))
        };
        if !is_name(category) || !is_name(name) || filter.as_ref().is_some_and(String::is_empty) {
            return Err(usage.into());
        }
        Ok(Self::Event { name: format!("{category}:{name}"), filter })
    }
}

/// A time with a unit.
pub fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|unit: char| unit.is_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        "ns" => 1e-9,
        _ => return Err("a time with its unit is expected, such as 500ms, 10us or 2s".into()),
    };
    let number: f64 = digits.trim().parse().map_err(|_| format!("{digits:?} is no number"))?;
    Duration::try_from_secs_f64(number * unit).map_err(|error| error.to_string())
}

/// A signal by its name, as kill(1) has it. Those that end the recorder are refused.
pub fn signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    let name = if name.starts_with("SIG") { name } else { format!("SIG{name}") };
    let signal = Signal::from_str(&name).map_err(|_| "no such signal: USR1, USR2 and so on".to_string())?;
    match signal {
        Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP => Err("this signal ends the recorder: take USR1".into()),
        Signal::SIGKILL | Signal::SIGSTOP => Err("no program can wait for this signal: take USR1".into()),
        Signal::SIGSEGV | Signal::SIGBUS | Signal::SIGFPE | Signal::SIGILL => Err("this is a fault: take USR1".into()),
        _ => Ok(signal),
    }
}

impl On {
    /// Watches for it in a thread, until the handle is closed.
    pub fn watch(&self, common: &Common, ear: Ear) -> Result<Handle, Failure> {
        let options = match self {
            Self::Wakeup(_) => scheduler::sources(Rings::options())
                .tracepoint("sched:sched_wakeup_new")
                .sample(bindings::PERF_SAMPLE_TID),
            Self::Event { name, filter } => {
                let options = Rings::options().tracepoint(name);
                filter.iter().fold(options, |options, filter| options.filter(filter))
            }
        };
        let rings = options.bytes(common.buffer).open()?;
        let mut waits = match self {
            Self::Wakeup(limit) => Some(Waits::new(&rings, *limit)?),
            Self::Event { .. } => None,
        };
        // For lines of an event. Wake-ups have their own, and sources that are no tracepoints.
        let printed = if waits.is_some() { 0 } else { rings.sources().len() };
        let formats: Vec<_> = (0..printed).map(|source| Format::of(&rings, source)).collect::<Result<_, _>>()?;
        common.say_if_not_expedited();
        let mut reader = Reader::new(rings, common.order())?;
        let (handle, kernel) = (reader.handle(), Kernel::running());
        thread::Builder::new().name("trigger".into()).spawn(move || {
            let end = loop {
                let event = match reader.next() {
                    Ok(Some(event)) => event,
                    Ok(None) => break None,
                    Err(error) if session::goes_on(&error) => continue,
                    Err(error) => break Some(error),
                };
                let happened = match (event.item(), &mut waits) {
                    (Item::Record(record), Some(waits)) => waits.record(&record),
                    // Who waits since when is not known any more.
                    (_, Some(waits)) => {
                        waits.scheduler.notice(&event.event());
                        None
                    }
                    (Item::Record(record), None) => {
                        let format = record.source().and_then(|source| formats.get(source));
                        let line = format.and_then(|format| {
                            let line = format.line_with(&record, |address| kernel.look(address))?;
                            Some(format!("{}: {line}", format.name()))
                        });
                        record.time().zip(line).map(|(time, line)| Trigger {
                            time,
                            what: line.trim_end().into(),
                            answer: None,
                        })
                    }
                    _ => None,
                };
                if happened.is_some_and(|trigger| !ear.tell(trigger)) {
                    break None;
                }
            };
            if let Some(error) = end {
                // The recorder has ended if nobody hears it.
                let _ = ear.told.send(Told::Failed(error.into()));
            }
        })?;
        Ok(handle)
    }
}

/// Threads that are woken and wait for a CPU.
#[derive(Debug)]
struct Waits {
    limit: u64,
    scheduler: Scheduler,
    names: Names,
}

impl Waits {
    fn new(rings: &Rings, limit: Duration) -> Result<Self, Failure> {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { limit, scheduler: Scheduler::new(rings, false, 0)?, names: Names::default() })
    }

    fn record(&mut self, record: &Record<'_>) -> Option<Trigger> {
        let time = record.time()?;
        let (tid, ran) = self.scheduler.record(record, time, &mut self.names)?;
        let waited = time.saturating_sub(ran.wake.as_ref().and(ran.ready())?);
        if waited <= self.limit || Path::new(&format!("/proc/self/task/{}", tid)).exists() {
            // What the recorder itself waits for is of no interest.
            return None;
        }
        let thread = self.names.with_number(tid);
        let what = format!("{thread} waited {:.3} ms for CPU {}", waited as f64 / 1e6, record.cpu());
        Some(Trigger { time, what, answer: None })
    }
}

#[cfg(test)]
mod tests {
    use super::{On, signal, time};
    use std::time::Duration;

    #[test]
    fn triggers_times_and_signals() {
        let event = |name: &str, filter: Option<&str>| On::Event { name: name.into(), filter: filter.map(Into::into) };
        assert_eq!("wakeup > 10ms".parse(), Ok(On::Wakeup(Duration::from_millis(10))));
        assert_eq!("a:b: c > 1 && d ~ \"x:y\"".parse(), Ok(event("a:b", Some("c > 1 && d ~ \"x:y\""))));
        assert_eq!("a:b".parse(), Ok(event("a:b", None)));
        assert!(
            ["", "a", "a:", ":b", "a:b:", "wakeup>10", "wakeup>-1s"].iter().all(|text| text.parse::<On>().is_err())
        );
        assert_eq!(time("1.5ms"), Ok(Duration::from_micros(1500)));
        assert!(signal("usr1").is_ok() && signal("SIGUSR2").is_ok() && signal("TERM").is_err() && signal("x").is_err());
    }
}
