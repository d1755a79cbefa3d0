//! Every state of a small machine: two rings, three writers, two fences.

use crate::machine::{Action, Fault, Machine, State};
use stateright::{Checker, Model, Property};

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
            Property::always("no event comes after a proven one with a larger key", |_, state: &State| {
                !state.broken.order
            }),
            Property::always("an event is late only after one that left early", |_, state: &State| !state.broken.late),
            Property::always("what was there when a key was found does not come after it", |_, state: &State| {
                !state.broken.settled
            }),
            Property::always("a report comes after all that was there", |_, state: &State| !state.broken.report),
        ];
        if self.fault.is_none() {
            properties.extend([
                Property::sometimes("all come out, proven", |machine: &Self, state: &State| {
                    state.yielded() == machine.writers && state.has_only_proven()
                }),
                Property::sometimes("an order in a ring is repaired", |_, state: &State| state.repaired),
            ]);
            if self.early {
                properties.push(Property::sometimes("an event is late", |_, state: &State| state.was_late));
            }
            if self.flushes > 0 {
                properties.push(Property::sometimes("a flush is reported", |_, state: &State| state.reported));
            }
        }
        properties
    }
}

/// Two rings, three writers, two fences.
const SMALL: Machine = Machine { fault: None, writers: 3, fences: Some(2), flushes: 0, early: false, hotplug: false };

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
    holds(22_821, SMALL);
}

#[test]
fn a_cpu_that_comes_online_breaks_nothing() {
    holds(35_985, Machine { hotplug: true, ..SMALL });
}

#[test]
fn a_flush_breaks_nothing() {
    holds(210_756, Machine { flushes: 1, ..SMALL });
}

#[test]
fn early_release_breaks_only_what_is_in_flight() {
    holds(88_887, Machine { early: true, ..SMALL });
}

#[test]
fn all_of_it_together_breaks_only_what_is_in_flight() {
    holds(1_319_570, Machine { flushes: 1, early: true, hotplug: true, ..SMALL });
}

/// For each fault, a way to a state that must not be.
#[test]
fn each_fault_is_found() {
    let faults = [
        (Fault::ProvesWhatIsSeenAtItsEnd, "no event comes after a proven one with a larger key", SMALL),
        (Fault::NoSecondRefresh, "no event comes after a proven one with a larger key", SMALL),
        (Fault::WaitsForNobody, "no event comes after a proven one with a larger key", SMALL),
        (Fault::KeyBeforeSection, "no event comes after a proven one with a larger key", SMALL),
        (Fault::RepairsNothing, "no event comes after a proven one with a larger key", SMALL),
        (
            Fault::LeavesOutTheNewRing,
            "no event comes after a proven one with a larger key",
            Machine { hotplug: true, ..SMALL },
        ),
        (
            Fault::ReleasesWhatIsNew,
            "what was there when a key was found does not come after it",
            Machine { early: true, ..SMALL },
        ),
        (Fault::ReportsWithoutRefresh, "a report comes after all that was there", Machine { flushes: 1, ..SMALL }),
    ];
    for (fault, property, machine) in faults {
        let checker = visit(Machine { fault: Some(fault), ..machine });
        let path = checker.discovery(property).unwrap_or_else(|| panic!("{fault:?} breaks nothing"));
        println!("{fault:?}: {:?}", path.into_actions());
    }
}
