//! One thread on the way that the kernel's records tell; and whole machines that are simulated, with all that can be
//! missing.

use super::{Account, Call, Cause, Has, In, Ran, Stretch, Waker, What, Who, Why};
use crate::scheduler::{Scheduler, Told, why};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU8;
use std::sync::Arc;

const THREAD: u32 = 7;

/// As [`crate::interrupt::kind`] has it.
const HARD: &str = "hardirq";

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
    let (mut account, mut last, mut now) = (Account::new(0), None, 0);
    for step in steps {
        match step {
            Wakes(time) => account.wakes(time, 1, THREAD, 1, None, (1, Some(1))),
            Leaves(time, why) => drop(account.switches(time, 0, THREAD, Some((why, THREAD)), 0)),
            Ends => drop(account.switches(now, 0, THREAD, None, 0)),
            LeavesUnseen(could_run) => account.leaves_unseen(now, 0, THREAD, could_run.then_some(THREAD), None),
            Runs => last = account.comes_unseen(now, 0, THREAD, None),
        }
        now = account.newest();
    }
    last.map(|ran: Ran| (ran.left.map(|left| left.time), ran.wake.as_ref().and(ran.ready())))
}

fn did(account: &Account, who: Who, from: u64, to: u64) -> Vec<Stretch<What>> {
    account.did(who, from, to).collect()
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

/// Switches of a CPU have no record. Wake-ups have: so who sleeps, sleeps, and who could run may have run there.
#[test]
fn who_could_run_may_have_run_unseen() {
    let mut account = Account::new(100);
    account.switches(1, 1, 0, Some((Why::Ready, 0)), 6);
    account.switches(2, 1, 6, Some((Why::Asleep, 6)), 5);
    account.switches(3, 1, 5, Some((Why::Ready, 5)), 0);
    account.switches(10, 0, THREAD, Some((Why::Asleep, THREAD)), 8);
    account.unseen(20, 0, 10);
    let what = |thread| did(&account, account.who(thread).unwrap(), 10, 20).remove(0).what;
    let unknown = What::Unknown(Cause::Unseen);
    assert_eq!([5, 8].map(what), [unknown.clone(), unknown]);
    assert!(matches!(what(6), What::Blocked { why: Why::Asleep, .. }), "{:?}", what(6));
}

#[test]
fn the_kernels_own_records_fill_the_holes() {
    assert_eq!(after([Runs, LeavesUnseen(false), Wakes(20), Runs]), Some((None, Some(20))));
    assert_eq!(after([Runs, Wakes(9), LeavesUnseen(true), Wakes(20), Runs]), Some((Some(9), None)));
    // It says nothing new.
    let told = [Runs, Leaves(10, Why::Disk), LeavesUnseen(false), Wakes(20), Runs];
    assert_eq!(after(told), Some((Some(10), Some(20))));
}

#[test]
fn the_next_thread_with_its_number_is_another() {
    assert_eq!(after([Runs, Leaves(10, Why::Asleep), Wakes(20), Runs, Ends, Runs]), Some((None, None)));
}

/// It is woken on its way to sleep, and again later. The first wake-up counts if it ran where records are lost, so
/// nothing says that it slept.
#[test]
fn a_wake_up_that_may_count_is_a_doubt() {
    let mut account = Account::new(100);
    account.switches(10, 0, 0, Some((Why::Ready, 0)), THREAD);
    account.wakes(20, 1, THREAD, 1, None, (1, Some(1)));
    account.switches(30, 0, THREAD, Some((Why::Asleep, THREAD)), 0);
    account.wakes(60, 0, THREAD, 0, Some(HARD), (0, Some(0)));
    account.lost(Some(1), Some(50));
    let did = did(&account, account.who(THREAD).unwrap(), 10, 60);
    let whats: Vec<_> = did.into_iter().map(|stretch| (stretch.from, stretch.what)).collect();
    let unknown = [Cause::Unseen, Cause::Loss].map(What::Unknown);
    assert_eq!(whats, [(10, What::Runs { cpu: 0 }), (30, unknown[0].clone()), (50, unknown[1].clone())]);
}

/// What was concluded without it is void, of its time on, and what was told since does not come back: until the next
/// fact nothing is known.
#[test]
fn nothing_is_known_between_a_late_record_and_the_newest() {
    let mut account = Account::new(100);
    account.switches(10, 0, 0, Some((Why::Ready, 0)), THREAD);
    account.switches(35, 0, THREAD, Some((Why::Asleep, THREAD)), 9);
    account.switches(40, 0, 9, Some((Why::Asleep, 9)), THREAD);
    // It is there at 20, and at 30. At 35 it left nevertheless.
    [30, 20, 25].into_iter().for_each(|time| account.writes(time, 0, THREAD));
    account.switches(50, 0, THREAD, Some((Why::Asleep, THREAD)), 9);
    let did = did(&account, account.who(THREAD).unwrap(), 10, 50);
    let whats: Vec<_> = did.into_iter().map(|stretch| (stretch.from, stretch.what)).collect();
    assert_eq!(whats, [(10, What::Runs { cpu: 0 }), (20, What::Unknown(Cause::Late))]);
    assert_eq!((account.newest(), account.had(0, 20, 50)), (50, vec![(Has::Unknown(Cause::Late), 30)]));
}

/// The end of a thread may come late, or the record of the next one that has its number. That one is another
/// nevertheless.
#[test]
fn a_late_end_is_one() {
    let story = |late: fn(&mut Account)| {
        let mut account = Account::new(100);
        account.switches(10, 0, 0, Some((Why::Ready, 0)), THREAD);
        account.switches(20, 1, 0, Some((Why::Ready, 0)), 9);
        account.writes(40, 1, 9);
        let old = account.who(THREAD).unwrap();
        late(&mut account);
        account.switches(50, 0, 0, Some((Why::Ready, 0)), THREAD);
        let did = did(&account, old, 10, 60);
        assert_eq!((did.len(), &did[0].what, did[0].to), (2, &What::Runs { cpu: 0 }, 30), "{did:?}");
        assert_ne!(account.who(THREAD), Some(old));
        account.ended(old)
    };
    assert_eq!(story(|account| drop(account.switches(30, 0, THREAD, None, 0))), Some(30));
    assert_eq!(story(|account| account.forks(30, 1, THREAD, None)), Some(30));
}

/// A record of a thread's end that comes late ends the thread, if it is off its CPU, and the next thread of its number
/// is another.
#[test]
fn a_late_record_of_an_end_is_one() {
    for is_off in [false, true] {
        let mut account = Account::new(100);
        account.switches(10, 0, 0, Some((Why::Ready, 0)), THREAD);
        if is_off {
            account.switches(20, 0, THREAD, Some((Why::Asleep, THREAD)), 0);
        }
        account.writes(40, 1, 9);
        let old = account.who(THREAD).unwrap();
        account.tells_its_end(30, 0, THREAD);
        account.switches(50, 0, if is_off { 0 } else { THREAD }, Some((Why::Asleep, THREAD)), 9);
        account.switches(60, 0, 9, Some((Why::Ready, 9)), THREAD);
        assert_ne!(account.who(THREAD), Some(old), "{is_off}");
        assert!(account.ended(old).is_some(), "{is_off}");
    }
}

/// A thread whose beginning comes late is known from then on.
#[test]
fn a_late_beginning_is_one() {
    let mut account = Account::new(100);
    account.writes(40, 1, 9);
    account.forks(30, 1, THREAD, None);
    assert!(account.who(THREAD).is_some());
}

/// Records of one CPU are lost. Who runs on another is known.
#[test]
fn a_loss_of_one_cpu_stops_nobody_on_another() {
    let mut account = Account::new(100);
    account.switches(10, 0, 0, Some((Why::Ready, 0)), THREAD);
    account.switches(40, 0, THREAD, Some((Why::Asleep, THREAD)), 9);
    account.lost(Some(1), Some(20));
    let [first, other] =
        [did(&account, account.who(THREAD).unwrap(), 40, 50), did(&account, account.who(9).unwrap(), 20, 50)];
    assert_eq!(first[0].what, What::Unknown(Cause::Loss));
    assert_eq!((other.len(), &other[1].what, other[1].from), (2, &What::Runs { cpu: 0 }, 40));
}

/// A wake-up in an interrupt has the name of that interrupt, if it is the innermost one.
#[test]
fn interrupts_have_their_names() {
    let (hard, soft): (&'static str, _) = (HARD, &["softirq"]);
    let mut account = Account::new(100);
    let mut woken_in = |time, kind| {
        account.switches(time, 0, THREAD, Some((Why::Asleep, THREAD)), 0);
        account.wakes(time + 1, 1, THREAD, 1, Some(kind), (1, Some(1)));
        account.returns(time + 1, 1, &[HARD]);
        match account.switches(time + 2, 0, 0, Some((Why::Ready, 0)), THREAD).and_then(|ran| ran.wake).unwrap().by {
            Waker::Interrupt(name) => name.map(|name| name.to_string()),
            Waker::Thread(_) => panic!("a thread"),
        }
    };
    assert_eq!(woken_in(10, hard), None);
    let mut account = Account::new(100);
    account.interrupts(1, 1, soft, "net_rx".into());
    account.interrupts(2, 1, &[HARD], "vda".into());
    let mut by = |time, kind| {
        account.switches(time, 0, THREAD, Some((Why::Asleep, THREAD)), 0);
        account.wakes(time + 1, 1, THREAD, 1, Some(kind), (1, Some(1)));
        account.returns(time + 1, 1, &[HARD]);
        account.switches(time + 2, 0, 0, Some((Why::Ready, 0)), THREAD).and_then(|ran| ran.wake).map(|wake| wake.by)
    };
    assert_eq!(by(10, hard), Some(Waker::Interrupt(Some("vda".into()))));
    // In an interrupt within that one, which has no name.
    assert_eq!(by(20, hard), Some(Waker::Interrupt(None)));
}

/// A CPU goes idle though a thread on it could run: so it may not, as long as that CPU goes idle again.
#[test]
fn a_quota_holds_a_thread_back() {
    let of = |steps: fn(&mut Account)| {
        let mut account = Account::new(100);
        account.switches(10, 0, 0, Some((Why::Ready, 0)), THREAD);
        steps(&mut account);
        let did = did(&account, account.who(THREAD).unwrap(), 20, 60);
        let held = |stretch: Stretch<What>| match stretch.what {
            What::Ready { cpu: Some(_), taken_off: true, held } => (stretch.from, stretch.to, held),
            other => panic!("{other:?}"),
        };
        did.into_iter().map(held).collect::<Vec<_>>()
    };
    let alone = of(|account| {
        account.switches(20, 0, THREAD, Some((Why::Ready, THREAD)), 0);
        account.switches(60, 0, 0, Some((Why::Ready, 0)), THREAD);
    });
    assert_eq!(alone, [(20, 60, true)]);
    let beside_another = of(|account| {
        account.switches(20, 0, THREAD, Some((Why::Ready, THREAD)), 0);
        account.switches(30, 0, 0, Some((Why::Ready, 0)), 9);
        account.switches(40, 0, 9, Some((Why::Asleep, 9)), 0);
        account.switches(50, 0, 0, Some((Why::Ready, 0)), 9);
        account.switches(60, 0, 9, Some((Why::Asleep, 9)), THREAD);
    });
    assert_eq!(beside_another, [(20, 50, true), (50, 60, false)]);
    // Another CPU may have taken it over meanwhile.
    let elsewhere = of(|account| {
        account.switches(20, 0, THREAD, Some((Why::Ready, THREAD)), 0);
        account.switches(30, 0, 0, Some((Why::Ready, 0)), 9);
        account.switches(40, 0, 9, Some((Why::Asleep, 9)), 0);
        account.switches(60, 1, 0, Some((Why::Ready, 0)), THREAD);
    });
    assert_eq!(elsewhere, [(20, 30, true), (30, 60, false)]);
    // Another has its CPU first. Nothing says why, until that CPU is idle.
    let behind_another = of(|account| {
        account.switches(20, 0, THREAD, Some((Why::Ready, THREAD)), 9);
        account.switches(30, 0, 9, Some((Why::Asleep, 9)), 0);
        account.switches(60, 0, 0, Some((Why::Ready, 0)), THREAD);
    });
    assert_eq!(behind_another, [(20, 30, false), (30, 60, true)]);
    // Another has its CPU. Nothing says why.
    let taken_off = of(|account| {
        account.switches(20, 0, THREAD, Some((Why::Ready, THREAD)), 9);
        account.switches(30, 0, 9, Some((Why::Asleep, 9)), 0);
        account.switches(60, 1, 0, Some((Why::Ready, 0)), THREAD);
    });
    assert_eq!(taken_off, [(20, 60, false)]);
}

/// What an idle CPU does outside of its interrupts, another CPU has asked for: it is no thread that could have waited.
#[test]
fn the_idle_thread_is_nobody() {
    let mut account = Account::new(100);
    account.switches(10, 0, THREAD, Some((Why::Asleep, THREAD)), 0);
    // Told without a sign of an interrupt, and of a CPU that comes online.
    account.wakes(20, 0, THREAD, 0, None, (0, Some(0)));
    account.wakes(20, 1, 0, 9, None, (9, Some(9)));
    account.forks(20, 1, 0, None);
    assert_eq!(account.who(0), None);
    account.switches(30, 0, 0, Some((Why::Ready, 0)), THREAD);
    let mut did = account.did(account.who(THREAD).unwrap(), 10, 30);
    let blocked = did.find_map(|did| if let What::Blocked { end, .. } = did.what { Some(end) } else { None });
    assert_eq!(blocked, Some(Some(Waker::Interrupt(None))));
}

/// A thread sends a packet to this machine, and the soft interrupt that delivers it runs before it goes on: so it wakes
/// who waits for that.
#[test]
fn who_sends_a_packet_wakes_its_reader() {
    const SENDER: u32 = 9;
    let by = |steps: fn(&mut Account)| {
        let mut account = Account::new(100);
        account.switches(10, 1, 0, Some((Why::Ready, 0)), SENDER);
        account.switches(10, 0, THREAD, Some((Why::Asleep, THREAD)), 0);
        account.sends(20, 1, SENDER, false, 0xbeef);
        account.interrupts(21, 1, &["softirq"], "net_rx".into());
        steps(&mut account);
        account.wakes(23, 1, THREAD, account.who(SENDER).unwrap().thread, Some("softirq"), (1, Some(1)));
        let sender = Waker::Thread(account.who(SENDER).unwrap());
        (account.switches(30, 0, 0, Some((Why::Ready, 0)), THREAD).and_then(|ran| ran.wake).unwrap().by, sender)
    };
    let (waker, sender) = by(|account| account.delivers(22, 1, Some(0xbeef)));
    assert_eq!(waker, sender);
    // A reply to it is its doing too.
    let (waker, sender) = by(|account| {
        account.delivers(22, 1, Some(0xbeef));
        account.sends(22, 1, SENDER, true, 0xcafe);
        account.delivers(22, 1, Some(0xcafe));
    });
    assert_eq!(waker, sender);
    let interrupt = Waker::Interrupt(Some("net_rx".into()));
    // Another packet, and one that the card has brought.
    assert_eq!(by(|account| account.delivers(22, 1, Some(0xf00d))).0, interrupt);
    let brought = by(|account| {
        account.delivers(22, 1, Some(0xbeef));
        account.delivers(22, 1, None);
    });
    assert_eq!(brought.0, interrupt);
    // The queue was full and dropped it. One that the card brings later has its address.
    let dropped = by(|account| {
        account.delivers(22, 1, None);
        account.delivered_all(1);
        account.delivers(22, 1, Some(0xbeef));
    });
    assert_eq!(dropped.0, interrupt);
    // What was sent on another CPU is on its way.
    let (waker, sender) = by(|account| {
        account.delivered_all(0);
        account.delivers(22, 1, Some(0xbeef));
    });
    assert_eq!(waker, sender);
}

/// Of nested interrupts the innermost runs. What has no end has no length, and an idle CPU is nobody's.
#[test]
fn interrupts_take_time_of_threads() {
    let mut account = Account::new(100);
    account.switches(10, 0, 0, Some((Why::Ready, 0)), THREAD);
    account.interrupts(20, 0, &["softirq"], "net_rx".into());
    account.interrupts(22, 0, &[HARD], "vda".into());
    account.returns(25, 0, &[HARD]);
    account.returns(30, 0, &["softirq"]);
    account.interrupts(40, 0, &[HARD], "vda".into());
    account.calls(45, 0, THREAD, In::Nothing);
    account.interrupts(50, 0, &["softirq"], "timer".into());
    account.returns(51, 0, &[HARD]);
    account.switches(60, 0, THREAD, Some((Why::Asleep, THREAD)), 0);
    account.interrupts(70, 0, &[HARD], "vda".into());
    account.returns(75, 0, &[HARD]);
    let sums = |from, to| account.interrupted(0, from, to).into_iter().map(|(name, time)| (name.to_string(), time));
    let all: Vec<_> = sums(0, 100).collect();
    assert_eq!(all, [("net_rx".to_owned(), 7), ("vda".to_owned(), 3)]);
    let part: Vec<_> = sums(24, 28).collect();
    assert_eq!(part, [("net_rx".to_owned(), 3), ("vda".to_owned(), 1)]);
}

/// The sender's wake-up may be of something else: the result of the call says whether it was the signal. Only a signal
/// continues a stopped thread.
#[test]
fn a_signal_is_named_if_it_ended_the_wait() {
    const WAKER: u32 = 8;
    const SIGNAL: NonZeroU8 = NonZeroU8::new(10).unwrap();
    let signals = |why, of_another: bool, between: bool, interrupted| {
        let mut account = Account::new(100);
        account.switches(10, 0, THREAD, Some((why, THREAD)), WAKER);
        account.wakes(20, 0, THREAD, WAKER, None, (WAKER, Some(WAKER)));
        if between {
            account.calls(20, 0, WAKER, In::Nothing);
        }
        account.signals(21, 0, Some((if of_another { 99 } else { THREAD }, false, SIGNAL)));
        account.switches(30, 0, WAKER, Some((Why::Asleep, WAKER)), THREAD);
        account.returns_from(31, 0, THREAD, interrupted);
        let who = account.who(THREAD).unwrap();
        let told = account.take_signalled().map(|(of, woken, signal)| (of == who, woken, signal));
        let signal = did(&account, who, 10, 30).into_iter().find_map(|did| match did.what {
            What::Blocked { signal, .. } => Some(signal),
            _ => None,
        });
        (signal.unwrap(), told)
    };
    assert_eq!(signals(Why::Asleep, false, false, true), (Some(SIGNAL), Some((true, 20, SIGNAL))));
    for (of_another, between, interrupted) in [(false, false, false), (true, false, true), (false, true, true)] {
        assert_eq!(signals(Why::Asleep, of_another, between, interrupted), (None, None));
    }
    assert_eq!(signals(Why::Stopped, false, false, false), (Some(SIGNAL), None));
}

/// What a simulated thread does in truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truth {
    Runs(u32),
    Ready,
    /// In which call.
    Blocked(Option<i64>),
    /// It is made, and nobody has woken it yet.
    New,
}

/// Who ends a wait: a thread by its number, or an interrupt.
type Ender = Option<u32>;

#[derive(Debug)]
struct Thread {
    number: u32,
    does: Truth,
    since: u64,
    call: Option<i64>,
    /// It finds on its way to sleep that it was woken.
    is_woken: bool,
    /// It has executed a program, so it is the first of its process, and keeps its number.
    is_first: bool,
    was: Vec<(u64, u64, Truth, Option<Ender>)>,
}

impl Thread {
    fn new(number: u32, does: Truth, since: u64) -> Self {
        Self { number, does, since, call: None, is_woken: false, is_first: false, was: Vec::new() }
    }

    fn becomes(&mut self, time: u64, does: Truth, by: Option<Ender>) {
        if self.does != does {
            self.was.push((self.since, time, self.does, by));
            (self.does, self.since) = (does, time);
        }
    }
}

/// What the kernel writes.
#[derive(Debug, Clone, Copy)]
enum Fact {
    Wakes {
        woken: u32,
        by: u32,
        interrupt: bool,
    },
    Switches {
        prev: u32,
        why: Option<Why>,
        next: u32,
        /// Which of its CPU's, as programs count them, and in which call the first is.
        count: u32,
        call: Option<i64>,
    },
    Out {
        prev: u32,
        could_run: bool,
        next: u32,
    },
    In {
        next: u32,
        prev: u32,
    },
    Forks(u32),
    Calls(u32, Option<i64>),
    /// It has another name.
    Writes(u32),
    /// Where a CPU stands, as a program tells: who runs there, and which of its switches was the last. Whether nothing
    /// behind it is asked for.
    Stands(u32, u32, bool),
    /// Of this CPU: after that time.
    Lost(u64),
    Untraced(u64, bool),
}

impl Fact {
    /// The reader tells it. It is never lost.
    fn is_told(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Untraced(..))
    }

    /// Tells a record, unless that source has none of it.
    fn tells(&self, scheduler: &mut Scheduler, by: By, time: u64, cpu: u32) -> bool {
        let account = &mut scheduler.account;
        let into = |call: Option<i64>| {
            call.map_or(In::Nothing, |number| In::Call(Arc::new(Call { number, args: [0; 6], entered: 0, file: None })))
        };
        match (*self, by) {
            (Self::Wakes { woken, by, interrupt }, _) => {
                account.wakes(time, cpu, woken, by, interrupt.then_some(HARD), (by, Some(by)));
            }
            (Self::Switches { prev, why, next, .. }, By::Tracepoints) => {
                drop(account.switches(time, cpu, prev, why.map(|why| (why, prev)), next));
            }
            (Self::Switches { prev, why, next, count, call }, By::Programs) => {
                scheduler.hears(time, cpu, Told::Switch { prev, next, why, count, call: into(call) });
            }
            (Self::Out { prev, could_run, next }, By::Tracepoints) => {
                account.leaves_unseen(time, cpu, prev, could_run.then_some(prev), Some(next));
            }
            (Self::In { next, prev }, By::Tracepoints) => drop(account.comes_unseen(time, cpu, next, Some(prev))),
            (Self::Calls(number, call), By::Tracepoints) => account.calls(time, cpu, number, into(call)),
            (Self::Forks(number), _) => account.forks(time, cpu, number, None),
            (Self::Writes(number), _) => account.writes(time, cpu, number),
            (Self::Stands(runs, count, is_last), By::Programs) => {
                scheduler.hears(time, cpu, Told::Stands { runs, count, is_last });
            }
            (Self::Stands(..), By::Tracepoints)
            | (Self::Out { .. } | Self::In { .. } | Self::Calls(..), By::Programs)
            | (Self::Lost(_) | Self::Untraced(..), _) => return false,
        }
        true
    }
}

const CPUS: u32 = 3;

/// Who tells the account of switches and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Tracepoints at switches, and at entries into and returns from calls, and the kernel's own records of switches.
    Tracepoints,
    /// A program at switches, which counts them.
    Programs,
}

const BOTH: [By; 2] = [By::Tracepoints, By::Programs];

struct Machine {
    random: u64,
    now: u64,
    threads: Vec<Thread>,
    /// Those that ended.
    dead: Vec<Thread>,
    cpus: [Option<usize>; CPUS as usize],
    had: Vec<(u32, u64, u64, u32)>,
    facts: Vec<(u64, u32, Fact)>,
    faults: bool,
    /// Whether the kernel leaves switches out.
    leaves_out: bool,
    /// How many switches each CPU has made.
    made: [u32; CPUS as usize],
    /// Whether CPUs tell where they stand, at the beginning and at the end.
    stands: bool,
    /// How many switches the kernel has left out.
    left_out: u64,
}

impl Machine {
    fn new(seed: u64, faults: bool) -> Self {
        let threads = (1..=8)
            .map(|number| Thread::new(number, if number % 2 == 0 { Truth::Ready } else { Truth::Blocked(None) }, 0));
        let (threads, dead) = (threads.collect(), Vec::new());
        let (had, facts, made) = (Vec::new(), Vec::new(), [u32::MAX - 20, 0, 7]);
        let (leaves_out, stands, left_out) = (false, true, 0);
        Self {
            random: seed,
            now: 0,
            threads,
            dead,
            cpus: [None; 3],
            had,
            facts,
            faults,
            leaves_out,
            made,
            stands,
            left_out,
        }
    }

    fn below(&mut self, most: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % most
    }

    fn one_of(&mut self, is: impl Fn(&Thread) -> bool) -> Option<usize> {
        let found: Vec<_> = (0..self.threads.len()).filter(|at| is(&self.threads[*at])).collect();
        if found.is_empty() { None } else { Some(found[self.below(found.len())]) }
    }

    fn number(&self, at: Option<usize>) -> u32 {
        at.map_or(0, |at| self.threads[at].number)
    }

    fn tell(&mut self, cpu: u32, fact: Fact) {
        self.facts.push((self.now, cpu, fact));
    }

    /// The thread that had the CPU until now.
    fn gives_up(&mut self, cpu: u32) {
        if let Some(at) = self.cpus[cpu as usize] {
            let thread = &self.threads[at];
            self.had.push((cpu, thread.since, self.now, thread.number));
        }
    }

    /// It has a number that no thread has: one that was there before, if there is one.
    fn free_number(&mut self) -> u32 {
        (1..).find(|number| self.threads.iter().all(|thread| thread.number != *number)).unwrap()
    }

    fn remove(&mut self, at: usize) {
        for running in self.cpus.iter_mut().flatten() {
            assert!(*running != at);
            if *running == self.threads.len() - 1 {
                *running = at;
            }
        }
        let thread = self.threads.swap_remove(at);
        self.dead.push(thread);
    }

    fn switch(&mut self, cpu: u32) {
        let prev = self.cpus[cpu as usize];
        let next = if self.below(4) == 0 { None } else { self.one_of(|thread| thread.does == Truth::Ready) };
        if prev.is_none() && next.is_none() {
            return;
        }
        self.gives_up(cpu);
        let (numbers, ends) = ([prev, next].map(|at| self.number(at)), self.threads.len() > 5 && self.below(12) == 0);
        let why = [Some(Why::Ready), Some(Why::Asleep), Some(Why::Disk), Some(Why::Asleep)][self.below(4)];
        let why = if prev.is_none() {
            Some(Why::Ready)
        } else if ends {
            None
        } else {
            why
        };
        let (now, call) = (self.now, prev.and_then(|prev| self.threads[prev].call));
        if let Some(prev) = prev {
            let thread = &mut self.threads[prev];
            let is_woken = std::mem::take(&mut thread.is_woken);
            let does = if why == Some(Why::Ready) || is_woken { Truth::Ready } else { Truth::Blocked(thread.call) };
            thread.becomes(now, does, None);
        }
        if let Some(next) = next {
            self.threads[next].becomes(now, Truth::Runs(cpu), None);
        }
        self.cpus[cpu as usize] = next;
        let [prev_number, next_number] = numbers;
        let count = self.made[cpu as usize].wrapping_add(1);
        self.made[cpu as usize] = count;
        if self.leaves_out && self.below(8) == 0 && why.is_some() {
            // The kernel leaves the record of the switch out.
            self.left_out += 1;
            let could_run = why == Some(Why::Ready);
            if prev_number != 0 {
                self.tell(cpu, Fact::Out { prev: prev_number, could_run, next: next_number });
            }
            if next_number != 0 {
                self.tell(cpu, Fact::In { next: next_number, prev: prev_number });
            }
        } else {
            self.tell(cpu, Fact::Switches { prev: prev_number, why, next: next_number, count, call });
        }
        if let Some(prev) = prev.filter(|_| why.is_none()) {
            self.remove(prev);
        }
    }

    fn wake(&mut self, cpu: u32) {
        let by = self.number(self.cpus[cpu as usize]);
        let interrupt = by == 0 || self.below(4) == 0;
        if self.below(5) == 0 {
            // It runs on another CPU and is about to sleep. It may find that it was woken.
            let running = self.one_of(|thread| matches!(thread.does, Truth::Runs(on) if on != cpu) && !thread.is_woken);
            let Some(at) = running else { return };
            let woken = self.threads[at].number;
            self.threads[at].is_woken = self.below(2) == 0;
            return self.tell(cpu, Fact::Wakes { woken, by, interrupt });
        }
        let Some(at) = self.one_of(|thread| matches!(thread.does, Truth::Blocked(_))) else { return };
        let (now, woken) = (self.now, self.threads[at].number);
        self.threads[at].becomes(now, Truth::Ready, Some((!interrupt).then_some(by)));
        self.tell(cpu, Fact::Wakes { woken, by, interrupt });
    }

    /// What the thread on this CPU does there.
    fn act(&mut self, cpu: u32) {
        let Some(at) = self.cpus[cpu as usize] else { return };
        let by = self.threads[at].number;
        match self.below(4) {
            0 if self.threads.len() < 14 => {
                let number = self.free_number();
                self.tell(cpu, Fact::Forks(number));
                let mut thread = Thread::new(number, Truth::New, self.now);
                self.now += 1;
                thread.becomes(self.now, Truth::Ready, None);
                self.threads.push(thread);
                self.tell(cpu, Fact::Wakes { woken: number, by, interrupt: false });
            }
            // It executes a program as the thread that is not the first of its process, and takes another number
            // without a record.
            1 if self.faults && !self.threads[at].is_first && self.below(4) == 0 => {
                self.gives_up(cpu);
                let (number, now) = (self.free_number(), self.now);
                let thread = &mut self.threads[at];
                thread.becomes(now, Truth::New, None);
                let first = Thread { is_first: true, ..Thread::new(number, Truth::Runs(cpu), now) };
                let old = std::mem::replace(thread, first);
                self.dead.push(old);
                self.tell(cpu, Fact::Writes(number));
            }
            _ => {
                let call = match self.threads[at].call {
                    None => Some(self.below(300) as i64),
                    Some(_) => None,
                };
                self.threads[at].call = call;
                self.tell(cpu, Fact::Calls(by, call));
            }
        }
    }

    fn run(&mut self, steps: usize) {
        self.all_stand(false);
        for _ in 0..steps {
            self.now += 1 + self.below(20) as u64;
            let cpu = self.below(CPUS as usize) as u32;
            match self.below(8) {
                0..4 => self.switch(cpu),
                4..6 => self.wake(cpu),
                _ => self.act(cpu),
            }
        }
        self.now += 10;
        self.all_stand(true);
        for cpu in 0..CPUS {
            self.gives_up(cpu);
        }
        let now = self.now;
        for thread in &mut self.threads {
            thread.was.push((thread.since, now, thread.does, None));
        }
    }

    /// Each CPU tells where it stands.
    fn all_stand(&mut self, is_last: bool) {
        for cpu in 0..if self.stands { CPUS } else { 0 } {
            let runs = self.number(self.cpus[cpu as usize]);
            self.tell(cpu, Fact::Stands(runs, self.made[cpu as usize], is_last));
        }
    }

    /// Takes facts of a CPU away, and says so where the next one is.
    fn lose(&mut self) {
        let cpu = self.below(CPUS as usize) as u32;
        let own: Vec<_> =
            (0..self.facts.len()).filter(|at| self.facts[*at].1 == cpu && !self.facts[*at].2.is_told()).collect();
        if own.len() < 20 {
            return;
        }
        let first = self.below(own.len() - 10);
        let lost = &own[first..first + 1 + self.below(8)];
        let after = first.checked_sub(1).map_or(0, |before| self.facts[own[before]].0);
        let untraced = self.below(3) == 0;
        let lasts = self.below(2) == 0;
        let next = own[first + lost.len()];
        let end = self.facts[next].0;
        // It belongs before the record that follows the loss.
        let told = if untraced { Fact::Untraced(after, false) } else { Fact::Lost(after) };
        self.facts.insert(next, (end, cpu, told));
        for at in lost.iter().rev() {
            self.facts.remove(*at);
        }
        if untraced && lasts {
            let begin = self.facts[lost[0]].0;
            self.facts.insert(lost[0], (begin, cpu, Fact::Untraced(after, true)));
        }
    }

    /// Some facts of a CPU come late: those of other CPUs come before them.
    fn delay(&mut self) {
        let cpu = self.below(CPUS as usize) as u32;
        let own: Vec<_> = (0..self.facts.len()).filter(|at| self.facts[*at].1 == cpu).collect();
        if own.len() < 20 {
            return;
        }
        let first = self.below(own.len() - 10);
        let late = &own[first..first + 1 + self.below(6)];
        let before = own[first + late.len()];
        // By as many facts as there may be, and not past the next of their CPU.
        let to = late[late.len() - 1] + 1;
        let to = to + self.below(before - to + 1);
        let moved: Vec<_> = late.iter().map(|at| self.facts[*at]).collect();
        self.facts.splice(to..to, moved);
        for at in late.iter().rev() {
            self.facts.remove(*at);
        }
    }

    /// What the account makes of it, and all whom it has seen.
    fn account(&self, by: By, most: usize) -> (Account, BTreeSet<Who>) {
        let (mut scheduler, mut seen) = (Scheduler::by_programs(most), BTreeSet::new());
        // When a CPU has told something for the last time: behind that its next loss begins.
        let mut lasts = [0; CPUS as usize];
        for (time, cpu, fact) in &self.facts {
            let (time, cpu) = (*time, *cpu);
            let after = |after: u64| after.min(lasts[cpu as usize]);
            match *fact {
                Fact::Lost(since) => scheduler.lacks_some(cpu, after(since), None),
                Fact::Untraced(since, lasts) => scheduler.lacks_some(cpu, after(since), Some(lasts)),
                _ if fact.tells(&mut scheduler, by, time, cpu) => lasts[cpu as usize] = time,
                _ => {}
            }
            seen.extend((1..30).filter_map(|number| scheduler.account.who(number)));
        }
        if by == By::Programs {
            scheduler.ends();
        }
        (scheduler.account, seen)
    }

    fn truths(&self, number: u32) -> impl Iterator<Item = &(u64, u64, Truth, Option<Ender>)> {
        let all = self.threads.iter().chain(&self.dead).filter(move |thread| thread.number == number);
        all.flat_map(|thread| &thread.was)
    }

    /// What was told around a time, for a test that fails.
    fn story(&self, from: u64, to: u64) -> String {
        let near = self.facts.iter().filter(|(time, ..)| time + 200 >= from && *time <= to + 200);
        near.map(|fact| format!("{fact:?}\n")).collect()
    }

    /// Nobody has more of a CPU than in truth.
    #[track_caller]
    fn check_cpu(&self, account: &Account, cpu: u32, from: u64, to: u64) {
        let mut truth = HashMap::<u32, u64>::new();
        for (_, begin, end, number) in self.had.iter().filter(|had| had.0 == cpu) {
            *truth.entry(*number).or_default() += (*end).min(to).saturating_sub((*begin).max(from));
        }
        let had = account.had(cpu, from, to);
        assert_eq!(had.iter().map(|(_, time)| time).sum::<u64>(), to - from, "{had:?}");
        let idle = to - from - truth.values().sum::<u64>();
        let mut sums = HashMap::<u32, u64>::new();
        for (has, time) in &had {
            match has {
                Has::Thread(who) => *sums.entry(who.thread).or_default() += time,
                Has::Idle => *sums.entry(0).or_default() += time,
                Has::Unknown(_) => {}
            }
        }
        truth.insert(0, idle);
        let is_true = sums.iter().all(|(number, time)| truth.get(number) >= Some(time));
        assert!(is_true, "CPU {cpu} {from} {to}: {had:?} {truth:?}\n{}", self.story(from, to));
    }

    /// Nothing that the account says is false.
    #[track_caller]
    fn check(&self, who: Who, stretch: &Stretch<What>) {
        let &Stretch { from, to, ref what } = stretch;
        if matches!(what, What::Unknown(_)) {
            return;
        }
        let mut covering = self.truths(who.thread).filter(|(begin, end, ..)| *begin <= from && to <= *end);
        let (_, end, truth, ender) =
            covering.next().unwrap_or_else(|| panic!("{who:?} {stretch:?} is no one thing\n{}", self.story(from, to)));
        match (what, truth) {
            (What::Runs { cpu }, Truth::Runs(on)) => assert_eq!(cpu, on, "{who:?} {stretch:?}"),
            (What::Ready { .. }, Truth::Ready) => {}
            (What::Blocked { call, end: by, .. }, Truth::Blocked(truth)) => {
                match call {
                    In::Unknown => {}
                    In::Nothing => assert_eq!(*truth, None, "{who:?} {stretch:?}"),
                    In::Call(call) => assert_eq!(*truth, Some(call.number), "{who:?} {stretch:?}"),
                }
                let Some(by) = by else { return };
                let by = match by {
                    Waker::Thread(who) => Some(who.thread),
                    Waker::Interrupt(_) => None,
                };
                assert_eq!((*end, *ender), (to, Some(by)), "{who:?} {stretch:?}: its waker");
            }
            _ => panic!("{who:?} {stretch:?} is {truth:?}\n{}", self.story(from, to)),
        }
    }
}

/// Many machines, with all that may be missing, or nothing.
///
/// The kernel's own records tell at once of a switch that it leaves out. Programs are told nothing of it: it shows in
/// the number of the next switch of its CPU, or in where the CPU stands. Some machines do not tell where their CPUs
/// stand, as one whose CPU goes offline before the end.
fn machines(faults: bool) -> impl Iterator<Item = Machine> {
    (1..=150_u64).map(move |seed| {
        let mut machine = Machine::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), faults);
        machine.leaves_out = faults;
        machine.stands = !(faults && seed % 3 == 0);
        machine.run(600);
        if faults {
            (0..machine.below(6)).for_each(|_| machine.lose());
            (0..machine.below(4)).for_each(|_| machine.delay());
        }
        machine
    })
}

/// The times of each thread add up to the wall time, and all is true that is not unknown.
#[test]
fn times_add_up_and_nothing_is_false_whatever_is_missing() {
    for by in BOTH {
        let (mut known, mut left_out) = (0, 0);
        for machine in machines(true) {
            left_out += machine.left_out;
            for most in [usize::MAX, 300] {
                let (account, seen) = machine.account(by, most);
                for who in seen {
                    let did = did(&account, who, 0, machine.now);
                    assert!(did.windows(2).all(|pair| pair[0].to == pair[1].from), "{who:?}: {did:?}");
                    let sum = did.iter().map(|stretch| stretch.to - stretch.from).sum::<u64>();
                    assert_eq!(sum, machine.now, "{who:?}: {did:?}");
                    did.iter().for_each(|stretch| machine.check(who, stretch));
                    let has_end = |stretch: &&Stretch<What>| matches!(stretch.what, What::Blocked { end: Some(_), .. });
                    known += did.iter().filter(has_end).count();
                }
            }
        }
        assert!(known > 10_000 && left_out > 1_000, "few waits are known by {by:?}: {known}; {left_out}");
    }
}

/// Who had a CPU adds up too, and nobody had more of it than in truth.
#[test]
fn nobody_has_more_of_a_cpu_than_in_truth() {
    for (by, mut machine) in BOTH.into_iter().flat_map(|by| machines(true).map(move |machine| (by, machine))) {
        let (account, _) = machine.account(by, usize::MAX);
        for _ in 0..20 {
            let from = machine.below(machine.now as usize) as u64;
            let (to, cpu) = (from + machine.below((machine.now - from) as usize + 1) as u64, machine.below(3) as u32);
            machine.check_cpu(&account, cpu, from, to);
        }
    }
}

/// If nothing is missing, all is known from the first fact on, and every wait has its waker.
#[test]
fn nothing_is_unknown_where_nothing_is_missing() {
    for (by, machine) in BOTH.into_iter().flat_map(|by| machines(false).map(move |machine| (by, machine))) {
        let (account, seen) = machine.account(by, usize::MAX);
        for who in seen {
            let did = did(&account, who, 0, machine.now);
            did.iter().for_each(|stretch| machine.check(who, stretch));
            let is_known = |stretch: &&Stretch<What>| !matches!(stretch.what, What::Unknown(_));
            let first = did.iter().position(|stretch| is_known(&stretch)).unwrap_or(did.len());
            let is_whole = |stretch: &Stretch<What>| match &stretch.what {
                What::Unknown(cause) => *cause == Cause::Gone,
                What::Blocked { end, .. } => end.is_some() || stretch.to == machine.now,
                _ => true,
            };
            let last = did.len().saturating_sub(1).max(first);
            assert!(did[first..last].iter().all(is_whole), "{by:?} {who:?}: {did:?}");
        }
    }
}

/// Both sources tell the same of the same machine, at each moment of which both know something. They differ in this:
/// tracepoints tell who runs before the first switch of a CPU if it makes a call, and in which call a thread waits only
/// if they have told of one before. Programs tell it for each wait.
#[test]
fn both_sources_tell_the_same_where_nothing_is_missing() {
    let (mut both, mut calls) = (0, 0);
    for machine in machines(false) {
        let [by_tracepoints, by_programs] = BOTH.map(|by| machine.account(by, usize::MAX));
        let parts = |(account, seen): &(Account, BTreeSet<Who>), number| -> Vec<Stretch<What>> {
            let lives = seen.iter().filter(|who| who.thread == number);
            let did = lives.flat_map(|who| did(account, *who, 0, machine.now));
            did.filter(|stretch| !matches!(stretch.what, What::Unknown(_))).collect()
        };
        for number in 1..30 {
            let [one, other] = [&by_tracepoints, &by_programs].map(|of| parts(of, number));
            for (known, told) in one.iter().flat_map(|known| other.iter().map(move |told| (known, told))) {
                if known.from >= told.to || told.from >= known.to {
                    continue;
                }
                both += 1;
                let is_same = match (&known.what, &told.what) {
                    (What::Runs { cpu }, What::Runs { cpu: other }) => cpu == other,
                    (What::Ready { cpu, .. }, What::Ready { cpu: other, .. }) => cpu == other,
                    (What::Blocked { call: one, why, .. }, What::Blocked { call: other, why: of, .. }) => {
                        calls += u64::from(*one == In::Unknown && *other != In::Unknown);
                        why == of && (*one == In::Unknown || one == other)
                    }
                    _ => false,
                };
                assert!(is_same, "{number}: {known:?} {told:?}");
            }
        }
    }
    assert!(both > 10_000 && calls > 0, "{both} {calls}");
}

/// Ten thousand threads take no more than what was said.
#[test]
fn memory_is_bounded() {
    assert!(size_of::<Stretch<What>>() <= 72 && size_of::<Stretch<Has>>() <= 72);
    let mut account = Account::new(1_000);
    for round in 0..20 {
        for thread in 1..=10_000_u32 {
            let time = u64::from(round * 10_000 + thread) * 10;
            account.switches(time, 0, 0, Some((Why::Ready, 0)), thread);
            account.switches(time + 5, 0, thread, Some((Why::Asleep, thread)), 0);
        }
    }
    let (end, who) = (account.newest(), account.who(10_000).unwrap());
    // A fact adds a few before the oldest are dropped.
    assert!(account.kept() <= 1_008, "{}", account.kept());
    let all = did(&account, who, 0, end);
    assert_eq!(all[0].what, What::Unknown(Cause::Forgotten), "{all:?}");
    assert_eq!(all.last().unwrap().what, What::Runs { cpu: 0 }, "{all:?}");
    assert_eq!(did(&account, account.who(5).unwrap(), 0, 10).len(), 1);
    // A thread is kept while it lives, and after its end as long as something of it is.
    assert_eq!(account.threads(), 10_000);
    for thread in 1..=10_000_u32 {
        account.switches(end + u64::from(thread) * 10, 0, thread, None, 0);
    }
    assert!(account.kept() <= 1_008 && account.threads() <= 1_008, "{} {}", account.kept(), account.threads());
}

/// A switch without a record is of few threads, however many there are that sleep.
#[test]
fn few_are_looked_at_where_a_switch_has_no_record() {
    const SLEEPERS: u32 = 10_000;
    let mut account = Account::new(1_000);
    let mut time = 0;
    let mut next = || {
        time += 1;
        time
    };
    for thread in 10..10 + SLEEPERS {
        account.switches(next(), 0, 0, Some((Why::Ready, 0)), thread);
        account.switches(next(), 0, thread, Some((Why::Asleep, thread)), 0);
    }
    for round in 1..=1_000 {
        let [first, second] = [next(), next()];
        account.switches(first, 1, 0, Some((Why::Ready, 0)), 7);
        account.wakes(second, 1, 8, 7, None, (7, Some(7)));
        account.unseen(second, 0, first);
        account.switches(next(), 1, 7, Some((Why::Asleep, 7)), 0);
        assert!(account.looked_at() <= 4 * round, "{} in {round} rounds", account.looked_at());
    }
    assert!(account.looked_at() >= 1_000);
}

/// A thread, on which CPU it runs then, since when it could, when it runs, and who ran there meanwhile for how long.
type Wait = (u64, u64, u64, u64, BTreeMap<String, u64>);

/// What a schedule of the table comes to, by thread.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// What it does off a CPU, from when to when.
    off: BTreeSet<(u64, String, u64, u64)>,
    waits: BTreeSet<Wait>,
}

/// A schedule as the table has it.
fn told(account: &mut Account, told: &[Value]) {
    let number = |fact: &Value, at: usize| u32::try_from(fact[at].as_i64().unwrap()).unwrap();
    for fact in told {
        let (time, cpu, of) = (fact[0].as_u64().unwrap(), number(fact, 1), number(fact, 3));
        match fact[2].as_str().unwrap() {
            "switches" => {
                let why = why(fact[4].as_i64().unwrap());
                account.switches(time, cpu, of, why.map(|why| (why, of)), number(fact, 5));
            }
            "wakes" => account.wakes(time, cpu, of, 0, Some(HARD), (0, Some(0))),
            "lost" => drop(account.lost(Some(cpu), Some(of.into()))),
            other => panic!("{other}"),
        }
    }
}

/// What the account knows to have ended, of one thread.
fn outcome(account: &Account, who: Who, end: u64) -> Outcome {
    let (mut outcome, did) = (Outcome::default(), did(account, who, 0, end));
    let thread = u64::from(who.thread);
    let mut since = None;
    for (at, Stretch { from, to, what }) in did.iter().enumerate() {
        let (before, next) = (at.checked_sub(1).map(|at| &did[at].what), did.get(at + 1).map(|next| &next.what));
        let runs = matches!(next, Some(What::Runs { .. }));
        let reason = match what {
            What::Blocked { why: Why::Asleep, end: Some(_), .. } => "sleeping",
            What::Blocked { why: Why::Disk, end: Some(_), .. } => "uninterruptible",
            What::Blocked { why: Why::Stopped, end: Some(_), .. } => "stopped",
            What::Blocked { why: Why::Other, end: Some(_), .. } => "parked",
            // A part of it may be a quota's.
            What::Ready { taken_off: true, .. } if !runs => {
                since.get_or_insert(*from);
                continue;
            }
            What::Ready { taken_off: true, .. } => "preempted",
            What::Ready { cpu: Some(cpu), .. } if runs => {
                let name = |has| match has {
                    Has::Idle => Some("0".to_owned()),
                    Has::Thread(who) => Some(who.thread.to_string()),
                    Has::Unknown(_) => None,
                };
                let had = account.had(*cpu, *from, *to).into_iter().filter_map(|(has, time)| Some((name(has)?, time)));
                outcome.waits.insert((thread, u64::from(*cpu), *from, *to, had.collect()));
                // That it slept before is not known, unless records are lost.
                if matches!(before, None | Some(What::Unknown(Cause::First | Cause::Unseen | Cause::Gone))) {
                    continue;
                }
                "ready"
            }
            _ => {
                since = None;
                continue;
            }
        };
        outcome.off.insert((thread, reason.to_owned(), since.take().unwrap_or(*from), *to));
    }
    outcome
}

/// The archive's queries compute the same in SQL: its tests read the same table.
#[test]
fn schedules_come_to_what_the_archives_queries_say() {
    let table: Vec<Value> = serde_json::from_str(include_str!("schedules.json")).unwrap();
    for schedule in &table {
        let mut account = Account::new(usize::MAX);
        told(&mut account, schedule["told"].as_array().unwrap());
        let mut all = Outcome::default();
        for who in account.known_threads() {
            let one = outcome(&account, who, account.newest() + 1);
            all.off.extend(one.off);
            all.waits.extend(one.waits);
        }
        let expected = Outcome {
            off: serde_json::from_value(schedule["off"].clone()).unwrap(),
            waits: serde_json::from_value(schedule["waits"].clone()).unwrap(),
        };
        assert_eq!(all, expected, "{}", schedule["about"]);
    }
}
