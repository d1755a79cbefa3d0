//! The registers of a program, by the numbers that DWARF gives them on this architecture.

use perfweave::Bytes;

/// The highest number of a register that is kept, and one more.
const COUNT: usize = 33;

/// On x86-64: the numbers of `asm/perf_regs.h`, and those of the System V ABI for the same registers.
#[cfg(target_arch = "x86_64")]
mod numbers {
    pub(super) const OF: &[(u32, u16)] = &[
        (0, 0),
        (1, 3),
        (2, 2),
        (3, 1),
        (4, 4),
        (5, 5),
        (6, 6),
        (7, 7),
        (8, 16),
        (16, 8),
        (17, 9),
        (18, 10),
        (19, 11),
        (20, 12),
        (21, 13),
        (22, 14),
        (23, 15),
    ];
    /// What `perf record --call-graph dwarf` asks for: perf's own unwinders need all of them.
    pub(super) const ASKED: u64 = 0xff_0fff;
    pub(super) const STACK: u16 = 7;
    pub(super) const INSTRUCTION: u16 = 16;
    /// The bits of a return address that are its address.
    pub(super) const ADDRESS: u64 = u64::MAX;
}

/// On 64-bit Arm both number them alike.
#[cfg(target_arch = "aarch64")]
mod numbers {
    pub(super) const OF: &[(u32, u16)] = &[
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 5),
        (6, 6),
        (7, 7),
        (8, 8),
        (9, 9),
        (10, 10),
        (11, 11),
        (12, 12),
        (13, 13),
        (14, 14),
        (15, 15),
        (16, 16),
        (17, 17),
        (18, 18),
        (19, 19),
        (20, 20),
        (21, 21),
        (22, 22),
        (23, 23),
        (24, 24),
        (25, 25),
        (26, 26),
        (27, 27),
        (28, 28),
        (29, 29),
        (30, 30),
        (31, 31),
        (32, 32),
    ];
    pub(super) const ASKED: u64 = (1 << 33) - 1;
    pub(super) const STACK: u16 = 31;
    pub(super) const INSTRUCTION: u16 = 32;
    /// Above it a return address may be signed (pointer authentication).
    pub(super) const ADDRESS: u64 = (1 << 48) - 1;
}

/// Others are not unwound.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod numbers {
    pub(super) const OF: &[(u32, u16)] = &[];
    pub(super) const ASKED: u64 = 0;
    pub(super) const STACK: u16 = 0;
    pub(super) const INSTRUCTION: u16 = 0;
    pub(super) const ADDRESS: u64 = u64::MAX;
}

/// The registers to ask for, as `sample_regs_user` has them. 0 where stacks are not unwound.
pub const ASKED: u64 = numbers::ASKED;

/// Registers of a frame, as far as they are known.
#[derive(Debug, Clone)]
pub struct Registers([Option<u64>; COUNT]);

impl Registers {
    /// Those of a sample: `PERF_SAMPLE_REGS_USER` with its mask. `None` without the three that say where it is, and for
    /// programs of 32 bits.
    pub fn sampled(field: Bytes<'_>, mask: u64) -> Option<Self> {
        // PERF_SAMPLE_REGS_ABI_64
        if field.u64(0)? != 2 {
            return None;
        }
        let mut registers = Self([None; COUNT]);
        for (perf, dwarf) in numbers::OF.iter().filter(|(perf, _)| mask >> perf & 1 == 1) {
            let before = (mask & ((1 << perf) - 1)).count_ones() as usize;
            registers.set(*dwarf, field.u64(8 + 8 * before));
        }
        registers.stack()?;
        registers.instruction()?;
        Some(registers)
    }

    /// Whether a mask has the registers without which nothing is unwound.
    pub fn are_enough(mask: u64) -> bool {
        let has = |wanted: u16| numbers::OF.iter().any(|(perf, dwarf)| *dwarf == wanted && mask >> perf & 1 == 1);
        has(numbers::STACK) && has(numbers::INSTRUCTION)
    }

    pub fn get(&self, number: u16) -> Option<u64> {
        self.0.get(usize::from(number)).copied().flatten()
    }

    pub fn set(&mut self, number: u16, value: Option<u64>) {
        if let Some(register) = self.0.get_mut(usize::from(number)) {
            *register = value;
        }
    }

    pub fn stack(&self) -> Option<u64> {
        self.get(numbers::STACK)
    }

    pub fn instruction(&self) -> Option<u64> {
        self.get(numbers::INSTRUCTION)
    }

    /// Those of the caller, which goes on there.
    pub fn returns(&mut self, stack: u64, address: u64) {
        self.set(numbers::STACK, Some(stack));
        self.set(numbers::INSTRUCTION, Some(address & numbers::ADDRESS));
    }
}

#[cfg(test)]
mod tests {
    use super::{ASKED, Registers};
    use perfweave::Bytes;

    /// The lowest bit of the mask is the first word after the ABI.
    #[test]
    fn registers_lie_in_the_order_of_the_masks_bits() {
        if ASKED == 0 {
            return;
        }
        let count = u64::from(ASKED.count_ones());
        let words: Vec<u8> = [2].into_iter().chain(100..100 + count).flat_map(u64::to_ne_bytes).collect();
        let registers = Registers::sampled(Bytes::from(&words[..]), ASKED).unwrap();
        let expected = if cfg!(target_arch = "x86_64") { [107, 108] } else { [131, 132] };
        assert_eq!([registers.stack(), registers.instruction()], expected.map(Some));
        // Of 32 bits; without the stack pointer; cut off.
        let narrow: Vec<u8> = [1].into_iter().chain(100..100 + count).flat_map(u64::to_ne_bytes).collect();
        assert!(Registers::sampled(Bytes::from(&narrow[..]), ASKED).is_none());
        assert!(Registers::sampled(Bytes::from(&words[..]), 1).is_none());
        assert!(Registers::sampled(Bytes::from(&words[..16]), ASKED).is_none());
        assert!(Registers::are_enough(ASKED) && !Registers::are_enough(1));
    }
}
