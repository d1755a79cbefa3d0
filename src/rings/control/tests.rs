//! Events and slots as they are stopped, retired and refused.

use super::*;
use nix::sys::eventfd::EventFd;

/// An event of a CPU. It is an eventfd: the kernel refuses to stop it, and nothing reports that.
fn producer(cpu: u32, set: bool) -> Producer {
    let event = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
    Producer { cpu, name: format!("of {cpu}").into(), event, slot: None, set }
}

#[test]
fn only_the_events_of_a_cpu_that_went_are_closed() {
    let mut producers =
        Producers { events: [0, 2, 0, 5].map(|cpu| producer(cpu, true)).into(), ..Producers::default() };
    let events: Vec<_> = producers.events.iter().map(|producer| Arc::clone(&producer.event)).collect();
    producers.stop(0);
    assert_eq!(producers.events.iter().map(|producer| producer.cpu).collect::<Vec<_>>(), [2, 5]);
    assert_eq!(
        events.iter().map(Arc::strong_count).collect::<Vec<_>>(),
        [1, 2, 1, 2],
        "closed, except for those of this test"
    );
    producers.stop(3);
    assert_eq!(producers.events.len(), 2, "that CPU had none");
    assert_eq!(producers.retire().iter().map(|producer| producer.cpu).collect::<Vec<_>>(), [2, 5]);
    assert!(producers.events.is_empty() && producers.retired);
    let late = producer(1, false);
    let event = Arc::clone(&late.event);
    producers.start(vec![late]).unwrap();
    assert!(producers.events.is_empty() && Arc::strong_count(&event) == 1, "nothing starts after that");
}

/// Retired producers keep nothing open, although a handle may keep them.
#[test]
fn retired_gates_are_closed() {
    let mut producers = Producers::default();
    let event = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
    producers.push_gate(0, ProducerGate::Event(Arc::clone(&event)));
    assert_eq!(Arc::strong_count(&event), 2);
    producers.retire();
    assert_eq!(Arc::strong_count(&event), 1);
}

/// The kernel's refusal is reported, and the slot keeps its state.
#[test]
fn a_slot_that_cannot_be_set_or_emptied_is_an_error() {
    for set in [true, false] {
        // This is no map.
        let map = Arc::new(OwnedFd::from(EventFd::new().unwrap()));
        let mut producer = Producer { slot: Some(Slot { map, index: 7 }), ..producer(3, !set) };
        assert!(producer.set(!set).is_ok(), "nothing is to be done");
        let said = producer.set(set).unwrap_err().to_string();
        assert!(said.contains("slot 7 of the perf event array, for CPU 3"), "{said}");
        assert_eq!(producer.set, !set);
        // Without a slot the event is enabled or disabled: this is no event.
        producer.slot = None;
        let refused = producer.set(set);
        assert!(refused.is_err_and(|error| error.to_string().contains("on CPU 3")) && producer.set != set);
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
