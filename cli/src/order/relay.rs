//! One map of a tool, taken over: reads what comes for it, and writes it in proven order into a ring of the tool.

use super::guard::{Guard, give_back};
use super::programs::{Finder, Found, Writer};
use super::ring::Before;
use super::sys::{pause, perf_event_array, set_slot};
use super::tool::{Taken, are_all, has_ended};
use crate::failure::Failure;
use perfweave::{Certainty, Fence, Hold, Item, Order, Reader, Record, Rings};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);

/// How often it is looked whether the tool has filled its slots anew.
const LOOK: Duration = Duration::from_secs(1);

/// For how long the tool may read nothing of a full ring.
const PATIENCE: Duration = Duration::from_secs(3);

/// For how long the end waits for a tool that reads.
const END: Duration = Duration::from_secs(10);

/// The most losses that the tool's ring is told of at once. Standard error has the rest.
const MOST_LOSSES: u64 = 1 << 22;

/// What a record has in the tool's ring beside its payload, until one was written: its header, and what the tool has
/// asked for.
const OVERHEAD: u64 = 512;
/// And a LOST record before it.
const LOST: u64 = 64;

/// What was done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    pub relayed: u64,
    /// Told to the tool as lost, and lost without that.
    pub lost: u64,
    pub untold: u64,
    /// Records that came late or unproven.
    pub unproven: u64,
    pub waits: u64,
    /// Records that the tool was told were lost, and were not.
    pub repeated: u64,
    /// Records that were written behind the giving back of slots.
    pub behind: u64,
    pub untraced: u64,
}

/// Why a relay ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was told to.
    Asked,
    /// The tool has ended.
    Tool,
    /// The tool reads nothing.
    Stuck,
    /// The guard has ended.
    Guard,
    /// Slots have other events than ours: the tool has filled them.
    Slots,
}

/// A map that is taken over.
#[derive(Debug)]
pub struct Relay {
    taken: Taken,
    reader: Reader,
    guard: Option<Guard>,
    finder: Finder,
    sink: Sink,
    /// Taken over: not given back yet.
    is_ours: bool,
}

/// The ring of the tool that all records go into.
#[derive(Debug)]
struct Sink {
    writer: Writer,
    overhead: u64,
    /// Records of a batch that were not written.
    left: u64,
    done: Done,
}

impl Relay {
    /// Opens rings, starts the guard, and takes the slots.
    pub fn start(taken: Taken, bytes: u64) -> Result<(Self, Before), Failure> {
        let cpus: Vec<u32> = taken.rings.iter().map(|ring| ring.cpu).collect();
        // No program writes into this map. It brings events and rings, whose events go into the tool's map.
        let slots = cpus.iter().max().map_or(1, |cpu| cpu + 1);
        let own = perf_event_array(slots)?;
        let rings = Rings::options().bpf_output(&own).bytes(bytes).cpus(cpus.iter().copied()).open()?;
        if !rings.cpus().eq(cpus.iter().copied()) {
            return Err(Failure::new("CPUs come and go: not all rings of the tool have one here"));
        }
        let reader = Reader::new(rings, Order::new().hold(Hold::FENCE))?;
        let Some(target) = taken.rings.first() else { return Err(Failure::new("the map has no events")) };
        let writer = Writer::new(target.cpu, target.event.as_fd())?;
        let finder = Finder::new(taken.map.as_fd())?;
        let guard = Guard::start(taken.pid, taken.map.as_fd(), taken.slots())?;
        let sink = Sink { writer, overhead: OVERHEAD, left: 0, done: Done::default() };
        let mut relay = Self { taken, reader, guard: Some(guard), finder, sink, is_ours: true };
        let ours: Vec<_> = relay.reader.rings().cpus().zip(relay.reader.rings().fds()).collect();
        let set = ours.into_iter().try_for_each(|(cpu, event)| set_slot(&relay.taken.map, cpu, event));
        // Programs that have found the tool's events before have written behind this.
        let waited = set.and_then(|()| Fence::Auto.open().map_err(io::Error::other)?.wait());
        if let Err(error) = waited {
            relay.restore();
            return Err(error.into());
        }
        let before = relay.before();
        Ok((relay, before))
    }

    pub fn id(&self) -> u32 {
        self.taken.id
    }

    pub fn pid(&self) -> u32 {
        self.taken.pid
    }

    /// The CPU whose ring has all records.
    pub fn cpu(&self) -> u32 {
        self.taken.rings[0].cpu
    }

    pub fn cpus(&self) -> usize {
        self.taken.rings.len()
    }

    fn before(&self) -> Before {
        let add = |sum: Before, one: Before| Before {
            records: sum.records.zip(one.records).map(|(sum, one)| sum + one),
            bytes: sum.bytes + one.bytes,
        };
        self.taken.rings.iter().map(|ring| ring.before()).reduce(add).unwrap_or_default()
    }

    /// Waits until the tool has read what was in its rings before. A tool that reads ring by ring would read newer records
    /// of ours before these. Gives how many bytes it has left.
    pub fn wait_for_old(&self, stop: &AtomicBool) -> u64 {
        let heads: Vec<u64> = self.taken.rings.iter().map(|ring| ring.head()).collect();
        // All of ours come behind what is in the first.
        let others = || self.taken.rings.iter().zip(&heads).skip(1);
        let left = || others().map(|(ring, head)| head.saturating_sub(ring.tail())).sum();
        let end = Instant::now() + PATIENCE;
        loop {
            let left = left();
            if left == 0 || Instant::now() >= end || stop.load(Ordering::Relaxed) || self.tool_has_ended(1) {
                return left;
            }
        }
    }

    /// Relays until something ends it. Then the tool has its slots, and what was held before.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(End, Done), Failure> {
        let end = self.each(stop);
        let end = match end {
            Ok(end) => end,
            Err(error) => {
                self.restore();
                // What was held, by us and in the batch, is lost, and nobody knows how much.
                return Err(error);
            }
        };
        self.end(end)?;
        Ok((end, self.sink.done))
    }

    fn each(&mut self, stop: &AtomicBool) -> Result<End, Failure> {
        let mut looked = Instant::now();
        loop {
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                let rings = self.reader.rings();
                if !are_all(&self.finder, rings.cpus().zip(rings.fds()))? {
                    return Ok(End::Slots);
                }
            }
            let taken = &self.taken;
            let is_over = || {
                if self.guard.as_ref().is_none_or(|guard| !guard.is_alive()) {
                    Some(End::Guard)
                } else if stop.load(Ordering::Relaxed) {
                    Some(End::Asked)
                } else {
                    taken.has_ended(0).then_some(End::Tool)
                }
            };
            if let Some(end) = is_over() {
                return Ok(end);
            }
            let mut wait = Wait { taken, patience: PATIENCE, until: None, is_over: &is_over };
            let batch = match self.reader.batch(TICK) {
                Err(error) if crate::session::goes_on(&error) => continue,
                batch => batch?,
            };
            let Some(batch) = batch else { return Ok(End::Asked) };
            for event in batch {
                if let Some(end) = self.sink.take(&event, &mut wait)? {
                    return Ok(end);
                }
            }
            if let Some(end) = self.sink.flush(&mut wait)? {
                return Ok(end);
            }
        }
    }

    /// Gives back, and writes what was held. What the tool does not read any more is told to it as lost.
    fn end(&mut self, end: End) -> Result<(), Failure> {
        if end == End::Tool {
            self.is_ours = false;
            if let Some(guard) = self.guard.take() {
                guard.done();
            }
            return Ok(());
        }
        let until = Instant::now() + END;
        let mut stuck = end == End::Stuck;
        if !stuck && end != End::Guard {
            // First what is there, so that little is left when newer events go by.
            stuck = self.drain(until, stuck)?;
        }
        self.restore();
        let before = self.sink.done.relayed;
        self.drain(until, stuck)?;
        self.sink.done.behind = self.sink.done.relayed - before;
        let unreported = self.reader.ledger()?.total().unreported;
        self.sink.lose(unreported, self.taken.rings[0].event.as_fd());
        Ok(())
    }

    /// Writes all that is in our rings now. Whether the tool reads no more.
    fn drain(&mut self, until: Instant, mut stuck: bool) -> Result<bool, Failure> {
        self.reader.handle().flush()?;
        let taken = &self.taken;
        let is_over = || taken.has_ended(0).then_some(End::Tool);
        let mut wait = Wait { taken, patience: PATIENCE, until: Some(until), is_over: &is_over };
        let event = taken.rings[0].event.as_fd();
        self.sink.lose_batch(event);
        loop {
            let batch = match self.reader.batch(TICK) {
                Err(error) if crate::session::goes_on(&error) => continue,
                batch => batch?,
            };
            let Some(batch) = batch else { return Ok(stuck) };
            let mut is_flushed = false;
            for one in batch {
                match one.item() {
                    Item::Flushed { .. } => {
                        is_flushed = true;
                        break;
                    }
                    Item::Record(_) if stuck => self.sink.lose(1, event),
                    Item::Lost(lost) if stuck => self.sink.lose(lost.count, event),
                    _ => stuck |= self.sink.take(&one, &mut wait)?.is_some(),
                }
            }
            if !stuck && self.sink.flush(&mut wait)?.is_some() {
                stuck = true;
            }
            if stuck {
                self.sink.lose_batch(event);
            }
            if is_flushed {
                return Ok(stuck);
            }
        }
    }

    fn restore(&mut self) {
        if self.is_ours {
            // What the tool has put into slots meanwhile stays.
            let slots: Vec<_> = self.taken.slots().filter(|(cpu, _)| !self.is_anothers(*cpu)).collect();
            give_back(self.taken.map.as_fd(), slots.into_iter());
            self.is_ours = false;
        }
        if let Some(guard) = self.guard.take() {
            guard.done();
        }
    }

    /// Whether the slot of a CPU has another event than ours.
    fn is_anothers(&self, cpu: u32) -> bool {
        let rings = self.reader.rings();
        let own = rings.cpus().zip(rings.fds()).find(|(of, _)| *of == cpu);
        let is_there = |(_, event)| self.finder.look_at(event).and_then(|()| self.finder.is_in(cpu, cpu));
        // One that cannot be asked is put back.
        own.map(is_there).is_some_and(|found| matches!(found, Ok(Found::Other)))
    }

    fn tool_has_ended(&self, timeout: u16) -> bool {
        self.taken.has_ended(timeout)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.restore();
    }
}

impl Taken {
    fn slots(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.rings.iter().map(|ring| (ring.cpu, ring.event.as_fd()))
    }

    /// Whether the tool has ended, which is waited for so many milliseconds.
    fn has_ended(&self, timeout: u16) -> bool {
        has_ended(&self.process, timeout)
    }
}

/// How a full ring is waited for.
struct Wait<'a> {
    taken: &'a Taken,
    patience: Duration,
    until: Option<Instant>,
    is_over: &'a dyn Fn() -> Option<End>,
}

impl Sink {
    /// Takes an event of the stream. `Some` if the relay has to end.
    fn take(&mut self, event: &perfweave::Event<'_>, wait: &mut Wait<'_>) -> Result<Option<End>, Failure> {
        match event.item() {
            Item::Record(record) => {
                self.done.unproven += u64::from(event.certainty() != Certainty::Proven);
                return self.record(&record, wait);
            }
            Item::Lost(lost) => {
                let end = self.flush(wait)?;
                self.lose(lost.count, wait.taken.rings[0].event.as_fd());
                return Ok(end);
            }
            Item::Damage(_) => self.done.untold += 1,
            Item::Untraced(_) => self.done.untraced += 1,
            _ => {}
        }
        Ok(None)
    }

    fn record(&mut self, record: &Record<'_>, wait: &mut Wait<'_>) -> Result<Option<End>, Failure> {
        let Some(payload) = record.payload() else { return Ok(None) };
        let (head, tail) = payload.as_slices();
        if !self.writer.push([head, tail]) {
            if let Some(end) = self.flush(wait)? {
                self.lose(1, wait.taken.rings[0].event.as_fd());
                return Ok(Some(end));
            }
            self.writer.push([head, tail]);
        }
        Ok(None)
    }

    /// Writes the batch. Waits while the ring is full, as long as the tool reads.
    fn flush(&mut self, wait: &mut Wait<'_>) -> Result<Option<End>, Failure> {
        let ring = &wait.taken.rings[0];
        let (mut first, all) = (0, self.writer.sizes().len());
        let (mut seen, mut since) = (ring.tail(), Instant::now());
        while first < all {
            let last = self.fitting(first, ring.room(), ring.unread() == 0);
            if last > first {
                let head = ring.head();
                let wrote = self.writer.write(first, last)?;
                self.done.relayed += (wrote.next - first) as u64;
                self.learn(first, wrote.next, ring.head() - head);
                first = wrote.next;
                match wrote.error {
                    None => continue,
                    // It never fits. The kernel has counted it, and tells the tool.
                    Some(libc::ENOSPC) if ring.unread() == 0 => {
                        (first, self.done.lost) = (first + 1, self.done.lost + 1);
                        continue;
                    }
                    Some(libc::ENOSPC) => self.done.repeated += 1,
                    // A program that it has interrupted outputs (`bpf_perf_event_output_raw_tp`).
                    Some(libc::EBUSY) => {}
                    Some(error) => return Err(io::Error::from_raw_os_error(error).into()),
                }
            }
            self.done.waits += 1;
            let tail = ring.tail();
            if tail != seen {
                (seen, since) = (tail, Instant::now());
            }
            let is_late = since.elapsed() >= wait.patience || wait.until.is_some_and(|until| Instant::now() >= until);
            let end = (wait.is_over)().filter(|end| *end != End::Asked).or(is_late.then_some(End::Stuck));
            if end.is_some() {
                self.keep_from(first);
                return Ok(end);
            }
            // The tool's end ends the wait.
            wait.taken.has_ended(1);
        }
        self.writer.clear();
        Ok(None)
    }

    /// Up to which record of the batch there is room.
    fn fitting(&self, first: usize, room: u64, is_empty: bool) -> usize {
        let mut left = room.saturating_sub(LOST);
        let sizes = self.writer.sizes();
        let fits = |size: &&usize| {
            let need = **size as u64 + self.overhead;
            left.checked_sub(need).map(|rest| left = rest).is_some()
        };
        let last = first + sizes[first..].iter().take_while(fits).count();
        // One that is larger than it should be is tried when nothing is in its way.
        if last == first && is_empty { first + 1 } else { last }
    }

    /// How long records are in the tool's ring, beside their payloads.
    fn learn(&mut self, first: usize, next: usize, grown: u64) {
        let sizes = &self.writer.sizes()[first..next];
        let payloads: usize = sizes.iter().sum();
        if let Some(each) = grown.saturating_sub(payloads as u64).checked_div(sizes.len() as u64) {
            let each = each + 32;
            self.overhead = if self.overhead == OVERHEAD { each } else { self.overhead.max(each) };
        }
    }

    /// The records before this one are written. What stays is lost.
    fn keep_from(&mut self, first: usize) {
        let left = self.writer.sizes().len() - first;
        self.writer.clear();
        self.left += left as u64;
    }

    /// What was left of a batch is lost.
    fn lose_batch(&mut self, event: BorrowedFd<'_>) {
        let count = std::mem::take(&mut self.left) + self.writer.sizes().len() as u64;
        self.writer.clear();
        self.lose(count, event);
    }

    /// Has the tool told of a loss, by the kernel, with the next record in its ring.
    fn lose(&mut self, count: u64, event: BorrowedFd<'_>) {
        if count == 0 {
            return;
        }
        let told = count.min(MOST_LOSSES);
        let paused = pause(event, true);
        let lost = paused.and_then(|()| self.writer.lose(told));
        // Whatever was: the ring must take records again.
        let resumed = pause(event, false);
        match lost.and(resumed) {
            Ok(()) => (self.done.lost, self.done.untold) = (self.done.lost + told, self.done.untold + count - told),
            Err(_) => self.done.untold += count,
        }
    }
}
