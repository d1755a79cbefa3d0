//! What a recording says of itself while it is written: seals among its records.

use super::Writer;
use crate::metadata::{HEADER, PIPE_HEADER};
use crate::seal::{BY_TIME, Counted, END, Hash, MOST_ROWS, NUMBERS, Row, Seal, Tally, WHOLE};
use blake3::Hasher;
use perfweave::{Certainty, Error, Event, Item, Status};

/// What is claimed, and the end of the chain.
#[derive(Debug, Default)]
pub(super) struct Certificate {
    pub(super) tally: Tally,
    /// Whether a key was not the record's time.
    other_keys: bool,
    /// Whether the stream has numbers of each CPU, as far as is known, and whether others are missing too.
    numbers: bool,
    other_numbers: bool,
    ledger: Vec<Row>,
    /// The first bytes of the file as they are in it while it is not complete, and their hash.
    front: (Vec<u8>, Hash),
    /// How many seals there are, the hash of the last, and where it ends.
    seals: u64,
    last: Hash,
    sealed: u64,
    ended: bool,
}

impl Certificate {
    /// Counts a record of the stream.
    pub(super) fn record(&mut self, event: &Event<'_>, counted: Counted) {
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

    /// Counts an event for which there is no record.
    pub(super) fn left_out(&mut self, item: &Item<'_>) {
        let sums = &mut self.tally.sums;
        sums.left_out += 1;
        if let Item::Gap(gap) = item {
            sums.missing = sums.missing.saturating_add(gap.count);
            self.numbers |= gap.cpu.is_some();
            self.other_numbers |= gap.cpu.is_none();
        }
    }

    /// Takes the account of everything, which the last seal has.
    pub(super) fn take_ledger(&mut self, ledger: &Status) {
        self.numbers |= ledger.numbers;
        self.ledger = ledger.accounts.iter().chain([&ledger.machine]).flat_map(Row::of).collect();
    }

    /// The first bytes of the file were written over.
    pub(super) fn front_is(&mut self, front: Vec<u8>) {
        let hash = *blake3::hash(&front).as_bytes();
        self.front = (front, hash);
    }
}

impl Writer {
    /// The first block of a file begins behind its first bytes, which are written over.
    pub(super) fn begin_certificate(&mut self, front: Vec<u8>) {
        self.certificate.front_is(front);
        self.file.unsealed();
    }

    /// Whether bytes were written since the last seal.
    pub(super) fn is_unsealed(&self) -> bool {
        self.data > self.certificate.sealed
    }

    /// Seals all records until now. perf takes the record for the end of a round, and shows what it has.
    pub(super) fn seal(&mut self, flags: u32) -> Result<(), Error> {
        self.seal_with(flags, &[])
    }

    /// Seals a recording that ends here, with the ledger.
    pub(super) fn last_seals(&mut self) -> Result<(), Error> {
        let ledger = std::mem::take(&mut self.certificate.ledger);
        // Half, because the tally may have as many rows for the same seal (`Tally::is_full`).
        let mut parts: Vec<_> = ledger.chunks(MOST_ROWS / 2).collect();
        let last = parts.pop().unwrap_or(&[]);
        parts.into_iter().try_for_each(|part| self.seal_with(0, part))?;
        self.certificate.ended = true;
        self.seal_with(END, last)
    }

    fn seal_with(&mut self, flags: u32, more: &[Row]) -> Result<(), Error> {
        let mut rows = self.certificate.tally.take_rows();
        rows.extend(more);
        // The first bytes of a pipe are never written over, and belong to its first block.
        let (is_pipe, is_first) = (self.file.is_pipe(), self.certificate.seals == 0);
        let front = if is_pipe { PIPE_HEADER } else { self.front.end };
        let begin = if is_pipe && is_first { 0 } else { front + self.certificate.sealed };
        let seal = self.stated(flags, [begin, front + self.data], rows);
        let hash = self.file.seal(&seal)?;
        self.data += Seal::len(seal.rows.len()) as u64;
        self.file.whole();
        self.round = self.data;
        let certificate = &mut self.certificate;
        (certificate.last, certificate.sealed) = (hash, self.data);
        certificate.seals += 1;
        self.written.hash = hash;
        Ok(())
    }

    fn stated(&self, flags: u32, [begin, end]: [u64; 2], rows: Vec<Row>) -> Seal {
        let Certificate { tally, other_keys, numbers, other_numbers, front, seals, last, .. } = &self.certificate;
        let flags = flags | if *other_keys { 0 } else { BY_TIME };
        let flags = flags | if *numbers && !other_numbers { NUMBERS } else { 0 };
        Seal { flags, number: *seals, begin, end, sums: tally.sums, front: front.1, before: *last, rows }
    }

    /// The seal of a file that is complete, for its header, its first bytes and what lies behind its records.
    pub(super) fn seal_of_file(&mut self, header: &[u8], behind: &[u8]) -> Vec<u8> {
        let begin = self.front.end;
        let flags = WHOLE | if self.certificate.ended { END } else { 0 };
        // Without rows, so that its length is known: it is looked for at the end of the file (`Check::of_file`).
        let seal = self.stated(flags, [begin, begin + self.data], Vec::new());
        let mut hasher = Hasher::new();
        // The header of the complete file stands where that of the open one was.
        hasher.update(header).update(&self.certificate.front.0[HEADER as usize..]).update(behind);
        let (bytes, hash) = seal.bytes(&mut hasher);
        self.written.hash = hash;
        bytes
    }
}
