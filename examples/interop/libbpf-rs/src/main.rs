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
    let events = map("EVENTS")?;

    // perfweave takes the map as it is. It replaces libbpf's PerfBuffer.
    let rings = Rings::options().bpf_output(&events).bytes(4 << 20).open()?;
    // The map in which the program marks when it is inside.
    let epochs = map("EPOCHS")?;
    let hold = Hold::epochs(&epochs)?;

    // libbpf attaches the program after the rings are open. Dropping the link would detach it.
    let program = object.progs_mut().find(|program| program.name() == "on_switch").ok_or("no program on_switch")?;
    let _link = program.attach()?;

    common::read(rings, hold, options)
}
