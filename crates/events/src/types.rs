//! The types of C's integers: how wide they are, and how operators convert them.

use std::cmp::Ordering;

/// An integer's type. Pointers are 64 bits without a sign: so they are on every machine with these rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) bits: u32,
    pub(super) signed: bool,
}

/// An integer, within its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) value: i128,
    pub(super) of: Type,
}

pub(super) const INT: Type = Type { bits: 32, signed: true };
pub(super) const UNSIGNED_INT: Type = Type { bits: 32, signed: false };
pub(super) const LONG: Type = Type { bits: 64, signed: true };
pub(super) const UNSIGNED_LONG: Type = Type { bits: 64, signed: false };

impl Type {
    /// The type with this name. `None` if it is not known. `char`: the type of plain `char`, which differs between
    /// kernels.
    pub(super) fn named(words: &[&str], char: Self) -> Option<Self> {
        let is_signed = !words.contains(&"unsigned");
        let of = |bits, signed| Some(Self { bits, signed });
        let words = words.iter().copied().filter(|word| !matches!(*word, "const" | "volatile" | "__force"));
        let base = words.clone().filter(|word| !matches!(*word, "unsigned" | "signed" | "int"));
        match *base.collect::<Vec<_>>() {
            [] if words.clone().next().is_some() => of(32, is_signed),
            ["char"] if words.count() == 1 => Some(char),
            ["char"] => of(8, is_signed),
            ["short"] => of(16, is_signed),
            ["long"] | ["long", "long"] => of(64, is_signed),
            // Only whether it is 0 counts.
            ["bool" | "_Bool"] => of(1, false),
            ["enum", _] => of(32, false),
            ["u8" | "__u8" | "uint8_t"] => of(8, false),
            ["u16" | "__u16" | "uint16_t" | "umode_t" | "ushort"] => of(16, false),
            ["u32" | "__u32" | "uint32_t" | "uint" | "gfp_t" | "dev_t" | "fmode_t" | "blk_opf_t" | "OM_uint32"] => {
                of(32, false)
            }
            ["u64" | "__u64" | "uint64_t" | "size_t" | "uintptr_t" | "sector_t" | "ulong"] => of(64, false),
            ["dma_addr_t" | "phys_addr_t" | "resource_size_t" | "pgoff_t" | "ino_t"] => of(64, false),
            ["s8" | "__s8" | "int8_t"] => of(8, true),
            ["s16" | "__s16" | "int16_t"] => of(16, true),
            ["s32" | "__s32" | "int32_t" | "pid_t" | "__kernel_rwf_t"] => of(32, true),
            ["s64" | "__s64" | "int64_t" | "loff_t" | "ssize_t" | "ktime_t"] => of(64, true),
            _ => None,
        }
    }

    /// A number converted to this type.
    pub(super) fn of(self, number: i128) -> Number {
        let unused = 128 - self.bits;
        let value = match self {
            Self { bits: 1, .. } => (number != 0).into(),
            Self { signed: true, .. } => number << unused >> unused,
            Self { signed: false, .. } => ((number as u128) << unused >> unused) as i128,
        };
        Number { value, of: self }
    }

    /// What it is as an operand: at least an `int`.
    pub(super) fn promoted(self) -> Self {
        if self.bits < INT.bits { INT } else { self }
    }

    /// The type to which both operands of an operator are converted.
    pub(super) fn common(self, other: Self) -> Self {
        let (one, other) = (self.promoted(), other.promoted());
        match one.bits.cmp(&other.bits) {
            Ordering::Less => other,
            Ordering::Greater => one,
            Ordering::Equal => Self { bits: one.bits, signed: one.signed && other.signed },
        }
    }
}
