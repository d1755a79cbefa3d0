//! A trace from its beginning to its summary: the same for all commands.

use crate::args::{Common, size};
use crate::child::Child;
use crate::cure::{Advice, Cure};
use crate::failure::Failure;
use crate::missing;
use crate::out::{Out, say};
use crate::scheduler::{Look, Tracing};
use crate::stamp::Stamp;
use crate::times::short;
use perfweave::{
    ANY_CPU, Account, Certainty, Ended, ErrorKind, Event, Handle, Item, Order, Reader, Rings, Status, Untraced,
};
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

/// A command looks at the clock after so many events.
const EVENTS: u32 = 16;

/// How long after its end a command handles events of before it. What is left then is counted.
const GRACE: Duration = Duration::from_millis(500);

/// A reader, and what ends it: the deadline, a signal, or the end of the command. All events from before the end are
/// yielded.
#[derive(Debug)]
pub struct Session {
    reader: Reader,
    stop: Arc<Stop>,
    began: Instant,
    deadline: Option<Instant>,
    /// Whether all events of before the end are handled, however long that takes.
    takes_all: bool,
    /// How many records of before the end were not handled.
    unhandled: u64,
    /// How many records came whose order is only assumed.
    assumed: u64,
    /// Why events of before the end are missing, if they are.
    incomplete: Option<String>,
    /// The session ends with the last of these processes or threads.
    watched: Vec<u32>,
    /// How times are printed.
    stamp: Option<Stamp>,
    cure: Cure,
    /// Why losses are not all counted, if they are not.
    uncounted: &'static str,
    /// How the scheduler is traced, if it is.
    traced: String,
    /// How many switches have no record.
    unrecorded: u64,
}

/// What other threads say to the session.
#[derive(Debug, Default)]
struct Stop {
    /// The next flush is the last.
    is_last: AtomicBool,
    /// What CPUs tell before it.
    look: Mutex<Look>,
    status: Mutex<Option<ExitStatus>>,
}

impl Stop {
    fn now(&self, handle: &Handle) {
        {
            // Once. Who comes second waits until all have told.
            let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *look).now(true);
            // The flush after it publishes this.
            self.is_last.store(true, Ordering::Release);
        }
        // It fails only in a forked child.
        let _ = handle.flush();
    }

    /// What CPUs tell before the last flush. A command that is over by now has asked for that flush already.
    fn looks(&self, look: Look, handle: &Handle) {
        let is_last = {
            let mut kept = self.look.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = look;
            self.is_last.load(Ordering::Acquire)
        };
        if is_last {
            self.now(handle);
        }
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
        let mut session = Self::of(reader, stop);
        session.deadline = common.seconds.map(|time| session.began + time);
        session.reader.handle().set_deadline(session.deadline)?;
        Ok(session)
    }

    fn of(reader: Reader, stop: Arc<Stop>) -> Self {
        let (began, cure, uncounted) = (Instant::now(), Cure::default(), missing::UNCOUNTED);
        let (deadline, takes_all, unhandled, assumed, incomplete, watched, stamp, traced, unrecorded) =
            Default::default();
        Self {
            reader,
            stop,
            began,
            deadline,
            takes_all,
            unhandled,
            assumed,
            incomplete,
            watched,
            stamp,
            cure,
            uncounted,
            traced,
            unrecorded,
        }
    }

    /// All events of before the end are handled, however long that takes: a recording has them all. They are no more
    /// than the rings hold.
    pub fn takes_all(&mut self) {
        self.takes_all = true;
    }

    /// Says in the summary how exact these times are.
    pub fn stamped(&mut self, stamp: Stamp) {
        self.stamp = Some(stamp);
    }

    /// Says in the summary why losses are not all counted, if they are not, and what would help.
    pub fn uncounted(&mut self, why: &'static str) {
        self.uncounted = why;
    }

    /// Says in the summary how the scheduler is traced. At the end each CPU tells where it stands, if a program can.
    pub fn traced(&mut self, tracing: &Tracing) {
        self.traced = tracing.words();
        if !tracing.is_by_programs() {
            return;
        }
        self.stop.looks(tracing.look(), &self.reader.handle());
        let Some(deadline) = self.deadline else { return };
        // The reader's own deadline would leave out what CPUs tell at it.
        let (stop, handle) = (Arc::clone(&self.stop), self.reader.handle());
        let waits = thread::Builder::new().name("deadline".into()).spawn(move || {
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
            stop.now(&handle);
        });
        if waits.is_ok() {
            // It fails only in a forked child.
            let _ = self.reader.handle().set_deadline(None);
        }
    }

    /// Says in the summary how many switches are known to have no record.
    pub fn unrecorded(&mut self, switches: u64) {
        self.unrecorded = switches;
    }

    /// How exact printed times are, if they are converted, and by how much the clock was set meanwhile.
    fn exactness(&self) -> Option<(u64, Option<i64>)> {
        self.stamp.and_then(|stamp| Some((stamp.exactness()?, stamp.moved())))
    }

    /// How long it has run.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Ends the session when these processes or threads have ended, as well, if there are any.
    pub fn until_the_end_of(&mut self, ids: impl IntoIterator<Item = u32>) {
        self.watched = ids.into_iter().collect();
    }

    /// Calls a function with each event until the end. Loss, gaps and damage are events too. It ends well if the other
    /// end of the output is closed.
    pub fn each(&mut self, each: impl FnMut(Tell<'_, '_>) -> io::Result<()>) -> Result<(), Failure> {
        self.each_by(Instant::now, each)
    }

    /// The same by another clock.
    fn each_by(
        &mut self,
        mut now: impl FnMut() -> Instant,
        mut each: impl FnMut(Tell<'_, '_>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let (stop, handle, mut looked) = (Arc::clone(&self.stop), self.reader.handle(), now());
        let late = self.deadline.filter(|_| !self.takes_all).map(|deadline| deadline + GRACE);
        let (mut events, mut has_left, mut is_late, mut is_complete) = (0u32, false, false, true);
        let mut read = || {
            loop {
                let batch = match self.reader.batch(TICK) {
                    Err(error) if goes_on(&error) => continue,
                    batch => batch?,
                };
                let Some(batch) = batch else { return Ok::<_, perfweave::Error>(Ok(())) };
                for event in batch {
                    self.cure.take(&event.item());
                    self.assumed += u64::from(is_assumed(&event));
                    match event.item() {
                        Item::Flushed { complete } if stop.is_last.load(Ordering::Acquire) => {
                            is_complete = complete;
                            return Ok(Ok(()));
                        }
                        Item::Flushed { .. } => {}
                        item if is_late => self.unhandled += u64::from(matches!(item, Item::Record(_))),
                        _ => {
                            if let Err(error) = each(Tell::Event(&event)) {
                                return Ok(Err(error));
                            }
                        }
                    }
                    events = events.wrapping_add(1);
                    if events.is_multiple_of(EVENTS) && self.deadline.is_some_and(|deadline| now() >= deadline) {
                        is_late |= late.is_some_and(|late| now() >= late);
                        if !stop.is_last.load(Ordering::Acquire) {
                            stop.now(&handle);
                        }
                    }
                    // The end is where the reader looks next. Whatever comes later is not waited for.
                    if stop.is_last.load(Ordering::Acquire) && !has_left {
                        has_left = true;
                        break;
                    }
                }
                if let Err(error) = each(Tell::Pause) {
                    return Ok(Err(error));
                }
                if looked.elapsed() >= TICK {
                    looked = now();
                    let had = !self.watched.is_empty();
                    self.watched.retain(|id| Path::new("/proc").join(id.to_string()).exists());
                    if had && self.watched.is_empty() {
                        stop.now(&handle);
                    }
                }
            }
        };
        let told = read()?;
        self.note_end(is_complete);
        told.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error.into()) })
    }

    /// Notes what the end has waited for in vain.
    fn note_end(&mut self, is_complete: bool) {
        if !is_complete || matches!(self.reader.ended(), Some(Ended::Deadline { complete: false })) {
            self.incomplete = Some(incomplete(self.reader.status().uncommitted));
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
        let used = ledger.accounts.iter().map(|account| account.size.max(account.most_used)).max()?;
        let needed = ledger.accounts.iter().map(|account| account.needed).max()?;
        let lost = ledger.accounts.iter().filter_map(|account| Some((account.cpu?, account.lost)));
        self.cure.advice(used, needed, lost).filter(|_| !self.reader.rings().sources().is_empty())
    }

    /// One line on loss and order, on standard error. In JSON it is the last object instead.
    pub fn summary(&mut self, json: bool) -> Result<String, Failure> {
        let ledger = self.reader.ledger()?;
        let (total, left_out) = (ledger.total(), ledger.left_out);
        let Account { yielded: records, late, damaged, missing: numbers, .. } = total;
        if json {
            // The kernel tells a loss with the next record. The ledger has those after the last record as well.
            let mut object = json!({
                "summary": { "records": records, "lost": total.lost, "unreported": total.unreported, "exact": total.exact, "missing": numbers, "late": late, "assumed": self.assumed, "damaged": damaged,
                    "left_out": left_out, "seconds": self.elapsed().as_secs_f64(),
                    "complete": ledger.is_complete() && self.unhandled + self.unrecorded == 0 && self.incomplete.is_none() }
            });
            if self.unhandled > 0 {
                object["summary"]["unhandled"] = self.unhandled.into();
            }
            if let Some(why) = &self.incomplete {
                object["summary"]["incomplete"] = why.as_str().into();
            }
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
            if self.unrecorded > 0 {
                object["summary"]["unrecorded_switches"] = self.unrecorded.into();
            }
            if !self.traced.is_empty() {
                object["summary"]["traced"] = self.traced.as_str().into();
            }
            return Ok(object.to_string());
        }
        let order = order_of(&total, self.assumed, self.reader.fence().is_some());
        let advice = self.advice(&ledger).map(|advice| format!("; {}", advice.text("--buffer", size)));
        let loss = missing::of(&total, self.uncounted) + &advice.unwrap_or_default();
        let loss = missing::beside_switches(loss, self.unrecorded);
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
        let unhandled = match self.unhandled {
            0 => String::new(),
            count => format!("; the last {count} of them came too late to be in what is above"),
        };
        let incomplete = self.incomplete.as_ref().map_or_else(String::new, |why| format!("; not complete: {why}"));
        let traced = if self.traced.is_empty() { String::new() } else { format!("; {}", self.traced) };
        let (unrecorded, seconds) = (missing::switches(self.unrecorded), self.elapsed().as_secs_f64());
        Ok(format!(
            "{records} events in {seconds:.1} s{order}; {loss}{incomplete}{unhandled}{unrecorded}{clock}{traced}"
        ))
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

/// What a summary says of the order of the events: nothing where there is none.
fn order_of(total: &Account, assumed: u64, is_proven: bool) -> String {
    let Account { yielded, late, damaged, .. } = *total;
    match (yielded, late, assumed, damaged) {
        (0, ..) => String::new(),
        (_, late, ..) if !is_proven => format!(": {late} late; the order is not proven (--hold)"),
        (_, 0, 0, 0) => ": all in proven order".into(),
        (_, 0, 0, _) => ": those that can be read are in proven order".into(),
        (_, late, assumed, _) => format!(": {late} late; the order of {assumed} is not proven"),
    }
}

/// Why events of before the end are missing: a program is inside a reservation in this CPU's BPF ring buffer.
fn incomplete(reserved: Option<u32>) -> String {
    let on = reserved.filter(|cpu| *cpu != ANY_CPU).map_or_else(String::new, |cpu| format!(" on CPU {cpu}"));
    format!("a program{on} has not committed what it reserved in a BPF ring buffer")
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
        Item::Record(_) | Item::Flushed { .. } => None,
        Item::Lost(lost) if lost.cpu == ANY_CPU => Some(format!("{} records were lost here", lost.count)),
        Item::Lost(lost) => Some(format!("CPU {} lost {} records here", lost.cpu, lost.count)),
        Item::Damage(damage) if damage.cpu == ANY_CPU => Some(damage.to_string()),
        Item::Gap(gap) => Some(format!("{} numbers are missing, from {} to {}", gap.count, gap.first, gap.last)),
        Item::Damage(damage) => Some(format!("CPU {}: {damage}", damage.cpu)),
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
        Item::Record(_) | Item::Flushed { .. } => return None,
        Item::Lost(lost) => {
            let cpu = (lost.cpu != ANY_CPU).then_some(lost.cpu);
            return Some(json!({ "notice": "lost", "time": key, "cpu": cpu, "count": lost.count }));
        }
        Item::Gap(_) => "gap",
        Item::Anomaly(_) => "anomaly",
        Item::Damage(_) => "damage",
        Item::Untraced(_) => "untraced",
        _ => "other",
    };
    Some(json!({ "notice": name, "time": key, "text": notice(item) }))
}

/// Whether a reader goes on by itself after an error, which is said then.
pub fn goes_on(error: &perfweave::Error) -> bool {
    let goes_on = error.kind() == ErrorKind::Degraded;
    if goes_on {
        say(format_args!("perfweave: {error}"));
    }
    goes_on
}

/// Whether it is a record whose order is not proven.
fn is_assumed(event: &Event<'_>) -> bool {
    event.record().is_some() && event.certainty() == Certainty::Assumed
}

#[cfg(test)]
mod tests {
    use super::*;
    use perfweave::{Clock, Fence, Hold, Key, Layout, Merge, sim};
    use std::cell::Cell;

    /// The account of a ring with so many records and so many bytes that are none.
    fn account(records: u64, is_damaged: bool) -> perfweave::Account {
        let kernel = sim::Kernel::with(&[0], 4096, Layout::RAW);
        let mut merge = Merge::new(kernel.rings(), Order::new().key(Key::Payload(0)).hold(Hold::None)).unwrap();
        (1..=records).for_each(|key: u64| assert!(kernel.emit(0, 0, &key.to_ne_bytes())));
        if is_damaged {
            kernel.emit(0, 0, b"");
            kernel.scribble(0, kernel.head(0) - 8, &[0xff; 8]);
        }
        merge.refresh(0);
        while merge.next().is_some() {}
        merge.status().total()
    }

    #[test]
    fn a_summary_says_no_more_of_the_order_than_is_known() {
        assert_eq!(order_of(&account(2, false), 0, true), ": all in proven order");
        assert_eq!(order_of(&account(2, false), 2, false), ": 0 late; the order is not proven (--hold)");
        assert_eq!(order_of(&account(2, false), 1, true), ": 0 late; the order of 1 is not proven");
        for is_proven in [false, true] {
            assert_eq!(order_of(&account(0, true), 0, is_proven), "");
            assert_eq!(order_of(&account(0, false), 0, is_proven), "");
        }
        let damaged = account(2, true);
        assert_eq!((damaged.yielded, damaged.damaged), (2, 1));
        assert_eq!(order_of(&damaged, 0, true), ": those that can be read are in proven order");
    }

    /// The summary of a session over one BPF ring buffer of CPU 3 that ends by a deadline or by a flush. A program may
    /// stay inside its reservation, and the events behind it in the same ring are never seen.
    fn ends(by_deadline: bool, stays_inside: bool, json: bool) -> String {
        let (buffer, ring) = sim::RingBuffer::new(4096);
        let mut rings = Rings::empty(Clock::Monotonic);
        rings.add(3, ring, Layout::RING_BUFFER);
        let hold = Hold::Fence(Fence::by(|| Ok(())));
        let order = Order::new().key(Key::Payload(0)).hold(hold).latency(Duration::from_millis(1));
        let reader = Reader::new(rings, order).unwrap();
        let inside = buffer.reserve(8).unwrap();
        assert!(buffer.output(&2u64.to_ne_bytes()));
        if !stays_inside {
            buffer.submit(inside, &1u64.to_ne_bytes());
        }
        let mut session = Session::of(reader, Arc::default());
        if by_deadline {
            session.reader.handle().set_deadline(Some(Instant::now())).unwrap();
        } else {
            session.stop.now(&session.reader.handle());
        }
        session.each(|_| Ok(())).unwrap();
        session.summary(json).unwrap()
    }

    /// A program that never commits keeps no session for ever, and the summary names its CPU.
    #[test]
    fn a_summary_says_what_the_end_waited_for_in_vain() {
        let why = "a program on CPU 3 has not committed what it reserved in a BPF ring buffer";
        for by_deadline in [false, true] {
            let said = ends(by_deadline, true, false);
            assert!(said.ends_with(&format!("; not complete: {why}")) && said.starts_with("0 events"), "{said}");
            let said = ends(by_deadline, true, true);
            assert!(said.contains(why) && said.contains("\"complete\":false"), "{said}");
            let said = ends(by_deadline, false, false);
            assert!(!said.contains("not complete") && said.starts_with("2 events"), "{said}");
        }
        assert_eq!(incomplete(None), "a program has not committed what it reserved in a BPF ring buffer");
        assert_eq!(incomplete(Some(ANY_CPU)), incomplete(None));
    }

    /// A command that ends at once has asked for the last flush before it is known how the scheduler is traced. Each CPU
    /// tells nevertheless where it stands.
    #[test]
    fn cpus_tell_where_they_stand_also_if_the_end_comes_first() {
        use crate::scheduler::{Way, words};
        let tracing = Tracing::begin(Way { no_bpf: false }, false, None);
        let refused = tracing.without().map_or(Ok(()), Err);
        let Some(()) = perfweave_support::kernel("load BPF programs at sched_switch", refused) else { return };
        let rings = tracing.sources(Rings::options()).bytes(1 << 20).open().unwrap();
        let mut session = Session::of(Reader::new(rings, Order::new()).unwrap(), Arc::default());
        session.stop.now(&session.reader.handle());
        session.traced(&tracing);
        let mut stand = 0;
        session
            .each(|tell| {
                if let Tell::Event(event) = tell
                    && let Some(words) = event.record().and_then(|record| words(&record))
                {
                    stand += u32::from(words.ends_with(" runs") && !words.contains(';'));
                }
                Ok(())
            })
            .unwrap();
        assert!(stand > 0);
    }

    /// Switches without a record are missing, although no record is lost.
    #[test]
    fn a_summary_does_not_say_that_nothing_is_missing_where_something_is() {
        for (switches, is_all) in [(0, true), (2, false)] {
            let reader = Reader::new(sim::Kernel::new(&[0]).rings(), Order::new().hold(Hold::None)).unwrap();
            let mut session = Session::of(reader, Arc::default());
            session.unrecorded(switches);
            let said = session.summary(false).unwrap();
            assert_eq!(said.contains("nothing is missing"), is_all, "{said}");
            assert_eq!(said.contains("the kernel left 2 switches out"), !is_all, "{said}");
            assert_eq!(session.summary(true).unwrap().contains("\"complete\":true"), is_all);
        }
    }

    /// A fence that fails is said, and reading goes on: the next one proves all.
    #[test]
    fn a_problem_with_which_the_reader_goes_on_ends_no_session() {
        let kernel = sim::Kernel::new(&[0]);
        let failures = std::sync::atomic::AtomicU32::new(3);
        let fence = Fence::by(move || {
            let left = failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if left.is_ok() { Err(io::Error::other("not now")) } else { Ok(()) }
        });
        let reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(fence))).unwrap();
        let mut session = Session::of(reader, Arc::default());
        (1..=5).for_each(|time| assert!(kernel.emit(0, time, b"")));
        session.stop.now(&session.reader.handle());
        let mut seen = 0;
        session
            .each(|tell| {
                seen += u64::from(matches!(tell, Tell::Event(_)));
                Ok(())
            })
            .unwrap();
        assert_eq!((seen, session.reader.status().fences_failed), (5, 3));
    }

    /// Programs that write faster than a command reads, on a simulated clock that each event moves: how many events are
    /// handled after the end, how many more the reader gives, and how many the rings hold.
    fn flood(takes: Duration, takes_all: bool) -> [u64; 3] {
        let kernel = sim::Kernel::with(&[0, 1], 4096, Layout::new(4 | 1024, true, 0));
        let reader = Reader::new(kernel.rings(), Order::new().hold(perfweave::Hold::None)).unwrap();
        let mut session = Session::of(reader, Arc::default());
        let mut time = 0;
        let mut write = || {
            let before = time;
            (0..2).for_each(|cpu| {
                while kernel.emit(cpu, time, &[0; 8]) {
                    time += 1;
                }
            });
            time - before
        };
        let hold = write();
        // When a quarter of what the rings hold is read for the third time.
        let (end, began) = (hold * 9 / 4, session.began);
        session.deadline = Some(began + takes * end as u32);
        session.takes_all = takes_all;
        let (now, mut handled, mut looks) = (Cell::new(began), 0, 0);
        let each = |tell: Tell<'_, '_>| {
            if let Tell::Event(event) = tell
                && event.record().is_some()
            {
                handled += 1;
                now.set(now.get() + takes);
            }
            write();
            Ok(())
        };
        let clock = || {
            looks += 1;
            assert!(looks < 10 * hold, "it never ends");
            now.get()
        };
        session.each_by(clock, each).unwrap();
        [handled - end, session.unhandled, hold]
    }

    /// After the end a command handles what the rings held then, and no more, however much comes. If even that takes
    /// too long, the rest is counted.
    #[test]
    fn a_deadline_is_kept_in_a_flood() {
        let looks = u64::from(EVENTS);
        for (milliseconds, takes_all) in [(1, false), (10, true)] {
            let [handled, unhandled, hold] = flood(Duration::from_millis(milliseconds), takes_all);
            assert!((50 + looks + 1..=looks + hold).contains(&handled), "{handled} {hold}");
            assert_eq!(unhandled, 0);
        }
        // Half a second after the end: 50 events.
        let [handled, unhandled, hold] = flood(Duration::from_millis(10), false);
        assert!((50..=50 + looks).contains(&handled), "{handled}");
        assert!(unhandled > 0 && unhandled <= hold, "{unhandled} {hold}");
    }
}
