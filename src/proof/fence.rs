//! Fences: what proves that no smaller key is in flight. A grace period, mostly; never a memory fence.

use crate::error::Error;
use crate::proof::contract::{Done, Proof};
use crate::proof::kernel::Wanted;
use crate::proof::prover::Prover;
use crate::proof::wait_thread::WaitThread;
use crate::rings::Rings;
use crate::rings::control::Control;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A way to wait for a kernel grace period: `synchronize_rcu()` seen from user space.
///
/// A [`Reader`](crate::Reader) waits on a separate thread. [`Fence::open`] opens a way to wait without
/// rings, to measure it, or to know why there is none.
///
/// No fence waits for BPF programs that may sleep. Their kernel timestamps are still drawn inside a section that the
/// fence waits for.
#[derive(Clone, Default)]
#[non_exhaustive]
#[doc(alias = "grace period")]
#[doc(alias = "membarrier")]
#[doc(alias = "synchronize_rcu")]
#[doc(alias = "RCU")]
pub enum Fence {
    /// [`Fence::Membarrier`], or [`Fence::Map`] if the kernel refuses membarrier, even if it begins to refuse while a
    /// reader runs. [`Reader::fence`](crate::Reader::fence) says which.
    #[default]
    Auto,
    /// `membarrier(MEMBARRIER_CMD_GLOBAL)`, which is `synchronize_rcu()` (`kernel/sched/membarrier.c`). Needs no
    /// privilege. Takes some scheduler ticks, and more on a busy machine; far less if the machine's administrator has
    /// set grace periods so (`/sys/kernel/rcu_expedited`). Kernels with `nohz_full` refuse it. While only one CPU is
    /// online, membarrier does not wait at all, and `Map` replaces it.
    ///
    /// While many events wait for a fence, a second thread of the reader moves from CPU to CPU
    /// (`sched_setaffinity(2)`). It visits CPUs whose rings hold events and on which the program's first thread may
    /// run. Each move makes that CPU switch tasks. Without the switch, a CPU that is busy in traced programs would
    /// delay the grace period by several scheduler ticks.
    ///
    /// Real-time programs that never sleep keep the kernel's thread `rcu_preempt` from running. A grace period then
    /// takes up to seconds. Give that thread a higher real-time priority than theirs (`chrt`, or
    /// `rcutree.kthread_prio=` on the kernel's command line), and create the reader on a thread with such a priority.
    /// Or use another fence.
    Membarrier,
    /// Updates an element of a `BPF_MAP_TYPE_ARRAY_OF_MAPS`. The kernel promises a grace period for this
    /// (`maybe_wait_bpf_programs`, `kernel/bpf/syscall.c`). Takes as long as `Membarrier`. Needs the right to make a
    /// BPF map.
    Map,
    /// A [`Proof`] of your own, or of the package perfweave-proofs: its name, which the rule prints as, and what makes
    /// one for each reader. [`Fence::custom`] makes one of a call that blocks.
    Proof(&'static str, Arc<dyn Fn() -> Box<dyn Proof> + Send + Sync>),
}

impl Fence {
    /// A [`Fence::Proof`] by calls that block until everything is shown, on a thread of its own for each reader: a grace
    /// period, mostly. It counts as one of the reader's threads, and no signal of the program is delivered to it.
    ///
    /// `open` is called on that thread when a reader is made, and gives the function that waits, which stays there. The
    /// function returns once every record whose key was drawn before the call is published. `every` is the shortest time
    /// between two calls. After calls that fail, they get rarer. A panic is a failure. A reader that is dropped waits
    /// for a call that is still running, for ten seconds at most.
    pub fn custom<W: FnMut() -> io::Result<()> + 'static>(
        name: &'static str,
        every: Duration,
        open: impl Fn() -> Result<W, Error> + Send + Sync + 'static,
    ) -> Self {
        let open = Arc::new(open);
        let make = move || {
            let open = Arc::clone(&open);
            Box::new(WaitThread::new(name, every, move || open())) as Box<dyn Proof>
        };
        Self::Proof(name, Arc::new(make))
    }

    /// [`Fence::custom`] that opens nothing, every 5 ms at most (feature `test-util`).
    #[cfg(any(test, feature = "test-util"))]
    pub fn by(wait: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        let wait = Arc::new(wait);
        Self::custom("custom", Duration::from_millis(5), move || {
            let wait = Arc::clone(&wait);
            Ok(move || wait())
        })
    }

    /// Opens, without rings, a way to wait for grace periods. It has its own thread, like a [`Reader`](crate::Reader)'s
    /// fence. The calling thread stays in its mount namespace with every kind of fence.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if no way of this fence is possible;
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the thread cannot be started.
    pub fn open(&self) -> Result<GracePeriods, Error> {
        self.start(None, &Done::new(&Control::new())).map(GracePeriods)
    }

    /// The proof itself, opened, for a [`Proof`] that uses others: give what its [`open`](Proof::open) got. A thread of
    /// it counts as one of the reader's, and its end wakes the reader, which then asks the proof that it has.
    ///
    /// # Errors
    /// As [`Fence::open`]; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if it proves nothing for these
    /// rings.
    pub fn open_beside(&self, rings: Option<&Rings>, done: &Done) -> Result<Box<dyn Proof>, Error> {
        let (mut proof, _) = self.make();
        proof.open(rings, done)?;
        Ok(proof)
    }

    /// Opens the proof that it asks for, for rings if there are any.
    pub(crate) fn start(&self, rings: Option<&Rings>, done: &Done) -> Result<Prover, Error> {
        let mut prover = self.prover(done);
        prover.open(rings)?;
        Ok(prover)
    }

    /// The proof that it asks for, before it is opened.
    pub(crate) fn prover(&self, done: &Done) -> Prover {
        let (proof, is_grace_period) = self.make();
        Prover::new(proof, is_grace_period, done)
    }

    /// The proof, and whether it is a grace period of the kernel.
    fn make(&self) -> (Box<dyn Proof>, bool) {
        let kernel = |wanted: Wanted| (Box::new(wanted.proof()) as Box<dyn Proof>, true);
        match self {
            Self::Auto => kernel(Wanted::Any),
            Self::Membarrier => kernel(Wanted::Membarrier),
            Self::Map => kernel(Wanted::Map),
            Self::Proof(_, make) => (make(), false),
        }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("Auto"),
            Self::Membarrier => f.write_str("Membarrier"),
            Self::Map => f.write_str("Map"),
            Self::Proof(name, _) => f.debug_tuple("Proof").field(name).finish(),
        }
    }
}

/// A way to wait for grace periods that works on this machine. See [`Fence::open`].
pub struct GracePeriods(Prover);

impl GracePeriods {
    /// The way in use: "membarrier", "map", or the name of the proof.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Begins a grace period and does not wait. Returns false if one is already under way. For a test that drives a
    /// `Merge`: call it right after `Merge::begin_fence` (feature `test-util`).
    #[cfg(any(test, feature = "test-util"))]
    pub fn begin(&mut self) -> bool {
        let may = !self.0.is_under_way();
        if may {
            self.0.begin();
        }
        may
    }

    /// The result of the grace period under way, if it has ended, without waiting. Returned once (feature `test-util`).
    ///
    /// # Errors
    /// As [`GracePeriods::wait`].
    #[cfg(any(test, feature = "test-util"))]
    pub fn poll(&mut self) -> Option<io::Result<()>> {
        self.0.poll()
    }

    /// Waits for a grace period that begins now, for a minute at most. Blocks, and cannot be interrupted. Any thread may
    /// call it.
    ///
    /// [`Fence::Auto`] changes from `membarrier` to the map, for good, if the kernel begins to refuse `membarrier`.
    ///
    /// # Errors
    /// The error of the kernel or of the function, that the function panicked, or that a minute is over. In a forked
    /// child, that the thread is the parent's. Nothing is proven in these cases.
    pub fn wait(&mut self) -> io::Result<()> {
        self.0.wait().map_err(Error::into_source)
    }
}

impl fmt::Debug for GracePeriods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GracePeriods").field(&self.name()).finish()
    }
}
