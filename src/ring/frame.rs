//! Where one record ends: the header, read once and checked.

/// What is wrong with bytes that cannot be a record, with the numbers that show it.
///
/// Sizes and positions are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// `data_head` is further from `data_tail` than the ring is long, or moved backwards. The ring is taken up again
    /// at the new head once everything before it was yielded.
    #[error("head moved from {from} to {to} in a ring of {size} bytes")]
    Head {
        /// The head seen before, counted from where this ring was taken up.
        from: u64,
        /// The head seen now, counted likewise.
        to: u64,
        /// The length of the ring's data area.
        size: u64,
    },
    /// The record's header gives a size that is less than a header, not a multiple of 8, or goes past the head. Where
    /// the next record begins cannot be known, so everything up to the head is given up.
    #[error("header says {size} bytes with {room} left before the head")]
    Size {
        /// `perf_event_header.size`.
        size: u16,
        /// Bytes between the record's begin and the head.
        room: u64,
    },
    /// A sample's `raw_size` goes past the end of its record: what BPF output of more than 65,516 bytes looks like,
    /// whose header's 16-bit size is cut short. Bytes of earlier records may be overwritten too.
    #[error("raw data of {raw_size} bytes in {room} bytes of record")]
    Raw {
        /// The `raw_size` the record states.
        raw_size: u32,
        /// Bytes between `raw_size` and the record's end.
        room: u32,
    },
    /// The record's key is a time that has not come yet.
    #[error("stamped {time}, {} ns from now", time - now)]
    Time {
        /// Its key, in nanoseconds.
        time: u64,
        /// What the clock said after the record had been found.
        now: u64,
    },
    /// The record's key is further ahead of all others than any source grows.
    #[error("key {key} leaps ahead of {largest}")]
    Leap {
        /// Its key.
        key: u64,
        /// The largest key of all records before it.
        largest: u64,
    },
    /// The record is too short for the fields that its `sample_type` promises.
    #[error("record of {size} bytes is too short for its fields")]
    Short {
        /// `perf_event_header.size`.
        size: u16,
    },
}

/// `struct perf_event_header`, copied out of the ring: one word, as it lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header(u64);

impl Header {
    pub(crate) const LEN: u64 = size_of::<perf_event_open_sys::bindings::perf_event_header>() as u64;

    /// Checks a header against the bytes between its begin and the head.
    #[inline]
    pub(super) fn checked(bytes: [u8; 8], room: u64) -> Result<Self, Fault> {
        let header = Self(u64::from_ne_bytes(bytes));
        let size = u64::from(header.size());
        if size < Self::LEN || size % 8 != 0 || size > room {
            return Err(Fault::Size { size: header.size(), room });
        }
        Ok(header)
    }

    /// `type`
    #[inline]
    pub(crate) fn kind(self) -> u32 {
        let [k0, k1, k2, k3, ..] = self.0.to_ne_bytes();
        u32::from_ne_bytes([k0, k1, k2, k3])
    }

    /// `misc`
    #[inline]
    pub(crate) fn misc(self) -> u16 {
        let [.., m0, m1, _, _] = self.0.to_ne_bytes();
        u16::from_ne_bytes([m0, m1])
    }

    /// `size`
    #[inline]
    pub(crate) fn size(self) -> u16 {
        let [.., s0, s1] = self.0.to_ne_bytes();
        u16::from_ne_bytes([s0, s1])
    }

    /// The header of nothing, for what is no record.
    pub(crate) const NONE: Self = Self(0);

    #[cfg(all(test, not(loom)))]
    pub(crate) fn unchecked(word: u64) -> Self {
        Self(word)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Fault, Header};
    use perf_event_open_sys::bindings::perf_event_header;
    use std::mem::offset_of;

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
            assert_eq!(fault, Fault::Size { size, room: 1 << 20 });
        }
        assert!(Header::checked(bytes(32), 24).is_err(), "past the head");
        let header = Header::checked(bytes(32), 32).unwrap();
        assert_eq!((header.kind(), header.misc(), header.size()), (9, 1, 32));
        assert_eq!(Header::checked(bytes(8), 8).map(Header::size), Ok(8));
        assert!(Header::checked(bytes(65528), 65528).is_ok(), "the largest the kernel writes");
    }
}
