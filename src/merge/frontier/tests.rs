//! The frontier under each rule, over short courses of all that can happen to it.

use super::*;
use std::time::Duration;

#[test]
fn a_fence_proves_what_was_seen_before_it_began_and_not_before_the_next_look() {
    let mut frontier = Frontier::new(Rule::Proof);
    assert!(!frontier.begin_proof(), "nothing was seen");
    frontier.refreshed(Some(10), 0);
    assert!(!frontier.admits(10));
    assert!(frontier.begin_proof());
    assert!(!frontier.begin_proof(), "one at a time");
    frontier.refreshed(Some(20), 0);
    assert!(!frontier.admits(1), "not before it ended");
    frontier.end_proof();
    assert!(!frontier.admits(1), "not before the next look");
    frontier.refreshed(None, 0);
    assert!(frontier.admits(10));
    assert!(!frontier.admits(11), "seen after the fence began");
    assert!(frontier.begin_proof());
    frontier.end_proof();
    frontier.refreshed(Some(5), 0);
    assert!(frontier.admits(20));
    assert!(!frontier.begin_proof(), "nothing is held");
}

#[test]
fn a_failed_fence_proves_nothing() {
    let mut frontier = Frontier::new(Rule::Proof);
    frontier.refreshed(Some(10), 0);
    assert!(frontier.begin_proof());
    frontier.fail_proof();
    frontier.refreshed(Some(11), 0);
    assert!(!frontier.admits(0));
    assert!(frontier.begin_proof(), "and can be tried again");
}

#[test]
fn a_cap_keeps_back_what_was_not_seen_when_it_was_set() {
    let mut frontier = Frontier::new(Rule::Nothing);
    frontier.set_cap();
    frontier.refreshed(Some(10), 0);
    assert!(!frontier.admits(1) && frontier.is_capped(1), "nothing had been seen");
    frontier.lift_cap();
    assert!(frontier.admits(10) && !frontier.is_capped(10));
    frontier.set_cap();
    frontier.refreshed(Some(20), 0);
    assert!(frontier.admits(10) && !frontier.admits(11) && frontier.is_capped(11));
    frontier.lift_cap();
    assert!(frontier.admits(20));
}

#[test]
fn a_look_in_part_moves_nothing_but_the_cap() {
    let mut frontier = Frontier::new(Rule::Nothing);
    frontier.refreshed_in_part(Some(10));
    assert!(!frontier.admits(0));
    frontier.refreshed_in_part(Some(20));
    assert_eq!(frontier.seen, None);
    frontier.set_cap();
    frontier.refreshed(Some(30), 0);
    assert!(frontier.admits(20) && !frontier.admits(21), "what was found in part comes before the report");
}

#[test]
fn lag_follows_the_clock() {
    let mut frontier = Frontier::new(Rule::Time(Duration::from_nanos(50)));
    frontier.refreshed(Some(100), 20);
    assert!(!frontier.admits(0), "less time has passed than the lag");
    frontier.refreshed(None, 149);
    assert!(frontier.admits(99) && !frontier.admits(100));
    frontier.refreshed(None, 20);
    assert!(frontier.admits(99), "a frontier never moves back");
}

#[test]
fn none_admits_what_is_seen() {
    let mut frontier = Frontier::new(Rule::Nothing);
    frontier.refreshed(Some(10), 0);
    assert!(frontier.admits(10));
    assert_eq!(frontier.certainty, Certainty::Assumed);
}

/// The rule as it is said, with whole histories instead of running maxima.
#[derive(Clone, Default)]
struct Said {
    seen: Vec<u64>,
    pending: Option<Vec<u64>>,
    ended: Vec<u64>,
    proven: Vec<u64>,
}
type Course<'a> = &'a [&'a str];
fn follow(frontier: &Frontier, said: &Said, rule: Rule, steps: u32, course: Course<'_>) {
    for key in 0..=4 {
        let out: &[u64] = match rule {
            Rule::Proof => &said.proven,
            _ => &said.seen,
        };
        let due = out.iter().any(|seen| key <= *seen);
        assert_eq!(frontier.admits(key), due, "{rule:?} {course:?}: {key}");
        assert_eq!(key < frontier.end(), due, "{rule:?} {course:?}: {key}");
    }
    if steps == 0 {
        return;
    }
    let next = |name, act: &dyn Fn(&mut Frontier, &mut Said)| {
        let (mut frontier, mut said) = (copy(frontier, rule), said.clone());
        act(&mut frontier, &mut said);
        follow(&frontier, &said, rule, steps - 1, &[course, &[name]].concat());
    };
    for largest in [None, Some(1), Some(2), Some(3)] {
        next("look", &|frontier, said| {
            frontier.refreshed(largest, 0);
            said.seen.extend(largest);
            said.proven.append(&mut said.ended);
        });
        next("look in part", &|frontier, _| frontier.refreshed_in_part(largest));
    }
    next("begin", &|frontier, said| {
        let useful = rule == Rule::Proof
            && said.pending.is_none()
            && said.seen.iter().max() > said.proven.iter().chain(&said.ended).max();
        assert_eq!(frontier.begin_proof(), useful, "{course:?}");
        if useful {
            said.pending = Some(said.seen.clone());
        }
    });
    next("end", &|frontier, said| {
        assert_eq!(frontier.end_proof(), said.pending.is_some(), "{course:?}");
        said.ended.extend(said.pending.take().unwrap_or_default());
    });
    next("fail", &|frontier, said| {
        frontier.fail_proof();
        said.pending = None;
    });
}
fn copy(of: &Frontier, rule: Rule) -> Frontier {
    Frontier { rule, ..*of }
}

/// Every course of five steps over keys up to 3: complete and partial refreshes, fences that begin, end and fail. A key
/// called proven was seen by a complete refresh before the start of a fence that ended before the last complete
/// refresh. All such keys leave. Under the other rules, seen keys leave.
#[test]
fn every_short_course_of_a_frontier_lets_out_what_is_proven_and_nothing_else() {
    for rule in [Rule::Proof, Rule::Nothing] {
        follow(&Frontier::new(rule), &Said::default(), rule, 5, &[]);
    }
}
