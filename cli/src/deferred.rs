//! Call chains whose program's part comes later (Linux 6.19). A sample has the kernel's frames and a number, the
//! cookie. When the thread returns to its program, or ends, the kernel writes a record with that number and the
//! program's frames: one record for all samples since the thread entered the kernel, also for those that come between
//! the record and the return (`kernel/unwind/deferred.c`).

use crate::convert::names::cookie;
use crate::failure::Failure;
use crate::numbers::ENDED;
use perf_event_open_sys::bindings;
use perfweave::{Event, Item, Order, Reader, Record, Rings};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// The addresses of a program's part, the innermost first.
pub type Chain = Rc<[u64]>;

/// A sample that waited, and its program's part; `None` if that does not come, or if it may be of another program.
pub type Told<T> = (T, Option<Chain>);

/// Samples that wait for their record.
///
/// A thread has one number at a time. So a sample waits until its thread has another number, is another program, or has
/// been made anew; until a loss, which may have been of the record or of any of these; or until the end. The record may
/// come after that of the thread's end (`do_exit`). The kernel tells a loss with the next record of the same ring:
/// what records of other CPUs have joined until then stays joined.
#[derive(Debug)]
pub struct Waits<T> {
    threads: HashMap<u32, Thread>,
    /// With their threads, in the order in which they came.
    samples: BTreeMap<u64, (u32, T)>,
    next: u64,
    /// So many wait at most: then the oldest waits no more.
    most: usize,
}

#[derive(Debug)]
struct Thread {
    cookie: u64,
    /// What has come for this number.
    chain: Option<Chain>,
    /// The samples that wait for it, the oldest first.
    waiting: VecDeque<u64>,
    has_ended: bool,
}

impl Thread {
    fn new(cookie: u64, chain: Option<Chain>) -> Self {
        Self { cookie, chain, waiting: VecDeque::new(), has_ended: false }
    }
}

impl<T> Waits<T> {
    pub fn new(most: usize) -> Self {
        Self { threads: HashMap::new(), samples: BTreeMap::new(), next: 0, most }
    }

    /// Takes a sample of a thread with a number, and gives those that wait no more.
    pub fn sample(&mut self, tid: u32, cookie: u64, sample: T) -> Vec<Told<T>> {
        // In a PID namespace, threads from outside have one number, and one that has ended has none.
        if tid == 0 || tid == ENDED {
            return vec![(sample, None)];
        }
        let mut told = Vec::new();
        if self.threads.get(&tid).is_some_and(|thread| thread.cookie != cookie) {
            told = self.give_up(tid);
        }
        let thread = self.threads.entry(tid).or_insert_with(|| Thread::new(cookie, None));
        if thread.chain.is_some() {
            told.push((sample, thread.chain.clone()));
            return told;
        }
        thread.waiting.push_back(self.next);
        self.samples.insert(self.next, (tid, sample));
        self.next += 1;
        if self.samples.len() > self.most
            && let Some((_, (tid, oldest))) = self.samples.pop_first()
        {
            if let Entry::Occupied(mut thread) = self.threads.entry(tid) {
                // It is the oldest of its thread, too.
                thread.get_mut().waiting.pop_front();
                if thread.get().waiting.is_empty() {
                    thread.remove();
                }
            }
            told.push((oldest, None));
        }
        told
    }

    /// Takes an event that is no sample, and gives the samples that wait no more.
    pub fn event(&mut self, event: &Event<'_>) -> Vec<Told<T>> {
        match event.item() {
            Item::Record(record) => self.record(&record),
            Item::Flushed { .. } => Vec::new(),
            // What is lost may be a thread's next program.
            _ => self.end(),
        }
    }

    fn record(&mut self, record: &Record<'_>) -> Vec<Told<T>> {
        const EXEC: u16 = bindings::PERF_RECORD_MISC_COMM_EXEC as u16;
        let number = |at| record.body().u32(at);
        match record.kind() {
            bindings::PERF_RECORD_CALLCHAIN_DEFERRED => {
                let of = record.pid_tid().zip(addresses(record));
                of.map_or_else(Vec::new, |((_, tid), (cookie, chain))| self.came(tid, cookie, chain.into()))
            }
            // struct { u32 pid, tid; ... }
            bindings::PERF_RECORD_COMM if record.misc() & EXEC != 0 => {
                number(4).map_or_else(Vec::new, |tid| self.give_up(tid))
            }
            // struct { u32 pid, ppid, tid, ptid; ... }
            bindings::PERF_RECORD_FORK => number(8).map_or_else(Vec::new, |tid| self.give_up(tid)),
            bindings::PERF_RECORD_EXIT => {
                if let Some(tid) = number(8) {
                    self.ends(tid);
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn came(&mut self, tid: u32, cookie: u64, chain: Chain) -> Vec<Told<T>> {
        if self.threads.get(&tid).is_some_and(|thread| thread.cookie != cookie) {
            let told = self.give_up(tid);
            self.threads.insert(tid, Thread::new(cookie, Some(chain)));
            return told;
        }
        let thread = self.threads.entry(tid).or_insert_with(|| Thread::new(cookie, None));
        // Each event that asks for such records writes one.
        let chain = thread.chain.get_or_insert(chain).clone();
        let waited = std::mem::take(&mut thread.waiting);
        if thread.has_ended {
            self.threads.remove(&tid);
        }
        let waited = waited.iter().filter_map(|number| self.samples.remove(number));
        waited.map(|(_, sample)| (sample, Some(chain.clone()))).collect()
    }

    fn ends(&mut self, tid: u32) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.has_ended = true;
            if thread.waiting.is_empty() {
                self.threads.remove(&tid);
            }
        }
    }

    /// Nothing comes for what a thread has had until now.
    fn give_up(&mut self, tid: u32) -> Vec<Told<T>> {
        let waited = self.threads.remove(&tid).map_or_else(VecDeque::new, |thread| thread.waiting);
        waited.iter().filter_map(|number| self.samples.remove(number)).map(|(_, sample)| (sample, None)).collect()
    }

    /// All that wait. Nothing comes for them any more.
    pub fn end(&mut self) -> Vec<Told<T>> {
        self.threads.clear();
        std::mem::take(&mut self.samples).into_values().map(|(_, sample)| (sample, None)).collect()
    }
}

/// The number of a record and its addresses. `None` if it is of another kind, or ends before they do.
pub fn addresses(record: &Record<'_>) -> Option<(u64, Vec<u64>)> {
    if record.kind() != bindings::PERF_RECORD_CALLCHAIN_DEFERRED {
        return None;
    }
    // struct { u64 cookie; u64 nr; u64 ips[nr]; struct sample_id; }
    let body = record.body();
    let (cookie, count) = (body.u64(0)?, usize::try_from(body.u64(8)?).ok()?);
    let end = count.checked_mul(8)?.checked_add(16)?;
    let own = body.get(16..end).filter(|_| end + record.layout().trailer_len() <= body.len())?;
    (0..count).map(|at| own.u64(8 * at)).collect::<Option<Vec<_>>>().map(|chain| (cookie, chain))
}

/// The parts of a recording's samples, found by reading it once before.
#[derive(Debug, Default)]
pub struct Deferred {
    is_asked: bool,
    /// By thread, time and number of a sample. `None` if it lacks its part.
    parts: HashMap<(u32, u64, u64), Option<Chain>>,
}

/// The program's part of a sample's call chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// In the sample, if it has any.
    Own,
    Came(&'a [u64]),
    Missing,
}

impl Deferred {
    /// Whether events of a recording ask for such chains.
    pub fn is_asked(rings: &Rings) -> bool {
        rings.sources().iter().any(|source| source.attr().defer_callchain() != 0)
    }

    /// Reads the rings of a recording to their end.
    pub fn read(rings: Rings) -> Result<Self, Failure> {
        let mut reader = Reader::new(rings, Order::new())?;
        // The recording bounds how many wait.
        let (mut parts, mut waits, mut chains) = (HashMap::new(), Waits::new(usize::MAX), HashSet::<Chain>::new());
        // One by one: the memory of a batch goes back behind its last event, and a batch may have all of them.
        while let Some(guard) = reader.next()? {
            let event = guard.event();
            let told = match event.record().and_then(|record| of_sample(&record)) {
                Some(of) => waits.sample(of.0, of.2, of),
                None => waits.event(&event),
            };
            for (of, chain) in told {
                let chain = chain.map(|chain| match chains.get(&chain) {
                    Some(known) => known.clone(),
                    None => {
                        chains.insert(chain.clone());
                        chain
                    }
                });
                let part = parts.entry(of).or_insert_with(|| chain.clone());
                // Of one time, on both sides of an exec: nothing tells them apart.
                if *part != chain {
                    *part = None;
                }
            }
        }
        Ok(Self { is_asked: true, parts })
    }

    /// The program's part of a sample.
    pub fn part(&self, record: &Record<'_>) -> Part<'_> {
        if !self.is_asked || cookie(record).is_none() {
            return Part::Own;
        }
        let chain = of_sample(record).and_then(|of| self.parts.get(&of)?.as_ref());
        chain.map_or(Part::Missing, |chain| Part::Came(chain))
    }
}

/// The thread, time and number of a sample that has one.
fn of_sample(record: &Record<'_>) -> Option<(u32, u64, u64)> {
    let cookie = cookie(record)?;
    Some((record.pid_tid()?.1, record.time()?, cookie))
}

/// How many stacks had their program's part in a record of its own, and how many have none.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    all: u64,
    missing: u64,
}

impl Parts {
    pub fn count(&mut self, is_missing: bool) {
        self.all += 1;
        self.missing += u64::from(is_missing);
    }

    /// What is to be said of those without.
    pub fn note(&self) -> Option<String> {
        let Self { all, missing } = self;
        let words = || {
            format!(
                "{missing} of {all} stacks whose program's part comes later lack it: no record came for them, or it may \
                 be of another program"
            )
        };
        (*missing > 0).then(words)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use perfweave::{Layout, sim};
    use std::ops::ControlFlow;

    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    pub const PROGRAM: [u64; 2] = [0x40_1000, 0x40_2000];
    const CHAIN: u32 = bindings::PERF_RECORD_CALLCHAIN_DEFERRED;
    const EXEC: u16 = bindings::PERF_RECORD_MISC_COMM_EXEC as u16;

    /// Two CPUs on which threads run. Each record is a nanosecond after the last.
    pub struct Machine(pub sim::Kernel, u64);

    impl Machine {
        pub fn new() -> Self {
            let fields = bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_CALLCHAIN;
            Self(sim::Kernel::with(&[0, 1], 1 << 16, Layout::new(fields.into(), true, 0)), 0)
        }

        fn write(&mut self, cpu: u32, [pid, tid]: [u32; 2], write: impl FnOnce(&sim::Kernel)) -> u64 {
            let Self(kernel, time) = self;
            *time += 1;
            kernel.run(cpu, pid, tid);
            kernel.begin(cpu, *time);
            write(kernel);
            kernel.end(cpu);
            *time
        }

        /// A sample in the kernel, whose program's part comes later. Its time.
        pub fn sample(&mut self, cpu: u32, who: [u32; 2], cookie: u64) -> u64 {
            let chain = [0u64.wrapping_sub(128), KERNEL, 0u64.wrapping_sub(640), cookie];
            let words = [&[chain.len() as u64][..], &chain].concat();
            self.write(cpu, who, |kernel| assert!(kernel.write(cpu, &bytes(&words))))
        }

        /// The thread returns to its program.
        pub fn returns(&mut self, cpu: u32, who: [u32; 2], cookie: u64, program: &[u64]) {
            let words = [&[cookie, program.len() as u64][..], program].concat();
            self.other(cpu, who, CHAIN, 2, &bytes(&words));
        }

        fn other(&mut self, cpu: u32, who: [u32; 2], kind: u32, misc: u16, body: &[u8]) {
            self.write(cpu, who, |kernel| assert!(kernel.write_other(cpu, kind, misc, body)));
        }

        /// FORK and EXIT: process, parent, thread, the parent's thread, time.
        fn tells(&mut self, kind: u32, [pid, tid]: [u32; 2]) {
            let numbers = [pid, 1, tid, 1, 0, 0].map(u32::to_ne_bytes).concat();
            self.other(0, [1, 1], kind, 0, &numbers);
        }

        /// By the time of each sample: what came for it. All that was written is read, in proven order.
        fn told(self, most: usize) -> Vec<(u64, Option<Vec<u64>>)> {
            let mut reader = Reader::new(self.0.rings(), Order::new().hold(self.0.hold())).unwrap();
            let (mut waits, mut all) = (Waits::new(most), Vec::new());
            let settled = reader.settle(|event| {
                all.extend(match event.record().and_then(|record| of_sample(&record)) {
                    Some((tid, time, cookie)) => waits.sample(tid, cookie, time),
                    None => waits.event(&event),
                });
                ControlFlow::<()>::Continue(())
            });
            assert_eq!(settled.unwrap(), ControlFlow::Continue(true));
            all.extend(waits.end());
            all.sort_unstable();
            all.into_iter().map(|(time, chain)| (time, chain.map(|chain| chain.to_vec()))).collect()
        }
    }

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    const ONE: [u32; 2] = [7, 7];
    const OTHER: [u32; 2] = [7, 8];

    /// Two threads by turns, with equal numbers, on two CPUs. One record serves the samples before it and those that
    /// come until the thread has left the kernel.
    #[test]
    fn a_record_is_of_the_samples_of_its_thread_and_number() {
        let mut machine = Machine::new();
        let first = machine.sample(0, ONE, 5);
        let others = machine.sample(1, OTHER, 5);
        let second = machine.sample(0, ONE, 5);
        machine.returns(1, OTHER, 5, &PROGRAM[1..]);
        // It has moved.
        machine.returns(1, ONE, 5, &PROGRAM);
        // Of another event that asks for it.
        machine.returns(1, ONE, 5, &PROGRAM);
        let third = machine.sample(1, ONE, 5);
        let next = machine.sample(1, ONE, 7);
        machine.returns(1, ONE, 7, &[]);
        let [both, one] = [PROGRAM.to_vec(), PROGRAM[1..].to_vec()];
        let expected = [
            (first, Some(both.clone())),
            (others, Some(one)),
            (second, Some(both.clone())),
            (third, Some(both)),
            (next, Some(vec![])),
        ];
        assert_eq!(machine.told(9), expected);
    }

    /// The record was lost, and one of the thread's next stay comes, before or after a sample of that. One never comes.
    #[test]
    fn a_record_of_another_number_is_not_theirs() {
        let mut machine = Machine::new();
        let lost = machine.sample(0, ONE, 5);
        machine.returns(0, ONE, 7, &PROGRAM);
        let known = machine.sample(0, ONE, 7);
        let again = machine.sample(0, ONE, 9);
        let last = machine.sample(0, ONE, 11);
        machine.returns(0, ONE, 11, &PROGRAM);
        let never = machine.sample(1, OTHER, 6);
        let whole = Some(PROGRAM.to_vec());
        let expected = [(lost, None), (known, whole.clone()), (again, None), (last, whole), (never, None)];
        assert_eq!(machine.told(9), expected);
    }

    /// It may have been of an exec.
    #[test]
    fn nothing_is_joined_across_a_loss() {
        let mut machine = Machine::new();
        let before = machine.sample(0, ONE, 5);
        machine.0.lose(1, 1);
        let after = machine.sample(1, OTHER, 3);
        machine.returns(0, ONE, 5, &PROGRAM);
        machine.returns(1, OTHER, 3, &PROGRAM);
        assert_eq!(machine.told(9), [(before, None), (after, Some(PROGRAM.to_vec()))]);
    }

    /// The frames are those of the new program. A change of the name is none of it.
    #[test]
    fn nothing_is_joined_across_an_exec() {
        for (misc, part) in [(EXEC, None), (0, Some(PROGRAM.to_vec()))] {
            let mut machine = Machine::new();
            let sample = machine.sample(0, ONE, 5);
            let other = machine.sample(1, OTHER, 6);
            machine.other(
                0,
                ONE,
                bindings::PERF_RECORD_COMM,
                misc,
                &[&bytes(&[7 | 7 << 32])[..], b"new\0\0\0\0\0"].concat(),
            );
            machine.returns(0, ONE, 5, &PROGRAM);
            machine.returns(1, OTHER, 6, &PROGRAM);
            assert_eq!(machine.told(9), [(sample, part), (other, Some(PROGRAM.to_vec()))], "{misc}");
        }
    }

    /// The kernel completes chains after the record of a thread's end. Then another thread has its number.
    #[test]
    fn nothing_is_joined_across_a_new_thread() {
        let mut machine = Machine::new();
        let last = machine.sample(0, OTHER, 5);
        machine.tells(bindings::PERF_RECORD_EXIT, OTHER);
        machine.returns(0, OTHER, 5, &PROGRAM);
        let lost = machine.sample(0, ONE, 3);
        machine.tells(bindings::PERF_RECORD_EXIT, ONE);
        machine.tells(bindings::PERF_RECORD_FORK, ONE);
        machine.returns(0, ONE, 3, &PROGRAM);
        assert_eq!(machine.told(9), [(last, Some(PROGRAM.to_vec())), (lost, None)]);
    }

    /// The oldest waits no more. What has no number of its own does not wait at all.
    #[test]
    fn few_samples_wait() {
        let mut machine = Machine::new();
        let times: Vec<_> = (0..4).map(|at| machine.sample(0, [7 + at, 7 + at], 5)).collect();
        let outside = machine.sample(1, [0, 0], 5);
        machine.returns(1, [0, 0], 5, &PROGRAM);
        (0..4).for_each(|at| machine.returns(0, [7 + at, 7 + at], 5, &PROGRAM));
        let part = |at: usize| (at >= 2).then(|| PROGRAM.to_vec());
        let expected: Vec<_> =
            times.into_iter().enumerate().map(|(at, time)| (time, part(at))).chain([(outside, None)]).collect();
        assert_eq!(machine.told(2), expected);
    }

    /// A thread that stays in the kernel takes no more room with each sample.
    #[test]
    fn few_numbers_are_kept_of_samples_that_wait() {
        let mut waits = Waits::new(2);
        let told: usize = (0..9).map(|at| waits.sample(7, 5, at).len()).sum();
        assert_eq!((told, waits.samples.len(), waits.threads[&7].waiting.len()), (7, 2, 2));
        let told: Vec<_> = (9..11).flat_map(|at| waits.sample(8, 5, at)).collect();
        assert!(told == [(7, None), (8, None)] && !waits.threads.contains_key(&7), "{told:?}");
    }

    /// One that claims more addresses than it has is none, nor are those that its trailer would be.
    #[test]
    fn a_record_that_ends_before_its_addresses_is_none() {
        for count in [3, 4, 1 << 60, 1 << 61, u64::MAX] {
            let mut machine = Machine::new();
            let sample = machine.sample(0, ONE, 5);
            machine.other(0, ONE, CHAIN, 2, &bytes(&[5, count, 1, 2]));
            assert_eq!(machine.told(9), [(sample, None)], "{count}");
        }
    }
}
