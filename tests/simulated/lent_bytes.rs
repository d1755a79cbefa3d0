//! What safe code does to simulated rings changes no byte that is lent, and writes into no memory but theirs.
//!
//! Bytes that are lent are `&[u8]`. The assertions here see a change; valgrind and AddressSanitizer see a write
//! elsewhere.
#![forbid(unsafe_code)]

use crate::reservations::{machine, order, prove};
use perfweave::sim::{Reservation, RingBuffer};
use perfweave::{Event, Fence, Hold, Layout, Merge, Order, Recorder, sim};

/// Events that are lent, their bytes as they are now, and what those were when they were lent.
struct Lent<'a>(Vec<(&'a [u8], Vec<u8>)>);

impl<'a> Lent<'a> {
    fn new(events: impl Iterator<Item = Event<'a>>) -> Self {
        let both = |event: &Event<'a>| {
            event.record().map_or_else(Vec::new, |record| {
                let (head, tail) = record.as_bytes().as_slices();
                vec![head, tail]
            })
        };
        Self(events.flat_map(|event| both(&event)).map(|bytes| (bytes, bytes.to_vec())).collect())
    }

    fn assert_unchanged(&self, what: &str) {
        for (now, then) in &self.0 {
            assert_eq!(now, then, "{what}");
        }
    }
}

fn one(bytes: usize) -> (RingBuffer, Merge) {
    let (mut buffers, rings) = machine(&[0], bytes);
    (buffers.remove(0), Merge::new(rings, order().hold(Hold::None)).unwrap())
}

/// A position that is not aligned is no place for a header: this one would end behind the ring.
#[test]
fn reservations_are_aligned() {
    let (buffer, mut merge) = one(64);
    buffer.force_produced(63);
    merge.refresh(0);
    buffer.force_consumed(63);
    let place = buffer.reserve(8).unwrap();
    buffer.submit(place, &[1; 8]);
    merge.refresh(0);
    assert!(buffer.produced().is_multiple_of(8), "{}", buffer.produced());
}

/// A consumer position that somebody else moved makes no room where a record is lent.
#[test]
fn another_reader_makes_no_room() {
    let (buffer, mut merge) = one(64);
    assert!(buffer.output(&[1; 40]));
    merge.refresh(0);
    let lent = Lent::new(merge.batch());
    assert_eq!(lent.0[0].0.len(), 48);
    buffer.force_consumed(48);
    for fill in 2..20 {
        let _ = buffer.output(&[fill; 40]);
    }
    lent.assert_unchanged("the kernel had the room from the other reader");
}

/// A header that is overwritten commits nothing early: a reservation that is lent is not filled.
#[test]
fn what_is_scribbled_over_is_not_filled() {
    let (buffer, mut merge) = one(64);
    let place = buffer.reserve(8).unwrap();
    buffer.scribble(0, &8u32.to_ne_bytes());
    merge.refresh(0);
    let lent = Lent::new(merge.batch());
    assert_eq!(lent.0[0].0.len(), 16);
    buffer.submit(place, &[7; 8]);
    lent.assert_unchanged("the program had not committed");
}

/// The kernel refuses reservations of 2^30 bytes and more, whose length would reach into the flags.
#[test]
fn a_long_reservation_is_refused() {
    let (buffer, mut merge) = one(64);
    assert!(buffer.output(&[1; 8]));
    merge.refresh(0);
    let lent = Lent::new(merge.batch());
    for (failed, len) in (1..).zip([1 << 30, 1 << 30 | 8, 1 << 31, 1 << 31 | 8, u32::MAX]) {
        let place = buffer.reserve(len);
        place.into_iter().for_each(|place| buffer.discard(place));
        lent.assert_unchanged("nothing was reserved");
        assert_eq!((place, buffer.failed()), (None, failed), "{len} bytes");
    }
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % most
    }

    /// A position near to this one, or anywhere.
    fn near(&mut self, position: u64) -> u64 {
        match self.below(4) {
            0 => self.0,
            1 => position.wrapping_add(self.below(80)),
            _ => position.wrapping_add(8 * self.below(10)),
        }
    }
}

/// Anything that a program can call.
fn disturb(buffer: &RingBuffer, busy: &mut Vec<(Reservation, u32)>, numbers: &mut Numbers) {
    let at = |numbers: &mut Numbers, busy: &[_]| numbers.below(busy.len() as u64) as usize;
    match numbers.below(10) {
        0..3 => {
            let len = numbers.below(40) as u32;
            busy.extend(buffer.reserve(len).map(|place| (place, len)));
        }
        3..5 if !busy.is_empty() => {
            let (place, len) = busy.swap_remove(at(numbers, busy));
            buffer.submit(place, &vec![numbers.below(256) as u8; len as usize]);
        }
        5 if !busy.is_empty() => buffer.discard(busy.swap_remove(at(numbers, busy)).0),
        6 => {
            let position = numbers.near(buffer.consumed());
            let word = [numbers.below(40) as u32, numbers.0 as u32][numbers.below(2) as usize];
            buffer.scribble(position, &word.to_ne_bytes());
        }
        7 => buffer.force_consumed(numbers.near(buffer.consumed())),
        8 if numbers.below(4) == 0 => buffer.force_produced(numbers.near(buffer.produced())),
        _ => drop(buffer.output(&vec![numbers.below(256) as u8; numbers.below(60) as usize])),
    }
}

/// Whatever is called while a batch is lent.
#[test]
fn nothing_changes_what_a_ring_buffer_lends() {
    let mut lent = 0;
    for seed in 0..300 {
        let mut numbers = Numbers(seed);
        let (buffer, mut merge) = one(128);
        let mut busy = Vec::new();
        for _ in 0..60 {
            prove(&mut merge);
            let events = Lent::new(merge.batch());
            for _ in 0..numbers.below(6) {
                disturb(&buffer, &mut busy, &mut numbers);
                events.assert_unchanged(&format!("seed {seed}"));
            }
            lent += events.0.len();
        }
    }
    assert!(lent > 5000, "{lent}");
}

/// Anything that a program can call on a machine of one CPU.
fn disturb_kernel(kernel: &sim::Kernel, inside: &mut u32, numbers: &mut Numbers) {
    let payload = vec![numbers.below(256) as u8; numbers.below(70) as usize];
    match numbers.below(12) {
        0 => {
            kernel.begin(0, 1);
            *inside += 1;
        }
        1 | 2 if *inside > 0 => drop(kernel.write(0, &payload)),
        3 | 4 if *inside > 0 => {
            kernel.end(0);
            *inside -= 1;
        }
        5 => kernel.scribble(0, numbers.near(kernel.tail(0)), &payload),
        6 if numbers.below(4) == 0 => kernel.force_head(0, numbers.near(kernel.head(0))),
        7 => kernel.lose(0, 1),
        8 => kernel.pause(0, numbers.below(2) == 0),
        9 if numbers.below(20) == 0 => drop(kernel.emit(0, 1, &vec![3; 66_000])),
        _ => drop(kernel.emit(0, 1, &payload)),
    }
}

#[test]
fn nothing_changes_what_a_perf_ring_lends() {
    let mut lent = 0;
    for seed in 0..200 {
        let mut numbers = Numbers(seed);
        let kernel = sim::Kernel::with(&[0], 256, Layout::new(4 | 1024, true, 0));
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
        let mut inside = 0;
        for _ in 0..60 {
            merge.refresh(0);
            let events = Lent::new(merge.batch());
            for _ in 0..numbers.below(6) {
                disturb_kernel(&kernel, &mut inside, &mut numbers);
                events.assert_unchanged(&format!("seed {seed}"));
            }
            lent += events.0.len();
        }
    }
    assert!(lent > 2000, "{lent}");
}

/// What is written over the rings afterwards changes no copy.
#[test]
fn nothing_changes_what_a_recorder_has_copied() {
    let mut lent = 0;
    for seed in 0..100 {
        let mut numbers = Numbers(seed);
        let kernel = sim::Kernel::backward(&[0], 256, Layout::new(4 | 1024, true, 0));
        let mut recorder: Recorder = kernel.recorder_with(&Fence::by(|| Ok(()))).unwrap();
        let mut inside = 0;
        for _ in 0..20 {
            for _ in 0..numbers.below(6) {
                disturb_kernel(&kernel, &mut inside, &mut numbers);
            }
            let mut merge = Merge::new(recorder.freeze().unwrap(), Order::new()).unwrap();
            merge.refresh(0);
            let events = Lent::new(merge.batch());
            for _ in 0..numbers.below(6) {
                disturb_kernel(&kernel, &mut inside, &mut numbers);
                events.assert_unchanged(&format!("seed {seed}"));
            }
            lent += events.0.len();
        }
    }
    assert!(lent > 500, "{lent}");
}
