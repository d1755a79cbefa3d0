//! The pass over a file.

use super::numbers::Numbers;
use super::{Claims, Doubt, DoubtKind, Found, Verdict};
use crate::attrs::{self, TIME};
use crate::chain::{
    BY_TIME, Counted, END, Hash, MAGIC, MOST_CPUS, MOST_ROWS, NOBODY, NUMBERS, Row, Rows, SHORTEST, Seal, Sums, Tally,
    WHOLE,
};
use crate::file::{Input, io, malformed, too_much};
use crate::lost::Loss;
use crate::metadata::{HEADER, HEADER_ATTR, PIPE_HEADER, SMALLEST_ATTR, check_begin, no_event, piped_attr, read_attrs};
use crate::pieces::{AUXTRACE, OWN_KINDS, Packed, Piece, behind_it, compressed, header, take};
use crate::sections::unfinished;
use crate::sorting::Sorting;
use crate::words::Words;
use blake3::Hasher;
use perfweave::{Account, Bytes, Error, Key};
use std::collections::BTreeMap;
use std::io::{BufReader, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

/// How much is read and hashed at once.
const PART: usize = 1 << 18;
/// How many bytes of events and ids are kept. Each CPU has an id of each event: that is 2,000 events on 1,000 CPUs.
const EVENTS: u64 = 16 << 20;
/// How many doubts are kept.
const DOUBTS: usize = 1000;

/// A seal that was found, and its hash as stated and as computed.
#[derive(Debug)]
struct Sealed {
    seal: Seal,
    stated: Hash,
    computed: Hash,
}

impl Sealed {
    fn is_intact(&self) -> bool {
        self.stated == self.computed
    }
}

/// What is known in the middle of a file.
pub(super) struct Check<'a> {
    input: &'a Input,
    reader: BufReader<&'a std::fs::File>,
    /// Where the reader is, and where the records end.
    at: u64,
    end: u64,
    /// Which event a record is of. `None` if the events cannot be read, and why.
    sorting: Option<Sorting>,
    unreadable: Option<Error>,
    packed: Option<Packed<'a>>,
    /// What is hashed of the block, and what comes next.
    hasher: Hasher,
    pending: Vec<u8>,
    /// Where the block begins.
    block: u64,
    /// Whether all bytes of the block were records.
    is_sound: bool,
    /// What was counted. Behind a seal, it compares times with the newest one that the seal says, whether that holds or
    /// not.
    tally: Tally,
    /// What was counted before this block.
    before: Sums,
    /// Records of this block with a time below the frontier of the seal before it.
    below: u64,
    last: Option<Sealed>,
    seals: u64,
    cpus: BTreeMap<u32, Found>,
    /// The oldest and the newest time of each CPU, and how many records are older than one before them.
    newest: Vec<[u64; 3]>,
    times: Option<[u64; 2]>,
    numbers: Option<Numbers<'a>>,
    /// Counts of losses beside LOST records, which a seal counts as records: whether of the whole recording, and whose;
    /// how many there are, and their sum.
    beside: BTreeMap<(bool, u32), [u64; 2]>,
    doubts: Vec<Doubt>,
    more: u64,
    /// Bytes of AUX data.
    aux: u64,
}

/// Where the parts of a file are, by its header.
#[derive(Debug)]
struct Parts {
    /// Attributes: the size of each, where they begin, and all their bytes.
    attrs: Option<(u64, [u64; 2])>,
    data: Range<u64>,
    is_pipe: bool,
    is_unfinished: bool,
}

impl Parts {
    fn read(input: &Input) -> Result<Self, Error> {
        let mut head = [0; HEADER as usize];
        let there = input.len.min(HEADER);
        input.fill(0, &mut head[..there as usize])?;
        check_begin(&head[..there as usize])?;
        let mut words = Words(&head[8..]);
        let mut next = || words.u64().unwrap_or(0);
        let size = next();
        if there < PIPE_HEADER || (size != PIPE_HEADER && (size < HEADER || there < HEADER)) {
            return Err(malformed("header", 0));
        }
        if size == PIPE_HEADER {
            return Ok(Self { attrs: None, data: PIPE_HEADER..input.len, is_pipe: true, is_unfinished: false });
        }
        let (each, attrs, [at, len]) = (next(), [next(), next()], [next(), next()]);
        let is_unfinished = len == 0;
        let end = if is_unfinished { input.len } else { at.saturating_add(len).min(input.len) };
        let is_sound = each >= SMALLEST_ATTR as u64 + 16 && each % 8 == 0 && each <= 1 << 16;
        let attrs = is_sound.then_some((each, attrs));
        // A forged end may lie inside of the header, and `clamp` panics at bounds that are not in order.
        Ok(Self { attrs, data: at.clamp(HEADER, end.max(HEADER))..end, is_pipe: false, is_unfinished })
    }
}

impl<'a> Check<'a> {
    /// Checks a file.
    pub(super) fn all(path: &Path, numbers: Option<(&Key, Option<u64>)>) -> Result<Verdict, Error> {
        let mut input = Input::bounded(path, EVENTS)?;
        let of_file = Self::of_file(&input)?;
        let parts = match Parts::read(&input) {
            Ok(parts) => parts,
            // The seal says where the records are, even if the header does not.
            Err(why) if of_file.is_none() => return Err(why),
            Err(_) => Parts { attrs: None, data: HEADER..input.len, is_pipe: false, is_unfinished: false },
        };
        // The end of a pipe may look like the seal of a file, for it may have anything in it.
        let of_file = of_file.filter(|_| !parts.is_pipe);
        // The first seal is right before the records. It is needed where the last is not there any more.
        let first = match &of_file {
            None if !parts.is_pipe && !parts.is_unfinished => before(&input, parts.data.start)?,
            _ => None,
        };
        let data = match (&of_file, &first) {
            (Some(Sealed { seal, .. }), _) => seal.begin..seal.end,
            (None, Some(first)) => first.begin..parts.data.end,
            (None, None) if parts.is_pipe => 0..input.len,
            (None, None) => parts.data.clone(),
        };
        // If bytes were added or removed, the events behind them are not where the header has them. The first bytes
        // have them too.
        let unsure = of_file.as_ref().filter(|whole| !whole.is_intact()).map(|whole| &whole.seal).or(first.as_ref());
        let known = unsure.map(|seal| front(&input, data.start, &seal.front)).transpose()?;
        let (sorting, unreadable) = match known.unwrap_or(parts.attrs) {
            None => (parts.is_pipe.then(Sorting::default), None),
            Some((each, at)) => match read_attrs(&mut input, each as usize, at).and_then(|all| Sorting::new(&all)) {
                Ok(sorting) => (Some(sorting), None),
                Err(why) => (None, Some(why)),
            },
        };
        let mut check = Check {
            input: &input,
            reader: BufReader::with_capacity(PART, &input.file),
            at: data.start,
            end: data.end,
            sorting,
            unreadable,
            packed: None,
            hasher: Hasher::new(),
            pending: Vec::with_capacity(PART + (1 << 16)),
            block: data.start,
            is_sound: true,
            tally: Tally::default(),
            before: Sums::default(),
            below: 0,
            last: None,
            seals: 0,
            cpus: BTreeMap::new(),
            newest: Vec::new(),
            times: None,
            numbers: numbers.map(Numbers::new),
            beside: BTreeMap::new(),
            doubts: Vec::new(),
            more: 0,
            aux: 0,
        };
        check.reader.seek(SeekFrom::Start(data.start)).map_err(io)?;
        // The first block of a pipe has these bytes too (`Chain::begin`).
        check.skip(if parts.is_pipe { PIPE_HEADER } else { 0 })?;
        check.records()?;
        check.finish(of_file, &parts, data.start)
    }

    /// The seal of a file, and the hash of all that is no record.
    fn of_file(input: &Input) -> Result<Option<Sealed>, Error> {
        let Some(at) = input.len.checked_sub(SHORTEST as u64) else { return Ok(None) };
        let mut record = [0; SHORTEST];
        input.fill(at, &mut record)?;
        let Some((seal, stated)) = Seal::read(&record) else { return Ok(None) };
        // Any recording may end with bytes of this form: the places that they name must be in the file.
        if seal.flags & WHOLE == 0 || seal.begin < HEADER || seal.end < seal.begin || seal.end > at {
            return Ok(None);
        }
        let mut hasher = Hasher::new();
        hash(input, 0..seal.begin, &mut hasher)?;
        hash(input, seal.end..at + SHORTEST as u64 - 32, &mut hasher)?;
        let computed = *hasher.finalize().as_bytes();
        Ok(Some(Sealed { seal, stated, computed }))
    }

    /// Goes through all records.
    fn records(&mut self) -> Result<(), Error> {
        let (mut record, mut kept) = (Vec::new(), 0);
        // The events of a file are before its records.
        let is_pipe = self.at < HEADER;
        while self.at < self.end {
            let (at, left) = (self.at, self.end - self.at);
            record.clear();
            take(&mut self.reader, &mut record, left.min(8))?;
            let (kind, _, size) = header(&record);
            let is_own = kind >= OWN_KINDS;
            if size < 8 || u64::from(size) > left || (!is_own && size % 8 != 0) {
                self.search(at)?;
                continue;
            }
            take(&mut self.reader, &mut record, u64::from(size) - 8)?;
            self.at = at + u64::from(size);
            if !is_own {
                self.pend(&record);
                self.count(&record)?;
                continue;
            }
            // Not pended: a seal is hashed without its own hash.
            if let Some((seal, stated)) = Seal::read(&record) {
                self.seal(at, &record, seal, stated)?;
                continue;
            }
            self.pend(&record);
            let body = &record[8..];
            if kind == HEADER_ATTR && is_pipe {
                kept += body.len() as u64;
                self.event(at, body, kept);
            }
            if let Some(bytes) = compressed(kind, body) {
                // Taken out, because the closure needs all of `self`.
                let mut packed = self.packed.take().unwrap_or_else(|| Packed::new(self.input));
                let put = packed.put(at, bytes, |at, piece| self.unpacked(at, &piece))?;
                self.packed = put.map(|()| packed);
            }
            let behind = behind_it(kind, body);
            self.aux += if kind == AUXTRACE { behind.min(self.end - self.at) } else { 0 };
            match behind {
                behind if behind <= self.end - self.at => self.skip(behind)?,
                _ => self.search(self.at)?,
            }
        }
        match self.packed.take() {
            Some(packed) => packed.finish(self.at, |at, piece| self.unpacked(at, &piece)),
            None => Ok(()),
        }
    }

    /// Takes an event of a pipe, which has so many bytes of events now.
    fn event(&mut self, at: u64, body: &[u8], kept: u64) {
        let Some(sorting) = &mut self.sorting else { return };
        let added = match piped_attr(Words(body)) {
            _ if kept > EVENTS => Err(too_much("events", EVENTS)),
            None => Err(malformed("event", at)),
            Some(event) => sorting.add(&event),
        };
        if let Err(why) = added {
            (self.sorting, self.unreadable) = (None, Some(why));
        }
    }

    /// Takes what was compressed.
    fn unpacked(&mut self, at: u64, piece: &Piece<'_>) -> Result<(), Error> {
        match piece {
            Piece::Record(record) => self.count(record)?,
            Piece::Rest(_) => self.doubt(DoubtKind::Damage, at..self.at, None, Vec::new()),
            Piece::Other { .. } => {}
        }
        Ok(())
    }

    /// Counts a record.
    fn count(&mut self, record: &[u8]) -> Result<(), Error> {
        let Some(sorting) = &self.sorting else { return Ok(()) };
        let bytes = Bytes::from(record);
        let place = sorting.place(record).map(|(place, _)| place);
        let layout = place.and_then(|place| sorting.groups.get(place.group));
        let time = layout.and_then(|layout| attrs::field(bytes, layout, TIME));
        let loss = Loss::of(record, sorting);
        let lost = if let Some(Loss::Lost(count)) = loss { Some(count) } else { None };
        // A count of the whole has no place in the order.
        let time = time.filter(|_| !loss.is_some_and(Loss::is_whole));
        let cpu = place.filter(|_| !loss.is_some_and(Loss::is_whole)).map_or(NOBODY, |place| place.cpu);
        let counted = Counted { cpu, time, lost };
        if let Some(Loss::Samples(count) | Loss::Whole(count)) = loss {
            let sum = self.beside.entry((loss.is_some_and(Loss::is_whole), counted.whose())).or_default();
            (sum[0], sum[1]) = (sum[0] + 1, sum[1].saturating_add(count));
        }
        // As in the tally: a LOST record has the time of another one.
        if let (Some(time), None) = (time, lost) {
            let frontier = self.last.as_ref().map_or(0, |last| last.seal.sums.frontier);
            self.below += u64::from(time < frontier);
            let index = counted.whose().min(MOST_CPUS) as usize;
            if index >= self.newest.len() {
                self.newest.resize(index + 1, [u64::MAX, 0, 0]);
            }
            let [oldest, newest, back] = &mut self.newest[index];
            *oldest = time.min(*oldest);
            *back += u64::from(time < *newest);
            *newest = time.max(*newest);
        }
        if let Some(time) = time.filter(|time| *time > 0) {
            let [oldest, newest] = self.times.unwrap_or([time; 2]);
            self.times = Some([oldest.min(time), newest.max(time)]);
        }
        if let (Some(numbers), Some(place)) = (&mut self.numbers, place) {
            numbers.add(record, place.group, &sorting.groups)?;
        }
        self.tally.add(counted);
        Ok(())
    }

    /// Compares a block with its seal, which is a record at this place.
    fn seal(&mut self, at: u64, record: &[u8], seal: Seal, stated: Hash) -> Result<(), Error> {
        let until = at + record.len() as u64;
        let states = &record[..record.len() - 32];
        self.hasher.update(&self.pending).update(states);
        self.pending.clear();
        let mut computed = *self.hasher.finalize().as_bytes();
        let mut begin = self.block;
        // Where bytes were added, or a seal is none any more, the block may still be whole.
        if computed != stated
            && let Some(block) = seal.covers().and_then(|len| at.checked_sub(len)).filter(|block| *block > begin)
        {
            let mut hasher = Hasher::new();
            hash(self.input, block..at, &mut hasher)?;
            if *hasher.update(states).finalize().as_bytes() == stated {
                self.doubt(DoubtKind::Unsealed, begin..block, self.between(seal.sums.newest), Vec::new());
                (begin, computed, self.is_sound) = (block, stated, false);
            }
        }
        let this = Sealed { seal, stated, computed };
        let rows = self.close();
        let counted = self.tally.sums;
        // What was counted is compared only if all of the block was seen, from its begin.
        let differ =
            if self.sorting.is_some() && self.is_sound { differing(&rows, &this.seal.rows) } else { Vec::new() };
        // Each is asked only if those before it hold: one doubt of a block is enough.
        if !this.is_intact() {
            let times = self.between(this.seal.sums.newest);
            self.doubt(DoubtKind::Changed, begin..until, times, differ);
        } else if !self.follows(&this) {
            let times = self.between(this.seal.sums.newest);
            self.doubt(DoubtKind::Order, begin..until, times, Vec::new());
        } else if self.sorting.is_some() && self.is_sound && (!differ.is_empty() || !self.fits(&this.seal)) {
            let times = self.between(this.seal.sums.newest);
            self.doubt(DoubtKind::Counts, begin..until, times, differ);
        }
        // The next block is compared with what this one was, whatever is there now.
        self.tally.sums.newest = this.seal.sums.newest;
        self.before = Sums { newest: this.seal.sums.newest, ..counted };
        for row in &this.seal.rows {
            self.account(row);
        }
        self.hasher.reset();
        (self.block, self.is_sound, self.below) = (until, true, 0);
        self.seals += 1;
        self.last = Some(this);
        Ok(())
    }

    /// Adds what was counted of the block to each CPU. Gives it.
    fn close(&mut self) -> Vec<Row> {
        let rows = self.tally.take_rows();
        for Row { cpu, values: [records, lost, ..], .. } in &rows {
            let found = self.cpus.entry(*cpu).or_default();
            found.records += records;
            found.lost = found.lost.saturating_add(*lost);
        }
        rows
    }

    /// Whether a seal is the next in the chain. A seal whose hash alone was changed has a next one that knows the right
    /// hash.
    fn follows(&self, this: &Sealed) -> bool {
        match &self.last {
            None => this.seal.number == 0 && this.seal.before == [0; 32],
            Some(last) => [last.stated, last.computed].contains(&this.seal.before),
        }
    }

    /// Whether the block has as many records as its seal says, in that order. Unknown, and so true, behind a seal that
    /// may be wrong.
    fn fits(&self, Seal { flags, sums, .. }: &Seal) -> bool {
        let (start, since) = match &self.last {
            None => (true, Sums::default()),
            Some(last) => (last.is_intact(), last.seal.sums),
        };
        let (now, then) = (&self.tally.sums, &self.before);
        // Wrapping, here and below: a forged seal may say less than the one before.
        let late = sums.late.wrapping_sub(since.late);
        // Only late records may be older than one before them, or than the frontier.
        let in_order = now.back - then.back <= late && self.below <= late && sums.frontier <= sums.newest;
        let pairs = [
            (now.records - then.records, sums.records.wrapping_sub(since.records)),
            (now.lost - then.lost, sums.lost.wrapping_sub(since.lost)),
            (now.back - then.back, sums.back.wrapping_sub(since.back)),
            (now.newest, sums.newest),
        ];
        !start || (pairs.iter().all(|(found, said)| found == said) && (in_order || flags & BY_TIME == 0))
    }

    /// The times of a block's records, by the seal before it and its own, and by the records that are there.
    fn between(&self, newest: u64) -> Option<[u64; 2]> {
        let from = self.last.as_ref().map_or(0, |last| last.seal.sums.newest);
        let until = newest.max(self.tally.sums.newest);
        (until > 0).then_some([from, until.max(from)])
    }

    /// Takes what the ledger says of a CPU, or of the whole machine.
    fn account(&mut self, row: &Row) {
        if let Some(more) = row.account() {
            let found = self.cpus.entry(more.cpu.unwrap_or(NOBODY)).or_default();
            let none = Account::default();
            let account = found.account.get_or_insert(none);
            account.cpu = more.cpu;
            *account += &more;
        }
    }

    /// These bytes begin no record. Goes on at the next seal, as far as there is one.
    fn search(&mut self, from: u64) -> Result<(), Error> {
        self.is_sound = false;
        self.reader.seek(SeekFrom::Start(from)).map_err(io)?;
        let (mut window, mut begin) = (Vec::new(), from);
        let found = loop {
            // No underflow: the window never reaches behind the end.
            let read = (self.end - begin - window.len() as u64).min(PART as u64);
            take(&mut self.reader, &mut window, read)?;
            let seals = window.windows(MAGIC.len()).enumerate().filter(|(_, bytes)| bytes == MAGIC);
            // Behind `from`, so that each search goes on.
            let mut places = seals.filter_map(|(at, _)| (begin + at as u64).checked_sub(8)).filter(|at| *at > from);
            if let Some(found) = places.find(|at| self.is_seal(*at)) {
                break found;
            }
            if read == 0 {
                break self.end;
            }
            // What begins here may go on in the next part.
            let done = window.len().saturating_sub(MAGIC.len() - 1);
            window.drain(..done).for_each(drop);
            begin += done as u64;
        };
        self.reader.seek(SeekFrom::Start(from)).map_err(io)?;
        self.at = from;
        // Hashed all the same: a seal may stand for these bytes as they are.
        self.skip(found - from)?;
        let times = self.between(0);
        self.doubt(DoubtKind::Damage, from..found, times, Vec::new());
        Ok(())
    }

    /// Whether a record that begins here has the form of a seal.
    fn is_seal(&self, at: u64) -> bool {
        let mut record = vec![0; (self.end.saturating_sub(at)).min(Seal::len(MOST_ROWS) as u64) as usize];
        if record.len() < SHORTEST || self.input.fill(at, &mut record).is_err() {
            return false;
        }
        let size = usize::from(header(&record).2);
        record.get(..size).is_some_and(|record| Seal::read(record).is_some())
    }

    /// Hashes bytes, whatever they are.
    fn skip(&mut self, len: u64) -> Result<(), Error> {
        let mut left = len;
        while left > 0 {
            let part = left.min(PART as u64);
            take(&mut self.reader, &mut self.pending, part)?;
            self.hash();
            left -= part;
        }
        self.at += len;
        Ok(())
    }

    /// Hashes bytes, in large parts: that is faster.
    fn pend(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= PART {
            self.hash();
        }
    }

    fn hash(&mut self) {
        self.hasher.update(&self.pending);
        self.pending.clear();
    }

    fn doubt(&mut self, kind: DoubtKind, bytes: Range<u64>, times: Option<[u64; 2]>, cpus: Vec<u32>) {
        if self.doubts.len() < DOUBTS {
            self.doubts.push(Doubt { kind, bytes, times, cpus });
        } else {
            self.more += 1;
        }
    }

    /// What is behind the last seal and around the records, and what is found in all.
    fn finish(mut self, of_file: Option<Sealed>, parts: &Parts, start: u64) -> Result<Verdict, Error> {
        // Records behind the last seal count too.
        self.close();
        self.numbers.as_mut().map_or(Ok(()), Numbers::count)?;
        if self.seals > 0 || of_file.is_some() {
            self.check_around(of_file.as_ref(), parts, start)?;
        } else {
            // Nothing is known of it at all.
            match &self.sorting {
                None => return Err(self.unreadable.unwrap_or_else(|| malformed("header", 8))),
                Some(sorting) if sorting.groups.is_empty() => return Err(no_event()),
                Some(_) => {}
            }
        }
        let last = of_file.or(self.last.take());
        let missing = self.check_sums(last.as_ref(), start);
        let Sums { mut records, mut lost, back, .. } = self.tally.sums;
        self.count_beside(&mut records, &mut lost);
        let accounts = self.cpus.values().filter_map(|found| found.account);
        let account = accounts.fold(None, |sum: Option<Account>, more| {
            let mut sum = sum.unwrap_or_default();
            sum += &more;
            Some(sum)
        });
        let found = Found { cpu: None, records, lost, back, missing, times: self.times, account };
        let claims = last.as_ref().map(|Sealed { seal, .. }| {
            let Sums { proven, assumed, late, missing, left_out, frontier, .. } = seal.sums;
            let (by_time, numbers) = (seal.flags & BY_TIME != 0, seal.flags & NUMBERS != 0);
            let frontier = (proven > 0).then_some(frontier);
            Claims { proven, assumed, late, missing, left_out, frontier, by_time, numbers }
        });
        Ok(Verdict {
            hash: last.map(|last| last.stated),
            seals: self.seals,
            found,
            aux: self.aux,
            claims,
            cpus: self.cpus.into_values().collect(),
            doubts: self.doubts,
            more: self.more,
        })
    }

    /// Takes counts of losses for what they are, now that all was compared with the seals.
    fn count_beside(&mut self, records: &mut u64, lost: &mut u64) {
        let beside = std::mem::take(&mut self.beside);
        // Of the same losses as LOST records (`lost.rs`).
        let whole = beside.iter().filter(|((is_whole, _), _)| *is_whole).map(|(_, [_, count])| *count);
        *lost = whole.fold(0, u64::saturating_add).max(*lost);
        for ((is_whole, cpu), [counts, sum]) in beside {
            *records -= counts;
            let found = self.cpus.entry(cpu).or_default();
            found.records -= counts;
            if !is_whole {
                *lost = lost.saturating_add(sum);
                found.lost = found.lost.saturating_add(sum);
            }
        }
        // Nothing else may have been of no CPU.
        self.cpus.retain(|cpu, found| *cpu != NOBODY || *found != Found::default());
    }

    /// What is behind the last seal, and around the records.
    fn check_around(&mut self, of_file: Option<&Sealed>, parts: &Parts, start: u64) -> Result<(), Error> {
        let (end, len) = (self.end, self.input.len);
        if self.block < end {
            let times = self.between(0);
            self.doubt(DoubtKind::Unsealed, self.block..end, times, Vec::new());
        }
        let last = of_file.or(self.last.as_ref());
        // Its last records may be sealed as the end, but nobody completed it: what lies behind them is missing.
        if parts.is_unfinished || last.is_none_or(|last| last.seal.flags & END == 0) {
            self.doubt(DoubtKind::Unfinished, end..end, None, Vec::new());
        }
        let is_head_sealed = match of_file {
            Some(whole) => whole.is_intact(),
            // Its first bytes are in its first block.
            None if parts.is_pipe => true,
            // A file that was completed has another header than the front that its seals know.
            None => parts.is_unfinished && self.is_front(start)?,
        };
        if self.sorting.is_none() {
            self.doubt(DoubtKind::Uncounted, start..end, None, Vec::new());
        }
        if !is_head_sealed {
            // With other events, the records have other fields.
            self.doubts.retain(|doubt| doubt.kind != DoubtKind::Counts || !parts.is_unfinished);
            self.doubt(DoubtKind::Head, 0..start, None, Vec::new());
            if !parts.is_pipe && !parts.is_unfinished {
                self.doubt(DoubtKind::Head, end..len, None, Vec::new());
            }
        } else if of_file.is_some_and(|whole| !self.follows(whole)) {
            self.doubt(DoubtKind::Order, self.block..end, None, Vec::new());
        }
        Ok(())
    }

    /// Whether the counts fit. Gives how many numbers of CPUs are missing.
    fn check_sums(&mut self, last: Option<&Sealed>, start: u64) -> u64 {
        let end = self.end;
        for (cpu, found) in &mut self.cpus {
            found.cpu = (*cpu != NOBODY).then_some(*cpu);
            let index = (*cpu).min(MOST_CPUS) as usize;
            if let Some([oldest, newest, back]) = self.newest.get(index).copied().filter(|[_, newest, _]| *newest > 0) {
                (found.times, found.back) = (Some([oldest, newest]), back);
            }
        }
        let mut missing = 0;
        for (cpu, of_cpu) in self.numbers.iter().flat_map(Numbers::missing) {
            self.cpus.entry(cpu).or_default().missing = of_cpu;
            missing = of_cpu.saturating_add(missing);
        }
        // Who had no numbers was told of no gap.
        let differs = |Sealed { seal, .. }: &Sealed| seal.flags & NUMBERS != 0 && seal.sums.missing != missing;
        // A difference is no news where something is in doubt already.
        if self.numbers.is_some() && self.doubts.is_empty() && last.is_some_and(differs) {
            self.doubt(DoubtKind::Counts, start..end, self.times, Vec::new());
        }
        // No CPU has more records than the ledger, and no losses that the ledger does not know.
        let is_wrong = |found: &Found| {
            let of_cpu = found.account.filter(|account| account.cpu.is_some());
            of_cpu.is_some_and(|account| found.records > account.yielded || found.lost > account.lost)
        };
        let wrong: Vec<_> = self.cpus.iter().filter(|(_, found)| is_wrong(found)).map(|(cpu, _)| *cpu).collect();
        // Records without times: the names of what ran before then count as those of a CPU (`Writer::made_up`).
        if !wrong.is_empty() && self.doubts.is_empty() && self.times.is_some() {
            self.doubt(DoubtKind::Counts, start..end, self.times, wrong);
        }
        missing
    }

    /// Whether the first bytes of a file that was not finished are those that the last seal knew.
    fn is_front(&self, start: u64) -> Result<bool, Error> {
        let mut hasher = Hasher::new();
        hash(self.input, 0..start, &mut hasher)?;
        Ok(self.last.as_ref().is_some_and(|last| last.seal.front == *hasher.finalize().as_bytes()))
    }
}

/// The first seal of a file, if it is right before the records.
fn before(input: &Input, records: u64) -> Result<Option<Seal>, Error> {
    let Some(at) = records.checked_sub(SHORTEST as u64).filter(|_| records <= input.len) else { return Ok(None) };
    let mut record = [0; SHORTEST];
    input.fill(at, &mut record)?;
    let first = Seal::read(&record).map(|(seal, _)| seal);
    // A seal that was moved here names another place.
    Ok(first.filter(|seal| seal.number == 0 && seal.end == at && (HEADER..=at).contains(&seal.begin)))
}

/// Where the events are in the first bytes of a file, which end here. `None` if these are not those that were sealed.
fn front(input: &Input, end: u64, sealed: &Hash) -> Result<Option<(u64, [u64; 2])>, Error> {
    let mut attr = [0; 8];
    if end < HEADER + SMALLEST_ATTR as u64 + 16 || end > input.len {
        return Ok(None);
    }
    input.fill(HEADER, &mut attr)?;
    let size = u64::from(Words(&attr[4..]).u32().unwrap_or(0));
    // No overflow: the size has 32 bits.
    let ids = HEADER + size;
    if size < SMALLEST_ATTR as u64 || ids + 16 > end {
        return Ok(None);
    }
    // The first event says where its ids are: behind all events.
    input.fill(ids, &mut attr)?;
    let (each, ids) = (size + 16, u64::from_ne_bytes(attr));
    let Some(len) = ids.checked_sub(HEADER).filter(|len| *len > 0 && len % each == 0 && ids <= end) else {
        return Ok(None);
    };
    let mut hasher = Hasher::new();
    hasher.update(&unfinished(each as usize, (len / each) as usize, end));
    hash(input, HEADER..end, &mut hasher)?;
    Ok((hasher.finalize().as_bytes() == sealed).then_some((each, [HEADER, len])))
}

/// Hashes bytes of the file.
fn hash(input: &Input, bytes: Range<u64>, hasher: &mut Hasher) -> Result<(), Error> {
    let mut buffer = vec![0; bytes.end.saturating_sub(bytes.start).min(PART as u64) as usize];
    let mut at = bytes.start;
    while at < bytes.end {
        let part = &mut buffer[..(bytes.end - at).min(PART as u64) as usize];
        input.fill(at, part)?;
        hasher.update(part);
        at += part.len() as u64;
    }
    Ok(())
}

/// The CPUs whose rows are not the same.
fn differing(found: &[Row], said: &[Row]) -> Vec<u32> {
    let mut rows: BTreeMap<u32, [Option<&Row>; 2]> = BTreeMap::new();
    found.iter().for_each(|row| rows.entry(row.cpu).or_default()[0] = Some(row));
    said.iter().filter(|row| row.of == Rows::Block).for_each(|row| rows.entry(row.cpu).or_default()[1] = Some(row));
    rows.into_iter().filter(|(_, [found, said])| found != said).map(|(cpu, _)| cpu).collect()
}
