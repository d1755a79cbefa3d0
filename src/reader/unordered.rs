//! Reading rings without order: the fullest ring first, each ring's records in the order of the ring.

use crate::merge::certainty::Certainty;
use crate::order::event::{Damage, Event, Item, Lost};
use crate::record::{Origin, Record, Records};
use crate::ring::{Bytes, Fault, Framing, Ring, prefetch, with_framing};
use crate::rings::{CpuRing, Rings};
use smallvec::SmallVec;
use std::ops::ControlFlow;
use std::sync::Arc;

impl Rings {
    /// Calls a function with everything that is in the rings now, in place and **in no order**.
    ///
    /// The ring with the least free space comes first. Each ring's records come in the order of the ring. This suits a
    /// program that only counts events, or wants to lose as few as possible. It also measures the cost of ordering.
    ///
    /// Each ring is read up to the head it has at the call, so writers cannot keep the call busy for ever. The kernel
    /// notifies a reader of a BPF ring buffer only once it has caught up, so call this until it gives nothing before
    /// you wait. Every event given to the function is consumed, even if the function breaks or panics. Events have no
    /// key, and their certainty is [`Certainty::Assumed`]. To read only some CPUs, open their rings separately
    /// ([`RingOptions::cpus`](crate::RingOptions::cpus)).
    ///
    /// ```
    /// # use perfweave::{Item, sim};
    /// # use std::ops::ControlFlow;
    /// # let kernel = sim::Kernel::new(&[0, 1]);
    /// # let mut rings = kernel.rings();
    /// # kernel.emit(0, 1, b"one");
    /// # kernel.lose(0, 2);
    /// # kernel.emit(0, 2, b"two");
    /// let (mut records, mut lost) = (0, 0);
    /// let _ = rings.drain(|event| {
    ///     match event.item() {
    ///         Item::Record(_) => records += 1,
    ///         Item::Lost(loss) => lost += loss.count,
    ///         other => println!("{other:?}"),
    ///     }
    ///     ControlFlow::<()>::Continue(())
    /// });
    /// # assert_eq!((records, lost), (2, 2));
    /// ```
    ///
    /// # Panics
    /// If the function panics, or in a forked child, which does not have the rings.
    pub fn drain<B>(&mut self, mut each: impl FnMut(Event<'_>) -> ControlFlow<B>) -> ControlFlow<B> {
        self.control().assert_not_forked();
        let mut order: SmallVec<[_; 64]> = SmallVec::new();
        for (index, cpu_ring) in self.cpu_rings.iter_mut().enumerate() {
            let fault = cpu_ring.ring.look().err();
            // No more than its size is used (I3).
            order.push((cpu_ring.ring.size() - cpu_ring.ring.used(), index, fault));
        }
        order.sort_by_key(|(free, index, _)| (*free, *index));
        order.into_iter().try_for_each(|(_, index, fault)| self.cpu_rings[index].drain(fault, &mut each))
    }
}

/// How many bytes ahead to prefetch.
const AHEAD: usize = 4096;

/// How many bytes are looked through for busy reservations before they are read: what the nearest cache holds.
const PART: u64 = 8192;

/// How far a ring was read. The bytes are given back to the kernel on drop, even after a panic.
struct Reading<'a> {
    ring: &'a mut Ring,
    position: u64,
}

impl Reading<'_> {
    /// Reads samples up to the first record that is not plain, or that the end of the ring's memory cuts.
    #[inline(always)]
    fn plain<B>(&mut self, origin: &Arc<Origin>, each: &mut impl FnMut(Event<'_>) -> ControlFlow<B>) -> ControlFlow<B> {
        match origin.layout.raw() {
            Some((raw, _)) => with_framing!(self.ring.kind(), F => self.walk::<F, B>(raw + 4, origin, each)),
            None => ControlFlow::Continue(()),
        }
    }

    /// Reads samples whose length of raw data ends at `raw_end`.
    #[inline(always)]
    fn walk<F: Framing, B>(
        &mut self,
        raw_end: usize,
        origin: &Arc<Origin>,
        each: &mut impl FnMut(Event<'_>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let mut left = self.ring.up_to_head(self.position);
        while let Some((record, rest)) = Record::plainest::<F>(left, raw_end, origin) {
            prefetch(rest, AHEAD);
            // Before the call: an event that was given is consumed, even if the function panics.
            self.position += record.len();
            left = rest;
            each(unordered(Item::Record(record)))?;
        }
        ControlFlow::Continue(())
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        // The function may have forked: the tail is the parent's in the child.
        if self.ring.is_here() {
            self.ring.release(self.position);
        }
    }
}

impl CpuRing {
    /// Reads up to the last head seen, and skips to a head that could not be right.
    fn drain<B>(
        &mut self,
        mut head: Option<Fault>,
        each: &mut impl FnMut(Event<'_>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let origin = &self.origin;
        let cpu = origin.cpu;
        let losses = &mut self.losses;
        // `Rings::drain` has loaded the head.
        losses.refreshed();
        let mut reading = Reading { position: self.ring.tail(), ring: &mut self.ring };
        loop {
            if reading.position == reading.ring.head() && head.is_none() {
                head = reading.ring.pass_committed(PART).err();
            }
            if reading.position == reading.ring.head() {
                break;
            }
            reading.plain(origin, each)?;
            let mut records = Records::new(reading.ring, origin, reading.position);
            let Some(found) = records.next() else { continue };
            // Before the call: an event that was given is consumed, even if the function panics.
            reading.position = records.position;
            let item = match found {
                Ok(record) if record.is_discarded() => continue,
                Ok(record) => match record.lost().map(|(id, count)| (losses.take(&record, count), id, count)) {
                    None => Item::Record(record),
                    Some((Err(fault), ..)) => damage(cpu, fault, record.as_bytes()),
                    Some((Ok(()), _, 0)) => continue,
                    Some((Ok(()), id, count)) => {
                        let (source, tag) = (origin.source(id), origin.layout.tag());
                        Item::Lost(Lost { cpu, tag, count, id, source, after: None, until: None })
                    }
                },
                Err((fault, bytes)) => damage(cpu, fault, bytes),
            };
            each(unordered(item))?;
        }
        drop(reading);
        let Some(fault) = head else { return ControlFlow::Continue(()) };
        self.ring.skip_to_head();
        each(unordered(damage(cpu, fault, Default::default())))
    }
}

fn unordered(item: Item<'_>) -> Event<'_> {
    Event { key: None, certainty: Certainty::Assumed, late_by: 0, item }
}

fn damage(cpu: u32, fault: Fault, bytes: Bytes<'_>) -> Item<'_> {
    Item::Damage(Damage { cpu, fault, bytes })
}
