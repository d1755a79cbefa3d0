//! The writers' epoch words, one for each CPU: whether a program is between drawing its key and having written its
//! record.

#[cfg(all(test, loom))]
mod model;

use crate::ring::memory::Mapping;
use crate::ring::words::{self, AtomicU64};
use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// One word for each CPU, in a BPF array that programs write and the crate reads, or in the simulator's memory.
pub(crate) struct EpochWords {
    memory: EpochMemory,
    /// Words from one CPU's to the next one's.
    stride: usize,
    /// How many CPUs there are words for.
    len: u32,
}

enum EpochMemory {
    Mapped(Mapping),
    Simulated(Box<[AtomicU64]>),
}

// SAFETY: the mapping belongs to the process, not to a thread, and its words are only used as atomics.
unsafe impl Send for EpochWords {}
// SAFETY: as for Send.
unsafe impl Sync for EpochWords {}

/// A CPU's word as it was read. Programs write it, so it can be anything.
///
/// The low half is the depth: how many programs on that CPU have entered and not left. The high half is the generation:
/// it grows each time that the depth falls to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

/// One more generation, in a word.
const GENERATION: u64 = 1 << 32;

impl Epoch {
    /// How many programs are inside.
    #[inline]
    pub(crate) fn depth(self) -> u32 {
        self.0 as u32
    }

    /// Whether all programs that were inside when `before` was read have left: no program is inside now, or none was at
    /// some time in between.
    #[inline]
    pub(crate) fn has_passed(self, before: Self) -> bool {
        self.depth() == 0 || self.0 / GENERATION != before.0 / GENERATION
    }
}

impl EpochWords {
    /// Maps a BPF array of `len` elements that are `stride` words long each.
    pub(crate) fn map(fd: BorrowedFd<'_>, stride: usize, len: u32) -> nix::Result<Self> {
        let bytes = stride.checked_mul(8).and_then(|each| each.checked_mul(len as usize)).and_then(NonZeroUsize::new);
        let bytes = bytes.ok_or(nix::Error::EINVAL)?;
        Ok(Self { memory: EpochMemory::Mapped(Mapping::new(fd, bytes, false, 0)?), stride, len })
    }

    /// The same in memory.
    pub(crate) fn simulated(len: u32) -> Self {
        let words = (0..len).map(|_| AtomicU64::new(0)).collect();
        Self { memory: EpochMemory::Simulated(words), stride: 1, len }
    }

    /// Whether programs write the words, and not the simulator.
    pub(crate) fn are_mapped(&self) -> bool {
        matches!(self.memory, EpochMemory::Mapped(_))
    }

    /// Orders all earlier loads and clock readings before later loads.
    #[inline]
    pub(crate) fn behind_clocks() {
        #[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
        // SAFETY: every x86-64 CPU has the instruction, and it touches no memory.
        unsafe {
            std::arch::x86_64::_mm_lfence();
        }
    }

    /// How many CPUs there are words for.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Reads a CPU's word.
    #[inline]
    pub(crate) fn load(&self, cpu: u32) -> Epoch {
        Epoch(words::load_epoch(self.word(cpu)))
    }

    /// The writers' half, for `sim`: a program begins.
    pub(crate) fn enter(&self, cpu: u32) {
        words::enter_epoch(self.simulated_word(cpu));
    }

    /// The writers' half, for `sim`: a program ends.
    pub(crate) fn leave(&self, cpu: u32) {
        words::leave_epoch(self.simulated_word(cpu));
    }

    /// The writers' half, for `sim`: a faulty program writes any value.
    pub(crate) fn set(&self, cpu: u32, word: u64) {
        words::store_head(self.simulated_word(cpu), word);
    }

    /// A mapped word cannot be written.
    fn simulated_word(&self, cpu: u32) -> &AtomicU64 {
        match &self.memory {
            EpochMemory::Simulated(words) => &words[cpu as usize],
            EpochMemory::Mapped(_) => unreachable!("only programs write into a map"),
        }
    }

    #[inline]
    fn word(&self, cpu: u32) -> &AtomicU64 {
        assert!(cpu < self.len, "no word for CPU {cpu}: there are {}", self.len);
        match &self.memory {
            EpochMemory::Simulated(words) => &words[cpu as usize],
            EpochMemory::Mapped(mapping) => {
                let words: NonNull<AtomicU64> = mapping.base().cast();
                // SAFETY: the mapping has `stride * len` words, and `cpu` is less than `len`.
                let word = unsafe { words.add(cpu as usize * self.stride) };
                // SAFETY: mapped while `self` lives, aligned as pages are and 8 apart, only ever used as an atomic.
                unsafe { word.as_ref() }
            }
        }
    }
}

impl fmt::Debug for EpochWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpochWords").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_passed_when_nobody_is_inside_or_nobody_was_in_between() {
        let words = EpochWords::simulated(1);
        let outside = words.load(0);
        assert_eq!(outside.depth(), 0);
        words.enter(0);
        let inside = words.load(0);
        words.enter(0);
        assert_eq!((inside.depth(), words.load(0).depth()), (1, 2));
        words.leave(0);
        assert!(!words.load(0).has_passed(inside), "one left, and the other is still inside");
        words.leave(0);
        assert!(words.load(0).has_passed(inside));
        words.enter(0);
        assert!(words.load(0).has_passed(inside), "somebody else is inside");
        assert!(!words.load(0).has_passed(words.load(0)));
    }

    /// Depth and generation over all short courses of entering and leaving: the generation says how often nobody was
    /// inside.
    #[test]
    fn generations_count_how_often_nobody_is_inside() {
        for course in 0..1u32 << 12 {
            let words = EpochWords::simulated(1);
            let (mut depth, mut emptied) = (0, 0);
            for step in 0..12 {
                if course >> step & 1 == 1 {
                    words.enter(0);
                    depth += 1;
                } else if depth > 0 {
                    words.leave(0);
                    depth -= 1;
                    emptied += u64::from(depth == 0);
                }
                assert_eq!(words.load(0), Epoch(emptied * GENERATION + depth), "{course:b}");
            }
        }
    }

    /// Whatever is in a word, two readings of the same word with a program inside say that nothing has passed.
    #[test]
    fn what_does_not_change_does_not_pass() {
        for word in [1, u64::MAX, GENERATION | 1, u64::from(u32::MAX)] {
            assert!(!Epoch(word).has_passed(Epoch(word)), "{word:x}");
        }
        for word in [0, GENERATION, u64::MAX - u64::from(u32::MAX)] {
            assert!(Epoch(word).has_passed(Epoch(word)), "{word:x}");
        }
    }
}
