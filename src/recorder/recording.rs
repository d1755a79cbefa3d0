//! Recording: rings in overwrite mode, how they are stopped, and how their events are read back in order.

use crate::error::Error;
use crate::merge::certainty::Certainty;
use crate::order::event::{Damage, Event, Item, Lost};
use crate::order::key::{Key, Keys};
use crate::order::merge::check_key;
use crate::proof::contract::Done;
use crate::proof::fence::Fence;
use crate::proof::prover::Prover;
use crate::record::Record;
use crate::ring::{Fault, Header};
use crate::rings::control::Handle;
use crate::rings::options::RingOptions;
use crate::rings::{CpuRing, Rings};
use smallvec::SmallVec;
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::time::Duration;

/// The last moments of a whole machine, in order. The kernel writes the rings backwards, over the oldest records
/// (`write_backward` of perf_event_open(2)). No program reads them until [`Recorder::freeze`].
///
/// Recording costs a traced program only the writing: no reader runs, nothing wakes, and no record is dropped. When
/// something has happened, [`Recorder::freeze`] stops all rings, waits until their writers are done, and gives
/// everything they hold, **merged across CPUs in proven order**, in place. Recording resumes when the result is
/// dropped.
///
/// ```no_run
/// # use perfweave::{Fence, Key, Recorder, Rings};
/// # use perfweave_events::EventOptions;
/// # use std::time::Duration;
/// let options = Rings::options().tracepoint("sched:sched_switch").bytes(4 << 20);
/// let mut recorder = Recorder::open(options, Key::Time, &Fence::Auto)?;
/// // ... until something happens ...
/// let frozen = recorder.freeze()?;
/// for event in frozen.last(Duration::from_millis(10)) {
///     println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.item());
/// }
/// # Ok::<(), perfweave::Error>(())
/// ```
///
/// # Memory
///
/// Recording takes the memory of the rings and no more. A stop takes 88 bytes for each record in them, and half as much
/// again while it sorts. While the list grows, the old list and the new one both exist: up to 264 bytes for each
/// record. So a ring full of records of 64 bytes takes up to four times its size in addition, and one full of the
/// smallest possible records, of 8 bytes, up to 33 times. The list is kept for the next stop.
///
/// An event cannot outlive the stop, so no event is overwritten while it is borrowed:
///
/// ```compile_fail,E0505
/// # use perfweave::{Key, Layout, sim};
/// # let mut recorder = sim::Kernel::backward(&[0], 4096, Layout::RAW).recorder(Key::Payload(0)).unwrap();
/// let frozen = recorder.freeze().unwrap();
/// let event = frozen.events().next();
/// drop(frozen);
/// println!("{event:?}");
/// ```
#[doc(alias = "overwrite mode")]
#[doc(alias = "overwritable")]
#[doc(alias = "snapshot")]
#[doc(alias = "flight recorder")]
pub struct Recorder {
    rings: Rings,
    keys: Keys,
    /// Whether keys are times of the rings' clock.
    timed: bool,
    proof: Prover,
    /// The records of the rings at the last stop, in order. Kept to reuse the memory.
    marks: Vec<Mark>,
    /// The largest key among them that is not in the future.
    newest: u64,
}

/// A part of a ring: a record, a loss or damage. 88 bytes, as the documentation of [`Recorder`] says.
#[derive(Debug, Clone, Copy)]
struct Mark {
    /// The key that orders it: its own, or that of the record before it.
    order: u64,
    key: Option<u64>,
    /// From the newest record back, in bytes.
    position: u64,
    ring_index: u32,
    len: u32,
    certainty: Certainty,
    what: Marked,
}

#[derive(Debug, Clone, Copy)]
enum Marked {
    Record(Header),
    Lost { id: u64, count: u64, after: Option<u64> },
    Corrupt(Fault),
}

impl Recorder {
    /// Opens rings as [`RingOptions::open`] does, in overwrite mode. A recorder does not use wake-ups. They come at
    /// most once a ring's length.
    ///
    /// `key` orders the events. `fence` waits for programs that are still writing when the rings are stopped.
    ///
    /// # Errors
    /// As [`RingOptions::open`]; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the fence is not
    /// possible, or is a [`Fence::Proof`].
    pub fn open(options: RingOptions, key: Key, fence: &Fence) -> Result<Self, Error> {
        // A reader whose fence proves nothing loses only the order. Here, bytes would change while they are read (I9).
        if let Fence::Proof(_) = fence {
            return Err(Error::no_fence("a recorder takes none but the kernel's own", "choose the default fence"));
        }
        Self::new(options.open_backward()?, key, fence)
    }

    pub(crate) fn new(mut rings: Rings, key: Key, fence: &Fence) -> Result<Self, Error> {
        rings.cpu_rings.sort_by_key(|cpu_ring| cpu_ring.origin.cpu);
        check_key(&rings, &key)?;
        let timed = matches!(key, Key::Time);
        let clock = timed.then_some(rings.clock());
        let mut keys = Keys::new(key, clock, None, None);
        if timed && !rings.have_one_clock() {
            keys.distrust();
        }
        let proof = fence.start(None, &Done::new(rings.control()))?;
        Ok(Self { timed, keys, proof, rings, marks: Vec::new(), newest: 0 })
    }

    /// The rings, for their sources and formats, and for writing what they hold as a recording.
    pub fn rings(&self) -> &Rings {
        &self.rings
    }

    /// A handle by which the thread that hears what a program waits for stops the rings at once: with
    /// [`Pause::Output`](crate::Pause::Output), before [`Recorder::freeze`], whose result resumes them. While they are
    /// frozen the handle resumes nothing. Closing it ends the recording.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(self.rings.control()))
    }

    /// The tracepoints of patterns that the kernel does not let anyone sample: see [`Rings::skipped`].
    pub fn skipped(&self) -> &[Error] {
        self.rings.skipped()
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
        // `Frozen::complete_from` reports this to the program.
        self.rings.untraced.take_news().for_each(drop);
        self.rings.cpu_rings.append(&mut new);
        self.rings.cpu_rings.sort_by_key(|cpu_ring| cpu_ring.origin.cpu);
        failed
    }

    /// Stops all rings, waits for a grace period, so that all writers are done, and sorts everything in the rings.
    /// Blocks for the length of a grace period ([`Fence`]). Takes memory for each record: see [`Recorder`].
    ///
    /// Records written while the rings are stopped are lost, and counted: the first record after them has a
    /// [`Lost`](crate::Lost) before it.
    ///
    /// # Errors
    /// The kind of the system's error, mostly [`ErrorKind::System`](crate::ErrorKind::System), if a ring cannot be
    /// stopped or waiting for the grace period failed; [`ErrorKind::Forked`](crate::ErrorKind::Forked). Recording goes
    /// on then.
    pub fn freeze(&mut self) -> Result<Frozen<'_>, Error> {
        if self.rings.control().is_forked() {
            return Err(Error::forked());
        }
        let stopped = self.rings.control().freeze().and_then(|()| self.proof.wait());
        // Resumes when dropped, even if not all rings could be stopped.
        let mut frozen = Frozen::new(self);
        stopped?;
        frozen.recorder.marks.clear();
        for ring_index in 0..frozen.recorder.rings.cpu_rings.len() {
            let oldest = frozen.recorder.mark(ring_index as u32);
            frozen.complete_from = frozen.complete_from.max(oldest);
        }
        // Keys that are no times do not show which records came after that.
        let untraced = frozen.recorder.rings.untraced.until();
        let timed = frozen.recorder.timed;
        frozen.complete_from = frozen.complete_from.max(untraced.map(|until| if timed { until } else { u64::MAX }));
        let Self { marks, keys, newest, .. } = &mut *frozen.recorder;
        // Stable: equal keys stay ordered by CPU, then by age. Parts that are already in order are only merged.
        marks.sort_by_key(|mark| mark.order);
        let largest = marks.last().map(|mark| mark.order);
        if !keys.are_sure() {
            marks.iter_mut().for_each(|mark| mark.certainty = Certainty::Assumed);
        }
        // After the heads were loaded.
        *newest = keys.until_now(largest).unwrap_or(0);
        Ok(frozen)
    }

    /// Marks everything in a ring, oldest first. Returns the key from which on the ring is complete, if anything was
    /// overwritten or skipped.
    fn mark(&mut self, ring_index: u32) -> Option<u64> {
        let Self { rings, keys, marks, .. } = self;
        let CpuRing { ring, origin, losses, .. } = &mut rings.cpu_rings[ring_index as usize];
        losses.refreshed();
        let mut reported = [0; 2];
        let overwrote = ring.refresh_backward();
        let mut whole = !overwrote;
        let first = marks.len();
        let mut position = 0;
        while position < ring.head() {
            let (what, key, end) = match Record::at(ring, position, origin) {
                // The oldest record: the newest one is written over its end. A record longer than the ring was never
                // complete.
                Err((Fault::Size { size, room }, _)) if overwrote && is_cut(size, room, ring.size()) => break,
                Err((fault, end)) => {
                    // The start of the next older record is unknown.
                    whole &= !matches!(fault, Fault::Size { .. });
                    (Marked::Corrupt(fault), None, end)
                }
                Ok(record) => {
                    let end = position + record.as_bytes().len() as u64;
                    match record.lost() {
                        Some((_, 0)) => {
                            position = end;
                            continue;
                        }
                        Some((id, count)) => match losses.check(&record, reported, count) {
                            Ok(sums) => {
                                reported = sums;
                                // Else its key is that of the record after it.
                                let own = record.is_lost_samples().then(|| keys.of(&record).ok()?).flatten();
                                (Marked::Lost { id, count, after: None }, own, end)
                            }
                            Err(fault) => (Marked::Corrupt(fault), None, end),
                        },
                        None => match keys.of(&record) {
                            Ok(key) => (Marked::Record(record.header()), key, end),
                            Err(fault) => (Marked::Corrupt(fault), None, end),
                        },
                    }
                }
            };
            let len = (end - position) as u32;
            marks.push(Mark { order: 0, key, position, ring_index, len, certainty: Certainty::Assumed, what });
            position = end;
        }
        let marks = &mut marks[first..];
        marks.reverse();
        place(marks);
        (!whole).then(|| complete_from(marks))
    }
}

/// How many writers can be inside a ring at once, each interrupting the one before: in a thread, a soft interrupt, an
/// interrupt, an NMI (`PERF_NR_CONTEXTS` of the kernel).
const NESTED: usize = 4;

/// The key from which on a ring, given oldest first, is complete.
///
/// This is not always the oldest record's key. A writer that is interrupted writes after the interrupts, and has a
/// smaller key. So the oldest record may be that writer's record, while the interrupts' records are overwritten.
/// Overwritten writers interrupted fewer writers than can be nested. So of this many records at least one was begun
/// after them.
fn complete_from(marks: &[Mark]) -> u64 {
    let records = marks.iter().filter(|mark| matches!(mark.what, Marked::Record(_)));
    let oldest: SmallVec<[u64; NESTED]> = records.filter_map(|mark| mark.key).take(NESTED).collect();
    if oldest.len() < NESTED { u64::MAX } else { oldest.into_iter().max().unwrap_or(u64::MAX) }
}

/// Whether a record of `size` bytes, of which `room` are left, is one whose end was overwritten.
fn is_cut(size: u32, room: u64, ring: u64) -> bool {
    size.is_multiple_of(8) && (room + 1..=ring).contains(&u64::from(size))
}

/// Gives every event of a ring its place, oldest first. A loss comes before the record that it was written with. An
/// event without a key comes after the record before it or, if none is left, before the one after it.
fn place(marks: &mut [Mark]) {
    // A loss lies before its record, so a walk from the newest record back meets it after that record.
    for at in 1..marks.len() {
        if matches!(marks[at].what, Marked::Lost { .. }) && marks[at].key.is_none() {
            marks.swap(at - 1, at);
            marks[at - 1].key = marks[at].key;
        }
    }
    let oldest = marks.iter().find_map(|mark| mark.key);
    let mut before = None;
    for mark in marks {
        if let Marked::Lost { after, .. } = &mut mark.what {
            *after = before;
        } else {
            before = mark.key.or(before);
        }
        let order = mark.key.or(before);
        mark.order = order.or(oldest).unwrap_or(0);
        // Every published record is here, so sorting them proves the order. Only records without a key stay unproven.
        mark.certainty = if order.is_some() { Certainty::Proven } else { Certainty::Assumed };
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("rings", &self.rings).field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// The contents of a [`Recorder`]'s stopped rings. Recording goes on when it is dropped.
pub struct Frozen<'a> {
    recorder: &'a mut Recorder,
    complete_from: Option<u64>,
}

impl<'a> Frozen<'a> {
    fn new(recorder: &'a mut Recorder) -> Self {
        Self { recorder, complete_from: None }
    }

    /// All events in the rings, oldest first.
    ///
    /// # Panics
    /// In a forked child, which does not have the rings.
    pub fn events(&self) -> Recorded<'_> {
        self.recorded(0)
    }

    /// The events from a key on.
    pub fn since(&self, key: u64) -> Recorded<'_> {
        self.recorded(self.recorder.marks.partition_point(|mark| mark.order < key))
    }

    /// The events of this much time before the newest, if keys are times in nanoseconds. A record with a forged time
    /// from the future does not count as the newest.
    pub fn last(&self, time: Duration) -> Recorded<'_> {
        self.since(self.recorder.newest.saturating_sub(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The key from which on nothing is missing: no ring has overwritten a later record, or skipped one as damage.
    /// Before this key, the rings of busy CPUs have no records although events happened there.
    ///
    /// `None` if nothing is missing since the rings were opened, except records that [`Lost`] events count. `u64::MAX`
    /// if a ring with missing records holds too few records to tell, or if a CPU is not traced
    /// ([`Untraced`](crate::Untraced)), or if a CPU was not traced for some time and keys are no times.
    ///
    /// This is valid if each record's key is drawn when the record is written, as the kernel draws its times. A program
    /// that draws its own key and is preempted before it writes can leave smaller gaps after that key.
    pub fn complete_from(&self) -> Option<u64> {
        self.complete_from
    }

    /// Resumes recording, and returns the error if that fails. Dropping does not report the error.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the kernel refuses;
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child, which may not resume the parent's rings.
    pub fn resume(mut self) -> Result<(), Error> {
        self.thaw()
    }

    fn recorded(&self, from: usize) -> Recorded<'_> {
        let Recorder { rings, marks, .. } = &*self.recorder;
        rings.control().assert_not_forked();
        Recorded { cpu_rings: &rings.cpu_rings, marks: marks[from..].iter() }
    }

    fn thaw(&mut self) -> Result<(), Error> {
        // The parent may still read.
        if self.recorder.rings.control().is_forked() {
            return Err(Error::forked());
        }
        // No slice is borrowed any more (I9).
        self.recorder.marks.clear();
        self.recorder.rings.cpu_rings.iter_mut().for_each(|cpu_ring| cpu_ring.ring.thaw());
        self.recorder.rings.control().thaw()
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        // After `resume` there is nothing left to resume. A drop cannot report a failure.
        let _ = self.thaw();
    }
}

/// Events of a [`Frozen`] recorder, oldest first.
#[derive(Clone)]
pub struct Recorded<'a> {
    cpu_rings: &'a [CpuRing],
    marks: std::slice::Iter<'a, Mark>,
}

impl<'a> Recorded<'a> {
    fn event(&self, mark: &Mark) -> Event<'a> {
        let CpuRing { ring, origin, .. } = &self.cpu_rings[mark.ring_index as usize];
        let bytes = || ring.bytes(mark.position, u64::from(mark.len));
        let cpu = origin.cpu;
        let key = mark.key;
        let item = match mark.what {
            Marked::Record(header) => Item::Record(Record::new(bytes(), header, origin)),
            Marked::Lost { id, count, after } => {
                Item::Lost(Lost { cpu, count, id, source: origin.source(id), after, until: key })
            }
            Marked::Corrupt(fault) => Item::Damage(Damage { cpu, fault, bytes: bytes() }),
        };
        Event { key, certainty: mark.certainty, late_by: 0, item }
    }
}

impl<'a> Iterator for Recorded<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        self.marks.next().map(|mark| self.event(mark))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.marks.size_hint()
    }
}

impl DoubleEndedIterator for Recorded<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.marks.next_back().map(|mark| self.event(mark))
    }
}

impl ExactSizeIterator for Recorded<'_> {}
impl FusedIterator for Recorded<'_> {}

impl fmt::Debug for Frozen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen")
            .field("events", &self.recorder.marks.len())
            .field("complete_from", &self.complete_from)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Recorded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").field("left", &self.marks.len()).finish_non_exhaustive()
    }
}
