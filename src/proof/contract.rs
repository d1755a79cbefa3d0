//! What a proof is: the trait, and how it says that it has ended.

use crate::error::Error;
use crate::rings::Rings;
use crate::rings::control::Control;
use crate::sys::thread::Thread;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A way to show that no smaller key is in flight, for [`Fence::Proof`](crate::Fence::Proof). One proof at a time, for
/// all keys seen before it begins.
///
/// A reader refreshes all rings, begins a proof, and yields what it had seen by then once the proof has ended well and
/// all rings were refreshed again. So a proof shows this: a record whose key was drawn before [`begin`](Self::begin),
/// or that lies in a ring behind such a record, is visible to loads that come after its end. Nothing checks that: a
/// proof that shows less makes readers call records proven that are not.
///
/// There are two kinds. One that ends by itself says so by [`Done::raise`]. It costs a wake-up at least, so a reader
/// begins one for many events. The other kind ends when it is asked, and says by [`nap`](Self::nap) when to ask. It
/// costs next to nothing: a reader begins one for a single event. No method is called for an event.
pub trait Proof: Send {
    /// What [`Reader::fence`](crate::Reader::fence) and messages call it.
    fn name(&self) -> &'static str;

    /// Opens what it needs. Called once, by the thread that makes the reader, before all others but
    /// [`name`](Self::name). `rings` are those of which it is to prove something, without those of CPUs that come
    /// later; `None` for [`Fence::open`](crate::Fence::open).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if it proves nothing for these rings or on this
    /// machine; any other for what cannot be opened. The reader is not made then.
    fn open(&mut self, rings: Option<&Rings>, done: &Done) -> Result<(), Error>;

    /// Begins a proof. None is under way.
    fn begin(&mut self);

    /// The result of the proof under way, if it has ended. Not asked again after that. A proof that failed shows
    /// nothing: its events stay held, and the reader begins another.
    ///
    /// # Errors
    /// Why it failed.
    fn poll(&mut self) -> Option<io::Result<()>>;

    /// How long the reader may sleep before it asks for the end: zero if that may come at the next call. `None`, always,
    /// for a proof that ends by itself.
    fn nap(&self) -> Option<Duration> {
        None
    }

    /// The shortest time between the starts of two proofs. For a proof that ends by itself also the reader's shortest
    /// tick, from 1 ms to 5.
    fn every(&self) -> Duration {
        Duration::ZERO
    }

    /// How often something else has proven in its place: [`Status::stand_ins`](crate::Status::stand_ins).
    fn stand_ins(&self) -> u64 {
        0
    }

    /// What the reader is to report of a proof that has ended well, once: for example an
    /// [`ErrorKind::Degraded`](crate::ErrorKind::Degraded) that names a program. The reader gives the first, the tenth,
    /// the hundredth and so on.
    fn warning(&mut self) -> Option<Error> {
        None
    }
}

/// Tells a reader that a [`Proof`] has ended by itself. A clone tells the same reader.
#[derive(Clone)]
pub struct Done {
    control: Arc<Control>,
    /// The threads that prove for the reader.
    threads: Arc<Mutex<Vec<Arc<Thread>>>>,
}

impl Done {
    pub(crate) fn new(control: &Arc<Control>) -> Self {
        Self { control: Arc::clone(control), threads: Arc::default() }
    }

    /// The proof under way has ended: the reader asks for its result ([`Proof::poll`]) before the next event, and is
    /// woken if it sleeps. Any thread may call it, at any time: too often only costs time.
    pub fn raise(&self) {
        self.control.raise_proof();
    }

    /// Whether it was raised since this was asked last.
    pub(crate) fn take(&self) -> bool {
        self.control.take_proof()
    }

    /// Waits until it is raised, for some milliseconds at most.
    pub(crate) fn sleep(&self, millis: u8) -> io::Result<()> {
        self.control.arm().map(|wake| wake.sleep(millis))
    }

    /// Makes a thread known as one of the reader's.
    pub(crate) fn know(&self, thread: Arc<Thread>) {
        self.threads().push(thread);
    }

    pub(crate) fn threads(&self) -> MutexGuard<'_, Vec<Arc<Thread>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells nobody: for tests of a proof (feature `test-util`).
#[cfg(any(test, feature = "test-util"))]
impl Default for Done {
    fn default() -> Self {
        Self::new(&Control::new())
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done").finish_non_exhaustive()
    }
}
