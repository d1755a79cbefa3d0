//! What pointers of system calls point to: strings, and the beginnings of buffers, as they were when the call was
//! entered.
//!
//! A BPF program ([`program`]) copies them. Its records come through rings of their own, so that the traced calls lose
//! nothing by them. They are read without order: a record of a thread is that of the call which returns next in that
//! thread.

use super::calls::Calls;
use super::pairs::{Entry, NOWHERE};
use super::program::{self, BUFFER, BYTES, CALLS, FIRST, LEN, MOST_CALLS, OUTPUT, PROGRAM, Pointers, SECOND, STRING};
use aya::maps::{Array, Map};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};
use perf_event_open_sys::bindings;
use perfweave::{Event, Rings};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::ops::ControlFlow;

/// Bytes of each CPU's ring.
const RING: u64 = 1 << 20;

/// Records of threads that are not traced are dropped when they are older than this, in nanoseconds; sooner if there
/// are too many.
const OLD: [u64; 3] = [10_000_000_000, 1_000_000_000, 0];
const MOST: usize = 1 << 16;

/// What threads have pointed to, and the program that copies it.
#[derive(Debug)]
pub struct Strings {
    rings: Rings,
    /// Unloaded on drop.
    _program: Ebpf,
    /// By thread and time.
    copied: BTreeMap<(u32, u64), Copied>,
    newest: u64,
}

/// What the arguments of one call pointed to.
#[derive(Debug, Clone, Default)]
pub struct Copied {
    number: i64,
    /// Pointers, and what lies there.
    pointed: [Option<(u64, Vec<u8>)>; 2],
}

impl Strings {
    /// Loads the program for these calls, or for all if there are none. `None` if they point to nothing. To be called
    /// before the calls' own rings are opened: the kernel runs what was attached first. If another tracer was there
    /// before, a call's strings come behind its entry.
    pub fn begin(calls: &mut Calls, numbers: &[i64]) -> Result<Option<Self>, Box<dyn Error>> {
        let registers = program::REGISTERS.ok_or("it is not known here where system calls have their arguments")?;
        let all = if numbers.is_empty() { (0..MOST_CALLS.into()).collect() } else { numbers.to_vec() };
        let with_pointers = all.into_iter().filter_map(|number| {
            let pointers = calls.of(number).pointers(&registers);
            Some((u32::try_from(number).ok()?, pointers)).filter(|(_, [count, ..])| *count > 0)
        });
        let pointers: Vec<_> = with_pointers.collect();
        if pointers.is_empty() {
            return Ok(None);
        }
        let mut program = EbpfLoader::new().load(&program::object()?)?;
        let mut table = Array::<_, Pointers>::try_from(program.map_mut(CALLS).ok_or("no map")?)?;
        pointers.into_iter().try_for_each(|(number, pointers)| table.set(number, pointers, 0))?;
        let tracepoint: &mut RawTracePoint = program.program_mut(PROGRAM).ok_or("no program")?.try_into()?;
        tracepoint.load()?;
        tracepoint.attach("sys_enter")?;
        let Some(Map::PerfEventArray(output)) = program.map(OUTPUT) else { return Err("no output".into()) };
        let rings = Rings::options().bpf_output(output.fd()).sample(bindings::PERF_SAMPLE_TID).bytes(RING).open()?;
        Ok(Some(Self { rings, _program: program, copied: BTreeMap::new(), newest: 0 }))
    }

    /// What the call pointed to. `until`: when it returned, or when it was entered if it has not.
    pub fn of(&mut self, entry: &Entry, until: u64) -> Option<Copied> {
        self.read();
        let (_, copied) = self.copied.range((entry.tid, 0)..=(entry.tid, until)).next_back()?;
        (copied.number == entry.number).then(|| copied.clone())
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

    /// Reads what there is. Other processes point to something too: theirs is dropped after a while.
    pub fn tidy(&mut self, is_inside: impl Fn(u32) -> bool) {
        self.read();
        for age in OLD {
            let old = self.newest.saturating_sub(age);
            self.copied.retain(|(tid, time), _| *time >= old || is_inside(*tid));
            if self.copied.len() <= MOST {
                break;
            }
        }
    }

    fn read(&mut self) {
        let Self { rings, copied, newest, .. } = self;
        let _ = rings.drain(|event| {
            if let Some((thread, what)) = read(&event) {
                *newest = thread.1.max(*newest);
                copied.insert(thread, what);
            }
            ControlFlow::<()>::Continue(())
        });
    }
}

/// The thread and the time, and what the thread pointed to.
fn read(event: &Event<'_>) -> Option<((u32, u64), Copied)> {
    let record = event.record()?;
    let payload = record.payload()?;
    let argument = |at: usize| {
        let len = usize::try_from(payload.u64(at + LEN)?.cast_signed()).ok()?;
        let bytes = (at + BYTES..at + BYTES + len).map(|at| payload.u8(at)).collect::<Option<_>>()?;
        Some((payload.u64(at)?, bytes))
    };
    let pointed = [argument(FIRST), argument(SECOND)];
    // Of the thread, perf says the number in this PID namespace. Outside of it all have the same.
    let (_, tid) = record.pid_tid().filter(|(_, tid)| *tid != NOWHERE)?;
    Some(((tid, record.time()?), Copied { number: payload.u64(0)?.cast_signed(), pointed }))
}

/// Bytes, and whether more follow.
pub type Bytes<'a> = (&'a [u8], bool);

impl Copied {
    /// The string to which an argument points, the first or the second of those that point to something. Without the
    /// end that strings have.
    pub fn string(&self, at: usize, pointer: u64) -> Option<Bytes<'_>> {
        let bytes = self.at(at, pointer)?;
        let more = bytes.len() == STRING as usize;
        Some((&bytes[..bytes.len().checked_sub(1 + usize::from(more))?], more))
    }

    /// The beginning of a buffer with that length.
    pub fn buffer(&self, at: usize, pointer: u64, len: u64) -> Option<Bytes<'_>> {
        Some((self.at(at, pointer)?, len > BUFFER as u64))
    }

    /// What lies where an argument points to. A 32-bit program has its arguments in other registers than those that
    /// were copied.
    fn at(&self, at: usize, pointer: u64) -> Option<&[u8]> {
        let (copied, bytes) = self.pointed.get(at)?.as_ref()?;
        (*copied == pointer).then_some(bytes)
    }
}

/// Why strings cannot be had, with what lies behind the error.
pub fn why(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut behind = error.source();
    while let Some(error) = behind {
        let _ = write!(text, ": {error}");
        behind = error.source();
    }
    text
}

/// Bytes as strace(1) prints them: in quotes, with the escapes of C, and dots if more follows. UTF-8 is printed as it
/// is.
pub fn quoted((bytes, more): Bytes<'_>) -> String {
    let mut text = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '"' | '\\' => text.extend(['\\', letter]),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                letter if letter.is_control() => {
                    letter.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| octal(&mut text, byte));
                }
                letter => text.push(letter),
            }
        }
        chunk.invalid().iter().for_each(|byte| octal(&mut text, *byte));
    }
    text.push('"');
    if more {
        text.push_str("...");
    }
    text
}

/// Three digits, whatever follows.
fn octal(text: &mut String, byte: u8) {
    let _ = write!(text, "\\{byte:03o}");
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn bytes_are_quoted_as_c_has_them() {
        let text = |bytes: &[u8]| quoted((bytes, false));
        assert_eq!(text(b""), r#""""#);
        assert_eq!(text(b"a \"b\" \\c\n\t\r"), r#""a \"b\" \\c\n\t\r""#);
        assert_eq!(text("Größe\u{1}\u{7f}\u{85}".as_bytes()), "\"Größe\\001\\177\\302\\205\"");
        assert_eq!(text(b"\xff1\0"), r#""\3771\000""#);
        assert_eq!(quoted((b"cut", true)), r#""cut"..."#);
    }
}
