//! What a round does: everything is chosen by the seed and the round's number.

use crate::random::Random;
use perfweave::{Clock, Error, Fence, Hold, Key, Order, Wakeup};
use perfweave_proofs::{Barrier, Epochs, expedited};
use perfweave_support::bpf;
use std::time::Duration;

/// One reader's rules, and what is done to it from inside its process.
#[derive(Debug)]
pub struct Plan {
    pub rings: Which,
    /// Whether writers' epochs stand where the rule's fence would.
    pub epochs: bool,
    pub hold: Hold,
    /// The most bytes of held records that are copied out of rings.
    pub most_held: usize,
    pub key: By,
    /// Whether each CPU's own numbers are followed.
    pub numbers: bool,
    pub clock: Clock,
    pub pages: u64,
    pub wakeup: Option<Wakeup>,
    pub latency: Duration,
    /// How long the consumer does something else now and then.
    pub stall: Duration,
    /// Turns of work between drawing and writing.
    pub delay: u32,
    pub way: Way,
    pub pauses: bool,
    pub flushes: bool,
    pub deadlines: bool,
    pub end: End,
    pub time: Duration,
}

/// What is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Perf rings.
    Perf,
    /// BPF ring buffers, one for each CPU.
    Buffers,
    /// Both, in one stream.
    Both,
}

/// What orders records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The kernel's timestamp.
    Time,
    /// The number of the whole machine that the program drew.
    Number,
    /// The time that the program read.
    Ktime,
}

/// How events are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Batch,
    Next,
    Fold,
    Owned,
}

/// How a reader ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Flushed: everything comes out, and is compared with the writers' record, number by number.
    Flush,
    /// Closed while others write: the ledger must balance with what is held.
    Close,
    /// Dropped while others write.
    Drop,
}

impl Plan {
    pub fn of(seed: u64, round: u64) -> Self {
        let mut random = Random::new(seed, round + 1);
        let expedited = |random: &mut Random| expedited(random.millis(1, 5));
        let fence = match random.below(5) {
            0 => Fence::Membarrier,
            1 => Fence::Map,
            2 => expedited(&mut random),
            _ => Fence::Auto,
        };
        let lag = random.one(&[50, 1_000, 20_000]);
        let hold = match random.below(10) {
            0..=4 => Hold::Fence(fence),
            5 | 6 => Hold::Dense { first: Some(0), fence },
            7 => Hold::Lag(Duration::from_micros(lag)),
            _ => Hold::None,
        };
        let key = match hold {
            Hold::Dense { .. } => By::Number,
            Hold::Lag(_) => By::Time,
            _ => random.one(&[By::Time, By::Time, By::Number, By::Ktime]),
        };
        let most_held = random.one(&[0, 1 << 20, 16 << 20, 64 << 20]);
        let wakeup =
            random.one(&[None, None, Some(Wakeup::Events(1)), Some(Wakeup::Events(7)), Some(Wakeup::Bytes(256))]);
        let plan = Self {
            rings: Which::Perf,
            numbers: !matches!(hold, Hold::Dense { .. }) && !random.once_in(4),
            epochs: matches!(hold, Hold::Fence(_) | Hold::Dense { .. }) && random.once_in(3),
            hold,
            most_held,
            key,
            clock: random.one(&[Clock::Monotonic, Clock::Monotonic, Clock::MonotonicRaw, Clock::Boottime]),
            pages: random.one(&[1, 2, 8, 64, 512]),
            wakeup,
            latency: random.millis(1, 200),
            stall: Duration::from_millis(random.one(&[0, 0, 2, 30])),
            delay: random.one(&[0, 0, 200, 5000]),
            way: random.one(&[Way::Batch, Way::Batch, Way::Next, Way::Fold, Way::Owned]),
            pauses: random.once_in(2),
            flushes: random.once_in(2),
            deadlines: random.once_in(3),
            end: random.one(&[End::Flush, End::Flush, End::Flush, End::Close, End::Drop]),
            time: random.millis(300, 4000),
        };
        // Drawn last.
        match random.one(&[Which::Perf, Which::Perf, Which::Buffers, Which::Both]) {
            Which::Perf => plan,
            rings => plan.with_buffers(rings, &mut random),
        }
    }

    /// What of a plan is possible with BPF ring buffers.
    fn with_buffers(mut self, rings: Which, random: &mut Random) -> Self {
        self.rings = rings;
        // Their records have no kernel's time, and cannot be paused. Their programs say nothing of epochs.
        (self.epochs, self.pauses) = (false, false);
        if self.key == By::Time {
            self.key = By::Ktime;
        }
        let interrupts = Barrier::Interrupts { every: random.millis(0, 2), isolated: true };
        let barrier = random.one(&[interrupts, interrupts, Barrier::Programs]);
        let reserved = random.once_in(2) && (barrier != Barrier::Programs || cfg!(target_arch = "x86_64"));
        self.hold = match self.hold {
            Hold::Fence(_) | Hold::Dense { .. } if rings == Which::Buffers && reserved => Hold::Fence(barrier.fence()),
            Hold::Dense { fence, .. } => Hold::Fence(fence),
            Hold::Lag(_) => Hold::None,
            other => other,
        };
        // Two rings of a CPU share its numbers.
        self.numbers &= rings == Which::Buffers;
        self
    }

    /// Whether nothing may be late.
    pub fn proves(&self) -> bool {
        self.rings != Which::Perf && matches!(self.hold, Hold::Fence(_))
    }

    pub fn is_dense(&self) -> bool {
        matches!(self.hold, Hold::Dense { .. })
    }

    /// What the reader is given. The map has the writers' epochs.
    pub fn order(&self, epochs: &bpf::Map) -> Result<Order, Error> {
        let fence = |fence: &Fence| {
            if self.epochs { Epochs::open(epochs).map(|epochs| epochs.fence()) } else { Ok(fence.clone()) }
        };
        let hold = match &self.hold {
            Hold::Fence(own) => Hold::Fence(fence(own)?),
            Hold::Dense { first, fence: own } => Hold::Dense { first: *first, fence: fence(own)? },
            other => other.clone(),
        };
        let order = Order::new().hold(hold).most_held(self.most_held).latency(self.latency);
        let order = match self.key {
            By::Time => order,
            By::Number => order.key(Key::Payload(0)),
            By::Ktime => order.key(Key::Payload(16)),
        };
        Ok(if self.numbers { order.numbers(Key::Payload(8), Some(0)) } else { order })
    }
}
