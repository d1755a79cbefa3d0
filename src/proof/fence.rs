//! Fences: what proves that no smaller key is in flight. A grace period, mostly; never a memory fence.

use crate::error::Error;
use crate::proof::barrier::{Barrier, Reserved};
use crate::proof::epochs::Epochs;
use crate::proof::fences::{Fences, Wanted};
use crate::proof::kinds::Proof;
use crate::proof::watch::Watch;
use crate::rings::Rings;
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
    /// A custom grace period. The function returns once every record whose key was drawn before the call is published.
    /// `sim` has such a fence for its rings. Dropping the reader waits for a call that is still running.
    Custom(Arc<dyn Fn() -> io::Result<()> + Send + Sync>),
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

    /// [`Fence::Custom`] from a function.
    pub fn custom(wait: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(wait))
    }

    /// Opens, without rings, a way to wait for grace periods. It has its own thread, like a [`Reader`](crate::Reader)'s
    /// fence. The calling thread stays in its mount namespace with every kind of fence.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if no way of this fence is possible;
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the thread cannot be started.
    pub fn open(&self) -> Result<GracePeriods, Error> {
        self.start().map(GracePeriods)
    }

    /// Checks that it proves something for these rings.
    pub(crate) fn check(&self, rings: &Rings) -> Result<(), Error> {
        match self {
            Self::Epochs(epochs) => epochs.check(rings),
            Self::Reserved(barrier) => barrier.check(rings),
            _ => Ok(()),
        }
    }

    /// Prepares the proof that it asks for.
    pub(crate) fn start(&self) -> Result<Proof, Error> {
        match self {
            Self::Epochs(epochs) => Watch::start(epochs.clone()).map(Proof::Epochs),
            Self::Reserved(barrier) => Reserved::start(*barrier).map(Proof::Reserved),
            Self::Auto => Fences::start(Wanted::Any).map(Proof::Fences),
            Self::Membarrier => Fences::start(Wanted::Membarrier).map(Proof::Fences),
            Self::Map => Fences::start(Wanted::Map).map(Proof::Fences),
            Self::Expedited { every } => Fences::start(Wanted::Expedited { every: *every }).map(Proof::Fences),
            Self::Custom(wait) => Fences::start(Wanted::Custom(Arc::clone(wait))).map(Proof::Fences),
        }
    }

    /// Whether a proof costs so little that a single event justifies one.
    pub(crate) fn is_cheap(&self) -> bool {
        matches!(self, Self::Epochs(_) | Self::Reserved(_))
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("Auto"),
            Self::Membarrier => f.write_str("Membarrier"),
            Self::Map => f.write_str("Map"),
            Self::Expedited { every } => f.debug_struct("Expedited").field("every", every).finish(),
            Self::Custom(_) => f.write_str("Custom"),
            Self::Epochs(epochs) => epochs.fmt(f),
            Self::Reserved(barrier) => f.debug_tuple("Reserved").field(barrier).finish(),
        }
    }
}

/// A way to wait for grace periods that works on this machine. See [`Fence::open`].
pub struct GracePeriods(Proof);

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
