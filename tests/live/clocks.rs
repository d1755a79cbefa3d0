//! Clocks that can be set while records are stamped by them.

use crate::reading;
use perfweave::{Certainty, Clock, Order, Reader, Rings};
use perfweave_support::clock::Tai;
use perfweave_support::{echo, kernel, lacks, lock};
use std::process::Command;

/// Once a clock was set back, the times that it showed before come again. So nothing proves that none of them is to
/// come.
#[test]
fn what_a_clock_showed_before_it_was_set_back_is_not_proven() {
    let Some((map, program)) = echo() else { return };
    let Some(tai) = kernel("set CLOCK_TAI", Tai::take()) else { return };
    tai.set(1).unwrap();
    let rings = Rings::options().bpf_output(&map).pages(1).clock(Clock::Tai).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let emit = |number: u64| assert_eq!(program.run_with(0, &[number]).unwrap(), 0);
    let mut seen = Vec::new();
    let mut read = || {
        reading::all(&mut reader, |event| seen.push((reading::number(&event), event.certainty(), event.key())));
    };
    emit(1);
    read();
    emit(2);
    tai.set(0).unwrap();
    emit(3);
    read();
    emit(4);
    read();
    // The clock shows what it never showed.
    tai.set(2).unwrap();
    emit(5);
    read();
    let marks: Vec<_> = seen.iter().map(|(number, certainty, _)| (*number, *certainty)).collect();
    use Certainty::{Assumed, Late, Proven};
    assert_eq!(marks, [(1, Proven), (3, Late), (2, Assumed), (4, Late), (5, Proven)], "{seen:?}");
    assert!(seen[3].2 < seen[2].2, "the fourth comes too late behind the second: {seen:?}");
}

/// In a time namespace (time_namespaces(7)) programs read other times than the kernel stamps records with. No record is
/// damage there, and times are converted as they are outside.
#[test]
fn a_time_namespace_changes_nothing() {
    const INSIDE: &str = "PERFWEAVE_TEST_TIME_NAMESPACE";
    let clocks = [Clock::Monotonic, Clock::MonotonicRaw, Clock::Boottime, Clock::Realtime, Clock::Tai];
    let Some(outside) = std::env::var_os(INSIDE) else {
        let Some(_) = echo() else { return };
        // Another test sets a clock.
        let _kept = lock::keep(lock::CLOCK);
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
    for clock in clocks {
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
