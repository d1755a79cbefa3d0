//! A thread that waits for grace periods, one at a time, on request: what a
//! [`Fence`](crate::Fence) of the kernel is, or a custom one.

#[cfg(all(test, loom))]
mod model;

use crate::error::{Error, ErrorKind};
use crate::instrument::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use crate::proof::cpu_visits::CpuVisits;
use crate::proof::proves::{Course, Proves};
use crate::sys::fork::Owner;
use crate::sys::grace::Grace;
use crate::sys::status::Status;
use crate::sys::thread::Thread;
use crate::sys::wake::Wake;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The thread that waits for grace periods.
#[derive(Debug)]
pub(crate) struct Fences {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The same thread, to know it by.
    known: Arc<Thread>,
    /// A forked child does not have the thread.
    owner: Owner,
    pub(super) name: &'static str,
    /// Grace periods begun. The last of them is under way, or its end was noticed.
    begun: u64,
    pub(super) course: Course,
    /// The shortest time between two starts.
    every: Duration,
    /// The time to wait after the start of the last grace period, if it failed; zero if it did not.
    retry: Duration,
    /// Started with the first grace period for which many events wait, if the thread could be started.
    visits: Option<Option<CpuVisits>>,
}

#[derive(Debug)]
struct Shared {
    orders: Mutex<Orders>,
    ordered: Condvar,
    /// Grace periods ended. Stored by the thread alone.
    ended: AtomicU64,
    /// Woken when a grace period ends.
    wake: Wake,
}

/// What the consumer asks for, and what the thread answers.
#[derive(Debug, Default)]
struct Orders {
    begun: u64,
    stop: bool,
    /// The thread has ended, but for its return.
    gone: bool,
    /// Which way the last grace period took, and why it failed, if it failed.
    name: &'static str,
    failure: Option<io::Error>,
}

/// The shortest and the longest time from the start of a failed grace period to the next.
const RETRY: Range<Duration> = Duration::from_millis(1)..Duration::from_secs(1);

/// How long an opening waits at most for the thread to have tried its ways: system calls, and a few grace periods.
const TO_OPEN: Duration = Duration::from_secs(60);

/// How long dropping waits at most for the grace period under way. Then the thread ends by itself, after it.
const TO_END: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(10) };

/// Milliseconds after which a caller that waits for a grace period checks its end, even without a wake.
const MOMENT: u8 = 10;

/// The shortest time between the starts of two grace periods that are not expedited. With `/sys/kernel/rcu_expedited`
/// set, they are as fast as expedited ones and also interrupt every CPU.
const SHORTEST: Duration = Duration::from_millis(1);

impl Shared {
    fn new() -> io::Result<Self> {
        Ok(Self { orders: Mutex::default(), ordered: Condvar::new(), ended: AtomicU64::new(0), wake: Wake::new()? })
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What helps if no grace period is possible: for an expedited one, or for any other.
fn hint(is_expedited: bool) -> String {
    let other = if is_expedited {
        "the default fence takes no privilege"
    } else {
        "an expedited one takes CAP_SYS_ADMIN alone"
    };
    let filtered = if Status::read().is_filtered {
        ". This process has a seccomp filter, as in a container, which may refuse the calls"
    } else {
        ""
    };
    format!("{other}; a rule that proves nothing needs no fence{filtered}")
}

impl Fences {
    /// Starts the thread with the first of the fence's ways that works.
    pub(crate) fn start(wanted: Wanted) -> Result<Self, Error> {
        Self::start_within(TO_OPEN, wanted, Way::open)
    }

    fn start_within(
        most: Duration,
        wanted: Wanted,
        open: impl FnOnce(Wanted) -> Result<Way, String> + Send + 'static,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared::new().map_err(Error::cannot("make an eventfd"))?);
        let (sender, answer) = mpsc::sync_channel(1);
        let (every, is_expedited) = match wanted {
            Wanted::Expedited { every } => (every, true),
            _ => (SHORTEST, false),
        };
        let body = {
            let shared = Arc::clone(&shared);
            move || {
                let _gone = Gone(Arc::clone(&shared));
                // Each way is tried on this thread and stays on it: a mount namespace belongs to the thread that enters
                // it.
                match open(wanted) {
                    Ok(mut way) => {
                        let _ = sender.send(Ok((way.name(), Thread::current())));
                        serve(&shared, &mut way);
                    }
                    Err(tried) => drop(sender.send(Err(tried))),
                }
            }
        };
        let thread = spawn_without_signals("perfweave-fence", body).map_err(Error::cannot("start a thread"))?;
        match answer.recv_timeout(most) {
            Ok(Ok((name, known))) => Ok(Self::over(shared, Some(thread), name, known, every)),
            Ok(Err(tried)) => {
                // The thread is ending, and drops what it holds.
                let _ = thread.join();
                Err(Error::no_fence(&tried, hint(is_expedited)))
            }
            // Neither answer came, so the thread panicked while it opened a way.
            Err(RecvTimeoutError::Disconnected) => Err(Error::no_fence("its thread died", "")),
            Err(RecvTimeoutError::Timeout) => {
                // Its answer is dropped when it comes, and the thread ends.
                shared.orders().stop = true;
                let message = format!("no fence: the kernel has not finished its first grace periods within {most:?}");
                Err(Error::new(ErrorKind::Limit, message)
                    .hinting("try again, and see the kernel's log for stalls of RCU"))
            }
        }
    }

    /// The consumer's half.
    fn over(
        shared: Arc<Shared>,
        thread: Option<JoinHandle<()>>,
        name: &'static str,
        known: Arc<Thread>,
        every: Duration,
    ) -> Self {
        let owner = Owner::new();
        let (begun, course, retry) = Default::default();
        Self { shared, thread, known, owner, name, begun, course, every, retry, visits: None }
    }

    /// Its threads.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &Arc<Thread>> {
        let visits = self.visits.as_ref().and_then(Option::as_ref);
        std::iter::once(&self.known).chain(visits.and_then(CpuVisits::known))
    }

    /// Speeds up the grace period under way, if it is the kernel's and not expedited: makes CPUs switch, `most` times
    /// in all.
    pub(crate) fn visit_cpus(&mut self, cpus: impl Iterator<Item = u32>, most: usize) {
        // An expedited grace period interrupts the CPUs itself, and what a custom one waits for is not known.
        if most == 0 || !matches!(self.name, "membarrier" | "map") || !self.is_here() {
            return;
        }
        // If it could not be started once, it is not tried again.
        let start = || {
            CpuVisits::start(|body| spawn_without_signals("perfweave-visit", body).map(|it| it.thread().clone())).ok()
        };
        if let Some(visits) = self.visits.get_or_insert_with(start) {
            visits.begin(cpus, most);
        }
    }

    /// Whether the grace period under way has ended.
    #[inline(always)]
    pub(crate) fn has_ended(&self) -> bool {
        // Acquire pairs with the Release store in `serve`: memory that the grace period made visible to the thread is
        // visible to the next refresh.
        self.course.is_under_way && self.shared.ended.load(Ordering::Acquire) == self.begun
    }

    /// Becomes readable when a grace period ends.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}

impl Proves for Fences {
    fn course(&self) -> &Course {
        &self.course
    }

    fn every(&self) -> Duration {
        self.every.max(self.retry)
    }

    fn begin(&mut self) {
        self.begun += 1;
        self.course.begin();
        if !self.is_here() {
            // No thread would take the request, and the parent's thread may have held the lock at the fork.
            return;
        }
        // The mutex orders the loads of the heads, which came before, and the grace period, which comes after.
        self.shared.orders().begun = self.begun;
        self.shared.ordered.notify_one();
    }

    fn ended(&mut self) -> Option<io::Result<()>> {
        if self.is_under_way() && !self.is_here() {
            // It does not end in a forked child: the thread is the parent's.
            self.course.end();
            return Some(Err(io::Error::other(Error::forked())));
        }
        if !self.has_ended() {
            return None;
        }
        self.course.end();
        if let Some(Some(visits)) = &self.visits {
            visits.end();
        }
        // The thread has stored both before `ended`, and no other grace period was begun since.
        let failure = {
            let mut orders = self.shared.orders();
            self.name = orders.name;
            orders.failure.take()
        };
        // A refusal may last. So tries get rarer with each failure in a row; the first is clamped up from zero.
        self.retry = match failure {
            None => Duration::ZERO,
            Some(_) => (self.retry * 2).clamp(RETRY.start, RETRY.end),
        };
        Some(failure.map_or(Ok(()), Err))
    }

    fn pass_time(&mut self) -> io::Result<()> {
        self.shared.wake.sleep(MOMENT);
        Ok(())
    }

    fn is_here(&self) -> bool {
        self.owner.is_here()
    }
}

impl Drop for Fences {
    /// Waits for the grace period under way, if there is one, but not for ever: the kernel cannot cancel a grace period,
    /// and a function of the program need not return.
    fn drop(&mut self) {
        if !self.is_here() {
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

/// Says that the thread has ended, however it did.
struct Gone(Arc<Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.orders().gone = true;
        self.0.ordered.notify_one();
    }
}

/// What is asked for.
pub(crate) enum Wanted {
    /// The first grace period of the kernel that works, and without a privilege if there is one.
    Any,
    Membarrier,
    Map,
    /// `every`: the shortest time between two starts.
    Expedited {
        every: Duration,
    },
    Custom(Arc<dyn Fn() -> io::Result<()> + Send + Sync>),
}

/// A grace period of the kernel, or a custom one. Not `Send`, because a [`Grace`] is not.
enum Way {
    /// `any`: another way may replace it.
    Kernel {
        grace: Grace,
        any: bool,
    },
    Custom(Arc<dyn Fn() -> io::Result<()> + Send + Sync>),
}

impl Way {
    /// Opens the first way that works, for use on the calling thread, or says why none works.
    fn open(wanted: Wanted) -> Result<Self, String> {
        let named = |name: &'static str| move |errno: io::Error| format!("{name}: {errno}");
        let membarrier = || Grace::membarrier().map_err(named("membarrier"));
        let map = || Grace::map().map_err(named("array of maps"));
        let any = matches!(wanted, Wanted::Any);
        let grace = match wanted {
            // Membarrier first, since it needs no privilege.
            Wanted::Any => membarrier().or_else(|first| map().map_err(|second| format!("{first}; {second}"))),
            Wanted::Membarrier => membarrier(),
            Wanted::Map => map(),
            Wanted::Expedited { .. } => Grace::expedited().map_err(named("expedited (needs CAP_SYS_ADMIN)")),
            Wanted::Custom(wait) => return Ok(Self::Custom(wait)),
        };
        grace.map(|grace| Self::Kernel { grace, any })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Kernel { grace, .. } => grace.name(),
            Self::Custom(_) => "custom",
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        match self {
            Self::Kernel { grace, any } => {
                let waited = grace.wait();
                match waited {
                    // For example, a seccomp filter was installed meanwhile. If no other way works, this one is tried
                    // again.
                    Err(_) if *any && grace.wait_by_map().is_ok() => Ok(()),
                    waited => waited,
                }
            }
            Self::Custom(wait) => wait(),
        }
    }
}

/// The thread: waits for a request, then for a grace period, then reports its end.
fn serve(shared: &Shared, way: &mut Way) {
    let mut ended = 0;
    loop {
        {
            let mut orders = shared.orders();
            // One is begun only after the end of the last was noticed, so `begun` is at most one ahead.
            while orders.begun == ended && !orders.stop {
                orders = shared.ordered.wait(orders).unwrap_or_else(PoisonError::into_inner);
            }
            // Also if a grace period was asked for and not begun: nobody is left to ask for its end.
            if orders.stop {
                return;
            }
        }
        // A custom function that panics must not leave the reader waiting for ever.
        let waited = catch_unwind(AssertUnwindSafe(|| way.wait()));
        let waited = waited.unwrap_or_else(|_| Err(io::Error::other("the fence's function panicked")));
        // Before `ended` is stored: the consumer takes both once it has seen that.
        let mut orders = shared.orders();
        (orders.name, orders.failure) = (way.name(), waited.err());
        drop(orders);
        ended += 1;
        // Release pairs with the Acquire load in `Fences::has_ended`.
        shared.ended.store(ended, Ordering::Release);
        // If the wake fails, the reader's own tick finds the end.
        shared.wake.wake();
    }
}

/// Starts a thread to which no signal of the program is delivered.
fn spawn_without_signals(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut before = SigSet::empty();
    // A thread begins with the mask of its maker. If it set its own, a signal could come before that.
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    let thread = thread::Builder::new().name(name.into()).spawn(body);
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    thread
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use perfweave_support::threads::until;

    /// Dropping a fence whose grace period does not end returns. Its thread ends once that does.
    #[test]
    fn a_grace_period_that_does_not_end_holds_up_nobody_for_ever() {
        let (sender, gate) = mpsc::channel::<()>();
        let (waits, is_waiting) = mpsc::channel();
        let gate = Mutex::new((gate, waits));
        let fence = Wanted::Custom(Arc::new(move || {
            let (gate, waits) = &*gate.lock().unwrap();
            waits.send(()).unwrap();
            gate.recv().map_err(io::Error::other)
        }));
        let mut fences = Fences::start(fence).unwrap();
        fences.begin();
        is_waiting.recv_timeout(Duration::from_secs(120)).expect("the grace period begins");
        let shared = Arc::downgrade(&fences.shared);
        let (dropped, is_dropped) = mpsc::channel();
        thread::spawn(move || {
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
        let fence = Wanted::Custom(Arc::new(move || gate.lock().unwrap().recv().map_err(io::Error::other)));
        let mut fences = Fences::start(fence).unwrap();
        for _ in 0..2 {
            let error = fences.wait_within(Duration::from_millis(20)).unwrap_err();
            assert!(error.to_string().ends_with("it has not ended within 20ms"), "{error}");
        }
        // The one that is under way, and the next.
        (0..2).for_each(|_| sender.send(()).unwrap());
        fences.wait().unwrap();
    }

    #[test]
    fn a_way_that_does_not_open_is_an_error() {
        let (sender, gate) = mpsc::channel::<()>();
        let open = move |wanted: Wanted| {
            let _ = gate.recv();
            Way::open(wanted)
        };
        let wanted = Wanted::Custom(Arc::new(|| Ok(())));
        let error = Fences::start_within(Duration::from_millis(20), wanted, open).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.to_string().contains("within 20ms"), "{error}");
        drop(sender);
    }
}
