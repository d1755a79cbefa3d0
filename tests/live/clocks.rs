//! Clocks that can be set while records are stamped by them.

use crate::reading;
use perfweave::{Certainty, Clock, Order, Reader, Rings};
use perfweave_support::clock::Tai;
use perfweave_support::{echo, kernel};

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
