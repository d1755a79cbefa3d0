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
/// A counter has 64 bits. A narrower one that wraps around [jumps](crate::AnomalyKind::Jump) each time.
pub struct Sequence {
    at: At,
    first: Option<u64>,
}

enum At {
    /// Of the raw payload, in bytes.
    Payload(usize),
    Extract(Extract),
}

impl Sequence {
    /// Eight bytes at this offset of the raw payload, in native byte order. The offset need not be aligned.
    pub fn u64(offset: usize) -> Self {
        Self { at: At::Payload(offset), first: None }
    }

    /// The number that a function finds. The function must not panic. Records without a number are not checked.
    pub fn with(extract: impl Fn(&Record<'_>) -> Option<u64> + Send + 'static) -> Self {
        Self { at: At::Extract(Box::new(extract)), first: None }
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
            At::Payload(offset) => record.payload()?.u64(*offset),
            At::Extract(extract) => extract(record),
        }
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
        debug.finish_non_exhaustive()
    }
}
