//! A proof as a reader uses it: begun, asked for its end, hurried, and waited for.

use crate::error::{Error, ErrorKind};
use crate::proof::contract::{Done, Proof};
use crate::proof::cpu_visits::CpuVisits;
use crate::rings::Rings;
use crate::sys::thread::Thread;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a caller waits at most for a proof. A grace period takes milliseconds, and some seconds on a machine that is
/// overloaded; the kernel reports one that takes 21 s as a stall.
const TO_WAIT: Duration = Duration::from_secs(60);

/// Milliseconds after which a caller that waits for a proof checks its end, even without a wake.
const MOMENT: u8 = 10;

/// A proof, and whether one is under way.
pub(crate) struct Prover {
    pub(crate) proof: Box<dyn Proof>,
    done: Done,
    /// Whether it ends when it is asked, and not by itself.
    pub(crate) is_asked: bool,
    is_under_way: bool,
    /// When the last one began.
    begun: Option<Instant>,
    /// Whether it is a grace period of the kernel. Visits to CPUs speed it up, and it holds for any rings.
    pub(crate) is_grace_period: bool,
    /// Started with the first proof for which many events wait, if the thread could be started.
    visits: Option<Option<CpuVisits>>,
}

impl Prover {
    /// `is_grace_period`: of the kernel, which waits for CPUs to switch.
    pub(crate) fn new(proof: Box<dyn Proof>, is_grace_period: bool, done: &Done) -> Self {
        Self {
            proof,
            done: done.clone(),
            is_asked: false,
            is_under_way: false,
            begun: None,
            is_grace_period,
            visits: None,
        }
    }

    /// Opens the proof, for rings if there are any. Before everything else.
    pub(crate) fn open(&mut self, rings: Option<&Rings>) -> Result<(), Error> {
        self.proof.open(rings, &self.done)?;
        self.is_asked = self.proof.nap().is_some();
        Ok(())
    }

    pub(crate) fn name(&self) -> &'static str {
        self.proof.name()
    }

    /// Whether a proof was begun and its end was not noticed yet.
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// How long the proof under way has taken so far; `None` if none is under way.
    pub(crate) fn under_way(&self) -> Option<Duration> {
        self.begun.filter(|_| self.is_under_way).map(|begun| begun.elapsed())
    }

    /// Begins a proof.
    pub(crate) fn begin(&mut self) {
        (self.is_under_way, self.begun) = (true, Some(Instant::now()));
        self.proof.begin();
    }

    /// The result of the proof under way, if it has ended. Returned once.
    pub(crate) fn poll(&mut self) -> Option<io::Result<()>> {
        // First: an end that comes after this raises it again.
        self.done.take();
        let ended = if self.is_under_way { self.proof.poll()? } else { return None };
        self.is_under_way = false;
        if let Some(Some(visits)) = &self.visits {
            visits.end();
        }
        Some(ended)
    }

    /// How long until a proof may begin. Zero if it may begin now, `None` while one is under way.
    pub(crate) fn time_to_begin(&self) -> Option<Duration> {
        let left = |begun: Instant| self.proof.every().saturating_sub(begun.elapsed());
        (!self.is_under_way).then(|| self.begun.map_or(Duration::ZERO, left))
    }

    /// How long the reader may sleep before it asks for the end of the proof under way. `None` if none is, or if its end
    /// wakes the reader.
    pub(crate) fn nap(&self) -> Option<Duration> {
        self.proof.nap().filter(|_| self.is_under_way)
    }

    /// Whether a proof that is asked for now ends in that call, as far as is known.
    pub(crate) fn ends_at_once(&self) -> bool {
        self.is_asked && self.nap().unwrap_or_default().is_zero()
    }

    /// The reader's shortest tick, unless it is longer than `most`.
    pub(crate) fn tick(&self, most: Duration) -> Duration {
        // A grace period takes some scheduler ticks, so its start says nothing of how often one can end.
        if self.is_asked || self.is_grace_period { most } else { self.proof.every().min(most) }
    }

    /// Speeds up the proof under way, if that is possible: makes CPUs switch, `most` times in all.
    pub(crate) fn visit_cpus(&mut self, cpus: impl Iterator<Item = u32>, most: usize) {
        if most == 0 || !self.is_grace_period {
            return;
        }
        // If the thread could not be started once, it is not tried again.
        if let Some(visits) = self.visits.get_or_insert_with(|| CpuVisits::start().ok()) {
            visits.begin(cpus, most);
        }
    }

    /// Calls a function for each thread that waits for proofs and speeds them up, once it exists.
    pub(crate) fn each_thread(&self, know: impl FnMut(&Arc<Thread>)) {
        let visits = self.visits.as_ref().and_then(Option::as_ref);
        self.done.threads().iter().chain(visits.and_then(CpuVisits::known)).for_each(know);
    }

    /// Waits for a proof that begins now. First waits for the end of one under way.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        self.wait_within(TO_WAIT)
    }

    /// The same, at most so long.
    pub(crate) fn wait_within(&mut self, most: Duration) -> Result<(), Error> {
        let failed = |errno| Error::fence_failed(ErrorKind::of(&errno), errno, 1);
        let began = Instant::now();
        let late = || {
            let message = || io::Error::new(io::ErrorKind::TimedOut, format!("it has not ended within {most:?}"));
            if began.elapsed() > most { Err(failed(message())) } else { Ok(()) }
        };
        // It does not matter whether that one fails.
        while self.is_under_way && self.poll().is_none() {
            late()?;
            self.pass_time().map_err(failed)?;
        }
        // The one before proves only what was seen before it began (PROOF, `fence-two`).
        self.begin();
        loop {
            if let Some(ended) = self.poll() {
                return ended.map_err(failed);
            }
            late()?;
            self.pass_time().map_err(failed)?;
        }
    }

    /// Lets some time pass in which the proof under way may end.
    fn pass_time(&self) -> io::Result<()> {
        match self.nap() {
            Some(nap) => std::thread::sleep(nap.min(Duration::from_millis(MOMENT.into()))),
            None => self.done.sleep(MOMENT)?,
        }
        Ok(())
    }

    /// Says that the proof under way began at another time, for tests.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn set_begun(&mut self, at: Instant) {
        self.begun = Some(at);
    }
}

impl fmt::Debug for Prover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prover").field("name", &self.name()).field("is_under_way", &self.is_under_way).finish()
    }
}
