//! Writing a stream as a recording.

mod pipe;

use crate::attrs::{self, CPU, ID, IDENTIFIER, IP, TID, TIME, TRAILER_ORDER, in_samples, in_trailers};
use crate::chain::{Counted, FINISHED_ROUND, NOBODY};
use crate::metadata::{BUILD_ID, EVENT_DESC, Features, HEADER, HEADER_FEATURE, HEADER_TRACING_DATA, TRACING_DATA};
use crate::names::{Names, Naming, Scope};
use crate::noted::{Noted, check};
use crate::output::Output;
use crate::pieces::OWN_KINDS;
use crate::procfs::Machine;
use crate::sections::{Front, Section, behind, describe, features, size_of_all};
use crate::{Facts, machine};
use perf_event_open_sys::bindings;
use perfweave::{Bytes, Clock, Error, ErrorKind, Event, Item, Layout, Record, Rings, Status};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Writes events, as they are yielded, into a `perf.data` file that `perf script` and `perf report` read.
///
/// ```no_run
/// use perfweave::{Order, Reader, Rings};
/// use perfweave_events::EventOptions;
/// use perfweave_perf_data::Writer;
/// use std::time::{Duration, Instant};
///
/// let rings = Rings::options().tracepoint("sched:sched_switch").open()?;
/// let mut reader = Reader::new(rings, Order::new())?;
/// let mut writer = Writer::create("perf.data", reader.rings())?;
/// reader.handle().set_deadline(Some(Instant::now() + Duration::from_secs(1)))?;
/// while let Some(event) = reader.next()? {
///     writer.write(&event.event())?;
/// }
/// writer.unreported(&reader.ledger()?);
/// writer.finish()?;
/// // perf script -i perf.data
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Order
///
/// perf sorts records by the kernel's time, and leaves records with equal times in the order of the file. So it shows
/// the events in the order in which they were written, if the key is the kernel's time
/// ([`Key::Time`](perfweave::Key::Time)) and no event was late. It moves a late event back to the place of its time, as
/// far as it still holds the later events.
///
/// # What is written
///
/// - Records, byte by byte. Two fields are added if the rings do not record them. One is the CPU (`PERF_SAMPLE_CPU`),
///   because a file has no rings that show it. The other is, in samples of events that are no tracepoints, the
///   instruction pointer (`PERF_SAMPLE_IP`), with value 0: `perf script` insists on it. Records of a recording are not
///   changed.
/// - [`Lost`](perfweave::Lost) as a LOST record, before the next record of its CPU and with that record's time, as the
///   kernel writes it. Losses of one CPU with no record between them become one LOST record with the sum of their
///   counts.
/// - At the end, for each CPU that lost any, a LOST_SAMPLES record with the count of all its losses, as perf since 6.1
///   writes one for each event: the kernel's own count by the ledger ([`Writer::unreported`]), and not less than the
///   LOST records say. `perf report` adds these up, and not the LOST records. They name the event if there is only one.
///   [`open`](crate::open) and [`verify`](crate::verify) know that both are of the same losses.
/// - Not gaps, anomalies, damage and [`Untraced`](perfweave::Untraced), for which perf has no record. Not records of
///   kinds from 64 on either: the kernel writes none, and in a file they are perf's own. [`Written::left_out`] counts
///   all of these.
/// - The events' names and attributes; the formats of tracepoints, from this machine's tracefs or, if the rings are
///   those of a recording, from there; the kernel's release, the architecture and the number of CPUs.
///
/// # Names
///
/// perf finds the name of a process by a COMM record, and the names of functions by MMAP records. The kernel writes
/// these only when a process starts, is renamed or maps a file. So [`Writer::create`] writes them, as perf(1) does at
/// the start of a recording, for the processes that there are (all of them, or the one process that the rings were
/// opened for), for the kernel and for its modules, with their build ids. It reads procfs for that: some milliseconds
/// for each hundred processes. The records have the time 0.
///
/// - For what starts later, ask the rings for `PERF_RECORD_COMM`, `PERF_RECORD_MMAP2` and `PERF_RECORD_FORK`
///   ([`RingOptions::records`](perfweave::RingOptions::records)). Open the rings first, so that no process is missed.
/// - Samples name their process only with `PERF_SAMPLE_TID`. Without it, processes are not written.
/// - A process that ended before the writer was created has no name, as in the file of a flight recorder.
/// - BPF programs that were loaded before have no names.
/// - Names that this process may not read are missing: [`Writer::unnamed`] says which, and what would help.
/// - Nothing is added to the records of a recording, which has its names, or of simulated rings.
///
/// [`Writer::create_unnamed`] leaves them out: for a file that must be there at once, or that must not tell of other
/// processes.
///
/// # The end
///
/// [`Writer::finish`] completes the file, and so does [`Writer::flush`], until more is written. If a disk is full or a
/// file may not grow, the writer completes the file with what is in it, and every later call gives the first error
/// again. So perf and [`open`](crate::open) read the file. For lack of room the last 256 KiB of records may be missing
/// besides those that the writer still held.
///
/// A file that was not completed, as that of a program that was killed, is read by [`open`](crate::open) as far as it
/// was written. The writer holds up to 256 KiB of records back. perf complains of such a file, as of its own, and shows
/// nothing.
///
/// A forked child can only drop its parent's writer, and that writes nothing.
///
/// # The certificate
///
/// A recording says in itself what is proven, in a seal after each MiB of the stream's records, at each
/// [`Writer::flush`] and at the end: a record that perf takes for a FINISHED_ROUND. [Names](Self#names) of what ran
/// before have no seal of their own, however many they are: the next one has them too. A seal counts the records and
/// losses, by CPU since the seal before it; the records whose order was proven, those whose order was assumed and those
/// that were late; missing numbers; and the largest key of a proven record, up to which everything had come. The last one
/// has the ledger of [`Writer::unreported`]. Each has the BLAKE3 hash of all bytes since the seal before it, of that
/// seal's hash, and of its own claims. So a byte that is changed, added, removed or moved breaks the chain, and
/// [`verify`](crate::verify) says where. Behind all parts of a file, a last seal stands for those that are no records.
/// [`Written::hash`] is the end of the chain.
///
/// Who writes the chain anew, from what is changed to the end, is not found, unless that hash was kept elsewhere. A
/// file that was completed on a full disk has no last seal.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: Output,
    events: Vec<Noted>,
    /// How many of the events are the rings' sources. After them come events that only records name.
    sources: usize,
    /// The ids that were seen. The file lists each with its event.
    ids: HashSet<u64>,
    front: Front,
    sections: Vec<(u32, Section)>,
    clock: Clock,
    /// Whether fields are added that records lack.
    adds: bool,
    /// Losses that wait for the next record of their CPU, by CPU.
    lost: HashMap<u32, Loss>,
    /// All losses of each CPU: what LOST records have, and what the ledger has.
    totals: BTreeMap<u32, [u64; 2]>,
    time: u64,
    /// Bytes behind the front.
    data: u64,
    /// How many of them are no records, but facts about the machine.
    facts: u64,
    /// How many there were behind the last seal, by which perf was told that all earlier records are in the file.
    round: u64,
    /// Whether the front in the file lacks an id.
    is_stale: bool,
    names: Names,
    unnamed: Vec<Error>,
    written: Written,
}

/// Records that the kernel dropped, and the event that they are of, if it is known.
#[derive(Debug, Clone, Copy)]
struct Loss {
    cpu: u32,
    count: u64,
    id: u64,
    source: Option<usize>,
}

/// What a [`Writer`] has written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Records, without LOST records and without those of [`Names`].
    pub records: u64,
    /// The sum of the LOST records that were written.
    pub lost: u64,
    /// Events for which perf has no record: gaps, anomalies, damage, notices, records of kinds from 64 on, and those of
    /// BPF ring buffers.
    pub left_out: u64,
    /// The hash at the end of the [certificate](Writer#the-certificate). It stands for all bytes of the recording.
    pub hash: [u8; 32],
}

/// After how many bytes of records perf is told to show what it has. Otherwise it would hold the whole file.
const ROUND: u64 = 1 << 20;
/// The longest fact that fits into a record.
const FACT: usize = u16::MAX as usize - 32;

impl Writer {
    /// Creates a file, or replaces one, for events of these rings, and writes the [names](Self#names) of what runs now.
    /// A reader returns its rings: [`Reader::rings`](perfweave::Reader::rings). It blocks while it reads
    /// procfs and writes.
    ///
    /// Only this user may read the file. One that others could open until now is removed first: who has it open sees
    /// nothing. If the last name in the path is a link, it is followed only if it is of this user or of root. Of the
    /// folders and links before it nothing is checked. A descriptor of this process, `/proc/self/fd/3`, may be
    /// anybody's file.
    ///
    /// # Errors
    /// [`ErrorKind::Recording`] if the file cannot be created or written, belongs to another user, has other names, or
    /// is reached by a link of another user; [`ErrorKind::InvalidInput`] if events with records of different layouts do
    /// not say which is which; [`ErrorKind::Permission`], [`ErrorKind::NotFound`] or [`ErrorKind::System`] if a
    /// tracepoint's format cannot be read. That of a recording which does not bring it is [`ErrorKind::NotFound`]: this
    /// machine's may be another. A missing name is no error: see [`Writer::unnamed`].
    pub fn create(path: impl AsRef<Path>, rings: &Rings) -> Result<Self, Error> {
        let mut writer = Self::create_unnamed(path, rings)?;
        let named = writer.name(rings);
        named.map_err(|why| writer.give_up(why))?;
        Ok(writer)
    }

    /// [`Writer::create`] without [names](Self#names) of what runs now.
    ///
    /// # Errors
    /// As for [`Writer::create`].
    pub fn create_unnamed(path: impl AsRef<Path>, rings: &Rings) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        Self::begin(&path, || Output::create(&path), rings).map_err(|why| unwritable(&path, why))
    }

    fn begin(path: &Path, file: impl FnOnce() -> Result<Output, Error>, rings: &Rings) -> Result<Self, Error> {
        // A recording of perf has all fields that perf wants.
        let adds = rings.facts::<Facts>().is_none();
        let mut events: Vec<_> = rings.sources().iter().map(|source| Noted::of(source, adds)).collect();
        check(&events)?;
        let sources = events.len();
        let mut ids = HashSet::new();
        for layout in rings.layouts() {
            if !layout.is_ring_buffer() && events.iter().all(|event| event.layout != *layout) {
                // If it cannot be told apart, writing one of its records says so.
                let _ = add_unknown(&mut events, *layout, rings.clock(), adds);
            }
        }
        for (id, source) in rings.ids().filter(|(id, source)| *id != 0 && *source < sources) {
            if ids.insert(id) {
                events[source].ids.push(id);
            }
        }
        if events.is_empty() {
            // perf reads no file without an event.
            events.push(Noted::unknown(Layout::RAW, rings.clock(), adds));
        }
        // Events of CPUs that come later have new ids.
        let spare = if rings.are_live() { machine::possible_cpus().map_or(0, |cpus| cpus as usize) } else { 0 };
        let front = Front::new(&events, spare);
        // Before the file is made: if a format cannot be read, an older recording at the path stays.
        let facts = features(rings)?;
        let mut writer = Self {
            path: path.to_owned(),
            file: file()?,
            sources,
            events,
            ids,
            front,
            sections: Vec::new(),
            clock: rings.clock(),
            adds,
            lost: HashMap::new(),
            totals: BTreeMap::new(),
            time: 0,
            data: 0,
            facts: 0,
            round: 0,
            is_stale: false,
            names: Names::default(),
            unnamed: Vec::new(),
            written: Written::default(),
        };
        if writer.file.is_pipe() {
            writer.begin_pipe()?;
        } else {
            writer.file.begin(writer.front.bytes(&writer.events))?;
        }
        writer.facts(facts)?;
        // So that a program which is killed later leaves a file with its events and facts.
        writer.file.flush()?;
        Ok(writer)
    }

    /// Writes facts about the machine as records of perf's own, so that they are there if the file is not finished.
    fn facts(&mut self, facts: Features) -> Result<(), Error> {
        let names = describe(&self.events, size_of_all(&self.events), false);
        for (feature, section) in facts.into_iter().chain([(EVENT_DESC, names)]) {
            if feature == BUILD_ID && self.file.is_pipe() {
                self.build_ids(&section)?;
                continue;
            }
            let (at, len) = (self.front.end + self.data, section.len());
            let padded = len.next_multiple_of(8);
            let place = if feature == TRACING_DATA {
                // perf expects the data 12 bytes behind the record's begin.
                self.bytes(&header(HEADER_TRACING_DATA, 0, 12))?;
                self.bytes(&(padded as u32).to_ne_bytes())?;
                at + 12
            } else if len <= FACT {
                self.bytes(&header(HEADER_FEATURE, 0, 16 + padded as u16))?;
                self.bytes(&u64::from(feature).to_ne_bytes())?;
                at + 16
            } else {
                // Too long for a record: it comes at the end. A pipe goes without it.
                self.sections.push((feature, Section::Later(section)));
                continue;
            };
            self.bytes(&section)?;
            self.bytes(&[0; 8][..padded - len])?;
            self.sections.push((feature, Section::There(place, len as u64)));
        }
        // The final names come with ids, and perhaps of more events.
        self.sections.retain(|(feature, _)| *feature != EVENT_DESC);
        let odd = (self.data % 8) as usize;
        if odd != 0 {
            // The record before the formats has 12 bytes. A round of 12 bytes aligns what follows to 8 again.
            self.bytes(&header(FINISHED_ROUND, 0, 16 - odd as u16))?;
            self.bytes(&[0; 8][odd..])?;
        }
        // What follows is read on its own where the end of the file is lost.
        self.seal()?;
        self.facts = self.data;
        self.file.whole();
        Ok(())
    }

    /// Writes the names of what runs now.
    fn name(&mut self, rings: &Rings) -> Result<(), Error> {
        if !rings.are_live() {
            return Ok(());
        }
        let has = |field: u64| self.events.iter().any(|event| event.layout.sample_type() & field != 0);
        let (processes, data) = (has(TID), has(bindings::PERF_SAMPLE_STACK_USER.into()));
        let machine = Machine::here();
        let naming = Naming::new(&machine, data, |kind, misc, body: &[u8]| self.made_up(kind, misc, body));
        let (names, unnamed, build_ids) = naming.write(Scope { only: rings.traced_threads(), processes })?;
        (self.names, self.unnamed) = (names, unnamed);
        if self.file.is_pipe() {
            self.build_ids(&build_ids)?;
        } else if !build_ids.is_empty() {
            self.sections.push((BUILD_ID, Section::Later(build_ids)));
        }
        self.file.flush()
    }

    /// Writes a record of the writer's own, at the time 0 and of no event.
    fn made_up(&mut self, kind: u32, misc: u16, body: &[u8]) -> Result<(), Error> {
        // There is one (`begin`). A record with the id 0 is read by the layout of the first event (`Sorting::place`).
        let layout = self.events[0].layout;
        let fields = TRAILER_ORDER.iter().filter(|field| layout.sample_type() & **field != 0).count();
        let trailer = if layout.sample_id_all() { 8 * fields } else { 0 };
        // Fits: names and paths in it have at most PATH_MAX bytes.
        let mut bytes = header(kind, misc, (8 + body.len() + trailer) as u16).to_vec();
        bytes.extend(body);
        bytes.resize(bytes.len() + trailer, 0);
        self.put(kind, [&bytes, &[]], 0, 0)?;
        let counted = self.events[0].counted(kind, Bytes::from(bytes.as_slice()), 0);
        self.file.chain.made_up(counted);
        self.file.whole();
        Ok(())
    }

    /// What was written about the processes and the kernel that were there when the writer was created.
    pub fn names(&self) -> Names {
        self.names
    }

    /// Why names are missing: the kernel hides its addresses, mappings of other users cannot be read, `/proc` is not
    /// mounted or is that of another PID namespace. At most one error of each; [`Error::hint`] says what would help.
    /// Processes that ended meanwhile are none.
    pub fn unnamed(&self) -> &[Error] {
        &self.unnamed
    }

    /// Writes an event after those before it. The time and the memory that this takes do not grow with earlier events.
    /// It allocates memory for the first event of each id, some 40 bytes, and for the first loss of each CPU, some 100
    /// bytes. It blocks as writing to a file does, once for 256 KiB of records.
    ///
    /// # Errors
    /// [`ErrorKind::Recording`] if the file cannot be written. What was written before [can be read](Self#the-end).
    /// [`ErrorKind::InvalidInput`] if the record is too long to have its CPU added, or if its layout differs from that
    /// of the others and it does not name its event. It is then not written, and the writer can go on.
    /// [`ErrorKind::Forked`], when bytes are due to the file.
    pub fn write(&mut self, event: &Event<'_>) -> Result<(), Error> {
        self.file.check().map_err(|why| unwritable(&self.path, why))?;
        let wrote = match event.item() {
            Item::Record(record) if record.kind() < OWN_KINDS && !record.layout().is_ring_buffer() => {
                self.record(&record, event)
            }
            Item::Lost(lost) => {
                // At most one loss of each CPU waits, so that the cost does not depend on how many come in a row.
                let before = self.lost.get(&lost.cpu).map_or(0, |before| before.count);
                let count = lost.count.saturating_add(before);
                self.lost.insert(lost.cpu, Loss { cpu: lost.cpu, count, id: lost.id, source: lost.source });
                Ok(())
            }
            // It is not about the traced machine.
            Item::Flushed { .. } => Ok(()),
            _ => {
                self.file.chain.left_out(&event.item());
                self.written.left_out += 1;
                Ok(())
            }
        };
        wrote.map_err(|why| self.give_up(why))
    }

    /// Writes the losses that a ledger has and no event has reported
    /// ([`Account::unreported`](perfweave::Account::unreported)): what the kernel dropped after the last event that was
    /// yielded. Call it once, with [`Reader::ledger`](perfweave::Reader::ledger) of the reader whose stream has ended,
    /// before [`Writer::finish`].
    pub fn unreported(&mut self, ledger: &Status) {
        for account in ledger.accounts.iter().chain([&ledger.machine]).filter(|account| account.lost > 0) {
            let total = self.totals.entry(account.cpu.unwrap_or(NOBODY)).or_default();
            total[1] = total[1].saturating_add(account.lost);
        }
        for account in ledger.accounts.iter().filter(|account| account.unreported > 0) {
            let Some(cpu) = account.cpu else { continue };
            let none = Loss { cpu, count: 0, id: 0, source: None };
            let lost = self.lost.entry(cpu).or_insert(none);
            lost.count = lost.count.saturating_add(account.unreported);
        }
        self.file.chain.take_ledger(ledger);
    }

    /// Completes the file with all records until now, for perf and [`open`](crate::open), and goes on. As soon as more
    /// is written, the file is one that was not finished, until the next flush. Losses that wait for the next record of
    /// their CPU are not among them. Blocks as writing to a file does. Does not wait until the file is on a disk.
    ///
    /// # Errors
    /// As for [`Writer::finish`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.check()?;
        let flushed = self.complete();
        flushed.map_err(|why| self.give_up(why))
    }

    /// Completes the file and closes it. Blocks as writing to a file does. Does not wait until the file is on a disk.
    ///
    /// # Errors
    /// [`ErrorKind::Recording`] if the file cannot be written, or could not be written before: the first error.
    /// [`ErrorKind::Forked`].
    pub fn finish(mut self) -> Result<Written, Error> {
        self.check()?;
        let finished = self
            .last_losses()
            .and_then(|()| self.total_losses())
            .and_then(|()| (0..self.file.chain.end()).try_for_each(|_| self.seal()))
            .and_then(|()| self.complete());
        finished.map_err(|why| self.give_up(why))?;
        Ok(Written { hash: self.file.chain.hash, ..self.written })
    }

    /// Writes what is held, and all parts of the file that are no records.
    fn complete(&mut self) -> Result<(), Error> {
        if self.file.is_pipe() {
            return self.hand_over();
        }
        // Files that are not finished have no data.
        if self.data == self.facts || self.data > self.round {
            self.seal()?;
        }
        self.file.flush()?;
        self.complete_to(self.front.end + self.data, true)
    }

    /// Makes a complete file of the records up to this place.
    fn complete_to(&mut self, end: u64, sealed: bool) -> Result<(), Error> {
        let begin = self.front.end + self.facts;
        let (mut behind, header) = behind(&self.events, &self.sections, [begin, end.saturating_sub(begin)]);
        if sealed {
            let seal = self.file.chain.seal_of_file(&header, &behind);
            behind.extend(seal);
        }
        self.file.complete(end, &behind, &header, self.front.header())
    }

    /// Names the file in an error. If the file cannot be written, makes a complete file of what is in it. If there is
    /// no room for that either, it gives up the last records.
    fn give_up(&mut self, why: Error) -> Error {
        if self.file.check().is_err() && !self.file.is_pipe() {
            let begin = self.front.end + self.facts;
            let completed =
                // No records at all would mean that the file was not finished.
                self.file.safe().into_iter().filter(|end| *end > begin).any(|end| self.complete_to(end, false).is_ok());
            // If it is not, it is a file that was not finished.
            let _ = completed || self.file.over(0, &self.front.header()).is_ok();
        }
        unwritable(&self.path, why)
    }

    /// Whether the file belongs to this process, and has been written without an error so far.
    fn check(&self) -> Result<(), Error> {
        if !self.file.is_here() {
            return Err(crate::output::forked());
        }
        self.file.check().map_err(|why| unwritable(&self.path, why))
    }

    fn record(&mut self, record: &Record<'_>, event: &Event<'_>) -> Result<(), Error> {
        let known = self.events.len();
        let at = self.event_of(record)?;
        // A record that names none of the sources may have the layout of one. Its id is not that one's.
        let id = record.id().filter(|id| *id != 0 && (at >= self.sources || record.source().is_some()));
        let id = id.filter(|id| self.ids.insert(*id));
        self.events[at].ids.extend(id);
        self.is_stale |= id.is_some();
        if self.file.is_pipe() && (id.is_some() || at >= known) {
            // Who reads the pipe must know the event before its first record.
            self.describe_later(at, id)?;
        }
        self.time = record.time().unwrap_or(self.time);
        if !self.lost.is_empty()
            && let Some(lost) = self.lost.remove(&record.cpu())
        {
            self.lost_record(&lost, at, Some(record))?;
        }
        let (first, second) = record.as_bytes().as_slices();
        self.put(record.kind(), [first, second], at, record.cpu())?;
        let counted = self.events[at].counted(record.kind(), record.as_bytes(), record.cpu());
        self.file.chain.record(event, counted);
        self.written.records += 1;
        if self.data - self.round >= ROUND || self.file.chain.is_full() {
            if std::mem::take(&mut self.is_stale) && !self.file.is_pipe() {
                // Before the seal, which has the hash of the first bytes that are in the file.
                let front = self.front.bytes(&self.events);
                self.file.over(HEADER, &front[HEADER as usize..])?;
                self.file.chain.front_is(front);
            }
            self.seal()?;
        }
        self.file.whole();
        Ok(())
    }

    /// The event of a record.
    fn event_of(&mut self, record: &Record<'_>) -> Result<usize, Error> {
        let layout = *record.layout();
        let named = record.source().filter(|source| *source < self.sources);
        let known = named.filter(|source| self.events[*source].layout == layout);
        if let Some(at) = known.or_else(|| self.events.iter().position(|event| event.layout == layout)) {
            return Ok(at);
        }
        add_unknown(&mut self.events, layout, self.clock, self.adds)?;
        Ok(self.events.len() - 1)
    }

    /// Writes a LOST record before a record of the same CPU. No record follows the last losses.
    fn lost_record(&mut self, lost: &Loss, at: usize, next: Option<&Record<'_>>) -> Result<(), Error> {
        // A file tells by the id of which event a record is, and so how its fields lie.
        let at = lost.source.filter(|source| *source < self.sources).unwrap_or(at);
        let layout = self.events[at].layout;
        // Header, id, count, and six fields of `struct sample_id` at most.
        let mut bytes = SmallVec::<[u8; 96]>::from_slice(&[0; 8]);
        bytes.extend(lost.id.to_ne_bytes());
        bytes.extend(lost.count.to_ne_bytes());
        if layout.sample_id_all() {
            for field in TRAILER_ORDER.iter().filter(|field| layout.sample_type() & **field != 0) {
                let value = match (*field, next) {
                    (ID | IDENTIFIER, _) => lost.id,
                    (field, Some(next)) => attrs::field(next.as_bytes(), next.layout(), field).unwrap_or(0),
                    (TIME, None) => self.time,
                    (CPU, None) => cpu_field(lost.cpu),
                    _ => 0,
                };
                bytes.extend(value.to_ne_bytes());
            }
        }
        let header = header(bindings::PERF_RECORD_LOST, 0, bytes.len() as u16);
        bytes[..8].copy_from_slice(&header);
        self.put(bindings::PERF_RECORD_LOST, [&bytes, &[]], at, lost.cpu)?;
        let counted = self.events[at].counted(bindings::PERF_RECORD_LOST, Bytes::from(bytes.as_slice()), lost.cpu);
        self.file.chain.made_up(Counted { lost: Some(lost.count), ..counted });
        self.written.lost = self.written.lost.saturating_add(lost.count);
        let total = self.totals.entry(lost.cpu).or_default();
        total[0] = total[0].saturating_add(lost.count);
        Ok(())
    }

    /// Writes the count of all losses of each CPU, for perf.
    fn total_losses(&mut self) -> Result<(), Error> {
        let layout = self.events[0].layout;
        // Who knows which of several events it was? Records with the id 0 are read by the layout of the first.
        let id = if self.events.len() == 1 { self.events[0].ids.first().copied().unwrap_or(0) } else { 0 };
        for (cpu, [told, known]) in std::mem::take(&mut self.totals) {
            // Without a time: it has no place among the records.
            let value = |field: &u64| match *field {
                ID | IDENTIFIER => id,
                CPU => cpu_field(cpu),
                _ => 0,
            };
            let fields = TRAILER_ORDER.iter().filter(|field| layout.sample_type() & **field != 0);
            let trailer = fields.filter(|_| layout.sample_id_all()).flat_map(|field| value(field).to_ne_bytes());
            let mut bytes = SmallVec::<[u8; 96]>::from_slice(&[0; 8]);
            bytes.extend(told.max(known).to_ne_bytes().into_iter().chain(trailer));
            let header = header(bindings::PERF_RECORD_LOST_SAMPLES, 0, bytes.len() as u16);
            bytes[..8].copy_from_slice(&header);
            self.put(bindings::PERF_RECORD_LOST_SAMPLES, [&bytes, &[]], 0, cpu)?;
            // As a verifier counts it (`Check::count`).
            self.file.chain.made_up(Counted { cpu: NOBODY, time: None, lost: None });
            self.file.whole();
        }
        Ok(())
    }

    /// Writes a record that lies in up to two pieces, with the fields that are added to its event's records.
    fn put(&mut self, kind: u32, [first, second]: [&[u8]; 2], at: usize, cpu: u32) -> Result<(), Error> {
        let Noted { ref layout, adds, .. } = self.events[at];
        let (sample_type, len) = (layout.sample_type(), first.len() + second.len());
        let place = |field| match kind {
            bindings::PERF_RECORD_SAMPLE => Some(in_samples(sample_type, field)),
            // `struct sample_id` has no instruction pointer.
            _ if field == IP || !layout.sample_id_all() => None,
            _ => len.checked_sub(in_trailers(sample_type, field)),
        };
        // By rising place, for the loop below: in a sample the IP comes before the CPU.
        let added = [(IP, 0), (CPU, cpu_field(cpu))].into_iter().filter(|(field, _)| adds & field != 0);
        let added: SmallVec<[(usize, u64); 2]> =
            added.filter_map(|(field, value)| Some((place(field)?, value))).collect();
        if added.is_empty() {
            self.bytes(first)?;
            return self.bytes(second);
        }
        // Before any byte is written, because the writer goes on after this error.
        let size = u16::try_from(len + 8 * added.len()).map_err(|_| too_long(len))?;
        // A header is a multiple of 8 bytes long and aligned to one, so it is never in two pieces.
        let mut header: [u8; 8] = first.first_chunk().copied().unwrap_or_default();
        header[6..8].copy_from_slice(&size.to_ne_bytes());
        self.bytes(&header)?;
        let mut from = header.len();
        for (to, value) in added {
            // Not outside: a record that is too short for its fields is damage, and does not come here.
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

    /// Seals all records until now. perf takes the record for the end of a round, and shows what it has.
    fn seal(&mut self) -> Result<(), Error> {
        self.data += self.file.seal()?;
        self.file.whole();
        self.round = self.data;
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.put(bytes)?;
        self.data += bytes.len() as u64;
        Ok(())
    }

    /// Writes the losses that no record follows.
    fn last_losses(&mut self) -> Result<(), Error> {
        let mut lost: Vec<_> = std::mem::take(&mut self.lost).into_values().collect();
        lost.sort_by_key(|lost| lost.cpu);
        for lost in lost {
            self.lost_record(&lost, 0, None)?;
            self.file.whole();
            // The last seal also has room for the ledger.
            if self.file.chain.is_full() {
                self.seal()?;
            }
        }
        Ok(())
    }
}

/// Adds the event of records of a layout that no event has, if perf can tell its records apart from the others.
fn add_unknown(events: &mut Vec<Noted>, layout: Layout, clock: Clock, adds: bool) -> Result<(), Error> {
    events.push(Noted::unknown(layout, clock, adds));
    check(events).inspect_err(|_| drop(events.pop()))
}

fn unwritable(path: &Path, why: Error) -> Error {
    why.during(&format!("cannot write {}", path.display()))
}

/// The record is not written, and the writer can go on.
fn too_long(size: usize) -> Error {
    let message = format!("a record of {size} bytes is too long to have its CPU added");
    Error::new(ErrorKind::InvalidInput, message).hinting("ask for it: PERF_SAMPLE_CPU | PERF_SAMPLE_IP in sample_type")
}

/// `struct { u32 cpu, res; }`
fn cpu_field(cpu: u32) -> u64 {
    let [a, b, c, d] = cpu.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}

fn header(kind: u32, misc: u16, size: u16) -> [u8; 8] {
    let mut header = [0; 8];
    header[..4].copy_from_slice(&kind.to_ne_bytes());
    header[4..6].copy_from_slice(&misc.to_ne_bytes());
    header[6..].copy_from_slice(&size.to_ne_bytes());
    header
}
