//! Where a record's key is.

use crate::record::Record;
use std::fmt;

/// The function behind [`Key::Fn`].
type Extract = Box<dyn Fn(&Record<'_>) -> Option<u64> + Send>;

/// Where to find the number that orders records: a time or a sequence number, from one source that only grows.
///
/// A record without a key stays with the record before it in its ring.
#[derive(Default)]
#[non_exhaustive]
pub enum Key {
    /// The kernel's own timestamp, which it draws while it writes the record. The default: no BPF program needs a clock
    /// of its own, and no delay inside a program can come between its clock and its output.
    #[default]
    Time,
    /// A `u64` in native byte order at this offset, in bytes, of the raw payload: a time or a number that the program
    /// drew itself. It need not be aligned.
    Payload(usize),
    /// Whatever the function finds. It is called once for each record, LOST records apart, which take the place of
    /// the record that follows them. It must not panic; if it does, the record stays unread.
    Fn(Extract),
}

impl Key {
    /// The key that `extract` finds in a record.
    ///
    /// ```
    /// # use perfweave::Key;
    /// // A 32-bit sequence number behind a 4-byte tag.
    /// let key = Key::with(|record| record.payload()?.u32(4).map(u64::from));
    /// ```
    pub fn with(extract: impl Fn(&Record<'_>) -> Option<u64> + Send + 'static) -> Self {
        Self::Fn(Box::new(extract))
    }

    #[inline]
    pub(crate) fn of(&self, record: &Record<'_>) -> Option<u64> {
        match self {
            Self::Time => record.time(),
            Self::Payload(offset) => record.payload()?.u64(*offset),
            Self::Fn(extract) => extract(record),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time => f.write_str("Time"),
            Self::Payload(offset) => f.debug_tuple("Payload").field(offset).finish(),
            Self::Fn(_) => f.write_str("Fn"),
        }
    }
}
