//! When the smallest key may be yielded: the frontier under each rule. Pure bookkeeping, no clock, no system call.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// When the event with the smallest visible key may be yielded, although a smaller one may still be on its way.
///
/// | rule | yields a key k when | class |
/// | --- | --- | --- |
/// | `Fence` | k ≤ the largest key seen before a kernel grace period that ended before the latest look at all heads | proven |
/// | `Dense` | k is exactly the next number; a missing number waits for a fence, then is a gap | proven |
/// | `Lag` | k ≤ a clock reading taken before the heads were loaded, less the lag | assumed |
/// | `Round` | k ≤ the largest key seen one whole look earlier | assumed |
/// | `None` | it is the smallest visible | assumed |
///
/// The fence rule needs no clock of ours. Whoever drew a key smaller than one that we have already seen drew it before
/// our look, inside an RCU read-side section that also publishes the record; after a grace period that section is
/// over, and the next look finds the record. It needs keys from one source that only grows, a clock the CPUs agree
/// on or a shared counter, drawn where the record is written: the kernel's timestamps always are; a BPF program's
/// own are if the program cannot sleep and draws them in the run that outputs them.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[doc(alias = "watermark strategy")]
#[doc(alias = "out-of-orderness")]
pub enum Hold {
    /// Wait for a kernel grace period. The default.
    Fence(Fence),
    /// Keys are the numbers of one counter for the whole machine, without holes.
    Dense {
        /// The first number. If it is not known, the first event waits for a fence.
        first: Option<u64>,
        /// What proves that a missing number is not in flight.
        fence: Fence,
    },
    /// Wait a guessed time, on the rings' clock. What all other readers do that order at all.
    Lag(Duration),
    /// Wait for a second look: the rule of perf(1).
    Round,
    /// Do not wait.
    None,
}

impl Hold {
    /// The fence rule with whatever grace period is to be had.
    pub const FENCE: Self = Self::Fence(Fence::Auto);
}

impl Default for Hold {
    fn default() -> Self {
        Self::FENCE
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
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
/// [`Reader`](crate::Reader) waits on a thread of its own, beside the consumer. For whoever drives a
/// [`Merge`](crate::Merge) there is [`Fence::open`].
///
/// None waits for BPF programs that may sleep, but those too write their kernel timestamps inside a section that is
/// waited for.
#[derive(Clone, Default)]
#[non_exhaustive]
#[doc(alias = "grace period")]
#[doc(alias = "membarrier")]
#[doc(alias = "synchronize_rcu")]
#[doc(alias = "RCU")]
pub enum Fence {
    /// [`Fence::Membarrier`], or [`Fence::Map`] where the kernel refuses it, also if it begins to while a reader runs.
    /// [`Reader::fence`](crate::Reader::fence) says which.
    #[default]
    Auto,
    /// `membarrier(MEMBARRIER_CMD_GLOBAL)`, which is `synchronize_rcu()` (`kernel/sched/membarrier.c`). Needs no
    /// privilege; takes 8 to 16 ms; refused by kernels with `nohz_full`. While only one CPU is online it does not
    /// wait at all, so `Map` stands in.
    Membarrier,
    /// Updating an element of a `BPF_MAP_TYPE_ARRAY_OF_MAPS`, for which the kernel promises this very wait
    /// (`maybe_wait_bpf_programs`, `kernel/bpf/syscall.c`). Takes as long as `Membarrier`, needs the right to make a BPF
    /// map.
    Map,
    /// Unmounting a ramfs in a mount namespace of our own, which runs `synchronize_rcu_expedited()`
    /// (`namespace_unlock`, `fs/namespace.c`). Takes some 30 µs, needs `CAP_SYS_ADMIN`.
    ///
    /// Only when asked for: it interrupts every CPU, shows up in audit logs as mounts, and leans on how the kernel is
    /// built today. The namespace is that of a thread of the fence's own; no other thread is moved, and what is mounted
    /// elsewhere can be unmounted.
    Expedited {
        /// The shortest time between the begins of two fences.
        every: Duration,
    },
    /// A grace period of one's own: the function returns once every record whose key was drawn before the call is
    /// published. `sim` has such a fence for its rings. Dropping the reader waits for a call that is under way.
    Custom(Arc<dyn Fn() -> io::Result<()> + Send + Sync>),
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
        }
    }
}

/// How far an event's place in the order can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// No event with a smaller key exists that was not yielded before.
    Proven,
    /// The hold rule let it out before that was certain.
    Assumed,
    /// An event with a larger key was yielded before it; of dense numbers, one with a larger or the same number.
    Late,
}

/// The largest key that may be yielded now, and how it moves.
#[derive(Debug)]
pub(crate) struct Frontier {
    rule: Rule,
    /// The largest key of all looks.
    seen: Option<u64>,
    /// The largest key that the rule lets out.
    edge: Option<u64>,
    /// The largest key that is let out before a report is made: `None` if none is to be made, `Some(None)` if nothing was
    /// seen.
    cap: Option<Option<u64>>,
    /// The largest key found by the end of the look before the last, complete or not: whoever was published when it was found
    /// is found by now.
    settled: Option<u64>,
    /// The largest key found by any look, complete or not.
    found: Option<u64>,
    /// The largest key that must be let out because memory or room is used up.
    pressed: Option<u64>,
    /// The smaller of the cap and the larger of the others: the largest key that may be yielded.
    limit: Option<u64>,
    /// What the fence in flight will prove.
    fencing: Option<u64>,
    /// What the fence that has ended proves, from the next look on.
    fenced: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Rule {
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
        let (limit, fencing, fenced) = Default::default();
        Self { rule, seen, edge, cap, settled, found, pressed, limit, fencing, fenced }
    }

    /// Some heads were looked at, or not all that lies before them. `largest` is the largest key found.
    pub(crate) fn looked_in_part(&mut self, largest: Option<u64>) {
        self.settled = self.found;
        self.found = self.found.max(largest);
    }

    /// All heads were looked at: the largest key found, which is no later than the clock, and a clock reading taken before the
    /// first head was loaded.
    pub(crate) fn looked(&mut self, largest: Option<u64>, now: u64) {
        self.looked_in_part(largest);
        let before = self.seen;
        self.seen = self.seen.max(largest);
        let edge = match self.rule {
            Rule::Fence => self.fenced.take(),
            Rule::Lag(lag) => now.checked_sub(lag),
            Rule::Round => before,
            Rule::None => self.seen,
        };
        self.edge = self.edge.max(edge);
        self.limit();
    }

    fn limit(&mut self) {
        let edge = self.edge.max(self.pressed);
        self.limit = self.cap.map_or(edge, |cap| edge.min(cap));
    }

    /// Lets keys out before the rule does, to make room: up to the one given, but nothing that was found only by the last look.
    /// So what was published when the look before ended comes in order, and only what was still in flight then can be
    /// late. False if another look would let out more.
    pub(crate) fn press(&mut self, key: u64) -> bool {
        self.pressed = self.pressed.max(Some(key).min(self.settled));
        self.limit();
        self.pressed >= Some(key)
    }

    /// Whether a key that is admitted would not be, were there no need for room.
    #[inline]
    pub(crate) fn is_early(&self, key: u64) -> bool {
        Some(key) > self.edge
    }

    /// The keys below this may be yielded, and need not be let out early.
    #[inline]
    pub(crate) fn until(&self) -> u64 {
        self.limit.min(self.edge).map_or(0, |limit| limit.saturating_add(1))
    }

    /// Whether a key may be yielded.
    #[inline]
    pub(crate) fn admits(&self, key: u64) -> bool {
        self.limit.is_some_and(|limit| key <= limit)
    }

    /// Lets out nothing that is larger than what has been seen, until [`Frontier::lift_cap`].
    pub(crate) fn set_cap(&mut self) {
        self.cap = Some(self.found);
        self.limit();
    }

    pub(crate) fn lift_cap(&mut self) {
        self.cap = None;
        self.limit();
    }

    /// Whether a key has to wait for the cap to be lifted.
    pub(crate) fn is_capped(&self, key: u64) -> bool {
        self.cap.is_some_and(|cap| cap.is_none_or(|cap| key > cap))
    }

    /// What a key that is admitted may call itself.
    #[inline]
    pub(crate) fn class(&self, key: u64) -> Class {
        if matches!(self.rule, Rule::Fence) && Some(key) <= self.edge { Class::Proven } else { Class::Assumed }
    }

    /// The largest key seen.
    pub(crate) fn seen(&self) -> Option<u64> {
        self.seen
    }

    /// A fence is about to begin: what it will prove is what has been seen. False if it would prove nothing new, if one
    /// is under way, or if the rule needs none.
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

    /// The fence failed, and proves nothing.
    pub(crate) fn fail_fence(&mut self) {
        self.fencing = None;
    }

    /// How long, from a clock reading on, until a key may be yielded; `None` if no passing of time will do.
    pub(crate) fn wait(&self, key: u64, now: u64) -> Option<Duration> {
        match self.rule {
            Rule::Lag(lag) => Some(Duration::from_nanos(key.saturating_add(lag).saturating_sub(now))),
            // Another look will do, unless it is from the future.
            Rule::Round | Rule::None => (Some(key) <= self.seen).then_some(Duration::ZERO),
            Rule::Fence => None,
        }
    }

    pub(crate) fn needs_clock(&self) -> bool {
        matches!(self.rule, Rule::Lag(_))
    }

    /// The largest key that the rule lets out now.
    pub(crate) fn edge(&self) -> Option<u64> {
        self.edge
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_fence_proves_what_was_seen_before_it_began_and_not_before_the_next_look() {
        let mut frontier = Frontier::new(&Hold::FENCE);
        assert!(!frontier.begin_fence(), "nothing was seen");
        frontier.looked(Some(10), 0);
        assert!(!frontier.admits(10));
        assert!(frontier.begin_fence());
        assert!(!frontier.begin_fence(), "one at a time");
        frontier.looked(Some(20), 0);
        assert!(!frontier.admits(1), "not before it ended");
        frontier.end_fence();
        assert!(!frontier.admits(1), "not before the next look");
        frontier.looked(None, 0);
        assert!(frontier.admits(10));
        assert!(!frontier.admits(11), "seen after the fence began");
        assert!(frontier.begin_fence());
        frontier.end_fence();
        frontier.looked(Some(5), 0);
        assert!(frontier.admits(20));
        assert!(!frontier.begin_fence(), "nothing is held");
    }

    #[test]
    fn a_failed_fence_proves_nothing() {
        let mut frontier = Frontier::new(&Hold::FENCE);
        frontier.looked(Some(10), 0);
        assert!(frontier.begin_fence());
        frontier.fail_fence();
        frontier.looked(Some(11), 0);
        assert!(!frontier.admits(0));
        assert!(frontier.begin_fence(), "and can be tried again");
    }

    #[test]
    fn round_proves_what_was_seen_one_look_earlier() {
        let mut frontier = Frontier::new(&Hold::Round);
        frontier.looked(Some(10), 0);
        assert!(!frontier.admits(1));
        frontier.looked(Some(30), 0);
        assert!(frontier.admits(10) && !frontier.admits(11));
        frontier.looked(None, 0);
        assert!(frontier.admits(30));
        assert!(!frontier.begin_fence());
    }

    #[test]
    fn a_cap_keeps_back_what_was_not_seen_when_it_was_set() {
        let mut frontier = Frontier::new(&Hold::None);
        frontier.set_cap();
        frontier.looked(Some(10), 0);
        assert!(!frontier.admits(1) && frontier.is_capped(1), "nothing had been seen");
        frontier.lift_cap();
        assert!(frontier.admits(10) && !frontier.is_capped(10));
        frontier.set_cap();
        frontier.looked(Some(20), 0);
        assert!(frontier.admits(10) && !frontier.admits(11) && frontier.is_capped(11));
        frontier.lift_cap();
        assert!(frontier.admits(20));
    }

    #[test]
    fn what_is_pressed_out_is_assumed() {
        let mut frontier = Frontier::new(&Hold::FENCE);
        frontier.looked(Some(10), 0);
        assert!(!frontier.press(5) && !frontier.admits(0), "found by this look only");
        frontier.looked(Some(20), 0);
        assert!(frontier.press(5));
        assert!(frontier.admits(5) && !frontier.admits(6));
        assert_eq!((frontier.class(5), frontier.is_early(5)), (Class::Assumed, true));
        assert!(!frontier.press(15));
        assert!(frontier.admits(10) && !frontier.admits(11), "no more than the look before had found");
        assert!(frontier.begin_fence());
        frontier.end_fence();
        frontier.looked(None, 0);
        assert_eq!((frontier.class(5), frontier.class(20)), (Class::Proven, Class::Proven));
        assert!(!frontier.is_early(20) && frontier.is_early(21));
    }

    #[test]
    fn a_look_in_part_moves_nothing_but_what_may_be_pressed_out() {
        let mut frontier = Frontier::new(&Hold::None);
        frontier.looked_in_part(Some(10));
        assert!(!frontier.admits(0) && !frontier.press(10));
        frontier.looked_in_part(Some(20));
        assert!(frontier.press(10) && frontier.admits(10) && !frontier.admits(11));
        assert_eq!(frontier.seen(), None);
        frontier.looked(Some(30), 0);
        assert!(frontier.admits(30));
    }

    #[test]
    fn lag_follows_the_clock() {
        let mut frontier = Frontier::new(&Hold::Lag(Duration::from_nanos(50)));
        frontier.looked(Some(100), 20);
        assert!(!frontier.admits(0), "less time has passed than the lag");
        frontier.looked(None, 149);
        assert!(frontier.admits(99) && !frontier.admits(100));
        assert_eq!(frontier.wait(100, 149), Some(Duration::from_nanos(1)));
        frontier.looked(None, 20);
        assert!(frontier.admits(99), "a frontier never moves back");
    }

    #[test]
    fn none_admits_what_is_seen() {
        let mut frontier = Frontier::new(&Hold::None);
        frontier.looked(Some(10), 0);
        assert!(frontier.admits(10));
        assert_eq!(frontier.class(10), Class::Assumed);
    }

    /// The rule as it is said, with whole histories instead of running maxima.
    #[derive(Clone, Default)]
    struct Said {
        seen: Vec<u64>,
        before: Vec<u64>,
        fencing: Option<Vec<u64>>,
        fenced: Vec<u64>,
        proven: Vec<u64>,
    }
    type Course<'a> = &'a [&'a str];
    fn follow(frontier: &Frontier, said: &Said, hold: &Hold, steps: u32, course: Course<'_>) {
        for key in 0..=4 {
            let out: &[u64] = match hold {
                Hold::Fence(_) => &said.proven,
                Hold::Round => &said.before,
                _ => &said.seen,
            };
            let due = out.iter().any(|seen| key <= *seen);
            assert_eq!(frontier.admits(key), due, "{hold} {course:?}: {key}");
            let class = if due && matches!(hold, Hold::Fence(_)) { Class::Proven } else { Class::Assumed };
            assert_eq!(frontier.class(key), class, "{hold} {course:?}: {key}");
            assert_eq!(key < frontier.until(), due && !frontier.is_early(key), "{hold} {course:?}: {key}");
        }
        if steps == 0 {
            return;
        }
        let next = |name, act: &dyn Fn(&mut Frontier, &mut Said)| {
            let (mut frontier, mut said) = (copy(frontier), said.clone());
            act(&mut frontier, &mut said);
            follow(&frontier, &said, hold, steps - 1, &[course, &[name]].concat());
        };
        for largest in [None, Some(1), Some(2), Some(3)] {
            next("look", &|frontier, said| {
                frontier.looked(largest, 0);
                said.before = said.seen.clone();
                said.seen.extend(largest);
                said.proven.append(&mut said.fenced);
            });
            next("look in part", &|frontier, _| frontier.looked_in_part(largest));
        }
        next("begin", &|frontier, said| {
            let useful = matches!(hold, Hold::Fence(_))
                && said.fencing.is_none()
                && said.seen.iter().max() > said.proven.iter().chain(&said.fenced).max();
            assert_eq!(frontier.begin_fence(), useful, "{course:?}");
            if useful {
                said.fencing = Some(said.seen.clone());
            }
        });
        next("end", &|frontier, said| {
            assert_eq!(frontier.end_fence(), said.fencing.is_some(), "{course:?}");
            said.fenced.extend(said.fencing.take().unwrap_or_default());
        });
        next("fail", &|frontier, said| {
            frontier.fail_fence();
            said.fencing = None;
        });
    }
    fn copy(of: &Frontier) -> Frontier {
        Frontier { ..*of }
    }

    /// Every course of five steps over keys up to 3: looks, whole and in part, fences that begin, end and fail. What is called
    /// proven was seen by a whole look before a fence began that ended before the last whole look; all of that is let out, and
    /// under the other rules what was seen.
    #[test]
    fn every_short_course_of_a_frontier_lets_out_what_is_proven_and_nothing_else() {
        for hold in [Hold::FENCE, Hold::Round, Hold::None] {
            follow(&Frontier::new(&hold), &Said::default(), &hold, 5, &[]);
        }
    }
}
