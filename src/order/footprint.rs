//! What the index of a recording takes, before it is made: a recording is indexed as a whole.

use crate::error::{Error, ErrorKind};
use crate::order::key::Keys;
use crate::record::{Record, Records};
use crate::rings::{CpuRing, Rings};
use crate::sys::memory;

/// The most bytes of memory that a byte of a ring takes: a record of 8 bytes that is out of order and has a note, while
/// its lists grow.
const DEAREST: u64 = 32;

/// Bytes of memory that a record takes; more, while the lists grow, if it is out of order, and for damage and losses.
const EACH: u64 = 18;
const OUT_OF_ORDER: u64 = 80;
const NOTED: u64 = 140;

/// An error if the index of a recording would take more than half of the memory that this process can get now. The
/// allocator ends a process that exceeds a limit, and a control group kills it. The other half is for the rest of the
/// program.
pub(crate) fn check(rings: &mut Rings, keys: &Keys) -> Result<(), Error> {
    let Some(most) = memory::available().map(|bytes| bytes / 2) else { return Ok(()) };
    for cpu_ring in &mut rings.cpu_rings {
        // The heads are not known yet. A fault is found again when the ring is indexed.
        let _ = cpu_ring.ring.refresh();
    }
    let bytes: u64 = rings.cpu_rings.iter().map(|cpu_ring| cpu_ring.ring.head() - cpu_ring.ring.tail()).sum();
    if bytes.saturating_mul(DEAREST) <= most {
        return Ok(());
    }
    let index: u64 = rings.cpu_rings.iter().map(|cpu_ring| footprint(cpu_ring, keys)).sum();
    if index <= most {
        return Ok(());
    }
    let message =
        format!("the index of the recording takes {index} bytes of memory, of which {most} may be taken here");
    let hint = "record less at a time: perf record --switch-output; or raise what is least of free memory, the \
                control group's memory.max, and RLIMIT_AS: half of what is left may be taken";
    Err(Error::new(ErrorKind::Limit, message).hinting(hint))
}

/// An upper bound of what the index of a ring takes, without gaps in a program's own numbers.
fn footprint(CpuRing { ring, origin, .. }: &CpuRing, keys: &Keys) -> u64 {
    let mut largest = None;
    let each = |found: Result<Record<'_>, _>| {
        // A key function is not asked about losses.
        let Some(record) = found.ok().filter(|record| record.lost().is_none()) else { return NOTED };
        let key = keys.peek(&record);
        let is_in_order = key.is_none_or(|key| Some(key) >= largest);
        largest = largest.max(key);
        if is_in_order { EACH } else { OUT_OF_ORDER }
    };
    Records::new(ring, origin, ring.tail()).map(each).sum()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{EACH, NOTED, OUT_OF_ORDER, footprint};
    use crate::order::key::{Key, Keys};
    use crate::record::Layout;
    use crate::sim;
    use perf_event_open_sys::bindings;

    /// Records in order, one out of order, a loss and damage. The key function is not asked about the loss.
    #[test]
    fn each_record_takes_what_its_place_in_the_ring_says() {
        let kernel = sim::Kernel::with(&[0], 4096, Layout::new(4 | 1024, true, 0));
        let key = Key::Fn(Box::new(|record| {
            assert_ne!(record.kind(), bindings::PERF_RECORD_LOST);
            record.time()
        }));
        let (mut rings, keys) = (kernel.rings(), Keys::new(key, None, None, None));
        let mut footprint = || {
            rings.cpu_rings[0].ring.refresh().unwrap();
            footprint(&rings.cpu_rings[0], &keys)
        };
        assert_eq!(footprint(), 0);
        assert!([5, 7, 7].into_iter().all(|time| kernel.emit(0, time, b"")));
        assert_eq!(footprint(), 3 * EACH);
        assert!(kernel.emit(0, 6, b""));
        assert_eq!(footprint(), 3 * EACH + OUT_OF_ORDER);
        kernel.lose(0, 3);
        assert!(kernel.emit(0, 9, b""));
        assert_eq!(footprint(), 4 * EACH + OUT_OF_ORDER + NOTED);
    }
}
