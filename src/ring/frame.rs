//! Record headers: read once and checked.

/// The fault of bytes that cannot be a record, with its numbers.
///
/// Sizes and positions are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(any(test, feature = "test-util")), expect(unreachable_pub, reason = "public for tests alone"))]
#[non_exhaustive]
pub enum Fault {
    /// `data_head` is further from `data_tail` than the length of the ring, or moved backwards. The reader goes on at
    /// the new head once everything before it was yielded.
    #[error("head moved from {from} to {to} in a ring of {size} bytes")]
    Head {
        /// The head seen before, counted from where the crate began to read this ring.
        from: u64,
        /// The head seen now, counted in the same way.
        to: u64,
        /// The length of the ring's data area.
        size: u64,
    },
    /// The record's header gives a size that is less than a header, not a multiple of 8, or goes past the head. The
    /// start of the next record is then unknown, so the reader skips everything up to the head.
    #[error("header says {size} bytes with {room} left before the head")]
    Size {
        /// `perf_event_header.size`, or the length that a BPF ring buffer's header states, rounded up to 8 and with its
        /// header.
        size: u32,
        /// Bytes between the record's start and the head.
        room: u64,
    },
    /// A sample's `raw_size` goes past the end of its record. BPF output of more bytes than
    /// `Layout::largest_output` looks like this: its header's 16-bit size is cut short.
    /// It may have overwritten bytes of earlier records too.
    #[error("raw data of {raw_size} bytes in {room} bytes of record")]
    Raw {
        /// The `raw_size` the record states.
        raw_size: u32,
        /// Bytes between `raw_size` and the record's end.
        room: u32,
    },
    /// A LOST record counts more dropped records than the kernel has counted, or can have.
    #[error("LOST record says {count} dropped, {most} at most")]
    Lost {
        /// The count in the LOST record.
        count: u64,
        /// The most dropped records that earlier LOST records leave uncounted.
        most: u64,
    },
    /// The record's key is a time in the future.
    #[error("stamped {time}, {} ns from now", time - now)]
    Time {
        /// The record's key, in nanoseconds.
        time: u64,
        /// The clock's reading after the record had been found.
        now: u64,
    },
    /// The record's key exceeds all others by more than any source grows.
    #[error("key {key} leaps ahead of {largest}")]
    Leap {
        /// The record's key.
        key: u64,
        /// The largest key of all records before it.
        largest: u64,
    },
    /// Another program moved the consumer position of a BPF ring buffer: two programs read one map. Records that were
    /// held may have been overwritten meanwhile. The reader goes on at the producer position once everything before it
    /// was yielded.
    #[error("another program moved the consumer position from {from} to {to}")]
    Consumer {
        /// The position that this reader had stored, in bytes since the map was made.
        from: u64,
        /// The position found.
        to: u64,
    },
    /// The record is too short for the fields that its `sample_type` promises.
    #[error("record of {size} bytes is too short for its fields")]
    Short {
        /// `perf_event_header.size`.
        size: u16,
    },
}

crate::error::debug_as_display!(Fault);

/// The bits of a size that are 0 in every checked header.
const TAG: u16 = 7;

/// The bit positions of a header's members in its word.
const KIND_AT: u32 = if cfg!(target_endian = "little") { 0 } else { 32 };
const SIZE_AT: u32 = if cfg!(target_endian = "little") { 48 } else { 0 };

/// `PERF_RECORD_SAMPLE`
const SAMPLE: u32 = perf_event_open_sys::bindings::PERF_RECORD_SAMPLE;

/// A kind of record that no kernel writes.
const DISCARDED: u32 = u32::MAX;

/// `struct perf_event_header`, copied out of the ring as one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header(u64);

impl Header {
    pub(crate) const LEN: u64 = size_of::<perf_event_open_sys::bindings::perf_event_header>() as u64;

    /// Checks a header against the bytes between its start and the head.
    #[inline]
    pub(super) fn checked(bytes: [u8; 8], room: u64) -> Result<Self, Fault> {
        let header = Self(u64::from_ne_bytes(bytes));
        let stated = header.size_and_tag();
        let size = u64::from(stated);
        if size < Self::LEN || stated & TAG != 0 || size > room {
            return Err(Fault::Size { size: stated.into(), room });
        }
        Ok(header)
    }

    /// The longest record, in bytes, whose length a header can hold.
    pub(crate) const LONGEST: u64 = u16::MAX as u64 & !(TAG as u64);

    /// A header, if it is a sample's. Its size is a multiple of 8.
    #[inline(always)]
    pub(super) fn sample(bytes: [u8; 8]) -> Option<Self> {
        const KIND_AND_TAG: u64 = (u32::MAX as u64) << KIND_AT | (TAG as u64) << SIZE_AT;
        let header = Self(u64::from_ne_bytes(bytes));
        (header.0 & KIND_AND_TAG == u64::from(SAMPLE) << KIND_AT).then_some(header)
    }

    /// `type`
    #[inline(always)]
    pub(crate) fn kind(self) -> u32 {
        (self.0 >> KIND_AT) as u32
    }

    /// `size`, a multiple of 8.
    #[inline(always)]
    pub(crate) fn size(self) -> u16 {
        self.size_and_tag() & !TAG
    }

    #[inline(always)]
    fn size_and_tag(self) -> u16 {
        (self.0 >> SIZE_AT) as u16
    }

    /// The header of a sample of this size, a multiple of 8. Its `misc` is not known.
    #[inline(always)]
    pub(crate) fn of_sample(size: u64) -> Self {
        Self(u64::from(SAMPLE) << KIND_AT | size << SIZE_AT)
    }

    /// The header of a sample, or of bytes that were discarded. Its size is 0 if these are more than a header can hold.
    #[inline]
    pub(crate) fn of_any(len: u64, is_discarded: bool) -> Self {
        let kind = if is_discarded { DISCARDED } else { SAMPLE };
        let size = if len <= Self::LONGEST { len } else { 0 };
        Self(u64::from(kind) << KIND_AT | size << SIZE_AT)
    }

    /// The same header of another size: that of a record whose length was checked before.
    #[inline]
    pub(crate) fn resized(bytes: [u8; 8], size: u64) -> Self {
        let word = u64::from_ne_bytes(bytes) & !(u64::from(u16::MAX) << SIZE_AT);
        Self(word | size << SIZE_AT)
    }

    /// Whether it stands for a reservation that was discarded.
    #[inline]
    pub(crate) fn is_discarded(self) -> bool {
        self.kind() == DISCARDED
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Fault, Header};
    use perf_event_open_sys::bindings::perf_event_header;
    use std::mem::offset_of;

    impl Header {
        /// The header at the start of some bytes, if its whole record lies in them.
        pub(crate) fn first(bytes: &[u8]) -> Option<Self> {
            Self::checked(*bytes.first_chunk()?, bytes.len() as u64).ok()
        }

        pub(crate) fn unchecked(word: u64) -> Self {
            Self(word)
        }
    }

    fn bytes(size: u16) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&9u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&1u16.to_ne_bytes());
        bytes[6..].copy_from_slice(&size.to_ne_bytes());
        bytes
    }

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(offset_of!(perf_event_header, type_), 0);
        assert_eq!(offset_of!(perf_event_header, misc), 4);
        assert_eq!(offset_of!(perf_event_header, size), 6);
        assert_eq!(Header::LEN, 8);
    }

    #[test]
    fn sizes_that_cannot_be_right_are_faults() {
        for size in [0, 1, 7, 9, 12, 20, 65535] {
            let fault = Header::checked(bytes(size), 1 << 20).unwrap_err();
            assert_eq!(fault, Fault::Size { size: size.into(), room: 1 << 20 });
        }
        assert!(Header::checked(bytes(32), 24).is_err(), "past the head");
        let header = Header::checked(bytes(32), 32).unwrap();
        assert_eq!((header.kind(), header.size()), (9, 32));
        assert_eq!(Header::checked(bytes(8), 8).map(Header::size), Ok(8));
        assert!(Header::checked(bytes(65528), 65528).is_ok(), "the largest the kernel writes");
    }

    /// Every size there is, against every room that can make a difference.
    #[test]
    fn every_header_is_taken_or_refused_as_it_must_be() {
        for size in 0..=u16::MAX {
            for room in
                (0..=40).chain(65_520..=65_544).chain([u64::from(size), u64::from(size).wrapping_sub(1), u64::MAX])
            {
                let is_one = size >= 8 && size % 8 == 0 && u64::from(size) <= room;
                match Header::checked(bytes(size), room) {
                    Ok(header) => assert!(is_one && header.size() == size, "{size} in {room}"),
                    Err(fault) => {
                        assert!(!is_one && fault == Fault::Size { size: size.into(), room }, "{size} in {room}")
                    }
                }
            }
        }
    }
}
