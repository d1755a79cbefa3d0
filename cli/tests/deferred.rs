//! Call chains whose program's part comes later, in a record of its own (Linux 6.19, `--call-graph fp,defer`).

mod support;

use serde_json::{Value, json};
use std::fs::{self, File};
use std::process::Output;
use support::{Place, objects, perfweave, recorded_while};

const KERNEL: u64 = 0xffff_ffff_8100_0010;
/// Markers of a chain: what follows is the kernel's; the number of the record that has the program's part.
const OF_KERNEL: u64 = 0u64.wrapping_sub(128);
const DEFERRED: u64 = 0u64.wrapping_sub(640);
/// `misc`: in the kernel, in a program.
const IN_KERNEL: u16 = 1;
const IN_PROGRAM: u16 = 2;
/// Addresses in two files.
const INNER: u64 = 0x40_0000;
const OUTER: u64 = 0x50_0000;
/// Of two events.
const CLOCK: u64 = 11;
const FAULTS: u64 = 12;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &(8 + body.len() as u16).to_ne_bytes(), body].concat()
}

/// A thread of process 70.
fn who(tid: u32) -> [u8; 8] {
    [70, tid].map(u32::to_ne_bytes).concat().try_into().unwrap()
}

/// An event: PERF_TYPE_SOFTWARE, the size of PERF_ATTR_SIZE_VER0, IDENTIFIER, IP, TID, TIME and CALLCHAIN,
/// `sample_id_all` and `defer_callchain`.
fn event(config: u64, id: u64) -> Vec<u8> {
    let fields = 1 << 16 | 1 | 1 << 1 | 1 << 2 | 1 << 5;
    let attr =
        [&1u32.to_ne_bytes()[..], &64u32.to_ne_bytes(), &words(&[config, 1, fields, 0, 1 << 18 | 1 << 38, 0, 0, id])];
    record(64, 0, &attr.concat())
}

/// What other records than samples have at their end.
fn at(tid: u32, time: u64) -> Vec<u8> {
    [&who(tid)[..], &words(&[time, CLOCK])].concat()
}

fn sample(id: u64, tid: u32, time: u64, misc: u16, ip: u64, chain: &[u64]) -> Vec<u8> {
    let fields = [&words(&[id, ip])[..], &who(tid), &words(&[time, chain.len() as u64]), &words(chain)];
    record(9, misc, &fields.concat())
}

/// A sample in the kernel.
fn in_kernel(id: u64, tid: u32, time: u64, cookie: u64) -> Vec<u8> {
    sample(id, tid, time, IN_KERNEL, KERNEL, &[OF_KERNEL, KERNEL, DEFERRED, cookie])
}

/// The record with a program's part.
fn part(tid: u32, time: u64, cookie: u64, addresses: &[u64]) -> Vec<u8> {
    record(22, IN_PROGRAM, &[words(&[cookie, addresses.len() as u64]), words(addresses), at(tid, time)].concat())
}

fn name(tid: u32, name: &[u8; 8], is_exec: bool, time: u64) -> Vec<u8> {
    record(3, u16::from(is_exec) << 13, &[&who(tid)[..], name, &at(tid, time)].concat())
}

fn maps(address: u64, path: &[u8; 16]) -> Vec<u8> {
    record(1, IN_PROGRAM, &[&who(70)[..], &words(&[address, 0x1000, 0]), path, &at(70, 3)].concat())
}

/// Two threads by turns.
fn recording() -> Vec<u8> {
    [
        [&b"PERFILE2"[..], &words(&[16])].concat(),
        event(0, CLOCK),
        event(2, FAULTS),
        name(70, b"work\0\0\0\0", false, 1),
        name(71, b"side\0\0\0\0", false, 2),
        maps(INNER, b"/nowhere/inner\0\0"),
        maps(OUTER, b"/nowhere/outer\0\0"),
        // Of two events, while another thread has the same number.
        in_kernel(CLOCK, 70, 10, 5),
        in_kernel(FAULTS, 70, 11, 5),
        in_kernel(CLOCK, 71, 12, 5),
        part(70, 13, 5, &[INNER + 0x10, OUTER + 0x20]),
        part(71, 14, 5, &[OUTER + 0x30]),
        // Its record was lost.
        in_kernel(CLOCK, 70, 15, 7),
        // In the program: its place is the first of what comes.
        sample(CLOCK, 71, 16, IN_PROGRAM, INNER + 0x40, &[DEFERRED, 13]),
        part(71, 17, 13, &[INNER + 0x40, OUTER + 0x50]),
        // In code that a runtime has compiled.
        in_kernel(CLOCK, 70, 18, 9),
        part(70, 19, 9, &[0x60_0010]),
        // It returns into another program.
        in_kernel(CLOCK, 70, 20, 15),
        name(70, b"other\0\0\0", true, 21),
        part(70, 22, 15, &[INNER + 0x60]),
    ]
    .concat()
}

/// What a command prints, and what it says of it.
#[track_caller]
fn ran(args: &[&str]) -> [String; 2] {
    let Output { status, stdout, stderr } = perfweave(args).output().unwrap();
    let [out, said] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(status.success(), "{args:?}: {said}");
    [out, said]
}

fn place() -> (Place, String) {
    let place = Place::new();
    let file = place.file("perf.data");
    fs::write(&file, recording()).unwrap();
    fs::write(place.file("perf-70.map"), "600000 100 compiled\n").unwrap();
    (place, file)
}

const FOLDED: &str = "\
side;[outer];[inner] 1
side;[outer];[kernel] 1
work;[outer];[inner];[kernel] 2
work;[kernel] 2
work;compiled;[kernel] 1
";

/// What counts stacks.
#[test]
fn stacks_have_their_programs_part() {
    let (_place, file) = place();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    let [folded, said] = ran(&["convert", "--folded", &file]);
    assert_eq!(lines(&folded), lines(FOLDED));
    assert!(said.contains("2 of 7 stacks whose program's part comes later lack it: "), "{said}");
    // Beside a pipe there is no map.
    let output = perfweave(&["convert", "--folded", "-"]).stdin(File::open(&file).unwrap()).output().unwrap();
    let piped = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines(&piped), lines(&FOLDED.replace("compiled", "[unknown]")));
    let [profile, said] = ran(&["profile", "-i", &file]);
    let expected = FOLDED.replace("work;", "work:70;").replace("side;", "work:70;").replace("[kernel] 2", "[kernel] 1");
    let expected = expected.replace("work:70;[kernel] 1", "work:70;[kernel] 2");
    assert_eq!(lines(&profile), lines(&expected));
    assert!(said.contains("2 of 6 stacks whose program's part comes later lack it: "), "{said}");
}

/// What shows each event.
#[test]
fn events_have_their_programs_part() {
    let (_place, file) = place();
    let objects = objects(&["convert", "--json", &file]);
    let deferred = |time: u64| {
        let of_time = |object: &&Value| object["time"] == time;
        objects.iter().find(of_time).unwrap().get("deferred").cloned()
    };
    assert_eq!([10, 11].map(deferred), [Some(json!(["0x400010", "0x500020"])), Some(json!(["0x400010", "0x500020"]))]);
    assert_eq!(
        [12, 15, 16].map(deferred),
        [Some(json!(["0x500030"])), Some(Value::Null), Some(json!(["0x400040", "0x500050"]))]
    );
    assert_eq!([20, 13].map(deferred), [Some(Value::Null), None]);
    let [text, _] = ran(&["convert", "--text", &file]);
    let own: Vec<_> = text.lines().filter(|line| line.contains("CALLCHAIN_DEFERRED: ")).collect();
    assert!(own.len() == 5 && own[0].ends_with("CALLCHAIN_DEFERRED: cookie=0x5 0x400010 0x500020"), "{own:?}");
    for format in ["--html", "--firefox"] {
        let output = perfweave(&["convert", format, &file]).output().unwrap();
        let (page, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // Not every build has all formats.
        let is_there = !said.contains("firefox");
        assert!(output.status.success() == is_there, "{format}: {said}");
        let has = ["inner+0x10", "outer+0x20", "compiled"].map(|name| page.contains(name));
        assert_eq!(has, [is_there; 3], "{format}");
        assert!(said.contains("2 of 7 stacks") == is_there && !page.contains("inner+0x60"), "{format}: {said}");
    }
}

/// Of one time, on both sides of an exec: nothing tells which of them the program's part is of.
#[test]
fn samples_that_nothing_tells_apart_have_no_part() {
    let place = Place::new();
    let file = place.file("perf.data");
    let head = [&b"PERFILE2"[..], &words(&[16])].concat();
    let exec = [in_kernel(CLOCK, 70, 10, 5), name(70, b"other\0\0\0", true, 10), in_kernel(CLOCK, 70, 10, 5)].concat();
    // Two events may sample at one time.
    let both = [in_kernel(CLOCK, 70, 20, 7), in_kernel(FAULTS, 70, 20, 7), part(70, 21, 7, &[OUTER])].concat();
    let all = [head, event(0, CLOCK), event(2, FAULTS), exec, part(70, 11, 5, &[INNER]), both];
    fs::write(&file, all.concat()).unwrap();
    let objects = objects(&["convert", "--json", &file]);
    let parts: Vec<_> = objects.iter().filter_map(|object| object.get("deferred").cloned()).collect();
    let outer = json!(["0x500000"]);
    assert_eq!(parts, [Value::Null, Value::Null, outer.clone(), outer]);
}

/// A shell of many short calls.
const SCRIPT: &str = "dd if=/dev/zero of=/dev/null bs=1k count=2000000 2>/dev/null";

/// Where the kernel has it; an older one is named as too old.
#[test]
fn the_kernel_completes_chains_or_is_too_old() {
    let place = Place::new();
    let file = place.file("perf.data");
    let how = |how| ["-F", "999", "-e", "cpu-clock", "--call-graph", how];
    let Some(()) = recorded_while(&file, &how("fp"), "true") else { return };
    let args = [&["record", "-o", &file][..], &how("fp,defer"), &["--", "sh", "-c", SCRIPT]].concat();
    let output = perfweave(&args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let profile = ["profile", "-F", "999", "--call-graph", "fp,defer", "--", "sh", "-c", SCRIPT];
    if said.contains("a deferred call chain needs 6.19") {
        assert_eq!(output.status.code(), Some(1), "{said}");
        let output = perfweave(&profile).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("a deferred call chain needs 6.19"), "{said}");
        perfweave_support::lacks("call chains that are completed later (Linux 6.19)");
        return;
    }
    assert!(output.status.success(), "{said}");
    let objects = objects(&["convert", "--json", &file]);
    if !objects.iter().any(|object| object["event"] == "CALLCHAIN_DEFERRED") {
        perfweave_support::lacks("call chains that are completed later (CONFIG_UNWIND_USER)");
        return;
    }
    let parts = objects.iter().filter_map(|object| object.get("deferred"));
    let (missing, came): (Vec<_>, Vec<_>) = parts.partition(|part| part.is_null());
    assert!(came.len() > 10 * missing.len() && came.len() > 10, "{} of {} came", came.len(), missing.len());
    // The program is below the kernel.
    let is_whole =
        |line: &str| line.contains("dd;") && line.contains(";[kernel]") || line.contains(';') && line.contains("read");
    let [folded, _] = ran(&["convert", "--folded", &file]);
    let [live, _] = ran(&profile);
    assert!(folded.lines().any(is_whole) && live.lines().any(|line| line.matches(';').count() > 2), "{folded}\n{live}");
}

/// By itself it is neither a depth nor one of `dwarf`.
#[test]
fn it_goes_with_frame_pointers() {
    for how in ["defer", "fp,deferred", "fp,64", "dwarf,defer"] {
        let output = perfweave(&["record", "--call-graph", how, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{how}: {output:?}");
    }
}
