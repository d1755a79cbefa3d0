//! The parts of a written file that are no records: its header, its events and their ids, and facts about the machine.
//!
//! ```text
//! while it is written:  header | events, ids | facts, as records of perf's own | records
//! when it is finished:  the same, and behind it: table of facts | other facts | events | ids
//! ```
//! So a file is readable at any time. When it is finished, the header says where the records begin and where the other
//! parts lie.

use crate::Facts;
use crate::attrs::{Attr, clock_id};
use crate::machine;
use crate::metadata::{
    ARCH, CLOCK_DATA, EVENT_DESC, Features, HEADER, MAGIC, NRCPUS, OSRELEASE, PIPE_HEADER, SMALLEST_ATTR, TRACING_DATA,
};
use crate::noted::Noted;
use crate::tracing;
use crate::words::Words;
use perfweave::{Clock, ClockOffset, Error, Rings};

/// The multiple to which strings are padded (`NAME_ALIGN`, `tools/perf/util/header.c`).
const STRING: usize = 64;

/// Of `HEADER_CLOCK_DATA`.
const CLOCK_DATA_VERSION: u32 = 1;

/// A fact about the machine (`HEADER_*`).
#[derive(Debug)]
pub(crate) enum Section {
    /// It is in the file: where, and how long it is.
    There(u64, u64),
    /// It is written at the end.
    Later(Vec<u8>),
}

/// The first bytes of a file: its header, its events, and room for their ids.
#[derive(Debug)]
pub(crate) struct Front {
    /// The size of an attribute.
    used: usize,
    /// For how many ids each event has room.
    rooms: Vec<usize>,
    /// Where the front ends.
    pub(crate) end: u64,
}

impl Front {
    /// The front of a file with these events, each with room for `spare` more ids than it has.
    pub(crate) fn new(events: &[Noted], spare: usize) -> Self {
        let used = size_of_all(events);
        let rooms: Vec<_> = events.iter().map(|event| event.ids.len() + spare).collect();
        let end = HEADER + (events.len() * (used + 16)) as u64 + 8 * rooms.iter().sum::<usize>() as u64;
        Self { used, rooms, end }
    }

    /// The header of a file that is not finished.
    pub(crate) fn header(&self) -> Vec<u8> {
        unfinished(self.used + 16, self.rooms.len(), self.end)
    }

    /// The bytes of the front.
    pub(crate) fn bytes(&self, events: &[Noted]) -> Vec<u8> {
        let (count, each) = (self.rooms.len(), self.used + 16);
        let mut out = self.header();
        let mut at = HEADER + (count * each) as u64;
        // Events and ids for which there is no room are in the finished file alone: all are behind its records.
        for (event, room) in events.iter().zip(&self.rooms) {
            out.extend(sized(&event.as_written(), self.used));
            words(&mut out, [at, 8 * event.ids.len().min(*room) as u64]);
            at += 8 * *room as u64;
        }
        for (event, room) in events.iter().zip(&self.rooms) {
            words(&mut out, event.ids.iter().copied().chain(std::iter::repeat(0)).take(*room));
        }
        out
    }
}

/// The first bytes of a recording that is read while it is written (`struct perf_pipe_file_header`).
pub(crate) fn pipe_header() -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    words(&mut out, [PIPE_HEADER]);
    out
}

/// What such a recording says of an event among its records (`struct perf_record_header_attr`): its attribute, and ids.
pub(crate) fn described(event: &Noted, ids: &[u64]) -> Vec<u8> {
    let attr = event.as_written();
    let mut out = sized(&attr, used(attr.bytes()));
    words(&mut out, ids.iter().copied());
    out
}

/// The sections behind the records, and the header of the finished file. `data` is where the records begin, and how
/// many bytes they have.
pub(crate) fn behind(events: &[Noted], sections: &[(u32, Section)], data: [u64; 2]) -> (Vec<u8>, Vec<u8>) {
    // perf treats unknown members of attributes as an error, even if they are 0.
    let used = size_of_all(events);
    let names = (EVENT_DESC, Section::Later(describe(events, used, true)));
    let mut sections: Vec<_> = sections.iter().chain([&names]).collect();
    // Readers take the entries of the table by rising bit (`read_features`), and so does perf.
    sections.sort_by_key(|(feature, _)| *feature);
    let mut bits = [0u64; 4];
    let mut at = data[0] + data[1] + 16 * sections.len() as u64;
    let mut out = Vec::new();
    for (feature, section) in &sections {
        bits[*feature as usize / 64] |= 1 << (feature % 64);
        match section {
            Section::There(place, len) => words(&mut out, [*place, *len]),
            Section::Later(bytes) => {
                words(&mut out, [at, bytes.len() as u64]);
                at += bytes.len() as u64;
            }
        }
    }
    for (_, section) in &sections {
        if let Section::Later(bytes) = section {
            out.extend(bytes);
        }
    }
    let (attrs, each) = (at, used + 16);
    at += (events.len() * each) as u64;
    for event in events {
        out.extend(sized(&event.as_written(), used));
        let len = 8 * event.ids.len() as u64;
        words(&mut out, [at, len]);
        at += len;
    }
    words(&mut out, events.iter().flat_map(|event| &event.ids).copied());
    (out, header(each, attrs, events.len(), data, bits))
}

/// The header of a file that is not finished, by the size of an event, their number, and where the first bytes end.
pub(crate) fn unfinished(each: usize, count: usize, end: u64) -> Vec<u8> {
    header(each, HEADER, count, [end, 0], [0; 4])
}

/// `struct perf_file_header`
fn header(each: usize, attrs: u64, count: usize, [data, len]: [u64; 2], bits: [u64; 4]) -> Vec<u8> {
    let each = each as u64;
    let mut out = MAGIC.to_vec();
    // The last two are `event_types`, which perf ignores.
    words(&mut out, [HEADER, each, attrs, each * count as u64, data, len, 0, 0]);
    words(&mut out, bits);
    out
}

/// `HEADER_EVENT_DESC`: the events with their names, and with their ids.
pub(crate) fn describe(events: &[Noted], used: usize, ids: bool) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend([events.len() as u32, used as u32].iter().flat_map(|word| word.to_ne_bytes()));
    for event in events {
        let ids = if ids { event.ids.as_slice() } else { &[] };
        out.extend(sized(&event.as_written(), used));
        out.extend((ids.len() as u32).to_ne_bytes());
        string(&mut out, &event.name);
        words(&mut out, ids.iter().copied());
    }
    out
}

/// The facts about the machine in the file.
pub(crate) fn features(rings: &Rings) -> Result<Features, Error> {
    if let Some(facts) = rings.facts::<Facts>() {
        // They are about the recorded machine, and this may be another one.
        return Ok(facts.features.clone());
    }
    let mut features = Features::new();
    features.extend(tracing::data(rings)?.map(|data| (TRACING_DATA, data)));
    for (feature, text) in [(OSRELEASE, machine::release()), (ARCH, std::env::consts::ARCH.to_owned())] {
        let mut section = Vec::new();
        string(&mut section, &text);
        features.push((feature, section));
    }
    if let Some(counts) = machine::cpus() {
        features.push((NRCPUS, counts.iter().flat_map(|count| count.to_ne_bytes()).collect()));
    }
    if let Some(section) = clock_data(rings.clock()) {
        features.push((CLOCK_DATA, section));
    }
    Ok(features)
}

/// `HEADER_CLOCK_DATA`: what the wall clock and the clock of the records say at the same moment (`write_clock_data`,
/// `tools/perf/util/header.c`).
fn clock_data(clock: Clock) -> Option<Vec<u8>> {
    let (id, offset) = (clock_id(clock)?, clock.offset_to(Clock::Realtime)?);
    let now = clock.now()?;
    let mut out =
        [CLOCK_DATA_VERSION, id.cast_unsigned()].iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    // The wall clock is computed from `now`: read behind it, it would be of a later moment.
    words(&mut out, [offset.apply(now), now]);
    Some(out)
}

/// The same, read.
pub(crate) fn wall_clock(features: &Features, clock: Clock) -> Option<ClockOffset> {
    if clock == Clock::Realtime {
        // It is the wall clock.
        return Some(ClockOffset { nanoseconds: 0, uncertainty: Some(0) });
    }
    let (_, section) = features.iter().find(|(feature, _)| *feature == CLOCK_DATA)?;
    let mut input = Words(section);
    let (version, id, wall, time) = (input.u32()?, input.u32()?, input.u64()?, input.u64()?);
    let is_known = version == CLOCK_DATA_VERSION && clock_id(clock) == Some(id.cast_signed());
    // The section does not say how far its two times are apart.
    is_known.then_some(ClockOffset { nanoseconds: wall.wrapping_sub(time).cast_signed(), uncertainty: None })
}

/// `struct perf_header_string`
fn string(out: &mut Vec<u8>, text: &str) {
    let len = (text.len() + 1).next_multiple_of(STRING);
    out.extend((len as u32).to_ne_bytes());
    out.extend(text.bytes().chain(std::iter::repeat(0)).take(len));
}

fn words(out: &mut Vec<u8>, words: impl IntoIterator<Item = u64>) {
    out.extend(words.into_iter().flat_map(u64::to_ne_bytes));
}

/// The size that the attributes of all events need.
pub(crate) fn size_of_all(events: &[Noted]) -> usize {
    events.iter().map(|event| used(event.as_written().bytes())).max().unwrap_or(SMALLEST_ATTR)
}

/// The size of the oldest version of an attribute that has all members that this one sets (`PERF_ATTR_SIZE_VER0` and so
/// on: 64, 72, 80, 96 and so on, but not 88).
fn used(attr: &[u8]) -> usize {
    let len = attr.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(8));
    if len == 88 { 96 } else { len.max(SMALLEST_ATTR) }
}

/// An attribute cut to a size, with that size in it.
fn sized(attr: &Attr, used: usize) -> Vec<u8> {
    let attr = attr.bytes();
    let mut out = attr[..used.min(attr.len())].to_vec();
    out[4..8].copy_from_slice(&(used as u32).to_ne_bytes());
    out
}
