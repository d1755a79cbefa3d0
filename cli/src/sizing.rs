//! How large rings have to be for what a proof takes, so that nothing has to be copied out of them.

use std::time::Duration;

/// The bytes of a record, for a size that is said before there are any: a tracepoint's with some fields.
const RECORD: f64 = 64.0;

/// A reader begins proofs a tick apart: until a tick finds so many events, but no shorter and no longer than these times
/// (`perfweave::Reader`, Waiting).
const ENOUGH: f64 = 1024.0;
const TICK: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(40)];

/// The largest ring that is advised.
pub const MOST: u64 = 1 << 30;

/// Held records are copied out of a ring that is three quarters full, or that is full within this time
/// (`Order::most_held`).
const PART: f64 = 0.75;
const SOON: Duration = Duration::from_millis(10);

/// The size of each CPU's ring unless told otherwise: what a million events a second of one CPU take if a grace period
/// takes 20 ms, as on a busy machine.
pub const DEFAULT: &str = "4M";

/// The size of a ring that holds so many events a second for a proof that takes so long, if all are of one CPU.
pub fn size(rate: f64, proof: Duration) -> u64 {
    // What comes while a proof is under way waits for the next. A tick doubles until it finds enough.
    let tick = Duration::from_secs_f64(2.0 * ENOUGH / rate).clamp(TICK[0], TICK[1]);
    let held = 2.0 * proof.max(tick).as_secs_f64();
    let bytes = rate * RECORD * (held / PART).max(held + SOON.as_secs_f64());
    (bytes as u64).min(MOST).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT, size};
    use crate::args;
    use std::time::Duration;

    #[test]
    fn rings_grow_with_rates_and_with_proofs() {
        let sizes = |proof| [1e4, 1e5, 1e6].map(|rate| size(rate, proof) >> 10);
        let busy = Duration::from_millis(20);
        assert_eq!(sizes(busy), [128, 512, 4096], "2 ticks or 2 proofs, and a third more");
        assert_eq!(sizes(Duration::from_millis(1)), [128, 512, 2048], "2 ticks, and 10 ms more if they are short");
        assert_eq!(sizes(Duration::from_millis(100)), [256, 2048, 32768]);
        assert_eq!(args::size(size(1e6, busy)), DEFAULT);
    }
}
