//! What an idle reader does. This test counts system calls of the whole process, so the process runs nothing else.

use crate::reading;
use perfweave::{Hold, Order, Reader, Rings};
use perfweave_proofs::expedited;
use perfweave_support::bpf::{self, Map};
use perfweave_support::{apart, echo, kernel};
use std::time::{Duration, Instant};

/// All threads together: the reader's, and the one that waits for grace periods.
#[test]
fn an_idle_reader_looks_now_and_then_and_does_nothing_else() {
    apart!();
    let Some((events, program)) = echo() else { return };
    let count = Map::array(8, 1).unwrap();
    let Some(counter) = kernel("load a BPF program", bpf::count_syscalls(&count, None, None)) else { return };
    let Some(_counting) = kernel("attach to sys_enter", counter.attach_raw_tracepoint("sys_enter")) else { return };
    let calls = || count.lookup_u64(0, 0).unwrap();
    for hold in [Hold::FENCE, Hold::Fence(expedited(Duration::from_millis(1))), Hold::None] {
        let rings = Rings::options().bpf_output(&events).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(hold.clone())).unwrap();
        // Once after some events, so that the fence thread has run.
        assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
        assert_eq!(reading::numbers(&mut reader), [1]);
        reading::settle(&mut reader);
        let (before, made) = (reader.status(), calls());
        let begin = Instant::now();
        assert!(reader.next_timeout(Duration::from_millis(700)).unwrap().is_none());
        let made = calls() - made;
        let now = reader.status();
        let (looks, sleeps) = (now.refreshes - before.refreshes, now.sleeps - before.sleeps);
        // Independent of the elapsed time: the reader's sleeps grow from a twentieth of a tick to a whole tick. A
        // reader whose sleeps did not grow would sleep six times as often.
        let most = (begin.elapsed().as_millis() / reading::TICK.as_millis()) as u64 + 12;
        assert!((1..=most).contains(&sleeps), "{hold}: {sleeps} sleeps, at most {most} are enough");
        assert!(looks <= sleeps + 1, "{hold}: {looks} refreshes for {sleeps} sleeps");
        // A sleep is one call, and a refresh asks which process it is in. A look for new CPUs, at each tick, is two.
        assert!(made <= 4 * looks + 10, "{hold}: {made} system calls for {looks} refreshes");
        assert_eq!(now.wakes, before.wakes, "{hold}: nothing wakes it");
        assert_eq!(now.fences, before.fences, "{hold}: no fence while nothing is held");
        println!("{hold}: {looks} refreshes, {sleeps} sleeps, {made} system calls in {:?}", begin.elapsed());
    }
}
