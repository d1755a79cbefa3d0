//! Answers as a stream for other engines: Arrow's IPC stream, in order of TAI, with the frontier behind which nothing
//! comes any more.

use super::Failure;
use arrow::array::{ArrayRef, AsArray, RecordBatch, TimestampNanosecondArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit, TimestampNanosecondType};
use arrow::ipc::writer::StreamWriter;
use datafusion::logical_expr::ident;
use datafusion::prelude::DataFrame;
use futures::TryStreamExt;
use std::io::Write;
use std::sync::Arc;

/// The column that each batch ends with: no row of a later batch has an earlier TAI. All rows of a batch have the same.
pub const FRONTIER: &str = "frontier";
const TAI: DataType = DataType::Timestamp(TimeUnit::Nanosecond, None);

/// Writes an answer, which must have a column `tai`, in its order: rows without a time first. Each batch leaves as soon
/// as there is one.
///
/// # Errors
///
/// [`Failure::Stream`], [`Failure::Query`], [`Failure::Arrow`], [`Failure::Output`]
pub async fn stream(answer: DataFrame, output: &mut impl Write) -> Result<(), Failure> {
    let place = answer
        .schema()
        .index_of_column_by_name(None, "tai")
        .filter(|place| answer.schema().field(*place).data_type() == &TAI);
    let place = place.ok_or(Failure::Stream)?;
    let mut batches = answer.sort(vec![ident("tai").sort(true, true)])?.execute_stream().await?;
    let mut fields: Vec<_> = batches.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(FRONTIER, TAI, false)));
    let schema = Arc::new(Schema::new(fields));
    let mut writer = StreamWriter::try_new(output, &schema)?;
    while let Some(batch) = batches.try_next().await? {
        let times = batch.column(place).as_primitive::<TimestampNanosecondType>();
        // Rows without a time come first, and move no frontier.
        let last = times.iter().next_back().flatten().unwrap_or(i64::MIN);
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::new(TimestampNanosecondArray::from_value(last, batch.num_rows())) as ArrayRef);
        writer.write(&RecordBatch::try_new(schema.clone(), columns)?)?;
        writer.flush()?;
    }
    writer.finish()?;
    Ok(())
}
