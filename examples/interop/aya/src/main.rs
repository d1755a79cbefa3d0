//! A BPF program loaded and attached by aya, its output read by perfweave in proven order.

#[path = "../../common.rs"]
mod common;

use aya::maps::Map;
use aya::programs::BtfTracePoint;
use aya::{Btf, Ebpf};
use perfweave::{Hold, Rings};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    common::main(run)
}

fn run(options: &common::Options) -> Result<bool, Box<dyn Error>> {
    // aya loads the program and makes its map.
    let mut ebpf = Ebpf::load(common::OBJECT)?;
    if options.ring_buffer {
        // perfweave takes the ring buffer as it is. It replaces aya's RingBuf.
        let Some(Map::RingBuf(ring)) = ebpf.map("RING") else { return Err("no ring buffer RING".into()) };
        let Some(Map::PerCpuArray(failures)) = ebpf.map("FAILURES") else { return Err("no array FAILURES".into()) };
        let (rings, hold) = common::ring_buffer(ring.fd(), failures.fd())?;
        attach(&mut ebpf, "on_switch_reserved")?;
        return common::read(rings, hold, options);
    }

    // perfweave takes the map as it is. It replaces aya's PerfEventArray and its buffers.
    let Some(Map::PerfEventArray(events)) = ebpf.map("EVENTS") else { return Err("no perf event array EVENTS".into()) };
    let rings = Rings::options().bpf_output(events.fd()).bytes(4 << 20).open()?;
    // The map in which the program marks when it is inside.
    let Some(Map::Array(epochs)) = ebpf.map("EPOCHS") else { return Err("no array EPOCHS".into()) };
    let hold = Hold::epochs(epochs.fd())?;

    // aya attaches the program after the rings are open.
    attach(&mut ebpf, "on_switch")?;

    common::read(rings, hold, options)
}

fn attach(ebpf: &mut Ebpf, name: &str) -> Result<(), Box<dyn Error>> {
    let program: &mut BtfTracePoint = ebpf.program_mut(name).ok_or("no such program")?.try_into()?;
    program.load("sched_switch", &Btf::from_sys_fs()?)?;
    program.attach()?;
    Ok(())
}
