//! Every state of a small machine: two rings, three writers, two fences.

use crate::machine::{Action, Fault, Machine, State};
use stateright::{Checker, Model, Property};

const IN_ORDER: &str = "no event comes after one with a larger key";
const COMPLETE: &str = "a report that says it is complete comes after all that was there";

impl Model for Machine {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(Machine::actions(self, state));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.step(state, action).map(|(next, _)| next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(IN_ORDER, |_, state: &State| !state.broken.order),
            Property::always(COMPLETE, |_, state: &State| !state.broken.report),
        ];
        if self.fault.is_none() {
            properties.extend([
                Property::sometimes("all come out", |machine: &Self, state: &State| state.yielded() == machine.writers),
                Property::sometimes("an order in a ring is repaired", |_, state: &State| state.repaired),
            ]);
            if self.gives_up {
                properties.push(Property::sometimes(
                    "all come out after a flush that gave up",
                    |machine: &Self, state: &State| state.gave_up && state.yielded() == machine.writers,
                ));
            }
            if self.flushes > 0 {
                properties.push(Property::sometimes("a flush is reported", |_, state: &State| state.reported));
            }
        }
        properties
    }
}

/// Two rings, three writers, two fences.
const SMALL: Machine =
    Machine { fault: None, writers: 3, fences: Some(2), flushes: 0, gives_up: false, hotplug: false };

/// Visits every state.
fn visit(machine: Machine) -> impl Checker<Machine> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    machine.checker().threads(threads).spawn_bfs().join()
}

/// Everything holds in every state, and there are so many.
fn holds(states: usize, machine: Machine) {
    let checker = visit(machine);
    checker.assert_properties();
    assert!(checker.is_done());
    assert_eq!(checker.unique_state_count(), states);
}

#[test]
fn nothing_breaks_the_order() {
    holds(12_336, SMALL);
}

#[test]
fn a_cpu_that_comes_online_breaks_nothing() {
    holds(19_666, Machine { hotplug: true, ..SMALL });
}

#[test]
fn a_flush_breaks_nothing() {
    holds(114_935, Machine { flushes: 1, ..SMALL });
}

#[test]
fn a_flush_that_gives_up_breaks_nothing() {
    holds(186_902, Machine { flushes: 1, gives_up: true, ..SMALL });
}

#[test]
fn all_of_it_together_breaks_nothing() {
    holds(285_141, Machine { flushes: 1, gives_up: true, hotplug: true, ..SMALL });
}

/// For each fault, a way to a state that must not be.
#[test]
fn each_fault_is_found() {
    let faults = [
        (Fault::ProvesWhatIsSeenAtItsEnd, IN_ORDER, SMALL),
        (Fault::NoSecondRefresh, IN_ORDER, SMALL),
        (Fault::WaitsForNobody, IN_ORDER, SMALL),
        (Fault::KeyBeforeSection, IN_ORDER, SMALL),
        (Fault::RepairsNothing, IN_ORDER, SMALL),
        (Fault::LeavesOutTheNewRing, IN_ORDER, Machine { hotplug: true, ..SMALL }),
        (Fault::ReportsWithoutRefresh, COMPLETE, Machine { flushes: 1, ..SMALL }),
        (Fault::GivesUpTheProof, IN_ORDER, Machine { flushes: 1, gives_up: true, ..SMALL }),
        (Fault::HidesThatItGaveUp, COMPLETE, Machine { flushes: 1, gives_up: true, ..SMALL }),
    ];
    for (fault, property, machine) in faults {
        let checker = visit(Machine { fault: Some(fault), ..machine });
        let path = checker.discovery(property).unwrap_or_else(|| panic!("{fault:?} breaks nothing"));
        println!("{fault:?}: {:?}", path.into_actions());
    }
}
