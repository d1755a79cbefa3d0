//! A trace for <https://ui.perfetto.dev>: a track for each CPU and each thread, wake-ups as flow arrows.

use super::picture::{By, Loss, Painter, Picture, Place, Point, Run, Wait, Wake};
use super::spill::{Kept, Sorted};
use super::view::View;
use super::{Out, Sink};
use crate::packed::Packed;
use perfweave::{Clock, ClockOffset, Event};
use prost::Message;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::{self, Write};

/// The fields that are written of the messages of `protos/perfetto/trace` (Perfetto's own names and numbers).
mod proto {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub struct TracePacket {
        #[prost(message, optional, tag = "6")]
        pub clock_snapshot: Option<ClockSnapshot>,
        #[prost(uint64, optional, tag = "8")]
        pub timestamp: Option<u64>,
        #[prost(uint32, optional, tag = "10")]
        pub trusted_packet_sequence_id: Option<u32>,
        #[prost(message, optional, tag = "11")]
        pub track_event: Option<TrackEvent>,
        #[prost(uint32, optional, tag = "13")]
        pub sequence_flags: Option<u32>,
        #[prost(uint32, optional, tag = "58")]
        pub timestamp_clock_id: Option<u32>,
        #[prost(message, optional, tag = "60")]
        pub track_descriptor: Option<TrackDescriptor>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ClockSnapshot {
        #[prost(message, repeated, tag = "1")]
        pub clocks: Vec<Clock>,
        #[prost(int32, optional, tag = "2")]
        pub primary_trace_clock: Option<i32>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Clock {
        #[prost(uint32, optional, tag = "1")]
        pub clock_id: Option<u32>,
        #[prost(uint64, optional, tag = "2")]
        pub timestamp: Option<u64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct TrackDescriptor {
        #[prost(uint64, optional, tag = "1")]
        pub uuid: Option<u64>,
        #[prost(string, optional, tag = "2")]
        pub name: Option<String>,
        #[prost(message, optional, tag = "3")]
        pub process: Option<ProcessDescriptor>,
        #[prost(message, optional, tag = "4")]
        pub thread: Option<ThreadDescriptor>,
        #[prost(uint64, optional, tag = "5")]
        pub parent_uuid: Option<u64>,
        #[prost(int32, optional, tag = "11")]
        pub child_ordering: Option<i32>,
        #[prost(int32, optional, tag = "12")]
        pub sibling_order_rank: Option<i32>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ProcessDescriptor {
        #[prost(int32, optional, tag = "1")]
        pub pid: Option<i32>,
        #[prost(string, optional, tag = "6")]
        pub process_name: Option<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ThreadDescriptor {
        #[prost(int32, optional, tag = "1")]
        pub pid: Option<i32>,
        #[prost(int32, optional, tag = "2")]
        pub tid: Option<i32>,
        #[prost(string, optional, tag = "5")]
        pub thread_name: Option<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct TrackEvent {
        #[prost(message, repeated, tag = "4")]
        pub debug_annotations: Vec<DebugAnnotation>,
        /// 1: a slice begins, 2: it ends, 3: an instant.
        #[prost(int32, optional, tag = "9")]
        pub r#type: Option<i32>,
        #[prost(uint64, optional, tag = "11")]
        pub track_uuid: Option<u64>,
        #[prost(string, repeated, tag = "22")]
        pub categories: Vec<String>,
        #[prost(string, optional, tag = "23")]
        pub name: Option<String>,
        #[prost(fixed64, repeated, tag = "47")]
        pub flow_ids: Vec<u64>,
        #[prost(fixed64, repeated, tag = "48")]
        pub terminating_flow_ids: Vec<u64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct DebugAnnotation {
        #[prost(uint64, optional, tag = "3")]
        pub uint_value: Option<u64>,
        #[prost(string, optional, tag = "6")]
        pub string_value: Option<String>,
        #[prost(string, optional, tag = "10")]
        pub name: Option<String>,
    }
}
use proto::{
    ClockSnapshot, DebugAnnotation, ProcessDescriptor, ThreadDescriptor, TracePacket, TrackDescriptor, TrackEvent,
};

const BEGIN: i32 = 1;
const END: i32 = 2;
const INSTANT: i32 = 3;
/// All packets are of one sequence, which does without state of its own.
const SEQUENCE: u32 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`
const CLEARED: u32 = 1;
/// Uuids of tracks: these, and the number of the CPU, thread or process.
const CPUS: u64 = 1 << 40;
const CPU: u64 = 2 << 40;
const LOSS: u64 = 3 << 40;
const THREAD: u64 = 4 << 40;
const PROCESS: u64 = 5 << 40;
/// Losses of no one CPU.
const ANY: u64 = u32::MAX as u64;
/// `BUILTIN_CLOCK_REALTIME`
const REALTIME: u32 = 1;

pub struct Perfetto {
    out: Out,
    painter: Painter,
}

impl Perfetto {
    pub fn new(out: Out, painter: Painter) -> Self {
        Self { out, painter }
    }
}

impl Sink for Perfetto {
    fn event(&mut self, event: &Event<'_>, view: &View) -> io::Result<()> {
        self.painter.event(event, view)
    }

    fn finish(mut self: Box<Self>, view: &View) -> io::Result<()> {
        let picture = self.painter.finish()?;
        // Without a wall clock the times stand alone: there is nothing to relate them to.
        let timestamp_clock_id = view.wall.map(|_| clock_id(view.clock));
        if let Some(wall) = view.wall {
            write(&mut self.out, snapshot(clock_id(view.clock), picture.start, wall))?;
        }
        tracks(&mut self.out, &picture)?;
        Packets::of(&picture)?.all(|time, event| {
            let (timestamp, track_event) = (Some(time), Some(event));
            write(&mut self.out, TracePacket { timestamp, timestamp_clock_id, track_event, ..TracePacket::default() })
        })?;
        self.out.flush()
    }
}

/// Perfetto's number of a clock (`builtin_clock.proto`). Those without one have a number of this sequence.
fn clock_id(clock: Clock) -> u32 {
    match clock {
        Clock::Realtime => REALTIME,
        Clock::Monotonic => 3,
        Clock::MonotonicRaw => 5,
        Clock::Boottime => 6,
        _ => 64,
    }
}

/// What the clock of the events and the wall clock say at the same moment. Perfetto shows times of day by it.
fn snapshot(id: u32, time: u64, wall: ClockOffset) -> TracePacket {
    let says = |id, time| proto::Clock { clock_id: Some(id), timestamp: Some(time) };
    let mut clocks = vec![says(id, time)];
    if id != REALTIME {
        clocks.push(says(REALTIME, wall.apply(time)));
    }
    // Only a clock that Perfetto knows by itself can be that of the whole trace.
    let primary = if id < 64 { id } else { REALTIME };
    let clock_snapshot = Some(ClockSnapshot { clocks, primary_trace_clock: Some(primary.cast_signed()) });
    TracePacket { clock_snapshot, ..TracePacket::default() }
}

/// Writes a packet of `Trace`, whose one field it is (number 1, with a length).
fn write(out: &mut impl Write, mut packet: TracePacket) -> io::Result<()> {
    packet.trusted_packet_sequence_id = Some(SEQUENCE);
    let mut bytes = vec![1 << 3 | 2];
    packet.encode_length_delimited(&mut bytes).map_err(io::Error::other)?;
    out.write_all(&bytes)
}

fn tracks(out: &mut impl Write, picture: &Picture) -> io::Result<()> {
    let named = |uuid, name: String, parent_uuid, rank: u32| TrackDescriptor {
        uuid: Some(uuid),
        name: Some(name),
        parent_uuid,
        sibling_order_rank: Some(rank.cast_signed()),
        ..TrackDescriptor::default()
    };
    // By rank: 3 is EXPLICIT.
    let mut all = vec![TrackDescriptor { child_ordering: Some(3), ..named(CPUS, "CPUs".into(), None, 0) }];
    for cpu in &picture.cpus {
        all.push(named(CPU + u64::from(*cpu), format!("CPU {cpu}"), Some(CPUS), 2 * cpu));
    }
    for cpu in picture.losses.iter().map(|loss| loss.cpu).collect::<std::collections::BTreeSet<_>>() {
        let name = cpu.map_or("records missing".into(), |cpu| format!("CPU {cpu}: records missing"));
        let rank = cpu.map_or(u32::MAX >> 1, |cpu| 2 * cpu + 1);
        all.push(named(LOSS + cpu.map_or(ANY, u64::from), name, Some(CPUS), rank));
    }
    let mut processes = BTreeMap::new();
    for (tid, thread) in picture.threads.iter().filter(|(tid, _)| **tid > 0) {
        let pid = thread.pid.unwrap_or(*tid);
        let name = picture.threads.get(&pid).map_or(&thread.name, |leader| &leader.name);
        let process = ProcessDescriptor { pid: Some(pid.cast_signed()), process_name: Some(name.clone()) };
        processes.entry(pid).or_insert(process);
        let [pid, id] = [pid, *tid].map(u32::cast_signed);
        let described = ThreadDescriptor { pid: Some(pid), tid: Some(id), thread_name: Some(thread.name.clone()) };
        let uuid = Some(THREAD + u64::from(*tid));
        all.push(TrackDescriptor { uuid, thread: Some(described), ..TrackDescriptor::default() });
    }
    all.extend(processes.into_iter().map(|(pid, process)| {
        let uuid = Some(PROCESS + u64::from(pid));
        TrackDescriptor { uuid, process: Some(process), ..TrackDescriptor::default() }
    }));
    for (at, descriptor) in all.into_iter().enumerate() {
        let sequence_flags = (at == 0).then_some(CLEARED);
        let track_descriptor = Some(descriptor);
        write(out, TracePacket { sequence_flags, track_descriptor, ..TracePacket::default() })?;
    }
    Ok(())
}

fn event(kind: i32, track: u64, name: Option<String>) -> TrackEvent {
    TrackEvent { r#type: Some(kind), track_uuid: Some(track), name, ..TrackEvent::default() }
}

/// Makes the packets of a picture one after the other, by their times: a trace is much larger than the picture.
struct Packets<'a> {
    picture: &'a Picture,
    runs: Kept<Woken>,
    /// With their places in the picture.
    waits: Sorted<(usize, Wait), u64>,
    /// With their flows.
    points: Sorted<(Option<u64>, Point), u64>,
    ends: BinaryHeap<Reverse<End>>,
}

/// A run, and the wake-up that it follows.
type Woken = (Run, Option<Wake>);

/// A slice that has begun. Those that end at the same time end in the order of the picture: when, which kind of slices
/// it is, which of these, and on which track.
type End = (u64, usize, usize, u64);

/// Kinds of slices, in the order in which they begin and end at the same time.
const RUN: usize = 0;
const WAIT: usize = 1;
const MISSING: usize = 2;

impl<'a> Packets<'a> {
    fn of(picture: &'a Picture) -> io::Result<Self> {
        let (runs, flows) = woken(picture)?;
        let (mut waits, mut flows) = (Sorted::by(|(_, wait): &(_, Wait)| wait.from), Ahead::of(flows.iter())?);
        picture.waits.iter().enumerate().try_for_each(|(at, wait)| waits.push((at, wait?)))?;
        let mut points = Sorted::by(|(_, point): &(_, Point)| point.time);
        for (at, point) in picture.points.iter().enumerate() {
            let mut flow = None;
            while flows.next.is_some_and(|next| next <= at) {
                flow = flows.take()?.map(flow_of);
            }
            points.push((flow, point?))?;
        }
        Ok(Self { picture, runs, waits, points, ends: BinaryHeap::new() })
    }

    /// At the same time, slices end before others begin, and begin before the instants in them.
    fn all(self, mut put: impl FnMut(u64, TrackEvent) -> io::Result<()>) -> io::Result<()> {
        let Self { picture, runs, mut waits, mut points, mut ends } = self;
        let (mut runs, mut waits) = (Ahead::of(numbered(&runs))?, Ahead::of(waits.iter()?)?);
        let mut points = Ahead::of(points.iter()?)?;
        let mut losses: Vec<_> = picture.losses.iter().enumerate().collect();
        losses.sort_by_key(|(_, loss)| loss.from);
        let mut losses = losses.into_iter().peekable();
        loop {
            let begin = [
                runs.next.as_ref().map(|(_, (run, _))| run.from),
                waits.next.as_ref().map(|(_, wait)| wait.from),
                losses.peek().map(|(_, loss)| loss.from),
            ];
            let first = begin.iter().flatten().min().copied();
            let instant = points.next.as_ref().map(|(_, point)| point.time);
            let next = [first, instant].into_iter().flatten().min();
            if let Some(&Reverse((to, .., track))) = ends.peek()
                && next.is_none_or(|next| to <= next)
            {
                ends.pop();
                put(to, event(END, track, None))?;
                continue;
            }
            let mut slice = |from, to, kind, at, begin: TrackEvent| {
                ends.push(Reverse((to, kind, at, begin.track_uuid.unwrap_or(0))));
                put(from, begin)
            };
            if first.is_none() || first != next {
                let Some((flow, point)) = points.take()? else { return Ok(()) };
                put(point.time, instant_of(picture, flow, &point))?;
            } else if begin[RUN] == first {
                let Some((at, (run, wake))) = runs.take()? else { continue };
                for begin in of_run(picture, &run, wake.as_ref()) {
                    slice(run.from, run.to, RUN, at, begin)?;
                }
            } else if begin[WAIT] == first {
                let Some((at, wait)) = waits.take()? else { continue };
                slice(wait.from, wait.to, WAIT, at, of_wait(picture, &wait))?;
            } else if let Some((at, loss)) = losses.next() {
                // A slice without length has no end after its beginning.
                slice(loss.from, loss.to.max(loss.from.saturating_add(1)), MISSING, at, of_loss(loss))?;
            }
        }
    }
}

fn numbered<T: Packed>(kept: &Kept<T>) -> impl Iterator<Item = io::Result<(usize, T)>> {
    kept.iter().enumerate().map(|(at, value)| Ok((at, value?)))
}

/// The runs with the wake-ups that they follow, and the places of the events that tell of these.
fn woken(picture: &Picture) -> io::Result<(Kept<Woken>, Kept<usize>)> {
    let mut wakes = Sorted::by(|wake: &Wake| wake.ran.0);
    picture.wakes.iter().try_for_each(|wake| wakes.push(wake?))?;
    let (mut wakes, mut here) = (Ahead::of(wakes.iter()?)?, Vec::<Wake>::new());
    let (mut runs, mut flows) = (Kept::default(), Sorted::by(|point: &usize| *point));
    for run in picture.runs.iter() {
        let run = run?;
        here.retain(|wake| wake.ran.0 == run.from);
        while wakes.next.as_ref().is_some_and(|wake| wake.ran.0 <= run.from) {
            here.extend(wakes.take()?.filter(|wake| wake.ran.0 == run.from));
        }
        let of_run = || here.iter().filter(|wake| wake.woken == run.tid);
        of_run().filter_map(|wake| wake.point).try_for_each(|point| flows.push(point))?;
        // Of several the last counts.
        runs.push(&(run, of_run().next_back().cloned()))?;
    }
    Ok((runs, flows.kept()?))
}

/// Values, and the next one of them.
struct Ahead<I, T> {
    next: Option<T>,
    rest: I,
}

impl<I: Iterator<Item = io::Result<T>>, T> Ahead<I, T> {
    fn of(mut rest: I) -> io::Result<Self> {
        Ok(Self { next: rest.next().transpose()?, rest })
    }

    fn take(&mut self) -> io::Result<Option<T>> {
        Ok(std::mem::replace(&mut self.next, self.rest.next().transpose()?))
    }
}

/// Who ran where, on the track of the CPU and on that of the thread.
fn of_run(picture: &Picture, run: &Run, wake: Option<&Wake>) -> [TrackEvent; 2] {
    let on_cpu = event(BEGIN, CPU + u64::from(run.cpu), Some(picture.name(run.tid)));
    let mut of_thread = event(BEGIN, THREAD + u64::from(run.tid), Some(format!("CPU {}", run.cpu)));
    if let Some(wake) = wake {
        of_thread.terminating_flow_ids.extend(wake.point.map(flow_of));
        of_thread.debug_annotations.push(word("woken by", by(picture, &wake.by)));
        of_thread.debug_annotations.push(count("waited_ns", run.from.saturating_sub(wake.time)));
    }
    [on_cpu, of_thread]
}

/// What threads waited for.
fn of_wait(picture: &Picture, wait: &Wait) -> TrackEvent {
    let mut begin = event(BEGIN, THREAD + u64::from(wait.tid), Some(wait.words().into()));
    begin.categories.push("wait".into());
    begin.debug_annotations.extend(wait.call.as_ref().map(|call| word("in", call.clone())));
    begin.debug_annotations.extend(wait.by.as_ref().map(|waker| word("woken by", by(picture, waker))));
    begin
}

/// Stretches in which records are missing.
fn of_loss(loss: &Loss) -> TrackEvent {
    let mut begin = event(BEGIN, LOSS + loss.cpu.map_or(ANY, u64::from), Some("records missing".into()));
    begin.categories.push("loss".into());
    begin.debug_annotations.push(word("what", loss.text.clone()));
    begin
}

/// An event, on the track of the thread that caused it. What the idle thread and interrupts cause is on the CPU's
/// track.
fn instant_of(picture: &Picture, flow: Option<u64>, point: &Point) -> TrackEvent {
    let track = match (point.by(), point.cpu) {
        (Some(tid @ 1..), _) => THREAD + u64::from(tid),
        (_, Some(cpu)) => CPU + u64::from(cpu),
        _ => CPUS,
    };
    let name = &picture.events[point.event];
    let mut instant = event(INSTANT, track, Some(name.clone()));
    instant.categories.push(name.split_once(':').map_or("perf", |(category, _)| category).to_owned());
    instant.flow_ids.extend(flow);
    instant.debug_annotations.push(word("event", point.text.clone()));
    instant.debug_annotations.extend(point.cpu.map(|cpu| count("cpu", cpu.into())));
    instant.debug_annotations.extend(point.interrupt.map(|interrupt| word("by interrupt", interrupt.into())));
    if !point.chain.is_empty() {
        instant.debug_annotations.push(word("call chain", point.chain.join("\n")));
    }
    match point.place {
        Place::Proven => {}
        Place::Assumed => {
            instant.categories.push("unproven".into());
            instant.name = Some(format!("{name} (order not proven)"));
        }
        Place::Late(by) => {
            instant.categories.push("late".into());
            instant.name = Some(format!("{name} (late)"));
            instant.debug_annotations.push(count("late_by_ns", by));
        }
    }
    instant
}

/// The thread or the interrupt that woke a thread.
fn by(picture: &Picture, by: &By) -> String {
    match by {
        By::Thread(tid) => picture.name(*tid),
        By::Interrupt(interrupt) => format!("[{interrupt}]"),
    }
}

/// The flow of a wake-up of which the event at this place tells: any number that no other has.
fn flow_of(point: usize) -> u64 {
    point as u64 + 1
}

fn word(name: &str, value: String) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), string_value: Some(value), uint_value: None }
}

fn count(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), string_value: None, uint_value: Some(value) }
}

#[cfg(test)]
mod tests {
    use super::proto::TrackEvent;
    use super::{BEGIN, CPU, END, INSTANT, Packets, THREAD};
    use crate::convert::picture::{By, Loss, Picture, Place, Point, Run, Wait, Wake};
    use crate::waits::Why;

    fn point() -> Point {
        let (place, text) = (Place::Proven, "x".into());
        Point { time: 7, cpu: Some(1), tid: Some(9), interrupt: None, event: 0, text, place, chain: vec![] }
    }

    fn packets(picture: &Picture) -> Vec<(u64, TrackEvent)> {
        let mut all = Vec::new();
        let put = |time, event| {
            all.push((time, event));
            Ok(())
        };
        Packets::of(picture).unwrap().all(put).unwrap();
        all
    }

    fn instants(picture: &Picture) -> Vec<TrackEvent> {
        packets(picture).into_iter().map(|(_, event)| event).filter(|event| event.r#type == Some(INSTANT)).collect()
    }

    /// At the same time, slices end before others begin, and begin before the instants in them.
    #[test]
    fn packets_come_by_their_times() {
        let run = |from, to| Run { cpu: 0, tid: 3, from, to };
        let wait = Wait { tid: 3, from: 7, to: 9, why: Why::Ready, cpu: None, call: None, by: None };
        let picture = Picture {
            events: vec!["x".into()],
            points: [point(), Point { time: 9, ..point() }].into_iter().collect(),
            runs: [run(5, 7), run(9, 12)].into_iter().collect(),
            waits: [wait].into_iter().collect(),
            losses: vec![Loss { cpu: None, from: 12, to: 12, text: String::new() }],
            ..Picture::default()
        };
        let order: Vec<_> = packets(&picture).into_iter().map(|(time, event)| (time, event.r#type.unwrap())).collect();
        let (runs, waits) = ([(5, BEGIN), (5, BEGIN), (7, END), (7, END)], [(7, BEGIN), (7, INSTANT), (9, END)]);
        let ran = [(9, BEGIN), (9, BEGIN), (9, INSTANT), (12, END), (12, END), (12, BEGIN), (13, END)];
        assert_eq!(order, [&runs[..], &waits, &ran].concat());
    }

    /// The thread that it interrupts has no part in what an interrupt does.
    #[test]
    fn what_an_interrupt_does_is_on_its_cpus_track() {
        let points = [None, Some("softirq")].map(|interrupt| Point { interrupt, ..point() }).into_iter().collect();
        let wakes = [(0, By::Thread(9)), (1, By::Interrupt("softirq".into()))].map(|(point, by)| {
            let ran = (8 + point as u64, 0);
            Wake { time: 7, point: Some(point), by, cpu: Some(1), woken: 3, ran }
        });
        let runs = [8, 9].map(|from| Run { cpu: 0, tid: 3, from, to: from + 1 }).into_iter().collect();
        let events = vec!["sched:sched_waking".into()];
        let picture = Picture { events, points, wakes: wakes.into_iter().collect(), runs, ..Picture::default() };
        let tracks: Vec<_> = instants(&picture).into_iter().map(|event| event.track_uuid).collect();
        assert_eq!(tracks, [Some(THREAD + 9), Some(CPU + 1)]);
        let notes = packets(&picture).into_iter().flat_map(|(_, event)| event.debug_annotations);
        let wakers = notes.filter(|note| note.name.as_deref() == Some("woken by")).filter_map(|note| note.string_value);
        assert_eq!(wakers.collect::<Vec<_>>(), ["? 9", "[softirq]"]);
    }

    /// Recordings have no late events, but their readers may.
    #[test]
    fn late_and_unproven_events_say_so() {
        let point = |place| Point { place, ..point() };
        let points = [Place::Proven, Place::Assumed, Place::Late(50)].map(point).into_iter().collect();
        let picture = Picture { events: vec!["sched:sched_switch".into()], points, ..Picture::default() };
        let read = instants(&picture);
        let categories = read.iter().map(|event| event.categories.join(" ")).collect::<Vec<_>>();
        assert_eq!(categories, ["sched", "sched unproven", "sched late"]);
        let by = read[2].debug_annotations.iter().find(|note| note.name.as_deref() == Some("late_by_ns")).unwrap();
        assert_eq!(by.uint_value, Some(50));
    }
}
