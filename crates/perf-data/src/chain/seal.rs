//! A seal, and its bytes. It is a FINISHED_ROUND record with a body, which perf takes for one without.

use crate::words::Words;
use blake3::Hasher;
use perfweave::Account;
use std::time::Duration;

/// `PERF_RECORD_FINISHED_ROUND`
pub(crate) const FINISHED_ROUND: u32 = 68;

/// What the body of a seal begins with. It has the version of the format.
pub(crate) const MAGIC: &[u8; 16] = b"perfweave seal 1";

/// BLAKE3, 32 bytes.
pub(crate) type Hash = [u8; 32];

/// The record's header, and the fields before the rows.
const FIXED: usize = 8 + MAGIC.len() + 8 + 3 * 8 + 8 * Sums::COUNT + 2 * 32;
const ROW: usize = 40;
/// The length of a seal without rows.
pub(crate) const SHORTEST: usize = FIXED + 32;
/// So many rows a seal has at most: a record has no room for more than 1,600.
pub(crate) const MOST_ROWS: usize = 1024;

/// No record follows: the recording was ended as its program wanted.
pub(crate) const END: u32 = 1;
/// The seal of a file.
pub(crate) const WHOLE: u32 = 2;
/// The keys that ordered all records until now are their times.
pub(crate) const BY_TIME: u32 = 4;
/// The stream had numbers of each CPU, and all missing numbers are of these.
pub(crate) const NUMBERS: u32 = 8;

/// What is counted from the first record on. The order is that of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Records of kinds below 64 without LOST records.
    pub(crate) records: u64,
    /// The sum of the LOST records.
    pub(crate) lost: u64,
    /// Records that have a smaller time than one before them.
    pub(crate) back: u64,
    /// Records of a stream, by [`Certainty`](perfweave::Certainty).
    pub(crate) proven: u64,
    pub(crate) assumed: u64,
    pub(crate) late: u64,
    /// Missing numbers that gaps told.
    pub(crate) missing: u64,
    /// Events that a recording has no record for.
    pub(crate) left_out: u64,
    /// The largest key of a proven record.
    pub(crate) frontier: u64,
    /// The largest time.
    pub(crate) newest: u64,
}

impl Sums {
    const COUNT: usize = 10;

    fn words(self) -> [u64; Self::COUNT] {
        let Self { records, lost, back, proven, assumed, late, missing, left_out, frontier, newest } = self;
        [records, lost, back, proven, assumed, late, missing, left_out, frontier, newest]
    }

    fn read(words: &mut Words<'_>) -> Option<Self> {
        let mut next = || words.u64();
        let [records, lost, back] = [next()?, next()?, next()?];
        let [proven, assumed, late, missing] = [next()?, next()?, next()?, next()?];
        let [left_out, frontier, newest] = [next()?, next()?, next()?];
        Some(Self { records, lost, back, proven, assumed, late, missing, left_out, frontier, newest })
    }
}

/// Records of no CPU, or of no CPU that there can be, and those of time 0, which no stream had: names.
pub(crate) const NOBODY: u32 = u32::MAX;
/// No kernel has more CPUs (`NR_CPUS`).
pub(crate) const MOST_CPUS: u32 = 8192;

/// Of which kind a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// Of the block before the seal: records, the sum of LOST records, and the first and the last time in the order of
    /// the file.
    Block = 0,
    /// Of the ledger: yielded, held, lost, missing. All losses are counted.
    Exact = 1,
    /// The same, and losses may be more.
    AtLeast = 2,
    /// The rest of an account, if there is any: damage, unexplained missing numbers, 0, nanoseconds without tracing.
    /// Instead of 0, earlier recordings have how often a counter may have wrapped around unnoticed.
    Rest = 3,
}

/// What is counted by CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) cpu: u32,
    pub(crate) of: Rows,
    pub(crate) values: [u64; 4],
}

impl Row {
    /// An account as rows. That of the whole machine is one of [`NOBODY`], and has rows only if there is something to
    /// say.
    pub(crate) fn of(account: &Account) -> impl Iterator<Item = Self> {
        let Account { yielded, held, lost, missing, exact, damaged, unexplained, untraced, .. } = *account;
        let untraced = u64::try_from(untraced.as_nanos()).unwrap_or(u64::MAX);
        let of = if exact { Rows::Exact } else { Rows::AtLeast };
        let cpu = account.cpu.unwrap_or(NOBODY);
        let counts = Self { cpu, of, values: [yielded, held, lost, missing] };
        let rest = Self { cpu, of: Rows::Rest, values: [damaged, unexplained, 0, untraced] };
        let is_needed = |row: &Self| row.values != [0; 4];
        [Some(counts).filter(|row| account.cpu.is_some() || is_needed(row)), Some(rest).filter(is_needed)]
            .into_iter()
            .flatten()
    }

    /// What a row adds to the account of its CPU. `None` if it is of a block.
    pub(crate) fn account(&self) -> Option<Account> {
        let mut account = Account::default();
        account.cpu = (self.cpu < MOST_CPUS).then_some(self.cpu);
        match self.of {
            Rows::Block => return None,
            Rows::Exact | Rows::AtLeast => {
                [account.yielded, account.held, account.lost, account.missing] = self.values;
                account.exact = self.of == Rows::Exact;
            }
            Rows::Rest => {
                let [damaged, unexplained, wraparounds, untraced] = self.values;
                // So much was lost that numbers did not say how much: that was not explained either.
                (account.damaged, account.unexplained) = (damaged, unexplained.saturating_add(wraparounds));
                account.untraced = Duration::from_nanos(untraced);
            }
        }
        Some(account)
    }
}

/// What a seal says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) flags: u32,
    /// Counts from 0.
    pub(crate) number: u64,
    /// Where its block begins and ends, in bytes. In the seal of a file: where the records and the facts before them
    /// begin and end.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) sums: Sums,
    /// The hash of the file's bytes before the first block as they were then, with the header of a file that was not
    /// finished. 0 in a pipe.
    pub(crate) front: Hash,
    /// The hash of the seal before it; 0 in the first.
    pub(crate) before: Hash,
    pub(crate) rows: Vec<Row>,
}

impl Seal {
    /// How long a seal with so many rows is.
    pub(crate) fn len(rows: usize) -> usize {
        SHORTEST + ROW * rows
    }

    /// The record. `hasher` has taken all bytes that the seal stands for. The second is the hash, which is the end of
    /// the record.
    pub(crate) fn bytes(&self, hasher: &mut Hasher) -> (Vec<u8>, Hash) {
        let len = Self::len(self.rows.len());
        let mut out = Vec::with_capacity(len);
        out.extend(FINISHED_ROUND.to_ne_bytes());
        // Fits: a seal with the most rows has some 40 KiB.
        out.extend([0, len as u16].iter().flat_map(|half| half.to_ne_bytes()));
        out.extend(MAGIC);
        out.extend([self.flags, self.rows.len() as u32].iter().flat_map(|half| half.to_ne_bytes()));
        let words = [self.number, self.begin, self.end].into_iter().chain(self.sums.words());
        out.extend(words.flat_map(u64::to_ne_bytes));
        out.extend(self.front.iter().chain(&self.before));
        for row in &self.rows {
            out.extend([row.cpu, row.of as u32].iter().flat_map(|half| half.to_ne_bytes()));
            out.extend(row.values.iter().flat_map(|word| word.to_ne_bytes()));
        }
        let hash = *hasher.update(&out).finalize().as_bytes();
        out.extend(hash);
        (out, hash)
    }

    /// Reads a record. The second is the hash that it states. `None` if the record is no seal.
    pub(crate) fn read(record: &[u8]) -> Option<(Self, Hash)> {
        let mut words = Words(record);
        let (kind, _misc_and_size, magic) = (words.u32()?, words.u32()?, words.bytes(MAGIC.len())?);
        if kind != FINISHED_ROUND || magic != MAGIC {
            return None;
        }
        let (flags, count) = (words.u32()?, words.u32()? as usize);
        if count > MOST_ROWS || record.len() != Self::len(count) {
            return None;
        }
        let (number, begin, end) = (words.u64()?, words.u64()?, words.u64()?);
        let sums = Sums::read(&mut words)?;
        let mut hash = || words.bytes(32)?.try_into().ok();
        let (front, before) = (hash()?, hash()?);
        let rows = (0..count).map(|_| {
            let (cpu, of) = (words.u32()?, words.u32()?);
            let known = [Rows::Block, Rows::Exact, Rows::AtLeast, Rows::Rest];
            let of = known.into_iter().find(|known| *known as u32 == of)?;
            let mut next = || words.u64();
            Some(Row { cpu, of, values: [next()?, next()?, next()?, next()?] })
        });
        let rows = rows.collect::<Option<_>>()?;
        let hash = words.bytes(32)?.try_into().ok()?;
        Some((Self { flags, number, begin, end, sums, front, before, rows }, hash))
    }

    /// How many bytes its block has.
    pub(crate) fn covers(&self) -> Option<u64> {
        self.end.checked_sub(self.begin)
    }
}
