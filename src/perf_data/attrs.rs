//! Attributes of events, and where their fields lie.

use crate::record::{Kind, Layout, SAMPLE_ORDER, TRAILER_ORDER};
use crate::ring::Bytes;
use perf_event_open_sys::bindings::perf_event_attr;

/// How an event's records are laid out.
pub(super) fn layout(attr: &perf_event_attr) -> Layout {
    Layout::new(attr.sample_type, attr.sample_id_all() != 0, attr.read_format)
        .registers(attr.sample_regs_user, attr.sample_regs_intr)
        .branches(attr.branch_sample_type)
}

/// Where a field of a sample begins, or would begin if it were requested: bytes from the sample's start.
pub(super) fn in_samples(sample_type: u64, field: u64) -> usize {
    let before = SAMPLE_ORDER.iter().take_while(|other| **other != field);
    8 + 8 * before.filter(|other| sample_type & **other != 0).count()
}

/// Where a field of `struct sample_id` ends, or would end: bytes back from the record's end.
pub(super) fn in_trailers(sample_type: u64, field: u64) -> usize {
    let behind = TRAILER_ORDER.iter().rev().take_while(|other| **other != field);
    8 * behind.filter(|other| sample_type & **other != 0).count()
}

/// A field of a record. `None` if it was not requested, or the record is too short for it.
pub(super) fn field(record: Bytes<'_>, layout: &Layout, field: u64) -> Option<u64> {
    let sample_type = layout.sample_type();
    if sample_type & field == 0 {
        return None;
    }
    let at = if record.u32(0)? == Kind::SAMPLE.0 {
        in_samples(sample_type, field)
    } else if layout.sample_id_all() {
        record.len().checked_sub(in_trailers(sample_type, field) + 8).filter(|at| *at >= 8)?
    } else {
        return None;
    };
    record.u64(at)
}
