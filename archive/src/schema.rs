//! The columns of the tables, and how a record becomes a row.

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BinaryBuilder, BooleanBuilder, DictionaryArray, PrimitiveBuilder, StringArray,
    StringBuilder,
};
use arrow::datatypes::{
    DataType, Field, Int8Type, Int16Type, Int32Type, Int64Type, Schema, SchemaRef, TimeUnit, TimestampNanosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use perfweave::Record;
use perfweave_events::{Field as PayloadField, Format};
use std::sync::Arc;

/// Columns that each event table has, those of the folders included. A field of an event that has such a name gets a
/// suffix.
const TAKEN: [&str; 14] = [
    "mono",
    "tai",
    "tai_error",
    "cpu_id",
    "boot",
    "trace",
    "row",
    "proven",
    "late",
    "common_pid",
    "machine",
    "date",
    "hour",
    "stamp",
];

/// A column that is being filled.
#[derive(Debug)]
enum Column {
    I8(PrimitiveBuilder<Int8Type>),
    I16(PrimitiveBuilder<Int16Type>),
    I32(PrimitiveBuilder<Int32Type>),
    I64(PrimitiveBuilder<Int64Type>),
    U8(PrimitiveBuilder<UInt8Type>),
    U16(PrimitiveBuilder<UInt16Type>),
    U32(PrimitiveBuilder<UInt32Type>),
    U64(PrimitiveBuilder<UInt64Type>),
    Time(PrimitiveBuilder<TimestampNanosecondType>),
    Truth(BooleanBuilder),
    Text(StringBuilder),
    Bytes(BinaryBuilder),
    /// The same text in each row, and how many rows there are.
    Same(Arc<StringArray>, usize),
}

/// A value of a row that is no event.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A number.
    Int(i64),
    /// TAI in nanoseconds since 1970.
    Time(i64),
    /// True or false.
    Truth(bool),
    /// Text.
    Text(&'a str),
    /// Nothing is known.
    Null,
}

fn add<T: ArrowPrimitiveType>(builder: &mut PrimitiveBuilder<T>, value: Option<T::Native>) {
    builder.append_option(value);
}

impl Column {
    fn of(kind: &DataType, same: &str) -> Self {
        match kind {
            DataType::Int8 => Self::I8(PrimitiveBuilder::new()),
            DataType::Int16 => Self::I16(PrimitiveBuilder::new()),
            DataType::Int32 => Self::I32(PrimitiveBuilder::new()),
            DataType::Int64 => Self::I64(PrimitiveBuilder::new()),
            DataType::UInt8 => Self::U8(PrimitiveBuilder::new()),
            DataType::UInt16 => Self::U16(PrimitiveBuilder::new()),
            DataType::UInt32 => Self::U32(PrimitiveBuilder::new()),
            DataType::UInt64 => Self::U64(PrimitiveBuilder::new()),
            DataType::Timestamp(..) => Self::Time(PrimitiveBuilder::new()),
            DataType::Boolean => Self::Truth(BooleanBuilder::new()),
            DataType::Utf8 => Self::Text(StringBuilder::new()),
            DataType::Dictionary(..) => Self::Same(Arc::new(StringArray::from(vec![same])), 0),
            _ => Self::Bytes(BinaryBuilder::new()),
        }
    }

    /// A field of a record. What does not fit the payload is null.
    fn add_field(&mut self, field: &PayloadField, record: &Record<'_>) {
        let int = || field.int(record);
        match self {
            Self::I8(to) => add(to, int().map(|int| int as i8)),
            Self::I16(to) => add(to, int().map(|int| int as i16)),
            Self::I32(to) => add(to, int().map(|int| int as i32)),
            Self::I64(to) => add(to, int()),
            Self::U8(to) => add(to, int().map(|int| int as u8)),
            Self::U16(to) => add(to, int().map(|int| int as u16)),
            Self::U32(to) => add(to, int().map(|int| int as u32)),
            Self::U64(to) => add(to, field.uint(record)),
            Self::Text(to) => to.append_option(field.text(record)),
            Self::Bytes(to) => match field.bytes(record) {
                Some(bytes) => to.append_value(bytes.to_cow()),
                None => to.append_null(),
            },
            Self::Time(_) | Self::Truth(_) | Self::Same(..) => unreachable!("no field has such a type"),
        }
    }

    fn add_value(&mut self, value: Value<'_>) {
        match (self, value) {
            (Self::I32(to), Value::Int(int)) => add(to, i32::try_from(int).ok()),
            (Self::I64(to), Value::Int(int)) => add(to, Some(int)),
            (Self::U64(to), Value::Int(int)) => add(to, Some(int.cast_unsigned())),
            (Self::Time(to), Value::Time(time)) => add(to, Some(time)),
            (Self::Truth(to), Value::Truth(truth)) => to.append_value(truth),
            (Self::Text(to), Value::Text(text)) => to.append_value(text),
            (Self::Same(_, rows), Value::Text(_)) => *rows += 1,
            (Self::I32(to), Value::Null) => add(to, None),
            (Self::I64(to), Value::Null) => add(to, None),
            (Self::U64(to), Value::Null) => add(to, None),
            (column, value) => unreachable!("{value:?} in {column:?}"),
        }
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::I8(from) => Arc::new(from.finish()),
            Self::I16(from) => Arc::new(from.finish()),
            Self::I32(from) => Arc::new(from.finish()),
            Self::I64(from) => Arc::new(from.finish()),
            Self::U8(from) => Arc::new(from.finish()),
            Self::U16(from) => Arc::new(from.finish()),
            Self::U32(from) => Arc::new(from.finish()),
            Self::U64(from) => Arc::new(from.finish()),
            Self::Time(from) => Arc::new(from.finish()),
            Self::Truth(from) => Arc::new(from.finish()),
            Self::Text(from) => Arc::new(from.finish()),
            Self::Bytes(from) => Arc::new(from.finish()),
            Self::Same(text, rows) => repeated(text, std::mem::take(rows))?,
        })
    }
}

/// So many rows of [`constant`].
pub(crate) fn repeated(text: &Arc<StringArray>, rows: usize) -> Result<ArrayRef, ArrowError> {
    Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(vec![0; rows].into(), Arc::clone(text) as ArrayRef)?))
}

/// The type of the column for a field.
fn type_of(field: &PayloadField) -> DataType {
    match (field.is_text(), field.is_array(), field.width(), field.is_signed()) {
        (true, ..) => DataType::Utf8,
        (_, true, ..) => DataType::Binary,
        (.., 1, true) => DataType::Int8,
        (.., 1, false) => DataType::UInt8,
        (.., 2, true) => DataType::Int16,
        (.., 2, false) => DataType::UInt16,
        (.., 4, true) => DataType::Int32,
        (.., 4, false) => DataType::UInt32,
        (.., 8, true) => DataType::Int64,
        (.., 8, false) => DataType::UInt64,
        _ => DataType::Binary,
    }
}

/// What all rows of a recording share.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The boot of the kernel, by its id.
    pub boot: String,
    /// The recording, by its id.
    pub trace: String,
}

/// When and where in the recording a row is.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// `CLOCK_MONOTONIC`
    pub mono: i64,
    /// `CLOCK_TAI`
    pub tai: i64,
    /// By how many nanoseconds `tai` can be wrong, either way.
    pub tai_error: i64,
    /// The place in the order of the recording, over all tables.
    pub row: i64,
}

/// What a row of an event has besides its time and its own fields.
#[derive(Debug, Clone, Copy)]
pub struct Of {
    /// The CPU of the ring.
    pub cpu: u32,
    /// Whether the order is proven.
    pub proven: bool,
    /// Whether it came after a later event.
    pub late: bool,
    /// The thread by its number in the first PID namespace, for an event whose format does not have it. Other tables
    /// are joined by it.
    pub tid: Option<u32>,
}

/// A table whose next batch is being filled.
#[derive(Debug)]
pub struct Table {
    /// Where its files are, below the URL.
    pub folder: String,
    schema: SchemaRef,
    columns: Vec<Column>,
    /// The thread, in the payload of an event.
    pid: Option<PayloadField>,
    /// The fields of an event, in the order of the last columns. `None` for an event without a format.
    fields: Option<Vec<PayloadField>>,
    rows: usize,
}

fn column(name: &str, kind: DataType, nullable: bool) -> Field {
    Field::new(name, kind, nullable)
}

/// A column that has the same text in each row.
pub(crate) fn constant(name: &str) -> Field {
    column(name, DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)), false)
}

fn times() -> Vec<Field> {
    vec![
        column("mono", DataType::Int64, false),
        column("tai", DataType::Timestamp(TimeUnit::Nanosecond, None), false),
        column("tai_error", DataType::Int64, false),
    ]
}

impl Table {
    fn new(folder: String, columns: Vec<Field>, origin: &Origin) -> Self {
        let text_of = |name: &str| if name == "boot" { &origin.boot } else { &origin.trace };
        let builders = columns.iter().map(|column| Column::of(column.data_type(), text_of(column.name()))).collect();
        Self { folder, schema: Arc::new(Schema::new(columns)), columns: builders, pid: None, fields: None, rows: 0 }
    }

    /// The table of an event. Without a format it has the instruction's address as its only own column.
    pub fn event(system: &str, name: &str, format: Option<&Format>, origin: &Origin) -> Self {
        let mut columns = times();
        columns.push(column("cpu_id", DataType::Int32, false));
        columns.extend([constant("boot"), constant("trace"), column("row", DataType::Int64, false)]);
        columns.extend(["proven", "late"].map(|name| column(name, DataType::Boolean, false)));
        columns.push(column("common_pid", DataType::Int32, true));
        let all = format.map(Format::fields).unwrap_or_default();
        let pid = all.iter().find(|field| field.name() == "common_pid");
        let own = all.iter().filter(|field| !field.name().starts_with("common_"));
        let mut names: Vec<String> = TAKEN.map(str::to_owned).to_vec();
        for field in own.clone() {
            let mut name = field.name().to_owned();
            while names.contains(&name) {
                name.push_str("_field");
            }
            columns.push(column(&name, type_of(field), true));
            names.push(name);
        }
        if format.is_none() {
            columns.push(column("ip", DataType::UInt64, true));
        }
        let fields = format.is_some().then(|| own.cloned().collect());
        let folder = format!("events/{}/{}", in_a_path(system), in_a_path(name));
        Self { pid: pid.cloned(), fields, ..Self::new(folder, columns, origin) }
    }

    /// What is missing, and what is out of order.
    pub fn notices(origin: &Origin) -> Self {
        let int = |name| column(name, DataType::Int64, true);
        let mut columns = of_all();
        columns.extend([column("kind", DataType::Utf8, false), column("cpu_id", DataType::Int32, true)]);
        columns.extend([int("count"), int("from_mono"), int("to_mono"), column("text", DataType::Utf8, false)]);
        Self::new("notices".into(), columns, origin)
    }

    /// How the clocks stand to each other.
    pub fn clocks(origin: &Origin) -> Self {
        let mut columns = of_all();
        columns.retain(|column| column.name() != "row");
        let numbers = ["offset", "bracket", "maxerror", "esterror", "pending", "rate"];
        columns.extend(numbers.map(|name| column(name, DataType::Int64, false)));
        columns.extend([column("synchronized", DataType::Boolean, false), column("source", DataType::Utf8, false)]);
        Self::new("clocks".into(), columns, origin)
    }

    /// What was recorded.
    pub fn traces(origin: &Origin) -> Self {
        let mut columns = of_all();
        columns.retain(|column| column.name() != "row");
        columns.extend(["what", "kernel", "events", "options", "hold"].map(|name| column(name, DataType::Utf8, false)));
        columns.extend(["written", "yielded", "lost"].map(|name| column(name, DataType::Int64, true)));
        Self::new("traces".into(), columns, origin)
    }

    /// The rows of the batch so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The columns of the table.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Adds a record of the table's event.
    pub fn add_record(&mut self, at: At, of: Of, record: &Record<'_>) {
        let pid = self
            .pid
            .as_ref()
            .and_then(|field| field.int(record))
            .or(of.tid.map(i64::from))
            .map_or(Value::Null, Value::Int);
        let head = [
            Value::Int(at.mono),
            Value::Time(at.tai),
            Value::Int(at.tai_error),
            Value::Int(of.cpu.into()),
            Value::Text(""),
            Value::Text(""),
        ];
        let rest = [Value::Int(at.row), Value::Truth(of.proven), Value::Truth(of.late), pid];
        let (common, own) = self.columns.split_at_mut(head.len() + rest.len());
        common.iter_mut().zip(head.into_iter().chain(rest)).for_each(|(column, value)| column.add_value(value));
        match &self.fields {
            Some(fields) => own.iter_mut().zip(fields).for_each(|(column, field)| column.add_field(field, record)),
            None => {
                let ip = record.ip().map_or(Value::Null, |ip| Value::Int(ip.cast_signed()));
                own.iter_mut().for_each(|column| column.add_value(ip));
            }
        }
        self.rows += 1;
    }

    /// Adds a row of another table: its columns after those that all tables have.
    pub fn add_values<'a>(&mut self, at: At, values: impl IntoIterator<Item = Value<'a>>) {
        let has_rows = self.schema.column_with_name("row").is_some();
        let head =
            [Value::Int(at.mono), Value::Time(at.tai), Value::Int(at.tai_error), Value::Text(""), Value::Text("")];
        let row = has_rows.then_some(Value::Int(at.row));
        let values = head.into_iter().chain(row).chain(values);
        self.columns.iter_mut().zip(values).for_each(|(column, value)| column.add_value(value));
        self.rows += 1;
    }

    /// The batch. The table begins the next one.
    ///
    /// # Errors
    /// If a row lacks a column, which is an error of the caller.
    pub fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        let columns = self.columns.iter_mut().map(Column::finish).collect::<Result<_, _>>()?;
        self.rows = 0;
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
    }
}

fn of_all() -> Vec<Field> {
    let mut columns = times();
    columns.extend([constant("boot"), constant("trace"), column("row", DataType::Int64, false)]);
    columns
}

/// A name as a folder, and as a name in SQL: with nothing in it that means something in a path.
fn in_a_path(name: &str) -> String {
    let safe =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' }).collect::<String>();
    if safe.is_empty() { "_".into() } else { safe }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;

    fn origin() -> Origin {
        Origin { boot: "b".into(), trace: "t".into() }
    }

    fn format() -> Format {
        let line = |what: &str, offset: u32, size: u32, signed: u8| {
            format!("\tfield:{what};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n")
        };
        let common = line("int common_pid", 4, 4, 1);
        let own = [
            line("char comm[16]", 8, 16, 0),
            line("pid_t pid", 24, 4, 1),
            line("u8 row", 28, 1, 0),
            line("unsigned long args[2]", 32, 16, 0),
            line("__data_loc char[] name", 48, 4, 0),
            line("const void * at", 56, 8, 0),
        ];
        format!("name: made\nID: 7\nformat:\n{common}\n{}\nprint fmt: \"\"\n", own.concat()).parse().unwrap()
    }

    /// A record whose payload is these bytes, by way of the simulated kernel's rings.
    fn with_record(payload: &[u8], mut then: impl FnMut(&Record<'_>)) {
        let kernel = perfweave::sim::Kernel::new(&[0]);
        kernel.emit(0, 100, payload);
        let end = kernel.rings().drain::<()>(|event| {
            event.record().iter().for_each(&mut then);
            std::ops::ControlFlow::Continue(())
        });
        assert!(end.is_continue());
    }

    #[test]
    fn fields_become_columns_of_their_types_and_names() {
        let table = Table::event("made up", "ev/il", Some(&format()), &origin());
        assert_eq!(table.folder, "events/made_up/ev_il");
        let own = table.schema().fields()[10..]
            .iter()
            .map(|field| (field.name().as_str(), field.data_type().clone()))
            .collect::<Vec<_>>();
        let expected = [
            ("comm", DataType::Utf8),
            ("pid", DataType::Int32),
            ("row_field", DataType::UInt8),
            ("args", DataType::Binary),
            ("name", DataType::Utf8),
            ("at", DataType::UInt64),
        ];
        assert_eq!(own, expected);
    }

    #[test]
    fn a_record_is_a_row_and_what_does_not_fit_is_null() {
        let mut payload = vec![0; 68];
        payload[4..8].copy_from_slice(&42_i32.to_ne_bytes());
        payload[8..12].copy_from_slice(b"bash");
        payload[24..28].copy_from_slice(&(-1_i32).to_ne_bytes());
        payload[28] = 200;
        payload[48..52].copy_from_slice(&(4_u32 << 16 | 64).to_ne_bytes());
        payload[56..64].copy_from_slice(&u64::MAX.to_ne_bytes());
        payload[64..].copy_from_slice(b"abc\0");
        let mut table = Table::event("made", "made", Some(&format()), &origin());
        let (at, of) =
            (At { mono: 1, tai: 2, tai_error: 3, row: 4 }, Of { cpu: 5, proven: true, late: false, tid: None });
        with_record(&payload, |record| table.add_record(at, of, record));
        // perf pads payloads to 8 bytes with their length: this one has no padding.
        with_record(&payload[..28], |record| table.add_record(At { row: 5, ..at }, of, record));
        assert_eq!(table.rows(), 2);
        let batch = table.take().unwrap();
        let column = |name: &str| batch.column_by_name(name).unwrap();
        assert_eq!(column("common_pid").as_primitive::<Int32Type>().values(), &[42, 42]);
        assert_eq!(column("row").as_primitive::<Int64Type>().values(), &[4, 5]);
        assert_eq!(column("comm").as_string::<i32>().value(1), "bash");
        assert_eq!(column("pid").as_primitive::<Int32Type>().values(), &[-1, -1]);
        assert_eq!(column("row_field").as_primitive::<UInt8Type>().value(0), 200);
        assert_eq!(column("name").as_string::<i32>().value(0), "abc");
        assert_eq!(column("at").as_primitive::<UInt64Type>().value(0), u64::MAX);
        assert!(["row_field", "args", "name", "at"].iter().all(|name| column(name).is_null(1)));
        assert_eq!(table.rows(), 0);
        assert_eq!(table.take().unwrap().num_rows(), 0);
    }

    #[test]
    fn other_tables_take_their_rows() {
        let at = At { mono: 1, tai: 2, tai_error: 3, row: 4 };
        let mut notices = Table::notices(&origin());
        notices.add_values(
            at,
            [Value::Text("gap"), Value::Null, Value::Int(3), Value::Null, Value::Int(9), Value::Text("3 are missing")],
        );
        assert_eq!(notices.take().unwrap().num_rows(), 1);
        let mut clocks = Table::clocks(&origin());
        clocks.add_values(
            at,
            [1, 2, 3, 4, 5, 6].map(Value::Int).into_iter().chain([Value::Truth(true), Value::Text("tai")]),
        );
        assert_eq!(clocks.take().unwrap().num_rows(), 1);
        let mut traces = Table::traces(&origin());
        traces.add_values(
            at,
            ["begin", "6.18", "sched:*", "", "fence"].map(Value::Text).into_iter().chain([Value::Null; 3]),
        );
        assert_eq!(traces.take().unwrap().num_rows(), 1);
    }
}
