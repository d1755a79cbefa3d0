//! What the crate does on simulated rings, against the model: each trace of a merge step by step, and each trace of a
//! reader, whose refreshes and fences nobody sees, against all that the model could have done meanwhile.

use crate::machine::{Action, Certainty, Machine, Seen, State};
use perfweave::{Event, Fence, Hold, Item, Layout, Merge, Order, Reader, sim};
use quickcheck::{Arbitrary, Gen};
use std::collections::HashSet;
use std::time::Duration;

/// What happens on the machine, and what is asked of the reader.
#[derive(Debug, Clone, Copy)]
enum Step {
    Begin(u8),
    Write(u8),
    End(u8),
    /// The second CPU's ring comes.
    Attach,
    Flush,
    /// A merge refreshes.
    Refresh,
    /// A merge begins a fence, or ends it if it is over.
    Fence,
    /// The next event, if there is one.
    Next,
    /// All events before the report that is due, and the report.
    Await,
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let cpu = u8::arbitrary(g) % 2;
        match u8::arbitrary(g) % 20 {
            // More ends than begins, so that a CPU is left by all its writers again and again.
            0..3 => Self::Begin(cpu),
            3..7 => Self::Write(cpu),
            7..11 => Self::End(cpu),
            11 => Self::Attach,
            12 => Self::Flush,
            13..15 => Self::Refresh,
            15..17 => Self::Fence,
            _ => Self::Next,
        }
    }
}

/// Schedules of this many steps, the same in each run of a test. Before them, one that fills a ring while a writer on
/// the other CPU holds up all proofs.
fn schedules(steps: usize, many: usize) -> impl Iterator<Item = Vec<Step>> {
    let mut g = Gen::from_size_and_seed(steps, 7);
    let writes = [Step::Begin(0), Step::Write(0), Step::End(0)].repeat(8);
    let full =
        [&[Step::Attach, Step::Begin(1)], &*writes, &[Step::Refresh, Step::Next, Step::Next, Step::Next]].concat();
    std::iter::once(full).chain((0..many).map(move |_| (0..steps).map(|_| Step::arbitrary(&mut g)).collect()))
}

/// What a trace has seen of the reader, after what the kernel and the program did.
#[derive(Debug, Clone, Copy)]
enum Told {
    /// It was done, and it was possible.
    Done(Action),
    Saw(Seen),
}

/// As many writers as a trace may have, and no bound on anything else.
const LARGE: Machine =
    Machine { fault: None, writers: 14, fences: None, flushes: u8::MAX, gives_up: false, hotplug: false };

fn seen(event: &Event<'_>) -> Option<Seen> {
    match event.item() {
        Item::Record(_) => {
            let certainty = match event.certainty() {
                perfweave::Certainty::Proven => Certainty::Proven,
                perfweave::Certainty::Assumed => Certainty::Assumed,
                perfweave::Certainty::Late => Certainty::Late,
            };
            Some(Seen::Event { key: event.key()? as u8, certainty })
        }
        Item::Flushed { complete } => Some(Seen::Flushed { complete }),
        // Losses and notices are no part of the model.
        _ => None,
    }
}

/// A step of the kernel, on the simulator too. `None` if it is not possible there.
fn of_the_kernel(step: Step, kernel: &sim::Kernel, machine: &Machine, state: &State) -> Option<Action> {
    match step {
        Step::Begin(cpu) => {
            let action = Action::Begin(cpu);
            let (next, _) = machine.step(state, action)?;
            kernel.begin(cpu.into(), next.drawn().into());
            Some(action)
        }
        // A record that finds no space is none.
        Step::Write(cpu) => {
            let is_written = state.has_writer(cpu).1 && kernel.write(cpu.into(), b"");
            is_written.then_some(Action::Write(cpu))
        }
        Step::End(cpu) => state.has_writer(cpu).0.then(|| {
            kernel.end(cpu.into());
            Action::End(cpu)
        }),
        _ => None,
    }
}

/// The states in which the model may be.
struct Acceptor {
    machine: Machine,
    states: HashSet<State>,
}

impl Acceptor {
    fn new(machine: Machine) -> Self {
        Self { machine, states: HashSet::from([State::new(&machine)]) }
    }

    /// Adds all that the reader may have done that nobody sees.
    fn close(&mut self) {
        let mut new: Vec<_> = self.states.iter().cloned().collect();
        while let Some(state) = new.pop() {
            for action in self.machine.silent_actions(&state) {
                let next = self.machine.step(&state, action).map(|(next, _)| next);
                new.extend(next.filter(|next| self.states.insert(next.clone())));
            }
        }
    }

    /// Whether the model could have done this too.
    fn accepts(&mut self, told: Told) -> bool {
        self.close();
        let step = |state: &State| match told {
            Told::Done(action) => self.machine.step(state, action).map(|(next, _)| next),
            Told::Saw(what) => {
                let action = if matches!(what, Seen::Flushed { .. }) { Action::Report } else { Action::Yield };
                self.machine.step(state, action).filter(|(_, seen)| *seen == Some(what)).map(|(next, _)| next)
            }
        };
        self.states = self.states.iter().filter_map(step).collect();
        !self.states.is_empty()
    }
}

/// The first of a trace that the model could not have done.
fn rejected(machine: Machine, trace: &[Told]) -> Option<usize> {
    let mut acceptor = Acceptor::new(machine);
    trace.iter().position(|told| !acceptor.accepts(*told))
}

/// A merge does what the model does, at each step.
#[test]
fn a_merge_does_what_the_model_does() {
    let machine = Machine { hotplug: true, ..LARGE };
    let (mut events, mut fences, mut arrived) = (0, 0, 0);
    for schedule in schedules(120, 2000) {
        let kernel = sim::Kernel::new(&[0]);
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::FENCE)).unwrap();
        let mut state = State::new(&machine);
        let mut grace: Option<sim::Grace> = None;
        let mut is_attached = false;
        let after = |state: &State, action| machine.step(state, action).map(|(next, _)| next);
        for (at, step) in schedule.iter().copied().enumerate() {
            let is_missing = matches!(step, Step::Begin(1) | Step::Write(1) | Step::End(1)) && !is_attached;
            match step {
                _ if is_missing => {}
                Step::Attach if !is_attached => {
                    kernel.plug(1);
                    assert!(merge.follow_cpus().unwrap());
                    state = after(&state, Action::Attach).unwrap();
                    (is_attached, arrived) = (true, arrived + u32::from(grace.is_some()));
                }
                Step::Refresh => {
                    merge.refresh(0);
                    for _ in 0..2 {
                        state = after(&state, Action::Look).unwrap();
                    }
                }
                Step::Fence => match &grace {
                    None => {
                        let begun = after(&state, Action::BeginFence);
                        assert_eq!(merge.begin_fence(), begun.is_some(), "step {at} of {schedule:?}");
                        if let Some(begun) = begun {
                            state = after(&begun, Action::StartGrace).unwrap();
                            grace = Some(kernel.grace());
                        }
                    }
                    Some(under_way) => {
                        let ended = after(&state, Action::EndFence);
                        assert_eq!(under_way.is_over(), ended.is_some(), "step {at} of {schedule:?}");
                        if let Some(ended) = ended {
                            merge.end_fence();
                            (state, grace, fences) = (ended, None, fences + 1);
                        }
                    }
                },
                Step::Next => {
                    let next = machine.step(&state, Action::Yield);
                    let expected = next.as_ref().and_then(|(_, seen)| *seen);
                    let event = merge.next().and_then(|event| seen(&event.event()));
                    assert_eq!(event, expected, "step {at} of {schedule:?}");
                    if let Some((next, _)) = next {
                        (state, events) = (next, events + 1);
                    }
                }
                _ => {
                    if let Some(action) = of_the_kernel(step, &kernel, &machine, &state) {
                        state = after(&state, action).unwrap();
                    }
                }
            }
            let frontier = merge.frontier().unwrap_or(0) as u8;
            assert_eq!((merge.held(), frontier), state.held_and_edge(), "step {at} of {schedule:?}");
        }
    }
    println!("{events} events, {fences} fences, {arrived} rings that came while one was under way");
    assert!(events > 1000 && fences > 500 && arrived > 10);
}

/// A reader on a schedule, and what it told. A flush at the end brings the rest. `bytes`: of each ring. `most_held`: of
/// copies.
fn trace(schedule: &[Step], hold: impl Fn(&sim::Kernel) -> Hold, bytes: usize, most_held: usize) -> Vec<Told> {
    let kernel = sim::Kernel::with(&[0, 1], bytes, Layout::new(1 << 10 | 1 << 2, true, 0));
    let order = Order::new().hold(hold(&kernel)).most_held(most_held);
    let mut reader = Reader::new(kernel.rings(), order).unwrap();
    let mut told = Vec::new();
    // What the kernel may do; the reader of this state does nothing.
    let mut state = State::new(&LARGE);
    let mut is_flushing = false;
    let take = |reader: &mut Reader, told: &mut Vec<Told>, is_flushing: &mut bool, timeout| {
        let event = reader.next_timeout(timeout).unwrap();
        if let Some(seen) = event.and_then(|event| seen(&event.event())) {
            *is_flushing &= !matches!(seen, Seen::Flushed { .. });
            told.push(Told::Saw(seen));
        }
    };
    let ends = [0, 1].into_iter().flat_map(|cpu| [Step::End(cpu); LARGE.writers as usize]);
    for step in schedule.iter().copied().chain(ends) {
        match step {
            Step::Flush if !is_flushing => {
                reader.handle().flush().unwrap();
                told.push(Told::Done(Action::Flush));
                is_flushing = true;
            }
            Step::Await => {
                while is_flushing {
                    take(&mut reader, &mut told, &mut is_flushing, Duration::from_secs(120));
                }
            }
            // Now and then there is time for a fence.
            Step::Next => take(&mut reader, &mut told, &mut is_flushing, Duration::ZERO),
            Step::Fence => take(&mut reader, &mut told, &mut is_flushing, Duration::from_millis(2)),
            _ => {
                if let Some(action) = of_the_kernel(step, &kernel, &LARGE, &state) {
                    state = LARGE.step(&state, action).unwrap().0;
                    told.push(Told::Done(action));
                }
            }
        }
    }
    for is_last in [false, true] {
        if is_last {
            reader.handle().flush().unwrap();
            told.push(Told::Done(Action::Flush));
            is_flushing = true;
        }
        while is_flushing {
            take(&mut reader, &mut told, &mut is_flushing, Duration::from_secs(120));
        }
    }
    told
}

fn count(trace: &[Told], what: impl Fn(Seen) -> bool) -> usize {
    trace.iter().filter(|told| matches!(told, Told::Saw(seen) if what(*seen))).count()
}

fn is(certainty: Certainty) -> impl Fn(Seen) -> bool {
    move |seen| matches!(seen, Seen::Event { certainty: other, .. } if other == certainty)
}

/// Rings that do not fill up; and those that do, out of which held records are copied, or not.
#[test]
fn a_reader_does_what_the_model_may_do() {
    for (bytes, most_held) in [(64 << 10, 64 << 20), (128, 64 << 20), (128, 128), (128, 0)] {
        let mut counts = [0; 2];
        for schedule in schedules(60, 60) {
            let told = trace(&schedule, sim::Kernel::hold, bytes, most_held);
            let at = rejected(LARGE, &told);
            assert!(at.is_none(), "{at:?} of {told:?}");
            let proven = count(&told, is(Certainty::Proven));
            assert_eq!(proven, count(&told, |seen| matches!(seen, Seen::Event { .. })));
            counts[0] += proven;
            counts[1] += count(&told, |seen| seen == Seen::Flushed { complete: true });
        }
        println!("{bytes}, {most_held}: {counts:?} events, reports");
        assert!(counts[0] > 0 && counts[1] > 60);
    }
}

/// A fence that waits for nobody: the reader is wrong, and the model says where.
#[test]
fn a_reader_whose_fence_does_not_wait_is_rejected() {
    let schedule = [Step::Begin(0), Step::Begin(1), Step::Write(1), Step::End(1), Step::Write(0), Step::End(0)];
    let hold = |_: &sim::Kernel| Hold::Fence(Fence::by(|| Ok(())));
    // The flush brings key 2 while key 1 is not written.
    let caught = |at: usize| [&schedule[..at], &[Step::Flush, Step::Await], &schedule[at..]].concat();
    let told = trace(&caught(4), hold, 64 << 10, 0);
    assert_eq!(count(&told, is(Certainty::Late)), 1, "{told:?}");
    let at = rejected(LARGE, &told).expect("what is proven too soon");
    assert!(matches!(told[at], Told::Saw(Seen::Event { key: 2, .. })), "{at} of {told:?}");
    // Where nobody is inside, it does no harm.
    assert_eq!(rejected(LARGE, &trace(&caught(6), hold, 64 << 10, 0)), None);
}

/// Changes of what a reader told.
#[test]
fn traces_that_were_changed_are_rejected() {
    let mut rejections = [0; 4];
    for schedule in schedules(60, 60) {
        let told = trace(&schedule, sim::Kernel::hold, 64 << 10, 0);
        let is_event = |told: &Told| matches!(told, Told::Saw(Seen::Event { .. }));
        let Some(first) = told.iter().position(is_event) else { continue };
        let mut changed = Vec::new();
        // Two events change places.
        if let Some(at) = told.windows(2).position(|pair| pair.iter().all(is_event)) {
            let mut swapped = told.clone();
            swapped.swap(at, at + 1);
            changed.push((0, swapped));
        }
        // An event comes twice.
        changed.push((1, [&told[..=first], &told[first..]].concat()));
        // One does not come.
        changed.push((2, [&told[..first], &told[first + 1..]].concat()));
        // One comes before anything was written.
        changed.push((3, [&told[first..=first], &told[..first], &told[first + 1..]].concat()));
        for (kind, trace) in changed {
            assert!(rejected(LARGE, &trace).is_some(), "change {kind}, first {first}: {told:?}");
            rejections[kind] += 1;
        }
    }
    println!("rejected: {rejections:?} swapped, repeated, left out, too soon");
    assert!(rejections.iter().all(|count| *count > 0), "{rejections:?}");
}
