//! The options of a merge and of a reader.

use crate::order::hold::Hold;
use crate::order::key::Key;
use crate::order::tracers::Filter;
use crate::rings::Rings;
use crate::rings::options::RingOptions;
use std::time::Duration;

/// The default of [`Order::latency`].
pub(crate) const LATENCY: Duration = Duration::from_millis(100);

/// The default of [`Order::most_held`]. Two CPUs that write as fast as they can fill this in a tenth of a second.
pub(crate) const MOST_HELD: usize = 64 << 20;

/// How a stream is put in order: keys, hold rule, full rings.
#[derive(Debug)]
pub struct Order {
    pub(crate) key: Key,
    pub(crate) hold: Hold,
    pub(crate) numbers: Option<(Key, Option<u64>)>,
    /// What was asked for.
    pub(crate) most_held: Option<usize>,
    pub(crate) latency: Duration,
    pub(crate) spin: Duration,
    pub(crate) leave_out: Option<fn(&Rings) -> Filter>,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            key: Key::default(),
            hold: Hold::default(),
            numbers: None,
            most_held: None,
            latency: LATENCY,
            spin: Duration::ZERO,
            leave_out: None,
        }
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
    /// [`Gap`](crate::Gap) with its CPU, before the record that shows the gap. Records without a number are not checked.
    ///
    /// `first` is the first number of each CPU, so that numbers missing before the first one seen are a gap too. `None`:
    /// counting starts with the first number seen.
    ///
    /// The program must count up in the same run in which it outputs the record, and must not be able to sleep. Then a
    /// fence proves that a missing number will not come. A counter of the whole machine is a key: see
    /// [`Hold::Dense`]. A counter has 64 bits. A narrower one that wraps around [jumps](crate::AnomalyKind::Jump) each
    /// time.
    ///
    /// A gap is proven if a proof has ended that began after its record, or one with a larger key, was seen. A record
    /// whose key only equals the largest one seen then, as with a clock that ticks seldom, may be yielded while a
    /// smaller number with that key is in flight: the gap is assumed, and the number is an anomaly if it comes
    /// ([`AnomalyKind::Late`](crate::AnomalyKind::Late)). Programs draw the number before the key.
    ///
    /// In a BPF ring buffer that CPUs share, records must name their CPU ([`Layout::cpu_at`](crate::Layout::cpu_at)). A
    /// record there that is too short for that, or names a CPU that no kernel has, is not checked. Each counter counts
    /// for one ring: a CPU that writes into two needs two.
    pub fn numbers(mut self, number: Key, first: Option<u64>) -> Self {
        self.numbers = Some((number, first));
        self
    }

    /// Sets the most bytes that held records may take which are copied out of their rings, for all rings together.
    /// 64 MiB unless set. With 0 nothing is copied.
    ///
    /// Holding a record must not cost another one. So held records are copied out of a ring once it is three quarters
    /// full (less, if two of its longest records do not fit into the rest), or if the kernel would fill the rest within
    /// ten milliseconds: the time until a reader that is woken has a CPU. At the bound they stay in their
    /// rings. The kernel drops what does not fit (discard mode in LTTng), and counts it:
    /// [`Item::Lost`](crate::Item::Lost). No event leaves before the hold rule allows it.
    ///
    /// The index of held events comes besides: 16 bytes for each, also for one that lies in its ring, and some 100
    /// bytes more if a notice comes before it. Memory that a burst took is given back after some seconds and 64
    /// refreshes. Above 16 million held events, or one for each 16 bytes of rings and bound if that is more, nothing is
    /// copied any more, and the reader says so ([`ErrorKind::Degraded`](crate::ErrorKind::Degraded)): only hostile
    /// rings come near. Of one ring at most 4 GiB are held.
    ///
    /// Out of rings that outlive their reader (BPF ring buffers, adopted rings) nothing is copied unless this is
    /// called: a copy would be lost with the reader, and the next reader of the ring would not get the record. When
    /// such a reader is dropped, [`Handle::status`](crate::Handle::status) counts the copied records that it had not
    /// yielded as [`lost`](crate::Account::lost). Call it where no other reader follows.
    ///
    /// No kernel writes into the rings of a recording, so this changes nothing there. The index of the whole recording
    /// must fit into half of the memory that this process can get: else [`Reader::new`](crate::Reader::new) gives
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit), with the bytes that the index would take.
    #[doc(alias = "overflow")]
    #[doc(alias = "back-pressure")]
    pub fn most_held(mut self, bytes: usize) -> Self {
        self.most_held = Some(bytes);
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
    /// A flush and a deadline wait ten times as long, a second unless set, but 0.1 to 10 s, for a program that has
    /// reserved bytes of a BPF ring buffer to commit them. A program may never do that. Then the report comes and says
    /// that it is not complete: [`Item::Flushed`](crate::Item::Flushed), [`Ended::Deadline`](crate::Ended::Deadline).
    /// What could not be proven stays held, and [`Status::uncommitted`](crate::Status::uncommitted) says in which CPU's ring
    /// buffer the program is.
    ///
    /// A CPU that comes online is noticed at a refresh, so on an idle machine as late as this.
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

    /// Leaves out records, such as those about the tracer alone: the package perfweave-events does that, by
    /// `without_self`. The last filter holds. Nothing is left out of a recording,
    /// but for the copy of a [`Recorder`](crate::Recorder).
    ///
    /// A reader makes the filter of its rings. The filter says of a record whether it is left out, and always the same:
    /// it is asked again of what it did not leave out. If it panics, the record is asked about again. It can ask whether
    /// a thread that reads these rings, or waits for their fences, had a number when the record was written. A reader
    /// knows a thread from that thread's first refresh on ([`Reader::threads`](crate::Reader::threads)).
    ///
    /// Once a thread that has read ends, the kernel may give its number to another process. So a thread had its number
    /// until its end, less its last steps, from where it drops its thread-local values on. Of the threads that have
    /// ended, only the last 16 are known. One that has ended never had its number in records without time, or with that
    /// of [`Clock::Perf`](crate::Clock::Perf), which cannot be compared. Read from threads that live long.
    ///
    /// [`Status::left_out`](crate::Status::left_out) counts the records that were left out. A ledger counts them as
    /// yielded. Their numbers and keys are checked like all others.
    #[doc(alias = "filter")]
    pub fn leave_out(mut self, filter: fn(&Rings) -> Filter) -> Self {
        self.leave_out = Some(filter);
        self
    }
}
