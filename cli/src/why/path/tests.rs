//! Known causes, on schedules that are written by hand.

use super::{Culprit, Step, path, sums};
use crate::waits::{Account, Call, Cause, In, Waker, What, Who, Why};
use std::sync::Arc;

const SERVER: u32 = 10;
const BACKUP: u32 = 20;
const OTHER: u32 = 30;

/// As [`crate::interrupt::kind`] has it.
const HARD: &str = "hardirq";

/// A schedule of two CPUs, as the scheduler's tracepoints tell it.
struct Told(Account);

impl Told {
    fn new() -> Self {
        let mut told = Self(Account::new(1_000));
        told.switch(0, 0, 0, Some(Why::Ready), SERVER).switch(0, 1, 0, Some(Why::Ready), BACKUP);
        told
    }

    fn switch(&mut self, time: u64, cpu: u32, prev: u32, why: Option<Why>, next: u32) -> &mut Self {
        self.0.switches(time, cpu, prev, why.map(|why| (why, prev)), next);
        self
    }

    fn wake(&mut self, time: u64, cpu: u32, by: u32, woken: u32) -> &mut Self {
        self.0.wakes(time, cpu, woken, by, None, (by, Some(by)));
        self
    }

    fn interrupt(&mut self, time: u64, cpu: u32, during: u32, name: &str, woken: u32) -> &mut Self {
        self.0.interrupts(time, cpu, &[HARD], name.into());
        self.0.wakes(time, cpu, woken, during, Some(HARD), (during, Some(during)));
        self.0.returns(time, cpu, &[HARD]);
        self
    }

    fn enter(&mut self, time: u64, cpu: u32, thread: u32, number: i64) -> &mut Self {
        self.0.calls(
            time,
            cpu,
            thread,
            In::Call(Arc::new(Call { number, args: [3, 0, 0, 0, 0, 0], entered: time, file: None })),
        );
        self
    }

    fn who(&self, thread: u32) -> Who {
        self.0.who(thread).unwrap()
    }

    /// The path of the server, which has no hole, and its sums, which add up.
    #[track_caller]
    fn why(&self, from: u64, to: u64) -> (Vec<Step>, Vec<(Culprit, u64)>) {
        let path = path(&self.0, self.who(SERVER), from, to);
        gapless(&path, from, to);
        let sums = sums(&path);
        assert_eq!(sums.iter().map(|(_, time)| time).sum::<u64>(), to - from, "{sums:?}");
        (path, sums)
    }
}

#[track_caller]
fn gapless(path: &[Step], from: u64, to: u64) {
    let ends: Vec<_> = path.iter().map(|step| step.to).collect();
    let begins: Vec<_> = path.iter().map(|step| step.from).chain([to]).collect();
    assert_eq!((begins[0], &begins[1..]), (from, &ends[..]), "{path:?}");
    for step in path.iter().filter(|step| !step.within.is_empty()) {
        gapless(&step.within, step.from, step.to);
    }
}

/// The server waits for a lock that a backup holds, which runs and then waits for a disk.
#[test]
fn a_lock_held_by_a_backup() {
    let mut told = Told::new();
    told.enter(90, 0, SERVER, 73).switch(100, 0, SERVER, Some(Why::Asleep), 0);
    told.enter(400, 1, BACKUP, 74).switch(400, 1, BACKUP, Some(Why::Disk), 0);
    told.interrupt(900, 0, 0, "vda", BACKUP).switch(900, 1, 0, Some(Why::Ready), BACKUP);
    told.wake(950, 1, BACKUP, SERVER).switch(960, 0, 0, Some(Why::Ready), SERVER);
    let (path, sums) = told.why(50, 1_000);
    let backup = told.who(BACKUP);
    let What::Blocked { why: Why::Asleep, call: In::Call(call), end: Some(Waker::Thread(by)), .. } = &path[1].what
    else {
        panic!("{path:?}")
    };
    assert_eq!((call.number, *by, path[1].lasted(), path[1].within.len()), (73, backup, 850, 3));
    let vda = Culprit::Interrupt(backup, Some(74), Some("vda".into()));
    let server = Culprit::Ran(told.who(SERVER));
    assert_eq!(sums, [(vda, 500), (Culprit::Ran(backup), 350), (server, 90), (Culprit::Idle, 10)]);
}

/// The holder of the lock could run, but a thread with a higher priority has its CPU.
#[test]
fn priority_inversion() {
    let mut told = Told::new();
    told.switch(100, 0, SERVER, Some(Why::Asleep), 0).switch(110, 1, BACKUP, Some(Why::Ready), OTHER);
    told.switch(1_110, 1, OTHER, Some(Why::Asleep), BACKUP).wake(1_120, 1, BACKUP, SERVER);
    told.switch(1_120, 0, 0, Some(Why::Ready), SERVER);
    let (_, sums) = told.why(100, 1_120);
    assert_eq!(sums, [(Culprit::Had(told.who(OTHER)), 1_000), (Culprit::Ran(told.who(BACKUP)), 20)]);
}

/// The server is woken, and others run on its CPU.
#[test]
fn a_hog_on_the_cpu() {
    let mut told = Told::new();
    told.switch(100, 0, SERVER, Some(Why::Asleep), OTHER).interrupt(200, 0, OTHER, "eth0", SERVER);
    told.switch(900, 0, OTHER, Some(Why::Ready), 0).switch(910, 0, 0, Some(Why::Ready), SERVER);
    let (path, sums) = told.why(100, 1_000);
    let (server, other) = (told.who(SERVER), told.who(OTHER));
    assert_eq!(path[1].what, What::Ready { cpu: Some(0), taken_off: false, held: false });
    let eth0 = Culprit::Interrupt(server, None, Some("eth0".into()));
    assert_eq!(sums[..2], [(Culprit::Had(other), 700), (eth0, 100)]);
    assert_eq!((sums.len(), sums[3].clone()), (4, (Culprit::Idle, 10)));
}

/// Nobody wakes the server: its time runs out.
#[test]
fn a_wake_up_that_is_lost() {
    let mut told = Told::new();
    told.enter(90, 0, SERVER, 202).switch(100, 0, SERVER, Some(Why::Asleep), 0);
    told.interrupt(5_100, 0, 0, "timer", SERVER).switch(5_100, 0, 0, Some(Why::Ready), SERVER);
    let (path, sums) = told.why(100, 5_100);
    let timer = Some(Arc::from("timer"));
    assert_eq!(sums, [(Culprit::Interrupt(told.who(SERVER), Some(202), timer), 5_000)]);
    assert_eq!(path.len(), 1);
}

/// The server's group has used up its quota: it could run, and its CPU is idle.
#[test]
fn a_quota_of_cpu_time() {
    let mut told = Told::new();
    told.switch(100, 0, SERVER, Some(Why::Ready), 0).switch(1_000, 0, 0, Some(Why::Ready), SERVER);
    let (path, sums) = told.why(50, 1_050);
    assert_eq!(path[1].what, What::Ready { cpu: Some(0), taken_off: true, held: true });
    assert_eq!(
        sums,
        [Culprit::Quota(told.who(SERVER)), Culprit::Ran(told.who(SERVER))]
            .into_iter()
            .zip([900, 100])
            .collect::<Vec<_>>()
    );
}

/// Nothing is concluded across a loss: neither who woke it, nor who ran.
#[test]
fn a_path_stops_at_what_is_unknown() {
    let mut told = Told::new();
    told.switch(100, 0, SERVER, Some(Why::Asleep), 0);
    told.0.lost(Some(1), Some(300));
    told.wake(500, 1, BACKUP, SERVER).switch(510, 0, 0, Some(Why::Ready), SERVER);
    let (path, sums) = told.why(100, 600);
    let ready = Culprit::Idle;
    assert_eq!(
        path[0].what,
        What::Blocked {
            why: Why::Asleep,
            call: In::Unknown,
            end: None,
            signal: None,
            nevertheless: false,
            stacks: [0; 2]
        }
    );
    assert_eq!(path[1].what, What::Unknown(Cause::Loss));
    assert!(sums.contains(&(Culprit::Unknown(Cause::Loss), 200)) && sums.contains(&(ready, 10)), "{sums:?}");
}

/// Two threads that wake each other in turn: the path goes to and fro and ends.
#[test]
fn a_ping_pong_ends() {
    let mut told = Told::new();
    told.switch(5, 1, BACKUP, Some(Why::Asleep), 0);
    for round in 0..100 {
        let at = 10 + round * 100;
        told.wake(at, 0, SERVER, BACKUP).switch(at + 1, 0, SERVER, Some(Why::Asleep), 0);
        told.switch(at + 2, 1, 0, Some(Why::Ready), BACKUP).wake(at + 60, 1, BACKUP, SERVER);
        told.switch(at + 61, 0, 0, Some(Why::Ready), SERVER).switch(at + 62, 1, BACKUP, Some(Why::Asleep), 0);
    }
    let (path, sums) = told.why(10, 10_000);
    assert!(path.len() >= 300, "{}", path.len());
    let backup = sums.iter().find(|(culprit, _)| *culprit == Culprit::Ran(told.who(BACKUP))).unwrap().1;
    assert_eq!(backup, 100 * 58);
}

/// The one that wakes the server was made while it waited, by one that worked until then: that is where the time went.
#[test]
fn before_a_thread_is_there_the_path_is_that_of_its_maker() {
    const CHILD: u32 = 40;
    let mut told = Told::new();
    told.switch(10, 0, SERVER, Some(Why::Asleep), OTHER);
    told.0.forks(60, 0, CHILD, Some(OTHER));
    told.switch(70, 0, OTHER, Some(Why::Asleep), CHILD).wake(90, 0, CHILD, SERVER);
    told.switch(100, 0, CHILD, Some(Why::Asleep), SERVER);
    let (path, sums) = told.why(10, 100);
    let within: Vec<_> = path[0].within.iter().map(|step| (step.who.thread, step.from, step.to)).collect();
    assert_eq!(within, [(OTHER, 10, 60), (CHILD, 60, 70), (CHILD, 70, 90)]);
    assert_eq!(sums[0], (Culprit::Ran(told.who(OTHER)), 50));
    assert!(!sums.iter().any(|(culprit, _)| *culprit == Culprit::Unknown(Cause::Gone)), "{sums:?}");
}
