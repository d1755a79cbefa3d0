//! What a recording is of, as its records show: of the whole machine, or of some threads alone.
//!
//! A recording of one process (`perf record COMMAND`) has the switches away from its threads, which they write themselves,
//! and not those to them, which others write.

use std::collections::HashSet;

/// Switches away from threads, and whether there is one back.
#[derive(Debug, Default)]
pub struct Extent {
    left: u64,
    /// Of those, how many threads came back of which no other thread's switch tells.
    untold: u64,
    away: HashSet<u32>,
    /// Whether anything tells who wakes whom.
    has_wakes: bool,
}

impl Extent {
    pub fn new(has_wakes: bool) -> Self {
        Self { has_wakes, ..Self::default() }
    }

    /// A switch from a thread to another.
    pub fn switch(&mut self, prev: u32, next: u32) {
        self.runs(prev);
        if prev != 0 {
            self.left += 1;
            self.away.insert(prev);
        }
        self.away.remove(&next);
    }

    /// A thread writes a record, so it runs.
    pub fn runs(&mut self, thread: u32) {
        self.untold += u64::from(self.away.remove(&thread));
    }

    /// What cannot be concluded from such a recording, and what can.
    pub fn lacks(&self) -> Option<&'static str> {
        match (self.untold * 2 > self.left, self.has_wakes) {
            (true, _) => Some(
                "the recording is of some threads alone: who ended their waits, and who had the CPU, is not in it\nhint: record the \
                 whole machine (-a); with --switch-events at least the waits have their lengths",
            ),
            (false, false) => {
                Some("the recording has no sched:sched_waking, so nothing says who ended a wait\nhint: record it, too")
            }
            (false, true) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_of_some_threads_are_known() {
        let of = |told: &dyn Fn(&mut Extent)| {
            let mut extent = Extent { has_wakes: true, ..Extent::default() };
            told(&mut extent);
            extent.lacks().map(|text| text.split(':').next().unwrap().to_owned())
        };
        let some = Some("the recording is of some threads alone".to_owned());
        assert_eq!(of(&|_| ()), None);
        // Each comes back by another's switch, but for one of six, as on virtual machines.
        assert_eq!(of(&|extent| (0..12).for_each(|n| extent.switch(1 + n % 2, 1 + (n + 1) % 2))), None);
        assert_eq!(of(&|extent| (0..6).for_each(|n| extent.switch(1, if n == 0 { 0 } else { 1 }))), None);
        // One leaves again and again, or writes other records in between.
        assert_eq!(of(&|extent| (0..4).for_each(|_| extent.switch(1, 0))), some);
        let writes = |extent: &mut Extent| {
            extent.switch(1, 0);
            extent.runs(1);
        };
        assert_eq!(of(&writes), some);
        let mut quiet = Extent::default();
        quiet.switch(1, 2);
        assert!(quiet.lacks().unwrap().starts_with("the recording has no sched:sched_waking"));
    }
}
