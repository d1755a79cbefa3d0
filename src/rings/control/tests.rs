//! Events and slots as they are stopped, retired and refused.

use super::*;
use nix::sys::eventfd::EventFd;

/// An event of a CPU. It is an eventfd: the kernel refuses to stop it, and nothing reports that.
fn outlet(cpu: u32, set: bool) -> Outlet {
    let event = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
    Outlet { cpu, name: format!("of {cpu}").into(), event, slot: None, set }
}

#[test]
fn only_the_events_of_a_cpu_that_went_are_closed() {
    let mut outlets = Outlets { events: [0, 2, 0, 5].map(|cpu| outlet(cpu, true)).into(), ..Outlets::default() };
    let events: Vec<_> = outlets.events.iter().map(|outlet| Arc::clone(&outlet.event)).collect();
    outlets.stop(0);
    assert_eq!(outlets.events.iter().map(|outlet| outlet.cpu).collect::<Vec<_>>(), [2, 5]);
    assert_eq!(
        events.iter().map(Arc::strong_count).collect::<Vec<_>>(),
        [1, 2, 1, 2],
        "closed, except for those of this test"
    );
    outlets.stop(3);
    assert_eq!(outlets.events.len(), 2, "that CPU had none");
    assert_eq!(outlets.retire().iter().map(|outlet| outlet.cpu).collect::<Vec<_>>(), [2, 5]);
    assert!(outlets.events.is_empty() && outlets.retired);
    let late = outlet(1, false);
    let event = Arc::clone(&late.event);
    outlets.start(vec![late]).unwrap();
    assert!(outlets.events.is_empty() && Arc::strong_count(&event) == 1, "nothing starts after that");
}

/// Retired outlets keep nothing open, although a handle may keep them.
#[test]
fn retired_gates_are_closed() {
    let mut outlets = Outlets::default();
    let event = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
    outlets.push_gate(0, Gate::Event(Arc::clone(&event)));
    assert_eq!(Arc::strong_count(&event), 2);
    outlets.retire();
    assert_eq!(Arc::strong_count(&event), 1);
}

/// The kernel's refusal is reported, and the slot keeps its state.
#[test]
fn a_slot_that_cannot_be_set_or_emptied_is_an_error() {
    for set in [true, false] {
        // This is no map.
        let map = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
        let mut outlet = Outlet { slot: Some(Slot { map, index: 7 }), ..outlet(3, !set) };
        assert!(outlet.set(!set).is_ok(), "nothing is to be done");
        let said = outlet.set(set).unwrap_err().to_string();
        assert!(said.contains("slot 7 of the perf event array, for CPU 3"), "{said}");
        assert_eq!(outlet.set, !set);
        // Without a slot the event is enabled or disabled: this is no event.
        outlet.slot = None;
        let refused = outlet.set(set);
        assert!(refused.is_err_and(|error| error.to_string().contains("on CPU 3")) && outlet.set != set);
    }
}

/// A closure that panics while a handle reads does not freeze the counts.
#[test]
fn what_a_reader_reports_outlives_a_panic() {
    let control = Control::new();
    let asked = Arc::clone(&control);
    assert!(std::thread::spawn(move || asked.read_status(|_| panic!("as it reads"))).join().is_err());
    control.update_status(|status| status.refreshes = 7);
    assert_eq!(control.read_status(|status| status.refreshes).unwrap(), 7);
}
