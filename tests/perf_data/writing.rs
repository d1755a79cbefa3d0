//! Writing merged events, and reading them by perf and by this crate.

use crate::perf::{File, by_cpu, drain, open, perf, record, script};
use perf_event_open_sys::bindings;
use perfweave::{
    Clock, ClockOffset, Event, Hold, Item, Layout, Merge, Order, Reader, Record, Recording, RingOptions, Rings, sim,
};
use perfweave_events::{EventOptions, Format};
use perfweave_perf_data as perf_data;
use perfweave_support::bpf::Map;
use perfweave_support::threads::until;
use perfweave_support::{assert_error, echo, kernel};
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Writes all events of a reader, to a flush if it is live.
pub(crate) fn write_all(reader: &mut Reader, mut each: impl FnMut(&Event<'_>)) -> (File, perf_data::Written) {
    let file = File::new();
    let mut writer = perf_data::Writer::create(&file.0, reader.rings()).unwrap();
    while let Some(event) = reader.next().unwrap() {
        // It is not about the traced machine, and does not count as left out.
        writer.write(&event.event()).unwrap();
        match event.item() {
            Item::Flushed { .. } => break,
            _ => each(&event.event()),
        }
    }
    (file, writer.finish().unwrap())
}

/// A reader of live tracepoints, flushed after a load. `None` if the kernel refuses.
fn live(events: &[&str]) -> Option<Reader> {
    perfweave_support::perf()?;
    kernel("find tracefs", perfweave_events::tracefs())?;
    let options = events.iter().fold(Rings::options().bytes(1 << 20), |options, event| options.tracepoint(event));
    let reader = Reader::new(kernel("open tracepoints", options.open())?, Order::new()).unwrap();
    for _ in 0..20 {
        assert!(Command::new("/bin/true").status().unwrap().success());
    }
    reader.handle().flush().unwrap();
    Some(reader)
}

/// CPU, time and name of all samples, as `perf script` must show them.
fn note(names: &[String], shown: &mut Vec<crate::perf::Shown>, event: &Event<'_>) {
    if let Item::Record(record) = event.item()
        && record.kind() == bindings::PERF_RECORD_SAMPLE
    {
        shown.push((Some(record.cpu()), record.time().unwrap(), names[record.source().unwrap()].clone()));
    }
}

/// Strings of the kernel that tracepoints point to are in recordings of both.
#[test]
fn strings_of_the_kernel_come_with_a_recording() {
    let Some(mut reader) = live(&["sched:sched_switch"]) else { return };
    let root = perfweave_events::tracefs().unwrap();
    let here = std::fs::read_to_string(root.join("printk_formats")).unwrap();
    let (file, _) = write_all(&mut reader, |_| {});
    assert_eq!(perf_data::kernel_strings(&open(&file.0)), here);
    let Some(perfs) = record(&["-a", "-e", "sched:sched_switch"]) else { return };
    assert_eq!(perf_data::kernel_strings(&open(&perfs.0)), here);
    assert_eq!(perf_data::kernel_strings(reader.rings()), "", "no recording");
}

#[test]
fn perf_shows_a_live_stream_as_it_was_yielded() {
    for events in [&["sched:sched_switch"][..], &["sched:sched_switch", "sched:sched_waking"]] {
        let Some(mut reader) = live(events) else { return };
        let names: Vec<_> = events.iter().map(|name| (*name).to_owned()).collect();
        let mut expected = Vec::new();
        let (file, written) = write_all(&mut reader, |event| note(&names, &mut expected, event));
        assert!(expected.len() > 20 && written.records >= expected.len() as u64, "{written:?}");
        // Equal times come in the order of the file too, not by CPU.
        assert_eq!(script(file.path(), true), expected);
        let fields = perf(&["script", "-i", file.path(), "-F", "event,trace"]).unwrap();
        assert_eq!(fields.matches("prev_comm=").count(), expected.iter().filter(|shown| shown.2 == events[0]).count());
        let report = perf(&["report", "-i", file.path(), "--stdio"]).unwrap();
        assert!(events.iter().all(|event| report.contains(event)), "{report}");
        let header = perf(&["report", "-i", file.path(), "--header-only"]).unwrap();
        assert!(header.contains("os release"), "{header}");
        assert_eq!(crate::perf::samples(open(&file.0), true), expected, "read back");
    }
}

/// A recording tells about all users. So a file that others may read is made private, and one that another user owns is
/// not written.
#[test]
fn a_file_that_others_could_read_is_made_private_or_refused() {
    let rings = sim::Kernel::new(&[0]).rings();
    let file = File::new();
    std::fs::write(&file.0, "before").unwrap();
    std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o644)).unwrap();
    perf_data::Writer::create(&file.0, &rings).unwrap().finish().unwrap();
    assert_eq!(std::fs::metadata(&file.0).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::write(&file.0, "theirs").unwrap();
    let Some(()) = kernel("give a file away", std::os::unix::fs::chown(&file.0, Some(65534), None)) else { return };
    let error = perf_data::Writer::create(&file.0, &rings).unwrap_err();
    assert_eq!(error.kind(), perfweave::ErrorKind::Recording, "{error}");
    assert!(error.to_string().contains("belongs to user 65534"), "{error}");
    assert_eq!(std::fs::read(&file.0).unwrap(), b"theirs");
}

/// Who opened a file while others could, and keeps it open, has the old one.
#[test]
fn a_file_that_others_may_have_open_is_replaced() {
    let rings = sim::Kernel::new(&[0]).rings();
    let file = File::new();
    std::fs::write(&file.0, "before").unwrap();
    let mut modes = Vec::new();
    for mode in [0o640, 0o604, 0o622, 0o600] {
        std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut opened = std::fs::File::open(&file.0).unwrap();
        let before = std::fs::read(&file.0).unwrap();
        perf_data::Writer::create(&file.0, &rings).unwrap().finish().unwrap();
        let mut seen = Vec::new();
        opened.read_to_end(&mut seen).unwrap();
        modes.push(seen == before);
        let there = std::fs::metadata(&file.0).unwrap();
        assert_eq!(there.permissions().mode() & 0o777, 0o600);
        assert_eq!(there.ino() == opened.metadata().unwrap().ino(), mode == 0o600, "{mode:o}");
        std::fs::write(&file.0, "before").unwrap();
    }
    assert_eq!(modes, [true, true, true, false], "whether the old file has nothing new");
    // What was given open, as by the shell, stays that file.
    std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o644)).unwrap();
    let given = std::fs::File::options().write(true).open(&file.0).unwrap();
    let path = format!("/proc/self/fd/{}", given.as_raw_fd());
    perf_data::Writer::create(path, &rings).unwrap().finish().unwrap();
    let there = given.metadata().unwrap();
    assert_eq!((there.nlink(), there.permissions().mode() & 0o777), (1, 0o600));
    assert!(std::fs::read(&file.0).unwrap().starts_with(b"PERFILE2"));
}

/// A link of another user leads where that user likes. Own links are followed. And a file with a second name may be
/// anybody's file.
#[test]
fn a_link_of_another_user_is_not_followed() {
    use std::os::unix::fs::{lchown, symlink};
    let rings = sim::Kernel::new(&[0]).rings();
    let (precious, link, second) = (File::new(), File::new(), File::new());
    std::fs::write(&precious.0, "precious").unwrap();
    symlink(&link.0, &second.0).unwrap();
    symlink(&precious.0, &link.0).unwrap();
    let Some(()) = kernel("give a link away", lchown(&link.0, Some(65534), None)) else { return };
    // Also if an own link leads to it.
    for path in [&link.0, &second.0] {
        let error = perf_data::Writer::create(path, &rings).unwrap_err();
        assert_eq!(error.kind(), perfweave::ErrorKind::Recording, "{error}");
        assert!(error.to_string().contains("a link of user 65534"), "{error}");
        assert_eq!(std::fs::read(&precious.0).unwrap(), b"precious");
    }
    lchown(&link.0, Some(nix::unistd::geteuid().as_raw()), None).unwrap();
    perf_data::Writer::create(&second.0, &rings).unwrap().finish().unwrap();
    assert!(std::fs::read(&precious.0).unwrap().starts_with(b"PERFILE2"));
    std::fs::remove_file(&second.0).unwrap();
    std::fs::hard_link(&precious.0, &second.0).unwrap();
    let error = perf_data::Writer::create(&second.0, &rings).unwrap_err();
    assert!(error.to_string().contains("has 2 hard links"), "{error}");
    // A link to itself is an error as everywhere.
    std::fs::remove_file(&link.0).unwrap();
    symlink(&link.0, &link.0).unwrap();
    let error = perf_data::Writer::create(&link.0, &rings).unwrap_err();
    assert_eq!(error.kind(), perfweave::ErrorKind::Recording, "{error}");
}

/// tracefs gives these files only in one read, and perf reads nothing after a file that is cut short.
#[test]
fn files_of_tracefs_are_in_the_recording_whole() {
    let Some(tracefs) = kernel("find tracefs", perfweave_events::tracefs()) else { return };
    let recorded = |options: RingOptions| {
        let rings = kernel("open a tracepoint", options.open())?;
        let file = File::new();
        perf_data::Writer::create(&file.0, &rings).unwrap().finish().unwrap();
        // As perf's: a recording tells about all users.
        assert_eq!(std::fs::metadata(&file.0).unwrap().permissions().mode() & 0o777, 0o600);
        Some((std::fs::read(&file.0).unwrap(), open(&file.0)))
    };
    let Some((recorded_by_name, _)) = recorded(Rings::options().tracepoint("sched:sched_switch")) else { return };
    for name in ["header_page", "header_event"] {
        let mut text = vec![0; 1 << 16];
        let mut source = std::fs::File::open(tracefs.join("events").join(name)).unwrap();
        let len = source.read(&mut text).unwrap();
        assert!(len > 100 && source.read(&mut text[len..]).unwrap() == 0, "too short for this test: {len} bytes");
        let expected = [name.as_bytes(), &[0], &len.to_ne_bytes(), &text[..len]].concat();
        assert!(recorded_by_name.windows(expected.len()).any(|bytes| bytes == expected), "{name}");
    }
    // So is the format of one that was asked for by its number.
    let id = std::fs::read_to_string(tracefs.join("events/sched/sched_switch/id")).unwrap().trim().parse().unwrap();
    let Some((_, by_number)) = recorded(Rings::options().tracepoint_id(id)) else { return };
    assert!(Format::of(&by_number, 0).unwrap().field("prev_pid").is_ok());
}

/// The bytes of every record, and all other events; for losses also the keys around them, if these are `exact`.
fn bytes(rings: Rings, exact: bool) -> Vec<(Option<u64>, Option<u32>, Vec<u8>)> {
    let mut all = Vec::new();
    drain(&mut Reader::new(rings, Order::new()).unwrap(), |event| {
        let bytes = match event.item() {
            Item::Record(record) => record.as_bytes().to_vec(),
            Item::Lost(lost) if exact => {
                format!("lost {} of {:?}, {:?} to {:?}", lost.count, lost.source, lost.after, lost.until).into()
            }
            Item::Lost(lost) => format!("lost {} of {:?}", lost.count, lost.source).into(),
            other => format!("{other:?}").into(),
        };
        all.push((event.key(), event.cpu(), bytes));
    });
    all
}

/// Writes a reader's events through a pipe, to a flush, and into a file as well. The bytes that came out of the pipe,
/// as a file.
fn piped(reader: &mut Reader) -> (File, File) {
    let (mut from, to) = io::pipe().unwrap();
    let taken = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let file = File::new();
    let mut whole = perf_data::Writer::create(&file.0, reader.rings()).unwrap();
    let mut piped = perf_data::Writer::pipe(to, reader.rings()).unwrap();
    let mut count = 0;
    while let Some(event) = reader.next().unwrap() {
        whole.write(&event.event()).unwrap();
        piped.write(&event.event()).unwrap();
        count += 1;
        if count == 10 {
            piped.flush().unwrap();
        }
        if matches!(event.item(), Item::Flushed { .. }) {
            break;
        }
    }
    let [of_file, of_pipe] = [whole, piped].map(|writer| writer.finish().unwrap());
    let counts = |written: &perf_data::Written| [written.records, written.lost, written.left_out];
    assert_eq!(counts(&of_file), counts(&of_pipe));
    let piped = File::with(&taken.join().unwrap());
    for (file, written) in [(&file, of_file), (&piped, of_pipe)] {
        let verdict = perf_data::verify(&file.0).unwrap();
        assert!(verdict.holds() && verdict.hash == Some(written.hash), "{:?}", verdict.doubts);
    }
    (file, piped)
}

/// What comes through a pipe is what a file has, for this crate and for perf.
#[test]
fn a_pipe_has_what_a_file_has() {
    for events in [&["sched:sched_switch"][..], &["sched:sched_switch", "sched:sched_waking"]] {
        let Some(mut reader) = live(events) else { return };
        let (file, piped) = piped(&mut reader);
        assert_eq!(std::fs::read(&piped.0).unwrap()[..16], *b"PERFILE2\x10\0\0\0\0\0\0\0");
        let records = |file: &File| {
            let mut records = bytes(open(&file.0), true);
            // Names that were written at the start: of two moments, between which processes came and went.
            records.retain(|(key, ..)| *key != Some(0));
            records
        };
        assert!(records(&file).len() > 20 && records(&file) == records(&piped));
        let [of_file, of_pipe] = [&file, &piped].map(|file| {
            let rings = open(&file.0);
            let names = rings.sources().iter().map(|source| source.name().to_owned()).collect::<Vec<_>>();
            (names, Format::of(&rings, 0).unwrap().fields().len(), rings.clock(), perf_data::build_ids(&rings).len())
        });
        assert_eq!(of_file, of_pipe);
        // perf(1) takes no choice of fields before it knows the events.
        let script = format!("cat {} | perf script -i - --ns", piped.path());
        let through = perfweave_support::perf::printed(Command::new("sh").args(["-c", &script])).unwrap();
        assert_eq!(through, perf(&["script", "-i", file.path(), "--ns"]).unwrap());
        // Written again, as a stream of a recording.
        let again = self::piped(&mut flushed(open(&piped.0)));
        assert_eq!(bytes(open(&again.1.0), true), bytes(open(&piped.0), true));
    }
}

/// An event with more ids than one record has room for: perf shows its samples, whichever of the records has their ids.
#[test]
fn a_pipe_has_room_for_many_ids() {
    let Some(()) = perfweave_support::perf() else { return };
    let Some(_) = kernel("find tracefs", perfweave_events::tracefs()) else { return };
    let options = Rings::options().bytes(1 << 20).tracepoint("sched:sched_switch").event_name("page-faults");
    let options = options.sample(
        bindings::PERF_SAMPLE_IP | bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_CPU | bindings::PERF_SAMPLE_PERIOD,
    );
    let Some(rings) = kernel("open events", options.open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    assert!(Command::new("/bin/true").status().unwrap().success());
    reader.handle().flush().unwrap();
    let (file, _) = write_all(&mut reader, |_| {});
    // Behind the records comes one sample of each event 9,000 times, each time with an id of its own.
    let mut bytes = std::fs::read(&file.0).unwrap();
    let word = |bytes: &[u8], at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (entry, attrs, data) =
        (word(&bytes, 16), word(&bytes, 24), word(&bytes, 40)..word(&bytes, 40) + word(&bytes, 48));
    let (mut samples, mut at) = ([None, None], data.start);
    while at < data.end {
        let (kind, size) = (word(&bytes, at) as u32, word(&bytes, at) >> 48);
        for (event, sample) in samples.iter_mut().enumerate().filter(|_| kind == bindings::PERF_RECORD_SAMPLE) {
            let ids = attrs + (event + 1) * entry - 16;
            let mut ids = bytes[word(&bytes, ids)..][..word(&bytes, ids + 8)].chunks(8);
            // PERF_SAMPLE_IDENTIFIER
            if ids.any(|id| *id == bytes[at + 8..at + 16]) {
                *sample = Some(at..at + size);
            }
        }
        at += size;
    }
    let new = |event: usize| (0..9000).map(move |id| (((event as u64 + 1) << 40) + id).to_ne_bytes());
    let mut more = Vec::new();
    for (event, sample) in samples.into_iter().enumerate() {
        let sample = &bytes[sample.expect("a sample of each event")];
        new(event).for_each(|id| more.extend([&sample[..8], &id, &sample[16..]].concat()));
    }
    // The table of facts begins where the records end. What lies behind them moves.
    let facts: u32 = bytes[72..104].iter().map(|byte| byte.count_ones()).sum();
    let set = |bytes: &mut Vec<u8>, at: usize, word: usize| bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    for place in (0..facts as usize).map(|fact| data.end + 16 * fact) {
        let at = word(&bytes, place);
        set(&mut bytes, place, if at >= data.end { at + more.len() } else { at });
    }
    set(&mut bytes, 24, attrs + more.len());
    set(&mut bytes, 48, data.len() + more.len());
    let events: [Vec<u8>; 2] = std::array::from_fn(|event| {
        let place = attrs + (event + 1) * entry - 16;
        bytes[word(&bytes, place)..][..word(&bytes, place + 8)].to_vec()
    });
    let attrs = attrs + more.len();
    bytes.splice(data.end..data.end, more);
    for (event, own) in events.into_iter().enumerate() {
        let (place, begin) = (attrs + (event + 1) * entry - 16, bytes.len());
        bytes.extend(own.into_iter().chain(new(event).flatten()));
        let len = bytes.len() - begin;
        set(&mut bytes, place, begin);
        set(&mut bytes, place + 8, len);
    }
    let many = File::with(&bytes);
    let expected = perf(&["script", "-i", many.path(), "--ns"]).unwrap();
    let shown = |event: &str| expected.lines().filter(|line| line.contains(event)).count();
    assert!(shown(" sched:sched_switch: ") > 9000 && shown(" page-faults: ") > 9000);
    let (_, piped) = piped(&mut flushed(open(&many.0)));
    let script = format!("cat {} | perf script -i - --ns", piped.path());
    let through = perfweave_support::perf::printed(Command::new("sh").args(["-c", &script])).unwrap();
    let differ = through.lines().zip(expected.lines()).find(|(one, other)| one != other);
    assert!(through == expected, "{differ:?}");
    assert_eq!(self::bytes(open(&piped.0), true), self::bytes(open(&many.0), true));
}

fn flushed(rings: Rings) -> Reader {
    let reader = Reader::new(rings, Order::new()).unwrap();
    reader.handle().flush().unwrap();
    reader
}

/// Losses, layouts that no event has, and ids that come later are described where they come.
#[test]
fn a_pipe_describes_what_comes_later() {
    let sample_type = bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_IDENTIFIER;
    let machine = sim::Kernel::with(&[0, 3], 4096, Layout::new(sample_type.into(), true, 0));
    for time in 1..100 {
        let cpu = if time % 3 == 0 { 3 } else { 0 };
        if time % 10 == 0 {
            machine.lose(cpu, time / 10);
        }
        machine.emit(cpu, time, &time.to_ne_bytes());
    }
    machine.lose(0, 7);
    let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
    reader.handle().flush().unwrap();
    let (file, piped) = piped(&mut reader);
    assert_eq!(bytes(open(&piped.0), true), bytes(open(&file.0), true));
    assert_eq!(bytes(open(&piped.0), true).iter().filter(|(_, _, bytes)| bytes.starts_with(b"lost")).count(), 10);
}

/// Ids that come later say whose they are, also where two events have equal attributes and names.
#[test]
fn later_ids_in_a_pipe_are_of_the_right_event() {
    let options = |maps: [&Map; 2]| maps.into_iter().fold(Rings::options().bytes(1 << 12), RingOptions::bpf_output);
    let Some(((first, one), (second, two))) = echo().zip(echo()) else { return };
    let mut reader = Reader::new(options([&first, &second]).open().unwrap(), Order::new()).unwrap();
    for (program, number) in [(&two, 2), (&one, 1), (&two, 2), (&one, 1)] {
        assert_eq!(program.run_with(0, &[number]).unwrap(), 0);
    }
    reader.handle().flush().unwrap();
    // As if the writer knew other CPUs only: the same events with other ids.
    let Some(((first, _one), (second, _two))) = echo().zip(echo()) else { return };
    let known = options([&first, &second]).open().unwrap();
    let file = File::new();
    let mut writer = perf_data::Writer::pipe(std::fs::File::create(&file.0).unwrap(), &known).unwrap();
    let of = |event: &Event<'_>| {
        let record = event.record().filter(|record| record.kind() == bindings::PERF_RECORD_SAMPLE)?;
        Some((record.source(), record.payload()?.to_vec()[0]))
    };
    let mut written = Vec::new();
    loop {
        let event = reader.next().unwrap().unwrap();
        if matches!(event.event().item(), Item::Flushed { .. }) {
            break;
        }
        writer.write(&event.event()).unwrap();
        written.extend(of(&event.event()));
    }
    writer.finish().unwrap();
    assert_eq!(written, [(Some(1), 2), (Some(0), 1), (Some(1), 2), (Some(0), 1)]);
    let mut again = Vec::new();
    drain(&mut Reader::new(open(&file.0), Order::new()).unwrap(), |event| again.extend(of(event)));
    assert_eq!(again, written);
}

/// Who reads the pipe has gone: an error that says so, again and again. Other tests fork meanwhile, and their children
/// have a copy of every end that is open here, until they end or run another program. So the end is a socket's, which
/// is shut down for all copies.
#[test]
fn a_pipe_that_nobody_reads_is_an_error() {
    let machine = sim::Kernel::new(&[0]);
    machine.emit(0, 1, b"before");
    let (from, to) = UnixStream::pair().unwrap();
    let _copy = from.try_clone().unwrap();
    let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
    reader.handle().flush().unwrap();
    let mut writer = perf_data::Writer::pipe(to, reader.rings()).unwrap();
    from.shutdown(Shutdown::Both).unwrap();
    writer.write(&reader.next().unwrap().unwrap().event()).unwrap();
    for _ in 0..2 {
        let error = writer.flush().unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (perfweave::ErrorKind::Recording, Some(32)), "{error}");
        assert!(error.to_string().contains("socket:["), "{error}");
    }
}

/// Who reads is slower than the writer, whose end does not block: it waits for room.
#[test]
fn a_full_pipe_that_does_not_block_is_waited_for() {
    let machine = sim::Kernel::with(&[0], 1 << 20, Layout::new(4 | 1024, true, 0));
    (1..5000).for_each(|time| assert!(machine.emit(0, time, &[7; 100])));
    let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
    reader.handle().flush().unwrap();
    let (mut from, to) = io::pipe().unwrap();
    nix::fcntl::fcntl(&to, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    let file = File::new();
    let mut piped = perf_data::Writer::pipe(to, reader.rings()).unwrap();
    let taken = std::thread::spawn(move || {
        let (mut bytes, mut some) = (Vec::new(), [0; 512]);
        while let read @ 1.. = from.read(&mut some).unwrap() {
            bytes.extend(&some[..read]);
        }
        bytes
    });
    while let Some(event) = reader.next().unwrap().filter(|event| !matches!(event.item(), Item::Flushed { .. })) {
        piped.write(&event.event()).unwrap();
    }
    assert_eq!(piped.finish().unwrap().records, 4999);
    std::fs::write(&file.0, taken.join().unwrap()).unwrap();
    assert_eq!(bytes(open(&file.0), true).len(), 4999);
}

/// The bytes are equal, and perf shows the same for both.
#[test]
fn a_recording_written_again_is_the_same() {
    for args in [
        &["-a", "-e", "sched:sched_switch"][..],
        &["-a", "-g", "-e", "sched:sched_switch", "-e", "cpu-clock"],
        &["--per-thread", "-T", "-e", "sched:sched_switch", "-e", "cpu-clock"],
        // Rings of one page, so that the kernel drops records.
        &["-a", "-m", "1", "-g", "-e", "sched:*"],
    ] {
        let Some(recorded) = record(args) else { return };
        let mut reader = Reader::new(open(&recorded.0), Order::new()).unwrap();
        let (file, written) = write_all(&mut reader, |_| ());
        assert_eq!(written.left_out, 0);
        // In a file that is written in order, other records are next to a loss than in a ring with disorder.
        let exact = reader.status().total().repaired == 0;
        let [ours, theirs] = [&file.0, &recorded.0].map(|path| bytes(open(path), exact));
        for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert_eq!(ours, theirs, "{args:?}, record {at}");
        }
        assert_eq!(ours.len(), theirs.len(), "{args:?}");
        let names = |rings: Rings| rings.sources().iter().map(|source| source.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(open(&file.0)), names(open(&recorded.0)));
        let fields = if args[0] == "-a" {
            "comm,pid,tid,cpu,time,event,ip,sym,trace"
        } else {
            "comm,tid,time,event,ip,sym,trace"
        };
        let show = |path: &str| perf(&["script", "-i", path, "--ns", "-F", fields]).unwrap();
        assert_eq!(show(file.path()), show(recorded.path()), "{args:?}");
    }
}

/// A loss has its place before the record after it, in the file as in a ring.
#[test]
fn losses_are_written_where_they_were() {
    let layouts = [
        u64::from(bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME),
        u64::from(
            bindings::PERF_SAMPLE_RAW
                | bindings::PERF_SAMPLE_TIME
                | bindings::PERF_SAMPLE_CPU
                | bindings::PERF_SAMPLE_TID,
        ),
        u64::from(bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_IDENTIFIER),
    ];
    for sample_type in layouts {
        let machine = sim::Kernel::with(&[0, 3], 4096, Layout::new(sample_type, true, 0));
        for time in 1..100 {
            let cpu = if time % 3 == 0 { 3 } else { 0 };
            if time % 10 == 0 {
                machine.lose(cpu, time / 10);
            }
            machine.emit(cpu, time, &time.to_ne_bytes());
        }
        let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
        reader.handle().flush().unwrap();
        let mut expected = Vec::new();
        let told = |event: &Event<'_>| match event.item() {
            Item::Record(record) => (event.key(), event.cpu(), record.payload().unwrap().u64(0).unwrap(), None),
            Item::Lost(lost) => (event.key(), event.cpu(), lost.count, Some((lost.after, lost.until))),
            other => panic!("{other:?}"),
        };
        let (file, written) = write_all(&mut reader, |event| expected.push(told(event)));
        assert_eq!((written.records, written.lost), (99, (1..10).sum()));
        let mut read = Vec::new();
        drain(&mut Reader::new(open(&file.0), Order::new()).unwrap(), |event| read.push(told(event)));
        assert_eq!(read, expected, "{sample_type:x}");
        if perfweave_support::perf().is_some() {
            let dump = perf(&["script", "-i", file.path(), "--show-lost-events"]).unwrap();
            let totals = dump.matches("PERF_RECORD_LOST_SAMPLES").count();
            assert_eq!(dump.matches("PERF_RECORD_LOST").count() - totals, 9, "{dump}");
        }
    }
}

/// Losses that no record follows come last, each CPU's as one, at the time of the last record.
#[test]
fn losses_behind_the_last_record_are_written_at_the_end() {
    let (time, raw) = (bindings::PERF_SAMPLE_TIME, bindings::PERF_SAMPLE_RAW);
    let (cpu, tid, identifier) =
        (bindings::PERF_SAMPLE_CPU, bindings::PERF_SAMPLE_TID, bindings::PERF_SAMPLE_IDENTIFIER);
    for sample_type in [time | raw, time | raw | cpu | tid, time | raw | identifier] {
        let machine = sim::Kernel::with(&[0, 3], 4096, Layout::new(sample_type.into(), true, 0));
        assert!(machine.emit(3, 10, b"") && machine.emit(0, 20, b""));
        let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
        let file = File::new();
        let mut writer = perf_data::Writer::create(&file.0, reader.rings()).unwrap();
        for count in [5, 7] {
            machine.lose(3, count);
            machine.lose(0, 10 * count);
            reader.handle().flush().unwrap();
            while let Some(event) = reader.next().unwrap() {
                writer.write(&event.event()).unwrap();
                if matches!(event.item(), Item::Flushed { .. }) {
                    break;
                }
            }
        }
        let written = writer.finish().unwrap();
        assert_eq!((written.records, written.lost, written.left_out), (2, 132, 0));
        let mut read = Vec::new();
        drain(&mut Reader::new(open(&file.0), Order::new()).unwrap(), |event| {
            if let Item::Lost(lost) = event.item() {
                read.push((lost.cpu, lost.count, lost.after, lost.until));
            }
        });
        read.sort_unstable();
        assert_eq!(read, [(0, 120, Some(20), None), (3, 12, Some(10), None)], "{sample_type:x}");
        // By rising CPU, behind all records: the id, the count, and `struct sample_id`.
        let bytes = std::fs::read(&file.0).unwrap();
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let (mut at, end, mut found) = (word(40) as usize, (word(40) + word(48)) as usize, Vec::new());
        while at < end {
            let next = at + usize::from(u16::from_ne_bytes([bytes[at + 6], bytes[at + 7]]));
            if bytes[at] == 2 {
                found.push((at + 8..next).step_by(8).map(word).collect::<Vec<_>>());
            }
            at = next;
        }
        let id = found[0][0];
        let lost = |cpu, count| match sample_type {
            _ if sample_type & tid != 0 => vec![id, count, 0, 20, cpu],
            _ if sample_type & identifier != 0 => vec![id, count, 20, cpu, id],
            _ => vec![id, count, 20, cpu],
        };
        assert!(found[0] == lost(0, 120) && found[1][1..] == lost(3, 12)[1..] && found.len() == 2, "{found:?}");
    }
}

#[test]
fn what_perf_has_no_record_for_is_counted() {
    let machine = sim::Kernel::new(&[0]);
    machine.emit(0, 1, b"whole");
    machine.emit(0, 2, b"broken");
    machine.scribble(0, 32 + 6, &7u16.to_ne_bytes());
    let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
    reader.handle().flush().unwrap();
    let (_file, written) = write_all(&mut reader, |_| ());
    assert_eq!((written.records, written.left_out), (1, 1));
}

#[test]
fn a_stream_of_nothing_is_a_recording_of_nothing() {
    let file = File::new();
    let rings = sim::Kernel::new(&[0]).rings();
    perf_data::Writer::create(&file.0, &rings).unwrap().finish().unwrap();
    assert!(open(&file.0).cpus().len() == 0);
    if perfweave_support::perf().is_some() {
        assert_eq!(perf(&["script", "-i", file.path()]).unwrap(), "");
    }
}

/// The longest BPF output leaves no room for a CPU, and the writer goes on.
#[test]
fn a_record_with_no_room_for_its_cpu_is_an_error_of_its_own() {
    let machine = sim::Kernel::with(&[0], 1 << 18, Layout::new(0x404, true, 0));
    machine.emit(0, 1, &[1; 65_508]);
    machine.emit(0, 2, b"after");
    let file = File::new();
    let rings = machine.rings();
    let mut writer = perf_data::Writer::create(&file.0, &rings).unwrap();
    let mut merge = Merge::new(rings, Order::new().hold(Hold::None)).unwrap();
    merge.refresh(0);
    let wrote: Vec<_> = merge.batch().map(|event| writer.write(&event)).collect();
    assert_error!(
        wrote[0].as_ref().unwrap_err(),
        InvalidInput,
        "a record of 65528 bytes is too long to have its CPU added"
    );
    assert!(wrote[1].is_ok());
    assert_eq!(writer.finish().unwrap().records, 1);
    assert_eq!(bytes(open(&file.0), true).len(), 1);
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_that_names_it() {
    let rings = sim::Kernel::new(&[0]).rings();
    let error = perf_data::Writer::create("/nowhere/perf.data", &rings).unwrap_err();
    assert_error!(error, Recording, "cannot write /nowhere/perf.data: No such file");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
}

/// perf shows records of equal times in the order of the file.
#[test]
fn equal_times_stay_in_order() {
    let sample_type = bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_TID;
    let machine = sim::Kernel::with(&[0, 1, 2], 4096, Layout::new(sample_type.into(), true, 0));
    for time in 1..20 {
        assert_eq!([2, 0, 1].map(|cpu| machine.emit(cpu, time, b"")), [true; 3]);
    }
    let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
    reader.handle().flush().unwrap();
    let mut expected = Vec::new();
    let (file, _) =
        write_all(&mut reader, |event| expected.push((event.cpu(), event.key().unwrap(), "unknown".to_owned())));
    assert_eq!(expected, by_cpu(expected.clone()));
    if perfweave_support::perf().is_some() {
        assert_eq!(script(file.path(), true), expected);
    }
}

/// Registers and stacks of a live ring with two events are read back as they were written.
#[test]
fn registers_and_stacks_are_read_back() {
    let samples = [
        bindings::PERF_SAMPLE_TID,
        bindings::PERF_SAMPLE_IP,
        bindings::PERF_SAMPLE_REGS_USER,
        bindings::PERF_SAMPLE_STACK_USER,
    ];
    let options = Rings::options().event_name("cpu-clock").frequency(999).event_name("context-switches");
    let options = options.sample(samples[0] | samples[1]).sample_registers(0b11, 0).sample_stack(512);
    let Some(rings) = kernel("sample registers and stacks", options.open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let file = File::new();
    let mut writer = perf_data::Writer::create(&file.0, reader.rings()).unwrap();
    let fields = |record: &Record<'_>| {
        let field = |bit: u32| record.field(bit).map(|bytes| bytes.to_vec());
        (record.source(), record.time(), record.cpu(), samples.map(field))
    };
    let (mut written, mut full) = (Vec::new(), 0);
    until("user space is sampled", || {
        (0..3_000_000).for_each(|step| {
            std::hint::black_box(step);
        });
        while let Some(event) = reader.next_timeout(Duration::ZERO).unwrap() {
            let event = event.event();
            writer.write(&event).unwrap();
            if let Item::Record(record) = event.item() {
                written.push(fields(&record));
                // The ABI and two registers, then the stack: its size, its bytes, and how many of them are valid.
                let [.., registers, stack] = &written.last().unwrap().3;
                let lens = [registers, stack].map(|bytes| bytes.as_ref().unwrap().len());
                full += usize::from(lens == [8 + 2 * 8, 8 + 512 + 8]);
            }
        }
        full >= 3
    });
    assert_eq!(writer.finish().unwrap().records, written.len() as u64);
    let rings = open(&file.0);
    assert_eq!(rings.sources().len(), 2);
    let mut read = Vec::new();
    drain(&mut Reader::new(rings, Order::new()).unwrap(), |event| match event.item() {
        // Others are the names of what ran before.
        Item::Record(record) if record.source().is_some() => read.push(fields(&record)),
        Item::Record(_) | Item::Lost(_) => {}
        other => panic!("{other:?}"),
    });
    assert_eq!(read, written);
}

/// As the documentation says, the names of a program that starts after the rings were opened are in the file, if they
/// are requested.
#[test]
fn names_of_what_starts_later_are_in_the_recording() {
    if perfweave_support::perf().is_none() || kernel("find tracefs", perfweave_events::tracefs()).is_none() {
        return;
    }
    for asked in [true, false] {
        let samples = bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_IP;
        let options = Rings::options().tracepoint("raw_syscalls:sys_exit").sample(samples).bytes(4 << 20);
        let options =
            if asked { options.records([bindings::PERF_RECORD_COMM, bindings::PERF_RECORD_MMAP2]) } else { options };
        let mut command = Command::new("sh");
        command.args(["-c", "read go; exec /bin/cat /proc/self/comm"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let rings = kernel("trace", options.pid(child.id()).open());
        let pid = child.id().to_string();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        let Some(rings) = rings else { return };
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        reader.handle().flush().unwrap();
        let (file, _) = write_all(&mut reader, |_| ());
        let shown = perf(&["script", "-i", file.path(), "-F", "comm,tid,event"]).unwrap();
        // From the exec on. The process ran before that, with the name "sh".
        let names = [" cat ", &format!(":{pid} ")].map(|name| format!(" {shown}").contains(name));
        assert_eq!(names, [asked, true], "{shown}");
    }
}

/// Rings of another program with masks of registers and branches: all their records belong to one event.
#[test]
fn rings_of_unknown_events_have_one_event_for_each_layout() {
    let sample_type = bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME;
    let layout = Layout::new(sample_type.into(), true, 0).registers(0b1010, 0b1).branches(1 << 17);
    let machine = sim::Kernel::with(&[0], 4096, layout);
    (1..10).for_each(|time| assert!(machine.emit(0, time, b"payload")));
    let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
    reader.handle().flush().unwrap();
    let (file, written) = write_all(&mut reader, |_| ());
    assert_eq!(written.records, 9);
    let rings = open(&file.0);
    assert_eq!(rings.sources().len(), 1);
    let attr = rings.sources()[0].attr();
    let masks = [attr.sample_regs_user, attr.sample_regs_intr, attr.branch_sample_type];
    assert_eq!(masks, [0b1010, 0b1, 1 << 17]);
    assert_eq!(bytes(rings, true).len(), 9);
}

/// Kinds that the kernel does not have are perf's own in a file, and change how the rest of the file is read.
#[test]
fn records_of_kinds_that_are_perfs_own_are_left_out() {
    let machine = sim::Kernel::new(&[0]);
    machine.emit(0, 1, b"before");
    for kind in [64, 81, u32::MAX] {
        machine.begin(0, 2);
        assert!(machine.write_other(0, kind, 0, &[0xff; 24]));
        machine.end(0);
    }
    machine.emit(0, 3, b"after");
    let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
    reader.handle().flush().unwrap();
    let (file, written) = write_all(&mut reader, |_| ());
    assert_eq!((written.records, written.left_out), (2, 3));
    assert_eq!(bytes(open(&file.0), true).len(), 2);
}

/// A recording says what the wall clock was: perf's own file, one of ours, and one of ours that was made from perf's.
#[test]
fn a_recording_says_the_wall_clock() {
    let far = |one: Option<ClockOffset>, other: Option<ClockOffset>| {
        one.unwrap().nanoseconds.abs_diff(other.unwrap().nanoseconds)
    };
    let Some(of_perf) = record(&["-a", "-k", "mono", "-e", "sched:sched_switch"]) else { return };
    let rings = perf_data::open(of_perf.path()).unwrap();
    let (now, read) = (Clock::Monotonic.offset_to(Clock::Realtime), rings.wall_clock());
    // perf reads the two clocks one after the other, and may be interrupted in between. Both clocks began years apart.
    assert!(far(now, read) < 1_000_000_000, "{now:?} {read:?}");
    let (again, _) = write_all(&mut Reader::new(rings, Order::new()).unwrap(), |_| ());
    assert_eq!(perf_data::open(again.path()).unwrap().wall_clock(), read);

    let Some(mut reader) = live(&["sched:sched_switch"]) else { return };
    let (ours, _) = write_all(&mut reader, |_| ());
    let read = perf_data::open(ours.path()).unwrap().wall_clock();
    assert!(far(now, read) < 1_000_000_000, "{now:?} {read:?}");
    assert_eq!(read.unwrap().uncertainty, None);
    let header = perf(&["report", "--header-only", "-i", ours.path()]).unwrap();
    assert!(header.contains("reference time: ") && header.contains("(monotonic)"), "{header}");

    // Times of the wall clock are what they are. The kernel does not stamp tracepoints by it.
    let Some(of_perf) = record(&["-a", "-k", "realtime", "-e", "cpu-clock"]) else { return };
    let read = perf_data::open(of_perf.path()).unwrap().wall_clock();
    assert_eq!(read, Some(ClockOffset { nanoseconds: 0, uncertainty: Some(0) }));

    // perf's own clock: nothing is known.
    let Some(of_perf) = record(&["-a", "-e", "sched:sched_switch"]) else { return };
    assert_eq!(perf_data::open(of_perf.path()).unwrap().wall_clock(), None);
}

/// What the kernel drops after the last report is in the file too, by the ledger, and once.
#[test]
fn losses_after_the_last_event_are_written_by_the_ledger() {
    let machine = sim::Kernel::new(&[0, 3]);
    assert!(machine.emit(3, 10, b""));
    machine.lose(3, 2);
    let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
    let file = File::new();
    let mut writer = perf_data::Writer::create(&file.0, reader.rings()).unwrap();
    reader.handle().flush().unwrap();
    while let Some(event) = reader.next().unwrap() {
        writer.write(&event.event()).unwrap();
        if matches!(event.item(), Item::Flushed { .. }) {
            break;
        }
    }
    machine.lose(3, 5);
    machine.lose(0, 7);
    let ledger = reader.ledger().unwrap();
    writer.unreported(&ledger);
    let written = writer.finish().unwrap();
    assert_eq!((written.records, written.lost), (1, ledger.total().lost));
    assert_eq!(written.lost, 14);
}

/// LOST records and the counts at the end are of the same losses, also in a recording that is written of a recording.
#[test]
fn losses_are_counted_once_however_often_they_are_told() {
    let machine = sim::Kernel::with(&[0, 3], 4096, Layout::new(4 | 128 | 1024, true, 0));
    assert!(machine.emit(3, 10, b"") && machine.emit(0, 15, b""));
    machine.lose(3, 2);
    machine.begin(3, 20);
    // Samples that the processor lost are beside what the kernel dropped.
    let samples = 8u64.to_ne_bytes();
    assert!(machine.write_other(3, bindings::PERF_RECORD_LOST_SAMPLES, 0, &samples));
    machine.end(3);
    assert!(machine.emit(3, 30, b""));
    let mut reader = Reader::new(machine.rings(), Order::new().hold(machine.hold())).unwrap();
    reader.handle().flush().unwrap();
    let file = File::new();
    let mut writer = perf_data::Writer::create(&file.0, reader.rings()).unwrap();
    while let Some(event) = reader.next().unwrap() {
        writer.write(&event.event()).unwrap();
        if matches!(event.item(), Item::Flushed { .. }) {
            break;
        }
    }
    machine.lose(0, 7);
    writer.unreported(&reader.ledger().unwrap());
    writer.finish().unwrap();
    // perf's own recording: a count of the whole alone.
    let of_perf = include_bytes!("../../cli/tests/cases/lost.pipe");
    let at = of_perf.len() - 48;
    let filtered = [&of_perf[..at + 4], &0x8000u16.to_ne_bytes(), &of_perf[at + 6..]].concat();
    let cases = [
        (file, 17, 3),
        (File::with(of_perf), 945, 3),
        // What a BPF filter left out is not lost.
        (File::with(&filtered), 0, 3),
    ];
    for (mut file, lost, records) in cases {
        for written in 0..3 {
            let verdict = perf_data::verify(&file.0).unwrap();
            assert_eq!((verdict.found.lost, verdict.found.records, verdict.found.back), (lost, records, 0));
            assert!(written == 0 || verdict.holds(), "{:?}", verdict.doubts);
            let mut reader = Reader::new(open(&file.0), Order::new()).unwrap();
            let again = File::new();
            let mut writer = perf_data::Writer::create(&again.0, reader.rings()).unwrap();
            while let Some(event) = reader.next().unwrap() {
                writer.write(&event.event()).unwrap();
            }
            let ledger = reader.ledger().unwrap();
            assert_eq!((ledger.total().lost, ledger.total().yielded), (lost, records));
            writer.unreported(&ledger);
            writer.finish().unwrap();
            file = again;
        }
    }
}

/// The numbers of tracepoints are each machine's own: a recording that brings no format is not written with one of this
/// machine.
#[test]
fn formats_that_a_recording_does_not_bring_are_not_made_up() {
    let Some(_) = kernel("find tracefs", perfweave_events::tracefs()) else { return };
    let mut recording = Recording::new(Clock::Boottime, None);
    // `type`, `size` and `config`: the first kernels' members suffice.
    let mut attr = [0; 64];
    attr[..4].copy_from_slice(&bindings::PERF_TYPE_TRACEPOINT.to_ne_bytes());
    attr[8..16].copy_from_slice(&1u64.to_ne_bytes());
    recording.event("sched:sched_switch", &attr, None);
    let file = File::new();
    let error = perf_data::Writer::create_unnamed(&file.0, &recording.build()).map(drop).unwrap_err();
    assert_error!(error, NotFound, "no format of tracepoint 1", "the recording does not bring it");
    assert!(!file.0.exists());
}
