//! Where a record's key is.

use crate::clock::Clock;
use crate::record::Record;
use crate::ring::Fault;
use crate::sequence::{Numbers, Sequence, Unwrap};
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
    /// A counter of the whole machine, of any width, that wraps. [`Hold::Dense`](crate::Hold::Dense) yields its numbers without
    /// waiting, and names those that are missing. A key is the number as it was written, so it begins anew where the
    /// counter wraps; order and lateness are those of a counter that never does.
    Sequence(Sequence),
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
            Self::Sequence(sequence) => sequence.of(record),
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
    /// How keys that wrap are counted on.
    unwrap: Option<Unwrap>,
    /// The largest key so far, where nothing else says what a key can be. Times that no clock is known for are not compared.
    largest: Option<u64>,
    /// Where each CPU's own numbers are.
    numbers: Option<Sequence>,
}

/// How far a key that is no time may be ahead of all others. No source grows like that, and one that is wild would make
/// everything behind it late for ever.
const LEAP: u64 = 1 << 62;

/// How far a key may be ahead of the clock, in nanoseconds: much more than CPUs' clocks differ by, and no longer than a
/// wrong key may be allowed to hold anything up.
const SLACK: u64 = 1_000_000_000;

impl Keys {
    /// `clock`: if keys are times, the clock they are from.
    /// `numbers`: where each CPU's own are. `first`: the first key, if it is known.
    pub(crate) fn new(key: Key, clock: Option<Clock>, numbers: Option<Sequence>, first: Option<u64>) -> Self {
        let unwrap = match &key {
            Key::Sequence(sequence) => Some(Unwrap::new(sequence.bits(), first.or(sequence.first()))),
            _ => None,
        };
        let clock = clock.filter(|clock| clock.now().is_some());
        Self { key, clock, now: 0, unwrap, largest: first, numbers }
    }

    /// A key as the record has it.
    #[inline]
    pub(crate) fn written(&self, key: u64) -> u64 {
        self.unwrap.as_ref().map_or(key, |unwrap| unwrap.wrap(key))
    }

    /// How keys that wrap are counted on, if they do.
    pub(crate) fn unwrapping(&self) -> Option<&Unwrap> {
        self.unwrap.as_ref()
    }

    /// The key under which a number that a record has is ordered.
    pub(crate) fn ordered(&mut self, number: u64) -> u64 {
        self.unwrap.as_mut().and_then(|unwrap| unwrap.unwrap(number)).unwrap_or(number)
    }

    /// A record's number on its own CPU.
    #[inline]
    pub(crate) fn number(&self, record: &Record<'_>) -> Option<u64> {
        self.numbers.as_ref()?.of(record)
    }

    /// What a CPU's own numbers begin with, if there are any.
    pub(crate) fn new_numbers(&self) -> Option<Numbers> {
        self.numbers.as_ref().map(Numbers::new)
    }

    /// A record's key, if it has one. A time that has not come yet is a fault: taken for a key, one would make everything
    /// behind it late, or hold it for ever.
    #[inline]
    pub(crate) fn of(&mut self, record: &Record<'_>) -> Result<Option<u64>, Fault> {
        let key = self.key.of(record);
        match key {
            Some(time) if self.clock.is_some() && self.unwrap.is_none() => {
                if time > self.now {
                    self.check(time).map(Some)
                } else {
                    Ok(key)
                }
            }
            Some(key) => self.check_leap(key).map(Some),
            None => Ok(None),
        }
    }

    /// Counts a key that wraps on, and refuses one that leaps.
    #[inline]
    fn check_leap(&mut self, key: u64) -> Result<u64, Fault> {
        if let Some(unwrap) = &mut self.unwrap {
            let largest = unwrap.largest();
            return unwrap.unwrap(key).ok_or(Fault::Leap { key, largest });
        }
        match self.largest {
            Some(largest) if key > largest => {
                if key - largest > LEAP {
                    return Err(Fault::Leap { key, largest });
                }
                self.largest = Some(key);
            }
            None if !matches!(self.key, Key::Time) => self.largest = Some(key),
            _ => {}
        }
        Ok(key)
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
            Self::Sequence(sequence) => f.debug_tuple("Sequence").field(sequence).finish(),
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
        let mut keys = Keys::new(Key::Time, Some(Clock::Monotonic), None, None);
        let now = Clock::Monotonic.now().unwrap();
        assert_eq!(keys.check(now), Ok(now));
        assert_eq!(keys.check(now + SLACK / 2), Ok(now + SLACK / 2), "clocks may differ a little");
        for wild in [now + 10 * SLACK, 1 << 63, u64::MAX] {
            assert!(matches!(keys.check(wild), Err(Fault::Time { time, .. }) if time == wild));
        }
        assert!(keys.now >= now);
        // Where there is no clock, nothing can be said.
        assert!(Keys::new(Key::Time, Some(Clock::Perf), None, None).clock.is_none());
    }
}
