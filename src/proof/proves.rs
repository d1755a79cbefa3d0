//! What a proof is for a reader: begun, asked for its end, and waited for.

use crate::error::{Error, ErrorKind};
use std::io;
use std::time::{Duration, Instant};

/// How long a caller waits at most for a proof. A grace period takes milliseconds, and some seconds on a machine that is
/// overloaded; the kernel reports one that takes 21 s as a stall.
const TO_WAIT: Duration = Duration::from_secs(60);

/// A way to prove. One proof at a time, for all keys seen before it begins.
pub(crate) trait Proves {
    fn course(&self) -> &Course;

    /// The shortest time between the starts of two proofs.
    fn every(&self) -> Duration;

    /// Begins a proof.
    fn begin(&mut self);

    /// The result of the proof under way, if it has ended. Returned once.
    fn ended(&mut self) -> Option<io::Result<()>>;

    /// How long the reader may sleep before it asks for the end of the proof under way. `None` if the end wakes it.
    fn nap(&self) -> Option<Duration> {
        None
    }

    /// Lets some time pass in which the proof under way may end. Not for readers, which have other things to do.
    fn pass_time(&mut self) -> io::Result<()>;

    /// Whether a thread that it needs is one of this process, and not left behind in the parent of a forked child.
    fn is_here(&self) -> bool {
        true
    }

    /// Whether a proof was begun and its end was not noticed yet.
    fn is_under_way(&self) -> bool {
        self.course().is_under_way
    }

    /// How long until a proof may begin. Zero if it may begin now, `None` while one is under way.
    fn pause(&self) -> Option<Duration> {
        let left = |begun: Instant| self.every().saturating_sub(begun.elapsed());
        (!self.is_under_way()).then(|| self.course().begun.map_or(Duration::ZERO, left))
    }

    /// Waits for a proof that begins now. First waits for the end of one under way.
    fn wait(&mut self) -> Result<(), Error> {
        self.wait_within(TO_WAIT)
    }

    /// The same, at most so long.
    fn wait_within(&mut self, most: Duration) -> Result<(), Error> {
        let failed = |errno| Error::fence_failed(ErrorKind::of(&errno), errno, 1);
        // A forked child learns that it is one, and not that a fence has failed.
        if !self.is_here() {
            return Err(Error::forked());
        }
        let began = Instant::now();
        let late = || {
            let message = || io::Error::new(io::ErrorKind::TimedOut, format!("it has not ended within {most:?}"));
            if began.elapsed() > most { Err(failed(message())) } else { Ok(()) }
        };
        // It does not matter whether that one fails.
        while self.is_under_way() && self.ended().is_none() {
            late()?;
            let _ = self.pass_time();
        }
        // The one before proves only what was seen before it began (PROOF, `fence-two`).
        self.begin();
        loop {
            if let Some(ended) = self.ended() {
                return ended.map_err(failed);
            }
            late()?;
            self.pass_time().map_err(failed)?;
        }
    }
}

/// The times of proofs.
#[derive(Debug, Default)]
pub(crate) struct Course {
    pub(crate) is_under_way: bool,
    /// When the last one began.
    pub(super) begun: Option<Instant>,
}

impl Course {
    pub(crate) fn begin(&mut self) {
        (self.is_under_way, self.begun) = (true, Some(Instant::now()));
    }

    /// How long ago the last one began.
    pub(crate) fn past(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    pub(crate) fn end(&mut self) {
        self.is_under_way = false;
    }
}
