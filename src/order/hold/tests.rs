//! What every rule keeps. A new rule needs a line in `all`, which does not compile without it.

use super::*;
use crate::merge::certainty::Certainty;
use crate::merge::frontier::Frontier;
use crate::proof::fence::Fence;
use crate::sim::Kernel;
use crate::{Merge, Order};

const LAG: Duration = Duration::from_nanos(50);

/// All rules.
fn all() -> Vec<Hold> {
    let all = vec![Hold::FENCE, Hold::Dense { first: None, fence: Fence::Auto }, Hold::Lag(LAG), Hold::None];
    for hold in &all {
        match hold {
            Hold::Fence(_) | Hold::Dense { .. } | Hold::Lag(_) | Hold::None => {}
        }
    }
    all
}

#[test]
fn the_guide_has_a_row_for_each() {
    let guide = include_str!("../../../docs/guide/hold_rules.md");
    let mut rows: Vec<_> =
        guide.lines().filter(|line| line.ends_with(" proven |") || line.ends_with(" assumed |")).collect();
    for hold in all() {
        let name = hold.to_string();
        let begin = format!("| `{}", name.split('=').next().unwrap_or_default());
        let at = rows.iter().position(|row| row.to_lowercase().starts_with(&begin));
        let row = rows.remove(at.unwrap_or_else(|| panic!("{hold} has no row")));
        assert_eq!(row.ends_with(" proven |"), hold.rule().is_proof(), "{hold}");
        assert_eq!(
            hold.rule().is_proof(),
            hold.fence().is_some(),
            "{hold} needs a fence if it awaits one, and only then"
        );
    }
    assert!(rows.is_empty(), "rows of no rule: {rows:?}");
}

/// Refreshes, also in part, and proofs, in a random order.
#[test]
fn none_moves_back_or_past_what_was_seen_or_calls_proven_what_was_not() {
    for hold in all() {
        let (mut frontier, mut random) = (Frontier::new(hold.rule()), 1_u64);
        let (mut now, mut before) = (0, None);
        // What a proof under way, and one that has ended, may prove.
        let (mut begun, mut proven) = (None, None);
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (largest, choice) = (Some(now + (random >> 60)), random >> 32);
            match choice % 6 {
                0 => frontier.refreshed_in_part(largest),
                1 => begun = if frontier.begin_proof() { frontier.seen } else { begun },
                2 if frontier.end_proof() => proven = begun,
                3 => frontier.fail_proof(),
                _ => {
                    now += 16;
                    frontier.refreshed(largest, now);
                }
            }
            let key = frontier.key;
            let bound = if hold.rule().is_proof() { proven } else { frontier.seen.max(now.checked_sub(1)) };
            assert!(before <= key && key <= bound, "{hold}: {before:?}, {key:?}, {bound:?}");
            before = key;
        }
        assert!(before > Some(1_000), "{hold} gets on");
        let certainty = if hold.rule().is_proof() { Certainty::Proven } else { Certainty::Assumed };
        assert_eq!(frontier.certainty, certainty, "{hold}");
    }
}

/// What a rule awaits is enough.
#[test]
fn each_releases_everything_once_what_it_awaits_has_come() {
    for hold in all() {
        let mut frontier = Frontier::new(hold.rule());
        frontier.refreshed(Some(100), 100);
        assert_eq!(frontier.admits(100), hold.rule() == Rule::Nothing, "{hold}");
        assert_eq!(frontier.begin_proof() && frontier.end_proof(), hold.rule().is_proof(), "{hold}");
        let lag = if let Rule::Time(lag) = hold.rule() { lag.as_nanos() as u64 } else { 0 };
        frontier.refreshed(None, 100 + lag);
        assert!(frontier.admits(100), "{hold}");
    }
}

/// Nothing is in flight, so each rule yields all, in order.
#[test]
fn each_yields_everything_once_and_in_order() {
    for hold in all() {
        let kernel = Kernel::new(&[0, 1]);
        (1..=20).for_each(|key| assert!(kernel.emit(u32::from(key % 3 == 0), key, b"all")));
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(hold.clone())).unwrap();
        let mut keys = Vec::new();
        for _ in 0..3 {
            merge.refresh(100);
            while let Some(event) = merge.next() {
                keys.extend(event.key());
            }
            if merge.begin_fence() {
                merge.end_fence();
            }
        }
        assert_eq!(keys, (1..=20).collect::<Vec<_>>(), "{hold}");
    }
}
