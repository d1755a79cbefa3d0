//! Writers' epochs, on live kernel rings.

use crate::caught::{QUICK, SLOW, caught_inside};
use crate::reading;
use perfweave::{Certainty, Clock, Fence, Hold, Item, Key, Layout, Merge, Order, Pause, Reader, Recorder, Ring, Rings};
use perfweave_events::EventOptions;
use perfweave_proofs::Epochs;
use perfweave_support::bpf::{Keeping, Map, Program, Stamps};
use perfweave_support::sleeper::Sleeper;
use perfweave_support::{assert_error, kernel, load, ring_buffer, threads, times};
use std::os::fd::AsFd;
use std::time::Duration;

/// Patience that never ends, so that no fence stands in.
const FOR_EVER: Duration = Duration::from_secs(3600);

const GETPGID: (libc::c_long, fn()) = (libc::SYS_getpgid, load::getpgid);

fn epochs(words: &Map) -> Hold {
    Hold::Fence(Epochs::open(words).unwrap().patience(FOR_EVER).fence())
}

/// The rings' map, the machine's counter, and more words than there can be CPUs. In the last word, which belongs to no
/// CPU, a program is inside for ever.
fn maps() -> Option<[Map; 3]> {
    let events = kernel("make a perf event array", Map::perf_event_array(load::slots()))?;
    let words = Map::epochs(load::slots() + 1).unwrap();
    let mut inside = [0; 64];
    inside[..8].copy_from_slice(&1u64.to_ne_bytes());
    words.update(load::slots(), &inside).unwrap();
    Some([events, Map::array(8, 1).unwrap(), words])
}

/// A program that writes and keeps to epochs in this way, its rings, and its words.
fn program(keeping: Keeping) -> Option<(Program, Rings, Map)> {
    let [events, counter, words] = maps()?;
    let stamps = Stamps { events: &events, counter: &counter, epochs: Some((&words, keeping)) };
    let program = kernel("load a BPF program", stamps.when_run(1))?;
    Some((program, Rings::options().bpf_output(&events).open().unwrap(), words))
}

/// A writer that is caught inside comes first, although its CPU is interrupted by programs that enter and leave.
#[test]
fn epochs_wait_for_whoever_is_inside() {
    let caught = caught_inside(epochs, Some(Keeping::Rightly), GETPGID, |caught| caught.len() == 20);
    let Some(caught) = caught else { return };
    assert!(caught.iter().all(|both| *both == [(SLOW, Certainty::Proven), (QUICK, Certainty::Proven)]), "{caught:?}");
}

/// With each possible mistake of a program, and if the reader does not read the words, a later event overtakes a caught
/// writer.
#[test]
fn every_mistake_with_epochs_is_seen() {
    let is_late = |both: &[(u32, Certainty); 2]| *both == [(QUICK, Certainty::Proven), (SLOW, Certainty::Late)];
    let late = |caught: &[[(u32, Certainty); 2]]| caught.iter().filter(|both| is_late(both)).count() == 3;
    for keeping in [Keeping::KeyFirst, Keeping::LeaveFirst, Keeping::Generations] {
        let Some(caught) = caught_inside(epochs, Some(keeping), (libc::SYS_getsid, load::getsid), late) else { return };
        println!("{keeping:?}: {} late of {}", caught.iter().filter(|both| is_late(both)).count(), caught.len());
    }
    let unlooked = |_: &Map| Hold::Fence(Fence::by(|| Ok(())));
    let _ = caught_inside(unlooked, Some(Keeping::Rightly), (libc::SYS_getsid, load::getsid), late);
}

/// Programs that do not leave: a kernel fence stands in, and the reader says so.
#[test]
fn a_kernel_fence_stands_in_for_programs_that_do_not_leave() {
    let Some((forgetful, rings, words)) = program(Keeping::Forget) else { return };
    let cpus: Vec<u32> = rings.cpus().collect();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::Fence(Epochs::open(&words).unwrap().fence()))).unwrap();
    let mut told = 0;
    for &cpu in cpus.iter().cycle().take(10) {
        assert_eq!(forgetful.run_on(cpu).unwrap(), 0);
        loop {
            match reader.next_timeout(reading::LONG) {
                Ok(event) => break assert_eq!(event.expect("it comes").certainty(), Certainty::Proven),
                Err(error) if error.to_string().contains("without perfweave_leave()") => {
                    told += times(&error.to_string());
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    let status = reader.status();
    assert!(told >= 1 && status.stand_ins >= told && status.total().late == 0, "{told}: {status:?}");
}

/// A program that sleeps inside is waited for, if the reader's patience has no end. Otherwise a kernel fence stands in,
/// which does not wait for it: the reader says that a program may sleep, and does not accuse it of not having left. It
/// is late then.
#[test]
fn a_program_that_sleeps_inside_is_waited_for_without_end() {
    let Some(memory) = kernel("make memory that is waited for", Sleeper::new()) else { return };
    let Some(map) = kernel("make a BPF ring buffer", Map::ring_buffer(1 << 16)) else { return };
    let words = Map::epochs(load::slots()).unwrap();
    let Some(sleeping) = kernel("load a program that sleeps", ring_buffer::sleeping_inside(&map, &words)) else {
        return;
    };
    let timed = ring_buffer::timed_inside(&map, &words).unwrap();
    let cpus = load::online();
    let (here, there) = (cpus[0], cpus[cpus.len() - 1]);
    for (patience, is_waited_for) in [(Duration::MAX, true), (Duration::ZERO, false)] {
        let hold = Hold::Fence(Epochs::open(&words).unwrap().patience(patience).fence());
        // SAFETY: nobody else reads the map.
        let buffers = unsafe { Ring::adopt_ring_buffers(map.as_fd()) }.unwrap();
        let mut rings = Rings::empty(Clock::Monotonic);
        buffers.into_iter().for_each(|(cpu, ring)| rings.add(cpu, ring, Layout::RING_BUFFER));
        let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0)).hold(hold)).unwrap();
        let (mut given, mut told) = (Vec::new(), String::new());
        memory.again();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| load::pinned(there, || sleeping.run_here(&[memory.address()]).unwrap()));
            let asleep = memory.until_asleep();
            assert_eq!(timed.run_on(here).unwrap(), 0);
            let before = reader.status().refreshes;
            threads::until("it has looked, or lost patience", || {
                match reader.next_timeout(Duration::from_millis(1)) {
                    Ok(Some(event)) => given.push(event.certainty()),
                    Ok(None) => {}
                    Err(error) => told = error.to_string(),
                }
                if is_waited_for {
                    reader.status().refreshes >= before + 5
                } else {
                    !given.is_empty() && !told.is_empty()
                }
            });
            assert_eq!(given.is_empty(), is_waited_for);
            drop(asleep);
            assert_eq!(call.join().unwrap(), 0);
        });
        reading::all(&mut reader, |event| given.push(event.certainty()));
        let stand_ins = reader.status().stand_ins;
        if is_waited_for {
            assert_eq!((&*given, stand_ins, &*told), (&[Certainty::Proven; 2][..], 0, ""));
        } else {
            assert_eq!(given, [Certainty::Proven, Certainty::Late]);
            assert!(
                stand_ins > 0 && told.contains("or sleeps inside") && told.contains("patience without end"),
                "{told}"
            );
        }
    }
}

/// Epochs are refused where they cannot prove the order.
#[test]
fn what_cannot_be_proven_is_refused() {
    let Some(events) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let words = Map::epochs(load::slots()).unwrap();
    let hold = || Hold::Fence(Epochs::open(&words).unwrap().fence());

    // Maps of the wrong type.
    let plain = Map::array(64, load::slots()).unwrap();
    assert_error!(Epochs::open(&plain).unwrap_err(), InvalidInput, "a BPF_MAP_TYPE_ARRAY (2), with flags 0x0");
    assert_error!(Epochs::open(&events).unwrap_err(), InvalidInput, "a BPF_MAP_TYPE_PERF_EVENT_ARRAY (4)");
    if load::slots() > 1 {
        let few = Map::epochs(load::slots() - 1).unwrap();
        let error = Epochs::open(&few).unwrap_err();
        let last = load::slots() - 1;
        assert_error!(error, InvalidInput, format!("with {last} elements has none for CPU {last}"));
    }
    let null = std::fs::File::open("/dev/null").unwrap();
    let error = Epochs::open(&null).unwrap_err();
    assert!(error.event().is_none(), "the error concerns no event");
    assert_error!(error, InvalidInput, "epochs: this is no BPF map, but /dev/null");

    // Other writers in the rings, which do not enter and leave.
    if let Some(rings) = kernel("trace", Rings::options().bpf_output(&events).tracepoint("sched:sched_switch").open()) {
        let error = Reader::new(rings, Order::new().hold(hold())).unwrap_err();
        assert_error!(error, Unsupported, "epochs say nothing of");
        assert_eq!(error.event(), Some("tracepoint sched:sched_switch"));
    }

    // A recorder's bytes must not change while they are read, and programs cannot guarantee that.
    let epochs = Epochs::open(&words).unwrap().fence();
    let refused = Recorder::open(Rings::options().bpf_output(&events), &epochs);
    assert_error!(refused.unwrap_err(), Unsupported, "no fence: ");
}

/// Epochs need no thread, no sleep and no system calls other than those of a refresh: the record of a program that has
/// left comes at once.
#[test]
fn a_proof_needs_no_thread() {
    let Some((program, rings, words)) = program(Keeping::Rightly) else { return };
    let cpus: Vec<u32> = rings.cpus().collect();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::Fence(Epochs::open(&words).unwrap().fence()))).unwrap();
    // Too few for a rush, in which proofs are apart.
    for &cpu in cpus.iter().cycle().take(50) {
        assert_eq!(program.run_on(cpu).unwrap(), 0);
        let event =
            reader.next_timeout(Duration::ZERO).unwrap().expect("no program is inside, so it comes without waiting");
        assert_eq!(event.certainty(), Certainty::Proven);
    }
    let status = reader.status();
    assert_eq!((status.sleeps, status.stand_ins, status.total().late), (0, 0, 0));
    assert!(status.fences >= 50);
}

/// Numbers that were drawn and not written are proven missing without a grace period.
#[test]
fn a_gap_of_dense_numbers_is_proven_by_epochs() {
    let Some((program, rings, words)) = program(Keeping::Rightly) else { return };
    let cpu = rings.cpus().last().unwrap();
    let hold = Hold::Dense { first: Some(0), fence: Epochs::open(&words).unwrap().fence() };
    let mut reader = Reader::new(rings, Order::new().key(Key::Payload(8)).hold(hold)).unwrap();
    let write = || assert_eq!(program.run_on(cpu).unwrap(), 0);
    write();
    // Numbers 1 and 2 find no ring.
    reader.handle().pause(Pause::Slots).unwrap();
    write();
    write();
    reader.handle().resume().unwrap();
    write();
    assert_eq!(reading::next(&mut reader).key(), Some(0));
    let event = reading::next(&mut reader);
    let Item::Gap(gap) = event.item() else { panic!("{event:?}") };
    assert_eq!((gap.first, gap.last, event.certainty()), (1, 2, Certainty::Proven));
    drop(event);
    assert_eq!(reading::next(&mut reader).key(), Some(3));
    assert_eq!((reader.fence(), reader.status().stand_ins), (Some("epochs"), 0));
}

/// A merge in the user's own event loop begins and polls proofs, by epochs and by the kernel's grace periods.
#[test]
fn a_merge_of_ones_own_asks_after_its_proofs() {
    for by_epochs in [true, false] {
        let Some((program, rings, words)) = program(Keeping::Rightly) else { return };
        let fence = if by_epochs { Epochs::open(&words).unwrap().fence() } else { Fence::Map };
        let cpus: Vec<u32> = rings.cpus().collect();
        let mut proof = fence.open().unwrap();
        let mut merge = Merge::new(rings, Order::new().hold(Hold::Fence(fence))).unwrap();
        cpus.iter().for_each(|&cpu| assert_eq!(program.run_on(cpu).unwrap(), 0));
        merge.refresh(0);
        assert!(merge.next().is_none() && merge.begin_fence() && proof.begin());
        threads::until("the proof is over", || proof.poll().is_some_and(|ended| ended.is_ok()));
        merge.end_fence();
        merge.refresh(0);
        assert_eq!(merge.batch().filter(|event| event.certainty() == Certainty::Proven).count(), cpus.len());
    }
}

/// A reader that spins does not sleep while events come.
#[test]
fn a_reader_that_spins_sleeps_only_when_nothing_comes() {
    let Some((program, rings, words)) = program(Keeping::Rightly) else { return };
    let order = Order::new().hold(Hold::Fence(Epochs::open(&words).unwrap().fence())).spin(Duration::MAX);
    let mut reader = Reader::new(rings, order).unwrap();
    let cpu = load::online()[0];
    std::thread::scope(|scope| {
        scope.spawn(|| (0..100).for_each(|_| assert_eq!(program.run_on(cpu).unwrap(), 0)));
        (0..100).for_each(|_| drop(reading::next(&mut reader)));
    });
    assert_eq!(reader.status().sleeps, 0);
}
