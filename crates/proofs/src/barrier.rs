//! What orders a reservation before the key drawn in it, for all CPUs to see: the proof for BPF ring buffers.

use crate::interrupts::Interrupts;
use perfweave::{Done, Error, ErrorKind, Fence, Proof, Rings};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No grace period: the kernel itself says in a BPF ring buffer who is inside. A reservation is visible before its
/// program goes on, and busy until the program submits or discards it. Once everything is committed that was reserved
/// when a key had been seen, all smaller keys have been seen too. Proves order in microseconds, without a thread, also
/// for programs that may sleep.
///
/// The program must draw each key **between reserving and submitting**, from a source that only grows. A key that it
/// draws before it reserves can be late, and so can the records of `bpf_ringbuf_output()`, which reserves and submits in
/// one call. For those, and for perf rings, choose another fence.
///
/// A program that sleeps or is preempted inside a reservation holds all others up
/// ([`Status::uncommitted`](perfweave::Status::uncommitted)). A flush and a deadline wait for it for a bounded time
/// ([`Order::latency`](perfweave::Order::latency)).
///
/// The variants are how the reader makes sure that it sees each reservation whose key was drawn before a key that it has
/// seen. A program's reservation is a store, and its clock reading comes after it. While that store waits in the CPU's
/// store buffer, the reader cannot see it, although the clock was already read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Barrier {
    /// The reader interrupts every online CPU before each proof: it reads a perf event that runs there and never
    /// happens (`PERF_COUNT_SW_DUMMY`). What a CPU stored before the interrupt is then visible. Some 10 µs a CPU for
    /// the reader, and an interrupt for the CPU. Valid on every architecture. Needs `CAP_PERFMON`, or
    /// `kernel.perf_event_paranoid` of 0 or less.
    Interrupts {
        /// The shortest time between the starts of two proofs.
        every: Duration,
        /// Whether CPUs that are kept free of other work (`isolcpus`, `nohz_full`) are interrupted too. If not, a
        /// reader is refused where there are such CPUs.
        isolated: bool,
    },
    /// Each program executes an atomic operation that returns the old value, between its reservation and its clock:
    /// `perfweave_reserve()` in [`Epochs::HEADER`](crate::Epochs::HEADER). The reader then needs no system call. x86-64
    /// only. The crate cannot check it: a program that does not can be late.
    Programs,
}

/// The shortest time between interrupts of all CPUs, unless set.
const EVERY: Duration = Duration::from_micros(100);

impl Barrier {
    /// [`Barrier::Interrupts`], at most ten thousand times a second.
    pub const INTERRUPTS: Self = Self::Interrupts { every: EVERY, isolated: false };

    /// The fence, for [`Hold::Fence`](perfweave::Hold::Fence).
    pub fn fence(self) -> Fence {
        Fence::Proof("reserved", Arc::new(move || Box::new(Reserved::new(self))))
    }

    /// Checks that all rings are BPF ring buffers, and that the way is valid on this machine.
    fn check(self, rings: &Rings) -> Result<(), Error> {
        let perf = rings.cpus().zip(rings.layouts()).find(|(_, layout)| !layout.is_ring_buffer());
        if let Some((cpu, _)) = perf {
            let message = format!(
                "a perf ring does not show who is inside, and CPU {cpu} has one: reservations prove the order of BPF \
                 ring buffers alone"
            );
            return Err(Error::new(ErrorKind::Unsupported, message).hinting("choose the default fence, or epochs"));
        }
        if self == Self::Programs && cfg!(not(target_arch = "x86_64")) {
            let arch = std::env::consts::ARCH;
            let message = format!("that programs order their stores is proven for x86-64, and this machine is {arch}");
            return Err(Error::new(ErrorKind::Unsupported, message).hinting("choose interrupts, or the default fence"));
        }
        Ok(())
    }
}

/// A proof by reservations. It ends as soon as it has begun, unless a CPU is on its way offline or online.
#[derive(Debug)]
pub(crate) struct Reserved {
    barrier: Barrier,
    interrupts: Option<Interrupts>,
    every: Duration,
    ended: Option<io::Result<()>>,
    /// When to interrupt again, because a CPU could not be interrupted yet.
    again: Option<Instant>,
}

impl Reserved {
    pub(crate) fn new(barrier: Barrier) -> Self {
        let every = if let Barrier::Interrupts { every, .. } = barrier { every } else { Duration::ZERO };
        Self { barrier, interrupts: None, every, ended: None, again: None }
    }

    /// Opens what interrupts CPUs.
    pub(crate) fn prepare(&mut self) -> Result<(), Error> {
        if let Barrier::Interrupts { isolated, .. } = self.barrier {
            self.interrupts = Some(Interrupts::open(isolated)?);
        }
        Ok(())
    }

    /// While a CPU could not be interrupted yet: how long until the next try.
    pub(crate) fn until_retry(&self) -> Option<Duration> {
        self.again.map(|again| again.saturating_duration_since(Instant::now()))
    }

    fn send(&mut self) {
        // Under `Barrier::Programs` programs order their stores themselves, and nothing is sent.
        self.ended = self.interrupts.as_mut().map_or(Some(Ok(())), Interrupts::send);
        let retry = self.interrupts.as_ref().filter(|_| self.ended.is_none()).map(|interrupts| interrupts.retry);
        self.again = retry.map(|retry| Instant::now() + retry);
    }
}

impl Proof for Reserved {
    fn name(&self) -> &'static str {
        "reserved"
    }

    fn open(&mut self, rings: Option<&Rings>, _: &Done) -> Result<(), Error> {
        rings.map_or(Ok(()), |rings| self.barrier.check(rings))?;
        self.prepare()
    }

    fn begin(&mut self) {
        self.send();
    }

    fn poll(&mut self) -> Option<io::Result<()>> {
        if self.again.is_some_and(|again| again <= Instant::now()) {
            self.send();
        }
        self.ended.take()
    }

    fn nap(&self) -> Option<Duration> {
        Some(self.until_retry().unwrap_or_default())
    }

    fn every(&self) -> Duration {
        self.every.max(self.interrupts.as_ref().map_or(Duration::ZERO, |interrupts| interrupts.retry))
    }
}
