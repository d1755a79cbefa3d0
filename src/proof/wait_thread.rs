//! A thread that waits for grace periods, one at a time, on request.

#[cfg(all(test, loom))]
mod model;

use crate::error::{Error, ErrorKind};
use crate::instrument::{Condvar, Mutex, MutexGuard};
use crate::proof::contract::{Done, Proof};
use crate::rings::Rings;
use crate::sys::fork::Owner;
use crate::sys::thread::{self, Thread};
use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A proof by a call that blocks until everything is shown, on a thread of its own: mostly a grace period of the kernel.
/// See [`Fence::custom`](crate::Fence::custom).
pub(crate) struct WaitThread {
    /// What opens the way to wait, until it is open.
    open: Option<Open>,
    name: &'static str,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// A forked child does not have the thread.
    owner: Owner,
    /// Grace periods begun. The last of them is under way, or its end was noticed.
    begun: u64,
    /// The shortest time between two starts.
    every: Duration,
    /// The time to wait after the start of the last grace period, if it failed; zero if it did not.
    retry: Duration,
}

/// Opens a way to wait, on the thread that waits, and gives its name.
type Open = Box<dyn FnOnce() -> Result<(&'static str, Way), Error> + Send + Sync>;

/// Waits once, and gives the name of the way that it took.
pub(crate) type Way = Box<dyn FnMut() -> io::Result<&'static str>>;

#[derive(Default)]
struct Shared {
    orders: Mutex<Orders>,
    ordered: Condvar,
}

/// What the consumer asks for, and what the thread answers.
#[derive(Default)]
struct Orders {
    begun: u64,
    /// Grace periods ended.
    ended: u64,
    stop: bool,
    /// The thread has ended, but for its return.
    gone: bool,
    /// Which way the last grace period took, or why it failed.
    outcome: Option<io::Result<&'static str>>,
}

/// The shortest and the longest time from the start of a failed grace period to the next.
const RETRY: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(1);

/// How long an opening waits at most for the thread to have tried its ways: system calls, and a few grace periods.
const TO_OPEN: Duration = Duration::from_secs(60);

/// How long dropping waits at most for the grace period under way. Then the thread ends by itself, after it.
const TO_END: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(10) };

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitThread {
    /// A thread that is started when a reader opens it. `open` is called there, and gives the function that waits.
    pub(crate) fn new<W: FnMut() -> io::Result<()> + 'static>(
        name: &'static str,
        every: Duration,
        open: impl FnOnce() -> Result<W, Error> + Send + Sync + 'static,
    ) -> Self {
        Self::named(name, every, move || {
            let mut wait = open()?;
            Ok((name, Box::new(move || wait().map(|()| name)) as Way))
        })
    }

    /// The same with a way whose name changes.
    pub(crate) fn named(
        name: &'static str,
        every: Duration,
        open: impl FnOnce() -> Result<(&'static str, Way), Error> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Some(Box::new(open)),
            name,
            shared: Arc::default(),
            thread: None,
            owner: Owner::new(),
            begun: 0,
            every,
            retry: Duration::ZERO,
        }
    }

    fn open_within(&mut self, most: Duration, done: &Done) -> Result<(), Error> {
        let Some(open) = self.open.take() else {
            return Err(Error::new(ErrorKind::InvalidInput, "another reader has used this proof: make one for each"));
        };
        let (sender, answer) = mpsc::sync_channel(1);
        let body = {
            let (shared, done) = (Arc::clone(&self.shared), done.clone());
            move || {
                let _gone = Gone(Arc::clone(&shared));
                // Each way is tried on this thread and stays on it: a mount namespace belongs to the thread that enters
                // it.
                match open() {
                    Ok((name, mut way)) => {
                        let _ = sender.send(Ok((name, Thread::current())));
                        serve(&shared, &done, &mut way);
                    }
                    Err(error) => drop(sender.send(Err(error))),
                }
            }
        };
        self.owner = Owner::new();
        let thread = thread::spawn_without_signals("perfweave-fence", body).map_err(Error::cannot("start a thread"))?;
        match answer.recv_timeout(most) {
            Ok(Ok((name, known))) => {
                done.know(known);
                (self.name, self.thread) = (name, Some(thread));
                Ok(())
            }
            Ok(Err(error)) => {
                // The thread is ending, and drops what it holds.
                let _ = thread.join();
                Err(error)
            }
            // Neither answer came, so the thread panicked while it opened a way.
            Err(RecvTimeoutError::Disconnected) => Err(Error::no_fence("its thread died", "")),
            Err(RecvTimeoutError::Timeout) => {
                // Its answer is dropped when it comes, and the thread ends.
                self.shared.orders().stop = true;
                let message = format!("no fence: the kernel has not finished its first grace periods within {most:?}");
                Err(Error::new(ErrorKind::Limit, message)
                    .hinting("try again, and see the kernel's log for stalls of RCU"))
            }
        }
    }
}

impl Proof for WaitThread {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&mut self, _: Option<&Rings>, done: &Done) -> Result<(), Error> {
        self.open_within(TO_OPEN, done)
    }

    fn begin(&mut self) {
        self.begun += 1;
        if !self.owner.is_here() {
            // No thread would take the request, and the parent's thread may have held the lock at the fork.
            return;
        }
        // The mutex orders the loads of the heads, which came before, and the grace period, which comes after.
        self.shared.orders().begun = self.begun;
        self.shared.ordered.notify_one();
    }

    fn poll(&mut self) -> Option<io::Result<()>> {
        if !self.owner.is_here() {
            // It does not end in a forked child: the thread is the parent's.
            return Some(Err(io::Error::other(Error::forked())));
        }
        // The mutex also orders what the grace period made visible to the thread, and the next refresh.
        let outcome = {
            let mut orders = self.shared.orders();
            if orders.ended == self.begun { orders.outcome.take()? } else { return None }
        };
        // A refusal may last. So tries get rarer with each failure in a row; the first is clamped up from zero.
        self.retry = if outcome.is_ok() { Duration::ZERO } else { (self.retry * 2).clamp(RETRY.start, RETRY.end) };
        Some(outcome.map(|name| self.name = name))
    }

    fn every(&self) -> Duration {
        self.every.max(self.retry)
    }
}

impl Drop for WaitThread {
    /// Waits for the grace period under way, if there is one, but not for ever: the kernel cannot cancel a grace period,
    /// and a function of the program need not return.
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // There is no thread to wait for; and the parent's thread may have held the lock at the fork.
            return std::mem::forget(self.thread.take());
        }
        // Set under the lock: either the thread sees it before it sleeps, or it sleeps already and is notified.
        let mut orders = self.shared.orders();
        orders.stop = true;
        self.shared.ordered.notify_one();
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + TO_END;
        while !orders.gone {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.ordered.wait_timeout(orders, left);
            (orders, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(orders);
        // A thread that panicked has already reported it.
        let _ = thread.join();
    }
}

impl fmt::Debug for WaitThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WaitThread").field(&self.name).finish()
    }
}

/// Says that the thread has ended, however it did.
struct Gone(Arc<Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.orders().gone = true;
        self.0.ordered.notify_one();
    }
}

/// The thread: waits for a request, then for a grace period, then reports its end.
fn serve(shared: &Shared, done: &Done, way: &mut Way) {
    loop {
        {
            let mut orders = shared.orders();
            // One is begun only after the end of the last was noticed, so `begun` is at most one ahead.
            while orders.begun == orders.ended && !orders.stop {
                orders = shared.ordered.wait(orders).unwrap_or_else(PoisonError::into_inner);
            }
            // Also if a grace period was asked for and not begun: nobody is left to ask for its end.
            if orders.stop {
                return;
            }
        }
        // A custom function that panics must not leave the reader waiting for ever.
        let waited = catch_unwind(AssertUnwindSafe(&mut *way));
        let waited = waited.unwrap_or_else(|_| Err(io::Error::other("the fence's function panicked")));
        let mut orders = shared.orders();
        (orders.ended, orders.outcome) = (orders.ended + 1, Some(waited));
        drop(orders);
        // After the outcome, which the reader takes once it sees this. If the wake fails, its own tick finds the end.
        done.raise();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::proof::prover::Prover;
    use crate::rings::control::Control;
    use perfweave_support::threads::until;
    use std::sync::Mutex;

    fn done() -> Done {
        Done::new(&Control::new())
    }

    /// Waits by a function.
    fn by(wait: impl FnMut() -> io::Result<()> + Send + Sync + 'static) -> WaitThread {
        let mut waits = WaitThread::new("custom", Duration::ZERO, move || Ok(wait));
        waits.open(None, &done()).unwrap();
        waits
    }

    /// Dropping a fence whose grace period does not end returns. Its thread ends once that does.
    #[test]
    fn a_grace_period_that_does_not_end_holds_up_nobody_for_ever() {
        let (sender, gate) = mpsc::channel::<()>();
        let (waits, is_waiting) = mpsc::channel();
        let gate = Mutex::new((gate, waits));
        let mut fences = by(move || {
            let (gate, waits) = &*gate.lock().unwrap();
            waits.send(()).unwrap();
            gate.recv().map_err(io::Error::other)
        });
        fences.begin();
        is_waiting.recv_timeout(Duration::from_secs(120)).expect("the grace period begins");
        let shared = Arc::downgrade(&fences.shared);
        let (dropped, is_dropped) = mpsc::channel();
        std::thread::spawn(move || {
            drop(fences);
            dropped.send(()).unwrap();
        });
        is_dropped.recv_timeout(Duration::from_secs(120)).expect("it is dropped");
        assert!(shared.strong_count() > 0, "the thread waits");
        drop(sender);
        until("the thread ends", || shared.strong_count() == 0);
    }

    /// Who waits for it gets an error, and can wait again.
    #[test]
    fn a_wait_for_a_grace_period_that_does_not_end_is_an_error() {
        let (sender, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let done = done();
        let wait = move || gate.lock().unwrap().recv().map_err(io::Error::other);
        let proof = WaitThread::new("custom", Duration::ZERO, move || Ok(wait));
        let mut prover = Prover::new(Box::new(proof), false, &done);
        prover.open(None).unwrap();
        for _ in 0..2 {
            let error = prover.wait_within(Duration::from_millis(20)).unwrap_err();
            assert!(error.to_string().ends_with("it has not ended within 20ms"), "{error}");
        }
        // The one that is under way, and the next.
        (0..2).for_each(|_| sender.send(()).unwrap());
        prover.wait().unwrap();
    }

    #[test]
    fn a_way_that_does_not_open_is_an_error() {
        let (sender, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let mut waits = WaitThread::new("custom", Duration::ZERO, move || {
            let _ = gate.lock().unwrap().recv();
            Ok(|| Ok(()))
        });
        let error = waits.open_within(Duration::from_millis(20), &done()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.to_string().contains("within 20ms"), "{error}");
        drop(sender);
    }

    /// It has one thread, which one reader has.
    #[test]
    fn a_proof_is_opened_once() {
        let mut waits = by(|| Ok(()));
        assert_eq!(waits.open(None, &done()).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
