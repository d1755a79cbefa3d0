//! Who waits for whom in a circle.

use super::causes::Wait;
use super::threads;
use std::collections::{BTreeMap, BTreeSet};

/// Threads of which each waits for the next alone, and the last for the first. A thread for which any of several could do
/// it is in none, nor one that a time may end.
pub fn cycles(waits: &BTreeMap<u32, Wait>) -> Vec<Vec<u32>> {
    let next: BTreeMap<u32, u32> = waits
        .values()
        .filter(|wait| wait.is_for_ever())
        .filter_map(|wait| Some((wait.thread.tid, only(wait)?)))
        .collect();
    circles(&next)
}

/// The one thread that could end a wait, if there is one alone.
fn only(wait: &Wait) -> Option<u32> {
    let [ender] = &wait.for_whom[..] else { return None };
    match (ender.tid, &threads::numbers(ender.pid)[..]) {
        (Some(tid), _) => Some(tid),
        (None, [tid]) => Some(*tid),
        _ => None,
    }
}

/// The circles of a map, each from its smallest number on.
fn circles(next: &BTreeMap<u32, u32>) -> Vec<Vec<u32>> {
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for begin in next.keys() {
        let mut path = Vec::new();
        let mut at = Some(begin);
        while let Some(tid) = at.filter(|tid| seen.insert(**tid)) {
            path.push(*tid);
            at = next.get(tid);
        }
        // It ends where somebody was before: on this path, or on another.
        if let Some(first) = at.and_then(|tid| path.iter().position(|other| other == tid)) {
            let mut circle = path.split_off(first);
            let smallest = circle.iter().enumerate().min_by_key(|(_, tid)| **tid).map_or(0, |(at, _)| at);
            circle.rotate_left(smallest);
            found.push(circle);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found_once() {
        let found = |edges: &[(u32, u32)]| circles(&edges.iter().copied().collect());
        assert_eq!(found(&[]), Vec::<Vec<u32>>::new());
        assert_eq!(found(&[(1, 2), (2, 3)]), Vec::<Vec<u32>>::new());
        assert_eq!(found(&[(5, 5)]), [[5]]);
        // Two lead into it.
        assert_eq!(found(&[(1, 7), (2, 7), (7, 4), (4, 9), (9, 7)]), [[4, 9, 7]]);
        assert_eq!(found(&[(1, 2), (2, 1), (3, 4), (4, 3)]), [[1, 2], [3, 4]]);
    }
}
