//! What was concluded from records, as long as a loss may still make it void.
//!
//! A loss is told with the record behind it in its ring. What other CPUs wrote meanwhile comes before. What was
//! concluded from that may be wrong: what lies between two records that were joined may be among the lost ones.

use crate::times::Times;
use perfweave::{Certainty, Event, Item, Status};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

/// So many conclusions can be made void, the newest. Older ones stay.
const MOST: usize = 1 << 16;

/// A sum of conclusions.
pub trait Sum<T>: Clone + Default {
    fn take(&mut self, one: &T);
}

impl Sum<u64> for Times {
    fn take(&mut self, time: &u64) {
        self.add(*time);
    }
}

/// Sums of conclusions, by what they are about.
#[derive(Debug)]
pub struct Recent<K, T, S> {
    settled: HashMap<K, S>,
    /// With the times at which they were concluded, which do not fall.
    newest: VecDeque<(u64, K, T)>,
}

impl<K, T, S> Default for Recent<K, T, S> {
    fn default() -> Self {
        Self { settled: HashMap::new(), newest: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, T, S: Sum<T>> Recent<K, T, S> {
    pub fn add(&mut self, time: u64, about: K, one: T) {
        let time = self.newest.back().map_or(time, |(last, ..)| time.max(*last));
        self.newest.push_back((time, about, one));
        if self.newest.len() > MOST
            && let Some((_, about, one)) = self.newest.pop_front()
        {
            add(&mut self.settled, &about, &one);
        }
    }

    /// Nothing that was concluded after this time is so.
    pub fn void(&mut self, since: Option<u64>) {
        let Some(since) = since else { return };
        let is_so = self.newest.partition_point(|(time, ..)| *time <= since);
        self.newest.truncate(is_so);
    }

    /// Of what was concluded after this time, some is not so: by its time, and what it is.
    pub fn void_some(&mut self, since: u64, is_void: impl Fn(u64, &T) -> bool) {
        let first = self.newest.partition_point(|(time, ..)| *time <= since);
        let later = self.newest.split_off(first);
        self.newest.extend(later.into_iter().filter(|(time, _, one)| !is_void(*time, one)));
    }

    /// All that is so as far as it is known.
    pub fn sums(&self) -> HashMap<K, S> {
        let mut sums = self.settled.clone();
        self.newest.iter().for_each(|(_, about, one)| add(&mut sums, about, one));
        sums
    }
}

fn add<K: Clone + Eq + Hash, T, S: Sum<T>>(sums: &mut HashMap<K, S>, about: &K, one: &T) {
    match sums.get_mut(about) {
        Some(sum) => sum.take(one),
        None => sums.entry(about.clone()).or_default().take(one),
    }
}

/// The time of a record that comes late: what was concluded of a later time may be wrong without it.
pub fn late(event: &Event<'_>) -> Option<u64> {
    event.key().filter(|_| event.certainty() == Certainty::Late)
}

/// The last time of each CPU, the CPUs that are not traced, and those that have told nothing since a loss.
#[derive(Debug, Default)]
pub struct Last {
    times: HashMap<u32, u64>,
    untraced: BTreeSet<u32>,
    silent: BTreeSet<u32>,
}

impl Last {
    /// Takes an event. Gives the time after which what was concluded is void: a record came late, or records may be
    /// missing, and then nothing is joined across it.
    pub fn takes(&mut self, event: &Event<'_>) -> Option<u64> {
        match event.item() {
            Item::Record(record) => {
                self.times.extend(event.key().map(|time| (record.cpu(), time)));
                self.silent.remove(&record.cpu());
                late(event)
            }
            Item::Flushed { .. } => None,
            // Without a time: since the beginning.
            Item::Lost(lost) => {
                // Behind the CPU's last record so far, it lasts until the next one.
                self.silent.extend(event.key().is_none().then_some(lost.cpu));
                Some(lost.after.unwrap_or(0))
            }
            Item::Gap(gap) => Some(gap.after.unwrap_or(0)),
            Item::Untraced(one) => Some(self.untraced(one.cpu, one.since, one.lasted.is_none())),
            Item::Damage(damage) => Some(self.times.get(&damage.cpu).copied().unwrap_or(0)),
            _ => Some(self.times.values().copied().max().unwrap_or(0)),
        }
    }

    /// A CPU was not traced since then, and is not yet if this lasts.
    pub fn untraced(&mut self, cpu: u32, since: Option<u64>, lasts: bool) -> u64 {
        if lasts {
            self.untraced.insert(cpu);
        } else {
            self.untraced.remove(&cpu);
        }
        since.unwrap_or(0)
    }

    /// Whether records are missing as long as this lasts: nothing is concluded meanwhile.
    pub fn is_missing(&self) -> bool {
        !(self.untraced.is_empty() && self.silent.is_empty())
    }

    /// The same of losses that no event has told, because no record has followed them.
    pub fn unreported_since(&self, ledger: &Status) -> Option<u64> {
        let unreported = ledger.accounts.iter().filter(|account| account.unreported > 0);
        unreported.map(|account| account.cpu.and_then(|cpu| self.times.get(&cpu)).copied().unwrap_or(0)).min()
    }
}

/// Gives events one by one to a function.
#[cfg(test)]
pub type Story = fn(&mut dyn FnMut(&Event<'_>));

/// Events of two CPUs. Records of CPU 1 are lost after 10, which its record at 40 tells. CPU 0 writes at 20 and 30.
#[cfg(test)]
pub fn a_loss_in_between(mut each: impl FnMut(&perfweave::Event<'_>)) {
    use perfweave::{Hold, Merge, Order, sim};
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    kernel.emit(1, 10, &[]);
    kernel.lose(1, 7);
    kernel.emit(0, 20, &[]);
    kernel.emit(0, 30, &[]);
    kernel.emit(1, 40, &[]);
    merge.refresh(0);
    merge.batch().for_each(|event| each(&event));
}

/// Events of two CPUs. Records of CPU 1 are lost after 10, and the reader asks for that before CPU 0 writes at 20. CPU
/// 1 writes again at 40.
#[cfg(test)]
pub fn a_loss_that_lasts(mut each: impl FnMut(&perfweave::Event<'_>)) {
    use perfweave::{Hold, Merge, Order, sim};
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    for (cpu, time) in [(1, 10), (0, 20), (1, 40)] {
        kernel.emit(cpu, time, &[]);
        merge.refresh(0);
        merge.batch().for_each(|event| each(&event));
        if time == 10 {
            kernel.lose(1, 7);
            merge.refresh(0);
            assert!(merge.read_losses());
            merge.batch().for_each(|event| each(&event));
        }
    }
}

/// Events of two CPUs. A record of CPU 1 comes late: it is of 30, and CPU 0 has told that a thread left at 40.
#[cfg(test)]
pub fn a_late_record(mut each: impl FnMut(&perfweave::Event<'_>)) {
    use perf_event_open_sys::bindings;
    use perfweave::{Hold, Layout, Merge, Order, sim};
    // PERF_SAMPLE_TID and PERF_SAMPLE_TIME.
    let kernel = sim::Kernel::with(&[0, 1], 1 << 16, Layout::new(1 << 1 | 1 << 2, true, 0));
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    for (cpu, time) in [(0, 10), (0, 40), (1, 30), (0, 70)] {
        kernel.begin(cpu, time);
        // PERF_RECORD_MISC_SWITCH_OUT, and the next thread.
        kernel.write_other(
            cpu,
            bindings::PERF_RECORD_SWITCH_CPU_WIDE,
            1 << 13,
            &[9_u32, 9].map(u32::to_ne_bytes).concat(),
        );
        kernel.end(cpu);
        merge.refresh(0);
        merge.batch().for_each(|event| each(&event));
    }
}

#[cfg(test)]
mod tests {
    use super::{Last, MOST, Recent, a_late_record, a_loss_in_between, a_loss_that_lasts};
    use crate::times::Times;

    type Pairs = Recent<&'static str, u64, Times>;

    fn counts(pairs: &Pairs, about: &str) -> (u64, u64, u64) {
        pairs.sums().get(about).map_or((0, 0, 0), |times| (times.count, times.total, times.most))
    }

    #[test]
    fn what_a_loss_makes_void_is_in_no_sum() {
        let mut pairs = Pairs::default();
        pairs.add(10, "a", 1);
        pairs.add(20, "a", 2);
        pairs.add(30, "b", 3);
        // A record that came late: what is concluded from it is concluded now.
        pairs.add(25, "a", 100);
        assert_eq!((counts(&pairs, "a"), counts(&pairs, "b")), ((3, 103, 100), (1, 3, 3)));
        pairs.void(Some(20));
        assert_eq!((counts(&pairs, "a"), counts(&pairs, "b")), ((2, 3, 2), (0, 0, 0)));
        pairs.add(21, "b", 4);
        assert_eq!(counts(&pairs, "b"), (1, 4, 4));
        pairs.void(Some(0));
        assert!(pairs.sums().is_empty());
    }

    #[test]
    fn what_is_old_stays_and_takes_no_memory() {
        let mut pairs = Pairs::default();
        (0..MOST as u64 + 5).for_each(|time| pairs.add(time, "a", time));
        assert_eq!((pairs.newest.len(), counts(&pairs, "a").0), (MOST, MOST as u64 + 5));
        pairs.void(Some(0));
        assert_eq!(counts(&pairs, "a"), (5, 10, 4));
    }

    /// A CPU's loss comes with its next record. By then others have told of later times than that of the record before
    /// the loss.
    #[test]
    fn a_loss_says_since_when_records_are_missing() {
        let (mut last, mut seen) = (Last::default(), Vec::new());
        a_loss_in_between(|event| {
            let since = last.takes(event);
            seen.push((event.key(), since));
        });
        assert_eq!(
            seen,
            [(Some(10), None), (Some(20), None), (Some(30), None), (Some(40), Some(10)), (Some(40), None)]
        );
    }

    #[test]
    fn a_cpu_that_lost_its_last_records_is_silent_until_it_tells_something() {
        let (mut last, mut seen) = (Last::default(), Vec::new());
        a_loss_that_lasts(|event| {
            let since = last.takes(event);
            seen.push((event.key(), since, last.is_missing()));
        });
        let expected =
            [(Some(10), None, false), (None, Some(10), true), (Some(20), None, true), (Some(40), None, false)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_late_record_says_what_is_void() {
        let (mut last, mut seen) = (Last::default(), Vec::new());
        a_late_record(|event| seen.push((event.key(), last.takes(event))));
        assert_eq!(seen, [(Some(10), None), (Some(40), None), (Some(30), Some(30)), (Some(70), None)]);
    }
}
