//! An event as a file describes it.

use crate::error::{Error, ErrorKind};
use crate::perf_data::attrs;
use crate::perf_data::seal::{Counted, NOBODY};
use crate::record::clock::Clock;
use crate::record::{CPU, ID, IDENTIFIER, Kind, Layout, TIME};
use crate::ring::Bytes;
use crate::rings::Source;
use perf_event_open_sys::bindings::{self, PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT, perf_event_attr};

/// An event as the file describes it.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) attr: perf_event_attr,
    pub(super) name: String,
    pub(super) ids: Vec<u64>,
    /// The layout of its records in the rings.
    pub(super) layout: Layout,
    /// The fields that are added to its records.
    pub(super) adds: u64,
    /// Where the CPU and the time lie in a sample of the rings, if they are there: for each record they are read.
    samples: [Option<usize>; 2],
}

pub(super) const IP: u64 = bindings::PERF_SAMPLE_IP as u64;
const ADDR: u64 = bindings::PERF_SAMPLE_ADDR as u64;

impl Noted {
    fn new(attr: perf_event_attr, name: String, adds: bool) -> Self {
        let layout = attrs::layout(&attr);
        let lacks = |bits: u64| adds && layout.sample_type() & bits == 0;
        let mut added = if lacks(CPU) { CPU } else { 0 };
        // `perf script` does without these fields only for tracepoints (`perf_session__check_output_opt`, builtin-script.c).
        if lacks(IP | ADDR) && attr.type_ != PERF_TYPE_TRACEPOINT {
            added |= IP;
        }
        let samples = [CPU, TIME]
            .map(|field| (layout.sample_type() & field != 0).then(|| attrs::in_samples(layout.sample_type(), field)));
        Self { attr, name, ids: Vec::new(), layout, adds: added, samples }
    }

    pub(super) fn of(source: &Source, adds: bool) -> Self {
        Self::new(source.attr, source.tracepoint().unwrap_or(source.name()).to_owned(), adds)
    }

    /// The event of rings whose events are unknown.
    pub(super) fn unknown(layout: Layout, clock: Clock, adds: bool) -> Self {
        let mut attr = perf_event_attr {
            type_: PERF_TYPE_SOFTWARE,
            config: bindings::PERF_COUNT_SW_BPF_OUTPUT.into(),
            sample_type: layout.sample_type(),
            read_format: layout.read_format(),
            branch_sample_type: layout.branch_sample_type(),
            ..perf_event_attr::default()
        };
        [attr.sample_regs_user, attr.sample_regs_intr] = layout.register_masks();
        attr.sample_period = 1;
        attr.set_sample_id_all(layout.sample_id_all().into());
        if let Some(clock) = clock.id() {
            attr.set_use_clockid(1);
            attr.clockid = clock.as_raw();
        }
        Self::new(attr, "unknown".into(), adds)
    }

    /// What a record says of itself when it is in the file. `cpu` is that of its ring.
    pub(super) fn counted(&self, kind: Kind, record: Bytes<'_>, cpu: u32) -> Counted {
        let is_sample = kind == Kind::SAMPLE;
        let [in_record, time] = if is_sample {
            self.samples.map(|at| record.u64(at?))
        } else {
            [CPU, TIME].map(|field| attrs::field(record, &self.layout, field))
        };
        let added = self.adds & CPU != 0 && (is_sample || self.layout.sample_id_all());
        let cpu = if added { Some(cpu) } else { in_record.map(cpu_of) };
        Counted { cpu: cpu.unwrap_or(NOBODY), time, lost: None }
    }

    /// The attribute as written to the file.
    pub(super) fn as_written(&self) -> perf_event_attr {
        let mut attr = self.attr;
        attr.sample_type |= self.adds;
        attr
    }
}

/// Of `struct { u32 cpu, res; }`.
pub(super) fn cpu_of(field: u64) -> u32 {
    let [a, b, c, d, ..] = field.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Checks that perf can tell the events' records apart (`evlist__valid_sample_type`, `tools/perf/util/evlist.c`).
pub(super) fn check(events: &[Noted]) -> Result<(), Error> {
    let Some((first, others)) = events.split_first() else { return Ok(()) };
    let (layout, has) = (first.layout, |layout: &Layout, bits| layout.sample_type() & bits != 0);
    let can_tell = |other: &Noted| {
        let same = other.layout == layout && has(&layout, ID | IDENTIFIER);
        same || (has(&layout, IDENTIFIER) && has(&other.layout, IDENTIFIER))
    };
    if others.iter().all(can_tell) {
        return Ok(());
    }
    let message = "its records are of several events and carry no PERF_SAMPLE_IDENTIFIER";
    Err(Error::new(ErrorKind::InvalidInput, message).hinting("write the rings into a file each"))
}
