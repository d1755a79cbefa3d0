//! Certificates: what was recorded holds, and whatever is done to a recording is found where it was done.

use crate::perf::{File, record};
use perfweave::{Account, Certainty, Hold, Item, Key, Layout, Order, Reader, sim};
use perfweave_perf_data::{self as perf_data, DoubtKind, Verdict, Writer, verify, verify_numbered};
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::time::Duration;

/// Events of a simulated machine with losses on two of its CPUs, flushed. The last loss is one that only the ledger
/// tells.
fn stream(records: u64) -> Reader {
    let machine = sim::Kernel::with(&[0, 1, 5], 1 << 22, Layout::new(4 | 1024 | 1 << 16, true, 0));
    for time in 1..=records {
        let cpu = [0, 1, 5, 1][time as usize % 4];
        if time % 31 == 0 {
            machine.lose(cpu, time);
        }
        assert!(machine.emit(cpu, 1000 * time, &vec![time as u8; time as usize % 40]));
    }
    let reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
    reader.handle().flush().unwrap();
    machine.lose(5, 3);
    reader
}

/// Writes a stream, with a seal after each so many events.
fn write(mut reader: Reader, mut writer: Writer, each: u64) -> perf_data::Written {
    let mut count = 0;
    while let Some(event) = reader.next().unwrap() {
        writer.write(&event.event()).unwrap();
        if matches!(event.item(), Item::Flushed { .. }) {
            break;
        }
        count += 1;
        if count % each == 0 {
            writer.flush().unwrap();
        }
    }
    writer.unreported(&reader.ledger().unwrap());
    writer.finish().unwrap()
}

/// A recording of so many records.
fn file(records: u64, each: u64) -> (Vec<u8>, perf_data::Written) {
    let (file, reader) = (File::new(), stream(records));
    let writer = Writer::create(&file.0, reader.rings()).unwrap();
    let written = write(reader, writer, each);
    (fs::read(&file.0).unwrap(), written)
}

/// The same through a pipe.
fn pipe(records: u64, each: u64) -> (Vec<u8>, perf_data::Written) {
    let (mut from, to) = std::io::pipe().unwrap();
    let taken = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let reader = stream(records);
    let writer = Writer::pipe(to, reader.rings()).unwrap();
    let written = write(reader, writer, each);
    (taken.join().unwrap(), written)
}

fn verdict(bytes: &[u8]) -> Verdict {
    verify(&File::with(bytes).0).unwrap()
}

fn kinds(verdict: &Verdict) -> Vec<DoubtKind> {
    verdict.doubts.iter().map(|doubt| doubt.kind).collect()
}

/// A 64-bit word of a file.
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// What the first bytes of a seal are, behind its header.
const MAGIC: &[u8] = b"perfweave seal 1";

/// Where the seals are.
fn seals(bytes: &[u8]) -> Vec<Range<usize>> {
    let found = bytes.windows(MAGIC.len()).enumerate().filter(|(_, at)| *at == MAGIC).map(|(at, _)| at - 8);
    found.map(|at| at..at + usize::from(u16::from_ne_bytes([bytes[at + 6], bytes[at + 7]]))).collect()
}

#[test]
fn a_recording_holds_and_says_what_is_in_it() {
    for (bytes, written) in [file(200, 20), pipe(200, 20), file(200, 1000), pipe(200, 1000)] {
        let verdict = verdict(&bytes);
        assert!(verdict.holds(), "{:?}", verdict.doubts);
        assert_eq!(verdict.hash, Some(written.hash));
        let lost = (1..=200).filter(|time| time % 31 == 0).sum::<u64>() + 3;
        assert_eq!((verdict.found.records, verdict.found.lost, verdict.found.back), (200, lost, 0));
        assert_eq!(verdict.found.times, Some([1000, 200_000]));
        let claims = verdict.claims.unwrap();
        assert_eq!((claims.proven, claims.assumed, claims.late, claims.left_out), (200, 0, 0, 0));
        assert_eq!((claims.frontier, claims.by_time), (Some(200_000), true));
        let cpus: Vec<_> = verdict.cpus.iter().map(|found| (found.cpu, found.records)).collect();
        assert_eq!(cpus, [(Some(0), 50), (Some(1), 100), (Some(5), 50)]);
        for found in &verdict.cpus {
            let account = found.account.unwrap();
            assert_eq!((account.yielded, account.held, account.lost), (found.records, 0, found.lost));
        }
    }
}

/// What a seal keeps of an account.
fn sealed(account: &Account) -> Account {
    let mut kept = Account::default();
    (kept.cpu, kept.yielded, kept.held, kept.lost) = (account.cpu, account.yielded, account.held, account.lost);
    (kept.exact, kept.missing, kept.unexplained) = (account.exact, account.missing, account.unexplained);
    (kept.damaged, kept.untraced) = (account.damaged, account.untraced);
    kept
}

/// Whatever the ledger has, the recording says: damage, a CPU that was not traced, numbers of the whole machine.
#[test]
fn what_is_missing_by_the_ledger_is_missing_by_the_recording() {
    let changes: [fn(&mut Account); 7] = [
        |_| {},
        |account| account.exact = false,
        |account| account.lost += 1,
        |account| account.missing = 2,
        |account| account.unexplained = 3,
        |account| account.damaged = 4,
        |account| account.untraced = Duration::from_nanos(6),
    ];
    for change in changes {
        let machine = sim::Kernel::with(&[0, 1, 5], 1 << 16, Layout::new(4 | 1024 | 1 << 16, true, 0));
        (1..=20).for_each(|time| assert!(machine.emit([0, 1, 5][time as usize % 3], time, b"")));
        let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
        reader.handle().flush().unwrap();
        let file = File::new();
        let mut writer = Writer::create(&file.0, reader.rings()).unwrap();
        (0..20).for_each(|_| writer.write(&reader.next().unwrap().unwrap().event()).unwrap());
        let mut ledger = reader.ledger().unwrap();
        assert!(ledger.is_complete(), "{ledger}");
        change(&mut ledger.accounts[1]);
        writer.unreported(&ledger);
        writer.finish().unwrap();
        let found = verify(&file.0).unwrap();
        assert!(found.holds(), "{:?}", found.doubts);
        let accounts: Vec<_> = found.cpus.iter().map(|found| found.account.unwrap()).collect();
        assert_eq!(accounts, ledger.accounts.iter().map(sealed).collect::<Vec<_>>());
        let total = found.found.account.unwrap();
        assert_eq!(total, sealed(&ledger.total()));
        assert_eq!((total.is_complete(), total.is_balanced()), (ledger.is_complete(), ledger.total().is_balanced()));
    }
}

/// Numbers of the whole machine are of no CPU.
#[test]
fn missing_numbers_of_the_whole_machine_are_in_the_recording() {
    let machine = sim::Kernel::with(&[0, 1], 1 << 16, Layout::new(4 | 1024 | 1 << 16, true, 0));
    for number in [0, 1, 2, 5, 6] {
        assert!(machine.emit(number % 2, u64::from(number) + 10, &u64::from(number).to_ne_bytes()));
    }
    let hold = Hold::Dense { first: Some(0), fence: machine.fence() };
    let reader = Reader::new(machine.rings(), Order::new().key(Key::Payload(0)).hold(hold)).unwrap();
    reader.handle().flush().unwrap();
    let file = File::new();
    let writer = Writer::create(&file.0, reader.rings()).unwrap();
    write(reader, writer, u64::MAX);
    let found = verify(&file.0).unwrap();
    assert!(found.holds(), "{:?}", found.doubts);
    let total = found.found.account.unwrap();
    assert_eq!((total.missing, total.unexplained, total.is_balanced()), (2, 2, false));
    let of_none = found.cpus.iter().find(|found| found.cpu.is_none()).unwrap();
    assert_eq!((of_none.records, of_none.account.unwrap().missing), (0, 2));
}

/// The longest blocks are a MiB. A seal of the last one comes at the end alone.
#[test]
fn long_recordings_have_a_seal_for_each_mib() {
    for (bytes, _) in [file(40_000, u64::MAX), pipe(40_000, u64::MAX)] {
        let verdict = verdict(&bytes);
        assert!(verdict.holds(), "{:?}", verdict.doubts);
        let least = bytes.len() as u64 / (1 << 20);
        assert!(verdict.seals >= least && verdict.seals <= least + 3, "{} of {}", verdict.seals, bytes.len());
    }
}

/// Records that left early or late are claimed and counted.
#[test]
fn what_is_late_is_counted_by_both() {
    let machine = sim::Kernel::with(&[0, 1], 1 << 16, Layout::new(4 | 1024 | 1 << 16, true, 0));
    let mut reader = Reader::new(machine.rings(), Order::new().hold(Hold::None)).unwrap();
    let file = File::new();
    let mut writer = Writer::create(&file.0, reader.rings()).unwrap();
    let (mut late, mut count) = (0, 0);
    // Each CPU's records come at once, those of the second behind those of the first.
    for cpu in [0, 1] {
        (1..=10).for_each(|time| assert!(machine.emit(cpu, 10 * time + u64::from(cpu), b"")));
        reader.handle().flush().unwrap();
        while let Some(event) = reader.next().unwrap() {
            writer.write(&event.event()).unwrap();
            if matches!(event.item(), Item::Flushed { .. }) {
                break;
            }
            count += 1;
            late += u64::from(event.certainty() == Certainty::Late);
        }
        writer.flush().unwrap();
    }
    writer.finish().unwrap();
    let verdict = verify(&file.0).unwrap();
    let claims = verdict.claims.unwrap();
    assert!(verdict.holds() && late > 0 && count == 20, "{:?}", verdict.doubts);
    assert_eq!((claims.late, verdict.found.back), (late, late));
    assert_eq!(claims.proven + claims.assumed + claims.late, 20);
    // Without a ledger, nobody says how many records there were.
    assert!(verdict.cpus.iter().all(|found| found.account.is_none()));
}

/// Each CPU counts its records, and some numbers are in none: the gaps that the stream told are those that the file
/// has.
#[test]
fn missing_numbers_are_counted_by_both() {
    let machine = sim::Kernel::with(&[0, 1], 1 << 16, Layout::new(4 | 1024 | 1 << 16, true, 0));
    for number in 0..200u64 {
        let cpu = number as u32 % 2;
        let is_there = ![7, 8, 40, 41, 42, 120, 121, 199].contains(&(number / 2)) || number == 199;
        if is_there {
            // Over the end of 64 bits.
            assert!(machine.emit(cpu, number + 10, &(number / 2).wrapping_sub(50).to_ne_bytes()));
        }
    }
    let numbers = || Key::Payload(0);
    let order = Order::new().hold(machine.hold()).numbers(numbers(), None);
    let reader = Reader::new(machine.rings(), order).unwrap();
    reader.handle().flush().unwrap();
    let (file, told) = (File::new(), reader.rings().cpus().len());
    let writer = Writer::create(&file.0, reader.rings()).unwrap();
    let written = write(reader, writer, 20);
    assert_eq!((written.left_out, told), (4, 2), "a gap for each stretch of each CPU");
    let found = verify_numbered(&file.0, &numbers(), None).unwrap();
    assert!(found.holds(), "{:?}", found.doubts);
    assert_eq!((found.found.missing, found.claims.unwrap().missing), (10, 10));
    assert_eq!(found.cpus.iter().map(|found| found.missing).collect::<Vec<_>>(), [5, 5]);
    // Others than the stream had are not those that it told.
    let other = Key::Fn(Box::new(|record| record.time().map(|time| 2 * time)));
    assert_eq!(kinds(&verify_numbered(&file.0, &other, None).unwrap()), [DoubtKind::Counts]);
}

/// Who recorded without numbers was told of no gap, and so there is nothing to compare.
#[test]
fn numbers_that_the_recorder_did_not_have_are_counted_and_not_compared() {
    let recorded = |order: Order| {
        let machine = sim::Kernel::with(&[0, 1], 1 << 16, Layout::new(4 | 1024 | 1 << 16, true, 0));
        for number in [1u64, 2, 5, 6, 7, 9] {
            (0..2).for_each(|cpu| assert!(machine.emit(cpu, 10 * number + u64::from(cpu), &number.to_ne_bytes())));
        }
        let reader = Reader::new(machine.rings(), order.hold(machine.hold())).unwrap();
        reader.handle().flush().unwrap();
        let file = File::new();
        let writer = Writer::create(&file.0, reader.rings()).unwrap();
        write(reader, writer, u64::MAX);
        file
    };
    let numbers = || Key::Payload(0);
    let file = recorded(Order::new());
    let found = verify_numbered(&file.0, &numbers(), None).unwrap();
    assert!(found.holds() && !found.claims.unwrap().numbers, "{:?}", found.doubts);
    assert_eq!((found.found.missing, found.claims.unwrap().missing), (6, 0));
    // Who had some was told of no gap because there was none, and the ledger says that.
    let file = recorded(Order::new().numbers(Key::Fn(Box::new(|_| None)), None));
    let found = verify(&file.0).unwrap();
    assert!(found.holds() && found.claims.unwrap().numbers, "{:?}", found.doubts);
    assert_eq!(kinds(&verify_numbered(&file.0, &numbers(), None).unwrap()), [DoubtKind::Counts]);
}

/// The words of an error, without the file.
fn why<T>(result: Result<T, perfweave::Error>) -> String {
    result.err().expect("an error").to_string().split_once(": ").unwrap().1.to_owned()
}

/// Where nothing vouches for a recording and its events cannot be read, nothing is known. With seals, its bytes are.
#[test]
fn events_that_cannot_be_read_are_an_error_or_a_doubt() {
    for (bytes, is_pipe) in [(file(100, 20).0, false), (pipe(100, 20).0, true)] {
        // The events of a file are in its first bytes and behind its records.
        let places = if is_pipe { vec![24] } else { vec![104, word(&bytes, 24) as usize] };
        let mut plain = bytes.clone();
        // Rounds of perf's own.
        seals(&bytes).iter().for_each(|seal| plain[seal.start + 8..][..MAGIC.len()].fill(0));
        let found = verdict(&plain);
        assert!(found.hash.is_none() && found.found.records == 100 && found.doubts.is_empty(), "{:?}", found.doubts);
        // The size of an attribute.
        let change = |bytes: &[u8]| {
            let mut changed = bytes.to_vec();
            places.iter().for_each(|at| changed[at + 4..at + 8].copy_from_slice(&1u32.to_ne_bytes()));
            File::with(&changed)
        };
        let file = change(&plain);
        assert_eq!(why(verify(&file.0)), why(perf_data::open(&file.0)));
        let found = verify(&change(&bytes).0).unwrap();
        assert!(kinds(&found).contains(&DoubtKind::Uncounted) && found.found.records == 0, "{:?}", found.doubts);
    }
    // No event at all.
    let file = File::with(&pipe(10, 10).0[..16]);
    assert_eq!(why(verify(&file.0)), why(perf_data::open(&file.0)));
}

/// `perf record -z22` has a window of 128 MiB.
#[test]
fn the_largest_window_that_perf_uses_is_no_damage() {
    let (bytes, _) = pipe(100, 1000);
    let seals = seals(&bytes);
    let plain = &bytes[seals[0].end..seals[1].start];
    // A frame with that window, and a block with the bytes as they are.
    let block = ((plain.len() as u32) << 3).to_le_bytes();
    let packed = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3][..], &block[..3], plain].concat();
    let header = [&81u32.to_ne_bytes()[..], &[0; 2], &(8 + packed.len() as u16).to_ne_bytes()].concat();
    let found = verdict(&[&bytes[..seals[0].start], &header, &packed].concat());
    assert!(found.doubts.is_empty() && found.found.records == 100, "{:?}", found.doubts);
}

/// A byte in the middle: one block is in doubt, with its times, and no other.
#[test]
fn damage_names_its_block_and_leaves_the_others_their_word() {
    for (bytes, _) in [file(200, 20), pipe(200, 20)] {
        let seals = seals(&bytes);
        assert!(seals.len() > 8);
        for at in [3, 4] {
            let block = seals[at].end..seals[at + 1].end;
            // A time, in the first record behind a seal.
            let mut changed = bytes.clone();
            changed[block.start + 24] ^= 4;
            let found = verdict(&changed);
            let [doubt] = found.doubts.as_slice() else { panic!("{:?}", found.doubts) };
            assert_eq!((doubt.kind, doubt.bytes.clone()), (DoubtKind::Changed, block.start as u64..block.end as u64));
            let [from, until] = doubt.times.unwrap();
            assert!(from < until && until - from <= 21_000, "{doubt}");
        }
        // A record with no header any more. The seal behind it is found.
        let mut broken = bytes.clone();
        broken[seals[3].end + 6] = 1;
        let doubts = verdict(&broken).doubts;
        let block = seals[3].end as u64..seals[4].end as u64;
        assert!(
            doubts.iter().all(|doubt| doubt.bytes.start >= block.start && doubt.bytes.end <= block.end),
            "{doubts:?}"
        );
        // A record that is not there: its CPU is named. It has identifier, instruction pointer, time, CPU.
        let mut removed = bytes.clone();
        let begin = seals[3].end;
        let (size, cpu) = (usize::from(removed[begin + 6]), word(&removed, begin + 32) as u32);
        removed.drain(begin..begin + size);
        let doubts = verdict(&removed).doubts;
        assert!(doubts[0].kind == DoubtKind::Changed && doubts[0].cpus == [cpu], "{doubts:?}");
        assert_eq!(doubts[0].bytes, begin as u64..(seals[4].end - size) as u64);
        // In a file, all behind the records has moved too. No other block is in doubt.
        let behind = (records(&bytes).pop().unwrap().end - size) as u64;
        let is_apart = |doubt: &perf_data::Doubt| doubt.kind == DoubtKind::Head || doubt.bytes.start >= behind;
        assert!(doubts[1..].iter().all(is_apart), "{doubts:?}");
    }
}

/// Blocks with their seals are moved, removed and repeated.
#[test]
fn blocks_that_are_not_in_their_order_are_found() {
    let (bytes, _) = pipe(200, 20);
    let seals = seals(&bytes);
    let block = |at: usize| seals[at - 1].end..seals[at].end;
    let parts =
        |order: &[Range<usize>]| -> Vec<u8> { order.iter().flat_map(|part| bytes[part.clone()].to_vec()).collect() };
    let (begin, end) = (0..seals[2].end, seals[5].end..bytes.len());
    let removed = verdict(&parts(&[begin.clone(), block(3), block(5), end.clone()]));
    assert_eq!(kinds(&removed), [DoubtKind::Order]);
    assert_eq!(removed.doubts[0].bytes.start, seals[3].end as u64);
    let moved = verdict(&parts(&[begin.clone(), block(4), block(3), block(5), end.clone()]));
    assert_eq!(kinds(&moved), [DoubtKind::Order; 3]);
    let repeated = verdict(&parts(&[begin, block(3), block(4), block(4), block(5), end]));
    assert!(kinds(&repeated).iter().all(|kind| *kind == DoubtKind::Order) && !repeated.holds());
}

/// What was written before a recorder was killed is vouched for to the last seal.
#[test]
fn a_recording_that_was_not_finished_is_vouched_for_to_its_last_seal() {
    let (file, mut reader) = (File::new(), stream(20_000));
    let mut writer = Writer::create(&file.0, reader.rings()).unwrap();
    while let Some(event) = reader.next().unwrap() {
        writer.write(&event.event()).unwrap();
        if matches!(event.item(), Item::Flushed { .. }) {
            break;
        }
    }
    drop(writer);
    let found = verify(&file.0).unwrap();
    assert!(found.seals >= 2 && !found.holds());
    assert!(kinds(&found).contains(&DoubtKind::Unfinished));
    let bytes = fs::read(&file.0).unwrap();
    let last = seals(&bytes).pop().unwrap().end as u64;
    assert!(found.doubts.iter().all(|doubt| doubt.bytes.start >= last), "{:?}", found.doubts);
    // Its first bytes are vouched for as well.
    let mut changed = bytes.clone();
    changed[150] ^= 1;
    assert!(kinds(&verdict(&changed)).contains(&DoubtKind::Head));
}

/// A file is complete after a flush, but not ended. What is written then opens it again.
#[test]
fn a_flushed_recording_is_not_ended() {
    let (file, mut reader) = (File::new(), stream(100));
    let mut writer = Writer::create(&file.0, reader.rings()).unwrap();
    let mut next = |writer: &mut Writer| writer.write(&reader.next().unwrap().unwrap().event()).unwrap();
    (0..50).for_each(|_| next(&mut writer));
    writer.flush().unwrap();
    assert_eq!(kinds(&verify(&file.0).unwrap()), [DoubtKind::Unfinished]);
    (0..50).for_each(|_| next(&mut writer));
    let written = writer.finish().unwrap();
    let found = verify(&file.0).unwrap();
    assert!(found.holds() && found.hash == Some(written.hash), "{:?}", found.doubts);
}

/// A file that was ended, made into one that was not finished: its records hold, but what was behind them is missing.
#[test]
fn a_recording_without_what_lies_behind_its_records_does_not_hold() {
    let (bytes, _) = file(200, 20);
    let seals = seals(&bytes);
    let (front, end) = (seals[0].start, seals[seals.len() - 2].end);
    // The first bytes end where the first block begins.
    let begin = word(&bytes, front + 40);
    let size = u64::from(u32::from_ne_bytes(bytes[108..112].try_into().unwrap()));
    let all = word(&bytes, 104 + size as usize) - 104;
    let mut cut = bytes[..end].to_vec();
    let words = [104, size + 16, 104, all, begin].into_iter().chain([0; 7]);
    words.enumerate().for_each(|(at, word)| cut[8 + 8 * at..][..8].copy_from_slice(&u64::to_ne_bytes(word)));
    assert_eq!(kinds(&verdict(&cut)), [DoubtKind::Unfinished]);
}

/// Cut anywhere: what lies before the last whole block holds, and the rest is named.
#[test]
fn a_cut_recording_is_vouched_for_up_to_the_cut() {
    for (bytes, _) in [file(200, 20), pipe(200, 20)] {
        let seals = seals(&bytes);
        for cut in (seals[0].end..bytes.len()).step_by(37) {
            let found = verdict(&bytes[..cut]);
            let whole = seals.iter().rev().find(|seal| seal.end <= cut).unwrap().end as u64;
            let doubts = found.doubts.iter().filter(|doubt| doubt.kind != DoubtKind::Head);
            assert!(
                !found.holds() && doubts.clone().all(|doubt| doubt.bytes.start >= whole.min(cut as u64)),
                "cut at {cut}: {:?}",
                found.doubts
            );
        }
    }
}

/// perf's own recordings are counted, and nothing vouches for them.
#[test]
fn a_recording_of_perf_has_no_certificate() {
    for args in [&["-a", "-e", "sched:sched_switch"][..], &["-z", "-a", "-e", "sched:sched_switch"]] {
        if args[0] == "-z" && !crate::perf::perf_has("zstd") {
            continue;
        }
        let Some(file) = record(args) else { return };
        let found = verify(&file.0).unwrap();
        assert!(
            found.hash.is_none() && found.claims.is_none() && found.doubts.is_empty() && !found.holds(),
            "{found:?}"
        );
        let samples = crate::perf::script(file.path(), true).len() as u64;
        assert!(found.found.records >= samples && samples > 0, "{} of {samples}", found.found.records);
        assert!(found.cpus.iter().all(|found| found.back == 0), "{:?}", found.cpus);
    }
    // Nor does anything vouch for one whose seals were cut out.
    let (bytes, _) = pipe(100, 10);
    let mut rest = bytes.clone();
    seals(&bytes).into_iter().rev().for_each(|seal| drop(rest.drain(seal)));
    let found = verdict(&rest);
    assert!(found.hash.is_none() && !found.holds() && found.found.records == 100);
}

/// What somebody does to a recording.
struct Tamper {
    state: u64,
}

impl Tamper {
    /// xorshift
    fn next(&mut self) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 16) as usize
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next() % bound
    }

    /// Changes a recording. `records` are the places of its records.
    fn tamper(&mut self, bytes: &mut Vec<u8>, records: &[Range<usize>]) {
        let one = records[self.below(records.len())].clone();
        let other = records[self.below(records.len())].clone();
        match self.below(12) {
            // A record is removed, added, repeated elsewhere, moved.
            0 => drop(bytes.drain(one)),
            1 => {
                let size = 8 * (1 + self.below(8));
                let mut new: Vec<u8> = (0..size).map(|_| self.next() as u8).collect();
                new[..8].copy_from_slice(&[9, 0, 0, 0, 1, 0, size as u8, 0]);
                drop(bytes.splice(one.start..one.start, new));
            }
            2 | 3 => {
                let record: Vec<u8> = bytes[one].to_vec();
                drop(bytes.splice(other.start..other.start, record));
            }
            4 | 5 => {
                let record: Vec<u8> = bytes.drain(one.clone()).collect();
                let to = if other.start > one.start { other.start - record.len() } else { other.start };
                drop(bytes.splice(to..to, record));
            }
            // A byte or a bit is changed, some are removed or added, the end is cut off.
            6 | 7 => {
                let at = self.below(bytes.len());
                bytes[at] = self.next() as u8;
            }
            8 => {
                let at = self.below(bytes.len());
                bytes[at] ^= 1 << self.below(8);
            }
            9 => {
                let at = self.below(bytes.len());
                let len = (1 + self.below(100)).min(bytes.len() - at);
                drop(bytes.drain(at..at + len));
            }
            10 => {
                let (at, len) = (self.below(bytes.len() + 1), 1 + self.below(100));
                let new: Vec<u8> = (0..len).map(|_| self.next() as u8).collect();
                drop(bytes.splice(at..at, new));
            }
            _ => bytes.truncate(1 + self.below(bytes.len() - 1)),
        }
    }
}

/// The first and the last place at which a file is not what it was. Bytes that were added may begin as what follows
/// them begins, or end as what is before them ends, so there are two answers.
fn differences(was: &[u8], is: &[u8]) -> [[u64; 2]; 2] {
    let least = was.len().min(is.len());
    let before = |most: usize| was.iter().zip(is).take(most).take_while(|(was, is)| was == is).count();
    let behind =
        |most: usize| was.iter().rev().zip(is.iter().rev()).take(most).take_while(|(was, is)| was == is).count();
    let (same, same_end) = (before(least), behind(least));
    let places = |before: usize, behind: usize| [before as u64, (is.len() - behind) as u64];
    let [early, late] = [places(same, behind(least - same)), places(before(least - same_end), same_end)];
    [[early[0], late[0]], [early[1], late[1]]]
}

/// The places of all records, seals among them, behind the first bytes of a file.
fn records(bytes: &[u8]) -> Vec<Range<usize>> {
    let seals = seals(bytes);
    let (mut at, end, mut found) = (
        seals[0].end,
        seals.iter().rev().find(|seal| seal.end < bytes.len()).map_or(bytes.len(), |seal| seal.end),
        Vec::new(),
    );
    while at < end {
        let next = at + usize::from(u16::from_ne_bytes([bytes[at + 6], bytes[at + 7]]));
        found.push(at..next);
        at = next;
    }
    found
}

/// Whatever is done to a recording, it is found, and the place is among those that nothing vouches for.
/// `QUICKCHECK_TESTS` sets how often it is tried.
#[test]
fn every_tampering_is_found_where_it_was_done() {
    let tests = std::env::var("QUICKCHECK_TESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(5_000);
    let [file, pipe] = [file(60, 12).0, pipe(60, 12).0];
    let places = [&file, &pipe].map(|bytes| records(bytes));
    let mut tamper = Tamper { state: 0x9e37_79b9_7f4a_7c15 };
    let out = File::new();
    let (mut same, mut refused, mut wide) = (0, 0, 0);
    for number in 0..tests {
        let (plain, places) = [(&file, &places[0]), (&pipe, &places[1])][number % 2];
        let mut bytes = plain.clone();
        let seed = tamper.state;
        tamper.tamper(&mut bytes, places);
        if bytes == *plain {
            same += 1;
            continue;
        }
        let changed = differences(plain, &bytes);
        fs::write(&out.0, &bytes).unwrap();
        let Ok(found) = verify(&out.0) else {
            refused += 1;
            continue;
        };
        assert!(!found.holds(), "{number}: {seed:x} at {changed:?} was not found");
        if found.hash.is_none() {
            refused += 1;
            continue;
        }
        let names = |at: u64| found.doubts.iter().any(|doubt| (doubt.bytes.start..=doubt.bytes.end).contains(&at));
        assert!(
            changed.iter().all(|either| either.iter().any(|at| names(*at))),
            "{number}: {seed:x} at {changed:?}: {:?}",
            found.doubts
        );
        // How much is in doubt.
        let doubted: u64 = found.doubts.iter().map(|doubt| doubt.bytes.end - doubt.bytes.start).sum();
        wide += usize::from(doubted * 2 > bytes.len() as u64);
    }
    eprintln!(
        "{tests} tamperings: {same} changed nothing, {refused} left no certificate, {wide} put more than half in doubt"
    );
    // A few of few are no sign.
    assert!(same < 10 + tests / 20 && refused < 10 + tests / 20, "{same}, {refused}");
}
