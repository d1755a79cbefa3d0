//! `perfweave convert` takes at most 1.5 times the recording in memory, beside what a small recording takes.
//!
//! What is measured is the largest resident set that any run of the program has had so far (`ru_maxrss` of
//! `RUSAGE_CHILDREN`), less that of a recording of a few events. It counts the heap and all that is mapped. Each test of
//! this file would be counted in the other, so there is one.

mod support;

use nix::sys::resource::{UsageWho, getrusage};
use perfweave::{Clock, Layout, Order, Reader, Recording};
use perfweave_perf_data::Writer;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use support::{Place, perfweave};

const FORMATS: [&str; 6] = ["--text", "--json", "--folded", "--html", "--perfetto", "--firefox"];

/// IDENTIFIER, TID, TIME, CPU, CALLCHAIN and RAW.
const SAMPLE: u64 = 1 << 16 | 1 << 1 | 1 << 2 | 1 << 7 | 1 << 5 | 1 << 10;

/// A field of a tracepoint, its offset and its size.
type Field = (&'static str, usize, usize);

/// Tracepoints: their names, and their fields behind the common ones.
const EVENTS: [(&str, &[Field]); 3] = [
    (
        "sched:sched_switch",
        &[
            ("char prev_comm[16]", 8, 16),
            ("pid_t prev_pid", 24, 4),
            ("int prev_prio", 28, 4),
            ("long prev_state", 32, 8),
            ("char next_comm[16]", 40, 16),
            ("pid_t next_pid", 56, 4),
            ("int next_prio", 60, 4),
        ],
    ),
    (
        "sched:sched_waking",
        &[("char comm[16]", 8, 16), ("pid_t pid", 24, 4), ("int prio", 28, 4), ("int target_cpu", 32, 4)],
    ),
    ("raw_syscalls:sys_enter", &[("long id", 8, 8), ("unsigned long args[6]", 16, 48)]),
];

fn format(index: usize) -> String {
    let (name, fields) = EVENTS[index];
    let common = [
        ("unsigned short common_type", 0, 2),
        ("unsigned char common_flags", 2, 1),
        ("unsigned char common_preempt_count", 3, 1),
        ("int common_pid", 4, 4),
    ];
    let name = name.split_once(':').unwrap().1;
    let mut text = format!("name: {name}\nID: {}\nformat:\n", index + 1);
    for (field, offset, size) in common.iter().chain(fields) {
        let is_signed = u8::from(!field.starts_with("unsigned"));
        text += &format!("\tfield:{field};\toffset:{offset};\tsize:{size};\tsigned:{is_signed};\n");
    }
    let first = fields[0].0.rsplit(' ').next().unwrap().split('[').next().unwrap();
    text + &format!("\nprint fmt: \"{first}\", 0\n")
}

fn sample(event: usize, time: u64, tid: u32, chain: &[u64], fields: &[&[u8]]) -> Vec<u8> {
    let mut raw = [(event as u16 + 1).to_ne_bytes().to_vec(), vec![0, 0], tid.to_ne_bytes().to_vec()].concat();
    fields.iter().for_each(|field| raw.extend(*field));
    raw.resize((raw.len() + 4).next_multiple_of(8) - 4, 0);
    let len = 48 + 8 * chain.len() + 4 + raw.len();
    let words = [event as u64 + 1, u64::from(tid) << 32 | 1_000, time, 0, chain.len() as u64];
    let mut record = [9u32.to_ne_bytes().to_vec(), vec![0, 0], (len as u16).to_ne_bytes().to_vec()].concat();
    words.iter().chain(chain).for_each(|word| record.extend(word.to_ne_bytes()));
    record.extend((raw.len() as u32).to_ne_bytes());
    record.extend(raw);
    record
}

/// Two threads that wake each other. Each calls the kernel with arguments of its own before it sleeps, from one of many
/// places.
fn step(at: u64) -> [Vec<u8>; 3] {
    let (time, tid, other) = (1_000_000_000 + at * 3_000, 1_000 + (at % 2) as u32, 1_001 - (at % 2) as u32);
    let (name, number, prio) = (b"a thread\0\0\0\0\0\0\0\0", other.to_ne_bytes(), 120u32.to_ne_bytes());
    let args: Vec<u8> = (0..6).flat_map(|arg| (at * 6 + arg).to_ne_bytes()).collect();
    let chain = [u64::MAX - 511, 0x40_0000 + at % 5_000, 0x50_0000, 0x60_0000];
    [
        sample(2, time, tid, &chain, &[&202u64.to_ne_bytes(), &args]),
        sample(1, time + 1_000, tid, &[], &[name, &number, &prio, &0u32.to_ne_bytes()]),
        sample(
            0,
            time + 2_000,
            tid,
            &[],
            &[name, &tid.to_ne_bytes(), &prio, &1u64.to_ne_bytes(), name, &number, &prio],
        ),
    ]
}

/// Writes a recording of so many steps, some at a time: what this process has in memory is counted too.
fn record(path: &str, steps: u64) {
    let rings = |steps: std::ops::Range<u64>| {
        let mut recording = Recording::new(Clock::Monotonic, None);
        for (index, (name, _)) in EVENTS.iter().enumerate() {
            // PERF_TYPE_TRACEPOINT, the length of the structure, its number, a period of 1, and what samples have;
            // sample_id_all and use_clockid; CLOCK_MONOTONIC.
            let mut words = [2 | 128 << 32, index as u64 + 1, 1, SAMPLE, 0, 1 << 18 | 1 << 25, 0, 0, 0, 0, 0, 0];
            words[11] = 1 << 32;
            let attr: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            recording.event(&format!("tracepoint {name}"), &attr, Some(&format(index)));
        }
        let layout = Layout::new(SAMPLE, true, 0);
        let ring = recording.ring(0, layout, [(1, 0), (2, 1), (3, 2)], 1 << 20).unwrap();
        steps.flat_map(step).for_each(|sample| recording.write(ring, &sample).unwrap());
        recording.build()
    };
    let mut writer = Writer::create_unnamed(path, &rings(0..0)).unwrap();
    for first in (0..steps).step_by(1_000) {
        let mut reader = Reader::new(rings(first..steps.min(first + 1_000)), Order::new()).unwrap();
        while let Some(event) = reader.next().unwrap() {
            writer.write(&event.event()).unwrap();
        }
    }
    writer.finish().unwrap();
}

fn convert(file: &str, format: &str, out: &str, is_piped: bool) {
    let mut run = perfweave(&["convert", format, "-o", out, if is_piped { "-" } else { file }]);
    let ran = run.stdin(File::open(file).unwrap()).output().unwrap();
    assert!(ran.status.success(), "{format}: {}", String::from_utf8_lossy(&ran.stderr));
}

fn largest() -> u64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss() as u64 * 1_024
}

const STEPS: u64 = 20_000;

/// The program's own memory is that which it takes for a few events, and what does not grow with a recording.
#[test]
fn what_is_made_of_a_recording_takes_1_5_times_its_memory() {
    let place = Place::new();
    let (file, out) = (place.file("perf.data"), place.file("out"));
    record(&file, 10);
    for format in FORMATS {
        convert(&file, format, &out, false);
    }
    let small = largest();
    record(&file, STEPS);
    let len = fs::metadata(&file).unwrap().len();
    for (format, is_piped) in FORMATS.iter().flat_map(|format| [(format, false), (format, true)]) {
        convert(&file, format, &out, is_piped);
        let taken = largest() - small;
        println!("{format}, piped {is_piped}: {:.2} times {len} bytes", taken as f64 / len as f64);
        assert!(2 * taken <= 3 * len, "{format}, piped {is_piped}: {taken} bytes for a recording of {len}");
        if *format == "--text" {
            // Line by line, because what this process takes is counted.
            assert_eq!(BufReader::new(File::open(&out).unwrap()).lines().count() as u64, 3 * STEPS);
        }
    }
}
