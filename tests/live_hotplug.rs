//! CPUs that come and go, on the live machine. In a process of its own: the CPU is gone for everybody.

use perfweave::{Class, Error, Fence, Hold, Order, Reader, Rings};
use perfweave_support::bpf::Map;
use perfweave_support::{bpf, kernel, load};
use std::time::Duration;

/// Takes a CPU offline, and brings it back in the end.
struct Offline(u32);

impl Offline {
    fn set(cpu: u32, online: &str) -> std::io::Result<()> {
        std::fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), online)
    }

    /// The last CPU, if there is more than one and it can go.
    fn last() -> Option<Self> {
        let cpu = *load::online().last().expect("a CPU");
        if cpu == 0 {
            eprintln!("SKIPPED, nothing was tested: one CPU");
            return None;
        }
        kernel("take a CPU offline", Self::set(cpu, "0"))?;
        Some(Self(cpu))
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        Self::set(self.0, "1").expect("the CPU comes back");
    }
}

/// All in one test: the machine has one set of CPUs.
#[test]
fn cpus_that_are_offline() {
    let slots = load::slots();
    let Some(events) = kernel("make a perf event array", Map::perf_event_array(slots)) else { return };
    let echo = bpf::echo(&events).unwrap();
    let Some(offline) = Offline::last() else { return };
    let gone = offline.0;

    // One that is offline is skipped, whether it is named or not.
    for options in [Rings::options(), Rings::options().cpus(0..slots)] {
        let rings = options.bpf_output(&events).open().unwrap();
        assert_eq!(rings.cpus().collect::<Vec<_>>(), load::online());
        assert!(!load::online().contains(&gone));
        assert!(matches!(rings.raw(gone), Err(Error::NoRing { cpu }) if cpu == gone));
    }
    let error = Rings::options().bpf_output(&events).cpus([gone]).open().unwrap_err();
    assert!(matches!(error, Error::NoRings), "{error}");

    // With one CPU left, membarrier returns at once and proves nothing: the map does the waiting.
    if load::online().len() == 1 {
        let membarrier = Reader::new(
            Rings::options().bpf_output(&events).open().unwrap(),
            Order::new().hold(Hold::Fence(Fence::Membarrier)),
        );
        let mut reader = membarrier.unwrap();
        assert_eq!(reader.fence(), Some("membarrier"));
        let mut least = Duration::MAX;
        for number in 0..10 {
            assert_eq!(echo.run_with(0, &[number]).unwrap(), 0);
            let event = reader.next_timeout(Duration::from_secs(5)).unwrap().expect("it comes");
            assert_eq!(event.class(), Class::Proven);
            drop(event);
            least = least.min(reader.fence_latency().unwrap());
        }
        assert!(least > Duration::from_micros(500), "{least:?} is no grace period");
    }
    drop(offline);
    assert!(load::online().contains(&gone));
}
