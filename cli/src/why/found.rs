//! A path with its names, as people and programs read it.

use super::files::Files;
use super::path::{Culprit, Step, number, path, sums};
use super::stacks::Stacks;
use crate::exact::Exact;
use crate::out::{Out, frame, line};
use crate::scheduler::Scheduler;
use crate::stamp::Stamp;
use crate::times::short;
use crate::trace::calls::{Calls, Values};
use crate::trace::named::signal;
use crate::waits::{Call, Has, In, Waker, What as Does, Who, Why};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::num::NonZeroU8;
use std::sync::Arc;

/// Steps of a path that are printed: the longest, in their order. Of a waker's, fewer.
const STEPS: [usize; 2] = [20, 6];
/// Those that ran instead, in a line.
const SHARES: usize = 3;
/// Functions of a call chain that are printed, the innermost.
const FRAMES: usize = 16;
/// Culprits that are printed.
const CULPRITS: usize = 10;

/// A path that was asked for.
#[derive(Debug)]
pub struct Found {
    pub who: Who,
    pub from: u64,
    pub to: u64,
    what: What,
    /// Whether its last wait goes on at the end of what is known.
    goes_on: bool,
    path: Vec<Step>,
    names: HashMap<Who, (String, Option<u32>)>,
    processes: HashMap<Who, u32>,
    /// What was behind the descriptors of calls, by thread and entry.
    files: HashMap<(Who, u64), Arc<str>>,
    /// The functions of call chains by their numbers, the outermost first.
    stacks: HashMap<u32, Vec<String>>,
}

/// What is said of a wait that nobody has ended.
const GOES_ON: &str = "it goes on at the end";

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A command from its first instruction until it ended.
    Command,
    /// A wait, until the thread ran again.
    Wait,
    /// From an event to another.
    Request,
}

impl Found {
    pub fn new(scheduler: &Scheduler, what: What, who: Who, [from, to]: [u64; 2]) -> Self {
        let path = path(&scheduler.account, who, from, to);
        let (mut names, mut processes) = (HashMap::new(), HashMap::new());
        let mut learn = |who| {
            names.entry(who).or_insert_with(|| {
                let name = scheduler.account.known(who).map(|known| known.name.clone()).filter(|name| !name.is_empty());
                (name.unwrap_or_else(|| "?".into()), scheduler.tid(who))
            });
        };
        learn(who);
        let mut join = |who| {
            let process = scheduler.account.known(who).and_then(|known| known.process);
            processes.extend(process.map(|process| (who, process)));
        };
        all(&path, &mut |step| {
            learn(step.who);
            join(step.who);
            if let Does::Blocked { end: Some(Waker::Thread(waker)), .. } = step.what {
                learn(waker);
            }
            for (has, _) in &step.instead {
                if let Has::Thread(who) = has {
                    learn(*who);
                }
            }
        });
        let goes_on = false;
        Self { who, from, to, what, goes_on, path, names, processes, files: HashMap::new(), stacks: HashMap::new() }
    }

    /// The same of what is known now. The names of threads that are forgotten are those that they had.
    pub fn again(&mut self, scheduler: &Scheduler) {
        let now = Self::new(scheduler, self.what, self.who, [self.from, self.to]);
        let is_known = |(who, name): &(Who, (String, Option<u32>))| name.0 != "?" || !self.names.contains_key(who);
        let names: Vec<_> = now.names.into_iter().filter(is_known).collect();
        self.names.extend(names);
        self.processes.extend(now.processes);
        self.path = now.path;
    }

    /// The thread still waits, and nothing is known of what comes next.
    pub fn goes_on(mut self) -> Self {
        self.goes_on = true;
        self
    }

    /// Names what was behind the descriptors of calls, as far as that is known.
    pub fn name_files(&mut self, known: &Files, calls: &mut Calls) {
        let Self { path, names, processes, files, .. } = self;
        all(path, &mut |step| {
            let Does::Blocked { call: In::Call(call), .. } = &step.what else { return };
            let descriptor = calls.of(call.number).descriptor(&call.args);
            let thread = names.get(&step.who).and_then(|(_, tid)| *tid);
            let numbers = processes.get(&step.who).copied().zip(thread).map(<[u32; 2]>::from);
            let Some((descriptor, numbers)) = descriptor.zip(numbers) else { return };
            if let Some(name) = known.name(numbers, descriptor, call, step.from) {
                files.insert((step.who, call.entered), name);
            }
        });
    }

    /// A thread that was woken at this time was woken for a signal.
    pub fn signalled(&mut self, who: Who, woken: u64, number: NonZeroU8) {
        signalled(&mut self.path, who, woken, number);
    }

    fn file(&self, who: Who, call: &Call) -> Option<&str> {
        self.files.get(&(who, call.entered)).map(|name| &**name)
    }

    /// Names the functions where threads stood. Those of a process that runs are known as long as it does.
    pub fn name_stacks(&mut self, stacks: &mut Stacks) {
        let named = &mut self.stacks;
        all(&self.path, &mut |step| {
            if let Does::Blocked { stacks: numbers, .. } = step.what {
                for number in numbers.into_iter().filter(|number| *number != 0) {
                    named.entry(number).or_insert_with(|| stacks.names(number));
                }
            }
        });
    }

    pub fn lasted(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    /// Name and number. A thread from outside of this PID namespace has no number here.
    fn name(&self, who: Who) -> String {
        match self.names.get(&who) {
            Some((name, Some(tid))) => format!("{name}/{tid}"),
            Some((name, None)) => format!("{name}/-"),
            None => "?/-".into(),
        }
    }

    /// For people.
    pub fn text(&self, calls: &mut Calls, stamp: &Stamp, out: &mut Out) -> io::Result<()> {
        let (who, lasted, from) = (self.name(self.who), short(self.lasted()), stamp.text(Some(self.from)));
        let did = match self.what {
            What::Command => "took",
            What::Wait => "waited",
            What::Request => "had a request that took",
        };
        line(out, format_args!("{who} {did} {lasted}, from {} on", from.trim_start()))?;
        self.steps(&self.path, 1, calls, out)?;
        writeln!(out, "  whose doing:")?;
        let all = self.lasted().max(1) as f64;
        let sums = self.sums();
        for (culprit, time) in sums.iter().take(CULPRITS) {
            let (share, culprit) = (*time as f64 * 100.0 / all, self.culprit(culprit, true, calls));
            line(out, format_args!("  {:>9} {share:>3.0} %  {culprit}", short(*time)))?;
        }
        let rest = sums.get(CULPRITS..).unwrap_or_default();
        if !rest.is_empty() {
            let time = short(rest.iter().map(|(_, time)| time).sum());
            writeln!(out, "  {time:>9}        {}", others(rest.len()))?;
        }
        writeln!(out)
    }

    /// The sums by culprit, the largest first.
    fn sums(&self) -> Vec<(Culprit, u64)> {
        sums(&self.path)
    }

    /// The same by words without numbers of threads, to be set beside those of others.
    pub fn parts(&self, calls: &mut Calls) -> HashMap<String, u64> {
        let mut parts = HashMap::new();
        for (culprit, time) in self.sums() {
            *parts.entry(self.culprit(&culprit, false, calls)).or_default() += time;
        }
        parts
    }

    /// The longest, in their order, and what the rest is together.
    fn steps(&self, path: &[Step], depth: usize, calls: &mut Calls, out: &mut Out) -> io::Result<()> {
        let most = if depth == 1 { STEPS[0] } else { STEPS[1] };
        let mut longest: Vec<_> = path.iter().map(Step::lasted).collect();
        longest.sort_unstable_by(|one, other| other.cmp(one));
        // Nothing is hidden for a line that says so.
        let least = if path.len() <= most + 1 { 0 } else { longest[most - 1].max(1) };
        let (mut shown, mut hidden) = (0, Vec::new());
        let indent = "  ".repeat(4 * (depth - 1));
        for step in path {
            if step.lasted() < least || shown == most + 1 {
                hidden.push(step.lasted());
                continue;
            }
            shown += 1;
            let words = self.words(step, depth > 1, calls);
            line(out, format_args!("{indent}  {:>9}  {words}", short(step.lasted())))?;
            if let Does::Blocked { stacks, .. } = &step.what {
                for (stack, did) in stacks.iter().zip(["fell asleep in", "was woken in"]) {
                    let Some(names) = self.stacks.get(stack) else { continue };
                    let mut inner: Vec<_> = names.iter().rev().map(String::as_str).take(FRAMES).collect();
                    inner.extend((names.len() > FRAMES).then_some("..."));
                    line(out, format_args!("{indent}             {did} {}", inner.join(" < ")))?;
                }
            }
            self.steps(&step.within, depth + 1, calls, out)?;
        }
        if !hidden.is_empty() {
            let time = short(hidden.iter().sum());
            let stretches = if hidden.len() == 1 { "stretch" } else { "stretches" };
            writeln!(out, "{indent}  {time:>9}  in {} shorter {stretches}", hidden.len())?;
        }
        Ok(())
    }

    /// What a step is. `named`: whose it is, too.
    fn words(&self, step: &Step, named: bool, calls: &mut Calls) -> String {
        let who = if named { self.name(step.who) + " " } else { String::new() };
        match &step.what {
            Does::Runs { cpu } => format!("{who}ran on CPU {cpu}{}", taken(&step.interrupts)),
            Does::Unknown(cause) => format!("{who}unknown: {}", cause.words()),
            Does::Ready { cpu: None, .. } => format!("{who}ready, and has not run yet"),
            Does::Ready { cpu: Some(cpu), taken_off, held } => {
                let why = match (held, taken_off) {
                    (true, _) => "ready, held back by a quota",
                    (false, true) => "ready, taken off its CPU",
                    (false, false) => "ready",
                };
                format!("{who}{why}: CPU {cpu} {}", self.shares(step))
            }
            Does::Blocked { why, call, end, signal: sent, .. } => {
                let state = match why {
                    Why::Disk => "blocked, uninterruptible,",
                    Why::Stopped => "stopped",
                    Why::Other | Why::Asleep | Why::Ready => "blocked",
                };
                let call = match call {
                    In::Unknown => String::new(),
                    In::Nothing => " outside of a system call".into(),
                    In::Call(call) => format!(" in {}", calls.words(call, self.file(step.who, call))),
                };
                let end = match end {
                    Some(Waker::Thread(waker)) => format!("woken by {}", self.name(*waker)),
                    Some(Waker::Interrupt(name)) => interrupt(name.as_deref()),
                    None if self.goes_on && (step.who, step.to) == (self.who, self.to) => GOES_ON.into(),
                    None => "nothing says who ended it".into(),
                };
                let by = sent.map(|sent| format!(", with {}", signal_name(sent))).unwrap_or_default();
                format!("{who}{state}{call}: {end}{by}")
            }
        }
    }

    /// Who ran instead.
    fn shares(&self, step: &Step) -> String {
        let all = step.lasted().max(1) as f64;
        let percent = |time: u64| format!("({:.0} %)", time as f64 * 100.0 / all);
        let (most, rest) = step.instead.split_at(SHARES.min(step.instead.len()));
        let mut shares: Vec<_> = most
            .iter()
            .map(|(has, time)| match has {
                Has::Thread(who) => format!("ran {} {}", self.name(*who), percent(*time)),
                Has::Idle => format!("was idle {}", percent(*time)),
                Has::Unknown(_) => format!("ran nobody knows whom {}", percent(*time)),
            })
            .collect();
        if !rest.is_empty() {
            let time = rest.iter().map(|(_, time)| time).sum();
            shares.push(format!("{} {}", others(rest.len()), percent(time)));
        }
        shares.join(", ")
    }

    /// In words. `numbered`: with the numbers of threads.
    fn culprit(&self, culprit: &Culprit, numbered: bool, calls: &mut Calls) -> String {
        let name = |who: &Who| match self.names.get(who) {
            Some((name, _)) if !numbered => name.clone(),
            _ => self.name(*who),
        };
        let mut inside = |number: &Option<i64>| match number {
            Some(number) => format!(" in {}", calls.of(*number).name),
            None => String::new(),
        };
        match culprit {
            Culprit::Ran(who) => format!("{} ran", name(who)),
            Culprit::Interrupted(who, interrupt) => {
                format!("{} ran, and interrupt {interrupt} took its CPU", name(who))
            }
            Culprit::Had(who) => format!("{} had the CPU", name(who)),
            Culprit::Quota(who) => format!("a quota held {} back", name(who)),
            Culprit::Idle => "the CPU was idle: a wake-up that came late, or a quota".into(),
            Culprit::Interrupt(who, call, by) => {
                let inside = inside(call);
                format!("{} was blocked{inside}: {}", name(who), interrupt(by.as_deref()))
            }
            Culprit::Waited(who, call, _) => {
                let inside = inside(call);
                let end = if self.goes_on && *who == self.who { GOES_ON } else { "nothing says who ended it" };
                format!("{} was blocked{inside}: {end}", name(who))
            }
            Culprit::Waker(who) => format!("{}, which is not followed further", name(who)),
            Culprit::Unknown(cause) => format!("unknown: {}", cause.words()),
        }
    }

    /// For programs.
    pub fn object(&self, calls: &mut Calls, stamp: &Stamp, out: &mut Out) -> io::Result<()> {
        line(out, format_args!("{}", self.value(calls, stamp)))
    }

    /// The same as a value.
    pub fn value(&self, calls: &mut Calls, stamp: &Stamp) -> Value {
        let culprits = self.sums().into_iter().map(|(culprit, time)| {
            let (kind, who) = match &culprit {
                Culprit::Ran(who) => ("ran", Some(*who)),
                Culprit::Interrupted(who, _) => ("interrupted", Some(*who)),
                Culprit::Had(who) => ("had the CPU", Some(*who)),
                Culprit::Quota(who) => ("held back", Some(*who)),
                Culprit::Idle => ("idle", None),
                Culprit::Interrupt(who, ..) => ("interrupt", Some(*who)),
                Culprit::Waited(who, ..) => ("waited", Some(*who)),
                Culprit::Waker(who) => ("not followed", Some(*who)),
                Culprit::Unknown(_) => ("unknown", None),
            };
            let mut object = json!({ "what": kind, "ns": time, "text": self.culprit(&culprit, true, calls) });
            if let Some(who) = who {
                self.add(&mut object, who);
            }
            object
        });
        let culprits: Vec<_> = culprits.collect();
        let steps: Vec<_> = self.path.iter().map(|step| self.step(step, calls, stamp)).collect();
        let what = match self.what {
            What::Command => "command",
            What::Wait => "wait",
            What::Request => "request",
        };
        let mut object = json!({ "why": what, "from": stamp.number(self.from), "to": stamp.number(self.to), "ns": self.lasted(),
            "path": steps, "culprits": culprits });
        self.add(&mut object, self.who);
        if self.goes_on {
            object["goes_on"] = true.into();
        }
        object
    }

    /// The thread.
    fn add(&self, object: &mut Value, who: Who) {
        let known = self.names.get(&who);
        object["thread"] = known.map(|(name, _)| name.clone()).into();
        object["tid"] = known.and_then(|(_, tid)| *tid).into();
    }

    fn step(&self, step: &Step, calls: &mut Calls, stamp: &Stamp) -> Value {
        let mut object = json!({ "from": stamp.number(step.from), "to": stamp.number(step.to), "ns": step.lasted() });
        self.add(&mut object, step.who);
        let mut fields = Map::new();
        let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
        match &step.what {
            Does::Runs { cpu } => {
                set("what", "ran".into());
                set("cpu", (*cpu).into());
                if !step.interrupts.is_empty() {
                    let interrupts = step.interrupts.iter();
                    set(
                        "interrupts",
                        interrupts.map(|(name, time)| json!({ "interrupt": &**name, "ns": time })).collect(),
                    );
                }
            }
            Does::Unknown(cause) => {
                set("what", "unknown".into());
                set("cause", cause.words().into());
            }
            Does::Ready { cpu, taken_off, held } => {
                set("what", "ready".into());
                set("held_back", (*held).into());
                set("cpu", (*cpu).into());
                set("taken_off", (*taken_off).into());
                let instead = step.instead.iter().map(|(has, time)| {
                    let mut share = json!({ "ns": time });
                    match has {
                        Has::Thread(who) => self.add(&mut share, *who),
                        Has::Idle => share["idle"] = true.into(),
                        Has::Unknown(cause) => share["unknown"] = cause.words().into(),
                    }
                    share
                });
                set("instead", instead.collect());
            }
            Does::Blocked { .. } => fields = self.blocked(step, calls, stamp),
        }
        if let Value::Object(object) = &mut object {
            object.extend(fields);
        }
        object
    }

    /// What is said of a step that is blocked.
    fn blocked(&self, step: &Step, calls: &mut Calls, stamp: &Stamp) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
        let Does::Blocked { why, call, end, signal: sent, stacks, .. } = &step.what else { return fields };
        set("what", "blocked".into());
        let state = match why {
            Why::Disk => "disk",
            Why::Stopped => "stopped",
            Why::Other => "other",
            Why::Asleep | Why::Ready => "asleep",
        };
        set("state", state.into());
        if let In::Call(call) = call {
            let of = calls.of(call.number);
            set("call", of.name.clone().into());
            set("args", of.json(Values::bare(&call.args), &mut Exact::default()));
            self.file(step.who, call).into_iter().for_each(|file| set("file", file.into()));
        }
        let by = match end {
            Some(Waker::Thread(waker)) => {
                let mut by = json!({});
                self.add(&mut by, *waker);
                by
            }
            Some(Waker::Interrupt(name)) => json!({ "interrupt": name.as_deref().unwrap_or("unnamed") }),
            None => Value::Null,
        };
        set("by", by);
        sent.iter().for_each(|sent| set("signal", signal_name(*sent).into()));
        for (stack, name) in stacks.iter().zip(["asleep_at", "woken_at"]) {
            self.stacks.get(stack).into_iter().for_each(|names| set(name, names.clone().into()));
        }
        let within: Vec<_> = step.within.iter().map(|step| self.step(step, calls, stamp)).collect();
        if !within.is_empty() {
            set("path", within.into());
        }
        fields
    }

    /// Adds who waited for whom, as frames from the outermost on. What the thread itself ran is no wait.
    fn fold(&self, calls: &mut Calls, chains: &mut BTreeMap<String, u64>) {
        let root = frame(&self.name(self.who));
        for step in self.path.iter().filter(|step| !matches!(step.what, Does::Runs { .. })) {
            self.fold_step(&root, step, calls, chains);
        }
    }

    fn fold_step(&self, before: &str, step: &Step, calls: &mut Calls, chains: &mut BTreeMap<String, u64>) {
        let mut add = |chain: String, time| *chains.entry(chain).or_default() += time;
        match &step.what {
            Does::Runs { .. } => add(format!("{before};ran"), step.lasted()),
            Does::Unknown(cause) => add(format!("{before};unknown: {}", cause.words()), step.lasted()),
            Does::Ready { held: true, .. } => add(format!("{before};ready;held back by a quota"), step.lasted()),
            Does::Ready { .. } => step.instead.iter().for_each(|(has, time)| {
                let has = match has {
                    Has::Thread(who) => frame(&self.name(*who)),
                    Has::Idle => "idle".into(),
                    Has::Unknown(_) => "unknown".into(),
                };
                add(format!("{before};ready;{has}"), *time);
            }),
            Does::Blocked { call, end, .. } => {
                let call = number(call).map_or_else(String::new, |number| format!(" in {}", calls.of(number).name));
                let before = format!("{before};blocked{}", frame(&call));
                match end {
                    Some(Waker::Thread(waker)) if step.within.is_empty() => {
                        add(format!("{before};{}", frame(&self.name(*waker))), step.lasted());
                    }
                    Some(Waker::Thread(waker)) => {
                        let before = format!("{before};{}", frame(&self.name(*waker)));
                        step.within.iter().for_each(|step| self.fold_step(&before, step, calls, chains));
                    }
                    Some(Waker::Interrupt(name)) => {
                        add(format!("{before};{}", frame(&interrupt(name.as_deref()))), step.lasted());
                    }
                    None => add(format!("{before};not known"), step.lasted()),
                }
            }
        }
    }
}

/// All paths together, one chain a line.
pub fn folded(found: &[Found], calls: &mut Calls, out: &mut impl Write) -> io::Result<()> {
    let mut chains = BTreeMap::new();
    found.iter().for_each(|one| one.fold(calls, &mut chains));
    chains.iter().try_for_each(|(chain, time)| writeln!(out, "{chain} {time}"))
}

fn all(path: &[Step], each: &mut impl FnMut(&Step)) {
    for step in path {
        each(step);
        all(&step.within, each);
    }
}

/// A real-time signal has no name.
fn signal_name(number: NonZeroU8) -> String {
    let name = signal(number.get().into());
    if name.starts_with("SIG") { name } else { format!("signal {name}") }
}

fn signalled(path: &mut [Step], who: Who, woken: u64, number: NonZeroU8) {
    for step in path.iter_mut().filter(|step| step.from < woken && woken <= step.to) {
        if let Does::Blocked { signal, .. } = &mut step.what
            && (step.who, step.to) == (who, woken)
        {
            *signal = Some(number);
        }
        signalled(&mut step.within, who, woken, number);
    }
}

/// What interrupts took of the time that a thread ran.
fn taken(interrupts: &[(Arc<str>, u64)]) -> String {
    let all = interrupts.iter().map(|(_, time)| time).sum();
    let each: Vec<_> = interrupts.iter().take(SHARES).map(|(name, time)| format!("{name} {}", short(*time))).collect();
    let rest = if interrupts.len() > SHARES { ", and others" } else { "" };
    match each[..] {
        [] => String::new(),
        _ => format!(", of it {} in interrupts: {}{rest}", short(all), each.join(", ")),
    }
}

fn others(count: usize) -> String {
    if count == 1 { "another".into() } else { format!("{count} others") }
}

fn interrupt(name: Option<&str>) -> String {
    match name {
        // Nobody woke it: its time was over.
        Some("timer") => "a timer ended it".into(),
        Some(name) => format!("interrupt {name}"),
        None => "an interrupt".into(),
    }
}
