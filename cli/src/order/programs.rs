//! The BPF programs, as instructions. All are run by `BPF_PROG_TEST_RUN` and attached to nothing.

use super::sys::{Element, Program, perf_event_array, set_slot, shared_array};
use crate::instructions::{Code, EQUAL, FRAME, UNEQUAL};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

// enum bpf_func_id
const PERF_EVENT_OUTPUT: i32 = 25;
const PERF_EVENT_READ_VALUE: i32 = 55;

/// How many records are written in one run. The CPU takes no interrupts meanwhile: some 15 µs.
pub const MOST: usize = 64;
/// Bytes of their payloads, and of the longest, which `struct perf_event_header` bounds.
const ROOM: usize = 1 << 16;
const LONGEST: usize = 1 << 16;

/// Offsets in the batch: where each payload is, how long each is, and the payloads.
const SIZES: usize = MOST * 4;
const PAYLOADS: usize = 2 * SIZES;
const BATCH: usize = PAYLOADS + ROOM + LONGEST;

/// The most that one run of [`Writer::lose`] counts.
const LOSSES: u64 = 1024;

/// What the kernel says of an event that is of another CPU, and of one that is no BPF output
/// (`__bpf_perf_event_output`, kernel/trace/bpf_trace.c).
const OTHER_CPU: u32 = libc::EOPNOTSUPP as u32;

/// Writes records into one ring of the tool.
#[derive(Debug)]
pub struct Writer {
    cpu: u32,
    emit: Program,
    lose: Program,
    batch: Element,
    /// Where the payloads of the batch end, and their lengths.
    used: usize,
    sizes: Vec<usize>,
    // Last: the programs use it. The slot lives as long as this descriptor.
    _out: OwnedFd,
}

/// How a run has ended.
#[derive(Debug, Clone, Copy)]
pub struct Wrote {
    /// The first record of the batch that is not written.
    pub next: usize,
    /// Why.
    pub error: Option<i32>,
}

impl Writer {
    /// Writes by an event of this CPU.
    pub fn new(cpu: u32, event: BorrowedFd<'_>) -> io::Result<Self> {
        let out = perf_event_array(1)?;
        set_slot(&out, 0, event)?;
        let array = shared_array(BATCH as u32)?;
        let batch = Element::map(&array, BATCH)?;
        let emit = Program::load(&emit(out.as_fd(), array.as_fd()))?;
        let lose = Program::load(&lose(out.as_fd()))?;
        Ok(Self { cpu, emit, lose, batch, used: 0, sizes: Vec::with_capacity(MOST), _out: out })
    }

    /// Takes one more payload. False if it does not fit any more: the batch has to be written first.
    pub fn push(&mut self, parts: [&[u8]; 2]) -> bool {
        let [size, begin] = [parts[0].len() + parts[1].len(), self.used];
        if self.sizes.len() == MOST || begin + size > ROOM && begin > 0 {
            return false;
        }
        let (at, bytes) = (self.sizes.len() * 4, self.batch.bytes());
        let size = size.min(LONGEST - 1);
        bytes[at..at + 4].copy_from_slice(&(begin as u32).to_ne_bytes());
        bytes[SIZES + at..SIZES + at + 4].copy_from_slice(&(size as u32).to_ne_bytes());
        let to = &mut bytes[PAYLOADS + begin..PAYLOADS + begin + size];
        let first = parts[0].len().min(size);
        to[..first].copy_from_slice(&parts[0][..first]);
        to[first..].copy_from_slice(&parts[1][..size - first]);
        self.used = (begin + size).next_multiple_of(8);
        self.sizes.push(size);
        true
    }

    /// The lengths of the payloads in the batch.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Writes records `first` to `last` of the batch, without the last.
    pub fn write(&self, first: usize, last: usize) -> io::Result<Wrote> {
        let said = self.emit.run(self.cpu, [first as u64, last as u64])?;
        let error = (said >> 8 != 0).then_some((said >> 8) as i32);
        Ok(Wrote { next: (said & 0xff) as usize, error })
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        (self.used, _) = (0, self.sizes.clear());
    }

    /// Has the kernel count so many records as lost, which its next record in the ring tells. Output must be paused.
    pub fn lose(&self, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let now = count.min(LOSSES);
            let refused = u64::from(self.lose.run(self.cpu, [0, now])?);
            if refused != now {
                return Err(io::Error::other(format!("a ring that is paused has taken {} records", now - refused)));
            }
            count -= now;
        }
        Ok(())
    }
}

// What registers hold throughout.
const CONTEXT: u8 = 6;
const AT: u8 = 7;
const LAST: u8 = 8;
const ARRAY: u8 = 9;

/// From `args[0]` to `args[1]`. Returns the number of the first that was not written, and the error above its eight bits.
fn emit(out: BorrowedFd<'_>, batch: BorrowedFd<'_>) -> Code {
    let mut code = Code::default();
    code.place(CONTEXT, 1, 0).load(AT, CONTEXT, 0).and(AT, MOST as i32 - 1).load(LAST, CONTEXT, 8);
    code.map_value(ARRAY, batch);
    let begin = code.bytes.len();
    code.unless_less(AT, LAST, |code| {
        code.place(0, AT, 0).exit();
    });
    code.place(1, AT, 0).shift(1, 2).place(2, ARRAY, 0).add(2, 1);
    code.load_u32(3, 2, 0).and(3, ROOM as i32 - 1).load_u32(5, 2, SIZES).and(5, LONGEST as i32 - 1);
    code.place(4, ARRAY, PAYLOADS as i32).add(4, 3);
    code.place(1, CONTEXT, 0).map_fd(2, out).set(3, 0).call(PERF_EVENT_OUTPUT);
    code.unless(EQUAL, 0, 0, |code| {
        code.negate(0).shift(0, 8).add(0, AT).exit();
    });
    code.place(AT, AT, 1).back_if_less(AT, MOST as i32, begin);
    code.place(0, AT, 0).exit();
    code
}

/// Tries to write `args[1]` records. Returns how many were refused.
fn lose(out: BorrowedFd<'_>) -> Code {
    let mut code = Code::default();
    code.place(CONTEXT, 1, 0).load(LAST, CONTEXT, 8).set(1, 0).store(FRAME, -8, 1).set(AT, 0);
    let begin = code.bytes.len();
    code.unless_less(AT, LAST, |code| {
        code.place(0, AT, 0).exit();
    });
    output(&mut code, CONTEXT, out);
    code.unless(UNEQUAL, 0, 0, |code| {
        code.place(0, AT, 0).exit();
    });
    code.place(AT, AT, 1).back_if_less(AT, LOSSES as i32, begin);
    code.place(0, AT, 0).exit();
    code
}

/// R0 is what the output of eight bytes of the frame gives.
fn output(code: &mut Code, context: u8, out: BorrowedFd<'_>) {
    code.place(1, context, 0).map_fd(2, out).set(3, 0).place(4, FRAME, -8).set(5, 8).call(PERF_EVENT_OUTPUT);
}

/// Finds out which event is in which slot of a map.
#[derive(Debug)]
pub struct Finder {
    same: Program,
    kind: Program,
    candidate: OwnedFd,
}

/// What is known of an event and a slot on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The event is in the slot.
    Same,
    /// Another one is.
    Other,
    /// The slot has one of this CPU, and the event is of another, or cannot be read.
    NotHere,
    /// The slot has no event of this CPU.
    Empty,
}

impl Finder {
    /// For the slots of a map.
    pub fn new(map: BorrowedFd<'_>) -> io::Result<Self> {
        let candidate = perf_event_array(1)?;
        let same = Program::load(&same(map, candidate.as_fd()))?;
        let mut code = Code::default();
        code.place(6, 1, 0).set(1, 0).store(FRAME, -8, 1);
        output(&mut code, 6, candidate.as_fd());
        code.negate(0).exit();
        Ok(Self { same, kind: Program::load(&code)?, candidate })
    }

    /// Looks at an event from now on. The kernel refuses what is no event that a map can hold.
    pub fn look_at(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        set_slot(&self.candidate, 0, event)
    }

    /// Whether the event is in this slot, asked on this CPU.
    pub fn is_in(&self, slot: u32, cpu: u32) -> io::Result<Found> {
        Ok(match self.same.run(cpu, [u64::from(slot), 0])? {
            1 => Found::Same,
            2 => Found::NotHere,
            3 => Found::Empty,
            _ => Found::Other,
        })
    }

    /// Whether the event is for output of BPF programs. Asked on another CPU than its own, it writes nothing.
    pub fn is_output(&self, other_cpu: u32) -> io::Result<bool> {
        Ok(self.kind.run(other_cpu, [0; 2])? == OTHER_CPU)
    }
}

/// Reads for how long the event in the slot `args[0]`, the candidate, and the slot's again were enabled. If the candidate's
/// lies in between, it is the same: no two events of a CPU are enabled within the time of two calls, and if they are,
/// the caller finds two and asks again.
fn same(map: BorrowedFd<'_>, candidate: BorrowedFd<'_>) -> Code {
    const SLOT: u8 = 6;
    const BEFORE: i16 = -24;
    const CANDIDATE: i16 = -48;
    const AFTER: i16 = -72;
    /// `struct bpf_perf_event_value`: counter, enabled, running.
    const ENABLED: i16 = 8;
    let mut code = Code::default();
    code.load(SLOT, 1, 0).set(7, 0);
    for (of, slot, to, missing) in [(map, SLOT, BEFORE, 3), (candidate, 7, CANDIDATE, 2), (map, SLOT, AFTER, 3)] {
        code.map_fd(1, of).place(2, slot, 0).place(3, FRAME, to.into()).set(4, 24).call(PERF_EVENT_READ_VALUE);
        code.unless(EQUAL, 0, 0, |code| {
            code.set(0, missing).exit();
        });
    }
    code.load_local(1, BEFORE + ENABLED).load_local(2, CANDIDATE + ENABLED).load_local(3, AFTER + ENABLED);
    for (less, more) in [(1, 2), (2, 3)] {
        code.unless_not_above(less, more, |code| {
            code.set(0, 0).exit();
        });
    }
    code.set(0, 1).exit();
    code
}
