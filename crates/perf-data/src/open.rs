//! From a file to rings: one pass over the file measures each ring, and a second one fills them.

use crate::attrs::{READ, clock_id};
use crate::file::{Input, changed, directory, io, no_memory, too_large, unreadable};
use crate::lost::Loss;
use crate::metadata::{Described, Metadata, TRACING_DATA};
use crate::pieces::{AUXTRACE, Piece, walk};
use crate::sections::wall_clock;
use crate::sorting::{NO_CPU, Place, Sorting};
use crate::tracing::{self, Format};
use crate::{Facts, called};
use perfweave::{Clock, Error, ErrorKind, Recording, Rings};
use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Rings with the records of a `perf.data` file, which `perf record` wrote on this machine or on another.
///
/// `perf record --threads` writes a directory: the function reads all files of it.
///
/// The function reads the whole file and closes it before it returns. [`Rings::sources`] lists its events in the file's
/// order, with the names that it has, or else those of their formats and attributes, and [`Record::source`](perfweave::Record::source) is the index in that list. [`Rings::clock`] is the clock
/// that stamped the records (`perf record -k`), or [`Clock::Perf`].
///
/// ```no_run
/// use perfweave::{Order, Reader};
///
/// // perf record -a -e sched:sched_switch -- sleep 1
/// let mut reader = Reader::new(perfweave_perf_data::open("perf.data")?, Order::new())?;
/// while let Some(event) = reader.next()? {
///     println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.item());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Rings
///
/// Each CPU has a ring, by the CPU that records name (`PERF_SAMPLE_CPU`). If events have records of different layouts,
/// each layout has a ring for each CPU. Records that name no CPU, such as those of `perf record --per-thread`, are in a
/// ring for each event and thread (the event's id), and their [`Record::cpu`](perfweave::Record::cpu) is `u32::MAX`. A
/// file without records gives no rings, and [`Reader::new`](perfweave::Reader::new) then gives
/// [`ErrorKind::InvalidInput`].
///
/// Other programs may still write into rings that are added ([`Rings::add`]). The hold rule then applies to all rings.
///
/// # How each record is read
///
/// | record | becomes |
/// | --- | --- |
/// | of the kernel (type < 64) | a record, a loss or damage, as from a live ring |
/// | samples of groups (`perf record -e '{cycles,instructions}:S'`) | a record of the event that was sampled. [`Members`](crate::Members) has what the others have counted |
/// | MMAP, COMM and others that perf synthesized at its start | a record. perf gives them the time 0, so they come first, in the file's order |
/// | without time and CPU (`sample_id_all` = 0) | a record without key, after the record before it in the file |
/// | LOST_SAMPLES with a time, of kernels that found samples lost in the processor's own buffer | a loss at its time |
/// | LOST_SAMPLES without a time, or with the time 0, in which perf since 6.1 counts all losses of an event | no event. What exceeds the LOST records is in [`Status::machine`](perfweave::Status::machine): both are of the same losses. Nothing where it counts what a BPF filter left out |
/// | FINISHED_ROUND, TIME_CONV, ID_INDEX, other types from 64 on | nothing: they help perf to read, and are not about the recorded machine |
/// | HEADER_ATTR, HEADER_FEATURE, HEADER_TRACING_DATA | their content is used, in a file in pipe mode (`perf record -o -`) |
/// | AUXTRACE and the AUX data after it, of Intel PT, Arm CoreSight or SPE | nothing: this crate does not decode it. [`aux`] says how much there is |
/// | COMPRESSED, COMPRESSED2 | the records that they have, with feature `zstd`; without it, the error [`ErrorKind::Recording`] |
/// | bytes that cannot be decompressed | as bytes that cannot be a record |
/// | bytes that cannot be a record | a [`Damage`](perfweave::Damage) with the first MiB of them, and the rest of the file is skipped |
///
/// # Files that were not finished
///
/// A program that is killed leaves a file whose header does not say where the records end. It is read to its end, and
/// [`unfinished`] says so. The names of events and the formats of tracepoints are there if a [`Writer`](crate::Writer)
/// wrote it; perf writes them last.
///
/// # Memory
///
/// All records are in memory until they are read: what a reader has yielded goes back to the system, a MiB of a ring at
/// a time. The length of a ring is a power of two, so the rings take one to two times the length of the file's records
/// of address space, and once their length of memory. Each ring takes some 16 KiB more. If that exceeds the available
/// memory, the error is [`ErrorKind::Limit`]. Available is the least of `MemAvailable` of `/proc/meminfo` and what
/// `RLIMIT_AS`, `RLIMIT_DATA` and the `memory.max` of this process's control groups leave. A CPU with more than 1 GiB
/// of records has several rings, and its own numbers ([`Order::numbers`](perfweave::Order::numbers)) start again in
/// each.
///
/// From the first refresh on, a reader takes 16 bytes for each indexed record, 40 if the record is out of order, and 64
/// for damage and for a loss. While a list of records out of order, or of damage and losses, grows, the old list and
/// the new one both exist, so these take up to 80 and 140 bytes. If that may exceed half of the memory that is available
/// when the reader is made, [`Reader::new`](perfweave::Reader::new) gives [`ErrorKind::Limit`] with the bytes.
///
/// # Errors
/// [`ErrorKind::Recording`], with the problem and what helps; [`ErrorKind::Limit`] if there is too little memory.
pub fn open(path: impl AsRef<Path>) -> Result<Rings, Error> {
    let path = path.as_ref();
    read(path).map_err(|why| why.during(&format!("cannot read {}", path.display())))
}

/// The files of a recording: the one with the header, and in a directory those of perf's threads, which have records
/// alone.
struct Files {
    first: Input,
    data: Range<u64>,
    parts: Vec<PathBuf>,
}

impl Files {
    /// The file with the header, and the directory that it is in, if that was named.
    fn first(path: &Path) -> Result<(Input, Option<&Path>), Error> {
        match path.is_dir() {
            false => Ok((Input::open(path)?, None)),
            true => {
                let of_directory = |why: Error| why.during("it is a directory, and its file `data`");
                let data = path.join("data");
                if !data.exists() {
                    return Err(directory());
                }
                Ok((Input::open(&data).map_err(of_directory)?, Some(path)))
            }
        }
    }

    fn new(first: Input, directory: Option<&Path>, metadata: &Metadata) -> Result<Self, Error> {
        let parts = match (metadata.has_parts, directory) {
            (false, _) => Vec::new(),
            (true, Some(directory)) => parts(directory)?,
            (true, None) => {
                let what = "other files of its directory have records of it";
                return Err(unreadable(what, "name the directory, as `perf record --threads` has written it"));
            }
        };
        Ok(Self { first, data: metadata.data.clone(), parts })
    }

    /// Goes through the records of all files. One of the parts is open at a time.
    fn walk(&self, mut each: impl FnMut(Piece<'_>) -> Result<(), Error>) -> Result<(), Error> {
        walk(&self.first, &self.data, |_, piece| each(piece))?;
        for part in &self.parts {
            let named = |why: Error| why.during(&part.file_name().unwrap_or_default().to_string_lossy());
            let input = Input::open(part).map_err(named)?;
            walk(&input, &(0..input.len), |_, piece| each(piece)).map_err(named)?;
        }
        Ok(())
    }
}

/// The other files of a directory: `data.0`, `data.1` and so on, in this order.
fn parts(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("data.")?.parse::<u32>().ok());
        if let Some(number) = number {
            parts.push((number, directory.join(name)));
        }
        if parts.len() > MOST_PARTS {
            return Err(unreadable(format!("it has more than {MOST_PARTS} files"), ""));
        }
    }
    parts.sort();
    Ok(parts.into_iter().map(|(_, path)| path).collect())
}

/// perf has a thread for each CPU at most.
const MOST_PARTS: usize = MOST_RINGS;

fn read(path: &Path) -> Result<Rings, Error> {
    let (mut input, directory) = Files::first(path)?;
    let metadata = Metadata::read(&mut input)?;
    let clock = clock(&metadata.events)?;
    let sorting = Sorting::new(&metadata.events)?;
    let files = Files::new(input, directory, &metadata)?;
    let mut places = Places::default();
    files.walk(|piece| places.measure(&sorting, piece))?;
    // Before memory is taken: a control group that is full kills the process, and gives no error.
    places.check_memory()?;
    let mut recording = Recording::new(clock, wall_clock(&metadata.features, clock));
    recording.lost_in_all(places.lost);
    places.build(&sorting, &mut recording)?;
    files.walk(|piece| places.fill(&sorting, piece, &mut recording))?;
    let formats = metadata.features.iter().find(|(feature, _)| *feature == TRACING_DATA);
    let formats = formats.map(|(_, data)| tracing::formats(data)).unwrap_or_default();
    for event in &metadata.events {
        // Only of tracepoints is `config` the number of a format.
        let format = formats.get(&event.attr.config()).filter(|_| event.attr.is_tracepoint());
        recording.event(&name(event, format), event.attr.bytes(), format.map(|format| format.text.as_str()));
    }
    let unfinished = metadata.is_unfinished.then(|| {
        let bytes = metadata.data.end - metadata.data.start;
        let what = format!("it was not finished: {bytes} bytes of records were written, and later ones are missing");
        unreadable(what, "end `perf record` with SIGINT or SIGTERM, not with SIGKILL")
            .during(&format!("{} is read in part", path.display()))
    });
    recording.facts(Facts { features: metadata.features, unfinished, aux: places.aux });
    Ok(recording.build())
}

/// That these are the rings of a recording which its program did not finish, because it was killed: the
/// [`ErrorKind::Recording`] says how much was written. What was not is missing at the end. A record that was written in
/// part is [`Damage`](perfweave::Damage). `None` for all other rings.
pub fn unfinished(rings: &Rings) -> Option<&Error> {
    rings.facts::<Facts>()?.unfinished.as_ref()
}

/// Bytes of AUX data in a recording: what the processor itself has traced (Intel PT, Arm CoreSight, SPE), if `perf
/// record` asked for that. This crate does not decode it, so no event of the rings is from there. 0 for all other rings.
pub fn aux(rings: &Rings) -> u64 {
    rings.facts::<Facts>().map_or(0, |facts| facts.aux)
}

/// The clock of all events.
fn clock(events: &[Described]) -> Result<Clock, Error> {
    let clock = |event: &Described| event.attr.clock();
    let first = events.first().and_then(clock);
    if let Some(other) = events.iter().map(clock).find(|other| *other != first) {
        let clocks = [first, other];
        let message = format!("its events have times of different clocks: {clocks:?}");
        return Err(Error::new(ErrorKind::Recording, message).hinting("record with one `-k CLOCK`"));
    }
    let known = [Clock::Monotonic, Clock::MonotonicRaw, Clock::Boottime, Clock::Realtime, Clock::Tai];
    let is_it = |clock: &Clock| first.is_some() && clock_id(*clock) == first;
    // No event can have any of the other clocks (`perf_event_set_clock`, kernel/events/core.c).
    Ok(known.into_iter().find(is_it).unwrap_or(Clock::Perf))
}

/// The name of an event as [`Rings::sources`] lists it. If the file has none, it is that of its format, or that which
/// perf has for its attribute.
fn name(event: &Described, format: Option<&Format>) -> String {
    let attr = &event.attr;
    let tracepoint = || {
        // Modifiers may follow, as in `sched:sched_switch:u`. The name that is made up below is not a tracepoint's.
        let (category, rest) =
            event.name.as_deref()?.split_once(':').filter(|(category, _)| !category.contains(' '))?;
        attr.is_tracepoint().then(|| format!("tracepoint {category}:{}", rest.split(':').next().unwrap_or(rest)))
    };
    match (tracepoint(), &event.name) {
        (Some(name), _) => name,
        (None, Some(name)) => name.clone(),
        (None, None) => match format {
            Some(format) => format!("tracepoint {}:{}", format.category, format.name()),
            None => called::name(attr).unwrap_or_else(|| format!("event {}:{}", attr.kind(), attr.config())),
        },
    }
}

/// The longest ring. Further records of a CPU go into another ring of that CPU.
const PART: u64 = 1 << 30;

/// The memory of a ring besides its data: a page before it, and the initial memory of a merge for it.
const BESIDES: u64 = 16 << 10;

/// As many CPUs as Linux can have (`NR_CPUS`), for a few layouts. A ring takes some memory, even for a forged CPU.
const MOST_RINGS: usize = 8192;

/// As many events without a CPU have a separate ring.
const MOST_APART: usize = 1024;

/// The records by their ring.
#[derive(Debug, Default)]
struct Places {
    rings: Vec<PlaceRings>,
    by_place: HashMap<Place, usize>,
    /// Where the last record went.
    last: Option<usize>,
    /// How many losses the file counts as a whole.
    lost: u64,
    /// Bytes of AUX data.
    aux: u64,
}

/// All records of one place.
#[derive(Debug)]
struct PlaceRings {
    place: Place,
    ids: HashMap<u64, usize>,
    parts: Vec<Part>,
    /// The part that is being filled.
    at: usize,
}

/// One ring.
#[derive(Debug, Default)]
struct Part {
    size: u64,
    filled: u64,
    /// Its number in the recording.
    ring: usize,
}

impl Places {
    /// Adds the length of a piece to its ring.
    fn measure(&mut self, sorting: &Sorting, piece: Piece<'_>) -> Result<(), Error> {
        if let Piece::Record(bytes) = piece
            && let Some(Loss::Whole(count)) = Loss::of(bytes, sorting)
        {
            self.lost = self.lost.saturating_add(count);
        }
        if let Piece::Other { kind: AUXTRACE, behind, .. } = piece {
            self.aux += behind;
        }
        let Some((bytes, rings)) = self.rings_of(sorting, &piece)? else { return Ok(()) };
        let len = bytes.len() as u64;
        match rings.parts.last_mut() {
            Some(part) if part.size + len <= PART => part.size += len,
            _ => rings.parts.push(Part { size: len, ..Part::default() }),
        }
        Ok(())
    }

    /// Copies a piece into its ring.
    fn fill(&mut self, sorting: &Sorting, piece: Piece<'_>, recording: &mut Recording) -> Result<(), Error> {
        let Some((bytes, rings)) = self.rings_of(sorting, &piece)? else { return Ok(()) };
        let len = bytes.len() as u64;
        // The pieces are those that were measured, so each part ends where a piece does. Else the file has changed.
        if rings.parts.get(rings.at).is_some_and(|part| part.filled == part.size) {
            rings.at += 1;
        }
        let part = rings.parts.get_mut(rings.at).ok_or_else(changed)?;
        part.filled += len;
        if part.filled > part.size {
            return Err(changed());
        }
        recording.write(part.ring, bytes).map_err(|_| changed())
    }

    /// The bytes of a piece to keep, and their place.
    fn rings_of<'a>(
        &mut self,
        sorting: &Sorting,
        piece: &Piece<'a>,
    ) -> Result<Option<(&'a [u8], &mut PlaceRings)>, Error> {
        let (bytes, place, event) = match *piece {
            Piece::Other { .. } => return Ok(None),
            // It has no place in the stream: the recording has the sum.
            Piece::Record(bytes) if Loss::of(bytes, sorting).is_some_and(Loss::is_whole) => return Ok(None),
            Piece::Rest(bytes) => (bytes, None, None),
            Piece::Record(bytes) => {
                let placed = sorting.place(bytes);
                let event = placed.and_then(|(_, event)| event).filter(|_| sorting.several);
                (bytes, placed.map(|(place, _)| place), event)
            }
        };
        let at = match (place, self.last) {
            // A record without a place stays with the record before it.
            (None, Some(last)) => last,
            (place, _) => self.find(place.unwrap_or(Place::NOWHERE))?,
        };
        self.last = Some(at);
        let rings = &mut self.rings[at];
        rings.ids.extend(event);
        Ok(Some((bytes, rings)))
    }

    fn find(&mut self, place: Place) -> Result<usize, Error> {
        // perf writes one ring after the other: the next record is mostly of the same place.
        if let Some(last) = self.last.filter(|last| self.rings[*last].place == place) {
            return Ok(last);
        }
        if let Some(at) = self.by_place.get(&place) {
            return Ok(*at);
        }
        let is_apart = place.cpu == NO_CPU;
        let shared = place.shared();
        // `shared` is apart too: without the last condition this would call itself for ever.
        if is_apart && self.rings.len() >= MOST_APART && place != shared {
            return self.find(shared);
        }
        if self.rings.len() >= MOST_RINGS {
            return Err(Error::new(ErrorKind::Recording, format!("its records name more than {MOST_RINGS} CPUs")));
        }
        self.by_place.insert(place, self.rings.len());
        self.rings.push(PlaceRings { place, ids: HashMap::new(), parts: Vec::new(), at: 0 });
        Ok(self.rings.len() - 1)
    }

    /// Refuses records that do not fit into the available memory, if it is known.
    fn check_memory(&self) -> Result<(), Error> {
        let bytes = self.rings.iter().flat_map(|rings| &rings.parts).map(|part| part.room() + BESIDES).sum();
        // Asked again: the metadata has taken some since the file was opened.
        match Recording::available_memory() {
            Some(available) if bytes > available => Err(too_large(bytes, available)),
            _ => Ok(()),
        }
    }

    /// Makes the rings.
    fn build(&mut self, sorting: &Sorting, recording: &mut Recording) -> Result<(), Error> {
        let has_counts = |place: &Place| sorting.groups[place.group].sample_type() & READ != 0;
        if let Some(rings) = self.rings.iter_mut().find(|rings| has_counts(&rings.place)) {
            // Samples have the counts of events that have no records: [`Rings::ids`] must have those too.
            rings.ids.extend(sorting.ids());
        }
        for PlaceRings { place, ids, parts, .. } in &mut self.rings {
            for part in parts {
                let ids = ids.iter().map(|(id, event)| (*id, *event));
                let ring = recording.ring(place.cpu, sorting.groups[place.group], ids, part.size);
                part.ring = ring.map_err(no_memory)?;
            }
        }
        // The second pass must place a first record without a place as the first pass did.
        self.last = None;
        Ok(())
    }
}

impl Part {
    /// Bytes of its ring.
    fn room(&self) -> u64 {
        // As `Recording::ring` makes it.
        self.size.next_power_of_two().max(8)
    }
}
