//! `perfweave read`: pinned maps of running programs.

mod common;

use common::{Run, number};
use perfweave_support::bpf::{self, Map};
use perfweave_support::ring_buffer::{self, Reserving, Turns, Way};
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

    // What was read is gone: the next reader goes on behind it.
    load::getgid();
    let said = Run::new(&args).args(["--seconds", "0.1"]).succeeds();
    assert!(said.lines().count() == 1 && said.contains(&format!("number={all} kind=7")), "{said}");
}

/// Rings of a perf event array exist only while somebody reads, so the load goes on until the reader has enough and closes the pipe.
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
