//! How a stream is put in order: what a user decides.

use crate::hold::Hold;
use crate::key::Key;
use crate::sequence::Sequence;
use std::time::Duration;

/// [`Order::latency`] unless it is set.
pub(crate) const LATENCY: Duration = Duration::from_millis(100);

/// How a stream is put in order.
#[derive(Debug)]
pub struct Order {
    pub(crate) key: Key,
    pub(crate) hold: Hold,
    pub(crate) numbers: Option<Sequence>,
    pub(crate) full: Full,
    pub(crate) mark: Mark,
    pub(crate) late_aside: usize,
    pub(crate) latency: Duration,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            key: Key::default(),
            hold: Hold::default(),
            numbers: None,
            full: Full::default(),
            mark: Mark::default(),
            late_aside: 0,
            latency: LATENCY,
        }
    }
}

/// What to do about held records when a ring is filled beyond its mark ([`Order::fill_mark`]): the kernel drops what does
/// not fit, and holding records must not cost records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Full {
    /// Let out as many of them as make room, before their order is proven. They are [`Class::Assumed`](crate::Class::Assumed); what turns up behind
    /// them with a smaller key is late. The default.
    #[default]
    Release,
    /// Copy them out of the ring and keep the order, using at most so much memory for all rings together; when that is
    /// used up, let records out as `Release` does.
    Copy {
        /// Bytes of copies at any time.
        most: usize,
    },
    /// Leave them where they are, and let the kernel drop what does not fit.
    Hold,
}

/// A part of a ring, in percent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(u8);

impl Default for Mark {
    fn default() -> Self {
        Self(75)
    }
}

impl Mark {
    pub(crate) fn of(self, size: u64) -> u64 {
        size / 100 * u64::from(self.0) + size % 100 * u64::from(self.0) / 100
    }
}

impl Order {
    /// The kernel's timestamps as keys, held until a fence has proven their order.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets where keys are found.
    pub fn key(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// Sets when keys may be yielded.
    pub fn hold(mut self, hold: Hold) -> Self {
        self.hold = hold;
        self
    }

    /// Says where each CPU's own numbers are, if programs count what they write: what is missing is then a [`Gap`](crate::Gap) with its
    /// CPU, before the record that shows it.
    pub fn numbers(mut self, numbers: Sequence) -> Self {
        self.numbers = Some(numbers);
        self
    }

    /// Sets what to do about held records when a ring fills up.
    pub fn when_full(mut self, full: Full) -> Self {
        self.full = full;
        self
    }

    /// Sets how full a ring may be, in percent, before [`Order::when_full`] takes effect: 75 unless set. Rings are looked at
    /// when the kernel wakes the reader, so what is left must take what a CPU writes until the reader runs.
    ///
    /// # Panics
    /// If it is more than 100.
    pub fn fill_mark(mut self, percent: u8) -> Self {
        assert!(percent <= 100, "{percent} percent");
        self.mark = Mark(percent);
        self
    }

    /// Keeps up to so many late records out of the stream, as copies, for [`Merge::late`](crate::Merge::late) or
    /// [`Reader::late`](crate::Reader::late) to hand out. With so many waiting there, further ones are yielded in the stream,
    /// marked as ever. 0 unless set: late records are yielded at once.
    pub fn late_aside(mut self, most: usize) -> Self {
        self.late_aside = most;
        self
    }

    /// Sets how long an event may wait for a look, and then for a fence to begin, while so little is waiting that neither is
    /// worth its cost: 100 ms unless set, from 1 ms to an hour. A [`Merge`](crate::Merge) does not wait, so it is for readers.
    ///
    /// It is what one pays for promptness on a machine where little happens: the reader wakes once each such time, and under
    /// a fence rule begins a fence if that found anything. Where much happens, a reader looks and fences sooner by itself,
    /// and where a ring fills up the kernel wakes it. DESIGN.md has what each costs the traced machine.
    ///
    /// libpcap calls this the packet buffer timeout, LTTng the read timer.
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }
}
