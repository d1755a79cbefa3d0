//! BPF programs that tell what [`Scheduler`](super::Scheduler) needs of switches with the fewest records: one each,
//! with the system call in which the thread falls asleep.
//!
//! A thread that falls asleep in a system call has the call's number and arguments where the entry has saved its
//! registers. So nothing needs to be traced at entries and returns, most of which are of calls that do not sleep.

use super::told::{
    ARGS, CALL, COMPAT, COUNT, DEVICE, FLAGS, INODE, LAST, NAME, NUMBER, PREEMPTED, SIGNAL, STANDS, SWITCH,
};
use super::types::{Calls, Types};
use crate::instructions::{self, Code, EQUAL, FRAME, UNEQUAL};
use crate::order::Program;
use aya::maps::Map;
use aya::programs::BtfTracePoint;
use aya::util::online_cpus;
use aya::{Btf, Ebpf, EbpfLoader};
use perfweave::RingOptions;
use perfweave_events::EventOptions;
use std::error::Error;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The map, by its name in the object: records are in its rings.
const OUTPUT: &str = "switches";

/// `TASK_DEAD`
const DEAD: i32 = 0x80;
/// `PF_KTHREAD`, `PF_IO_WORKER` and `PF_USER_WORKER` (include/linux/sched.h): they have entered no call.
const NO_PROGRAM: i32 = 0x20_4010;

// enum bpf_func_id
const PERF_EVENT_OUTPUT: i32 = 25;
const PROBE_READ_KERNEL: i32 = 113;
const CURRENT_TASK: i32 = 158;
const TASK_REGISTERS: i32 = 175;

// enum bpf_map_type
const PERF_EVENT_ARRAY: u32 = 4;

// What registers hold throughout.
const CONTEXT: u8 = 6;
const TASK: u8 = 7;
const STATE: u8 = 8;
const REGISTERS: u8 = 9;

/// Bytes of a [`CALL`], and of a [`SWITCH`].
const LENGTH: usize = INODE + 8;
const SHORT: usize = COUNT + 4;

// Local places: the record, and a pointer or an index.
const RECORD: i16 = -(LENGTH as i16);
const POINTER: i16 = RECORD - 8;

/// Programs that run, and what they write.
#[derive(Debug)]
pub struct Switches {
    /// Tells where a CPU stands. Before the map that it writes to.
    stands: Stands,
    /// Unloaded on drop.
    programs: Ebpf,
}

/// Has each CPU tell which of its switches was the last, and who runs there. So what was before its first record of a
/// switch and behind its last one is known, too.
#[derive(Debug, Clone)]
pub struct Stands(Arc<Program>);

impl Stands {
    /// `is_last`: nothing is asked for that comes later.
    pub fn tell(&self, is_last: bool) {
        // One that goes offline meanwhile tells nothing, and what it did since its last record is not known.
        for cpu in online_cpus().into_iter().flatten() {
            let _ = self.0.run(cpu, [u64::from(is_last), 0]);
        }
    }
}

impl Switches {
    /// Loads and attaches them. `calls`: whether they tell in which calls threads fall asleep.
    pub fn begin(calls: bool) -> Result<Self, Box<dyn Error>> {
        let (types, btf) = (Types::read(calls)?, Btf::from_sys_fs()?);
        let codes = codes(&types);
        // Without a number of elements, aya gives the output one for each CPU.
        let maps = [(OUTPUT, [PERF_EVENT_ARRAY, 4, 4, 0, 0])];
        let object = instructions::object(&maps, &codes)?;
        let mut programs = EbpfLoader::new().btf(Some(&btf)).load(&object)?;
        for (name, ..) in &codes {
            let program: &mut BtfTracePoint = programs.program_mut(name).ok_or("no program")?.try_into()?;
            program.load(name, &btf)?;
            program.attach()?;
        }
        let Some(Map::PerfEventArray(map)) = programs.map(OUTPUT) else { return Err("no map".into()) };
        let stands = Stands(Arc::new(Program::load(&stands(&types, map.fd().as_fd()))?));
        Ok(Self { stands, programs })
    }

    pub fn stands(&self) -> &Stands {
        &self.stands
    }

    /// Their output is one more source of records.
    pub fn output(&self, options: RingOptions) -> RingOptions {
        match self.programs.map(OUTPUT) {
            Some(Map::PerfEventArray(map)) => {
                let options = options.bpf_output(map.fd().as_fd()).named(NAME);
                options.set("recorder", &[], "", |event| {
                    event.attr.config1 = std::process::id().into();
                    Ok(())
                })
            }
            _ => options,
        }
    }
}

/// By the tracepoints at which they run.
fn codes(types: &Types) -> Vec<(String, String, Code)> {
    let signals = types.calls.as_ref().map(|calls| ("signal_deliver", signal(types, calls)));
    let codes = std::iter::once(("sched_switch", switch(types))).chain(signals);
    codes.map(|(name, code)| (name.into(), format!("tp_btf/{name}"), code)).collect()
}

/// A field of the record gets a register's lower half.
fn field(code: &mut Code, at: usize, from: u8) -> &mut Code {
    code.store_u32(FRAME, RECORD + at as i16, from)
}

fn switch(types: &Types) -> Code {
    let mut code = Code::default();
    let ([prev, next], state) = types.switch;
    code.place(CONTEXT, 1, 0).load(TASK, CONTEXT, 8 * prev).load_u32(1, TASK, types.pid);
    field(&mut code, 4, 1).load(1, CONTEXT, 8 * next).load_u32(1, 1, types.pid);
    field(&mut code, 8, 1);
    // Also what the kernel does not tell this program has a number.
    number(&mut code, types);
    match state {
        Some(place) => code.load_u32(STATE, CONTEXT, 8 * place),
        None => code.load_u32(STATE, TASK, types.state),
    };
    // The first argument: whether it is taken off.
    code.load(1, CONTEXT, 0).and(1, 0xff).unless(EQUAL, 1, 0, |code| {
        code.set(STATE, PREEMPTED.cast_signed());
        field(code, 12, STATE);
        output(code, SWITCH, SHORT);
    });
    field(&mut code, 12, STATE);
    if let Some(calls) = &types.calls {
        code.unless(EQUAL, STATE, 0, |code| {
            code.place(1, STATE, 0).and(1, DEAD).unless(UNEQUAL, 1, 0, |code| {
                code.load_u32(1, TASK, calls.flags);
                field(code, FLAGS, 1).and(1, NO_PROGRAM).unless(UNEQUAL, 1, 0, |code| {
                    call(code, calls);
                });
            });
        });
    }
    output(&mut code, SWITCH, SHORT);
    code
}

/// How many switches the CPU of [`TASK`] has made.
fn number(code: &mut Code, types: &Types) {
    let [fair, queue, made] = types.numbers;
    code.load(1, TASK, fair).load(1, 1, queue).load(1, 1, made);
    field(code, COUNT, 1);
}

/// Where a CPU stands, if it is told to say so. The first argument is said, too.
fn stands(types: &Types, out: BorrowedFd<'_>) -> Code {
    let mut code = Code::default();
    code.place(CONTEXT, 1, 0).load(1, CONTEXT, 0);
    field(&mut code, LAST, 1).call(CURRENT_TASK).place(TASK, 0, 0).load_u32(1, TASK, types.pid);
    field(&mut code, 4, 1);
    field(&mut code, 8, 1).set(1, STANDS.cast_signed());
    field(&mut code, 0, 1);
    number(&mut code, types);
    code.place(1, CONTEXT, 0).map_fd(2, out);
    written(&mut code, SHORT);
    code
}

/// The call in which [`TASK`] falls asleep, if it has executed a program: before that all registers are zero.
fn call(code: &mut Code, types: &Calls) {
    code.place(1, TASK, 0).call(TASK_REGISTERS).place(REGISTERS, 0, 0);
    code.load(1, REGISTERS, types.caller).unless(EQUAL, 1, 0, |code| {
        call_of_program(code, types);
        output(code, CALL, LENGTH);
    });
}

fn call_of_program(code: &mut Code, types: &Calls) {
    code.load(1, REGISTERS, types.call);
    code.load_u32(2, TASK, types.compat.0).and(2, types.compat.1.cast_signed()).unless(EQUAL, 2, 0, |code| {
        code.set(1, COMPAT);
    });
    field(code, NUMBER, 1);
    for (arg, register) in types.args.into_iter().enumerate() {
        code.load(1, REGISTERS, register).store(FRAME, RECORD + (ARGS + 8 * arg) as i16, 1);
    }
    code.set(1, 0).store(FRAME, RECORD + INODE as i16, 1);
    field(code, DEVICE, 1);
    let [files, table, most, all] = types.files;
    code.load(1, TASK, files).unless(EQUAL, 1, 0, |code| {
        code.load(1, 1, table).unless(EQUAL, 1, 0, |code| {
            // A descriptor has 32 bits, whatever is above them.
            code.load_u32(2, 1, most).push(0x61, 3, FRAME, RECORD + ARGS as i16, 0);
            code.unless_not_above(2, 3, |code| {
                code.load(1, 1, all).shift(3, 3).add(3, 1);
                file(code, types);
            });
        });
    });
}

/// The file behind the pointer at R3. What cannot be read is zero.
fn file(code: &mut Code, types: &Calls) {
    let [inode, block, number, device] = types.inode;
    let read = |code: &mut Code, to: i16, bytes: i32| {
        code.place(1, FRAME, to.into()).set(2, bytes).call(PROBE_READ_KERNEL);
    };
    read(code, POINTER, 8);
    code.load_local(3, POINTER).unless(EQUAL, 3, 0, |code| {
        read(code.place(3, 3, inode as i32), POINTER, 8);
        read(code.load_local(3, POINTER).place(3, 3, number as i32), RECORD + INODE as i16, 8);
        read(code.load_local(3, POINTER).place(3, 3, block as i32), POINTER, 8);
        read(code.load_local(3, POINTER).place(3, 3, device as i32), RECORD + DEVICE as i16, 4);
    });
}

/// Not for what the signal does, but for the result of the call that it ended: that is in the registers by now.
fn signal(types: &Types, calls: &Calls) -> Code {
    let mut code = Code::default();
    code.place(CONTEXT, 1, 0).load_u32(1, CONTEXT, 0);
    field(&mut code, 8, 1).call(CURRENT_TASK).place(TASK, 0, 0).load_u32(1, TASK, types.pid);
    field(&mut code, 4, 1).place(1, TASK, 0).call(TASK_REGISTERS).load(1, 0, calls.call);
    field(&mut code, 12, 1).load(1, 0, calls.result).store(FRAME, RECORD + 16, 1);
    output(&mut code, SIGNAL, 24);
    code
}

/// Writes the record, and ends.
fn output(code: &mut Code, kind: u32, len: usize) {
    code.set(1, kind.cast_signed());
    field(code, 0, 1).place(1, CONTEXT, 0).map(OUTPUT, 2);
    written(code, len);
}

/// Into the ring of this CPU.
fn written(code: &mut Code, len: usize) {
    // BPF_F_CURRENT_CPU
    code.push(0xb4, 3, 0, 0, -1);
    code.place(4, FRAME, RECORD.into()).set(5, len as i32).call(PERF_EVENT_OUTPUT).set(0, 0).exit();
}
