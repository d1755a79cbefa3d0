//! `perfweave read`: pinned maps of running programs.

mod common;

use common::{Run, number};
use perfweave_support::bpf::{self, Map};
use perfweave_support::ring_buffer::{self, Reserving, Turns, Way};
use perfweave_support::sleeper::Sleeper;
use perfweave_support::{kernel, load, pin};
use std::path::Path;

/// A pinned map in a file system of its own.
fn pinned(map: &Map) -> Option<(pin::BpfFs, String)> {
    let mount = kernel("mount a BPF file system", pin::BpfFs::mount())?;
    let path = mount.path().join("events");
    pin::pin(map, &path).expect("a map can be pinned");
    Some((mount, path.to_str().expect("a path").to_string()))
}

/// The fields that the programs of the tests write.
const FORMAT: &str = "u64 time, u64 number, u32 kind, u32 cpu";

#[test]
fn a_ring_buffer_is_read_in_order_with_its_fields() {
    let Some(rings) = kernel("a BPF ring buffer", Map::ring_buffer(1 << 20)) else { return };
    let (counter, failures) = (ring_buffer::counter().unwrap(), Map::counts().unwrap());
    let way = Reserving { rings: &rings, counter: &counter, failures: &failures, way: Way::Inside, discard: None };
    let program = way.on_syscall(libc::SYS_getgid, 7, Turns::default()).unwrap();
    let _link = program.attach_raw_tracepoint("sys_enter").unwrap();
    let Some((_mount, path)) = pinned(&rings) else { return };
    load::online().into_iter().for_each(|cpu| load::pinned(cpu, || (0..500).for_each(|_| load::getgid())));
    let all = 500 * load::online().len() as u64;

    let args = ["read", "--map", &path, "--format", FORMAT, "--key", "time", "--hold", "reserved"];
    let said = Run::new(&args).args(["--json", "--seconds", "0.1"]).succeeds();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("\"fields\"")).collect();
    assert_eq!(lines.len() as u64, all);
    let keys: Vec<u64> = lines.iter().map(|line| number(line, "time")).collect();
    assert!(keys.is_sorted() && lines.iter().all(|line| line.contains("\"proven\"") && number(line, "kind") == 7));
    let summary = said.lines().last().unwrap();
    assert_eq!((number(summary, "records"), number(summary, "late"), number(summary, "lost")), (all, 0, 0));

    // The map says nothing of when it began.
    assert!(Run::new(&args).args(["--time", "start"]).fails(1).contains("--time monotonic"));

    // What was read is gone: the next reader goes on behind it.
    load::getgid();
    let said = Run::new(&args).args(["--seconds", "0.1"]).succeeds();
    assert!(said.lines().count() == 1 && said.contains(&format!("number={all} kind=7")), "{said}");
}

/// BTF as compilers write it: `struct btf_header` and so on of include/uapi/linux/btf.h.
#[derive(Default)]
struct Btf {
    types: Vec<u32>,
    strings: Vec<u8>,
    count: u32,
}

const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;

impl Btf {
    fn name(&mut self, name: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        let at = if name.is_empty() { 0 } else { self.strings.len() as u32 };
        self.strings.extend(name.bytes().filter(|_| at > 0).chain((at > 0).then_some(0)));
        at
    }

    /// A type, with what follows it; its number.
    fn add(&mut self, name: &str, kind: u32, len: usize, size_or_type: u32, rest: &[u32]) -> u32 {
        let name = self.name(name);
        self.types.extend([name, kind << 24 | len as u32, size_or_type]);
        self.types.extend(rest);
        self.count += 1;
        self.count
    }

    /// A struct of members: names, types and offsets in bits.
    fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let members: Vec<_> =
            members.iter().flat_map(|(name, kind, offset)| [self.name(name), *kind, *offset]).collect();
        self.add(name, STRUCT, members.len() / 3, size, &members)
    }

    fn bytes(&self) -> Vec<u8> {
        let types = 4 * self.types.len() as u32;
        let header = [0x01_eb9f, 24, 0, types, types, self.strings.len() as u32];
        let words = header.iter().chain(&self.types).flat_map(|word| word.to_le_bytes());
        words.chain(self.strings.iter().copied()).collect()
    }
}

#[test]
fn fields_come_from_the_type_information_of_an_object_file() {
    let mut btf = Btf::default();
    // Integers have their encoding, their offset and their bits behind them.
    let long = btf.add("unsigned long", INT, 0, 8, &[64]);
    let int = btf.add("int", INT, 0, 4, &[1 << 24 | 32]);
    let char = btf.add("char", INT, 0, 1, &[1 << 24 | 8]);
    let text = btf.add("", ARRAY, 0, 0, &[char, int, 4]);
    let kind = btf.add("kind_t", TYPEDEF, 0, int, &[]);
    let inner = btf.structure("inner", 8, &[("number", long, 0)]);
    let nameless = btf.structure("", 8, &[("kind", kind, 0), ("tail", text, 32)]);
    // Bytes that are no text: those of another name, and texts in an array.
    let byte = btf.add("unsigned char", INT, 0, 1, &[1 << 25 | 8]);
    let address = btf.add("", ARRAY, 0, 0, &[byte, int, 4]);
    let two = btf.add("", ARRAY, 0, 0, &[char, int, 2]);
    let names = btf.add("", ARRAY, 0, 0, &[two, int, 2]);
    let members = [
        ("time", long, 0),
        ("inner", inner, 64),
        ("", nameless, 128),
        ("address", address, 160),
        ("names", names, 160),
    ];
    btf.structure("record", 24, &members);
    btf.structure("unaligned", 8, &[("flag", int, 3)]);
    let itself = btf.count + 1;
    btf.structure("endless", 8, &[("again", itself, 0)]);
    let empty = btf.add("", INT, 0, 0, &[0]);
    btf.structure("empty", 8, &[("none", empty, 0)]);
    let wide = btf.add("wide_t", ENUM, 0, 16, &[]);
    btf.structure("wide", 16, &[("much", wide, 0)]);
    let mut hollow = btf.structure("hollow", 0, &[]);
    for _ in 0..4 {
        let many = btf.add("", ARRAY, 0, 0, &[hollow, int, 65536]);
        hollow = btf.structure("deep", 0, &[("many", many, 0)]);
    }
    let file = std::env::temp_dir().join(format!("perfweave-btf-{}", std::process::id()));
    std::fs::write(&file, btf.bytes()).unwrap();
    let file = file.to_str().unwrap();

    let Some(rings) = kernel("a BPF ring buffer", Map::ring_buffer(1 << 20)) else { return };
    let (counter, failures) = (ring_buffer::counter().unwrap(), Map::counts().unwrap());
    let way = Reserving { rings: &rings, counter: &counter, failures: &failures, way: Way::Inside, discard: None };
    let program = way.on_syscall(libc::SYS_getegid, 7, Turns::default()).unwrap();
    let _link = program.attach_raw_tracepoint("sys_enter").unwrap();
    let Some((_mount, path)) = pinned(&rings) else { return };
    load::pinned(0, || {
        for _ in 0..3 {
            let _ = nix::unistd::getegid();
        }
    });
    let read = |of: &str| Run::new(&["read", "--map", &path, "--btf", file, "--type", of, "--key", "time"]);
    let said = read("record").args(["--hold", "reserved", "--seconds", "0.1"]).succeeds();
    let fields: Vec<_> =
        said.lines().filter_map(|line| line.split_once(" inner.number=")).map(|(_, rest)| rest).collect();
    let expected = ["0", "1", "2"].map(|number| format!("{number} kind=7 tail=\"\" address=0,0,0,0 names=0,0,0,0"));
    assert_eq!(fields, expected, "{said}");
    for (of, why) in [
        ("nothing", "has no struct nothing: there are inner, record, unaligned, endless, empty, wide, hollow, deep"),
        ("unaligned", "flag is a bit field"),
        ("endless", "too deep"),
        ("empty", "none has 0 bytes"),
        ("wide", "much has 16 bytes"),
        ("deep", "too many structs without fields"),
    ] {
        assert!(read(of).fails(1).contains(why), "{of}");
    }
    std::fs::write(file, &btf.bytes()[..60]).unwrap();
    assert!(read("record").fails(1).contains("cannot read BTF from"));
    std::fs::remove_file(file).unwrap();
    assert!(read("record").fails(1).contains("No such file"));
    let device = ["read", "--map", &path, "--btf", "/dev/zero", "--type", "record"];
    assert!(Run::new(&device).fails(1).contains("it is no file, or too large"));
}

/// Rings of a perf event array exist only while somebody reads, so the load goes on until the reader has enough and
/// closes the pipe.
#[test]
fn a_perf_event_array_is_read_until_the_pipe_is_closed() {
    let Some(events) = kernel("a perf event array", Map::perf_event_array(load::slots())) else { return };
    let counter = Map::array(8, 1).unwrap();
    let program = bpf::on_syscall(&events, &counter, libc::SYS_getppid, 3, 0).unwrap();
    let _link = program.attach_raw_tracepoint("sys_enter").unwrap();
    let Some((_mount, path)) = pinned(&events) else { return };
    let load = load::Load::on(&load::online(), |_| load::getppid());
    let said = Run::new(&["read", "--map", &path, "--format", FORMAT]).first_lines(1000);
    load.end();
    let keys: Vec<u64> = said.iter().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(
        keys.len() == 1000 && keys.is_sorted() && said.iter().all(|line| line.contains("kind=3")),
        "{:?}",
        said.last()
    );
}

/// The kernel does not count what a ring buffer refuses. A summary without the programs' counts never says that nothing
/// is missing.
#[test]
fn what_a_ring_buffer_refuses_is_not_called_nothing() {
    let Some(rings) = kernel("a BPF ring buffer", Map::ring_buffer(4096)) else { return };
    let (counter, failures) = (ring_buffer::counter().unwrap(), Map::counts().unwrap());
    let way = Reserving { rings: &rings, counter: &counter, failures: &failures, way: Way::Inside, discard: None };
    let program = way.on_syscall(libc::SYS_geteuid, 7, Turns::default()).unwrap();
    let link = program.attach_raw_tracepoint("sys_enter").unwrap();
    let Some((mount, path)) = pinned(&rings) else { return };
    let counts = mount.path().join("failures");
    pin::pin(&failures, &counts).unwrap();
    let counts = counts.to_str().unwrap();
    load::pinned(0, || (0..500).for_each(|_| _ = nix::unistd::geteuid()));
    assert!(failures.counted().unwrap() > 300, "4 KiB take some hundred");

    let args = ["read", "--map", &path, "--format", FORMAT, "--key", "time", "--hold", "reserved"];
    let said = Run::new(&args).args(["--seconds", "0.1"]).output();
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(
        said.contains("nothing is known to be missing, but a BPF ring buffer counts nothing that it refuses"),
        "{said}"
    );
    assert!(said.contains("--failures"), "{said}");
    load::pinned(0, || (0..500).for_each(|_| _ = nix::unistd::geteuid()));
    let said = Run::new(&args).args(["--json", "--seconds", "0.1"]).succeeds();
    let summary = said.lines().last().unwrap();
    assert!(summary.contains("\"complete\":false") && summary.contains("\"exact\":false"), "{summary}");

    // Counted by the programs. Where nothing fails, nothing is missing.
    let counted = || Run::new(&args).args(["--failures", counts]);
    let said = String::from_utf8(counted().args(["--seconds", "0.1"]).output().stderr).unwrap();
    assert!(said.contains("nothing is missing"), "{said}");
    let load = load::Load::on(&load::online(), |_| _ = nix::unistd::geteuid());
    let said = counted().args(["--json"]).lines_until(|line| line.contains("\"lost\""));
    load.end();
    assert!(number(said.last().unwrap(), "count") > 0, "{said:?}");
    drop(link);
    assert!(Run::new(&args).args(["--failures", &path]).fails(1).contains("BPF_MAP_TYPE_PERCPU_ARRAY"));
    assert!(Run::new(&args).args(["--failures", "/sys/fs/bpf/none"]).fails(1).contains("/sys/fs/bpf/none"));
}

/// A program stays inside its reservation, and the command ends at its time. Nothing is proven before the program
/// commits: the summary says so, and what was committed before stays for the next reader.
#[test]
fn a_reservation_that_is_never_committed_does_not_keep_it() {
    let Some(rings) = kernel("a BPF ring buffer", Map::ring_buffer(1 << 16)) else { return };
    let Some(memory) = kernel("make memory that is waited for", Sleeper::new()) else { return };
    let Some((_mount, path)) = pinned(&rings) else { return };
    let (sleeping, echo) = (ring_buffer::sleeping(&rings).unwrap(), ring_buffer::echo(&rings, 8, 0).unwrap());
    (1..=11).for_each(|number| assert_eq!(echo.run_with(0, &[number]).unwrap(), 0));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| sleeping.run_here(&[memory.address(), 12]).unwrap());
        let asleep = memory.until_asleep();
        let args =
            ["read", "--map", &path, "--format", "u64 n", "--key", "n", "--hold", "reserved", "--seconds", "0.1"];
        let said = Run::new(&args).output();
        let summary = String::from_utf8(said.stderr).unwrap();
        assert!(said.status.success() && said.stdout.is_empty(), "{summary}");
        let why = "not complete: a program has not committed what it reserved in a BPF ring buffer";
        assert!(summary.starts_with("0 events") && summary.contains(why), "{summary}");
        let said = Run::new(&args).args(["--json"]).succeeds();
        assert!(said.contains("\"complete\":false") && said.contains("\"incomplete\":\"a program has"), "{said}");
        drop(asleep);
        assert_eq!(call.join().unwrap(), 0);
        let said = Run::new(&args).output();
        let (lines, summary) = [said.stdout, said.stderr].map(|text| String::from_utf8(text).unwrap()).into();
        assert!(lines.lines().count() == 12 && lines.contains("n=11"), "{lines}");
        assert!(!summary.contains("not complete"), "{summary}");
    });
}

#[test]
fn what_cannot_be_read_says_why() {
    let Some(rings) = kernel("a BPF ring buffer", Map::ring_buffer(1 << 16)) else { return };
    let Some((mount, path)) = pinned(&rings) else { return };
    let array = mount.path().join("array");
    pin::pin(Map::array(8, 1).unwrap(), &array).unwrap();
    let fails = |args: &[&str], says: &[&str]| {
        let said = Run::new(args).args(["--seconds", "0.1"]).fails(1);
        assert!(says.iter().all(|word| said.contains(word)), "{args:?}: {said}");
    };
    fails(&["read", "--map", &path], &["carry no time", "--key ns"]);
    fails(&["read", "--map", &path, "--key", "ns"], &["--format"]);
    fails(&["read", "--map", &path, "--format", "u64 ns", "--key", "when"], &["no field when among ns"]);
    fails(&["read", "--map", array.to_str().unwrap()], &["BPF_MAP_TYPE_ARRAY", "BPF_MAP_TYPE_PERF_EVENT_ARRAY"]);
    fails(&["read", "--map", "/sys/fs/bpf/none"], &["/sys/fs/bpf/none"]);
    assert!(Path::new(&path).exists());
    Run::new(&["read", "--map", &path, "--format", "float x"]).fails(2);
    Run::new(&["read"]).fails(2);
}
