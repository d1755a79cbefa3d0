//! The pass over the files of a recording.

use super::input::{Files, Footer};
use super::places::Places;
use super::{DOUBTS, Doubt, DoubtKind, Place, Recording, unless_gone};
use crate::Failure;
use crate::seal::{End, Foreign, OfCpu, Seal, Sums, Tally, counted, numbers};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};
use blake3::Hash;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A seal that was found, and its hash as computed.
#[derive(Debug)]
struct Sealed {
    seal: Seal,
    computed: Hash,
}

impl Sealed {
    fn is_intact(&self) -> bool {
        self.seal.hash == self.computed
    }

    /// How many late rows the files before it have.
    fn late_before(&self) -> u64 {
        self.seal.sums.late.saturating_sub(self.seal.here.late)
    }
}

/// What is known in the middle of a recording.
#[derive(Debug, Default)]
pub(super) struct Check {
    recording: Recording,
    last: Option<Sealed>,
    /// No row of a later file has a smaller key, but for late ones: what the last seal says that holds.
    floor: Option<i64>,
    /// The same before the last file. It may have been sealed anew if the next file does not vouch for it.
    floor_before: Option<i64>,
    /// How many late rows there are up to the last file whose seal holds: they may have any keys.
    late: u64,
    /// The same before that file.
    late_before: u64,
    /// Doubts of which the next seal tells the largest key, and whether there are late rows.
    unbounded: Vec<usize>,
    /// The largest key of each table of events.
    tables: HashMap<String, i64>,
    cpus: BTreeMap<Option<u32>, OfCpu>,
    places: Places,
}

/// Why rows were not counted.
enum Uncounted {
    /// What does not hold.
    Doubt(DoubtKind),
    /// The store fails.
    Failed(Failure),
}

impl From<Failure> for Uncounted {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Parquet(_) | Failure::Arrow(_) | Failure::Store(object_store::Error::NotFound { .. }) => {
                Self::Doubt(DoubtKind::Uncounted)
            }
            failure => Self::Failed(failure),
        }
    }
}

impl From<Foreign> for Uncounted {
    fn from(_: Foreign) -> Self {
        Self::Doubt(DoubtKind::Uncounted)
    }
}

impl Check {
    pub(super) fn new([machine, boot, trace]: [String; 3], is_single: bool) -> Self {
        Self { recording: Recording { machine, boot, trace, is_single, ..Recording::default() }, ..Self::default() }
    }

    /// Checks the next file, by its number.
    pub(super) fn file(&mut self, files: &Files, place: &Place) -> Result<(), Failure> {
        let footer = unless_gone(files.footer(&place.path, place.len))?;
        let kind = if footer.is_some() { DoubtKind::Damage } else { DoubtKind::Uncounted };
        let footer = footer.flatten();
        let Some((footer, seal)) = footer.and_then(|footer| footer.seal.clone().map(|(seal, _)| (footer, seal))) else {
            self.doubt(kind, place, [self.since(self.floor_before, 0), None], Vec::new());
            return Ok(());
        };
        let Some(computed) = unless_gone(files.hash(&place.path, &footer))? else {
            self.doubt(DoubtKind::Uncounted, place, [self.since(self.floor_before, 0), None], Vec::new());
            return Ok(());
        };
        self.recording.seals += 1;
        let this = Sealed { computed, seal };
        if this.is_intact() && !self.unbounded.is_empty() {
            let until = this.seal.before.as_ref().and_then(|before| before.until);
            let has_late = this.late_before() > self.late;
            for doubt in self.unbounded.drain(..) {
                let times = &mut self.recording.doubts[doubt].times;
                *times = [times[0].filter(|_| !has_late), until];
            }
        }
        let own = [this.seal.here.from, this.seal.here.until];
        if !this.is_intact() {
            if self.recording.doubts.len() < DOUBTS {
                self.unbounded.push(self.recording.doubts.len());
            }
            let since = self.since(self.floor_before, this.seal.here.late);
            self.doubt(DoubtKind::Changed, place, [since, None], Vec::new());
        } else if !place.is_there {
            self.doubt(DoubtKind::Moved(this.seal.file.clone()), place, own, Vec::new());
        }
        let is_same = |last: &Sealed| last.is_intact() && last.seal.number == this.seal.number;
        if self.last.as_ref().is_some_and(is_same) {
            // Another file of that number, of which nothing is counted.
            if this.is_intact() && place.is_there {
                self.doubt(DoubtKind::Order, place, own, Vec::new());
            }
            return Ok(());
        }
        let is_known = self.follow(&this, place);
        if this.is_intact() {
            self.rows(files, place, &footer, &this, is_known)?;
            (self.floor_before, self.floor) = (self.floor, this.seal.open);
            (self.late_before, self.late) = (self.late, this.seal.sums.late);
        }
        self.recording.hash = Some(this.seal.hash);
        self.recording.claims = this.seal.sums;
        self.last = Some(this);
        Ok(())
    }

    /// Compares with the file before. Gives whether that is there and holds.
    fn follow(&mut self, this: &Sealed, place: &Place) -> bool {
        let (seal, before) = (&this.seal, this.seal.before.as_ref());
        let own = [seal.here.from, seal.here.until];
        let Some(last) = &self.last else {
            match (this.is_intact(), seal.number, before) {
                // What it says is in doubt.
                (false, ..) | (true, 0, None) => {}
                (true, 0, Some(_)) => self.doubt(DoubtKind::Order, place, own, Vec::new()),
                (true, number, before) => {
                    self.recording.begins = Some((number, before.and_then(|before| before.until)))
                }
            }
            return false;
        };
        // A file whose hash alone was changed has a next one that knows the right hash.
        let is_named = before.is_some_and(|before| [last.seal.hash, last.computed].contains(&before.hash));
        let missing = seal.number.saturating_sub(last.seal.number).checked_sub(1);
        match missing {
            Some(0) if is_named && last.seal.end.is_none() => return last.is_intact(),
            // Its bytes are in doubt, and so is where it belongs.
            _ if !this.is_intact() => {}
            Some(missing @ 1..) => {
                let (file, until) = before.map(|before| (before.file.clone(), before.until)).unwrap_or_default();
                let since = self.floor_before.filter(|_| this.late_before() <= self.late_before);
                self.doubt(DoubtKind::Missing(missing, file), place, [since, until], Vec::new());
            }
            // One of the two is not what it was.
            _ => {
                let until = before.and_then(|before| before.until).max(seal.here.until);
                let since = self.since(self.floor_before, seal.sums.late);
                self.doubt(DoubtKind::Order, place, [since, until], Vec::new());
            }
        }
        false
    }

    /// Counts the rows of a file and compares.
    fn rows(
        &mut self,
        files: &Files,
        place: &Place,
        footer: &Footer,
        this: &Sealed,
        is_known: bool,
    ) -> Result<(), Failure> {
        let seal = &this.seal;
        let own = [seal.here.from, seal.here.until];
        let mut tally = Tally::default();
        // Readers of Parquet and Arrow are made for files of friends. What does not suit them may end in a panic, which
        // is this file's alone.
        let count = AssertUnwindSafe(|| self.count(files, place, footer, seal, &mut tally));
        match catch_unwind(count).unwrap_or(Err(Foreign.into())) {
            Ok(()) => {}
            Err(Uncounted::Failed(failure)) => return Err(failure),
            Err(Uncounted::Doubt(kind)) => {
                self.doubt(kind, place, own, Vec::new());
                return Ok(());
            }
        }
        let sums = match (&self.last, is_known) {
            (Some(last), true) => Some(last.seal.sums),
            (None, _) if seal.number == 0 => Some(Sums::default()),
            _ => None,
        };
        let fits = sums.is_none_or(|mut sums| {
            sums.add(tally.sums());
            sums == seal.sums
        });
        let cpus = tally.cpus();
        let differ = differing(&cpus, &seal.cpus);
        let is_sorted = tally.back() == 0 && self.is_behind(seal, tally.sums());
        if !fits || !is_sorted || !differ.is_empty() || *tally.sums() != seal.here {
            self.doubt(DoubtKind::Counts, place, own, differ);
        }
        self.recording.found.add(tally.sums());
        for OfCpu { cpu, events, lost } in cpus {
            let of = self.cpus.entry(cpu).or_insert(OfCpu { cpu, ..OfCpu::default() });
            (of.events, of.lost) = (of.events.saturating_add(events), of.lost.saturating_add(lost));
        }
        Ok(())
    }

    fn count(
        &mut self,
        files: &Files,
        place: &Place,
        footer: &Footer,
        seal: &Seal,
        tally: &mut Tally,
    ) -> Result<(), Uncounted> {
        let table = table(&seal.file);
        let groups = files.groups(&place.path, footer, counted(table))?.map_err(Uncounted::Doubt)?;
        for group in groups {
            for rows in group? {
                let rows = rows.map_err(Failure::from)?;
                tally.add(table, &rows)?;
                if !is_of(&rows, "boot", &seal.boot) || !is_of(&rows, "trace", &seal.trace) {
                    return Err(Foreign.into());
                }
                // Pages may have more rows than their row group says.
                if tally.sums().rows > seal.here.rows {
                    return Err(Uncounted::Doubt(DoubtKind::Counts));
                }
                self.place(table, &rows)?;
            }
        }
        Ok(())
    }

    /// Notes the places of rows.
    fn place(&mut self, table: &str, rows: &RecordBatch) -> Result<(), Foreign> {
        let is_event = table.starts_with("events/");
        if !is_event && table != "notices" {
            return Ok(());
        }
        let (keys, places) = (numbers::<Int64Type>(rows, "mono")?, numbers::<Int64Type>(rows, "row")?);
        let late = rows.column_by_name("late").and_then(|late| late.as_boolean_opt());
        for row in 0..rows.num_rows() {
            let is_in_order = is_event && late.is_some_and(|late| !late.value(row));
            self.places.add(places.value(row), is_in_order.then(|| keys.value(row)));
        }
        Ok(())
    }

    /// Whether a file of events has no smaller key than those before it of its table. A late event begins a file.
    fn is_behind(&mut self, seal: &Seal, sums: &Sums) -> bool {
        let (table, [Some(from), Some(until)]) = (table(&seal.file), [sums.from, sums.until]) else {
            return sums.rows == 0;
        };
        if !table.starts_with("events/") {
            return true;
        }
        let newest = self.tables.entry(table.to_owned()).or_insert(i64::MIN);
        let is_behind = from >= *newest || sums.late > 0;
        *newest = until.max(*newest);
        is_behind
    }

    /// The smallest key of rows that come after this floor. `None` if there are late rows so far, or among these.
    fn since(&self, floor: Option<i64>, late: u64) -> Option<i64> {
        floor.filter(|_| self.late.max(late) == 0)
    }

    fn doubt(&mut self, kind: DoubtKind, place: &Place, times: [Option<i64>; 2], cpus: Vec<Option<u32>>) {
        self.keep(Doubt { kind, file: Some(place.name.clone()), times, cpus });
    }

    fn keep(&mut self, doubt: Doubt) {
        let doubts = &mut self.recording.doubts;
        if doubts.len() < DOUBTS { doubts.push(doubt) } else { self.recording.more += 1 }
    }

    /// What is known of all files.
    pub(super) fn finish(mut self) -> Recording {
        let end = self.last.take().filter(Sealed::is_intact).and_then(|last| last.seal.end);
        if end.is_none() && !self.recording.is_single {
            let times = [self.since(self.floor, 0), None];
            self.keep(Doubt { kind: DoubtKind::Unfinished, file: None, times, cpus: Vec::new() });
        }
        if let Some(end) = end.as_ref().filter(|_| self.recording.doubts.is_empty() && !self.recording.is_single) {
            let cpus = self.against(end);
            if !cpus.is_empty() || !self.fits(end) {
                let times = [self.recording.found.from, self.recording.found.until];
                self.keep(Doubt { kind: DoubtKind::Counts, file: None, times, cpus });
            }
        }
        let cpus = self.cpus.into_values().collect();
        Recording { end, cpus, ..self.recording }
    }

    /// The CPUs whose rows do not fit the ledger: as many as became rows and were not dropped, and the losses that the
    /// ledger knows.
    fn against(&self, end: &End) -> Vec<Option<u32>> {
        let mut wrong = Vec::new();
        for account in &end.accounts {
            let of = self.cpus.get(&account.cpu).copied().unwrap_or_default();
            let rows = account.taken.checked_sub(account.dropped);
            let is_whole = self.recording.begins.is_none();
            let has_all = !is_whole || rows == Some(of.events);
            // Of losses among what was held nothing was told.
            let knows_all = is_whole && account.exact && account.held == 0;
            // What reads no ledger for a CPU counts no losses of it.
            let is_known = account.exact || account.yielded > 0;
            if rows.is_none_or(|rows| of.events > rows)
                || !has_all
                || (is_known && (account.taken > account.yielded || of.lost > account.lost))
                || (knows_all && of.lost != account.lost)
            {
                wrong.push(account.cpu);
            }
        }
        let is_named = |cpu: &Option<u32>| end.accounts.iter().any(|account| account.cpu == *cpu);
        wrong.extend(self.cpus.values().filter(|of| of.events > 0 && !is_named(&of.cpu)).map(|of| of.cpu));
        wrong
    }

    /// Whether the rows have the places in the order that were taken, the notices tell of those that were dropped, and
    /// an exact ledger knows of the missing numbers and untraced times that notices tell of. A missing number may have
    /// come late.
    fn fits(&self, end: &End) -> bool {
        let (rows, dropped, total, found) = (self.places.rows(), end.dropped(), end.total(), &self.recording.found);
        let are_known =
            found.missing <= total.missing.saturating_add(found.late) && (found.dark == 0 || !total.untraced.is_zero());
        let is_whole = self.recording.begins.is_none();
        let all = if is_whole { rows.checked_add(dropped) == Some(end.places) } else { rows <= end.places };
        all && self.places.are_in_order() && (!is_whole || found.dropped == dropped) && (are_known || !total.exact)
    }
}

/// The table of a file.
fn table(file: &str) -> &str {
    file.split_once("/machine=").map_or("", |(table, _)| table)
}

/// Whether a column has this text in all rows.
fn is_of(rows: &RecordBatch, column: &str, text: &str) -> bool {
    let column = rows.column_by_name(column).filter(|column| column.null_count() == 0);
    let texts = column.map(|column| column.as_dictionary_opt::<Int32Type>().map_or(column, |column| column.values()));
    texts.and_then(|texts| texts.as_string_opt::<i32>()).is_some_and(|texts| texts.iter().all(|it| it == Some(text)))
}

/// The CPUs whose counts are not the same.
fn differing(found: &[OfCpu], said: &[OfCpu]) -> Vec<Option<u32>> {
    let mut all: BTreeMap<Option<u32>, [Option<&OfCpu>; 2]> = BTreeMap::new();
    found.iter().for_each(|of| all.entry(of.cpu).or_default()[0] = Some(of));
    said.iter().for_each(|of| all.entry(of.cpu).or_default()[1] = Some(of));
    all.into_iter().filter(|(_, [found, said])| found != said).map(|(cpu, _)| cpu).collect()
}
