//! The flight recorder: what was before something happened, as a file each time.

use super::needs::Needs;
use super::socket::{Socket, answer};
use super::trigger::{Ear, Told, Trigger};
use super::{Args, DONE, skipped};
use crate::failure::{Failure, Outcome};
use crate::out::{Out, line, say};
use crate::sampled::Mode;
use crate::scheduler::Look;
use crate::verify::hex;
use nix::sys::signal::Signal;
use perfweave::{Clock, Event, Fence, Handle, Hold, Order, Pause, Reader, Recorder};
use perfweave_perf_data::Writer;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TrySendError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many triggers wait while a file is written. The threads that have more wait too.
const WAITING: usize = 1024;

/// How often CPUs that came online are looked for.
const TICK: Duration = Duration::from_millis(100);

pub fn run(args: &Args, last: Duration) -> Outcome {
    if args.whom.are_several() {
        return Err(Failure::hinting("--last keeps the whole machine, or one process", "leave -p away, or name one"));
    }
    let needs = Needs::of(args)?;
    let mut child = args.whom.target().start()?;
    let fence = match &args.common.hold {
        // No other is known to keep bytes from changing while they are copied.
        Hold::Fence(fence) if !matches!(fence, Fence::Proof(..)) => fence.clone(),
        Hold::Fence(_) => {
            eprintln!("a grace period of the kernel is waited for, whatever --hold says: it takes some 10 ms");
            Fence::Auto
        }
        _ => Fence::Auto,
    };
    let mut recorder = Recorder::open(args.options(needs.as_ref(), child.as_ref(), Mode::All)?, &fence)?;
    skipped(recorder.rings().skipped());
    let (told, hears) = mpsc::sync_channel(WAITING);
    let look = needs.as_ref().map_or_else(Look::default, |needs| needs.tracing.look());
    let ear = Ear { told, rings: recorder.handle(), look: look.clone(), covered: Arc::default() };
    let ends = Arc::new(AtomicBool::new(false));
    on_signals(&args.on_signal, ear.clone(), Arc::clone(&ends))?;
    let watches = args.on.iter().map(|on| on.watch(&args.common, ear.clone())).collect::<Result<Vec<Handle>, _>>()?;
    let _socket = args.on_socket.as_ref().map(|path| Socket::listen(path, ear.clone())).transpose()?;
    let (files, covered) = (earlier(&args.output), Arc::clone(&ear.covered));
    let mut flights = Flights { args, last, look, written: 0, failed: 0, covered, newest: String::new(), files, ends };
    if let Some(mut child) = child.take() {
        child.go()?;
        let ended = Arc::clone(&flights.ends);
        thread::Builder::new().name("wait".into()).spawn(move || {
            let _ = child.wait();
            ended.store(true, Ordering::Release);
            let _ = ear.told.try_send(Told::End);
        })?;
    }
    eprintln!("recording the last {last:?}; waiting for what is asked for; Ctrl-C ends it");
    let ended = flights.run(&mut recorder, &hears);
    watches.iter().for_each(Handle::close);
    ended?;
    eprintln!("{} files written", flights.written);
    match flights.failed {
        0 => Ok(DONE),
        failed => Err(Failure::new(format_args!("{failed} files could not be written"))),
    }
}

struct Flights<'a> {
    args: &'a Args,
    last: Duration,
    look: Look,
    written: u64,
    failed: u64,
    /// Until when events are in a file, or were to be in one.
    covered: Arc<AtomicU64>,
    /// The last file, or why it could not be written.
    newest: String,
    /// The files that there are, the oldest first: those of earlier recorders, then its own as they were written.
    files: VecDeque<PathBuf>,
    /// Set at a signal to end, or at the end of the command. What waits to be heard does not matter then.
    ends: Arc<AtomicBool>,
}

impl Flights<'_> {
    /// Until a signal, the end of the time, or the end of the command.
    fn run(&mut self, recorder: &mut Recorder, hears: &Receiver<Told>) -> Result<(), Failure> {
        let end = self.args.common.seconds.map(|time| Instant::now() + time);
        let mut tick = Instant::now();
        loop {
            // Also while triggers come without a pause.
            let now = Instant::now();
            if self.ends.load(Ordering::Acquire) || end.is_some_and(|end| now >= end) {
                return self.end(recorder, hears);
            }
            if now >= tick {
                recorder.follow_cpus()?;
                // Wherever a file begins, each CPU tells soon where it stands.
                self.look.now(false);
                tick = now + TICK;
            }
            let next = end.map_or(tick, |end| end.min(tick));
            match hears.recv_timeout(next.saturating_duration_since(now)) {
                // What happened before the rings were stopped last is in that file.
                Ok(Told::Trigger(trigger)) => self.trigger(recorder, &trigger)?,
                Ok(Told::End) | Err(RecvTimeoutError::Disconnected) => return self.end(recorder, hears),
                Ok(Told::Failed(failure)) => return Err(failure),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn trigger(&mut self, recorder: &mut Recorder, trigger: &Trigger) -> Result<(), Failure> {
        if trigger.time > self.covered.load(Ordering::Relaxed) {
            self.write(recorder, trigger)?;
        } else {
            // Who heard it may have stopped the rings when its file was already written.
            recorder.handle().resume()?;
        }
        if let Some(client) = &trigger.answer {
            answer(client, &self.newest);
        }
        Ok(())
    }

    /// What was asked for before the end has its file: one, for later triggers come no more. Others of that time are
    /// answered with it.
    fn end(&mut self, recorder: &mut Recorder, hears: &Receiver<Told>) -> Result<(), Failure> {
        let ended = Clock::Monotonic.now().unwrap_or(0);
        for told in hears.try_iter().take(WAITING) {
            match told {
                Told::Trigger(trigger) if trigger.time <= ended => self.trigger(recorder, &trigger)?,
                Told::Failed(failure) => return Err(failure),
                Told::Trigger(_) | Told::End => {}
            }
        }
        Ok(())
    }

    /// Writes a file. That it cannot be written is said, and the recorder goes on: there may be room again the next
    /// time.
    fn write(&mut self, recorder: &mut Recorder, trigger: &Trigger) -> Result<(), Failure> {
        let path = self.path();
        let partial = hidden(&path);
        let wrote = self.moments(recorder, trigger, &partial).and_then(|flight| {
            fs::rename(&partial, &path)?;
            Ok(flight)
        });
        match wrote {
            Ok(flight) => {
                self.written += 1;
                self.newest = path.display().to_string();
                flight.tell(&path, trigger, self.args.common.json)?;
                self.files.push_back(path);
                self.prune();
            }
            Err(failure) => {
                self.failed += 1;
                // It is no complete file, and takes room.
                let _ = fs::remove_file(&partial);
                self.newest = format!("error: {}", failure.message());
                failure.report();
                eprintln!("this file is deleted again; earlier ones stay, and recording goes on");
            }
        }
        Ok(())
    }

    /// Writes the last moments into a file.
    fn moments(&mut self, recorder: &mut Recorder, trigger: &Trigger, path: &Path) -> Result<Flight, Failure> {
        // Recording has gone on if the trigger was heard while the file before was written.
        let paused = recorder.handle().pause(Pause::Output);
        self.covered.store(Clock::Monotonic.now().unwrap_or(0), Ordering::Relaxed);
        let rings = match paused.and_then(|()| recorder.freeze()) {
            Ok(rings) => rings,
            Err(error) => {
                // What was heard meanwhile is not in the rings any more, either.
                self.covered.store(Clock::Monotonic.now().unwrap_or(0), Ordering::Relaxed);
                recorder.handle().resume()?;
                return Err(error.into());
            }
        };
        let mut writer = Writer::create(path, recorder.rings())?;
        let from = trigger.time.saturating_sub(u64::try_from(self.last.as_nanos()).unwrap_or(u64::MAX));
        let mut sides = Sides { trigger: trigger.time, before: 0, after: 0 };
        let mut reader = Reader::new(rings, Order::new())?;
        let mut time = 0;
        while let Some(event) = reader.next()? {
            // One without a time has the place of the one before it.
            time = event.key().unwrap_or(time);
            if time >= from {
                sides.count(&event.event());
                writer.write(&event.event())?;
            }
        }
        let written = writer.finish()?;
        // What is missing before the first record that was asked for does not matter.
        let begin = recorder.complete_from().filter(|begin| *begin > from);
        let complete = begin.map_or(self.last, |begin| Duration::from_nanos(trigger.time.saturating_sub(begin)));
        Ok(Flight {
            sides,
            records: written.records,
            lost: written.lost,
            asked: self.last,
            complete,
            hash: written.hash,
        })
    }

    /// The name of a file of now: names of later files are larger.
    fn path(&self) -> PathBuf {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut name = self.args.output.clone().into_os_string();
        name.push(format!(".{}-{:06}", now.as_secs(), now.subsec_micros()));
        name.into()
    }

    /// Deletes all files but the newest. The one that was written last is never among them, whatever the clock says.
    fn prune(&mut self) {
        while self.files.len() > self.args.keep as usize {
            let Some(file) = self.files.pop_front() else { return };
            match fs::symlink_metadata(&file).map(|metadata| is_own(&metadata)) {
                Ok(true) => {}
                // Somebody has deleted it, or has put something else there.
                _ => continue,
            }
            if let Err(error) = fs::remove_file(&file) {
                say(format_args!("perfweave: cannot delete {}: {error}", file.display()));
            }
        }
    }
}

/// A file of this user.
fn is_own(metadata: &fs::Metadata) -> bool {
    metadata.is_file() && metadata.uid() == nix::unistd::geteuid().as_raw()
}

/// This user's files of a name, from earlier recorders, in the order of their names: `NAME.SECONDS-MICROSECONDS`.
fn earlier(output: &Path) -> VecDeque<PathBuf> {
    let directory = output.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let Some(name) = output.file_name().and_then(|name| name.to_str()) else { return VecDeque::new() };
    let is_ours = |file: &str| {
        let time =
            file.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')).and_then(|time| time.split_once('-'));
        time.is_some_and(|(seconds, micros)| {
            seconds.len() == 10 && micros.len() == 6 && (seconds.to_owned() + micros).parse::<u64>().is_ok()
        })
    };
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = files.filter(|file| file.file_name().to_str().is_some_and(is_ours));
    let mut own: Vec<_> =
        files.filter(|file| file.metadata().is_ok_and(|file| is_own(&file))).map(|file| file.path()).collect();
    own.sort();
    own.into()
}

/// Where a file is written before it is complete.
fn hidden(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.partial"))
}

/// How many records lie on each side of what was waited for. Its own record is the last before.
#[derive(Debug)]
struct Sides {
    trigger: u64,
    before: u64,
    after: u64,
}

impl Sides {
    fn count(&mut self, event: &Event<'_>) {
        let Some(time) = event.record().and_then(|_| event.key()) else { return };
        *if time <= self.trigger { &mut self.before } else { &mut self.after } += 1;
    }

    fn words(&self, what: &str) -> String {
        format!("{} records before {what} and {} after it", self.before, self.after)
    }
}

/// What a file has.
struct Flight {
    sides: Sides,
    records: u64,
    lost: u64,
    asked: Duration,
    /// Before the trigger.
    complete: Duration,
    hash: [u8; 32],
}

impl Flight {
    fn tell(&self, path: &Path, trigger: &Trigger, json: bool) -> io::Result<()> {
        let Self { sides, records, lost, asked, complete, hash } = self;
        let (file, what) = (path.display().to_string(), &trigger.what);
        let mut out = Out::new();
        if json {
            let object = json!({ "file": file, "trigger": what, "time": trigger.time, "records": records,
                "before": sides.before, "after": sides.after, "lost": lost,
                "asked_ns": asked.as_nanos() as u64, "complete_ns": complete.as_nanos() as u64, "hash": hex(hash) });
            line(&mut out, format_args!("{object}"))?;
            return out.flush();
        }
        line(&mut out, format_args!("{file}: {}", sides.words(what)))?;
        line(&mut out, format_args!("{file}: hash {}", hex(hash)))?;
        if complete < asked {
            writeln!(
                out,
                "  complete for the last {complete:.1?} of {asked:.1?}: for more, give it a larger --buffer"
            )?;
        }
        if *lost > 0 {
            writeln!(out, "  {lost} records are missing: the rings were paused for a copy")?;
        }
        out.flush()
    }
}

fn on_signals(triggers: &[Signal], ear: Ear, ended: Arc<AtomicBool>) -> Result<(), Failure> {
    let ends = [SIGINT, SIGTERM, SIGHUP];
    let mut signals = Signals::new(ends.into_iter().chain(triggers.iter().map(|signal| *signal as i32)))?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut came = false;
        for signal in signals.forever() {
            let what = match Signal::try_from(signal) {
                _ if ends.contains(&signal) && came => std::process::exit(128 + signal),
                _ if ends.contains(&signal) => {
                    came = true;
                    ended.store(true, Ordering::Release);
                    Told::End
                }
                Ok(signal) => {
                    let trigger = Trigger::now(signal.as_str().into());
                    ear.stop(&trigger);
                    Told::Trigger(trigger)
                }
                Err(_) => continue,
            };
            // It never waits, so that a second Ctrl-C is heard.
            match ear.told.try_send(what) {
                Err(TrySendError::Full(Told::Trigger(_))) => {
                    eprintln!("perfweave: a signal is left out: too much waits to be written")
                }
                Err(TrySendError::Disconnected(_)) => break,
                _ => {}
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::trigger::{Ear, Trigger};
    use super::Sides;
    use crate::scheduler::{Tracing, Way, words};
    use perfweave::{Clock, Fence, Layout, Order, Reader, Recorder, Rings, sim};
    use perfweave_events::EventOptions;
    use std::fs;
    use std::sync::mpsc;
    use std::time::Duration;

    fn reader(recorder: &mut Recorder) -> Reader {
        Reader::new(recorder.freeze().unwrap(), Order::new()).unwrap()
    }

    /// What was waited for comes late: the ring has what was after it too.
    #[test]
    fn records_are_counted_on_their_side_of_the_trigger() {
        let kernel = sim::Kernel::backward(&[0], 4096, Layout::new(4 | 1024, true, 0));
        let mut recorder = kernel.recorder().unwrap();
        assert!([1, 5, 6, 7].into_iter().all(|time| kernel.emit(0, time, &[0; 8])));
        for (trigger, words) in [(0, "0 records before it and 4 after it"), (5, "2 records before it and 2 after it")] {
            let mut sides = Sides { trigger, before: 0, after: 0 };
            reader(&mut recorder)
                .batch(Duration::ZERO)
                .unwrap()
                .into_iter()
                .flatten()
                .for_each(|event| sides.count(&event));
            assert_eq!(sides.words("it"), words);
        }
    }

    /// Whatever else has to be done before a file is written, nothing is overwritten meanwhile.
    #[test]
    fn who_hears_a_trigger_stops_the_rings() {
        let options = Rings::options().event_name("page-faults").period(1).user_only().pid(std::process::id());
        let opened = Recorder::open(options.bytes(1 << 16), &Fence::Auto);
        let Some(mut recorder) = perfweave_support::kernel("a recorder of this process", opened) else { return };
        let (told, _hears) = mpsc::sync_channel(1);
        let ear = Ear { told, rings: recorder.handle(), look: Default::default(), covered: Default::default() };
        // Commands inherit the event.
        let run = || assert!(std::process::Command::new("true").status().unwrap().success());
        run();
        assert!(ear.tell(Trigger::now("a test".into())));
        let stopped = Clock::Monotonic.now().unwrap();
        run();
        let mut times = Vec::new();
        reader(&mut recorder)
            .batch(Duration::ZERO)
            .unwrap()
            .into_iter()
            .flatten()
            .for_each(|event| times.extend(event.key()));
        assert!(!times.is_empty() && times.iter().all(|time| *time <= stopped), "{stopped}: {times:?}");
    }

    /// Before they are stopped: nothing comes into them behind that.
    #[test]
    fn cpus_tell_where_they_stand_before_the_rings_are_stopped() {
        let tracing = Tracing::begin(Way { no_bpf: false }, true, None);
        let refused = tracing.without().map_or(Ok(()), Err);
        let Some(()) = perfweave_support::kernel("load BPF programs at sched_switch", refused) else { return };
        let options = tracing.sources(Rings::options()).bytes(1 << 20);
        let mut recorder = Recorder::open(options, &Fence::Auto).unwrap();
        let (told, _hears) = mpsc::sync_channel(1);
        let ear = Ear { told, rings: recorder.handle(), look: tracing.look(), covered: Default::default() };
        assert!(ear.tell(Trigger::now("a test".into())));
        let mut stand = 0;
        reader(&mut recorder).batch(Duration::ZERO).unwrap().into_iter().flatten().for_each(|event| {
            let words = event.record().and_then(|record| words(&record)).unwrap_or_default();
            stand += u32::from(words.ends_with(" runs") && !words.contains(';'));
        });
        assert!(stand > 0);
    }

    #[test]
    fn only_its_own_files_are_counted() {
        let directory = std::env::temp_dir().join(format!("perfweave-flights-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let names = ["a.1763868712-000001", "a.1763868712-00000x", "a.17-000001", "b.1763868712-000001", "a", "a.old"];
        names.iter().for_each(|name| fs::write(directory.join(name), "").unwrap());
        assert_eq!(super::earlier(&directory.join("a")), [directory.join(names[0])]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
