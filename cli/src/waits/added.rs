//! The order in which stretches were added. The oldest is dropped first.

use super::Who;
use std::collections::VecDeque;

/// Of whom each stretch is that is kept, the oldest first.
#[derive(Debug)]
pub struct Added {
    order: VecDeque<Of>,
    /// The most that are kept, of all threads and CPUs together.
    most: usize,
}

/// Whose history a stretch is in.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    Thread(Who),
    Cpu(u32),
    Interrupts(u32),
}

impl Added {
    pub fn new(most: usize) -> Self {
        Self { order: VecDeque::new(), most }
    }

    /// A stretch was added, if it is new and not the last one going on.
    pub fn note(&mut self, of: Of, is_new: bool) {
        // Where all are kept, none is dropped.
        if is_new && self.most != usize::MAX {
            self.order.push_back(of);
        }
    }

    /// Whose oldest stretch there is no room for.
    pub fn drop_one(&mut self) -> Option<Of> {
        if self.order.len() > self.most { self.order.pop_front() } else { None }
    }
}
