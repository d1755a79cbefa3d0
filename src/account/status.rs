//! The status of a reader: the accounts of all CPUs, the other counts so far, and what the reader waits for.

use crate::account::cpu::Account;
use std::fmt;
use std::time::Duration;

/// What came of everything that was written, what a reader did so far, and what it waits for. Its text is one line on
/// what was written. This crate itself drops nothing. The kernel drops what does not fit into a ring.
///
/// [`Reader::status`](crate::Reader::status) and [`Handle::status`](crate::Handle::status) ask the kernel nothing. They
/// lack what was written since the last refresh and losses that no record has followed. So no account of theirs is
/// [`exact`](Account::exact), and [`is_complete`](Self::is_complete) is false.
/// [`Reader::ledger`](crate::Reader::ledger) refreshes and asks: it costs system calls and interrupts.
///
/// # What the kernel does not count
///
/// A `bpf_perf_event_output` that fails with anything but `-ENOSPC` leaves no trace in any ring: `-ENOENT` (the CPU's
/// slot is empty), `-EOPNOTSUPP` (its event is another CPU's, disabled, or died with its CPU), `-E2BIG` (the map has no
/// such slot), `-EBUSY` (nested too deep), `-EINVAL`. A program that draws a number and ends before its output leaves
/// no trace either.
///
/// With numbers, these failures show as unexplained gaps. To explain them, a program counts its failed outputs in a
/// map. Its reader subtracts that count from the account: [`Account::explained`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The account of each CPU, in their order.
    pub accounts: Vec<Account>,
    /// The account of numbers of the whole machine whose CPUs are not known ([`Hold::Dense`](crate::Hold)).
    pub machine: Account,
    /// Whether records have numbers of their CPU ([`Order::numbers`](crate::Order::numbers)).
    pub numbers: bool,
    /// Yielded records that were left out ([`Order::leave_out`](crate::Order::leave_out)), such as those about the tracer.
    pub left_out: u64,
    /// Bytes of memory that copies of held records took at the last refresh
    /// ([`Order::most_held`](crate::Order::most_held)).
    pub memory: usize,
    /// The largest `memory` at any refresh.
    pub most_memory: usize,
    /// How often the heads of all rings were loaded: refreshes.
    pub refreshes: u64,
    /// Fences that ended.
    pub fences: u64,
    /// Fences that failed. The next fence proves their events.
    pub fences_failed: u64,
    /// How often something else has proven in place of the [`Proof`](crate::Proof): a grace period of the kernel replaces
    /// writers' epochs if a program does not leave
    /// ([`ErrorKind::Degraded`](crate::ErrorKind::Degraded)).
    pub stand_ins: u64,
    /// How often the reader went to sleep.
    pub sleeps: u64,
    /// How often the reader woke before its own tick: because of a filled ring, an ended fence or a
    /// [`Handle`](crate::Handle).
    pub wakes: u64,
    /// Events that were seen and are held: records, losses and damage.
    pub held: usize,
    /// The CPU and key of the next event, if any is held ([`ANY_CPU`](crate::ANY_CPU) for a BPF ring buffer that CPUs
    /// share). Nothing is yielded before it. Under a fence rule it waits for writers on any CPU that may still write a
    /// smaller key. Under the dense rule it waits for the number before it.
    pub next: Option<(u32, u64)>,
    /// How long the fence under way has taken so far. `None` if no fence is under way.
    pub fence: Option<Duration>,
    /// The CPU of a BPF ring buffer in which a program has reserved bytes and not committed them yet, if a proof, a
    /// flush or a deadline waits for that, or has waited for it in vain: [`ANY_CPU`](crate::ANY_CPU) for one that all
    /// CPUs share.
    pub uncommitted: Option<u32>,
}

impl Status {
    /// The account of all CPUs together, including the missing numbers of the whole machine.
    pub fn total(&self) -> Account {
        self.accounts.iter().chain([&self.machine]).fold(Account::default(), |mut total, account| {
            total += account;
            total
        })
    }

    /// Whether it is certain that everything written was yielded or is held: [`Account::is_complete`] of all CPUs.
    /// False if any ring's losses are not counted, so for a recording, and if the kernel was not asked.
    pub fn is_complete(&self) -> bool {
        self.total().is_complete()
    }

    /// Adds a ring to the account of its CPU. Rings come in the order of CPUs.
    pub(crate) fn add(&mut self, account: Account) {
        match self.accounts.last_mut() {
            Some(last) if last.cpu == account.cpu => *last += &account,
            _ => self.accounts.push(account),
        }
    }

    /// Adds the time for which a CPU was not traced, after all rings. The CPU may have no ring.
    pub(crate) fn add_untraced(&mut self, cpu: u32, untraced: Duration) {
        let account = Account { cpu: Some(cpu), untraced, ..Account::default() };
        match self.accounts.binary_search_by_key(&account.cpu, |other| other.cpu) {
            Ok(at) => self.accounts[at] += &account,
            Err(at) => self.accounts.insert(at, account),
        }
    }

    /// The kernel was not asked, so nothing is certain.
    pub(crate) fn is_not_exact(&mut self) {
        self.accounts.iter_mut().chain([&mut self.machine]).for_each(|account| account.exact = false);
    }

    /// Explains missing numbers of the whole machine, after all CPUs have their accounts.
    pub(crate) fn explain_machine(&mut self) {
        // The last loss on one CPU is missing after the numbers of another.
        let lost = self.accounts.iter().fold(0u64, |sum, account| sum.saturating_add(account.lost));
        self.machine.unexplained = self.machine.missing.saturating_sub(lost);
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.total().fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Account, Status};
    use std::time::Duration;

    fn account(cpu: u32, each: u64) -> Account {
        let (yielded, held, lost, unreported) = (100 * each, 3 * each, 4 * each, 5 * each);
        let (damaged, missing, unexplained) = (6 * each, 7 * each, 8 * each);
        let (size, most_used, anomalies, late) = (10 * each, 11 * each, 12 * each, 13 * each);
        let needed = 14 * each;
        let (repaired, copied, untraced) = (15 * each, 16 * each, Duration::from_secs(each));
        Account {
            cpu: Some(cpu),
            size,
            most_used,
            needed,
            yielded,
            held,
            lost,
            unreported,
            exact: true,
            damaged,
            missing,
            unexplained,
            anomalies,
            late,
            max_late: cpu.into(),
            repaired,
            copied,
            untraced,
        }
    }

    fn of(cpu: u32) -> Account {
        Account { cpu: Some(cpu), ..Account::default() }
    }

    fn status(accounts: impl IntoIterator<Item = Account>) -> Status {
        let mut status = Status::default();
        accounts.into_iter().for_each(|account| status.add(account));
        status
    }

    #[test]
    fn rings_of_one_cpu_share_its_account() {
        let status = status([account(0, 1), account(2, 10), account(2, 20), account(3, 5)]);
        assert_eq!(status.accounts, [account(0, 1), account(2, 30), account(3, 5)]);
        assert_eq!(status.total(), Account { cpu: None, max_late: 3, ..account(0, 36) });
        assert_eq!(status.total().written(), 107 * 36);
    }

    #[test]
    fn what_one_ring_does_not_count_nobody_knows() {
        let unknown = Account { exact: false, ..of(2) };
        let exact = |accounts: [Account; 2]| {
            let status = status(accounts);
            (status.accounts.iter().map(|account| account.exact).collect::<Vec<_>>(), status.total().exact)
        };
        assert_eq!(exact([account(2, 1), account(2, 1)]), (vec![true], true));
        assert_eq!(exact([account(2, 1), unknown]), (vec![false], false));
        assert_eq!(exact([unknown, account(2, 1)]), (vec![false], false));
        assert_eq!(exact([unknown, account(3, 1)]), (vec![false, true], false));
        // What is not counted may be missing.
        let silent = Account { yielded: 3, ..of(3) };
        assert!(status([silent, silent]).is_complete() && !status([unknown, silent]).is_complete());
        assert!(!unknown.is_complete() && unknown.is_balanced());
        assert_eq!(
            status([unknown, Account { yielded: 3, ..of(3) }]).to_string(),
            "all: at least 3 written: 3 yielded, 0 held; nothing is known to be missing"
        );
        let lost = Account { lost: 2, unreported: 1, ..unknown };
        assert_eq!(
            lost.to_string(),
            "CPU 2: at least 2 written: 0 yielded, 0 held, at least 2 LOST by the kernel (1 not reported yet); \
             INCOMPLETE, but all of that is accounted for"
        );
    }

    /// A CPU that is not traced has an account, even without a ring.
    #[test]
    fn what_was_not_traced_is_in_the_account_of_its_cpu() {
        let mut status = status([account(0, 1), account(2, 1)]);
        for (cpu, seconds) in [(2, 5), (1, 4), (3, 1)] {
            status.add_untraced(cpu, Duration::from_secs(seconds));
        }
        let times: Vec<_> = status
            .accounts
            .iter()
            .map(|account| (account.cpu.unwrap(), account.untraced.as_secs(), account.yielded))
            .collect();
        assert_eq!(times, [(0, 1, 100), (1, 4, 0), (2, 6, 100), (3, 1, 0)]);
        assert_eq!(status.total().untraced.as_secs(), 12);
    }

    /// Each fault alone is enough.
    #[test]
    fn what_is_wrong_anywhere_is_said() {
        let good = Account { yielded: 5, held: 2, ..of(0) };
        assert!(
            good.is_complete()
                && good.is_balanced()
                && status([good]).is_complete()
                && status([good]).total().is_balanced()
        );
        let at = |change: fn(&mut Account)| {
            let mut account = good;
            change(&mut account);
            let status = status([good, Account { cpu: Some(1), ..account }]);
            assert_eq!(status.total().is_balanced(), account.is_balanced());
            assert_eq!(status.is_complete(), account.is_complete());
            (account.is_balanced(), account.is_complete(), account.to_string())
        };
        let begin = "CPU 0: 7 written: 5 yielded, 2 held";
        let lost = ", 0 LOST by the kernel (0 not reported yet)";
        let wrong = "; INCOMPLETE, and NOT ACCOUNTED FOR: ";
        assert_eq!(at(|_| {}), (true, true, format!("{begin}; nothing is missing")));
        let uncounted = "CPU 0: at least 7 written: 5 yielded, 2 held; nothing is known to be missing".to_string();
        assert_eq!(at(|account| account.exact = false), (true, false, uncounted));
        assert!(!at(|account| account.lost = 1).1);
        let missing = format!("{begin}{lost}, 1 numbers missing; INCOMPLETE, but all of that is accounted for");
        assert_eq!(at(|account| account.missing = 1), (true, false, missing));
        let damaged = format!("{begin}{lost}{wrong}1 damaged stretches");
        assert_eq!(at(|account| account.damaged = 1), (false, false, damaged));
        let several = format!("{begin}{lost}{wrong}2 missing numbers that no loss explains, 3 damaged stretches");
        assert_eq!(at(|account| (account.unexplained, account.damaged) = (2, 3)), (false, false, several));
        let untraced = format!("{begin}{lost}{wrong}1.5s in which nothing of an online CPU was traced");
        assert_eq!(at(|account| account.untraced = Duration::from_millis(1500)), (false, false, untraced));
        let explained = Account { unexplained: 3, ..good };
        assert_eq!([2, 3, 4].map(|refused| explained.explained(refused).is_balanced()), [false, true, true]);
        // Of the whole machine.
        let of_machine = |missing| {
            let mut status = status([Account { lost: 3, ..good }]);
            status.machine.missing = missing;
            status.explain_machine();
            let total = status.total();
            assert_eq!(total.missing, missing);
            assert_eq!(total.unexplained, u64::from(missing > 3));
            total.is_balanced()
        };
        assert_eq!([3, 4].map(of_machine), [true, false]);
        let mut status = status([good]);
        status.machine.missing = 1;
        status.explain_machine();
        assert!(!status.is_complete());
    }
}
