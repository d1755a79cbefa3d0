//! Files that are cut short, forged or of another kind give an error that says so, or damage, and never a panic.

use crate::memory;
use crate::perf::{File, by_cpu, drain, open, perf_has, record, samples, script};
use perf_event_open_sys::bindings;
use perfweave::Error;
use perfweave::sim;
use perfweave::{Clock, ErrorKind, Event, Fault, Hold, Item, Layout, Merge, Order, Reader, Rings};
use perfweave_perf_data as perf_data;
use perfweave_support::assert_error;
use quickcheck::QuickCheck;
use std::fs;
use std::sync::OnceLock;

/// Offsets in the header (`struct perf_file_header`).
const ATTR_SIZE: usize = 16;
const ATTRS: usize = 24;
const DATA: usize = 40;
const FEATURES: usize = 72;
/// The end of the header.
const HEADER: usize = 104;

/// Where the records begin.
fn records(file: &[u8]) -> usize {
    get(file, DATA) as usize
}

/// A small recording of two CPUs with times, CPUs and ids, and a loss.
fn small() -> Vec<u8> {
    let bits = bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_IDENTIFIER;
    let machine = sim::Kernel::with(&[0, 1], 4096, Layout::new(bits.into(), true, 0));
    for time in 1..20 {
        machine.emit(time as u32 % 2, time, &[time as u8; 12]);
        if time == 10 {
            machine.lose(1, 3);
        }
    }
    let rings = machine.rings();
    let file = File::new();
    let mut writer = perf_data::Writer::create(&file.0, &rings).unwrap();
    let mut merge = Merge::new(rings, Order::new().hold(Hold::None)).unwrap();
    merge.refresh(0);
    merge.batch().for_each(|event| writer.write(&event).unwrap());
    assert_eq!(writer.finish().unwrap().records, 19);
    fs::read(&file.0).unwrap()
}

fn read(bytes: &[u8]) -> Result<Rings, Error> {
    let file = File::with(bytes);
    perf_data::open(&file.0).inspect_err(|error| {
        let text = error.to_string();
        assert!(text.contains(file.path()), "{text}");
        assert!(matches!(error.kind(), ErrorKind::Recording | ErrorKind::Limit), "{text}");
    })
}

/// Reads a file, and checks what that takes: a buffer of 256 KiB, some 16 KiB for each ring, and the file itself a few
/// times.
fn bounded(bytes: &[u8]) -> Result<Rings, Error> {
    let (most, rings) = memory::most(|| read(bytes));
    let rings_of = rings.as_ref().map_or(bytes.len() / 32, |rings| rings.cpus().len());
    let bound = (512 << 10) + (16 << 10) * rings_of + 8 * bytes.len();
    assert!(most <= bound as u64, "{most} bytes for a file of {} with {rings_of} rings", bytes.len());
    rings
}

/// The error that a changed file gives.
#[track_caller]
fn refused(change: impl FnOnce(&mut Vec<u8>)) -> Error {
    let mut bytes = small();
    change(&mut bytes);
    read(&bytes).map(|_| panic!("it was read")).unwrap_err()
}

fn set(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
}

fn get(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn events(rings: Rings) -> Vec<String> {
    if rings.cpus().len() == 0 {
        return Vec::new();
    }
    let Ok(mut reader) = Reader::new(rings, Order::new()) else { return Vec::new() };
    let mut all = Vec::new();
    let mut last = 0;
    drain(&mut reader, |event| {
        assert!(event.key().is_none_or(|key| key >= last), "{event:?} behind {last}");
        last = event.key().unwrap_or(last);
        all.push(format!("{event:?}"));
    });
    all
}

/// How long the seal of a file is.
const SEAL: usize = 232;

#[test]
fn every_way_of_being_wrong_has_its_error() {
    let forge = |bytes: &mut Vec<u8>| {
        let at = records(bytes);
        (bytes[at], bytes[at + 15]) = (71, 1);
    };
    let refusals = [
        (refused(|bytes| bytes.clear()), "it is empty"),
        (refused(|bytes| bytes[..8].copy_from_slice(b"PERFFILE")), "before Linux 3.0"),
        (refused(|bytes| bytes[..8].reverse()), "other byte order"),
        (refused(|bytes| bytes.truncate(12)), "its header ends at 16 (the file was cut short"),
        (refused(|bytes| bytes.truncate(16)), "its header ends at 104 (the file was cut short"),
        (refused(|bytes| bytes.truncate(80)), "its header ends at 104 (the file was cut short"),
        (refused(|bytes| bytes.truncate(records(bytes) + 100)), "its records end at "),
        // Behind the parts of a recording is a seal, which reading does without.
        (refused(|bytes| bytes.truncate(bytes.len() - SEAL - 1)), "cut short"),
        (refused(|bytes| (set(bytes, DATA, 96), set(bytes, DATA + 8, 0)).0), "header"),
        (refused(|bytes| set(bytes, 8, 50)), "header"),
        (refused(|bytes| set(bytes, ATTR_SIZE, 0)), "header"),
        (refused(|bytes| set(bytes, ATTR_SIZE, 72)), "header"),
        (refused(|bytes| set(bytes, ATTR_SIZE, u64::MAX)), "header"),
        (refused(|bytes| set(bytes, ATTRS + 8, 0)), "no event"),
        (refused(|bytes| set(bytes, ATTRS + 8, u64::MAX)), "cut short"),
        (refused(|bytes| set(bytes, DATA, u64::MAX)), "cut short"),
        (refused(|bytes| bytes[FEATURES + 3] |= 1), "--threads"),
        // A record of perf's own whose data is longer than the file.
        (refused(forge), "perf's own"),
    ];
    for (error, words) in refusals {
        assert!(error.to_string().contains(words), "{error} lacks {words}");
    }
}

/// What a file has around its records, a recording in pipe mode has among them. What follows some records of perf's own
/// is no record.
#[test]
fn a_recording_in_pipe_mode_is_that_of_a_file() {
    let own = |kind: u32, body: &[u8]| {
        let size = 8 + body.len() as u16;
        [&kind.to_ne_bytes()[..], &[0; 2], &size.to_ne_bytes(), body].concat()
    };
    let file = small();
    let at = get(&file, ATTRS) as usize;
    let entry = at + get(&file, ATTR_SIZE) as usize - 16;
    let ids = get(&file, entry) as usize..(get(&file, entry) + get(&file, entry + 8)) as usize;
    let (attr, ids, data) =
        (&file[at..entry], &file[ids], &file[records(&file)..records(&file) + get(&file, DATA + 8) as usize]);
    let piped = |own: &[Vec<u8>]| [&b"PERFILE2"[..], &16u64.to_ne_bytes(), &own.concat(), data].concat();
    // HEADER_FEATURE of EVENT_DESC: one event, its attribute, no ids, and its name.
    let counts = [1, attr.len() as u32].map(u32::to_ne_bytes).concat();
    let named = [&12u64.to_ne_bytes()[..], &counts, attr, &[0; 4], &8u32.to_ne_bytes(), b"a name\0\0"].concat();
    // HEADER_TRACING_DATA and AUXTRACE, with bytes behind them that would be damage.
    let formats = [own(66, &5u32.to_ne_bytes()), vec![0xff; 8]].concat();
    let trace = [own(71, &[&24u64.to_ne_bytes()[..], &[0; 32]].concat()), vec![0xff; 24]].concat();
    let event = own(64, &[attr, ids].concat());
    let whole = piped(&[event.clone(), own(80, &named), formats, trace]);
    let rings = read(&whole).unwrap();
    // What a processor has traced is counted, for it is not decoded.
    let aux =
        |bytes: &[u8]| [perf_data::aux(&read(bytes).unwrap()), perf_data::verify(&File::with(bytes).0).unwrap().aux];
    assert_eq!((aux(&whole), aux(&file)), ([24; 2], [0; 2]));
    assert_eq!(rings.sources()[0].name(), "a name");
    assert_eq!(events(rings), events(read(&file).unwrap()));
    // Killed while it wrote what follows such a record: that is said, also if it looks like one of the kernel's.
    let whole = events(read(&file).unwrap());
    let first = u16::from_ne_bytes(data[6..8].try_into().unwrap()).into();
    for behind in [&[][..], &[0xff; 23], &data[..first]] {
        let trace = own(71, &[&4096u64.to_ne_bytes()[..], &[0; 32]].concat());
        let cut = [piped(std::slice::from_ref(&event)), trace, behind.to_vec()].concat();
        let mut all = events(read(&cut).unwrap());
        let last = all.pop().unwrap();
        assert!(all == whole && last.contains("Damage"), "{last}");
        assert_eq!(aux(&cut), [behind.len() as u64; 2], "no more than there is");
    }
    for (wrong, words) in [
        (own(80, &24u64.to_ne_bytes()), "--threads"),
        (own(80, &[0; 4]), "its feature makes no sense"),
        (own(64, &attr[..32]), "its event makes no sense"),
    ] {
        let error = read(&piped(&[event.clone(), wrong])).map(drop).unwrap_err();
        assert!(error.to_string().contains(words), "{error} was to say {words}");
    }
    // A number that comes twice has one section in a file that is written of it.
    let release = |name: &[u8]| own(80, &[&4u64.to_ne_bytes()[..], &8u32.to_ne_bytes(), name].concat());
    let twice =
        read(&piped(&[event.clone(), release(b"first\0\0\0"), release(b"second\0\0"), own(80, &named)])).unwrap();
    let again = File::new();
    let mut reader = Reader::new(twice, Order::new()).unwrap();
    let mut writer = perf_data::Writer::create_unnamed(&again.0, reader.rings()).unwrap();
    drain(&mut reader, |event| writer.write(event).unwrap());
    writer.finish().unwrap();
    let written = open(&again.0);
    assert_eq!(written.sources()[0].name(), "a name");
    assert_eq!(events(written), events(read(&file).unwrap()));
    // An attribute that gives no size has that of the first kernels.
    let mut bytes = file.clone();
    bytes[at + 4..at + 8].fill(0);
    assert_eq!(events(read(&bytes).unwrap()), events(read(&file).unwrap()));
}

#[test]
fn what_is_no_file_has_its_error() {
    let why = |path: &str| perf_data::open(path).unwrap_err();
    assert_error!(why("/nowhere"), Recording, "cannot read /nowhere: No such file");
    assert_eq!(why("/nowhere").raw_os_error(), Some(2));
    // Its length is one of 4 KiB, and there is less to read.
    assert_error!(why("/sys/kernel/uevent_seqnum"), Recording, "it changed while it was read");
    assert_error!(why("/dev/null"), Recording, "cannot read /dev/null: it is no regular file (write what comes");
    assert_error!(why("/proc"), Recording, "cannot read /proc: it is a directory");
}

/// Neither a refused file nor a read one stays open.
#[test]
fn no_file_stays_open() {
    let file = File::with(&small());
    let rings = open(&file.0);
    let mut bytes = small();
    set(&mut bytes, ATTRS + 8, 0);
    let refused = File::with(&bytes);
    perf_data::open(&refused.0).unwrap_err();
    let open: Vec<_> =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.unwrap().path()).ok()).collect();
    assert!(!open.contains(&file.0) && !open.contains(&refused.0), "{open:?}");
    drop(rings);
}

/// Everything before the bad bytes is read, and they are damage, as in a ring.
#[test]
fn bytes_that_are_no_record_are_damage() {
    let whole = events(read(&small()).unwrap());
    for size in [0u16, 7, 9, 4096, u16::MAX] {
        let mut bytes = small();
        let first = u16::from_ne_bytes(bytes[records(&bytes) + 6..records(&bytes) + 8].try_into().unwrap()) as usize;
        let at = records(&bytes) + first;
        let left = get(&bytes, DATA + 8) as usize - first;
        bytes[at + 6..at + 8].copy_from_slice(&size.to_ne_bytes());
        // A reader that continued after an odd size would take this for a record of another CPU.
        let forged = [u64::from_ne_bytes([3, 0, 0, 0, 0, 0, 40, 0]), 0, 5, 77, 1000];
        let forged: Vec<u8> = forged.into_iter().flat_map(u64::to_ne_bytes).collect();
        bytes[at + 9..at + 9 + forged.len()].copy_from_slice(&forged);
        let mut reader = Reader::new(read(&bytes).unwrap(), Order::new()).unwrap();
        let mut seen = Vec::new();
        drain(&mut reader, |event: &Event<'_>| match event.item() {
            Item::Record(_) => seen.push(0),
            Item::Damage(damage) => {
                assert!(
                    matches!(damage.fault(), Fault::Size { size: found, .. } if found == u32::from(size)),
                    "{damage:?}"
                );
                seen.push(damage.bytes.len());
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(seen, [0, left], "{size}");
    }
    assert!(whole.len() > 19);
}

/// A record that is too short for its fields is damage, and the next is read.
#[test]
fn a_record_that_is_too_short_is_one_damage() {
    let mut bytes = small();
    // Each sample is a header alone, of 8 bytes.
    let first = u16::from_ne_bytes(bytes[records(&bytes) + 6..records(&bytes) + 8].try_into().unwrap()) as usize;
    for at in (records(&bytes)..records(&bytes) + first).step_by(8) {
        bytes[at..at + 8].copy_from_slice(&[9, 0, 0, 0, 0, 0, 8, 0]);
    }
    let mut count = (0, 0);
    drain(&mut Reader::new(read(&bytes).unwrap(), Order::new()).unwrap(), |event| match event.item() {
        Item::Damage(damage) => {
            assert!(matches!(damage.fault(), Fault::Short { size: 8 }), "{damage:?}");
            count.0 += 1;
        }
        Item::Record(_) => count.1 += 1,
        _ => {}
    });
    assert_eq!(count, (first / 8, 18));
}

/// Impossible counts allocate no memory.
#[test]
fn counts_in_the_file_take_no_memory() {
    let plain = small();
    let table = records(&plain) + get(&plain, DATA + 8) as usize;
    // The description of the events has the highest bit of the features.
    let described = table + 16 * (get(&plain, FEATURES).count_ones() as usize - 1);
    let at = get(&plain, described) as usize;
    for (offset, what) in [(0, "events"), (4, "bytes of an attribute")] {
        let mut bytes = plain.clone();
        bytes[at + offset..at + offset + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(events(bounded(&bytes).unwrap()).len(), events(read(&plain).unwrap()).len(), "{what}");
    }
    // The same section again and again.
    let attrs = get(&plain, ATTRS) as usize;
    let mut bytes = plain.clone();
    let ids = attrs + get(&plain, ATTR_SIZE) as usize - 16;
    let len = bytes.len() as u64;
    set(&mut bytes, ids, 0);
    set(&mut bytes, ids + 8, len);
    assert_error!(bounded(&bytes).unwrap_err(), Recording, "make no sense at byte");
}

/// A sparse file can have any length.
#[test]
fn a_section_longer_than_memory_is_refused() {
    let mut bytes = small();
    // Far more memory than any machine has, and far less than a file system's limit for files.
    let size = 1u64 << 43;
    set(&mut bytes, ATTRS + 8, size);
    let file = File::with(&bytes);
    fs::File::options().write(true).open(&file.0).unwrap().set_len(size + (1 << 20)).unwrap();
    let (most, read) = memory::most(|| perf_data::open(&file.0));
    let [bytes, available] = crate::memory::lacking(&read.unwrap_err());
    assert!(bytes >= size && available < size && most < 1 << 20, "{bytes} of {available}, {most} taken");
}

/// Events whose layouts all differ: the work for each must not grow with their number. Otherwise this takes minutes.
#[test]
fn many_layouts_are_told_apart() {
    let mut bytes = small();
    let (each, at) = (get(&bytes, ATTR_SIZE) as usize, get(&bytes, ATTRS) as usize);
    let event = bytes[at..at + each].to_vec();
    let (at, count) = (bytes.len() as u64, 100_000u64);
    for number in 0..count {
        let mut event = event.clone();
        // Bits of sample_type that no kernel has, and no ids.
        let sample_type = get(&event, 24) | number << 32;
        set(&mut event, 24, sample_type);
        set(&mut event, each - 8, 0);
        bytes.extend(event);
    }
    set(&mut bytes, ATTRS, at);
    set(&mut bytes, ATTRS + 8, count * each as u64);
    assert_eq!(read(&bytes).unwrap().sources().len(), count as usize);
}

/// Two events, and records with another id: they do not count as records of the first event.
#[test]
fn records_of_an_event_that_is_not_described_are_of_none() {
    let mut bytes = small();
    let (each, at) = (get(&bytes, ATTR_SIZE) as usize, get(&bytes, ATTRS) as usize);
    let mut event = bytes[at..at + each].to_vec();
    event[each - 16..].fill(0);
    let at = bytes.len() as u64;
    bytes.extend(event.repeat(2));
    set(&mut bytes, ATTRS, at);
    set(&mut bytes, ATTRS + 8, 2 * each as u64);
    let mut sources = Vec::new();
    drain(&mut Reader::new(read(&bytes).unwrap(), Order::new()).unwrap(), |event| {
        sources.extend(event.record().map(|record| record.source()));
    });
    assert_eq!(sources, [None; 19]);
}

/// Two events by whose records nobody could tell which is which, or whose times cannot be compared.
#[test]
fn events_that_do_not_go_together_are_refused() {
    let (sample_type, flags) = (24, 40);
    let (id_all, use_clockid) = (1u64 << 18, 1u64 << 25);
    let identifier = u64::from(bindings::PERF_SAMPLE_IDENTIFIER);
    let two = |first: (usize, u64), second: (usize, u64)| {
        let mut bytes = small();
        let (each, at) = (get(&bytes, ATTR_SIZE) as usize, get(&bytes, ATTRS) as usize);
        let event = bytes[at..at + each].to_vec();
        let at = bytes.len() as u64;
        set(&mut bytes, ATTRS, at);
        set(&mut bytes, ATTRS + 8, 2 * each as u64);
        for (place, changed) in [first, second] {
            let mut event = event.clone();
            event[each - 16..].fill(0);
            let word = get(&event, place) ^ changed;
            set(&mut event, place, word);
            bytes.extend(event);
        }
        read(&bytes).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(two((sample_type, 0), (sample_type, 0)), Ok(()));
    assert_eq!(two((sample_type, 0), (sample_type, 1)), Ok(()), "both have an identifier");
    assert_eq!(two((sample_type, identifier), (sample_type, identifier)), Ok(()), "both are alike");
    for (first, second, words) in [
        ((sample_type, 0), (sample_type, identifier), "different layouts"),
        ((sample_type, identifier), (sample_type, identifier | 1), "different layouts"),
        ((sample_type, 0), (flags, id_all), "different layouts"),
        ((sample_type, 0), (flags, use_clockid), "different clocks"),
    ] {
        let error = two(first, second).unwrap_err();
        assert!(error.contains(words), "{error} was to say {words}");
    }
}

/// A tracepoint without a name gets a made-up one, which is no tracepoint's name when it is written and read again.
#[test]
fn a_name_that_was_made_up_is_no_tracepoints() {
    let mut bytes = small();
    let at = get(&bytes, ATTRS) as usize;
    // `PERF_TYPE_TRACEPOINT`, and no features that would bring a name.
    bytes[at..at + 4].copy_from_slice(&2u32.to_ne_bytes());
    set(&mut bytes, FEATURES, 0);
    let rings = read(&bytes).unwrap();
    let file = File::new();
    perf_data::Writer::create(&file.0, &rings).unwrap().finish().unwrap();
    let again = File::new();
    perf_data::Writer::create(&again.0, &open(&file.0)).unwrap().finish().unwrap();
    for rings in [rings, open(&again.0)] {
        let source = &rings.sources()[0];
        assert_eq!((source.name().starts_with("event 2:"), source.tracepoint()), (true, None), "{source:?}");
    }
}

/// A recording of so many records of CPU 0, all alike but for their times.
fn recorded(sample_type: u64, records: u64) -> Vec<u8> {
    let machine = sim::Kernel::with(&[0], 1 << 20, Layout::new(sample_type, true, 0));
    (0..records).for_each(|time| assert!(machine.emit(0, time, b"")));
    let rings = machine.rings().on_clock(Clock::Perf);
    let file = File::new();
    let mut writer = perf_data::Writer::create(&file.0, &rings).unwrap();
    let mut merge = Merge::new(rings, Order::new().hold(Hold::None)).unwrap();
    merge.refresh(0);
    merge.batch().for_each(|event| writer.write(&event).unwrap());
    writer.finish().unwrap();
    fs::read(&file.0).unwrap()
}

#[test]
fn a_machine_of_too_many_cpus_is_forged() {
    let bits =
        bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_CPU | bindings::PERF_SAMPLE_IP;
    let mut bytes = recorded(bits.into(), 9000);
    // header, ip, time, cpu, raw
    let each = 8 + 8 + 8 + 8 + 8;
    for cpu in 0..9000usize {
        let at = records(&bytes) + cpu * each + 24;
        bytes[at..at + 4].copy_from_slice(&(cpu as u32).to_ne_bytes());
    }
    assert_error!(read(&bytes).unwrap_err(), Recording, "its records name more than 8192 CPUs");
}

/// Records of threads, without CPUs: the first 1024 threads have a ring each, and all others share one.
#[test]
fn threads_without_a_ring_of_their_own_share_one() {
    let bits = bindings::PERF_SAMPLE_IDENTIFIER | bindings::PERF_SAMPLE_IP | bindings::PERF_SAMPLE_TIME;
    let bits = bits | bindings::PERF_SAMPLE_CPU | bindings::PERF_SAMPLE_RAW;
    let mut bytes = recorded(bits.into(), 1100);
    let at = get(&bytes, ATTRS) as usize;
    // The event has no CPU any more: its place is read as a payload's length, which is 0.
    let sample_type = get(&bytes, at + 24) & !u64::from(bindings::PERF_SAMPLE_CPU);
    set(&mut bytes, at + 24, sample_type);
    let (entry, ids) = (at + get(&bytes, ATTR_SIZE) as usize - 16, bytes.len() as u64);
    set(&mut bytes, entry, ids);
    set(&mut bytes, entry + 8, 8 * 1100);
    // header, identifier, ip, time, CPU, raw
    let begin = records(&bytes);
    (0..1100).for_each(|number| set(&mut bytes, begin + number * 48 + 8, number as u64 + 1));
    (1..=1100u64).for_each(|id| bytes.extend(id.to_ne_bytes()));
    let rings = read(&bytes).unwrap();
    assert_eq!(rings.cpus().len(), 1025);
    assert_eq!(events(rings).len(), 1100);
}

/// Any byte may be any other. `QUICKCHECK_TESTS` sets how many files are tried.
#[test]
fn no_file_makes_it_panic_or_takes_a_record_from_the_order() {
    fn property(edits: Vec<(u16, u8)>, cut: Option<u16>) -> bool {
        static PLAIN: OnceLock<Vec<u8>> = OnceLock::new();
        let mut bytes = PLAIN.get_or_init(small).clone();
        for (at, value) in edits.iter().take(8) {
            // Half of them in counts and offsets.
            let bound = if value % 2 == 0 { HEADER } else { bytes.len() };
            bytes[usize::from(*at) % bound] = *value;
        }
        if let Some(cut) = cut.filter(|cut| cut % 4 == 0) {
            bytes.truncate(usize::from(cut) % bytes.len());
        }
        let most = bytes.len() / 8 + 1;
        bounded(&bytes).map_or(true, |rings| events(rings).len() <= most)
    }
    QuickCheck::new().quickcheck(property as fn(_, _) -> _);
}

/// What `perf record --threads` writes: a file with a header, and one for each of perf's threads.
#[test]
fn a_recording_by_several_threads_is_read_as_perf_shows_it() {
    let packed = ["--threads", "-z", "-a", "-e", "sched:sched_switch"];
    let plain = [&packed[..1], &packed[2..]].concat();
    let has_zstd = perf_has("zstd");
    for args in [plain.as_slice(), &packed].iter().take(if has_zstd { 2 } else { 1 }) {
        let Some(file) = record(args) else { return };
        let expected = script(file.path(), true);
        assert!(expected.len() > 40 && file.0.join("data.1").exists());
        assert_eq!(samples(open(&file.0), true), by_cpu(expected.clone()), "{args:?}");
        // Its first file has no samples.
        let error = perf_data::open(file.0.join("data")).unwrap_err();
        assert_error!(error, Recording, "other files of its directory have records of it (name the directory");
        // One of them is cut short, inside of a record; then it is a pipe, and then there is none with a header.
        let part = file.0.join("data.1");
        let bytes = fs::read(&part).unwrap();
        fs::write(&part, &bytes[..(bytes.len() / 2) | 1]).unwrap();
        let (mut records, mut damage) = (0, 0);
        drain(&mut Reader::new(open(&file.0), Order::new()).unwrap(), |event| match event.item() {
            Item::Record(record) => records += usize::from(record.kind() == bindings::PERF_RECORD_SAMPLE),
            Item::Damage(_) => damage += 1,
            _ => {}
        });
        assert!(damage >= 1 && records < expected.len() && records > 0, "{damage}, {records} of {}", expected.len());
        fs::remove_file(&part).unwrap();
        nix::unistd::mkfifo(&part, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_error!(perf_data::open(&file.0).unwrap_err(), Recording, "data.1: it is no regular file");
        fs::remove_file(&part).unwrap();
        fs::remove_file(file.0.join("data")).unwrap();
        assert_error!(perf_data::open(&file.0).unwrap_err(), Recording, "it is a directory, and has no file `data`");
    }
}
