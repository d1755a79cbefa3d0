//! What happened: the numbers that the work counted in shared memory, and which step caused which.

use crate::tool::Result;
use serde::Deserialize;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Stages of `pipes`, as `work/work.c` has it.
const STAGES: u32 = 4;

/// Steps with these numbers are no part of the work. They mark its beginning and its end: see `beside` in `lib.sh`.
pub const MARKS: std::ops::Range<u64> = 987_654_144..987_654_400;

/// What a line can speak of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Thing {
    /// A system call, numbered by its arguments.
    Step,
    /// The beginning of a program of the tree.
    Exec,
    /// The end of its process.
    End,
    /// A sleeping thread is woken; its name has the number.
    Waking,
    /// A number that a BPF program drew from one counter of all CPUs.
    Ticket,
}

/// A history, as the work writes it.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct History {
    pub work: String,
    /// The steps that were asked for.
    pub steps: u32,
    /// The steps that were made, of each thread or stage that has an order of its own.
    pub made: Vec<u32>,
    /// Which thread made which step.
    #[serde(default)]
    pub who: Vec<(u64, u32)>,
    /// The first ticket that was drawn and the one after the last, if that is what is judged.
    #[serde(default)]
    pub tickets: (u64, u64),
}

impl History {
    /// Reads what the work wrote into a folder: `history`, and `tickets` if BPF programs drew some.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut history: Self = serde_json::from_slice(&fs::read(folder.join("history"))?)?;
        if let Ok(tickets) = fs::read_to_string(folder.join("tickets")) {
            let mut numbers = tickets.split_whitespace().map(str::parse);
            history.tickets = (numbers.next().ok_or("no first ticket")??, numbers.next().ok_or("no last ticket")??);
        }
        Ok(history)
    }

    /// Things that happened one after the other, each caused by the one before it. A thing may be in several chains.
    ///
    /// Steps are whole calls: the next one begins after the one before it has returned.
    pub fn chains(&self) -> Vec<Vec<(Thing, u64)>> {
        let mut chains = self.chains_of_steps();
        if self.work == "wakes" {
            chains.push((0..self.total()).map(|number| (Thing::Waking, number)).collect());
        }
        chains.push(self.tickets().map(|number| (Thing::Ticket, number)).collect());
        chains
    }

    fn chains_of_steps(&self) -> Vec<Vec<(Thing, u64)>> {
        let steps = |numbers: &mut dyn Iterator<Item = u64>| numbers.map(|number| (Thing::Step, number)).collect();
        match self.work.as_str() {
            "flood" => self.threads().map(|mut numbers| steps(&mut numbers)).collect(),
            "pipes" => {
                let stages = u64::from(STAGES);
                let of_stages = (0..stages)
                    .zip(&self.made)
                    .map(|(stage, &made)| steps(&mut (0..u64::from(made)).map(|message| message * stages + stage)));
                let messages = u64::from(self.made.first().copied().unwrap_or(0));
                let of_messages =
                    (0..messages).map(|message| steps(&mut (0..stages).map(|stage| message * stages + stage)));
                of_stages.chain(of_messages).collect()
            }
            "tree" => (0..self.total() / 2).map(node).collect(),
            _ => vec![steps(&mut (0..self.total()))],
        }
    }

    /// How often each thing must be printed: once, if it is here.
    pub fn happened(&self, thing: Thing) -> Vec<u64> {
        match thing {
            Thing::Step => match self.work.as_str() {
                "flood" => self.threads().flatten().collect(),
                _ => (0..self.total()).collect(),
            },
            Thing::Exec | Thing::End if self.work == "tree" => (0..self.total() / 2).collect(),
            Thing::Ticket => self.tickets().collect(),
            // A thread that is late for its sleep is not woken.
            Thing::Exec | Thing::End | Thing::Waking => Vec::new(),
        }
    }

    /// The thread of each step.
    pub fn threads_of_steps(&self) -> HashMap<u64, u32> {
        self.who.iter().copied().collect()
    }

    fn tickets(&self) -> std::ops::Range<u64> {
        self.tickets.0..self.tickets.1
    }

    fn total(&self) -> u64 {
        self.made.iter().map(|&made| u64::from(made)).sum()
    }

    /// The numbers of each thread of `flood`.
    fn threads(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let each = u64::from(self.steps);
        (0..).zip(&self.made).map(move |(thread, &made)| thread * each..thread * each + u64::from(made))
    }
}

/// What a node of the tree does around its parent's: the parent starts it after its own first step, and waits for it
/// before its second.
fn node(node: u64) -> Vec<(Thing, u64)> {
    let own = [(Thing::Exec, node), (Thing::Step, 2 * node), (Thing::Step, 2 * node + 1), (Thing::End, node)];
    let Some(parent) = node.checked_sub(1).map(|before| before / 2) else { return own.into() };
    [(Thing::Exec, parent), (Thing::Step, 2 * parent)]
        .into_iter()
        .chain(own)
        .chain([(Thing::Step, 2 * parent + 1), (Thing::End, parent)])
        .collect()
}
