//! Stacks of calls (`-k`), as strace(1) prints them: the program's frames at the call, the innermost first.

use super::pairs::{Entry, NOWHERE};
use crate::convert::names::{Mode, Names as Mapped, Spot};
use crate::convert::view::View;
use crate::profile::names::Names;
use crate::sampled::{CallGraph, Chains, call_graph};
use perf_event_open_sys::bindings;
use perfweave::{Event, Record, RingOptions, Rings};
use perfweave_events::EventOptions;
use std::collections::HashMap;

/// Whether calls have stacks, and how these are found.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Stacking {
    /// Print the program's stack below each system call, the innermost function first
    #[arg(short = 'k', long = "stack-traces", visible_alias = "stack-trace", conflicts_with = "summary_only")]
    pub stacks: bool,
    /// How stacks are found: fp, by frame pointers; dwarf[,BYTES], also in programs without them, from so many bytes of
    /// the stack at each call, for which rings have 16M at least [dwarf,8192 where this build has it]
    #[arg(long, value_name = "HOW", requires = "stacks", value_parser = of_call)]
    call_graph: Option<CallGraph>,
}

/// Bytes of each CPU's ring at least where records have copies of stacks.
const RING: u64 = 16 << 20;

/// What is said where frame pointers are all that leads from one function to the next.
const BY_FRAME_POINTERS: &str = "stacks are by frame pointers: a function without one hides those that called it";

/// `HOW` of a call's stack.
fn of_call(text: &str) -> Result<CallGraph, String> {
    match call_graph(text)? {
        CallGraph::Deferred => Err("each call has the stack of its entry, so none comes later: fp or dwarf".into()),
        how => Ok(how),
    }
}

impl Stacking {
    fn chains(self) -> Chains {
        Chains::of_calls(self.call_graph)
    }

    /// The size of each ring.
    pub fn bytes(self, wanted: u64) -> u64 {
        if self.stacks && !self.chains().are_by_frame_pointers() { wanted.max(RING) } else { wanted }
    }

    /// What the last event of a call has besides.
    pub fn of_call(self, options: RingOptions) -> RingOptions {
        if self.stacks { options.exclude_callchain_kernel() } else { options }
    }

    /// What the last event that is no call's has.
    pub fn of_other(self, options: RingOptions) -> RingOptions {
        if self.stacks { options.exclude_callchain_kernel().exclude_callchain_user() } else { options }
    }

    /// What all have, behind the last event that has samples.
    pub fn of_all(self, options: RingOptions) -> RingOptions {
        if !self.stacks {
            return options;
        }
        let options = if self.chains().are_by_frame_pointers() {
            options.sample(bindings::PERF_SAMPLE_CALLCHAIN)
        } else {
            // Registers and stacks are in the records of all events of the rings.
            self.chains().set_stack(options)
        };
        options.records([bindings::PERF_RECORD_MMAP2])
    }

    /// Those of what happens now.
    pub fn live(self, rings: &Rings) -> Option<Stacks> {
        self.stacks.then(|| Stacks::new(Of::Live(Box::new(Names::new(rings)))))
    }

    /// Those of a recording.
    pub fn recorded(self) -> Option<Stacks> {
        self.stacks.then(|| Stacks::new(Of::Recorded(Box::default())))
    }
}

/// The stacks of calls that have been entered.
pub struct Stacks {
    of: Of,
    /// By thread: when it entered its call, and from where.
    entered: HashMap<u32, (u64, Vec<Spot>)>,
    /// How many calls have a stack by frame pointers, a stack that was unwound, and none.
    counts: [u64; 3],
}

/// Where names come from.
enum Of {
    Live(Box<Names>),
    Recorded(Box<Mapped>),
}

impl Stacks {
    fn new(of: Of) -> Self {
        Self { of, entered: HashMap::new(), counts: [0; 3] }
    }

    /// Learns what an event says of mappings.
    pub fn learn(&mut self, event: &Event<'_>) {
        match &mut self.of {
            Of::Recorded(mapped) => mapped.learn(event),
            Of::Live(names) => {
                if let Some(record) = event.record() {
                    names.take(event, &record);
                }
            }
        }
    }

    /// Records are lost.
    pub fn forget(&mut self) {
        self.entered.clear();
        if let Of::Live(names) = &mut self.of {
            names.forget();
        }
    }

    /// A thread enters a call. `view`: of a recording.
    pub fn enters(&mut self, entry: &Entry, record: &Record<'_>, time: Option<u64>, view: Option<&View>) {
        let spots = self.spots(record, time, view);
        self.keep(entry, spots);
    }

    fn keep(&mut self, entry: &Entry, spots: Vec<Spot>) {
        // An entry that comes late is that of a call that is over. And many threads have the number of none.
        let is_late = self.entered.get(&entry.tid).is_some_and(|(newer, _)| *newer > entry.time);
        if entry.tid != NOWHERE && !is_late {
            self.entered.insert(entry.tid, (entry.time, spots));
        }
    }

    /// The stack of a thread when a record was made.
    pub fn spots(&mut self, record: &Record<'_>, time: Option<u64>, view: Option<&View>) -> Vec<Spot> {
        let Some((pid, _)) = record.pid_tid() else { return Vec::new() };
        let spots: Vec<_> = match (&mut self.of, view) {
            (Of::Live(names), _) => {
                let frames = names.frames(pid, record, time).into_iter().filter(|frame| frame.mode == Mode::User);
                // What lies in no code is no caller: a register that is no frame pointer led there.
                frames
                    .map_while(|frame| {
                        let at = names.at(pid, frame);
                        names.spot(pid, at, time)
                    })
                    .collect()
            }
            (Of::Recorded(mapped), Some(view)) => {
                let frames = mapped.frames(record, time, view).into_iter().filter(|frame| frame.mode == Mode::User);
                frames
                    .map_while(|frame| {
                        let place = mapped.place(pid, frame.address)?;
                        let spot = mapped.spot(place, frame.is_caller, time, view);
                        match view.compiled.of(pid, frame.called()) {
                            Some(name) if spot.function.is_none() => Some(Spot::compiled(pid, name, frame.address)),
                            _ => Some(spot),
                        }
                    })
                    .collect()
            }
            (Of::Recorded(_), None) => Vec::new(),
        };
        let is_unwound = record.field(bindings::PERF_SAMPLE_STACK_USER).is_some();
        self.counts[if spots.is_empty() { 2 } else { usize::from(is_unwound) }] += 1;
        spots
    }

    /// The stack with which a call was entered.
    pub fn of(&mut self, entry: &Entry) -> Option<Vec<Spot>> {
        let is_this = |(time, _): &(u64, Vec<Spot>)| *time == entry.time;
        self.entered.remove(&entry.tid).filter(is_this).map(|(_, spots)| spots)
    }

    /// A thread ends.
    pub fn ends(&mut self, tid: u32) {
        self.entered.remove(&tid);
    }

    /// Whether calls have come, and none has a stack.
    pub fn are_none(&self) -> bool {
        self.counts[..2] == [0, 0] && self.counts[2] > 0
    }

    /// What is to be said of stacks that are not whole.
    pub fn notes(&mut self) -> Vec<String> {
        let mut notes: Vec<_> = match &mut self.of {
            Of::Live(names) => names.read().collect(),
            Of::Recorded(mapped) => mapped.unwound().into_iter().collect(),
        };
        let helps = match (&self.of, cfg!(feature = "dwarf")) {
            (Of::Live(_), true) => "--call-graph dwarf",
            (Of::Live(_), false) => "--call-graph dwarf of a build with --all-features",
            (Of::Recorded(_), _) => "record --call-graph dwarf",
        };
        notes.extend((self.counts[0] > 0).then(|| format!("{BY_FRAME_POINTERS}; {helps} finds them")));
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, NOWHERE, Of, Spot, Stacks};

    /// Not that of another call of the thread, nor that of another thread outside of this PID namespace.
    #[test]
    fn a_call_has_the_stack_of_its_own_entry() {
        let mut stacks = Stacks::new(Of::Recorded(Box::default()));
        let entry = |tid, time| Entry { pid: 7, tid, cpu: 0, time, number: 0, args: [0; 6] };
        let spots = |offset| vec![Spot { path: "/x".into(), function: None, offset }];
        stacks.keep(&entry(7, 20), spots(2));
        stacks.keep(&entry(7, 10), spots(1));
        assert_eq!(stacks.of(&entry(7, 20)), Some(spots(2)));
        stacks.keep(&entry(7, 30), spots(3));
        assert_eq!(stacks.of(&entry(7, 40)), None);
        stacks.keep(&entry(7, 50), spots(4));
        stacks.ends(7);
        stacks.keep(&entry(NOWHERE, 60), spots(5));
        assert!(stacks.of(&entry(7, 50)).is_none() && stacks.entered.is_empty());
    }
}
