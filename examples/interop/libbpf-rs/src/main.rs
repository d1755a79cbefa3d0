//! A BPF program loaded and attached by libbpf-rs, its output read by perfweave in proven order.

#[path = "../../common.rs"]
mod common;

use libbpf_rs::{MapCore, ObjectBuilder};
use perfweave::{Hold, Order, Rings};
use perfweave_proofs::Epochs;
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    common::main(run)
}

fn run(options: &common::Options) -> Result<bool, Box<dyn Error>> {
    // libbpf loads the program and makes its map.
    let object = ObjectBuilder::default().open_memory(common::OBJECT)?.load()?;
    let map = |name| object.maps().find(|map| map.name() == name).ok_or_else(|| format!("no map {name}"));
    let program = |name| object.progs_mut().find(|program| program.name() == name).ok_or("no such program");
    if options.buffer {
        let _link = program("on_switch_reserve")?.attach()?;
        // perfweave takes the map as it is, in place of libbpf's RingBuffer.
        return common::read_buffer(map("BUFFER")?, map("FAILURES")?, options);
    }
    let events = map("EVENTS")?;

    // perfweave takes the map as it is, in place of libbpf's PerfBuffer.
    let rings = Rings::options().bpf_output(&events).bytes(4 << 20).open()?;
    // And the map in which the program says when it is inside.
    let epochs = map("EPOCHS")?;
    let hold = Hold::Fence(Epochs::open(&epochs)?.fence());

    // libbpf attaches the program, now that there is where to write. Dropping the link would detach it.
    let _link = program("on_switch")?.attach()?;

    // All defaults: the kernel's timestamps.
    common::read(rings, Order::new(), hold, options)
}
