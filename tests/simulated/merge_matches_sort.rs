//! Property: for any schedule of writers and reader, the stream equals a sort of all written records. Only records that
//! the kernel dropped are missing, and no tail ever passes a record that was neither yielded nor copied.

use crate::schedule::{Schedule, Times, Trial};
use perfweave::{Certainty, Hold, Key};
use quickcheck::QuickCheck;

fn check(property: fn(Schedule) -> bool) {
    let tests = std::env::var("QUICKCHECK_TESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    QuickCheck::new().tests(tests).quickcheck(property);
}

/// Under the fence rule the stream is the sort, and all of it is proven.
#[test]
fn fence_matches_sort() {
    check(|schedule| {
        let trial = Trial::run(&schedule, Key::Time, Hold::FENCE, Times::Unique);
        assert_eq!(trial.yielded_keys(), trial.sorted_keys());
        assert!(trial.yielded.iter().all(|event| event.certainty == Certainty::Proven));
        trial.assert_losses_in_place();
        true
    });
}

/// Writers' epochs prove as much as grace periods do.
#[test]
fn epochs_match_sort() {
    check(|schedule| {
        let trial = Trial::run_with_epochs(&schedule, Key::Time, Hold::FENCE, Times::Unique);
        assert_eq!(trial.yielded_keys(), trial.sorted_keys());
        assert!(trial.yielded.iter().all(|event| event.certainty == Certainty::Proven));
        trial.assert_losses_in_place();
        true
    });
}

/// The same with keys of the program in its payload, at an odd offset that wraps everywhere.
#[test]
fn payload_keys_match_sort() {
    check(|schedule| {
        let trial = Trial::run(&schedule, Key::Payload(8), Hold::FENCE, Times::Unique);
        assert_eq!(trial.yielded_keys(), trial.sorted_keys());
        trial.assert_losses_in_place();
        true
    });
}

/// Keys that are drawn twice come out side by side; none is late.
#[test]
fn fence_keeps_order_with_equal_keys() {
    check(|schedule| {
        let trial = Trial::run(&schedule, Key::Time, Hold::FENCE, Times::Tied);
        assert_eq!(trial.yielded_keys(), trial.sorted_keys());
        assert!(trial.yielded.iter().all(|event| event.certainty == Certainty::Proven));
        true
    });
}

/// Events that are released together come in (key, CPU, position) order. Here no event is yielded before the end, so
/// that is all of them.
#[test]
fn equal_keys_released_together_come_out_by_cpu_and_position() {
    check(|schedule| {
        let schedule = schedule.without_yields();
        let trial = Trial::run(&schedule, Key::Time, Hold::FENCE, Times::Tied);
        assert_eq!(trial.yielded_ids(), trial.sorted_ids());
        true
    });
}

/// Under a rule that only assumes the order nothing is lost either, and each event out of order is marked with the
/// exact lateness.
#[test]
fn assumed_orders_mark_what_is_late() {
    for hold in [Hold::None, Hold::Lag(std::time::Duration::from_nanos(20))] {
        let hold = move || hold.clone();
        let mut late = 0;
        let mut generator = quickcheck::Gen::new(100);
        for _ in 0..300 {
            let schedule = <Schedule as quickcheck::Arbitrary>::arbitrary(&mut generator);
            let trial = Trial::run(&schedule, Key::Time, hold(), Times::Unique);
            let mut keys = trial.yielded_keys();
            keys.sort_unstable();
            assert_eq!(keys, trial.sorted_keys(), "each once");
            late += trial.assert_lateness_is_true();
            // Losses need not be right before their records: a refresh between the two may find a smaller key.
            trial.assert_losses_counted();
        }
        assert!(late > 0, "schedules under which {} is wrong", hold());
    }
}

/// Dense numbers come out one by one, and exactly the numbers that never come are gaps.
#[test]
fn dense_sequence_declares_exactly_what_is_missing() {
    check(|schedule| {
        let hold = Hold::Dense { first: Some(0), fence: perfweave::Fence::Auto };
        let trial = Trial::run(&schedule, Key::Payload(0), hold, Times::Unique);
        assert_eq!(trial.missing, trial.missing_numbers());
        let mut numbers: Vec<u64> = trial.written.iter().map(|record| record.id).collect();
        numbers.sort_unstable();
        assert_eq!(trial.yielded_ids(), numbers);
        assert!(trial.yielded.iter().all(|event| event.certainty == Certainty::Proven));
        true
    });
}

/// A dense sequence needs no fence as long as no number is dropped and all writers are done.
#[test]
fn dense_sequence_without_drops_needs_no_fence() {
    check(|schedule| {
        let hold = Hold::Dense { first: Some(0), fence: perfweave::Fence::Auto };
        let trial = Trial::run(&schedule.without_losses(), Key::Payload(0), hold, Times::Unique);
        assert!(trial.dropped.is_empty());
        assert_eq!(trial.fences_at_the_end, 0);
        assert_eq!(trial.yielded.len(), trial.written.len());
        true
    });
}
