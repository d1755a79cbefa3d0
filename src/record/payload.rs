//! Payloads as a program's own types.

use crate::record::Record;
use std::io::Read;
use zerocopy::FromBytes;

impl Record<'_> {
    /// The payload as a value of `T`, for which any bytes must be valid: derive [`zerocopy::FromBytes`] for a
    /// `#[repr(C)]` type. The compiler then refuses types with references, enums or `bool`. Alignment does not matter,
    /// and neither does a wrap: the value is copied out.
    ///
    /// `None` if the record has no payload, or a shorter one. Longer ones are fine: up to 7 bytes of padding follow the
    /// output ([`Record::payload`]).
    ///
    /// ```
    /// use perfweave::{Hold, Order, Reader, sim};
    /// use zerocopy::FromBytes;
    ///
    /// #[derive(FromBytes)]
    /// #[repr(C)]
    /// struct Opened {
    ///     pid: u32,
    ///     flags: u32,
    /// }
    ///
    /// let kernel = sim::Kernel::new(&[0]);
    /// kernel.emit(0, 100, &[7u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat());
    /// let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None))?;
    /// let record = reader.next()?.and_then(|event| event.record()).expect("a record");
    /// let opened: Opened = record.payload_as().expect("8 bytes");
    /// assert_eq!((opened.pid, opened.flags), (7, 9));
    /// # Ok::<(), perfweave::Error>(())
    /// ```
    pub fn payload_as<T: FromBytes>(&self) -> Option<T> {
        let (head, tail) = self.payload()?.as_slices();
        if let Ok((value, _)) = T::read_from_prefix(head) {
            return Some(value);
        }
        T::read_from_io(head.chain(tail)).ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::record::{Layout, Origin, Record};
    use crate::ring::{Bytes, Header};
    use perf_event_open_sys::bindings as sys;
    use std::sync::Arc;

    /// A record of whole words, header included.
    fn written(kind: u32, body: &[[u32; 2]]) -> Vec<u8> {
        let size = (8 + 8 * body.len() as u16).to_ne_bytes();
        let words = body.iter().flatten().flat_map(|word| word.to_ne_bytes());
        kind.to_ne_bytes().into_iter().chain([0; 2]).chain(size).chain(words).collect()
    }

    /// The record, which wraps after this many bytes.
    fn record<'a>(bytes: &'a [u8], cut: usize, origin: &'a Arc<Origin>) -> Record<'a> {
        let (head, tail) = bytes.split_at(cut);
        Record::new(Bytes::new(head, tail), Header::unchecked(Bytes::from(bytes).u64(0).unwrap()), origin)
    }

    /// A payload as a type, for every place of a wrap. Raw data begins 4 bytes after a multiple of 8, as in every ring.
    #[test]
    fn payloads_are_values_of_types_that_take_any_bytes() {
        let origin = Arc::new(Origin::new(0, Layout::RAW, [(7, 0)].into_iter().collect()));
        let bytes = written(sys::PERF_RECORD_SAMPLE, &[[12, 1], [2, 3]]);
        for cut in 0..bytes.len() {
            let record = record(&bytes, cut, &origin);
            assert_eq!(record.payload_as::<[u32; 3]>(), Some([1, 2, 3]), "{cut}");
            assert_eq!(record.payload_as::<u32>(), Some(1));
            assert_eq!(record.payload_as::<[u32; 4]>(), None, "there are not as many bytes");
            assert_eq!(record.payload_as::<()>(), Some(()));
        }
        let bytes = written(sys::PERF_RECORD_EXIT, &[[0; 2]; 4]);
        assert_eq!(record(&bytes, 0, &origin).payload_as::<u32>(), None, "no payload");
    }
}
