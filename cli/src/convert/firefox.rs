//! A profile for <https://profiler.firefox.com>: call chains as samples of their thread, all other events as marks on
//! it.

use super::picture::{Painter, Picture, Place, Point};
use super::view::View;
use super::{Out, Sink};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CategoryPairHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerFieldFlags,
    MarkerFieldFormat, MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp, SamplingInterval, StaticSchemaMarker,
    StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp,
};
use perfweave::Event;
use std::collections::{BTreeMap, HashMap};
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
        self.painter.event(event, view);
        Ok(())
    }

    fn finish(mut self: Box<Self>, view: &View) -> io::Result<()> {
        let picture = self.painter.finish();
        let profile = Tracks::new(&picture, view).fill(&picture);
        serde_json::to_writer(&mut self.out, &profile).map_err(io::Error::from)?;
        self.out.flush()
    }
}

/// An event, a stretch on a CPU, or a loss.
struct Mark {
    name: StringHandle,
    text: StringHandle,
    category: CategoryHandle,
}

impl StaticSchemaMarker for Mark {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "perfweave";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "text",
        label: "Event",
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.text
    }

    fn number_field_value(&self, _: u32) -> f64 {
        0.0
    }
}

/// A track for each thread and each CPU.
struct Tracks {
    profile: Profile,
    threads: HashMap<u32, ThreadHandle>,
    cpus: BTreeMap<u32, ThreadHandle>,
    /// Of events that name no CPU, and losses of no one CPU.
    others: ThreadHandle,
    late: CategoryHandle,
    lost: CategoryHandle,
    start: u64,
}

impl Tracks {
    fn new(picture: &Picture, view: &View) -> Self {
        let name = view.path.file_name().unwrap_or_default().to_string_lossy();
        let interval = SamplingInterval::from_millis(1);
        // The format wants a date. Where there is none, the profile's name says so.
        let since = view.wall.map_or(0, |wall| wall.apply(picture.start));
        let reference = ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(since));
        let undated = if view.wall.is_none() { ", date not known" } else { "" };
        let mut profile = Profile::new(&format!("{name}{undated}"), reference, interval);
        let late = profile.add_category("Late or unproven", CategoryColor::Red);
        let lost = profile.add_category("Records missing", CategoryColor::Orange);
        let zero = Timestamp::from_nanos_since_reference(0);
        let machine = profile.add_process("CPUs", 0, zero);
        let others = profile.add_thread(machine, 0, zero, true);
        profile.set_thread_name(others, "all CPUs");
        let mut tracks =
            Self { profile, threads: HashMap::new(), cpus: BTreeMap::new(), others, late, lost, start: picture.start };
        for cpu in &picture.cpus {
            let track = tracks.profile.add_thread(machine, *cpu, zero, false);
            tracks.profile.set_thread_name(track, &format!("CPU {cpu}"));
            tracks.cpus.insert(*cpu, track);
        }
        tracks.add_threads(picture);
        tracks
    }

    fn add_threads(&mut self, picture: &Picture) {
        let mut processes: HashMap<u32, ProcessHandle> = HashMap::new();
        let zero = Timestamp::from_nanos_since_reference(0);
        for (tid, thread) in picture.threads.iter().filter(|(tid, _)| **tid > 0) {
            let pid = thread.pid.unwrap_or(*tid);
            let name = picture.threads.get(&pid).map_or(&thread.name, |leader| &leader.name);
            let process = *processes.entry(pid).or_insert_with(|| self.profile.add_process(name, pid, zero));
            let track = self.profile.add_thread(process, *tid, zero, pid == *tid);
            self.profile.set_thread_name(track, &thread.name);
            self.profile.set_thread_show_markers_in_timeline(track, true);
            self.threads.insert(*tid, track);
        }
    }

    fn time(&self, time: u64) -> Timestamp {
        Timestamp::from_nanos_since_reference(time.saturating_sub(self.start))
    }

    fn fill(mut self, picture: &Picture) -> Profile {
        for run in &picture.runs {
            if let Some(track) = self.threads.get(&run.tid).copied() {
                let timing = MarkerTiming::Interval(self.time(run.from), self.time(run.to));
                self.mark(track, timing, "running", &format!("on CPU {}", run.cpu), CategoryHandle::OTHER);
            }
        }
        for wait in &picture.waits {
            if let Some(track) = self.threads.get(&wait.tid).copied() {
                let timing = MarkerTiming::Interval(self.time(wait.from), self.time(wait.to));
                self.mark(track, timing, wait.words(), wait.call.as_deref().unwrap_or(""), CategoryHandle::OTHER);
            }
        }
        for loss in &picture.losses {
            let track = loss.cpu.and_then(|cpu| self.cpus.get(&cpu)).copied().unwrap_or(self.others);
            let timing = MarkerTiming::Interval(self.time(loss.from), self.time(loss.to));
            self.mark(track, timing, "records missing", &loss.text, self.lost);
        }
        for point in &picture.points {
            self.point(picture, point);
        }
        self.profile
    }

    fn point(&mut self, picture: &Picture, point: &Point) {
        // What an interrupt does is on its CPU's track: the thread that it interrupts has no part in it.
        let of_thread = point.by().and_then(|tid| self.threads.get(&tid));
        let of_cpu = || point.cpu.and_then(|cpu| self.cpus.get(&cpu));
        let track = of_thread.or_else(of_cpu).copied().unwrap_or(self.others);
        let (time, name) = (self.time(point.time), &picture.events[point.event]);
        if !point.chain.is_empty() {
            let mut stack = None;
            for function in &point.chain {
                let frame = Frame::Label(self.profile.intern_string(function));
                let category_pair = CategoryPairHandle::from(CategoryHandle::OTHER);
                let info = FrameInfo { frame, category_pair, flags: FrameFlags::empty() };
                let frame = self.profile.intern_frame(track, info);
                stack = Some(self.profile.intern_stack(track, stack, frame));
            }
            self.profile.add_sample(track, time, stack, CpuDelta::ZERO, 1);
        }
        let (category, place) = match point.place {
            Place::Proven => (CategoryHandle::OTHER, String::new()),
            Place::Assumed => (self.late, " (order not proven)".into()),
            Place::Late(by) => (self.late, format!(" (late by {by} ns)")),
        };
        let by = point.interrupt.map_or(String::new(), |interrupt| format!(" (by {interrupt})"));
        self.mark(track, MarkerTiming::Instant(time), name, &format!("{}{by}{place}", point.text), category);
    }

    fn mark(&mut self, track: ThreadHandle, timing: MarkerTiming, name: &str, text: &str, category: CategoryHandle) {
        let (name, text) = (self.profile.intern_string(name), self.profile.intern_string(text));
        self.profile.add_marker(track, timing, Mark { name, text, category });
    }
}
