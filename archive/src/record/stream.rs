//! The thread that writes one stream instead of files: the rows of all tables in the order of the recording.

use super::Error;
use super::writer::{Batch, Message, Written};
use crate::clocks::UNKNOWN;
use crate::query::FRONTIER;
use crate::schema::{constant, repeated};
use arrow::array::{
    ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, StructArray, TimestampNanosecondArray, new_null_array,
};
use arrow::compute::{concat, sort_to_indices, take_record_batch};
use arrow::datatypes::{DataType, Field, Fields, Int64Type, Schema, SchemaRef, TimestampNanosecondType};
use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use std::io::{BufWriter, Write};
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

/// Columns of more than one table. A table's own columns are the fields of a column that is named as the table is in
/// SQL.
const SHARED: [&str; 10] =
    ["mono", "tai", "tai_error", "row", "boot", "trace", "cpu_id", "proven", "late", "common_pid"];

/// Writes until the other end is closed. Rows that were passed on together, by time, are a batch. `tables` are those of
/// events and notices.
///
/// # Errors
/// If the output does not take the stream.
pub fn write(
    output: impl Write,
    machine: &str,
    tables: Vec<(Arc<str>, SchemaRef)>,
    mut messages: UnboundedReceiver<Message>,
) -> Result<Written, Error> {
    let mut stream = Stream::new(output, machine, tables)?;
    let mut waiting = Vec::new();
    while let Some(message) = messages.blocking_recv() {
        match message {
            Message::Rows(batch) => waiting.push(batch),
            // All rows that come later are later in the order, too.
            Message::Now { .. } => stream.take(&mut waiting)?,
            Message::Told(_) | Message::End(_) => {}
        }
    }
    stream.take(&mut waiting)?;
    stream.writer.finish()?;
    Ok(stream.written)
}

struct Table {
    folder: Arc<str>,
    own: Fields,
}

struct Stream<W: Write> {
    writer: StreamWriter<BufWriter<W>>,
    schema: SchemaRef,
    machine: Arc<StringArray>,
    tables: Vec<Table>,
    /// The TAI of the last row.
    latest: i64,
    written: Written,
}

impl<W: Write> Stream<W> {
    fn new(output: W, machine: &str, tables: Vec<(Arc<str>, SchemaRef)>) -> Result<Self, Error> {
        let shared = |name: &&str| tables.iter().find_map(|(_, schema)| schema.field_with_name(name).ok());
        let mut fields = vec![constant("machine")];
        fields.extend(SHARED.iter().filter_map(shared).map(|field| {
            let is_null = |schema: &SchemaRef| schema.field_with_name(field.name()).map_or(true, Field::is_nullable);
            field.clone().with_nullable(tables.iter().any(|(_, schema)| is_null(schema)))
        }));
        let is_own = |field: &&Arc<Field>| !SHARED.contains(&field.name().as_str());
        let tables = tables.iter().map(|(folder, schema)| Table {
            folder: Arc::clone(folder),
            own: schema.fields().iter().filter(is_own).cloned().collect(),
        });
        let tables = tables.collect::<Vec<_>>();
        fields.extend(tables.iter().map(|table| {
            let name = table.folder.strip_prefix("events/").unwrap_or(&table.folder).replace('/', ".");
            Field::new(name, DataType::Struct(table.own.clone()), true)
        }));
        let tai =
            fields.iter().find(|field| field.name() == "tai").map_or(DataType::Null, |field| field.data_type().clone());
        fields.push(Field::new(FRONTIER, tai, false));
        let schema = Arc::new(Schema::new(fields));
        // In each row the columns of all tables but one are null, and are zeros in the stream.
        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME))?;
        let writer = StreamWriter::try_new_with_options(BufWriter::new(output), &schema, options)?;
        let machine = Arc::new(StringArray::from(vec![machine]));
        Ok(Self { writer, schema, machine, tables, latest: i64::MIN, written: Written::default() })
    }

    /// Writes what waits, if that is anything.
    fn take(&mut self, waiting: &mut Vec<Batch>) -> Result<(), Error> {
        // Tables of clocks and recordings have no place in the order.
        let of = |batch: &Batch| self.tables.iter().position(|table| table.folder == batch.folder);
        let parts = waiting.iter().filter_map(|batch| Some((of(batch)?, &batch.rows))).collect::<Vec<_>>();
        if !parts.is_empty() {
            let (rows, latest) = self.batch(&parts)?;
            self.writer.write(&rows)?;
            self.writer.flush()?;
            self.latest = latest;
            let events = parts.iter().filter(|(table, _)| self.tables[*table].folder.starts_with("events/"));
            self.written.events += events.map(|(_, rows)| rows.num_rows() as u64).sum::<u64>();
        }
        // Their part of the room is free from here on.
        waiting.clear();
        Ok(())
    }

    /// The rows of some tables as one batch in their order, and the TAI of the last.
    fn batch(&self, parts: &[(usize, &RecordBatch)]) -> Result<(RecordBatch, i64), ArrowError> {
        let joined = |of: &dyn Fn(usize, &RecordBatch) -> ArrayRef| {
            let arrays = parts.iter().map(|(table, rows)| of(*table, rows)).collect::<Vec<_>>();
            concat(&arrays.iter().map(AsRef::as_ref).collect::<Vec<_>>())
        };
        let total = parts.iter().map(|(_, rows)| rows.num_rows()).sum::<usize>();
        // All but the first column, which is the same everywhere, and the last, which comes from their order.
        let (shared, own) = self.schema.fields()[1..self.schema.fields().len() - 1].split_at(self.shared());
        let mut columns = Vec::new();
        for field in shared {
            columns.push(joined(&|_, rows| {
                let column = rows.column_by_name(field.name()).cloned();
                column.unwrap_or_else(|| new_null_array(field.data_type(), rows.num_rows()))
            })?);
        }
        for (number, field) in own.iter().enumerate() {
            columns.push(joined(&|table, rows| {
                if table != number {
                    return new_null_array(field.data_type(), rows.num_rows());
                }
                let fields = &self.tables[table].own;
                let columns = fields.iter().filter_map(|field| rows.column_by_name(field.name()).cloned()).collect();
                Arc::new(StructArray::new(fields.clone(), columns, None))
            })?);
        }
        let names = shared.iter().chain(own).cloned().collect::<Fields>();
        let rows = RecordBatch::try_new(Arc::new(Schema::new(names)), columns)?;
        let place = rows.schema().index_of("row")?;
        let rows = take_record_batch(&rows, &sort_to_indices(rows.column(place), None, None)?)?;
        let (mut columns, latest) = self.in_time(&rows)?;
        columns.insert(0, repeated(&self.machine, total)?);
        columns.push(Arc::new(TimestampNanosecondArray::from_value(latest, total)));
        Ok((RecordBatch::try_new(Arc::clone(&self.schema), columns)?, latest))
    }

    fn shared(&self) -> usize {
        self.schema.fields().len() - self.tables.len() - 2
    }

    /// The columns with TAI that never decreases, over all batches. It decreases where a clock is set, and for late
    /// events: such a row has the TAI of the one before it, and its error is larger by what that differs.
    fn in_time(&self, rows: &RecordBatch) -> Result<(Vec<ArrayRef>, i64), ArrowError> {
        let (tai, error) = (rows.schema().index_of("tai")?, rows.schema().index_of("tai_error")?);
        let mut columns = rows.columns().to_vec();
        let mut latest = self.latest;
        let times = columns[tai].as_primitive::<TimestampNanosecondType>().values().iter();
        let errors = columns[error].as_primitive::<Int64Type>().values().iter();
        let (times, errors): (Vec<i64>, Vec<i64>) = times
            .zip(errors)
            .map(|(time, error)| {
                latest = latest.max(*time);
                (latest, error.saturating_add(latest.saturating_sub(*time)).min(UNKNOWN))
            })
            .unzip();
        columns[tai] = Arc::new(TimestampNanosecondArray::from(times));
        columns[error] = Arc::new(Int64Array::from(errors));
        Ok((columns, latest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{At, Origin, Table, Value};
    use arrow::ipc::reader::StreamReader;
    use tokio::sync::mpsc::unbounded_channel;

    /// A notice for each TAI.
    fn rows(first: i64, times: &[(i64, i64)]) -> Batch {
        let mut table = Table::notices(&Origin { boot: "12345678".into(), trace: "87654321".into() });
        for (row, (tai, tai_error)) in (first..).zip(times) {
            let at = At { mono: row, tai: *tai, tai_error: *tai_error, row };
            let [kind, text] = ["lost", ""].map(Value::Text);
            table.add_values(at, [kind, Value::Null, Value::Null, Value::Null, Value::Null, text]);
        }
        let rows = table.take().unwrap();
        Batch { folder: "notices".into(), rows, first: 0, last: 0, sorted: true, utc: 0, room: None }
    }

    /// The clock is set back, in a batch and between batches.
    #[test]
    fn no_row_is_before_a_frontier_whatever_happens_to_the_clock() {
        let (to, messages) = unbounded_channel();
        for message in [
            // As two tables pass them on.
            Message::Rows(rows(2, &[(30, 5), (29, UNKNOWN)])),
            Message::Rows(rows(0, &[(10, 1), (20, 1)])),
            Message::Now { mono: 0, floor: None },
            Message::Now { mono: 0, floor: None },
            Message::Rows(rows(4, &[(25, 7), (40, 7)])),
        ] {
            to.send(message).unwrap();
        }
        drop(to);
        let schema = Table::notices(&Origin { boot: String::new(), trace: String::new() }).schema().clone();
        let mut output = Vec::new();
        let written = write(&mut output, "here", vec![("notices".into(), schema)], messages).unwrap();
        assert_eq!(written, Written::default(), "notices are no events");
        let times = |batch: &RecordBatch, name: &str| {
            batch.column_by_name(name).unwrap().as_primitive::<TimestampNanosecondType>().values().to_vec()
        };
        let read = StreamReader::try_new(&output[..], None).unwrap().map(|batch| {
            let batch = batch.unwrap();
            let errors = batch.column_by_name("tai_error").unwrap().as_primitive::<Int64Type>().values().to_vec();
            (times(&batch, "tai"), errors, times(&batch, FRONTIER))
        });
        assert_eq!(
            read.collect::<Vec<_>>(),
            [(vec![10, 20, 30, 30], vec![1, 1, 5, UNKNOWN], vec![30; 4]), (vec![30, 40], vec![12, 7], vec![40; 2])]
        );
    }
}
