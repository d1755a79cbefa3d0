//! A line for each event, for people and for programs.

use super::view::{Shown, View, lossy};
use super::{Out, Sink};
use crate::deferred::Part;
use crate::exact::Exact;
use crate::numbers::OUTSIDE;
use crate::out::line;
use crate::session::{notice, notice_json};
use crate::stamp::Stamp;
use perfweave::{Certainty, Event, Item, Record};
use perfweave_events::Field;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// As `perf script` prints it, and what is wrong with the event's place.
pub struct Text(pub Out, pub Stamp);

impl Sink for Text {
    fn event(&mut self, event: &Event<'_>, view: &View) -> io::Result<()> {
        let Self(out, stamp) = self;
        let time = event.key().map_or_else(String::new, |_| format!("{}: ", stamp.text(event.key()).trim_start()));
        let Item::Record(record) = event.item() else {
            return match notice(&event.item()) {
                Some(notice) => line(out, format_args!("{:>24} {time}{notice}", "")),
                None => Ok(()),
            };
        };
        let tid = view.tid(&record);
        let comm = tid.and_then(|tid| view.comm(tid)).map_or("?".into(), lossy);
        let tid = match tid {
            // From outside of the recorder's PID namespace.
            Some(OUTSIDE..) => "-".into(),
            Some(tid) => tid.to_string(),
            None => "?".into(),
        };
        let cpu = event.cpu().map_or("   ".into(), |cpu| format!("{cpu:03}"));
        let by = view.interrupt(&record).map_or(String::new(), |interrupt| format!(" (by {interrupt})"));
        let place = match event.certainty() {
            Certainty::Proven => String::new(),
            Certainty::Assumed => " (order not proven)".into(),
            Certainty::Late => format!(" (late by {} ns)", event.late_by()),
        };
        view.shown(&record).into_iter().try_for_each(|shown| {
            let (name, words) = (view.name(&record, shown), view.words(&record, shown));
            line(out, format_args!("{comm:>16} {tid:>7} [{cpu}] {time}{name}: {words}{by}{place}"))
        })
    }

    fn finish(mut self: Box<Self>, _: &View) -> io::Result<()> {
        self.0.flush()
    }
}

/// The same as objects.
pub struct Json(pub Out, pub Stamp);

impl Sink for Json {
    fn event(&mut self, event: &Event<'_>, view: &View) -> io::Result<()> {
        let Self(out, stamp) = self;
        let objects = match event.item() {
            Item::Record(record) => {
                view.shown(&record).into_iter().map(|shown| object(event, &record, shown, view, *stamp)).collect()
            }
            other => Vec::from_iter(notice_json(&other, event.key().map(|key| stamp.number(key)))),
        };
        objects.iter().try_for_each(|object| line(out, format_args!("{object}")))
    }

    fn finish(mut self: Box<Self>, _: &View) -> io::Result<()> {
        self.0.flush()
    }
}

fn object(event: &Event<'_>, record: &Record<'_>, shown: Shown, view: &View, stamp: Stamp) -> Value {
    let (mut object, mut exact) = (Map::new(), Exact::default());
    let mut put = |name: &str, value: Value| drop(object.insert(name.into(), value));
    put("time", json!(event.key().map(|key| stamp.number(key))));
    put("cpu", json!(event.cpu()));
    put("event", json!(view.name(record, shown)));
    let tid = view.tid(record);
    put("tid", json!(tid.filter(|tid| *tid < OUTSIDE)));
    if let Some(pid) = tid.and_then(|tid| view.pid(tid)) {
        put("pid", json!(pid));
    }
    if let Some(comm) = tid.and_then(|tid| view.comm(tid)) {
        put("comm", exact.string(&["comm"], comm, false));
    }
    if let Some(interrupt) = view.interrupt(record) {
        put("interrupt", json!(interrupt));
    }
    match event.certainty() {
        Certainty::Proven => {}
        Certainty::Assumed => put("proven", json!(false)),
        Certainty::Late => put("late_by", json!(event.late_by())),
    }
    let hex = |address: u64| format!("{address:#x}");
    if let Some(chain) = record.callchain() {
        put("callchain", chain.map(hex).collect());
    }
    match view.deferred.part(record) {
        Part::Own => {}
        Part::Came(chain) => put("deferred", chain.iter().copied().map(hex).collect()),
        Part::Missing => put("deferred", Value::Null),
    }
    if let Some(period) = shown.period {
        put("period", json!(period));
    }
    match view.format(record).filter(|_| shown.is_own) {
        // The others of the first four are elsewhere in the object, or of no use to anybody.
        Some(format) => {
            // In a PID namespace the fields of this and other events name the thread by another number than `tid`.
            let has_other = tid.is_some() && tid != view.common_pid(record);
            let own = |field: &&Field| match field.name() {
                "common_flags" => true,
                "common_pid" => has_other,
                name => !name.starts_with("common_"),
            };
            let fields = format.fields().iter().filter(own);
            put("fields", fields.map(|field| pair(field, record, &mut exact)).collect::<Map<_, _>>().into())
        }
        None => put("text", exact.string(&["text"], &view.fields(record, shown), false)),
    }
    exact.put(&mut object);
    object.into()
}

/// A field and its value: a text, a number, or numbers. What texts do not say is noted for `fields` of an object.
pub fn pair(field: &Field, record: &Record<'_>, exact: &mut Exact) -> (String, Value) {
    let number = |int: i64| if field.is_signed() { json!(int) } else { json!(int as u64) };
    let value = if field.is_text() {
        let mut text = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            exact.string(&["fields", field.name()], &bytes[..end], false)
        };
        json!(field.bytes(record).map(|bytes| text(&bytes.to_vec())))
    } else if field.is_array() {
        json!(field.ints(record).map(|ints| ints.map(number).collect::<Vec<_>>()))
    } else if field.is_signed() {
        json!(field.int(record))
    } else {
        json!(field.uint(record))
    };
    (field.name().to_owned(), value)
}
