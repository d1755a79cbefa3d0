//! Writing a stream as a recording.

use crate::error::{Error, ErrorKind};
use crate::order::event::{Event, Item, Lost};
use crate::perf_data::attrs::{self, in_samples, in_trailers};
use crate::perf_data::metadata::{ARCH, EVENT_DESC, HEADER, MAGIC, NRCPUS, OSRELEASE, SMALLEST_ATTR, TRACING_DATA};
use crate::perf_data::noted::{IP, Noted, check};
use crate::perf_data::output::Output;
use crate::perf_data::pieces::OWN_KINDS;
use crate::perf_data::tracing;
use crate::record::clock::Clock;
use crate::record::{CPU, ID, IDENTIFIER, Kind, Layout, Record, TIME, TRAILER_ORDER};
use crate::rings::{Features, Rings, Source};
use crate::sys::{machine, perf};
use perf_event_open_sys::bindings::PERF_TYPE_TRACEPOINT;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Writes events, as they are yielded, into a `perf.data` file that `perf script` and `perf report` read.
///
/// ```no_run
/// use perfweave::{Order, Reader, Rings, perf_data};
/// use std::time::{Duration, Instant};
///
/// let rings = Rings::options().tracepoint("sched:sched_switch").open()?;
/// let mut reader = Reader::new(rings, Order::new())?;
/// let mut writer = perf_data::Writer::create("perf.data", reader.rings())?;
/// reader.set_deadline(Some(Instant::now() + Duration::from_secs(1)))?;
/// while let Some(event) = reader.next()? {
///     writer.write(&event.event())?;
/// }
/// writer.finish()?;
/// // perf script -i perf.data
/// # Ok::<(), perfweave::Error>(())
/// ```
///
/// # Order
///
/// perf sorts records by the kernel's time, and leaves records with equal times in the order of the file. So it shows the events in the
/// order in which they were written, if the key is the kernel's time ([`Key::Time`](crate::Key::Time)) and no event was late. It moves a
/// late event back to the place of its time, as far as it still holds the later events.
///
/// # What is written
///
/// - Records, byte by byte. Two fields are added if the rings do not record them. One is the CPU (`PERF_SAMPLE_CPU`), because a file has no
///   rings that show it. The other is, in samples of events that are no tracepoints, the instruction pointer (`PERF_SAMPLE_IP`), with value
///   0: `perf script` insists on it. Records of a recording are not changed.
/// - [`Lost`] as a LOST record, before the next record of its CPU and with that record's time, as the kernel writes it. Losses of one CPU
///   with no record between them become one LOST record with the sum of their counts.
/// - Not gaps, anomalies, damage, [`EarlyRelease`](crate::EarlyRelease) and [`Untraced`](crate::Untraced), for which perf has no record.
///   Not records of kinds from 64 on either: the kernel writes none, and in a file they are perf's own. [`Written::left_out`] counts all of
///   these.
/// - The events' names and attributes; the formats of tracepoints, from this machine's tracefs or, if the rings are those of a
///   recording, from there; the kernel's release, the architecture and the number of CPUs.
///
/// # Names
///
/// perf finds the name of a process by a COMM record, and the names of functions by MMAP records. The kernel writes these only when a
/// process starts, is renamed or maps a file, and only if a source asks for them ([`RingOptions::records`](crate::RingOptions::records)
/// with [`Kind::COMM`] and [`Kind::MMAP2`]). perf(1) synthesizes such records for running programs, and for the kernel. A `Writer` does
/// not. For programs that ran before the rings were opened, `perf script` shows `:1234` instead of the process's name and `[unknown]`
/// instead of a function. In a profile of a whole machine 98 % of the frames had no name, and 21 % in perf's own recording.
///
/// As long as that is so:
///
/// - Ask for these records, and start the traced program after the rings are opened. Its names are then in the recording.
/// - Names of threads in tracepoints, such as `prev_comm` of `sched:sched_switch`, are always there.
/// - Name addresses while the traced processes run, as the example `profile` does.
/// - Record with `perf record` and read that file with [`open`](crate::perf_data::open). The file has the names, and writing it again keeps
///   them.
///
/// # The end
///
/// The file is complete once [`Writer::finish`] has returned without an error. perf and [`open`](crate::perf_data::open) refuse an
/// incomplete file. If the file cannot be written, every later call gives the first error again.
///
/// A forked child can only drop its parent's writer, and that writes nothing.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: Output,
    events: Vec<Noted>,
    /// How many of the events are the rings' sources. After them come events that only records name.
    sources: usize,
    /// The ids that were seen. The file lists each with its event.
    ids: HashSet<u64>,
    features: Features,
    clock: Clock,
    /// Whether fields are added that records lack.
    adds: bool,
    /// Losses that wait for the next record of their CPU, by CPU.
    lost: HashMap<u32, Lost>,
    time: u64,
    /// Bytes of records.
    data: u64,
    /// How many bytes there were when perf was last told that all earlier records are in the file.
    round: u64,
    written: Written,
}

/// What a [`Writer`] has written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Records, without LOST records.
    pub records: u64,
    /// The sum of the LOST records that were written.
    pub lost: u64,
    /// Events for which perf has no record: gaps, anomalies, damage, notices, records of kinds from 64 on, and those of BPF ring buffers.
    pub left_out: u64,
}

/// After how many bytes of records perf is told to show what it has. Otherwise it would hold the whole file.
const ROUND: u64 = 1 << 20;
/// `PERF_RECORD_FINISHED_ROUND`
const FINISHED_ROUND: u32 = 68;

/// The multiple to which strings are padded (`NAME_ALIGN`, `tools/perf/util/header.c`).
const STRING: usize = 64;

impl Writer {
    /// Creates a file, or replaces one, for events of these rings. Readers and merges return their rings:
    /// [`Reader::rings`](crate::Reader::rings).
    ///
    /// # Errors
    /// [`ErrorKind::Output`] if the file cannot be created; [`ErrorKind::InvalidInput`] if events with records of different layouts do not
    /// say which is which; [`ErrorKind::Permission`], [`ErrorKind::NotFound`] or [`ErrorKind::System`] if a tracepoint's format
    /// cannot be read.
    pub fn create(path: impl AsRef<Path>, rings: &Rings) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        Self::begin(&path, rings).map_err(|why| unwritable(&path, why))
    }

    fn begin(path: &Path, rings: &Rings) -> Result<Self, Error> {
        // A recording of perf has all fields that perf wants.
        let adds = !rings.are_complete();
        let events: Vec<_> = rings.sources().iter().map(|source| Noted::of(source, adds)).collect();
        check(&events)?;
        let features = features(rings)?;
        let mut file = Output::create(path)?;
        // Until the file is finished, its header says that it is not.
        file.put(&[0; HEADER as usize])?;
        Ok(Self {
            path: path.to_owned(),
            file,
            sources: events.len(),
            events,
            ids: HashSet::new(),
            features,
            clock: rings.clock(),
            adds,
            lost: HashMap::new(),
            time: 0,
            data: 0,
            round: 0,
            written: Written::default(),
        })
    }

    /// Writes an event after those before it. The time and the memory that this takes do not grow with earlier events. It allocates memory
    /// for the first event of each id, some 40 bytes, and for the first loss of each CPU, some 100 bytes. It blocks as writing to a file
    /// does, once for 256 KiB of records.
    ///
    /// # Errors
    /// [`ErrorKind::Output`] if the file cannot be written; it is then useless. [`ErrorKind::InvalidInput`] if the record is too long to
    /// have its CPU added, or if its layout differs from that of the others and it does not name its event. It is then not written, and the
    /// writer can go on. [`ErrorKind::Forked`].
    pub fn write(&mut self, event: &Event<'_>) -> Result<(), Error> {
        self.check()?;
        let wrote = match event.item() {
            Item::Record(record) if record.kind().0 < OWN_KINDS && !record.layout().is_ring_buffer() => {
                self.record(&record)
            }
            Item::Lost(mut lost) => {
                // At most one loss of each CPU waits, so that the cost does not depend on how many come in a row.
                lost.count = lost.count.saturating_add(self.lost.get(&lost.cpu).map_or(0, |before| before.count));
                self.lost.insert(lost.cpu, lost);
                Ok(())
            }
            // It is not about the traced machine.
            Item::Flushed => Ok(()),
            _ => {
                self.written.left_out += 1;
                Ok(())
            }
        };
        wrote.map_err(|why| unwritable(&self.path, why))
    }

    /// Completes the file and closes it. Blocks as writing to a file does. Does not wait until the file is on a disk.
    ///
    /// # Errors
    /// [`ErrorKind::Output`] if the file cannot be written, or could not be written before: the first error. [`ErrorKind::Forked`].
    pub fn finish(mut self) -> Result<Written, Error> {
        self.check()?;
        let begin = self.end().map_err(|why| unwritable(&self.path, why))?;
        let Self { path, file, written, .. } = self;
        file.finish(&begin).map_err(|why| unwritable(&path, why))?;
        Ok(written)
    }

    /// Whether the file belongs to this process, and has been written without an error so far.
    fn check(&self) -> Result<(), Error> {
        if !self.file.is_here() {
            return Err(Error::forked());
        }
        self.file.check().map_err(|why| unwritable(&self.path, why))
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let at = self.event_of(record)?;
        if let Some(id) = record.id().filter(|id| *id != 0)
            && (at >= self.sources || record.source().is_some())
            && self.ids.insert(id)
        {
            self.events[at].ids.push(id);
        }
        self.time = record.time().unwrap_or(self.time);
        if !self.lost.is_empty()
            && let Some(lost) = self.lost.remove(&record.cpu())
        {
            self.lost_record(&lost, at, Some(record))?;
        }
        let (first, second) = record.as_bytes().as_slices();
        self.put(record.kind(), [first, second], at, record.cpu())?;
        self.written.records += 1;
        if self.data - self.round >= ROUND {
            self.round = self.data;
            let header = header(Kind(FINISHED_ROUND), 0, 8);
            self.bytes(&header)?;
        }
        Ok(())
    }

    /// The event of a record.
    fn event_of(&mut self, record: &Record<'_>) -> Result<usize, Error> {
        let layout = record.origin().layout;
        let named = record.source().filter(|source| *source < self.sources);
        let known = named.filter(|source| self.events[*source].layout == layout);
        if let Some(at) = known.or_else(|| self.events.iter().position(|event| event.layout == layout)) {
            return Ok(at);
        }
        self.events.push(Noted::unknown(layout, self.clock, self.adds));
        check(&self.events).inspect_err(|_| drop(self.events.pop()))?;
        Ok(self.events.len() - 1)
    }

    /// Writes a LOST record before a record of the same CPU. No record follows the last losses.
    fn lost_record(&mut self, lost: &Lost, at: usize, next: Option<&Record<'_>>) -> Result<(), Error> {
        let layout = self.events[at].layout;
        // Header, id, count, and six fields of `struct sample_id` at most.
        let mut bytes = SmallVec::<[u8; 96]>::from_slice(&[0; 8]);
        bytes.extend(lost.id.to_ne_bytes());
        bytes.extend(lost.count.to_ne_bytes());
        if layout.sample_id_all() {
            for field in TRAILER_ORDER.iter().filter(|field| layout.sample_type() & **field != 0) {
                let value = match (*field, next) {
                    (ID | IDENTIFIER, _) => lost.id,
                    (field, Some(next)) => attrs::field(next.as_bytes(), &layout, field).unwrap_or(0),
                    (TIME, None) => self.time,
                    (CPU, None) => cpu_field(lost.cpu),
                    _ => 0,
                };
                bytes.extend(value.to_ne_bytes());
            }
        }
        let header = header(Kind::LOST, 0, bytes.len() as u16);
        bytes[..8].copy_from_slice(&header);
        self.put(Kind::LOST, [&bytes, &[]], at, lost.cpu)?;
        self.written.lost = self.written.lost.saturating_add(lost.count);
        Ok(())
    }

    /// Writes a record that lies in up to two pieces, with the fields that are added to its event's records.
    fn put(&mut self, kind: Kind, [first, second]: [&[u8]; 2], at: usize, cpu: u32) -> Result<(), Error> {
        let Noted { ref layout, adds, .. } = self.events[at];
        let (sample_type, len) = (layout.sample_type(), first.len() + second.len());
        let place = |field| match kind {
            Kind::SAMPLE => Some(in_samples(sample_type, field)),
            // `struct sample_id` has no instruction pointer.
            _ if field == IP || !layout.sample_id_all() => None,
            _ => len.checked_sub(in_trailers(sample_type, field)),
        };
        let added = [(IP, 0), (CPU, cpu_field(cpu))].into_iter().filter(|(field, _)| adds & field != 0);
        let added: SmallVec<[(usize, u64); 2]> =
            added.filter_map(|(field, value)| Some((place(field)?, value))).collect();
        if added.is_empty() {
            self.bytes(first)?;
            return self.bytes(second);
        }
        let size = u16::try_from(len + 8 * added.len()).map_err(|_| too_long(len))?;
        // A header is a multiple of 8 bytes long and aligned to one, so it is never in two pieces.
        let mut header: [u8; 8] = first.first_chunk().copied().unwrap_or_default();
        header[6..8].copy_from_slice(&size.to_ne_bytes());
        self.bytes(&header)?;
        let mut from = header.len();
        for (to, value) in added {
            self.part(first, second, from..to)?;
            self.bytes(&value.to_ne_bytes())?;
            from = to;
        }
        self.part(first, second, from..len)
    }

    /// Writes a part of two pieces.
    fn part(&mut self, first: &[u8], second: &[u8], Range { start, end }: Range<usize>) -> Result<(), Error> {
        let cut = first.len();
        self.bytes(&first[start.min(cut)..end.min(cut)])?;
        self.bytes(&second[start.max(cut) - cut..end.max(cut) - cut])
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.put(bytes)?;
        self.data += bytes.len() as u64;
        Ok(())
    }

    /// Writes the sections after the records. Returns the header.
    fn end(&mut self) -> Result<Vec<u8>, Error> {
        if self.events.is_empty() {
            // perf reads no file without an event.
            self.events.push(Noted::unknown(Layout::RAW, self.clock, self.adds));
        }
        let mut lost: Vec<_> = std::mem::take(&mut self.lost).into_values().collect();
        lost.sort_by_key(|lost| lost.cpu);
        for lost in lost {
            let at = lost.source.filter(|source| *source < self.sources).unwrap_or(0);
            self.lost_record(&lost, at, None)?;
        }
        if self.data == 0 {
            // Unfinished files have no data.
            self.bytes(&header(Kind(FINISHED_ROUND), 0, 8))?;
        }
        let attrs: Vec<_> = self.events.iter().map(Noted::as_written).collect();
        // perf treats unknown members as an error, even if they are 0.
        let used = attrs.iter().map(|attr| used(perf::attr_bytes(attr))).max().unwrap_or(SMALLEST_ATTR);
        let attrs: Vec<_> = attrs.iter().map(|attr| sized(perf::attr_bytes(attr), used)).collect();
        let described = self.describe(&attrs, used);
        self.features.push((EVENT_DESC, described));
        self.features.sort_by_key(|(feature, _)| *feature);
        let data_end = HEADER + self.data;
        let mut bits = [0u64; 4];
        let mut at = data_end + 16 * self.features.len() as u64;
        let mut behind = Vec::new();
        for (feature, section) in &self.features {
            bits[*feature as usize / 64] |= 1 << (feature % 64);
            behind.extend([at, section.len() as u64].iter().flat_map(|word| word.to_ne_bytes()));
            at += section.len() as u64;
        }
        behind.extend(self.features.iter().flat_map(|(_, section)| section));
        let attrs_at = at;
        at += (attrs.len() * (used + 16)) as u64;
        for (attr, event) in attrs.iter().zip(&self.events) {
            behind.extend(attr);
            let len = 8 * event.ids.len() as u64;
            behind.extend([at, len].iter().flat_map(|word| word.to_ne_bytes()));
            at += len;
        }
        behind.extend(self.events.iter().flat_map(|event| &event.ids).flat_map(|id| id.to_ne_bytes()));
        let each = used as u64 + 16;
        let head = [HEADER, each, attrs_at, each * attrs.len() as u64, HEADER, self.data, 0, 0];
        let words = head.into_iter().chain(bits).flat_map(u64::to_ne_bytes);
        self.file.put(&behind)?;
        Ok(MAGIC.iter().copied().chain(words).collect())
    }

    /// `HEADER_EVENT_DESC`: the events with their names.
    fn describe(&self, attrs: &[Vec<u8>], used: usize) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend([attrs.len() as u32, used as u32].iter().flat_map(|word| word.to_ne_bytes()));
        for (attr, event) in attrs.iter().zip(&self.events) {
            out.extend(attr);
            out.extend((event.ids.len() as u32).to_ne_bytes());
            string(&mut out, &event.name);
            out.extend(event.ids.iter().flat_map(|id| id.to_ne_bytes()));
        }
        out
    }
}

fn unwritable(path: &Path, why: Error) -> Error {
    why.during(&format!("cannot write {}", path.display()))
}

/// The record is not written, and the writer can go on.
fn too_long(size: usize) -> Error {
    let message = format!("a record of {size} bytes is too long to have its CPU added");
    Error::new(ErrorKind::InvalidInput, message).hinting("ask for it: PERF_SAMPLE_CPU | PERF_SAMPLE_IP in sample_type")
}

/// The facts about the machine in the file.
fn features(rings: &Rings) -> Result<Features, Error> {
    if let Some(recording) = rings.recording() {
        return Ok(recording.as_ref().clone());
    }
    let mut features = Features::new();
    let is_tracepoint = |source: &&Source| source.attr.type_ == PERF_TYPE_TRACEPOINT;
    let tracepoints = rings.sources().iter().filter(is_tracepoint);
    let tracepoints: Vec<_> = tracepoints.map(|source| (source.attr.config, source.tracepoint())).collect();
    if !tracepoints.is_empty() {
        features.push((TRACING_DATA, tracing::data(&tracepoints)?));
    }
    for (feature, text) in [(OSRELEASE, machine::release()), (ARCH, std::env::consts::ARCH.to_owned())] {
        let mut section = Vec::new();
        string(&mut section, &text);
        features.push((feature, section));
    }
    if let (Ok(possible), Ok(online)) = (machine::possible_cpus(), machine::online_cpus()) {
        let counts = [possible.len() as u32, online.len() as u32];
        features.push((NRCPUS, counts.iter().flat_map(|count| count.to_ne_bytes()).collect()));
    }
    Ok(features)
}

/// `struct perf_header_string`
fn string(out: &mut Vec<u8>, text: &str) {
    let len = (text.len() + 1).next_multiple_of(STRING);
    out.extend((len as u32).to_ne_bytes());
    out.extend(text.bytes().chain(std::iter::repeat(0)).take(len));
}

/// The size of the oldest version of an attribute that has all members that this one sets (`PERF_ATTR_SIZE_VER0` and so on: 64, 72, 80, 96
/// and so on, but not 88).
fn used(attr: &[u8]) -> usize {
    let len = attr.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(8));
    if len == 88 { 96 } else { len.max(SMALLEST_ATTR) }
}

/// An attribute cut to a size, with that size in it.
fn sized(attr: &[u8], used: usize) -> Vec<u8> {
    let mut out = attr[..used.min(attr.len())].to_vec();
    out[4..8].copy_from_slice(&(used as u32).to_ne_bytes());
    out
}

/// `struct { u32 cpu, res; }`
fn cpu_field(cpu: u32) -> u64 {
    let [a, b, c, d] = cpu.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}

fn header(kind: Kind, misc: u16, size: u16) -> [u8; 8] {
    let mut header = [0; 8];
    header[..4].copy_from_slice(&kind.0.to_ne_bytes());
    header[4..6].copy_from_slice(&misc.to_ne_bytes());
    header[6..].copy_from_slice(&size.to_ne_bytes());
    header
}
