//! Recordings of `perf record -z`: read as perf reads them, and whatever their bytes are.

use crate::memory;
use crate::perf::{File, by_cpu, drain, open, perf, perf_has, record, samples, script};
use perf_event_open_sys::bindings;
use perfweave::{ErrorKind, Fault, Item, Order, Reader, Rings};
use perfweave_perf_data as perf_data;
use perfweave_support::perf::printed;
use std::fs;
use std::process::Command;
use std::sync::OnceLock;

const SWITCHES: [&str; 5] = ["-a", "-e", "sched:sched_switch", "-e", "cpu-clock"];

#[test]
fn a_compressed_recording_is_read_as_perf_shows_it() {
    if !perf_has("zstd") {
        return;
    }
    // The last has the largest window.
    for args in [&["-z"][..], &["-z9", "-g"], &["--compression-level=22", "-g"]] {
        let Some(file) = record(&[args, &SWITCHES].concat()) else { return };
        let dump = perf(&["report", "-D", "-i", file.path()]).unwrap();
        let header = perf(&["report", "--header-only", "-i", file.path()]).unwrap();
        assert!(header.contains("# compressed : Zstd"), "{header}");
        let expected = script(file.path(), true);
        assert!(expected.len() > 40);
        assert_eq!(samples(open(&file.0), true), by_cpu(expected), "{args:?}");
        // All records, by their kinds, and not samples alone. perf counts LOST records in its own way.
        for (kind, name) in [
            (bindings::PERF_RECORD_MMAP2, "MMAP2"),
            (bindings::PERF_RECORD_COMM, "COMM"),
            (bindings::PERF_RECORD_EXIT, "EXIT"),
        ] {
            let ours = kinds(open(&file.0), kind);
            // Names with a colon, and with `(pid` behind them.
            let of_perf = |line: &str| {
                line.contains(&format!(": PERF_RECORD_{name}")) || line.contains(&format!("]: PERF_RECORD_{name}"))
            };
            assert_eq!(ours, dump.lines().filter(|line| of_perf(line)).count(), "{args:?}: {name}");
        }
    }
}

fn kinds(rings: Rings, kind: u32) -> usize {
    let mut count = 0;
    drain(&mut Reader::new(rings, Order::new()).unwrap(), |event| {
        count += usize::from(event.record().is_some_and(|record| record.kind() == kind));
    });
    count
}

/// A compressed recording in pipe mode: nothing in it says where anything lies.
fn piped() -> Option<Vec<u8>> {
    static PIPED: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let piped = PIPED.get_or_init(|| {
        if !perf_has("zstd") {
            return None;
        }
        let file = File::new();
        let load = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); /bin/true & done; wait";
        let script_of = format!("perf record -z -o - -a -g -e sched:sched_switch -- sh -c '{load}' > {}", file.path());
        printed(Command::new("sh").args(["-c", &script_of])).unwrap();
        Some(fs::read(&file.0).unwrap())
    });
    piped.clone()
}

/// The records of a recording in pipe mode: where they begin, their kinds, and where they end with what follows them.
fn records(bytes: &[u8]) -> Vec<(usize, u32, usize)> {
    let (mut at, mut all) = (16, Vec::new());
    while at < bytes.len() {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let behind = if word(at) == 66 { word(at + 8).next_multiple_of(8) } else { 0 };
        let end = at + (word(at + 4) >> 16) as usize + behind as usize;
        all.push((at, word(at), end));
        at = end;
    }
    all
}

/// Samples, and damage by its fault.
fn read(bytes: &[u8]) -> (usize, Vec<Fault>) {
    let (mut samples, mut damage) = (0, Vec::new());
    drain(&mut Reader::new(open(&File::with(bytes).0), Order::new()).unwrap(), |event| match event.item() {
        Item::Record(record) => samples += usize::from(record.kind() == bindings::PERF_RECORD_SAMPLE),
        Item::Damage(of) => damage.push(of.fault()),
        _ => {}
    });
    (samples, damage)
}

#[test]
fn a_compressed_pipe_is_read_also_in_the_newer_format() {
    let Some(bytes) = piped() else { return };
    let file = File::with(&bytes);
    let lines = perf(&["script", "-i", file.path(), "-F", "time,event"]).unwrap();
    let expected = (lines.lines().filter(|line| line.contains("sched_switch")).count(), Vec::new());
    assert!(expected.0 > 40);
    assert_eq!(read(&bytes), expected);
    // Linux 6.15: COMPRESSED2 says how many bytes it has, and is padded. Each record is cut in two, anywhere.
    let mut newer = bytes[..16].to_vec();
    for (at, kind, end) in records(&bytes) {
        if kind != 81 {
            newer.extend(&bytes[at..end]);
            continue;
        }
        let packed = &bytes[at + 8..end];
        for part in [&packed[..packed.len() / 3], &packed[packed.len() / 3..]] {
            let padded = part.len().next_multiple_of(8);
            newer.extend(83u32.to_ne_bytes());
            newer.extend([0, 16 + padded as u16].map(u16::to_ne_bytes).concat());
            newer.extend((part.len() as u64).to_ne_bytes());
            newer.extend(part);
            newer.resize(newer.len() + padded - part.len(), 0xee);
        }
    }
    assert_eq!(read(&newer), expected);
}

/// Everything before the bad bytes is read, and they are one damage.
#[test]
fn bytes_that_cannot_be_unpacked_are_damage() {
    let Some(bytes) = piped() else { return };
    let (all, _) = read(&bytes);
    let packed: Vec<_> = records(&bytes).into_iter().filter(|(_, kind, _)| *kind == 81).collect();
    let (at, _, end) = packed[packed.len() / 2];
    // A block of the type that does not exist, and a frame that does not begin.
    for (place, value) in [(at + 8, [0xff; 3]), (packed[0].0 + 8, [0; 3])] {
        let mut bytes = bytes.clone();
        bytes[place..place + 3].copy_from_slice(&value);
        let (samples, damage) = read(&bytes);
        assert!(damage.len() == 1 && matches!(damage[0], Fault::Size { size: 0, .. }), "{damage:?}");
        assert!(samples < all, "{samples}");
    }
    // Cut in the middle of a record, and of a block.
    let (samples, damage) = read(&bytes[..(at + end) / 2]);
    assert!(!damage.is_empty() && samples < all, "{damage:?}");
    // Any byte may be another one.
    for seed in 0..40u64 {
        let mut bytes = bytes.clone();
        let place =
            packed[0].0 + (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (bytes.len() - packed[0].0) as u64) as usize;
        bytes[place] ^= 1 << (seed % 8);
        match perf_data::open(&File::with(&bytes).0) {
            Ok(rings) => drain(&mut Reader::new(rings, Order::new()).unwrap(), |_| ()),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Recording | ErrorKind::Limit), "{error}"),
        }
    }
}

/// A few bytes stand for very many, a block of 4 bytes for 128 KiB, and they are never in memory together.
#[test]
fn what_unpacks_to_very_much_takes_little_memory() {
    let Some(bytes) = piped() else { return };
    let first = records(&bytes).into_iter().find(|(_, kind, _)| *kind == 81).unwrap().0;
    let mut bomb = bytes[..first].to_vec();
    // A frame with a window of 1 MiB, and 128 KiB of the byte 8 again and again.
    let begin = [0x28, 0xb5, 0x2f, 0xfd, 0, 10 << 3];
    let block = (0x2_0000u32 << 3 | 1 << 1).to_le_bytes();
    let blocks = [&block[..3], &[8]].concat().repeat(2000);
    let part = [&begin[..], &blocks].concat();
    bomb.extend(81u32.to_ne_bytes());
    bomb.extend([0, 8 + part.len() as u16].map(u16::to_ne_bytes).concat());
    bomb.extend(part);
    let file = File::with(&bomb);
    // 0x0808_0808 is a kind of perf's own, which is left out: much goes by, and none of it is kept.
    let (most, rings) = memory::most(|| perf_data::open(&file.0));
    assert!(rings.is_ok() && most < 16 << 20, "{most}");
}
