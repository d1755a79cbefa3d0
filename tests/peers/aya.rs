//! The assertions of aya's tests of its perf buffers, made of perfweave on live kernel rings.
//!
//! Named after theirs, `aya/src/maps/perf/perf_buffer.rs` as of 0.16 and before. Theirs write records into plain
//! memory; here a BPF program does. Our records carry the kernel's time, so 8 bytes of payload make 32 of record.

use crate::reading;
use crate::reading::{LONG, number};
use perfweave::{Hold, Item, Layout, Merge, Order, Pause, Reader, Rings, sim};
use perfweave_support::bpf::{self, Map, Program};
use perfweave_support::{assert_error, echo, foreign, kernel, load};
use std::ops::ControlFlow;
use std::time::Duration;

/// A program that outputs its argument, and rings of a page.
fn open() -> Option<(Rings, Map, Program)> {
    let (map, program) = echo()?;
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    Some((rings, map, program))
}

fn reader(rings: Rings) -> Reader {
    Reader::new(rings, Order::new().hold(Hold::None)).unwrap()
}

fn write(program: &Program, numbers: impl IntoIterator<Item = u64>) {
    numbers.into_iter().for_each(|number| assert_eq!(program.run_with(0, &[number]).unwrap(), 0));
}

/// All events of the rings, one ring after the other.
fn drained(rings: &mut Rings) -> Vec<u64> {
    let mut numbers = Vec::new();
    let drained = rings.drain(|event| {
        numbers.push(number(&event));
        ControlFlow::<()>::Continue(())
    });
    assert!(drained.is_continue());
    numbers
}

/// All events that a reader can give now.
fn read(reader: &mut Reader) -> Vec<u64> {
    let mut numbers = Vec::new();
    // Not a batch, whose bytes go back with the next call alone.
    let all = reader.try_fold((), |(), event| {
        numbers.push(number(&event));
        ControlFlow::<()>::Continue(())
    });
    assert!(all.unwrap().is_continue());
    numbers
}

/// test_invalid_page_count: 0, 3 and 5 pages are InvalidPageCount.
/// perfweave refuses 0 pages and rounds the others up.
#[test]
fn test_invalid_page_count() {
    let Some((_, map, _)) = open() else { return };
    let error = Rings::options().bpf_output(&map).pages(0).open().unwrap_err();
    assert_error!(error, InvalidInput, "a ring cannot have 0 bytes");
    for (pages, rounded) in [(3, 4), (5, 8)] {
        let rings = Rings::options().bpf_output(&map).pages(pages).open().unwrap();
        assert_eq!(rings.raw(0).unwrap().size, rounded * foreign::page_size());
    }
}

/// test_for_each_samples: nothing from an empty ring; one; several, in order. test_no_events, test_read_first_sample
/// and test_read_many_with_one_read are the same of `read_events`.
#[test]
fn test_for_each_samples() {
    let Some((mut rings, _map, program)) = open() else { return };
    assert_eq!(drained(&mut rings), []);
    write(&program, [7]);
    assert_eq!(drained(&mut rings), [7]);
    write(&program, 0..100);
    assert_eq!(drained(&mut rings), (0..100).collect::<Vec<_>>());
    assert_eq!(drained(&mut rings), []);

    let mut reader = reader(rings);
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    assert_eq!(read(&mut reader), []);
    write(&program, [8]);
    assert_eq!(read(&mut reader), [8]);
    write(&program, 0..100);
    assert_eq!(read(&mut reader), (0..100).collect::<Vec<_>>());
    assert_eq!(read(&mut reader), []);
    assert_eq!(reader.batch(Duration::ZERO).unwrap().unwrap().count(), 0);
    write(&program, 0..100);
    let batch: Vec<_> = reader.batch(LONG).unwrap().unwrap().collect();
    assert!(batch.iter().map(number).eq(0..100));
}

/// test_for_each_lost: a LOST record says 0xCAFEBABE. No test can lose so many, so the number is the simulator's.
#[test]
fn test_for_each_lost() {
    let kernel = sim::Kernel::with(&[0], 4096, Layout::RAW);
    kernel.lose(0, 0xcafe_babe);
    assert!(kernel.emit(0, 1, b"behind"));
    let mut counts = Vec::new();
    let _ = kernel.rings().drain(|event| {
        match event.item() {
            Item::Lost(lost) => counts.push((lost.cpu, lost.count)),
            _ => assert!(event.record().is_some()),
        }
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(counts, [(0, 0xcafe_babe)]);
}

/// test_read_first_lost: the first thing in a ring is a loss, of as many as were lost.
#[test]
fn test_read_first_lost() {
    let Some((rings, _map, program)) = open() else { return };
    let mut reader = reader(rings);
    reader.handle().pause(Pause::Output).unwrap();
    for _ in 0..1000 {
        assert_eq!(program.run_with(0, &[1]).unwrap(), -libc::ENOSPC);
    }
    reader.handle().resume().unwrap();
    write(&program, [2]);
    let event = reader.next_timeout(LONG).unwrap().unwrap();
    let Item::Lost(lost) = event.item() else { panic!("{event:?}") };
    assert_eq!((lost.cpu, lost.count, lost.after, lost.until), (0, 1000, None, event.key()));
    drop(event);
    assert_eq!(read(&mut reader), [2]);
}

/// test_for_each_wrap and test_read_wrapping_value: 8 bytes that lie half at the end of the ring and half at its begin.
#[test]
fn test_for_each_wrap() {
    let Some((mut rings, map, program)) = open() else { return };
    let page = foreign::page_size();
    let array = Map::array(24, 1).unwrap();
    // The payload begins 20 bytes into a record: the record must begin 24 before the end. Records of 32 bytes leave 8
    // too many.
    let odd = bpf::emitter(&map, &array, 40 - 20).unwrap();
    write(&program, 0..page as u64 / 32 - 2);
    assert_eq!(odd.run_on(0).unwrap(), 0);
    let _ = rings.drain(|_| ControlFlow::<()>::Continue(()));
    assert_eq!(rings.raw(0).unwrap().tail as usize, page - 24);
    write(&program, [0x0102_0304_0506_0708, 9]);
    let mut seen = 0;
    let _ = rings.drain(|event| {
        if seen == 0 {
            let payload = event.record().unwrap().payload().unwrap().get(0..8).unwrap();
            let (head, tail) = payload.as_slices();
            assert_eq!((head.len(), tail.len()), (4, 4));
            assert_eq!([head, tail].concat(), 0x0102_0304_0506_0708_u64.to_ne_bytes());
            assert_eq!(number(&event), 0x0102_0304_0506_0708);
        }
        seen += 1;
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(seen, 2);
}

/// test_read_last_sample: a record that ends where the ring ends is in one piece, and the next begins at its begin.
#[test]
fn test_read_last_sample() {
    let Some((rings, _map, program)) = open() else { return };
    let page = foreign::page_size() as u64;
    let mut reader = reader(rings);
    for round in 0..3 {
        write(&program, 0..page / 32 - 1);
        assert_eq!(read(&mut reader).len() as u64, page / 32 - 1);
        write(&program, [round]);
        assert_eq!(reader.rings().raw(0).unwrap().head, (round + 1) * page);
        let event = reader.next_timeout(LONG).unwrap().unwrap();
        assert_eq!(number(&event.event()), round);
        assert!(event.record().unwrap().as_bytes().as_slices().1.is_empty());
        drop(event);
        reader.advance_tails();
        assert_eq!(reader.rings().raw(0).unwrap().tail, (round + 1) * page);
    }
}

/// test_read_many_with_many_reads: after a part was read, the next read continues after it.
#[test]
fn test_read_many_with_many_reads() {
    let Some((mut rings, _map, program)) = open() else { return };
    write(&program, 0..60);
    for expected in 0..20 {
        let first = rings.drain(|event| ControlFlow::Break(number(&event)));
        assert_eq!(first, ControlFlow::Break(expected));
        assert_eq!(rings.raw(0).unwrap().tail, 32 * (expected + 1), "what it broke off at is consumed");
    }
    // A merge continues where the last reader of the rings stopped.
    let mut merge = Merge::new(rings, Order::new().hold(Hold::None)).unwrap();
    merge.refresh(0);
    for expected in 20..40 {
        assert_eq!(merge.next().map(|event| number(&event.event())), Some(expected));
    }
    assert!(merge.batch().take(10).map(|event| number(&event)).eq(40..50));
    assert!(merge.batch().map(|event| number(&event)).eq(50..60));
}

/// Records that users of aya lost: those that arrive during a drain are there for the next drain, and do not keep this
/// one busy for ever.
#[test]
fn data_that_arrives_while_draining_is_there_for_the_next() {
    let Some((mut rings, _map, program)) = open() else { return };
    let mut next = 5;
    write(&program, 0..5);
    for round in 0..100 {
        let mut numbers = Vec::new();
        let _ = rings.drain(|event| {
            numbers.push(number(&event));
            write(&program, [next]);
            next += 1;
            ControlFlow::<()>::Continue(())
        });
        assert_eq!(numbers, (5 * round..5 * round + 5).collect::<Vec<_>>());
    }
    let mut reader = reader(rings);
    for round in 100..200 {
        let mut numbers = Vec::new();
        let all = reader.try_fold((), |(), event| {
            numbers.push(number(&event));
            write(&program, [next]);
            next += 1;
            ControlFlow::<()>::Continue(())
        });
        assert!(all.unwrap().is_continue());
        assert_eq!(numbers, (5 * round..5 * round + 5).collect::<Vec<_>>());
    }
    assert_eq!(reader.status().total().lost, 0);
}

/// `perf_event_array.rs`, emit_event: a program on a probe outputs 0xDEAD_BEEF once; all buffers together give exactly
/// that one value, and no loss. Its probe is on a function of the test; here it is a system call of this process.
#[test]
fn emit_event() {
    let Some((map, counter)) = kernel("make maps", maps()) else { return };
    counter.update(0, &0xdead_beef_u64.to_ne_bytes()).unwrap();
    let program = bpf::on_syscall(&map, &counter, libc::SYS_getppid, 0, 0);
    let Some(program) = kernel("load a BPF program", program) else { return };
    let Some(_attached) = kernel("attach to sys_enter", program.attach_raw_tracepoint("sys_enter")) else { return };
    for (round, cpu) in load::online().into_iter().enumerate() {
        let rings = Rings::options().bpf_output(&map).pages(2).open().unwrap();
        let mut reader = reader(rings);
        load::pinned(cpu, load::getppid);
        let event = reader.next_timeout(LONG).unwrap().expect("it is probed");
        assert_eq!(event.cpu(), Some(cpu));
        let number = event.record().and_then(|record| record.payload()?.u64(8));
        assert_eq!(number, Some(0xdead_beef + round as u64));
        drop(event);
        reading::assert_nothing(&mut reader);
        assert_eq!((reader.status().total().yielded, reader.status().total().lost), (1, 0));
    }
}

fn maps() -> std::io::Result<(Map, Map)> {
    Ok((Map::perf_event_array(load::slots())?, Map::array(8, 1)?))
}
