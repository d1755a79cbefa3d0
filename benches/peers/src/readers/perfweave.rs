//! perfweave, by each rule and without order.

use super::{Start, wait};
use crate::Result;
use crate::tally::{Seen, Tally};
use nix::poll::{PollFd, PollFlags};
use perfweave::{Hold, Item, Key, Order, Reader, Rings, Wakeup};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::time::Duration;

fn open(map: OwnedFd, start: &Start, order: &Order) -> Result<Rings> {
    Ok(order.ring_options().bpf_output(map).bytes(start.bytes as u64).open()?)
}

/// Takes an event.
#[inline(always)]
fn take(tally: &mut Tally, key: Option<u64>, item: Item<'_>) {
    match item {
        Item::Record(record) => {
            let payload = record.payload();
            let word = |at| payload.as_ref().and_then(|payload| payload.u64(at)).unwrap_or(0);
            let stamp = word(0);
            tally.event(key.unwrap_or(stamp), stamp, word(8));
        }
        Item::Lost(lost) => tally.lost(lost.count),
        _ => {}
    }
}

/// A reader and a running tally. The remaining events are flushed when the load has ended.
fn begin(map: OwnedFd, start: &Start, order: Order, latency: Option<Duration>) -> Result<(Reader, Tally)> {
    begin_with(open(map, start, &order)?, start, within(order, latency.or(start.latency)))
}

/// With this latency, if one is set.
pub(super) fn within(order: Order, latency: Option<Duration>) -> Order {
    if let Some(latency) = latency { order.latency(latency) } else { order }
}

pub(super) fn begin_with(rings: Rings, start: &Start, order: Order) -> Result<(Reader, Tally)> {
    let reader = Reader::new(rings, order)?;
    let handle = reader.handle();
    let tally = start.ready(move || handle.flush().expect("it can be flushed"));
    Ok((reader, tally))
}

pub(super) fn by_next((mut reader, mut tally): (Reader, Tally)) -> Result<Seen> {
    while let Some(event) = reader.next()? {
        match event.item() {
            Item::Flushed { .. } => break,
            item => take(&mut tally, event.key(), item),
        }
    }
    let seen = tally.end();
    Ok(Seen { fences: reader.status().fences, ..seen })
}

/// One by one, by the kernel's time.
pub fn next(map: OwnedFd, start: &Start, hold: Hold, latency: Option<Duration>) -> Result<Seen> {
    by_next(begin(map, start, Order::new().hold(hold), latency)?)
}

/// One by one, by the kernel's time, woken by each event.
pub fn woken(map: OwnedFd, start: &Start, hold: Hold) -> Result<Seen> {
    let rings = Rings::options().bpf_output(map).bytes(start.bytes as u64).wakeup(Wakeup::Events(1)).open()?;
    by_next(begin_with(rings, start, Order::new().hold(hold))?)
}

/// One by one, by the kernel's time, without sleep.
pub fn spinning(map: OwnedFd, start: &Start, hold: Hold) -> Result<Seen> {
    by_next(begin(map, start, Order::new().hold(hold).spin(Duration::MAX), None)?)
}

/// One by one, by the program's time.
pub fn by_payload(map: OwnedFd, start: &Start, hold: Hold) -> Result<Seen> {
    by_next(begin(map, start, Order::new().hold(hold).key(Key::Payload(0)), None)?)
}

/// One by one, by the program's number.
pub fn dense(map: OwnedFd, start: &Start, hold: Hold, latency: Option<Duration>) -> Result<Seen> {
    by_next(begin(map, start, Order::new().hold(hold).key(Key::Payload(8)), latency)?)
}

/// In batches, by the kernel's time.
pub fn batch(map: OwnedFd, start: &Start, hold: Hold) -> Result<Seen> {
    let (mut reader, mut tally) = begin(map, start, Order::new().hold(hold), None)?;
    let mut flushed = false;
    while !flushed && let Some(batch) = reader.batch(Duration::from_secs(3600))? {
        batch.for_each(|event| match event.item() {
            Item::Flushed { .. } => flushed = true,
            item => take(&mut tally, event.key(), item),
        });
    }
    Ok(tally.end())
}

/// Without order, with perfweave's default wake-up.
pub fn drain(map: OwnedFd, start: &Start) -> Result<Seen> {
    drained(open(map, start, &Order::new())?, start, |fds| wait(fds, start.sleep()))
}

/// The same with less sleep.
pub fn drain_often(map: OwnedFd, start: &Start) -> Result<Seen> {
    drained(open(map, start, &Order::new())?, start, |fds| wait(fds, Duration::from_millis(1)))
}

pub(super) fn drained(
    mut rings: Rings,
    start: &Start,
    sleep: impl Fn(&mut [PollFd<'_>]) -> Result<()>,
) -> Result<Seen> {
    let mut tally = start.ready(|| ());
    loop {
        let over = start.is_over();
        let _ = rings.drain(|event| {
            take(&mut tally, event.key(), event.item());
            ControlFlow::<()>::Continue(())
        });
        if over {
            return Ok(tally.end());
        }
        let mut fds: Vec<_> = rings.fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        sleep(&mut fds)?;
    }
}
