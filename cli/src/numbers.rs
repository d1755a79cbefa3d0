//! Numbers of threads in a PID namespace, as in a container. Fields of tracepoints have those of the first namespace.
//! `PERF_SAMPLE_TID` and `/proc` have those of this one, so a record that has both tells the number of the thread that
//! wrote it.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Which number here a thread has. A thread from outside has none: it is told apart by [`OUTSIDE`] and its number
/// there.
#[derive(Debug)]
pub struct Numbers {
    /// Unknown only of a recording, until a record tells.
    are_the_kernels: Option<bool>,
    here: HashMap<u32, u32>,
    kernels: HashMap<u32, u32>,
}

/// No thread has so large a number (`PID_MAX_LIMIT` is 2^22). In files that others read, numbers of threads have 31
/// bits.
pub const OUTSIDE: u32 = 1 << 30;

/// What the kernel gives as the number of a thread that has ended (`perf_event_pid_type`, kernel/events/core.c).
pub const ENDED: u32 = u32::MAX;

/// A number that the kernel has given, if the thread or process had one.
pub fn known(number: u32) -> Option<u32> {
    (number != ENDED).then_some(number)
}

impl Numbers {
    /// As this process needs them.
    pub fn now() -> Self {
        Self { are_the_kernels: Some(Self::are_the_kernels()), ..Self::recorded() }
    }

    /// Of a recording. In which namespace it was made, its records tell.
    pub fn recorded() -> Self {
        Self { are_the_kernels: None, here: HashMap::new(), kernels: HashMap::new() }
    }

    /// Whether these are known to be others than the numbers of the first namespace.
    pub fn are_others(&self) -> bool {
        self.are_the_kernels == Some(false)
    }

    /// Whether the numbers here are those of the first namespace.
    pub fn are_the_kernels() -> bool {
        // `PROC_PID_INIT_INO` (include/linux/proc_ns.h).
        fs::metadata("/proc/self/ns/pid").map_or(true, |space| space.ino() == 0xEFFF_FFFC)
    }

    /// The kernel's number of a thread and `PERF_SAMPLE_TID` of a record that this thread wrote. Gives its number here.
    pub fn learn(&mut self, thread: u32, sampled: u32) -> Option<u32> {
        if thread == 0 || sampled == ENDED {
            return self.here(thread);
        }
        if *self.are_the_kernels.get_or_insert(thread == sampled) && thread != sampled {
            // A thread may have the same number in both.
            self.are_the_kernels = Some(false);
        }
        if self.are_the_kernels == Some(true) {
            return Some(thread);
        }
        let tid = if sampled == 0 { OUTSIDE | thread } else { sampled };
        if self.here.insert(thread, tid) != Some(tid) {
            self.kernels.insert(tid, thread);
        }
        Some(tid)
    }

    /// The number here of the thread with the kernel's number.
    pub fn here(&self, thread: u32) -> Option<u32> {
        if self.are_the_kernels == Some(true) || thread == 0 { Some(thread) } else { self.here.get(&thread).copied() }
    }

    /// The kernel's number of the thread with the number here.
    pub fn kernels(&self, tid: u32) -> Option<u32> {
        if self.are_the_kernels == Some(true) { Some(tid) } else { self.kernels.get(&tid).copied() }
    }

    /// A thread has ended.
    pub fn forget(&mut self, thread: u32) {
        if let Some(tid) = self.here.remove(&thread)
            && self.kernels.get(&tid) == Some(&thread)
        {
            self.kernels.remove(&tid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ENDED, Numbers, OUTSIDE};
    use std::collections::HashMap;

    #[test]
    fn numbers_are_learned_from_records_that_have_both() {
        let mut numbers = Numbers { are_the_kernels: Some(false), here: HashMap::new(), kernels: HashMap::new() };
        assert_eq!((numbers.here(0), numbers.here(900), numbers.kernels(7)), (Some(0), None, None));
        assert_eq!(numbers.learn(900, 7), Some(7));
        assert_eq!(numbers.learn(901, 0), Some(OUTSIDE | 901));
        assert_eq!(numbers.learn(900, ENDED), Some(7));
        assert_eq!(
            [numbers.here(900), numbers.here(901), numbers.kernels(7)],
            [Some(7), Some(OUTSIDE | 901), Some(900)]
        );
        // Another thread gets the number here before the end of the first was seen.
        numbers.learn(902, 7);
        numbers.forget(900);
        assert_eq!([numbers.here(900), numbers.kernels(7)], [None, Some(902)]);
    }

    #[test]
    fn a_recording_tells_by_its_records_whose_numbers_it_has() {
        let mut numbers = Numbers::recorded();
        assert_eq!((numbers.here(900), numbers.learn(0, 0), numbers.here(900)), (None, Some(0), None));
        assert_eq!((numbers.learn(900, 900), numbers.here(901), numbers.are_others()), (Some(900), Some(901), false));
        assert_eq!((numbers.learn(901, 7), numbers.here(902), numbers.are_others()), (Some(7), None, true));
        let mut numbers = Numbers::recorded();
        assert_eq!((numbers.learn(900, 0), numbers.are_others()), (Some(OUTSIDE | 900), true));
    }
}
