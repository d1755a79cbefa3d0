//! Which clock source the kernel has, as sysfs says it. The test runs on a thread in its own mount namespace.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use perfweave::{Certainty, Clock, Item, Order, Reader, Rings};
use perfweave_support::{echo, kernel, needs};
use std::path::Path;

const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// The certainty of a record that is stamped by a clock.
fn certainty(clock: Clock) -> Option<Certainty> {
    let (map, program) = echo()?;
    let rings = Rings::options().bpf_output(&map).pages(1).clock(clock).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
    reader.handle().flush().unwrap();
    let mut certainty = None;
    while let Some(event) = reader.next().unwrap() {
        match event.item() {
            Item::Flushed { .. } => break,
            _ => certainty = Some(event.certainty()),
        }
    }
    certainty
}

/// Whether the header page of a ring says that the perf clock is the time stamp counter.
fn has_user_time() -> Option<bool> {
    let (map, _program) = echo()?;
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let cpu = rings.cpus().next().unwrap();
    // SAFETY: a header page, in which the capabilities lie at 40.
    let capabilities = unsafe { rings.raw(cpu).unwrap().base.add(40) }.cast::<u64>();
    // SAFETY: mapped as long as the rings live.
    let capabilities = unsafe { capabilities.read_volatile() };
    Some(capabilities >> 3 & 1 == 1)
}

/// Where the time stamp counter is unstable the CPUs do not agree on the perf clock, and its order is not proven. Other
/// clocks go by the clock source.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_perf_clock_proves_nothing_where_its_counter_is_unstable() {
    let Some(user_time) = has_user_time() else { return };
    let Some(()) = needs("a perf clock that its header page does not vouch for", !user_time) else { return };
    let thread = std::thread::spawn(|| {
        kernel("leave the mount namespace", unshare(CloneFlags::CLONE_NEWNS))?;
        const NONE: Option<&Path> = None;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        let file = std::env::temp_dir().join(format!("perfweave-clock-source-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        mount(Some(&file), CLOCK_SOURCE, NONE, MsFlags::MS_BIND, NONE).unwrap();
        for (source, perf) in [("tsc\n", Certainty::Proven), ("hpet\n", Certainty::Assumed)] {
            std::fs::write(&file, source).unwrap();
            assert_eq!(certainty(Clock::Perf), Some(perf), "{source}");
            assert_eq!(certainty(Clock::Monotonic), Some(Certainty::Proven), "{source}");
        }
        std::fs::remove_file(file).unwrap();
        Some(())
    });
    thread.join().unwrap();
}
