//! The events of a reader, compared with the writers' counts.

use crate::writers::Outputs;
use perfweave::{Account, AnomalyKind, Certainty, Event, Gap, Item, SequenceAnomaly, Status};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What the stream told of one counter's numbers: that they are there, or missing.
#[derive(Clone, Default)]
struct Seen {
    yielded: u64,
    missing: u64,
    /// The sum of all these numbers, modulo 2^128: that they are the right ones.
    sum: u128,
    /// Behind the largest of them.
    next: u64,
    /// What was told missing and has not come after all: the last number by the first.
    gaps: BTreeMap<u64, u64>,
}

impl Seen {
    /// A number came. Whether it had been told missing.
    fn comes(&mut self, number: u64) -> bool {
        self.yielded += 1;
        self.next = self.next.max(number + 1);
        let Some((&first, &last)) = self.gaps.range(..=number).next_back().filter(|(_, last)| **last >= number) else {
            self.sum = self.sum.wrapping_add(number.into());
            return false;
        };
        self.gaps.remove(&first);
        if first < number {
            self.gaps.insert(first, number - 1);
        }
        if number < last {
            self.gaps.insert(number + 1, last);
        }
        self.missing -= 1;
        true
    }

    fn is_missing(&mut self, gap: &Gap) {
        self.missing += gap.count;
        let ends = u128::from(gap.first) + u128::from(gap.last);
        self.sum = self.sum.wrapping_add(ends * u128::from(gap.count) / 2);
        self.gaps.insert(gap.first, gap.last);
    }

    /// Whether this is all there is to tell of a counter from which so many numbers were drawn, of which so many were
    /// not written. What is missing behind the last that was written shows no gap.
    fn is_all_of(&self, drawn: u64, gone: u64) -> bool {
        let next = u128::from(self.next);
        self.yielded + self.missing == self.next
            && self.sum == next * next.saturating_sub(1) / 2
            && self.missing + (drawn - self.next) == gone
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { yielded, missing, next, gaps, .. } = self;
        let some: Vec<_> = gaps.iter().take(4).collect();
        write!(f, "{yielded} came, {missing} told missing in {} gaps, {some:?} first, next {next}", gaps.len())
    }
}

/// What came out.
#[derive(Debug, Default)]
pub struct Tally {
    /// Whether numbers are the machine's, and gaps in them are told.
    dense: bool,
    /// Whether gaps in each CPU's numbers are told.
    numbers: bool,
    /// By CPU. The numbers of the whole machine are all in the first.
    seen: Vec<Seen>,
    /// Records, by CPU.
    pub yielded: Vec<u64>,
    /// What LOST events told, by CPU.
    lost: Vec<u64>,
    /// The largest key so far, and the largest that was called proven.
    largest: u64,
    proven: u64,
    pub late: u64,
    /// What is wrong, the first few.
    pub wrong: Vec<String>,
}

impl Tally {
    pub fn new(dense: bool, numbers: bool, slots: usize) -> Self {
        let seen = vec![Seen::default(); slots];
        Self { dense, numbers, seen, yielded: vec![0; slots], lost: vec![0; slots], ..Self::default() }
    }

    pub fn wrong(&mut self, what: String) {
        if self.wrong.len() < 10 {
            self.wrong.push(what);
        }
    }

    pub fn event(&mut self, event: &Event<'_>) {
        let cpu = event.cpu().unwrap_or(0) as usize;
        let seen = &mut self.seen[if self.dense { 0 } else { cpu }];
        match event.item() {
            Item::Record(record) => {
                let (own, machine) = match record.payload() {
                    Some(payload) => (payload.u64(8), payload.u64(0)),
                    None => (None, None),
                };
                let Some(number) = (if self.dense { machine } else { own }) else {
                    return self.wrong(format!("a record of other bytes: {event:?}"));
                };
                self.yielded[cpu] += 1;
                let found = seen.comes(number);
                if self.dense && found != (event.certainty() == Certainty::Late) {
                    self.wrong(format!("number {number} was told missing: {found}; {event:?}"));
                }
                self.order(event);
            }
            Item::Gap(gap) => seen.is_missing(&gap),
            // Of several that follow each other the first is told.
            Item::Anomaly(SequenceAnomaly { kind: AnomalyKind::Late, .. }) => {}
            Item::Lost(lost) => self.lost[lost.cpu as usize] += lost.count,
            // CPUs are taken away here. One that comes back is traced once the reader has noticed it; the ledger below
            // knows what it missed.
            Item::Untraced(untraced) if untraced.lasted.is_some() => {}
            _ => self.wrong(format!("unexpected: {event:?}")),
        }
    }

    fn order(&mut self, event: &Event<'_>) {
        let Some(key) = event.key() else { return self.wrong(format!("a record without a key: {event:?}")) };
        if event.certainty() == Certainty::Late {
            self.late += 1;
        } else if key < self.largest {
            self.wrong(format!("{key} behind {}, not called late: {event:?}", self.largest));
        }
        if key < self.proven {
            self.wrong(format!("{key} behind {}, which was called proven: {event:?}", self.proven));
        }
        self.largest = self.largest.max(key);
        if event.certainty() == Certainty::Proven {
            self.proven = self.proven.max(key);
        }
    }

    /// That everything written before a flush has come out.
    pub fn flushed(&mut self, written: &[u64]) {
        for (cpu, (yielded, written)) in self.yielded.clone().into_iter().zip(written).enumerate() {
            if yielded < *written {
                self.wrong(format!("CPU {cpu}: {yielded} of {written} before a flush came out before its report"));
            }
        }
    }

    /// That all that is known of each CPU agrees. Nobody writes any more; `flushed` if everything was to come out.
    pub fn balance(&mut self, ledger: &Status, outputs: &[Outputs], machine: u64, flushed: bool) {
        let mut gone = 0;
        for (cpu, of) in outputs.iter().enumerate() {
            let Outputs { drawn, written, no_space, refused } = *of;
            gone += no_space + refused;
            let Some(account) = ledger.accounts.iter().find(|account| account.cpu == Some(cpu as u32)) else {
                if written + no_space > 0 {
                    self.wrong(format!("CPU {cpu} has no account: {of:?}"));
                }
                continue;
            };
            let Account { yielded, held, lost, missing, .. } = *account;
            let seen = &self.seen[cpu];
            let told = self.lost[cpu];
            // The programs count what fails while a CPU that came back is not traced yet.
            let mut explained = account.explained(refused);
            explained.untraced = Duration::ZERO;
            let mut checks = vec![
                ("the count is exact", account.exact),
                ("nothing is unexplained", explained.is_balanced()),
                ("yielded and held are what was written", yielded + held == written),
                ("yielded is what came out", yielded == self.yielded[cpu]),
                ("lost is what found no room", lost == no_space),
                ("all that was drawn", drawn == written + no_space + refused),
            ];
            if flushed {
                checks.push(("nothing is held", held == 0));
                checks.push(("what was lost was told", told == lost));
                if self.numbers {
                    checks.push(("what is missing was told", missing == seen.missing));
                    checks.push(("each number", seen.is_all_of(drawn, lost + refused)));
                }
            }
            let failed: Vec<_> = checks.into_iter().filter(|(_, holds)| !holds).map(|(what, _)| what).collect();
            if !failed.is_empty() {
                let what = format!("CPU {cpu}, NOT SO: {failed:?}: {of:?}, {account:?}, {seen:?}, {told} told lost");
                self.wrong(what);
            }
        }
        if flushed && self.dense && !self.seen[0].is_all_of(machine, gone) {
            self.wrong(format!("numbers of the machine: {machine} drawn, {gone} gone, {:?}", self.seen[0]));
        }
    }
}
