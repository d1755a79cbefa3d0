//! CPUs that come and go, on the live machine. In a process of its own: the CPU is gone for everybody.

use perfweave::{Class, Error, Event, Fence, Hold, Order, Pause, Reader, Rings, Wakeup};
use perfweave_support::bpf::{Map, Program};
use perfweave_support::{bpf, kernel, load};
use std::sync::Mutex;
use std::time::Duration;

/// Takes a CPU offline, and brings it back in the end.
struct Offline(u32);

impl Offline {
    fn set(cpu: u32, online: &str) -> std::io::Result<()> {
        std::fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), online)
    }

    fn one(cpu: u32) -> Option<Self> {
        kernel("take a CPU offline", Self::set(cpu, "0"))?;
        Some(Self(cpu))
    }

    /// The last CPU, if there is more than one and it can go.
    fn last() -> Option<Self> {
        let cpu = *load::online().last().expect("a CPU");
        if cpu == 0 {
            eprintln!("SKIPPED, nothing was tested: one CPU");
            return None;
        }
        Self::one(cpu)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        Self::set(self.0, "1").expect("the CPU comes back");
    }
}

/// All in one test: the machine has one set of CPUs.
#[test]
fn cpus_that_are_offline() {
    let slots = load::slots();
    let Some(events) = kernel("make a perf event array", Map::perf_event_array(slots)) else { return };
    let echo = bpf::echo(&events).unwrap();
    kernel("mount tracefs", perfweave_support::tracefs::find_or_mount());
    let Some(offline) = Offline::last() else { return };
    let gone = offline.0;

    // One that is offline is skipped, whether it is named or not.
    for options in [Rings::options(), Rings::options().cpus(0..slots)] {
        let rings = options.bpf_output(&events).open().unwrap();
        assert_eq!(rings.cpus().collect::<Vec<_>>(), load::online());
        assert!(!load::online().contains(&gone));
        assert!(matches!(rings.raw(gone), Err(Error::NoRing { cpu }) if cpu == gone));
    }
    let error = Rings::options().bpf_output(&events).cpus([gone]).open().unwrap_err();
    assert!(
        matches!(&error, Error::Offline { cpus, online } if *cpus == [gone] && *online == load::online()),
        "{error}"
    );

    // With one CPU left, membarrier returns at once and proves nothing: the map does the waiting.
    if load::online().len() == 1 {
        let membarrier = Reader::new(
            Rings::options().bpf_output(&events).open().unwrap(),
            Order::new().hold(Hold::Fence(Fence::Membarrier)),
        );
        let mut reader = membarrier.unwrap();
        assert_eq!(reader.fence(), Some("membarrier"));
        let mut took = Vec::new();
        for number in 0..11 {
            assert_eq!(echo.run_with(0, &[number]).unwrap(), 0);
            let event = reader.next_timeout(Duration::from_secs(5)).unwrap().expect("it comes");
            assert_eq!(event.class(), Class::Proven);
            drop(event);
            took.push(reader.fence_latency().unwrap());
        }
        // On one CPU that is idle otherwise, a grace period may be over in a tenth of a millisecond now and then.
        took.sort();
        assert!(took[5] > Duration::from_micros(500), "{took:?} are no grace periods");
    }
    drop(offline);
    assert!(load::online().contains(&gone));

    goes_and_comes_back(&events, &echo, gone);
    comes_back_before_anybody_looks(&events, &echo, gone);
    was_not_there_when_the_rings_were_opened(&events, &echo, gone);
    changes_while_rings_are_opened(&events, &echo, gone);
    a_reader_that_is_closed_meanwhile(&events, &echo, gone);
    a_message_about_a_cpu_that_was_there_all_along(gone);
    a_message_makes_a_reader_readable(&events, gone);
}

/// What the options ask for a slot is a moment between listing CPUs and watching them.
type Moment = Box<dyn FnMut(u32) + Send>;
static MOMENT: Mutex<Option<Moment>> = Mutex::new(None);

fn slot_and_moment(cpu: u32) -> u32 {
    if let Some(moment) = &mut *MOMENT.lock().unwrap() {
        moment(cpu);
    }
    cpu
}

fn at_slot(moment: impl FnMut(u32) + Send + 'static) {
    *MOMENT.lock().unwrap() = Some(Box::new(moment));
}

/// A CPU that comes, or goes and comes back, while rings are being opened.
fn changes_while_rings_are_opened(events: &Map, echo: &Program, cpu: u32) {
    let open = || Rings::options().bpf_output(events).slots(slot_and_moment).open().unwrap();
    let mut offline = Some(Offline::one(cpu).expect("it went before"));
    at_slot(move |_| drop(offline.take()));
    let mut reader = Reader::new(open(), Order::new()).unwrap();
    wait_until_back(&mut reader, echo, cpu, 5000);

    // Asked once when slots are checked and once when events are opened, which is where it bounces.
    let mut asked = 0;
    at_slot(move |of| {
        asked += u32::from(of == cpu);
        if of == cpu && asked == 2 {
            drop(Offline::one(cpu));
        }
    });
    let mut reader = Reader::new(open(), Order::new()).unwrap();
    *MOMENT.lock().unwrap() = None;
    wait_until_back(&mut reader, echo, cpu, 5000);
}

/// Closed while the ring of a CPU that came is being opened: nothing is started any more.
fn a_reader_that_is_closed_meanwhile(events: &Map, echo: &Program, cpu: u32) {
    let offline = Offline::one(cpu).expect("it went before");
    let rings = Rings::options().bpf_output(events).slots(slot_and_moment).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let handle = reader.handle();
    at_slot(move |_| handle.close());
    drop(offline);
    let closed = loop {
        match reader.next_timeout(Duration::from_millis(400)) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    *MOMENT.lock().unwrap() = None;
    assert!(matches!(closed, Error::Closed), "{closed}");
    for cpu in [0, cpu] {
        assert_eq!(echo.run_with(cpu, &[1]).unwrap(), -libc::ENOENT);
    }
}

/// A message such as `udevadm trigger` causes: the events live, and nothing is opened a second time.
fn a_message_about_a_cpu_that_was_there_all_along(cpu: u32) {
    use perfweave::bindings::{PERF_FORMAT_ID, PERF_SAMPLE_READ, PERF_TYPE_TRACEPOINT, perf_event_attr};
    let Some(tracefs) = kernel("find tracefs", perfweave_support::tracefs::find_or_mount()) else { return };
    let id = tracefs.join("events/syscalls/sys_enter_getppid/id");
    let Some(id) = kernel("find a tracepoint", std::fs::read_to_string(id)) else { return };
    let config = id.trim().parse().unwrap();
    for (sample_type, read_format) in [(0, 0), (PERF_SAMPLE_READ, PERF_FORMAT_ID)] {
        let mut attr = perf_event_attr { type_: PERF_TYPE_TRACEPOINT, config, ..perf_event_attr::default() };
        attr.sample_period = 1;
        (attr.sample_type, attr.read_format) = (sample_type.into(), read_format.into());
        let rings = Rings::options().event(&attr).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
        for _ in 0..3 {
            load::pinned(cpu, || (0..10).for_each(|_| load::getppid()));
            let mut records = 0;
            while let Some(event) = reader.next_timeout(Duration::from_millis(300)).unwrap() {
                records += usize::from(event.record().is_some());
            }
            assert_eq!(records, 10, "each once");
            std::fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/uevent"), "add").unwrap();
            assert!(reader.next_timeout(Duration::from_millis(250)).unwrap().is_none());
        }
    }
}

/// The kernel's message makes a reader readable when a CPU comes, though nobody has written anything; and its next call opens the
/// ring. Where no messages come, it lists CPUs by itself.
fn a_message_makes_a_reader_readable(events: &Map, cpu: u32) {
    use std::os::fd::{AsFd, AsRawFd};
    let offline = Offline::one(cpu).expect("it went before");
    let rings = Rings::options().bpf_output(events).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let readable = |reader: &Reader, millis| {
        let mut poll = libc::pollfd { fd: reader.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&raw mut poll, 1, millis) > 0 }
    };
    let has_ring = |reader: &Reader| reader.rings().cpus().any(|other| other == cpu);
    // The message that it went may still come.
    assert!(reader.next_timeout(Duration::from_millis(300)).unwrap().is_none());
    assert!(!has_ring(&reader));
    if readable(&reader, 0) {
        return eprintln!("SKIPPED, nothing was tested: somebody else takes CPUs offline");
    }
    drop(offline);
    assert!(readable(&reader, 60_000), "no message came");
    assert!(reader.try_next().unwrap().is_none());
    assert!(has_ring(&reader), "what was told was not listened to");
}

/// A CPU that goes offline loses nothing that it wrote and stalls nobody; when it is back, it writes on into its ring.
fn goes_and_comes_back(events: &Map, echo: &Program, cpu: u32) {
    let rings = Rings::options().bpf_output(events).tracepoint("sched:sched_switch").open().unwrap();
    let both = rings.len();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    for round in 0..3 {
        for n in 0..10 {
            assert_eq!(echo.run_with(cpu, &[n]).unwrap(), 0);
            assert_eq!(echo.run_with(0, &[100 + n]).unwrap(), 0);
        }
        let offline = Offline::one(cpu).expect("it went before");
        // What it wrote before is all there, in order, and what others write is not held up by it.
        assert_eq!(echo.run_with(0, &[1000]).unwrap(), 0);
        let expected: Vec<u64> = (0..10).flat_map(|n| [n, 100 + n]).chain([1000]).collect();
        assert_eq!(numbers(&mut reader, expected.len()), expected, "round {round}");
        drop(offline);
        wait_until_back(&mut reader, echo, cpu, 5000);
        for n in 0..10 {
            assert_eq!(echo.run_with(cpu, &[6000 + n]).unwrap(), 0);
            assert_eq!(echo.run_with(0, &[7000 + n]).unwrap(), 0);
        }
        let expected: Vec<u64> = (0..10).flat_map(|n| [6000 + n, 7000 + n]).collect();
        assert_eq!(numbers(&mut reader, expected.len()), expected, "round {round}");
        assert_eq!(reader.rings().len(), both, "it writes into the ring it had");
        // The other event in the ring is back too.
        let before = switches(&mut reader, cpu);
        assert!(before > 0, "no sched_switch on CPU {cpu} after it came back");
    }
    assert_eq!((reader.stats().late, reader.stats().damaged), (0, 0));
}

/// Gone and back between two checks of the list of CPUs: the kernel's wake is what tells.
fn comes_back_before_anybody_looks(events: &Map, echo: &Program, cpu: u32) {
    for written_before in [0, 5] {
        let rings = Rings::options().bpf_output(events).open().unwrap();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        // Past the first check.
        assert!(reader.next_timeout(Duration::from_millis(250)).unwrap().is_none());
        for n in 0..written_before {
            assert_eq!(echo.run_with(cpu, &[n]).unwrap(), 0);
        }
        drop(Offline::one(cpu));
        assert_eq!(numbers(&mut reader, written_before as usize), (0..written_before).collect::<Vec<_>>());
        wait_until_back(&mut reader, echo, cpu, 5000);
    }
}

/// A CPU that never had a ring gets one, and wakes a sleeping reader as the others do.
fn was_not_there_when_the_rings_were_opened(events: &Map, echo: &Program, cpu: u32) {
    let offline = Offline::one(cpu).expect("it went before");
    // Woken for each event, so that the reader's own tick does not hide a wake that is missing.
    let rings = Rings::options().bpf_output(events).wakeup(Wakeup::Events(1)).open().unwrap();
    assert!(!rings.cpus().any(|other| other == cpu));
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let handle = reader.handle();
    assert!(reader.next_timeout(Duration::from_millis(250)).unwrap().is_none());
    // A pause that is in force holds for it too.
    handle.pause(Pause::Slots).unwrap();
    drop(offline);
    assert!(reader.next_timeout(Duration::from_millis(400)).unwrap().is_none());
    assert!(reader.rings().cpus().any(|other| other == cpu), "picked up");
    assert_eq!(echo.run_with(cpu, &[1]).unwrap(), -libc::ENOENT, "paused");
    handle.resume().unwrap();
    let mut waits = Vec::new();
    for n in 0..20 {
        // The reader's own tick is at its longest.
        assert!(reader.next_timeout(Duration::from_millis(220)).unwrap().is_none());
        let begin = std::time::Instant::now();
        assert_eq!(echo.run_with(cpu, &[n]).unwrap(), 0);
        let event = reader.next_timeout(Duration::from_secs(5)).unwrap().expect("it comes");
        assert_eq!((event.cpu(), number(event.event())), (Some(cpu), Some(n)));
        waits.push(begin.elapsed());
    }
    waits.sort();
    assert!(waits[10] < Duration::from_millis(20), "the median wait is {:?}: nobody was woken", waits[10]);
}

/// Reads until the CPU's output is picked up again, and everything that it wrote.
fn wait_until_back(reader: &mut Reader, echo: &Program, cpu: u32, mark: u64) {
    let begin = std::time::Instant::now();
    let mut written = 0;
    while written == 0 {
        written += u32::from(echo.run_with(cpu, &[mark]).unwrap() == 0);
        assert!(begin.elapsed() < Duration::from_secs(3), "CPU {cpu} is back and nobody has noticed");
        // Other events never end, since reading them makes switches.
        let end = std::time::Instant::now() + Duration::from_millis(20);
        while written == 0 && std::time::Instant::now() < end {
            reader.next_timeout(Duration::from_millis(20)).unwrap();
        }
    }
    assert_eq!(numbers(reader, 1), [mark]);
}

/// The number that the echo program wrote; `None` for other events.
fn number(event: Event<'_>) -> Option<u64> {
    let record = event.record()?;
    (record.source() == Some(0)).then(|| record.payload().unwrap().u64(0).unwrap())
}

/// The next numbers that the echo program wrote.
fn numbers(reader: &mut Reader, count: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let event = reader.next_timeout(Duration::from_secs(5)).unwrap().expect("it comes");
        numbers.extend(number(event.event()));
    }
    numbers
}

/// How many switches are recorded on a CPU while it is made to switch.
fn switches(reader: &mut Reader, cpu: u32) -> usize {
    load::pinned(cpu, || {
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let mut found = 0;
    let end = std::time::Instant::now() + Duration::from_millis(200);
    while std::time::Instant::now() < end {
        if let Some(event) = reader.next_timeout(Duration::from_millis(50)).unwrap() {
            found += usize::from(event.cpu() == Some(cpu) && event.record().is_some_and(|r| r.source() == Some(1)));
        }
    }
    found
}
