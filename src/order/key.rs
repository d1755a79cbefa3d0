//! Keys: where a record's key is, and which keys can be right.

use crate::record::clock::Clock;
use crate::record::{Layout, Record};
use crate::ring::{Fault, Framing, Header, RingKind};
use crate::sequence::numbers::CpuNumbers;
use std::fmt;

/// The function behind [`Key::Fn`].
type Extract = Box<dyn Fn(&Record<'_>) -> Option<u64> + Send>;

/// Where to find the number that orders records: a time or a sequence number, from one source that only grows. Or where
/// the number is that each CPU counts by itself ([`Order::numbers`](crate::Order::numbers)).
///
/// A record without a key stays with the record before it in its ring.
#[derive(Default)]
#[non_exhaustive]
pub enum Key {
    /// The kernel's own timestamp, which it draws while it writes the record. The default. BPF programs need no clock
    /// of their own, and no delay inside a program can come between its clock and its output.
    #[default]
    Time,
    /// A `u64` in native byte order at this offset, in bytes, of the raw payload. The program has drawn this time or
    /// number itself. The offset need not be aligned.
    Payload(usize),
    /// The key that the function finds. The reader calls it once for each record except LOST records, which take the
    /// place of the record that follows them. For a recording that is so long that its index may not fit into memory,
    /// the reader calls it twice: see [`Order::most_held`](crate::Order::most_held). It must not panic. If it panics, the record stays
    /// unread.
    ///
    /// ```
    /// # use perfweave::Key;
    /// // A 32-bit sequence number behind a 4-byte tag.
    /// let key = Key::Fn(Box::new(|record| record.payload()?.u32(4).map(u64::from)));
    /// ```
    Fn(Extract),
}

impl Key {
    /// Whether records without the kernel's time may have no key. Nobody knows what a function reads.
    pub(crate) fn may_need_time(&self) -> bool {
        !matches!(self, Self::Payload(_))
    }

    /// A record's key, as it was written, if it has one.
    #[inline]
    pub fn of(&self, record: &Record<'_>) -> Option<u64> {
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
    /// The clock that the keys come from, if it is known and can be read.
    clock: Option<Clock>,
    /// The last reading of that clock.
    now: u64,
    /// Whether proofs hold for keys: unless their clock may differ between CPUs.
    pub(crate) are_sure: bool,
    /// The largest key that was indexed.
    pub(crate) found: Option<u64>,
    /// The largest key so far, where nothing else bounds a key. Times without a known clock are not compared.
    largest: Option<u64>,
    /// The furthest that a key may exceed all others.
    leap: u64,
    /// The number that leapt last, and how many did in a row.
    leapt: (u64, u32),
    /// Where each CPU's own numbers are, and the first of them, if it is known.
    numbers: Option<(Key, Option<u64>)>,
}

/// The furthest that a key that is not a time may exceed all others. No source grows like that. A wild key would make
/// all later records late for ever.
const LEAP: u64 = 1 << 62;

/// The same for numbers of which each is one more than the last: so many are not missing at a time.
const LEAP_OF_NUMBERS: u64 = 1 << 32;

/// So many numbers in a row that each leap, and are this near to the one before, are the counter's after all: it went
/// on while nobody read.
const AFTER_ALL: u32 = 16;
const NEAR: u64 = 1 << 20;

/// The furthest that a key may exceed a clock reading that was taken after the record had been found, in nanoseconds. A
/// key further in the future is damage. A nearer one is held until the clock has passed it.
///
/// The clocks of CPUs differ by less. Linux rejects a time stamp counter that is off by some 100 µs
/// (`WATCHDOG_MAX_SKEW`, `kernel/time/clocksource.c`), and real differences are tens of nanoseconds. A record that is
/// held until its time must not hold its ring up for longer than a grace period takes.
const SLACK: u64 = 1_000_000;

impl Keys {
    /// `clock`: the clock of the keys, if keys are times. `numbers`: where each CPU's own numbers are, and the first of
    /// them, if it is known. `first`: the first key, if it is known.
    pub(crate) fn new(key: Key, clock: Option<Clock>, numbers: Option<(Key, Option<u64>)>, first: Option<u64>) -> Self {
        let clock = clock.filter(|clock| clock.now().is_some());
        Self { key, clock, now: 0, are_sure: true, found: None, largest: first, leap: LEAP, leapt: (0, 0), numbers }
    }

    /// Whether they are the kernel's times.
    pub(crate) fn are_times(&self) -> bool {
        matches!(self.key, Key::Time)
    }

    /// The keys are numbers of which each is one more than the last.
    pub(crate) fn count_up(&mut self) {
        self.leap = LEAP_OF_NUMBERS;
    }

    /// No proof holds for any key: the CPUs need not agree on their clock.
    pub(crate) fn distrust(&mut self) {
        self.are_sure = false;
    }

    /// The largest key that was indexed, if it is not in the future; else a later reading of the clock.
    pub(crate) fn until_now(&mut self) -> Option<u64> {
        let largest = self.found;
        // For a key that is no later, an earlier reading is enough.
        if self.clock.is_some() && largest > Some(self.now) {
            self.read_clock();
            return largest.min(Some(self.now));
        }
        largest
    }

    /// A record's number on its own CPU.
    #[inline]
    pub(crate) fn number(&self, record: &Record<'_>) -> Option<u64> {
        self.numbers.as_ref()?.0.of(record)
    }

    /// New sequences of the numbers of each CPU that writes into a ring with this layout, if records have such numbers.
    pub(crate) fn new_numbers(&self, layout: &Layout) -> Option<CpuNumbers> {
        let (_, first) = self.numbers.as_ref()?;
        Some(CpuNumbers::new(*first, layout.cpu().is_some()))
    }

    /// Where the keys of plain records lie, if this layout has plain records. A plain record can be checked by its own
    /// bytes alone.
    #[inline]
    pub(crate) fn plain(&self, layout: &Layout) -> Option<Plain> {
        // A number is compared with those before it, and may need a note.
        if self.numbers.is_some() {
            return None;
        }
        let (raw, data) = layout.raw()?;
        match self.key {
            Key::Time => {
                // A later time takes the general way, which reads the clock again.
                let most = if self.clock.is_some() { self.now } else { u64::MAX };
                Some(Plain::new(layout.time_at()?, raw, 0, most, layout))
            }
            Key::Payload(offset) => {
                let size = u32::try_from(offset).ok()?.checked_add(8)?;
                // The first key of all takes the general way, which keeps it to compare others with.
                let most = if self.clock.is_some() { self.now } else { self.largest?.saturating_add(self.leap) };
                Some(Plain::new(data + offset, raw, size, most, layout))
            }
            _ => None,
        }
    }

    /// Records that plain records had this key, and none a larger one.
    #[inline]
    pub(crate) fn grew(&mut self, key: u64) {
        self.found = self.found.max(Some(key));
        if self.clock.is_none() && !matches!(self.key, Key::Time) {
            self.largest = self.largest.max(Some(key));
        }
    }

    /// The key that a record contains, before it is checked.
    pub(crate) fn peek(&self, record: &Record<'_>) -> Option<u64> {
        self.key.of(record)
    }

    /// A record's key, if it has one. A time in the future is a fault: as a key, it would make all later records late,
    /// or hold them for ever.
    #[inline]
    pub(crate) fn of(&mut self, record: &Record<'_>) -> Result<Option<u64>, Fault> {
        let key = self.key.of(record);
        match key {
            Some(time) if self.clock.is_some() => {
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

    /// Refuses a key that leaps.
    #[inline]
    fn check_leap(&mut self, key: u64) -> Result<u64, Fault> {
        match self.largest {
            Some(largest) if key > largest => {
                if key - largest > self.leap && !self.is_after_all(key) {
                    return Err(Fault::Leap { key, largest });
                }
                self.largest = Some(key);
            }
            None if !matches!(self.key, Key::Time) => self.largest = Some(key),
            _ => {}
        }
        Ok(key)
    }

    /// Whether a number that leaps is the counter's after all.
    #[cold]
    fn is_after_all(&mut self, number: u64) -> bool {
        let (last, row) = self.leapt;
        let row = if row > 0 && number.abs_diff(last) <= NEAR { row + 1 } else { 1 };
        let is_after_all = self.leap == LEAP_OF_NUMBERS && row > AFTER_ALL;
        self.leapt = if is_after_all { (0, 0) } else { (number, row) };
        is_after_all
    }

    /// Reads the clock again. The record lies before a head that was loaded already, so the reading is later than the
    /// record.
    #[cold]
    fn check(&mut self, time: u64) -> Result<u64, Fault> {
        self.read_clock();
        let now = self.now;
        if time > now.saturating_add(SLACK) { Err(Fault::Time { time, now }) } else { Ok(time) }
    }

    fn read_clock(&mut self) {
        self.now = self.clock.and_then(Clock::now).unwrap_or(u64::MAX);
    }
}

/// Plain records: samples with raw data and no field of varying length before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain {
    /// Where their key ends, and where the length of their raw data ends.
    key_end: usize,
    raw_end: usize,
    /// In which kind of ring they lie.
    pub(crate) kind: RingKind,
    /// The least length of their raw data, in bytes.
    least: u32,
    /// The largest key that needs no other check.
    most: u64,
}

impl Plain {
    fn new(key: usize, raw: usize, least: u32, most: u64, layout: &Layout) -> Self {
        Self { key_end: key + 8, raw_end: raw + 4, kind: layout.kind, least, most }
    }

    /// The record at the start of some bytes, if it is plain: its checked header, its key, and the bytes after it.
    #[inline(always)]
    pub(crate) fn split<'a, F: Framing>(&self, bytes: &'a [u8]) -> Option<(Header, u64, &'a [u8])> {
        let (header, record, rest) = F::split(bytes, self.key_end)?;
        let key = u64::from_ne_bytes(*record.get(..self.key_end)?.last_chunk()?);
        let raw = F::payload_len(record, self.raw_end)?;
        (raw >= self.least && key <= self.most).then_some((header, key, rest))
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
    use super::{Key, Keys, LEAP, Plain, SLACK};
    use crate::record::clock::Clock;
    use crate::record::{Layout, Origin, Record, TIME};
    use crate::ring::{Bytes, Fault, Header};
    use perf_event_open_sys::bindings;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    impl Plain {
        fn read(&self, bytes: &[u8]) -> Option<(Header, u64)> {
            let split = crate::ring::with_framing!(self.kind, F => self.split::<F>(bytes));
            split.map(|(header, key, _)| (header, key))
        }
    }

    /// By the way of the plainest records or by the general one: the same records are whole, and have the same keys.
    #[test]
    fn the_plainest_records_are_what_the_general_way_says() {
        const RAW: u64 = 1 << 10;
        let origin = Arc::new(Origin::new(0, Layout::new(RAW | TIME, true, 0), [(0, 0)].into_iter().collect()));
        let general = |keys: &mut Keys, bytes: &[u8], header: Header| {
            let record = Record::new(Bytes::from(bytes), header, &origin);
            if record.kind() != bindings::PERF_RECORD_SAMPLE || record.check().is_err() {
                return None;
            }
            keys.of(&record).ok().flatten()
        };
        let keys: [fn() -> Key; 5] =
            [|| Key::Time, || Key::Payload(0), || Key::Payload(4), || Key::Payload(12), || Key::Payload(usize::MAX)];
        let mut plain = BTreeMap::<String, usize>::new();
        for (key, size) in keys.into_iter().flat_map(|key| (0..=56u16).map(move |size| (key, size))) {
            for (kind, raw) in
                [(9, 0..48u32), (2, 12..13)].into_iter().flat_map(|(kind, raws)| raws.map(move |raw| (kind, raw)))
            {
                for value in [7, 5 + LEAP, 6 + LEAP] {
                    // More lies behind the record.
                    let mut bytes = [0x11; 72];
                    bytes[..4].copy_from_slice(&u32::to_ne_bytes(kind));
                    bytes[6..8].copy_from_slice(&size.to_ne_bytes());
                    bytes[16..20].copy_from_slice(&raw.to_ne_bytes());
                    let at = match key() {
                        Key::Payload(offset) if offset < 40 => 20 + offset,
                        _ => 8,
                    };
                    bytes[at..at + 8].copy_from_slice(&u64::to_ne_bytes(value));
                    let keys = || Keys::new(key(), None, None, Some(5));
                    let Some(read) = keys().plain(&origin.layout).map(|plain| plain.read(&bytes)) else { continue };
                    let header = Header::first(&bytes);
                    let said = header.and_then(|header| {
                        let len = usize::from(header.size());
                        Some((header, general(&mut keys(), &bytes[..len], header)?))
                    });
                    // A time that leaps is not compared; as the first key of all this one was given.
                    let said = if matches!(key(), Key::Time) && value > LEAP { read } else { said };
                    assert_eq!(read, said, "{:?} of {size} bytes, {raw} raw, {value}", key());
                    *plain.entry(format!("{:?}", key())).or_default() += usize::from(read.is_some());
                }
            }
        }
        assert!(plain.len() == 4 && plain.values().all(|plain| *plain > 20), "{plain:?}");
        // Where what is asked for is no such record there is no such way.
        assert!(Keys::new(Key::Time, None, None, None).plain(&Layout::RAW).is_none());
    }

    #[test]
    fn times_that_no_clock_is_known_for_are_not_compared() {
        let mut keys = Keys::new(Key::Time, None, None, None);
        keys.grew(10);
        assert_eq!(keys.check_leap(u64::MAX), Ok(u64::MAX));
        let mut keys = Keys::new(Key::Payload(0), None, None, None);
        keys.grew(10);
        assert!(keys.check_leap(11 + LEAP).is_err() && keys.check_leap(10 + LEAP).is_ok());
        assert!(keys.check_leap(10 + 2 * LEAP).is_ok(), "from the largest");
    }

    #[test]
    fn a_time_that_has_not_come_yet_is_a_fault() {
        for clock in [Clock::Monotonic, Clock::MonotonicRaw, Clock::Boottime] {
            let mut keys = Keys::new(Key::Time, Some(clock), None, None);
            let now = clock.now().unwrap();
            assert_eq!(keys.check(now), Ok(now));
            assert_eq!(keys.check(now + SLACK / 2), Ok(now + SLACK / 2), "clocks may differ a little");
            // As far ahead as the clock cannot have come meanwhile.
            for wild in [now + 3_600_000_000_000, 1 << 63, u64::MAX] {
                assert!(matches!(keys.check(wild), Err(Fault::Time { time, .. }) if time == wild), "{clock:?}");
            }
            assert!(keys.now >= now);
        }
        // Where there is no clock, nothing can be said.
        let mut keys = Keys::new(Key::Time, Some(Clock::Perf), None, None);
        assert!(keys.clock.is_none());
        keys.found = Some(u64::MAX);
        assert_eq!(keys.until_now(), Some(u64::MAX));
    }

    #[test]
    fn no_key_counts_as_seen_before_its_time() {
        let mut keys = Keys::new(Key::Time, Some(Clock::Monotonic), None, None);
        assert_eq!(keys.until_now(), None);
        keys.found = Some(5);
        assert_eq!(keys.until_now(), Some(5));
        let future = Clock::Monotonic.now().unwrap() + 3_600_000_000_000;
        keys.found = Some(future);
        let until = keys.until_now().unwrap();
        assert!(until < future && until <= Clock::Monotonic.now().unwrap());
        assert!(keys.until_now().unwrap() >= until, "time goes on");
    }
}
