//! Every loop of the documentation, word for word, and every way to iterate: over rings that hold a record, a loss, a
//! record, a gap, a record, damage and a record. Each must read all of them.

use perf_event_open_sys::bindings;
use perfweave::{Certainty, Ended, Error, Event, Hold, Item, Key, Layout, Merge, Order, Reader, sim};
use perfweave_events::Format;
use std::cell::RefCell;
use std::error::Error as StdError;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

thread_local! {
    /// The output of the loops of this test.
    static PRINTED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Replaces `println!` in the loops of the documentation.
macro_rules! println {
    ($($what:tt)*) => { PRINTED.with_borrow_mut(|printed| printed.push(format!($($what)*))) };
}

/// Runs a loop, and checks that the documentation of a file has it word for word.
macro_rules! documented {
    ($file:literal: $($code:tt)*) => {{
        assert_documented($file, stringify!($($code)*));
        run(|| {
            $($code)*
            Ok(())
        });
    }};
}

fn run(code: impl FnOnce() -> Result<(), Box<dyn StdError>>) {
    code().unwrap();
}

/// Code without its comments and spaces.
fn squeezed(code: &str) -> String {
    let lines = code.lines().map(|line| line.find("//").map_or(line, |at| &line[..at]));
    lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust code in the documentation of a file, block by block.
fn blocks(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let (mut blocks, mut inside) = (Vec::new(), None);
    for line in text.lines() {
        let line = if is_rust {
            let line = line.trim_start();
            let Some(said) = line.strip_prefix("///").or(line.strip_prefix("//!")) else { continue };
            said.strip_prefix(' ').unwrap_or(said)
        } else {
            line
        };
        match (line.strip_prefix("```"), &mut inside) {
            (Some(_), block @ Some(_)) => blocks.extend(block.take().flatten()),
            (Some(language), None) => {
                // `Some(None)`: of another language, or not to be compiled.
                let is_run = language.starts_with("rust") || is_rust && ["", "no_run"].contains(&language);
                inside = Some(is_run.then(String::new));
            }
            (None, Some(Some(block))) => *block += &(line.strip_prefix("# ").unwrap_or(line).to_owned() + "\n"),
            (None, _) => {}
        }
    }
    blocks
}

#[track_caller]
fn assert_documented(file: &str, code: &str) {
    let code = squeezed(code);
    let is_there = blocks(&root().join(file)).iter().any(|block| squeezed(block).contains(&code));
    assert!(is_there, "{file} does not say: {code}");
}

fn files(folder: &Path, kind: &str, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            files(&entry, kind, out);
        } else if entry.extension().is_some_and(|extension| extension == kind) {
            out.push(entry);
        }
    }
}

/// This test runs every documented loop. Otherwise no test would show that the loop reaches its end.
#[test]
fn every_documented_loop_is_run() {
    let mut documents = ["README.md", "DESIGN.md", "CHANGELOG.md", "tests/README.md", "examples/interop/README.md"]
        .map(|file| root().join(file))
        .to_vec();
    files(&root().join("src"), "rs", &mut documents);
    files(&root().join("crates"), "rs", &mut documents);
    files(&root().join("crates"), "md", &mut documents);
    files(&root().join("docs/guide"), "md", &mut documents);
    let run = squeezed(include_str!("documented_loops.rs"));
    let loops = ["loop{", "whilelet", "for", ".for_each(", ".drain(", ".batch().", ".try_fold(", ".events("];
    // Over descriptors, rings, what a check doubts and what a file says, and no events.
    let others = [
        "for(cpu,events)infile{",
        "for(time,data)inevents{",
        "fordoubtin&verdict.doubts{",
        "for(cpu,event)in&events{",
        "for(cpu,ring)inbuffers{",
        "fortagin[7,8_u32]{",
        "forplaceinperfweave_symbols::usdt(library,\"libc\",\"setjmp\")?{",
    ];
    let mut seen = 0;
    for path in documents {
        for line in blocks(&path).iter().flat_map(|block| block.lines()).map(squeezed) {
            let begins = |with: &&str| {
                line.starts_with(*with) || with.starts_with('.') && line.contains(*with) || line.ends_with("=loop{")
            };
            if loops.iter().any(begins) && !others.contains(&&*line) {
                assert!(run.contains(&line), "{}: {line}", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen >= 16, "{seen} loops found");
}

/// The format of the records that `record` writes.
const FORMAT: &str = "name: sched_switch\nID: 2\nformat:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:pid_t next_pid;\toffset:8;\tsize:4;\tsigned:1;
\tfield:char next_comm[16];\toffset:16;\tsize:16;\tsigned:0;

print fmt: \"next_comm=%s next_pid=%d\", REC->next_comm, REC->next_pid\n";

/// Where the number of its CPU is in a record's payload.
const NUMBER: usize = 32;

/// The records of all CPUs.
const RECORDS: usize = 8;

fn record(kernel: &sim::Kernel, cpu: u32, time: u64, number: u64) {
    let mut payload = [0; 44];
    payload[0] = 2;
    payload[8..12].copy_from_slice(&(time as u32).to_ne_bytes());
    payload[16..20].copy_from_slice(b"task");
    payload[NUMBER..][..8].copy_from_slice(&number.to_ne_bytes());
    assert!(kernel.emit(cpu, time, &payload));
}

/// On each CPU a record, a loss, a record, a gap, a record, damage, and a record.
fn trouble(kernel: &sim::Kernel) {
    for cpu in [0, 1] {
        let time = 10 * u64::from(cpu);
        record(kernel, cpu, time + 101, 0);
        kernel.lose(cpu, 3);
        record(kernel, cpu, time + 102, 1);
        record(kernel, cpu, time + 103, 7);
        let begin = kernel.head(cpu);
        record(kernel, cpu, time + 104, 8);
        // Header and time are before it. It says how much data there is.
        kernel.scribble(cpu, begin + 16, &u32::MAX.to_ne_bytes());
        record(kernel, cpu, time + 105, 8);
    }
}

fn merged() -> Merge {
    let kernel = sim::Kernel::new(&[0, 1]);
    trouble(&kernel);
    let mut merge = Merge::new(kernel.rings(), order()).unwrap();
    merge.refresh(0);
    merge
}

/// A reader that ends when all is read, and says so.
fn reader() -> Reader {
    let kernel = sim::Kernel::new(&[0, 1]);
    trouble(&kernel);
    let reader = Reader::new(kernel.rings(), order()).unwrap();
    reader.handle().flush().unwrap();
    reader.handle().set_deadline(Some(Instant::now())).unwrap();
    reader
}

/// The fence ends at once. Otherwise a reader that waits for 50 ms could get no event.
fn order() -> Order {
    Order::new().hold(Hold::None).numbers(Key::Payload(NUMBER), None)
}

/// Takes the printed lines about records, losses, gaps, damage and flushes.
fn printed() -> [usize; 5] {
    let mut counts = [0; 5];
    for line in PRINTED.take() {
        let about = ["Lost", "Gap", "Damage", "Flushed"].iter().position(|what| line.contains(what));
        let about = about.or(line.contains(" lost 3 records here").then_some(0));
        counts[about.map_or(0, |about| about + 1)] += 1;
    }
    counts
}

/// The counts of a reader.
const ALL: [usize; 5] = [RECORDS, 2, 2, 2, 1];

/// The counts of the records in the rings.
const WITHOUT_FLUSH: [usize; 5] = [RECORDS, 2, 2, 2, 0];

/// Asserts that all events were printed and that the stream has ended.
#[track_caller]
fn assert_all(reader: &Reader) {
    assert_eq!((printed(), reader.ended()), (ALL, Some(Ended::Deadline { complete: true })));
}

#[test]
fn the_first_program() {
    let (mut reader, formats) = (reader(), [FORMAT.parse::<Format>().unwrap()]);
    documented!("README.md":
        while let Some(event) = reader.next()? {
            let time = event.key().unwrap_or(0);
            match event.item() {
                Item::Record(record) => {
                    let line = record.source().and_then(|source| formats[source].line(&record));
                    println!("{time} CPU {}: {}", record.cpu(), line.unwrap_or_else(|| format!("{record:?}")));
                }
                Item::Lost(lost) => println!("{time} CPU {} lost {} records here", lost.cpu, lost.count),
                other => println!("{time} {other:?}"),
            }
        }
    );
    let line = PRINTED.with_borrow(|lines| lines[0].clone());
    assert_eq!(line, "101 CPU 0: next_comm=task next_pid=101", "no bytes: text");
    assert_all(&reader);
}

#[test]
fn the_first_loop_of_the_crate() {
    let (mut reader, switch) = (reader(), FORMAT.parse::<Format>().unwrap());
    documented!("src/lib.rs":
        while let Some(event) = reader.next()? {
            match event.record() {
                Some(record) => println!("{:?} on CPU {}: {:?}", event.key(), record.cpu(), switch.line(&record)),
                None => println!("{:?}: {:?}", event.key(), event.item()),
            }
        }
    );
    assert_all(&reader);
}

#[test]
fn fields_by_name() {
    let (mut reader, switch) = (reader(), FORMAT.parse::<Format>().unwrap());
    let (next, name) = (switch.field("next_pid").unwrap(), switch.field("next_comm").unwrap());
    documented!("crates/events/src/lib.rs":
        while let Some(event) = reader.next()? {
            match event.record() {
                Some(record) => println!("{:?} {:?}: {:?}", next.int(&record), name.text(&record), switch.line(&record)),
                None => println!("{:?}", event.item()),
            }
        }
    );
    assert_all(&reader);
}

#[test]
fn a_reader_with_a_deadline() {
    let mut reader = reader();
    documented!("src/reader/blocking.rs":
        reader.handle().set_deadline(Some(Instant::now() + Duration::from_millis(50)))?;
        while let Some(event) = reader.next()? {
            println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.item());
        }
        assert_eq!(reader.ended(), Some(Ended::Deadline { complete: true }));
    );
    assert_all(&reader);
}

/// The pages of the guide. A loop that prints no item prints one line for each event.
#[test]
fn the_guide_to_ordering() {
    let mut reader = self::reader();
    documented!("docs/guide/ordering.md": while let Some(event) = reader.next()? {
        match event.item() {
            Item::Record(record) => println!("{:?} on CPU {}", event.key(), record.cpu()),
            other => println!("{:?}: {other:?}", event.key()),
        }
        if event.certainty() == Certainty::Late {
            println!("late by {} ns", event.late_by());
        }
    });
    assert_all(&reader);
}

#[test]
fn the_guide_to_loss() {
    let mut reader = self::reader();
    documented!("docs/guide/loss.md": while let Some(event) = reader.next()? {
        match event.item() {
            Item::Record(record) => println!("CPU {}: {record:?}", record.cpu()),
            Item::Lost(lost) => println!("CPU {} lost {} records between {:?} and {:?}", lost.cpu, lost.count, lost.after, lost.until),
            Item::Gap(gap) => println!("{} numbers are missing, from {} to {}", gap.count, gap.first, gap.last),
            other => println!("{other:?}"),
        }
    });
    let printed = PRINTED.with_borrow(Clone::clone);
    let with = |text: &str| printed.iter().filter(|line| line.contains(text)).count();
    assert_eq!([with(" lost 3 records between "), with("5 numbers are missing, from 2 to 6")], [2, 2]);
    assert_eq!(
        (self::printed(), reader.ended()),
        ([RECORDS + 4, 0, 0, 2, 1], Some(Ended::Deadline { complete: true }))
    );
}

#[test]
fn the_guides_to_sizing_and_hold_rules() {
    let mut reader = self::reader();
    documented!("docs/guide/sizing.md": while let Some(event) = reader.next()? {
        println!("{:?}", event.item());
    });
    assert_all(&reader);

    let mut reader = self::reader();
    documented!("docs/guide/hold_rules.md": while let Some(event) = reader.next()? {
        println!("{:?} {:?}", event.key(), event.certainty());
    });
    assert_eq!((printed(), reader.ended()), ([ALL.iter().sum(), 0, 0, 0, 0], Some(Ended::Deadline { complete: true })));
}

#[test]
fn the_guide_to_migrating() {
    let mut reader = self::reader();
    documented!("docs/guide/migrating.md": while let Some(event) = reader.next()? {
        match event.item() {
            Item::Record(record) => println!("CPU {}: {:?}", record.cpu(), record.payload()),
            Item::Lost(lost) => println!("CPU {} lost {}", lost.cpu, lost.count),
            other => println!("{other:?}"),
        }
    });
    assert_eq!((printed(), reader.ended()), ([RECORDS + 2, 0, 2, 2, 1], Some(Ended::Deadline { complete: true })));

    let mut reader = self::reader();
    documented!("docs/guide/migrating.md": while let Some(event) = reader.next()? {
        println!("{:?}", event.key());
    });
    assert_eq!((printed(), reader.ended()), ([ALL.iter().sum(), 0, 0, 0, 0], Some(Ended::Deadline { complete: true })));
}

#[test]
fn without_order() {
    let kernel = sim::Kernel::new(&[0, 1]);
    trouble(&kernel);
    let mut rings = kernel.rings();
    let (mut records, mut lost) = (0, 0);
    documented!("src/reader/unordered.rs":
        let _ = rings.drain(|event| {
            match event.item() {
                Item::Record(_) => records += 1,
                Item::Lost(loss) => lost += loss.count,
                other => println!("{other:?}"),
            }
            ControlFlow::<()>::Continue(())
        });
    );
    // Numbers are checked where there is an order.
    assert_eq!((records, lost, printed()), (RECORDS, 6, [0, 0, 0, 2, 0]));
}

#[test]
fn a_simulated_machine() {
    let mut merge = merged();
    let times: Vec<_> = merge.batch().map(|event| event.key()).collect();
    assert_eq!(times.len(), WITHOUT_FLUSH.iter().sum());
    assert_eq!(merge.status().total().yielded, RECORDS as u64);
}

#[test]
fn what_a_recorder_has_kept() {
    let layout = Layout::new(u64::from(bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME), true, 0);
    let kernel = sim::Kernel::backward(&[0], 64 << 10, layout);
    let mut recorder = kernel.recorder().unwrap();
    record(&kernel, 0, 101, 0);
    kernel.lose(0, 3);
    record(&kernel, 0, 102, 1);
    record(&kernel, 0, 103, 2);
    kernel.scribble(0, kernel.head(0).wrapping_add(16), &u32::MAX.to_ne_bytes());
    record(&kernel, 0, 104, 3);
    let rings = recorder.freeze().unwrap();
    let from = 102;
    documented!("src/recorder/recording.rs":
        let mut reader = Reader::new(rings, Order::new())?;
        while let Some(event) = reader.next()? {
            if event.key().is_none_or(|key| key >= from) {
                println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.item());
            }
        }
    );
    assert_eq!(printed(), [2, 1, 0, 1, 0]);
}

mod recordings {
    use super::*;
    use perfweave_perf_data as perf_data;

    /// A new file, removed when dropped.
    struct File(PathBuf);

    impl File {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("perfweave-loops-{name}-{}", std::process::id())))
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// A recording with losses and damage, written by the loop of the documentation of `perf_data`.
    fn recorded(name: &str) -> File {
        let file = File::new(name);
        let kernel = sim::Kernel::new(&[0, 1]);
        trouble(&kernel);
        let rings = kernel.rings();
        let mut writer = perf_data::Writer::create(&file.0, &rings).unwrap();
        let mut reader = Reader::new(rings, order()).unwrap();
        documented!("crates/perf-data/src/lib.rs":
            while let Some(event) = reader.next_timeout(Duration::ZERO)? {
                writer.write(&event.event())?;
            }
        );
        // perf has no record for gaps and damage.
        let written = writer.finish().unwrap();
        assert_eq!((written.records, written.lost, written.left_out), (RECORDS as u64, 6, 4));

        // So the file is damaged afterwards, in the middle.
        let mut bytes = std::fs::read(&file.0).unwrap();
        for pid in [103u32, 113] {
            let data = [pid.to_ne_bytes(), [0; 4], *b"task"].concat();
            let found = bytes.windows(data.len()).position(|window| window == data).unwrap();
            // The number is at offset 8 of the data, and the length of the data is before it.
            bytes[found - 12..][..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        }
        std::fs::write(&file.0, bytes).unwrap();
        file
    }

    const READ: [usize; 5] = [RECORDS - 2, 2, 2, 2, 0];

    #[test]
    fn a_recording_is_printed() {
        let file = recorded("printed");
        let mut reader = Reader::new(perf_data::open(&file.0).unwrap(), order()).unwrap();
        documented!("crates/perf-data/src/open.rs":
            while let Some(event) = reader.next()? {
                println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.item());
            }
        );
        assert_eq!(printed(), READ);
    }

    #[test]
    fn a_recording_up_to_its_end() {
        let file = recorded("end");
        let mut reader = Reader::new(perf_data::open(&file.0).unwrap(), order()).unwrap();
        let mut read = Vec::new();
        documented!("crates/perf-data/src/lib.rs":
            while let Some(event) = reader.next()? {
                read.push((event.key(), event.cpu()));
            }
            assert_eq!(reader.ended(), Some(Ended::Recording));
        );
        assert_eq!(read.len(), READ.iter().sum());
        assert_eq!(reader.status().total().yielded, READ[0] as u64);
    }

    #[test]
    fn a_recording_for_so_long() {
        let file = File::new("many");
        let kernel = sim::Kernel::with(&[0, 1], 1 << 20, Layout::new(1024 | 4, true, 0));
        trouble(&kernel);
        (0..2000).for_each(|more| record(&kernel, 0, 200 + more, 9 + more));
        let mut reader = Reader::new(kernel.rings(), order()).unwrap();
        let mut writer = perf_data::Writer::create(&file.0, reader.rings()).unwrap();
        documented!("crates/perf-data/src/writer.rs":
            reader.handle().set_deadline(Some(Instant::now() + Duration::from_secs(1)))?;
            while let Some(event) = reader.next()? {
                writer.write(&event.event())?;
            }
        );
        let written = writer.finish().unwrap();
        assert_eq!((written.records, written.lost, written.left_out), (2000 + RECORDS as u64, 6, 4));
    }
}

/// How many events of each kind an iterator gives.
#[derive(Debug, Default, PartialEq)]
struct Count([usize; 5]);

impl Count {
    fn add(&mut self, event: Event<'_>) {
        let at = match event.item() {
            Item::Record(_) => 0,
            Item::Lost(_) => 1,
            Item::Gap(_) => 2,
            Item::Damage(_) => 3,
            Item::Flushed { .. } => 4,
            other => panic!("{other:?}"),
        };
        self.0[at] += 1;
    }
}

/// A way to read all that a reader has.
type Way = fn(&mut Reader, &mut Count) -> Result<(), Error>;

#[test]
fn no_way_to_iterate_ends_before_the_end() {
    let ways: [(&str, Way); 4] = [
        ("next", |reader, count| {
            while let Some(event) = reader.next()? {
                count.add(event.event());
            }
            Ok(())
        }),
        ("next_timeout", |reader, count| {
            while let Some(event) = reader.next_timeout(Duration::MAX)? {
                count.add(event.event());
            }
            Ok(())
        }),
        ("batch", |reader, count| {
            while let Some(batch) = reader.batch(Duration::MAX)? {
                batch.for_each(|event| count.add(event));
            }
            Ok(())
        }),
        ("try_fold", |reader, count| {
            while reader.ended().is_none() {
                let all = reader.try_fold((), |(), event| {
                    count.add(event);
                    ControlFlow::<(), ()>::Continue(())
                })?;
                assert!(all.is_continue());
            }
            Ok(())
        }),
    ];
    for (name, way) in ways {
        let (mut reader, mut count) = (reader(), Count::default());
        way(&mut reader, &mut count).unwrap();
        assert_eq!((count, reader.ended()), (Count(ALL), Some(Ended::Deadline { complete: true })), "{name}");
    }

    let (mut merge, mut count) = (merged(), Count::default());
    while let Some(event) = merge.next() {
        count.add(event.event());
    }
    assert_eq!(count, Count(WITHOUT_FLUSH), "Merge::next");
    let (mut merge, mut count) = (merged(), Count::default());
    merge.batch().for_each(|event| count.add(event));
    assert_eq!(count, Count(WITHOUT_FLUSH), "Merge::batch");

    let kernel = sim::Kernel::new(&[0, 1]);
    trouble(&kernel);
    let (mut rings, mut count) = (kernel.rings(), Count::default());
    let drained = rings.drain(|event| {
        count.add(event);
        ControlFlow::<()>::Continue(())
    });
    assert!(drained.is_continue());
    assert_eq!(count, Count([RECORDS, 2, 0, 2, 0]), "Rings::drain");
}

/// The loop that `AsyncReader` has: to the end of a flush.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_that_reads_to_the_end_of_a_flush() {
    let kernel = sim::Kernel::new(&[0, 1]);
    trouble(&kernel);
    let mut reader = perfweave::AsyncReader::new(kernel.rings(), order()).unwrap();
    assert_documented(
        "src/reader/tokio.rs",
        stringify!(while let Some(event) = reader.next().await? {
            println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.item());
            if let Item::Flushed { .. } = event.item() {
                break;
            }
        }),
    );
    reader.handle().flush().unwrap();
    // Word for word, but for what is done with an error.
    while let Some(event) = reader.next().await.unwrap() {
        println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.item());
        if let Item::Flushed { .. } = event.item() {
            break;
        }
    }
    assert_eq!(printed(), ALL);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn no_way_to_iterate_under_tokio_ends_before_the_end() {
    use perfweave::AsyncReader;

    let reader = || {
        let kernel = sim::Kernel::new(&[0, 1]);
        trouble(&kernel);
        let reader = AsyncReader::new(kernel.rings(), order()).unwrap();
        reader.handle().flush().unwrap();
        reader.handle().set_deadline(Some(Instant::now())).unwrap();
        reader
    };
    let (mut one, mut count) = (reader(), Count::default());
    while let Some(event) = one.next().await.unwrap() {
        count.add(event.event());
    }
    assert_eq!((count, one.ended()), (Count(ALL), Some(Ended::Deadline { complete: true })), "next");

    let (mut many, mut count) = (reader(), Count::default());
    while let Some(batch) = many.batch().await.unwrap() {
        batch.for_each(|event| count.add(event));
    }
    assert_eq!((count, many.ended()), (Count(ALL), Some(Ended::Deadline { complete: true })), "batch");
}
