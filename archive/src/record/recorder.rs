//! The reading side: events become batches of rows, which never wait for the store.

use super::unfinished::Unfinished;
use super::writer::{Batch, Message};
use super::{Error, missing};
use crate::clocks::{Clocks, Reading};
use crate::schema::{At, Of, Origin, Table, Value};
use crate::seal::{self, End};
use arrow::array::AsArray;
use arrow::datatypes::{Int32Type, SchemaRef};
use arrow::record_batch::RecordBatch;
use perf_event_open_sys::bindings;
use perfweave::{Account, Certainty, Event, Item, Record, Rings};
use perfweave_events::Format;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;

/// Rows of a batch.
const ROWS: usize = 8192;

/// A table, and what its next batch has so far.
#[derive(Debug)]
struct Filling {
    table: Table,
    folder: Arc<str>,
    first: i64,
    last: i64,
    newest: i64,
    sorted: bool,
    dropped: Option<Span>,
}

/// Some events that share a notice.
#[derive(Debug, Clone, Copy)]
struct Span {
    count: i64,
    from: i64,
    to: i64,
}

impl Span {
    fn with(this: Option<Self>, count: i64, from: i64, to: i64) -> Option<Self> {
        let Self { count: before, from: first, to: last } = this.unwrap_or(Self { count: 0, from, to });
        Some(Self { count: before + count, from: first.min(from), to: last.max(to) })
    }
}

impl Filling {
    fn new(table: Table) -> Self {
        let folder = table.folder.as_str().into();
        Self { table, folder, first: 0, last: 0, newest: i64::MIN, sorted: true, dropped: None }
    }

    /// Before a row is added.
    fn note(&mut self, mono: i64) {
        if self.table.rows() == 0 {
            (self.first, self.last, self.newest, self.sorted) = (mono, mono, mono, true);
        }
        self.sorted &= mono >= self.newest;
        self.newest = mono;
        (self.first, self.last) = (self.first.min(mono), self.last.max(mono));
    }
}

/// A notice, before it has its place.
#[derive(Debug, Clone, Default)]
pub struct Notice {
    /// What kind of thing is missing or out of order.
    pub kind: &'static str,
    /// Where.
    pub cpu: Option<u32>,
    /// How many records.
    pub count: Option<i64>,
    /// After which key.
    pub from: Option<i64>,
    /// Before which key.
    pub to: Option<i64>,
    /// The same for people.
    pub text: String,
}

/// What the rows of `traces` say.
#[derive(Debug, Clone)]
pub struct About {
    /// The kernel's release.
    pub kernel: String,
    /// The events, as the user named them.
    pub events: String,
    /// The other options.
    pub options: String,
    /// When an event may leave.
    pub hold: String,
}

/// How rows are passed on.
#[derive(Debug, Clone, Copy)]
pub struct Passing {
    /// How many rows of events may wait. A batch has its part of the room until it is written.
    pub room: usize,
    /// How often, in nanoseconds.
    pub every: i64,
    /// Whether the last source is no event, but comes now and then. A notice tells it if nothing else has come.
    pub has_heartbeat: bool,
}

/// Takes the events of a recording.
#[derive(Debug)]
pub struct Recorder {
    events: Vec<Filling>,
    /// The table of each source. A heartbeat has none.
    sources: Vec<usize>,
    /// Whether `PERF_SAMPLE_TID` has the numbers of threads that tracepoints have (`common_pid`): those of the first
    /// PID namespace.
    are_the_kernels: bool,
    /// The first row that was not passed on yet.
    passed: i64,
    every: i64,
    notices: Filling,
    clocks: Filling,
    traces: Filling,
    about: About,
    clock: Clocks,
    to: UnboundedSender<Message>,
    room: Arc<Semaphore>,
    reading: Reading,
    next_tick: i64,
    hour_ends: i64,
    mono: i64,
    /// The largest key that came.
    newest: Option<i64>,
    row: i64,
    late: Option<Span>,
    /// The last key of each CPU's ring.
    last_of: Vec<Option<i64>>,
    /// By CPU, the events that became rows, and those of them that were dropped.
    of_cpus: Vec<[u64; 2]>,
    /// Notices of damage before the next record of its ring, and of CPUs that are not traced.
    lasting: Vec<Notice>,
    /// Rows that became part of a batch for which there was no room.
    pub dropped: i64,
    /// Events that came.
    pub yielded: i64,
}

impl Recorder {
    /// Begins: the first rows are in `traces` and `clocks`.
    ///
    /// # Errors
    /// If the clocks cannot be read.
    pub fn new(
        rings: &Rings,
        origin: &Origin,
        about: About,
        clock: Clocks,
        to: UnboundedSender<Message>,
        Passing { room, every, has_heartbeat }: Passing,
    ) -> Result<Self, Error> {
        let (mut events, mut sources) = (Vec::<Filling>::new(), Vec::new());
        let tables = rings.sources().len() - usize::from(has_heartbeat);
        for (number, source) in rings.sources().iter().enumerate().take(tables) {
            let (system, name) =
                source.tracepoint().unwrap_or(source.name()).split_once(':').unwrap_or(("perf", source.name()));
            let table = Filling::new(Table::event(system, name, Format::of(rings, number).ok().as_ref(), origin));
            let same = events.iter().position(|other| other.folder == table.folder);
            sources.push(same.unwrap_or(events.len()));
            if same.is_none() {
                events.push(table);
            }
        }
        let reading = read(&clock)?;
        let [notices, clocks, traces] =
            [Table::notices(origin), Table::clocks(origin), Table::traces(origin)].map(Filling::new);
        let hour_ends = reading.next_hour(reading.mono);
        let mut this = Self {
            events,
            sources,
            are_the_kernels: is_in_the_first_namespace(),
            passed: 0,
            every,
            notices,
            clocks,
            traces,
            about,
            clock,
            to,
            room: Arc::new(Semaphore::new(room)),
            reading,
            next_tick: reading.mono,
            hour_ends,
            mono: reading.mono,
            newest: None,
            row: 0,
            late: None,
            last_of: Vec::new(),
            of_cpus: Vec::new(),
            lasting: Vec::new(),
            dropped: 0,
            yielded: 0,
        };
        this.trace("begin", [Value::Null; 3]);
        this.tick()?;
        Ok(this)
    }

    /// The tables of events and notices, by their folders.
    pub fn tables(&self) -> Vec<(Arc<str>, SchemaRef)> {
        let all = self.events.iter().chain([&self.notices]);
        all.map(|filling| (Arc::clone(&filling.folder), Arc::clone(filling.table.schema()))).collect()
    }

    /// When [`Recorder::tick`] is due.
    pub fn next_tick(&self) -> i64 {
        self.next_tick
    }

    /// An event: a row of its table, or a notice.
    ///
    /// # Errors
    /// If the clocks cannot be read or the writing thread has ended.
    #[inline]
    pub fn take(&mut self, event: &Event<'_>) -> Result<(), Error> {
        let mono = event.key().map_or(self.mono, |key| key.cast_signed());
        self.mono = self.mono.max(mono);
        self.newest = self.newest.max(event.key().map(u64::cast_signed));
        if mono >= self.hour_ends {
            // A file has rows of one hour.
            self.send_all()?;
            self.hour_ends = self.reading.next_hour(mono);
        }
        if mono >= self.next_tick {
            self.tick()?;
        }
        let Item::Record(record) = event.item() else { return self.notice_of(event) };
        self.note_last(record.cpu(), mono);
        let source = record
            .source()
            .and_then(|source| self.sources.get(source))
            .filter(|_| record.kind() == bindings::PERF_RECORD_SAMPLE);
        let Some(&number) = source else { return self.notice_other(mono, &record) };
        let late = event.certainty() == Certainty::Late;
        if late {
            self.late = Span::with(self.late, 1, mono, mono);
        }
        let of = Of {
            cpu: record.cpu(),
            proven: event.certainty() == Certainty::Proven,
            late,
            tid: record.pid_tid().filter(|_| self.are_the_kernels).map(|(_, tid)| tid),
        };
        let at = self.at(mono);
        self.yielded += 1;
        self.of_cpu(record.cpu())[0] += 1;
        let filling = &mut self.events[number];
        filling.note(mono);
        filling.table.add_record(at, of, &record);
        if filling.table.rows() >= ROWS { self.send_events(number) } else { Ok(()) }
    }

    fn note_last(&mut self, cpu: u32, mono: i64) {
        if !self.lasting.is_empty() {
            let is_over = |lasts: &mut Notice| lasts.kind == "damage" && lasts.cpu == Some(cpu);
            let over = self.lasting.extract_if(.., is_over).collect::<Vec<_>>();
            over.into_iter().for_each(|notice| self.notice(mono, &Notice { to: Some(mono), ..notice }));
        }
        let cpu = cpu as usize;
        if cpu >= self.last_of.len() {
            self.last_of.resize(cpu + 1, None);
        }
        self.last_of[cpu] = Some(mono);
    }

    /// What is counted of a CPU.
    fn of_cpu(&mut self, cpu: u32) -> &mut [u64; 2] {
        let cpu = cpu as usize;
        if cpu >= self.of_cpus.len() {
            self.of_cpus.resize(cpu + 1, [0; 2]);
        }
        &mut self.of_cpus[cpu]
    }

    /// Rows of events are not passed on.
    fn drop_rows(&mut self, rows: &RecordBatch) {
        let cpus = rows.column_by_name("cpu_id").and_then(|cpus| cpus.as_primitive_opt::<Int32Type>());
        for cpu in cpus.iter().flat_map(|cpus| cpus.values().iter()) {
            self.of_cpu(cpu.cast_unsigned())[1] += 1;
        }
        self.dropped += rows.num_rows() as i64;
    }

    /// The last key of a CPU's ring.
    fn last(&self, cpu: u32) -> Option<i64> {
        self.last_of.get(cpu as usize).copied().flatten()
    }

    fn notice_other(&mut self, mono: i64, record: &Record<'_>) -> Result<(), Error> {
        let (kind, text) = match record.kind() {
            bindings::PERF_RECORD_THROTTLE => ("throttled", "the kernel stops an event that comes too often"),
            bindings::PERF_RECORD_UNTHROTTLE => ("throttled", "the kernel goes on with the event that it stopped"),
            // The heartbeat.
            bindings::PERF_RECORD_SAMPLE if self.row == self.passed => ("idle", "nothing has come until here"),
            _ => return Ok(()),
        };
        let cpu = Some(record.cpu());
        self.notice(mono, &Notice { kind, cpu, text: text.into(), ..Notice::default() });
        self.send_notices_if(ROWS)
    }

    fn at(&mut self, mono: i64) -> At {
        self.row += 1;
        At { mono, tai: self.reading.tai(mono), tai_error: self.reading.error(mono), row: self.row - 1 }
    }

    fn notice_of(&mut self, event: &Event<'_>) -> Result<(), Error> {
        let key = |key: Option<u64>| key.map(u64::cast_signed);
        let notice = match event.item() {
            Item::Lost(lost) => {
                let text = format!("the ring of CPU {} was full: {} records are lost", lost.cpu, lost.count);
                Notice {
                    kind: "lost",
                    cpu: Some(lost.cpu),
                    count: Some(lost.count.cast_signed()),
                    from: key(lost.after),
                    to: key(lost.until),
                    text,
                }
            }
            Item::Gap(gap) => {
                let text = format!("numbers {} to {} are missing", gap.first, gap.last);
                Notice {
                    kind: "gap",
                    cpu: gap.cpu,
                    count: Some(gap.count.cast_signed()),
                    from: key(gap.after),
                    to: key(gap.until),
                    text,
                }
            }
            Item::Damage(damage) => {
                let text = damage.to_string();
                let (cpu, from) = (Some(damage.cpu), self.last(damage.cpu));
                self.lasting.push(Notice { kind: "damage", cpu, from, text, ..Notice::default() });
                return Ok(());
            }
            Item::Untraced(dark) => {
                let lasted = dark.lasted.map(|time| format!(", for {:.3} s", time.as_secs_f64())).unwrap_or_default();
                let to = dark
                    .since
                    .zip(dark.lasted)
                    .map(|(since, lasted)| since.cast_signed().saturating_add(lasted.as_nanos() as i64));
                self.lasting.retain(|lasts| lasts.kind != "dark" || lasts.cpu != Some(dark.cpu));
                let (cpu, from, text) = (Some(dark.cpu), key(dark.since), format!("the CPU is not traced{lasted}"));
                let notice = Notice { kind: "dark", cpu, from, to, text, ..Notice::default() };
                if dark.lasted.is_none() {
                    // Its interval is told when it is over.
                    self.lasting.push(notice.clone());
                    Notice { kind: "dark begins", ..notice }
                } else {
                    notice
                }
            }
            _ => return Ok(()),
        };
        self.notice(event.key().map_or(self.mono, u64::cast_signed), &notice);
        self.send_notices_if(ROWS)
    }

    /// Passes notices on if there are so many.
    fn send_notices_if(&mut self, rows: usize) -> Result<(), Error> {
        if self.notices.table.rows() < rows {
            return Ok(());
        }
        let batch = batch_of(&mut self.notices, self.reading.utc)?;
        send(&self.to, Message::Rows(batch))
    }

    /// Tells of recordings that were killed. What they left open is removed once the notices are in a file.
    ///
    /// # Errors
    /// If the writing thread has ended.
    pub fn tell_of(&mut self, unfinished: Vec<Unfinished>) -> Result<(), Error> {
        if unfinished.is_empty() {
            return Ok(());
        }
        unfinished.iter().for_each(|file| self.notice(self.mono, &file.notice));
        self.send_notices_if(1)?;
        send(&self.to, Message::Told(unfinished))
    }

    /// Adds a notice at this time.
    pub fn notice(&mut self, mono: i64, notice: &Notice) {
        let at = self.at(mono);
        let int = |value: Option<i64>| value.map_or(Value::Null, Value::Int);
        let cpu = notice.cpu.filter(|cpu| *cpu != perfweave::ANY_CPU).map(i64::from);
        self.notices.note(mono);
        let values = [
            Value::Text(notice.kind),
            int(cpu),
            int(notice.count),
            int(notice.from),
            int(notice.to),
            Value::Text(&notice.text),
        ];
        self.notices.table.add_values(at, values);
    }

    fn trace(&mut self, what: &str, counts: [Value<'_>; 3]) {
        let (mono, reading) = (self.reading.mono, self.reading);
        let at = At { mono, tai: reading.tai(mono), tai_error: reading.error(mono), row: 0 };
        self.traces.note(mono);
        let About { kernel, events, options, hold } = &self.about;
        self.traces
            .table
            .add_values(at, [what, kernel, events, options, hold].map(Value::Text).into_iter().chain(counts));
    }

    /// Reads the clocks, and passes on what there is.
    ///
    /// # Errors
    /// If the clocks cannot be read or the writing thread has ended.
    pub fn tick(&mut self) -> Result<(), Error> {
        self.tick_with(None)
    }

    /// The same. With accounts it is the last time.
    fn tick_with(&mut self, accounts: Option<Vec<seal::Account>>) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.reading, read(&self.clock)?);
        let reading @ Reading { mono, offset, bracket, maxerror, esterror, pending, rate, .. } = self.reading;
        self.next_tick = mono + self.every;
        // Events from before this reading may still come, so that their keys alone end an hour.
        self.hour_ends = reading.next_hour(self.mono);
        let at = At { mono, tai: reading.tai(mono), tai_error: reading.error(mono), row: 0 };
        self.clocks.note(mono);
        let numbers = [offset, bracket, maxerror, esterror, pending, rate].map(Value::Int);
        self.clocks.table.add_values(
            at,
            numbers.into_iter().chain([Value::Truth(reading.synchronized), Value::Text(reading.source)]),
        );
        if let Some(set) = reading.set_since(&before) {
            let text =
                format!("TAI was set by {set} ns against the monotonic clock: a clock was set, or the machine slept");
            let (from, to) = (Some(before.mono), Some(mono));
            self.notice(self.mono, &Notice { kind: "clock", from, to, text, ..Notice::default() });
        }
        self.tell();
        if let Some(accounts) = accounts {
            send(&self.to, Message::End(End { places: self.row.cast_unsigned(), accounts }))?;
        }
        self.send_all()?;
        self.passed = self.row;
        send(&self.to, Message::Now { mono, floor: self.newest })
    }

    /// Notices of what happened often.
    fn tell(&mut self) {
        if let Some(Span { count, from, to }) = self.late.take() {
            let text = format!("{count} events came after later ones");
            self.notice(
                self.mono,
                &Notice { kind: "late", count: Some(count), from: Some(from), to: Some(to), text, ..Notice::default() },
            );
        }
        (0..self.events.len()).for_each(|number| self.tell_dropped(number));
    }

    /// A notice of the rows of a table that were dropped since the last ones that were not.
    fn tell_dropped(&mut self, number: usize) {
        let filling = &mut self.events[number];
        let Some(Span { count, from, to }) = filling.dropped.take() else { return };
        let text = format!("the store was too slow: {count} rows of {} are dropped", filling.folder);
        let (count, from, to) = (Some(count), Some(from), Some(to));
        self.notice(self.mono, &Notice { kind: "dropped", count, from, to, text, ..Notice::default() });
    }

    fn send_all(&mut self) -> Result<(), Error> {
        (0..self.events.len()).try_for_each(|number| self.send_events(number))?;
        for filling in [&mut self.notices, &mut self.clocks, &mut self.traces] {
            // They are few, and never dropped.
            if filling.table.rows() > 0 {
                let batch = batch_of(filling, self.reading.utc)?;
                send(&self.to, Message::Rows(batch))?;
            }
        }
        Ok(())
    }

    /// Passes on a batch of events if there is room, and drops it otherwise.
    fn send_events(&mut self, number: usize) -> Result<(), Error> {
        let filling = &mut self.events[number];
        let rows = filling.table.rows();
        if rows == 0 {
            return Ok(());
        }
        let mut batch = batch_of(filling, self.reading.utc)?;
        match Arc::clone(&self.room).try_acquire_many_owned(rows as u32) {
            Ok(room) => {
                batch.room = Some(room);
                send(&self.to, Message::Rows(batch))?;
                self.tell_dropped(number);
                Ok(())
            }
            Err(_) => {
                filling.dropped = Span::with(filling.dropped, rows as i64, filling.first, filling.last);
                self.drop_rows(&batch.rows);
                Ok(())
            }
        }
    }

    /// Ends the recording. The last rows need no room. `accounts` is what the kernel says of each ring.
    ///
    /// # Errors
    /// If the clocks cannot be read or the writing thread has ended.
    pub fn finish(mut self, accounts: &[Account]) -> Result<(), Error> {
        for Account { cpu, unreported, .. } in accounts.iter().filter(|account| account.unreported > 0) {
            let text = format!("the ring was full: {unreported} records after its last one are lost");
            let (count, from) = (Some(unreported.cast_signed()), cpu.and_then(|cpu| self.last(cpu)));
            self.notice(self.mono, &Notice { kind: "lost", cpu: *cpu, count, from, text, ..Notice::default() });
        }
        for notice in std::mem::take(&mut self.lasting) {
            self.notice(self.mono, &notice);
        }
        for Account { cpu, .. } in accounts.iter().filter(|account| !account.exact) {
            let (text, from) = (missing::UNCOUNTED.into(), cpu.and_then(|cpu| self.last(cpu)));
            self.notice(self.mono, &Notice { kind: "uncounted", cpu: *cpu, from, text, ..Notice::default() });
        }
        let lost = accounts.iter().map(|account| account.lost).sum::<u64>();
        self.reading = read(&self.clock)?;
        for filling in self.events.iter_mut().filter(|filling| filling.table.rows() > 0) {
            let batch = batch_of(filling, self.reading.utc)?;
            send(&self.to, Message::Rows(batch))?;
        }
        self.trace("end", [self.yielded - self.dropped, self.yielded, lost.cast_signed()].map(Value::Int));
        let accounts = self.sealed(accounts);
        self.tick_with(Some(accounts))
    }

    /// What the last file says of each CPU, and of those that the ledger does not name.
    fn sealed(&self, accounts: &[Account]) -> Vec<seal::Account> {
        let of = |cpu: Option<u32>| cpu.and_then(|cpu| self.of_cpus.get(cpu as usize)).copied().unwrap_or_default();
        let mut sealed =
            accounts.iter().map(|account| seal::Account::new(account, of(account.cpu))).collect::<Vec<_>>();
        for (cpu, &[taken, dropped]) in (0..).zip(&self.of_cpus).filter(|(_, [taken, _])| *taken > 0) {
            let cpu = Some(cpu);
            if !accounts.iter().any(|account| account.cpu == cpu) {
                sealed.push(seal::Account { cpu, taken, dropped, ..seal::Account::default() });
            }
        }
        sealed
    }
}

/// Whether this process numbers threads as the first PID namespace does. Where there is no /proc, that is not known.
fn is_in_the_first_namespace() -> bool {
    // `PROC_PID_INIT_INO` (include/linux/proc_ns.h).
    fs::metadata("/proc/self/ns/pid").is_ok_and(|space| space.ino() == 0xEFFF_FFFC)
}

fn send(to: &UnboundedSender<Message>, message: Message) -> Result<(), Error> {
    to.send(message).map_err(|_| Error::Writer)
}

fn read(clocks: &Clocks) -> Result<Reading, Error> {
    clocks.read().map_err(Error::system("the clocks cannot be read"))
}

fn batch_of(filling: &mut Filling, utc: i64) -> Result<Batch, Error> {
    let rows = filling.table.take()?;
    let Filling { folder, first, last, sorted, .. } = filling;
    Ok(Batch { folder: Arc::clone(folder), rows, first: *first, last: *last, sorted: *sorted, utc, room: None })
}
