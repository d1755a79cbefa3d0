//! The metadata of a recording, before and after its records: events, and facts about the machine.

use crate::attrs::Attr;
use crate::file::{Input, malformed, unreadable};
use crate::pieces::{Piece, walk};
use crate::words::Words;
use perfweave::{Error, ErrorKind};
use std::collections::BTreeSet;
use std::ops::Range;

/// The first bytes of a recording, `PERF_MAGIC2`.
pub(crate) const MAGIC: &[u8; 8] = b"PERFILE2";

/// `sizeof(struct perf_file_header)`, and of `struct perf_pipe_file_header`.
pub(crate) const HEADER: u64 = 104;
pub(crate) const PIPE_HEADER: u64 = 16;

/// `PERF_ATTR_SIZE_VER0`, the size of an attribute that gives none.
pub(crate) const SMALLEST_ATTR: usize = 64;

/// Sections that are not records, by their bits in the header (`HEADER_*`, `tools/perf/util/header.h`).
pub(crate) const TRACING_DATA: u32 = 1;
pub(crate) const BUILD_ID: u32 = 2;
pub(crate) const OSRELEASE: u32 = 4;
pub(crate) const ARCH: u32 = 6;
pub(crate) const NRCPUS: u32 = 7;
pub(crate) const EVENT_DESC: u32 = 12;
const DIR_FORMAT: u32 = 24;
pub(crate) const CLOCK_DATA: u32 = 29;

/// The sections that are kept: facts about the recorded machine that do not depend on which records are read. Besides
/// those above: build ids, host name, version of perf, processor, memory, command line, topology, PMUs, clocks.
const KEPT: [u32; 16] =
    [TRACING_DATA, BUILD_ID, 3, OSRELEASE, 5, ARCH, NRCPUS, 8, 9, 10, 11, EVENT_DESC, 13, 14, 16, CLOCK_DATA];

/// Records of perf itself (`enum perf_user_event_type`, `tools/lib/perf/include/perf/event.h`).
pub(crate) const HEADER_ATTR: u32 = 64;
pub(crate) const HEADER_TRACING_DATA: u32 = 66;
pub(crate) const HEADER_BUILD_ID: u32 = 67;
pub(crate) const HEADER_FEATURE: u32 = 80;

/// What a recording says about its machine: sections by their numbers.
pub(crate) type Features = Vec<(u32, Vec<u8>)>;

/// An event that was recorded.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) attr: Attr,
    pub(crate) ids: Vec<u64>,
    pub(crate) name: Option<String>,
}

/// Everything except records.
#[derive(Debug)]
pub(crate) struct Metadata {
    pub(crate) events: Vec<Described>,
    pub(crate) features: Features,
    /// The range of the records in the file.
    pub(crate) data: Range<u64>,
    /// Whether the program that wrote it did not get to its end.
    pub(crate) is_unfinished: bool,
    /// Whether there are more records in other files of its directory.
    pub(crate) has_parts: bool,
}

impl Metadata {
    pub(crate) fn read(input: &mut Input) -> Result<Self, Error> {
        let mut head = [0; HEADER as usize];
        let there = input.len.min(HEADER) as usize;
        input.fill(0, &mut head[..there])?;
        check_begin(&head[..there])?;
        if (there as u64) < PIPE_HEADER {
            return Err(input.truncated("header", PIPE_HEADER));
        }
        let mut words = Words(&head[8..]);
        let size = words.u64().unwrap_or(0);
        let mut metadata = if size == PIPE_HEADER {
            Self::read_pipe(input)?
        } else if (there as u64) < HEADER {
            return Err(input.truncated("header", HEADER));
        } else {
            Self::read_file(input, size, words).and_then(|read| read.ok_or_else(|| malformed("header", 8)))?
        };
        metadata.name();
        metadata.has_parts = metadata.features.iter().any(|(feature, _)| *feature == DIR_FORMAT);
        // A recording that is written again is one file, so this must not be among its facts.
        metadata.features.retain(|(feature, _)| *feature != DIR_FORMAT);
        if metadata.events.is_empty() {
            return Err(no_event());
        }
        Ok(metadata)
    }

    /// A file in which perf could seek. `None` if the header is malformed.
    fn read_file(input: &mut Input, size: u64, mut words: Words<'_>) -> Result<Option<Self>, Error> {
        let mut next = || words.u64().unwrap_or(0);
        let (attr_size, attrs, data, _types) = (next(), [next(), next()], [next(), next()], [next(), next()]);
        let bits = [next(), next(), next(), next()];
        // Each entry ends with the place of its ids, 16 bytes, which `read_attrs` cuts off.
        if size < HEADER || !attr_size.is_multiple_of(8) || attr_size < SMALLEST_ATTR as u64 + 16 {
            return Ok(None);
        }
        let [at, len] = data;
        // What has no records has a record of perf's own instead.
        let is_unfinished = len == 0;
        if is_unfinished && at < HEADER {
            return Ok(None);
        }
        // A forged header may let the records begin behind the end of the file. Then the next check refuses it.
        let end = if is_unfinished { input.len.max(at) } else { at.saturating_add(len) };
        if end > input.len {
            return Err(input.truncated("records", end));
        }
        let events = read_attrs(input, attr_size as usize, attrs)?;
        // What comes behind the records is not there yet, whatever the header says.
        let features = if is_unfinished {
            // Only in pipe mode are there events among the records.
            read_among(input, &(at..end), &mut Vec::new())?
        } else {
            read_features(input, end, bits)?
        };
        Ok(Some(Self { events, features, data: at..end, is_unfinished, has_parts: false }))
    }

    /// A file into which perf's output was redirected: the metadata is among the records.
    fn read_pipe(input: &mut Input) -> Result<Self, Error> {
        let data = PIPE_HEADER..input.len;
        let mut events = Vec::new();
        let features = read_among(input, &data, &mut events)?;
        Ok(Self { events, features, data, is_unfinished: false, has_parts: false })
    }

    /// Gives events the names that perf has stored in the same order.
    fn name(&mut self) {
        let Some((_, described)) = self.features.iter().find(|(feature, _)| *feature == EVENT_DESC) else { return };
        let mut names = Words(described);
        let _ = name_all(&mut self.events, &mut names);
        self.features.retain(|(feature, _)| *feature != EVENT_DESC);
    }
}

/// Refuses a file that does not begin as a recording of this machine does. All readers say it in these words.
pub(crate) fn check_begin(head: &[u8]) -> Result<(), Error> {
    const PACKED: [(&[u8], &str); 5] = [
        (b"\x1f\x8b", "gzip"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
    ];
    let magic = &head[..head.len().min(MAGIC.len())];
    if magic == MAGIC {
        return Ok(());
    }
    if magic.is_empty() {
        return Err(unreadable("it is empty", "record anew: a recorder writes the first bytes at its start"));
    }
    if magic.iter().rev().eq(MAGIC) {
        let cure = "read it on a machine with that order; `perf script -i` reads it here";
        return Err(unreadable("it is of a machine with the other byte order", cure));
    }
    if let Some((_, by)) = PACKED.iter().find(|(begin, _)| head.starts_with(begin)) {
        let hint = format!("unpack it into a file: {by} -dc FILE > perf.data");
        return Err(Error::new(ErrorKind::Recording, format!("it is compressed by {by}")).hinting(hint));
    }
    let what = "it is no recording of perf(1), or one from before Linux 3.0";
    Err(unreadable(format!("it begins with {magic:02x?} and not with PERFILE2: {what}"), ""))
}

/// Nobody can say what its records are.
pub(crate) fn no_event() -> Error {
    unreadable("it describes no event", "a recording in pipe mode must be kept from its first byte on")
}

/// The sections and the events that are among the records.
fn read_among(input: &mut Input, data: &Range<u64>, events: &mut Vec<Described>) -> Result<Features, Error> {
    let (mut features, mut tracing, mut kept, mut build_ids) = (Features::new(), None, 0, Vec::new());
    walk(input, data, |at, piece| {
        let Piece::Other { kind, misc, body, .. } = piece else { return Ok(()) };
        let mut words = Words(body);
        if let HEADER_ATTR | HEADER_FEATURE | HEADER_BUILD_ID = kind {
            // A byte of these takes several of memory (`TIMES`), so they may not fit although the file does.
            kept += body.len() as u64;
            input.fits(kept)?;
        }
        match kind {
            HEADER_ATTR => {
                let event = piped_attr(words).ok_or_else(|| malformed("event", at))?;
                // All events are there before their names. Later ones are more ids of one of them, or an event that was
                // not known.
                let is_later = features.iter().any(|(feature, _)| *feature == EVENT_DESC);
                let same = |known: &Described| known.attr == event.attr;
                let all = || events.iter().enumerate().filter(|(_, known)| is_later && same(known));
                // Of several with equal attributes, it is the one whose first id comes first here too.
                let its = all().find(|(_, known)| known.ids.first() == event.ids.first()).or_else(|| all().next());
                match its.map(|(at, _)| at) {
                    Some(at) => {
                        let known = &mut events[at].ids;
                        let again = usize::from(known.first() == event.ids.first());
                        known.extend(event.ids.iter().skip(again));
                    }
                    None => events.push(event),
                }
            }
            HEADER_BUILD_ID => {
                // As in the table of a file that is not piped.
                build_ids.extend(0u32.to_ne_bytes());
                // Fits: the record itself, with its header of 8 bytes, has a size of 16 bits.
                build_ids.extend([misc, 8 + body.len() as u16].iter().flat_map(|half| half.to_ne_bytes()));
                build_ids.extend(body);
            }
            // `walk` passes over the data, which lies behind the record. It is read at the end.
            HEADER_TRACING_DATA => tracing = words.u32().map(|size| (at + 8 + body.len() as u64, size)),
            HEADER_FEATURE => {
                let feature = words.u64().and_then(|feature| u32::try_from(feature).ok());
                let feature = feature.ok_or_else(|| malformed("feature", at))?;
                if feature == DIR_FORMAT || KEPT.contains(&feature) {
                    features.push((feature, words.0.to_vec()));
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    if let Some((at, size)) = tracing {
        features.push((TRACING_DATA, input.section("formats of tracepoints", at, size.into())?));
    }
    if !build_ids.is_empty() {
        features.push((BUILD_ID, build_ids));
    }
    // perf writes one of each. A file that is written of this has a bit for each number, and a section for each bit.
    let mut seen = BTreeSet::new();
    features.retain(|(feature, _)| seen.insert(*feature));
    Ok(features)
}

/// A sequence of `struct perf_file_attr`: an attribute, and the offset of its ids.
pub(crate) fn read_attrs(input: &mut Input, each: usize, [at, size]: [u64; 2]) -> Result<Vec<Described>, Error> {
    let section = input.section("events", at, size)?;
    let mut events = Vec::new();
    for entry in section.chunks_exact(each) {
        let (attr, mut ids) = (&entry[..each - 16], Words(&entry[each - 16..]));
        let stated = attr_size(attr).filter(|stated| *stated <= attr.len()).ok_or_else(|| malformed("events", at))?;
        let ids = input.section("ids", ids.u64().unwrap_or(0), ids.u64().unwrap_or(0))?;
        events.push(Described { attr: Attr::of(&attr[..stated]), ids: all_u64(&ids), name: None });
    }
    Ok(events)
}

/// `struct perf_record_header_attr`: an attribute, followed by its ids.
pub(crate) fn piped_attr(words: Words<'_>) -> Option<Described> {
    let (attr, ids) = words.0.split_at_checked(attr_size(words.0)?)?;
    Some(Described { attr: Attr::of(attr), ids: all_u64(ids), name: None })
}

/// The length that an attribute states.
fn attr_size(attr: &[u8]) -> Option<usize> {
    let stated = Words(attr.get(4..)?).u32()? as usize;
    match stated {
        0 => Some(SMALLEST_ATTR),
        _ => Some(stated).filter(|stated| *stated >= SMALLEST_ATTR),
    }
}

fn all_u64(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).filter_map(|word| Words(word).u64()).collect()
}

/// The sections after the records that are kept. First come the offsets of all of them, by rising bit.
fn read_features(input: &mut Input, at: u64, bits: [u64; 4]) -> Result<Features, Error> {
    let count: u32 = bits.iter().map(|word| word.count_ones()).sum();
    let table = input.section("features", at, 16 * u64::from(count))?;
    let set = (0..256u32).filter(|bit| bits[*bit as usize / 64] >> (bit % 64) & 1 == 1);
    let mut features = Features::new();
    for (feature, place) in set.zip(table.chunks_exact(16)) {
        if feature == DIR_FORMAT {
            // Its content is not needed: that it is there says that other files have records too.
            features.push((feature, Vec::new()));
        } else if KEPT.contains(&feature) {
            let mut words = Words(place);
            let section = input.section("features", words.u64().unwrap_or(0), words.u64().unwrap_or(0))?;
            features.push((feature, section));
        }
    }
    Ok(features)
}

/// `HEADER_EVENT_DESC`: for each event an attribute, the number of its ids, a name, and the ids. Names up to the first
/// malformed one.
fn name_all(events: &mut [Described], words: &mut Words<'_>) -> Option<()> {
    // A forged count takes no memory: only events that there are get names.
    let (_count, attr_size) = (words.u32()?, words.u32()?);
    for event in events {
        words.bytes(usize::try_from(attr_size).ok()?)?;
        let ids = words.u32()?;
        event.name = Some(words.string()?).filter(|name| !name.is_empty());
        words.bytes(usize::try_from(ids).ok()?.checked_mul(8)?)?;
    }
    Some(())
}
