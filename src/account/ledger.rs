//! The ledger: an account of everything that was written.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// An account of everything that was written into one CPU's rings, as far as the crate can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Account {
    /// The CPU. `None` for all CPUs together.
    pub cpu: Option<u32>,
    /// Records yielded.
    pub yielded: u64,
    /// Records before the heads of the last refresh that are not yielded yet. This includes records that the refresh left unindexed because
    /// memory was used up ([`WhenFull::Copy`](crate::WhenFull::Copy)).
    pub held: u64,
    /// Records that the kernel dropped because of a full ring, paused output, or a size that can never fit. The loss of a record that did
    /// not fit an empty ring is reported with the next record, at the next flush, or here.
    pub lost: u64,
    /// Lost records that no event has reported yet, since no record has followed them.
    pub untold: u64,
    /// Whether all losses are counted: `lost` is the kernel's own count (`PERF_FORMAT_LOST`), up to the last record. If not, it is the sum of
    /// the LOST records, without the latest losses: for adopted rings, kernels before 6.0, and events that sample
    /// `PERF_SAMPLE_READ`. Nothing counts what a BPF ring buffer refuses, unless its programs do
    /// ([`Rings::count_failures`](crate::Rings::count_failures)). False also while a program has not committed what it reserved there: what
    /// lies after that is not counted.
    pub exact: bool,
    /// Damage events. Each stands for at least one lost record.
    pub damaged: u64,
    /// Missing numbers: declared gaps, and holes before held records. 0 without
    /// [`Order::numbers`](crate::Order::numbers).
    pub missing: u64,
    /// Missing numbers beyond those that `lost` explains: outputs that failed for another reason than a full ring, damage, or numbers drawn
    /// and not written. If records without numbers share the ring, their losses explain missing numbers too.
    pub unexplained: u64,
    /// How often so many records were lost that a counter of this width may have wrapped around without being noticed. The crate then does
    /// not know how many numbers are missing ([`AnomalyKind::Wraparound`](crate::AnomalyKind::Wraparound)).
    pub wraparounds: u64,
    /// How long the CPU has been online without being traced, at most: before the reader noticed it, or because its ring or events could not be
    /// opened ([`Untraced`](crate::Untraced)). The events of that time are not counted. For all CPUs together, the sum.
    pub untraced: Duration,
}

impl Account {
    /// An account of nothing.
    pub(crate) fn new(cpu: Option<u32>) -> Self {
        let (yielded, held, lost, untold) = Default::default();
        let (damaged, missing, unexplained, wraparounds) = Default::default();
        Self {
            cpu,
            yielded,
            held,
            lost,
            untold,
            exact: true,
            damaged,
            missing,
            unexplained,
            wraparounds,
            untraced: Duration::ZERO,
        }
    }

    /// How many records were written, or would have been written into a larger ring: yielded, held and lost records together.
    pub fn written(&self) -> u64 {
        self.yielded.saturating_add(self.held).saturating_add(self.lost)
    }

    /// Whether every missing number is explained, no damage occurred, and the CPU was traced all the time. Records that the kernel dropped
    /// count as explained. [`Account::is_complete`] says whether there were any.
    pub fn is_balanced(&self) -> bool {
        self.unexplained == 0 && self.damaged == 0 && self.wraparounds == 0 && self.untraced.is_zero()
    }

    /// Whether it is certain that everything written was yielded or is held: all losses are counted ([`Account::exact`]), and there was no
    /// loss, no missing number, no damage, and no time without tracing.
    pub fn is_complete(&self) -> bool {
        self.exact && self.misses_nothing_known()
    }

    /// This account with `refused` fewer unexplained numbers. `refused` is the programs' own count of outputs that failed without the
    /// kernel's counting them ([`Ledger`]). Outputs that failed after the last record seen leave no hole, so `refused` may be larger than
    /// `unexplained`.
    pub fn explained(mut self, refused: u64) -> Self {
        self.unexplained = self.unexplained.saturating_sub(refused);
        self
    }

    fn misses_nothing_known(&self) -> bool {
        self.lost == 0 && self.missing == 0 && self.is_balanced()
    }
}

impl Default for Account {
    /// An account of nothing, of all CPUs together.
    fn default() -> Self {
        Self::new(None)
    }
}

/// The sum of two accounts. The CPU stays that of the first.
impl AddAssign<&Self> for Account {
    fn add_assign(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.yielded, other.yielded),
            (&mut self.held, other.held),
            (&mut self.lost, other.lost),
            (&mut self.untold, other.untold),
            (&mut self.damaged, other.damaged),
            (&mut self.missing, other.missing),
            (&mut self.unexplained, other.unexplained),
            (&mut self.wraparounds, other.wraparounds),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.exact = self.exact && other.exact;
        self.untraced = self.untraced.saturating_add(other.untraced);
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cpu {
            Some(cpu) => write!(f, "CPU {cpu}: ")?,
            None => f.write_str("all: ")?,
        }
        let Self { yielded, held, lost, untold, damaged, missing, unexplained, wraparounds, .. } = self;
        let about = if self.exact { "" } else { "at least " };
        write!(f, "{about}{} written: {yielded} yielded, {held} held", self.written())?;
        if self.misses_nothing_known() {
            return f.write_str(if self.exact { "; nothing is missing" } else { "; nothing is known to be missing" });
        }
        write!(f, ", {about}{lost} LOST by the kernel ({untold} not told yet)")?;
        if *missing > 0 {
            write!(f, ", {missing} numbers missing")?;
        }
        if self.is_balanced() {
            return f.write_str("; INCOMPLETE, but all of that is accounted for");
        }
        f.write_str("; INCOMPLETE, and NOT ACCOUNTED FOR: ")?;
        let mut separator = "";
        for (count, what) in [
            (unexplained, "missing numbers that no loss explains"),
            (damaged, "damaged stretches"),
            (wraparounds, "times that so much was lost that the numbers do not say how much"),
        ] {
            if *count > 0 {
                write!(f, "{separator}{count} {what}")?;
                separator = ", ";
            }
        }
        if !self.untraced.is_zero() {
            write!(f, "{separator}{:?} in which nothing of an online CPU was traced", self.untraced)?;
        }
        Ok(())
    }
}

/// An account of everything that was written into all rings. Its text is one line. This crate itself drops nothing. With
/// [`WhenFull::Discard`](crate::WhenFull::Discard) the kernel drops what does not fit.
///
/// # What the kernel does not count
///
/// A `bpf_perf_event_output` that fails with anything but `-ENOSPC` leaves no trace in any ring: `-ENOENT` (the CPU's slot is empty),
/// `-EOPNOTSUPP` (its event is another CPU's, disabled, or died with its CPU), `-E2BIG` (the map has no such slot), `-EBUSY` (nested too
/// deep), `-EINVAL`. A program that draws a number and ends before its output leaves no trace either.
///
/// With numbers, these failures show as unexplained gaps. To explain them, a program counts its failed outputs in a map. Its reader
/// subtracts that count from the account: [`Account::explained`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ledger {
    /// The account of each CPU, in their order.
    pub accounts: Vec<Account>,
    /// The account of numbers of the whole machine whose CPUs are not known ([`Hold::Dense`](crate::Hold)).
    pub machine: Account,
    /// Whether records have numbers of their CPU ([`Order::numbers`](crate::Order::numbers)).
    pub numbers: bool,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { accounts: Vec::new(), machine: Account::new(None), numbers: false }
    }
}

impl Ledger {
    /// The account of all CPUs together, including the missing numbers of the whole machine.
    pub fn total(&self) -> Account {
        self.rows().fold(Account::new(None), |mut total, account| {
            total += account;
            total
        })
    }

    /// An empty ledger, with its memory.
    pub(crate) fn clear(&mut self) {
        self.accounts.clear();
        (self.machine, self.numbers) = (Account::new(None), false);
    }

    /// Says that records have numbers of their CPU.
    pub(crate) fn with_numbers(&mut self) {
        self.numbers = true;
    }

    /// The account of each CPU, and that of the whole machine.
    fn rows(&self) -> impl Iterator<Item = &Account> {
        self.accounts.iter().chain([&self.machine])
    }

    /// Whether each account is balanced, and every missing number of the whole machine is explained.
    pub fn is_balanced(&self) -> bool {
        self.rows().all(Account::is_balanced)
    }

    /// Whether it is certain that everything written was yielded or is held: [`Account::is_complete`] of each account. False if any ring's
    /// losses are not counted, and so for what a [`Handle`](crate::Handle) gives, which asks the kernel nothing, and for a recording.
    pub fn is_complete(&self) -> bool {
        self.rows().all(Account::is_complete)
    }

    /// Adds the time for which a CPU was not traced. The CPU may have no ring.
    pub(crate) fn add_untraced(&mut self, account: Account) {
        match self.accounts.binary_search_by_key(&account.cpu, |other| other.cpu) {
            Ok(at) => self.accounts[at] += &account,
            Err(at) => self.accounts.insert(at, account),
        }
    }

    /// Adds missing numbers of the whole machine, after all CPUs have their accounts.
    pub(crate) fn add_machine(&mut self, missing: u64) {
        // The last loss on one CPU is missing after the numbers of another.
        let lost = self.accounts.iter().fold(0u64, |sum, account| sum.saturating_add(account.lost));
        self.machine = Account { missing, unexplained: missing.saturating_sub(lost), ..self.machine };
    }

    /// Adds a ring to the account of its CPU.
    pub(crate) fn add(&mut self, account: Account) {
        match self.accounts.last_mut() {
            Some(last) if last.cpu == account.cpu => *last += &account,
            _ => self.accounts.push(account),
        }
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.total().fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Account, Ledger};
    use std::time::Duration;

    fn account(cpu: u32, each: u64) -> Account {
        let (yielded, held, lost, untold) = (100 * each, 3 * each, 4 * each, 5 * each);
        let (damaged, missing, unexplained, wraparounds) = (6 * each, 7 * each, 8 * each, 9 * each);
        let (cpu, exact, untraced) = (Some(cpu), true, Duration::from_secs(each));
        Account { cpu, yielded, held, lost, untold, exact, damaged, missing, unexplained, wraparounds, untraced }
    }

    fn ledger(accounts: impl IntoIterator<Item = Account>) -> Ledger {
        let mut ledger = Ledger::default();
        accounts.into_iter().for_each(|account| ledger.add(account));
        ledger
    }

    #[test]
    fn rings_of_one_cpu_share_its_account() {
        let ledger = ledger([account(0, 1), account(2, 10), account(2, 20), account(3, 5)]);
        assert_eq!(ledger.accounts, [account(0, 1), account(2, 30), account(3, 5)]);
        assert_eq!(ledger.total(), Account { cpu: None, ..account(0, 36) });
        assert_eq!(ledger.total().written(), 107 * 36);
    }

    #[test]
    fn what_one_ring_does_not_count_nobody_knows() {
        let unknown = Account { exact: false, ..Account::new(Some(2)) };
        let exact = |accounts: [Account; 2]| {
            let ledger = ledger(accounts);
            (ledger.accounts.iter().map(|account| account.exact).collect::<Vec<_>>(), ledger.total().exact)
        };
        assert_eq!(exact([account(2, 1), account(2, 1)]), (vec![true], true));
        assert_eq!(exact([account(2, 1), unknown]), (vec![false], false));
        assert_eq!(exact([unknown, account(2, 1)]), (vec![false], false));
        assert_eq!(exact([unknown, account(3, 1)]), (vec![false, true], false));
        // What is not counted may be missing.
        let silent = Account { yielded: 3, ..Account::new(Some(3)) };
        assert!(ledger([silent, silent]).is_complete() && !ledger([unknown, silent]).is_complete());
        assert!(!unknown.is_complete() && unknown.is_balanced());
        assert_eq!(
            ledger([unknown, Account { yielded: 3, ..Account::new(Some(3)) }]).to_string(),
            "all: at least 3 written: 3 yielded, 0 held; nothing is known to be missing"
        );
        let lost = Account { lost: 2, untold: 1, ..unknown };
        assert_eq!(
            lost.to_string(),
            "CPU 2: at least 2 written: 0 yielded, 0 held, at least 2 LOST by the kernel (1 not told yet); \
             INCOMPLETE, but all of that is accounted for"
        );
    }

    /// A CPU that is not traced has an account, even without a ring.
    #[test]
    fn what_was_not_traced_is_in_the_account_of_its_cpu() {
        let untraced = |cpu, seconds| Account { untraced: Duration::from_secs(seconds), ..Account::new(Some(cpu)) };
        let mut ledger = ledger([account(0, 1), account(2, 1)]);
        for untraced in [untraced(2, 5), untraced(1, 4), untraced(3, 1)] {
            ledger.add_untraced(untraced);
        }
        let times: Vec<_> = ledger
            .accounts
            .iter()
            .map(|account| (account.cpu.unwrap(), account.untraced.as_secs(), account.yielded))
            .collect();
        assert_eq!(times, [(0, 1, 100), (1, 4, 0), (2, 6, 100), (3, 1, 0)]);
        assert_eq!(ledger.total().untraced.as_secs(), 12);
    }

    /// Each fault alone is enough.
    #[test]
    fn what_is_wrong_anywhere_is_said() {
        let good = Account { yielded: 5, held: 2, ..Account::new(Some(0)) };
        assert!(
            good.is_complete() && good.is_balanced() && ledger([good]).is_complete() && ledger([good]).is_balanced()
        );
        let at = |change: fn(&mut Account)| {
            let mut account = good;
            change(&mut account);
            let ledger = ledger([good, Account { cpu: Some(1), ..account }]);
            assert_eq!(ledger.is_balanced(), account.is_balanced());
            assert_eq!(ledger.is_complete(), account.is_complete());
            (account.is_balanced(), account.is_complete(), account.to_string())
        };
        let begin = "CPU 0: 7 written: 5 yielded, 2 held";
        let lost = ", 0 LOST by the kernel (0 not told yet)";
        let wrong = "; INCOMPLETE, and NOT ACCOUNTED FOR: ";
        assert_eq!(at(|_| {}), (true, true, format!("{begin}; nothing is missing")));
        let uncounted = "CPU 0: at least 7 written: 5 yielded, 2 held; nothing is known to be missing".to_string();
        assert_eq!(at(|account| account.exact = false), (true, false, uncounted));
        assert!(!at(|account| account.lost = 1).1);
        let missing = format!("{begin}{lost}, 1 numbers missing; INCOMPLETE, but all of that is accounted for");
        assert_eq!(at(|account| account.missing = 1), (true, false, missing));
        let damaged = format!("{begin}{lost}{wrong}1 damaged stretches");
        assert_eq!(at(|account| account.damaged = 1), (false, false, damaged));
        let several = format!(
            "{begin}{lost}{wrong}2 missing numbers that no loss explains, 3 times that so much was lost that the numbers do not \
             say how much"
        );
        assert_eq!(at(|account| (account.unexplained, account.wraparounds) = (2, 3)), (false, false, several));
        let untraced = format!("{begin}{lost}{wrong}1.5s in which nothing of an online CPU was traced");
        assert_eq!(at(|account| account.untraced = Duration::from_millis(1500)), (false, false, untraced));
        let explained = Account { unexplained: 3, ..good };
        assert_eq!([2, 3, 4].map(|refused| explained.explained(refused).is_balanced()), [false, true, true]);
        // Of the whole machine.
        let of_all = |missing| {
            let mut ledger = ledger([Account { lost: 3, ..good }]);
            ledger.add_machine(missing);
            let total = ledger.total();
            assert_eq!(total.missing, missing);
            assert_eq!(total.unexplained, u64::from(missing > 3));
            (ledger.is_balanced(), total.is_balanced())
        };
        assert_eq!([3, 4].map(of_all), [(true, true), (false, false)]);
        let mut ledger = ledger([good]);
        ledger.add_machine(1);
        assert!(!ledger.is_complete());
    }
}
