//! Proofs that no smaller key is in flight: by the kernel's grace periods, the writers' epochs, or reservations.

use crate::error::{Error, ErrorKind};
use crate::order::barrier::Reserved;
use crate::order::fence::Fence;
use crate::order::fences::Fences;
use crate::order::watch::Watch;
use crate::sys::thread::Thread;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
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

    /// The thread that waits for grace periods, if there is one.
    fn fences(&self) -> Option<&Fences> {
        None
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
        if self.fences().is_some_and(|fences| !fences.is_here()) {
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
    begun: Option<Instant>,
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

/// The way of a reader's fence. An enum, because each event asks it whether the proof has ended.
#[derive(Debug)]
pub(crate) enum Proof {
    /// Grace periods, waited for by a thread.
    Fences(Fences),
    /// Writers' epochs, read by the consumer.
    Epochs(Watch),
    /// Reservations in BPF ring buffers: once CPUs have ordered their stores.
    Reserved(Reserved),
}

impl Proof {
    /// Prepares the proof that a fence asks for.
    pub(crate) fn start(fence: &Fence) -> Result<Self, Error> {
        match fence {
            Fence::Epochs(epochs) => Watch::start(epochs.clone()).map(Self::Epochs),
            Fence::Reserved(barrier) => Reserved::start(*barrier).map(Self::Reserved),
            fence => Fences::start(fence).map(Self::Fences),
        }
    }

    /// Which way is in use.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Fences(fences) => fences.name,
            Self::Epochs(_) => "epochs",
            Self::Reserved(_) => "reserved",
        }
    }

    /// How long the proof under way has taken so far; `None` if none is under way.
    pub(crate) fn under_way(&self) -> Option<Duration> {
        self.is_under_way().then(|| self.course().past())
    }

    /// Whether the proof under way has ended by itself. Those of epochs and reservations end when the reader asks.
    #[inline(always)]
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Fences(fences) if fences.has_ended())
    }

    /// Whether a proof can end in the call that asks for its end, and costs no wait.
    #[inline]
    pub(crate) fn ends_at_once(&self) -> bool {
        !matches!(self, Self::Fences(_))
    }

    /// Becomes readable when a proof ends, if the proof has a descriptor.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        if let Self::Fences(fences) = self { Some(fences.wake()) } else { None }
    }

    /// Speeds up the proof under way, if it is a grace period: makes these CPUs switch, `most` times in all.
    pub(crate) fn visit_cpus(&mut self, cpus: impl Iterator<Item = u32>, most: usize) {
        if let Self::Fences(fences) = self {
            fences.visit_cpus(cpus, most);
        }
    }

    /// The threads that wait for grace periods and speed them up, once they exist.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &Arc<Thread>> {
        self.fences().map(Fences::threads).into_iter().flatten()
    }

    /// The writers' epochs, if they are used.
    pub(crate) fn epochs(&mut self) -> Option<&mut Watch> {
        if let Self::Epochs(watch) = self { Some(watch) } else { None }
    }

    /// How often a grace period of the kernel replaced the proof for programs that did not leave.
    pub(crate) fn stand_ins(&self) -> u64 {
        if let Self::Epochs(watch) = self { watch.stood_in } else { 0 }
    }

    /// Whether the proof under way waits for programs, and the reader has read their words repeatedly.
    pub(crate) fn waits_for_programs(&self) -> bool {
        matches!(self, Self::Epochs(watch) if watch.spun && !watch.is_over())
    }
}

impl Deref for Proof {
    type Target = dyn Proves;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Fences(fences) => fences,
            Self::Epochs(watch) => watch,
            Self::Reserved(reserved) => reserved,
        }
    }
}

impl DerefMut for Proof {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Fences(fences) => fences,
            Self::Epochs(watch) => watch,
            Self::Reserved(reserved) => reserved,
        }
    }
}

/// A way to wait for grace periods that works on this machine. See [`Fence::open`].
pub struct GracePeriods(pub(super) Proof);

impl GracePeriods {
    /// The way in use: "membarrier", "map", "expedited", "custom" or "epochs".
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Begins a grace period and does not wait, for a test that drives a [`Merge`](crate::Merge): call it right after
    /// [`Merge::begin_fence`](crate::Merge::begin_fence). Returns false if one is already under way.
    #[cfg(any(test, feature = "test-util"))]
    pub fn begin(&mut self) -> bool {
        let may = !self.0.is_under_way();
        if may {
            self.0.begin();
        }
        may
    }

    /// The result of the grace period under way, if it has ended, without waiting. Returned once. Then call
    /// [`Merge::end_fence`](crate::Merge::end_fence), or [`Merge::fail_fence`](crate::Merge::fail_fence) if it failed.
    ///
    /// # Errors
    /// As [`GracePeriods::wait`].
    #[cfg(any(test, feature = "test-util"))]
    pub fn poll(&mut self) -> Option<io::Result<()>> {
        if let Some(ended) = self.0.ended() {
            return Some(ended);
        }
        // A grace period of the kernel replaces the proof for a program that stays inside.
        self.0.epochs()?.lose_patience().err().map(Err)
    }

    /// Waits for a grace period that begins now, for a minute at most. Blocks, and cannot be interrupted. Any thread may
    /// call it.
    ///
    /// [`Fence::Auto`] changes from `membarrier` to the map, for good, if the kernel begins to refuse `membarrier`.
    ///
    /// # Errors
    /// The error of the kernel or of the function, that the function panicked, or that a minute is over. In a forked child, that the thread is
    /// the parent's. Nothing is proven in these cases.
    pub fn wait(&mut self) -> io::Result<()> {
        self.0.wait().map_err(Error::into_source)
    }
}

impl fmt::Debug for GracePeriods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GracePeriods").field(&self.name()).finish()
    }
}
