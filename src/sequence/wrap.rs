//! Counters that wrap: their extension to 64 bits, and whether a number can still be told from the same number one
//! round earlier.

/// The start value of an extended counter: far from both ends.
pub(super) const MIDDLE: u64 = 1 << 63;

/// How far a number may exceed all before it. So many records are not lost between two.
const MOST_AHEAD: i64 = 1 << 32;

/// Numbers beyond this are too near to the limit of a `u64`. To get there, 2^30 numbers must each exceed the one before
/// by as much as is allowed.
const CEILING: u64 = 3 << 62;

/// A counter that wraps. Earlier numbers tell which round a number belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Unwrap {
    bits: u32,
    /// The written number that `MIDDLE` stands for.
    anchor: Option<u64>,
    /// The largest number so far, extended.
    largest: u64,
}

impl Unwrap {
    pub(crate) fn new(bits: u32, first: Option<u64>) -> Self {
        let mut unwrap = Self { bits, anchor: None, largest: MIDDLE };
        // Bits above the counter's are ignored (`Sequence::with`).
        unwrap.anchor = first.map(|first| first & unwrap.mask());
        unwrap
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// By how much a number may exceed the largest and still be told from the same number one round earlier.
    pub(crate) fn reach(&self) -> u64 {
        match self.bits {
            // No program writes that many.
            62.. => u64::MAX >> 2,
            // A sixteenth is left for numbers in flight.
            bits => (7 << bits) >> 4,
        }
    }

    /// The number, extended to 64 bits: the candidate nearest to the largest so far. `None` if it exceeds the largest
    /// by more than any losses can explain.
    #[inline]
    pub(crate) fn unwrap(&mut self, number: u64) -> Option<u64> {
        if self.anchor.is_none() {
            self.anchor = Some(number & self.mask());
            return Some(self.largest);
        }
        let distance = self.distance(number);
        let unwrapped = self.largest.saturating_add_signed(distance);
        // Not remembered: one wild number must not become the largest.
        if distance > MOST_AHEAD || unwrapped > CEILING {
            return None;
        }
        self.largest = self.largest.max(unwrapped);
        Some(unwrapped)
    }

    /// By how much a number exceeds the largest so far.
    fn distance(&self, number: u64) -> i64 {
        self.distance_from(self.largest, number)
    }

    /// By how much a number exceeds another, which is extended.
    fn distance_from(&self, other: u64, number: u64) -> i64 {
        // Shifted up, so that the sign bit is that of an i64.
        let up = 64 - self.bits;
        (number.wrapping_sub(self.wrap(other)) << up) as i64 >> up
    }

    /// The number nearest to another, which is extended, if it is at most `reach` away from it.
    pub(crate) fn unwrap_near(&mut self, number: u64, other: u64, reach: u64) -> Option<u64> {
        let distance = self.distance_from(other, number);
        let unwrapped = other.saturating_add_signed(distance);
        // `abs` of the smallest distance would overflow.
        if distance.unsigned_abs() > reach || unwrapped > CEILING {
            return None;
        }
        self.largest = self.largest.max(unwrapped);
        Some(unwrapped)
    }

    /// The largest number so far, extended.
    pub(crate) fn unwrapped(&self) -> u64 {
        self.largest
    }

    /// The number as the program wrote it.
    pub(crate) fn wrap(&self, unwrapped: u64) -> u64 {
        self.wrap_from(self.anchor(), unwrapped)
    }

    /// The present anchor, with which numbers are wrapped.
    pub(crate) fn anchor(&self) -> u64 {
        self.anchor.unwrap_or(0)
    }

    /// The number as the program wrote it, with an earlier anchor.
    pub(crate) fn wrap_from(&self, anchor: u64, unwrapped: u64) -> u64 {
        unwrapped.wrapping_sub(MIDDLE).wrapping_add(anchor) & self.mask()
    }

    /// Maps a written number to another from now on. False if there is too little space above the other.
    pub(crate) fn shift(&mut self, written: u64, other: u64) -> bool {
        // Room for a number that is as far ahead as is allowed.
        let room = other <= CEILING - MOST_AHEAD as u64;
        // Back to the middle: the caller forgets all holes, whose numbers come again.
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
    fn the_limit_is_less_than_half_a_range() {
        let reach = |bits| Unwrap::new(bits, None).reach();
        assert_eq!([2, 5, 8, 16, 32].map(reach), [1, 14, 112, 28_672, 0x7000_0000]);
        assert!(reach(64) > 1 << 61 && reach(64) < 1 << 62 && reach(61) < 1 << 60);
    }

    /// The result of numbers that each leap as far as allowed, over years.
    #[test]
    fn counting_never_reaches_the_end() {
        let mut unwrap = Unwrap::new(64, Some(0));
        unwrap.largest = CEILING - 5;
        let written = unwrap.wrap(unwrap.largest);
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

    /// Counters of 2 to 4 bits: every series of five numbers, each less than half a round from the largest before it,
    /// from every first number. Each is extended to its true value, and wraps back to the written one.
    #[test]
    fn every_course_of_a_narrow_counter_is_counted_on() {
        fn follow(unwrap: &Unwrap, first: u64, largest: i64, steps: u32) {
            let half = 1 << (unwrap.bits - 1);
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
