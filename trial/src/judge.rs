//! What a tool printed, against what happened. A tool is faulted only for what its lines contradict.

use crate::history::{History, Thing};
use crate::tool::{Said, What};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// Witnesses that are kept of each kind.
const WITNESSES: usize = 3;

/// What is counted, by its name in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Stands where it cannot: an effect is printed before its cause. Counted are the fewest lines that would have to
    /// be moved.
    Inverted,
    /// Has a time that cannot be: by the tool's own times, an effect is earlier than its cause. Counted as above.
    Misdated,
    /// Not printed, and the tool does not say that anything is lost; or it says fewer.
    Silent,
    /// Printed twice.
    Doubled,
    /// Printed, and did not happen.
    Invented,
    /// What cannot be at all: runs before it is woken, a negative wait, a step of a thread that did not make it.
    Impossible,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Inverted, Self::Misdated, Self::Silent, Self::Doubled, Self::Invented, Self::Impossible];

    pub fn name(self) -> &'static str {
        match self {
            Self::Inverted => "inverted",
            Self::Misdated => "misdated",
            Self::Silent => "silent",
            Self::Doubled => "doubled",
            Self::Invented => "invented",
            Self::Impossible => "impossible",
        }
    }
}

/// Lines, and why they cannot be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Witness {
    pub kind: Kind,
    /// Numbers of lines from 1, and their text.
    pub lines: Vec<(usize, String)>,
    pub why: String,
}

/// One run's judgement.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verdict {
    /// Things that the tool was asked for and that happened.
    pub happened: u64,
    /// Of these, those that it printed.
    pub printed: u64,
    /// Lines that were judged, also of things of which it is not known how many happened.
    pub lines: u64,
    /// Events that it says are lost. `u64::MAX` if it does not say how many.
    pub lost: u64,
    pub inverted: u64,
    pub misdated: u64,
    pub silent: u64,
    pub doubled: u64,
    pub invented: u64,
    pub impossible: u64,
    pub witnesses: Vec<Witness>,
    /// What is missing in silence, the first.
    #[serde(skip)]
    first_missing: Option<(What, u64)>,
}

impl Verdict {
    pub fn count(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Inverted => self.inverted,
            Kind::Misdated => self.misdated,
            Kind::Silent => self.silent,
            Kind::Doubled => self.doubled,
            Kind::Invented => self.invented,
            Kind::Impossible => self.impossible,
        }
    }

    pub fn missing(&self) -> u64 {
        self.happened - self.printed
    }

    fn add(&mut self, kind: Kind, lines: &[&str], at: &[usize], why: impl FnOnce() -> String) {
        let count = match kind {
            Kind::Inverted => &mut self.inverted,
            Kind::Misdated => &mut self.misdated,
            Kind::Silent => &mut self.silent,
            Kind::Doubled => &mut self.doubled,
            Kind::Invented => &mut self.invented,
            Kind::Impossible => &mut self.impossible,
        };
        *count += 1;
        if self.witnesses.iter().filter(|witness| witness.kind == kind).count() < WITNESSES {
            let lines = at.iter().map(|&at| (at + 1, lines[at].trim_end().to_owned())).collect();
            self.witnesses.push(Witness { kind, lines, why: why() });
        }
    }
}

/// Judges one output. `lines` are those that `said` speaks of; `prints` is what the tool was asked for; the run took
/// `ms`.
pub fn judge(history: &History, prints: &[What], said: &[Said], lines: &[&str], ms: f64) -> Verdict {
    let mut verdict = Verdict::default();
    // What it was not asked for may be there by chance, and in part.
    let asked = |said: &Said| said.what.thing().is_none() || prints.contains(&said.what);
    let (said, rest): (Vec<Said>, Vec<Said>) = said.iter().cloned().partition(asked);
    let said = &said[..];
    let placed = what_happened(history, said, lines, &mut verdict);
    completeness(history, prints, said, &placed, &mut verdict);
    begun(&rest, lines, &mut verdict);
    let durations = said.iter().filter(|said| said.what == What::Duration);
    verdict.lines = (placed.len() + durations.clone().count()) as u64;
    let chains = Chains::new(history);
    places(&chains, &placed, lines, &mut verdict);
    times(&chains, &placed, lines, &mut verdict);
    sleeps(said, lines, &mut verdict);
    for said in durations {
        if let Some(time) = said.ms.filter(|&time| time < 0.0 || time > ms) {
            let why = || {
                if time < 0.0 {
                    "a negative time".into()
                } else {
                    format!("longer than the whole run, which took {ms:.0} ms")
                }
            };
            verdict.add(Kind::Impossible, lines, &[said.line], why);
        }
    }
    verdict
}

/// What has a place in an order, once each. Counts what is doubled, invented or said of the wrong thread.
fn what_happened<'a>(history: &History, said: &'a [Said], lines: &[&str], verdict: &mut Verdict) -> Vec<&'a Said> {
    let known: HashMap<Thing, HashSet<u64>> = [Thing::Step, Thing::Exec, Thing::End, Thing::Ticket]
        .map(|thing| (thing, history.happened(thing).into_iter().collect()))
        .into();
    let threads = history.threads_of_steps();
    let mut first = HashMap::new();
    let mut placed = Vec::new();
    for said in said {
        let Some(thing) = said.what.thing() else { continue };
        match known.get(&thing) {
            // Other work has no such things, and no number of them is known.
            Some(numbers) if numbers.is_empty() => continue,
            Some(numbers) if !numbers.contains(&said.number) => {
                let why = || format!("{thing:?} {} did not happen", said.number);
                verdict.add(Kind::Invented, lines, &[said.line], why);
                continue;
            }
            _ => {}
        }
        // A thread may be woken twice under one name.
        if thing != Thing::Waking
            && let Some(&before) = first.get(&(said.what, said.number))
        {
            let why = || format!("{thing:?} {} happened once", said.number);
            verdict.add(Kind::Doubled, lines, &[before, said.line], why);
            continue;
        }
        first.insert((said.what, said.number), said.line);
        if let (Thing::Step, Some(tid), Some(&made)) = (thing, said.tid, threads.get(&said.number))
            && tid != made
        {
            let why = || format!("thread {made} made step {}, and not thread {tid}", said.number);
            verdict.add(Kind::Impossible, lines, &[said.line], why);
        }
        placed.push(said);
    }
    placed
}

/// What is missing, and what of it in silence.
fn completeness(history: &History, prints: &[What], said: &[Said], placed: &[&Said], verdict: &mut Verdict) {
    let mut first_missing = None;
    for &what in prints {
        let Some(thing) = what.thing() else { continue };
        let happened = history.happened(thing);
        let printed: HashSet<u64> = placed.iter().filter(|said| said.what == what).map(|said| said.number).collect();
        verdict.happened += happened.len() as u64;
        verdict.printed += printed.len() as u64 * u64::from(!happened.is_empty());
        first_missing =
            first_missing.or_else(|| Some((what, *happened.iter().find(|number| !printed.contains(number))?)));
    }
    verdict.lost =
        said.iter().filter(|said| said.what == What::Lost).fold(0, |all, said| all.saturating_add(said.number));
    verdict.silent = verdict.missing().saturating_sub(verdict.lost);
    if let (1.., Some((what, number))) = (verdict.silent, first_missing) {
        let why = format!(
            "{} of {} are not there, and the tool says that {} are lost; the first is {what:?} {number}",
            verdict.missing(),
            verdict.happened,
            verdict.lost
        );
        verdict.witnesses.push(Witness { kind: Kind::Silent, lines: Vec::new(), why });
        verdict.first_missing = Some((what, number));
    }
}

/// A call whose return is missing may have a line for its entry, which the witness shows.
fn begun(rest: &[Said], lines: &[&str], verdict: &mut Verdict) {
    let Some((What::Call, number)) = verdict.first_missing else { return };
    let Some(entry) = rest.iter().find(|said| said.what == What::Enter && said.number == number) else { return };
    if let Some(witness) = verdict.witnesses.iter_mut().find(|witness| witness.kind == Kind::Silent) {
        witness.lines.push((entry.line + 1, lines[entry.line].trim_end().to_owned()));
        witness.why += ", of which only the entry is there";
    }
}

/// The chains of causes, by what is in them.
struct Chains {
    of: HashMap<(Thing, u64), Vec<(usize, usize)>>,
    count: usize,
}

impl Chains {
    fn new(history: &History) -> Self {
        let chains = history.chains();
        let mut of: HashMap<_, Vec<_>> = HashMap::new();
        for (chain, things) in chains.iter().enumerate() {
            for (place, &thing) in things.iter().enumerate() {
                of.entry(thing).or_default().push((chain, place));
            }
        }
        Self { of, count: chains.len() }
    }

    /// In which chains a thing is, and at which place.
    fn of(&self, said: &Said) -> &[(usize, usize)] {
        let thing = said.what.thing().map(|thing| (thing, said.number));
        thing.and_then(|thing| self.of.get(&thing)).map_or(&[], Vec::as_slice)
    }
}

/// A place in a chain, and whether it is the return of the call there.
type Rank = (usize, bool);

/// Lines that stand where they cannot, by their places. A line for a whole call stands where it returned.
fn places(chains: &Chains, placed: &[&Said], lines: &[&str], verdict: &mut Verdict) {
    let mut by_chain: Vec<Vec<(Rank, &Said)>> = vec![Vec::new(); chains.count];
    for said in placed {
        for &(chain, place) in chains.of(said) {
            by_chain[chain].push(((place, matches!(said.what, What::Exit | What::Call)), said));
        }
    }
    let mut counted = HashSet::new();
    for chain in by_chain {
        let ranks: Vec<Rank> = chain.iter().map(|&(rank, _)| rank).collect();
        for (first, second) in misplaced(&ranks, &mut |at| counted.insert(chain[at].1.line)) {
            // The first of the two lines has the effect, and the second its cause.
            let (effect, cause) = (chain[first].1, chain[second].1);
            verdict.add(Kind::Inverted, lines, &[effect.line, cause.line], || because(cause, effect, "printed"));
        }
    }
}

/// Lines whose time cannot be. A line for a whole call has the time of its entry. Equal times are not wrong.
fn times(chains: &Chains, placed: &[&Said], lines: &[&str], verdict: &mut Verdict) {
    let mut by_chain: Vec<Vec<(Rank, u64, &Said)>> = vec![Vec::new(); chains.count];
    for said in placed {
        let Some(stamp) = said.stamp else { continue };
        for &(chain, place) in chains.of(said) {
            by_chain[chain].push(((place, said.what == What::Exit), stamp, said));
        }
    }
    let mut counted = HashSet::new();
    for mut chain in by_chain {
        chain.sort_by_key(|&(rank, ..)| rank);
        let stamps: Vec<u64> = chain.iter().map(|&(_, stamp, _)| stamp).collect();
        for (first, second) in misplaced(&stamps, &mut |at| counted.insert(chain[at].2.line)) {
            let (cause, effect) = (chain[first].2, chain[second].2);
            verdict.add(Kind::Misdated, lines, &[cause.line, effect.line], || because(cause, effect, "dated"));
        }
    }
}

/// The fewest values that must go so that the rest never falls: one that is far too large counts as one, and not as all
/// that come after it. For each that `is_new`, two places of which the first has the larger value. It is one of the
/// two.
fn misplaced<T: Ord + Copy>(values: &[T], is_new: &mut dyn FnMut(usize) -> bool) -> Vec<(usize, usize)> {
    // The last place of the best run of each length, and what comes before each place in its best run.
    let mut ends: Vec<usize> = Vec::new();
    let mut before = vec![None; values.len()];
    for (at, &value) in values.iter().enumerate() {
        let length = ends.partition_point(|&end| values[end] <= value);
        before[at] = length.checked_sub(1).map(|shorter| ends[shorter]);
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut stays = vec![false; values.len()];
    let mut next = ends.last().copied();
    while let Some(at) = next {
        stays[at] = true;
        next = before[at];
    }
    let mut largest: Vec<usize> = Vec::with_capacity(values.len());
    for at in 0..values.len() {
        largest.push(largest.last().copied().filter(|&most| values[most] >= values[at]).unwrap_or(at));
    }
    let mut smallest = values.len().saturating_sub(1);
    let mut pairs = Vec::new();
    for at in (0..values.len()).rev() {
        if !stays[at] && is_new(at) {
            pairs.push(if values[largest[at]] > values[at] { (largest[at], at) } else { (at, smallest) });
        }
        if values[at] <= values[smallest] {
            smallest = at;
        }
    }
    pairs.reverse();
    pairs
}

fn because(cause: &Said, effect: &Said, how: &str) -> String {
    let name = |said: &Said| match said.what {
        What::Enter => format!("the entry into step {}", said.number),
        What::Exit => format!("the return of step {}", said.number),
        What::Call => format!("step {}", said.number),
        other => format!("{} {}", format!("{other:?}").to_lowercase(), said.number),
    };
    format!("{} happened before {}, which could not begin without it, and is {how} after it", name(cause), name(effect))
}

/// A thread that went to sleep and runs again, and whose waking is printed only after that.
///
/// A waking may be printed before the thread has left the CPU: it is woken while it goes to sleep. So only one that
/// comes after the thread runs again, with none before, is wrong. Without any, it is missing, which is not known: see
/// [`History::happened`].
fn sleeps(said: &[Said], lines: &[&str], verdict: &mut Verdict) {
    #[derive(Default)]
    struct Thread<'a> {
        slept: Option<&'a Said>,
        woken: bool,
        ran: Option<&'a Said>,
    }
    let mut threads: HashMap<u64, Thread> = HashMap::new();
    for said in said.iter().filter(|said| matches!(said.what, What::Out | What::In | What::Waking)) {
        let thread = threads.entry(said.number).or_default();
        match said.what {
            What::Out if said.sleeps => thread.slept = thread.slept.or(Some(said)),
            What::In if thread.slept.is_some() => thread.ran = thread.ran.or(Some(said)),
            What::Waking => {
                if let (Some(slept), Some(ran), false) = (thread.slept, thread.ran, thread.woken) {
                    let why = || format!("w{0} slept, and runs before it is woken", said.number);
                    verdict.add(Kind::Impossible, lines, &[slept.line, ran.line, said.line], why);
                }
                thread.woken = true;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
