//! Where threads stood when they fell asleep, and when they woke others: call chains, which have names where a path is
//! kept.

use crate::convert::names::{Frame, Names as Mapped};
use crate::convert::view::View;
use crate::out::say;
use crate::profile::names::Names;
use perfweave::{Event, Record, Rings};
use std::collections::HashMap;
use std::rc::Rc;

/// Different ones that are kept.
const MOST: usize = 1 << 16;

/// The call chains so far.
pub struct Stacks {
    names: Of,
    /// The sources whose chains are kept.
    sources: Vec<usize>,
    numbers: HashMap<(u32, Vec<Frame>), u32>,
    /// By number, from 1 on: the process, the frames, and when it was seen first.
    chains: Vec<(u32, Vec<Frame>, u64)>,
}

/// Whence names come.
enum Of {
    /// From processes that run now.
    Live(Box<Names>),
    /// From the files that a recording names.
    Recorded(Box<(Mapped, View)>),
}

impl Stacks {
    pub fn live(rings: &Rings) -> Self {
        Self::new(rings, Of::Live(Box::new(Names::new(rings))))
    }

    /// `of`: what is known of the recording before its first event.
    pub fn recorded(rings: &Rings, of: &View) -> Self {
        let mut view = View::new(rings, &of.path);
        view.deferred = Rc::clone(&of.deferred);
        Self::new(rings, Of::Recorded(Box::new((Mapped::default(), view))))
    }

    fn new(rings: &Rings, names: Of) -> Self {
        let names_of = ["sched:sched_switch", "sched:sched_waking", "sched:sched_wakeup_new"];
        let is_kept = |at: &usize| rings.sources()[*at].tracepoint().is_some_and(|name| names_of.contains(&name));
        let sources = (0..rings.sources().len()).filter(is_kept).collect();
        Self { names, sources, numbers: HashMap::new(), chains: Vec::new() }
    }

    /// Learns names, and gives the number of the chain that a record of the scheduler has; 0 if it has none.
    pub fn take(&mut self, event: &Event<'_>, record: &Record<'_>) -> u32 {
        match &mut self.names {
            Of::Live(names) => drop(names.take(event, record)),
            Of::Recorded(of) => {
                of.1.learn(event);
                of.0.learn(event);
            }
        }
        let is_kept = record.source().is_some_and(|source| self.sources.contains(&source));
        let (Some((pid, _)), true, Some(time)) = (record.pid_tid(), is_kept, event.key()) else { return 0 };
        if record.callchain().is_none_or(|chain| chain.len() == 0) {
            return 0;
        }
        let frames = match &mut self.names {
            Of::Live(names) => names.frames(pid, record, Some(time)),
            Of::Recorded(of) => of.0.frames(record, Some(time), &of.1),
        };
        let key = (pid, frames);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        if self.chains.len() >= MOST {
            return 0;
        }
        self.chains.push((key.0, key.1.clone(), time));
        let number = self.chains.len() as u32;
        self.numbers.insert(key, number);
        number
    }

    /// Says how many chains of a recording lack their program's part.
    pub fn tell(&self) {
        if let Of::Recorded(of) = &self.names
            && let Some(note) = of.0.parts()
        {
            say(format_args!("perfweave: {note}"));
        }
    }

    /// The functions of a chain, the outermost first.
    pub fn names(&mut self, number: u32) -> Vec<String> {
        let Some((pid, frames, time)) = (number as usize).checked_sub(1).and_then(|at| self.chains.get(at)) else {
            return Vec::new();
        };
        match &mut self.names {
            Of::Live(names) => names.stack(*pid, frames, Some(*time)),
            Of::Recorded(of) => {
                let (names, view) = &mut **of;
                frames.iter().rev().flat_map(|frame| names.names(Some(*pid), *frame, Some(*time), view)).collect()
            }
        }
    }
}
