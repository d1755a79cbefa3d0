//! Tools of bcc that write into a BPF ring buffer, as they are: read by perfweave and by libbpf, side by side.
//!
//! ```text
//! perfweave-interop-bcc opensnoop.bpf.o filelife.bpf.o mountsnoop.bpf.o
//! ```
//!
//! Each argument is an object that clang has compiled from one of bcc's libbpf-tools, whose ring buffer is the map
//! `events` (`compat.bpf.h`). It is loaded twice, with maps of its own each time. libbpf reads one of them, and
//! perfweave the other.
//!
//! The load opens, mounts in vain and deletes a file with a number in its name, now on one CPU, now on another. Both
//! readers have to find each number once, and perfweave has to yield them in the order of the numbers: these tools
//! submit no time, so the number is the key. It is drawn before the reservation, so a kernel fence proves the order.

use libbpf_rs::{MapCore, Object, ObjectBuilder, RingBufferBuilder};
use perfweave::{Clock, Hold, Item, Key, Layout, Order, Reader, Ring, Rings};
use perfweave_support::load;
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

const FILES: u64 = 300;
/// What the names begin with.
const NAME: &str = "perfweave-interop-";

/// The tools, and where in their `struct event` the name of the file lies.
const TOOLS: [(&str, usize); 3] = [("opensnoop", 64), ("filelife", 0), ("mountsnoop", 64)];

fn main() -> ExitCode {
    let objects: Vec<String> = env::args().skip(1).collect();
    if objects.is_empty() {
        eprintln!("SKIPPED: no objects of bcc's libbpf-tools were given");
    }
    let mut failed = false;
    for object in objects {
        match compare(&object) {
            Ok(said) => println!("{object}: {said}"),
            Err(error) => {
                eprintln!("{object}: {error}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn compare(path: &str) -> Result<String, Box<dyn Error>> {
    let file = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (_, at) = TOOLS.into_iter().find(|(tool, _)| file.starts_with(tool)).ok_or("not one of the known tools")?;
    let load = || ObjectBuilder::default().open_file(path)?.load();
    let (theirs, ours) = (load()?, load()?);
    let events = |object| events(object).ok_or("no ring buffer called events");

    let found = RefCell::new(Vec::new());
    let their_events = events(&theirs)?;
    let mut builder = RingBufferBuilder::new();
    builder.add(&their_events, |bytes: &[u8]| {
        found.borrow_mut().extend(number(bytes, at).map(|number| (number, bytes.len())));
        0
    })?;
    let libbpf = builder.build()?;

    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: nobody else reads this map.
    for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(events(&ours)?) }? {
        rings.add(cpu, ring, Layout::RING_BUFFER);
    }
    let key = Key::Fn(Box::new(move |record| number(&record.payload()?.to_cow(), at)));
    let mut reader = Reader::new(rings, Order::new().key(key).hold(Hold::FENCE))?;
    let mut yielded = Vec::new();

    let links: Vec<_> = [&theirs, &ours].into_iter().flat_map(attach).collect();
    let cpus = load::online();
    for number in 0..FILES {
        load::pinned(cpus[number as usize % cpus.len()], || touch(number))?;
        libbpf.consume()?;
        while take(&mut reader, at, Duration::ZERO, &mut yielded)? {}
    }
    drop(links);
    libbpf.consume()?;
    reader.handle().flush()?;
    while take(&mut reader, at, Duration::from_secs(60), &mut yielded)? {}

    let (late, theirs) = (reader.status().total().late, found.take());
    let in_order = |numbers: &[(u64, usize)]| numbers.is_sorted_by_key(|(number, _)| *number);
    let said = format!("{} events by libbpf, {} by perfweave, {late} late", theirs.len(), yielded.len());
    let mut sorted = theirs.clone();
    sorted.sort_unstable();
    let whole = (0..FILES).all(|number| yielded.iter().any(|(other, _)| *other == number));
    if whole && late == 0 && in_order(&yielded) && yielded == sorted { Ok(said) } else { Err(said.into()) }
}

fn events(object: &Object) -> Option<impl MapCore> {
    object.maps().find(|map| map.name() == "events")
}

/// Attaches what can be attached: some of bcc's programs are for other kernels.
fn attach(object: &Object) -> Vec<libbpf_rs::Link> {
    object.progs_mut().filter_map(|program| program.attach().ok()).collect()
}

/// Opens, mounts in vain and deletes a file.
fn touch(number: u64) -> std::io::Result<()> {
    let path = env::temp_dir().join(format!("{NAME}{number}"));
    fs::write(&path, "")?;
    let source = CString::new(path.as_os_str().as_encoded_bytes())?;
    let (nowhere, none) = (c"/no/such/directory", c"none");
    // SAFETY: strings that live until the call returns.
    unsafe { libc::mount(source.as_ptr(), nowhere.as_ptr(), none.as_ptr(), 0, std::ptr::null()) };
    fs::remove_file(&path)
}

/// Takes one event, if there is one before the time is over. False too at the end of a flush.
fn take(reader: &mut Reader, at: usize, time: Duration, into: &mut Vec<(u64, usize)>) -> Result<bool, Box<dyn Error>> {
    let Some(event) = reader.next_timeout(time)? else { return Ok(false) };
    if let Some(payload) = event.record().and_then(|record| record.payload()) {
        into.extend(number(&payload.to_cow(), at).map(|number| (number, payload.len())));
    }
    Ok(!matches!(event.item(), Item::Flushed { .. }))
}

/// The number in the name of a file that this process touched, if this is the string at an offset of a record. Behind
/// strings the kernel leaves bytes of older records.
fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let name = CStr::from_bytes_until_nul(bytes.get(at..)?).ok()?.to_str().ok()?;
    name.rsplit('/').next()?.strip_prefix(NAME)?.parse().ok()
}
