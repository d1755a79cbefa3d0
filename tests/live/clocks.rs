//! Clocks that stamp records, and those that do not.

use crate::reading;
use perfweave::{Certainty, Clock, Fence, Order, Reader, Recorder, Rings, sim};
use perfweave_support::{assert_error, echo, kernel, lacks};
use std::process::Command;

/// Live rings are refused if their clock can be set back, whoever opens them. The error names a clock to take.
#[test]
fn a_clock_that_can_be_set_back_is_refused() {
    let Some((map, _)) = echo() else { return };
    for (clock, name) in
        [(Clock::Realtime, "CLOCK_REALTIME can be set back"), (Clock::Tai, "CLOCK_TAI can be set back")]
    {
        let options = || Rings::options().bpf_output(&map).pages(1).clock(clock);
        let error = options().open().unwrap_err();
        assert_error!(error, InvalidInput, name, "CLOCK_MONOTONIC");
        assert_error!(Recorder::open(options(), &Fence::Auto).unwrap_err(), InvalidInput, name);
        let adopted = sim::Kernel::new(&[0]).rings().on_clock(clock);
        assert_error!(Reader::new(adopted, Order::new()).unwrap_err(), InvalidInput, name);
    }
}

/// In a time namespace (time_namespaces(7)) programs read other times than the kernel stamps records with. No record is
/// damage there, and times are converted as they are outside.
#[test]
fn a_time_namespace_changes_nothing() {
    const INSIDE: &str = "PERFWEAVE_TEST_TIME_NAMESPACE";
    let clocks = [Clock::Monotonic, Clock::MonotonicRaw, Clock::Boottime, Clock::Realtime, Clock::Tai];
    let Some(outside) = std::env::var_os(INSIDE) else {
        let Some(_) = echo() else { return };
        for (monotonic, boottime) in [(-1, -1), (100_000, 50_000)] {
            let now = [Clock::Monotonic, Clock::Boottime].map(|clock| clock.now().unwrap());
            let [monotonic, boottime] = [(monotonic, now[0]), (boottime, now[1])]
                // No clock may become negative: half of what it shows.
                .map(|(by, now)| if by < 0 { -((now / 2_000_000_000) as i64) } else { by });
            let test = "clocks::a_time_namespace_changes_nothing";
            let mut command = Command::new("unshare");
            command
                .args(["--time", "--fork"])
                .args([format!("--monotonic={monotonic}"), format!("--boottime={boottime}")]);
            command.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
            let now = format!("{} {}", now[0], now[1]);
            let Some(ran) = kernel("have a time namespace", command.env(INSIDE, now).output()) else { return };
            let (out, said) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
            if said.starts_with("unshare:") {
                return lacks("time namespaces for this user");
            }
            assert!(ran.status.success() && out.contains("1 passed"), "{out}{said}");
        }
        return;
    };
    // What the clocks said outside was before, and not long before.
    let outside = outside.into_string().unwrap();
    let outside = outside.split(' ').map(|time| time.parse::<u64>().unwrap());
    for (clock, before) in [Clock::Monotonic, Clock::Boottime].into_iter().zip(outside) {
        let (now, most) = (clock.now().unwrap(), before + 1_000_000_000_000);
        assert!((before..most).contains(&now), "{clock:?}: {before} outside, {now} inside");
    }
    let Some((map, program)) = echo() else { return };
    for clock in [Clock::Monotonic, Clock::MonotonicRaw, Clock::Boottime] {
        let rings = Rings::options().bpf_output(&map).pages(1).cpus([0]).clock(clock).open().unwrap();
        let to: Vec<_> = clocks.into_iter().map(|to| (to, rings.clock().offset_to(to).unwrap())).collect();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        let before = clocks.map(|clock| clock.now().unwrap());
        assert_eq!(program.run_with(0, &[7]).unwrap(), 0);
        let after = clocks.map(|clock| clock.now().unwrap());
        let mut seen = Vec::new();
        reading::all(&mut reader, |event| seen.push((reading::number(&event), event.certainty(), event.key())));
        let [(7, Certainty::Proven, Some(key))] = seen[..] else { panic!("{clock:?}: {seen:?}") };
        for (at, (to, offset)) in to.into_iter().enumerate() {
            let (time, slack) = (offset.apply(key), 1_000_000);
            let within = before[at] - slack..after[at] + slack;
            assert!(within.contains(&time), "{clock:?} as {to:?}: {time} in {within:?}");
        }
        // A loss is counted as far as the time since boot allows it.
        assert!(reader.ledger().unwrap().total().damaged == 0);
    }
}
