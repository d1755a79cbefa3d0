//! The writers' epoch words, one for each CPU: whether a program is between drawing its key and having written its
//! record.

#[cfg(all(test, loom))]
mod model;

use crate::error::{Error, ErrorKind};
use crate::ring::memory::Mapping;
use crate::ring::words::{self, AtomicU64};
use crate::sys::{bpf, machine};
use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

/// Words in which BPF programs say that they are inside: from before they draw a key until they have written it. One for
/// each CPU, in a BPF array that programs write and this crate reads, or in the simulator's memory. The package
/// perfweave-proofs proves order with them, and has the programs' part.
pub struct EpochWords {
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
struct Epoch(u64);

/// One more generation, in a word.
const GENERATION: u64 = 1 << 32;

impl Epoch {
    /// How many programs are inside.
    #[inline]
    fn depth(self) -> u32 {
        self.0 as u32
    }

    /// Whether all programs that were inside when `before` was read have left: no program is inside now, or none was at
    /// some time in between.
    #[inline]
    fn has_passed(self, before: Self) -> bool {
        self.depth() == 0 || self.0 / GENERATION != before.0 / GENERATION
    }
}

impl EpochWords {
    /// Maps the words of a BPF array. `map` has the array's file descriptor, which the program may close afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the map is no array with `BPF_F_MMAPABLE` or lacks an element for a CPU,
    /// [`ErrorKind::System`] if the array cannot be mapped.
    pub fn open(map: impl AsFd) -> Result<Self, Error> {
        // Asked for once: what is checked is what is mapped.
        let map = map.as_fd();
        let info = bpf::map_info(map).map_err(|errno| match machine::what_is(map) {
            Some(what) if what != "anon_inode:bpf-map" => Error::not_a_map("epochs", &what),
            _ => Error::system("ask what the map of epochs is", errno),
        })?;
        let bpf::MapInfo { map_type, map_flags, value_size, max_entries, .. } = info;
        if map_type != bpf::BPF_MAP_TYPE_ARRAY || map_flags & bpf::BPF_F_MMAPABLE == 0 || value_size == 0 {
            let message = format!(
                "a map of epochs is an array that can be mapped (BPF_MAP_TYPE_ARRAY with BPF_F_MMAPABLE, Linux 5.5); \
                 this map is {}, with flags {map_flags:#x}",
                bpf::map_type(map_type)
            );
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        // Not only those online: a CPU that comes later needs a word too.
        let last = machine::possible_cpus().map_err(Error::cannot("list CPUs"))?.last().copied().unwrap_or(0);
        if max_entries <= last {
            return Err(too_few(max_entries, last));
        }
        // Words of impossible CPUs are not read. An element takes as many bytes as its value, rounded up to 8
        // (`array_map_alloc`, `kernel/bpf/arraymap.c`).
        let stride = value_size.div_ceil(8) as usize;
        Self::map(map, stride, last + 1).map_err(|errno| Error::system("map the epochs", errno.into()))
    }

    /// Maps a BPF array of `len` elements that are `stride` words long each.
    fn map(fd: BorrowedFd<'_>, stride: usize, len: u32) -> nix::Result<Self> {
        let bytes = stride.checked_mul(8).and_then(|each| each.checked_mul(len as usize)).and_then(NonZeroUsize::new);
        let bytes = bytes.ok_or(nix::Error::EINVAL)?;
        Ok(Self { memory: EpochMemory::Mapped(Mapping::new(fd, bytes, false, 0)?), stride, len })
    }

    /// The same in memory.
    pub(crate) fn simulated(len: u32) -> Self {
        let words = (0..len).map(|_| AtomicU64::new(0)).collect();
        Self { memory: EpochMemory::Simulated(words), stride: 1, len }
    }

    /// Whether a program's entering is visible before its clock reading: on x86-64, and in the simulator. Elsewhere
    /// interrupt every CPU before the words are read ([`CpuInterrupt`](crate::CpuInterrupt)).
    pub fn are_ordered(&self) -> bool {
        cfg!(target_arch = "x86_64") || matches!(self.memory, EpochMemory::Simulated(_))
    }

    /// Orders all earlier loads and clock readings before later loads.
    #[inline]
    fn behind_clocks() {
        #[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
        // SAFETY: every x86-64 CPU has the instruction, and it touches no memory.
        unsafe {
            std::arch::x86_64::_mm_lfence();
        }
    }

    /// How many CPUs there are words for.
    #[expect(clippy::len_without_is_empty, reason = "a machine has CPUs")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Reads a CPU's word.
    ///
    /// # Panics
    /// If the CPU has none.
    #[inline]
    fn load(&self, cpu: u32) -> Epoch {
        Epoch(words::load_epoch(self.word(cpu)))
    }

    /// Which CPUs have a program inside, with their words, behind all earlier loads and clock readings. They take the
    /// place of what is in `inside`.
    pub fn inside(&self, inside: &mut Vec<(u32, u64)>) {
        Self::behind_clocks();
        inside.clear();
        let now = (0..self.len).map(|cpu| (cpu, self.load(cpu)));
        // At depth 0 all that had entered have left.
        inside.extend(now.filter(|(_, epoch)| epoch.depth() > 0).map(|(cpu, Epoch(word))| (cpu, word)));
    }

    /// Of CPUs with a program inside, keeps those whose programs have not all left since, as far as is known. Returns
    /// whether there are any.
    #[inline]
    pub fn still_inside(&self, inside: &mut Vec<(u32, u64)>) -> bool {
        inside.retain(|(cpu, before)| !self.load(*cpu).has_passed(Epoch(*before)));
        !inside.is_empty()
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

fn too_few(entries: u32, cpu: u32) -> Error {
    let message = format!("a map of epochs with {entries} elements has none for CPU {cpu}: it needs {}", cpu + 1);
    Error::new(ErrorKind::InvalidInput, message)
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
