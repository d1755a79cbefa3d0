//! Assertions that no other reader's tests make, on live kernel rings. `live/rings.rs` has hostile BPF output, and
//! `simulated/merge_cases.rs` has bytes that no kernel writes.

use crate::reading;
use crate::reading::{LONG, number};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use perfweave::{
    ANY_CPU, Clock, Error, ErrorKind, Fence, Handle, Hold, Key, Layout, Merge, Order, Pause, Reader, Recorder, Ring,
    Rings, Wakeup,
};
use perfweave_proofs::{Barrier, expedited};
use perfweave_support::bpf::{self, Map};
use perfweave_support::{apart, echo, kernel, load, needs, ring_buffer};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Silences panics of children. The parent sets this before the fork, because in the child another thread's lock could
/// block printing and setting.
fn quiet_children() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let (parent, before) = (std::process::id(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            if std::process::id() == parent {
                before(info);
            }
        }));
    });
}

/// Runs a child of this process, and gives its exit status. A child that does not end is killed.
fn in_child(what: impl FnOnce() -> i32) -> i32 {
    quiet_children();
    // SAFETY: the child runs `what`, which allocates little and takes no lock of another thread's, and leaves.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let code = catch_unwind(AssertUnwindSafe(what)).unwrap_or(99);
            // SAFETY: leaves without running anything of ours.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => {
            let begin = Instant::now();
            loop {
                match waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap() {
                    WaitStatus::StillAlive if begin.elapsed() < LONG => std::thread::sleep(Duration::from_millis(5)),
                    WaitStatus::StillAlive => {
                        kill(child, Signal::SIGKILL).unwrap();
                        waitpid(child, None).unwrap();
                        panic!("the child hangs");
                    }
                    WaitStatus::Exited(_, code) => return code,
                    died => panic!("{died:?}"),
                }
            }
        }
    }
}

/// The number of the first condition that does not hold, from 1 on; 0 if all do.
fn first_false(all: &[bool]) -> i32 {
    all.iter().position(|holds| !holds).map_or(0, |at| at as i32 + 1)
}

fn is_forked<T>(answer: Result<T, Error>) -> bool {
    matches!(answer, Err(ref error) if error.kind() == ErrorKind::Forked)
}

fn handle_is_forked(handle: &Handle) -> bool {
    handle.close();
    is_forked(handle.flush())
        && is_forked(handle.pause(Pause::Slots))
        && is_forked(handle.pause(Pause::Output))
        && is_forked(handle.resume())
        && is_forked(handle.set_deadline(None))
}

/// A child does not have its parent's rings, and gets an error; no call in the child harms the parent's rings.
#[test]
fn a_forked_child_is_told_and_harms_nothing() {
    apart!();
    let Some((map, program)) = echo() else { return };
    for hold in [Hold::FENCE, Hold::Fence(expedited(Duration::from_millis(1))), Hold::None] {
        let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
        let reader = Reader::new(rings, Order::new().hold(hold.clone()));
        let Some(mut reader) = kernel("wait for grace periods", reader) else { continue };
        let handle = reader.handle();
        assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
        assert_eq!(number(&reader.next().unwrap().unwrap().event()), 1);
        // Events are ready or held at the fork.
        assert_eq!(program.run_with(0, &[2]).unwrap(), 0);
        let mut reader = Some(reader);
        let code = in_child(|| {
            let mut reader = reader.take().unwrap();
            let code = first_false(&[
                is_forked(reader.next_timeout(Duration::ZERO)),
                is_forked(reader.next()),
                is_forked(reader.next_timeout(LONG)),
                is_forked(reader.batch(LONG)),
                is_forked(reader.try_fold((), |(), _| std::ops::ControlFlow::<(), ()>::Continue(()))),
                is_forked(reader.handle().set_deadline(None)),
                is_forked(reader.ledger()),
                handle_is_forked(&handle),
            ]);
            drop(reader);
            // The child has nothing to close, and the parent's reader stays open.
            handle.close();
            if code == 0 && !handle_is_forked(&handle) { 50 } else { code }
        });
        assert_eq!(code, 0, "{hold}");
        // The child has ended, with all its descriptors.
        let mut reader = reader.take().unwrap();
        assert_eq!(number(&reader.next().unwrap().unwrap().event()), 2, "{hold}");
        for cpu in load::online() {
            assert_eq!(program.run_with(cpu, &[3]).unwrap(), 0, "{hold}: the slot is set");
            let event = reader.next_timeout(LONG).unwrap().expect("it comes");
            assert_eq!((event.cpu(), number(&event.event())), (Some(cpu), 3), "{hold}");
        }
        handle.flush().unwrap();
        assert!(reading::is_flushed(&mut reader));
        drop(reader);
        assert_eq!(program.run_with(0, &[4]).unwrap(), -libc::ENOENT);
    }
}

/// A function that is called for each event may fork. The child reads none of the remaining events, and consumes none
/// of its parent's.
#[test]
fn a_child_that_is_forked_between_two_events_reads_no_more() {
    apart!();
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    (0..100).for_each(|n| assert_eq!(program.run_with(0, &[n]).unwrap(), 0));
    quiet_children();
    let (mut seen, mut child) = (0, None);
    let handed = catch_unwind(AssertUnwindSafe(|| {
        while seen < 100 {
            reader.batch(Duration::ZERO).unwrap().into_iter().flatten().for_each(|event| {
                assert_eq!(number(&event), seen);
                seen += 1;
                if seen == 40 {
                    // SAFETY: the child reads what it does not have, and the kernel ends it.
                    child = Some(unsafe { fork() }.unwrap());
                }
            });
        }
    }));
    match child {
        // SAFETY: leaves without running anything of ours.
        Some(ForkResult::Child) => unsafe { libc::_exit(1) },
        Some(ForkResult::Parent { child }) => {
            let ended = waitpid(child, None).unwrap();
            assert!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGSEGV, _)), "{ended:?}");
            assert!(handed.is_ok() && seen == 100);
        }
        None => panic!("no event was given"),
    }
}

/// A child cannot merge its parent's rings, whatever their clock is, and leaves them as they are.
#[test]
fn a_forked_child_merges_no_rings_of_its_parent() {
    apart!();
    let Some((map, program)) = echo() else { return };
    for clock in [Clock::Monotonic, Clock::Perf] {
        let mut rings = Some(Rings::options().bpf_output(&map).pages(1).clock(clock).open().unwrap());
        let code = in_child(|| {
            let merged = Merge::new(rings.take().unwrap(), Order::new());
            first_false(&[is_forked(merged)])
        });
        assert_eq!(code, 0, "{clock:?}");
        let mut reader = Reader::new(rings.take().unwrap(), Order::new()).unwrap();
        assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
        assert_eq!(number(&reader.next().unwrap().unwrap().event()), 1);
    }
}

/// A merge in a forked child panics, because it has no error to give, and changes nothing.
#[test]
fn a_forked_child_panics_rather_than_look() {
    apart!();
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let mut merge = Merge::new(rings, Order::new().hold(Hold::None)).unwrap();
    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
    merge.refresh(0);
    assert!(merge.is_ready());
    let code = in_child(|| {
        let mut panics =
            |call: &mut dyn FnMut(&mut Merge)| catch_unwind(AssertUnwindSafe(|| call(&mut merge))).is_err();
        first_false(&[
            panics(&mut |merge| merge.advance_tails()),
            panics(&mut |merge| assert_eq!(merge.refresh(0), 0)),
            is_forked(merge.follow_cpus()),
            is_forked(merge.rings().raw(0)),
        ])
    });
    assert_eq!(code, 0);
    assert_eq!(number(&merge.next().unwrap().event()), 1);
}

/// A child may drop events that were lent before the fork, and the parent still has them. A drain and a recorder panic
/// before they read a record.
#[test]
fn what_is_lent_across_a_fork_is_the_parents() {
    apart!();
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let mut merge = Merge::new(rings, Order::new().hold(Hold::None)).unwrap();
    for value in 0..3 {
        assert_eq!(program.run_with(0, &[value]).unwrap(), 0);
    }
    merge.refresh(0);
    let mut lent = Some(merge.next().unwrap());
    let code = in_child(|| {
        drop(lent.take());
        0
    });
    assert_eq!(code, 0);
    let lent = lent.unwrap();
    assert_eq!(number(&lent.event()), 0);
    drop(lent);
    let batch = merge.batch();
    assert_eq!(in_child(|| 0), 0);
    assert_eq!(batch.map(|event| number(&event)).collect::<Vec<_>>(), [1, 2]);
    drop(merge);

    let mut rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    assert_eq!(program.run_with(0, &[7]).unwrap(), 0);
    assert_eq!(program.run_with(0, &[8]).unwrap(), 0);
    let parent = std::process::id();
    let mut code = None;
    let drained = catch_unwind(AssertUnwindSafe(|| {
        let _ = rings.drain(|_| {
            // What was read in the child is not given back: the drain ends there.
            // SAFETY: the child takes no lock, and leaves.
            match unsafe { fork() }.unwrap() {
                ForkResult::Child => ControlFlow::Break(()),
                ForkResult::Parent { child } => {
                    code = Some(waitpid(child, None).unwrap());
                    ControlFlow::Break(())
                }
            }
        });
    }));
    if std::process::id() != parent {
        // SAFETY: leaves without running anything of ours.
        unsafe { libc::_exit(if drained.is_ok() { 0 } else { 1 }) }
    }
    assert!(matches!(code, Some(WaitStatus::Exited(_, 0))), "{code:?}");
}

/// The same for rings without a reader, and for a recorder.
#[test]
fn a_forked_child_may_drop_rings_and_recorders() {
    apart!();
    let Some((map, program)) = echo() else { return };
    let mut rings = Some(Rings::options().bpf_output(&map).pages(1).open().unwrap());
    assert_eq!(
        in_child(|| rings.take().map_or(1, |rings| first_false(&[rings.cpus().len() == load::online().len()]))),
        0
    );
    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
    let mut numbers = Vec::new();
    let _ = rings.take().unwrap().drain(|event| {
        numbers.push(number(&event));
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(numbers, [1]);

    let options = Rings::options().bpf_output(&map).pages(1);
    let mut recorder = Some(Recorder::open(options, &Fence::Auto).unwrap());
    assert_eq!(program.run_with(0, &[2]).unwrap(), 0);
    let code = in_child(|| {
        let mut recorder = recorder.take().unwrap();
        first_false(&[is_forked(recorder.freeze())])
    });
    assert_eq!(code, 0);
    let mut recorder = recorder.take().unwrap();
    assert_eq!(program.run_with(0, &[3]).unwrap(), 0);
    assert!(reading::merged(recorder.freeze().unwrap()).batch().map(|event| number(&event)).eq([2, 3]));
}

/// Pauses of rings without a reader do not reach the parent's rings either.
#[test]
fn a_forked_child_cannot_pause_its_parents_rings() {
    apart!();
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let code = in_child(|| {
        first_false(&[
            is_forked(rings.handle().pause(Pause::Slots)),
            is_forked(rings.handle().pause(Pause::Output)),
            is_forked(rings.handle().resume()),
        ])
    });
    assert_eq!(code, 0);
    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
}

/// The memory of a BPF ring buffer is in the child too, where nothing is read or given back.
#[test]
fn a_forked_child_harms_no_ring_buffer() {
    apart!();
    let Some(map) = kernel("make a BPF ring buffer", Map::ring_buffer(1 << 16)) else { return };
    let program = ring_buffer::echo(&map, 8, 0).unwrap();
    let available = ring_buffer::query(&map, bpf::Query::Available).unwrap();
    let adopt = || {
        let mut rings = Rings::empty(Clock::Monotonic);
        // SAFETY: one reader at a time.
        rings.add(ANY_CPU, unsafe { Ring::adopt_ring_buffers(&map) }.unwrap().remove(0).1, Layout::RING_BUFFER);
        rings
    };
    let write = |n| assert_eq!(program.run_with(0, &[n]).unwrap(), 0);
    for hold in [Hold::FENCE, Hold::Fence(Barrier::INTERRUPTS.fence()), Hold::None] {
        let order = Order::new().key(Key::Payload(0)).hold(hold.clone());
        let Some(mut reader) = kernel("prove the order", Reader::new(adopt(), order)) else { continue };
        let handle = reader.handle();
        (1..=3).for_each(write);
        // It was yielded, and its bytes are given back later.
        assert_eq!(number(&reader.next().unwrap().unwrap().event()), 1);
        let before = available.run_on(0).unwrap();
        assert!(before >= 32, "{before}");
        let mut reader = Some(reader);
        let code = in_child(|| {
            let mut reader = reader.take().unwrap();
            let raw = is_forked(reader.rings().raw(ANY_CPU));
            // What was found before the fork lies in memory that the child has, too.
            while matches!(reader.next(), Ok(Some(_))) {}
            let code = first_false(&[
                raw,
                is_forked(reader.next()),
                is_forked(reader.batch(Duration::ZERO)),
                is_forked(reader.ledger()),
                handle_is_forked(&handle),
            ]);
            drop(reader);
            code
        });
        assert_eq!(code, 0, "{hold}");
        assert_eq!(available.run_on(0).unwrap(), before, "{hold}: the child gave nothing back");
        let mut reader = reader.take().unwrap();
        for n in [2, 3] {
            assert_eq!(number(&reader.next().unwrap().unwrap().event()), n, "{hold}");
        }
        drop(reader);
        assert_eq!(available.run_on(0).unwrap(), 0, "{hold}");
    }

    // Without a reader, and in the middle of an event.
    let mut rings = adopt();
    (1..=3).for_each(write);
    let code = in_child(|| {
        let drained = catch_unwind(AssertUnwindSafe(|| rings.drain(|_| ControlFlow::<()>::Continue(()))));
        let mut merge = Merge::new(adopt(), Order::new().key(Key::Payload(0)).hold(Hold::None)).unwrap();
        first_false(&[drained.is_err(), {
            merge.refresh(0);
            merge.held() == 3
        }])
    });
    assert_eq!((code, available.run_on(0).unwrap()), (0, 3 * 16), "the child adopted it, and gave nothing back");
    let mut merge = Merge::new(rings, Order::new().key(Key::Payload(0)).hold(Hold::None)).unwrap();
    merge.refresh(0);
    {
        let event = merge.next().unwrap();
        let code = in_child(|| {
            // SAFETY: the parent's stays.
            drop(unsafe { std::ptr::read(&event) });
            0
        });
        assert_eq!((code, number(&event.event())), (0, 1));
    }
    assert!(merge.next().is_some_and(|event| number(&event.event()) == 2));
}

/// A child may open its own.
#[test]
fn a_forked_child_may_open_its_own() {
    apart!();
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let other = Map::perf_event_array(load::slots()).unwrap();
    let others = bpf::echo(&other).unwrap();
    let code = in_child(|| {
        let rings = Rings::options().bpf_output(&other).pages(1).open().unwrap();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        let written = others.run_with(0, &[5]).is_ok_and(|answer| answer == 0);
        let code = first_false(&[written, number(&reader.next().unwrap().unwrap().event()) == 5]);
        drop(reader);
        code
    });
    assert_eq!(code, 0);
    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
    drop(rings);
}

/// Polling an epoll instance from another consumes its readiness: a woken program refreshes the rings and finds all
/// events.
#[test]
fn a_wake_through_a_nested_epoll_still_yields() {
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).wakeup(Wakeup::Events(1)).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let (inner, outer) = [(); 2].map(|()| Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap()).into();
    inner.add(reader.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0)).unwrap();
    outer.add(&inner.0, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)).unwrap();
    let poll = |epoll: &Epoll, timeout: EpollTimeout| {
        let mut events = [EpollEvent::empty()];
        epoll.wait(&mut events, timeout).unwrap()
    };
    let cpus = load::online();
    for value in 0..20 {
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
        while poll(&outer, EpollTimeout::ZERO) > 0 {}
        let cpu = cpus[value as usize % cpus.len()];
        assert_eq!(program.run_with(cpu, &[value]).unwrap(), 0);
        assert_eq!(poll(&outer, EpollTimeout::from(60_000u16)), 1, "the wake comes through");
        // The result of the inner instance does not matter.
        poll(&inner, EpollTimeout::ZERO);
        let event = reader.next_timeout(Duration::ZERO).unwrap().expect("it is there");
        assert_eq!((event.cpu(), number(&event.event())), (Some(cpu), value));
    }
}

/// If smaller keys lie after a record in its ring, they are yielded first, and the tail waits for the record.
#[test]
fn a_tail_never_passes_what_is_not_yielded() {
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).cpus([0]).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0)).hold(Hold::None)).unwrap();
    for value in [4, 1, 3, 2, 5] {
        assert_eq!(program.run_with(0, &[value]).unwrap(), 0);
    }
    for (expected, tail) in [(1, 0), (2, 0), (3, 0), (4, 4 * 32), (5, 5 * 32)] {
        let event = reader.next_timeout(Duration::ZERO).unwrap().unwrap();
        assert_eq!(number(&event.event()), expected);
        // An event that is passed to `mem::forget` comes again, and its bytes stay.
        std::mem::forget(event);
        reader.advance_tails();
        assert!(reader.rings().raw(0).unwrap().tail < tail.max(1), "{expected} is not consumed");
        let event = reader.next_timeout(Duration::ZERO).unwrap().unwrap();
        assert_eq!(number(&event.event()), expected);
        drop(event);
        reader.advance_tails();
        assert_eq!(reader.rings().raw(0).unwrap().tail, tail, "{expected}");
    }
}

/// A drain whose function panics has consumed the events up to and including the one at which it panicked.
#[test]
fn a_panic_in_a_drain_leaves_the_tail_behind_its_event() {
    let Some((map, program)) = echo() else { return };
    let mut rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    for value in 0..5 {
        assert_eq!(program.run_with(0, &[value]).unwrap(), 0);
    }
    let drain = |rings: &mut Rings, bomb: u64| {
        let mut numbers = Vec::new();
        let drained = catch_unwind(AssertUnwindSafe(|| {
            rings.drain(|event| {
                numbers.push(number(&event));
                assert_ne!(number(&event), bomb, "the consumer panics");
                ControlFlow::<()>::Continue(())
            })
        }));
        (drained.is_err(), numbers)
    };
    assert_eq!(drain(&mut rings, 2), (true, vec![0, 1, 2]));
    assert_eq!(rings.raw(0).unwrap().tail, 3 * 32);
    assert_eq!(drain(&mut rings, 100), (false, vec![3, 4]));
    assert_eq!(rings.raw(0).unwrap().tail, 5 * 32);
}

/// CPUs with holes between them: every ring, slot and event has its CPU's own number. With two CPUs, the hole is CPU 0.
#[test]
fn cpus_with_holes_keep_their_numbers() {
    let Some((map, program)) = echo() else { return };
    let sparse: Vec<u32> = load::online().into_iter().rev().step_by(2).collect();
    let Some(()) = needs("a second CPU that is online", load::online().len() > 1) else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).cpus(sparse.iter().copied()).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    for cpu in load::online() {
        let answer = program.run_with(cpu, &[cpu.into()]).unwrap();
        assert_eq!(answer, if sparse.contains(&cpu) { 0 } else { -libc::ENOENT }, "CPU {cpu}");
        if answer == 0 {
            let event = reader.next_timeout(LONG).unwrap().unwrap();
            assert_eq!((event.cpu(), number(&event.event())), (Some(cpu), cpu.into()));
        }
    }
}

/// The slots live as long as the user's descriptor of the map or the crate's own.
#[test]
fn a_map_whose_descriptor_was_closed_keeps_its_slots() {
    let Some((map, program)) = echo() else { return };
    let mut readers = Vec::new();
    for _ in 0..2 {
        let duplicate = map.as_fd().try_clone_to_owned().unwrap();
        let rings = Rings::options().bpf_output(&duplicate).pages(1).open().unwrap();
        drop(duplicate);
        readers.push(Reader::new(rings, Order::new().hold(Hold::None)).unwrap());
    }
    drop(map);
    // A slot has one event: the second reader gets the output.
    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
    reading::assert_nothing(&mut readers[0]);
    assert_eq!(number(&readers[1].next().unwrap().unwrap().event()), 1);
    readers.clear();
    assert_eq!(program.run_with(0, &[1]).unwrap(), -libc::ENOENT);
}

/// The process number is compared at each refresh, and not for each event. The memory of a simulated ring is in the child,
/// too.
#[test]
fn a_forked_child_is_told_at_its_next_refresh() {
    apart!();
    let kernel = perfweave::sim::Kernel::new(&[0]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    (1..=3).for_each(|time| assert!(kernel.emit(0, time, b"")));
    assert_eq!(reader.next().unwrap().unwrap().key(), Some(1));
    let code = in_child(|| {
        while matches!(reader.next(), Ok(Some(_))) {}
        first_false(&[is_forked(reader.next()), is_forked(reader.next_timeout(Duration::ZERO))])
    });
    assert_eq!(code, 0);
    assert_eq!(reader.next().unwrap().unwrap().key(), Some(2));
}
