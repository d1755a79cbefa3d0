//! Stacks without frame pointers: the kernel copies a program's registers and the innermost part of its stack into each
//! sample (`--call-graph dwarf`), and the rules of the program's files say who called whom.

pub mod registers;
pub mod rules;
pub mod stack;

use crate::convert::names::{Frame, Mode};
use perf_event_open_sys::bindings;
use perfweave::Record;
use registers::Registers;
pub use rules::{Caller, End};
use stack::Stack;

/// The most frames of a stack.
const MOST: usize = 1024;

/// What a sample has of a program.
#[derive(Debug)]
pub struct Sample<'a> {
    registers: Registers,
    stack: Stack<'a>,
}

impl<'a> Sample<'a> {
    /// `None` if it has no registers or no stack: of threads of the kernel, and of programs of 32 bits.
    pub fn of(record: &Record<'a>) -> Option<Self> {
        let registers = record.field(bindings::PERF_SAMPLE_REGS_USER)?;
        let registers = Registers::sampled(registers, record.layout().register_masks()[0])?;
        let stack = Stack::sampled(record.field(bindings::PERF_SAMPLE_STACK_USER)?, registers.stack()?)?;
        Some(Self { registers, stack })
    }

    /// The program's frames, the innermost first, and why there are no more. `caller` finds who called what runs at an
    /// address.
    pub fn frames(
        self,
        mut caller: impl FnMut(u64, &Registers, &Stack<'_>) -> Result<Caller, End>,
    ) -> (Vec<Frame>, End) {
        let Self { mut registers, stack } = self;
        let (mut frames, mut is_caller) = (Vec::new(), false);
        while let (Some(address), Some(at)) = (registers.instruction(), registers.stack()) {
            let frame = Frame { address, mode: Mode::User, is_caller };
            frames.push(frame);
            if frames.len() == MOST {
                return (frames, End::Long);
            }
            let next = match caller(frame.called(), &registers, &stack) {
                Ok(next) => next,
                Err(end) => return (frames, end),
            };
            // A caller lies farther out, unless the function has no frame, or a signal has its own stack.
            let has_moved = next.registers.stack().is_some_and(|next| next > at || next == at && !is_caller);
            if next.has_called && !has_moved {
                return (frames, End::NoRule);
            }
            (registers, is_caller) = (next.registers, next.has_called);
        }
        (frames, End::NoRule)
    }
}

/// How often stacks were unwound, and how they ended.
#[derive(Debug, Default)]
pub struct Unwound {
    stacks: u64,
    /// By [`End`].
    ends: [u64; 7],
}

impl Unwound {
    pub fn count(&mut self, end: End) {
        self.stacks += 1;
        self.ends[end as usize] += 1;
    }

    /// What is to be said of stacks that are not whole.
    pub fn note(&self) -> Option<String> {
        let kinds = End::WORDS.map(|(end, words)| (self.ends[end as usize], words));
        let kinds = kinds.into_iter().filter(|(count, _)| *count > 0);
        let kinds: Vec<_> = kinds.map(|(count, place)| format!("{count} {place}")).collect();
        (!kinds.is_empty()).then(|| {
            format!("of {} unwound stacks end before their outermost function: {}", self.stacks, kinds.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::registers::{ASKED, Registers};
    use super::rules::Rules;
    use super::stack::Stack;
    use super::{Caller, End, MOST, Sample};
    use perfweave::Bytes;
    use std::fs::File;

    fn bytes(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    /// Numbers that look random (xorshift).
    fn next(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    }

    /// Registers that lead anywhere, copies that are short and full of numbers that point at each other: nothing panics,
    /// and no stack is without end.
    #[test]
    fn hostile_samples_end() {
        if ASKED == 0 {
            return;
        }
        let mut rules = Rules::read(&File::open("/proc/self/exe").unwrap()).unwrap();
        let (count, seed) = (u64::from(ASKED.count_ones()), &mut 7);
        let places: Vec<u64> = rules.offsets().collect();
        let (mut longest, mut ends) = (0, [0; 7]);
        for _ in 0..20_000 {
            let from = [0, 8, 0x7fff_0000, u64::MAX - 64][next(seed) as usize % 4];
            let len = next(seed) % 64;
            let mut word = || match next(seed) % 4 {
                0 => from.wrapping_add(next(seed) % 512),
                1 => places[next(seed) as usize % places.len()].wrapping_add(next(seed) % 64),
                2 => next(seed),
                _ => u64::MAX - next(seed) % 16,
            };
            let field = bytes([2].into_iter().chain((0..count).map(|_| word())));
            let mut registers = Registers::sampled(Bytes::from(&field[..]), ASKED).unwrap();
            let start = word();
            registers.returns(from, start);
            let copy = bytes([8 * len].into_iter().chain((0..len).map(|_| word())).chain([8 * len]));
            let stack = Stack::sampled(Bytes::from(&copy[..]), from).unwrap();
            let sample = Sample { registers, stack };
            let (frames, end) = sample.frames(|address, registers, stack| rules.caller(address, registers, stack));
            longest = longest.max(frames.len());
            ends[end as usize] += 1;
        }
        assert!((3..=MOST).contains(&longest), "{longest}");
        assert!(ends[End::Cut as usize] > 0 && ends[End::NoRule as usize] > 0, "{ends:?}");
    }

    /// Bytes of the section that are not what a compiler wrote.
    #[test]
    fn hostile_rules_end() {
        let (file, seed) = (File::open("/proc/self/exe").unwrap(), &mut 9);
        let mut rules = Rules::read(&file).unwrap();
        let places: Vec<u64> = rules.offsets().take(1 << 10).collect();
        let copy = bytes([64, 1, 2, 3, 4, 5, 6, 7, 8, 64]);
        for _ in 0..40 {
            rules.damage(|bytes| {
                let at = next(seed) as usize % bytes.len().min(1 << 16);
                bytes[at] = next(seed) as u8;
            });
            for place in &places {
                let field = bytes([2].into_iter().chain((0..u64::from(ASKED.count_ones())).map(|_| next(seed))));
                let Some(registers) = Registers::sampled(Bytes::from(&field[..]), ASKED) else { return };
                let stack = Stack::sampled(Bytes::from(&copy[..]), registers.stack().unwrap()).unwrap();
                let _ = rules.caller(*place, &registers, &stack);
            }
        }
    }

    /// Many functions share an entry that is long, and one has a long one: neither is used, nor read again and again.
    #[test]
    fn long_rules_are_not_used() {
        let mut rules = Rules::read(&File::open("/proc/self/exe").unwrap()).unwrap();
        let long = |len: u32| [&len.to_ne_bytes()[..], &vec![0; len as usize]].concat();
        // A CIE: version 1, an augmentation of very many S, and how to align, for x86-64; and functions of it.
        let mut cie = long(1 << 20);
        cie[8] = 1;
        cie[9] = b'z';
        cie[10..(1 << 20) - 64].fill(b'S');
        let mut section = cie;
        for _ in 0..100_000 {
            let mut fde = long(28);
            let back = u32::try_from(section.len() + 4).unwrap();
            fde[4..8].copy_from_slice(&back.to_ne_bytes());
            section.extend(fde);
        }
        assert_eq!(rules.replace(section), 0);
    }

    /// A chain that goes on for ever, and one that does not move.
    #[test]
    fn stacks_have_a_bound_and_move_outwards() {
        if ASKED == 0 {
            return;
        }
        let field = bytes([2].into_iter().chain((0..u64::from(ASKED.count_ones())).map(|_| 64)));
        let copy = bytes([8, 1, 8]);
        for (step, frames, end) in [(8, MOST, End::Long), (0, 2, End::NoRule), (u64::MAX - 7, 1, End::NoRule)] {
            let registers = Registers::sampled(Bytes::from(&field[..]), ASKED).unwrap();
            let stack = Stack::sampled(Bytes::from(&copy[..]), 64).unwrap();
            let (found, why) = Sample { registers, stack }.frames(|_, registers, _| {
                let mut registers = registers.clone();
                registers.returns(registers.stack().unwrap().wrapping_add(step), 1);
                Ok(Caller { registers, has_called: true })
            });
            assert_eq!((found.len(), why), (frames, end), "{step}");
        }
    }
}
