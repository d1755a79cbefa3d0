//! The compared ways to read, each with its own rings.

use crate::plan::{Plan, Shape, step};
use crate::raw::{self, Copies};
use perf_event_open_sys::bindings;
use perfweave::{Hold, Item, Layout, Merge, Order, RawRing, Reader, Record, Rings, sim};
use std::ops::ControlFlow;
use std::time::Duration;

/// A way to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No order, and only the checks that keep reads inside the ring. The others are compared with it.
    Walk,
    /// The crate: only its index.
    Look,
    /// The crate: no order.
    Drain,
    /// The crate: order, one by one.
    Next,
    /// The crate: order, in batches.
    Batch,
    /// The crate: order, each event from a batch of its own. What the C library's `pw_buffer__next` does.
    Single,
    /// What a user calls: [`Reader::next`], until all that was there is flushed. The fence is of epochs that no program
    /// is in: it ends in the call that asks, so what is counted does not depend on when another thread has a CPU.
    Reader,
    /// The same by [`Reader::batch`].
    ReaderBatch,
    /// `itertools::kmerge` of the rings, in place, without checks.
    Kmerge,
    /// The smallest of all fronts, in place, without checks.
    Scan,
    /// A stable sort of copies, without checks.
    Sort,
}

impl Kind {
    /// Those whose instructions alone are counted.
    pub const COUNTED: [Self; 3] = [Self::Single, Self::Reader, Self::ReaderBatch];
    /// Those of the tables. The walk is first.
    pub const ALL: [Self; 8] =
        [Self::Walk, Self::Look, Self::Drain, Self::Next, Self::Batch, Self::Kmerge, Self::Scan, Self::Sort];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Walk => "walk",
            Self::Look => "`look`",
            Self::Drain => "`drain`",
            Self::Next => "`next`",
            Self::Batch => "`batch`",
            Self::Single => "`single`",
            Self::Reader => "`reader`",
            Self::ReaderBatch => "`reader-batch`",
            Self::Kmerge => "kmerge",
            Self::Scan => "scan",
            Self::Sort => "copy and sort",
        }
    }

    /// Whether records come in order even if they lie in their ring out of order.
    fn repairs(self) -> bool {
        !matches!(self, Self::Walk | Self::Look | Self::Drain | Self::Kmerge | Self::Scan)
    }
}

/// The reader.
enum Side {
    Raw { raw: Vec<RawRing>, copies: Copies, _rings: Rings },
    Rings(Rings),
    Merge(Box<Merge>),
    Reader(Box<Reader>),
}

/// A way to read, with its rings.
pub struct Way {
    kind: Kind,
    shape: Shape,
    plan: Plan,
    kernel: sim::Kernel,
    side: Side,
    base: u64,
}

impl Way {
    /// Empty rings of a shape.
    ///
    /// # Panics
    /// If there can be no such rings.
    pub fn new(kind: Kind, shape: Shape) -> Self {
        let cpus: Vec<u32> = (0..shape.rings as u32).collect();
        let sample = u64::from(bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_RAW);
        let plan = Plan::new(shape);
        let kernel = sim::Kernel::with(&cpus, plan.bytes(), Layout::new(sample, true, 0));
        let rings = kernel.rings();
        let side = match kind {
            Kind::Walk | Kind::Kmerge | Kind::Scan | Kind::Sort => {
                let raw = cpus.iter().map(|&cpu| rings.raw(cpu).expect("a ring")).collect();
                Side::Raw { raw, copies: Copies::default(), _rings: rings }
            }
            Kind::Drain => Side::Rings(rings),
            Kind::Reader | Kind::ReaderBatch => {
                let order = Order::new().hold(Hold::Fence(perfweave_proofs::Epochs::over(kernel.epochs()).fence()));
                Side::Reader(Box::new(Reader::new(rings, order).expect("a reader")))
            }
            Kind::Look | Kind::Next | Kind::Batch | Kind::Single => {
                Side::Merge(Box::new(Merge::new(rings, Order::new().hold(Hold::None)).expect("a merge")))
            }
        };
        Self { kind, shape, plan, kernel, side, base: 1 }
    }

    /// Writes all records, over any that are unread.
    pub fn fill(&mut self) {
        if let (Kind::Look, Side::Merge(merge)) = (self.kind, &mut self.side) {
            while merge.next().is_some() {}
            merge.advance_tails();
        }
        self.base += self.shape.records as u64;
        self.plan.write(&self.kernel, self.base);
    }

    /// Reads all records.
    pub fn read(&mut self) -> u64 {
        let base = self.base;
        match (&mut self.side, self.kind) {
            (Side::Raw { raw, .. }, Kind::Walk) => raw::walk(raw, base),
            (Side::Raw { raw, .. }, Kind::Kmerge) => raw::kmerge(raw, base),
            (Side::Raw { raw, .. }, Kind::Scan) => raw::scan(raw, base),
            (Side::Raw { raw, copies, .. }, _) => copies.sort(raw, base),
            (Side::Rings(rings), _) => drain(rings, base),
            (Side::Merge(merge), Kind::Look) => look(merge),
            (Side::Merge(merge), Kind::Batch) => batch(merge, base),
            (Side::Merge(merge), Kind::Single) => single(merge, base),
            (Side::Merge(merge), _) => next(merge, base),
            (Side::Reader(reader), Kind::ReaderBatch) => reader_batch(reader, base),
            (Side::Reader(reader), _) => reader_next(reader, base),
        }
    }

    /// Checks the result of [`Way::read`], as far as possible.
    ///
    /// # Panics
    /// If records were not in order, or missing.
    pub fn check(&self, sum: u64) {
        let merges = matches!(self.kind, Kind::Kmerge | Kind::Scan) && self.shape.disorder == 0;
        if self.kind.repairs() || merges {
            assert_eq!(sum, self.plan.in_order, "{:?} of {:?}: not all, or not in order", self.kind, self.shape);
        }
    }
}

#[inline(always)]
fn taken(sum: u64, key: Option<u64>, record: Option<Record<'_>>, base: u64) -> u64 {
    let word = record.and_then(|record| record.payload()?.u64(0)).unwrap_or(0);
    step(sum, key.unwrap_or(base) - base, word)
}

#[inline(never)]
fn look(merge: &mut Merge) -> u64 {
    merge.refresh(0);
    0
}

#[inline(never)]
fn next(merge: &mut Merge, base: u64) -> u64 {
    merge.refresh(0);
    let mut sum = 0;
    while let Some(event) = merge.next() {
        sum = taken(sum, event.key(), event.record(), base);
    }
    merge.advance_tails();
    sum
}

#[inline(never)]
fn batch(merge: &mut Merge, base: u64) -> u64 {
    merge.refresh(0);
    let sum = merge.batch().fold(0, |sum, event| taken(sum, event.key(), event.record(), base));
    merge.advance_tails();
    sum
}

#[inline(never)]
fn single(merge: &mut Merge, base: u64) -> u64 {
    merge.refresh(0);
    let mut sum = 0;
    while let Some(event) = merge.batch().next() {
        sum = taken(sum, event.key(), event.record(), base);
    }
    merge.advance_tails();
    sum
}

#[inline(never)]
fn reader_next(reader: &mut Reader, base: u64) -> u64 {
    reader.handle().flush().expect("this is no child");
    let mut sum = 0;
    while let Some(event) = reader.next().expect("simulated rings do not fail") {
        match event.item() {
            Item::Flushed { .. } => break,
            _ => sum = taken(sum, event.key(), event.record(), base),
        }
    }
    sum
}

#[inline(never)]
fn reader_batch(reader: &mut Reader, base: u64) -> u64 {
    reader.handle().flush().expect("this is no child");
    let (mut sum, mut flushed) = (0, false);
    while !flushed {
        let batch = reader.batch(Duration::MAX).expect("simulated rings do not fail").expect("it has no end");
        sum = batch.fold(sum, |sum, event| match event.item() {
            Item::Flushed { .. } => {
                flushed = true;
                sum
            }
            _ => taken(sum, event.key(), event.record(), base),
        });
    }
    sum
}

#[inline(never)]
fn drain(rings: &mut Rings, base: u64) -> u64 {
    let mut sum = 0;
    let _ = rings.drain(|event| {
        if let Some(record) = event.record() {
            sum = taken(sum, record.time(), Some(record), base);
        }
        ControlFlow::<()>::Continue(())
    });
    sum
}
