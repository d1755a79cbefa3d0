//! BPF programs as instructions, and the maps they use: as much of bpf(2) as the tests need.

use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `struct bpf_insn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Insn {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. R1 holds the context at the begin, R10 the frame; R0 is what a call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

use Reg::*;

// include/uapi/linux/bpf_common.h, bpf.h
const LD: u8 = 0x00;
const LDX: u8 = 0x01;
const STX: u8 = 0x03;
const ALU: u8 = 0x04;
const JMP: u8 = 0x05;
const ALU64: u8 = 0x07;
const W: u8 = 0x00;
const DW: u8 = 0x18;
const IMM: u8 = 0x00;
const MEM: u8 = 0x60;
const ATOMIC: u8 = 0xc0;
const X: u8 = 0x08;
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;

// enum bpf_func_id
const MAP_LOOKUP_ELEM: i32 = 1;
const KTIME_GET_NS: i32 = 5;
const GET_SMP_PROCESSOR_ID: i32 = 8;
const GET_CURRENT_PID_TGID: i32 = 14;
const PERF_EVENT_OUTPUT: i32 = 25;
const RINGBUF_OUTPUT: i32 = 130;
const RINGBUF_RESERVE: i32 = 131;
const RINGBUF_SUBMIT: i32 = 132;
const RINGBUF_DISCARD: i32 = 133;
const RINGBUF_QUERY: i32 = 134;
const COPY_FROM_USER: i32 = 148;

// enum bpf_map_type
const ARRAY: u32 = 2;
const PERF_EVENT_ARRAY: u32 = 4;
const PERCPU_ARRAY: u32 = 6;
const ARRAY_OF_MAPS: u32 = 12;
const HASH_OF_MAPS: u32 = 13;
const RINGBUF: u32 = 27;
const USER_RINGBUF: u32 = 31;

/// A program being written.
#[derive(Debug, Default)]
pub struct Asm {
    code: Vec<Insn>,
}

impl Asm {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, code: u8, dst: Reg, src: u8, offset: i16, immediate: i32) -> &mut Self {
        let dst = dst as u8;
        let registers = if cfg!(target_endian = "little") { dst | src << 4 } else { dst << 4 | src };
        self.code.push(Insn { code, registers, offset, immediate });
        self
    }

    /// dst = src
    pub fn mov(&mut self, dst: Reg, src: Reg) -> &mut Self {
        self.push(ALU64 | X | 0xb0, dst, src as u8, 0, 0)
    }

    /// dst = value
    pub fn mov_i(&mut self, dst: Reg, value: i32) -> &mut Self {
        self.push(ALU64 | 0xb0, dst, 0, 0, value)
    }

    /// dst = the low 32 bits of src
    pub fn mov_low(&mut self, dst: Reg, src: Reg) -> &mut Self {
        self.push(ALU | X | 0xb0, dst, src as u8, 0, 0)
    }

    /// dst += value
    pub fn add_i(&mut self, dst: Reg, value: i32) -> &mut Self {
        self.push(ALU64, dst, 0, 0, value)
    }

    /// dst &= value
    pub fn and_i(&mut self, dst: Reg, value: i32) -> &mut Self {
        self.push(ALU64 | 0x50, dst, 0, 0, value)
    }

    /// dst >>= bits
    pub fn shr_i(&mut self, dst: Reg, bits: i32) -> &mut Self {
        self.push(ALU64 | 0x70, dst, 0, 0, bits)
    }

    /// dst = *(u64 *)(src + offset)
    pub fn load(&mut self, dst: Reg, src: Reg, offset: i16) -> &mut Self {
        self.push(LDX | MEM | DW, dst, src as u8, offset, 0)
    }

    /// *(u64 *)(dst + offset) = src
    pub fn store(&mut self, dst: Reg, offset: i16, src: Reg) -> &mut Self {
        self.push(STX | MEM | DW, dst, src as u8, offset, 0)
    }

    /// *(u32 *)(dst + offset) = src
    pub fn store_u32(&mut self, dst: Reg, offset: i16, src: Reg) -> &mut Self {
        self.push(STX | MEM | W, dst, src as u8, offset, 0)
    }

    /// src = fetch_add((u64 *)(dst + offset), src)
    pub fn fetch_add(&mut self, dst: Reg, offset: i16, src: Reg) -> &mut Self {
        self.push(STX | ATOMIC | DW, dst, src as u8, offset, 0x01)
    }

    /// R0 = compare_exchange((u64 *)(dst + offset), R0, src): what was there
    pub fn compare_exchange(&mut self, dst: Reg, offset: i16, src: Reg) -> &mut Self {
        self.push(STX | ATOMIC | DW, dst, src as u8, offset, 0xf1)
    }

    /// dst += src
    pub fn add(&mut self, dst: Reg, src: Reg) -> &mut Self {
        self.push(ALU64 | X, dst, src as u8, 0, 0)
    }

    /// dst = the map, for a helper's argument
    pub fn map(&mut self, dst: Reg, map: &Map) -> &mut Self {
        self.wide(dst, PSEUDO_MAP_FD, map.fd.as_raw_fd(), 0)
    }

    /// dst = the address of the first element of an array, `offset` bytes in
    pub fn map_value(&mut self, dst: Reg, map: &Map, offset: i32) -> &mut Self {
        self.wide(dst, PSEUDO_MAP_VALUE, map.fd.as_raw_fd(), offset)
    }

    /// dst = value, 32 bits without sign
    pub fn mov_u32(&mut self, dst: Reg, value: u32) -> &mut Self {
        self.wide(dst, 0, value as i32, 0)
    }

    fn wide(&mut self, dst: Reg, src: u8, low: i32, high: i32) -> &mut Self {
        self.push(LD | DW | IMM, dst, src, 0, low).push(0, R0, 0, 0, high)
    }

    /// R0 = helper(R1..R5)
    pub fn call(&mut self, helper: i32) -> &mut Self {
        self.push(JMP | 0x80, R0, 0, 0, helper)
    }

    /// return R0
    pub fn exit(&mut self) -> &mut Self {
        self.push(JMP | 0x90, R0, 0, 0, 0)
    }

    /// Repeats `body`, which must leave `counter` (R6 to R9) alone.
    pub fn repeat(&mut self, counter: Reg, times: u32, body: impl FnOnce(&mut Self)) -> &mut Self {
        self.mov_i(counter, 0);
        let begin = self.code.len();
        body(self);
        self.add_i(counter, 1);
        let back = begin as i64 - self.code.len() as i64 - 1;
        self.push(JMP | 0xa0, counter, 0, back as i16, times as i32)
    }

    /// R0 = bpf_ktime_get_ns()
    pub fn ktime(&mut self) -> &mut Self {
        self.call(KTIME_GET_NS)
    }

    /// R0 = bpf_get_smp_processor_id()
    pub fn cpu(&mut self) -> &mut Self {
        self.call(GET_SMP_PROCESSOR_ID)
    }

    /// Goes on only in this process; otherwise returns 0.
    pub fn only_process(&mut self, pid: u32) -> &mut Self {
        self.call(GET_CURRENT_PID_TGID).shr_i(R0, 32);
        self.only_if(R0, pid as i32)
    }

    /// Goes on only in this thread; otherwise returns 0.
    pub fn only_thread(&mut self, thread: i32) -> &mut Self {
        self.call(GET_CURRENT_PID_TGID).mov_low(R0, R0);
        self.only_if(R0, thread)
    }

    /// Goes on only if a register has a value; otherwise returns 0.
    pub fn only_if(&mut self, reg: Reg, value: i32) -> &mut Self {
        let skip = self.push(JMP | 0x10, reg, 0, 2, value);
        skip.mov_i(R0, 0).exit()
    }

    /// Runs `body` only if a register has a value.
    pub fn when(&mut self, reg: Reg, value: i32, body: impl FnOnce(&mut Self) -> &mut Self) -> &mut Self {
        self.skip(0x50, reg, value, body)
    }

    /// Runs `body` only if a register has another value.
    pub fn unless(&mut self, reg: Reg, value: i32, body: impl FnOnce(&mut Self) -> &mut Self) -> &mut Self {
        self.skip(0x10, reg, value, body)
    }

    fn skip(&mut self, jump: u8, reg: Reg, value: i32, body: impl FnOnce(&mut Self) -> &mut Self) -> &mut Self {
        let at = self.code.len();
        self.push(JMP | jump, reg, 0, 0, value);
        body(self);
        self.code[at].offset = (self.code.len() - at - 1) as i16;
        self
    }

    /// Runs `body` only if two registers are the same.
    pub fn when_same(&mut self, one: Reg, other: Reg, body: impl FnOnce(&mut Self) -> &mut Self) -> &mut Self {
        let at = self.code.len();
        self.push(JMP | X | 0x50, one, other as u8, 0, 0);
        body(self);
        self.code[at].offset = (self.code.len() - at - 1) as i16;
        self
    }

    /// `perfweave_enter` of `perfweave.bpf.h`: R8 is this CPU's word from now on. Uses the four bytes at R10 - 28.
    pub fn enter(&mut self, epochs: &Map) -> &mut Self {
        self.cpu().store_u32(R10, -28, R0).element(epochs, -28).mov(R8, R0).mov_i(R1, 1).fetch_add(R8, 0, R1)
    }

    /// `perfweave_leave`: the last one to leave begins a new generation. R9 is what is left to be added.
    pub fn leave(&mut self) -> &mut Self {
        self.mov_i(R9, -1).load(R0, R8, 0).mov_low(R1, R0);
        self.when(R1, 1, |asm| {
            asm.mov(R2, R0).mov(R1, R0).mov_u32(R3, u32::MAX).add(R1, R3).compare_exchange(R8, 0, R1);
            asm.when_same(R0, R2, |asm| asm.mov_i(R9, 0))
        });
        self.fetch_add(R8, 0, R9)
    }

    /// R0 = the address of the element of an array whose index is the u32 at R10 + offset. If there is none, returns 0.
    pub fn element(&mut self, map: &Map, offset: i32) -> &mut Self {
        self.map(R1, map).mov(R2, R10).add_i(R2, offset).call(MAP_LOOKUP_ELEM);
        self.when(R0, 0, |asm| asm.exit())
    }

    /// R9 = the ring buffer that a program on this CPU writes into: the map, or its element for this CPU. If there is
    /// none, returns
    /// 0. Uses the four bytes at R10 - 28.
    pub fn ring(&mut self, rings: &Map) -> &mut Self {
        if rings.kind == RINGBUF {
            return self.map(R9, rings);
        }
        self.cpu().store_u32(R10, -28, R0).element(rings, -28).mov(R9, R0)
    }

    /// R8 = bpf_ringbuf_reserve(R9, size, 0). Where that is refused, runs `refused`, which has to return.
    pub fn reserve(&mut self, size: u32, refused: impl FnOnce(&mut Self) -> &mut Self) -> &mut Self {
        self.mov(R1, R9).mov_i(R2, size as i32).mov_i(R3, 0).call(RINGBUF_RESERVE).mov(R8, R0);
        self.when(R8, 0, refused)
    }

    /// bpf_ringbuf_submit(R8, flags)
    pub fn submit(&mut self, flags: i32) -> &mut Self {
        self.mov(R1, R8).mov_i(R2, flags).call(RINGBUF_SUBMIT)
    }

    /// bpf_ringbuf_discard(R8, flags)
    pub fn discard(&mut self, flags: i32) -> &mut Self {
        self.mov(R1, R8).mov_i(R2, flags).call(RINGBUF_DISCARD)
    }

    /// R0 = bpf_ringbuf_output(R9, R10 + offset, size, flags)
    pub fn ring_output(&mut self, offset: i32, size: u32, flags: i32) -> &mut Self {
        self.mov(R1, R9).mov(R2, R10).add_i(R2, offset).mov_i(R3, size as i32).mov_i(R4, flags).call(RINGBUF_OUTPUT)
    }

    /// R0 = bpf_ringbuf_query(R9, what)
    pub fn query(&mut self, what: Query) -> &mut Self {
        self.mov(R1, R9).mov_i(R2, what as i32).call(RINGBUF_QUERY)
    }

    /// R0 = bpf_copy_from_user(R10 + offset, size, the address in `from`): of sleepable programs.
    pub fn copy_from_user(&mut self, offset: i32, size: u32, from: Reg) -> &mut Self {
        self.mov(R3, from).mov(R1, R10).add_i(R1, offset).mov_i(R2, size as i32).call(COPY_FROM_USER)
    }

    /// Counts one more in this CPU's element of a per-CPU array. If there is none, returns 0. Uses the four bytes at
    /// R10 - 28.
    pub fn count(&mut self, counts: &Map) -> &mut Self {
        self.mov_i(R1, 0).store_u32(R10, -28, R1).element(counts, -28).mov_i(R1, 1).fetch_add(R0, 0, R1)
    }

    /// One locked instruction, as `perfweave_reserve` of `perfweave.bpf.h` has it. Uses the eight bytes at R10 - 40.
    pub fn barrier(&mut self) -> &mut Self {
        self.mov_i(R1, 1).store(R10, -40, R1).fetch_add(R10, -40, R1)
    }

    /// Works for so many turns. R7 counts them.
    pub fn delay(&mut self, turns: u32) -> &mut Self {
        if turns == 0 {
            return self;
        }
        self.repeat(R7, turns, |asm| {
            asm.ktime();
        })
    }

    /// R0 = bpf_perf_event_output(context, map, BPF_F_CURRENT_CPU, R10 + offset, size)
    pub fn output(&mut self, context: Reg, map: &Map, offset: i32, size: u32) -> &mut Self {
        self.mov(R1, context)
            .map(R2, map)
            .mov_u32(R3, u32::MAX)
            .mov(R4, R10)
            .add_i(R4, offset)
            .mov_i(R5, size as i32)
            .call(PERF_EVENT_OUTPUT)
    }

    /// R0 = bpf_perf_event_output(context, map, BPF_F_CURRENT_CPU, the array's first element, size)
    pub fn output_value(&mut self, context: Reg, map: &Map, array: &Map, size: u32) -> &mut Self {
        self.mov(R1, context)
            .map(R2, map)
            .mov_u32(R3, u32::MAX)
            .map_value(R4, array, 0)
            .mov_i(R5, size as i32)
            .call(PERF_EVENT_OUTPUT)
    }
}

/// What `bpf_ringbuf_query()` is asked for.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Query {
    Available = 0,
    Size = 1,
    Consumer = 2,
    Producer = 3,
}

/// `enum bpf_prog_type`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Tracepoint = 5,
    PerfEvent = 7,
    RawTracepoint = 17,
    /// Sleepable, and run by [`Program::run_here`] only (Linux 5.14).
    Syscall = 31,
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
}

#[repr(C)]
#[derive(Default)]
struct MapElem {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
}

#[repr(C)]
#[derive(Default)]
struct RawTracepointOpen {
    name: u64,
    prog_fd: u32,
    pad: u32,
}

/// # Safety
/// The pointers in `attr` must be good for the command.
unsafe fn bpf<A>(command: libc::c_int, attr: &mut A) -> io::Result<i32> {
    // SAFETY: `attr` is as long as is said.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<A>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as i32) }
}

/// A BPF map with 4-byte keys.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    kind: u32,
    value_size: usize,
}

impl Map {
    fn create(map_type: u32, value_size: u32, max_entries: u32, map_flags: u32) -> io::Result<Self> {
        Self::make(MapCreate { map_type, key_size: 4, value_size, max_entries, map_flags, inner_map_fd: 0 })
    }

    fn make(mut attr: MapCreate) -> io::Result<Self> {
        let (kind, value_size) = (attr.map_type, attr.value_size as usize);
        // SAFETY: no pointers.
        let fd = unsafe { bpf(0, &mut attr) }.map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => {
                io::Error::new(error.kind(), "cannot make a BPF map: run as root, or with CAP_BPF and CAP_PERFMON")
            }
            _ => error,
        })?;
        // SAFETY: a new file descriptor.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, kind, value_size })
    }

    /// A `BPF_MAP_TYPE_PERF_EVENT_ARRAY`.
    pub fn perf_event_array(entries: u32) -> io::Result<Self> {
        Self::create(PERF_EVENT_ARRAY, 4, entries, 0)
    }

    /// A `BPF_MAP_TYPE_RINGBUF` (Linux 5.8). The length is a power of two, and no less than a page.
    pub fn ring_buffer(bytes: u32) -> io::Result<Self> {
        Self::ring_buffer_with(bytes, 0)
    }

    /// A `BPF_MAP_TYPE_RINGBUF` with flags.
    pub fn ring_buffer_with(bytes: u32, map_flags: u32) -> io::Result<Self> {
        Self::make(MapCreate { map_type: RINGBUF, max_entries: bytes, map_flags, ..MapCreate::default() })
    }

    /// A `BPF_MAP_TYPE_USER_RINGBUF` (Linux 6.1).
    pub fn user_ring_buffer(bytes: u32) -> io::Result<Self> {
        Self::make(MapCreate { map_type: USER_RINGBUF, max_entries: bytes, ..MapCreate::default() })
    }

    /// A `BPF_MAP_TYPE_ARRAY_OF_MAPS` with a ring buffer in the elements of some CPUs, and those ring buffers.
    pub fn ring_buffers(bytes: u32, cpus: &[u32]) -> io::Result<(Self, Vec<Self>)> {
        Self::of_maps(ARRAY_OF_MAPS, bytes, cpus)
    }

    /// The same in a `BPF_MAP_TYPE_HASH_OF_MAPS`.
    pub fn hash_of_ring_buffers(bytes: u32, cpus: &[u32]) -> io::Result<(Self, Vec<Self>)> {
        Self::of_maps(HASH_OF_MAPS, bytes, cpus)
    }

    /// A `BPF_MAP_TYPE_HASH_OF_MAPS` for ring buffers with keys of this many bytes, empty.
    pub fn ring_buffers_keyed(bytes: u32, key_size: u32) -> io::Result<Self> {
        let like = Self::ring_buffer(bytes)?;
        let inner_map_fd = like.fd.as_raw_fd() as u32;
        Self::make(MapCreate {
            map_type: HASH_OF_MAPS,
            key_size,
            value_size: 4,
            max_entries: 1,
            map_flags: 0,
            inner_map_fd,
        })
    }

    fn of_maps(map_type: u32, bytes: u32, cpus: &[u32]) -> io::Result<(Self, Vec<Self>)> {
        let rings = cpus.iter().map(|_| Self::ring_buffer(bytes)).collect::<io::Result<Vec<_>>>()?;
        let like = Self::ring_buffer(bytes)?;
        let max_entries = cpus.iter().max().map_or(1, |cpu| cpu + 1);
        let inner_map_fd = like.fd.as_raw_fd() as u32;
        let attr = MapCreate { map_type, key_size: 4, value_size: 4, max_entries, map_flags: 0, inner_map_fd };
        let map = Self::make(attr)?;
        for (&cpu, ring) in cpus.iter().zip(&rings) {
            map.update(cpu, &ring.fd.as_raw_fd().to_ne_bytes())?;
        }
        Ok((map, rings))
    }

    /// A `BPF_MAP_TYPE_ARRAY`.
    pub fn array(value_size: u32, entries: u32) -> io::Result<Self> {
        Self::create(ARRAY, value_size, entries, 0)
    }

    /// A `BPF_MAP_TYPE_PERCPU_ARRAY` with one number for each CPU: `PERFWEAVE_FAILURES` of `perfweave.bpf.h`.
    pub fn counts() -> io::Result<Self> {
        let mut map = Self::create(PERCPU_ARRAY, 8, 1, 0)?;
        // All CPUs' numbers are read at once.
        map.value_size = 8 * crate::cpus::possible().len();
        Ok(map)
    }

    /// Whether each CPU has numbers of its own in it: [`Map::counts`].
    pub fn is_by_cpu(&self) -> bool {
        self.kind == PERCPU_ARRAY
    }

    /// The sum of all CPUs' numbers.
    pub fn counted(&self) -> io::Result<u64> {
        let value = self.lookup(0)?;
        Ok(value.chunks_exact(8).map(|count| u64::from_ne_bytes(count.try_into().expect("eight bytes"))).sum())
    }

    /// A `BPF_MAP_TYPE_ARRAY` that can be mapped, with an element of 64 bytes for each CPU: the words of writers'
    /// epochs.
    pub fn epochs(cpus: u32) -> io::Result<Self> {
        Self::create(ARRAY, 64, cpus, 1 << 10)
    }

    /// Sets an element.
    ///
    /// # Panics
    /// If the value has another length than the map's.
    pub fn update(&self, key: u32, value: &[u8]) -> io::Result<()> {
        assert_eq!(value.len(), self.value_size);
        let mut attr = MapElem {
            map_fd: self.fd.as_raw_fd() as u32,
            key: std::ptr::from_ref(&key) as u64,
            value: value.as_ptr() as u64,
            ..MapElem::default()
        };
        // SAFETY: key and value are as long as the map says.
        unsafe { bpf(2, &mut attr) }.map(drop)
    }

    /// Deletes an element: of a perf event array, empties a slot.
    pub fn delete(&self, key: u32) -> io::Result<()> {
        let mut attr =
            MapElem { map_fd: self.fd.as_raw_fd() as u32, key: std::ptr::from_ref(&key) as u64, ..MapElem::default() };
        // SAFETY: the key is as long as the map says.
        unsafe { bpf(3, &mut attr) }.map(drop)
    }

    /// Reads an element.
    pub fn lookup(&self, key: u32) -> io::Result<Vec<u8>> {
        let mut value = vec![0; self.value_size];
        let mut attr = MapElem {
            map_fd: self.fd.as_raw_fd() as u32,
            key: std::ptr::from_ref(&key) as u64,
            value: value.as_mut_ptr() as u64,
            ..MapElem::default()
        };
        // SAFETY: key and value are as long as the map says.
        unsafe { bpf(1, &mut attr) }?;
        Ok(value)
    }

    /// Reads the `u64` at an offset of an element.
    pub fn lookup_u64(&self, key: u32, offset: usize) -> io::Result<u64> {
        let value = self.lookup(key)?;
        Ok(u64::from_ne_bytes(value[offset..offset + 8].try_into().expect("eight bytes")))
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A loaded BPF program.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Program {
    /// Loads a program. An error carries what the verifier said.
    pub fn load(kind: Kind, asm: &Asm) -> io::Result<Self> {
        Self::load_as("", kind, asm)
    }

    /// Loads a program that has a name of up to 15 letters.
    pub fn load_as(called: &str, kind: Kind, asm: &Asm) -> io::Result<Self> {
        let mut name = [0; 16];
        name[..called.len()].copy_from_slice(called.as_bytes());
        let license = c"GPL";
        let mut attr = ProgLoad {
            prog_type: kind as u32,
            insn_cnt: asm.code.len() as u32,
            insns: asm.code.as_ptr() as u64,
            license: license.as_ptr() as u64,
            // BPF_F_SLEEPABLE
            prog_flags: if kind == Kind::Syscall { 1 << 4 } else { 0 },
            name,
            ..ProgLoad::default()
        };
        let interrupted = |errno: &io::Error| errno.raw_os_error() == Some(libc::EAGAIN);
        let loaded = loop {
            // SAFETY: instructions and licence live until the call returns.
            match unsafe { bpf(5, &mut attr) } {
                // A signal came while it was verified, as when the process is stopped.
                Err(errno) if interrupted(&errno) => {}
                loaded => break loaded,
            }
        };
        let fd = loaded.or_else(|error| {
            if error.raw_os_error() == Some(libc::EPERM) {
                return Err(error);
            }
            let mut log = vec![0u8; 1 << 20];
            attr.log_level = 1;
            attr.log_size = log.len() as u32;
            attr.log_buf = log.as_mut_ptr() as u64;
            // SAFETY: the log too.
            unsafe { bpf(5, &mut attr) }.map_err(|error| {
                let said = String::from_utf8_lossy(&log);
                let said = said.trim_end_matches('\0');
                let end = said.char_indices().rev().nth(2000).map_or(0, |(at, _)| at);
                let old = if said.contains("BPF_STX uses reserved fields") {
                    "atomic operations that give what was there need Linux 5.12; "
                } else {
                    ""
                };
                io::Error::other(format!("{error}: {old}{}", said[end..].trim().replace('\n', "; ")))
            })
        })?;
        // SAFETY: a new file descriptor.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Runs a raw tracepoint program on a CPU (`BPF_PROG_TEST_RUN`, `BPF_F_TEST_RUN_ON_CPU`) and gives what it
    /// returned.
    pub fn run_on(&self, cpu: u32) -> io::Result<i32> {
        self.run_with(cpu, &[])
    }

    /// As [`Program::run_on`], with these arguments as the context.
    pub fn run_with(&self, cpu: u32, context: &[u64]) -> io::Result<i32> {
        let mut attr = TestRun {
            prog_fd: self.fd.as_raw_fd() as u32,
            ctx_size_in: size_of_val(context) as u32,
            ctx_in: if context.is_empty() { 0 } else { context.as_ptr() as u64 },
            flags: 1,
            cpu,
            ..TestRun::default()
        };
        // SAFETY: the context is as long as is said.
        unsafe { bpf(10, &mut attr) }?;
        Ok(attr.retval as i32)
    }

    /// Runs a program of [`Kind::Syscall`] in the calling thread, with these arguments as the context, and gives what
    /// it returned.
    pub fn run_here(&self, context: &[u64]) -> io::Result<i32> {
        // The kernel writes it back.
        let mut context = context.to_vec();
        let mut attr = TestRun {
            prog_fd: self.fd.as_raw_fd() as u32,
            ctx_size_in: size_of_val(&*context) as u32,
            ctx_in: context.as_mut_ptr() as u64,
            ..TestRun::default()
        };
        // SAFETY: the context is as long as is said.
        unsafe { bpf(10, &mut attr) }?;
        Ok(attr.retval as i32)
    }

    /// Another handle to the same program.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.fd.try_clone().map(|fd| Self { fd })
    }

    /// Attaches it to a raw tracepoint, until the answer is dropped.
    pub fn attach_raw_tracepoint(&self, name: &str) -> io::Result<OwnedFd> {
        let name = CString::new(name)?;
        let mut attr = RawTracepointOpen { name: name.as_ptr() as u64, prog_fd: self.fd.as_raw_fd() as u32, pad: 0 };
        // SAFETY: the name ends with a zero and lives until the call returns.
        let fd = unsafe { bpf(17, &mut attr) }?;
        // SAFETY: a new file descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Runs it in interrupt context, every so many nanoseconds of a CPU, until the answer is dropped.
    pub fn attach_clock(&self, cpu: u32, period_ns: u64) -> io::Result<OwnedFd> {
        use perf_event_open_sys::bindings as sys;
        let mut attr = crate::foreign::software(sys::PERF_COUNT_SW_CPU_CLOCK, period_ns);
        // SAFETY: the attribute is as long as it says.
        let fd = unsafe { perf_event_open_sys::perf_event_open(&mut attr, -1, cpu as i32, -1, 8) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new file descriptor.
        self.attach(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Runs a program of [`Kind::Tracepoint`] at a tracepoint, on all CPUs, until the answer is dropped.
    pub fn attach_tracepoint(&self, id: u32) -> io::Result<OwnedFd> {
        use perf_event_open_sys::bindings as sys;
        let mut attr =
            sys::perf_event_attr { type_: sys::PERF_TYPE_TRACEPOINT, config: id.into(), ..Default::default() };
        attr.size = size_of_val(&attr) as u32;
        // SAFETY: the attribute is as long as it says.
        let fd = unsafe { perf_event_open_sys::perf_event_open(&mut attr, -1, 0, -1, 8) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new file descriptor.
        self.attach(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn attach(&self, event: OwnedFd) -> io::Result<OwnedFd> {
        // SAFETY: both are open.
        let answer = unsafe { perf_event_open_sys::ioctls::SET_BPF(event.as_raw_fd(), self.fd.as_raw_fd() as u32) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(event) }
    }
}

/// What [`stamped`] writes, 24 bytes: `u64 time` by `bpf_ktime_get_ns()`, `u64 number` of a machine-wide counter, `u32
/// kind`, `u32 cpu`.
pub const STAMPED: u32 = 24;

/// Where [`stamped`] records go, where their numbers come from, and how the programs keep to epochs.
#[derive(Debug, Clone, Copy)]
pub struct Stamps<'a> {
    /// The rings.
    pub events: &'a Map,
    /// The machine's counter.
    pub counter: &'a Map,
    /// The writers' epochs, if they keep to them, and how.
    pub epochs: Option<(&'a Map, Keeping)>,
}

/// How programs keep to writers' epochs. All but the first are wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    /// As is right.
    Rightly,
    /// Enter when the key is drawn already.
    KeyFirst,
    /// Leave before the output.
    LeaveFirst,
    /// A generation for each that leaves, also where others are still inside.
    Generations,
    /// Never leave.
    Forget,
}

/// Appends to a program with its context in R6: draw a number and the time, work for `delay` turns, output both.
///
/// The number is drawn before the time, and both before the delay.
pub fn stamped(asm: &mut Asm, stamps: &Stamps<'_>, kind: u32, delay: u32) {
    let Stamps { events, counter, epochs } = *stamps;
    let enter_if = |asm: &mut Asm, now: bool| {
        if let Some((map, keeping)) = epochs
            && (keeping == Keeping::KeyFirst) != now
        {
            asm.enter(map);
        }
    };
    enter_if(asm, true);
    asm.mov_i(R1, 1).map_value(R2, counter, 0).fetch_add(R2, 0, R1).store(R10, -16, R1);
    asm.ktime().store(R10, -24, R0);
    asm.cpu().mov_i(R1, kind as i32).store_u32(R10, -8, R1).store_u32(R10, -4, R0);
    let first = matches!(epochs, Some((_, Keeping::LeaveFirst)));
    if first {
        asm.leave();
    }
    if delay > 0 {
        asm.repeat(R7, delay, |asm| {
            asm.ktime();
        });
    }
    enter_if(asm, false);
    asm.output(R6, events, -(STAMPED as i32), STAMPED);
    if let Some((_, keeping)) = epochs
        && !first
    {
        leave(asm, keeping);
    }
}

fn leave(asm: &mut Asm, keeping: Keeping) {
    match keeping {
        Keeping::Forget => {}
        Keeping::Generations => drop(asm.mov_u32(R9, u32::MAX).fetch_add(R8, 0, R9)),
        _ => drop(asm.leave()),
    }
}

impl Stamps<'_> {
    /// A raw tracepoint program for `sys_enter` that outputs [`stamped`] records when this process calls a system call.
    pub fn on_syscall(&self, number: libc::c_long, kind: u32, delay: u32) -> io::Result<Program> {
        let mut asm = Asm::new();
        asm.mov(R6, R1).load(R1, R6, 8).only_if(R1, number as i32).only_process(std::process::id());
        stamped(&mut asm, self, kind, delay);
        asm.mov_i(R0, 0).exit();
        Program::load(Kind::RawTracepoint, &asm)
    }

    /// A program for [`Program::attach_clock`] that outputs [`stamped`] records.
    pub fn on_clock(&self, kind: u32) -> io::Result<Program> {
        let mut asm = Asm::new();
        asm.mov(R6, R1);
        stamped(&mut asm, self, kind, 0);
        asm.mov_i(R0, 0).exit();
        Program::load(Kind::PerfEvent, &asm)
    }

    /// A program for [`Program::attach_clock`] that enters and leaves, and writes nothing.
    pub fn visit_on_clock(&self) -> io::Result<Program> {
        let mut asm = Asm::new();
        if let Some((map, keeping)) = self.epochs {
            asm.enter(map);
            leave(&mut asm, keeping);
        }
        asm.mov_i(R0, 0).exit();
        Program::load(Kind::PerfEvent, &asm)
    }

    /// A program for [`Program::run_on`] that outputs a [`stamped`] record.
    pub fn when_run(&self, kind: u32) -> io::Result<Program> {
        let mut asm = Asm::new();
        asm.mov(R6, R1);
        stamped(&mut asm, self, kind, 0);
        asm.mov_i(R0, 0).exit();
        Program::load(Kind::RawTracepoint, &asm)
    }
}

/// [`Stamps::on_syscall`] without epochs.
pub fn on_syscall(events: &Map, counter: &Map, number: libc::c_long, kind: u32, delay: u32) -> io::Result<Program> {
    Stamps { events, counter, epochs: None }.on_syscall(number, kind, delay)
}

/// [`Stamps::on_clock`] without epochs.
pub fn on_clock(events: &Map, counter: &Map, kind: u32) -> io::Result<Program> {
    Stamps { events, counter, epochs: None }.on_clock(kind)
}

/// A raw tracepoint program for `sys_enter` that counts system calls of this process in an array of one number: all, or
/// those of one thread, and only one system call, if that is asked for.
pub fn count_syscalls(count: &Map, thread: Option<i32>, number: Option<libc::c_long>) -> io::Result<Program> {
    let mut asm = Asm::new();
    if let Some(number) = number {
        asm.load(R1, R1, 8).only_if(R1, number as i32);
    }
    asm.only_process(std::process::id());
    if let Some(thread) = thread {
        asm.only_thread(thread);
    }
    asm.mov_i(R1, 1).map_value(R2, count, 0).fetch_add(R2, 0, R1).mov_i(R0, 0).exit();
    Program::load(Kind::RawTracepoint, &asm)
}

/// A program for [`Program::run_on`] that outputs the first `size` bytes of an array's only element and returns what
/// the helper returned.
pub fn emitter(events: &Map, array: &Map, size: u32) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.mov(R6, R1).output_value(R6, events, array, size).exit();
    Program::load(Kind::RawTracepoint, &asm)
}

/// A program for [`Program::run_with`] that outputs its first argument, 8 bytes, and returns what the helper returned.
pub fn echo(events: &Map) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.mov(R6, R1).load(R1, R6, 0).store(R10, -8, R1).output(R6, events, -8, 8).exit();
    Program::load(Kind::RawTracepoint, &asm)
}
