//! Fences: what proves that no smaller key is in flight. A grace period, mostly; never a memory fence.

use crate::error::Error;
use crate::proof::barrier::{Barrier, Reserved};
use crate::proof::contract::{Done, Proof};
use crate::proof::epochs::Epochs;
use crate::proof::kernel::{SHORTEST, Wanted};
use crate::proof::prover::Prover;
use crate::proof::wait_thread::WaitThread;
use crate::proof::watch::Watch;
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
    /// Unmounts a ramfs in a separate mount namespace, which runs `synchronize_rcu_expedited()` (`namespace_unlock`,
    /// `fs/namespace.c`). Takes a fraction of a scheduler tick, unless the machine's administrator forbids expedited
    /// grace periods (`/sys/kernel/rcu_normal`), as on a kernel with `PREEMPT_RT`: then it takes as long as the others.
    /// Needs `CAP_SYS_ADMIN`.
    ///
    /// It is used only if you ask for it: it interrupts every CPU, shows up in audit logs as mounts, and depends on how
    /// the kernel is built today. The namespace belongs to the fence's own thread. No other thread changes its
    /// namespace, and other mounts can still be unmounted.
    Expedited {
        /// The shortest time between the starts of two fences.
        every: Duration,
    },
    /// A proof of your own, or of the package perfweave-proofs: see [`Proof`]. The function makes one for each reader.
    Proof(Arc<dyn Fn() -> Box<dyn Proof> + Send + Sync>),
    /// No grace period: each writer says when it is inside. For rings that only a tool's own BPF programs write. Proves
    /// order in microseconds, with no thread and no system call. See [`Epochs`].
    Epochs(Epochs),
    /// No grace period: the kernel itself says in a BPF ring buffer who is inside. A reservation is visible before its
    /// program goes on, and busy until the program submits or discards it. Once everything is committed that was
    /// reserved when a key had been seen, all smaller keys have been seen too. Proves order in microseconds, without a
    /// thread, also for programs that may sleep.
    ///
    /// The program must draw each key **between reserving and submitting**, from a source that only grows. A key that
    /// it draws before it reserves can be late, and so can the records of `bpf_ringbuf_output()`, which reserves and
    /// submits in one call. For those, and for perf rings, choose another fence.
    ///
    /// A program that sleeps or is preempted inside a reservation holds all others up
    /// ([`Status::reserved`](crate::Status::reserved)). A flush and a deadline wait for it for a bounded time
    /// ([`Order::latency`](crate::Order::latency)).
    Reserved(Barrier),
}

impl Fence {
    /// [`Fence::Expedited`], at most a thousand times a second.
    pub const EXPEDITED: Self = Self::Expedited { every: Duration::from_millis(1) };

    /// [`Fence::Proof`] from a function that makes a proof for each reader.
    pub fn proof<P: Proof + 'static>(make: impl Fn() -> P + Send + Sync + 'static) -> Self {
        Self::Proof(Arc::new(move || Box::new(make())))
    }

    /// A grace period of your own, on a [`WaitThread`]: the function returns once every record whose key was drawn
    /// before the call is published. `sim` has such a fence for its rings.
    pub fn custom(wait: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        let wait = Arc::new(wait);
        Self::proof(move || {
            let wait = Arc::clone(&wait);
            WaitThread::new("custom", CUSTOM, move || Ok(move || wait()))
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

    /// Opens the proof that it asks for, for rings if there are any.
    pub(crate) fn start(&self, rings: Option<&Rings>, done: &Done) -> Result<Prover, Error> {
        let mut prover = self.prover(done);
        prover.open(rings)?;
        Ok(prover)
    }

    /// The proof that it asks for, before it is opened.
    pub(crate) fn prover(&self, done: &Done) -> Prover {
        let kernel = |wanted: Wanted| (Box::new(wanted.proof(SHORTEST)) as Box<dyn Proof>, true);
        let (proof, is_hurried) = match self {
            Self::Auto => kernel(Wanted::Any),
            Self::Membarrier => kernel(Wanted::Membarrier),
            Self::Map => kernel(Wanted::Map),
            // It interrupts the CPUs itself.
            Self::Expedited { every } => (Box::new(Wanted::Expedited.proof(*every)) as Box<dyn Proof>, false),
            Self::Epochs(epochs) => (Box::new(Watch::new(epochs.clone())) as Box<dyn Proof>, false),
            Self::Reserved(barrier) => (Box::new(Reserved::new(*barrier)) as Box<dyn Proof>, false),
            Self::Proof(make) => (make(), false),
        };
        Prover::new(proof, is_hurried, done)
    }
}

/// The shortest time between the starts of two custom grace periods. As long as a reader's shortest tick is otherwise.
const CUSTOM: Duration = Duration::from_millis(5);

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("Auto"),
            Self::Membarrier => f.write_str("Membarrier"),
            Self::Map => f.write_str("Map"),
            Self::Expedited { every } => f.debug_struct("Expedited").field("every", every).finish(),
            Self::Proof(make) => f.debug_tuple("Proof").field(&make().name()).finish(),
            Self::Epochs(epochs) => epochs.fmt(f),
            Self::Reserved(barrier) => f.debug_tuple("Reserved").field(barrier).finish(),
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

    /// How long until a grace period may begin. `None` while one is under way.
    pub fn pause(&self) -> Option<Duration> {
        self.0.pause()
    }

    /// Begins a grace period and does not wait. Returns false if one is already under way. For a test that drives a
    /// `Merge`: call it right after `Merge::begin_fence`.
    pub fn begin(&mut self) -> bool {
        let may = !self.0.is_under_way();
        if may {
            self.0.begin();
        }
        may
    }

    /// The result of the grace period under way, if it has ended, without waiting. Returned once.
    ///
    /// # Errors
    /// As [`GracePeriods::wait`].
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
