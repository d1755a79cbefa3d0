//! What a ring takes and what it refuses.

use super::{Fault, Framing, Ring, RingKind, with_framing};
use crate::ring::{KernelHalf, memory, words};

fn record(kernel: &mut KernelHalf, size: u16) {
    let head = kernel.head();
    let mut bytes = vec![0xaa; usize::from(size)];
    bytes[..4].copy_from_slice(&9u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&0u16.to_ne_bytes());
    bytes[6..8].copy_from_slice(&size.to_ne_bytes());
    kernel.write(head, &bytes);
    kernel.publish(head.wrapping_add(u64::from(size)));
}

#[test]
fn records_are_seen_after_a_look_and_given_back_by_release() {
    let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
    record(&mut kernel, 24);
    assert_eq!(ring.head(), 0, "nothing is seen without a look");
    ring.refresh().unwrap();
    assert_eq!(ring.record(0).unwrap().0.size(), 24);
    assert_eq!(ring.bytes(0, 24).len(), 24);
    ring.release(24);
    assert_eq!(kernel.tail(), 24);
}

#[test]
fn a_record_that_crosses_the_end_comes_in_two_runs() {
    let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
    for _ in 0..2 {
        record(&mut kernel, 24);
    }
    ring.refresh().unwrap();
    ring.release(48);
    record(&mut kernel, 24);
    ring.refresh().unwrap();
    let (head, tail) = ring.bytes(48, 24).as_slices();
    assert_eq!((head.len(), tail.len()), (16, 8));
    assert_eq!(tail, [0xaa; 8]);
}

#[test]
#[should_panic(expected = "bytes between tail and head")]
fn bytes_before_the_tail_are_refused() {
    let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
    record(&mut kernel, 24);
    ring.refresh().unwrap();
    ring.release(24);
    ring.bytes(0, 8);
}

#[test]
#[should_panic(expected = "bytes between tail and head")]
fn bytes_behind_the_head_are_refused() {
    let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
    record(&mut kernel, 24);
    ring.refresh().unwrap();
    ring.bytes(16, 16);
}

#[test]
#[should_panic(expected = "a tail between tail and head")]
fn a_tail_past_the_head_is_refused() {
    let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
    record(&mut kernel, 24);
    ring.refresh().unwrap();
    ring.release(32);
}

#[test]
fn heads_that_cannot_be_right_are_faults_and_the_ring_goes_on() {
    for wild in [u64::MAX, 1 << 63, 65, 64 + 8, 4096] {
        let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
        record(&mut kernel, 24);
        ring.refresh().unwrap();
        kernel.force_head(wild);
        assert!(matches!(ring.refresh(), Err(Fault::Head { from: 24, .. })), "{wild}");
        assert_eq!(ring.head(), 24, "a bad head is not taken");
        ring.release(24);
        ring.skip_to_head();
        assert_eq!(kernel.tail(), wild);
        ring.refresh().unwrap();
        assert_eq!(ring.head(), 24, "empty, and positions go on where they were");
        record(&mut kernel, 16);
        kernel.force_head(wild.wrapping_add(16));
        ring.refresh().unwrap();
        assert_eq!(ring.head(), 40);
    }
}

#[test]
fn a_head_that_moves_back_is_a_fault() {
    let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
    record(&mut kernel, 24);
    record(&mut kernel, 24);
    ring.refresh().unwrap();
    kernel.force_head(24);
    assert_eq!(ring.refresh(), Err(Fault::Head { from: 48, to: 24, size: 64 }));
}

#[test]
fn fewer_bytes_than_a_header_are_a_fault() {
    let (mut kernel, mut ring) = Ring::simulated(4096, 64, None, false);
    kernel.force_head(4);
    ring.refresh().unwrap();
    assert_eq!(ring.record(0).unwrap_err(), Fault::Size { size: 0, room: 4 });
}

fn is_geometry(error: &crate::Error) -> bool {
    error.kind() == crate::ErrorKind::InvalidInput && error.to_string().starts_with("no perf ring: ")
}

#[test]
fn geometry_is_checked() {
    let page = crate::sys::machine::page_size();
    let (_kernel, ring) = Ring::simulated(page, 4096, None, false);
    assert_eq!(ring.size(), 4096);
    // SAFETY: the memory is a ring's, and only one of both is read from.
    let adopted = unsafe { Ring::adopt_mapping(ring.page(), 4096, None) };
    assert_eq!(adopted.unwrap().size(), 4096);
    for wrong in [8192, 2048, 0, 4096 + page, usize::MAX] {
        // SAFETY: as above.
        let error = unsafe { Ring::adopt_mapping(ring.page(), wrong, None) }.unwrap_err();
        assert!(is_geometry(&error) && error.to_string().contains("says 4096 bytes"), "{error}");
    }
}

#[test]
fn a_header_page_that_cannot_be_right_is_refused() {
    let page = crate::sys::machine::page_size();
    let at = page as u64;
    // What the header page says, and how long the data is said to be by whoever hands it out: each is wrong in one way.
    for (offset, size, given) in [
        (at, 0x1800, 0x1800),       // not a power of two
        (at, 4, 4),                 // no room for a header
        (at, 1 << 40, 1u64 << 40),  // longer than any
        (at / 2, at / 2, 0),        // inside the header page
        (at + 4, 4096, 4100),       // not aligned
        (at + 4096, 4096, 4096),    // behind the mapping
        (at, 2048, 4096),           // shorter than the mapping
        (u64::MAX - 4095, 4096, 0), // overflows
    ] {
        let (_kernel, ring) = Ring::simulated(page, 4096, None, false);
        for (word, value) in [(memory::DATA_OFFSET_AT, offset), (memory::DATA_SIZE_AT, size)] {
            // SAFETY: a word of the header page, which nobody else looks at now.
            let at = unsafe { ring.page().add(word) }.cast::<u64>();
            // SAFETY: as above.
            unsafe { at.write(value) };
        }
        // SAFETY: nothing is read but the header page.
        let adopted = unsafe { Ring::adopt_mapping(ring.page(), given as usize, None) };
        assert!(adopted.is_err_and(|error| is_geometry(&error)), "{offset} {size} {given}");
    }
    // Before 4.1 the kernel left both zero: the data is what follows the header page.
    let (_kernel, ring) = Ring::simulated(page, 4096, None, false);
    for word in [memory::DATA_OFFSET_AT, memory::DATA_SIZE_AT] {
        // SAFETY: as above.
        let at = unsafe { ring.page().add(word) }.cast::<u64>();
        // SAFETY: as above.
        unsafe { at.write(0) };
    }
    // SAFETY: as above.
    assert_eq!(unsafe { Ring::adopt_mapping(ring.page(), 4096, None) }.unwrap().size(), 4096);
}

/// Rings of 8 and 16 bytes at every place, everywhere near where the kernel's words wrap: a head is taken if and only
/// if it is no further from the tail than the ring is long, and no nearer than the one before.
#[test]
fn every_head_is_taken_or_refused_as_it_must_be() {
    for size in [8u64, 16] {
        let (_kernel, mut ring) = Ring::simulated(4096, size as usize, None, false);
        for base in (0..=2 * size).flat_map(|near| [near, near.wrapping_neg(), near.wrapping_sub(1 << 63)]) {
            for tail in (0..=size).map(|tail| tail + (1 << 20)) {
                for used in 0..=size {
                    // As far as a whole ring too far, in both directions, and far from either.
                    let near = (0..=4 * size).map(|to| (tail + to).wrapping_sub(2 * size));
                    for to in near.chain([tail.wrapping_add(1 << 63), tail.wrapping_neg(), 1 << 32]) {
                        (ring.base, ring.tail, ring.head, ring.reserved) = (base, tail, tail + used, tail + used);
                        // SAFETY: (I1)
                        let word = unsafe { ring.head_word.as_ref() };
                        words::store_head(word, base.wrapping_add(to));
                        let taken = ring.refresh();
                        let right = to >= tail + used && to <= tail + size;
                        assert_eq!(taken.is_ok(), right, "{base:#x}, {tail} and {used}, {to}: {taken:?}");
                        assert_eq!(ring.head(), if right { to } else { tail + used });
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "bytes between tail and head")]
fn a_ring_written_backwards_gives_no_bytes_once_it_is_written_again() {
    let (mut kernel, mut ring) = Ring::simulated(4096, 4096, None, true);
    kernel.write(0u64.wrapping_sub(8), &[1; 8]);
    kernel.publish(0u64.wrapping_sub(8));
    let (mut behind, mut copy) = Ring::simulated(4096, 4096, None, true);
    ring.copy_backward(&mut behind);
    assert!(!copy.refresh_backward());
    assert_eq!(copy.bytes(0, 8).to_vec(), [1; 8]);
    ring.bytes(0, 8);
}

/// Everything that the hot loops take by [`Framing::split`] is what [`Framing::record`] says of the same bytes, in
/// every kind of ring.
#[test]
fn what_is_plain_is_what_the_general_way_says_in_every_kind_of_ring() {
    const ROOM: u64 = 96;
    for kind in RingKind::ALL {
        let (mut plain, mut all) = (0, 0);
        // A header of perf's, with any size and several kinds, and its halves the other way round: the length of a
        // reservation, with any flags.
        let words = (0..=ROOM + 8).flat_map(|size| {
            let perf = |kind: u64| if cfg!(target_endian = "little") { size << 48 | kind } else { kind << 32 | size };
            let flags = (0..4u32).map(move |flags| size as u32 | flags << 30);
            let long = [65_520, 65_521, 1 << 20].map(|long| long + size as u32);
            [perf(9), perf(2), perf(u64::from(u32::MAX))].into_iter().chain(flags.chain(long).map(first_of))
        });
        for word in words {
            let (mut kernel, ring) = Ring::simulated(4096, 128, None, false);
            let mut ring = Ring { kind, ..ring };
            kernel.write(0, &[word.to_ne_bytes(), [0; 8]].concat());
            kernel.publish(ROOM);
            // A length that goes past the head is a fault there, or of the record.
            let _ = ring.refresh();
            let (bytes, _) = ring.bytes(0, ring.head()).as_slices();
            let said = ring.record(0);
            all += u32::from(said.is_ok());
            for least in [8, 40] {
                if let Some((header, sample, rest)) = with_framing!(kind, F => F::split(bytes, least)) {
                    let (said, whole) = said.as_ref().unwrap_or_else(|fault| panic!("{kind:?} {word:#x}: {fault}"));
                    assert_eq!((header, sample), (*said, whole.as_slices().0), "{kind:?} {word:#x}");
                    assert!(header.kind() == 9 && sample.len() >= least && sample.len() + rest.len() == bytes.len());
                    let len = with_framing!(kind, F => F::payload_len(sample, 12));
                    assert!(len.is_none_or(|len| len as usize <= sample.len() - 8), "{kind:?} {word:#x}: {len:?}");
                    plain += 1;
                }
            }
        }
        assert!(plain > 10 && all > 20, "{kind:?}: {plain} of {all}");
    }
}

/// A word whose first half in memory is this.
fn first_of(half: u32) -> u64 {
    u64::from(half) << if cfg!(target_endian = "little") { 0 } else { 32 }
}
