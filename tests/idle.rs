//! What an idle reader costs, alone in its process so that nobody else's time counts.

use nix::time::{ClockId, clock_gettime};
use perfweave::{Hold, Order, Reader, Rings};
use perfweave_support::{bpf, kernel, load};
use std::time::Duration;

fn cpu_time() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap())
}

/// All threads together: the reader's, and the one that waits for grace periods.
#[test]
fn an_idle_reader_uses_no_measurable_cpu() {
    let Some(events) = kernel("make a perf event array", bpf::Map::perf_event_array(load::slots())) else { return };
    let echo = bpf::echo(&events).unwrap();
    for hold in [Hold::FENCE, Hold::Fence(perfweave::Fence::EXPEDITED), Hold::None, Hold::Round] {
        let rings = Rings::options().bpf_output(&events).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(hold.clone())).unwrap();
        echo.run_with(0, &[1]).unwrap();
        assert!(reader.next_timeout(Duration::from_secs(5)).unwrap().is_some());
        let fences = reader.stats().fences;
        let before = cpu_time();
        assert!(reader.next_timeout(Duration::from_secs(2)).unwrap().is_none());
        let used = cpu_time() - before;
        // A look every `Reader::TICK`. Five milliseconds are a quarter of a percent.
        assert!(used < Duration::from_millis(5), "{hold}: {used:?} in two seconds of nothing");
        assert_eq!(reader.stats().fences, fences, "no fence while nothing is held");
        println!("{hold}: {used:?} of CPU time in two seconds of nothing");
    }
}
