//! Where a record's key is.

use crate::clock::Clock;
use crate::record::Record;
use crate::ring::Fault;
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
    fn of(&self, record: &Record<'_>) -> Option<u64> {
        match self {
            Self::Time => record.time(),
            Self::Payload(offset) => record.payload()?.u64(*offset),
            Self::Fn(extract) => extract(record),
        }
    }
}

/// Where keys are, and how large they can be.
#[derive(Debug)]
pub(crate) struct Keys {
    key: Key,
    /// The clock that keys are read from, where that is known and can be read.
    clock: Option<Clock>,
    /// A reading of it: no key below can be from the future.
    now: u64,
}

/// How far a key may be ahead of the clock, in nanoseconds: much more than CPUs' clocks differ by, and no longer than a
/// wrong key may be allowed to hold anything up.
const SLACK: u64 = 1_000_000_000;

impl Keys {
    /// `clock`: if keys are times, the clock they are from.
    pub(crate) fn new(key: Key, clock: Option<Clock>) -> Self {
        Self { key, clock: clock.filter(|clock| clock.now().is_some()), now: 0 }
    }

    /// A record's key, if it has one. A time that has not come yet is a fault: taken for a key, one would make everything
    /// behind it late, or hold it for ever.
    #[inline]
    pub(crate) fn of(&mut self, record: &Record<'_>) -> Result<Option<u64>, Fault> {
        let key = self.key.of(record);
        match key {
            Some(time) if self.clock.is_some() && time > self.now => self.check(time).map(Some),
            key => Ok(key),
        }
    }

    /// Reads the clock anew. The record lies before a head that was loaded already, so the reading is later than it.
    #[cold]
    fn check(&mut self, time: u64) -> Result<u64, Fault> {
        let now = self.clock.and_then(Clock::now).unwrap_or(u64::MAX);
        self.now = now;
        if time > now.saturating_add(SLACK) { Err(Fault::Time { time, now }) } else { Ok(time) }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Key, Keys, SLACK};
    use crate::clock::Clock;
    use crate::ring::Fault;

    #[test]
    fn a_time_that_has_not_come_yet_is_a_fault() {
        let mut keys = Keys::new(Key::Time, Some(Clock::Monotonic));
        let now = Clock::Monotonic.now().unwrap();
        assert_eq!(keys.check(now), Ok(now));
        assert_eq!(keys.check(now + SLACK / 2), Ok(now + SLACK / 2), "clocks may differ a little");
        for wild in [now + 10 * SLACK, 1 << 63, u64::MAX] {
            assert!(matches!(keys.check(wild), Err(Fault::Time { time, .. }) if time == wild));
        }
        assert!(keys.now >= now);
        // Where there is no clock, nothing can be said.
        assert!(Keys::new(Key::Time, Some(Clock::Perf)).clock.is_none());
    }
}
