//! What two events have in common, by which one that ends is joined to one that begins.

use crate::failure::Failure;
use perfweave::{Record, Rings};
use perfweave_events::{Field, Format};

/// A value of the common field: a number or a text.
#[derive(Debug, PartialEq, Eq, Hash)]
pub enum Value {
    Number(u64),
    Text(String),
}

/// Refuses what is not the name of one event.
pub fn is_one(events: [&String; 2]) -> Result<(), Failure> {
    let Some(pattern) = events.into_iter().find(|name| name.contains(['*', '?']) || !name.contains(':')) else {
        return Ok(());
    };
    let hint = "the events are tracepoints, category:name, as in `perf list` or available_events of tracefs";
    Err(Failure::hinting(format_args!("{pattern} is not the name of one tracepoint"), hint))
}

/// The common field, or two: FROM=TO.
pub fn fields(rings: &Rings, [from, to]: [usize; 2], by: &str) -> Result<[Field; 2], Failure> {
    let (by_from, by_to) = by.split_once('=').unwrap_or((by, by));
    Ok([Format::of(rings, from)?.field(by_from)?, Format::of(rings, to)?.field(by_to)?])
}

pub fn value(field: &Field, record: &Record<'_>) -> Option<Value> {
    if field.is_text() {
        return field.text(record).map(|text| Value::Text(text.into_owned()));
    }
    field.uint(record).map(Value::Number)
}
