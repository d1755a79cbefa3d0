//! The writers: BPF programs that draw numbers, wait, write, and count the results.

use perfweave::Fence;
use perfweave_support::bpf::{self, Reg};
use perfweave_support::load;
use std::io;
use std::os::fd::OwnedFd;

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

/// Programs that write when a process calls getppid(2), and in interrupts, and their record.
#[derive(Debug)]
pub struct Writers {
    pub events: bpf::Map,
    /// The words in which they say that they are inside.
    pub epochs: bpf::Map,
    machine: bpf::Map,
    own: bpf::Map,
    on_syscall: bpf::Program,
    on_clock: bpf::Program,
    attached: Vec<OwnedFd>,
}

impl Writers {
    pub fn new(process: u32, delay: u32) -> io::Result<Self> {
        let (events, epochs) = (bpf::Map::perf_event_array(load::slots())?, bpf::Map::epochs(load::slots())?);
        let (machine, own) = (bpf::Map::array(8, 1)?, bpf::Map::array(32, load::slots())?);
        let on_syscall = program(bpf::Kind::RawTracepoint, process, delay, [&events, &machine, &own, &epochs])?;
        let on_clock = program(bpf::Kind::PerfEvent, process, 0, [&events, &machine, &own, &epochs])?;
        Ok(Self { events, epochs, machine, own, on_syscall, on_clock, attached: Vec::new() })
    }

    /// They write from now on. The clocks of these CPUs interrupt others between drawing and writing.
    pub fn start(&mut self, cpus: impl Iterator<Item = u32>) -> io::Result<()> {
        self.attached.push(self.on_syscall.attach_raw_tracepoint("sys_enter")?);
        for cpu in cpus {
            match self.on_clock.attach_clock(cpu, 200_000) {
                Ok(clock) => self.attached.push(clock),
                // Offline by now.
                Err(errno) if errno.raw_os_error() == Some(libc::ENODEV) => {}
                Err(errno) => return Err(errno),
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

/// Enters its epoch, draws a number of the whole machine, the next of its CPU and the time, works, outputs `u64 machine, u64 own, u64
/// time`, and
/// counts what the helper returned. Leaves last.
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
