//! Fences and waits that fail many times: they are reported with a count, tried less and less often, and replaced if
//! there is another way. The tests count errors and tries, not time.

use perfweave::{Certainty, Error, ErrorKind, Fence, Hold, Order, Reader, Rings, sim};
use perfweave_support::{assert_error, bpf, kernel, load, membarrier, needs, privilege, times};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

/// A fence that fails or panics this many times before it works, and how often it was tried.
fn fails(times: u64) -> (Fence, Arc<AtomicU64>) {
    let tries = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&tries);
    let fence = Fence::by(move || match counted.fetch_add(1, Ordering::SeqCst) {
        n if n >= times => Ok(()),
        n if n % 2 == 1 => panic!("a panic in the fence"),
        _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
    });
    (fence, tries)
}

fn is_fence(error: &Error) -> bool {
    error.kind() == ErrorKind::Degraded && error.to_string().starts_with("a fence failed")
}

/// Reads until an event comes: how often each fence error that was reported says that it failed.
fn until_proven(reader: &mut Reader, key: u64) -> Vec<u64> {
    let mut reported = Vec::new();
    loop {
        match reader.next_timeout(LONG) {
            Ok(event) => {
                let event = event.expect("it comes");
                assert_eq!((event.key(), event.certainty()), (Some(key), Certainty::Proven));
                return reported;
            }
            Err(error) if is_fence(&error) => reported.push(times(&error.to_string())),
            Err(other) => panic!("{other}"),
        }
    }
}

/// The reader tries until the fence works, and reports the first and the tenth failure.
#[test]
fn a_fence_that_fails_is_reported_once_and_tried_again() {
    for (failures, expected) in [(1, vec![1]), (2, vec![1]), (9, vec![1]), (11, vec![1, 9])] {
        let (fence, tries) = fails(failures);
        let kernel = sim::Kernel::new(&[0]);
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(fence))).unwrap();
        kernel.emit(0, 5, b"held");
        assert_eq!(until_proven(&mut reader, 5), expected);
        assert_eq!(tries.load(Ordering::SeqCst), failures + 1);
        let status = reader.status();
        assert_eq!((status.fences, status.fences_failed), (1, failures));
    }
}

/// The text of the error.
#[test]
fn a_fence_that_fails_says_why_and_how_often() {
    let (fence, _) = fails(u64::MAX);
    let kernel = sim::Kernel::new(&[0]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(fence))).unwrap();
    kernel.emit(0, 5, b"held");
    let first = reader.next().unwrap_err();
    assert!(is_fence(&first) && first.raw_os_error() == Some(libc::EPERM), "{first}");
    assert!(!first.to_string().contains("times"), "{first}");
    let next = reader.next().unwrap_err();
    assert!(is_fence(&next) && times(&next.to_string()) == 9, "{next:?}");
    assert!(next.to_string().contains("panicked") && next.to_string().contains("9 times"), "{next}");
}

/// While fences fail nothing is proven: held events stay held, and a caller that does not wait gets no further errors.
#[test]
fn while_fences_fail_nothing_is_let_out() {
    let (fence, tries) = fails(u64::MAX);
    let kernel = sim::Kernel::new(&[0]);
    let order = Order::new().hold(Hold::Fence(fence)).most_held(0);
    let mut reader = Reader::new(kernel.rings(), order).unwrap();
    let mut errors = 0u64;
    let mut time = 0;
    while tries.load(Ordering::SeqCst) < 8 {
        time += 1;
        let _ = kernel.emit(0, time, b"");
        match reader.next_timeout(Duration::from_millis(1)) {
            Ok(event) => assert!(event.is_none()),
            Err(error) if is_fence(&error) => errors += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(errors, 1);
    assert_eq!(reader.status().total().yielded, 0);
    assert!(reader.status().held > 0);
}

/// Held records are copied up to the bound, and the kernel drops the rest. The caller learns at once why.
#[test]
fn while_fences_fail_a_full_ring_loses_records_and_the_reader_says_why() {
    let (fence, _) = fails(u64::MAX);
    let kernel = sim::Kernel::new(&[0]);
    let order = Order::new().hold(Hold::Fence(fence)).most_held(256 << 10);
    let mut reader = Reader::new(kernel.rings(), order).unwrap();
    let (mut time, mut refused, mut errors) = (0, 0u64, 0);
    while refused < 1000 || errors == 0 {
        time += 1;
        refused += u64::from(!kernel.emit(0, time, &[0; 64]));
        match reader.next_timeout(Duration::ZERO) {
            Ok(event) => assert!(event.is_none()),
            Err(error) if is_fence(&error) => errors += 1,
            Err(other) => panic!("{other}"),
        }
    }
    let status = reader.status();
    assert!(status.total().copied > 0 && status.most_memory <= 256 << 10, "{status:?}");
    assert_eq!(reader.ledger().unwrap().total().lost, refused);
}

/// A caller that waits for a report does not wait for ever: it gets each failure, at the end at most one a second.
#[test]
fn a_report_that_cannot_be_made_is_answered_with_the_failure() {
    for deadline in [false, true] {
        let (fence, tries) = fails(u64::MAX);
        let kernel = sim::Kernel::new(&[0]);
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(fence))).unwrap();
        kernel.emit(0, 5, b"held");
        if deadline {
            reader.handle().set_deadline(Some(Instant::now())).unwrap();
        } else {
            reader.handle().flush().unwrap();
        }
        for n in 1..=6 {
            let error = reader.next().unwrap_err();
            assert!(is_fence(&error) && times(&error.to_string()) == 1, "{error:?}");
            assert_eq!(tries.load(Ordering::SeqCst), n);
        }
        assert_eq!(reader.status().held, 1);
    }
}

/// A map with its program, and rings that it writes into. Opened before anything is refused.
fn rings() -> Option<(Rings, bpf::Program)> {
    let (events, echo) = perfweave_support::echo()?;
    let rings = kernel("open rings", Rings::options().bpf_output(&events).open())?;
    Some((rings, echo))
}

/// membarrier(2) answers the query of its commands, but later calls are refused, as by a filter that is installed
/// later.
fn refuse_membarrier(errno: i32) {
    privilege::refuse_with(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, errno).expect("a seccomp filter");
}

/// `Auto` changes from membarrier to the map without an error.
#[test]
fn auto_falls_back_to_the_map_while_it_runs() {
    if !membarrier() {
        return;
    }
    let Some(()) = needs("a second CPU that is online", load::online().len() > 1) else { return };
    for errno in [libc::EPERM, libc::ENOSYS, libc::EINVAL] {
        let Some((rings, echo)) = rings() else { return };
        let fallen = std::thread::spawn(move || {
            refuse_membarrier(errno);
            let mut reader = Reader::new(rings, Order::new()).unwrap();
            assert_eq!(reader.fence(), Some("membarrier"));
            for number in 0..3 {
                assert_eq!(echo.run_with(0, &[number]).unwrap(), 0);
                let event = reader.next_timeout(LONG).unwrap().expect("it comes");
                assert_eq!(event.certainty(), Certainty::Proven);
                drop(event);
                assert_eq!(reader.fence(), Some("map"));
            }
            assert_eq!(reader.status().fences_failed, 0);
        });
        fallen.join().unwrap();
    }
}

/// `Fence::Membarrier` has no replacement; and `Auto` without a map gives membarrier's error.
#[test]
fn without_a_way_to_fall_back_on_it_is_said_and_tried_again() {
    if !membarrier() {
        return;
    }
    let Some(()) = needs("a second CPU that is online", load::online().len() > 1) else { return };
    for fence in [Fence::Membarrier, Fence::Auto] {
        let Some((rings, echo)) = rings() else { return };
        assert_eq!(echo.run_with(0, &[1]).unwrap(), 0);
        let tried = std::thread::spawn(move || {
            if matches!(fence, Fence::Auto) {
                privilege::refuse(libc::SYS_bpf, libc::EPERM).expect("a seccomp filter");
            }
            refuse_membarrier(libc::EINVAL);
            let mut reader = Reader::new(rings, Order::new().hold(Hold::Fence(fence))).unwrap();
            for expected in [1, 9] {
                let error = reader.next().unwrap_err();
                assert!(is_fence(&error), "{error}");
                assert_eq!((error.raw_os_error(), times(&error.to_string())), (Some(libc::EINVAL), expected));
            }
            assert_eq!(reader.fence(), Some("membarrier"));
            let status = reader.status();
            assert_eq!((status.total().yielded, status.fences, status.fences_failed), (0, 0, 10));
        });
        tried.join().unwrap();
    }
}

/// A policy that does not know epoll_pwait2(2) costs a reader only the fraction of a millisecond.
#[test]
fn a_wait_that_is_refused_has_a_stand_in() {
    for errno in [libc::EPERM, libc::ENOSYS, libc::EINVAL] {
        let Some((rings, echo)) = rings() else { return };
        let waited = std::thread::spawn(move || {
            privilege::refuse(libc::SYS_epoll_pwait2, errno).expect("a seccomp filter");
            let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
            let begin = Instant::now();
            assert!(reader.next_timeout(Duration::from_millis(200)).unwrap().is_none());
            let ticks = begin.elapsed().as_millis() / 100;
            // 5, 10, 20, 40, 80 ms and so on, and the rest at the end.
            assert!(u128::from(reader.status().sleeps) <= 8 + ticks, "{} sleeps", reader.status().sleeps);
            assert_eq!(echo.run_with(0, &[1]).unwrap(), 0);
            assert!(reader.next().unwrap().unwrap().record().is_some());
        });
        waited.join().unwrap();
    }
}

/// If every wait is refused, the ticks go on; the reader reports the first and the tenth failure.
#[test]
fn a_reader_that_cannot_wait_goes_on_by_its_ticks() {
    let Some((rings, echo)) = rings() else { return };
    let waited = std::thread::spawn(move || {
        // libc's epoll_wait uses different calls on different machines.
        #[cfg(target_arch = "x86_64")]
        privilege::refuse(libc::SYS_epoll_wait, libc::EPERM).expect("a seccomp filter");
        for call in [libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2] {
            privilege::refuse(call, libc::EPERM).expect("a seccomp filter");
        }
        let mut reader = Reader::new(rings, Order::new().latency(Duration::from_millis(2))).unwrap();
        for expected in [1, 9] {
            let error = reader.next().unwrap_err();
            assert_error!(error, Degraded, "cannot wait");
            assert_eq!((error.raw_os_error(), times(&error.to_string())), (Some(libc::EPERM), expected));
        }
        // Tried once for each sleep, and no more often.
        assert_eq!(reader.status().sleeps, 10);
        assert_eq!(echo.run_with(0, &[7]).unwrap(), 0);
        let mut errors = 0;
        let event = loop {
            match reader.next() {
                Ok(event) => break event.unwrap().certainty(),
                Err(error) if error.to_string().contains("cannot wait") => errors += 1,
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(event, Certainty::Proven);
        assert!(errors <= 1, "{errors}");
    });
    waited.join().unwrap();
}
