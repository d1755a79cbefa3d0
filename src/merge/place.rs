//! Where a record, a loss or damage lies, and its key: the 16 bytes that the merge knows about each of them.

use crate::instrument::step;
use std::cmp::Ordering;

/// The origin of a place's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyed {
    /// The record's own, or for a LOST record that of the record it was written with.
    Own,
    /// The key of the record before it in its ring.
    Before,
    /// It has no key, and no record before it has one.
    Never,
}

/// What is special about a place: 0 for a plain record, a sample with its own key of which there is nothing else to
/// say. `NOTED` is combined with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag(u8);

impl Tag {
    /// A sample with its own key.
    pub(crate) const SAMPLE: Self = Self(0);
    /// A record of another kind with its own key.
    pub(crate) const OTHER: Self = Self(1);
    pub(crate) const BEFORE: Self = Self(2);
    pub(crate) const NEVER: Self = Self(3);
    /// There is a note about it.
    pub(crate) const NOTED: Self = Self(4);
    /// A loss that lies in no ring.
    pub(crate) const LOOSE: Self = Self(5);

    pub(crate) fn noted(self) -> Self {
        // 1 and 4 together are LOOSE. What has a note is picked one by one, and needs no kind in its tag.
        if self == Self::OTHER { Self::NOTED } else { Self(self.0 | Self::NOTED.0) }
    }
}

/// The bits of a word that are its size and its tag: a size is a multiple of 8.
const SIZE: u64 = 0xfff8;
const TAG: u64 = 7;

/// Where the position and the index of the ring begin in a word.
const POSITION_AT: u32 = 16;
const RING_INDEX_AT: u32 = 50;

/// How many rings there can be.
pub(crate) const RINGS: usize = 1 << (u64::BITS - RING_INDEX_AT);

/// The low bits of a position, by which positions of one ring are told apart.
pub(crate) const LOW_POSITION: u64 = (1 << (RING_INDEX_AT - POSITION_AT)) - 1;

/// The most bytes of a ring between the first held one and the head of a refresh, so that positions are told apart by
/// their low bits.
pub(crate) const SPAN: u64 = 1 << 32;

// A ring has at most 2^31 bytes.
const _: () = assert!(2 * (SPAN + (1 << 31)) <= LOW_POSITION);

/// A place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) key: u64,
    /// From the top: the index of the ring, the low bits of the position, the size, the tag.
    word: u64,
}

impl Place {
    /// Stands for no place, and is not plain.
    pub(crate) const NONE: Self = Self { key: 0, word: Tag::NEVER.0 as u64 };

    /// `size`: that of a record, or 0 if a note has the length.
    #[inline(always)]
    pub(crate) fn new(key: u64, ring_index: u32, position: u64, size: u64, tag: Tag) -> Self {
        debug_assert!(size & !SIZE == 0 && (ring_index as usize) < RINGS);
        Self { key, word: Self::word(ring_index, position) | size | u64::from(tag.0) }
    }

    /// The word of a position, without a size.
    #[inline(always)]
    pub(crate) fn word(ring_index: u32, position: u64) -> u64 {
        u64::from(ring_index) << RING_INDEX_AT | (position & LOW_POSITION) << POSITION_AT
    }

    /// A plain sample at the position of a word.
    #[inline(always)]
    pub(crate) fn plain(key: u64, word: u64, size: u64) -> Self {
        Self { key, word: word | size }
    }

    /// The word of the position behind a record of this size. The low bits of the position must not wrap in between.
    #[inline(always)]
    pub(crate) fn behind(word: u64, size: u64) -> u64 {
        word + (size << POSITION_AT)
    }

    /// The index of its ring.
    #[inline(always)]
    pub(crate) fn ring_index(self) -> usize {
        (self.word >> RING_INDEX_AT) as usize
    }

    /// The low bits of its position, and above them others.
    #[inline(always)]
    pub(crate) fn low(self) -> u64 {
        self.word >> POSITION_AT
    }

    /// Bytes of a record that is shorter than 64 KiB; else 0.
    #[inline(always)]
    pub(crate) fn size(self) -> u64 {
        self.word & SIZE
    }

    /// Whether it is a plain record.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.word & TAG == 0
    }

    /// Whether it is a record of another kind, of which there is nothing else to say.
    pub(crate) fn is_other(self) -> bool {
        self.tag() == Tag::OTHER
    }

    /// Its tag among other bits, to be combined by OR: tags of zero mean that all entries are plain.
    #[inline(always)]
    pub(crate) fn bits(self) -> u64 {
        self.word
    }

    /// Whether all places are plain of which these are the bits.
    pub(crate) fn are_plain(bits: u64) -> bool {
        bits & TAG == 0
    }

    #[inline]
    pub(crate) fn tag(self) -> Tag {
        Tag((self.word & TAG) as u8)
    }

    pub(crate) fn is_noted(self) -> bool {
        // Not LOOSE: its index has the loss, and no note.
        matches!(self.tag(), Tag(4 | 6 | 7))
    }

    /// The origin of its key. That of a loss in no ring is known to its ring.
    pub(crate) fn keyed(self) -> Keyed {
        match self.tag() {
            Tag::SAMPLE | Tag::OTHER | Tag::NOTED => Keyed::Own,
            Tag::NEVER | Tag(7) => Keyed::Never,
            _ => Keyed::Before,
        }
    }

    /// The same in a ring of another index.
    pub(crate) fn moved(self, rings: u32) -> Self {
        Self { word: self.word + (u64::from(rings) << RING_INDEX_AT), ..self }
    }

    /// How many bytes it lies behind another place of its ring.
    #[inline]
    pub(crate) fn ahead_of(self, other: Self) -> i64 {
        const ABOVE: u32 = LOW_POSITION.leading_zeros();
        // The difference is small against the range, so its sign is right.
        (self.low().wrapping_sub(other.low()) << ABOVE) as i64 >> ABOVE
    }
}

impl Ord for Place {
    /// By key, then by ring, then by position in the ring.
    fn cmp(&self, other: &Self) -> Ordering {
        step();
        let key_and_ring = (self.key, self.ring_index()).cmp(&(other.key, other.ring_index()));
        key_and_ring.then_with(|| self.ahead_of(*other).cmp(&0))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        (self.key, self.word) == (other.key, other.word)
    }
}

impl Eq for Place {}
