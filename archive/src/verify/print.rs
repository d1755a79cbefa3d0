//! What was found, for people and for programs.

use super::{Doubt, DoubtKind, Options, Recording, Verdict};
use crate::printable::printable;
use crate::record::missing;
use crate::seal::{Account, End, Sums};
use blake3::Hash;
use serde_json::{Value, json};
use std::fmt::Arguments;
use std::io::{self, Write};

/// A line in which no name commands a terminal.
fn line(output: &mut impl Write, text: Arguments<'_>) -> io::Result<()> {
    writeln!(output, "{}", printable(&text.to_string()))
}

/// Seconds, as other commands print keys.
fn seconds(key: i64) -> String {
    let sign = if key < 0 { "-" } else { "" };
    format!("{sign}{}.{:09}", key.unsigned_abs() / 1_000_000_000, key.unsigned_abs() % 1_000_000_000)
}

pub(super) fn text(options: &Options, verdict: &Verdict, missing: &[Hash], output: &mut impl Write) -> io::Result<()> {
    for recording in &verdict.recordings {
        of_recording(options, recording, output)?;
    }
    doubts(&verdict.doubts, verdict.more, output)?;
    if verdict.open > 0 {
        writeln!(
            output,
            "{} files are not finished: they are being written, or were left by a recording that was killed",
            verdict.open
        )?;
    }
    if verdict.recordings.is_empty() {
        return writeln!(output, "it has no certificate: nothing vouches for its bytes, nor for what may be missing");
    }
    missing.iter().try_for_each(|hash| {
        writeln!(
            output,
            "ANOTHER HASH was expected: no recording ends with {hash}, so the one that was written then is not here"
        )
    })
}

fn of_recording(options: &Options, recording: &Recording, output: &mut impl Write) -> io::Result<()> {
    let Recording { machine, trace, hash, seals, begins, found, cpus, end, .. } = recording;
    let Sums { rows, events, lost, dropped, .. } = *found;
    let times = found.from.zip(found.until);
    let times =
        times.map_or_else(String::new, |(from, until)| format!(", from {} to {}", seconds(from), seconds(until)));
    let of_cpus = cpus.iter().filter(|of| of.events > 0).count();
    line(
        output,
        format_args!(
            "machine {machine}, recording {trace}: {rows} rows in {seals} files, {events} of them events of {of_cpus} CPUs{times}; {lost} lost, {dropped} dropped"
        ),
    )?;
    if let Some((number, until)) = begins {
        let until = until.map_or_else(String::new, |until| format!(": rows up to {} may not be there", seconds(until)));
        writeln!(output, "it begins with file {number} of the recording{until}")?;
    }
    order(recording, output)?;
    for of in cpus {
        let account = end.iter().flat_map(|end| &end.accounts).find(|account| account.cpu == of.cpu);
        let name = of.cpu.map_or_else(|| "of no CPU".into(), |cpu| format!("CPU {cpu}"));
        writeln!(
            output,
            "{name}: {} events, {} lost{}",
            of.events,
            of.lost,
            account.map_or_else(String::new, ledger_of)
        )?;
    }
    if !recording.is_single {
        let in_doubt = if recording.holds() { "" } else { " (in doubt)" };
        writeln!(output, "ledger{in_doubt}: {}", ledger(recording))?;
    }
    doubts(&recording.doubts, recording.more, output)?;
    let Some(hash) = hash else { return Ok(()) };
    writeln!(output, "hash: {hash}")?;
    let unless = match options.expect.contains(hash) {
        true => "",
        false => ", unless the seals behind it were written anew as well: --expect HASH tells",
    };
    match (recording.holds(), recording.is_single) {
        (true, false) => {
            let of = begins.map_or_else(String::new, |(number, _)| format!(" of the files from number {number} on"));
            writeln!(output, "it holds: {seals} seals; no row{of} was changed, added, moved or removed{unless}")
        }
        (true, true) => writeln!(output, "the file holds: no row of it was changed, added, moved or removed{unless}"),
        (false, _) if recording.more > 0 => writeln!(output, "{seals} seals"),
        (false, _) => writeln!(output, "{seals} seals; what is not named above holds"),
    }
}

fn order(recording: &Recording, output: &mut impl Write) -> io::Result<()> {
    let Sums { proven, early, late, frontier, missing, releases, damaged, dark, .. } = recording.found;
    let until = frontier.map_or_else(String::new, |frontier| format!(", up to {}", seconds(frontier)));
    writeln!(output, "order: {proven} events proven{until}; {early} assumed, {late} late")?;
    if [missing, releases, damaged, dark].iter().any(|count| *count > 0) {
        // No recorder writes these any more.
        let releases = match releases {
            0 => String::new(),
            times => format!(", {times} of events that left before their order was proven"),
        };
        writeln!(
            output,
            "told by notices: {missing} missing numbers; {damaged} notices of damage, {dark} of CPUs that were not traced any more{releases}"
        )?;
    }
    Ok(())
}

/// What the recorder knew to be missing.
fn ledger(recording: &Recording) -> String {
    let Some(end) = &recording.end else { return "none: the recorder did not say what it missed".into() };
    let total = end.total();
    let balanced = if total.is_balanced() { "balanced" } else { "NOT balanced" };
    let missing = match (end.dropped(), total.is_complete()) {
        (0, true) if recording.is_complete() => "nothing is missing".into(),
        (0, true) => "nothing was missing when it was recorded".into(),
        (0, false) => missing::of(&total, missing::UNCOUNTED),
        (dropped, true) => format!("{dropped} dropped because the store was too slow, nothing else was missing"),
        (dropped, false) => {
            let missing = missing::of(&total, missing::UNCOUNTED);
            format!("{dropped} dropped because the store was too slow; {missing}")
        }
    };
    match recording.begins {
        None => format!("{balanced}; {missing}"),
        Some(_) => format!("{balanced}; of the whole recording: {missing}; the files before its begin are not here"),
    }
}

fn ledger_of(account: &Account) -> String {
    let Account { taken, dropped, yielded, held, lost, exact, .. } = *account;
    let at_least = if exact { "" } else { "at least " };
    let others = yielded.saturating_sub(taken);
    format!(
        "; the ledger: {yielded} yielded ({others} of them no rows, {dropped} dropped), {held} held, {at_least}{lost} lost"
    )
}

fn doubts(doubts: &[Doubt], more: u64, output: &mut impl Write) -> io::Result<()> {
    for doubt in doubts {
        line(output, format_args!("IN DOUBT: {}", in_words(doubt)))?;
    }
    if more > 0 {
        writeln!(output, "IN DOUBT: {more} more")?;
    }
    Ok(())
}

/// A doubt in a line.
fn in_words(doubt: &Doubt) -> String {
    let Doubt { kind, file, times, cpus } = doubt;
    let mut text = file.as_ref().map_or_else(|| "the recording".into(), Clone::clone);
    text.push_str(&format!(": {kind}"));
    let times = match *times {
        [None, None] => String::new(),
        [Some(from), Some(until)] => format!("; rows from {} to {} are in doubt", seconds(from), seconds(until)),
        [None, Some(until)] => format!("; rows up to {} are in doubt", seconds(until)),
        [Some(from), None] => format!("; rows from {} on are in doubt", seconds(from)),
    };
    text.push_str(&times);
    for (index, cpu) in cpus.iter().enumerate() {
        text.push_str(if index == 0 { "; another number of rows or losses than was sealed: " } else { ", " });
        text.push_str(&cpu.map_or_else(|| "of no CPU".into(), |cpu| format!("CPU {cpu}")));
    }
    text
}

pub(super) fn object(
    options: &Options,
    verdict: &Verdict,
    missing: &[Hash],
    output: &mut impl Write,
) -> io::Result<()> {
    let recordings = verdict.recordings.iter().map(recording).collect::<Vec<_>>();
    let doubts = verdict.doubts.iter().map(doubt).collect::<Vec<_>>();
    let expected = (!options.expect.is_empty()).then_some(missing.is_empty());
    let object = json!({ "archive": options.url, "holds": verdict.holds() && missing.is_empty(), "expected": expected,
        "recordings": recordings, "open": verdict.open, "doubts": doubts, "more": verdict.more });
    line(output, format_args!("{object}"))
}

fn recording(recording: &Recording) -> Value {
    let Recording { machine, boot, trace, hash, seals, begins, found, claims, cpus, end, more, .. } = recording;
    let begins = begins.map(|(number, until)| json!({ "number": number, "until": until }));
    json!({ "machine": machine, "boot": boot, "trace": trace, "one_file": recording.is_single, "holds": recording.holds(), "complete": recording.is_complete(),
        "hash": hash.map(|hash| hash.to_string()), "seals": seals, "begins": begins, "found": found, "claims": claims, "cpus": cpus,
        "ledger": end.as_ref().map(of_end), "doubts": recording.doubts.iter().map(doubt).collect::<Vec<_>>(), "more": more })
}

fn of_end(end: &End) -> Value {
    let total = end.total();
    json!({ "places": end.places, "balanced": total.is_balanced(), "complete": total.is_complete(), "dropped": end.dropped(), "cpus": end.accounts })
}

fn doubt(doubt: &Doubt) -> Value {
    let mut object = json!({ "what": kind(&doubt.kind), "file": doubt.file, "times": doubt.times, "cpus": doubt.cpus });
    match &doubt.kind {
        DoubtKind::Missing(files, last) => {
            object["missing"] = json!(files);
            object["last"] = json!(last);
        }
        DoubtKind::Moved(from) => object["written_as"] = json!(from),
        _ => {}
    }
    object
}

fn kind(kind: &DoubtKind) -> &'static str {
    match kind {
        DoubtKind::Changed => "changed",
        DoubtKind::Missing(..) | DoubtKind::Moved(_) | DoubtKind::Order => "order",
        DoubtKind::Unsealed => "unsealed",
        DoubtKind::Counts => "counts",
        DoubtKind::Unfinished => "unfinished",
        DoubtKind::Damage => "damage",
        DoubtKind::Uncounted => "uncounted",
    }
}
