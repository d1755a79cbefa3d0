//! The flight recorder on simulated rings, which are written backwards over the oldest records.

use crate::{reading, text};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use perf_event_open_sys::bindings;
use perfweave::{
    Certainty, Clock, Event, Fault, Fence, Handle, Item, Key, Layout, Merge, Order, Pause, Recorder, Rings, sim,
};
use perfweave_events::EventOptions;
use perfweave_support::{apart, assert_error, threads};
use quickcheck::QuickCheck;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

const TID: u64 = 2;
const TIME: u64 = 4;
const RAW: u64 = 1024;
const IDENTIFIER: u64 = 65536;

/// Header, time, length, and 4 bytes: 24 each.
fn machine(cpus: &[u32], bytes: usize) -> (sim::Kernel, Recorder) {
    let kernel = sim::Kernel::backward(cpus, bytes, Layout::new(TIME | RAW, true, 0));
    let recorder = kernel.recorder().unwrap();
    (kernel, recorder)
}

/// What a recorder holds, by these keys.
fn copied(recorder: &mut Recorder, key: Key) -> Merge {
    merged(recorder.freeze().unwrap(), key)
}

fn merged(rings: Rings, key: Key) -> Merge {
    let mut merge = Merge::new(rings, Order::new().key(key)).unwrap();
    merge.refresh(0);
    merge
}

fn texts(recorder: &mut Recorder) -> Vec<String> {
    copied(recorder, Key::Time).batch().map(|event| text(&event)).collect()
}

#[test]
fn nothing_is_in_rings_that_nobody_wrote_to() {
    let (_kernel, mut recorder) = machine(&[0, 3], 4096);
    for _ in 0..3 {
        assert_eq!((texts(&mut recorder).len(), recorder.complete_from()), (0, None));
    }
}

/// A copy is the reader's own: whatever becomes of the recorder and its rings, it has what it had.
#[test]
fn what_was_written_is_in_every_copy() {
    let (kernel, mut recorder) = machine(&[5], 4096);
    assert!(kernel.emit(5, 10, b"only"));
    let copies: Vec<_> = (0..3).map(|_| recorder.freeze().unwrap()).collect();
    assert_eq!(recorder.complete_from(), None);
    (20..300).for_each(|time| assert!(kernel.emit(5, time, b"over")));
    drop((recorder, kernel));
    for rings in copies {
        assert!(!rings.are_live() && rings.cpus().eq([5]) && rings.ids().eq([(1000, 0)]));
        let mut merge = merged(rings, Key::Time);
        let events: Vec<_> = merge.batch().collect();
        let [event] = events[..] else { panic!("{events:?}") };
        assert_eq!(
            (event.key(), event.cpu(), event.certainty(), event.late_by()),
            (Some(10), Some(5), Certainty::Proven, 0)
        );
        let record = event.record().unwrap();
        assert_eq!((record.cpu(), record.time(), record.kind()), (5, Some(10), bindings::PERF_RECORD_SAMPLE));
        assert_eq!(record.payload().unwrap().to_vec(), b"only");
    }
}

/// Recording goes on as soon as `freeze` has returned: what is written then is in the next copy.
#[test]
fn recording_goes_on_when_a_copy_is_made() {
    let (kernel, mut recorder) = machine(&[0, 1], 4096);
    kernel.emit(0, 10, b"before");
    let first = recorder.freeze().unwrap();
    assert!(kernel.emit(0, 20, b"after") && kernel.emit(1, 15, b"too"), "the rings stand still");
    let second = recorder.freeze().unwrap();
    let texts = |rings| merged(rings, Key::Time).batch().map(|event| text(&event)).collect::<Vec<_>>();
    assert_eq!(texts(first), ["before"]);
    assert_eq!(texts(second), ["before", "too", "after"]);
}

#[test]
fn cpus_are_merged_by_key_then_by_cpu_then_by_age() {
    let (kernel, mut recorder) = machine(&[7, 0, 300, 2], 4096);
    for cpu in [300, 7, 2, 0] {
        kernel.emit(cpu, 50, format!("{cpu}a").as_bytes());
        kernel.emit(cpu, 50, format!("{cpu}b").as_bytes());
    }
    kernel.emit(2, 70, b"last");
    kernel.emit(300, 20, b"back");
    kernel.emit(0, 60, b"mid");
    let expected = ["back", "0a", "0b", "2a", "2b", "7a", "7b", "300a", "300b", "mid", "last"];
    assert_eq!(texts(&mut recorder), expected);
}

/// Losses have their places, as in a ring that is read while it is written.
#[test]
fn what_is_lost_is_said() {
    let (kernel, mut recorder) = machine(&[0, 1], 4096);
    kernel.emit(0, 10, b"before");
    kernel.lose(0, 3);
    kernel.lose(1, 1);
    // No LOST record counts it until the next record is written.
    assert_eq!(texts(&mut recorder), ["before"]);
    kernel.emit(1, 20, b"first");
    kernel.emit(0, 30, b"behind");
    kernel.emit(0, 31, b"more");
    let mut merge = copied(&mut recorder, Key::Time);
    let events: Vec<_> = merge.batch().collect();
    let texts: Vec<_> = events.iter().map(text).collect();
    assert_eq!(texts, ["before", "lost 1", "first", "lost 3", "behind", "more"]);
    let losses = events.iter().filter_map(|event| Some((event, event.item().lost()?)));
    let losses: Vec<_> = losses
        .map(|(event, lost)| {
            let place = (event.key(), event.cpu(), event.certainty());
            assert_eq!(place, (lost.until, Some(lost.cpu), Certainty::Proven));
            (lost.cpu, lost.count, lost.source, lost.after, lost.until)
        })
        .collect();
    assert_eq!(losses, [(1, 1, Some(0), None, Some(20)), (0, 3, Some(0), Some(10), Some(30))]);
    assert_eq!(recorder.complete_from(), None, "nothing was overwritten");
}

/// A writer that is interrupted between clock and output lies after its interrupts, with a smaller key.
#[test]
fn writers_that_were_interrupted_come_before_their_interrupts() {
    let (kernel, mut recorder) = machine(&[0, 1], 4096);
    kernel.begin(0, 100);
    kernel.begin(0, 130);
    kernel.emit(0, 140, b"deepest");
    kernel.write(0, b"deeper");
    kernel.end(0);
    kernel.write(0, b"interrupted");
    // Not published before the outermost is done.
    kernel.emit(0, 150, b"between");
    kernel.end(0);
    kernel.emit(1, 120, b"elsewhere");
    let mut merge = copied(&mut recorder, Key::Time);
    let events: Vec<_> = merge.batch().collect();
    let texts: Vec<_> = events.iter().map(text).collect();
    assert_eq!(texts, ["interrupted", "elsewhere", "deeper", "deepest", "between"]);
    assert!(events.iter().all(|event| event.certainty() == Certainty::Proven));
}

#[test]
fn the_oldest_is_overwritten_and_what_is_left_of_it_is_no_damage() {
    // Two records of 24 bytes fit, and 16 bytes of a third.
    let (kernel, mut recorder) = machine(&[0, 1], 64);
    kernel.emit(1, 5, b"else");
    for time in 10..40 {
        kernel.emit(0, time, format!("{time}").as_bytes());
        let mut expected = vec!["else".to_owned()];
        expected.extend(((time - 1).max(10)..=time).map(|time| time.to_string()));
        assert_eq!(texts(&mut recorder), expected);
        // Too few are left to say from when on the recording is complete.
        assert_eq!(recorder.complete_from(), (time > 11).then_some(u64::MAX));
    }
}

/// The ring's length is a multiple of the record's, so no record is cut.
#[test]
fn a_ring_that_is_exactly_full_was_not_overwritten() {
    // 8 + 8 + 4 + 12 = 32.
    let (kernel, mut recorder) = machine(&[0], 256);
    for time in 1..=20u64 {
        kernel.emit(0, time, b"twelve bytes");
        let keys: Vec<u64> = copied(&mut recorder, Key::Time).batch().map(|event| event.key().unwrap()).collect();
        assert_eq!(keys, (time.saturating_sub(7).max(1)..=time).collect::<Vec<_>>());
        // The fourth: the writers of three may have been interrupted by overwritten records.
        assert_eq!(recorder.complete_from(), (time > 8).then(|| time - 4));
    }
}

/// The oldest record that is left may be older than an overwritten one.
#[test]
fn what_is_complete_is_said_with_interrupted_writers_in_mind() {
    let (kernel, mut recorder) = machine(&[0], 256);
    kernel.begin(0, 100);
    kernel.emit(0, 130, b"twelve bytes");
    kernel.write(0, b"twelve bytes");
    kernel.end(0);
    for time in 140..147 {
        kernel.emit(0, time, b"twelve bytes");
    }
    let keys: Vec<_> = copied(&mut recorder, Key::Time).batch().map(|event| event.key()).collect();
    assert_eq!((keys[0], keys.len()), (Some(100), 8));
    assert!(recorder.complete_from().is_some_and(|from| from > 130), "130 is gone");
}

/// A loss lies before its record, so its record is overwritten first.
#[test]
fn a_loss_outlives_its_record() {
    let (kernel, mut recorder) = machine(&[0], 128);
    kernel.pause(0, true);
    kernel.emit(0, 1, b"drop");
    kernel.pause(0, false);
    // 32 and 24 bytes, then 96 in a ring of 128: the record of 24 is overwritten.
    kernel.emit(0, 2, b"cut");
    (3..7).for_each(|time| assert!(kernel.emit(0, time, b"kept")));
    let mut merge = copied(&mut recorder, Key::Time);
    let events: Vec<_> = merge.batch().collect();
    assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["lost 1", "kept", "kept", "kept", "kept"]);
    // Its own record was no later than the one that is left.
    let lost = events[0].item().lost().unwrap();
    assert_eq!((lost.after, lost.until, events[0].key()), (None, Some(3), Some(3)));
}

/// Busy rings reach back less far than idle ones, and the busiest one decides from when on the recording is complete.
#[test]
fn the_busiest_ring_says_from_when_on_all_is_there() {
    let (kernel, mut recorder) = machine(&[0, 1, 2], 256);
    for time in 1..=100 {
        kernel.emit(0, time * 10, b"twelve bytes");
        if time % 4 == 0 {
            kernel.emit(1, time * 10 + 1, b"twelve bytes");
        }
    }
    kernel.emit(2, 15, b"once");
    let keys: Vec<u64> = copied(&mut recorder, Key::Time).batch().map(|event| event.key().unwrap()).collect();
    // CPU 0 has 930 to 1000, CPU 1 has 721 to 1001 and so is complete from 841 on.
    let from = recorder.complete_from().unwrap();
    assert_eq!((from, keys[0]), (960, 15));
    assert!(keys.into_iter().filter(|key| *key >= from).eq([960, 961, 970, 980, 990, 1000, 1001]));
}

/// Without any key, records come by CPU, then by age, and none is proven.
#[test]
fn without_any_key_rings_come_one_after_the_other() {
    let kernel = sim::Kernel::backward(&[4, 1], 64, Layout::RAW);
    let mut recorder = kernel.recorder().unwrap();
    for n in 0..10 {
        kernel.emit(4, 1, format!("d{n}").as_bytes());
        kernel.emit(1, 1, format!("a{n}").as_bytes());
    }
    let mut merge = copied(&mut recorder, Key::Fn(Box::new(|_| None)));
    let events: Vec<_> = merge.batch().collect();
    assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["a6", "a7", "a8", "a9", "d6", "d7", "d8", "d9"]);
    assert!(events.iter().all(|event| event.certainty() == Certainty::Assumed && event.key().is_none()));
    // Nor do these records have a time.
    assert_eq!(recorder.complete_from(), Some(u64::MAX));
}

#[test]
fn other_kinds_have_their_place() {
    let (kernel, mut recorder) = machine(&[0, 1], 4096);
    kernel.emit(0, 1, b"a");
    kernel.begin(1, 2);
    kernel.write_other(1, bindings::PERF_RECORD_COMM, 0x2000, &[1; 16]);
    kernel.end(1);
    kernel.emit(0, 3, b"b");
    assert_eq!(texts(&mut recorder), ["a", "COMM", "b"]);
}

/// A CPU that comes online gets a ring, and a place in the order of CPUs.
#[test]
fn cpus_that_come_are_followed() {
    let (kernel, mut recorder) = machine(&[1, 5], 4096);
    kernel.emit(5, 10, b"five");
    kernel.plug(3);
    recorder.follow_cpus().unwrap();
    kernel.emit(3, 10, b"three");
    kernel.emit(1, 10, b"one");
    assert_eq!(texts(&mut recorder), ["one", "three", "five"]);
    recorder.handle().pause(Pause::Output).unwrap();
    assert!(!kernel.emit(3, 11, b"dropped"), "stopped like the others");
}

/// A handle may resume at any time. What is copied stays as it is meanwhile: the kernel would write over it.
#[test]
fn a_handle_resumes_nothing_that_is_copied() {
    let kernel = sim::Kernel::backward(&[0], 4096, Layout::new(TIME | RAW, true, 0));
    let handle: Arc<OnceLock<Handle>> = Arc::default();
    let (writer, resumes) = (kernel.clone(), Arc::clone(&handle));
    // The fence is waited for while the rings stand still.
    let fence = Fence::by(move || {
        resumes.get().unwrap().resume().map_err(std::io::Error::from)?;
        assert!(!writer.emit(0, 20, b"over"), "it is written while it is copied");
        Ok(())
    });
    let mut recorder = kernel.recorder_with(&fence).unwrap();
    handle.set(recorder.handle()).unwrap();
    kernel.emit(0, 10, b"copied");
    assert_eq!(texts(&mut recorder), ["copied"]);
    assert!(kernel.emit(0, 30, b"on"));
    // A pause by a handle goes on until somebody resumes, or a copy is made.
    let handle = recorder.handle();
    handle.pause(Pause::Output).unwrap();
    assert!(!kernel.emit(0, 40, b"paused"));
    handle.resume().unwrap();
    assert!(kernel.emit(0, 50, b"on"));
    handle.pause(Pause::Output).unwrap();
    assert_eq!(texts(&mut recorder), ["copied", "lost 1", "on", "lost 1", "on"]);
    assert!(kernel.emit(0, 60, b"on"));
}

/// What is far ahead of this machine's clock is damage in a copy, too: another's machine is that of a file alone.
#[test]
fn a_time_from_the_future_is_damage() {
    let now = Clock::Monotonic.now().unwrap();
    let kernel = sim::Kernel::backward(&[0], 4096, Layout::new(TIME | RAW, true, 0));
    kernel.set_clock(Clock::Monotonic);
    let mut recorder = kernel.recorder().unwrap();
    kernel.emit(0, now, b"real");
    kernel.emit(0, now + 3_600_000_000_000, b"forged");
    assert_eq!(texts(&mut recorder), ["real", "damage 32"]);
}

/// No memory for a copy is an error. Recording goes on, unless somebody has paused it to keep what happened.
#[test]
fn a_copy_that_memory_does_not_hold_is_an_error() {
    apart!();
    let (kernel, mut recorder) = machine(&[0, 1], 64 << 20);
    kernel.emit(0, 10, b"kept");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
    let (before, most) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, size + (200 << 20), most).unwrap();
    assert_error!(recorder.freeze().map(drop).unwrap_err(), Limit, "no memory for 268435456 bytes");
    assert!(kernel.emit(0, 20, b"goes on") && kernel.emit(1, 30, b"too"));
    recorder.handle().pause(Pause::Output).unwrap();
    assert_error!(recorder.freeze().map(drop).unwrap_err(), Limit, "no memory for 268435456 bytes");
    assert!(!kernel.emit(0, 40, b"away"), "it is paused");
    setrlimit(Resource::RLIMIT_AS, before, most).unwrap();
    assert_eq!(texts(&mut recorder), ["kept", "goes", "too"]);
}

/// The pause alone does not wait for writers. `freeze` waits for a writer that has reserved and not yet published.
#[test]
fn a_writer_in_flight_is_waited_for() {
    let (kernel, mut recorder) = machine(&[0, 1], 4096);
    kernel.emit(0, 10, b"before");
    kernel.begin(0, 20);
    kernel.write(0, b"flying");
    // Another has read the clock and will find the ring paused.
    kernel.begin(0, 30);
    let (told, thread) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let freezing = scope.spawn(|| {
            told.send(threads::own()).unwrap();
            recorder.freeze()
        });
        let thread = thread.recv().unwrap();
        threads::until("all is paused before the fence", || !kernel.emit(1, 5, b"spin"));
        // For several polls of the fence.
        threads::until_slept(thread, 3);
        assert!(!freezing.is_finished(), "two writers are inside");
        assert!(!kernel.write(0, b"late"));
        kernel.end(0);
        threads::until_slept(thread, 3);
        assert!(!freezing.is_finished(), "one writer is inside");
        // It does not wait for later writers.
        kernel.begin(1, 40);
        kernel.end(0);
        let mut merge = merged(freezing.join().unwrap().unwrap(), Key::Time);
        kernel.end(1);
        let zero: Vec<_> = merge.batch().map(|event| text(&event)).filter(|text| text != "spin").collect();
        assert_eq!(zero, ["before", "flying"]);
    });
    kernel.emit(0, 50, b"again");
    assert!(texts(&mut recorder).ends_with(&["lost 1".into(), "again".into()]));
}

/// Invalid sizes: all older records are given up, all newer ones are there, and other rings are not affected.
#[test]
fn bad_sizes_are_damage_and_the_newer_is_there() {
    for size in [0u16, 1, 7, 9, 12, 20, 4096, 65528, 65535] {
        let (kernel, mut recorder) = machine(&[0, 1], 4096);
        kernel.emit(0, 9, b"gone");
        kernel.emit(0, 10, b"bad");
        let bad = kernel.head(0);
        (11..15).for_each(|time| assert!(kernel.emit(0, time, b"good")));
        kernel.emit(1, 8, b"else");
        kernel.scribble(0, bad.wrapping_add(6), &size.to_ne_bytes());
        let mut merge = copied(&mut recorder, Key::Time);
        let events: Vec<_> = merge.batch().collect();
        let expected = ["damage 48", "else", "good", "good", "good", "good"];
        assert_eq!(events.iter().map(text).collect::<Vec<_>>(), expected, "{size}");
        let Item::Damage(damage) = events[0].item() else { panic!() };
        assert_eq!((damage.cpu, damage.fault()), (0, Fault::Size { size: size.into(), room: 48 }));
        assert_eq!((events[0].key(), events[0].certainty()), (None, Certainty::Assumed));
        assert_eq!(recorder.complete_from(), Some(14), "the older records are missing");
        // Later output overwrites the bad bytes, and then all records are valid.
        (20..220).for_each(|time| assert!(kernel.emit(0, time, b"new")));
        let mut merge = copied(&mut recorder, Key::Time);
        let records: Vec<_> = merge.batch().map(|event| event.record()).collect();
        assert!(records.len() == 1 + 4096 / 24 && records.iter().all(Option::is_some));
    }
}

/// In an overwritten ring, a size past the end belongs to the cut record if such a record could have been whole;
/// otherwise it is damage.
#[test]
fn only_what_can_have_been_whole_is_taken_for_cut() {
    for (size, damaged) in [(0u16, true), (12, true), (64, false), (1024, false), (1032, true), (65528, true)] {
        let (kernel, mut recorder) = machine(&[0], 1024);
        (0..100).for_each(|time| assert!(kernel.emit(0, time, b"fill")));
        // The second from the back: 24 bytes and the 16 of the cut record after it.
        let bad = kernel.head(0).wrapping_add(24 * 41);
        kernel.scribble(0, bad.wrapping_add(6), &size.to_ne_bytes());
        let mut merge = copied(&mut recorder, Key::Time);
        let events: Vec<_> = merge.batch().collect();
        assert_eq!(matches!(events[0].item(), Item::Damage(_)), damaged, "{size}");
        assert_eq!(events.len(), 41 + usize::from(damaged));
        assert_eq!(recorder.complete_from(), Some(62));
    }
}

/// A bad raw size harms only that record.
#[test]
fn a_bad_raw_size_is_damage_of_one_record() {
    let (kernel, mut recorder) = machine(&[0], 4096);
    kernel.emit(0, 10, b"good");
    kernel.emit(0, 11, b"bad");
    let bad = kernel.head(0);
    kernel.emit(0, 12, b"newer");
    kernel.scribble(0, bad.wrapping_add(16), &1000u32.to_ne_bytes());
    let mut merge = copied(&mut recorder, Key::Time);
    let events: Vec<_> = merge.batch().collect();
    assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["good", "damage 24", "newer"]);
    let Item::Damage(damage) = events[1].item() else { panic!() };
    assert_eq!(damage.fault(), Fault::Raw { raw_size: 1000, room: 4 });
    assert_eq!((damage.bytes.u64(8), events[1].key()), (Some(11), None));
    assert_eq!(recorder.complete_from(), None, "nothing else is missing");
}

/// With any head there is no panic and no endless stream, and records written from there on are found.
#[test]
fn wild_heads_harm_nothing_but_their_ring() {
    for wild in [0, 1, 3, 7, 24, 4096, 5000, 1 << 32, 1 << 63, u64::MAX, u64::MAX - 3, u64::MAX - 4095, u64::MAX - 9000]
    {
        let (kernel, mut recorder) = machine(&[0, 1], 4096);
        (0..300).for_each(|time| assert!(kernel.emit(0, time, b"fill")));
        kernel.emit(1, 8, b"else");
        kernel.force_head(0, wild);
        let cpus: Vec<_> = copied(&mut recorder, Key::Time).batch().map(|event| event.cpu()).collect();
        assert!(cpus.len() <= 1 + 4096 / 8 && cpus.iter().filter(|cpu| **cpu == Some(1)).count() == 1);
        for time in 1000..1004 {
            kernel.emit(0, time, b"new!");
        }
        assert!(texts(&mut recorder).ends_with(&["new".into(), "new".into(), "new".into()]), "head {wild:x}");
    }
}

/// Hostile bytes and later records of the kernel appear in the order in which they were written.
#[test]
fn what_is_written_behind_hostile_bytes_replaces_them() {
    let (kernel, mut recorder) = machine(&[0], 64);
    kernel.emit(0, 1, b"old!");
    kernel.scribble(0, kernel.head(0), &[0xff; 24]);
    (2..10).for_each(|time| assert!(kernel.emit(0, time, b"new!")));
    assert_eq!(texts(&mut recorder), ["new"; 2]);
    kernel.force_head(0, 0u64.wrapping_sub(6400));
    kernel.emit(0, 20, b"once");
    kernel.emit(0, 21, b"more");
    assert_eq!(texts(&mut recorder), ["once", "more"]);
}

/// Output that is longer than the ring or than a header can say overwrites itself, as in the kernel.
#[test]
fn output_that_is_too_long_is_damage_and_recording_goes_on() {
    for (ring, size, fill) in
        [(4096, 5000, 0u8), (4096, 5000, 0xff), (4096, 5000, 0x20), (4096, 70_000, 0), (1 << 17, 70_000, 0xff)]
    {
        let (kernel, mut recorder) = machine(&[0, 1], ring);
        (0..10).for_each(|time| assert!(kernel.emit(0, time, b"fill")));
        kernel.emit(1, 5, b"else");
        kernel.emit(0, 20, &vec![fill; size]);
        let mut merge = copied(&mut recorder, Key::Time);
        let events: Vec<_> = merge.batch().collect();
        assert!(events.iter().any(|event| reading::fault(event).is_some()), "{size} bytes in {ring}: {events:?}");
        assert_eq!(events.iter().filter(|event| event.cpu() == Some(1)).count(), 1);
        (30..30 + ring as u64 / 16).for_each(|time| assert!(kernel.emit(0, time, b"new")));
        let (texts, expected) = (texts(&mut recorder), ring / 24);
        assert_eq!(texts.iter().filter(|text| *text == "new").count(), expected);
        assert_eq!(texts.len(), expected + 1);
    }
}

/// The model: all records written to a CPU's ring, oldest first.
#[derive(Default)]
struct Model {
    pieces: Vec<(u64, Piece)>,
    /// Keys of the writers inside, outermost first, and whether they wrote.
    writers: Vec<(u64, bool)>,
    lost: u64,
    paused: bool,
}

/// A piece of the ring. Older pieces lie after newer ones.
#[derive(Debug, Clone)]
enum Piece {
    Record {
        key: Option<u64>,
        payload: Vec<u8>,
    },
    /// Lies before its record.
    Lost(u64),
}

/// The expected and the actual records.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Record { cpu: u32, key: Option<u64>, payload: Vec<u8> },
    Lost { cpu: u32, count: u64, after: Option<u64>, until: Option<u64> },
}

impl Piece {
    fn key(&self) -> Option<u64> {
        if let Self::Record { key, .. } = self { *key } else { None }
    }
}

impl Model {
    /// One reservation of a writer.
    fn write(&mut self, key: Option<u64>, payload: &[u8], fields: u64) -> bool {
        if self.paused {
            self.lost += 1;
            return false;
        }
        let len = (8 + 8 * fields + 4 + payload.len() as u64).next_multiple_of(8);
        self.pieces.push((len, Piece::Record { key, payload: payload.to_vec() }));
        if self.lost > 0 {
            self.pieces.push((8 + 16 + 8 * fields, Piece::Lost(std::mem::take(&mut self.lost))));
        }
        true
    }

    /// Those newest pieces that fit, oldest first, and how many are gone.
    fn left(&self, ring: u64) -> (&[(u64, Piece)], usize) {
        let mut room = ring;
        let fit = self.pieces.iter().rev().take_while(|(len, _)| {
            let fits = *len <= room;
            room = room.saturating_sub(*len);
            fits
        });
        let gone = self.pieces.len() - fit.count();
        (&self.pieces[gone..], gone)
    }

    /// The records that come out of this ring, with their sort keys.
    fn expected(&self, cpu: u32, ring: u64) -> Vec<(u64, u32, Seen)> {
        let (left, _) = self.left(ring);
        let mut before = None;
        let mut out = Vec::new();
        let mut rest = left.iter().map(|(_, piece)| piece).peekable();
        if let Some(Piece::Lost(count)) = rest.next_if(|piece| matches!(piece, Piece::Lost(_))) {
            // Its record is gone. It goes with the next one, unless that has a loss of its own.
            let until = match left.get(1..3) {
                Some([_, (_, Piece::Lost(_))]) => None,
                _ => left.get(1).and_then(|(_, piece)| piece.key()),
            };
            out.push((until.unwrap_or(0), cpu, Seen::Lost { cpu, count: *count, after: None, until }));
        }
        while let Some(Piece::Record { key, payload }) = rest.next() {
            // Without a key, nor one before it, it comes at once.
            let order = key.or(before).unwrap_or(0);
            if let Some(Piece::Lost(count)) = rest.peek() {
                out.push((order, cpu, Seen::Lost { cpu, count: *count, after: before, until: *key }));
                rest.next();
            }
            out.push((order, cpu, Seen::Record { cpu, key: *key, payload: payload.clone() }));
            before = key.or(before);
        }
        assert!(rest.next().is_none());
        out
    }
}

/// A copy is a sort of exactly the newest records of each CPU that still fit.
fn a_copy_matches_sort(cpus: u8, ring: u8, layout: u8, twice: bool, steps: &[(u8, u8, u16)]) {
    let cpus = [&[0][..], &[0, 1], &[0, 2, 3], &[1, 5, 6, 64, 300]][usize::from(cpus) % 4];
    let ring = 256u64 << (ring % 6);
    let (sample_type, fields) = [(TIME | RAW, 1), (IDENTIFIER | TID | TIME | RAW, 3)][usize::from(layout) % 2];
    let kernel = sim::Kernel::backward(cpus, ring as usize, Layout::new(sample_type, true, 0));
    // In some layouts one record in five has no key.
    let keyless = layout & 2 != 0;
    let has_key = move |number: u64| !(keyless && number.is_multiple_of(5));
    let key = || {
        Key::Fn(Box::new(move |record| {
            record.time().filter(|_| record.payload().and_then(|payload| payload.u64(0)).is_some_and(has_key))
        }))
    };
    let mut recorder = kernel.recorder().unwrap();
    let mut models: BTreeMap<u32, Model> = cpus.iter().map(|cpu| (*cpu, Model::default())).collect();
    let (mut clock, mut number) = (1000u64, 0u64);

    let write = |model: &mut Model, cpu: u32, size: u16, number: &mut u64| {
        let Some((time, wrote)) = model.writers.last_mut() else { return };
        if *wrote && !twice {
            return;
        }
        *wrote = true;
        *number += 1;
        let key = Some(*time).filter(|_| has_key(*number));
        let mut payload = number.to_ne_bytes().to_vec();
        payload.extend((0..size % 200).map(|at| (u64::from(at) ^ *number) as u8));
        // A record that is longer than the ring with a loss before it would overwrite itself.
        payload.truncate(ring as usize - 100);
        let written = kernel.write(cpu, &payload);
        assert_eq!(written, model.write(key, &payload, fields));
    };
    for (step, &(kind, cpu, size)) in steps.iter().chain(&[(255, 0, 0)]).enumerate() {
        let cpu = cpus[usize::from(cpu) % cpus.len()];
        let model = models.get_mut(&cpu).unwrap();
        clock += u64::from(size % 3);
        let last = step == steps.len();
        match kind % 32 {
            // As deep as contexts nest.
            0..6 if model.writers.len() < 4 => {
                kernel.begin(cpu, clock);
                model.writers.push((clock, false));
            }
            6..13 => write(model, cpu, size, &mut number),
            13..18 if !model.writers.is_empty() => {
                kernel.end(cpu);
                model.writers.pop();
            }
            18..28 if model.writers.len() < 4 => {
                kernel.begin(cpu, clock);
                model.writers.push((clock, false));
                write(model, cpu, size, &mut number);
                kernel.end(cpu);
                model.writers.pop();
            }
            28..=30 => {
                model.paused = kind & 32 != 0;
                kernel.pause(cpu, model.paused);
            }
            31 if last || kind > 127 => {
                // All writers are done, so the fence does not wait.
                for (cpu, model) in &mut models {
                    (0..model.writers.len()).for_each(|_| kernel.end(*cpu));
                    model.writers.clear();
                }
                let merge = copied(&mut recorder, key());
                check(merge, recorder.complete_from(), &models, ring, !twice);
            }
            _ => {}
        }
    }
}

fn check(mut merge: Merge, complete_from: Option<u64>, models: &BTreeMap<u32, Model>, ring: u64, once: bool) {
    let mut expected: Vec<_> = models.iter().flat_map(|(cpu, model)| model.expected(*cpu, ring)).collect();
    expected.sort_by_key(|(order, cpu, _)| (*order, *cpu));
    let seen = |event: &Event<'_>| match event.item() {
        Item::Record(record) => {
            Seen::Record { cpu: record.cpu(), key: event.key(), payload: record.payload().unwrap().to_vec() }
        }
        Item::Lost(lost) => {
            assert_eq!(event.key(), lost.until);
            Seen::Lost { cpu: lost.cpu, count: lost.count, after: lost.after, until: lost.until }
        }
        other => panic!("{other:?}"),
    };
    let events: Vec<_> = merge.batch().collect();
    assert_eq!(events.len(), expected.len());
    for (event, (order, _, expected)) in events.into_iter().zip(&expected) {
        let mut seen = seen(&event);
        // Up to 7 bytes of old memory follow.
        if let (Seen::Record { payload, .. }, Seen::Record { payload: written, .. }) = (&mut seen, expected) {
            assert!((0..8).contains(&(payload.len() - written.len())));
            payload.truncate(written.len());
        }
        assert_eq!(&seen, expected, "at {order}");
        assert_eq!(event.late_by(), 0);
    }
    let gone: Vec<_> = models.values().flat_map(|model| &model.pieces[..model.left(ring).1]).collect();
    assert_eq!(complete_from.is_none(), gone.is_empty());
    if let Some(from) = complete_from
        && once
    {
        let latest = gone.iter().filter_map(|(_, piece)| piece.key());
        assert!(latest.max().is_none_or(|key| key <= from), "complete from {from}, but {gone:?} are gone");
    }
}

#[test]
fn a_copy_is_a_sort_of_the_newest_that_fit() {
    fn property(cpus: u8, ring: u8, layout: u8, twice: bool, steps: Vec<(u8, u8, u16)>) -> bool {
        a_copy_matches_sort(cpus, ring, layout, twice, &steps);
        true
    }
    let tests = std::env::var("QUICKCHECK_TESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    QuickCheck::new()
        .tests(tests)
        .rng(quickcheck::Gen::new(500))
        .quickcheck(property as fn(u8, u8, u8, bool, Vec<(u8, u8, u16)>) -> bool);
}

/// The fence guarantees that no writer still writes the bytes that are read, so it must be a real one.
#[test]
fn a_fence_of_ones_own_is_refused() {
    let opened = Recorder::open(Rings::options().tracepoint_id(1), &Fence::by(|| Ok(())));
    assert_error!(opened.unwrap_err(), Unsupported, "no fence: ");
}

#[test]
fn if_the_fence_fails_recording_goes_on() {
    let kernel = sim::Kernel::backward(&[0, 5], 4096, Layout::new(TIME | RAW, true, 0));
    let fence = Fence::by(|| Err(std::io::ErrorKind::TimedOut.into()));
    let mut recorder = kernel.recorder_with(&fence).unwrap();
    for time in 0..3 {
        let error = recorder.freeze().map(drop).unwrap_err();
        assert_error!(error, System, "a fence failed: timed out");
        assert!(kernel.emit(0, time, b"goes on") && kernel.emit(5, time, b"goes on"));
    }
}

/// What pauses the rings while they are copied keeps them paused after that, and what resumes them then does so after
/// that.
#[test]
fn a_pause_during_a_copy_stays() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let kernel = sim::Kernel::backward(&[0], 4096, Layout::new(TIME | RAW, true, 0));
    let (handle, resumes) = (Arc::new(OnceLock::<Handle>::new()), Arc::new(AtomicBool::new(false)));
    let (of, then) = (Arc::clone(&handle), Arc::clone(&resumes));
    let fence = Fence::by(move || {
        let handle = of.get().unwrap();
        handle.pause(Pause::Output).unwrap();
        if then.load(Ordering::Relaxed) {
            handle.resume().unwrap();
        }
        Ok(())
    });
    let mut recorder = kernel.recorder_with(&fence).unwrap();
    handle.set(recorder.handle()).unwrap();
    recorder.freeze().unwrap();
    assert!(!kernel.emit(0, 10, b"away"));
    resumes.store(true, Ordering::Relaxed);
    recorder.freeze().unwrap();
    assert!(kernel.emit(0, 20, b"in"));
}
