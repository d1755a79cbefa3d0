//! One thread, number 7, on the way that the kernel's records tell.

use super::{Left, Ran, Threads, Wake, Waker, Why, why};

const THREAD: u32 = 7;

fn wake(time: u64) -> Wake {
    Wake { time, waker: Waker::Thread(1), process: 1 }
}

fn left(time: u64, why: Why) -> Left {
    Left { time, why, process: THREAD }
}

/// A step of the thread.
enum Does {
    Wakes(u64),
    Leaves(u64, Why),
    Ends,
    /// The kernel's own record says so alone: of a thread that could run, or not.
    LeavesUnseen(bool),
    Runs,
}

use Does::{Ends, Leaves, LeavesUnseen, Runs, Wakes};

/// What is known when it runs for the last time: when it left, and since when it could run, if somebody woke it.
fn after(steps: impl IntoIterator<Item = Does>) -> Option<(Option<u64>, Option<u64>)> {
    let (mut threads, mut last) = (Threads::default(), None);
    for step in steps {
        match step {
            Wakes(time) => threads.wakes(THREAD, wake(time)),
            Leaves(time, why) => threads.leaves(THREAD, Some(left(time, why))),
            Ends => threads.leaves(THREAD, None),
            LeavesUnseen(could_run) => threads.leaves_unseen(THREAD, could_run.then_some(left(0, Why::Ready))),
            Runs => last = threads.runs(THREAD),
        }
    }
    last.map(|(left, wake)| {
        let ran = Ran { tid: THREAD, left, wake };
        (left.map(|left| left.time), ran.wake.and(ran.ready()))
    })
}

#[test]
fn a_thread_that_sleeps_is_woken_and_runs() {
    let steps = [Runs, Leaves(10, Why::Asleep), Wakes(20), Runs];
    assert_eq!(after(steps), Some((Some(10), Some(20))));
    // The first time it is not known when it fell asleep.
    assert_eq!(after([Wakes(20), Runs]), Some((None, Some(20))));
}

/// The waker finds it on its way to sleep. It leaves the CPU as one that sleeps, and comes back by that wake-up.
#[test]
fn a_wake_up_before_the_switch_counts() {
    let steps = [Runs, Wakes(9), Leaves(10, Why::Asleep), Runs];
    assert_eq!(after(steps), Some((Some(10), Some(10))));
}

/// It finds that it was woken, and does not sleep. What it sleeps later is ended by another.
#[test]
fn a_wake_up_that_only_keeps_it_awake_does_not_count() {
    let steps = [Runs, Wakes(9), Leaves(1_000, Why::Asleep), Wakes(5_000), Runs];
    assert_eq!(after(steps), Some((Some(1_000), Some(5_000))));
    let taken_off = [Runs, Wakes(9), Leaves(1_000, Why::Ready), Runs];
    assert_eq!(after(taken_off), Some((Some(1_000), None)));
    let while_off = [Runs, Leaves(1_000, Why::Ready), Wakes(1_010), Runs];
    assert_eq!(after(while_off), Some((Some(1_000), None)));
}

/// The kernel leaves switches out now and then.
#[test]
fn what_ran_unseen_is_not_joined() {
    let steps = [Runs, Leaves(10, Why::Asleep), Wakes(20), Leaves(30, Why::Asleep), Runs];
    assert_eq!(after(steps), Some((Some(30), None)));
    assert_eq!(after([Runs, Wakes(20), Runs]), None);
}

#[test]
fn the_kernels_own_records_fill_the_holes() {
    assert_eq!(after([Runs, LeavesUnseen(false), Wakes(20), Runs]), Some((None, Some(20))));
    assert_eq!(after([Runs, Wakes(9), LeavesUnseen(true), Wakes(20), Runs]), Some((Some(0), None)));
    // It says nothing new.
    let told = [Runs, Leaves(10, Why::Disk), LeavesUnseen(false), Wakes(20), Runs];
    assert_eq!(after(told), Some((Some(10), Some(20))));
}

#[test]
fn the_next_thread_with_its_number_is_another() {
    assert_eq!(after([Runs, Leaves(10, Why::Asleep), Wakes(20), Runs, Ends, Runs]), Some((None, None)));
    assert_eq!([why(0x10), why(0x20)], [None, None]);
}

#[test]
fn the_kernels_letters_for_states() {
    // R, R+, S, D, I, T, t, P
    let states = [0, 0x100, 1, 2, 0x80, 4, 8, 0x40].map(why);
    let [other @ .., _, _, _, _, _] = [Why::Other; 8];
    let first = [Why::Ready, Why::Ready, Why::Asleep, Why::Disk, Why::Asleep].map(Some);
    assert_eq!((&states[..5], &states[5..]), (&first[..], &other.map(Some)[..]));
}
