//! The writers: BPF programs that draw numbers, wait, write, and count the results.

use crate::plan::{Plan, Which};
use perfweave::Fence;
use perfweave_support::bpf::{self, Reg};
use perfweave_support::cpus;
use perfweave_support::load;
use std::io;
use std::os::fd::OwnedFd;

/// The length of a BPF ring buffer is counted in these: a page of the machine, or more.
const PAGE: u64 = 4096;

/// What the programs counted on one CPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outputs {
    /// Numbers drawn.
    pub drawn: u64,
    pub written: u64,
    /// `-ENOSPC`: the kernel counts these too, as lost.
    pub no_space: u64,
    /// Any other error: only the programs count these.
    pub refused: u64,
}

/// BPF ring buffers, one for each CPU, and the counts of failed reservations.
#[derive(Debug)]
pub struct Buffers {
    pub map: bpf::Map,
    pub failures: bpf::Map,
}

/// Programs that write when a process calls getppid(2), and in interrupts, and their record.
#[derive(Debug)]
pub struct Writers {
    pub events: bpf::Map,
    /// The words in which they say that they are inside.
    pub epochs: bpf::Map,
    pub buffers: Option<Buffers>,
    machine: bpf::Map,
    own: bpf::Map,
    on_syscall: Vec<bpf::Program>,
    on_clock: Vec<bpf::Program>,
    attached: Vec<OwnedFd>,
}

impl Writers {
    pub fn new(process: u32, plan: &Plan) -> io::Result<Self> {
        let (events, epochs) = (bpf::Map::perf_event_array(load::slots())?, bpf::Map::epochs(load::slots())?);
        let (machine, own) = (bpf::Map::array(8, 1)?, bpf::Map::array(32, load::slots())?);
        let (mut on_syscall, mut on_clock) = (Vec::new(), Vec::new());
        if plan.rings != Which::Buffers {
            let maps = [&events, &machine, &own, &epochs];
            on_syscall.push(program(bpf::Kind::RawTracepoint, process, plan.delay, maps)?);
            on_clock.push(program(bpf::Kind::PerfEvent, process, 0, maps)?);
        }
        let mut buffers = None;
        if plan.rings != Which::Perf {
            let bytes = u32::try_from(plan.pages * PAGE).map_err(io::Error::other)?;
            // Also for CPUs that are offline now.
            let made =
                Buffers { map: bpf::Map::ring_buffers(bytes, &cpus::possible())?.0, failures: bpf::Map::counts()? };
            let maps = [&machine, &own];
            on_syscall.push(reserving(bpf::Kind::RawTracepoint, process, plan.delay, &made, maps)?);
            on_clock.push(reserving(bpf::Kind::PerfEvent, process, 0, &made, maps)?);
            buffers = Some(made);
        }
        Ok(Self { events, epochs, buffers, machine, own, on_syscall, on_clock, attached: Vec::new() })
    }

    /// They write from now on. The clocks of these CPUs interrupt others between drawing and writing.
    pub fn start(&mut self, cpus: impl Iterator<Item = u32>) -> io::Result<()> {
        for program in &self.on_syscall {
            self.attached.push(program.attach_raw_tracepoint("sys_enter")?);
        }
        for cpu in cpus {
            for program in &self.on_clock {
                match program.attach_clock(cpu, 200_000) {
                    Ok(clock) => self.attached.push(clock),
                    // Offline by now.
                    Err(errno) if errno.raw_os_error() == Some(libc::ENODEV) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(())
    }

    /// No program writes any more, and none is inside.
    pub fn stop(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        self.attached.clear();
        Fence::Map.open()?.wait()?;
        Ok(())
    }

    pub fn outputs(&self, cpu: u32) -> io::Result<Outputs> {
        let count = |offset| self.own.lookup_u64(cpu, offset);
        Ok(Outputs { drawn: count(0)?, written: count(8)?, no_space: count(16)?, refused: count(24)? })
    }

    pub fn all(&self) -> io::Result<Vec<Outputs>> {
        (0..load::slots()).map(|cpu| self.outputs(cpu)).collect()
    }

    /// Numbers drawn from the machine's counter.
    pub fn drawn(&self) -> io::Result<u64> {
        self.machine.lookup_u64(0, 0)
    }
}

/// Enters its epoch, draws a number of the whole machine, the next of its CPU and the time, works, outputs `u64
/// machine, u64 own, u64 time`, and counts what the helper returned. Leaves last.
fn program(
    kind: bpf::Kind,
    process: u32,
    delay: u32,
    [events, machine, own, epochs]: [&bpf::Map; 4],
) -> io::Result<bpf::Program> {
    use Reg::{R0, R1, R2, R6, R7, R9, R10};
    let mut asm = bpf::Asm::new();
    asm.mov(R6, R1);
    if let bpf::Kind::RawTracepoint = kind {
        asm.load(R1, R6, 8).only_if(R1, libc::SYS_getppid as i32).only_process(process);
    }
    asm.mov_i(R1, 0).store(R10, -8, R1).cpu().store_u32(R10, -8, R0).element(own, -8).mov(R7, R0);
    asm.enter(epochs);
    asm.ktime().store(R10, -8, R0);
    asm.mov_i(R1, 1).map_value(R2, machine, 0).fetch_add(R2, 0, R1).store(R10, -24, R1);
    asm.mov_i(R1, 1).fetch_add(R7, 0, R1).store(R10, -16, R1);
    if delay > 0 {
        asm.repeat(R9, delay, |asm| {
            asm.ktime();
        });
    }
    asm.output(R6, events, -24, 24).mov_i(R1, 1);
    asm.when(R0, 0, |asm| asm.fetch_add(R7, 8, R1));
    asm.when(R0, -libc::ENOSPC, |asm| asm.fetch_add(R7, 16, R1));
    asm.unless(R0, 0, |asm| asm.unless(R0, -libc::ENOSPC, |asm| asm.fetch_add(R7, 24, R1)));
    asm.leave().mov_i(R0, 0).exit();
    bpf::Program::load(kind, &asm)
}

/// Reserves in the BPF ring buffer of its CPU, draws there the next number of its CPU, the time and a number of the
/// whole machine, works, submits the same three numbers as [`program`], and counts. Where there is no room, a number of
/// both is drawn and gone.
fn reserving(
    kind: bpf::Kind,
    process: u32,
    delay: u32,
    buffers: &Buffers,
    [machine, own]: [&bpf::Map; 2],
) -> io::Result<bpf::Program> {
    use Reg::{R0, R1, R2, R6, R7, R8, R10};
    let mut asm = bpf::Asm::new();
    asm.mov(R6, R1);
    if let bpf::Kind::RawTracepoint = kind {
        asm.load(R1, R6, 8).only_if(R1, libc::SYS_getppid as i32).only_process(process);
    }
    asm.mov_i(R1, 0).store(R10, -8, R1).cpu().store_u32(R10, -8, R0).element(own, -8).mov(R7, R0);
    asm.ring(&buffers.map).reserve(24, |asm| {
        asm.mov_i(R1, 1).fetch_add(R7, 0, R1).mov_i(R1, 1).fetch_add(R7, 16, R1);
        asm.mov_i(R1, 1).map_value(R2, machine, 0).fetch_add(R2, 0, R1);
        asm.count(&buffers.failures).mov_i(R0, 0).exit()
    });
    // This locked instruction orders the reservation before the time.
    asm.mov_i(R1, 1).fetch_add(R7, 0, R1).store(R8, 8, R1);
    asm.ktime().store(R8, 16, R0);
    asm.mov_i(R1, 1).map_value(R2, machine, 0).fetch_add(R2, 0, R1).store(R8, 0, R1);
    if delay > 0 {
        asm.repeat(Reg::R9, delay, |asm| {
            asm.ktime();
        });
    }
    asm.submit(0).mov_i(R1, 1).fetch_add(R7, 8, R1);
    asm.mov_i(R0, 0).exit();
    bpf::Program::load(kind, &asm)
}
