//! The BPF program that copies what pointers of system calls point to, as instructions. aya loads it from an object,
//! which is made here.

use crate::instructions::{Code, EQUAL, FRAME, NOT_ABOVE, NOT_NEGATIVE, UNEQUAL};
use object::write::{Object, Relocation, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope, elf,
};

/// Maps and programs by their names in the object.
pub const CALLS: &str = "calls";
pub const OUTPUT: &str = "output";
pub const PROGRAM: &str = "strings";
const SCRATCH: &str = "scratch";

/// The most bytes of a string, with its end, and of a buffer. A string with so many bytes may be longer.
pub const STRING: i32 = 257;
pub const BUFFER: i32 = 32;

/// Numbers of system calls are smaller.
pub const MOST_CALLS: u32 = 1024;

/// What a call points to, in the map [`CALLS`]: how many arguments (0, 1 or 2), and for each the offset of its register
/// in `struct pt_regs`, and 0 for a string, or 1 + the offset of the register with the buffer's length.
pub type Pointers = [u32; 5];

/// Where the arguments of a call are in `struct pt_regs` (arch/*/include/asm/ptrace.h).
pub const REGISTERS: Option<[u32; 6]> = if cfg!(target_arch = "x86_64") {
    Some([112, 104, 96, 56, 72, 64])
} else if cfg!(target_arch = "aarch64") {
    Some([0, 8, 16, 24, 32, 40])
} else {
    None
};

/// A record: `u64` number of the call; and for each argument its `u64` pointer, `i64` length or negative error, and
/// bytes. Arguments have these places, and their parts these offsets.
pub const FIRST: usize = 8;
pub const SECOND: usize = FIRST + BYTES + (STRING as usize).next_multiple_of(8);
pub const LEN: usize = 8;
pub const BYTES: usize = 16;

/// Bytes of memory in which a record is made: also with the largest length that the verifier thinks possible.
const SCRATCH_BYTES: u32 = (SECOND + BYTES) as u32 + 512;

// enum bpf_func_id
const PERF_EVENT_OUTPUT: i32 = 25;
const PROBE_READ_USER: i32 = 112;
const PROBE_READ_KERNEL: i32 = 113;
const PROBE_READ_USER_STR: i32 = 114;

// enum bpf_map_type
const ARRAY: u32 = 2;
const PERF_EVENT_ARRAY: u32 = 4;
const PERCPU_ARRAY: u32 = 6;

// What registers hold throughout.
const CONTEXT: u8 = 6;
const RECORD: u8 = 8;
const ENTRY: u8 = 9;

// Local places.
const INDEX: i16 = -8;
const POINTER: i16 = -16;
const LENGTH: i16 = -24;

/// The whole program: `raw_tracepoint/sys_enter` has the registers and the number of the call.
fn code() -> Code {
    let mut code = Code::default();
    code.place(CONTEXT, 1, 0).load(7, CONTEXT, 8).store(FRAME, INDEX, 7);
    code.element(CALLS, INDEX).place(ENTRY, 0, 0);
    code.load_u32(0, ENTRY, 0).unless(UNEQUAL, 0, 0, |code| {
        code.exit();
    });
    code.set(1, 0).store(FRAME, INDEX, 1).element(SCRATCH, INDEX).place(RECORD, 0, 0);
    code.store(RECORD, 0, 7);
    copy(&mut code, 4, FIRST);
    code.load_u32(1, ENTRY, 0).unless(UNEQUAL, 1, 1, |code| output(code, FIRST));
    copy(&mut code, 12, SECOND);
    output(&mut code, SECOND);
    code
}

/// A local place gets the register of the traced thread at the offset in R3.
fn register(code: &mut Code, local: i16) -> &mut Code {
    code.load(1, CONTEXT, 0).add(3, 1);
    code.place(1, FRAME, local.into()).set(2, 8).call(PROBE_READ_KERNEL)
}

/// Copies what an argument points to. `entry` is where [`Pointers`] describe it.
fn copy(code: &mut Code, entry: usize, at: usize) {
    let bytes = (at + BYTES) as i32;
    register(code.load_u32(3, ENTRY, entry), POINTER).load_local(1, POINTER).store(RECORD, at as i16, 1);
    code.load_u32(7, ENTRY, entry + 4);
    code.unless(UNEQUAL, 7, 0, |code| {
        code.place(1, RECORD, bytes).set(2, STRING).load_local(3, POINTER).call(PROBE_READ_USER_STR);
    });
    code.unless(EQUAL, 7, 0, |code| {
        register(code.place(3, 7, -1), LENGTH).load_local(2, LENGTH);
        code.unless(NOT_ABOVE, 2, BUFFER, |code| {
            code.set(2, BUFFER);
        });
        code.store(FRAME, LENGTH, 2).place(1, RECORD, bytes).load_local(3, POINTER).call(PROBE_READ_USER);
        code.unless(UNEQUAL, 0, 0, |code| {
            code.load_local(0, LENGTH);
        });
    });
    code.store(RECORD, (at + LEN) as i16, 0);
}

/// Writes the record with what its last argument has, and ends. R0 is the length of that.
fn output(code: &mut Code, last: usize) {
    code.place(5, 0, 0).unless(NOT_NEGATIVE, 5, 0, |code| {
        code.set(5, 0);
    });
    // For the verifier: 511 at most.
    code.push(0x57, 5, 0, 0, 511).place(5, 5, (last + BYTES) as i32);
    // BPF_F_CURRENT_CPU
    code.place(1, CONTEXT, 0).map(OUTPUT, 2).push(0xb4, 3, 0, 0, -1).place(4, RECORD, 0);
    code.call(PERF_EVENT_OUTPUT).set(0, 0).exit();
}

/// The object: the program and its maps.
pub fn object() -> Result<Vec<u8>, object::write::Error> {
    let endian = if cfg!(target_endian = "little") { Endianness::Little } else { Endianness::Big };
    let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, endian);
    let section = object.add_section(Vec::new(), b"license".into(), SectionKind::Data);
    object.append_section_data(section, b"GPL\0", 1);
    let section = object.add_section(Vec::new(), b"maps".into(), SectionKind::Data);
    // Without a number of elements, aya gives the output one for each CPU.
    let maps = [
        (CALLS, [ARRAY, 4, size_of::<Pointers>() as u32, MOST_CALLS, 0]),
        (SCRATCH, [PERCPU_ARRAY, 4, SCRATCH_BYTES, 1, 0]),
        (OUTPUT, [PERF_EVENT_ARRAY, 4, 4, 0, 0]),
    ];
    let maps = maps.map(|(name, definition)| {
        let bytes = definition.map(u32::to_ne_bytes);
        let value = object.append_section_data(section, bytes.as_flattened(), 4);
        let size = size_of_val(&bytes) as u64;
        (name, object.add_symbol(symbol(name, value, size, SymbolKind::Data, section)))
    });
    let Code { bytes, maps: uses } = code();
    let section = object.add_section(Vec::new(), b"raw_tp/sys_enter".into(), SectionKind::Text);
    let value = object.append_section_data(section, bytes.as_flattened(), 8);
    object.add_symbol(symbol(PROGRAM, value, bytes.len() as u64 * 8, SymbolKind::Text, section));
    for (at, used) in uses {
        let named = |(name, _): &&(&str, SymbolId)| *name == used;
        let Some((_, symbol)) = maps.iter().find(named) else { continue };
        let flags = RelocationFlags::Elf { r_type: elf::R_BPF_64_64 };
        object.add_relocation(section, Relocation { offset: at as u64 * 8, symbol: *symbol, addend: 0, flags })?;
    }
    object.write()
}

fn symbol(name: &str, value: u64, size: u64, kind: SymbolKind, section: object::write::SectionId) -> Symbol {
    Symbol {
        name: name.into(),
        value,
        size,
        kind,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    }
}
