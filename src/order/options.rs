//! The options of a merge and of a reader.

use crate::error::{Error, ErrorKind};
use crate::order::hold::Hold;
use crate::order::key::Key;
use crate::rings::options::RingOptions;
use crate::rings::{CpuRing, Rings};
use crate::sequence::counter::Sequence;
use std::time::Duration;

/// The default of [`Order::latency`].
pub(crate) const LATENCY: Duration = Duration::from_millis(100);

/// How a stream is put in order: keys, hold rule, full rings.
#[derive(Debug)]
pub struct Order {
    pub(crate) key: Key,
    pub(crate) hold: Hold,
    pub(crate) numbers: Option<Sequence>,
    /// What was asked for.
    pub(crate) when_full: Option<WhenFull>,
    pub(crate) mark: FillMark,
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
            when_full: None,
            mark: FillMark::default(),
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
/// No kernel writes into the rings of a recording, so none can overflow, and this choice changes nothing there. The
/// index of the whole recording must fit into half of the memory that this process can get: else
/// [`Reader::new`](crate::Reader::new) gives [`ErrorKind::Limit`], with the bytes that the index would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "overflow")]
#[doc(alias = "back-pressure")]
pub enum WhenFull {
    /// Copy held records out of the ring and keep the order. The default, with 64 MiB ([`WhenFull::COPY`]), for rings
    /// that are unmapped with their reader.
    ///
    /// Out of rings that outlive their reader, records are copied only if [`Order::when_full`] was called. When such a
    /// reader is dropped, [`Handle::status`](crate::Handle::status) counts the copied records that it had not yielded
    /// as [`lost`](crate::Account::lost).
    ///
    /// While holding takes less than three quarters of `most`, nothing is lost and nothing leaves early. Beyond that,
    /// the records with the smallest keys leave before their order is proven, as many as needed: see
    /// [`EarlyRelease`](crate::EarlyRelease).
    Copy {
        /// The most memory that holding may take for all rings together, in bytes.
        ///
        /// The bound includes each copied record with 0 to 7 bytes of padding, and the index. The index takes 16 bytes
        /// for each held record, also for one that lies in its ring, and some 100 bytes more if a notice comes before
        /// it. The bound does not include the memory of the rings, the 8 KiB that each ring has from the start, or up
        /// to 12 KiB for missing numbers of the machine. Memory that a burst took is given back within 64 refreshes.
        most: usize,
    },
    /// Release as many held records as make space, before their order is proven. This takes no memory beyond the index
    /// of the records in the rings.
    Release,
    /// Leave held records where they are. The kernel discards records that do not fit (discard mode in LTTng).
    Discard,
}

impl WhenFull {
    /// [`WhenFull::Copy`] with 64 MiB. Two CPUs that write as fast as they can fill this in a tenth of a second.
    pub const COPY: Self = Self::Copy { most: 64 << 20 };

    /// The most memory that holding may take, in bytes.
    pub(crate) fn most(self) -> usize {
        match self {
            Self::Copy { most } => most,
            // The index is bounded by the size of the rings.
            Self::Release | Self::Discard => usize::MAX,
        }
    }
}

impl Default for WhenFull {
    fn default() -> Self {
        Self::COPY
    }
}

/// A part of a ring, in percent, if the user has set one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FillMark(Option<u8>);

/// The default fill mark, in percent.
const MARK: u8 = 75;

impl FillMark {
    /// Checks that the rest of each ring is large enough for a record.
    pub(crate) fn check(self, cpu_rings: &[CpuRing]) -> Result<(), Error> {
        let Some(percent) = self.0 else { return Ok(()) };
        for CpuRing { ring, origin, .. } in cpu_rings {
            let (size, record) = (ring.size(), origin.layout.smallest());
            let left = size - self.of(size);
            // The kernel never writes one byte of a ring. If no record fits even then, the mark is not at fault.
            if let Some(room) = size.checked_sub(record + 1)
                && left <= record
            {
                let most = room * 100 / size;
                let message = format!(
                    "a fill mark of {percent} % leaves {left} bytes of the {size} of CPU {}'s ring, and records take \
                     {record} and more: at most {most} %",
                    origin.cpu
                );
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
        }
        Ok(())
    }

    /// The mark in bytes, for a ring of that size.
    fn of(self, size: u64) -> u64 {
        let percent = u64::from(self.0.unwrap_or(MARK));
        size / 100 * percent + size % 100 * percent / 100
    }

    /// The mark that leaves space for two more of the ring's longest records. If that mark is too low, half of what one
    /// record leaves. The kernel never writes one byte of a ring.
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

    /// Options of rings that ask the kernel for no more than this order needs. If the key lies in the payload
    /// ([`Key::Payload`]), their records have no time (`PERF_SAMPLE_TIME`), unless an attribute given to
    /// `RingOptions::event` or [`RingOptions::sample`] asks for it.
    ///
    /// Such a record is 8 bytes shorter, and the kernel reads no clock for it. The clock costs the traced program about
    /// a fifth of a small output. [`Record::time`](crate::Record::time) is then `None`, and a reader by [`Key::Time`]
    /// is [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput). Records of
    /// [`Rings::options`](crate::Rings::options) have a time.
    ///
    /// ```no_run
    /// use perfweave::{Key, Order, Reader};
    ///
    /// # fn open(map: std::os::fd::OwnedFd) -> Result<(), perfweave::Error> {
    /// let order = Order::new().key(Key::Payload(0));
    /// let rings = order.ring_options().bpf_output(map).open()?;
    /// let reader = Reader::new(rings, order)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ring_options(&self) -> RingOptions {
        let options = Rings::options();
        if self.key.may_need_time() { options } else { options.without_time() }
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

    /// Sets where each CPU's own sequence number is, for programs that number their output. A missing number is then a
    /// [`Gap`](crate::Gap) with its CPU, before the record that shows the gap.
    ///
    /// A gap is proven if a proof has ended that began after its record, or one with a larger key, was seen. A record
    /// whose key only equals the largest one seen then, as with a clock that ticks seldom, may be yielded while a
    /// smaller number with that key is in flight: the gap is assumed, and the number is an anomaly if it comes
    /// ([`AnomalyKind::Late`](crate::AnomalyKind::Late)). Programs draw the number before the key.
    ///
    /// In a BPF ring buffer that CPUs share, records must name their CPU ([`Layout::cpu_at`](crate::Layout::cpu_at)). A
    /// record there that is too short for that, or names a CPU that no kernel has, is not checked. Each counter counts
    /// for one ring: a CPU that writes into two needs two.
    pub fn numbers(mut self, numbers: Sequence) -> Self {
        self.numbers = Some(numbers);
        self
    }

    /// Sets what to do with held records when a ring fills up. [`WhenFull::COPY`] unless set, but for rings that
    /// outlive their reader: nothing is copied out of a BPF ring buffer or an adopted ring unless this is called, and what does
    /// not fit is lost as under [`WhenFull::Discard`]. A copy would be lost with the reader, and the next reader of the
    /// ring would not get the record. Call it where no other reader follows: [`WhenFull::Copy`].
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = Some(when_full);
        self
    }

    /// Sets how full a ring may be, in percent, before [`Order::when_full`] takes effect. 75 unless set.
    ///
    /// The mark always leaves space for two of the longest records seen in the ring. The kernel wakes the reader, and
    /// the reader refreshes. The rest of a ring must take what a CPU writes until the reader runs. Under
    /// [`WhenFull::Copy`] a reader also copies held records out of a ring below the mark if the kernel would fill the
    /// rest of the ring within ten milliseconds. Making a reader fails with [`ErrorKind::InvalidInput`] if the mark
    /// leaves no space for a record in a ring. For a recording this is not checked.
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

    /// Sets the longest time that an event waits for a refresh, and then for a fence to begin. 100 ms unless set, from
    /// 1 ms to an hour.
    ///
    /// A reader gathers events, because each wake-up and each fence costs as much as many events. On a machine with few
    /// events it wakes once in this time, and under a fence rule begins a fence if it found an event. On a busy machine
    /// it wakes as soon as a wake-up is cheap for the number of events, in 5 to 40 ms, and never later than this. So a
    /// smaller latency makes each event dearer, and a larger one gains something only where events are few. If a ring
    /// fills up, the kernel wakes the reader. docs/NUMBERS.md names the table: what each latency costs under each rule.
    ///
    /// The kernel wakes a reader of BPF ring buffers for single events. There this is the longest time for which a
    /// reader gathers events that come fast.
    ///
    /// A flush and a deadline wait ten times as long, a second unless set, but 0.1 to 10 s, for each program that has
    /// reserved bytes of a BPF ring buffer to commit them. A program may never do that. Then what is held leaves early:
    /// [`EarlyRelease`](crate::EarlyRelease) says which ring it is and for how long, and the report comes.
    ///
    /// libpcap calls this the packet buffer timeout, LTTng the read timer.
    #[doc(alias = "timeout")]
    #[doc(alias = "linger")]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Sets how long a reader keeps refreshing after it has found an event, before it sleeps. Zero unless set.
    ///
    /// A spinning reader finds the next event within about a microsecond, without a wake-up, and uses a whole CPU. On a
    /// machine without events it still sleeps. With [`Duration::MAX`] it never sleeps.
    ///
    /// It has an effect on a [`Reader`](crate::Reader) only: a reader under tokio does not spin. A wake-up for every
    /// few events ([`Wakeup::Events`](crate::Wakeup::Events)) also shortens the wait. It costs the traced program an
    /// interrupt each time.
    #[doc(alias = "busy poll")]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Leaves out records about the tracer alone: about the threads that read these rings, and about the thread that
    /// waits for their fences. On an idle machine most events of a scheduler trace are about the tracer.
    ///
    /// A record is left out in these cases:
    ///
    /// - A tracepoint or a probe wrote it in a thread of the tracer (`common_pid`). Example: the reader wakes another
    ///   thread.
    /// - A tracepoint of the scheduler (`sched_*`) wrote it, and its field `pid` is a thread of the tracer. Example:
    ///   another thread wakes the reader.
    /// - It is a `sched:sched_switch` between a thread of the tracer and the idle thread, or between two threads of the
    ///   tracer. A switch between the reader and another program stays, since it says when that program ran. So half of
    ///   the reader's own switches may stay. A tool that pairs switches leaves
    ///   [`Reader::threads`](crate::Reader::threads) out of its result.
    /// - It is any other record with `PERF_SAMPLE_TID`, from a thread of the tracer.
    ///
    /// Inside a PID namespace, as in a container, tracepoints have other numbers for the tracer's threads. There a
    /// record with `PERF_SAMPLE_TID` that one of them writes tells its number. Without that sample,
    /// and for adopted rings, only the last rule applies. Nothing is left out of a recording.
    ///
    /// Once a thread that has read ends, the kernel may give its number to another process. So records with times after
    /// its end stay, and those of its last steps too, from where it drops its thread-local values on. Of the threads
    /// that have ended, only the last 16 are known. All records about one that has ended stay if they have no time, or
    /// that of [`Clock::Perf`](crate::Clock::Perf), which cannot be compared. Read from threads that live long.
    ///
    /// [`Status::left_out`](crate::Status::left_out) counts the records that were left out. A ledger counts them as
    /// yielded. Their numbers and keys are checked like all others. A reader knows a thread from that thread's first
    /// refresh on ([`Reader::threads`](crate::Reader::threads)). A filter in the kernel
    /// ([`RingOptions::filter`](crate::RingOptions::filter)) can leave out threads that are known when the rings are
    /// opened. It counts nothing.
    #[doc(alias = "filter")]
    pub fn without_self(mut self) -> Self {
        self.without_self = true;
        self
    }
}
