//! The fields of a sample in the kernel's order: where each begins, and how long it is.

use crate::record::Layout;
use crate::record::layout::{CALLCHAIN, RAW, READ};
use crate::ring::Bytes;
use perf_event_open_sys::bindings as sys;
use std::ops::Range;

const BRANCH_STACK: u64 = sys::PERF_SAMPLE_BRANCH_STACK as u64;
const REGS_USER: u64 = sys::PERF_SAMPLE_REGS_USER as u64;
const STACK_USER: u64 = sys::PERF_SAMPLE_STACK_USER as u64;
const REGS_INTR: u64 = sys::PERF_SAMPLE_REGS_INTR as u64;
const AUX: u64 = sys::PERF_SAMPLE_AUX as u64;

/// The order of the fields after those of [`SAMPLE_ORDER`](super::SAMPLE_ORDER), as the kernel writes them
/// (`perf_output_sample`, `kernel/events/core.c`). The two kinds of weight exclude each other.
const ORDER: [u64; 15] = [
    READ,
    CALLCHAIN,
    RAW,
    BRANCH_STACK,
    REGS_USER,
    STACK_USER,
    (sys::PERF_SAMPLE_WEIGHT | sys::PERF_SAMPLE_WEIGHT_STRUCT) as u64,
    sys::PERF_SAMPLE_DATA_SRC as u64,
    sys::PERF_SAMPLE_TRANSACTION as u64,
    REGS_INTR,
    sys::PERF_SAMPLE_PHYS_ADDR as u64,
    sys::PERF_SAMPLE_CGROUP as u64,
    sys::PERF_SAMPLE_DATA_PAGE_SIZE as u64,
    sys::PERF_SAMPLE_CODE_PAGE_SIZE as u64,
    AUX,
];

/// Where a field after the fixed ones begins in a sample, or would begin: after all requested fields before it. `None`
/// if one of those cannot be read.
pub(super) fn begin_of(layout: &Layout, bytes: Bytes<'_>, field: u64) -> Option<usize> {
    let mut at = usize::from(layout.fixed);
    for before in ORDER.into_iter().take_while(|other| other & field == 0) {
        if layout.sample_type & before != 0 {
            at = at.checked_add(len_of(layout, bytes, before, at)?)?;
        }
    }
    Some(at)
}

/// The range of a field in a sample. `None` if it was not requested, or does not fit.
pub(super) fn range_of(layout: &Layout, bytes: Bytes<'_>, field: u64) -> Option<Range<usize>> {
    if let Some(at) = layout.offset(field) {
        return Some(at..at + 8);
    }
    if !field.is_power_of_two() || layout.sample_type & field == 0 || !ORDER.iter().any(|known| known & field != 0) {
        return None;
    }
    let at = begin_of(layout, bytes, field)?;
    Some(at..at.checked_add(len_of(layout, bytes, field, at)?)?)
}

/// The length in bytes of a field that begins at `at`. It may claim to be longer than the record.
fn len_of(layout: &Layout, bytes: Bytes<'_>, field: u64, at: usize) -> Option<usize> {
    let words = match field {
        READ => read_words(layout, bytes, at)?,
        CALLCHAIN => bytes.u64(at)?.checked_add(1)?,
        // In bytes.
        RAW => return Some(4 + bytes.u32(at)? as usize),
        STACK_USER => {
            // The size, that many bytes, and how many of them are valid.
            let size = usize::try_from(bytes.u64(at)?).ok()?;
            return if size == 0 { Some(8) } else { size.checked_add(16) };
        }
        AUX => return usize::try_from(bytes.u64(at)?.checked_add(8)?).ok(),
        BRANCH_STACK => {
            let has = |bit: u32| u64::from(layout.branches & u64::from(bit) != 0);
            // From, to and flags of each; the counters of all follow. Both options are assumed to be written always, as
            // perf(1) assumes.
            let each = 3 + has(sys::PERF_SAMPLE_BRANCH_COUNTERS);
            bytes.u64(at)?.checked_mul(each)?.checked_add(1 + has(sys::PERF_SAMPLE_BRANCH_HW_INDEX))?
        }
        REGS_USER => register_words(bytes, at, layout.registers_user)?,
        REGS_INTR => register_words(bytes, at, layout.registers_interrupt)?,
        _ => 1,
    };
    usize::try_from(words).ok()?.checked_mul(8)
}

/// Words of a READ field ("Reading results" in perf_event_open(2)).
fn read_words(layout: &Layout, bytes: Bytes<'_>, at: usize) -> Option<u64> {
    let has = |bit: u32| u64::from(layout.read_format & u64::from(bit) != 0);
    let times = has(sys::PERF_FORMAT_TOTAL_TIME_ENABLED) + has(sys::PERF_FORMAT_TOTAL_TIME_RUNNING);
    let per_value = 1 + has(sys::PERF_FORMAT_ID) + has(sys::PERF_FORMAT_LOST);
    if has(sys::PERF_FORMAT_GROUP) == 0 {
        return Some(per_value + times);
    }
    bytes.u64(at)?.checked_mul(per_value)?.checked_add(1 + times)
}

/// Words of registers: the ABI, and the registers in the mask, unless there is no ABI.
fn register_words(bytes: Bytes<'_>, at: usize, mask: u64) -> Option<u64> {
    let abi = bytes.u64(at)?;
    Some(if abi == u64::from(sys::PERF_SAMPLE_REGS_ABI_NONE) { 1 } else { 1 + u64::from(mask.count_ones()) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    /// Bytes of a field at its smallest or with something in it, as the kernel writes them.
    fn written(layout: &Layout, field: u64) -> Vec<u8> {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        match field {
            READ => {
                let read_format = layout.read_format;
                assert_eq!(read_format, u64::from(sys::PERF_FORMAT_GROUP | sys::PERF_FORMAT_ID));
                words(&[2, 11, 1, 12, 2])
            }
            CALLCHAIN => words(&[3, 0xa, 0xb, 0xc]),
            RAW => [&12u32.to_ne_bytes()[..], &[7; 12]].concat(),
            BRANCH_STACK => words(&[1, 99, 1, 2, 3]),
            REGS_USER => words(&[2, 5, 6]),
            STACK_USER => words(&[16, 1, 2, 16]),
            REGS_INTR => words(&[0]),
            AUX => words(&[8, 9]),
            _ => words(&[field]),
        }
    }

    fn layout(sample_type: u64) -> Layout {
        let layout = Layout::new(sample_type, true, u64::from(sys::PERF_FORMAT_GROUP | sys::PERF_FORMAT_ID));
        layout.registers(0b101, 1).branches(sys::PERF_SAMPLE_BRANCH_HW_INDEX.into())
    }

    /// "struct { ... }" under PERF_RECORD_SAMPLE in perf_event_open(2), line by line. The page lacks CGROUP and has AUX
    /// before the sizes of pages, where the kernel has it last (`linux/perf_event.h`).
    fn order() -> Vec<u64> {
        let order = [
            sys::PERF_SAMPLE_IDENTIFIER,
            sys::PERF_SAMPLE_IP,
            sys::PERF_SAMPLE_TID,
            sys::PERF_SAMPLE_TIME,
            sys::PERF_SAMPLE_ADDR,
            sys::PERF_SAMPLE_ID,
            sys::PERF_SAMPLE_STREAM_ID,
            sys::PERF_SAMPLE_CPU,
            sys::PERF_SAMPLE_PERIOD,
            sys::PERF_SAMPLE_READ,
            sys::PERF_SAMPLE_CALLCHAIN,
            sys::PERF_SAMPLE_RAW,
            sys::PERF_SAMPLE_BRANCH_STACK,
            sys::PERF_SAMPLE_REGS_USER,
            sys::PERF_SAMPLE_STACK_USER,
            sys::PERF_SAMPLE_WEIGHT,
            sys::PERF_SAMPLE_DATA_SRC,
            sys::PERF_SAMPLE_TRANSACTION,
            sys::PERF_SAMPLE_REGS_INTR,
            sys::PERF_SAMPLE_PHYS_ADDR,
            sys::PERF_SAMPLE_CGROUP,
            sys::PERF_SAMPLE_DATA_PAGE_SIZE,
            sys::PERF_SAMPLE_CODE_PAGE_SIZE,
            sys::PERF_SAMPLE_AUX,
        ];
        order.map(u64::from).to_vec()
    }

    quickcheck! {
        /// Every field is found after any other fields, for every place where the record wraps.
        fn every_field_is_found(asked: u32, cut: usize) -> bool {
            let order = order();
            let asked: Vec<u64> = (0..).zip(&order).filter(|(at, _)| asked >> at & 1 == 1).map(|(_, field)| *field).collect();
            let layout = layout(asked.iter().sum());
            let mut bytes = vec![0; 8];
            let mut places = Vec::new();
            for field in &asked {
                let written = written(&layout, *field);
                places.push((*field, bytes.len()..bytes.len() + written.len()));
                bytes.extend(written);
            }
            let (head, tail) = bytes.split_at(cut % (bytes.len() + 1));
            let bytes = Bytes::new(head, tail);
            let found = |field: u64| range_of(&layout, bytes, field);
            places.iter().all(|(field, place)| found(*field).as_ref() == Some(place))
                && order.iter().all(|field| found(*field).is_some() == asked.contains(field))
        }

        /// Any bytes, any layout: no field is found that does not begin in the record, and nothing panics.
        fn hostile_bytes_have_no_fields_outside(words: Vec<u64>, sample_type: u64, format: u64, masks: (u64, u64), branches: u64) -> bool {
            let layout = Layout::new(sample_type, true, format).registers(masks.0, masks.1).branches(branches);
            let bytes: Vec<u8> = [0].iter().chain(&words).flat_map(|word| word.to_ne_bytes()).collect();
            let bytes = Bytes::from(&bytes[..]);
            (0..64).all(|bit| range_of(&layout, bytes, 1 << bit).is_none_or(|range| range.start >= 8 && range.start < range.end))
        }
    }

    /// A word before all entries, and one of counters in each, if they were asked for.
    #[test]
    fn branches_have_the_words_that_were_asked_for() {
        let (index, counters) = (sys::PERF_SAMPLE_BRANCH_HW_INDEX, sys::PERF_SAMPLE_BRANCH_COUNTERS);
        for (asked, words) in [(0, 1 + 2 * 3), (index, 2 + 2 * 3), (counters, 1 + 2 * 4), (index | counters, 2 + 2 * 4)]
        {
            let layout = Layout::new(BRANCH_STACK, true, 0).branches(asked.into());
            let bytes: Vec<u8> = [0u64, 2].iter().chain(&[7; 9]).flat_map(|word| word.to_ne_bytes()).collect();
            let found = range_of(&layout, Bytes::from(&bytes[..]), BRANCH_STACK);
            assert_eq!(found, Some(8..8 + 8 * words), "{asked:#x}");
        }
    }

    #[test]
    fn one_field_is_asked_for_at_a_time() {
        let layout = layout(u64::MAX);
        let bytes = [0; 1024];
        for none in [0, READ | CALLCHAIN, 1 << 40, u64::MAX] {
            assert_eq!(range_of(&layout, Bytes::from(&bytes[..]), none), None, "{none:#x}");
        }
    }
}
