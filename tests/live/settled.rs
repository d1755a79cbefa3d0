//! On live kernel rings: what a program asks of a reader that it calls now and then, and of events that it opened itself.

use crate::reading::{LONG, number};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use perf_event_open_sys::bindings;
use perfweave::{Certainty, Clock, Fence, Hold, Item, Key, Layout, Lost, Order, Reader, Ring, Rings};
use perfweave_support::bpf::{Map, Program};
use perfweave_support::foreign::{self, ForeignRing};
use perfweave_support::{assert_error, echo, kernel, load, ring_buffer};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What a program asks for that opens events itself and wants them in order, with the count of what they lose.
const ASKED: u64 = (bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME) as u64;
const COUNTED: u64 = bindings::PERF_FORMAT_LOST as u64;

/// An event of a CPU in its slot, as such a program opens it, and its ring.
fn own(map: &Map, cpu: u32) -> Option<(ForeignRing, Ring)> {
    let size = foreign::page_size();
    let event = ForeignRing::open_as(cpu, size, |attr| {
        (attr.sample_type, attr.read_format) = (ASKED, COUNTED);
        attr.clockid = libc::CLOCK_MONOTONIC;
        attr.set_use_clockid(1);
    });
    let event = kernel("open an event that counts what it loses", event)?;
    foreign::set_slot(map, cpu, &event).unwrap();
    // SAFETY: nobody else reads it.
    let ring = unsafe { Ring::adopt_event(event.as_fd(), size) }.unwrap();
    Some((event, ring))
}

fn layout(tag: u32) -> Layout {
    Layout::new(ASKED, false, COUNTED).tagged(tag)
}

/// Numbers and losses up to the end of a flush, all proven.
fn settled(reader: &mut Reader) -> (Vec<u64>, Vec<Lost>) {
    let (mut numbers, mut losses) = (Vec::new(), Vec::new());
    let all = reader.settle(|event| {
        assert_eq!(event.certainty(), Certainty::Proven);
        match event.item() {
            Item::Record(_) => numbers.push(number(&event)),
            Item::Lost(lost) => losses.push(lost),
            other => panic!("{other:?}"),
        }
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(all.unwrap(), ControlFlow::Continue(true));
    (numbers, losses)
}

/// Each call gives all that was written before it, on whatever CPU, in order, and leaves nothing.
#[test]
fn one_call_gives_all_that_was_there_in_proven_order() {
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let cpus = load::online();
    for round in 0..5 {
        let numbers: Vec<u64> = (0..20).map(|n| round * 100 + n).collect();
        for (number, cpu) in numbers.iter().zip(cpus.iter().cycle()) {
            assert_eq!(program.run_with(*cpu, &[*number]).unwrap(), 0);
        }
        assert_eq!(settled(&mut reader), (numbers, vec![]));
        assert_eq!((reader.held(), reader.wait(Duration::ZERO).unwrap()), (0, false));
    }
    // One that breaks leaves the rest, and the end of its flush.
    (0..3).for_each(|n| assert_eq!(program.run_with(0, &[n]).unwrap(), 0));
    assert_eq!(reader.settle(|event| ControlFlow::Break(number(&event))).unwrap(), ControlFlow::Break(0));
    assert!(reader.wait(LONG).unwrap());
    assert_eq!(reader.held(), 2);
    let mut rest = Vec::new();
    let all = reader.settle(|event| {
        rest.push(if let Item::Flushed { complete } = event.item() { Err(complete) } else { Ok(number(&event)) });
        ControlFlow::<()>::Continue(())
    });
    assert_eq!((all.unwrap(), rest), (ControlFlow::Continue(true), vec![Ok(1), Ok(2), Err(true)]));
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// A signal ends a wait also if it comes while the reader refreshes, right before it sleeps, or if it spins for ever.
#[test]
fn a_signal_ends_a_wait_whenever_it_comes() {
    let action = SigAction::new(SigHandler::Handler(handle), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only adds to a counter.
    unsafe { sigaction(Signal::SIGUSR2, &action) }.unwrap();
    for spin in [Duration::ZERO, Duration::MAX] {
        let Some((map, program)) = echo() else { return };
        let rings = Rings::options().bpf_output(&map).open().unwrap();
        // Read by the reader's refresh: it makes the signal come where no call waits.
        let key = Key::Fn(Box::new(|record| {
            raise(Signal::SIGUSR2).unwrap();
            record.time()
        }));
        let mut reader = Reader::new(rings, Order::new().key(key).spin(spin)).unwrap();
        HANDLED.store(0, Ordering::SeqCst);
        for round in 1..=20 {
            assert_eq!(program.run_with(0, &[round]).unwrap(), 0);
            let error = reader.wait(LONG).expect_err("the signal ends it");
            assert_error!(error, System, "Interrupted");
            assert_eq!((error.raw_os_error(), HANDLED.load(Ordering::SeqCst)), (Some(libc::EINTR), round as usize));
            // It goes on.
            assert!(reader.wait(LONG).unwrap());
            assert_eq!(number(&reader.next().unwrap().unwrap().event()), round);
        }
    }
    // The thread's own mask is as it was.
    assert!(!SigSet::thread_get_mask().unwrap().contains(Signal::SIGUSR2));
}

/// Rings of a program's own events join while the reader runs. What they lose is counted to the last record, and names
/// the ring.
#[test]
fn rings_join_a_reader_that_runs_and_their_losses_are_counted() {
    let Some((map, program)) = echo() else { return };
    let cpus = load::online();
    let mut events = Vec::new();
    let mut reader: Option<Reader> = None;
    for (at, cpu) in (0..).zip(&cpus) {
        let Some((event, ring)) = own(&map, *cpu) else { return };
        events.push(event);
        match &mut reader {
            Some(reader) => reader.add(*cpu, ring, layout(at)).unwrap(),
            None => {
                let mut rings = Rings::empty(Clock::Monotonic);
                rings.add(*cpu, ring, layout(at));
                reader = Some(Reader::new(rings, Order::new()).unwrap());
            }
        }
        let reader = reader.as_mut().expect("made above");
        let numbers: Vec<u64> = (0..10).collect();
        for (number, cpu) in numbers.iter().zip(cpus[..=at as usize].iter().cycle()) {
            assert_eq!(program.run_with(*cpu, &[*number]).unwrap(), 0);
        }
        assert_eq!(settled(reader), (numbers, vec![]), "with {} rings", at + 1);
    }
    let Some(mut reader) = reader else { return };
    let last = *cpus.last().unwrap();
    let (mut written, mut refused) = (0, 0);
    while refused < 7 {
        let is_full = program.run_with(last, &[written]).unwrap() != 0;
        *if is_full { &mut refused } else { &mut written } += 1;
    }
    let (numbers, losses) = settled(&mut reader);
    assert_eq!(numbers.len() as u64, written);
    // No record follows the loss: only the kernel's count of the event has it.
    let [lost] = losses[..] else { panic!("{losses:?}") };
    assert_eq!((lost.cpu, lost.tag, lost.count, lost.until), (last, cpus.len() as u32 - 1, 7, None));
    let ledger = reader.ledger().unwrap();
    assert!(ledger.total().exact && ledger.total().lost == 7 && ledger.total().is_balanced(), "{ledger}");
}

#[test]
fn what_cannot_join_is_refused() {
    let Some((map, _)) = echo() else { return };
    let Some((_event, ring)) = own(&map, 0) else { return };
    let mut rings = Rings::empty(Clock::Monotonic);
    rings.add(0, ring, layout(0));
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let Some((_other, ring)) = own(&map, 0) else { return };
    let error = reader.add(0, ring, Layout::RAW).unwrap_err();
    assert_error!(error, InvalidInput, "the records of CPU 0 carry no time to order by");
    let Some(buffer) = kernel("make a BPF ring buffer", Map::ring_buffer(64 << 10)) else { return };
    // SAFETY: nobody else reads it.
    let (cpu, ring) = unsafe { Ring::adopt_ring_buffers(&buffer) }.unwrap().remove(0);
    assert_error!(reader.add(cpu, ring, Layout::RING_BUFFER).unwrap_err(), Unsupported, "no BPF ring buffer can join");
    let Some((_third, ring)) = own(&map, 0) else { return };
    let mut rings = Rings::empty(Clock::Monotonic);
    rings.add(0, ring, layout(0));
    let dense = Hold::Dense { first: Some(0), fence: Fence::Auto };
    let mut counting = Reader::new(rings, Order::new().key(Key::Payload(0)).hold(dense)).unwrap();
    let Some((_fifth, ring)) = own(&map, 0) else { return };
    let mut rings = Rings::empty(Clock::Monotonic);
    rings.add(0, ring, layout(0));
    let proof = Fence::custom("nothing", Duration::from_secs(1), || Ok(|| Ok(())));
    let mut proven = Reader::new(rings, Order::new().hold(Hold::Fence(proof))).unwrap();
    let Some((_sixth, ring)) = own(&map, 0) else { return };
    assert_error!(proven.add(0, ring, layout(0)).unwrap_err(), Unsupported, "a proof that has looked at the rings");
    let Some((_fourth, ring)) = own(&map, 0) else { return };
    assert_error!(counting.add(0, ring, layout(0)).unwrap_err(), Unsupported, "nor any ring one that counts");
    let _: Option<Program> = kernel("load a BPF program", ring_buffer::echo(&buffer, 8, 0));
}

/// A program that asked for other fields gets the bytes that the kernel would have written without the time.
#[test]
fn a_record_without_its_time_is_the_kernels_own() {
    let Some((map, program)) = echo() else { return };
    let size = foreign::page_size();
    let fields = bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_CPU;
    let mut copies = Vec::new();
    for fields in [fields, fields | bindings::PERF_SAMPLE_TIME] {
        let fields = u64::from(fields);
        let opened = ForeignRing::open_as(0, size, |attr| attr.sample_type = fields);
        let Some(event) = kernel("open an event", opened) else { return };
        foreign::set_slot(&map, 0, &event).unwrap();
        let mut rings = Rings::empty(Clock::Perf);
        // SAFETY: nobody else reads it.
        let ring = unsafe { Ring::adopt_event(event.as_fd(), size) }.unwrap();
        rings.add(0, ring, Layout::new(fields, false, 0));
        let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0))).unwrap();
        // So many that one wraps.
        let mut copy = Vec::new();
        for number in 0..200 {
            assert_eq!(program.run_with(0, &[number]).unwrap(), 0);
            let _ = reader.settle(|event| {
                event.record().expect("a record").copy_without_time(&mut copy);
                ControlFlow::<()>::Continue(())
            });
        }
        copies.push(copy);
    }
    assert_eq!(copies[0].len(), 200 * (8 + 8 + 8 + 4 + 12));
    // The program runs in whatever thread is there (TID), and the kernel's padding is whatever lay in the ring.
    let masked = |copy: &[u8]| copy.chunks(40).map(|one| [&one[..8], &one[16..36]].concat()).collect::<Vec<_>>();
    assert!(masked(&copies[0]) == masked(&copies[1]));
}
