//! What pointers of system calls point to, as it was when the call was entered or when it returned, and what signals
//! and ends of threads say.
//!
//! BPF programs ([`program`]) copy it. Their records come through rings of their own, so that the traced calls lose
//! nothing by them. They are read without order: a record of a thread is that of the call which returns next in that
//! thread.

use super::asked::Which;
use super::calls::Calls;
use super::opened::Opened;
use super::pairs::{Entry, NOWHERE};
use super::program::opened::{self, Places};
use super::program::{self, Build, CALLS, END, ENTER, EXIT, FAMILY, FORK, MOST, MOST_CALLS, OUTPUT, Row, SIGNAL};
use crate::failure::Failure;
use crate::numbers::Numbers;
use aya::maps::{Array, HashMap, Map};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Rings};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::ops::ControlFlow;

/// Bytes of each CPU's ring.
const RING: u64 = 1 << 21;

/// Records of threads that are not traced are dropped when they are older than this, in nanoseconds; sooner if there
/// are too many.
const OLD: [u64; 3] = [10_000_000_000, 1_000_000_000, 0];
const MANY: usize = 1 << 16;

/// After how many looks the rings are read again, and how often for what may come behind its call.
const LOOKS: u32 = 512;
const MOST_AGAIN: u32 = 64;

/// What threads have pointed to, and the programs that copy it.
#[derive(Debug)]
pub struct Strings {
    rings: Rings,
    /// Unloaded on drop.
    _program: Ebpf,
    /// By thread and time.
    copied: BTreeMap<(u32, u64), (u64, Copied)>,
    newest: u64,
    quotes: Quotes,
    /// Where this kernel has what is behind descriptors, if that is told.
    places: Option<Places>,
    /// Whether another tracer was there before: then the kernel runs the program for returns behind the tracepoint of
    /// the rings.
    /// Of either program.
    is_behind: [Option<bool>; 2],
    /// Whether records were lost: then the next one need not be the next.
    has_lost: bool,
    /// How often it was looked at, and looked at again, for the calls that were proven at once.
    looks: u32,
    looks_again: u32,
}

/// What the kernel knows of a signal or an end comes within so many nanoseconds behind it, if it comes behind.
const BEHIND: u64 = 1_000_000;

/// What the arguments of one call pointed to.
#[derive(Debug, Clone, Default)]
pub struct Copied {
    number: i64,
    result: i64,
    pieces: Vec<Piece>,
    /// How its strings are printed.
    pub quotes: Quotes,
}

/// What one argument, or one element of it, points to.
#[derive(Debug, Clone)]
pub struct Piece {
    argument: usize,
    /// Of a list, or 0.
    pub element: i32,
    /// How long the whole is of which this is the beginning, if it is an element of an I/O vector.
    pub whole: u64,
    pub pointer: u64,
    /// `None`: it was not in memory.
    pub bytes: Option<Vec<u8>>,
    kind: u64,
}

impl Strings {
    /// Loads the programs for these calls. To be called before the calls' own rings are opened: the kernel runs what
    /// was attached first. If another tracer was there before, what a call points to comes behind its entry. `family`
    /// lists the processes of which something is copied, and of what they start then; of all without it.
    pub fn begin(
        calls: &mut Calls,
        which: &Which<i64>,
        (quotes, places): (Quotes, Option<Places>),
        family: Option<impl Fn() -> Result<Vec<u32>, Failure>>,
    ) -> Result<Self, Box<dyn Error>> {
        let registers = program::REGISTERS.ok_or("it is not known here where system calls have their arguments")?;
        let asked = (0..MOST_CALLS.into()).filter(|number| which.has(number));
        let with_pointers = asked.filter_map(|number| {
            let pointers = calls.of(number).pointers();
            Some((u32::try_from(number).ok()?, pointers)).filter(|(_, pointers)| !pointers.is_empty())
        });
        let pointers: Vec<_> = with_pointers.collect();
        let limit = i32::try_from(quotes.limit).unwrap_or(MOST).min(MOST);
        let task = task();
        let family = family.filter(|_| Numbers::are_the_kernels()).zip(task).map(|(family, _)| family);
        let build = Build { registers, limit, task, has_family: family.is_some(), opened: places };
        let mut program = EbpfLoader::new().load(&program::object(&build)?)?;
        let mut table = Array::<_, Row>::try_from(program.map_mut(CALLS).ok_or("no map")?)?;
        pointers.iter().try_for_each(|(number, pointers)| table.set(*number, pointers.row(&registers), 0))?;
        if places.is_some() {
            let map = program.map_mut(opened::DESCRIPTORS).ok_or("no map")?;
            let mut table = Array::<_, opened::Row>::try_from(map)?;
            for number in (0..MOST_CALLS).filter(|number| which.has(&i64::from(*number))) {
                let descriptors = calls.of(number.into()).descriptors();
                if !descriptors.is_empty() {
                    table.set(number, descriptors.row(&registers.arguments), 0)?;
                }
            }
        }
        let of_calls = if pointers.is_empty() { &[][..] } else { &[ENTER, EXIT] };
        let of_descriptors = if places.is_some() { &[opened::ENTER, opened::EXIT][..] } else { &[] };
        let of_calls = of_calls.iter().chain(of_descriptors);
        let of_ends = task.map(|_| END);
        // The family before all others: what starts while it is listed is followed.
        let first = family.is_some().then_some(FORK);
        let all: Vec<_> = first.into_iter().chain(of_calls.copied()).chain([SIGNAL]).chain(of_ends).collect();
        attach(&mut program, &all)?;
        if let Some(family) = family {
            let mut map = HashMap::<_, u32, u32>::try_from(program.map_mut(FAMILY).ok_or("no family")?)?;
            let listed = family().map_err(|failure| failure.message().to_owned())?;
            listed.into_iter().try_for_each(|process| map.insert(process, 1, 0))?;
        }
        let Some(Map::PerfEventArray(output)) = program.map(OUTPUT) else { return Err("no output".into()) };
        let rings = Rings::options().bpf_output(output.fd()).sample(bindings::PERF_SAMPLE_TID).bytes(RING).open()?;
        Ok(Self {
            rings,
            _program: program,
            copied: BTreeMap::new(),
            newest: 0,
            quotes,
            places,
            is_behind: [None; 2],
            has_lost: false,
            looks: 0,
            looks_again: 0,
        })
    }

    /// What the call pointed to. `until`: when it returned, with that result, or when it was entered if it has not.
    /// `has_exit`: whether such a call leaves a record at its return.
    pub fn of(&mut self, entry: &Entry, until: u64, result: Option<i64>, has_exit: bool) -> Option<Copied> {
        self.look();
        let is_this = |copied: &Copied| copied.number == entry.number;
        let range = (entry.tid, 0)..=(entry.tid, until);
        let mut before = self.copied.range(range).rev().filter(|(_, (kind, _))| *kind == program::AT_ENTER);
        let entered = before.next().filter(|(_, (_, copied))| is_this(copied));
        let mut all = entered.map(|(_, (_, copied))| copied.clone());
        // Only a call of which something was not in memory, or one that writes, has left something at its return.
        let is_cold = all.iter().flat_map(|copied| &copied.pieces).any(|piece| piece.bytes.is_none());
        for (kind, has_record) in [(program::AGAIN, is_cold), (program::AT_EXIT, has_exit)] {
            let result = result.filter(|result| has_record && (kind == program::AGAIN || *result >= 0));
            let its = result.and_then(|result| self.returned(entry, until, kind, result));
            all.get_or_insert_default().pieces.extend(its.into_iter().flat_map(|copied| copied.pieces));
        }
        all.filter(|copied| !copied.pieces.is_empty()).map(|copied| Copied { quotes: self.quotes, ..copied })
    }

    /// What is behind the descriptors of the call, if that is told. `gives`: whether such a call leaves a record of
    /// those that it has made.
    pub fn opened(
        &mut self,
        entry: &Entry,
        until: u64,
        result: Option<i64>,
        gives: impl Fn() -> bool,
    ) -> Option<Opened> {
        let places = self.places?;
        self.look();
        let mut before = self.copied.range((entry.tid, 0)..=(entry.tid, until)).rev();
        let entered = before.find(|(_, (kind, _))| *kind == opened::AT_ENTER);
        let entered = entered.map(|(_, (_, copied))| copied).filter(|copied| copied.number == entry.number).cloned();
        let result = result.filter(|result| *result >= 0 && gives());
        let returned = result.and_then(|result| self.returned(entry, until, opened::AT_EXIT, result));
        Opened::of([entered, returned], &places)
    }

    /// What a call has left at its return. What comes before its entry is of a call before.
    fn returned(&mut self, entry: &Entry, until: u64, kind: u64, result: i64) -> Option<Copied> {
        // The order of the two does not change as long as both are there.
        let of = usize::from(kind == opened::AT_EXIT);
        let ahead = self.first(entry, (entry.time, until), kind, result);
        let is_behind = ahead.is_none();
        let found = match (ahead, self.is_behind[of]) {
            (Some(ahead), _) => ahead,
            (None, Some(false)) => return None,
            // However late: a machine may stand still in between.
            (None, _) => {
                let behind = self.first(entry, (until, u64::MAX), kind, result);
                if behind.is_none() {
                    self.look_again();
                }
                let behind = behind.or_else(|| self.first(entry, (until, u64::MAX), kind, result));
                behind.filter(|_| !self.has_lost)?
            }
        };
        // A call that has succeeded has left a record. One of which something was not in memory may have lost it.
        if kind != program::AGAIN {
            self.is_behind[of] = Some(is_behind);
        }
        Some(found)
    }

    /// The first of a thread's records of a kind in a time, if it is this call's with this result.
    fn first(&self, entry: &Entry, (from, to): (u64, u64), kind: u64, result: i64) -> Option<Copied> {
        let later = self.copied.range((entry.tid, from)..=(entry.tid, to.max(from)));
        let mut its = later.filter(|(_, (one, copied))| *one == kind && copied.number == entry.number);
        its.next().map(|(_, (_, copied))| copied).filter(|copied| copied.result == result).cloned()
    }

    /// What the kernel knows of a signal that a thread takes, or the status with which it ends: of the last.
    fn last(&mut self, tid: u32, until: u64, of: u64) -> Option<Vec<u8>> {
        self.look();
        let find = |copied: &BTreeMap<(u32, u64), (u64, Copied)>| {
            let mut all = copied.range((tid, 0)..=(tid, until.saturating_add(BEHIND))).rev();
            let (_, (_, copied)) = all.find(|(_, (kind, _))| *kind == of)?;
            copied.pieces.first()?.bytes.clone()
        };
        let found = find(&self.copied);
        if found.is_none() {
            self.look_again();
        }
        found.or_else(|| find(&self.copied))
    }

    /// What the kernel knows of a signal.
    pub fn signal(&mut self, tid: u32, until: u64) -> Option<Vec<u8>> {
        self.last(tid, until, program::OF_SIGNAL)
    }

    /// The status with which a thread ends, as wait(2) has it.
    pub fn end(&mut self, tid: u32, until: u64) -> Option<i32> {
        let bytes = self.last(tid, until, program::OF_END)?;
        Some(i32::from_ne_bytes(*bytes.first_chunk()?))
    }

    /// A call has returned, or a thread has ended: what the thread pointed to before is no later call's.
    pub fn forget(&mut self, tid: u32, until: u64) {
        while let Some((&key, _)) = self.copied.range((tid, 0)..=(tid, until)).next() {
            self.copied.remove(&key);
        }
    }

    /// Calls were lost: it is not known what belongs to which.
    pub fn forget_all(&mut self) {
        self.read();
        self.copied.clear();
    }

    /// Reads what there is, behind the calls that were proven at once. Other processes point to something too: theirs is
    /// dropped after a while.
    pub fn tidy(&mut self, is_inside: impl Fn(u32) -> bool) {
        self.read();
        (self.looks, self.looks_again) = (0, 0);
        for age in OLD {
            let old = self.newest.saturating_sub(age);
            self.copied.retain(|(tid, time), _| *time >= old || is_inside(*tid));
            if self.copied.len() <= MANY {
                break;
            }
        }
    }

    /// Reads what there is, for all calls that were proven at once: theirs was there before. With a read for each call, a
    /// machine whose calls come faster than they are read here would keep it from ever going on. While little is kept
    /// it reads now and then, so that the rings do not fill.
    fn look(&mut self) {
        if self.looks == 0 || self.looks.is_multiple_of(LOOKS) && self.copied.len() < MANY {
            self.read();
        }
        self.looks += 1;
    }

    /// Reads again for what may come behind its call: as seldom, for the same reason.
    fn look_again(&mut self) {
        if self.looks_again < MOST_AGAIN && !self.has_lost {
            self.looks_again += 1;
            self.read();
        }
    }

    fn read(&mut self) {
        let Self { rings, copied, newest, has_lost, .. } = self;
        let _ = rings.drain(|event| {
            *has_lost |= !matches!(event.item(), Item::Record(_));
            if let Some((thread, what)) = read(&event) {
                *newest = thread.1.max(*newest);
                copied.insert(thread, what);
            }
            ControlFlow::<()>::Continue(())
        });
    }
}

/// Programs by name, each at its tracepoint. To load takes long: what another tracer attached meanwhile would be in
/// between.
fn attach(program: &mut Ebpf, all: &[(&str, &str)]) -> Result<(), Box<dyn Error>> {
    for attaches in [false, true] {
        for (name, tracepoint) in all {
            let of: &mut RawTracePoint = program.program_mut(name).ok_or("no program")?.try_into()?;
            if attaches {
                of.attach(tracepoint)?;
            } else {
                of.load()?;
            }
        }
    }
    Ok(())
}

/// The thread and the time, and what the thread pointed to.
fn read(event: &Event<'_>) -> Option<((u32, u64), (u64, Copied))> {
    let record = event.record()?;
    let payload = record.payload()?;
    // Of the thread, perf says the number in this PID namespace. Outside of it all have the same.
    let (_, tid) = record.pid_tid().filter(|(_, tid)| *tid != NOWHERE)?;
    let first = payload.u64(0)?;
    let (number, kind) = (i64::from(first as u32), first >> 32);
    let result = payload.u64(program::RESULT_AT)?.cast_signed();
    let (mut pieces, mut at) = (Vec::new(), program::FIRST);
    while let (Some(word), Some(pointer), Some(len)) =
        (payload.u64(at), payload.u64(at + program::POINTER_AT), payload.u64(at + program::LENGTH_AT))
    {
        let len = usize::try_from(len.cast_signed()).ok().filter(|len| *len <= MOST as usize);
        let begin = at + program::BYTES_AT;
        let bytes = len.and_then(|len| (begin..begin + len).map(|at| payload.u8(at)).collect::<Option<_>>());
        let (argument, element) = ((word & 0xff) as usize, (word as u32 >> program::ELEMENT) as i32);
        pieces.push(Piece { argument, element, whole: word >> 32, pointer, bytes, kind });
        at = begin + len.unwrap_or(0).next_multiple_of(8);
    }
    Some(((tid, record.time()?), (kind, Copied { number, result, pieces, quotes: Quotes::default() })))
}

/// Bytes, and whether more follow.
pub type Bytes<'a> = (&'a [u8], bool);

impl Copied {
    /// What an argument with this value points to. A 32-bit program has its arguments in other registers than those
    /// that were copied.
    pub fn at(&self, argument: usize, pointer: u64, is_returned: bool) -> Option<&[u8]> {
        let of = |piece: &&Piece| {
            piece.argument == argument
                && piece.element == 0
                && piece.pointer == pointer
                && (piece.kind == program::AT_EXIT) == is_returned
        };
        self.pieces.iter().filter(of).find_map(|piece| piece.bytes.as_deref())
    }

    /// The string to which an argument points. Without the end that strings have.
    pub fn string(&self, argument: usize, pointer: u64) -> Option<Bytes<'_>> {
        text(self.at(argument, pointer, false)?)
    }

    /// An element of an argument: as it was in memory, if it ever was.
    pub fn element(&self, argument: usize, element: i32) -> Option<&Piece> {
        let its = || self.pieces.iter().filter(|piece| piece.argument == argument && piece.element == element);
        its().find(|piece| piece.bytes.is_some()).or_else(|| its().next())
    }

    /// The strings of a program that is executed, and whether these are all. Those that were not in memory are in that of the new program,
    /// if it has as many: a script has others.
    pub fn strings(&self) -> Option<(Vec<Bytes<'_>>, bool)> {
        let argument = program::STRINGS_OF;
        let of = |list: usize| (0..program::STRINGS).map_while(move |at| self.element(list, at));
        let count = of(argument).count();
        let last = self.element(argument, program::NAME)?;
        let is_all = last.pointer == 0;
        let is_same = is_all && of(program::EXECUTED).count() == count;
        if !is_all && count < program::STRINGS as usize {
            return None;
        }
        let later = |at: i32| self.element(program::EXECUTED, at).filter(|_| is_same)?.string();
        let strings = of(argument).zip(0..).map(|(piece, at)| piece.string().or_else(|| later(at)));
        Some((strings.collect::<Option<_>>()?, is_all))
    }
}

impl Piece {
    /// A string, without the end that strings have.
    pub fn string(&self) -> Option<Bytes<'_>> {
        text(self.bytes.as_deref()?)
    }
}

/// Without the end of a string. One that is as long as can be goes on.
fn text(bytes: &[u8]) -> Option<Bytes<'_>> {
    let more = bytes.len() == MOST as usize;
    Some((&bytes[..bytes.len().checked_sub(1)?], more))
}

/// Where `struct task_struct` has the status of a thread that ends, and the number of its process.
#[cfg(feature = "btf")]
fn task() -> Option<[i32; 2]> {
    let kernel = crate::read::btf::Kernel::read().ok()?;
    let at = |name: &str| kernel.offset("task_struct", name).ok().map(|offset| offset as i32);
    Some([at("exit_code")?, at("tgid")?])
}

#[cfg(not(feature = "btf"))]
fn task() -> Option<[i32; 2]> {
    None
}

/// How strings are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotes {
    /// The most bytes of a string that is no path.
    pub limit: usize,
    /// Whether strings that are not of ASCII are in hexadecimal, or, from 2 on, all.
    pub hexadecimal: u8,
}

impl Default for Quotes {
    fn default() -> Self {
        Self { limit: 32, hexadecimal: 0 }
    }
}

impl Quotes {
    /// As strace(1) has it: in quotes, with the escapes of C, and dots if more follows. Text in UTF-8 is printed as it is.
    pub fn quoted(self, (bytes, more): Bytes<'_>) -> String {
        let mut text = String::from("\"");
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t'..=b'\r');
        if self.hexadecimal > 1 || self.hexadecimal > 0 && !bytes.iter().all(is_plain) {
            for byte in bytes {
                let _ = write!(text, "\\x{byte:02x}");
            }
        } else {
            escape(&mut text, bytes);
        }
        text.push('"');
        if more {
            text.push_str("...");
        }
        text
    }

    /// The same of a string that is no path: no more of it than is asked for.
    pub fn limited(self, (bytes, more): Bytes<'_>) -> String {
        let cut = bytes.len().min(self.limit);
        self.quoted((&bytes[..cut], more || cut < bytes.len()))
    }
}

fn escape(text: &mut String, bytes: &[u8]) {
    // A letter at the end may be cut. What is no text all in all has no letters but those of ASCII.
    let is_text = str::from_utf8(bytes).map_or_else(|error| error.error_len().is_none(), |_| true);
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            at += letter.len_utf8();
            match letter {
                '"' | '\\' => text.extend(['\\', letter]),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                '\u{b}' => text.push_str("\\v"),
                '\u{c}' => text.push_str("\\f"),
                letter if letter.is_control() || !is_text && !letter.is_ascii() => {
                    let next = bytes.get(at).copied();
                    let all = letter.encode_utf8(&mut [0; 4]).len();
                    let of = &bytes[at - all..at];
                    of.iter().enumerate().for_each(|(n, byte)| octal(text, *byte, of.get(n + 1).copied().or(next)));
                }
                letter => text.push(letter),
            }
        }
        for byte in chunk.invalid() {
            at += 1;
            octal(text, *byte, bytes.get(at).copied());
        }
    }
}

/// As few digits as the next letter allows.
fn octal(text: &mut String, byte: u8, next: Option<u8>) {
    let _ = match next {
        Some(b'0'..=b'9') => write!(text, "\\{byte:03o}"),
        _ => write!(text, "\\{byte:o}"),
    };
}

#[cfg(test)]
mod tests {
    use super::Quotes;

    #[test]
    fn bytes_are_quoted_as_c_has_them() {
        let text = |bytes: &[u8]| Quotes::default().quoted((bytes, false));
        assert_eq!(text(b""), r#""""#);
        assert_eq!(text(b"a \"b\" \\c\n\t\r\x0b\x0c"), r#""a \"b\" \\c\n\t\r\v\f""#);
        assert_eq!(text("Größe\u{1}\u{7f}\u{85}".as_bytes()), "\"Größe\\1\\177\\302\\205\"");
        assert_eq!(text(b"\xff1\0\x012\0"), r#""\3771\0\0012\0""#);
        assert_eq!(text(b"i\xc8\x91\xff"), r#""i\310\221\377""#);
        assert_eq!(Quotes::default().quoted((b"cut", true)), r#""cut"..."#);
        let limited = |limit, hexadecimal| Quotes { limit, hexadecimal }.limited((b"a\xffb", false));
        assert_eq!(
            [limited(3, 0), limited(2, 0), limited(3, 1), limited(1, 1), limited(1, 2)],
            [r#""a\377b""#, r#""a\377"..."#, r#""\x61\xff\x62""#, r#""a"..."#, r#""\x61"..."#]
        );
    }
}
