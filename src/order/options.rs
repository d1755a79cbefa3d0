//! The options that put a stream in order.

use crate::error::{Error, ErrorKind};
use crate::order::hold::Hold;
use crate::order::key::Key;
use crate::rings::Lane;
use crate::sequence::counter::Sequence;
use std::time::Duration;

/// [`Order::latency`] unless it is set.
pub(crate) const LATENCY: Duration = Duration::from_millis(100);

/// How a stream is put in order: keys, hold rule, full rings.
#[derive(Debug)]
pub struct Order {
    pub(crate) key: Key,
    pub(crate) hold: Hold,
    pub(crate) numbers: Option<Sequence>,
    pub(crate) when_full: WhenFull,
    pub(crate) mark: FillMark,
    pub(crate) late_side_output: usize,
    pub(crate) latency: Duration,
    pub(crate) spin: Duration,
    pub(crate) without_self: bool,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            key: Key::default(),
            hold: Hold::default(),
            numbers: None,
            when_full: WhenFull::default(),
            mark: FillMark::default(),
            late_side_output: 0,
            latency: LATENCY,
            spin: Duration::ZERO,
            without_self: false,
        }
    }
}

/// What to do with held records when a ring is filled beyond its mark ([`Order::fill_mark`]).
///
/// The kernel drops records that do not fit, and holding records must not cost records.
///
/// # Recordings
///
/// Nobody writes into the rings of a recording, so nothing is copied, let out or discarded for a ring that is full. The bound of
/// [`WhenFull::Copy`] holds for what is indexed. If the index of the whole recording could take more than the bound, a refresh takes a part of each
/// ring, and [`Merge::is_behind`](crate::Merge::is_behind) says that there is more. Before the first part each record is asked for its key
/// once, so that a part proves the order of what is smaller than all that is left. Only if a key is smaller than so many before it in its
/// ring that they do not fit into the bound, and where keys wrap ([`Key::Sequence`](crate::Key::Sequence)), records leave before their order
/// is proven: [`EarlyRelease`](crate::EarlyRelease) says so. [`WhenFull::Release`] and [`WhenFull::Discard`] index a whole recording at once, without a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "overflow")]
#[doc(alias = "back-pressure")]
pub enum WhenFull {
    /// Copy held records out of the ring and keep the order. The default, with 64 MiB ([`WhenFull::COPY`]).
    ///
    /// While holding takes less than three quarters of `most`, nothing is lost and nothing leaves early. Beyond that,
    /// the records with the smallest keys leave before their order is proven, as many as needed: see
    /// [`EarlyRelease`](crate::EarlyRelease).
    Copy {
        /// The most memory that holding may take for all rings together, in bytes.
        ///
        /// This counts each copied record with 0 to 7 bytes of padding. It counts 16 bytes of index for each held
        /// record, also for one that lies in its ring, 40 if the record is out of order in its ring, and some 100 more
        /// if something is to be said before it. It does not count the memory of the rings, nor the 8 KiB that each
        /// ring has from the begin, nor up to 12 KiB for numbers of the machine that are missing. Memory that a burst took is given back within 64 refreshes.
        most: usize,
    },
    /// Let out as many held records as make room, before their order is proven. This takes no memory beyond the index
    /// of the records in the rings.
    Release,
    /// Leave held records where they are. The kernel discards records that do not fit (discard mode in LTTng).
    Discard,
}

impl WhenFull {
    /// [`WhenFull::Copy`] with 64 MiB. Two CPUs that write as fast as they can fill this in a tenth of a second.
    pub const COPY: Self = Self::Copy { most: 64 << 20 };
}

impl Default for WhenFull {
    fn default() -> Self {
        Self::COPY
    }
}

/// A part of a ring, in percent, if one was asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FillMark(Option<u8>);

/// The part of a ring that may be filled unless said otherwise, in percent.
const MARK: u8 = 75;

impl FillMark {
    /// Checks that there is room for a record in what it leaves of each ring.
    pub(crate) fn check(self, lanes: &[Lane]) -> Result<(), Error> {
        let Some(percent) = self.0 else { return Ok(()) };
        for Lane { ring, origin, .. } in lanes {
            let (size, record) = (ring.size(), origin.layout.smallest());
            let left = size - self.of(size);
            // One byte of a ring is never written. Where no record fits anyway, no mark is to blame.
            if let Some(room) = size.checked_sub(record + 1)
                && left <= record
            {
                let most = room * 100 / size;
                let message = format!(
                    "a fill mark of {percent} % leaves {left} bytes of the {size} of CPU {}'s ring, and records take {record} and \
                     more: at most {most} %",
                    origin.cpu
                );
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
        }
        Ok(())
    }

    /// Bytes of a ring of that size.
    fn of(self, size: u64) -> u64 {
        let percent = u64::from(self.0.unwrap_or(MARK));
        size / 100 * percent + size % 100 * percent / 100
    }

    /// How full the ring may be, so that two more of its longest records fit. If that leaves little, half of what one
    /// record leaves. One byte of a ring is never written.
    pub(crate) fn leaving(self, size: u64, longest: u64) -> u64 {
        let room = |records: u64| (size - 1).saturating_sub(records * longest);
        self.of(size).min(room(2).max(room(1) / 2))
    }
}

impl Order {
    /// The kernel's timestamps as keys, held until a fence has proven their order.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets where a record's key is found.
    pub fn key(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// Sets the hold rule: when an event may be yielded.
    pub fn hold(mut self, hold: Hold) -> Self {
        self.hold = hold;
        self
    }

    /// Sets where each CPU's own sequence number is, for programs that count what they write. A missing number is then
    /// a [`Gap`](crate::Gap) with its CPU, before the record that shows the gap.
    pub fn numbers(mut self, numbers: Sequence) -> Self {
        self.numbers = Some(numbers);
        self
    }

    /// Sets what to do with held records when a ring fills up.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Sets how full a ring may be, in percent, before [`Order::when_full`] takes effect. 75 unless set.
    ///
    /// The mark always leaves room for two of the longest records seen in the ring. The reader looks at the rings when
    /// the kernel wakes it, so the rest of a ring must take what a CPU writes until the reader runs. Under [`WhenFull::Copy`]
    /// a reader also copies held records out of a ring below the mark, if the ring is written so quickly that the rest
    /// of it would be full within ten milliseconds. Merging the rings fails if the mark leaves a ring no room for a
    /// record ([`ErrorKind::InvalidInput`]). A recording needs none.
    ///
    /// # Panics
    /// If `percent` is more than 100.
    #[doc(alias = "high watermark")]
    #[doc(alias = "watermark")]
    pub fn fill_mark(mut self, percent: u8) -> Self {
        assert!(percent <= 100, "{percent} percent");
        self.mark = FillMark(Some(percent));
        self
    }

    /// Sets how many late records are kept out of the stream, as copies. [`Merge::late`](crate::Merge::late) or
    /// [`Reader::late`](crate::Reader::late) takes them out. Once `most` are waiting, further ones are yielded in the
    /// stream, marked late. 0 unless set: late records are yielded at once.
    #[doc(alias = "side output")]
    #[doc(alias = "late events")]
    pub fn late_side_output(mut self, most: usize) -> Self {
        self.late_side_output = most;
        self
    }

    /// Sets the longest time an event may wait for a refresh, and then for a fence to begin. 100 ms unless set, from 1 ms
    /// to an hour. For readers: a [`Merge`](crate::Merge) does not wait.
    ///
    /// The latency matters on a machine where little happens. The reader wakes once in that time, and under a fence
    /// rule begins a fence if it found anything. Where much happens, a reader looks and fences sooner by itself. Where
    /// a ring fills up, the kernel wakes the reader. docs/NUMBERS.md has what each costs the traced machine.
    ///
    /// libpcap calls this the packet buffer timeout, LTTng the read timer.
    #[doc(alias = "timeout")]
    #[doc(alias = "linger")]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Sets how long a reader goes on looking at the rings after it has found something, before it sleeps. Zero unless
    /// set.
    ///
    /// A spinning reader finds the next event within a microsecond or so, without a wake-up, and uses a whole CPU. On a
    /// machine where nothing happens it still sleeps. With [`Duration::MAX`] it never sleeps.
    ///
    /// For a [`Reader`](crate::Reader): a reader under tokio does not spin, and a [`Merge`](crate::Merge) does not
    /// wait. The other way to see events soon is a wake-up for every few events
    /// ([`Wakeup::Events`](crate::Wakeup::Events)). That costs the traced program an interrupt each time.
    #[doc(alias = "busy poll")]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Leaves out records that are about the tracer alone: the threads that read these rings, and the thread that waits
    /// for their fences. On an idle machine most events of a scheduler trace are the tracer's.
    ///
    /// A record is left out if
    ///
    /// - it is a tracepoint's or a probe's, and a thread of the tracer wrote it (`common_pid`), as when the reader wakes
    ///   another thread;
    /// - it is a tracepoint of the scheduler (`sched_*`) with a field `pid`, and that is a thread of the tracer: someone
    ///   wakes the reader;
    /// - it is `sched:sched_switch`, between a thread of the tracer and the idle thread, or another thread of the tracer.
    ///   A switch between the reader and another program stays, since it says when that program ran. So half of the
    ///   reader's own switches may be there: a tool that pairs switches leaves [`Reader::threads`](crate::Reader::threads)
    ///   out of its result;
    /// - it is any other record with [`Sample::Tid`](crate::Sample::Tid), and a thread of the tracer ran.
    ///
    /// In a PID namespace of its own, as in a container, the tracer does not know the numbers that tracepoints have for its
    /// threads. There, and for adopted rings, only the last rule holds. Of a recording nothing is left out. A thread that
    /// has read and ended is left out further on: give readers to threads that last.
    ///
    /// [`Stats::left_out`](crate::Stats::left_out) counts what was left out. A ledger counts it as yielded. Numbers and
    /// keys are checked as for all records. A thread that reads is known from its first refresh on:
    /// [`Reader::threads`](crate::Reader::threads) names them. A filter in the kernel
    /// ([`RingOptions::filter`](crate::RingOptions::filter)) can leave out what is known when rings are opened, and counts
    /// nothing.
    #[doc(alias = "filter")]
    pub fn without_self(mut self) -> Self {
        self.without_self = true;
        self
    }
}
