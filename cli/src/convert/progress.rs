//! How far it is, on a terminal's standard error, for what takes longer than two seconds.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// It is shown until it goes away.
pub struct Progress {
    done: Arc<Mutex<Done>>,
    /// Ends when the channel does.
    thread: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

#[derive(Default)]
struct Done {
    what: &'static str,
    count: u64,
}

/// What takes no longer says nothing.
const QUIET: Duration = Duration::from_secs(2);
const EACH: Duration = Duration::from_millis(250);

impl Progress {
    /// Of so many things, or of work without a count.
    pub fn new(what: &'static str) -> Self {
        let progress = Self::when(true);
        progress.stage(what);
        progress
    }

    /// Only if standard error is a terminal, and this holds.
    pub fn when(is_wanted: bool) -> Self {
        let (done, (sender, ended)) = (Arc::default(), mpsc::channel());
        let (shown, begin) = (Arc::clone(&done), Instant::now());
        let thread = (is_wanted && io::stderr().is_terminal()).then_some(()).and_then(|()| {
            let tick = move || match ended.recv_timeout(EACH) {
                Err(RecvTimeoutError::Timeout) => Some(begin.elapsed()),
                _ => None,
            };
            // Without a thread nothing is said, which is no reason to end.
            let thread = std::thread::Builder::new().spawn(move || show(&shown, tick, &mut io::stderr()));
            Some((sender, thread.ok()?))
        });
        Self { done, thread }
    }

    /// Something else begins.
    pub fn stage(&self, what: &'static str) {
        *lock(&self.done) = Done { what, count: 0 };
    }

    pub fn one(&self) {
        if self.thread.is_some() {
            lock(&self.done).count += 1;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

fn lock(done: &Mutex<Done>) -> MutexGuard<'_, Done> {
    done.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says at each tick how far it is. A tick is the time since the beginning; `None`: all is done.
fn show(done: &Mutex<Done>, mut tick: impl FnMut() -> Option<Duration>, out: &mut impl Write) {
    const CLEARED: &str = "\x1b[K";
    let mut told = false;
    while let Some(since) = tick() {
        if since >= QUIET {
            let (Done { what, count }, seconds) = (&*lock(done), since.as_secs());
            let count = if *count > 0 { format!("{count} ") } else { String::new() };
            // It ends where it begins: what else is said takes its place.
            let _ = write!(out, "{CLEARED}{count}{what}, {seconds} s\r");
            told = true;
        }
    }
    if told {
        let _ = write!(out, "{CLEARED}");
    }
}

#[cfg(test)]
mod tests {
    use super::{Done, Progress, show};
    use std::sync::Mutex;
    use std::time::Duration;

    /// What is shown if something has done this much, and then that, each time so many milliseconds after the beginning.
    fn shown(times: &[(u64, &'static str, u64)]) -> String {
        let (done, mut out, mut times) = (Mutex::new(Done::default()), Vec::new(), times.iter());
        let tick = || {
            let (since, what, count) = times.next().copied()?;
            *done.lock().unwrap() = Done { what, count };
            Some(Duration::from_millis(since))
        };
        show(&done, tick, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_takes_two_seconds_says_how_far_it_is() {
        assert_eq!(shown(&[(250, "reading", 0), (1_999, "events", 7)]), "");
        let long = shown(&[(1_999, "reading", 0), (2_000, "reading", 0), (2_250, "events", 7), (3_000, "writing", 0)]);
        assert_eq!(long, "\x1b[Kreading, 2 s\r\x1b[K7 events, 2 s\r\x1b[Kwriting, 3 s\r\x1b[K");
    }

    #[test]
    fn without_a_terminal_nothing_is_shown() {
        let progress = Progress::when(false);
        progress.stage("events");
        progress.one();
        assert!(progress.thread.is_none());
    }
}
