//! Which threads have done something since a time, or could run: so that not all are looked at where a switch has no
//! record.

use super::Who;
use std::collections::{HashSet, VecDeque};

/// Below so many, changes are not put together.
const LEAST: usize = 4_096;

/// The changes of threads, the oldest first, and the threads that could run.
#[derive(Debug, Default)]
pub struct Near {
    changes: VecDeque<(u64, Who)>,
    could: HashSet<Who>,
    /// When there are so many changes, the newest one of each thread is kept.
    most: usize,
}

impl Near {
    /// A thread does something else now. `could`: it could run, or whether it could is not known.
    pub fn changes(&mut self, time: u64, who: Who, could: bool) {
        self.changes.push_back((time, who));
        if could {
            self.could.insert(who);
        } else {
            self.could.remove(&who);
        }
        if self.changes.len() > self.most.max(LEAST) {
            self.put_together();
        }
    }

    fn put_together(&mut self) {
        let mut kept = HashSet::new();
        let mut newest: VecDeque<_> = self.changes.iter().rev().filter(|(_, who)| kept.insert(*who)).copied().collect();
        newest.make_contiguous().reverse();
        (self.changes, self.most) = (newest, 4 * kept.len());
    }

    /// A thread is not kept any more.
    pub fn is_gone(&mut self, who: Who) {
        self.could.remove(&who);
    }

    /// Who has changed since a time, or could run before it.
    pub fn since(&self, time: u64) -> HashSet<Who> {
        let first = self.changes.partition_point(|(changed, _)| *changed < time);
        self.changes.range(first..).map(|(_, who)| *who).chain(self.could.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{LEAST, Near};
    use crate::waits::Who;

    #[test]
    fn who_has_changed_or_could_run_is_near() {
        let who = |thread| Who { thread, life: 0 };
        let mut near = Near::default();
        near.changes(1, who(1), true);
        for time in 2..10 * LEAST as u64 {
            near.changes(time, who(2 + (time % 3) as u32), false);
            assert!(near.changes.len() <= LEAST.max(near.most) + 1);
        }
        let last = 10 * LEAST as u64;
        near.changes(last, who(9), false);
        assert_eq!(near.since(last), [who(1), who(9)].into());
        assert_eq!(near.since(last - 2).len(), 4);
        near.is_gone(who(1));
        assert_eq!(near.since(last + 1), [].into());
    }
}
