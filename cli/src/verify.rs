//! Checks the certificate of a recording.

use crate::convert::{self, Progress, WITHOUT_TIMES};
use crate::failure::Outcome;
use crate::missing;
use crate::out::{Out, line};
use crate::scheduler::Counted;
use perfweave::{Account, Key, Order, Reader};
use perfweave_perf_data::{self as perf_data, Claims, Doubt, DoubtKind, Found, Verdict, verify, verify_numbered};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Checks what a recording says of itself: whether a record was changed, added, moved or removed
///
/// `perfweave record` writes its certificate in parts, after each MiB of events and at the end, with the hash of all
/// bytes before it, the counts of records and losses of each CPU, and how far the order was proven. This reads the file
/// once (of `-e why` once more, for switches without a record), counts and hashes its records, and compares. Standard
/// input is kept in a temporary file meanwhile. It names the bytes and times that nothing vouches for. A recording of
/// `perf record` has no certificate: order and losses are counted, and nothing vouches for its bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The recording; - for standard input
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,
    /// The hash that `perfweave record` printed. Without it, a recording whose certificate was written anew as well is
    /// not found
    #[arg(long, value_name = "HASH", value_parser = hash)]
    expect: Option<[u8; 32]>,
    /// Each CPU's programs count: its number, of 64 bits, is at this offset of a record's payload. Says how many are
    /// missing, and compares that with the gaps that the recorder was told of, if it had the numbers (as a program with
    /// this crate may)
    #[arg(long, value_name = "OFFSET")]
    numbers: Option<usize>,
    /// Print one JSON object
    #[arg(short, long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  perfweave record -- make                           It prints the hash: keep it where nobody writes who may write the file
  perfweave verify perf.data
  perfweave verify perf.data --expect 3f5e...        It is the file that was recorded then
  perfweave record -o - -- make | perfweave verify -
Exit status: 0 if all holds, 1 if something does not, or if nothing vouches for the recording.";

/// 64 hexadecimal digits.
fn hash(text: &str) -> Result<[u8; 32], String> {
    let mut hash = [0; 32];
    let is_hash = text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let digits = is_hash.then_some(text).ok_or("a hash has 64 hexadecimal digits")?;
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|error| error.to_string())?;
    }
    Ok(hash)
}

/// The same, printed.
pub fn hex(hash: &[u8; 32]) -> String {
    hash.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub fn run(args: &Args) -> Outcome {
    let progress = Progress::new("reading");
    let read = convert::read(&args.file, |path| {
        let verdict = match args.numbers {
            None => verify(&path),
            Some(offset) => verify_numbered(&path, &Key::Payload(offset), None),
        }?;
        Ok((verdict, unrecorded(&path)))
    });
    drop(progress);
    let (verdict, unrecorded) = read?;
    let is_expected = args.expect.is_none() || verdict.hash == args.expect;
    let mut out = Out::new();
    if args.json {
        let mut object = object(args, &verdict, is_expected);
        if unrecorded > 0 {
            object["unrecorded_switches"] = unrecorded.into();
        }
        line(&mut out, format_args!("{object}"))?;
    } else {
        text(args, &verdict, is_expected, unrecorded, &mut out)?;
    }
    out.flush()?;
    Ok(if verdict.holds() && is_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How many switches have no record, which no certificate says. Of a damaged file the verdict says what cannot be read.
fn unrecorded(path: &Path) -> u64 {
    let Ok(rings) = perf_data::open(path) else { return 0 };
    let mut counted = Counted::of(&rings);
    if counted.has_any()
        && let Ok(mut reader) = Reader::new(rings, Order::new())
    {
        // Until the damage, if there is any.
        while let Ok(Some(guard)) = reader.next() {
            counted.event(&guard.event());
        }
    }
    counted.missing()
}

/// Seconds, as other commands print the times of a recording.
fn seconds(time: u64) -> String {
    format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000)
}

fn text(args: &Args, verdict: &Verdict, is_expected: bool, unrecorded: u64, out: &mut impl Write) -> io::Result<()> {
    let Found { records, lost, back, times, .. } = verdict.found;
    let cpus = verdict.cpus.iter().filter(|found| found.cpu.is_some()).count();
    let times =
        times.map_or_else(String::new, |[from, until]| format!(", from {} to {}", seconds(from), seconds(until)));
    line(out, format_args!("{}: {records} records of {cpus} CPUs{times}; {lost} lost", args.file.display()))?;
    let order = match back {
        0 if verdict.found.times.is_none() && records > 0 => without_times(verdict),
        0 => "in the file none is older than one before it".to_owned(),
        _ => format!("in the file {back} are older than one before them"),
    };
    let placed = verdict.cpus.iter().fold(0u64, |sum, found| sum.saturating_add(found.lost));
    let elsewhere = missing::without_place(lost.saturating_sub(placed));
    match verdict.claims {
        Some(Claims { proven, assumed, late, frontier, by_time, missing, left_out, .. }) => {
            let until = frontier.map_or_else(String::new, |frontier| match by_time {
                true => format!(", up to {}", seconds(frontier)),
                false => format!(", up to the key {frontier}"),
            });
            let compared = if by_time { order } else { "its keys are not times, so they are not compared".into() };
            writeln!(out, "order: {proven} proven{until}; {assumed} assumed, {late} late; {compared}")?;
            if missing + left_out > 0 {
                writeln!(out, "told by the stream, and no records: {left_out} events, {missing} missing numbers")?;
            }
        }
        None => writeln!(out, "order: {order}")?,
    }
    if args.numbers.is_some() && !verdict.claims.is_some_and(|claims| claims.numbers) {
        writeln!(out, "numbers: {} missing; the recorder had no numbers to compare with", verdict.found.missing)?;
    }
    for found in &verdict.cpus {
        writeln!(out, "{}", of_cpu(found))?;
    }
    for line in [elsewhere, missing::undecoded(verdict.aux)].into_iter().flatten() {
        writeln!(out, "{line}")?;
    }
    certificate(args, verdict, is_expected, unrecorded, out)
}

/// What the certificate says, and what of it is in doubt.
fn certificate(
    args: &Args,
    verdict: &Verdict,
    is_expected: bool,
    unrecorded: u64,
    out: &mut impl Write,
) -> io::Result<()> {
    if verdict.hash.is_some() {
        let in_doubt = if verdict.holds() && is_expected { "" } else { " (in doubt)" };
        writeln!(out, "ledger{in_doubt}: {}", ledger(verdict, unrecorded))?;
    }
    for doubt in &verdict.doubts {
        writeln!(out, "IN DOUBT: {}", in_words(doubt))?;
    }
    if verdict.more > 0 {
        writeln!(out, "IN DOUBT: {} more places", verdict.more)?;
    }
    let Some(hash) = verdict.hash else {
        return writeln!(out, "it has no certificate: nothing vouches for its bytes, nor for what may be missing");
    };
    writeln!(out, "hash: {}", hex(&hash))?;
    let parts = format!("{} parts of a certificate", verdict.seals);
    if !is_expected {
        writeln!(out, "ANOTHER HASH was expected: this is not the recording that was written then")
    } else if verdict.holds() {
        let unless = match args.expect {
            Some(_) => "",
            None => ", unless the certificate behind it was written anew as well: --expect HASH tells",
        };
        writeln!(out, "it holds: {parts}; no record was changed, added, moved or removed{unless}")
    } else if verdict.more > 0 {
        writeln!(out, "{parts}")
    } else {
        writeln!(out, "{parts}; what is not named above holds")
    }
}

/// Why no times can be compared.
fn without_times(verdict: &Verdict) -> String {
    // Names of what ran before have the time 0, and count as of no CPU.
    let may_be_names = verdict.cpus.iter().all(|found| found.cpu.is_none());
    format!("{WITHOUT_TIMES}{}", if may_be_names { ", or has nothing but names" } else { "" })
}

/// What the recorder knew to be missing.
fn ledger(Verdict { found, .. }: &Verdict, unrecorded: u64) -> String {
    let switches = missing::switches(unrecorded);
    let Some(total) = &found.account else {
        return format!("none: the recorder did not say what it missed{switches}");
    };
    let balanced = if total.is_balanced() { "balanced" } else { "NOT balanced" };
    let missing = missing::of(total, "the recorder did not count all losses");
    let missing = missing::beside_switches(missing, unrecorded);
    format!("{balanced}; {missing}{switches}")
}

/// What is known of a CPU, in a line.
fn of_cpu(found: &Found) -> String {
    let name = found.cpu.map_or_else(|| "of no CPU, or names from before".to_owned(), |cpu| format!("CPU {cpu}"));
    let mut text = format!("{name}: {} records, {} lost", found.records, found.lost);
    if found.missing > 0 {
        let _ = write!(text, ", {} numbers missing", found.missing);
    }
    if found.back > 0 {
        let _ = write!(text, ", {} older than one before them", found.back);
    }
    if let Some(account) = found.account {
        let Account { yielded, held, lost, missing, exact, .. } = account;
        let at_least = if exact { "" } else { "at least " };
        let _ = write!(text, "; the ledger: {yielded} yielded");
        if account.cpu.is_some() {
            let _ = write!(text, " ({} of them left out of the file)", yielded.saturating_sub(found.records));
        }
        let _ = write!(text, ", {held} held, {at_least}{lost} lost");
        if missing > 0 {
            let _ = write!(text, ", {missing} numbers missing");
        }
        if !account.is_balanced() {
            text.push_str(", NOT balanced");
        }
    }
    text
}

/// A doubt in a line, with times as seconds.
fn in_words(doubt: &Doubt) -> String {
    let mut doubt = doubt.clone();
    let times = doubt.times.take();
    let mut text = doubt.to_string();
    if let Some([from, until]) = times {
        let _ = write!(text, "; records from {} to {} are in doubt", seconds(from), seconds(until));
    }
    text
}

fn object(args: &Args, verdict: &Verdict, is_expected: bool) -> Value {
    let found = |found: &Found| {
        let mut object = json!({ "cpu": found.cpu, "records": found.records, "lost": found.lost, "back": found.back, "missing": found.missing,
            "from": found.times.map(|[from, _]| from), "until": found.times.map(|[_, until]| until) });
        if let Some(account) = found.account {
            let Account { yielded, held, lost, missing, exact, damaged, unexplained, untraced, .. } = account;
            object["ledger"] = json!({ "yielded": yielded, "held": held, "lost": lost, "missing": missing, "exact": exact,
                "damaged": damaged, "unexplained": unexplained, "untraced_ns": untraced.as_nanos() as u64,
                "balanced": account.is_balanced(), "complete": account.is_complete() });
        }
        object
    };
    let claims = verdict.claims.map(|claims| {
        json!({ "proven": claims.proven, "assumed": claims.assumed, "late": claims.late, "missing": claims.missing,
            "left_out": claims.left_out, "frontier": claims.frontier, "by_time": claims.by_time, "numbers": claims.numbers })
    });
    let doubts = verdict.doubts.iter().map(|doubt| {
        json!({ "what": kind(doubt.kind), "bytes": [doubt.bytes.start, doubt.bytes.end], "times": doubt.times,
            "cpus": doubt.cpus.iter().map(|cpu| (*cpu != u32::MAX).then_some(*cpu)).collect::<Vec<_>>() })
    });
    json!({ "file": args.file.display().to_string(), "holds": verdict.holds() && is_expected,
        "hash": verdict.hash.as_ref().map(hex), "expected": args.expect.map(|_| is_expected), "seals": verdict.seals,
        "found": found(&verdict.found), "aux_bytes": verdict.aux, "claims": claims, "cpus": verdict.cpus.iter().map(found).collect::<Vec<_>>(),
        "doubts": doubts.collect::<Vec<_>>(), "more": verdict.more })
}

fn kind(kind: DoubtKind) -> &'static str {
    match kind {
        DoubtKind::Changed => "changed",
        DoubtKind::Order => "order",
        DoubtKind::Unsealed => "unsealed",
        DoubtKind::Head => "head",
        DoubtKind::Counts => "counts",
        DoubtKind::Unfinished => "unfinished",
        DoubtKind::Damage => "damage",
        DoubtKind::Uncounted => "uncounted",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::{hash, hex};

    #[test]
    fn hashes_are_read_as_they_are_printed() {
        let some: [u8; 32] = std::array::from_fn(|at| (at as u8).wrapping_mul(9));
        assert_eq!(hash(&hex(&some)), Ok(some));
        assert!(["", "0", &"g".repeat(64), &"é".repeat(32), &"0".repeat(63)].iter().all(|text| hash(text).is_err()));
    }
}
