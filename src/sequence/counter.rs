//! Where the sequence numbers of records are.

use crate::record::Record;
use std::fmt;

/// The function behind [`Sequence::with`].
type Extract = Box<dyn Fn(&Record<'_>) -> Option<u64> + Send>;

/// Numbers that programs write into their records: each CPU counts by itself
/// ([`Order::numbers`](crate::Order::numbers)). A missing number shows that a record is missing from the stream.
///
/// The program must count up in the same run in which it outputs the record, and must not be able to sleep. Then a
/// fence proves that a missing number will not come. A counter of the whole machine is a key: see
/// [`Hold::Dense`](crate::Hold::Dense).
///
/// # Counters that wrap
///
/// A counter has 32 to 64 bits. A narrower one could wrap while one program is delayed between drawing a number and
/// writing it.
///
/// A counter may wrap around, as long as the crate can tell one round from the next. For that, **less than 7/16 of its
/// range may be lost at once**. With 32 bits that is 1.8 billion records.
///
/// The crate notices if more records are lost. The stream then reports it once
/// ([`AnomalyKind::Wraparound`](crate::AnomalyKind::Wraparound)). No gaps are reported for the records counted
/// meanwhile, the ledger is not balanced, and counting starts again. Losses that the kernel does not count
/// ([`Status`](crate::Status)) are not noticed. A counter of 64 bits does not wrap.
pub struct Sequence {
    at: At,
    bits: u32,
    first: Option<u64>,
}

/// The narrowest counter. No program is delayed for two billion records. It may be delayed for 2^16.
const NARROWEST: u32 = 32;

enum At {
    /// Of the raw payload, in bytes.
    Payload(usize),
    Extract(Extract),
}

impl Sequence {
    fn payload(offset: usize, bits: u32) -> Self {
        Self { at: At::Payload(offset), bits, first: None }
    }

    /// Four bytes at this offset of the raw payload, in native byte order. The offset need not be aligned.
    pub fn u32(offset: usize) -> Self {
        Self::payload(offset, 32)
    }

    /// Eight bytes at this offset of the raw payload, in native byte order. The offset need not be aligned.
    pub fn u64(offset: usize) -> Self {
        Self::payload(offset, 64)
    }

    /// The number that a function finds: a counter of this many bits. Higher bits are ignored. The function must not
    /// panic. Records without a number are not checked.
    ///
    /// # Panics
    /// Unless `bits` is 32 to 64.
    pub fn with(bits: u32, extract: impl Fn(&Record<'_>) -> Option<u64> + Send + 'static) -> Self {
        assert!(
            (NARROWEST..=64).contains(&bits),
            "a counter of {bits} bits: 32 to 64 can be told from themselves one round earlier"
        );
        Self { at: At::Extract(Box::new(extract)), bits, first: None }
    }

    /// Sets the first number, so that numbers missing before the first one seen are a gap too. Unless set, counting
    /// starts with the first number seen.
    pub fn starting_at(mut self, first: u64) -> Self {
        self.first = Some(first);
        self
    }

    /// A record's number as it was written, if it has one.
    #[inline]
    pub fn of(&self, record: &Record<'_>) -> Option<u64> {
        match &self.at {
            At::Payload(offset) => {
                let payload = record.payload()?;
                match self.bits {
                    32 => payload.u32(*offset).map(u64::from),
                    _ => payload.u64(*offset),
                }
            }
            At::Extract(extract) => extract(record),
        }
    }

    /// How many bits the counter has.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// The first number, if it was set ([`Sequence::starting_at`]).
    pub fn first(&self) -> Option<u64> {
        self.first
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Sequence");
        if let At::Payload(offset) = &self.at {
            debug.field("offset", offset);
        }
        debug.field("bits", &self.bits).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Sequence;

    /// While a program is delayed between drawing a number and writing it, a narrower counter wraps. Then its number
    /// counts as one of another round, and a proven gap names a number that was yielded. (Seen with 8, 10 and 16 bits.)
    #[test]
    fn a_counter_of_less_than_32_bits_is_refused() {
        let takes = |bits| std::panic::catch_unwind(|| Sequence::with(bits, |_| None)).is_ok();
        for bits in 0..=66 {
            assert_eq!(takes(bits), (32..=64).contains(&bits), "{bits} bits");
        }
    }
}
