//! What was, the newest part of it.

use std::collections::VecDeque;

/// A time, and what was in it. Nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch<T> {
    pub from: u64,
    pub to: u64,
    pub what: T,
}

/// Stretches without a hole, the oldest first.
#[derive(Debug)]
pub struct History<T> {
    stretches: VecDeque<Stretch<T>>,
    /// What was before is not kept any more.
    pub kept_from: u64,
}

impl<T: Clone + PartialEq> History<T> {
    /// One that begins at a time.
    pub fn new(from: u64) -> Self {
        Self { stretches: VecDeque::new(), kept_from: from }
    }

    pub fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.stretches.len()
    }

    /// Adds what follows the last one. False if nothing was added: the time is empty, or the last one goes on.
    pub fn push(&mut self, from: u64, to: u64, what: T) -> bool {
        if from >= to {
            return false;
        }
        match self.stretches.back_mut() {
            Some(last) if last.what == what && last.to == from => {
                last.to = to;
                false
            }
            _ => {
                self.stretches.push_back(Stretch { from, to, what });
                true
            }
        }
    }

    /// Takes back what was after a time. Gives the stretch that ends there instead of later, and the one before it.
    pub fn cut(&mut self, after: u64) -> Option<(&mut T, Option<&T>)> {
        while self.stretches.back().is_some_and(|last| last.from >= after) {
            self.stretches.pop_back();
        }
        let mut last = self.stretches.iter_mut().rev();
        let shortened = last.next().filter(|last| last.to > after)?;
        shortened.to = after;
        Some((&mut shortened.what, last.next().map(|before| &before.what)))
    }

    /// What ended at this time, if it is one of the last.
    pub fn ended(&mut self, at: u64) -> Option<&mut T> {
        let mut last = self.stretches.iter_mut().rev().take_while(|stretch| stretch.to >= at);
        last.find(|stretch| stretch.to == at).map(|stretch| &mut stretch.what)
    }

    /// Drops the oldest.
    pub fn forget(&mut self) {
        if let Some(oldest) = self.stretches.pop_front() {
            self.kept_from = oldest.to;
        }
    }

    /// What was between two times, as far as it is kept.
    pub fn between(&self, from: u64, to: u64) -> impl Iterator<Item = Stretch<T>> {
        let first = self.stretches.partition_point(|stretch| stretch.to <= from);
        let within = self.stretches.range(first..).take_while(move |stretch| stretch.from < to);
        within.map(move |stretch| Stretch {
            from: stretch.from.max(from),
            to: stretch.to.min(to),
            what: stretch.what.clone(),
        })
    }
}
