//! An event as a file describes it.

use crate::attrs::{self, ADDR, Attr, CPU, ID, IDENTIFIER, IP, TIME};
use crate::chain::{Counted, NOBODY};
use perf_event_open_sys::bindings;
use perfweave::{Bytes, Clock, Error, ErrorKind, Layout, Source};

/// An event as the file describes it.
#[derive(Debug)]
pub(crate) struct Noted {
    pub(crate) attr: Attr,
    pub(crate) name: String,
    pub(crate) ids: Vec<u64>,
    /// The layout of its records in the rings.
    pub(crate) layout: Layout,
    /// The fields that are added to its records.
    pub(crate) adds: u64,
    /// Where the CPU and the time lie in a sample of the rings, if they are there: for each record they are read.
    samples: [Option<usize>; 2],
}

impl Noted {
    fn new(attr: Attr, name: String, adds: bool) -> Self {
        let layout = attr.layout();
        let lacks = |bits: u64| adds && layout.sample_type() & bits == 0;
        let mut added = if lacks(CPU) { CPU } else { 0 };
        // `perf script` does without these fields only for tracepoints (`perf_session__check_output_opt`,
        // builtin-script.c).
        if lacks(IP | ADDR) && !attr.is_tracepoint() {
            added |= IP;
        }
        let samples = [CPU, TIME]
            .map(|field| (layout.sample_type() & field != 0).then(|| attrs::in_samples(layout.sample_type(), field)));
        Self { attr, name, ids: Vec::new(), layout, adds: added, samples }
    }

    pub(crate) fn of(source: &Source, adds: bool) -> Self {
        // perf knows a tracepoint by `category:name` alone. `Source::name` has a word before it.
        Self::new(Attr::of(source.attr_bytes()), source.tracepoint().unwrap_or(source.name()).to_owned(), adds)
    }

    /// The event of rings whose events are unknown.
    pub(crate) fn unknown(layout: Layout, clock: Clock, adds: bool) -> Self {
        Self::new(Attr::of_output(&layout, clock), "unknown".into(), adds)
    }

    /// What a record says of itself when it is in the file. `cpu` is that of its ring.
    pub(crate) fn counted(&self, kind: u32, record: Bytes<'_>, cpu: u32) -> Counted {
        let is_sample = kind == bindings::PERF_RECORD_SAMPLE;
        let [in_record, time] = if is_sample {
            self.samples.map(|at| record.u64(at?))
        } else {
            [CPU, TIME].map(|field| attrs::field(record, &self.layout, field))
        };
        // The added CPU counts too: a verifier finds it in the file, and must count the same.
        let added = self.adds & CPU != 0 && (is_sample || self.layout.sample_id_all());
        let cpu = if added { Some(cpu) } else { in_record.map(cpu_of) };
        Counted { cpu: cpu.unwrap_or(NOBODY), time, lost: None }
    }

    /// The attribute as written to the file.
    pub(crate) fn as_written(&self) -> Attr {
        self.attr.sampling(self.adds)
    }
}

/// Of `struct { u32 cpu, res; }`.
pub(crate) fn cpu_of(field: u64) -> u32 {
    let [a, b, c, d, ..] = field.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Checks that perf can tell the events' records apart (`evlist__valid_sample_type`, `tools/perf/util/evlist.c`).
pub(crate) fn check(events: &[Noted]) -> Result<(), Error> {
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
