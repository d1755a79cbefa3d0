//! A pinned map of any BPF program, as ordered lines.

#[cfg(feature = "btf")]
pub mod btf;
mod layout;

use crate::args::Common;
use crate::exact::{Exact, hex};
use crate::failure::{Failure, Outcome};
use crate::out::{Out, line};
use crate::session::{Session, Tell, notice, notice_json};
use crate::stamp::{self, By, Stamp};
use aya::maps::MapData;
use layout::{Payload, Shown};
use perfweave::{ANY_CPU, Clock, Event, Key, Layout, Order, Record, Ring, Rings};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Reads a pinned perf event array or BPF ring buffer of any program, as lines in order
///
/// A map that is pinned (`bpftool map pin`, LIBBPF_PIN_BY_NAME) is read as it is: a perf event array, a ring buffer, or
/// a map of ring buffers by CPU. The reader takes what it reads, so no other program may read the map meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The path of the pinned map
    #[arg(short, long, value_name = "PATH")]
    map: PathBuf,
    /// The fields of a record, as C has them
    #[arg(short, long, value_name = "FIELDS")]
    format: Option<Payload>,
    /// The struct of a record, by its name in the type information (BTF) of --btf, instead of --format
    #[cfg(feature = "btf")]
    #[arg(long = "type", value_name = "STRUCT", requires = "btf", conflicts_with = "format")]
    structure: Option<String>,
    /// The BPF object file, program.bpf.o, with the type information; or BTF as it is
    #[cfg(feature = "btf")]
    #[arg(long, value_name = "FILE", requires = "structure")]
    btf: Option<PathBuf>,
    /// The field to order by, a u64. Without it: the kernel's time, which records of ring buffers do not have
    #[arg(short, long, value_name = "FIELD")]
    key: Option<String>,
    /// The pinned map in which the programs count what a ring buffer refuses, because the kernel does not: a
    /// BPF_MAP_TYPE_PERCPU_ARRAY with a u64, as perfweave.bpf.h has it
    #[arg(long, value_name = "PATH")]
    failures: Option<PathBuf>,
    #[command(flatten)]
    time: stamp::Printed,
    #[command(flatten)]
    common: Common,
}

const HELP: &str = "\
Fields are separated by commas or semicolons and lie where a C compiler puts them: u8 to u64, s8 to s64 (also __u32, uint32_t, int, long),
arrays such as char comm[16] and u8 hash[20].

  perfweave read --map /sys/fs/bpf/events --format 'u64 ns, u32 pid, char comm[16]' --key ns
  perfweave read --map /sys/fs/bpf/rb --format 'u64 ns, u32 pid' --key ns --hold reserved --json
  perfweave read --map /sys/fs/bpf/rb --btf program.bpf.o --type event --key ns

The kernel keeps no type for what programs write into these maps, so the object file is asked. A struct that no function and no variable of the program
uses is not in it.

Choose `--hold reserved` only if the program draws the key between bpf_ringbuf_reserve() and bpf_ringbuf_submit().";

/// Why losses are not all counted in a BPF ring buffer, and where the programs count.
const REFUSES: &str = "a BPF ring buffer counts nothing that it refuses (its programs can: --failures)";
const RESERVED: &str = "a program has not committed what it reserved, and nobody knows what lies after that";

pub fn run(args: Args) -> Outcome {
    let format = format(&args)?;
    let key = key(&args, format.as_ref())?;
    let by_time = matches!(key, Key::Time);
    let order = args.common.order().key(key);
    let (mut rings, are_buffers) = rings(&args, &order, by_time)?;
    if let Some(path) = &args.failures {
        let cannot = |error| {
            let error: &dyn std::error::Error = &error;
            let why = error.source().unwrap_or(error);
            Failure::new(format_args!("the map of failures, {}, cannot be opened: {why}", path.display()))
        };
        rings.count_failures(MapData::from_pin(path).map_err(cannot)?.fd())?;
    }
    // A key may be any number. It is a time if the user says so.
    let stamp = args.time.time.map(|_| args.time.stamp(&rings, By::Monotonic, args.common.json)).transpose()?;
    let mut session = Session::begin(rings, order, &args.common, None)?;
    if let Some(stamp) = stamp {
        session.stamped(stamp);
    }
    if are_buffers {
        session.uncounted(if args.failures.is_some() { RESERVED } else { REFUSES });
    }
    let mut lines = Lines { out: Out::new(), format: format.as_ref(), stamp, json: args.common.json };
    session.each(|tell| match tell {
        Tell::Event(event) => lines.event(event),
        Tell::Pause => lines.out.flush(),
    })?;
    session.conclude(&mut lines.out, args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The fields of a record, if they are known.
fn format(args: &Args) -> Result<Option<Payload>, Failure> {
    #[cfg(feature = "btf")]
    if let (Some(path), Some(name)) = (&args.btf, &args.structure) {
        return btf::layout(path, name).map(Some).map_err(Failure::new);
    }
    Ok(args.format.clone())
}

/// What orders the records.
fn key(args: &Args, format: Option<&Payload>) -> Result<Key, Failure> {
    let Some(name) = &args.key else { return Ok(Key::Time) };
    let Some(format) = format else {
        return Err(Failure::hinting(
            "--key names a field",
            "say with --format or --type which fields the records have",
        ));
    };
    let offset = format.offset_of_u64(name).map_err(Failure::new)?;
    Ok(Key::Payload(offset))
}

/// The rings of the map, whatever it is, and whether they are BPF ring buffers.
fn rings(args: &Args, order: &Order, by_time: bool) -> Result<(Rings, bool), Failure> {
    // SAFETY: this process reads the map nowhere else. The help says that no other one may, and a second reader is
    // reported as damage.
    let buffers = unsafe { Ring::adopt_pinned_ring_buffers(&args.map) };
    match buffers {
        Ok(_) if by_time => Err(Failure::hinting(
            format_args!("the records of the BPF ring buffer {} carry no time to order by", args.map.display()),
            "name a field that the program writes: --format 'u64 ns, ...' --key ns",
        )),
        Ok(buffers) => {
            let mut rings = Rings::empty(Clock::Monotonic);
            for (cpu, ring) in buffers {
                rings.add(cpu, ring, Layout::RING_BUFFER);
            }
            Ok((rings, true))
        }
        // It is no ring buffer: if it is no perf event array either, the error of this says what it is.
        Err(_) => {
            let options = order.ring_options().bpf_output_pinned(&args.map);
            Ok((options.bytes(args.common.buffer).open()?, false))
        }
    }
}

/// What is printed, and how.
struct Lines<'a> {
    out: Out,
    format: Option<&'a Payload>,
    stamp: Option<Stamp>,
    json: bool,
}

/// A key, as a time if it is one. A notice may have none.
fn text_of(key: Option<u64>, stamp: Option<Stamp>) -> String {
    match (key, stamp) {
        (key, Some(stamp)) => stamp.text(key),
        (Some(key), None) => key.to_string(),
        (None, None) => "-".into(),
    }
}

impl Lines<'_> {
    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        match (event.record(), self.json) {
            (Some(record), true) => self.object(event, &record),
            (Some(record), false) => self.text(event, &record),
            (None, true) => {
                let object = notice_json(&event.item(), self.number(event));
                object.map_or(Ok(()), |object| line(&mut self.out, format_args!("{object}")))
            }
            (None, false) => {
                let key = self.key(event);
                notice(&event.item()).map_or(Ok(()), |notice| writeln!(self.out, "{key} {notice}"))
            }
        }
    }

    /// The key, as a time if it is one.
    fn key(&self, event: &Event<'_>) -> String {
        text_of(event.key(), self.stamp)
    }

    fn number(&self, event: &Event<'_>) -> Option<u64> {
        let key = event.key()?;
        Some(self.stamp.map_or(key, |stamp| stamp.number(key)))
    }

    fn text(&mut self, event: &Event<'_>, record: &Record<'_>) -> io::Result<()> {
        let mut text = self.key(event);
        // Writing to memory does not fail.
        let _ = match cpu(event) {
            Some(cpu) => write!(text, " CPU {cpu}:"),
            None => write!(text, ":"),
        };
        if event.late_by() > 0 {
            let _ = write!(text, " LATE by {} ns", event.late_by());
        }
        let bytes = record.payload().map(|payload| payload.to_vec()).unwrap_or_default();
        match self.format {
            Some(format) => format.fields(&bytes).for_each(|(name, value)| text += &format!(" {name}={value}")),
            None => bytes.iter().for_each(|byte| text += &format!(" {byte:02x}")),
        }
        line(&mut self.out, format_args!("{text}"))
    }

    fn object(&mut self, event: &Event<'_>, record: &Record<'_>) -> io::Result<()> {
        let bytes = record.payload().map(|payload| payload.to_vec()).unwrap_or_default();
        let mut object = Map::new();
        object.insert("key".into(), self.number(event).into());
        object.insert("cpu".into(), cpu(event).into());
        object.insert("certainty".into(), format!("{:?}", event.certainty()).to_lowercase().into());
        match self.format {
            Some(format) => {
                let mut exact = Exact::default();
                let field = |(name, shown): (&str, Shown)| (name.to_owned(), shown.json(name, &mut exact));
                let fields: Map<_, _> = format.fields(&bytes).map(field).collect();
                object.insert("fields".into(), fields.into());
                exact.put(&mut object);
            }
            None => {
                object.insert("bytes".into(), hex(&bytes).into());
            }
        }
        line(&mut self.out, format_args!("{}", Value::from(object)))
    }
}

/// The CPU, if the ring is that of one CPU or the record says it.
fn cpu(event: &Event<'_>) -> Option<u32> {
    event.cpu().filter(|cpu| *cpu != ANY_CPU)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A notice that has no place in the order, such as that a CPU is traced again, has no key: 0 would be one.
    #[test]
    fn what_has_no_key_says_none() {
        assert_eq!((text_of(Some(0), None), text_of(Some(17), None)), ("0".into(), "17".into()));
        assert_eq!(text_of(None, None), "-");
    }
}
