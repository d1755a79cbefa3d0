//! A trace for <https://ui.perfetto.dev>: a track for each CPU and each thread, wake-ups as flow arrows.

use super::picture::{By, Painter, Picture, Place, Wake};
use super::view::View;
use super::{Out, Sink};
use perfweave::{Clock, ClockOffset, Event};
use prost::Message;
use std::collections::{HashMap, HashSet};
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
        self.painter.event(event, view);
        Ok(())
    }

    fn finish(mut self: Box<Self>, view: &View) -> io::Result<()> {
        let picture = self.painter.finish();
        // Without a wall clock the times stand alone: there is nothing to relate them to.
        let timestamp_clock_id = view.wall.map(|_| clock_id(view.clock));
        if let Some(wall) = view.wall {
            write(&mut self.out, snapshot(clock_id(view.clock), picture.start, wall))?;
        }
        tracks(&mut self.out, &picture)?;
        let mut packets = slices(&picture);
        packets.extend(instants(&picture));
        packets.extend(losses(&picture));
        // At the same time, slices end before others begin, and begin before the instants in them.
        packets.sort_by_key(|(time, event)| {
            (*time, [END, BEGIN].iter().position(|kind| event.r#type == Some(*kind)).unwrap_or(2))
        });
        for (time, event) in packets {
            let track_event = Some(event);
            let timestamp = Some(time);
            write(&mut self.out, TracePacket { timestamp, timestamp_clock_id, track_event, ..TracePacket::default() })?;
        }
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
    let mut processes = HashMap::new();
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

type Timed = (u64, TrackEvent);

fn event(kind: i32, track: u64, name: Option<String>) -> TrackEvent {
    TrackEvent { r#type: Some(kind), track_uuid: Some(track), name, ..TrackEvent::default() }
}

/// Who ran where, on the track of the CPU and on that of the thread; and what threads waited for.
fn slices(picture: &Picture) -> Vec<Timed> {
    let woken: HashMap<_, _> = picture.wakes.iter().map(|wake| ((wake.woken, wake.ran.0), wake)).collect();
    let mut packets = Vec::new();
    let mut slice = |from, to, begin: TrackEvent| {
        let end = event(END, begin.track_uuid.unwrap_or(0), None);
        packets.extend([(from, begin), (to, end)]);
    };
    for run in &picture.runs {
        let on_cpu = event(BEGIN, CPU + u64::from(run.cpu), Some(picture.name(run.tid)));
        let mut of_thread = event(BEGIN, THREAD + u64::from(run.tid), Some(format!("CPU {}", run.cpu)));
        if let Some(wake) = woken.get(&(run.tid, run.from)) {
            of_thread.terminating_flow_ids.extend(flow(wake));
            of_thread.debug_annotations.push(word("woken by", by(picture, &wake.by)));
            of_thread.debug_annotations.push(count("waited_ns", run.from.saturating_sub(wake.time)));
        }
        slice(run.from, run.to, on_cpu);
        slice(run.from, run.to, of_thread);
    }
    for wait in &picture.waits {
        let mut begin = event(BEGIN, THREAD + u64::from(wait.tid), Some(wait.words().into()));
        begin.categories.push("wait".into());
        begin.debug_annotations.extend(wait.call.as_ref().map(|call| word("in", call.clone())));
        begin.debug_annotations.extend(wait.by.as_ref().map(|waker| word("woken by", by(picture, waker))));
        slice(wait.from, wait.to, begin);
    }
    packets
}

/// The thread or the interrupt that woke a thread.
fn by(picture: &Picture, by: &By) -> String {
    match by {
        By::Thread(tid) => picture.name(*tid),
        By::Interrupt(interrupt) => format!("[{interrupt}]"),
    }
}

/// The flow of a wake-up: any number that no other has. `None`: no event tells of it.
fn flow(wake: &Wake) -> Option<u64> {
    wake.point.map(|point| point as u64 + 1)
}

/// All events, on the track of the thread that caused them. What the idle thread and interrupts cause is on the CPU's
/// track.
fn instants(picture: &Picture) -> impl Iterator<Item = Timed> {
    // A thread that begins to run with the last event has no slice that an arrow could lead to.
    let runs: HashSet<_> = picture.runs.iter().map(|run| (run.tid, run.from)).collect();
    let arrives = |wake: &&Wake| runs.contains(&(wake.woken, wake.ran.0));
    let flows = picture.wakes.iter().filter(arrives).filter_map(|wake| wake.point.zip(flow(wake)));
    let flows: HashMap<_, _> = flows.collect();
    picture.points.iter().enumerate().map(move |(at, point)| {
        let track = match (point.by(), point.cpu) {
            (Some(tid @ 1..), _) => THREAD + u64::from(tid),
            (_, Some(cpu)) => CPU + u64::from(cpu),
            _ => CPUS,
        };
        let name = &picture.events[point.event];
        let mut instant = event(INSTANT, track, Some(name.clone()));
        instant.categories.push(name.split_once(':').map_or("perf", |(category, _)| category).to_owned());
        instant.flow_ids.extend(flows.get(&at));
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
        (point.time, instant)
    })
}

/// Stretches in which records are missing.
fn losses(picture: &Picture) -> impl Iterator<Item = Timed> {
    picture.losses.iter().flat_map(|loss| {
        let track = LOSS + loss.cpu.map_or(ANY, u64::from);
        let mut begin = event(BEGIN, track, Some("records missing".into()));
        begin.categories.push("loss".into());
        begin.debug_annotations.push(word("what", loss.text.clone()));
        // A slice without length has no end after its beginning.
        [(loss.from, begin), (loss.to.max(loss.from + 1), event(END, track, None))]
    })
}

fn word(name: &str, value: String) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), string_value: Some(value), uint_value: None }
}

fn count(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), string_value: None, uint_value: Some(value) }
}

#[cfg(test)]
mod tests {
    use super::{CPU, INSTANT, THREAD, instants, slices};
    use crate::convert::picture::{By, Picture, Place, Point, Run, Wake};

    fn point() -> Point {
        let (place, text) = (Place::Proven, "x".into());
        Point { time: 7, cpu: Some(1), tid: Some(9), interrupt: None, event: 0, text, place, chain: vec![] }
    }

    /// The thread that it interrupts has no part in what an interrupt does.
    #[test]
    fn what_an_interrupt_does_is_on_its_cpus_track() {
        let points = [None, Some("softirq")].map(|interrupt| Point { interrupt, ..point() }).to_vec();
        let wakes = [(0, By::Thread(9)), (1, By::Interrupt("softirq".into()))].map(|(point, by)| {
            let ran = (8 + point as u64, 0);
            Wake { time: 7, point: Some(point), by, cpu: Some(1), woken: 3, ran }
        });
        let runs = [8, 9].map(|from| Run { cpu: 0, tid: 3, from, to: from + 1 }).to_vec();
        let events = vec!["sched:sched_waking".into()];
        let picture = Picture { events, points, wakes: wakes.to_vec(), runs, ..Picture::default() };
        let tracks: Vec<_> = instants(&picture).map(|(_, event)| event.track_uuid).collect();
        assert_eq!(tracks, [Some(THREAD + 9), Some(CPU + 1)]);
        let notes = slices(&picture).into_iter().flat_map(|(_, event)| event.debug_annotations);
        let wakers = notes.filter(|note| note.name.as_deref() == Some("woken by")).filter_map(|note| note.string_value);
        assert_eq!(wakers.collect::<Vec<_>>(), ["? 9", "[softirq]"]);
    }

    /// Recordings have no late events, but their readers may.
    #[test]
    fn late_and_unproven_events_say_so() {
        let point = |place| Point { place, ..point() };
        let points = [Place::Proven, Place::Assumed, Place::Late(50)].map(point).to_vec();
        let picture = Picture { events: vec!["sched:sched_switch".into()], points, ..Picture::default() };
        let read: Vec<_> = instants(&picture).map(|(_, event)| event).collect();
        assert!(read.iter().all(|event| event.r#type == Some(INSTANT)));
        let categories = read.iter().map(|event| event.categories.join(" ")).collect::<Vec<_>>();
        assert_eq!(categories, ["sched", "sched unproven", "sched late"]);
        let by = read[2].debug_annotations.iter().find(|note| note.name.as_deref() == Some("late_by_ns")).unwrap();
        assert_eq!(by.uint_value, Some(50));
    }
}
