//! Checking what a recording says of itself, in one pass.

mod check;
mod numbers;

use check::Check;
use perfweave::{Account, Error, Key};
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// Checks the [certificate](crate::Writer#the-certificate) of a recording: computes from its records the hashes, the
/// order, the losses and the ledger, and compares them with what it says of itself.
///
/// ```no_run
/// let verdict = perfweave_perf_data::verify("perf.data")?;
/// for doubt in &verdict.doubts {
///     eprintln!("{doubt}");
/// }
/// assert!(verdict.holds());
/// # Ok::<(), perfweave::Error>(())
/// ```
///
/// The function reads the file once, and blocks meanwhile. However long the recording is, it holds less than a MiB,
/// some 200 bytes for each CPU, the events with their ids (16 MiB of the file at most), and the first 1000 doubts. If a
/// seal does not fit the bytes before it, it reads the block of that seal a second time. For records that perf
/// compressed it also holds their window, of 128 MiB at most (`perf record -z22`). If that is more than a quarter of
/// the available memory, they cannot be unpacked, and are [damage](DoubtKind::Damage).
///
/// A recording of perf itself has no certificate. Then order and losses are counted, and [`Verdict::hash`] is `None`:
/// nothing vouches for its bytes. The same is true of one whose seals were all cut out.
///
/// # Errors
/// [`ErrorKind::Recording`](perfweave::ErrorKind::Recording) if the file cannot be read, is a directory, or has neither
/// the header of a recording nor a seal at its end; and, of a recording without seals, if its events make no sense or
/// there are none. [`ErrorKind::Limit`](perfweave::ErrorKind::Limit) if they take more than 16 MiB there. Of a
/// recording with seals, that is a [doubt](DoubtKind::Uncounted).
pub fn verify(path: impl AsRef<Path>) -> Result<Verdict, Error> {
    all(path.as_ref(), None)
}

/// [`verify`], which also counts the numbers that programs wrote into their records, each CPU by itself
/// ([`Order::numbers`](perfweave::Order::numbers)), and compares how many are missing with what the gaps of the stream
/// told ([`Found::missing`], [`Claims::missing`]), if the recorder's order had numbers ([`Claims::numbers`]): they must
/// be the same. Otherwise it counts what is missing, and nothing more. It takes some 50 bytes more for each CPU.
/// `number` and `first`: what the recorder's order had.
///
/// # Errors
/// As for [`verify`].
pub fn verify_numbered(path: impl AsRef<Path>, number: &Key, first: Option<u64>) -> Result<Verdict, Error> {
    all(path.as_ref(), Some((number, first)))
}

fn all(path: &Path, numbers: Option<(&Key, Option<u64>)>) -> Result<Verdict, Error> {
    Check::all(path, numbers).map_err(|why| why.during(&format!("cannot verify {}", path.display())))
}

/// What [`verify`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// The hash in the last seal: [`Written::hash`](crate::Written::hash) of the recording, if nothing is in doubt.
    /// `None` if there is no seal.
    pub hash: Option<[u8; 32]>,
    /// How many seals there are.
    pub seals: u64,
    /// What was found in the records.
    pub found: Found,
    /// Bytes of AUX data ([`aux`](crate::aux)), which is not decoded: what is in it is not among what was found.
    pub aux: u64,
    /// What the last seal says.
    pub claims: Option<Claims>,
    /// By CPU, what was found, and what the ledger says.
    pub cpus: Vec<Found>,
    /// What does not hold, in the order of the file: the first 1000.
    pub doubts: Vec<Doubt>,
    /// How many more there are.
    pub more: u64,
}

/// What was found in the records of a recording, or in those of a CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The CPU that the records name. `None` for all together, and for records that name none or have the time 0, as
    /// names of what ran before.
    pub cpu: Option<u32>,
    /// Records, without those that count losses.
    pub records: u64,
    /// What LOST and LOST_SAMPLES records count, each loss once: for all together, at least the counts that perf and
    /// [`Writer`](crate::Writer) write at the end of a recording, which have no place and are of the same losses.
    pub lost: u64,
    /// Records with a smaller time than one before them: in the file, or among those of the CPU.
    pub back: u64,
    /// Numbers that are missing between the first and the last of a CPU ([`verify_numbered`]).
    pub missing: u64,
    /// The smallest and the largest time, in the recording's unit. `None` if no record has a time but 0.
    pub times: Option<[u64; 2]>,
    /// What the ledger says: of the CPU, or of all together ([`Status::total`](perfweave::Status::total)). It has what
    /// was yielded, held, lost, missing, damaged, unexplained and not traced, how often numbers wrapped around, and
    /// whether that is exact; all else is as in an account of nothing. `None` if the recorder gave no ledger
    /// ([`Writer::unreported`](crate::Writer::unreported)). It is what the recorder knew, and vouched for only if the
    /// recording [holds](Verdict::holds).
    pub account: Option<Account>,
}

/// What the recorder said of the stream. A verifier cannot count it anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claims {
    /// Records whose order was proven.
    pub proven: u64,
    /// Records whose order was only assumed.
    pub assumed: u64,
    /// Records that came behind one with a larger key.
    pub late: u64,
    /// Missing sequence numbers, as gaps told them.
    pub missing: u64,
    /// Events for which a recording has no record ([`Written::left_out`](crate::Written::left_out)).
    pub left_out: u64,
    /// The largest key of a proven record: up to it, everything had come. `None` if no record was proven.
    pub frontier: Option<u64>,
    /// Whether the keys are the times of the records. If not, the order cannot be compared.
    pub by_time: bool,
    /// Whether the stream had the numbers of each CPU ([`Order::numbers`](perfweave::Order::numbers)), so that gaps
    /// told which are missing. False if neither a gap nor a ledger said so, and if gaps of the whole machine's numbers
    /// are among those that are missing.
    pub numbers: bool,
}

/// A part of a recording that nothing vouches for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Doubt {
    /// What does not hold.
    pub kind: DoubtKind,
    /// Where in the file, in bytes.
    pub bytes: Range<u64>,
    /// The times of the records that may be missing, added, moved or changed. `None` if there may be any, or none.
    pub times: Option<[u64; 2]>,
    /// The CPUs that have more or fewer records or losses than the seal says. Empty if their number is right, or
    /// unknown.
    pub cpus: Vec<u32>,
}

/// What does not hold of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DoubtKind {
    /// A block has other bytes than those that were sealed.
    Changed,
    /// A sealed block does not follow the one before it: blocks are missing before it, or it was added or moved.
    Order,
    /// Bytes that no seal stands for: they were added, their seal was changed, or they came after the last one.
    Unsealed,
    /// The header, the events, or what lies behind the records has other bytes than those that were sealed, or no seal.
    Head,
    /// The bytes are those that were sealed, and the records are not those that the seal counts. The recorder was
    /// wrong, or the seal is not its own.
    Counts,
    /// The recording has no end: the recorder did not end it, or the end was cut off. Later records may be missing.
    Unfinished,
    /// Bytes that can be no record, or that cannot be unpacked.
    Damage,
    /// The events make no sense, or take more than 16 MiB. So the records, or those behind the event, were not counted,
    /// and nothing but their bytes was compared.
    Uncounted,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, bytes, times, cpus } = self;
        write!(f, "bytes {} to {}: ", bytes.start, bytes.end)?;
        f.write_str(match kind {
            DoubtKind::Changed => "records are not those that the certificate has",
            DoubtKind::Order => "this block does not follow the one before it: blocks are missing, added or moved",
            DoubtKind::Unsealed => "no part of the certificate stands for these",
            DoubtKind::Head => "header, events or facts are not those that the certificate has",
            DoubtKind::Counts => "the certificate counts other records than there are",
            DoubtKind::Unfinished => "it has no end: the recorder did not end it, or the end was cut off",
            DoubtKind::Damage => "they can be no record, or cannot be unpacked",
            DoubtKind::Uncounted => "the events cannot be read, so not all records were counted",
        })?;
        if let Some([from, until]) = times {
            write!(f, "; records of the times {from} to {until} are in doubt")?;
        }
        for (index, cpu) in cpus.iter().enumerate() {
            f.write_str(if index == 0 { "; another number of records than the certificate has: " } else { ", " })?;
            match *cpu {
                crate::chain::NOBODY => f.write_str("of no CPU")?,
                cpu => write!(f, "CPU {cpu}")?,
            }
        }
        Ok(())
    }
}

impl Verdict {
    /// Whether the recording has a certificate, and everything that it says holds.
    pub fn holds(&self) -> bool {
        self.hash.is_some() && self.doubts.is_empty()
    }
}
