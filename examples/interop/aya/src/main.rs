//! A BPF program loaded and attached by aya, its output read by perfweave in proven order.

#[path = "../../common.rs"]
mod common;

use aya::maps::Map;
use aya::programs::BtfTracePoint;
use aya::{Btf, Ebpf};
use perfweave::{Hold, Order, Rings};
use perfweave_proofs::Epochs;
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    common::main(run)
}

fn run(options: &common::Options) -> Result<bool, Box<dyn Error>> {
    // aya loads the program and makes its map.
    let mut ebpf = Ebpf::load(common::OBJECT)?;
    if options.buffer {
        attach(&mut ebpf, "on_switch_reserve")?;
        let Some(Map::RingBuf(buffer)) = ebpf.map("BUFFER") else { return Err("no ring buffer BUFFER".into()) };
        let Some(Map::PerCpuArray(failures)) = ebpf.map("FAILURES") else { return Err("no array FAILURES".into()) };
        // perfweave takes the map as it is, in place of aya's RingBuf.
        return common::read_buffer(buffer.fd(), failures.fd(), options);
    }
    let Some(Map::PerfEventArray(events)) = ebpf.map("EVENTS") else { return Err("no perf event array EVENTS".into()) };

    // perfweave takes the map as it is, in place of aya's PerfEventArray and its buffers.
    let rings = Rings::options().bpf_output(events.fd()).bytes(4 << 20).open()?;
    // And the map in which the program says when it is inside.
    let Some(Map::Array(epochs)) = ebpf.map("EPOCHS") else { return Err("no array EPOCHS".into()) };
    let hold = Hold::Fence(Epochs::open(epochs.fd())?.fence());

    // aya attaches the program, now that there is where to write.
    attach(&mut ebpf, "on_switch")?;

    // All defaults: the kernel's timestamps.
    common::read(rings, Order::new(), hold, options)
}

fn attach(ebpf: &mut Ebpf, name: &str) -> Result<(), Box<dyn Error>> {
    let program: &mut BtfTracePoint = ebpf.program_mut(name).ok_or("no such program")?.try_into()?;
    program.load("sched_switch", &Btf::from_sys_fs()?)?;
    program.attach()?;
    Ok(())
}
