//! Seals: what a file of a recording says of itself, in its footer.
//!
//! ```text
//! file:  PAR1 | rows | indexes | footer: .. , perfweave = {"perfweave seal 1":"HASH", .. } , .. | length | PAR1
//! ```
//! A seal is JSON text among the key-value metadata of a Parquet file. It begins with the BLAKE3 hash of the whole
//! file, in which the digits of the hash itself are zeros. It has the hash of the file that was finished before it, of
//! whatever table, so the files of a recording are a chain in the order in which they were finished.

mod tally;

pub(crate) use tally::numbers;
pub use tally::{Foreign, OfCpu, Sums, Tally, counted};

use blake3::{Hash, Hasher};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The key of the text.
pub const KEY: &str = "perfweave";
/// What the text begins with. It has the version of the format.
const START: &[u8] = b"{\"perfweave seal 1\":\"";
/// How many digits the hash has.
pub const DIGITS: usize = 2 * blake3::OUT_LEN;
/// A longer text is no seal: one with 8192 CPUs is shorter.
const TEXT: usize = 4 << 20;
/// No path is longer (`PATH_MAX`).
const PATH: usize = 4096;
/// The ids of the kernel's boots and of recordings are shorter.
const ID: usize = 64;
/// What every Parquet file ends with.
const MAGIC: &[u8; 4] = b"PAR1";
/// The length of the footer, and [`MAGIC`].
pub const TRAILER: usize = 8;

/// What a file says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// Of the file, with zeros in the place of its digits.
    #[serde(rename = "perfweave seal 1", with = "digits")]
    pub hash: Hash,
    /// Where it is in the archive.
    pub file: String,
    /// The boot of the kernel.
    pub boot: String,
    /// The recording.
    pub trace: String,
    /// Counts the finished files of the recording, from 0.
    pub number: u64,
    /// The file before it.
    pub before: Option<Before>,
    /// What the file has.
    pub here: Sums,
    /// The same by CPU.
    pub cpus: Vec<OfCpu>,
    /// What all files have, up to this one.
    pub sums: Sums,
    /// No row of a later file has a smaller key, but for late ones. `None` if that is not known.
    pub open: Option<i64>,
    /// Of the last file, the ledger.
    pub end: Option<End>,
}

/// The file that was finished before another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// Of that file.
    #[serde(with = "digits")]
    pub hash: Hash,
    /// Where it is in the archive.
    pub file: String,
    /// The largest key of all files up to it.
    pub until: Option<i64>,
}

/// What the recorder knew at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// How many places in the order of the recording were taken: by events and notices, the dropped ones too.
    pub places: u64,
    /// By CPU, and of the whole machine.
    pub accounts: Vec<Account>,
}

/// What the recorder knew of a CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The CPU. `None` for rings of all.
    pub cpu: Option<u32>,
    /// Events that became rows, the dropped ones too.
    pub taken: u64,
    /// Rows that were dropped.
    pub dropped: u64,
    /// The rest is [`perfweave::Account`]'s.
    pub yielded: u64,
    pub held: u64,
    pub lost: u64,
    /// Called `untold` in archives that were made before the library had this word.
    #[serde(alias = "untold")]
    pub unreported: u64,
    pub exact: bool,
    pub damaged: u64,
    pub missing: u64,
    pub unexplained: u64,
    /// Only in archives that were made before: how often numbers did not say how much was lost.
    #[serde(default, skip_serializing)]
    pub wraparounds: u64,
    pub untraced_ns: u64,
}

impl Account {
    /// Of this account, with what became of the events.
    pub fn new(of: &perfweave::Account, [taken, dropped]: [u64; 2]) -> Self {
        Self {
            cpu: of.cpu,
            taken,
            dropped,
            yielded: of.yielded,
            held: of.held,
            lost: of.lost,
            unreported: of.unreported,
            exact: of.exact,
            damaged: of.damaged,
            missing: of.missing,
            unexplained: of.unexplained,
            wraparounds: 0,
            untraced_ns: u64::try_from(of.untraced.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl End {
    /// The accounts together, as the library has them.
    pub fn total(&self) -> perfweave::Account {
        let mut total = perfweave::Account::default();
        for account in &self.accounts {
            for (sum, more) in [
                (&mut total.yielded, account.yielded),
                (&mut total.held, account.held),
                (&mut total.lost, account.lost),
                (&mut total.unreported, account.unreported),
                (&mut total.damaged, account.damaged),
                (&mut total.missing, account.missing),
                (&mut total.unexplained, account.unexplained.saturating_add(account.wraparounds)),
            ] {
                *sum = sum.saturating_add(more);
            }
            total.exact &= account.exact;
            total.untraced = total.untraced.saturating_add(std::time::Duration::from_nanos(account.untraced_ns));
        }
        total
    }

    /// Rows that were dropped.
    pub fn dropped(&self) -> u64 {
        self.accounts.iter().fold(0, |sum, account| sum.saturating_add(account.dropped))
    }
}

/// No hash: what a seal has while the file is hashed.
pub const NONE: Hash = Hash::from_bytes([0; blake3::OUT_LEN]);

impl Seal {
    /// The text, with zeros for the hash unless it is known.
    ///
    /// # Errors
    /// Never: it has no maps with keys that are no text.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Whether it has what a recorder writes, and no more.
    fn is_bounded(&self) -> bool {
        let before = self.before.as_ref().map_or(0, |before| before.file.len());
        self.file.len().max(before) <= PATH
            && self.boot.len().max(self.trace.len()) <= ID
            && self.cpus.len() <= tally::MOST_CPUS + 1
    }
}

/// Where the footer begins in the last bytes of a file. `None` if they are no end of a Parquet file, or the footer
/// begins before them.
pub fn footer(end: &[u8]) -> Option<usize> {
    footer_len(end)?.checked_add(TRAILER).and_then(|len| end.len().checked_sub(len))
}

/// The length of the footer, by the last bytes of a file.
pub fn footer_len(end: &[u8]) -> Option<usize> {
    let trailer = end.last_chunk::<TRAILER>()?;
    let ([a, b, c, d, ..], true) = (*trailer, trailer.ends_with(MAGIC)) else { return None };
    usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()
}

/// Where the text of a seal begins in a footer. What the file says of its values lies before it, and may have the same
/// bytes in it. What is written into the text cannot: JSON has no quotation marks inside of texts.
pub fn find(footer: &[u8]) -> Option<usize> {
    let at = footer.windows(START.len()).rposition(|bytes| bytes == START)?;
    (footer.len() - at >= START.len() + DIGITS).then_some(at)
}

/// Where the digits of the hash are, in a file in which the text of the seal begins here.
pub fn digits_at(text: u64) -> u64 {
    text + START.len() as u64
}

/// The digits of the hash, in a footer whose seal begins here.
fn digits_in(footer: &mut [u8], at: usize) -> Option<&mut [u8]> {
    footer.get_mut(at + START.len()..at + START.len() + DIGITS)
}

/// Writes the hash of a file into the seal in its last bytes. The hasher has taken those before. `None` if they have no
/// seal.
pub fn close(end: &mut [u8], hasher: &mut Hasher) -> Option<Hash> {
    let footer = footer(end)?;
    let at = footer + find(&end[footer..])?;
    digits_in(end, at)?.fill(b'0');
    let hash = hasher.update(end).finalize();
    digits_in(end, at)?.copy_from_slice(hash.to_hex().as_bytes());
    Some(hash)
}

/// The seal in a footer, and where its text is. `None` also if it is longer than a recorder writes it.
pub fn read(footer: &[u8]) -> Option<(Seal, Range<usize>)> {
    let at = find(footer)?;
    let mut texts = serde_json::Deserializer::from_slice(&footer[at..footer.len().min(at + TEXT)]).into_iter();
    let seal = texts.next()?.ok().filter(Seal::is_bounded)?;
    Some((seal, at..at + texts.byte_offset()))
}

/// A hash as its hexadecimal digits.
mod digits {
    use blake3::Hash;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(hash: &Hash, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hash.to_hex())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Hash, D::Error> {
        let text = String::deserialize(from)?;
        // One hash has one text.
        let is_lower = text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        Hash::from_hex(&text).ok().filter(|_| is_lower).ok_or_else(|| D::Error::custom("no hash"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Seal {
        let account = Account { cpu: Some(3), taken: u64::MAX, exact: true, ..Account::default() };
        let end = End { places: 7, accounts: vec![account] };
        let before = Before { hash: blake3::hash(b"before"), file: "a/b.parquet".into(), until: Some(-1) };
        let (boot, trace, file) = ("b".into(), "t".into(), "{\"perfweave seal 1\":\"0".into());
        let (here, sums) = (Sums { rows: 4, from: Some(i64::MIN), ..Sums::default() }, Sums::default());
        let cpus = vec![OfCpu { cpu: Some(1), events: 2, lost: 3 }];
        Seal {
            hash: NONE,
            file,
            boot,
            trace,
            number: 9,
            before: Some(before),
            here,
            cpus,
            sums,
            open: None,
            end: Some(end),
        }
    }

    /// The end of a file with this footer.
    fn end(footer: &[u8]) -> Vec<u8> {
        [footer, &(footer.len() as u32).to_le_bytes(), MAGIC].concat()
    }

    #[test]
    fn a_seal_is_found_and_read_as_it_was_written() {
        let seal = some();
        let text = seal.text().unwrap();
        assert!(text.as_bytes().starts_with(START));
        // Values of the file may look like a seal; its own text cannot have another in it.
        let mut file = [&b"rows"[..], &end(&[START, &[b'1'; DIGITS], text.as_bytes(), b"rest"].concat())].concat();
        let hash = close(&mut file, &mut Hasher::new()).unwrap();
        let begin = footer(&file).unwrap();
        let at = begin + find(&file[begin..]).unwrap();
        let bytes = &file[begin..file.len() - TRAILER];
        assert_eq!(read(bytes), Some((Seal { hash, ..seal }, at - begin..at - begin + text.len())));
        digits_in(&mut file, at).unwrap().fill(b'0');
        assert_eq!((blake3::hash(&file), digits_at(at as u64) as usize), (hash, at + START.len()));
    }

    #[test]
    fn a_seal_is_no_longer_than_a_recorder_writes_it() {
        type Long = fn(&mut Seal, usize);
        let longs: [(Long, usize); 5] = [
            (|seal, len| seal.file = "a".repeat(len), PATH),
            (|seal, len| seal.before.as_mut().unwrap().file = "a".repeat(len), PATH),
            (|seal, len| seal.boot = "a".repeat(len), ID),
            (|seal, len| seal.trace = "a".repeat(len), ID),
            (|seal, len| seal.cpus = vec![OfCpu::default(); len], tally::MOST_CPUS + 1),
        ];
        for (long, most) in longs {
            let is_read = |len| {
                let mut seal = some();
                long(&mut seal, len);
                read(seal.text().unwrap().as_bytes()).is_some()
            };
            assert_eq!((is_read(most), is_read(most + 1)), (true, false));
        }
        // All CPUs with the largest numbers fit in.
        let all = |cpus: u32| {
            let (events, lost) = (u64::MAX, u64::MAX);
            let cpus = (0..cpus).map(|cpu| OfCpu { cpu: Some(cpu), events, lost }).collect::<Vec<_>>();
            let account = Account::new(&perfweave::Account::default(), [u64::MAX; 2]);
            let accounts = cpus.iter().map(|of| Account { cpu: of.cpu, yielded: u64::MAX, ..account }).collect();
            let text = Seal { cpus, end: Some(End { places: u64::MAX, accounts }), ..some() }.text().unwrap();
            (text.len() <= TEXT, read(text.as_bytes()).is_some())
        };
        assert_eq!(all(8192), (true, true));
        let mut seal = some();
        seal.end.as_mut().unwrap().accounts = vec![Account::default(); 40_000];
        assert!(read(seal.text().unwrap().as_bytes()).is_none());
    }

    #[test]
    fn what_is_no_end_of_a_file_has_no_seal() {
        for bytes in [&b""[..], b"PAR1", b"\xff\xff\xff\xffPAR1", &end(b"")[..], &end(START)[..]] {
            assert_eq!(close(&mut bytes.to_vec(), &mut Hasher::new()), None, "{bytes:?}");
        }
        let upper = some().text().unwrap().replace(&"0".repeat(DIGITS), &"A".repeat(DIGITS));
        assert!(serde_json::from_str::<Seal>(&upper).is_err());
    }
}
