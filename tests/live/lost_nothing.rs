//! Losses that an interrupted writer tells of. How many come is chance, so this takes long, and waits within a bound.

use crate::TIMES;
use perfweave::{Hold, Item, Merge, Order, Rings};
use perfweave_events::EventOptions;
use perfweave_support::bpf::{Asm, Kind, Map, Program, Reg};
use perfweave_support::{kernel, lacks, load};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many losses are looked at, and after how many runs of the program there are too few.
const LOSSES: u64 = 25 * TIMES;
const RUNS: u64 = 400 * LOSSES;

/// On the live kernel: a writer sees that records were lost, and an interrupt's writer takes the count first. Then the
/// interrupted writer writes a LOST record with the count 0 (one of a hundred here). It is no event, and no damage.
#[test]
fn lost_records_that_count_nothing_are_no_events() {
    let Some(events) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let mut asm = Asm::new();
    asm.mov(Reg::R6, Reg::R1);
    asm.repeat(Reg::R7, 1000, |asm| {
        asm.mov_i(Reg::R1, 1).store(Reg::R10, -8, Reg::R1).output(Reg::R6, &events, -8, 8);
    });
    asm.mov_i(Reg::R0, 0).exit();
    let program = Program::load(Kind::RawTracepoint, &asm).expect("it is loaded like the others");
    let online = load::online();
    let (reader, writer) = (online[0], *online.last().expect("a CPU"));
    // Interrupts that write into the same ring.
    let rings = Rings::options().bpf_output(&events).event_name("cpu-clock").period(20_000).pages(1).cpus([writer]);
    let Some(mut rings) = kernel("open a sampled clock", rings.open()) else { return };
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let load = load::Load::on(&[writer], move |cpu| {
        assert_eq!(program.run_on(cpu).unwrap(), 0);
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let (mut losses, mut told) = (0, 0);
    load::pinned(reader, || {
        while losses < LOSSES && runs.load(Ordering::Relaxed) < RUNS {
            let _ = rings.drain(|event| {
                match event.item() {
                    Item::Record(_) => {}
                    Item::Lost(lost) => {
                        assert!(lost.count > 0, "{lost:?}");
                        (losses, told) = (losses + 1, told + lost.count);
                    }
                    other => panic!("{other:?}"),
                }
                std::ops::ControlFlow::<()>::Continue(())
            });
        }
    });
    load.end();
    if losses < LOSSES {
        lacks(&format!("more than {losses} losses in {RUNS} runs of a program that fills a page eight times"));
    }
    let total = Merge::new(rings, Order::new().hold(Hold::None)).unwrap().ledger().total();
    assert!(total.exact && total.lost >= told, "{told} told: {total}");
}
