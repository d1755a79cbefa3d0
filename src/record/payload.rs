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
