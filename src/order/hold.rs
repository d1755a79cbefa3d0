//! The hold rules, and the frontier under each rule. Pure bookkeeping: no clock, no system call.

#[cfg(all(test, not(loom)))]
mod tests;

use crate::error::Error;
use crate::order::barrier::Barrier;
use crate::order::epochs::Epochs;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// When the event with the smallest visible key may leave, although a smaller key may still be in flight.
///
/// | rule | yields a key k when | certainty |
/// | --- | --- | --- |
/// | `Fence` | k ≤ the largest key seen before a kernel grace period that ended before the latest refresh of all heads; with [`Epochs`], seen before all programs that were inside have left; with [`Fence::Reserved`], seen before everything reserved since was committed | proven |
/// | `Dense` | k is exactly the next number; a missing number waits for a fence and then becomes a gap | proven |
/// | `Lag` | k ≤ a clock reading taken before the heads were loaded, less the lag | assumed |
/// | `Round` | k ≤ the largest key seen one complete refresh earlier | assumed |
/// | `None` | k is the smallest visible key | assumed |
///
/// The fence rule needs no clock in user space. A writer draws its key inside an RCU read-side section and publishes the record in the same
/// section. A key smaller than one already seen was drawn before the refresh. A grace period waits until that section has ended. The next
/// refresh finds the record.
///
/// The keys must come from one source that only grows: a clock on which the CPUs agree, or a shared counter. The writer must draw the key
/// where it writes the record. The kernel's timestamps always fulfil this. The keys of a BPF program fulfil it if the program cannot sleep
/// and draws each key in the run that outputs it.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[doc(alias = "watermark strategy")]
#[doc(alias = "out-of-orderness")]
pub enum Hold {
    /// Wait for a kernel grace period. The default.
    Fence(Fence),
    /// Keys are the numbers of one counter for the whole machine, of 64 bits, without holes: each is one more than the last
    /// ([`Key::Payload`](crate::Key::Payload)). A number that is more than 2^32 ahead of all others is damage. Behind
    /// sixteen such in a row, near each other, the counter goes on from there, and the numbers before are a gap.
    Dense {
        /// The first number. If it is `None`, the first event waits for a fence.
        first: Option<u64>,
        /// What proves that a missing number is not in flight.
        fence: Fence,
    },
    /// Wait a guessed time, on the rings' clock. All other readers that order events do this.
    Lag(Duration),
    /// Wait for a second refresh: the rule of perf(1).
    Round,
    /// Do not wait.
    None,
}

impl Hold {
    /// The fence rule with the first grace period that works here ([`Fence::Auto`]).
    pub const FENCE: Self = Self::Fence(Fence::Auto);

    /// The fence rule for BPF ring buffers whose programs draw their keys between reserving and submitting: see [`Fence::Reserved`]. Every
    /// CPU is interrupted before each proof.
    pub const RESERVED: Self = Self::Fence(Fence::Reserved(Barrier::INTERRUPTS));

    /// The fence rule with writers' epochs instead of grace periods: see [`Epochs`].
    ///
    /// # Errors
    /// As [`Epochs::open`].
    pub fn epochs(map: impl AsFd) -> Result<Self, Error> {
        Epochs::open(map).map(|epochs| Self::Fence(Fence::Epochs(epochs)))
    }

    /// The fence that proves that nothing smaller is in flight, if the rule has one.
    pub(crate) fn fence(&self) -> Option<&Fence> {
        match self {
            Self::Fence(fence) | Self::Dense { fence, .. } => Some(fence),
            Self::Lag(_) | Self::Round | Self::None => None,
        }
    }
}

impl Default for Hold {
    fn default() -> Self {
        Self::FENCE
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fence(Fence::Epochs(_)) => f.write_str("epoch"),
            Self::Fence(Fence::Reserved(_)) => f.write_str("reserved"),
            Self::Fence(_) => f.write_str("fence"),
            Self::Dense { .. } => f.write_str("dense"),
            // As `Duration` writes it, but in ASCII.
            Self::Lag(lag) => write!(f, "lag={}", format!("{lag:?}").replace('µ', "u")),
            Self::Round => f.write_str("round"),
            Self::None => f.write_str("none"),
        }
    }
}

/// A way to wait for a kernel grace period: `synchronize_rcu()` seen from user space.
///
/// A [`Reader`](crate::Reader) waits on a separate thread. A program that drives a [`Merge`](crate::Merge) itself waits with
/// [`Fence::open`].
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
    /// [`Fence::Membarrier`], or [`Fence::Map`] if the kernel refuses membarrier, even if it begins to refuse while a reader runs.
    /// [`Reader::fence`](crate::Reader::fence) says which.
    #[default]
    Auto,
    /// `membarrier(MEMBARRIER_CMD_GLOBAL)`, which is `synchronize_rcu()` (`kernel/sched/membarrier.c`). Needs no privilege. Takes some
    /// scheduler ticks, and more on a busy machine; far less if the machine's administrator has set grace periods so ([`Rcu`](crate::Rcu)).
    /// Kernels with `nohz_full` refuse it. While only one CPU is online, membarrier does not wait at all, and `Map` replaces it.
    ///
    /// While many events wait for a fence, a second thread of the reader moves from CPU to CPU (`sched_setaffinity(2)`). It visits CPUs
    /// whose rings hold events and on which the program's first thread may run. Each move makes that CPU switch tasks. Without the switch,
    /// a CPU that is busy in traced programs would delay the grace period by several scheduler ticks.
    ///
    /// Real-time programs that never sleep keep the kernel's thread `rcu_preempt` from running. A grace period then takes up to seconds.
    /// Give that thread a higher real-time priority than theirs (`chrt`, or `rcutree.kthread_prio=` on the kernel's command line), and
    /// create the reader on a thread with such a priority. Or use another fence.
    Membarrier,
    /// Updates an element of a `BPF_MAP_TYPE_ARRAY_OF_MAPS`. The kernel promises a grace period for this
    /// (`maybe_wait_bpf_programs`, `kernel/bpf/syscall.c`). Takes as long as `Membarrier`. Needs the right to make a
    /// BPF map.
    Map,
    /// Unmounts a ramfs in a separate mount namespace, which runs `synchronize_rcu_expedited()` (`namespace_unlock`, `fs/namespace.c`).
    /// Takes a fraction of a scheduler tick, unless the machine's administrator forbids expedited grace periods ([`Rcu`](crate::Rcu)), as
    /// on a kernel with `PREEMPT_RT`: then it takes as long as the others. Needs `CAP_SYS_ADMIN`.
    ///
    /// It is used only if you ask for it: it interrupts every CPU, shows up in audit logs as mounts, and depends on how the kernel is built
    /// today. The namespace belongs to the fence's own thread. No other thread changes its namespace, and other mounts can still be
    /// unmounted.
    Expedited {
        /// The shortest time between the starts of two fences.
        every: Duration,
    },
    /// A custom grace period. The function returns once every record whose key was drawn before the call is published. `sim` has such a
    /// fence for its rings. Dropping the reader waits for a call that is still running.
    Custom(Arc<dyn Fn() -> io::Result<()> + Send + Sync>),
    /// No grace period: each writer says when it is inside. For rings that only a tool's own BPF programs write. Proves order in
    /// microseconds, with no thread and no system call. See [`Epochs`].
    Epochs(Epochs),
    /// No grace period: the kernel itself says in a BPF ring buffer who is inside. A reservation is visible before its program goes on, and
    /// busy until the program submits or discards it. Once everything is committed that was reserved when a key had been seen, all smaller
    /// keys have been seen too. Proves order in microseconds, without a thread, also for programs that may sleep.
    ///
    /// The program must draw each key **between reserving and submitting**, from a source that only grows. A key that it draws before it
    /// reserves can be late, and so can the records of `bpf_ringbuf_output()`, which reserves and submits in one call. For those, and for
    /// perf rings, choose another fence.
    ///
    /// A program that sleeps or is preempted inside a reservation holds all others up ([`Status::reserved`](crate::Status::reserved)). A
    /// flush and a deadline wait for it for a bounded time ([`Order::latency`](crate::Order::latency)).
    Reserved(Barrier),
}

impl Fence {
    /// [`Fence::Expedited`], at most a thousand times a second.
    pub const EXPEDITED: Self = Self::Expedited { every: Duration::from_millis(1) };

    /// [`Fence::Custom`] from a function.
    pub fn custom(wait: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(wait))
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

/// How far an event's place in the order can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// Every event with a smaller key was yielded before.
    Proven,
    /// The hold rule, or a full ring, released the event before its order was certain. Or no proof holds for its key: its clock was set back
    /// meanwhile ([`Clock::Realtime`](crate::Clock::Realtime), [`Clock::Tai`](crate::Clock::Tai)), CPUs need not agree on it
    /// ([`Clock::Perf`](crate::Clock::Perf)), or other CPUs write into an adopted ring ([`Rings::add`](crate::Rings::add)).
    Assumed,
    /// An event with a larger key was yielded before. For dense numbers, one with a larger or the same number.
    Late,
}

/// The largest key that may be yielded now, and how it moves.
#[derive(Debug)]
pub(crate) struct Frontier {
    rule: Rule,
    /// The largest key of all refreshes.
    seen: Option<u64>,
    /// The largest key that the rule releases.
    edge: Option<u64>,
    /// The largest key that leaves before a flush or deadline is reported. `None` if no report is due, `Some(None)` if nothing was seen.
    cap: Option<Option<u64>>,
    /// The largest key found by the end of the refresh before the last, complete or not. Every record that was published when this key was
    /// found has been found by now.
    settled: Option<u64>,
    /// The largest key found by any refresh, complete or not.
    found: Option<u64>,
    /// The largest key that must leave because memory or ring space is used up.
    pressed: Option<u64>,
    /// The smaller of `cap` and the largest of the other bounds: the largest key that may leave.
    limit: Option<u64>,
    /// Exclusive bound of the keys that may leave by the rule, not early.
    until: u64,
    /// What the fence that is under way will prove.
    fencing: Option<u64>,
    /// What the fence that has ended proves, from the next refresh on.
    fenced: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Rule {
    /// Nothing is in flight: the rings hold all there will ever be.
    Complete,
    Fence,
    Lag(u64),
    Round,
    None,
}

impl Frontier {
    pub(crate) fn new(hold: &Hold) -> Self {
        let rule = match hold {
            Hold::Fence(_) | Hold::Dense { .. } => Rule::Fence,
            Hold::Lag(lag) => Rule::Lag(u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX)),
            Hold::Round => Rule::Round,
            Hold::None => Rule::None,
        };
        let (seen, edge, cap, settled, found, pressed) = Default::default();
        let (limit, until, fencing, fenced) = Default::default();
        Self { rule, seen, edge, cap, settled, found, pressed, limit, until, fencing, fenced }
    }

    /// The frontier of rings that hold all there will ever be. One refresh proves everything.
    pub(crate) fn complete() -> Self {
        Self { rule: Rule::Complete, ..Self::new(&Hold::None) }
    }

    /// Records a refresh of some heads, or of a part of the bytes before them. `largest` is the largest key found.
    pub(crate) fn refreshed_in_part(&mut self, largest: Option<u64>) {
        self.settled = self.found;
        self.found = self.found.max(largest);
    }

    /// Records a refresh of all heads. `largest` is the largest key found, which is no later than the clock. `now` is a clock reading taken
    /// before the first head was loaded.
    pub(crate) fn refreshed(&mut self, largest: Option<u64>, now: u64) {
        self.refreshed_in_part(largest);
        let before = self.seen;
        self.seen = self.seen.max(largest);
        let edge = match self.rule {
            Rule::Fence => self.fenced.take(),
            Rule::Lag(lag) => now.checked_sub(lag),
            Rule::Round => before,
            Rule::Complete | Rule::None => self.seen,
        };
        self.edge = self.edge.max(edge);
        self.limit();
    }

    /// Records that no key below `key` can still come. Only where nothing is in flight.
    pub(crate) fn prove_below(&mut self, key: u64) {
        self.edge = self.edge.max(key.checked_sub(1));
        self.limit();
    }

    fn limit(&mut self) {
        let edge = self.edge.max(self.pressed);
        self.limit = self.cap.map_or(edge, |cap| edge.min(cap));
        self.until = self.limit.min(self.edge).map_or(0, |limit| limit.saturating_add(1));
    }

    /// Releases keys up to `key` before the rule does, to make space, but no key that only the last refresh found. So records that were
    /// published before the end of the previous refresh leave in order, and only records in flight at that time can be late. Returns false
    /// if another refresh would release more.
    pub(crate) fn press(&mut self, key: u64) -> bool {
        self.pressed = self.pressed.max(Some(key).min(self.settled));
        self.limit();
        self.pressed >= Some(key)
    }

    /// Releases everything before a report, although the rule does not. Returns false if another refresh would release more.
    pub(crate) fn press_to_cap(&mut self) -> bool {
        self.cap.flatten().is_none_or(|cap| self.press(cap))
    }

    /// Whether an admitted key leaves only to make space, or for a report.
    #[inline]
    pub(crate) fn is_early(&self, key: u64) -> bool {
        Some(key) > self.edge
    }

    /// Exclusive bound of the keys that may leave by the rule, not early.
    #[inline]
    pub(crate) fn until(&self) -> u64 {
        self.until
    }

    /// The largest key that may leave, by the rule or early.
    pub(crate) fn limit_of_keys(&self) -> Option<u64> {
        self.limit
    }

    /// Whether a key may be yielded.
    #[inline]
    pub(crate) fn admits(&self, key: u64) -> bool {
        self.limit.is_some_and(|limit| key <= limit)
    }

    /// Releases nothing larger than the keys seen so far, until [`Frontier::lift_cap`].
    pub(crate) fn set_cap(&mut self) {
        self.cap = Some(self.found);
        self.limit();
    }

    pub(crate) fn lift_cap(&mut self) {
        self.cap = None;
        self.limit();
    }

    /// Whether a key has to wait until the cap is lifted.
    pub(crate) fn is_capped(&self, key: u64) -> bool {
        self.cap.is_some_and(|cap| cap.is_none_or(|cap| key > cap))
    }

    /// The certainty of a key that is admitted.
    #[inline]
    pub(crate) fn certainty(&self, key: u64) -> Certainty {
        if Some(key) <= self.edge { self.certainty_of_rule() } else { Certainty::Assumed }
    }

    /// The certainty of a key that is less than [`Frontier::until`].
    #[inline]
    pub(crate) fn certainty_of_rule(&self) -> Certainty {
        if matches!(self.rule, Rule::Complete | Rule::Fence) { Certainty::Proven } else { Certainty::Assumed }
    }

    /// Whether the rule proves: then the frontier moves only once everything reserved is seen.
    pub(crate) fn proves(&self) -> bool {
        matches!(self.rule, Rule::Fence)
    }

    /// The largest key seen.
    pub(crate) fn seen(&self) -> Option<u64> {
        self.seen
    }

    /// Records that a fence is about to begin. It will prove the keys seen so far. False if it would prove nothing new, if another fence is
    /// under way, or if the rule needs none.
    pub(crate) fn begin_fence(&mut self) -> bool {
        let useful =
            matches!(self.rule, Rule::Fence) && self.fencing.is_none() && self.seen > self.edge.max(self.fenced);
        if useful {
            self.fencing = self.seen;
        }
        useful
    }

    /// The fence has ended. False if none was under way.
    pub(crate) fn end_fence(&mut self) -> bool {
        let ended = self.fencing.take();
        self.fenced = ended.max(self.fenced);
        ended.is_some()
    }

    /// The fence failed and proves nothing.
    pub(crate) fn fail_fence(&mut self) {
        self.fencing = None;
    }

    /// How long, from a clock reading on, until a key may leave. `None` if time alone does not release it.
    pub(crate) fn wait(&self, key: u64, now: u64) -> Option<Duration> {
        match self.rule {
            Rule::Lag(lag) => Some(Duration::from_nanos(key.saturating_add(lag).saturating_sub(now))),
            // Another refresh is enough, unless the key is from the future.
            Rule::Complete | Rule::Round | Rule::None => (Some(key) <= self.seen).then_some(Duration::ZERO),
            Rule::Fence => None,
        }
    }

    pub(crate) fn needs_clock(&self) -> bool {
        matches!(self.rule, Rule::Lag(_))
    }

    /// The largest key that the rule releases now.
    pub(crate) fn edge(&self) -> Option<u64> {
        self.edge
    }
}
