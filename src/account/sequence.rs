//! Sequence numbers that count records: where they are, and how they wrap.

use crate::error::{Error, ErrorKind};
use crate::record::Record;
use std::fmt;

/// The function behind [`Sequence::with`].
type Extract = Box<dyn Fn(&Record<'_>) -> Option<u64> + Send>;

/// Numbers that programs write into their records, each one more than the last. A missing number shows that something
/// is missing from the stream.
///
/// The program must count up where it outputs the record, in the same run, and must not be able to sleep. Then a fence
/// proves that a missing number will not come.
///
/// # Counters that wrap
///
/// A counter has 32 bits or more. A narrower one can go round while one program is held up between drawing a number and
/// writing it: [`Merge::new`](crate::Merge::new) refuses it ([`ErrorKind::Clock`]).
///
/// A counter may wrap around, as long as the crate can tell one round from the next. For that, between two looks, **less
/// than 7/16 of its range may be unread in all rings together, held, or lost** (for a CPU's own numbers: lost at once).
/// With 32 bits that is 1.8 billion records.
///
/// The crate notices if it is more. The stream then says so once ([`Break::Ambiguous`](crate::Break::Ambiguous)), the
/// records counted meanwhile are [`Class::Assumed`](crate::Class::Assumed), no gaps are made up, the ledger is not
/// balanced, and counting begins anew. Losses that the kernel does not count ([`Ledger`](crate::Ledger)) cannot be
/// noticed.
pub struct Sequence {
    at: At,
    bits: u32,
    first: Option<u64>,
}

/// A counter of so many bits does not go round while a program is held up: nobody writes two billion records meanwhile. Those of 16 bits
/// and less do.
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

    /// One byte at this offset of the raw payload. No stream takes it: it is too narrow.
    pub fn u8(offset: usize) -> Self {
        Self::payload(offset, 8)
    }

    /// Two bytes at this offset of the raw payload, in native byte order. They need not be aligned. No stream takes
    /// them: they are too narrow.
    pub fn u16(offset: usize) -> Self {
        Self::payload(offset, 16)
    }

    /// Four bytes at this offset of the raw payload, in native byte order. They need not be aligned.
    pub fn u32(offset: usize) -> Self {
        Self::payload(offset, 32)
    }

    /// Eight bytes at this offset of the raw payload, in native byte order. They need not be aligned.
    pub fn u64(offset: usize) -> Self {
        Self::payload(offset, 64)
    }

    /// The number that a function finds: a counter of this many bits, of which there must be 32 for a stream to take it.
    /// Higher bits are ignored. The function must not panic. Records without a number are not counted.
    ///
    /// # Panics
    /// Unless `bits` is 2 to 64.
    pub fn with(bits: u32, extract: impl Fn(&Record<'_>) -> Option<u64> + Send + 'static) -> Self {
        assert!((2..=64).contains(&bits), "a counter of {bits} bits");
        Self { at: At::Extract(Box::new(extract)), bits, first: None }
    }

    /// Sets the first number, so that numbers missing before the first one seen are a gap too. Unless set, counting
    /// begins with the first number seen.
    pub fn starting_at(mut self, first: u64) -> Self {
        self.first = Some(first);
        self
    }

    /// A record's number, if it has one.
    #[inline]
    pub(crate) fn of(&self, record: &Record<'_>) -> Option<u64> {
        match &self.at {
            At::Payload(offset) => {
                let payload = record.payload()?;
                match self.bits {
                    8 => payload.u8(*offset).map(u64::from),
                    16 => payload.u16(*offset).map(u64::from),
                    32 => payload.u32(*offset).map(u64::from),
                    _ => payload.u64(*offset),
                }
            }
            At::Extract(extract) => extract(record),
        }
    }

    /// Refuses a counter that can go round while a program is held up between drawing a number and writing it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.bits >= NARROWEST {
            return Ok(());
        }
        let message = format!(
            "a counter of {} bits can go round unseen, and numbers that were yielded would be called missing: count in 32 or 64 bits \
             (Sequence::u32, Sequence::u64)",
            self.bits
        );
        Err(Error::new(ErrorKind::Clock, message))
    }

    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }

    pub(crate) fn first(&self) -> Option<u64> {
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

/// Where counting begins once it is unwrapped: far from both ends.
pub(crate) const MIDDLE: u64 = 1 << 63;

/// How far a number may be ahead of all before it. So many records are not lost between two.
const MOST_AHEAD: i64 = 1 << 32;

/// Numbers beyond this are too near to the end of what a `u64` holds. It takes 2^30 numbers, each as far ahead as may
/// be, to get there.
const CEILING: u64 = 3 << 62;

/// How many of its numbers a counter of so many bits may be ahead of itself. A sixteenth is left for what is in flight.
pub(crate) fn reach(bits: u32) -> u64 {
    match bits {
        // Nobody writes that many.
        62.. => u64::MAX >> 2,
        bits => (7 << bits) >> 4,
    }
}

/// A counter that wraps, told apart from itself one round earlier by what was seen before.
#[derive(Debug, Clone)]
pub(crate) struct Unwrap {
    bits: u32,
    /// The number that `MIDDLE` stands for.
    anchor: Option<u64>,
    /// The largest so far, unwrapped.
    largest: u64,
    /// Whether the counter may have gone round since: the next number is taken for one that is ahead.
    astray: bool,
}

impl Unwrap {
    pub(crate) fn new(bits: u32, first: Option<u64>) -> Self {
        let mut unwrap = Self { bits, anchor: None, largest: MIDDLE, astray: false };
        unwrap.anchor = first.map(|first| first & unwrap.mask());
        unwrap
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// How many numbers the counter can be ahead and still be told from itself one round earlier.
    pub(crate) fn reach(&self) -> u64 {
        reach(self.bits)
    }

    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }

    /// The number, counted on instead of wrapping: the nearest one to the largest so far. `None` if it is further ahead
    /// than any losses can explain.
    #[inline]
    pub(crate) fn unwrap(&mut self, number: u64) -> Option<u64> {
        if self.anchor.is_none() || self.astray {
            return Some(self.begin(number));
        }
        let distance = self.distance(number);
        let unwrapped = self.largest.saturating_add_signed(distance);
        if distance > MOST_AHEAD || unwrapped > CEILING {
            return None;
        }
        self.largest = self.largest.max(unwrapped);
        Some(unwrapped)
    }

    /// The first number of all, or the first since the counter went astray. It lies so far ahead of all before that
    /// smaller ones, which interrupts may have written, lie ahead of those too.
    #[cold]
    fn begin(&mut self, number: u64) -> u64 {
        if self.anchor.is_none() {
            self.anchor = Some(number & self.mask());
        } else {
            // Astray, so narrow: a round and more fits.
            let half = 1 << (self.bits - 1);
            let ahead = self.largest.saturating_add(half);
            self.largest = ahead.saturating_add(number.wrapping_sub(self.wrap(ahead)) & self.mask());
        }
        self.astray = false;
        self.largest
    }

    /// Takes notice that the counter may have gone round unseen. Nothing up to the number given can be relied on.
    pub(crate) fn go_astray(&mut self) -> u64 {
        self.astray = true;
        self.largest
    }

    /// How far a number is ahead of the largest so far.
    fn distance(&self, number: u64) -> i64 {
        self.distance_from(self.largest, number)
    }

    /// How far a number is ahead of another, which is unwrapped.
    fn distance_from(&self, other: u64, number: u64) -> i64 {
        // Shifted up, the sign is where i64 has it.
        let up = 64 - self.bits;
        (number.wrapping_sub(self.wrap(other)) << up) as i64 >> up
    }

    /// The number nearest to another, which is unwrapped, if it is at most so far away from it.
    pub(crate) fn unwrap_near(&mut self, number: u64, other: u64, reach: u64) -> Option<u64> {
        let distance = self.distance_from(other, number);
        let unwrapped = other.saturating_add_signed(distance);
        if distance.unsigned_abs() > reach || unwrapped > CEILING {
            return None;
        }
        self.largest = self.largest.max(unwrapped);
        Some(unwrapped)
    }

    /// The number, counted on, but not remembered.
    pub(crate) fn nearest(&self, number: u64) -> u64 {
        self.largest.saturating_add_signed(self.distance(number))
    }

    /// The largest number so far, as it was written.
    pub(crate) fn largest(&self) -> u64 {
        self.wrap(self.largest)
    }

    /// The largest number so far, counted on.
    pub(crate) fn unwrapped(&self) -> u64 {
        self.largest
    }

    /// The number as the program wrote it.
    pub(crate) fn wrap(&self, unwrapped: u64) -> u64 {
        self.wrap_from(self.anchor(), unwrapped)
    }

    /// What numbers are wrapped with now.
    pub(crate) fn anchor(&self) -> u64 {
        self.anchor.unwrap_or(0)
    }

    /// The number as the program wrote it, with an anchor that was in force.
    pub(crate) fn wrap_from(&self, anchor: u64, unwrapped: u64) -> u64 {
        unwrapped.wrapping_sub(MIDDLE).wrapping_add(anchor) & self.mask()
    }

    /// Makes a number, as it was written, stand for another from now on. False if there is no room for more above the
    /// other.
    pub(crate) fn shift(&mut self, written: u64, other: u64) -> bool {
        let room = other <= CEILING - MOST_AHEAD as u64;
        let other = if room { other } else { MIDDLE };
        self.anchor = Some(written.wrapping_sub(other.wrapping_sub(MIDDLE)));
        self.largest = other;
        room
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counters_of_any_width_are_counted_on() {
        for bits in [2u32, 8, 16, 31, 32, 63, 64] {
            let mask = u64::MAX >> (64 - bits);
            for first in [0, mask, mask / 2, mask.saturating_sub(3)] {
                let mut unwrap = Unwrap::new(bits, None);
                for step in 0..1000u64 {
                    let written = first.wrapping_add(step) & mask;
                    let number = unwrap.unwrap(written);
                    assert_eq!(number, Some(MIDDLE + step), "{bits} bits");
                    assert_eq!(unwrap.wrap(MIDDLE + step), written, "{bits} bits");
                    if bits > 4 && step > 3 {
                        assert_eq!(unwrap.unwrap(written.wrapping_sub(3)), Some(MIDDLE + step - 3), "a little behind");
                    }
                }
            }
        }
    }

    #[test]
    fn a_counter_that_went_astray_is_ahead_of_all_before() {
        for bits in [2u32, 5, 8, 16] {
            let mask = u64::MAX >> (64 - bits);
            for next in 0..64 {
                let mut unwrap = Unwrap::new(bits, Some(0));
                assert!((0..100).all(|number| unwrap.unwrap(number & mask).is_some()));
                let before = unwrap.go_astray();
                let number = unwrap.unwrap(next & mask).unwrap();
                assert!(number > before + mask / 2 && unwrap.wrap(number) == next & mask, "{bits} bits");
                assert!(number - before <= mask / 2 + 1 + mask, "{bits} bits: no further than that takes");
                assert_eq!(unwrap.unwrap((next + 1) & mask), Some(number + 1));
                if bits > 2 {
                    assert!(unwrap.unwrap(next.wrapping_sub(3) & mask).unwrap() > before);
                }
            }
        }
    }

    #[test]
    fn the_limit_is_less_than_half_a_range() {
        assert_eq!([2, 5, 8, 16, 32].map(reach), [1, 14, 112, 28_672, 0x7000_0000]);
        assert!(reach(64) > 1 << 61 && reach(64) < 1 << 62 && reach(61) < 1 << 60);
        for bits in [0, 1, 65] {
            assert!(std::panic::catch_unwind(|| Sequence::with(bits, |_| None)).is_err(), "{bits} bits");
        }
    }

    /// What numbers that each leap as far as may be come to, given years.
    #[test]
    fn counting_never_reaches_the_end() {
        let mut unwrap = Unwrap::new(64, Some(0));
        unwrap.largest = CEILING - 5;
        let written = unwrap.largest();
        assert_eq!(unwrap.unwrap(written + 5), Some(CEILING));
        assert_eq!(unwrap.unwrap(written + 6), None);
        assert_eq!(unwrap.unwrap(written), Some(CEILING - 5));
        assert_eq!(unwrap.unwrap_near(written + 5, CEILING - 2, 3), Some(CEILING), "so far, and no further");
        assert_eq!(unwrap.unwrap_near(written + 6, CEILING - 2, 9), None);
        let most = CEILING - MOST_AHEAD as u64;
        assert!(unwrap.clone().shift(7, most) && !unwrap.clone().shift(7, most + 1));
        assert!(!unwrap.shift(written + 6, CEILING + 1));
        assert_eq!(unwrap.unwrap(written + 7), Some(MIDDLE + 1), "counting begins anew");
        assert_eq!(unwrap.wrap(MIDDLE), written + 6);
    }

    /// Counters of 2 to 4 bits: every course of five numbers of which each is less than half a round from the largest before it,
    /// from every first number. Each is counted on to what it is, and wraps to what was written.
    #[test]
    fn every_course_of_a_narrow_counter_is_counted_on() {
        fn follow(unwrap: &Unwrap, first: u64, largest: i64, steps: u32) {
            let half = 1 << (unwrap.bits() - 1);
            for number in largest - half..largest + half {
                let mut unwrap = unwrap.clone();
                let written = first.wrapping_add_signed(number) & unwrap.mask();
                let counted = unwrap.unwrap(written);
                assert_eq!(counted, Some(MIDDLE.wrapping_add_signed(number)), "{number} from {first}, {unwrap:?}");
                assert_eq!(unwrap.wrap(MIDDLE.wrapping_add_signed(number)), written);
                if steps > 1 {
                    follow(&unwrap, first, largest.max(number), steps - 1);
                }
            }
        }
        for bits in 2..=4 {
            for first in 0..1 << bits {
                let mut unwrap = Unwrap::new(bits, None);
                assert_eq!(unwrap.unwrap(first), Some(MIDDLE));
                follow(&unwrap, first, 0, 4);
            }
        }
    }
}
