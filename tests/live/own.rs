//! Leaving out the tracer's own events, on live kernel rings.

use crate::reading;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use perf_event_open_sys::bindings;
use perfweave::{Fence, Hold, Order, Reader, RingOptions, Rings};
use perfweave_events::{EventOptions, Format, WithoutSelf};
use perfweave_support::{apart, kernel, load, threads};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

const SWITCH: &str = "sched:sched_switch";
const WAKING: &str = "sched:sched_waking";
const GETPPID: &str = "syscalls:sys_enter_getppid";

fn open(options: RingOptions) -> Option<Rings> {
    kernel("find tracefs", perfweave_events::tracefs())?;
    kernel("trace", options.bytes(4 << 20).open())
}

fn own() -> u32 {
    threads::own() as u32
}

/// What each record of a scheduler trace is about: the writer, and the threads that it names.
fn about(reader: &mut Reader) -> Vec<(usize, [u32; 3])> {
    let rings = reader.rings();
    let field = |source: usize, name: &str| Format::of(rings, source).unwrap().field(name).unwrap();
    let fields = [
        [field(0, "common_pid"), field(0, "prev_pid"), field(0, "next_pid")],
        [field(1, "common_pid"), field(1, "pid"), field(1, "pid")],
    ];
    let mut all = Vec::new();
    reading::all(reader, |event| {
        if let Some(record) = event.record() {
            let source = record.source().unwrap();
            if source >= fields.len() {
                return;
            }
            all.push((source, fields[source].each_ref().map(|field| field.uint(&record).unwrap() as u32)));
        }
    });
    all
}

/// Two readers of the same events: one leaves out its own, and has all others that the second reader sees.
#[test]
fn nothing_but_ones_own_is_left_out() {
    let options = || Rings::options().tracepoint(SWITCH).tracepoint(WAKING);
    let (Some(all), Some(others)) = (open(options()), open(options())) else { return };
    let mut all = Reader::new(all, Order::new()).unwrap();
    let mut others = Reader::new(others, Order::new().without_self()).unwrap();
    // A reader does not know the other reader's fence thread. Here there is one reader with two threads.
    let ours: BTreeSet<u32> = others.threads().collect();
    assert!(ours.contains(&own()) && ours.len() == 2, "{ours:?}");
    assert!(all.threads().any(|thread| thread == own()));
    // A shell and its children wake each other. An idle machine may have no other strangers.
    let mut shell = Command::new("sh").args(["-c", "while /bin/true; do :; done"]).spawn().unwrap();
    let _ends = threads::AtEnd(|| {
        let _ = shell.kill().and_then(|()| shell.wait());
    });
    let is_ours = |thread: u32| ours.contains(&thread);
    let has_strangers = |all: &[(usize, [u32; 3])]| {
        all.iter().any(|(_, about)| !about.iter().any(|thread| *thread == 0 || is_ours(*thread)))
    };
    let mut kept = Vec::new();
    let mut whole = Vec::new();
    let mut rounds = 0;
    threads::until("events of other programs are in both", || {
        assert!(
            others.next_timeout(Duration::from_millis(3)).unwrap().is_none_or(|event| event.event().record().is_some())
        );
        kept.extend(about(&mut others));
        whole.extend(about(&mut all));
        rounds += 1;
        rounds >= 20 && has_strangers(&kept) && has_strangers(&whole)
    });
    for (source, [writer, one, other]) in &kept {
        if *source == 0 {
            let idle = |thread: u32| thread == 0 || is_ours(thread);
            assert!(!(idle(*one) && idle(*other) && (is_ours(*one) || is_ours(*other))), "{one} -> {other}");
        } else {
            assert!(!is_ours(*one) && !is_ours(*writer), "{writer} wakes {one}");
        }
    }
    let counted = others.status();
    assert!(counted.left_out > 0, "{counted:?}");
    assert!(counted.total().yielded >= counted.left_out + kept.len() as u64, "{counted:?} {}", kept.len());
    let wrote = others.ledger().unwrap();
    assert!(wrote.total().is_balanced(), "{wrote}");
}

/// A flood delays grace periods, so the reader starts a thread that makes CPUs switch. The reader leaves that thread
/// out too.
#[test]
fn a_thread_that_hurries_fences_is_left_out() {
    // Not the call that other tests of this process count.
    let options = Rings::options().tracepoint(SWITCH).tracepoint(WAKING).tracepoint("syscalls:sys_enter_getuid");
    let Some(rings) = open(options) else { return };
    let cpus: Vec<u32> = rings.cpus().collect();
    let order = || Order::new().hold(Hold::Fence(Fence::Membarrier)).without_self();
    let Some(mut reader) = kernel("wait for grace periods", Reader::new(rings, order())) else { return };
    let before: BTreeSet<u32> = reader.threads().collect();
    let flood = load::Load::on(&cpus, |_| load::getuid());
    // Not more at once: the flood may be faster than the reader.
    let take = |reader: &mut Reader| {
        let _ = (0..10_000).any(|_| reader.next_timeout(Duration::ZERO).unwrap().is_none());
    };
    threads::until("the thread starts", || {
        take(&mut reader);
        reader.threads().count() > before.len()
    });
    let hurrying = reader.threads().find(|thread| !before.contains(thread)).unwrap();
    let name = std::fs::read_to_string(format!("/proc/self/task/{hurrying}/comm")).unwrap();
    assert_eq!(name.trim(), "perfweave-visit");
    // It runs, and the reader does not show it.
    let switches = || {
        let status = std::fs::read_to_string(format!("/proc/self/task/{hurrying}/status")).unwrap();
        let count =
            |line: &str| line.contains("ctxt_switches").then(|| line.rsplit('\t').next()?.parse::<u64>().ok())?;
        status.lines().filter_map(count).sum::<u64>()
    };
    let begun = switches();
    threads::until("it visits CPUs", || {
        take(&mut reader);
        switches() > begun + 20
    });
    drop(flood);
    let about = about(&mut reader);
    let seen = about.iter().filter(|(source, [writer, one, other])| match source {
        0 => [*one, *other].contains(&hurrying) && [*one, *other].contains(&0),
        _ => *writer == hurrying || *one == hurrying,
    });
    assert_eq!(seen.count(), 0, "{hurrying} in {about:?}");
}

/// Threads that read one after the other are all left out, from their first refresh on. The trace is of system calls,
/// not of switches.
#[test]
fn whoever_reads_is_left_out() {
    apart!();
    let options = Rings::options().tracepoint(GETPPID).pid(std::process::id());
    let Some(rings) = open(options) else { return };
    let mut reader = Reader::new(rings, Order::new().without_self()).unwrap();
    let mut readers = vec![own()];
    for turn in 1..4u64 {
        (0..10).for_each(|_| load::getppid());
        let stranger = std::thread::spawn(|| {
            (0..7).for_each(|_| load::getppid());
            own()
        });
        let stranger = stranger.join().unwrap();
        let (back, thread, counted) = std::thread::spawn(move || {
            let mut reader = reader;
            let mut counted = Vec::new();
            reading::all(&mut reader, |event| counted.push(event.record().unwrap().payload().unwrap().u32(4).unwrap()));
            // Known by now.
            (0..5).for_each(|_| load::getppid());
            reading::all(&mut reader, |event| panic!("{event:?}"));
            (reader, own(), counted)
        })
        .join()
        .unwrap();
        reader = back;
        readers.push(thread);
        assert_eq!(counted, [stranger; 7]);
        assert_eq!(reader.status().left_out, 15 * turn);
        // The others have ended.
        let named: BTreeSet<u32> = reader.threads().collect();
        let known: Vec<_> = readers.iter().filter(|reader| named.contains(reader)).collect();
        assert_eq!(known, [&own()], "{named:?}");
    }
}

/// A child of this process with a number that the kernel is told to give it (clone3(2)). It makes so many calls, and
/// ends.
fn child_numbered(number: u32, calls: u64) -> io::Result<Pid> {
    let number = number.cast_signed();
    // SAFETY: integers, of which 0 is no choice.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    (args.set_tid, args.set_tid_size) = ((&raw const number).addr() as u64, 1);
    // SAFETY: the struct and the number are as long as they say; the child has a copy of this stack.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            (0..calls).for_each(|_| load::getppid());
            // SAFETY: leaves without running anything of ours.
            unsafe { libc::_exit(0) }
        }
        child => Ok(Pid::from_raw(child as i32)),
    }
}

/// A process that gets the number of a thread of the tracer that has ended is no tracer. What the thread did is left
/// out, though it is read after the thread's end.
#[test]
fn a_process_with_the_number_of_a_thread_that_has_ended_stays() {
    apart!();
    const OWN: u64 = 7;
    const CALLS: u64 = 1000;
    let Some(rings) = open(Rings::options().tracepoint(GETPPID)) else { return };
    let mut reader = Reader::new(rings, Order::new().without_self()).unwrap();
    let read = || {
        drop(reader.next_timeout(Duration::ZERO).unwrap());
        (0..OWN).for_each(|_| load::getppid());
        own()
    };
    let ended = std::thread::scope(|scope| scope.spawn(read).join()).unwrap();
    let mut child = Err(io::ErrorKind::NotFound.into());
    threads::until("the number is free", || {
        child = child_numbered(ended, CALLS);
        child.as_ref().err().is_none_or(|error| error.raw_os_error() != Some(libc::EEXIST))
    });
    let Some(child) = kernel("choose the number of a process", child) else { return };
    waitpid(child, None).unwrap();
    let mut counted = 0;
    reading::all(&mut reader, |event| {
        let writer = event.record().and_then(|record| record.payload()?.u32(4));
        counted += u64::from(writer == Some(ended));
    });
    assert_eq!((counted, reader.status().left_out), (CALLS, OWN));
    assert!(!reader.threads().any(|thread| thread == ended));
}

/// A sample belongs to the thread that ran; a reader without fence has only the reading thread.
#[test]
fn samples_of_the_reader_are_left_out() {
    apart!();
    let options = Rings::options()
        .event_name("page-faults")
        .user_only()
        .sample(bindings::PERF_SAMPLE_TID)
        .pid(std::process::id());
    let Some(rings) = open(options) else { return };
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None).without_self()).unwrap();
    assert_eq!(reader.threads().collect::<Vec<_>>(), [own()]);
    drop(std::hint::black_box(vec![1u8; 64 << 20]));
    let other = std::thread::spawn(|| {
        drop(std::hint::black_box(vec![1u8; 64 << 20]));
        own()
    });
    let other = other.join().unwrap();
    let mut seen = BTreeSet::new();
    reading::all(&mut reader, |event| seen.extend(event.record().unwrap().pid_tid()));
    let seen: BTreeSet<u32> = seen.into_iter().map(|(_, thread)| thread).collect();
    assert!(seen.contains(&other) && !seen.contains(&own()), "{seen:?}");
    assert!(reader.status().left_out > 0);
}

/// Most events of an idle machine's trace are the tracer's own.
#[test]
fn most_of_an_idle_trace_is_ones_own() {
    let Some(rings) = open(Rings::options().tracepoint(SWITCH).tracepoint(WAKING)) else { return };
    let order = Order::new().hold(Hold::Fence(Fence::Auto)).without_self();
    let mut reader = Reader::new(rings, order).unwrap();
    let ours: BTreeSet<u32> = reader.threads().collect();
    let mut about_us = 0;
    threads::until("the reader's own events come", || {
        // Not all that there is: others may write faster than it reads. And what is lost then is no record.
        for _ in 0..1000 {
            let Some(event) = reader.next_timeout(Duration::from_millis(2)).unwrap() else { break };
            let Some(record) = event.event().record() else { continue };
            // sched_waking: whom.
            about_us +=
                usize::from(record.source() == Some(1) && ours.contains(&record.payload().unwrap().u32(24).unwrap()));
        }
        reader.status().left_out > 20
    });
    assert_eq!(about_us, 0);
}

/// Switches are recognised for every way to name the tracepoint. Records that the reader does not recognise stay.
#[test]
fn switches_are_known_by_number_too() {
    let Some(rings) = open(Rings::options().tracepoint(SWITCH)) else { return };
    let id = rings.sources()[0].tracepoint_id().unwrap();
    let Some(rings) = open(Rings::options().tracepoint_id(id).cpus([0])) else { return };
    let (from, to) = (
        Format::of(&rings, 0).unwrap().field("prev_pid").unwrap(),
        Format::of(&rings, 0).unwrap().field("next_pid").unwrap(),
    );
    let hog = load::Load::on(&[0], |_| (0..100_000u64).for_each(|n| assert!(std::hint::black_box(n) < u64::MAX)));
    load::pin(0);
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None).without_self()).unwrap();
    let own = i64::from(own());
    threads::until("the reader and others take turns", || {
        let mut to_others = 0;
        for _ in 0..5 {
            let event = reader.next_timeout(Duration::from_millis(1)).unwrap();
            let Some(record) = event.as_ref().and_then(|event| event.event().record()) else { continue };
            to_others += usize::from(from.int(&record) == Some(own) && to.int(&record) != Some(0));
        }
        to_others > 0
    });
    hog.end();
}

/// Runs a test of this binary again, as process 1 of a PID namespace with its own /proc. False inside.
fn is_outside(test: &str, options: RingOptions) -> bool {
    const INSIDE: &str = "PERFWEAVE_TEST_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let Some(_) = open(options) else { return true };
    let mut command = Command::new("unshare");
    command.args(["-p", "-f", "--mount-proc"]).arg(std::env::current_exe().unwrap()).args([test, "--exact"]);
    if let Some(ran) = kernel("have a PID namespace", command.env(INSIDE, "1").output()) {
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    }
    true
}

/// In a PID namespace tracepoints have other numbers for threads than the threads themselves: the reader does not use
/// them.
#[test]
fn threads_of_others_are_not_taken_for_ours_in_a_namespace() {
    let options = || Rings::options().tracepoint(SWITCH).tracepoint(WAKING);
    if is_outside("own::threads_of_others_are_not_taken_for_ours_in_a_namespace", options()) {
        return;
    }
    let Some(rings) = open(options()) else { return };
    let mut reader = Reader::new(rings, Order::new().without_self()).unwrap();
    let mut seen = 0;
    threads::until("events come", || {
        seen += usize::from(reader.next_timeout(Duration::from_millis(1)).unwrap().is_some());
        seen > 100
    });
    assert_eq!(reader.status().left_out, 0);
}

/// With the number of the running thread in each record, the reader learns which numbers its threads have in
/// tracepoints. A switch between the reader and another program stays.
#[test]
fn ones_own_are_known_in_a_namespace_too() {
    let options = || Rings::options().tracepoint(SWITCH).tracepoint(WAKING).sample(bindings::PERF_SAMPLE_TID);
    if is_outside("own::ones_own_are_known_in_a_namespace_too", options()) {
        return;
    }
    let Some(rings) = open(options().cpus([0])) else { return };
    let field = |source: usize, name: &str| Format::of(&rings, source).unwrap().field(name).unwrap();
    let [from, to, woken] = [field(0, "prev_pid"), field(0, "next_pid"), field(1, "pid")];
    let hog = load::Load::on(&[0], |_| (0..100_000u64).for_each(|n| assert!(std::hint::black_box(n) < u64::MAX)));
    load::pin(0);
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None).without_self()).unwrap();
    let (mut known, mut to_others, mut about_us) = (None, 0, 0);
    threads::until("the reader and others take turns", || {
        for _ in 0..5 {
            let event = reader.next_timeout(Duration::from_millis(1)).unwrap();
            let Some(record) = event.as_ref().and_then(|event| event.event().record()) else { continue };
            let is_ours = record.pid_tid().is_some_and(|(_, thread)| thread == own());
            if record.source() == Some(0) && is_ours {
                known = from.int(&record);
                to_others += usize::from(to.int(&record) != Some(0));
                about_us += usize::from(to.int(&record) == Some(0));
            }
            about_us += usize::from(record.source() == Some(1) && known.is_some() && woken.int(&record) == known);
        }
        to_others > 20 && reader.status().left_out > 0
    });
    hog.end();
    assert_eq!(about_us, 0);
}

/// A daemon forks and then opens its rings: its parent's list of own threads does not apply to the child.
#[test]
fn a_forked_child_leaves_out_itself_and_sees_its_parent() {
    apart!();
    const PARENTS: u64 = 40;
    const OWN: u64 = 15;
    let options = || Rings::options().tracepoint("syscalls:sys_enter_getppid").sample(bindings::PERF_SAMPLE_TID);
    let Some(rings) = open(options()) else { return };
    // The parent's thread is known from here on.
    let readers = Reader::new(rings, Order::new().without_self()).unwrap();
    let parent = own();
    let ((mut ready, is_ready), (mut has_called, mut called)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let child = || {
        let mut reader = Reader::new(options().bytes(4 << 20).open()?, Order::new().without_self())?;
        (&is_ready).write_all(&[1]).unwrap();
        has_called.read_exact(&mut [0]).unwrap();
        (0..OWN).for_each(|_| load::getppid());
        let (mut of_parent, mut of_own) = (0u64, 0u64);
        reading::all(&mut reader, |event| {
            let thread = event.record().unwrap().pid_tid().unwrap().1;
            of_parent += u64::from(thread == parent);
            of_own += u64::from(thread == own());
        });
        Ok::<_, perfweave::Error>([of_parent, of_own, reader.status().left_out])
    };
    // SAFETY: the child takes no lock but the allocator's, which glibc sees to, and leaves.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: SIGALRM ends a child that hangs.
            unsafe { libc::alarm(reading::LONG.as_secs() as u32) };
            if let Ok(Ok(counts)) = catch_unwind(AssertUnwindSafe(child)) {
                (&is_ready).write_all(counts.map(u64::to_ne_bytes).as_flattened()).unwrap();
            }
            // SAFETY: leaves without running anything of ours.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(is_ready);
            let ended = "the child has ended before it had its rings";
            ready.read_exact(&mut [0]).expect(ended);
            (0..PARENTS).for_each(|_| load::getppid());
            called.write_all(&[1]).unwrap();
            let mut counts = Vec::new();
            ready.read_to_end(&mut counts).unwrap();
            waitpid(child, None).unwrap();
            let counts: Vec<_> =
                counts.chunks_exact(8).map(|count| u64::from_ne_bytes(count.try_into().unwrap())).collect();
            assert_eq!(counts, [PARENTS, 0, OWN], "of the parent's, of its own, left out");
        }
    }
    drop(readers);
}
