//! Reads any bytes as a recording of perf(1), to its end: events in order, or a typed error. Checks the certificate of
//! these bytes. Reads them again with another bound of copies. Then writes a file of what was read and reads that: the
//! records are the same, and its certificate holds.

use nix::sys::memfd::{MFdFlags, memfd_create};
use perfweave::{Certainty, ErrorKind, Item, Order, Reader, Rings};
use perfweave_events::Format;
use perfweave_perf_data as perf_data;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

/// The formats of this many sources are read: each takes a time that grows with the recording.
const FORMATS: usize = 4;

/// The values of records: key, CPU, source and bytes.
type Records = Vec<(Option<u64>, Option<u32>, Option<usize>, Vec<u8>)>;

/// The content of a recording.
#[derive(Default)]
struct Read {
    records: Records,
    events: usize,
    lost: u64,
    /// Events that are neither records nor losses.
    others: u64,
}

fn memory() -> (File, String) {
    let file = File::from(memfd_create(c"recording", MFdFlags::MFD_CLOEXEC).expect("a file"));
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    (file, path)
}

/// One input: the file.
pub(crate) fn run(input: &[u8]) {
    let (mut file, path) = memory();
    file.write_all(input).expect("memory");
    let open = || match perf_data::open(&path) {
        Ok(rings) => Some(rings).filter(|rings| rings.cpus().len() > 0),
        // The problem comes after the path.
        Err(error) if matches!(error.kind(), ErrorKind::Recording | ErrorKind::Limit) => {
            let said = error.to_string();
            assert!(said.split_once(": ").is_some_and(|(_, why)| !why.is_empty()), "{said}");
            None
        }
        Err(other) => panic!("{other:?}"),
    };
    match perf_data::verify(&path) {
        Ok(verdict) => assert!(verdict.hash.is_some() || (verdict.seals == 0 && !verdict.holds())),
        Err(error) => assert!(matches!(error.kind(), ErrorKind::Recording | ErrorKind::Limit), "{error:?}"),
    }
    let Some(rings) = open() else { return };
    for source in 0..rings.sources().len().min(FORMATS) {
        let _ = Format::of(&rings, source);
    }
    let names: Vec<_> = rings.sources().iter().map(|source| source.name().to_owned()).collect();
    let says_all = rings.sources().iter().all(|source| source.attr().sample_id_all() != 0);
    let (written_file, written_path) = memory();
    // A recording may have indistinguishable events, but perf could not read it, so it is not written.
    let mut writer = match perf_data::Writer::create(&written_path, &rings) {
        Ok(writer) => Some(writer),
        Err(error) if error.to_string().contains("carry no PERF_SAMPLE_IDENTIFIER") => None,
        Err(other) => panic!("{other:?}"),
    };
    let Some(first) = read(rings, 64 << 20, writer.as_mut()) else { return };
    // A record has at least 8 bytes, unless it is compressed.
    let is_packed = input.windows(4).any(|kind| matches!(kind, [81 | 83, 0, 0, 0]));
    assert!(is_packed || first.events <= input.len() / 8 + 1, "{} events of {} bytes", first.events, input.len());

    // No kernel writes into these rings: the bound of copies changes nothing.
    let again = read(open().expect("as before"), input.len() % 4096, None).expect("as before");
    assert!(again.records == first.records);
    assert_eq!((again.lost, again.others), (first.lost, first.others));

    let Some(writer) = writer else { return };
    let written = writer.finish().expect("memory");
    assert_eq!(
        (written.records, written.lost, written.left_out),
        (first.records.len() as u64, first.lost, first.others)
    );
    let verdict = perf_data::verify(&written_path).expect("what was written");
    assert!(verdict.holds() && verdict.hash == Some(written.hash), "{:?}", verdict.doubts);
    let rings = perf_data::open(&written_path).expect("what was written");
    drop(written_file);
    if rings.cpus().len() == 0 {
        return assert!(first.records.is_empty() && first.lost == 0);
    }
    let written: Vec<_> = rings.sources().iter().map(|source| source.name()).collect();
    assert_eq!(written, names);
    let second = read(rings, 64 << 20, None).expect("keys as before");
    // A record without time and CPU keeps its place in the file, and so may have other neighbours.
    if says_all {
        assert_eq!(sorted(&second), sorted(&first));
        assert_eq!((second.lost, second.others), (first.lost, 0));
    } else {
        let bytes = |read: &Read| {
            let mut all: Vec<_> = read.records.iter().map(|(.., bytes)| bytes.clone()).collect();
            all.sort();
            all
        };
        assert_eq!(bytes(&second), bytes(&first));
    }
}

/// Records with equal keys may be in another order: rings come in the order of their first record in the file.
fn sorted(read: &Read) -> Records {
    let mut records = read.records.clone();
    records.sort();
    records
}

/// Reads all events, and writes them. `None` if records have no time.
fn read(rings: Rings, most_held: usize, mut writer: Option<&mut perf_data::Writer>) -> Option<Read> {
    let mut reader = match Reader::new(rings, Order::new().most_held(most_held)) {
        Ok(reader) => reader,
        // `perf record --no-timestamp`
        Err(error) if error.to_string().contains("carry no time to order by") => return None,
        Err(other) => panic!("{other:?}"),
    };
    let (mut read, mut last) = (Read::default(), 0);
    while let Some(event) = reader.next().unwrap() {
        let event = event.event();
        // No event is late, and events with a key are proven. A record without a key, and without a record with one
        // before it in its ring, has no place in the order.
        let expected = if event.key().is_some() { Certainty::Proven } else { event.certainty() };
        assert_eq!((event.certainty(), event.late_by()), (expected, 0), "{event:?}");
        assert!(event.certainty() != Certainty::Late, "{event:?}");
        assert!(event.key().is_none_or(|key| key >= last), "{event:?} after {last}");
        last = event.key().unwrap_or(last);
        match event.item() {
            Item::Record(record) => {
                read.records.push((event.key(), event.cpu(), record.source(), record.as_bytes().to_vec()));
            }
            Item::Lost(lost) => read.lost += lost.count,
            _ => read.others += 1,
        }
        read.events += 1;
        if let Some(writer) = &mut writer {
            writer.write(&event).expect("memory");
        }
    }
    assert_eq!(reader.status().held, 0);
    Some(read)
}
