//! Tests of `tests/live` that repeat, or wait for chance: more of both than everybody's command has time for.

#[path = "../../live/leaks.rs"]
mod leaks;
#[path = "../../live/lost_nothing.rs"]
mod lost_nothing;

/// How many times the rounds that they have there.
const TIMES: u64 = 20;
