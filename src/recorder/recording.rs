//! Recording: rings in overwrite mode, how they are stopped, and how they are copied.

use crate::error::Error;
use crate::proof::contract::Done;
use crate::proof::fence::Fence;
use crate::proof::prover::Prover;
use crate::record::Record;
use crate::ring::{Fault, Ring};
use crate::rings::control::Handle;
use crate::rings::options::RingOptions;
use crate::rings::{CpuRing, Recording, Rings, recording};
use perf_event_open_sys::bindings;
use std::fmt;
use std::sync::Arc;

/// The last moments of a whole machine. The kernel writes the rings backwards, over the oldest records
/// (`write_backward` of perf_event_open(2)). No program reads them until [`Recorder::freeze`].
///
/// Recording costs a traced program only the writing: no reader runs, nothing wakes, and no record is dropped. When
/// something has happened, [`Recorder::freeze`] stops all rings, waits until their writers are done, copies everything
/// they hold, and lets recording go on. A [`Reader`](crate::Reader) reads the copy, **merged across CPUs in proven
/// order**, as it reads a [`Recording`](crate::Recording).
///
/// ```no_run
/// # use perfweave::{Clock, Fence, Order, Reader, Recorder, Rings};
/// # use perfweave_events::EventOptions;
/// let options = Rings::options().tracepoint("sched:sched_switch").bytes(4 << 20);
/// let mut recorder = Recorder::open(options, &Fence::Auto)?;
/// // ... until something happens ...
/// // The last 10 ms before now: the rings stand still while they are copied.
/// let from = recorder.rings().clock().now().unwrap_or(0).saturating_sub(10_000_000);
/// let rings = recorder.freeze()?;
/// let mut reader = Reader::new(rings, Order::new())?;
/// while let Some(event) = reader.next()? {
///     if event.key().is_none_or(|key| key >= from) {
///         println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.item());
///     }
/// }
/// # Ok::<(), perfweave::Error>(())
/// ```
///
/// # Memory
///
/// Recording takes the memory of the rings. A copy takes up to as much, and twice as much while it is made; what its
/// reader takes [`Recording`](crate::Recording) says. It is looked for before the rings are stopped, and given back as
/// the copy is read.
#[doc(alias = "overwrite mode")]
#[doc(alias = "overwritable")]
#[doc(alias = "snapshot")]
#[doc(alias = "flight recorder")]
pub struct Recorder {
    rings: Rings,
    proof: Prover,
    complete_from: Option<u64>,
}

/// How many writers can be inside a ring at once, each interrupting the one before: in a thread, a soft interrupt, an
/// interrupt, an NMI (`PERF_NR_CONTEXTS` of the kernel).
const NESTED: usize = 4;

impl Recorder {
    /// Opens rings as [`RingOptions::open`] does, in overwrite mode. A recorder does not use wake-ups. They come at
    /// most once a ring's length.
    ///
    /// `fence` waits for programs that are still writing when the rings are stopped.
    ///
    /// # Errors
    /// As [`RingOptions::open`]; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the fence is not
    /// possible, or is a custom one, writers' epochs, or reservations.
    pub fn open(options: RingOptions, fence: &Fence) -> Result<Self, Error> {
        // A reader whose fence proves nothing loses only the order. Here, bytes would change while they are read (I9).
        if let Fence::Proof(..) = fence {
            return Err(Error::no_fence(
                "a recorder takes only grace periods of the kernel",
                "choose the default fence",
            ));
        }
        Self::new(options.open_backward()?, fence)
    }

    pub(crate) fn new(mut rings: Rings, fence: &Fence) -> Result<Self, Error> {
        rings.cpu_rings.sort_by_key(|cpu_ring| cpu_ring.origin.cpu);
        let proof = fence.start(None, &Done::new(rings.control()))?;
        Ok(Self { proof, rings, complete_from: None })
    }

    /// The rings that the kernel writes: for their sources and formats, for what could not be traced
    /// ([`Rings::skipped`]), and for the file into which a copy is written.
    pub fn rings(&self) -> &Rings {
        &self.rings
    }

    /// A handle by which the thread that hears what a program waits for stops the rings at once: with
    /// [`Pause::Output`](crate::Pause::Output), before [`Recorder::freeze`], which resumes them. What pauses them while
    /// they are copied keeps them paused after that, and what resumes them then resumes them after that. Closing the
    /// handle ends the recording.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(self.rings.control()))
    }

    /// Opens rings for CPUs that came online. Call it from time to time while recording: what is written on a CPU
    /// before that is not recorded.
    ///
    /// # Errors
    /// Any error of opening a ring: the first of each CPU, then the tenth, the hundredth and so on. Each call tries
    /// again.
    pub fn follow_cpus(&mut self) -> Result<(), Error> {
        let mut new = Vec::new();
        let failed = self.rings.arrived(&mut new);
        // `Recorder::complete_from` reports this to the program.
        self.rings.untraced.take_news().for_each(drop);
        self.rings.cpu_rings.append(&mut new);
        self.rings.cpu_rings.sort_by_key(|cpu_ring| cpu_ring.origin.cpu);
        failed
    }

    /// Stops all rings, waits for a grace period, so that all writers are done, copies everything in the rings, and
    /// lets recording go on; then puts the copy in order. The rings stand still for the length of a grace period
    /// ([`Fence`]) and of a plain copy of their bytes.
    ///
    /// What is in the rings stays there, so the next call gives it again unless it is overwritten until then. Records
    /// that are written while the rings are stopped are lost, and counted: the first record after them has a
    /// [`Lost`](crate::Lost) before it.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit) if there is no memory for a copy. The kind of the system's error,
    /// mostly [`ErrorKind::System`](crate::ErrorKind::System), if waiting for the grace period failed, or if a ring
    /// cannot be stopped or cannot go on; [`ErrorKind::Forked`](crate::ErrorKind::Forked). All rings that can go on do,
    /// but for want of memory: then nothing is stopped, and nothing that was paused before goes on.
    pub fn freeze(&mut self) -> Result<Rings, Error> {
        let control = Arc::clone(self.rings.control());
        control.check()?;
        // Memory is looked for before, so that a machine that lacks it is not blind meanwhile.
        let mut copy = Recording::of(&self.rings)?;
        let as_it_lies = |cpu_ring: &CpuRing| recording::allocate(cpu_ring.ring.size(), true);
        let mut lying = self.rings.cpu_rings.iter().map(as_it_lies).collect::<Result<Vec<_>, _>>()?;
        control.while_frozen(|| {
            self.proof.wait()?;
            // Only this, because the machine is blind meanwhile.
            for (cpu_ring, (kernel, _)) in self.rings.cpu_rings.iter_mut().zip(&mut lying) {
                cpu_ring.ring.copy_backward(kernel);
            }
            Ok(())
        })?;
        let mut complete_from = self.rings.untraced.until();
        for (at, (cpu_ring, (_, ring))) in self.rings.cpu_rings.iter_mut().zip(lying).enumerate() {
            complete_from = complete_from.max(put_in_order(ring, cpu_ring, &mut copy, at)?);
        }
        self.complete_from = complete_from;
        Ok(copy.build())
    }

    /// The time from which on the last copy misses nothing: no ring has overwritten a later record, or skipped one as
    /// damage. Before this time, the rings of busy CPUs have no records although events happened there. It is a time of
    /// the rings' clock, as [`Record::time`] gives it, in nanoseconds, whatever orders the records.
    ///
    /// `None` if nothing is missing since the rings were opened, except records that [`Lost`](crate::Lost) events
    /// count. `u64::MAX` if a ring with missing records holds too few records to tell, or records without a time, or if
    /// a CPU is not traced ([`Untraced`](crate::Untraced)). Of a CPU that came online since [`Recorder::follow_cpus`]
    /// was called last, nothing is known.
    pub fn complete_from(&self) -> Option<u64> {
        self.complete_from
    }
}

/// Writes everything in a ring that is a copy of a CPU's into a recording, so that the oldest comes first. Returns the
/// time from which on the ring is complete, if anything was overwritten or skipped.
fn put_in_order(mut ring: Ring, of: &mut CpuRing, copy: &mut Recording, at: usize) -> Result<Option<u64>, Error> {
    let CpuRing { origin, losses, .. } = of;
    let overwrote = ring.refresh_backward();
    let mut is_whole = !overwrote;
    // Positions of the oldest records so far, and how many records there are.
    let (mut oldest, mut records, mut tells_losses) = ([0; NESTED], 0, false);
    let (mut begin, mut position) = (0, 0);
    while position < ring.head() {
        let fault = match ring.record(position) {
            Ok((header, bytes)) => {
                let kind = header.kind();
                let is_loss = matches!(kind, bindings::PERF_RECORD_LOST | bindings::PERF_RECORD_LOST_SAMPLES);
                if !is_loss {
                    oldest[records % NESTED] = position;
                    records += 1;
                }
                position += bytes.len() as u64;
                // The kernel reserves a LOST record and the record after it as one, so they stay in their order.
                if kind == bindings::PERF_RECORD_LOST {
                    tells_losses = true;
                } else {
                    copy.write_before(at, ring.bytes(begin, position - begin))?;
                    begin = position;
                }
                continue;
            }
            Err(fault) => fault,
        };
        // The oldest record: the newest one is written over its end. A record longer than the ring was never complete.
        if !(overwrote && is_cut(fault, ring.size())) {
            // The start of the next older record is unknown. In a ring of its own the damage ends where it ends here.
            is_whole = false;
            let rest = ring.bytes(position, ring.head() - position);
            let damage = copy.add(origin.cpu, origin.layout, origin.all().collect(), rest.len() as u64)?;
            let (first, second) = rest.as_slices();
            copy.write(damage, first)?;
            copy.write(damage, second)?;
        }
        break;
    }
    // A LOST record whose record is overwritten.
    copy.write_before(at, ring.bytes(begin, position - begin))?;
    if tells_losses {
        copy.lost_at_most(at, losses.most());
    }
    if is_whole {
        return Ok(None);
    }
    // This is not always the oldest record's time. A writer that is interrupted writes after the interrupts, and has an
    // earlier time. So the oldest record may be that writer's record, while the interrupts' records are overwritten.
    // Overwritten writers interrupted fewer writers than can be nested. So of this many records at least one was begun
    // after them.
    let time = |at: &u64| Record::at(&ring, *at, origin).ok().and_then(|record| record.time()).unwrap_or(u64::MAX);
    Ok(if records < NESTED { Some(u64::MAX) } else { oldest.iter().map(time).max() })
}

/// Whether a fault is that of a record whose end was overwritten in a ring of so many bytes.
fn is_cut(fault: Fault, ring: u64) -> bool {
    let Fault::Size { size, room } = fault else { return false };
    size.is_multiple_of(8) && (room + 1..=ring).contains(&u64::from(size))
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("rings", &self.rings).finish_non_exhaustive()
    }
}
