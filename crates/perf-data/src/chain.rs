//! What a recording says of itself while it is written: seals among its records.
//!
//! ```text
//! file:  header | events, ids | facts | seal 0 | records | seal 1 | .. | records | last seal || facts, events, ids | seal of the file
//! pipe:  header, events, facts        | seal 0 | records | seal 1 | .. | records | last seal
//! ```
//! A seal has the BLAKE3 hash of all bytes since the seal before it, its block, and of its own up to the hash. The hash
//! of the seal before it is among those, so the seals are a chain. The seal of a file stands for the bytes that are in no
//! block: the header, the events, and what lies behind the records.
//!
//! The chain takes bytes and counts, and gives seals. It knows nothing of how a recording is written or read, so all of
//! this package but [`verify`](crate::verify()) is understood without it.

mod seal;
mod tally;

use blake3::Hasher;
use perfweave::{Certainty, Event, Item, Status};
pub(crate) use seal::{
    BY_TIME, END, FINISHED_ROUND, Hash, MAGIC, MOST_CPUS, MOST_ROWS, NOBODY, NUMBERS, Row, Rows, SHORTEST, Seal, Sums,
    WHOLE,
};
pub(crate) use tally::{Counted, Tally};

/// What is claimed, and the end of the chain.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    tally: Tally,
    /// Whether a key was not the record's time.
    other_keys: bool,
    /// Whether the stream has numbers of each CPU, as far as is known, and whether others are missing too.
    numbers: bool,
    other_numbers: bool,
    ledger: Vec<Row>,
    /// The first bytes of the file as they are in it while it is not complete, and their hash. None in a pipe.
    front: (Vec<u8>, Hash),
    /// Of the block.
    hasher: Hasher,
    /// Where the block begins, and where the bytes end that it has until now.
    begin: u64,
    end: u64,
    /// How many seals there are, and the hash of the last among the records.
    seals: u64,
    before: Hash,
    /// That of the last of all.
    pub(crate) hash: Hash,
    ended: bool,
}

impl Chain {
    /// The first bytes of a file, which are in no block: they are written over. Those of a pipe are in its first block.
    pub(crate) fn begin(&mut self, front: Vec<u8>) {
        (self.begin, self.end) = (front.len() as u64, front.len() as u64);
        self.hasher.reset();
        self.front_is(front);
    }

    /// The first bytes of the file were written over.
    pub(crate) fn front_is(&mut self, front: Vec<u8>) {
        let hash = *blake3::hash(&front).as_bytes();
        self.front = (front, hash);
    }

    /// Takes the next bytes. In large parts: for a record alone it is three times as slow.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.end += bytes.len() as u64;
    }

    /// Counts a record of the stream.
    pub(crate) fn record(&mut self, event: &Event<'_>, counted: Counted) {
        self.tally.add(counted);
        let (sums, key) = (&mut self.tally.sums, event.key());
        self.other_keys |= key != counted.time;
        match event.certainty() {
            Certainty::Proven => {
                sums.proven += 1;
                // A record without a key can be proven: it has the certainty of the one before it.
                sums.frontier = sums.frontier.max(key.unwrap_or(0));
            }
            Certainty::Assumed => sums.assumed += 1,
            Certainty::Late => sums.late += 1,
        }
    }

    /// Counts a record of the writer's own: a name, or losses.
    pub(crate) fn made_up(&mut self, counted: Counted) {
        self.tally.add(counted);
    }

    /// Counts an event for which there is no record.
    pub(crate) fn left_out(&mut self, item: &Item<'_>) {
        let sums = &mut self.tally.sums;
        sums.left_out += 1;
        if let Item::Gap(gap) = item {
            sums.missing = sums.missing.saturating_add(gap.count);
            self.numbers |= gap.cpu.is_some();
            self.other_numbers |= gap.cpu.is_none();
        }
    }

    /// Takes the account of everything, which the last seals have.
    pub(crate) fn take_ledger(&mut self, ledger: &Status) {
        self.numbers |= ledger.numbers;
        self.ledger = ledger.accounts.iter().chain([&ledger.machine]).flat_map(Row::of).collect();
    }

    /// Whether one seal has no room for many more CPUs.
    pub(crate) fn is_full(&self) -> bool {
        self.tally.is_full()
    }

    /// No record follows: as many more seals, the last one as the end, have the ledger.
    pub(crate) fn end(&mut self) -> usize {
        self.ended = true;
        self.ledger.len().div_ceil(LEDGER).max(1)
    }

    /// The seal of the block, which ends here, as a record. It is in no block: the next begins behind it.
    pub(crate) fn seal(&mut self) -> Vec<u8> {
        let mut rows = self.tally.take_rows();
        if self.ended {
            rows.extend(self.ledger.drain(..LEDGER.min(self.ledger.len())));
        }
        let is_last = self.ended && self.ledger.is_empty();
        let seal = self.stated(if is_last { END } else { 0 }, self.begin, rows);
        let (bytes, hash) = seal.bytes(&mut self.hasher);
        self.hasher.reset();
        self.end += bytes.len() as u64;
        self.begin = self.end;
        self.seals += 1;
        (self.before, self.hash) = (hash, hash);
        bytes
    }

    /// The seal of a file that is complete, for its header, its first bytes and what lies behind its records.
    pub(crate) fn seal_of_file(&mut self, header: &[u8], behind: &[u8]) -> Vec<u8> {
        let (front, flags) = (&self.front.0, WHOLE | if self.ended { END } else { 0 });
        // Without rows, so that its length is known: it is looked for at the end of the file (`verify`).
        let seal = self.stated(flags, front.len() as u64, Vec::new());
        let mut hasher = Hasher::new();
        // The header of the complete file stands where that of the open one was.
        hasher.update(header).update(&front[header.len()..]).update(behind);
        let (bytes, hash) = seal.bytes(&mut hasher);
        self.hash = hash;
        bytes
    }

    fn stated(&self, flags: u32, begin: u64, rows: Vec<Row>) -> Seal {
        let flags = flags | if self.other_keys { 0 } else { BY_TIME };
        let flags = flags | if self.numbers && !self.other_numbers { NUMBERS } else { 0 };
        let (number, end, sums, front, before) = (self.seals, self.end, self.tally.sums, self.front.1, self.before);
        Seal { flags, number, begin, end, sums, front, before, rows }
    }
}

/// So many rows of the ledger are in a seal: the tally may have as many for it (`Tally::is_full`).
const LEDGER: usize = MOST_ROWS / 2;
