//! Flush, close and pause, from the reader's side.

use super::*;
use nix::sys::eventfd::EventFd;

/// An event of a CPU. None that the kernel would stop: what it answers is of no interest when all is over.
fn outlet(cpu: u32, set: bool) -> Outlet {
    let event = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
    Outlet { cpu, name: format!("of {cpu}").into(), event, slot: None, set }
}

#[test]
fn the_events_of_a_cpu_that_died_are_let_go_and_no_others() {
    let mut outlets = Outlets { events: [0, 2, 0, 5].map(|cpu| outlet(cpu, true)).into(), ..Outlets::default() };
    let events: Vec<_> = outlets.events.iter().map(|outlet| Arc::clone(&outlet.event)).collect();
    outlets.stop(0);
    assert_eq!(outlets.events.iter().map(|outlet| outlet.cpu).collect::<Vec<_>>(), [2, 5]);
    assert_eq!(
        events.iter().map(Arc::strong_count).collect::<Vec<_>>(),
        [1, 2, 1, 2],
        "closed, if nobody else has them"
    );
    outlets.stop(3);
    assert_eq!(outlets.events.len(), 2, "of a CPU that had none");
    assert_eq!(outlets.retire().iter().map(|outlet| outlet.cpu).collect::<Vec<_>>(), [2, 5]);
    assert!(outlets.events.is_empty() && outlets.retired);
    let late = outlet(1, false);
    let event = Arc::clone(&late.event);
    outlets.start(vec![late]).unwrap();
    assert!(outlets.events.is_empty() && Arc::strong_count(&event) == 1, "nothing starts any more");
}

/// What is retired keeps nothing open, whoever still has a handle.
#[test]
fn retired_gates_are_let_go() {
    let mut outlets = Outlets::default();
    let event = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
    outlets.push_gate(0, Gate::Event(Arc::clone(&event)));
    assert_eq!(Arc::strong_count(&event), 2);
    outlets.retire();
    assert_eq!(Arc::strong_count(&event), 1);
}

/// The kernel's refusal is passed on, and what it refused is not taken for done.
#[test]
fn a_slot_that_cannot_be_set_or_emptied_is_an_error() {
    for set in [true, false] {
        // No map at all.
        let map = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
        let mut outlet = Outlet { slot: Some(Slot { map, index: 7 }), ..outlet(3, !set) };
        assert!(outlet.set(!set).is_ok(), "it is so already");
        let said = outlet.set(set).unwrap_err().to_string();
        assert!(said.contains("slot 7 of the perf event array, for CPU 3"), "{said}");
        assert_eq!(outlet.set, !set);
        // Without a slot the event itself is turned on or off: this is none.
        outlet.slot = None;
        let refused = outlet.set(set);
        assert!(refused.is_err_and(|error| error.to_string().contains("on CPU 3")) && outlet.set != set);
    }
}
