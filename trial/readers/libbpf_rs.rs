//! A reader on libbpf-rs as its documentation has it, of a map that is pinned: `reader-libbpf-rs MAP PAGES`.

use libbpf_rs::{MapHandle, PerfBufferBuilder};
use std::error::Error;
use std::io::Write;
use std::time::Duration;
use std::{env, io};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args().skip(1);
    let (map, pages) =
        (words.next().ok_or("reader-libbpf-rs MAP PAGES")?, words.next().ok_or("reader-libbpf-rs MAP PAGES")?.parse()?);
    let map = MapHandle::from_pinned_path(map)?;
    let events = PerfBufferBuilder::new(&map)
        .pages(pages)
        .sample_cb(|_, bytes: &[u8]| print(bytes))
        .lost_cb(|cpu, count| println!("lost {count} on CPU {cpu}"))
        .build()?;
    println!("ready");
    loop {
        events.poll(Duration::from_millis(100))?;
        io::stdout().flush()?;
    }
}

fn print(bytes: &[u8]) {
    let number =
        |at: usize| bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes);
    println!("ticket {} ns {} number {} cpu {}", number(0), number(8), number(16), number(24) as u32);
}
