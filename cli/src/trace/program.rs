//! The BPF programs that copy what pointers of system calls point to, how threads end and what signals say, as
//! instructions. aya loads them from an object, which is made here.

pub mod opened;

use crate::instructions::{self, Code, EQUAL, FRAME, NOT_ABOVE, NOT_NEGATIVE, UNEQUAL};
use linux_raw_sys::general::{iovec, kernel_sigset_t};
use linux_raw_sys::net::msghdr;
use opened::Places;
use std::mem::offset_of;

/// Maps by their names in the object.
pub const CALLS: &str = "calls";
pub const OUTPUT: &str = "output";
const SCRATCH: &str = "scratch";
const COLD: &str = "cold";
pub const FAMILY: &str = "family";

/// Programs by their names in the object, and the raw tracepoints that they are for.
pub const ENTER: (&str, &str) = ("enter", "sys_enter");
pub const EXIT: (&str, &str) = ("exit", "sys_exit");
pub const SIGNAL: (&str, &str) = ("signal", "signal_deliver");
pub const END: (&str, &str) = ("end", "sched_process_exit");
pub const FORK: (&str, &str) = ("fork", "sched_process_fork");

/// The most bytes that are copied of a string, with its end, or of anything else.
pub const MOST: i32 = 8192;

/// The most bytes of a list, such as that of poll(2).
const LIST: i32 = 512;

/// The most strings of argv, and the most variables that are counted.
pub const STRINGS: i32 = 32;
const VARIABLES: i32 = 256;

/// The most elements of an I/O vector.
pub const VECTOR: i32 = 8;

/// Numbers of system calls are smaller.
pub const MOST_CALLS: u32 = 1024;

/// How long what a piece points to is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// A string with its end.
    String,
    /// So many bytes.
    Bytes(u32),
    /// As many bytes as the argument with this index says, but no more than are printed.
    Argument(usize),
    /// So many bytes for each of as many elements as the argument says.
    Elements(usize, u32),
    /// A bit for each of as many descriptors as the argument says, in whole words.
    Bits(usize),
    /// So many bytes for each of as many elements as the call returns.
    Returned(u32),
    /// As many bytes as the call returns, but no more than are printed.
    Result,
    /// As many bytes as the call returns.
    Whole,
}

/// What is copied beside pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// The strings of an argument, and the number of those of the next.
    Exec(usize),
    /// The buffers of the I/O vector in argument 1, whose length is argument 2.
    Vector,
    /// The same of the message in argument 1, with its address.
    Message,
    /// The signals to which the struct in argument 5 points.
    Mask,
}

/// What a call points to: pieces by their arguments, at the entry or at the return.
#[derive(Debug, Clone, Default)]
pub struct Pointers {
    pub enter: Vec<(usize, Length)>,
    pub exit: Vec<(usize, Length)>,
    pub special: Option<(Special, bool)>,
}

/// So many pieces each.
const PIECES: usize = 4;
/// Words of a piece: argument, kind, and what the kind needs.
const WORDS: usize = 4;
/// Words before the pieces: the special kinds at the entry and at the return.
const HEAD: usize = 2;
/// Where the pieces of the return are.
const SECOND: usize = HEAD + PIECES * WORDS;

/// An element of the map [`CALLS`].
pub type Row = [u32; SECOND + PIECES * WORDS];

/// Where the kinds of the first pieces are, in bytes.
const FIRST_KIND: usize = 4 * (HEAD + 1);
const SECOND_KIND: usize = 4 * (SECOND + 1);

// Kinds of pieces.
const IS_STRING: u32 = 1;
const IS_BYTES: u32 = 2;
const IS_ARGUMENT: u32 = 3;
const IS_ELEMENTS: u32 = 4;
const IS_RESULT: u32 = 5;
const IS_WHOLE: u32 = 6;
const IS_BITS: u32 = 7;
const IS_RETURNED: u32 = 8;
// Special kinds.
const IS_EXEC: u32 = 1;
const IS_EXECAT: u32 = 2;
const IS_VECTOR: u32 = 3;
const IS_MESSAGE: u32 = 4;
const IS_MASK: u32 = 5;

impl Pointers {
    pub fn is_empty(&self) -> bool {
        self.enter.is_empty() && self.exit.is_empty() && self.special.is_none()
    }

    /// Whether something is copied at the return: then a call that has succeeded leaves a record.
    pub fn has_exit(&self) -> bool {
        !self.exit.is_empty() || self.special.is_some_and(|(_, is_at_exit)| is_at_exit)
    }

    pub fn row(&self, registers: &Registers) -> Row {
        let mut row = [0; SECOND + PIECES * WORDS];
        if let Some((special, is_at_exit)) = self.special {
            row[usize::from(is_at_exit)] = match special {
                Special::Exec(1) => IS_EXEC,
                Special::Exec(_) => IS_EXECAT,
                Special::Vector => IS_VECTOR,
                Special::Message => IS_MESSAGE,
                Special::Mask => IS_MASK,
            };
        }
        for (pieces, begin) in [(&self.enter, HEAD), (&self.exit, SECOND)] {
            for (words, (argument, length)) in row[begin..].chunks_mut(WORDS).zip(pieces.iter().take(PIECES)) {
                let register = |argument: usize| match argument {
                    STACK => registers.stack,
                    argument => registers.arguments[argument.min(5)],
                };
                let (kind, what) = match *length {
                    Length::String => (IS_STRING, 0),
                    Length::Bytes(bytes) => (IS_BYTES, bytes),
                    Length::Argument(of) => (IS_ARGUMENT, register(of)),
                    Length::Elements(of, bytes) => (IS_ELEMENTS, register(of) | bytes << 16),
                    Length::Bits(of) => (IS_BITS, register(of)),
                    Length::Returned(bytes) => (IS_RETURNED, bytes),
                    Length::Result => (IS_RESULT, 0),
                    Length::Whole => (IS_WHOLE, 0),
                };
                words.copy_from_slice(&[register(*argument), kind, what, *argument as u32]);
            }
        }
        row
    }
}

/// Offsets in `struct pt_regs` (arch/*/include/asm/ptrace.h).
#[derive(Debug, Clone, Copy)]
pub struct Registers {
    /// Of the arguments, as they are at the entry and at the return.
    pub arguments: [u32; 6],
    /// Of the number of the call.
    number: u32,
    /// Of the end of the stack.
    stack: u32,
}

pub const REGISTERS: Option<Registers> = if cfg!(target_arch = "x86_64") {
    Some(Registers { arguments: [112, 104, 96, 56, 72, 64], number: 120, stack: 152 })
} else if cfg!(target_arch = "aarch64") {
    // The first one lies in orig_x0 as well, which the result does not replace.
    Some(Registers { arguments: [272, 8, 16, 24, 32, 40], number: 280, stack: 248 })
} else {
    None
};

/// What a record begins with: the number of the call, above it one of these, and the result if it has returned.
pub const AT_ENTER: u64 = 0;
pub const AT_EXIT: u64 = 1;
/// What was not in memory at the entry, at the return.
pub const AGAIN: u64 = 2;
pub const OF_SIGNAL: u64 = 3;
pub const OF_END: u64 = 4;

/// Then come pieces: argument and element, pointer, length or negative error, and bytes up to a multiple of eight.
pub const RESULT_AT: usize = 8;
pub const FIRST: usize = 16;
pub const POINTER_AT: usize = 8;
pub const LENGTH_AT: usize = 16;
pub const BYTES_AT: usize = 24;
/// Elements have their number above that of the argument.
pub const ELEMENT: i32 = 8;
/// What the elements of a message are besides those of its vector.
pub const NAME: i32 = 255;

/// In the place of an argument: what lies at the end of the stack.
pub const STACK: usize = 8;

/// In the place of an argument: the variables and strings that a new program is to have, and those that it has.
pub const VARIABLES_OF: usize = 5;
pub const STRINGS_OF: usize = 6;
pub const EXECUTED: usize = 7;

/// Bytes after which no piece begins.
const FULL: i32 = 8192;
/// Bytes of memory in which a record is made: with a piece that begins at the last place.
const SCRATCH_BYTES: u32 = (FULL + LONGEST) as u32 + 64;

/// For the verifier: all bits of [`MOST`] and less.
const LONGEST: i32 = 2 * MOST - 1;

// enum bpf_func_id
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
const MAP_DELETE_ELEM: i32 = 3;
const GET_CURRENT_PID_TGID: i32 = 14;
const PERF_EVENT_OUTPUT: i32 = 25;
const PROBE_READ_USER: i32 = 112;
const PROBE_READ_KERNEL: i32 = 113;
const PROBE_READ_USER_STR: i32 = 114;

// enum bpf_map_type
const ARRAY: u32 = 2;
const PERF_EVENT_ARRAY: u32 = 4;
const PERCPU_ARRAY: u32 = 6;
const LRU_HASH: u32 = 9;

// What registers hold throughout.
const CONTEXT: u8 = 6;
const END_OF_RECORD: u8 = 7;
const RECORD: u8 = 8;
const ENTRY: u8 = 9;

// Local places.
const INDEX: i16 = -8;
const POINTER: i16 = -16;
const LENGTH: i16 = -24;
const RESULT: i16 = -32;
/// Whether something was not in memory.
const FAILED: i16 = -40;
const THREAD: i16 = -48;
const LIST_AT: i16 = -56;
const COUNT: i16 = -64;
const ELEMENT_AT: i16 = -72;
const NUMBER: i16 = -80;
/// An element of an I/O vector.
const ONE: i16 = -96;

/// What differs between machines and traces.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    pub registers: Registers,
    /// The most bytes of a buffer that are printed.
    pub limit: i32,
    /// Where `struct task_struct` has the status with which a thread ends and the number of its process, if that is
    /// known.
    pub task: Option<[i32; 2]>,
    /// Whether only processes in the map [`FAMILY`] count.
    pub has_family: bool,
    /// Where this kernel has what is behind descriptors, if that is told.
    pub opened: Option<Places>,
}

/// `raw_tracepoint/sys_enter` has the registers and the number of the call.
fn enter(build: &Build) -> Code {
    let mut code = counted(build);
    code.set(1, 0).store(FRAME, RESULT, 1).load(7, CONTEXT, 8).store(FRAME, INDEX, 7);
    row(&mut code);
    ends_unless(&mut code, &[0, FIRST_KIND]);
    begin(&mut code, AT_ENTER);
    executes(&mut code, build);
    buffers(&mut code, build, 0);
    pieces(&mut code, build, HEAD);
    output(&mut code, true);
    code
}

/// `raw_tracepoint/sys_exit` has the registers and the result.
fn exit(build: &Build) -> Code {
    let mut code = counted(build);
    code.load(1, CONTEXT, 8).store(FRAME, RESULT, 1);
    code.set(3, build.registers.number as i32);
    register(&mut code, INDEX);
    row(&mut code);
    ends_unless(&mut code, &[0, 4, FIRST_KIND, SECOND_KIND]);
    // What was not in memory at the entry is there now: the kernel has read it.
    code.load_u32(1, ENTRY, FIRST_KIND).load_u32(2, ENTRY, 0).push(0x4f, 1, 2, 0, 0);
    code.unless(EQUAL, 1, 0, |code| again(code, build));
    code.load_local(1, RESULT);
    // A call that fails has written nothing.
    code.unless(NOT_NEGATIVE, 1, 0, |code| {
        code.exit_with(0);
    });
    ends_unless(&mut code, &[4, SECOND_KIND]);
    begin(&mut code, AT_EXIT);
    buffers(&mut code, build, 1);
    pieces(&mut code, build, SECOND);
    // Also without pieces: without a record, that of the next call would be taken for this one's.
    output_alone(&mut code);
    code
}

/// Copies again what was not in memory at the entry.
fn again(code: &mut Code, build: &Build) {
    code.call(GET_CURRENT_PID_TGID).store(FRAME, THREAD, 0);
    code.map(COLD, 1).place(2, FRAME, THREAD.into()).call(MAP_LOOKUP_ELEM);
    code.unless(EQUAL, 0, 0, |code| {
        // The number as it was at the entry: the kernel returns from execveat as from execve.
        code.load(1, 0, 0).store(FRAME, INDEX, 1);
        code.map(COLD, 1).place(2, FRAME, THREAD.into()).call(MAP_DELETE_ELEM);
        begin(code, AGAIN);
        code.load_u32(1, ENTRY, 0).set(2, 0);
        code.unless(UNEQUAL, 1, IS_EXEC as i32, |code| {
            code.set(2, 1);
        });
        code.unless(UNEQUAL, 1, IS_EXECAT as i32, |code| {
            code.set(2, 1);
        });
        code.store(FRAME, COUNT, 2).load_local(1, RESULT);
        // What the program had before is gone if it executes another. That one finds its arguments on its stack.
        code.unless(EQUAL, 1, 0, |code| {
            code.set(2, 0).store(FRAME, COUNT, 2);
        });
        code.load_local(2, COUNT).either(
            2,
            1,
            |code| executed(code, build),
            |code| {
                buffers(code, build, 0);
                pieces(code, build, HEAD);
            },
        );
        write(code);
    });
}

/// The strings of a program that begins: their number is at the end of the stack, and the list behind it.
fn executed(code: &mut Code, build: &Build) {
    code.set(3, build.registers.stack as i32);
    register(code, LIST_AT);
    code.load_local(1, LIST_AT).place(1, 1, 8).store(FRAME, LIST_AT, 1);
    strings(code, EXECUTED);
}

/// `raw_tracepoint/signal_deliver` has the signal and what the kernel knows of it.
fn signal(build: &Build, info: i32) -> Code {
    let mut code = counted(build);
    code.load(1, CONTEXT, 0).store(FRAME, INDEX, 1).store(FRAME, RESULT, 1);
    begin(&mut code, OF_SIGNAL);
    code.load(1, CONTEXT, 8).store(FRAME, POINTER, 1);
    header(&mut code, 0);
    code.set(2, info).store(FRAME, LENGTH, 2).load_local(3, POINTER).call(PROBE_READ_KERNEL);
    length(&mut code);
    output(&mut code, false);
    code
}

/// `raw_tracepoint/sched_process_exit` has the thread.
fn end(build: &Build, exit_code: i32) -> Code {
    let mut code = counted(build);
    code.set(1, 0).store(FRAME, INDEX, 1).store(FRAME, RESULT, 1);
    begin(&mut code, OF_END);
    code.load(1, CONTEXT, 0).place(1, 1, exit_code).store(FRAME, POINTER, 1);
    header(&mut code, 0);
    code.set(2, 4).store(FRAME, LENGTH, 2).load_local(3, POINTER).call(PROBE_READ_KERNEL);
    length(&mut code);
    output(&mut code, false);
    code
}

/// `raw_tracepoint/sched_process_fork` has the parent, which runs, and the child.
fn fork(build: &Build, tgid: i32) -> Code {
    let mut code = counted(build);
    code.load(3, CONTEXT, 8).push(0x07, 3, 0, 0, tgid).place(1, FRAME, THREAD.into()).set(2, 4).call(PROBE_READ_KERNEL);
    code.map(FAMILY, 1).place(2, FRAME, THREAD.into()).place(3, FRAME, THREAD.into()).set(4, 0);
    code.call(MAP_UPDATE_ELEM).exit_with(0);
    code
}

/// The begin of a program: it ends if the process is not of the family.
fn counted(build: &Build) -> Code {
    let mut code = Code::default();
    code.place(CONTEXT, 1, 0);
    if build.has_family {
        code.call(GET_CURRENT_PID_TGID).push(0x77, 0, 0, 0, 32).store(FRAME, THREAD, 0);
        code.map(FAMILY, 1).place(2, FRAME, THREAD.into()).call(MAP_LOOKUP_ELEM);
        code.unless(UNEQUAL, 0, 0, |code| {
            code.exit_with(0);
        });
    }
    code
}

/// [`ENTRY`] gets the row of the call whose number is at [`INDEX`]. Ends if nothing is copied.
fn row(code: &mut Code) {
    code.element(CALLS, INDEX).place(ENTRY, 0, 0);
}

/// Ends if all these words of the row are 0.
fn ends_unless(code: &mut Code, words: &[usize]) {
    code.set(1, 0);
    for word in words {
        code.load_u32(2, ENTRY, *word).push(0x4f, 1, 2, 0, 0);
    }
    code.unless(UNEQUAL, 1, 0, |code| {
        code.exit_with(0);
    });
}

/// A record begins.
fn begin(code: &mut Code, kind: u64) {
    code.load_local(1, INDEX).store(FRAME, NUMBER, 1);
    code.set(1, 0).store(FRAME, INDEX, 1).store(FRAME, FAILED, 1).element(SCRATCH, INDEX).place(RECORD, 0, 0);
    code.load_local(1, NUMBER).store(FRAME, INDEX, 1);
    code.set(2, kind as i32).shift(2, 32).add(1, 2).store(RECORD, 0, 1);
    code.load_local(1, RESULT).store(RECORD, RESULT_AT as i16, 1);
    code.set(END_OF_RECORD, FIRST as i32);
}

/// A local place gets the register of the traced thread at the offset in R3.
fn register(code: &mut Code, local: i16) {
    code.load(1, CONTEXT, 0).add(3, 1);
    code.place(1, FRAME, local.into()).set(2, 8).call(PROBE_READ_KERNEL);
}

/// The pieces that the row has from a word on.
fn pieces(code: &mut Code, build: &Build, begin: usize) {
    for piece in 0..PIECES {
        let word = |at: usize| 4 * (begin + piece * WORDS + at);
        code.load_u32(1, ENTRY, word(1));
        code.unless(EQUAL, 1, 0, |code| {
            code.load_u32(3, ENTRY, word(0));
            register(code, POINTER);
            code.load_local(1, POINTER);
            code.unless(EQUAL, 1, 0, |code| {
                measure(code, build, word(1), word(2));
                code.load_u32(1, ENTRY, word(3)).store(FRAME, ELEMENT_AT, 1);
                copy(code, word(1));
            });
        });
    }
}

/// How long the piece at [`POINTER`] is.
fn measure(code: &mut Code, build: &Build, kind: usize, what: usize) {
    code.load_u32(1, ENTRY, what).store(FRAME, LENGTH, 1);
    code.load_u32(1, ENTRY, kind);
    code.unless(UNEQUAL, 1, IS_ARGUMENT as i32, |code| {
        code.load_u32(3, ENTRY, what);
        register(code, LENGTH);
        at_most(code, build.limit);
    });
    code.load_u32(1, ENTRY, kind);
    code.unless(UNEQUAL, 1, IS_ELEMENTS as i32, |code| {
        code.load_u32(3, ENTRY, what).and(3, 0xffff);
        register(code, LENGTH);
        at_most(code, LIST);
        code.load_u32(3, ENTRY, what).push(0x77, 3, 0, 0, 16).load_local(2, LENGTH).push(0x2f, 2, 3, 0, 0);
        code.store(FRAME, LENGTH, 2);
        at_most(code, LIST);
    });
    code.load_u32(1, ENTRY, kind);
    code.unless(UNEQUAL, 1, IS_RESULT as i32, |code| {
        code.load_local(2, RESULT).store(FRAME, LENGTH, 2);
        at_most(code, build.limit);
    });
    code.load_u32(1, ENTRY, kind);
    code.unless(UNEQUAL, 1, IS_WHOLE as i32, |code| {
        code.load_local(2, RESULT).store(FRAME, LENGTH, 2);
    });
    code.load_u32(1, ENTRY, kind);
    code.unless(UNEQUAL, 1, IS_BITS as i32, |code| {
        code.load_u32(3, ENTRY, what);
        register(code, LENGTH);
        // The number is an int: the upper half of the register says nothing.
        code.load_local(2, LENGTH).shift(2, 32).push(0x77, 2, 0, 0, 32).push(0x07, 2, 0, 0, 63);
        code.push(0x77, 2, 0, 0, 6).shift(2, 3).store(FRAME, LENGTH, 2);
        at_most(code, LIST);
    });
    code.load_u32(1, ENTRY, kind);
    code.unless(UNEQUAL, 1, IS_RETURNED as i32, |code| {
        code.load_u32(3, ENTRY, what).load_local(2, RESULT).push(0x2f, 2, 3, 0, 0).store(FRAME, LENGTH, 2);
        at_most(code, LIST);
    });
}

/// The length is at most so large.
fn at_most(code: &mut Code, most: i32) {
    code.load_local(2, LENGTH).unless(NOT_ABOVE, 2, most, |code| {
        code.set(2, most);
    });
    code.store(FRAME, LENGTH, 2);
}

/// The first words of a piece. R1 is where its bytes are to be. Ends if the record is full.
fn header(code: &mut Code, argument: i32) {
    code.set(1, argument).store(FRAME, ELEMENT_AT, 1);
    header_of_element(code);
}

fn header_of_element(code: &mut Code) {
    code.unless(NOT_ABOVE, END_OF_RECORD, FULL, output_alone);
    code.place(1, RECORD, 0).add(1, END_OF_RECORD);
    code.load_local(2, ELEMENT_AT).store(1, 0, 2);
    code.load_local(2, POINTER).store(1, POINTER_AT as i16, 2);
    code.push(0x07, 1, 0, 0, BYTES_AT as i32);
}

/// Copies what is at [`POINTER`]: a string if the piece is one, or as many bytes as [`LENGTH`] says. The kind is in the
/// word of the row.
fn copy(code: &mut Code, kind: usize) {
    header_of_element(code);
    code.load_u32(5, ENTRY, kind).either(5, IS_STRING as i32, string, bytes);
}

fn string(code: &mut Code) {
    code.set(2, MOST).load_local(3, POINTER).call(PROBE_READ_USER_STR);
    length_of(code);
}

fn bytes(code: &mut Code) {
    code.load_local(2, LENGTH).unless(NOT_ABOVE, 2, MOST, |code| {
        code.set(2, MOST);
    });
    code.place(1, RECORD, BYTES_AT as i32).add(1, END_OF_RECORD);
    code.load_local(3, POINTER).call(PROBE_READ_USER);
    length(code);
}

/// R0 has 0, or an error: the piece has the length at [`LENGTH`], or none.
fn length(code: &mut Code) {
    code.unless(UNEQUAL, 0, 0, |code| {
        code.load_local(0, LENGTH);
    });
    length_of(code);
}

/// R0 has the length of the piece, or an error. The next one begins behind it.
fn length_of(code: &mut Code) {
    code.place(1, RECORD, 0).add(1, END_OF_RECORD).store(1, LENGTH_AT as i16, 0);
    // Without branches, each of which the verifier would follow for all pieces after it. The sign is the failure.
    code.place(1, 0, 0).push(0x77, 1, 0, 0, 63).load_local(2, FAILED).push(0x4f, 2, 1, 0, 0).store(FRAME, FAILED, 2);
    code.place(1, 0, 0).push(0xc7, 1, 0, 0, 63).push(0xa7, 1, 0, 0, -1).push(0x5f, 0, 1, 0, 0).and(0, LONGEST);
    code.push(0x07, 0, 0, 0, 7 + BYTES_AT as i32).and(0, -8).add(END_OF_RECORD, 0);
    // The verifier forgets where it is at least: otherwise it follows each element of a list to the end.
    code.and(END_OF_RECORD, 0x7ff8);
}

/// The strings and variables of a program that is to be executed, if the row says so.
fn executes(code: &mut Code, build: &Build) {
    let [.., first, second, third, _, _] = build.registers.arguments;
    code.load_u32(1, ENTRY, 0).set(2, 0);
    for (kind, list, variables) in [(IS_EXEC, first, second), (IS_EXECAT, second, third)] {
        code.unless(UNEQUAL, 1, kind as i32, |code| {
            code.set(2, list as i32).set(3, variables as i32).store(FRAME, COUNT, 3);
        });
    }
    code.unless(EQUAL, 2, 0, |code| {
        code.store(FRAME, LENGTH, 2).load_local(3, COUNT);
        register(code, NUMBER);
        code.load_local(3, LENGTH);
        register(code, LIST_AT);
        strings(code, STRINGS_OF);
        code.load_local(1, NUMBER).store(FRAME, LIST_AT, 1);
        count(code, VARIABLES_OF);
    });
}

/// The buffers of an I/O vector or of a message, as the row says in this word.
fn buffers(code: &mut Code, build: &Build, word: usize) {
    code.set(1, 0).store(FRAME, COUNT, 1);
    code.load_u32(1, ENTRY, 4 * word).unless(UNEQUAL, 1, IS_VECTOR as i32, |code| {
        code.set(3, build.registers.arguments[1] as i32);
        register(code, LIST_AT);
        code.set(3, build.registers.arguments[2] as i32);
        register(code, COUNT);
    });
    code.load_u32(1, ENTRY, 4 * word).unless(UNEQUAL, 1, IS_MESSAGE as i32, |code| message(code, build));
    if word == 0 {
        code.load_u32(1, ENTRY, 0).unless(UNEQUAL, 1, IS_MASK as i32, |code| mask(code, build));
    }
    vector(code, build, word == 1);
}

/// Each of the strings to which the list at [`LIST_AT`] points, as elements of an argument.
fn strings(code: &mut Code, argument: usize) {
    code.set(1, argument as i32).store(FRAME, ELEMENT_AT, 1).set(1, 0).store(FRAME, COUNT, 1);
    let again = code.bytes.len();
    code.place(1, FRAME, POINTER.into()).set(2, 8).load_local(3, LIST_AT).call(PROBE_READ_USER);
    // Without a list, or behind its last, an element has no length.
    code.unless(EQUAL, 0, 0, |code| {
        code.set(1, 0).store(FRAME, POINTER, 1);
    });
    code.load_local(1, POINTER);
    code.unless(EQUAL, 1, 0, |code| {
        code.load_local(1, LIST_AT).place(1, 1, 8).store(FRAME, LIST_AT, 1);
        header_of_element(code);
        string(code);
        code.load_local(1, ELEMENT_AT).place(1, 1, 1 << ELEMENT).store(FRAME, ELEMENT_AT, 1);
        code.load_local(1, COUNT).place(1, 1, 1).store(FRAME, COUNT, 1);
        code.back_if_less(1, STRINGS, again);
    });
    // Whether that is all: the pointer behind them.
    code.set(1, argument as i32 | (NAME << ELEMENT)).store(FRAME, ELEMENT_AT, 1);
    code.place(1, FRAME, POINTER.into()).set(2, 8).load_local(3, LIST_AT).call(PROBE_READ_USER);
    code.unless(EQUAL, 0, 0, |code| {
        code.set(1, -1).store(FRAME, POINTER, 1);
    });
    header_of_element(code);
    code.set(0, 0);
    length_of(code);
}

/// How many pointers the list at [`LIST_AT`] has, in the place of the pointer.
fn count(code: &mut Code, argument: usize) {
    code.set(1, 0).store(FRAME, COUNT, 1).set(1, argument as i32 | (NAME << ELEMENT)).store(FRAME, ELEMENT_AT, 1);
    let again = code.bytes.len();
    code.place(1, FRAME, POINTER.into()).set(2, 8).load_local(3, LIST_AT).call(PROBE_READ_USER);
    code.unless(EQUAL, 0, 0, |code| {
        // Not known.
        code.set(1, 0).store(FRAME, POINTER, 1).set(1, -1).store(FRAME, COUNT, 1);
    });
    code.load_local(1, POINTER);
    code.unless(EQUAL, 1, 0, |code| {
        code.load_local(1, LIST_AT).place(1, 1, 8).store(FRAME, LIST_AT, 1);
        code.load_local(1, COUNT).place(1, 1, 1).store(FRAME, COUNT, 1);
        code.back_if_less(1, VARIABLES, again);
    });
    code.load_local(1, COUNT).store(FRAME, POINTER, 1);
    header_of_element(code);
    code.set(0, 0);
    length_of(code);
}

/// The buffers of the vector at [`LIST_AT`] with [`COUNT`] elements, as elements of argument 1. What a call has read is no
/// longer than its result.
fn vector(code: &mut Code, build: &Build, is_read: bool) {
    for element in 0..VECTOR {
        code.load_local(1, COUNT);
        code.unless_less_or_equal(1, element, |code| {
            code.place(1, FRAME, ONE.into()).set(2, size_of::<iovec>() as i32).load_local(3, LIST_AT);
            code.call(PROBE_READ_USER);
            code.unless(UNEQUAL, 0, 0, |code| {
                code.load_local(1, ONE + offset_of!(iovec, iov_base) as i16).store(FRAME, POINTER, 1);
                code.load_local(2, ONE + offset_of!(iovec, iov_len) as i16).store(FRAME, LENGTH, 2);
                if is_read {
                    code.load_local(1, RESULT).unless_not_above(2, 1, |code| {
                        code.store(FRAME, LENGTH, 1);
                    });
                    code.load_local(2, LENGTH).push(0x1f, 1, 2, 0, 0).store(FRAME, RESULT, 1);
                }
                at_most(code, build.limit);
                // The length of the whole stands above the number of the element.
                code.load_local(2, ONE + offset_of!(iovec, iov_len) as i16).shift(2, 32);
                code.set(1, 1 | (element << ELEMENT)).add(1, 2).store(FRAME, ELEMENT_AT, 1);
                header_of_element(code);
                bytes(code);
            });
            code.load_local(1, LIST_AT).place(1, 1, size_of::<iovec>() as i32).store(FRAME, LIST_AT, 1);
        });
    }
}

/// The struct of argument 5, which has the address and the size of a mask, and the mask.
fn mask(code: &mut Code, build: &Build) {
    code.set(3, build.registers.arguments[5] as i32);
    register(code, POINTER);
    code.load_local(1, POINTER).unless(EQUAL, 1, 0, |code| {
        code.set(1, 5 | ((NAME - 1) << ELEMENT)).store(FRAME, ELEMENT_AT, 1).set(1, 16).store(FRAME, LENGTH, 1);
        header_of_element(code);
        bytes(code);
        code.load_local(1, FAILED).unless(UNEQUAL, 1, 0, |code| {
            code.load(1, RECORD, FIRST + BYTES_AT).store(FRAME, POINTER, 1);
            code.unless(EQUAL, 1, 0, |code| {
                code.set(1, 5 | (NAME << ELEMENT)).store(FRAME, ELEMENT_AT, 1);
                code.set(1, size_of::<kernel_sigset_t>() as i32).store(FRAME, LENGTH, 1);
                header_of_element(code);
                bytes(code);
            });
        });
    });
}

/// The message of argument 1 and its address. [`LIST_AT`] and [`COUNT`] get its vector.
fn message(code: &mut Code, build: &Build) {
    const BYTES: i32 = size_of::<msghdr>() as i32;
    code.set(3, build.registers.arguments[1] as i32);
    register(code, POINTER);
    code.set(1, 1 | ((NAME - 1) << ELEMENT)).store(FRAME, ELEMENT_AT, 1);
    code.set(1, BYTES).store(FRAME, LENGTH, 1);
    header_of_element(code);
    bytes(code);
    code.load_local(1, FAILED).unless(UNEQUAL, 1, 0, |code| {
        for (field, local) in [
            (offset_of!(msghdr, msg_name), POINTER),
            (offset_of!(msghdr, msg_iov), LIST_AT),
            (offset_of!(msghdr, msg_iovlen), COUNT),
        ] {
            code.load(1, RECORD, FIRST + BYTES_AT + field).store(FRAME, local, 1);
        }
        code.load_u32(1, RECORD, FIRST + BYTES_AT + offset_of!(msghdr, msg_namelen)).store(FRAME, LENGTH, 1);
        at_most(code, size_of::<linux_raw_sys::net::__kernel_sockaddr_storage>() as i32);
        code.load_local(1, POINTER).unless(EQUAL, 1, 0, |code| {
            code.set(1, 1 | (NAME << ELEMENT)).store(FRAME, ELEMENT_AT, 1);
            header_of_element(code);
            bytes(code);
        });
    });
}

/// Writes the record and ends, unless it has no pieces. `is_cold`: notes what was not in memory.
fn output(code: &mut Code, is_cold: bool) {
    if is_cold {
        code.load_local(1, FAILED);
        code.unless(EQUAL, 1, 0, |code| {
            code.call(GET_CURRENT_PID_TGID).store(FRAME, THREAD, 0);
            code.map(COLD, 1).place(2, FRAME, THREAD.into()).place(3, FRAME, INDEX.into()).set(4, 0);
            code.call(MAP_UPDATE_ELEM);
        });
    }
    code.unless(UNEQUAL, END_OF_RECORD, FIRST as i32, |code| {
        code.exit_with(0);
    });
    output_alone(code);
}

fn output_alone(code: &mut Code) {
    write(code);
    code.exit_with(0);
}

/// Writes the record.
fn write(code: &mut Code) {
    // BPF_F_CURRENT_CPU
    code.place(1, CONTEXT, 0).map(OUTPUT, 2).push(0xb4, 3, 0, 0, -1).place(4, RECORD, 0).place(5, END_OF_RECORD, 0);
    code.call(PERF_EVENT_OUTPUT);
}

/// The object: the programs and their maps.
pub fn object(build: &Build) -> Result<Vec<u8>, object::write::Error> {
    // Without a number of elements, aya gives the output one for each CPU.
    let maps = [
        (CALLS, [ARRAY, 4, size_of::<Row>() as u32, MOST_CALLS, 0]),
        (SCRATCH, [PERCPU_ARRAY, 4, SCRATCH_BYTES, 1, 0]),
        (COLD, [LRU_HASH, 8, 8, 1 << 12, 0]),
        (FAMILY, [LRU_HASH, 4, 4, 1 << 16, 0]),
        (OUTPUT, [PERF_EVENT_ARRAY, 4, 4, 0, 0]),
        (opened::DESCRIPTORS, opened::definition(ARRAY)),
    ];
    let programs = [
        Some((ENTER, enter(build))),
        Some((EXIT, exit(build))),
        Some((SIGNAL, signal(build, super::signals::INFO as i32))),
        build.task.map(|[exit_code, _]| (END, end(build, exit_code))),
        build.task.map(|[_, tgid]| (FORK, fork(build, tgid))),
        build.opened.map(|places| (opened::ENTER, opened::enter(build, &places))),
        build.opened.map(|places| (opened::EXIT, opened::exit(build, &places))),
    ];
    let program =
        |((name, tracepoint), code): ((&str, &str), Code)| (name.into(), format!("raw_tp/{tracepoint}"), code);
    instructions::object(&maps, &programs.into_iter().flatten().map(program).collect::<Vec<_>>())
}
