//! A profile for <https://profiler.firefox.com>: call chains as samples of their thread, all other events as marks on
//! it.
//!
//! The format is `src/types/profile.js` of the profiler, in the version that is named here: it reads older ones. The
//! package of its maintainer has a whole profile in memory, which is several times a recording.

use super::picture::{Painter, Picture, Place, Point};
use super::spill::{Kept, Sorted};
use super::view::View;
use super::{Out, Sink};
use crate::packed::{Packed, packed};
use perfweave::Event;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::hash::{BuildHasher, Hash, RandomState};
use std::io::{self, Write};
use std::time::Duration;

pub struct Firefox {
    out: Out,
    painter: Painter,
}

impl Firefox {
    pub fn new(out: Out, painter: Painter) -> Self {
        Self { out, painter }
    }
}

impl Sink for Firefox {
    fn event(&mut self, event: &Event<'_>, view: &View) -> io::Result<()> {
        self.painter.event(event, view)
    }

    fn finish(mut self: Box<Self>, view: &View) -> io::Result<()> {
        let picture = self.painter.finish()?;
        let mut profile = Profile::new(&picture);
        profile.fill(&picture)?;
        profile.write(&mut self.out, &picture, view)?;
        self.out.flush()
    }
}

/// Places of categories in the profile.
const OTHER: u32 = 0;
const LATE: u32 = 1;
const LOST: u32 = 2;

const CATEGORIES: &str = r#"[{"name":"Other","color":"grey","subcategories":["Other"]},{"name":"Late or unproven","color":"red","subcategories":["Other"]},{"name":"Records missing","color":"orange","subcategories":["Other"]}]"#;
const SCHEMA: &str = r#"[{"name":"perfweave","display":["marker-chart","marker-table"],"chartLabel":"{marker.data.text}","tableLabel":"{marker.data.text}","fields":[{"key":"text","label":"Event","format":"unique-string","searchable":true}]}]"#;

/// A thread or a CPU, as the profile names it.
struct Track {
    pid: String,
    process: String,
    tid: String,
    name: String,
    is_main: bool,
    is_thread: bool,
}

/// An event, a stretch on a CPU, or a loss. Times are nanoseconds since the picture's start.
struct Mark {
    from: u64,
    /// `None`: it has no length.
    to: Option<u64>,
    /// Places in the track's texts.
    name: u32,
    text: u32,
    category: u32,
}
packed!(Mark { from, to, name, text, category });

/// What is written of all tracks, sorted by their numbers. The profile has each track's as columns.
struct Profile {
    tracks: Vec<Track>,
    threads: HashMap<u32, u32>,
    cpus: BTreeMap<u32, u32>,
    start: u64,
    marks: Rows<Mark, u32>,
    /// When, and the place of the innermost frame in the stacks.
    samples: Rows<(u64, u32), (u32, u64)>,
    texts: Rows<String, u32>,
    /// Places in the texts.
    functions: Rows<u32, u32>,
    /// The caller's place in the stacks, and the function.
    stacks: Rows<(Option<u32>, u32), u32>,
    numbers: Numbers,
}

type Rows<T, K> = Sorted<(u32, T), K>;

/// The place of each text, function and stack in those of its track.
#[derive(Default)]
struct Numbers {
    /// By two hashes of a text: no two texts have the same 128 bits.
    texts: HashMap<(u32, [u64; 2]), u32>,
    functions: HashMap<(u32, u32), u32>,
    stacks: HashMap<(u32, (Option<u32>, u32)), u32>,
    /// How many of each a track has.
    counts: HashMap<(u32, u8), u32>,
    hashes: [RandomState; 2],
}

/// The number of a thing in its track, and whether it is new.
fn number<K: Hash + Eq>(known: &mut HashMap<K, u32>, key: K, count: &mut u32) -> (u32, bool) {
    let number = *known.entry(key).or_insert(*count);
    let is_new = number == *count;
    *count += u32::from(is_new);
    (number, is_new)
}

/// Of events that name no CPU, and losses of no one CPU.
const OTHERS: u32 = 0;

impl Profile {
    fn new(picture: &Picture) -> Self {
        let mut profile = Self {
            tracks: Vec::new(),
            threads: HashMap::new(),
            cpus: BTreeMap::new(),
            start: picture.start,
            marks: Sorted::by(|(track, _)| *track),
            samples: Sorted::by(|(track, (time, _))| (*track, *time)),
            texts: Sorted::by(|(track, _)| *track),
            functions: Sorted::by(|(track, _)| *track),
            stacks: Sorted::by(|(track, _)| *track),
            numbers: Numbers::default(),
        };
        profile.add_tracks(picture);
        profile
    }

    fn add_tracks(&mut self, picture: &Picture) {
        // Numbers that come again get a suffix, because the profile has one name for each.
        let (mut pids, mut tids, mut processes) = (HashMap::new(), HashMap::new(), HashMap::new());
        let unique = |used: &mut HashMap<u32, u32>, number: u32| {
            let times = used.entry(number).and_modify(|times| *times += 1).or_default();
            if *times > 0 { format!("{number}.{times}") } else { number.to_string() }
        };
        let machine = unique(&mut pids, 0);
        let mut add = |pid: &str, process: &str, tid, name: String, is_main, is_thread| {
            let (pid, process, tid) = (pid.to_owned(), process.to_owned(), unique(&mut tids, tid));
            self.tracks.push(Track { pid, process, tid, name, is_main, is_thread });
            self.tracks.len() as u32 - 1
        };
        add(&machine, "CPUs", 0, "all CPUs".into(), true, false);
        for cpu in &picture.cpus {
            self.cpus.insert(*cpu, add(&machine, "CPUs", *cpu, format!("CPU {cpu}"), false, false));
        }
        for (tid, thread) in picture.threads.iter().filter(|(tid, _)| **tid > 0) {
            let pid = thread.pid.unwrap_or(*tid);
            let (unique, process) = processes.entry(pid).or_insert_with(|| {
                let name = picture.threads.get(&pid).map_or(&thread.name, |leader| &leader.name);
                (unique(&mut pids, pid), name)
            });
            self.threads.insert(*tid, add(unique, process, *tid, thread.name.clone(), pid == *tid, true));
        }
    }

    fn fill(&mut self, picture: &Picture) -> io::Result<()> {
        for run in picture.runs.iter() {
            let run = run?;
            if let Some(track) = self.threads.get(&run.tid).copied() {
                self.mark(track, [run.from, run.to], "running", &format!("on CPU {}", run.cpu), OTHER)?;
            }
        }
        for wait in picture.waits.iter() {
            let wait = wait?;
            if let Some(track) = self.threads.get(&wait.tid).copied() {
                self.mark(track, [wait.from, wait.to], wait.words(), wait.call.as_deref().unwrap_or(""), OTHER)?;
            }
        }
        for loss in &picture.losses {
            let track = loss.cpu.and_then(|cpu| self.cpus.get(&cpu)).copied().unwrap_or(OTHERS);
            self.mark(track, [loss.from, loss.to], "records missing", &loss.text, LOST)?;
        }
        picture.points.iter().try_for_each(|point| self.point(picture, &point?))
    }

    fn point(&mut self, picture: &Picture, point: &Point) -> io::Result<()> {
        // What an interrupt does is on its CPU's track: the thread that it interrupts has no part in it.
        let of_thread = point.by().and_then(|tid| self.threads.get(&tid));
        let of_cpu = || point.cpu.and_then(|cpu| self.cpus.get(&cpu));
        let track = of_thread.or_else(of_cpu).copied().unwrap_or(OTHERS);
        let mut stack = None;
        for function in &point.chain {
            stack = Some(self.stack(track, stack, function)?);
        }
        if let Some(stack) = stack {
            self.samples.push((track, (point.time.saturating_sub(self.start), stack)))?;
        }
        let (category, place) = match point.place {
            Place::Proven => (OTHER, String::new()),
            Place::Assumed => (LATE, " (order not proven)".into()),
            Place::Late(by) => (LATE, format!(" (late by {by} ns)")),
        };
        let by = point.interrupt.map_or(String::new(), |interrupt| format!(" (by {interrupt})"));
        let text = format!("{}{by}{place}", point.text);
        self.mark(track, [point.time], &picture.events[point.event], &text, category)
    }

    /// `times`: when it begins, and when it ends if it lasts.
    fn mark<const N: usize>(
        &mut self,
        track: u32,
        times: [u64; N],
        name: &str,
        text: &str,
        category: u32,
    ) -> io::Result<()> {
        let (name, text) = (self.text(track, name)?, self.text(track, text)?);
        let times = times.map(|time| time.saturating_sub(self.start));
        self.marks.push((track, Mark { from: times[0], to: times.get(1).copied(), name, text, category }))
    }

    fn text(&mut self, track: u32, text: &str) -> io::Result<u32> {
        let Numbers { texts, counts, hashes, .. } = &mut self.numbers;
        let hash = hashes.each_ref().map(|hash| hash.hash_one(text));
        let (number, is_new) = number(texts, (track, hash), counts.entry((track, 0)).or_default());
        if is_new {
            self.texts.push((track, text.to_owned()))?;
        }
        Ok(number)
    }

    fn stack(&mut self, track: u32, caller: Option<u32>, function: &str) -> io::Result<u32> {
        let text = self.text(track, function)?;
        let Numbers { functions, stacks, counts, .. } = &mut self.numbers;
        let (function, is_new) = number(functions, (track, text), counts.entry((track, 1)).or_default());
        if is_new {
            self.functions.push((track, text))?;
        }
        let row = (caller, function);
        let (stack, is_new) = number(stacks, (track, row), counts.entry((track, 2)).or_default());
        if is_new {
            self.stacks.push((track, row))?;
        }
        Ok(stack)
    }

    fn write(self, out: &mut Out, picture: &Picture, view: &View) -> io::Result<()> {
        let name = view.path.file_name().unwrap_or_default().to_string_lossy();
        // The format wants a date. Where there is none, the profile's name says so.
        let since = view.wall.map_or(0, |wall| wall.apply(picture.start));
        let undated = if view.wall.is_none() { ", date not known" } else { "" };
        let (product, start) = (json!(format!("{name}{undated}")), Duration::from_nanos(since).as_secs_f64() * 1000.0);
        write!(out, "{{\"meta\":{{\"categories\":{CATEGORIES},\"debug\":false,")?;
        write!(out, "\"extensions\":{{\"baseURL\":[],\"id\":[],\"length\":0,\"name\":[]}},\"interval\":1.0,")?;
        write!(out, "\"preprocessedProfileVersion\":55,\"processType\":0,\"product\":{product},")?;
        write!(out, "\"sampleUnits\":{{\"eventDelay\":\"ms\",\"threadCPUDelta\":\"µs\",\"time\":\"ms\"}},")?;
        write!(out, "\"startTime\":{},\"symbolicated\":false,\"pausedRanges\":[],\"version\":24,", json!(start))?;
        write!(out, "\"usesOnlyOneStackType\":true,\"sourceCodeIsNotOnSearchfox\":true,\"markerSchema\":{SCHEMA}}},")?;
        write!(out, "\"libs\":[],\"threads\":[")?;
        let tracks = &self.tracks;
        let tables = Tables {
            marks: Grouped::new(self.marks, tracks.len())?,
            samples: Grouped::new(self.samples, tracks.len())?,
            texts: Grouped::new(self.texts, tracks.len())?,
            functions: Grouped::new(self.functions, tracks.len())?,
            stacks: Grouped::new(self.stacks, tracks.len())?,
        };
        // Process by process, and in each the main thread first.
        let mut order: Vec<_> = (0..tracks.len()).collect();
        order.sort_by_key(|at| {
            let Track { pid, is_main, name, tid, .. } = &tracks[*at];
            (pid, !is_main, name, tid)
        });
        for (at, track) in order.into_iter().enumerate() {
            write!(out, "{}{{", if at > 0 { "," } else { "" })?;
            tables.write(out, &tracks[track], track)?;
        }
        write!(out, "],\"pages\":[],\"profilerOverhead\":[],\"counters\":[]}}")
    }
}

/// All rows by their tracks.
struct Tables {
    marks: Grouped<Mark>,
    samples: Grouped<(u64, u32)>,
    texts: Grouped<String>,
    functions: Grouped<u32>,
    stacks: Grouped<(Option<u32>, u32)>,
}

impl Tables {
    fn write(&self, out: &mut Out, track: &Track, at: usize) -> io::Result<()> {
        let Self { marks, samples, texts, functions, stacks } = self;
        let Track { pid, process, tid, name, is_main, is_thread } = track;
        // One function has one frame.
        write!(out, "\"frameTable\":{{\"length\":{}", functions.len(at))?;
        for (column, value) in [("address", "-1"), ("inlineDepth", "0"), ("category", "0"), ("subcategory", "0")] {
            functions.column(at, out, column, |_, _| value)?;
        }
        functions.column(at, out, "func", |at, _| at)?;
        for (column, value) in [("nativeSymbol", "null"), ("innerWindowID", "0"), ("line", "null"), ("column", "null")]
        {
            functions.column(at, out, column, |_, _| value)?;
        }
        write!(out, "}},\"funcTable\":{{\"length\":{}", functions.len(at))?;
        functions.column(at, out, "name", |_, name| name)?;
        for (column, value) in [("isJS", "false"), ("relevantForJS", "false"), ("resource", "-1")] {
            functions.column(at, out, column, |_, _| value)?;
        }
        for column in ["fileName", "lineNumber", "columnNumber"] {
            functions.column(at, out, column, |_, _| "null")?;
        }
        write!(out, "}},\"markers\":{{\"length\":{}", marks.len(at))?;
        marks.column(at, out, "category", |_, mark| mark.category)?;
        marks.column(at, out, "data", |_, mark| format!("{{\"type\":\"perfweave\",\"text\":{}}}", mark.text))?;
        marks.column(at, out, "endTime", |_, mark| milliseconds(mark.to.unwrap_or(0)))?;
        marks.column(at, out, "name", |_, mark| mark.name)?;
        marks.column(at, out, "phase", |_, mark| u8::from(mark.to.is_some()))?;
        marks.column(at, out, "startTime", |_, mark| milliseconds(mark.from))?;
        let (name, process) = (json!(if *is_main { process } else { name }), json!(process));
        write!(out, "}},\"name\":{name},\"isMainThread\":{is_main},\"nativeSymbols\":{{\"length\":0,\"address\":[],")?;
        write!(out, "\"functionSize\":[],\"libIndex\":[],\"name\":[]}},\"pausedRanges\":[],\"pid\":\"{pid}\",")?;
        write!(out, "\"processName\":{process},\"processShutdownTime\":null,\"processStartupTime\":0.0,")?;
        write!(out, "\"processType\":\"default\",\"registerTime\":0.0,\"resourceTable\":{{\"length\":0,\"lib\":[],")?;
        write!(out, "\"name\":[],\"host\":[],\"type\":[]}},\"samples\":{{\"length\":{}", samples.len(at))?;
        write!(out, ",\"weightType\":\"samples\"")?;
        samples.column(at, out, "stack", |_, (_, stack)| stack)?;
        let mut last = 0;
        samples
            .column(at, out, "timeDeltas", |_, (time, _)| milliseconds(time - std::mem::replace(&mut last, time)))?;
        samples.column(at, out, "weight", |_, _| 1)?;
        samples.column(at, out, "threadCPUDelta", |_, _| 0)?;
        write!(out, "}},\"stackTable\":{{\"length\":{}", stacks.len(at))?;
        stacks.column(at, out, "prefix", |_, (caller, _)| json!(caller))?;
        stacks.column(at, out, "frame", |_, (_, function)| function)?;
        write!(out, "}}")?;
        texts.column(at, out, "stringArray", |_, text| json!(text))?;
        write!(out, ",\"tid\":\"{tid}\",\"unregisterTime\":null,\"showMarkersInTimeline\":{is_thread}}}")
    }
}

fn milliseconds(time: u64) -> serde_json::Value {
    json!(time as f64 / 1e6)
}

/// Rows, and where those of each track are.
struct Grouped<T> {
    rows: Kept<(u32, T)>,
    tracks: Vec<(u64, usize)>,
}

impl<T: Packed> Grouped<T> {
    fn new<K: Ord + Copy>(mut sorted: Rows<T, K>, tracks: usize) -> io::Result<Self> {
        let (mut rows, mut tracks) = (Kept::default(), vec![(0, 0); tracks]);
        for row in sorted.iter()? {
            let row = row?;
            let (at, len) = &mut tracks[row.0 as usize];
            if *len == 0 {
                *at = rows.place();
            }
            *len += 1;
            rows.push(&row)?;
        }
        Ok(Self { rows, tracks })
    }

    fn len(&self, track: usize) -> usize {
        self.tracks[track].1
    }

    /// Writes a column of a track's rows, behind what the table has already.
    fn column<V: Display>(
        &self,
        track: usize,
        out: &mut Out,
        name: &str,
        mut value: impl FnMut(usize, T) -> V,
    ) -> io::Result<()> {
        let (at, len) = self.tracks[track];
        write!(out, ",\"{name}\":[")?;
        for (number, row) in self.rows.part(at, len).enumerate() {
            write!(out, "{}{}", if number > 0 { "," } else { "" }, value(number, row?.1))?;
        }
        write!(out, "]")
    }
}
