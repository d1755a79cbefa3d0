//! Attributes of events, and where their fields lie.

use perf_event_open_sys::bindings::{self, perf_event_attr};
use perfweave::{Bytes, Clock, Layout};
use std::mem::offset_of;

pub(crate) const TID: u64 = bindings::PERF_SAMPLE_TID as u64;
pub(crate) const TIME: u64 = bindings::PERF_SAMPLE_TIME as u64;
pub(crate) const ID: u64 = bindings::PERF_SAMPLE_ID as u64;
pub(crate) const CPU: u64 = bindings::PERF_SAMPLE_CPU as u64;
pub(crate) const IDENTIFIER: u64 = bindings::PERF_SAMPLE_IDENTIFIER as u64;
pub(crate) const IP: u64 = bindings::PERF_SAMPLE_IP as u64;
pub(crate) const ADDR: u64 = bindings::PERF_SAMPLE_ADDR as u64;
const STREAM_ID: u64 = bindings::PERF_SAMPLE_STREAM_ID as u64;
pub(crate) const READ: u64 = bindings::PERF_SAMPLE_READ as u64;
const PERIOD: u64 = bindings::PERF_SAMPLE_PERIOD as u64;

/// The order of the fixed fields at a sample's begin: "struct { ... }" under PERF_RECORD_SAMPLE in perf_event_open(2).
const SAMPLE_ORDER: [u64; 9] = [IDENTIFIER, IP, TID, TIME, ADDR, ID, STREAM_ID, CPU, PERIOD];

/// The order of `struct sample_id` at the end of all other records (perf_event_open(2)).
pub(crate) const TRAILER_ORDER: [u64; 6] = [TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER];

/// `struct perf_event_attr` of this machine, as its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attr([u8; size_of::<perf_event_attr>()]);

/// Bits of the word after `read_format`, by their place in the struct.
const INHERIT: u64 = bit(1);
const EXCLUDE_USER: u64 = bit(4);
const EXCLUDE_KERNEL: u64 = bit(5);
const EXCLUDE_HV: u64 = bit(6);
const PRECISE: [u64; 2] = [bit(15), bit(16)];
const SAMPLE_ID_ALL: u64 = bit(18);
const USE_CLOCKID: u64 = bit(25);

/// A bit field of one bit. The compiler begins with the lowest bit, or with the highest where bytes are in that order.
const fn bit(place: u32) -> u64 {
    if cfg!(target_endian = "big") { 1 << (63 - place) } else { 1 << place }
}

const FLAGS: usize = offset_of!(perf_event_attr, _bitfield_1);
const SAMPLE_TYPE: usize = offset_of!(perf_event_attr, sample_type);
const CLOCKID: usize = offset_of!(perf_event_attr, clockid);

impl Attr {
    /// An attribute from a file. Missing members are 0, and members that this machine does not know are dropped.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut attr = Self([0; size_of::<perf_event_attr>()]);
        let len = bytes.len().min(attr.0.len());
        attr.0[..len].copy_from_slice(&bytes[..len]);
        attr
    }

    /// Of BPF output whose records have this layout and are stamped by this clock.
    pub(crate) fn of_output(layout: &Layout, clock: Clock) -> Self {
        // Its size stays 0: `sections::sized` states it when the attribute is written.
        let mut attr = Self::of(&[]);
        let config = u64::from(bindings::PERF_COUNT_SW_BPF_OUTPUT);
        let [user, interrupt] = layout.register_masks();
        attr.set(offset_of!(perf_event_attr, type_), bindings::PERF_TYPE_SOFTWARE.to_ne_bytes());
        for (at, word) in [
            (offset_of!(perf_event_attr, config), config),
            // The period.
            (offset_of!(perf_event_attr, __bindgen_anon_1), 1),
            (SAMPLE_TYPE, layout.sample_type()),
            (offset_of!(perf_event_attr, read_format), layout.read_format()),
            (offset_of!(perf_event_attr, branch_sample_type), layout.branch_sample_type()),
            (offset_of!(perf_event_attr, sample_regs_user), user),
            (offset_of!(perf_event_attr, sample_regs_intr), interrupt),
        ] {
            attr.set(at, word.to_ne_bytes());
        }
        let mut flags = if layout.sample_id_all() { SAMPLE_ID_ALL } else { 0 };
        if let Some(id) = clock_id(clock) {
            flags |= USE_CLOCKID;
            attr.set(CLOCKID, id.to_ne_bytes());
        }
        attr.set(FLAGS, flags.to_ne_bytes());
        attr
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same, and records have these fields too.
    pub(crate) fn sampling(mut self, fields: u64) -> Self {
        self.set(SAMPLE_TYPE, (self.u64(SAMPLE_TYPE) | fields).to_ne_bytes());
        self
    }

    fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }

    fn u64(&self, at: usize) -> u64 {
        // Never outside: the offsets are those of the struct itself.
        Bytes::from(&self.0[..]).u64(at).unwrap_or(0)
    }

    fn u32(&self, at: usize) -> u32 {
        Bytes::from(&self.0[..]).u32(at).unwrap_or(0)
    }

    pub(crate) fn kind(&self) -> u32 {
        self.u32(offset_of!(perf_event_attr, type_))
    }

    pub(crate) fn config(&self) -> u64 {
        self.u64(offset_of!(perf_event_attr, config))
    }

    pub(crate) fn is_tracepoint(&self) -> bool {
        self.kind() == bindings::PERF_TYPE_TRACEPOINT
    }

    /// Whether children of its thread have it too.
    pub(crate) fn inherits(&self) -> bool {
        self.u64(FLAGS) & INHERIT != 0
    }

    /// Whether it does not count in user space, in the kernel and in the hypervisor.
    pub(crate) fn excludes(&self) -> [bool; 3] {
        [EXCLUDE_USER, EXCLUDE_KERNEL, EXCLUDE_HV].map(|bit| self.u64(FLAGS) & bit != 0)
    }

    /// `precise_ip`, 0 to 3.
    pub(crate) fn precise(&self) -> u8 {
        let [low, high] = PRECISE.map(|bit| u8::from(self.u64(FLAGS) & bit != 0));
        low + 2 * high
    }

    /// The clock that stamps its records, by its number. `None` for the perf clock.
    pub(crate) fn clock(&self) -> Option<i32> {
        (self.u64(FLAGS) & USE_CLOCKID != 0).then(|| self.u32(CLOCKID).cast_signed())
    }

    /// How its records are laid out.
    pub(crate) fn layout(&self) -> Layout {
        let read_format = self.u64(offset_of!(perf_event_attr, read_format));
        let [user, interrupt] =
            [offset_of!(perf_event_attr, sample_regs_user), offset_of!(perf_event_attr, sample_regs_intr)]
                .map(|at| self.u64(at));
        Layout::new(self.u64(SAMPLE_TYPE), self.u64(FLAGS) & SAMPLE_ID_ALL != 0, read_format)
            .registers(user, interrupt)
            .branches(self.u64(offset_of!(perf_event_attr, branch_sample_type)))
    }
}

/// The number of a clock. `None` for the perf clock.
pub(crate) fn clock_id(clock: Clock) -> Option<i32> {
    Some(match clock {
        Clock::Monotonic => libc::CLOCK_MONOTONIC,
        Clock::MonotonicRaw => libc::CLOCK_MONOTONIC_RAW,
        Clock::Boottime => libc::CLOCK_BOOTTIME,
        Clock::Realtime => libc::CLOCK_REALTIME,
        Clock::Tai => libc::CLOCK_TAI,
        _ => return None,
    })
}

/// Where a field of a sample begins, or would begin if it were requested: bytes from the sample's start.
pub(crate) fn in_samples(sample_type: u64, field: u64) -> usize {
    let before = SAMPLE_ORDER.iter().take_while(|other| **other != field);
    8 + 8 * before.filter(|other| sample_type & **other != 0).count()
}

/// Where a field of `struct sample_id` ends, or would end: bytes back from the record's end.
pub(crate) fn in_trailers(sample_type: u64, field: u64) -> usize {
    let behind = TRAILER_ORDER.iter().rev().take_while(|other| **other != field);
    8 * behind.filter(|other| sample_type & **other != 0).count()
}

/// A field of a record. `None` if it was not requested, or the record is too short for it.
pub(crate) fn field(record: Bytes<'_>, layout: &Layout, field: u64) -> Option<u64> {
    let sample_type = layout.sample_type();
    if sample_type & field == 0 {
        return None;
    }
    let at = if record.u32(0)? == bindings::PERF_RECORD_SAMPLE {
        in_samples(sample_type, field)
    } else if layout.sample_id_all() {
        // A record that is too short must not give bytes of its header as a field.
        record.len().checked_sub(in_trailers(sample_type, field) + 8).filter(|at| *at >= 8)?
    } else {
        return None;
    };
    record.u64(at)
}

#[cfg(test)]
mod tests {
    use super::{Attr, INHERIT, SAMPLE_ID_ALL, USE_CLOCKID};
    use perf_event_open_sys::bindings::perf_event_attr;
    use perfweave::{Clock, Layout};

    /// The bits that the bindings set.
    #[test]
    fn flags_lie_where_the_compiler_puts_them() {
        let word = |set: fn(&mut perf_event_attr)| {
            let mut attr = perf_event_attr::default();
            set(&mut attr);
            let bits = (0..64).filter(|bit| attr._bitfield_1.get_bit(*bit)).map(|bit| super::bit(bit as u32));
            bits.sum::<u64>()
        };
        assert_eq!(word(|attr| attr.set_sample_id_all(1)), SAMPLE_ID_ALL);
        assert_eq!(word(|attr| attr.set_use_clockid(1)), USE_CLOCKID);
        assert_eq!(word(|attr| attr.set_inherit(1)), INHERIT);
    }

    #[test]
    fn an_attribute_says_what_was_put_in() {
        let layout = Layout::new(1 << 2 | 1 << 7 | 1 << 10, true, 4).registers(3, 5).branches(9);
        let attr = Attr::of_output(&layout, Clock::Boottime);
        assert_eq!((attr.layout(), attr.clock()), (layout, Some(libc::CLOCK_BOOTTIME)));
        assert_eq!((attr.kind(), attr.config(), attr.is_tracepoint()), (1, 10, false));
        assert_eq!(attr.sampling(1).layout().sample_type(), layout.sample_type() | 1);
        // Longer, and shorter.
        assert_eq!(Attr::of(&[attr.bytes(), &[7; 8]].concat()), attr);
        assert_eq!(Attr::of(&attr.bytes()[..64]).layout().register_masks(), [0, 0]);
        assert_eq!(Attr::of(&[]).clock(), None);
    }
}
