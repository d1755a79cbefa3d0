//! Keys: where a record's key is, and which keys can be right.

use crate::record::clock::Clock;
use crate::record::{Layout, Record};
use crate::ring::{Fault, Framing, Header, RingKind};
use crate::sequence::counter::Sequence;
use crate::sequence::numbers::CpuNumbers;
use std::fmt;

/// The function behind [`Key::Fn`].
type Extract = Box<dyn Fn(&Record<'_>) -> Option<u64> + Send>;

/// Where to find the number that orders records: a time or a sequence number, from one source that only grows.
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
    /// place of the record that follows them. For a recording that is indexed in parts, the reader calls it twice: see
    /// [`WhenFull`](crate::WhenFull). It must not panic. If it panics, the record stays unread.
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

    /// Whether records without the kernel's time may have no key. Nobody knows what a function reads.
    pub(crate) fn may_need_time(&self) -> bool {
        !matches!(self, Self::Payload(_))
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
    /// The clock that the keys come from, if it is known and can be read.
    clock: Option<Latest>,
    /// The last reading of that clock.
    now: u64,
    /// No proof holds for keys up to here: their clock was set back meanwhile, or differs between CPUs.
    unsure_until: Option<u64>,
    /// The largest key so far, where nothing else bounds a key. Times without a known clock are not compared.
    largest: Option<u64>,
    /// The furthest that a key may exceed all others.
    leap: u64,
    /// The number that leapt last, and how many did in a row.
    leapt: (u64, u32),
    /// Where each CPU's own numbers are.
    numbers: Option<Sequence>,
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

/// The latest time that a clock can have shown.
#[derive(Debug)]
struct Latest {
    clock: Clock,
    /// The most that the clock was ever ahead of the time since boot, in nanoseconds. Some clocks can be set back, and
    /// the rings still hold records from before that.
    ahead: u64,
    /// How far it is ahead since it was last set, as narrowly as that is known.
    offset: Option<Offset>,
}

/// How far a clock is ahead of the time since boot, in nanoseconds: at least, and at most.
#[derive(Debug, Clone, Copy)]
struct Offset {
    least: i64,
    most: i64,
}

/// A clock that was set back by less than this is not noticed: the clocks of two CPUs differ by less.
const STEP: i64 = 1000;

/// How often a clock is read at most to know its offset to within a [`STEP`]. Where reading takes longer than that, no
/// number helps.
const TRIES: u32 = 4;

impl Offset {
    /// From a reading of the clock between two of the time since boot.
    fn of([before, clock, after]: [u64; 3]) -> Self {
        // Negative if the clock is behind the time since boot. The later of the two readings gives the least.
        Self { least: clock.wrapping_sub(after).cast_signed(), most: clock.wrapping_sub(before).cast_signed() }
    }

    /// Takes a later reading. If the clock was set back since, gives how far it was ahead before that, at most.
    fn follow(&mut self, now: Self) -> Option<i64> {
        if now.most < self.least - STEP || now.least > self.most {
            let before = std::mem::replace(self, now);
            // A clock that was set forward shows no time twice.
            return (now.most < before.least).then_some(before.most);
        }
        // `least` never falls here. So several sets, each too small to be noticed, add up until they are.
        *self = Self { least: self.least.max(now.least), most: self.most.min(now.most).max(self.least) };
        None
    }
}

impl Latest {
    fn of(clock: Clock) -> Option<Self> {
        clock.now()?;
        let mut latest = Self { clock, ahead: 0, offset: None };
        latest.read();
        latest.set_back();
        Some(latest)
    }

    /// If somebody has set the clock back since the last call: the largest time that it can have shown before.
    fn set_back(&mut self) -> Option<u64> {
        let clock = self.clock;
        let read = || Some([Clock::Boottime.now()?, clock.now()?, Clock::Boottime.now()?]);
        if clock.can_be_set() { self.compare(read) } else { None }
    }

    /// [`Latest::set_back`], with readings of the clock between two of the time since boot.
    fn compare(&mut self, mut read: impl FnMut() -> Option<[u64; 3]>) -> Option<u64> {
        let width = |[before, _, after]: [u64; 3]| after.saturating_sub(before);
        let mut readings = read()?;
        // A thread that is kept from running between two readings learns little, and a set hides in what it does not
        // know.
        for _ in 1..TRIES {
            if width(readings) <= STEP as u64 {
                break;
            }
            let again = read()?;
            if width(again) < width(readings) {
                readings = again;
            }
        }
        let now = Offset::of(readings);
        let before = self.offset.get_or_insert(now).follow(now)?;
        // It was set before the last reading. Until then it was ahead by no more than `before`.
        Some(readings[2].saturating_add_signed(before))
    }

    fn read(&mut self) -> u64 {
        if !self.clock.can_be_set() {
            return self.clock.now().unwrap_or(u64::MAX);
        }
        let since_boot = Clock::Boottime.now().unwrap_or(0);
        // After the time since boot, so that `ahead` is not too small.
        let now = self.clock.now().unwrap_or(u64::MAX);
        self.ahead = self.ahead.max(now.saturating_sub(since_boot));
        since_boot.saturating_add(self.ahead)
    }
}

impl Keys {
    /// `clock`: the clock of the keys, if keys are times. `numbers`: where each CPU's own numbers are. `first`: the
    /// first key, if it is known.
    pub(crate) fn new(key: Key, clock: Option<Clock>, numbers: Option<Sequence>, first: Option<u64>) -> Self {
        let clock = clock.and_then(Latest::of);
        Self { key, clock, now: 0, unsure_until: None, largest: first, leap: LEAP, leapt: (0, 0), numbers }
    }

    /// The keys are numbers of which each is one more than the last.
    pub(crate) fn count_up(&mut self) {
        self.leap = LEAP_OF_NUMBERS;
    }

    /// Notices that somebody has set the clock back. Call it after the heads were loaded: a record that was stamped
    /// after the set and lies before a head does not leave unnoticed.
    ///
    /// Keys that the clock showed before the set come again, so no proof holds for them until the clock has passed
    /// them.
    pub(crate) fn notice_set_back(&mut self, largest: Option<u64>) {
        if let Some(shown) = self.clock.as_mut().and_then(Latest::set_back) {
            // The clock has shown the keys that were found.
            self.unsure_until = self.unsure_until.max(Some(shown)).max(largest);
        }
    }

    /// No proof holds for any key: the CPUs need not agree on their clock.
    pub(crate) fn distrust(&mut self) {
        self.unsure_until = Some(u64::MAX);
    }

    /// The largest time that the clock can have shown before it was set back, if it was.
    pub(crate) fn shown(&self) -> Option<u64> {
        self.unsure_until.filter(|_| self.clock.is_some())
    }

    /// Whether this key is reliable.
    #[inline]
    pub(crate) fn is_sure(&self, key: u64) -> bool {
        self.unsure_until.is_none_or(|until| key > until)
    }

    /// Whether all keys are reliable.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn are_sure(&self) -> bool {
        self.unsure_until.is_none()
    }

    /// The largest key that is not in the future.
    pub(crate) fn until_now(&mut self, largest: Option<u64>) -> Option<u64> {
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
        self.numbers.as_ref()?.of(record)
    }

    /// New sequences of the numbers of each CPU that writes into a ring with this layout, if records have such numbers.
    pub(crate) fn new_numbers(&self, layout: &Layout) -> Option<CpuNumbers> {
        let numbers = self.numbers.as_ref()?;
        Some(CpuNumbers::new(numbers.first(), layout.cpu().is_some()))
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

    /// Records that a plain record had this key.
    #[inline]
    pub(crate) fn grew(&mut self, key: u64) {
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
        self.now = self.clock.as_mut().map_or(u64::MAX, Latest::read);
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

    #[cfg(all(test, not(loom)))]
    fn read(&self, bytes: &[u8]) -> Option<(Header, u64)> {
        let split = crate::ring::with_framing!(self.kind, F => self.split::<F>(bytes));
        split.map(|(header, key, _)| (header, key))
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
    use super::{Key, Keys, LEAP, Latest, Offset, SLACK, STEP, TRIES};
    use crate::record::clock::Clock;
    use crate::record::{Layout, Origin, Record, TIME};
    use crate::ring::{Bytes, Fault, Header};
    use perf_event_open_sys::bindings;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// Readings narrow what is known of an offset, so that a smaller set is noticed. The very step is none.
    #[test]
    fn an_offset_is_known_as_narrowly_as_readings_say() {
        let known = |offset: Offset| (offset.least, offset.most);
        let mut offset = Offset { least: 0, most: 20 * STEP };
        assert_eq!(offset.follow(Offset { least: 5 * STEP, most: 6 * STEP }), None);
        assert_eq!(known(offset), (5 * STEP, 6 * STEP));
        assert_eq!(offset.follow(Offset { least: 6 * STEP, most: 7 * STEP }), None, "no step yet");
        assert_eq!(known(offset), (6 * STEP, 6 * STEP));
        assert_eq!(offset.follow(Offset { least: 4 * STEP, most: 5 * STEP }), None, "the very step");
        assert_eq!(offset.follow(Offset { least: 4 * STEP, most: 5 * STEP - 1 }), Some(6 * STEP), "set back");
        assert_eq!(known(offset), (4 * STEP, 5 * STEP - 1));
        assert_eq!(offset.follow(Offset { least: 5 * STEP, most: 6 * STEP }), None, "set forward");
        assert_eq!(known(offset), (5 * STEP, 6 * STEP));
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
        let _kept = perfweave_support::lock::keep(perfweave_support::lock::CLOCK);
        for clock in [Clock::Monotonic, Clock::MonotonicRaw, Clock::Boottime, Clock::Realtime, Clock::Tai] {
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
        assert_eq!(keys.until_now(Some(u64::MAX)), Some(u64::MAX));
    }

    #[test]
    fn no_key_counts_as_seen_before_its_time() {
        let mut keys = Keys::new(Key::Time, Some(Clock::Monotonic), None, None);
        assert_eq!(keys.until_now(None), None);
        assert_eq!(keys.until_now(Some(5)), Some(5));
        let future = Clock::Monotonic.now().unwrap() + 3_600_000_000_000;
        let until = keys.until_now(Some(future)).unwrap();
        assert!(until < future && until <= Clock::Monotonic.now().unwrap());
        assert!(keys.until_now(Some(future)).unwrap() >= until, "time goes on");
    }

    /// A clock that is read between two readings of another is ahead of it by something in between, and that tells
    /// whether it was set.
    #[test]
    fn a_clock_that_is_set_back_is_noticed_and_no_other() {
        let ahead =
            |ahead: i64, at: u64, wide: u64| Offset::of([at, at.saturating_add_signed(ahead) + wide / 2, at + wide]);
        let mut offset = ahead(5_000_000, 100, 40);
        // Readings that take long say little, and are no sets. Nor are those of clocks that differ a little.
        for (at, wide) in [(200, 40), (300, 1_000_000_000), (2_000_000_000, 20)] {
            assert_eq!(offset.follow(ahead(5_000_000, at, wide)), None);
        }
        assert_eq!(offset.follow(ahead(5_000_000 - STEP / 2, 3_000_000_000, 20)), None);
        let forward = ahead(9_000_000, 4_000_000_000, 40);
        assert_eq!(offset.follow(forward), None, "set forward, it shows no time twice");
        let before = offset.follow(ahead(4_000_000, 5_000_000_000, 40)).expect("set back");
        assert!((9_000_000..=9_000_020).contains(&before), "{before}");
        assert_eq!(offset.follow(ahead(4_000_000, 6_000_000_000, 40)), None, "once");
        // Behind the time since boot.
        assert!(offset.follow(ahead(-4_000_000, 7_000_000_000, 40)).is_some());
        assert_eq!(offset.follow(ahead(-4_000_000, 8_000_000_000, 40)), None);
    }

    /// What the clock showed before it was set back is in doubt, and nothing later.
    #[test]
    fn no_proof_holds_until_a_clock_that_was_set_back_has_passed_what_it_showed() {
        let mut keys = Keys::new(Key::Time, Some(Clock::Realtime), None, None);
        keys.notice_set_back(Some(5));
        assert!(keys.are_sure() && keys.is_sure(5));
        // As if it had been an hour ahead.
        let hour = 3_600_000_000_000;
        let latest = keys.clock.as_mut().unwrap();
        let Offset { least, most } = latest.offset.unwrap();
        latest.offset = Some(Offset { least: least + hour, most: most + hour });
        let now = Clock::Realtime.now().unwrap();
        keys.notice_set_back(None);
        let hour = hour as u64;
        assert!(!keys.are_sure() && !keys.is_sure(now + hour) && keys.is_sure(now + 2 * hour));
        // A key that was found counts as shown.
        let latest = keys.clock.as_mut().unwrap();
        latest.offset = Some(Offset { least: least + 10_000_000, most: most + 10_000_000 });
        keys.notice_set_back(Some(now + 3 * hour));
        assert!(!keys.is_sure(now + 3 * hour));
        // Nobody can set this one.
        let mut keys = Keys::new(Key::Time, Some(Clock::Boottime), None, None);
        keys.clock.as_mut().unwrap().offset = Some(Offset { least: i64::MAX - STEP, most: i64::MAX });
        keys.notice_set_back(None);
        assert!(keys.are_sure());
    }

    /// A thread that does not run between two readings looks again: a set does not hide in that time.
    #[test]
    fn a_set_does_not_hide_in_a_long_reading() {
        let ahead = |ahead: u64, at: u64, wide: u64| [at, at + wide + ahead, at + wide];
        let mut latest = Latest { clock: Clock::Tai, ahead: 0, offset: None };
        assert_eq!(latest.compare(|| Some(ahead(5_000_000, 100, 40))), None);
        // Set back by a millisecond.
        let mut readings = [ahead(4_000_000, 1_000_000, 30_000_000), ahead(4_000_000, 40_000_000, 40)].into_iter();
        let shown = latest.compare(|| readings.next()).expect("it was set back");
        assert!((45_000_040..=45_000_080).contains(&shown), "{shown}");
        // Where each takes long: the shortest, and not for ever.
        let mut times = 0;
        let shown = latest.compare(|| {
            times += 1;
            Some(ahead(2_000_000, 100_000_000 * times, if times == 2 { 5000 } else { 30_000_000 }))
        });
        assert!(shown.is_some() && times == u64::from(TRIES), "{shown:?} {times}");
    }

    #[test]
    fn a_clock_that_is_set_back_leaves_older_times_valid() {
        let mut latest = Latest::of(Clock::Realtime).unwrap();
        let now = Clock::Realtime.now().unwrap();
        // It was an hour ahead when it was read last.
        latest.ahead += 3_600_000_000_000;
        assert!(latest.read() >= now + 3_600_000_000_000);
        // What cannot be set is what it is.
        let mut latest = Latest::of(Clock::Monotonic).unwrap();
        latest.ahead = u64::MAX / 2;
        assert!(latest.read() <= Clock::Monotonic.now().unwrap());
    }
}
