//! When a reader refreshes by itself, and when it begins the proofs that release events. Pure bookkeeping: no clock, no
//! system call.
//!
//! A reader that traces the scheduler traces itself. Each time it wakes, it causes three events: a wake-up and two
//! switches. A fence causes about twenty. If the reader refreshed and began fences for those, it would never stop. So
//! it refreshes and begins fences only when so many events wait that its own are less than a tenth of them. Fewer
//! events wait for the tick.
//!
//! A reader that is faster than the writers would refresh for few events all the time. So once it has taken many
//! events, it rests before it refreshes again. It gathers as many events as make a wake-up cheap, but no longer than
//! [`Order::latency`](crate::Order::latency) allows.

use crate::merge::rules::Rule;
use crate::proof::prover::Prover;
use std::time::{Duration, Instant};

/// Enough new events to justify a refresh between ticks: some twenty times as many as it causes.
pub(crate) const WORTH_A_REFRESH: usize = 64;

/// Enough held events to justify a fence that would release them: some twelve times as many as it causes.
const WORTH_A_FENCE: usize = 256;

/// Held events that justify one visit to a CPU that delays a grace period (`proof/cpu_visits.rs`), if many wait.
const WORTH_A_CPU_VISIT: usize = 512;

/// Enough events for one wake-up: reading them costs about as much as the wake-up does.
const ENOUGH: usize = 1024;

/// A tick ends early if this many times enough events were found. Fewer justify no visits: CPUs that write so few
/// events reach quiescent states by themselves.
const MANY: usize = 4;

/// The longest time for which events that justify a refresh or a proof wait for more, which make it cheap.
const GATHERING: Duration = Duration::from_millis(40);

/// The shortest tick, unless the hold rule has a shorter time.
const SHORTEST: Duration = Duration::from_millis(5);

/// The shortest time that a reader sleeps by its own timer.
pub(crate) const FLOOR: Duration = Duration::from_millis(1);

/// The longest tick.
const CEILING: Duration = Duration::from_secs(3600);

/// When a reader refreshes by itself, and when it begins proofs: fences or epochs.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Enough events to justify a refresh, and enough to justify a proof.
    worth_a_refresh: usize,
    worth_a_proof: usize,
    /// The shortest and the longest sleep if nothing wakes the reader, and the present one.
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
    tick: Duration,
    /// The longest time for which events are gathered to make wake-ups and proofs cheap.
    gathering: Duration,
    /// The last refresh.
    refreshed: Instant,
    /// Events found since the tick began, and when it began.
    found: usize,
    since: Instant,
    /// Whether events come so fast that the shortest tick finds enough of them to justify a refresh.
    rush: Rush,
    /// Whether each proof costs a wake-up at least, so that events are gathered for it.
    are_dear: bool,
    /// Events found since the last proof began, which the next one would release, and when the last one began.
    waiting: usize,
    proved: Option<Instant>,
}

impl Pace {
    /// `latency` is the longest tick.
    pub(crate) fn new(rule: Rule, proof: Option<&Prover>, latency: Duration, now: Instant) -> Self {
        let worth_a_proof = proof.map_or(WORTH_A_REFRESH, |proof| if proof.is_asked { 1 } else { WORTH_A_FENCE });
        let (worth_a_refresh, useful) = match (rule, proof) {
            // Only proofs release events, so a number that does not justify a proof does not justify a refresh.
            (Rule::Proof, Some(proof)) => (WORTH_A_REFRESH.max(worth_a_proof), proof.tick(SHORTEST)),
            (Rule::Time(lag), _) => (WORTH_A_REFRESH, lag),
            _ => (WORTH_A_REFRESH, SHORTEST),
        };
        let are_dear = worth_a_proof > 1;
        // With a latency of zero the reader would spin.
        let longest = latency.clamp(FLOOR, CEILING);
        let shortest = useful.clamp(FLOOR, SHORTEST).min(longest);
        Self {
            worth_a_refresh,
            worth_a_proof,
            shortest,
            longest,
            tick: shortest,
            gathering: GATHERING.min(longest),
            refreshed: now,
            found: 0,
            since: now,
            rush: Rush::default(),
            are_dear,
            waiting: 0,
            proved: None,
        }
    }

    /// Records a refresh that found `found` new events. At the end of a tick without enough events the tick doubles. It
    /// becomes short as soon as there are many events.
    pub(crate) fn refreshed(&mut self, now: Instant, found: usize) {
        self.refreshed = now;
        self.waiting = self.waiting.saturating_add(found);
        self.found = self.found.saturating_add(found);
        let past = now.saturating_duration_since(self.since);
        let is_over = past >= self.tick;
        if self.found >= ENOUGH * MANY {
            self.tick = self.shortest;
        } else if !is_over {
            return;
        } else if self.found < self.worth_a_refresh {
            self.tick = (self.tick * 2).min(self.longest);
        } else if self.found < ENOUGH {
            // Never shorter: only many events end the long tick of an idle machine.
            self.tick = (self.tick * 2).min(self.gathering).max(self.tick);
        }
        // Multiplied out: a tick that many events have ended may have taken no time.
        let is_fast = self.found as f64 * self.shortest.as_secs_f64() >= WORTH_A_REFRESH as f64 * past.as_secs_f64();
        self.rush.tick(is_fast, self.since, now);
        (self.found, self.since) = (0, now);
    }

    /// How long until the next refresh, unless something else wakes the reader. While a proof is pending
    /// (`is_proving`), refreshing early gains nothing.
    pub(crate) fn left(&self, now: Instant, is_proving: bool) -> Duration {
        let tick = if is_proving { self.longest } else { self.tick };
        tick.saturating_sub(now.saturating_duration_since(self.refreshed))
    }

    /// How long a reader that has taken many events gathers the next ones: the rest of the tick.
    pub(crate) fn gathering_left(&self, now: Instant) -> Duration {
        self.tick.min(self.gathering).saturating_sub(now.saturating_duration_since(self.refreshed))
    }

    /// Whether events come so fast that gathering them is worth it.
    pub(crate) fn is_busy(&self) -> bool {
        self.rush.is_on
    }

    /// Whether a proof may begin: enough events wait for it, or the last one began long ago.
    pub(crate) fn may_prove(&self, now: Instant) -> bool {
        let is_long_ago = |proved| now.saturating_duration_since(proved) >= self.longest;
        self.until_proof(now).is_some_and(|left| left.is_zero()) || self.proved.is_none_or(is_long_ago)
    }

    /// How long ago the last proof began.
    pub(crate) fn since_proof(&self, now: Instant) -> Option<Duration> {
        self.proved.map(|proved| now.saturating_duration_since(proved))
    }

    /// If enough events wait for a proof, how long they wait for more: for the rest of a tick, unless they are many.
    pub(crate) fn until_proof(&self, now: Instant) -> Option<Duration> {
        let gathers = self.are_dear && self.waiting < ENOUGH * MANY;
        // There was no proof yet, or the last one failed: then none is waited for.
        let past = self.proved.map_or(Duration::MAX, |proved| now.saturating_duration_since(proved));
        let left = if gathers { self.tick.min(self.gathering).saturating_sub(past) } else { Duration::ZERO };
        (self.waiting >= self.worth_a_proof).then_some(left)
    }

    /// How many visits to CPUs the next proof justifies.
    pub(crate) fn cpu_visits(&self) -> usize {
        if self.waiting < ENOUGH * MANY { 0 } else { self.waiting / WORTH_A_CPU_VISIT }
    }

    /// Records that a proof of all found events begins.
    pub(crate) fn proving(&mut self, now: Instant) {
        self.waiting = 0;
        self.proved = Some(now);
    }

    /// The proof failed: `held` events wait for the next, which may begin as soon as it can.
    pub(crate) fn not_proven(&mut self, held: usize) {
        self.waiting = held;
        self.proved = None;
    }
}

/// Whether events come fast: as of the last tick, or of one before it.
///
/// If programs write about the scheduler into a BPF ring buffer, each wake-up of its reader causes events, which wake
/// it again. While the reader gathers events, these are few, and it looks as if the rush were over. So if events come
/// fast again in the tick after that, the next rush is over only when they have come slowly for longer, up to a second.
#[derive(Debug, Default)]
struct Rush {
    is_on: bool,
    /// How long events have to come slowly, and since when they do.
    patience: Duration,
    slow_since: Option<Instant>,
    /// Whether the rush was over at the end of the last tick.
    is_just_over: bool,
}

/// The first patience with events that come fast again, and the longest.
const PATIENCE: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

impl Rush {
    /// A tick has ended.
    fn tick(&mut self, is_fast: bool, began: Instant, now: Instant) {
        let was_just_over = std::mem::take(&mut self.is_just_over);
        if is_fast {
            if was_just_over {
                let [first, longest] = PATIENCE;
                self.patience = (self.patience * 2).clamp(first, longest);
            }
            (self.is_on, self.slow_since) = (true, None);
        } else if self.is_on {
            // Since its begin: all of the tick was slow.
            let since = *self.slow_since.get_or_insert(began);
            self.is_just_over = now.saturating_duration_since(since) >= self.patience;
            self.is_on = !self.is_just_over;
        } else {
            // Slow for one more tick: this rush did not come back at once, so the next begins without patience.
            self.patience = Duration::ZERO;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::order::hold::Hold;
    use crate::proof::contract::Done;
    use crate::proof::fence::Fence;
    use crate::rings::control::Control;

    impl Pace {
        /// As if events came fast.
        pub(crate) fn set_busy(&mut self) {
            self.rush.is_on = true;
        }

        /// Sets the tick, and the longest time for which events are gathered.
        pub(crate) fn set_tick(&mut self, tick: Duration) {
            (self.tick, self.gathering) = (tick, tick);
        }
    }

    /// The pace of a rule, whose proof is not opened.
    fn pace_of(hold: &Hold, latency: Duration, now: Instant) -> Pace {
        let proof = hold.fence().map(|fence| fence.prover(&Done::new(&Control::new())));
        Pace::new(hold.rule(), proof.as_ref(), latency, now)
    }

    const SECOND: Duration = Duration::from_secs(1);
    const TICK: Duration = Duration::from_millis(100);

    /// What a reader that traces the scheduler does, on a machine where others cause events at a steady rate. The clock
    /// is simulated.
    #[derive(Debug, Default, Clone, Copy)]
    struct Seen {
        wakes: f64,
        proofs: f64,
        events: f64,
        /// Of these, those that the reader caused.
        own: f64,
    }

    /// Twenty simulated seconds of a rule. Each of its proofs takes `takes` and causes `causes` events.
    fn trace(hold: &Hold, latency: Duration, rate: f64, (takes, causes): (Duration, f64)) -> Seen {
        let begin = Instant::now();
        let mut pace = pace_of(hold, latency, begin);
        let (mut now, mut proof) = (begin, None::<Instant>);
        // Events in the rings that were not found yet; also fractions of one.
        let (mut unseen, mut seen) = (0.0, Seen::default());
        let only_proofs = matches!(hold, Hold::Fence(_));
        while now - begin < SECOND * 20 {
            let tick = now + pace.left(now, only_proofs && proof.is_some());
            let next = proof.map_or(tick, |end| end.min(tick));
            assert!(next > now, "it spins");
            let own = 3.0 + if proof == Some(next) { causes } else { 0.0 };
            unseen += (next - now).as_secs_f64() * rate + own;
            (seen.wakes, seen.own) = (seen.wakes + 1.0, seen.own + own);
            now = next;
            proof = proof.filter(|end| now < *end);
            let found = unseen as usize;
            unseen -= found as f64;
            seen.events += found as f64;
            pace.refreshed(now, found);
            if !takes.is_zero() && proof.is_none() && pace.may_prove(now) {
                pace.proving(now);
                proof = Some(now + takes);
                seen.proofs += 1.0;
            }
        }
        let Seen { wakes, proofs, events, own } = seen;
        Seen { wakes: wakes / 20.0, proofs: proofs / 20.0, events: events / 20.0, own: own / 20.0 }
    }

    /// Each rule, and how long its proofs take and how many events they cause.
    fn rules() -> Vec<(Hold, (Duration, f64))> {
        let millis = Duration::from_millis;
        let fence = (millis(16), 20.0);
        vec![
            (Hold::FENCE, fence),
            (Hold::Fence(Fence::custom("fast", FLOOR, || Ok(|| Ok(())))), (Duration::from_micros(50), 15.0)),
            (Hold::Dense { first: None, fence: Fence::Auto }, fence),
            (Hold::Lag(millis(10)), (millis(10), 0.0)),
            (Hold::Lag(millis(1)), (millis(1), 0.0)),
            (Hold::Lag(Duration::from_micros(50)), (FLOOR, 0.0)),
            (Hold::None, (Duration::ZERO, 0.0)),
        ]
    }

    #[test]
    fn a_reader_that_sees_itself_is_left_with_its_ticks() {
        for (hold, proof) in rules() {
            let seen = trace(&hold, TICK, 0.0, proof);
            assert!(seen.wakes <= 21.0 && seen.proofs <= 10.5, "{hold}: {seen:?}");
            assert!(seen.own <= 280.0, "{hold}: {seen:?}");
        }
    }

    #[test]
    fn a_tenth_of_the_events_is_its_own_at_most_whatever_happens() {
        for (hold, proof) in rules() {
            for rate in [1e2, 1e3, 3e3, 1e4, 3e4, 1e5, 1e6] {
                let seen = trace(&hold, TICK, rate, proof);
                assert!(seen.own <= 280.0 + rate / 10.0, "{hold} at {rate}: {seen:?}");
                // Nothing is left to lie.
                assert!(seen.events >= 0.98 * rate, "{hold} at {rate}: {seen:?}");
            }
        }
    }

    /// Few events wait no longer than the set latency, once for a refresh and once for a proof.
    #[test]
    fn latency_bounds_how_long_little_waits() {
        for (hold, proof) in rules() {
            for millis in [1, 10, 1000] {
                let latency = Duration::from_millis(millis);
                let seen = trace(&hold, latency, 10.0, proof);
                let ticks = 1000.0 / millis as f64;
                assert!(seen.wakes <= 2.0 * ticks + 1.0 && seen.proofs <= ticks + 1.0, "{hold}, {latency:?}: {seen:?}");
                // From one refresh to the next, including the time of a fence.
                let longest = latency + proof.0;
                assert!(seen.wakes >= 0.9 / longest.as_secs_f64(), "{hold}, {latency:?}: {seen:?}");
                let proofs = if proof.0.is_zero() { 0.0 } else { 0.9 / (longest + latency).as_secs_f64() };
                assert!(seen.proofs >= proofs, "{hold}, {latency:?}: {seen:?}");
            }
        }
    }

    #[test]
    fn what_is_much_is_looked_for_soon() {
        for (hold, proof) in rules() {
            let seen = trace(&hold, SECOND, 1e6, proof);
            // Ticks of 5 ms, or fences one after the other.
            assert!(seen.wakes >= 60.0, "{hold}: {seen:?}");
        }
    }

    #[test]
    fn no_time_at_all_is_no_reason_to_spin() {
        let now = Instant::now();
        for (hold, _) in rules() {
            let pace = pace_of(&hold, Duration::ZERO, now);
            assert_eq!(pace.left(now, false), FLOOR, "{hold}");
        }
    }

    /// Events of one tick are not counted in the next, and a tick lasts from its own start.
    #[test]
    fn each_tick_counts_anew() {
        let begin = Instant::now();
        let mut pace = pace_of(&Hold::None, SECOND, begin);
        assert_eq!(pace.tick, SHORTEST);
        let mut now = begin;
        // A refresh less than a tick after the last: the tick goes on.
        let half = |now: &mut Instant, pace: &mut Pace, found| {
            *now += pace.tick / 2;
            pace.refreshed(*now, found);
            pace.tick
        };
        assert_eq!(half(&mut now, &mut pace, ENOUGH - 1), SHORTEST, "not over yet");
        assert_eq!(half(&mut now, &mut pace, 1), SHORTEST, "enough, in two looks");
        assert_eq!(half(&mut now, &mut pace, WORTH_A_REFRESH - 1), SHORTEST);
        assert_eq!(half(&mut now, &mut pace, 0), SHORTEST * 2, "counted anew, and not worth it");
        assert_eq!(half(&mut now, &mut pace, 0), SHORTEST * 2, "begun anew");
        assert_eq!(half(&mut now, &mut pace, 0), SHORTEST * 4);
        assert_eq!(half(&mut now, &mut pace, ENOUGH * MANY - 1), SHORTEST * 4, "not many, and not over");
        assert_eq!(half(&mut now, &mut pace, 1), SHORTEST, "many");
        assert_eq!(half(&mut now, &mut pace, 0), SHORTEST);
        assert_eq!(half(&mut now, &mut pace, 0), SHORTEST * 2, "what was many is not counted twice");
        for _ in 0..100 {
            half(&mut now, &mut pace, ENOUGH / 2 - 1);
        }
        assert_eq!(pace.tick, GATHERING, "events that justify a refresh wait no longer");
        for _ in 0..100 {
            half(&mut now, &mut pace, 0);
        }
        assert_eq!(pace.tick, SECOND, "no longer than is asked");
        half(&mut now, &mut pace, ENOUGH / 2 - 1);
        assert_eq!(half(&mut now, &mut pace, 0), SECOND, "and no shorter, for events that are not many");
    }

    /// A reader gathers events until a wake-up is cheap, whatever the rate, and never for longer than it may.
    #[test]
    fn wake_ups_become_cheap_within_the_latency() {
        for (hold, proof) in rules() {
            for (millis, rate) in [(100, 3e4), (100, 1e5), (10, 1e5), (5, 1e5), (40, 3e5), (1, 1e6)] {
                let latency = Duration::from_millis(millis);
                let seen = trace(&hold, latency, rate, proof);
                // A wake-up at the end of a fence or a lag comes on top of each tick.
                let per_wake = seen.events / seen.wakes;
                let enough = (rate * latency.as_secs_f64()).min(ENOUGH as f64);
                assert!(per_wake >= 0.45 * enough, "{hold}, {latency:?} at {rate}: {seen:?}");
                let longest = latency.max(proof.0) + proof.0;
                assert!(seen.wakes * longest.as_secs_f64() >= 0.9, "{hold}, {latency:?} at {rate}: {seen:?}");
            }
        }
    }

    /// Under a rule with fences, what waits decides: little waits for the latency, events that justify a fence for a
    /// tick, and many for nothing.
    #[test]
    fn fences_are_paced_by_what_waits() {
        for (hold, _) in rules().into_iter().filter(|(hold, _)| hold.fence().is_some()) {
            let now = Instant::now();
            let mut pace = pace_of(&hold, TICK, now);
            assert!(pace.may_prove(now), "{hold}: the first");
            pace.proving(now);
            pace.refreshed(now, WORTH_A_FENCE - 1);
            assert!(!pace.may_prove(now + TICK / 2) && pace.may_prove(now + TICK), "{hold}: little");
            assert_eq!(pace.until_proof(now), None);
            pace.refreshed(now, 1);
            assert_eq!(pace.until_proof(now), Some(pace.tick), "{hold}: enough");
            assert!(!pace.may_prove(now) && pace.may_prove(now + pace.tick));
            pace.refreshed(now, ENOUGH * MANY - WORTH_A_FENCE - 1);
            assert!(!pace.may_prove(now));
            pace.refreshed(now, 1);
            assert!(pace.may_prove(now), "{hold}: many");
            // A machine that was idle for long has a long tick.
            pace.proving(now);
            pace.tick = SECOND;
            pace.refreshed(now, WORTH_A_FENCE);
            assert_eq!(pace.until_proof(now), Some(GATHERING), "{hold}");
        }
    }

    #[test]
    fn events_are_fast_if_the_shortest_tick_finds_enough() {
        let begin = Instant::now();
        for (found, millis, expected) in
            [(64, 5, true), (63, 5, false), (128, 10, true), (127, 10, false), (4096, 1, true)]
        {
            let mut pace = pace_of(&Hold::None, TICK, begin);
            pace.refreshed(begin, 0);
            pace.refreshed(begin + Duration::from_millis(millis), found);
            assert_eq!(pace.is_busy(), expected, "{found} in {millis} ms");
        }
    }

    /// Each wake-up of a reader of BPF ring buffers causes three events, which wake it again at once. It soon gathers
    /// events, and tries for a tick each second whether they still come fast. (Without patience it gathers in every
    /// other tick only.)
    #[test]
    fn a_reader_that_wakes_itself_gathers() {
        let mut now = Instant::now();
        let mut pace = pace_of(&Hold::None, TICK, now);
        let mut wakes = [0; 10];
        for wakes in &mut wakes {
            let end = now + SECOND;
            while now < end {
                now += if pace.is_busy() { FLOOR } else { Duration::from_micros(30) };
                pace.refreshed(now, 3);
                *wakes += 1;
            }
        }
        assert!(wakes[5..].iter().all(|wakes| *wakes < 6_000), "{wakes:?}");
        // Few events that nobody causes wake it one by one again.
        let end = now + 3 * SECOND;
        while now < end {
            now += Duration::from_millis(1);
            pace.refreshed(now, 3);
        }
        assert!(!pace.is_busy() && pace.rush.patience.is_zero());
    }

    /// One for each 512 events, if many wait.
    #[test]
    fn visits_are_for_what_waits() {
        let now = Instant::now();
        let mut pace = pace_of(&Hold::FENCE, TICK, now);
        for (found, visits) in [(4095, 0), (1, 8), (511, 8), (1, 9), (4 * 512 + 511, 13)] {
            pace.refreshed(now, found);
            assert_eq!(pace.cpu_visits(), visits);
        }
        pace.proving(now);
        assert_eq!(pace.cpu_visits(), 0);
    }

    #[test]
    fn a_proof_that_comes_to_nothing_may_begin_anew() {
        let now = Instant::now();
        let mut pace = pace_of(&Hold::FENCE, TICK, now);
        pace.refreshed(now, 1);
        assert!(pace.may_prove(now), "the first");
        pace.proving(now);
        pace.refreshed(now, WORTH_A_FENCE - 1);
        assert!(!pace.may_prove(now));
        pace.refreshed(now, 1);
        let now = now + SHORTEST;
        assert!(pace.may_prove(now), "enough");
        pace.proving(now);
        assert!(!pace.may_prove(now));
        assert!(pace.may_prove(now + TICK), "long ago");
        pace.not_proven(1);
        assert!(pace.may_prove(now));
    }
}
