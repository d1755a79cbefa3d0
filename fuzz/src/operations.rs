//! Runs a schedule from bytes, under each rule that proves, against the model of the property tests.

use crate::schedule::{Schedule, Times, Trial};
use perfweave::{Fence, Hold, Key};

/// The first byte chooses rule and key, the rest is the schedule.
pub(crate) fn run(input: &[u8]) {
    let Some((choice, steps)) = input.split_first() else { return };
    let schedule = Schedule::from_bytes(steps);
    match choice % 4 {
        0 => {
            let trial = Trial::run(&schedule, Key::Time, Hold::FENCE, Times::Unique);
            assert_eq!(trial.yielded_keys(), trial.sorted_keys());
            trial.assert_losses_in_place();
        }
        1 => {
            let trial = Trial::run(&schedule, Key::Payload(8), Hold::FENCE, Times::Tied);
            assert_eq!(trial.yielded_keys(), trial.sorted_keys());
            trial.assert_losses_counted();
        }
        2 => {
            let hold = Hold::Dense { first: Some(0), fence: Fence::Auto };
            let trial = Trial::run(&schedule, Key::Payload(0), hold, Times::Unique);
            assert_eq!(trial.missing, trial.missing_numbers());
            assert!(trial.yielded_ids().is_sorted());
        }
        _ => {
            let trial = Trial::run(&schedule, Key::Time, Hold::None, Times::Unique);
            trial.assert_lateness_is_true();
            trial.assert_losses_counted();
        }
    }
}
