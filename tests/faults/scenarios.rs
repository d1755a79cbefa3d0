//! The code that runs while calls fail.

use crate::world::{Heard, World, soon};
use perf_event_open_sys::bindings;
use perfweave::{
    Certainty, Clock, Ended, ErrorKind, Fence, Hold, Item, Key, Layout, Merge, Order, Pause, Reader, Record, Recorder,
    Ring, Rings,
};
use perfweave_events::EventOptions;
use perfweave_proofs::Barrier;
use perfweave_support::threads;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Rings are opened and closed.
pub(crate) fn opening(world: &World, heard: &mut Heard) {
    heard.hear(world.options().open());
}

/// A tracepoint by name: the crate finds and reads files.
pub(crate) fn opening_by_name(_: &World, heard: &mut Heard) {
    heard.hear(Rings::options().tracepoint("sched:sched_process_exec").pages(1).open());
}

/// Events with filters, for a process whose threads are listed; a directory that is no control group; and a wrong
/// filter, for which the crate asks the kernel for the reason. The last two are always refused.
pub(crate) fn opening_for_some(_: &World, heard: &mut Heard) {
    let options = || Rings::options().tracepoint("sched:sched_process_exec").pages(1);
    heard.hear(
        options()
            .filter("common_pid != 1")
            .records([bindings::PERF_RECORD_COMM, bindings::PERF_RECORD_EXIT])
            .pid(std::process::id())
            .open(),
    );
    for refused in [options().cgroup("/").open(), options().filter("nothing == 1").open()] {
        let error = refused.unwrap_err();
        let said = error.to_string();
        let by_path = said.contains("the control group") && error.kind() == ErrorKind::InvalidInput;
        let by_kernel = said.contains("cannot filter by") && error.raw_os_error() == Some(libc::EINVAL);
        if !by_path && !by_kernel {
            heard.errors.push(error.into());
        }
    }
}

/// A reader and the numbers that were written into its rings.
struct Reading<'a> {
    world: &'a World,
    reader: Reader,
    written: Vec<u64>,
    lost: u64,
    seen: Vec<u64>,
    /// How often the stream told of a CPU that was not traced.
    untraced: usize,
}

fn number(record: &Record<'_>) -> u64 {
    record.payload().and_then(|payload| payload.u64(0)).expect("a number")
}

/// How often a reader is called again if a call is refused for ever.
const TRIES: usize = 4;

impl Reading<'_> {
    /// Outputs a number on each CPU. Gives how many were written.
    fn emit(&mut self) -> usize {
        let before = self.written.len();
        for &cpu in &self.world.cpus {
            let number = 1 + self.written.len() as u64 + self.lost;
            match -self.world.emit(cpu, number) {
                0 => self.written.push(number),
                libc::ENOSPC => self.lost += 1,
                libc::ENOENT | libc::EOPNOTSUPP => {}
                other => panic!("error {other}"),
            }
        }
        self.written.len() - before
    }

    /// Reads until this much was seen, or an error is reported. Gives whether either came.
    fn read(&mut self, heard: &mut Heard, until: impl Fn(&Self) -> bool) -> bool {
        let wait = if self.world.forever { Duration::from_millis(2) } else { threads::GUARD };
        let mut tries = 0;
        while !until(self) && tries < TRIES {
            let given = match self.reader.next_timeout(wait) {
                Ok(Some(event)) => match event.item() {
                    Item::Record(record) => {
                        self.seen.push(number(&record));
                        true
                    }
                    // The error of the refused call.
                    Item::Lost(_) => true,
                    Item::Untraced(_) => {
                        self.untraced += 1;
                        true
                    }
                    Item::Flushed { .. } => return true,
                    other => panic!("{other:?}"),
                },
                Ok(None) => false,
                Err(error) => {
                    assert_ne!(error.kind(), ErrorKind::Forked);
                    heard.errors.push(error.into());
                    tries += 1;
                    true
                }
            };
            if given {
                continue;
            }
            if let Some(ended) = self.reader.ended() {
                return matches!(ended, Ended::Deadline { .. });
            }
            assert!(self.world.forever, "nothing came: {:?} of {:?}", self.seen, self.written);
            tries += 1;
        }
        until(self)
    }

    /// Lets the reader notice CPUs that are back, until output comes from all of them. Before each flush it looks for
    /// them, and retries failed openings.
    fn follow(&mut self, heard: &mut Heard) {
        let (end, mut tries) = (Instant::now() + threads::GUARD, 0);
        loop {
            // Without the message, where it is not permitted, all CPUs stay.
            let _ = self.world.announce(self.world.cpus[0]);
            heard.hear(self.reader.handle().flush());
            assert!(self.read(heard, |_| false) || self.world.forever);
            tries += 1;
            if self.emit() == self.world.cpus.len() || self.world.forever && tries == TRIES {
                return;
            }
            assert!(Instant::now() < end, "not all CPUs write: {:?}", heard.errors);
        }
    }
}

/// Rings are opened, read, paused in both ways, opened anew for a CPU that was away, flushed and closed.
pub(crate) fn reading(world: &World, heard: &mut Heard) {
    let Some(rings) = heard.hear(world.options().open()) else { return };
    let order = Order::new().hold(Hold::Fence(soon()));
    let Some(reader) = heard.hear(Reader::new(rings, order)) else { return };
    let handle = reader.handle();
    let mut reading = Reading { world, reader, written: Vec::new(), lost: 0, seen: Vec::new(), untraced: 0 };
    // Also for a CPU that seemed offline when its ring was opened.
    reading.follow(heard);
    reading.emit();
    let all = |reading: &Reading<'_>| reading.seen.len() == reading.written.len();
    assert!(reading.read(heard, all) || world.forever);

    // Paused in both ways.
    for how in [Pause::Output, Pause::Slots] {
        heard.hear(handle.pause(how));
        reading.emit();
        // The reader retries what has failed once.
        if heard.hear(handle.resume()).is_none() {
            heard.hear(handle.resume());
        }
    }
    assert!(reading.emit() == world.cpus.len() || world.forever, "output goes on: {:?}", heard.errors);

    // A CPU was offline, and is back.
    for away in [true, false] {
        world.stage.dead.store(away, Ordering::Relaxed);
        reading.follow(heard);
    }

    heard.hear(handle.flush());
    assert!(reading.read(heard, |_| false) || world.forever);
    assert!(all(&reading) || world.forever, "{:?} of {:?}", reading.seen, reading.written);
    heard.hear(handle.set_deadline(Some(Instant::now())));
    assert!(reading.read(heard, |_| false) || world.forever);

    let Reading { mut reader, written, lost, seen, untraced, .. } = reading;
    assert!(seen == written || world.forever, "{seen:?} of {written:?}");
    let account = heard.hear(reader.ledger()).unwrap().total();
    // The stream told what could not be opened, and that the CPU was away. Nothing else is amiss.
    assert!(account.untraced.is_zero() || untraced > 0, "{account}");
    let mut rest = account;
    rest.untraced = Duration::ZERO;
    assert!(rest.is_balanced(), "{account}");
    let expected = (written.len() as u64, lost);
    assert!(
        world.forever || (account.yielded, account.lost) == expected && account.held == 0,
        "{account}: {expected:?}"
    );
    let status = reader.status();
    assert_eq!((status.total().late, status.total().damaged), (0, 0));
    heard.sleeps = status.sleeps.saturating_sub(status.wakes);
    handle.close();
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.ended(), Some(Ended::Closed));
}

/// BPF ring buffers are adopted by a map of maps, and read in proven order by interrupts of all CPUs. In the second
/// round, the events that interrupt look dead, as after their CPUs were offline.
pub(crate) fn reading_ring_buffers(world: &World, heard: &mut Heard) {
    let Some(maps) = &world.buffers else { return };
    let (map, failures) = &**maps;
    world.empty();
    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: the map has no other reader.
    let Some(adopted) = heard.hear(unsafe { Ring::adopt_ring_buffers(map) }) else { return };
    adopted.into_iter().for_each(|(cpu, ring)| rings.add(cpu, ring, Layout::RING_BUFFER));
    let counts = heard.hear(rings.count_failures(failures)).is_some();
    let barrier = Barrier::Interrupts { every: Duration::from_micros(100), isolated: true };
    let order = Order::new().key(Key::Payload(0)).hold(Hold::Fence(barrier.fence()));
    let Some(mut reader) = heard.hear(Reader::new(rings, order)) else { return };
    let (mut written, mut seen, mut tries) = (0, 0, 0);
    let wait = if world.forever { Duration::from_millis(2) } else { threads::GUARD };
    for round in 0..3 {
        world.stage.dead.store(round == 1, Ordering::Relaxed);
        for &cpu in &world.cpus {
            written += 1;
            assert!(world.write(cpu, written) || world.forever, "an empty ring buffer has room");
        }
        while seen < written && tries < TRIES {
            match reader.next_timeout(wait) {
                Ok(Some(event)) => {
                    assert_eq!((event.key(), event.certainty()), (Some(seen + 1), Certainty::Proven));
                    seen += 1;
                }
                Ok(None) => {
                    assert!(world.forever, "nothing came: {seen} of {written}");
                    tries += 1;
                }
                Err(error) => {
                    heard.errors.push(error.into());
                    tries += 1;
                }
            }
        }
    }
    assert!(seen == written || world.forever, "{seen} of {written}: {:?}", heard.errors);
    let account = heard.hear(reader.ledger()).unwrap().total();
    assert!(!account.exact || counts, "nobody counted: {account}");
    assert_eq!((account.yielded, account.lost), (seen, 0), "{account}");
    let status = reader.status();
    assert_eq!((status.total().late, status.total().damaged), (0, 0));
    heard.sleeps = status.sleeps.saturating_sub(status.wakes);
}

/// The recorder is stopped and read three times.
pub(crate) fn recording(world: &World, heard: &mut Heard) {
    let Some(mut recorder) = heard.hear(Recorder::open(world.options(), &Fence::Auto)) else { return };
    let mut written = 0;
    let mut emit = || {
        let answers: Vec<_> = world.cpus.iter().map(|cpu| -world.emit(*cpu, 1)).collect();
        written += answers.iter().filter(|answer| **answer == 0).count();
        assert!(world.forever || answers.iter().all(|answer| *answer == 0), "{answers:?}");
        written
    };
    // A CPU was offline, or gets its ring only now. What has failed once is tried again.
    for away in [true, false, false] {
        world.stage.dead.store(away, Ordering::Relaxed);
        let _ = world.announce(world.cpus[0]);
        heard.hear(recorder.follow_cpus());
    }
    for _ in 0..3 {
        let written = emit();
        for _ in 0..2 {
            // If a ring could not go on, it does after the next stop.
            let Some(rings) = heard.hear(recorder.freeze()) else { continue };
            let Some(mut merge) = heard.hear(Merge::new(rings, Order::new())) else { break };
            merge.refresh(0);
            let records: Vec<_> = merge.batch().filter(|event| event.record().is_some()).collect();
            assert_eq!(records.len(), written);
            assert!(records.is_sorted_by_key(|event| event.key()));
            break;
        }
    }
    emit();
}

/// One wait for a grace period, tried again once.
fn fencing(heard: &mut Heard, fence: &Fence) {
    let Some(mut periods) = heard.hear(fence.open()) else { return };
    for _ in 0..2 {
        match periods.wait() {
            Ok(()) => return,
            Err(errno) => heard.errors.push(errno),
        }
    }
    panic!("{:?}", heard.errors);
}

pub(crate) fn fencing_by_any(_: &World, heard: &mut Heard) {
    fencing(heard, &Fence::Auto);
}

pub(crate) fn fencing_by_membarrier(_: &World, heard: &mut Heard) {
    fencing(heard, &Fence::Membarrier);
}

pub(crate) fn fencing_by_map(_: &World, heard: &mut Heard) {
    fencing(heard, &Fence::Map);
}

/// The same reader under tokio. The runtime is made before anything fails.
#[cfg(feature = "tokio")]
pub(crate) fn reading_under_tokio(world: &World, heard: &mut Heard) {
    use perfweave::AsyncReader;
    world.stage.begun.store(false, Ordering::Relaxed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().map(|fd| fd.unwrap());
    let eventfds = fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|is| is.ends_with("anon_inode:[eventfd]")));
    let theirs = eventfds.map(|fd| fd.file_name().to_str().unwrap().parse().unwrap()).max().unwrap();
    world.stage.theirs.store(theirs, Ordering::Relaxed);
    world.stage.begun.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        let Some(rings) = heard.hear(world.options().open()) else { return };
        let order = Order::new().latency(Duration::from_millis(2)).hold(Hold::Fence(soon()));
        let Some(mut reader) = heard.hear(AsyncReader::new(rings, order)) else { return };
        let handle = reader.handle();
        let (mut written, mut seen, mut untraced) = (0, 0, 0);
        for away in [true, false] {
            world.stage.dead.store(away, Ordering::Relaxed);
            let _ = world.announce(world.cpus[0]);
            // The runtime polls the kernel when it has nothing else to do.
            tokio::time::sleep(Duration::from_micros(1)).await;
            let mut reported = false;
            heard.hear(handle.flush());
            while !reported || seen < written {
                let flushed = match reader.next().await {
                    Ok(event) => {
                        let event = event.expect("nobody closed it");
                        seen += u64::from(event.record().is_some());
                        untraced += u64::from(matches!(event.item(), Item::Untraced(_)));
                        matches!(event.item(), Item::Flushed { .. })
                    }
                    Err(error) => {
                        heard.errors.push(error.into());
                        false
                    }
                };
                if !flushed {
                    continue;
                }
                reported = true;
                // A CPU that seemed offline, or that was away, may need another refresh.
                for cpu in &world.cpus {
                    match world.emit(*cpu, 1) {
                        0 => written += 1,
                        _ => {
                            reported = false;
                            let _ = world.announce(*cpu);
                        }
                    }
                }
                if !reported {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    heard.hear(handle.flush());
                }
            }
        }
        assert!(written >= 2 * world.cpus.len() as u64, "{:?}", heard.errors);
        let account = heard.hear(reader.ledger()).unwrap().total();
        assert!(account.untraced.is_zero() || untraced > 0, "{account}");
        let mut rest = account;
        rest.untraced = Duration::ZERO;
        assert!(rest.is_balanced() && account.lost == 0, "{account}");
        assert_eq!(account.yielded, written, "{account}");
        let status = reader.status();
        heard.sleeps = status.sleeps.saturating_sub(status.wakes);
        handle.close();
        assert!(reader.next().await.unwrap().is_none());
        assert_eq!(reader.ended(), Some(Ended::Closed));
    });
    world.stage.begun.store(false, Ordering::Relaxed);
    world.stage.theirs.store(0, Ordering::Relaxed);
    drop(runtime);
}
