//! A BPF program loaded and attached by libbpf-rs, its output read by perfweave in proven order.

#[path = "../../common.rs"]
mod common;

use libbpf_rs::{MapCore, ObjectBuilder};
use perfweave::{Hold, Rings};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    common::main(run)
}

fn run(options: &common::Options) -> Result<bool, Box<dyn Error>> {
    // libbpf loads the program and makes its map.
    let object = ObjectBuilder::default().open_memory(common::OBJECT)?.load()?;
    let map = |name| object.maps().find(|map| map.name() == name).ok_or_else(|| format!("no map {name}"));
    let (rings, hold) = if options.ring_buffer {
        // perfweave takes the map as it is. It replaces libbpf's RingBuffer.
        common::ring_buffer(&map("RING")?, &map("FAILURES")?)?
    } else {
        // The same instead of libbpf's PerfBuffer, and the map in which the program marks when it is inside.
        (Rings::options().bpf_output(&map("EVENTS")?).bytes(4 << 20).open()?, Hold::epochs(&map("EPOCHS")?)?)
    };

    // libbpf attaches the program after the rings are open. Dropping the link would detach it.
    let name = if options.ring_buffer { "on_switch_reserved" } else { "on_switch" };
    let program = object.progs_mut().find(|program| program.name() == name).ok_or("no such program")?;
    let _link = program.attach()?;

    common::read(rings, hold, options)
}
