//! A BPF program loaded and attached by libbpf-rs, its output read by perfweave in proven order.

#[path = "../../common.rs"]
mod common;

use libbpf_rs::{MapCore, ObjectBuilder};
use perfweave::Rings;
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    common::main(run)
}

fn run(options: &common::Options) -> Result<bool, Box<dyn Error>> {
    // libbpf loads the program and makes its map.
    let object = ObjectBuilder::default().open_memory(common::OBJECT)?.load()?;
    let events = object.maps().find(|map| map.name() == "EVENTS").ok_or("no map EVENTS")?;

    // perfweave takes the map as it is, in place of libbpf's PerfBuffer.
    let rings = Rings::options().bpf_output(&events).bytes(4 << 20).open()?;

    // libbpf attaches the program, now that there is where to write. Dropping the link would detach it.
    let program = object.progs_mut().find(|program| program.name() == "on_switch").ok_or("no program on_switch")?;
    let _link = program.attach()?;

    common::read(rings, options)
}
