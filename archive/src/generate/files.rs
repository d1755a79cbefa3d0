//! Files of tables, as recordings have them.

use super::Summary;
use crate::Failure;
use crate::query::Location;
use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Int32Builder, Int64Builder, RecordBatch, StringBuilder,
    StringDictionaryBuilder, TimestampNanosecondBuilder, UInt16Builder, UInt32Builder, UInt64Builder,
};
use arrow::datatypes::{DataType, Field, Int32Type, Schema, SchemaRef, TimeUnit};
use arrow::temporal_conversions::timestamp_ns_to_datetime;
use object_store::buffered::BufWriter;
use object_store::path::Path;
use parquet::arrow::AsyncArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::WriterProperties;
use std::collections::HashMap;
use std::sync::Arc;

/// TAI minus UTC since 2017.
pub(super) const LEAP_SECONDS: i64 = 37;
const HOUR: i64 = 3600 * 1_000_000_000;
const BATCH: usize = 64 * 1024;
const ROW_GROUP: usize = 128 * 1024;

/// A value of a column that not all tables have.
pub(super) enum Cell {
    I32(i32),
    U16(u16),
    U32(u32),
    I64(i64),
    U64(u64),
    Bool(bool),
    Text(String),
    Bytes(Vec<u8>),
}

pub(super) struct Row<'a> {
    pub(super) machine: &'a str,
    pub(super) boot: &'a str,
    pub(super) trace: &'a str,
    pub(super) mono: i64,
    pub(super) tai: i64,
    pub(super) tai_error: i64,
    pub(super) row: i64,
    /// Of an event, the CPU of its ring.
    pub(super) cpu: Option<i32>,
    pub(super) cells: Vec<Cell>,
}

/// Names and types of the columns after those that all tables have.
fn columns(table: &str) -> &'static [(&'static str, DataType)] {
    use DataType::{Binary, Boolean, Int32, Int64, UInt16, UInt32, UInt64, Utf8};
    match table {
        "sched_switch" => &[
            ("prev_comm", Utf8),
            ("prev_pid", Int32),
            ("prev_prio", Int32),
            ("prev_state", Int64),
            ("next_comm", Utf8),
            ("next_pid", Int32),
            ("next_prio", Int32),
        ],
        "sched_waking" => &[("comm", Utf8), ("pid", Int32), ("prio", Int32), ("target_cpu", Int32)],
        "sys_enter" => &[("id", Int64), ("args", Binary)],
        "sys_exit" => &[("id", Int64), ("ret", Int64)],
        "notices" => &[
            ("kind", Utf8),
            ("cpu_id", Int32),
            ("count", Int64),
            ("from_mono", Int64),
            ("to_mono", Int64),
            ("text", Utf8),
        ],
        "clocks" => &[
            ("offset", Int64),
            ("bracket", Int64),
            ("maxerror", Int64),
            ("esterror", Int64),
            ("pending", Int64),
            ("rate", Int64),
            ("synchronized", Boolean),
            ("source", Utf8),
        ],
        "traces" => &[
            ("what", Utf8),
            ("kernel", Utf8),
            ("events", Utf8),
            ("options", Utf8),
            ("hold", Utf8),
            ("written", Int64),
            ("yielded", Int64),
            ("lost", Int64),
        ],
        "inet_sock_set_state" => &[
            ("skaddr", UInt64),
            ("oldstate", Int32),
            ("newstate", Int32),
            ("sport", UInt16),
            ("dport", UInt16),
            ("family", UInt16),
            ("protocol", UInt16),
            ("saddr", Binary),
            ("daddr", Binary),
            ("saddr_v6", Binary),
            ("daddr_v6", Binary),
        ],
        "message_send" | "message_receive" => &[("message", UInt64), ("length", UInt32)],
        _ => &[],
    }
}

enum Column {
    I32(Int32Builder),
    U16(UInt16Builder),
    U32(UInt32Builder),
    I64(Int64Builder),
    U64(UInt64Builder),
    Bool(BooleanBuilder),
    Text(StringBuilder),
    Bytes(BinaryBuilder),
}

impl Column {
    fn new(of: &DataType) -> Self {
        match of {
            DataType::Int32 => Self::I32(Int32Builder::new()),
            DataType::UInt16 => Self::U16(UInt16Builder::new()),
            DataType::UInt32 => Self::U32(UInt32Builder::new()),
            DataType::Int64 => Self::I64(Int64Builder::new()),
            DataType::UInt64 => Self::U64(UInt64Builder::new()),
            DataType::Boolean => Self::Bool(BooleanBuilder::new()),
            DataType::Binary => Self::Bytes(BinaryBuilder::new()),
            _ => Self::Text(StringBuilder::new()),
        }
    }

    fn push(&mut self, cell: Cell) {
        match (self, cell) {
            (Self::I32(column), Cell::I32(value)) => column.append_value(value),
            (Self::U16(column), Cell::U16(value)) => column.append_value(value),
            (Self::U32(column), Cell::U32(value)) => column.append_value(value),
            (Self::I64(column), Cell::I64(value)) => column.append_value(value),
            (Self::U64(column), Cell::U64(value)) => column.append_value(value),
            (Self::Bool(column), Cell::Bool(value)) => column.append_value(value),
            (Self::Text(column), Cell::Text(value)) => column.append_value(value),
            (Self::Bytes(column), Cell::Bytes(value)) => column.append_value(value),
            _ => unreachable!("cells have the types of their columns"),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::I32(column) => Arc::new(column.finish()),
            Self::U16(column) => Arc::new(column.finish()),
            Self::U32(column) => Arc::new(column.finish()),
            Self::I64(column) => Arc::new(column.finish()),
            Self::U64(column) => Arc::new(column.finish()),
            Self::Bool(column) => Arc::new(column.finish()),
            Self::Text(column) => Arc::new(column.finish()),
            Self::Bytes(column) => Arc::new(column.finish()),
        }
    }
}

/// Clocks and recordings have no place in an order.
fn has_rows(table: &str) -> bool {
    !["clocks", "traces"].contains(&table)
}

/// The columns of a table.
pub(crate) fn schema(table: &str, event: bool) -> SchemaRef {
    let word = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let mut fields = vec![
        Field::new("mono", DataType::Int64, false),
        Field::new("tai", DataType::Timestamp(TimeUnit::Nanosecond, None), false),
        Field::new("tai_error", DataType::Int64, false),
    ];
    if event {
        fields.push(Field::new("cpu_id", DataType::Int32, false));
    }
    fields.push(Field::new("boot", word.clone(), false));
    fields.push(Field::new("trace", word, false));
    if has_rows(table) {
        fields.push(Field::new("row", DataType::Int64, false));
    }
    if event {
        fields.push(Field::new("proven", DataType::Boolean, false));
        fields.push(Field::new("late", DataType::Boolean, false));
        fields.push(Field::new("common_pid", DataType::Int32, false));
    }
    fields.extend(columns(table).iter().map(|(name, of)| Field::new(*name, of.clone(), true)));
    Arc::new(Schema::new(fields))
}

fn properties() -> WriterProperties {
    let mut builder = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_sorting_columns(Some(vec![SortingColumn { column_idx: 0, descending: false, nulls_first: false }]));
    for column in ["mono", "tai", "row"] {
        builder = builder
            .set_column_dictionary_enabled(column.into(), false)
            .set_column_encoding(column.into(), Encoding::DELTA_BINARY_PACKED);
    }
    builder.build()
}

/// Rows of one table of one machine that are not written yet, and the file that they go to.
struct Table {
    directory: String,
    schema: SchemaRef,
    path: Path,
    /// The hour of the file, which is none before the first row.
    hour: Option<i64>,
    in_file: u64,
    pending: usize,
    mono: Int64Builder,
    tai: TimestampNanosecondBuilder,
    tai_error: Int64Builder,
    cpu: Option<Int32Builder>,
    boot: StringDictionaryBuilder<Int32Type>,
    trace: StringDictionaryBuilder<Int32Type>,
    row: Int64Builder,
    columns: Vec<Column>,
}

impl Table {
    fn new(directory: String, name: &str, event: bool) -> Self {
        let schema = schema(name, event);
        let common = 5 + usize::from(event) + usize::from(has_rows(name));
        let columns = schema.fields()[common..].iter().map(|field| Column::new(field.data_type())).collect();
        Self {
            directory,
            schema,
            path: Path::default(),
            hour: None,
            in_file: 0,
            pending: 0,
            mono: Int64Builder::new(),
            tai: TimestampNanosecondBuilder::new(),
            tai_error: Int64Builder::new(),
            cpu: event.then(Int32Builder::new),
            boot: StringDictionaryBuilder::new(),
            trace: StringDictionaryBuilder::new(),
            row: Int64Builder::new(),
            columns,
        }
    }

    /// The next file, by its first row.
    fn begin(&mut self, hour: i64, row: &Row<'_>) {
        let time = timestamp_ns_to_datetime(hour * HOUR).unwrap_or_default();
        let boot = &row.boot[..8];
        self.path = format!(
            "{}/date={}/hour={}/{boot}-{}.parquet",
            self.directory,
            time.format("%F"),
            time.format("%H"),
            row.mono
        )
        .into();
        self.hour = Some(hour);
        self.in_file = 0;
    }

    fn push(&mut self, row: Row<'_>) {
        self.mono.append_value(row.mono);
        self.tai.append_value(row.tai);
        self.tai_error.append_value(row.tai_error);
        if let (Some(column), Some(cpu)) = (&mut self.cpu, row.cpu) {
            column.append_value(cpu);
        }
        self.boot.append_value(row.boot);
        self.trace.append_value(row.trace);
        self.row.append_value(row.row);
        for (column, cell) in self.columns.iter_mut().zip(row.cells) {
            column.push(cell);
        }
        self.pending += 1;
        self.in_file += 1;
    }

    /// Takes what is pending.
    fn take(&mut self, last: bool) -> Piece {
        let mut arrays: Vec<ArrayRef> =
            vec![Arc::new(self.mono.finish()), Arc::new(self.tai.finish()), Arc::new(self.tai_error.finish())];
        if let Some(cpu) = &mut self.cpu {
            arrays.push(Arc::new(cpu.finish()));
        }
        arrays.extend([Arc::new(self.boot.finish()) as ArrayRef, Arc::new(self.trace.finish())]);
        let row = self.row.finish();
        arrays.extend(self.schema.column_with_name("row").map(|_| Arc::new(row) as ArrayRef));
        arrays.extend(self.columns.iter_mut().map(Column::finish));
        self.pending = 0;
        Piece { path: self.path.clone(), schema: self.schema.clone(), arrays, last }
    }
}

/// A piece of a file that can be written.
struct Piece {
    path: Path,
    schema: SchemaRef,
    arrays: Vec<ArrayRef>,
    last: bool,
}

/// All tables of all machines.
pub(super) struct Tables {
    location: Location,
    file_rows: u64,
    tables: HashMap<[&'static str; 2], HashMap<String, Table>>,
    ready: Vec<Piece>,
    files: HashMap<Path, AsyncArrowWriter<BufWriter>>,
    summary: Summary,
}

impl Tables {
    pub(super) fn open(url: &str, file_rows: u64) -> Result<Self, Failure> {
        let location = Location::create(url)?;
        let (tables, files) = (HashMap::new(), HashMap::new());
        Ok(Self { location, file_rows, tables, ready: Vec::new(), files, summary: Summary::default() })
    }

    /// Events so far.
    pub(super) fn rows(&self) -> u64 {
        self.summary.rows
    }

    pub(super) fn event(&mut self, table: [&'static str; 2], row: Row<'_>) {
        self.summary.rows += 1;
        self.push(table, row);
    }

    pub(super) fn other(&mut self, table: &'static str, row: Row<'_>) {
        self.push([table, ""], row);
    }

    fn push(&mut self, [system, event]: [&'static str; 2], row: Row<'_>) {
        let tables = self.tables.entry([system, event]).or_default();
        if !tables.contains_key(row.machine) {
            let (directory, name) = if event.is_empty() {
                (system.to_string(), system)
            } else {
                (format!("events/{system}/{event}"), event)
            };
            let table = Table::new(format!("{directory}/machine={}", row.machine), name, !event.is_empty());
            tables.insert(row.machine.to_string(), table);
        }
        let Some(table) = tables.get_mut(row.machine) else { return };
        let hour = (row.tai - LEAP_SECONDS * 1_000_000_000).div_euclid(HOUR);
        if table.hour != Some(hour) || table.in_file >= self.file_rows {
            if table.hour.is_some() {
                self.ready.push(table.take(true));
            }
            table.begin(hour, &row);
        }
        table.push(row);
        if table.pending >= BATCH {
            self.ready.push(table.take(false));
        }
    }

    pub(super) async fn write_what_is_ready(&mut self) -> Result<(), Failure> {
        for piece in std::mem::take(&mut self.ready) {
            let mut file = match self.files.remove(&piece.path) {
                Some(file) => file,
                None => {
                    let sink = BufWriter::new(self.location.store.clone(), self.location.inside(&piece.path));
                    AsyncArrowWriter::try_new(sink, piece.schema.clone(), Some(properties()))?
                }
            };
            file.write(&RecordBatch::try_new(piece.schema, piece.arrays)?).await?;
            if piece.last {
                file.finish().await?;
                self.summary.files += 1;
                self.summary.bytes += file.bytes_written() as u64;
            } else {
                self.files.insert(piece.path, file);
            }
        }
        Ok(())
    }

    pub(super) async fn finish(mut self) -> Result<Summary, Failure> {
        for table in self.tables.values_mut().flat_map(HashMap::values_mut) {
            self.ready.push(table.take(true));
        }
        self.write_what_is_ready().await?;
        Ok(self.summary)
    }
}
