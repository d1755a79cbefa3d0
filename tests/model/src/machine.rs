//! The model: two CPUs with a ring each, writers that interrupt each other, a fence thread, a reader. Keys are 1, 2, 3
//! and so on, in the order in which they are drawn; 0 stands for none.

/// One thing of the machine that may be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A fence proves what was seen when it ended.
    ProvesWhatIsSeenAtItsEnd,
    /// What a fence proves leaves without another refresh.
    NoSecondRefresh,
    /// A grace period waits for nobody.
    WaitsForNobody,
    /// A writer draws its key before its section begins.
    KeyBeforeSection,
    /// The end of a fence leaves out a ring that came while it was under way.
    LeavesOutTheNewRing,
    /// A record goes behind those of its ring that were found before it: the index repairs nothing.
    RepairsNothing,
    /// A flush is reported by what was seen before it.
    ReportsWithoutRefresh,
    /// A flush that gives up lets everything leave that it has seen.
    GivesUpTheProof,
    /// A flush that gives up says that it is complete.
    HidesThatItGaveUp,
}

/// What a machine may do, and how much of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    pub(crate) fault: Option<Fault>,
    pub(crate) writers: u8,
    /// Not counted where there is no bound.
    pub(crate) fences: Option<u8>,
    pub(crate) flushes: u8,
    /// Whether a flush gives up that waits for a program inside: one that has reserved and not committed.
    pub(crate) gives_up: bool,
    /// Whether the second CPU comes online later.
    pub(crate) hotplug: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A writer draws its key on this CPU. It interrupts the one that is there.
    Begin(u8),
    /// The innermost writer of this CPU outputs.
    Write(u8),
    /// It ends. The outermost of those that have output publishes.
    End(u8),
    /// A ring for the second CPU.
    Attach,
    /// A program asks for a report of all that is in the rings.
    Flush,
    /// The reader loads the next ring's head and indexes. After the last ring the refresh is over.
    Look,
    /// The reader asks for a fence, which proves what was seen so far.
    BeginFence,
    /// The fence thread begins to wait.
    StartGrace,
    /// The reader notices the end.
    EndFence,
    /// The reader has waited long enough for a program that is inside.
    GiveUp,
    /// The smallest held event leaves.
    Yield,
    /// The report of the flush.
    Report,
}

/// What the program sees of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Event { key: u8, certainty: Certainty },
    Flushed { complete: bool },
}

/// As the crate has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certainty {
    Proven,
    Assumed,
    Late,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Writer {
    key: u8,
    has_output: bool,
    /// Whether it is inside a section.
    inside: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Cpu {
    /// The innermost is last.
    writers: Vec<Writer>,
    /// The keys of its ring, as they lie there.
    ring: Vec<u8>,
    published: usize,
    attached: bool,
    /// How far the reader has indexed it.
    indexed: usize,
    /// What was published when the flush was asked for.
    at_flush: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Report {
    #[default]
    None,
    Asked,
    /// By the refresh that is under way.
    Looking,
    /// After all events up to this key.
    Capped(u8),
    /// The same, but no longer for those that are not proven.
    GivenUp(u8),
}

/// What must never be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Broken {
    /// An event came after one with a larger key.
    pub(crate) order: bool,
    /// A report that says that it is complete came before an event that was there when it was asked for.
    pub(crate) report: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct State {
    drawn: u8,
    cpus: [Cpu; 2],
    /// Held events, the one that leaves next first.
    held: Vec<u8>,
    /// The next ring to load, and the largest key that this refresh has found, while one is under way.
    looking: Option<(u8, u8)>,
    seen: u8,
    edge: u8,
    found: u8,
    fencing: u8,
    fenced: u8,
    /// The open sections that the grace period under way waits for.
    grace: Option<Vec<u8>>,
    /// Whether the second ring was there when the fence began.
    fenced_all: bool,
    fences: u8,
    flushes: u8,
    report: Report,
    yielded: u8,
    last: u8,
    pub(crate) broken: Broken,
    /// What was seen to happen.
    pub(crate) repaired: bool,
    pub(crate) reported: bool,
    pub(crate) gave_up: bool,
}

impl State {
    pub(crate) fn new(machine: &Machine) -> Self {
        let mut state = Self::default();
        state.cpus[0].attached = true;
        state.cpus[1].attached = !machine.hotplug;
        state
    }

    /// How many events are held, and up to which key the fence rule lets them leave.
    pub(crate) fn held_and_edge(&self) -> (usize, u8) {
        (self.held.len(), self.edge)
    }

    /// Whether a writer is on this CPU, and whether it may output.
    pub(crate) fn has_writer(&self, cpu: u8) -> (bool, bool) {
        let writer = self.cpus[usize::from(cpu)].writers.last();
        (writer.is_some(), writer.is_some_and(|writer| !writer.has_output))
    }

    /// How many keys were drawn: the last one.
    pub(crate) fn drawn(&self) -> u8 {
        self.drawn
    }

    /// How many events came out.
    pub(crate) fn yielded(&self) -> u8 {
        self.yielded
    }

    fn open(&self) -> impl Iterator<Item = u8> {
        self.cpus.iter().flat_map(|cpu| &cpu.writers).filter(|writer| writer.inside).map(|writer| writer.key)
    }

    fn limit(&self) -> u8 {
        match self.report {
            Report::Capped(cap) | Report::GivenUp(cap) => self.edge.min(cap),
            _ => self.edge,
        }
    }

    /// Whether a program has reserved and not committed.
    fn has_reserved(&self) -> bool {
        self.cpus.iter().flat_map(|cpu| &cpu.writers).any(|writer| writer.has_output)
    }

    /// The innermost writer of a CPU.
    fn writer(&mut self, cpu: u8) -> Option<&mut Writer> {
        self.cpus[usize::from(cpu)].writers.last_mut()
    }
}

impl Machine {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// All actions that a state may have. Most are not possible in it.
    pub(crate) fn actions(&self, state: &State) -> Vec<Action> {
        let kernel = (0..2).flat_map(|cpu| [Action::Begin(cpu), Action::Write(cpu), Action::End(cpu)]);
        kernel.chain([Action::Attach, Action::Flush]).chain(self.reader_actions(state)).collect()
    }

    /// Those that neither the kernel nor the program decides, and that yield nothing.
    pub(crate) fn silent_actions(&self, state: &State) -> Vec<Action> {
        let mut actions = self.reader_actions(state);
        actions.retain(|action| !matches!(action, Action::Yield | Action::Report));
        actions
    }

    fn reader_actions(&self, state: &State) -> Vec<Action> {
        let give_up = (state.flushes > 0 && self.gives_up).then_some(Action::GiveUp);
        let mut actions = vec![Action::Look, Action::BeginFence, Action::StartGrace, Action::EndFence];
        actions.extend([Action::Yield, Action::Report]);
        actions.extend(give_up);
        actions
    }

    /// The state after an action, and what the program sees of it. `None` if the action is not possible.
    pub(crate) fn step(&self, state: &State, action: Action) -> Option<(State, Option<Seen>)> {
        let mut next = state.clone();
        let mut seen = None;
        let is_done = match action {
            Action::Begin(cpu) => self.begin(&mut next, cpu),
            Action::Write(cpu) => self.write(&mut next, cpu),
            Action::End(cpu) => end(&mut next, cpu),
            Action::Attach => !std::mem::replace(&mut next.cpus[1].attached, true) && next.looking.is_none(),
            Action::Flush => self.flush(&mut next),
            Action::Look => self.look(&mut next),
            Action::BeginFence => self.begin_fence(&mut next),
            Action::StartGrace => self.start_grace(&mut next),
            Action::EndFence => self.end_fence(&mut next),
            Action::GiveUp => self.give_up(&mut next),
            Action::Yield => {
                seen = take(&mut next);
                seen.is_some()
            }
            Action::Report => {
                seen = self.report(&mut next);
                seen.is_some()
            }
        };
        // What changes nothing is no action.
        (is_done && next != *state).then_some((next, seen))
    }

    fn begin(&self, state: &mut State, cpu: u8) -> bool {
        if state.drawn == self.writers {
            return false;
        }
        state.drawn += 1;
        let inside = !self.is(Fault::KeyBeforeSection);
        state.cpus[usize::from(cpu)].writers.push(Writer { key: state.drawn, has_output: false, inside });
        true
    }

    /// Where no ring is attached the output is refused.
    fn write(&self, state: &mut State, cpu: u8) -> bool {
        let at = usize::from(cpu);
        let is_attached = state.cpus[at].attached;
        let Some(writer) = state.writer(cpu).filter(|writer| !writer.has_output && is_attached) else { return false };
        (writer.has_output, writer.inside) = (true, true);
        let key = writer.key;
        state.cpus[at].ring.push(key);
        true
    }

    fn flush(&self, state: &mut State) -> bool {
        if state.report != Report::None || state.flushes == self.flushes {
            return false;
        }
        state.report = Report::Asked;
        if self.is(Fault::ReportsWithoutRefresh) {
            state.report = Report::Capped(state.found);
        }
        state.flushes += 1;
        state.cpus.iter_mut().for_each(|cpu| cpu.at_flush = cpu.published);
        true
    }

    fn look(&self, state: &mut State) -> bool {
        let (ring, mut largest) = state.looking.unwrap_or((0, 0));
        if state.looking.is_none() && state.report == Report::Asked {
            state.report = Report::Looking;
        }
        let cpu = &mut state.cpus[usize::from(ring)];
        let is_left_out = ring == 1 && self.is(Fault::LeavesOutTheNewRing) && state.fenced > 0 && !state.fenced_all;
        if cpu.attached && !is_left_out {
            for key in cpu.ring[cpu.indexed..cpu.published].iter().copied() {
                largest = largest.max(key);
                let of_ring = |held: &u8| cpu.ring.contains(held);
                let first = if self.is(Fault::RepairsNothing) {
                    // Behind the last one of its ring.
                    state.held.iter().rposition(of_ring).map_or(0, |at| at + 1)
                } else {
                    0
                };
                let place = first + state.held[first..].partition_point(|held| *held < key);
                state.repaired |= state.held[place..].iter().any(of_ring);
                state.held.insert(place, key);
            }
            cpu.indexed = cpu.published;
        }
        if ring == 0 {
            state.looking = Some((1, largest));
            return true;
        }
        state.looking = None;
        state.found = state.found.max(largest);
        state.seen = state.seen.max(largest);
        state.edge = state.edge.max(std::mem::take(&mut state.fenced));
        if state.report == Report::Looking {
            state.report = Report::Capped(state.found);
        }
        true
    }

    fn begin_fence(&self, state: &mut State) -> bool {
        let is_useful = state.fencing == 0 && state.seen > state.edge.max(state.fenced) && state.looking.is_none();
        if !is_useful || self.fences.is_some_and(|most| state.fences == most) {
            return false;
        }
        state.fencing = state.seen;
        state.fenced_all = state.cpus[1].attached;
        state.fences += u8::from(self.fences.is_some());
        true
    }

    fn start_grace(&self, state: &mut State) -> bool {
        if state.fencing == 0 || state.grace.is_some() {
            return false;
        }
        let open = if self.is(Fault::WaitsForNobody) { Vec::new() } else { state.open().collect() };
        state.grace = Some(open);
        true
    }

    fn end_fence(&self, state: &mut State) -> bool {
        let Some(waited) = &state.grace else { return false };
        if state.looking.is_some() || state.open().any(|key| waited.contains(&key)) {
            return false;
        }
        state.grace = None;
        let proves = std::mem::take(&mut state.fencing);
        let proves = if self.is(Fault::ProvesWhatIsSeenAtItsEnd) { state.seen } else { proves };
        state.fenced = state.fenced.max(proves);
        if self.is(Fault::NoSecondRefresh) {
            state.edge = state.edge.max(std::mem::take(&mut state.fenced));
        }
        true
    }

    fn give_up(&self, state: &mut State) -> bool {
        let Report::Capped(cap) = state.report else { return false };
        if !state.has_reserved() || state.looking.is_some() {
            return false;
        }
        state.report = Report::GivenUp(cap);
        if self.is(Fault::GivesUpTheProof) {
            state.edge = state.edge.max(cap);
        }
        true
    }

    fn report(&self, state: &mut State) -> Option<Seen> {
        let (until, complete) = match state.report {
            Report::Capped(cap) => (cap, true),
            // What is proven comes before it.
            Report::GivenUp(_) => (state.limit(), false),
            _ => return None,
        };
        if state.looking.is_some() || state.held.first().is_some_and(|key| *key <= until) {
            return None;
        }
        let complete = complete || self.is(Fault::HidesThatItGaveUp);
        let is_there = |cpu: &Cpu| {
            cpu.attached
                && cpu.ring[..cpu.at_flush]
                    .iter()
                    .enumerate()
                    .any(|(at, key)| at >= cpu.indexed || state.held.contains(key))
        };
        state.broken.report |= complete && state.cpus.iter().any(is_there);
        state.gave_up |= !complete;
        (state.report, state.reported) = (Report::None, true);
        Some(Seen::Flushed { complete })
    }
}

fn end(state: &mut State, cpu: u8) -> bool {
    let cpu = &mut state.cpus[usize::from(cpu)];
    let Some(writer) = cpu.writers.pop() else { return false };
    if writer.has_output && cpu.writers.iter().all(|outer| !outer.has_output) {
        cpu.published = cpu.ring.len();
    }
    true
}

fn take(state: &mut State) -> Option<Seen> {
    let key = *state.held.first().filter(|key| **key <= state.limit() && state.looking.is_none())?;
    state.held.remove(0);
    let is_late = key < state.last;
    state.broken.order |= is_late;
    state.last = state.last.max(key);
    state.yielded += 1;
    Some(Seen::Event { key, certainty: if is_late { Certainty::Late } else { Certainty::Proven } })
}
